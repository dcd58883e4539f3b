//! One node of those that share a log: Raft's state machine and the log's engine, put together without input, output,
//! clock or randomness of its own.
//!
//! What happens is told by methods, what is to be done comes out as [`Effect`]s, to be carried out in their order. The
//! argument why no record that is durable on a majority is lost, with a table of messages and the steps, is in
//! `docs/protocols/commit-log.md`, whose numbers the comments here name.

mod reads;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry as RaftEntry, HardState, Message, MessageType,
};
use raft::{ProgressState, RaftState, RawNode, ReadOnlyOption, SnapshotStatus, StateRole, Storage as _};
use slog::{Discard, Logger, o};

use super::codec::{self, Content, Envelope, conf_state, data_of, encode_record, entry_with, record_of};
use super::effect::{Effect, StopReason};
use super::error::{Dropped, MemberError, OpenError, ProposeError};
use super::membership::{Change, ChangeError, Membership, NodeId, Role};
use super::shelf::{Before, Shelf};
use crate::engine::{self, Anew, Durability, Engine, Genesis, Settings, State};
use crate::gate::{AppendError, Gate};
use crate::medium::Medium;
use crate::planted::{Bug, planted};
use crate::reader::{Ordered, ReadError};
use crate::record::{Entry, Kind, Record, Seq, Shared, Start};
use crate::recover::Recovery;
use reads::Reads;

/// Bytes of records in one message, unless one record is larger.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages with records that may be under way to a node.
const MESSAGES_UNDER_WAY_MAX: usize = 64;

/// What a node is told once.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which node this is.
    pub node: NodeId,
    /// Greater than at every earlier start of this node: the milliseconds since 1970, for example.
    pub incarnation: u64,
    /// Ticks without a word from the leader after which a node asks to be elected; it draws from this to twice as many.
    pub election_ticks: u16,
    /// Ticks between two words of the leader; less than a third of `election_ticks`.
    pub heartbeat_ticks: u16,
    /// How the log is cut into files and writes. Its durability is [`Durability::Disk`].
    pub settings: Settings,
    /// Bytes of the newest records that are kept in memory for nodes that are a little behind.
    pub recent_bytes_max: usize,
    /// Bytes of records that may be proposed and not yet durable on a majority.
    pub proposed_bytes_max: u64,
    /// A random number.
    pub random: u64,
}

/// How a node comes to a log where its folder holds none, or one that it had alone.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// What the log begins with; the same on all nodes. Of a log that the node had alone it is not looked at.
    pub genesis: Genesis,
    /// Who shares the log from its beginning on: all nodes if they begin together, this one alone if it has the log and the
    /// others come later, nobody if this node joins others.
    pub membership: Membership,
}

/// See the module.
pub struct Node {
    config: Config,
    raft: RawNode<Shelf>,
    engine: Engine,
    is_open: bool,
    is_stopped: bool,
    /// What has to be on stable storage before its messages may be sent, in the order in which Raft asked for it.
    waiting: VecDeque<Waiting>,
    /// What the newest promise to the engine was.
    promised: (Epoch, Option<NodeId>),
    committed: (Seq, Csn),
    /// The epoch and the leader that were reported last.
    reported: (Epoch, Option<NodeId>),
    /// Only while this node leads.
    gate: Option<Gate>,
    is_ready: bool,
    proposed: VecDeque<(Seq, u64)>,
    proposed_bytes: u64,
    reads: Reads,
    offered: Option<Box<Message>>,
    peers: BTreeMap<NodeId, Peer>,
    /// Ticks for which a node was being offered a beginning.
    offering: BTreeMap<NodeId, u32>,
    /// How many beginnings were sent.
    beginnings: u64,
    random: u64,
    election_timeout: (Epoch, StateRole, usize),
}

struct Waiting {
    number: u64,
    /// The promise that has to be kept.
    promise: u64,
    /// The record that has to be durable; 0 for none.
    last: Seq,
    /// Behind which record the log begins anew.
    begins: Option<Seq>,
    messages: Vec<Message>,
}

/// What is known of another node.
#[derive(Default)]
struct Peer {
    incarnation: u64,
    /// What it acknowledged to this node as the present leader.
    matched: Seq,
    /// What it had acknowledged for certain: records that are durable on a majority.
    acknowledged: Seq,
}

impl Node {
    /// Starts a node on what its folder holds. It takes part as soon as the effects are carried out.
    ///
    /// # Errors
    /// What does not fit together; nothing was changed.
    pub fn open(
        recovery: Option<Recovery>,
        origin: Option<Origin>,
        config: Config,
        effects: &mut Vec<Effect>,
    ) -> Result<Node, OpenError> {
        check_config(&config)?;
        let mut on_disk = Vec::new();
        let engine = match (recovery, origin) {
            (Some(recovery), origin) => {
                let recovery = share(recovery, origin.as_ref(), config.node)?;
                Engine::resume(recovery, config.settings, &mut on_disk)
            }
            (None, Some(origin)) => {
                let shared = first_promise(config.node, origin.genesis.epoch, Seq(0), origin.membership);
                Engine::begin_as(origin.genesis, Some(shared), config.settings, &mut on_disk)
            }
            (None, None) => return Err(OpenError::Missing),
        };
        effects.extend(on_disk.into_iter().map(Effect::Disk));
        Ok(Node::on(engine, config))
    }

