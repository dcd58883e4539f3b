//! Particular faults, each aimed at one thing that must hold.

use crate::relay::Cut;
use crate::rig::{Nodes, block_on, code, connect, rows};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, NoTls, SimpleQueryMessage};

fn others(nodes: &Nodes, leader: usize) -> Vec<usize> {
    (0..nodes.count()).filter(|node| *node != leader).collect()
}

/// Does it again until it succeeds, on a new connection each time; how long that took.
async fn soon(nodes: &Nodes, node: usize, sql: &str) -> Duration {
    let began = Instant::now();
    loop {
        let attempt = async {
            let client = connect(&nodes.dsn(node)).await.ok()?;
            client.batch_execute(sql).await.ok()
        };
        if let Ok(Some(())) = tokio::time::timeout(Duration::from_secs(5), attempt).await {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(40), "{sql} at node {node}: nobody serves");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn commit_that_comes_while_its_transaction_is_done_again_does_not_commit_what_its_client_has_not_read() {
    block_on(async {
        let mut nodes = Nodes::start(5, 2);
        let leader = nodes.leader();
        let others = others(&nodes, leader);
        let first = nodes.client(others[0]).await;
        first
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 10)")
            .await
            .unwrap();
        first.batch_execute("BEGIN").await.unwrap();
        assert_eq!(rows(&first, "SELECT v FROM t").await, "10");
        nodes.signal(others[0], "-STOP");
        nodes.kill(leader);
        let second = nodes.client(others[1]).await;
        second.batch_execute("UPDATE t SET v = 20 WHERE id = 1").await.unwrap();
        // It has computed this from what it had read.
        let update = first.batch_execute("UPDATE t SET v = 11 WHERE id = 1");
        let both = async { futures_util::future::join(update, first.batch_execute("COMMIT")).await };
        let resumed = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            nodes.signal(others[0], "-CONT");
        };
        let ((update, _), ()) = futures_util::future::join(both, resumed).await;
        assert_eq!(code(update), SqlState::T_R_SERIALIZATION_FAILURE);
        assert_eq!(rows(&second, "SELECT v FROM t").await, "20");
        assert_eq!(nodes.everywhere("SELECT v FROM t").await, "20");
        first.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(rows(&first, "SELECT v FROM t").await, "20");
    });
}

#[test]
fn leader_that_is_cut_off_in_one_direction_or_both_is_replaced() {
    block_on(async {
        let nodes = Nodes::start_apart(3, 2);
        soon(&nodes, 0, "CREATE TABLE t (id int)").await;
        for (there, back) in [(true, true), (true, false), (false, true)] {
            let leader = nodes.leader();
            let others = others(&nodes, leader);
            for other in &others {
                nodes.cut(leader, *other, there);
                nodes.cut(*other, leader, back);
            }
            let took = soon(&nodes, others[0], "INSERT INTO t VALUES (1)").await;
            println!("what it says is cut: {there}, what it hears: {back}: {took:?}");
            assert!(took < Duration::from_secs(15), "{took:?}");
            nodes.heal();
            soon(&nodes, leader, "INSERT INTO t VALUES (2)").await;
        }
        assert_eq!(nodes.everywhere("SELECT count(*) >= 6 FROM t").await, "t");
    });
}

#[test]
fn leader_that_reaches_no_replica_does_not_keep_the_others_from_serving() {
    block_on(async {
        let nodes = Nodes::start_apart(3, 2);
        soon(&nodes, 0, "CREATE TABLE t (id int)").await;
        let leader = nodes.leader();
        (0..2).for_each(|server| nodes.way(leader, server).cut(Cut::REFUSED));
        let other = others(&nodes, leader)[0];
        let took = soon(&nodes, other, "INSERT INTO t VALUES (1)").await;
        println!("{took:?}");
        nodes.heal();
        soon(&nodes, leader, "INSERT INTO t VALUES (1)").await;
    });
}

