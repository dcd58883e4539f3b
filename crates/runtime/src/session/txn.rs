//! One open transaction of a session: its lanes, what it has read and written so far.

use onecopy_core::{OpId, ReplicaId, TxnId};

use crate::pool::Lent;
use crate::record::Write;
use crate::session::environment::Environment;
use crate::session::unit::Request;

/// Bytes of read statements kept for running them again. What a transaction has read beyond it cannot be compared: if
/// it may have changed, the transaction is refused.
const READS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An open transaction.
pub struct Txn {
    pub id: TxnId,
    /// Opened by BEGIN; otherwise by several statements in one message, or up to one Sync.
    pub explicit: bool,
    /// One statement, which the core commits by itself.
    pub autocommit: bool,
    /// The core knows of it.
    pub begun: bool,
    /// The core has forgotten it: only its end is awaited.
    pub over: bool,
    pub failed: bool,
    pub read_only: bool,
    pub form: u64,
    pub next_op: u32,
    pub snapshot: Option<Lane>,
    pub home: Option<Lane>,
    /// It has left its read phase.
    pub at_home: bool,
    /// Reads of the read phase, with the hashes of their answers.
    pub reads: Vec<(Request, u64)>,
    reads_bytes: usize,
    /// Too much was read to be kept.
    pub reads_lost: bool,
    /// Settings and savepoints to repeat on the home's lane.
    pub repeat: Vec<String>,
    pub writes: Vec<Write>,
    pub writes_bytes: usize,
    pub savepoints: Vec<Savepoint>,
    pub schema_changed: bool,
    /// Nobody classifies until this transaction's definitions have been read.
    pub changing: bool,
    /// Definitions as this transaction has changed them.
    pub catalogue: Option<std::sync::Arc<onecopy_classify::Catalogue>>,
    /// Microseconds since 1970 at which it began: its `now()`.
    pub started_micros: i64,
    /// What SET LOCAL has set, for the record.
    pub local_settings: Vec<(String, String)>,
    /// The session's settings when it began, to return to on rollback.
    pub environment_before: Environment,
}

/// A lane of a transaction.
pub struct Lane {
    pub lent: Lent,
    pub replica: ReplicaId,
}

/// A savepoint, with what had been written when it was set.
pub struct Savepoint {
    pub name: String,
    pub writes: usize,
    pub repeat: usize,
}

impl Txn {
    pub fn new(id: TxnId, explicit: bool, form: u64, environment: &Environment) -> Txn {
        Txn {
            id,
            explicit,
            autocommit: false,
            begun: false,
            over: false,
            failed: false,
            read_only: false,
            form,
            next_op: 0,
            snapshot: None,
            home: None,
            at_home: false,
            reads: Vec::new(),
            reads_bytes: 0,
            reads_lost: false,
            repeat: Vec::new(),
            writes: Vec::new(),
            writes_bytes: 0,
            savepoints: Vec::new(),
            schema_changed: false,
            changing: false,
            catalogue: None,
            started_micros: crate::clock::unix_micros(),
            local_settings: Vec::new(),
            environment_before: environment.clone(),
        }
    }

    pub fn take_op(&mut self) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        op
    }

    pub fn lane_at(&mut self, replica: ReplicaId) -> Option<Lane> {
        if self.home.as_ref().is_some_and(|lane| lane.replica == replica) {
            return self.home.take();
        }
        if self.snapshot.as_ref().is_some_and(|lane| lane.replica == replica) {
            return self.snapshot.take();
        }
        None
    }

    pub fn note_read(&mut self, request: Request, hash: u64) {
        self.reads_bytes += request.len();
        if self.reads_bytes > READS_BYTES_MAX {
            self.reads_lost = true;
            self.reads.clear();
            return;
        }
        self.reads.push((request, hash));
    }
}
