//! `onecopy replica`.

use crate::CommandError;
use crate::config::ReplicaTlsMode;
use crate::console::{ASK_EVERY, Console, Table, Target};
use clap::Subcommand;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Show the replicas of a running onecopy, add one, copy one anew, or remove one, while clients go on.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(ListArgs),
    Add(AddArgs),
    Replace(ReplaceArgs),
    Remove(RemoveArgs),
}

/// Show each replica's state, its position, how many commits it is behind, and how far a copy has got.
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    target: Target,
}

/// Have a server join whose database is missing or empty: it is copied from a replica in service, and then serves.
///
/// Roles are carried over, the database is made. The command shows the progress and ends when the replica has caught up;
/// ending it earlier changes nothing, since the running onecopy does the work, also after a restart.
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// What to call it.
    name: String,
    /// Where it is: "host=db4.example.org port=5432", or a postgresql:// URL. onecopy logs in as at the others.
    #[arg(long, value_name = "DSN")]
    server: String,
    /// Encryption, unless that of `[replica_tls]`.
    #[arg(long, value_name = "MODE", value_enum)]
    tls: Option<ReplicaTlsMode>,
    /// Do not wait for it.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    target: Target,
}

/// Wipe a replica that is out of service, and copy it anew from one in service.
///
/// Its database is dropped on its server. One that serves is refused: `onecopy verify --exclude` takes out one that is wrong.
#[derive(Debug, clap::Args)]
struct ReplaceArgs {
    /// Which.
    name: String,
    /// Do not wait for it.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    target: Target,
}

/// Have a replica leave for good, when all that is open there has ended. What it holds stays on its server.
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// Which.
    name: String,
    /// Do not wait for open transactions: they fare as if the server had died.
    #[arg(long)]
    now: bool,
    /// Do not wait for it.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Asks a running onecopy, and shows what it does.
    ///
    /// # Errors
    /// What it refuses, or when it cannot be asked.
    pub fn run(self) -> Result<(), CommandError> {
        match self.command {
            Command::List(args) => args.run(),
            Command::Add(args) => args.run(),
            Command::Replace(args) => args.run(),
            Command::Remove(args) => args.run(),
        }
    }
}

impl ListArgs {
    fn run(self) -> Result<(), CommandError> {
        let listed = self.target.ask(async |console| list(console).await)?;
        self.target.show(&listed)
    }
}

impl AddArgs {
    fn run(self) -> Result<(), CommandError> {
        let (host, port) = place(&self.server)?;
        let tls = self.tls.map(|mode| format!(" TLS {}", text(mode.word()))).unwrap_or_default();
        let command = format!("ADD REPLICA {} HOST {} PORT {port}{tls}", name(&self.name), text(&host));
        self.target.ask(async |console| {
            console.query(&command).await?;
            follow(console, &self.name, self.detach, &self.target).await
        })
    }
}

impl ReplaceArgs {
    fn run(self) -> Result<(), CommandError> {
        self.target.ask(async |console| {
            console.query(&format!("REPLACE REPLICA {}", name(&self.name))).await?;
            follow(console, &self.name, self.detach, &self.target).await
        })
    }
}

impl RemoveArgs {
    fn run(self) -> Result<(), CommandError> {
        let now = if self.now { " NOW" } else { "" };
        self.target.ask(async |console| {
            console.query(&format!("REMOVE REPLICA {}{now}", name(&self.name))).await?;
            while !self.detach && row_of(&list(console).await?, &self.name).is_some() {
                tokio::time::sleep(ASK_EVERY).await;
            }
            self.target.show(&list(console).await?)
        })
    }
}

/// Shows the replicas when the one that joins serves, or at once.
async fn follow(console: &Console, name: &str, detach: bool, target: &Target) -> Result<(), CommandError> {
    if !detach {
        until_it_serves(console, name).await?;
    }
    target.show(&list(console).await?)
}

/// The replicas, with how many commits each is behind.
async fn list(console: &Console) -> Result<Table, CommandError> {
    let status = console.query("SHOW STATUS").await?;
    let replicas = console.query("SHOW REPLICAS").await?;
    let told = (0..status.rows.len()).find(|row| status.cell(*row, "name") == "told");
    let told = told.map_or(0, |row| status.number(row, "value"));
    let columns = ["name", "address", "version", "state", "applied", "lag", "out_because", "out_s", "detail"];
    let row = |row: usize| {
        let lag = told.saturating_sub(replicas.number(row, "applied")).to_string();
        let cell = |column: &&str| match *column {
            "lag" if replicas.cell(row, "state") == "copying" => String::new(),
            "lag" => lag.clone(),
            column => replicas.cell(row, column).to_owned(),
        };
        columns.iter().map(cell).collect()
    };
    Ok(Table {
        columns: columns.map(String::from).to_vec(),
        rows: (0..replicas.rows.len()).map(row).collect(),
    })
}

fn row_of(listed: &Table, name: &str) -> Option<usize> {
    (0..listed.rows.len()).find(|row| listed.cell(*row, "name") == name)
}

/// Says what happens to a replica until it serves and has everything that was told when it came into service.
async fn until_it_serves(console: &Console, name: &str) -> Result<(), CommandError> {
    let (mut said, mut needed) = (String::new(), None);
    loop {
        let listed = list(console).await?;
        let Some(row) = row_of(&listed, name) else {
            return Err(format!("{name} was removed meanwhile").into());
        };
        let (state, applied) = (listed.cell(row, "state"), listed.number(row, "applied"));
        if state == "up" && applied >= *needed.get_or_insert(applied + listed.number(row, "lag")) {
            eprintln!("{name}: up");
            return Ok(());
        }
        let says = match listed.cell(row, "detail") {
            "" => format!("{name}: {state}, {} commits behind", listed.cell(row, "lag")),
            detail => format!("{name}: {detail}"),
        };
        if says != said {
            eprintln!("{says}");
            said = says;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Host and port of a server's connection string.
fn place(dsn: &str) -> Result<(String, u16), CommandError> {
    let config: Config = dsn.parse().map_err(|error: tokio_postgres::Error| {
        format!("read --server: {error}; write it like \"host=db4.example.org port=5432\"")
    })?;
    if config.get_user().is_some() || config.get_password().is_some() || config.get_dbname().is_some() {
        return Err("--server says where the server is, and nothing else: onecopy logs in there as at the other replicas ([replica_login]), to the database that it serves".into());
    }
    let host = match config.get_hosts() {
        [Host::Tcp(host)] => host.clone(),
        [Host::Unix(folder)] => folder.display().to_string(),
        _ => return Err("--server must name one host".into()),
    };
    Ok((host, config.get_ports().first().copied().unwrap_or(5432)))
}

fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_host_and_a_port_and_nothing_else() {
        assert_eq!(place("host=db4 port=5433").unwrap(), ("db4".to_owned(), 5433));
        assert_eq!(place("postgresql://db4").unwrap(), ("db4".to_owned(), 5432));
        assert_eq!(place("host=/run/postgresql").unwrap(), ("/run/postgresql".to_owned(), 5432));
        for (dsn, says) in [
            ("host=db4 user=ada", "nothing else"),
            ("postgresql://db4/shop", "nothing else"),
            ("host=db4,db5", "one host"),
            ("port=5432", "one host"),
            ("hosts=db4", "write it like"),
        ] {
            let error = place(dsn).unwrap_err().to_string();
            assert!(error.contains(says), "{dsn}: {error}");
        }
    }
}
