//! What durability costs, from what the turns have shown.

use std::fmt::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use super::{ClientsAt, Durability, Options};
use crate::cluster::{Stage, System, processors, report};
use crate::compare::Spread;
use crate::programs::write;
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// What one turn has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    /// The system.
    pub system: System,
    /// What clients did.
    pub load: String,
    /// The round, from 0.
    pub round: u32,
    /// When its decisions were durable.
    pub durability: Durability,
    /// What the clients got.
    #[serde(flatten)]
    pub stage: Stage,
}

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct DurabilityReport {
    /// Servers.
    pub servers: u32,
    /// What one server may use, in processors; `None` for all that it can.
    pub cap: Option<f64>,
    /// onecopy processes at the level `nodes`.
    pub nodes: u32,
    /// Which of them clients were connected to.
    pub clients_at: ClientsAt,
    /// Clients.
    pub clients: u32,
    /// Books.
    pub items: i64,
    /// Branches of the bank.
    pub branches: i64,
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

/// What a level of durability costs a system under a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The system.
    pub system: System,
    /// The load.
    pub load: String,
    /// The level.
    pub durability: Durability,
    /// Interactions a second.
    pub rate: Spread,
    /// The same over what it is with decisions in memory, within a round.
    pub over_memory: Option<Spread>,
    /// The same over what it is with decisions on one disk.
    pub over_disk: Option<Spread>,
    /// What the conflict-aware scheduling paper says of the ratio over memory (CAS 8.4; claims cas-25 to cas-27).
    pub paper: Option<f64>,
}

/// Servers of the cluster in CAS 8.4.
pub(super) const PAPER_SERVERS: u32 = 8;
/// Schedulers that had a decision there, at most.
const PAPER_NODES: u32 = 3;

impl DurabilityReport {
    pub(super) fn new(options: &Options, log_write_ms: f64) -> Self {
        DurabilityReport {
            servers: options.servers,
            cap: options.cap,
            nodes: options.nodes,
            clients_at: options.clients_at,
            clients: options.clients(),
            items: options.items,
            branches: options.branches,
            seconds: options.duration.as_secs_f64(),
            seed: options.seed,
            processors: processors(),
            log_write_ms,
            turns: Vec::new(),
            failures: Vec::new(),
            interrupted: false,
        }
    }

