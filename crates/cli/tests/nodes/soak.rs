//! Faults under load: what clients saw is checked for strict serializability, what they were told of their commits is compared with what
//! is there, and the replicas are compared with each other. In the end a report says what was held and what was survived.

use crate::doubt::{HOW, Inserting, Judged};
use crate::faults::{Draw, FAULTS, Fault, inject};
use crate::rig::{Nodes, block_on, connect};
use onecopy_bench::torture::{
    ClassCount, CompareOptions, Comparison, Isolation, Options, Report, compare_until_identical, run,
};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long replicas may take to apply what clients have been told of.
const CATCH_UP: Duration = Duration::from_secs(60);
/// How long a cluster may take to serve clients of every node after a fault.
const SERVES_AGAIN: Duration = Duration::from_secs(60);
/// The last fault lasts, and what it has done must be over when all is read at the end.
const CALM_AT_THE_END: Duration = Duration::from_secs(9);
/// Those who insert leave the processors to those whose history is checked.
const INSERT_PAUSE: Duration = Duration::from_millis(20);

/// The order in which faults come: all of them, shuffled, again and again.
struct Faults {
    all: Vec<Fault>,
    left: Vec<Fault>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults::beginning_with(Vec::new())
    }
}

impl Faults {
    /// These first.
    fn beginning_with(mut first: Vec<Fault>) -> Faults {
        first.reverse();
        Faults { all: FAULTS.to_vec(), left: first }
    }

    /// Those of these names only, separated by commas.
    fn named(names: &str) -> Faults {
        let named = |name| FAULTS.into_iter().find(|fault| format!("{fault:?}") == name);
        let known = |name| named(name).unwrap_or_else(|| panic!("no fault is called {name}: {FAULTS:?}"));
        Faults { all: names.split(',').map(known).collect(), left: Vec::new() }
    }

    fn next(&mut self, draw: &mut Draw) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
            for last in (1..self.left.len()).rev() {
                self.left.swap(last, draw.index(last + 1));
            }
        }
        self.left.pop().expect("it was filled")
    }
}

/// How often a fault came, and what of it.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Count {
    injected: u32,
    /// Afterwards an update succeeded through each node.
    survived: u32,
    /// The longest that this took from the fault's end, of those times when it was waited for at once.
    longest: Option<Duration>,
}

/// What a soak has shown.
#[derive(Default)]
struct Soaked {
    first_seed: u64,
    seeds: u64,
    seconds: f64,
    faults: BTreeMap<Fault, Count>,
    /// Of the clients whose history is checked, by workload.
    loads: BTreeMap<String, ClassCount>,
    /// Anomalies, broken invariants and errors that must not happen, in words.
    anomalies: BTreeMap<String, u64>,
    judged: Judged,
    /// How often all replicas were compared, and how often they were the same.
    compared: u64,
    identical: u64,
    /// What else must not be.
    wrong: Vec<String>,
}

impl Soaked {
    fn passed(&self) -> bool {
        self.wrong.is_empty()
            && self.anomalies.is_empty()
            && self.judged.wrong.is_empty()
            && self.compared == self.identical
            && self.faults.values().all(|count| count.survived == count.injected)
    }

    fn take_report(&mut self, report: &Report) {
        self.seconds += report.seconds;
        for (class, count) in &report.classes {
            let workload = class.split(',').next().unwrap_or(class);
            let total = self.loads.entry(workload.to_owned()).or_default();
            total.committed += count.committed;
            total.rolled_back += count.rolled_back;
            total.serialization_failures += count.serialization_failures;
            total.deadlocks += count.deadlocks;
            total.connection_errors += count.connection_errors;
            total.unknown += count.unknown;
            total.failed += count.failed;
        }
        let faults = report.faults.iter().chain(&report.broken).map(|(kind, fault)| (kind, fault.count));
        for (kind, count) in faults.chain(report.anomalies.iter().map(|(kind, count)| (kind, *count))) {
            *self.anomalies.entry(kind.clone()).or_default() += count;
        }
    }

    fn take_comparison(&mut self, comparison: &Comparison) {
        self.compared += 1;
        self.identical += u64::from(comparison.identical());
    }

