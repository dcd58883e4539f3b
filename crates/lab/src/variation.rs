//! In what clusters can differ from what is decided on.

use std::collections::BTreeSet;

use onecopy_sim::perf::{Discipline, Latency, Profile};
use onecopy_workload::catalogue::Catalogue;

use crate::experiment::{Durability, Experiment, Metric, Mix};
use crate::whole::WholeExperiment;
use crate::wide::WideExperiment;

/// In what clusters differ from what is decided on, to see how much depends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Variation {
    /// Databases share their CPUs among all statements.
    Shared,
    /// Databases let what writes overtake what reads.
    WritesFirst,
    /// Databases serve one statement after the other, first come, first served.
    Queued,
    /// Decisions are durable at once, without a disk.
    Memory,
    /// The bookstore's carts lie in tables of their own.
    TenTables,
    /// Half of the conflicts of tables count, as in CAS 9.4.
    HalfConflicts,
    /// A quarter of them.
    QuarterConflicts,
    /// One of a hundred.
    FewConflicts,
    /// Each message takes 2 ms: so does whoever computes between two statements.
    SlowNetwork,
    /// The heavy read of the bookstore's administrators costs as much as an ordinary one.
    LightAdmin,
    /// The statements of the bookstore's page of the shopping cart need no CPU, so wait for none.
    FreeCarts,
    /// Whatever transactions read that write as well costs four times as much.
    LongUpdates,
    /// What orders read costs twelve times as much.
    LongOrders,
    /// No read costs more than 50 ms.
    ShortReads,
    /// The queries of an auction page that changes nothing are one transaction, as in the PHP version of RUBiS.
    BracketedPages,
    /// What takes databases so long on average takes each of them another time, negative exponentially.
    Uneven,
    /// Every system has as many users as would just saturate its databases if nothing ever waited.
    SameUsers,
    /// Every system, with however many databases, has as many users as would just saturate four of them, when shopping, if nothing ever waited.
    UsersOfFour,
    /// Half as many.
    FewUsers,
    /// Every system has as many users as serve it best.
    OwnPeaks,
    /// The bookstore has 10,000 items and 144,000 customers, not 100,000 and 288,000, and each read that costs more than 50 ms costs a tenth.
    SmallBookstore,
    /// It has 100,000 items.
    LargeBookstore,
    /// `partitioned` does not divide the items.
    WholeItems,
    /// Under locks, only who writes counts as writing, not whoever asks for a table.
    WritesCount,
    /// `onecopy` counts conflicts on whole tables, as the other systems do.
    OnTables,
    /// At `onecopy`'s databases, applying a write costs as much of executing it as was measured.
    MeasuredApply,
    /// Peers take tables in parts, by the first columns of their keys, and know which rows statements name.
    CutTables,
    /// The auction site's visitors walk by the published probabilities, repaired where they did not add up.
    RepairedColumn,
    /// Single updates hold their tables at each database until they are committed there, under table locks.
    HeldUpdates,
    /// Single reads ask for their locks everywhere and run where they are granted first, under `fixed_conflict`.
    AskingReads,
    /// `round_robin` and `tashkent_plus` find conflicts by the rows that were written, not by Gargamel's Table II.
    RowsWritten,
    /// Transactions take as long under Tashkent+ as elsewhere.
    NoDiscount,
    /// Under Tashkent+, penalty ratio and speed-up are by what transactions would take elsewhere.
    UndiscountedRatios,
    /// Workers of `round_robin` and `tashkent_plus` take what comes from one queue.
    OneQueue,
    /// What `round_robin` and `tashkent_plus` give up runs again behind what waits.
    RetryLast,
    /// To certify takes `round_robin` and `tashkent_plus` the consensus of Gargamel's Table I.
    Consensus,
    /// It is drawn anew for each execution of a whole transaction how long it takes.
    DrawnAnew,
    /// Each whole transaction takes the mean of its kind.
    MeanDurations,
    /// Whole transactions arrive at equal distances.
    EvenArrivals,
    /// The classifier of `chains` knows which customer has a name.
    KnownCustomers,
    /// At sites, the middleware takes 5 ms for each message and for the token.
    SlowMiddleware,
    /// At sites, to apply what an update wrote costs as much as to execute it.
    DearApplies,
    /// At sites, a query takes 40 ms, and an update 10.
    DearQueries,
    /// A site may send two messages while it has the token.
    ShortBursts,
    /// A site may send two hundred.
    LongBursts,
    /// A message takes 50 ms from site to site.
    FarSites,
    /// A message with what an update wrote takes 20 ms of a site's CPU, as its statements do.
    HeavyWrites,
    /// A message occupies its sender's link for some time for each receiver, and the token waits behind it.
    SlowLinks,
    /// The first site numbers messages, in the place of a token that goes around.
    Sequencer,
    /// A site does one thing after the other, so messages and the token wait behind statements.
    OneByOne,
    /// A site executes at most so many transactions at a time as its middleware has connections, and these are few.
    FewConnections,
    /// Rows of a transaction at sites lie in two of the ten tables.
    TwoTables,
    /// What sites do takes as long as on the machine that this was developed on.
    ThisMachine,
}

