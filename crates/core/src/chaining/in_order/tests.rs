//! Whole lists of effects, and runs in which replicas die and come back at random.

use std::collections::BTreeMap;

use super::*;
use crate::ids::NodeId;
use crate::item::{ColumnId, TableId, ValueHash};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const OP: OpId = OpId(0);
const HOME: How = How::Home { open: true };

struct Rig {
    protocol: InOrder,
    effects: Vec<Effect>,
}

/// So many replicas, all up, at the start of an empty log.
fn rig(replicas: u16) -> Rig {
    let protocol =
        InOrder::new("chains", Order::OfConflicts, Foresight::OfWrites, usize::from(replicas), Csn(0));
    let mut rig = Rig { protocol, effects: Vec::new() };
    (0..replicas).rev().for_each(|id| rig.on(Event::ReplicaUp { replica: ReplicaId(id), applied: Csn(0) }));
    rig.expect(&[]);
    rig
}

fn row(key: i64) -> Access {
    Access::new(Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(key))]), Mode::NoKeyExclusive)
}
fn begin(txn: u64, session: u64) -> Begin {
    Begin {
        txn: TxnId(txn),
        session: SessionId(session),
        read_only: false,
        form: 0,
        declared: None,
        stale_ok_ns: None,
    }
}
fn statement(kind: StatementKind, rows: &[i64]) -> Statement {
    Statement::new(ClassId(1), kind, rows.iter().map(|key| row(*key)).collect())
}

impl Rig {
    fn on(&mut self, event: Event) {
        self.protocol.handle(Place::Scheduler(NodeId(0)), Instant(0), event, &mut self.effects);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    /// A whole transaction that may write these rows, and its first statement.
    fn whole(&mut self, txn: u64, rows: &[i64]) {
        let declared = Some(rows.iter().map(|key| row(*key)).collect());
        self.on(Event::Begin(Begin { declared, ..begin(txn, txn) }));
        self.next(txn, 0, StatementKind::Write);
    }
    fn next(&mut self, txn: u64, op: u32, kind: StatementKind) {
        self.on(Event::Statement { txn: TxnId(txn), op: OpId(op), statement: statement(kind, &[]) });
    }
    fn read(&mut self, txn: u64, session: u64) {
        let statement = statement(StatementKind::Read, &[]);
        self.on(Event::Autocommit { begin: begin(txn, session), statement });
    }
    fn comes_of(&mut self, txn: u64, op: u32, replica: ReplicaId, outcome: Outcome) {
        self.on(Event::Executed { txn: TxnId(txn), op: OpId(op), replica, outcome, elapsed_ns: 1 });
    }
    fn done(&mut self, txn: u64, op: u32, replica: ReplicaId) {
        self.comes_of(txn, op, replica, Outcome::Done { returned: Vec::new() });
    }
    fn commit(&mut self, txn: u64) {
        self.on(Event::Commit { txn: TxnId(txn), op: OpId(9) });
    }
    fn durable(&mut self, csn: u64) {
        self.on(Event::Durable { csn: Csn(csn) });
    }
    fn applied(&mut self, replica: ReplicaId, csn: u64) {
        self.on(Event::Applied { replica, csn: Csn(csn) });
    }
    fn down(&mut self, replica: ReplicaId) {
        self.on(Event::ReplicaDown { replica });
    }
    fn up(&mut self, replica: ReplicaId, applied: u64) {
        self.on(Event::ReplicaUp { replica, applied: Csn(applied) });
    }
    /// Executes one that was just given to a replica, up to its decision.
    fn decide(&mut self, txn: u64, at: ReplicaId, csn: u64) {
        self.done(txn, 0, at);
        self.commit(txn);
        self.durable(csn);
        self.effects.clear();
    }
}

fn execute(txn: u64, op: u32, replica: ReplicaId, how: How) -> Effect {
    Effect::Execute { txn: TxnId(txn), op: OpId(op), replica, how, hold: false }
}
fn append(txn: u64, csn: u64) -> Effect {
    Effect::Append { csn: Csn(csn), decision: Decision::Commit(TxnId(txn)) }
}
fn commit_at(txn: u64, replica: ReplicaId, csn: u64) -> Effect {
    Effect::CommitAt { txn: TxnId(txn), replica, csn: Csn(csn) }
}
fn apply(replica: ReplicaId, from: u64, to: u64) -> Effect {
    Effect::Apply { replica, from: Csn(from), to: Csn(to) }
}
fn lingers(replica: ReplicaId) -> Effect {
    Effect::SetTimer { timer: u64::from(replica.0), at: Instant(Tuning::default().linger_ns) }
}
fn acknowledge(txn: u64, csn: u64) -> Effect {
    Effect::Acknowledge { txn: TxnId(txn), op: OpId(9), csn: Csn(csn) }
}
fn refuse(txn: u64, op: OpId, reason: Refusal) -> Effect {
    Effect::Refuse { txn: TxnId(txn), op, reason }
}
fn leave(txn: u64, replica: ReplicaId) -> Effect {
    Effect::Leave { txn: TxnId(txn), replica }
}
const LOST: Outcome = Outcome::Lost { answer_begun: false };

#[test]
fn what_does_not_conflict_runs_at_different_replicas_and_what_does_behind_the_earlier_one() {
    let mut rig = rig(3);
    rig.whole(1, &[1]);
    rig.whole(2, &[2]);
    rig.whole(3, &[1]);
    rig.expect(&[execute(1, 0, R0, HOME), execute(2, 0, R1, HOME)]);
    rig.done(1, 0, R0);
    rig.next(1, 1, StatementKind::Write);
    rig.expect(&[execute(1, 1, R0, How::Home { open: false })]);
    rig.done(1, 1, R0);
    rig.commit(1);
    rig.expect(&[append(1, 1)]);
    rig.durable(1);
    rig.expect(&[commit_at(1, R0, 1), lingers(R2)]);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(1, 1), execute(3, 0, R0, HOME)]);
}

