//! One transaction as the scheduler knows it (CAS 4.2).

use smallvec::SmallVec;

use crate::event::{Begin, Statement};
use crate::ids::{ClassId, Csn, OpId, ReplicaId, SequenceNumber, SessionId};
use crate::item::Access;
use crate::prediction::Prefix;
use crate::scheduling::Tag;
use crate::table_queues::TableLocks;
use crate::table_versions::{Picked, Versions};

use super::Scheduler;

/// What a transaction waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its first statement, which helps to tell what tables it will touch.
    AwaitingFirst,
    /// A replica in service.
    AwaitingReplica,
    /// Its sequence number.
    AwaitingNumber,
    /// Its locks, at as many replicas as the policy wants.
    AwaitingGrant,
    /// The client's next step.
    AwaitingClient,
    /// A replica where its locks are granted and its earlier writes done, to read from.
    AwaitingPlace,
    /// An answer.
    Executing,
    /// The answers that are still to come of an attempt that is given up, before it starts again.
    AwaitingQuiet,
    /// Replicas to have let go of that attempt.
    AwaitingClear,
    /// Decisions that must come before its own.
    AwaitingDecision,
    /// Its decision to be durable.
    AwaitingDurable,
    /// Replicas to have committed it.
    AwaitingCommit,
    /// The one replica that commits what wrote nothing; the others let it go.
    AwaitingFinish(OpId, ReplicaId),
    /// Replicas to have let it go.
    AwaitingEnd,
    /// The client's next step, which will be refused: every replica that executed it is gone.
    Doomed,
}

impl State {
    /// Whether a statement that is pending in this state has not been sent to a database.
    pub(super) fn waits_in_core(self) -> bool {
        matches!(
            self,
            State::AwaitingReplica
                | State::AwaitingNumber
                | State::AwaitingGrant
                | State::AwaitingPlace
                | State::AwaitingQuiet
                | State::AwaitingClear
        )
    }

    /// Whether nothing that the client or a statement does can change its fate any more.
    pub(super) fn is_ending(self) -> bool {
        matches!(
            self,
            State::AwaitingDecision
                | State::AwaitingDurable
                | State::AwaitingCommit
                | State::AwaitingFinish(..)
                | State::AwaitingEnd
        )
    }
}

/// A statement that has not been answered to the client.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) op: OpId,
    pub(super) statement: Statement,
    pub(super) sent: Sent,
}

/// Where a pending statement is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Sent {
    Nowhere,
    /// Sent to one replica; with the time expected of it.
    Read(ReplicaId, f64),
    Everywhere,
}

/// The record of a replicated operation (CAS 4.2).
#[derive(Debug)]
pub(super) struct Write {
    pub(super) op: OpId,
    pub(super) class: ClassId,
    pub(super) expected_ns: f64,
    /// The only replica whose answer counts: that on which the statement before failed.
    pub(super) authority: Option<ReplicaId>,
    /// Whose answer goes to the client, and whether it is an error.
    pub(super) answer: Option<(ReplicaId, bool)>,
}

/// What a replica does for a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Nothing: it was not in service when the transaction started, or has gone since.
    Absent,
    /// Executes it as it comes.
    Executes,
    /// Holds its locks, and applies it once it is decided.
    Follows,
    /// It has ended there.
    Ended,
}

/// A transaction at one replica: the completion status that conflict awareness needs (CAS 3.5).
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) part: Part,
    pub(super) granted: bool,
    /// How many of the transaction's writes have been done here.
    pub(super) writes_done: usize,
    /// The last of them failed, and the proxy waits to hear whether it failed elsewhere.
    pub(super) halted: bool,
    /// Something of it was sent here, so a block is open.
    pub(super) open: bool,
    /// Its end was sent here; a second one would let go of what is not its own any more.
    pub(super) ends: bool,
    /// The tables that it is known to have let go here before its end.
    pub(super) released: Picked,
}

impl At {
    pub(super) const ABSENT: At = At {
        part: Part::Absent,
        granted: false,
        writes_done: 0,
        halted: false,
        open: false,
        ends: false,
        released: Picked::NONE,
    };

    pub(super) fn with_part(part: Part) -> At {
        At { part, ..At::ABSENT }
    }

    /// Whether it will still report that the transaction has ended there.
    pub(super) fn takes_part(&self) -> bool {
        matches!(self.part, Part::Executes | Part::Follows)
    }

    /// Whether it takes part in the transaction and has not been told of its end. It counts as told from now on.
    fn tell_end(&mut self) -> bool {
        self.takes_part() && !std::mem::replace(&mut self.ends, true)
    }
}

#[derive(Debug)]
pub(super) struct Txn {
    pub(super) session: SessionId,
    /// How old what it reads may be, in nanoseconds.
    pub(super) stale_ok_ns: Option<u64>,
    pub(super) autocommit: bool,
    pub(super) read_only: bool,
    /// Whether the application named its tables.
    pub(super) declared: bool,
    /// By which its tables are learned: the form of its BEGIN and its first statement.
    pub(super) prefix: Prefix,
    /// All tables that it may touch, and those that it has touched.
    pub(super) locks: TableLocks,
    pub(super) touched: TableLocks,
    pub(super) number: Option<SequenceNumber>,
    /// Where versions decide: those of its tables, and which of them it lets go, or has, before its end.
    pub(super) versions: Versions,
    pub(super) released: Picked,
    /// Whether some replica is known to have committed it.
    pub(super) done: bool,
    pub(super) state: State,
    pub(super) pending: Option<Pending>,
    pub(super) writes: SmallVec<[Write; 1]>,
    /// By replica; empty until its locks are asked for.
    pub(super) at: Vec<At>,
    /// The replica that serves it from its start to its end, where there is one (CAS 6.2, 6.3).
    pub(super) chosen: Option<ReplicaId>,
    /// The client has seen something of it, so it cannot start again unnoticed.
    pub(super) answered: bool,
    pub(super) wrote: bool,
    /// Its last statement failed here, and only this replica knows what may follow.
    pub(super) failed_at: Option<ReplicaId>,
    /// An answer showed a table that is not locked.
    pub(super) strayed: bool,
    /// A single statement that was started again with such a table, from which its class is learned.
    pub(super) widened: bool,
    /// What it has touched has been learned.
    pub(super) learned: bool,
    pub(super) commit_op: OpId,
    pub(super) csn: Option<Csn>,
    pub(super) acknowledged: bool,
}

