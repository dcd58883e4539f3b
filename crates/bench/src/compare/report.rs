//! What a comparison has shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

use onecopy_cluster::Binaries;
use serde::Serialize;

use super::{Load, Options, Sample, Spread, Target};
use crate::programs::find_program;
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
    /// Clients of the loads that have several.
    pub clients: u32,
    /// Scale of pgbench's tables.
    pub scale: u32,
    /// Targets that could not be started, and why.
    pub left_out: Vec<(Target, String)>,
    /// Somebody pressed Ctrl-C; what was measured until then is here.
    pub interrupted: bool,
    /// Every measurement, in order.
    pub samples: Vec<Sample>,
}

/// Where it was measured, and what.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many processors.
    pub processors: usize,
    /// The operating system's kernel.
    pub kernel: String,
    /// Programs and their versions.
    pub programs: Vec<(String, String)>,
}

impl Machine {
    /// With the versions of PostgreSQL and of these programs, by name and where they are if that is said.
    pub(crate) fn look(binaries: &Binaries, others: &[(&str, Option<&Path>)]) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut programs = vec![version(&binaries.program("postgres"))];
        for (name, given) in others {
            programs.extend(find_program(name, *given).ok().map(|path| version(&path)));
        }
        Machine {
            processor: processor.map_or("unknown", |(_, name)| name).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            programs: programs.into_iter().filter(|(_, version)| !version.is_empty()).collect(),
        }
    }
}

/// The program's name and the first line that it says when asked for its version.
fn version(program: &Path) -> (String, String) {
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let said = Command::new(program).arg("--version").output().ok();
    // Pgpool-II says it on standard error.
    let first = said.and_then(|said| {
        let all = [said.stdout, said.stderr].concat();
        String::from_utf8_lossy(&all).lines().next().map(str::to_owned)
    });
    (name, first.unwrap_or_default())
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// Which.
    pub load: Load,
    /// Target by target.
    pub targets: Vec<TargetReport>,
}

/// One target under one load.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Which.
    pub target: Target,
    /// Transactions per second.
    pub tps: Spread,
    /// Throughput over that of the direct server in the same round.
    pub over_direct: Option<Spread>,
    /// Throughput over that of PgBouncer in the same round.
    pub over_pgbouncer: Option<Spread>,
    /// Mean response time.
    pub mean_ms: Spread,
    /// Percentiles of response times: the medians of the rounds' 50th, 95th and 99th.
    pub percentiles_ms: [f64; 3],
    /// CPU time for each statement, in microseconds: client, proxy, servers together.
    pub cpu_us: [f64; 3],
    /// CPU time of each process tree for each statement, in microseconds.
    pub cpu_us_by_tree: BTreeMap<String, f64>,
    /// Transactions that failed, for each 1,000.
    pub failed_per_mille: f64,
    /// Measurements that could not be finished, and why.
    pub failures: Vec<String>,
}

impl TargetReport {
    fn of(comparison: &Comparison, load: Load, target: Target) -> Option<Self> {
        let samples: Vec<&Sample> = comparison.of(load, target).collect();
        let runs = || samples.iter().filter_map(|sample| sample.run.as_ref());
        let percentile = |of: fn(&crate::site::Latency) -> f64| {
            Spread::of(runs().map(|run| of(&run.latency))).map_or(0.0, |spread| spread.median)
        };
        let cpu_us_by_tree = cpu_by_tree(&samples, load);
        let of_servers = |name: &&String| name.starts_with("server");
        let servers = cpu_us_by_tree.keys().filter(of_servers).map(|name| cpu_us_by_tree[name]).sum();
        let tree = |name: &str| cpu_us_by_tree.get(name).copied().unwrap_or(0.0);
        let (all, failed) =
            runs().fold((0, 0), |(all, failed), run| (all + run.transactions, failed + run.failed));
        Some(TargetReport {
            target,
            tps: Spread::of(runs().map(|run| run.tps))?,
            over_direct: comparison.ratio(load, target, Target::Direct),
            over_pgbouncer: comparison.ratio(load, target, Target::Pgbouncer),
            mean_ms: Spread::of(runs().map(|run| run.mean_ms))?,
            percentiles_ms: [percentile(|l| l.p50_ms), percentile(|l| l.p95_ms), percentile(|l| l.p99_ms)],
            cpu_us: [tree("client"), tree("proxy"), servers],
            cpu_us_by_tree,
            failed_per_mille: failed as f64 * 1_000.0 / (all + failed).max(1) as f64,
            failures: samples.iter().filter_map(|sample| sample.failure.clone()).collect(),
        })
    }
}