#[test]
fn nothing_is_committed_where_an_update_runs_until_it_is_decided() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.whole(2, &[2]);
    rig.done(1, 0, R0);
    rig.commit(1);
    rig.effects.clear();
    rig.durable(1);
    // R1 runs the other one: it neither applies nor lingers.
    rig.expect(&[commit_at(1, R0, 1)]);
    rig.done(2, 0, R1);
    rig.commit(2);
    rig.expect(&[append(2, 2)]);
    rig.durable(2);
    // Before it commits there, what is before it is applied.
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(1, 1), commit_at(2, R1, 2)]);
}

#[test]
fn an_update_waits_until_its_replica_contains_predecessors_of_other_chains() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.whole(2, &[2]);
    rig.whole(3, &[1, 2]);
    rig.expect(&[execute(1, 0, R0, HOME), execute(2, 0, R1, HOME)]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    // It is in R0's chain, and the other predecessor still runs.
    rig.expect(&[acknowledge(1, 1)]);
    rig.done(2, 0, R1);
    rig.commit(2);
    rig.effects.clear();
    rig.durable(2);
    // What it waits for is not put off.
    rig.expect(&[apply(R0, 2, 2), apply(R1, 1, 1)]);
    rig.applied(R0, 2);
    rig.expect(&[acknowledge(2, 2), execute(3, 0, R0, HOME)]);
}

#[test]
fn reads_run_at_once_anywhere_but_not_where_their_own_session_has_written_more() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.effects.clear();
    rig.read(5, 5);
    rig.expect(&[execute(5, 0, R0, How::Alone)]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    rig.effects.clear();
    for read in 6..20 {
        rig.read(read, 1);
        rig.expect(&[execute(read, 0, R0, How::Alone)]);
        rig.done(read, 0, R0);
    }
}

#[test]
fn a_transaction_that_only_reads_is_one_snapshot_and_in_no_chain() {
    let mut rig = rig(1);
    rig.whole(1, &[1]);
    rig.effects.clear();
    rig.on(Event::Begin(Begin { read_only: true, ..begin(2, 2) }));
    rig.next(2, 0, StatementKind::Read);
    rig.expect(&[execute(2, 0, R0, How::Snapshot { open: true })]);
    rig.done(2, 0, R0);
    rig.commit(2);
    rig.expect(&[Effect::Finish { txn: TxnId(2), op: OpId(9), replica: Some(R0) }]);
}

#[test]
fn one_of_which_nothing_is_known_conflicts_with_all() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.on(Event::Begin(begin(2, 2)));
    rig.next(2, 0, StatementKind::Read);
    rig.expect(&[execute(1, 0, R0, HOME)]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(1, 1), execute(2, 0, R0, HOME)]);
    rig.done(2, 0, R0);
    rig.commit(2);
    rig.expect(&[Effect::Finish { txn: TxnId(2), op: OpId(9), replica: Some(R0) }]);
}