    fn injected(&self) -> u32 {
        self.faults.values().map(|count| count.injected).sum()
    }

    fn committed(&self) -> u64 {
        self.loads.values().map(|count| count.committed).sum()
    }
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Soaked { first_seed, seeds, judged, .. } = self;
        writeln!(
            f,
            "soak of 3 nodes before 3 servers: {}; seeds {first_seed} to {}, {:.0} s of load",
            if self.passed() { "passed" } else { "FAILED" },
            (first_seed + seeds).saturating_sub(1),
            self.seconds
        )?;
        writeln!(f, "\n{:<24} {:>9} {:>9} {:>24}", "fault", "injected", "survived", "all served after, ms")?;
        let counts = FAULTS.map(|fault| self.faults.get(&fault).copied().unwrap_or_default());
        for (fault, Count { injected, survived, longest }) in FAULTS.into_iter().zip(&counts) {
            let name = format!("{fault:?}");
            let longest =
                longest.map_or("-".to_owned(), |longest| format!("at most {}", longest.as_millis()));
            writeln!(f, "{name:<24} {injected:>9} {survived:>9} {longest:>24}")?;
        }
        let survived: u32 = counts.iter().map(|count| count.survived).sum();
        let fewest = counts.iter().map(|count| count.injected).min().unwrap_or(0);
        writeln!(f, "{:<24} {:>9} {survived:>9}; each at least {fewest} times", "all", self.injected())?;
        writeln!(
            f,
            "\n{:<44} {:>10} {:>9} {:>9} {:>9}",
            "load held, transactions", "committed", "conflicts", "lost", "unknown"
        )?;
        for (workload, count) in &self.loads {
            let conflicts = count.serialization_failures + count.deadlocks;
            writeln!(
                f,
                "{workload:<44} {:>10} {conflicts:>9} {:>9} {:>9}",
                count.committed, count.connection_errors, count.unknown
            )?;
        }
        writeln!(f, "{:<44} {:>10}", "all of which the history is checked", self.committed())?;
        writeln!(f, "\ncommits of rows that can be told apart")?;
        for (what, count) in [
            ("acknowledged", judged.acknowledged),
            ("of these lost", judged.lost),
            ("happened twice", judged.twice),
            ("refused", judged.refused),
            ("of these happened all the same", judged.happened_all_the_same),
            ("told nothing, their connection was lost", judged.untold),
            ("of nobody", judged.unexplained),
            ("clients without an answer", judged.hung),
        ] {
            writeln!(f, "  {what:<42} {count:>10}")?;
        }
        writeln!(
            f,
            "\nanomalies, broken invariants, wrong errors: {}",
            self.anomalies.values().sum::<u64>()
        )?;
        for (kind, count) in &self.anomalies {
            writeln!(f, "  {kind}: {count}")?;
        }
        writeln!(f, "replicas compared {} times, identical {} times", self.compared, self.identical)?;
        for wrong in self.wrong.iter().chain(self.judged.wrong.iter().take(20)) {
            writeln!(f, "WRONG {wrong}")?;
        }
        Ok(())
    }
}

/// Brings about faults one after the other until there is no time left, and counts them.
struct Injecting {
    faults: Faults,
    counts: BTreeMap<Fault, Count>,
    /// Those that were not followed yet by a proof that all nodes serve.
    pending: Vec<Fault>,
    draw: Draw,
}

impl Injecting {
    /// For a thread that may block, of a runtime.
    fn until(&mut self, nodes: &mut Nodes, end: Instant, is_over: &AtomicBool) {
        while Instant::now() + CALM_AT_THE_END < end && !is_over.load(Ordering::Relaxed) {
            let fault = self.faults.next(&mut self.draw);
            self.counts.entry(fault).or_default().injected += 1;
            self.pending.push(fault);
            inject(nodes, &mut self.draw, fault);
            // Now and then the next one comes before this one is over.
            if self.draw.below(3) > 0 {
                self.prove(nodes);
            }
            std::thread::sleep(self.draw.ms(200, 2_000));
        }
        self.prove(nodes);
    }

