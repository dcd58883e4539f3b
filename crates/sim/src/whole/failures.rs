//! Replicas that fail, return and join while whole transactions run, and what must be true nevertheless.
//!
//! A replica commits without waiting for its disk: when it fails, it loses some of what it committed last, but nothing in between. Its
//! failure is noticed later; what it is told until then is not done. It returns, or joins as a copy of another one, with the position up to which
//! nothing is missing. Where there are as many workers as are worth it (`elastic`) they come and go in the same way. In such runs the log, commits and what is heard of them take time, and some executions fail or are lost.
//!
//! Checked at each replica: it contains only what is durable, each update once, after the one before of the same worker, after everything
//! that its worker contained when it was decided, and in the order in which those that write the same register saw each other. In the
//! end each contains the whole log.

use onecopy_core::effect::{Decision, Effect};
use onecopy_core::map::HashMap;
use onecopy_core::{Csn, Event, OpId, Outcome as Executed, Place, ReplicaId, TxnId};
use onecopy_workload::random::{self, Random};

use super::{Fault, Simulation, Wake};

const FAILURES_STREAM: u64 = u64::MAX - 3;
/// So many times as long as others one replica takes to apply write sets.
const SLOWNESS: u64 = 10;

/// How replicas fail. Times are means, in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Failing {
    /// From one failure to the next.
    pub between_ns: u64,
    /// Until a failure is noticed.
    pub noticed_after_ns: u64,
    /// For how long a replica is away from then on.
    pub away_ns: u64,
    /// Replicas fail, and join, until then.
    pub until_ns: u64,
    /// Of what it committed last a replica loses at most so many.
    pub lost_max: u64,
    /// Replicas that join.
    pub joining: u16,
    /// Until a decision is durable.
    pub durable_after_ns: u64,
    /// Until a commit, or that a write set is applied, is heard of.
    pub heard_after_ns: u64,
    /// The part of executions that fail, of those that are lost, and of commits that are lost, at replicas that are well.
    pub fail_part: f64,
}

/// What happens at replicas that fail.
#[derive(Debug)]
pub(super) enum Happening {
    Fail,
    Noticed(ReplicaId),
    Return(ReplicaId),
    Join,
    Durable(Csn),
    Commit {
        worker: ReplicaId,
        life: u32,
        csn: Csn,
    },
    Apply {
        worker: ReplicaId,
        life: u32,
        origin: Place,
        txn: TxnId,
    },
    CatchUp {
        worker: ReplicaId,
        life: u32,
        next: Csn,
        to: Csn,
    },
    /// Of something that happened at a replica.
    Heard {
        worker: ReplicaId,
        life: u32,
        event: Box<Event>,
    },
}

#[derive(Debug)]
pub(super) struct Failures<'a> {
    how: &'a Failing,
    random: Random,
    replicas: Vec<Replica>,
    log: Vec<Logged>,
    durable: Csn,
    decided: HashMap<TxnId, Csn>,
    /// When the last decision that was appended becomes durable.
    durable_at: u64,
    /// Of each worker its last decision.
    last_of: Vec<Csn>,
    /// Those that failed at a worker, and whose clients have not heard of it.
    failed: Vec<(TxnId, ReplicaId)>,
}

#[derive(Debug)]
struct Replica {
    /// Raised when it fails: what was under way then comes to nothing.
    life: u32,
    standing: Standing,
    commits: Vec<Csn>,
    /// Of each worker the last update.
    contains: Vec<Csn>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Well,
    /// It has failed, and nobody knows it.
    Failed,
    Down,
    /// It has left for good.
    Gone,
}

#[derive(Debug)]
struct Logged {
    txn: TxnId,
    origin: ReplicaId,
    /// The decision before of the same worker.
    previous: Csn,
    /// What its worker contained.
    seen: Vec<Csn>,
}

impl Failing {
    /// Nothing fails and nothing takes time: replicas come and go only because somebody wants that.
    pub(super) const NEVER: Failing = Failing {
        between_ns: 0,
        noticed_after_ns: 0,
        away_ns: 0,
        until_ns: 0,
        lost_max: 0,
        joining: 0,
        durable_after_ns: 0,
        heard_after_ns: 0,
        fail_part: 0.0,
    };
}

