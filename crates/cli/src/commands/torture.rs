//! `onecopy torture`.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::ArgGroup;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onecopy_sim::coverage::Fault;
use onecopy_sim::failure::PROMISES;
use onecopy_sim::planted::{BUGS, Planting};
use onecopy_sim::torture::{ATTEMPTS_MAX, Case, shrink};
use onecopy_sim::{Failure, Outcome, Statistics};

use crate::CommandError;
use crate::output::print;

/// Run onecopy's core under every fault, in virtual time, and check every promise.
///
/// Each seed is a cluster of simulated databases with clients that check what they see. Servers, connections, the node, its
/// disk and its clock fail at every step of the protocol, replicas join and leave; then everything heals, and everybody
/// must get on. The same seed always does the same. A failure is replayed and made as small as it gets; what is left is written
/// to a file for --scenario.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("single").args(["seed", "scenario"])))]
pub struct Args {
    /// Which seeds, without the last.
    #[arg(long, value_name = "FROM..TO", default_value = "0..1000")]
    seeds: Seeds,
    /// Only this seed.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Only the scenario of this file, as a failure leaves it behind.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "plant"])]
    scenario: Option<PathBuf>,
    /// Write everything that happens to this file; of a single seed or scenario.
    #[arg(long, value_name = "FILE", requires = "single")]
    trace: Option<PathBuf>,
    /// Print which fault has hit which step of the protocol how often.
    #[arg(long)]
    coverage: bool,
    /// Plant a bug in the protocol, to see that it is found.
    #[arg(long, value_name = "BUG", value_parser = bug())]
    plant: Option<&'static Planting>,
    /// Where to write the smallest scenario that fails [default: torture-SEED.toml]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Make a failure smaller by so many runs, at most; 0 leaves it as it is.
    #[arg(long, value_name = "RUNS", default_value_t = ATTEMPTS_MAX)]
    attempts: usize,
    /// Threads [default: one for each core]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// By its name; the help says of each what is wrong.
fn bug() -> impl TypedValueParser<Value = &'static Planting> {
    let values = BUGS.iter().map(|bug| PossibleValue::new(bug.name).help(bug.what));
    PossibleValuesParser::new(values).try_map(|name| Planting::named(&name).ok_or("it is not there"))
}

/// Seeds, from one to another.
#[derive(Clone, Debug)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Seeds, &'static str> {
        let bounds =
            text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        match bounds {
            Some((from, to)) if from < to => Ok(Seeds(from..to)),
            _ => Err("write it like 0..1000, the smaller one first"),
        }
    }
}

/// Lines of the trace that are printed of a failure.
const TRACE_LINES: usize = 25;
/// And so many characters of each.
const TRACE_COLUMNS: usize = 200;

