//! Lazy read-one, write-all replication: what the protocols of the conflict-aware scheduling paper (CAS) and of the
//! distributed versioning paper (DV) have in common. They differ by their [`Policy`]; what orders conflicting operations is its
//! [`Order`]: table locks in the order of sequence numbers, or versions of tables. Sections are those of CAS where DV is not
//! named.
//!
//! Three roles, each a state machine at its own place, which speak to each other in [`Message`]s:
//! - the *scheduler* takes what clients want, asks for a sequence number, sends lock requests, writes and commits to
//!   all replicas and each read to one, and answers clients (CAS 4.2, 4.4 to 4.9);
//! - the *sequencer* gives out sequence numbers (4.1);
//! - the *database proxy* in front of each replica queues lock requests in the order of sequence numbers and lets an
//!   operation through when its locks are granted and everything before it in its transaction has been done (4.3).
//!
//! Messages between two places arrive in the order in which they were sent, and none is lost. Lock requests may reach a
//! proxy out of sequence, since they may come from different schedulers.
//!
//! What is beside the paper, for all protocols built on this:
//! - *Commit order.* A commit takes a CSN when it is decided, and the log is written in that order before any replica is
//!   told (5.3). Replicas commit in any order: two transactions in the wrong order do not conflict, since one that
//!   conflicts with another executes nothing anywhere before the other was decided. So applying the log in CSN order is
//!   always right, whatever a replica contains already. Where they commit in the order of CSNs
//!   ([`Engine::commits_in_order`](crate::protocol::Engine)), a single read finds the first so many decisions: it waits for what
//!   is before it and holds up nobody, and what has been let go early is decided in the order of versions. (An engine that shows what is not committed lets others go on after a
//!   single update before it is decided; if the answer of one chosen replica decides, the log may then have the two the other
//!   way round. The drivers that offer such engines take nothing back and lose no replica, so nobody applies that log.)
//! - *Position.* The paper's proxy remembers a sequence number a table. Ours is the set of CSNs that the replica contains
//!   (one row each in `onecopy.progress`), which says the same more exactly: everything up to some CSN and some of what
//!   follows. After a restart the gaps are filled from the log, passing over what is contained (5.3.1, last paragraph).
//! - *A replica comes back* (5.3.3) by applying the log up to what is decided at that moment while its proxy holds
//!   every table; behind that stand the transactions that are under way, in sequence order. They have executed elsewhere
//!   only, so here they wait for their decision and are applied from the log, and later ones queue behind them.
//! - *The chosen replica* of a transaction may be lost: then the first answer counts until a read needs another one, and
//!   that is the least loaded.
//! - *A statement that fails* answers for the transaction. A replica on which a statement fails that succeeded at the
//!   first to answer lets go of its part and applies the transaction from the log.
//! - *A statement's whole answer* shows items that its text did not (foreign-key parents): a single update starts again
//!   with their tables; a longer transaction cannot commit. Either way its class has learned.
//! - *Not here*: several schedulers (their messages `replicate_start_transaction` and `replicate_end_transaction`, 5.2
//!   and 5.3) and selective retransmission (5.3.2). One scheduler lives with one log, so the log is the only copy. The paper's
//!   own scheme is a block of its own, [`recovery`].

pub(crate) mod contained;
mod gate;
mod message;
mod proxy;
pub mod recovery;
mod scheduler;
mod sequencer;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant, NodeId, ReplicaId};
use crate::message::Message as AnyMessage;
use crate::protocol::{Engine, Guarantee, Position, Protocol, Statements, Status, Writes};

pub use message::{Ahead, Behind, Message, OpenTxn, Tag};

use proxy::Proxy;
use scheduler::Scheduler;
use sequencer::Sequencer;

/// When a lock request, a write or a commit is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerAfter {
    /// The first replica has done it (CAS 3.3).
    First,
    /// All replicas in service have done it (CAS 6.1).
    All,
    /// The replica that was chosen for the transaction has done it (CAS 6.2, 6.3).
    Chosen,
}

/// Where a read runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadAt {
    /// The least loaded of those replicas where nothing that conflicts with it is outstanding (CAS 3.5).
    ConflictFree,
    /// The least loaded replica (CAS 6.1, 6.4).
    LeastLoaded,
    /// One replica for the whole transaction (CAS 6.2, 6.3).
    Chosen(FixedBy),
}

/// By what the one replica is chosen that serves a transaction from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FixedBy {
    /// It is the least loaded when the transaction starts (CAS 6.2).
    Load,
    /// It is the first to grant the transaction's locks (CAS 6.3). A single read asks for none beforehand, so there the
    /// replica is one without conflicts, as far as the scheduler knows (4.8).
    FirstGrant,
}

/// In what one scheduling protocol differs from another (CAS 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// When the client is answered.
    pub answer_after: AnswerAfter,
    /// Where reads go.
    pub read_at: ReadAt,
    /// What orders conflicting operations.
    pub order: Order,
}

/// What orders conflicting operations at every replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Table locks, queued in the order of sequence numbers: all granted before the first statement, held to the end (CAS 3.4),
    /// which for a single update is when it is done, where the engine shows what is not committed.
    Locks,
    /// Versions of tables, given at the start (DV 3.2).
    Versions(Versioning),
    /// Nothing: each statement is a transaction by itself.
    Statements(Loose),
}

/// What is done with versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versioning {
    /// When they are waited for.
    pub acquire: Acquire,
    /// When the next ones are produced.
    pub release: Release,
    /// Whether a single read whose transaction says how old its data may be is given data of that age (DV 6.1).
    pub honours_staleness: bool,
}

