//! `onecopy completions SHELL`.

use crate::output::print;
use crate::{CommandError, command_line};
use clap_complete::{Shell, generate};

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to print them for.
    shell: Shell,
}

impl Args {
    /// Prints the completions.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn run(self) -> Result<(), CommandError> {
        // Into memory first: `generate` panics when its output is a closed pipe.
        let mut text = Vec::new();
        generate(self.shell, &mut command_line(), "onecopy", &mut text);
        Ok(print(String::from_utf8_lossy(&text))?)
    }
}
