//! What peers say to each other about divided tables beside what the core says, and what is under way of it.
//!
//! Format: a kind byte that no message of the core has ([`super::codec`]), numbers of eight bytes, and byte strings with a length of four bytes before them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hashbrown::{HashMap, HashSet};
use onecopy_core::{NodeId, TableId, TxnId};
use tokio::sync::oneshot;

use super::parts::{Rows, Wanted};
use crate::sites::messages::{put_bytes, take_bytes};

const FORWARD: u8 = 32;
const ANSWERED: u8 = 33;
const GATHER: u8 = 34;
const ROWS: u8 = 35;
const CHANGE: u8 = 36;
const PREPARED: u8 = 37;
const FINISH: u8 = 38;
const FINISHED: u8 = 39;
const TOO_LONG: u8 = 40;

/// About so many bytes of rows go into one message.
const ROWS_BYTES: usize = 1 << 20;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// A transaction of a client of the sender's about rows of the receiver's, by a number of the sender's.
    Forward { number: u64, record: Bytes },
    /// What came of it.
    Answered { number: u64, answer: Bytes },
    /// Rows are wanted, by a transaction of the sender's, in its so many-eth execution; no more than so many bytes.
    Gather { txn: TxnId, execution: u64, bytes_max: u64, wanted: Vec<Wanted> },
    /// They are more, or one of them is too long to be sent.
    TooLong { txn: TxnId, execution: u64 },
    /// Some of them; the last ones say so.
    Rows { txn: TxnId, execution: u64, is_last: bool, rows: Rows },
    /// After a transaction of the sender's the receiver has these rows, or has them no more, and perhaps others that follow; the last ones of all say so.
    Change { txn: TxnId, is_last: bool, is_added: bool, rows: Rows },
    /// So it is, if it commits.
    Prepared { txn: TxnId },
    /// It has.
    Finish { txn: TxnId },
    /// So has that.
    Finished { txn: TxnId },
}

impl Said {
    /// Whether a message is one of these.
    pub fn is_one(message: &[u8]) -> bool {
        message.first().is_some_and(|kind| (FORWARD..=TOO_LONG).contains(kind))
    }

    pub fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        match self {
            Said::Forward { number, record } => {
                out.put_u8(FORWARD);
                out.put_u64(*number);
                put_bytes(&mut out, record);
            }
            Said::Answered { number, answer } => {
                out.put_u8(ANSWERED);
                out.put_u64(*number);
                put_bytes(&mut out, answer);
            }
            Said::TooLong { txn, execution } => {
                out.put_u8(TOO_LONG);
                out.put_u64(txn.0);
                out.put_u64(*execution);
            }
            Said::Gather { txn, execution, bytes_max, wanted } => {
                out.put_u8(GATHER);
                out.put_u64(txn.0);
                out.put_u64(*execution);
                out.put_u64(*bytes_max);
                out.put_u64(wanted.len() as u64);
                for Wanted { table, values } in wanted {
                    out.put_u64(table.0);
                    out.put_u8(values.is_some().into());
                    let values = values.as_deref().unwrap_or_default();
                    out.put_u64(values.len() as u64);
                    values.iter().for_each(|value| out.put_i64(*value));
                }
            }
            Said::Rows { txn, execution, is_last, rows } => {
                out.put_u8(ROWS);
                out.put_u64(txn.0);
                out.put_u64(*execution);
                put_rows(*is_last, rows, &mut out);
            }
            Said::Change { txn, is_last, is_added, rows } => {
                out.put_u8(CHANGE);
                out.put_u64(txn.0);
                out.put_u8((*is_added).into());
                put_rows(*is_last, rows, &mut out);
            }
            Said::Prepared { txn } | Said::Finish { txn } | Said::Finished { txn } => {
                out.put_u8(match self {
                    Said::Prepared { .. } => PREPARED,
                    Said::Finish { .. } => FINISH,
                    _ => FINISHED,
                });
                out.put_u64(txn.0);
            }
        }
        out
    }

    /// `None` for what is none.
    pub fn decode(mut input: Bytes) -> Option<Said> {
        let input = &mut input;
        let kind = input.try_get_u8().ok()?;
        let first = input.try_get_u64().ok()?;
        let txn = TxnId(first);
        let said = match kind {
            FORWARD => Said::Forward { number: first, record: take_bytes(input)? },
            ANSWERED => Said::Answered { number: first, answer: take_bytes(input)? },
            GATHER => {
                let execution = input.try_get_u64().ok()?;
                let (bytes_max, count) = (input.try_get_u64().ok()?, input.try_get_u64().ok()?);
                let wanted = (0..count).map(|_| take_wanted(input)).collect::<Option<_>>()?;
                Said::Gather { txn, execution, bytes_max, wanted }
            }
            TOO_LONG => Said::TooLong { txn, execution: input.try_get_u64().ok()? },
            ROWS => {
                let execution = input.try_get_u64().ok()?;
                let (is_last, rows) = take_rows(input)?;
                Said::Rows { txn, execution, is_last, rows }
            }
            CHANGE => {
                let is_added = input.try_get_u8().ok()? != 0;
                let (is_last, rows) = take_rows(input)?;
                Said::Change { txn, is_last, is_added, rows }
            }
            PREPARED => Said::Prepared { txn },
            FINISH => Said::Finish { txn },
            FINISHED => Said::Finished { txn },
            _ => return None,
        };
        (!input.has_remaining()).then_some(said)
    }
}

