//! Sessions that a front carries, on real servers: what they say, what of it is in the log, and that what they say makes
//! them again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use onecopy_cluster::{Cluster, Options};
use onecopy_core::Csn;
use onecopy_wire::backend::{Backend, decode, tag};
use onecopy_wire::carried::{self, Fail, Idle, Script};
use onecopy_wire::frame;
use onecopy_wire::frontend::{Target, build};
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, StartupPacket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{Shared, preparation, startup::begin_carried, startup::handle};
use crate::membership::ReplicaSet;
use crate::record::{Origin, Record};
use crate::session::carried::Carried;
use crate::session::client::Client;
use onecopy_core::protocol::wide_area::Choice;

use crate::settings::{ClientAuth, Limits, LogSettings, ReplicaSettings, ReplicaTls, Settings};
use crate::stream::Stream;
use crate::workers::{STACK_BYTES, event_loop};

const SESSION: [u8; 16] = *b"one of a front's";
/// Parts of the script.
const UNNAMED: u32 = u32::MAX - 1;
const VALUES: u32 = u32::MAX;
const PARAMS: &[(&str, &str)] = &[("user", "postgres"), ("database", "postgres")];

fn settings(cluster: &Cluster, log: &Path, protocol: &str) -> Settings {
    let replicas = cluster.servers().iter().enumerate().map(|(index, server)| ReplicaSettings {
        name: Cluster::name(index),
        host: "127.0.0.1".to_owned(),
        port: server.port(),
        tls: ReplicaTls::Disable,
    });
    let mib = 1 << 20;
    Settings {
        listen: Vec::new(),
        tls: None,
        auth: ClientAuth::Trust,
        database: "postgres".to_owned(),
        replicas: replicas.collect(),
        replica_tls: ReplicaTls::Disable,
        replica_tls_root: None,
        agent_user: "postgres".to_owned(),
        agent_password: None,
        protocol: protocol.to_owned(),
        staleness_max_ms: None,
        wide_area: Choice::all().next().unwrap(),
        divided: Vec::new(),
        parts: Vec::new(),
        deals: false,
        granules: 1,
        coalesces: false,
        log: LogSettings {
            dir: log.to_owned(),
            durable: false,
            segment_bytes: 16 * mib as u64,
            kept_bytes_max: 64 * mib as u64,
        },
        limits: Limits {
            connections_max: 10,
            lanes_per_replica_max: 10,
            message_bytes_max: mib,
            transaction_bytes_max: mib,
            held_result_bytes_max: mib,
            unapplied_bytes_max: mib,
            advisory_locks_max: 100,
            notifications_bytes_max: mib,
            idle_in_transaction_timeout_ms: 0,
            wait_timeout_ms: 10_000,
            startup_timeout_ms: 10_000,
            connect_timeout_ms: 5_000,
            silence_timeout_ms: 0,
        },
        workers: 1,
        annul: Vec::new(),
        nodes: None,
    }
}

async fn serve(mut settings: Settings) -> Arc<Shared> {
    let members = ReplicaSet::load(&mut settings).unwrap();
    let source = preparation::Source::Alone(preparation::lock_log(&settings).unwrap());
    let prepared = preparation::prepare(&settings, &members, source).await.unwrap();
    let (shared, _log_failed) = super::start(settings, prepared, members, None).await.unwrap();
    shared
}

/// What a front sees of a session.
struct Front {
    stream: UnixStream,
    input: BytesMut,
    /// The script, by its parts.
    script: BTreeMap<u32, (u32, Bytes)>,
    idle: Option<Idle>,
}

/// What came up to a ReadyForQuery.
#[derive(Debug, PartialEq)]
struct Heard {
    /// First columns of rows.
    rows: Vec<String>,
    errors: Vec<String>,
    status: u8,
    /// Numbers of the parts of the script.
    parts: Vec<u32>,
}

impl Front {
    async fn begin(shared: &Arc<Shared>, commits: u64) -> Front {
        let (stream, client) = UnixStream::pair().unwrap();
        let max = shared.limits.message_bytes_max;
        let client = Client::new(Stream::Unix(client), BytesMut::new(), max);
        let mut packet = BytesMut::new();
        startup::startup(&mut packet, startup::VERSION_3_0, PARAMS).unwrap();
        let Ok(Some((StartupPacket::Start(start), _))) = startup::decode(&packet) else {
            panic!("{packet:?}")
        };
        let who = shared.door.users.credentials_of("postgres").unwrap();
        let carried = Carried::new(SESSION, commits);
        tokio::spawn(begin_carried(client, start, who, carried, shared.clone()));
        let mut front = Front { stream, input: BytesMut::new(), script: BTreeMap::new(), idle: None };
        let heard = front.hear().await;
        assert_eq!((heard.status, heard.errors, heard.parts), (b'I', vec![], vec![]));
        assert_eq!(front.idle.map(|idle| (idle.commits, idle.movable)), Some((commits, true)));
        front
    }

