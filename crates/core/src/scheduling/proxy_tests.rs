//! The proxy alone, with messages as a network might bring them; whole lists of effects are compared, messages too.

use super::rig::{A, B, C, ON, OP0, OP1, OP2, OPEN, R0, T1, T2, T3, T4, holds, leave, streams};
use super::*;
use crate::event::Outcome;
use crate::ids::{OpId, SequenceNumber, TxnId};
use crate::item::TableId;
use crate::table_queues::{LockMode, TableLocks};
use crate::table_versions::Versions;

struct Rig {
    proxy: Proxy,
    effects: Vec<Effect>,
}

fn rig() -> Rig {
    rig_of(Order::Locks)
}

/// A proxy whose replica is in service and has missed nothing.
fn rig_of(order: Order) -> Rig {
    let mut rig = Rig { proxy: Proxy::new(R0, order), effects: Vec::new() };
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.expect(&[said(Message::Up { replica: R0, incarnation: 1, applied: Csn(0) })]);
    rig.hear(join(1));
    rig.expect(&[said(Message::CaughtUp { replica: R0, through: Csn(0), complete: true })]);
    rig
}

impl Rig {
    fn on(&mut self, event: Event) {
        self.proxy.handle(event, &mut self.effects);
    }
    fn hear(&mut self, message: Message) {
        self.proxy.handle_message(message, &mut self.effects);
    }
    fn lock_request(&mut self, txn: TxnId, number: u64, locks: &[(TableId, LockMode)]) {
        self.hear(Message::LockRequest { txn, number: SequenceNumber(number), locks: tables(locks) });
    }
    fn single_read(&mut self, txn: TxnId, after: u64, table: TableId) {
        let locks = tables(&[(table, LockMode::Read)]);
        self.hear(Message::SingleRead { txn, op: OP0, locks, behind: Behind::Number(SequenceNumber(after)) });
    }
    fn done(&mut self, txn: TxnId, op: OpId) {
        self.on(Event::Executed { txn, op, replica: R0, outcome: DONE, elapsed_ns: 5 });
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
}

const DONE: Outcome = Outcome::Done { returned: Vec::new() };
const WRITE: LockMode = LockMode::Write;

fn tables(locks: &[(TableId, LockMode)]) -> TableLocks {
    TableLocks::of_tables(locks.iter().copied())
}
fn join(incarnation: u32) -> Message {
    let (from, to, number) = (Csn(1), Csn(0), SequenceNumber(0));
    Message::Join { incarnation, from, to, number, open: Vec::new(), reached: Box::default() }
}
fn void(number: u64) -> Message {
    Message::Void { number: SequenceNumber(number), versions: Versions::default() }
}
fn said(message: Message) -> Effect {
    Effect::Send { to: SCHEDULER, message: AnyMessage::Scheduling(message) }
}
fn granted(txn: TxnId) -> Effect {
    said(Message::Granted { txn, replica: R0 })
}
fn ended(txn: TxnId) -> Effect {
    said(Message::Ended { txn, replica: R0 })
}
fn done(txn: TxnId, op: OpId) -> Effect {
    said(Message::Done { txn, op, replica: R0, outcome: DONE, elapsed_ns: 5 })
}

// 4.4: the out-of-order queue.

#[test]
fn s4_4_a_lock_request_that_arrives_before_its_turn_waits_in_the_out_of_order_queue() {
    let mut rig = rig();
    rig.lock_request(T3, 3, &[(A, WRITE)]);
    rig.lock_request(T2, 2, &[(A, WRITE)]);
    rig.expect(&[]);
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.expect(&[granted(T1)]);
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[ended(T1), granted(T2)]);
    rig.hear(Message::Abort { txn: T2, tag: Tag::default() });
    rig.expect(&[ended(T2), granted(T3)]);
}

#[test]
fn s4_4_even_a_request_that_conflicts_with_nobody_waits_for_its_turn() {
    let mut rig = rig();
    rig.lock_request(T2, 2, &[(B, WRITE)]);
    rig.expect(&[]);
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.expect(&[granted(T1), granted(T2)]);
}

#[test]
fn s5_3_1_a_number_that_nobody_uses_leaves_no_gap() {
    let mut rig = rig();
    rig.lock_request(T3, 3, &[(A, WRITE)]);
    rig.hear(void(2));
    rig.expect(&[]);
    rig.hear(void(1));
    rig.expect(&[granted(T3)]);
}

