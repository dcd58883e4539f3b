//! A change of definitions takes items of every table that PostgreSQL locks for it.
//!
//! It keeps its locks until its turn in the order of commits. A commit before it that its home has not applied yet would wait
//! for one of them, and it for that commit: so whatever is locked must be an item that commits before it were waited for by.

use super::server::{Answer, Session, TestServer};
use onecopy_classify::catalogue::table_id;
use onecopy_classify::{Catalogue, Context, Scratch, classify, normalise};
use onecopy_core::{Access, Mode, Space, TableId};
use std::collections::HashMap;

const SCHEMA: &str = "
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN small AS int;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE SCHEMA other;
CREATE TABLE ea (id int PRIMARY KEY, code int UNIQUE, n int);
CREATE TABLE eb (id int PRIMARY KEY, n int DEFAULT twice(1), m mood, s small,
                 CONSTRAINT eb_ea FOREIGN KEY (id) REFERENCES ea, CONSTRAINT eb_n CHECK (n > 0) NOT VALID);
CREATE TABLE ec (id serial PRIMARY KEY, eb int, code int, up int REFERENCES ec,
                 CONSTRAINT ec_eb FOREIGN KEY (eb) REFERENCES eb,
                 CONSTRAINT ec_code FOREIGN KEY (code) REFERENCES ea (code) DEFERRABLE);
ALTER TABLE ec ADD CONSTRAINT ec_late FOREIGN KEY (id) REFERENCES ea NOT VALID;
CREATE TRIGGER watch AFTER UPDATE ON eb FOR EACH ROW EXECUTE FUNCTION touch();
CREATE TABLE alone (id int PRIMARY KEY, n int);
CREATE TABLE other.far (id int PRIMARY KEY, ea int REFERENCES ea);
CREATE TABLE ruled (id int);
CREATE RULE along AS ON INSERT TO ruled DO ALSO INSERT INTO alone VALUES (NEW.id);
CREATE TABLE guarded (id int);
CREATE POLICY seen ON guarded USING (id IN (SELECT id FROM alone));
CREATE TABLE rows_of (row_of ea, n int);
CREATE SEQUENCE counted OWNED BY eb.n;
CREATE TABLE counts (n bigint DEFAULT nextval('counted'));

CREATE TABLE parent (id int PRIMARY KEY, n int);
CREATE TABLE child (PRIMARY KEY (id), CONSTRAINT child_n FOREIGN KEY (n) REFERENCES ea) INHERITS (parent);
CREATE TABLE grandchild (more int) INHERITS (child);
CREATE TABLE of_child (id int REFERENCES child);
CREATE TABLE would_inherit (id int NOT NULL, n int);

CREATE TABLE pt (id int, k int, ea int, PRIMARY KEY (id, k), CONSTRAINT pt_ea FOREIGN KEY (ea) REFERENCES ea)
    PARTITION BY LIST (k);
CREATE TABLE pt_1 PARTITION OF pt FOR VALUES IN (1);
CREATE TABLE pt_2 PARTITION OF pt FOR VALUES IN (2);
ALTER TABLE pt_1 ADD CONSTRAINT pt_1_id FOREIGN KEY (id) REFERENCES alone;
CREATE TABLE pt_rest PARTITION OF pt DEFAULT;
CREATE TABLE of_pt (id int, k int, CONSTRAINT of_pt_pt FOREIGN KEY (id, k) REFERENCES pt);
CREATE TABLE of_pt_1 (id int, k int, CONSTRAINT of_pt_1_pt_1 FOREIGN KEY (id, k) REFERENCES pt_1);
CREATE TABLE free (id int, ea int REFERENCES ea) PARTITION BY LIST (id);
CREATE TABLE free_1 PARTITION OF free FOR VALUES IN (1);
CREATE TABLE free_rest PARTITION OF free DEFAULT;
CREATE TABLE loose (id int NOT NULL, k int NOT NULL, ea int);

