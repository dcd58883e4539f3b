//! Where each replica stands in the one order of commits, and what it does next.

use std::collections::{BTreeMap, VecDeque};

use crate::effect::Effect;
use crate::ids::{Csn, Instant, OpId, ReplicaId, TxnId};
use crate::item::TableId;
use crate::load::Load;
use crate::protocol::ReplicaStatus;

use super::limits::Limits;
use super::turns::Turns;

/// What committing a decision is expected to take a replica that has committed none yet, in nanoseconds.
const COMMIT_UNKNOWN_NS: f64 = 50_000.0;
/// What of the runs before counts when one has ended.
const RUNS_KEPT: f64 = 7.0 / 8.0;
/// A run teaches at most so many times what it was expected to take: one that stood still must not look like the rule. What
/// stands still now counts by itself.
const SURPRISE_MAX: f64 = 16.0;

/// What costs or saves time and changes no answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Reads stay together on one replica, whose caches are warm then, while it has at most so much more outstanding work
    /// than the least loaded one, in nanoseconds; `None`: always the least loaded.
    pub turn_slack_ns: Option<f64>,
    /// The shortest turn in nanoseconds, after which it is the next replica's, so that each serves its share: reads that come
    /// less often go round.
    pub turn_ns: u64,
    /// The longest turn, in nanoseconds. Turns grow while reads keep coming, since each costs the caches of another server.
    pub turn_max_ns: u64,
    /// New transactions find their home where the last one did, which then commits them without waiting for others, and
    /// the others apply in larger groups, up to so much more work there, what has still to be committed included; `None`:
    /// always the one with the least outstanding.
    pub home_slack_ns: Option<f64>,
    /// Nanoseconds for which a replica waits for more decisions to apply together, if nobody waits for it.
    pub linger_ns: u64,
    /// Decisions for which it does not wait longer.
    pub linger_decisions: u64,
    /// How much is kept one by one.
    pub limits: Limits,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            turn_slack_ns: Some(1_000_000.0),
            turn_ns: 40_000_000,
            turn_max_ns: 1_000_000_000,
            home_slack_ns: Some(5_000_000.0),
            linger_ns: 40_000_000,
            linger_decisions: 256,
            limits: Limits::default(),
        }
    }
}

impl Tuning {
    /// Always the least loaded replica, and nothing is put off.
    #[must_use]
    pub fn immediate() -> Tuning {
        Tuning {
            turn_slack_ns: None,
            turn_ns: 0,
            turn_max_ns: 0,
            home_slack_ns: None,
            linger_ns: 0,
            linger_decisions: 1,
            limits: Limits::default(),
        }
    }
}

/// What a replica is committing: the open transaction of which it is the home, or decisions that were executed elsewhere.
#[derive(Clone, Copy, Debug)]
struct Run {
    to: Csn,
    count: u64,
    since: Instant,
}

/// What committing a decision takes a replica: the time of its runs over their decisions, of which old ones weigh less.
#[derive(Debug)]
struct Pace {
    ns: f64,
    decisions: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        let decisions = 1.0 / (1.0 - RUNS_KEPT);
        Pace { ns: COMMIT_UNKNOWN_NS * decisions, decisions }
    }
}

impl Pace {
    fn one_ns(&self) -> f64 {
        self.ns / self.decisions
    }

    fn learn(&mut self, run: Run, now: Instant) {
        let count = run.count as f64;
        let ns = (now.since_ns(run.since) as f64).min(SURPRISE_MAX * count * self.one_ns());
        self.ns = self.ns * RUNS_KEPT + ns;
        self.decisions = self.decisions * RUNS_KEPT + count;
    }
}

/// Whether a replica is one of the set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Membership {
    #[default]
    Stays,
    /// Nothing is begun there any more, unless nobody else serves.
    Leaves,
    Gone,
}

/// One replica.
#[derive(Default, Debug)]
pub(crate) struct Replica {
    pub(crate) membership: Membership,
    pub(crate) up: bool,
    /// How often it has come up.
    pub(crate) ups: u32,
    pub(crate) applied: Csn,
    pub(crate) load: Load,
    run: Option<Run>,
    pace: Pace,
    /// Transactions whose home this is and that wait until it contains a commit.
    pub(crate) awaiting: BTreeMap<Csn, Vec<TxnId>>,
    last_chosen: u64,
    /// Somebody could have used it, had it contained this: until then it applies without lingering.
    wanted: Csn,
    /// It waits for more to apply together, and a timer will end that.
    lingers: bool,
    pub(crate) reads: u64,
    pub(crate) home_statements: u64,
    applies: u64,
}

