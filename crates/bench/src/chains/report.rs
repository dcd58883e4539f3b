//! What a comparison has shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::{Options, Run, Sample, Target, Work};
use crate::compare::{Machine, Spread};
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where.
    pub machine: Machine,
    /// Rounds asked for.
    pub rounds: u32,
    /// Length of one measurement, in seconds.
    pub seconds: f64,
    /// Warehouses of each supplier.
    pub warehouses: i64,
    /// Customers of each district.
    pub customers: i64,
    /// Terminals at work.
    pub terminals: u32,
    /// Seed.
    pub seed: u64,
    /// Targets that could not be started, and why.
    pub left_out: Vec<(Target, String)>,
    /// Somebody pressed Ctrl-C; what was measured until then is here.
    pub interrupted: bool,
    /// Every measurement, in order.
    pub samples: Vec<Sample>,
}

/// One target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Which.
    pub target: Target,
    /// Transactions per second.
    pub tps: Spread,
    /// The same over that of one server at READ COMMITTED in the same round.
    pub over_read_committed: Option<Spread>,
    /// The same over that of one server at REPEATABLE READ.
    pub over_repeatable_read: Option<Spread>,
    /// New orders entered per minute.
    pub new_orders_a_minute: Spread,
    /// Transactions that ran again, for each 1,000 that were completed.
    pub retried_per_mille: f64,
    /// Those that failed, likewise.
    pub failed_per_mille: f64,
    /// Response times by kind: the medians of the rounds' 50th and 95th percentiles.
    pub percentiles_ms: Vec<(String, [f64; 2])>,
    /// CPU time for a transaction in milliseconds, by process tree: the medians of the rounds.
    pub cpu_ms: BTreeMap<String, f64>,
    /// What each replica did in all rounds.
    pub work: Vec<Work>,
    /// Conditions that did not hold, and how often they were broken after the last round.
    pub broken: BTreeMap<String, i64>,
    /// In what replicas differed.
    pub differences: Vec<String>,
    /// Measurements that could not be finished, and why.
    pub failures: Vec<String>,
}

impl TargetReport {
    fn of(comparison: &Comparison, target: Target) -> Option<Self> {
        let samples: Vec<&Sample> = comparison.of(target).collect();
        let runs = || samples.iter().filter_map(|sample| sample.run.as_ref());
        let completed = runs().map(|run| run.completed).sum::<u64>().max(1) as f64;
        let per_mille = |of: fn(&Run) -> u64| runs().map(of).sum::<u64>() as f64 * 1_000.0 / completed;
        let broken = samples.iter().flat_map(|sample| &sample.broken);
        Some(TargetReport {
            target,
            tps: Spread::of(runs().map(|run| run.tps))?,
            over_read_committed: comparison.ratio(target, Target::ReadCommitted),
            over_repeatable_read: comparison.ratio(target, Target::RepeatableRead),
            new_orders_a_minute: Spread::of(runs().map(|run| run.new_orders_a_minute))?,
            retried_per_mille: per_mille(|run| run.retried),
            failed_per_mille: per_mille(Run::failed),
            percentiles_ms: percentiles(&runs().collect::<Vec<_>>()),
            cpu_ms: cpu_ms(&samples),
            work: work(&samples),
            broken: broken.map(|checked| (checked.rule.clone(), checked.violations)).collect(),
            differences: samples.iter().flat_map(|sample| sample.differences.clone()).collect(),
            failures: samples.iter().filter_map(|sample| sample.failure.clone()).collect(),
        })
    }

