//! pgbench's tables and its two best known scripts against any DSN, by drivers' means: what is between may prepare, and clients
//! try again.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::{pgbench, site};
//! let target = "host=127.0.0.1 port=6432 user=postgres".into();
//! let options = pgbench::Options { target, ..pgbench::Options::default() };
//! site::load(&options).await?;
//! println!("{}", site::run(&options).await?);
//! println!("{}", site::check(&options).await?);
//! # Ok(()) }
//! ```

use onecopy_workload::pgbench::{self, ACCOUNTS, Bencher, Kind, Scale};
use onecopy_workload::site::Check;
use onecopy_workload::{Catalogue, Timestamp, random};

use crate::site::{self, Website, Witness};
use crate::table::thousands;
use crate::{Error, Result};

/// What to load and what to run.
pub type Options = site::Options<Pgbench>;

/// The tables of pgbench.
#[derive(Clone, Copy, Debug)]
pub struct Pgbench {
    /// Branches, what pgbench calls its scale.
    pub branches: i64,
    /// Accounts of each branch.
    pub accounts: i64,
    /// What clients do.
    pub script: Kind,
}

impl Default for Pgbench {
    /// Ten branches, and deposits.
    fn default() -> Self {
        Pgbench { branches: 10, accounts: ACCOUNTS, script: Kind::TpcbLike }
    }
}

impl Pgbench {
    /// The history, in which no two rows have the same account and microsecond: the clients' clock is read for each.
    pub(crate) const WITNESS: Witness = Witness {
        statement: "tpcb.deposit.history",
        params: [2, 4],
        rows: "SELECT aid::bigint, (extract(epoch FROM mtime) * 1000000)::bigint FROM pgbench_history",
    };
}

impl Website for Pgbench {
    type Population = Scale;
    type User = Bencher;

    const NAME: &'static str = "bank of pgbench";
    const TITLE: &'static str = "pgbench";
    const USERS: &'static str = "clients";
    const COMMAND: &'static str = "pgbench";
    const LOAD_OPTIONS: &'static str = " --site pgbench";
    const MARK_TABLE: &'static str = "pgbench_bank";
    const SCALE: [&'static str; 2] = ["branches", "accounts"];
    const IDS: &'static [&'static [(&'static str, &'static str)]] = &[];

    fn catalogue() -> &'static Catalogue {
        pgbench::catalogue()
    }

    fn scale(&self) -> [i64; 2] {
        [self.branches, self.accounts]
    }

    fn of_scale(&self, [branches, accounts]: [i64; 2]) -> Self {
        Pgbench { branches, accounts, ..*self }
    }

    fn of_paper_size() -> Self {
        Pgbench::default()
    }

    fn population(&self, _seed: u64, _loaded_at: Timestamp) -> Result<Scale> {
        let possible = "there must be a branch and an account, and no more than 2,147,483,647 of any kind";
        Scale::new(self.branches, self.accounts).ok_or_else(|| Error::Option(possible.to_owned()))
    }

    fn size(&self) -> String {
        let (branches, accounts) = (thousands(self.branches as f64), thousands(self.accounts as f64));
        format!("{branches} branches, {accounts} accounts each")
    }

    fn mix(&self) -> &'static str {
        self.script.as_str()
    }

    fn metric(&self) -> &'static str {
        "transactions/s"
    }

    fn user(&self, population: &Scale, seed: u64, number: u32, _users: u32, _highest: &[i64]) -> Bencher {
        Bencher::new(self.script, *population, random::stream(seed, u64::from(number)))
    }

    fn checks(_population: &Scale) -> Vec<Check<Scale>> {
        pgbench::checks()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onecopy_cluster::Server;

    use super::*;
    use crate::connection::{Protocol, Target};

    #[tokio::test]
    async fn both_scripts_run_in_both_protocols_and_a_lost_deposit_breaks_the_rules() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let site = Pgbench { branches: 2, accounts: 1_000, ..Pgbench::default() };
        let mut options = Options {
            target: server.dsn(),
            site,
            clients: 3,
            ramp: Duration::ZERO,
            duration: Duration::from_millis(500),
            progress: false,
            ..Options::default()
        };
        let loaded = site::load(&options).await.unwrap();
        assert_eq!(loaded.rows(), 2 + 20 + 2_000);
        for (script, protocol) in [
            (Kind::TpcbLike, Protocol::Prepared),
            (Kind::SelectOnly, Protocol::Simple),
            (Kind::TpcbLike, Protocol::Simple),
            (Kind::SelectOnly, Protocol::Prepared),
        ] {
            (options.site.script, options.protocol) = (script, protocol);
            let report = site::run(&options).await.unwrap();
            assert!(report.completed > 0 && report.errors.is_empty(), "{report}");
        }
        let report = site::check(&options).await.unwrap();
        assert!(report.holds(), "{report}");

        let client = Target::parse(&options.target).unwrap().connect().await.unwrap();
        options.duration = Duration::from_secs(2);
        let held = async {
            client.batch_execute("BEGIN; LOCK TABLE pgbench_accounts").await.unwrap();
            tokio::time::sleep(Duration::from_millis(900)).await;
            client.batch_execute("COMMIT").await.unwrap();
        };
        let (report, ()) = tokio::join!(site::run(&options), held);
        let stall_ms = report.unwrap().longest_stall_ms;
        assert!(stall_ms > 300.0, "requests waited for the table, the longest {stall_ms} ms");

        let client = Target::parse(&options.target).unwrap().connect().await.unwrap();
        let lose = "DELETE FROM pgbench_history WHERE ctid = (SELECT min(ctid) FROM pgbench_history WHERE delta <> 0)";
        assert_eq!(client.execute(lose, &[]).await.unwrap(), 1);
        let broken =
            site::check(&options).await.unwrap().checked.iter().filter(|c| c.violations == 1).count();
        assert_eq!(broken, 3);
    }
}
