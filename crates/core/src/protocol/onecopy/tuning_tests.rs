//! What is done only for speed: turns, the common home, lingering.

use std::collections::VecDeque;

use smallvec::smallvec;

use super::*;
use crate::ids::{ClassId, NodeId, SessionId};
use crate::item::{ColumnId, TableId, ValueHash};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
const OP0: OpId = OpId(0);
const LINGER_NS: u64 = 1_000;

struct Rig {
    protocol: Onecopy,
    effects: Vec<Effect>,
    now: Instant,
}

/// Two replicas, both up; statements never seen are expected to take 200 us.
fn rig(change: impl FnOnce(&mut Tuning)) -> Rig {
    let mut tuning = Tuning { linger_ns: LINGER_NS, linger_decisions: 3, ..Tuning::default() };
    change(&mut tuning);
    let protocol = Onecopy::tuned(2, Csn(0), tuning);
    let mut rig = Rig { protocol, effects: Vec::new(), now: Instant(0) };
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.on(Event::ReplicaUp { replica: R1, applied: Csn(0) });
    rig
}

impl Rig {
    fn on(&mut self, event: Event) {
        self.protocol.handle(Place::Scheduler(NodeId(0)), self.now, event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    /// Where a statement of its own transaction is sent.
    fn place(&mut self, txn: u64, kind: StatementKind, key: i64) -> ReplicaId {
        let begin = Begin {
            txn: TxnId(txn),
            session: SessionId(txn),
            read_only: false,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        let mode = if kind == StatementKind::Read { Mode::Shared } else { Mode::NoKeyExclusive };
        let item = Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(key))]);
        let statement = Statement::new(ClassId(1), kind, smallvec![Access::new(item, mode)]);
        self.on(Event::Autocommit { begin, statement });
        match self.effects.pop() {
            Some(Effect::Execute { replica, .. }) => replica,
            other => panic!("not placed: {other:?}"),
        }
    }
    fn done(&mut self, txn: u64, replica: ReplicaId) {
        self.done_after(txn, replica, 200_000);
    }
    fn done_after(&mut self, txn: u64, replica: ReplicaId, elapsed_ns: u64) {
        let outcome = Outcome::Done { returned: Vec::new() };
        self.on(Event::Executed { txn: TxnId(txn), op: OP0, replica, outcome, elapsed_ns });
    }
    /// Executes a write at R0, makes it durable and has its home commit it.
    fn commit_at_r0(&mut self, csn: u64) {
        assert_eq!(self.place(csn, StatementKind::Write, csn as i64), R0);
        self.done(csn, R0);
        self.on(Event::Durable { csn: Csn(csn) });
        self.on(Event::Applied { replica: R0, csn: Csn(csn) });
    }
    fn applies(&mut self) -> Vec<Effect> {
        self.effects
            .drain(..)
            .filter(|e| matches!(e, Effect::Apply { .. } | Effect::SetTimer { .. }))
            .collect()
    }
}

fn apply(replica: ReplicaId, from: u64, to: u64) -> Effect {
    Effect::Apply { replica, from: Csn(from), to: Csn(to) }
}
fn timer(replica: ReplicaId, at: u64) -> Effect {
    Effect::SetTimer { timer: u64::from(replica.0), at: Instant(at) }
}

#[test]
fn reads_stay_together_until_their_replica_has_much_more_to_do() {
    let mut rig = rig(|tuning| tuning.turn_slack_ns = Some(300_000.0));
    let placed: Vec<_> = (1..=4).map(|txn| rig.place(txn, StatementKind::Read, 1)).collect();
    // 200 us each: the first two are within the slack, the third is not.
    assert_eq!(placed, [R0, R0, R1, R0]);
}

