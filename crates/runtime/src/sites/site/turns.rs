//! Commits in their turns: where all are in one order, what is ready waits for those before it, and is applied ahead of its turn; what follows each other
//! and waits is applied, and committed, in one database transaction.

use std::sync::atomic::Ordering;

use onecopy_core::multicast::MessageId;
use onecopy_core::protocol::Position;
use onecopy_core::{Csn, TxnId};
use smallvec::SmallVec;

use super::{Done, Open, Site};
use crate::record::{Record, Write};

/// Turns that may be applied ahead of their own.
const AHEAD_MAX: usize = 32;
/// Units that are applied and not committed, each of which has a connection.
const UNITS_MAX: usize = 8;
/// Units that may be at the server at once to be applied. What comes meanwhile is applied together: what begins and ends a database transaction costs
/// nearly as much as ten rows in it, so two at once do less under load.
const APPLYING_MAX: usize = 1;
/// Statements of a unit, and bytes of what they are, unless one update has more.
const UNIT_WRITES_MAX: usize = 256;
const UNIT_LEN_MAX: usize = 1024 * 1024;

/// A commit in its turn.
pub(super) struct Turn {
    pub txn: TxnId,
    /// It has been executed, or applied, and only waits for its turn.
    is_ready: bool,
    /// It is being executed or applied, or was.
    is_begun: bool,
    /// The first of its unit: of those that are applied in one database transaction.
    unit: Option<TxnId>,
    /// Its unit waits for locks, or fails again and again, so what is behind it need not wait for that.
    is_held_up: bool,
    /// Its server has refused it together with others.
    is_alone: bool,
    /// Those in earlier turns that touch what it touches, once that was looked for: it must see what they wrote.
    after: Option<SmallVec<[TxnId; 4]>>,
}

impl Turn {
    fn new(txn: TxnId, is_ready: bool) -> Turn {
        Turn {
            txn,
            is_ready,
            is_begun: is_ready,
            unit: None,
            is_held_up: false,
            is_alone: false,
            after: None,
        }
    }

    fn begins_unit(&self) -> bool {
        self.unit == Some(self.txn)
    }
}

