//! Object ids of what users define, made to differ between replicas: clients see one numbering, whoever answers.

use super::clients::{block_on, connect, rows};
use super::cursors::Raw;
use super::three::Three;
use futures_util::future::join_all;
use onecopy_cluster::ClusterFile;
use std::collections::BTreeSet;
use tokio_postgres::types::{Format, FromSql, IsNull, Kind, ToSql, Type};
use tokio_postgres::{Client, Statement};

/// A server counts also what is rolled back: on its home, definitions that come later have other ids.
async fn make_ids_differ(client: &Client) {
    for i in 0..4 {
        let undone = format!(
            "BEGIN; CREATE TYPE undone{i} AS ENUM ('x'); CREATE TABLE undone_{i} (a undone{i}); ROLLBACK"
        );
        client.batch_execute(&undone).await.unwrap();
    }
}

/// A cluster with users' types, and a table of them, whose ids differ between its replicas.
async fn start() -> (Three, Client) {
    let three = Three::start();
    let client = three.client().await;
    make_ids_differ(&client).await;
    client
        .batch_execute(
            "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
             CREATE TYPE place AS (street text, mood mood);
             CREATE DOMAIN short AS mood;
             CREATE TABLE moods (id int PRIMARY KEY, m mood, ms mood[], c place, d short)",
        )
        .await
        .unwrap();
    // All have applied it then.
    three.assert_identical();
    assert!(oids_of_mood(&three.file).await.len() > 1, "the ids do not differ: the test shows nothing");
    (three, client)
}

async fn oids_of_mood(file: &ClusterFile) -> BTreeSet<String> {
    let mut oids = BTreeSet::new();
    for replica in &file.replicas {
        oids.insert(rows(&connect(&replica.dsn).await, "SELECT 'mood'::regtype::oid").await);
    }
    oids
}

/// A value of a type that is not built in, as text.
#[derive(Debug, PartialEq)]
struct Users(String);

impl<'a> FromSql<'a> for Users {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Users, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Users(std::str::from_utf8(raw)?.to_owned()))
    }
    fn accepts(_: &Type) -> bool {
        true
    }
}

impl ToSql for Users {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }
    tokio_postgres::types::to_sql_checked!();
}

/// A value in binary form.
#[derive(Debug)]
struct Binary(Vec<u8>);

impl ToSql for Binary {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    tokio_postgres::types::to_sql_checked!();
}

const READ: &str = "SELECT m, ms, c, d FROM moods WHERE id = 1";

/// The types and tables of a result's columns.
fn described(statement: &Statement) -> Vec<(u32, Option<u32>)> {
    statement.columns().iter().map(|column| (column.type_().oid(), column.table_oid())).collect()
}

/// What many connections at once, which read from all replicas, are told of the columns of one query.
async fn told(clients: &[Client]) -> BTreeSet<Vec<(u32, Option<u32>)>> {
    let tell = async |client: &Client| {
        let mut told = BTreeSet::new();
        for _ in 0..10 {
            // In a transaction, descriptions come from the replica on which it reads.
            client.batch_execute("BEGIN; SELECT id FROM moods").await.unwrap();
            let statement = client.prepare(READ).await.unwrap();
            told.insert(described(&statement));
            let row = client.query_one(&statement, &[]).await.unwrap();
            assert_eq!(row.get::<_, Users>(0), Users("ok".into()));
            client.batch_execute("COMMIT").await.unwrap();
            assert_eq!(statement.columns()[0].type_().name(), "mood");
        }
        told
    };
    join_all(clients.iter().map(tell)).await.into_iter().flatten().collect()
}

#[test]
fn descriptions_have_one_numbering_whichever_replica_answers() {
    block_on(async {
        let (three, client) = start().await;
        client
            .batch_execute("INSERT INTO moods VALUES (1, 'ok', '{sad,glad}', '(here,sad)', 'glad')")
            .await
            .unwrap();
        let clients = join_all((0..8).map(|_| three.client())).await;
        let before = told(&clients).await;
        assert_eq!(before.len(), 1, "{before:?}");
        let shown = rows(&client, "SELECT 'mood'::regtype::oid::int, 'moods'::regclass::oid::int").await;
        let told_of_m = before.first().unwrap()[0];
        assert_eq!(shown, format!("{} {}", told_of_m.0, told_of_m.1.unwrap()), "as the catalogue shows them");

        // After a change of definitions what was told stays, and what is new has one number too.
        make_ids_differ(&client).await;
        client
            .batch_execute(
                "CREATE TYPE colour AS ENUM ('red'); ALTER TABLE moods ADD col colour DEFAULT 'red'",
            )
            .await
            .unwrap();
        assert_eq!(told(&clients).await, before);
        let mut of_colour = BTreeSet::new();
        for _ in 0..12 {
            let client = connect(&three.file.client.dsn).await;
            client.batch_execute("BEGIN; SELECT id FROM moods").await.unwrap();
            of_colour.insert(described(&client.prepare("SELECT col FROM moods").await.unwrap()));
        }
        assert_eq!(of_colour.len(), 1, "{of_colour:?}");

        // The replica from which the numbers are is gone. Who knows them from it goes on.
        let pid = three.file.replicas[0].pid.to_string();
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        super::wait_until("the first replica has left service", || {
            three.status()["replicas"][0]["state"] != "up"
        });
        assert_eq!(told(&clients).await, before);
    });
}

