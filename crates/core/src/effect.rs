//! Everything that the core can do: one closed enum.

use smallvec::SmallVec;

use crate::event::Place;
use crate::ids::{Csn, Instant, OpId, ReplicaId, TxnId};
use crate::item::TableId;
use crate::message::Message;

/// An order to the driver. Effects are carried out in the order in which they were given.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Execute a client's statement on a replica and report [`Event::Executed`](crate::event::Event::Executed).
    Execute {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// Where.
        replica: ReplicaId,
        /// In which surroundings.
        how: How,
        /// Hold the answer (or the error) back until `Release`; otherwise it streams to the client. Of a protocol that
        /// executes at one replica only, the driver may let a held error go at once. Who is to execute a statement again
        /// drops what it held of it.
        hold: bool,
    },
    /// Let the held answer (or error) of this replica go to the client; the others' answers are compared and dropped.
    /// Of a transaction's only statement it comes just before `Acknowledge` or `Finish`, which complete the answer.
    Release {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// Whose answer.
        replica: ReplicaId,
    },
    /// Open the transaction on a replica, do again there what it has done, compare with what the client was told, and report
    /// [`Event::Revalidated`](crate::event::Event::Revalidated): the reads of its read phase, before its first write and in a new
    /// snapshot; what it has written, at another home than the one that was lost.
    Revalidate {
        /// The transaction.
        txn: TxnId,
        /// Where.
        replica: ReplicaId,
        /// In which block, which starts here: at its home, or in a new snapshot of the read phase.
        how: How,
    },
    /// End what the transaction has open on a replica without committing it. What is under way there is still reported, as
    /// [`Event::Executed`](crate::event::Event::Executed): others may wait for that.
    Leave {
        /// The transaction.
        txn: TxnId,
        /// The replica.
        replica: ReplicaId,
    },
    /// Commit what the transaction has open on a replica without a place in the order: it wrote nothing.
    Finish {
        /// The transaction.
        txn: TxnId,
        /// The commit request that is answered by it.
        op: OpId,
        /// The replica, if anything is open anywhere.
        replica: Option<ReplicaId>,
    },
    /// A statement that the driver gave up while it waited has run nowhere and is taken back. The transaction goes on
    /// as if it had not been asked for: with what it held and had open before, or left since. Its client hears of an error,
    /// after which it may return to a savepoint; if it made none, the driver rolls the transaction back.
    Withdraw {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
    },
    /// The statement (or commit) fails; the transaction is over in the core.
    Refuse {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// Why.
        reason: Refusal,
    },
    /// Make a decision durable in the log; report [`Event::Durable`](crate::event::Event::Durable).
    Append {
        /// Its place in the order.
        csn: Csn,
        /// What is decided.
        decision: Decision,
    },
    /// Commit the open transaction at a replica where it executed, as this CSN; report `Applied`, or `HomeLost`.
    ///
    /// Whether all earlier CSNs must be contained before is the protocol's
    /// [`Protocol::position`](crate::protocol::Protocol::position).
    CommitAt {
        /// The transaction.
        txn: TxnId,
        /// Its home, or one of the replicas where it executed.
        replica: ReplicaId,
        /// Its place in the order.
        csn: Csn,
    },
    /// Execute an update in its turn among `CommitAt` and `ApplyShipped`, when everything before it that it could meet is committed there, and commit it as
    /// this CSN; report `Applied`, or [`Event::Executed`](crate::event::Event::Executed) if its statements fail. What a replica gives up is done
    /// again without asking.
    ExecuteAt {
        /// The transaction.
        txn: TxnId,
        /// Its statements.
        op: OpId,
        /// Where.
        replica: ReplicaId,
        /// Its place in the order.
        csn: Csn,
    },
    /// Apply these decisions to a replica, in order; report `Applied` as they are committed, at least for the last.
    ///
    /// With [`Position::Set`](crate::protocol::Position::Set) those that the replica contains already are passed over,
    /// and several runs and `CommitAt`s may be under way on a replica at once.
    Apply {
        /// The replica.
        replica: ReplicaId,
        /// The first decision.
        from: Csn,
        /// The last decision, inclusive.
        to: Csn,
    },
    /// The commit is durable and visible: the client may hear of it.
    Acknowledge {
        /// The transaction.
        txn: TxnId,
        /// The commit request.
        op: OpId,
        /// Its place in the order.
        csn: Csn,
    },
    /// Values of the wanted sequences: per want, the first value (the others follow by the increment).
    Values {
        /// The transaction.
        txn: TxnId,
        /// The statement.
        op: OpId,
        /// One entry a want, in order; `None` when the sequence is used up or unknown.
        values: SmallVec<[Option<i64>; 2]>,
    },
    /// Carry a message to another place.
    Send {
        /// Who shall get it.
        to: Place,
        /// What it says.
        message: Message,
    },
    /// Carry a message, with the text of its transaction or, if that has executed here, with its writes, to all nodes, this one included, in one order with all others; report
    /// [`Event::Delivered`](crate::event::Event::Delivered) at each.
    Multicast {
        /// The transaction.
        txn: TxnId,
        /// What is said.
        message: Message,
    },
    /// Carry a message to another place together with the writes that the driver kept for a transaction.
    Ship {
        /// Whose writes.
        txn: TxnId,
        /// Who shall get them.
        to: Place,
        /// What is said with them.
        message: Message,
    },
    /// Apply the writes that came with a shipped message to a replica, in a database transaction of their own; report
    /// [`Event::ShippedApplied`](crate::event::Event::ShippedApplied).
    ApplyShipped {
        /// Where the transaction was executed; perhaps this very replica, if it failed before it committed that. If it contains the
        /// writes nevertheless, they are not applied, and reported all the same.
        origin: Place,
        /// The transaction, by the origin's numbers.
        txn: TxnId,
        /// Where to apply it. Several may be under way at once. With
        /// [`Position::Prefix`](crate::protocol::Position::Prefix) they and whatever is to be committed by `CommitAt` are committed in the order in
        /// which that was asked for; what takes the place of a lost commit has its place.
        replica: ReplicaId,
    },
    /// Do not apply the writes that came with a shipped message: what is applied next has changed all that they would. What is kept of them may go.
    PassOver {
        /// Where the transaction was executed.
        origin: Place,
        /// The transaction, by the origin's numbers.
        txn: TxnId,
        /// Where it is not applied.
        replica: ReplicaId,
    },
    /// Nothing will be asked any more for this transaction on any replica: what is kept for it may go. Given once for
    /// every transaction by protocols that execute writes [everywhere](crate::protocol::Writes::Everywhere), since
    /// there the client is answered while replicas still execute; others end with the client's answer.
    Forget {
        /// The transaction.
        txn: TxnId,
    },
    /// Tell whoever looks after the application something about a transaction.
    Notice {
        /// The transaction.
        txn: TxnId,
        /// What.
        notice: Notice,
    },
    /// Report [`Event::Timer`](crate::event::Event::Timer) at a time.
    SetTimer {
        /// A number to know it by.
        timer: u64,
        /// When.
        at: Instant,
    },
}

