//! Rows returned by a statement that writes, of which a client fetches a few at a time.
//!
//! A server executes INSERT ... RETURNING and the like whole at their first Execute, and keeps the rows that were not asked
//! for; later Executes of the portal only fetch them. Here a lane always executes such a portal to its end, so that all of
//! its rows are in the record for the other replicas, whatever the client asked for; and it does so once. The rest is kept
//! in the session. That holds for queries that write through functions, too, of which a server would execute no more than
//! was fetched: how much that is, the other replicas could not know.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use onecopy_classify::{Class, Kind};
use onecopy_wire::SqlState;
use onecopy_wire::backend::{Backend, build, decode, row_count, tag};
use onecopy_wire::frame::{self, HEAD_LEN};

use super::client::ClientError;
use super::portals::Portal;
use super::{Done, Session};
use crate::errors::Failure;
use crate::lane::DECODE_LEN_MAX;

/// An Execute under way of a portal that writes and returns rows.
pub(super) struct Fetch {
    pub portal: Arc<Portal>,
    /// So many rows are for the client now; 0 stands for all.
    pub max_rows: u32,
}

/// What is left of the answer to a portal that was executed.
#[derive(Default)]
pub(super) struct Rest {
    rows: VecDeque<Bytes>,
    /// Bytes of them all.
    bytes: usize,
    /// The words of its CommandComplete before the number of rows.
    words: String,
    /// It says that number.
    counts: bool,
}

impl Rest {
    /// Nothing is left of an answer that was sent on as it came.
    pub fn none(kind: &Kind) -> Rest {
        let words = match kind {
            Kind::Insert => "INSERT 0",
            Kind::Update => "UPDATE",
            Kind::Delete => "DELETE",
            Kind::Merge => "MERGE",
            Kind::Explain { .. } => "EXPLAIN",
            Kind::Call => "CALL",
            _ => "SELECT",
        };
        let counts = !matches!(kind, Kind::Explain { .. } | Kind::Call);
        Rest { words: words.to_owned(), counts, ..Rest::default() }
    }

    /// Takes the first rows out of an answer, and appends it up to them; the others remain. Of an error nothing remains.
    fn of_answer(answer: &mut BytesMut, max_rows: u32, out: &mut BytesMut) -> Option<Rest> {
        let mut rest = Rest::default();
        let mut failed = false;
        while let Ok(Some(head)) = frame::peek(answer, DECODE_LEN_MAX) {
            if answer.len() < head.len {
                break;
            }
            let message = answer.split_to(head.len).freeze();
            match (head.tag, decode(head.tag, &message[HEAD_LEN..])) {
                (tag::DATA_ROW, _) => {
                    rest.bytes += message.len();
                    rest.rows.push_back(message);
                }
                (tag::COMMAND_COMPLETE, Ok(Backend::CommandComplete(command))) => {
                    let counted = row_count(command).and_then(|_| command.rsplit_once(' '));
                    rest.counts = counted.is_some();
                    counted.map_or(command, |(words, _)| words).clone_into(&mut rest.words);
                    rest.put(max_rows, out);
                }
                (other, _) => {
                    failed |= other == tag::ERROR_RESPONSE;
                    out.extend_from_slice(&message);
                }
            }
        }
        (!failed).then_some(rest)
    }

    /// Appends the next rows, and how many they were, in the manner of a server.
    pub fn put(&mut self, max_rows: u32, out: &mut BytesMut) {
        let wanted = if max_rows == 0 { usize::MAX } else { max_rows as usize };
        let count = wanted.min(self.rows.len());
        for row in self.rows.drain(..count) {
            self.bytes -= row.len();
            out.extend_from_slice(&row);
        }
        if count == wanted {
            build::portal_suspended(out);
        } else if !self.counts {
            build::command_complete(out, &self.words);
        } else {
            build::command_complete(out, &format!("{} {count}", self.words));
        }
    }
}

/// Whether an execution must go to its end whatever its client asks for.
pub(super) fn runs_whole(class: &Class) -> bool {
    class.effects.writes && class.effects.returns_rows
}

impl Session {
    /// Answers a further Execute of a portal that was executed to its end.
    pub(super) async fn fetch_rest(&mut self, portal: &Portal, max_rows: u32) -> Result<Done, ClientError> {
        if !self.steps.is_empty() {
            Box::pin(self.run_steps(false)).await?;
            if self.skipping {
                return Ok(Done::Failed);
            }
        }
        if let Some(rest) = portal.rest.lock().as_mut() {
            rest.put(max_rows, &mut self.client.output);
        }
        Ok(Done::Answered)
    }

