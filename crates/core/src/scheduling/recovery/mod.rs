//! What the paper on conflict-aware scheduling (CAS) does when something fails: a building block for its protocols with table
//! locks, several schedulers included. Sections are the paper's; docs/protocols/recovery.md compares it with onecopy's own way,
//! and numbers what the paper leaves open ("open 5").
//!
//! Update transactions are held by all schedulers from their start, and their writes from their end, before any database
//! commits (5.2, 5.3). Three roles, each a state machine without I/O:
//! - [`Scheduler`]: replicates starts and decisions, takes over from schedulers that failed, rolls databases forward;
//! - [`Sequencer`]: gives numbers, and begins anew behind the last one that any scheduler knows;
//! - [`Proxy`]: lets its database execute in the order of numbers, knows for each table what was committed last, and asks for
//!   what it misses.
//!
//! What may fail (5.1): machines stop, and the driver tells everybody who is left (`scheduler_failed`, `replica_failed`); messages
//! between schedulers and proxies may be lost, others are not; between two places they keep their order. A scheduler that comes
//! back has a new name.
//!
//! Guarantees, whatever fails as long as one scheduler is left:
//! - a transaction is committed once at every database, or at none;
//! - one whose client was told so is committed;
//! - writers of a table are committed in the order of their numbers at every database.
//!
//! Not here: reads (they change nothing that must survive), and the failure of all schedulers at once (5.3.1, last paragraph), for
//! which [`Output::Log`] writes what would be needed.

mod message;
mod proxy;
mod scheduler;
mod sequencer;
mod table_logs;
mod take_over;

pub use message::{End, Message, Position, Query, Record, Standing};
pub use proxy::Proxy;
pub use scheduler::Scheduler;
pub use sequencer::Sequencer;

use crate::event::Place;
use crate::ids::{NodeId, ReplicaId, SequenceNumber, TxnId};

/// What a role wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Send this message.
    Send {
        /// To whom.
        to: Place,
        /// What.
        message: Message,
    },
    /// A scheduler's disk: write and sync the writes of this transaction, then call [`Scheduler::logged`].
    Log {
        /// Which.
        number: SequenceNumber,
        /// What it writes.
        writes: Vec<Query>,
    },
    /// A scheduler's client: its transaction is over.
    Answer {
        /// Which.
        txn: TxnId,
        /// Whether it is committed.
        committed: bool,
    },
    /// A proxy's database: execute this in the open transaction of that number, then call [`Proxy::answered`].
    Execute {
        /// In which.
        number: SequenceNumber,
        /// What.
        query: Query,
    },
    /// A proxy's database: commit, then call [`Proxy::answered`].
    Commit {
        /// Which.
        number: SequenceNumber,
    },
    /// A proxy's database: roll back what is open. What follows on the same connection comes behind it.
    Rollback {
        /// Which.
        number: SequenceNumber,
    },
    /// A proxy's database stands still: keep a snapshot of what is committed, then call [`Proxy::checkpointed`].
    Checkpoint {
        /// What the snapshot contains.
        position: Position,
    },
    /// A proxy's database: install the next checkpoint of that replica, or the last one of its own if there is none to ask, then call
    /// [`Proxy::installed`].
    Install {
        /// Whose.
        donor: Option<ReplicaId>,
    },
}

fn send(to: Place, message: Message, outputs: &mut Vec<Output>) {
    outputs.push(Output::Send { to, message });
}

fn send_to_all<'a>(
    nodes: impl IntoIterator<Item = &'a NodeId>,
    message: &Message,
    outputs: &mut Vec<Output>,
) {
    for node in nodes {
        send(Place::Scheduler(*node), message.clone(), outputs);
    }
}

#[cfg(test)]
mod tests;
