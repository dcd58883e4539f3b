//! What a run has shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use onecopy_workload::InteractionId;
use onecopy_workload::catalogue::Interaction;
use serde::Serialize;

use super::{Options, Protocol, Website};
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// What users have met, as it comes in.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) samples: Vec<Sample>,
    /// Interactions completed outside of the time that counts.
    pub(crate) uncounted: u64,
    pub(crate) statements: u64,
    pub(crate) transactions: u64,
    /// Interactions that a rollback completed, as their users wanted.
    pub(crate) taken_back: u64,
    /// From a request to its reply; waiting for a connection of the pool does not count, connecting does.
    pub(crate) longest_request: Duration,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) retries: BTreeMap<String, u64>,
}

/// One interaction of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it ended, in milliseconds from the beginning of the time that counts.
    pub at_ms: u32,
    /// Its place in the catalogue, and in [`Report::pages`].
    pub interaction: u8,
    /// Transactions of it that ran again.
    pub retries: u16,
    /// The user left.
    pub failed: bool,
    /// From the click to the page, in microseconds.
    pub latency_us: u32,
}

/// What a run has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The site: "TPC-W".
    pub site: String,
    /// The subcommand of `onecopy bench` that it ran by: "tpcw".
    pub command: String,
    /// Host, port and database.
    pub target: String,
    /// What the target says its version is.
    pub server_version: String,
    /// The mix.
    pub mix: String,
    /// How large the site is: "items" and "browsers" of the bookstore, for instance.
    #[serde(flatten)]
    pub scale: BTreeMap<String, i64>,
    /// What the emulated users are called: "customers".
    pub users: String,
    /// Users at work.
    pub clients: u32,
    /// Connections that they shared.
    pub connections: u32,
    /// Factor on the pauses.
    pub think_factor: f64,
    /// How statements were sent.
    pub protocol: Protocol,
    /// Each transaction was sent as one text.
    pub whole: bool,
    /// Isolation level asked for, if any.
    pub isolation: Option<String>,
    /// Seed.
    pub seed: u64,
    /// Time that counts, in seconds.
    pub seconds: f64,
    /// Web interactions completed per second.
    pub wips: f64,
    /// What the site calls these: "WIPS" under the bookstore's shopping mix.
    pub metric: String,
    /// Interactions completed.
    pub completed: u64,
    /// Those of them that a rollback completed, as their users wanted.
    pub taken_back: u64,
    /// Statements sent, BEGIN and COMMIT not counted.
    pub statements: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Response times of all completed interactions.
    pub latency: Latency,
    /// The longest that any user waited for the reply to one request, an error included, in milliseconds: what a failure costs whom it
    /// costs most. Connecting counts, the pauses before a transaction runs again do not.
    pub longest_stall_ms: f64,
    /// Interaction by interaction.
    pub pages: Vec<PageReport>,
    /// Interactions that failed, by SQLSTATE (or `timeout`, `connection lost`, `rolled back`).
    pub errors: Vec<Counted>,
    /// Transactions that ran again, by SQLSTATE.
    pub retries: Vec<Counted>,
    /// What the site's authors want to know besides, by name: "new orders a minute" of TPC-C.
    pub measures: BTreeMap<String, f64>,
    /// What must be known of the site to read this.
    pub remark: Option<String>,
    /// Second by second.
    pub series: Vec<Second>,
    /// Every interaction, in order of completion.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// One kind of interaction.
#[derive(Clone, Debug, Serialize)]
pub struct PageReport {
    /// Its name in the catalogue: "HOME".
    pub interaction: String,
    /// In words.
    pub name: String,
    #[serde(skip)]
    title: String,
    /// Completed.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Share of all completed.
    pub share: f64,
    /// Response times.
    pub latency: Latency,
    /// Within this 90 % should be answered, if the site's authors say so.
    pub limit_ms: Option<f64>,
}

/// Response times in milliseconds; zeros if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_ms: f64,
    /// Half are at most this.
    pub p50_ms: f64,
    /// 90 %.
    pub p90_ms: f64,
    /// 95 %.
    pub p95_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// How often something was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// SQLSTATE or words.
    pub code: String,
    /// How often.
    pub count: u64,
}

