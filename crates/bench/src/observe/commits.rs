//! Whether what clients were told of their transactions is what the database holds.

use std::collections::HashMap;
use std::fmt;

use futures_util::TryStreamExt;
use serde::Serialize;

use crate::connection::Target;
use crate::site::{Told, Witness, WitnessKey};
use crate::table::thousands;
use crate::{Error, Result};

/// What was told beside what was found. Transactions are those of the one kind that leaves rows to be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commits {
    /// Transactions whose COMMIT was acknowledged.
    pub acknowledged: u64,
    /// Of these, those that are not in the database.
    pub lost: u64,
    /// Rows that are there more than once, all but one of each counted.
    pub twice: u64,
    /// Transactions of which the client was told that they did not happen.
    pub rolled_back: u64,
    /// Of these, those that are in the database.
    pub happened_all_the_same: u64,
    /// Transactions of which the client was told nothing reliable, since its connection was lost at COMMIT.
    pub untold: u64,
    /// Of these, those that are in the database.
    pub untold_committed: u64,
    /// Rows of nobody.
    pub unexplained: u64,
}

impl Commits {
    pub(crate) fn of(
        told: &HashMap<WitnessKey, Told>,
        before: &HashMap<WitnessKey, u64>,
        found: &HashMap<WitnessKey, u64>,
    ) -> Commits {
        let mut commits = Commits::default();
        for (key, told) in told {
            let is_there = u64::from(found.contains_key(key));
            match told {
                Told::Committed => {
                    commits.acknowledged += 1;
                    commits.lost += 1 - is_there;
                }
                Told::RolledBack => {
                    commits.rolled_back += 1;
                    commits.happened_all_the_same += is_there;
                }
                Told::Nothing => {
                    commits.untold += 1;
                    commits.untold_committed += is_there;
                }
            }
        }
        for (key, count) in found {
            let expected = before.get(key).copied().unwrap_or(0);
            match told.get(key) {
                _ if *count == expected => {}
                None if expected == 0 => commits.unexplained += count,
                _ => commits.twice += count.saturating_sub(expected.max(1)),
            }
        }
        commits
    }

    /// What is wrong, in words.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let counts = [
            (self.lost, "acknowledged commits are lost"),
            (self.twice, "commits happened twice"),
            (self.happened_all_the_same, "transactions happened that were said to be rolled back"),
            (self.unexplained, "rows are of no transaction"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl fmt::Display for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} commits acknowledged: {} lost, {} twice; {} rolled back: {} happened all the same; {} untold: {} happened",
            thousands(self.acknowledged as f64),
            self.lost,
            self.twice,
            thousands(self.rolled_back as f64),
            self.happened_all_the_same,
            self.untold,
            self.untold_committed
        )
    }
}

/// All rows of a witness, and how often each is there.
pub(crate) async fn rows(dsn: &str, witness: &Witness) -> Result<HashMap<WitnessKey, u64>> {
    let client = Target::parse(dsn)?.connect().await?;
    let failed = || Error::database(format!("run {:?}", witness.rows));
    let none: [i64; 0] = [];
    let rows = client.query_raw(witness.rows, &none).await.map_err(failed())?;
    let mut rows = std::pin::pin!(rows);
    let mut found = HashMap::new();
    while let Some(row) = rows.try_next().await.map_err(failed())? {
        let key = [row.try_get(0).map_err(failed())?, row.try_get(1).map_err(failed())?];
        *found.entry(key).or_default() += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use onecopy_cluster::Server;

    use super::*;
    use crate::pgbench::Pgbench;
    use crate::site::{self, Crowd, Options};

    #[tokio::test]
    async fn deposit_that_is_lost_or_doubled_after_it_was_acknowledged_is_found() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let options = Options {
            target: server.dsn(),
            site: Pgbench { branches: 2, accounts: 100, ..Pgbench::default() },
            clients: 4,
            think_factor: 0.0,
            progress: false,
            ..Options::default()
        };
        site::load(&options).await.unwrap();
        let mut crowd = Crowd::open(&options).await.unwrap();
        let journal = crowd.keep_journal(Instant::now(), Duration::MAX, Pgbench::WITNESS);
        crowd.come(4, Duration::ZERO);
        let client = Target::parse(&options.target).unwrap().connect().await.unwrap();
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.batch_execute(others).await.unwrap();
        }
        let (collected, cut_off) = crowd.finish(Duration::from_secs(30)).await;
        let noted = journal.take();
        let errors: u64 = collected.errors.values().sum();
        assert!(errors > 0 && cut_off == 0, "{:?}", collected.errors);
        assert_eq!(noted.incidents.iter().filter(|incident| incident.code.is_some()).count() as u64, errors);

        let none = HashMap::new();
        let found = async || rows(&options.target, &Pgbench::WITNESS).await.unwrap();
        let commits = Commits::of(&noted.transactions, &none, &found().await);
        assert!(commits.acknowledged > 0, "{commits:?}");
        assert_eq!(commits.acknowledged, collected.transactions);
        assert_eq!(commits.wrong(), [""; 0]);

        let told = |key: &WitnessKey| noted.transactions.get(key) == Some(&Told::Committed);
        let acknowledged = *found().await.keys().find(|key| told(key)).unwrap();
        let [account, micros] = acknowledged;
        let one =
            format!("WHERE aid = {account} AND (extract(epoch FROM mtime) * 1000000)::bigint = {micros}");
        let double = format!("INSERT INTO pgbench_history SELECT * FROM pgbench_history {one}");
        client.batch_execute(&double).await.unwrap();
        let doubled = Commits::of(&noted.transactions, &none, &found().await);
        assert_eq!(doubled, Commits { twice: 1, ..commits });
        client.batch_execute(&format!("DELETE FROM pgbench_history {one}")).await.unwrap();
        let lost = Commits::of(&noted.transactions, &none, &found().await);
        assert_eq!(lost, Commits { lost: 1, ..commits });
    }

    #[test]
    fn whatever_differs_from_what_was_told_is_counted_as_what_it_is() {
        let told = HashMap::from([
            ([1, 0], Told::Committed),
            ([2, 0], Told::Committed),
            ([3, 0], Told::Committed),
            ([4, 0], Told::RolledBack),
            ([5, 0], Told::RolledBack),
            ([6, 0], Told::Nothing),
            ([7, 0], Told::Nothing),
        ]);
        let before = HashMap::from([([9, 0], 1)]);
        let found = [[1, 0], [3, 0], [5, 0], [6, 0], [8, 0], [9, 0]].into_iter().map(|key| (key, 1));
        let mut found: HashMap<WitnessKey, u64> = found.collect();
        found.insert([3, 0], 3);
        let commits = Commits::of(&told, &before, &found);
        let expected = Commits {
            acknowledged: 3,
            lost: 1,
            twice: 2,
            rolled_back: 2,
            happened_all_the_same: 1,
            untold: 2,
            untold_committed: 1,
            unexplained: 1,
        };
        assert_eq!((commits, commits.wrong().len()), (expected, 4));
        // What happened once and was told, or not told, is in order.
        let right = HashMap::from([([1, 0], 1), ([2, 0], 1), ([3, 0], 1), ([6, 0], 1), ([9, 0], 1)]);
        assert_eq!(Commits::of(&told, &before, &right).wrong(), [""; 0]);
    }
}
