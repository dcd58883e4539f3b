//! tokio-postgres: the simple and the extended protocol, pipelined statements, COPY, cancel, errors.

use super::Servers;
use futures_util::{SinkExt, TryStreamExt, future::join_all};
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, IsolationLevel, NoTls, SimpleQueryMessage};

async fn connect(servers: &Servers) -> Client {
    let (client, connection) = tokio_postgres::connect(servers.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE SCHEMA IF NOT EXISTS tokio; SET search_path = tokio").await.unwrap();
    client
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test)
}

/// Every answer of a string of statements, in words.
async fn simple(client: &Client, sql: &str) -> Vec<String> {
    let word = |message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells: Vec<&str> = (0..row.len()).map(|cell| row.get(cell).unwrap_or("null")).collect();
            format!("row {}", cells.join("|"))
        }
        SimpleQueryMessage::CommandComplete(rows) => format!("done {rows}"),
        SimpleQueryMessage::RowDescription(columns) => {
            let names: Vec<&str> = columns.iter().map(|column| column.name()).collect();
            format!("columns {}", names.join("|"))
        }
        _ => "something else".to_owned(),
    };
    client.simple_query(sql).await.unwrap().into_iter().map(word).collect()
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("none", SqlState::code)
}

#[test]
fn simple_protocol_answers_every_statement_of_a_string() {
    block_on(async {
        let servers = Servers::shared();
        let client = connect(&servers).await;
        let answers = simple(
            &client,
            "CREATE TABLE simple (id int PRIMARY KEY, name text);
             INSERT INTO simple VALUES (1, 'one'), (2, NULL);
             SELECT * FROM simple ORDER BY id; SELECT 1 WHERE false; DELETE FROM simple WHERE id > 1",
        )
        .await;
        let expected = [
            "done 0",
            "done 2",
            "columns id|name",
            "row 1|one",
            "row 2|null",
            "done 2",
            "columns ?column?",
            "done 0",
            "done 1",
        ];
        assert_eq!(answers, expected);
        // A string of several statements is one transaction.
        let error = client.simple_query("DELETE FROM simple; SELECT 1 / 0").await.unwrap_err();
        assert_eq!(code(&error), "22012");
        assert_eq!(
            simple(&client, "SELECT count(*) FROM simple").await,
            ["columns count", "row 1", "done 1"]
        );
        servers.assert_identical();
    });
}

#[test]
fn extended_protocol_binds_every_type_and_describes_statements() {
    block_on(async {
        let servers = Servers::shared();
        let client = connect(&servers).await;
        client
            .batch_execute("CREATE TYPE shade AS ENUM ('light', 'dark');
                            CREATE TABLE extended (id bigserial PRIMARY KEY, small smallint, number int, real float8,
                                truth bool, name varchar(9), raw bytea, list int[], chosen shade DEFAULT 'dark')")
            .await
            .unwrap();
        let insert = client
            .prepare(
                "INSERT INTO extended (small, number, real, truth, name, raw, list)
                      VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id, chosen::text",
            )
            .await
            .unwrap();
        let types =
            [Type::INT2, Type::INT4, Type::FLOAT8, Type::BOOL, Type::VARCHAR, Type::BYTEA, Type::INT4_ARRAY];
        assert_eq!(insert.params(), types);
        let names: Vec<&str> = insert.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names, ["id", "chosen"]);
        for number in 1..=3_i32 {
            let raw = [0, u8::try_from(number).unwrap()];
            let params: [&(dyn ToSql + Sync); 7] =
                [&7_i16, &number, &1.5_f64, &true, &Some("name"), &&raw[..], &vec![Some(1), None]];
            let row = client.query_one(&insert, &params).await.unwrap();
            assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (i64::from(number), "dark"));
        }
        let none: Option<&str> = None;
        let params: [&(dyn ToSql + Sync); 7] = [
            &None::<i16>,
            &None::<i32>,
            &None::<f64>,
            &None::<bool>,
            &none,
            &None::<&[u8]>,
            &None::<Vec<i32>>,
        ];
        client.execute(&insert, &params).await.unwrap();

        let select = client.prepare("SELECT * FROM extended WHERE id = $1").await.unwrap();
        let row = client.query_one(&select, &[&2_i64]).await.unwrap();
        assert_eq!(row.get::<_, i16>("small"), 7);
        assert_eq!(row.get::<_, i32>("number"), 2);
        assert_eq!(row.get::<_, &[u8]>("raw"), [0, 2]);
        assert_eq!(row.get::<_, Vec<Option<i32>>>("list"), [Some(1), None]);
        assert_eq!(row.columns()[8].type_().name(), "shade", "a type of the user's, by its number");
        assert!(client.query_opt(&select, &[&99_i64]).await.unwrap().is_none());
        let typed = client.query_typed("SELECT $1 + 1", &[(&41_i32, Type::INT4)]).await.unwrap();
        assert_eq!(typed[0].get::<_, i32>(0), 42);

        let error = client.prepare("SELECT nothing FROM extended").await.unwrap_err();
        assert_eq!(code(&error), "42703");
        let error = client.execute("INSERT INTO extended (id) VALUES ($1)", &[&1_i64]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::UNIQUE_VIOLATION);
        assert_eq!((error.table(), error.constraint()), (Some("extended"), Some("extended_pkey")));
        servers.assert_identical();
    });
}