/// How databases serve.
const DISCIPLINES: [Variation; 3] = [Variation::Shared, Variation::WritesFirst, Variation::Queued];

/// How many users there are.
const USERS: [Variation; 4] =
    [Variation::SameUsers, Variation::UsersOfFour, Variation::FewUsers, Variation::OwnPeaks];

/// Reads of the bookstore that cost more than this, in milliseconds, search: among items, or among recent orders.
const SEARCH_MS: f64 = 50.0;

/// What they cost with [`Variation::SmallBookstore`], which has a tenth of the items, of what they cost otherwise.
const SMALL_FACTOR: f64 = 0.1;

/// What the administrators' heavy read costs with [`Variation::LightAdmin`]: as much as the books of a page, in milliseconds.
const LIGHT_ADMIN_MS: f64 = 20.0;

/// How much more reads of what writes cost with [`Variation::LongUpdates`].
const LONG_UPDATES_FACTOR: f64 = 4.0;

/// How much more reads of orders cost with [`Variation::LongOrders`].
const LONG_ORDERS_FACTOR: f64 = 12.0;

/// What applying a write costs of executing it with [`Variation::MeasuredApply`]: as `make cluster-bench` found by the CPU time
/// of capped servers when ordering (docs/benchmarks.md).
const MEASURED_APPLY_FACTOR: f64 = 0.70;

/// The most that a read costs with [`Variation::ShortReads`], in milliseconds.
const SHORT_READ_MS: f64 = 50.0;

impl Variation {
    /// All of them.
    pub const ALL: [Variation; 53] = [
        Variation::Shared,
        Variation::WritesFirst,
        Variation::Queued,
        Variation::Memory,
        Variation::TenTables,
        Variation::HalfConflicts,
        Variation::QuarterConflicts,
        Variation::FewConflicts,
        Variation::SlowNetwork,
        Variation::LightAdmin,
        Variation::FreeCarts,
        Variation::LongUpdates,
        Variation::LongOrders,
        Variation::ShortReads,
        Variation::BracketedPages,
        Variation::Uneven,
        Variation::SameUsers,
        Variation::UsersOfFour,
        Variation::FewUsers,
        Variation::OwnPeaks,
        Variation::SmallBookstore,
        Variation::LargeBookstore,
        Variation::WholeItems,
        Variation::WritesCount,
        Variation::OnTables,
        Variation::MeasuredApply,
        Variation::CutTables,
        Variation::RepairedColumn,
        Variation::HeldUpdates,
        Variation::AskingReads,
        Variation::RowsWritten,
        Variation::NoDiscount,
        Variation::UndiscountedRatios,
        Variation::OneQueue,
        Variation::RetryLast,
        Variation::Consensus,
        Variation::DrawnAnew,
        Variation::MeanDurations,
        Variation::EvenArrivals,
        Variation::KnownCustomers,
        Variation::SlowMiddleware,
        Variation::DearApplies,
        Variation::DearQueries,
        Variation::ShortBursts,
        Variation::LongBursts,
        Variation::FarSites,
        Variation::HeavyWrites,
        Variation::SlowLinks,
        Variation::Sequencer,
        Variation::OneByOne,
        Variation::FewConnections,
        Variation::TwoTables,
        Variation::ThisMachine,
    ];

