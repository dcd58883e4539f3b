//! Whether rows that were captured say all that is in them, in the form in which the client's settings and formats give
//! them.
//!
//! They come as a part of the client's own answer, so they look as it asked for. Most settings do no harm, since the record
//! carries them; but a style of dates that abbreviates time zones (`CST`) or years, and floats that were rounded for the
//! eye, cannot be read back. Values in binary form hold the OIDs of users' types, which differ between servers.

use bytes::Bytes;
use onecopy_classify::name_types::shows_number;
use onecopy_classify::{CaptureColumn, CaptureOp, CapturePlan};
use onecopy_wire::Format;

use super::calls::boolean;
use crate::errors::Failure;

/// Types whose text and binary form is the same under all settings and on all servers.
const PLAIN: &[&str] = &[
    "smallint",
    "integer",
    "bigint",
    "boolean",
    "text",
    "character varying",
    "character",
    "name",
    "uuid",
    "numeric",
    "bytea",
    "json",
    "jsonb",
    "bit",
    "bit varying",
    "inet",
    "cidr",
    "macaddr",
    "oid",
];
const FLOATS: &[&str] = &["real", "double precision"];
/// Built-in types of which one style or another says too little.
const DATES: &[&str] = &[
    "date",
    "interval",
    "money",
    "time without time zone",
    "time with time zone",
    "timestamp without time zone",
    "timestamp with time zone",
];

/// Of whose values the binary form is the same on all servers.
const BINARY: &[&[&str]] = &[PLAIN, FLOATS, DATES];

/// Whether a type is in one of the lists, arrays by their elements.
fn is_of(lists: &[&[&str]], type_name: &str) -> bool {
    let base = type_name.trim_end_matches("[]");
    let (bare, rest) = base.split_once('(').map_or((base, ""), |(bare, rest)| (bare, rest));
    let after = rest.split_once(')').map_or("", |(_, after)| after);
    let plain = format!("{bare}{after}");
    lists.iter().any(|list| list.contains(&plain.as_str()))
}

/// The first column of a type in none of the lists.
fn other<'p>(plan: &'p CapturePlan, lists: &[&[&str]]) -> Option<&'p CaptureColumn> {
    plan.columns.iter().find(|column| !is_of(lists, &column.type_name))
}

/// Whether a column's binary form cannot be read back, so that it must come as text.
pub fn needs_text(plan: &CapturePlan) -> bool {
    other(plan, BINARY).is_some()
}

/// Why captured rows cannot be shipped as they are.
pub fn loss(plan: &CapturePlan, format: Format, settings: &[(String, String)]) -> Option<Failure> {
    let value = |name: &str| {
        settings.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    };
    let failure = |column: &CaptureColumn, what: &str, hint: &str| {
        let reason = format!(
            "the rows of the statement have to be shipped ({}), and {what} of column {} cannot be read back",
            plan.reason, column.name
        );
        Failure::unsupported(reason, hint)
    };
    if format == Format::Binary {
        let column = other(plan, BINARY)?;
        return Some(failure(column, "the binary form", "Ask for results in text format."));
    }
    let style = value("DateStyle").unwrap_or("ISO").to_ascii_lowercase();
    if ["postgres", "sql", "german"].iter().any(|lossy| style.contains(lossy))
        && let Some(column) = other(plan, &[PLAIN, FLOATS])
    {
        return Some(failure(column, "the DateStyle", "SET DateStyle = 'ISO' before it."));
    }
    let digits = value("extra_float_digits").and_then(|digits| digits.trim().parse::<i32>().ok());
    if digits.is_some_and(|digits| digits < 1)
        && let Some(column) = other(plan, &[PLAIN, DATES])
    {
        return Some(failure(column, "the rounded floats", "RESET extra_float_digits before it."));
    }
    let reads_nulls = value("array_nulls").is_none_or(|on| boolean(on) == Some(true));
    if !reads_nulls
        && let Some(column) = plan
            .columns
            .iter()
            .find(|column| column.type_name.ends_with("[]") || !is_of(BINARY, &column.type_name))
    {
        return Some(failure(column, "NULL in arrays", "RESET array_nulls before it."));
    }
    None
}

