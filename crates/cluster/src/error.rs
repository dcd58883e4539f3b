//! What can go wrong with local servers; each message says what, why, and what to do.

use std::io;
use std::path::PathBuf;

/// A failure to find, make, start or stop a local server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No PostgreSQL server programs were found.
    #[error(
        "no PostgreSQL {wanted} server programs found (looked in PATH, at pg_config and in {looked_in})\n\
         install them: sudo apt-get install {package}"
    )]
    NoBinaries {
        /// The versions that would do, such as `12 to 18`.
        wanted: String,
        /// Folders that were searched.
        looked_in: String,
        /// The Debian package that has what is wanted.
        package: String,
    },
    /// A folder that was named explicitly does not hold usable programs.
    #[error("{dir} does not hold the programs of a supported PostgreSQL (12 to 18): {why}", dir = dir.display())]
    BadBinaries {
        /// The folder that was named.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Root runs this, and there is nobody to hand the servers to.
    #[error(
        "PostgreSQL refuses to run as root, and this machine has neither a user `postgres` nor a user `nobody`\n\
         make one (useradd --system postgres), or run this command as an ordinary user"
    )]
    NoAccount,
    /// The user that is to run the server cannot reach its folder.
    #[error(
        "user `{user}`, who is to run PostgreSQL, cannot enter {ancestor}\n\
         use a folder elsewhere, such as /var/lib/onecopy, or allow it: chmod o+x {ancestor}",
        ancestor = ancestor.display()
    )]
    Unreachable {
        /// The user's name.
        user: String,
        /// The outermost folder that the user cannot enter.
        ancestor: PathBuf,
    },
    /// The data belongs to another user, and only root could run the server as that user.
    #[error(
        "{data} belongs to user {owner}, and PostgreSQL runs only as the owner of its data\n\
         run this command as that user or as root, or choose another folder",
        data = data.display()
    )]
    ForeignOwner {
        /// The data folder.
        data: PathBuf,
        /// Its owner's name or number.
        owner: String,
    },
    /// The folder was made by a PostgreSQL version whose programs are not installed.
    #[error(
        "{data} was made by PostgreSQL {found}, whose programs are not installed\n\
         install them (sudo apt-get install postgresql-{found}), or choose another folder",
        data = data.display()
    )]
    OtherVersion {
        /// The data folder.
        data: PathBuf,
        /// The major version that made it.
        found: String,
    },
    /// Another process has the folder.
    #[error("{dir} is in use by another onecopy process ({holder})\nstop that one, or choose another folder", dir = dir.display())]
    InUse {
        /// The server's folder.
        dir: PathBuf,
        /// `pid N`, as far as it is known.
        holder: String,
    },
    /// The port that was asked for is taken.
    #[error(
        "port {port} on 127.0.0.1 is taken by another program\nstop that one (ss -ltnp shows it), or choose another port"
    )]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// No port could be found.
    #[error("no free TCP port found on 127.0.0.1")]
    NoFreePort,
    /// A program ended with an error.
    #[error("{program} failed ({status}):\n{output}")]
    Program {
        /// The program's name.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// The server ended before it accepted connections.
    #[error("PostgreSQL in {dir} did not start ({status}); the end of {log}:\n{tail}", dir = dir.display(), log = log.display())]
    DidNotStart {
        /// The server's folder.
        dir: PathBuf,
        /// How the process ended.
        status: String,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// The server was still not accepting connections when the time was over.
    #[error("PostgreSQL in {dir} did not accept connections within {seconds} s; the end of {log}:\n{tail}", dir = dir.display(), log = log.display())]
    StartTimeout {
        /// The server's folder.
        dir: PathBuf,
        /// How long was waited.
        seconds: u64,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// The operation needs a running server.
    #[error("PostgreSQL in {dir} is not running", dir = dir.display())]
    NotRunning {
        /// The server's folder.
        dir: PathBuf,
    },
    /// A file of ours does not hold what it should.
    #[error("{path} is damaged: {why}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An operating system call failed.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, a verb in the present.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: what was tried, on what.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}
