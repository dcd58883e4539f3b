//! The scheme by section of the paper: every message and every order that comes of an event is compared.

use std::collections::BTreeMap;

use super::*;
use crate::ids::Epoch;
use crate::item::TableId;
use crate::table_queues::{LockMode, TableLocks};

const A: TableId = TableId(1);
const B: TableId = TableId(2);
const N0: NodeId = NodeId(0);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);
const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);

fn n(number: u64) -> SequenceNumber {
    SequenceNumber(number)
}
fn writes(tables: &[TableId]) -> TableLocks {
    TableLocks::of_tables(tables.iter().map(|table| (*table, LockMode::Write)))
}
fn q(table: TableId, text: u64) -> Query {
    Query { table, text }
}
fn committed(tables: &[TableId], queries: &[Query]) -> End {
    End::Committed { locks: writes(tables), writes: queries.to_vec() }
}
fn to_scheduler(node: NodeId, message: Message) -> Output {
    Output::Send { to: Place::Scheduler(node), message }
}
fn to_sequencer(message: Message) -> Output {
    Output::Send { to: Place::Sequencer, message }
}
fn to_proxy(replica: ReplicaId, message: Message) -> Output {
    Output::Send { to: Place::Proxy(replica), message }
}
fn tables(last: &[(TableId, u64)]) -> BTreeMap<TableId, SequenceNumber> {
    last.iter().map(|(table, number)| (*table, n(*number))).collect()
}
fn standing(last: &[(TableId, u64)], processed: u64, open: &[u64]) -> Standing {
    let open = open.iter().map(|number| n(*number)).collect();
    Standing { tables: tables(last), processed: n(processed), open, checkpoint: n(0) }
}
fn request(txn: TxnId, epoch: u64) -> Message {
    Message::NumberRequest { txn, epoch: Epoch(epoch), floor: n(0) }
}
fn lock(number: u64, tables: &[TableId]) -> Message {
    Message::Lock { number: n(number), locks: writes(tables) }
}
fn write(number: u64, index: usize, query: Query) -> Message {
    Message::Write { number: n(number), index, query }
}
fn commit(number: u64, writes: usize) -> Message {
    Message::Commit { number: n(number), writes }
}
fn abort(number: u64) -> Message {
    Message::Abort { number: n(number) }
}
fn replay(number: u64, tables: &[TableId], queries: &[Query]) -> Message {
    Message::Replay { number: n(number), locks: writes(tables), writes: queries.to_vec() }
}
fn execute(number: u64, query: Query) -> Output {
    Output::Execute { number: n(number), query }
}

/// A scheduler, and what it has said since it was last looked at.
struct Rig {
    it: Scheduler,
    outputs: Vec<Output>,
}

impl Rig {
    /// One of these, before two databases.
    fn of(node: NodeId, all: &[NodeId]) -> Rig {
        Rig { it: Scheduler::new(node, all.iter().copied(), [R0, R1]), outputs: Vec::new() }
    }
    fn begin(&mut self, txn: TxnId, tables: &[TableId]) {
        self.it.begin(txn, writes(tables), &mut self.outputs);
    }
    fn write(&mut self, txn: TxnId, query: Query) {
        self.it.write(txn, query, &mut self.outputs);
    }
    fn commit(&mut self, txn: TxnId) {
        self.it.commit(txn, &mut self.outputs);
    }
    fn logged(&mut self, number: u64) {
        self.it.logged(n(number), &mut self.outputs);
    }
    fn fails(&mut self, node: NodeId) {
        self.it.scheduler_failed(node, &mut self.outputs);
    }
    fn hear(&mut self, from: NodeId, message: Message) {
        self.it.handle(Place::Scheduler(from), message, &mut self.outputs);
    }
    fn hear_sequencer(&mut self, message: Message) {
        self.it.handle(Place::Sequencer, message, &mut self.outputs);
    }
    fn hear_proxy(&mut self, replica: ReplicaId, message: Message) {
        self.it.handle(Place::Proxy(replica), message, &mut self.outputs);
    }
    fn number(&mut self, txn: TxnId, number: u64) {
        self.hear_sequencer(Message::Number { txn, number: n(number), epoch: Epoch(1) });
    }
    #[track_caller]
    fn expect(&mut self, outputs: &[Output]) {
        assert_eq!(std::mem::take(&mut self.outputs), outputs);
    }
    fn forget_outputs(&mut self) {
        self.outputs.clear();
    }
    /// A transaction of its own that writes table A and is open at the databases.
    fn open(&mut self, txn: TxnId, number: u64) {
        self.begin(txn, &[A]);
        self.number(txn, number);
        for peer in [N0, N1, N2] {
            self.hear(peer, Message::StartRecorded { number: n(number) });
        }
        self.write(txn, q(A, number));
        self.forget_outputs();
    }
}

