//! Everything that can wake the core: one closed enum.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{ClassId, Csn, NodeId, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, AccessSet, ColumnSet, Item, Mode, TableId};
use crate::message::Message;

/// Where a role of a protocol lives: what an event is addressed to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The scheduler of a node, through which client statements pass.
    Scheduler(NodeId),
    /// The one giver of sequence numbers.
    Sequencer,
    /// The database proxy in front of a replica.
    Proxy(ReplicaId),
    /// A node that has a database of its own (invalidation, wide area).
    Peer(NodeId),
}

/// Something happened: the input of every protocol.
#[derive(Clone, PartialEq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "events are handed over once; boxing would cost an allocation each"
)]
pub enum Event {
    /// A client's transaction starts; its statements follow.
    Begin(Begin),
    /// A transaction of exactly one statement: `Begin`, `Statement` and `Commit` in one.
    Autocommit {
        /// What starts.
        begin: Begin,
        /// Its only statement, with `op` 0.
        statement: Statement,
    },
    /// A client wants the next statement of its transaction executed; its previous one has been answered.
    Statement {
        /// The transaction, begun before.
        txn: TxnId,
        /// The statement's place in the transaction.
        op: OpId,
        /// What the statement does.
        statement: Statement,
    },
    /// A client wants its transaction committed; `op` names the request.
    Commit {
        /// The transaction.
        txn: TxnId,
        /// The commit's place in the transaction.
        op: OpId,
    },
    /// A client ends its transaction, has vanished, or its transaction failed: everything it holds is let go.
    Rollback {
        /// The transaction.
        txn: TxnId,
    },
    /// The driver gives up a statement that still waits in the core (a limit passed, or the client asked).
    Cancel {
        /// The transaction.
        txn: TxnId,
        /// The waiting statement.
        op: OpId,
    },
    /// A replica answered an [`Effect::Execute`](crate::effect::Effect::Execute).
    Executed {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// Where it ran.
        replica: ReplicaId,
        /// What came of it.
        outcome: Outcome,
        /// Time from sending to the last byte of the answer.
        elapsed_ns: u64,
    },
    /// What a transaction had done before was done again where it goes on.
    Revalidated {
        /// The transaction.
        txn: TxnId,
        /// Where they ran.
        replica: ReplicaId,
        /// Whether every answer was, byte for byte, what the client had been told.
        same: bool,
    },
    /// Every decision up to this one is durable in the log.
    Durable {
        /// The last durable decision.
        csn: Csn,
    },
    /// A replica contains every transaction up to this one. With [`Position::Set`](crate::protocol::Position::Set): it
    /// contains this one and, at the end of a run, everything in the run.
    Applied {
        /// The replica.
        replica: ReplicaId,
        /// Its new position.
        csn: Csn,
    },
    /// An execution that was asked for begins only now: whatever is committed where it runs is seen by it. From drivers that make executions wait.
    Opening {
        /// The transaction.
        txn: TxnId,
    },
    /// The open transaction at its home can no longer be committed there; the replica itself is well.
    HomeLost {
        /// The transaction.
        txn: TxnId,
        /// The replica.
        replica: ReplicaId,
    },
    /// A replica was fenced, and its position read: it may serve.
    ReplicaUp {
        /// The replica.
        replica: ReplicaId,
        /// It contains everything up to this; with [`Position::Set`](crate::protocol::Position::Set) perhaps also some
        /// of what follows.
        applied: Csn,
    },
    /// A replica must not be used until it is reported up again.
    ReplicaDown {
        /// The replica.
        replica: ReplicaId,
    },
    /// There is one more replica, with the next number; it is down until it is reported up. Only to a protocol that
    /// [changes replicas](crate::protocol::Protocol::changes_replicas), as the two that follow.
    ReplicaAdded {
        /// Its number.
        replica: ReplicaId,
    },
    /// A replica is to leave for good: nothing is begun on it any more as long as another one serves, and what is open
    /// there goes on. Its [status](crate::protocol::ReplicaStatus::open) says when that has ended.
    ReplicaLeaving {
        /// The replica.
        replica: ReplicaId,
    },
    /// A replica has left for good; whatever was open there is lost. Its number is not given again.
    ReplicaRemoved {
        /// The replica.
        replica: ReplicaId,
    },
    /// Somebody outside the core waits until a replica contains a commit (a query of its catalogue, a comparison of
    /// contents): whatever there is to apply up to it is not put off any more.
    Wanted {
        /// The replica.
        replica: ReplicaId,
        /// The commit; at most the last one decided counts.
        csn: Csn,
    },
    /// Somebody has looked who waits for whom where the core does not know of it: in servers (a table that is locked
    /// whole, and who reads it), or for locks of sessions.
    WaitsOutside {
        /// Pairs of who waits and for whom. A transaction that is not the core's is only a link between others.
        waits: Vec<(TxnId, TxnId)>,
    },
    /// Writes that were executed elsewhere and shipped are applied to a replica.
    ShippedApplied {
        /// Where they were executed.
        origin: Place,
        /// The transaction, by the origin's numbers.
        txn: TxnId,
        /// Where they were applied.
        replica: ReplicaId,
    },
    /// A transaction wants values of sequences before its statement is bound.
    NextValues {
        /// The transaction; it need not have begun.
        txn: TxnId,
        /// The statement that wants them.
        op: OpId,
        /// Which sequences, and how many values of each; 0 makes durable where a sequence stands that was defined anew.
        wants: SmallVec<[(TableId, u32); 2]>,
    },
    /// The definition of a sequence, and the first value that nobody has been given.
    Sequence {
        /// The sequence's identity.
        sequence: TableId,
        /// Its rules and state.
        definition: SequenceDefinition,
    },
    /// A message from another place of the protocol.
    Message {
        /// Who sent it.
        from: Place,
        /// What it says.
        message: Message,
    },
    /// A message that was [multicast](crate::effect::Effect::Multicast) has come so far here. Who sent it hears of it like all others, and of
    /// each message of each moment once, in this order.
    Delivered {
        /// Who sent it.
        from: NodeId,
        /// How far it has come.
        moment: Moment,
        /// Its place among all messages, from 1 on; 0 while that is not known.
        place: Csn,
        /// What it says.
        message: Message,
    },
    /// A peer is not heard any more: what it was to send may never come, and whoever can does without it.
    PeerLost {
        /// Which.
        node: NodeId,
    },
    /// A peer that was lost is heard again.
    PeerBack {
        /// Which.
        node: NodeId,
    },
    /// A timer set by [`Effect::SetTimer`](crate::effect::Effect::SetTimer) has run out.
    Timer {
        /// The number given when it was set.
        timer: u64,
    },
}