    /// What durability costs: for each system and load in the order in which they were measured, each level.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        let mut cells: Vec<(System, &str)> = Vec::new();
        for turn in &self.turns {
            if !cells.contains(&(turn.system, &turn.load)) {
                cells.push((turn.system, &turn.load));
            }
        }
        let levels = |(system, load)| {
            Durability::ALL.into_iter().filter_map(move |level| self.cost(system, load, level))
        };
        cells.into_iter().flat_map(levels).collect()
    }

    fn cost(&self, system: System, load: &str, level: Durability) -> Option<Cost> {
        let ratio = |under: Durability| {
            // Of anything over itself there is nothing to say.
            let turns = self.of(system, load, level).filter(|_| level > under);
            Spread::of(turns.filter_map(|over| {
                let under = self.of(system, load, under).find(|under| under.round == over.round)?;
                Some(over.stage.throughput / under.stage.throughput)
            }))
        };
        Some(Cost {
            system,
            load: load.to_owned(),
            durability: level,
            rate: Spread::of(self.of(system, load, level).map(|turn| turn.stage.throughput))?,
            over_memory: ratio(Durability::Memory),
            over_disk: ratio(Durability::Disk),
            paper: self.paper(system, load, level),
        })
    }

    fn of(&self, system: System, load: &str, level: Durability) -> impl Iterator<Item = &Turn> {
        self.turns
            .iter()
            .filter(move |turn| (turn.system, turn.load.as_str(), turn.durability) == (system, load, level))
    }

    fn paper(&self, system: System, load: &str, level: Durability) -> Option<f64> {
        let is_of_it = match level {
            Durability::Memory => false,
            Durability::Disk => true,
            Durability::Nodes => self.nodes == PAPER_NODES,
        };
        if !is_of_it || (system, self.servers) != (System::ConflictAware, PAPER_SERVERS) {
            return None;
        }
        match load {
            "browsing" | "shopping" => Some(1.0),
            "ordering" => Some(0.84),
            _ => None,
        }
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
            "system,load,round,durability,clients,throughput,mean_ms,p90_ms,completed,errors,retries,server_cores,servers_busy,\
             proxy_cores,machine_busy\n",
        );
        for Turn { system, load, round, durability, stage } in &self.turns {
            let _ = writeln!(
                out,
                "{system},{load},{round},{durability},{},{:.3},{:.3},{:.3},{},{},{},{:.3},{:.3},{:.3},{:.3}",
                stage.users,
                stage.throughput,
                stage.latency.mean_ms,
                stage.latency.p90_ms,
                stage.completed,
                stage.errors.values().sum::<u64>(),
                stage.retries.values().sum::<u64>(),
                stage.server_cores,
                stage.servers_busy,
                stage.proxy_cores,
                stage.machine_busy,
            );
        }
        out
    }

    fn rates_table(&self) -> String {
        self.table(
            ["a second", "over memory", "over disk", "paper", "mean ms", "errors", "retries"],
            |cost, stages| {
                let Cost { rate, over_memory, over_disk, paper, .. } = cost;
                [
                    format!("{:.1}", rate.median),
                    over_memory.map_or_else(String::new, ratio),
                    over_disk.map_or_else(String::new, ratio),
                    paper.map_or_else(String::new, |paper| format!("{paper:.2}")),
                    millis(mean(stages, |stage| stage.latency.mean_ms)),
                    thousands(stages.iter().flat_map(|stage| stage.errors.values()).sum::<u64>() as f64),
                    thousands(stages.iter().flat_map(|stage| stage.retries.values()).sum::<u64>() as f64),
                ]
            },
        )
    }

    /// What is not used up there, and is waited for all the same, is the price in waiting.
    fn processors_table(&self) -> String {
        self.table(
            [
                "onecopy, processors",
                "us of it each",
                "servers, processors",
                "of theirs",
                "us of it each",
                "machine busy",
            ],
            |_, stages| {
                let each = |cores: fn(&Stage) -> f64| {
                    format!("{:.0}", 1e6 * mean(stages, cores) / mean(stages, |stage| stage.throughput))
                };
                let part = |figure: fn(&Stage) -> f64| format!("{:.0} %", 100.0 * mean(stages, figure));
                [
                    format!("{:.2}", mean(stages, |stage| stage.proxy_cores)),
                    each(|stage| stage.proxy_cores),
                    format!("{:.2}", mean(stages, |stage| stage.server_cores)),
                    part(|stage| stage.servers_busy),
                    each(|stage| stage.server_cores),
                    part(|stage| stage.machine_busy),
                ]
            },
        )
    }

    /// A row for each level under each load of each system.
    fn table<const N: usize>(
        &self,
        titles: [&str; N],
        cells: impl Fn(&Cost, &[&Stage]) -> [String; N],
    ) -> String {
        let mut table = Table::new(["system, load, decisions in"].into_iter().chain(titles));
        let mut last = None;
        for cost in self.costs() {
            let Cost { system, load, durability, .. } = &cost;
            let cell = (*system, load.clone());
            if last.replace(cell.clone()).is_some_and(|last| last != cell) {
                table.rule();
            }
            let stages: Vec<&Stage> = self.of(*system, load, *durability).map(|turn| &turn.stage).collect();
            let title = format!("{system}, {load}, {durability}");
            table.row([title].into_iter().chain(cells(&cost, &stages)));
        }
        table.terminal()
    }
}

fn mean(stages: &[&Stage], figure: impl Fn(&Stage) -> f64) -> f64 {
    stages.iter().map(|stage| figure(stage)).sum::<f64>() / stages.len() as f64
}

fn ratio(Spread { median, low, high, .. }: Spread) -> String {
    format!("{median:.3} ({low:.3} to {high:.3})")
}