    fn on(mut engine: Engine, config: Config) -> Node {
        let before = before_of(&engine);
        let last = Seq(engine.durable().seq.0 - 1);
        let shared = *engine.shared().expect("the log was made one that is shared");
        let epoch_of_last = engine.catalog().epochs().last().map_or(Epoch(0), |(_, epoch)| epoch);
        let (term, vote) =
            if shared.term >= epoch_of_last { (shared.term, shared.vote) } else { (epoch_of_last, None) };
        let changes: Vec<Seq> =
            (before.seq.0 + 1..=last.0).map(Seq).filter(|seq| engine.is_membership(*seq)).collect();
        // No leader changes the members before the change before is durable on a majority (step 11). A node that forgot
        // that could be elected by nodes that do not count any more.
        let settled_change = changes.iter().rev().nth(1).copied().filter(|_| !planted(Bug::ForgetMembers));
        let committed = shared.committed.max(settled_change.unwrap_or_default()).clamp(before.seq, last);
        engine.settle(committed);
        let csn = engine.catalog().csn_before(committed.next()).unwrap_or(before.csn);
        let mut hard_state = HardState::default();
        (hard_state.term, hard_state.commit) = (term.0, committed.0);
        hard_state.vote = vote.map_or(0, |vote| vote.0);
        let membership = engine.membership_at(committed);
        let initial = RaftState::new(hard_state, conf_state(&membership));
        let beginning = beginning_of(&engine);
        let shelf = Shelf::new(
            initial,
            before,
            beginning,
            last,
            engine.catalog().epochs(),
            changes,
            config.recent_bytes_max,
        );
        let logger = Logger::root(Discard, o!());
        let raft = RawNode::new(&raft_config(&config, committed), shelf, &logger);
        let raft = raft.expect("the configuration was checked, and the shelf answers");
        Node {
            config,
            raft,
            engine,
            is_open: false,
            is_stopped: false,
            waiting: VecDeque::new(),
            promised: (term, vote),
            committed: (committed, csn),
            reported: (Epoch(0), None),
            gate: None,
            is_ready: false,
            proposed: VecDeque::new(),
            proposed_bytes: 0,
            reads: Reads::default(),
            offered: None,
            peers: BTreeMap::new(),
            offering: BTreeMap::new(),
            beginnings: 0,
            random: config.random,
            election_timeout: (Epoch(0), StateRole::Follower, 0),
        }
    }

    /// Time has passed. `random` is a new random number.
    pub fn tick(&mut self, random: u64, effects: &mut Vec<Effect>) {
        if !self.is_working() {
            return;
        }
        self.random = random;
        // A node whose disk has not yet caught up with what Raft gave it does not ask to be elected.
        let is_behind = self.waiting.iter().any(|waiting| waiting.last > Seq(0) || waiting.begins.is_some());
        if self.leads() || !is_behind {
            self.raft.tick();
        }
        self.tick_round();
        self.tick_beginnings();
        self.work(effects);
    }

    /// A message has come.
    ///
    /// # Errors
    /// Why it was dropped, which harms nobody.
    pub fn receive(&mut self, message: Bytes, effects: &mut Vec<Effect>) -> Result<(), Dropped> {
        if !self.is_working() {
            return Err(Dropped::NotOpen);
        }
        let (envelope, content) = codec::decode(message)?;
        if envelope.log_id != self.engine.log_id() {
            return Err(Dropped::OtherLog(envelope.log_id));
        }
        if envelope.to != self.config.node || envelope.from == self.config.node {
            return Err(Dropped::OtherNode { from: envelope.from, to: envelope.to });
        }
        self.meet(&envelope, effects)?;
        match content {
            Content::Raft(message) => self.take(message, effects),
            Content::OldLog { incarnation, acknowledged } => {
                let held = self.held();
                if incarnation != self.config.incarnation
                    || acknowledged <= held
                    || planted(Bug::IgnoreOldLog)
                {
                    return Err(Dropped::FormerLife);
                }
                self.stop(StopReason::OldLog { held, acknowledged }, effects);
                Ok(())
            }
        }
    }

    /// The leader's next record, whose epoch is the leader's and whose CSN follows that of the commit before it. It is
    /// decided when [`Effect::Committed`] reaches its place, unless [`Effect::BecameFollower`] comes first: then it may
    /// be decided or lost, and the log says which.
    ///
    /// # Errors
    /// Why the record was not taken.
    pub fn propose(&mut self, record: Record, effects: &mut Vec<Effect>) -> Result<Seq, ProposeError> {
        let seq = self.propose_one(record.clone())?;
        if planted(Bug::ProposeTwice) && record.kind == Kind::COMMIT {
            let _twice = self.propose_one(Record { csn: record.csn.next(), ..record });
        }
        self.work(effects);
        Ok(seq)
    }

