//! Event triggers: code that runs at each change of definitions, at each replica.

use super::Analyser;
use crate::ast::Name;
use crate::catalogue::EventTrigger;
use crate::class::Kind;
use crate::lexer::{Scratch, Token, TokenKind, normalise, tokens};

/// Commands whose tag is their name here, so that those of triggers can be compared with it.
const TAGS: &[&str] = &[
    "CREATE TABLE",
    "CREATE TABLE AS",
    "SELECT INTO",
    "CREATE VIEW",
    "CREATE MATERIALIZED VIEW",
    "CREATE INDEX",
    "CREATE TRIGGER",
    "CREATE SEQUENCE",
    "REFRESH MATERIALIZED VIEW",
];

/// Words of PL/pgSQL and SQL by which a function may change something, or run text that it makes.
const CHANGING: &[&str] = &[
    "insert",
    "update",
    "delete",
    "merge",
    "truncate",
    "create",
    "alter",
    "drop",
    "execute",
    "call",
    "table",
    // Numbers that differ between replicas.
    "objid",
    "classid",
    "copy",
    "grant",
    "revoke",
    "set",
    "reset",
    "lock",
    "comment",
    "refresh",
    "reindex",
    "vacuum",
    "analyze",
    "cluster",
    "import",
    "reassign",
    "security",
    "load",
    "do",
    "prepare",
    "listen",
    "unlisten",
    "discard",
    "checkpoint",
    "commit",
    "rollback",
];

/// Functions that only tell of the change, or compute.
const HARMLESS: &[&str] = &[
    "pg_event_trigger_ddl_commands",
    "pg_event_trigger_dropped_objects",
    "pg_event_trigger_table_rewrite_oid",
    "pg_event_trigger_table_rewrite_reason",
    "pg_notify",
    "format",
    "concat",
    "concat_ws",
    "coalesce",
    "lower",
    "upper",
    "left",
    "length",
    "json_build_object",
    "jsonb_build_object",
    "row_to_json",
    "to_json",
    "to_jsonb",
    "current_query",
    "now",
    "exists",
    "any",
    "count",
    "min",
    "max",
    "string_agg",
    "array_agg",
];

/// Words before a parenthesis that call nothing.
const BEFORE_PARENTHESIS: &[&str] = &[
    "in", "and", "or", "not", "if", "elsif", "when", "then", "else", "return", "select", "from", "where",
    "case", "as", "is", "on", "values", "perform", "while", "array", "any", "all", "like", "ilike",
    "between", "varchar", "numeric",
];

impl<'a> Analyser<'a> {
    /// Refuses a new body for the function of an enabled event trigger: the trigger fires at this very command, and runs what
    /// nobody has looked at.
    pub(super) fn replace_event_function(&mut self, name: &Name) {
        let mut functions = self.catalogue().event_functions.iter();
        let is_it = |(schema, function): &&(String, String)| {
            function == name.last() && name.schema().is_none_or(|wanted| wanted == schema)
        };
        if functions.any(|function| is_it(&function)) {
            self.refuse(
                format!("{name}() is the function of an event trigger, which would fire with the new body"),
                "ALTER EVENT TRIGGER ... DISABLE before it, and ENABLE afterwards",
            );
        }
    }

    /// Refuses what fires an event trigger whose effects are not known.
    pub(super) fn fire_event_triggers(&mut self, kind: &Kind) {
        // Those of event triggers themselves, and of what belongs to no database, fire none.
        const SILENT: &[&str] = &[
            "CREATE EVENT TRIGGER",
            "ALTER EVENT TRIGGER",
            "DROP EVENT TRIGGER",
            "CREATE ROLE",
            "ALTER ROLE",
            "ALTER ROLE SET",
            "DROP ROLE",
            "GRANT ROLE",
            "ALTER DATABASE SET",
        ];
        let Kind::Ddl { command, temporary: false, .. } = kind else { return };
        if SILENT.contains(command) {
            return;
        }
        let mut triggers = self.catalogue().event_triggers.iter();
        if let Some(trigger) = triggers.find(|trigger| fires_at(trigger, command) && !only_notifies(trigger))
        {
            self.refuse(
                format!(
                    "the event trigger {} would run code on each replica, whose effects are not known",
                    trigger.name
                ),
                "declare its function IMMUTABLE if it only raises errors or notices; else drop it, or ALTER EVENT TRIGGER ... DISABLE while definitions change",
            );
        }
    }
}

/// Whether a trigger may fire at a command.
fn fires_at(trigger: &EventTrigger, command: &str) -> bool {
    let verb = |text: &str| text.split(' ').next().unwrap_or("").to_ascii_uppercase();
    let concerns = |tag: &String| match TAGS.contains(&command) {
        true => tag.eq_ignore_ascii_case(command),
        // The name may stand for several tags that begin alike; what drops or revokes may be found by others.
        false => verb(tag) == verb(command) || !matches!(verb(command).as_str(), "CREATE" | "ALTER" | "DROP"),
    };
    trigger.tags.is_empty() || trigger.tags.iter().any(concerns)
}

/// Whether all that a trigger does is to send notifications, and to raise notices or errors, by what it is told of the
/// change: nothing that could make replicas different.
pub(super) fn only_notifies(trigger: &EventTrigger) -> bool {
    let Some(body) = &trigger.body else { return false };
    let mut rest = body.as_str();
    let mut pieces = 0;
    while !rest.trim().is_empty() {
        let mut scratch = Scratch::default();
        let layout = normalise(rest, &mut scratch).layout;
        let end = layout.end as usize;
        if !is_harmless(rest, &tokens(rest, layout)) {
            return false;
        }
        pieces += 1;
        // Whatever stands in a comment before the semicolon is looked at as well.
        let after = rest.get(end..).and_then(|after| after.split_once(';'));
        rest = after.map_or("", |(_, after)| after);
    }
    pieces > 0
}

