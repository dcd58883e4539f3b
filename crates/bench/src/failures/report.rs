//! What a run with failures has shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Aftermath, Change, Fault, Load, Options, SLOW};
use crate::observe::probe::DiskWrite;
use crate::programs::write;
use crate::site::{Collected, Incident, Noted, TIMED_OUT};
use crate::table::{Table, millis, thousands};
use crate::{Error, Result};

/// How many of the longest waits are shown.
const WORST: usize = 8;

/// Everything about one run. Times are in milliseconds from the beginning of the load.
#[derive(Clone, Debug, Serialize)]
pub struct FailuresReport {
    /// What clients did.
    pub load: Load,
    /// Clients at work.
    pub clients: u32,
    /// Factor on the pauses between pages.
    pub think_factor: f64,
    /// Servers.
    pub replicas: u32,
    /// onecopy processes.
    pub nodes: u32,
    /// After how long in silence onecopy takes a server for lost.
    pub silence_timeout_ms: u64,
    /// Seed.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// When the last user had left.
    pub end_ms: u64,
    /// Pages completed.
    pub completed: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Pages that failed in the whole run, by SQLSTATE, `timeout` or `connection lost`.
    pub errors: BTreeMap<String, u64>,
    /// Transactions that the driver ran again in the whole run, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// Users who still waited for a page when everybody else had long left.
    pub cut_off: u64,
    /// What was found afterwards.
    #[serde(flatten)]
    pub aftermath: Aftermath,
    /// What went wrong with the run itself.
    pub failures: Vec<String>,
    /// Faults that cannot be injected here, and why.
    pub skipped: Vec<String>,
    /// Every state that a replica came into.
    pub changes: Vec<Change>,
    /// Every request that failed or was slow, by its time.
    #[serde(skip)]
    pub incidents: Vec<Incident>,
    /// Pages completed and failed, second by second.
    #[serde(skip)]
    pub seconds: Vec<[u64; 2]>,
    /// The folder that keeps it.
    #[serde(skip)]
    pub(super) results: Option<PathBuf>,
}

/// One fault, from the calm before it to the calm after it. Times are in milliseconds from the beginning of the load.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Counted from 1.
    pub number: u32,
    /// The fault.
    pub fault: Fault,
    /// The replica or the node; `all`.
    pub victim: String,
    /// When the round began.
    pub begin_ms: u64,
    /// When injecting began.
    pub injected_ms: u64,
    /// When the replica was first seen out of service after that; `None` is not at all, or that it was no replica.
    pub out_ms: Option<u64>,
    /// When healing began; when injecting began, if there was nothing to heal.
    pub healing_ms: u64,
    /// When the server, or the node, accepted connections again.
    pub healed_ms: u64,
    /// When the replica was back in service, if it had left it and came back; when all nodes were.
    pub back_ms: Option<u64>,
    /// When the round ended.
    pub end_ms: u64,
    /// Until injecting began.
    pub before: Phase,
    /// Until the server was healed and the replica back in service.
    pub during: Phase,
    /// Until the end.
    pub after: Phase,
    /// More of a fault that nodes met.
    pub of_nodes: Option<OfNodes>,
}

/// What a fault of nodes was to their clients. All counts are from the injection to the end of the round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfNodes {
    /// The nodes that it met, counted from 0.
    pub nodes: Vec<usize>,
    /// When it was done.
    pub done_ms: u64,
    /// When the first COMMIT of an update was acknowledged that had been sent after that; `None` is none.
    pub served_ms: Option<u64>,
    /// What clients of these nodes met.
    pub there: Met,
    /// What clients of the other nodes met, those among them that had come from these.
    pub elsewhere: Met,
}

/// What clients of some nodes met.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Met {
    /// Connections that ended though their clients were there.
    pub connections_lost: u64,
    /// Pages that failed, by SQLSTATE, `timeout` or `connection lost`.
    pub errors: BTreeMap<String, u64>,
    /// Transactions that the driver ran again, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// Of both, those of transactions that only read.
    pub only_reading: BTreeMap<String, u64>,
    /// Requests of the round that nobody ever answered: their clients gave up, long after it.
    pub unanswered: u64,
    /// The longest that one client waited for one reply; `None` is less than [`SLOW`](super::SLOW).
    pub longest_stall_ms: Option<f64>,
}

impl OfNodes {
    pub(super) fn new(nodes: Vec<usize>, done_ms: u64) -> OfNodes {
        OfNodes { nodes, done_ms, served_ms: None, there: Met::default(), elsewhere: Met::default() }
    }

