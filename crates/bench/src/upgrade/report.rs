//! What a run of replacements has shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use onecopy_cluster::Cluster;
use onecopy_workload::tpcw::catalogue;
use serde::Serialize;

use super::peak::{Stage, peak};
use super::{Goal, Options, Rates, Serving};
use crate::failures::report::{list, write_worst};
use crate::observe::aftermath::Aftermath;
use crate::observe::probe::DiskWrite;
use crate::observe::watch::Change;
use crate::programs::write;
use crate::site::{Arrival, Collected, Incident, Latency, Offered, Sample};
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// Everything about one run. Times are in milliseconds from the beginning of the load.
#[derive(Clone, Debug, Serialize)]
pub struct UpgradeReport {
    /// How customers walked.
    pub mix: String,
    /// Books in the store.
    pub items: i64,
    /// Servers at first.
    pub replicas: u32,
    /// Versions of PostgreSQL: of the servers at first, and of those that replaced them.
    pub versions: [String; 2],
    /// Names of those that replace the others.
    pub new: Vec<String>,
    /// Seed.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// How the peak was found; empty if the rate was given.
    pub stages: Vec<Stage>,
    /// What was offered.
    pub rates: Option<Rates>,
    /// Customers in the end.
    pub users: u32,
    /// Phase by phase, in the order in which they were.
    pub phases: Vec<Phase>,
    /// All phases as one.
    pub all: Phase,
    /// When the last page was shown.
    pub end_ms: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Pages that failed in the whole run, by SQLSTATE, `timeout` or `connection lost`.
    pub errors: BTreeMap<String, u64>,
    /// Transactions that the driver ran again in the whole run, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// Pages in the whole run for which nobody asked, since the backlog was at its bound.
    pub turned_away: u64,
    /// Pages that were not shown though their customers waited on when no more was due.
    pub cut_off: u64,
    /// Connections that ended though their customers were there.
    pub connections_lost: u64,
    /// The replicas that served in the end.
    pub serving: Vec<Serving>,
    /// What was found afterwards.
    #[serde(flatten)]
    pub aftermath: Aftermath,
    /// What went wrong with the run itself.
    pub failures: Vec<String>,
    /// Every state of every replica.
    pub changes: Vec<Change>,
    #[serde(skip)]
    incidents: Vec<Incident>,
    #[serde(skip)]
    pub(super) arrivals: Vec<Arrival>,
    #[serde(skip)]
    samples: Vec<Sample>,
    /// Where the results are kept.
    #[serde(skip)]
    pub(super) results: Option<PathBuf>,
}

/// A phase as it was played.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: String,
    /// The replica that was copied in it.
    pub(super) joins: Option<String>,
    pub(super) begin_ms: u64,
    pub(super) end_ms: u64,
    /// Of the machine's processors, the part that was busy with anything.
    pub(super) busy: f64,
    /// It came to its end.
    pub(super) done: bool,
}

/// What customers met in a part of the run. Pages count where they were due, but for those shown per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// What happened: "r4 joins".
    pub name: String,
    /// The replica that was copied in it, from its server's start until it served.
    pub joins: Option<String>,
    /// When it began.
    pub begin_ms: u64,
    /// When it ended.
    pub end_ms: u64,
    /// Pages that were due in it, those that were turned away included.
    pub due: u64,
    /// Pages that were shown in it, whenever they had been due.
    pub shown: u64,
    /// Of those due, those that failed.
    pub failed: u64,
    /// Of those due, those for which nobody asked, since the backlog was at its bound.
    pub turned_away: u64,
    /// Transactions of those due that ran again.
    pub again: u64,
    /// From when a page was due until it was shown.
    pub latency: Latency,
    /// The most pages that were due and not shown, at any time at which one was due.
    pub longest_backlog: u32,
    /// The longest that a page written to the disk of the commit log took beside all that.
    pub longest_disk_write_ms: f64,
    /// Of the machine's processors, the part that was busy with anything, whoever's it was.
    pub busy: f64,
    /// It came to its end.
    pub done: bool,
}