    /// As it is asked for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Variation::Shared => "shared",
            Variation::WritesFirst => "writes-first",
            Variation::Queued => "queued",
            Variation::Memory => "memory",
            Variation::TenTables => "ten-tables",
            Variation::HalfConflicts => "half-conflicts",
            Variation::QuarterConflicts => "quarter-conflicts",
            Variation::FewConflicts => "few-conflicts",
            Variation::SlowNetwork => "slow-network",
            Variation::LightAdmin => "light-admin",
            Variation::FreeCarts => "free-carts",
            Variation::LongUpdates => "long-updates",
            Variation::LongOrders => "long-orders",
            Variation::ShortReads => "short-reads",
            Variation::BracketedPages => "bracketed-pages",
            Variation::Uneven => "uneven",
            Variation::SameUsers => "same-users",
            Variation::FewUsers => "few-users",
            Variation::UsersOfFour => "users-of-four",
            Variation::OwnPeaks => "own-peaks",
            Variation::SmallBookstore => "small-bookstore",
            Variation::LargeBookstore => "large-bookstore",
            Variation::WholeItems => "whole-items",
            Variation::WritesCount => "writes-count",
            Variation::OnTables => "on-tables",
            Variation::MeasuredApply => "measured-apply",
            Variation::CutTables => "cut-tables",
            Variation::RepairedColumn => "repaired-column",
            Variation::HeldUpdates => "held-updates",
            Variation::AskingReads => "asking-reads",
            Variation::RowsWritten => "rows-written",
            Variation::NoDiscount => "no-discount",
            Variation::UndiscountedRatios => "undiscounted-ratios",
            Variation::OneQueue => "one-queue",
            Variation::RetryLast => "retry-last",
            Variation::Consensus => "consensus",
            Variation::DrawnAnew => "drawn-anew",
            Variation::MeanDurations => "mean-durations",
            Variation::EvenArrivals => "even-arrivals",
            Variation::KnownCustomers => "known-customers",
            Variation::SlowMiddleware => "slow-middleware",
            Variation::DearApplies => "dear-applies",
            Variation::DearQueries => "dear-queries",
            Variation::ShortBursts => "short-bursts",
            Variation::LongBursts => "long-bursts",
            Variation::FarSites => "far-sites",
            Variation::HeavyWrites => "heavy-writes",
            Variation::SlowLinks => "slow-links",
            Variation::Sequencer => "sequencer",
            Variation::OneByOne => "one-by-one",
            Variation::FewConnections => "few-connections",
            Variation::TwoTables => "two-tables",
            Variation::ThisMachine => "this-machine",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Variation> {
        Variation::ALL.into_iter().find(|variation| variation.name() == name)
    }

    /// Two of these that cannot be had together: of two ways to serve, or two shares of conflicts, an experiment has one.
    #[must_use]
    pub fn contradiction(variations: &[Variation]) -> Option<[Variation; 2]> {
        let alternatives: [&[Variation]; 7] = [
            &DISCIPLINES,
            &[Variation::HalfConflicts, Variation::QuarterConflicts, Variation::FewConflicts],
            &USERS,
            &[Variation::SmallBookstore, Variation::LargeBookstore],
            &[Variation::DearQueries, Variation::ThisMachine],
            &[Variation::DrawnAnew, Variation::MeanDurations],
            &[Variation::ShortBursts, Variation::LongBursts, Variation::Sequencer],
        ];
        alternatives.into_iter().find_map(|alternatives| {
            let mut asked = alternatives.iter().copied().filter(|one| variations.contains(one));
            Some([asked.next()?, asked.next()?])
        })
    }