/// Whether a piece of a body, up to a semicolon, could not make replicas different.
fn is_harmless(body: &str, tokens: &[Token]) -> bool {
    let word = |i: usize| {
        let token = tokens.get(i).filter(|token| token.kind == TokenKind::Word)?;
        body.get(token.start..token.end).map(str::to_ascii_lowercase)
    };
    let is_harmless = |i: usize| {
        let calls = tokens.get(i + 1).is_some_and(|next| next.kind == TokenKind::Byte(b'('));
        let before = i.checked_sub(1);
        let is_of_schema = before.is_some_and(|before| tokens[before].kind == TokenKind::Byte(b'.'));
        match (tokens[i].kind, word(i)) {
            // A name in quotes, or in a schema, may be anybody's function.
            (TokenKind::QuotedWord, _) => !calls,
            (_, Some(_)) if calls && is_of_schema => false,
            (_, Some(word)) if calls => {
                HARMLESS.contains(&word.as_str()) || BEFORE_PARENTHESIS.contains(&word.as_str())
            }
            // A view may call anything.
            (_, Some(from)) if from == "from" || from == "join" => {
                let compares = before.and_then(word).is_some_and(|before| before == "distinct");
                let names = tokens
                    .get(i + 1)
                    .is_some_and(|next| matches!(next.kind, TokenKind::Word | TokenKind::QuotedWord));
                let told = word(i + 1).is_some_and(|next| next.starts_with("pg_event_trigger_"));
                // Behind a comma, or in parentheses, could be anything: name ( ) AS alias, and no more.
                let mut behind = tokens[(i + 4).min(tokens.len())..].iter().map(|token| token.kind);
                let next = behind.find(|kind| *kind != TokenKind::Word);
                let alone = !matches!(next, Some(TokenKind::Byte(b',' | b'(')));
                compares || (names && told && alone)
            }
            (_, Some(word)) => !CHANGING.contains(&word.as_str()),
            (_, None) => true,
        }
    };
    (0..tokens.len()).all(is_harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(tags: &[&str], body: Option<&str>) -> EventTrigger {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        EventTrigger { name: "e".to_owned(), tags, body: body.map(str::to_owned) }
    }

    #[test]
    fn bodies_that_only_tell_of_the_change_are_known() {
        for (body, harmless) in [
            ("BEGIN NOTIFY pgrst, 'reload schema'; END;", true),
            (
                "DECLARE cmd record; BEGIN FOR cmd IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
                 IF cmd.command_tag IN ('CREATE TABLE', 'DROP TABLE') AND cmd.schema_name IS DISTINCT FROM 'pg_temp' THEN
                 NOTIFY pgrst, 'reload schema'; END IF; END LOOP; END",
                true,
            ),
            ("BEGIN PERFORM pg_notify('ddl', tg_tag); END", true),
            ("BEGIN RAISE EXCEPTION 'no % here', tg_tag; END", true),
            ("BEGIN INSERT INTO audit VALUES (now(), tg_tag); END", false),
            ("BEGIN PERFORM audit(tg_tag); END", false),
            ("BEGIN PERFORM * FROM view_that_writes; END", false),
            ("BEGIN PERFORM audit.format(tg_tag); END", false),
            ("BEGIN PERFORM \"audit\"(tg_tag); END", false),
            ("BEGIN EXECUTE 'DROP TABLE t'; END", false),
            ("BEGIN SELECT nextval('s') AS n; END", false),
            ("BEGIN NOTIFY a; INSERT INTO audit VALUES (random()); END", false),
            ("BEGIN NOTIFY a; IF random() < 0.5 THEN RAISE EXCEPTION 'no'; END IF; END", false),
            ("BEGIN NOTIFY a /* ; */; PERFORM audit(); END", false),
            ("BEGIN PERFORM * FROM pg_event_trigger_ddl_commands() x, audited; END", false),
            ("BEGIN PERFORM * FROM (TABLE audited) x; END", false),
            ("DECLARE r record; BEGIN FOR r IN SELECT objid % 2 FROM pg_event_trigger_ddl_commands() LOOP NOTIFY a; END LOOP; END", false),
            ("", false),
        ] {
            assert_eq!(only_notifies(&trigger(&[], Some(body))), harmless, "{body}");
        }
        assert!(!only_notifies(&trigger(&[], None)));
    }

    #[test]
    fn tags_say_at_which_commands_a_trigger_fires() {
        for (tags, command, fires) in [
            (&[][..], "CREATE TABLE", true),
            (&["DROP TABLE"], "CREATE TABLE", false),
            (&["CREATE TABLE"], "CREATE TABLE", true),
            (&["CREATE TABLE AS"], "CREATE TABLE", false),
            (&["ALTER VIEW"], "ALTER TABLE", true),
            (&["ALTER TABLE"], "CREATE INDEX", false),
            (&["ALTER TABLE", "DROP TABLE"], "DROP", true),
            (&["GRANT"], "REVOKE", true),
        ] {
            assert_eq!(fires_at(&trigger(tags, None), command), fires, "{tags:?} {command}");
        }
    }
}
