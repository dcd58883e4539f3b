//! Writes whose result could depend on where rows lie, on replicas on which they lie differently.

use super::clients::{block_on, connect, json};
use super::three::Three;
use tokio_postgres::error::SqlState;

const SCHEMA: &str = "
    CREATE TABLE amount (id int PRIMARY KEY, n numeric, f float8, i interval, j jsonb, k int);
    INSERT INTO amount
        SELECT g, CASE g % 2 WHEN 0 THEN '1.0' ELSE '1.00' END::numeric + g % 3, CASE g % 2 WHEN 0 THEN '0' ELSE '-0' END::float8,
            CASE g % 2 WHEN 0 THEN '1 day' ELSE '24 hours' END::interval, CASE g % 2 WHEN 0 THEN '1.0' ELSE '1.00' END::jsonb, g % 3
        FROM generate_series(1, 40) g;
    CREATE TABLE kept (what text, value text);
    CREATE FUNCTION of_kind(kind int) RETURNS SETOF int LANGUAGE sql STABLE AS 'SELECT id FROM amount WHERE k = kind';
    CREATE FUNCTION first_of_kind(kind int) RETURNS int LANGUAGE sql STABLE AS 'SELECT id FROM amount WHERE k = kind'";

/// What keeps one of several equal values, or takes rows as they come.
const WRITES: &[&str] = &[
    "INSERT INTO kept SELECT 'grouped', n::text FROM amount GROUP BY n",
    "INSERT INTO kept SELECT 'grouped by number', f::text FROM amount GROUP BY 2, f",
    "INSERT INTO kept SELECT 'distinct', i::text FROM (SELECT DISTINCT i FROM amount) x",
    "INSERT INTO kept SELECT 'distinct', j::text FROM (SELECT DISTINCT j FROM amount) x",
    "INSERT INTO kept SELECT 'united', n::text FROM (SELECT n FROM amount UNION SELECT n + 1 FROM amount) x",
    "INSERT INTO kept SELECT 'left', n::text FROM (SELECT n FROM amount EXCEPT ALL SELECT 1) x",
    "INSERT INTO kept WITH RECURSIVE r (n) AS (SELECT n FROM amount UNION SELECT n + 1 FROM r WHERE n < 5) SELECT 'recursive', n::text FROM r",
    "INSERT INTO kept SELECT 'sum', sum(DISTINCT n)::text FROM amount",
    "INSERT INTO kept SELECT 'numbered', x::text FROM of_kind(2) WITH ORDINALITY o (x, n) WHERE n < 3",
    "INSERT INTO kept SELECT 'cut', x::text FROM (SELECT of_kind(2) x LIMIT 3) y",
    "INSERT INTO kept SELECT of_kind(2)::text, generate_series(1, 20)::text",
    "INSERT INTO kept SELECT x::text, y::text FROM ROWS FROM (of_kind(2), generate_series(1, 3)) z (x, y)",
    "INSERT INTO kept VALUES ('first', first_of_kind(2)::text)",
    "INSERT INTO kept SELECT 'counted', (count(*) OVER (ROWS UNBOUNDED PRECEDING) * 100 + id)::text FROM amount",
    "UPDATE amount SET k = 7 WHERE n::text IN (SELECT n::text FROM amount GROUP BY n)",
    // These are executed everywhere.
    "INSERT INTO kept SELECT 'counts', count(*)::text FROM amount GROUP BY k",
    "INSERT INTO kept SELECT 'set', x::text FROM of_kind(1) x",
];

#[test]
fn writes_are_the_same_on_replicas_on_which_rows_lie_differently() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        for statement in SCHEMA.split(";\n") {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        assert_eq!(json(three.dir.path(), &["verify"])["identical"], true);
        for (replica, order) in three.file.replicas.iter().zip(["id", "id DESC", "k, id"]) {
            let server = connect(&replica.dsn).await;
            server
                .batch_execute(&format!(
                    "BEGIN; CREATE TEMPORARY TABLE held ON COMMIT DROP AS SELECT * FROM amount; DELETE FROM amount;
                     INSERT INTO amount SELECT * FROM held ORDER BY {order}; COMMIT"
                ))
                .await
                .unwrap_or_else(|error| panic!("{order}: {error:?}"));
        }
        for statement in WRITES {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        let verified = json(three.dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
    });
}

/// Of several rows that a function's last statement changes, another one may be the first elsewhere.
#[test]
fn what_a_function_returns_of_several_changed_rows_is_shown_and_not_stored() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        let functions = "
            CREATE FUNCTION raised(kind int) RETURNS int LANGUAGE sql AS 'UPDATE amount SET n = n + 1 WHERE k = kind RETURNING id';
            CREATE FUNCTION removed(one int) RETURNS int LANGUAGE sql AS 'DELETE FROM amount WHERE id = one RETURNING id';
            CREATE FUNCTION copied(kind int) RETURNS int LANGUAGE sql
                AS 'INSERT INTO amount (id, k) SELECT id + 100, 7 FROM amount WHERE k = kind RETURNING id';
            CREATE FUNCTION added(one int) RETURNS int LANGUAGE sql AS 'INSERT INTO amount (id) VALUES (one), (one + 1) RETURNING id';
            CREATE FUNCTION kept(what int) RETURNS void LANGUAGE sql AS 'INSERT INTO kept VALUES (what)'";
        for statement in SCHEMA.split(";\n").chain(functions.split(";\n")) {
            client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        for call in ["raised(2)", "copied(1)"] {
            for sql in [format!("INSERT INTO kept VALUES ({call})"), format!("SELECT kept({call})")] {
                let error = client.batch_execute(&sql).await.unwrap_err();
                assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{sql}: {error:?}");
            }
            client.batch_execute(&format!("SELECT {call}")).await.unwrap();
        }
        client.batch_execute("SELECT * FROM raised(1)").await.unwrap();
        for stored in ["INSERT INTO kept VALUES (removed(3))", "SELECT kept(added(1000))"] {
            client.batch_execute(stored).await.unwrap_or_else(|error| panic!("{stored}: {error:?}"));
        }
        assert_eq!(three.everywhere("SELECT string_agg(what, ' ' ORDER BY what) FROM kept").await, "1000 3");
    });
}
