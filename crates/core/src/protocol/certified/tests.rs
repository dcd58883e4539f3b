//! One site, by whole lists of effects.

use super::*;
use crate::effect::{How, Refusal};
use crate::event::{Begin, Moment, Outcome, Statement, StatementKind};
use crate::ids::{ClassId, ReplicaId, SessionId};
use crate::item::{Access, ColumnId, ColumnSet, Item, Mode, TableId, ValueHash};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const HERE: ReplicaId = ReplicaId(0);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);
const T9: TxnId = TxnId(9);
const DONE: Outcome = Outcome::Done { returned: Vec::new() };

struct Rig {
    protocol: Certified,
    effects: Vec<Effect>,
}

fn rig(commits: Commits) -> Rig {
    Rig { protocol: Certified::new(commits, 2), effects: Vec::new() }
}

fn access(reads: &[u64], writes: &[u64]) -> AccessSet {
    let of = |table: &u64, mode| Access::new(Item::table(TableId(*table)), mode);
    let reads = reads.iter().map(|table| of(table, Mode::Shared));
    reads.chain(writes.iter().map(|table| of(table, Mode::NoKeyExclusive))).collect()
}

impl Rig {
    fn feed(&mut self, event: Event) {
        self.protocol.handle(Place::Peer(A), Instant(0), event, &mut self.effects);
    }
    fn comes(&mut self, txn: TxnId, access: AccessSet) {
        let kind =
            if access.iter().any(|of| of.mode.writes()) { StatementKind::Write } else { StatementKind::Read };
        let session = SessionId(0);
        let begin = Begin { txn, session, read_only: false, form: 0, declared: None, stale_ok_ns: None };
        self.feed(Event::Autocommit { begin, statement: Statement::new(ClassId(1), kind, access) });
    }
    fn executed(&mut self, txn: TxnId, op: u32, outcome: Outcome) {
        self.feed(Event::Executed { txn, op: OpId(op), replica: HERE, outcome, elapsed_ns: 1 });
    }
    fn delivered(&mut self, from: NodeId, moment: Moment, place: u64, message: Message) {
        let message = AnyMessage::Certified(message);
        self.feed(Event::Delivered { from, moment, place: Csn(place), message });
    }
    fn committed(&mut self, csn: u64) {
        self.feed(Event::Applied { replica: HERE, csn: Csn(csn) });
    }
    fn applied(&mut self, origin: NodeId, txn: TxnId) {
        self.feed(Event::ShippedApplied { origin: Place::Peer(origin), txn, replica: HERE });
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
}

fn request(txn: TxnId, op: u32, snapshot: u64, access: AccessSet) -> Message {
    Message::Request { txn, op: OpId(op), snapshot: Csn(snapshot), access }
}
fn in_place(txn: TxnId, access: AccessSet) -> Message {
    Message::InPlace { txn, access }
}
fn execute_at(txn: TxnId, op: u32, csn: u64) -> Effect {
    Effect::ExecuteAt { txn, op: OpId(op), replica: HERE, csn: Csn(csn) }
}
fn execute(txn: TxnId, op: u32) -> Effect {
    let how = How::Home { open: true };
    Effect::Execute { txn, op: OpId(op), replica: HERE, how, hold: true }
}
fn multicast(txn: TxnId, message: Message) -> Effect {
    Effect::Multicast { txn, message: AnyMessage::Certified(message) }
}
fn commit(txn: TxnId, csn: u64) -> Effect {
    Effect::CommitAt { txn, replica: HERE, csn: Csn(csn) }
}
fn apply(origin: NodeId, txn: TxnId) -> Effect {
    Effect::ApplyShipped { origin: Place::Peer(origin), txn, replica: HERE }
}
fn leave(txn: TxnId) -> Effect {
    Effect::Leave { txn, replica: HERE }
}
fn answered(txn: TxnId, op: u32, csn: u64) -> [Effect; 3] {
    [
        Effect::Release { txn, op: OpId(op), replica: HERE },
        Effect::Acknowledge { txn, op: OpId(0), csn: Csn(csn) },
        Effect::Forget { txn },
    ]
}

#[test]
fn an_update_executes_at_once_and_commits_at_its_place() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.expect(&[execute(T1, 0)]);
    rig.executed(T1, 0, DONE);
    let asks = request(T1, 0, 0, access(&[1], &[2]));
    rig.expect(&[multicast(T1, asks.clone())]);
    rig.delivered(A, Moment::Received, 0, asks.clone());
    rig.expect(&[]);
    rig.delivered(A, Moment::Ordered, 1, asks);
    rig.expect(&[commit(T1, 1)]);
    rig.committed(1);
    rig.expect(&answered(T1, 0, 1));
}

