//! What durability costs, from what the turns have shown.

use std::fmt::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use super::{Durability, Options};
use crate::cluster::{Stage, System, report};
use crate::compare::Spread;
use crate::programs::write;
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// What one turn has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    /// The system.
    pub system: System,
    /// The mix.
    pub mix: String,
    /// The round, from 0.
    pub round: u32,
    /// When its decisions were durable.
    pub durability: Durability,
    /// What the customers got.
    #[serde(flatten)]
    pub stage: Stage,
}

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct DurabilityReport {
    /// Servers.
    pub servers: u32,
    /// What one server may use, in processors.
    pub cap: f64,
    /// Customers.
    pub clients: u32,
    /// Books.
    pub items: i64,
    /// Seconds of one turn.
    pub seconds: f64,
    /// Seed.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// What a write of a log takes in the folder of the cluster, in milliseconds, as it was before the first turn.
    pub log_write_ms: f64,
    /// Turn by turn, in the order in which they were.
    pub turns: Vec<Turn>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
}

/// What durability costs a system under a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The system.
    pub system: System,
    /// The mix.
    pub mix: String,
    /// Interactions a second with decisions in memory.
    pub unreliable: Spread,
    /// With decisions on disk.
    pub reliable: Spread,
    /// The second over the first, within a round.
    pub ratio: Spread,
    /// What the conflict-aware scheduling paper says of that ratio (CAS 8.4; claims cas-25 and cas-26).
    pub paper: Option<f64>,
}

/// Servers of the cluster in CAS 8.4.
pub(super) const PAPER_SERVERS: u32 = 8;

impl DurabilityReport {
    pub(super) fn new(options: &Options, log_write_ms: f64) -> Self {
        DurabilityReport {
            servers: options.servers,
            cap: options.cap,
            clients: options.clients(),
            items: options.items,
            seconds: options.duration.as_secs_f64(),
            seed: options.seed,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            log_write_ms,
            turns: Vec::new(),
            failures: Vec::new(),
            interrupted: false,
        }
    }

    /// What durability costs, for each system and mix of which some round was measured with both.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        let mut cells: Vec<(System, &str)> = Vec::new();
        for turn in &self.turns {
            if !cells.contains(&(turn.system, &turn.mix)) {
                cells.push((turn.system, &turn.mix));
            }
        }
        cells.into_iter().filter_map(|(system, mix)| self.cost(system, mix)).collect()
    }

    fn cost(&self, system: System, mix: &str) -> Option<Cost> {
        let of =
            |durability: Durability| self.of(system, mix).filter(move |turn| turn.durability == durability);
        let rate = |durability| Spread::of(of(durability).map(|turn| turn.stage.throughput));
        let ratios = of(Durability::Disk).filter_map(|disk| {
            let memory = of(Durability::Memory).find(|memory| memory.round == disk.round)?;
            Some(disk.stage.throughput / memory.stage.throughput)
        });
        Some(Cost {
            system,
            mix: mix.to_owned(),
            unreliable: rate(Durability::Memory)?,
            reliable: rate(Durability::Disk)?,
            ratio: Spread::of(ratios)?,
            paper: paper(system, self.servers, mix),
        })
    }

    fn of(&self, system: System, mix: &str) -> impl Iterator<Item = &Turn> + Clone {
        self.turns.iter().filter(move |turn| (turn.system, turn.mix.as_str()) == (system, mix))
    }

    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a DurabilityReport,
            costs: Vec<Cost>,
        }
        let json = serde_json::to_string_pretty(&Whole { report: self, costs: self.costs() })
            .map_err(|error| Error::Option(format!("write the report: {error}")))?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("turns.csv"), &self.turns_csv())?;
        write(&folder.join("report.txt"), &self.to_string())
    }

    /// One line a turn.
    fn turns_csv(&self) -> String {
        let mut out = String::from(
            "system,mix,round,durability,clients,throughput,mean_ms,p90_ms,completed,errors,retries,servers_busy,proxy_cores,\
             machine_busy\n",
        );
        for Turn { system, mix, round, durability, stage } in &self.turns {
            let _ = writeln!(
                out,
                "{system},{mix},{round},{durability},{},{:.3},{:.3},{:.3},{},{},{},{:.3},{:.3},{:.3}",
                stage.users,
                stage.throughput,
                stage.latency.mean_ms,
                stage.latency.p90_ms,
                stage.completed,
                stage.errors.values().sum::<u64>(),
                stage.retries.values().sum::<u64>(),
                stage.servers_busy,
                stage.proxy_cores,
                stage.machine_busy,
            );
        }
        out
    }

    fn table(&self) -> String {
        let mut table = Table::new([
            "system, mix",
            "memory, a second",
            "disk, a second",
            "disk over memory",
            "interval",
            "paper",
            "servers busy",
            "onecopy, processors",
            "errors",
            "retries",
        ]);
        for Cost { system, mix, unreliable, reliable, ratio, paper } in self.costs() {
            let stages: Vec<&Stage> = self.of(system, &mix).map(|turn| &turn.stage).collect();
            let mean = |figure: fn(&Stage) -> f64| {
                stages.iter().map(|stage| figure(stage)).sum::<f64>() / stages.len() as f64
            };
            let sum = |counts: fn(&Stage) -> u64| stages.iter().map(|stage| counts(stage)).sum::<u64>();
            table.row([
                format!("{system}, {mix}"),
                format!("{:.1}", unreliable.median),
                format!("{:.1}", reliable.median),
                format!("{:.3}", ratio.median),
                format!("{:.3} to {:.3}", ratio.low, ratio.high),
                paper.map_or_else(String::new, |paper| format!("{paper:.2}")),
                format!("{:.0} %", 100.0 * mean(|stage| stage.servers_busy)),
                format!("{:.2}", mean(|stage| stage.proxy_cores)),
                thousands(sum(|stage| stage.errors.values().sum()) as f64),
                thousands(sum(|stage| stage.retries.values().sum()) as f64),
            ]);
        }
        table.terminal()
    }
}

