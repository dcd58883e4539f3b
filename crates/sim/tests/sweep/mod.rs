//! Runs a scenario for many seeds. A failure prints its seed and the command that replays it, and keeps its trace.

use std::fmt::Write as _;
use std::path::PathBuf;

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
    /// The protocol under test.
    pub protocol: fn(usize, Csn) -> Box<dyn Protocol>,
}

impl Sweep {
    /// Runs every seed, or the one that `ONECOPY_SEED` names.
    ///
    /// # Panics
    /// At the first seed that fails.
    #[allow(dead_code, reason = "every test file is compiled by itself")]
    pub fn expect_kept(&self) -> Statistics {
        let mut total = Statistics::default();
        let replayed = variable("ONECOPY_SEED");
        let first = replayed.or_else(|| variable("ONECOPY_FIRST_SEED")).unwrap_or(0);
        let seeds = if replayed.is_some() { 1 } else { variable("ONECOPY_SEEDS").unwrap_or(self.seeds) };
        for seed in first..first + seeds {
            let outcome = self.run(seed, false);
            if !outcome.failures.is_empty() {
                panic!("{}", self.explain(seed));
            }
            total.add(&outcome.statistics);
        }
        println!("{}: {seeds} seeds from {first}: {total:?}", self.test);
        total
    }

    /// The first seed for which something fails, with what.
    #[allow(dead_code, reason = "every test file is compiled by itself")]
    pub fn first_failure(&self) -> Option<(u64, Outcome)> {
        let outcomes = (0..self.seeds).map(|seed| (seed, self.run(seed, false)));
        outcomes.into_iter().find(|(_, outcome)| !outcome.failures.is_empty())
    }

    pub fn run(&self, seed: u64, keep_trace: bool) -> Outcome {
        let scenario = Scenario { keep_trace, ..(self.scenario)(seed) };
        run(&scenario, &self.protocol)
    }

    fn explain(&self, seed: u64) -> String {
        let outcome = self.run(seed, true);
        let mut text = format!("seed {seed} fails\n");
        for failure in outcome.failures.iter().take(5) {
            let _ = writeln!(text, "- {failure}");
        }
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{seed}.trace", self.test));
        match std::fs::write(&path, outcome.trace.unwrap_or_default()) {
            Ok(()) => _ = writeln!(text, "its trace: {}", path.display()),
            Err(error) => _ = writeln!(text, "its trace could not be written to {}: {error}", path.display()),
        }
        let (file, test) = (self.file, self.test);
        let _ = writeln!(
            text,
            "again: ONECOPY_SEED={seed} cargo test -p onecopy-sim --test {file} -- --exact {test}"
        );
        text
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{value}`")))
}