impl<'a> Failures<'a> {
    pub(super) fn new(how: &'a Failing, seed: u64, workers: u16) -> Failures<'a> {
        let workers = usize::from(workers);
        let replica = |_| Replica {
            life: 0,
            standing: Standing::Well,
            commits: Vec::new(),
            contains: vec![Csn(0); workers],
        };
        Failures {
            how,
            random: random::stream(seed, FAILURES_STREAM),
            replicas: (0..workers).map(replica).collect(),
            log: Vec::new(),
            durable: Csn(0),
            decided: HashMap::default(),
            durable_at: 0,
            last_of: vec![Csn(0); workers],
            failed: Vec::new(),
        }
    }

    fn replica(&mut self, worker: ReplicaId) -> Option<&mut Replica> {
        self.replicas.get_mut(usize::from(worker.0))
    }

    fn life(&self, worker: ReplicaId) -> u32 {
        self.replicas[usize::from(worker.0)].life
    }

    fn draw_ns(&mut self, mean_ns: u64) -> u64 {
        (-(1.0 - random::unit(&mut self.random)).ln() * mean_ns as f64) as u64
    }

    fn happens(&mut self, part: f64) -> bool {
        random::unit(&mut self.random) < part
    }

    fn logged(&self, csn: Csn) -> Option<&Logged> {
        self.log.get((csn.0 as usize).checked_sub(1)?)
    }

    /// Up to where nothing is missing at a replica.
    fn position(&self, worker: ReplicaId) -> Csn {
        let mut commits = self.replicas[usize::from(worker.0)].commits.clone();
        commits.sort_unstable();
        commits.dedup();
        Csn((1..).zip(commits).take_while(|(at, csn)| *at == csn.0).count() as u64)
    }

    /// A replica contains one more decision.
    fn contain(&mut self, worker: ReplicaId, csn: Csn) -> Option<Fault> {
        let Some(logged) = self.logged(csn) else {
            return Some(Fault::Senseless { txn: TxnId(0), what: "is applied, and was never decided" });
        };
        let (txn, origin) = (logged.txn, usize::from(logged.origin.0));
        let contains = &self.replicas[usize::from(worker.0)].contains;
        let missing =
            (0..).zip(&logged.seen).find(|(of, seen)| contains[*of] < **seen).map(|(_, seen)| *seen);
        let missing =
            missing.or((contains[origin] < logged.previous).then_some(logged.previous)).map(|csn| csn.0);
        let fault = if csn > self.durable {
            Some(Fault::NotDurable { worker, txn })
        } else if contains[origin] >= csn {
            Some(Fault::Senseless { txn, what: "is applied where it is contained" })
        } else {
            missing.map(|csn| Fault::OutOfOrder { worker, txn, missing: self.log[csn as usize - 1].txn })
        };
        let replica = &mut self.replicas[usize::from(worker.0)];
        replica.commits.push(csn);
        replica.contains[origin] = replica.contains[origin].max(csn);
        fault
    }

    /// Those that have not left for good.
    pub(super) fn staying(&self) -> impl Iterator<Item = ReplicaId> {
        let stays = |(_, replica): &(ReplicaId, &Replica)| replica.standing != Standing::Gone;
        (0..).map(ReplicaId).zip(&self.replicas).filter(stays).map(|(replica, _)| replica)
    }

    /// The first decision that a replica lacks.
    pub(super) fn first_missing(&self) -> Option<(ReplicaId, TxnId)> {
        let at = |worker| self.position(worker).next();
        self.staying().find_map(|worker| Some((worker, self.logged(at(worker))?.txn)))
    }
}

impl Simulation<'_> {
    pub(super) fn start_failures(&mut self) {
        let Some(failures) = &mut self.failures else { return };
        let mut at = vec![(failures.draw_ns(failures.how.between_ns), Happening::Fail)];
        for _ in 0..failures.how.joining {
            at.push((
                (random::unit(&mut failures.random) * failures.how.until_ns as f64) as u64,
                Happening::Join,
            ));
        }
        for (after, happening) in at {
            self.in_ns(after, happening);
        }
    }

    pub(super) fn in_ns(&mut self, after_ns: u64, happening: Happening) {
        self.queue.schedule(self.queue.now().plus_ns(after_ns), Wake::Happens(happening));
    }