CREATE VIEW v AS SELECT id FROM ea;
CREATE VIEW over_v AS SELECT id FROM v;
CREATE MATERIALIZED VIEW stored AS SELECT id FROM ea;
CREATE MATERIALIZED VIEW stored_v AS SELECT id FROM over_v;
CREATE UNIQUE INDEX ON stored (id);
CREATE INDEX eb_by_n ON eb (n);
CREATE ROLE somebody;
GRANT SELECT ON ea TO somebody;
CREATE TABLE others_own (id int PRIMARY KEY REFERENCES ea);
ALTER TABLE others_own OWNER TO somebody;
";

const CHANGES: &[&str] = &[
    "DROP TABLE ec",
    "DROP TABLE other.far",
    "DROP TABLE ea, eb, ec, other.far, rows_of, child, grandchild, of_child, pt, of_pt, of_pt_1, others_own CASCADE",
    "DROP TABLE ea CASCADE",
    "DROP TABLE eb CASCADE",
    "DROP TABLE IF EXISTS eb, nothing CASCADE",
    "DROP TABLE of_child",
    "DROP TABLE grandchild",
    "DROP TABLE parent CASCADE",
    "DROP TABLE free_1",
    "DROP TABLE pt_2, of_pt",
    "DROP TABLE pt_1 CASCADE",
    "DROP TABLE pt CASCADE",
    "DROP TABLE of_pt",
    "DROP TABLE of_pt_1",
    "DROP SCHEMA other CASCADE",
    "DROP TYPE mood CASCADE",
    "DROP DOMAIN small CASCADE",
    "DROP FUNCTION twice(int) CASCADE",
    "DROP FUNCTION touch() CASCADE",
    "DROP SEQUENCE counted CASCADE",
    "DROP OWNED BY somebody",
    "REASSIGN OWNED BY somebody TO CURRENT_USER",
    "DROP VIEW v CASCADE",
    "DROP VIEW over_v CASCADE",
    "DROP MATERIALIZED VIEW stored",
    "DROP INDEX eb_by_n",
    "DROP TRIGGER watch ON eb",
    "DROP RULE along ON ruled",
    "DROP POLICY seen ON guarded",
    "ALTER TABLE eb DROP CONSTRAINT eb_ea",
    "ALTER TABLE eb DROP CONSTRAINT eb_n",
    "ALTER TABLE eb DROP CONSTRAINT eb_pkey CASCADE",
    "ALTER TABLE ea DROP CONSTRAINT ea_code_key CASCADE",
    "ALTER TABLE child DROP CONSTRAINT child_n",
    "ALTER TABLE pt DROP CONSTRAINT pt_ea",
    "ALTER TABLE pt_1 DROP CONSTRAINT pt_1_id",
    "ALTER TABLE of_pt DROP CONSTRAINT of_pt_pt",
    "ALTER TABLE eb DROP COLUMN id CASCADE",
    "ALTER TABLE eb DROP COLUMN n CASCADE",
    "ALTER TABLE ec DROP COLUMN eb",
    "ALTER TABLE eb DROP COLUMN s",
    "ALTER TABLE ec DROP COLUMN code",
    "ALTER TABLE ec DROP COLUMN up",
    "ALTER TABLE ea DROP COLUMN code CASCADE",
    "ALTER TABLE parent DROP COLUMN n",
    "ALTER TABLE ONLY parent DROP COLUMN n",
    "ALTER TABLE pt DROP COLUMN ea",
    "ALTER TABLE ea ADD COLUMN more int",
    "ALTER TABLE alone ADD COLUMN ea int REFERENCES ea",
    "ALTER TABLE parent ADD COLUMN more int DEFAULT 1",
    "ALTER TABLE pt ADD COLUMN more int",
    "ALTER TABLE alone ADD CONSTRAINT one FOREIGN KEY (n) REFERENCES ea",
    "ALTER TABLE alone ADD CONSTRAINT one FOREIGN KEY (n) REFERENCES ea NOT VALID",
    "ALTER TABLE pt ADD CONSTRAINT one FOREIGN KEY (id) REFERENCES alone",
    "ALTER TABLE of_child ADD CONSTRAINT one FOREIGN KEY (id) REFERENCES parent",
    "ALTER TABLE alone ADD CONSTRAINT one FOREIGN KEY (id, n) REFERENCES pt",
    "ALTER TABLE parent ADD CONSTRAINT one CHECK (n > 0)",
    "ALTER TABLE parent ADD CONSTRAINT one UNIQUE (n)",
    "ALTER TABLE eb VALIDATE CONSTRAINT eb_n",
    "ALTER TABLE ec VALIDATE CONSTRAINT ec_late",
    "ALTER TABLE ec ALTER CONSTRAINT ec_code NOT DEFERRABLE",
    "ALTER TABLE pt ALTER CONSTRAINT pt_ea DEFERRABLE",
    "ALTER TABLE eb ALTER COLUMN id TYPE bigint",
    "ALTER TABLE ec ALTER COLUMN code TYPE bigint",
    "ALTER TABLE alone ALTER COLUMN n TYPE bigint",
    "ALTER TABLE grandchild ALTER COLUMN more TYPE bigint",
    "ALTER TABLE of_pt ALTER COLUMN id TYPE bigint",
    "ALTER TABLE eb ALTER COLUMN n SET NOT NULL",
    "ALTER TABLE parent ALTER COLUMN n SET NOT NULL",
    "ALTER TABLE eb ALTER COLUMN n DROP DEFAULT",
    "ALTER TABLE eb ALTER COLUMN n SET STATISTICS 10",
    "ALTER TABLE parent ALTER COLUMN n SET STORAGE PLAIN",
    "ALTER TABLE eb SET (fillfactor = 50)",
    "ALTER TABLE eb CLUSTER ON eb_pkey",
    "ALTER TABLE ea SET LOGGED",
    "ALTER TABLE eb SET LOGGED",
    "ALTER TABLE eb SET TABLESPACE pg_default",
    "ALTER TABLE eb DISABLE TRIGGER watch",
    "ALTER TABLE eb DISABLE TRIGGER ALL",
    "ALTER TABLE pt ENABLE TRIGGER ALL",
    "ALTER TABLE eb ENABLE ALWAYS TRIGGER watch",
    "ALTER TABLE ruled DISABLE RULE along",
    "ALTER TABLE eb ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE eb REPLICA IDENTITY FULL",
    "ALTER TABLE parent OWNER TO somebody",
    "ALTER TABLE pt OWNER TO somebody",
    "ALTER TABLE eb RENAME TO renamed",
    "ALTER TABLE eb RENAME CONSTRAINT eb_ea TO renamed",
    "ALTER TABLE ea RENAME COLUMN code TO renamed",
    "ALTER TABLE parent RENAME COLUMN n TO renamed",
    "ALTER TABLE pt RENAME COLUMN ea TO renamed",
    "ALTER INDEX eb_by_n RENAME TO renamed",
    "ALTER INDEX eb_by_n SET (fillfactor = 50)",
    "ALTER TABLE ec SET SCHEMA other",
    "ALTER TABLE pt_1 SET SCHEMA other",
    "ALTER VIEW v SET SCHEMA other",
    "ALTER TABLE pt ATTACH PARTITION loose FOR VALUES IN (7)",
    "ALTER TABLE pt DETACH PARTITION pt_2",
    "ALTER TABLE pt DETACH PARTITION pt_rest",
    "ALTER TABLE free DETACH PARTITION free_1",
    "ALTER TABLE would_inherit INHERIT parent",
    "ALTER TABLE child NO INHERIT parent",
    "CREATE TABLE made (id int REFERENCES ea, k int, FOREIGN KEY (id, k) REFERENCES pt_1)",
    "CREATE TABLE made (other int REFERENCES ea, LIKE ec INCLUDING ALL)",
    "CREATE TABLE made PARTITION OF pt FOR VALUES IN (7)",
    "CREATE TABLE made PARTITION OF pt FOR VALUES IN (7) PARTITION BY LIST (id)",
    "CREATE TABLE made () INHERITS (child)",
    "CREATE TABLE made (row_of ea, m mood)",
    "CREATE TABLE made AS SELECT v.* FROM v, alone",
    "CREATE MATERIALIZED VIEW made AS SELECT * FROM over_v",
    "SELECT id INTO made FROM stored",
    "CREATE VIEW made AS SELECT v.id FROM v JOIN \"alone\" USING (id), stored",
    "CREATE VIEW made AS WITH ids AS (SELECT id FROM other.far) SELECT * FROM ids WHERE id IN (SELECT id FROM eb)",
    "CREATE OR REPLACE VIEW v AS SELECT id FROM ea WHERE n > 0",
    "CREATE RULE made AS ON DELETE TO ruled DO ALSO DELETE FROM eb WHERE id = OLD.id",
    "CREATE RULE made AS ON UPDATE TO v DO INSTEAD UPDATE alone SET n = 1",
    "CREATE POLICY made ON guarded USING (id IN (SELECT id FROM eb))",
    "ALTER POLICY seen ON guarded USING (id IN (SELECT id FROM stored))",
    "CREATE TRIGGER made AFTER INSERT ON eb EXECUTE FUNCTION touch()",
    "CREATE TRIGGER made AFTER INSERT ON pt FOR EACH ROW EXECUTE FUNCTION touch()",
    "CREATE CONSTRAINT TRIGGER made AFTER INSERT ON eb FROM alone FOR EACH ROW EXECUTE FUNCTION touch()",
    "CREATE TRIGGER made INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION touch()",
    "ALTER TRIGGER watch ON eb RENAME TO renamed",
    "CREATE INDEX ON eb (twice(n))",
    "CREATE UNIQUE INDEX ON pt (k, id)",
    "CREATE INDEX ON ONLY pt (ea)",
    "CREATE INDEX ON parent (n)",
    "CREATE INDEX ON stored_v (id)",
    "CREATE STATISTICS made ON id, n FROM eb",
    "CREATE SEQUENCE made OWNED BY eb.id",
    "ALTER SEQUENCE counted OWNED BY alone.n",
    "ALTER SEQUENCE counted OWNED BY NONE",
    "ALTER SEQUENCE counted INCREMENT BY 2",
    "ALTER TABLE eb ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY",
    "ALTER TYPE mood ADD VALUE 'glad'",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER DOMAIN small ADD CHECK (VALUE > 0)",
    "ALTER DOMAIN small SET NOT NULL",
    "CREATE OR REPLACE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 3 * $1'",
    "CREATE FUNCTION made() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM eb; END",
    "CREATE PUBLICATION made FOR TABLE eb",
    "COMMENT ON TABLE eb IS 'x'",
    "COMMENT ON COLUMN eb.n IS 'x'",
    "COMMENT ON CONSTRAINT eb_ea ON eb IS 'x'",
    "GRANT SELECT ON eb TO somebody",
    "REFRESH MATERIALIZED VIEW stored",
    "REFRESH MATERIALIZED VIEW CONCURRENTLY stored",
    "REFRESH MATERIALIZED VIEW stored_v",
    "TRUNCATE eb CASCADE",
    "TRUNCATE ea CASCADE",
    "TRUNCATE ec RESTART IDENTITY",
    "TRUNCATE parent CASCADE",
    "TRUNCATE pt CASCADE",
    "TRUNCATE pt_1 CASCADE",
    "TRUNCATE pt, of_pt, of_pt_1",
    "LOCK TABLE parent IN SHARE MODE",
    "LOCK TABLE pt",
    "LOCK TABLE v IN EXCLUSIVE MODE",
];

