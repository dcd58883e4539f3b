//! Rewriting by byte splices: values frozen into the text, without printing a statement anew.
//!
//! Frozen are values that every replica must use alike: the time, and the numbers that sequences hand out. The
//! splices of a class fit every statement of it, since their places count from anchors.

use crate::lexer::{Layout, Position};
use std::fmt::Write as _;

/// The splices of a class and the values that they need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewrite {
    /// In order of their places; they do not overlap.
    pub splices: Vec<Splice>,
    /// What must be evaluated, once for an execution, in order.
    pub frozen: Vec<Frozen>,
}

/// One replacement of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Splice {
    /// Where the replaced text begins.
    pub from: Position,
    /// Where it ends; equal to `from` for a mere insertion.
    pub to: Position,
    /// What is put in its place.
    pub insert: Vec<Piece>,
}

/// A part of what a splice inserts.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// SQL text.
    Text(String),
    /// The value of `frozen[index]`, as a typed literal or parameter.
    Frozen(u32),
}

/// A value that is evaluated once and then stands in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Frozen {
    /// What it is.
    pub kind: FrozenKind,
    /// The type that it is cast to, as SQL writes it.
    pub type_name: String,
}

/// What a frozen value is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FrozenKind {
    /// The start of the transaction as a timestamptz (`now()`).
    TransactionTimestamp,
    /// The start of the statement's message as a timestamptz (`statement_timestamp()`).
    StatementTimestamp,
    /// The next value of a sequence.
    NextVal {
        /// The sequence's schema.
        schema: String,
        /// The sequence's name.
        name: String,
    },
    /// The value that this session last drew from a sequence; an error (55000) if it drew none.
    CurrVal {
        /// The sequence's schema.
        schema: String,
        /// The sequence's name.
        name: String,
    },
    /// The value that this session last drew from any sequence; an error (55000) if it drew none.
    LastVal,
}

/// The text form of a frozen value, as the type's input function reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrozenValue(pub String);

impl Rewrite {
    /// Whether the statement stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }

    /// The statement with frozen values as literals. `values` are those of `frozen`, in order; `sql` is the whole
    /// string, of which only the statement (up to `layout.end`) is returned.
    #[must_use]
    pub fn render_simple(&self, sql: &str, layout: Layout<'_>, values: &[FrozenValue]) -> String {
        self.render(sql, layout, |out, index| {
            let value = values.get(index as usize).map_or("", |v| v.0.as_str());
            push_literal(out, value);
        })
    }

    /// The statement with frozen values as parameters `$k` after its own `params_max`: `frozen[i]` is
    /// `$(params_max + 1 + i)`, of unspecified type, in text format.
    #[must_use]
    pub fn render_extended(&self, sql: &str, layout: Layout<'_>, params_max: u32) -> String {
        self.render(sql, layout, |out, index| {
            // Writing to a String cannot fail.
            let _ = write!(out, "${}", u64::from(params_max) + 1 + u64::from(index));
        })
    }

    fn render(&self, sql: &str, layout: Layout<'_>, mut value: impl FnMut(&mut String, u32)) -> String {
        let mut out = String::with_capacity(sql.len() + 64 * self.splices.len());
        let mut at = 0;
        for splice in &self.splices {
            let (from, to) = (layout.offset(splice.from), layout.offset(splice.to));
            out.push_str(sql.get(at..from).unwrap_or(""));
            for piece in &splice.insert {
                match piece {
                    Piece::Text(text) => out.push_str(text),
                    Piece::Frozen(index) => {
                        let type_name =
                            self.frozen.get(*index as usize).map_or("text", |f| f.type_name.as_str());
                        value(&mut out, *index);
                        out.push_str("::");
                        out.push_str(type_name);
                    }
                }
            }
            at = to.max(at);
        }
        out.push_str(sql.get(at..layout.end as usize).unwrap_or(""));
        out
    }
}

/// A string literal that means the same whatever `standard_conforming_strings` is.
pub(crate) fn push_literal(out: &mut String, value: &str) {
    if value.contains('\\') {
        out.push('E');
    }
    out.push('\'');
    for c in value.chars() {
        match c {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            c => out.push(c),
        }
    }
    out.push('\'');
}

/// An identifier in quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A qualified name in quotes.
pub(crate) fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(name))
}

/// The parts of a name as a regclass literal writes it (`public."S"`), folded; None if it is no name.
pub(crate) fn identifier_parts(text: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut part = String::new();
            let mut chars = quoted.char_indices().peekable();
            let end = loop {
                let (i, c) = chars.next()?;
                match c {
                    '"' if chars.next_if(|(_, next)| *next == '"').is_some() => part.push('"'),
                    '"' => break i + 1,
                    c => part.push(c),
                }
            };
            parts.push(part);
            rest = quoted.get(end..)?;
        } else {
            let end = rest.find(|c: char| c == '.' || c.is_whitespace() || c == '"').unwrap_or(rest.len());
            let part = rest.get(..end)?;
            let plain = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
            if part.is_empty() || part.starts_with(|c: char| c.is_ascii_digit()) || !part.chars().all(plain) {
                return None;
            }
            parts.push(part.to_ascii_lowercase());
            rest = rest.get(end..)?;
        }
        rest = rest.trim_start();
        match rest.strip_prefix('.') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => return Some(parts),
            None => return None,
        }
    }
}
