//! A log that several nodes share, on this node's disk: what the rest of the program calls and is told. The decisions are
//! the [`Node`]'s (`docs/protocols/commit-log.md`).
//!
//! Two threads: one has the clock, takes what comes from the other nodes and from those who append, and reports; the other
//! one has the disk, so that a slow sync delays neither heartbeats nor answers. The node itself is behind a lock that is
//! held for moments, never while anything is read, written or reported. Whoever changes it under the lock hands on what
//! follows before letting go: messages to the network, orders to the disk's thread, reports to the first one. So they are
//! carried out in the order in which they were decided.

mod state;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};

use crate::consensus::{
    Change, Config, Effect, MemberError, Membership, Node, NodeId, Origin, Role, StopReason,
};
use crate::disk::Folder;
use crate::engine::{Event, Settings};
use crate::log::{Durable, Log, OpenError};
use crate::record::{LogId, Seq};
use crate::recover::recover;
use state::Hub;

/// How a node opens the log that it shares.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// Which node this is.
    pub node: NodeId,
    /// Greater than at every earlier start of this node, and not 0: the milliseconds since 1970, for example.
    pub incarnation: u64,
    /// A random number: those that the node draws derive from it.
    pub random: u64,
    /// Sizes. The durability is [`crate::Durability::Disk`].
    pub settings: Settings,
    /// Time between two ticks, in milliseconds.
    pub tick_ms: u64,
    /// Ticks without a word from the leader after which a node asks to be elected; it draws from this to twice as many.
    pub election_ticks: u16,
    /// Ticks between two words of the leader; at most a third of `election_ticks`.
    pub heartbeat_ticks: u16,
    /// Bytes of the newest records that are kept in memory for nodes that are a little behind.
    pub recent_bytes_max: usize,
    /// Bytes of records that may be proposed and not yet durable on a majority; more wait in the queue.
    pub proposed_bytes_max: u64,
    /// When nothing was written for this long, the log notes in the file that all of it is safe. Milliseconds.
    pub mark_after_ms: u64,
}

impl Default for SharedOptions {
    /// All but node and incarnation, which are refused as they are here.
    fn default() -> SharedOptions {
        SharedOptions {
            node: NodeId(0),
            incarnation: 0,
            random: 0,
            settings: Settings::default(),
            tick_ms: 50,
            election_ticks: 20,
            heartbeat_ticks: 2,
            recent_bytes_max: 16 << 20,
            proposed_bytes_max: 64 << 20,
            mark_after_ms: 1,
        }
    }
}

impl SharedOptions {
    fn config(&self) -> Config {
        Config {
            node: self.node,
            incarnation: self.incarnation,
            election_ticks: self.election_ticks,
            heartbeat_ticks: self.heartbeat_ticks,
            settings: self.settings,
            recent_bytes_max: self.recent_bytes_max,
            proposed_bytes_max: self.proposed_bytes_max,
            random: self.random,
        }
    }
}

/// The way to the other nodes.
pub trait Network: Send + 'static {
    /// Sends a message, for the [`Member::receive`] of node `to`. Must not block and not call the log or its [`Member`],
    /// since the node is locked meanwhile; may drop the message.
    fn send(&self, to: NodeId, message: Bytes);
}