    /// Whether the client wants the answer under way in parts.
    pub(super) fn fetches_parts(&self) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.max_rows > 0)
    }

    /// Bytes that the answer under way may take while it is held. Rows that are kept for portals take their part.
    pub(super) fn held_max(&self) -> usize {
        let max = self.shared.limits.held_result_bytes_max;
        if !self.fetches_parts() {
            return max;
        }
        let kept = |portal: &Arc<Portal>| portal.rest.lock().as_ref().map_or(0, |rest| rest.bytes);
        max.saturating_sub(self.portals.values().map(kept).sum())
    }

    /// What a client hears whose answer is more than may be held.
    pub(super) fn held_too_much(&self) -> Failure {
        let max = self.shared.limits.held_result_bytes_max;
        let (what, hint) = match self.fetches_parts() {
            true => (
                "rows that are kept until they are fetched, of all portals of the transaction together, exceed",
                "Execute the portal without a limit inside BEGIN and COMMIT, where results stream, or raise limits.held_result_bytes_max.",
            ),
            false => (
                "the result that must be held until the commit is decided exceeds",
                "Run the statement inside BEGIN and COMMIT, where results stream, or raise limits.held_result_bytes_max.",
            ),
        };
        Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("{what} {max} bytes")).hint(hint)
    }

    /// Sends on what is held: all of it, or as many rows as the client wants.
    pub(super) fn release_held(&mut self) {
        self.confirm_parsed(&[]);
        let output = &mut self.client.output;
        match self.fetch.as_ref().filter(|fetch| fetch.max_rows > 0) {
            Some(Fetch { portal, max_rows }) => {
                *portal.rest.lock() = Rest::of_answer(&mut self.held, *max_rows, output);
            }
            None => output.extend_from_slice(&self.held),
        }
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rows: usize, tag: &str) -> BytesMut {
        let mut answer = BytesMut::new();
        build::bind_complete(&mut answer);
        for n in 0..rows {
            build::text_row(&mut answer, &[&n.to_string()]).unwrap();
        }
        build::command_complete(&mut answer, tag);
        answer
    }

    /// Its messages, as tags, with the words of CommandComplete.
    fn shown(mut out: BytesMut) -> String {
        let mut shown = String::new();
        while let Some(head) = frame::peek(&out, DECODE_LEN_MAX).unwrap() {
            let message = out.split_to(head.len);
            match decode(head.tag, &message[HEAD_LEN..]).unwrap() {
                Backend::CommandComplete(words) => shown += words,
                _ => shown.push(head.tag as char),
            }
        }
        shown
    }

    #[test]
    fn rows_are_given_out_as_a_server_does() {
        let mut out = BytesMut::new();
        let mut rest = Rest::of_answer(&mut answer(5, "INSERT 0 5"), 2, &mut out).unwrap();
        assert_eq!(shown(out), "2DDs");
        let mut next = |max_rows| {
            let mut out = BytesMut::new();
            rest.put(max_rows, &mut out);
            shown(out)
        };
        assert_eq!([next(2), next(2), next(2), next(0)], ["DDs", "DINSERT 0 1", "INSERT 0 0", "INSERT 0 0"]);
        let mut out = BytesMut::new();
        let mut rest = Rest::of_answer(&mut answer(3, "UPDATE 3"), 3, &mut out).unwrap();
        assert_eq!(shown(out), "2DDDs", "whether more would come is not looked at");
        let mut out = BytesMut::new();
        rest.put(1, &mut out);
        assert_eq!(shown(out), "UPDATE 0");
        let mut out = BytesMut::new();
        let mut rest = Rest::of_answer(&mut answer(3, "EXPLAIN"), 2, &mut out).unwrap();
        rest.put(2, &mut out);
        assert_eq!(shown(out), "2DDsDEXPLAIN", "a server does not say how many lines it has explained");
    }

    #[test]
    fn of_an_answer_with_an_error_no_row_is_shown() {
        let mut held = answer(2, "DELETE 2");
        held.truncate(held.len() - "DELETE 2".len() - HEAD_LEN - 1);
        let report = build::Report::new(build::Severity::Error, onecopy_wire::SqlState::INTERNAL_ERROR, "x");
        build::error(&mut held, &report);
        let mut out = BytesMut::new();
        let rest = Rest::of_answer(&mut held, 1, &mut out);
        assert_eq!((shown(out).as_str(), rest.is_none()), ("2E", true), "and it cannot be executed again");
    }
}
