//! What peers say to each other, as bytes: numbers of eight bytes, and what is repeated with its number before it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_core::peers::{Message as Written, Stamp, Versions, by_invalidation};
use onecopy_core::protocol::{lock_central, lock_distributed};
use onecopy_core::table_queues::{LockMode, TableLocks};
use onecopy_core::{Access, Instant, Message, Mode, NodeId, RowChange, TableId, TxnId};

use crate::sites::request::{put_access, take_access};

const UPDATE: u8 = 1;
const NOTHING: u8 = 2;
const INVALIDATE: u8 = 3;
const INVALIDATED: u8 = 4;
const ACQUIRE_OF_ALL: u8 = 5;
const GRANT_BY_ONE: u8 = 6;
const ACQUIRE: u8 = 7;
const GRANT: u8 = 8;
const RELEASE: u8 = 9;
const LATCH: u8 = 10;
const LATCHED: u8 = 11;
const UNLATCH: u8 = 12;

/// A message of the core's; `None` for those of other protocols.
pub fn put(message: &Message, out: &mut BytesMut) -> Option<()> {
    match message {
        Message::Peers(Written::Update { txn, versions, change }) => {
            out.put_u8(UPDATE);
            out.put_u64(txn.0);
            put_versions(versions, out);
            out.put_u8(change.is_some().into());
            change.iter().for_each(|change| put_change(change, out));
        }
        Message::Peers(Written::Nothing { versions }) => {
            out.put_u8(NOTHING);
            put_versions(versions, out);
        }
        Message::Peers(Written::Latch { txn, access }) => {
            out.put_u8(LATCH);
            out.put_u64(txn.0);
            out.put_u64(access.len() as u64);
            access.iter().for_each(|access| put_access(access, out));
        }
        Message::Peers(Written::Latched { txn }) => {
            out.put_u8(LATCHED);
            out.put_u64(txn.0);
        }
        Message::Peers(Written::Unlatch { txn }) => {
            out.put_u8(UNLATCH);
            out.put_u64(txn.0);
        }
        Message::Invalidation(by_invalidation::Message::Request { stamp, tables }) => {
            out.put_u8(INVALIDATE);
            put_stamp(*stamp, out);
            put_versions(tables, out);
        }
        Message::Invalidation(by_invalidation::Message::Reply { stamp, refused }) => {
            out.put_u8(INVALIDATED);
            put_stamp(*stamp, out);
            out.put_u8(refused.is_some().into());
            refused.iter().for_each(|refused| put_stamp(*refused, out));
        }
        Message::LockDistributed(lock_distributed::Message::Acquire { stamp, locks }) => {
            out.put_u8(ACQUIRE_OF_ALL);
            put_stamp(*stamp, out);
            put_locks(locks, out);
        }
        Message::LockDistributed(lock_distributed::Message::Grant { stamp }) => {
            out.put_u8(GRANT_BY_ONE);
            put_stamp(*stamp, out);
        }
        Message::LockCentral(lock_central::Message::Acquire { txn, locks }) => {
            out.put_u8(ACQUIRE);
            out.put_u64(txn.0);
            put_locks(locks, out);
        }
        Message::LockCentral(lock_central::Message::Grant { txn, versions }) => {
            out.put_u8(GRANT);
            out.put_u64(txn.0);
            put_versions(versions, out);
        }
        Message::LockCentral(lock_central::Message::Release { txn, wrote }) => {
            out.put_u8(RELEASE);
            out.put_u64(txn.0);
            out.put_u8((*wrote).into());
        }
        _ => return None,
    }
    Some(())
}

/// The message at the head of the input; `None` for what is none.
pub fn take(input: &mut Bytes) -> Option<Message> {
    let kind = input.try_get_u8().ok()?;
    Some(match kind {
        UPDATE => {
            let txn = take_txn(input)?;
            let versions = take_versions(input)?;
            let change = match take_flag(input)? {
                true => Some(take_change(input)?),
                false => None,
            };
            Message::Peers(Written::Update { txn, versions, change })
        }
        NOTHING => Message::Peers(Written::Nothing { versions: take_versions(input)? }),
        LATCH => {
            let (txn, count) = (take_txn(input)?, take_number(input)?);
            let access = (0..count).map(|_| take_access(input)).collect::<Option<_>>()?;
            Message::Peers(Written::Latch { txn, access })
        }
        LATCHED => Message::Peers(Written::Latched { txn: take_txn(input)? }),
        UNLATCH => Message::Peers(Written::Unlatch { txn: take_txn(input)? }),
        INVALIDATE => {
            let stamp = take_stamp(input)?;
            let tables = take_versions(input)?;
            Message::Invalidation(by_invalidation::Message::Request { stamp, tables })
        }
        INVALIDATED => {
            let stamp = take_stamp(input)?;
            let refused = match take_flag(input)? {
                true => Some(take_stamp(input)?),
                false => None,
            };
            Message::Invalidation(by_invalidation::Message::Reply { stamp, refused })
        }
        ACQUIRE_OF_ALL => {
            let stamp = take_stamp(input)?;
            let locks = take_locks(input)?;
            Message::LockDistributed(lock_distributed::Message::Acquire { stamp, locks })
        }
        GRANT_BY_ONE => {
            let stamp = take_stamp(input)?;
            Message::LockDistributed(lock_distributed::Message::Grant { stamp })
        }
        ACQUIRE => {
            let txn = take_txn(input)?;
            Message::LockCentral(lock_central::Message::Acquire { txn, locks: take_locks(input)? })
        }
        GRANT => {
            let txn = take_txn(input)?;
            Message::LockCentral(lock_central::Message::Grant { txn, versions: take_versions(input)? })
        }
        RELEASE => {
            let txn = take_txn(input)?;
            Message::LockCentral(lock_central::Message::Release { txn, wrote: take_flag(input)? })
        }
        _ => return None,
    })
}