/// Why new rows cannot be shipped in which an OID stands in the place of a name, since their home has no object of that number:
/// another replica may have one, and what would become of it there is another name.
pub fn unnamed(plan: &CapturePlan, rows: &[Vec<Option<Bytes>>]) -> Option<Failure> {
    if plan.op != CaptureOp::Insert {
        // An old row may name an object that was dropped.
        return None;
    }
    let shows = |column: &CaptureColumn, value: &Option<Bytes>| {
        let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
        text.is_some_and(|text| shows_number(&column.type_name, text))
    };
    let mut columns = plan.columns.iter().enumerate();
    let (_, column) = columns
        .find(|(i, column)| rows.iter().any(|row| row.get(*i).is_some_and(|value| shows(column, value))))?;
    let what = format!("column {} is given an OID of which there is no object", column.name);
    Some(Failure::unsupported(what, "Write the object's name: OIDs differ between replicas."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_classify::Rewrite;
    use onecopy_core::TableId;

    fn plan(type_name: &str) -> CapturePlan {
        let column = CaptureColumn { name: "c".to_owned(), type_name: type_name.to_owned(), fixed: false };
        CapturePlan {
            reason: "random()".to_owned(),
            table: TableId(1),
            table_sql: "t".to_owned(),
            op: CaptureOp::Insert,
            key: Vec::new(),
            columns: vec![column],
            rewrite: Rewrite::default(),
            returning: String::new(),
            client_returns: false,
            bulk: None,
            cascades: false,
        }
    }

    #[test]
    fn columns_need_text_whose_binary_form_holds_what_differs_between_servers() {
        for (type_name, needed) in [
            ("bigint", false),
            ("numeric(8,2)[]", false),
            ("double precision", false),
            ("timestamp(3) with time zone", false),
            ("regclass", true),
            ("mood", true),
            ("mood[]", true),
            ("tstzrange", true),
            ("point", true),
        ] {
            assert_eq!(needs_text(&plan(type_name)), needed, "{type_name}");
        }
        let mut several = plan("integer");
        several.columns.extend(plan("regtype[]").columns);
        assert!(needs_text(&several), "one of them does");
    }

    #[test]
    fn new_rows_that_name_nothing_are_not_shipped() {
        let row = |text: &'static str| vec![Some(Bytes::from_static(text.as_bytes()))];
        let mut names = plan("regclass");
        assert!(unnamed(&names, &[row("t"), vec![None]]).is_none());
        assert!(unnamed(&names, &[row("t"), row("16384")]).is_some());
        assert!(unnamed(&plan("oid"), &[row("16384")]).is_none());
        names.op = CaptureOp::Update;
        assert!(unnamed(&names, &[row("16384")]).is_none());
    }

    #[test]
    fn rows_are_shipped_where_their_text_says_all() {
        let set = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let none = Vec::new();
        let cases = [
            ("timestamp(3) with time zone", Format::Text, &none, true),
            ("timestamp(3) with time zone", Format::Binary, &none, true),
            ("mood[]", Format::Text, &none, true),
            ("mood[]", Format::Binary, &none, false),
            ("timestamp with time zone", Format::Text, &set("datestyle", "SQL, DMY"), false),
            ("date", Format::Text, &set("DateStyle", "DMY"), true),
            ("numeric(8,2)", Format::Text, &set("DateStyle", "German"), true),
            ("tstzrange", Format::Text, &set("DateStyle", "Postgres"), false),
            ("double precision[]", Format::Text, &set("extra_float_digits", "0"), false),
            ("double precision", Format::Binary, &set("extra_float_digits", "0"), true),
            ("double precision", Format::Text, &set("extra_float_digits", "3"), true),
            ("point", Format::Text, &set("extra_float_digits", "-1"), false),
            ("date", Format::Text, &set("extra_float_digits", "0"), true),
            ("text[]", Format::Text, &set("array_nulls", "off"), false),
            ("text[]", Format::Text, &set("array_nulls", "F"), false),
            ("text[]", Format::Text, &set("array_nulls", "tr"), true),
            ("text[]", Format::Binary, &set("array_nulls", "off"), true),
            ("text", Format::Text, &set("array_nulls", "off"), true),
            ("pair", Format::Text, &set("array_nulls", "off"), false),
        ];
        for (type_name, format, settings, shipped) in cases {
            assert_eq!(
                loss(&plan(type_name), format, settings).is_none(),
                shipped,
                "{type_name} {settings:?}"
            );
        }
    }
}