    /// Notes what happened from the injection to the end of its round.
    fn take(&mut self, round: Range<u64>, noted: &Noted) {
        let acknowledged = noted.acknowledged.iter().filter(|commit| commit.sent_ms >= self.done_ms);
        let served_ms = acknowledged.map(|commit| commit.at_ms).min();
        self.served_ms = served_ms.filter(|at_ms| round.contains(at_ms));
        for lost in noted.lost.iter().filter(|lost| round.contains(&lost.at_ms)) {
            self.of_clients(lost.host).connections_lost += 1;
        }
        for incident in noted.incidents.iter().filter(|incident| round.contains(&incident.at_ms)) {
            let met = self.of_clients(incident.host);
            if incident.waited_ms >= SLOW.as_secs_f64() * 1_000.0 {
                let longest_ms = met.longest_stall_ms.unwrap_or(0.0);
                met.longest_stall_ms = Some(longest_ms.max(incident.waited_ms));
            }
            let Some(code) = &incident.code else { continue };
            let counts = if incident.again { &mut met.retries } else { &mut met.errors };
            *counts.entry(code.clone()).or_default() += 1;
            if incident.only_reads {
                *met.only_reading.entry(code.clone()).or_default() += 1;
            }
        }
    }

    /// By when the request was sent, which may have been shortly before the injection.
    fn take_unanswered(&mut self, round: Range<u64>, noted: &Noted) {
        let timed_out = noted.incidents.iter().filter(|one| one.code.as_deref() == Some(TIMED_OUT));
        for incident in timed_out {
            if round.contains(&incident.at_ms.saturating_sub(incident.waited_ms as u64)) {
                self.of_clients(incident.host).unanswered += 1;
            }
        }
    }

    fn of_clients(&mut self, host: usize) -> &mut Met {
        if self.nodes.contains(&host) { &mut self.there } else { &mut self.elsewhere }
    }

    /// What clients met and should not have: that they were never answered; those of the other nodes anything but that an update
    /// conflicted, or may have happened or not.
    fn broken(&self) -> Vec<String> {
        let Met { connections_lost, errors, only_reading, .. } = &self.elsewhere;
        let mut broken = Vec::new();
        let unanswered = self.there.unanswered + self.elsewhere.unanswered;
        if unanswered > 0 {
            broken.push(format!("{unanswered} requests were never answered"));
        }
        if *connections_lost > 0 {
            broken.push(format!("{connections_lost} connections to other nodes were lost"));
        }
        let forbidden = |(code, _): &(&String, &u64)| !TOLD_TO_UPDATES.contains(&code.as_str());
        let forbidden: BTreeMap<String, u64> =
            errors.iter().filter(forbidden).map(|(code, count)| (code.clone(), *count)).collect();
        if !forbidden.is_empty() {
            broken.push(format!("clients of other nodes met {}", list(&forbidden)));
        }
        if !only_reading.is_empty() {
            broken.push(format!("clients of other nodes that only read met {}", list(only_reading)));
        }
        broken
    }
}

/// What clients of nodes that were not lost may be told when one is: that they conflicted, and that nobody knows.
const TOLD_TO_UPDATES: [&str; 3] = ["40001", "40P01", "08007"];

/// What clients met in a part of a round. Whatever was replied to in it counts, whenever it had been asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// How long it was.
    pub seconds: f64,
    /// Pages completed per second.
    pub throughput: f64,
    /// Pages that failed, by SQLSTATE, `timeout` or `connection lost`.
    pub errors: BTreeMap<String, u64>,
    /// Transactions that the driver ran again, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// The longest that one client waited for one reply; `None` is less than [`SLOW`](super::SLOW).
    pub longest_stall_ms: Option<f64>,
    /// The longest that a page written to the disk of the commit log took beside all that. A stall that is hardly longer is the disk's.
    pub longest_disk_write_ms: f64,
}

impl Round {
    pub(super) fn new(number: u32, fault: Fault, victim: String, begin_ms: u64) -> Round {
        Round {
            number,
            fault,
            victim,
            begin_ms,
            injected_ms: begin_ms,
            out_ms: None,
            healing_ms: begin_ms,
            healed_ms: begin_ms,
            back_ms: None,
            end_ms: begin_ms,
            before: Phase::default(),
            during: Phase::default(),
            after: Phase::default(),
            of_nodes: None,
        }
    }

    /// From the beginning of the injection until the replica was out of service, in milliseconds.
    #[must_use]
    pub fn out_after_ms(&self) -> Option<u64> {
        Some(self.out_ms? - self.injected_ms)
    }

