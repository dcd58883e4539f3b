//! The beginning of a log that several nodes share.

use onecopy_core::{Csn, Epoch};
use onecopy_log::consensus::{Membership, NodeId, Origin};
use onecopy_log::{Genesis, Log, LogId};
use sha2::{Digest, Sha256};

use crate::errors::ServeError;
use crate::server::preparation;
use crate::settings::{NodesSettings, Settings};

/// Begins the log of one of the nodes of a new cluster, to be done once on each; or, if it `joins`, of one that comes to
/// others, and gets the log from them. A node that finds no log does not begin one by itself: it might be one that has lost what
/// it had acknowledged to the others.
///
/// # Errors
/// [`ServeError`], if the folder holds a log already, or cannot be used.
pub fn init(settings: &Settings, joins: bool) -> Result<LogId, ServeError> {
    let nodes = settings.nodes.as_ref().ok_or_else(|| {
        ServeError::Settings(
            "the configuration is of a process that is alone; set cluster.node and cluster.nodes".into(),
        )
    })?;
    let folder = preparation::lock_log(settings)?;
    // Who counts where it joins, the log will say.
    let nodes_at_first = if joins { &[][..] } else { &nodes.nodes };
    let voters: Vec<NodeId> = nodes_at_first.iter().map(|node| NodeId(node.id)).collect();
    let log_id = log_id(nodes, &settings.database);
    let origin = Origin {
        genesis: Genesis { log_id, epoch: Epoch(1), after: Csn(0) },
        membership: Membership::of_voters(&voters),
    };
    Log::begin_shared(folder, origin, NodeId(nodes.this), super::log_settings(settings))
        .map_err(|error| ServeError::Log(error.to_string()))?;
    Ok(log_id)
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