impl fmt::Display for DurabilityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let may = match self.cap {
            Some(cap) => format!("each may use {cap} of a processor ({} here)", self.processors),
            None => format!("which may use all that they can of {} processors", self.processors),
        };
        let at = match self.clients_at {
            ClientsAt::Any => "spread over them",
            ClientsAt::Leader => "at the one that leads",
        };
        writeln!(
            f,
            "{} servers, {may}; {} nodes where they are several, clients {at}; {} clients without pauses, {} items, {} branches; \
             turns of {} s; a write of the log takes {} ms here",
            self.servers,
            self.nodes,
            self.clients,
            thousands(self.items as f64),
            thousands(self.branches as f64),
            self.seconds,
            millis(self.log_write_ms)
        )?;
        write!(f, "{}{}", self.rates_table(), self.processors_table())?;
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        let busy = report::overloaded(self.turns.iter().map(|turn| &turn.stage));
        if busy > 0 {
            let so = match self.cap {
                Some(_) => "what was measured there is too little",
                None => "processors were what bounded it",
            };
            writeln!(f, "in {busy} of {} turns the machine had no time left, so {so}", self.turns.len())?;
        }
        if self.interrupted {
            writeln!(f, "it was interrupted")?;
        }
        Ok(())
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
            server_cores: 0.2,
            servers_busy: 0.5,
            proxy_cores: 0.2,
            machine_busy: 0.7,
        };
        Turn { system: System::ConflictAware, load: "ordering".to_owned(), round, durability, stage }
    }

    fn report() -> DurabilityReport {
        let [memory, disk, nodes] = Durability::ALL;
        let turns = vec![
            turn(0, memory, 100.0),
            turn(0, disk, 75.0),
            // The machine is slower in this round, for all.
            turn(1, nodes, 20.0),
            turn(1, disk, 25.0),
            turn(1, memory, 50.0),
            turn(2, memory, 200.0),
        ];
        DurabilityReport { turns, ..DurabilityReport::new(&Options::default(), 0.5) }
    }

    #[test]
    fn ratios_are_taken_within_a_round_that_was_measured_with_both() {
        let costs = report().costs();
        let [memory, disk, nodes] = &costs[..] else { panic!("{costs:?}") };
        assert_eq!((memory.rate.median, memory.over_memory, memory.paper), (100.0, None, None));
        assert_eq!(disk.over_memory, Some(Spread { median: 0.625, low: 0.5, high: 0.75, count: 2 }));
        assert_eq!((disk.rate.median, disk.over_disk, disk.paper), (50.0, None, Some(0.84)));
        let ratios = [nodes.over_memory, nodes.over_disk].map(|ratio| ratio.map(|ratio| ratio.median));
        assert_eq!((ratios, nodes.paper), ([Some(0.4), Some(0.8)], Some(0.84)));
    }

    #[test]
    fn other_clusters_than_the_papers_have_no_figure_of_it() {
        let paper = |options: Options, system, load| {
            DurabilityReport::new(&options, 0.5).paper(system, load, Durability::Nodes)
        };
        assert_eq!(paper(Options::default(), System::ConflictAware, "shopping"), Some(1.0));
        assert_eq!(paper(Options::default(), System::Onecopy, "shopping"), None);
        assert_eq!(paper(Options::default(), System::ConflictAware, "tpcb"), None);
        let others =
            [Options { servers: 4, ..Options::default() }, Options { nodes: 5, ..Options::default() }];
        assert!(
            others.map(|other| paper(other, System::ConflictAware, "shopping")).iter().all(Option::is_none)
        );
    }

    #[test]
    fn results_are_kept_turn_by_turn() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let csv = read("turns.csv");
        assert_eq!(csv.lines().count(), 1 + 6);
        assert!(csv.contains("conflict_aware,ordering,1,disk,64,25.000,"), "{csv}");
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(json["costs"][1]["over_memory"]["median"], 0.625);
        assert_eq!(json["turns"][1]["throughput"], 75.0);
        assert!(read("report.txt").contains("0.625 (0.500 to 0.750)"), "{}", read("report.txt"));
    }
}