impl Phase {
    /// How long it was.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (self.end_ms - self.begin_ms) as f64 / 1_000.0
    }

    fn of(span: &Span, arrivals: &[Arrival], samples: &[Sample], writes: &[DiskWrite]) -> Phase {
        let within = span.begin_ms..span.end_ms.max(span.begin_ms);
        let arrivals: Vec<&Arrival> =
            arrivals.iter().filter(|arrival| within.contains(&arrival.at_ms)).collect();
        let due = |sample: &&Sample| within.contains(&due_ms(sample));
        let shown_in = |sample: &&Sample| !sample.failed && within.contains(&u64::from(sample.at_ms));
        let shown = samples.iter().filter(due).filter(|sample| !sample.failed);
        Phase {
            name: span.name.clone(),
            joins: span.joins.clone(),
            begin_ms: within.start,
            end_ms: within.end,
            due: arrivals.len() as u64,
            shown: samples.iter().filter(shown_in).count() as u64,
            failed: samples.iter().filter(due).filter(|sample| sample.failed).count() as u64,
            turned_away: arrivals.iter().filter(|arrival| arrival.turned_away).count() as u64,
            again: samples.iter().filter(due).map(|sample| u64::from(sample.retries)).sum(),
            latency: Latency::of(shown.map(|sample| u64::from(sample.latency_us))),
            longest_backlog: arrivals.iter().map(|arrival| arrival.backlog).max().unwrap_or(0),
            longest_disk_write_ms: longest_write_ms(writes, &within),
            busy: span.busy,
            done: span.done,
        }
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds().max(1e-3)
    }
}

fn due_ms(sample: &Sample) -> u64 {
    u64::from(sample.at_ms).saturating_sub(u64::from(sample.latency_us / 1_000))
}

fn longest_write_ms(writes: &[DiskWrite], within: &Range<u64>) -> f64 {
    let writes = writes.iter().filter(|write| within.contains(&write.at_ms));
    writes.map(|write| write.took_ms).fold(0.0, f64::max)
}

impl UpgradeReport {
    pub(super) fn new(options: &Options, versions: [String; 2]) -> Self {
        let old = options.replicas as usize + 1;
        UpgradeReport {
            mix: options.mix.to_string(),
            items: options.items,
            replicas: options.replicas,
            versions,
            new: (old..2 * old).map(Cluster::name).collect(),
            seed: options.seed,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            stages: Vec::new(),
            rates: None,
            users: 0,
            phases: Vec::new(),
            all: Phase::default(),
            end_ms: 0,
            transactions: 0,
            errors: BTreeMap::new(),
            retries: BTreeMap::new(),
            turned_away: 0,
            cut_off: 0,
            connections_lost: 0,
            serving: Vec::new(),
            aftermath: Aftermath::default(),
            failures: Vec::new(),
            changes: Vec::new(),
            incidents: Vec::new(),
            arrivals: Vec::new(),
            samples: Vec::new(),
            results: None,
        }
    }

    /// Pages per second that customers without pauses got at most; 0 if that was not looked for.
    #[must_use]
    pub fn peak(&self) -> f64 {
        peak(&self.stages)
    }

