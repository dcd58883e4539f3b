//! What the body of a commit in the log says, for people who look at a log.

use bytes::{Buf, Bytes};

use crate::record::{Record, What};

pub use crate::record::{BadRecord, Origin};

/// What one transaction wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Writes {
    /// Which commit of which session it is; unknown of sessions that no front carries.
    pub origin: Option<Origin>,
    /// The role that wrote; empty for onecopy itself.
    pub user: String,
    /// Names and values of the settings under which it wrote.
    pub settings: Vec<(String, String)>,
    /// In the order of execution.
    pub statements: Vec<Statement>,
}

/// One statement, or the rows that one changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Its text.
    pub text: String,
    /// What its parameters are, in their order.
    pub parameters: Vec<Parameter>,
    /// Bytes of the data of a COPY; `None` if it is none.
    pub copied_bytes: Option<u64>,
    /// Rows that it must affect, where that is known.
    pub rows: Option<u64>,
    /// Whether it writes rows that were captured, with triggers off.
    pub captured: bool,
}

/// The value of a parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// NULL.
    Null,
    /// In the text format; bytes that are no UTF-8 are replaced.
    Text(String),
    /// In the binary format of its type.
    Binary(Bytes),
}

/// Reads the whole body of a commit. One without any byte is a commit without writes.
///
/// # Errors
/// When it is not of this program's format.
pub fn read(body: Bytes) -> Result<Writes, BadRecord> {
    let record = Record::decode(body)?;
    let statement = |write: crate::record::Write| {
        let (text, parameters, copied_bytes) = match write.what {
            What::Text(sql) => (sql, Vec::new(), None),
            What::Prepared { sql, bind, .. } => (sql.to_string(), parameters(bind)?, None),
            What::Copy { sql, data } => {
                (sql, Vec::new(), Some(data.iter().map(|piece| piece.len() as u64).sum()))
            }
        };
        Ok(Statement { text, parameters, copied_bytes, rows: write.rows, captured: write.captured })
    };
    Ok(Writes {
        origin: record.origin,
        user: record.user,
        settings: record.settings.to_vec(),
        statements: record.writes.into_iter().map(statement).collect::<Result<_, _>>()?,
    })
}

/// The parameters in what follows the two names in a Bind message: formats (none: all text; one: all of it), values.
fn parameters(mut bind: Bytes) -> Result<Vec<Parameter>, BadRecord> {
    const SHORT: BadRecord = BadRecord("the parameters of a statement end too early");
    let short = |_| SHORT;
    let formats_len = bind.try_get_u16().map_err(short)?;
    let formats: Vec<u16> =
        (0..formats_len).map(|_| bind.try_get_u16()).collect::<Result<_, _>>().map_err(short)?;
    let len = bind.try_get_u16().map_err(short)?;
    let is_binary = |nth: usize| match formats[..] {
        [] => false,
        [all] => all == 1,
        _ => formats.get(nth) == Some(&1),
    };
    let value = |nth: u16| {
        let len = bind.try_get_i32().map_err(short)?;
        let Ok(len) = usize::try_from(len) else { return Ok(Parameter::Null) };
        if bind.remaining() < len {
            return Err(SHORT);
        }
        let bytes = bind.split_to(len);
        Ok(if is_binary(usize::from(nth)) {
            Parameter::Binary(bytes)
        } else {
            Parameter::Text(String::from_utf8_lossy(&bytes).into_owned())
        })
    };
    (0..len).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Write;

    fn prepared(bind: &'static [u8]) -> Bytes {
        let write = Write {
            rows: Some(3),
            captured: true,
            ..Write::new(What::prepared("DELETE FROM t WHERE a = $1", &[23], Bytes::from_static(bind)))
        };
        let copy = What::Copy { sql: "COPY t FROM STDIN".into(), data: vec![Bytes::from_static(b"1\n2\n")] };
        let settings = [("TimeZone".to_owned(), "UTC".to_owned())].into();
        let origin = Some(Origin { session: [7; 16], number: 3 });
        Record { origin, user: "shop".into(), settings, writes: vec![write, Write::new(copy)] }.encode()
    }

    #[test]
    fn statements_come_with_their_parameters_in_either_format() {
        let bind = b"\0\x03\0\0\0\x01\0\0\0\x03\0\0\0\x027\xff\0\0\0\x02\0\x07\xff\xff\xff\xff\0\0";
        let writes = read(prepared(bind)).unwrap();
        let delete = Statement {
            text: "DELETE FROM t WHERE a = $1".into(),
            parameters: vec![
                Parameter::Text("7\u{fffd}".into()),
                Parameter::Binary(Bytes::from_static(&[0, 7])),
                Parameter::Null,
            ],
            copied_bytes: None,
            rows: Some(3),
            captured: true,
        };
        let copy = Statement {
            text: "COPY t FROM STDIN".into(),
            parameters: Vec::new(),
            copied_bytes: Some(4),
            rows: None,
            captured: false,
        };
        assert_eq!(writes.origin, Some(Origin { session: [7; 16], number: 3 }));
        assert_eq!(writes.user, "shop");
        assert_eq!(writes.settings, [("TimeZone".to_owned(), "UTC".to_owned())]);
        assert_eq!(writes.statements, [delete, copy]);
    }

    #[test]
    fn parameters_that_end_too_early_are_an_error() {
        let bind: &[u8] = b"\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x07";
        for len in 0..bind.len() {
            assert!(parameters(Bytes::copy_from_slice(&bind[..len])).is_err(), "cut at {len}");
        }
        assert_eq!(parameters(Bytes::copy_from_slice(bind)).unwrap().len(), 1);
    }

    #[test]
    fn an_empty_body_is_a_commit_without_writes() {
        let writes = read(Bytes::new()).unwrap();
        assert_eq!((writes.origin, writes.user.as_str()), (None, ""));
        assert!(writes.settings.is_empty() && writes.statements.is_empty());
    }
}
