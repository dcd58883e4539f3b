//! Several processes that serve one database together (docs/nodes.md): each takes clients and has the log; the one that leads
//! orders, and drives the replicas.
//!
//! - [`links`], [`handshake`]: how they speak to each other.
//! - [`term`]: what runs on the node that leads, while it does.
//! - [`front`]: a client's way to the node that leads, and on to the next one.
//! - [`reach`]: whether it still reaches what it drives, so that one that does not lets another one lead.
//! - [`origins`]: what became of commits of which nobody has heard.

mod front;
pub mod handshake;
pub mod init;
pub mod links;
pub mod members;
mod origins;
pub mod peers;
mod reach;
mod term;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use onecopy_log::consensus::{NodeId, StopReason};
use onecopy_log::{Log, LogId, Member, MemberEvent, SharedHooks, SharedOptions};
use rand::Rng;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

pub use init::init;

use crate::clock;
use crate::errors::ServeError;
use crate::nodes::front::{Front, carried};
use crate::nodes::handshake::Purpose;
use crate::nodes::links::{Links, Said};
use crate::nodes::origins::Origins;
use crate::nodes::peers::Peers;
use crate::nodes::term::{Running, TermThread};
use crate::server::preparation::{self, DurableTo};
use crate::server::{self, Handle, files};
use crate::settings::{NodesSettings, Settings};
use crate::workers::{Admission, Workers};

/// Ticks of Raft in the shortest election timeout. A leader is heard of five times in it.
const ELECTION_TICKS: u16 = 10;
const HEARTBEAT_TICKS: u16 = 2;
/// How often nodes say what others need not hear at once: where nodes are, and what no replica needs any more.
const SAY_PAUSE: Duration = Duration::from_secs(1);
/// Connections of fronts that may be open beyond those of clients: requests to cancel.
const BEYOND: usize = 64;

/// This node, as everybody in the process sees it.
pub struct Node {
    pub settings: Arc<NodesSettings>,
    pub links: Links,
    pub log: Arc<Log>,
    pub member: Arc<Member>,
    pub origins: Arc<Origins>,
    /// Which node leads, as far as this one knows.
    pub leader: watch::Sender<Option<NodeId>>,
    /// What runs here while this node leads, once it can serve clients.
    pub term: watch::Sender<Option<Arc<Running>>>,
    /// Tells its reports to the term that runs.
    pub durable: DurableTo,
}

/// Another node that reaches this one is none of those that share its log.
pub fn speaks_of_other_log(log_id: LogId) {
    tracing::warn!(
        %log_id,
        "another node has another log, and is not heeded: it was begun with another secret, database or `voting` than this one"
    );
}

