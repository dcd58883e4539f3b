//! What a front and a session that it carries say to each other, beside PostgreSQL's protocol: `docs/nodes.md`.
//!
//! A front relays a client's messages to a session on another node, and makes that session again elsewhere when the
//! node is lost. For this the session says where it stands ([`Idle`]) and how it can be made again ([`Script`]), and
//! the front gives back what no statement can ([`Values`]), or takes away what is not to go on ([`Fail`]).
//!
//! The two senders use type bytes that PostgreSQL uses for nothing; neither is ever sent to a client or a server.
//! [`crate::frontend::peek_carried`] accepts the front's.

use bytes::{BufMut, BytesMut};

use crate::errors::{BuildError, Side, WireError};
use crate::frame::HEAD_LEN;
use crate::read::Reader;
use crate::sqlstate::SqlState;
use crate::write::{self, put_cstr, put_text};

/// Type bytes of these messages.
pub mod tag {
    /// [`Idle`](super::Idle), from the session.
    pub const IDLE: u8 = b'@';
    /// [`Script`](super::Script), from the session.
    pub const SCRIPT: u8 = b'#';
    /// [`Values`](super::Values), from the front.
    pub const VALUES: u8 = b'@';
    /// [`Fail`](super::Fail), from the front.
    pub const FAIL: u8 = b'!';
}

/// Before each ReadyForQuery outside transactions: where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// How many commits the session has made, on this node and on those before.
    pub commits: u64,
    /// The last commit of the database of which anybody was told.
    pub csn: u64,
    /// Whether the session could be made again elsewhere: nothing is left behind that the script does not say.
    pub movable: bool,
}

impl Idle {
    /// Appends its frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let mut body = [0; 17];
        body[..8].copy_from_slice(&self.commits.to_be_bytes());
        body[8..16].copy_from_slice(&self.csn.to_be_bytes());
        body[16] = u8::from(self.movable);
        write::fixed(out, tag::IDLE, body);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Server`] if it is not exactly one message.
    pub fn decode(body: &[u8]) -> Result<Idle, WireError> {
        let mut reader = Reader::new(body, Side::Server, "Idle");
        let (commits, csn) = (reader.u64("the number of commits")?, reader.u64("the last commit")?);
        let movable = flag(&mut reader, "whether it is movable")?;
        reader.finish()?;
        Ok(Idle { commits, csn, movable })
    }
}

/// Before [`Idle`]: a part of what makes the session again, if it has changed.
///
/// It is said in parts since one of them, the values of sequences, may change with every transaction, and the statements
/// that a driver keeps prepared are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script<'a> {
    /// Which part this is. Parts are sent to a new session in the order of their numbers, and a new session says its
    /// own from the beginning.
    pub part: u32,
    /// How many ReadyForQuery answer the messages of this part.
    pub answers: u32,
    /// Whole frames of a client's, to be sent to a session that has just begun, in the place of what this part was
    /// before. Empty if there is no such part any more.
    pub messages: &'a [u8],
}

impl<'a> Script<'a> {
    /// Appends its frame.
    ///
    /// # Errors
    /// [`BuildError`] for 2 GiB or more.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        out.reserve(HEAD_LEN + 8 + self.messages.len());
        write::frame(out, tag::SCRIPT, "Script", |out| {
            out.put_u32(self.part);
            out.put_u32(self.answers);
            out.extend_from_slice(self.messages);
            Ok(())
        })
    }

    /// Reads the body. The messages are not looked at.
    ///
    /// # Errors
    /// [`WireError::Server`] if it ends before them.
    pub fn decode(body: &'a [u8]) -> Result<Script<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "Script");
        let (part, answers) = (reader.u32("the number of the part")?, reader.u32("the number of answers")?);
        Ok(Script { part, answers, messages: reader.rest() })
    }
}

/// Part of a script: values that the session has drawn from sequences, for currval() and lastval(). Answered by nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values<'a> {
    /// What each sequence returned last.
    pub sequences: Vec<Value<'a>>,
    /// What lastval() returns.
    pub last: Option<i64>,
}

/// What a sequence returned last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// The schema of the sequence.
    pub schema: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What currval() returns.
    pub value: i64,
}

impl<'a> Values<'a> {
    /// Appends its frame.
    ///
    /// # Errors
    /// [`BuildError`] for a zero byte in a name, or 2 GiB or more.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        const MESSAGE: &str = "Values";
        write::frame(out, tag::VALUES, MESSAGE, |out| {
            let len = self.sequences.len();
            let too_many = |_| BuildError::Length { message: MESSAGE, len, max: u32::MAX as usize };
            out.put_u32(u32::try_from(len).map_err(too_many)?);
            for Value { schema, name, value } in &self.sequences {
                put_cstr(out, schema, MESSAGE, "the schema of a sequence")?;
                put_cstr(out, name, MESSAGE, "the name of a sequence")?;
                out.put_i64(*value);
            }
            out.put_u8(u8::from(self.last.is_some()));
            out.put_i64(self.last.unwrap_or(0));
            Ok(())
        })
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Client`] if it is not exactly one message, or has text that is not UTF-8.
    pub fn decode(body: &'a [u8]) -> Result<Values<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Client, "Values");
        let count = reader.u32("the number of sequences")?;
        // The number is not trusted with memory: each of them must be there.
        let mut sequences = Vec::new();
        for _ in 0..count {
            let schema = reader.str("the schema of a sequence")?;
            let name = reader.str("the name of a sequence")?;
            sequences.push(Value { schema, name, value: reader.i64("the value of a sequence")? });
        }
        let has_last = flag(&mut reader, "whether there is a last value")?;
        let last = reader.i64("the last value")?;
        reader.finish()?;
        Ok(Values { sequences, last: has_last.then_some(last) })
    }
}