/// When a transaction waits for versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// Each operation for those of its own tables (DV 3.6: selective waiting).
    AtUse,
    /// The first operation for those of all tables of the transaction (DV 8.1: LateAcq).
    AtStart,
}

/// When a transaction lets a table go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// When it has used the table for the last time (DV 3.5), if it has only read it or the engine shows others what is not
    /// committed; else at its end.
    AtLastUse,
    /// At its end (DV 8.1: EarlyRel left out).
    AtEnd,
}

/// What holds where statements stand alone (DV 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loose {
    /// Writes are executed as they arrive (Level 0).
    Unordered,
    /// Writes are executed in the order of their tables' versions (Level 1).
    OrderedWrites,
    /// And reads are at most so old, in nanoseconds, and see what their session has written (Level 2).
    BoundedReads(u64),
}

impl Policy {
    /// Whether single reads avoid replicas where something that conflicts with them is outstanding.
    fn avoids_conflicts(self) -> bool {
        matches!(self.read_at, ReadAt::ConflictFree | ReadAt::Chosen(FixedBy::FirstGrant))
    }

    fn versioning(self) -> Option<Versioning> {
        match self.order {
            Order::Versions(versioning) => Some(versioning),
            Order::Locks | Order::Statements(_) => None,
        }
    }

    fn loose(self) -> Option<Loose> {
        match self.order {
            Order::Statements(loose) => Some(loose),
            Order::Locks | Order::Versions(_) => None,
        }
    }
}

const SCHEDULER: Place = Place::Scheduler(NodeId(0));

/// The roles of a scheduling protocol: what is chosen by its name differs by its policy alone.
#[derive(Debug)]
pub struct Scheduling {
    name: &'static str,
    policy: Policy,
    scheduler: Scheduler,
    sequencer: Sequencer,
    proxies: Vec<Proxy>,
}

impl Scheduling {
    /// One scheduler, one sequencer and `replicas` proxies, all replicas down, with a log that ends at `decided`.
    #[must_use]
    pub fn new(name: &'static str, policy: Policy, replicas: usize, decided: Csn) -> Scheduling {
        let ids = (0..replicas as u16).map(ReplicaId);
        Scheduling {
            name,
            policy,
            scheduler: Scheduler::new(policy, replicas, decided),
            sequencer: Sequencer::default(),
            proxies: ids.map(|replica| Proxy::new(replica, policy.order)).collect(),
        }
    }

    fn handle_message(&mut self, place: Place, now: Instant, message: Message, effects: &mut Vec<Effect>) {
        match place {
            Place::Scheduler(_) => self.scheduler.handle_message(now, message, effects),
            Place::Sequencer => self.sequencer.handle_message(&message, effects),
            Place::Proxy(replica) => {
                if let Some(proxy) = self.proxies.get_mut(usize::from(replica.0)) {
                    proxy.handle_message(message, effects);
                }
            }
            // No role of this protocol lives there.
            Place::Peer(_) => {}
        }
    }
}

impl Protocol for Scheduling {
    fn name(&self) -> &'static str {
        self.name
    }

    fn guarantee(&self) -> Guarantee {
        match self.policy.order {
            Order::Locks | Order::Versions(_) => Guarantee::OneCopySerializability,
            Order::Statements(_) => Guarantee::None,
        }
    }

    fn statements(&self) -> Statements {
        match self.policy.order {
            Order::Locks | Order::Versions(_) => Statements::InTransactions,
            Order::Statements(_) => Statements::Alone,
        }
    }

    fn engine_is(&mut self, engine: Engine) {
        self.scheduler.engine_is(engine);
        self.proxies.iter_mut().for_each(|proxy| proxy.engine_is(engine));
    }

    fn position(&self) -> Position {
        Position::Set
    }

    fn writes(&self) -> Writes {
        Writes::Everywhere
    }

    /// What a replica reports goes to its proxy, everything else to the scheduler.
    fn place_of(&self, event: &Event) -> Place {
        match event {
            Event::Executed { replica, .. }
            | Event::Applied { replica, .. }
            | Event::HomeLost { replica, .. }
            | Event::ReplicaUp { replica, .. }
            | Event::ReplicaDown { replica } => Place::Proxy(*replica),
            _ => SCHEDULER,
        }
    }

    /// Hands an event to the role that it concerns; only messages are told apart by the place they are addressed to.
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Message { message: AnyMessage::Scheduling(message), .. } => {
                self.handle_message(place, now, message, effects);
            }
            event => match self.place_of(&event) {
                Place::Proxy(replica) => {
                    if let Some(proxy) = self.proxies.get_mut(usize::from(replica.0)) {
                        proxy.handle(event, effects);
                    }
                }
                _ => self.scheduler.handle(now, event, effects),
            },
        }
    }

    fn status(&self) -> Status {
        let mut status = self.scheduler.status();
        for (proxy, replica) in self.proxies.iter().zip(&mut status.replicas) {
            proxy.put_status(replica);
            let (at_once, waited) = proxy.lock_counts();
            status.grants_at_once += at_once;
            status.grants_waited += waited;
            status.waits_for.extend(proxy.waits());
        }
        status.waits_for.sort_unstable();
        status.waits_for.dedup();
        status
    }
}

fn send(to: Place, message: Message, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { to, message: AnyMessage::Scheduling(message) });
}

#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
pub(crate) mod rig;
