//! What clients saw, in the words of the checker: each object is a register.

use onecopy_core::Instant;

use super::classes::Touches;
use super::versions::{Seen, Version};
use crate::check::{History, MalformedHistory, Operation, Process, Register, Status, Transaction, Value};

/// A transaction's place in the history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(usize);

/// All transactions so far.
#[derive(Default, Debug)]
pub(super) struct Recorder {
    transactions: Vec<Transaction>,
}

impl Recorder {
    pub(super) fn begin(&mut self, user: u32, invoked: Instant) -> Entry {
        self.transactions.push(Transaction {
            process: Process(user),
            invoked_ns: invoked.0,
            completed_ns: invoked.0,
            // Until somebody says more: it never asked to be committed.
            status: Status::Aborted,
            operations: Vec::new(),
        });
        Entry(self.transactions.len() - 1)
    }

    /// The client was told what a statement saw; it wrote as `version`.
    pub(super) fn statement(&mut self, entry: Entry, touches: &Touches, seen: &Seen, version: Version) {
        let operations = &mut self.transactions[entry.0].operations;
        let mut seen = seen.iter();
        for touch in touches {
            let register = Register(touch.object);
            if touch.reads {
                let found = seen.next().copied().unwrap_or(0);
                operations.push(Operation::Read { register, value: (found != 0).then_some(Value(found)) });
            }
            if touch.writes {
                operations.push(Operation::Write { register, value: Value(version) });
            }
        }
    }

    /// What the client knows of the transaction's end, and since when.
    pub(super) fn end(&mut self, entry: Entry, status: Status, completed: Instant) {
        let transaction = &mut self.transactions[entry.0];
        transaction.status = status;
        transaction.completed_ns = completed.0;
    }

    pub(super) fn finish(self) -> Result<History, MalformedHistory> {
        History::new(self.transactions)
    }
}
