//! One open transaction.

use crate::event::{Begin, Statement, StatementKind};
use crate::ids::{Csn, OpId, ReplicaId};
use crate::item::{Access, AccessSet, Item, Mode, Space, TableId};
use crate::prediction::{Predictor, Prefix};

use smallvec::SmallVec;
use std::borrow::Cow;

/// Reads noted for prediction, one by one and table by table; what a longer transaction reads is not predicted.
const NOTES_MAX: usize = 128;
/// Replicas that a transaction may lose while they execute for it, the same one counted anew each time it has come up. Beyond it
/// is refused what may well be the reason: a statement that crashes servers would crash one after the other.
const LOSSES_MAX: usize = 3;

pub(super) type Tables = SmallVec<[TableId; 2]>;

/// What a transaction waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The client's next step.
    AwaitingClient,
    /// Any replica that contains this commit.
    AwaitingReplica(Csn),
    /// Items.
    AwaitingGrant,
    /// Items that only answers showed, before the decision.
    AwaitingOwed,
    /// Open read phases to end, before it changes a definition.
    AwaitingSnapshots,
    /// Changes of definitions to end, before its read phase starts.
    AwaitingSchema,
    /// Its home to contain the last writers of its items.
    AwaitingHome,
    /// Its reads, run again at the home.
    AwaitingRevalidation,
    /// A replica's answer.
    Executing,
    /// Its decision to be durable.
    AwaitingDurable,
    /// Some replica to have committed it.
    AwaitingCommit,
}

impl State {
    pub(super) fn waits_in_core(self) -> bool {
        matches!(
            self,
            State::AwaitingReplica(_)
                | State::AwaitingGrant
                | State::AwaitingOwed
                | State::AwaitingSnapshots
                | State::AwaitingSchema
                | State::AwaitingHome
        )
    }
}

/// A statement that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) op: OpId,
    pub(super) statement: Statement,
    /// The tables of which it takes in update mode what it reads.
    pub(super) predicted: Tables,
    /// How far its transaction had got before.
    pub(super) before: Mark,
    /// How many items its transaction held before it asked for its own.
    pub(super) held_before: usize,
    /// It is the first of its transaction that changes definitions.
    pub(super) begins_schema_change: bool,
    /// Where it was sent, and the time that was expected of it.
    pub(super) sent: Option<(ReplicaId, f64)>,
    /// It takes all items of its text, whatever its answer would show.
    pub(super) is_strict: bool,
}

/// What a transaction had noted before a statement: if that is withdrawn, the rest is forgotten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    prefix: Prefix,
    reads: usize,
    referenced: usize,
    notes: usize,
    had_home: bool,
}

impl Mark {
    /// The same of a statement that is asked for again at a home, and holds what it was granted the first time.
    pub(super) fn at_home(self) -> Mark {
        Mark { had_home: true, ..self }
    }

    /// Whether anything was read in the read phase so far.
    pub(super) fn has_read(&self) -> bool {
        self.reads > 0
    }
}

impl Pending {
    pub(super) fn new(op: OpId, statement: Statement, predicted: Tables, before: Mark) -> Pending {
        Pending {
            op,
            statement,
            predicted,
            before,
            held_before: 0,
            begins_schema_change: false,
            sent: None,
            is_strict: false,
        }
    }

    /// Whether some of its items are taken by its answer.
    pub(super) fn is_shown(&self) -> bool {
        !self.is_strict && !self.statement.shown.is_empty()
    }

    /// The items that it takes before it runs.
    pub(super) fn access(&self) -> Cow<'_, [Access]> {
        match self.is_shown() {
            true => self.statement.access_beside_shown(),
            false => Cow::Borrowed(&self.statement.access),
        }
    }

    /// Whether it changes definitions or locks a whole table, and so locks out in a server even who only looks at it, or draws
    /// from its sequences. What was told when it may run, and has still to be applied at its home, may do either: it would wait
    /// there, and the transaction for its turn after it. Whoever holds such an item later has its turn later.
    pub(super) fn locks_readers_out(&self) -> bool {
        let is_lock = self.statement.kind == StatementKind::LockingRead;
        self.statement.access.iter().filter(|access| access.mode == Mode::Exclusive).any(|access| {
            access.item.space == Space::Schema
                || access.item.table == TableId::ALL
                || is_lock && access.item.space == Space::Rows && access.item.equals.is_empty()
        })
    }

    pub(super) fn writes(&self) -> bool {
        matches!(self.statement.kind, StatementKind::Write | StatementKind::Schema)
    }
}

