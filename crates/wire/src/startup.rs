//! A connection's first packets, which have no type byte: encryption requests, cancel requests, and the startup
//! packet with its parameters.
//!
//! These bytes come from anybody who can reach the port, before any check of who it is. So nothing above
//! [`STARTUP_LEN_MAX`] is read, whatever is said twice or left open is refused, and bytes that follow an
//! encryption request in the clear are never carried over into the encrypted connection.

use std::fmt;

use bytes::BytesMut;

use crate::errors::{BuildError, StartupError, WireError};
use crate::write;

/// Bytes of the longest first packet, its length included. The same as PostgreSQL's.
pub const STARTUP_LEN_MAX: usize = 10_000;

/// Bytes of the shortest cancel key.
pub const CANCEL_KEY_LEN_MIN: usize = 4;

/// Bytes of the longest cancel key. Until protocol 3.2 every key has four.
pub const CANCEL_KEY_LEN_MAX: usize = 256;

/// A protocol version, major and minor.
pub type Version = (u16, u16);

/// The protocol that every server and client of this century speaks.
pub const VERSION_3_0: Version = (3, 0);

/// The newest version spoken here: cancel keys of up to [`CANCEL_KEY_LEN_MAX`] bytes.
pub const VERSION_3_2: Version = (3, 2);

const MAJOR: u16 = 3;
const CANCEL_CODE: u32 = 80_877_102;
const SSL_CODE: u32 = 80_877_103;
const GSSENC_CODE: u32 = 80_877_104;

/// What a client sends first.
#[derive(Clone, PartialEq, Eq)]
pub enum StartupPacket<'a> {
    /// Asks for TLS; answered with one byte, `S` or `N`.
    SslRequest,
    /// Asks for GSSAPI encryption; answered with one byte, `G` or `N`.
    GssEncRequest,
    /// Asks to cancel what another connection is doing; not answered.
    Cancel {
        /// Process id of the session, as sent in its BackendKeyData.
        pid: u32,
        /// The session's secret, [`CANCEL_KEY_LEN_MIN`] to [`CANCEL_KEY_LEN_MAX`] bytes.
        key: &'a [u8],
    },
    /// Asks for a session.
    Start(Start),
}

impl fmt::Debug for StartupPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartupPacket::SslRequest => f.write_str("SslRequest"),
            StartupPacket::GssEncRequest => f.write_str("GssEncRequest"),
            StartupPacket::Cancel { pid, .. } => {
                f.debug_struct("Cancel").field("pid", pid).finish_non_exhaustive()
            }
            StartupPacket::Start(start) => start.fmt(f),
        }
    }
}

/// What a client asks for in its startup packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The version asked for; major 3, any minor.
    pub version: Version,
    /// Parameters in the order sent, none twice; `user` is among them.
    pub params: Vec<(String, String)>,
    /// Names of requested protocol extensions, which begin with `_pq_.`; none is supported so far.
    pub extensions: Vec<String>,
}

impl Start {
    /// The value of a parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Who wants to connect; never empty.
    #[must_use]
    pub fn user(&self) -> &str {
        self.get("user").unwrap_or_default()
    }

    /// The database to connect to, by default one with the user's name.
    #[must_use]
    pub fn database(&self) -> &str {
        self.get("database").filter(|name| !name.is_empty()).unwrap_or_else(|| self.user())
    }

    /// What to answer to the version and the extensions asked for: the version to speak from here on, and
    /// whether the client must be told ([`crate::backend::build::negotiate_protocol_version`] with
    /// [`Start::extensions`]) because it asked for more.
    #[must_use]
    pub fn negotiate(&self) -> Negotiation {
        Negotiation {
            version: self.version.min(VERSION_3_2),
            must_tell: self.version > VERSION_3_2 || !self.extensions.is_empty(),
        }
    }

    /// The settings in the parameter `options`, in order, written as `-c name=value` or `--name=value`. As in
    /// PostgreSQL, a backslash takes the next character literally, and `-` in a name means `_`.
    ///
    /// # Errors
    /// [`StartupError::Options`] for any other word, and for an empty name.
    pub fn options(&self) -> Result<Vec<(String, String)>, StartupError> {
        let mut settings = Vec::new();
        let mut words = split_options(self.get("options").unwrap_or_default()).into_iter();
        while let Some(word) = words.next() {
            let setting = match word.strip_prefix("--") {
                Some(setting) => Some(setting.to_owned()),
                None => match word.strip_prefix("-c") {
                    Some("") => words.next(),
                    Some(setting) => Some(setting.to_owned()),
                    None => None,
                },
            };
            match setting.as_deref().and_then(|setting| setting.split_once('=')) {
                Some((name, value)) if !name.is_empty() => {
                    settings.push((name.replace('-', "_"), value.to_owned()));
                }
                _ => return Err(StartupError::Options { at: word }),
            }
        }
        Ok(settings)
    }
}

