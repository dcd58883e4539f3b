//! Many executions of one simple statement as one statement, by which a replica applies what others executed.
//!
//! `UPDATE t SET a = a + $1 WHERE id = $2` becomes `UPDATE t SET a = a + v.p1 FROM unnest($1::int4[], $2::int4[])
//! AS v (p1, p2) WHERE id = v.p2`, and stands for as many executions as the arrays have elements. It is the same only if
//! no two of them meet in a row: whoever puts them together must see to that by their items. Which statements have such
//! a form at all, [`crate::Class::bulk`] tells.

use crate::lexer::{Scratch, Token, TokenKind, normalise, tokens};

/// The name under which the arrays' elements are found.
const ROWS: &str = "onecopy_rows";
/// The column with the number of an execution, from 1.
const NUMBER: &str = "onecopy_n";
/// What the numbers of rows are called when they are other than expected: the server raises an error that shows it.
const OTHER_ROWS: &str = "other numbers of rows than at the home";

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
        let (arrays, columns) = arrays(types);
        format!("{before} {keyword} unnest({arrays}) AS {ROWS} ({columns}) {after}")
    }

    /// The same, but it fails unless each execution affects as many rows as are expected. These are one more parameter, an
    /// array of pairs of an execution's number, from 1, and of its rows, for those that affect any; NULL for none at all.
    /// None for an INSERT, of which every execution adds a row or fails.
    #[must_use]
    pub fn counted_with_types(&self, types: &[&str]) -> Option<String> {
        let BulkText { before, keyword, after } = self;
        if after.is_empty() {
            return None;
        }
        let (arrays, columns) = arrays(types);
        let expected = types.len() + 1;
        // Made of what was found, lest the planner computes it ahead.
        Some(format!(
            "WITH onecopy_done AS ({before} {keyword} unnest({arrays}) WITH ORDINALITY AS {ROWS} ({columns}, {NUMBER}) {after} \
             RETURNING {ROWS}.{NUMBER}) \
             SELECT CASE WHEN c.found IS NOT DISTINCT FROM ${expected}::pg_catalog.int8[] THEN 1 \
             ELSE ('{OTHER_ROWS}: ' || coalesce(c.found::pg_catalog.text, '{{}}'))::pg_catalog.int4 END \
             FROM (SELECT pg_catalog.array_agg(ARRAY[e.n, e.affected] ORDER BY e.n) AS found \
             FROM (SELECT {NUMBER} AS n, pg_catalog.count(*) AS affected FROM onecopy_done GROUP BY 1) e) c"
        ))
    }
}

/// The arrays of the parameters, and the names of their elements.
fn arrays(types: &[&str]) -> (String, String) {
    let arrays = types.iter().enumerate().map(|(i, name)| format!("${}::{name}[]", i + 1));
    let columns = (1..=types.len()).map(|number| format!("onecopy_p{number}"));
    (arrays.collect::<Vec<_>>().join(", "), columns.collect::<Vec<_>>().join(", "))
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
    fn counted_form_returns_the_executions_numbers() {
        let counted =
            |sql: &str| BulkText::of(sql, &mut Scratch::default()).unwrap().counted_with_types(&["int4"]);
        let delete = counted("DELETE FROM t WHERE a = $1").unwrap();
        assert!(
            delete.starts_with(
                "WITH onecopy_done AS (DELETE FROM t  USING unnest($1::int4[]) WITH ORDINALITY AS \
                 onecopy_rows (onecopy_p1, onecopy_n) WHERE a =  onecopy_rows.onecopy_p1  \
                 RETURNING onecopy_rows.onecopy_n) SELECT CASE WHEN c.found IS NOT DISTINCT FROM $2::pg_catalog.int8[]"
            ),
            "{delete}"
        );
        assert_eq!(counted("INSERT INTO t VALUES ($1)"), None);
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