/// Eight clients keep a replica busy that needs 100 us for a statement, so that each waits 800: that is 800 us of work, which is
/// within the slack, and not 6.4 ms.
#[test]
fn waiting_for_others_at_a_replica_is_not_taken_for_work() {
    for kind in [StatementKind::Read, StatementKind::LockingRead] {
        let mut rig = rig(|tuning| {
            tuning.turn_slack_ns = Some(1_000_000.0);
            tuning.home_slack_ns = Some(1_000_000.0);
        });
        let mut outstanding: VecDeque<_> =
            (1..=8).map(|txn| (txn, rig.place(txn, kind, txn as i64))).collect();
        let mut elsewhere = 0;
        for txn in 9..=1_000 {
            let (first, replica) = outstanding.pop_front().unwrap();
            let beside = outstanding.iter().filter(|(_, other)| *other == replica).count() as u64;
            rig.done_after(first, replica, 100_000 * (beside + 1));
            rig.on(Event::Rollback { txn: TxnId(first) });
            rig.effects.clear();
            let placed = rig.place(txn, kind, txn as i64);
            elsewhere += usize::from(txn > 100 && placed != R0);
            outstanding.push_back((txn, placed));
        }
        let work_ns = rig.protocol.status().replicas[0].outstanding_ns;
        assert_eq!((elsewhere, work_ns.round()), (0, 800_000.0), "{kind:?}");
    }
}

#[test]
fn replicas_take_turns_so_that_each_serves_its_share_of_the_reads() {
    let mut rig = rig(|tuning| tuning.turn_ns = 1_000);
    let mut txn = 0;
    let mut placed = |rig: &mut Rig, at: u64| {
        rig.now = Instant(at);
        txn += 1;
        let replica = rig.place(txn, StatementKind::Read, 1);
        rig.done(txn, replica);
        replica
    };
    let close_together: Vec<_> =
        [0, 400, 999, 1_000, 1_500, 1_999, 2_000].map(|at| placed(&mut rig, at)).into();
    assert_eq!(close_together, [R0, R0, R0, R1, R1, R1, R0]);
    let far_apart: Vec<_> = [5_000, 9_000, 13_000].map(|at| placed(&mut rig, at)).into();
    assert_eq!(far_apart, [R1, R0, R1]);
}

/// Reads that come every tenth of the shortest turn.
#[test]
fn turns_grow_while_reads_keep_coming_and_are_short_after_a_pause() {
    let mut rig = rig(|tuning| (tuning.turn_ns, tuning.turn_max_ns) = (1_000, 20_000));
    let mut served = [0_u64; 2];
    let mut turns = vec![0_u64];
    let mut last = None;
    for txn in 1..=5_000 {
        let replica = rig.place(txn, StatementKind::Read, 1);
        rig.done(txn, replica);
        served[usize::from(replica.0)] += 1;
        if last.replace(replica).is_some_and(|last| last != replica) {
            turns.push(0);
        }
        *turns.last_mut().unwrap() += 1;
        let least = served.iter().min().unwrap();
        assert!(txn < 120 || least * 8 >= txn * 3, "{served:?} of {txn}");
        rig.now = Instant(rig.now.0 + 100);
    }
    assert_eq!((&turns[..4], turns.iter().max()), (&[10, 10, 10, 10][..], Some(&200)));

    // After a pause they are short again.
    rig.now = Instant(rig.now.0 + 1_000);
    let places: Vec<_> = (5_001..=5_040)
        .map(|txn| {
            let replica = rig.place(txn, StatementKind::Read, 1);
            rig.done(txn, replica);
            rig.now = Instant(rig.now.0 + 100);
            replica
        })
        .collect();
    let changes = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((3..=4).contains(&changes), "{changes}");
}

#[test]
fn transactions_find_their_home_where_the_last_one_did_until_it_has_much_more_to_do() {
    let mut rig = rig(|tuning| tuning.home_slack_ns = Some(300_000.0));
    let placed: Vec<_> = (1..=4).map(|txn| rig.place(txn, StatementKind::Write, txn as i64)).collect();
    assert_eq!(placed, [R0, R0, R1, R0]);
}

