//! Who waits for whom, and who does not: shown by the counters of `onecopy status`.
//!
//! Two transactions run in step on two connections. If one had to wait for the other, the test would wait for ever, so
//! each statement has a minute.

use super::clients::{block_on, connect, rows};
use super::three::Three;
use super::{Up, folder};
use bytes::Bytes;
use onecopy_cluster::ClusterFile;
use onecopy_workload::{Catalogue, Value, pgbench, tpcw};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

/// Counters of the whole cluster.
#[derive(Debug, PartialEq, Eq)]
struct Counters {
    grants_waited: u64,
    deadlocks: u64,
    reads_changed: u64,
}

fn counters(three: &Three) -> Counters {
    let status = three.status();
    let count =
        |name: &str| status["status"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"));
    Counters {
        grants_waited: count("grants_waited"),
        deadlocks: count("deadlocks"),
        reads_changed: count("reads_changed"),
    }
}

/// Runs a statement that has nothing to wait for.
async fn at_once(client: &Client, sql: &str) -> String {
    let answered = tokio::time::timeout(Duration::from_secs(60), rows(client, sql)).await;
    answered.unwrap_or_else(|_| panic!("it waits for another transaction: {sql}"))
}

/// Runs the statements of two transactions in turns, from BEGIN to COMMIT.
async fn in_step(one: &Client, other: &Client, statements: &[[String; 2]]) {
    for client in [one, other] {
        at_once(client, "BEGIN").await;
    }
    for [of_one, of_other] in statements {
        at_once(one, of_one).await;
        at_once(other, of_other).await;
    }
    for client in [one, other] {
        at_once(client, "COMMIT").await;
    }
}

/// A cluster with what is made by these statements, and two clients.
async fn start<S: AsRef<str>>(statements: &[S]) -> (Three, [Client; 2]) {
    let three = Three::start();
    let clients = [three.client().await, three.client().await];
    for sql in statements {
        at_once(&clients[0], sql.as_ref()).await;
    }
    (three, clients)
}

/// Two tables with a row each.
const TWO_TABLES: &str =
    "CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, n int);
                          INSERT INTO a VALUES (1, 0); INSERT INTO b VALUES (1, 0)";

#[test]
fn statement_that_is_refused_after_its_execution_lets_go_what_it_had_locked() {
    block_on(async {
        let made = "CREATE TABLE f (id int PRIMARY KEY, v float8); INSERT INTO f VALUES (1, 0)";
        let (three, [refused, other]) = start(&[made]).await;
        at_once(&refused, "SET extra_float_digits = 0").await;
        let change = "UPDATE f SET v = random() WHERE id = 1";
        for in_block in [false, true] {
            if in_block {
                at_once(&refused, "BEGIN").await;
            }
            let error = refused.batch_execute(change).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{error}");
            // The block is not rolled back yet.
            at_once(&other, "UPDATE f SET v = v + 1 WHERE id = 1").await;
        }
        at_once(&refused, "ROLLBACK").await;
        // What comes before a savepoint is kept, and what was refused is undone.
        at_once(&refused, "BEGIN").await;
        at_once(&refused, "UPDATE f SET v = v + 10 WHERE id = 1").await;
        at_once(&refused, "SAVEPOINT s").await;
        refused.batch_execute(change).await.unwrap_err();
        at_once(&refused, "ROLLBACK TO s").await;
        at_once(&refused, "COMMIT").await;
        assert_eq!(three.everywhere("SELECT v FROM f").await, "12");
    });
}

#[test]
fn client_that_vanishes_in_the_middle_of_something_lets_go_what_it_had_locked() {
    block_on(async {
        let made = "CREATE TABLE f (id int PRIMARY KEY, v int); INSERT INTO f VALUES (1, 0)";
        let (three, [other, _]) = start(&[made]).await;
        for halfway in ["COPY f FROM STDIN", "SELECT 1"] {
            let (gone, connection) = tokio_postgres::connect(&three.file.client.dsn, NoTls).await.unwrap();
            let connection = tokio::spawn(connection);
            at_once(&gone, "BEGIN").await;
            at_once(&gone, "UPDATE f SET v = 100 WHERE id = 1").await;
            if halfway.starts_with("COPY") {
                let sink = gone.copy_in::<_, Bytes>(halfway).await.unwrap();
                connection.abort();
                drop(sink);
            } else {
                at_once(&gone, halfway).await;
                connection.abort();
            }
            at_once(&other, "UPDATE f SET v = v + 1 WHERE id = 1").await;
        }
        assert_eq!(three.everywhere("SELECT v FROM f").await, "2");
    });
}

#[test]
fn transaction_that_has_written_one_table_lets_reads_of_another_through() {
    block_on(async {
        let (three, [writer, reader]) = start(&[TWO_TABLES]).await;
        let before = counters(&three);
        at_once(&writer, "BEGIN").await;
        at_once(&writer, "UPDATE a SET n = n + 1").await;
        let prepared = reader.prepare("SELECT n FROM b WHERE id = $1").await.unwrap();
        for _ in 0..20 {
            assert_eq!(at_once(&reader, "SELECT sum(n) FROM b").await, "0");
            assert_eq!(reader.query_one(&prepared, &[&1]).await.unwrap().get::<_, i32>(0), 0);
            at_once(&reader, "BEGIN").await;
            assert_eq!(at_once(&reader, "SELECT * FROM b").await, "1 0");
            at_once(&reader, "COMMIT").await;
        }
        // Not even a reader of the same table waits: it sees what is committed.
        assert_eq!(at_once(&reader, "SELECT n FROM a").await, "0");
        at_once(&writer, "COMMIT").await;
        assert_eq!(counters(&three), before);
        assert_eq!(at_once(&reader, "SELECT n FROM a").await, "1");
    });
}

#[test]
fn commits_to_one_table_make_no_read_of_another_wait_for_a_replica() {
    block_on(async {
        let (three, [writer, reader]) = start(&[TWO_TABLES]).await;
        // Every replica has caught up.
        three.assert_identical();
        let freshness = || three.status()["status"]["freshness_waits"].as_u64().unwrap();
        let before = freshness();
        for _ in 0..100 {
            let (written, read) = futures_util::future::join(
                at_once(&writer, "UPDATE a SET n = n + 1"),
                at_once(&reader, "SELECT n FROM b WHERE id = 1"),
            )
            .await;
            assert_eq!((written.as_str(), read.as_str()), ("", "0"));
        }
        assert_eq!(freshness(), before);
    });
}

#[test]
fn readers_and_writers_of_different_rows_of_one_table_do_not_wait_for_each_other() {
    block_on(async {
        let table = "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)";
        let (three, [one, other]) = start(&[table]).await;
        let before = counters(&three);
        let step = |one: &str, other: &str| [one.to_owned(), other.to_owned()];
        in_step(
            &one,
            &other,
            &[
                step("UPDATE t SET n = n + 1 WHERE id = 1", "SELECT n FROM t WHERE id = 2"),
                step("SELECT n FROM t WHERE id = 3", "UPDATE t SET n = n + 1 WHERE id = 2"),
                step("INSERT INTO t VALUES (4, 4)", "INSERT INTO t VALUES (5, 5)"),
                step("SELECT n FROM t WHERE id = 1 FOR UPDATE", "SELECT n FROM t WHERE id = 2 FOR UPDATE"),
                step("DELETE FROM t WHERE id = 4", "SELECT n FROM t WHERE id = 3"),
            ],
        )
        .await;
        assert_eq!(counters(&three), before);

        // The counter counts: of the same row, the second has to wait.
        at_once(&one, "BEGIN").await;
        at_once(&one, "UPDATE t SET n = 10 WHERE id = 1").await;
        let update = other.batch_execute("UPDATE t SET n = n + 1 WHERE id = 1");
        let commit = async {
            super::wait_until("the second one waits", || {
                counters(&three).grants_waited > before.grants_waited
            });
            at_once(&one, "COMMIT").await;
        };
        let (updated, ()) = futures_util::future::join(update, commit).await;
        updated.unwrap();
        assert_eq!(at_once(&one, "SELECT n FROM t WHERE id = 1").await, "11");
        assert_eq!(counters(&three).grants_waited, before.grants_waited + 1);
    });
}

/// A statement of a workload, with its parameters in its text.
fn statement(catalogue: &Catalogue, name: &str, params: &[Value]) -> String {
    let id = catalogue.statement_id(name).unwrap_or_else(|| panic!("the workload has no statement {name}"));
    catalogue.statement(id).with_literals(params)
}

#[test]
fn customers_of_the_bookstore_change_their_own_carts_without_waiting() {
    block_on(async {
        let store = tpcw::catalogue();
        let schema = [store.create_tables(), store.create_indexes(), store.add_foreign_keys()].concat();
        let (three, [one, other]) = start(&schema).await;
        let books = "INSERT INTO author (a_id) VALUES (1);
                     INSERT INTO item (i_id, i_a_id, i_title, i_cost, i_related1) VALUES
                     (1, 1, 'one', 1, 2), (2, 1, 'two', 2, 3), (3, 1, 'three', 3, 1)";
        at_once(&one, books).await;
        let int = |value: i64| Value::Int(value);
        let before = counters(&three);
        // Both put the same book into their carts, change its quantity, and look at what they have.
        for round in 0..3 {
            let carts = [round * 2 + 1, round * 2 + 2];
            let each = |name: &str, params: &dyn Fn(i64) -> Vec<Value>| {
                carts.map(|cart| statement(store, name, &params(cart)))
            };
            in_step(&one, &other, &[each("shop.create.insert", &|cart| vec![int(cart), Value::Null])]).await;
            let steps = [
                each("shop.update.find", &|cart| vec![int(cart), int(1)]),
                each("shop.update.add", &|cart| vec![int(cart), int(1)]),
                each("shop.update.count", &|cart| vec![int(cart)]),
                each("shop.update.touch", &|cart| vec![int(cart), Value::Null]),
                each("shop.update.show", &|cart| vec![int(cart)]),
            ];
            in_step(&one, &other, &steps).await;
            let steps = [
                each("shop.update.find", &|cart| vec![int(cart), int(1)]),
                each("shop.update.bump", &|cart| vec![int(cart), int(1)]),
                each("shop.update.setqty", &|cart| vec![int(7), int(cart), int(1)]),
                each("shop.update.count", &|cart| vec![int(cart)]),
                each("shop.update.touch", &|cart| vec![int(cart), Value::Null]),
                each("shop.update.show", &|cart| vec![int(cart)]),
            ];
            in_step(&one, &other, &steps).await;
            let steps = [
                each("shop.update.remove", &|cart| vec![int(cart), int(1)]),
                each("shop.update.count", &|cart| vec![int(cart)]),
                each("shop.update.suggest", &|_| vec![int(1)]),
                each("shop.update.addsuggest", &|cart| vec![int(cart), int(2)]),
                each("shop.update.touch", &|cart| vec![int(cart), Value::Null]),
                each("shop.update.show", &|cart| vec![int(cart)]),
            ];
            in_step(&one, &other, &steps).await;
        }
        assert_eq!(counters(&three), before);
        let lines = "SELECT count(*), sum(scl_i_id), sum(scl_qty) FROM shopping_cart_line";
        assert_eq!(at_once(&one, lines).await, "6 12 6");
    });
}

#[test]
fn deposits_at_different_branches_tellers_and_accounts_do_not_wait_for_each_other() {
    block_on(async {
        let bank = pgbench::catalogue();
        let (three, [one, other]) = start(&bank.create_tables()).await;
        let fill = "INSERT INTO pgbench_branches VALUES (1, 0), (2, 0);
                    INSERT INTO pgbench_tellers SELECT g, 1 + g / 11, 0 FROM generate_series(1, 20) g;
                    INSERT INTO pgbench_accounts SELECT g, 1 + g / 51, 0 FROM generate_series(1, 100) g";
        at_once(&one, fill).await;
        let before = counters(&three);
        for round in 0..5 {
            // Account, teller and branch of each.
            let who = [[1 + round, 1 + round, 1], [51 + round, 11 + round, 2]].map(|who| who.map(Value::Int));
            let amount = Value::Int(100);
            let each = |name: &str, params: &dyn Fn(&[Value; 3]) -> Vec<Value>| {
                [0, 1].map(|which| statement(bank, name, &params(&who[which])))
            };
            let steps = [
                each("tpcb.deposit.account", &|[account, ..]| vec![account.clone(), amount.clone()]),
                each("tpcb.deposit.balance", &|[account, ..]| vec![account.clone()]),
                each("tpcb.deposit.teller", &|[_, teller, _]| vec![teller.clone(), amount.clone()]),
                each("tpcb.deposit.branch", &|[.., branch]| vec![branch.clone(), amount.clone()]),
                each("tpcb.deposit.history", &|[account, teller, branch]| {
                    vec![teller.clone(), branch.clone(), account.clone(), amount.clone(), Value::Null]
                }),
            ];
            in_step(&one, &other, &steps).await;
        }
        assert_eq!(counters(&three), before);
        let sums = "SELECT (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers),
                    (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(delta) FROM pgbench_history)";
        assert_eq!(at_once(&one, sums).await, "1000 1000 1000 1000");
    });
}

#[test]
fn three_replicas_share_a_load_of_reads() {
    const CLIENTS: usize = 4;
    const READS: usize = 5_000;
    block_on(async {
        let table = "CREATE TABLE t (id int PRIMARY KEY, n int);
                     INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g";
        let (three, _) = start(&[table]).await;
        // Every replica has caught up.
        three.assert_identical();
        let served = || -> Vec<u64> {
            let status = three.status();
            let replicas = status["replicas"].as_array().unwrap().iter();
            replicas.map(|replica| replica["reads"].as_u64().unwrap()).collect()
        };
        let before = served();
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let dsn = three.file.client.dsn.clone();
                tokio::spawn(async move {
                    let client = connect(&dsn).await;
                    let select = client.prepare("SELECT n FROM t WHERE id = $1").await.unwrap();
                    for begin in (0..READS).step_by(100) {
                        // A hundred on their way at once: each future sends when it is first polled.
                        let ids = (begin..begin + 100)
                            .map(|at| i32::try_from((at * 7 + number) % 1000 + 1).unwrap());
                        let (client, select) = (&client, &select);
                        let reads = ids.map(|id| async move {
                            assert_eq!(client.query_one(select, &[&id]).await.unwrap().get::<_, i32>(0), id);
                        });
                        futures_util::future::join_all(reads).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let served: Vec<u64> = served().iter().zip(before).map(|(now, before)| now - before).collect();
        let total: u64 = served.iter().sum();
        assert!(total >= (CLIENTS * READS) as u64, "{served:?}");
        for reads in &served {
            assert!(reads * 4 >= total, "a replica served less than a quarter: {served:?}");
        }
    });
}

#[test]
fn transaction_refused_since_a_definition_changed_holds_up_nobody() {
    block_on(async {
        let (three, [one, other]) = start(&[TWO_TABLES]).await;
        at_once(&one, "BEGIN; ALTER TABLE b ALTER COLUMN n SET DEFAULT random() * 1000000").await;
        at_once(&other, "BEGIN; UPDATE a SET n = 1 WHERE id = 1").await;
        let before = counters(&three).grants_waited;
        // Classified before the change it would draw another number on each replica.
        let waits = other.batch_execute("INSERT INTO b (id) VALUES (2)");
        let commits = async {
            while counters(&three).grants_waited == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            at_once(&one, "COMMIT").await;
        };
        let (refused, ()) = futures_util::future::join(waits, commits).await;
        assert_eq!(refused.unwrap_err().code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
        // Its client has not said ROLLBACK yet.
        at_once(&one, "UPDATE a SET n = 2 WHERE id = 1").await;
        at_once(&other, "ROLLBACK").await;
    });
}

#[test]
fn a_statement_waits_no_longer_than_its_session_or_its_text_allows() {
    block_on(async {
        let table = "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)";
        let (three, [one, other]) = start(&[table]).await;
        at_once(&one, "BEGIN").await;
        at_once(&one, "UPDATE t SET n = 10 WHERE id = 1").await;
        let refused = async |sql: &str| {
            let error = other.batch_execute(sql).await.expect_err(sql);
            (error.code().cloned().unwrap(), error.as_db_error().unwrap().message().to_owned())
        };

        let update = "UPDATE t SET n = n + 1 WHERE id = 1";
        let lock_timeout = "canceling statement due to lock timeout".to_owned();
        let statement_timeout = "canceling statement due to statement timeout".to_owned();
        other.batch_execute("SET lock_timeout = '30ms'").await.unwrap();
        assert_eq!(refused(update).await, (SqlState::LOCK_NOT_AVAILABLE, lock_timeout.clone()));
        other.batch_execute("SET lock_timeout = '10min'; SET statement_timeout = '500ms'").await.unwrap();
        assert_eq!(refused(update).await, (SqlState::QUERY_CANCELED, statement_timeout));
        other.batch_execute("RESET statement_timeout; RESET lock_timeout").await.unwrap();

        other.batch_execute("BEGIN; SET LOCAL lock_timeout = '30ms'").await.unwrap();
        assert_eq!(refused(update).await, (SqlState::LOCK_NOT_AVAILABLE, lock_timeout));
        other.batch_execute("ROLLBACK").await.unwrap();

        let held = "could not obtain a lock that another transaction holds".to_owned();
        for sql in ["SELECT n FROM t WHERE id = 1 FOR UPDATE NOWAIT", "BEGIN; LOCK TABLE t NOWAIT"] {
            assert_eq!(refused(sql).await, (SqlState::LOCK_NOT_AVAILABLE, held.clone()), "{sql}");
        }
        other.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&other, "SELECT n FROM t WHERE id = 2 FOR UPDATE NOWAIT").await, "0");

        at_once(&one, "COMMIT").await;
        assert_eq!(rows(&other, "SELECT n FROM t WHERE id = 1 FOR UPDATE NOWAIT").await, "10");
        three.assert_identical();
    });
}

#[test]
fn time_limits_of_roles_and_servers_bound_waiting_as_those_of_sessions_do() {
    block_on(async {
        let dir = folder();
        let _up = Up::ready(dir.path(), 1);
        let file = ClusterFile::read(dir.path()).unwrap();
        let holder = connect(&file.client.dsn).await;
        at_once(&holder, "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)").await;
        let replica = connect(&file.replicas[0].dsn).await;
        replica.batch_execute("ALTER SYSTEM SET lock_timeout = '70ms'").await.unwrap();
        replica.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        while rows(&replica, "SHOW lock_timeout").await != "70ms" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A server's file is looked at when definitions have changed.
        at_once(&holder, "CREATE TABLE later (id int)").await;
        at_once(&holder, "SET lock_timeout = 0").await;
        let hold = "BEGIN; UPDATE t SET n = 10 WHERE id = 1";
        at_once(&holder, hold).await;
        let refused = async |client: &Client| {
            let waits = client.batch_execute("UPDATE t SET n = n + 1 WHERE id = 1");
            let ended = tokio::time::timeout(Duration::from_secs(50), waits).await;
            let error = ended.expect("it waits for as long as onecopy lets it").unwrap_err();
            error.as_db_error().unwrap().message().to_owned()
        };
        let of_file = connect(&file.client.dsn).await;
        assert_eq!(rows(&of_file, "SHOW lock_timeout").await, "70ms");
        assert_eq!(refused(&of_file).await, "canceling statement due to lock timeout");

        let own =
            "ALTER ROLE postgres SET lock_timeout = 0; ALTER ROLE postgres SET statement_timeout = '600ms'";
        // Definitions change when no transaction is open.
        at_once(&holder, "COMMIT").await;
        at_once(&holder, own).await;
        at_once(&holder, hold).await;
        let of_role = connect(&file.client.dsn).await;
        assert_eq!(rows(&of_role, "SHOW statement_timeout").await, "600ms");
        assert_eq!(refused(&of_role).await, "canceling statement due to statement timeout");
        of_role.batch_execute("SET statement_timeout = 0; SET lock_timeout = '40ms'").await.unwrap();
        assert_eq!(refused(&of_role).await, "canceling statement due to lock timeout");
        at_once(&holder, "COMMIT").await;
    });
}

/// What a statement is refused with that should wait.
async fn refused(client: &Client, sql: &str) -> SqlState {
    let ended = tokio::time::timeout(Duration::from_secs(60), client.batch_execute(sql)).await;
    let error = ended.unwrap_or_else(|_| panic!("it waits for ever: {sql}")).expect_err(sql);
    error.code().cloned().unwrap_or_else(|| panic!("{sql}: {error}"))
}

#[test]
fn transaction_goes_back_to_its_savepoint_after_a_statement_that_was_given_up_while_it_waited() {
    block_on(async {
        let (three, [holder, client]) = start(&[TWO_TABLES]).await;
        let update = "UPDATE a SET n = n + 1 WHERE id = 1";
        let prepared = client.prepare(update).await.unwrap();
        let waits_at_all = || counters(&three).grants_waited;
        for way in ["NOWAIT", "lock_timeout", "statement_timeout", "cancel", "prepared"] {
            at_once(&holder, "BEGIN; UPDATE a SET n = 9 WHERE id = 1").await;
            at_once(&client, "BEGIN; UPDATE b SET n = n + 1 WHERE id = 1; SAVEPOINT before").await;
            at_once(&client, "INSERT INTO b VALUES (2, 77)").await;
            let code = match way {
                "NOWAIT" => refused(&client, "SELECT * FROM a WHERE id = 1 FOR UPDATE NOWAIT").await,
                "cancel" => {
                    let waited = waits_at_all();
                    let token = client.cancel_token();
                    let cancels = async {
                        while waits_at_all() == waited {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        token.cancel_query(tokio_postgres::NoTls).await.unwrap();
                    };
                    futures_util::future::join(refused(&client, update), cancels).await.0
                }
                "prepared" => {
                    at_once(&client, "SET LOCAL lock_timeout = '20ms'").await;
                    client.execute(&prepared, &[]).await.unwrap_err().code().cloned().unwrap()
                }
                // What follows it in the message is not executed.
                limit => {
                    refused(&client, &format!("SET LOCAL {limit} = '20ms'; {update}; DELETE FROM b")).await
                }
            };
            let cancelled = matches!(way, "statement_timeout" | "cancel");
            let expected = if cancelled { SqlState::QUERY_CANCELED } else { SqlState::LOCK_NOT_AVAILABLE };
            assert_eq!(code, expected, "{way}");
            for sql in ["SELECT 1", "RELEASE before", "SAVEPOINT again"] {
                assert_eq!(refused(&client, sql).await, SqlState::IN_FAILED_SQL_TRANSACTION, "{way}: {sql}");
            }
            at_once(&client, "ROLLBACK TO before; RELEASE before").await;
            at_once(&client, "INSERT INTO b SELECT max(id) + 10, 5 FROM b").await;
            at_once(&client, "COMMIT").await;
            at_once(&holder, "COMMIT").await;
        }
        assert_eq!(
            three.everywhere("SELECT * FROM b ORDER BY id").await,
            "1 5, 11 5, 21 5, 31 5, 41 5, 51 5"
        );
        assert_eq!(three.everywhere("SELECT n FROM a").await, "9");
    });
}

#[test]
fn transaction_that_had_only_read_goes_on_after_a_lock_that_it_did_not_get() {
    block_on(async {
        let (three, [holder, client]) = start(&[TWO_TABLES]).await;
        let hold = "BEGIN; UPDATE a SET n = 9 WHERE id = 1";
        at_once(&holder, hold).await;
        let lock = "SELECT * FROM a WHERE id = 1 FOR UPDATE NOWAIT";
        let not_available = SqlState::LOCK_NOT_AVAILABLE;
        // Nothing but a savepoint came before.
        at_once(&client, "BEGIN; SAVEPOINT one").await;
        assert_eq!(refused(&client, lock).await, not_available);
        at_once(&client, "ROLLBACK TO one; RELEASE one").await;
        at_once(&client, "SAVEPOINT two; UPDATE b SET n = 1 WHERE id = 1; ROLLBACK TO two").await;
        at_once(&client, "UPDATE b SET n = n + 10 WHERE id = 1; COMMIT").await;
        at_once(&holder, "ROLLBACK").await;
        assert_eq!(three.everywhere("SELECT n FROM b").await, "10");

        // Reads of both tables, a setting and a cursor in the middle of its rows.
        at_once(&holder, hold).await;
        at_once(&client, "BEGIN; SET LOCAL application_name = 'inside'; SAVEPOINT one").await;
        assert_eq!(at_once(&client, "SELECT a.n, b.n FROM a, b").await, "0 10");
        at_once(&client, "DECLARE c CURSOR FOR SELECT id FROM b UNION ALL SELECT 2").await;
        assert_eq!(at_once(&client, "FETCH c").await, "1");
        at_once(&client, "SAVEPOINT two").await;
        for _ in 0..2 {
            assert_eq!(refused(&client, lock).await, not_available);
            at_once(&client, "ROLLBACK TO two").await;
        }
        at_once(&client, "RELEASE two").await;
        assert_eq!(at_once(&client, "FETCH c").await, "2");
        assert_eq!(at_once(&client, "SHOW application_name").await, "inside");
        // Others write what it has not read, and it sees one state of everything that it reads.
        assert_eq!(at_once(&client, "SELECT a.n, b.n FROM a, b").await, "0 10");
        at_once(&client, "ROLLBACK TO one").await;
        assert_eq!(refused(&client, "FETCH c").await, SqlState::INVALID_CURSOR_NAME);
        at_once(&client, "ROLLBACK TO one; COMMIT").await;
        at_once(&holder, "ROLLBACK").await;

        // What it has read is changed before it goes on.
        at_once(&holder, hold).await;
        at_once(&client, "BEGIN; SAVEPOINT one; SELECT n FROM a").await;
        assert_eq!(refused(&client, lock).await, not_available);
        at_once(&client, "ROLLBACK TO one").await;
        at_once(&holder, "COMMIT").await;
        assert_eq!(refused(&client, "SELECT n FROM b").await, SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(refused(&client, "ROLLBACK TO one").await, SqlState::T_R_SERIALIZATION_FAILURE);
        at_once(&client, "ROLLBACK").await;
    });
}

#[test]
fn transaction_without_a_savepoint_holds_nothing_after_a_statement_that_was_given_up() {
    block_on(async {
        let (three, [holder, client]) = start(&[TWO_TABLES]).await;
        let other = three.client().await;
        at_once(&holder, "BEGIN; UPDATE a SET n = 9 WHERE id = 1").await;
        for begin in ["BEGIN;", ""] {
            let text = format!(
                "{begin} UPDATE b SET n = 77 WHERE id = 1; SELECT * FROM a WHERE id = 1 FOR UPDATE NOWAIT; SELECT 1"
            );
            assert_eq!(refused(&client, &text).await, SqlState::LOCK_NOT_AVAILABLE);
            at_once(&other, "UPDATE b SET n = n + 1 WHERE id = 1").await;
            if begin.is_empty() {
                assert_eq!(at_once(&client, "SELECT n FROM b").await, "2");
                continue;
            }
            assert_eq!(refused(&client, "SELECT 1").await, SqlState::IN_FAILED_SQL_TRANSACTION);
            assert_eq!(refused(&client, "ROLLBACK TO nowhere").await, SqlState::S_E_INVALID_SPECIFICATION);
            // It rolls back, and says so.
            at_once(&client, "COMMIT").await;
        }
        at_once(&holder, "COMMIT").await;
    });
}

#[test]
fn transaction_given_up_for_a_deadlock_goes_back_to_no_savepoint_and_commits_nothing() {
    block_on(async {
        let (_three, [older, younger]) = start(&[TWO_TABLES]).await;
        for end in ["SELECT 1", "COMMIT"] {
            at_once(&older, "BEGIN; UPDATE a SET n = 1 WHERE id = 1").await;
            at_once(&younger, "BEGIN; UPDATE b SET n = 77 WHERE id = 1; SAVEPOINT before").await;
            let circle = futures_util::future::join(
                refused(&younger, "UPDATE a SET n = 77 WHERE id = 1"),
                at_once(&older, "UPDATE b SET n = 1 WHERE id = 1"),
            );
            assert_eq!(circle.await.0, SqlState::T_R_DEADLOCK_DETECTED);
            assert_eq!(refused(&younger, "ROLLBACK TO before").await, SqlState::T_R_SERIALIZATION_FAILURE);
            assert_eq!(younger.batch_execute(end).await.is_ok(), end == "COMMIT");
            at_once(&younger, "ROLLBACK").await;
            at_once(&older, "COMMIT").await;
            assert_eq!(at_once(&younger, "SELECT n FROM b").await, "1");
        }
    });
}

#[test]
fn transaction_that_becomes_read_only_late_refuses_writes_and_keeps_those_before() {
    block_on(async {
        let (_three, [client, _]) = start(&[TWO_TABLES]).await;
        let refused = async |sql: &str| client.batch_execute(sql).await.unwrap_err().code().cloned();
        at_once(&client, "BEGIN; UPDATE a SET n = 1; SET TRANSACTION READ ONLY").await;
        assert_eq!(refused("UPDATE a SET n = 2").await, Some(SqlState::READ_ONLY_SQL_TRANSACTION));
        at_once(&client, "ROLLBACK").await;
        at_once(&client, "BEGIN; UPDATE a SET n = 3; SET TRANSACTION READ ONLY").await;
        at_once(&client, "COMMIT").await;
        assert_eq!(at_once(&client, "SELECT n FROM a").await, "3");
        at_once(&client, "BEGIN READ ONLY; SELECT 1").await;
        let late = refused("SET TRANSACTION READ WRITE").await;
        assert_eq!(late, Some(SqlState::ACTIVE_SQL_TRANSACTION));
        at_once(&client, "ROLLBACK").await;
    });
}

/// Readers of a view take items of the tables behind it, and a lock on the view at their server.
#[test]
fn view_is_replaced_and_an_index_dropped_when_those_who_read_by_them_have_ended() {
    block_on(async {
        let made = "CREATE VIEW v AS SELECT n FROM a; CREATE INDEX by_n ON a (n)";
        let (three, [reader, definer]) = start(&[TWO_TABLES, made]).await;
        let changes = ["CREATE OR REPLACE VIEW v AS SELECT n FROM b", "DROP INDEX by_n"];
        for begins in ["UPDATE b SET n = 1", "SELECT 1"] {
            at_once(&reader, "BEGIN").await;
            at_once(&reader, begins).await;
            assert_eq!(at_once(&reader, "SELECT * FROM v").await, "0");
            at_once(&definer, "SET lock_timeout = '100ms'").await;
            for change in changes {
                let waited = definer.batch_execute(change).await.unwrap_err();
                assert_eq!(waited.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{change}: {waited}");
            }
            at_once(&reader, "COMMIT").await;
        }
        at_once(&definer, "RESET lock_timeout").await;
        for change in changes {
            at_once(&definer, change).await;
        }
        assert_eq!(at_once(&reader, "SELECT * FROM v").await, "1");
        three.assert_identical();
    });
}

#[test]
fn references_to_a_table_come_and_go_while_it_is_written_to() {
    block_on(async {
        let (three, [defining, writing]) = start(&["CREATE TABLE ea (id int PRIMARY KEY, n int)"]).await;
        let other = three.client().await;
        let done = std::sync::atomic::AtomicBool::new(false);
        let writes = async |client: &Client, from: i32| {
            let mut id = from;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                at_once(client, &format!("INSERT INTO ea VALUES ({id}, 0)")).await;
                at_once(client, &format!("UPDATE ea SET n = n + 1 WHERE id = {id}")).await;
                id += 2;
            }
        };
        let defines = async {
            for _ in 0..12 {
                for sql in [
                    "CREATE TABLE eb (id int PRIMARY KEY, CONSTRAINT eb_ea FOREIGN KEY (id) REFERENCES ea)",
                    "ALTER TABLE eb DROP CONSTRAINT eb_ea",
                    "ALTER TABLE eb ADD CONSTRAINT eb_ea FOREIGN KEY (id) REFERENCES ea NOT VALID",
                    "ALTER TABLE eb VALIDATE CONSTRAINT eb_ea",
                    "ALTER TABLE eb ALTER COLUMN id TYPE bigint",
                    "DROP TABLE eb",
                ] {
                    at_once(&defining, sql).await;
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        tokio::join!(defines, writes(&writing, 0), writes(&other, 1));
        three.assert_identical();
    });
}