    pub(super) fn on_happening(&mut self, happening: Happening) {
        let Some(failures) = &mut self.failures else { return };
        let is_past = match &happening {
            Happening::Commit { worker, life, .. }
            | Happening::Apply { worker, life, .. }
            | Happening::CatchUp { worker, life, .. }
            | Happening::Heard { worker, life, .. } => failures.life(*worker) != *life,
            _ => false,
        };
        let is_of_gone = match &happening {
            Happening::Noticed(replica) | Happening::Return(replica) => {
                failures.replica(*replica).is_none_or(|replica| replica.standing == Standing::Gone)
            }
            _ => false,
        };
        if is_past || is_of_gone {
            return;
        }
        match happening {
            Happening::Fail => self.fail_one(),
            Happening::Noticed(replica) => {
                failures.replicas[usize::from(replica.0)].standing = Standing::Down;
                // What is not told by then runs again elsewhere.
                failures.failed.retain(|(_, at)| *at != replica);
                let away = failures.draw_ns(failures.how.away_ns);
                self.in_ns(away, Happening::Return(replica));
                self.feed_at_home(Event::ReplicaDown { replica });
            }
            Happening::Return(replica) => self.come(replica),
            Happening::Join => self.join(),
            Happening::Durable(csn) => {
                failures.durable = csn;
                self.feed_at_home(Event::Durable { csn });
            }
            Happening::Commit { worker, csn, .. } => self.on_commit(worker, csn),
            Happening::Apply { worker, origin, txn, .. } => {
                if let Some(csn) = failures.decided.get(&txn).copied() {
                    self.contain(worker, csn);
                }
                self.hear(worker, Event::ShippedApplied { origin, txn, replica: worker });
            }
            Happening::CatchUp { worker, next, to, .. } => self.catch_up(worker, next, to),
            Happening::Heard { event, .. } => self.feed_at_home(*event),
        }
    }

    fn fail_one(&mut self) {
        let now = self.queue.now();
        let Some(failures) = &mut self.failures else { return };
        if now.0 >= failures.how.until_ns {
            return;
        }
        let last = failures.replicas.len() as i64 - 1;
        let worker = ReplicaId(random::uniform(&mut failures.random, 0, last) as u16);
        let lost = random::uniform(&mut failures.random, 0, failures.how.lost_max as i64) as usize;
        let (next, noticed) =
            (failures.draw_ns(failures.how.between_ns), failures.draw_ns(failures.how.noticed_after_ns));
        let replica = &mut failures.replicas[usize::from(worker.0)];
        if replica.standing == Standing::Well {
            replica.life += 1;
            replica.standing = Standing::Failed;
            replica.commits.truncate(replica.commits.len().saturating_sub(lost));
            replica.contains.fill(Csn(0));
            for csn in &replica.commits {
                let origin = usize::from(failures.log[csn.0 as usize - 1].origin.0);
                replica.contains[origin] = replica.contains[origin].max(*csn);
            }
            let left: Vec<TxnId> =
                replica.commits.iter().map(|csn| failures.log[csn.0 as usize - 1].txn).collect();
            self.contents.restore(worker, &left);
            if self.executing[usize::from(worker.0)].take().is_some() {
                self.count_busy(-1);
            }
            self.in_ns(noticed, Happening::Noticed(worker));
        }
        self.in_ns(next, Happening::Fail);
    }

    fn come(&mut self, replica: ReplicaId) {
        let Some(failures) = &mut self.failures else { return };
        failures.replicas[usize::from(replica.0)].standing = Standing::Well;
        let applied = failures.position(replica);
        self.feed_at_home(Event::ReplicaUp { replica, applied });
    }

    /// A copy of any replica joins.
    fn join(&mut self) {
        let Some(failures) = &mut self.failures else { return };
        let last = failures.staying().count() as i64 - 1;
        let of = random::uniform(&mut failures.random, 0, last) as usize;
        let Some(of) = failures.staying().nth(of) else { return };
        self.join_as_copy_of(of);
        let Some(failures) = &mut self.failures else { return };
        let (new, after) =
            (ReplicaId(failures.replicas.len() as u16 - 1), failures.draw_ns(failures.how.away_ns));
        self.in_ns(after, Happening::Return(new));
    }