    /// What is special about an experiment that has it.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Variation::Shared => "databases share their CPUs among all statements",
            Variation::WritesFirst => "databases let writes overtake reads",
            Variation::Queued => "databases serve one statement after the other",
            Variation::Memory => "decisions are durable without a disk",
            Variation::TenTables => "carts in tables of their own",
            Variation::HalfConflicts => "half of the conflicts count",
            Variation::QuarterConflicts => "a quarter of the conflicts count",
            Variation::FewConflicts => "one conflict in a hundred counts",
            Variation::SlowNetwork => "each message takes 2 ms",
            Variation::LightAdmin => "administrators read no more than others",
            Variation::FreeCarts => "the page of the shopping cart costs nothing",
            Variation::LongUpdates => "transactions that write read for four times as long",
            Variation::LongOrders => "orders read for twelve times as long",
            Variation::ShortReads => "no read costs more than 50 ms",
            Variation::BracketedPages => "pages that change nothing are transactions",
            Variation::Uneven => "times at databases drawn at random",
            Variation::SameUsers => "each system with as many users as saturate idle databases",
            Variation::UsersOfFour => {
                "each system with as many users as saturate four idle databases when shopping"
            }
            Variation::FewUsers => {
                "each system with half as many users as saturate four idle databases when shopping"
            }
            Variation::OwnPeaks => "each system with as many users as serve it best",
            Variation::SmallBookstore => "10,000 items in the bookstore, where searches cost a tenth",
            Variation::LargeBookstore => "100,000 items in the bookstore",
            Variation::WholeItems => "the items are not divided",
            Variation::WritesCount => "with locks, only who writes counts as writing",
            Variation::OnTables => "onecopy counts conflicts on whole tables",
            Variation::CutTables => "peers take tables in sixteen parts",
            Variation::MeasuredApply => "applying a write costs 0.70 of executing it",
            Variation::RepairedColumn => "fewer visitors of the auction site write",
            Variation::HeldUpdates => "single updates hold their tables until they are committed",
            Variation::AskingReads => "single reads of fixed_conflict ask for locks everywhere",
            Variation::RowsWritten => "conflicts found by the rows written",
            Variation::NoDiscount => "Tashkent+ saves no time",
            Variation::UndiscountedRatios => "ratios of Tashkent+ by the durations of the others",
            Variation::OneQueue => "one queue for all workers",
            Variation::RetryLast => "what is given up goes to the end of the queue",
            Variation::Consensus => "to certify takes 180 ms",
            Variation::DrawnAnew => "durations drawn anew for each execution",
            Variation::MeanDurations => "each transaction takes the mean of its kind",
            Variation::EvenArrivals => "transactions arrive at equal distances",
            Variation::KnownCustomers => "chains know which customer has a name",
            Variation::SlowMiddleware => "the middleware takes 5 ms for each message and the token",
            Variation::DearApplies => "to apply costs as much as to execute",
            Variation::DearQueries => "a query takes 40 ms, and an update 10",
            Variation::ShortBursts => "two messages for each turn of the token",
            Variation::LongBursts => "two hundred messages for each turn of the token",
            Variation::FarSites => "each message takes 50 ms from site to site",
            Variation::HeavyWrites => "a message with writes takes 20 ms of a site's CPU",
            Variation::SlowLinks => {
                "a message occupies a site's link for 3.5 ms for each receiver, writes for 6.5"
            }
            Variation::Sequencer => "the first site numbers messages",
            Variation::OneByOne => "a site does one thing after the other, messages too",
            Variation::FewConnections => "a site executes four transactions at a time",
            Variation::TwoTables => "transactions at sites touch two tables",
            Variation::ThisMachine => "sites as fast as the machine that this was developed on",
        }
    }

    /// Changes an experiment; one that is about the very thing, or has nothing to do with it, stays as it is. Of alternatives
    /// the later one counts.
    pub fn apply(self, experiment: &mut Experiment) {
        let is_bookstore = experiment.mix.bookstore().is_some();
        let concerns = match self {
            Variation::Memory => {
                if experiment.durability == Durability::Disk && !experiment.is_of_peers() {
                    experiment.durability = Durability::Memory;
                }
                false
            }
            Variation::HalfConflicts => less_conflicts(experiment, 50),
            Variation::QuarterConflicts => less_conflicts(experiment, 25),
            Variation::FewConflicts => less_conflicts(experiment, 1),
            Variation::Shared | Variation::WritesFirst | Variation::Queued => {
                experiment.variations.retain(|other| !DISCIPLINES.contains(other));
                self != Variation::Queued
            }
            Variation::SameUsers | Variation::UsersOfFour | Variation::FewUsers | Variation::OwnPeaks => {
                experiment.variations.retain(|other| !USERS.contains(other));
                self != Variation::OwnPeaks
            }
            Variation::SmallBookstore => is_bookstore,
            Variation::LargeBookstore => {
                experiment.variations.remove(&Variation::SmallBookstore);
                false
            }
            Variation::WholeItems => experiment.system == "partitioned",
            Variation::TenTables => is_bookstore && !experiment.is_of_peers(),
            Variation::LightAdmin | Variation::FreeCarts | Variation::LongOrders => is_bookstore,
            Variation::LongUpdates => experiment.mix != Mix::BulletinBoard,
            Variation::BracketedPages | Variation::RepairedColumn => experiment.mix == Mix::Auction,
            Variation::OnTables | Variation::MeasuredApply => experiment.system == "onecopy",
            Variation::CutTables => experiment.is_of_peers() && experiment.system != "weak",
            Variation::HeldUpdates => experiment.has_table_locks(),
            Variation::AskingReads => experiment.system == "fixed_conflict" && is_bookstore,
            Variation::SlowNetwork | Variation::ShortReads | Variation::Uneven => true,
            // They are about what is counted, about whole transactions and about sites.
            Variation::WritesCount
            | Variation::RowsWritten
            | Variation::NoDiscount
            | Variation::UndiscountedRatios
            | Variation::OneQueue
            | Variation::RetryLast
            | Variation::Consensus
            | Variation::DrawnAnew
            | Variation::MeanDurations
            | Variation::EvenArrivals
            | Variation::KnownCustomers
            | Variation::SlowMiddleware
            | Variation::DearApplies
            | Variation::DearQueries
            | Variation::ShortBursts
            | Variation::LongBursts
            | Variation::FarSites
            | Variation::HeavyWrites
            | Variation::SlowLinks
            | Variation::Sequencer
            | Variation::OneByOne
            | Variation::FewConnections
            | Variation::TwoTables
            | Variation::ThisMachine => false,
        };
        if concerns {
            experiment.variations.insert(self);
        }
    }

    /// Changes what is asked of an experiment.
    pub fn apply_to_metric(self, metric: &mut Metric) {
        if self == Variation::WritesCount {
            *metric = match *metric {
                Metric::LockWaiting => Metric::WriteWaiting,
                Metric::SharedLocks => Metric::SharedWrites,
                other => other,
            };
        }
    }

    /// Changes an experiment with sites; one that has nothing to do with it stays as it is.
    pub fn apply_to_wide(self, experiment: &mut WideExperiment) {
        if let Variation::SlowMiddleware
        | Variation::DearApplies
        | Variation::DearQueries
        | Variation::ShortBursts
        | Variation::LongBursts
        | Variation::FarSites
        | Variation::HeavyWrites
        | Variation::SlowLinks
        | Variation::Sequencer
        | Variation::OneByOne
        | Variation::FewConnections
        | Variation::TwoTables
        | Variation::ThisMachine = self
        {
            experiment.variations.insert(self);
        }
    }

    /// Changes an experiment with whole transactions; one that has nothing to do with it stays as it is.
    pub fn apply_to_whole(self, experiment: &mut WholeExperiment) {
        let runs_first = matches!(experiment.system, "round_robin" | "tashkent_plus");
        let concerns = match self {
            Variation::NoDiscount | Variation::UndiscountedRatios => experiment.system == "tashkent_plus",
            Variation::RowsWritten
            | Variation::OneQueue
            | Variation::RetryLast
            | Variation::Consensus
            | Variation::DrawnAnew => runs_first,
            Variation::KnownCustomers => experiment.system == "chains",
            Variation::MeanDurations | Variation::EvenArrivals => true,
            _ => false,
        };
        if concerns {
            experiment.variations.insert(self);
        }
    }
}

