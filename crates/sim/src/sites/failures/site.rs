//! What one site consists of: what its machine keeps, what its process keeps, and what one beginning of it knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use onecopy_core::map::HashMap;
use onecopy_core::multicast::{MessageId, Order};
use onecopy_core::protocol::wide_area::Message;
use onecopy_core::protocol::{Position, Protocol};
use onecopy_core::{Csn, Epoch, Event, Instant, NodeId, OpId, TxnId};

use super::database::{Database, Found};

/// Whether a site works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Up,
    /// Its process lives, and will begin anew.
    Beginning,
    /// Its process lives, its server does not.
    ServerDown,
    /// Its process is lost.
    Down,
    /// Its database holds what never happened, and its process has ended.
    Diverged,
}

/// What a client is answered, and on what that rests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Reply {
    pub(super) found: Found,
    /// What stood at places that were not durable when it was found.
    pub(super) rests_on: Vec<(Csn, MessageId)>,
}

/// What came of the execution of an update at another site.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) message: Message,
    pub(super) reply: Reply,
    /// Its place there, and who gave it.
    pub(super) stands: (Csn, Epoch),
}

/// An update of a client of this site, whose end is not known.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) of: usize,
    /// What it will be, once it is being committed.
    pub(super) known: Option<Reply>,
    pub(super) resend_at: Instant,
}

/// What the site that leads knows of the places that it gives.
#[derive(Debug)]
pub(super) struct Leads {
    pub(super) epoch: Epoch,
    /// Everything up to there was given its place before.
    pub(super) after: Csn,
    /// It has read all that, so that it knows what has a place.
    pub(super) is_ready: bool,
    pub(super) given: BTreeSet<MessageId>,
}

/// A transaction that a site knows of.
#[derive(Debug)]
pub(super) struct Open {
    /// Which of all that arrived.
    pub(super) of: usize,
    pub(super) is_update: bool,
    /// Of an update that was multicast.
    pub(super) id: Option<MessageId>,
    /// Whether its client waits here for it, until it is multicast.
    pub(super) has_client: bool,
    /// The execution that counts.
    pub(super) op: Option<OpId>,
    pub(super) reply: Reply,
    /// What came from the site that executes it.
    pub(super) shipped: Option<Reply>,
    /// What its client will be told.
    pub(super) chosen: Option<Reply>,
    pub(super) place: Csn,
    pub(super) is_shipped: bool,
    /// It executes in its turn.
    pub(super) in_place: bool,
    /// It is to be committed here, and was not yet.
    pub(super) is_committing: bool,
}

impl Open {
    pub(super) fn new(of: usize, is_update: bool, id: Option<MessageId>, has_client: bool) -> Open {
        Open {
            of,
            is_update,
            id,
            has_client,
            op: None,
            reply: Reply::default(),
            shipped: None,
            chosen: None,
            place: Csn(0),
            is_shipped: false,
            in_place: false,
            is_committing: false,
        }
    }
}

/// Why a beginning ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// What is in memory may not be what the server contains.
    Anew(&'static str),
    /// The server's contents are not those of the log.
    Diverged,
}

/// What one beginning of a site knows.
pub(super) struct Beginning {
    pub(super) core: Box<dyn Protocol>,
    pub(super) events: VecDeque<Event>,
    pub(super) is_feeding: bool,
    pub(super) order: Order<()>,
    pub(super) open: HashMap<TxnId, Open>,
    pub(super) by_id: HashMap<MessageId, TxnId>,
    /// Where a message stands, and who gave it that place.
    pub(super) placed: HashMap<MessageId, (Csn, Epoch)>,
    /// What was said of messages whose places are not known.
    pub(super) early: HashMap<MessageId, (usize, Outcome)>,
    /// What the database contains, or will never: without gaps up to the floor, and beyond.
    pub(super) floor: Csn,
    pub(super) contained: BTreeSet<Csn>,
    /// What stands somewhere and changed nothing, as far as the database was not told.
    pub(super) nothing: Vec<(Csn, MessageId)>,
    /// As found at the beginning.
    pub(super) found: BTreeMap<Csn, MessageId>,
    pub(super) found_ids: BTreeSet<MessageId>,
    pub(super) unchanged: BTreeSet<Csn>,
    /// Where commits are in any order the database may lack something before that: queries wait until it does not.
    pub(super) whole_from: Csn,
    pub(super) ahead: Vec<usize>,
    /// Of sites that are heard again, up to which place what they said may be lost.
    pub(super) back_at: BTreeMap<usize, Csn>,
    /// Until when each other site counts as living.
    pub(super) heard: BTreeMap<usize, Instant>,
    pub(super) lost: BTreeSet<usize>,
    /// Those that had no place when it was looked last, and when it is looked again.
    pub(super) unplaced: BTreeSet<MessageId>,
    pub(super) pass_on_at: Instant,
    /// What is to be committed, in this order, and whether it only waits for its turn.
    pub(super) turns: VecDeque<(TxnId, bool)>,
    pub(super) ended: Option<Ended>,
}

impl Beginning {
    /// With what the database was found to contain.
    pub(super) fn new(
        core: Box<dyn Protocol>,
        found: BTreeMap<Csn, MessageId>,
        unchanged: BTreeSet<Csn>,
        me: usize,
        sites: usize,
    ) -> Beginning {
        Beginning {
            events: VecDeque::new(),
            is_feeding: false,
            order: Order::new(Csn(0)),
            open: HashMap::default(),
            by_id: HashMap::default(),
            placed: HashMap::default(),
            early: HashMap::default(),
            floor: Csn(0),
            contained: BTreeSet::new(),
            nothing: Vec::new(),
            found_ids: found.values().copied().collect(),
            whole_from: if core.position() == Position::Set { gap_before(&found) } else { Csn(0) },
            ahead: Vec::new(),
            found,
            unchanged,
            back_at: BTreeMap::new(),
            heard: BTreeMap::new(),
            lost: (0..sites).filter(|site| *site != me).collect(),
            unplaced: BTreeSet::new(),
            pass_on_at: Instant(0),
            turns: VecDeque::new(),
            ended: None,
            core,
        }
    }
}

/// The last place, if something before it is missing.
fn gap_before(found: &BTreeMap<Csn, MessageId>) -> Csn {
    let last = found.keys().next_back().copied().unwrap_or_default();
    if last.0 > found.len() as u64 { last } else { Csn(0) }
}

/// See the module.
pub(super) struct Site {
    pub(super) me: NodeId,
    pub(super) standing: Standing,
    pub(super) database: Database,
    /// How often its process was lost: what was under way then comes to nothing.
    pub(super) process: u32,
    /// How often it was to begin.
    pub(super) beginnings: u32,
    pub(super) pending: BTreeMap<MessageId, Pending>,
    /// Transactions of which no other site has heard, for the next beginning.
    pub(super) queries: Vec<usize>,
    /// Up to where the log is known to be durable.
    pub(super) durable: Csn,
    /// In which epoch it leads the log, whether or not it may give places.
    pub(super) role: Option<Epoch>,
    pub(super) leader_heard: Instant,
    pub(super) leads: Option<Leads>,
    pub(super) ticks: u64,
    pub(super) now: Beginning,
}

impl Site {
    pub(super) fn is_up(&self) -> bool {
        self.standing == Standing::Up
    }

    /// Whether its process takes part in the log.
    pub(super) fn lives(&self) -> bool {
        !matches!(self.standing, Standing::Down | Standing::Diverged)
    }
}
