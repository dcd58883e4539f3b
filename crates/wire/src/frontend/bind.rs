//! Bind, the message that a proxy rewrites most: its names become the proxy's own, and values that must be equal
//! on every server (the time, random numbers, sequence numbers) are appended as parameters. What the client
//! sent is never decoded, only copied.

use bytes::BytesMut;

use crate::errors::{BuildError, Side, WireError};
use crate::frontend::tag;
use crate::read::Reader;
use crate::values::{Format, Formats, Values, check_format_count};
use crate::write;

const MESSAGE: &str = "Bind";

/// The contents of a Bind message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The new portal's name; empty for the unnamed one.
    pub portal: &'a str,
    /// The prepared statement's name; empty for the unnamed one.
    pub statement: &'a str,
    /// Formats of the parameters.
    pub param_formats: Formats<'a>,
    /// The parameters.
    pub params: Values<'a>,
    /// Formats in which the result's columns are wanted.
    pub result_formats: Formats<'a>,
}

impl<'a> Bind<'a> {
    /// Reads the body of a Bind message. All lengths in it are checked, but not whether formats exist: servers answer such an
    /// error as one of the statement, see [`Formats::unknown`].
    ///
    /// # Errors
    /// [`WireError::Client`] if it is not exactly one Bind.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Bind<'a>, WireError> {
        let mut reader = Reader::new(body, Side::Client, MESSAGE);
        let portal = reader.str("the portal's name")?;
        let statement = reader.str("the statement's name")?;
        let param_formats = Formats::read_any(&mut reader)?;
        let params = Values::read(&mut reader, "a parameter")?;
        check_format_count(&reader, MESSAGE, &param_formats, params.len())?;
        let result_formats = Formats::read_any(&mut reader)?;
        reader.finish()?;
        Ok(Bind { portal, statement, param_formats, params, result_formats })
    }

    /// Appends this Bind with other names and with further parameters in text format after its own.
    ///
    /// # Errors
    /// [`BuildError`] if the parameters become more than 65535, a name has a zero byte inside, or the message
    /// too long; `out` is unchanged then.
    pub fn rewrite(
        &self,
        portal: &str,
        statement: &str,
        extra_text_params: &[&[u8]],
        out: &mut BytesMut,
    ) -> Result<(), WireError> {
        out.reserve(32 + portal.len() + statement.len() + self.params.raw().len());
        write::frame(out, tag::BIND, MESSAGE, |out| {
            write::put_cstr(out, portal, MESSAGE, "the portal's name")?;
            write::put_cstr(out, statement, MESSAGE, "the statement's name")?;
            self.put_formats(out, extra_text_params.len());
            self.put_params(out, extra_text_params)?;
            put_codes(out, self.result_formats.raw(), 0);
            Ok(())
        })
    }

    /// The format codes that keep the meaning of the client's own parameters and say text for `extra` more.
    fn put_formats(&self, out: &mut BytesMut, extra: usize) {
        let codes = self.param_formats.raw();
        match (self.param_formats.len(), self.params.len()) {
            // No codes mean text for all, whatever their number; and nothing changes without extra ones.
            (0, _) => put_codes(out, codes, 0),
            _ if extra == 0 => put_codes(out, codes, 0),
            // One code that stands for all (or for none, or for the only one) has to be spelled out.
            (1, own) => match self.param_formats.of(0) {
                Format::Text => put_codes(out, &[], 0),
                Format::Binary => {
                    out.extend_from_slice(&((own + extra) as u16).to_be_bytes());
                    for _ in 0..own {
                        out.extend_from_slice(codes);
                    }
                    out.resize(out.len() + 2 * extra, 0);
                }
            },
            _ => put_codes(out, codes, extra),
        }
    }

    fn put_params(&self, out: &mut BytesMut, extra: &[&[u8]]) -> Result<(), BuildError> {
        let count = self.params.len() + extra.len();
        let sent = u16::try_from(count).map_err(|_| BuildError::Count {
            message: MESSAGE,
            field: "parameters",
            count,
        })?;
        out.extend_from_slice(&sent.to_be_bytes());
        out.extend_from_slice(self.params.raw());
        extra.iter().try_for_each(|value| write::put_value(out, Some(value), MESSAGE))
    }
}

/// [`Bind::rewrite`] of a body that was not decoded yet.
///
/// # Errors
/// Those of [`Bind::decode`] and [`Bind::rewrite`].
pub fn rewrite_bind(
    body: &[u8],
    new_portal: &str,
    new_statement: &str,
    extra_text_params: &[&[u8]],
    out: &mut BytesMut,
) -> Result<(), WireError> {
    Bind::decode(body)?.rewrite(new_portal, new_statement, extra_text_params, out)
}

/// A count, the codes' bytes, and `zeros` codes for text. The caller's counts fit 16 bits, or the parameters do
/// not either and the frame is given up.
fn put_codes(out: &mut BytesMut, codes: &[u8], zeros: usize) {
    out.extend_from_slice(&((codes.len() / 2 + zeros) as u16).to_be_bytes());
    out.extend_from_slice(codes);
    out.resize(out.len() + 2 * zeros, 0);
}