#[test]
fn where_a_replica_dies_what_waited_there_waits_elsewhere_and_what_ran_is_refused_to_come_again() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.whole(2, &[1]);
    rig.expect(&[execute(1, 0, R0, HOME)]);
    rig.down(R0);
    rig.expect(&[execute(2, 0, R1, HOME)]);
    rig.comes_of(1, 0, R0, LOST);
    rig.expect(&[leave(1, R0), refuse(1, OP, Refusal::HomeLost)]);
    rig.whole(3, &[1]);
    rig.expect(&[]);
}

#[test]
fn whoever_is_behind_one_that_was_refused_waits_for_those_before_it() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    rig.whole(2, &[1]);
    rig.expect(&[acknowledge(1, 1), execute(2, 0, R0, HOME)]);
    rig.down(R0);
    rig.comes_of(2, 0, R0, LOST);
    rig.expect(&[leave(2, R0), refuse(2, OP, Refusal::HomeLost)]);
    // It names the one that was refused, which had taken the place of the first.
    rig.whole(3, &[1]);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[execute(3, 0, R1, HOME)]);
}

#[test]
fn a_replica_that_leaves_is_given_nothing_and_one_that_joins_is() {
    let mut rig = rig(2);
    rig.on(Event::ReplicaLeaving { replica: R0 });
    rig.whole(1, &[1]);
    rig.expect(&[execute(1, 0, R1, HOME)]);
    rig.on(Event::ReplicaRemoved { replica: R0 });
    rig.on(Event::ReplicaAdded { replica: R2 });
    rig.up(R2, 0);
    rig.whole(2, &[2]);
    rig.expect(&[execute(2, 0, R2, HOME)]);
}

#[test]
fn what_was_decided_is_acknowledged_by_the_next_replica_if_its_own_dies() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.done(1, 0, R0);
    rig.commit(1);
    rig.effects.clear();
    rig.down(R0);
    rig.expect(&[leave(1, R0)]);
    rig.whole(2, &[1]);
    rig.expect(&[]);
    rig.durable(1);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.applied(R1, 1);
    rig.expect(&[acknowledge(1, 1), execute(2, 0, R1, HOME)]);
}

#[test]
fn a_replica_that_returns_works_when_it_contains_all_that_was_decided() {
    let mut rig = rig(2);
    rig.down(R1);
    rig.whole(1, &[1]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    rig.effects.clear();
    rig.up(R1, 0);
    rig.expect(&[apply(R1, 1, 1)]);
    rig.whole(2, &[2]);
    rig.whole(3, &[3]);
    rig.expect(&[execute(2, 0, R0, HOME)]);
    rig.applied(R1, 1);
    rig.expect(&[execute(3, 0, R1, HOME)]);
}

#[test]
fn an_update_that_is_given_up_while_it_waits_keeps_its_place_until_its_turn() {
    let mut rig = rig(1);
    rig.whole(1, &[1]);
    rig.whole(2, &[1]);
    rig.whole(3, &[1]);
    rig.effects.clear();
    rig.on(Event::Cancel { txn: TxnId(2), op: OP });
    rig.expect(&[refuse(2, OP, Refusal::Cancelled)]);
    rig.decide(1, R0, 1);
    rig.applied(R0, 1);
    rig.expect(&[acknowledge(1, 1), execute(3, 0, R0, HOME)]);
}

#[test]
fn a_change_of_definitions_waits_for_snapshots_and_new_ones_for_it() {
    let mut rig = rig(2);
    rig.on(Event::Begin(Begin { read_only: true, ..begin(1, 1) }));
    rig.next(1, 0, StatementKind::Read);
    rig.done(1, 0, R0);
    rig.effects.clear();
    let everything = Access::new(Item::everything(), Mode::Exclusive);
    let change = Statement::new(ClassId(1), StatementKind::Schema, [everything].into_iter().collect());
    rig.on(Event::Autocommit { begin: begin(2, 2), statement: change });
    rig.on(Event::Begin(Begin { read_only: true, ..begin(3, 3) }));
    rig.next(3, 0, StatementKind::Read);
    rig.expect(&[]);
    rig.commit(1);
    let held = Effect::Execute { txn: TxnId(2), op: OP, replica: R0, how: HOME, hold: true };
    rig.expect(&[Effect::Finish { txn: TxnId(1), op: OpId(9), replica: Some(R0) }, held]);
    rig.done(2, 0, R0);
    rig.durable(1);
    rig.effects.clear();
    rig.applied(R0, 1);
    let told = Effect::Acknowledge { txn: TxnId(2), op: OP, csn: Csn(1) };
    rig.expect(&[told, execute(3, 0, R0, How::Snapshot { open: true })]);
}

#[test]
fn a_change_of_definitions_in_the_middle_of_a_transaction_waits_for_snapshots_too() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.done(1, 0, R0);
    rig.on(Event::Begin(Begin { read_only: true, ..begin(2, 2) }));
    rig.next(2, 0, StatementKind::Read);
    rig.effects.clear();
    rig.next(1, 1, StatementKind::Schema);
    rig.expect(&[]);
    rig.done(2, 0, R0);
    rig.commit(2);
    let finish = Effect::Finish { txn: TxnId(2), op: OpId(9), replica: Some(R0) };
    rig.expect(&[finish, execute(1, 1, R0, How::Home { open: false })]);
    // Nobody takes an older snapshot before it is told.
    rig.on(Event::Begin(Begin { read_only: true, ..begin(3, 3) }));
    rig.next(3, 0, StatementKind::Read);
    rig.expect(&[]);
}

