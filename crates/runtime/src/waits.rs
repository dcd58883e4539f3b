//! Waiting that the scheduler does not see: in servers (for who reads a table that is to be locked whole), and for advisory
//! locks. Together with waiting for items it may close a cycle that neither finds: no server knows of items.
//!
//! As a server does by itself once somebody has waited for a second, it is looked who waits for whom; only while somebody
//! waits in the scheduler, since such a cycle has a member there.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use onecopy_core::{Event, ReplicaId, SessionId, TxnId};
use tokio::task::JoinSet;

use crate::advisory;
use crate::lane::LaneError;
use crate::pool::Pool;
use crate::server::Shared;

/// How long somebody waits before it is looked, and how often it is looked again: PostgreSQL's `deadlock_timeout`.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Somebody who waits or is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Party {
    Txn(TxnId),
    /// A server's process of which no transaction of the scheduler's is known: a read by itself, what is applied or parsed.
    Process(ReplicaId, u32),
    /// A session that is in no transaction.
    Session(SessionId),
}

/// Tells the scheduler who waits for whom outside of it, as long as it matters.
pub async fn watch(shared: Arc<Shared>) {
    let mut waited_before = HashSet::new();
    let mut has_told = false;
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        let waiting = shared.scheduler.status().waits_for;
        let waiting: HashSet<u64> = waiting.into_iter().map(|(waiter, _)| waiter).collect();
        let is_worth_it = waiting.iter().any(|waiter| waited_before.contains(waiter));
        waited_before = waiting;
        let waits = match is_worth_it {
            true => between_transactions(&look(&shared).await),
            false => Vec::new(),
        };
        if !waits.is_empty() || has_told {
            has_told = !waits.is_empty();
            shared.scheduler.handle(Event::WaitsOutside { waits });
        }
    }
}

/// Who waits for whom in all servers in service, and for advisory locks.
async fn look(shared: &Arc<Shared>) -> Vec<(Party, Party)> {
    let mut looking = JoinSet::new();
    for pool in shared.pools.in_service() {
        let (shared, pool) = (shared.clone(), pool.clone());
        looking.spawn(async move {
            let waits = pool.connector.in_time(waits_at(&shared, &pool)).await;
            waits.unwrap_or_else(|error| {
                // Whether the server is well, others look after.
                tracing::debug!(replica = pool.name(), %error, "ask who waits for whom");
                Vec::new()
            })
        });
    }
    let mut waits = for_advisory_locks(shared);
    while let Some(found) = looking.join_next().await {
        waits.extend(found.unwrap_or_default());
    }
    waits
}

async fn waits_at(shared: &Shared, pool: &Pool) -> Result<Vec<(Party, Party)>, LaneError> {
    let mut lane = pool.connector.connect_unmarked(&shared.agent).await?;
    // Unlike what pg_stat_activity says of other users' sessions, locks are shown to everybody.
    let rows = lane
        .query(
            "SELECT waiting.pid, blocking.pid FROM \
             (SELECT DISTINCT pid FROM pg_catalog.pg_locks WHERE NOT granted) waiting, \
             pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiting.pid)) blocking (pid)",
        )
        .await?;
    let txns: HashMap<u32, TxnId> = pool.transactions().into_iter().collect();
    let party = |pid: u32| match txns.get(&pid) {
        Some(txn) => Party::Txn(*txn),
        None => Party::Process(pool.replica, pid),
    };
    let pid = |value: &Option<String>| value.as_deref()?.parse().ok();
    Ok(rows
        .iter()
        .filter_map(|row| match row.as_slice() {
            [waiter, blocker] => Some((party(pid(waiter)?), party(pid(blocker)?))),
            _ => None,
        })
        .collect())
}

fn for_advisory_locks(shared: &Shared) -> Vec<(Party, Party)> {
    let party = |party: advisory::Party| party.txn.map_or(Party::Session(party.session), Party::Txn);
    let waits = shared.advisory_locks.waits().into_iter();
    waits.map(|[waiter, blocker]| (party(waiter), party(blocker))).collect()
}

/// Which transactions wait for which, directly or by way of others who are none.
fn between_transactions(waits: &[(Party, Party)]) -> Vec<(TxnId, TxnId)> {
    let mut blockers: HashMap<Party, Vec<Party>> = HashMap::new();
    for (waiter, blocker) in waits {
        blockers.entry(*waiter).or_default().push(*blocker);
    }
    let mut found = Vec::new();
    for waiter in blockers.keys() {
        let Party::Txn(txn) = *waiter else { continue };
        let mut met = HashSet::new();
        let mut left = vec![*waiter];
        while let Some(party) = left.pop() {
            for blocker in blockers.get(&party).into_iter().flatten() {
                if met.insert(*blocker) {
                    match *blocker {
                        // A cycle that a server sees as a whole is the server's to break.
                        Party::Txn(blocker) if blocker == txn => {}
                        Party::Txn(blocker) => found.push((txn, blocker)),
                        Party::Process(..) | Party::Session(_) => left.push(*blocker),
                    }
                }
            }
        }
    }
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);

    fn txn(id: u64) -> Party {
        Party::Txn(TxnId(id))
    }

    #[test]
    fn those_who_are_no_transactions_are_links_between_others() {
        let waits = [
            (txn(1), Party::Process(R0, 7)),
            (Party::Process(R0, 7), Party::Process(R0, 8)),
            (Party::Process(R0, 8), txn(2)),
            (txn(2), Party::Session(SessionId(7))),
            (Party::Session(SessionId(7)), txn(3)),
            // Of the same number, but at another server.
            (Party::Process(R1, 7), txn(4)),
        ];
        assert_eq!(between_transactions(&waits), [(TxnId(1), TxnId(2)), (TxnId(2), TxnId(3))]);
    }

    #[test]
    fn links_that_wait_for_each_other_are_followed_once_and_nobody_waits_for_itself() {
        let waits = [
            (txn(1), Party::Process(R0, 7)),
            (Party::Process(R0, 7), Party::Process(R0, 8)),
            (Party::Process(R0, 8), Party::Process(R0, 7)),
            (Party::Process(R0, 8), txn(1)),
            (Party::Process(R0, 8), txn(2)),
        ];
        assert_eq!(between_transactions(&waits), [(TxnId(1), TxnId(2))]);
    }
}
