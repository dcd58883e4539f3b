//! Cycles of waiting, found the moment they close (design 3.2).
//!
//! Most waiting is for items, and `ItemLocks` knows it. One kind is hidden: a statement that runs at a home may wait
//! within the database for another transaction there whose answer has shown items (unique values that it freed) that
//! the statement's transaction held already. Only both kinds together show such a cycle, which would else last for ever.
//!
//! What else waits where the core does not see it (for who reads a table that is to be locked whole, for advisory locks) is
//! found by looking, as servers do by themselves once somebody has waited for a second: see [`Event::WaitsOutside`].
//!
//! [`Event::WaitsOutside`]: crate::event::Event::WaitsOutside

use std::collections::BTreeMap;

use crate::effect::{Effect, Refusal};
use crate::ids::TxnId;
use crate::item_locks::cycle_through;

use super::Onecopy;
use super::txn::{State, Txn};

impl Onecopy {
    /// Gives up the youngest member of every cycle that this transaction's waiting has closed.
    pub(super) fn break_cycles(&mut self, id: TxnId, effects: &mut Vec<Effect>) {
        while self.locks.waits(id) || !self.owing.is_empty() {
            let Some(victim) = self.youngest_of_cycle(id) else { return };
            self.give_up(victim, effects);
        }
    }

    fn give_up(&mut self, victim: TxnId, effects: &mut Vec<Effect>) {
        self.counts.deadlocks += 1;
        let Some(txn) = self.txns.get(&victim) else { return };
        let op = match (&txn.state, &txn.pending) {
            (State::AwaitingOwed, _) | (_, None) => txn.commit_op,
            (_, Some(pending)) => pending.op,
        };
        self.refuse(victim, op, Refusal::Deadlock, effects);
    }

    fn youngest_of_cycle(&self, start: TxnId) -> Option<TxnId> {
        if !self.locks.is_waited_for(start) && !self.owing.contains(&start) {
            return None;
        }
        let waits_for = |id| self.locks.blockers_of(id).chain(self.hidden_blockers(id));
        cycle_through(start, waits_for).into_iter().max()
    }

    /// Somebody has just looked who waits for whom outside of the core: gives up the youngest member that waits in the core of
    /// every cycle that this closes. Only those can be told at once. Nothing of it is kept: a cycle that closes later
    /// is found when somebody looks again.
    pub(super) fn on_waits_outside(&mut self, waits: &[(TxnId, TxnId)], effects: &mut Vec<Effect>) {
        let waits_in_core = |id: &TxnId| self.txns.get(id).is_some_and(|txn| txn.state.waits_in_core());
        let mut outside: BTreeMap<TxnId, Vec<TxnId>> = BTreeMap::new();
        // Who waits in the core has been answered since.
        for (waiter, blocker) in waits.iter().filter(|(waiter, _)| !waits_in_core(waiter)) {
            outside.entry(*waiter).or_default().push(*blocker);
        }
        for waiter in outside.keys() {
            while let Some(victim) = self.victim_outside(*waiter, &outside) {
                self.give_up(victim, effects);
            }
        }
    }

    fn victim_outside(&self, start: TxnId, outside: &BTreeMap<TxnId, Vec<TxnId>>) -> Option<TxnId> {
        let cycle = cycle_through(start, |id| {
            let within = self.locks.blockers_of(id).chain(self.hidden_blockers(id));
            within
                .chain(outside.get(&id).into_iter().flatten().copied())
                .chain(self.readers_before(id, outside))
                .chain(self.changers_before(id))
        });
        let can_be_told = |id: &TxnId| self.txns.get(id).is_some_and(|txn| txn.state.waits_in_core());
        cycle.into_iter().filter(can_be_told).max()
    }

    /// Who waits in the core for other transactions to end, and for which: for items, before a change of definitions for who reads
    /// under those of before, and before a read for who changes them.
    pub(super) fn waits_for(&self) -> Vec<(u64, Vec<u64>)> {
        let for_items = self
            .locks
            .waiters()
            .map(|id| (id.0, self.locks.blockers_of(id).map(|blocker| blocker.0).collect()));
        let snapshots = || {
            let reads = |(id, txn): (&TxnId, &Txn)| txn.snapshot.map(|_| id.0);
            let mut readers: Vec<u64> = self.txns.iter().filter_map(reads).collect();
            readers.sort_unstable();
            readers
        };
        let for_readers = |id: &TxnId| {
            let waits = self.txns.get(id).is_some_and(|txn| txn.state == State::AwaitingSnapshots);
            waits.then(|| (id.0, snapshots()))
        };
        let for_changers = |id: &TxnId| {
            let waits = self.txns.get(id).is_some_and(|txn| txn.state == State::AwaitingSchema);
            waits.then(|| (id.0, self.changers_before(*id).map(|changer| changer.0).collect()))
        };
        let for_readers = self.schema_changers.iter().filter_map(for_readers);
        for_items.chain(for_readers).chain(self.awaiting_schema.iter().filter_map(for_changers)).collect()
    }

    /// The read phases that must end before this transaction changes a definition, and wait outside of the core: for nobody that
    /// it knows.
    fn readers_before(
        &self,
        id: TxnId,
        outside: &BTreeMap<TxnId, Vec<TxnId>>,
    ) -> impl Iterator<Item = TxnId> {
        let waits = self.txns.get(&id).is_some_and(|txn| txn.state == State::AwaitingSnapshots);
        let reads = |(id, txn): (&TxnId, &Txn)| txn.snapshot.map(|_| *id);
        waits
            .then(|| outside.keys().filter_map(|id| self.txns.get_key_value(id)).filter_map(reads))
            .into_iter()
            .flatten()
    }

    /// The transactions that change definitions, and must end before this one's read phase starts. It holds nothing that the core
    /// knows; but its session may have locked what they wait for.
    fn changers_before(&self, id: TxnId) -> impl Iterator<Item = TxnId> {
        let waits = self.txns.get(&id).is_some_and(|txn| txn.state == State::AwaitingSchema);
        waits.then(|| self.schema_changers.iter().copied()).into_iter().flatten()
    }

    /// Those at the same home who owe an item that this transaction's statement there takes, and have locked it in the server: by
    /// changing it. What they only read, by a statement that failed then, keeps nobody waiting there.
    fn hidden_blockers(&self, id: TxnId) -> impl Iterator<Item = TxnId> {
        let txn = self.txns.get(&id).filter(|txn| txn.home.is_some());
        let runs = txn.and_then(|txn| {
            let accesses = match txn.state {
                State::Executing | State::AwaitingHome => txn.pending.as_ref()?.statement.access.as_slice(),
                // It does again at another home what it has done.
                State::AwaitingRevalidation => self.locks.held(id),
                _ => return None,
            };
            Some((txn.home, accesses))
        });
        runs.into_iter().flat_map(move |(home, accesses)| {
            let in_the_way = move |owing: &&TxnId| {
                self.txns.get(*owing).is_some_and(|other| {
                    let locked = || other.owed.iter().filter(|owed| owed.mode.writes());
                    let overlaps =
                        || locked().any(|owed| accesses.iter().any(|access| access.conflicts(owed)));
                    **owing != id && other.home == home && overlaps()
                })
            };
            self.owing.iter().filter(in_the_way).copied()
        })
    }
}
