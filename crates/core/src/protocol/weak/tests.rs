//! Section IV.A of the paper.

use super::*;
use crate::event::StatementKind;
use crate::item::TableId;
use crate::peers::Message;
use crate::peers::rig::{DONE, Rig, acknowledge, apply, comes, commit, forget, read, update, write};

const T: TableId = TableId(1);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);

#[test]
fn s4_a_nothing_waits_and_what_is_written_follows() {
    let mut rig = Rig::new(new(2));
    let (one, other, reader) = (TxnId(1), TxnId(2), TxnId(3));
    rig.at(S1, 1, comes(one, StatementKind::Write, &[T]));
    rig.at(S2, 1, comes(other, StatementKind::Write, &[T]));
    rig.expect(&[write(one, S1), write(other, S2)]);
    rig.executed(S1, one, DONE);
    rig.committed(S1, 1);
    rig.expect(&[commit(one, S1, 1), acknowledge(one, 1), update(one, S2, &[(T, 0)]), forget(one)]);
    let message = AnyMessage::Peers(Message::Update {
        txn: one,
        versions: [(T, 0)].into_iter().collect(),
        change: None,
    });
    rig.says(S1, S2, message);
    rig.at(S2, 2, comes(reader, StatementKind::Read, &[T]));
    rig.expect(&[apply(S1, one, S2), read(reader, S2)]);
}