/// A proxy that hears from scheduler N0.
struct ProxyRig {
    it: Proxy,
    outputs: Vec<Output>,
}

impl ProxyRig {
    fn new() -> ProxyRig {
        ProxyRig { it: Proxy::new([N0]), outputs: Vec::new() }
    }
    fn hear(&mut self, message: Message) {
        self.it.handle(N0, message, &mut self.outputs);
    }
    fn answered(&mut self, number: u64) {
        self.it.answered(n(number), &mut self.outputs);
    }
    fn timeout(&mut self) {
        self.it.on_timeout(&mut self.outputs);
    }
    #[track_caller]
    fn expect(&mut self, outputs: &[Output]) {
        assert_eq!(std::mem::take(&mut self.outputs), outputs);
    }
}

// 5.2: the start of a transaction, and the sequencer.

#[test]
fn a_number_is_used_when_all_others_have_recorded_it() {
    let mut rig = Rig::of(N0, &[N0, N1, N2]);
    rig.begin(T1, &[A]);
    rig.expect(&[to_sequencer(request(T1, 1))]);
    rig.number(T1, 7);
    let start = Message::ReplicateStart { number: n(7) };
    rig.expect(&[to_scheduler(N1, start.clone()), to_scheduler(N2, start)]);
    rig.write(T1, q(A, 1));
    rig.hear(N2, Message::StartRecorded { number: n(7) });
    rig.expect(&[]);
    rig.hear(N1, Message::StartRecorded { number: n(7) });
    rig.expect(&[
        to_proxy(R0, lock(7, &[A])),
        to_proxy(R0, write(7, 0, q(A, 1))),
        to_proxy(R1, lock(7, &[A])),
        to_proxy(R1, write(7, 0, q(A, 1))),
    ]);
}

#[test]
fn the_sequencer_gives_one_number_after_the_other() {
    let (mut sequencer, mut outputs) = (Sequencer::default(), Vec::new());
    sequencer.handle(N0, request(T1, 1), &mut outputs);
    sequencer.handle(N1, request(T2, 1), &mut outputs);
    let number = |txn, number| Message::Number { txn, number: n(number), epoch: Epoch(1) };
    assert_eq!(outputs, [to_scheduler(N0, number(T1, 1)), to_scheduler(N1, number(T2, 2))]);
}

