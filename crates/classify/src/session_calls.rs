//! SELECT of nothing but calls that concern the session: advisory locks, notifications and settings. Whoever serves the
//! session carries them out, in the order in which they stand.

use crate::lexer::{Const, Layout, Position};
use crate::value::{integer, string_value};
use std::borrow::Cow;

/// A function that concerns the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionFunction {
    /// `pg_advisory_lock` and kin.
    Lock {
        /// In shared mode.
        shared: bool,
        /// It does not wait, and returns whether the lock was taken.
        try_only: bool,
        /// Until the end of the transaction, instead of that of the session.
        of_transaction: bool,
    },
    /// `pg_advisory_unlock` and kin.
    Unlock {
        /// In shared mode.
        shared: bool,
    },
    /// `pg_advisory_unlock_all`.
    UnlockAll,
    /// `pg_notify`.
    Notify,
    /// `set_config`.
    SetConfig,
    /// `current_setting`, beside `set_config` only.
    CurrentSetting,
}

impl SessionFunction {
    /// The built-in function of this name, if it is one and takes so many arguments.
    #[must_use]
    pub fn of(name: &str, arguments: usize) -> Option<SessionFunction> {
        use SessionFunction as F;
        let lock = |shared, try_only, of_transaction| F::Lock { shared, try_only, of_transaction };
        let (function, takes): (F, &[usize]) = match name {
            "pg_advisory_lock" => (lock(false, false, false), &[1, 2]),
            "pg_advisory_lock_shared" => (lock(true, false, false), &[1, 2]),
            "pg_advisory_xact_lock" => (lock(false, false, true), &[1, 2]),
            "pg_advisory_xact_lock_shared" => (lock(true, false, true), &[1, 2]),
            "pg_try_advisory_lock" => (lock(false, true, false), &[1, 2]),
            "pg_try_advisory_lock_shared" => (lock(true, true, false), &[1, 2]),
            "pg_try_advisory_xact_lock" => (lock(false, true, true), &[1, 2]),
            "pg_try_advisory_xact_lock_shared" => (lock(true, true, true), &[1, 2]),
            "pg_advisory_unlock" => (F::Unlock { shared: false }, &[1, 2]),
            "pg_advisory_unlock_shared" => (F::Unlock { shared: true }, &[1, 2]),
            "pg_advisory_unlock_all" => (F::UnlockAll, &[0]),
            "pg_notify" => (F::Notify, &[2]),
            "set_config" => (F::SetConfig, &[3]),
            "current_setting" => (F::CurrentSetting, &[1, 2]),
            _ => return None,
        };
        takes.contains(&arguments).then_some(function)
    }

    /// Whether it returns a boolean; else it returns void, or text if it concerns settings.
    #[must_use]
    pub fn returns_bool(self) -> bool {
        matches!(self, SessionFunction::Lock { try_only: true, .. } | SessionFunction::Unlock { .. })
    }
}

/// One call.
#[derive(Clone, PartialEq, Debug)]
pub struct SessionCall {
    /// What is called.
    pub function: SessionFunction,
    /// The name of its result column.
    pub column: String,
    /// Begin and end of each argument's text.
    pub(crate) arguments: Vec<(Position, Position)>,
}

/// Where the rows come from for each of which the calls are made: from FROM on to the statement's end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CallRows {
    pub(crate) start: Position,
    pub(crate) end: Position,
}

impl CallRows {
    /// The clauses' text in an execution of the class.
    #[must_use]
    pub fn text<'a>(&self, sql: &'a str, layout: Layout<'_>) -> &'a str {
        sql.get(layout.offset(self.start)..layout.offset(self.end)).unwrap_or("")
    }
}

/// An argument as far as its text shows it.
#[derive(Clone, PartialEq, Debug)]
pub enum Argument<'a> {
    /// NULL.
    Null,
    /// TRUE or FALSE.
    Bool(bool),
    /// A whole number without a cast.
    Integer(i64),
    /// A string constant of no type yet.
    Text(Cow<'a, str>),
    /// `$n`.
    Param(u32),
    /// Anything else: a server must evaluate it.
    Expression(&'a str),
}

impl SessionCall {
    /// How many arguments it has.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        self.arguments.len()
    }

    /// The arguments in an execution of the class.
    pub fn arguments<'a>(&self, sql: &'a str, layout: Layout<'a>) -> impl Iterator<Item = Argument<'a>> {
        self.arguments.iter().map(move |(start, end)| {
            let (start, end) = (layout.offset(*start), layout.offset(*end));
            argument(sql, layout.consts, start, end)
        })
    }

    /// The arguments' texts in an execution of the class.
    pub fn argument_texts<'a>(&self, sql: &'a str, layout: Layout<'a>) -> impl Iterator<Item = &'a str> {
        let text = move |(start, end): &(Position, Position)| {
            sql.get(layout.offset(*start)..layout.offset(*end)).unwrap_or("")
        };
        self.arguments.iter().map(text)
    }
}

