//! One experiment: a protocol of the family, so many sites, a rate.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use onecopy_core::protocol::certified::{Certified, Commits};
use onecopy_core::protocol::wide_area::{Choice, Delivery, Execution, Items, Queries, WideArea};
use onecopy_core::{Instant, Moment, Protocol};
use onecopy_sim::sites::{
    Costs, Discipline, Distances, Fault, Measured, Order, Outcome, Patience, Sending, Served, Setup, Source,
    run,
};
use onecopy_workload::tpcw::MixName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bookstore::Visits;
use super::tables::TenTables;
use crate::variation::Variation;

const MS: u64 = 1_000_000;

/// What the sites of the paper are taken to be. Fitted only to what a server does alone (5.2: it saturates near 40 a second, so that a
/// transaction takes 25 ms); the distance, and what the middleware takes, are of our own choice.
const COSTS: Costs = Costs {
    update_ns: 20 * MS,
    query_ns: 25 * MS,
    apply_ns: 5 * MS,
    apply_ends_ns: 0,
    commit_ns: 5 * MS,
    message_ns: MS,
    writes_ns: MS,
    token_ns: MS,
};
/// The same on the machine that this was developed on: PostgreSQL 15 with one client and `synchronous_commit = off`, CPU time of its processes over eight
/// seconds each (2.2 ms for ten UPDATEs by key in a transaction, 2.3 for ten SELECTs, 0.4 for one UPDATE of ten rows); what a message takes is a guess.
const THIS_MACHINE: Costs = Costs {
    update_ns: 2 * MS,
    query_ns: 2_300_000,
    apply_ns: 400_000,
    apply_ends_ns: 200_000,
    commit_ns: 200_000,
    message_ns: 100_000,
    writes_ns: 100_000,
    token_ns: 100_000,
};
/// Turns of which a real site applies those together that follow each other.
const TOGETHER_MAX: usize = 32;
/// For how long sites gather what they tell of messages, as real ones do by the batch.
const GATHERS_NS: u64 = 10 * MS;
/// What the middleware takes for a message and for the token with [`Variation::SlowMiddleware`].
const SLOW_MIDDLEWARE_NS: u64 = 5 * MS;
/// What it takes for a message with writes with [`Variation::HeavyWrites`].
const HEAVY_WRITES_NS: u64 = 20 * MS;
/// For how long messages occupy their sender's link with [`Variation::SlowLinks`].
const SLOW_LINKS: Sending = Sending { message_ns: 3_500_000, writes_ns: 6_500_000 };
/// What a query, an update and its commit take with [`Variation::DearQueries`], together as much as otherwise.
const DEAR_QUERIES_NS: [u64; 3] = [40 * MS, 6 * MS, 4 * MS];
/// One way from a site to another: half of a round trip of 50 ms.
const DISTANCE_NS: u64 = 25 * MS;
/// The same with [`Variation::FarSites`].
const FAR_NS: u64 = 50 * MS;
/// By how much more a message takes at most.
const JITTER: f64 = 0.2;
/// Messages that a site may send at a time.
const BURST: usize = 20;
/// The same with [`Variation::ShortBursts`].
const SHORT_BURST: usize = 2;
/// The same with [`Variation::LongBursts`].
const LONG_BURST: usize = 200;
/// Transactions that a site executes at a time with [`Variation::FewConnections`]: the paper's middleware has a pool of connections (5.1), and does not say how many.
const FEW_CONNECTIONS: usize = 4;
/// Transactions of each site's client (5.1).
const EACH: u64 = 800;
/// Where sites do ten times as much, so long do they come at least, in seconds: what is a little too much must be seen to be.
const LASTS_S: u32 = 30;

/// What is run, but for its seed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WideExperiment {
    /// The protocol.
    pub system: WideSystem,
    /// Sites.
    pub sites: u16,
    /// Transactions a second at all sites together.
    pub rate: u32,
    /// What they are.
    pub arrivals: Arrivals,
    /// In what else it differs.
    pub variations: BTreeSet<Variation>,
}

/// What arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Arrivals {
    /// The paper's benchmark.
    #[default]
    TenTables,
    /// Transactions of the bookstore, at costs of the machine that this was developed on.
    Bookstore(MixName),
}

