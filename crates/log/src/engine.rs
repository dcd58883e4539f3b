//! The log's decisions, without I/O: records and events in, effects on a disk out.
//!
//! One group of records is under way at a time. What is appended meanwhile gathers and becomes the next group: one
//! write and one sync, however many records. A record is durable when the sync behind it has answered; nothing that
//! is not durable is ever shown to a reader.
//!
//! Invariants, checked by the simulation in `tests/simulation.rs`:
//! - a frame is written only when every record before its group is durable (with [`Durability::Disk`]);
//! - a segment gets its first frame only when its header and its name are on stable storage;
//! - no byte of a durable record is ever written again, but by recovery and with the same contents;
//! - after the first failure nothing more is written, and nothing more is acknowledged.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};
use thiserror::Error;

use crate::catalog::{Catalog, PayloadPlace, Position, Span};
use crate::consensus::{Membership, StopReason};
use crate::gate::{AppendError, Gate};
use crate::noted::Noted;
use crate::planted::{Bug, planted};
use crate::reader::ReadError;
use crate::record::{
    BODY_LEN_MAX, FRAME_HEADER_LEN, FrameHeader, Kind, LogId, Record, SegmentHeader, SegmentNo, Seq, Shared,
    Start, encode_frame,
};
use crate::recover::Recovery;

/// When a record counts as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// When the operating system has it: survives the end of the process, not that of the machine.
    Memory,
    /// When it is on stable storage.
    Disk,
}

/// How the log is cut into files and writes. Lengths in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// When a record counts as durable.
    pub durability: Durability,
    /// A segment is full when the next group would make it longer. One group may exceed it.
    pub segment_len: u64,
    /// A group takes no further record when it would become longer. One record may exceed it.
    pub group_len_max: u64,
    /// How far a segment is filled with zeros ahead of the records, so that most syncs write no metadata; 0 for none.
    /// On ext4 this took a fifth to two fifths off a lone commit's latency against a file that grows (`measure_log`).
    /// Reserving space without writing it (`fallocate`) helps less: the first write to a block is metadata again.
    pub zero_ahead_len: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            durability: Durability::Disk,
            segment_len: 64 << 20,
            group_len_max: 1 << 20,
            zero_ahead_len: 512 << 10,
        }
    }
}

/// How a new log begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Genesis {
    /// The new log's name: random, never used before.
    pub log_id: LogId,
    /// The epoch that it begins in.
    pub epoch: Epoch,
    /// The commit that its first one follows: 0, or what the replica holds that the log is begun from.
    pub after: Csn,
}

/// What a disk has to do. Effects are carried out in the order given, each answered by its event before the next is
/// begun; after a failure the rest is not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Create the segment with this content, so that after a crash it either exists whole or not at all: write it
    /// under another name, sync it, rename it, sync the folder. Answer: [`Event::Created`].
    Create {
        /// Which one.
        segment: SegmentNo,
        /// The file's first bytes.
        header: Bytes,
    },
    /// Write at this place, extending the file if need be. Answer: [`Event::Written`].
    Write {
        /// To which segment.
        segment: SegmentNo,
        /// Where in its file, in bytes.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
    /// Bring everything written to the segment to stable storage. Answer: [`Event::Synced`].
    Sync {
        /// Which one.
        segment: SegmentNo,
    },
    /// Read these bytes and write them again as they are. After a failed sync the operating system may show bytes
    /// that it will never write; this makes the next sync write them. Answer: [`Event::Refreshed`].
    Refresh {
        /// Which one.
        segment: SegmentNo,
        /// First byte.
        from: u64,
        /// Behind the last byte.
        to: u64,
    },
    /// Remove the segment's file and sync the folder. Answer: [`Event::Deleted`].
    Delete {
        /// Which one.
        segment: SegmentNo,
    },
}

impl Effect {
    /// The segment that the effect is on, and what it does there.
    #[must_use]
    pub fn action(&self) -> (Action, SegmentNo) {
        match *self {
            Effect::Create { segment, .. } => (Action::Create, segment),
            Effect::Write { segment, .. } => (Action::Write, segment),
            Effect::Sync { segment } => (Action::Sync, segment),
            Effect::Refresh { segment, .. } => (Action::Refresh, segment),
            Effect::Delete { segment } => (Action::Delete, segment),
        }
    }
}