#[test]
fn s5_3_1_an_abort_of_a_request_in_the_out_of_order_queue_fills_its_gap() {
    let mut rig = rig();
    rig.lock_request(T2, 2, &[(A, WRITE)]);
    rig.hear(Message::Abort { txn: T2, tag: Tag::default() });
    rig.expect(&[ended(T2)]);
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.lock_request(T3, 3, &[(B, WRITE)]);
    rig.expect(&[granted(T1), granted(T3)]);
}

#[test]
fn s4_5_operations_wait_in_the_transaction_queue_while_its_request_is_out_of_order() {
    let mut rig = rig();
    rig.lock_request(T2, 2, &[(A, WRITE)]);
    rig.hear(Message::Write { txn: T2, op: OP0, tag: Tag::default() });
    rig.hear(Message::Write { txn: T2, op: OP1, tag: Tag::default() });
    rig.hear(Message::Commit { txn: T2, csn: Csn(1), tag: Tag::default() });
    rig.expect(&[]);
    rig.hear(void(1));
    rig.expect(&[granted(T2), holds(T2, OP0, R0, OPEN)]);
    rig.done(T2, OP0);
    rig.expect(&[done(T2, OP0), holds(T2, OP1, R0, ON)]);
    rig.done(T2, OP1);
    rig.expect(&[done(T2, OP1), Effect::CommitAt { txn: T2, replica: R0, csn: Csn(1) }]);
    rig.on(Event::Applied { replica: R0, csn: Csn(1) });
    rig.expect(&[ended(T2)]);
}

// 4.3: lock queues.

#[test]
fn s4_3_lock_queues_are_in_sequence_order_with_readers_together_and_writers_alone() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, LockMode::Read)]);
    rig.lock_request(T2, 2, &[(A, LockMode::Read)]);
    rig.lock_request(T3, 3, &[(A, WRITE)]);
    rig.lock_request(T4, 4, &[(A, LockMode::Read), (B, WRITE)]);
    rig.expect(&[granted(T1), granted(T2)]);
    rig.hear(Message::Abort { txn: T2, tag: Tag::default() });
    rig.expect(&[ended(T2)]);
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[ended(T1), granted(T3)]);
    rig.hear(Message::Abort { txn: T3, tag: Tag::default() });
    rig.expect(&[ended(T3), granted(T4)]);
}

#[test]
fn s4_3_a_request_is_granted_when_the_last_of_its_locks_is() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.lock_request(T2, 2, &[(B, WRITE)]);
    rig.lock_request(T3, 3, &[(A, WRITE), (B, WRITE), (C, WRITE)]);
    rig.expect(&[granted(T1), granted(T2)]);
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[ended(T1)]);
    rig.hear(Message::Abort { txn: T2, tag: Tag::default() });
    rig.expect(&[ended(T2), granted(T3)]);
}

// 4.8: single reads.

#[test]
fn s4_8_a_single_read_queues_behind_the_conflicting_requests_that_came_before() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.single_read(T2, 0, A);
    rig.lock_request(T3, 2, &[(A, WRITE)]);
    rig.expect(&[granted(T1)]);
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[ended(T1), granted(T2), streams(T2, OP0, R0, crate::effect::How::Alone)]);
    rig.done(T2, OP0);
    rig.expect(&[done(T2, OP0), granted(T3)]);
}

#[test]
fn s4_8_a_single_read_waits_for_its_sessions_update_that_is_still_on_its_way() {
    let mut rig = rig();
    rig.single_read(T2, 1, A);
    rig.expect(&[]);
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.expect(&[granted(T1)]);
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[ended(T1), granted(T2), streams(T2, OP0, R0, crate::effect::How::Alone)]);
}

// 4.7: aborts.

#[test]
fn s4_7_an_abort_drops_what_is_queued_leaves_what_is_open_and_ends_when_its_write_is_answered() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.hear(Message::Write { txn: T1, op: OP0, tag: Tag::default() });
    rig.hear(Message::Write { txn: T1, op: OP1, tag: Tag::default() });
    rig.hear(Message::Abort { txn: T1, tag: Tag::default() });
    rig.expect(&[granted(T1), holds(T1, OP0, R0, OPEN), leave(T1, R0)]);
    rig.done(T1, OP0);
    rig.expect(&[ended(T1)]);
}

