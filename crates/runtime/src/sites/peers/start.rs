//! How a peer begins: what it is told, what it finds in its database, and who connects.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onecopy_classify::Catalogue;
use onecopy_classify::catalogue::Table;
use onecopy_core::peers::granules::Granules;
use onecopy_core::protocol::peers_by_name;
use onecopy_core::{ColumnId, NodeId};
use tokio::sync::mpsc;

use super::parts::Parts;
use super::{Chosen, Input, Peer, dealing};
use crate::errors::ServeError;
use crate::nodes;
use crate::nodes::handshake::Purpose;
use crate::nodes::links::{self, Links, Said};
use crate::nodes::peers::{Peers, Serve};
use crate::server::{Handle, files};
use crate::settings::{NodesSettings, Settings};
use crate::sites::likeness::{self, Likeness};
use crate::sites::{Clients, Started, database_of, facts_of, own_replica};

/// Parts of a table that it may be cut into: what is about all of it names them all.
const GRANULES_MAX: u16 = 100;

/// Whether a configured protocol is one of these.
pub fn is_one(protocol: &str) -> bool {
    onecopy_core::protocol::PEERS.contains(&protocol)
}

/// Serves as one of several peers, until `shutdown` is ready.
///
/// # Errors
/// [`ServeError`] if serving cannot start, or another peer or this one's server is lost.
pub async fn serve(
    mut settings: Settings,
    nodes: NodesSettings,
    ready: impl FnOnce(&Handle),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let replica = own_replica(&settings)?;
    files::make_room(&mut settings)?;
    let nodes = Arc::new(nodes);
    let for_peers = nodes::listen_for_nodes(&nodes).await?;
    let peers = Peers::start(&nodes).map_err(ServeError::Threads)?;
    let (inputs, received) = mpsc::unbounded_channel();
    peers.serve(for_peers, answer(&peers.links, &inputs)).map_err(ServeError::Threads)?;
    let failed = |error: String| ServeError::Replicas(format!("{}: {error}", replica.name));
    let database = database_of(&settings, &replica);
    database.watch().await.map_err(|error| failed(error.to_string()))?;
    let catalogue = database.definitions().await.map_err(|error| failed(error.to_string()))?;
    let mut numbers: Vec<u64> = nodes.nodes.iter().map(|node| node.id).collect();
    numbers.sort_unstable();
    let count = u16::try_from(numbers.len()).unwrap_or(u16::MAX);
    let (by_clients, by_column) = match settings.protocol.as_str() {
        "partitioned" => (settings.divided.as_slice(), settings.parts.as_slice()),
        other => {
            if !settings.divided.is_empty() || !settings.parts.is_empty() {
                tracing::warn!(protocol = other, "only the protocol \"partitioned\" divides tables");
            }
            (&[][..], &[][..])
        }
    };
    let parts = Parts::new(by_clients, by_column, &catalogue, count)?;
    let me = numbers.iter().position(|number| *number == nodes.this).unwrap_or(0);
    let me = NodeId(u16::try_from(me).unwrap_or(u16::MAX));
    let facts = facts_of(&database, &replica).await?;
    // Before rows are dealt, all peers must have the same.
    let (deals, contents) = match parts.is_empty() {
        true => (false, String::new()),
        false => dealing::look_before_serving(&settings, &database, &parts, me).await?,
    };
    let mut by_clients = by_clients.to_vec();
    by_clients.sort_unstable();
    let started = format!(
        "{} {by_clients:?} {} {} {} {numbers:?} {contents}",
        settings.protocol,
        parts.shown(),
        settings.coalesces,
        settings.granules
    );
    // Where items are what peers tell each other, they have to mean the same.
    let more = match parts.is_empty() && !settings.coalesces && settings.granules == 1 {
        true => Vec::new(),
        false => likeness::numbers(&catalogue),
    };
    let likeness =
        Likeness::read(started, &facts, &database, more).await.map_err(|error| failed(error.to_string()))?;
    let open_max = (settings.limits.lanes_per_replica_max * 3 / 4).max(1);
    let passed_over = Arc::new(AtomicU64::new(0));
    let granules = granules(&catalogue, settings.granules)?;
    let core = peers_by_name(&settings.protocol, count, &parts.divisions, &granules)
        .map_err(|error| ServeError::Settings(error.to_string()))?;
    let (parts, counted) = (Arc::new(parts), passed_over.clone());
    let coalesces = settings.coalesces;
    let chosen = Chosen { me, parts, granules, deals, coalesces, open_max, passed_over: counted };
    let submit =
        Box::new(move |transaction, answer| inputs.send(Input::Submit { transaction, answer }).is_ok());
    let this = nodes.this;
    let shown = Box::new(move || {
        let passed_over = passed_over.load(Ordering::Relaxed);
        vec![("site", this.to_string()), ("updates passed over", passed_over.to_string())]
    });
    let clients = Clients {
        database: database.clone(),
        catalogue,
        numbers: &numbers,
        this,
        submit,
        speak: None,
        shown,
        freshness: None,
    };
    let started = Started::begin(&settings, clients).await?;
    let mut around =
        Peer::new(&started.shared, core, &numbers, peers.links.clone(), received, (chosen, likeness));
    ready(&started.handle());
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        why = around.run() => Err(failed(why)),
        () = database.session_ends() => {
            Err(failed("its server has ended its sessions, and what peers agreed on may not be there any more: see docs/protocols/invalidation.md".into()))
        }
    };
    started.end().await;
    if ended.is_ok() && !around.finish().await {
        tracing::warn!(
            "not all that was under way here is known to be at the other peers: compare their databases before they are started again"
        );
    }
    peers.end();
    ended
}

/// Each table with a primary key, cut by its first column.
///
/// # Errors
/// If there cannot be so many.
fn granules(catalogue: &Catalogue, each: u16) -> Result<Granules, ServeError> {
    if !(1..=GRANULES_MAX).contains(&each) {
        let what = format!(
            "peers.granules is {each}, and has to be from 1 (tables are taken as a whole) to {GRANULES_MAX}"
        );
        return Err(ServeError::Settings(what));
    }
    let cut = |table: &Table| {
        let number = *table.primary_key()?.columns.first()?;
        let column = table.columns.iter().find(|column| column.number == number)?;
        // Otherwise nothing would name it.
        onecopy_classify::is_named_by_values(column).then(|| (table.id(), ColumnId(number)))
    };
    Ok(Granules::new(each, catalogue.tables.iter().filter_map(cut)))
}

/// What is done with connections of other peers.
fn answer(links: &Links, inputs: &mpsc::UnboundedSender<Input>) -> Serve {
    let (links, inputs) = (links.clone(), inputs.clone());
    Arc::new(move |stream, from, purpose| {
        let (links, inputs) = (links.clone(), inputs.clone());
        Box::pin(async move {
            if purpose != Purpose::Log {
                return Err(std::io::Error::other("a peer has no log and takes no clients of others"));
            }
            links::hear(stream, |said| match said {
                Said::Place(place) => links.learn(from, place),
                // Without a receiver the process is ending.
                Said::Site(message) => drop(inputs.send(Input::Heard { from, message })),
                Said::Log(_) | Said::Keep(_) => {
                    tracing::warn!(node = from.0, "another node serves by another protocol");
                }
            })
            .await
        })
    })
}
