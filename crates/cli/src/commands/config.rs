//! `onecopy config`: every setting, and whether a file of them is right.

use crate::CommandError;
use crate::config::{config_schema, load, secrets_schema};
use crate::output::print;
use crate::settings::{example, reference};
use std::path::PathBuf;

/// Show every setting, or check a configuration.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Args {
    /// Print a configuration file with every setting, its default and what it does.
    #[arg(long)]
    example: bool,
    /// Print a file of secrets the same way.
    #[arg(long)]
    example_secrets: bool,
    /// Print the reference of all settings in Markdown.
    #[arg(long)]
    reference: bool,
    /// Read a configuration and its secrets, and say what is wrong with them.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
}

impl Args {
    /// Does what the one option given says.
    ///
    /// # Errors
    /// What is wrong with the configuration that was to be checked, or with the output.
    pub fn run(self) -> Result<(), CommandError> {
        let text = if let Some(file) = self.check {
            let loaded = load(&file)?;
            for warning in &loaded.warnings {
                eprintln!("warning: {warning}");
            }
            format!("{} is right\n", file.display())
        } else if self.example_secrets {
            example(secrets_schema())
        } else if self.reference {
            reference_page()
        } else {
            example(config_schema())
        };
        Ok(print(text)?)
    }
}

/// The contents of docs/configuration.md.
fn reference_page() -> String {
    let (config, secrets) = (reference(config_schema()), reference(secrets_schema()));
    format!("{INTRODUCTION}\n## The configuration\n\n{config}## The secrets\n\n{}\n", secrets.trim_end())
}

const INTRODUCTION: &str = "\
# Configuration

This page is what `onecopy config --reference` prints; it derives from the definitions in
`crates/cli/src/config.rs`.

`onecopy serve -c FILE` reads two files in [TOML](https://toml.io): the configuration, and a second one with the
secrets that it names. Begin with the commented examples:

```
onecopy config --example > onecopy.toml
onecopy config --example-secrets > onecopy.secrets.toml
chmod 600 onecopy.secrets.toml
onecopy config --check onecopy.toml
```

- Every setting but the databases, their replicas and the login for them has a default.
- Nothing is ignored: a key that is not known is refused, with the one that was probably meant. Every problem of
  a file is reported at once, with line and column.
- Relative paths count from the folder of the configuration, those of the command line from the current one.
- The secrets are refused if everybody may read them or somebody else may change them.
- Times are in milliseconds (`_ms`), sizes in bytes (`_bytes`).
";
