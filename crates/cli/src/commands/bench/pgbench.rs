//! `onecopy bench pgbench`.

use super::site::{Transactions, Visits};
use crate::CommandError;
use onecopy_bench::pgbench::Pgbench;
use onecopy_workload::pgbench::Kind;

/// Let clients run a script of pgbench, by prepared statements as drivers send them, and try again after conflicts.
///
/// The tables are loaded first if they are not there. They are pgbench's, and those that pgbench itself has made are in the way.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many branches the bank has, what pgbench calls its scale.
    #[arg(long, default_value_t = Pgbench::default().branches)]
    branches: i64,
    /// How many accounts each branch has.
    #[arg(long, default_value_t = Pgbench::default().accounts)]
    accounts: i64,
    /// What clients do: tpcb-like (a deposit) or select-only (one account's balance).
    #[arg(long, default_value_t = Pgbench::default().script)]
    script: Kind,
    #[command(flatten)]
    visits: Visits,
    #[command(flatten)]
    transactions: Transactions,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let site = Pgbench { branches: self.branches, accounts: self.accounts, script: self.script };
        self.visits.run(site, self.transactions).await
    }
}