/// Outcome of [`Start::negotiate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiation {
    /// The version to speak.
    pub version: Version,
    /// Whether a NegotiateProtocolVersion must be sent before authentication.
    pub must_tell: bool,
}

impl Negotiation {
    /// Bytes of the longest cancel key that the client understands.
    #[must_use]
    pub fn cancel_key_len_max(&self) -> usize {
        if self.version >= VERSION_3_2 { CANCEL_KEY_LEN_MAX } else { CANCEL_KEY_LEN_MIN }
    }
}

/// Whether the first byte opens a TLS handshake rather than a packet of PostgreSQL's: a client with
/// `sslnegotiation=direct`. No acceptable packet begins with it.
#[must_use]
pub fn is_direct_tls(buf: &[u8]) -> bool {
    buf.first() == Some(&0x16)
}

/// Reads the packet at the start of `buf`, and says how many bytes it has. `None` while it is incomplete.
///
/// # Errors
/// [`StartupError`], after which the connection must be closed. An encryption request with anything after it is
/// one of them.
pub fn decode(buf: &[u8]) -> Result<Option<(StartupPacket<'_>, usize)>, WireError> {
    let Some(declared) = buf.first_chunk::<4>() else { return Ok(None) };
    let declared = i32::from_be_bytes(*declared);
    let len = match usize::try_from(declared) {
        Ok(len) if (8..=STARTUP_LEN_MAX).contains(&len) => len,
        _ => return Err(StartupError::Length { declared, min: 8, max: STARTUP_LEN_MAX }.into()),
    };
    let Some((packet, after)) = buf.split_at_checked(len) else { return Ok(None) };
    let Some((code, body)) = packet[4..].split_first_chunk::<4>() else { return Ok(None) };
    let packet = match u32::from_be_bytes(*code) {
        SSL_CODE => encryption_request("SSLRequest", StartupPacket::SslRequest, body, after)?,
        GSSENC_CODE => encryption_request("GSSENCRequest", StartupPacket::GssEncRequest, body, after)?,
        CANCEL_CODE => cancel(body)?,
        code => StartupPacket::Start(start(code, body)?),
    };
    Ok(Some((packet, len)))
}

fn encryption_request<'a>(
    request: &'static str,
    packet: StartupPacket<'a>,
    body: &[u8],
    after: &[u8],
) -> Result<StartupPacket<'a>, StartupError> {
    if !body.is_empty() {
        return Err(StartupError::RequestLength { request, len: body.len() + 8, expected: "8" });
    }
    if !after.is_empty() {
        return Err(StartupError::BytesAfterRequest { request, len: after.len() });
    }
    Ok(packet)
}

fn cancel(body: &[u8]) -> Result<StartupPacket<'_>, StartupError> {
    match body.split_first_chunk::<4>() {
        Some((pid, key)) if (CANCEL_KEY_LEN_MIN..=CANCEL_KEY_LEN_MAX).contains(&key.len()) => {
            Ok(StartupPacket::Cancel { pid: u32::from_be_bytes(*pid), key })
        }
        _ => Err(StartupError::RequestLength {
            request: "CancelRequest",
            len: body.len() + 8,
            expected: "16 to 268",
        }),
    }
}

fn start(code: u32, body: &[u8]) -> Result<Start, StartupError> {
    let version @ (major, minor) = ((code >> 16) as u16, code as u16);
    if major != MAJOR {
        // An unknown request of the family of SSLRequest lands here too, with major 1234.
        return Err(StartupError::Version { major, minor });
    }
    let mut start = Start { version, params: Vec::new(), extensions: Vec::new() };
    let mut rest = body;
    for index in 1.. {
        let name = take_string(&mut rest, index)?;
        if name.is_empty() {
            break;
        }
        let value = take_string(&mut rest, index)?;
        let known = start.params.iter().any(|(key, _)| key == name);
        if known || start.extensions.iter().any(|key| key == name) {
            return Err(StartupError::Duplicate { name: name.to_owned() });
        }
        if name.starts_with("_pq_.") {
            start.extensions.push(name.to_owned());
        } else {
            start.params.push((name.to_owned(), value.to_owned()));
        }
    }
    if !rest.is_empty() {
        return Err(StartupError::Unterminated);
    }
    if start.user().is_empty() {
        return Err(StartupError::NoUser);
    }
    Ok(start)
}