/// A decision takes R1 20 ms, and it has one to apply: R0 is preferred up to that and the slack.
#[test]
fn what_a_replica_has_still_to_apply_counts_when_a_home_is_chosen() {
    let mut rig = rig(|tuning| (tuning.home_slack_ns, tuning.linger_decisions) = (Some(300_000.0), 1));
    for csn in 1..=200 {
        rig.commit_at_r0(csn);
        rig.now = Instant(rig.now.0 + 20_000_000);
        rig.on(Event::Applied { replica: R1, csn: Csn(csn) });
    }
    rig.commit_at_r0(201);
    rig.effects.clear();
    rig.protocol.costs.preset(ClassId(1), 200_000);
    let behind: Vec<_> = (301..=403).map(|txn| rig.place(txn, StatementKind::Write, txn as i64)).collect();
    assert_eq!(behind.iter().position(|at| *at == R1), Some(102), "20.3 ms at 0.2 ms each");

    rig.on(Event::Applied { replica: R1, csn: Csn(201) });
    rig.effects.clear();
    assert_eq!(rig.place(500, StatementKind::Write, 500), R1);
}

#[test]
fn a_replica_that_stands_still_with_one_decision_is_no_home() {
    let mut rig = rig(|tuning| (tuning.home_slack_ns, tuning.linger_decisions) = (Some(300_000.0), 1));
    rig.commit_at_r0(1);
    rig.effects.clear();
    rig.protocol.costs.preset(ClassId(1), 200_000);
    rig.now = Instant(1_000_000_000);
    let placed: Vec<_> = (101..=200).map(|txn| rig.place(txn, StatementKind::Write, txn as i64)).collect();
    assert_eq!(placed, [R0; 100]);
}

#[test]
fn a_home_whose_commit_stands_still_gets_no_more() {
    let mut rig = rig(|tuning| (tuning.home_slack_ns, tuning.linger_decisions) = (Some(300_000.0), 1));
    assert_eq!(rig.place(1, StatementKind::Write, 1), R0);
    rig.done(1, R0);
    rig.on(Event::Durable { csn: Csn(1) });
    rig.on(Event::Applied { replica: R1, csn: Csn(1) });
    rig.now = Instant(1_000_000_000);
    rig.effects.clear();
    let placed: Vec<_> = (101..=200).map(|txn| rig.place(txn, StatementKind::Write, txn as i64)).collect();
    assert_eq!(placed, [R1; 100]);
}

#[test]
fn with_no_slack_only_what_is_outstanding_counts() {
    let mut rig = rig(|tuning| (tuning.home_slack_ns, tuning.linger_decisions) = (None, 1));
    rig.commit_at_r0(1);
    rig.effects.clear();
    rig.now = Instant(1_000_000_000);
    let placed: Vec<_> = (101..=104).map(|txn| rig.place(txn, StatementKind::Write, txn as i64)).collect();
    assert_eq!(placed, [R1, R0, R1, R0]);
}

#[test]
fn the_common_home_is_elsewhere_after_its_replica_was_lost() {
    let mut rig = rig(|_| {});
    assert_eq!(rig.place(1, StatementKind::Write, 1), R0);
    rig.on(Event::ReplicaDown { replica: R0 });
    rig.effects.clear();
    assert_eq!(rig.place(2, StatementKind::Write, 2), R1);
    rig.on(Event::ReplicaUp { replica: R0, applied: Csn(0) });
    rig.effects.clear();
    assert_eq!(rig.place(3, StatementKind::Write, 3), R1);
}

#[test]
fn decisions_are_applied_together_when_the_time_is_over() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    assert_eq!(rig.applies(), [timer(R1, LINGER_NS)]);
    rig.commit_at_r0(2);
    assert_eq!(rig.applies(), []);
    rig.now = Instant(LINGER_NS);
    rig.on(Event::Timer { timer: 1 });
    rig.expect(&[apply(R1, 1, 2)]);
}