const LOCKS: &str = "SELECT relation, mode FROM pg_locks
                     WHERE locktype = 'relation' AND pid = pg_backend_pid() ORDER BY relation, mode";

/// A relation that may be locked: that of an index or of TOAST is its table.
struct Locked {
    schema: String,
    name: String,
    kind: String,
}

#[test]
fn tables_that_a_change_of_definitions_locks_are_among_its_items() {
    let Some(server) = TestServer::start() else { return };
    server.connect("postgres").run("CREATE DATABASE locked");
    let session = server.connect("locked");
    session.run(SCHEMA);
    let catalogue = session.catalogue();
    let relations = relations(&session);
    let mut missing = Vec::new();
    for sql in CHANGES {
        let access = items(&catalogue, sql);
        session.run("BEGIN");
        if let Answer::Error(code) = session.ask(sql) {
            missing.push(format!("{sql}: fails ({code})"));
            session.run("ROLLBACK");
            continue;
        }
        for lock in rows(&session, LOCKS) {
            let [oid, mode] = lock.try_into().expect("two columns");
            // What was not there before is nobody else's.
            let Some(relation) = relations.get(&oid) else { continue };
            if !is_taken(&catalogue, &access, relation, &mode) {
                missing.push(format!("{sql}: {mode} of {}.{}", relation.schema, relation.name));
            }
        }
        session.run("ROLLBACK");
    }
    assert!(missing.is_empty(), "no item keeps out what these locks keep out:\n{}", missing.join("\n"));
}

