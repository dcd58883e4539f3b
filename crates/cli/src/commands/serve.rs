//! `onecopy serve -c FILE`.

use crate::CommandError;
use crate::config::load;
use crate::messages;
use crate::output::print;
use crate::runtime_settings::runtime_settings;
use crate::serving::serve_until_stopped;
use onecopy_runtime::Settings;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

/// Serve the databases of a configuration.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; `onecopy config --example` prints one.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/onecopy/onecopy.toml")]
    config: PathBuf,
    /// Roll a commit of an earlier run back that every replica refuses, though somebody may have been told of it.
    #[arg(long, value_name = "COMMIT")]
    annul: Vec<u64>,
}

impl Args {
    /// Serves until SIGINT or SIGTERM. Prints `ready` when clients can connect.
    ///
    /// # Errors
    /// What is wrong with the configuration, or what kept it from serving.
    pub fn run(self) -> Result<(), CommandError> {
        let loaded = load(&self.config)?;
        messages::init(&loaded.config.messages);
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let ready = |handle: &onecopy_runtime::Handle| {
            tracing::info!(addresses = handle.addresses().join(", "), "ready");
            Ok(print("ready")?)
        };
        let settings = Settings { annul: self.annul.clone(), ..runtime_settings(&loaded) };
        check_addresses(&settings.listen)?;
        serve_until_stopped(settings, ready, || self.check_again())
    }

    /// SIGHUP: settings take effect at the next start; whether they would is said now.
    fn check_again(&self) {
        match load(&self.config) {
            Ok(_) => tracing::info!("{} is right; it takes effect at the next start", self.config.display()),
            Err(error) => {
                tracing::error!("{} would be refused at the next start:\n{error}", self.config.display())
            }
        }
    }
}

/// A start by mistake, beside a process that serves, is refused before it ends that process' sessions on the replicas.
fn check_addresses(listen: &[String]) -> Result<(), CommandError> {
    for address in listen.iter().filter_map(|address| address.parse::<SocketAddr>().ok()) {
        TcpListener::bind(address).map_err(|error| {
            let what = match error.kind() {
                ErrorKind::AddrInUse => {
                    "does another onecopy serve there? Stop it, or set another listen.port"
                }
                ErrorKind::PermissionDenied => "take a listen.port of 1024 or more, or run as a user who may",
                _ => "listen.addresses must be those of this machine",
            };
            format!("listen on {address}: {error}; {what}")
        })?;
    }
    Ok(())
}