/// One second of the run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Second {
    /// From the beginning of the time that counts.
    pub second: u32,
    /// Interactions completed in it.
    pub completed: u64,
    /// Interactions failed in it.
    pub failed: u64,
    /// Mean response time of those completed.
    pub mean_ms: f64,
}

impl Latency {
    pub(crate) fn of(latencies_us: impl IntoIterator<Item = u64>) -> Self {
        // Up to an hour, with three digits.
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).expect("these bounds are allowed");
        for latency in latencies_us {
            histogram.saturating_record(latency);
        }
        if histogram.is_empty() {
            return Latency::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Latency {
            mean_ms: histogram.mean() / 1_000.0,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            max_ms: histogram.max() as f64 / 1_000.0,
        }
    }
}

impl Report {
    pub(super) fn new<S: Website>(
        options: &Options<S>,
        site: &S,
        target: String,
        server_version: String,
        collected: Collected,
    ) -> Self {
        let samples = collected.samples;
        let seconds = options.duration.as_secs_f64();
        let completed = samples.iter().filter(|sample| !sample.failed).count() as u64;
        let page = |(place, interaction)| PageReport::new::<S>(place, interaction, &samples, completed);
        let pages = (0..).zip(&S::catalogue().interactions).map(page).collect();
        let mut report = Report {
            site: S::TITLE.to_owned(),
            command: S::COMMAND.to_owned(),
            target,
            server_version,
            mix: site.mix().to_owned(),
            scale: S::SCALE.map(str::to_owned).into_iter().zip(site.scale()).collect(),
            users: S::USERS.to_owned(),
            clients: options.clients,
            connections: options.connection_count(),
            think_factor: options.think_factor,
            protocol: options.protocol,
            whole: options.whole,
            isolation: options.isolation.clone(),
            seed: options.seed,
            seconds,
            wips: completed as f64 / seconds.max(1e-9),
            metric: site.metric().to_owned(),
            completed,
            taken_back: collected.taken_back,
            statements: collected.statements,
            transactions: collected.transactions,
            latency: Latency::of(completed_latencies(&samples, |_| true)),
            longest_stall_ms: collected.longest_request.as_secs_f64() * 1_000.0,
            pages,
            errors: counted(collected.errors),
            retries: counted(collected.retries),
            measures: BTreeMap::new(),
            remark: site.remark(),
            series: series(&samples, seconds.ceil() as usize),
            samples,
        };
        let measures = S::measures(&report).into_iter();
        report.measures = measures.map(|(name, value)| (name.to_owned(), value)).collect();
        report
    }

    /// Interactions that failed.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|counted| counted.count).sum()
    }

    /// Transactions that ran again.
    pub fn retried(&self) -> u64 {
        self.retries.iter().map(|counted| counted.count).sum()
    }

    /// Writes `report.json`, `interactions.csv`, `seconds.csv` and `samples.csv` into a new folder of `folder`, whose
    /// path is returned.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf> {
        let folder = folder.join(format!("{}-{}-{}", self.command, self.mix, super::time_stamp()));
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(Error::file("write", &path))
        };
        let json = serde_json::to_string_pretty(self).map_err(|error| Error::Option(error.to_string()))?;
        write("report.json", json + "\n")?;
        write("interactions.csv", self.pages_csv())?;
        write("seconds.csv", self.series_csv())?;
        write("samples.csv", self.samples_csv())?;
        Ok(folder)
    }

    fn pages_csv(&self) -> String {
        let mut csv =
            "interaction,completed,failed,share,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms,max_ms,limit_ms\n"
                .to_owned();
        for page in &self.pages {
            let Latency { mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms } = page.latency;
            let _ = writeln!(
                csv,
                "{},{},{},{:.6},{mean_ms:.3},{p50_ms:.3},{p90_ms:.3},{p95_ms:.3},{p99_ms:.3},{max_ms:.3},{}",
                page.interaction,
                page.completed,
                page.failed,
                page.share,
                page.limit_ms.map(|limit_ms| limit_ms.to_string()).unwrap_or_default()
            );
        }
        csv
    }

    fn series_csv(&self) -> String {
        let mut csv = "second,completed,failed,mean_ms\n".to_owned();
        for Second { second, completed, failed, mean_ms } in &self.series {
            let _ = writeln!(csv, "{second},{completed},{failed},{mean_ms:.3}");
        }
        csv
    }

    fn samples_csv(&self) -> String {
        let mut csv = "at_ms,interaction,latency_us,retries,failed\n".to_owned();
        for sample in &self.samples {
            let interaction = &self.pages[usize::from(sample.interaction)].interaction;
            let Sample { at_ms, latency_us, retries, failed, .. } = sample;
            let _ = writeln!(csv, "{at_ms},{interaction},{latency_us},{retries},{}", u8::from(*failed));
        }
        csv
    }
}