    /// What customers have met.
    pub(super) fn take(
        &mut self,
        collected: &Collected,
        offered: &Offered,
        incidents: Vec<Incident>,
        writes: &[DiskWrite],
        spans: &[Span],
    ) {
        let phase = |span| Phase::of(span, &offered.arrivals, &collected.samples, writes);
        self.phases = spans.iter().map(phase).collect();
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            let ms = |span: &Span| (span.end_ms - span.begin_ms) as f64;
            let busy = spans.iter().map(|span| span.busy * ms(span)).sum::<f64>();
            let busy = busy / spans.iter().map(ms).sum::<f64>().max(1.0);
            let (name, begin_ms, end_ms) = ("all".to_owned(), first.begin_ms, last.end_ms);
            self.all = phase(&Span {
                name,
                joins: None,
                begin_ms,
                end_ms,
                busy,
                done: spans.iter().all(|span| span.done),
            });
        }
        self.users = offered.users;
        self.transactions = collected.transactions;
        self.errors = collected.errors.clone();
        self.retries = collected.retries.clone();
        self.turned_away = offered.arrivals.iter().filter(|arrival| arrival.turned_away).count() as u64;
        self.incidents = incidents;
        self.incidents.sort_by_key(|incident| incident.at_ms);
        self.arrivals = offered.arrivals.clone();
        self.samples = collected.samples.clone();
    }

    /// Writes `report.txt`, `report.json`, `phases.csv`, `seconds.csv`, `pages.csv` and `incidents.csv`.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Option(format!("write the report: {error}")))?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("phases.csv"), &self.phases_csv())?;
        write(&folder.join("seconds.csv"), &self.seconds_csv())?;
        write(&folder.join("pages.csv"), &self.pages_csv())?;
        write(&folder.join("incidents.csv"), &Incident::csv(&self.incidents))?;
        write(&folder.join("report.txt"), &self.to_string())
    }

    fn phases_csv(&self) -> String {
        let mut csv = String::from(
            "phase,begin_ms,end_ms,due,shown,failed,turned_away,again,p50_ms,p90_ms,p95_ms,p99_ms,max_ms,longest_backlog,\
             longest_disk_write_ms,busy\n",
        );
        for phase in self.phases.iter().chain([&self.all]) {
            let Phase { name, begin_ms, end_ms, due, shown, failed, turned_away, again, .. } = phase;
            let Latency { p50_ms, p90_ms, p95_ms, p99_ms, max_ms, .. } = phase.latency;
            let _ = writeln!(
                csv,
                "{name},{begin_ms},{end_ms},{due},{shown},{failed},{turned_away},{again},{p50_ms:.3},{p90_ms:.3},{p95_ms:.3},\
                 {p99_ms:.3},{max_ms:.3},{},{:.1},{:.3}",
                phase.longest_backlog, phase.longest_disk_write_ms, phase.busy
            );
        }
        csv
    }

    /// One line a second: pages due and turned away in it, shown and failed in it, and the most that were behind.
    fn seconds_csv(&self) -> String {
        let mut seconds = vec![[0_u64; 5]; (self.end_ms / 1_000) as usize + 1];
        for Arrival { at_ms, backlog, turned_away } in &self.arrivals {
            if let Some([due, away, _, _, behind]) = seconds.get_mut(*at_ms as usize / 1_000) {
                *due += 1;
                *away += u64::from(*turned_away);
                *behind = u64::from(*backlog).max(*behind);
            }
        }
        for sample in &self.samples {
            if let Some(second) = seconds.get_mut(sample.at_ms as usize / 1_000) {
                second[2 + usize::from(sample.failed)] += 1;
            }
        }
        let mut csv = "second,due,turned_away,shown,failed,longest_backlog\n".to_owned();
        for (second, [due, away, shown, failed, behind]) in seconds.iter().enumerate() {
            let _ = writeln!(csv, "{second},{due},{away},{shown},{failed},{behind}");
        }
        csv
    }

    /// One line a page that was asked for, in the order in which they were shown.
    fn pages_csv(&self) -> String {
        let mut csv = "due_ms,page,latency_us,again,failed\n".to_owned();
        for sample in &self.samples {
            let page = &catalogue().interactions[usize::from(sample.interaction)].id;
            let (due_ms, failed) = (due_ms(sample), u8::from(sample.failed));
            let _ = writeln!(csv, "{due_ms},{page},{},{},{failed}", sample.latency_us, sample.retries);
        }
        csv
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            "phase", "s", "due/s", "shown/s", "errors", "away", "again", "p50 ms", "p99", "longest",
            "behind", "disk ms", "busy",
        ]);
        let row = |phase: &Phase| {
            [
                phase.name.clone(),
                format!("{:.1}", phase.seconds()),
                format!("{:.1}", phase.per_second(phase.due)),
                format!("{:.1}", phase.per_second(phase.shown)),
                phase.failed.to_string(),
                phase.turned_away.to_string(),
                phase.again.to_string(),
                millis(phase.latency.p50_ms),
                millis(phase.latency.p99_ms),
                millis(phase.latency.max_ms),
                phase.longest_backlog.to_string(),
                millis(phase.longest_disk_write_ms),
                format!("{:.0} %", phase.busy * 100.0),
            ]
        };
        self.phases.iter().for_each(|phase| table.row(row(phase)));
        table.rule();
        table.row(row(&self.all));
        table
    }
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of version {}", self.replica, self.version)
    }
}