// Failures.

#[test]
fn a_write_that_fails_halts_its_queue_until_the_scheduler_has_compared() {
    for agrees in [true, false] {
        let mut rig = rig();
        rig.lock_request(T1, 1, &[(A, WRITE)]);
        rig.hear(Message::Write { txn: T1, op: OP0, tag: Tag::default() });
        rig.hear(Message::Write { txn: T1, op: OP1, tag: Tag::default() });
        rig.effects.clear();
        rig.on(Event::Executed { txn: T1, op: OP0, replica: R0, outcome: Outcome::Failed, elapsed_ns: 5 });
        let outcome = Outcome::Failed;
        rig.expect(&[said(Message::Done { txn: T1, op: OP0, replica: R0, outcome, elapsed_ns: 5 })]);
        if agrees {
            rig.hear(Message::Resume { txn: T1 });
            rig.expect(&[holds(T1, OP1, R0, ON)]);
        } else {
            rig.hear(Message::Detach { txn: T1 });
            rig.expect(&[leave(T1, R0)]);
            rig.hear(Message::Commit { txn: T1, csn: Csn(1), tag: Tag::default() });
            rig.expect(&[Effect::Apply { replica: R0, from: Csn(1), to: Csn(1) }]);
        }
    }
}

#[test]
fn a_write_that_was_sent_before_the_scheduler_knew_of_a_lost_connection_is_dropped() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.hear(Message::Write { txn: T1, op: OP0, tag: Tag::default() });
    rig.done(T1, OP0);
    rig.effects.clear();
    rig.on(Event::HomeLost { txn: T1, replica: R0 });
    rig.expect(&[said(Message::LaneLost { txn: T1, replica: R0 })]);
    rig.hear(Message::Write { txn: T1, op: OP1, tag: Tag::default() });
    rig.expect(&[]);
    rig.hear(Message::Finish { txn: T1, op: OP2, tag: Tag::default() });
    rig.expect(&[Effect::Finish { txn: T1, op: OP2, replica: None }, ended(T1)]);
}

#[test]
fn a_lost_replica_names_the_reads_that_it_had_not_sent() {
    let mut rig = rig();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.hear(Message::Write { txn: T1, op: OP0, tag: Tag::default() });
    rig.single_read(T2, 0, A);
    rig.single_read(T3, 0, B);
    rig.effects.clear();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.expect(&[said(Message::Down { replica: R0, unsent: vec![(T2, OP0)] })]);
}

#[test]
fn messages_meant_for_an_earlier_incarnation_are_dropped() {
    let mut rig = rig();
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.effects.clear();
    rig.lock_request(T1, 1, &[(A, WRITE)]);
    rig.hear(join(1));
    rig.expect(&[]);
    rig.hear(join(2));
    rig.expect(&[said(Message::CaughtUp { replica: R0, through: Csn(0), complete: true })]);
    rig.lock_request(T2, 1, &[(A, WRITE)]);
    rig.expect(&[granted(T2)]);
}

// DV 5.2: what the loose levels promise of writes.

/// Two writes of one table, of which the second overtakes the first.
fn writes_that_overtake_each_other(order: Loose) -> Rig {
    let mut rig = rig_of(Order::Statements(order));
    let (mut assigner, locks) = (crate::table_versions::Assigner::default(), tables(&[(A, WRITE)]));
    let updates = [T1, T2].map(|txn| {
        let versions = assigner.assign(&locks);
        let number = SequenceNumber(txn.0);
        Message::SingleUpdate { txn, number, op: OP0, locks: locks.clone(), versions, releases: false }
    });
    let [first, second] = updates;
    rig.hear(second);
    rig.hear(first);
    rig
}

#[test]
fn dv_5_2_without_an_order_writes_are_executed_as_they_arrive() {
    writes_that_overtake_each_other(Loose::Unordered).expect(&[holds(T2, OP0, R0, OPEN)]);
}

#[test]
fn dv_5_2_with_ordered_writes_they_are_executed_in_their_order_however_they_arrive() {
    for order in [Loose::OrderedWrites, Loose::BoundedReads(30_000_000_000)] {
        writes_that_overtake_each_other(order).expect(&[holds(T1, OP0, R0, OPEN)]);
    }
}