#[test]
fn parameters_declared_by_the_numbers_that_were_told_are_understood_everywhere() {
    block_on(async {
        let (three, client) = start().await;
        let described = client.prepare("SELECT m, ms, c, d FROM moods").await.unwrap();
        let types: Vec<Type> = described.columns().iter().map(|column| column.type_().clone()).collect();
        assert!(matches!(types[0].kind(), Kind::Enum(_)), "{types:?}");
        let value = |text: &str| Users(text.to_owned());
        let write = |id: i32| {
            let dsn = three.file.client.dsn.clone();
            let mut types = types.clone();
            async move {
                let client = connect(&dsn).await;
                types.insert(0, Type::INT4);
                let insert = "INSERT INTO moods VALUES ($1, $2, $3, $4, $5)";
                let insert = client.prepare_typed(insert, &types).await.unwrap();
                let (m, ms, c, d) = (value("ok"), value("{sad,glad}"), value("(here,sad)"), value("glad"));
                client.execute(&insert, &[&id, &m, &ms, &c, &d]).await.unwrap();
                let found =
                    "SELECT id FROM moods WHERE m = $1 AND ms = $2 AND c = $3 AND d::mood = $4 AND id = $5";
                let mut types: Vec<Type> = types.split_off(1);
                types.push(Type::INT4);
                let found = client.prepare_typed(found, &types).await.unwrap();
                assert_eq!(
                    client.query_one(&found, &[&m, &ms, &c, &d, &id]).await.unwrap().get::<_, i32>(0),
                    id
                );
            }
        };
        join_all((0..12).map(write)).await;
        let everywhere =
            three.everywhere("SELECT count(*), min(m), max(d::text), min(ms::text) FROM moods").await;
        assert_eq!(everywhere, "12 ok glad {sad,glad}");

        // An array in binary form holds its elements' type, which is another one on other replicas.
        let mut binary =
            [1_u32, 0, types[0].oid(), 1, 1, 2].iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>();
        binary.extend(b"ok");
        let update = client.prepare("UPDATE moods SET ms = $1 WHERE id = 1").await.unwrap();
        let refused = client.execute(&update, &[&Binary(binary)]).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("0A000"), "{refused}");

        // A type that only the open transaction sees.
        client
            .batch_execute("BEGIN; CREATE TYPE new AS ENUM ('a'); CREATE TABLE news (n new)")
            .await
            .unwrap();
        let own = client.prepare("SELECT n FROM news").await.unwrap().columns()[0].type_().clone();
        let insert = client.prepare_typed("INSERT INTO news VALUES ($1)", &[own]).await.unwrap();
        client.execute(&insert, &[&value("a")]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(three.everywhere("SELECT n FROM news").await, "a");
        let unheard_of = Type::new("x".into(), 99_999, Kind::Simple, "public".into());
        let refused = client.prepare_typed("SELECT $1", &[unheard_of]).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("42704"), "{refused}");
    });
}

