//! What can happen to a statement, sorted by what it means for its transaction.

use tokio_postgres::error::SqlState;

use crate::error::describe;

/// Why a statement gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The database answered with an error.
    Refused {
        /// The SQLSTATE.
        code: String,
        /// The message, with detail and hint.
        message: String,
    },
    /// The connection could not be made, or broke.
    Lost {
        /// In the driver's or the server's words.
        why: String,
    },
    /// No answer came in time.
    Stalled {
        /// The statement.
        doing: String,
    },
    /// An answer came that cannot be one to this statement.
    Nonsense {
        /// What is wrong with it.
        why: String,
    },
}

impl Trouble {
    pub(super) fn of(error: &tokio_postgres::Error) -> Trouble {
        match error.code() {
            Some(code) if !ends_connection(code) => {
                Trouble::Refused { code: code.code().to_owned(), message: describe(error) }
            }
            Some(_) => Trouble::Lost { why: describe(error) },
            // A reply that the driver cannot decode is the server's mistake.
            None if error.is_closed()
                || std::error::Error::source(error).is_some_and(|e| e.is::<std::io::Error>()) =>
            {
                Trouble::Lost { why: describe(error) }
            }
            None => Trouble::Nonsense { why: describe(error) },
        }
    }

    /// Whether the session can go on.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Trouble::Refused { .. })
    }
}

/// Class 08, and those with which a server ends a session or refuses a new one.
fn ends_connection(code: &SqlState) -> bool {
    code.code().starts_with("08") || matches!(code.code(), "57P01" | "57P02" | "57P03" | "57P05" | "53300")
}
