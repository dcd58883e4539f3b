//! The servers, old and new, and onecopy before them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy_cluster::{Binaries, Cluster, Server, Stop, free_port};
use serde::Serialize;

use super::Options;
use crate::connection::Target;
use crate::failures::served::blocking;
use crate::nodes::{configure, host};
use crate::observe::watch::CONSOLE;
use crate::programs::{self, ONECOPY_START, Program, find_program};
use crate::site::server_version;
use crate::{Error, Result};

/// A replica that serves, by the word of its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Serving {
    /// The replica.
    pub replica: String,
    /// `server_version`; empty if it did not answer.
    pub version: String,
}

/// All that there will be. Dropping it stops them.
pub(super) struct Servers {
    dsn: String,
    /// Before the servers, so that it stops first.
    onecopy: Program,
    log: PathBuf,
    /// By number; `None` while somebody else has it to start or stop it. The first half are old ones, of which the last joins later.
    all: Vec<Option<Server>>,
    names: Vec<String>,
    versions: [String; 2],
    /// Names of those in service, as the console said last.
    in_service: Vec<String>,
}

impl Servers {
    /// Makes all servers in an empty folder, starts those that are there at first, and onecopy before them.
    pub(super) async fn start(options: &Options, folder: &Path) -> Result<Servers> {
        let given = |dir: Option<&PathBuf>| dir.map(|dir| Binaries::at(dir)).transpose();
        let from = given(options.from.as_ref())?.map_or_else(Binaries::find, Ok)?;
        let to = given(options.to.as_ref())?.unwrap_or_else(|| from.clone());
        let old = options.replicas as usize + 1;
        let names: Vec<String> = (0..2 * old).map(Cluster::name).collect();
        let make = |(number, name): (usize, &String)| {
            let binaries = if number < old { &from } else { &to };
            let mut settings = onecopy_cluster::Options::replica().with("cluster_name", name);
            settings.binaries = Some(binaries.dir.clone());
            let dir = folder.join("servers").join(name);
            tokio::task::spawn_blocking(move || Server::init(dir, &settings))
        };
        let making: Vec<_> = names.iter().enumerate().map(make).collect();
        let mut all = Vec::new();
        for made in making {
            let made = made.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            all.push(made?);
        }
        for (number, mut server) in all.drain(..old - 1).collect::<Vec<_>>().into_iter().enumerate() {
            let started = blocking(move || server.start().map(|()| server)).await?;
            all.insert(number, started);
        }

        let (port, user) = (free_port()?, all[0].superuser().to_owned());
        let first: Vec<_> = names.iter().cloned().zip(&all[..old - 1]).collect();
        let settings = format!("pool.silence_timeout_ms = {}\n", options.silence_timeout_ms);
        let configuration = configure(folder, port, &first, &user, &settings, "")?;
        let mut command = Command::new(find_program("onecopy", Some(&options.workplace.onecopy))?);
        command.arg("serve").arg("-c").arg(configuration);
        command.env("PATH", programs_first(&from.dir));
        let log = folder.join("onecopy.log");
        let onecopy = Program::start("onecopy", command, &log)?.await_ready(ONECOPY_START).await?;
        Ok(Servers {
            dsn: programs::dsn(port, &user),
            onecopy,
            log,
            all: all.into_iter().map(Some).collect(),
            names,
            versions: [from.version, to.version],
            in_service: Vec::new(),
        })
    }

    /// Where clients connect.
    pub(super) fn dsn(&self) -> &str {
        &self.dsn
    }

    /// Old ones and new ones, as many of each.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// Of the programs of old ones, and of new ones.
    pub(super) fn versions(&self) -> [String; 2] {
        self.versions.clone()
    }

    /// Starts a server that is no replica yet.
    pub(super) async fn launch(&mut self, number: usize) -> Result<()> {
        self.with(number, Server::start).await
    }

    /// Stops one that is no replica any more.
    pub(super) async fn stop(&mut self, number: usize) -> Result<()> {
        self.with(number, |server| server.stop(Stop::Fast)).await
    }

    async fn with(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Server) -> onecopy_cluster::Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(mut server) = self.all[number].take() else { return Ok(()) };
        let (server, acted) = blocking(move || {
            let acted = act(&mut server);
            Ok((server, acted))
        })
        .await?;
        self.all[number] = Some(server);
        Ok(acted?)
    }

    /// Has it join, as `onecopy replica add` does.
    pub(super) async fn add(&self, number: usize) -> Result<()> {
        let Some(server) = &self.all[number] else { return Ok(()) };
        let (host, port) = (host(server).replace('\'', "''"), server.port());
        self.console(&format!("ADD REPLICA \"{}\" HOST '{host}' PORT {port}", self.name(number))).await
    }

    /// Has it leave, as `onecopy replica remove` does.
    pub(super) async fn remove(&self, number: usize) -> Result<()> {
        self.console(&format!("REMOVE REPLICA \"{}\"", self.name(number))).await
    }

    async fn console(&self, command: &str) -> Result<()> {
        let client = Target::parse(&self.dsn)?.on_database(CONSOLE).connect().await?;
        client.simple_query(command).await.map(drop).map_err(Error::database(command))
    }

    /// Whether onecopy itself still runs; if not, its last words.
    pub(super) fn expect_alive(&mut self) -> Result<()> {
        self.onecopy.expect_alive()
    }

    /// These are in service, by the console's word.
    pub(super) fn note(&mut self, in_service: Vec<String>) {
        self.in_service = in_service;
    }

    /// Asks each server in service itself.
    pub(super) async fn serving(&self) -> Vec<Serving> {
        let mut serving = Vec::new();
        for (replica, server) in self.names.iter().zip(&self.all) {
            let Some(server) = server.as_ref().filter(|_| self.in_service.contains(replica)) else {
                continue;
            };
            let version = async {
                let client = Target::parse(&server.dsn()).ok()?.connect().await.ok()?;
                // What stands behind it says who has built it.
                server_version(&client).await.split_whitespace().next().map(str::to_owned)
            };
            let (replica, version) = (replica.clone(), version.await.unwrap_or_default());
            serving.push(Serving { replica, version });
        }
        serving
    }

    /// Copies what onecopy and the servers have said.
    pub(super) fn keep_logs(&self, into: &Path) -> Result<()> {
        let server = |(name, server): (&String, &Option<Server>)| {
            Some((server.as_ref()?.log_path(), into.join(format!("{name}.log"))))
        };
        let servers = self.names.iter().zip(&self.all).filter_map(server);
        // Who never ran has said nothing.
        let said = servers.filter(|(log, _)| log.exists());
        for (from, to) in said.chain([(self.log.clone(), into.join("onecopy.log"))]) {
            fs::copy(&from, &to).map_err(Error::file("copy", &from))?;
        }
        Ok(())
    }
}

/// PATH, with the folder of these programs before all others: copies are made from the oldest version, by its pg_dump. That of a
/// newer one reads it as well, but writes settings that a server of the older version does not know.
fn programs_first(dir: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(dir.to_owned()).chain(std::env::split_paths(&path));
    // Without a colon in it, any folder can be joined.
    std::env::join_paths(dirs).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_servers_at_first_are_found_before_others() {
        let path = programs_first(Path::new("/of/16/bin"));
        let mut dirs = std::env::split_paths(&path);
        assert_eq!(dirs.next(), Some("/of/16/bin".into()));
        let others = std::env::var_os("PATH").unwrap_or_default();
        assert!(dirs.eq(std::env::split_paths(&others)));
    }
}