    /// CPU time of process trees whose names begin like this.
    fn cpu_of(&self, name: &str) -> f64 {
        self.cpu_ms.iter().filter(|(tree, _)| tree.starts_with(name)).map(|(_, ms)| ms).sum()
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

fn percentiles(runs: &[&Run]) -> Vec<(String, [f64; 2])> {
    let Some(first) = runs.first() else { return Vec::new() };
    let of_kind = |(place, (kind, _)): (usize, &(String, _))| {
        let latencies =
            || runs.iter().filter_map(move |run| run.latencies.get(place)).map(|(_, latency)| latency);
        let [p50, p95] = [median(latencies().map(|l| l.p50_ms)), median(latencies().map(|l| l.p95_ms))];
        (kind.clone(), [p50, p95])
    };
    first.latencies.iter().enumerate().map(of_kind).collect()
}

fn cpu_ms(samples: &[&Sample]) -> BTreeMap<String, f64> {
    let mut by_tree: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let Some(run) = &sample.run else { continue };
        for usage in &sample.cpu {
            let ms = usage.seconds * 1e3 / run.completed.max(1) as f64;
            by_tree.entry(usage.name.clone()).or_default().push(ms);
        }
    }
    by_tree.into_iter().map(|(name, values)| (name, median(values))).collect()
}

fn work(samples: &[&Sample]) -> Vec<Work> {
    let mut all: Vec<Work> = Vec::new();
    for one in samples.iter().flat_map(|sample| &sample.work) {
        match all.iter_mut().find(|work| work.replica == one.replica) {
            Some(sum) => {
                sum.home_statements += one.home_statements;
                sum.applies += one.applies;
                sum.reads += one.reads;
            }
            None => all.push(one.clone()),
        }
    }
    all
}

impl Comparison {
    pub(super) fn new(options: &Options, machine: Machine) -> Self {
        Comparison {
            machine,
            rounds: options.rounds,
            seconds: options.duration.as_secs_f64(),
            warehouses: options.supplier.warehouses,
            customers: options.supplier.customers,
            terminals: options.terminals,
            seed: options.seed,
            left_out: Vec::new(),
            interrupted: false,
            samples: Vec::new(),
        }
    }

