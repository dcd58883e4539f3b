//! Section IV.C of the paper, with locks at all nodes.

use super::*;
use crate::event::StatementKind;
use crate::ids::Instant;
use crate::item::TableId;
use crate::message::Message as Said;
use crate::peers::Message as Of;
use crate::peers::rig::{DONE, Rig, acknowledge, apply, comes, commit, forget, read, send, update, write};
use crate::table_queues::LockMode;

const T: TableId = TableId(1);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const S3: NodeId = NodeId(2);
const W: TxnId = TxnId(1);
const R: TxnId = TxnId(2);

fn acquire(at: u64, node: NodeId, mode: LockMode) -> Said {
    let stamp = Stamp { at: Instant(at), node };
    Said::LockDistributed(Message::Acquire { stamp, locks: TableLocks::of_tables([(T, mode)]) })
}
fn grant(at: u64, node: NodeId) -> Said {
    Said::LockDistributed(Message::Grant { stamp: Stamp { at: Instant(at), node } })
}

#[test]
fn s4_c_a_read_asks_all_and_two_reads_do_not_wait_for_each_other() {
    let mut rig = Rig::new(new(3));
    rig.at(S1, 5, comes(R, StatementKind::Read, &[T]));
    rig.expect(&[S2, S3].map(|to| send(to, acquire(5, S1, LockMode::Read))));
    rig.at(S2, 6, comes(R, StatementKind::Read, &[T]));
    rig.expect(&[S1, S3].map(|to| send(to, acquire(6, S2, LockMode::Read))));
    rig.says(S2, S1, acquire(6, S2, LockMode::Read));
    rig.says(S1, S2, acquire(5, S1, LockMode::Read));
    rig.expect(&[send(S2, grant(6, S2)), send(S1, grant(5, S1))]);
    rig.says(S2, S1, grant(5, S1));
    rig.expect(&[]);
    rig.says(S3, S1, grant(5, S1));
    rig.expect(&[read(R, S1)]);
}

#[test]
fn s4_c_a_writer_waits_for_readers_and_what_it_wrote_comes_before_its_release() {
    let mut rig = Rig::new(new(2));
    rig.at(S2, 5, comes(R, StatementKind::Read, &[T]));
    rig.says(S1, S2, grant(5, S2));
    rig.expect(&[send(S1, acquire(5, S2, LockMode::Read)), read(R, S2)]);
    rig.at(S1, 9, comes(W, StatementKind::Write, &[T]));
    rig.says(S1, S2, acquire(9, S1, LockMode::Write));
    rig.expect(&[send(S2, acquire(9, S1, LockMode::Write))]);
    rig.executed(S2, R, DONE);
    rig.expect(&[forget(R), send(S1, grant(9, S1))]);
    rig.says(S2, S1, grant(9, S1));
    rig.expect(&[write(W, S1)]);
    // Who asks meanwhile is answered after the update.
    rig.says(S2, S1, acquire(20, S2, LockMode::Read));
    rig.executed(S1, W, DONE);
    rig.committed(S1, 1);
    rig.expect(&[
        commit(W, S1, 1),
        acknowledge(W, 1),
        update(W, S2, &[(T, 1)]),
        forget(W),
        send(S2, grant(20, S2)),
    ]);
    rig.at(S2, 20, comes(R, StatementKind::Read, &[T]));
    rig.says(
        S1,
        S2,
        Said::Peers(Of::Update { txn: W, versions: [(T, 1)].into_iter().collect(), change: None }),
    );
    rig.says(S1, S2, grant(20, S2));
    rig.expect(&[send(S1, acquire(20, S2, LockMode::Read)), apply(S1, W, S2)]);
    rig.update_applied(S1, W, S2);
    rig.expect(&[read(R, S2)]);
}

#[test]
fn s4_c_of_two_that_ask_at_once_the_earlier_timestamp_goes_first() {
    let mut rig = Rig::new(new(2));
    rig.at(S1, 5, comes(W, StatementKind::Write, &[T]));
    rig.at(S2, 5, comes(W, StatementKind::Write, &[T]));
    rig.says(S1, S2, acquire(5, S1, LockMode::Write));
    rig.says(S2, S1, acquire(5, S2, LockMode::Write));
    rig.expect(&[
        send(S2, acquire(5, S1, LockMode::Write)),
        send(S1, acquire(5, S2, LockMode::Write)),
        send(S1, grant(5, S1)),
    ]);
}
