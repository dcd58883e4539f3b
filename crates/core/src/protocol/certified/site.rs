//! One site: its clients' updates from their execution to their verdict, and what it commits, in order.

use std::collections::{BTreeSet, VecDeque};

use super::{Commits, Message};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Moment, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, NodeId, OpId, ReplicaId, TxnId};
use crate::item::AccessSet;
use crate::item_locks::{Granting, ItemLocks};
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::version_table::VersionTable;

/// Of each item the last changes of all sets of columns are told apart: a site that begins anew knows of fewer, and must come to the same verdicts.
const COLUMN_SETS_MAX: usize = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// For others of this site that write the same, or until something is committed here.
    Waiting,
    Executing,
    /// It has executed, and was multicast; what it did is still here, unless that was lost. It is never asked for again before there is a verdict that
    /// no failure can change: it could be let commit twice.
    Asked {
        here: bool,
    },
    /// It is to commit: where it has executed, unless that was lost.
    Certified {
        here: bool,
    },
    /// All sites execute it at the place that it has, or will have.
    InPlace,
}

#[derive(Debug)]
struct Update {
    /// What is known beforehand of what it will touch.
    access: AccessSet,
    state: State,
    /// Its executions so far, the present one included.
    executions: u32,
    snapshot: Csn,
    /// Its client has seen answers, so it cannot be executed again behind its back.
    is_seen: bool,
}

impl Update {
    fn new(access: AccessSet, is_seen: bool) -> Update {
        Update { access, state: State::Waiting, executions: 0, snapshot: Csn(0), is_seen }
    }

    fn op(&self) -> OpId {
        OpId(self.executions.saturating_sub(1))
    }
}

/// An update that is to commit here.
#[derive(Debug)]
struct Decided {
    txn: TxnId,
    origin: NodeId,
    place: Csn,
    /// It executes there, in the place of being certified.
    in_place: bool,
}

#[derive(Debug)]
pub(super) struct Site {
    me: NodeId,
    commits: Commits,
    /// So many places back it is known who wrote what. Whoever began before that may not commit.
    known_back: u64,
    /// Its clients' updates.
    updates: HashMap<TxnId, Update>,
    /// What they write, until they are over.
    written: ItemLocks,
    /// Those that have to execute, or to execute again, when this is committed here.
    line: BTreeSet<(Csn, TxnId)>,
    queries: HashSet<TxnId>,
    /// Who has written what, by places in the order.
    writers: VersionTable,
    /// The last place that is known, and the last that is stable.
    ordered: Csn,
    stable: Csn,
    /// Own ones that may not commit at these places, but may come to stand at others as long as these are not stable.
    rejected: VecDeque<(Csn, TxnId)>,
    /// What may not be given to the database yet, and what was and is not committed, in order.
    decided: VecDeque<Decided>,
    committing: VecDeque<Decided>,
}

impl Site {
    pub(super) fn new(me: NodeId, commits: Commits, known_back: u64) -> Site {
        Site {
            me,
            commits,
            known_back,
            updates: HashMap::default(),
            written: ItemLocks::default(),
            line: BTreeSet::new(),
            queries: HashSet::default(),
            writers: VersionTable::starting_at(Csn(0), COLUMN_SETS_MAX),
            ordered: Csn(0),
            stable: Csn(0),
            rejected: VecDeque::new(),
            decided: VecDeque::new(),
            committing: VecDeque::new(),
        }
    }

    /// This site begins with everything committed up to a place; of those that stand there and not too far back, what they wrote.
    pub(super) fn resume(&mut self, committed: Csn, written: impl IntoIterator<Item = (Csn, AccessSet)>) {
        let forgotten = Csn(committed.0.saturating_sub(self.known_back));
        self.writers = VersionTable::starting_at(forgotten, COLUMN_SETS_MAX);
        for (place, access) in written.into_iter().filter(|(place, _)| *place > forgotten) {
            self.writers.write(place, &access);
        }
        (self.ordered, self.stable) = (committed, committed);
    }

    /// Everything up to this place that is to commit is committed here.
    pub(super) fn committed(&self) -> Csn {
        let next = self.committing.front().or(self.decided.front());
        next.map_or(self.ordered, |next| next.place.previous())
    }