/// A protocol for sites.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WideSystem {
    /// One of the family.
    Family(Choice),
    /// That which executes first, on rows.
    Certified(Commits),
}

impl WideSystem {
    /// Whether each update executes where its client is, whoever else executes it.
    fn executes_at_client(self) -> bool {
        match self {
            WideSystem::Family(choice) => choice.execution == Execution::Symmetric,
            WideSystem::Certified(_) => true,
        }
    }

    /// How many updates of other sites are applied in one database transaction, as by real sites (`runtime/src/sites/site/turns.rs`).
    fn together_max(self) -> usize {
        match self {
            WideSystem::Family(_) => 1,
            WideSystem::Certified(_) => TOGETHER_MAX,
        }
    }

    /// The moments from which an update has its place, and from which it may commit.
    fn moments(self) -> [Moment; 2] {
        match self {
            WideSystem::Family(Choice { delivery, .. }) => [delivery.takes_place_at(), delivery.commits_at()],
            WideSystem::Certified(Commits::Ordered) => [Moment::Ordered, Moment::Ordered],
            WideSystem::Certified(Commits::Stable) => [Moment::Ordered, Moment::Stable],
        }
    }

    fn protocol(self, sites: u16) -> Box<dyn Protocol> {
        match self {
            WideSystem::Family(choice) => Box::new(WideArea::new(choice, sites)),
            WideSystem::Certified(commits) => Box::new(Certified::new(commits, sites)),
        }
    }
}

/// A name that no protocol for sites has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "no protocol for sites is called {name}: say how updates execute (symmetric, primary_copy, local_copy) and how they are delivered (agreed, \
     safe, opt_agreed, opt_safe, ordered_opt_safe), with \"locked\" before that if queries are locked, or \"ordered\" if commits are in order, and with \"rows\" in the end if conflicts are counted on these; or \"certified\" and agreed or safe"
)]
pub struct UnknownWideSystem {
    /// What was asked for.
    pub name: String,
}

/// A run of which the figures say nothing.
#[derive(Debug, Error)]
#[error("run {experiment}: {what}; please report this, it is a bug")]
pub struct WideError {
    experiment: WideExperiment,
    what: String,
}

/// A figure of an experiment. Times are means, in seconds; parts of response times are those of updates at their client's site.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WideMetric {
    /// Answers a second, but for the first tenth and the last.
    Throughput,
    /// How long updates take.
    Updates,
    /// The same of those that execute at their client's site.
    LocalUpdates,
    /// The same of the others.
    RemoteUpdates,
    /// How long queries take.
    Queries,
    /// From arrival until an update's message is here.
    Received,
    /// From arrival until its place is known.
    Ordered,
    /// From arrival until it is stable.
    Stable,
    /// From arrival until it may take its place, of those that execute at their client's site.
    Delivery,
    /// Of those, how long they execute.
    Execution,
    /// Of those, the rest of the response time.
    Rest,
    /// The share of updates that execute at their client's site only.
    Local,
    /// The share of an execution that lies before the last delivery.
    Overlap,
    /// Messages that arrive out of order, of all.
    OutOfOrder,
    /// Executions that are undone, for each update.
    Undone,
    /// Messages from one site to another, but for the token, for each update.
    Messages,
}

/// What came of an experiment with one seed. The names are those of columns in `wide.csv`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of WideMetric")]
pub struct WideFigures {
    pub throughput: f64,
    pub updates_s: f64,
    pub local_updates_s: f64,
    pub remote_updates_s: f64,
    pub queries_s: f64,
    pub received_s: f64,
    pub ordered_s: f64,
    pub stable_s: f64,
    pub delivery_s: f64,
    pub execution_s: f64,
    pub rest_s: f64,
    pub local: f64,
    pub overlap: f64,
    pub out_of_order: f64,
    pub undone: f64,
    pub messages: f64,
}

const EXECUTIONS: [(&str, Execution); 3] = [
    ("symmetric", Execution::Symmetric),
    ("primary_copy", Execution::PrimaryCopy),
    ("local_copy", Execution::LocalCopy),
];

