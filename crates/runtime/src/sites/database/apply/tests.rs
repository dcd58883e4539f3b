//! On a real server.

use std::sync::Arc;
use std::time::Duration;

use onecopy_cluster::{Cluster, Options};
use onecopy_core::Csn;

use super::*;
use crate::postgres::connect::{Connector, Credentials, CustomNames};
use crate::record::Write;
use crate::settings::{ReplicaSettings, ReplicaTls};

/// A server with a table of twenty rows, and who stands before it.
pub(in crate::sites::database) struct Site {
    pub database: Database,
    classifier: Classifier,
    _cluster: Cluster,
}

impl Site {
    pub async fn start() -> Site {
        let cluster = Cluster::temporary(1, &Options::replica()).unwrap();
        let address = ReplicaSettings {
            name: "here".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: cluster.servers()[0].port(),
            tls: ReplicaTls::Disable,
        };
        let connector = Connector {
            address: Arc::new(address),
            database: "postgres".into(),
            timeout: Duration::from_secs(10),
            silence: Duration::ZERO,
            version: Arc::default(),
            leader: None,
        };
        let agent =
            Credentials { user: "postgres".to_owned(), password: None, customs: CustomNames::default() };
        let database = Database::new(connector, agent, 4);
        database.watch().await.unwrap();
        let mut lane = database.lend().await.unwrap();
        lane.command(
            "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL CHECK (v < 100)); \
             INSERT INTO t SELECT n, 0 FROM generate_series(1, 20) n; \
             CREATE ROLE ada; CREATE SCHEMA AUTHORIZATION ada CREATE TABLE note (id int PRIMARY KEY, body text); \
             CREATE ROLE bo; CREATE SCHEMA AUTHORIZATION bo CREATE TABLE note (id int PRIMARY KEY, body numeric); \
             INSERT INTO ada.note VALUES (1, ''), (2, ''); INSERT INTO bo.note VALUES (1, 0), (2, 0); \
             ALTER TABLE ada.note OWNER TO ada; ALTER TABLE bo.note OWNER TO bo",
        )
        .await
        .unwrap();
        database.give_back(lane);
        let classifier = Classifier::new(database.definitions().await.unwrap(), Csn(0));
        Site { database, classifier, _cluster: cluster }
    }

    fn transaction(&self, user: &str, statements: &[&str]) -> Transaction {
        let texts = statements.iter().map(|sql| What::Text((*sql).to_owned()));
        let writes = texts.map(Write::new).collect();
        let record = Record { user: user.to_owned(), writes, ..Record::default() };
        Transaction::read(record, &self.classifier, &mut Scratch::default())
    }

    /// Executes a transaction whose like was met often, rolls it back, and returns what others would apply.
    async fn written(&self, user: &str, statements: &[&str]) -> Record {
        for _ in 0..4 {
            self.transaction(user, statements);
        }
        let mut lane = self.database.lend().await.unwrap();
        let transaction = self.transaction(user, statements);
        let begin = Begin::Update { checks_at_once: false };
        let (ran, writes) = run(&mut lane, &transaction, begin, usize::MAX).await.unwrap();
        assert!(matches!(ran, Ran::Done(_)), "{ran:?}");
        self.database.leave(lane).await;
        writes
    }

    pub async fn command(&self, sql: &str) {
        let mut lane = self.database.lend().await.unwrap();
        lane.command(sql).await.unwrap();
        self.database.give_back(lane);
    }

    /// Applies it, and asks something before it is rolled back.
    async fn applied(&self, writes: &Record, asks: &str) -> Result<Vec<String>, ApplyError> {
        let mut lane = self.database.lend().await.unwrap();
        let result = self.database.apply(&mut lane, writes, &self.classifier, false).await;
        let answer = match result {
            Ok(()) => Ok(lane.query(asks).await.unwrap().into_iter().flatten().flatten().collect()),
            Err(error) => Err(error),
        };
        self.database.leave(lane).await;
        answer
    }
}

/// Values that were changed, and what was executed for many at once.
const TOGETHER: &str = "SELECT v FROM t WHERE v > 0 ORDER BY id; \
     SELECT count(*) > 0 FROM pg_prepared_statements WHERE statement LIKE '%unnest%'";
const ADDS: [&str; 3] = [
    "UPDATE t SET v = v + 2 WHERE id = 5",
    "UPDATE t SET v = v + 4 WHERE id = 3",
    "UPDATE t SET v = v + 8 WHERE id = 7",
];

