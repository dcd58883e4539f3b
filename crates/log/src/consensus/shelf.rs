//! The log as Raft reads it: where it begins and ends, which epoch each record is of, and the newest records. Older ones
//! are fetched from the disk by whoever drives the node.

use std::cell::RefCell;
use std::collections::VecDeque;

use onecopy_core::{Csn, Epoch};
use raft::eraftpb::{Entry, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use super::codec::{beginning, entry_with};
use super::membership::Membership;
use crate::record::{Kind, Seq};

/// Entries that Raft is shown at once of which it needs no more than place and epoch.
const OUTLINES_MAX: u64 = 1024;
/// Readers that wait for the same records: one for each other node is enough.
const WAITING_MAX: usize = 16;

/// See the module.
pub(super) struct Shelf {
    pub(super) initial: RaftState,
    /// What there was before the first record that is kept.
    before: Before,
    last: Seq,
    /// Behind which record a node that needs what was dropped begins: the last that is durable on a majority and behind
    /// which no transaction goes on. Only there are those members known that were added since the log was cut.
    beginning: Option<Before>,
    /// Where the records of each epoch begin; the first one is `before`.
    epochs: VecDeque<(Seq, Epoch)>,
    /// Records that change who shares the log.
    changes: Vec<Seq>,
    /// The newest records, without a gap up to the last.
    recent: VecDeque<Entry>,
    recent_bytes: usize,
    recent_bytes_max: usize,
    /// Records that were fetched for whoever waits for them now.
    fetched: Vec<Entry>,
    wanted: RefCell<Vec<Wanted>>,
}

/// Where a log begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Before {
    pub(super) seq: Seq,
    pub(super) csn: Csn,
    pub(super) epoch: Epoch,
    pub(super) membership: Membership,
}

/// Records that are needed from the disk.
pub(super) struct Wanted {
    pub(super) from: Seq,
    pub(super) to: Seq,
    pub(super) bytes_max: u64,
    /// Whether the driver has been asked.
    pub(super) is_asked: bool,
    pub(super) by: Vec<GetEntriesContext>,
}

impl Shelf {
    pub(super) fn new(
        initial: RaftState,
        before: Before,
        beginning: Option<Before>,
        last: Seq,
        epochs: impl Iterator<Item = (Seq, Epoch)>,
        changes: Vec<Seq>,
        recent_bytes_max: usize,
    ) -> Shelf {
        Shelf {
            initial,
            before,
            beginning,
            last,
            epochs: epochs.collect(),
            changes,
            recent: VecDeque::new(),
            recent_bytes: 0,
            recent_bytes_max,
            fetched: Vec::new(),
            wanted: RefCell::default(),
        }
    }

    pub(super) fn last(&self) -> Seq {
        self.last
    }

    /// A record was appended. Records before `durable` may be forgotten here.
    pub(super) fn push(&mut self, entry: Entry, durable: Seq) {
        self.last = Seq(entry.index);
        if self.epochs.back().is_none_or(|(_, epoch)| epoch.0 != entry.term) {
            self.epochs.push_back((self.last, Epoch(entry.term)));
        }
        if entry.data.first() == Some(&Kind::MEMBERSHIP.0) {
            self.changes.push(self.last);
        }
        self.recent_bytes += entry.data.len();
        self.recent.push_back(entry);
        while self.recent_bytes > self.recent_bytes_max
            && let Some(oldest) = self.recent.pop_front_if_before(durable)
        {
            self.recent_bytes -= oldest.data.len();
        }
    }

    /// Record `seq` and those behind it are void.
    pub(super) fn cut_from(&mut self, seq: Seq) {
        while let Some(entry) = self.recent.pop_back_if_from(seq) {
            self.recent_bytes -= entry.data.len();
        }
        while self.epochs.len() > 1 && self.epochs.back().is_some_and(|(from, _)| *from >= seq) {
            self.epochs.pop_back();
        }
        self.changes.retain(|change| *change < seq);
        self.last = Seq(seq.0 - 1);
    }

    /// Behind which record a node would begin now.
    pub(super) fn set_beginning(&mut self, beginning: Option<Before>) {
        self.beginning = beginning;
    }

    /// Records up to `before` are gone.
    pub(super) fn drop_to(&mut self, before: Before) {
        self.before = before;
        while self.epochs.get(1).is_some_and(|(from, _)| *from <= before.seq) {
            self.epochs.pop_front();
        }
        self.changes.retain(|change| *change > before.seq);
        while let Some(entry) = self.recent.pop_front_if_before(before.seq.next()) {
            self.recent_bytes -= entry.data.len();
        }
    }

    /// All records are void: the log goes on behind `before`.
    pub(super) fn begin_anew(&mut self, before: Before) {
        self.recent.clear();
        self.recent_bytes = 0;
        self.changes.clear();
        self.epochs = [(before.seq, before.epoch)].into();
        (self.before, self.beginning, self.last) = (before, Some(before), before.seq);
    }

