//! The parameters of a statement, as PREPARE and EXECUTE of SQL need them.

use crate::lexer::{Scratch, TokenKind, normalise, tokens};

/// Puts something else in the place of every `$n` of a statement; `None` leaves it as it is.
#[must_use]
pub fn replace_params(
    sql: &str,
    scratch: &mut Scratch,
    mut replacement: impl FnMut(u32) -> Option<String>,
) -> String {
    let layout = normalise(sql, scratch).layout;
    let mut replaced = String::with_capacity(sql.len());
    let mut done = 0;
    for token in tokens(sql, layout).iter().filter(|token| token.kind == TokenKind::Param) {
        let text = sql.get(token.start..token.end).unwrap_or("");
        let number = text.get(1..).and_then(|digits| digits.parse().ok());
        if let Some(by) = number.and_then(&mut replacement) {
            replaced.push_str(sql.get(done..token.start).unwrap_or(""));
            // A space on either side keeps it apart from the words beside it.
            replaced.push(' ');
            replaced.push_str(&by);
            replaced.push(' ');
            done = token.end;
        }
    }
    replaced.push_str(sql.get(done..).unwrap_or(""));
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_where_they_are_parameters() {
        let sql = r#"SELECT $1, '$1', $tag$ $2 $tag$, a$1, "$2" -- $1
            FROM t WHERE b=$12AND c = $2"#;
        let by = |number: u32| (number != 2).then(|| format!("<{number}>"));
        let replaced = replace_params(sql, &mut Scratch::default(), by);
        let expected = r#"SELECT  <1> , '$1', $tag$ $2 $tag$, a$1, "$2" -- $1
            FROM t WHERE b= <12> AND c = $2"#;
        assert_eq!(replaced, expected);
    }
}