#[test]
fn a_new_sequencer_begins_behind_what_is_known_and_makes_void_what_nobody_knows() {
    let mut outputs = Vec::new();
    let mut sequencer = Sequencer::successor(Epoch(2), [N0, N1], &mut outputs);
    let question = Message::KnownRequest { epoch: Epoch(2) };
    assert_eq!(
        std::mem::take(&mut outputs),
        [to_scheduler(N0, question.clone()), to_scheduler(N1, question)]
    );
    let known = |floor, last, numbers| {
        let (epoch, floor, last) = (Epoch(2), n(floor), n(last));
        Message::Known { epoch, floor, last, numbers }
    };
    sequencer.handle(N0, known(3, 5, vec![(n(5), N0)]), &mut outputs);
    sequencer.handle(N1, request(T1, 2), &mut outputs);
    assert_eq!(outputs, [], "it does not know yet which are free");
    sequencer.handle(N1, known(2, 9, vec![(n(5), N0), (n(8), N1)]), &mut outputs);
    let new_epoch = Message::NewEpoch { epoch: Epoch(2), last: n(9) };
    assert_eq!(
        std::mem::take(&mut outputs),
        [to_scheduler(N0, new_epoch.clone()), to_scheduler(N1, new_epoch)]
    );
    sequencer.handle(N1, request(T1, 1), &mut outputs);
    assert_eq!(outputs, [], "that was asked of its predecessor");
    sequencer.handle(N1, request(T1, 2), &mut outputs);
    let number = Message::Number { txn: T1, number: n(10), epoch: Epoch(2) };
    assert_eq!(std::mem::take(&mut outputs), [to_scheduler(N1, number)]);
    sequencer.handle(N0, Message::EpochRecorded { epoch: Epoch(2) }, &mut outputs);
    assert_eq!(outputs, [], "N1 might not know how far numbers were given");
    sequencer.handle(N1, Message::EpochRecorded { epoch: Epoch(2) }, &mut outputs);
    let void = Message::Void { epoch: Epoch(2), numbers: vec![n(4), n(6), n(7), n(9)] };
    assert_eq!(std::mem::take(&mut outputs), [to_scheduler(N0, void.clone()), to_scheduler(N1, void)]);
    sequencer.handle(N0, Message::TakeOver { round: 1, failed: vec![N1] }, &mut outputs);
    let numbers = [8, 10, 4, 6, 7, 9].map(n).to_vec();
    let given = Message::Given { epoch: Epoch(2), round: 1, numbers };
    assert_eq!(outputs, [to_scheduler(N0, given)], "N0 may not have heard that some are nobody's");
}

#[test]
fn if_a_scheduler_fails_while_a_new_sequencer_asks_the_others_are_asked_again() {
    let mut outputs = Vec::new();
    let mut sequencer = Sequencer::successor(Epoch(2), [N0, N1], &mut outputs);
    sequencer.handle(
        N0,
        Message::Known { epoch: Epoch(2), floor: n(0), last: n(0), numbers: Vec::new() },
        &mut outputs,
    );
    outputs.clear();
    sequencer.scheduler_failed(N1, &mut outputs);
    assert_eq!(outputs, [to_scheduler(N0, Message::KnownRequest { epoch: Epoch(3) })]);
}

#[test]
fn a_number_of_the_former_sequencer_does_not_count_after_its_successor_has_asked() {
    let mut rig = Rig::of(N0, &[N0, N1]);
    rig.begin(T1, &[A]);
    rig.hear_sequencer(Message::KnownRequest { epoch: Epoch(2) });
    rig.forget_outputs();
    rig.number(T1, 7);
    rig.expect(&[]);
    rig.begin(T2, &[B]);
    rig.expect(&[]);
    rig.hear_sequencer(Message::NewEpoch { epoch: Epoch(2), last: n(7) });
    rig.expect(&[
        to_sequencer(Message::EpochRecorded { epoch: Epoch(2) }),
        to_sequencer(request(T1, 2)),
        to_sequencer(request(T2, 2)),
    ]);
    rig.hear_sequencer(Message::Void { epoch: Epoch(2), numbers: vec![n(7)] });
    rig.hear_proxy(R0, Message::Missing(standing(&[], 6, &[])));
    rig.expect(&[to_proxy(R0, abort(7))]);
}

#[test]
fn a_scheduler_that_joins_asks_for_numbers_when_the_sequencer_has_heard_of_it_and_once() {
    let mut rig = Rig::of(N0, &[N0]);
    rig.it = Scheduler::join(N3, [N0], [R0], &mut rig.outputs);
    rig.forget_outputs();
    rig.begin(T1, &[A]);
    rig.expect(&[]);
    let mut outputs = Vec::new();
    Sequencer::default().scheduler_joined(N3, &mut outputs);
    let new_epoch = Message::NewEpoch { epoch: Epoch(1), last: n(0) };
    assert_eq!(outputs, [to_scheduler(N3, new_epoch.clone())]);
    let recorded = to_sequencer(Message::EpochRecorded { epoch: Epoch(1) });
    rig.hear_sequencer(new_epoch.clone());
    rig.expect(&[recorded.clone(), to_sequencer(request(T1, 1))]);
    rig.hear_sequencer(new_epoch);
    rig.expect(&[recorded]);
}

// 5.3: the end of a transaction.