    /// Waits until every node has served an update.
    fn prove(&mut self, nodes: &Nodes) {
        let began = Instant::now();
        tokio::runtime::Handle::current().block_on(async {
            for node in 0..nodes.count() {
                update(nodes, node).await;
            }
        });
        for (place, fault) in self.pending.drain(..).rev().enumerate() {
            let count = self.counts.entry(fault).or_default();
            count.survived += 1;
            if place == 0 {
                count.longest = count.longest.max(Some(began.elapsed()));
            }
        }
    }
}

async fn update(nodes: &Nodes, node: usize) {
    let began = Instant::now();
    loop {
        let attempt = async {
            let client = connect(&nodes.dsn(node)).await.ok()?;
            client.batch_execute(&format!("UPDATE beats SET n = n + 1 WHERE node = {node}")).await.ok()
        };
        if let Ok(Some(())) = tokio::time::timeout(Duration::from_secs(10), attempt).await {
            return;
        }
        assert!(began.elapsed() < SERVES_AGAIN, "node {node} does not serve {SERVES_AGAIN:?} after a fault");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One load, and faults until it is nearly over; adds what it has shown.
fn torture(nodes: Nodes, seconds: u64, seed: u64, faults: &mut Faults, soaked: &mut Soaked) -> Nodes {
    block_on(async {
        let replicas: Vec<String> = nodes.servers.servers().iter().map(|server| server.dsn()).collect();
        // Those of an earlier run tell nothing of this one. Who makes them does not try again.
        let client = nodes.client(nodes.leader()).await;
        let rows = (0..nodes.count()).map(|node| format!("({node}, 0)")).collect::<Vec<_>>().join(", ");
        let make = format!(
            "DROP TABLE IF EXISTS torture_counter, beats; CREATE TABLE beats (node int PRIMARY KEY, n bigint); \
             INSERT INTO beats VALUES {rows}"
        );
        client.batch_execute(&make).await.unwrap();
        nodes.everywhere("SELECT to_regclass('torture_counter'), count(*) FROM beats").await;
        let inserting = |node: usize, how| HOW.iter().position(|each| *each == how).unwrap() % 3 == node;
        let inserting = Inserting::begin(&nodes, inserting, INSERT_PAUSE).await;
        let options = Options {
            duration: Duration::from_secs(seconds),
            seed,
            isolation: Isolation::Mixed,
            round: 40_000,
            clients: 9,
            keep_in: Some(std::env::temp_dir()),
            ..Options::new(nodes.dsn_of_all())
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let is_over_too = is_over.clone();
        let tortured = async {
            let report = run(&options).await.unwrap();
            is_over.store(true, Ordering::Relaxed);
            report
        };
        let mut injecting = Injecting {
            faults: std::mem::take(faults),
            counts: std::mem::take(&mut soaked.faults),
            pending: Vec::new(),
            draw: Draw(seed),
        };
        let begun = are_rows_made(&replicas[0]);
        let injected = async {
            begun.await;
            let end = Instant::now() + Duration::from_secs(seconds);
            let mut nodes = nodes;
            let injected = tokio::task::spawn_blocking(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| injecting.until(&mut nodes, end, &is_over_too)));
                (nodes, injecting, ended.err().map(|panic| words_of(&*panic)))
            });
            injected.await.unwrap()
        };
        let (report, (nodes, injecting, failed)) = futures_util::future::join(tortured, injected).await;
        println!("{report}");
        (*faults, soaked.faults) = (injecting.faults, injecting.counts);
        soaked.take_report(&report);
        soaked.seeds += 1;
        let seed = format!("seed {seed}");
        soaked.wrong.extend(failed.map(|why| format!("{seed}: {why}")));
        if soaked.wrong.is_empty() {
            let judged = inserting.end(&nodes).await;
            soaked.judged.add(judged);
            match compare_until_identical(&replicas, &CompareOptions::default(), CATCH_UP).await {
                Ok(comparison) => {
                    println!("{comparison}");
                    soaked.take_comparison(&comparison);
                }
                Err(error) => soaked.wrong.push(format!("{seed}: compare the replicas: {error}")),
            }
        }
        for node in 0..nodes.count() {
            if nodes.messages(node).contains("panicked") {
                soaked.wrong.push(format!("{seed}: node {node} panicked"));
            }
        }
        if !soaked.passed() {
            nodes.keep_messages();
        }
        nodes
    })
}

