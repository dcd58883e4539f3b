//! What can go wrong, whose fault it is and what to do.

use std::io;
use std::path::{Path, PathBuf};

use tokio_postgres::error::SqlState;

/// Why a benchmark could not do its work. Errors that emulated users meet are counted in the report instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target is no connection string.
    #[error(
        "read the target's connection string: {0}; write it as \"host=... port=... user=... dbname=...\""
    )]
    Dsn(#[source] tokio_postgres::Error),
    /// The database cannot be reached or refuses us.
    #[error("connect to {target}: {}", describe(source))]
    Connect {
        /// Host and port.
        target: String,
        /// The cause.
        source: tokio_postgres::Error,
    },
    /// One of several places to connect to says nothing.
    #[error("connect to {target}: no answer in {seconds} s")]
    Unanswered {
        /// Host and port.
        target: String,
        /// How long it was waited for.
        seconds: f64,
    },
    /// A statement outside of the emulated users' failed.
    #[error("{doing}: {}", describe(source))]
    Database {
        /// What was being done.
        doing: String,
        /// The cause.
        source: tokio_postgres::Error,
    },
    /// The database holds no such site.
    #[error("the target holds no {site}: load one first (`onecopy bench load{options}`)")]
    NotLoaded {
        /// What it is called.
        site: &'static str,
        /// Options of the command that loads it.
        options: &'static str,
    },
    /// The database holds such a site of another scale or seed.
    #[error(
        "the target holds another {site}, of {size} with seed {seed}: \
         ask for that one, or have it replaced (`onecopy bench load{options} --reload`)"
    )]
    OtherSite {
        /// What it is called.
        site: &'static str,
        /// How large it is, in words.
        size: String,
        /// What its rows were drawn from.
        seed: u64,
        /// Options of the command that loads it.
        options: &'static str,
    },
    /// Tables of the same names, without the mark of a whole site.
    #[error(
        "the target holds tables that a {site} needs and that may be somebody else's, or what an interrupted load left ({tables}): \
         use another database, or have them dropped and made anew (`onecopy bench load{options} --reload`)"
    )]
    InTheWay {
        /// What should be loaded.
        site: &'static str,
        /// The names of those that are there.
        tables: String,
        /// Options of the command that loads it.
        options: &'static str,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// A file cannot be read or written.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program that the comparison needs does not work.
    #[error("{program}: {why}")]
    Program {
        /// Its name.
        program: String,
        /// What happened, with what it said.
        why: String,
    },
    /// A local server does not work.
    #[error(transparent)]
    Cluster(#[from] onecopy_cluster::Error),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }

    pub(crate) fn database(doing: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Error {
        let doing = doing.into();
        move |source| Error::Database { doing, source }
    }

    pub(crate) fn program(program: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Program { program: program.into(), why: why.into() }
    }

    /// The SQLSTATE, if the database sent one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Error::Connect { source, .. } | Error::Database { source, .. } => source.code(),
            _ => None,
        }
    }
}

/// The database's own words where there are any; the driver's say "db error".
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            let hint = db.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            format!("{} (SQLSTATE {}){detail}{hint}", db.message(), db.code().code())
        }
        None => {
            let cause =
                std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        }
    }
}
