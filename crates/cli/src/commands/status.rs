//! `onecopy status`.

use crate::CommandError;
use crate::console::{Table, Target};
use crate::output::print;
use serde_json::json;

/// Show how a running onecopy is doing: its nodes and replicas, who waits for whom, and counters.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Asks a running onecopy and prints its answers.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn run(self) -> Result<(), CommandError> {
        let (nodes, replicas, waits, status) = self.target.ask(async |console| {
            let nodes = console.query("SHOW NODES").await?;
            let replicas = console.query("SHOW REPLICAS").await?;
            Ok((nodes, replicas, console.query("SHOW WAITS").await?, console.query("SHOW STATUS").await?))
        })?;
        if self.target.json {
            let all = json!({
                "status": status.json_pairs(), "replicas": replicas.json(), "waits": waits.json(),
                "nodes": nodes.json(),
            });
            return Ok(print(format!("{all:#}"))?);
        }
        let unless_empty = |table: &Table| match table.rows.is_empty() {
            true => String::new(),
            false => format!("{table}\n"),
        };
        let (nodes, waits) = (unless_empty(&nodes), unless_empty(&waits));
        Ok(print(format!("{nodes}{replicas}\n{waits}{status}"))?)
    }
}