#[test]
fn rows_of_a_portal_come_in_parts() {
    block_on(async {
        let servers = Servers::shared();
        let mut client = connect(&servers).await;
        client
            .batch_execute(
                "CREATE TABLE parts (id int PRIMARY KEY); INSERT INTO parts SELECT generate_series(1, 1000)",
            )
            .await
            .unwrap();
        // The second goes from reading to writing while its portal is open, the third has written before.
        for (updates, writes_first) in [(false, false), (true, false), (true, true)] {
            let fill = "DELETE FROM parts; INSERT INTO parts SELECT generate_series(1, 1000)";
            client.batch_execute(fill).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            if writes_first {
                transaction.execute("DELETE FROM parts WHERE id > 1000", &[]).await.unwrap();
            }
            let portal = transaction.bind("SELECT id FROM parts ORDER BY id", &[]).await.unwrap();
            let mut seen = Vec::new();
            loop {
                let rows = transaction.query_portal(&portal, 300).await.unwrap();
                if rows.is_empty() {
                    break;
                }
                // Another statement in between, in the same transaction.
                let id = rows[0].get::<_, i32>(0);
                let sql = if updates {
                    "UPDATE parts SET id = -id WHERE id = $1"
                } else {
                    "SELECT FROM parts WHERE id = $1"
                };
                assert_eq!(transaction.execute(sql, &[&id]).await.unwrap(), 1);
                seen.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
            }
            assert_eq!(seen, (1..=1000).collect::<Vec<_>>(), "a portal shows what was there when it began");
            transaction.commit().await.unwrap();
        }
        let row = client.query_one("SELECT count(*) FROM parts WHERE id < 0", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 4);
        servers.assert_identical();
    });
}

#[test]
fn pipelined_statements_are_answered_in_order_and_fail_alone() {
    block_on(async {
        let servers = Servers::shared();
        let client = connect(&servers).await;
        client.batch_execute("CREATE TABLE piped (id int PRIMARY KEY, name text)").await.unwrap();
        let insert = client.prepare("INSERT INTO piped VALUES ($1, 'x')").await.unwrap();
        let count = client.prepare("SELECT count(*) FROM piped").await.unwrap();
        // Each future sends when it is first polled, so all are on their way before the first answer.
        let counted = join_all((0..500_i32).map(|id| {
            let (client, insert, count) = (&client, &insert, &count);
            async move {
                let (inserted, counted) = futures_util::future::join(
                    client.execute(insert, &[&(id % 400)]),
                    client.query_one(count, &[]),
                )
                .await;
                (inserted.map_err(|error| code(&error).to_owned()), counted.unwrap().get::<_, i64>(0))
            }
        }))
        .await;
        for (id, (inserted, counted)) in counted.into_iter().enumerate() {
            if id < 400 {
                assert_eq!(
                    (inserted, counted),
                    (Ok(1), id as i64 + 1),
                    "a pipeline reads what it has written"
                );
            } else {
                assert_eq!((inserted, counted), (Err("23505".to_owned()), 400));
            }
        }
        servers.assert_identical();
    });
}

#[test]
fn copy_goes_both_ways_within_and_without_a_transaction() {
    block_on(async {
        let servers = Servers::shared();
        let mut client = connect(&servers).await;
        client.batch_execute("CREATE TABLE copied (id int PRIMARY KEY, name text)").await.unwrap();
        let data: String = (0..5_000).map(|id| format!("{id}\tname {id}\n")).collect();
        let mut sink = pin!(client.copy_in::<_, bytes::Bytes>("COPY copied FROM STDIN").await.unwrap());
        for chunk in data.as_bytes().chunks(777) {
            sink.send(bytes::Bytes::copy_from_slice(chunk)).await.unwrap();
        }
        assert_eq!(sink.finish().await.unwrap(), 5_000);
        let out = client.copy_out("COPY (SELECT * FROM copied ORDER BY id) TO STDOUT").await.unwrap();
        let out: Vec<bytes::Bytes> = out.try_collect().await.unwrap();
        assert_eq!(String::from_utf8(out.concat()).unwrap(), data);

        let transaction = client.transaction().await.unwrap();
        transaction.execute("DELETE FROM copied WHERE id >= 10", &[]).await.unwrap();
        let mut sink = pin!(transaction.copy_in("COPY copied (id) FROM STDIN (FORMAT csv)").await.unwrap());
        sink.send(&b"10\n11\n"[..]).await.unwrap();
        assert_eq!(sink.finish().await.unwrap(), 2);
        let out = transaction
            .copy_out("COPY (SELECT id FROM copied WHERE id > 8 ORDER BY id) TO STDOUT")
            .await
            .unwrap();
        let out: Vec<bytes::Bytes> = out.try_collect().await.unwrap();
        assert_eq!(out.concat(), b"9\n10\n11\n");
        transaction.commit().await.unwrap();

        // What is dropped before its end, or is wrong, leaves nothing.
        let mut sink = pin!(client.copy_in("COPY copied (id) FROM STDIN").await.unwrap());
        sink.send(&b"100\n10\n"[..]).await.unwrap();
        assert_eq!(code(&sink.finish().await.unwrap_err()), "23505");
        {
            let mut sink = Box::pin(client.copy_in("COPY copied (id) FROM STDIN").await.unwrap());
            sink.send(&b"100\n"[..]).await.unwrap();
        }
        let row = client.query_one("SELECT count(*), max(id) FROM copied", &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (12, 11));
        servers.assert_identical();
    });
}