#[test]
fn deposed_leader_that_alone_reaches_a_replica_answers_nobody_with_what_is_old() {
    block_on(async {
        let nodes = Nodes::start_apart(3, 2);
        let leader = nodes.leader();
        soon(&nodes, leader, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)").await;
        let stale = nodes.client(leader).await;
        assert_eq!(rows(&stale, "SELECT v FROM t").await, "0");
        // Its successors cannot reach the first replica, and so not end its sessions there.
        for other in others(&nodes, leader) {
            nodes.way(other, 0).cut(Cut::BOTH);
        }
        nodes.isolate(leader);
        let reads = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                let asked = Instant::now();
                match tokio::time::timeout(Duration::from_secs(30), stale.simple_query("SELECT v FROM t"))
                    .await
                {
                    Ok(Ok(messages)) => {
                        seen.extend(messages.into_iter().filter_map(|message| match message {
                            SimpleQueryMessage::Row(row) => Some((asked, row.get(0).unwrap().to_owned())),
                            _ => None,
                        }))
                    }
                    _ => return seen,
                }
            }
        });
        let other = others(&nodes, leader)[0];
        soon(&nodes, other, "UPDATE t SET v = 1").await;
        let updated = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        nodes.heal();
        let seen = reads.await.unwrap();
        let wrong: Vec<_> = seen.iter().filter(|(asked, v)| *asked > updated && v == "0").collect();
        assert!(wrong.is_empty(), "{} of {}", wrong.len(), seen.len());
        soon(&nodes, leader, "UPDATE t SET v = v + 1 WHERE v = 1").await;
        assert_eq!(nodes.everywhere("SELECT v FROM t").await, "2");
    });
}

#[test]
fn replica_is_down_while_the_leader_changes_and_comes_back() {
    block_on(async {
        let mut nodes = Nodes::start(3, 3);
        soon(&nodes, 0, "CREATE TABLE t (id int)").await;
        nodes.servers.server_mut(1).kill_all().unwrap();
        let leader = nodes.leader();
        nodes.kill(leader);
        let other = others(&nodes, leader)[0];
        for id in 0..20 {
            soon(&nodes, other, &format!("INSERT INTO t VALUES ({id})")).await;
        }
        nodes.spawn(leader);
        nodes.servers.server_mut(1).start().unwrap();
        soon(&nodes, leader, "INSERT INTO t VALUES (20)").await;
        assert_eq!(nodes.everywhere("SELECT count(*) FROM t").await, "21");
    });
}

#[test]
fn replica_that_stands_still_does_not_keep_the_next_leader_from_serving() {
    block_on(async {
        let mut nodes = Nodes::start(3, 3);
        soon(&nodes, 0, "CREATE TABLE t (id int)").await;
        nodes.servers.server_mut(0).pause().unwrap();
        let leader = nodes.leader();
        nodes.kill(leader);
        let took = soon(&nodes, others(&nodes, leader)[0], "INSERT INTO t VALUES (1)").await;
        println!("{took:?}");
        nodes.servers.server_mut(0).resume().unwrap();
        assert!(took < Duration::from_secs(15), "{took:?}");
        soon(&nodes, others(&nodes, leader)[1], "INSERT INTO t VALUES (2)").await;
        assert_eq!(nodes.everywhere("SELECT count(*) FROM t").await, "2");
    });
}

