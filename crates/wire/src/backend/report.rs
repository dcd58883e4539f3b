//! Errors and notices of servers: one list of fields, each a letter and a text.

use bytes::BytesMut;

use super::tag;
use crate::errors::{Side, WireError};
use crate::read::Reader;
use crate::sqlstate::SqlState;
use crate::write;

/// The fields of an ErrorResponse or NoticeResponse, as they lie in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Letter and terminated text of each; checked.
    raw: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError::Server`] if the list is not terminated exactly at the body's end.
    pub fn decode(body: &'a [u8]) -> Result<Fields<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Server, "ErrorResponse or NoticeResponse");
        while reader.u8("a field's letter")? != 0 {
            reader.cstr("a field's text")?;
        }
        let raw = &body[..body.len() - reader.rest().len() - 1];
        reader.finish()?;
        Ok(Fields { raw })
    }

    /// Letter and text of each field. The texts are as the server sent them: until a session's encoding is
    /// settled, they need not be UTF-8.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.raw;
        std::iter::from_fn(move || {
            let (letter, text) = rest.split_first()?;
            let end = memchr::memchr(0, text)?;
            rest = &text[end + 1..];
            Some((*letter, &text[..end]))
        })
    }

    /// The text of the field with this letter.
    #[must_use]
    pub fn get(&self, letter: u8) -> Option<&'a [u8]> {
        self.iter().find(|(field, _)| *field == letter).map(|(_, text)| text)
    }

    /// The SQLSTATE; [`SqlState::INTERNAL_ERROR`] where the server sent none, or no valid one.
    #[must_use]
    pub fn code(&self) -> SqlState {
        self.get(b'C').and_then(SqlState::parse).unwrap_or(SqlState::INTERNAL_ERROR)
    }

    /// All fields, copied.
    #[must_use]
    pub fn to_owned(&self) -> ErrorFields {
        let mut owned = ErrorFields { code: self.code(), ..ErrorFields::default() };
        for (letter, text) in self.iter() {
            let text = || String::from_utf8_lossy(text).into_owned();
            match letter {
                b'C' => {}
                b'S' => owned.severity_localized = text(),
                b'V' => owned.severity = text(),
                b'M' => owned.message = text(),
                _ => {
                    if let Some(field) = owned.optional_mut(letter) {
                        *field = Some(text());
                    }
                }
            }
        }
        if owned.severity.is_empty() {
            owned.severity.clone_from(&owned.severity_localized);
        }
        owned
    }
}

/// An error or notice with all its fields. Letters that are not known here are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFields {
    /// ERROR, FATAL, PANIC, or WARNING, NOTICE, DEBUG, INFO, LOG.
    pub severity: String,
    /// The same in the server's language.
    pub severity_localized: String,
    /// What kind of error, for programs.
    pub code: SqlState,
    /// What kind of error, for people.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What might help.
    pub hint: Option<String>,
    /// Where in the statement, in characters from 1.
    pub position: Option<String>,
    /// Where in [`ErrorFields::internal_query`].
    pub internal_position: Option<String>,
    /// A statement that the server made itself, in which the error is.
    pub internal_query: Option<String>,
    /// Call stack of functions.
    pub context: Option<String>,
    /// Schema of the object in question.
    pub schema: Option<String>,
    /// Table in question.
    pub table: Option<String>,
    /// Column in question.
    pub column: Option<String>,
    /// Data type in question.
    pub data_type: Option<String>,
    /// Constraint in question.
    pub constraint: Option<String>,
    /// File of the server's source.
    pub file: Option<String>,
    /// Line of the server's source.
    pub line: Option<String>,
    /// Function of the server's source.
    pub routine: Option<String>,
}

impl Default for ErrorFields {
    fn default() -> ErrorFields {
        ErrorFields {
            severity: String::new(),
            severity_localized: String::new(),
            code: SqlState::INTERNAL_ERROR,
            message: String::new(),
            detail: None,
            hint: None,
            position: None,
            internal_position: None,
            internal_query: None,
            context: None,
            schema: None,
            table: None,
            column: None,
            data_type: None,
            constraint: None,
            file: None,
            line: None,
            routine: None,
        }
    }
}

/// Letters of the fields that may be absent, in the order in which servers send them.
const OPTIONAL: &[u8] = b"DHPpqWstcdnFLR";

impl ErrorFields {
    /// Appends an ErrorResponse with these fields.
    pub fn put_error(&self, out: &mut BytesMut) {
        self.put(out, tag::ERROR_RESPONSE);
    }

    /// Appends a NoticeResponse with these fields.
    pub fn put_notice(&self, out: &mut BytesMut) {
        self.put(out, tag::NOTICE_RESPONSE);
    }

    fn put(&self, out: &mut BytesMut, tag: u8) {
        let localized =
            if self.severity_localized.is_empty() { &self.severity } else { &self.severity_localized };
        write::short(out, tag, |out| {
            put_field(out, b'S', localized);
            put_field(out, b'V', &self.severity);
            put_field(out, b'C', self.code.as_str());
            put_field(out, b'M', &self.message);
            for &letter in OPTIONAL {
                if let Some(text) = self.optional(letter) {
                    put_field(out, letter, text);
                }
            }
            out.extend_from_slice(&[0]);
        });
    }

    fn optional(&self, letter: u8) -> Option<&str> {
        let field = match letter {
            b'D' => &self.detail,
            b'H' => &self.hint,
            b'P' => &self.position,
            b'p' => &self.internal_position,
            b'q' => &self.internal_query,
            b'W' => &self.context,
            b's' => &self.schema,
            b't' => &self.table,
            b'c' => &self.column,
            b'd' => &self.data_type,
            b'n' => &self.constraint,
            b'F' => &self.file,
            b'L' => &self.line,
            b'R' => &self.routine,
            _ => return None,
        };
        field.as_deref()
    }

    fn optional_mut(&mut self, letter: u8) -> Option<&mut Option<String>> {
        Some(match letter {
            b'D' => &mut self.detail,
            b'H' => &mut self.hint,
            b'P' => &mut self.position,
            b'p' => &mut self.internal_position,
            b'q' => &mut self.internal_query,
            b'W' => &mut self.context,
            b's' => &mut self.schema,
            b't' => &mut self.table,
            b'c' => &mut self.column,
            b'd' => &mut self.data_type,
            b'n' => &mut self.constraint,
            b'F' => &mut self.file,
            b'L' => &mut self.line,
            b'R' => &mut self.routine,
            _ => return None,
        })
    }
}

/// Appends a field's letter and text.
pub(crate) fn put_field(out: &mut BytesMut, letter: u8, text: &str) {
    out.extend_from_slice(&[letter]);
    write::put_text(out, text);
}