impl PageReport {
    fn new<S: Website>(
        place: u16,
        interaction: &Interaction,
        samples: &[Sample],
        all_completed: u64,
    ) -> Self {
        let ours = |sample: &Sample| u16::from(sample.interaction) == place;
        let limit = S::response_limit(InteractionId(place));
        let completed = samples.iter().filter(|sample| ours(sample) && !sample.failed).count() as u64;
        let failed = samples.iter().filter(|sample| ours(sample) && sample.failed).count() as u64;
        PageReport {
            interaction: interaction.id.clone(),
            name: interaction.name.clone(),
            title: S::page_title(interaction),
            completed,
            failed,
            share: completed as f64 / all_completed.max(1) as f64,
            latency: Latency::of(completed_latencies(samples, ours)),
            limit_ms: limit.map(|limit| limit.as_secs_f64() * 1_000.0),
        }
    }
}

fn completed_latencies(samples: &[Sample], which: impl Fn(&Sample) -> bool) -> impl Iterator<Item = u64> {
    samples
        .iter()
        .filter(move |sample| !sample.failed && which(sample))
        .map(|sample| u64::from(sample.latency_us))
}

/// Most frequent first.
fn counted(counts: BTreeMap<String, u64>) -> Vec<Counted> {
    let mut counted: Vec<Counted> = counts.into_iter().map(|(code, count)| Counted { code, count }).collect();
    counted.sort_by_key(|counted| std::cmp::Reverse(counted.count));
    counted
}

fn series(samples: &[Sample], seconds: usize) -> Vec<Second> {
    let mut series: Vec<Second> =
        (0..seconds as u32).map(|second| Second { second, ..Second::default() }).collect();
    for sample in samples {
        let Some(second) = series.get_mut(sample.at_ms as usize / 1_000) else { continue };
        if sample.failed {
            second.failed += 1;
            continue;
        }
        second.completed += 1;
        let ms = f64::from(sample.latency_us) / 1_000.0;
        second.mean_ms += (ms - second.mean_ms) / second.completed as f64;
    }
    series
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} {} mix on {}: {} {} on {} connections, {:.0} s, pauses x {}",
            self.site,
            self.mix,
            self.target,
            self.clients,
            self.users,
            self.connections,
            self.seconds,
            self.think_factor
        )?;
        let has_limits = self.pages.iter().any(|page| page.limit_ms.is_some());
        let mut header =
            vec!["interaction", "completed", "share", "per s", "mean ms", "p50", "p90", "p95", "p99"];
        if has_limits {
            header.extend(["limit", ""]);
        }
        let mut table = Table::new(header);
        for page in &self.pages {
            let mut cells = self.cells(&page.title, page.completed, page.share, &page.latency);
            if let Some(limit_ms) = page.limit_ms {
                let verdict = match page.latency.p90_ms {
                    _ if page.completed == 0 => "",
                    p90_ms if p90_ms <= limit_ms => "ok",
                    _ => "slow",
                };
                cells.extend([thousands(limit_ms), verdict.to_owned()]);
            }
            table.row(cells);
        }
        table.rule();
        table.row(self.cells("all", self.completed, 1.0, &self.latency));
        write!(f, "{}", table.terminal())?;
        writeln!(
            f,
            "{} {:.1}   ({} transactions/s, {} statements/s)",
            self.metric,
            self.wips,
            thousands(self.transactions as f64 / self.seconds),
            thousands(self.statements as f64 / self.seconds)
        )?;
        for (name, value) in &self.measures {
            writeln!(f, "{name}: {value:.1}")?;
        }
        if self.taken_back > 0 {
            writeln!(f, "taken back as asked: {}", thousands(self.taken_back as f64))?;
        }
        if let Some(remark) = &self.remark {
            writeln!(f, "{remark}")?;
        }
        writeln!(
            f,
            "errors: {}   retries: {}   longest stall: {} ms",
            list(&self.errors),
            list(&self.retries),
            millis(self.longest_stall_ms)
        )
    }
}