    /// From the beginning of the healing (of the injection, if there was nothing to heal) until the replica was back in service, in
    /// milliseconds.
    #[must_use]
    pub fn back_after_ms(&self) -> Option<u64> {
        Some(self.back_ms?.saturating_sub(self.healing_ms))
    }

    /// From the beginning of the injection until the first COMMIT was acknowledged that had been sent when it was done, in milliseconds;
    /// of a fault of nodes.
    #[must_use]
    pub fn served_after_ms(&self) -> Option<u64> {
        Some(self.of_nodes.as_ref()?.served_ms?.saturating_sub(self.injected_ms))
    }

    /// The longest stall from the injection on, in milliseconds; `None` is less than [`SLOW`](super::SLOW).
    #[must_use]
    pub fn longest_stall_ms(&self) -> Option<f64> {
        [&self.during, &self.after].iter().filter_map(|phase| phase.longest_stall_ms).reduce(f64::max)
    }

    /// Pages that failed from the injection on, by code.
    #[must_use]
    pub fn errors(&self) -> BTreeMap<String, u64> {
        sum(&self.during.errors, &self.after.errors)
    }

    /// Transactions that ran again from the injection on, by code.
    #[must_use]
    pub fn retries(&self) -> BTreeMap<String, u64> {
        sum(&self.during.retries, &self.after.retries)
    }

    /// The longest write to the disk from the injection on, in milliseconds.
    #[must_use]
    pub fn longest_disk_write_ms(&self) -> f64 {
        self.during.longest_disk_write_ms.max(self.after.longest_disk_write_ms)
    }

    fn take(&mut self, completed_ms: &[u32], incidents: &[Incident], writes: &[DiskWrite]) {
        // One that comes and goes may have been in service when it was healed.
        let until = self.back_ms.unwrap_or(0).max(self.healed_ms).max(self.injected_ms);
        let phase = |from, until| Phase::of(from, until, completed_ms, incidents, writes);
        self.before = phase(self.begin_ms, self.injected_ms);
        self.during = phase(self.injected_ms, until);
        self.after = phase(until, self.end_ms.max(until));
    }
}

impl Phase {
    /// `from <= until`.
    fn of(
        from: u64,
        until: u64,
        completed_ms: &[u32],
        incidents: &[Incident],
        writes: &[DiskWrite],
    ) -> Phase {
        let is_within = |at: u64| (from..until).contains(&at);
        let completed = completed_ms.iter().filter(|at| is_within(u64::from(**at))).count();
        let seconds = (until - from) as f64 / 1_000.0;
        let throughput = if from < until { completed as f64 / seconds } else { 0.0 };
        let writes = writes.iter().filter(|write| is_within(write.at_ms)).map(|write| write.took_ms);
        let longest_disk_write_ms = writes.fold(0.0, f64::max);
        let mut phase = Phase { seconds, throughput, longest_disk_write_ms, ..Phase::default() };
        for incident in incidents.iter().filter(|incident| is_within(incident.at_ms)) {
            if let Some(code) = &incident.code {
                let counts = if incident.again { &mut phase.retries } else { &mut phase.errors };
                *counts.entry(code.clone()).or_default() += 1;
            }
            let longest_ms = phase.longest_stall_ms.unwrap_or(0.0);
            if incident.waited_ms.max(longest_ms) >= SLOW.as_secs_f64() * 1_000.0 {
                phase.longest_stall_ms = Some(incident.waited_ms.max(longest_ms));
            }
        }
        phase
    }
}

impl FailuresReport {
    pub(super) fn new(options: &Options, think_factor: f64) -> Self {
        FailuresReport {
            load: options.load,
            clients: options.clients(),
            think_factor,
            replicas: options.replicas,
            nodes: options.nodes,
            silence_timeout_ms: options.silence_timeout_ms,
            seed: options.seed,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            rounds: Vec::new(),
            end_ms: 0,
            completed: 0,
            transactions: 0,
            errors: BTreeMap::new(),
            retries: BTreeMap::new(),
            cut_off: 0,
            aftermath: Aftermath::default(),
            failures: Vec::new(),
            skipped: Vec::new(),
            changes: Vec::new(),
            incidents: Vec::new(),
            seconds: Vec::new(),
            results: None,
        }
    }