impl Replica {
    pub(crate) fn on_up(&mut self, applied: Csn) {
        self.up = true;
        self.ups += 1;
        self.applied = applied;
        self.run = None;
        self.load = Load::default();
    }

    pub(crate) fn on_down(&mut self) {
        self.up = false;
        self.run = None;
        self.load = Load::default();
    }

    /// Whether something is being committed there.
    pub(crate) fn is_committing(&self) -> bool {
        self.run.is_some()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.membership == Membership::Gone
    }

    /// It has left for good.
    pub(crate) fn become_gone(&mut self) {
        self.membership = Membership::Gone;
    }

    /// Whether it serves, and goes on to.
    pub(crate) fn stays_up(&self) -> bool {
        self.up && self.membership == Membership::Stays
    }

    /// The open transaction that was to be committed as `csn` cannot be; a run of others may well be under way.
    pub(crate) fn on_home_lost(&mut self, csn: Csn) {
        self.run = self.run.filter(|run| run.to != csn);
    }

    pub(crate) fn on_applied(&mut self, csn: Csn, now: Instant) {
        self.applied = csn;
        if let Some(run) = self.run.take_if(|run| run.to <= csn) {
            self.pace.learn(run, now);
        }
    }

    /// After how many nanoseconds it is expected to be done with what is outstanding and with all decisions up to `told`: a
    /// transaction may need any of them before its first statement, or a later one, can be executed here. A run is expected
    /// to take at least as long again as it has taken.
    fn work_ns(&self, told: Csn, now: Instant) -> f64 {
        let unapplied = told.0.saturating_sub(self.applied.0) as f64;
        let run_ns = self.run.map_or(0.0, |run| now.since_ns(run.since) as f64);
        self.load.outstanding_ns() + run_ns.max(unapplied * self.pace.one_ns())
    }

    /// Those who waited for a commit up to this one.
    pub(crate) fn take_awaiting(&mut self, csn: Csn) -> Vec<TxnId> {
        let later = self.awaiting.split_off(&csn.next());
        std::mem::replace(&mut self.awaiting, later).into_values().flatten().collect()
    }

    /// What to commit next, if nothing is under way: the open transaction of which this is the home, or a run of
    /// decisions that were executed elsewhere. Such a run may be worth waiting for.
    pub(crate) fn advance(
        &mut self,
        me: ReplicaId,
        decisions: &Decisions,
        tuning: &Tuning,
        now: Instant,
    ) -> Option<Effect> {
        if !self.up || self.run.is_some() || self.applied >= decisions.told() {
            return None;
        }
        let from = self.applied.next();
        if let Some(txn) = decisions.open_at(from, me) {
            self.run = Some(Run { to: from, count: 1, since: now });
            return Some(Effect::CommitAt { txn, replica: me, csn: from });
        }
        let end = decisions.told().min(Csn(from.0 + tuning.limits.run - 1));
        let mut to = from;
        while to < end && decisions.open_at(to.next(), me).is_none() {
            to = to.next();
        }
        let complete = to < decisions.told() || to.0 - self.applied.0 >= tuning.linger_decisions;
        let hurry = complete
            || self.applied < self.wanted
            || !self.awaiting.is_empty()
            || decisions.depends_on_others(from, to);
        if !hurry {
            if self.lingers {
                return None;
            }
            self.lingers = true;
            return Some(Effect::SetTimer { timer: u64::from(me.0), at: now.plus_ns(tuning.linger_ns) });
        }
        let count = to.0 - self.applied.0;
        self.run = Some(Run { to, count, since: now });
        self.applies += count;
        Some(Effect::Apply { replica: me, from, to })
    }

    /// Whether it is behind a commit that somebody wants, and did not know so.
    pub(crate) fn want(&mut self, csn: Csn) -> bool {
        let is_news = self.up && self.applied < csn && self.wanted < csn;
        if is_news {
            self.wanted = csn;
        }
        is_news
    }