#[test]
fn databases_commit_when_all_others_have_the_writes_and_the_disk_has_them() {
    let mut rig = Rig::of(N0, &[N0, N1, N2]);
    rig.open(T1, 7);
    rig.commit(T1);
    let end = Message::ReplicateEnd { number: n(7), end: committed(&[A], &[q(A, 7)]) };
    rig.expect(&[to_scheduler(N1, end.clone()), to_scheduler(N2, end)]);
    rig.hear(N1, Message::EndRecorded { number: n(7) });
    rig.expect(&[]);
    rig.hear(N2, Message::EndRecorded { number: n(7) });
    rig.expect(&[Output::Log { number: n(7), writes: vec![q(A, 7)] }]);
    rig.logged(7);
    let decided = Message::Decided { number: n(7) };
    rig.expect(&[
        to_scheduler(N1, decided.clone()),
        to_scheduler(N2, decided),
        to_proxy(R0, commit(7, 1)),
        to_proxy(R1, commit(7, 1)),
    ]);
    rig.hear_proxy(R1, Message::Reached(standing(&[(A, 7)], 7, &[])));
    rig.expect(&[Output::Answer { txn: T1, committed: true }]);
    rig.hear_proxy(R0, Message::Reached(standing(&[(A, 7)], 7, &[])));
    rig.expect(&[]);
}

#[test]
fn what_has_only_read_is_told_to_the_others_and_not_logged() {
    let mut rig = Rig::of(N0, &[N0, N1]);
    rig.begin(T1, &[A]);
    rig.number(T1, 7);
    rig.hear(N1, Message::StartRecorded { number: n(7) });
    rig.forget_outputs();
    rig.commit(T1);
    rig.expect(&[to_scheduler(N1, Message::ReplicateEnd { number: n(7), end: committed(&[A], &[]) })]);
    rig.hear(N1, Message::EndRecorded { number: n(7) });
    rig.expect(&[
        to_scheduler(N1, Message::Decided { number: n(7) }),
        to_proxy(R0, commit(7, 0)),
        to_proxy(R1, commit(7, 0)),
        Output::Answer { txn: T1, committed: true },
    ]);
}

#[test]
fn an_abort_is_told_to_all_and_waits_for_nobody() {
    let mut rig = Rig::of(N0, &[N0, N1]);
    rig.open(T1, 7);
    rig.it.abort(T1, &mut rig.outputs);
    rig.expect(&[
        to_scheduler(N1, Message::ReplicateEnd { number: n(7), end: End::Aborted }),
        to_proxy(R0, abort(7)),
        to_proxy(R1, abort(7)),
        Output::Answer { txn: T1, committed: false },
    ]);
}

#[test]
fn nobody_waits_for_a_scheduler_that_has_failed() {
    let mut rig = Rig::of(N1, &[N0, N1, N2]);
    rig.open(T1, 7);
    rig.commit(T1);
    rig.hear(N0, Message::EndRecorded { number: n(7) });
    rig.forget_outputs();
    rig.fails(N2);
    rig.expect(&[Output::Log { number: n(7), writes: vec![q(A, 7)] }]);
}

#[test]
fn records_are_kept_until_every_database_has_them_in_a_checkpoint() {
    let mut rig = Rig::of(N1, &[N0, N1]);
    rig.hear(N0, Message::ReplicateStart { number: n(1) });
    rig.hear(N0, Message::ReplicateEnd { number: n(1), end: committed(&[A], &[q(A, 1)]) });
    rig.hear(N0, Message::Decided { number: n(1) });
    let at =
        |checkpoint| Message::Reached(Standing { checkpoint: n(checkpoint), ..standing(&[(A, 1)], 1, &[]) });
    rig.hear_proxy(R0, at(1));
    rig.hear_proxy(R1, at(0));
    assert_eq!(rig.it.records_kept(), 1, "both have committed, one has no checkpoint of it");
    rig.it.replica_failed(R1);
    rig.hear_proxy(R0, at(1));
    assert_eq!(rig.it.records_kept(), 1, "and it may come back with the one that it has");
    rig.hear_proxy(R1, at(1));
    assert_eq!(rig.it.records_kept(), 0);
}

