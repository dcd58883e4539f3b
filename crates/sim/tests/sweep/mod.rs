//! Runs a scenario for many seeds. A failure prints its seed and the command that replays it, and keeps its trace.

use std::fmt::Write as _;
use std::path::PathBuf;

use onecopy_core::commit_order::Tuning;
use onecopy_core::{Csn, Protocol};
use onecopy_sim::{Outcome, Scenario, Statistics, run};

/// A property that must hold for every seed.
pub struct Sweep {
    /// The file of the test, `--test` of cargo.
    pub file: &'static str,
    /// The test, to select it by name.
    pub test: &'static str,
    /// How many seeds are tried, unless `ONECOPY_SEEDS` says otherwise.
    pub seeds: u64,
    /// The run of a seed.
    pub scenario: fn(u64) -> Scenario,
    /// The protocol under test; only the default one can be tuned.
    pub protocol: fn(usize, Csn, Tuning) -> Box<dyn Protocol>,
}

impl Sweep {
    /// Runs every seed, or only the one that `ONECOPY_SEED` names and then gives no statistics.
    ///
    /// # Panics
    /// At the first seed that fails.
    #[allow(dead_code, reason = "every test file is compiled by itself")]
    pub fn expect_kept(&self) -> Option<Statistics> {
        if let Some(seed) = variable("ONECOPY_SEED") {
            let outcome = self.run(seed, true);
            println!("{}, seed {seed}: {:?}", self.test, outcome.statistics);
            println!("{}", keep_trace(self.test, seed, &outcome));
            assert!(outcome.failures.is_empty(), "{}", self.explain(seed));
            return None;
        }
        let first = variable("ONECOPY_FIRST_SEED").unwrap_or(0);
        let seeds = variable("ONECOPY_SEEDS").unwrap_or(self.seeds);
        let mut total = Statistics::default();
        for seed in first..first + seeds {
            let outcome = self.run(seed, false);
            assert!(outcome.failures.is_empty(), "{}", self.explain(seed));
            total.add(&outcome.statistics);
        }
        println!("{}: {seeds} seeds from {first}: {total:?}", self.test);
        Some(total)
    }

    pub fn run(&self, seed: u64, keep_trace: bool) -> Outcome {
        let scenario = Scenario { keep_trace, ..(self.scenario)(seed) };
        run(&scenario, &|replicas, decided| (self.protocol)(replicas, decided, scenario.tuning))
    }

    fn explain(&self, seed: u64) -> String {
        let outcome = self.run(seed, true);
        let mut text = format!("seed {seed} fails\n");
        for failure in outcome.failures.iter().take(5) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- {failure}");
        }
        let (file, test) = (self.file, self.test);
        let _ = writeln!(text, "{}", keep_trace(test, seed, &outcome));
        let _ = writeln!(
            text,
            "again: ONECOPY_SEED={seed} cargo test -p onecopy-sim --test {file} -- --exact {test}"
        );
        text
    }
}

/// Writes a run's trace to a file. Says which, or why not.
fn keep_trace(test: &str, seed: u64, outcome: &Outcome) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{seed}.trace"));
    match std::fs::write(&path, outcome.trace.as_deref().unwrap_or_default()) {
        Ok(()) => format!("its trace: {}", path.display()),
        Err(error) => format!("its trace could not be written to {}: {error}", path.display()),
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{value}`")))
}
