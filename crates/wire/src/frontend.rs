//! Messages from clients, after the startup packet.

mod bind;
pub mod build;

pub use bind::{Bind, rewrite_bind};

use std::fmt;

use crate::carried::tag as carried;
use crate::errors::{FrameError, Malformed, Side, WireError};
use crate::frame::{self, HEAD_LEN, Head};
use crate::read::Reader;
use crate::values::Oids;

/// Type bytes of clients' messages. Servers use some of the same bytes for other messages.
pub mod tag {
    /// Bind.
    pub const BIND: u8 = b'B';
    /// Close.
    pub const CLOSE: u8 = b'C';
    /// CopyData.
    pub const COPY_DATA: u8 = b'd';
    /// CopyDone.
    pub const COPY_DONE: u8 = b'c';
    /// CopyFail.
    pub const COPY_FAIL: u8 = b'f';
    /// Describe.
    pub const DESCRIBE: u8 = b'D';
    /// Execute.
    pub const EXECUTE: u8 = b'E';
    /// Flush.
    pub const FLUSH: u8 = b'H';
    /// FunctionCall.
    pub const FUNCTION_CALL: u8 = b'F';
    /// Parse.
    pub const PARSE: u8 = b'P';
    /// PasswordMessage, SASLInitialResponse, SASLResponse and GSSResponse.
    pub const PASSWORD: u8 = b'p';
    /// Query.
    pub const QUERY: u8 = b'Q';
    /// Sync.
    pub const SYNC: u8 = b'S';
    /// Terminate.
    pub const TERMINATE: u8 = b'X';
}

/// Bytes of the longest frame that carries no statement, parameter or data. PostgreSQL's bound, plus the tag.
pub const SMALL_LEN_MAX: usize = 10_000 + 1;

/// Bytes of the longest frame before a client is authenticated. PostgreSQL's bound, plus the head.
pub const AUTH_LEN_MAX: usize = 65_535 + HEAD_LEN;

/// Reads the head of the next frame from an authenticated client; like [`frame::peek`], with a limit by type:
/// `large_max` bytes for statements, parameters and data, [`SMALL_LEN_MAX`] for everything else.
///
/// # Errors
/// [`FrameError`], as soon as the first bytes are there: nothing of a frame that is too long or of an unknown type
/// has to be kept.
#[inline]
pub fn peek(buf: &[u8], large_max: usize) -> Result<Option<Head>, FrameError> {
    let Some(&tag) = buf.first() else { return Ok(None) };
    let max = match tag {
        tag::QUERY | tag::PARSE | tag::BIND | tag::COPY_DATA | tag::FUNCTION_CALL => large_max,
        tag::EXECUTE
        | tag::SYNC
        | tag::DESCRIBE
        | tag::CLOSE
        | tag::FLUSH
        | tag::COPY_DONE
        | tag::COPY_FAIL
        | tag::PASSWORD
        | tag::TERMINATE => SMALL_LEN_MAX,
        _ => return Err(FrameError::UnexpectedTag { tag }),
    };
    frame::peek(buf, max)
}

/// Like [`peek`], and accepts what a front says to a session that it carries: [`crate::carried`].
///
/// # Errors
/// As [`peek`].
#[inline]
pub fn peek_carried(buf: &[u8], large_max: usize) -> Result<Option<Head>, FrameError> {
    match buf.first() {
        Some(&(carried::VALUES | carried::FAIL)) => frame::peek(buf, large_max),
        _ => peek(buf, large_max),
    }
}

/// Reads the head of the next frame from a client that is still to authenticate: only an answer to an
/// authentication request is accepted, or an orderly end.
///
/// # Errors
/// [`FrameError`] for any other type of message (a second startup packet is one, by its first byte) and for more
/// than [`AUTH_LEN_MAX`] bytes.
pub fn peek_auth(buf: &[u8]) -> Result<Option<Head>, FrameError> {
    match buf.first() {
        None => Ok(None),
        Some(&tag::PASSWORD) => frame::peek(buf, AUTH_LEN_MAX),
        Some(&tag::TERMINATE) => frame::peek(buf, HEAD_LEN),
        Some(&tag) => Err(FrameError::UnexpectedTag { tag }),
    }
}