fn is_taken(catalogue: &Catalogue, access: &[Access], relation: &Locked, mode: &str) -> bool {
    let table = catalogue.table(&relation.schema, &relation.name);
    let id = table.map_or(table_id(&relation.schema, &relation.name), |t| catalogue.item_table(t));
    let holds = |wanted: Mode| {
        access.iter().any(|a| {
            let of_all = a.item.table == TableId::ALL;
            let of_rows = a.item.space == Space::Rows || of_all;
            (of_all || a.item.table == id) && of_rows && a.item.equals.is_empty() && a.mode.covers(wanted)
        })
    };
    match (relation.kind.as_str(), mode) {
        // Whoever reads a view has items of the tables behind it, and is kept out by those of a change that everything waits
        // for. Changes of definitions wait for each other by the names.
        ("v", "AccessExclusiveLock") => {
            access.iter().any(|a| a.item.table == TableId::ALL && a.mode.covers(Mode::Exclusive))
        }
        ("v", _) => true,
        (_, "AccessExclusiveLock" | "ExclusiveLock") => holds(Mode::Exclusive),
        (_, "ShareLock" | "ShareRowExclusiveLock") => holds(Mode::Shared),
        // TRUNCATE and REFRESH are kept out.
        _ => holds(Mode::KeyShared) || holds(Mode::Insert) || holds(Mode::Update),
    }
}

