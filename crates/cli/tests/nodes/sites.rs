//! Sites as processes, each before a server of its own (docs/protocols/wide_area.md).

use crate::rig::{Nodes, block_on, code, connect, rows};
use onecopy_sim::check::{self, History, Level, List, Operation, Process, Status, Transaction, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

/// Ends all other sessions of a server, a site's with it: that one begins anew.
pub const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres' AND pid <> pg_backend_pid()";
/// Lists that transactions append to.
pub const LISTS: u64 = 8;

/// Sites, the servers of which hold the same before any of them begins.
pub async fn sites(count: usize, apart: bool, chosen: &[(&str, &str)], sql: &str) -> Nodes {
    let mut nodes = Nodes::make_sites(count, apart, chosen);
    for server in nodes.servers.servers() {
        connect(&server.dsn()).await.unwrap().batch_execute(sql).await.unwrap();
    }
    nodes.start_all();
    nodes
}

/// A table with these lists, which are empty.
pub fn lists(table: &str, numbers: std::ops::RangeInclusive<u64>) -> String {
    let (first, last) = numbers.into_inner();
    format!(
        "CREATE TABLE {table} (id int PRIMARY KEY, items text NOT NULL); \
         INSERT INTO {table} SELECT n, '' FROM generate_series({first}, {last}) n;"
    )
}

pub async fn with_lists(count: usize, apart: bool, chosen: &[(&str, &str)]) -> Nodes {
    sites(count, apart, chosen, &lists("lists", 1..=LISTS)).await
}

/// Clients of all sites that append to lists and read others, and what they saw.
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<Vec<Transaction>>>,
}

impl Load {
    pub fn start(nodes: &Nodes, clients_each: u64) -> Load {
        Load::start_on(nodes, clients_each, |_| "lists".to_owned())
    }

    /// The same, where every other transaction comes statement by statement.
    pub fn start_spoken(nodes: &Nodes, clients_each: u64) -> Load {
        Load::begin(nodes, clients_each, |_| "lists".to_owned(), true)
    }

    /// The same as `start`, where lists are in tables by their numbers.
    pub fn start_on(nodes: &Nodes, clients_each: u64, table: fn(u64) -> String) -> Load {
        Load::begin(nodes, clients_each, table, false)
    }

    fn begin(nodes: &Nodes, clients_each: u64, table: fn(u64) -> String, speaks: bool) -> Load {
        let (stop, values) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
        let began = Instant::now();
        let clients = (0..nodes.count() as u64 * clients_each).map(|number| {
            let dsn = nodes.dsn((number % nodes.count() as u64) as usize);
            let (stop, values) = (stop.clone(), values.clone());
            let client = Client { dsn, number, stop, values, began, table, speaks };
            tokio::spawn(client.run())
        });
        let clients = clients.collect();
        Load { stop, clients }
    }

    pub async fn end(self) -> Vec<Transaction> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await.unwrap());
        }
        all
    }
}

struct Client {
    dsn: String,
    number: u64,
    stop: Arc<AtomicBool>,
    values: Arc<AtomicU64>,
    began: Instant,
    table: fn(u64) -> String,
    /// Every other transaction comes statement by statement.
    speaks: bool,
}

/// Sends statements one after the other, each when the one before is answered.
async fn speak(
    client: &tokio_postgres::Client,
    statements: &str,
) -> Result<Vec<SimpleQueryMessage>, tokio_postgres::Error> {
    client.batch_execute("BEGIN").await?;
    let mut answers = Vec::new();
    for statement in statements.split_terminator(';') {
        match client.simple_query(statement).await {
            Ok(answer) => answers.extend(answer),
            Err(error) => {
                client.batch_execute("ROLLBACK").await?;
                return Err(error);
            }
        }
    }
    client.batch_execute("COMMIT").await.map(|()| answers)
}