#[test]
fn nothing_is_dropped_while_a_database_comes_back_with_a_snapshot_that_may_be_older_than_its_checkpoint() {
    let mut rig = Rig::of(N0, &[N0]);
    rig.it.record(n(1), N0, Some(committed(&[A], &[q(A, 1)])));
    rig.it.decide(n(1));
    let at_1 = Message::Reached(Standing { checkpoint: n(1), ..standing(&[(A, 1)], 1, &[]) });
    rig.hear_proxy(R0, at_1.clone());
    rig.it.replica_failed(R0);
    rig.hear_proxy(R0, Message::Rejoin);
    rig.hear_proxy(R1, at_1.clone());
    assert_eq!(rig.it.records_kept(), 1);
    rig.hear_proxy(R0, at_1);
    assert_eq!(rig.it.records_kept(), 0);
}

// 5.3.1: a scheduler fails.

#[test]
fn what_anybody_has_a_decision_of_is_finished_and_all_else_never_was() {
    let mut rig = Rig::of(N0, &[N0, N1, N2]);
    let end = committed(&[A], &[q(A, 1)]);
    for number in [1, 2] {
        rig.hear(N2, Message::ReplicateStart { number: n(number) });
    }
    rig.forget_outputs();
    rig.fails(N2);
    let question = Message::TakeOver { round: 1, failed: vec![N2] };
    rig.expect(&[to_scheduler(N1, question.clone()), to_sequencer(question)]);
    // 1 is decided as only N1 knows; of 3 nobody but the sequencer knows.
    rig.hear(N1, Message::Held { round: 1, records: vec![(n(1), Some(end.clone())), (n(2), None)] });
    rig.expect(&[]);
    rig.hear_sequencer(Message::Given { epoch: Epoch(1), round: 1, numbers: vec![n(1), n(2), n(3)] });
    let ends = vec![(n(1), end), (n(2), End::Aborted), (n(3), End::Aborted)];
    rig.expect(&[to_scheduler(N1, Message::Outcome { round: 1, ends })]);
    rig.hear(N1, Message::OutcomeRecorded { round: 1 });
    let decided = |number| to_scheduler(N1, Message::Decided { number: n(number) });
    let log = Output::Log { number: n(1), writes: vec![q(A, 1)] };
    rig.expect(&[log, decided(2), decided(3)]);
    rig.logged(1);
    rig.expect(&[decided(1), to_proxy(R0, Message::StandingRequest), to_proxy(R1, Message::StandingRequest)]);
    // One has the lock request of 1 and not its commit, the other has nothing.
    rig.hear_proxy(R0, Message::Missing(standing(&[], 1, &[1])));
    rig.expect(&[to_proxy(R0, replay(1, &[A], &[q(A, 1)])), to_proxy(R0, abort(2)), to_proxy(R0, abort(3))]);
    rig.hear_proxy(R1, Message::Missing(standing(&[], 0, &[])));
    rig.expect(&[to_proxy(R1, replay(1, &[A], &[q(A, 1)])), to_proxy(R1, abort(2)), to_proxy(R1, abort(3))]);
    // And this one has committed it.
    rig.hear_proxy(R0, Message::Missing(standing(&[(A, 1)], 3, &[])));
    rig.expect(&[]);
}

#[test]
fn only_the_first_of_those_that_are_left_takes_over() {
    let mut rig = Rig::of(N1, &[N0, N1, N2]);
    rig.fails(N2);
    rig.expect(&[]);
    rig.fails(N0);
    let question = Message::TakeOver { round: 2, failed: vec![N0, N2] };
    rig.expect(&[to_sequencer(question)]);
}

#[test]
fn a_scheduler_that_has_failed_is_not_heard_any_more() {
    let mut rig = Rig::of(N1, &[N0, N1, N2]);
    rig.hear(N2, Message::ReplicateStart { number: n(1) });
    rig.forget_outputs();
    rig.fails(N2);
    rig.hear(N2, Message::ReplicateEnd { number: n(1), end: committed(&[A], &[q(A, 1)]) });
    rig.expect(&[]);
    rig.hear(N0, Message::TakeOver { round: 1, failed: vec![N2] });
    rig.expect(&[to_scheduler(N0, Message::Held { round: 1, records: vec![(n(1), None)] })]);
}

