//! `onecopy calibrate`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::tpcw::{self, Calibrate, Options};
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
        if let Some(out) = &self.out {
            std::fs::write(out, calibration.to_toml())
                .map_err(|error| format!("write the profile {}: {error}", out.display()))?;
        }
        Ok(print(calibration)?)
    }
}