/// Serves as one of several nodes, until `shutdown` is ready.
///
/// # Errors
/// [`ServeError`] if serving cannot start, or the log has failed.
pub async fn serve(
    mut settings: Settings,
    nodes: NodesSettings,
    ready: impl FnOnce(&Handle),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    files::make_room(&mut settings)?;
    let settings = Arc::new(settings);
    let nodes = Arc::new(nodes);
    let folder = preparation::lock_log(&settings)?;
    let listeners = server::listen(&settings).await?;
    let for_nodes = listen_for_nodes(&nodes).await?;
    let peers = Peers::start(&nodes).map_err(ServeError::Threads)?;
    let links = peers.links.clone();

    let (tell, mut events) = mpsc::unbounded_channel();
    let durable = DurableTo::default();
    let origins_hook = Arc::new(parking_lot::Mutex::new(None::<Arc<Origins>>));
    let hooks = SharedHooks::new(
        {
            let (durable, origins) = (durable.clone(), origins_hook.clone());
            move |reached: onecopy_log::Durable| {
                durable.report(reached.csn);
                if let Some(origins) = &*origins.lock() {
                    origins.advance(reached.csn);
                }
            }
        },
        // Without a receiver the process is ending.
        move |event| drop(tell.send(event)),
    );
    let opened = Log::open_shared(
        folder,
        &settings.log.dir,
        options(&settings, &nodes),
        Box::new(links.clone()),
        hooks,
    );
    let (log, member) = opened.map_err(|error| ServeError::Log(error.to_string()))?;
    let log = Arc::new(log);
    let origins = Origins::start(&log).map_err(ServeError::Threads)?;
    *origins_hook.lock() = Some(origins.clone());
    // What became durable meanwhile.
    origins.advance(log.held().last);
    let node = Arc::new(Node {
        settings: nodes.clone(),
        links: links.clone(),
        log: log.clone(),
        member,
        origins: origins.clone(),
        leader: watch::Sender::new(None),
        term: watch::Sender::new(None),
        durable,
    });
    peers.serve(for_nodes, answer(&node, settings.limits.connections_max)).map_err(ServeError::Threads)?;

    let front = Front::new(node.clone(), &settings)?;
    let workers = Arc::new(Workers::start(settings.workers).map_err(ServeError::Threads)?);
    let mut tasks = tokio::task::JoinSet::new();
    let admissions = Arc::new(Semaphore::new(settings.limits.connections_max + files::ADMITTED_BEYOND));
    let addresses = listeners.iter().map(|(address, _)| address.clone()).collect();
    for (_, listener) in listeners {
        let (front, workers) = (front.clone(), workers.clone());
        let serve = move |stream, admission| Front::serve(&front, &workers, stream, admission);
        tasks.spawn(server::accept(listener, admissions.clone(), serve));
    }
    ready(&Handle { addresses });

    let mut term: Option<TermThread> = None;
    tokio::pin!(shutdown);
    let mut said = tokio::time::interval(SAY_PAUSE);
    let failed = loop {
        tokio::select! {
            () = &mut shutdown => break None,
            Some(event) = events.recv() => match event {
                MemberEvent::Leads { epoch } => {
                    tracing::info!(epoch = epoch.0, "this node was elected");
                    end(term.take()).await;
                    node.leader.send_replace(Some(NodeId(nodes.this)));
                }
                MemberEvent::Ready { epoch, csn } => {
                    end(term.take()).await;
                    term = Some(TermThread::start(&node, &settings, epoch, csn).map_err(ServeError::Threads)?);
                }
                MemberEvent::Follows { epoch, leader } => {
                    tracing::info!(epoch = epoch.0, leader = leader.map(|leader| leader.0), "this node follows");
                    // Whoever waits for it need not wait until what ran here has ended.
                    node.leader.send_replace(leader);
                    end(term.take()).await;
                }
                MemberEvent::BeginningOffered { place, csn } => {
                    // Should this node lead one day, a replica that lacks what is left out is found out and copied anew.
                    tracing::warn!(%place, %csn, "this node was away for longer than the log is kept: its log begins anew");
                    node.member.accept_beginning();
                }
                MemberEvent::Members(members) => tracing::info!(?members, "the nodes that share the log"),
                MemberEvent::Dropped { epoch, records } => {
                    tracing::info!(epoch = epoch.0, records, "records of an epoch that is over were not decided");
                }
                MemberEvent::OtherLog { log_id } => speaks_of_other_log(log_id),
                MemberEvent::Stopped(reason) => break Some(reason),
            },
            _ = said.tick() => {
                links.places.all().iter().for_each(|place| links.say(place));
                if node.term.borrow().is_some() {
                    links.say(&Said::Keep(log.held().first));
                }
            }
        }
    };
    tasks.shutdown().await;
    drop(workers);
    end(term.take()).await;
    if failed.is_none() {
        hand_over(&node, &mut events).await;
    }
    origins.end();
    // What was proposed may still reach a majority.
    let closed = log.close();
    peers.end();
    match failed {
        Some(StopReason::Disk(fault)) => Err(ServeError::LogFailed(fault.to_string())),
        Some(reason) => Err(ServeError::Log(reason.to_string())),
        None => closed.map_err(|fault| ServeError::LogFailed(fault.to_string())),
    }
}

