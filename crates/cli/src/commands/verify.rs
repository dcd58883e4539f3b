//! `onecopy verify`.

use crate::CommandError;
use crate::console::{Compared, Table, Target};
use crate::output::print;
use serde_json::json;

/// Compare the full contents of all replicas at one commit; fails if they differ or one could not be compared.
///
/// Writers are held off until every replica has a snapshot of the same commit, not while contents are read.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Asks a running onecopy and prints its verdict.
    ///
    /// # Errors
    /// When replicas differ, one of them is out of service, or onecopy cannot be asked.
    pub fn run(self) -> Result<(), CommandError> {
        let (compared, replicas) = self
            .target
            .ask(async |console| Ok((console.verify().await?, console.query("SHOW REPLICAS").await?)))?;
        let missing = not_compared(&replicas, &compared);
        let identical = missing.is_empty() && compared.iter().all(Compared::is_identical);
        if self.target.json {
            let replicas = table(&compared).json();
            let all = json!({ "identical": identical, "not_compared": missing, "replicas": replicas });
            print(format!("{all:#}"))?;
        } else {
            print(table(&compared))?;
        }
        match missing.join(", ") {
            _ if !compared.iter().all(Compared::is_identical) => Err("the replicas differ".into()),
            names if !names.is_empty() => Err(format!(
                "out of service, and so not compared: {names}; `onecopy status` shows the replicas, onecopy's messages say why"
            )
            .into()),
            _ => Ok(()),
        }
    }
}

fn not_compared(replicas: &Table, compared: &[Compared]) -> Vec<String> {
    let names = (0..replicas.rows.len()).map(|row| replicas.cell(row, "name"));
    names
        .filter(|name| !compared.iter().any(|compared| compared.replica == *name))
        .map(str::to_owned)
        .collect()
}

fn table(compared: &[Compared]) -> Table {
    let row = |Compared { replica, csn, tables, verdict }: &Compared| {
        vec![replica.clone(), csn.to_string(), tables.to_string(), verdict.clone()]
    };
    Table {
        columns: ["replica", "csn", "tables", "verdict"].map(String::from).to_vec(),
        rows: compared.iter().map(row).collect(),
    }
}
