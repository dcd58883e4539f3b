//! Waiting that the scheduler does not see: in servers (for who reads a table that is to be locked whole), and for advisory
//! locks. Together with waiting for items it may close a cycle that neither finds: no server knows of items.
//!
//! As a server does by itself once somebody has waited for a second, it is looked who waits for whom; only while somebody
//! waits in the scheduler or for an advisory lock, since such a circle has a member there. In the scheduler that one is given up;
//! if none waits there, a request for an advisory lock is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use onecopy_core::{Event, ReplicaId, SessionId, TxnId};
use tokio::task::JoinSet;

use crate::lane::LaneError;
use crate::pool::Pool;
use crate::server::Shared;
use crate::server::cancel::Whereabouts;

/// How long somebody waits before it is looked, and how often it is looked again: PostgreSQL's `deadlock_timeout`.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Somebody who waits or is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Party {
    Txn(TxnId),
    /// A server's process of which no transaction of the scheduler's is known: a read by itself, what is applied or parsed.
    Process(ReplicaId, u32),
    /// A session, which holds advisory locks, and gets on when its statement does.
    Session(SessionId),
}

/// Looks who waits for whom, and sees to it that circles end, as long as somebody waits for long.
pub async fn watch(shared: Arc<Shared>) {
    let mut waited_before = HashSet::new();
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        let waiting = who_waits(&shared);
        let is_worth_it = waiting.iter().any(|waiter| waited_before.contains(waiter));
        waited_before = waiting;
        if !is_worth_it {
            continue;
        }
        let found = Waits::of(look(&shared).await);
        let waits = found.between_transactions();
        if !waits.is_empty() {
            shared.scheduler.handle(Event::WaitsOutside { waits });
        }
        for session in found.victims() {
            shared.advisory_locks.refuse(session);
        }
    }
}

/// Who waits in the scheduler, or for an advisory lock: a circle that no server sees has such a member.
fn who_waits(shared: &Shared) -> HashSet<Party> {
    let in_core = shared.scheduler.waiting().into_iter().map(Party::Txn);
    let for_locks = shared.advisory_locks.waits().into_iter();
    in_core.chain(for_locks.map(|(session, _)| Party::Session(session))).collect()
}

/// Who waits for whom in all servers in service, and for advisory locks.
async fn look(shared: &Arc<Shared>) -> Vec<(Party, Party)> {
    let mut looking = JoinSet::new();
    for pool in shared.pools.in_service() {
        let (shared, pool) = (shared.clone(), pool.clone());
        looking.spawn(async move {
            // One that is silent, or leaves service, is not waited for: what others say would be old by then.
            let looked = tokio::time::timeout(LOOK_PAUSE, pool.while_up(waits_at(&shared, &pool))).await;
            match looked {
                Ok(Some(Ok(waits))) => waits,
                Ok(Some(Err(error))) => {
                    // Whether the server is well, others look after.
                    tracing::debug!(replica = pool.name(), %error, "ask who waits for whom");
                    Vec::new()
                }
                Ok(None) | Err(_) => Vec::new(),
            }
        });
    }
    let mut waits = Vec::new();
    while let Some(found) = looking.join_next().await {
        waits.extend(found.unwrap_or_default());
    }
    waits.extend(of_sessions(shared));
    waits
}

async fn waits_at(shared: &Shared, pool: &Pool) -> Result<Vec<(Party, Party)>, LaneError> {
    let mut lane = pool.connector.connect_unmarked(&shared.agent).await?;
    let before = parties_at(pool);
    // Unlike what pg_stat_activity says of other users' sessions, locks are shown to everybody.
    let rows = lane
        .query(
            "SELECT waiting.pid, blocking.pid FROM \
             (SELECT DISTINCT pid FROM pg_catalog.pg_locks WHERE NOT granted) waiting, \
             pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiting.pid)) blocking (pid)",
        )
        .await?;
    let after = parties_at(pool);
    // A lane that went on to another transaction meanwhile says nothing of either.
    let party = |pid: u32| Some(after(pid)).filter(|party| *party == before(pid));
    let pid = |value: &Option<String>| value.as_deref()?.parse().ok();
    Ok(rows
        .iter()
        .filter_map(|row| match row.as_slice() {
            [waiter, blocker] => Some((party(pid(waiter)?)?, party(pid(blocker)?)?)),
            _ => None,
        })
        .collect())
}

/// The processes of a server: those on which a transaction is open stand for that.
fn parties_at(pool: &Pool) -> impl Fn(u32) -> Party {
    let txns: HashMap<u32, TxnId> = pool.transactions().into_iter().collect();
    let replica = pool.replica;
    move |pid| txns.get(&pid).map_or(Party::Process(replica, pid), |txn| Party::Txn(*txn))
}

