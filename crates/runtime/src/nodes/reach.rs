//! A node that leads and reaches no replica serves nobody, while another one might. The others hear that it lives, so they do
//! not elect anybody: it falls silent for as long as an election takes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use onecopy_wire::startup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::Deadline;
use crate::nodes::Node;
use crate::nodes::term::Running;
use crate::settings::ReplicaSettings;

/// Between looking whether there is a replica in service.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How long there must have been none.
const WITHOUT_MIN: Duration = Duration::from_secs(3);
/// How long a server may take to answer its first question.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How many of the shortest election timeouts it is silent: the longest is two, and an election may come out even.
pub const SILENT_ELECTIONS: u32 = 6;

/// Has another node lead when this one reaches none of the replicas: of those that it serves, or before that of `replicas`.
pub async fn watch(node: &Node, replicas: &[ReplicaSettings]) -> Infallible {
    let mut patience = WITHOUT_MIN;
    let mut until = Deadline::after(patience);
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        let running = node.term.borrow().clone();
        if running.as_ref().is_some_and(|running| running.shared.pools.in_service().next().is_some()) {
            patience = WITHOUT_MIN;
            until = Deadline::after(patience);
            continue;
        }
        if !until.has_passed() {
            continue;
        }
        // One that answers is being brought up to date.
        let of_set = |running: Arc<Running>| -> Vec<ReplicaSettings> {
            running.shared.pools.members().map(|pool| (*pool.connector.address).clone()).collect()
        };
        let replicas = running.map_or_else(|| replicas.to_vec(), of_set);
        let mut asked: tokio::task::JoinSet<bool> =
            replicas.into_iter().map(|replica| async move { answers(&replica).await }).collect();
        let mut is_reached = false;
        while let Some(answered) = asked.join_next().await {
            is_reached |= answered.unwrap_or(false);
        }
        if !is_reached {
            tracing::warn!("this node leads and reaches none of the replicas; letting another one lead");
            node.links.be_silent(SILENT_ELECTIONS * Duration::from_millis(node.settings.election_timeout_ms));
            // If nobody else takes over, perhaps nobody else can.
            patience *= 2;
        }
        until = Deadline::after(patience);
    }
}

/// Whether a server is there, and answers what is asked before anybody says who asks.
async fn answers(replica: &ReplicaSettings) -> bool {
    let asking = async {
        if replica.host.starts_with('/') {
            return std::io::Result::Ok(true);
        }
        let mut stream = TcpStream::connect((replica.host.as_str(), replica.port)).await?;
        let mut question = BytesMut::new();
        startup::ssl_request(&mut question);
        stream.write_all(&question).await?;
        stream.read_u8().await.map(|_| true)
    };
    matches!(tokio::time::timeout(ANSWER_WITHIN, asking).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ReplicaTls;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_server_is_reached_if_it_says_something() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let replica =
            ReplicaSettings { name: "r".into(), host: "127.0.0.1".into(), port, tls: ReplicaTls::Disable };
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"N").await.unwrap();
        };
        let (is_reached, ()) = tokio::join!(answers(&replica), answering);
        assert!(is_reached);
        // It takes the connection, and says nothing.
        assert!(!answers(&replica).await);
        drop(listener);
        assert!(!answers(&replica).await);
    }
}