fn take_string<'a>(rest: &mut &'a [u8], index: usize) -> Result<&'a str, StartupError> {
    let end = memchr::memchr(0, rest).ok_or(StartupError::Unterminated)?;
    let text = std::str::from_utf8(&rest[..end]).map_err(|_| StartupError::NotUtf8 { index })?;
    *rest = &rest[end + 1..];
    Ok(text)
}

/// Words between white space; a backslash takes the next character literally.
fn split_options(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(char::is_ascii_whitespace).is_some() {}
        if chars.peek().is_none() {
            return words;
        }
        let mut word = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_ascii_whitespace()) {
            word.extend(if c == '\\' { chars.next() } else { Some(c) });
        }
        words.push(word);
    }
}

/// A server's answer to SSLRequest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslReply {
    /// The TLS handshake may begin.
    Accepted,
    /// The server does not speak TLS; the connection may go on without, or be closed.
    Refused,
}

/// Reads a server's answer to SSLRequest. `None` while nothing has arrived.
///
/// # Errors
/// [`StartupError::SslReply`] if there is anything but one byte `S` or `N`. An error message at this point is
/// not authenticated and must not be shown, and whatever follows the byte in the clear may have been put there
/// by somebody else.
pub fn decode_ssl_reply(buf: &[u8]) -> Result<Option<SslReply>, WireError> {
    match buf {
        [] => Ok(None),
        b"S" => Ok(Some(SslReply::Accepted)),
        b"N" => Ok(Some(SslReply::Refused)),
        [first, ..] => Err(StartupError::SslReply { first: *first, len: buf.len() }.into()),
    }
}

/// Appends a startup packet.
///
/// # Errors
/// [`BuildError`] if a name or value has a zero byte inside, a name is empty, or the packet would be longer than
/// [`STARTUP_LEN_MAX`].
pub fn startup(out: &mut BytesMut, version: Version, params: &[(&str, &str)]) -> Result<(), WireError> {
    const MESSAGE: &str = "StartupMessage";
    let code = u32::from(version.0) << 16 | u32::from(version.1);
    packet(out, MESSAGE, code, |out| {
        for (name, value) in params {
            if name.is_empty() {
                // An empty name ends the list: the server would not see what follows.
                return Err(BuildError::Empty { message: MESSAGE, field: "a parameter name" });
            }
            write::put_cstr(out, name, MESSAGE, "a parameter name")?;
            write::put_cstr(out, value, MESSAGE, "a parameter value")?;
        }
        out.extend_from_slice(&[0]);
        Ok(())
    })
}

/// Appends a request for TLS.
pub fn ssl_request(out: &mut BytesMut) {
    out.extend_from_slice(&8_u32.to_be_bytes());
    out.extend_from_slice(&SSL_CODE.to_be_bytes());
}

/// Appends a request to cancel what the session with this process id and secret is doing.
///
/// # Errors
/// [`BuildError::Length`] if the key has more than [`CANCEL_KEY_LEN_MAX`] bytes.
pub fn cancel_request(out: &mut BytesMut, pid: u32, key: &[u8]) -> Result<(), WireError> {
    if key.len() > CANCEL_KEY_LEN_MAX {
        return Err(
            BuildError::Length { message: "CancelRequest", len: key.len(), max: CANCEL_KEY_LEN_MAX }.into()
        );
    }
    packet(out, "CancelRequest", CANCEL_CODE, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
        Ok(())
    })
}

fn packet(
    out: &mut BytesMut,
    message: &'static str,
    code: u32,
    fill: impl FnOnce(&mut BytesMut) -> Result<(), BuildError>,
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&code.to_be_bytes());
    let filled = fill(out).and_then(|()| match out.len() - start {
        len if len <= STARTUP_LEN_MAX => Ok(len as u32),
        len => Err(BuildError::Length { message, len, max: STARTUP_LEN_MAX }),
    });
    match filled {
        Ok(len) => out[start..start + 4].copy_from_slice(&len.to_be_bytes()),
        Err(error) => {
            out.truncate(start);
            return Err(error.into());
        }
    }
    Ok(())
}
