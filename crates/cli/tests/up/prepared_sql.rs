//! PREPARE, EXECUTE and DEALLOCATE as commands of SQL.

use super::clients::{block_on, connect, json, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

async fn refused(client: &Client, sql: &str) -> SqlState {
    client.simple_query(sql).await.unwrap_err().code().unwrap().clone()
}

#[test]
fn prepared_statements_read_and_write_as_their_text_would() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 2);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        client
            .batch_execute("CREATE TABLE t (id serial PRIMARY KEY, name text, at timestamptz, tags text[])")
            .await
            .unwrap();
        client
            .batch_execute(
                "PREPARE add(text, text[]) AS INSERT INTO t (name, at, tags) VALUES ($1, now(), $2) RETURNING id;
                 PREPARE find(int) AS SELECT name, $1 AS id FROM t WHERE id = $1;
                 PREPARE untyped AS UPDATE t SET name = $2 WHERE id = $1",
            )
            .await
            .unwrap();
        assert_eq!(rows(&client, "EXECUTE add('it''s $1', '{a,b}')").await, "1");
        assert_eq!(rows(&client, "EXECUTE add('Bo', NULL)").await, "2");
        assert_eq!(rows(&client, "EXECUTE find(1)").await, "it's $1 1");
        assert_eq!(rows(&client, "EXECUTE find(1 + 1)").await, "Bo 2");
        client.batch_execute("BEGIN; EXECUTE untyped(2, 'Bea'); COMMIT").await.unwrap();
        assert_eq!(rows(&client, "SELECT name, tags FROM t ORDER BY id").await, "it's $1 {a,b}, Bea -");
        let all = json(dir.path(), &["verify"]);
        assert_eq!(all["identical"], true, "{all}");

        // By the extended protocol: the same names.
        let row = client.query_one("EXECUTE find(2)", &[]).await.unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("Bea", 2));
        assert_eq!(client.execute("EXECUTE untyped(2, 'Bo')", &[]).await.unwrap(), 1);
        assert_eq!(client.execute("PREPARE one AS SELECT 1", &[]).await.unwrap(), 0);
        assert_eq!(rows(&client, "EXECUTE one").await, "1");
    });
}

#[test]
fn misuse_of_prepared_statements_is_refused_as_postgresql_does() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let client = connect(&ClusterFile::read(dir.path()).unwrap().client.dsn).await;
        client.batch_execute("PREPARE p(int) AS SELECT $1").await.unwrap();
        assert_eq!(refused(&client, "PREPARE p AS SELECT 2").await, SqlState::DUPLICATE_PSTATEMENT);
        assert_eq!(refused(&client, "EXECUTE p").await, SqlState::SYNTAX_ERROR);
        assert_eq!(refused(&client, "EXECUTE p(1, 2)").await, SqlState::SYNTAX_ERROR);
        assert_eq!(refused(&client, "EXECUTE p('x')").await, SqlState::INVALID_TEXT_REPRESENTATION);
        assert_eq!(refused(&client, "EXECUTE p(random()::int)").await, SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(refused(&client, "PREPARE q AS SELECT * FROM nowhere").await, SqlState::UNDEFINED_TABLE);
        assert_eq!(refused(&client, "EXPLAIN EXECUTE p(1)").await, SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(refused(&client, "EXECUTE q").await, SqlState::INVALID_SQL_STATEMENT_NAME);

        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(refused(&client, "DEALLOCATE q").await, SqlState::INVALID_SQL_STATEMENT_NAME);
        assert_eq!(refused(&client, "EXECUTE p(1)").await, SqlState::IN_FAILED_SQL_TRANSACTION);
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&client, "EXECUTE p(-1)").await, "-1", "it outlives the transaction");
        client.batch_execute("DEALLOCATE PREPARE p").await.unwrap();
        assert_eq!(refused(&client, "EXECUTE p(1)").await, SqlState::INVALID_SQL_STATEMENT_NAME);
        client.batch_execute("PREPARE p AS SELECT 3; DEALLOCATE ALL; PREPARE p AS SELECT 4").await.unwrap();
        assert_eq!(rows(&client, "EXECUTE p").await, "4");
    });
}
