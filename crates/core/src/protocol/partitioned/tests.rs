//! Sections IV.B and V.A of the paper.

use super::*;
use crate::event::StatementKind;
use crate::ids::{Instant, NodeId, TxnId};
use crate::item::TableId;
use crate::message::Message;
use crate::peers::parts::Division;
use crate::peers::rig::{DONE, Rig, acknowledge, comes, commit, forget, send, write};
use crate::peers::{Stamp, by_invalidation};

const CARTS: TableId = TableId(1);
const ITEMS: TableId = TableId(2);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const W: TxnId = TxnId(1);

fn divided() -> Divisions {
    [(CARTS, Division::Clients)].into_iter().collect()
}

#[test]
fn s5_a_what_is_divided_is_written_without_a_message() {
    let mut rig = Rig::new(new(2, &divided()));
    rig.at(S1, 1, comes(W, StatementKind::Write, &[CARTS]));
    rig.executed(S1, W, DONE);
    rig.committed(S1, 1);
    rig.expect(&[write(W, S1), commit(W, S1, 1), acknowledge(W, 1), forget(W)]);
}

#[test]
fn s4_b_what_all_have_is_kept_by_invalidation() {
    let mut rig = Rig::new(new(2, &divided()));
    rig.at(S1, 7, comes(W, StatementKind::Write, &[CARTS, ITEMS]));
    let stamp = Stamp { at: Instant(7), node: S1 };
    let tables = [(ITEMS, 0)].into_iter().collect();
    rig.expect(&[send(S2, Message::Invalidation(by_invalidation::Message::Request { stamp, tables }))]);
    let status = rig.protocol.status();
    assert_eq!([status.shared_accesses, status.shared_writes], [1, 1]);
}

/// What is about rows of several peers goes to them in one order, and whoever is at one of these rows is waited for.
#[test]
fn s4_b_what_is_about_rows_of_several_has_latches_at_all() {
    use crate::event::Event;
    use crate::item::{Access, AccessSet, ColumnId, Item, Mode, ValueHash};
    use crate::peers::Message::{Latch, Latched, Unlatch};
    use crate::peers::parts::By;
    use crate::peers::rig::read;
    let by_id = Division::Column(ColumnId(1), By::Ranges(vec![10]));
    let mut rig = Rig::new(new(2, &[(CARTS, by_id)].into_iter().collect()));
    let of = |txn, kind, access: &[Access]| {
        let mut event = comes(txn, kind, &[]);
        if let Event::Autocommit { statement, .. } = &mut event {
            statement.access = access.into();
        }
        event
    };
    let row = |value| Item::rows(CARTS, [(ColumnId(1), ValueHash::of_integer(value))]);
    let (all, local) = (TxnId(2), TxnId(3));
    rig.at(S1, 1, of(W, StatementKind::Write, &[Access::new(row(3), Mode::NoKeyExclusive)]));
    rig.expect(&[write(W, S1)]);
    let reads: AccessSet = [Access::new(Item::table(CARTS), Mode::Shared)].into_iter().collect();
    rig.at(S1, 2, of(all, StatementKind::Read, &reads));
    rig.expect(&[]);
    rig.executed(S1, W, DONE);
    rig.committed(S1, 1);
    let latch = |message| Message::Peers(message);
    rig.expect(&[
        commit(W, S1, 1),
        acknowledge(W, 1),
        send(S2, latch(Latch { txn: all, access: reads.clone() })),
        forget(W),
    ]);
    rig.at(S2, 3, of(local, StatementKind::Write, &[Access::new(row(12), Mode::NoKeyExclusive)]));
    rig.says(S1, S2, latch(Latch { txn: all, access: reads }));
    rig.executed(S2, local, DONE);
    rig.committed(S2, 1);
    rig.expect(&[
        write(local, S2),
        commit(local, S2, 1),
        acknowledge(local, 1),
        send(S1, latch(Latched { txn: all })),
        forget(local),
    ]);
    rig.says(S2, S1, latch(Latched { txn: all }));
    rig.executed(S1, all, DONE);
    rig.expect(&[read(all, S1), send(S2, latch(Unlatch { txn: all })), forget(all)]);
}