/// What a disk answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// To [`Effect::Create`].
    Created(SegmentNo),
    /// To [`Effect::Write`].
    Written(SegmentNo),
    /// To [`Effect::Sync`].
    Synced(SegmentNo),
    /// To [`Effect::Refresh`].
    Refreshed(SegmentNo),
    /// To [`Effect::Delete`].
    Deleted(SegmentNo),
    /// The effect could not be carried out, or not wholly.
    Failed(Fault),
}

/// What a disk does for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// [`Effect::Create`].
    Create,
    /// [`Effect::Write`].
    Write,
    /// [`Effect::Sync`].
    Sync,
    /// [`Effect::Refresh`].
    Refresh,
    /// [`Effect::Delete`].
    Delete,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Create => "create",
            Action::Write => "write to",
            Action::Sync => "sync",
            Action::Refresh => "write again to",
            Action::Delete => "delete",
        })
    }
}

/// Why a disk could not do something, as far as it matters for what to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// No room, or a quota is used up.
    DiskFull,
    /// Anything else: the device, the file system or its permissions.
    Device,
    /// The log's own thread ended unexpectedly: our bug.
    Internal,
}

/// The failure that stopped a log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "the commit log stopped: {action} segment {}: {detail}. {} Every acknowledged commit is in the log.",
    .segment.file_name(), .cause.advice()
)]
pub struct Fault {
    /// What was tried.
    pub action: Action,
    /// On which segment.
    pub segment: SegmentNo,
    /// Why it failed.
    pub cause: Cause,
    /// What the operating system said.
    pub detail: String,
}

impl Cause {
    fn advice(self) -> &'static str {
        match self {
            Cause::DiskFull => "Make room on the log's file system, then start again.",
            Cause::Device => "Check the log's device and its file system before starting again.",
            Cause::Internal => "This is a bug of ours: please report it. Start again to go on.",
        }
    }
}

enum Phase {
    /// Nothing is under way.
    Idle,
    /// What recovery cannot prove to be on stable storage is written and synced once more.
    AwaitingRepair {
        syncs: usize,
    },
    /// A segment is being created; its predecessor, if it has one, is to be sealed at this offset.
    AwaitingCreate {
        header: Box<SegmentHeader>,
        before: Option<(SegmentNo, u64)>,
    },
    AwaitingSeal,
    /// These records are being written (and synced).
    AwaitingGroup {
        frames: Vec<FrameHeader>,
        len: u64,
    },
    AwaitingMark,
    AwaitingDelete,
    AwaitingClose {
        syncs: usize,
    },
    Closed,
    Failed(Fault),
}

/// What a log is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// It takes records.
    Running,
    /// It was told to close and finishes what it has.
    Closing,
    /// Everything is written and synced; it takes nothing more.
    Closed,
    /// It takes nothing more.
    Failed(Fault),
    /// It takes nothing more, because of what the other nodes that share it know or say.
    Stopped(StopReason),
}

/// The log's state machine.
pub struct Engine {
    settings: Settings,
    gate: Gate,
    catalog: Catalog,
    phase: Phase,
    pending: VecDeque<Record>,
    pending_len: u64,
    /// Every record before this one is on stable storage.
    synced: Seq,
    /// The highest `synced` that any frame or header in the files says.
    claimed: Seq,
    highest: SegmentNo,
    /// The last segment's file is filled up to here, with records and then zeros.
    filled_to: u64,
    deletable: VecDeque<SegmentNo>,
    /// Deletions take turns with groups, so that many of them do not hold up a commit.
    deleted_last: bool,
    closing: bool,
    buffer: BytesMut,
    spare_frames: Vec<FrameHeader>,
    noted: Noted,
    sharing: Option<Sharing>,
}

/// What the log of a node among several needs besides.
struct Sharing {
    /// What the header of the next segment says; its start and membership are filled in then.
    shared: Shared,
    /// Who shares the log from each of these records on.
    memberships: Vec<(Seq, Membership)>,
    /// How often the promises have changed, and which of them are on stable storage.
    wanted: u64,
    creating: u64,
    durable: u64,
    /// Record this one, and what follows, is to be cut off.
    cut: Option<Seq>,
    /// The log is to begin anew behind this record.
    anew: Option<Anew>,
    /// The last segment's start, for one that takes its place.
    last_start: Start,
    /// What can be deleted once the segment that is being created exists.
    void: Vec<SegmentNo>,
}

