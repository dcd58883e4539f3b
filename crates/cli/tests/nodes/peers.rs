//! Peers as processes, each before a server of its own (docs/protocols/invalidation.md, *On real servers*).

use crate::rig::{Nodes, block_on, code, connect, rows};
use crate::sites::{LISTS, Load, lists, sites, with_lists};
use onecopy_sim::check::{self, History, Level, Transaction};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio_postgres::error::SqlState;

async fn peers(protocol: &str) -> Nodes {
    with_lists(3, false, &[("protocol", protocol)]).await
}

/// Peers agree on tables: each list has one of its own.
fn table(list: u64) -> String {
    format!("lists_{list}")
}

/// What clients have seen is what one copy shows that runs one transaction at a time, in real time.
#[track_caller]
fn expect_strict(seen: Vec<Transaction>, protocol: &str) {
    let count = seen.len();
    println!("{protocol}: {count} transactions");
    assert!(count > 50, "{protocol}: {count}");
    let report = check::check(&History::new(seen).unwrap(), Level::StrictSerializable);
    assert!(report.violations.is_empty(), "{protocol}: {report:?}");
}

#[test]
fn what_clients_of_all_peers_see_is_strictly_serializable() {
    block_on(async {
        let tables: String = (1..=LISTS).map(|list| lists(&table(list), list..=list)).collect();
        for protocol in ["invalidation", "lock_distributed", "lock_central"] {
            let nodes = sites(3, false, &[("protocol", protocol)], &tables).await;
            let load = Load::start_on(&nodes, 3, table);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let seen = load.end().await;
            let of_tables: Vec<String> =
                (1..=LISTS).map(|list| format!("SELECT * FROM {}", table(list))).collect();
            nodes.everywhere(&of_tables.join(" UNION ALL ")).await;
            expect_strict(seen, protocol);
        }
    });
}

/// Lists of one table that is cut, so that some of them may be written at the same time; others count all of them.
#[test]
fn what_clients_of_peers_that_cut_tables_see_is_strictly_serializable() {
    block_on(async {
        for protocol in ["invalidation", "lock_distributed", "lock_central"] {
            let nodes = with_lists(3, false, &[("protocol", protocol), ("peers.granules", "3")]).await;
            let load = Load::start(&nodes, 3);
            let client = nodes.client(1).await;
            for _ in 0..5 {
                let lists = rows(&client, "SELECT count(*) FROM lists").await;
                assert_eq!(lists, LISTS.to_string());
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
            let seen = load.end().await;
            // Rows of different granules may lie in different orders.
            nodes.everywhere("SELECT * FROM lists ORDER BY id").await;
            expect_strict(seen, protocol);
        }
    });
}

#[test]
fn peers_refuse_granules_that_cannot_be() {
    block_on(async {
        let nodes = Nodes::make_sites(2, false, &[("protocol", "invalidation"), ("peers.granules", "0")]);
        let said = nodes.refusal(0);
        assert!(said.contains("peers.granules is 0, and has to be from 1"), "{said}");
    });
}

/// Nobody asks anybody, so peers differ, or clients have seen what no one copy shows.
#[test]
fn weak_keeps_no_promise() {
    block_on(async {
        let nodes = peers("weak").await;
        let load = Load::start(&nodes, 3);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let seen = load.end().await;
        let report = check::check(&History::new(seen).unwrap(), Level::Serializable);
        assert!(!report.violations.is_empty(), "an anomaly was to be expected");
    });
}

/// Of divided tables each peer has its own rows; all others are one.
#[test]
fn divided_tables_are_each_peers_own() {
    block_on(async {
        let chosen = [("protocol", "partitioned"), ("peers.divided", "[\"public.lists\"]")];
        let tables = lists("lists", 1..=LISTS) + "CREATE TABLE other (v int); INSERT INTO other VALUES (0)";
        let nodes = sites(3, false, &chosen, &tables).await;
        for peer in 0..3 {
            let client = nodes.client(peer).await;
            client.batch_execute(&format!("UPDATE lists SET items = ' {peer}' WHERE id = 1")).await.unwrap();
        }
        for peer in 0..3 {
            let found = rows(&nodes.client(peer).await, "SELECT items FROM lists WHERE id = 1").await;
            assert_eq!(found, format!(" {peer}"));
        }

        // Nobody is asked about them, and yet no update of a peer's clients is lost.
        let adding = (0..8).map(|_| async {
            let client = nodes.client(0).await;
            for _ in 0..10 {
                let add = "SELECT items AS found FROM lists WHERE id = 2; \
                     UPDATE lists SET items = :found || ' 1' WHERE id = 2";
                client.batch_execute(add).await.unwrap();
            }
        });
        futures_util::future::join_all(adding).await;
        let counted = "SELECT length(items) FROM lists WHERE id = 2";
        assert_eq!(rows(&nodes.client(0).await, counted).await, "160");
        // What is not divided is everybody's, and has its own transactions.
        let both = "UPDATE lists SET items = '' WHERE id = 3; UPDATE other SET v = 1";
        let client = nodes.client(1).await;
        assert_eq!(code(client.batch_execute(both).await), SqlState::FEATURE_NOT_SUPPORTED);
        client.batch_execute("UPDATE other SET v = 1").await.unwrap();
        assert_eq!(nodes.everywhere("SELECT v FROM other").await, "1");
    });
}

/// What a connection says to these statements as one pipelined batch: the code of an error, if there is one, and how the transaction stands then.
fn in_one_batch(dsn: &str, statements: &[&str]) -> (Option<String>, char) {
    let port = dsn.split("port=").nth(1).unwrap().split(' ').next().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let framed = |tag: &[u8], body: &[u8]| {
        let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [tag, &len, body].concat()
    };
    let start = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    stream.write_all(&framed(b"", start)).unwrap();
    until_ready(&mut stream);
    let executes = |sql: &&str| {
        let parse = framed(b"P", &[b"\0", sql.as_bytes(), b"\0\0\0"].concat());
        [parse, framed(b"B", &[0; 8]), framed(b"D", b"P\0"), framed(b"E", &[0; 5])].concat()
    };
    let batch = statements.iter().flat_map(executes).chain(framed(b"S", b"")).collect::<Vec<u8>>();
    stream.write_all(&batch).unwrap();
    until_ready(&mut stream)
}

fn until_ready(stream: &mut TcpStream) -> (Option<String>, char) {
    let mut failed = None;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes(head[1..].try_into().unwrap());
        let mut body = vec![0; len as usize - 4];
        stream.read_exact(&mut body).unwrap();
        match head[0] {
            b'E' => {
                let text = String::from_utf8_lossy(&body);
                failed = text.split('\0').find_map(|field| field.strip_prefix('C')).map(str::to_owned);
            }
            b'Z' => return (failed, char::from(body[0])),
            _ => {}
        }
    }
}

