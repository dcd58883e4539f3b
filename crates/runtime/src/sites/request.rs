//! What a site asks the others of a transaction (protocol = "certified"), as bytes: numbers of eight bytes unless said otherwise, and what is repeated with its
//! number before it.
//!
//! Format: a byte that says what is asked. Of one that has executed, the snapshot, and which execution it is; of one that is to be executed in place nothing more. Each access as its table, its space (a byte, and a key's number of four bytes), its mode (a
//! byte), its columns, and each column (two bytes) that equals a value; then the record: of what was written, or of all its statements.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_core::item::{Equals, KeyId, Space, ValueHash};
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Csn, Item, Mode, OpId, TableId};

use crate::record::Record;

/// Sites of another one do not understand each other.
pub const FORMAT: u8 = 2;
/// Whether it may commit.
const VERDICT: u8 = 1;
/// To execute it at its place.
const IN_PLACE: u8 = 2;
const MODES: [Mode; 6] =
    [Mode::KeyShared, Mode::Shared, Mode::Update, Mode::Insert, Mode::NoKeyExclusive, Mode::Exclusive];
const ROWS: u8 = 0;
const KEY: u8 = 1;
const SCHEMA: u8 = 2;

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    pub asks: Asks,
    /// What it has read and written, or may.
    pub access: AccessSet,
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// Whether it may commit.
    Verdict {
        /// Up to which place its site contained everything when it began.
        snapshot: Csn,
        op: OpId,
    },
    /// To execute it at its place.
    InPlace,
}

impl Request {
    pub fn encode(&self, record: &Record) -> Bytes {
        let mut out = BytesMut::new();
        match self.asks {
            Asks::Verdict { snapshot, op } => {
                out.put_u8(VERDICT);
                out.put_u64(snapshot.0);
                out.put_u64(op.0.into());
            }
            Asks::InPlace => out.put_u8(IN_PLACE),
        }
        out.put_u64(self.access.len() as u64);
        self.access.iter().for_each(|access| put_access(access, &mut out));
        out.put_slice(&record.encode());
        out.freeze()
    }

    /// `None` for what is no request of this version.
    pub fn decode(mut input: Bytes) -> Option<(Request, Record)> {
        let asks = match input.try_get_u8().ok()? {
            VERDICT => {
                let (snapshot, op) = (Csn(input.try_get_u64().ok()?), input.try_get_u64().ok()?);
                Asks::Verdict { snapshot, op: OpId(op.try_into().ok()?) }
            }
            IN_PLACE => Asks::InPlace,
            _ => return None,
        };
        let count = input.try_get_u64().ok()?;
        let access = (0..count).map(|_| take_access(&mut input)).collect::<Option<AccessSet>>()?;
        Some((Request { asks, access }, Record::decode(input).ok()?))
    }

    pub fn is_in_place(&self) -> bool {
        self.asks == Asks::InPlace
    }
}

pub(super) fn put_access(access: &Access, out: &mut BytesMut) {
    let Access { item: Item { table, space, equals }, mode, columns } = access;
    out.put_u64(table.0);
    match space {
        Space::Rows => out.put_u8(ROWS),
        Space::Key(KeyId(key)) => {
            out.put_u8(KEY);
            out.put_u32(*key);
        }
        Space::Schema => out.put_u8(SCHEMA),
    }
    // All are in the list.
    let mode = MODES.iter().position(|of| of == mode).unwrap_or(MODES.len() - 1);
    out.put_u8(mode as u8);
    out.put_u64(columns.bits());
    out.put_u64(equals.len() as u64);
    for (column, value) in equals {
        out.put_u16(column.0);
        out.put_u64(value.0);
    }
}

/// `None` for what is none.
pub(super) fn take_access(input: &mut Bytes) -> Option<Access> {
    let table = TableId(input.try_get_u64().ok()?);
    let space = match input.try_get_u8().ok()? {
        ROWS => Space::Rows,
        KEY => Space::Key(KeyId(input.try_get_u32().ok()?)),
        SCHEMA => Space::Schema,
        _ => return None,
    };
    let mode = *MODES.get(usize::from(input.try_get_u8().ok()?))?;
    let columns = ColumnSet::of_bits(input.try_get_u64().ok()?);
    let count = input.try_get_u64().ok()?;
    let equals = (0..count).map(|_| {
        let column = ColumnId(input.try_get_u16().ok()?);
        Some((column, ValueHash(input.try_get_u64().ok()?)))
    });
    let equals = equals.collect::<Option<Equals>>()?;
    Some(Access { item: Item { table, space, equals }, mode, columns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{What, Write};

    #[test]
    fn requests_come_back_as_they_went_and_what_is_cut_is_none() {
        let row = Item::rows(TableId(7), [(ColumnId(1), ValueHash(5)), (ColumnId(3), ValueHash(9))]);
        let key = Item::key(TableId(7), KeyId(2), [(ColumnId(1), ValueHash(5))]);
        let items =
            [row, key, Item::schema(TableId(8)), Item::everything(), Item::table(TableId(9)), Item::names()];
        let columns: ColumnSet = [ColumnId(2), ColumnId(70)].into_iter().collect();
        let access: AccessSet =
            items.into_iter().zip(MODES).map(|(item, mode)| Access { item, mode, columns }).collect();
        let writes = vec![Write::new(What::Text("UPDATE t SET a = 1".into()))];
        let record = Record { user: "shop".into(), writes, ..Record::default() };
        for asks in [Asks::Verdict { snapshot: Csn(12), op: OpId(3) }, Asks::InPlace] {
            let request = Request { asks, access: access.clone() };
            let sent = request.encode(&record);
            let (found, of) = Request::decode(sent.clone()).unwrap();
            assert_eq!((found, of.user, of.writes.len()), (request, record.user.clone(), 1));
            for len in 1..sent.len() {
                // Without any record there is an empty one, which is one, too.
                if let Some((_, record)) = Request::decode(sent.slice(..len)) {
                    assert_eq!(record, Record::default(), "cut at {len}");
                }
            }
        }
        assert_eq!(Request::decode(Bytes::from_static(b"\x03")), None);
    }
}
