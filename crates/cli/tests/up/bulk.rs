//! Replicas put executions of one statement together when they apply them: what they hold must be what the home holds.

use super::clients::{block_on, connect, home_of, json, rows};
use super::cursors::Raw;
use super::three::Three;
use super::{Up, folder, wait_until};
use onecopy_cluster::ClusterFile;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

const TABLES: &str = "
    CREATE TABLE shop (id int PRIMARY KEY, name varchar(12) UNIQUE, total numeric(12, 2) NOT NULL DEFAULT 0);
    CREATE TABLE item (id bigint PRIMARY KEY, shop int REFERENCES shop, price float8, code char(4), tags text,
                       data bytea, at timestamptz, day date, doc jsonb, ok bool, small smallint,
                       double_small int GENERATED ALWAYS AS (small * 2) STORED);
    CREATE TABLE log (shop int, note text, amount numeric);
    INSERT INTO shop SELECT n, 'shop ' || n, 0 FROM generate_series(1, 8) n;";

/// One client's work: prepared statements and texts, alone and in transactions, on rows of its own and on common ones.
async fn work(client: &Client, worker: i32) {
    let add = client.prepare("UPDATE shop SET total = total + $1::numeric WHERE id = $2").await.unwrap();
    let types = [Type::INT8, Type::INT4, Type::FLOAT8, Type::TEXT, Type::TEXT];
    let insert = "INSERT INTO item (id, shop, price, code, tags, at, day, ok, small)
                  VALUES ($1, $2, $3, $4, $5, now(), '2001-02-03', $1 % 2 = 0, 7)";
    let insert = client.prepare_typed(insert, &types).await.unwrap();
    let change =
        client.prepare("UPDATE item SET data = $1, doc = $2, price = price * 2 WHERE id = $3").await.unwrap();
    let delete = client.prepare("DELETE FROM item WHERE id = $1 AND shop = $2").await.unwrap();
    let note = client.prepare("INSERT INTO log VALUES ($1, $2, NULL)").await.unwrap();
    for round in 0..40_i32 {
        let id = i64::from(worker * 1000 + round);
        let shop = (worker + round) % 8 + 1;
        let text = ["plain", "with \"quotes\" and \\", "{a,b}", "NULL", ""][round as usize % 5];
        client.execute(&insert, &[&id, &shop, &(f64::from(round) / 3.0), &"ab", &text]).await.unwrap();
        client.execute(&note, &[&shop, &(round % 3 > 0).then_some(text)]).await.unwrap();
        let bytes = vec![0, b'\\', b'"', round as u8];
        let doc = AsText(format!(r#"{{"round": {round}, "text": null}}"#));
        client.execute(&change, &[&bytes, &doc, &id]).await.unwrap();
        client
            .simple_query(&format!("UPDATE item SET small = small + {round} WHERE id = {id}"))
            .await
            .unwrap();
        client.simple_query(&format!("INSERT INTO log VALUES ({shop}, 'as text', {round}.5)")).await.unwrap();
        if round % 4 == 0 {
            client.execute(&delete, &[&id, &shop]).await.unwrap();
            client.execute(&insert, &[&id, &shop, &0.25, &"cd", &"again"]).await.unwrap();
        }
        client
            .simple_query(&format!("UPDATE shop SET total = total + {round} WHERE id = {shop}"))
            .await
            .unwrap();
        if round % 10 == 9 {
            client
                .simple_query(&format!(
                    "UPDATE shop SET name = 'w{worker} r{round}' WHERE id = {}",
                    worker + 1
                ))
                .await
                .unwrap();
        }
        let amount = format!("{round}.25");
        client.execute(&add, &[&AsText(amount), &shop]).await.unwrap();
    }
}

/// A value in text format, whatever its type.
#[derive(Debug)]
struct AsText(String);

impl tokio_postgres::types::ToSql for AsText {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(tokio_postgres::types::IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> tokio_postgres::types::Format {
        tokio_postgres::types::Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

#[test]
fn replicas_that_apply_in_bulk_hold_what_the_home_holds() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute(TABLES).await.unwrap();
        let workers = (0..6).map(|worker| {
            let dsn = file.client.dsn.clone();
            tokio::spawn(async move { work(&connect(&dsn).await, worker).await })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let sums =
            "SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM log), (SELECT sum(total) FROM shop)";
        // 6 workers of 40 rounds: 0 + 1 + ... + 39 as text, and the same plus 0.25 each as parameters.
        assert_eq!(rows(&client, sums).await, "240 480 9420.00");
        let verified = json(dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
    });
}

/// One replica was changed behind onecopy: where the home changed one row by each statement, it changes two and none.
#[test]
fn executions_that_affect_other_rows_are_found_even_if_they_are_as_many_in_all() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        let table = "CREATE TABLE t (id int PRIMARY KEY, k int, v int); CREATE INDEX ON t (k); INSERT INTO t VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0)";
        client.batch_execute(table).await.unwrap();
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
        // Three transactions are executed, and a replica that is the home of none of them is changed before they commit.
        let (mut open, mut at) = (Vec::new(), None);
        while at.is_none() {
            let mut homes = Vec::new();
            open = Vec::new();
            for k in [3, 1, 2] {
                let client = connect(&file.client.dsn).await;
                let execute = async {
                    client.batch_execute("BEGIN").await.unwrap();
                    let change = client.prepare("UPDATE t SET v = v + $1 WHERE k = $2").await.unwrap();
                    assert_eq!(client.execute(&change, &[&1, &k]).await.unwrap(), 1);
                };
                homes.push(home_of(dir.path(), execute).await);
                open.push(client);
            }
            // Where they have all of them for homes, they are rolled back, since their clients go.
            at = (0..3).find(|at| !homes.contains(at));
        }
        let at = at.unwrap();
        let mut behind = connect(&file.replicas[at].dsn).await;
        behind.batch_execute("UPDATE t SET k = 1 WHERE id = 2").await.unwrap();
        let lock = behind.transaction().await.unwrap();
        lock.batch_execute("LOCK TABLE t").await.unwrap();
        // The first waits there for the lock, so that the others come together behind it.
        for client in &open {
            client.batch_execute("COMMIT").await.unwrap();
        }
        lock.rollback().await.unwrap();
        super::wait_until("it is found", || {
            json(dir.path(), &["status"])["replicas"][at]["out_because"] == "differs"
        });
        let rest = rows(&client, "SELECT id, v FROM t ORDER BY id").await;
        assert_eq!(rest, "1 1, 2 1, 3 1");
    });
}

#[test]
fn parameters_have_the_types_that_columns_have_now() {
    const LONG: &str = "0.1234567890123";
    const CHANGE: &str = "UPDATE t SET x = $1 WHERE id = $2";
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let mut client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, x float4)").await.unwrap();
        client.batch_execute("INSERT INTO t SELECT n, 0 FROM generate_series(1, 80) n").await.unwrap();
        let long = || AsText(LONG.to_owned());
        // The change of the type comes as text, by the extended protocol, and within a transaction that goes on.
        for (from, alter) in [(0, "simple"), (20, "extended"), (40, "within")] {
            client.batch_execute("ALTER TABLE t ALTER COLUMN x TYPE float4").await.unwrap();
            for id in from + 1..=from + 10 {
                client.simple_query(&format!("UPDATE t SET x = '{LONG}' WHERE id = {id}")).await.unwrap();
                client.execute(CHANGE, &[&long(), &id]).await.unwrap();
            }
            let widen = "ALTER TABLE t ALTER COLUMN x TYPE float8";
            let transaction = client.transaction().await.unwrap();
            match alter {
                "simple" => transaction.batch_execute(widen).await.unwrap(),
                "extended" => drop(transaction.execute(widen, &[]).await.unwrap()),
                _ => {
                    transaction.execute(CHANGE, &[&long(), &(from + 11)]).await.unwrap();
                    transaction.execute(widen, &[]).await.unwrap();
                    transaction.execute(CHANGE, &[&long(), &(from + 11)]).await.unwrap();
                }
            }
            transaction.commit().await.unwrap();
            for id in from + 12..=from + 20 {
                client.execute(CHANGE, &[&long(), &id]).await.unwrap();
            }
            let new = format!("SELECT DISTINCT x FROM t WHERE id BETWEEN {} AND {}", from + 12, from + 20);
            assert_eq!(rows(&client, &new).await, LONG, "{alter}");
            if alter == "within" {
                assert_eq!(rows(&client, &format!("SELECT x FROM t WHERE id = {}", from + 11)).await, LONG);
            }
            let verified = json(dir.path(), &["verify"]);
            assert_eq!(verified["identical"], true, "{alter}: {verified}");
        }
    });
}

