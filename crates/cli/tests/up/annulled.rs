//! Commits that are decided and that no replica can apply.

use super::clients::{block_on, connect, json, rows};
use super::failures::are_up;
use super::{Up, folder, wait_until};
use onecopy_cluster::ClusterFile;
use std::path::Path;
use std::process::Command;

/// On every server, behind onecopy's back: a deferred constraint that nobody but the server knows of.
async fn forbid_negative_values(file: &ClusterFile) {
    for replica in &file.replicas {
        let trigger = "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                           IF new.v < 0 THEN RAISE 'no values below zero' USING ERRCODE = '23514', CONSTRAINT = 'positive'; END IF;
                           RETURN NULL;
                       END $$;
                       CREATE CONSTRAINT TRIGGER forbid AFTER INSERT OR UPDATE ON t
                       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forbid()";
        let server = connect(&replica.dsn).await;
        server.batch_execute(trigger).await.unwrap();
        // No crash takes it away.
        server.batch_execute("CHECKPOINT").await.unwrap();
    }
}

fn state(result: Result<impl Sized, tokio_postgres::Error>) -> String {
    result.err().unwrap().code().unwrap().code().to_owned()
}

#[test]
fn commit_that_no_replica_can_apply_is_rolled_back_and_its_client_told_so() {
    block_on(async {
        let dir = folder();
        let up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)").await.unwrap();
        forbid_negative_values(&file).await;
        client.batch_execute("INSERT INTO t VALUES (1, 1)").await.unwrap();

        let error = client.execute("INSERT INTO t VALUES (2, -1)", &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.message()), ("23514", "no values below zero"));
        assert_eq!(error.constraint(), Some("positive"));
        client.batch_execute("BEGIN; SET search_path = nowhere; UPDATE public.t SET v = -2").await.unwrap();
        assert_eq!(state(client.batch_execute("COMMIT").await), "23514");
        assert_eq!(rows(&client, "SHOW search_path").await, "\"$user\", public");
        wait_until("all replicas serve", || are_up(dir.path()));
        client.batch_execute("INSERT INTO t VALUES (3, 3)").await.unwrap();
        assert_eq!(rows(&client, "TABLE t ORDER BY id").await, "1 1, 3 3");
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);

        // The log goes on saying so, whatever could be applied later: one server forgets that it has passed over it, as a crash
        // may make it.
        assert_eq!(state(client.batch_execute("INSERT INTO t VALUES (4, -4)").await), "23514");
        wait_until("all replicas serve", || are_up(dir.path()));
        let forget = "DELETE FROM onecopy.progress WHERE csn = (SELECT max(csn) FROM onecopy.progress)";
        connect(&file.replicas[1].dsn).await.batch_execute(forget).await.unwrap();
        for replica in &file.replicas {
            connect(&replica.dsn).await.batch_execute("DROP FUNCTION forbid CASCADE").await.unwrap();
        }
        drop(client);
        let mut process = up;
        process.signal("-TERM");
        assert!(process.process.wait().unwrap().success());
        let _again = Up::ready(dir.path(), 3);
        wait_until("all replicas serve", || are_up(dir.path()));
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("INSERT INTO t VALUES (5, 5)").await.unwrap();
        assert_eq!(rows(&client, "TABLE t ORDER BY id").await, "1 1, 3 3, 5 5");
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

#[test]
fn replica_that_is_away_is_waited_for_and_a_later_process_annuls_only_what_an_operator_names() {
    block_on(async {
        let dir = folder();
        let mut up = Up::ready(dir.path(), 2);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)").await.unwrap();
        forbid_negative_values(&file).await;
        client.batch_execute("INSERT INTO t VALUES (1, 1)").await.unwrap();
        let pid = file.replicas[1].pid.to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        wait_until("one server is gone", || json(dir.path(), &["status"])["replicas"][1]["state"] == "down");
        let waiting = tokio::spawn(async move { client.execute("INSERT INTO t VALUES (2, -1)", &[]).await });
        wait_until("the other one says for whom it waits", || {
            let replica = &json(dir.path(), &["status"])["replicas"][0];
            replica["detail"].as_str().unwrap().contains("has not been heard of r2")
        });
        up.process.kill().unwrap();
        up.process.wait().unwrap();
        assert!(waiting.await.unwrap().is_err());
        wait_until("its servers have ended", || {
            file.replicas.iter().all(|replica| !Path::new(&format!("/proc/{}", replica.pid)).exists())
        });
        // Somebody may have been told of it, as far as the later process knows.
        let refused = Up::command(dir.path(), 2).output().unwrap();
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && words.contains("start with --annul 3"), "{words}");
        let mut command = Up::command(dir.path(), 2);
        command.args(["--annul", "3"]);
        let _again = Up::ready_by(command);
        wait_until("both replicas serve", || are_up(dir.path()));
        let file = ClusterFile::read(dir.path()).unwrap();
        assert_eq!(rows(&connect(&file.client.dsn).await, "TABLE t").await, "1 1");
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}

#[test]
fn client_hears_of_it_where_every_replica_executes_every_write() {
    block_on(async {
        let dir = folder();
        let mut command = Up::command(dir.path(), 2);
        command.args(["--protocol", "conflict_aware"]);
        let _up = Up::ready_by(command);
        let file = ClusterFile::read(dir.path()).unwrap();
        let client = connect(&file.client.dsn).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)").await.unwrap();
        // Definitions have been read by now.
        client.batch_execute("INSERT INTO t VALUES (1, 1)").await.unwrap();
        forbid_negative_values(&file).await;
        assert_eq!(state(client.execute("INSERT INTO t VALUES (2, -1)", &[]).await), "23514");
        client.batch_execute("BEGIN; INSERT INTO t VALUES (3, -1)").await.unwrap();
        assert_eq!(state(client.batch_execute("COMMIT").await), "23514");
        wait_until("both replicas serve", || are_up(dir.path()));
        client.batch_execute("INSERT INTO t VALUES (4, 4)").await.unwrap();
        assert_eq!(rows(&client, "TABLE t ORDER BY id").await, "1 1, 4 4");
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
    });
}
