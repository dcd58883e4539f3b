//! What was measured.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::{Options, Sample};
use crate::compare::Machine;
use crate::table::Table;
use crate::{Error, Result};

/// The paper's bound for a response time.
const BOUND_MS: f64 = 800.0;
/// As much of what arrives has to be answered meanwhile.
const CARRIED: f64 = 0.95;

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where.
    pub machine: Machine,
    /// Where the sites are.
    pub topology: String,
    /// How many there are.
    pub sites: usize,
    /// The share of a processor that each has, with its server.
    pub cap: Option<f64>,
    /// How long transactions arrived at one rate, in seconds, and before that, uncounted, at one that rose to it.
    pub seconds: f64,
    /// See there.
    pub warm_up_s: f64,
    /// Seed.
    pub seed: u64,
    /// Every measurement, in order.
    pub samples: Vec<Sample>,
}

impl Comparison {
    pub(super) fn new(options: &Options, machine: Machine) -> Comparison {
        Comparison {
            machine,
            topology: options.topology.to_string(),
            sites: options.topology.sites(),
            cap: options.cap,
            seconds: options.duration.as_secs_f64(),
            warm_up_s: options.warm_up.as_secs_f64(),
            seed: options.seed,
            samples: Vec::new(),
        }
    }

    /// Whether everything was answered.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.samples.iter().all(|sample| sample.failed == 0)
    }

    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(Error::file("write", &path))
        };
        let json = serde_json::to_string_pretty(self).map_err(|error| Error::Option(error.to_string()))?;
        write("report.json", json)?;
        write("report.md", format!("{}\n\n{}", self.about(), self.table().markdown()))
    }

    fn about(&self) -> String {
        let cap = match self.cap {
            Some(cap) => format!("each with its server held to {:.0} % of a processor", cap * 100.0),
            None => "not held back".to_owned(),
        };
        format!(
            "{} sites ({}), {cap}; {} s at each rate after {} s in which it rose to that, seed {}",
            self.sites, self.topology, self.seconds, self.warm_up_s, self.seed
        )
    }

    fn table(&self) -> Table {
        let header = [
            "by",
            "a second",
            "carried",
            "updates, ms",
            "95 %",
            "queries, ms",
            "95 %",
            "site, ms CPU",
            "server, ms CPU",
            "failed",
            "within 800 ms",
        ];
        let mut table = Table::new(header);
        for sample in &self.samples {
            let is_within = sample.updates.mean_ms <= BOUND_MS
                && sample.queries.mean_ms <= BOUND_MS
                && sample.carried >= CARRIED * f64::from(sample.rate)
                && sample.failed == 0;
            table.row([
                sample.choice.to_string(),
                sample.rate.to_string(),
                format!("{:.1}", sample.carried),
                format!("{:.0}", sample.updates.mean_ms),
                format!("{:.0}", sample.updates.p95_ms),
                format!("{:.0}", sample.queries.mean_ms),
                format!("{:.0}", sample.queries.p95_ms),
                format!("{:.2}", sample.cpu_ms.sites),
                format!("{:.2}", sample.cpu_ms.servers),
                sample.failed.to_string(),
                if is_within { "yes" } else { "no" }.to_owned(),
            ]);
        }
        table
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.about())?;
        f.write_str(&self.table().terminal())?;
        let failures = self.samples.iter().filter_map(|sample| Some((sample, sample.failure.as_ref()?)));
        for (sample, failure) in failures {
            writeln!(f, "{} at {} a second: {failure}", sample.choice, sample.rate)?;
        }
        write!(f, "All sites held the same in the end.")
    }
}
