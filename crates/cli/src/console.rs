//! The admin console of a running onecopy, as the commands that ask it see it.

use crate::CommandError;
use crate::local::default_dir;
use crate::output::print;
use onecopy_cluster::ClusterFile;
use serde_json::{Map, Value};
use std::env;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// The database under whose name the console answers.
const CONSOLE: &str = "onecopy";
/// The verdict of VERIFY about the replica with which the others are compared.
pub const REFERENCE: &str = "reference";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a running onecopy is asked how far it has got with what it was told to do.
pub const ASK_EVERY: Duration = Duration::from_millis(500);

/// Which onecopy to ask, and how to show what it says.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Where onecopy listens: "host=127.0.0.1 port=6432 user=postgres", or a postgresql:// URL; the variable
    /// PGPASSWORD may hold the password [default: the local cluster of --dir]
    #[arg(long, value_name = "DSN", conflicts_with = "dir")]
    target: Option<String>,
    /// The folder of a local cluster that runs [default: that of `onecopy up`; else port 6432 of this machine]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// Asks the console in a runtime of its own.
    ///
    /// # Errors
    /// When the console cannot be reached, or what `questions` fails with.
    pub fn ask<T>(
        &self,
        questions: impl AsyncFnOnce(&Console) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { questions(&Console::connect(&self.dsn()?).await?).await })
    }

    /// Shows a table in the form that was asked for.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn show(&self, table: &Table) -> Result<(), CommandError> {
        let shown = if self.json { print(format!("{:#}", table.json())) } else { print(table) };
        Ok(shown?)
    }

    fn dsn(&self) -> Result<String, CommandError> {
        if let Some(dsn) = &self.target {
            return Ok(dsn.clone());
        }
        if let Some(dir) = &self.dir {
            let file = ClusterFile::read(dir);
            return Ok(file.map_err(|error| not_running(dir, &error))?.client.dsn);
        }
        let usual = ClusterFile::read(&default_dir("local")).map(|file| file.client.dsn);
        Ok(usual.unwrap_or_else(|_| "host=127.0.0.1 port=6432 user=postgres".to_owned()))
    }
}

fn not_running(dir: &std::path::Path, error: &onecopy_cluster::Error) -> String {
    format!("no cluster serves in {}: {error}; start it with `onecopy up --dir {0}`", dir.display())
}

/// A connection to the console.
#[derive(Debug)]
pub struct Console {
    client: Client,
}

impl Console {
    /// Connects to the console of the onecopy that a connection string of its clients leads to.
    ///
    /// # Errors
    /// When the string is none, or nobody answers there.
    pub async fn connect(dsn: &str) -> Result<Console, CommandError> {
        let mut config: Config =
            dsn.parse().map_err(|error| {
                let like = "write it like \"host=127.0.0.1 port=6432 user=postgres\" or postgresql://postgres@127.0.0.1:6432";
                format!("read the connection string: {}; {like}", describe(&error))
            })?;
        config.dbname(CONSOLE).application_name("onecopy");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if let (None, Ok(password)) = (config.get_password(), env::var("PGPASSWORD")) {
            config.password(password);
        }
        let connecting = config.connect(NoTls).await;
        let (client, connection) = connecting.map_err(|error| {
            format!("connect to onecopy at {}: {}; {}", address(&config), describe(&error), advice(&error))
        })?;
        // An error of the connection reaches whoever waits for an answer on it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Console { client })
    }

    /// Sends one command and returns what it answers.
    ///
    /// # Errors
    /// What the console refuses it with, with its hint.
    pub async fn query(&self, command: &str) -> Result<Table, CommandError> {
        let messages = self.client.simple_query(command).await.map_err(|error| describe(&error))?;
        let mut table = Table::default();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    table.columns = columns.iter().map(|column| column.name().to_owned()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    let cell = |index| row.get(index).unwrap_or_default().to_owned();
                    table.rows.push((0..row.len()).map(cell).collect());
                }
                _ => {}
            }
        }
        Ok(table)
    }

    /// Compares the contents of all replicas in service.
    ///
    /// # Errors
    /// When writers could not be held off, or a replica did not catch up, in time.
    pub async fn verify(&self) -> Result<Vec<Compared>, CommandError> {
        let table = self.query("VERIFY").await?;
        let compared = |row: usize| Compared {
            replica: table.cell(row, "replica").to_owned(),
            csn: table.number(row, "csn"),
            tables: table.number(row, "tables"),
            verdict: table.cell(row, "verdict").to_owned(),
        };
        Ok((0..table.rows.len()).map(compared).collect())
    }
}

/// What VERIFY found of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Its name.
    pub replica: String,
    /// The commit at which contents were compared.
    pub csn: u64,
    /// Tables compared.
    pub tables: u64,
    /// `reference` for the one with which the others are compared; `identical`; or `DIFFERS: ` and where.
    pub verdict: String,
}