    pub(super) fn open(&self) -> u64 {
        (self.updates.len() + self.queries.len()) as u64
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.me.0)
    }
}

/// From clients and the database.
impl Site {
    pub(super) fn on_client(&mut self, txn: TxnId, statement: &Statement, effects: &mut Vec<Effect>) {
        if statement.kind == StatementKind::Read {
            self.queries.insert(txn);
            return self.run_query(txn, effects);
        }
        let access = statement.access.clone();
        let writes: AccessSet = access.iter().filter(|access| access.mode.writes()).cloned().collect();
        self.updates.insert(txn, Update::new(access, false));
        if self.written.request(txn, &writes) == Granting::Granted {
            self.line.insert((Csn(0), txn));
            self.begin_all(effects);
        }
    }

    /// A client begins a transaction whose statements will come one by one. It executes until its client ends it; what it has touched is told then.
    pub(super) fn on_begin(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.updates.insert(txn, Update::new(AccessSet::new(), true));
        self.line.insert((Csn(0), txn));
        self.begin_all(effects);
    }

    fn run_query(&self, txn: TxnId, effects: &mut Vec<Effect>) {
        let (op, replica) = (OpId(0), self.replica());
        effects.push(Effect::Execute { txn, op, replica, how: How::Alone, hold: false });
    }

    pub(super) fn on_executed(&mut self, txn: TxnId, op: OpId, outcome: &Outcome, effects: &mut Vec<Effect>) {
        if self.queries.contains(&txn) {
            match outcome {
                Outcome::Lost { answer_begun: false } | Outcome::TooLarge => {
                    return self.run_query(txn, effects);
                }
                Outcome::Lost { answer_begun: true } => {
                    effects.push(Effect::Refuse { txn, op, reason: Refusal::AnswerCut });
                }
                Outcome::Done { .. } | Outcome::Failed => {}
            }
            self.queries.remove(&txn);
            return;
        }
        let replica = self.replica();
        if let Some(at) = self.committing.iter().position(|next| next.txn == txn && next.in_place) {
            let counts = op == self.op_in_place(txn);
            if counts && *outcome == Outcome::Failed {
                self.failed_in_place(at, effects);
            }
            return;
        }
        let Some(update) = self.updates.get_mut(&txn) else { return };
        // What is reported of an execution that was given up says nothing.
        if update.state != State::Executing || update.op() != op {
            return;
        }
        match outcome {
            Outcome::Done { returned } => {
                let access: AccessSet = update.access.iter().chain(returned).cloned().collect();
                if update.is_seen && !access.iter().any(|access| access.mode.writes()) {
                    // It has changed nothing, so it stands in the order where its snapshot does.
                    effects.push(Effect::Finish { txn, op, replica: Some(replica) });
                    return self.over(txn, effects);
                }
                let last = self.writers.floor(&access);
                if last > update.snapshot {
                    return self.was_in_vain(txn, effects);
                }
                update.state = State::Asked { here: true };
                let message = Message::Request { txn, op, snapshot: update.snapshot, access };
                effects.push(Effect::Multicast { txn, message: AnyMessage::Certified(message) });
            }
            Outcome::Lost { .. } => self.run_again(txn, Csn(0), effects),
            // It changed nothing, so it stands in the order where its snapshot does.
            Outcome::Failed => {
                effects.push(Effect::Release { txn, op, replica });
                effects.push(Effect::Leave { txn, replica });
                self.over(txn, effects);
            }
            Outcome::TooLarge => {
                effects.push(Effect::Leave { txn, replica });
                effects.push(Effect::Refuse { txn, op, reason: Refusal::AnswerCut });
                self.over(txn, effects);
            }
        }
    }

    /// What it has read or written is out of date. Its next execution is in place; where its client has seen answers there is none.
    fn was_in_vain(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let Some(update) = self.updates.get_mut(&txn) else { return };
        if update.is_seen {
            return self.refuse(txn, effects);
        }
        effects.push(Effect::Leave { txn, replica });
        update.state = State::InPlace;
        let message = Message::InPlace { txn, access: update.access.clone() };
        effects.push(Effect::Multicast { txn, message: AnyMessage::Certified(message) });
    }

    fn refuse(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let op = self.updates.get(&txn).map_or(OpId(0), Update::op);
        effects.push(Effect::Leave { txn, replica: self.replica() });
        effects.push(Effect::Refuse { txn, op, reason: Refusal::ReadsChanged });
        self.over(txn, effects);
    }