impl fmt::Display for DurabilityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} servers, each may use {} of a processor ({} here); {} customers without pauses, {} items; turns of {} s; a write \
             of the log takes {} ms here",
            self.servers,
            self.cap,
            self.processors,
            self.clients,
            thousands(self.items as f64),
            self.seconds,
            millis(self.log_write_ms)
        )?;
        write!(f, "{}", self.table())?;
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        let busy = report::overloaded(self.turns.iter().map(|turn| &turn.stage));
        if busy > 0 {
            writeln!(
                f,
                "in {busy} of {} turns the machine had no time left, so what was measured there is too little",
                self.turns.len()
            )?;
        }
        if self.interrupted {
            writeln!(f, "it was interrupted")?;
        }
        Ok(())
    }
}

fn paper(system: System, servers: u32, mix: &str) -> Option<f64> {
    match (system, servers, mix) {
        (System::ConflictAware, PAPER_SERVERS, "browsing" | "shopping") => Some(1.0),
        (System::ConflictAware, PAPER_SERVERS, "ordering") => Some(0.84),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Latency;

    fn turn(round: u32, durability: Durability, throughput: f64) -> Turn {
        let stage = Stage {
            users: 64,
            throughput,
            latency: Latency::default(),
            completed: throughput as u64,
            errors: [("40001".to_owned(), 1)].into(),
            retries: [].into(),
            servers_busy: 0.5,
            proxy_cores: 0.2,
            machine_busy: 0.7,
        };
        Turn { system: System::ConflictAware, mix: "ordering".to_owned(), round, durability, stage }
    }

    fn report() -> DurabilityReport {
        let [memory, disk] = [Durability::Memory, Durability::Disk];
        let turns = vec![
            turn(0, memory, 100.0),
            turn(0, disk, 75.0),
            // The machine is slower in this round, for both.
            turn(1, disk, 25.0),
            turn(1, memory, 50.0),
            turn(2, memory, 200.0),
        ];
        DurabilityReport { turns, ..DurabilityReport::new(&Options::default(), 0.5) }
    }

    #[test]
    fn ratios_are_taken_within_a_round_that_was_measured_with_both() {
        let costs = report().costs();
        assert_eq!(costs.len(), 1);
        assert_eq!(costs[0].ratio, Spread { median: 0.625, low: 0.5, high: 0.75, count: 2 });
        assert_eq!((costs[0].unreliable.median, costs[0].reliable.median), (100.0, 50.0));
        assert_eq!(costs[0].paper, Some(0.84));
    }

    #[test]
    fn other_clusters_than_the_papers_have_no_figure_of_it() {
        let others = [(System::Onecopy, 8, "ordering"), (System::ConflictAware, 4, "ordering")];
        assert!(others.into_iter().all(|(system, servers, mix)| paper(system, servers, mix).is_none()));
    }

    #[test]
    fn results_are_kept_turn_by_turn() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let csv = read("turns.csv");
        assert_eq!(csv.lines().count(), 1 + 5);
        assert!(csv.contains("conflict_aware,ordering,1,disk,64,25.000,"), "{csv}");
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(json["costs"][0]["ratio"]["median"], 0.625);
        assert_eq!(json["turns"][1]["throughput"], 75.0);
        assert!(read("report.txt").contains("0.625"), "{}", read("report.txt"));
    }
}