    fn of(&self, target: Target) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.target == target)
    }

    /// The throughput of one target over another's, round by round.
    pub fn ratio(&self, target: Target, over: Target) -> Option<Spread> {
        let tps = |target, round| {
            let sample = self.of(target).find(|sample| sample.round == round)?;
            sample.run.as_ref().map(|run| run.tps)
        };
        Spread::of((0..self.rounds).filter_map(|round| Some(tps(target, round)? / tps(over, round)?)))
    }

    /// Target by target, those that could be measured.
    pub fn targets(&self) -> Vec<TargetReport> {
        Target::ALL.into_iter().filter_map(|target| TargetReport::of(self, target)).collect()
    }

    /// Whether everything was as it must be: no replicas differed, no condition was broken but by a server at READ COMMITTED, and
    /// onecopy failed at nothing. What others refuse again and again is only told.
    pub fn holds(&self) -> bool {
        self.samples.iter().all(|sample| {
            let may_break = sample.target == Target::ReadCommitted;
            let may_fail = sample.target.protocol().is_none();
            let is_fine = |run: &Run| may_fail || run.failed() == 0;
            let served = sample.failure.is_none() && sample.run.as_ref().is_some_and(is_fine);
            served && sample.differences.is_empty() && (may_break || sample.broken.is_empty())
        })
    }

    /// Writes `report.md`, `report.json` and `samples.csv` into a folder.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(Error::file("write", &path))
        };
        #[derive(Serialize)]
        struct All<'a> {
            targets: Vec<TargetReport>,
            #[serde(flatten)]
            comparison: &'a Comparison,
        }
        let all = All { targets: self.targets(), comparison: self };
        let json = serde_json::to_string_pretty(&all).map_err(|error| Error::Option(error.to_string()))?;
        write("report.json", json + "\n")?;
        write("samples.csv", self.samples_csv())?;
        write("report.md", self.markdown())
    }

    fn samples_csv(&self) -> String {
        let mut csv =
            "round,target,tps,new_orders_a_minute,completed,taken_back,retried,failed,cpu_terminals_s,\
                       cpu_middleware_s,cpu_servers_s,broken,differences,failure\n"
                .to_owned();
        for sample in &self.samples {
            let _ = write!(csv, "{},{},", sample.round, sample.target);
            match &sample.run {
                Some(run) => {
                    let Run { tps, new_orders_a_minute, completed, taken_back, retried, .. } = run;
                    let _ =
                        write!(csv, "{tps:.3},{new_orders_a_minute:.1},{completed},{taken_back},{retried},");
                    let _ = write!(csv, "{},", run.failed());
                }
                None => csv.push_str(",,,,,,"),
            }
            let cpu = |name: &str| -> f64 {
                let of_tree = sample.cpu.iter().filter(|usage| usage.name.starts_with(name));
                of_tree.map(|usage| usage.seconds).sum()
            };
            let (terminals, middleware, servers) = (cpu("terminals"), cpu("middleware"), cpu("server"));
            let failure = sample.failure.as_deref().unwrap_or("").replace('"', "'").replace('\n', " ");
            let (broken, differences) = (sample.broken.len(), sample.differences.len());
            let _ = writeln!(
                csv,
                "{terminals:.2},{middleware:.2},{servers:.2},{broken},{differences},\"{failure}\""
            );
        }
        csv
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        let mut out =
            format!("# TPC-C, transactions whole and statement by statement\n\n{}\n", self.circumstances());
        let targets = self.targets();
        for (title, table) in tables(&targets) {
            let _ = writeln!(out, "## {title}\n\n{}", table.markdown());
        }
        out + &findings(&targets) + METHOD
    }

    fn circumstances(&self) -> String {
        let Machine { processor, processors, kernel, programs } = &self.machine;
        let mut out = format!(
            "{} rounds of {} s each, {} warehouses of {} customers a district, {} terminals without pauses; \
             {processors} x {processor}, Linux {kernel}.\n",
            self.rounds, self.seconds, self.warehouses, self.customers, self.terminals
        );
        for (_, version) in programs {
            let _ = writeln!(out, "- {version}");
        }
        for (target, why) in &self.left_out {
            let _ = writeln!(out, "- left out: {}: {why}", target.name());
        }
        if self.interrupted {
            out += "- interrupted: what follows is what was measured until then\n";
        }
        out
    }
}

fn tables(targets: &[TargetReport]) -> Vec<(&'static str, Table)> {
    let mut all =
        vec![("Throughput", throughput(targets)), ("Response times, p50 / p95 in ms", responses(targets))];
    if targets.iter().any(|target| !target.work.is_empty()) {
        all.push(("Work of the replicas, in thousands in all rounds", works(targets)));
    }
    all
}

fn throughput(targets: &[TargetReport]) -> Table {
    let mut table = Table::new([
        "target",
        "transactions/s",
        "x READ COMMITTED",
        "x REPEATABLE READ",
        "new orders/min",
        "again ‰",
        "failed ‰",
        "CPU ms/transaction",
        "terminals",
        "middleware",
        "servers",
    ]);
    for target in targets {
        let ratio = |spread: &Option<Spread>| {
            spread.as_ref().map_or_else(String::new, |spread| format!("{:.2}", spread.median))
        };
        let [terminals, middleware, servers] =
            ["terminals", "middleware", "server"].map(|name| target.cpu_of(name));
        let ms = |ms: f64| if ms == 0.0 { "–".to_owned() } else { format!("{ms:.2}") };
        table.row([
            target.target.name().to_owned(),
            thousands(target.tps.median),
            ratio(&target.over_read_committed),
            ratio(&target.over_repeatable_read),
            thousands(target.new_orders_a_minute.median),
            format!("{:.1}", target.retried_per_mille),
            format!("{:.1}", target.failed_per_mille),
            ms(terminals + middleware + servers),
            ms(terminals),
            ms(middleware),
            ms(servers),
        ]);
    }
    table
}

