//! What a run is like: everything follows from a seed, and tests change single fields.

use std::collections::BTreeSet;

use onecopy_core::ReplicaId;
use onecopy_core::commit_order::{Limits, Tuning};

use crate::check::Options;
use crate::clients::script::Mix;
use crate::random::{Purpose, Random};

/// In a scenario: the replica at which the moment comes about; the first one, if it is no replica's moment.
pub const HERE: ReplicaId = ReplicaId(u16::MAX);

/// Something that breaks, or that an operator does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakage {
    /// The node loses its connections to a replica; commands already sent still run.
    Connections(ReplicaId),
    /// A replica's server dies and comes back, perhaps without its newest commits.
    Server(ReplicaId),
    /// A replica ends one open transaction; of a transaction that is being committed if there is one.
    Lane(ReplicaId),
    /// The node dies and another one takes over its log.
    Node,
    /// One more replica is copied from another one, and serves.
    Join,
    /// A replica leaves for good, if another one serves: at once, or when nothing is open there any more.
    Depart {
        /// Which.
        replica: ReplicaId,
        /// Whatever is open there is lost.
        at_once: bool,
    },
    /// A replica's server stands still for a while, and then does what it was told meanwhile.
    Pause(ReplicaId),
    /// The node stands still for a while, and then hears what it was told meanwhile.
    PauseNode,
    /// The write of the log that is under way, or the next one, takes much longer.
    SlowDisk,
    /// The node's clock leaps ahead.
    Clock,
    /// A client gives up what it waits for.
    GiveUp,
    /// A replica loses a row behind everybody's back and is found to differ: it leaves service until it is copied anew.
    Diverge(ReplicaId),
}

impl Breakage {
    /// The same, with `replica` where it says [`HERE`].
    #[must_use]
    pub fn at(self, replica: ReplicaId) -> Breakage {
        let found = |named| if named == HERE { replica } else { named };
        match self {
            Breakage::Connections(named) => Breakage::Connections(found(named)),
            Breakage::Server(named) => Breakage::Server(found(named)),
            Breakage::Lane(named) => Breakage::Lane(found(named)),
            Breakage::Depart { replica: named, at_once } => {
                Breakage::Depart { replica: found(named), at_once }
            }
            Breakage::Pause(named) => Breakage::Pause(found(named)),
            Breakage::Diverge(named) => Breakage::Diverge(found(named)),
            Breakage::Node
            | Breakage::Join
            | Breakage::PauseNode
            | Breakage::SlowDisk
            | Breakage::Clock
            | Breakage::GiveUp => self,
        }
    }

    /// The replica that it happens to, if it is about one.
    #[must_use]
    pub fn replica(self) -> Option<ReplicaId> {
        match self {
            Breakage::Connections(replica)
            | Breakage::Server(replica)
            | Breakage::Lane(replica)
            | Breakage::Depart { replica, .. }
            | Breakage::Pause(replica)
            | Breakage::Diverge(replica) => Some(replica),
            Breakage::Node
            | Breakage::Join
            | Breakage::PauseNode
            | Breakage::SlowDisk
            | Breakage::Clock
            | Breakage::GiveUp => None,
        }
    }
}

/// The instant at which something breaks: shortly after the run has done something for the n-th time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Anything at all.
    Step(u64),
    /// A decision was appended to the log.
    Append(u64),
    /// A home was told to commit.
    CommitAt(u64),
    /// A replica was told to apply.
    Apply(u64),
    /// A home was told to run reads again.
    Revalidate(u64),
    /// A transaction does again at another home what it had done at one that was lost.
    Move(u64),
    /// A home was sent the first write of a transaction.
    FirstWrite(u64),
    /// A write of the log is durable.
    Durable(u64),
    /// A replica was the first one to commit a decision.
    Commit(u64),
    /// The node has lost a replica.
    Lost(u64),
    /// A replica serves again, or for the first time.
    Back(u64),
    /// A copy of a replica has begun.
    Copy(u64),
    /// A replica is about to leave.
    Leave(u64),
    /// A statement of a transaction was sent to a replica that has come back and is still behind.
    Behind(u64),
    /// A statement failed at a home after its answer had shown rows.
    Shown(u64),
}

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Decides everything that is not fixed by the other fields.
    pub seed: u64,
    /// Databases, at least 1.
    pub replicas: usize,
    /// Clients.
    pub clients: usize,
    /// Transactions that each client runs.
    pub transactions_per_client: u32,
    /// Lists or registers in each table.
    pub keys: u64,
    /// What clients do.
    pub mix: Mix,
    /// The longest time between two statements of a client, in nanoseconds.
    pub think_max_ns: u64,
    /// What breaks, and when.
    pub breakages: Vec<(Moment, Breakage)>,
    /// A server that dies loses at most so many of its newest commits.
    pub lost_commits_max: u64,
    /// How many times as long as usual replicas take to apply what others have decided, at least 1.
    pub apply_slowness: u64,
    /// Of 1,000 writes so many are shipped as rows rather than as statements.
    pub captured_per_mille: u64,
    /// Decisions that are applied in one database transaction, at most.
    pub apply_batch_max: u64,
    /// Whether transactions declare their tables when they begin.
    pub declared: bool,
    /// What the history must show, if it is not simply what the protocol promises.
    pub demanded: Option<Options>,
    /// Whether the databases' progress tables refuse a commit out of order; off only to plant a bug behind them.
    pub progress_guarded: bool,
    /// Transactions that are left out, by the order in which clients begin them, from 0.
    pub left_out: BTreeSet<u64>,
    /// How the protocol is tuned, if it is the default one.
    pub tuning: Tuning,
    /// Whether the trace's text is kept.
    pub keep_trace: bool,
}