#[test]
fn a_change_of_definitions_that_waits_for_snapshots_is_refused_when_its_replica_dies() {
    let mut rig = rig(2);
    rig.whole(1, &[1]);
    rig.done(1, 0, R0);
    rig.on(Event::Begin(Begin { read_only: true, ..begin(2, 2) }));
    rig.next(2, 0, StatementKind::Read);
    rig.next(1, 1, StatementKind::Schema);
    rig.effects.clear();
    rig.down(R0);
    rig.expect(&[leave(1, R0), refuse(1, OpId(1), Refusal::HomeLost)]);
}

/// Numbers by a fixed rule, other ones for each seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A driver whose replicas keep the last update of each row, and die and come back.
struct Driver {
    rig: Rig,
    numbers: Numbers,
    /// What is to be told to the core, in any order but for one replica's commits.
    due: Vec<Event>,
    rows: BTreeMap<u64, Vec<i64>>,
    log: Vec<u64>,
    applied: Vec<u64>,
    up: Vec<bool>,
    /// Where an update runs, and what its replica contained when it began.
    began: BTreeMap<u64, (ReplicaId, u64)>,
    answered: BTreeMap<u64, u32>,
    next: u64,
}

impl Driver {
    fn new(seed: u64) -> Driver {
        Driver {
            rig: rig(3),
            numbers: Numbers(seed * 0x9e37_79b9 + 1),
            due: Vec::new(),
            rows: BTreeMap::new(),
            log: Vec::new(),
            applied: vec![0; 3],
            up: vec![true; 3],
            began: BTreeMap::new(),
            answered: BTreeMap::new(),
            next: 1,
        }
    }

    fn arrive(&mut self) {
        let txn = self.next;
        self.next += 1;
        let count = 1 + self.numbers.below(3);
        let rows: Vec<i64> = (0..count).map(|_| self.numbers.below(6) as i64).collect();
        self.rig.whole(txn, &rows);
        self.rows.insert(txn, rows);
    }

    /// Carries out what the core wants; what follows from that is told later.
    fn carry_out(&mut self) {
        for effect in std::mem::take(&mut self.rig.effects) {
            match effect {
                Effect::Execute { txn, op, replica, how: How::Home { .. }, .. } => {
                    assert!(self.up[usize::from(replica.0)], "it is executed where somebody serves");
                    assert!(!self.began.values().any(|(at, _)| *at == replica), "one at a time");
                    self.began.insert(txn.0, (replica, self.applied[usize::from(replica.0)]));
                    let outcome = Outcome::Done { returned: Vec::new() };
                    self.due.push(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
                }
                Effect::Append { csn, decision: Decision::Commit(txn) } => {
                    self.log.push(txn.0);
                    assert_eq!(csn.0, self.log.len() as u64);
                    self.check_decision(txn.0);
                    self.due.push(Event::Durable { csn });
                }
                Effect::CommitAt { replica, csn, .. } => self.due.push(Event::Applied { replica, csn }),
                Effect::Apply { replica, from, to } => {
                    assert_eq!(from.0, self.applied[usize::from(replica.0)] + 1);
                    self.due.push(Event::Applied { replica, csn: to });
                }
                Effect::Acknowledge { txn, .. } => *self.answered.entry(txn.0).or_default() += 1,
                Effect::Refuse { txn, reason, .. } => {
                    assert_eq!(reason, Refusal::HomeLost);
                    self.began.remove(&txn.0);
                    *self.answered.entry(txn.0).or_default() += 1;
                }
                Effect::SetTimer { timer, .. } => self.due.push(Event::Timer { timer }),
                Effect::Leave { .. } => {}
                other => panic!("not expected here: {other:?}"),
            }
        }
    }

    /// Whoever conflicts and was decided before must have been contained when it began, and nothing was committed there since.
    fn check_decision(&mut self, txn: u64) {
        let (at, contained) = self.began.remove(&txn).expect("it runs");
        assert_eq!(self.applied[usize::from(at.0)], contained, "its statements saw one snapshot");
        let own = &self.rows[&txn];
        for (csn, earlier) in (1..).zip(&self.log[..self.log.len() - 1]) {
            let conflicts = self.rows[earlier].iter().any(|row| own.contains(row));
            assert!(!conflicts || csn <= contained, "{txn} did not see {earlier}");
        }
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::Executed { txn, op, replica, .. } => {
                let (txn, op, replica) = (txn.0, op.0, *replica);
                if !self.up[usize::from(replica.0)] {
                    self.rig.comes_of(txn, op, replica, LOST);
                    return self.carry_out();
                }
                self.rig.on(event);
                self.rig.commit(txn);
            }
            Event::Applied { replica, csn } => {
                let at = usize::from(replica.0);
                if !self.up[at] {
                    return;
                }
                self.applied[at] = csn.0;
                self.rig.on(event);
            }
            _ => self.rig.on(event),
        }
        self.carry_out();
    }