/// The snapshot of a read phase: it contains every commit up to `position`, and perhaps later ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    pub(super) replica: ReplicaId,
    pub(super) position: Csn,
    /// What was read has been found to be as it was at this position: an earlier one, until the reads of a snapshot that was left
    /// have come out the same in this one.
    pub(super) reads_hold_at: Csn,
}

#[derive(Debug)]
struct ReadNote {
    prefix: Prefix,
    access: AccessSet,
    hit: bool,
}

#[derive(Debug)]
pub(super) struct Txn {
    pub(super) autocommit: bool,
    pub(super) read_only: bool,
    pub(super) prefix: Prefix,
    pub(super) state: State,
    pub(super) pending: Option<Pending>,
    pub(super) snapshot: Option<Snapshot>,
    /// What was told when the first statement of the read phase arrived.
    pub(super) snapshot_floor: Option<Csn>,
    /// The position of a snapshot that was left, or lost, until the next one is chosen or a statement has run at a home.
    pub(super) left_snapshot: Option<Csn>,
    /// What the read phase has read: locked and validated at the first write.
    pub(super) reads: AccessSet,
    /// The rows that must go on existing for what it wrote, in a mode that counts as writing.
    pub(super) referenced: AccessSet,
    /// Whether it has asked for items, and so must let them go.
    pub(super) wants_home: bool,
    pub(super) home: Option<ReplicaId>,
    /// What its home must contain, whatever it conflicts with: also another one, where it locks again what it has locked.
    pub(super) home_floor: Csn,
    /// It has left its read phase. Where it has no home, that was lost, and its next statement finds another.
    pub(super) had_home: bool,
    /// A statement was executed at a home: if that is lost, it is done again at the next one.
    pub(super) ran_at_home: bool,
    pub(super) wrote: bool,
    /// Replicas that were lost while they executed for it, and the how-manieth time they were up.
    losses: SmallVec<[(ReplicaId, u32); LOSSES_MAX]>,
    /// What the home contained when the last statement was sent there.
    pub(super) position: Csn,
    /// The position that it keeps from being forgotten: of its last write, or of the first that owes.
    pub(super) pinned: Option<Csn>,
    /// Items shown only by answers that others held then, and the least that a home contained when such a statement ran.
    pub(super) owed: AccessSet,
    pub(super) owed_since: Csn,
    /// A statement has missed a commit on an item that only its answer showed.
    pub(super) outdated: bool,
    pub(super) commit_op: OpId,
    notes: Vec<ReadNote>,
    /// Of its read phase, and of rows referred to, that are kept one by one.
    items_max: usize,
}

impl Txn {
    pub(super) fn new(begin: &Begin, autocommit: bool, items_max: usize) -> Txn {
        Txn {
            autocommit,
            read_only: begin.read_only,
            prefix: Prefix::of_form(begin.form),
            state: State::AwaitingClient,
            pending: None,
            snapshot: None,
            snapshot_floor: None,
            left_snapshot: None,
            reads: AccessSet::new(),
            referenced: AccessSet::new(),
            wants_home: false,
            home: None,
            home_floor: Csn(0),
            had_home: false,
            ran_at_home: false,
            wrote: false,
            losses: SmallVec::new(),
            position: Csn(0),
            pinned: None,
            owed: AccessSet::new(),
            owed_since: Csn(0),
            outdated: false,
            commit_op: OpId(0),
            notes: Vec::new(),
            items_max,
        }
    }

