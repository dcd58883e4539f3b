//! What a proxy sends to a server, in the role of a client.
//!
//! Each function appends one frame; one that fails appends nothing.

use bytes::BytesMut;

use super::tag;
use super::{Named, Target};
use crate::errors::{BuildError, WireError};
use crate::values::Format;
use crate::write::{self, put_counted, put_cstr, put_value};

/// Query.
///
/// # Errors
/// [`BuildError`] for a zero byte in the text, or for too long a one.
pub fn query(out: &mut BytesMut, sql: &str) -> Result<(), WireError> {
    out.reserve(sql.len() + 6);
    write::frame(out, tag::QUERY, "Query", |out| put_cstr(out, sql, "Query", "the statement"))
}

/// Parse. `types` are the object ids of the first parameters' types; 0 leaves one to the server.
///
/// # Errors
/// [`BuildError`] for a zero byte in a text, too long a one, or more than 65535 types.
pub fn parse(
    out: &mut BytesMut,
    name: &str,
    sql: &str,
    types: impl IntoIterator<Item = u32>,
) -> Result<(), WireError> {
    const MESSAGE: &str = "Parse";
    out.reserve(name.len() + sql.len() + 32);
    write::frame(out, tag::PARSE, MESSAGE, |out| {
        put_cstr(out, name, MESSAGE, "the statement's name")?;
        put_cstr(out, sql, MESSAGE, "the statement")?;
        put_counted(out, types, MESSAGE, "types", |out, oid| {
            out.extend_from_slice(&oid.to_be_bytes());
            Ok(())
        })
    })
}

/// Bind. Of formats, give none for text, one for all values, or one a value.
///
/// # Errors
/// [`BuildError`] for a zero byte in a name, more than 65535 of something, or too long a message.
pub fn bind<'v>(
    out: &mut BytesMut,
    portal: &str,
    statement: &str,
    param_formats: impl IntoIterator<Item = Format>,
    params: impl IntoIterator<Item = Option<&'v [u8]>>,
    result_formats: impl IntoIterator<Item = Format>,
) -> Result<(), WireError> {
    const MESSAGE: &str = "Bind";
    out.reserve(64 + portal.len() + statement.len());
    write::frame(out, tag::BIND, MESSAGE, |out| {
        put_cstr(out, portal, MESSAGE, "the portal's name")?;
        put_cstr(out, statement, MESSAGE, "the statement's name")?;
        put_formats(out, param_formats, MESSAGE)?;
        put_counted(out, params, MESSAGE, "parameters", |out, value| put_value(out, value, MESSAGE))?;
        put_formats(out, result_formats, MESSAGE)
    })
}

fn put_formats(
    out: &mut BytesMut,
    formats: impl IntoIterator<Item = Format>,
    message: &'static str,
) -> Result<(), BuildError> {
    put_counted(out, formats, message, "format codes", |out, format| {
        out.extend_from_slice(&format.code().to_be_bytes());
        Ok(())
    })
}

/// Describe.
///
/// # Errors
/// [`BuildError`] for a zero byte in the name.
pub fn describe(out: &mut BytesMut, target: Target, name: &str) -> Result<(), WireError> {
    put_named(out, tag::DESCRIBE, "Describe", Named { target, name })
}

/// Close.
///
/// # Errors
/// [`BuildError`] for a zero byte in the name.
pub fn close(out: &mut BytesMut, target: Target, name: &str) -> Result<(), WireError> {
    put_named(out, tag::CLOSE, "Close", Named { target, name })
}

fn put_named(out: &mut BytesMut, tag: u8, message: &'static str, named: Named<'_>) -> Result<(), WireError> {
    write::frame(out, tag, message, |out| {
        out.extend_from_slice(&[named.target.code()]);
        put_cstr(out, named.name, message, "the object's name")
    })
}

/// Execute. `max_rows` of 0 means all; more than the protocol's 31 bits can say means all, too.
///
/// # Errors
/// [`BuildError`] for a zero byte in the name.
pub fn execute(out: &mut BytesMut, portal: &str, max_rows: u32) -> Result<(), WireError> {
    write::frame(out, tag::EXECUTE, "Execute", |out| {
        put_cstr(out, portal, "Execute", "the portal's name")?;
        out.extend_from_slice(&i32::try_from(max_rows).unwrap_or(0).to_be_bytes());
        Ok(())
    })
}

/// Sync.
pub fn sync(out: &mut BytesMut) {
    write::fixed(out, tag::SYNC, []);
}

/// Flush.
pub fn flush(out: &mut BytesMut) {
    write::fixed(out, tag::FLUSH, []);
}

/// Terminate.
pub fn terminate(out: &mut BytesMut) {
    write::fixed(out, tag::TERMINATE, []);
}

/// CopyData.
///
/// # Errors
/// [`BuildError`] for 2 GiB or more.
pub fn copy_data(out: &mut BytesMut, data: &[u8]) -> Result<(), WireError> {
    out.reserve(data.len() + 5);
    put_bytes(out, tag::COPY_DATA, "CopyData", data)
}

/// CopyDone.
pub fn copy_done(out: &mut BytesMut) {
    write::fixed(out, tag::COPY_DONE, []);
}

/// CopyFail. The reason is cut at a zero byte and at 64 KiB.
pub fn copy_fail(out: &mut BytesMut, reason: &str) {
    write::short(out, tag::COPY_FAIL, |out| write::put_text(out, reason));
}

/// PasswordMessage, with a password in the clear or its md5 text.
///
/// # Errors
/// [`BuildError`] for a zero byte inside.
pub fn password(out: &mut BytesMut, password: &str) -> Result<(), WireError> {
    const MESSAGE: &str = "PasswordMessage";
    write::frame(out, tag::PASSWORD, MESSAGE, |out| put_cstr(out, password, MESSAGE, "the password"))
}

/// SASLInitialResponse: the mechanism chosen, and its first message.
///
/// # Errors
/// [`BuildError`] for a zero byte in the mechanism's name, or 2 GiB or more.
pub fn sasl_initial_response(out: &mut BytesMut, mechanism: &str, data: &[u8]) -> Result<(), WireError> {
    const MESSAGE: &str = "SASLInitialResponse";
    write::frame(out, tag::PASSWORD, MESSAGE, |out| {
        put_cstr(out, mechanism, MESSAGE, "the mechanism")?;
        put_value(out, Some(data), MESSAGE)
    })
}

/// SASLResponse: a mechanism's next message.
///
/// # Errors
/// [`BuildError`] for 2 GiB or more.
pub fn sasl_response(out: &mut BytesMut, data: &[u8]) -> Result<(), WireError> {
    put_bytes(out, tag::PASSWORD, "SASLResponse", data)
}

fn put_bytes(out: &mut BytesMut, tag: u8, message: &'static str, bytes: &[u8]) -> Result<(), WireError> {
    write::frame(out, tag, message, |out| {
        out.extend_from_slice(bytes);
        Ok(())
    })
}