/// Who promises to read only is held to it, as by a server, at sites too; of divided tables also where another peer has the row.
#[test]
fn what_comes_whole_and_promises_to_read_only_writes_nothing() {
    block_on(async {
        let parts = "[{table = \"public.lists\", column = \"id\"}]";
        let tables = lists("lists", 1..=LISTS) + "CREATE SEQUENCE numbers";
        for chosen in [
            &[("protocol", "wide_area"), ("queries", "locked")][..],
            &[("protocol", "certified")],
            &[("protocol", "invalidation")],
            &[("protocol", "lock_distributed")],
            &[("protocol", "partitioned"), ("peers.parts", parts), ("peers.deals", "true")],
        ] {
            let is_certified = chosen.contains(&("protocol", "certified"));
            let nodes = sites(3, false, chosen, &tables).await;
            for site in 0..3 {
                let client = nodes.client(site).await;
                let expect_read_only = async |whole: &str| {
                    let refused = code(client.batch_execute(whole).await);
                    assert_eq!(refused, SqlState::READ_ONLY_SQL_TRANSACTION, "{chosen:?} {whole}");
                    // Where statements may come one by one, what has failed is to be ended.
                    if is_certified {
                        let failed = client.batch_execute("SELECT 1").await;
                        assert_eq!(code(failed), SqlState::IN_FAILED_SQL_TRANSACTION);
                        client.batch_execute("ROLLBACK").await.unwrap();
                    }
                };
                for writes in [
                    "UPDATE lists SET items = ' 1' WHERE id = 1",
                    "SELECT items FROM lists WHERE id = 2; UPDATE lists SET items = ' 1' WHERE id = 1",
                    "UPDATE lists SET items = ' 1'",
                    "SELECT items FROM lists WHERE id = 1 FOR UPDATE",
                    "SELECT * FROM lists; TRUNCATE lists",
                    "SELECT nextval('numbers')",
                ] {
                    expect_read_only(&format!("BEGIN READ ONLY; {writes}; COMMIT")).await;
                }
                // That comes statement by statement, or not at all.
                let late = "BEGIN; SET TRANSACTION READ ONLY; DELETE FROM lists; COMMIT";
                if is_certified {
                    expect_read_only(late).await;
                } else {
                    assert_eq!(code(client.batch_execute(late).await), SqlState::FEATURE_NOT_SUPPORTED);
                }
            }
            let dsn = nodes.dsn(2);
            let update = "UPDATE lists SET items = ' 1' WHERE id = 1";
            let batch = ["BEGIN READ ONLY", "SELECT items FROM lists WHERE id = 2", update, "COMMIT"];
            let stands = if is_certified { 'E' } else { 'I' };
            assert_eq!(in_one_batch(&dsn, &batch), (Some("25006".to_owned()), stands), "{chosen:?}");
            assert_eq!(in_one_batch(&dsn, &[batch[0], batch[1], batch[3]]), (None, 'I'), "{chosen:?}");
            let client = nodes.client(1).await;
            let reads = "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; SELECT count(*), max(items) FROM lists; COMMIT";
            assert_eq!(rows(&client, reads).await, format!("{LISTS} "), "{chosen:?}");
            let writes = "BEGIN READ WRITE; UPDATE lists SET items = ' 2' WHERE id = 1; COMMIT";
            client.batch_execute(writes).await.unwrap();
            assert_eq!(rows(&client, reads).await, format!("{LISTS}  2"), "{chosen:?}");
            // None was drawn before; each of the others begins with another one.
            let first = rows(&nodes.client(0).await, "SELECT nextval('numbers')").await;
            assert_eq!(first, "1", "{chosen:?}");
        }
    });
}

