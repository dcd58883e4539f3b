//! The exchange's messages: attributes, a letter and a value each, separated by commas.

use super::{MESSAGE_LEN_MAX, PEER_NONCE_LEN_MAX, ScramError};

/// A message's text, if it is not too long.
pub(super) fn text<'a>(data: &'a [u8], what: &'static str) -> Result<&'a str, ScramError> {
    if data.len() > MESSAGE_LEN_MAX {
        return Err(ScramError::TooLong { what, len: data.len(), max: MESSAGE_LEN_MAX });
    }
    std::str::from_utf8(data).map_err(|_| ScramError::Malformed { what })
}

/// The attributes of a message, taken in their fixed order.
pub(super) struct Attributes<'a> {
    rest: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    pub(super) fn of(text: &'a str) -> Attributes<'a> {
        Attributes { rest: Some(text) }
    }

    /// The value of the next attribute, which must have this letter.
    pub(super) fn take(&mut self, letter: char, what: &'static str) -> Result<&'a str, ScramError> {
        let (attribute, rest) = match self.rest {
            Some(text) => split(text),
            None => return Err(ScramError::Malformed { what }),
        };
        let value = attribute.strip_prefix(letter).and_then(|value| value.strip_prefix('='));
        self.rest = rest;
        value.ok_or(ScramError::Malformed { what })
    }

    /// Refuses an extension that its sender says must be understood.
    pub(super) fn no_mandatory_extension(&self) -> Result<(), ScramError> {
        match self.rest {
            Some(text) if text.starts_with("m=") => Err(ScramError::MandatoryExtension),
            _ => Ok(()),
        }
    }

    /// Accepts optional extensions, and nothing else.
    pub(super) fn finish(mut self, what: &'static str) -> Result<(), ScramError> {
        while let Some(text) = self.rest {
            let (attribute, rest) = split(text);
            let mut chars = attribute.chars();
            let letter = chars.next().is_some_and(|c| c.is_ascii_alphabetic());
            if !letter || chars.next() != Some('=') || chars.next().is_none() {
                return Err(ScramError::Malformed { what });
            }
            self.rest = rest;
        }
        Ok(())
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(',') {
        Some((attribute, rest)) => (attribute, Some(rest)),
        None => (text, None),
    }
}

/// Refuses a nonce that is empty, too long, or not made of printable ASCII characters.
pub(super) fn check_nonce(nonce: &str) -> Result<&str, ScramError> {
    if nonce.len() > PEER_NONCE_LEN_MAX {
        return Err(ScramError::TooLong { what: "nonce", len: nonce.len(), max: PEER_NONCE_LEN_MAX });
    }
    if nonce.is_empty() || !nonce.bytes().all(|c| (0x21..=0x7e).contains(&c) && c != b',') {
        return Err(ScramError::Malformed { what: "a nonce of printable characters" });
    }
    Ok(nonce)
}

/// A number of iterations: digits without a leading zero.
pub(super) fn parse_iterations(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|c| c.is_ascii_digit()) && !text.starts_with('0');
    digits.then(|| text.parse().ok())?
}

/// The same; a number that is too large to be held is the largest there is.
pub(super) fn parse_iterations_saturating(text: &str) -> Option<u32> {
    let first = text.bytes().next()?;
    let is_number = first != b'0' && text.bytes().all(|c| c.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u32::MAX))
}