    /// What clients met of faults of nodes; the rounds are known.
    pub(super) fn take_rounds_of_nodes(&mut self, noted: &Noted) {
        for round in &mut self.rounds {
            if let Some(of_nodes) = &mut round.of_nodes {
                of_nodes.take(round.injected_ms..round.end_ms, noted);
                of_nodes.take_unanswered(round.begin_ms..round.end_ms, noted);
            }
        }
    }

    /// What the users have met; the rounds are known.
    pub(super) fn take(
        &mut self,
        collected: &Collected,
        incidents: Vec<Incident>,
        writes: &[DiskWrite],
        changes: Vec<Change>,
    ) {
        let completed = collected.samples.iter().filter(|sample| !sample.failed);
        let completed_ms: Vec<u32> = completed.map(|sample| sample.at_ms).collect();
        self.seconds = vec![[0, 0]; (self.end_ms / 1_000) as usize + 1];
        for sample in &collected.samples {
            if let Some(second) = self.seconds.get_mut(sample.at_ms as usize / 1_000) {
                second[usize::from(sample.failed)] += 1;
            }
        }
        self.completed = completed_ms.len() as u64;
        self.transactions = collected.transactions;
        self.errors = collected.errors.clone();
        self.retries = collected.retries.clone();
        self.changes = changes;
        self.incidents = incidents;
        self.incidents.sort_by_key(|incident| incident.at_ms);
        self.rounds.iter_mut().for_each(|round| round.take(&completed_ms, &self.incidents, writes));
    }

    /// Why the cluster did not keep what it promises, or the run did not get through; empty if all is well. Errors and stalls
    /// that clients met are not among it, but for what clients of nodes that were not lost should not have met.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = self.failures.clone();
        wrong.extend(self.aftermath.wrong(self.replicas as usize));
        for round in &self.rounds {
            let of = |what| format!("round {}, {} of {}: {what}", round.number, round.fault, round.victim);
            wrong.extend(round.of_nodes.iter().flat_map(OfNodes::broken).map(of));
        }
        if self.cut_off > 0 {
            wrong.push(format!("{} users never got an answer", self.cut_off));
        }
        wrong
    }

    /// Pages that failed from an injection on, by code, over all rounds.
    #[must_use]
    pub fn errors_by_faults(&self) -> BTreeMap<String, u64> {
        self.rounds.iter().fold(BTreeMap::new(), |all, round| sum(&all, &round.errors()))
    }

    /// Transactions that ran again from an injection on, by code, over all rounds.
    #[must_use]
    pub fn retries_by_faults(&self) -> BTreeMap<String, u64> {
        self.rounds.iter().fold(BTreeMap::new(), |all, round| sum(&all, &round.retries()))
    }

    /// The longest stall of each round from the injection on, in milliseconds, the shortest first; 0 is less than [`SLOW`](super::SLOW).
    fn stalls(&self) -> Vec<f64> {
        let stalls = self.rounds.iter().map(|round| round.longest_stall_ms().unwrap_or(0.0));
        let mut stalls: Vec<f64> = stalls.collect();
        stalls.sort_by(f64::total_cmp);
        stalls
    }

    /// Writes `report.txt`, `report.json`, `rounds.csv`, `incidents.csv` and `seconds.csv`, and `nodes.csv` if nodes met faults.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Option(format!("write the report: {error}")))?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("rounds.csv"), &self.rounds_csv())?;
        write(&folder.join("incidents.csv"), &Incident::csv(&self.incidents))?;
        write(&folder.join("seconds.csv"), &self.seconds_csv())?;
        if self.rounds.iter().any(|round| round.of_nodes.is_some()) {
            write(&folder.join("nodes.csv"), &self.nodes_csv())?;
        }
        write(&folder.join("report.txt"), &self.to_string())
    }

    /// One line a round.
    fn rounds_csv(&self) -> String {
        let mut csv = String::from(
            "round,fault,victim,begin_ms,injected_ms,out_ms,healing_ms,healed_ms,back_ms,end_ms,errors,retries,longest_stall_ms,\
             longest_disk_write_ms,longest_before_ms,throughput_before,throughput_during,throughput_after\n",
        );
        let or_empty = |ms: Option<u64>| ms.map(|ms| ms.to_string()).unwrap_or_default();
        let longest = |ms: Option<f64>| ms.map(|ms| format!("{ms:.1}")).unwrap_or_default();
        for round in &self.rounds {
            let _ = writeln!(
                csv,
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{:.1},{},{:.1},{:.1},{:.1}",
                round.number,
                round.fault,
                round.victim,
                round.begin_ms,
                round.injected_ms,
                or_empty(round.out_ms),
                round.healing_ms,
                round.healed_ms,
                or_empty(round.back_ms),
                round.end_ms,
                round.errors().values().sum::<u64>(),
                round.retries().values().sum::<u64>(),
                longest(round.longest_stall_ms()),
                round.longest_disk_write_ms(),
                longest(round.before.longest_stall_ms),
                round.before.throughput,
                round.during.throughput,
                round.after.throughput,
            );
        }
        csv
    }

    /// One line a round in which nodes met a fault.
    fn nodes_csv(&self) -> String {
        let mut csv = String::from(
            "round,fault,victim,injected_ms,done_ms,served_ms,lost_there,lost_elsewhere,hung_there,hung_elsewhere,errors_there,errors_elsewhere,retries_there,\
             retries_elsewhere,only_reading_elsewhere,longest_stall_there_ms,longest_stall_elsewhere_ms\n",
        );
        let count = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        let longest = |ms: Option<f64>| ms.map(|ms| format!("{ms:.1}")).unwrap_or_default();
        for round in &self.rounds {
            let Some(OfNodes { done_ms, served_ms, there, elsewhere, .. }) = &round.of_nodes else {
                continue;
            };
            let _ = writeln!(
                csv,
                "{},{},\"{}\",{},{done_ms},{},{},{},{},{},{},{},{},{},{},{},{}",
                round.number,
                round.fault,
                round.victim,
                round.injected_ms,
                served_ms.map(|ms| ms.to_string()).unwrap_or_default(),
                there.connections_lost,
                elsewhere.connections_lost,
                there.unanswered,
                elsewhere.unanswered,
                count(&there.errors),
                count(&elsewhere.errors),
                count(&there.retries),
                count(&elsewhere.retries),
                count(&elsewhere.only_reading),
                longest(there.longest_stall_ms),
                longest(elsewhere.longest_stall_ms),
            );
        }
        csv
    }

    fn seconds_csv(&self) -> String {
        let mut csv = "second,completed,failed\n".to_owned();
        for (second, [completed, failed]) in self.seconds.iter().enumerate() {
            let _ = writeln!(csv, "{second},{completed},{failed}");
        }
        csv
    }
}