    /// It has waited for more long enough.
    pub(crate) fn end_lingering(&mut self, told: Csn) {
        self.lingers = false;
        self.wanted = self.wanted.max(told);
    }
}

fn outstanding_ns(replica: &Replica) -> f64 {
    replica.load.outstanding_ns()
}

/// All replicas.
#[derive(Debug)]
pub(crate) struct Replicas {
    replicas: Vec<Replica>,
    choices: u64,
    tuning: Tuning,
    /// Where the last transaction found its home.
    home: Option<ReplicaId>,
    turns: Turns,
}

impl Replicas {
    pub(crate) fn new(count: usize, tuning: Tuning) -> Replicas {
        let replicas = (0..count).map(|_| Replica::default()).collect();
        Replicas { replicas, choices: 0, tuning, home: None, turns: Turns::default() }
    }

    pub(crate) fn get(&self, id: ReplicaId) -> &Replica {
        &self.replicas[usize::from(id.0)]
    }

    pub(crate) fn get_mut(&mut self, id: ReplicaId) -> &mut Replica {
        &mut self.replicas[usize::from(id.0)]
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.replicas.len() as u16).map(ReplicaId)
    }

    /// There is one more, if this is the next number.
    pub(crate) fn add(&mut self, id: ReplicaId) {
        if usize::from(id.0) == self.replicas.len() {
            self.replicas.push(Replica::default());
        }
    }

    /// New transactions find their home elsewhere.
    pub(crate) fn on_leaving(&mut self, id: ReplicaId) {
        self.get_mut(id).membership = Membership::Leaves;
        if self.home == Some(id) {
            self.home = self.ids().find(|other| self.get(*other).stays_up());
        }
    }

    /// The replica must not be used. New transactions find their home elsewhere, also when it is back in a moment: what made it
    /// leave may come again.
    pub(crate) fn on_down(&mut self, id: ReplicaId) {
        self.get_mut(id).on_down();
        if self.home == Some(id) {
            let up = || self.ids().filter(|other| self.get(*other).up);
            self.home = up().find(|other| self.get(*other).stays_up()).or_else(|| up().next());
        }
    }

    /// A lane there was lost, and it will be taken out of service, or has something of its own to do first.
    pub(crate) fn avoid_as_home(&mut self, id: ReplicaId) {
        if self.home == Some(id) {
            self.home = self.ids().find(|other| *other != id && self.get(*other).stays_up()).or(self.home);
        }
    }

    /// Where the next read runs: among the replicas that contain `floor`, the one whose turn it is or, if that has much
    /// more to do, the least loaded.
    pub(crate) fn for_read(&mut self, floor: Csn, forgotten: Csn, now: Instant) -> Option<ReplicaId> {
        let floor = floor.max(forgotten);
        let least = self.least(floor, forgotten, outstanding_ns)?;
        let Some(slack_ns) = self.tuning.turn_slack_ns else { return Some(least) };
        let whose = self.turns.take(now, &self.replicas, &self.tuning);
        Some(self.unless_overloaded(whose, least, slack_ns, (floor, forgotten), outstanding_ns))
    }

    /// Where a transaction executes from its first write on: among the replicas that contain `floor`, where the last one
    /// did or, if that has much more to do, the one with the least to do. What it has still to commit counts: a later
    /// statement may have to wait for it, with the locks of the ones before.
    pub(crate) fn for_home(
        &mut self,
        floor: Csn,
        forgotten: Csn,
        told: Csn,
        now: Instant,
    ) -> Option<ReplicaId> {
        let floor = floor.max(forgotten);
        let Some(slack_ns) = self.tuning.home_slack_ns else {
            return self.least(floor, forgotten, outstanding_ns);
        };
        let work_ns = |replica: &Replica| replica.work_ns(told, now);
        let least = self.least(floor, forgotten, work_ns)?;
        let last = *self.home.get_or_insert(least);
        let chosen = self.unless_overloaded(last, least, slack_ns, (floor, forgotten), work_ns);
        if !self.get(last).stays_up() {
            self.home = Some(chosen);
        }
        Some(chosen)
    }

    fn unless_overloaded(
        &self,
        preferred: ReplicaId,
        least: ReplicaId,
        slack_ns: f64,
        (floor, forgotten): (Csn, Csn),
        work_ns: impl Fn(&Replica) -> f64,
    ) -> ReplicaId {
        let candidate = self.get(preferred);
        let near = work_ns(candidate) <= work_ns(self.get(least)) + slack_ns;
        let fits = self.takes_new(candidate, forgotten) && candidate.applied >= floor && near;
        if fits { preferred } else { least }
    }

    /// The replica with the least work among those that contain `floor`; of equals the one that was not chosen for longest.
    fn least(&mut self, floor: Csn, forgotten: Csn, work_ns: impl Fn(&Replica) -> f64) -> Option<ReplicaId> {
        let fits = |replica: &Replica| self.takes_new(replica, forgotten) && replica.applied >= floor;
        let (at, _) =
            self.replicas.iter().enumerate().filter(|(_, r)| fits(r)).min_by(|(_, a), (_, b)| {
                work_ns(a).total_cmp(&work_ns(b)).then(a.last_chosen.cmp(&b.last_chosen))
            })?;
        self.choices += 1;
        self.replicas[at].last_chosen = self.choices;
        Some(ReplicaId(at as u16))
    }

    /// What a replica commits next.
    pub(crate) fn advance(&mut self, id: ReplicaId, decisions: &Decisions, now: Instant) -> Option<Effect> {
        let tuning = self.tuning;
        self.get_mut(id).advance(id, decisions, &tuning, now)
    }

    /// The greatest position of a replica that may serve.
    pub(crate) fn most_advanced(&self, forgotten: Csn) -> Option<Csn> {
        self.serving(forgotten).filter(|r| self.takes_new(r, forgotten)).map(|r| r.applied).max()
    }

    /// The smallest position of a replica that may serve, or soon will.
    pub(crate) fn least_advanced(&self, forgotten: Csn, told: Csn) -> Option<Csn> {
        let near = Csn(told.0.saturating_sub(self.tuning.limits.near)).min(forgotten);
        self.serving(near).map(|r| r.applied).min()
    }

    /// Whether anything may be begun there: on one that leaves, only while no other serves.
    fn takes_new(&self, replica: &Replica, forgotten: Csn) -> bool {
        match replica.membership {
            Membership::Stays => replica.up,
            Membership::Leaves => {
                replica.up && !self.serving(forgotten).any(|other| other.membership == Membership::Stays)
            }
            Membership::Gone => false,
        }
    }

    /// A replica that is behind what has been forgotten cannot be judged, so it only catches up.
    fn serving(&self, forgotten: Csn) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(move |r| r.up && r.applied >= forgotten)
    }

    pub(crate) fn status(&self, open_on: impl Fn(ReplicaId) -> u64) -> Vec<ReplicaStatus> {
        self.replicas
            .iter()
            .zip(self.ids())
            .map(|(r, id)| ReplicaStatus {
                up: r.up,
                leaving: r.membership == Membership::Leaves,
                gone: r.is_gone(),
                open: if r.membership == Membership::Leaves { open_on(id) } else { 0 },
                busy: false,
                applied: r.applied.0,
                outstanding_ns: r.load.outstanding_ns(),
                reads: r.reads,
                home_statements: r.home_statements,
                applies: r.applies,
            })
            .collect()
    }
}

