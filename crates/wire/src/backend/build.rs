//! What a proxy sends to a client, in the role of a server.
//!
//! Each function appends one frame; one that fails appends nothing. Texts for people (messages, settings, command
//! tags) are cut at a zero byte and at 64 KiB instead of failing.

use std::fmt;

use bytes::BytesMut;

use super::report::put_field;
use super::{Column, Status, tag};
use crate::errors::{BuildError, WireError};
use crate::sqlstate::SqlState;
use crate::startup::{CANCEL_KEY_LEN_MAX, Version};
use crate::values::Format;
use crate::write::{self, put_counted, put_text, put_value};

/// AuthenticationOk.
pub fn authentication_ok(out: &mut BytesMut) {
    write::fixed(out, tag::AUTHENTICATION, 0_u32.to_be_bytes());
}

/// AuthenticationCleartextPassword.
pub fn authentication_cleartext_password(out: &mut BytesMut) {
    write::fixed(out, tag::AUTHENTICATION, 3_u32.to_be_bytes());
}

/// AuthenticationSASL: the mechanisms offered, the favourite first.
pub fn authentication_sasl(out: &mut BytesMut, mechanisms: &[&str]) {
    write::short(out, tag::AUTHENTICATION, |out| {
        out.extend_from_slice(&10_u32.to_be_bytes());
        for mechanism in mechanisms {
            put_text(out, mechanism);
        }
        out.extend_from_slice(&[0]);
    });
}

/// AuthenticationSASLContinue.
///
/// # Errors
/// [`BuildError`] for 2 GiB or more.
pub fn authentication_sasl_continue(out: &mut BytesMut, data: &[u8]) -> Result<(), WireError> {
    put_sasl(out, 11, data)
}

/// AuthenticationSASLFinal.
///
/// # Errors
/// [`BuildError`] for 2 GiB or more.
pub fn authentication_sasl_final(out: &mut BytesMut, data: &[u8]) -> Result<(), WireError> {
    put_sasl(out, 12, data)
}

fn put_sasl(out: &mut BytesMut, method: u32, data: &[u8]) -> Result<(), WireError> {
    write::frame(out, tag::AUTHENTICATION, "AuthenticationSASL", |out| {
        out.extend_from_slice(&method.to_be_bytes());
        out.extend_from_slice(data);
        Ok(())
    })
}

/// NegotiateProtocolVersion: the version that will be spoken, and the extensions that are not known.
pub fn negotiate_protocol_version<S: AsRef<str>>(out: &mut BytesMut, version: Version, unknown: &[S]) {
    write::short(out, tag::NEGOTIATE_PROTOCOL_VERSION, |out| {
        out.extend_from_slice(&version.0.to_be_bytes());
        out.extend_from_slice(&version.1.to_be_bytes());
        out.extend_from_slice(&(unknown.len() as u32).to_be_bytes());
        for name in unknown {
            put_text(out, name.as_ref());
        }
    });
}

/// ParameterStatus.
pub fn parameter_status(out: &mut BytesMut, name: &str, value: &str) {
    write::short(out, tag::PARAMETER_STATUS, |out| {
        put_text(out, name);
        put_text(out, value);
    });
}

/// BackendKeyData. A key of more than four bytes is only for clients that speak protocol 3.2.
///
/// # Errors
/// [`BuildError::Length`] for more than 256 bytes.
pub fn backend_key_data(out: &mut BytesMut, pid: u32, key: &[u8]) -> Result<(), WireError> {
    const MESSAGE: &str = "BackendKeyData";
    write::frame(out, tag::BACKEND_KEY_DATA, MESSAGE, |out| {
        if key.len() > CANCEL_KEY_LEN_MAX {
            return Err(BuildError::Length { message: MESSAGE, len: key.len(), max: CANCEL_KEY_LEN_MAX });
        }
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
        Ok(())
    })
}

