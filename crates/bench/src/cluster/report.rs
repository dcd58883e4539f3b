//! What was measured beside what was simulated and what the papers say.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::{Cell, Options, Simulated, Stage, System};
use crate::table::{Table, millis, thousands};
use crate::tpcw::{self, Calibration};
use crate::{Error, Result};

/// How far simulated throughput may be from measured throughput, as a part of it: as far as the conflict-aware scheduling paper's
/// simulator was.
pub const WITHIN: f64 = 0.12;
/// A machine that was busier than this, on average, was too small or had other work.
const MACHINE_BUSY_MAX: f64 = 0.95;

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterReport {
    /// What one server may use, in processors.
    pub cap: f64,
    /// Factor on the pauses.
    pub think_factor: f64,
    /// Books.
    pub items: i64,
    /// Seconds of one stage.
    pub seconds: f64,
    /// Seed.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// What statements cost, by system.
    pub calibrations: Vec<(System, Calibration)>,
    /// Cell by cell.
    pub cells: Vec<Cell>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
}

/// How one system compares with another on the largest cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The system above.
    pub over: System,
    /// The system below.
    pub under: System,
    /// The mix.
    pub mix: String,
    /// Servers.
    pub size: u32,
    /// Of measured throughputs.
    pub measured: f64,
    /// Of simulated ones.
    pub simulated: Option<f64>,
    /// What the conflict-aware scheduling paper says of eight databases (CAS 8.1; claims cas-04 to cas-06).
    pub paper: Option<f64>,
}

/// What is compared with what.
const PAIRS: [(System, System); 6] = [
    (System::ConflictAware, System::Eager),
    (System::Versioning, System::ConflictAware),
    (System::Versioning, System::Eager),
    (System::Onecopy, System::ConflictAware),
    (System::Onecopy, System::Pgpool),
    (System::ConflictAware, System::Pgpool),
];

impl ClusterReport {
    pub(super) fn new(options: &Options) -> Self {
        ClusterReport {
            cap: options.cap,
            think_factor: options.think_factor,
            items: options.items,
            seconds: options.duration.as_secs_f64(),
            seed: options.seed,
            processors: super::processors(),
            calibrations: Vec::new(),
            cells: Vec::new(),
            failures: Vec::new(),
            interrupted: false,
        }
    }

    pub(super) fn take_simulated(&mut self, simulated: Vec<(usize, Simulated)>) {
        for (place, simulated) in simulated {
            self.cells[place].simulated = Some(simulated);
        }
    }