fn sum(one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sum = one.clone();
    for (code, count) in other {
        *sum.entry(code.clone()).or_default() += count;
    }
    sum
}

pub(crate) fn list(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<String> = counts.iter().map(|(code, count)| format!("{count} x {code}")).collect();
    each.join(", ")
}

/// The requests that waited longest, and what was said most often to those that failed.
pub(crate) fn write_worst(f: &mut fmt::Formatter<'_>, incidents: &[Incident]) -> fmt::Result {
    let mut worst: Vec<&Incident> = incidents.iter().collect();
    worst.sort_by(|a, b| b.waited_ms.total_cmp(&a.waited_ms));
    for incident in worst.iter().take(WORST) {
        let Incident { at_ms, waited_ms, request, code, message, .. } = incident;
        let reply = code.as_deref().map_or(String::new(), |code| format!(": {code}, {message}"));
        let at_s = *at_ms as f64 / 1_000.0;
        writeln!(f, "  {:>9} ms until {at_s:.1} s for {request}{reply}", millis(*waited_ms))?;
    }
    let mut said: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for incident in incidents {
        if let Some(code) = &incident.code {
            *said.entry((code, &incident.message)).or_default() += 1;
        }
    }
    let mut said: Vec<_> = said.into_iter().collect();
    said.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for ((code, message), count) in said.iter().take(WORST) {
        writeln!(f, "  {count} x {code}: {message}")?;
    }
    Ok(())
}

/// How the columns of both tables count.
const COUNTED: &str = "Errors, again and stall count from the injection on; a stall is the longest that one client waited for one \
    reply. disk: the longest that a small write to the disk of the commit log took meanwhile; a stall that is hardly longer is the disk's. \
    before: the longest stall before the injection.";

fn or_dash(ms: Option<u64>) -> String {
    ms.map_or("-".to_owned(), |ms| thousands(ms as f64))
}

fn stall(ms: Option<f64>) -> String {
    ms.map_or(format!("< {}", SLOW.as_millis()), millis)
}