/// One decision that some serving replica may not contain yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(crate) csn: Csn,
    /// Whom to tell; `None` of a reservation.
    pub(crate) txn: Option<TxnId>,
    /// The replica on which that is still open; `None` once it can only be applied.
    pub(crate) home: Option<ReplicaId>,
    pub(crate) op: OpId,
    pub(crate) reserved: Option<(TableId, i64)>,
    acknowledged: bool,
}

/// The end of the one order of commits: `told <= decided`.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// In order and without gaps; `recent[0]` follows `before`.
    recent: VecDeque<Decided>,
    before: Csn,
    told: Csn,
}

impl Decisions {
    pub(crate) fn starting_at(csn: Csn) -> Decisions {
        Decisions { recent: VecDeque::new(), before: csn, told: csn }
    }

    pub(crate) fn decided(&self) -> Csn {
        Csn(self.before.0 + self.recent.len() as u64)
    }

    pub(crate) fn told(&self) -> Csn {
        self.told
    }

    pub(crate) fn decide(
        &mut self,
        txn: Option<TxnId>,
        home: Option<ReplicaId>,
        op: OpId,
        reserved: Option<(TableId, i64)>,
    ) -> Csn {
        let csn = self.decided().next();
        let decided = Decided { csn, txn, home, op, reserved, acknowledged: false };
        self.recent.push_back(decided);
        csn
    }