/// Thins conflicts out, unless the experiment is about few of them already. It is said by a number, not by a variation.
fn less_conflicts(experiment: &mut Experiment, percent: u32) -> bool {
    // Peers know tables by name: which of them are divided.
    if experiment.conflict_percent == 100 && !experiment.is_of_peers() {
        experiment.conflict_percent = percent;
    }
    false
}

/// How databases serve.
pub(crate) fn discipline(variations: &BTreeSet<Variation>) -> Discipline {
    if variations.contains(&Variation::Shared) {
        Discipline::Shared
    } else if variations.contains(&Variation::WritesFirst) {
        Discipline::WritesFirst
    } else {
        Discipline::Queued
    }
}

/// How long messages take.
pub(crate) fn network(variations: &BTreeSet<Variation>) -> Latency {
    if variations.contains(&Variation::SlowNetwork) {
        Latency { hop_ns: 2_000_000, ..Latency::default() }
    } else {
        Latency::default()
    }
}

/// What statements cost.
pub(crate) fn profile(plain: &Profile, variations: &BTreeSet<Variation>, catalogue: &Catalogue) -> Profile {
    let mut profile = plain.clone();
    if variations.contains(&Variation::MeasuredApply) {
        profile.apply_factor = MEASURED_APPLY_FACTOR;
    }
    if variations.contains(&Variation::LightAdmin)
        && let Some(cost_ms) = profile.statements_ms.get_mut("admc.update.related")
    {
        *cost_ms = LIGHT_ADMIN_MS;
    }
    if variations.contains(&Variation::FreeCarts) {
        let carts = profile.statements_ms.iter_mut().filter(|(id, _)| id.starts_with("shop."));
        carts.for_each(|(_, cost_ms)| *cost_ms = 0.0);
    }
    for statement in catalogue.statements.iter().filter(|statement| statement.writes.is_empty()) {
        let is_update = !catalogue.transactions[usize::from(statement.transaction.0)].writes.is_empty();
        let Some(cost_ms) = profile.statements_ms.get_mut(&statement.id) else { continue };
        // By what it costs plainly: what others make dear is no search for that.
        if variations.contains(&Variation::SmallBookstore) && *cost_ms > SEARCH_MS {
            *cost_ms *= SMALL_FACTOR;
        }
        if is_update && variations.contains(&Variation::LongUpdates) {
            *cost_ms *= LONG_UPDATES_FACTOR;
        }
        if variations.contains(&Variation::LongOrders) && statement.id.starts_with("buyc.order.") {
            *cost_ms *= LONG_ORDERS_FACTOR;
        }
        if variations.contains(&Variation::ShortReads) {
            *cost_ms = cost_ms.min(SHORT_READ_MS);
        }
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::tests::of;

    #[test]
    fn variations_leave_alone_what_they_have_nothing_to_do_with() {
        let varied = |mut experiment: Experiment, variation: Variation| {
            variation.apply(&mut experiment);
            experiment
        };
        let board = Experiment { mix: Mix::BulletinBoard, ..of("versioning", 8) };
        for variation in [
            Variation::TenTables,
            Variation::LightAdmin,
            Variation::FreeCarts,
            Variation::LongUpdates,
            Variation::LongOrders,
            Variation::BracketedPages,
            Variation::OnTables,
            Variation::MeasuredApply,
            Variation::RepairedColumn,
            Variation::HeldUpdates,
            Variation::AskingReads,
        ] {
            assert_eq!(varied(board.clone(), variation), board, "{}", variation.name());
        }
        let few = Experiment { conflict_percent: 1, durability: Durability::Replicated(2), ..board };
        for variation in [
            Variation::Memory,
            Variation::HalfConflicts,
            Variation::QuarterConflicts,
            Variation::FewConflicts,
        ] {
            assert_eq!(varied(few.clone(), variation), few, "{}", variation.name());
        }
    }

    #[test]
    fn variations_of_whole_transactions_leave_alone_what_they_have_nothing_to_do_with() {
        let varied = |system: &str, variation: Variation| {
            let plain = WholeExperiment::new(system, 150, 100).expect("it is there");
            let mut varied = plain.clone();
            variation.apply_to_whole(&mut varied);
            (varied != plain).then(|| varied.variations.into_iter().map(Variation::name).collect::<Vec<_>>())
        };
        for variation in Variation::ALL {
            let concerned = |system| {
                varied(system, variation).inspect(|names| assert_eq!(names, &[variation.name()])).is_some()
            };
            let concerned = ["chains", "centralised_writes", "round_robin", "tashkent_plus"].map(concerned);
            let expected = match variation {
                Variation::MeanDurations | Variation::EvenArrivals => [true; 4],
                Variation::RowsWritten
                | Variation::OneQueue
                | Variation::RetryLast
                | Variation::Consensus
                | Variation::DrawnAnew => [false, false, true, true],
                Variation::NoDiscount | Variation::UndiscountedRatios => [false, false, false, true],
                Variation::KnownCustomers => [true, false, false, false],
                _ => [false; 4],
            };
            assert_eq!(concerned, expected, "{}", variation.name());
        }
    }

    #[test]
    fn only_alternatives_contradict_each_other() {
        use Variation::{FewConflicts, HalfConflicts, Memory, QuarterConflicts, Shared, WritesFirst};
        let of = Variation::contradiction;
        assert_eq!(of(&[Memory, WritesFirst, Shared]), Some([Shared, WritesFirst]));
        assert_eq!(of(&[FewConflicts, QuarterConflicts]), Some([QuarterConflicts, FewConflicts]));
        assert_eq!(of(&[Shared, Shared, HalfConflicts, Memory]), None);
        let durations = [Variation::MeanDurations, Variation::DrawnAnew];
        assert_eq!(of(&durations), Some([Variation::DrawnAnew, Variation::MeanDurations]));
        let users = [Variation::OwnPeaks, Variation::FewUsers];
        assert_eq!(of(&users), Some([Variation::FewUsers, Variation::OwnPeaks]));
        assert!(of(&[Variation::SmallBookstore, Variation::LargeBookstore]).is_some());
        assert!(of(&[Variation::Queued, WritesFirst]).is_some());
        assert!(of(&[Variation::ThisMachine, Variation::DearQueries]).is_some());
    }

    #[test]
    fn of_two_ways_to_serve_the_later_one_counts() {
        let mut experiment = of("eager", 8);
        assert_eq!(experiment.discipline(), Discipline::Queued);
        Variation::Shared.apply(&mut experiment);
        assert_eq!(experiment.discipline(), Discipline::Shared);
        Variation::WritesFirst.apply(&mut experiment);
        assert_eq!(experiment.discipline(), Discipline::WritesFirst);
        Variation::Queued.apply(&mut experiment);
        assert_eq!(experiment.discipline(), Discipline::Queued);
    }

    #[test]
    fn what_the_cluster_of_a_paper_has_can_be_taken_from_it() {
        let plain = of("invalidation", 4);
        let mut experiment = plain.clone().of_invalidation();
        let expected = [Variation::Shared, Variation::UsersOfFour, Variation::SmallBookstore];
        assert_eq!(experiment.variations, BTreeSet::from(expected));
        for other in [Variation::Queued, Variation::OwnPeaks, Variation::LargeBookstore] {
            other.apply(&mut experiment);
        }
        assert_eq!(experiment, plain);
    }

    #[test]
    fn costs_change_for_the_statements_that_are_meant_only() {
        let plain = Profile::named("2003", "tpcw").expect("it is there");
        let catalogue = onecopy_workload::tpcw::catalogue();
        let changed = |variation| {
            let profile = profile(&plain, &BTreeSet::from([variation]), catalogue);
            let pairs = plain.statements_ms.iter().zip(profile.statements_ms);
            let changed = pairs.filter(|((_, before), (_, after))| **before != *after);
            changed.map(|((id, before), (_, after))| (id.clone(), after / before)).collect::<Vec<_>>()
        };
        assert_eq!(changed(Variation::LightAdmin), [("admc.update.related".to_owned(), 20.0 / 550.0)]);
        let free = changed(Variation::FreeCarts);
        assert!(free.iter().all(|(id, factor)| id.starts_with("shop.") && *factor == 0.0), "{free:?}");
        assert!(free.len() > 10, "{free:?}");
        let long = changed(Variation::LongUpdates);
        assert!(long.iter().all(|(_, factor)| *factor == 4.0), "{long:?}");
        let long: Vec<&str> = long.iter().map(|(id, _)| id.as_str()).collect();
        assert!(long.contains(&"buyc.order.cart") && !long.contains(&"bess.list.items"), "{long:?}");
        assert!(!long.contains(&"buyc.order.line"), "{long:?}");
        let orders = changed(Variation::LongOrders);
        assert!(
            orders.iter().all(|(id, factor)| id.starts_with("buyc.order.") && *factor == 12.0),
            "{orders:?}"
        );
        assert!(orders.len() > 3, "{orders:?}");
        let short: Vec<String> = changed(Variation::ShortReads).into_iter().map(|(id, _)| id).collect();
        assert!(short.contains(&"bess.list.items".to_owned()), "{short:?}");
        assert!(short.iter().all(|id| plain.statements_ms[id] > 50.0), "{short:?}");
        let both = BTreeSet::from([Variation::SmallBookstore, Variation::LongOrders, Variation::LongUpdates]);
        let both = profile(&plain, &both, catalogue);
        assert_eq!(both.statements_ms["buyc.order.cart"], plain.statements_ms["buyc.order.cart"] * 48.0);
        let small = changed(Variation::SmallBookstore);
        assert!(small.iter().all(|(_, factor)| (factor - 0.1).abs() < 1e-9), "{small:?}");
        assert_eq!(small.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), short);
        assert_eq!(changed(Variation::Shared), []);
    }
}
