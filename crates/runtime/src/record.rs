//! The body of a decision in the log: what the other replicas execute, in which surroundings.
//!
//! Format (all integers little-endian, strings and byte strings with a 32-bit length): version byte; in version 2 the
//! origin, which is 16 bytes for the session and 8 for the number; user; number of settings and each one's name and value;
//! number of writes and each write. A write is a kind byte, flags, the
//! expected number of rows (`u64::MAX` if unknown), and by kind: the text; or the text, the parameter types and the
//! end of a Bind message (formats, parameters, result formats); or the text of a COPY and its data.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_core::{Access, Item, Mode};

use crate::lane::StatementKey;

/// What no front has carried to here.
const VERSION: u8 = 1;
/// With an origin.
const VERSION_WITH_ORIGIN: u8 = 2;
const KIND_TEXT: u8 = 1;
const KIND_PREPARED: u8 = 2;
const KIND_COPY: u8 = 3;
const FLAG_CAPTURED: u8 = 1;
const FLAG_LASTS: u8 = 2;
const FLAG_CHANGES: u8 = 4;
const ROWS_UNKNOWN: u64 = u64::MAX;

/// Names and values of settings. Most writes of a session are made under the same ones.
pub type Settings = Arc<[(String, String)]>;

/// Which commit of which session a decision is, for whoever goes on with the session on another node and must know
/// whether it was committed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// Random bytes that the session's front has chosen.
    pub session: [u8; 16],
    /// The how many-th of the session's commits it is, from 1.
    pub number: u64,
}

/// What one transaction wrote.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Record {
    /// Unknown of sessions that nobody goes on with elsewhere.
    pub origin: Option<Origin>,
    /// The role that wrote; empty for onecopy itself.
    pub user: String,
    /// Session settings that may change what a statement means.
    pub settings: Settings,
    /// In the order of execution.
    pub writes: Vec<Write>,
}

/// One statement, or the rows that one changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Write {
    /// How to do it again.
    pub what: What,
    /// Rows that were captured: applied with triggers off.
    pub captured: bool,
    /// It changes no rows, but something that lasts to the end of its database transaction, so its record has one for itself.
    pub lasts: bool,
    /// Rows that it must affect.
    pub rows: Option<u64>,
    /// The items that it touches, if it may be put together with others of its statement. Kept in memory only.
    pub reach: Option<Arc<[Access]>>,
    /// It cannot affect more than one row. Kept in memory only.
    pub one_row: bool,
    /// The rows of tables with foreign keys that it changes: where its database transaction has changed one before, the server
    /// locks what that refers to. The log says only whether there are any.
    pub changed: Option<Arc<[Access]>>,
}

/// How a write is done again.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// A text for the simple protocol.
    Text(String),
    /// A statement to prepare, and the part of Bind that follows the names.
    Prepared { key: StatementKey, sql: Arc<str>, types: Arc<[u32]>, bind: Bytes },
    /// A COPY FROM STDIN and its data, as CopyData bodies.
    Copy { sql: String, data: Vec<Bytes> },
}

impl What {
    /// Its text, unless that is a COPY.
    fn statement(&self) -> Option<&str> {
        match self {
            What::Text(sql) => Some(sql),
            What::Prepared { sql, .. } => Some(sql),
            What::Copy { .. } => None,
        }
    }

    /// A statement to prepare, with what follows the names in a Bind message.
    pub fn prepared(sql: &str, types: &[u32], bind: Bytes) -> What {
        What::Prepared { key: StatementKey::of(sql, types), sql: sql.into(), types: types.into(), bind }
    }
}

/// A Bind frame without its head and its two empty names.
pub fn after_names(frame: &Bytes) -> Bytes {
    frame.slice(onecopy_wire::frame::HEAD_LEN + 2..)
}

/// A body that is not one of this format: the log was written by another version, or is damaged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a record of the commit log cannot be read: {0}; it was written by another version, or is damaged")]
pub struct BadRecord(pub(crate) &'static str);

impl Record {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        match &self.origin {
            None => out.put_u8(VERSION),
            Some(Origin { session, number }) => {
                out.put_u8(VERSION_WITH_ORIGIN);
                out.put_slice(session);
                out.put_u64_le(*number);
            }
        }
        put_str(&mut out, &self.user);
        out.put_u32_le(self.settings.len() as u32);
        for (name, value) in self.settings.iter() {
            put_str(&mut out, name);
            put_str(&mut out, value);
        }
        out.put_u32_le(self.writes.len() as u32);
        for write in &self.writes {
            write.encode(&mut out);
        }
        out.freeze()
    }

    /// The origin of a body, of which no more than the first bytes are read: the first chunk of one that comes in several
    /// will do. `None` also for what is no body.
    pub fn origin_of(body: &Bytes) -> Option<Origin> {
        take_origin(&mut &body[..]).ok().flatten()
    }

    /// Whether it can share a database transaction with others.
    pub fn is_sociable(&self) -> bool {
        !self.writes.iter().any(|write| write.lasts)
    }

    /// The rows of tables with foreign keys that each of its writes changes.
    pub fn changed(&self) -> impl Iterator<Item = &[Access]> {
        self.writes.iter().filter_map(|write| write.changed.as_deref())
    }

    pub fn decode(mut body: Bytes) -> Result<Record, BadRecord> {
        if body.is_empty() {
            return Ok(Record::default());
        }
        let origin = take_origin(&mut body)?;
        let user = take_str(&mut body)?;
        let settings = take_many(&mut body, |body| Ok((take_str(body)?, take_str(body)?)))?.into();
        let writes = take_many(&mut body, Write::decode)?;
        if body.has_remaining() {
            Err(BadRecord("bytes after the end"))
        } else {
            Ok(Record { origin, user, settings, writes })
        }
    }
}