/// Every server ends the connection that executes a command with this tag.
async fn end_those_that(three: &Three, tag: &str) {
    for replica in &three.file.replicas {
        let sql = format!(
            "CREATE FUNCTION end_it() RETURNS event_trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); END';
             CREATE EVENT TRIGGER end_it ON ddl_command_start WHEN TAG IN ('{tag}') EXECUTE FUNCTION end_it()"
        );
        connect(&replica.dsn).await.batch_execute(&sql).await.unwrap();
    }
}

async fn end_nobody(three: &Three) {
    for replica in &three.file.replicas {
        let sql = "DROP EVENT TRIGGER end_it; DROP FUNCTION end_it";
        connect(&replica.dsn).await.batch_execute(sql).await.unwrap();
    }
}

#[test]
fn copy_whose_home_is_lost_in_any_of_its_steps_is_answered_by_one_error() {
    block_on(async {
        let three = Three::start();
        let client = three.client().await;
        client.batch_execute("CREATE TABLE cp (b int, n int, id bigserial)").await.unwrap();
        let dsn = &three.file.client.dsn;
        for (tag, letters) in [("CREATE TABLE", "E"), ("DROP TABLE", "GE")] {
            end_those_that(&three, tag).await;
            let mut raw = Raw::default();
            raw.query("COPY cp (b, n) FROM STDIN").data("1\t1\n1\t2\n").query("SELECT 1");
            let told = raw.outline(dsn);
            let lost = "C40001 Mthe replica on which this transaction was executing went out of service";
            assert_eq!(told, format!("{letters}[{lost}] TD[SELECT 1]"), "{tag}");
            end_nobody(&three).await;
            wait_until("every replica serves again", || {
                three.status()["replicas"].as_array().unwrap().iter().all(|replica| replica["state"] == "up")
            });
        }
        let mut raw = Raw::default();
        raw.query("COPY cp (b, n) FROM STDIN").data("1\t1\n1\t2\n");
        assert_eq!(raw.outline(dsn), "G[COPY 2]");
        assert_eq!(three.everywhere("SELECT count(*), count(DISTINCT id) FROM cp").await, "2 2");
    });
}