/// Where a log begins whose node was too far behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Anew {
    /// The first record that it will hold.
    pub(crate) seq: Seq,
    /// The last commit before it.
    pub(crate) csn: Csn,
    /// The epoch of the record before it.
    pub(crate) epoch: Epoch,
    /// Who shares the log there.
    pub(crate) membership: Membership,
}

impl Engine {
    /// A new log in an empty folder.
    pub fn begin(genesis: Genesis, settings: Settings, effects: &mut Vec<Effect>) -> Engine {
        Engine::begin_as(genesis, None, settings, effects)
    }

    /// Like [`Engine::begin`], for a node among several.
    pub(crate) fn begin_as(
        genesis: Genesis,
        shared: Option<Shared>,
        settings: Settings,
        effects: &mut Vec<Effect>,
    ) -> Engine {
        let header = SegmentHeader {
            log_id: genesis.log_id,
            number: SegmentNo(1),
            first_seq: Seq(1),
            first_csn: genesis.after.next(),
            epoch: genesis.epoch,
            synced: Seq(1),
            shared,
        };
        let mut catalog = Catalog::new(&header);
        let sharing = shared.map(|shared| {
            catalog.settle(Seq(1));
            Sharing::new(shared, vec![(Seq(0), shared.membership)])
        });
        let mut engine = Engine::new(catalog, settings, Seq(1), SegmentNo(1));
        engine.sharing = sharing;
        engine.create(header, None, effects);
        engine
    }

    /// A log that was there before. It goes on in a new segment: nothing is ever added to one of an earlier run, so
    /// that what an earlier run left behind can never be taken for a record of this one.
    pub fn resume(recovery: Recovery, settings: Settings, effects: &mut Vec<Effect>) -> Engine {
        let Recovery { catalog, synced, highest, void, shared, memberships, noted, .. } = recovery;
        let mut engine = Engine::new(catalog, settings, synced, highest);
        engine.noted = noted;
        engine.sharing = shared.map(|shared| Sharing::new(shared, memberships));
        engine.deletable.extend(void);
        let unproven = engine.catalog.stretches_from(synced);
        if settings.durability == Durability::Memory || unproven.is_empty() {
            engine.rotate(effects);
            return engine;
        }
        engine.phase = Phase::AwaitingRepair { syncs: unproven.len() };
        for (segment, from, to) in unproven {
            if !planted(Bug::NoRefresh) {
                effects.push(Effect::Refresh { segment, from, to });
            }
            effects.push(Effect::Sync { segment });
        }
        engine
    }

    fn new(catalog: Catalog, settings: Settings, synced: Seq, highest: SegmentNo) -> Engine {
        let end = catalog.end();
        Engine {
            settings,
            gate: Gate::new(end.seq, end.csn, catalog.epoch()),
            phase: Phase::Idle,
            pending: VecDeque::new(),
            pending_len: 0,
            synced,
            claimed: synced,
            highest,
            filled_to: 0,
            deletable: VecDeque::new(),
            deleted_last: false,
            closing: false,
            buffer: BytesMut::new(),
            spare_frames: Vec::new(),
            noted: Noted::default(),
            sharing: None,
            catalog,
        }
    }

    /// Takes a record into the next group. Call [`Engine::flush`] when all that is at hand was appended.
    ///
    /// # Errors
    /// Why the record was refused; then nothing has changed.
    pub fn append(&mut self, mut record: Record) -> Result<Seq, AppendError> {
        let seq = self.gate.admit(&mut record)?;
        self.take(seq, record);
        Ok(seq)
    }