/// What has become of this node's part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberEvent {
    /// It was elected, and may order records. What its log holds may not be durable on a majority.
    Leads {
        /// Its epoch.
        epoch: Epoch,
    },
    /// All that its log held when it was elected is durable on a majority: it may use the replicas, once it has fenced
    /// them.
    Ready {
        /// Its epoch.
        epoch: Epoch,
        /// The last commit there.
        csn: Csn,
    },
    /// Another node leads, or none that is known. If this one led, it does not any more.
    Follows {
        /// The epoch.
        epoch: Epoch,
        /// Who leads in it.
        leader: Option<NodeId>,
    },
    /// Another node has said something of another log, which is not heeded. Told once of each log in a row.
    OtherLog {
        /// That log.
        log_id: LogId,
    },
    /// Records were appended quietly in an epoch in which the node did not lead any more when their turn came. They are
    /// in no log.
    Dropped {
        /// Their epoch.
        epoch: Epoch,
        /// How many.
        records: u64,
    },
    /// The others no longer have what this node needs next: its log has to begin anew, when
    /// [`Member::accept_beginning`] is called; a replica that does not contain commit `csn` cannot be taken up by it then.
    BeginningOffered {
        /// The last record that is left out.
        place: Seq,
        /// The last commit among those.
        csn: Csn,
    },
    /// Who shares the log has changed, and that is durable on a majority.
    Members(Membership),
    /// The node takes no part any more until it is started again. Said once.
    Stopped(StopReason),
}

/// What the log reports on its own, in order, on a thread that does nothing else meanwhile for the other nodes: return
/// quickly. They may append and read, but must not close the log.
pub struct SharedHooks {
    on_durable: Box<dyn FnMut(Durable) + Send>,
    on_event: Box<dyn FnMut(MemberEvent) + Send>,
}

impl SharedHooks {
    /// `on_durable`: with the last record that is durable on a majority, and here, each time that there are more.
    pub fn new(
        on_durable: impl FnMut(Durable) + Send + 'static,
        on_event: impl FnMut(MemberEvent) + Send + 'static,
    ) -> SharedHooks {
        SharedHooks { on_durable: Box::new(on_durable), on_event: Box::new(on_event) }
    }
}

/// A node's figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// Which node this is.
    pub node: NodeId,
    /// The latest epoch that it knows of.
    pub epoch: Epoch,
    /// Who leads in it, if that is known.
    pub leader: Option<NodeId>,
    /// Whether this node does.
    pub leads: bool,
    /// Whether it does, and all that its log held when it was elected is durable on a majority.
    pub ready: bool,
    /// The last record that is known to be durable on a majority, and the last commit up to there.
    pub committed: (Seq, Csn),
    /// The last record that is durable here, or is being written.
    pub ordered: Seq,
    /// Who shares the log.
    pub members: Membership,
    /// The other nodes; for each, if this node leads, the last record that it is known to have.
    pub matched: Vec<(NodeId, Option<Seq>)>,
    /// How many times others have been offered that their logs begin anew. What was ordered before that they do not get.
    pub beginnings: u64,
    /// Why the node has stopped, if it has.
    pub stopped: Option<StopReason>,
}

/// Called with a floor; see [`Member::confirm`].
pub type Confirmed = Box<dyn FnOnce(Csn) + Send>;

/// The node's part in the agreement about the log.
pub struct Member {
    hub: Arc<Hub>,
}

impl Member {
    /// A message has come for this node. Returns at once; what cannot be used is dropped, which harms nobody.
    pub fn receive(&self, message: Bytes) {
        self.hub.receive(message);
    }

    /// Calls `done` when a majority has confirmed who leads, in a round begun after this call, with a commit that is no
    /// earlier than any that was told by then; perhaps only when another node leads. Drops it when the log stops.
    pub fn confirm(&self, done: Confirmed) {
        self.hub.confirm(None, done);
    }

    /// Like [`Member::confirm`], but says that this node leads in `epoch`, and that this is the newest: drops `done` as
    /// soon as that is over. Without it, a node that was deposed might take for its own what was confirmed of its
    /// successor.
    pub fn confirm_leads(&self, epoch: Epoch, done: Confirmed) {
        self.hub.confirm(Some(epoch), done);
    }

    /// The node's figures.
    #[must_use]
    pub fn status(&self) -> MemberStatus {
        self.hub.member_status()
    }

    /// Changes who shares the log; only the leader can. Done when [`MemberEvent::Members`] says so.
    ///
    /// # Errors
    /// Why it cannot be changed now.
    pub fn change(&self, change: Change) -> Result<Seq, MemberError> {
        self.hub.change(change)
    }