    /// Like [`Node::propose`], for records that have gathered: takes as many as it can, oldest first, sends them together,
    /// and says how many bytes they have.
    ///
    /// # Errors
    /// Why the one that is the oldest now was not taken.
    pub(crate) fn propose_gathered(
        &mut self,
        records: &mut VecDeque<Record>,
        effects: &mut Vec<Effect>,
    ) -> (u64, Result<(), ProposeError>) {
        let (mut bytes, mut outcome) = (0, Ok(()));
        while outcome.is_ok() && !records.is_empty() {
            let (taken, refused) = self.propose_together(records);
            bytes += taken;
            outcome = refused;
        }
        self.work(effects);
        (bytes, outcome)
    }

    /// As many as one message carries.
    fn propose_together(&mut self, records: &mut VecDeque<Record>) -> (u64, Result<(), ProposeError>) {
        let (mut bytes, mut outcome) = (0, Ok(()));
        let (mut places, mut entries) = (Vec::new(), Vec::new());
        while let Some(record) = records.front_mut()
            && (entries.is_empty() || bytes + record.frame_len() <= MESSAGE_BYTES)
        {
            match self.admit(record) {
                Ok(seq) => places.push((seq, record.frame_len())),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            self.proposed_bytes += record.frame_len();
            bytes += record.frame_len();
            entries.push(RaftEntry { data: encode_record(record), ..RaftEntry::default() });
            records.pop_front();
        }
        if entries.is_empty() {
            return (0, outcome);
        }
        self.proposed_bytes -= bytes;
        let mut message = Message { from: self.config.node.0, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(entries.into());
        let is_taken = self.raft.step(message).is_ok();
        match self.after_proposals(&places, is_taken) {
            Ok(()) => (bytes, outcome),
            Err(error) => (bytes, Err(error)),
        }
    }

    /// Changes who shares the log. Done when [`Effect::Members`] says so; promote a learner only when it has caught up.
    ///
    /// # Errors
    /// Why it cannot be changed now.
    pub fn change(&mut self, change: Change, effects: &mut Vec<Effect>) -> Result<Seq, MemberError> {
        self.check_leads()?;
        if !self.is_ready || self.raft.raft.has_pending_conf() {
            return Err(MemberError::Busy);
        }
        if change == Change::Remove(self.config.node) {
            return Err(ChangeError::Leader(self.config.node).into());
        }
        let next = self.engine.membership_at(self.raft.store().last()).with(change)?;
        let mut record = Record::other(Kind::MEMBERSHIP, self.epoch(), next.encode());
        let gate = self.gate.as_mut().expect("checked to lead");
        let seq = gate.admit(&mut record).map_err(ProposeError::Record)?;
        let proposed = self.raft.propose_conf_change(encode_record(&record).to_vec(), conf_change(change));
        self.after_proposals(&[(seq, 0)], proposed.is_ok())?;
        self.work(effects);
        Ok(seq)
    }

    /// Has another node lead, which need not wait then until this one has been silent for long: the voter that has most of the log. It
    /// is elected when it has all of it. What is proposed meanwhile is refused. Returns which node that is, if this one leads others.
    pub fn hand_over(&mut self, effects: &mut Vec<Effect>) -> Option<NodeId> {
        if !self.is_ready {
            return None;
        }
        let others = self.members();
        let others = others.voters().filter(|node| *node != self.config.node);
        // One that has answered lately: of those that have the same, another may be gone.
        let progress = |node: &NodeId| {
            self.raft.raft.prs().get(node.0).map(|progress| (progress.recent_active, progress.matched))
        };
        let heir = others.max_by_key(progress)?;
        self.raft.transfer_leader(heir.0);
        self.work(effects);
        Some(heir)
    }

    /// The disk has carried out the oldest effect that was not answered, or failed to.
    pub fn on_disk(&mut self, event: engine::Event, effects: &mut Vec<Effect>) {
        if self.is_stopped {
            return;
        }
        self.is_open |= matches!(event, engine::Event::Created(_));
        let mut on_disk = Vec::new();
        self.engine.handle(event, &mut on_disk);
        effects.extend(on_disk.into_iter().map(Effect::Disk));
        if let State::Failed(fault) = self.engine.state() {
            self.stop(StopReason::Disk(fault), effects);
        } else if self.is_open {
            self.work(effects);
        }
    }

    /// The answer to [`Effect::Fetch`]: no record if they could not be read; whoever needs them asks again.
    pub fn on_fetched(&mut self, from: Seq, records: Vec<Entry>, effects: &mut Vec<Effect>) {
        if !self.is_working() {
            return;
        }
        // What was cut off since it was read is not what is asked for now.
        let counts = |entry: &Entry| {
            let epoch = entry.record.epoch.0;
            self.raft.store().last() >= entry.seq && self.raft.store().term(entry.seq.0) == Ok(epoch)
        };
        let all_count = records.iter().all(counts) || planted(Bug::SendVoid);
        let records = if all_count { records } else { Vec::new() };
        let is_read = !records.is_empty();
        let entry = |entry: Entry| entry_with(entry.seq, entry.record.epoch, data_of_record(&entry.record));
        let contexts = self.raft.mut_store().lend(from, records.into_iter().map(entry).collect());
        if is_read {
            contexts.into_iter().for_each(|context| self.raft.on_entries_fetched(context));
        }
        self.raft.mut_store().take_back();
        self.work(effects);
    }

    /// The log may begin anew as was offered.
    pub fn accept_beginning(&mut self, effects: &mut Vec<Effect>) {
        if let (true, Some(message)) = (self.is_working(), self.offered.take()) {
            // What has become useless meanwhile, Raft passes over.
            drop(self.raft.step(*message));
            self.work(effects);
        }
    }

    /// Notes in the file that all of it is safe; see [`Engine::mark`].
    pub fn mark(&mut self, effects: &mut Vec<Effect>) {
        if self.is_working() {
            let mut on_disk = Vec::new();
            self.engine.mark(&mut on_disk);
            effects.extend(on_disk.into_iter().map(Effect::Disk));
        }
    }

    /// No replica needs commits before `keep` any more. Whole segments go, never one with records that may yet be void.
    pub fn truncate_before(&mut self, keep: Csn, effects: &mut Vec<Effect>) {
        if self.is_working() {
            // What follows the place where others would begin has to stay for them.
            let Some((_, clean)) = self.engine.catalog().clean() else { return };
            self.engine.truncate_before(keep.min(clean));
            let before = before_of(&self.engine);
            self.raft.mut_store().drop_to(before);
            self.work(effects);
        }
    }

    /// Records for [`Effect::Fetch`], from this node's segments.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub fn ordered<M: Medium>(
        &self,
        from: Seq,
        to: Seq,
        bytes_max: u64,
        medium: M,
    ) -> Result<Vec<Entry>, ReadError> {
        let ordered = Ordered::from(from, &self.engine, medium)?;
        ordered.read_with(to, bytes_max, |seq| self.engine.durable_span_from(seq))
    }

    /// The log, whose readers are shown what is durable on a majority and nothing else.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether this node leads, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// The latest epoch that this node knows of.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.raft.raft.term)
    }