/// The median over the rounds of each tree's CPU time per statement, in microseconds.
fn cpu_by_tree(samples: &[&Sample], load: Load) -> BTreeMap<String, f64> {
    let mut by_tree: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let Some(run) = &sample.run else { continue };
        let statements = (run.transactions + run.failed) as f64 * f64::from(load.statements());
        for usage in &sample.cpu {
            by_tree.entry(usage.name.clone()).or_default().push(usage.seconds * 1e6 / statements.max(1.0));
        }
    }
    let median = |values: Vec<f64>| Spread::of(values).map_or(0.0, |spread| spread.median);
    by_tree.into_iter().map(|(name, values)| (name, median(values))).collect()
}

/// Which response time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The mean of all transactions.
    Mean,
    /// The median of a sample of them, in whole microseconds; moved less by whatever else the machine does.
    Median,
}

/// Something that a comparison is expected to show.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// In words.
    pub goal: String,
    /// What was measured, a ratio or a number of microseconds.
    pub measured: Spread,
    /// What is needed.
    pub needed: f64,
    /// Whether more is better.
    pub at_least: bool,
}

impl Goal {
    /// Whether the median is on the right side.
    pub fn holds(&self) -> bool {
        if self.at_least { self.measured.median >= self.needed } else { self.measured.median <= self.needed }
    }
}

impl Comparison {
    pub(super) fn new(options: &Options, machine: Machine) -> Self {
        Comparison {
            machine,
            rounds: options.rounds,
            seconds: options.duration.as_secs_f64(),
            clients: options.clients,
            scale: options.scale,
            left_out: Vec::new(),
            interrupted: false,
            samples: Vec::new(),
        }
    }