/// The weight of a kind of transactions that hardly any others interrupt.
const OFTEN: u32 = 200;

impl Scenario {
    /// The run of a seed in which nothing breaks but clients.
    #[must_use]
    pub fn calm(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, Purpose::Scenario);
        Scenario {
            seed,
            replicas: random.pick(&[1, 2, 2, 3, 3, 3, 4, 5]),
            clients: random.between(2, 8) as usize,
            transactions_per_client: random.between(4, 24) as u32,
            apply_slowness: 1,
            keys: random.between(1, 4),
            mix: Mix::drawn(random),
            think_max_ns: random.pick(&[100_000, 1_000_000, 5_000_000]),
            breakages: Vec::new(),
            lost_commits_max: 0,
            captured_per_mille: random.pick(&[0, 300, 1_000]),
            apply_batch_max: random.pick(&[1, 1, 3, 8]),
            declared: random.chance(500),
            demanded: None,
            progress_guarded: true,
            left_out: BTreeSet::new(),
            tuning: tuning(&mut Random::new(seed, Purpose::Tuning)),
            keep_trace: false,
        }
    }

    /// The run of a seed in which replicas, connections, transactions and the node break too.
    #[must_use]
    pub fn stormy(seed: u64) -> Scenario {
        let calm = Scenario::calm(seed);
        let random = &mut Random::new(seed, Purpose::Faults);
        let kinds =
            [random.below(4) as u32, random.below(4) as u32, random.below(6) as u32, random.below(3) as u32];
        let breakages = (0..random.between(1, 8))
            .map(|_| {
                let replica = ReplicaId(random.below(calm.replicas as u64) as u16);
                let kinds = [
                    (kinds[0], Breakage::Connections(replica)),
                    (kinds[1], Breakage::Server(replica)),
                    (kinds[2], Breakage::Lane(replica)),
                    (kinds[3], Breakage::Node),
                ];
                let breakage = random.weighted(&kinds).unwrap_or(Breakage::Lane(replica));
                (calm.moment(random), breakage)
            })
            .collect();
        let lost_commits_max = random.pick(&[0, 1, 5]);
        Scenario { breakages, lost_commits_max, ..calm }
    }

    /// The run of a seed in which replicas join and leave, too.
    #[must_use]
    pub fn changing(seed: u64) -> Scenario {
        let mut stormy = Scenario::stormy(seed);
        let random = &mut Random::new(seed, Purpose::Membership);
        let joins = random.between(1, 3);
        let members = stormy.replicas as u64 + joins;
        for _ in 0..joins {
            stormy.breakages.push((stormy.moment(random), Breakage::Join));
        }
        for _ in 0..random.below(members) {
            let replica = ReplicaId(random.below(members) as u16);
            let departure = Breakage::Depart { replica, at_once: random.chance(300) };
            stormy.breakages.push((stormy.moment(random), departure));
        }
        // What has joined breaks like the others.
        for _ in 0..random.below(3) {
            let replica = ReplicaId(random.below(members) as u16);
            let breakage = random.pick(&[
                Breakage::Connections(replica),
                Breakage::Server(replica),
                Breakage::Lane(replica),
            ]);
            stormy.breakages.push((stormy.moment(random), breakage));
        }
        stormy
    }

    /// The run of a seed with every fault that there is, at every step that there is.
    #[must_use]
    pub fn torture(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, Purpose::Torture);
        // What takes several rare things comes about in long runs; short ones are easily understood.
        let length = random.pick(&[1, 4, 20]);
        let calm = Scenario::calm(seed);
        let mut calm = Scenario { transactions_per_client: calm.transactions_per_client * length, ..calm };
        // Alone, a replica can neither leave nor be copied.
        let mut replicas = if calm.replicas == 1 && random.chance(700) { 2 } else { calm.replicas };
        let members = replicas as u64 + random.below(3);
        // Some runs have few kinds of faults, and so many of one kind one after the other.
        let mut weight = || if random.chance(300) { 0 } else { 1 + random.below(5) as u32 };
        let weights: [u32; 13] = std::array::from_fn(|_| weight());
        let breakage = |random: &mut Random, replica: ReplicaId| {
            let kinds = [
                Breakage::Connections(replica),
                Breakage::Server(replica),
                Breakage::Lane(replica),
                Breakage::Node,
                Breakage::Join,
                Breakage::Depart { replica, at_once: true },
                Breakage::Depart { replica, at_once: false },
                Breakage::Pause(replica),
                Breakage::PauseNode,
                Breakage::SlowDisk,
                Breakage::Clock,
                Breakage::Diverge(replica),
                Breakage::GiveUp,
            ];
            let kinds: [(u32, Breakage); 13] = std::array::from_fn(|nth| (weights[nth], kinds[nth]));
            random.weighted(&kinds).unwrap_or(Breakage::Node)
        };
        let mut breakages = Vec::new();
        for _ in 0..random.between(1, 14) * u64::from(length) {
            let replica = random.replica_or_here(members);
            breakages.push((calm.tortured_moment(random), breakage(random, replica)));
        }
        // Two steps come about by a fault only, and not by each: that one, and then another.
        let transactions = calm.clients as u64 * u64::from(calm.transactions_per_client);
        let begins = random.between(1, transactions / 2);
        if random.chance(300) {
            let loss = random.pick(&[
                Breakage::Connections(HERE),
                Breakage::Server(HERE),
                Breakage::Lane(HERE),
                Breakage::Diverge(HERE),
            ]);
            breakages.push((Moment::FirstWrite(begins), loss));
            breakages.push((Moment::FirstWrite(begins + 1), loss));
            breakages.push((Moment::Move(1), breakage(random, HERE)));
        }
        // What failing statements showed is still to be had when the home is lost: more is shown at the next one.
        let (mut joins, mut impatient) = (0, 0);
        if random.chance(300) {
            joins = OFTEN;
            for nth in 1..=20 * u64::from(length) {
                let loss = random.pick(&[Breakage::Connections(HERE), Breakage::Lane(HERE)]);
                breakages.push((Moment::Shown(nth), loss));
            }
            // There is but one other home, which contains less; and whoever held what was shown leaves it as it was.
            if random.chance(800) {
                calm.clients = 12;
                calm.transactions_per_client *= 20 / length;
                replicas = 2;
                calm.apply_slowness = 20;
                calm.keys = random.between(1, 2);
                calm.mix.rollback_per_mille = 400;
            }
        }
        if random.chance(300) {
            let replica = random.replica_or_here(members);
            let leaves = Breakage::Depart { replica: HERE, at_once: false };
            breakages.push((Moment::FirstWrite(begins), leaves));
            breakages.push((Moment::Leave(1), breakage(random, replica)));
        }
        // Who waits since nobody serves gives up.
        if random.chance(200) {
            for nth in 0..3 {
                let at = Moment::FirstWrite(begins + 3 * nth);
                let all = (0..members).map(|replica| Breakage::Connections(ReplicaId(replica as u16)));
                breakages.extend(all.map(|loss| (at, loss)));
                let lost = Moment::Lost((nth + 1) * replicas as u64);
                breakages.extend([(lost, Breakage::GiveUp); 3]);
            }
        }
        // What is done again somewhere is lost before it is done, and whoever then waits gives up.
        if random.chance(250) {
            impatient = random.pick(&[0, OFTEN]);
            let all = random.chance(500);
            for nth in 1..=8 {
                let lost = if all { 0..members } else { 0..1 };
                let loss = |id| Breakage::Connections(if all { ReplicaId(id as u16) } else { HERE });
                breakages.extend(lost.map(|id| (Moment::Revalidate(nth), loss(id))));
                let losses = if all { replicas as u64 } else { 1 };
                breakages.extend([(Moment::Lost(nth * losses), Breakage::GiveUp); 3]);
            }
        }
        let lost_commits_max = random.pick(&[0, 1, 5]);
        let poison_per_mille = random.pick(&[0, 0, 10, 40]);
        let mut mix = Mix { poison_per_mille, ..calm.mix.clone().focused(random) };
        mix.joins += joins;
        mix.impatient += impatient;
        Scenario { replicas, breakages, lost_commits_max, mix, ..calm }
    }

    /// Any moment; those that come about by faults only are among the first of their kind.
    fn tortured_moment(&self, random: &mut Random) -> Moment {
        let transactions = self.clients as u64 * u64::from(self.transactions_per_client);
        match random.below(15) {
            0..=4 => self.moment(random),
            5 => Moment::Move(random.between(1, 3)),
            6 => Moment::FirstWrite(random.between(1, transactions / 2)),
            7 => Moment::Durable(random.between(1, transactions / 2)),
            8 => Moment::Commit(random.between(1, transactions / 2)),
            9 => Moment::Lost(random.between(1, 4)),
            10 => Moment::Back(random.between(1, 8)),
            11 => Moment::Copy(random.between(1, 2)),
            12 => Moment::Leave(random.between(1, 2)),
            13 => Moment::Behind(random.between(1, 3)),
            _ => Moment::Revalidate(random.between(1, 5)),
        }
    }

    fn moment(&self, random: &mut Random) -> Moment {
        let transactions = self.clients as u64 * u64::from(self.transactions_per_client);
        match random.below(8) {
            0..=2 => Moment::Step(random.below(40 * transactions)),
            3 => Moment::Append(random.between(1, transactions / 2)),
            4 | 5 => Moment::CommitAt(random.between(1, transactions / 2)),
            6 => Moment::Apply(random.between(1, transactions)),
            _ => Moment::Revalidate(random.between(1, 5)),
        }
    }
}

