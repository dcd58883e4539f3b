//! Runs pgbench and reads what it says.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use onecopy_cluster::Binaries;
use serde::Serialize;
use tokio::process::Command;

use super::{Load, Options};
use crate::site::Latency;
use crate::{Error, Result};

/// How long pgbench may take beyond its duration, for connecting and ending.
const GRACE: Duration = Duration::from_secs(30);
/// Filling the tables may take this long for each unit of scale, beside a minute.
const FILL_TIME: Duration = Duration::from_secs(20);

/// What pgbench says of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Transactions per second, without the time to connect.
    pub tps: f64,
    /// Transactions completed.
    pub transactions: u64,
    /// Transactions that failed with a serialization failure or deadlock.
    pub failed: u64,
    /// Response times, from a sample of the transactions.
    pub latency: Latency,
    /// Mean response time of all transactions, in milliseconds.
    pub mean_ms: f64,
}

/// pgbench, ready to run.
pub(super) struct Pgbench {
    program: PathBuf,
    clients: u32,
    scale: u32,
    logs: PathBuf,
}

impl Pgbench {
    pub(super) fn new(binaries: &Binaries, options: &Options, folder: &Path) -> Self {
        let (clients, scale) = (options.clients, options.scale);
        Pgbench { program: binaries.program("pgbench"), clients, scale, logs: folder.join("pgbench-logs") }
    }

    /// Makes and fills the tables.
    pub(super) async fn fill(&self, dsn: &str) -> Result<()> {
        let scale = self.scale.to_string();
        let limit = Duration::from_secs(60) + FILL_TIME * self.scale;
        let filled = self.call(&["-i", "-q", "-s", &scale, dsn], limit).await;
        if filled.is_ok() {
            return Ok(());
        }
        // Somebody in between who cannot COPY ... WITH (FREEZE) or VACUUM; the same rows are made on the server then.
        self.call(&["-i", "-q", "-I", "dtGp", "-s", &scale, dsn], limit).await.map(drop)
    }

    /// Runs a load for so long.
    pub(super) async fn run(&self, load: Load, dsn: &str, duration: Duration) -> Result<Run> {
        // Left over by a run that was cut off.
        let _ = std::fs::remove_dir_all(&self.logs);
        std::fs::create_dir_all(&self.logs).map_err(Error::file("create", &self.logs))?;
        let clients = if load.is_latency() { 1 } else { self.clients };
        // More threads than processors only get in each other's way.
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let prefix = self.logs.join("log");
        let args = [
            "-n".to_owned(),
            "-b".to_owned(),
            if load.is_tpcb() { "tpcb-like" } else { "select-only" }.to_owned(),
            "-M".to_owned(),
            if load.is_prepared() { "prepared" } else { "simple" }.to_owned(),
            format!("-c{clients}"),
            format!("-j{}", clients.min(processors)),
            format!("-s{}", self.scale),
            format!("-T{}", duration.as_secs().max(1)),
            "-l".to_owned(),
            // Some thousands of transactions are enough for percentiles, and cost next to nothing.
            format!("--sampling-rate={}", if load.is_tpcb() { 0.2 } else { 0.05 }),
            format!("--log-prefix={}", prefix.display()),
            dsn.to_owned(),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = self.call(&args, duration + GRACE).await?;
        let latency = Latency::of(self.sampled_us());
        let _ = std::fs::remove_dir_all(&self.logs);
        parse(&said, latency)
            .ok_or_else(|| Error::program("pgbench", format!("said something unexpected:\n{said}")))
    }

    /// Standard output of a successful call.
    async fn call(&self, args: &[&str], limit: Duration) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        let output = match tokio::time::timeout(limit, command.output()).await {
            Err(_) => {
                return Err(Error::program("pgbench", format!("did not end within {} s", limit.as_secs())));
            }
            Ok(output) => output.map_err(Error::file("run", &self.program))?,
        };
        let complaint = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(Error::program("pgbench", worst_line(&complaint)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Response times in the logs: the third field of each line, in microseconds.
    fn sampled_us(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(&self.logs) else { return Vec::new() };
        let mut times = Vec::new();
        for entry in entries.flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            times.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok()));
        }
        times
    }
}

/// The first line that tells of an error, or the last that there is.
fn worst_line(complaint: &str) -> String {
    let telling = complaint
        .lines()
        .find(|line| line.contains("error") || line.contains("ERROR") || line.contains("FATAL"));
    let line = telling.or(complaint.lines().last()).unwrap_or("ended with an error and said nothing");
    line.trim_start_matches("pgbench: ").to_owned()
}

fn parse(said: &str, latency: Latency) -> Option<Run> {
    let after = |label: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(label))?;
        line.trim_start().split([' ', '/']).next()
    };
    Some(Run {
        tps: after("tps = ")?.parse().ok()?,
        transactions: after("number of transactions actually processed:")?.parse().ok()?,
        failed: after("number of failed transactions:").and_then(|count| count.parse().ok()).unwrap_or(0),
        mean_ms: after("latency average = ")?.parse().ok()?,
        latency,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_15_says_is_read() {
        let said = "transaction type: <builtin: select only>\nscaling factor: 10\nquery mode: simple\n\
            number of clients: 8\nnumber of threads: 2\nmaximum number of tries: 1\nduration: 5 s\n\
            number of transactions actually processed: 254321\nnumber of failed transactions: 12 (0.005%)\n\
            latency average = 0.157 ms\ninitial connection time = 12.345 ms\n\
            tps = 50987.654321 (without initial connection time)\n";
        let run = parse(said, Latency::default()).unwrap();
        assert_eq!((run.transactions, run.failed), (254_321, 12));
        assert_eq!((run.tps, run.mean_ms), (50_987.654321, 0.157));
        assert_eq!(parse("pgbench: error", Latency::default()), None);
    }

    #[test]
    fn the_telling_line_of_a_complaint_is_found() {
        let complaint =
            "pgbench: starting\npgbench: error: client 3 aborted\npgbench: error: Run was aborted\n";
        assert_eq!(worst_line(complaint), "error: client 3 aborted");
        assert_eq!(worst_line(""), "ended with an error and said nothing");
    }
}
