//! What can be wrong with a message, split by who is to blame.
//!
//! The runtime decides which SQLSTATE an error becomes and whether the connection survives it; each variant
//! carries what such a decision and a helpful text need. None carries a secret or a client's data.

use std::fmt;

/// Why bytes could not be read as a message, or a message could not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame's length cannot be right. Whoever sent the bytes is at fault; no more of its bytes can be read,
    /// since nobody knows where the next frame begins.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The client's first packet cannot be accepted.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// The client sent a complete frame that is not a valid message.
    #[error("protocol violation by the client: {0}")]
    Client(Malformed),
    /// A server sent a complete frame that is not a valid message.
    #[error("protocol violation by the server: {0}")]
    Server(Malformed),
    /// We were asked to send what the protocol cannot carry; our caller should have refused it earlier.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Why a frame's head was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length counts its own four bytes, so anything below 4 (or negative) is impossible.
    #[error("message {} declares the length {declared}; the least is 4", Tag(*.tag))]
    TooShort {
        /// The message's type byte.
        tag: u8,
        /// The length field as sent.
        declared: i32,
    },
    /// The frame is longer than this connection accepts in its present state.
    #[error("message {} has {len} bytes; at most {max} are accepted here", Tag(*.tag))]
    TooLong {
        /// The message's type byte.
        tag: u8,
        /// Bytes of the whole frame, tag included.
        len: usize,
        /// The limit that it passed, in bytes, tag included.
        max: usize,
    },
    /// The type byte is none of those that may come from this side in this state.
    #[error("message type {} is not accepted here", Tag(*.tag))]
    UnexpectedTag {
        /// The message's type byte.
        tag: u8,
    },
}

/// Why a client's first packet was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The length field is outside what a first packet may have.
    #[error("startup packet declares {declared} bytes; {min} to {max} are accepted")]
    Length {
        /// The length field as sent.
        declared: i32,
        /// Least length in bytes.
        min: usize,
        /// Greatest length in bytes.
        max: usize,
    },
    /// Neither protocol 3 nor one of the special requests.
    #[error("protocol version {major}.{minor} is not supported; use 3.0 to 3.2")]
    Version {
        /// Major version asked for.
        major: u16,
        /// Minor version asked for.
        minor: u16,
    },
    /// A fixed-size request with bytes missing or left over.
    #[error("{request} has {len} bytes; {expected} expected")]
    RequestLength {
        /// Name of the request.
        request: &'static str,
        /// Bytes in the packet.
        len: usize,
        /// What the protocol says.
        expected: &'static str,
    },
    /// Bytes followed an encryption request before it was answered: they were sent in the clear, perhaps by
    /// somebody else, and must never be read as if they had come encrypted.
    #[error("{len} unencrypted bytes follow {request}; a client must wait for the answer")]
    BytesAfterRequest {
        /// Name of the request.
        request: &'static str,
        /// Bytes that follow it.
        len: usize,
    },
    /// The list of parameters does not end with an empty name at the packet's last byte.
    #[error("startup packet is not terminated where its length says")]
    Unterminated,
    /// A parameter's name or value is not UTF-8.
    #[error("startup parameter number {index} is not valid UTF-8")]
    NotUtf8 {
        /// Place of the parameter, from 1.
        index: usize,
    },
    /// A parameter was given twice: the two ends of a connection might believe different ones.
    #[error("startup parameter \"{name}\" is given twice")]
    Duplicate {
        /// The parameter.
        name: String,
    },
    /// No user was named.
    #[error("startup packet names no user")]
    NoUser,
    /// The `options` parameter cannot be read as command-line settings.
    #[error("startup parameter \"options\" is not understood at \"{at}\"; write -c name=value")]
    Options {
        /// The word that was not understood.
        at: String,
    },
    /// The server answered SSLRequest with something else than one byte `S` or `N`. What it said was not
    /// authenticated and is not repeated.
    #[error("the server did not answer SSLRequest with S or N alone (first byte {first:#04x}, {len} bytes)")]
    SslReply {
        /// First byte of the answer.
        first: u8,
        /// Bytes received.
        len: usize,
    },
}

/// What is wrong inside a complete frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The type byte is none that this side can send.
    #[error("unknown message type {}", Tag(*.tag))]
    UnknownTag {
        /// The message's type byte.
        tag: u8,
    },
    /// The body ends inside a field.
    #[error("{message} ends inside {field}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes left in the body.
        left: usize,
    },
    /// The body goes on after its last field.
    #[error("{message} has {left} bytes after its last field")]
    TrailingBytes {
        /// The message's name.
        message: &'static str,
        /// Bytes left over.
        left: usize,
    },
    /// A string has no terminating zero byte within the body.
    #[error("{message}: {field} is not terminated")]
    Unterminated {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// A string is not UTF-8, the only client encoding that is spoken.
    #[error("{message}: {field} is not valid UTF-8 at byte {at}")]
    NotUtf8 {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// Offset of the first bad byte within the string.
        at: usize,
    },
    /// A field has a value that the protocol does not define.
    #[error("{message}: {field} cannot be {value}")]
    Value {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// The value as sent.
        value: i64,
    },
    /// Two counts of one message do not fit together.
    #[error("{message} has {formats} format codes for {values} values; 0, 1 or one a value are possible")]
    FormatCount {
        /// The message's name.
        message: &'static str,
        /// Format codes sent.
        formats: usize,
        /// Values sent.
        values: usize,
    },
}

/// Why a message could not be built. Nothing was appended to the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A string with a zero byte inside would be read as two fields.
    #[error("cannot send {message}: {field} contains a zero byte")]
    ZeroByte {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// A count does not fit the protocol's 16 bits.
    #[error("cannot send {message}: {count} {field}, at most 65535 fit")]
    Count {
        /// The message's name.
        message: &'static str,
        /// What is counted.
        field: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A field that must not be empty is.
    #[error("cannot send {message}: {field} is empty")]
    Empty {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// A value or the whole message is longer than the protocol can express.
    #[error("cannot send {message}: {len} bytes, at most {max} fit")]
    Length {
        /// The message's name.
        message: &'static str,
        /// Bytes that were to be sent.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// More columns were to be dropped than the row has.
    #[error("cannot drop the last {drop} columns of {message} with {columns}")]
    Columns {
        /// The message's name.
        message: &'static str,
        /// Columns to drop.
        drop: usize,
        /// Columns that there are.
        columns: usize,
    },
}

/// A type byte, as a letter where it is one.
struct Tag(u8);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            letter @ 0x21..=0x7e => write!(f, "'{}'", char::from(letter)),
            byte => write!(f, "{byte:#04x}"),
        }
    }
}

/// Which side of the proxy sent the bytes, and thus who is at fault when they are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    #[cold]
    pub(crate) fn blame(self, what: Malformed) -> WireError {
        match self {
            Side::Client => WireError::Client(what),
            Side::Server => WireError::Server(what),
        }
    }
}
