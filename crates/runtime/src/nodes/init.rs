//! The beginning of a log that several nodes share.

use std::io;
use std::time::Duration;

use onecopy_core::{Csn, Epoch};
use onecopy_log::consensus::{Membership, NodeId, Origin, Role};
use onecopy_log::{Begun, Genesis, Held, Log, LogId};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::errors::ServeError;
use crate::membership::ReplicaSet;
use crate::nodes::handshake::Purpose;
use crate::nodes::links;
use crate::server::preparation;
use crate::settings::{NodeSettings, NodesSettings, Settings};
use crate::stream::Stream;
use crate::workers::event_loop;

/// How long another node may take to say which log it has.
const ASK_PATIENCE: Duration = Duration::from_secs(5);

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
    let others = event_loop().map_err(ServeError::Threads)?.block_on(ask(nodes));
    let (log_id, members) = match (joins, others) {
        // Who counts there, the log will say.
        (true, Ok((log_id, _))) => (log_id, Vec::new()),
        (true, Err(problems)) => {
            return Err(ServeError::Log(format!("no other node can be asked which log to join: {problems}")));
        }
        (false, Ok((_, csn))) if csn > Csn(0) => {
            return Err(ServeError::Log(format!(
                "the cluster is there already: another node has its log, up to commit {csn}. If this node's log was lost, give it another number and join: onecopy node init --join"
            )));
        }
        (false, _) => {
            let member = |node: &NodeSettings| {
                (NodeId(node.id), if node.voting { Role::Voter } else { Role::Learner })
            };
            (log_id(nodes, &settings.database), nodes.nodes.iter().map(member).collect())
        }
    };
    let origin = Origin {
        genesis: Genesis { log_id, epoch: Epoch(1), after: Csn(0) },
        membership: Membership::beginning(members),
    };
    let begun = Log::begin_shared(folder, origin, NodeId(nodes.this), super::log_settings(settings))
        .map_err(|error| ServeError::Log(error.to_string()))?;
    if begun.was_alone {
        // It knows which replicas there are, also if none came or went.
        ReplicaSet::keep_file(&settings.log.dir)
            .map_err(|error| ServeError::Log(format!("write replicas.toml beside the log: {error}")))?;
    }
    Ok(begun)
}

/// What log the others share, and its last commit, of the first that answers; or why none does.
async fn ask(nodes: &NodesSettings) -> Result<(LogId, Csn), String> {
    let mut problems = Vec::new();
    for node in nodes.nodes.iter().filter(|node| node.id != nodes.this) {
        let asking = async {
            let mut stream = links::connect(nodes, node, Purpose::Origin).await?;
            Ok((LogId(stream.read_u128().await?), Csn(stream.read_u64().await?)))
        };
        let answered: io::Result<_> = tokio::time::timeout(ASK_PATIENCE, asking)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match answered {
            Ok(answer) => return Ok(answer),
            Err(error) => problems.push(format!("node {}: {error}", node.id)),
        }
    }
    Err(problems.join("; "))
}

/// Answers that.
///
/// # Errors
/// The connection.
pub async fn tell(mut stream: Stream, held: &Held) -> io::Result<()> {
    stream.write_u128(held.log_id.0).await?;
    stream.write_u64(held.last.0).await?;
    stream.shutdown().await
}

/// The same on all nodes that agree on who counts, and another one in another cluster: the secret is what only they know.
fn log_id(nodes: &NodesSettings, database: &str) -> LogId {
    let mut hash = Sha256::new();
    hash.update(b"onecopy log\0");
    hash.update(nodes.secret.as_bytes());
    hash.update([0]);
    hash.update(database.as_bytes());
    // Who would count by one node's configuration and not by another's: these nodes must not begin one log.
    for node in nodes.nodes.iter().filter(|node| !node.voting) {
        hash.update([0]);
        hash.update(node.id.to_be_bytes());
    }
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
        let of = |secret: &str, this, voting| NodesSettings {
            this,
            secret: secret.to_owned(),
            nodes: vec![NodeSettings { id: 2, host: "b".to_owned(), port: 6433, voting }],
            election_timeout_ms: 500,
        };
        let nodes = |secret, this| of(secret, this, true);
        assert_eq!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("s", 2), "shop"));
        assert_ne!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("t", 1), "shop"));
        assert_ne!(log_id(&nodes("s", 1), "shop"), log_id(&nodes("s", 1), "bank"));
        assert_ne!(log_id(&nodes("s", 1), "shop"), log_id(&of("s", 2, false), "shop"));
    }
}
