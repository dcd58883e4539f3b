//! TPC-W against any DSN.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::tpcw::{self, Options};
//! let options = Options { target: "host=127.0.0.1 port=6432 user=postgres".into(), ..Options::default() };
//! tpcw::load(&options).await?;
//! println!("{}", tpcw::run(&options).await?);
//! println!("{}", tpcw::check(&options).await?);
//! # Ok(()) }
//! ```

pub(crate) mod bookstore;
mod calibrate;

use std::path::PathBuf;
use std::time::Duration;

use onecopy_workload::tpcw::MixName;
use onecopy_workload::tpcw::Scale;

pub use crate::connection::Protocol;
use crate::site::now;
pub use crate::site::{
    CheckReport, Checked, Counted, Latency, LoadReport, PageReport, Report, Sample, Second, check, load, run,
};
pub(crate) use crate::site::{Collected, Crowd};
use crate::{Error, Result};
pub use calibrate::{Calibrate, Calibrated, Calibration, MET_MIN, calibrate, log_write_ms};
pub(crate) use calibrate::{Walk, calibrate_beside};

/// What to load and what to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host=... port=... user=... dbname=...` or a URL. Connections are not encrypted.
    pub target: String,
    /// Books in the store: 1,000, 10,000, ...
    pub items: i64,
    /// Emulated browsers that the customers are counted for: 2,880 customers each.
    pub browsers: i64,
    /// For [`load`]: replace a bookstore of another scale or seed.
    pub reload: bool,
    /// How customers walk.
    pub mix: MixName,
    /// Emulated customers at work.
    pub clients: u32,
    /// Database connections that they share; `None` is one each, at most 64.
    pub connections: Option<u32>,
    /// Pauses between pages are multiplied by this; 0 lets customers click as fast as pages come.
    pub think_factor: f64,
    /// Time at the beginning that does not count; the customers come one after the other during it.
    pub ramp: Duration,
    /// Time that counts.
    pub duration: Duration,
    /// How long a page may take before the customer leaves.
    pub page_timeout: Duration,
    /// The same seed gives the same bookstore, and the same customers up to what the answers decide.
    pub seed: u64,
    /// How statements are sent.
    pub protocol: Protocol,
    /// An isolation level such as `SERIALIZABLE` for BEGIN; `None` leaves it to the server.
    pub isolation: Option<String>,
    /// Tell the target which tables each transaction will touch, and which it has used for the last time, as the papers'
    /// protocols want it; to others these are comments.
    pub declare: bool,
    /// How often a transaction runs again after SQLSTATE 40001 or 40P01 before the customer leaves.
    pub retries_max: u32,
    /// A folder for results; a new folder is made in it for each run.
    pub results: Option<PathBuf>,
    /// Show progress on standard error.
    pub progress: bool,
}

impl Default for Options {
    /// The shopping mix for half a minute, with pauses a tenth as long, in the smallest bookstore.
    fn default() -> Self {
        Options {
            target: String::new(),
            items: 1_000,
            browsers: 1,
            reload: false,
            mix: MixName::Shopping,
            clients: 50,
            connections: None,
            think_factor: 0.1,
            ramp: Duration::from_secs(3),
            duration: Duration::from_secs(30),
            page_timeout: Duration::from_secs(60),
            seed: 1,
            protocol: Protocol::Prepared,
            isolation: None,
            declare: false,
            retries_max: 20,
            results: None,
            progress: true,
        }
    }
}

impl Options {
    pub(crate) fn scale(&self) -> Result<Scale> {
        Scale::new(self.items, self.browsers).map_err(|error| Error::Option(error.to_string()))
    }

    /// Connections to open.
    pub(crate) fn connection_count(&self) -> u32 {
        self.connections.unwrap_or(self.clients.min(64)).clamp(1, self.clients.max(1))
    }

    pub(crate) fn begin(&self) -> Result<String> {
        let Some(level) = &self.isolation else { return Ok("BEGIN".to_owned()) };
        let level = level.to_uppercase();
        match level.as_str() {
            "SERIALIZABLE" | "REPEATABLE READ" | "READ COMMITTED" => {
                Ok(format!("BEGIN ISOLATION LEVEL {level}"))
            }
            _ => Err(Error::Option(format!(
                "there is no isolation level {level:?}: choose serializable, repeatable read or read committed"
            ))),
        }
    }
}

/// The time to the second, fit for a file's name.
pub(crate) fn time_stamp() -> String {
    now().to_string().replace([' ', ':'], "-").chars().take(19).collect()
}
