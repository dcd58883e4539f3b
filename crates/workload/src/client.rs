//! How a workload and its driver talk.
//!
//! A [`Script`] is one transaction: it is given the rows of its last statement and names the next one. A [`Client`] is one
//! emulated user: an endless sequence of interactions, each of which runs transactions one after the other. Both are
//! state machines; whoever drives them sends the statements, keeps the time and decides what is worth a retry.

use std::time::Duration;

use crate::catalogue::{InteractionId, StatementId, TransactionId};
use crate::value::{Timestamp, Value};

/// One transaction, as a state machine over its statements' results. A fresh clone of it runs again with the same choices.
pub trait Script {
    /// The next step; `rows` is the result of the statement named before, and `None` at the first call.
    fn next(&mut self, rows: Option<Rows>) -> Step;
}

/// What a [`Script`] does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Run this statement.
    Execute(StatementId, Vec<Value>),
    /// All done: commit.
    Commit,
    /// Take everything back, by choice.
    Rollback,
}

/// One emulated user.
///
/// The driver starts with [`Reply::Done`] and from then on answers each action when it was carried out.
pub trait Client {
    /// What to do next, now that the last action got this answer.
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action;

    /// Whether the transaction just begun will run none of its rare statements, those with a `probability`: then it
    /// writes only the catalogue's [`writes_usual`](crate::catalogue::Transaction::writes_usual).
    fn is_usual(&self) -> bool {
        false
    }

    /// Whether the rollback just asked for is what the user wanted, so that it completes the interaction: a part of TPC-C's
    /// orders is taken back. Other users give up where something that they need is not there.
    fn rollback_completes(&self) -> bool {
        false
    }

    /// All of the transaction that [`Action::Begin`] has just asked for, as one text that starts with this text of BEGIN, for a driver
    /// that can send it whole. The reply that follows is to all of it. `None` is a client that has no such text.
    fn whole(&mut self, _begin: &str) -> Option<Whole> {
        None
    }

    /// Whether a whole transaction that failed with this SQLSTATE has done so as the user wanted, so that it completes the interaction.
    fn failure_completes(&self, _sqlstate: &str) -> bool {
        false
    }
}

/// What a [`Client`] does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The interaction before is complete; after this pause the next one starts. A driver may scale the pause.
    Think {
        /// How long the user looks at the page.
        pause: Duration,
        /// What the user does then.
        next: InteractionId,
    },
    /// Send BEGIN; what follows up to [`Action::Commit`] or [`Action::Rollback`] is one transaction.
    Begin(TransactionId),
    /// Send a statement. Outside of BEGIN ... COMMIT it is a transaction of its own.
    Execute(StatementId, Vec<Value>),
    /// Send COMMIT.
    Commit,
    /// Send ROLLBACK.
    Rollback,
}

/// A transaction as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// All statements, from BEGIN to COMMIT.
    pub text: String,
    /// How many there are between these two.
    pub statements: u32,
}

/// How the last [`Action`] of a [`Client`] went.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Carried out; there is nothing to read. Also the first call.
    Done,
    /// The statement's result.
    Rows(Rows),
    /// The statement, BEGIN or COMMIT failed, and nothing of the transaction happened (or, with
    /// [`Failure::GiveUp`], nobody knows).
    Failed(Failure),
}

/// What a [`Client`] is to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Run the transaction again from its start, with the same choices.
    Retry,
    /// End the interaction; the user comes back later as a new session.
    GiveUp,
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The rows that came back, if any.
    pub rows: Vec<Vec<Value>>,
    /// The count in the command tag: rows returned or changed.
    pub count: u64,
}

impl Rows {
    /// Rows that a query returned.
    pub fn returned(rows: Vec<Vec<Value>>) -> Self {
        let count = rows.len() as u64;
        Rows { rows, count }
    }

    /// The answer to a statement that changed so many rows and returned none.
    pub fn changed(count: u64) -> Self {
        Rows { rows: Vec::new(), count }
    }

    /// The value in a column of the first row.
    pub fn first(&self, column: usize) -> Option<&Value> {
        self.rows.first()?.get(column)
    }

    /// The integers of one column, without those that are none.
    pub fn ints(&self, column: usize) -> impl Iterator<Item = i64> + '_ {
        self.rows.iter().filter_map(move |row| row.get(column)?.as_int())
    }
}
