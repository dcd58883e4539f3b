//! Messages from servers.

pub mod build;
mod report;
mod rows;

pub use report::{ErrorFields, Fields};
pub use rows::{Column, OidOf, RowDescription, replace_oids, strip_columns};

use std::borrow::Cow;

use crate::errors::{Malformed, Side, WireError};
use crate::read::Reader;
use crate::startup::{CANCEL_KEY_LEN_MAX, CANCEL_KEY_LEN_MIN, Version};
use crate::values::{Format, Formats, Oids, Values};

/// Type bytes of servers' messages. Clients use some of the same bytes for other messages.
pub mod tag {
    /// Any of the authentication requests, and AuthenticationOk.
    pub const AUTHENTICATION: u8 = b'R';
    /// BackendKeyData.
    pub const BACKEND_KEY_DATA: u8 = b'K';
    /// BindComplete.
    pub const BIND_COMPLETE: u8 = b'2';
    /// CloseComplete.
    pub const CLOSE_COMPLETE: u8 = b'3';
    /// CommandComplete.
    pub const COMMAND_COMPLETE: u8 = b'C';
    /// CopyBothResponse.
    pub const COPY_BOTH_RESPONSE: u8 = b'W';
    /// CopyData.
    pub const COPY_DATA: u8 = b'd';
    /// CopyDone.
    pub const COPY_DONE: u8 = b'c';
    /// CopyInResponse.
    pub const COPY_IN_RESPONSE: u8 = b'G';
    /// CopyOutResponse.
    pub const COPY_OUT_RESPONSE: u8 = b'H';
    /// DataRow.
    pub const DATA_ROW: u8 = b'D';
    /// EmptyQueryResponse.
    pub const EMPTY_QUERY_RESPONSE: u8 = b'I';
    /// ErrorResponse.
    pub const ERROR_RESPONSE: u8 = b'E';
    /// FunctionCallResponse.
    pub const FUNCTION_CALL_RESPONSE: u8 = b'V';
    /// NegotiateProtocolVersion.
    pub const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
    /// NoData.
    pub const NO_DATA: u8 = b'n';
    /// NoticeResponse.
    pub const NOTICE_RESPONSE: u8 = b'N';
    /// NotificationResponse.
    pub const NOTIFICATION_RESPONSE: u8 = b'A';
    /// ParameterDescription.
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    /// ParameterStatus.
    pub const PARAMETER_STATUS: u8 = b'S';
    /// ParseComplete.
    pub const PARSE_COMPLETE: u8 = b'1';
    /// PortalSuspended.
    pub const PORTAL_SUSPENDED: u8 = b's';
    /// ReadyForQuery.
    pub const READY_FOR_QUERY: u8 = b'Z';
    /// RowDescription.
    pub const ROW_DESCRIPTION: u8 = b'T';
}

