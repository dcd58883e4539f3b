//! Runs experiments on all cores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onecopy_core::peers::granules::Granules;
use onecopy_core::peers::parts::{Division, Divisions};
use onecopy_core::protocol::{Engine, apart_by_name, peers_by_name};
use onecopy_core::{ColumnId, Csn, Protocol, TableId};
use onecopy_sim::perf::{
    AuctionSite, Board, Bookstore, Fault, Measured, Outcome, Peak, Profile, RunError, SECOND_NS, Setup,
    Users, Workload, find_peak, find_peak_from, find_peak_near, run, saturating_users, table_id,
};
use onecopy_workload::Catalogue;
use onecopy_workload::catalogue::TableIndex;
use onecopy_workload::{auction, bulletin_board, tpcw};
use thiserror::Error;

use crate::asking::Asking;
use crate::effort::Effort;
use crate::experiment::{Experiment, Figures, Mix};
use crate::kept::Kept;
use crate::quantity::Needed;
use crate::results::{Results, ResultsError};
use crate::variation::{Variation, profile};
use crate::whole::WholeError;
use crate::wide::WideError;

/// The mean think time of all three sites, in seconds.
const THINK_S: f64 = 7.0;

/// With [`Variation::UsersOfFour`] there are as many users as saturate so many databases, those of the paper
/// that is about peers.
const SATURATED: u16 = 4;

/// How long a single user is watched on an idle database to learn how long an interaction takes, in virtual seconds.
const IDLE_S: u64 = 20_000;

