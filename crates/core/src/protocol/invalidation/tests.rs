//! Section III of the paper; whole lists of effects are compared.

use super::*;
use crate::event::{Outcome, StatementKind};
use crate::ids::Instant;
use crate::ids::{NodeId, TxnId};
use crate::item::TableId;
use crate::message::Message as Said;
use crate::peers::by_invalidation::Message;
use crate::peers::rig::{DONE, Rig, acknowledge, apply, comes, commit, forget, read, send, update, write};
use crate::peers::{Message as Of, Stamp};

const T: TableId = TableId(1);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const S3: NodeId = NodeId(2);
const S4: NodeId = NodeId(3);
const W: TxnId = TxnId(1);
const R: TxnId = TxnId(2);

fn stamp(at: u64, node: NodeId) -> Stamp {
    Stamp { at: Instant(at), node }
}
fn inv(stamp: Stamp, version: u64) -> Said {
    Said::Invalidation(Message::Request { stamp, tables: [(T, version)].into_iter().collect() })
}
fn ack(stamp: Stamp) -> Said {
    Said::Invalidation(Message::Reply { stamp, refused: None })
}
fn nack(stamp: Stamp, later: Stamp) -> Said {
    Said::Invalidation(Message::Reply { stamp, refused: Some(later) })
}
fn upd(txn: TxnId, version: u64) -> Said {
    Said::Peers(Of::Update { txn, versions: [(T, version)].into_iter().collect(), change: None })
}
fn comes_to_write(txn: TxnId) -> crate::event::Event {
    comes(txn, StatementKind::Write, &[T])
}
fn comes_to_read(txn: TxnId) -> crate::event::Event {
    comes(txn, StatementKind::Read, &[T])
}

/// Figure 3: s1 and s2 want to write the table; s2's timestamp is the later one, though s3 hears of s1 first.
#[test]
fn s3_b_of_two_concurrent_requests_the_later_timestamp_wins_and_the_other_tries_again() {
    let mut rig = Rig::new(new(4));
    let (first, second) = (stamp(10, S1), stamp(20, S2));
    rig.at(S1, 10, comes_to_write(W));
    rig.expect(&[S2, S3, S4].map(|to| send(to, inv(first, 0))));
    rig.at(S2, 20, comes_to_write(W));
    rig.expect(&[S1, S3, S4].map(|to| send(to, inv(second, 0))));

    rig.says(S1, S3, inv(first, 0));
    rig.says(S2, S3, inv(second, 0));
    rig.says(S2, S4, inv(second, 0));
    rig.says(S1, S4, inv(first, 0));
    rig.says(S1, S2, inv(first, 0));
    rig.says(S2, S1, inv(second, 0));
    rig.expect(&[
        send(S1, ack(first)),
        send(S2, ack(second)),
        send(S2, ack(second)),
        send(S1, nack(first, second)),
        send(S1, nack(first, second)),
        send(S2, ack(second)),
    ]);

    rig.says(S3, S1, ack(first));
    rig.says(S2, S1, nack(first, second));
    rig.says(S3, S2, ack(second));
    rig.says(S4, S2, ack(second));
    rig.expect(&[]);
    rig.says(S1, S2, ack(second));
    rig.expect(&[write(W, S2)]);
    rig.executed(S2, W, DONE);
    rig.committed(S2, 1);
    rig.expect(&[
        commit(W, S2, 1),
        acknowledge(W, 1),
        update(W, S1, &[(T, 1)]),
        update(W, S3, &[(T, 1)]),
        update(W, S4, &[(T, 1)]),
        forget(W),
    ]);

    rig.says(S2, S1, upd(W, 1));
    rig.expect(&[apply(S2, W, S1)]);
    rig.update_applied(S2, W, S1);
    let again = stamp(1_000, S1);
    rig.expect(&[S2, S3, S4].map(|to| send(to, inv(again, 1))));
}

