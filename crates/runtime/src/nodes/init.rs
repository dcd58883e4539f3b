//! The beginning of a log that several nodes share.

use std::io;

use onecopy_core::{Csn, Epoch};
use onecopy_log::consensus::{Membership, NodeId, Origin};
use onecopy_log::{Begun, Genesis, Log, LogId};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::errors::ServeError;
use crate::nodes::handshake::Purpose;
use crate::nodes::links;
use crate::server::preparation;
use crate::settings::{NodesSettings, Settings};
use crate::stream::Stream;
use crate::workers::event_loop;

/// Begins the log of one of the nodes of a new cluster, to be done once on each; or, if it `joins`, of one that comes to
/// others, and gets the log from them. A node that finds no log does not begin one by itself: it might be one that has lost what
/// it had acknowledged to the others. A log that is there, since its process was alone, is shared from now on.
///
/// # Errors
/// [`ServeError`], if the folder holds a shared log already, or cannot be used, or no other node can be reached to join it.
pub fn init(settings: &Settings, joins: bool) -> Result<Begun, ServeError> {
    let nodes = settings.nodes.as_ref().ok_or_else(|| {
        ServeError::Settings(
            "the configuration is of a process that is alone; set cluster.node and cluster.nodes".into(),
        )
    })?;
    let folder = preparation::lock_log(settings)?;
    let (log_id, voters) = match joins {
        // Who counts there, the log will say.
        true => (event_loop().map_err(ServeError::Threads)?.block_on(ask(nodes))?, Vec::new()),
        false => {
            (log_id(nodes, &settings.database), nodes.nodes.iter().map(|node| NodeId(node.id)).collect())
        }
    };
    let origin = Origin {
        genesis: Genesis { log_id, epoch: Epoch(1), after: Csn(0) },
        membership: Membership::of_voters(&voters),
    };
    Log::begin_shared(folder, origin, NodeId(nodes.this), super::log_settings(settings))
        .map_err(|error| ServeError::Log(error.to_string()))
}

/// What log the others share, of the first that answers.
async fn ask(nodes: &NodesSettings) -> Result<LogId, ServeError> {
    let mut problems = Vec::new();
    for node in nodes.nodes.iter().filter(|node| node.id != nodes.this) {
        let asking = async {
            let mut stream = links::connect(nodes, node, Purpose::Origin).await?;
            stream.read_u128().await
        };
        match asking.await {
            Ok(log_id) => return Ok(LogId(log_id)),
            Err(error) => problems.push(format!("node {}: {error}", node.id)),
        }
    }
    Err(ServeError::Log(format!("no other node can be asked which log to join: {}", problems.join("; "))))
}

/// Answers that.
///
/// # Errors
/// The connection.
pub async fn tell(mut stream: Stream, log_id: LogId) -> io::Result<()> {
    stream.write_u128(log_id.0).await?;
    stream.shutdown().await
}

/// The same on all nodes, and another one in another cluster: the secret is what only they know.
fn log_id(nodes: &NodesSettings, database: &str) -> LogId {
    let mut hash = Sha256::new();
    hash.update(b"onecopy log\0");
    hash.update(nodes.secret.as_bytes());
    hash.update([0]);
    hash.update(database.as_bytes());
    let digest = hash.finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    LogId(u128::from_be_bytes(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_cluster_begin_the_same_log_and_others_another() {
        let nodes = |secret: &str, this| NodesSettings {
            this,
            secret: secret.to_owned(),
            nodes: Vec::new(),
            election_timeout_ms: 500,
        };
        assert_eq!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("s", 2), "shop"));
        assert_ne!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("t", 1), "shop"));
        assert_ne!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("s", 1), "bank"));
    }
}