    fn is_decided(&self, txn: TxnId) -> bool {
        self.decided.iter().chain(&self.committing).any(|next| next.txn == txn)
    }

    /// Gives up an execution. The next one begins when that place is committed here; where its client has seen answers there is none.
    fn run_again(&mut self, txn: TxnId, after: Csn, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let Some(update) = self.updates.get_mut(&txn) else { return };
        if update.is_seen {
            return self.refuse(txn, effects);
        }
        update.state = State::Waiting;
        effects.push(Effect::Leave { txn, replica });
        self.line.insert((after, txn));
        self.begin_all(effects);
    }

    /// An update is over for this site.
    fn over(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Forget { txn });
        if self.updates.remove(&txn).is_some() {
            let next = self.written.release(txn);
            self.line.extend(next.into_iter().map(|next| (Csn(0), next)));
        }
        self.begin_all(effects);
    }

    /// What who begins now is sure to see. (Of places that are only ordered nothing is committed here that would be seen, and if one is given to another
    /// update after all, that was not seen.)
    fn snapshot(&self) -> Csn {
        self.committed().min(self.certain())
    }

    /// What an update sees is taken now only. One that is known to need what is not committed here gives its turn to others, and waits.
    pub(super) fn on_opening(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let (committed, snapshot) = (self.committed(), self.snapshot());
        let Some(update) = self.updates.get_mut(&txn).filter(|update| update.state == State::Executing)
        else {
            return;
        };
        let last = self.writers.floor(&update.access);
        if last > committed {
            return self.run_again(txn, last, effects);
        }
        update.snapshot = snapshot;
    }

    /// Whoever waits for nothing any more begins. What is known to have been written already, and is not committed here, is waited for: without it the
    /// execution would be in vain.
    fn begin_all(&mut self, effects: &mut Vec<Effect>) {
        let (committed, snapshot, replica) = (self.committed(), self.snapshot(), self.replica());
        while let Some((after, txn)) = self.line.pop_first() {
            if after > committed {
                self.line.insert((after, txn));
                return;
            }
            let Some(update) = self.updates.get_mut(&txn) else { continue };
            let last = self.writers.floor(&update.access);
            if last > committed {
                self.line.insert((last, txn));
                continue;
            }
            (update.state, update.snapshot) = (State::Executing, snapshot);
            update.executions += 1;
            let (op, how) = (update.op(), How::Home { open: true });
            effects.push(Effect::Execute { txn, op, replica, how, hold: true });
        }
    }
}

/// In the order.
impl Site {
    pub(super) fn on_delivered(
        &mut self,
        from: NodeId,
        moment: Moment,
        place: Csn,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        match moment {
            Moment::Received => return,
            Moment::Ordered => self.certify(from, place, message, effects),
            Moment::Stable => self.stable = place,
        }
        self.commit_next(effects);
        self.reject_next(effects);
        self.begin_all(effects);
    }

    /// Up to which place what is decided holds.
    fn certain(&self) -> Csn {
        match self.commits {
            Commits::Ordered => self.ordered,
            Commits::Stable => self.stable,
        }
    }

    fn reject_next(&mut self, effects: &mut Vec<Effect>) {
        let certain = self.certain();
        while let Some((place, txn)) = self.rejected.front().copied()
            && place <= certain
        {
            self.rejected.pop_front();
            match self.updates.contains_key(&txn) {
                true => self.was_in_vain(txn, effects),
                // Of before a new beginning: nothing else is known of it.
                false => effects.push(Effect::Forget { txn }),
            }
        }
    }

    fn certify(&mut self, origin: NodeId, place: Csn, message: Message, effects: &mut Vec<Effect>) {
        self.ordered = place;
        // By the place alone, so that all sites know equally much.
        self.writers.forget(Csn(place.0.saturating_sub(self.known_back)));
        let (txn, op, snapshot, access) = match message {
            Message::Request { txn, op, snapshot, access } => (txn, op, snapshot, access),
            Message::InPlace { txn, access } => return self.execute_in_place(origin, place, txn, access),
        };
        let last = self.writers.floor(&access);
        let commits = last <= snapshot && snapshot >= self.writers.forgotten();
        if commits {
            self.writers.write(place, &access);
            self.decided.push_back(Decided { txn, origin, place, in_place: false });
        }
        if origin != self.me {
            if !commits {
                // What came with it is of no use.
                effects.push(Effect::Forget { txn });
            }
            return;
        }
        if !commits {
            return self.rejected.push_back((place, txn));
        }
        let own = self.updates.get_mut(&txn).filter(|own| own.op() == op);
        if let Some(Update { state: state @ State::Asked { .. }, .. }) = own {
            *state = State::Certified { here: *state == State::Asked { here: true } };
        }
    }