impl fmt::Display for FailuresReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.nodes == 1 { String::new() } else { format!(" behind {} nodes", self.nodes) };
        writeln!(
            f,
            "{} by {} clients on {} replicas{nodes}, pauses x {}; seed {}, silence timeout {} ms, {} processors",
            self.load,
            self.clients,
            self.replicas,
            self.think_factor,
            self.seed,
            thousands(self.silence_timeout_ms as f64),
            self.processors
        )?;
        let of_nodes = self.rounds.iter().any(|round| round.of_nodes.is_some());
        let of_replicas = self.rounds.iter().any(|round| round.of_nodes.is_none()) || !of_nodes;
        if of_replicas {
            write!(f, "{}", self.table().terminal())?;
        }
        if of_nodes {
            write!(f, "{}", self.table_of_nodes().terminal())?;
        }
        for fault in
            Fault::ALL.into_iter().filter(|fault| self.rounds.iter().any(|round| round.fault == *fault))
        {
            writeln!(f, "{fault}: {}", fault.about())?;
        }
        if of_replicas {
            writeln!(
                f,
                "out: from the injection until the replica was out of service; ready: from the beginning of the healing (of the injection, if \
                 nothing is to be healed) until its server accepted connections; back: until it was in service. {COUNTED}"
            )?;
        }
        if of_nodes {
            writeln!(
                f,
                "served: from the injection until the first COMMIT was acknowledged that was sent after it; ready: from the beginning of the \
                 healing until the nodes accepted connections; back: until a transaction had succeeded through every node, and all replicas \
                 were in service. lost: connections that ended. hung: requests that were never answered. Pairs: of clients of the nodes that the fault met, + of all others, those \
                 among them that had come from these. reading: errors and what ran again of transactions that only read, of the others' \
                 clients. {COUNTED}"
            )?;
        }
        self.write_clients(f)?;
        self.write_checks(f)
    }
}

impl FailuresReport {
    fn table(&self) -> Table {
        let mut table = Table::new([
            "round",
            "fault",
            "replica",
            "at s",
            "out ms",
            "ready ms",
            "back ms",
            "errors",
            "again",
            "stall ms",
            "disk ms",
            "before",
            "pages/s before",
            "during",
            "after",
        ]);
        for round in self.rounds.iter().filter(|round| round.of_nodes.is_none()) {
            table.row([
                round.number.to_string(),
                round.fault.to_string(),
                round.victim.clone(),
                format!("{:.1}", round.injected_ms as f64 / 1_000.0),
                or_dash(round.out_after_ms()),
                thousands((round.healed_ms - round.healing_ms) as f64),
                or_dash(round.back_after_ms()),
                list(&round.errors()),
                list(&round.retries()),
                stall(round.longest_stall_ms()),
                millis(round.longest_disk_write_ms()),
                stall(round.before.longest_stall_ms),
                format!("{:.1}", round.before.throughput),
                format!("{:.1}", round.during.throughput),
                format!("{:.1}", round.after.throughput),
            ]);
        }
        table
    }

    fn table_of_nodes(&self) -> Table {
        let mut table = Table::new([
            "round",
            "fault",
            "node",
            "at s",
            "served ms",
            "ready ms",
            "back ms",
            "lost",
            "hung",
            "errors",
            "again",
            "reading",
            "stall ms",
            "disk ms",
            "before",
            "pages/s before",
            "during",
            "after",
        ]);
        for round in &self.rounds {
            let Some(OfNodes { there, elsewhere, .. }) = &round.of_nodes else { continue };
            let both = |of: fn(&Met) -> &BTreeMap<String, u64>| {
                format!("{} + {}", list(of(there)), list(of(elsewhere)))
            };
            table.row([
                round.number.to_string(),
                round.fault.to_string(),
                round.victim.clone(),
                format!("{:.1}", round.injected_ms as f64 / 1_000.0),
                or_dash(round.served_after_ms()),
                thousands((round.healed_ms - round.healing_ms) as f64),
                or_dash(round.back_after_ms()),
                format!("{} + {}", there.connections_lost, elsewhere.connections_lost),
                format!("{} + {}", there.unanswered, elsewhere.unanswered),
                both(|met| &met.errors),
                both(|met| &met.retries),
                list(&elsewhere.only_reading),
                format!("{} + {}", stall(there.longest_stall_ms), stall(elsewhere.longest_stall_ms)),
                millis(round.longest_disk_write_ms()),
                stall(round.before.longest_stall_ms),
                format!("{:.1}", round.before.throughput),
                format!("{:.1}", round.during.throughput),
                format!("{:.1}", round.after.throughput),
            ]);
        }
        table
    }