    /// A replica joins that holds what another one holds, and is not up yet.
    pub(super) fn join_as_copy_of(&mut self, of: ReplicaId) {
        let Some(failures) = &mut self.failures else { return };
        let new = ReplicaId(failures.replicas.len() as u16);
        failures.last_of.push(Csn(0));
        failures.replicas.iter_mut().for_each(|replica| replica.contains.push(Csn(0)));
        let of = &failures.replicas[usize::from(of.0)];
        let (commits, contains) = (of.commits.clone(), of.contains.clone());
        let left: Vec<TxnId> = commits.iter().map(|csn| failures.log[csn.0 as usize - 1].txn).collect();
        failures.replicas.push(Replica { life: 0, standing: Standing::Down, commits, contains });
        self.executing.push(None);
        self.contents.join();
        self.contents.restore(new, &left);
        self.feed_at_home(Event::ReplicaAdded { replica: new });
    }

    /// A replica leaves for good.
    pub(super) fn remove(&mut self, replica: ReplicaId) {
        let Some(failures) = &mut self.failures else { return };
        if let Some(of) = failures.replica(replica) {
            of.standing = Standing::Gone;
            of.life += 1;
        }
        self.feed_at_home(Event::ReplicaRemoved { replica });
    }

    /// An effect that takes its time, or is not carried out, where replicas fail.
    pub(super) fn carry_out_failing(&mut self, place: Place, effect: &Effect) {
        match *effect {
            Effect::Append { csn, decision: Decision::Commit(txn) } => {
                if let Place::Proxy(worker) = place {
                    self.append(txn, worker, csn);
                }
            }
            Effect::CommitAt { txn, replica: worker, csn } => {
                self.begin(txn, worker, 0, |life| Happening::Commit { worker, life, csn });
            }
            Effect::ApplyShipped { origin, txn, replica: worker } => {
                let apply_ns = self.draw_apply_ns(worker);
                self.begin(txn, worker, apply_ns, |life| Happening::Apply { worker, life, origin, txn });
            }
            Effect::Apply { replica: worker, from: next, to } => {
                let apply_ns = self.setup.apply_ns;
                self.begin(TxnId(0), worker, apply_ns, |life| Happening::CatchUp { worker, life, next, to });
            }
            Effect::Acknowledge { txn, csn, .. } => {
                let is_durable = |of: &Failures<'_>| csn <= of.durable && of.decided.get(&txn) == Some(&csn);
                if !self.failures.as_ref().is_some_and(is_durable) {
                    self.fault(Fault::AcknowledgedEarly { txn });
                }
                self.on_committed(txn);
            }
            Effect::Release { txn, .. } => self.answer_failed(txn),
            _ => {}
        }
    }

    /// The first replica is slow.
    fn draw_apply_ns(&mut self, worker: ReplicaId) -> u64 {
        let mean = self.setup.apply_ns * if worker == ReplicaId(0) { SLOWNESS } else { 1 };
        self.failures.as_mut().map_or(mean, |failures| failures.draw_ns(mean))
    }

    /// Something is begun at a replica, if it is well.
    fn begin(
        &mut self,
        txn: TxnId,
        worker: ReplicaId,
        after_ns: u64,
        happening: impl FnOnce(u32) -> Happening,
    ) {
        if self.is_well(worker, txn) {
            let life = self.life(worker);
            self.in_ns(after_ns, happening(life));
        }
    }

    /// If it failed, its client hears that.
    fn answer_failed(&mut self, txn: TxnId) {
        let Some(failures) = &mut self.failures else { return };
        if let Some(at) = failures.failed.iter().position(|(failed, _)| *failed == txn) {
            failures.failed.swap_remove(at);
            self.on_answered(txn);
        }
    }

    /// An execution is rolled back. If it failed and its client has not heard of that, it never will: another one counts.
    pub(super) fn forget_failure(&mut self, txn: TxnId) {
        if let Some(failures) = &mut self.failures {
            failures.failed.retain(|(failed, _)| *failed != txn);
        }
    }

    pub(super) fn life(&self, worker: ReplicaId) -> u32 {
        self.failures.as_ref().map_or(0, |failures| failures.life(worker))
    }