/// Tables whose rows are where a column says: to clients of all peers they are one table, whatever is asked of it.
#[test]
fn tables_divided_by_a_column_are_one_to_clients_of_all_peers() {
    block_on(async {
        for bounds in ["", ", bounds = [2, 4]"] {
            let parts = format!("[{{table = \"public.lists\", column = \"id\"{bounds}}}]");
            let chosen = [("protocol", "partitioned"), ("peers.parts", &parts), ("peers.deals", "true")];
            let other = "CREATE TABLE other (v int); INSERT INTO other VALUES (7)";
            let nodes = sites(3, false, &chosen, &(lists("lists", 1..=LISTS) + other)).await;
            let own = async || {
                let mut counts = Vec::new();
                for server in nodes.servers.servers() {
                    let count =
                        rows(&connect(&server.dsn()).await.unwrap(), "SELECT count(*) FROM lists").await;
                    counts.push(count.parse::<u64>().unwrap());
                }
                counts
            };
            let clients = [nodes.client(0).await, nodes.client(1).await, nodes.client(2).await];

            // Reads of all rows, with a table that all have.
            for client in &clients {
                let all = "SELECT count(*), max(id), max(v) FROM lists, other";
                assert_eq!(rows(client, all).await, format!("{LISTS} {LISTS} 7"));
            }
            let dealt = own().await;
            assert_eq!(dealt.iter().sum::<u64>(), LISTS, "{dealt:?}");
            assert!(dealt.iter().all(|count| *count < LISTS), "{dealt:?}");
            // Rows come, change, move and go, whoever says so.
            clients[0]
                .batch_execute("INSERT INTO lists VALUES (101, 'a'), (102, 'b'), (103, 'c'), (104, 'd')")
                .await
                .unwrap();
            assert_eq!(
                clients[1]
                    .execute("UPDATE lists SET items = items || 'x' WHERE id > 100", &[])
                    .await
                    .unwrap(),
                4
            );
            clients[2].batch_execute("UPDATE lists SET items = items || 'y' WHERE id = 103").await.unwrap();
            let moves = (101..=104).map(|id| format!("UPDATE lists SET id = {} WHERE id = {id}; ", id + 100));
            clients[2].batch_execute(&moves.collect::<String>()).await.unwrap();
            let moved = "SELECT string_agg(id || items, ' ' ORDER BY id) FROM lists WHERE id > 100";
            for client in &clients {
                assert_eq!(rows(client, moved).await, "201ax 202bx 203cxy 204dx");
                assert_eq!(rows(client, "SELECT items FROM lists WHERE id = 202").await, "bx");
            }
            assert_eq!(own().await.iter().sum::<u64>(), LISTS + 4);
            // What fails changes nothing anywhere.
            let failing = "UPDATE lists SET items = ''; INSERT INTO lists VALUES (201, '')";
            assert_eq!(code(clients[1].batch_execute(failing).await), SqlState::UNIQUE_VIOLATION);
            assert_eq!(rows(&clients[0], moved).await, "201ax 202bx 203cxy 204dx");
            clients[1]
                .batch_execute("DELETE FROM lists WHERE id > 100; UPDATE lists SET items = ''")
                .await
                .unwrap();
            // Who writes them may read what all have, and not write it.
            let from_other = "UPDATE lists SET items = (SELECT max(v)::text FROM other) WHERE id = 1";
            clients[2].batch_execute(from_other).await.unwrap();
            assert_eq!(rows(&clients[0], "SELECT items FROM lists WHERE id = 1").await, "7");
            clients[0].batch_execute("UPDATE lists SET items = ''").await.unwrap();
            let both = "UPDATE lists SET items = ''; UPDATE other SET v = 1";
            assert_eq!(code(clients[1].batch_execute(both).await), SqlState::FEATURE_NOT_SUPPORTED);

            let load = Load::start(&nodes, 2);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let seen = load.end().await;
            let count = seen.len();
            println!("{bounds:?}: {count} transactions");
            assert!(count > 50, "{count}");
            let report = check::check(&History::new(seen).unwrap(), Level::StrictSerializable);
            assert!(report.violations.is_empty(), "{report:?}");
            assert_eq!(own().await, dealt);
        }
    });
}

