//! A cluster of three for the tests of what its clients see and what its replicas hold.

use super::clients::{connect, json, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;
use tempfile::TempDir;
use tokio_postgres::Client;

/// Three servers behind onecopy.
pub(super) struct Three {
    // It stops before its folder goes.
    _up: Up,
    pub(super) dir: TempDir,
    pub(super) file: ClusterFile,
}

impl Three {
    pub(super) fn start() -> Three {
        let dir = folder();
        let up = Up::ready(dir.path(), 3);
        let file = ClusterFile::read(dir.path()).unwrap();
        Three { _up: up, dir, file }
    }

    pub(super) async fn client(&self) -> Client {
        connect(&self.file.client.dsn).await
    }

    pub(super) async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(self.client().await);
        }
        clients
    }

    pub(super) async fn client_of(&self, role: &str) -> Client {
        connect(&self.file.client.dsn.replace("user=postgres", &format!("user={role}"))).await
    }

    pub(super) fn status(&self) -> serde_json::Value {
        json(self.dir.path(), &["status"])
    }

    /// All replicas serve and hold the same, at one point of the order.
    pub(super) fn assert_identical(&self) {
        let verified = json(self.dir.path(), &["verify"]);
        assert_eq!(verified["identical"], true, "{verified}");
    }

    /// A query's answer on each replica by itself, which is the same.
    pub(super) async fn everywhere(&self, sql: &str) -> String {
        self.assert_identical();
        let mut answers = Vec::new();
        for replica in &self.file.replicas {
            answers.push(rows(&connect(&replica.dsn).await, sql).await);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{sql}: {answers:?}");
        answers.swap_remove(0)
    }
}