    /// Begins the next thing that is due, if nothing is under way. Without effects there is nothing to do.
    pub fn flush(&mut self, effects: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Idle) || self.flush_shared(effects) {
            return;
        }
        let may_delete = !self.deleted_last || self.pending.is_empty();
        if may_delete && let Some(segment) = self.deletable.pop_front() {
            self.deleted_last = true;
            self.phase = Phase::AwaitingDelete;
            effects.push(Effect::Delete { segment });
        } else if let Some(first) = self.pending.front() {
            self.deleted_last = false;
            let full = self.catalog.end().offset + first.frame_len() > self.settings.segment_len;
            if full && !self.catalog.last_is_empty() {
                self.rotate(effects);
            } else {
                self.write_group(effects);
            }
        } else if self.closing {
            self.finish(effects);
        }
    }

    /// The disk has carried out the oldest effect that was not answered, or failed to.
    ///
    /// # Panics
    /// If the event answers no effect that is under way: a bug of the driver.
    pub fn handle(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let disk = self.settings.durability == Durability::Disk && !planted(Bug::AcknowledgeBeforeSync);
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        match (phase, event) {
            (Phase::Failed(fault), _) => self.phase = Phase::Failed(fault),
            (_, Event::Failed(fault)) => self.become_failed(fault),
            (phase @ Phase::AwaitingRepair { .. }, Event::Refreshed(_)) => self.phase = phase,
            (Phase::AwaitingRepair { syncs: 1 }, Event::Synced(_)) => {
                self.synced = self.catalog.end().seq;
                self.rotate(effects);
            }
            (Phase::AwaitingRepair { syncs }, Event::Synced(_)) => {
                self.phase = Phase::AwaitingRepair { syncs: syncs - 1 };
            }
            (Phase::AwaitingCreate { header, before }, Event::Created(segment))
                if header.number == segment =>
            {
                self.on_created(&header, before, effects);
            }
            (phase @ Phase::AwaitingGroup { .. }, Event::Written(_)) if disk => self.phase = phase,
            (Phase::AwaitingGroup { frames, len }, Event::Written(_) | Event::Synced(_)) => {
                self.on_durable(frames, len);
            }
            (Phase::AwaitingMark, Event::Written(_)) => self.claimed = self.synced,
            (Phase::AwaitingSeal, Event::Written(_)) | (Phase::AwaitingDelete, Event::Deleted(_)) => {}
            (phase @ Phase::AwaitingClose { .. }, Event::Written(_)) => self.phase = phase,
            (Phase::AwaitingClose { syncs: 1 }, Event::Synced(_)) => self.phase = Phase::Closed,
            (Phase::AwaitingClose { syncs }, Event::Synced(_)) => {
                self.phase = Phase::AwaitingClose { syncs: syncs - 1 };
            }
            (_, event) => panic!("{event:?} answers nothing that is under way"),
        }
    }

    /// Notes in the file, without a sync, that everything in it is safe, so that damage to the last records cannot be
    /// taken for a torn end. Does nothing while anything else is due. Meant for when no record has come for a while.
    pub fn mark(&mut self, effects: &mut Vec<Effect>) {
        let idle = matches!(self.phase, Phase::Idle) && self.pending.is_empty() && !self.closing;
        if idle && self.claimed < self.synced && self.synced == self.catalog.end().seq {
            self.phase = Phase::AwaitingMark;
            let end = self.catalog.end();
            self.write_own(Kind::MARK, end.segment, end.offset, effects);
        }
    }

    /// Whether [`Engine::mark`] would write something, were it called now.
    #[must_use]
    pub fn wants_mark(&self) -> bool {
        self.claimed < self.synced
    }

    /// Nobody needs commits before `keep` any more, nor other records that stand before it. Whole segments go, when
    /// [`Engine::flush`] has time for it; the last one stays.
    pub fn truncate_before(&mut self, keep: Csn) {
        let settled = Seq(self.catalog.settled_end().seq.0.saturating_sub(1));
        let kept = self.noted.replicas_at(settled).map(|(seq, _)| seq);
        let dropped = self.catalog.truncate_before(keep, kept);
        if !dropped.is_empty() {
            // Before they are deleted, a new header says that what they were dropped behind is durable on a majority.
            self.note_settled();
        }
        self.deletable.extend(dropped);
        self.noted.truncate_before(self.catalog.first_seq());
    }

    /// The argument to [`Engine::truncate_before`] that leaves at most `bytes_max` bytes, but never less than the last
    /// segment: for a bound on what is kept for replicas that are away.
    #[must_use]
    pub fn oldest_within(&self, bytes_max: u64) -> Csn {
        self.catalog.oldest_within(bytes_max)
    }

    /// The argument to [`Engine::truncate_before`] that keeps a record, and as little before it as can be.
    #[must_use]
    pub fn keeping(&self, seq: Seq) -> Csn {
        self.catalog.keeping(seq)
    }

    /// Takes no more records. [`Engine::flush`] finishes what is pending, then brings everything to stable storage,
    /// whatever the durability; then the state is [`State::Closed`].
    pub fn close(&mut self) {
        self.gate.shut(AppendError::Closed);
        self.closing = true;
    }

    /// What the log is doing.
    #[must_use]
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Failed(fault) => State::Failed(fault.clone()),
            Phase::Closed => State::Closed,
            _ if self.closing => State::Closing,
            _ => State::Running,
        }
    }

    /// Behind the last durable record.
    #[must_use]
    pub fn durable(&self) -> Position {
        self.catalog.end()
    }

    /// The rules that the next record has to keep, for those who want to know before they hand it over.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The log's name.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.catalog.log_id()
    }

    /// The first commit that can be read; `durable().csn.next()` if there is none.
    #[must_use]
    pub fn first(&self) -> Csn {
        self.catalog.first()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Segments that exist, bytes in them up to the last durable record, bytes that are not durable yet, and the
    /// oldest segment that an undecided payload holds.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            segments: self.catalog.segments_len() + self.deletable.len(),
            bytes: self.catalog.bytes(),
            pending_bytes: self.pending_len,
            oldest_undecided: self.catalog.oldest_open(),
        }
    }

    /// What records say beside commits.
    pub(crate) fn noted(&self) -> &Noted {
        &self.noted
    }

    /// Where reading has to start to see everything behind the commit before `csn`.
    pub(crate) fn locate(&self, csn: Csn) -> Result<(SegmentNo, Seq, u64), ReadError> {
        let (first, last) = (self.catalog.first(), self.catalog.settled_end().csn);
        if csn < first {
            return Err(ReadError::Truncated { wanted: csn, first });
        }
        if csn > last.next() {
            return Err(ReadError::Beyond { wanted: csn, last });
        }
        Ok(self.catalog.place_before(csn.previous()))
    }

    /// Records that may be read by anybody.
    pub(crate) fn span_from(&self, seq: Seq) -> Option<Span> {
        self.catalog.settled_span_from(seq)
    }

    /// Records that are durable here, whether or not they will stay.
    pub(crate) fn durable_span_from(&self, seq: Seq) -> Option<Span> {
        self.catalog.span_from(seq)
    }

    pub(crate) fn place_of(&self, seq: Seq) -> Option<(SegmentNo, Seq, u64)> {
        self.catalog.place_of(seq)
    }

    pub(crate) fn payload_of(&self, csn: Csn) -> Option<PayloadPlace> {
        self.catalog.payload_of(csn)
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Record `seq` and what follows are void: the leader has others. Not yet carried out when this returns; what is
    /// appended next goes to place `seq`.
    ///
    /// # Panics
    /// If the record is settled, or the node is alone: a bug of the caller.
    pub(crate) fn cut_from(&mut self, seq: Seq) {
        let sharing = self.sharing.as_mut().expect("only a log that is shared is cut");
        assert!(seq >= self.catalog.settled_end().seq, "record {seq} is durable on a majority");
        sharing.memberships.retain(|(from, _)| *from < seq);
        self.noted.cut_from(seq);
        let (base, _) = self.base();
        let kept = seq.0.saturating_sub(base.0) as usize;
        for record in self.pending.drain(kept.min(self.pending.len())..) {
            self.pending_len -= record.frame_len();
        }
        if let (true, Some(sharing)) = (seq < base, &mut self.sharing) {
            sharing.cut = Some(seq);
        }
    }

    /// All records are void, since the leader no longer has those that follow them: the log begins anew.
    pub(crate) fn begin_anew(&mut self, anew: Anew) {
        let sharing = self.sharing.as_mut().expect("only a log that is shared begins anew");
        sharing.memberships = vec![(Seq(anew.seq.0 - 1), anew.membership)];
        (sharing.cut, sharing.anew) = (None, Some(anew));
        sharing.shared.committed = Seq(anew.seq.0 - 1);
        sharing.wanted += 1;
        self.noted = Noted::default();
        self.pending_len -= self.pending.drain(..).map(|record| record.frame_len()).sum::<u64>();
    }

    /// What the node promises from now on. Returns the number of this promise, to be compared with
    /// [`Engine::promises_kept`].
    pub(crate) fn promise(&mut self, term: Epoch, vote: Option<crate::consensus::NodeId>) -> u64 {
        let sharing = self.sharing.as_mut().expect("only a log that is shared holds promises");
        (sharing.shared.term, sharing.shared.vote) = (term, vote);
        sharing.wanted += 1;
        if planted(Bug::ForgetVote) {
            sharing.durable = sharing.wanted;
        }
        sharing.wanted
    }

    /// Has a new header say which records are settled, and who shares the log by them.
    pub(crate) fn note_settled(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.wanted += 1;
        }
    }

    /// The number of the last promise, and of the last that is on stable storage.
    pub(crate) fn promises(&self) -> (u64, u64) {
        self.sharing.as_ref().map_or((0, 0), |sharing| (sharing.wanted, sharing.durable))
    }

    /// All records up to this one are durable on a majority, and here.
    pub(crate) fn settle(&mut self, last: Seq) {
        self.catalog.settle(last.next());
        if let Some(sharing) = &mut self.sharing {
            sharing.shared.committed = last;
        }
    }

    /// Who shares the log after record `seq`.
    pub(crate) fn membership_at(&self, seq: Seq) -> Membership {
        self.sharing.as_ref().map_or_else(Membership::default, |sharing| sharing.membership_at(seq))
    }

    /// Whether record `seq` changes who shares the log.
    pub(crate) fn is_membership(&self, seq: Seq) -> bool {
        seq > Seq(0) && self.membership_at(seq) != self.membership_at(Seq(seq.0 - 1))
    }

    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.sharing.as_ref().map(|sharing| &sharing.shared)
    }

    /// Behind the last record that is durable and not to be cut off.
    pub(crate) fn durable_seq(&self) -> Seq {
        let end = self.catalog.end().seq;
        match &self.sharing {
            Some(Sharing { anew: Some(_), .. }) => Seq(0),
            Some(Sharing { cut: Some(cut), .. }) => end.min(*cut),
            _ => end,
        }
    }

    /// The place of the next record, and the last commit before it.
    pub(crate) fn tail(&self) -> (Seq, Csn) {
        let (base, csn) = self.base();
        let csn = self.pending.back().map_or(csn, |record| record.csn);
        (Seq(base.0 + self.pending.len() as u64), csn)
    }

    /// The same, but for what was not begun to be written.
    fn base(&self) -> (Seq, Csn) {
        if let Some(Sharing { anew: Some(anew), .. }) = &self.sharing {
            return (anew.seq, anew.csn);
        }
        let frames: &[FrameHeader] = match &self.phase {
            Phase::AwaitingGroup { frames, .. } => frames,
            _ => &[],
        };
        let end = self.catalog.end();
        let written = frames.last().map_or((end.seq, end.csn), |last| (last.seq.next(), last.csn));
        let Some(Sharing { cut: Some(cut), .. }) = self.sharing else { return written };
        let in_group = frames.iter().rev().find(|frame| frame.seq < cut).map(|frame| frame.csn);
        let csn = in_group.or_else(|| self.catalog.csn_before(cut)).unwrap_or(end.csn);
        (cut, csn)
    }

    /// Takes a record that a leader has ordered. Unlike [`Engine::append`] it knows nothing of payloads, which the leader
    /// has seen to.
    ///
    /// # Errors
    /// The record cannot stand behind those before it: this log, or the leader's, is not what it should be.
    pub(crate) fn append_ordered(&mut self, record: Record) -> Result<Seq, AppendError> {
        match &self.phase {
            Phase::Failed(_) => return Err(AppendError::Failed),
            _ if !record.kind.is_appendable() => return Err(AppendError::Form(record.kind)),
            _ if record.body.len() > BODY_LEN_MAX => {
                return Err(AppendError::TooLarge { len: record.body.len() });
            }
            _ => {}
        }
        let (seq, last) = self.tail();
        let expected = if record.kind == Kind::COMMIT { last.next() } else { last };
        if record.csn != expected {
            return Err(AppendError::Order { last, found: record.csn });
        }
        if record.kind == Kind::MEMBERSHIP {
            let membership = Membership::decode(&record.body).ok_or(AppendError::Form(record.kind))?;
            let sharing = self.sharing.as_mut().expect("only a log that is shared has members");
            sharing.memberships.push((seq, membership));
        }
        self.take(seq, record);
        Ok(seq)
    }

    fn take(&mut self, seq: Seq, record: Record) {
        if Noted::concerns(record.kind) {
            self.noted.take(seq, record.kind, record.body.clone());
        }
        self.pending_len += record.frame_len();
        self.pending.push_back(record);
    }

    /// Begins what only a log that is shared has to do. Returns whether there is anything.
    fn flush_shared(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Some(sharing) = &mut self.sharing else { return false };
        if let Some(anew) = sharing.anew.take() {
            sharing.void.extend(self.catalog.numbers());
            self.highest = SegmentNo(self.highest.0 + 1);
            let header = SegmentHeader {
                log_id: self.catalog.log_id(),
                number: self.highest,
                first_seq: anew.seq,
                first_csn: anew.csn.next(),
                epoch: anew.epoch,
                synced: anew.seq,
                shared: Some(sharing.next_header(anew.seq, Start::Begins, false)),
            };
            self.catalog = Catalog::new(&header);
            self.catalog.settle(anew.seq);
            self.synced = anew.seq;
            self.create(header, None, effects);
        } else if let Some(cut) = sharing.cut.take() {
            sharing.void.extend(self.catalog.cut_from(cut));
            self.synced = self.synced.min(cut);
            self.rotate_as(Start::Cuts, effects);
        } else if sharing.durable < sharing.wanted {
            self.rotate_as(Start::Continues, effects);
        } else {
            return false;
        }
        true
    }

    fn create(&mut self, header: SegmentHeader, before: Option<(SegmentNo, u64)>, effects: &mut Vec<Effect>) {
        effects.push(Effect::Create { segment: header.number, header: header.encode() });
        self.phase = Phase::AwaitingCreate { header: Box::new(header), before };
    }

    fn rotate(&mut self, effects: &mut Vec<Effect>) {
        self.rotate_as(Start::Continues, effects);
    }

    fn rotate_as(&mut self, start: Start, effects: &mut Vec<Effect>) {
        let end = self.catalog.end();
        self.highest = SegmentNo(self.highest.0 + 1);
        let replaces = self.catalog.last_is_empty();
        let header = SegmentHeader {
            log_id: self.catalog.log_id(),
            number: self.highest,
            first_seq: end.seq,
            first_csn: end.csn.next(),
            epoch: self.catalog.epoch(),
            synced: self.synced,
            shared: self.sharing.as_mut().map(|sharing| sharing.next_header(end.seq, start, replaces)),
        };
        self.create(header, Some((end.segment, end.offset)), effects);
    }

    fn on_created(
        &mut self,
        header: &SegmentHeader,
        before: Option<(SegmentNo, u64)>,
        effects: &mut Vec<Effect>,
    ) {
        self.claimed = header.synced;
        self.filled_to = 0;
        if let Some(sharing) = &mut self.sharing {
            sharing.durable = sharing.creating;
            self.deletable.extend(sharing.void.drain(..));
        }
        let Some((segment, offset)) = before else { return };
        if self.sharing.is_some() {
            self.deletable.extend(self.catalog.take_empty_last());
        }
        self.catalog.add_segment(header);
        // Not synced: it guards against a lost file, not against a crash, and the system writes it soon enough.
        self.phase = Phase::AwaitingSeal;
        self.write_own(Kind::SEAL, segment, offset, effects);
    }

    fn write_group(&mut self, effects: &mut Vec<Effect>) {
        let at = self.catalog.end();
        let room = self.settings.segment_len.saturating_sub(at.offset).min(self.settings.group_len_max);
        let stamp = self.catalog.stamp(at.segment);
        let mut frames = std::mem::take(&mut self.spare_frames);
        let mut seq = at.seq;
        self.claimed = self.synced;
        while let Some(record) = self.pending.front() {
            if !frames.is_empty() && self.buffer.len() as u64 + record.frame_len() > room {
                break;
            }
            let header = FrameHeader::of(record, seq, self.synced);
            encode_frame(&mut self.buffer, stamp, &header, &record.body);
            frames.push(header);
            seq = seq.next();
            self.pending.pop_front();
        }
        let len = self.buffer.len() as u64;
        self.fill_ahead(at.offset);
        let bytes = self.buffer.split().freeze();
        effects.push(Effect::Write { segment: at.segment, offset: at.offset, bytes });
        if self.settings.durability == Durability::Disk && !planted(Bug::AcknowledgeBeforeSync) {
            effects.push(Effect::Sync { segment: at.segment });
        }
        self.phase = Phase::AwaitingGroup { frames, len };
    }

    /// Lengthens the group with zeros when it reaches behind what is filled, up to the next multiple of the step.
    fn fill_ahead(&mut self, offset: u64) {
        let end = offset + self.buffer.len() as u64;
        let step = self.settings.zero_ahead_len;
        if self.settings.durability == Durability::Memory || step == 0 || end <= self.filled_to {
            return;
        }
        self.filled_to = end.next_multiple_of(step).min(self.settings.segment_len).max(end);
        self.buffer.resize((self.filled_to - offset) as usize, 0);
    }

    fn on_durable(&mut self, mut frames: Vec<FrameHeader>, len: u64) {
        self.pending_len -= len;
        for frame in frames.drain(..) {
            self.catalog.add_record(&frame);
        }
        self.spare_frames = frames;
        if self.settings.durability == Durability::Disk {
            self.synced = self.catalog.end().seq;
        }
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        let end = self.catalog.end();
        let unsynced = self.catalog.stretches_from(self.synced);
        self.phase = Phase::AwaitingClose { syncs: unsynced.len() + 1 };
        effects.extend(unsynced.into_iter().map(|(segment, ..)| Effect::Sync { segment }));
        // The mark is carried out only if the syncs before it succeed.
        self.synced = end.seq;
        self.write_own(Kind::MARK, end.segment, end.offset, effects);
        effects.push(Effect::Sync { segment: end.segment });
    }

    fn write_own(&mut self, kind: Kind, segment: SegmentNo, offset: u64, effects: &mut Vec<Effect>) {
        let end = self.catalog.end();
        let header = FrameHeader::own(kind, end.seq, self.synced, end.csn, self.catalog.epoch());
        let mut bytes = BytesMut::with_capacity(FRAME_HEADER_LEN);
        encode_frame(&mut bytes, self.catalog.stamp(segment), &header, &[]);
        effects.push(Effect::Write { segment, offset, bytes: bytes.freeze() });
    }

    fn become_failed(&mut self, fault: Fault) {
        self.gate.shut(AppendError::Failed);
        self.pending.clear();
        self.pending_len = 0;
        self.phase = Phase::Failed(fault);
    }
}

