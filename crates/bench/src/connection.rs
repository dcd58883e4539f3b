//! One connection that runs a catalogue's statements.

use futures_util::TryStreamExt;
use onecopy_workload::catalogue::{Catalogue, StatementId};
use onecopy_workload::{Rows, Value};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, Statement, config::Host};

use crate::wire_value::{Cell, Parameter};
use crate::{Error, Result};

/// How statements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Prepared once a connection, then bound and executed.
    #[default]
    Prepared,
    /// The simple query protocol, with literals in the text.
    Simple,
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "prepared" => Ok(Protocol::Prepared),
            "simple" => Ok(Protocol::Simple),
            _ => Err(format!("there is no protocol {name:?}: choose prepared or simple")),
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Protocol::Prepared => "prepared",
            Protocol::Simple => "simple",
        })
    }
}

/// Where to connect: a parsed connection string.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    config: Config,
}

impl Target {
    pub(crate) fn parse(dsn: &str) -> Result<Self> {
        let mut config: Config = dsn.parse().map_err(Error::Dsn)?;
        if config.get_application_name().is_none() {
            config.application_name("onecopy-bench");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(std::time::Duration::from_secs(10));
        }
        Ok(Target { config })
    }

    /// Host, port and database, without any secret.
    pub(crate) fn name(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("");
        format!("{host}:{port}/{database}")
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        let connecting = self.config.connect(NoTls).await;
        let (client, connection) =
            connecting.map_err(|source| Error::Connect { target: self.name(), source })?;
        // An error of the connection reaches whoever waits for a reply on it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }
}

/// A connection for the statements of one catalogue.
pub(crate) struct Connection {
    client: Client,
    catalogue: &'static Catalogue,
    protocol: Protocol,
    prepared: Vec<Option<Statement>>,
}

impl Connection {
    pub(crate) fn new(client: Client, catalogue: &'static Catalogue, protocol: Protocol) -> Self {
        let prepared = vec![None; catalogue.statements.len()];
        Connection { client, catalogue, protocol, prepared }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// BEGIN, COMMIT and the like, in the simple protocol as most drivers send them.
    pub(crate) async fn command(&self, sql: &str) -> std::result::Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    pub(crate) async fn execute(
        &mut self,
        id: StatementId,
        params: &[Value],
    ) -> std::result::Result<Rows, tokio_postgres::Error> {
        match self.protocol {
            Protocol::Prepared => self.execute_prepared(id, params).await,
            Protocol::Simple => {
                let sql = self.catalogue.statement(id).with_literals(params);
                let messages = self.client.simple_query(&sql).await?;
                Ok(rows_of(&messages))
            }
        }
    }

    async fn execute_prepared(
        &mut self,
        id: StatementId,
        params: &[Value],
    ) -> std::result::Result<Rows, tokio_postgres::Error> {
        let place = usize::from(id.0);
        let statement = match &self.prepared[place] {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(&self.catalogue.statement(id).sql).await?;
                self.prepared[place].insert(statement).clone()
            }
        };
        let stream = self.client.query_raw(&statement, params.iter().map(Parameter)).await?;
        let mut stream = std::pin::pin!(stream);
        let mut rows = Vec::new();
        while let Some(row) = stream.try_next().await? {
            let cell = |column| row.try_get::<_, Cell>(column).map(|cell| cell.0);
            rows.push((0..row.len()).map(cell).collect::<std::result::Result<Vec<Value>, _>>()?);
        }
        let count = stream.rows_affected().unwrap_or(rows.len() as u64);
        Ok(Rows { rows, count })
    }
}

fn rows_of(messages: &[SimpleQueryMessage]) -> Rows {
    let mut result = Rows::default();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let cell = |column| row.get(column).map_or(Value::Null, Value::from);
                result.rows.push((0..row.len()).map(cell).collect());
            }
            SimpleQueryMessage::CommandComplete(count) => result.count = *count,
            _ => {}
        }
    }
    result
}
