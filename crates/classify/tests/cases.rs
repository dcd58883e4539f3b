//! Tables of statements with what they must be found to touch and depend on, in `tests/cases/*.txt`.
//!
//! A file names its catalogue, then lists cases: a title, the statement, a line of dashes, the explanation. Run with
//! `UPDATE_CASES=1` to write the explanations anew, and read the difference.

use onecopy_classify::catalogue::{EventTrigger, Function, Volatility};
use onecopy_classify::{
    Bulk, Capturing, Catalogue, Context, Determinism, NoParams, ParamValue, Scratch, classify, explain,
    normalise,
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

/// Such statements are answered beside their transaction, which sees what it has written to tables itself.
#[test]
fn a_statement_reads_the_catalogue_only_if_it_reads_no_table() {
    let catalogue = catalogue("shop");
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    for (sql, expected) in [
        ("SELECT relname FROM pg_class", true),
        ("SELECT * FROM pg_class, parent WHERE parent.id = 1", false),
        ("SELECT id, (SELECT count(*) FROM pg_prepared_statements) FROM child", false),
        ("SELECT 1 FROM child", false),
    ] {
        let found = classify(sql, &normalise(sql, &mut scratch), &context);
        assert_eq!(found.effects.catalogue_only, expected, "{sql}");
    }
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

/// A function of a user in SQL that yields rows of a table, or the first of them.
fn function_of_rows(name: &str, set: bool) -> Function {
    Function {
        schema: "public".to_owned(),
        name: name.to_owned(),
        kind: 'f',
        arguments: 1,
        defaults: 0,
        variadic: false,
        set,
        argument_names: vec!["k".to_owned()],
        volatility: Volatility::Stable,
        language: "sql".to_owned(),
        body: "SELECT id FROM child WHERE parent_id = $1".to_owned(),
        settings: Vec::new(),
        extension: None,
        made_of: Vec::new(),
        default_values: None,
        oids: None,
    }
}

/// Replicas meet rows in different orders: what is kept of several equal values must be the same whichever it is.
#[test]
fn writes_that_keep_one_of_several_equal_values_are_not_replayed() {
    let catalogue = catalogue("shop");
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    for (sql, replayed) in [
        // Types whose equal values are the same.
        ("INSERT INTO keyless SELECT i4, t FROM typed", true),
        ("INSERT INTO keyless SELECT 1, n::text FROM typed", true),
        ("INSERT INTO keyless SELECT DISTINCT i4, t FROM typed", true),
        ("INSERT INTO keyless SELECT count(*), t FROM typed GROUP BY t", true),
        ("INSERT INTO keyless SELECT count(*), t FROM typed GROUP BY 2", true),
        ("INSERT INTO keyless SELECT count(*), lower(t) AS low FROM typed GROUP BY low", true),
        ("INSERT INTO keyless SELECT count(*), d::text FROM typed GROUP BY d", true),
        ("INSERT INTO keyless SELECT count(*), ts::text FROM typed GROUP BY ts", true),
        ("INSERT INTO keyless SELECT count(*), m::text FROM typed GROUP BY m, u, b, bo, v, p, co", true),
        ("INSERT INTO keyless SELECT count(*), c FROM typed GROUP BY c", true),
        ("INSERT INTO keyless SELECT count(*), n2::text FROM typed GROUP BY n2", true),
        (
            "INSERT INTO keyless SELECT count(*), date_trunc('day', ts)::text FROM typed GROUP BY date_trunc('day', ts)",
            true,
        ),
        (
            "INSERT INTO keyless SELECT date_part('year', ts), 'x' FROM typed GROUP BY date_part('year', ts)",
            true,
        ),
        ("INSERT INTO keyless SELECT i4 + 1, t || 'x' FROM typed GROUP BY i4 + 1, t || 'x'", true),
        ("INSERT INTO keyless SELECT 1, coalesce(t, 'none') FROM typed GROUP BY coalesce(t, 'none')", true),
        ("INSERT INTO keyless SELECT 1, CASE WHEN i4 > 1 THEN t ELSE 'x' END FROM typed GROUP BY 2", true),
        ("INSERT INTO keyless SELECT count(*), js ->> 'kind' FROM typed GROUP BY js ->> 'kind'", true),
        ("INSERT INTO keyless SELECT count(*), (js -> 'kind')::text FROM typed GROUP BY js -> 'kind'", false),
        ("INSERT INTO keyless SELECT 1, n::text FROM typed GROUP BY n::text", true),
        ("INSERT INTO keyless SELECT 1, t FROM typed UNION SELECT 2, v FROM typed", true),
        ("INSERT INTO keyless SELECT 1, t FROM typed UNION SELECT 2, NULL UNION SELECT 3, 'x'", true),
        ("INSERT INTO keyless SELECT i4, t FROM typed EXCEPT SELECT i8, v FROM typed", true),
        ("INSERT INTO keyless SELECT 1.0, 'x' UNION SELECT 1.00, 'x'", true),
        ("INSERT INTO keyless SELECT 1, n::text FROM typed UNION ALL SELECT 2, n::text FROM typed", true),
        (
            "INSERT INTO keyless WITH RECURSIVE r (i) AS (SELECT id FROM tree WHERE up = 1 UNION SELECT tree.id FROM tree JOIN r ON up = i) SELECT i, '' FROM r",
            true,
        ),
        (
            "INSERT INTO keyless WITH RECURSIVE r (i) AS (SELECT id FROM tree UNION SELECT i + 1 FROM r WHERE i < 9) SELECT DISTINCT i, '' FROM r",
            true,
        ),
        (
            "INSERT INTO keyless WITH x AS (SELECT i4, count(*) AS n FROM typed GROUP BY i4), y AS (SELECT i4, n FROM x WHERE n > 1) SELECT DISTINCT n, i4::text FROM y",
            true,
        ),
        ("INSERT INTO keyless SELECT n, '' FROM child_counts GROUP BY n", true),
        ("INSERT INTO keyless SELECT DISTINCT id, name FROM child_names", true),
        ("INSERT INTO keyless SELECT parent.id, '' FROM parent JOIN child USING (id) GROUP BY id", true),
        // The row of a whole key is one row.
        ("INSERT INTO keyless SELECT i8, n::text FROM typed GROUP BY i8, n, f", true),
        ("INSERT INTO keyless SELECT DISTINCT * FROM typed", true),
        // Only whether there are any matters, or how many.
        ("UPDATE child SET note = 'x' WHERE EXISTS (SELECT DISTINCT n FROM typed WHERE i4 = child.id)", true),
        ("UPDATE child SET note = 'x' WHERE EXISTS (SELECT n FROM typed UNION SELECT f FROM floats)", true),
        ("DELETE FROM child WHERE id IN (SELECT n FROM typed)", true),
        ("INSERT INTO keyless SELECT count(DISTINCT n), '' FROM typed", true),
        ("INSERT INTO keyless SELECT sum(DISTINCT i4), '' FROM typed", true),
        ("INSERT INTO keyless SELECT sum(n), '' FROM typed", true),
        ("INSERT INTO keyless SELECT max(n2), '' FROM typed", true),
        // Types of which equal values may differ.
        ("INSERT INTO keyless SELECT count(*), n::text FROM typed GROUP BY n", false),
        ("INSERT INTO keyless SELECT count(*), n::text FROM typed GROUP BY 2, n", false),
        ("INSERT INTO keyless SELECT count(*), x::text FROM (SELECT n AS x FROM typed) y GROUP BY x", false),
        ("INSERT INTO keyless SELECT 1, n::text FROM (SELECT DISTINCT n FROM typed) x", false),
        (
            "INSERT INTO keyless SELECT 1, n::text FROM (SELECT DISTINCT n FROM typed) x JOIN typed USING (n)",
            false,
        ),
        ("INSERT INTO keyless SELECT 1, f::text FROM typed GROUP BY f", false),
        ("INSERT INTO keyless SELECT 1, js::text FROM typed GROUP BY js", false),
        ("INSERT INTO keyless SELECT 1, ci FROM typed GROUP BY ci", false),
        ("INSERT INTO keyless SELECT 1, ci::text FROM typed GROUP BY ci::text", false),
        ("INSERT INTO keyless SELECT 1, lower(ci) FROM typed GROUP BY 2", false),
        (
            "INSERT INTO keyless SELECT 1, x.t FROM (SELECT t COLLATE ignore_case AS t FROM typed) x GROUP BY x.t",
            false,
        ),
        ("INSERT INTO keyless SELECT 1, (n + 1)::text FROM typed GROUP BY n + 1", false),
        ("INSERT INTO keyless SELECT 1, (ts - now())::text FROM typed GROUP BY ts - now()", false),
        ("INSERT INTO keyless SELECT 1, typed::text FROM typed GROUP BY typed", false),
        ("INSERT INTO keyless SELECT 1, ARRAY[n]::text FROM typed GROUP BY ARRAY[n]", false),
        ("INSERT INTO keyless SELECT 1, during::text FROM booking GROUP BY during", false),
        ("INSERT INTO keyless SELECT 1, coalesce(n2, i4)::text FROM typed GROUP BY coalesce(n2, i4)", false),
        ("INSERT INTO keyless SELECT 1, n::text FROM typed GROUP BY GROUPING SETS ((i8), (n))", false),
        ("INSERT INTO keyless SELECT i8, n::text FROM typed GROUP BY ROLLUP (i8, n)", false),
        ("INSERT INTO keyless SELECT 1, x::text FROM (SELECT n AS x FROM typed UNION SELECT 1) y", false),
        (
            "INSERT INTO keyless SELECT 1, x::text FROM (SELECT n2 AS x FROM typed UNION SELECT i4 FROM typed) y",
            false,
        ),
        (
            "INSERT INTO keyless SELECT 1, x::text FROM (SELECT n AS x FROM typed EXCEPT ALL SELECT 1) y",
            false,
        ),
        (
            "INSERT INTO keyless SELECT 1, x::text FROM (SELECT n AS x FROM typed INTERSECT SELECT n FROM typed) y",
            false,
        ),
        (
            "INSERT INTO keyless WITH RECURSIVE r (i) AS (SELECT n FROM typed UNION SELECT i + 1 FROM r WHERE i < 9) SELECT 1, i::text FROM r",
            false,
        ),
        (
            "INSERT INTO keyless WITH RECURSIVE r (i) AS (SELECT i4 FROM typed UNION SELECT n FROM typed) SELECT 1, i::text FROM r",
            false,
        ),
        ("INSERT INTO keyless SELECT 1, sum(DISTINCT n)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, avg(DISTINCT n)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, max(n)::text FROM typed", false),
        (
            "UPDATE child SET note = 'x' WHERE EXISTS (SELECT 1 FROM typed GROUP BY n HAVING n::text = '1.0')",
            false,
        ),
        ("UPDATE child SET note = (SELECT n::text FROM typed GROUP BY n) WHERE id = 1", false),
        ("DELETE FROM child WHERE note IN (SELECT n::text FROM typed GROUP BY n)", false),
        // What depends on the order of rows otherwise.
        ("INSERT INTO keyless SELECT 1, sum(f)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, avg(f)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, stddev(f)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, corr(i4, i8)::text FROM typed", false),
        ("INSERT INTO keyless SELECT regr_count(i4, i8), '' FROM typed", true),
        ("INSERT INTO keyless SELECT 1, array_agg(i4)::text FROM typed", false),
        ("INSERT INTO keyless SELECT 1, string_agg(t, ',') FROM typed", false),
        ("INSERT INTO keyless SELECT 1, json_agg(t)::text FROM typed", false),
        ("INSERT INTO keyless SELECT i4, first_value(t) OVER (ORDER BY i2) FROM typed", false),
        ("INSERT INTO keyless SELECT count(*) OVER (ORDER BY i2), t FROM typed", true),
        ("INSERT INTO keyless SELECT count(*) OVER (ROWS UNBOUNDED PRECEDING), t FROM typed", false),
        (
            "INSERT INTO keyless SELECT count(*) OVER w, t FROM typed WINDOW w AS (ORDER BY i2 ROWS 1 PRECEDING)",
            false,
        ),
    ] {
        let normalised = normalise(sql, &mut scratch);
        let class = classify(sql, &normalised, &context);
        if matches!(class.determinism, Determinism::Replay) != replayed {
            wrong.push(format!("{sql}: {:?}", class.determinism));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A function's rows come in the order in which it meets those of tables.
#[test]
fn rows_of_functions_that_read_tables_come_in_no_certain_order() {
    let mut catalogue = catalogue("shop");
    let of_body =
        |name: &str, body: &str| Function { body: body.to_owned(), ..function_of_rows(name, false) };
    catalogue.functions.extend([
        function_of_rows("fset", true),
        function_of_rows("first_of", false),
        of_body("name_by_key", "SELECT name FROM parent WHERE id = k"),
        of_body(
            "name_of_parent",
            "SELECT name FROM child c JOIN parent p ON p.id = c.parent_id WHERE c.id = k",
        ),
        of_body("last_of", "SELECT id FROM child WHERE parent_id = $1 ORDER BY id DESC LIMIT 1"),
    ]);
    catalogue.rebuild();
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    for (sql, replayed) in [
        ("INSERT INTO keyless SELECT x, 'a' FROM fset(2) x", true),
        ("INSERT INTO keyless SELECT fset(2), 'a'", true),
        ("INSERT INTO keyless SELECT DISTINCT x, 'a' FROM fset(2) x", false),
        ("INSERT INTO keyless SELECT count(x), 'a' FROM fset(2) x", true),
        (
            "INSERT INTO keyless SELECT x, 'a' FROM generate_series(1, 3) WITH ORDINALITY o (x, n) WHERE n < 3",
            true,
        ),
        ("INSERT INTO keyless SELECT generate_series(1, 3), generate_series(1, 4)::text", true),
        ("INSERT INTO keyless SELECT generate_series(1, 3), 'x' LIMIT 2", true),
        ("INSERT INTO keyless SELECT x, 'a' FROM fset(2) WITH ORDINALITY o (x, n) WHERE n < 3", false),
        ("INSERT INTO keyless SELECT x, 'q' FROM (SELECT fset(2) x LIMIT 3) y", false),
        (
            "INSERT INTO keyless SELECT x, 'q' FROM (SELECT fset(id) x FROM child ORDER BY id LIMIT 3) y",
            false,
        ),
        ("INSERT INTO keyless SELECT x, 'q' FROM fset(2) x LIMIT 3", false),
        ("INSERT INTO keyless SELECT fset(2), generate_series(1, 20)::text", false),
        ("INSERT INTO keyless SELECT x, y::text FROM (SELECT fset(2) x, generate_series(1, 20) y) z", false),
        (
            "INSERT INTO keyless SELECT x, y::text FROM ROWS FROM (fset(2), generate_series(1, 3)) z (x, y)",
            false,
        ),
        ("INSERT INTO parent (id) SELECT fset(2) ON CONFLICT DO NOTHING", false),
        ("UPDATE child SET note = x::text FROM fset(2) x WHERE id > x", false),
        // A function that yields one value takes the first row.
        ("INSERT INTO keyless VALUES (first_of(2), 'a')", false),
        ("INSERT INTO keyless VALUES (1, name_by_key(2))", true),
        ("INSERT INTO keyless VALUES (1, name_of_parent(2))", true),
        ("INSERT INTO keyless VALUES (last_of(2), 'a')", true),
        ("INSERT INTO keyless SELECT 1, name_of(2)", true),
    ] {
        let normalised = normalise(sql, &mut scratch);
        let class = classify(sql, &normalised, &context);
        if matches!(class.determinism, Determinism::Replay) != replayed {
            wrong.push(format!("{sql}: {:?}", class.determinism));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
                if line == "versions: differ" {
                    current = current.map(|catalogue| catalogue.capturing(Capturing::BetweenVersions));
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

#[test]
fn rows_are_shown_only_by_foreign_keys_that_hold_at_any_time_and_for_all_rows() {
    let sql = "SELECT l.scl_i_id, i.i_title FROM shopping_cart_line l JOIN item i ON i.i_id = l.scl_i_id WHERE l.scl_sc_id = 1";
    let shows = |change: fn(&mut onecopy_classify::catalogue::ForeignKey)| {
        let mut catalogue = catalogue("tpcw");
        catalogue.tables.iter_mut().flat_map(|table| &mut table.foreign_keys).for_each(change);
        catalogue.rebuild();
        let path = ["public".to_owned()];
        let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
        explain(sql, &context).shown.len()
    };
    assert_eq!(
        [shows(|_| {}), shows(|key| key.deferrable = true), shows(|key| key.validated = false)],
        [1, 0, 0]
    );
}