/// Foreign keys from rows of one peer to those of another, and rows of every kind.
#[test]
fn divided_tables_refer_to_each_other_and_keep_what_is_in_them() {
    block_on(async {
        let parts = "[{table = \"public.customers\", column = \"id\", bounds = [10, 20]}, {table = \"public.orders\", column = \"id\", bounds = [10, 20]}]";
        let chosen = [("protocol", "partitioned"), ("peers.parts", parts)];
        let tables = "CREATE TABLE customers (id int PRIMARY KEY, name text); \
             CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES customers, note text, tags text[], \
             doc jsonb, at timestamptz, raw bytea, n numeric, twice int GENERATED ALWAYS AS (id * 2) STORED)";
        let nodes = sites(3, false, &chosen, tables).await;
        let clients = [nodes.client(0).await, nodes.client(1).await, nodes.client(2).await];
        clients[0]
            .batch_execute("INSERT INTO customers VALUES (1, 'a'), (11, NULL), (21, '')")
            .await
            .unwrap();
        // As its client has it, which is not how rows go from server to server.
        clients[1].batch_execute("SET DateStyle = 'SQL, DMY'").await.unwrap();
        clients[1].batch_execute("SET TimeZone = 'Asia/Tokyo'").await.unwrap();
        let order = |id: u32, customer: u32| {
            format!(
                "INSERT INTO orders VALUES ({id}, {customer}, E'o''neil \\\\ \\n(\"x\", {{y}})', '{{NULL,\"\",\"a,b\"}}', '{{\"k\": [1, null]}}', \
                 '2026-03-04 05:06:07.000008+00', '\\xdeadbeef', 1e-30);"
            )
        };
        let orders = order(2, 11) + &order(12, 21) + &order(22, 1);
        clients[1].batch_execute(&orders).await.unwrap();
        clients[2]
            .batch_execute("INSERT INTO orders VALUES (3, 21, NULL, NULL, NULL, NULL, NULL, NULL)")
            .await
            .unwrap();
        let all = "SELECT o::text, c::text FROM orders o JOIN customers c ON c.id = o.customer ORDER BY o.id";
        let before = rows(&clients[0], all).await;
        assert_eq!(before.matches("deadbeef").count(), 3, "{before}");
        // All orders change, whose customers are elsewhere, and keep them.
        let note = "UPDATE orders SET note = coalesce(note, '') || 'x'";
        assert_eq!(clients[1].execute(note, &[]).await.unwrap(), 4);
        let cut = "UPDATE orders SET note = nullif(left(note, -1), '')";
        assert_eq!(clients[2].execute(cut, &[]).await.unwrap(), 4);
        for client in [&clients[0], &clients[2]] {
            assert_eq!(rows(client, all).await, before);
        }
        let twice = "UPDATE orders SET note = 'x' WHERE id = 3; UPDATE orders SET note = NULL WHERE id = 3";
        clients[0].batch_execute(twice).await.unwrap();
        assert_eq!(
            code(clients[0].batch_execute("DELETE FROM customers WHERE id = 21").await),
            SqlState::FOREIGN_KEY_VIOLATION
        );
        assert_eq!(code(clients[0].batch_execute(&order(4, 99)).await), SqlState::FOREIGN_KEY_VIOLATION);
        assert_eq!(rows(&clients[0], all).await, before);

        // Each refers to what the other changes, at both of their peers.
        let both = [(0, 1, 11), (1, 11, 1)].map(|(peer, refers, changes)| {
            let client = &clients[peer];
            let order = &order;
            async move {
                for n in 0..20 {
                    let id = 100 + n * 2 + u32::try_from(peer).unwrap();
                    let text = order(id, refers)
                        + &format!("UPDATE customers SET name = 'n{n}' WHERE id = {changes}");
                    client.batch_execute(&text).await.unwrap();
                }
            }
        });
        let done = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(both)).await;
        assert!(done.is_ok(), "both wait for each other");
        assert_eq!(rows(&clients[2], "SELECT count(*) FROM orders").await, "44");
    });
}