#[test]
fn a_take_over_begins_anew_if_another_scheduler_fails_and_keeps_what_it_has_decided() {
    let mut rig = Rig::of(N0, &[N0, N1, N2]);
    let end = committed(&[A], &[q(A, 1)]);
    rig.hear(N2, Message::ReplicateEnd { number: n(1), end: end.clone() });
    rig.fails(N2);
    rig.hear_sequencer(Message::Given { epoch: Epoch(1), round: 1, numbers: vec![n(1)] });
    rig.hear(N1, Message::Held { round: 1, records: Vec::new() });
    rig.forget_outputs();
    rig.fails(N1);
    rig.expect(&[to_sequencer(Message::TakeOver { round: 2, failed: vec![N1, N2] })]);
    rig.hear_sequencer(Message::Given { epoch: Epoch(1), round: 1, numbers: vec![n(1)] });
    rig.expect(&[]);
    rig.hear_sequencer(Message::Given { epoch: Epoch(1), round: 2, numbers: vec![n(1)] });
    rig.expect(&[Output::Log { number: n(1), writes: vec![q(A, 1)] }]);
}

#[test]
fn a_new_sequencer_is_asked_again_by_whoever_takes_over() {
    let mut rig = Rig::of(N0, &[N0, N1]);
    rig.fails(N1);
    rig.forget_outputs();
    rig.hear_sequencer(Message::NewEpoch { epoch: Epoch(2), last: n(0) });
    rig.expect(&[
        to_sequencer(Message::EpochRecorded { epoch: Epoch(2) }),
        to_sequencer(Message::TakeOver { round: 1, failed: vec![N1] }),
    ]);
}

#[test]
fn a_scheduler_that_joins_is_told_everything_and_is_waited_for() {
    let mut outputs = Vec::new();
    let mut new = Scheduler::join(N3, [N0], [R0], &mut outputs);
    assert_eq!(outputs, [to_scheduler(N0, Message::Joining)]);
    let mut rig = Rig::of(N0, &[N0, N2]);
    rig.fails(N2);
    rig.open(T1, 7);
    rig.hear(N3, Message::Joining);
    let record = Record { coordinator: N0, end: None, decided: false };
    let (failed, records) = (vec![N2], vec![(n(7), record)]);
    let (epoch, floor, last) = (Epoch(1), n(0), n(7));
    let copy = Message::Copy { epoch, complete: true, failed, floor, last, records };
    rig.expect(&[to_scheduler(N3, copy.clone())]);
    assert!(!new.has_joined());
    new.handle(Place::Scheduler(N0), copy, &mut outputs);
    assert!(new.has_joined());
    rig.commit(T1);
    rig.expect(&[to_scheduler(N3, Message::ReplicateEnd { number: n(7), end: committed(&[A], &[q(A, 7)]) })]);
}

#[test]
fn a_scheduler_that_joins_asks_again_if_one_fails_that_has_not_answered_and_may_then_be_the_first() {
    let mut rig = Rig { it: Scheduler::new(N2, [N2], [R0]), outputs: Vec::new() };
    rig.it = Scheduler::join(N2, [N0, N3], [R0], &mut rig.outputs);
    rig.expect(&[to_scheduler(N0, Message::Joining), to_scheduler(N3, Message::Joining)]);
    let copy = |complete, failed| {
        let (epoch, floor, last, records) = (Epoch(1), n(0), n(0), Vec::new());
        Message::Copy { epoch, complete, failed, floor, last, records }
    };
    rig.hear(N3, copy(true, Vec::new()));
    rig.fails(N0);
    rig.expect(&[to_scheduler(N3, Message::Joining)]);
    rig.hear(N3, copy(true, vec![N0, N1]));
    let question = Message::TakeOver { round: 2, failed: vec![N0, N1] };
    rig.expect(&[to_scheduler(N3, question.clone()), to_sequencer(question)]);
    assert!(rig.it.has_joined());
}