/// In which surroundings a statement runs on a replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// By itself, outside a transaction block.
    Alone,
    /// In the transaction's REPEATABLE READ, READ ONLY block; `open` says that the block starts here.
    Snapshot {
        /// Start the block.
        open: bool,
    },
    /// In the transaction's READ COMMITTED block at its home; `open` says that the block starts here.
    Home {
        /// Start the block.
        open: bool,
    },
}

/// What is worth telling, though nothing failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Notice {
    /// The transaction declared no tables and none were learned for its like, so it holds every table until it ends.
    EveryTableLocked,
}

/// What is made durable.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// The transaction commits, with the writes that the driver kept for it.
    Commit(TxnId),
    /// A sequence's values up to and including this one may be given out.
    Reserve {
        /// The sequence.
        sequence: TableId,
        /// The last value reserved; the one before the sequence's first if it shall begin anew, with nothing reserved.
        last: i64,
    },
}

/// Why a statement was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// A cycle of waiting transactions; this was its youngest member (40P01).
    Deadlock,
    /// What the transaction had read changed before it wrote (40001).
    ReadsChanged,
    /// A definition changed after the transaction had read and before it wrote, whether or not it concerns what was read (40001).
    DefinitionsChanged,
    /// The replica on which the transaction was executing died, and it cannot be done again elsewhere (40001).
    HomeLost,
    /// The replica died after a part of the answer had been sent (40001).
    AnswerCut,
    /// The driver cancelled the wait (57014 or a time-out's own code), and with it the transaction: of one statement, or
    /// while it was to be committed, or where the protocol does not [`Withdraw`](Effect::Withdraw) statements.
    Cancelled,
    /// The statement touches a table that the transaction did not declare at its start; the application must declare
    /// it (55000).
    Undeclared,
    /// The transaction declared no tables, and it touched one that its like had not touched before; it has been
    /// learned, so the transaction may be tried again (40001).
    Mispredicted,
}
