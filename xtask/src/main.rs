//! `cargo xtask architecture`: proves the invariants that ARCHITECTURE.md states, from the sources and from cargo's
//! view of the dependencies.

mod dependencies;
mod rules;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("architecture") => architecture(),
        _ => {
            eprintln!("usage: cargo xtask architecture");
            ExitCode::from(2)
        }
    }
}

fn architecture() -> ExitCode {
    let outcome = rules::check(&workspace());
    match outcome {
        Err(error) => {
            eprintln!("architecture: {error}");
            ExitCode::FAILURE
        }
        Ok(report) if report.violations.is_empty() => {
            println!("architecture: {} rules hold in {} files", report.rules, report.files);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            for violation in &report.violations {
                eprintln!("{violation}");
            }
            eprintln!(
                "architecture: {} violations; ARCHITECTURE.md gives the reasons",
                report.violations.len()
            );
            ExitCode::FAILURE
        }
    }
}

/// The repository's root: this package lies directly below it.
fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}