/// A server's message. Borrows from the frame's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend<'a> {
    /// Asks for proof of who we are, or says that it is accepted.
    Authentication(Authentication<'a>),
    /// What a cancel request for this session must contain.
    BackendKeyData(BackendKey<'a>),
    /// Answers Bind.
    BindComplete,
    /// Answers Close.
    CloseComplete,
    /// A statement is done; what [`row_count`] reads.
    CommandComplete(&'a str),
    /// A row of COPY TO STDOUT.
    CopyData(&'a [u8]),
    /// End of COPY TO STDOUT.
    CopyDone,
    /// The server waits for data.
    CopyIn(CopyFormat<'a>),
    /// The server will send data.
    CopyOut(CopyFormat<'a>),
    /// Both at once, for replication.
    CopyBoth(CopyFormat<'a>),
    /// A row of a result.
    DataRow(Values<'a>),
    /// Answers a statement without any text.
    EmptyQuery,
    /// A statement failed.
    Error(Fields<'a>),
    /// The result of a FunctionCall.
    FunctionCallResponse(Option<&'a [u8]>),
    /// The server does not speak the version, or know the extensions, that were asked for.
    NegotiateProtocolVersion(NegotiateProtocolVersion<'a>),
    /// Answers Describe where there are no rows.
    NoData,
    /// Something worth saying.
    Notice(Fields<'a>),
    /// Something for who has said LISTEN.
    Notification(Notification<'a>),
    /// Types of a statement's parameters.
    ParameterDescription(Oids<'a>),
    /// A setting's value, at the start and whenever it changes.
    ParameterStatus(ParameterStatus<'a>),
    /// Answers Parse.
    ParseComplete,
    /// Execute's row limit was reached.
    PortalSuspended,
    /// The server waits for the next statement.
    ReadyForQuery(Status),
    /// The columns of the rows to come.
    RowDescription(RowDescription<'a>),
}

/// Reads the body of a server's frame.
///
/// # Errors
/// [`WireError::Server`] if the body is not exactly one message of this type.
pub fn decode(tag: u8, body: &[u8]) -> Result<Backend<'_>, WireError> {
    Ok(match tag {
        tag::AUTHENTICATION => Backend::Authentication(Authentication::decode(body)?),
        tag::BACKEND_KEY_DATA => Backend::BackendKeyData(BackendKey::decode(body)?),
        tag::BIND_COMPLETE => empty(body, "BindComplete", Backend::BindComplete)?,
        tag::CLOSE_COMPLETE => empty(body, "CloseComplete", Backend::CloseComplete)?,
        tag::COMMAND_COMPLETE => Backend::CommandComplete(command_tag(body)?),
        tag::COPY_DATA => Backend::CopyData(body),
        tag::COPY_DONE => empty(body, "CopyDone", Backend::CopyDone)?,
        tag::COPY_IN_RESPONSE => Backend::CopyIn(CopyFormat::decode(body)?),
        tag::COPY_OUT_RESPONSE => Backend::CopyOut(CopyFormat::decode(body)?),
        tag::COPY_BOTH_RESPONSE => Backend::CopyBoth(CopyFormat::decode(body)?),
        tag::DATA_ROW => Backend::DataRow(data_row(body)?),
        tag::EMPTY_QUERY_RESPONSE => empty(body, "EmptyQueryResponse", Backend::EmptyQuery)?,
        tag::ERROR_RESPONSE => Backend::Error(Fields::decode(body)?),
        tag::FUNCTION_CALL_RESPONSE => Backend::FunctionCallResponse(function_result(body)?),
        tag::NEGOTIATE_PROTOCOL_VERSION => {
            Backend::NegotiateProtocolVersion(NegotiateProtocolVersion::decode(body)?)
        }
        tag::NO_DATA => empty(body, "NoData", Backend::NoData)?,
        tag::NOTICE_RESPONSE => Backend::Notice(Fields::decode(body)?),
        tag::NOTIFICATION_RESPONSE => Backend::Notification(Notification::decode(body)?),
        tag::PARAMETER_DESCRIPTION => Backend::ParameterDescription(parameter_description(body)?),
        tag::PARAMETER_STATUS => Backend::ParameterStatus(ParameterStatus::decode(body)?),
        tag::PARSE_COMPLETE => empty(body, "ParseComplete", Backend::ParseComplete)?,
        tag::PORTAL_SUSPENDED => empty(body, "PortalSuspended", Backend::PortalSuspended)?,
        tag::READY_FOR_QUERY => Backend::ReadyForQuery(Status::decode(body)?),
        tag::ROW_DESCRIPTION => Backend::RowDescription(RowDescription::decode(body)?),
        tag => return Err(Side::Server.blame(Malformed::UnknownTag { tag })),
    })
}

fn empty<'a>(body: &[u8], message: &'static str, is: Backend<'a>) -> Result<Backend<'a>, WireError> {
    Reader::new(body, Side::Server, message).finish()?;
    Ok(is)
}

/// State of a session's transaction, in ReadyForQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// No transaction.
    Idle,
    /// In a transaction block.
    InTransaction,
    /// In a transaction block that failed and can only be ended.
    Failed,
}

impl Status {
    /// Reads the body of a ReadyForQuery.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not one of the three.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<Status, WireError> {
        match body {
            b"I" => Ok(Status::Idle),
            b"T" => Ok(Status::InTransaction),
            b"E" => Ok(Status::Failed),
            _ => {
                let mut reader = Reader::new(body, Side::Server, "ReadyForQuery");
                let value = reader.u8("the transaction status")?;
                let unknown = reader.invalid("the transaction status", i64::from(value));
                reader.finish()?;
                Err(unknown)
            }
        }
    }

    /// The protocol's byte for it.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Status::Idle => b'I',
            Status::InTransaction => b'T',
            Status::Failed => b'E',
        }
    }
}

/// Reads the body of a CommandComplete: what was done, such as `UPDATE 3`.
///
/// # Errors
/// [`WireError::Server`] if it is not one terminated string.
#[inline]
pub fn command_tag(body: &[u8]) -> Result<&str, WireError> {
    let mut reader = Reader::new(body, Side::Server, "CommandComplete");
    let tag = reader.str("the command tag")?;
    reader.finish()?;
    Ok(tag)
}

/// The number of rows that a command tag ends with, if it does: 3 of `UPDATE 3` and of `INSERT 0 3`, none of
/// `CREATE TABLE`.
#[must_use]
pub fn row_count(command_tag: &str) -> Option<u64> {
    let (_, count) = command_tag.rsplit_once(' ')?;
    // `parse` would accept a sign.
    count.bytes().all(|c| c.is_ascii_digit()).then(|| count.parse().ok())?
}

/// Reads the body of a DataRow.
///
/// # Errors
/// [`WireError::Server`] if its lengths do not fill it exactly.
#[inline]
pub fn data_row(body: &[u8]) -> Result<Values<'_>, WireError> {
    let mut reader = Reader::new(body, Side::Server, "DataRow");
    let values = Values::read(&mut reader, "a column")?;
    reader.finish()?;
    Ok(values)
}

/// Reads the body of a ParameterDescription.
///
/// # Errors
/// [`WireError::Server`] if its count does not fill it exactly.
pub fn parameter_description(body: &[u8]) -> Result<Oids<'_>, WireError> {
    let mut reader = Reader::new(body, Side::Server, "ParameterDescription");
    let types = Oids::read(&mut reader)?;
    reader.finish()?;
    Ok(types)
}

fn function_result(body: &[u8]) -> Result<Option<&[u8]>, WireError> {
    let mut reader = Reader::new(body, Side::Server, "FunctionCallResponse");
    let result = reader.value("the result")?;
    reader.finish()?;
    Ok(result)
}

/// What a server wants to know of who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// Nothing more: the connection is accepted.
    Ok,
    /// The password itself.
    CleartextPassword,
    /// The password, hashed with this salt; see [`crate::password::md5`].
    Md5Password {
        /// Random bytes of the server.
        salt: [u8; 4],
    },
    /// SASL, by one of these mechanisms.
    Sasl(Mechanisms<'a>),
    /// The mechanism's next message.
    SaslContinue(&'a [u8]),
    /// The mechanism's last message.
    SaslFinal(&'a [u8]),
    /// A method that is not implemented here: Kerberos, GSSAPI, SSPI.
    Unsupported {
        /// The protocol's number for the method.
        method: u32,
    },
}

impl<'a> Authentication<'a> {
    /// Reads the body of an authentication request.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one.
    pub fn decode(body: &'a [u8]) -> Result<Authentication<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "Authentication");
        let method = reader.u32("the method")?;
        let rest = reader.rest();
        let request = match method {
            0 => Authentication::Ok,
            3 => Authentication::CleartextPassword,
            5 => {
                let salt = reader.u32("the salt")?.to_be_bytes();
                Authentication::Md5Password { salt }
            }
            10 => return Mechanisms::decode(reader).map(Authentication::Sasl),
            11 => return Ok(Authentication::SaslContinue(rest)),
            12 => return Ok(Authentication::SaslFinal(rest)),
            method => return Ok(Authentication::Unsupported { method }),
        };
        reader.finish()?;
        Ok(request)
    }
}

/// Names of SASL mechanisms, the server's favourite first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mechanisms<'a> {
    /// Each with its terminator.
    raw: &'a str,
}

impl<'a> Mechanisms<'a> {
    fn decode(mut reader: Reader<'a>) -> Result<Mechanisms<'a>, WireError> {
        let all = reader.rest();
        loop {
            let before = all.len() - reader.rest().len();
            if reader.str("a mechanism")?.is_empty() {
                reader.finish()?;
                // Each part was found to be UTF-8, so the whole is.
                let raw = std::str::from_utf8(&all[..before]).unwrap_or_default();
                return Ok(Mechanisms { raw });
            }
        }
    }

    /// The names in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.raw.split_terminator('\0')
    }

    /// Whether a mechanism is among them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|mechanism| mechanism == name)
    }
}

/// What a cancel request must contain to reach a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BackendKey<'a> {
    /// The server's process for the session.
    pub pid: u32,
    /// The session's secret: four bytes until protocol 3.2, then up to 256.
    pub key: &'a [u8],
}

impl<'a> BackendKey<'a> {
    /// Reads the body of a BackendKeyData.
    ///
    /// # Errors
    /// [`WireError::Server`] if the key has fewer than 4 bytes or more than 256.
    pub fn decode(body: &'a [u8]) -> Result<BackendKey<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "BackendKeyData");
        let pid = reader.u32("the process id")?;
        let key = reader.rest();
        if !(CANCEL_KEY_LEN_MIN..=CANCEL_KEY_LEN_MAX).contains(&key.len()) {
            return Err(reader.invalid("the length of the key", key.len() as i64));
        }
        Ok(BackendKey { pid, key })
    }
}

impl std::fmt::Debug for BackendKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendKey").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// How the data of a COPY are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFormat<'a> {
    /// The whole.
    pub overall: Format,
    /// Each column.
    pub columns: Formats<'a>,
}

impl<'a> CopyFormat<'a> {
    /// Reads the body of a CopyInResponse, CopyOutResponse or CopyBothResponse.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one.
    pub fn decode(body: &'a [u8]) -> Result<CopyFormat<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "CopyResponse");
        let overall = match reader.u8("the overall format")? {
            0 => Format::Text,
            1 => Format::Binary,
            other => return Err(reader.invalid("the overall format", i64::from(other))),
        };
        let columns = Formats::read(&mut reader)?;
        reader.finish()?;
        Ok(CopyFormat { overall, columns })
    }
}

/// A server's answer to a version or extensions that it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiateProtocolVersion<'a> {
    /// The version that the server will speak.
    pub version: Version,
    /// Requested extensions that it does not know, each with its terminator.
    unknown: &'a str,
}

impl<'a> NegotiateProtocolVersion<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one.
    pub fn decode(body: &'a [u8]) -> Result<NegotiateProtocolVersion<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "NegotiateProtocolVersion");
        let version = reader.u32("the version")?;
        let count = reader.u32("the number of extensions")?;
        let all = reader.rest();
        // A count beyond the names that are there ends at the first missing one.
        for _ in 0..count {
            reader.str("an extension")?;
        }
        reader.finish()?;
        let unknown = std::str::from_utf8(all).unwrap_or_default();
        Ok(NegotiateProtocolVersion { version: ((version >> 16) as u16, version as u16), unknown })
    }

    /// Requested extensions that the server does not know.
    pub fn unknown(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.unknown.split_terminator('\0')
    }
}

/// A message to who has said LISTEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification<'a> {
    /// The server's process that sent it.
    pub pid: u32,
    /// The channel.
    pub channel: Cow<'a, str>,
    /// What was sent.
    pub payload: Cow<'a, str>,
}

impl<'a> Notification<'a> {
    /// Reads the body of a NotificationResponse.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one.
    pub fn decode(body: &'a [u8]) -> Result<Notification<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "NotificationResponse");
        let pid = reader.u32("the process id")?;
        let channel = String::from_utf8_lossy(reader.cstr("the channel")?);
        let payload = String::from_utf8_lossy(reader.cstr("the payload")?);
        reader.finish()?;
        Ok(Notification { pid, channel, payload })
    }
}

/// A setting's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterStatus<'a> {
    /// The setting.
    pub name: &'a str,
    /// Its value; whatever is not UTF-8 (possible in databases without an encoding) is replaced.
    pub value: Cow<'a, str>,
}

impl<'a> ParameterStatus<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one.
    pub fn decode(body: &'a [u8]) -> Result<ParameterStatus<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "ParameterStatus");
        let name = reader.str("the name")?;
        let value = String::from_utf8_lossy(reader.cstr("the value")?);
        reader.finish()?;
        Ok(ParameterStatus { name, value })
    }
}
