//! Statements as the workloads write them, and answers as they read them: everything in its text form, so that an
//! answer is the same whichever protocol brought it.

use std::fmt::Write as _;

use bytes::BytesMut;
use onecopy_sim::check::Operation;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

/// One statement of a transaction, with what it means for the history.
pub(super) struct Step {
    /// With parameters `$1` to `$9`; each is cast where its type does not show.
    pub(super) sql: &'static str,
    pub(super) params: Vec<Param>,
    /// What the statement writes if it takes effect: all that is known when no answer came.
    pub(super) writes: Vec<Operation>,
    meaning: Meaning,
}

/// What an answer says was read and written, or why it cannot be an answer to this statement.
type Meaning = Box<dyn Fn(&Answer) -> Result<Vec<Operation>, String> + Send + Sync>;

impl Step {
    pub(super) fn new(
        sql: &'static str,
        params: &[i64],
        writes: Vec<Operation>,
        meaning: impl Fn(&Answer) -> Result<Vec<Operation>, String> + Send + Sync + 'static,
    ) -> Step {
        let params = params.iter().map(|&int| Param(int.to_string())).collect();
        Step { sql, params, writes, meaning: Box::new(meaning) }
    }

    /// A statement that must change exactly one row and returns nothing.
    pub(super) fn write(sql: &'static str, params: &[i64], write: Operation) -> Step {
        Step::new(sql, params, vec![write.clone()], move |answer| {
            answer.must_change(1)?;
            Ok(vec![write.clone()])
        })
    }

    pub(super) fn meaning(&self, answer: &Answer) -> Result<Vec<Operation>, String> {
        (self.meaning)(answer).map_err(|why| format!("{why}: {} gave {answer:?}", self.with_literals()))
    }

    /// The statement for the simple query protocol.
    pub(super) fn with_literals(&self) -> String {
        with_literals(self.sql, &self.params)
    }
}

/// An integer parameter, in its text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Param(pub(super) String);

impl ToSql for Param {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Puts integers in the places of parameters; negative ones in parentheses, since `-` before them would begin a
/// comment.
fn with_literals(sql: &str, params: &[Param]) -> String {
    let mut text = String::with_capacity(sql.len() + 16);
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        let digit = rest.as_bytes().get(at + 1).copied().unwrap_or_default();
        text.push_str(&rest[..at]);
        match digit.checked_sub(b'1').and_then(|place| params.get(usize::from(place))) {
            Some(Param(int)) => {
                // Writing to a String cannot fail.
                let _ = if int.starts_with('-') { write!(text, "({int})") } else { write!(text, "{int}") };
                rest = &rest[at + 2..];
            }
            None => {
                text.push('$');
                rest = &rest[at + 1..];
            }
        }
    }
    text + rest
}

/// What came back from one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// Cells in text form, `None` for NULL.
    pub(super) rows: Vec<Vec<Option<String>>>,
    /// The number in the command tag.
    pub(super) count: u64,
}

impl Answer {
    /// The answers of a string of statements, in order; statements without a result have an empty one.
    pub(super) fn of_messages(messages: Vec<SimpleQueryMessage>) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut rows = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
                }
                SimpleQueryMessage::CommandComplete(count) => {
                    answers.push(Answer { rows: std::mem::take(&mut rows), count });
                }
                _ => {}
            }
        }
        answers
    }

    pub(super) fn must_change(&self, count: u64) -> Result<(), String> {
        if self.count == count {
            Ok(())
        } else {
            Err(format!("{count} rows expected, {} changed", self.count))
        }
    }

    /// The integer in a cell; NULL is an error.
    pub(super) fn int(&self, row: usize, column: usize) -> Result<i64, String> {
        self.int_or_null(row, column)?.ok_or_else(|| format!("row {row}, column {column} is NULL"))
    }

    pub(super) fn int_or_null(&self, row: usize, column: usize) -> Result<Option<i64>, String> {
        let cell = self.cell(row, column)?;
        cell.map(|text| text.parse().map_err(|_| format!("{text:?} is no integer"))).transpose()
    }

    /// A cell in text form.
    pub(super) fn cell(&self, row: usize, column: usize) -> Result<Option<&str>, String> {
        let cell = self.rows.get(row).and_then(|cells| cells.get(column));
        cell.map(Option::as_deref).ok_or_else(|| format!("there is no row {row}, column {column}"))
    }

    /// A cell that must not be NULL.
    pub(super) fn text(&self, row: usize, column: usize) -> Result<&str, String> {
        self.cell(row, column)?.ok_or_else(|| format!("row {row}, column {column} is NULL"))
    }

    /// The integers of an array `{1,2}` or of a text `1 2`.
    pub(super) fn ints(&self, row: usize, column: usize) -> Result<Vec<i64>, String> {
        let text = self.text(row, column)?;
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let words = inner.split([',', ' ']).filter(|word| !word.is_empty());
        words.map(|word| word.parse().map_err(|_| format!("{text:?} is no list of integers"))).collect()
    }
}

/// A cell of a binary result, turned into text.
pub(super) struct Cell(pub(super) Option<String>);

impl<'a> FromSql<'a> for Cell {
    fn from_sql(column: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let text = match *column {
            Type::INT2 => i16::from_sql(column, raw)?.to_string(),
            Type::INT4 => i32::from_sql(column, raw)?.to_string(),
            Type::INT8 => i64::from_sql(column, raw)?.to_string(),
            Type::BOOL => if bool::from_sql(column, raw)? { "t" } else { "f" }.to_owned(),
            Type::INT8_ARRAY => {
                let ints: Vec<String> =
                    Vec::<i64>::from_sql(column, raw)?.iter().map(ToString::to_string).collect();
                format!("{{{}}}", ints.join(","))
            }
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => String::from_sql(column, raw)?,
            _ => return Err(format!("the workloads do not read {column}: cast it to text").into()),
        };
        Ok(Cell(Some(text)))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Cell(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_take_the_places_of_parameters() {
        let params = ["1", "-2"].map(|int| Param(int.to_owned()));
        assert_eq!(with_literals("$1-$2 and '$' || $3", &params), "1-(-2) and '$' || $3");
    }

    #[test]
    fn lists_are_read_from_arrays_and_texts() {
        let answer = |text: &str| Answer { rows: vec![vec![Some(text.to_owned())]], count: 1 };
        for text in ["{4,5}", "4 5", " 4 5 "] {
            assert_eq!(answer(text).ints(0, 0), Ok(vec![4, 5]));
        }
        for text in ["{}", ""] {
            assert_eq!(answer(text).ints(0, 0), Ok(vec![]));
        }
        assert!(answer("{x}").ints(0, 0).is_err());
        assert!(answer("{}").ints(1, 0).is_err());
    }
}