#[test]
fn what_is_to_be_stable_is_certified_before_and_commits_then() {
    let mut rig = rig(Commits::Stable);
    let theirs = request(T9, 0, 0, access(&[], &[2]));
    rig.delivered(B, Moment::Ordered, 1, theirs.clone());
    rig.expect(&[]);
    rig.delivered(B, Moment::Stable, 1, theirs);
    rig.expect(&[apply(B, T9)]);
}

#[test]
fn whoever_read_what_is_written_before_its_place_is_executed_in_place() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.executed(T1, 0, DONE);
    let asks = request(T1, 0, 0, access(&[1], &[2]));
    rig.expect(&[execute(T1, 0), multicast(T1, asks.clone())]);
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.expect(&[apply(B, T9)]);
    rig.delivered(A, Moment::Ordered, 2, asks);
    let again = in_place(T1, access(&[1], &[2]));
    rig.expect(&[leave(T1), multicast(T1, again.clone())]);
    // Whatever comes before it there.
    rig.delivered(B, Moment::Ordered, 3, request(T2, 0, 0, access(&[], &[2])));
    rig.delivered(A, Moment::Ordered, 4, again);
    rig.expect(&[apply(B, T2), execute_at(T1, 1, 4)]);
    rig.applied(B, T9);
    rig.applied(B, T2);
    rig.expect(&[Effect::Forget { txn: T9 }, Effect::Forget { txn: T2 }]);
    rig.committed(4);
    rig.expect(&answered(T1, 1, 4));
}

#[test]
fn what_others_have_executed_in_place_counts_as_written_there_even_if_it_fails() {
    let mut rig = rig(Commits::Stable);
    let theirs = in_place(T9, access(&[1], &[2]));
    rig.delivered(B, Moment::Ordered, 1, theirs.clone());
    rig.expect(&[]);
    rig.delivered(B, Moment::Stable, 1, theirs);
    rig.expect(&[execute_at(T9, 0, 1)]);
    rig.executed(T9, 0, Outcome::Failed);
    rig.expect(&[leave(T9), Effect::Forget { txn: T9 }]);
    // Others may have come to this verdict before they knew.
    rig.delivered(B, Moment::Ordered, 2, request(T2, 0, 0, access(&[2], &[3])));
    rig.delivered(B, Moment::Ordered, 3, request(T1, 0, 0, access(&[1], &[3])));
    rig.delivered(B, Moment::Stable, 3, request(T1, 0, 0, access(&[1], &[3])));
    rig.expect(&[Effect::Forget { txn: T2 }, apply(B, T1)]);
}

/// An update here has read what T9 of another site, which stands at place 1, has written since; and what it sends then.
fn in_vain() -> (Rig, Message) {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.executed(T1, 0, DONE);
    let again = in_place(T1, access(&[1], &[2]));
    rig.expect(&[execute(T1, 0), apply(B, T9), leave(T1), multicast(T1, again.clone())]);
    (rig, again)
}

#[test]
fn what_fails_in_place_is_told_so_and_lets_others_of_its_site_go_on() {
    let (mut rig, again) = in_vain();
    rig.comes(T2, access(&[], &[2]));
    rig.delivered(A, Moment::Ordered, 2, again);
    rig.applied(B, T9);
    rig.expect(&[execute_at(T1, 1, 2), Effect::Forget { txn: T9 }]);
    rig.executed(T1, 1, Outcome::Failed);
    let release = Effect::Release { txn: T1, op: OpId(1), replica: HERE };
    rig.expect(&[release, leave(T1), Effect::Forget { txn: T1 }, execute(T2, 0)]);
}

#[test]
fn of_what_executes_in_place_only_that_execution_counts_and_only_if_it_fails() {
    let (mut rig, again) = in_vain();
    rig.delivered(A, Moment::Ordered, 2, again);
    rig.expect(&[execute_at(T1, 1, 2)]);
    // Of the one that was given up it may be heard late.
    for outcome in [Outcome::Failed, Outcome::Lost { answer_begun: false }, DONE] {
        rig.executed(T1, 0, outcome);
    }
    rig.executed(T1, 1, Outcome::Lost { answer_begun: false });
    rig.expect(&[]);
}

#[test]
fn what_cannot_be_executed_in_place_runs_again_when_what_it_missed_is_here() {
    let (mut rig, _) = in_vain();
    rig.feed(home_lost(T1));
    rig.expect(&[leave(T1)]);
    rig.applied(B, T9);
    rig.expect(&[Effect::Forget { txn: T9 }, execute(T1, 1)]);
}

