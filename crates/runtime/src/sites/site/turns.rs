//! Commits in their turns: where all are in one order, what is ready waits for those before it, and is applied ahead of its turn; what follows each other
//! and waits is applied, and committed, in one database transaction.

use std::sync::atomic::Ordering;

use onecopy_core::multicast::MessageId;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, TxnId};
use smallvec::SmallVec;

use super::{Done, Site};

/// Turns that may be applied ahead of their own.
const AHEAD_MAX: usize = 32;
/// What may be at the server at once to be applied. What comes meanwhile is applied together: what begins and ends a database transaction costs nearly as
/// much as ten rows in it, so two at once do less under load.
const APPLYING_MAX: usize = 1;
/// The same where each is applied by itself.
const APPLYING_ALONE_MAX: usize = 8;
/// Statements that are applied in one database transaction, unless one update has more.
const TOGETHER_MAX: usize = 256;

/// A commit in its turn.
pub(super) struct Turn {
    pub txn: TxnId,
    /// It has been executed, or applied, and only waits for its turn.
    pub is_ready: bool,
    /// It is being applied, or was.
    pub is_begun: bool,
    /// It is so in the database transaction of an earlier turn, which leads it.
    led_by: Option<TxnId>,
    /// Those in earlier turns that touch what it touches, once that was looked for: it must see what they wrote.
    after: Option<SmallVec<[TxnId; 4]>>,
}

impl Turn {
    fn is_under_way(&self) -> bool {
        self.is_begun && !self.is_ready && self.led_by.is_none()
    }
}

impl Site<'_> {
    /// Where commits are to be in one order, that is the order in which they were asked for.
    pub(super) fn take_turn(&mut self, txn: TxnId, is_ready: bool) {
        if self.core.position() == Position::Prefix {
            let turn = Turn { txn, is_ready, is_begun: is_ready, led_by: None, after: None };
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
        self.apply_ahead();
        if let Some(Turn { txn, is_ready: true, .. }) = self.turns.front()
            && !self.is_committing
        {
            self.is_committing = true;
            self.commit(*txn);
        }
    }

    /// Applies what is in nobody's way and has nobody in its own: turns that follow each other together.
    fn apply_ahead(&mut self) {
        let (window, under_way_max) = match self.is_certified() {
            true => (self.turns.len().min(AHEAD_MAX), APPLYING_MAX),
            false => (self.turns.len().min(APPLYING_ALONE_MAX), APPLYING_ALONE_MAX),
        };
        // Only those before it count: what is being applied behind it may wait for one that commits after it.
        let (mut nth, mut under_way) = (0, 0);
        while nth < window && under_way < under_way_max {
            if self.turns[nth].is_begun || self.comes_after_one_of(nth, nth) {
                under_way += usize::from(self.turns[nth].is_under_way());
                nth += 1;
                continue;
            }
            let first = self.turns[nth].txn;
            let end = self.together_up_to(nth, window);
            for turn in self.turns.range_mut(nth..end) {
                turn.is_begun = true;
                turn.led_by = Some(first).filter(|first| *first != turn.txn);
            }
            let led: Vec<TxnId> = self.turns.range(nth + 1..end).map(|turn| turn.txn).collect();
            self.apply(first, &led);
            under_way += 1;
            nth = end;
        }
    }

    /// Up to before which turn those from one on can be applied in one database transaction.
    fn together_up_to(&mut self, first: usize, window: usize) -> usize {
        // What its server has given up together is tried by itself.
        let writes = |site: &Self, nth: usize| {
            let open = site.open.get(&site.turns[nth].txn)?;
            let is_plain = open.is_shipped && open.losses == 0 && open.request.is_some();
            let writes = &open.writes;
            is_plain.then(|| (writes.user.clone(), writes.settings.clone(), writes.writes.len()))
        };
        let Some((user, settings, mut count)) = writes(self, first) else { return first + 1 };
        for nth in first + 1..window {
            let is_like = !self.turns[nth].is_begun
                && writes(self, nth).is_some_and(|(of_user, under, more)| {
                    count += more;
                    of_user == user && under == settings && count <= TOGETHER_MAX
                });
            if !is_like || self.comes_after_one_of(nth, first) {
                return nth;
            }
        }
        window
    }

    /// Whether what is to be applied in a turn touches what one of so many first turns writes, or the other way round.
    fn comes_after_one_of(&mut self, nth: usize, first: usize) -> bool {
        if self.turns[nth].after.is_none() {
            let access = |turn: &Turn| {
                let open = self.open.get(&turn.txn);
                open.and_then(|open| open.request.as_ref()).map_or(&[][..], |request| &request.access)
            };
            let own = access(&self.turns[nth]);
            let conflicts =
                |turn: &&Turn| access(turn).iter().any(|one| own.iter().any(|other| one.conflicts(other)));
            let after = self.turns.range(..nth).filter(conflicts).map(|turn| turn.txn).collect();
            self.turns[nth].after = Some(after);
        }
        let after = self.turns[nth].after.as_deref().unwrap_or_default();
        !after.is_empty() && self.turns.range(..first).any(|turn| after.contains(&turn.txn))
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
        let mut places = vec![(open.place, id)];
        open.pid.store(0, Ordering::Relaxed);
        let led: Vec<TxnId> =
            self.turns.iter().filter(|turn| turn.led_by == Some(txn)).map(|turn| turn.txn).collect();
        let stands = |txn: &TxnId| self.open.get(txn).and_then(|open| Some((open.place, open.id?)));
        places.extend(led.iter().filter_map(stands));
        let place = places.last().map_or(Csn(0), |(place, _)| *place);
        let (database, done) = (self.around.database.clone(), self.done.clone());
        let is_before = |(before, _): &&(Csn, MessageId)| !is_certified || *before < place;
        // Of what stands there once more and is not committed where it stands first, only the second place might be found after a crash.
        let is_over = |(_, id): &&(Csn, MessageId)| !self.by_id.contains_key(id);
        let nothing: Vec<(Csn, MessageId)> =
            self.nothing.iter().filter(is_before).filter(is_over).copied().collect();
        tokio::spawn(async move {
            let result = database.commit(lane, &places, &nothing).await;
            let _ = done.send(Done::Committed { txn, led, nothing, result });
        });
    }

    /// What is being applied is to be applied anew, in its turn.
    pub(super) fn apply_again(&mut self, txn: TxnId) {
        self.leave(txn);
        for turn in self.turns.iter_mut().filter(|turn| turn.txn == txn || turn.led_by == Some(txn)) {
            (turn.is_ready, turn.is_begun, turn.led_by) = (false, false, None);
        }
        self.commit_next();
    }
}