impl Report {
    fn cells(&self, title: &str, completed: u64, share: f64, latency: &Latency) -> Vec<String> {
        let times = [latency.mean_ms, latency.p50_ms, latency.p90_ms, latency.p95_ms, latency.p99_ms];
        let times = times.map(|ms| if completed == 0 { String::new() } else { millis(ms) });
        let share = format!("{:.2} %", share * 100.0);
        let rate = format!("{:.1}", completed as f64 / self.seconds.max(1e-9));
        [title.to_owned(), thousands(completed as f64), share, rate].into_iter().chain(times).collect()
    }
}

fn list(counted: &[Counted]) -> String {
    if counted.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<String> =
        counted.iter().map(|Counted { code, count }| format!("{count} x {code}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use onecopy_workload::tpcw::Interaction;

    use super::*;
    use crate::tpcw::Bookstore;

    fn report() -> Report {
        let sample = |at_ms, interaction: Interaction, latency_us, failed| Sample {
            at_ms,
            interaction: interaction as u8,
            retries: 0,
            failed,
            latency_us,
        };
        let collected = Collected {
            samples: vec![
                sample(10, Interaction::Home, 2_000, false),
                sample(20, Interaction::Home, 4_000, false),
                sample(1_500, Interaction::BuyConfirm, 9_000, false),
                sample(1_600, Interaction::BuyConfirm, 9_000_000, true),
            ],
            errors: BTreeMap::from([("57P01".to_owned(), 1)]),
            retries: BTreeMap::from([("40001".to_owned(), 3), ("40P01".to_owned(), 5)]),
            longest_request: Duration::from_millis(8_500),
            ..Collected::default()
        };
        let options = Options { duration: Duration::from_secs(2), ..Options::default() };
        Report::new(&options, &Bookstore::default(), "h:1/d".into(), "15".into(), collected)
    }

    #[test]
    fn failed_interactions_count_as_errors_and_not_as_completed() {
        let report = report();
        assert_eq!((report.completed, report.failed(), report.retried()), (3, 1, 8));
        assert_eq!((report.wips, report.longest_stall_ms), (1.5, 8_500.0));
        let buy = &report.pages[Interaction::BuyConfirm as usize];
        assert_eq!((buy.completed, buy.failed), (1, 1));
        assert!((buy.latency.p99_ms - 9.0).abs() < 0.02);
        assert_eq!(report.retries[0], Counted { code: "40P01".into(), count: 5 });
        assert_eq!((report.series[0].completed, report.series[0].mean_ms), (2, 3.0));
        assert_eq!((report.series[1].completed, report.series[1].failed), (1, 1));
    }

    #[test]
    fn a_report_is_saved_with_its_raw_results() {
        let folder = tempfile::tempdir().unwrap();
        let saved = report().save(folder.path()).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(saved.join("report.json")).unwrap()).unwrap();
        assert_eq!((&json["wips"], &json["items"]), (&1.5.into(), &1_000.into()));
        assert_eq!(json["pages"][0]["interaction"], "HOME");
        let samples = fs::read_to_string(saved.join("samples.csv")).unwrap();
        assert_eq!(samples.lines().nth(4), Some("1600,BUYC,9000000,0,1"));
        assert_eq!(fs::read_to_string(saved.join("seconds.csv")).unwrap().lines().count(), 3);
        assert!(report().to_string().contains("1 x 57P01"));
    }
}
