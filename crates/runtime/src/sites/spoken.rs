//! What a session asks its site of a transaction whose statements come one by one (protocol = "certified"), and what the site keeps of it.
//!
//! The session keeps what it has touched and written, and tells all of it in the end.

use std::sync::Arc;

use onecopy_core::{AccessSet, Csn, TxnId};
use tokio::sync::oneshot;

use super::database::{Answer, Ran};
use super::transaction::Transaction;
use crate::errors::Failure;
use crate::record::Record;

/// What it is called at its site, from its beginning on until that one begins anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Which beginning of the site.
    pub beginning: u64,
    pub txn: TxnId,
}

/// What a statement has answered, and what it wrote.
pub type Said = Result<(Ran, Record), Failure>;

/// See the module.
pub enum Ask {
    Begin(Beginning),
    /// Executes a statement.
    Step {
        name: Name,
        statement: Arc<Transaction>,
        answer: oneshot::Sender<Said>,
    },
    /// It is to commit, with all that it has touched and written; or not.
    End {
        name: Name,
        did: Option<Box<Did>>,
        answer: oneshot::Sender<Answer>,
    },
}

/// What one has touched, and written.
pub type Did = (AccessSet, Record);

/// One that is to begin.
pub struct Beginning {
    pub read_only: bool,
    /// What the database must contain up to there before it begins.
    pub not_before: Csn,
    pub begun: oneshot::Sender<Result<Name, Failure>>,
}

/// What the site keeps of one.
pub struct Kept {
    pub read_only: bool,
    /// Until it has begun.
    pub begun: Option<oneshot::Sender<Result<Name, Failure>>>,
    /// It is in the way of another one that comes before it, or its server has given it up.
    pub is_doomed: bool,
}
