//! Commits in their turns: where all are in one order, what is ready waits for those before it, and is applied ahead of its turn.

use std::sync::atomic::Ordering;

use onecopy_core::multicast::MessageId;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, TxnId};

use super::{Done, Site, Turn};

/// What is applied ahead of its turn, where commits are in one order.
const APPLIED_AHEAD: usize = 8;

impl Site<'_> {
    /// Where commits are to be in one order, that is the order in which they were asked for.
    pub(super) fn take_turn(&mut self, txn: TxnId, is_ready: bool) {
        if self.core.position() == Position::Prefix {
            let turn = Turn { txn, is_ready, is_begun: is_ready };
            // What takes the place of a lost commit has its place.
            match self.turns.iter_mut().find(|turn| turn.txn == txn) {
                Some(before) => *before = turn,
                None => self.turns.push_back(turn),
            }
            self.commit_next();
        } else if is_ready {
            self.commit(txn);
        }
    }

    pub(super) fn commit_next(&mut self) {
        let ahead = self.turns.len().min(APPLIED_AHEAD);
        let begin: Vec<usize> =
            (0..ahead).filter(|nth| !self.turns[*nth].is_begun && !self.comes_after_one(*nth)).collect();
        for nth in begin {
            self.turns[nth].is_begun = true;
            self.apply(self.turns[nth].txn);
        }
        if let Some(Turn { txn, is_ready: true, .. }) = self.turns.front()
            && !self.is_committing
        {
            self.is_committing = true;
            self.commit(*txn);
        }
    }

    pub(super) fn commit(&mut self, txn: TxnId) {
        let is_certified = self.is_certified();
        let Some(open) = self.open.get_mut(&txn) else { return };
        let (Some(lane), Some(id)) = (open.lane.take(), open.id) else {
            return self.begin_again(format!("the connection on which {txn} was open is lost"));
        };
        // What is certified was told it when it was multicast.
        if let Some(pending) = self.around.pending.get_mut(&id).filter(|_| !is_certified) {
            pending.known = Some(open.chosen.clone().unwrap_or_else(|| open.answer.clone()));
        }
        let (database, done, place) = (self.around.database.clone(), self.done.clone(), open.place);
        let is_before = |(before, _): &&(Csn, MessageId)| !is_certified || *before < place;
        // Of what stands there once more and is not committed where it stands first, only the second place might be found after a crash.
        let is_over = |(_, id): &&(Csn, MessageId)| !self.by_id.contains_key(id);
        let nothing: Vec<(Csn, MessageId)> =
            self.nothing.iter().filter(is_before).filter(is_over).copied().collect();
        open.pid.store(0, Ordering::Relaxed);
        tokio::spawn(async move {
            let result = database.commit(lane, place, id, &nothing).await;
            let _ = done.send(Done::Committed { txn, nothing, result });
        });
    }

    /// Whether what is to be applied in a turn touches what one in an earlier turn writes, or the other way round: it must see that.
    pub(super) fn comes_after_one(&self, nth: usize) -> bool {
        let access = |nth: usize| {
            let open = self.turns.get(nth).and_then(|turn| self.open.get(&turn.txn));
            open.and_then(|open| open.request.as_ref()).map_or(&[][..], |request| &request.access)
        };
        let own = access(nth);
        (0..nth).any(|earlier| access(earlier).iter().any(|one| own.iter().any(|other| one.conflicts(other))))
    }

    /// What is being applied is to be applied anew, in its turn.
    pub(super) fn apply_again(&mut self, txn: TxnId) {
        self.leave(txn);
        if let Some(turn) = self.turns.iter_mut().find(|turn| turn.txn == txn) {
            (turn.is_ready, turn.is_begun) = (false, false);
        }
        self.commit_next();
    }
}
