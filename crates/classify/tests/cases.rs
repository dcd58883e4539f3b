//! Tables of statements with what they must be found to touch and depend on, in `tests/cases/*.txt`.
//!
//! A file names its catalogue, then lists cases: a title, the statement, a line of dashes, the explanation. Run with
//! `UPDATE_CASES=1` to write the explanations anew, and read the difference.

use onecopy_classify::catalogue::EventTrigger;
use onecopy_classify::{
    Bulk, Catalogue, Context, Determinism, NoParams, ParamValue, Scratch, classify, explain, normalise,
};
use std::fs;
use std::path::Path;

fn catalogue(name: &str) -> Catalogue {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/catalogues");
    let read = |file: &str| fs::read_to_string(dir.join(file)).expect("catalogue file");
    let mut catalogue = Catalogue::from_json(&read(&format!("{name}.json"))).expect("catalogue document");
    catalogue.builtins = serde_json::from_str(&read("builtins15.json")).expect("list of functions");
    catalogue.rebuild();
    catalogue
}

#[test]
fn every_case_is_explained_as_written() {
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = fs::read_dir(dir).expect("cases").map(|f| f.expect("case file").path()).collect();
    files.sort();
    let mut failures = String::new();
    let mut count = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("case file");
        let (found, cases) = run(&text);
        count += cases;
        if update {
            fs::write(&file, &found).expect("write case file");
        } else if found != text {
            failures.push_str(&difference(&file, &text, &found));
        }
    }
    assert!(count > 100, "only {count} cases were found");
    assert!(failures.is_empty(), "{failures}");
}

/// How many rows one execution may affect decides how replicas compare many of them.
#[test]
fn executions_are_of_one_row_where_the_whole_primary_key_of_one_table_names_it() {
    let catalogue = catalogue("shop");
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    for (sql, expected) in [
        ("INSERT INTO child (id) VALUES (1)", "one row"),
        ("UPDATE child SET note = 'x' WHERE id = 1", "one row"),
        ("UPDATE child SET note = 'x' WHERE id = 1 AND parent_id > 3", "one row"),
        ("DELETE FROM child WHERE id = 1", "one row"),
        // The rounded key equals more than one number.
        ("DELETE FROM typed WHERE i8 = 9007199254740993e0", "rows"),
        ("UPDATE child SET note = 'x' WHERE parent_id = 1", "rows"),
        ("UPDATE child SET note = 'x' WHERE id IN (1, 2)", "rows"),
        ("UPDATE child SET note = 'x' WHERE id = 1 OR id = 2", "rows"),
        ("UPDATE child SET id = 2 WHERE id = 1", "rows"),
        ("DELETE FROM child WHERE id > 1", "rows"),
        // A row of an inheriting table may have the same key.
        ("UPDATE animal SET name = 'x' WHERE id = 1", "rows"),
        ("UPDATE child SET note = 'x'", "alone"),
        ("INSERT INTO child (id) VALUES (1), (2)", "alone"),
    ] {
        let normalised = normalise(sql, &mut scratch);
        let class = classify(sql, &normalised, &context);
        let access = class.bind(sql, normalised.layout, &NoParams, &[]);
        let found = match class.bulk {
            Bulk::No => "alone",
            bulk if bulk.is_one_row(&access) => "one row",
            _ => "rows",
        };
        assert_eq!(found, expected, "{sql}: {:?} {access:?}", class.bulk);
    }
}

/// A name between the text and its conversion does not hide it.
#[test]
fn literals_and_parameters_that_become_moments_by_way_of_a_name_are_looked_at() {
    let catalogue = catalogue("shop");
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let mut is_replayed = |sql: &str, given: &str| {
        let sql = sql.replace("?", &format!("'{given}'"));
        let normalised = normalise(&sql, &mut scratch);
        let class = classify(&sql, &normalised, &context);
        let param = ParamValue { type_oid: 0, binary: false, bytes: Some(given.as_bytes()) };
        matches!(class.determinism_of(&sql, normalised.layout, &[param][..]), Determinism::Replay)
    };
    for sql in [
        "INSERT INTO typed (i8, ts) SELECT 1, p::timestamp FROM (VALUES (?)) x (p)",
        "INSERT INTO typed (i8, ts) SELECT 1, p::timestamp FROM (VALUES ($1)) x (p)",
        "INSERT INTO typed (i8, ts) SELECT 1, p::timestamp FROM (SELECT coalesce($1, NULL) AS p) x",
        "INSERT INTO typed (i8, ts) WITH x AS (SELECT ? AS p LIMIT 1) SELECT 1, p::timestamp FROM x",
        "INSERT INTO typed (i8, ts) SELECT 1, p FROM generate_series($1::timestamp, NULL, '1 day') p",
    ] {
        assert!(is_replayed(sql, "2026-01-01"), "{sql}");
        assert!(!is_replayed(sql, "Now"), "{sql}");
    }
    let collated = "INSERT INTO typed (i8, ts) SELECT 1, p::timestamp FROM (SELECT $1 COLLATE \"C\" AS p) x";
    assert!(!is_replayed(collated, "2026-01-01"));
}

