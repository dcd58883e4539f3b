//! Who is in whose way at the server, where updates execute before they have a place (protocol = "certified").
//!
//! The order is certain, and locks of the server do not know of it: what is to be committed next may wait for somebody who comes later, or whose
//! client thinks. Whoever is in the way of one that comes before it gives way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onecopy_core::{Event, TxnId};
use tokio::sync::mpsc::UnboundedSender;

use super::{Done, Site};
use crate::sites::database::Database;

/// After how long it is looked for whom something waits that is being applied, and how long it is at most until that is looked for again.
const BLOCKED_PAUSE: Duration = Duration::from_millis(10);
const BLOCKED_PAUSE_MAX: Duration = Duration::from_millis(160);

impl Site<'_> {
    /// What is being applied waits for these processes of the server.
    pub(super) fn on_blocked(&mut self, txn: TxnId, by: &[u32]) {
        let turn_of = |site: &Self, txn: TxnId| site.turns.iter().position(|turn| turn.txn == txn);
        let Some(own) = turn_of(self, txn) else { return };
        let in_the_way: Vec<TxnId> = self
            .open
            .iter()
            .filter(|(other, open)| {
                let pid = open.pid.load(Ordering::Relaxed);
                **other != txn && pid != 0 && by.contains(&pid)
            })
            .map(|(other, _)| *other)
            .collect();
        let waits = self.open.get(&txn).map_or(0, |open| open.pid.load(Ordering::Relaxed));
        for other in in_the_way {
            match turn_of(self, other) {
                // It commits before.
                Some(turn) if turn < own => {}
                turn => self.give_way_to(other, turn.is_some(), waits),
            }
        }
    }

    fn give_way_to(&mut self, other: TxnId, has_turn: bool, waits: u32) {
        let Some(open) = self.open.get_mut(&other) else { return };
        tracing::debug!(txn = other.0, has_turn, "in the way of one that comes before it");
        if open.lane.is_none() {
            // It is busy. What it is at fails, and it is seen to then; if it is not by the next time that it is looked for, it is told again.
            if let Some(kept) = &mut open.kept {
                kept.is_doomed = true;
            }
            let (database, pid) = (self.around.database.clone(), open.pid.load(Ordering::Relaxed));
            tokio::spawn(async move {
                if let Err(error) = database.cancel(pid, waits).await {
                    tracing::debug!(%error, "have a statement given up");
                }
            });
            return;
        }
        if has_turn && (open.is_shipped || open.is_in_place()) {
            return self.apply_again(other, false);
        }
        self.leave(other);
        let replica = self.replica();
        self.feed(Event::HomeLost { txn: other, replica });
    }
}

impl Site<'_> {
    pub(super) fn watch(&self, txn: TxnId, pid: &Arc<AtomicU32>) -> Watch {
        let (database, done) = (self.around.database.clone(), self.done.clone());
        Watch { txn, pid: pid.clone(), database, done, is_needed: self.is_certified() }
    }
}

/// Looks for whom something waits that is done in its turn.
pub(super) struct Watch {
    txn: TxnId,
    pid: Arc<AtomicU32>,
    database: Arc<Database>,
    done: UnboundedSender<Done>,
    /// Whether updates without a place could be in its way.
    is_needed: bool,
}

impl Watch {
    pub(super) async fn over<T>(self, doing: impl Future<Output = T>) -> T {
        tokio::pin!(doing);
        let mut look = BLOCKED_PAUSE;
        loop {
            tokio::select! {
                result = &mut doing => return result,
                () = tokio::time::sleep(look), if self.is_needed => {
                    look = (2 * look).min(BLOCKED_PAUSE_MAX);
                    // If that cannot be told, the server will say why.
                    let by = self.database.blockers(self.pid.load(Ordering::Relaxed)).await.unwrap_or_default();
                    if !by.is_empty() {
                        let _ = self.done.send(Done::Blocked { txn: self.txn, by });
                    }
                }
            }
        }
    }
}