impl Sharing {
    fn new(shared: Shared, memberships: Vec<(Seq, Membership)>) -> Sharing {
        Sharing {
            last_start: shared.start,
            shared,
            memberships,
            wanted: 0,
            creating: 0,
            durable: 0,
            cut: None,
            anew: None,
            void: Vec::new(),
        }
    }

    fn membership_at(&self, seq: Seq) -> Membership {
        let after = self.memberships.partition_point(|(from, _)| *from <= seq);
        self.memberships.get(after.saturating_sub(1)).map_or_else(Membership::default, |(_, of)| *of)
    }

    /// For the header of a segment that begins with record `first_seq`. One that takes the place of a segment without
    /// records starts as that did.
    fn next_header(&mut self, first_seq: Seq, start: Start, replaces: bool) -> Shared {
        let start = match start {
            Start::Continues if replaces => self.last_start,
            start => start,
        };
        (self.last_start, self.creating) = (start, self.wanted);
        let before = Seq(first_seq.0 - 1);
        let start = if planted(Bug::ForgetCut) { Start::Continues } else { start };
        Shared {
            start,
            committed: self.shared.committed.min(before),
            membership: self.membership_at(before),
            ..self.shared
        }
    }
}

/// How much there is of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Files, those that are to be deleted included.
    pub segments: usize,
    /// Bytes up to the last durable record, of all segments that are kept.
    pub bytes: u64,
    /// Bytes appended that are not durable yet.
    pub pending_bytes: u64,
    /// The oldest segment that is kept because a payload in it was not decided.
    pub oldest_undecided: Option<SegmentNo>,
}