const DELIVERIES: [(&str, Delivery); 5] = [
    ("agreed", Delivery::Agreed),
    ("safe", Delivery::Safe),
    ("opt_agreed", Delivery::OptAgreed),
    ("opt_safe", Delivery::OptSafe),
    ("ordered_opt_safe", Delivery::OrderedOptSafe),
];

const CERTIFIED: [(&str, Commits); 2] = [("agreed", Commits::Ordered), ("safe", Commits::Stable)];

fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Option<T> {
    all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn name_of<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

impl WideExperiment {
    /// A protocol, by words such as `locked symmetric agreed rows`, on so many sites at a rate.
    ///
    /// # Errors
    /// If there is no such protocol.
    pub fn new(system: &str, sites: u16, rate: u32) -> Result<WideExperiment, UnknownWideSystem> {
        let system = named_system(system).ok_or_else(|| UnknownWideSystem { name: system.to_owned() })?;
        let arrivals = Arrivals::TenTables;
        Ok(WideExperiment { system, sites, rate, arrivals, variations: BTreeSet::new() })
    }

    /// The protocol's words.
    #[must_use]
    pub fn words(&self) -> String {
        let Choice { queries, execution, delivery, items } = match self.system {
            WideSystem::Family(choice) => choice,
            WideSystem::Certified(commits) => return format!("certified {}", name_of(&CERTIFIED, commits)),
        };
        let queries = match queries {
            Queries::Snapshot => "ordered ",
            Queries::Locked => "locked ",
            Queries::LooseSnapshot => "",
        };
        let items = if items == Items::Rows { " rows" } else { "" };
        format!("{queries}{} {}{items}", name_of(&EXECUTIONS, execution), name_of(&DELIVERIES, delivery))
    }

    /// Runs it.
    ///
    /// # Errors
    /// If something went wrong that only a bug can bring about.
    pub fn run(&self, seed: u64) -> Result<WideFigures, WideError> {
        let outcome = self.outcome(seed, None)?;
        Ok(self.figures(&outcome.measured))
    }

    /// Runs it, or begins to: nothing if those of whom figures are wait for more than so many seconds on average, which is known before such a run has ended.
    ///
    /// # Errors
    /// If something went wrong that only a bug can bring about.
    pub fn run_within(&self, seed: u64, response_s: f64) -> Result<Option<WideFigures>, WideError> {
        let of = measured_of(self.transactions());
        let sum_ns = (of.end - of.start) as f64 * response_s * 1e9;
        let outcome = self.outcome(seed, Some(Patience { of, sum_ns: sum_ns as u128 }))?;
        Ok((!outcome.given_up).then(|| self.figures(&outcome.measured)))
    }

    /// How many arrive.
    fn transactions(&self) -> u64 {
        let each = EACH * u64::from(self.sites);
        match self.variations.contains(&Variation::ThisMachine) {
            true => each.max(u64::from(self.rate * LASTS_S)),
            false => each,
        }
    }

    fn outcome(&self, seed: u64, gives_up: Option<Patience>) -> Result<Outcome, WideError> {
        let failed = |what: String| WideError { experiment: self.clone(), what };
        let has = |variation| self.variations.contains(&variation);
        let distance_ns = if has(Variation::FarSites) { FAR_NS } else { DISTANCE_NS };
        let mut costs = if has(Variation::ThisMachine) { THIS_MACHINE } else { COSTS };
        if has(Variation::SlowMiddleware) {
            (costs.message_ns, costs.token_ns) = (SLOW_MIDDLEWARE_NS, SLOW_MIDDLEWARE_NS);
            costs.writes_ns = SLOW_MIDDLEWARE_NS;
        }
        if has(Variation::HeavyWrites) {
            costs.writes_ns = HEAVY_WRITES_NS;
        }
        if has(Variation::DearQueries) {
            [costs.query_ns, costs.update_ns, costs.commit_ns] = DEAR_QUERIES_NS;
        }
        if has(Variation::DearApplies) {
            (costs.apply_ns, costs.apply_ends_ns) = (costs.update_ns, 0);
        }
        let mut source: Box<dyn Source> = match self.arrivals {
            Arrivals::TenTables => Box::new(TenTables::new(seed, has(Variation::TwoTables))),
            Arrivals::Bookstore(mix) => {
                let visits = Visits::new(mix, seed).map_err(failed)?;
                (costs.commit_ns, costs.apply_ends_ns) = (visits.commit_ns(), visits.commit_ns());
                Box::new(visits)
            }
        };
        let setup = Setup {
            seed,
            distances: Distances::equal(self.sites, distance_ns, JITTER),
            rate: f64::from(self.rate),
            transactions: self.transactions(),
            costs,
            sending: if has(Variation::SlowLinks) { SLOW_LINKS } else { Sending::default() },
            order: match () {
                () if has(Variation::Sequencer) => {
                    Order::Sequencer { gathers_ns: if has(Variation::ThisMachine) { GATHERS_NS } else { 0 } }
                }
                () if has(Variation::ShortBursts) => Order::Token { burst: SHORT_BURST },
                () if has(Variation::LongBursts) => Order::Token { burst: LONG_BURST },
                () => Order::Token { burst: BURST },
            },
            discipline: if has(Variation::OneByOne) { Discipline::Queued } else { Discipline::Shared },
            executing_max: has(Variation::FewConnections).then_some(FEW_CONNECTIONS),
            together_max: self.system.together_max(),
            history: false,
            gives_up,
        };
        let outcome = run(&setup, &mut *source, self.system.protocol(self.sites))
            .map_err(|error| failed(error.to_string()))?;
        match outcome.faults.first().map(Fault::to_string) {
            Some(fault) => Err(failed(fault)),
            None => Ok(outcome),
        }
    }

    fn figures(&self, measured: &Measured) -> WideFigures {
        let all = &measured.served;
        let of = measured_of(all.len() as u64);
        let served = &all[of.start as usize..of.end as usize];
        let updates: Vec<&Served> = served.iter().filter(|of| of.updates).collect();
        let executes_here =
            |of: &&Served| self.system.executes_at_client() || of.executed_at == Some(of.site);
        let (local, remote): (Vec<&Served>, Vec<&Served>) = updates.iter().partition(|of| executes_here(of));
        let response = |of: &&Served| of.response_ns();
        // Who executes first is delivered afterwards.
        let sent = |of: &&Served| match self.system {
            WideSystem::Family(_) => Some(of.arrived),
            WideSystem::Certified(_) => of.executed,
        };
        let until = |moment: usize| move |of: &&Served| Some(of.delivered[moment]?.since_ns(sent(of)?));
        let [takes_place, last] = self.system.moments().map(|moment| moment as usize);
        let execution = |of: &&Served| Some(of.executed?.since_ns(of.begun?));
        let (delivery_s, execution_s) = (mean_s(&local, until(takes_place)), mean_s(&local, execution));
        let overlapped = |of: &&Served| Some(of.executed?.min(of.delivered[last]?).since_ns(of.begun?));
        let queries: Vec<&Served> = served.iter().filter(|of| !of.updates).collect();
        let count = |of: usize| of.max(1) as f64;
        let updates_of_all = all.iter().filter(|of| of.updates).count();
        WideFigures {
            throughput: answers_a_second(all),
            updates_s: mean_s(&updates, response),
            local_updates_s: mean_s(&local, response),
            remote_updates_s: mean_s(&remote, response),
            queries_s: mean_s(&queries, response),
            received_s: mean_s(&updates, until(0)),
            ordered_s: mean_s(&updates, until(1)),
            stable_s: mean_s(&updates, until(2)),
            delivery_s,
            execution_s,
            rest_s: mean_s(&local, response) - delivery_s - execution_s,
            local: local.len() as f64 / count(updates.len()),
            overlap: mean_s(&local, overlapped) / execution_s.max(f64::MIN_POSITIVE),
            out_of_order: measured.out_of_order as f64 / (measured.ordered as f64).max(1.0),
            undone: measured.undone() as f64 / count(updates_of_all),
            messages: measured.messages as f64 / count(updates_of_all),
        }
    }
}

/// How many answers come in a second, but for the first tenth of them and the last: all over the whole time
/// would take sites at which everybody waits for seconds for such as fall behind. Not a number where fewer
/// than two are left, or all come at one instant.
fn answers_a_second(served: &[Served]) -> f64 {
    let mut answered: Vec<Instant> = served.iter().filter_map(|of| of.answered).collect();
    answered.sort_unstable();
    let of = measured_of(answered.len() as u64);
    match answered.get(of.start as usize..of.end as usize) {
        Some([first, .., last]) if last > first => {
            (of.end - of.start - 1) as f64 * 1e9 / last.since_ns(*first) as f64
        }
        _ => f64::NAN,
    }
}

/// Of whom figures are, of so many by arrival: neither the first tenth nor the last.
fn measured_of(transactions: u64) -> Range<u64> {
    let tenth = transactions / 10;
    tenth..transactions - tenth
}

fn named_system(system: &str) -> Option<WideSystem> {
    match system.strip_prefix("certified ") {
        Some(commits) => named(&CERTIFIED, commits).map(WideSystem::Certified),
        None => choice(system).map(WideSystem::Family),
    }
}

fn choice(system: &str) -> Option<Choice> {
    let mut words = system.split(' ').peekable();
    let queries = match *words.peek()? {
        "locked" => Queries::Locked,
        "ordered" => Queries::Snapshot,
        _ => Queries::LooseSnapshot,
    };
    if queries != Queries::LooseSnapshot {
        words.next();
    }
    let (execution, delivery) = (named(&EXECUTIONS, words.next()?)?, named(&DELIVERIES, words.next()?)?);
    let items = match words.next() {
        None => Items::Tables,
        Some("rows") => Items::Rows,
        Some(_) => return None,
    };
    words.next().is_none().then_some(Choice { queries, execution, delivery, items })
}

fn mean_s(of: &[&Served], time: impl Fn(&&Served) -> Option<u64>) -> f64 {
    let times: Vec<u64> = of.iter().filter_map(time).collect();
    times.iter().sum::<u64>() as f64 / times.len().max(1) as f64 / 1e9
}

impl fmt::Display for WideExperiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arrivals {
            Arrivals::TenTables => write!(f, "ten tables")?,
            Arrivals::Bookstore(mix) => write!(f, "bookstore, {mix}")?,
        }
        write!(f, ", {}, {} sites, {} a second", self.words(), self.sites, self.rate)?;
        self.variations.iter().try_for_each(|variation| write!(f, ", {}", variation.description()))
    }
}