#[test]
fn a_site_that_begins_anew_answers_what_is_executed_in_place_for_its_client() {
    let mut rig = rig(Commits::Ordered);
    rig.delivered(A, Moment::Ordered, 1, in_place(T1, access(&[1], &[2])));
    rig.expect(&[execute_at(T1, 0, 1)]);
    rig.committed(1);
    rig.expect(&answered(T1, 0, 1));
    assert_eq!(rig.protocol.status().transactions, 0);
}

#[test]
fn who_writes_something_else_does_not_run_again() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[1], &[3])));
    rig.expect(&[execute(T1, 0), apply(B, T9)]);
    rig.executed(T1, 0, DONE);
    rig.expect(&[multicast(T1, request(T1, 0, 0, access(&[1], &[2])))]);
}

#[test]
fn of_two_here_that_write_the_same_one_waits_and_of_two_that_read_it_none() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[3], &[2]));
    rig.comes(T2, access(&[3], &[2]));
    rig.comes(T9, access(&[2, 3], &[4]));
    rig.expect(&[execute(T1, 0), execute(T9, 0)]);
    rig.executed(T1, 0, DONE);
    let asks = request(T1, 0, 0, access(&[3], &[2]));
    rig.delivered(A, Moment::Ordered, 1, asks.clone());
    rig.expect(&[multicast(T1, asks), commit(T1, 1)]);
    // Nor need the reader of what is written ask any more.
    rig.executed(T9, 0, DONE);
    rig.expect(&[leave(T9), multicast(T9, in_place(T9, access(&[2, 3], &[4])))]);
    rig.committed(1);
    let [release, acknowledge, forget] = answered(T1, 0, 1);
    rig.expect(&[release, acknowledge, forget, execute(T2, 0)]);
}

fn home_lost(txn: TxnId) -> Event {
    Event::HomeLost { txn, replica: HERE }
}

#[test]
fn what_was_lost_before_its_commit_is_applied_as_others_writes_are() {
    let mut rig = rig(Commits::Stable);
    let asks = request(T1, 0, 0, access(&[], &[2]));
    rig.comes(T1, access(&[], &[2]));
    rig.executed(T1, 0, DONE);
    rig.expect(&[execute(T1, 0), multicast(T1, asks.clone())]);
    // It must not ask for a second time: it may be let commit yet.
    rig.feed(home_lost(T1));
    rig.delivered(A, Moment::Ordered, 1, asks.clone());
    rig.feed(home_lost(T1));
    rig.expect(&[]);
    rig.delivered(A, Moment::Stable, 1, asks);
    rig.expect(&[apply(A, T1)]);
    rig.feed(home_lost(T1));
    rig.expect(&[]);
    rig.applied(A, T1);
    rig.expect(&answered(T1, 0, 1));
}

#[test]
fn what_is_lost_while_it_is_committed_is_applied_and_what_is_lost_while_it_executes_runs_again() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[], &[2]));
    rig.feed(home_lost(T1));
    rig.expect(&[execute(T1, 0), leave(T1), execute(T1, 1)]);
    rig.executed(T1, 0, DONE);
    rig.expect(&[]);
    rig.executed(T1, 1, DONE);
    let asks = request(T1, 1, 0, access(&[], &[2]));
    rig.delivered(A, Moment::Ordered, 1, asks.clone());
    rig.feed(home_lost(T1));
    rig.expect(&[multicast(T1, asks), commit(T1, 1), apply(A, T1)]);
    rig.applied(A, T1);
    rig.expect(&answered(T1, 1, 1));
}

#[test]
fn what_others_ask_in_vain_is_forgotten() {
    let mut rig = rig(Commits::Ordered);
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[2])));
    rig.delivered(B, Moment::Ordered, 2, request(T2, 0, 0, access(&[2], &[3])));
    rig.expect(&[apply(B, T9), Effect::Forget { txn: T2 }]);
}

#[test]
fn a_failed_update_and_a_query_need_no_place() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[], &[2]));
    rig.executed(T1, 0, Outcome::Failed);
    let release = Effect::Release { txn: T1, op: OpId(0), replica: HERE };
    rig.expect(&[execute(T1, 0), release, leave(T1), Effect::Forget { txn: T1 }]);
    rig.comes(T2, access(&[2], &[]));
    let how = How::Alone;
    rig.expect(&[Effect::Execute { txn: T2, op: OpId(0), replica: HERE, how, hold: false }]);
    rig.executed(T2, 0, DONE);
    rig.expect(&[]);
    assert_eq!(rig.protocol.status().transactions, 0);
}

