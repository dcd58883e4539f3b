//! One server with its databases, and what the tests ask of it.

use onecopy_classify::Catalogue;
use onecopy_classify::catalogue_queries::{CATALOGUE_SETUP, catalogue_query};
use onecopy_cluster::{Error, Options, Server};
use std::path::Path;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A server that stops when it is dropped, and the runtime that its connections need.
pub struct TestServer {
    server: Server,
    runtime: tokio::runtime::Runtime,
}

impl TestServer {
    /// None, with the reason printed, if this machine has no PostgreSQL.
    pub fn start() -> Option<TestServer> {
        let options = Options::default()
            .with("fsync", "off")
            .with("synchronous_commit", "off")
            .with("full_page_writes", "off")
            .with("max_prepared_transactions", "0");
        let server = match Server::temporary(&options) {
            Ok(server) => server,
            Err(error @ Error::NoBinaries { .. }) => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("start a server: {error}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        Some(TestServer { server, runtime })
    }

    /// A connection to a database.
    pub fn connect(&self, database: &str) -> Session<'_> {
        let dsn = self.server.dsn_of(database);
        let client = self.runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.expect("connect");
            tokio::spawn(connection);
            client
        });
        Session { client, runtime: &self.runtime }
    }

    /// A new database with a schema of `tests/schemas`.
    pub fn create(&self, database: &str, schema: &str) -> Session<'_> {
        self.connect("postgres").run(&format!("CREATE DATABASE {database}"));
        let session = self.connect(database);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/schemas/{schema}.sql"));
        session.run(&std::fs::read_to_string(path).expect("schema file"));
        session
    }
}

/// One connection.
pub struct Session<'s> {
    client: Client,
    runtime: &'s tokio::runtime::Runtime,
}

/// What a statement answered: its rows in any order, or the SQLSTATE of its error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Rows(Vec<Vec<Option<String>>>, u64),
    Error(String),
}

impl Session<'_> {
    /// Executes statements that must succeed.
    pub fn run(&self, sql: &str) {
        if let Err(error) = self.runtime.block_on(self.client.batch_execute(sql)) {
            panic!("{sql}: {error:?}");
        }
    }

    /// Executes one string by the simple protocol.
    pub fn ask(&self, sql: &str) -> Answer {
        match self.runtime.block_on(self.client.simple_query(sql)) {
            Ok(messages) => {
                let (mut rows, mut count) = (Vec::new(), 0);
                for message in messages {
                    match message {
                        SimpleQueryMessage::Row(row) => {
                            rows.push((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect());
                        }
                        SimpleQueryMessage::CommandComplete(n) => count = n,
                        _ => {}
                    }
                }
                Answer::Rows(rows, count)
            }
            Err(error) => Answer::Error(error.code().map_or("?".to_owned(), |c| c.code().to_owned())),
        }
    }

    /// Prepares a statement with declared types (0: left to the server) and executes it with values in text format.
    pub fn execute(&self, types: &[u32], sql: &str, values: &[Option<&str>]) -> Answer {
        let names: Vec<&str> = (0..values.len())
            .map(|i| match types.get(i) {
                Some(23) => "int4",
                Some(20) => "int8",
                Some(1700) => "numeric",
                _ => "unknown",
            })
            .collect();
        let declared = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let literals: Vec<String> = values
            .iter()
            .map(|v| v.map_or("NULL".to_owned(), |v| format!("'{}'", v.replace('\'', "''"))))
            .collect();
        let arguments =
            if literals.is_empty() { String::new() } else { format!(" ({})", literals.join(", ")) };
        self.run("DEALLOCATE ALL");
        match self.ask(&format!("PREPARE once{declared} AS {sql}")) {
            Answer::Error(code) => Answer::Error(code),
            Answer::Rows(..) => self.ask(&format!("EXECUTE once{arguments}")),
        }
    }

    /// The first column of the only row.
    pub fn value(&self, sql: &str) -> String {
        match self.ask(sql) {
            Answer::Rows(rows, _) => rows[0][0].clone().unwrap_or_default(),
            Answer::Error(code) => panic!("{sql}: {code}"),
        }
    }

    /// The database's catalogue, fetched as the runtime does.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue::from_json(&self.catalogue_json()).expect("catalogue document")
    }

    /// The document itself.
    pub fn catalogue_json(&self) -> String {
        let version = self.value("SHOW server_version_num").parse().expect("version");
        self.run("BEGIN");
        self.run(CATALOGUE_SETUP);
        let json = self.value(&catalogue_query(version));
        self.run("COMMIT");
        json
    }

    /// Every row of every table of the schema `public`, in a canonical order.
    pub fn contents(&self, catalogue: &Catalogue) -> Vec<(String, Answer)> {
        catalogue
            .tables
            .iter()
            .filter(|t| t.schema == "public" && !t.is_partition)
            .map(|t| {
                let sql = format!("SELECT x::text FROM ONLY \"{}\" x ORDER BY 1", t.name);
                // Rows of a partitioned table are those of its partitions.
                let sql = if t.kind == 'p' { sql.replace("ONLY ", "") } else { sql };
                (t.name.clone(), self.ask(&sql))
            })
            .collect()
    }
}
