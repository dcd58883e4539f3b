//! The one place that turns errors into SQLSTATEs and words for the client.

use bytes::BytesMut;
use onecopy_core::Refusal;
use onecopy_wire::backend::build::{self, Report, Severity};
use onecopy_wire::sqlstate::SqlState;

use crate::lane::LaneError;

/// Why serving could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The threads that serve connections could not be started.
    #[error("start threads to serve connections: {0}")]
    Threads(std::io::Error),
    /// A socket could not be opened.
    #[error("listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The commit log could not be opened or is damaged.
    #[error("open the commit log: {0}")]
    Log(String),
    /// The commit log cannot be written any more. What it was about to write may be in it or not, so nobody can be told what
    /// became of it before it is read again.
    #[error("{0}")]
    LogFailed(String),
    /// The system lets the process open too few files.
    #[error(
        "onecopy may open {files_max} files and needs {least} at least; let it open more (ulimit -n, LimitNOFILE= of systemd)"
    )]
    Files {
        /// As many as it may open.
        files_max: u64,
        /// As many as it needs for one client.
        least: u64,
    },
    /// A setting cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The replicas cannot be used together.
    #[error("{0}")]
    Replicas(String),
    /// TLS could not be set up.
    #[error("set up TLS: {0}")]
    Tls(String),
}

/// An answer of onecopy's own to a statement that could not be executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub code: SqlState,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// What PostgreSQL names as the place of the error, where drivers look at it.
    pub routine: Option<&'static str>,
}

impl Failure {
    pub fn new(code: SqlState, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), detail: None, hint: None, routine: None }
    }

    pub fn routine(mut self, routine: &'static str) -> Failure {
        self.routine = Some(routine);
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// What is not supported, with what to do instead.
    pub fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(SqlState::FEATURE_NOT_SUPPORTED, what).hint(hint)
    }

    /// A text in which some byte is not UTF-8, in PostgreSQL's words.
    pub fn not_utf8(text: &[u8]) -> Failure {
        let at = std::str::from_utf8(text).err().map_or(0, |error| error.valid_up_to());
        // As many bytes as the first one promises, as far as they are there.
        let len = match text.get(at) {
            Some(0xf0..=0xf7) => 4,
            Some(0xe0..=0xef) => 3,
            Some(0xc0..=0xdf) => 2,
            _ => 1,
        };
        let bytes = text.iter().skip(at).take(len).filter(|byte| **byte != 0);
        let bytes: String = bytes.map(|byte| format!(" 0x{byte:02x}")).collect();
        Failure::new(
            SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            format!("invalid byte sequence for encoding \"UTF8\":{bytes}"),
        )
    }

    pub fn of_refusal(refusal: Refusal, cancelled: Cancelled) -> Failure {
        match refusal {
            Refusal::Deadlock => Failure::new(
                SqlState::DEADLOCK_DETECTED,
                "this transaction and others were waiting for each other; this one was given up",
            )
            .hint("Run the transaction again. Touching tables and rows in the same order everywhere avoids this."),
            Refusal::ReadsChanged => Failure::new(
                SqlState::SERIALIZATION_FAILURE,
                "what this transaction has read was changed by another before it wrote",
            )
            .hint("Run the transaction again. SELECT ... FOR UPDATE keeps others from changing what is read."),
            Refusal::DefinitionsChanged => Failure::new(
                SqlState::SERIALIZATION_FAILURE,
                "definitions changed after this transaction had read and before it wrote",
            )
            .hint("Run the transaction again: it then goes by the new definitions, whether or not it reads what was changed."),
            Refusal::HomeLost => Failure::new(
                SqlState::SERIALIZATION_FAILURE,
                "the replica on which this transaction was executing went out of service",
            )
            .hint("Nothing of it was committed. Run the transaction again."),
            Refusal::AnswerCut => Failure::new(
                SqlState::SERIALIZATION_FAILURE,
                "the replica went out of service after a part of the result had been sent",
            )
            .hint("Run the statement again."),
            Refusal::Undeclared => Failure::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the statement touches a table that the transaction did not declare at its start",
            )
            .hint("Declare all tables of the transaction, or none."),
            Refusal::Mispredicted => Failure::new(
                SqlState::SERIALIZATION_FAILURE,
                "the transaction touches a table that transactions like it had not touched before",
            )
            .hint("It has been learned. Run the transaction again."),
            Refusal::Cancelled => cancelled.failure(),
        }
    }

    /// A statement was classified by definitions that are not in force any more.
    pub fn outdated() -> Failure {
        Failure::new(
            SqlState::SERIALIZATION_FAILURE,
            "definitions of tables changed while the statement was waiting",
        )
        .hint("Run the transaction again.")
    }

    /// A statement in a transaction that has failed.
    pub fn in_failed_transaction() -> Failure {
        Failure::new(
            SqlState::IN_FAILED_SQL_TRANSACTION,
            "current transaction is aborted, commands ignored until end of transaction block",
        )
    }

    /// A value or column that is wanted in a format that there is not.
    pub fn of_format(code: i16) -> Failure {
        Failure::new(SqlState::INVALID_PARAMETER_VALUE, format!("unsupported format code: {code}"))
    }

    pub fn of_lane(error: &LaneError) -> Failure {
        match error {
            LaneError::Database(fields) => Failure {
                code: fields.code,
                message: fields.message.clone(),
                detail: fields.detail.clone(),
                hint: fields.hint.clone(),
                routine: None,
            },
            LaneError::Shortage(_) => Failure::new(SqlState::INSUFFICIENT_RESOURCES, error.to_string()).hint(
                "Try again when others have disconnected, or let onecopy open more files (ulimit -n, LimitNOFILE= of systemd).",
            ),
            LaneError::Mode(_) => Failure::new(SqlState::FEATURE_NOT_SUPPORTED, error.to_string()),
            other => Failure::new(SqlState::CONNECTION_FAILURE, other.to_string())
                .hint("Nothing was committed. Run the transaction again."),
        }
    }

    pub fn put(&self, out: &mut BytesMut, severity: Severity) {
        let report = Report {
            severity,
            code: self.code,
            message: &self.message,
            detail: self.detail.as_deref(),
            hint: self.hint.as_deref(),
            position: None,
            routine: self.routine,
        };
        build::error(out, &report);
    }
}

/// Who gave up the waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    Client,
    /// It waited as long as onecopy lets anybody wait.
    Timeout,
    /// The session's own `lock_timeout`.
    LockTimeout,
    /// The session's own `statement_timeout`.
    StatementTimeout,
    /// The statement says NOWAIT.
    NoWait,
}

impl Cancelled {
    /// What the client hears.
    pub fn failure(self) -> Failure {
        match self {
            Cancelled::Client => {
                Failure::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")
            }
            Cancelled::Timeout => Failure::new(
                SqlState::LOCK_NOT_AVAILABLE,
                "the statement waited too long for other transactions or for a replica",
            )
            .hint("SHOW WAITS on the admin console tells who blocks whom; limits.query_wait_timeout_ms is the limit."),
            Cancelled::LockTimeout => {
                Failure::new(SqlState::LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout")
            }
            Cancelled::StatementTimeout => {
                Failure::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
            }
            Cancelled::NoWait => Failure::new(
                SqlState::LOCK_NOT_AVAILABLE,
                "could not obtain a lock that another transaction holds",
            ),
        }
    }
}
