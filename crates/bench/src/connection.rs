//! One connection that runs a catalogue's statements.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use onecopy_workload::catalogue::{Catalogue, StatementId};
use onecopy_workload::{Rows, Value};
use serde::{Deserialize, Serialize};
use tokio_postgres::config::Host;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, Socket, Statement};

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

/// Where to connect: a parsed connection string. Of several hosts that it names, in the order of their numbers, one that cannot be
/// reached is left for the next one.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// A configuration for each host, alike in all else; one at least.
    hosts: Vec<Config>,
}

impl Target {
    pub(crate) fn parse(dsn: &str) -> Result<Self> {
        let mut config: Config = dsn.parse().map_err(Error::Dsn)?;
        if config.get_application_name().is_none() {
            config.application_name("onecopy-bench");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        let count = config.get_hosts().len();
        let hosts =
            if count > 1 { (0..count).map(|host| only(&config, host)).collect() } else { vec![config] };
        Ok(Target { hosts })
    }

    /// How many hosts it names.
    pub(crate) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// The same place, another database.
    pub(crate) fn on_database(mut self, name: &str) -> Self {
        for config in &mut self.hosts {
            config.dbname(name);
        }
        self
    }

    /// Host, port and database, without any secret; of several hosts the first.
    pub(crate) fn name(&self) -> String {
        name(&self.hosts[0])
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        Ok(self.connect_from(0, |_| ()).await?.0)
    }

    /// Connects to the host of this number, else to those that follow it, the first after the last; returns which it was. If that
    /// connection ends though the client is still there, `lost` hears of it.
    ///
    /// # Errors
    /// The last host's, if none can be reached.
    pub(crate) async fn connect_from(
        &self,
        first: usize,
        lost: impl FnOnce(usize) + Send + 'static,
    ) -> Result<(Client, usize)> {
        let count = self.hosts.len();
        let mut tried = first % count;
        let (client, connection) = loop {
            let next = (tried + 1) % count;
            match self.connect_to(tried).await {
                Ok(connected) => break connected,
                Err(error) if next == first % count => return Err(error),
                Err(_) => tried = next,
            }
        };
        // An error of the connection reaches whoever waits for a reply on it.
        tokio::spawn(async move {
            if connection.await.is_err() {
                lost(tried);
            }
        });
        Ok((client, tried))
    }

    async fn connect_to(
        &self,
        host: usize,
    ) -> Result<(Client, tokio_postgres::Connection<Socket, NoTlsStream>)> {
        let config = &self.hosts[host];
        let connecting = config.connect(NoTls);
        let connected = match config.get_connect_timeout().filter(|_| self.hosts.len() > 1) {
            None => connecting.await,
            // A process that stands still lets its system accept connections.
            Some(limit) => match tokio::time::timeout(*limit, connecting).await {
                Ok(connected) => connected,
                Err(_) => {
                    return Err(Error::Unanswered { target: name(config), seconds: limit.as_secs_f64() });
                }
            },
        };
        connected.map_err(|source| Error::Connect { target: name(config), source })
    }
}

/// The same for one of its hosts alone.
fn only(all: &Config, host: usize) -> Config {
    let mut one = Config::new();
    match &all.get_hosts()[host] {
        Host::Tcp(name) => one.host(name),
        #[cfg(unix)]
        Host::Unix(path) => one.host_path(path),
    };
    // One port stands for all.
    if let Some(port) = all.get_ports().get(host).or(all.get_ports().first()) {
        one.port(*port);
    }
    if let Some(address) = all.get_hostaddrs().get(host) {
        one.hostaddr(*address);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(name) = all.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(limit) = all.get_connect_timeout() {
        one.connect_timeout(*limit);
    }
    one
}

fn name(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().or(config.get_user()).unwrap_or("");
    format!("{host}:{port}/{database}")
}

/// A connection for the statements of one catalogue.
pub(crate) struct Connection {
    client: Client,
    catalogue: &'static Catalogue,
    protocol: Protocol,
    prepared: Vec<Option<Statement>>,
    /// Stands before each statement's text; empty where nothing does.
    comments: Arc<[String]>,
}

impl Connection {
    pub(crate) fn new(client: Client, catalogue: &'static Catalogue, protocol: Protocol) -> Self {
        let prepared = vec![None; catalogue.statements.len()];
        Connection { client, catalogue, protocol, prepared, comments: Arc::default() }
    }

    /// The same with comments before the statements, by their place in the catalogue.
    pub(crate) fn with_comments(self, comments: Arc<[String]>) -> Self {
        Connection { comments, ..self }
    }

    fn comment(&self, id: StatementId) -> &str {
        self.comments.get(usize::from(id.0)).map_or("", String::as_str)
    }

    /// Prepares every statement, so that none is prepared while somebody looks at the clock.
    pub(crate) async fn prepare_all(&mut self) -> std::result::Result<(), tokio_postgres::Error> {
        if self.protocol == Protocol::Prepared {
            for place in 0..self.catalogue.statements.len() {
                self.prepared(StatementId(place as u16)).await?;
            }
        }
        Ok(())
    }

    async fn prepared(&mut self, id: StatementId) -> std::result::Result<Statement, tokio_postgres::Error> {
        let place = usize::from(id.0);
        if let Some(statement) = &self.prepared[place] {
            return Ok(statement.clone());
        }
        let sql = format!("{}{}", self.comment(id), self.catalogue.statement(id).sql);
        let statement = self.client.prepare(&sql).await?;
        Ok(self.prepared[place].insert(statement).clone())
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
                let sql = self.comment(id).to_owned() + &self.catalogue.statement(id).with_literals(params);
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
        let statement = self.prepared(id).await?;
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

#[cfg(test)]
mod tests {
    use onecopy_cluster::Server;
    use onecopy_workload::client::{Script, Step};
    use onecopy_workload::{bank, list_append, long_fork, random};

    use super::*;

    async fn connect(
        target: &Target,
        catalogue: &'static Catalogue,
        protocol: Protocol,
        load: Vec<String>,
    ) -> Connection {
        let client = target.connect().await.unwrap();
        for statement in load {
            client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        Connection::new(client, catalogue, protocol)
    }

    /// Runs a transaction; false if it rolled itself back.
    async fn run(connection: &mut Connection, script: &mut impl Script, is_bracketed: bool) -> bool {
        let mut rows = None;
        if is_bracketed {
            connection.command("BEGIN").await.unwrap();
        }
        loop {
            let end = match script.next(rows.take()) {
                Step::Execute(id, params) => {
                    let sql = &connection.catalogue.statement(id).sql;
                    let result = connection.execute(id, &params).await;
                    let failed = |error| panic!("{sql} {params:?}: {}", crate::error::describe(&error));
                    rows = Some(result.unwrap_or_else(failed));
                    continue;
                }
                end => end,
            };
            if is_bracketed {
                connection.command(if end == Step::Commit { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
            }
            return end == Step::Commit;
        }
    }

    #[tokio::test]
    async fn host_that_cannot_be_reached_is_left_for_the_next_one_and_a_loss_is_told() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let (there, gone) = (server.port(), onecopy_cluster::free_port().unwrap());
        let user = server.superuser();
        let dsn = format!(
            "host=127.0.0.1,127.0.0.1 port={gone},{there} user={user} dbname=postgres connect_timeout=5"
        );
        let target = Target::parse(&dsn).unwrap();
        assert_eq!((target.host_count(), target.name()), (2, format!("127.0.0.1:{gone}/postgres")));
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for first in [0, 1, 2] {
            let tell = tell.clone();
            let (client, host) =
                target.connect_from(first, move |host| tell.send(host).unwrap()).await.unwrap();
            assert_eq!(host, 1);
            if first == 2 {
                // Whoever leaves by itself loses nothing; whoever is sent away does.
                drop(client.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await);
            }
        }
        assert_eq!(told.recv().await, Some(1));
        assert!(told.try_recv().is_err());
    }

    #[tokio::test]
    async fn every_small_workload_runs_on_a_server_and_keeps_its_invariants() {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let target = Target::parse(&server.dsn()).unwrap();
        for protocol in [Protocol::Prepared, Protocol::Simple] {
            let client = target.connect().await.unwrap();
            client.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
            bank_keeps_its_total(&target, protocol).await;
            lists_hold_what_was_appended(&target, protocol).await;
            registers_are_seen_once_written(&target, protocol).await;
        }
    }

    async fn bank_keeps_its_total(target: &Target, protocol: Protocol) {
        let bank = bank::Bank { accounts: 5, owners: 2, initial: 100 };
        let mut connection = connect(target, bank::catalogue(), protocol, bank.load()).await;
        let mut random = random::stream(1, 0);
        let (mut audits, mut refused) = (0, 0);
        for _ in 0..400 {
            let mut transaction = bank.draw(&mut random);
            let is_bracketed = transaction.is_bracketed();
            let committed = run(&mut connection, &mut transaction, is_bracketed).await;
            refused += u32::from(!committed);
            if let bank::Request::Audit { .. } = transaction.request() {
                assert_eq!(transaction.audited(), Some(bank.total()));
                audits += 1;
            }
        }
        assert!(audits > 50 && refused > 10, "{audits} {refused}");
        let overdrawn = "SELECT owner FROM bank_pocket GROUP BY owner HAVING sum(balance) < 0";
        assert!(connection.client.query(overdrawn, &[]).await.unwrap().is_empty());
    }

    async fn lists_hold_what_was_appended(target: &Target, protocol: Protocol) {
        let catalogue = list_append::catalogue();
        let load = [catalogue.create_tables(), catalogue.create_indexes()].concat();
        let mut connection = connect(target, catalogue, protocol, load).await;
        let mut generator = list_append::Generator::new(0, 1, 4, 30);
        let mut random = random::stream(2, 0);
        let mut lists: std::collections::BTreeMap<i64, Vec<i64>> = Default::default();
        for _ in 0..400 {
            let mut transaction = generator.draw(&mut random);
            let is_bracketed = transaction.is_bracketed();
            assert!(run(&mut connection, &mut transaction, is_bracketed).await);
            for (operation, outcome) in transaction.operations().iter().zip(transaction.results()) {
                match (operation, outcome) {
                    (list_append::Operation::Read { key, .. }, list_append::Outcome::List(seen)) => {
                        assert_eq!(lists.get(key).unwrap_or(&Vec::new()), seen);
                    }
                    (
                        list_append::Operation::Append { key, value, by },
                        list_append::Outcome::Appended(appended),
                    ) => {
                        let expected = *by == list_append::Path::Key || lists.contains_key(key);
                        assert_eq!(*appended, expected, "{operation:?}");
                        if expected {
                            lists.entry(*key).or_default().push(*value);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(lists.len() > 10);
    }

    async fn registers_are_seen_once_written(target: &Target, protocol: Protocol) {
        let catalogue = long_fork::catalogue();
        let load = [catalogue.create_tables(), catalogue.create_indexes()].concat();
        let mut connection = connect(target, catalogue, protocol, load).await;
        let mut generator = long_fork::Generator::new(4);
        let mut random = random::stream(3, 0);
        let mut written = std::collections::BTreeSet::new();
        for _ in 0..400 {
            let mut transaction = generator.draw(&mut random);
            let is_bracketed = transaction.is_bracketed();
            assert!(run(&mut connection, &mut transaction, is_bracketed).await);
            match transaction.operation() {
                long_fork::Operation::Write { key, .. } => assert!(written.insert(*key)),
                long_fork::Operation::Read { group, .. } => {
                    let mut seen = transaction.seen().to_vec();
                    seen.sort_unstable();
                    let expected: Vec<i64> = written.range(generator.keys(*group)).copied().collect();
                    assert_eq!(seen, expected);
                }
            }
        }
    }
}