#[test]
fn decisions_are_applied_when_there_are_enough() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    rig.commit_at_r0(2);
    rig.commit_at_r0(3);
    assert_eq!(rig.applies(), [timer(R1, LINGER_NS), apply(R1, 1, 3)]);
}

#[test]
fn a_read_that_could_not_use_a_lingering_replica_ends_its_lingering() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    rig.effects.clear();
    assert_eq!(rig.place(2, StatementKind::Read, 7), R0);
    assert_eq!(rig.applies(), [], "this read needs nothing that is missing there");
    assert_eq!(rig.place(3, StatementKind::Read, 1), R0);
    assert_eq!(rig.applies(), [apply(R1, 1, 1)]);
}

#[test]
fn a_write_that_finds_a_home_leaves_the_others_to_their_lingering() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    rig.effects.clear();
    assert_eq!(rig.place(2, StatementKind::Write, 1), R0);
    assert_eq!(rig.applies(), []);
}

#[test]
fn whoever_waits_outside_for_a_lingering_replica_ends_its_lingering() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    rig.effects.clear();
    rig.on(Event::Wanted { replica: R0, csn: Csn(1) });
    rig.expect(&[]);
    rig.on(Event::Wanted { replica: R1, csn: Csn(1) });
    rig.expect(&[apply(R1, 1, 1)]);
    rig.on(Event::Wanted { replica: R1, csn: Csn(1) });
    rig.expect(&[]);
}

#[test]
fn a_commit_that_is_wanted_before_it_is_durable_is_applied_without_lingering() {
    let mut rig = rig(|_| {});
    assert_eq!(rig.place(1, StatementKind::Write, 1), R0);
    rig.done(1, R0);
    rig.effects.clear();
    rig.on(Event::Wanted { replica: R1, csn: Csn(1) });
    rig.expect(&[]);
    rig.on(Event::Durable { csn: Csn(1) });
    assert_eq!(rig.applies(), [apply(R1, 1, 1)]);
}

#[test]
fn what_is_wanted_beyond_the_last_decision_hurries_nothing_later() {
    let mut rig = rig(|_| {});
    rig.on(Event::Wanted { replica: R1, csn: Csn(1_000) });
    rig.commit_at_r0(1);
    assert_eq!(rig.applies(), [timer(R1, LINGER_NS)]);
}

#[test]
fn a_replica_that_is_down_is_not_asked_for_what_is_wanted_of_it() {
    let mut rig = rig(|_| {});
    rig.commit_at_r0(1);
    rig.on(Event::ReplicaDown { replica: R1 });
    rig.effects.clear();
    rig.on(Event::Wanted { replica: R1, csn: Csn(1) });
    rig.expect(&[]);
}

#[test]
fn a_commit_whose_home_is_lost_is_applied_elsewhere_at_once() {
    let mut rig = rig(|_| {});
    assert_eq!(rig.place(1, StatementKind::Write, 1), R0);
    rig.done(1, R0);
    rig.on(Event::Durable { csn: Csn(1) });
    assert_eq!(rig.applies(), [timer(R1, LINGER_NS)]);
    rig.on(Event::HomeLost { txn: TxnId(1), replica: R0 });
    assert_eq!(rig.applies(), [apply(R0, 1, 1), apply(R1, 1, 1)]);
}

#[test]
fn an_open_transaction_at_its_home_waits_for_nothing_before_it() {
    let mut rig = rig(|tuning| tuning.home_slack_ns = Some(0.0));
    assert_eq!(rig.place(1, StatementKind::Write, 1), R0);
    assert_eq!(rig.place(2, StatementKind::Write, 2), R1);
    rig.done(1, R0);
    rig.done(2, R1);
    rig.on(Event::Durable { csn: Csn(2) });
    assert_eq!(rig.applies(), [apply(R1, 1, 1)]);
}