impl Client {
    async fn run(self) -> Vec<Transaction> {
        let mut seen = Vec::new();
        let mut state = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut client = None;
        // What was asked and not answered may still happen: whoever asks next is another one.
        let mut process = self.number as u32;
        while !self.stop.load(Ordering::Relaxed) {
            let connected = match client.take() {
                Some(client) => client,
                None => match connect(&self.dsn).await {
                    Ok(client) => client,
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
            };
            let (writes, reads) = (draw(3), 1 + draw(2));
            let mut operations = Vec::new();
            let mut sql = String::new();
            for _ in 0..writes {
                let (list, value) = (1 + draw(LISTS), self.values.fetch_add(1, Ordering::Relaxed));
                let table = (self.table)(list);
                sql += &format!("UPDATE {table} SET items = items || ' {value}' WHERE id = {list};");
                operations.push(Operation::Append { list: List(list), value: Value(value) });
            }
            for _ in 0..reads {
                let list = 1 + draw(LISTS);
                sql += &format!("SELECT items FROM {} WHERE id = {list};", (self.table)(list));
                operations.push(Operation::ReadList { list: List(list), values: Vec::new() });
            }
            let now = || self.began.elapsed().as_nanos() as u64;
            let invoked_ns = now();
            let speaks = self.speaks && draw(2) == 0;
            let answered = match speaks {
                true => speak(&connected, &sql).await,
                false => connected.simple_query(&sql).await,
            };
            let completed_ns = now();
            let status = match answered {
                Ok(messages) => {
                    let mut found = messages.iter().filter_map(|message| match message {
                        SimpleQueryMessage::Row(row) => Some(numbers(row.get(0).unwrap())),
                        _ => None,
                    });
                    for operation in &mut operations {
                        if let Operation::ReadList { values, .. } = operation {
                            *values = found.next().expect("each read has an answer");
                        }
                    }
                    client = Some(connected);
                    Status::Committed
                }
                Err(error) => {
                    operations.retain(|operation| !operation.is_read());
                    let is_given_up = |code: &SqlState| {
                        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
                    };
                    match error.as_db_error() {
                        Some(error) if speaks && is_given_up(error.code()) => {
                            client = Some(connected);
                            Status::Aborted
                        }
                        Some(error) if *error.code() != SqlState::ADMIN_SHUTDOWN => {
                            panic!("{sql}: {error:?}");
                        }
                        _ => Status::Unknown,
                    }
                }
            };
            seen.push(Transaction {
                process: Process(process),
                invoked_ns,
                completed_ns,
                status,
                operations,
            });
            if status == Status::Unknown {
                process += 1_000;
            }
        }
        seen
    }
}

fn numbers(items: &str) -> Vec<Value> {
    items.split_whitespace().map(|item| Value(item.parse().unwrap())).collect()
}

/// All sites hold the same in the end, and what clients saw is what one copy could have shown; returns how many were acknowledged.
async fn judge(nodes: &Nodes, seen: Vec<Transaction>) -> usize {
    judge_by(Level::Serializable, nodes, seen).await
}

pub async fn judge_by(level: Level, nodes: &Nodes, seen: Vec<Transaction>) -> usize {
    let contents = nodes.everywhere("SELECT items FROM lists ORDER BY id").await;
    let held: BTreeSet<u64> = contents.split([' ', ',']).filter_map(|item| item.parse().ok()).collect();
    let acknowledged = seen.iter().filter(|one| one.status == Status::Committed);
    let appended = acknowledged.clone().flat_map(|one| &one.operations).filter_map(|one| match one {
        Operation::Append { value, .. } => Some(value.0),
        _ => None,
    });
    let lost: Vec<u64> = appended.filter(|value| !held.contains(value)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let count = acknowledged.count();
    let report = check::check(&History::new(seen).unwrap(), level);
    assert!(report.violations.is_empty(), "{report:?}");
    count
}

/// Clients of three sites ask for some seconds; what they saw is judged.
async fn drive(chosen: &[(&str, &str)], clients_each: u64, level: Level) {
    let nodes = with_lists(3, false, chosen).await;
    let load = Load::start(&nodes, clients_each);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let seen = load.end().await;
    let count = judge_by(level, &nodes, seen).await;
    println!("{chosen:?}: {count} acknowledged");
    assert!(count > 50, "{chosen:?}: {count}");
}

#[test]
fn clients_of_every_site_write_and_all_sites_hold_the_same() {
    block_on(async {
        let made = "CREATE TABLE t (id serial PRIMARY KEY, v int, at timestamptz DEFAULT now()); \
             INSERT INTO t (v, at) VALUES (10, '2024-01-01'); CREATE TABLE long (n int PRIMARY KEY, v text)";
        let nodes = sites(3, false, &[], made).await;
        let clients = [nodes.client(0).await, nodes.client(1).await, nodes.client(2).await];
        for client in &clients {
            // Numbers of a sequence, and the time.
            client.execute("INSERT INTO t (v) VALUES ($1)", &[&0_i32]).await.unwrap();
            let whole = "BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; SELECT v AS found FROM t WHERE id = 1; \
                 UPDATE t SET v = :found WHERE id <> 1; COMMIT";
            client.batch_execute(whole).await.unwrap();
        }
        assert_eq!(nodes.everywhere("SELECT count(*), sum(v), count(DISTINCT at) FROM t").await, "4 52 4");
        nodes.everywhere("SELECT * FROM t ORDER BY id").await;
        assert_eq!(rows(&clients[0], "SELECT v FROM t WHERE id = 1").await, "13");
        let duplicate = clients[1].execute("INSERT INTO t VALUES (1, 1)", &[]).await;
        assert_eq!(code(duplicate), SqlState::UNIQUE_VIOLATION);

        // Settings belong to the session, whichever site executes.
        clients[2].batch_execute("SET DateStyle = 'German, DMY'").await.unwrap();
        clients[2].batch_execute("INSERT INTO t VALUES (100, 1, '02.03.2024')").await.unwrap();
        assert_eq!(rows(&clients[2], "SELECT at::date FROM t WHERE id = 100").await, "02.03.2024");
        assert_eq!(nodes.everywhere("SELECT at::date FROM t WHERE id = 100").await, "2024-03-02");

        // What cannot be served says so, and the session goes on.
        for refused in [
            "BEGIN",
            "INSERT INTO t (v) VALUES (random() * 9)",
            "CREATE TABLE u ()",
            "SELECT pg_advisory_lock(1)",
            "LISTEN a",
            "SELECT query_to_xml('SELECT 1', true, false, '')",
            "SELECT id AS found FROM t LIMIT 1; UPDATE t SET v = :found",
        ] {
            assert_eq!(
                code(clients[0].batch_execute(refused).await),
                SqlState::FEATURE_NOT_SUPPORTED,
                "{refused}"
            );
        }
        // So does what is too long to be sent to the other sites.
        let long = |n: usize| format!("INSERT INTO long VALUES ({n}, '{}')", "x".repeat(n << 20));
        clients[0].batch_execute(&long(17)).await.unwrap();
        assert_eq!(code(clients[0].batch_execute(&long(18)).await), SqlState::PROGRAM_LIMIT_EXCEEDED);
        assert_eq!(nodes.everywhere("SELECT n, length(v) FROM long").await, format!("17 {}", 17 << 20));

        assert_eq!(code(clients[0].batch_execute("SELEKT 1").await), SqlState::SYNTAX_ERROR);
        assert_eq!(code(clients[0].batch_execute("SELECT 1 / 0").await), SqlState::DIVISION_BY_ZERO);
        assert_eq!(rows(&clients[0], "SELECT 1").await, "1");
        assert_eq!(clients[0].execute("", &[]).await.unwrap(), 0);
        let parse = clients[0].execute("SELEKT 1", &[]).await;
        assert_eq!(code(parse), SqlState::SYNTAX_ERROR);
    });
}

/// A few of the thirty, on tables and on rows, with every choice in one of them.
#[test]
fn what_clients_of_all_sites_see_is_serializable() {
    block_on(async {
        for [queries, execution, delivery, items] in [
            ["snapshot", "symmetric", "safe", "rows"],
            ["locked", "primary_copy", "ordered_opt_safe", "tables"],
            ["snapshot", "local_copy", "opt_safe", "rows"],
            ["locked", "symmetric", "opt_agreed", "rows"],
            ["snapshot", "primary_copy", "agreed", "tables"],
        ] {
            let chosen =
                [("queries", queries), ("execution", execution), ("delivery", delivery), ("items", items)];
            drive(&chosen, 3, Level::Serializable).await;
        }
    });
}

/// Where nothing that a query reads may be old, all sites are as one server, in real time.
#[test]
fn what_may_not_be_old_is_strictly_serializable() {
    block_on(async {
        for [queries, execution, delivery] in
            [["snapshot", "symmetric", "safe"], ["locked", "local_copy", "opt_safe"]]
        {
            let chosen = [
                ("queries", queries),
                ("execution", execution),
                ("delivery", delivery),
                ("wide_area.staleness_max_ms", "0"),
            ];
            drive(&chosen, 3, Level::StrictSerializable).await;
        }
    });
}

/// A session says how old what it reads may be; a site that cannot know does not answer.
#[test]
fn a_session_says_how_old_what_it_reads_may_be() {
    block_on(async {
        let nodes = with_lists(3, true, &[("wide_area.staleness_max_ms", "3600000")]).await;
        serves(&nodes, 0).await;
        let leads = leader(&nodes).await;
        let (site, other) = ((leads + 1) % 3, leads);
        let (here, there) = (nodes.client(site).await, nodes.client(other).await);
        for (wrong, expected) in
            [("soon", SqlState::INVALID_PARAMETER_VALUE), ("-2", SqlState::INVALID_PARAMETER_VALUE)]
        {
            let set = format!("SET onecopy.staleness_max = '{wrong}'");
            assert_eq!(code(here.batch_execute(&set).await), expected);
        }
        assert_eq!(rows(&here, "SHOW onecopy.staleness_max").await, "1h");
        here.batch_execute("SET onecopy.staleness_max = '0.5 min'").await.unwrap();
        assert_eq!(rows(&here, "SHOW onecopy.staleness_max").await, "30s");
        here.batch_execute("SET onecopy.staleness_max = 0").await.unwrap();
        const READ: &str = "SELECT items FROM lists WHERE id = 1";
        for value in 1..=20 {
            there.batch_execute(&format!("UPDATE lists SET items = ' {value}' WHERE id = 1")).await.unwrap();
            assert_eq!(rows(&here, READ).await, format!(" {value}"));
        }

        nodes.isolate(site);
        there.batch_execute("UPDATE lists SET items = ' new' WHERE id = 1").await.unwrap();
        let read = here.query(READ, &[]);
        assert!(tokio::time::timeout(Duration::from_secs(2), read).await.is_err(), "others may know more");
        let bounded = nodes.client(site).await;
        assert_eq!(rows(&bounded, READ).await, " 20", "it is not so old");
        bounded.batch_execute("SET onecopy.staleness_max = -1").await.unwrap();
        assert_eq!(rows(&bounded, READ).await, " 20", "it may be as old as it is");
        bounded.batch_execute("SET onecopy.staleness_max = '1ms'").await.unwrap();
        assert_eq!(rows(&bounded, "SELECT 1").await, "1", "it looks at nothing that could be old");
        bounded.batch_execute("RESET onecopy.staleness_max").await.unwrap();
        assert_eq!(rows(&bounded, READ).await, " 20");
        bounded.batch_execute("SET onecopy.staleness_max = '1ms'").await.unwrap();
        let waits = tokio::spawn(async move { rows(&bounded, READ).await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waits.is_finished());
        nodes.heal();
        assert_eq!(waits.await.unwrap(), " new");
    });
}

/// What has failed everywhere is not executed once more, on a later state, by a site that begins anew.
#[test]
fn what_has_failed_stays_so_when_a_site_begins_anew() {
    block_on(async {
        let made = "CREATE TABLE accounts (id int PRIMARY KEY, balance int CHECK (balance >= 0)); \
             INSERT INTO accounts VALUES (1, 50), (2, 50)";
        let mut nodes = sites(3, false, &[], made).await;
        let client = nodes.client(0).await;
        for _ in 0..3 {
            let failed =
                client.batch_execute("UPDATE accounts SET balance = balance - 1000 WHERE id = 1").await;
            assert_eq!(code(failed), SqlState::CHECK_VIOLATION);
            client.batch_execute("UPDATE accounts SET balance = balance + 100 WHERE id = 1").await.unwrap();
        }
        let duplicate = client.batch_execute("INSERT INTO accounts VALUES (2, 1)").await;
        assert_eq!(code(duplicate), SqlState::UNIQUE_VIOLATION);
        client.batch_execute("DELETE FROM accounts WHERE id = 2").await.unwrap();
        let held = nodes.everywhere("SELECT * FROM accounts").await;
        assert_eq!(held, "1 350");
        for site in 0..3 {
            nodes.kill(site);
            nodes.spawn(site);
        }
        nodes.servers.server_mut(1).kill_all().unwrap();
        nodes.servers.server_mut(1).start().unwrap();
        let again = nodes.client(1).await;
        // It may have been answered from a connection that is lost.
        while again.batch_execute("UPDATE accounts SET balance = balance").await.is_err() {}
        assert_eq!(nodes.everywhere("SELECT * FROM accounts").await, held);
    });
}

/// Where a server defines something otherwise, what is executed at all sites might do otherwise there. Whoever was there before goes on.
#[test]
fn a_site_whose_database_has_other_definitions_ends() {
    block_on(async {
        let mut nodes = with_lists(3, false, &[]).await;
        serves(&nodes, 0).await;
        nodes.stop(2);
        let server = connect(&nodes.servers.servers()[2].dsn()).await.unwrap();
        server.batch_execute("ALTER TABLE lists ADD more int").await.unwrap();
        nodes.spawn(2);
        let said = nodes.ends(2);
        assert!(said.contains("has other definitions"), "{said}");
        serves(&nodes, 0).await;
        server.batch_execute("ALTER TABLE lists DROP more").await.unwrap();
        nodes.spawn(2);
        serves(&nodes, 2).await;
    });
}

/// Where connections are few, those whose turn it is do not wait for those that wait for them.
#[test]
fn few_connections_are_enough_for_many_clients() {
    block_on(async {
        for [queries, execution, delivery] in
            [["snapshot", "symmetric", "opt_safe"], ["locked", "primary_copy", "safe"]]
        {
            let chosen = [
                ("queries", queries),
                ("execution", execution),
                ("delivery", delivery),
                ("pool.lanes_per_replica_max", "4"),
            ];
            drive(&chosen, 8, Level::Serializable).await;
        }
    });
}

/// The site that gives places, and with it the order of those that are not durable.
pub async fn leader(nodes: &Nodes) -> usize {
    let begin = Instant::now();
    loop {
        for site in 0..nodes.count() {
            let console = nodes.dsn(site).replace("dbname=postgres", "dbname=onecopy");
            let Ok(client) = connect(&console).await else { continue };
            let shown = rows(&client, "SHOW SITE").await;
            let shown: Vec<&str> = shown.split(' ').collect();
            if shown[0] == shown[1] {
                return site;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no site leads");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a site answers an update.
pub async fn serves(nodes: &Nodes, site: usize) {
    let begin = Instant::now();
    loop {
        let asked = async {
            let client = connect(&nodes.dsn(site)).await?;
            client.batch_execute("UPDATE lists SET items = items WHERE id = 1").await
        };
        if let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(5), asked).await {
            return;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            nodes.keep_messages();
            panic!("site {site} does not serve");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills the site that leads, another one, and the server of the third, one after the other, each of which comes back.
pub async fn kill_and_return(nodes: &mut Nodes) {
    serves(nodes, 0).await;
    let leads = leader(nodes).await;
    for site in [leads, (leads + 1) % 3] {
        nodes.kill(site);
        serves(nodes, (site + 1) % 3).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        nodes.spawn(site);
        serves(nodes, site).await;
    }
    let server = (leads + 2) % 3;
    nodes.servers.server_mut(server).kill_all().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    nodes.servers.server_mut(server).start().unwrap();
    serves(nodes, server).await;
}

/// A statement that fails at one server alone makes its site differ. It hears from the others that it does.
#[test]
fn a_site_at_which_alone_a_statement_fails_ends() {
    block_on(async {
        let chosen = [("queries", "snapshot"), ("execution", "symmetric"), ("delivery", "safe")];
        let mut nodes = with_lists(3, false, &chosen).await;
        serves(&nodes, 2).await;
        let server = connect(&nodes.servers.servers()[2].dsn()).await.unwrap();
        server.batch_execute("ALTER DATABASE postgres SET max_stack_depth = '100kB'").await.unwrap();
        server.batch_execute(END_SESSIONS).await.unwrap();
        serves(&nodes, 2).await;
        let client = connect(&nodes.dsn(0)).await.unwrap();
        let deep = "1 + ".repeat(1_500);
        for _ in 0..150 {
            let sql = format!("UPDATE lists SET items = items WHERE id = 1 AND {deep} 1 > 0");
            client.batch_execute(&sql).await.unwrap();
        }
        let said = nodes.ends(2);
        assert!(said.contains("changed other rows here"), "{said}");
        // The others are like each other.
        serves(&nodes, 0).await;
        serves(&nodes, 1).await;
    });
}

/// Every site is killed and comes back while clients of all sites work, and so is a server.
#[test]
fn no_acknowledged_safe_transaction_is_lost_when_sites_are_killed_and_return() {
    block_on(async {
        for [queries, execution, delivery] in [
            ["snapshot", "local_copy", "safe"],
            ["locked", "primary_copy", "opt_safe"],
            ["snapshot", "symmetric", "ordered_opt_safe"],
        ] {
            let chosen = [("queries", queries), ("execution", execution), ("delivery", delivery)];
            let mut nodes = with_lists(3, false, &chosen).await;
            let load = Load::start(&nodes, 2);
            kill_and_return(&mut nodes).await;
            let seen = load.end().await;
            let count = judge(&nodes, seen).await;
            println!("{chosen:?}: {count} acknowledged");
            assert!(count > 50, "{chosen:?}: {count}");
        }
    });
}

/// Whoever is cut off answers no update, and hears of all when it is back.
#[test]
fn a_site_that_is_cut_off_answers_nothing_that_the_others_do_not_know() {
    block_on(async {
        let nodes = with_lists(3, true, &[("execution", "local_copy")]).await;
        let load = Load::start(&nodes, 2);
        serves(&nodes, 0).await;
        let leads = leader(&nodes).await;
        for site in [(leads + 1) % 3, leads] {
            nodes.isolate(site);
            let client = nodes.client(site).await;
            let update = client.batch_execute("UPDATE lists SET items = items WHERE id = 1");
            assert!(tokio::time::timeout(Duration::from_secs(3), update).await.is_err());
            // Snapshots are read as before, though not as the others have them.
            rows(&nodes.client(site).await, "SELECT items FROM lists WHERE id = 1").await;
            serves(&nodes, (site + 1) % 3).await;
            nodes.heal();
            serves(&nodes, site).await;
        }
        let seen = load.end().await;
        assert!(judge(&nodes, seen).await > 50);
    });
}

/// A site that does not count takes clients as all others, is waited for by nobody, and comes back. It saves nobody either: of three
/// that count two must run.
#[test]
fn nobody_waits_for_a_site_that_does_not_count() {
    block_on(async {
        let mut nodes = Nodes::make_sites_voting(4, 3, true, &[]);
        for server in nodes.servers.servers() {
            connect(&server.dsn()).await.unwrap().batch_execute(&lists("lists", 1..=LISTS)).await.unwrap();
        }
        nodes.start_all();
        let load = Load::start(&nodes, 2);
        for site in 0..4 {
            serves(&nodes, site).await;
        }
        let leads = leader(&nodes).await;
        assert!(leads < 3);
        let (other, third) = ((leads + 1) % 3, (leads + 2) % 3);
        nodes.isolate(3);
        nodes.kill(other);
        serves(&nodes, third).await;
        nodes.heal();
        serves(&nodes, 3).await;
        // With its voice it would be a majority.
        nodes.kill(third);
        let client = nodes.client(3).await;
        let update = client.batch_execute("UPDATE lists SET items = items WHERE id = 1");
        assert!(tokio::time::timeout(Duration::from_secs(3), update).await.is_err());
        for site in [other, third] {
            nodes.spawn(site);
        }
        for site in 0..4 {
            serves(&nodes, site).await;
        }
        assert!(leader(&nodes).await < 3);
        let seen = load.end().await;
        assert!(judge(&nodes, seen).await > 50);
    });
}

/// What `agreed` acknowledges can be lost with the site that gave it its place; a database that holds it is found, and does not serve.
#[test]
fn what_agreed_can_lose_is_lost_for_all_and_found() {
    block_on(async {
        let mut nodes = with_lists(3, true, &[("delivery", "agreed")]).await;
        serves(&nodes, 0).await;
        let leads = leader(&nodes).await;
        let (other, third) = ((leads + 1) % 3, (leads + 2) % 3);
        let client = nodes.client(leads).await;
        nodes.isolate(leads);
        client.batch_execute("UPDATE lists SET items = items || ' 7' WHERE id = 1").await.unwrap();
        assert_eq!(rows(&client, "SELECT items FROM lists WHERE id = 1").await, " 7");
        nodes.kill(leads);
        serves(&nodes, other).await;
        let later = nodes.client(third).await;
        later.batch_execute("UPDATE lists SET items = items || ' 8' WHERE id = 1").await.unwrap();
        assert_eq!(rows(&later, "SELECT items FROM lists WHERE id = 1").await, " 8", "7 was acknowledged");
        nodes.heal();
        let said = nodes.refuses(leads).expect("it must not serve");
        assert!(said.contains("has committed another transaction at place"), "{said}");
        // Nor when it is tried once more.
        let said = nodes.refuses(leads).expect("it must not serve");
        assert!(said.contains("must not serve"), "{said}");
    });
}