fn begins(txn: TxnId) -> Event {
    let session = SessionId(0);
    Event::Begin(Begin { txn, session, read_only: false, form: 0, declared: None, stale_ok_ns: None })
}

fn refused(txn: TxnId) -> [Effect; 3] {
    let refuse = Effect::Refuse { txn, op: OpId(0), reason: Refusal::ReadsChanged };
    [leave(txn), refuse, Effect::Forget { txn }]
}

#[test]
fn what_comes_statement_by_statement_asks_in_the_end_and_is_refused_in_the_place_of_running_again() {
    let mut rig = rig(Commits::Ordered);
    rig.feed(begins(T1));
    rig.expect(&[execute(T1, 0)]);
    rig.executed(T1, 0, Outcome::Done { returned: access(&[1], &[2]).to_vec() });
    let asks = request(T1, 0, 0, access(&[1], &[2]));
    rig.expect(&[multicast(T1, asks.clone())]);
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.delivered(A, Moment::Ordered, 2, asks);
    let [leave, refuse, forget] = refused(T1);
    rig.expect(&[apply(B, T9), leave, refuse, forget]);
    // Nor does it ask if it is known by then that it was in vain.
    rig.feed(begins(T2));
    rig.delivered(B, Moment::Ordered, 3, request(T9, 0, 0, access(&[], &[4])));
    rig.expect(&[execute(T2, 0), apply(B, T9)]);
    rig.executed(T2, 0, Outcome::Done { returned: access(&[4], &[2]).to_vec() });
    rig.expect(&refused(T2));
}

#[test]
fn what_comes_statement_by_statement_and_wrote_nothing_needs_no_place_whatever_was_written_meanwhile() {
    let mut rig = rig(Commits::Ordered);
    rig.feed(begins(T1));
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.expect(&[execute(T1, 0), apply(B, T9)]);
    rig.executed(T1, 0, Outcome::Done { returned: access(&[1], &[]).to_vec() });
    let finish = Effect::Finish { txn: T1, op: OpId(0), replica: Some(HERE) };
    rig.expect(&[finish, Effect::Forget { txn: T1 }]);
}

#[test]
fn what_comes_statement_by_statement_is_refused_when_its_home_is_lost_and_applied_if_it_may_commit_by_then() {
    let mut rig = rig(Commits::Stable);
    rig.feed(begins(T1));
    rig.feed(home_lost(T1));
    let [leave, refuse, forget] = refused(T1);
    rig.expect(&[execute(T1, 0), leave, refuse, forget]);
    rig.feed(begins(T2));
    rig.executed(T2, 0, Outcome::Done { returned: access(&[], &[2]).to_vec() });
    let asks = request(T2, 0, 0, access(&[], &[2]));
    rig.delivered(A, Moment::Ordered, 1, asks.clone());
    rig.feed(home_lost(T2));
    rig.delivered(A, Moment::Stable, 1, asks.clone());
    rig.expect(&[execute(T2, 0), multicast(T2, asks), apply(A, T2)]);
}

