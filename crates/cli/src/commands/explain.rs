//! `onecopy explain SQL`.

use crate::CommandError;
use crate::console::Target;
use crate::output::print;

/// Show what onecopy would do with a statement, and why.
///
/// Shows which rows and keys it locks, whether its text or its rows reach the other replicas, and where it would run.
/// The statement is not executed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The statement.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    sql: String,
    #[command(flatten)]
    target: Target,
}

impl Args {
    /// Asks a running onecopy and prints its answer.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn run(self) -> Result<(), CommandError> {
        let command = format!("EXPLAIN {}", self.sql);
        let table = self.target.ask(async |console| console.query(&command).await)?;
        if self.target.json {
            return Ok(print(format!("{:#}", table.json()))?);
        }
        Ok(print(table)?)
    }
}
