//! References of a statement to what earlier statements of its transaction have returned: `:name`, as in psql.
//!
//! In a transaction that comes whole its client cannot put values of earlier results into later statements, so it names the
//! column. A colon that is part of `::`, of `:=` or of a quoted name or constant, or stands before anything but a letter, refers to nothing.

use std::ops::Range;

use crate::lexer::Const;

/// One reference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Where it stands, with its colon.
    pub at: Range<usize>,
    /// The name of a column, in lower case.
    pub name: String,
}

/// The references of a statement whose constants stand there, in order.
#[must_use]
pub fn references(sql: &str, consts: &[Const]) -> Vec<Reference> {
    let bytes = sql.as_bytes();
    let mut consts = consts.iter().map(|constant| constant.start as usize..constant.end as usize).peekable();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(constant) = consts.next_if(|constant| constant.start <= at) {
            at = at.max(constant.end);
            continue;
        }
        let rest = &bytes[at..];
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        at += match rest {
            [b'-', b'-', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => comment_len(rest),
            [b'"', name @ ..] => name.iter().position(|byte| *byte == b'"').map_or(rest.len(), |len| len + 2),
            [b':', b':' | b'=', ..] => 2,
            [b':', first, ..] if first.is_ascii_alphabetic() || *first == b'_' => {
                let len = 1 + rest[1..].iter().take_while(|byte| is_name(byte)).count();
                let name = sql[at + 1..at + len].to_ascii_lowercase();
                found.push(Reference { at: at..at + len, name });
                len
            }
            // What a name or a number goes on with is none of its own.
            [first, ..] if is_name(first) => rest.iter().take_while(|byte| is_name(byte)).count(),
            _ => 1,
        };
    }
    found
}

/// Comments nest.
fn comment_len(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

/// The statement with something else in the place of its references.
#[must_use]
pub fn replace(sql: &str, references: &[Reference], with: impl Fn(usize, &Reference) -> String) -> String {
    let mut replaced = String::with_capacity(sql.len());
    let mut end = 0;
    for (number, reference) in references.iter().enumerate() {
        replaced.push_str(&sql[end..reference.at.start]);
        replaced.push_str(&with(number, reference));
        end = reference.at.end;
    }
    replaced.push_str(&sql[end..]);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::{Scratch, normalise};

    fn names(sql: &str) -> Vec<String> {
        let mut scratch = Scratch::default();
        let normalised = normalise(sql, &mut scratch);
        references(sql, normalised.layout.consts).into_iter().map(|reference| reference.name).collect()
    }

    #[test]
    fn names_behind_a_colon_are_references_and_nothing_else_is() {
        for (sql, expected) in [
            ("SELECT :a + :B_1", &["a", "b_1"][..]),
            ("SELECT ':a', E'\\':b', $$:c$$, \":d\", '1'::int, x[1:2]", &[]),
            ("SELECT 1 -- :a\n, :b", &["b"]),
            ("SELECT /* :a /* :b */ :c */ :d", &["d"]),
            ("SELECT f(a := 1), f(b => :x)", &["x"]),
            ("SELECT a::text || :b::text", &["b"]),
            ("SELECT :a:b", &["a", "b"]),
            ("INSERT INTO t VALUES (:a,'it''s :b',:c)", &["a", "c"]),
            ("SELECT x[:low : :high]", &["low", "high"]),
            ("SELECT : a, :1, :", &[]),
            ("SELECT \"a\"\":b\", :c", &["c"]),
            ("SELECT '::', :ä, :a", &["a"]),
        ] {
            assert_eq!(names(sql), expected, "{sql}");
        }
    }

    #[test]
    fn references_are_replaced_and_all_else_stays() {
        let sql = "UPDATE t SET a = :x + 1, b = ':x' WHERE c = :Y";
        let mut scratch = Scratch::default();
        let found = references(sql, normalise(sql, &mut scratch).layout.consts);
        let replaced = replace(sql, &found, |number, reference| format!("<{number} {}>", reference.name));
        assert_eq!(replaced, "UPDATE t SET a = <0 x> + 1, b = ':x' WHERE c = <1 y>");
    }
}