impl Args {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        if let Some(file) = &self.scenario {
            let text =
                fs::read_to_string(file).map_err(|error| format!("read {}: {error}", file.display()))?;
            let case = Case::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            // It is as small as it was made before.
            return self.run_one(&case, None);
        }
        if let Some(seed) = self.seed {
            return self.run_one(&Case::of_seed(seed, self.plant), Some(seed));
        }
        let Swept { seeds, statistics, failed } = self.sweep()?;
        print(summary(seeds, &statistics, failed.is_none()))?;
        self.print_coverage(&statistics)?;
        match failed {
            None => Ok(()),
            Some(seed) => self.explain(&Case::of_seed(seed, self.plant), Some(seed)),
        }
    }

    fn run_one(&self, case: &Case, seed: Option<u64>) -> Result<(), CommandError> {
        let outcome = case.run_with_trace();
        if let Some(file) = &self.trace {
            let trace = outcome.trace.as_deref().unwrap_or_default();
            fs::write(file, trace).map_err(|error| format!("write {}: {error}", file.display()))?;
        }
        let kept = outcome.failures.is_empty();
        print(summary(1, &outcome.statistics, kept))?;
        print(format_args!("trace {:016x}", outcome.trace_hash))?;
        self.print_coverage(&outcome.statistics)?;
        if kept { Ok(()) } else { self.explain_outcome(case, seed, &outcome) }
    }

    fn print_coverage(&self, statistics: &Statistics) -> Result<(), CommandError> {
        if self.coverage {
            let (fault, stage, hits) = statistics.coverage.least();
            print(format_args!(
                "\n{}\n\nleast: {} while a step was `{}`, {hits} times",
                statistics.coverage,
                fault.words(),
                stage.word()
            ))?;
        }
        Ok(())
    }

    /// Runs the seeds, all at once on several threads, until one fails. Seeds are handed out in their order, so the
    /// smallest that failed is the smallest that fails.
    fn sweep(&self) -> Result<Swept, CommandError> {
        let Seeds(seeds) = &self.seeds;
        let threads = self.threads.map_or_else(thread::available_parallelism, Ok)?.get();
        let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
        let swept = Mutex::new((0, Statistics::default()));
        let bar = bar(self.quiet, seeds.end - seeds.start);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while failed.load(Ordering::Relaxed) == u64::MAX {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return;
                        }
                        let outcome = Case::of_seed(seed, self.plant).run();
                        if !outcome.failures.is_empty() {
                            failed.fetch_min(seed, Ordering::Relaxed);
                        }
                        // Nobody panics while holding it.
                        if let Ok(mut swept) = swept.lock() {
                            swept.0 += 1;
                            swept.1.add(&outcome.statistics);
                        }
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let (seeds, statistics) = swept.into_inner().map_err(|_| "a thread has ended early")?;
        let failed = failed.into_inner();
        Ok(Swept { seeds, statistics, failed: (failed < u64::MAX).then_some(failed) })
    }

    /// Runs a case again that has failed, and says what and how.
    fn explain(&self, case: &Case, seed: Option<u64>) -> Result<(), CommandError> {
        self.explain_outcome(case, seed, &case.run_with_trace())
    }

    fn explain_outcome(&self, case: &Case, seed: Option<u64>, outcome: &Outcome) -> Result<(), CommandError> {
        let failure =
            outcome.failures.first().ok_or("it failed before and does not now: a fault of the simulator")?;
        let promise = Failure::promise(failure.kind()).unwrap_or("a promise");
        let again = match (seed, &self.scenario) {
            (Some(seed), _) => {
                let plant = self.plant.map(|bug| format!(" --plant {}", bug.name)).unwrap_or_default();
                format!("onecopy torture --seed {seed}{plant} --trace torture-{seed}.trace")
            }
            (None, Some(file)) => format!("onecopy torture --scenario {}", file.display()),
            (None, None) => String::new(),
        };
        let name = seed.map_or_else(|| "the scenario".to_owned(), |seed| format!("seed {seed}"));
        print(format_args!("\n{name} breaks a promise: {promise}\n{failure}\n\nagain: {again}"))?;
        let broken = format!("{name} breaks a promise: {promise}");
        let Some(seed) = seed.filter(|_| self.attempts > 0) else {
            print_before(outcome)?;
            return Err(broken.into());
        };
        let smallest = self.smallest(case, failure.kind())?;
        let file = self.out.clone().unwrap_or_else(|| PathBuf::from(format!("torture-{seed}.toml")));
        write_case(&file, &smallest)?;
        let file = file.display();
        print(format_args!("again: onecopy torture --scenario {file}\n\n{}", smallest.to_text()))?;
        print_before(&smallest.run_with_trace())?;
        Err(broken.into())
    }

    fn smallest(&self, case: &Case, kind: &str) -> Result<Case, CommandError> {
        let bar = bar(self.quiet, self.attempts as u64);
        let shrunk = shrink(case, kind, self.attempts, &mut |attempts, best| {
            bar.set_position(attempts as u64);
            bar.set_message(size(best));
        });
        bar.finish_and_clear();
        let (runs, small, large) = (shrunk.attempts, size(&shrunk.case), size(case));
        print(format_args!("\nmade smaller by {runs} runs: {small}; it was {large}"))?;
        Ok(shrunk.case)
    }
}

/// What came of many seeds.
struct Swept {
    /// How many have run.
    seeds: u64,
    statistics: Statistics,
    /// The smallest one that failed.
    failed: Option<u64>,
}

