//! `onecopy bench`: workloads against any PostgreSQL address.

mod auction;
mod bulletin_board;
mod chains;
mod check;
mod cluster;
mod compare;
mod durability;
mod failures;
mod load;
mod pgbench;
mod progress;
mod site;
mod tpcc;
mod tpcw;
mod upgrade;
mod wide_area;

use std::path::PathBuf;

use crate::CommandError;
use clap::Subcommand;
use onecopy_bench::Workplace;

/// Run a workload against any PostgreSQL address: a server, a proxy, or onecopy.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// What a benchmark that has servers of its own makes, and leaves.
#[derive(Debug, clap::Args)]
struct Made {
    /// Where a folder for the servers and the log is made, which goes afterwards, and so on which disk [default: among the temporary ones]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A folder for the results; each run makes a folder of its own in it.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

impl Made {
    /// As options of a benchmark, of this very program.
    fn workplace(self) -> Result<Workplace, CommandError> {
        let onecopy = std::env::current_exe()?;
        Ok(Workplace { onecopy, dir: self.dir, results: self.out, progress: !self.quiet })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Tpcw(tpcw::Args),
    Auction(auction::Args),
    BulletinBoard(bulletin_board::Args),
    Tpcc(tpcc::Args),
    Pgbench(pgbench::Args),
    Load(load::Args),
    Check(check::Args),
    Compare(compare::Args),
    Chains(chains::Args),
    Cluster(cluster::Args),
    Durability(durability::Args),
    Failures(failures::Args),
    Upgrade(upgrade::Args),
    Progress(progress::Args),
    WideArea(wide_area::Args),
}

impl Args {
    /// Runs the benchmark to its end.
    ///
    /// # Errors
    /// What kept it from its end.
    pub fn run(self) -> Result<(), CommandError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                Command::Tpcw(args) => args.run().await,
                Command::Auction(args) => args.run().await,
                Command::BulletinBoard(args) => args.run().await,
                Command::Tpcc(args) => args.run().await,
                Command::Pgbench(args) => args.run().await,
                Command::Load(args) => args.run().await,
                Command::Check(args) => args.run().await,
                Command::Compare(args) => args.run().await,
                Command::Chains(args) => args.run().await,
                Command::Cluster(args) => args.run().await,
                Command::Durability(args) => args.run().await,
                Command::Failures(args) => args.run().await,
                Command::Upgrade(args) => args.run().await,
                Command::Progress(args) => args.run().await,
                Command::WideArea(args) => args.run().await,
            }
        })
    }
}

/// What was given, or everything if that is nothing.
fn or_all<T>(given: Vec<T>, all: Vec<T>) -> Vec<T> {
    if given.is_empty() { all } else { given }
}
