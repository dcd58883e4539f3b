//! Simulated clients: each runs one transaction after the other, thinks in between, and notes what it was answered.

pub(crate) mod recorder;
pub(crate) mod schema;
pub(crate) mod script;

use onecopy_core::{AccessSet, Instant, Refusal};

use crate::check::Process;
use crate::plan::{Answer, Plan};
use recorder::EntryId;
use script::{Draft, Script};

/// One connection of a client to the node; a new one after each loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Connection(pub(crate) u64);

/// What a client sends.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Request {
    /// A statement outside a transaction.
    Single { draft: Draft, poison: Option<u32>, entry: EntryId },
    /// BEGIN with the first statement, and the items of the whole transaction where it declares them.
    Begin {
        read_only: bool,
        form: u64,
        declares: Option<AccessSet>,
        poison: Option<u32>,
        first: Draft,
        entry: EntryId,
    },
    /// The next statement of the open transaction.
    Statement(Draft),
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
    /// The client does not want to wait any longer.
    Cancel,
    /// The connection is lost.
    Disconnect,
}

/// What a client hears.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// A statement's result.
    Answer(Plan, Answer),
    /// The transaction committed; of a single statement the result too.
    Committed(Option<(Plan, Answer)>),
    /// The database refused the statement.
    Failed,
    /// It failed once it had shown its rows.
    Broken(Plan, Answer),
    /// The statement was given up while it waited, and ran nowhere; the transaction can go on.
    Withdrawn,
    /// The core refused the statement; the transaction is over.
    Refused(Refusal),
}

/// What makes a client act.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ClientWake {
    /// It has thought enough.
    Next,
    /// An answer to its request with this number.
    Reply(u64, Reply),
    /// It loses patience with its request.
    Cancel(u64),
    /// It loses its connection while a request is under way.
    Vanish(u64),
    /// The node is gone, and the connection with it.
    NodeLost,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) process: Process,
    pub(crate) connection: Connection,
    /// Transactions still to be run.
    pub(crate) remaining: u32,
    pub(crate) current: Option<Current>,
    /// The number of the request that is under way.
    pub(crate) awaits: Option<u64>,
    pub(crate) requests: u64,
    /// When its last request arrives: requests of one connection do not overtake each other.
    pub(crate) sends_after: Instant,
}

/// A client's open transaction.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) script: Script,
    pub(crate) entry: EntryId,
    /// The statement that is sent next, or under way.
    pub(crate) step: usize,
}

impl Current {
    /// Whether what is under way may commit the transaction.
    pub(crate) fn may_commit_now(&self) -> bool {
        let sends_commit = self.step >= self.script.statements.len();
        let single_write = !self.script.bracketed
            && self.script.statements[0].plan.kind() != onecopy_core::StatementKind::Read;
        sends_commit || single_write
    }
}