/// Now and then as it is by default; else with waits of the length of a run's, and limits that are met.
fn tuning(random: &mut Random) -> Tuning {
    if random.chance(300) {
        return Tuning::default();
    }
    Tuning {
        turn_slack_ns: random.pick(&[None, Some(100_000.0), Some(1_000_000.0)]),
        turn_ns: random.pick(&[0, 500_000, 40_000_000]),
        home_slack_ns: random.pick(&[None, Some(100_000.0), Some(5_000_000.0)]),
        linger_ns: random.pick(&[0, 200_000, 2_000_000, 40_000_000]),
        linger_decisions: random.pick(&[1, 2, 8, 256]),
        limits: Limits {
            items: random.pick(&[0, 1, 3, 1_000]),
            versions: random.pick(&[0, 4, 30, 1_000_000]),
            column_sets: random.pick(&[0, 1, 2, 8]),
            near: random.pick(&[0, 1, 5, 10_000]),
            run: random.pick(&[1, 3, 256]),
            reserved_values: random.pick(&[1, 2, 10, 1_000]),
        },
        ..Tuning::default()
    }
}

impl Mix {
    /// Of half of the seeds a mix in which some of the rarer kinds of transactions are frequent, and statements are given up often:
    /// what takes several of them would hardly come about else.
    fn focused(mut self, random: &mut Random) -> Mix {
        if random.chance(500) {
            return self;
        }
        for _ in 0..3 {
            let rare = [
                &mut self.joins,
                &mut self.lock_table,
                &mut self.impatient,
                &mut self.truncate,
                &mut self.unclassified,
                &mut self.families,
                &mut self.change_then_insert,
            ];
            let chosen = random.below(rare.len() as u64) as usize;
            let more = random.pick(&[40, 40, OFTEN]);
            rare.into_iter().skip(chosen).take(1).for_each(|weight| *weight += more);
        }
        self.cancel_per_mille += random.below(300);
        self
    }