/// Why experiments ended early. What was done until then is kept.
#[derive(Debug, Error)]
pub enum LabError {
    /// A run failed.
    #[error("run {experiment}: {error}")]
    Run {
        /// Which.
        experiment: Box<Experiment>,
        /// Why.
        error: RunError,
    },
    /// A run ended, and something went wrong in it that only a bug can bring about: its figures say nothing.
    #[error("run {experiment}: {fault}; please report this, it is a bug")]
    Fault {
        /// Which.
        experiment: Box<Experiment>,
        /// What, first of all.
        fault: Fault,
    },
    /// The same with whole transactions.
    #[error(transparent)]
    Whole(#[from] WholeError),
    /// The same with sites that are far apart.
    #[error(transparent)]
    Wide(#[from] WideError),
    /// Results cannot be kept.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The profile is not known.
    #[error("no profile is called {0}")]
    NoProfile(String),
}

/// Told how far it is.
pub trait Progress: Sync {
    /// So many runs are to be made.
    fn starts(&self, runs: usize);
    /// One of them is done, and found this: a peak, or a throughput.
    fn done(&self, what: &dyn Display, found: f64);
}

/// Of so many seeds of these experiments, those that are not there yet.
#[must_use]
pub fn missing(needed: &Needed, seeds: u64, results: &Results) -> usize {
    let peaks = needed.peaks.iter().flat_map(|experiment| (0..seeds).map(move |seed| (experiment, seed)));
    peaks.filter(|(experiment, seed)| results.get(experiment, *seed).is_none()).count()
        + Singles::missing(&needed.whole, seeds, results).runs.len()
        + Singles::missing(&needed.wide, seeds, results).runs.len()
}

/// Runs of one seed each, which threads take one by one.
struct Singles<'a, E> {
    runs: Vec<(&'a E, u64)>,
    next: AtomicUsize,
}

impl<'a, E: Kept> Singles<'a, E> {
    /// Those that are not there yet.
    fn missing(needed: &'a BTreeSet<E>, seeds: u64, results: &Results) -> Singles<'a, E> {
        let all = needed.iter().flat_map(|experiment| (0..seeds).map(move |seed| (experiment, seed)));
        let is_missing = |(experiment, seed): &(&E, u64)| E::rows(results).get(experiment, *seed).is_none();
        Singles { runs: all.filter(is_missing).collect(), next: AtomicUsize::new(0) }
    }

    /// Takes a run and makes it; nothing if none is left.
    fn run_next(
        &self,
        results: &Mutex<&mut Results>,
        progress: &dyn Progress,
    ) -> Option<Result<(), LabError>> {
        let (experiment, seed) = self.runs.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some(experiment.run_seed(*seed).and_then(|figures| {
            let mut results = results.lock().expect("nobody panics with it");
            E::rows_mut(&mut results).add(experiment, *seed, figures)?;
            progress.done(*experiment, E::throughput(&figures));
            Ok(())
        }))
    }
}

/// Runs what is not there yet, with every seed of the effort, on `threads` threads; the largest clusters first, so that no
/// thread is left with one in the end. Ends early when `stop` is set.
///
/// # Errors
/// If a run fails, or what came of it cannot be kept.
pub fn run_all(
    needed: &Needed,
    effort: &Effort,
    results: &mut Results,
    threads: usize,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<(), LabError> {
    let is_missing =
        |experiment: &&Experiment| (0..effort.seeds).any(|seed| results.get(experiment, seed).is_none());
    let mut jobs: Vec<&Experiment> = needed.peaks.iter().filter(is_missing).collect();
    jobs.sort_by_key(|experiment| std::cmp::Reverse(u32::from(experiment.replicas) * experiment.speed));
    progress.starts(missing(needed, effort.seeds, results));
    let whole = Singles::missing(&needed.whole, effort.seeds, results);
    let wide = Singles::missing(&needed.wide, effort.seeds, results);

    let shops: BTreeSet<Shop> = jobs.iter().flat_map(|experiment| Shop::all_of(experiment)).collect();
    let lab = Lab { effort, sites: sites(&shops, effort)? };
    let (next, results, failure) = (AtomicUsize::new(0), Mutex::new(results), Mutex::new(None));
    let run_next = || {
        let single = || whole.run_next(&results, progress).or_else(|| wide.run_next(&results, progress));
        single().or_else(|| {
            let experiment = jobs.get(next.fetch_add(1, Ordering::Relaxed))?;
            Some(lab.run(experiment, &results, stop, progress))
        })
    };
    let work = || {
        while !stop.load(Ordering::Relaxed)
            && let Some(ran) = run_next()
        {
            if let Err(error) = ran {
                stop.store(true, Ordering::Relaxed);
                *failure.lock().expect("nobody panics with it") = Some(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    failure.into_inner().expect("nobody panics with it").map_or(Ok(()), Err)
}

struct Lab<'a> {
    effort: &'a Effort,
    sites: BTreeMap<Shop, Site>,
}

/// A site, and its size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Shop {
    mix: Mix,
    /// With [`Variation::SmallBookstore`].
    is_small: bool,
}

impl Shop {
    /// That of an experiment.
    fn of(experiment: &Experiment) -> Shop {
        Shop { mix: experiment.mix, is_small: experiment.has(Variation::SmallBookstore) }
    }

    /// That by which it is said how many users there are, if all systems have the same: of the bookstore's
    /// mixes shopping, the one of TPC-W's own metric.
    fn of_users(experiment: &Experiment) -> Shop {
        let mix = experiment.mix.bookstore().map_or(experiment.mix, |_| Mix::TpcwShopping);
        Shop { mix, ..Shop::of(experiment) }
    }

    /// Those that an experiment needs.
    fn all_of(experiment: &Experiment) -> impl Iterator<Item = Shop> + use<> {
        let of_four = [Variation::UsersOfFour, Variation::FewUsers].iter().any(|how| experiment.has(*how));
        std::iter::once(Shop::of(experiment)).chain(of_four.then_some(Shop::of_users(experiment)))
    }
}

/// A workload with its costs, and how long an interaction takes on an idle database, in seconds.
struct Site {
    loaded: Loaded,
    profile: Profile,
    idle_s: f64,
}

/// A site as it is before anybody has come.
enum Loaded {
    Bookstore(Bookstore),
    Auction(AuctionSite),
    Board(Board),
}

impl Loaded {
    /// The site of a mix, as large as the papers'.
    fn new(Shop { mix, is_small }: Shop) -> Loaded {
        match (mix, mix.bookstore()) {
            (_, Some(name)) => {
                // Items, and browsers: of each there are 2,880 customers.
                let (items, browsers) = if is_small { (10_000, 50) } else { (100_000, 100) };
                let scale = tpcw::Scale::new(items, browsers).expect("it is one of the benchmark's");
                Loaded::Bookstore(Bookstore::new(name, scale))
            }
            (Mix::BulletinBoard, None) => {
                Loaded::Board(Board::new(bulletin_board::Mix::Default, bulletin_board::Scale::OF_THE_PAPER))
            }
            (_, None) => {
                Loaded::Auction(AuctionSite::new(auction::Mix::Write15, auction::Scale::OF_THE_PAPER))
            }
        }
    }

    /// A copy that an experiment may change.
    fn copy(&self, experiment: &Experiment) -> Box<dyn Workload> {
        let variations = &experiment.variations;
        match self {
            Loaded::Bookstore(site) => {
                let site = match experiment.has_ten_tables() {
                    true => site.clone(),
                    false => site.clone().of_eight_tables(),
                };
                match variations.contains(&Variation::AskingReads) {
                    true => Box::new(Asking(Box::new(site))),
                    false => Box::new(site),
                }
            }
            Loaded::Auction(site) => {
                let mut site = site.clone();
                if variations.contains(&Variation::RepairedColumn) {
                    site = site.of_mix(auction::Mix::Default);
                }
                // What DV counts as transactions changes data.
                match variations.contains(&Variation::BracketedPages) {
                    true => Box::new(site),
                    false => Box::new(site.reading_alone()),
                }
            }
            Loaded::Board(site) => Box::new(site.clone()),
        }
    }
}

fn sites(shops: &BTreeSet<Shop>, effort: &Effort) -> Result<BTreeMap<Shop, Site>, LabError> {
    let mut sites = BTreeMap::new();
    for &shop in shops {
        let (mix, loaded) = (shop.mix, Loaded::new(shop));
        let workload = &loaded.copy(&alone(mix, &BTreeSet::new())).catalogue().name;
        let profile = Profile::named("2003", workload)
            .ok_or_else(|| LabError::NoProfile(format!("2003 for {workload}")))?;
        let idle_s = idle_s(mix, &loaded, &BTreeSet::new(), &profile, effort)?;
        sites.insert(shop, Site { loaded, profile, idle_s });
    }
    Ok(sites)
}

/// How long an interaction takes on an idle database, in seconds.
fn idle_s(
    mix: Mix,
    loaded: &Loaded,
    variations: &BTreeSet<Variation>,
    profile: &Profile,
    effort: &Effort,
) -> Result<f64, LabError> {
    let plain = alone(mix, &BTreeSet::new());
    let effort = Effort { measured_s: IDLE_S, ..effort.clone() };
    let setup = setup(&plain, &effort, profile, 0, 1);
    let measured = measure(&plain, &setup, loaded.copy(&alone(mix, variations)).as_mut())?;
    Ok(measured.response.mean_ms() / 1e3)
}

/// One database.
fn alone(mix: Mix, variations: &BTreeSet<Variation>) -> Experiment {
    let experiment = Experiment::new(mix, "conflict_aware", 1).expect("it is there");
    Experiment { variations: variations.clone(), ..experiment }
}

fn setup<'a>(
    experiment: &Experiment,
    effort: &Effort,
    profile: &'a Profile,
    seed: u64,
    users: u32,
) -> Setup<'a> {
    Setup {
        seed,
        items: experiment.items(),
        discipline: experiment.discipline(),
        durability: experiment.durability(),
        network: experiment.network(),
        speed: experiment.speed,
        uneven: experiment.has(Variation::Uneven),
        engine: Engine { shows_uncommitted: !experiment.has(Variation::HeldUpdates), ..Engine::default() },
        conflict_percent: experiment.conflict_percent,
        warm_up_ns: effort.warm_up_s * SECOND_NS,
        measured_ns: effort.measured_s_of(experiment.replicas, experiment.speed) * SECOND_NS,
        ..Setup::new(profile, experiment.replicas, Users::Closed(users))
    }
}

fn measure(
    experiment: &Experiment,
    setup: &Setup<'_>,
    workload: &mut dyn Workload,
) -> Result<Measured, LabError> {
    let protocol = protocol(experiment, workload.catalogue());
    let outcome = run(setup, workload, protocol)
        .map_err(|error| LabError::Run { experiment: Box::new(experiment.clone()), error })?;
    figures(experiment, outcome)
}

/// The table that all peers have with [`Variation::WholeItems`], though it is written: pages show whichever
/// of its rows, and join with it.
const ITEMS: &str = "item";

/// Parts of a table with [`Variation::CutTables`].
const GRANULES: u16 = 16;

/// Of each table with a primary key, its first column.
fn columns_of_keys(catalogue: &Catalogue) -> impl Iterator<Item = (TableId, ColumnId)> {
    (0..).zip(&catalogue.tables).filter_map(|(place, table)| {
        let first = table.primary_key.first()?;
        let column = table.columns.iter().position(|column| column.name == *first)?;
        Some((table_id(TableIndex(place)), ColumnId(column as u16 + 1)))
    })
}

/// What runs, as an experiment names it. Peers that divide tables have all of them divided: those that are
/// written, and those of which nobody need ask anybody since nobody writes them. With
/// [`Variation::WholeItems`] it is what is written, but for the items.
fn protocol(experiment: &Experiment, catalogue: &Catalogue) -> Box<dyn Protocol> {
    if !experiment.is_of_peers() {
        let protocol = apart_by_name(experiment.system, usize::from(experiment.replicas), Csn(0));
        return protocol.expect("an experiment has a system that is there");
    }
    let (written, has_whole) = (catalogue.written(), experiment.has(Variation::WholeItems));
    let tables = (0..).map(TableIndex).zip(&catalogue.tables);
    let divided =
        tables.filter(|(place, table)| !has_whole || (table.name != ITEMS && written.contains(place)));
    let divided: Divisions = divided.map(|(place, _)| (table_id(place), Division::Clients)).collect();
    let granules = match experiment.has(Variation::CutTables) {
        true => Granules::new(GRANULES, columns_of_keys(catalogue)),
        false => Granules::default(),
    };
    peers_by_name(experiment.system, experiment.replicas, &divided, &granules)
        .expect("an experiment has a system that is there")
}

fn figures(experiment: &Experiment, outcome: Outcome) -> Result<Measured, LabError> {
    outcome.figures().map_err(|fault| LabError::Fault { experiment: Box::new(experiment.clone()), fault })
}

impl Lab<'_> {
    /// How long an interaction of a site takes in an experiment's idle cluster, in seconds.
    fn idle_s(&self, shop: Shop, experiment: &Experiment) -> Result<f64, LabError> {
        let site = &self.sites[&shop];
        let workload = site.loaded.copy(experiment);
        let profile = profile(&site.profile, &experiment.variations, workload.catalogue());
        idle_s(shop.mix, &site.loaded, &experiment.variations, &profile, self.effort)
    }

    /// The first seed climbs to the peak; each later one looks around the users with which the one before it had its peak: so
    /// the outcome of all is the same whatever was run elsewhere.
    fn run(
        &self,
        experiment: &Experiment,
        results: &Mutex<&mut Results>,
        stop: &AtomicBool,
        progress: &dyn Progress,
    ) -> Result<(), LabError> {
        let site = &self.sites[&Shop::of(experiment)];
        let profile =
            profile(&site.profile, &experiment.variations, site.loaded.copy(experiment).catalogue());
        // Where a climb begins does not decide where it ends.
        let [same, few, of_four] = [Variation::SameUsers, Variation::FewUsers, Variation::UsersOfFour]
            .map(|how| experiment.has(how));
        let is_fixed = same || few || of_four;
        let saturating = |replicas, idle_s| saturating_users(replicas, experiment.speed, THINK_S, idle_s);
        let mut start = match () {
            () if few => saturating(SATURATED, self.idle_s(Shop::of_users(experiment), experiment)?) / 2,
            () if of_four => saturating(SATURATED, self.idle_s(Shop::of_users(experiment), experiment)?),
            () if same => saturating(experiment.replicas, self.idle_s(Shop::of(experiment), experiment)?),
            () => saturating(experiment.replicas, site.idle_s),
        };
        for seed in 0..self.effort.seeds {
            let known = results.lock().expect("nobody panics with it").get(experiment, seed).copied();
            if let Some(known) = known {
                start = known.users;
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let probe = |effort: &Effort, users: u32| {
                let setup = setup(experiment, effort, &profile, seed, users);
                measure(experiment, &setup, site.loaded.copy(experiment).as_mut())
            };
            // Where the peak is hardly depends on the seed; how high it is does.
            let climb = |effort: &Effort| find_peak(start, self.effort.search, |users| probe(effort, users));
            let onwards =
                |users: u32| find_peak_from(users, self.effort.search, |users| probe(self.effort, users));
            let near = |users: u32| find_peak_near(users, |users| probe(self.effort, users));
            let peak = match (seed, self.effort.coarse()) {
                _ if is_fixed => {
                    let measured = probe(self.effort, start)?;
                    Peak { users: start, probes: BTreeMap::from([(start, measured.throughput())]), measured }
                }
                (0, None) => climb(self.effort)?,
                (0, Some(coarse)) => onwards(climb(&coarse)?.users)?,
                _ => near(start)?,
            };
            let figures = Figures::of(&peak);
            start = figures.users;
            results.lock().expect("nobody panics with it").add(experiment, seed, figures)?;
            progress.done(experiment, figures.peak);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onecopy_core::ReplicaId;

    use super::*;
    use crate::quantity::tests::of;

    struct Count(AtomicUsize, AtomicUsize);

    impl Progress for Count {
        fn starts(&self, runs: usize) {
            self.0.store(runs, Ordering::Relaxed);
        }

        fn done(&self, _: &dyn Display, _: f64) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run_here(experiments: &BTreeSet<Experiment>, results: &mut Results, threads: usize) -> (usize, usize) {
        let effort = Effort { warm_up_s: 5, measured_s: 10, seeds: 2, ..Effort::quick() };
        let (count, stop) = (Count(AtomicUsize::new(0), AtomicUsize::new(0)), AtomicBool::new(false));
        let needed = Needed { peaks: experiments.clone(), ..Needed::default() };
        run_all(&needed, &effort, results, threads, &stop, &count).expect("it runs");
        (count.0.into_inner(), count.1.into_inner())
    }

    #[test]
    fn a_run_in_which_a_fault_showed_itself_has_no_figures() {
        let experiment = of("eager", 1);
        let site = Loaded::new(Shop::of(&experiment));
        let profile = Profile::named("2003", "tpcw").expect("it is there");
        let effort = Effort { warm_up_s: 1, measured_s: 1, ..Effort::quick() };
        let alone = setup(&experiment, &effort, &profile, 0, 1);
        let outcome = |faults| {
            let protocol = apart_by_name("eager", 1, Csn(0)).expect("it is there");
            let outcome = run(&alone, site.copy(&experiment).as_mut(), protocol).expect("it runs");
            figures(&experiment, Outcome { faults, ..outcome })
        };
        assert!(outcome(Vec::new()).is_ok());
        let fault = Fault::OutOfOrder { replica: ReplicaId(0), csn: Csn(2) };
        let error = outcome(vec![fault]).expect_err("it is a bug").to_string();
        assert!(error.contains("eager, 1 database") && error.contains("out of order"), "{error}");
    }

    #[test]
    fn only_what_is_missing_is_run_and_threads_make_no_difference() {
        let both = BTreeSet::from([of("conflict_aware", 2), of("eager", 1)]);
        let mut at_once = Results::in_memory();
        assert_eq!(run_here(&both, &mut at_once, 2), (4, 4));

        let mut in_pieces = Results::in_memory();
        let first = of("conflict_aware", 2);
        let kept = *at_once.get(&first, 0).expect("it was run");
        in_pieces.add(&first, 0, kept).expect("memory takes all");
        assert_eq!(run_here(&both, &mut in_pieces, 1), (3, 3));
        for experiment in &both {
            for seed in 0..2 {
                assert_eq!(
                    at_once.get(experiment, seed),
                    in_pieces.get(experiment, seed),
                    "{experiment}, {seed}"
                );
            }
        }
        assert_eq!(run_here(&both, &mut at_once, 2), (0, 0));
    }
}