fn responses(targets: &[TargetReport]) -> Table {
    let kinds = targets.first().map(|target| &target.percentiles_ms[..]).unwrap_or_default();
    let kinds = kinds.iter().map(|(kind, _)| kind.clone());
    let mut table = Table::new(["target".to_owned()].into_iter().chain(kinds));
    for target in targets {
        let cells = target
            .percentiles_ms
            .iter()
            .map(|(_, [p50, p95])| format!("{} / {}", millis(*p50), millis(*p95)));
        table.row([target.target.name().to_owned()].into_iter().chain(cells));
    }
    table
}

fn works(targets: &[TargetReport]) -> Table {
    let mut table = Table::new(["target", "replica", "statements at home", "commits applied", "reads"]);
    for target in targets {
        for Work { replica, home_statements, applies, reads } in &target.work {
            let [home, applied, read] =
                [home_statements, applies, reads].map(|count| format!("{:.1}", *count as f64 / 1e3));
            table.row([target.target.name().to_owned(), replica.clone(), home, applied, read]);
        }
    }
    table
}

/// Conditions that were broken, differences, and what could not be finished.
fn findings(targets: &[TargetReport]) -> String {
    let mut out = String::new();
    for target in targets {
        let name = target.target.name();
        for (rule, violations) in &target.broken {
            let _ = writeln!(out, "- {name}: broken {violations} times: {rule}");
        }
        for difference in &target.differences {
            let _ = writeln!(out, "- {name}: replicas differ: {difference}");
        }
        for failure in &target.failures {
            let _ = writeln!(out, "- {name}: a measurement could not be finished: {failure}");
        }
    }
    if out.is_empty() {
        out += "Every condition held after every round, and replicas were equal.\n";
    }
    out
}

const METHOD: &str = "
## Method