/// ReadyForQuery.
#[inline]
pub fn ready_for_query(out: &mut BytesMut, status: Status) {
    write::fixed(out, tag::READY_FOR_QUERY, [status.code()]);
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The statement failed, and with it the transaction.
    Error,
    /// The session ends.
    Fatal,
    /// All sessions end.
    Panic,
    /// Probably a mistake.
    Warning,
    /// Worth knowing.
    Notice,
    /// For developers.
    Debug,
    /// Asked for.
    Info,
    /// For the log.
    Log,
}

impl Severity {
    /// The protocol's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Panic => "PANIC",
            Severity::Warning => "WARNING",
            Severity::Notice => "NOTICE",
            Severity::Debug => "DEBUG",
            Severity::Info => "INFO",
            Severity::Log => "LOG",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error or notice of the proxy's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, for programs.
    pub code: SqlState,
    /// What it is, for people.
    pub message: &'a str,
    /// More about it.
    pub detail: Option<&'a str>,
    /// What to do.
    pub hint: Option<&'a str>,
    /// Where in the statement, in characters from 1.
    pub position: Option<u32>,
    /// The server's function that reports it, by which some drivers tell errors of one code apart.
    pub routine: Option<&'a str>,
}

impl<'a> Report<'a> {
    /// A report of nothing but that.
    #[must_use]
    pub fn new(severity: Severity, code: SqlState, message: &'a str) -> Report<'a> {
        Report { severity, code, message, detail: None, hint: None, position: None, routine: None }
    }
}

/// ErrorResponse.
pub fn error(out: &mut BytesMut, report: &Report<'_>) {
    put_report(out, tag::ERROR_RESPONSE, report);
}

/// NoticeResponse.
pub fn notice(out: &mut BytesMut, report: &Report<'_>) {
    put_report(out, tag::NOTICE_RESPONSE, report);
}

fn put_report(out: &mut BytesMut, tag: u8, report: &Report<'_>) {
    write::short(out, tag, |out| {
        put_field(out, b'S', report.severity.as_str());
        put_field(out, b'V', report.severity.as_str());
        put_field(out, b'C', report.code.as_str());
        put_field(out, b'M', report.message);
        if let Some(detail) = report.detail {
            put_field(out, b'D', detail);
        }
        if let Some(hint) = report.hint {
            put_field(out, b'H', hint);
        }
        if let Some(position) = report.position {
            put_field(out, b'P', &position.to_string());
        }
        if let Some(routine) = report.routine {
            put_field(out, b'R', routine);
        }
        out.extend_from_slice(&[0]);
    });
}

/// CommandComplete, such as `SELECT 1`.
pub fn command_complete(out: &mut BytesMut, tag: &str) {
    write::short(out, tag::COMMAND_COMPLETE, |out| put_text(out, tag));
}

/// RowDescription.
///
/// # Errors
/// [`BuildError`] for a zero byte in a name, or more than 65535 columns.
pub fn row_description<'a>(
    out: &mut BytesMut,
    columns: impl IntoIterator<Item = Column<'a>>,
) -> Result<(), WireError> {
    const MESSAGE: &str = "RowDescription";
    write::frame(out, tag::ROW_DESCRIPTION, MESSAGE, |out| {
        put_counted(out, columns, MESSAGE, "columns", |out, column| {
            if memchr::memchr(0, column.name).is_some() {
                return Err(BuildError::ZeroByte { message: MESSAGE, field: "a column's name" });
            }
            out.extend_from_slice(column.name);
            out.extend_from_slice(&[0]);
            out.extend_from_slice(&column.table_oid.to_be_bytes());
            out.extend_from_slice(&column.attnum.to_be_bytes());
            out.extend_from_slice(&column.type_oid.to_be_bytes());
            out.extend_from_slice(&column.type_len.to_be_bytes());
            out.extend_from_slice(&column.typmod.to_be_bytes());
            out.extend_from_slice(&column.format.code().to_be_bytes());
            Ok(())
        })
    })
}

/// RowDescription of columns of type text.
///
/// # Errors
/// Those of [`row_description`].
pub fn text_row_description(out: &mut BytesMut, names: &[&str]) -> Result<(), WireError> {
    row_description(out, names.iter().map(|name| Column::text(name)))
}