    fn of(&self, load: Load, target: Target) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.load == load && sample.target == target)
    }

    /// What both targets gave in each round in which both were measured.
    fn pairs(&self, load: Load, a: Target, b: Target) -> Vec<(&super::Run, &super::Run)> {
        let of_round = |target, round| {
            self.of(load, target).find(|sample| sample.round == round).and_then(|sample| sample.run.as_ref())
        };
        (0..self.rounds).filter_map(|round| Some((of_round(a, round)?, of_round(b, round)?))).collect()
    }

    /// The throughput of one target over another's, round by round.
    pub fn ratio(&self, load: Load, target: Target, over: Target) -> Option<Spread> {
        Spread::of(self.pairs(load, target, over).iter().map(|(ours, theirs)| ours.tps / theirs.tps))
    }

    /// What one target's response time has more than another's, round by round, in microseconds.
    pub fn added_us(&self, load: Load, target: Target, over: Target, of: Response) -> Option<Spread> {
        let us = |run: &super::Run| match of {
            // One client waits for nothing else, so this is finer than the printed mean.
            Response::Mean if load.is_latency() => 1e6 / run.tps,
            Response::Mean => run.mean_ms * 1e3,
            Response::Median => run.latency.p50_ms * 1e3,
        };
        let pairs = self.pairs(load, target, over);
        Spread::of(pairs.iter().map(|(ours, theirs)| us(ours) - us(theirs)))
    }

    /// The CPU time that a target's servers spent for a transaction over what another's did, round by round.
    pub fn servers_cpu_ratio(&self, load: Load, target: Target, over: Target) -> Option<Spread> {
        let of_round = |target, round| {
            let sample = self.of(load, target).find(|sample| sample.round == round)?;
            let servers = sample.cpu.iter().filter(|usage| usage.name.starts_with("server"));
            let seconds: f64 = servers.map(|usage| usage.seconds).sum();
            let transactions = sample.run.as_ref()?.transactions;
            (transactions > 0 && seconds > 0.0).then(|| seconds / transactions as f64)
        };
        Spread::of(
            (0..self.rounds).filter_map(|round| Some(of_round(target, round)? / of_round(over, round)?)),
        )
    }

    /// Load by load, with the targets that could be measured.
    pub fn loads(&self) -> Vec<LoadReport> {
        let mut loads = Vec::new();
        for load in Load::ALL {
            let reports = Target::ALL.into_iter().filter_map(|target| TargetReport::of(self, load, target));
            let targets: Vec<TargetReport> = reports.collect();
            if !targets.is_empty() {
                loads.push(LoadReport { load, targets });
            }
        }
        loads
    }

    /// What onecopy with three replicas is expected to reach, as far as it and its rival were measured.
    pub fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let ours = Target::Onecopy3;
        for (load, rival, needed) in [
            (Load::SelectPrepared, Target::Pgbouncer, 1.0),
            (Load::SelectSimple, Target::Pgbouncer, 0.95),
            (Load::TpcbPrepared, Target::Pgpool, 2.5),
            (Load::TpcbSimple, Target::Pgpool, 2.5),
            (Load::TpcbPrepared, Target::Streaming, 0.9),
            (Load::TpcbSimple, Target::Streaming, 0.7),
        ] {
            if let Some(measured) = self.ratio(load, ours, rival) {
                let goal = format!("{}: throughput over {}", load.name(), rival.name());
                goals.push(Goal { goal, measured, needed, at_least: true });
            }
        }
        for load in [Load::LatencySimple, Load::LatencyPrepared] {
            for (of, name) in [(Response::Mean, "mean"), (Response::Median, "median")] {
                if let Some(measured) = self.added_us(load, ours, Target::Pgbouncer, of) {
                    let goal = format!("{}: {name} us beyond PgBouncer's", load.name());
                    goals.push(Goal { goal, measured, needed: 20.0, at_least: false });
                }
            }
        }
        for load in [Load::SelectSimple, Load::SelectPrepared] {
            let single = Target::Onecopy1;
            if let Some(measured) = self.servers_cpu_ratio(load, ours, single) {
                let goal = format!("{}: servers' CPU time a read over {}", load.name(), single.name());
                goals.push(Goal { goal, measured, needed: 1.1, at_least: false });
            }
        }
        goals
    }

    /// Writes `report.md`, `report.json` and `samples.csv` into a folder.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(Error::file("write", &path))
        };
        #[derive(Serialize)]
        struct Whole<'a> {
            loads: Vec<LoadReport>,
            goals: Vec<Goal>,
            #[serde(flatten)]
            comparison: &'a Comparison,
        }
        let whole = Whole { loads: self.loads(), goals: self.goals(), comparison: self };
        let json = serde_json::to_string_pretty(&whole).map_err(|error| Error::Option(error.to_string()))?;
        write("report.json", json + "\n")?;
        write("samples.csv", self.samples_csv())?;
        write("report.md", self.markdown())
    }

    fn samples_csv(&self) -> String {
        let mut csv = "load,round,target,tps,transactions,failed,mean_ms,p50_ms,p95_ms,p99_ms,\
                       cpu_client_s,cpu_proxy_s,cpu_servers_s,failure\n"
            .to_owned();
        for sample in &self.samples {
            let Sample { load, round, target, .. } = sample;
            let _ = write!(csv, "{load},{round},{target},");
            match &sample.run {
                Some(run) => {
                    let (tps, mean, latency) = (run.tps, run.mean_ms, &run.latency);
                    let _ = write!(csv, "{tps:.3},{},{},{mean:.4},", run.transactions, run.failed);
                    let _ = write!(csv, "{:.3},{:.3},{:.3},", latency.p50_ms, latency.p95_ms, latency.p99_ms);
                }
                None => csv.push_str(",,,,,,,"),
            }
            let sum = |name: &str| -> f64 {
                sample
                    .cpu
                    .iter()
                    .filter(|usage| usage.name.starts_with(name))
                    .map(|usage| usage.seconds)
                    .sum()
            };
            let failure = sample.failure.as_deref().unwrap_or("").replace('"', "'").replace('\n', " ");
            let (client, proxy, servers) = (sum("client"), sum("proxy"), sum("server"));
            let _ = writeln!(csv, "{client:.2},{proxy:.2},{servers:.2},\"{failure}\"");
        }
        csv
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = "# PostgreSQL, its rivals' arrangements and onecopy, side by side\n\n".to_owned();
        out += &self.circumstances();
        out.push('\n');
        for load in self.loads() {
            let _ = writeln!(out, "## {}\n\n{}", load.load.name(), load.table().markdown());
            out += &load.failures();
        }
        if let Some(goals) = self.goals_table() {
            let _ = writeln!(out, "## Goals\n\n{}", goals.markdown());
        }
        out += METHOD;
        out
    }

    fn circumstances(&self) -> String {
        let Machine { processor, processors, kernel, programs } = &self.machine;
        let mut out = format!(
            "{} rounds of {} s each, {} clients, scale {}; {processors} x {processor}, Linux {kernel}.\n",
            self.rounds, self.seconds, self.clients, self.scale
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

    fn goals_table(&self) -> Option<Table> {
        let goals = self.goals();
        if goals.is_empty() {
            return None;
        }
        let mut table =
            Table::new(["goal of onecopy with 3 replicas", "needed", "measured", "95 % interval", ""]);
        for goal in goals {
            let needed = format!("{} {}", if goal.at_least { "≥" } else { "≤" }, goal.needed);
            let Spread { median, low, high, .. } = goal.measured;
            let interval = format!("{low:.2} to {high:.2}");
            let verdict = if goal.holds() { "holds" } else { "missed" };
            table.row([goal.goal, needed, format!("{median:.2}"), interval, verdict.to_owned()]);
        }
        Some(table)
    }
}

impl LoadReport {
    fn table(&self) -> Table {
        let mut table = Table::new([
            "target",
            "tps",
            "x direct",
            "x PgBouncer",
            "mean ms",
            "p50",
            "p95",
            "p99",
            "CPU us/stmt",
            "client",
            "proxy",
            "servers",
            "failed ‰",
        ]);
        for target in &self.targets {
            let ratio = |spread: &Option<Spread>| {
                spread.as_ref().map_or_else(String::new, |spread| format!("{:.2}", spread.median))
            };
            let [p50, p95, p99] = target.percentiles_ms.map(millis);
            let [client, proxy, servers] = target.cpu_us;
            let us = |us: f64| if us == 0.0 { "–".to_owned() } else { format!("{us:.1}") };
            table.row([
                target.target.name().to_owned(),
                thousands(target.tps.median),
                ratio(&target.over_direct),
                ratio(&target.over_pgbouncer),
                millis(target.mean_ms.median),
                p50,
                p95,
                p99,
                us(client + proxy + servers),
                us(client),
                us(proxy),
                us(servers),
                format!("{:.1}", target.failed_per_mille),
            ]);
        }
        table
    }

    /// What could not be finished, with the first reason.
    fn failures(&self) -> String {
        let mut out = String::new();
        for target in self.targets.iter().filter(|target| !target.failures.is_empty()) {
            let (name, count) = (target.target.name(), target.failures.len());
            let _ =
                writeln!(out, "{name}: {count} measurements could not be finished: {}\n", target.failures[0]);
        }
        out
    }
}

const METHOD: &str = "\
## Method

Every round measures every target once, one after the other; the order turns from round to round. Ratios are medians of
the ratios within a round. Intervals hold the true median with 95 % confidence (sign test). All servers are PostgreSQL as shipped, on
this machine, over TCP on loopback; clients, proxies and servers share its processors, so three servers do three times
the work of a write on the same processors. Pgpool-II runs in native replication mode; the standbys are synchronous, and the primary
waits until both have applied a commit. CPU time is that of whole process trees, from /proc, divided by the statements
that pgbench completed (BEGIN and END count). Percentiles come from a sample of the transactions.
";

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.circumstances())?;
        for load in self.loads() {
            write!(f, "{}\n{}{}", load.load.name(), load.table().terminal(), load.failures())?;
            writeln!(f)?;
        }
        if let Some(goals) = self.goals_table() {
            write!(f, "{}", goals.terminal())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Run, Usage};
    use crate::site::Latency;

    fn sample(load: Load, round: u32, target: Target, tps: f64) -> Sample {
        let transactions = tps as u64 * 5;
        let usage = |name: &str, seconds| Usage { name: name.to_owned(), seconds };
        Sample {
            load,
            round,
            target,
            run: Some(Run { tps, transactions, failed: 0, latency: Latency::default(), mean_ms: 1e3 / tps }),
            failure: None,
            cpu: vec![
                usage("client", 2.0),
                usage("proxy", 1.0),
                usage("server 1", 3.0),
                usage("server 2", 4.0),
            ],
        }
    }

    fn comparison() -> Comparison {
        let mut comparison = Comparison::new(&Options::default(), Machine::default());
        for round in 0..11 {
            // The machine is half as fast in every second round, for all.
            let speed = if round % 2 == 0 { 1.0 } else { 0.5 };
            for (target, tps) in
                [(Target::Direct, 50_000.0), (Target::Pgbouncer, 25_000.0), (Target::Onecopy3, 30_000.0)]
            {
                comparison.samples.push(sample(Load::SelectPrepared, round, target, tps * speed));
            }
            comparison.samples.push(sample(Load::LatencySimple, round, Target::Pgbouncer, 10_000.0));
            comparison.samples.push(sample(Load::LatencySimple, round, Target::Onecopy3, 8_000.0));
        }
        comparison
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let loads = comparison().loads();
        let ours = loads[0].targets.iter().find(|target| target.target == Target::Onecopy3).unwrap();
        let ratio = ours.over_direct.unwrap();
        assert!((ratio.median - 0.6).abs() < 1e-9 && (ratio.high - ratio.low).abs() < 1e-9);
        assert_eq!(ours.tps.median, 30_000.0);
        // 5 s of 30,000 transactions: 2 s of CPU are 13.3 us for each.
        assert!(
            (ours.cpu_us_by_tree["client"] - 13.33).abs() < 0.01 || ours.cpu_us_by_tree["client"] > 13.33
        );
        assert!(ours.cpu_us[2] > ours.cpu_us[0] + ours.cpu_us[1]);
    }

    #[test]
    fn goals_are_judged_where_both_sides_were_measured() {
        let goals = comparison().goals();
        let verdicts: Vec<(f64, bool)> =
            goals.iter().map(|goal| (goal.measured.median, goal.holds())).collect();
        assert_eq!(verdicts.len(), 3);
        assert!(verdicts[0].1 && (verdicts[0].0 - 1.2).abs() < 1e-9);
        // 125 us against 100 us.
        assert!(!verdicts[1].1 && (verdicts[1].0 - 25.0).abs() < 1e-9);
    }

    #[test]
    fn more_replicas_must_not_make_a_read_cost_its_server_more() {
        let mut comparison = Comparison::new(&Options::default(), Machine::default());
        for round in 0..11 {
            // Both cost the servers 7 s a run: for fewer reads that is more for each.
            comparison.samples.push(sample(Load::SelectPrepared, round, Target::Onecopy1, 20_000.0));
            comparison.samples.push(sample(Load::SelectPrepared, round, Target::Onecopy3, 16_000.0));
        }
        let [goal] = &comparison.goals()[..] else { panic!("{:?}", comparison.goals()) };
        assert!((goal.measured.median - 1.25).abs() < 1e-9 && !goal.holds(), "{goal:?}");
    }

    #[test]
    fn a_comparison_is_saved_with_its_raw_results() {
        let folder = tempfile::tempdir().unwrap();
        let mut comparison = comparison();
        comparison.left_out.push((Target::Pgpool, "pgpool: is not installed".to_owned()));
        let mut failed = sample(Load::SelectPrepared, 3, Target::Onecopy1, 1.0);
        (failed.run, failed.failure) = (None, Some("client 3 aborted".to_owned()));
        comparison.samples.push(failed);
        comparison.save(folder.path()).unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(text("samples.csv").lines().count(), 57);
        assert!(text("samples.csv").ends_with(",\"client 3 aborted\"\n"));
        let json: serde_json::Value = serde_json::from_str(&text("report.json")).unwrap();
        assert_eq!(json["loads"][0]["targets"][2]["target"], "onecopy-3");
        let markdown = text("report.md");
        assert!(markdown.contains("left out: Pgpool-II") && markdown.contains("## Goals"));
        assert!(comparison.to_string().contains("missed"));
    }
}