impl Txn {
    pub(super) fn new(begin: &Begin, autocommit: bool) -> Txn {
        Txn {
            session: begin.session,
            stale_ok_ns: begin.stale_ok_ns,
            autocommit,
            read_only: begin.read_only,
            declared: begin.declared.is_some(),
            prefix: Prefix::of_form(begin.form),
            locks: TableLocks::default(),
            touched: TableLocks::default(),
            number: None,
            versions: Versions::default(),
            released: Picked::NONE,
            done: false,
            state: State::AwaitingFirst,
            pending: None,
            writes: SmallVec::new(),
            at: Vec::new(),
            chosen: None,
            answered: false,
            wrote: false,
            failed_at: None,
            strayed: false,
            widened: false,
            learned: false,
            commit_op: OpId(0),
            csn: None,
            acknowledged: false,
        }
    }

    pub(super) fn at(&self, replica: ReplicaId) -> At {
        self.at.get(usize::from(replica.0)).copied().unwrap_or(At::ABSENT)
    }

    pub(super) fn at_mut(&mut self, replica: ReplicaId) -> Option<&mut At> {
        self.at.get_mut(usize::from(replica.0))
    }

    /// The replicas that satisfy a condition.
    pub(super) fn replicas(&self, which: impl Fn(&At) -> bool) -> impl Iterator<Item = ReplicaId> {
        let numbered = self.at.iter().enumerate();
        numbered.filter(move |(_, at)| which(at)).map(|(index, _)| ReplicaId(index as u16))
    }

    /// Replicas that must be told that it ends; they count as told from now on.
    pub(super) fn tell_ends(&mut self) -> Vec<ReplicaId> {
        let numbered = self.at.iter_mut().enumerate();
        numbered.filter_map(|(index, at)| at.tell_end().then_some(ReplicaId(index as u16))).collect()
    }

    /// The replica chosen for it, as long as that executes it.
    pub(super) fn chosen(&self) -> Option<ReplicaId> {
        self.chosen.filter(|replica| self.at(*replica).part == Part::Executes)
    }

    /// Whether the answer of this read is awaited from this replica.
    pub(super) fn reads_at(&self, op: OpId, replica: ReplicaId) -> bool {
        self.pending.as_ref().is_some_and(|pending| {
            pending.op == op && matches!(pending.sent, Sent::Read(at, _) if at == replica)
        })
    }

    /// Whether its locks are granted here and everything that it wrote before is done (CAS 3.5).
    pub(super) fn is_complete_at(&self, at: &At) -> bool {
        at.part == Part::Executes && at.granted && at.writes_done == self.writes.len()
    }

    /// The replica is gone, with everything that was open on it.
    pub(super) fn lose(&mut self, replica: ReplicaId) {
        if let Some(at) = self.at_mut(replica) {
            at.part = Part::Absent;
        }
    }

    /// What is open at the replica is gone; the transaction's locks are still held there.
    pub(super) fn follow(&mut self, replica: ReplicaId) {
        if let Some(at) = self.at_mut(replica).filter(|at| at.part == Part::Executes) {
            at.part = Part::Follows;
        }
    }

    /// An answer showed what its text did not.
    pub(super) fn note_returned(&mut self, returned: &[Access]) {
        if !returned.is_empty() {
            let tables = TableLocks::of(returned);
            self.strayed |= !self.locks.covers(&tables) || Scheduler::touches_released(self, &tables);
            self.touched = self.touched.union(&tables);
        }
    }

    /// With what its end is tagged: everything that it holds is let go (DV 4.6).
    pub(super) fn tag_of_rest(&self) -> Tag {
        Tag { versions: self.versions.clone(), concerned: Picked::ALL }
    }

    /// Expected time of what was sent to a replica and has not been answered.
    pub(super) fn outstanding_at(&self, replica: ReplicaId) -> impl Iterator<Item = f64> {
        let at = self.at(replica);
        let sent = if at.part == Part::Executes { self.writes.len() } else { 0 };
        let writes = self.writes[at.writes_done.min(sent)..sent].iter().map(|write| write.expected_ns);
        let read = match self.pending.as_ref().map(|pending| pending.sent) {
            Some(Sent::Read(at, expected_ns)) if at == replica => Some(expected_ns),
            _ => None,
        };
        writes.chain(read)
    }

    /// Back to where it was before its locks were asked for.
    pub(super) fn start_again(&mut self) {
        self.number = None;
        self.versions = Versions::default();
        self.released = Picked::NONE;
        self.at.clear();
        self.chosen = None;
        self.writes.clear();
        self.wrote = false;
        self.strayed = false;
        self.failed_at = None;
        if let Some(pending) = &mut self.pending {
            pending.sent = Sent::Nowhere;
        }
    }
}
