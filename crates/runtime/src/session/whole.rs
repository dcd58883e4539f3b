//! Transactions that come whole: all statements in one message of the simple protocol, under a protocol that must know what a
//! transaction may write before it runs (docs/protocols/chains.md, *On real servers*).
//!
//! Later statements name columns of earlier results (`:name`), since their client cannot put the values there. All answers are held
//! until the transaction has ended, as far as there is room: if the replica is lost that executes it, it is executed again at
//! another one, and its client hears of nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_classify::references::{Reference, references, replace};
use onecopy_classify::whole::{Conflicts, Granularity, Reads, foresee};
use onecopy_classify::{Class, Kind, NoParams, normalise};
use onecopy_core::AccessSet;
use onecopy_core::protocol::Foresight;

use super::beside::LOSSES_MAX;
use super::client::ClientError;
use super::frozen::Foreseen;
use super::simple::is_transaction_control;
use super::{Done, Session};
use crate::errors::Failure;
use crate::results::Results;

/// Before a whole transaction is executed again for the first time; later ones wait longer.
const LOST_PAUSE: Duration = Duration::from_millis(10);

/// A whole transaction.
pub(super) struct Whole {
    parts: Vec<Part>,
    /// The items that it may write; `None`: it only reads.
    may_write: Option<AccessSet>,
    /// The definitions by which that was found out.
    generation: u64,
}

/// One statement.
struct Part {
    sql: Arc<str>,
    references: Vec<Reference>,
    /// Values of sequences that it will use: so it is known which keys it adds.
    drawn: Vec<Foreseen>,
}

/// How an attempt ended.
enum Attempt {
    /// The client has its answers, but for what says that the last statement is complete.
    Answered(Option<BytesMut>),
    /// Its replica was lost before it was decided, or definitions have changed: nothing of it happened.
    Void,
}

impl Session {
    /// Whether the protocol must know of transactions before they run.
    pub(super) fn foresees(&self) -> bool {
        self.shared.scheduler.foresight.is_some()
    }

    /// What counts as a conflict: of two updates the row, since servers lock rows, and rows are shipped.
    pub(super) fn conflicts(&self) -> Conflicts {
        let reads = match self.shared.scheduler.foresight {
            Some(Foresight::OfReadsAndWrites) => Reads::Counted,
            Some(Foresight::OfWrites) | None => Reads::Ignored,
        };
        Conflicts { granularity: Granularity::Row, reads }
    }

    /// What a message holds if that is a transaction which comes whole; else its statements go their ordinary way.
    pub(super) async fn read_whole(
        &mut self,
        sql: &str,
    ) -> Result<Result<Option<Whole>, Failure>, ClientError> {
        if !self.foresees() {
            return Ok(Ok(None));
        }
        let mut texts = Vec::new();
        let mut rest = Some(sql);
        while let Some(text) = rest {
            let normalised = normalise(text, &mut self.scratch);
            let own = text.get(..normalised.layout.end as usize).unwrap_or(text);
            texts.push(Part {
                sql: own.into(),
                references: references(own, normalised.layout.consts),
                drawn: Vec::new(),
            });
            rest = normalised.next.and_then(|next| text.get(next as usize..));
        }
        if let [only] = &*texts
            && only.references.is_empty()
        {
            return Ok(Ok(None));
        }
        let generation = self.shared.classifier.generation();
        let (mut parts, mut statements) = (Vec::new(), Vec::new());
        for part in texts {
            let classified = replace(&part.sql, &part.references, |nth, _| format!("${}", nth + 1));
            let (statement, _) = self.classify(&classified).await;
            if statement.class.kind != Kind::Empty {
                parts.push(part);
                statements.push(statement);
            }
        }
        let kinds = || statements.iter().map(|statement| &statement.class.kind);
        let has_brackets = matches!(kinds().next(), Some(Kind::Begin(_)))
            && matches!(kinds().next_back(), Some(Kind::Commit { chain: false }));
        let inner = kinds().skip(usize::from(has_brackets));
        let inner = inner.take(statements.len().saturating_sub(2 * usize::from(has_brackets)));
        let is_one = self.txn.is_none() && !inner.into_iter().any(is_transaction_control);
        let refers = parts.iter().any(|part| !part.references.is_empty());
        if !is_one && refers {
            return Ok(Err(Failure::unsupported(
                "a statement refers to an earlier result outside of a transaction that comes whole",
                "Send all of the transaction as one query: its statements, between BEGIN and COMMIT or by themselves.",
            )));
        }
        // A server executes nothing of a message of which a part is no SQL; who says so sees the message as it is.
        let is_no_sql = !refers && kinds().any(|kind| matches!(kind, Kind::SyntaxError { .. }));
        if is_no_sql || !is_one || !(has_brackets || refers || parts.len() > 1) {
            return Ok(Ok(None));
        }
        let conflicts = self.conflicts();
        let mut may_write = statements.iter().any(|statement| writes(&statement.class)).then(AccessSet::new);
        for (part, statement) in parts.iter_mut().zip(&statements) {
            // What it reads counts if it writes, and only where reads count.
            let reads = conflicts.reads == Reads::Counted && matches!(statement.class.kind, Kind::Select);
            let Some(foreseen) = may_write.as_mut().filter(|_| reads || writes(&statement.class)) else {
                continue;
            };
            let (drawn, frozen) = self.foresee_values(statement).await?;
            part.drawn = drawn;
            let (class, layout) = (&statement.class, statement.layout.layout());
            foresee(class, &statement.sql, layout, &NoParams, &frozen, conflicts, foreseen);
        }
        Ok(Ok(Some(Whole { parts, may_write, generation })))
    }