impl WideFigures {
    /// One of them.
    #[must_use]
    pub fn get(&self, metric: WideMetric) -> f64 {
        match metric {
            WideMetric::Throughput => self.throughput,
            WideMetric::Updates => self.updates_s,
            WideMetric::LocalUpdates => self.local_updates_s,
            WideMetric::RemoteUpdates => self.remote_updates_s,
            WideMetric::Queries => self.queries_s,
            WideMetric::Received => self.received_s,
            WideMetric::Ordered => self.ordered_s,
            WideMetric::Stable => self.stable_s,
            WideMetric::Delivery => self.delivery_s,
            WideMetric::Execution => self.execution_s,
            WideMetric::Rest => self.rest_s,
            WideMetric::Local => self.local,
            WideMetric::Overlap => self.overlap,
            WideMetric::OutOfOrder => self.out_of_order,
            WideMetric::Undone => self.undone,
            WideMetric::Messages => self.messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_has_the_words_that_it_was_asked_for_by() {
        for system in [
            "symmetric agreed",
            "locked local_copy opt_safe",
            "ordered primary_copy safe rows",
            "certified safe",
        ] {
            let experiment = WideExperiment::new(system, 4, 20).expect("there is one");
            assert_eq!(experiment.words(), system);
        }
        for system in [
            "",
            "symmetric",
            "agreed symmetric",
            "symmetric agreed row",
            "symmetric agreed rows x",
            "certified opt_safe",
        ] {
            let error = WideExperiment::new(system, 4, 20).expect_err("there is none").to_string();
            assert!(error.contains("primary_copy"), "{error}");
        }
    }

    #[test]
    fn what_differs_makes_a_difference() {
        let plain = WideExperiment::new("local_copy agreed", 4, 60).expect("there is one");
        let figures = plain.run(0).expect("it runs");
        for variation in Variation::ALL {
            let mut varied = plain.clone();
            variation.apply_to_wide(&mut varied);
            if varied != plain {
                let differs = varied.run(0).expect("it runs") != figures;
                // So few messages never wait for a second turn.
                assert_eq!(differs, variation != Variation::LongBursts, "{varied}");
                assert!(varied.to_string().ends_with(variation.description()), "{varied}");
            }
        }
    }

    #[test]
    fn answers_a_second_are_of_the_middle_of_a_run() {
        let answered_ms = |all: &mut dyn Iterator<Item = u64>| {
            let served = |ms: u64| Served {
                updates: false,
                site: 0,
                arrived: Instant(0),
                delivered: [None; 3],
                executed_at: None,
                begun: None,
                executed: None,
                answered: Some(Instant(ms * MS)),
                undone: 0,
                failed: false,
            };
            answers_a_second(&all.map(served).collect::<Vec<_>>())
        };
        // One each 10 ms, however late the first is, and in whatever order they came.
        assert_eq!(answered_ms(&mut (0..100).map(|nth| 7_000 + 10 * nth).rev()), 100.0);
        // The last five together, and much later.
        assert_eq!(answered_ms(&mut (0..95).map(|nth| 10 * nth).chain([90_000; 5])), 100.0);
        for too_few in [0, 1] {
            assert!(answered_ms(&mut (0..too_few)).is_nan(), "{too_few}");
        }
        assert!(answered_ms(&mut [5; 50].into_iter()).is_nan());
    }

    #[test]
    fn what_takes_too_long_is_given_up_and_nothing_else() {
        let experiment = WideExperiment::new("symmetric agreed", 4, 60).expect("there is one");
        let figures = experiment.run(0).expect("it runs");
        // Half of them are updates, but for chance.
        let (shortest, longest) = (figures.queries_s, figures.updates_s);
        assert!(shortest < longest, "{figures:?}");
        let within = |response_s| experiment.run_within(0, response_s).expect("it runs");
        assert_eq!((within(shortest), within(longest)), (None, Some(figures)));
    }

    #[test]
    fn long_bursts_carry_what_waits_for_several_turns_of_short_ones() {
        let ordered_s = |burst: Variation| {
            let mut experiment = WideExperiment::new("certified agreed", 4, 200).expect("there is one");
            for variation in [Variation::ThisMachine, Variation::FarSites, burst] {
                variation.apply_to_wide(&mut experiment);
            }
            experiment.run(0).expect("it runs").ordered_s
        };
        assert!(ordered_s(Variation::LongBursts) < ordered_s(Variation::ShortBursts) / 2.0);
    }

    #[test]
    fn messages_are_one_to_each_other_site_and_one_more_where_writes_are_sent() {
        let messages = |system: &str| {
            let experiment = WideExperiment::new(system, 4, 20).expect("there is one");
            experiment.run(0).expect("it runs").messages
        };
        assert!((messages("symmetric agreed") - 3.0).abs() < 1e-9);
        assert!((messages("local_copy agreed") - 6.0).abs() < 1e-9);
    }

    #[test]
    fn parts_of_the_response_time_make_it_up_and_one_server_does_what_a_server_alone_did() {
        let four = WideExperiment::new("symmetric agreed", 4, 20).expect("there is one");
        let figures = four.run(0).expect("it runs");
        let sum = figures.delivery_s + figures.execution_s + figures.rest_s;
        assert!((sum - figures.updates_s).abs() < 1e-9, "{figures:?}");
        assert!(figures.received_s <= figures.ordered_s && figures.ordered_s < figures.stable_s);

        let alone = |rate| {
            let experiment = WideExperiment::new("symmetric agreed", 1, rate).expect("there is one");
            experiment.run(0).expect("it runs")
        };
        let (idle, overloaded) = (alone(5).queries_s, alone(60).updates_s);
        assert!(idle < 0.05 && overloaded > 1.0, "{idle} {overloaded}");
    }
}