#[test]
fn commit_whose_outcome_nobody_can_say_is_not_said_to_have_failed() {
    block_on(async {
        let mut nodes = Nodes::make(3, 1, true, "limits.query_wait_timeout_ms = 3000\n");
        nodes.start_all();
        let leader = nodes.leader();
        let [other, third] = others(&nodes, leader)[..] else { unreachable!() };
        soon(&nodes, other, "CREATE TABLE t (id int)").await;
        let (client, idle) = (nodes.client(other).await, nodes.client(other).await);
        client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
        // It comes to the node that leads, which cannot decide it alone.
        nodes.signal(third, "-STOP");
        nodes.link(leader, other).cut(Cut::BOTH);
        let committing = tokio::spawn(async move { client.batch_execute("COMMIT").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        nodes.kill(leader);
        nodes.kill(third);
        nodes.heal();
        assert_eq!(code(committing.await.unwrap()), SqlState::TRANSACTION_RESOLUTION_UNKNOWN);
        drop(idle);
        nodes.spawn(leader);
        nodes.spawn(third);
        soon(&nodes, other, "INSERT INTO t VALUES (2)").await;
        nodes.everywhere("SELECT count(*) FROM t").await;
    });
}

#[test]
fn cluster_begins_with_one_node_missing_which_comes_later_and_replaces_another() {
    block_on(async {
        let mut nodes = Nodes::make(3, 1, false, "");
        nodes.spawn(0);
        nodes.spawn(1);
        soon(&nodes, 0, "CREATE TABLE t (id int)").await;
        soon(&nodes, 1, "INSERT INTO t VALUES (1)").await;
        nodes.spawn(2);
        soon(&nodes, 2, "INSERT INTO t VALUES (2)").await;
        nodes.kill(nodes.leader());
        let alive: Vec<usize> = (0..3).filter(|node| nodes.runs(*node)).collect();
        for node in alive {
            soon(&nodes, node, "INSERT INTO t VALUES (3)").await;
        }
        assert_eq!(nodes.everywhere("SELECT count(*) FROM t").await, "4");
    });
}

#[test]
fn two_leaders_in_a_row_are_killed_and_an_open_transaction_goes_on() {
    block_on(async {
        let mut nodes = Nodes::start(5, 2);
        let leader = nodes.leader();
        let other = others(&nodes, leader)[0];
        soon(&nodes, other, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)").await;
        // Not on the node that leads next, which is not known.
        let mut clients = Vec::new();
        for node in others(&nodes, leader) {
            let client = nodes.client(node).await;
            client.batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({}, 1)", node + 10)).await.unwrap();
            clients.push((node, client));
        }
        nodes.kill(leader);
        soon(&nodes, other, "UPDATE t SET v = v + 1 WHERE id = 1").await;
        let second = nodes.leader();
        nodes.kill(second);
        for (node, client) in &clients {
            if *node != second {
                client.batch_execute("COMMIT").await.unwrap();
            }
        }
        let client = &clients.iter().find(|(node, _)| *node != second).unwrap().1;
        assert_eq!(rows(client, "SELECT count(*) FROM t WHERE v = 1").await, "4");
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
    });
}

#[test]
fn what_a_session_has_goes_with_it_and_what_cannot_ends_it() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let other = others(&nodes, leader)[0];
        let client = nodes.client(other).await;
        client
            .batch_execute(
                "CREATE SEQUENCE s; CREATE TABLE t (id int); SET work_mem = '5MB'; \
                 SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; SET my.own = 'x'; \
                 PREPARE q (int) AS SELECT $1 + 1",
            )
            .await
            .unwrap();
        let prepared = client.prepare("SELECT $1::text || 'b'").await.unwrap();
        assert_eq!(rows(&client, "SELECT nextval('s'), nextval('s')").await, "1 2");
        let pinned = nodes.client(other).await;
        assert_eq!(rows(&pinned, "SELECT pg_try_advisory_lock(7)").await, "t");
        let unlocked = nodes.client(other).await;
        assert_eq!(rows(&unlocked, "SELECT pg_try_advisory_lock(8), pg_advisory_unlock(8)").await, "t t");
        let shown = "SELECT current_setting('work_mem'), current_setting('my.own'), \
                     current_setting('transaction_read_only'), currval('s'), lastval()";
        let before = rows(&client, shown).await;
        assert!(before.starts_with("5MB x ") && before.ends_with(" 2 2"), "{before}");
        nodes.kill(leader);
        assert_eq!(rows(&client, shown).await, before);
        assert_eq!(
            code(client.batch_execute("INSERT INTO t VALUES (1)").await),
            SqlState::READ_ONLY_SQL_TRANSACTION
        );
        assert_eq!(rows(&client, "EXECUTE q (1)").await, "2");
        let row = client.query_one(&prepared, &[&"a"]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "ab");
        assert_eq!(rows(&client, "SELECT nextval('s') > 2").await, "t");
        // It has been told, unasked, as by any server that shuts down.
        assert!(pinned.batch_execute("SELECT 1").await.is_err());
        assert_eq!(rows(&unlocked, "SELECT 1").await, "1");
        assert_eq!(rows(&unlocked, "SELECT pg_try_advisory_lock(7)").await, "t");
    });
}

