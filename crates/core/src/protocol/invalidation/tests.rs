//! The sketch against section III of its paper; whole lists of effects are compared.

use super::*;
use crate::event::Begin;
use crate::ids::{ClassId, SessionId};
use crate::item::{Access, Item, Mode};

const T: TableId = TableId(1);
const S1: NodeId = NodeId(0);
const S2: NodeId = NodeId(1);
const S3: NodeId = NodeId(2);
const S4: NodeId = NodeId(3);
const W: TxnId = TxnId(1);
const R: TxnId = TxnId(2);

struct Rig {
    protocol: Invalidation,
    effects: Vec<Effect>,
}

fn rig(nodes: u16) -> Rig {
    Rig { protocol: Invalidation::new(nodes), effects: Vec::new() }
}

impl Rig {
    /// At a node, at its local time.
    fn at(&mut self, node: NodeId, now: u64, event: Event) {
        self.protocol.handle(Place::Peer(node), Instant(now), event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    fn single(&mut self, node: NodeId, now: u64, txn: TxnId, kind: StatementKind) {
        let mode = if kind == StatementKind::Read { Mode::Shared } else { Mode::NoKeyExclusive };
        let access = [Access::new(Item::table(T), mode)].into_iter().collect();
        let begin = Begin {
            txn,
            session: SessionId(0),
            read_only: false,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        let statement = Statement::new(ClassId(1), kind, access);
        self.at(node, now, Event::Autocommit { begin, statement });
    }
    fn deliver(&mut self, from: NodeId, to: NodeId, message: Message) {
        let message = AnyMessage::Invalidation(message);
        self.at(to, 1_000, Event::Message { from: Place::Peer(from), message });
    }
    fn executed(&mut self, node: NodeId, txn: TxnId, outcome: Outcome) {
        let replica = ReplicaId(node.0);
        self.at(node, 1_000, Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 });
    }
    fn update_applied(&mut self, origin: NodeId, at: NodeId) {
        let event = Event::ShippedApplied { origin: Place::Peer(origin), txn: W, replica: ReplicaId(at.0) };
        self.at(at, 1_000, event);
    }
}

fn stamp(at: u64, node: NodeId) -> Stamp {
    Stamp { at: Instant(at), node }
}
fn inv(stamp: Stamp) -> Message {
    Message::Request { tables: [T].into_iter().collect(), stamp }
}
fn ack(stamp: Stamp) -> Message {
    Message::Reply { stamp, granted: true }
}
fn nack(stamp: Stamp) -> Message {
    Message::Reply { stamp, granted: false }
}
fn to(node: NodeId, message: Message) -> Effect {
    Effect::Send { to: Place::Peer(node), message: AnyMessage::Invalidation(message) }
}
fn execute(txn: TxnId, node: NodeId, how: How) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica: ReplicaId(node.0), how, hold: how != How::Alone }
}
fn upd(to: NodeId, stamp: Stamp) -> Effect {
    let message = AnyMessage::Invalidation(Message::Update { stamp, txn: W });
    Effect::Ship { txn: W, to: Place::Peer(to), message }
}
const DONE: Outcome = Outcome::Done { returned: Vec::new() };

