//! The SQLSTATEs that a proxy sends or must recognise. Which error becomes which code is decided elsewhere.
//!
//! Names and codes are those of appendix A of PostgreSQL's manual.

use std::fmt;

/// Five characters, digits and capital letters, that say what kind of error happened; the first two are its class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// A code from its text, unless that is not five capital letters and digits.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<SqlState> {
        let code: [u8; 5] = text.try_into().ok()?;
        code.iter().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()).then_some(SqlState(code))
    }

    /// The five characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Always ASCII: there is no other way to make one.
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }

    /// The first two characters.
    #[must_use]
    pub fn class(&self) -> &str {
        &self.as_str()[..2]
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: SqlState = SqlState(*$code);)*
        }
        #[cfg(test)]
        const ALL: &[SqlState] = &[$(SqlState::$name),*];
    };
}

states! {
    /// Success.
    SUCCESSFUL_COMPLETION = b"00000";
    /// Something worth saying that is no error.
    WARNING = b"01000";
    /// The connection to a server, or the server's side of the protocol, failed.
    CONNECTION_EXCEPTION = b"08000";
    /// There is no connection.
    CONNECTION_DOES_NOT_EXIST = b"08003";
    /// A connection failed while it was in use.
    CONNECTION_FAILURE = b"08006";
    /// A connection could not be made.
    SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION = b"08001";
    /// A connection was refused.
    SQLSERVER_REJECTED_ESTABLISHMENT_OF_SQLCONNECTION = b"08004";
    /// It is not known whether a transaction was committed.
    TRANSACTION_RESOLUTION_UNKNOWN = b"08007";
    /// The messages break the protocol.
    PROTOCOL_VIOLATION = b"08P01";
    /// A feature that does not exist here.
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// A string is not valid in its encoding.
    CHARACTER_NOT_IN_REPERTOIRE = b"22021";
    /// NULL where there must be a value.
    NULL_VALUE_NOT_ALLOWED = b"22004";
    /// A number does not fit its type.
    NUMERIC_VALUE_OUT_OF_RANGE = b"22003";
    /// A parameter's value makes no sense.
    INVALID_PARAMETER_VALUE = b"22023";
    /// A value's text cannot be read.
    INVALID_TEXT_REPRESENTATION = b"22P02";
    /// A value's binary form cannot be read.
    INVALID_BINARY_REPRESENTATION = b"22P03";
    /// Some constraint.
    INTEGRITY_CONSTRAINT_VIOLATION = b"23000";
    /// A foreign key.
    FOREIGN_KEY_VIOLATION = b"23503";
    /// A unique key.
    UNIQUE_VIOLATION = b"23505";
    /// A cursor in a state that does not allow this.
    INVALID_CURSOR_STATE = b"24000";
    /// A transaction in a state that does not allow this.
    INVALID_TRANSACTION_STATE = b"25000";
    /// Cannot run inside a transaction.
    ACTIVE_SQL_TRANSACTION = b"25001";
    /// A write in a read-only transaction.
    READ_ONLY_SQL_TRANSACTION = b"25006";
    /// Only possible inside a transaction.
    NO_ACTIVE_SQL_TRANSACTION = b"25P01";
    /// The transaction has failed; only its end is possible.
    IN_FAILED_SQL_TRANSACTION = b"25P02";
    /// A transaction was idle for too long.
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT = b"25P03";
    /// No such prepared statement.
    INVALID_SQL_STATEMENT_NAME = b"26000";
    /// The user may not connect.
    INVALID_AUTHORIZATION_SPECIFICATION = b"28000";
    /// Wrong password, or no such user.
    INVALID_PASSWORD = b"28P01";
    /// A transaction cannot end like this.
    INVALID_TRANSACTION_TERMINATION = b"2D000";
    /// No such portal or cursor.
    INVALID_CURSOR_NAME = b"34000";
    /// Some savepoint error.
    SAVEPOINT_EXCEPTION = b"3B000";
    /// No such savepoint.
    INVALID_SAVEPOINT_SPECIFICATION = b"3B001";
    /// No such database.
    INVALID_CATALOG_NAME = b"3D000";
    /// The transaction was undone, for some reason.
    TRANSACTION_ROLLBACK = b"40000";
    /// The transaction cannot be put in an order; try again.
    SERIALIZATION_FAILURE = b"40001";
    /// It is not known whether a statement was executed.
    STATEMENT_COMPLETION_UNKNOWN = b"40003";
    /// The transaction was the victim of a deadlock; try again.
    DEADLOCK_DETECTED = b"40P01";
    /// Not SQL.
    SYNTAX_ERROR = b"42601";
    /// Not allowed.
    INSUFFICIENT_PRIVILEGE = b"42501";
    /// No such column.
    UNDEFINED_COLUMN = b"42703";
    /// A result has more rows than one where one is wanted.
    CARDINALITY_VIOLATION = b"21000";
    /// No such function.
    UNDEFINED_FUNCTION = b"42883";
    /// No such table.
    UNDEFINED_TABLE = b"42P01";
    /// No such parameter.
    UNDEFINED_PARAMETER = b"42P02";
    /// The portal or cursor exists already.
    DUPLICATE_CURSOR = b"42P03";
    /// A sequence has no further value.
    SEQUENCE_GENERATOR_LIMIT_EXCEEDED = b"2200H";
    /// The prepared statement exists already.
    DUPLICATE_PREPARED_STATEMENT = b"42P05";
    /// No such object.
    UNDEFINED_OBJECT = b"42704";
    /// The object exists already.
    DUPLICATE_OBJECT = b"42710";
    /// The type of a parameter cannot be told.
    INDETERMINATE_DATATYPE = b"42P18";
    /// Some resource is used up.
    INSUFFICIENT_RESOURCES = b"53000";
    /// The disk is full.
    DISK_FULL = b"53100";
    /// Memory is used up, or a bound on it is reached.
    OUT_OF_MEMORY = b"53200";
    /// No more connections.
    TOO_MANY_CONNECTIONS = b"53300";
    /// A configured limit is exceeded.
    CONFIGURATION_LIMIT_EXCEEDED = b"53400";
    /// A fixed limit of the program is exceeded.
    PROGRAM_LIMIT_EXCEEDED = b"54000";
    /// A statement is too long or too deep.
    STATEMENT_TOO_COMPLEX = b"54001";
    /// An object is in a state that does not allow this.
    OBJECT_NOT_IN_PREREQUISITE_STATE = b"55000";
    /// A lock is not free, and the statement would not wait.
    LOCK_NOT_AVAILABLE = b"55P03";
    /// Cancelled.
    QUERY_CANCELED = b"57014";
    /// The connection was ended by an operator.
    ADMIN_SHUTDOWN = b"57P01";
    /// The server ended after a crash of one of its processes.
    CRASH_SHUTDOWN = b"57P02";
    /// The server cannot be connected to now.
    CANNOT_CONNECT_NOW = b"57P03";
    /// The connection's database was dropped.
    DATABASE_DROPPED = b"57P04";
    /// A session was idle for too long.
    IDLE_SESSION_TIMEOUT = b"57P05";
    /// Some failure outside the database.
    SYSTEM_ERROR = b"58000";
    /// Reading or writing a file failed.
    IO_ERROR = b"58030";
    /// The configuration is wrong.
    CONFIG_FILE_ERROR = b"F0000";
    /// Raised by RAISE without a code.
    RAISE_EXCEPTION = b"P0001";
    /// A bug.
    INTERNAL_ERROR = b"XX000";
    /// The stored data are damaged.
    DATA_CORRUPTED = b"XX001";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_is_a_valid_code_and_stands_once() {
        let mut seen = std::collections::BTreeSet::new();
        for state in ALL {
            assert_eq!(SqlState::parse(state.as_str().as_bytes()), Some(*state));
            assert!(seen.insert(*state), "{state} is defined twice");
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for text in [&b""[..], b"4000", b"400011", b"4000a", b"40 01", b"\xff0001"] {
            assert_eq!(SqlState::parse(text), None, "{text:?}");
        }
        assert_eq!(SqlState::SERIALIZATION_FAILURE.class(), "40");
    }
}