#[test]
fn leader_that_is_stopped_in_order_hands_its_sessions_over() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let other = others(&nodes, leader)[0];
        let client = nodes.client(other).await;
        client.batch_execute("CREATE TABLE t (id int); BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
        nodes.signal(leader, "-TERM");
        nodes.await_end(leader);
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(rows(&client, "SELECT count(*) FROM t").await, "1");
    });
}

#[test]
fn large_results_are_read_to_their_end_while_the_leader_is_killed() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let other = others(&nodes, leader)[0];
        soon(
            &nodes,
            other,
            "CREATE TABLE big (id int PRIMARY KEY, v text); \
             INSERT INTO big SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g",
        )
        .await;
        let mut reading = Vec::new();
        for _ in 0..4 {
            let client = nodes.client(other).await;
            reading.push(tokio::spawn(async move {
                let mut done = 0;
                for _ in 0..6 {
                    match client.simple_query("SELECT id, v FROM big ORDER BY id").await {
                        Ok(messages) => {
                            let ids: Vec<u32> = messages
                                .iter()
                                .filter_map(|message| match message {
                                    SimpleQueryMessage::Row(row) => {
                                        Some(row.get(0).unwrap().parse().unwrap())
                                    }
                                    _ => None,
                                })
                                .collect();
                            assert!(ids.iter().copied().eq(1..=40_000), "{} rows", ids.len());
                            done += 1;
                        }
                        Err(error) => println!("{error}"),
                    }
                }
                done
            }));
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        nodes.kill(leader);
        for reading in reading {
            assert_eq!(reading.await.unwrap(), 6);
        }
    });
}

#[test]
fn statement_is_cancelled_at_a_node_that_leads_by_now() {
    block_on(async {
        let mut nodes = Nodes::start(3, 1);
        let leader = nodes.leader();
        let mut clients = Vec::new();
        for node in others(&nodes, leader) {
            clients.push((node, nodes.client(node).await));
        }
        nodes.kill(leader);
        for (node, client) in clients {
            assert_eq!(rows(&client, "SELECT 1").await, "1", "node {node}");
            let token = client.cancel_token();
            let sleeping = tokio::spawn(async move { client.batch_execute("SELECT pg_sleep(30)").await });
            tokio::time::sleep(Duration::from_millis(500)).await;
            token.cancel_query(NoTls).await.unwrap();
            assert_eq!(code(sleeping.await.unwrap()), SqlState::QUERY_CANCELED);
        }
    });
}