/// A client's message. Borrows from the frame's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frontend<'a> {
    /// Statements in one text, executed with their results as text.
    Query(&'a str),
    /// Prepares a statement.
    Parse(Parse<'a>),
    /// Gives a prepared statement its parameters, which makes a portal.
    Bind(Bind<'a>),
    /// Asks for the shape of a statement or portal.
    Describe(Named<'a>),
    /// Runs a portal.
    Execute(Execute<'a>),
    /// Forgets a statement or portal.
    Close(Named<'a>),
    /// Asks for all answers so far.
    Flush,
    /// Ends a series of messages, and with it an implicit transaction.
    Sync,
    /// Data for COPY FROM STDIN.
    CopyData(&'a [u8]),
    /// Ends the data of COPY FROM STDIN.
    CopyDone,
    /// Gives up COPY FROM STDIN, for this reason.
    CopyFail(&'a str),
    /// An answer to an authentication request; which, only the request tells: [`password`], [`SaslInitial`] or
    /// the bytes of a SASLResponse.
    Password(Secret<'a>),
    /// Ends the connection.
    Terminate,
    /// The obsolete call of one function by its object id.
    FunctionCall(&'a [u8]),
}

/// Bytes that are not to be seen in a log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret bytes", self.0.len())
    }
}

/// The contents of a Parse message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The new statement's name; empty for the unnamed one.
    pub name: &'a str,
    /// The statement's text.
    pub sql: &'a str,
    /// Types of the first parameters, as far as the client says them.
    pub types: Oids<'a>,
}

/// The contents of an Execute message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execute<'a> {
    /// The portal's name; empty for the unnamed one.
    pub portal: &'a str,
    /// Rows to return before the portal is suspended; 0 for all.
    pub max_rows: u32,
}

/// What a Describe or Close is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// Kind of object.
    pub target: Target,
    /// Its name; empty for the unnamed one.
    pub name: &'a str,
}

/// Kind of object that Describe and Close name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

impl Target {
    /// The protocol's byte for it.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Target::Statement => b'S',
            Target::Portal => b'P',
        }
    }
}

/// Reads the body of a client's frame.
///
/// # Errors
/// [`WireError::Client`] if the body is not exactly one message of this type, or has text that is not UTF-8.
#[inline]
pub fn decode(tag: u8, body: &[u8]) -> Result<Frontend<'_>, WireError> {
    Ok(match tag {
        tag::QUERY => Frontend::Query(text_only(body, "Query", "the statement")?),
        tag::PARSE => Frontend::Parse(parse(body)?),
        tag::BIND => Frontend::Bind(Bind::decode(body)?),
        tag::DESCRIBE => Frontend::Describe(named(body, "Describe")?),
        tag::EXECUTE => Frontend::Execute(execute(body)?),
        tag::CLOSE => Frontend::Close(named(body, "Close")?),
        tag::FLUSH => empty(body, "Flush", Frontend::Flush)?,
        tag::SYNC => empty(body, "Sync", Frontend::Sync)?,
        tag::COPY_DATA => Frontend::CopyData(body),
        tag::COPY_DONE => empty(body, "CopyDone", Frontend::CopyDone)?,
        tag::COPY_FAIL => Frontend::CopyFail(text_only(body, "CopyFail", "the reason")?),
        tag::PASSWORD => Frontend::Password(Secret(body)),
        tag::TERMINATE => empty(body, "Terminate", Frontend::Terminate)?,
        tag::FUNCTION_CALL => Frontend::FunctionCall(body),
        tag => return Err(Side::Client.blame(Malformed::UnknownTag { tag })),
    })
}

/// Reads a [`Frontend::Password`] that answers a request for a password, in the clear or as md5.
///
/// # Errors
/// [`WireError::Client`] if it is not one terminated string, or not UTF-8.
pub fn password(body: &[u8]) -> Result<&str, WireError> {
    text_only(body, "PasswordMessage", "the password")
}

/// A [`Frontend::Password`] that answers a request for SASL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaslInitial<'a> {
    /// The mechanism that the client chose.
    pub mechanism: &'a str,
    /// The mechanism's first message, if it begins with the client.
    pub data: Option<&'a [u8]>,
}

impl fmt::Debug for SaslInitial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslInitial").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

impl<'a> SaslInitial<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Client`] if it is not exactly one SASLInitialResponse.
    pub fn decode(body: &'a [u8]) -> Result<SaslInitial<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Client, "SASLInitialResponse");
        let mechanism = reader.str("the mechanism")?;
        let data = reader.value("the first response")?;
        reader.finish()?;
        Ok(SaslInitial { mechanism, data })
    }
}

#[inline]
fn parse(body: &[u8]) -> Result<Parse<'_>, WireError> {
    let mut reader = Reader::new(body, Side::Client, "Parse");
    let name = reader.str("the statement's name")?;
    let sql = reader.str("the statement")?;
    let types = Oids::read(&mut reader)?;
    reader.finish()?;
    Ok(Parse { name, sql, types })
}

#[inline]
fn execute(body: &[u8]) -> Result<Execute<'_>, WireError> {
    let mut reader = Reader::new(body, Side::Client, "Execute");
    let portal = reader.str("the portal's name")?;
    // Servers take a negative limit for none.
    let max_rows = u32::try_from(reader.i32("the row limit")?).unwrap_or(0);
    reader.finish()?;
    Ok(Execute { portal, max_rows })
}

#[inline]
fn named<'a>(body: &'a [u8], message: &'static str) -> Result<Named<'a>, WireError> {
    let mut reader = Reader::new(body, Side::Client, message);
    let target = match reader.u8("the kind of object")? {
        b'S' => Target::Statement,
        b'P' => Target::Portal,
        other => return Err(reader.invalid("the kind of object", i64::from(other))),
    };
    let name = reader.str("the object's name")?;
    reader.finish()?;
    Ok(Named { target, name })
}

#[inline]
fn text_only<'a>(body: &'a [u8], message: &'static str, field: &'static str) -> Result<&'a str, WireError> {
    let mut reader = Reader::new(body, Side::Client, message);
    let text = reader.str(field)?;
    reader.finish()?;
    Ok(text)
}

#[inline]
fn empty<'a>(body: &[u8], message: &'static str, is: Frontend<'a>) -> Result<Frontend<'a>, WireError> {
    Reader::new(body, Side::Client, message).finish()?;
    Ok(is)
}
