//! One connection, made again when it breaks, and the ways to send a statement over it.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::{join_all, join3, try_join_all};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, RowStream, Statement};

use super::Isolation;
use super::statement::{Answer, Cell, Param, Step};
use super::trouble::Trouble;
use crate::connection::Target;

/// How one statement is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// The simple query protocol, with literals in the text.
    Simple,
    /// Prepared once a connection, then bound and executed.
    Prepared,
    /// Parsed, bound and executed at once as the unnamed statement.
    Unnamed,
}

/// A connection that is made when it is needed.
pub(super) struct Session {
    target: Target,
    isolation: Isolation,
    /// Longer without an answer counts as stalled.
    answer_within: Duration,
    client: Option<Client>,
    prepared: HashMap<&'static str, Statement>,
}

impl Session {
    pub(super) fn new(target: Target, isolation: Isolation, answer_within: Duration) -> Session {
        Session { target, isolation, answer_within, client: None, prepared: HashMap::new() }
    }

    /// Makes the connection if there is none that works.
    pub(super) async fn connect(&mut self) -> Result<(), Trouble> {
        if self.client.as_ref().is_some_and(|client| !client.is_closed()) {
            return Ok(());
        }
        self.disconnect();
        let connecting = tokio::time::timeout(self.answer_within, self.target.connect()).await;
        let client = match connecting {
            Err(_) => return Err(Trouble::Stalled { doing: "connect".to_owned() }),
            Ok(Err(crate::Error::Connect { source, .. })) => return Err(Trouble::of(&source)),
            Ok(Err(other)) => return Err(Trouble::Lost { why: other.to_string() }),
            Ok(Ok(client)) => client,
        };
        self.client = Some(client);
        if let Some(level) = self.isolation.name() {
            self.simple(&format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}"))
                .await?;
        }
        Ok(())
    }

    /// Closes the connection, whatever it is doing.
    pub(super) fn disconnect(&mut self) {
        self.client = None;
        self.prepared.clear();
    }

    /// Sends one statement and waits for its whole answer.
    pub(super) async fn send(&mut self, step: &Step, shape: Shape) -> Result<Answer, Trouble> {
        match shape {
            Shape::Simple => {
                let sql = step.with_literals();
                let mut answers = self.simple(&sql).await?;
                Ok(answers.pop().unwrap_or_default())
            }
            Shape::Prepared => {
                self.prepare(step.sql).await?;
                let (client, statement) = (self.client()?, &self.prepared[step.sql]);
                self.within(step.sql, execute(client, statement, &step.params)).await
            }
            Shape::Unnamed => {
                let client = self.client()?;
                let typed = step.params.iter().map(|param| (param, Type::INT8));
                let sending = async { answer(client.query_typed_raw(step.sql, typed).await?).await };
                self.within(step.sql, sending).await
            }
        }
    }

    /// Sends a string of statements in the simple protocol; an answer for each.
    pub(super) async fn simple(&self, sql: &str) -> Result<Vec<Answer>, Trouble> {
        let client = self.client()?;
        let messages = self.within(sql, client.simple_query(sql)).await?;
        Ok(Answer::of_messages(messages))
    }

    /// Sends several statements before the first answer has come, each with a Sync of its own, between two commands
    /// in the simple protocol. Statements must be prepared.
    pub(super) async fn pipeline(
        &self,
        before: &str,
        steps: &[Step],
        after: &str,
    ) -> Result<(Vec<Result<Answer, Trouble>>, Result<(), Trouble>), Trouble> {
        let client = self.client()?;
        let steps = steps.iter().map(|step| execute(client, &self.prepared[step.sql], &step.params));
        // Each future sends its messages when it is first polled, which is in this order.
        let all = async {
            let (begun, answers, ended) =
                join3(client.batch_execute(before), join_all(steps), client.batch_execute(after)).await;
            Ok((begun, answers, ended))
        };
        let (before, steps, after) = self.within("pipeline", all).await?;
        before.map_err(|error| Trouble::of(&error))?;
        let steps = steps.into_iter().map(|step| step.map_err(|error| Trouble::of(&error))).collect();
        Ok((steps, after.map_err(|error| Trouble::of(&error))))
    }

    /// Prepares a statement if this connection has not.
    pub(super) async fn prepare(&mut self, sql: &'static str) -> Result<(), Trouble> {
        if !self.prepared.contains_key(sql) {
            let client = self.client()?;
            let statement = self.within(sql, client.prepare(sql)).await?;
            self.prepared.insert(sql, statement);
        }
        Ok(())
    }

    /// Prepares several statements at once.
    pub(super) async fn prepare_all(&mut self, steps: &[Step]) -> Result<(), Trouble> {
        let mut missing: Vec<&'static str> =
            steps.iter().map(|step| step.sql).filter(|sql| !self.prepared.contains_key(sql)).collect();
        missing.sort_unstable();
        missing.dedup();
        let client = self.client()?;
        let preparing = try_join_all(missing.iter().map(|sql| client.prepare(sql)));
        let statements = self.within("prepare", preparing).await?;
        self.prepared.extend(missing.into_iter().zip(statements));
        Ok(())
    }

    fn client(&self) -> Result<&Client, Trouble> {
        self.client.as_ref().ok_or_else(|| Trouble::Lost { why: "not connected".to_owned() })
    }

    async fn within<T>(
        &self,
        doing: &str,
        sending: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Trouble> {
        match tokio::time::timeout(self.answer_within, sending).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Trouble::of(&error)),
            Err(_) => Err(Trouble::Stalled { doing: doing.to_owned() }),
        }
    }
}

async fn execute(
    client: &Client,
    statement: &Statement,
    params: &[Param],
) -> Result<Answer, tokio_postgres::Error> {
    let params = params.iter().map(|param| param as &(dyn ToSql + Sync));
    answer(client.query_raw(statement, params).await?).await
}

async fn answer(stream: RowStream) -> Result<Answer, tokio_postgres::Error> {
    let mut stream = std::pin::pin!(stream);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await? {
        let cells = (0..row.len()).map(|column| row.try_get::<_, Cell>(column).map(|cell| cell.0));
        rows.push(cells.collect::<Result<Vec<_>, _>>()?);
    }
    let count = stream.rows_affected().unwrap_or(rows.len() as u64);
    Ok(Answer { rows, count })
}