/// A database that was copied whole would have rows twice.
#[test]
fn peer_that_has_rows_of_others_does_not_serve_unless_it_is_to_remove_them() {
    block_on(async {
        let parts = "[{table = \"public.t\", column = \"id\", bounds = [10]}]";
        let chosen = [("protocol", "partitioned"), ("peers.parts", parts)];
        let nodes = Nodes::make_sites(2, false, &chosen);
        let sql = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (11)";
        connect(&nodes.servers.servers()[0].dsn()).await.unwrap().batch_execute(sql).await.unwrap();
        let said = nodes.refusal(0);
        assert!(said.contains("1 rows of tables in peers.parts belong to other peers"), "{said}");
        assert!(said.contains("peers.deals"), "{said}");
    });
}

/// What was dealt once is not dealt again in another way, since nobody has all rows any more.
#[test]
fn rows_are_dealt_once() {
    block_on(async {
        let parts =
            |bound: u32| format!("[{{table = \"public.lists\", column = \"id\", bounds = [{bound}]}}]");
        let first = parts(3);
        let chosen = [("protocol", "partitioned"), ("peers.parts", &first), ("peers.deals", "true")];
        let mut nodes = sites(2, false, &chosen, &lists("lists", 1..=LISTS)).await;
        assert_eq!(rows(&nodes.client(1).await, "SELECT count(*) FROM lists").await, LISTS.to_string());
        for node in 0..2 {
            nodes.kill(node);
        }
        for node in 0..2 {
            nodes.configure(node, |config| config.replace(&first, &parts(5)));
        }
        // The second one has what is the first one's now.
        let said = nodes.refusal(1);
        assert!(said.contains("were dealt by other columns, bounds or peers before"), "{said}");
    });
}

/// A database that is no copy of the others does not have what these would remove.
#[test]
fn rows_are_not_dealt_before_all_have_the_same() {
    block_on(async {
        let parts = "[{table = \"public.lists\", column = \"id\"}]";
        let chosen = [("protocol", "partitioned"), ("peers.parts", parts), ("peers.deals", "true")];
        let mut nodes = Nodes::make_sites(2, false, &chosen);
        let servers: Vec<String> = nodes.servers.servers().iter().map(|server| server.dsn()).collect();
        for (server, rows) in servers.iter().zip([LISTS, LISTS - 1]) {
            connect(server).await.unwrap().batch_execute(&lists("lists", 1..=rows)).await.unwrap();
        }
        for peer in [0, 1] {
            nodes.spawn(peer);
        }
        for peer in [0, 1] {
            let said = nodes.ends(peer);
            assert!(said.contains("holds other rows of tables that are to be dealt"), "{said}");
        }
        for (server, count) in servers.iter().zip([LISTS, LISTS - 1]) {
            assert_eq!(
                rows(&connect(server).await.unwrap(), "SELECT count(*) FROM lists").await,
                count.to_string()
            );
        }
    });
}