    /// The ratios of the systems that were measured, on the largest cluster of both.
    #[must_use]
    pub fn ratios(&self) -> Vec<Ratio> {
        let Some(size) = self.cells.iter().map(|cell| cell.size).max() else { return Vec::new() };
        let of = |system: System, mix: &str| {
            self.cells.iter().find(|cell| (cell.system, cell.size, cell.mix.as_str()) == (system, size, mix))
        };
        let mut mixes: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !mixes.contains(&cell.mix.as_str()) {
                mixes.push(&cell.mix);
            }
        }
        let mut ratios = Vec::new();
        for (over, under) in PAIRS {
            for mix in &mixes {
                let (Some(above), Some(below)) = (of(over, mix), of(under, mix)) else { continue };
                let simulated = above.simulated.zip(below.simulated);
                ratios.push(Ratio {
                    over,
                    under,
                    mix: (*mix).to_owned(),
                    size,
                    measured: above.throughput() / below.throughput(),
                    simulated: simulated.map(|(above, below)| above.throughput / below.throughput),
                    paper: paper(over, under, mix, size),
                });
            }
        }
        ratios
    }

    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(Error::file("write", &path))
        };
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a ClusterReport,
            ratios: Vec<Ratio>,
        }
        let whole = Whole { report: self, ratios: self.ratios() };
        let json = serde_json::to_string_pretty(&whole)
            .map_err(|error| Error::Option(format!("write the report: {error}")))?;
        write("report.json", &json)?;
        write("stages.csv", &self.stages_csv())?;
        write("report.txt", &self.to_string())?;
        for (system, calibration) in &self.calibrations {
            write(&format!("{system}.toml"), &calibration.to_toml())?;
        }
        Ok(())
    }

    /// One line a stage.
    fn stages_csv(&self) -> String {
        let mut out = String::from(
            "system,size,mix,users,throughput,mean_ms,p90_ms,completed,errors,retries,servers_busy,proxy_cores,\
             machine_busy,cost_factor,simulated,simulated_users,simulated_busy\n",
        );
        for cell in &self.cells {
            let simulated = cell.simulated.map_or(",,".to_owned(), |simulated| {
                format!("{:.3},{},{:.3}", simulated.throughput, simulated.users, 1.0 - simulated.idle)
            });
            let factor = cell.cost_factor.map_or(String::new(), |factor| format!("{factor:.3}"));
            for stage in &cell.stages {
                let _ = writeln!(
                    out,
                    "{},{},{},{},{:.3},{:.3},{:.3},{},{},{},{:.3},{:.3},{:.3},{factor},{simulated}",
                    cell.system,
                    cell.size,
                    cell.mix,
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
        }
        out
    }

    fn cells_table(&self) -> String {
        let mut table = Table::new([
            "system, servers, mix",
            "users",
            "a second",
            "ms",
            "busy",
            "errors",
            "retries",
            "simulated",
            "of measured",
            "CPU each",
            "within 12 %",
        ]);
        let mut last = None;
        for cell in &self.cells {
            if last.replace((cell.system, cell.size)).is_some_and(|last| last != (cell.system, cell.size)) {
                table.rule();
            }
            let Some(peak) = cell.peak() else { continue };
            let [simulated, ratio, cpu, within] = match cell.simulated {
                Some(simulated) => {
                    let ratio = simulated.throughput / peak.throughput;
                    let is_within = (ratio - 1.0).abs() <= WITHIN;
                    let within = if is_within { "yes" } else { "no" };
                    let cpu = simulated.cpu_ms(cell.size, self.cap) / peak.server_ms();
                    [
                        format!("{:.1}", simulated.throughput),
                        format!("{ratio:.2}"),
                        format!("{cpu:.2}"),
                        within.to_owned(),
                    ]
                }
                None => [const { String::new() }; 4],
            };
            table.row([
                format!("{}, {}, {}", cell.system, cell.size, cell.mix),
                thousands(f64::from(peak.users)),
                format!("{:.1}", peak.throughput),
                millis(peak.latency.mean_ms),
                format!("{:.0} %", 100.0 * peak.servers_busy),
                thousands(peak.errors.values().sum::<u64>() as f64),
                thousands(peak.retries.values().sum::<u64>() as f64),
                simulated,
                ratio,
                cpu,
                within,
            ]);
        }
        table.terminal()
    }

    fn ratios_table(&self) -> Option<String> {
        let ratios = self.ratios();
        let size = ratios.first()?.size;
        let mut table =
            Table::new([format!("ratios with {size} servers").as_str(), "measured", "simulated", "paper"]);
        for ratio in ratios {
            let figure = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
            table.row([
                format!("{} over {}, {}", ratio.over, ratio.under, ratio.mix),
                format!("{:.2}", ratio.measured),
                figure(ratio.simulated),
                figure(ratio.paper),
            ]);
        }
        Some(table.terminal())
    }

    /// What the reader must know before believing anything.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = self.failures.clone();
        for Cell { system, size, mix, out_of_service, .. } in &self.cells {
            remarks.extend(out_of_service.iter().map(|out| {
                format!("{system}, {size} servers, {mix}: out of service in the end, so fewer were measured: {out}")
            }));
        }
        let peaks: Vec<_> = self.cells.iter().filter_map(|cell| Some((cell, cell.peak()?))).collect();
        let busy = overloaded(peaks.iter().map(|(_, peak)| *peak));
        if busy > 0 {
            remarks.push(format!(
                "in {busy} of {} cells the machine had no time left, so what was measured there is too little",
                peaks.len()
            ));
        }
        let rising = self.cells.iter().filter(|cell| {
            let last = cell.stages.last().map_or(0.0, |stage| stage.throughput);
            cell.stages.len() > 1 && last >= cell.throughput()
        });
        let rising = rising.count();
        if rising > 0 {
            remarks.push(format!("in {rising} cells throughput was still rising in the last stage"));
        }
        for (with, is_one) in [("several servers", false), ("one, as the one that calibrates", true)] {
            let simulated = peaks
                .iter()
                .filter(|(cell, _)| (cell.size == 1) == is_one)
                .filter_map(|(cell, peak)| Some(cell.simulated?.throughput / peak.throughput));
            let simulated: Vec<f64> = simulated.collect();
            if !simulated.is_empty() {
                let within = simulated.iter().filter(|ratio| (*ratio - 1.0).abs() <= WITHIN).count();
                remarks.push(format!(
                    "simulated throughput is within {:.0} % of measured in {within} of {} cells with {with}",
                    100.0 * WITHIN,
                    simulated.len()
                ));
            }
        }
        if self.interrupted {
            remarks.push("it was interrupted".to_owned());
        }
        remarks
    }
}

