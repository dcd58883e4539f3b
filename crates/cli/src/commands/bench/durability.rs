//! `onecopy bench durability`.

use super::cluster::skipped;
use super::or_all;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::cluster::durability::{self, ClientsAt, Durability, Load, Options};
use onecopy_bench::cluster::{Outcome, System};
use std::time::Duration;

/// Measure what it costs that decisions are durable: a cluster with its log in memory, on disk and on several nodes in turn.
///
/// As `bench cluster`, with servers that control groups hold to a part of a processor. Every load is measured with
/// `log.durability` set to memory, with it set to disk, and by several nodes on this machine that share a log on
/// their disks, one right after the other, in rounds of changing order; what is reported are ratios within a round,
/// beside the paper's, and the processors that onecopy and the servers took for them. With --uncapped it is this
/// machine as it is. Everything takes about an hour.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure: onecopy, conflict_aware, versioning, eager [default: conflict_aware,onecopy]
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    systems: Vec<System>,
    /// How many servers.
    #[arg(long, value_name = "N", default_value_t = Options::default().servers)]
    servers: u32,
    /// What clients do: tpcb (deposits as pgbench's), browsing, shopping, ordering (the bookstore) [default: all]
    #[arg(long, value_name = "LOAD", value_delimiter = ',')]
    loads: Vec<Load>,
    /// Where decisions are when they count: memory, disk, nodes [default: all]
    #[arg(long, value_name = "LEVEL", value_delimiter = ',')]
    levels: Vec<Durability>,
    /// How many nodes there are at the level nodes.
    #[arg(long, value_name = "N", default_value_t = Options::default().nodes)]
    nodes: u32,
    /// To which of the nodes clients connect: any (as many to each), leader
    #[arg(long, value_name = "NODE", default_value_t = Options::default().clients_at)]
    clients_at: ClientsAt,
    /// Rounds; each measures every load at every level. With fewer than 6 the interval is all of them.
    #[arg(long, value_name = "N", default_value_t = Options::default().rounds, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What one server may use, in processors [default: 0.05]
    #[arg(long, value_name = "PART")]
    cap: Option<f64>,
    /// Let servers use what they can; no control groups are needed then, and this machine is what bounds.
    #[arg(long, conflicts_with = "cap")]
    uncapped: bool,
    /// Seconds of one measurement that count.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().duration.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Seconds before them, in which clients come and settle.
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().ramp.as_secs())]
    ramp: u64,
    /// Clients, who make no pauses [default: 12 for each server, at most 64, each with a connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// How many books the store has: 1000, 10000, ...
    #[arg(long, default_value_t = Options::default().items)]
    items: i64,
    /// How many branches the bank has, of 1,000 accounts each. Every deposit changes its branch, so fewer make more of them wait.
    #[arg(long, default_value_t = Options::default().branches, value_parser = clap::value_parser!(i64).range(1..))]
    branches: i64,
    /// The same seed gives the same bookstore and clients.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    #[command(flatten)]
    made: super::Made,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let all = Options::default();
        let options = Options {
            systems: or_all(self.systems, all.systems),
            servers: self.servers,
            loads: or_all(self.loads, all.loads),
            levels: or_all(self.levels, all.levels),
            nodes: self.nodes,
            clients_at: self.clients_at,
            rounds: self.rounds,
            cap: self.cap.or(all.cap).filter(|_| !self.uncapped),
            duration: Duration::from_secs(self.duration),
            ramp: Duration::from_secs(self.ramp),
            clients: self.clients,
            items: self.items,
            branches: self.branches,
            seed: self.seed,
            workplace: self.made.workplace()?,
        };
        match durability::run(&options).await? {
            Outcome::Measured(report) => Ok(print(report)?),
            Outcome::Skipped(why) => Ok(print(format!("{} (--uncapped does without)", skipped(&why)))?),
        }
    }
}
