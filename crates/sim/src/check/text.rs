//! Histories as text, one transaction a line: for reports, for cases in tests, and to keep a history that failed.
//!
//! ```text
//! # process  status     invoked..completed   operations
//! p1         committed  10..20               append l1 5; read l1 [5]; write r2 7; read r2 7; read r3 nil
//! p2         aborted    12..30               insert t1 4; delete t1 4; scan t1 {1 2}
//! ```

use std::fmt::Write as _;

use thiserror::Error;

use super::history::{
    History, List, MalformedHistory, Operation, Process, Register, Row, Status, Table, Transaction, Value,
};

/// Why a text is not a history.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// A line does not have the form that the module's documentation shows.
    #[error("line {line}: cannot read `{text}`; expected {expected}")]
    Syntax {
        /// The line's number, from 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
    /// Every line can be read, but together they are no history.
    #[error(transparent)]
    Malformed(#[from] MalformedHistory),
}

/// Writes a history so that [`parse`] gives it back.
#[must_use]
pub fn write(history: &History) -> String {
    let mut text = String::new();
    for transaction in history.transactions() {
        let status = status_name(transaction.status);
        let (from, to) = (transaction.invoked_ns, transaction.completed_ns);
        // Writing to a String cannot fail.
        let _ = write!(text, "{} {status} {from}..{to}", transaction.process);
        for (place, step) in transaction.operations.iter().enumerate() {
            let _ = write!(text, "{} {}", if place == 0 { "" } else { ";" }, operation(step));
        }
        text.push('\n');
    }
    text
}

/// Reads a history; empty lines and what follows `#` are skipped.
///
/// # Errors
/// The first line that has another form, or what makes the whole no history.
pub fn parse(text: &str) -> Result<History, ParseError> {
    let mut transactions = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            transactions.push(parse_transaction(line).map_err(|(text, expected)| ParseError::Syntax {
                line: number + 1,
                text,
                expected,
            })?);
        }
    }
    Ok(History::new(transactions)?)
}

/// One operation as [`write`] writes it.
pub(super) fn operation(operation: &Operation) -> String {
    match operation {
        Operation::Append { list, value } => format!("append {list} {value}"),
        Operation::ReadList { list, values } => format!("read {list} [{}]", joined(values)),
        Operation::Write { register, value } => format!("write {register} {value}"),
        Operation::Read { register, value: Some(value) } => format!("read {register} {value}"),
        Operation::Read { register, value: None } => format!("read {register} nil"),
        Operation::Insert { table, row } => format!("insert {table} {row}"),
        Operation::Delete { table, row } => format!("delete {table} {row}"),
        Operation::Scan { table, rows } => format!("scan {table} {{{}}}", joined(rows)),
    }
}

/// One operation for a human: long reads show their end only.
pub(super) fn short_operation(step: &Operation) -> String {
    const SHOWN: usize = 12;
    match step {
        Operation::ReadList { list, values } if values.len() > SHOWN => {
            let hidden = values.len() - SHOWN;
            format!("read {list} [({hidden} more) {}]", joined(&values[hidden..]))
        }
        Operation::Scan { table, rows } if rows.len() > SHOWN => {
            let hidden = rows.len() - SHOWN;
            format!("scan {table} {{{} ({hidden} more)}}", joined(&rows[..SHOWN]))
        }
        _ => operation(step),
    }
}

/// The name of a status in text.
pub(super) fn status_name(status: Status) -> &'static str {
    match status {
        Status::Committed => "committed",
        Status::Aborted => "aborted",
        Status::Unknown => "unknown",
    }
}

fn joined<T: std::fmt::Display>(items: &[T]) -> String {
    let mut text = String::new();
    for (place, item) in items.iter().enumerate() {
        let _ = write!(text, "{}{item}", if place == 0 { "" } else { " " });
    }
    text
}

type Failure = (String, &'static str);

fn parse_transaction(line: &str) -> Result<Transaction, Failure> {
    let mut rest = line;
    // Columns may be aligned with several blanks.
    let mut next = || -> &str {
        let word_end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        rest = after.trim_start();
        word
    };
    let process = next();
    let number = process.strip_prefix('p').and_then(|digits| digits.parse().ok());
    let process = number.map(Process).ok_or((process.to_owned(), "a process such as p1"))?;
    let status = match next() {
        "committed" => Status::Committed,
        "aborted" => Status::Aborted,
        "unknown" => Status::Unknown,
        other => return Err((other.into(), "committed, aborted or unknown")),
    };
    let times = next();
    let expected_times = "times such as 10..20";
    let (from, to) = times.split_once("..").ok_or((times.to_owned(), expected_times))?;
    let time = |text: &str| text.parse::<u64>().map_err(|_| (times.to_owned(), expected_times));
    Ok(Transaction {
        process,
        invoked_ns: time(from)?,
        completed_ns: time(to)?,
        status,
        operations: rest
            .split(';')
            .map(str::trim)
            .filter(|step| !step.is_empty())
            .map(parse_operation)
            .collect::<Result<_, _>>()?,
    })
}

fn parse_operation(step: &str) -> Result<Operation, Failure> {
    let expected = "an operation such as `append l1 5`, `read l1 [5 6]`, `write r1 7`, `read r1 nil`, \
                    `insert t1 4`, `delete t1 4` or `scan t1 {1 2}`";
    let fail = || (step.to_owned(), expected);
    let (verb, rest) = step.split_once(' ').ok_or_else(fail)?;
    let (object, argument) = rest.trim().split_once(' ').ok_or_else(fail)?;
    let argument = argument.trim();
    let value = || argument.parse::<u64>().map_err(|_| fail());
    let list = || numbered(object, 'l', expected).map(List);
    let register = || numbered(object, 'r', expected).map(Register);
    let table = || numbered(object, 't', expected).map(Table);
    Ok(match verb {
        "append" => Operation::Append { list: list()?, value: Value(value()?) },
        "read" if object.starts_with('l') => Operation::ReadList {
            list: list()?,
            values: numbers(argument, '[', ']').ok_or_else(fail)?.into_iter().map(Value).collect(),
        },
        "write" => Operation::Write { register: register()?, value: Value(value()?) },
        "read" if argument == "nil" => Operation::Read { register: register()?, value: None },
        "read" => Operation::Read { register: register()?, value: Some(Value(value()?)) },
        "insert" => Operation::Insert { table: table()?, row: Row(value()?) },
        "delete" => Operation::Delete { table: table()?, row: Row(value()?) },
        "scan" => Operation::Scan {
            table: table()?,
            rows: numbers(argument, '{', '}').ok_or_else(fail)?.into_iter().map(Row).collect(),
        },
        _ => return Err(fail()),
    })
}

fn numbered(text: &str, prefix: char, expected: &'static str) -> Result<u64, Failure> {
    text.strip_prefix(prefix).and_then(|digits| digits.parse().ok()).ok_or((text.to_owned(), expected))
}

fn numbers(text: &str, open: char, close: char) -> Option<Vec<u64>> {
    text.strip_prefix(open)?.strip_suffix(close)?.split_whitespace().map(|word| word.parse().ok()).collect()
}
