//! `onecopy reproduce`.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onecopy_lab::claims::{Claim, Paper, papers};
use onecopy_lab::{
    Effort, Needed, Progress, Report, Results, SOURCES, Tally, Variation, asked_elsewhere, missing, question,
    run_all, write_report,
};

use crate::CommandError;
use crate::output::print;
use crate::signals::{Request, Signals};

/// Run what published papers claim again, in virtual time, and say what holds.
///
/// Runs the papers' systems on onecopy's own core against simulated databases. Results are kept in a folder as CSV, so that
/// whoever is interrupted goes on where they were. In the end: a table of claims, and one page with figures.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Papers (cas, dv, gargamel, wan, invalidation), single claims (cas-12), or what onecopy does in the same clusters (onecopy) [default: all papers]
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// A look in minutes: shorter runs, one seed, few sizes. Verdicts are provisional.
    #[arg(long)]
    quick: bool,
    /// A folder for results and report.
    #[arg(long, value_name = "DIR", default_value = "results/reproduce")]
    out: PathBuf,
    /// Seeds of each experiment [default: 5, or 1 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Ask the same of clusters that differ in this. May be given more than once.
    #[arg(long, value_name = "HOW", value_parser = variation())]
    vary: Vec<Variation>,
    /// Ask what does not hold again of clusters that differ in one of these things each, with one seed, to see what it depends on:
    /// takes several times as long.
    #[arg(long)]
    explain: bool,
    /// Threads [default: one for each core]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Run nothing: report what is there.
    #[arg(long)]
    report: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let stop = &*Box::leak(Box::new(AtomicBool::new(false)));
        stop_when_asked(stop)?;
        self.run_until(stop)
    }

    fn run_until(&self, stop: &AtomicBool) -> Result<(), CommandError> {
        let wanted = wanted(&self.what)?;
        if let Some([one, other]) = Variation::contradiction(&self.vary) {
            let (one, other) = (one.name(), other.name());
            return Err(format!("clusters cannot have both {one} and {other}: choose one of them").into());
        }
        let mut effort = if self.quick { Effort::quick() } else { Effort::full() };
        effort.seeds = self.seeds.unwrap_or(effort.seeds);
        let open = if self.report { Results::read } else { Results::open };
        let mut results = open(&self.out, &effort, SOURCES)?;
        self.tell_what_is_not_used(&results);
        let unfinished =
            if self.report { 0 } else { self.run_missing(&wanted, &effort, &mut results, stop)? };
        let report = Report::new(&wanted, &self.vary, &effort, &results)?;
        let page = write_report(&report, &self.out)?;
        let Tally { hold, fail, open, undecidable } = report.tally();
        let text = report.text();
        print(format_args!(
            "{text}\n{hold} hold, {fail} do not, {open} are open, {undecidable} cannot be decided here\n{}",
            page.display()
        ))?;
        match unfinished {
            0 => Ok(()),
            runs => {
                Err(format!("interrupted, {runs} runs are missing: the same command goes on from here")
                    .into())
            }
        }
    }

    fn tell_what_is_not_used(&self, results: &Results) {
        let file = self.out.join("runs.csv");
        if results.foreign > 0 {
            eprintln!(
                "{} rows of {} are of other sources or another effort, and are not used",
                results.foreign,
                file.display()
            );
        }
        if results.was_cut {
            eprintln!("the last row of {} is not whole, and is not used", file.display());
        }
    }

    /// Returns how many runs are missing still, because somebody asked to stop.
    fn run_missing(
        &self,
        wanted: &Wanted,
        effort: &Effort,
        results: &mut Results,
        stop: &AtomicBool,
    ) -> Result<usize, CommandError> {
        let mut experiments = Needed::default();
        for claim in wanted.iter().flat_map(|(_, claims)| claims) {
            question(claim, effort).varied(&self.vary).experiments(&mut experiments);
        }
        let threads = self.threads.map_or_else(thread::available_parallelism, Ok)?.get();
        run_all(&experiments, effort, results, threads, stop, &Bar::new(self.quiet))?;
        let unfinished = missing(&experiments, effort.seeds, results);
        if unfinished > 0 || !self.explain {
            return Ok(unfinished);
        }
        let once = Effort { seeds: 1, ..effort.clone() };
        let mut experiments = Needed::default();
        for claim in Report::new(wanted, &self.vary, effort, results)?.failed() {
            for (_, question) in asked_elsewhere(claim, &self.vary, effort) {
                question.experiments(&mut experiments);
            }
        }
        run_all(&experiments, &once, results, threads, stop, &Bar::new(self.quiet))?;
        Ok(missing(&experiments, once.seeds, results))
    }
}

/// By its name; the help says of each what it means.
fn variation() -> impl TypedValueParser<Value = Variation> {
    let values =
        Variation::ALL.map(|variation| PossibleValue::new(variation.name()).help(variation.description()));
    PossibleValuesParser::new(values).try_map(|name| Variation::named(&name).ok_or("it is not there"))
}