/// Opens a transaction if none is open, and fails it: as if a statement had failed with this error, which the front has
/// answered itself. Answered by nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fail<'a> {
    /// What kind of error it was.
    pub code: SqlState,
    /// Its text.
    pub message: &'a str,
}

impl<'a> Fail<'a> {
    /// Appends its frame. The text is cut at a zero byte and at 64 KiB.
    pub fn encode(&self, out: &mut BytesMut) {
        write::short(out, tag::FAIL, |out| {
            out.extend_from_slice(self.code.as_str().as_bytes());
            put_text(out, self.message);
        });
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Client`] if it is not exactly one message, or has text that is not UTF-8.
    pub fn decode(body: &'a [u8]) -> Result<Fail<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Client, "Fail");
        let code = reader.bytes(5, "the SQLSTATE")?;
        let Some(code) = SqlState::parse(code) else {
            return Err(reader.invalid("the first byte of the SQLSTATE", i64::from(code[0])));
        };
        let message = reader.str("the message")?;
        reader.finish()?;
        Ok(Fail { code, message })
    }
}

fn flag(reader: &mut Reader<'_>, field: &'static str) -> Result<bool, WireError> {
    match reader.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(reader.invalid(field, i64::from(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Malformed;
    use crate::frame;

    /// The body of the one frame that was built.
    fn body(out: &[u8], tag: u8) -> &[u8] {
        let head = frame::peek(out, frame::FRAME_LEN_MAX).unwrap().unwrap();
        assert_eq!((head.tag, head.len), (tag, out.len()));
        &out[HEAD_LEN..]
    }

    fn values() -> Values<'static> {
        let one = Value { schema: "public", name: "a_seq", value: -2 };
        Values { sequences: vec![one, Value { schema: "s", name: "b", value: 7 }], last: Some(7) }
    }

    #[test]
    fn bytes_are_those_of_the_design() {
        let mut out = BytesMut::new();
        Idle { commits: 3, csn: 258, movable: true }.encode(&mut out);
        assert_eq!(&out[..], b"@\0\0\0\x15\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x01\x02\x01");
        out.clear();
        Script { part: 7, answers: 2, messages: b"S\0\0\0\x04" }.encode(&mut out).unwrap();
        assert_eq!(&out[..], b"#\0\0\0\x11\0\0\0\x07\0\0\0\x02S\0\0\0\x04");
        out.clear();
        let sequences = vec![Value { schema: "s", name: "b", value: 7 }];
        Values { sequences, last: None }.encode(&mut out).unwrap();
        let expected = b"@\0\0\0\x1d\0\0\0\x01s\0b\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\0";
        assert_eq!(&out[..], expected);
        out.clear();
        Fail { code: SqlState::SERIALIZATION_FAILURE, message: "no" }.encode(&mut out);
        assert_eq!(&out[..], b"!\0\0\0\x0c40001no\0");
    }

    #[test]
    fn what_was_built_is_read() {
        for movable in [false, true] {
            let idle = Idle { commits: u64::MAX, csn: 1, movable };
            let mut out = BytesMut::new();
            idle.encode(&mut out);
            assert_eq!(Idle::decode(body(&out, tag::IDLE)), Ok(idle));
        }
        for messages in [&b""[..], b"anything"] {
            let script = Script { part: u32::MAX, answers: 9, messages };
            let mut out = BytesMut::new();
            script.encode(&mut out).unwrap();
            assert_eq!(Script::decode(body(&out, tag::SCRIPT)), Ok(script));
        }
        for values in [values(), Values::default(), Values { last: Some(0), ..Values::default() }] {
            let mut out = BytesMut::new();
            values.encode(&mut out).unwrap();
            assert_eq!(Values::decode(body(&out, tag::VALUES)), Ok(values));
        }
        let fail = Fail { code: SqlState::SERIALIZATION_FAILURE, message: "could not go on" };
        let mut out = BytesMut::new();
        fail.encode(&mut out);
        assert_eq!(Fail::decode(body(&out, tag::FAIL)), Ok(fail));
    }

    #[test]
    fn a_message_cut_anywhere_or_with_more_after_it_is_refused() {
        let mut out = BytesMut::new();
        Idle { commits: 1, csn: 2, movable: true }.encode(&mut out);
        let idle = out.split();
        values().encode(&mut out).unwrap();
        let values = out.split();
        Fail { code: SqlState::SERIALIZATION_FAILURE, message: "no" }.encode(&mut out);
        type IsRead = fn(&[u8]) -> bool;
        let decoders: [(&[u8], IsRead); 3] = [
            (&idle, |body| Idle::decode(body).is_ok()),
            (&values, |body| Values::decode(body).is_ok()),
            (&out, |body| Fail::decode(body).is_ok()),
        ];
        for (frame, is_read) in decoders {
            let body = &frame[HEAD_LEN..];
            for len in 0..body.len() {
                assert!(!is_read(&body[..len]), "{body:?} cut at {len}");
            }
            let longer = [body, b"\0"].concat();
            assert!(!is_read(&longer), "{longer:?}");
        }
        for len in 0..8 {
            assert!(Script::decode(&[0; 8][..len]).is_err());
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        let mut idle = [0; 17];
        idle[16] = 2;
        assert!(matches!(Idle::decode(&idle), Err(WireError::Server(Malformed::Value { value: 2, .. }))));
        let many = Values::decode(&[0xff; 4]);
        assert!(matches!(many, Err(WireError::Client(Malformed::Unterminated { .. }))));
        assert!(matches!(Fail::decode(b"4000!\0"), Err(WireError::Client(Malformed::Value { .. }))));
        assert!(matches!(Fail::decode(b"40001\xff\0"), Err(WireError::Client(Malformed::NotUtf8 { .. }))));
        let zero = Values { sequences: vec![Value { schema: "a\0", name: "b", value: 1 }], last: None };
        let mut out = BytesMut::new();
        assert!(zero.encode(&mut out).is_err() && out.is_empty());
    }
}