impl Compared {
    /// Whether it holds what the reference holds.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        self.verdict == REFERENCE || self.verdict == "identical"
    }
}

/// An answer of the console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The columns' names.
    pub columns: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A cell; empty if there is no such row or column, as with a console of another version.
    #[must_use]
    pub fn cell(&self, row: usize, column: &str) -> &str {
        let place = self.columns.iter().position(|name| name == column);
        place.and_then(|place| self.rows.get(row)?.get(place)).map_or("", String::as_str)
    }

    /// A cell that holds a number; 0 if it holds none.
    #[must_use]
    pub fn number(&self, row: usize, column: &str) -> u64 {
        self.cell(row, column).parse().unwrap_or(0)
    }

    /// An array with an object a row.
    #[must_use]
    pub fn json(&self) -> Value {
        let object = |row: &Vec<String>| {
            let pairs = self.columns.iter().zip(row);
            Value::Object(pairs.map(|(name, cell)| (name.clone(), json_cell(cell))).collect())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }

    /// An object of names and values, for a table of two such columns.
    #[must_use]
    pub fn json_pairs(&self) -> Value {
        let pair = |row: &Vec<String>| match &row[..] {
            [name, value] => Some((name.clone(), json_cell(value))),
            _ => None,
        };
        Value::Object(self.rows.iter().filter_map(pair).collect::<Map<_, _>>())
    }

    /// Whether a column is to be aligned right: all its cells are numbers.
    fn is_numeric(&self, column: usize) -> bool {
        self.rows.iter().all(|row| row[column].parse::<f64>().is_ok())
    }
}

/// Columns under their names; lines of a cell stand below each other. The last column is not padded.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells_width = |column: usize| {
            let lines = self.rows.iter().flat_map(|row| row[column].lines());
            lines.map(|line| line.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(column, name)| name.len().max(cells_width(column)))
            .collect();
        let right: Vec<bool> = (0..self.columns.len()).map(|column| self.is_numeric(column)).collect();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            let height = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0);
            for line in 0..height {
                let mut text = String::new();
                for (column, cell) in row.iter().enumerate() {
                    let (cell, width) = (cell.lines().nth(line).unwrap_or(""), widths[column]);
                    if right[column] {
                        write!(text, "{cell:>width$}  ")?;
                    } else {
                        write!(text, "{cell:<width$}  ")?;
                    }
                }
                writeln!(f, "{}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

fn json_cell(cell: &str) -> Value {
    let integer = cell.parse::<u64>().map(Value::from);
    integer.or_else(|_| cell.parse::<f64>().map(Value::from)).unwrap_or_else(|_| Value::from(cell))
}

/// Host and port, without any secret.
fn address(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Tcp(name)) => format!("{name}:{port}"),
        Some(Host::Unix(path)) => format!("{}:{port}", path.display()),
        None => format!("localhost:{port}"),
    }
}

/// What to do about a connection that could not be made.
fn advice(error: &tokio_postgres::Error) -> &'static str {
    let Some(refusal) = error.as_db_error() else {
        return "start it with `onecopy up` or `onecopy serve`, or say by --target where it listens";
    };
    match *refusal.code() {
        // Whatever listens there has no console.
        SqlState::INVALID_CATALOG_NAME => {
            "that is a PostgreSQL server: say by --target where onecopy listens"
        }
        // This connection never encrypts.
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "where clients must encrypt, give the folder of onecopy's Unix socket (listen.socket_dir) as host"
        }
        SqlState::INVALID_PASSWORD => "set PGPASSWORD to the password of that user",
        _ => "say by --target as whom to connect, and where",
    }
}

/// The server's own words with its hint, or the cause of a failed connection.
fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return format!("{}{hint}", error.message());
    }
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use snapbox::{assert_data_eq, str};

    fn table() -> Table {
        let row = |cells: [&str; 3]| cells.map(String::from).to_vec();
        Table {
            columns: row(["name", "applied", "what"]),
            rows: vec![row(["r1", "7", "SELECT 1\nFROM t"]), row(["r22", "1234567890", "-"])],
        }
    }

    #[test]
    fn numbers_are_aligned_right_and_lines_of_a_cell_stand_below_each_other() {
        assert_data_eq!(
            table().to_string(),
            str![[r#"
name     applied  what
r1             7  SELECT 1
                  FROM t
r22   1234567890  -

"#]]
        );
    }

    #[test]
    fn json_keeps_numbers_as_numbers() {
        assert_eq!(
            table().json().to_string(),
            r#"[{"applied":7,"name":"r1","what":"SELECT 1\nFROM t"},{"applied":1234567890,"name":"r22","what":"-"}]"#
        );
    }

    #[test]
    fn cell_that_a_console_does_not_show_is_empty() {
        assert_eq!(
            (table().cell(0, "name"), table().cell(0, "other"), table().cell(9, "name")),
            ("r1", "", "")
        );
        assert_eq!((table().number(1, "applied"), table().number(0, "name")), (1_234_567_890, 0));
    }
}
