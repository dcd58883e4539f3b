//! `onecopy calibrate`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::tpcw::{self, Calibrate, Options};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measure what each class of statement of the TPC-W bookstore costs, for the laboratory.
///
/// One client walks through a loaded bookstore (`onecopy bench load`) without pauses, all three mixes in turn. The
/// costs are means of one database that has nothing else to do. The profile that is written can be simulated.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the bookstore is: "host=127.0.0.1 port=5432 user=postgres dbname=postgres", or a postgresql:// URL.
    #[arg(long, value_name = "DSN")]
    target: String,
    /// The file for the profile [default: none, the costs are only shown]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The profile's name.
    #[arg(long, default_value = "calibrated")]
    name: String,
    /// Seconds that count.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    warm_up: u64,
    /// What applying a write costs, as a part of what executing it costs.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    apply_factor: f64,
    /// Milliseconds that a write of the log to disk takes [default: measured, in the folder of the profile or here]
    #[arg(long, value_name = "MS")]
    log_write: Option<f64>,
    /// The target is onecopy: its log's write is taken off the cost of commits.
    #[arg(long)]
    through_onecopy: bool,
    /// Declare each transaction's tables, as the papers' protocols want it.
    #[arg(long)]
    declare: bool,
    /// How statements are sent: prepared or simple.
    #[arg(long, default_value_t = Options::default().protocol)]
    protocol: tpcw::Protocol,
    /// The same seed gives the same customers.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
}

impl Args {
    /// Calibrates to the end.
    ///
    /// # Errors
    /// When there is no bookstore, the target refuses something, or the profile cannot be written.
    pub fn run(self) -> Result<(), CommandError> {
        let factor_or_time = [Some(self.apply_factor), self.log_write];
        if factor_or_time.into_iter().flatten().any(|value| !value.is_finite() || value < 0.0) {
            return Err("--apply-factor and --log-write must be numbers of at least 0".into());
        }
        let on_write = |out: &Path, error| format!("write the profile {}: {error}", out.display());
        if let Some(out) = &self.out {
            try_to_write(out).map_err(|error| on_write(out, error))?;
        }
        let folder = self.out.as_deref().and_then(Path::parent).filter(|path| !path.as_os_str().is_empty());
        let log_write_ms = match self.log_write {
            Some(given) => given,
            None => tpcw::log_write_ms(folder.unwrap_or(Path::new(".")))?,
        };
        let options = Options {
            target: self.target,
            seed: self.seed,
            protocol: self.protocol,
            declare: self.declare,
            ..Options::default()
        };
        let how = Calibrate {
            name: self.name,
            warm_up: Duration::from_secs(self.warm_up),
            duration: Duration::from_secs(self.duration),
            apply_factor: self.apply_factor,
            log_write_ms,
            through_onecopy: self.through_onecopy,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let calibration = runtime.block_on(tpcw::calibrate(&options, &how))?;
        let kept = self.out.map_or(Ok(()), |out| {
            std::fs::write(&out, calibration.to_toml()).map_err(|error| on_write(&out, error))
        });
        // What took a minute to measure is shown, even if it cannot be kept.
        print(calibration)?;
        Ok(kept?)
    }
}

/// Whether a file can be written later; nothing is changed.
fn try_to_write(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// What is said if nobody answers at the target.
    fn said(out: &Path) -> String {
        let out = out.to_str().expect("temporary folders have names in ASCII");
        let target = "host=127.0.0.1 port=1 user=nobody";
        let line = ["calibrate", "--target", target, "--log-write", "1", "--out", out];
        Line::parse_from(line).args.run().expect_err("nobody answers").to_string()
    }

    #[test]
    fn a_profile_that_could_not_be_written_is_refused_before_anything_is_measured() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = said(folder.path());
        assert!(error.starts_with("write the profile"), "{error}");
        let path = folder.path().join("profile.toml");
        assert!(said(&path).starts_with("connect to"), "{}", said(&path));
        assert!(!path.exists());
        std::fs::write(&path, "before").expect("it is written");
        assert!(said(&path).starts_with("connect to"));
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "before");
    }
}