/// What a driver's multicast tells of a message, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Moment {
    /// It is here.
    Received,
    /// Its place among all messages is known, and all that come before it were told to be ordered before.
    Ordered,
    /// No failure that is survived loses it, nor any that comes before it; these were told to be stable before.
    Stable,
}

/// The start of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct Begin {
    /// The new transaction, greater than every earlier one of this node.
    pub txn: TxnId,
    /// The client's connection.
    pub session: SessionId,
    /// The client promised not to write (READ ONLY).
    pub read_only: bool,
    /// What transactions that begin alike have in common: a hash of the form of BEGIN, application name and user.
    pub form: u64,
    /// The items that the whole transaction will touch, where the application or a batch declares them.
    pub declared: Option<AccessSet>,
    /// How old what it reads may be, in nanoseconds, where the application says so; else as fresh as the protocol promises.
    pub stale_ok_ns: Option<u64>,
}

/// What the core must know of a statement; its text and parameters stay with the driver.
#[derive(Clone, PartialEq, Debug)]
pub struct Statement {
    /// The statement's class, by which its cost and its future are learned.
    pub class: ClassId,
    /// Reads or writes.
    pub kind: StatementKind,
    /// The items that it reads and writes.
    pub access: AccessSet,
    /// Of a read, items of `access` of which its answer will show the rows that matter, and so the items of these: whole tables
    /// that are joined by key. Where that answer is held, or noted, until these are known, nobody else needs the whole items.
    pub shown: Vec<Access>,
    /// The tables that its transaction will not touch after it, where the application says so; those that were named before
    /// may be named again.
    pub last_use: Option<Arc<[TableId]>>,
    /// If all that its transaction does is to change values of one row: which.
    pub change: Option<RowChange>,
}