#[test]
fn strangers_on_the_port_for_nodes_keep_nobody_from_being_served() {
    block_on(async {
        let nodes = Nodes::start(3, 1);
        let leader = nodes.leader();
        let files = |node: usize| std::fs::read_dir(format!("/proc/{}/fd", nodes.pid(node))).unwrap().count();
        let before: Vec<usize> = (0..3).map(files).collect();
        let mut strangers = Vec::new();
        for node in 0..3 {
            for kind in 0..300 {
                let mut stream = TcpStream::connect(("127.0.0.1", nodes.inner_port(node))).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let called = u64::try_from(node + 1).unwrap().to_be_bytes();
                let hello = [&b"onecopy\x02\x02"[..], &[0; 8], &called, &[0; 16]].concat();
                let said = match kind % 4 {
                    0 => Vec::new(),
                    1 => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n and much more than any hello could be".to_vec(),
                    2 => [&hello[..], &[7; 32]].concat(),
                    _ => hello,
                };
                let _ = stream.write_all(&said);
                strangers.push(stream);
            }
        }
        for node in 0..3 {
            let took = soon(&nodes, node, "SELECT 1").await;
            // While they are there: a busy machine may take its time.
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
        assert_eq!(nodes.leader(), leader);
        for stream in &mut strangers {
            // All of them are left alone in the end; what they hear is no more than a proof.
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert!(heard.len() <= 48, "{}", heard.len());
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        for (node, before) in before.into_iter().enumerate() {
            assert!(files(node) <= before + 5, "{} files, {before} before", files(node));
            assert!(!nodes.messages(node).contains("panicked"));
        }
    });
}

#[test]
fn idle_clients_of_a_follower_by_the_thousand_go_on_elsewhere_and_those_that_left_are_forgotten() {
    block_on(async {
        let mut nodes = Nodes::make(3, 1, false, "limits.connections_max = 1000\n");
        nodes.start_all();
        let leader = nodes.leader();
        let other = others(&nodes, leader)[0];
        let mut clients = Vec::new();
        for _ in 0..1_000 {
            clients.push(nodes.client(other).await);
        }
        for client in &clients[..30] {
            client.batch_execute("BEGIN; SELECT 1").await.unwrap();
        }
        nodes.kill(leader);
        // These leave while their front looks for another leader.
        clients.drain(300..600);
        let asked = clients.iter().map(|client| rows(client, "SELECT 1"));
        assert!(futures_util::future::join_all(asked).await.iter().all(|rows| rows == "1"));
        drop(clients);
        // All of their places are free again.
        for _ in 0..900 {
            soon(&nodes, other, "").await;
        }
        for node in others(&nodes, leader) {
            assert!(!nodes.messages(node).contains("Too many open files"), "node {node}");
        }
    });
}

#[test]
fn node_that_was_away_for_longer_than_the_log_is_kept_takes_part_again() {
    block_on(async {
        let mut nodes = Nodes::make(3, 2, false, "log.segment_bytes = 1048576\n");
        nodes.start_all();
        let leader = nodes.leader();
        let [away, other] = others(&nodes, leader)[..] else { unreachable!() };
        soon(&nodes, other, "CREATE TABLE t (id int PRIMARY KEY, v text)").await;
        let (idle, client) = (nodes.client(other).await, nodes.client(other).await);
        idle.batch_execute("SELECT 1").await.unwrap();
        nodes.kill(away);
        for id in 0..40 {
            // Random, so that it takes the room that it seems to take.
            let insert = format!(
                "INSERT INTO t SELECT {id} * 1000 + g, repeat('{id:04}', 250) FROM generate_series(1, 200) g"
            );
            client.batch_execute(&insert).await.unwrap();
            let values: Vec<String> = (0..100)
                .map(|g| format!("({}, '{}')", 1_000_000 + id * 1000 + g, "y".repeat(1000)))
                .collect();
            client.batch_execute(&format!("INSERT INTO t VALUES {}", values.join(", "))).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        nodes.spawn(away);
        // It has to be one of the two that go on.
        tokio::time::sleep(Duration::from_secs(3)).await;
        nodes.kill(leader);
        soon(&nodes, away, "INSERT INTO t VALUES (-1, '')").await;
        soon(&nodes, other, "INSERT INTO t VALUES (-2, '')").await;
        // It has long been idle, and nothing of it is in doubt.
        assert_eq!(rows(&idle, "SELECT count(*) FROM t WHERE id < 0").await, "2");
        println!("{}", nodes.messages(away).contains("its log begins anew"));
        assert_eq!(nodes.everywhere("SELECT count(*) FROM t").await, (40 * 300 + 2).to_string());
    });
}

#[test]
fn no_value_of_a_sequence_is_drawn_twice_while_leaders_are_killed() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        soon(&nodes, 0, "CREATE SEQUENCE s; CREATE TABLE t (id serial, by int)").await;
        let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut drawing = Vec::new();
        for number in 0..9 {
            let (dsn, is_over) = (nodes.dsn(number % 3), is_over.clone());
            drawing.push(tokio::spawn(async move {
                let mut drawn = Vec::new();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let Ok(client) = connect(&dsn).await else {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) && !client.is_closed() {
                        let sql = match number % 3 {
                            0 => "SELECT 's', nextval('s')",
                            1 => "BEGIN; SELECT 's', nextval('s'); ROLLBACK",
                            _ => "INSERT INTO t (by) VALUES (1) RETURNING 't', id",
                        };
                        let Ok(messages) = client.simple_query(sql).await else { continue };
                        drawn.extend(messages.into_iter().filter_map(|message| match message {
                            SimpleQueryMessage::Row(row) => {
                                Some((row.get(0)?.to_owned(), row.get(1)?.parse::<i64>().ok()?))
                            }
                            _ => None,
                        }));
                    }
                }
                drawn
            }));
        }
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let leader = nodes.leader();
            nodes.kill(leader);
            tokio::time::sleep(Duration::from_millis(700)).await;
            nodes.spawn(leader);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut all = Vec::new();
        for drawing in drawing {
            all.extend(
                tokio::time::timeout(Duration::from_secs(60), drawing).await.expect("it hangs").unwrap(),
            );
        }
        let count = all.len();
        all.sort_unstable();
        let twice: Vec<_> = all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
        assert!(twice.is_empty(), "{} of {count}: {twice:?}", twice.len());
        // As many as a busy machine manages: it is about whether there were any.
        assert!(count > 20, "{count}");
        nodes.everywhere("SELECT count(*) FROM t").await;
    });
}