    /// It counts as written there even if its statements fail: others are certified before it executes.
    fn execute_in_place(&mut self, origin: NodeId, place: Csn, txn: TxnId, access: AccessSet) {
        self.writers.write(place, &access);
        self.decided.push_back(Decided { txn, origin, place, in_place: true });
        if origin == self.me {
            // One of before a new beginning is answered from here as well.
            let update = self.updates.entry(txn).or_insert_with(|| Update::new(access, false));
            update.state = State::InPlace;
            update.executions += 1;
        }
    }

    /// Its only execution at other sites, and one more than it had at its client's.
    fn op_in_place(&self, txn: TxnId) -> OpId {
        self.updates.get(&txn).map_or(OpId(0), Update::op)
    }

    fn failed_in_place(&mut self, at: usize, effects: &mut Vec<Effect>) {
        let Some(Decided { txn, origin, .. }) = self.committing.remove(at) else { return };
        let replica = self.replica();
        if origin == self.me
            && let Some(update) = self.updates.get(&txn)
        {
            effects.push(Effect::Release { txn, op: update.op(), replica });
        }
        effects.push(Effect::Leave { txn, replica });
        self.over(txn, effects);
    }

    /// Gives the database what may commit, in the order in which it is to.
    fn commit_next(&mut self, effects: &mut Vec<Effect>) {
        let upto = self.certain();
        let replica = self.replica();
        while self.decided.front().is_some_and(|next| next.place <= upto)
            && let Some(next) = self.decided.pop_front()
        {
            let (txn, csn) = (next.txn, next.place);
            let is_own =
                self.updates.get(&txn).is_some_and(|update| update.state == State::Certified { here: true });
            effects.push(if next.in_place {
                Effect::ExecuteAt { txn, op: self.op_in_place(txn), replica, csn }
            } else if next.origin == self.me && is_own {
                Effect::CommitAt { txn, replica, csn }
            } else {
                Effect::ApplyShipped { origin: Place::Peer(next.origin), txn, replica }
            });
            self.committing.push_back(next);
        }
    }

    pub(super) fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        self.committed_one(|next| next.place == csn, effects);
    }

    pub(super) fn on_applied(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.committed_one(|next| next.txn == txn, effects);
    }

    fn committed_one(&mut self, is_it: impl Fn(&Decided) -> bool, effects: &mut Vec<Effect>) {
        let Some(place) = self.committing.iter().position(is_it) else { return };
        let Some(Decided { txn, origin, place: csn, .. }) = self.committing.remove(place) else { return };
        if origin == self.me
            && let Some(update) = self.updates.get(&txn)
        {
            effects.push(Effect::Release { txn, op: update.op(), replica: self.replica() });
            effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        }
        self.over(txn, effects);
    }

    /// What was executed here cannot be committed here any more. If it is to be, its writes are applied as those of others are. One that was to be executed in place and
    /// cannot be runs again here.
    pub(super) fn on_home_lost(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        let is_decided = self.is_decided(txn);
        match self.updates.get_mut(&txn).map(|update| &mut update.state) {
            // Its writes are on their way already.
            Some(State::Certified { here: false }) => return,
            Some(State::Certified { here }) => *here = false,
            Some(State::Asked { here }) => {
                *here = false;
                return;
            }
            Some(State::Executing) => return self.run_again(txn, Csn(0), effects),
            Some(State::InPlace) if !is_decided => return self.run_again(txn, Csn(0), effects),
            _ => return,
        }
        if self.committing.iter().any(|next| next.txn == txn) {
            let (origin, replica) = (Place::Peer(self.me), self.replica());
            effects.push(Effect::ApplyShipped { origin, txn, replica });
        }
    }
}