/// A number in the place of a name means another object on each replica.
#[test]
fn objects_that_are_given_by_their_oid_are_shipped() {
    let catalogue = catalogue("oids");
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let mut is_replayed = |sql: &str, given: &str, binary: bool| {
        let sql = sql.replace("?", &format!("'{given}'"));
        let normalised = normalise(&sql, &mut scratch);
        let class = classify(&sql, &normalised, &context);
        let param = ParamValue { type_oid: 0, binary, bytes: Some(given.as_bytes()) };
        matches!(class.determinism_of(&sql, normalised.layout, &[param][..]), Determinism::Replay)
    };
    for sql in [
        "INSERT INTO watched (id, r) VALUES (1, ?)",
        "INSERT INTO watched (id, r) VALUES (1, $1)",
        "INSERT INTO watched (id, r) SELECT 1, ?",
        "INSERT INTO watched_too (id, list) VALUES (1, ?)",
        "INSERT INTO watched_too (id, c) VALUES (1, $1)",
        "UPDATE watched SET r = $1 WHERE id = 1",
        "UPDATE plain SET body = to_tsvector(?::regconfig, body) WHERE id = 1",
        "UPDATE searched SET words = to_tsvector($1::regconfig, body) WHERE id = 1",
        "UPDATE searched SET words = to_tsvector(coalesce(config, ?), body) WHERE id = 1",
    ] {
        for (given, replayed) in
            [("plain", true), ("{watched,plain}", true), ("16384", false), ("{plain,16384}", false)]
        {
            assert_eq!(is_replayed(sql, given, false), replayed, "{sql} {given}");
        }
    }
    assert!(!is_replayed("UPDATE watched SET r = $1 WHERE id = 1", "four", true));
}

/// What an event trigger does at each replica cannot be the same: it may write rows with random values.
#[test]
fn definitions_do_not_change_under_an_event_trigger() {
    let mut catalogue = catalogue("shop");
    catalogue.event_triggers.push(EventTrigger { name: "audit".to_owned(), tags: Vec::new(), body: None });
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    for (sql, refused) in [
        ("CREATE TABLE fresh (id int)", true),
        ("SELECT 1 AS n INTO fresh", true),
        ("CREATE TABLE fresh AS SELECT 1 AS n", true),
        ("ALTER TABLE child ADD COLUMN n int", true),
        ("GRANT SELECT ON child TO PUBLIC", true),
        ("DROP TABLE child", true),
        ("DROP EVENT TRIGGER audit", false),
        ("ALTER EVENT TRIGGER audit DISABLE", false),
        ("CREATE ROLE somebody", false),
        ("TRUNCATE child", false),
        ("INSERT INTO child (id) VALUES (1)", false),
    ] {
        let explanation = explain(sql, &context).to_string();
        assert_eq!(explanation.contains("refused: the event trigger audit"), refused, "{explanation}");
    }
}

/// What has just been written runs at the end of the command that wrote it.
#[test]
fn the_function_of_an_event_trigger_is_not_replaced_while_it_is_enabled() {
    let mut catalogue = catalogue("shop");
    catalogue.event_functions.push(("ddl".to_owned(), "told".to_owned()));
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let body = "RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (random()); END'";
    for (sql, refused) in [
        ("CREATE OR REPLACE FUNCTION ddl.told()", true),
        ("CREATE OR REPLACE FUNCTION told()", true),
        ("CREATE OR REPLACE FUNCTION public.told()", false),
        ("CREATE OR REPLACE FUNCTION other()", false),
        ("CREATE FUNCTION told()", false),
    ] {
        let explanation = explain(&format!("{sql} {body}"), &context).to_string();
        assert_eq!(explanation.contains("is the function of an event trigger"), refused, "{explanation}");
    }
}

/// The file as it would be if every explanation were right, and the number of its cases.
fn run(text: &str) -> (String, usize) {
    let mut out = String::new();
    let mut current: Option<Catalogue> = None;
    let mut path = vec!["public".to_owned()];
    let mut count = 0;
    for block in text.split("\ncase: ") {
        if count == 0 && !block.contains("\n----") {
            for line in block.lines() {
                if let Some(name) = line.strip_prefix("catalogue: ") {
                    current = Some(catalogue(name));
                }
                if let Some(schemas) = line.strip_prefix("search_path: ") {
                    path = schemas.split(", ").map(str::to_owned).collect();
                }
            }
            out.push_str(block);
            continue;
        }
        count += 1;
        let (head, _) = block.split_once("\n----").unwrap_or((block, ""));
        let (title, sql) = head.split_once('\n').unwrap_or((head, ""));
        let catalogue = current.as_ref().expect("the file begins with `catalogue: name`");
        let temporary = ["scratch".to_owned()];
        let context = Context { catalogue, search_path: &path, temporary: &temporary };
        let explanation = explain(sql.trim(), &context).to_string();
        let shown: Vec<&str> = explanation.lines().filter(|l| !l.starts_with("class ")).collect();
        out.push_str(&format!("\ncase: {title}\n{sql}\n----\n{}\n", shown.join("\n")));
    }
    (out, count)
}

fn difference(file: &Path, expected: &str, found: &str) -> String {
    let mut out = format!("\n{}:\n", file.display());
    let blocks = |text: &str| -> Vec<String> { text.split("\ncase: ").map(str::to_owned).collect() };
    for (old, new) in blocks(expected).iter().zip(&blocks(found)) {
        if old.trim_end() != new.trim_end() {
            out.push_str(&format!("--- expected\n{}\n+++ found\n{}\n", old.trim_end(), new.trim_end()));
        }
    }
    out
}