impl Write {
    /// A write by itself, of which nothing more is known.
    pub fn new(what: What) -> Write {
        Write { what, captured: false, lasts: false, rows: None, reach: None, one_row: false, changed: None }
    }

    /// Whether it may change definitions: its text begins with none of the words that only change rows, or settings.
    pub fn may_change_types(&self) -> bool {
        let Some(sql) = self.what.statement() else { return false };
        let word = sql.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
        !["insert", "update", "delete", "merge", "select", "with", "set"]
            .iter()
            .any(|known| word.eq_ignore_ascii_case(known))
    }

    /// Whether it may give or take the name of a role: CREATE, ALTER or DROP of a role, user or group.
    pub fn may_change_roles(&self) -> bool {
        let names_one = |sql: &str| {
            let words = sql.split(|c: char| !c.is_ascii_alphabetic());
            words
                .into_iter()
                .any(|word| ["role", "user", "group"].iter().any(|w| word.eq_ignore_ascii_case(w)))
        };
        self.may_change_types() && self.what.statement().is_some_and(names_one)
    }

    /// Bytes that this takes in memory and in the log, about.
    pub fn len(&self) -> usize {
        32 + match &self.what {
            What::Text(sql) => sql.len(),
            What::Prepared { sql, types, bind, .. } => sql.len() + 4 * types.len() + bind.len(),
            What::Copy { sql, data } => sql.len() + data.iter().map(|chunk| chunk.len() + 4).sum::<usize>(),
        }
    }

    fn encode(&self, out: &mut BytesMut) {
        let kind = match &self.what {
            What::Text(_) => KIND_TEXT,
            What::Prepared { .. } => KIND_PREPARED,
            What::Copy { .. } => KIND_COPY,
        };
        out.put_u8(kind);
        let changes = self.changed.is_some();
        let flags = [(self.captured, FLAG_CAPTURED), (self.lasts, FLAG_LASTS), (changes, FLAG_CHANGES)];
        out.put_u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        out.put_u64_le(self.rows.unwrap_or(ROWS_UNKNOWN));
        match &self.what {
            What::Text(sql) => put_str(out, sql),
            What::Prepared { sql, types, bind, .. } => {
                put_str(out, sql);
                out.put_u32_le(types.len() as u32);
                types.iter().for_each(|oid| out.put_u32_le(*oid));
                put_bytes(out, bind);
            }
            What::Copy { sql, data } => {
                put_str(out, sql);
                out.put_u32_le(data.len() as u32);
                data.iter().for_each(|chunk| put_bytes(out, chunk));
            }
        }
    }

    fn decode(body: &mut Bytes) -> Result<Write, BadRecord> {
        let kind = take_u8(body)?;
        let flags = take_u8(body)?;
        let rows = body.try_get_u64_le().map_err(|_| SHORT)?;
        let what = match kind {
            KIND_TEXT => What::Text(take_str(body)?),
            KIND_PREPARED => {
                let (sql, types) = (take_str(body)?, take_many(body, take_u32)?);
                What::prepared(&sql, &types, take_bytes(body)?)
            }
            KIND_COPY => What::Copy { sql: take_str(body)?, data: take_many(body, take_bytes)? },
            _ => return Err(BadRecord("unknown kind of write")),
        };
        let rows = (rows != ROWS_UNKNOWN).then_some(rows);
        let (captured, lasts) = (flags & FLAG_CAPTURED != 0, flags & FLAG_LASTS != 0);
        // Which ones it changes is not known any more.
        let changed = (flags & FLAG_CHANGES != 0)
            .then(|| vec![Access::new(Item::everything(), Mode::Exclusive)].into());
        Ok(Write { captured, lasts, rows, changed, ..Write::new(what) })
    }
}

const SHORT: BadRecord = BadRecord("it ends too early");