    /// A read that is its own transaction. Nothing will be learned from it, so that how it began does not matter.
    pub(super) fn of_lone_read() -> Txn {
        let begin = Begin {
            txn: crate::ids::TxnId(0),
            session: crate::ids::SessionId(0),
            read_only: true,
            form: 0,
            declared: None,
            stale_ok_ns: None,
        };
        Txn::new(&begin, true, 0)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            prefix: self.prefix,
            reads: self.reads.len(),
            referenced: self.referenced.len(),
            notes: self.notes.len(),
            had_home: self.had_home,
        }
    }

    /// Forgets a statement that has run nowhere. What it taught about statements that write stays learned.
    pub(super) fn return_to(&mut self, mark: Mark) {
        self.prefix = mark.prefix;
        self.reads.truncate(mark.reads);
        self.referenced.truncate(mark.referenced);
        self.notes.truncate(mark.notes);
        if !mark.had_home {
            // It is in its read phase, and what that has read is not held any more.
            (self.had_home, self.wants_home) = (false, false);
        }
        if !self.is_open() {
            // What it reads next need not be older than that.
            self.snapshot_floor = None;
        }
    }

    /// Whether it has anything open on a replica.
    fn is_open(&self) -> bool {
        self.home.is_some() || self.snapshot.is_some()
    }

    pub(super) fn note_read(&mut self, statement: &Statement) {
        let access = &statement.access;
        if self.autocommit || access.is_empty() {
            return;
        }
        if !self.had_home {
            // What is shown by the answer is remembered with it.
            self.remember_reads(&statement.access_beside_shown());
        }
        for table in tables(access) {
            if self.notes.len() < NOTES_MAX {
                let access = access.iter().filter(|access| access.item.table == table).cloned().collect();
                self.notes.push(ReadNote { prefix: self.prefix.on(table), access, hit: false });
            }
        }
    }

    /// The tables that its next statement, which reads, will be followed by a write of.
    pub(super) fn predicted(&self, access: &AccessSet, predictor: &Predictor) -> Tables {
        if self.autocommit || self.read_only {
            return Tables::new();
        }
        tables(access).into_iter().filter(|table| predictor.will_write(self.prefix.on(*table))).collect()
    }

    pub(super) fn remember_reads(&mut self, access: &[Access]) {
        for access in access {
            add_bounded(&mut self.reads, self.items_max, access.clone());
        }
    }

    /// A write was asked for: the reads that conflict with it are the ones that should have been in update mode.
    pub(super) fn note_write(&mut self, access: &AccessSet, predictor: &mut Predictor) {
        for note in self.notes.iter_mut().filter(|note| !note.hit) {
            let written = |read: &Access| {
                let changes = |write: &&Access| write.mode.writes() && write.mode != Mode::Insert;
                access.iter().filter(changes).any(|write| write.conflicts(read))
            };
            if note.access.iter().any(written) {
                note.hit = true;
                predictor.hit(note.prefix);
            }
        }
    }

    /// What a foreign key refers to is held key-shared, which a stronger mode held before may cover; so it is kept apart.
    pub(super) fn note_references(&mut self, accesses: &[Access]) {
        for access in accesses.iter().filter(|access| access.mode == Mode::KeyShared) {
            let access = Access::new(access.item.clone(), Mode::Exclusive);
            add_bounded(&mut self.referenced, self.items_max, access);
        }
    }

    pub(super) fn learn(&self, predictor: &mut Predictor) {
        for note in self.notes.iter().filter(|note| !note.hit) {
            predictor.miss(note.prefix);
        }
    }

    /// What must be granted before the pending statement may run: its own items and, at the first of the home's
    /// statements, everything that the read phase has read.
    pub(super) fn next_request(&self) -> AccessSet {
        let Some(pending) = &self.pending else { return AccessSet::new() };
        let own = in_update_mode(&pending.access(), &pending.predicted);
        if self.had_home {
            return own;
        }
        let read = self.reads.iter().filter(|read| !own.iter().any(|own| own.covers(read)));
        let read: AccessSet = read.cloned().collect();
        own.into_iter().chain(read).collect()
    }

    /// A replica was lost, up for the `ups`-th time, while it executed for the transaction. Returns whether it may go on.
    pub(super) fn may_lose(&mut self, replica: ReplicaId, ups: u32) -> bool {
        if !self.losses.contains(&(replica, ups)) {
            self.losses.push((replica, ups));
        }
        self.losses.len() < LOSSES_MAX
    }

    pub(super) fn uses(&self, replica: ReplicaId) -> bool {
        self.home == Some(replica) || self.snapshot.is_some_and(|snapshot| snapshot.replica == replica)
    }
}

fn tables(access: &AccessSet) -> Tables {
    let mut tables: Tables = access.iter().map(|access| access.item.table).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// The request of a read of which what it reads of some tables is known to be written afterwards.
pub(super) fn in_update_mode(access: &[Access], predicted: &Tables) -> AccessSet {
    let mut access: AccessSet = access.iter().cloned().collect();
    let read = |access: &&mut Access| access.mode == Mode::Shared && predicted.contains(&access.item.table);
    access.iter_mut().filter(read).for_each(|access| access.mode = Mode::Update);
    access
}

/// Adds an item, or its table when there are many already.
fn add_bounded(items: &mut AccessSet, items_max: usize, access: Access) {
    let access = if items.len() < items_max {
        access
    } else {
        Access::new(Item::table(access.item.table), access.mode)
    };
    if !items.contains(&access) {
        items.push(access);
    }
}
