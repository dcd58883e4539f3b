//! The catalogue's query returns what the committed documents hold, which the other tests build upon.

use super::server::{Answer, TestServer};
use onecopy_classify::catalogue_queries::partitioned_by_oids_query;
use onecopy_classify::{Catalogue, Context, Scratch, classify, normalise};
use std::path::Path;

#[test]
fn a_server_describes_its_schemas_as_the_committed_documents_do() {
    let Some(server) = TestServer::start() else { return };
    for name in [
        "pgbench",
        "tpcc",
        "tpcw",
        "auction",
        "bulletin_board",
        "shop",
        "casts",
        "partitions",
        "oids",
        "rows",
        "conditions",
    ] {
        let session = server.create(name, name);
        let mut found = session.catalogue();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/catalogues/{name}.json"));
        if std::env::var_os("UPDATE_CATALOGUES").is_some() {
            write(&path, &found, name);
        }
        let mut expected =
            Catalogue::from_json(&std::fs::read_to_string(&path).expect("document")).expect("document");
        assert!(found.builtins.len() > 2000, "only {} built-in functions", found.builtins.len());
        assert!(found.schemas.iter().any(|s| s == "pg_catalog"));
        // What belongs to the server rather than to the schema.
        for catalogue in [&mut found, &mut expected] {
            catalogue.builtins.clear();
            catalogue.server_version = 0;
            catalogue.database.clear();
            catalogue.schemas.clear();
            catalogue.extensions.clear();
            catalogue.settings.clear();
        }
        let show = |c: &Catalogue| -> serde_json::Value { serde_json::from_str(&c.to_json()).expect("JSON") };
        assert_eq!(show(&found), show(&expected), "{name}");
    }
}

/// Writes a document anew, as from a server of version 15: `UPDATE_CATALOGUES=1`, then read the difference.
fn write(path: &Path, found: &Catalogue, name: &str) {
    let mut catalogue = found.clone();
    catalogue.builtins.clear();
    catalogue.settings.clear();
    catalogue.server_version = 150_000;
    catalogue.database = name.to_owned();
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    serde::Serialize::serialize(&catalogue, &mut serializer).expect("JSON");
    text.push(b'\n');
    std::fs::write(path, text).expect("write document");
}

#[test]
fn the_document_survives_being_written_and_read() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("round", "shop");
    let catalogue = session.catalogue();
    let again = Catalogue::from_json(&catalogue.to_json()).expect("document");
    assert_eq!(again.to_json(), catalogue.to_json());
    assert_eq!(again.generation(), catalogue.generation());
    session.run("ALTER TABLE parent ADD COLUMN later int");
    assert_ne!(session.catalogue().generation(), catalogue.generation());
}

#[test]
fn event_triggers_are_those_that_may_run_code_of_unknown_effect() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("events", "pgbench");
    session.run(
        "CREATE FUNCTION writes() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM seen; END';
         CREATE FUNCTION looks() RETURNS event_trigger LANGUAGE plpgsql IMMUTABLE AS 'BEGIN END';
         CREATE EVENT TRIGGER \"all\" ON ddl_command_end EXECUTE FUNCTION writes();
         CREATE EVENT TRIGGER drops ON sql_drop WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION writes();
         CREATE EVENT TRIGGER harmless ON ddl_command_start EXECUTE FUNCTION looks();
         CREATE EVENT TRIGGER off ON ddl_command_start EXECUTE FUNCTION writes();
         ALTER EVENT TRIGGER off DISABLE;
         CREATE EVENT TRIGGER on_replicas ON ddl_command_start EXECUTE FUNCTION writes();
         ALTER EVENT TRIGGER on_replicas ENABLE REPLICA",
    );
    let functions = session.catalogue().event_functions;
    assert_eq!(functions, ["looks", "writes"].map(|name| ("public".to_owned(), name.to_owned())));
    let found = session.catalogue().event_triggers;
    let shown: Vec<_> = found.iter().map(|e| (e.name.as_str(), e.tags.join(","), e.body.is_some())).collect();
    assert_eq!(shown, [("all", String::new(), true), ("drops", "DROP TABLE".to_owned(), true)]);
}

#[test]
fn the_query_works_whichever_way_the_planner_joins() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("plans", "shop");
    // A check of a table has variables, which the text of a domain's check cannot have.
    session.run("CREATE TABLE checked (n int CHECK (n > 0)); CREATE DOMAIN small AS int CHECK (VALUE < 10)");
    session.run("CREATE TABLE uses_domain (n small)");
    let expected = session.catalogue().to_json();
    for off in
        ["enable_hashjoin", "enable_nestloop", "enable_mergejoin", "enable_indexscan", "enable_seqscan"]
    {
        session.run(&format!("SET {off} = off"));
        session.run("SET enable_bitmapscan = off; SET enable_indexonlyscan = off");
        assert_eq!(session.catalogue().to_json(), expected, "{off}");
        session.run("RESET ALL");
    }
    session.run("SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_indexscan = off");
    assert_eq!(session.catalogue().to_json(), expected);
}

#[test]
fn what_is_said_to_keep_the_catalogue_leaves_the_document_as_it_is() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("kept", "shop");
    session.run(
        "CREATE ROLE ada; CREATE ROLE bo; CREATE VIEW seen AS SELECT 1 AS one; CREATE SEQUENCE counted;
         CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';
         CREATE MATERIALIZED VIEW stored AS SELECT 1 AS one",
    );
    let catalogue = session.catalogue();
    let path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
    let kept = [
        "ALTER TABLE parent OWNER TO ada",
        "ALTER TABLE counted OWNER TO ada",
        "ALTER SEQUENCE counted OWNER TO bo",
        "ALTER VIEW seen OWNER TO ada",
        "ALTER MATERIALIZED VIEW stored OWNER TO ada",
        "ALTER TYPE mood OWNER TO ada",
        "ALTER FUNCTION f() OWNER TO ada",
        "ALTER SCHEMA public OWNER TO ada",
        "GRANT SELECT (id), INSERT ON parent TO bo",
        "REVOKE ALL ON FUNCTION f() FROM PUBLIC",
        "GRANT ada TO bo",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO bo",
        "COMMENT ON TABLE parent IS 'those above'",
        "COMMENT ON COLUMN parent.id IS 'a number'",
        "CREATE STATISTICS s ON id, name FROM parent",
        "ALTER STATISTICS s SET STATISTICS 10",
    ];
    let changing =
        ["ALTER TABLE parent OWNER TO bo, ADD COLUMN more int", "ALTER SEQUENCE counted INCREMENT BY 2"];
    let keeps = |sql: &str| {
        let mut scratch = Scratch::default();
        let normalised = normalise(sql, &mut scratch);
        classify(sql, &normalised, &context).kind.keeps_catalogue()
    };
    let before = catalogue.to_json();
    for sql in kept {
        assert!(keeps(sql), "{sql}");
        session.run(sql);
        assert_eq!(session.catalogue().to_json(), before, "{sql}");
    }
    for sql in changing {
        assert!(!keeps(sql), "{sql}");
        session.run(sql);
        assert_ne!(session.catalogue().to_json(), before, "{sql}");
    }
}

#[test]
fn tables_that_are_partitioned_by_oids_are_found_at_start() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("parted", "oids");
    let Answer::Rows(rows, _) = session.ask(&partitioned_by_oids_query()) else {
        panic!("the query has failed")
    };
    let names: Vec<_> = rows.into_iter().flatten().flatten().collect();
    assert_eq!(names, ["public.hashed", "public.hashed_parts", "public.hashed_rows"]);
}