    /// The last record that is known to be durable on a majority, and the last commit up to there.
    #[must_use]
    pub fn committed(&self) -> (Seq, Csn) {
        self.committed
    }

    /// The place and the last commit behind which the next proposal goes.
    #[must_use]
    pub fn tail(&self) -> (Seq, Csn) {
        self.engine.tail()
    }

    /// Who shares the log, as far as that is durable on a majority.
    #[must_use]
    pub fn members(&self) -> Membership {
        self.engine.membership_at(self.committed.0)
    }

    /// Of another node, as this leader knows it: the last record that it has.
    #[must_use]
    pub fn matched(&self, node: NodeId) -> Option<Seq> {
        self.raft.raft.prs().get(node.0).filter(|_| self.leads()).map(|progress| Seq(progress.matched))
    }

    /// How many times this node has offered others that their logs begin anew.
    #[must_use]
    pub fn beginnings(&self) -> u64 {
        self.beginnings
    }

    /// Who leads in the present epoch, if that is known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        Some(NodeId(self.raft.raft.leader_id)).filter(|leader| leader.0 != 0)
    }

    /// Whether this node leads and a record of its epoch is durable on a majority.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready && self.leads()
    }

    /// Bytes of records that were proposed and are not known to be durable on a majority.
    #[must_use]
    pub fn proposed_bytes(&self) -> u64 {
        self.proposed_bytes
    }

    /// The rules that the next proposal has to keep; `None` unless this node leads.
    pub(crate) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// For whoever shows the engine behind a lock of its own.
    pub(crate) fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn is_working(&self) -> bool {
        self.is_open && !self.is_stopped
    }

    fn stop(&mut self, reason: StopReason, effects: &mut Vec<Effect>) {
        self.is_stopped = true;
        effects.push(Effect::Stop(reason));
    }

    /// The last record that is durable here.
    fn held(&self) -> Seq {
        Seq(self.engine.durable_seq().0.saturating_sub(1))
    }

    /// Notes who has sent something, and in which of its lives (step 12).
    fn meet(&mut self, envelope: &Envelope, effects: &mut Vec<Effect>) -> Result<(), Dropped> {
        let committed = self.committed.0;
        let peer = self.peers.entry(envelope.from).or_default();
        if envelope.incarnation < peer.incarnation {
            return Err(Dropped::FormerLife);
        }
        if envelope.incarnation > peer.incarnation {
            let acknowledged = peer.acknowledged.max(peer.matched.min(committed));
            if envelope.durable < acknowledged && !planted(Bug::IgnoreOldLog) {
                let content = Content::OldLog { incarnation: envelope.incarnation, acknowledged };
                self.send(envelope.from, &content, effects);
                return Err(Dropped::OldLog);
            }
            *peer = Peer { incarnation: envelope.incarnation, matched: Seq(0), acknowledged };
        }
        Ok(())
    }

    /// Gives Raft a message that it can take without harm.
    fn take(&mut self, message: Box<Message>, effects: &mut Vec<Effect>) -> Result<(), Dropped> {
        let last = self.raft.store().last();
        let committed = self.committed.0;
        // Raft takes a message without a term for one of its own. Only questions about reads come without one.
        if (message.term == 0) != (message.get_msg_type() == MessageType::MsgReadIndex) {
            return Err(Dropped::Impossible);
        }
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if message.term >= self.epoch().0 && message.commit > last.0 => {
                if planted(Bug::IgnoreOldLog) {
                    return Err(Dropped::Useless);
                }
                // The leader names no more than what this node has acknowledged.
                let acknowledged = Seq(message.commit);
                self.stop(StopReason::OldLog { held: last, acknowledged }, effects);
                return Err(Dropped::OldLog);
            }
            MessageType::MsgAppend if message.term >= self.epoch().0 => {
                if !is_well_formed(&message) {
                    return Err(Dropped::Impossible);
                }
                let differs = |entry: &&RaftEntry| {
                    // 0 where this log has begun behind the record.
                    let held = self.raft.raft.raft_log.term(entry.index).unwrap_or(0);
                    entry.index <= committed.0 && held != 0 && held != entry.term
                };
                if let Some(entry) = message.get_entries().iter().find(differs) {
                    let place = Seq(entry.index);
                    self.stop(StopReason::Overwritten { place }, effects);
                    return Err(Dropped::Impossible);
                }
            }
            MessageType::MsgAppendResponse
                if !message.reject && message.term == self.epoch().0 && self.leads() =>
            {
                if message.index > last.0 {
                    return Err(Dropped::Impossible);
                }
                let peer = self.peers.entry(NodeId(message.from)).or_default();
                peer.matched = peer.matched.max(Seq(message.index));
            }
            MessageType::MsgReadIndex | MessageType::MsgReadIndexResp if message.entries.len() != 1 => {
                return Err(Dropped::Impossible);
            }
            MessageType::MsgSnapshot
                if !message.has_snapshot() || message.get_snapshot().get_metadata().term > message.term =>
            {
                return Err(Dropped::Impossible);
            }
            MessageType::MsgSnapshot
                if message.term >= self.epoch().0
                    && message.get_snapshot().get_metadata().index > committed.0 =>
            {
                return self.offer(message, effects);
            }
            _ => {}
        }
        self.raft.step(*message).map_err(|_| Dropped::Useless)?;
        self.work(effects);
        Ok(())
    }

    /// Keeps a leader's offer until the driver accepts it.
    fn offer(&mut self, message: Box<Message>, effects: &mut Vec<Effect>) -> Result<(), Dropped> {
        let snapshot = message.get_snapshot();
        let (csn, _) = codec::beginning_of(snapshot).ok_or(Dropped::Impossible)?;
        effects.push(Effect::BeginningOffered { place: Seq(snapshot.get_metadata().index), csn });
        self.offered = Some(message);
        Ok(())
    }

    fn check_leads(&self) -> Result<(), ProposeError> {
        let heir = self.raft.raft.lead_transferee.filter(|_| self.leads());
        if self.is_working() && self.leads() && self.gate.is_some() && heir.is_none() {
            return Ok(());
        }
        let leader = heir.unwrap_or(self.raft.raft.leader_id);
        let leader = Some(NodeId(leader)).filter(|leader| leader.0 != 0 && *leader != self.config.node);
        Err(ProposeError::NotLeader { leader })
    }

    fn propose_one(&mut self, mut record: Record) -> Result<Seq, ProposeError> {
        let seq = self.admit(&mut record)?;
        let proposed = self.raft.propose(Vec::new(), encode_record(&record).to_vec());
        self.after_proposals(&[(seq, record.frame_len())], proposed.is_ok())?;
        Ok(seq)
    }

    /// Gives a record its place, which Raft has to be told next.
    fn admit(&mut self, record: &mut Record) -> Result<Seq, ProposeError> {
        self.check_leads()?;
        if self.proposed_bytes >= self.config.proposed_bytes_max {
            return Err(ProposeError::Busy { bytes: self.proposed_bytes });
        }
        if record.kind == Kind::MEMBERSHIP || record.epoch != self.epoch() {
            let (current, found) = (self.epoch(), record.epoch);
            let form = AppendError::Form(record.kind);
            return Err(if found == current { form } else { AppendError::OldEpoch { current, found } }.into());
        }
        let gate = self.gate.as_mut().expect("checked to lead");
        Ok(gate.admit(record)?)
    }

    fn after_proposals(&mut self, places: &[(Seq, u64)], is_taken: bool) -> Result<(), ProposeError> {
        if !is_taken {
            // Raft takes none from a node that is no member any more: it has nothing to lead.
            self.gate = None;
            return Err(ProposeError::NotLeader { leader: None });
        }
        let last = places.last().map(|(seq, _)| seq.0);
        assert_eq!(Some(self.raft.raft.raft_log.last_index()), last, "a proposal goes to the next place");
        self.proposed.extend(places);
        self.proposed_bytes += places.iter().map(|(_, len)| len).sum::<u64>();
        Ok(())
    }

    /// Does all that can be done now.
    fn work(&mut self, effects: &mut Vec<Effect>) {
        loop {
            self.set_election_timeout();
            if self.is_stopped {
                return;
            }
            if self.raft.has_ready() {
                self.handle_ready(effects);
                continue;
            }
            self.report(effects);
            if !self.release(effects) && !self.begin_round() {
                break;
            }
        }
        let wanted = self.raft.store().take_unasked();
        effects.extend(wanted.into_iter().map(|(from, to, bytes_max)| Effect::Fetch { from, to, bytes_max }));
        let mut on_disk = Vec::new();
        self.engine.flush(&mut on_disk);
        effects.extend(on_disk.into_iter().map(Effect::Disk));
    }

    /// Raft draws election timeouts of its own, from the operating system; ours replaces each before it counts.
    fn set_election_timeout(&mut self) {
        let (term, role) = (self.epoch(), self.raft.raft.state);
        if (self.election_timeout.0, self.election_timeout.1) != (term, role) {
            let ticks = u64::from(self.config.election_ticks);
            let drawn = ticks + mix(self.random ^ mix(term.0)) % ticks;
            self.election_timeout = (term, role, drawn as usize);
        }
        self.raft.raft.set_randomized_election_timeout(self.election_timeout.2);
    }

    /// One round of what Raft wants: step 2 to step 7.
    fn handle_ready(&mut self, effects: &mut Vec<Effect>) {
        let mut ready = self.raft.ready();
        let mut messages = ready.take_persisted_messages();
        let at_once = ready.take_messages();
        let mut promise = 0;
        if let Some(state) = ready.hs() {
            let wanted = (Epoch(state.term), Some(NodeId(state.vote)).filter(|vote| vote.0 != 0));
            if wanted != self.promised {
                self.promised = wanted;
                promise = self.engine.promise(wanted.0, wanted.1);
                self.forget_leadership();
            }
        }
        let mut begins = None;
        if !ready.snapshot().is_empty() {
            promise = self.begin_anew(ready.snapshot(), effects);
            begins = Some(self.committed.0);
        }
        let entries = ready.take_entries();
        let last = entries.last().map_or(Seq(0), |entry| Seq(entry.index));
        if let Err(reason) = self.append(entries) {
            return self.stop(reason, effects);
        }
        // A leader need not wait for its own disk; but its term has to be there before anybody hears of it.
        if promise == 0 {
            at_once.iter().for_each(|message| self.send_raft(message, effects));
        } else {
            messages.splice(0..0, at_once);
        }
        self.waiting.push_back(Waiting { number: ready.number(), promise, last, begins, messages });
        for state in ready.take_read_states() {
            self.on_read_state(Seq(state.index), &state.request_ctx);
        }
        let committed = ready.take_committed_entries().last().map(|entry| Seq(entry.index));
        self.raft.advance_append_async(ready);
        if let Some(place) = committed {
            self.on_committed(place, effects);
            self.raft.advance_apply_to(place.0);
        }
        self.report(effects);
        self.confirm_reads(effects);
    }

    /// Hands records to the engine, and cuts off first what the leader has not (step 4).
    fn append(&mut self, entries: Vec<RaftEntry>) -> Result<(), StopReason> {
        let Some(first) = entries.first().map(|entry| Seq(entry.index)) else { return Ok(()) };
        let keeps = planted(Bug::KeepConflict) && !self.leads();
        if first <= self.raft.store().last() && !keeps {
            self.engine.cut_from(first);
            self.raft.mut_store().cut_from(first);
            // What was to be said about records that are void now is not true any more.
            let kept = Seq(first.0 - 1);
            for waiting in self.waiting.iter_mut().filter(|waiting| waiting.last > kept) {
                waiting.last = kept;
                waiting.messages.clear();
            }
        }
        for entry in entries {
            let place = Seq(entry.index);
            if keeps && place <= self.raft.store().last() {
                continue;
            }
            let malformed = StopReason::Diverged { place, error: AppendError::Form(Kind(0)) };
            let record = record_of(&entry, self.engine.tail().1).ok_or(malformed)?;
            self.engine.append_ordered(record).map_err(|error| StopReason::Diverged { place, error })?;
            let entry = entry_with(place, Epoch(entry.term), data_of(&entry).clone());
            let durable = self.engine.durable_seq();
            self.raft.mut_store().push(entry, durable);
        }
        Ok(())
    }

    /// The log begins behind what the leader no longer has (step 9). Returns the promise to wait for.
    fn begin_anew(&mut self, snapshot: &raft::eraftpb::Snapshot, effects: &mut Vec<Effect>) -> u64 {
        let metadata = snapshot.get_metadata();
        let (csn, membership) = codec::beginning_of(snapshot).expect("checked when it was offered");
        let (seq, epoch) = (Seq(metadata.index), Epoch(metadata.term));
        self.engine.begin_anew(Anew { seq: seq.next(), csn, epoch, membership });
        self.raft.mut_store().begin_anew(Before { seq, csn, epoch, membership });
        for waiting in &mut self.waiting {
            waiting.last = Seq(0);
            waiting.messages.clear();
        }
        self.committed = (seq, csn);
        effects.push(Effect::Committed { place: seq, csn });
        effects.push(Effect::Members(membership));
        self.engine.promises().0
    }

    fn on_committed(&mut self, place: Seq, effects: &mut Vec<Effect>) {
        for seq in (self.committed.0.0 + 1..=place.0).map(Seq) {
            if self.engine.is_membership(seq) {
                self.on_members(seq, effects);
            }
        }
        let csn = self.engine.catalog().csn_before(place.next()).expect("what is committed is durable here");
        let members_before = self.engine.membership_at(self.committed.0);
        self.engine.settle(place);
        if self.engine.membership_at(place) != members_before && !planted(Bug::ForgetMembers) {
            // So that a start counts by it, and needs nobody who has left.
            self.engine.note_settled();
        }
        let beginning = beginning_of(&self.engine);
        self.raft.mut_store().set_beginning(beginning);
        self.committed = (place, csn);
        while let Some(&(seq, len)) = self.proposed.front()
            && seq <= place
        {
            self.proposed.pop_front();
            self.proposed_bytes -= len;
        }
        effects.push(Effect::Committed { place, csn });
    }

    /// Has Raft count those that share the log after record `seq`. From what the leader had before, that is one change;
    /// a node that has just joined learns of all the others at once.
    fn on_members(&mut self, seq: Seq, effects: &mut Vec<Effect>) {
        let after = self.engine.membership_at(seq);
        let counted = self.raft.raft.prs().conf().to_conf_state();
        let is_counted = |node: NodeId, role: Role| match role {
            Role::Voter => counted.voters.contains(&node.0),
            Role::Learner => counted.learners.contains(&node.0),
        };
        let coming = after.nodes().filter(|(node, role)| !is_counted(*node, *role));
        let coming = coming.map(|(node, role)| match role {
            Role::Voter => Change::Promote(node),
            Role::Learner => Change::AddLearner(node),
        });
        let leaving = counted.voters.iter().chain(&counted.learners).map(|id| NodeId(*id));
        let leaving = leaving.filter(|node| after.role(*node).is_none()).map(Change::Remove);
        let changes: Vec<Change> = coming.chain(leaving).collect();
        for change in changes {
            let applied = self.raft.apply_conf_change(&conf_change(change));
            applied.expect("a change of one node can be applied");
        }
        if self.leads() && after.role(self.config.node).is_none() {
            // Elected with its own removal in the log: now that this is durable, it is no leader any more.
            let epoch = self.raft.raft.term;
            self.raft.raft.become_follower(epoch, 0);
        }
        effects.push(Effect::Members(after));
    }

    /// Says who leads, when that has changed.
    fn report(&mut self, effects: &mut Vec<Effect>) {
        let epoch = self.epoch();
        let (promised, kept) = self.engine.promises();
        if self.leads() && kept < promised {
            // A node that is alone elects itself at once; if its machine failed now, it would be elected in this epoch again.
            return;
        }
        let leader = Some(NodeId(self.raft.raft.leader_id)).filter(|leader| leader.0 != 0);
        if (epoch, leader) != self.reported {
            self.reported = (epoch, leader);
            if self.leads() {
                let (next, csn) = self.engine.tail();
                self.gate = Some(Gate::new(next, csn, epoch));
                effects.push(Effect::BecameLeader { epoch });
            } else {
                self.forget_leadership();
                effects.push(Effect::BecameFollower { epoch, leader });
            }
            self.gather_again();
        }
        if self.leads() && !self.is_ready && self.raft.raft.commit_to_current_term() {
            // Delivered here, too: Raft's own mark may be ahead of what this node's disk has.
            let (place, csn) = self.committed;
            if self.raft.raft.raft_log.term(place.0).is_ok_and(|term| term == epoch.0) {
                self.is_ready = true;
                effects.push(Effect::LeaderReady { epoch, csn });
            }
        }
    }

    fn forget_leadership(&mut self) {
        (self.gate, self.is_ready) = (None, false);
        self.proposed.clear();
        self.proposed_bytes = 0;
        self.offering.clear();
        let committed = self.committed.0;
        for peer in self.peers.values_mut() {
            let kept =
                if planted(Bug::TrustUncommitted) { peer.matched } else { peer.matched.min(committed) };
            peer.acknowledged = peer.acknowledged.max(kept);
            peer.matched = Seq(0);
        }
    }

    /// Sends what waited for the disk, oldest first (step 5). Returns whether there was anything.
    fn release(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (_, kept) = self.engine.promises();
        let durable = self.engine.durable_seq();
        let is_done =
            |waiting: &Waiting| waiting.promise <= kept && (waiting.last == Seq(0) || waiting.last < durable);
        if !self.waiting.front().is_some_and(is_done) {
            return false;
        }
        let Some(waiting) = self.waiting.pop_front() else { return false };
        waiting.messages.iter().for_each(|message| self.send_raft(message, effects));
        self.raft.on_persist_ready(waiting.number);
        if let Some(place) = waiting.begins {
            self.raft.advance_apply_to(place.0);
        }
        true
    }

    fn send_raft(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        self.beginnings += u64::from(message.get_msg_type() == MessageType::MsgSnapshot);
        self.send(NodeId(message.to), &Content::Raft(Box::new(message.clone())), effects);
    }

    fn send(&self, to: NodeId, content: &Content, effects: &mut Vec<Effect>) {
        let envelope = Envelope {
            log_id: self.engine.log_id(),
            from: self.config.node,
            to,
            incarnation: self.config.incarnation,
            durable: self.held(),
        };
        effects.extend(codec::encode(&envelope, content).map(|message| Effect::Send { to, message }));
    }

    /// A node that does not answer an offer of a beginning is sent it again.
    fn tick_beginnings(&mut self) {
        if !self.leads() {
            return;
        }
        let offered = |(id, progress): (&u64, &raft::Progress)| {
            (progress.state == ProgressState::Snapshot).then_some(NodeId(*id))
        };
        let offered: Vec<NodeId> = self.raft.raft.prs().iter().filter_map(offered).collect();
        self.offering.retain(|node, _| offered.contains(node));
        for node in offered {
            let ticks = self.offering.entry(node).or_insert(0);
            *ticks += 1;
            if *ticks > 2 * u32::from(self.config.election_ticks) {
                *ticks = 0;
                self.raft.report_snapshot(node.0, SnapshotStatus::Failure);
            }
        }
    }
}