type Wanted = Vec<(&'static Paper, Vec<&'static Claim>)>;

/// The claims that were asked for, paper by paper.
fn wanted(what: &[String]) -> Result<Wanted, CommandError> {
    let is_wanted = |paper: &Paper, claim: &Claim| {
        (what.is_empty() && paper.is_published())
            || what.iter().any(|name| *name == paper.name || *name == claim.id)
    };
    for name in what {
        let is_known =
            |paper: &Paper| *name == paper.name || paper.claims.iter().any(|claim| *name == claim.id);
        if !papers().iter().any(is_known) {
            let names: Vec<String> = papers()
                .iter()
                .map(|paper| format!("{0}, or {0}-01 to {0}-{1:02}", paper.name, paper.claims.len()))
                .collect();
            return Err(format!("there is no paper or claim {name}: choose {}", names.join("; ")).into());
        }
    }
    let all = papers().iter().map(|paper| {
        let claims: Vec<&Claim> = paper.claims.iter().filter(|claim| is_wanted(paper, claim)).collect();
        (paper, claims)
    });
    Ok(all.filter(|(_, claims)| !claims.is_empty()).collect())
}

/// The first request lets the runs under way end, which can take a minute, and then reports; the next one ends at once.
fn stop_when_asked(stop: &'static AtomicBool) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("onecopy-signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            let Ok(mut signals) = Signals::listen() else { return };
            while signals.next().await != Request::Stop {}
            stop.store(true, Ordering::Relaxed);
            eprintln!("ending when the runs under way have; again to end at once (what is done is kept)");
            while signals.next().await != Request::Stop {}
            std::process::exit(1);
        });
    })?;
    Ok(())
}

struct Bar(ProgressBar);

impl Bar {
    fn new(quiet: bool) -> Bar {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed}, {eta} left  {msg}");
        let bar = ProgressBar::with_draw_target(None, target);
        Bar(style.map_or(bar.clone(), |style| bar.with_style(style)))
    }
}

impl Progress for Bar {
    fn starts(&self, runs: usize) {
        self.0.set_length(runs as u64);
        self.0.tick();
    }

    fn done(&self, what: &dyn Display, found: f64) {
        self.0.inc(1);
        self.0.set_message(format!("{what}: {found:.1}"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;

    fn count(what: &[&str]) -> Result<Vec<(String, usize)>, String> {
        let what: Vec<String> = what.iter().copied().map(str::to_owned).collect();
        let wanted = wanted(&what).map_err(|error| error.to_string())?;
        Ok(wanted.into_iter().map(|(paper, claims)| (paper.name.clone(), claims.len())).collect())
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str], out: &Path) -> Args {
        let out = out.to_str().expect("temporary folders have names in ASCII");
        Line::parse_from(["reproduce", "--quick", "--quiet", "--out", out].iter().chain(line)).args
    }

    #[test]
    fn a_run_that_was_interrupted_reports_and_says_that_runs_are_missing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let interrupted = args(&["cas-12"], folder.path()).run_until(&AtomicBool::new(true));
        let error = interrupted.expect_err("nothing was run").to_string();
        assert_eq!(error, "interrupted, 2 runs are missing: the same command goes on from here");
        let report = std::fs::read_to_string(folder.path().join("report.md")).expect("it is there");
        assert!(report.contains("| cas-12 ") && report.contains("| open |"), "{report}");
    }

    #[test]
    fn alternatives_are_refused_before_anything_is_made() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("none");
        let both = args(&["--vary", "shared", "--vary", "memory", "--vary", "writes-first"], &out);
        let error = both.run_until(&AtomicBool::new(false)).expect_err("they contradict each other");
        assert!(error.to_string().contains("shared and writes-first"), "{error}");
        assert!(!out.exists());
    }

    #[test]
    fn papers_and_single_claims_may_be_asked_for() {
        let all = [("cas", 49), ("dv", 30), ("gargamel", 26), ("wan", 37), ("invalidation", 25)]
            .map(|(paper, claims)| (paper.to_owned(), claims));
        assert_eq!(count(&[]), Ok(all.to_vec()));
        assert_eq!(count(&["dv"]), Ok(vec![("dv".to_owned(), 30)]));
        assert_eq!(count(&["onecopy"]), Ok(vec![("onecopy".to_owned(), 5)]));
        assert_eq!(
            count(&["cas-12", "dv-01", "cas-12"]),
            Ok(vec![("cas".to_owned(), 1), ("dv".to_owned(), 1)])
        );
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let error = count(&["cas-50"]).expect_err("there is none");
        assert_eq!(
            error,
            "there is no paper or claim cas-50: choose cas, or cas-01 to cas-49; dv, or dv-01 to dv-30; gargamel, or \
             gargamel-01 to gargamel-26; wan, or wan-01 to wan-37; invalidation, or invalidation-01 to invalidation-25; onecopy, or onecopy-01 to onecopy-05"
        );
    }
}