/// DataRow.
///
/// # Errors
/// [`BuildError`] for more than 65535 columns, or 2 GiB or more.
pub fn data_row<'v>(
    out: &mut BytesMut,
    values: impl IntoIterator<Item = Option<&'v [u8]>>,
) -> Result<(), WireError> {
    const MESSAGE: &str = "DataRow";
    write::frame(out, tag::DATA_ROW, MESSAGE, |out| {
        put_counted(out, values, MESSAGE, "columns", |out, value| put_value(out, value, MESSAGE))
    })
}

/// DataRow of texts, none of them NULL.
///
/// # Errors
/// Those of [`data_row`].
pub fn text_row<S: AsRef<str>>(out: &mut BytesMut, values: &[S]) -> Result<(), WireError> {
    data_row(out, values.iter().map(|value| Some(value.as_ref().as_bytes())))
}

/// ParseComplete.
#[inline]
pub fn parse_complete(out: &mut BytesMut) {
    write::fixed(out, tag::PARSE_COMPLETE, []);
}

/// BindComplete.
#[inline]
pub fn bind_complete(out: &mut BytesMut) {
    write::fixed(out, tag::BIND_COMPLETE, []);
}

/// CloseComplete.
#[inline]
pub fn close_complete(out: &mut BytesMut) {
    write::fixed(out, tag::CLOSE_COMPLETE, []);
}

/// NoData.
#[inline]
pub fn no_data(out: &mut BytesMut) {
    write::fixed(out, tag::NO_DATA, []);
}

/// EmptyQueryResponse.
#[inline]
pub fn empty_query_response(out: &mut BytesMut) {
    write::fixed(out, tag::EMPTY_QUERY_RESPONSE, []);
}

/// PortalSuspended.
#[inline]
pub fn portal_suspended(out: &mut BytesMut) {
    write::fixed(out, tag::PORTAL_SUSPENDED, []);
}

/// ParameterDescription: types of a statement's parameters.
///
/// # Errors
/// [`BuildError`] for more than 65535.
pub fn parameter_description(
    out: &mut BytesMut,
    types: impl IntoIterator<Item = u32>,
) -> Result<(), WireError> {
    const MESSAGE: &str = "ParameterDescription";
    write::frame(out, tag::PARAMETER_DESCRIPTION, MESSAGE, |out| {
        put_counted(out, types, MESSAGE, "types", |out, oid| {
            out.extend_from_slice(&oid.to_be_bytes());
            Ok(())
        })
    })
}

/// CopyInResponse: the client may send data, all columns in one format.
pub fn copy_in_response(out: &mut BytesMut, format: Format, columns: u16) {
    put_copy_response(out, tag::COPY_IN_RESPONSE, format, columns);
}

/// CopyOutResponse: data will follow, all columns in one format.
pub fn copy_out_response(out: &mut BytesMut, format: Format, columns: u16) {
    put_copy_response(out, tag::COPY_OUT_RESPONSE, format, columns);
}

fn put_copy_response(out: &mut BytesMut, tag: u8, format: Format, columns: u16) {
    write::short(out, tag, |out| {
        out.extend_from_slice(&[format.code() as u8]);
        out.extend_from_slice(&columns.to_be_bytes());
        for _ in 0..columns {
            out.extend_from_slice(&format.code().to_be_bytes());
        }
    });
}

/// CopyData, a row of COPY TO STDOUT.
///
/// # Errors
/// [`BuildError`] for 2 GiB or more.
pub fn copy_data(out: &mut BytesMut, data: &[u8]) -> Result<(), WireError> {
    out.reserve(data.len() + 5);
    write::frame(out, tag::COPY_DATA, "CopyData", |out| {
        out.extend_from_slice(data);
        Ok(())
    })
}

/// CopyDone.
pub fn copy_done(out: &mut BytesMut) {
    write::fixed(out, tag::COPY_DONE, []);
}

/// NotificationResponse.
pub fn notification(out: &mut BytesMut, pid: u32, channel: &str, payload: &str) {
    write::short(out, tag::NOTIFICATION_RESPONSE, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        put_text(out, channel);
        put_text(out, payload);
    });
}