#[test]
fn one_that_has_not_joined_itself_cannot_tell_a_scheduler_everything() {
    let mut outputs = Vec::new();
    let mut new = Scheduler::join(N3, [N2], [R0], &mut outputs);
    let (epoch, floor, last, records) = (Epoch(1), n(0), n(0), Vec::new());
    let copy = Message::Copy { epoch, complete: false, failed: Vec::new(), floor, last, records };
    new.handle(Place::Scheduler(N2), copy, &mut outputs);
    assert!(!new.has_joined());
}

#[test]
fn a_transaction_that_is_half_done_is_done_again_in_its_place() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(1, &[A]));
    rig.hear(lock(2, &[A]));
    rig.hear(write(2, 0, q(A, 2)));
    rig.hear(commit(2, 1));
    rig.hear(write(1, 0, q(A, 1)));
    rig.expect(&[execute(1, q(A, 1))]);
    rig.answered(1);
    rig.hear(replay(1, &[A], &[q(A, 1), q(A, 3)]));
    rig.expect(&[Output::Rollback { number: n(1) }, execute(1, q(A, 1))]);
    rig.answered(1);
    rig.answered(1);
    rig.expect(&[execute(1, q(A, 3)), Output::Commit { number: n(1) }]);
    rig.answered(1);
    rig.expect(&[execute(2, q(A, 2)), to_scheduler(N0, Message::Reached(standing(&[(A, 1)], 2, &[2])))]);
}

#[test]
fn an_abort_fills_the_gap_that_its_number_leaves() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(2, &[A]));
    rig.hear(write(2, 0, q(A, 2)));
    rig.expect(&[]);
    rig.hear(abort(1));
    rig.expect(&[execute(2, q(A, 2))]);
}

// 5.3.2: messages are lost.

#[test]
fn a_proxy_asks_for_a_number_that_stays_away() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(2, &[A]));
    rig.timeout();
    rig.timeout();
    rig.expect(&[to_scheduler(N0, Message::Missing(standing(&[], 0, &[])))]);
}

#[test]
fn a_commit_waits_for_writes_that_were_lost() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(1, &[A, B]));
    rig.hear(write(1, 1, q(B, 2)));
    rig.hear(commit(1, 2));
    rig.expect(&[]);
    rig.timeout();
    rig.timeout();
    rig.expect(&[to_scheduler(N0, Message::Missing(standing(&[], 1, &[1])))]);
    rig.hear(replay(1, &[A, B], &[q(A, 1), q(B, 2)]));
    rig.expect(&[execute(1, q(A, 1))]);
}

#[test]
fn a_proxy_asks_for_what_is_lost_also_while_others_come() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(1, &[A]));
    rig.timeout();
    rig.hear(lock(2, &[B]));
    rig.timeout();
    rig.expect(&[to_scheduler(N0, Message::Missing(standing(&[], 2, &[1, 2])))]);
}

#[test]
fn a_proxy_that_has_everything_does_not_ask() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(1, &[A]));
    rig.hear(write(1, 0, q(A, 1)));
    rig.hear(commit(1, 1));
    rig.expect(&[execute(1, q(A, 1))]);
    rig.timeout();
    rig.timeout();
    rig.timeout();
    rig.expect(&[]);
}

#[test]
fn a_coordinator_sends_again_what_is_open_and_nobody_a_decision_that_may_be_given_up() {
    let mut rig = Rig::of(N1, &[N0, N1]);
    rig.open(T1, 2);
    rig.hear(N0, Message::ReplicateEnd { number: n(1), end: committed(&[A], &[q(A, 1)]) });
    rig.forget_outputs();
    let missing = Message::Missing(standing(&[], 0, &[]));
    rig.hear_proxy(R0, missing.clone());
    rig.expect(&[to_proxy(R0, lock(2, &[A])), to_proxy(R0, write(2, 0, q(A, 2)))]);
    rig.hear(N0, Message::Decided { number: n(1) });
    rig.hear_proxy(R0, missing);
    rig.expect(&[
        to_proxy(R0, replay(1, &[A], &[q(A, 1)])),
        to_proxy(R0, lock(2, &[A])),
        to_proxy(R0, write(2, 0, q(A, 2))),
    ]);
}

// 5.3.3: a database fails.