/// Waits until a server has all tables and rows with which the load begins: the last ones.
async fn are_rows_made(dsn: &str) {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(client) = connect(dsn).await else { continue };
        let counted = client.query_one("SELECT count(*) FROM torture_counter", &[]).await;
        if counted.is_ok_and(|row| row.get::<_, i64>(0) > 0) {
            return;
        }
    }
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().cloned();
    words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned())).unwrap_or_default()
}

/// About 30 seconds.
#[test]
fn faults_at_random_under_load_cause_no_anomaly_and_leave_equal_replicas() {
    let mut faults = Faults::beginning_with(vec![Fault::KillLeader, Fault::IsolateLeader]);
    let mut soaked = Soaked { first_seed: 11, ..Soaked::default() };
    torture(Nodes::start_apart(3, 3), 22, 11, &mut faults, &mut soaked);
    println!("{soaked}");
    assert!(soaked.passed(), "{soaked}");
    assert!(
        soaked.injected() > 2 && soaked.committed() > 100 && soaked.judged.acknowledged > 100,
        "{soaked}"
    );
}

/// The same for long, with several seeds, and a report in the end.
#[test]
#[ignore = "takes SOAK_SECONDS; run by make soak"]
fn soak_with_faults_finds_no_anomaly() {
    let variable = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let (seconds, seed) = (variable("SOAK_SECONDS", 600), variable("SOAK_SEED", 1));
    let mut nodes = Nodes::start_apart(3, 3);
    let mut soaked = Soaked { first_seed: seed, ..Soaked::default() };
    let mut faults =
        std::env::var("SOAK_FAULTS").map_or_else(|_| Faults::default(), |names| Faults::named(&names));
    for seed in seed.. {
        if soaked.seconds >= seconds as f64 || !soaked.passed() {
            break;
        }
        eprintln!("seed {seed}");
        nodes = torture(nodes, seconds.min(60), seed, &mut faults, &mut soaked);
    }
    println!("{soaked}");
    if let Ok(path) = std::env::var("SOAK_REPORT") {
        std::fs::write(&path, soaked.to_string()).unwrap_or_else(|error| panic!("write {path}: {error}"));
    }
    assert!(soaked.passed(), "see above: something happened that must not");
}

#[test]
fn faults_come_as_often_as_each_other_in_an_order_of_their_own_each_time() {
    let (mut faults, mut draw) = (Faults::beginning_with(vec![Fault::OneWay]), Draw(3));
    assert_eq!(faults.next(&mut draw), Fault::OneWay);
    let mut rounds = [(); 2].map(|()| FAULTS.map(|_| faults.next(&mut draw)));
    assert_ne!(rounds[0], rounds[1]);
    rounds.iter_mut().for_each(|round| round.sort());
    let mut all = FAULTS;
    all.sort();
    assert_eq!(rounds, [all, all]);
    let mut faults = Faults::named("OneWay,OldLog");
    let mut few = [(); 4].map(|()| faults.next(&mut draw));
    few.sort();
    assert_eq!(few, [Fault::OldLog, Fault::OldLog, Fault::OneWay, Fault::OneWay]);
}

#[test]
fn soak_fails_by_a_lost_commit_an_anomaly_a_difference_or_a_fault_that_is_not_survived() {
    let good = || Soaked {
        faults: [(Fault::KillLeader, Count { injected: 2, survived: 2, longest: None })].into(),
        compared: 1,
        identical: 1,
        ..Soaked::default()
    };
    assert!(good().passed() && good().to_string().contains("passed"));
    let wrong = [
        Soaked { anomalies: [("stale read".to_owned(), 1)].into(), ..good() },
        Soaked { compared: 2, ..good() },
        Soaked { wrong: vec!["node 1 panicked".to_owned()], ..good() },
        Soaked { judged: Judged { wrong: vec!["lost".to_owned()], ..Judged::default() }, ..good() },
        Soaked { faults: [(Fault::OneWay, Count { injected: 1, ..Count::default() })].into(), ..good() },
    ];
    for soaked in wrong {
        assert!(!soaked.passed() && soaked.to_string().contains("FAILED"), "{soaked}");
    }
}