    /// The next decision became durable: from now on somebody may see it.
    pub(crate) fn tell_next(&mut self) -> Decided {
        self.told = self.told.next();
        self.recent[self.index(self.told)]
    }

    /// Decided transactions that have still to be committed where they are open, at this replica.
    pub(crate) fn open_on(&self, replica: ReplicaId, applied: Csn) -> impl Iterator<Item = TxnId> {
        let is_open = move |decided: &&Decided| decided.csn > applied && decided.home == Some(replica);
        self.recent.iter().filter(is_open).filter_map(|decided| decided.txn)
    }

    /// The transaction that is open at this replica and shall commit there as `csn`.
    pub(crate) fn open_at(&self, csn: Csn, replica: ReplicaId) -> Option<TxnId> {
        if csn <= self.before {
            return None;
        }
        let decided = self.recent.get(self.index(csn))?;
        decided.txn.filter(|_| decided.home == Some(replica))
    }

    /// Whether a client waits for one of these, and its home will not commit it.
    fn depends_on_others(&self, from: Csn, to: Csn) -> bool {
        (from.0.max(self.before.0 + 1)..=to.0).any(|csn| {
            let decided = &self.recent[self.index(Csn(csn))];
            !decided.acknowledged && decided.home.is_none() && decided.txn.is_some()
        })
    }

    /// Those after `before` up to `csn` that nobody has been told of.
    pub(crate) fn acknowledge(&mut self, before: Csn, csn: Csn) -> Vec<Decided> {
        let first = before.next().max(self.before.next());
        let mut news = Vec::new();
        for csn in first.0..=csn.0.min(self.told.0) {
            let index = self.index(Csn(csn));
            let decided = &mut self.recent[index];
            if !std::mem::replace(&mut decided.acknowledged, true) {
                news.push(*decided);
            }
        }
        news
    }

    pub(crate) fn first_unacknowledged(&self) -> Csn {
        let first = self.recent.iter().find(|decided| !decided.acknowledged);
        first.map_or(self.decided().next(), |decided| decided.csn)
    }

    /// A transaction can no longer be committed at its home. Its place in the order, if it was decided.
    pub(crate) fn home_lost(&mut self, txn: TxnId, replica: ReplicaId) -> Option<Csn> {
        let is_open_there =
            |decided: &&mut Decided| decided.txn == Some(txn) && decided.home == Some(replica);
        let decided = self.recent.iter_mut().find(is_open_there)?;
        decided.home = None;
        Some(decided.csn)
    }

    /// What was open at a replica is gone with it, and will be applied there. Returns whose it was, and its place.
    pub(crate) fn home_is_gone(&mut self, replica: ReplicaId) -> Vec<(TxnId, Csn)> {
        let mut gone = Vec::new();
        for decided in self.recent.iter_mut() {
            if decided.home.take_if(|home| *home == replica).is_some() {
                gone.extend(decided.txn.map(|txn| (txn, decided.csn)));
            }
        }
        gone
    }

    /// Drops what every serving replica contains and every client knows.
    pub(crate) fn forget(&mut self, csn: Csn) {
        while self.before < csn {
            match self.recent.front() {
                Some(decided) if decided.acknowledged => {
                    self.recent.pop_front();
                    self.before = self.before.next();
                }
                _ => return,
            }
        }
    }

    fn index(&self, csn: Csn) -> usize {
        (csn.0 - self.before.0 - 1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_decision_takes_is_the_time_of_runs_over_their_decisions() {
        let mut pace = Pace::default();
        assert_eq!(pace.one_ns(), COMMIT_UNKNOWN_NS);
        let run = |count| Run { to: Csn(count), count, since: Instant(0) };
        for _ in 0..200 {
            pace.learn(run(256), Instant(256 * 20_000));
        }
        assert_eq!(pace.one_ns().round(), 20_000.0);
        // A run of one that stood still for a minute counts as 16 of one.
        pace.learn(run(1), Instant(60_000_000_000));
        assert!(pace.one_ns() < 20_500.0, "{}", pace.one_ns());
    }
}