    async fn next(&mut self) -> (u8, Bytes) {
        loop {
            if let Some(head) = frame::peek(&self.input, frame::FRAME_LEN_MAX).unwrap()
                && self.input.len() >= head.len
            {
                let mut frame = self.input.split_to(head.len);
                frame.advance(frame::HEAD_LEN);
                return (head.tag, frame.freeze());
            }
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0, "the session has ended");
        }
    }

    async fn hear(&mut self) -> Heard {
        let mut heard = Heard { rows: vec![], errors: vec![], status: 0, parts: vec![] };
        self.idle = None;
        loop {
            let (tag, body) = self.next().await;
            if self.idle.is_some() {
                assert_eq!(tag, tag::READY_FOR_QUERY, "nothing comes between");
            }
            match tag {
                carried::tag::IDLE => self.idle = Some(Idle::decode(&body).unwrap()),
                carried::tag::SCRIPT => {
                    let script = Script::decode(&body).unwrap();
                    heard.parts.push(script.part);
                    match script.messages {
                        [] => drop(self.script.remove(&script.part)),
                        _ => {
                            let part = (script.answers, body.slice_ref(script.messages));
                            self.script.insert(script.part, part);
                        }
                    }
                }
                tag::DATA_ROW => {
                    let len = i32::from_be_bytes(body[2..6].try_into().unwrap());
                    let value = body.slice(6..6 + usize::try_from(len).unwrap_or(0));
                    heard.rows.push(String::from_utf8(value.to_vec()).unwrap());
                }
                tag::ERROR_RESPONSE => {
                    let Ok(Backend::Error(fields)) = decode(tag, &body) else { panic!("{body:?}") };
                    heard.errors.push(fields.code().to_string());
                }
                tag::READY_FOR_QUERY => {
                    heard.status = body[0];
                    assert_eq!(self.idle.is_some(), heard.status == b'I');
                    return heard;
                }
                _ => {}
            }
        }
    }

    async fn say(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let mut out = BytesMut::new();
        put(&mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn query(&mut self, sql: &str) -> Heard {
        self.say(|out| build::query(out, sql).unwrap()).await;
        self.hear().await
    }

    /// Of which nothing may fail; its rows.
    async fn rows(&mut self, sql: &str) -> Vec<String> {
        let heard = self.query(sql).await;
        assert_eq!((&heard.errors, heard.status), (&vec![], b'I'), "{sql}");
        heard.rows
    }

    async fn error(&mut self, sql: &str) -> String {
        self.query(sql).await.errors.remove(0)
    }

    fn commits(&self) -> u64 {
        self.idle.unwrap().commits
    }

    fn is_movable(&self) -> bool {
        self.idle.unwrap().movable
    }

    /// Makes the session again by its script.
    async fn play(&mut self, script: &BTreeMap<u32, (u32, Bytes)>) {
        for (answers, messages) in script.values() {
            self.stream.write_all(messages).await.unwrap();
            for _ in 0..*answers {
                let heard = self.hear().await;
                assert_eq!((heard.errors, heard.status), (vec![], b'I'), "{messages:?}");
            }
        }
    }
}

/// Origins in the log, with those of commits that have none left out.
fn origins(shared: &Shared) -> Vec<Origin> {
    let mut reader = shared.log.read_from(Csn(1)).unwrap();
    let mut origins = Vec::new();
    while let Some(entry) = reader.try_next().unwrap() {
        origins.extend(Record::origin_of(&entry.record.body));
    }
    origins
}

/// On a stack as workers have it.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    std::thread::scope(|scope| {
        let run = || event_loop().unwrap().block_on(test());
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).unwrap();
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn commits_are_counted_under(protocol: &str) {
    let cluster = Cluster::temporary(2, &Options::replica()).unwrap();
    let log = tempfile::tempdir().unwrap();
    run(async || {
        let shared = serve(settings(&cluster, &log.path().join("log"), protocol)).await;
        let mut front = Front::begin(&shared, 5).await;
        front.rows("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
        assert_eq!(front.commits(), 6);
        front.rows("INSERT INTO t VALUES (1, 1)").await;
        assert_eq!(front.commits(), 7);
        assert!(front.idle.unwrap().csn >= 2);
        assert_eq!(front.rows("SELECT v FROM t").await, ["1"]);
        assert_eq!(front.commits(), 7, "what only reads is no commit");
        assert_eq!(front.error("INSERT INTO t VALUES (1, 1)").await, "23505");
        front.query("BEGIN").await;
        front.query("UPDATE t SET v = 2").await;
        front.rows("ROLLBACK").await;
        assert_eq!(front.commits(), 7, "what failed or was rolled back uses no number up");
        front.query("BEGIN").await;
        front.query("UPDATE t SET v = 3").await;
        assert_eq!(front.query("INSERT INTO t VALUES (2, 2)").await.status, b'T');
        front.rows("COMMIT").await;
        assert_eq!(front.commits(), 8);
        front.rows("INSERT INTO t VALUES (3, 3); INSERT INTO t VALUES (4, 4)").await;
        assert_eq!(front.commits(), 9, "an implicit transaction is one commit");
        front
            .say(|out| {
                build::parse(out, "", "UPDATE t SET v = 7 WHERE id = 3", []).unwrap();
                build::bind(out, "", "", [], [], []).unwrap();
                build::execute(out, "", 0).unwrap();
                build::sync(out);
            })
            .await;
        assert_eq!(front.hear().await.errors, Vec::<String>::new());
        assert_eq!(front.commits(), 10);
        let numbers: Vec<u64> = origins(&shared).iter().map(|origin| origin.number).collect();
        assert_eq!(numbers, [6, 7, 8, 9, 10]);
        assert!(origins(&shared).iter().all(|origin| origin.session == SESSION));
    });
}

#[test]
fn each_commit_has_the_next_number_in_the_log_and_before_the_answer() {
    commits_are_counted_under("onecopy");
}

#[test]
fn each_commit_has_the_next_number_where_every_replica_executes_it() {
    commits_are_counted_under("eager");
}

#[test]
fn session_is_made_again_by_its_script() {
    let cluster = Cluster::temporary(1, &Options::replica()).unwrap();
    let log = tempfile::tempdir().unwrap();
    run(async || {
        let shared = serve(settings(&cluster, &log.path().join("log"), "onecopy")).await;
        let mut front = Front::begin(&shared, 0).await;
        front.rows("CREATE SCHEMA s; CREATE TABLE s.t (id serial PRIMARY KEY, v text)").await;
        assert!(front.script.is_empty(), "{:?}", front.script);
        for sql in [
            "SET search_path = s",
            "SET work_mem = '5MB'",
            "SET idle_session_timeout = '1h'",
            "SELECT set_config('app.name', 'it''s \\', false)",
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, DEFERRABLE",
        ] {
            let heard = front.query(sql).await;
            assert_eq!((heard.errors, heard.parts), (vec![], vec![0]), "{sql}");
        }
        assert_eq!(front.query("PREPARE p (int, text) AS SELECT $1 + 1").await.parts, [1]);
        assert_eq!(front.query("PREPARE \"Q\" AS SELECT v FROM t").await.parts, [2]);
        front
            .say(|out| {
                build::parse(out, "named", "SELECT $1::int + 7", [23]).unwrap();
                build::parse(out, "", "SELECT 'unnamed'", []).unwrap();
                build::sync(out);
            })
            .await;
        assert_eq!(front.hear().await.parts, [UNNAMED, 3]);
        assert!(front.is_movable());
        assert_eq!(front.query("LISTEN \"Here\"; LISTEN there").await.parts, [UNNAMED]);
        assert!(!front.is_movable(), "it would miss what is notified meanwhile");
        assert_eq!(front.query("INSERT INTO t (v) VALUES ('a'), ('b')").await.parts, [VALUES]);
        assert_eq!(front.query("SELECT 1").await.parts, Vec::<u32>::new());
        front.query("DEALLOCATE \"Q\"").await;
        front.query("UNLISTEN *").await;
        front.rows("SELECT pg_advisory_lock(7)").await;
        assert!(!front.is_movable());
        front.rows("SELECT pg_advisory_unlock(7)").await;
        assert!(front.is_movable());
        assert_eq!(front.script.keys().copied().collect::<Vec<_>>(), [0, 1, 3, VALUES]);

        let mut again = Front::begin(&shared, front.commits()).await;
        again.play(&front.script).await;
        let sent = |script: &BTreeMap<u32, (u32, Bytes)>| -> Vec<_> { script.values().cloned().collect() };
        assert_eq!(sent(&again.script), sent(&front.script), "it says of itself what made it");
        assert_eq!(again.commits(), front.commits());
        for sql in [
            "SHOW search_path",
            "SHOW work_mem",
            "SHOW idle_session_timeout",
            "SELECT current_setting('app.name')",
            "SHOW transaction_deferrable",
            "EXECUTE p(1, 'unused')",
            "EXECUTE named(1)",
            "SELECT currval('t_id_seq')",
            "SELECT lastval()",
        ] {
            let rows = front.rows(sql).await;
            assert_eq!((rows.len(), again.rows(sql).await), (1, rows), "{sql}");
        }
        assert_eq!(again.error("EXECUTE \"Q\"").await, "26000");
    });
}

#[test]
fn unnamed_statement_is_told_only_while_it_waits_to_be_bound() {
    let cluster = Cluster::temporary(1, &Options::replica()).unwrap();
    let log = tempfile::tempdir().unwrap();
    run(async || {
        let shared = serve(settings(&cluster, &log.path().join("log"), "onecopy")).await;
        let mut front = Front::begin(&shared, 0).await;
        let parse = |out: &mut BytesMut, sql: &str| {
            build::parse(out, "", sql, []).unwrap();
            build::describe(out, Target::Statement, "").unwrap();
        };
        let execute = |out: &mut BytesMut| {
            build::bind(out, "", "", [], [], []).unwrap();
            build::execute(out, "", 0).unwrap();
        };
        let mut heard = Vec::new();
        front.say(|out| [parse(out, "SELECT 1"), execute(out), build::sync(out)].into_iter().collect()).await;
        heard.push(front.hear().await.parts);
        front.say(|out| [parse(out, "SELECT 2"), build::sync(out)].into_iter().collect()).await;
        heard.push(front.hear().await.parts);
        front.say(|out| [execute(out), build::sync(out)].into_iter().collect()).await;
        heard.push(front.hear().await.parts);
        assert_eq!(heard, [vec![], vec![UNNAMED], vec![]]);
        assert!(!front.script.is_empty(), "it is still there");
        front.say(|out| [parse(out, "SELECT 3"), execute(out), build::sync(out)].into_iter().collect()).await;
        assert_eq!(front.hear().await.parts, [UNNAMED]);
        assert!(front.script.is_empty(), "another statement has taken its place");
    });
}

#[test]
fn front_fails_a_transaction_as_a_statement_would() {
    let cluster = Cluster::temporary(1, &Options::replica()).unwrap();
    let log = tempfile::tempdir().unwrap();
    run(async || {
        let shared = serve(settings(&cluster, &log.path().join("log"), "onecopy")).await;
        let mut front = Front::begin(&shared, 0).await;
        for begin in ["SELECT 1", "BEGIN"] {
            front.query(begin).await;
            let fail = Fail { code: SqlState::SERIALIZATION_FAILURE, message: "others were faster" };
            front.say(|out| fail.encode(out)).await;
            let heard = front.query("SELECT 1").await;
            assert_eq!((heard.errors, heard.status), (vec!["25P02".to_owned()], b'E'), "{begin}");
            let heard = front.query("ROLLBACK TO SAVEPOINT of_another_node").await;
            assert_eq!((heard.errors, heard.status), (vec!["40001".to_owned()], b'E'), "{begin}");
            front.rows("COMMIT").await;
            assert_eq!(front.rows("SELECT 1").await, ["1"]);
            assert_eq!(front.commits(), 0);
        }
    });
}

#[test]
fn what_only_fronts_may_say_ends_the_session_of_a_client() {
    let cluster = Cluster::temporary(1, &Options::replica()).unwrap();
    let log = tempfile::tempdir().unwrap();
    run(async || {
        let shared = serve(settings(&cluster, &log.path().join("log"), "onecopy")).await;
        for message in [carried::tag::VALUES, carried::tag::FAIL] {
            let (mut stream, client) = UnixStream::pair().unwrap();
            tokio::spawn(handle(Stream::Unix(client), shared.clone(), false));
            let mut out = BytesMut::new();
            startup::startup(&mut out, startup::VERSION_3_0, PARAMS).unwrap();
            stream.write_all(&out).await.unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"Z\0\0\0\x05I") {
                stream.read_buf(&mut heard).await.unwrap();
            }
            assert!(!heard.windows(5).any(|bytes| bytes == b"@\0\0\0\x15"), "{heard:?}");
            stream.write_all(&[message, 0, 0, 0, 4]).await.unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.unwrap();
            let said = String::from_utf8_lossy(&heard);
            assert!(said.contains("FATAL") && said.contains("08P01"), "{said}");
        }
    });
}