fn check_config(config: &Config) -> Result<(), OpenError> {
    let problem = if config.node.0 == 0 {
        "0 is no node's id"
    } else if config.settings.durability != Durability::Disk {
        "a log that several nodes share is kept on disk: a node that forgets what it acknowledged breaks the promise of all"
    } else if config.heartbeat_ticks == 0 || config.election_ticks < 3 * config.heartbeat_ticks {
        "heartbeats have to be at least 1 tick apart, and elections at least three times as far"
    } else {
        return Ok(());
    };
    Err(OpenError::Config(problem))
}

fn raft_config(config: &Config, applied: Seq) -> raft::Config {
    raft::Config {
        id: config.node.0,
        election_tick: usize::from(config.election_ticks),
        heartbeat_tick: usize::from(config.heartbeat_ticks),
        applied: applied.0,
        max_size_per_msg: MESSAGE_BYTES,
        max_inflight_msgs: MESSAGES_UNDER_WAY_MAX,
        check_quorum: true,
        pre_vote: true,
        min_election_tick: usize::from(config.election_ticks),
        max_election_tick: 2 * usize::from(config.election_ticks),
        // A leader's lease would have to trust clocks.
        read_only_option: ReadOnlyOption::Safe,
        ..raft::Config::default()
    }
}

/// What a log says of its sharing that did not say anything before.
fn first_promise(node: NodeId, term: Epoch, committed: Seq, membership: Membership) -> Shared {
    Shared { node, term, vote: None, committed, start: Start::Continues, membership }
}

