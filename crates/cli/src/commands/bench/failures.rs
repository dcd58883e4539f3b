//! `onecopy bench failures`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::failures::{self, Fault, Load, Options, Outcome};
use std::time::Duration;

/// Let replicas or nodes fail under load, and report what clients notice: errors, stalls, and whether anything was lost.
///
/// Makes a cluster of its own, serves and loads it, and lets clients work without an end. Each round injects one fault at a random
/// moment into a random replica, heals it, and waits until the replica is back in service. Afterwards all replicas are
/// compared, the site's rules are checked, and each transaction is looked for as its client was told of it. Fails if
/// replicas differ, a rule is broken or a commit was lost.
///
/// With several nodes (--nodes) clients are spread over them, and a fault may meet nodes instead: it is over when all replicas are in
/// service and a transaction has succeeded through every node. Fails also if clients of the other nodes met more than 40001 and
/// 08007 on updates.
///
/// Faults: kill (kill -9 of the server with all its processes, started again after 3 s), stop (SIGSTOP of all of them for 30 s), sessions
/// (pg_terminate_backend of every session), backend (kill -9 of one backend), restart (immediate), full (no room on its
/// disk for 10 s; needs root, on Linux). Of nodes: leader (kill -9 of the one that leads, started again after 3 s), node (the
/// same of one that does not), pause (SIGSTOP of the one that leads for 10 s), each with three nodes or more; all (kill -9 of
/// all nodes and of all servers with all their processes, started again at once).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What clients do: tpcw (the bookstore, shopping) or pgbench (TPC-B-like deposits).
    #[arg(long, default_value_t = Options::default().load)]
    load: Load,
    /// What happens, round by round in turn: kill, stop, sessions, backend, restart, full; leader, node, pause, all.
    #[arg(long, value_name = "FAULT", value_delimiter = ',', default_value = "kill")]
    fault: Vec<Fault>,
    /// How many faults are injected.
    #[arg(long, value_name = "N", default_value_t = Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The same seed gives the same faults at the same replicas after the same times, and the same users.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// How many servers.
    #[arg(long, value_name = "N", default_value_t = Options::default().replicas, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// How many onecopy processes, which share a log if there are several.
    #[arg(long, value_name = "N", default_value_t = Options::default().nodes, value_parser = clap::value_parser!(u32).range(1..=9))]
    nodes: u32,
    /// Clients, each with a connection, at most 64 of these [default: 50 customers under tpcw, 16 under pgbench]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// Factor on the pauses between pages [default: 0.1 under tpcw, none under pgbench]
    #[arg(long, value_name = "FACTOR")]
    think: Option<f64>,
    /// Seconds without a fault at the beginning of each round, to which a random part of as much is added, and at its end.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().calm.as_secs_f64())]
    calm: f64,
    /// Seconds that a fault lasts that is not over at once [default: as above]
    #[arg(long, value_name = "SECONDS")]
    lasts: Option<f64>,
    /// `pool.silence_timeout_ms` of the configuration: milliseconds until a server that hangs is taken for lost.
    #[arg(long, value_name = "MS", default_value_t = Options::default().silence_timeout_ms)]
    silence_timeout: u64,
    /// How many books the store has: 1000, 10000, ...
    #[arg(long, default_value_t = Options::default().items)]
    items: i64,
    /// How many branches the bank has.
    #[arg(long, default_value_t = Options::default().branches)]
    branches: i64,
    /// How many accounts each branch has.
    #[arg(long, default_value_t = Options::default().accounts)]
    accounts: i64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let options = Options {
            load: self.load,
            faults: self.fault,
            rounds: self.rounds,
            replicas: self.replicas,
            nodes: self.nodes,
            clients: self.clients,
            think_factor: self.think,
            calm: Duration::try_from_secs_f64(self.calm)?,
            lasts: self.lasts.map(Duration::try_from_secs_f64).transpose()?,
            silence_timeout_ms: self.silence_timeout,
            items: self.items,
            branches: self.branches,
            accounts: self.accounts,
            seed: self.seed,
            workplace: self.made.workplace()?,
        };
        let report = match failures::run(&options).await? {
            Outcome::Measured(report) => report,
            Outcome::Skipped(why) => return Ok(print(format!("skipped: {why}"))?),
        };
        print(&report)?;
        let wrong = report.wrong();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
    }
}