    /// Executes a whole transaction, as often as its replica is lost. Returns what says that the last statement is complete, if that
    /// is still to be told.
    pub(super) async fn execute_whole(
        &mut self,
        sql: &str,
        mut whole: Whole,
    ) -> Result<Option<BytesMut>, ClientError> {
        self.client.hold_max = self.shared.limits.held_result_bytes_max;
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        let mut attempts = 0;
        let completion = loop {
            attempts += 1;
            match self.attempt(&whole).await? {
                Attempt::Answered(completion) => break completion,
                Attempt::Void if self.client.sent == sent && attempts <= LOSSES_MAX => {}
                // Its client has seen a part of the answers.
                Attempt::Void => {
                    if self.txn.as_ref().is_some_and(|txn| !txn.failed) {
                        self.fail(&Failure::outdated());
                    }
                    break None;
                }
            }
            self.client.output.truncate(begun_at);
            self.skipping = false;
            self.rollback().await;
            // A replica that has just died has least to do, until it is known to be down.
            tokio::time::sleep(LOST_PAUSE * attempts.pow(2)).await;
            match self.read_whole(sql).await? {
                Ok(Some(again)) => whole = again,
                Ok(None) => break None,
                Err(failure) => {
                    self.fail(&failure);
                    break None;
                }
            }
        };
        self.client.hold_max = 0;
        Ok(completion)
    }

    async fn attempt(&mut self, whole: &Whole) -> Result<Attempt, ClientError> {
        self.is_void = false;
        let read_only = whole.may_write.is_none() || self.default_read_only();
        self.begin_txn(false, read_only);
        if let Some(txn) = self.txn.as_mut() {
            txn.declared.clone_from(&whole.may_write);
        }
        let mut results = Results::default();
        let mut last_at = 0;
        for part in &whole.parts {
            let sql = match results.put_into(&part.sql, &part.references) {
                Ok(sql) => sql,
                Err(failure) => {
                    self.fail_statement(&failure).await?;
                    return Ok(Attempt::Answered(None));
                }
            };
            let (statement, _) = self.classify(&sql).await;
            self.client.request_begins(self.is_settled_by_log());
            if matches!(statement.class.kind, Kind::Commit { .. }) && self.is_outdated(whole) {
                return Ok(Attempt::Void);
            }
            let (at, sent) = (self.client.output.len(), self.client.sent);
            last_at = sent + at as u64;
            self.foreseen.clone_from(&part.drawn);
            let done = self.execute(&statement, None).await?;
            self.foreseen.clear();
            if done == Done::Failed {
                return Ok(if self.is_void { Attempt::Void } else { Attempt::Answered(None) });
            }
            if self.client.sent == sent {
                results.learn(&self.client.output[at..]);
            } else {
                results.forget();
            }
        }
        if self.txn.is_none() {
            return Ok(Attempt::Answered(None));
        }
        if self.is_outdated(whole) {
            return Ok(Attempt::Void);
        }
        let completion = self.take_completion(last_at, false);
        match self.commit().await? {
            Done::Answered => Ok(Attempt::Answered(completion)),
            Done::Failed if self.is_void => Ok(Attempt::Void),
            Done::Failed => Ok(Attempt::Answered(None)),
        }
    }

    /// What it may write was found out by definitions that are not in force any more.
    fn is_outdated(&self, whole: &Whole) -> bool {
        self.shared.classifier.is_newer_than(whole.generation)
    }
}

/// Whether an execution may change anything, or keep others from it.
fn writes(class: &Class) -> bool {
    class.effects.writes
        || class.effects.locks_rows
        || class.changes_definitions()
        || matches!(class.kind, Kind::LockTable { .. })
}