#[test]
fn cancel_ends_what_runs_and_what_waits_and_the_session_goes_on() {
    block_on(async {
        let servers = Servers::shared();
        let client = connect(&servers).await;
        client
            .batch_execute("CREATE TABLE held (id int PRIMARY KEY, n int); INSERT INTO held VALUES (1, 0)")
            .await
            .unwrap();
        let mut holder = connect(&servers).await;
        let transaction = holder.transaction().await.unwrap();
        transaction.execute("UPDATE held SET n = 1 WHERE id = 1", &[]).await.unwrap();
        // One runs on a replica, the other waits for a row that another transaction holds.
        for statement in ["SELECT pg_sleep(300)", "UPDATE held SET n = n + 1 WHERE id = 1"] {
            let token = client.cancel_token();
            let mut running = pin!(client.batch_execute(statement));
            // A request that arrives before its statement cancels nothing, so it is made again until it does.
            let error = loop {
                match tokio::time::timeout(Duration::from_millis(200), running.as_mut()).await {
                    Ok(result) => break result.unwrap_err(),
                    Err(_) => token.cancel_query(NoTls).await.unwrap(),
                }
            };
            assert_eq!(code(&error), "57014", "{statement}: {error:?}");
            // One of those requests may reach the next statement.
            while client.batch_execute("SELECT 1").await.is_err() {}
        }
        transaction.commit().await.unwrap();
        assert_eq!(client.execute("UPDATE held SET n = n + 10 WHERE id = 1", &[]).await.unwrap(), 1);
        assert_eq!(client.query_one("SELECT n FROM held", &[]).await.unwrap().get::<_, i32>(0), 11);
        servers.assert_identical();
    });
}

#[test]
fn transactions_nest_by_savepoints_and_dropping_one_rolls_it_back() {
    block_on(async {
        let servers = Servers::shared();
        let mut client = connect(&servers).await;
        client.batch_execute("CREATE TABLE nested (id int PRIMARY KEY)").await.unwrap();
        for level in
            [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable]
        {
            let mut transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
            transaction.execute("DELETE FROM nested", &[]).await.unwrap();
            transaction.execute("INSERT INTO nested VALUES (1)", &[]).await.unwrap();
            {
                let inner = transaction.transaction().await.unwrap();
                inner.execute("INSERT INTO nested VALUES (2)", &[]).await.unwrap();
            }
            let inner = transaction.savepoint("kept").await.unwrap();
            inner.execute("INSERT INTO nested VALUES (3)", &[]).await.unwrap();
            inner.commit().await.unwrap();
            transaction.commit().await.unwrap();
            {
                let dropped = client.transaction().await.unwrap();
                dropped.execute("DELETE FROM nested", &[]).await.unwrap();
            }
            let rows = client.query("SELECT id FROM nested ORDER BY id", &[]).await.unwrap();
            assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [1, 3]);
        }
        let reading = client.build_transaction().read_only(true).start().await.unwrap();
        let error = reading.execute("DELETE FROM nested", &[]).await.unwrap_err();
        assert_eq!(code(&error), "25006");
        reading.rollback().await.unwrap();
        servers.assert_identical();
    });
}

#[test]
fn notices_reach_the_client() {
    block_on(async {
        let servers = Servers::shared();
        let (client, mut connection) = tokio_postgres::connect(servers.dsn(), NoTls).await.unwrap();
        let (sender, mut notices) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let Ok(AsyncMessage::Notice(notice)) = message {
                    let _ = sender.send(notice.message().to_owned());
                }
            }
        });
        client.batch_execute("DROP TABLE IF EXISTS no_such_table").await.unwrap();
        assert_eq!(notices.recv().await.unwrap(), "table \"no_such_table\" does not exist, skipping");
    });
}