/// Version and origin, with which a body begins.
fn take_origin(body: &mut impl Buf) -> Result<Option<Origin>, BadRecord> {
    match body.try_get_u8().map_err(|_| SHORT)? {
        VERSION => Ok(None),
        VERSION_WITH_ORIGIN => {
            let mut session = [0; 16];
            body.try_copy_to_slice(&mut session).map_err(|_| SHORT)?;
            let number = body.try_get_u64_le().map_err(|_| SHORT)?;
            Ok(Some(Origin { session, number }))
        }
        _ => Err(BadRecord("unknown version")),
    }
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_str(out: &mut BytesMut, text: &str) {
    put_bytes(out, text.as_bytes());
}

fn take_u8(body: &mut Bytes) -> Result<u8, BadRecord> {
    body.try_get_u8().map_err(|_| SHORT)
}

fn take_u32(body: &mut Bytes) -> Result<u32, BadRecord> {
    body.try_get_u32_le().map_err(|_| SHORT)
}

fn take_bytes(body: &mut Bytes) -> Result<Bytes, BadRecord> {
    let len = take_u32(body)? as usize;
    if body.remaining() < len { Err(SHORT) } else { Ok(body.split_to(len)) }
}

fn take_str(body: &mut Bytes) -> Result<String, BadRecord> {
    String::from_utf8(take_bytes(body)?.to_vec()).map_err(|_| BadRecord("a text is not UTF-8"))
}

fn take_many<T>(
    body: &mut Bytes,
    mut take: impl FnMut(&mut Bytes) -> Result<T, BadRecord>,
) -> Result<Vec<T>, BadRecord> {
    (0..take_u32(body)?).map(|_| take(body)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let write = |what| Write { captured: true, rows: Some(3), ..Write::new(what) };
        Record {
            origin: None,
            user: "shop".into(),
            settings: [("TimeZone".into(), "UTC".into())].into(),
            writes: vec![
                Write { lasts: true, ..Write::new(What::Text("SET CONSTRAINTS ALL DEFERRED".into())) },
                Write::new(What::Text("UPDATE t SET a = 1".into())),
                write(What::prepared("DELETE FROM t WHERE a = $1", &[23], Bytes::from_static(&[0, 0, 0, 1]))),
                write(What::Copy { sql: "COPY t FROM STDIN".into(), data: vec![Bytes::from_static(b"1\n")] }),
            ],
        }
    }

    fn carried() -> Record {
        Record { origin: Some(Origin { session: *b"0123456789abcdef", number: 258 }), ..record() }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(Record::decode(record().encode()), Ok(record()));
        assert_eq!(Record::decode(carried().encode()), Ok(carried()));
    }

    #[test]
    fn a_record_without_origin_is_what_it_was_before_there_were_any() {
        let whole = record().encode();
        assert_eq!(whole[0], 1);
        assert_eq!(Record::origin_of(&whole), None);
        let with_origin = carried().encode();
        assert_eq!(with_origin[0], 2);
        assert_eq!(with_origin[25..], whole[1..]);
    }

    #[test]
    fn origin_is_read_from_the_first_bytes_alone() {
        let whole = carried().encode();
        let origin = carried().origin;
        assert_eq!((Record::origin_of(&whole), Record::origin_of(&whole.slice(..25))), (origin, origin));
        for len in 0..25 {
            assert_eq!(Record::origin_of(&whole.slice(..len)), None, "cut at {len}");
        }
        assert_eq!(Record::origin_of(&Bytes::from_static(&[3; 30])), None);
    }

    #[test]
    fn which_rows_change_is_forgotten_but_not_that_some_do() {
        let row = Access::new(Item::table(onecopy_core::TableId(1)), Mode::NoKeyExclusive);
        let mut record = record();
        record.writes[1].changed = Some([row].into());
        let decoded = Record::decode(record.encode()).unwrap();
        let changed: Vec<_> = decoded.writes.iter().map(|write| write.changed.as_deref()).collect();
        let everything = [Access::new(Item::everything(), Mode::Exclusive)];
        assert_eq!(changed, [None, Some(&everything[..]), None, None]);
    }

    #[test]
    fn texts_that_may_change_definitions_and_roles_are_told_from_those_that_change_rows() {
        let text = |sql: &str| Write::new(What::Text(sql.to_owned()));
        for sql in ["ALTER ROLE a RENAME TO b", "drop user a", "/* */ DROP GROUP a", "DROP ROLE a"] {
            assert!(text(sql).may_change_roles(), "{sql}");
        }
        for sql in ["CREATE TABLE t ()", "  ALTER TABLE t ADD role_name text"] {
            assert!(text(sql).may_change_types(), "{sql}");
        }
        for sql in ["INSERT INTO role DEFAULT VALUES", "  update user SET a = 1", "SELECT role"] {
            assert!(!text(sql).may_change_types() && !text(sql).may_change_roles(), "{sql}");
        }
        assert!(!text("ALTER TABLE t ADD roles text").may_change_roles());
    }

    #[test]
    fn a_record_cut_anywhere_is_an_error() {
        for whole in [record().encode(), carried().encode()] {
            for len in 1..whole.len() {
                assert!(Record::decode(whole.slice(..len)).is_err(), "cut at {len}");
            }
        }
    }
}