impl Site<'_> {
    /// Where commits are to be in one order, that is the order in which they were asked for.
    pub(super) fn take_turn(&mut self, txn: TxnId, is_ready: bool) {
        if self.core.position() == Position::Prefix {
            let turn = Turn::new(txn, is_ready);
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

    /// Applies what is in nobody's way and has nobody in its own: turns that follow each other as one unit.
    fn apply_ahead(&mut self) {
        let (window, under_way_max) = match self.is_certified() {
            true => (AHEAD_MAX, APPLYING_MAX),
            false => (UNITS_MAX, UNITS_MAX),
        };
        let window = self.turns.len().min(window);
        let mut units = self.turns.iter().filter(|turn| turn.begins_unit()).count();
        // Only units before it keep a turn from beginning: one behind it may wait for who commits after it.
        let (mut nth, mut before, mut under_way) = (0, 0, 0);
        while nth < window && under_way < under_way_max && (units < UNITS_MAX || before == 0) {
            let turn = &self.turns[nth];
            if turn.begins_unit() {
                before += 1;
                under_way += usize::from(!turn.is_ready && !turn.is_held_up);
            }
            if turn.is_begun || self.comes_after_one_of(nth, nth) {
                nth += 1;
                continue;
            }
            let first = self.turns[nth].txn;
            let end = self.together_up_to(nth, window);
            let is_held_up = self.open.get(&first).is_some_and(|open| open.losses > 0);
            for turn in self.turns.range_mut(nth..end) {
                (turn.is_begun, turn.unit, turn.is_held_up) = (true, Some(first), is_held_up);
            }
            let led: Vec<TxnId> = self.turns.range(nth + 1..end).map(|turn| turn.txn).collect();
            match self.open.get(&first).is_some_and(Open::is_in_place) {
                true => self.execute_in_place(first),
                false => self.apply(first, &led),
            }
            units += 1;
            before += 1;
            under_way += usize::from(!is_held_up);
            nth = end;
        }
    }

    /// Up to before which turn those from one on can be applied in one database transaction.
    fn together_up_to(&mut self, first: usize, window: usize) -> usize {
        let writes = |site: &Self, nth: usize| {
            let open = site.open.get(&site.turns[nth].txn)?;
            let is_plain = open.is_shipped && open.request.is_some() && !site.turns[nth].is_alone;
            let Record { user, settings, writes, .. } = &open.writes;
            let len: usize = writes.iter().map(Write::len).sum();
            is_plain.then(|| (user.clone(), settings.clone(), writes.len(), len))
        };
        let Some((user, settings, mut count, mut len)) = writes(self, first) else { return first + 1 };
        for nth in first + 1..window {
            let is_like = !self.turns[nth].is_begun
                && writes(self, nth).is_some_and(|(of_user, under, more, longer)| {
                    (count, len) = (count + more, len + longer);
                    of_user == user && under == settings && count <= UNIT_WRITES_MAX && len <= UNIT_LEN_MAX
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
        let is_told = is_certified && !open.is_in_place();
        if let Some(pending) = self.around.pending.get_mut(&id).filter(|_| !is_told) {
            pending.known = Some(open.chosen.clone().unwrap_or_else(|| open.answer.clone()));
        }
        let mut places = vec![(open.place, id)];
        open.pid.store(0, Ordering::Relaxed);
        let led: Vec<TxnId> = self.unit_of(txn).filter(|turn| turn.txn != txn).map(|turn| turn.txn).collect();
        let stands = |txn: &TxnId| self.open.get(txn).and_then(|open| Some((open.place, open.id?)));
        places.extend(led.iter().filter_map(stands));
        let place = places.last().map_or(Csn(0), |(place, _)| *place);
        let (database, done) = (self.around.database.clone(), self.done.clone());
        let is_before = |(before, _): &&(Csn, MessageId)| !is_certified || *before < place;
        // Of what stands there once more and is not committed where it stands first, only the second place might be found after a crash.
        let is_over = |(_, id): &&(Csn, MessageId)| {
            !self.by_id.contains_key(id) || places.iter().any(|(_, committed)| committed == id)
        };
        let nothing: Vec<(Csn, MessageId)> =
            self.nothing.iter().filter(is_before).filter(is_over).copied().collect();
        tokio::spawn(async move {
            let result = database.commit(lane, &places, &nothing).await;
            let _ = done.send(Done::Committed { txn, led, nothing, result });
        });
    }

    /// Those that are applied in the database transaction of one.
    fn unit_of(&self, txn: TxnId) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(move |turn| turn.unit == Some(txn))
    }

    /// Whether others are applied with it.
    pub(super) fn leads_others(&self, txn: TxnId) -> bool {
        self.unit_of(txn).count() > 1
    }

    /// Its unit is applied.
    pub(super) fn note_applied(&mut self, txn: TxnId) {
        match self.turns.iter_mut().find(|turn| turn.txn == txn) {
            Some(turn) => turn.is_ready = true,
            None => return self.commit(txn),
        }
        self.commit_next();
    }

    /// It has failed in its turn.
    pub(super) fn drop_turn(&mut self, txn: TxnId) {
        self.turns.retain(|turn| turn.txn != txn);
    }

    /// Its unit waits for something at the server.
    pub(super) fn note_held_up(&mut self, txn: TxnId) {
        self.turns.iter_mut().filter(|turn| turn.unit == Some(txn)).for_each(|turn| turn.is_held_up = true);
        self.commit_next();
    }

    /// What is being applied is to be applied anew, in its turn; by itself, if its server has refused it with others.
    pub(super) fn apply_again(&mut self, txn: TxnId, is_refused: bool) {
        self.leave(txn);
        let is_alone = is_refused && self.leads_others(txn);
        for turn in self.turns.iter_mut().filter(|turn| turn.txn == txn || turn.unit == Some(txn)) {
            (turn.is_ready, turn.is_begun, turn.unit) = (false, false, None);
            turn.is_alone |= is_alone;
        }
        self.commit_next();
    }
}