/// Has another node lead, if this one does: then clients wait for less than it takes to miss a leader.
async fn hand_over(node: &Node, events: &mut mpsc::UnboundedReceiver<MemberEvent>) {
    let Some(heir) = node.member.hand_over() else { return };
    tracing::info!(heir = heir.0, "this node ends, and has another one lead");
    let follows = async {
        while let Some(event) = events.recv().await {
            if matches!(event, MemberEvent::Follows { leader: Some(_), .. } | MemberEvent::Stopped(_)) {
                break;
            }
        }
    };
    // Without a word of this one, the others elect in any case.
    let patience = Duration::from_millis(node.settings.election_timeout_ms);
    let _overdue = tokio::time::timeout(patience, follows).await;
}

/// Waits until nothing of a term is left, so that nothing of it is mistaken for the next one's.
async fn end(term: Option<TermThread>) {
    if let Some(term) = term {
        // It is joined where that keeps nobody waiting.
        let _ended = tokio::task::spawn_blocking(move || term.end()).await;
    }
}

/// What is done with connections of other nodes. As many clients of theirs are taken as a node may have in all.
fn answer(node: &Arc<Node>, clients_max: usize) -> peers::Serve {
    let (node, admissions) = (node.clone(), Arc::new(Semaphore::new(clients_max + BEYOND)));
    Arc::new(move |stream, from, purpose| {
        let (node, admissions) = (node.clone(), admissions.clone());
        Box::pin(async move {
            match purpose {
                Purpose::Log => {
                    tracing::info!(node = from.0, "another node has connected");
                    links::hear(stream, |said| match said {
                        Said::Log(message) => node.member.receive(message),
                        Said::Keep(csn) => node.log.truncate_before(csn),
                        Said::Place(place) => node.links.learn(from, place),
                        Said::Site(_) => {
                            tracing::warn!(node = from.0, "another node serves by another protocol")
                        }
                    })
                    .await
                }
                Purpose::Session => {
                    let Ok(permit) = admissions.try_acquire_owned() else {
                        // The front tries again, as long as its client waits.
                        return Err(io::Error::other("too many clients of other nodes"));
                    };
                    carried::take(&node, stream, Admission { _permit: permit, crowded: false }).await
                }
                Purpose::Cancel => carried::cancel(&node, stream).await,
                Purpose::Origin => init::tell(stream, &node.log.held()).await,
            }
        })
    })
}

pub async fn listen_for_nodes(nodes: &NodesSettings) -> Result<TcpListener, ServeError> {
    let this = nodes.node(nodes.this).ok_or_else(|| {
        ServeError::Settings(format!("node {} is not among the nodes of the cluster", nodes.this))
    })?;
    let address = format!("{}:{}", this.host, this.port);
    TcpListener::bind((this.host.as_str(), this.port))
        .await
        .map_err(|source| ServeError::Listen { address, source })
}

pub fn options(settings: &Settings, nodes: &NodesSettings) -> SharedOptions {
    SharedOptions {
        node: NodeId(nodes.this),
        // Greater than at every earlier start, unless somebody turned the clock back meanwhile: then the others refuse what it
        // says until the time of its last start has come.
        incarnation: u64::try_from(clock::unix_micros()).unwrap_or(0),
        settings: log_settings(settings),
        tick_ms: (nodes.election_timeout_ms / u64::from(ELECTION_TICKS)).max(1),
        election_ticks: ELECTION_TICKS,
        heartbeat_ticks: HEARTBEAT_TICKS,
        random: rand::rng().random(),
        ..SharedOptions::default()
    }
}

fn log_settings(settings: &Settings) -> onecopy_log::Settings {
    onecopy_log::Settings { segment_len: settings.log.segment_bytes, ..onecopy_log::Settings::default() }
}