#[test]
fn session_that_listens_at_another_node_misses_nothing_without_being_told() {
    block_on(async {
        let mut nodes = Nodes::start(3, 2);
        let leader = nodes.leader();
        let [first, second] = others(&nodes, leader)[..] else { unreachable!() };
        let (client, mut connection) = tokio_postgres::connect(&nodes.dsn(first), NoTls).await.unwrap();
        let (tell, mut notified) = tokio::sync::mpsc::unbounded_channel();
        let connected = tokio::spawn(async move {
            loop {
                match futures_util::future::poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        let _ = tell.send(notification.payload().parse::<u32>().unwrap());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return error.code().cloned(),
                    None => return None,
                }
            }
        });
        client.batch_execute("LISTEN c").await.unwrap();
        let unlistens = nodes.client(first).await;
        unlistens.batch_execute("LISTEN c; UNLISTEN c").await.unwrap();
        let notifier = nodes.client(second).await;
        for number in 0..100 {
            notifier.batch_execute(&format!("NOTIFY c, '{number}'")).await.unwrap();
        }
        for number in 0..100 {
            let heard = tokio::time::timeout(Duration::from_secs(10), notified.recv()).await.unwrap();
            assert_eq!(heard, Some(number));
        }
        nodes.kill(leader);
        // It listens again by itself, and looks for what it may have missed.
        let ended = tokio::time::timeout(Duration::from_secs(10), connected).await.unwrap().unwrap();
        assert_eq!(ended, Some(SqlState::ADMIN_SHUTDOWN));
        notifier.batch_execute("NOTIFY c, '100'").await.unwrap();
        assert_eq!(rows(&unlistens, "SELECT 1").await, "1");
    });
}
