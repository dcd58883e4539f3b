//! One site: its clients' updates from their execution to their verdict, and what it commits, in order.

use std::collections::VecDeque;

use super::{Commits, Message};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Moment, Outcome, Place, Statement, StatementKind};
use crate::ids::{Csn, NodeId, OpId, ReplicaId, TxnId};
use crate::item::{Access, AccessSet};
use crate::map::{HashMap, HashSet};
use crate::message::Message as AnyMessage;
use crate::version_table::VersionTable;

/// So many places back it is known who wrote what. Whoever began before that runs again.
const KNOWN_BACK: u64 = 100_000;
/// Of each item the last changes of so many sets of columns are told apart.
const COLUMN_SETS_MAX: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Until this is committed here, and nobody before it writes the same.
    Waiting {
        after: Csn,
    },
    Executing,
    /// It has executed, and was multicast.
    Asked,
    /// It is to commit: where it has executed, unless that was lost.
    Certified {
        here: bool,
    },
}

#[derive(Debug)]
struct Update {
    access: AccessSet,
    state: State,
    /// Its executions so far, the present one included.
    executions: u32,
    snapshot: Csn,
}

impl Update {
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
}

#[derive(Debug)]
pub(super) struct Site {
    me: NodeId,
    commits: Commits,
    /// Its clients' updates.
    updates: HashMap<TxnId, Update>,
    /// Those that have to execute, or to execute again, in order.
    line: Vec<TxnId>,
    queries: HashSet<TxnId>,
    /// Who has written what, by places in the order.
    writers: VersionTable,
    /// The last place that is known, and the last that is stable.
    ordered: Csn,
    stable: Csn,
    /// What may not be given to the database yet, and what was and is not committed, in order.
    decided: VecDeque<Decided>,
    committing: VecDeque<Decided>,
}