/// Values of one row that are changed, while nothing else is. Whoever tells others of it sees to it that there was such a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowChange {
    /// The row, by its key. Two are the same if this is, so hashes of what it equals must not collide: a key of integers.
    pub row: Item,
    /// The columns.
    pub columns: ColumnSet,
    /// Whether nothing that the database contains decides about the values. That the row is there, does.
    pub is_blind: bool,
}

impl RowChange {
    /// Whether nobody can tell, after this change, whether an earlier one was made.
    #[must_use]
    pub fn hides(&self, earlier: &RowChange) -> bool {
        let is_told = RowChange::tells(earlier.columns) && RowChange::tells(self.columns);
        self.is_blind && is_told && self.row == earlier.row && self.columns.contains(earlier.columns)
    }

    /// Whether these columns can be told apart from others.
    #[must_use]
    pub fn tells(columns: ColumnSet) -> bool {
        !columns.overlaps(ColumnSet::SHARED)
    }
}

impl Statement {
    /// A statement of which nobody says more than its items.
    #[must_use]
    pub fn new(class: ClassId, kind: StatementKind, access: AccessSet) -> Statement {
        Statement { class, kind, access, shown: Vec::new(), last_use: None, change: None }
    }

    /// What must be had of its items before it runs, if its answer shows others: tables whose rows it shows must not go away, nor
    /// be locked as a whole, since a server locks them, too.
    #[must_use]
    pub fn access_beside_shown(&self) -> Cow<'_, [Access]> {
        if self.shown.is_empty() {
            return Cow::Borrowed(&self.access);
        }
        let before = |access: &Access| match self.shown.contains(access) {
            true => Access::new(access.item.clone(), Mode::KeyShared),
            false => access.clone(),
        };
        self.access.iter().map(before).collect()
    }
}

/// What a statement may do to the data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StatementKind {
    /// Changes nothing and locks nothing.
    Read,
    /// Changes nothing but must hold what it reads (FOR UPDATE, LOCK TABLE, a savepoint at the home).
    LockingRead,
    /// Changes rows.
    Write,
    /// Changes definitions, or shows older snapshots an empty table.
    Schema,
}

/// What came of a statement at a replica.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It ran. `returned` holds items that only its answer showed; they are granted before the decision.
    Done {
        /// Items not shown by the text. Of a statement with [`Statement::shown`], those rows; or `shown` itself, if they are
        /// too many.
        returned: Vec<Access>,
    },
    /// It ran, and its answer, which was to be held, became too large for that. It was dropped: to be executed once more, and not
    /// held.
    TooLarge,
    /// The database refused it; the transaction can only be rolled back (or back to a savepoint).
    Failed,
    /// The connection to the replica was lost before the answer was complete.
    Lost {
        /// Whether the client has already seen a part of the answer.
        answer_begun: bool,
    },
}

/// The rules of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceDefinition {
    /// The next value that nobody has been given.
    pub next: i64,
    /// Distance between values, not 0.
    pub increment: i64,
    /// Smallest value.
    pub min: i64,
    /// Greatest value.
    pub max: i64,
    /// Whether it starts again when it is used up.
    pub cycle: bool,
}