    fn step(&mut self, breaks: bool) {
        match self.numbers.below(if breaks { 12 } else { 8 }) {
            0..=2 if breaks => {
                self.arrive();
                self.carry_out();
            }
            8 => self.die(),
            9..=11 => self.return_one(),
            _ if self.due.is_empty() => {}
            _ => {
                let at = self.numbers.below(self.due.len() as u64) as usize;
                // Of one replica in the order in which it was asked; of the log, too.
                let same = |a: &Event, b: &Event| match (a, b) {
                    (Event::Applied { replica: a, .. }, Event::Applied { replica: b, .. }) => a == b,
                    (Event::Durable { .. }, Event::Durable { .. }) => true,
                    _ => false,
                };
                let first = self.due.iter().position(|due| same(due, &self.due[at])).unwrap_or(at);
                let event = self.due.remove(first);
                self.tell(event);
            }
        }
    }

    fn die(&mut self) {
        let at = self.numbers.below(3) as usize;
        if !self.up[at] {
            return;
        }
        self.up[at] = false;
        let id = ReplicaId(at as u16);
        self.due.retain(|due| !matches!(due, Event::Applied { replica, .. } if *replica == id));
        self.rig.down(id);
        self.carry_out();
    }

    fn return_one(&mut self) {
        // Whoever executed something there hears of the loss before it is used again.
        let lost: Vec<Event> = {
            let up = &self.up;
            let is_lost = |due: &mut Event| match due {
                Event::Executed { replica, .. } => !up[usize::from(replica.0)],
                _ => false,
            };
            self.due.extract_if(.., is_lost).collect()
        };
        lost.into_iter().for_each(|event| self.tell(event));
        let Some(at) = (0..3).find(|at| !self.up[*at]) else { return };
        self.up[at] = true;
        // Its last commits were not flushed.
        self.applied[at] -= self.numbers.below(3).min(self.applied[at]);
        self.rig.up(ReplicaId(at as u16), self.applied[at]);
        self.carry_out();
    }
}

#[test]
fn replicas_that_die_and_come_back_lose_nothing_and_nobody_waits_for_ever() {
    for seed in 1..150 {
        let mut driver = Driver::new(seed);
        (0..600).for_each(|_| driver.step(true));
        (0..3).for_each(|_| driver.return_one());
        for _ in 0..20_000 {
            if driver.due.is_empty() {
                break;
            }
            driver.step(false);
        }
        let arrived: Vec<u64> = (1..driver.next).collect();
        let answered: Vec<u64> = driver.answered.keys().copied().collect();
        assert_eq!(answered, arrived, "seed {seed}: everybody is answered");
        assert!(driver.answered.values().all(|times| *times == 1), "seed {seed}: once");
        let end = driver.log.len() as u64;
        assert_eq!(driver.applied, [end; 3], "seed {seed}: all contain everything");
        let status = driver.rig.protocol.status();
        assert_eq!((status.transactions, status.awaiting_worker), (0, 0), "seed {seed}");
        let kept = driver.rig.protocol.endings.len() + driver.rig.protocol.by_number.len();
        assert_eq!(kept, 0, "seed {seed}: nothing is kept of what everybody contains");
    }
}