/// A peer that is slow applies the last of several updates that hide each other, and no other one less.
#[test]
fn updates_that_the_next_one_hides_are_left_out_where_they_have_not_been_applied() {
    block_on(async {
        let chosen = [("protocol", "invalidation"), ("peers.coalesces", "true")];
        let tables =
            "CREATE TABLE t (id int PRIMARY KEY, v int, w int); INSERT INTO t VALUES (1, 0, 0), (2, 0, 0)";
        let nodes = sites(2, false, &chosen, tables).await;
        let first = nodes.client(0).await;
        let slow = connect(&nodes.servers.servers()[1].dsn()).await.unwrap();
        let console = nodes.dsn(1).replace("dbname=postgres", "dbname=onecopy");
        let console = connect(&console).await.unwrap();
        for (updates, left_out) in [
            // The first one is being applied, and the last one hides the others.
            (
                [
                    "v = 1 WHERE id = 1",
                    "v = 2 WHERE id = 1",
                    "v = 3, w = 3 WHERE id = 1",
                    "v = 4, w = 4 WHERE id = 1",
                ],
                "2",
            ),
            // What depends on what was there hides nothing.
            (
                [
                    "v = v + 1 WHERE id = 1",
                    "v = v + 1 WHERE id = 1",
                    "v = v + 1 WHERE id = 1",
                    "v = v + 1 WHERE id = 1",
                ],
                "2",
            ),
            // Nor does what changes other columns.
            (["v = 1 WHERE id = 1", "w = 1 WHERE id = 1", "v = 2 WHERE id = 1", "w = 2 WHERE id = 1"], "2"),
            // Nor does what finds no row, or says more columns than it changes.
            (
                [
                    "v = 5 WHERE id = 1",
                    "w = 6 WHERE id = 1",
                    "v = 7, w = 7 WHERE id = 1 AND id > 5",
                    "id = id, v = 8 WHERE id = 1",
                ],
                "2",
            ),
        ] {
            slow.batch_execute("BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE").await.unwrap();
            for update in updates {
                first.batch_execute(&format!("UPDATE t SET {update}")).await.unwrap();
            }
            slow.batch_execute("COMMIT").await.unwrap();
            // It waits for the last one.
            let of_first = rows(&first, "SELECT v, w FROM t WHERE id = 1").await;
            assert_eq!(rows(&nodes.client(1).await, "SELECT v, w FROM t WHERE id = 1").await, of_first);
            nodes.everywhere("SELECT * FROM t ORDER BY id").await;
            let shown = rows(&console, "SHOW SITE").await;
            assert_eq!(shown.split(' ').nth(1), Some(left_out), "{updates:?}");
        }
    });
}

/// Where servers define something otherwise, what is executed at all might do otherwise.
#[test]
fn peers_whose_databases_have_other_definitions_do_not_serve() {
    block_on(async {
        let mut nodes = Nodes::make_sites(3, false, &[("protocol", "invalidation")]);
        for (at, server) in nodes.servers.servers().iter().enumerate() {
            let default = if at == 2 { 1 } else { 0 };
            let sql = format!("CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT {default})");
            connect(&server.dsn()).await.unwrap().batch_execute(&sql).await.unwrap();
        }
        for peer in [0, 1, 2] {
            nodes.spawn(peer);
        }
        for peer in [0, 1, 2] {
            let said = nodes.ends(peer);
            assert!(said.contains("has other definitions"), "{said}");
        }
        let unlogged = "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)";
        let server = nodes.servers.servers()[0].dsn();
        connect(&server).await.unwrap().batch_execute(unlogged).await.unwrap();
        let said = nodes.refusal(0);
        assert!(said.contains("unlogged"), "{said}");
    });
}

/// What peers have agreed on is in their memory: a peer that is started again is found out, and none goes on.
#[test]
fn peers_end_when_one_of_them_is_started_again() {
    block_on(async {
        let mut nodes = peers("invalidation").await;
        let client = nodes.client(0).await;
        client.batch_execute("UPDATE lists SET items = ' 1' WHERE id = 1").await.unwrap();
        assert_eq!(nodes.everywhere("SELECT items FROM lists WHERE id = 1").await, " 1");
        let refused = client.batch_execute("TRUNCATE lists").await;
        assert_eq!(code(refused), SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(code(client.batch_execute("SELEKT 1").await), SqlState::SYNTAX_ERROR);
        let refused = client.batch_execute("SET onecopy.staleness_max = 0").await;
        assert_eq!(code(refused), SqlState::FEATURE_NOT_SUPPORTED);
        nodes.kill(2);
        // Whoever reads what is valid asks nobody.
        assert_eq!(rows(&client, "SELECT items FROM lists WHERE id = 1").await, " 1");
        let write = client.batch_execute("UPDATE lists SET items = ' 2' WHERE id = 1");
        assert!(tokio::time::timeout(Duration::from_secs(2), write).await.is_err(), "a peer does not answer");
        nodes.spawn(2);
        for peer in [0, 1, 2] {
            let said = nodes.ends(peer);
            assert!(said.contains("was started again"), "{said}");
        }
        assert!(connect(&nodes.dsn(0)).await.is_err());
    });
}