/// Makes a log that a node had alone the beginning of one that several share (step 10).
fn share(mut recovery: Recovery, origin: Option<&Origin>, node: NodeId) -> Result<Recovery, OpenError> {
    if let Some(shared) = recovery.shared {
        return match shared.node {
            found if found == node => Ok(recovery),
            found => Err(OpenError::WrongNode { expected: node, found }),
        };
    }
    let alone = Membership::alone(node);
    if origin.is_none_or(|origin| origin.membership != alone) {
        return Err(OpenError::Alone);
    }
    // Nobody else counts, so what this node holds is durable on a majority.
    let last = Seq(recovery.end().seq.0 - 1);
    recovery.catalog.settle(last.next());
    recovery.memberships = vec![(last, alone)];
    recovery.shared = Some(first_promise(node, recovery.epoch(), last, alone));
    Ok(recovery)
}

fn before_of(engine: &Engine) -> Before {
    let (seq, csn, epoch) = engine.catalog().before();
    Before { seq, csn, epoch, membership: engine.membership_at(seq) }
}

/// Behind which record a node that is too far behind can begin: whose log began in the midst of a transaction could not read it.
fn beginning_of(engine: &Engine) -> Option<Before> {
    let (seq, csn) = engine.catalog().clean()?;
    Some(Before { seq, csn, epoch: engine.catalog().epoch_of(seq), membership: engine.membership_at(seq) })
}