fn argument<'a>(sql: &'a str, consts: &[Const], start: usize, end: usize) -> Argument<'a> {
    let text = sql.get(start..end).unwrap_or("").trim();
    if text.eq_ignore_ascii_case("null") {
        return Argument::Null;
    }
    if let Some(value) =
        [("true", true), ("false", false)].iter().find(|(word, _)| text.eq_ignore_ascii_case(word))
    {
        return Argument::Bool(value.1);
    }
    if let Some(number) = text.strip_prefix('$').and_then(|digits| digits.parse().ok()) {
        return Argument::Param(number);
    }
    if let Some(number) = integer(text) {
        return Argument::Integer(number);
    }
    let whole = consts.iter().find(|constant| {
        constant.kind.is_string() && constant.start as usize >= start && constant.text(sql) == text
    });
    match whole.and_then(|constant| string_value(sql, *constant)) {
        Some(value) => Argument::Text(value),
        None => Argument::Expression(text),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Catalogue, Context, Kind, Scratch, classify, normalise};

    /// The arguments of the calls in a statement; the class is that of another one.
    fn arguments(class_of: &str, sql: &str) -> String {
        let catalogue = Catalogue::default();
        let context = Context { catalogue: &catalogue, search_path: &["public".to_owned()], temporary: &[] };
        let (mut scratch, mut other) = (Scratch::default(), Scratch::default());
        let class = classify(class_of, &normalise(class_of, &mut scratch), &context);
        let normalised = normalise(sql, &mut other);
        assert_eq!(normalised.text, normalise(class_of, &mut scratch).text, "one class");
        let calls = match class.kind {
            Kind::SessionCalls(calls) => calls,
            Kind::SetConfig { calls, rows: None } => calls,
            other => panic!("{other:?}"),
        };
        let shown = calls.iter().flat_map(|call| call.arguments(sql, normalised.layout));
        shown.map(|argument| format!("{argument:?}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn arguments_are_those_of_the_execution_and_not_of_the_class() {
        let one = "SELECT pg_advisory_lock(1), pg_notify('a', 'b')";
        let other = "select  pg_advisory_lock ( 987654321 ) , pg_notify( 'it''s', /* , */ $$x$$ )";
        assert_eq!(arguments(one, one), r#"Integer(1) Text("a") Text("b")"#);
        assert_eq!(
            arguments("SELECT pg_advisory_lock ( 1 ) , pg_notify( 'a', 'b' )", other),
            r#"Integer(987654321) Text("it's") Text("x")"#
        );
    }

    #[test]
    fn what_is_no_constant_is_an_expression() {
        let sql =
            "SELECT pg_advisory_lock(-5, $2), pg_notify(NULL, lower('A'||f(1, 2))), pg_advisory_unlock_all()";
        assert_eq!(arguments(sql, sql), r#"Integer(-5) Param(2) Null Expression("lower('A'||f(1, 2))")"#);
    }

    #[test]
    fn settings_are_arguments_like_others() {
        let sql = "SELECT set_config('a.b', $1, FALSE), pg_catalog.set_config(lower('X.y'), NULL, $2)";
        let expected = r#"Text("a.b") Param(1) Bool(false) Expression("lower('X.y')") Null Param(2)"#;
        assert_eq!(arguments(sql, sql), expected);
    }

    #[test]
    fn settings_are_shown_only_beside_calls_that_set_some() {
        let sql = "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new, current_setting($1, true)";
        let expected = r#"Text("jit") Text("jit") Text("off") Bool(false) Param(1) Bool(true)"#;
        assert_eq!(arguments(sql, sql), expected);
        let catalogue = Catalogue::default();
        let context = Context { catalogue: &catalogue, search_path: &["public".to_owned()], temporary: &[] };
        for other in [
            "SELECT current_setting('jit')",
            "SELECT current_setting('jit'), pg_advisory_lock(1)",
            "SELECT current_setting('jit'), set_config('jit', 'off', false), pg_advisory_lock(1)",
            "SELECT current_setting(name), set_config(name, 'x', false) FROM pg_settings",
            "SELECT current_setting('jit'), set_config('jit', 'off', false) WHERE random() < 1",
        ] {
            let mut scratch = Scratch::default();
            let kind = classify(other, &normalise(other, &mut scratch), &context).kind;
            assert_eq!(kind, Kind::Select, "{other}");
        }
    }

    #[test]
    fn settings_may_come_from_a_query_that_calls_nothing_else() {
        let catalogue = Catalogue::default();
        let context = Context { catalogue: &catalogue, search_path: &["public".to_owned()], temporary: &[] };
        let from = |sql: &str| {
            let mut scratch = Scratch::default();
            let normalised = normalise(sql, &mut scratch);
            match classify(sql, &normalised, &context).kind {
                Kind::SetConfig { rows: Some(rows), .. } => {
                    Some(rows.text(sql, normalised.layout).to_owned())
                }
                _ => None,
            }
        };
        let of_pg_dump =
            "SELECT set_config(name, 'view', false) AS from_where FROM pg_settings WHERE name = 'x'; ";
        assert_eq!(from(of_pg_dump).as_deref(), Some("FROM pg_settings WHERE name = 'x'"));
        for refused in [
            "SELECT set_config(name, 'view', false) FROM pg_settings WHERE set_config('a', 'b', false) = ''",
            "SELECT set_config(name, upper('view'), false) FROM pg_settings",
            "SELECT DISTINCT set_config(name, 'view', false) FROM pg_settings",
            "SELECT set_config(name, 'view', false), 1 FROM pg_settings",
            "SELECT set_config(name, 'view', false) FROM pg_settings FOR UPDATE",
        ] {
            assert_eq!(from(refused), None, "{refused}");
        }
    }
}