/// What happened just before the first failure was found.
fn print_before(outcome: &Outcome) -> Result<(), CommandError> {
    let end = outcome.trace.as_deref().map(end_of_trace).unwrap_or_default();
    Ok(print(format_args!("\nits trace, until the failure was found:\n{end}"))?)
}

fn write_case(file: &Path, case: &Case) -> Result<(), CommandError> {
    let text = format!("# A scenario for `onecopy torture --scenario`.\n{}", case.to_text());
    fs::write(file, text).map_err(|error| format!("write {}: {error}", file.display()).into())
}

fn size(case: &Case) -> String {
    let of = &case.scenario;
    let transactions = of.clients as u64 * u64::from(of.transactions_per_client);
    format!(
        "{} replicas, {} clients, {} transactions, {} faults",
        of.replicas,
        of.clients,
        transactions.saturating_sub(of.left_out.len() as u64),
        of.breakages.len()
    )
}

/// The lines up to the first failure; long ones are cut.
fn end_of_trace(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    let is_failure = |line: &&str| line.split_whitespace().nth(1) == Some("FAILURE");
    let end = lines.iter().position(is_failure).map_or(lines.len(), |at| at + 1);
    let mut text = String::new();
    for line in &lines[end.saturating_sub(TRACE_LINES)..end] {
        let cut: String = line.chars().take(TRACE_COLUMNS).collect();
        let dots = if cut.len() < line.len() { " ..." } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{cut}{dots}");
    }
    text
}

/// What was checked, what broke, and what happened.
fn summary(seeds: u64, seen: &Statistics, kept: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if kept {
        let _ = writeln!(text, "promises kept in every one of {seeds} runs:");
        PROMISES.iter().for_each(|(_, promise)| _ = writeln!(text, "  {promise}"));
    } else {
        let _ = writeln!(text, "{seeds} runs, until one broke a promise");
    }
    let _ = writeln!(text, "\nfaults:");
    for fault in Fault::ALL {
        let _ = writeln!(text, "{:>12}  {}", seen.coverage.faults(fault), fault.words());
    }
    let refused: u64 = seen.refused.values().sum();
    let happened = [
        (seen.committed, "transactions committed, as their clients were told"),
        (seen.aborted, "did not commit"),
        (seen.unknown, "whose client never heard"),
        (refused, "refused by the core, to be tried again"),
        (seen.grants_waited, "requests for items that waited"),
        (seen.revalidations, "read phases whose reads were run again"),
        (seen.moved, "transactions that moved to another home"),
        (seen.executed_again, "answers dropped for what they showed, and had again"),
        (seen.returned_after_failures, "transactions that went on after a statement had failed"),
        (seen.brought_down, "servers brought down by a statement"),
        (seen.broken_outside, "cycles of waiting that were closed within servers"),
        (seen.entangled, "commits that waited for an idle transaction by way of a reader"),
        (seen.joined, "copies of replicas made"),
        (seen.departed, "replicas left"),
        (seen.steps, "steps in all"),
    ];
    let _ = writeln!(text, "\nwhat happened:");
    for (count, what) in happened {
        let _ = writeln!(text, "{count:>12}  {what}");
    }
    text
}

fn bar(quiet: bool, len: u64) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed}, {eta} left  {msg}");
    let bar = ProgressBar::with_draw_target(Some(len), target);
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_that_holds_one_at_least() {
        let read = |text: &str| text.parse().ok().map(|Seeds(seeds)| seeds);
        assert_eq!(read("0..1000"), Some(0..1_000));
        for wrong in ["7", "3..3", "4..3", "a..b", "..5", "-1..5"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_trace_ends_with_its_first_failure() {
        let before = "        1.000 event     x\n".repeat(100);
        let trace = format!("{before}        2.000 FAILURE   Stuck\n        3.000 event     y\n");
        let end = end_of_trace(&trace);
        assert_eq!(end.lines().count(), TRACE_LINES);
        assert!(end.ends_with("FAILURE   Stuck\n"), "{end}");
    }
}