    fn write_clients(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "after faults: errors {}; run again {}",
            list(&self.errors_by_faults()),
            list(&self.retries_by_faults())
        )?;
        writeln!(f, "in all:       errors {}; run again {}", list(&self.errors), list(&self.retries))?;
        let stalls = self.stalls();
        if let (Some(longest), Some(median)) = (stalls.last(), stalls.get(stalls.len() / 2)) {
            writeln!(
                f,
                "longest stall after a fault: {} ms, {} in the median round",
                millis(*longest),
                millis(*median)
            )?;
        }
        write_worst(f, &self.incidents)
    }

    fn write_checks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.aftermath)?;
        for skipped in &self.skipped {
            writeln!(f, "skipped: {skipped}")?;
        }
        if let Some(results) = &self.results {
            writeln!(f, "results: {}", results.display())?;
        }
        let wrong = self.wrong();
        let verdict =
            if wrong.is_empty() { "nothing lost, nothing differs".to_owned() } else { wrong.join("; ") };
        writeln!(f, "{verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failures::{Commits, Verified};
    use crate::site::CheckReport;
    use crate::site::{Acknowledged, Checked, Lost, Sample};

    fn incident(at_ms: u64, waited_ms: f64, code: Option<&str>, again: bool) -> Incident {
        let code = code.map(str::to_owned);
        let request = "COMMIT".to_owned();
        Incident {
            at_ms,
            waited_ms,
            request,
            code,
            message: String::new(),
            again,
            host: 0,
            only_reads: false,
        }
    }

    /// Injected after one second, healed after two, back after three, ended after five.
    fn report() -> FailuresReport {
        let mut report = FailuresReport { end_ms: 5_000, ..FailuresReport::new(&Options::default(), 0.0) };
        let round = Round {
            injected_ms: 1_000,
            out_ms: Some(1_010),
            healing_ms: 2_000,
            healed_ms: 2_500,
            back_ms: Some(3_000),
            end_ms: 5_000,
            ..Round::new(1, Fault::Kill, "r2".to_owned(), 0)
        };
        report.rounds.push(round);
        let sample = |at_ms| Sample { at_ms, interaction: 0, retries: 0, failed: false, latency_us: 0 };
        let samples = [100, 200, 900, 1_500, 4_000].map(sample).to_vec();
        let incidents = vec![
            incident(4_900, 30.0, None, false),
            incident(500, 400.0, Some("40001"), true),
            incident(1_800, 800.0, None, false),
            incident(1_900, 1.0, Some("40001"), true),
            incident(1_950, 2.0, Some("57P01"), false),
            incident(3_100, 3.0, Some("57P01"), false),
        ];
        let writes = [(500, 9.0), (1_100, 1.5), (4_000, 2.5)];
        let writes = writes.map(|(at_ms, took_ms)| DiskWrite { at_ms, took_ms });
        report.take(&Collected { samples, ..Collected::default() }, incidents, &writes, Vec::new());
        report.aftermath.verified = ["r1", "r2", "r3"]
            .map(|replica| Verified { replica: replica.to_owned(), csn: 7, verdict: "identical".to_owned() })
            .to_vec();
        report.aftermath.checked = Some(CheckReport { checked: Vec::new() });
        report.aftermath.commits = Some(Commits::default());
        report
    }

    #[test]
    fn what_clients_met_is_counted_by_when_they_were_replied_to() {
        let report = report();
        let round = &report.rounds[0];
        assert_eq!(
            (round.before.throughput, round.during.throughput, round.after.throughput),
            (3.0, 0.5, 0.5)
        );
        assert_eq!((round.out_after_ms(), round.back_after_ms()), (Some(10), Some(1_000)));
        assert_eq!((round.before.longest_stall_ms, round.longest_stall_ms()), (Some(400.0), Some(800.0)));
        assert_eq!(round.after.longest_stall_ms, Some(30.0));
        assert_eq!(round.before.retries, BTreeMap::from([("40001".to_owned(), 1)]));
        assert_eq!(report.retries_by_faults(), BTreeMap::from([("40001".to_owned(), 1)]));
        assert_eq!(report.errors_by_faults(), BTreeMap::from([("57P01".to_owned(), 2)]));
        assert_eq!(report.seconds[..5], [[3, 0], [1, 0], [0, 0], [0, 0], [1, 0]]);
    }

    #[test]
    fn whatever_breaks_a_promise_is_said_to_be_wrong_and_errors_of_clients_are_not() {
        assert_eq!(report().wrong(), [""; 0]);
        assert!(report().to_string().ends_with("nothing lost, nothing differs\n"));
        let mut wrong = report();
        wrong.aftermath.verified[2].verdict = "DIFFERS: public.t".to_owned();
        wrong.aftermath.verified.remove(0);
        let broken = Checked { rule: "money stays".to_owned(), violations: 1 };
        wrong.aftermath.checked = Some(CheckReport { checked: vec![broken] });
        wrong.aftermath.commits = Some(Commits { lost: 1, ..Commits::default() });
        wrong.cut_off = 2;
        let said = wrong.wrong();
        assert_eq!(said.len(), 5, "{said:?}");
        assert!(wrong.to_string().contains("1 acknowledged commits are lost"));
    }

    #[test]
    fn clients_of_a_lost_node_count_apart_from_others_which_must_meet_nothing_but_conflicts_of_updates() {
        let mut report = report();
        let round = &mut report.rounds[0];
        (round.fault, round.victim) = (Fault::Leader, "node2".to_owned());
        round.of_nodes = Some(OfNodes::new(vec![1], 1_005));
        let at = |host, incident: Incident| Incident { host, ..incident };
        let mut noted = Noted {
            incidents: vec![
                at(1, incident(900, 1.0, Some("XX000"), false)),
                at(1, incident(1_010, 5.0, Some("connection lost"), false)),
                at(1, incident(1_020, 60.0, None, false)),
                at(0, incident(1_900, 890.0, Some("40001"), true)),
                at(2, incident(1_901, 891.0, Some("08007"), false)),
            ],
            acknowledged: [(990, 1_006), (1_010, 1_950), (1_005, 1_902)]
                .map(|(sent_ms, at_ms)| Acknowledged { sent_ms, at_ms })
                .into(),
            lost: [(1_007, 1), (1_008, 1), (5_001, 0)].map(|(at_ms, host)| Lost { at_ms, host }).into(),
            ..Noted::default()
        };
        report.take_rounds_of_nodes(&noted);
        let counted = |code: &str| BTreeMap::from([(code.to_owned(), 1)]);
        let there = Met {
            connections_lost: 2,
            errors: counted("connection lost"),
            longest_stall_ms: Some(60.0),
            ..Met::default()
        };
        let elsewhere = Met {
            errors: counted("08007"),
            retries: counted("40001"),
            longest_stall_ms: Some(891.0),
            ..Met::default()
        };
        let expected = OfNodes { nodes: vec![1], done_ms: 1_005, served_ms: Some(1_902), there, elsewhere };
        assert_eq!(report.rounds[0].of_nodes.as_ref(), Some(&expected));
        assert_eq!(report.rounds[0].served_after_ms(), Some(902));
        assert_eq!(report.wrong(), [""; 0]);
        assert!(report.to_string().contains("1 x connection lost + 1 x 08007"), "{report}");
        assert_eq!(
            report.nodes_csv().lines().nth(1).unwrap(),
            "1,leader,\"node2\",1000,1005,1902,2,0,0,0,1,1,0,1,0,60.0,891.0"
        );

        noted.incidents.push(at(0, incident(2_000, 1.0, Some("57P01"), false)));
        noted.incidents.push(Incident { only_reads: true, ..incident(2_000, 1.0, Some("40001"), true) });
        noted.lost.push(Lost { at_ms: 2_001, host: 0 });
        // Its client gave up after a minute.
        noted.incidents.push(at(1, incident(60_990, 60_000.0, Some("timeout"), false)));
        report.rounds[0].of_nodes = Some(OfNodes::new(vec![1], 1_005));
        report.take_rounds_of_nodes(&noted);
        assert_eq!(report.wrong().len(), 4, "{:?}", report.wrong());
        // When all were lost there are no others.
        report.rounds[0].of_nodes = Some(OfNodes::new(vec![0, 1, 2], 1_005));
        report.take_rounds_of_nodes(&noted);
        assert_eq!(report.wrong(), ["round 1, leader of node2: 1 requests were never answered"]);
    }

    #[test]
    fn results_are_kept_round_by_round_and_request_by_request() {
        let folder = tempfile::tempdir().unwrap();
        report().save(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            read("rounds.csv").lines().nth(1).unwrap(),
            "1,kill,r2,0,1000,1010,2000,2500,3000,5000,2,1,800.0,2.5,400.0,3.0,0.5,0.5"
        );
        assert_eq!(read("incidents.csv").lines().nth(1).unwrap(), "500,400.0,COMMIT,40001,1,1,0,\"\"");
        assert_eq!(read("seconds.csv").lines().count(), 1 + 6);
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!(json["rounds"][0]["during"]["errors"]["57P01"], 1);
        assert_eq!(json["verified"][1]["verdict"], "identical");
        assert!(read("report.txt").contains("2 x 57P01"));
    }
}