impl fmt::Display for ClusterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} items; each server may use {} of a processor ({} here); pauses of {:.2} s; stages of {} s",
            thousands(self.items as f64),
            self.cap,
            self.processors,
            7.0 * self.think_factor,
            self.seconds
        )?;
        write!(f, "{}", self.cells_table())?;
        if let Some(ratios) = self.ratios_table() {
            write!(f, "{ratios}")?;
        }
        for (system, calibration) in &self.calibrations {
            let profile = &calibration.profile;
            let factors = self.cells.iter().filter(|cell| cell.system == *system);
            let factors: Vec<f64> = factors.filter_map(|cell| cell.cost_factor).collect();
            let (least, most) = factors
                .iter()
                .fold((f64::MAX, 0.0_f64), |(least, most), factor| (least.min(*factor), most.max(*factor)));
            writeln!(
                f,
                "{system}: {} pages calibrated, costs beside {} of a single client's, a commit {} ms, a write of the log {} ms, \
                 applying {:.2} of executing; {} statements met fewer than {} times",
                thousands(calibration.pages as f64),
                if factors.is_empty() { "unknown".to_owned() } else { format!("{least:.2} to {most:.2}") },
                millis(profile.commit_ms),
                millis(profile.log_write_ms),
                profile.apply_factor,
                calibration.seldom().len(),
                tpcw::MET_MIN
            )?;
        }
        for remark in self.remarks() {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

fn paper(over: System, under: System, mix: &str, size: u32) -> Option<f64> {
    match (over, under, mix, size) {
        (System::ConflictAware, System::Eager, "browsing", 8) => Some(1.7),
        (System::ConflictAware, System::Eager, "shopping", 8) => Some(2.4),
        (System::ConflictAware, System::Eager, "ordering", 8) => Some(3.5),
        _ => None,
    }
}

/// How many of them had a machine that was too small or had other work.
pub(super) fn overloaded<'a>(stages: impl Iterator<Item = &'a Stage>) -> usize {
    stages.filter(|stage| stage.machine_busy > MACHINE_BUSY_MAX).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cluster::Stage;
    use crate::site::Latency;

    fn stage(users: u32, throughput: f64) -> Stage {
        Stage {
            users,
            throughput,
            latency: Latency::default(),
            completed: throughput as u64,
            errors: BTreeMap::from([("57014".to_owned(), 2)]),
            retries: BTreeMap::new(),
            server_cores: 0.2,
            servers_busy: 0.97,
            proxy_cores: 0.2,
            machine_busy: 0.6,
        }
    }

    fn cell(system: System, size: u32, throughputs: &[f64], simulated: Option<f64>) -> Cell {
        let stages = throughputs.iter().zip(1..).map(|(throughput, users)| stage(users, *throughput));
        let simulated =
            simulated.map(|throughput| Simulated { users: 7, throughput, response_ms: 1.0, idle: 0.0 });
        Cell {
            system,
            size,
            mix: "shopping".to_owned(),
            stages: stages.collect(),
            calibrating: Vec::new(),
            cost_factor: None,
            out_of_service: Vec::new(),
            simulated,
        }
    }

    fn report() -> ClusterReport {
        let cells = vec![
            cell(System::ConflictAware, 1, &[20.0], Some(25.0)),
            cell(System::ConflictAware, 8, &[90.0, 100.0, 95.0], Some(105.0)),
            cell(System::Eager, 8, &[40.0, 50.0], Some(42.0)),
            cell(System::Pgpool, 8, &[25.0], None),
        ];
        ClusterReport {
            cells,
            failures: vec!["onecopy: lost".to_owned()],
            ..ClusterReport::new(&Options::default())
        }
    }

    #[test]
    fn the_largest_cluster_is_compared_with_what_the_paper_says() {
        let ratios = report().ratios();
        let expected = Ratio {
            over: System::ConflictAware,
            under: System::Eager,
            mix: "shopping".to_owned(),
            size: 8,
            measured: 2.0,
            simulated: Some(2.5),
            paper: Some(2.4),
        };
        assert_eq!(ratios[0], expected);
        assert_eq!((ratios.len(), ratios[1].measured, ratios[1].simulated), (2, 4.0, None));
    }

    #[test]
    fn the_best_stage_counts_and_what_is_doubtful_is_said() {
        let mut report = report();
        report.cells[0].out_of_service.push("r1, since it differs".to_owned());
        let text = report.to_string();
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap().to_owned();
        assert!(line("conflict_aware, 8, shopping").contains("100.0"), "{text}");
        assert!(line("conflict_aware, 8, shopping").contains("yes"), "{text}");
        assert!(line("eager, 8, shopping").contains("no"), "{text}");
        for remark in [
            "onecopy: lost",
            "conflict_aware, 1 servers, shopping: out of service in the end, so fewer were measured: r1, since it differs",
            "within 12 % of measured in 1 of 2 cells with several servers",
            "within 12 % of measured in 0 of 1 cells with one, as the one that calibrates",
            "1 cells throughput was still rising",
        ] {
            assert!(text.contains(remark), "{text}");
        }
    }

    #[test]
    fn results_are_kept_stage_by_stage() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let csv = fs::read_to_string(folder.path().join("stages.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + 7);
        assert!(csv.contains("eager,8,shopping,2,50.000,"), "{csv}");
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
        assert_eq!(json["ratios"][0]["measured"], 2.0);
    }
}