Every round lets the same terminals work at every target, one after the other; the order turns from round to round. Ratios are medians of
the ratios within a round. All servers are PostgreSQL as shipped, on this machine, over TCP on loopback; terminals, middleware and
servers share its processors, so three servers do three times the work of a write on the same processors. A transaction that is
whole is one message; to the others each statement goes by itself and waits for its answer. CPU time is that of whole process trees,
from /proc, the time in which terminals come included, divided by the transactions that were completed.
";

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.circumstances())?;
        let targets = self.targets();
        for (title, table) in tables(&targets) {
            writeln!(f, "{title}\n{}", table.terminal())?;
        }
        f.write_str(&findings(&targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Usage;
    use crate::site::{Checked, Counted, Latency};

    fn sample(round: u32, target: Target, tps: f64) -> Sample {
        let completed = tps as u64 * 20;
        let latency = Latency { p50_ms: 2.0, p95_ms: 9.5, ..Latency::default() };
        let usage = |name: &str, seconds| Usage { name: name.to_owned(), seconds };
        let work = |replica: &str, home_statements| Work {
            replica: replica.to_owned(),
            home_statements,
            applies: 500,
            reads: 7,
        };
        let run = Run {
            tps,
            new_orders_a_minute: tps * 27.0,
            completed,
            taken_back: 3,
            retried: completed / 10,
            errors: Vec::new(),
            latencies: vec![("New Order".to_owned(), latency), ("Payment".to_owned(), latency)],
        };
        Sample {
            round,
            target,
            run: Some(run),
            failure: None,
            cpu: vec![
                usage("middleware", 2.0),
                usage("server 1", 3.0),
                usage("server 2", 1.0),
                usage("terminals", 4.0),
            ],
            work: if target == Target::Chains {
                vec![work("r1", 1_000), work("r2", 3_000)]
            } else {
                Vec::new()
            },
            broken: Vec::new(),
            differences: Vec::new(),
        }
    }

    fn comparison() -> Comparison {
        let mut comparison = Comparison::new(&Options::default(), Machine::default());
        for round in 0..3 {
            // The machine is half as fast in every second round, for all.
            let speed = if round % 2 == 0 { 1.0 } else { 0.5 };
            comparison.samples.push(sample(round, Target::ReadCommitted, 400.0 * speed));
            comparison.samples.push(sample(round, Target::RepeatableRead, 200.0 * speed));
            comparison.samples.push(sample(round, Target::Chains, 300.0 * speed));
        }
        comparison
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_work_is_summed() {
        let targets = comparison().targets();
        let [_, single, chains] = &targets[..] else { panic!("{targets:?}") };
        let [over_single, over_fast] = [&chains.over_repeatable_read, &chains.over_read_committed];
        let median = |ratio: &Option<Spread>| ratio.unwrap().median;
        assert!((median(over_single) - 1.5).abs() < 1e-9 && (median(over_fast) - 0.75).abs() < 1e-9);
        assert!((median(&single.over_repeatable_read) - 1.0).abs() < 1e-9);
        assert_eq!(
            (chains.work[1].home_statements, chains.work[1].applies, chains.work[1].reads),
            (9_000, 1_500, 21)
        );
        assert!((chains.retried_per_mille - 100.0).abs() < 1e-9);
        assert_eq!(chains.percentiles_ms[1], ("Payment".to_owned(), [2.0, 9.5]));
        // 4 s of servers for 6,000 transactions.
        assert!((chains.cpu_of("server") - 4.0 / 6.0).abs() < 1e-9, "{:?}", chains.cpu_ms);
    }

    #[test]
    fn only_a_server_at_read_committed_may_break_conditions() {
        let broken = |target: Target| {
            let mut comparison = comparison();
            let checked = Checked { rule: "13: no sale is lost".to_owned(), violations: 2 };
            let sample = comparison.samples.iter_mut().find(|sample| sample.target == target).unwrap();
            sample.broken.push(checked);
            comparison
        };
        assert!(comparison().holds());
        assert!(broken(Target::ReadCommitted).holds());
        assert!(!broken(Target::Chains).holds());
        assert!(
            broken(Target::Chains)
                .to_string()
                .contains("chains, 3 replicas, whole: broken 2 times: 13: no sale")
        );
        for (target, may_fail) in [(Target::RepeatableRead, true), (Target::Chains, false)] {
            let mut failed = comparison();
            let sample = failed.samples.iter_mut().find(|sample| sample.target == target).unwrap();
            sample.run.as_mut().unwrap().errors = vec![Counted { code: "40001".to_owned(), count: 1 }];
            assert_eq!(failed.holds(), may_fail, "{target}");
        }
        let mut differs = comparison();
        differs.samples[2].differences.push("r2: differs".to_owned());
        assert!(!differs.holds());
    }

    #[test]
    fn a_comparison_is_saved_with_its_raw_results() {
        let folder = tempfile::tempdir().unwrap();
        let mut comparison = comparison();
        comparison.left_out.push((Target::Pgpool, "pgpool: is not installed".to_owned()));
        let mut failed = sample(2, Target::Onecopy, 1.0);
        (failed.run, failed.failure) = (None, Some("was \"lost\"".to_owned()));
        comparison.samples.push(failed);
        comparison.save(folder.path()).unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(text("samples.csv").lines().count(), 11);
        assert!(text("samples.csv").ends_with(",0,0,\"was 'lost'\"\n"));
        let columns = |line: &str| line.split(',').count();
        assert!(text("samples.csv").lines().all(|line| columns(line) == 14), "{}", text("samples.csv"));
        let json: serde_json::Value = serde_json::from_str(&text("report.json")).unwrap();
        assert_eq!(json["targets"][2]["target"], "chains");
        let markdown = text("report.md");
        assert!(markdown.contains("left out: Pgpool-II") && markdown.contains("## Work of the replicas"));
    }
}
