//! Who is in whose way at the server, where updates execute before they have a place (protocol = "certified").
//!
//! The order is certain, and locks of the server do not know of it: what is to be committed next may wait for somebody who comes later, or whose
//! client thinks. Whoever is in the way of one that comes before it gives way.

use std::sync::atomic::Ordering;

use onecopy_core::{Event, TxnId};

use super::Site;

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