#[test]
fn s3_a_a_read_of_a_valid_table_is_local_and_one_of_an_invalid_table_waits_for_the_update() {
    let mut rig = Rig::new(new(2));
    rig.at(S1, 5, comes_to_read(R));
    rig.expect(&[read(R, S1)]);
    rig.executed(S1, R, DONE);
    rig.expect(&[forget(R)]);
    let request = stamp(10, S2);
    rig.says(S2, S1, inv(request, 0));
    rig.expect(&[send(S2, ack(request))]);
    rig.at(S1, 30, comes_to_read(R));
    rig.expect(&[]);
    rig.says(S2, S1, upd(W, 1));
    rig.expect(&[apply(S2, W, S1)]);
    rig.update_applied(S2, W, S1);
    rig.expect(&[read(R, S1)]);
}

#[test]
fn equal_timestamps_are_ordered_by_node() {
    let mut rig = Rig::new(new(2));
    let (first, second) = (stamp(10, S1), stamp(10, S2));
    rig.at(S1, 10, comes_to_write(W));
    rig.at(S2, 10, comes_to_write(W));
    rig.expect(&[send(S2, inv(first, 0)), send(S1, inv(second, 0))]);
    rig.says(S1, S2, inv(first, 0));
    rig.says(S2, S1, inv(second, 0));
    rig.expect(&[send(S1, nack(first, second)), send(S2, ack(second))]);
}

#[test]
fn a_write_that_fails_is_an_update_that_changes_nothing() {
    let mut rig = Rig::new(new(2));
    let request = stamp(10, S1);
    rig.at(S1, 10, comes_to_write(W));
    rig.says(S1, S2, inv(request, 0));
    rig.says(S2, S1, ack(request));
    rig.expect(&[send(S2, inv(request, 0)), send(S1, ack(request)), write(W, S1)]);
    rig.executed(S1, W, Outcome::Failed);
    let nothing = Said::Peers(Of::Nothing { versions: [(T, 1)].into_iter().collect() });
    let replica = crate::ids::ReplicaId(S1.0);
    rig.expect(&[
        crate::effect::Effect::Leave { txn: W, replica },
        crate::effect::Effect::Release { txn: W, op: crate::ids::OpId(0), replica },
        crate::effect::Effect::Finish { txn: W, op: crate::ids::OpId(0), replica: None },
        send(S2, nothing.clone()),
        forget(W),
    ]);
    rig.at(S2, 20, comes_to_read(R));
    rig.expect(&[]);
    rig.says(S1, S2, nothing);
    rig.expect(&[read(R, S2)]);
}

/// What the paper does not say, and could be lost: s1 asks again before s3 has heard of the end of s2's write.
#[test]
fn a_copy_is_not_valid_before_it_has_every_version_in_turn() {
    let mut rig = Rig::new(new(3));
    rig.says(S2, S3, inv(stamp(10, S2), 0));
    rig.says(S1, S3, inv(stamp(20, S1), 1));
    rig.expect(&[send(S2, ack(stamp(10, S2))), send(S1, ack(stamp(20, S1)))]);
    rig.at(S3, 30, comes_to_read(R));
    rig.says(S1, S3, upd(TxnId(9), 2));
    rig.expect(&[]);
    rig.says(S2, S3, upd(W, 1));
    rig.expect(&[apply(S2, W, S3)]);
    rig.update_applied(S2, W, S3);
    rig.expect(&[apply(S1, TxnId(9), S3)]);
    rig.update_applied(S1, TxnId(9), S3);
    rig.expect(&[read(R, S3)]);
}

/// A refusal may come before the request for which it was given.
#[test]
fn who_is_refused_waits_for_the_later_request_to_come() {
    let mut rig = Rig::new(new(3));
    let (mine, later) = (stamp(10, S1), stamp(20, S2));
    rig.at(S1, 10, comes_to_write(W));
    rig.expect(&[S2, S3].map(|to| send(to, inv(mine, 0))));
    rig.says(S3, S1, nack(mine, later));
    rig.says(S2, S1, nack(mine, later));
    rig.expect(&[]);
    rig.says(S2, S1, inv(later, 0));
    rig.expect(&[send(S2, ack(later))]);
    rig.says(S2, S1, upd(R, 1));
    rig.update_applied(S2, R, S1);
    let again = stamp(1_000, S1);
    rig.expect(&[apply(S2, R, S1), send(S2, inv(again, 1)), send(S3, inv(again, 1))]);
}
