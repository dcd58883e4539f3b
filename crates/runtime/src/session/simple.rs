//! The simple protocol: one message, any number of statements.

use onecopy_classify::Kind;
use onecopy_wire::backend::build;

use super::client::ClientError;
use super::{Done, Session};

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
        let mut rest = sql;
        let mut first = true;
        loop {
            let (statement, next) = self.classify(rest).await;
            if statement.class.kind == Kind::Empty {
                if first && next.is_none() {
                    build::empty_query_response(&mut self.client.output);
                }
            } else {
                let several = !first || next.is_some();
                if several && self.txn.is_none() && !is_transaction_control(&statement.class.kind) {
                    self.begin_implicit();
                }
                if self.execute(&statement, None).await? == Done::Failed {
                    break;
                }
            }
            first = false;
            self.note_comments(next.and_then(|next| rest.get(statement.sql.len()..next)));
            match next.and_then(|next| rest.get(next..)) {
                Some(after) => rest = after,
                None => break,
            }
        }
        self.end_implicit().await?;
        self.skipping = false;
        self.ready();
        if self.client.peek()?.is_none() {
            self.client.flush().await?;
        }
        Ok(())
    }
}