fn data_of_record(record: &Record) -> Bytes {
    // As Raft made it: a leader's first record is nothing at all.
    if record.kind == Kind::EPOCH && record.body.is_empty() { Bytes::new() } else { encode_record(record) }
}

/// Whether records follow each other and the one before them, in places and epochs.
fn is_well_formed(message: &Message) -> bool {
    if (message.log_term == 0) != (message.index == 0) {
        return false;
    }
    let mut epoch = message.log_term.max(1);
    message.get_entries().iter().zip(message.index + 1..).all(|(entry, place)| {
        let fits = entry.index == place && entry.term >= epoch && entry.term <= message.term;
        epoch = entry.term;
        fits
    })
}

fn conf_change(change: Change) -> ConfChangeV2 {
    let (kind, node) = match change {
        Change::AddLearner(node) => (ConfChangeType::AddLearnerNode, node),
        Change::Promote(node) => (ConfChangeType::AddNode, node),
        Change::Remove(node) => (ConfChangeType::RemoveNode, node),
    };
    let mut single = ConfChangeSingle { node_id: node.0, ..ConfChangeSingle::default() };
    single.set_change_type(kind);
    let mut change = ConfChangeV2::default();
    change.set_changes(vec![single].into());
    change
}

/// Spreads a number over all bits (SplitMix64's last step).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