#[test]
fn what_statements_make_of_ids_is_the_same_everywhere() {
    block_on(async {
        let (three, client) = start().await;
        client
            .batch_execute(
                "CREATE TABLE watched (id int PRIMARY KEY, r regclass);
                 CREATE TABLE made (id int PRIMARY KEY, b bigint, o oid, t text, r regclass);
                 INSERT INTO moods (id, m, ms) VALUES (1, 'sad', '{ok,glad}');
                 INSERT INTO watched VALUES (1, 'moods'), (2, 'made'), (3, 'pg_class');
                 INSERT INTO made SELECT id, r, r, r, r FROM watched;
                 UPDATE made SET b = 'moods'::regclass::oid WHERE id = 1;
                 UPDATE made SET o = (SELECT max(r) FROM watched) WHERE id = 2;
                 INSERT INTO made (id, b) SELECT 10, hashenum(m) FROM moods;
                 INSERT INTO made (id, b) SELECT 11, hash_array(ms) FROM moods;
                 INSERT INTO made (id, t) SELECT 12, encode(regclasssend(r), 'hex') FROM watched WHERE id = 1;
                 DELETE FROM watched WHERE id IN (SELECT id FROM watched ORDER BY r DESC LIMIT 1);
                 CREATE TABLE kept AS SELECT * FROM watched",
            )
            .await
            .unwrap();
        // Given by its number, which is another object's elsewhere.
        let given = client.query_one("SELECT 'made'::regclass::oid", &[]).await.unwrap().get::<_, u32>(0);
        let refused =
            client.batch_execute(&format!("INSERT INTO watched VALUES (4, '{given}')")).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("0A000"), "{refused}");
        // Declared by the client.
        let insert = "INSERT INTO made (id, b) VALUES (13, $1)";
        let insert = client.prepare_typed(insert, &[Type::REGCLASS]).await.unwrap();
        client.execute(&insert, &[&Users("moods".to_owned())]).await.unwrap();
        // Not declared, as a number and in binary form.
        let insert = client.prepare("INSERT INTO watched VALUES ($1, $2)").await.unwrap();
        let number = client.execute(&insert, &[&7, &Users(given.to_string())]).await.unwrap_err();
        let binary = client.execute(&insert, &[&8, &Binary(given.to_be_bytes().to_vec())]).await.unwrap_err();
        for refused in [number, binary] {
            assert_eq!(refused.code().map(|code| code.code()), Some("0A000"), "{refused}");
        }
        let copy = async |data: &'static str| {
            let sink = client.copy_in::<_, bytes::Bytes>("COPY watched FROM STDIN").await.unwrap();
            let mut sink = std::pin::pin!(sink);
            let data = bytes::Bytes::from_static(data.as_bytes());
            futures_util::SinkExt::send(&mut sink, data).await.unwrap();
            sink.finish().await
        };
        assert_eq!(copy("5\tmoods\n6\tmade\n9\t1259\n").await.unwrap(), 3);
        // Its home has none of that number. Others could.
        let refused = copy("14\tmoods\n15\t4000000000\n").await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("0A000"), "{refused}");
        assert_eq!(rows(&client, "SELECT r FROM watched WHERE id > 8").await, "pg_class");
        three.assert_identical();
        let sums = "SELECT sum(b), sum(o::bigint), string_agg(t, ',' ORDER BY id) FROM made";
        assert!(!three.everywhere(sums).await.is_empty());

        for refused in [
            "CREATE TABLE p (m mood) PARTITION BY HASH (m)",
            "ALTER TABLE watched ALTER r TYPE oid",
            "ALTER TABLE made ALTER o TYPE oid USING 'moods'::regclass",
            "ALTER TABLE watched ADD COLUMN o oid GENERATED ALWAYS AS (r) STORED",
            "CREATE TABLE copied AS SELECT r::oid FROM watched",
        ] {
            let error = client.batch_execute(refused).await.unwrap_err();
            assert_eq!(error.code().map(|code| code.code()), Some("0A000"), "{refused}: {error}");
        }
        three.assert_identical();
    });
}

/// Drivers fetch what they ask the catalogue by parts, too, and within the client's transaction.
#[test]
fn catalogue_queries_fetched_by_parts_in_a_transaction_show_the_same_ids() {
    block_on(async {
        let (three, client) = start().await;
        let query = "SELECT oid FROM pg_class WHERE relname IN ('moods', 'moods_pkey') ORDER BY relname";
        let ids = rows(&client, query).await;
        // Transactions take turns among the replicas.
        for _ in 0..6 {
            let mut raw = Raw::default();
            raw.query("BEGIN").query("SELECT id FROM moods").parse("o", query);
            raw.bind("p", "o").execute("p", 0).execute("p", 0).sync();
            raw.bind("q", "o")
                .describe("q")
                .execute("q", 1)
                .sync()
                .execute("q", 1)
                .sync()
                .execute("q", 1)
                .sync();
            raw.query("COMMIT");
            assert_eq!(
                raw.answers(&three.file.client.dsn),
                format!(
                    "BEGIN, columns, SELECT 0, {ids}, SELECT 2, SELECT 0, columns, {ids}, SELECT 0, COMMIT"
                )
            );
        }
    });
}