fn items(catalogue: &Catalogue, sql: &str) -> Vec<Access> {
    let path = ["public".to_owned()];
    let context = Context { catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let normalised = normalise(sql, &mut scratch);
    let class = classify(sql, &normalised, &context);
    class.bind(sql, normalised.layout, &onecopy_classify::NoParams, &[]).iter().cloned().collect()
}

fn relations(session: &Session<'_>) -> HashMap<String, Locked> {
    let found = rows(
        session,
        "SELECT c.oid, n.nspname, t.relname, t.relkind
         FROM pg_class c
         LEFT JOIN pg_index i ON i.indexrelid = c.oid
         LEFT JOIN pg_class o ON o.reltoastrelid = coalesce(i.indrelid, c.oid)
         JOIN pg_class t ON t.oid = coalesce(o.oid, i.indrelid, c.oid)
         JOIN pg_namespace n ON n.oid = t.relnamespace
         WHERE t.oid >= 16384 AND t.relkind IN ('r', 'p', 'm', 'v')",
    );
    let entry = |row: Vec<String>| {
        let [oid, schema, name, kind] = row.try_into().expect("four columns");
        (oid, Locked { schema, name, kind })
    };
    found.into_iter().map(entry).collect()
}

fn rows(session: &Session<'_>, sql: &str) -> Vec<Vec<String>> {
    let Answer::Rows(rows, _) = session.ask(sql) else { panic!("{sql}") };
    rows.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()).collect()
}
