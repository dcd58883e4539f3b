//! The simple protocol: one message, any number of statements.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use onecopy_classify::Kind;
use onecopy_wire::backend::{build, tag};
use onecopy_wire::frame;

use super::client::ClientError;
use super::{Done, Session};
use crate::classifier::Statement;
use crate::lane::DECODE_LEN_MAX;

/// The statements of a message, each with where the next one begins behind it.
struct Message {
    statements: VecDeque<(Statement, Option<usize>)>,
    /// What they were classified by.
    generation: u64,
    search_path: Arc<Vec<String>>,
}

/// Begins or ends transactions, and so needs none of its own.
pub(super) fn is_transaction_control(kind: &Kind) -> bool {
    matches!(kind, Kind::Begin(_) | Kind::Commit { .. } | Kind::Rollback { .. } | Kind::RollbackTo(_))
}

impl Session {
    /// Executes the statements of a Query message. Several of them are one transaction unless they say otherwise.
    pub(super) async fn on_query(&mut self, sql: &str) -> Result<(), ClientError> {
        if !self.steps.is_empty() {
            // They were not followed by a Sync, and are answered all the same.
            self.run_steps(false).await?;
            if self.skipping {
                return Ok(());
            }
        }
        self.statements.remove("");
        self.portals.remove("");
        self.moment = None;
        let completion = match self.read_whole(sql).await? {
            Ok(Some(whole)) => self.execute_whole(sql, whole).await?,
            Ok(None) => {
                let message = self.read_message(sql).await;
                match self.is_grammatical(sql, &message).await? {
                    true => self.execute_message(sql, message).await?,
                    false => None,
                }
            }
            Err(failure) => {
                self.fail_statement(&failure).await?;
                None
            }
        };
        if self.end_implicit().await? == Done::Answered {
            self.client.output.extend_from_slice(&completion.unwrap_or_default());
        }
        self.skipping = false;
        self.ready();
        if self.client.peek()?.is_none() {
            self.client.flush().await?;
        }
        Ok(())
    }

    /// Classifies all statements of a message, as they are before the first of them is executed.
    async fn read_message(&mut self, sql: &str) -> Message {
        let generation = self.shared.classifier.generation();
        let mut statements = VecDeque::new();
        let mut rest = Some(sql);
        while let Some(text) = rest {
            let (statement, next) = self.classify(text).await;
            rest = next.and_then(|next| text.get(next..));
            statements.push_back((statement, next));
        }
        Message { statements, generation, search_path: self.search_path() }
    }

    /// Nothing of a message is executed if a part of it is no SQL: a server goes through the grammar first. False if the
    /// client was told of it.
    async fn is_grammatical(&mut self, sql: &str, message: &Message) -> Result<bool, ClientError> {
        let is_doubtful =
            |(statement, _): &(Statement, _)| matches!(statement.class.kind, Kind::SyntaxError { .. });
        if message.statements.len() < 2 || !message.statements.iter().any(is_doubtful) {
            return Ok(true);
        }
        match self.syntax_error_in(sql).await {
            Ok(None) => return Ok(true),
            Ok(Some(error)) => {
                self.client.output.extend_from_slice(&error);
                self.on_statement_failed();
                if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                    self.end_if_failed(id).await;
                }
            }
            Err(unavailable) => drop(self.fail_statement(&unavailable).await?),
        }
        Ok(false)
    }

    /// Executes the statements of a message. What says that the last one is complete is for when their transaction has
    /// committed, if that ends with them.
    async fn execute_message(
        &mut self,
        sql: &str,
        mut message: Message,
    ) -> Result<Option<BytesMut>, ClientError> {
        let mut rest = sql;
        let mut first = true;
        loop {
            // What a statement before it has changed may change what it is.
            let (statement, next) = match message.statements.pop_front() {
                Some(read) if first || self.still_holds(&message) => read,
                _ => self.classify(rest).await,
            };
            let several = !first || next.is_some();
            self.client.request_begins(self.is_settled_by_log());
            let begun_at = self.client.sent + self.client.output.len() as u64;
            if statement.class.kind == Kind::Empty {
                if !several {
                    build::empty_query_response(&mut self.client.output);
                }
            } else {
                if several && self.txn.is_none() && !is_transaction_control(&statement.class.kind) {
                    self.begin_implicit();
                }
                if self.execute(&statement, None).await? == Done::Failed {
                    return Ok(None);
                }
            }
            first = false;
            self.note_comments(next.and_then(|next| rest.get(statement.sql.len()..next)));
            match next.and_then(|next| rest.get(next..)) {
                Some(after) => rest = after,
                None => {
                    let ends = self.txn.as_ref().is_some_and(|txn| !txn.explicit);
                    let is_copy = matches!(statement.class.kind, Kind::CopyIn { .. });
                    return Ok(if ends { self.take_completion(begun_at, is_copy) } else { None });
                }
            }
        }
    }

    /// Whether statements are still what they were when their message was read.
    fn still_holds(&mut self, message: &Message) -> bool {
        let classifier = &self.shared.classifier;
        self.txn.as_ref().is_none_or(|txn| txn.catalogue.is_none())
            && !classifier.is_newer_than(message.generation)
            && self.search_path() == message.search_path
    }

    /// Takes CommandComplete out of an answer that began there. A long answer, of which a part was sent, keeps it; after a
    /// COPY, it stands by itself.
    pub(super) fn take_completion(&mut self, begun_at: u64, is_copy: bool) -> Option<BytesMut> {
        let client = &mut self.client;
        let mut at = match begun_at.checked_sub(client.sent) {
            Some(unsent) => usize::try_from(unsent).ok()?,
            None if is_copy => 0,
            None => return None,
        };
        let mut found = None;
        while let Ok(Some(head)) = frame::peek(client.output.get(at..)?, DECODE_LEN_MAX) {
            if head.tag == tag::COMMAND_COMPLETE {
                found = Some(at..at + head.len);
            }
            at += head.len;
        }
        let found = found?;
        let after = client.output.split_off(found.end);
        let completion = client.output.split_off(found.start);
        client.output.unsplit(after);
        Some(completion)
    }
}