/// Figure 3: s1 and s2 want to write the table; s2's timestamp is the later one, though s3 hears of s1 first.
#[test]
fn s3_b_of_two_concurrent_requests_the_later_timestamp_wins_and_the_other_tries_again() {
    let mut rig = rig(4);
    let (first, second) = (stamp(10, S1), stamp(20, S2));
    rig.single(S1, 10, W, StatementKind::Write);
    rig.expect(&[to(S2, inv(first)), to(S3, inv(first)), to(S4, inv(first))]);
    rig.single(S2, 20, W, StatementKind::Write);
    rig.expect(&[to(S1, inv(second)), to(S3, inv(second)), to(S4, inv(second))]);

    rig.deliver(S1, S3, inv(first));
    rig.deliver(S2, S3, inv(second));
    rig.deliver(S2, S4, inv(second));
    rig.deliver(S1, S4, inv(first));
    rig.deliver(S1, S2, inv(first));
    rig.deliver(S2, S1, inv(second));
    rig.expect(&[
        to(S1, ack(first)),
        to(S2, ack(second)),
        to(S2, ack(second)),
        to(S1, nack(first)),
        to(S1, nack(first)),
        to(S2, ack(second)),
    ]);

    rig.deliver(S3, S1, ack(first));
    rig.deliver(S2, S1, nack(first));
    rig.deliver(S3, S2, ack(second));
    rig.deliver(S4, S2, ack(second));
    rig.expect(&[]);
    rig.deliver(S1, S2, ack(second));
    rig.expect(&[execute(W, S2, How::Home { open: true })]);
    rig.executed(S2, W, DONE);
    rig.at(S2, 1_000, Event::Durable { csn: Csn(1) });
    let decision = Decision::Commit(W);
    let replica = ReplicaId(S2.0);
    rig.expect(&[
        Effect::Append { csn: Csn(1), decision },
        Effect::CommitAt { txn: W, replica, csn: Csn(1) },
    ]);
    rig.at(S2, 1_000, Event::Applied { replica, csn: Csn(1) });
    rig.expect(&[
        Effect::Acknowledge { txn: W, op: OpId(0), csn: Csn(1) },
        upd(S1, second),
        upd(S3, second),
        upd(S4, second),
    ]);

    rig.deliver(S2, S1, Message::Update { stamp: second, txn: W });
    rig.expect(&[Effect::ApplyShipped { origin: Place::Peer(S2), txn: W, replica: ReplicaId(S1.0) }]);
    rig.update_applied(S2, S1);
    let again = stamp(1_000, S1);
    rig.expect(&[to(S2, inv(again)), to(S3, inv(again)), to(S4, inv(again))]);
}

#[test]
fn s3_a_a_read_of_a_valid_table_is_local_and_one_of_an_invalid_table_waits_for_the_update() {
    let mut rig = rig(2);
    rig.single(S1, 5, R, StatementKind::Read);
    rig.expect(&[execute(R, S1, How::Alone)]);
    rig.executed(S1, R, DONE);
    let request = stamp(10, S2);
    rig.deliver(S2, S1, inv(request));
    rig.expect(&[to(S2, ack(request))]);
    rig.single(S1, 30, R, StatementKind::Read);
    rig.expect(&[]);
    rig.deliver(S2, S1, Message::Update { stamp: request, txn: W });
    rig.expect(&[Effect::ApplyShipped { origin: Place::Peer(S2), txn: W, replica: ReplicaId(S1.0) }]);
    rig.update_applied(S2, S1);
    rig.expect(&[execute(R, S1, How::Alone)]);
}

#[test]
fn equal_timestamps_are_ordered_by_node() {
    let mut rig = rig(2);
    rig.single(S1, 10, W, StatementKind::Write);
    rig.single(S2, 10, W, StatementKind::Write);
    rig.effects.clear();
    rig.deliver(S1, S2, inv(stamp(10, S1)));
    rig.deliver(S2, S1, inv(stamp(10, S2)));
    rig.expect(&[to(S1, nack(stamp(10, S1))), to(S2, ack(stamp(10, S2)))]);
}

#[test]
fn a_write_that_fails_withdraws_its_request() {
    let mut rig = rig(2);
    let request = stamp(10, S1);
    rig.single(S1, 10, W, StatementKind::Write);
    rig.deliver(S1, S2, inv(request));
    rig.deliver(S2, S1, ack(request));
    rig.effects.clear();
    rig.executed(S1, W, Outcome::Failed);
    let withdrawn = Message::Withdraw { stamp: request };
    rig.expect(&[Effect::Leave { txn: W, replica: ReplicaId(S1.0) }, to(S2, withdrawn.clone())]);
    rig.single(S2, 20, R, StatementKind::Read);
    rig.expect(&[]);
    rig.deliver(S1, S2, withdrawn);
    rig.expect(&[execute(R, S2, How::Alone)]);
}