fn put_stamp(stamp: Stamp, out: &mut BytesMut) {
    out.put_u64(stamp.at.0);
    out.put_u64(stamp.node.0.into());
}

fn put_change(change: &RowChange, out: &mut BytesMut) {
    let RowChange { row, columns, is_blind } = change;
    let access = Access { item: row.clone(), mode: Mode::NoKeyExclusive, columns: *columns };
    put_access(&access, out);
    out.put_u8((*is_blind).into());
}

fn put_versions(versions: &Versions, out: &mut BytesMut) {
    out.put_u64(versions.len() as u64);
    for (table, version) in versions {
        out.put_u64(table.0);
        out.put_u64(*version);
    }
}

fn put_locks(locks: &TableLocks, out: &mut BytesMut) {
    out.put_u64(locks.iter().count() as u64);
    for (table, mode) in locks.iter() {
        out.put_u64(table.0);
        out.put_u8((mode == LockMode::Write).into());
    }
}

fn take_number(input: &mut Bytes) -> Option<u64> {
    input.try_get_u64().ok()
}

fn take_flag(input: &mut Bytes) -> Option<bool> {
    Some(input.try_get_u8().ok()? != 0)
}

fn take_txn(input: &mut Bytes) -> Option<TxnId> {
    take_number(input).map(TxnId)
}

fn take_stamp(input: &mut Bytes) -> Option<Stamp> {
    let at = Instant(take_number(input)?);
    Some(Stamp { at, node: NodeId(take_number(input)?.try_into().ok()?) })
}

fn take_change(input: &mut Bytes) -> Option<RowChange> {
    let Access { item: row, columns, .. } = take_access(input)?;
    Some(RowChange { row, columns, is_blind: take_flag(input)? })
}

fn take_versions(input: &mut Bytes) -> Option<Versions> {
    let count = take_number(input)?;
    (0..count).map(|_| Some((TableId(take_number(input)?), take_number(input)?))).collect()
}

fn take_locks(input: &mut Bytes) -> Option<TableLocks> {
    let count = take_number(input)?;
    let mut locks = Vec::new();
    for _ in 0..count {
        let table = TableId(take_number(input)?);
        let mode = if take_flag(input)? { LockMode::Write } else { LockMode::Read };
        locks.push((table, mode));
    }
    Some(TableLocks::of_tables(locks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_core::{ColumnId, Item, ValueHash};

    #[test]
    fn messages_come_back_as_they_went_and_what_is_cut_is_none() {
        let stamp = |at| Stamp { at: Instant(at), node: NodeId(2) };
        let versions: Versions = [(TableId(5), 7), (TableId(6), 0)].into_iter().collect();
        let locks = TableLocks::of_tables([(TableId(5), LockMode::Write), (TableId(6), LockMode::Read)]);
        let txn = TxnId(9);
        let row = Item::rows(TableId(5), [(ColumnId(1), ValueHash(3))]);
        let latches =
            [Access::new(row.clone(), Mode::Shared), Access::new(Item::table(TableId(5)), Mode::Exclusive)];
        let latches = latches.into_iter().collect();
        let change = RowChange { row, columns: [ColumnId(2)].into_iter().collect(), is_blind: true };
        for message in [
            Message::Peers(Written::Update { txn, versions: versions.clone(), change: None }),
            Message::Peers(Written::Update { txn, versions: versions.clone(), change: Some(change) }),
            Message::Peers(Written::Nothing { versions: versions.clone() }),
            Message::Peers(Written::Latch { txn, access: latches }),
            Message::Peers(Written::Latched { txn }),
            Message::Peers(Written::Unlatch { txn }),
            Message::Invalidation(by_invalidation::Message::Request {
                stamp: stamp(1),
                tables: versions.clone(),
            }),
            Message::Invalidation(by_invalidation::Message::Reply { stamp: stamp(1), refused: None }),
            Message::Invalidation(by_invalidation::Message::Reply {
                stamp: stamp(1),
                refused: Some(stamp(2)),
            }),
            Message::LockDistributed(lock_distributed::Message::Acquire {
                stamp: stamp(3),
                locks: locks.clone(),
            }),
            Message::LockDistributed(lock_distributed::Message::Grant { stamp: stamp(3) }),
            Message::LockCentral(lock_central::Message::Acquire { txn, locks }),
            Message::LockCentral(lock_central::Message::Grant { txn, versions }),
            Message::LockCentral(lock_central::Message::Release { txn, wrote: true }),
        ] {
            let mut out = BytesMut::new();
            put(&message, &mut out).unwrap();
            let sent = out.freeze();
            let mut input = sent.clone();
            assert_eq!(take(&mut input), Some(message));
            assert!(input.is_empty());
            for len in 0..sent.len() {
                assert_eq!(take(&mut sent.slice(..len)), None, "cut at {len}");
            }
        }
    }
}