/// Sessions wait for those who hold advisory locks, and for their own statements.
fn of_sessions(shared: &Shared) -> Vec<(Party, Party)> {
    let parties: Vec<_> = shared.pools.iter().map(|pool| parties_at(pool)).collect();
    let session = Party::Session;
    let statements = shared.cancels.whereabouts().into_iter().filter_map(|(id, at)| match at {
        Whereabouts::Idle | Whereabouts::Locking { txn: None, .. } => None,
        Whereabouts::Locking { txn: Some(txn), .. } => Some((Party::Txn(txn), session(id))),
        Whereabouts::Waiting { txn, .. } => Some((session(id), Party::Txn(txn))),
        Whereabouts::OnLane { replica, backend } => {
            Some((session(id), parties.get(usize::from(replica.0))?(backend.pid)))
        }
        Whereabouts::Everywhere { spread, .. } => Some((session(id), Party::Txn(spread.txn))),
    });
    let for_locks = shared.advisory_locks.waits().into_iter();
    let for_locks = for_locks.map(|(waiter, blocker)| (session(waiter), session(blocker)));
    statements.chain(for_locks).collect()
}

/// Who waits for whom.
#[derive(Default)]
struct Waits(BTreeMap<Party, Vec<Party>>);

impl Waits {
    fn of(pairs: Vec<(Party, Party)>) -> Waits {
        let mut waits = Waits::default();
        for (waiter, blocker) in pairs {
            waits.0.entry(waiter).or_default().push(blocker);
        }
        waits
    }

    /// Whom one waits for, those for whom these wait with them, up to the first that count as an end.
    fn met_from(&self, waiter: Party, is_end: impl Fn(Party) -> bool) -> BTreeSet<Party> {
        let mut met = BTreeSet::new();
        let mut left = vec![waiter];
        while let Some(party) = left.pop() {
            for blocker in self.0.get(&party).into_iter().flatten() {
                if met.insert(*blocker) && !is_end(*blocker) {
                    left.push(*blocker);
                }
            }
        }
        met
    }

    /// Which transactions wait for which, directly or by way of others who are none.
    fn between_transactions(&self) -> Vec<(TxnId, TxnId)> {
        let mut found = Vec::new();
        for &waiter in self.0.keys() {
            let Party::Txn(txn) = waiter else { continue };
            let blockers = self.met_from(waiter, |party| matches!(party, Party::Txn(_)));
            found.extend(blockers.into_iter().filter_map(|blocker| match blocker {
                // A circle that is whole already is broken by who sees it: a server, or who refuses an advisory lock.
                Party::Txn(blocker) if blocker != txn => Some((txn, blocker)),
                _ => None,
            }));
        }
        found
    }

    /// Of each circle without a member in the scheduler a session that waits for an advisory lock, the youngest.
    fn victims(mut self) -> Vec<SessionId> {
        let mut victims = Vec::new();
        let waits_for_lock = |waits: &Waits, session: Party| {
            let blockers = waits.0.get(&session).into_iter().flatten();
            blockers.into_iter().any(|blocker| matches!(blocker, Party::Session(_)))
        };
        let sessions: Vec<Party> =
            self.0.keys().filter(|party| waits_for_lock(&self, **party)).copied().collect();
        for &party in sessions.iter().rev() {
            if let Party::Session(session) = party
                && self.met_from(party, |_| false).contains(&party)
            {
                victims.push(session);
                self.0.remove(&party);
            }
        }
        victims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);

    fn txn(id: u64) -> Party {
        Party::Txn(TxnId(id))
    }

    fn session(id: u64) -> Party {
        Party::Session(SessionId(id))
    }

    fn between(pairs: &[(Party, Party)]) -> Vec<(u64, u64)> {
        let found = Waits::of(pairs.to_vec()).between_transactions();
        found.into_iter().map(|(waiter, blocker)| (waiter.0, blocker.0)).collect()
    }

    fn victims(pairs: &[(Party, Party)]) -> Vec<SessionId> {
        Waits::of(pairs.to_vec()).victims()
    }

    #[test]
    fn those_who_are_no_transactions_are_links_between_others() {
        let waits = [
            (txn(1), Party::Process(R0, 7)),
            (Party::Process(R0, 7), Party::Process(R0, 8)),
            (Party::Process(R0, 8), txn(2)),
            (txn(2), session(7)),
            (session(7), session(8)),
            (session(8), txn(3)),
            // Of the same number, but at another server.
            (Party::Process(R1, 7), txn(4)),
        ];
        assert_eq!(between(&waits), [(1, 2), (2, 3)]);
        assert_eq!(victims(&waits), []);
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
        assert_eq!(between(&waits), [(1, 2)]);
        assert_eq!(victims(&waits), [], "the server sees it");
    }

    #[test]
    fn of_a_circle_by_way_of_a_server_and_advisory_locks_one_session_is_refused() {
        // The transaction 1 of session 1 has locked a table and waits for a lock of session 2, which reads the table by itself.
        let waits = [
            (txn(1), session(1)),
            (session(1), session(2)),
            (session(2), Party::Process(R0, 7)),
            (Party::Process(R0, 7), txn(1)),
        ];
        assert_eq!(victims(&waits), [SessionId(1)]);
        // So does session 3; refusing the younger one ends both circles only for that one.
        let more = [(txn(3), session(3)), (session(3), session(2)), (Party::Process(R0, 7), txn(3))];
        assert_eq!(victims(&[&waits[..], &more[..]].concat()), [SessionId(3), SessionId(1)]);
    }
}