    /// Whether something can be done at a replica. Nobody may want that of one whose failure was reported.
    pub(super) fn is_well(&mut self, worker: ReplicaId, txn: TxnId) -> bool {
        let Some(failures) = &mut self.failures else { return true };
        match failures.replica(worker).map(|replica| replica.standing) {
            Some(Standing::Well) => true,
            Some(Standing::Failed) => false,
            Some(Standing::Down | Standing::Gone) | None => {
                self.senseless(txn, "is ordered at a replica that is down");
                false
            }
        }
    }

    fn append(&mut self, txn: TxnId, origin: ReplicaId, csn: Csn) {
        let now = self.queue.now().0;
        let Some(failures) = &mut self.failures else { return };
        let at = usize::from(origin.0);
        let previous = std::mem::replace(&mut failures.last_of[at], csn);
        let seen = failures.replicas[at].contains.clone();
        failures.log.push(Logged { txn, origin, previous, seen });
        if failures.decided.insert(txn, csn).is_some() || failures.log.len() as u64 != csn.0 {
            return self.senseless(txn, "is decided twice, or out of turn");
        }
        failures.durable_at = failures.durable_at.max(now + failures.draw_ns(failures.how.durable_after_ns));
        let after = failures.durable_at - now;
        self.decide(txn, origin);
        self.in_ns(after, Happening::Durable(csn));
    }

    fn on_commit(&mut self, worker: ReplicaId, csn: Csn) {
        let Some(failures) = &mut self.failures else { return };
        let Some(txn) = failures.logged(csn).map(|logged| logged.txn) else { return };
        if failures.happens(failures.how.fail_part) {
            return self.feed_at_home(Event::HomeLost { txn, replica: worker });
        }
        self.contain(worker, csn);
        self.hear(worker, Event::Applied { replica: worker, csn });
    }

    fn catch_up(&mut self, worker: ReplicaId, next: Csn, to: Csn) {
        let Some(failures) = &mut self.failures else { return };
        let is_contained = failures.logged(next).is_none_or(|logged| {
            failures.replicas[usize::from(worker.0)].contains[usize::from(logged.origin.0)] >= next
        });
        let life = failures.life(worker);
        if !is_contained {
            self.contain(worker, next);
        }
        match next < to {
            true => {
                let next = next.next();
                self.in_ns(self.setup.apply_ns, Happening::CatchUp { worker, life, next, to });
            }
            false => self.hear(worker, Event::Applied { replica: worker, csn: to }),
        }
    }

    fn contain(&mut self, worker: ReplicaId, csn: Csn) {
        let Some(failures) = &mut self.failures else { return };
        let fault = failures.contain(worker, csn);
        let txn = failures.logged(csn).map(|logged| logged.txn);
        fault.into_iter().for_each(|fault| self.fault(fault));
        if let Some(txn) = txn
            && !self.contents.apply_in_order(txn, worker)
        {
            self.fault(Fault::OrderDiffers { worker, txn });
        }
    }

    /// What happened at a replica is told later.
    fn hear(&mut self, worker: ReplicaId, event: Event) {
        let Some(failures) = &mut self.failures else { return };
        let life = failures.life(worker);
        let after = failures.draw_ns(failures.how.heard_after_ns);
        self.in_ns(after, Happening::Heard { worker, life, event: Box::new(event) });
    }

    /// A transaction is to run at a worker. Returns whether it does.
    pub(super) fn may_execute(&mut self, txn: TxnId, worker: ReplicaId) -> bool {
        if self.failures.is_none() {
            return true;
        }
        let is_decided = self.failures.as_ref().is_some_and(|failures| failures.decided.contains_key(&txn));
        let is_it = |executing: &(TxnId, OpId)| executing.0 == txn;
        let is_executing = !self.setup.executes_redundantly && self.executing.iter().flatten().any(is_it);
        if is_decided || is_executing {
            self.senseless(txn, "is executed again for nothing");
        }
        self.is_well(worker, txn)
    }

    /// What came of an execution, where some come to nothing.
    pub(super) fn outcome(&mut self, txn: TxnId, worker: ReplicaId, done: Executed) -> Executed {
        let Some(failures) = &mut self.failures else { return done };
        if failures.happens(failures.how.fail_part) {
            return Executed::Lost { answer_begun: false };
        }
        if self.txns[txn.0 as usize].arriving.updates && failures.happens(failures.how.fail_part) {
            failures.failed.push((txn, worker));
            return Executed::Failed;
        }
        done
    }
}