    /// Has another node lead, if this one does: [`MemberEvent::Follows`] says when it does. To be called when nothing will be
    /// appended here any more. Returns which node.
    pub fn hand_over(&self) -> Option<NodeId> {
        self.hub.hand_over()
    }

    /// The log may begin anew as was offered last.
    pub fn accept_beginning(&self) {
        self.hub.accept_beginning();
    }
}

/// A log that is shared from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// Its name.
    pub log_id: LogId,
    /// It was there before, its node's alone.
    pub was_alone: bool,
}

impl Log {
    /// Begins a node's log in an empty folder; or shares the one that is there, if its node had it alone: then this node is the
    /// only one at first, and others join it. A node that is to join others (`origin` names no members) needs an empty folder.
    /// It is durable when this returns.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if the log is shared already, or not to be, [`OpenError::Alone`] if nobody would count, and what else keeps
    /// one from being opened.
    pub fn begin_shared(
        mut folder: Folder,
        origin: Origin,
        node: NodeId,
        settings: Settings,
    ) -> Result<Begun, OpenError> {
        let recovery = recover(folder.files())?;
        let joins = origin.membership.voters().next().is_none();
        if recovery.as_ref().is_some_and(|recovery| joins || recovery.shared.is_some()) {
            return Err(OpenError::Exists(folder.files().path().to_owned()));
        }
        let was_alone = recovery.is_some();
        if was_alone && origin.membership.role(node) == Some(Role::Learner) {
            return Err(OpenError::Alone(folder.files().path().to_owned()));
        }
        let origin = match was_alone {
            true => Origin { membership: Membership::alone(node), ..origin },
            false => origin,
        };
        let config = SharedOptions { node, settings, ..SharedOptions::default() }.config();
        let mut effects = Vec::new();
        let mut node = Node::open(recovery, Some(origin), config, &mut effects)?;
        carry_out(&mut node, &mut folder, effects)?;
        Ok(Begun { log_id: node.engine().log_id(), was_alone })
    }

    /// Opens the log in a folder that was locked before, whose path this is, as that of one node of several, and takes
    /// part.
    ///
    /// # Errors
    /// [`OpenError`]; no record was changed.
    pub fn open_shared(
        mut folder: Folder,
        path: &Path,
        options: SharedOptions,
        network: Box<dyn Network>,
        hooks: SharedHooks,
    ) -> Result<(Log, Arc<Member>), OpenError> {
        let recovery = recover(folder.files())?.ok_or_else(|| OpenError::Missing(path.to_owned()))?;
        if options.incarnation == 0 {
            return Err(crate::consensus::OpenError::Config("0 is no incarnation of a node").into());
        }
        let mut effects = Vec::new();
        let mut node = Node::open(Some(recovery), None, options.config(), &mut effects)?;
        let effects = carry_out(&mut node, &mut folder, effects)?;
        let path: PathBuf = path.to_owned();
        let hub = Arc::new(Hub::new(path, options.node, node, network));
        threads::start(&hub, effects, folder, &options, hooks)?;
        let member = Arc::new(Member { hub: Arc::clone(&hub) });
        Ok((Log { driver: hub }, member))
    }
}

/// Has the disk do what opening a log needs. Returns what else is to be done then.
fn carry_out(
    node: &mut Node,
    folder: &mut Folder,
    mut effects: Vec<Effect>,
) -> Result<Vec<Effect>, OpenError> {
    let mut others = Vec::new();
    while !effects.is_empty() {
        for effect in std::mem::take(&mut effects) {
            let Effect::Disk(order) = effect else {
                others.push(effect);
                continue;
            };
            let event = folder.perform(&order);
            if let Event::Failed(fault) = event {
                return Err(fault.into());
            }
            node.on_disk(event, &mut effects);
        }
    }
    Ok(others)
}

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}