#[tokio::test]
async fn executions_of_one_statement_are_applied_as_one_and_do_what_each_did() {
    let site = Site::start().await;
    let writes = site.written("", &ADDS).await;
    assert!(writes.writes.iter().all(|write| matches!(write.what, What::Prepared { .. })), "{writes:?}");
    assert_eq!(site.applied(&writes, TOGETHER).await.unwrap(), ["4", "2", "8", "t"]);
    // What came over the wire is the same.
    let decoded = Record::decode(writes.encode()).unwrap();
    assert_eq!(site.applied(&decoded, TOGETHER).await.unwrap(), ["4", "2", "8", "t"]);

    // Once more of one row, which comes after the first time, and once of none.
    let more = ["UPDATE t SET v = v * 3 WHERE id = 5", "UPDATE t SET v = v + 1 WHERE id = 99"];
    let writes = site.written("", &[&ADDS[..], &more, &ADDS[..1]].concat()).await;
    let rows: Vec<_> = writes.writes.iter().map(|write| write.rows).collect();
    assert_eq!(rows, [Some(1), Some(1), Some(1), Some(1), Some(0), Some(1)]);
    assert_eq!(site.applied(&writes, TOGETHER).await.unwrap(), ["4", "8", "8", "t"]);
}

#[tokio::test]
async fn what_differs_here_is_found_and_the_server_goes_on() {
    let site = Site::start().await;
    let mut writes = site.written("", &ADDS).await;
    for write in &mut writes.writes {
        write.rows = Some(0);
    }
    let error = site.applied(&writes, TOGETHER).await.unwrap_err();
    assert!(matches!(&error, ApplyError::Diverged(what) if what.contains("numbers of rows")), "{error}");
    for write in &mut writes.writes {
        write.rows = Some(1);
    }
    site.command("UPDATE t SET v = 95").await;
    let error = site.applied(&writes, TOGETHER).await.unwrap_err();
    assert!(matches!(&error, ApplyError::Diverged(what) if what.contains("t_v_check")), "{error}");
    site.command("UPDATE t SET v = 0").await;
    assert_eq!(site.applied(&writes, TOGETHER).await.unwrap(), ["4", "2", "8", "t"]);
    let nobody = Record { user: "nobody".to_owned(), ..writes };
    let error = site.applied(&nobody, TOGETHER).await.unwrap_err();
    assert!(matches!(&error, ApplyError::NotBegun(what) if what.contains("nobody")), "{error}");
}

#[tokio::test]
async fn what_fails_only_together_is_applied_one_by_one_and_left_alone_after_some_times() {
    let site = Site::start().await;
    let writes = site.written("", &ADDS).await;
    let key = executed_again(&writes)[0].under(transaction::read_under(&writes));
    let form = Form::of("UPDATE nowhere SET v = $1 WHERE id = $2", &[23, 23]);
    site.database.learn(key, Known { form, failures: 0 });
    for times in 1..=FAILURES_MAX + 2 {
        assert_eq!(site.applied(&writes, TOGETHER).await.unwrap(), ["4", "2", "8", "f"]);
        let failures = site.database.known.lock()[&key].failures;
        assert_eq!(failures, times.min(FAILURES_MAX));
    }
}

#[tokio::test]
async fn roles_for_which_a_name_is_another_table_share_nothing_that_is_prepared() {
    let site = Site::start().await;
    let texts = ["UPDATE note SET body = '7' WHERE id = 1", "UPDATE note SET body = '8' WHERE id = 2"];
    for _ in 0..2 {
        for (user, expected) in [("ada", ["7", "8"]), ("bo", ["7", "8"])] {
            let writes = site.written(user, &texts).await;
            let asks = format!("SELECT body FROM {user}.note ORDER BY id");
            assert_eq!(site.applied(&writes, &asks).await.unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn a_statement_that_is_met_often_is_executed_prepared() {
    let site = Site::start().await;
    let asks = "SELECT statement FROM pg_prepared_statements WHERE statement LIKE 'UPDATE t%'";
    site.written("", &ADDS).await;
    let mut lane = site.database.lend().await.unwrap();
    let found: Vec<String> = lane.query(asks).await.unwrap().into_iter().flatten().flatten().collect();
    assert_eq!(found, ["UPDATE t SET v = v + $1 WHERE id = $2"]);
}
