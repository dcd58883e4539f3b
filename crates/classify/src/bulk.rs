//! Many executions of one simple statement as one statement, by which a replica applies what others executed.
//!
//! `UPDATE t SET a = a + $1 WHERE id = $2` becomes `UPDATE t SET a = a + v.p1 FROM unnest($1::int4[], $2::int4[])
//! AS v (p1, p2) WHERE id = v.p2`, and stands for as many executions as the arrays have elements. It is the same only if
//! no two of them meet in a row: whoever puts them together must see to that by their items. Which statements have such
//! a form at all, [`crate::Class::bulk`] tells.

use crate::lexer::{Scratch, Token, TokenKind, normalise, tokens};

/// The name under which the arrays' elements are found.
const ROWS: &str = "onecopy_rows";

/// A statement's text, ready to be executed for many at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkText {
    before: String,
    /// `FROM` or `USING`.
    keyword: &'static str,
    after: String,
}

impl BulkText {
    /// Takes apart a statement with parameters, of a class that [`crate::Class::bulk`] allows.
    #[must_use]
    pub fn of(sql: &str, scratch: &mut Scratch) -> Option<BulkText> {
        let tokens = tokens(sql, normalise(sql, scratch).layout);
        let first = tokens.first()?;
        let word = |token: &Token| sql.get(token.start..token.end).unwrap_or("").to_ascii_lowercase();
        let mut depth = 0_i32;
        let mut outer: Vec<usize> = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            match token.kind {
                TokenKind::Byte(b'(' | b'[') => depth += 1,
                TokenKind::Byte(b')' | b']') => depth -= 1,
                TokenKind::Word if depth == 0 => outer.push(index),
                _ => {}
            }
        }
        match word(first).as_str() {
            verb @ ("update" | "delete") => {
                let at = outer.into_iter().rev().find(|index| word(&tokens[*index]) == "where")?;
                let split = tokens[at].start;
                Some(BulkText {
                    before: replaced(sql, &tokens[..at], 0, split)?,
                    keyword: if verb == "update" { "FROM" } else { "USING" },
                    after: replaced(sql, &tokens[at..], split, tokens.last()?.end)?,
                })
            }
            "insert" => {
                let at = outer.into_iter().rev().find(|index| word(&tokens[*index]) == "values")?;
                let (open, close) = (tokens.get(at + 1)?, tokens.last()?);
                if (open.kind, close.kind) != (TokenKind::Byte(b'('), TokenKind::Byte(b')')) {
                    return None;
                }
                let head = replaced(sql, &tokens[..at], 0, tokens[at].start)?;
                let values = replaced(sql, &tokens[at + 2..tokens.len() - 1], open.end, close.start)?;
                Some(BulkText {
                    before: format!("{head}SELECT {values}"),
                    keyword: "FROM",
                    after: String::new(),
                })
            }
            _ => None,
        }
    }

    /// The statement whose parameters are arrays of these types, one for each parameter of the plain statement.
    #[must_use]
    pub fn with_types(&self, types: &[&str]) -> String {
        let BulkText { before, keyword, after } = self;
        let arrays: Vec<String> =
            types.iter().enumerate().map(|(i, name)| format!("${}::{name}[]", i + 1)).collect();
        let columns: Vec<String> = (1..=types.len()).map(|number| format!("onecopy_p{number}")).collect();
        let (arrays, columns) = (arrays.join(", "), columns.join(", "));
        format!("{before} {keyword} unnest({arrays}) AS {ROWS} ({columns}) {after}")
    }
}

/// The text between two offsets with its parameters as columns of the arrays' rows.
fn replaced(sql: &str, tokens: &[Token], from: usize, to: usize) -> Option<String> {
    let mut text = String::new();
    let mut done = from;
    for token in tokens.iter().filter(|token| token.kind == TokenKind::Param) {
        let number = sql.get(token.start + 1..token.end)?;
        text.push_str(sql.get(done..token.start)?);
        text.push_str(&format!(" {ROWS}.onecopy_p{number} "));
        done = token.end;
    }
    text.push_str(sql.get(done..to)?);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(sql: &str, types: &[&str]) -> Option<String> {
        let text = BulkText::of(sql, &mut Scratch::default())?.with_types(types);
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn parameters_become_columns_of_the_arrays() {
        assert_eq!(
            bulk("UPDATE t SET a = a + -$1, b = '$2' /* $1 */ WHERE id = $2", &["int4", "int8"]).unwrap(),
            "UPDATE t SET a = a + - onecopy_rows.onecopy_p1 , b = '$2' /* $1 */ FROM unnest($1::int4[], $2::int8[]) \
             AS onecopy_rows (onecopy_p1, onecopy_p2) WHERE id = onecopy_rows.onecopy_p2"
        );
        assert_eq!(
            bulk("delete from only t as x where x.id=$1", &["uuid"]).unwrap(),
            "delete from only t as x USING unnest($1::uuid[]) AS onecopy_rows (onecopy_p1) where x.id= onecopy_rows.onecopy_p1"
        );
        assert_eq!(
            bulk("INSERT INTO values (a, b) VALUES ($1, ($2::date))", &["int4", "text"]).unwrap(),
            "INSERT INTO values (a, b) SELECT onecopy_rows.onecopy_p1 , ( onecopy_rows.onecopy_p2 ::date) \
             FROM unnest($1::int4[], $2::text[]) AS onecopy_rows (onecopy_p1, onecopy_p2)"
        );
    }

    #[test]
    fn other_statements_have_no_such_form() {
        for sql in [
            "UPDATE t SET a = $1",
            "SELECT $1",
            "INSERT INTO t VALUES ($1) RETURNING a",
            "",
            "INSERT INTO t DEFAULT VALUES",
        ] {
            assert_eq!(bulk(sql, &["int4"]), None, "{sql}");
        }
    }
}