impl Site {
    pub(super) fn new(me: NodeId, commits: Commits) -> Site {
        Site {
            me,
            commits,
            updates: HashMap::default(),
            line: Vec::new(),
            queries: HashSet::default(),
            writers: VersionTable::starting_at(Csn(0), COLUMN_SETS_MAX),
            ordered: Csn(0),
            stable: Csn(0),
            decided: VecDeque::new(),
            committing: VecDeque::new(),
        }
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
        let (access, state) = (statement.access.clone(), State::Waiting { after: Csn(0) });
        self.updates.insert(txn, Update { access, state, executions: 0, snapshot: Csn(0) });
        self.line.push(txn);
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
        let Some(update) = self.updates.get_mut(&txn) else { return };
        // What is reported of an execution that was given up says nothing.
        if update.state != State::Executing || update.op() != op {
            return;
        }
        match outcome {
            Outcome::Done { returned } => {
                update.state = State::Asked;
                let access = update.access.iter().chain(returned).cloned().collect();
                let message = Message::Request { txn, op, snapshot: update.snapshot, access };
                effects.push(Effect::Multicast { txn, message: AnyMessage::Certified(message) });
            }
            Outcome::Lost { .. } => self.run_again(txn, Csn(0), effects),
            // It has failed on what was committed at an instant, and changed nothing: that is where it stands in the order.
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

    /// Gives up an execution. The next one begins when that place is committed here.
    fn run_again(&mut self, txn: TxnId, after: Csn, effects: &mut Vec<Effect>) {
        let replica = self.replica();
        let Some(update) = self.updates.get_mut(&txn) else { return };
        update.state = State::Waiting { after };
        effects.push(Effect::Leave { txn, replica });
        self.line.push(txn);
        self.begin_all(effects);
    }

    /// An update is over for this site.
    fn over(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.updates.remove(&txn);
        effects.push(Effect::Forget { txn });
        self.begin_all(effects);
    }

    /// Whoever may begin does: nobody of this site who writes the same has begun before and is not over.
    fn begin_all(&mut self, effects: &mut Vec<Effect>) {
        let (committed, replica) = (self.committed(), self.replica());
        for txn in std::mem::take(&mut self.line) {
            let Some(update) = self.updates.get(&txn) else { continue };
            let State::Waiting { after } = update.state else { continue };
            let held_up = |other: &Update| {
                !matches!(other.state, State::Waiting { .. }) && write_the_same(&update.access, &other.access)
            };
            if after > committed || self.updates.values().any(held_up) {
                self.line.push(txn);
                continue;
            }
            let Some(update) = self.updates.get_mut(&txn) else { continue };
            (update.state, update.snapshot) = (State::Executing, committed);
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
        self.begin_all(effects);
    }

    fn certify(&mut self, origin: NodeId, place: Csn, message: Message, effects: &mut Vec<Effect>) {
        let Message::Request { txn, op, snapshot, access } = message;
        self.ordered = place;
        let last = self.writers.floor(&access);
        let commits = last <= snapshot && snapshot >= self.writers.forgotten();
        if commits {
            self.writers.write(place, &access);
            self.decided.push_back(Decided { txn, origin, place });
        }
        if place.0 > KNOWN_BACK {
            self.writers.forget(Csn(place.0 - KNOWN_BACK));
        }
        // Whoever runs again by now has asked in vain before.
        let own = self.updates.get_mut(&txn).filter(|own| origin == self.me && own.op() == op);
        match own.map(|own| &mut own.state) {
            Some(state) if *state == State::Asked && commits => *state = State::Certified { here: true },
            Some(State::Asked) => self.run_again(txn, last, effects),
            _ => {}
        }
        if commits {
            self.run_again_after(place, effects);
        }
    }

    /// Whoever has not found what is to be committed at this place, and would have to, will not be let commit anywhere.
    fn run_again_after(&mut self, place: Csn, effects: &mut Vec<Effect>) {
        let is_late = |(_, update): &(&TxnId, &Update)| {
            matches!(update.state, State::Executing | State::Asked)
                && self.writers.floor(&update.access) > update.snapshot
        };
        let mut late: Vec<TxnId> = self.updates.iter().filter(is_late).map(|(txn, _)| *txn).collect();
        late.sort_unstable();
        for txn in late {
            self.run_again(txn, place, effects);
        }
    }

    /// Gives the database what may commit, in the order in which it is to.
    fn commit_next(&mut self, effects: &mut Vec<Effect>) {
        let upto = match self.commits {
            Commits::Ordered => self.ordered,
            Commits::Stable => self.stable,
        };
        let replica = self.replica();
        while let Some(next) = self.decided.pop_front_if(|next| next.place <= upto) {
            let (txn, csn) = (next.txn, next.place);
            let is_own =
                self.updates.get(&txn).is_some_and(|update| update.state == State::Certified { here: true });
            effects.push(match next.origin == self.me && is_own {
                true => Effect::CommitAt { txn, replica, csn },
                false => Effect::ApplyShipped { origin: Place::Peer(next.origin), txn, replica },
            });
            self.committing.push_back(next);
        }
    }

    pub(super) fn on_committed(&mut self, csn: Csn, effects: &mut Vec<Effect>) {
        self.in_place(|next| next.place == csn, effects);
    }

    pub(super) fn on_applied(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        self.in_place(|next| next.txn == txn, effects);
    }

    fn in_place(&mut self, is_it: impl Fn(&Decided) -> bool, effects: &mut Vec<Effect>) {
        let Some(place) = self.committing.iter().position(is_it) else { return };
        let Some(Decided { txn, origin, place: csn }) = self.committing.remove(place) else { return };
        if origin == self.me
            && let Some(update) = self.updates.get(&txn)
        {
            effects.push(Effect::Release { txn, op: update.op(), replica: self.replica() });
            effects.push(Effect::Acknowledge { txn, op: OpId(0), csn });
        }
        self.over(txn, effects);
    }

    /// What was executed here cannot be committed here any more. If it is to be, its writes are applied as those of others are.
    pub(super) fn on_home_lost(&mut self, txn: TxnId, effects: &mut Vec<Effect>) {
        match self.updates.get_mut(&txn).map(|update| &mut update.state) {
            Some(State::Certified { here }) => *here = false,
            Some(State::Executing | State::Asked) => return self.run_again(txn, Csn(0), effects),
            _ => return,
        }
        if self.committing.iter().any(|next| next.txn == txn) {
            let (origin, replica) = (Place::Peer(self.me), self.replica());
            effects.push(Effect::ApplyShipped { origin, txn, replica });
        }
    }
}

fn written(access: &AccessSet) -> impl Iterator<Item = &Access> {
    access.iter().filter(|access| access.mode.writes())
}

/// In a database, the second of two waits for the first.
fn write_the_same(one: &AccessSet, other: &AccessSet) -> bool {
    written(one).any(|mine| written(other).any(|theirs| mine.conflicts(theirs)))
}
