//! `onecopy status`.

use crate::CommandError;
use crate::console::Target;
use crate::output::print;
use serde_json::json;

/// Show how a running onecopy is doing: its replicas, who waits for whom, and counters.
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
        let (replicas, waits, status) = self.target.ask(async |console| {
            let replicas = console.query("SHOW REPLICAS").await?;
            Ok((replicas, console.query("SHOW WAITS").await?, console.query("SHOW STATUS").await?))
        })?;
        if self.target.json {
            let all = json!({
                "status": status.json_pairs(), "replicas": replicas.json(), "waits": waits.json(),
            });
            return Ok(print(format!("{all:#}"))?);
        }
        let waiting = if waits.rows.is_empty() { String::new() } else { format!("{waits}\n") };
        Ok(print(format!("{replicas}\n{waiting}{status}"))?)
    }
}