fn put_rows(is_last: bool, (table, rows): &Rows, out: &mut BytesMut) {
    out.put_u8(is_last.into());
    out.put_u64(table.0);
    out.put_u64(rows.len() as u64);
    for (value, row) in rows {
        out.put_i64(*value);
        put_bytes(out, row.as_bytes());
    }
}

fn take_wanted(input: &mut Bytes) -> Option<Wanted> {
    let (table, has_values) = (TableId(input.try_get_u64().ok()?), input.try_get_u8().ok()? != 0);
    let count = input.try_get_u64().ok()?;
    let values = (0..count).map(|_| input.try_get_i64().ok()).collect::<Option<Vec<_>>>()?;
    Some(Wanted { table, values: has_values.then_some(values) })
}

fn take_rows(input: &mut Bytes) -> Option<(bool, Rows)> {
    let is_last = input.try_get_u8().ok()? != 0;
    let (table, count) = (TableId(input.try_get_u64().ok()?), input.try_get_u64().ok()?);
    let row = |_| {
        let value = input.try_get_i64().ok()?;
        Some((value, String::from_utf8(take_bytes(input)?.to_vec()).ok()?))
    };
    Some((is_last, (table, (0..count).map(row).collect::<Option<_>>()?)))
}

/// Rows of several tables in messages of a bounded size; whether one is the last. A table without rows has one, too.
pub fn in_messages(tables: Vec<Rows>) -> Vec<(bool, Rows)> {
    let mut messages = Vec::new();
    for (table, rows) in tables {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for row in rows {
            bytes += row.1.len();
            some.push(row);
            if bytes >= ROWS_BYTES {
                messages.push((false, (table, std::mem::take(&mut some))));
                bytes = 0;
            }
        }
        messages.push((false, (table, some)));
    }
    if let Some((is_last, _)) = messages.last_mut() {
        *is_last = true;
    }
    messages
}

/// Adds rows of a table to those that came before.
pub fn collect(known: &mut Vec<Rows>, (table, rows): Rows) {
    match known.iter_mut().find(|(of, _)| *of == table) {
        Some((_, before)) => before.extend(rows),
        None => known.push((table, rows)),
    }
}

/// The rows of other peers for one execution of a transaction.
pub struct Gathering {
    pub execution: u64,
    pub wanted: Vec<Wanted>,
    pub is_too_long: bool,
    pub missing: HashSet<NodeId>,
    pub found: HashMap<NodeId, Vec<Rows>>,
    pub bytes: usize,
    pub done: oneshot::Sender<Gathered>,
}

/// By peer; nothing if it is more than may be held.
pub type Gathered = Option<HashMap<NodeId, Vec<Rows>>>;

/// What a transaction has changed of rows of one peer: which are no more, and which are now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Changes {
    pub removed: Vec<Rows>,
    pub added: Vec<Rows>,
}

/// The same, by peer.
pub type Changed = Vec<(NodeId, Changes)>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::peers::codec;

    #[test]
    fn messages_come_back_as_they_went_and_what_is_cut_is_none() {
        let (txn, rows) = (TxnId(7), (TableId(5), vec![(1, "(1,a)".to_owned()), (-2, "(-2,)".to_owned())]));
        let wanted = vec![
            Wanted { table: TableId(5), values: Some(vec![-1, 7]) },
            Wanted { table: TableId(6), values: None },
        ];
        for said in [
            Said::Forward { number: 3, record: Bytes::from_static(b"record") },
            Said::Answered { number: 3, answer: Bytes::from_static(b"answer") },
            Said::Gather { txn, execution: 2, bytes_max: 1 << 20, wanted },
            Said::TooLong { txn, execution: 2 },
            Said::Rows { txn, execution: 2, is_last: true, rows: rows.clone() },
            Said::Change { txn, is_last: false, is_added: true, rows },
            Said::Prepared { txn },
            Said::Finish { txn },
            Said::Finished { txn },
        ] {
            let sent = said.encode().freeze();
            assert!(Said::is_one(&sent));
            assert_eq!(codec::take(&mut sent.clone()), None, "the core has no such message");
            assert_eq!(Said::decode(sent.clone()), Some(said));
            for len in 0..sent.len() {
                assert_eq!(Said::decode(sent.slice(..len)), None, "cut at {len}");
            }
        }
    }

    #[test]
    fn many_rows_go_in_several_messages_and_none_in_one() {
        let long = "x".repeat(ROWS_BYTES / 2);
        let tables = vec![(TableId(1), vec![(1, long); 3]), (TableId(2), Vec::new())];
        let messages = in_messages(tables.clone());
        let sizes: Vec<(bool, u64, usize)> =
            messages.iter().map(|(is_last, (table, rows))| (*is_last, table.0, rows.len())).collect();
        assert_eq!(sizes, [(false, 1, 2), (false, 1, 1), (true, 2, 0)]);
        let mut found = Vec::new();
        messages.into_iter().for_each(|(_, rows)| collect(&mut found, rows));
        assert_eq!(found, tables);
    }
}