#[test]
fn a_snapshot_is_known_to_be_no_later_than_what_no_failure_can_lose() {
    let mut rig = rig(Commits::Stable);
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.delivered(B, Moment::Stable, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.applied(B, T9);
    // Another update may come to stand there in the end.
    rig.delivered(B, Moment::Ordered, 2, request(T2, 0, 0, access(&[1], &[3])));
    rig.expect(&[apply(B, T9), Effect::Forget { txn: T9 }, Effect::Forget { txn: T2 }]);
    rig.comes(T1, access(&[], &[3]));
    rig.executed(T1, 0, DONE);
    rig.expect(&[execute(T1, 0), multicast(T1, request(T1, 0, 1, access(&[], &[3])))]);
}

/// What a site says of a random update that stands at a place: true if it may commit.
fn verdict(protocol: &mut Certified, place: u64, message: &Message) -> bool {
    let mut effects = Vec::new();
    for moment in [Moment::Ordered, Moment::Stable] {
        let message = AnyMessage::Certified(message.clone());
        let event = Event::Delivered { from: B, moment, place: Csn(place), message };
        protocol.handle(Place::Peer(A), Instant(0), event, &mut effects);
    }
    effects.iter().any(|effect| matches!(effect, Effect::ApplyShipped { .. } | Effect::ExecuteAt { .. }))
}

#[test]
fn a_site_that_begins_anew_comes_to_the_same_verdicts() {
    const BACK: u64 = 20;
    let mut state = 88_172_645_463_325_252_u64;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut rejected, mut known) = (0, Vec::new());
    let mut through = Certified::remembering(BACK, Commits::Stable, 2);
    let mut anew: Vec<Certified> = Vec::new();
    for place in 1..=600_u64 {
        let columns = |draw: &mut dyn FnMut(u64) -> u64| match draw(3) {
            0 => ColumnSet::ALL,
            nth => [ColumnId(nth as u16)].into_iter().collect(),
        };
        let modes = [Mode::Shared, Mode::Insert, Mode::NoKeyExclusive, Mode::Exclusive];
        let access: AccessSet = (0..1 + draw(3))
            .map(|_| {
                let item = match draw(3) {
                    0 => Item::table(TableId(1 + draw(3))),
                    _ => Item::rows(TableId(1 + draw(3)), [(ColumnId(1), ValueHash(draw(4)))]),
                };
                Access { item, mode: modes[draw(4) as usize], columns: columns(&mut draw) }
            })
            .collect();
        let snapshot = (place - 1).saturating_sub(draw(BACK + 4));
        let txn = TxnId(place);
        let message = match draw(8) {
            0 => in_place(txn, access.clone()),
            _ => request(txn, 0, snapshot, access.clone()),
        };
        let commits = verdict(&mut through, place, &message);
        rejected += u32::from(!commits);
        for one in &mut anew {
            assert_eq!(verdict(one, place, &message), commits, "{message:?} at {place}");
        }
        if commits {
            known.push((Csn(place), access));
        }
        if place % 60 == 0 {
            let mut one = Certified::remembering(BACK, Commits::Stable, 2);
            // As many as are needed.
            let enough = known.iter().filter(|(at, _)| at.0 > place - BACK);
            one.resume(A, Csn(place), enough.cloned());
            anew.push(one);
        }
    }
    assert!((100..500).contains(&rejected), "{rejected}");
}

#[test]
fn what_may_not_commit_is_given_up_when_that_is_certain() {
    let mut rig = rig(Commits::Stable);
    rig.feed(begins(T1));
    rig.executed(T1, 0, Outcome::Done { returned: access(&[1], &[2]).to_vec() });
    let asks = request(T1, 0, 0, access(&[1], &[2]));
    let theirs = request(T9, 0, 0, access(&[], &[1]));
    rig.expect(&[execute(T1, 0), multicast(T1, asks.clone())]);
    rig.delivered(B, Moment::Ordered, 1, theirs.clone());
    rig.delivered(A, Moment::Ordered, 2, asks.clone());
    // Both places may be lost, and it may come to stand where it commits.
    rig.expect(&[]);
    rig.delivered(B, Moment::Stable, 1, theirs);
    rig.expect(&[apply(B, T9)]);
    rig.delivered(A, Moment::Stable, 2, asks);
    rig.expect(&refused(T1));
    // So it is with one of which a site that has begun anew knows nothing else.
    let before = request(T2, 0, 0, access(&[1], &[3]));
    rig.delivered(A, Moment::Ordered, 3, before.clone());
    rig.expect(&[]);
    rig.delivered(A, Moment::Stable, 3, before);
    rig.expect(&[Effect::Forget { txn: T2 }]);
}

#[test]
fn an_execution_that_had_to_wait_sees_what_is_committed_when_it_begins() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.applied(B, T9);
    rig.feed(Event::Opening { txn: T1 });
    rig.executed(T1, 0, DONE);
    let asks = request(T1, 0, 1, access(&[1], &[2]));
    rig.expect(&[execute(T1, 0), apply(B, T9), Effect::Forget { txn: T9 }, multicast(T1, asks)]);
}

#[test]
fn what_needs_something_that_is_ordered_and_not_committed_here_executes_after_that() {
    let mut rig = rig(Commits::Ordered);
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.comes(T1, access(&[1], &[2]));
    rig.comes(T2, access(&[3], &[4]));
    rig.expect(&[apply(B, T9), execute(T2, 0)]);
    rig.applied(B, T9);
    rig.expect(&[Effect::Forget { txn: T9 }, execute(T1, 0)]);
}

#[test]
fn an_execution_that_had_to_wait_is_put_off_where_it_would_be_in_vain() {
    let mut rig = rig(Commits::Ordered);
    rig.comes(T1, access(&[1], &[2]));
    rig.delivered(B, Moment::Ordered, 1, request(T9, 0, 0, access(&[], &[1])));
    rig.feed(Event::Opening { txn: T1 });
    rig.expect(&[execute(T1, 0), apply(B, T9), leave(T1)]);
    rig.applied(B, T9);
    rig.expect(&[Effect::Forget { txn: T9 }, execute(T1, 1)]);
}