#[test]
fn a_database_comes_back_with_a_snapshot_that_is_taken_when_all_schedulers_have_admitted_it() {
    let mut outputs = Vec::new();
    let mut proxy = Proxy::rejoin([N0, N1], &mut outputs);
    assert_eq!(
        std::mem::take(&mut outputs),
        [to_scheduler(N0, Message::Rejoin), to_scheduler(N1, Message::Rejoin)]
    );
    proxy.handle(N0, Message::Admitted, &mut outputs);
    assert_eq!(outputs, []);
    proxy.handle(N1, Message::Admitted, &mut outputs);
    assert_eq!(std::mem::take(&mut outputs), [to_scheduler(N0, Message::SnapshotRequest)]);
    proxy.handle(N0, lock(9, &[A]), &mut outputs);
    assert_eq!(outputs, [], "it has no contents, and will ask for this");
    proxy.handle(N0, Message::SnapshotFrom { donor: Some(R1) }, &mut outputs);
    assert_eq!(std::mem::take(&mut outputs), [Output::Install { donor: Some(R1) }]);
    proxy.installed(Position { ended: n(7), tables: tables(&[(A, 8)]) }, &mut outputs);
    let here = Standing { checkpoint: n(7), ..standing(&[(A, 8)], 7, &[]) };
    assert_eq!(
        outputs,
        [
            to_scheduler(N0, Message::Reached(here.clone())),
            to_scheduler(N1, Message::Reached(here.clone())),
            to_scheduler(N1, Message::Missing(here)),
        ]
    );
}

#[test]
fn what_a_snapshot_contains_beyond_what_was_open_is_not_done_again() {
    let mut rig = Rig::of(N0, &[N0]);
    for number in [1, 2, 3] {
        let table = if number == 1 { B } else { A };
        rig.it.record(n(number), N0, Some(committed(&[table], &[q(table, number)])));
        rig.it.decide(n(number));
    }
    // 1 was open at the source when 2 was committed there.
    rig.hear_proxy(R0, Message::Missing(standing(&[(A, 2)], 0, &[])));
    rig.expect(&[
        to_proxy(R0, replay(1, &[B], &[q(B, 1)])),
        to_proxy(R0, abort(2)),
        to_proxy(R0, replay(3, &[A], &[q(A, 3)])),
    ]);
}

#[test]
fn a_snapshot_is_another_database_s_or_its_own_checkpoint_if_there_is_none() {
    let mut rig = Rig::of(N0, &[N0]);
    rig.it.replica_failed(R0);
    rig.hear_proxy(R0, Message::Rejoin);
    rig.expect(&[to_proxy(R0, Message::Admitted)]);
    rig.hear_proxy(R0, Message::SnapshotRequest);
    rig.expect(&[to_proxy(R0, Message::SnapshotFrom { donor: Some(R1) })]);
    rig.it.replica_failed(R1);
    rig.hear_proxy(R0, Message::SnapshotRequest);
    rig.expect(&[to_proxy(R0, Message::SnapshotFrom { donor: None })]);
}

#[test]
fn a_checkpoint_waits_for_what_executes_and_nothing_else_begins_until_it_is_made() {
    let mut rig = ProxyRig::new();
    rig.hear(lock(1, &[A]));
    rig.hear(write(1, 0, q(A, 1)));
    rig.hear(commit(1, 1));
    rig.hear(lock(2, &[B]));
    rig.answered(1);
    rig.expect(&[execute(1, q(A, 1)), Output::Commit { number: n(1) }]);
    rig.it.begin_checkpoint(&mut rig.outputs);
    rig.hear(write(2, 0, q(B, 2)));
    rig.expect(&[]);
    rig.answered(1);
    let position = Position { ended: n(1), tables: tables(&[(A, 1)]) };
    rig.expect(&[
        to_scheduler(N0, Message::Reached(standing(&[(A, 1)], 2, &[2]))),
        Output::Checkpoint { position: position.clone() },
    ]);
    rig.it.checkpointed(&position, &mut rig.outputs);
    let here = Standing { checkpoint: n(1), ..standing(&[(A, 1)], 2, &[2]) };
    rig.expect(&[to_scheduler(N0, Message::Reached(here)), execute(2, q(B, 2))]);
}