    /// A mix in which some kinds of transactions are frequent and others do not occur, so that runs differ.
    fn drawn(random: &mut Random) -> Mix {
        let mut weight =
            |often: u32| if random.chance(300) { 0 } else { random.below(u64::from(often)) as u32 };
        Mix {
            single_read: 5 + weight(30),
            single_write: 1 + weight(30),
            anything: weight(20),
            read_then_update: weight(20),
            skew: weight(20),
            insert_after_scan: weight(20),
            reads: weight(20),
            locking: weight(10),
            impatient: weight(15),
            replace_unique: weight(8),
            truncate: weight(3),
            uniques: weight(10) > 2,
            rollback_per_mille: u64::from(weight(100)),
            vanish_per_mille: u64::from(weight(60)),
            cancel_per_mille: u64::from(weight(60)),
            stall_per_mille: u64::from(weight(60)),
            joins: weight(40),
            families: weight(10),
            lock_table: weight(10),
            change_then_insert: weight(5),
            unclassified: weight(10),
            poison_per_mille: 0,
        }
    }
}

impl Random {
    /// One of the replicas that there may be, or the one at which it comes about.
    fn replica_or_here(&mut self, members: u64) -> ReplicaId {
        if self.chance(500) { HERE } else { ReplicaId(self.below(members) as u16) }
    }
}