    /// What the driver has to be asked for.
    pub(super) fn take_unasked(&self) -> Vec<(Seq, Seq, u64)> {
        let mut wanted = self.wanted.borrow_mut();
        let unasked = wanted.iter_mut().filter(|wanted| !wanted.is_asked);
        unasked
            .map(|wanted| {
                wanted.is_asked = true;
                (wanted.from, wanted.to, wanted.bytes_max)
            })
            .collect()
    }

    /// The records from `from` on were read; returns who waits for them.
    pub(super) fn lend(&mut self, from: Seq, entries: Vec<Entry>) -> Vec<GetEntriesContext> {
        self.fetched = entries;
        let mut wanted = self.wanted.borrow_mut();
        let (ready, waiting) =
            std::mem::take(&mut *wanted).into_iter().partition(|wanted| wanted.from == from);
        *wanted = waiting;
        let ready: Vec<Wanted> = ready;
        ready.into_iter().flat_map(|wanted| wanted.by).collect()
    }

    pub(super) fn take_back(&mut self) {
        self.fetched.clear();
    }

    fn want(&self, from: u64, to: u64, bytes_max: u64, by: GetEntriesContext) {
        let mut wanted = self.wanted.borrow_mut();
        match wanted.iter_mut().find(|wanted| wanted.from.0 == from) {
            // Whoever is not noted asks again at the next heartbeat.
            Some(wanted) if wanted.by.len() >= WAITING_MAX => {}
            Some(wanted) => wanted.by.push(by),
            None => {
                let by = vec![by];
                wanted.push(Wanted { from: Seq(from), to: Seq(to), bytes_max, is_asked: false, by });
            }
        }
    }

    fn outline(&self, place: u64) -> Entry {
        let is_change = self.changes.binary_search(&Seq(place)).is_ok();
        let mut entry = entry_with(Seq(place), self.epoch_at(place), bytes::Bytes::new());
        if is_change {
            entry.set_entry_type(raft::eraftpb::EntryType::EntryConfChangeV2);
        }
        entry
    }

    fn epoch_at(&self, place: u64) -> Epoch {
        let after = self.epochs.partition_point(|(from, _)| from.0 <= place);
        self.epochs.get(after.saturating_sub(1)).map_or(Epoch(0), |(_, epoch)| *epoch)
    }
}

impl Storage for Shelf {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before.seq.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last.0 + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let max_size: Option<u64> = max_size.into();
        if !context.can_async() {
            // Raft looks at place, epoch and kind only; what the records say is read from the log.
            let high = if max_size.is_some() { high.min(low + OUTLINES_MAX) } else { high };
            return Ok((low..high).map(|place| self.outline(place)).collect());
        }
        let bytes_max = max_size.unwrap_or(u64::MAX);
        let recent_from = self.recent.front().map_or(self.last.0 + 1, |entry| entry.index);
        if low >= recent_from {
            let from = (low - recent_from) as usize;
            return Ok(limited(self.recent.range(from..).take((high - low) as usize), bytes_max));
        }
        if self.fetched.first().is_some_and(|entry| entry.index == low) {
            return Ok(limited(self.fetched.iter().take((high - low) as usize), bytes_max));
        }
        self.want(low, high.min(recent_from), bytes_max, context);
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, place: u64) -> raft::Result<u64> {
        match place {
            0 if self.before.seq == Seq(0) => Ok(0),
            _ if place < self.before.seq.0 => Err(Error::Store(StorageError::Compacted)),
            _ if place > self.last.0 => Err(Error::Store(StorageError::Unavailable)),
            _ => Ok(self.epoch_at(place).0),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.seq.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last.0)
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let kept = self.beginning.filter(|at| at.seq > Seq(0) && at.seq >= self.before.seq);
        let at = kept.ok_or(Error::Store(StorageError::SnapshotTemporarilyUnavailable))?;
        Ok(beginning(at.seq, at.epoch, at.csn, &at.membership))
    }
}

/// As many as fit, at least one.
fn limited<'e>(entries: impl Iterator<Item = &'e Entry>, bytes_max: u64) -> Vec<Entry> {
    let mut bytes = 0_u64;
    let mut taken = Vec::new();
    for entry in entries {
        bytes += entry.data.len() as u64 + 32;
        if bytes > bytes_max && !taken.is_empty() {
            break;
        }
        taken.push(entry.clone());
    }
    taken
}

/// The two ends of the newest records.
trait Ends {
    fn pop_front_if_before(&mut self, seq: Seq) -> Option<Entry>;
    fn pop_back_if_from(&mut self, seq: Seq) -> Option<Entry>;
}

impl Ends for VecDeque<Entry> {
    fn pop_front_if_before(&mut self, seq: Seq) -> Option<Entry> {
        self.front().is_some_and(|entry| entry.index < seq.0).then(|| self.pop_front()).flatten()
    }

    fn pop_back_if_from(&mut self, seq: Seq) -> Option<Entry> {
        self.back().is_some_and(|entry| entry.index >= seq.0).then(|| self.pop_back()).flatten()
    }
}