/// What the columns are.
const COLUMNS: &str = "due: pages that were due, at times that do not depend on the answers; shown: pages shown; away: turned away, since \
    as many were behind as may be; again: transactions that the driver ran again after 40001 or 40P01. p50, p99 and longest: from when a \
    page was due until it was shown. behind: the most pages due and not shown. disk: the longest that a small write to the disk of the commit \
    log took meanwhile. busy: of the machine's processors, with anything.";

impl fmt::Display for UpgradeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] = &self.versions;
        writeln!(
            f,
            "TPC-W {} on {} replicas of version {from}, replaced by version {to}; {} items, seed {}, {} processors",
            self.mix,
            self.replicas,
            thousands(self.items as f64),
            self.seed,
            self.processors
        )?;
        let stage = |stage: &Stage| {
            let failed =
                if stage.failed == 0 { String::new() } else { format!(" ({} failed)", stage.failed) };
            format!("{:.1} by {}{failed}", stage.throughput, stage.users)
        };
        if !self.stages.is_empty() {
            let stages: Vec<String> = self.stages.iter().map(stage).collect();
            writeln!(f, "pages a second by customers without pauses: {}", stages.join(", "))?;
        }
        if let Some(Rates { offered, users, backlog_max }) = self.rates {
            let part = match self.peak() {
                0.0 => String::new(),
                peak => format!(", {:.2} of the most", offered / peak),
            };
            writeln!(
                f,
                "due: {offered:.1} pages a second{part}; {users} customers at first, {} in the end; turned away with {} behind",
                self.users,
                thousands(f64::from(backlog_max))
            )?;
        }
        write!(f, "{}", self.table().terminal())?;
        writeln!(f, "{COLUMNS}")?;
        writeln!(f, "errors: {}   run again: {}", list(&self.errors), list(&self.retries))?;
        write_worst(f, &self.incidents)?;
        let copied = self
            .phases
            .iter()
            .filter(|phase| phase.done)
            .filter_map(|phase| Some(format!("{} {:.1} s", phase.joins.as_ref()?, phase.seconds())));
        writeln!(f, "from a server's start until it serves: {}", copied.collect::<Vec<_>>().join(", "))?;
        let serving: Vec<String> = self.serving.iter().map(Serving::to_string).collect();
        writeln!(f, "in the end: {}", serving.join(", "))?;
        write!(f, "{}", self.aftermath)?;
        if let Some(results) = &self.results {
            writeln!(f, "results: {}", results.display())?;
        }
        for Goal { what, missed } in self.goals() {
            match missed.is_empty() {
                true => writeln!(f, "met: {what}")?,
                false => writeln!(f, "MISSED: {what}: {}", missed.join("; "))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::commits::Commits;
    use crate::observe::watch::Verified;
    use crate::site::CheckReport;

    fn sample(due_ms: u32, took_ms: u32, failed: bool) -> Sample {
        Sample { at_ms: due_ms + took_ms, interaction: 0, retries: 0, failed, latency_us: took_ms * 1_000 }
    }

    /// Calm for a second, then a replica joins for two; all went well.
    pub(in crate::upgrade) fn report() -> UpgradeReport {
        let options = Options { replicas: 1, ..Options::default() };
        let mut report = UpgradeReport::new(&options, ["16.9".to_owned(), "18.1".to_owned()]);
        report.rates = Some(Rates { offered: 2.0, users: 2, backlog_max: 3 });
        report.end_ms = 3_000;
        let span = |name: &str, joins: Option<&str>, begin_ms, end_ms| Span {
            name: name.to_owned(),
            joins: joins.map(str::to_owned),
            begin_ms,
            end_ms,
            busy: 0.5,
            done: true,
        };
        let spans = [span("calm", None, 0, 1_000), span("r2 joins", Some("r2"), 1_000, 3_000)];
        let arrival = |at_ms, backlog| Arrival { at_ms, backlog, turned_away: false };
        let arrivals = vec![arrival(100, 1), arrival(900, 1), arrival(1_100, 2), arrival(2_000, 1)];
        let mut samples = vec![sample(100, 10, false), sample(900, 600, false), sample(1_100, 20, false)];
        samples.push(Sample { retries: 2, ..sample(2_000, 40, false) });
        let writes = [DiskWrite { at_ms: 950, took_ms: 3.0 }, DiskWrite { at_ms: 1_500, took_ms: 5.0 }];
        let collected = Collected { samples, ..Collected::default() };
        report.take(&collected, &Offered { arrivals, users: 2 }, Vec::new(), &writes, &spans);
        let serving = |replica: &str| Serving { replica: replica.to_owned(), version: "18.1".to_owned() };
        report.serving = vec![serving("r3"), serving("r4")];
        report.aftermath.verified = ["r3", "r4"]
            .map(|replica| Verified { replica: replica.to_owned(), csn: 7, verdict: "identical".to_owned() })
            .to_vec();
        report.aftermath.checked = Some(CheckReport { checked: Vec::new() });
        report.aftermath.commits = Some(Commits::default());
        report
    }

    #[test]
    fn page_counts_in_the_phase_in_which_it_was_due_and_is_shown_in_another_one() {
        let report = report();
        let [calm, joins] = &report.phases[..] else { panic!("{:?}", report.phases) };
        assert_eq!((calm.due, calm.shown, joins.due, joins.shown), (2, 1, 2, 3));
        assert_eq!((calm.longest_backlog, joins.longest_backlog), (1, 2));
        assert!((calm.latency.max_ms - 600.0).abs() < 1.0, "{calm:?}");
        assert!((joins.latency.max_ms - 40.0).abs() < 1.0 && joins.again == 2, "{joins:?}");
        assert_eq!((calm.longest_disk_write_ms, joins.longest_disk_write_ms), (3.0, 5.0));
        assert_eq!((report.all.due, report.all.shown, report.all.seconds()), (4, 4, 3.0));
        let said = report.to_string();
        assert!(said.contains("from a server's start until it serves: r2 2.0 s\n"), "{said}");
    }

    #[test]
    fn results_are_kept_phase_by_phase_second_by_second_and_page_by_page() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let phases = read("phases.csv");
        assert!(phases.lines().nth(2).unwrap().starts_with("r2 joins,1000,3000,2,3,0,0,2,"), "{phases}");
        assert_eq!(phases.lines().count(), 1 + 2 + 1);
        assert_eq!(read("seconds.csv").lines().nth(2).unwrap(), "1,1,0,2,0,2");
        assert_eq!(read("pages.csv").lines().nth(2).unwrap().split(',').next(), Some("900"));
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(json["phases"][1]["joins"], "r2");
        assert!(read("report.txt").contains("met: nothing lost"));
    }
}
