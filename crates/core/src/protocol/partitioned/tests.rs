//! Sections IV.B and V.A of the paper.

use super::*;
use crate::event::StatementKind;
use crate::ids::{Instant, NodeId, TxnId};
use crate::message::Message;
use crate::peers::rig::{DONE, Rig, acknowledge, comes, commit, forget, send, write};
use crate::peers::{Stamp, by_invalidation};

const CARTS: TableId = TableId(1);
const ITEMS: TableId = TableId(2);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const W: TxnId = TxnId(1);

#[test]
fn s5_a_what_is_divided_is_written_without_a_message() {
    let mut rig = Rig::new(new(2, &[CARTS]));
    rig.at(S1, 1, comes(W, StatementKind::Write, &[CARTS]));
    rig.executed(S1, W, DONE);
    rig.committed(S1, 1);
    rig.expect(&[write(W, S1), commit(W, S1, 1), acknowledge(W, 1), forget(W)]);
}

#[test]
fn s4_b_what_all_have_is_kept_by_invalidation() {
    let mut rig = Rig::new(new(2, &[CARTS]));
    rig.at(S1, 7, comes(W, StatementKind::Write, &[CARTS, ITEMS]));
    let stamp = Stamp { at: Instant(7), node: S1 };
    let tables = [(ITEMS, 0)].into_iter().collect();
    rig.expect(&[send(S2, Message::Invalidation(by_invalidation::Message::Request { stamp, tables }))]);
    let status = rig.protocol.status();
    assert_eq!([status.shared_accesses, status.shared_writes], [1, 1]);
}
