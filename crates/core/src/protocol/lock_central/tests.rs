//! Section IV.C of the paper, with a lock manager.

use super::*;
use crate::event::StatementKind;
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

fn acquire(txn: TxnId, mode: LockMode) -> Said {
    Said::LockCentral(Message::Acquire { txn, locks: TableLocks::of_tables([(T, mode)]) })
}
fn grant(txn: TxnId, version: u64) -> Said {
    Said::LockCentral(Message::Grant { txn, versions: [(T, version)].into_iter().collect() })
}
fn release(txn: TxnId, wrote: bool) -> Said {
    Said::LockCentral(Message::Release { txn, wrote })
}

#[test]
fn s4_c_the_manager_grants_in_order_and_a_grant_waits_for_the_update_that_it_names() {
    let mut rig = Rig::new(new(3));
    rig.at(S2, 1, comes(W, StatementKind::Write, &[T]));
    rig.at(S3, 1, comes(R, StatementKind::Read, &[T]));
    rig.expect(&[send(MANAGER, acquire(W, LockMode::Write)), send(MANAGER, acquire(R, LockMode::Read))]);
    rig.says(S2, S1, acquire(W, LockMode::Write));
    rig.says(S3, S1, acquire(R, LockMode::Read));
    rig.expect(&[send(S2, grant(W, 0))]);
    rig.says(S1, S2, grant(W, 0));
    rig.executed(S2, W, DONE);
    rig.committed(S2, 1);
    rig.expect(&[
        write(W, S2),
        commit(W, S2, 1),
        acknowledge(W, 1),
        update(W, S1, &[(T, 1)]),
        update(W, S3, &[(T, 1)]),
        forget(W),
        send(MANAGER, release(W, true)),
    ]);
    rig.says(S2, S1, release(W, true));
    rig.expect(&[send(S3, grant(R, 1))]);
    // By two ways: the grant is here before the update.
    rig.says(S1, S3, grant(R, 1));
    rig.expect(&[]);
    rig.says(
        S2,
        S3,
        Said::Peers(Of::Update { txn: W, versions: [(T, 1)].into_iter().collect(), change: None }),
    );
    rig.expect(&[apply(S2, W, S3)]);
    rig.update_applied(S2, W, S3);
    rig.expect(&[read(R, S3)]);
}

#[test]
fn s4_c_the_managers_own_clients_need_no_message() {
    let mut rig = Rig::new(new(2));
    rig.at(S1, 1, comes(R, StatementKind::Read, &[T]));
    rig.expect(&[read(R, S1)]);
    rig.says(S2, S1, acquire(W, LockMode::Write));
    rig.expect(&[]);
    rig.executed(S1, R, DONE);
    rig.expect(&[forget(R), send(S2, grant(W, 0))]);
}
