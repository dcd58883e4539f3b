//! What the core wants done, and what came of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onecopy_core::event::Place;
use onecopy_core::message::Message as CoreMessage;
use onecopy_core::multicast::MessageId;
use onecopy_core::protocol::wide_area::{Execution, Message};
use onecopy_core::protocol::{Position, certified};
use onecopy_core::{Csn, Effect, Event, NodeId, OpId, Outcome, TxnId};
use onecopy_log::consensus::MESSAGE_LEN_MAX;
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::oneshot;

use super::{Done, Ended, Open, Pending, RESEND_AFTER, Site};
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::{Lane, LaneError, is_going_away};
use crate::nodes::links::Said;
use crate::record::Record;
use crate::sites::Scheme;
use crate::sites::database::{Answer, ApplyError, Begin, Ran};
use crate::sites::messages::SiteMessage;
use crate::sites::request::{Asks, Request};

/// How often an update is executed again that its server gives up: for some minutes.
pub(super) const LOSSES_MAX: u32 = 200;
/// The longest pause between two of these.
const LOST_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Before a statement whose connection was lost is executed again.
const LOST_PAUSE: Duration = Duration::from_millis(20);

/// What the core wants done.
impl Site<'_> {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Multicast {
                txn,
                message: CoreMessage::Certified(certified::Message::InPlace { .. }),
            } if self.open.get(&txn).is_some_and(|open| !open.transaction.only_writes) => {
                let replica = self.replica();
                self.feed(Event::HomeLost { txn, replica });
            }
            Effect::Multicast { txn, message: CoreMessage::Certified(message) } => self.ask(txn, message),
            Effect::Multicast { txn, .. } => {
                let id = self.open.get(&txn).and_then(|open| open.id);
                let body = id.and_then(|id| Some((id, self.around.pending.get(&id)?.body.clone())));
                if let Some((id, body)) = body {
                    self.multicast(id, body);
                }
            }
            Effect::Execute { txn, op, .. } => {
                let Some(open) = self.open.get_mut(&txn) else { return };
                (open.op, open.is_shipped) = (Some(op), false);
                match open.is_update {
                    false => self.execute(txn, op),
                    true => self.connect(txn),
                }
            }
            Effect::Leave { txn, .. } => {
                self.leave(txn);
                self.take_back(txn);
            }
            Effect::Release { txn, replica, .. } => {
                let is_own = replica == self.replica();
                let Some(open) = self.open.get_mut(&txn) else { return };
                let answer = match &open.shipped {
                    Some((_, answer)) if !is_own => answer.clone(),
                    _ => open.answer.clone(),
                };
                // What has failed is not acknowledged.
                if answer.error.is_some() {
                    self.answer(txn, answer);
                } else {
                    open.chosen = Some(answer);
                }
            }
            Effect::Acknowledge { txn, .. } => {
                let chosen = self.open.get_mut(&txn).and_then(|open| open.chosen.take());
                self.answer(txn, chosen.unwrap_or_default());
            }
            Effect::Refuse { txn, .. } => self.answer(txn, Answer::of_failure(&given_up())),
            Effect::Finish { txn, .. } => {
                // It has only read.
                self.leave(txn);
                self.answer(txn, Answer::default());
            }
            Effect::Ship { txn, to: Place::Peer(to), message: CoreMessage::WideArea(message) } => {
                self.ship(txn, to, &message);
            }
            Effect::CommitAt { txn, csn, .. } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    (open.place, open.is_shipped) = (csn, false);
                }
                self.take_turn(txn, true);
            }
            Effect::ExecuteAt { txn, op, csn, .. } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    (open.place, open.is_shipped) = (csn, false);
                    (open.in_place_op, open.losses) = (op, 0);
                }
                self.take_turn(txn, false);
            }
            Effect::ApplyShipped { txn, .. } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    open.is_shipped = true;
                }
                match self.core.position() {
                    Position::Prefix => self.take_turn(txn, false),
                    Position::Set => self.connect(txn),
                }
            }
            Effect::Forget { txn } => {
                self.leave(txn);
                let open = self.open.remove(&txn);
                if open.as_ref().is_some_and(|open| open.kept.is_some()) {
                    self.disconnect(txn);
                }
                if let Some(open) = open
                    && let Some(id) = open.id
                {
                    self.by_id.remove(&id);
                    let is_contained = open.place <= self.floor || self.contained.contains(&open.place);
                    // What is certified has its place for certain only when it is stable: then it is known to be nobody's.
                    if !is_contained && (!self.is_certified() || open.place <= self.order.stable_up_to()) {
                        // It has failed, everywhere.
                        self.note_nothing(open.place, id);
                    }
                    if self.is_certified() {
                        // An own client's of before this beginning.
                        self.answer_found(id, is_contained);
                    }
                }
            }
            other => tracing::debug!(?other, "nothing to be done at a site"),
        }
    }

    /// Multicasts what has executed here, or is to be executed everywhere.
    fn ask(&mut self, txn: TxnId, message: certified::Message) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        let (asks, access, record, known) = match message {
            certified::Message::Request { op, snapshot, access, .. } => {
                (Asks::Verdict { snapshot, op }, access, &open.writes, Some(open.answer.clone()))
            }
            certified::Message::InPlace { access, .. } => {
                (Asks::InPlace, access, &open.transaction.record, None)
            }
        };
        let request = Request { asks, access };
        let body = request.encode(record);
        open.request = Some(request);
        // Whoever is not there any more hears nothing.
        let answer = open.client.take().unwrap_or_else(|| oneshot::channel().0);
        let resend_at = Deadline::after(RESEND_AFTER);
        let whole = open.kept.is_none().then(|| open.transaction.clone());
        let id = self.around.name(Pending { whole, body: body.clone(), answer, known, resend_at });
        open.id = Some(id);
        self.by_id.insert(id, txn);
        self.multicast(id, body);
    }

    /// An update does not commit at its place, which is certain: an own one runs again or is refused, or it has failed in place. It has none any more.
    fn take_back(&mut self, txn: TxnId) {
        let Some(open) =
            self.open.get_mut(&txn).filter(|open| open.place != Csn(0) && open.request.is_some())
        else {
            return;
        };
        let place = std::mem::take(&mut open.place);
        open.request = None;
        if let Some(id) = open.id.take() {
            self.by_id.remove(&id);
            if let Some(pending) = self.around.pending.remove(&id) {
                open.client = Some(pending.answer);
            }
            self.note_nothing(place, id);
        }
    }

    /// Updates hold their connections until all before them are committed, so those before them must not be without: whoever comes last gives
    /// way, and is executed again.
    pub(super) fn connect(&mut self, txn: TxnId) {
        // An execution of it that was left may be under way still.
        if self.connected.contains(&txn) || self.connected.len() < self.around.updates_max {
            if !self.begin(txn) {
                self.connect_next();
            }
            return;
        }
        self.unconnected.insert((self.place_of(txn), txn));
        self.give_way();
    }

    pub(super) fn give_way(&mut self) {
        let Some((place, _)) = self.unconnected.first().copied() else { return };
        let holds = |other: &&TxnId| self.open.get(*other).is_some_and(|open| open.lane.is_some());
        // What is to be committed next is in nobody's way.
        let waits = |other: &&TxnId| !self.turns.iter().any(|turn| turn.txn == **other);
        let last = self.connected.iter().filter(holds).filter(waits);
        let last = last.max_by_key(|other| self.place_of(**other)).copied();
        if let Some(last) = last.filter(|last| self.place_of(*last) > place) {
            self.leave(last);
            let replica = self.replica();
            self.feed(Event::HomeLost { txn: last, replica });
        }
    }

    /// Where a transaction stands: behind all whose places are known, if its own is not.
    pub(super) fn place_of(&self, txn: TxnId) -> Csn {
        let place = self.open.get(&txn).map_or(Csn(0), |open| open.place);
        if place == Csn(0) { Csn(u64::MAX) } else { place }
    }

    /// Ends what is open, without committing it.
    pub(super) fn leave(&mut self, txn: TxnId) {
        let Some(open) = self.open.get_mut(&txn) else { return };
        open.op = None;
        if open.lane.is_some() {
            // The connection is somebody else's from now on.
            open.pid.store(0, Ordering::Relaxed);
        }
        if let Some(lane) = open.lane.take() {
            let database = self.around.database.clone();
            tokio::spawn(async move { database.leave(lane).await });
            self.disconnect(txn);
        }
        self.unconnected.retain(|(_, other)| *other != txn);
    }

    pub(super) fn disconnect(&mut self, txn: TxnId) {
        if self.connected.remove(&txn) {
            self.connect_next();
        }
    }

    /// Gives a connection that is free to whoever has waited longest and can use it.
    fn connect_next(&mut self) {
        while let Some((_, next)) = self.unconnected.pop_first() {
            if self.begin(next) {
                return;
            }
        }
    }

    /// There is a connection for an update now. Whether it uses it.
    fn begin(&mut self, txn: TxnId) -> bool {
        self.connected.insert(txn);
        let uses_it = match self.open.get(&txn) {
            Some(Open { is_shipped: true, .. }) => {
                self.apply(txn, &[]);
                true
            }
            Some(Open { op: Some(op), .. }) => {
                let op = *op;
                self.feed(Event::Opening { txn });
                // It may be found to come too early: here where nothing else is being carried out, otherwise only once it executes, in vain.
                let goes_on = self.open.get(&txn).is_some_and(|open| open.op == Some(op));
                if goes_on {
                    self.execute(txn, op);
                }
                goes_on
            }
            _ => false,
        };
        if !uses_it {
            self.connected.remove(&txn);
        }
        uses_it
    }

    /// What is kept of an update's answer. Who executes it need not know what it returns, unless its client is here or hears it from here.
    pub(super) fn held_max(&self, id: Option<MessageId>) -> usize {
        let is_told = id.is_none_or(|id| id.node == self.around.this)
            || matches!(self.around.scheme, Scheme::WideArea(choice) if choice.execution == Execution::PrimaryCopy);
        if is_told { self.around.held_max } else { 0 }
    }

    pub(super) fn execute(&mut self, txn: TxnId, op: OpId) {
        let Some(open) = self.open.get(&txn) else { return };
        if open.kept.is_some() {
            return self.has_begun(txn);
        }
        let transaction = open.transaction.clone();
        let checks_at_once = self.around.classifier.has_deferrable();
        let begin = match self.around.scheme {
            _ if !open.is_update => Begin::Query,
            Scheme::WideArea(_) => Begin::Update { checks_at_once },
            Scheme::Certified => Begin::Certified { read_only: false, checks_at_once },
        };
        let (database, done, pid) = (self.around.database.clone(), self.done.clone(), open.pid.clone());
        let held_max = self.held_max(open.id);
        let pause = pause_after(open.losses);
        tokio::spawn(async move {
            let _permit = match begin {
                Begin::Query => database.queries.acquire().await.ok(),
                Begin::Update { .. } | Begin::Certified { .. } | Begin::Serializable { .. } => None,
            };
            let (lane, ran) = database.execute(None, &pid, &transaction, begin, held_max).await;
            let (lane, ran) = match (lane, begin) {
                (Some(lane), Begin::Query) => {
                    database.give_back(lane);
                    (None, ran)
                }
                (lane, _) => (lane, ran),
            };
            if ran.is_err() {
                tokio::time::sleep(pause).await;
            }
            // Nobody listens any more where the site has begun anew.
            let _ = done.send(Done::Executed { txn, op, begin, lane, ran });
        });
    }

    pub(super) fn ship(&mut self, txn: TxnId, to: NodeId, message: &Message) {
        let Some(open) = self.open.get(&txn) else { return };
        let Some(id) = open.id else { return };
        let is_origin = self.node_of(id.node) == Some(to);
        // Only its own client hears it.
        let answer = if is_origin { open.answer.encode() } else { Answer::default().encode() };
        // What is decided stands somewhere.
        let Some((place, epoch)) = open.stands else { return };
        let message = match message {
            Message::WriteSet { op, .. } => {
                SiteMessage::Writes { id, place, epoch, op: *op, writes: open.writes.encode(), answer }
            }
            Message::Failed { op, .. } => SiteMessage::Failed { id, place, epoch, op: *op, answer },
            Message::Request { .. } => return,
        };
        let message = message.encode();
        if message.len() <= MESSAGE_LEN_MAX {
            self.around.links.tell(self.peer(to), Said::Site(message));
        }
        // Whoever waits for what is too long executes it after a while.
    }

    /// Applies what an update wrote, and what those did whom it leads.
    pub(super) fn apply(&mut self, txn: TxnId, led: &[TxnId]) {
        let Some(open) = self.open.get(&txn) else { return };
        let pause = pause_after(open.losses);
        let mut writes = match &open.shipped {
            Some((writes, _)) => writes.clone(),
            // What was executed here, and lost before it was committed.
            None => open.writes.clone(),
        };
        let are_several = !led.is_empty();
        let others = led.iter().filter_map(|led| self.open.get(led));
        writes.writes.extend(others.flat_map(|open| open.writes.writes.iter().cloned()));
        let (database, pid) = (self.around.database.clone(), open.pid.clone());
        let (watch, done) = (self.watch(txn, &pid), self.done.clone());
        let classifier = self.around.classifier.clone();
        tokio::spawn(async move {
            let applying = async {
                let mut lane = database.lend().await?;
                pid.store(lane.backend.pid, Ordering::Relaxed);
                match database.apply(&mut lane, &writes, &classifier, are_several).await {
                    Err(error @ ApplyError::Together) => {
                        database.give_back(lane);
                        Err(error)
                    }
                    done => done.map(|()| lane),
                }
            };
            let result = watch.over(applying).await;
            if result.is_err() {
                tokio::time::sleep(pause).await;
            }
            let _ = done.send(Done::Applied { txn, result });
        });
    }
}

/// What was done.
impl Site<'_> {
    pub(super) fn on_done(&mut self, done: Done) {
        match done {
            Done::Executed { txn, op, begin, lane, ran } => self.on_executed(txn, op, begin, lane, ran),
            Done::Applied { txn, result } => match result {
                Ok(lane) => {
                    if let Some(open) = self.open.get_mut(&txn) {
                        open.lane = Some(lane);
                    }
                    self.note_applied(txn);
                }
                Err(ApplyError::Lane(error)) if !is_of_transaction(&error) || !self.is_certified() => {
                    self.begin_again(error.to_string());
                }
                // What fails by itself, too, is to be seen to.
                Err(error) if self.leads_others(txn) => {
                    tracing::debug!(%error, "what others wrote is to be applied one by one");
                    self.apply_again(txn, true);
                }
                Err(ApplyError::Lane(error)) => {
                    tracing::debug!(%error, "what others wrote is to be applied again");
                    if self.gives_up(txn) {
                        self.ended = Some(Ended::Stuck(format!(
                            "its server has refused what others wrote {LOSSES_MAX} times: {error}"
                        )));
                    }
                    self.apply_again(txn, true);
                }
                Err(ApplyError::Diverged(why)) => self.ended = Some(Ended::Diverged(why)),
                Err(error) => self.ended = Some(Ended::Stuck(error.to_string())),
            },
            Done::Committed { txn, led, nothing, result: Ok(()) } => {
                self.nothing.retain(|one| !nothing.contains(one));
                for txn in [txn].into_iter().chain(led) {
                    self.on_committed(txn);
                }
                self.commit_next();
            }
            Done::ExecutedInPlace { txn, lane, ran } => self.on_executed_in_place(txn, lane, ran),
            Done::Stepped { txn, lane, ran, answer } => self.on_stepped(txn, lane, ran, answer),
            Done::Blocked { txn, by } => {
                self.on_blocked(txn, &by);
                self.note_held_up(txn);
            }
            Done::Committed { txn, result: Err(error), .. }
                if self.is_certified() && is_of_transaction(&error) =>
            {
                // It has not happened: what it wrote is applied as at other sites.
                tracing::debug!(%error, "a commit was given up");
                self.is_committing = false;
                self.apply_again(txn, true);
            }
            // Whether it has happened only the database knows.
            Done::Committed { result: Err(error), .. } => self.begin_again(error.to_string()),
        }
    }

    /// Elsewhere an update may be begun that cannot be here.
    pub(super) fn cannot_begin(&mut self, why: &str) {
        self.ended = Some(Ended::Stuck(format!(
            "an update cannot be begun here for its role or under its settings ({why}); make the roles and what settings name the same at all sites, and start it again"
        )));
    }

    fn on_committed(&mut self, txn: TxnId) {
        if self.turns.front().is_some_and(|turn| turn.txn == txn) {
            self.turns.pop_front();
            self.is_committing = false;
        }
        let Some(open) = self.open.get(&txn) else { return };
        let (place, is_shipped) = (open.place, open.is_shipped);
        let is_symmetric = matches!(self.around.scheme, Scheme::WideArea(choice) if choice.execution == Execution::Symmetric);
        if open.is_in_place() || is_symmetric && !is_shipped {
            self.outcomes.note(place, open.writes.writes.iter().map(|write| write.rows));
        }
        if open.is_in_place() {
            self.note_in_place();
        }
        self.note_contained(place);
        let replica = self.replica();
        self.feed(match is_shipped {
            true => Event::ShippedApplied { origin: Place::Peer(self.me), txn, replica },
            false => Event::Applied { replica, csn: place },
        });
        // Whoever has its connection next sees what it committed.
        self.disconnect(txn);
    }

    /// Counts that a server has given up a transaction; whether it was too often.
    pub(super) fn gives_up(&mut self, txn: TxnId) -> bool {
        let Some(open) = self.open.get_mut(&txn) else { return false };
        open.losses += 1;
        open.losses > LOSSES_MAX
    }

    pub(super) fn on_executed(
        &mut self,
        txn: TxnId,
        op: OpId,
        begin: Begin,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
    ) {
        let database = self.around.database.clone();
        let counts = self.open.get(&txn).is_some_and(|open| open.op == Some(op));
        let mut answer_now = None;
        let outcome = match ran {
            Ok((ran, writes)) => {
                let (answer, outcome) = match ran {
                    Ran::Done(answer) => (answer, Outcome::Done { returned: Vec::new() }),
                    Ran::Failed(answer) => (answer, Outcome::Failed),
                    Ran::TooLarge if begin == Begin::Query => {
                        (too_large(self.around.held_max, false), Outcome::Failed)
                    }
                    Ran::TooLarge => {
                        (too_large(self.around.held_max, true), Outcome::Done { returned: Vec::new() })
                    }
                    Ran::NotBegun(why) if begin == Begin::Query || self.is_certified() => {
                        let failure = Failure::new(SqlState::INVALID_PARAMETER_VALUE, why);
                        (Answer::of_failure(&failure), Outcome::Failed)
                    }
                    Ran::NotBegun(why) => return self.cannot_begin(&why),
                };
                if begin == Begin::Query {
                    answer_now = Some(answer);
                } else if let Some(open) = self.open.get_mut(&txn).filter(|_| counts) {
                    (open.answer, open.writes) = (answer, writes);
                }
                self.sendable(txn, outcome)
            }
            Err(error) if begin == Begin::Query && (is_of_transaction(&error) || is_frame(&error)) => {
                answer_now = Some(Answer::of_failure(&Failure::of_lane(&error)));
                Outcome::Failed
            }
            Err(error) if is_frame(&error) => {
                if let Some(open) = self.open.get_mut(&txn).filter(|_| counts) {
                    open.answer = too_long_a_row(&error);
                }
                Outcome::Failed
            }
            // A server that has crashed may have forgotten what it had committed last.
            Err(error) if !is_of_transaction(&error) => return self.begin_again(error.to_string()),
            // Who asks not to wait for a lock is not to.
            Err(error) if self.is_certified() && (waits_for_nobody(&error) || self.gives_up(txn)) => {
                if let Some(open) = self.open.get_mut(&txn).filter(|_| counts) {
                    open.answer = Answer::of_failure(&Failure::of_lane(&error));
                }
                Outcome::Failed
            }
            Err(error) if !self.is_certified() && self.gives_up(txn) => {
                self.ended = Some(Ended::Stuck(format!(
                    "its server has given up an update {LOSSES_MAX} times, for a reason that need not hold elsewhere: {error}"
                )));
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "a transaction is to be executed again");
                Outcome::Lost { answer_begun: false }
            }
        };
        let is_lost = matches!(outcome, Outcome::Lost { .. });
        let is_update = begin != Begin::Query;
        match (lane, self.open.get_mut(&txn).filter(|_| counts && !is_lost)) {
            (Some(lane), Some(open)) => {
                open.lane = Some(lane);
                self.connected.insert(txn);
            }
            (lane, _) => {
                if let Some(lane) = lane {
                    tokio::spawn(async move { database.leave(lane).await });
                }
                // Unless it is being executed once more.
                if is_update && self.open.get(&txn).is_none_or(|open| counts || open.op.is_none()) {
                    self.disconnect(txn);
                }
            }
        }
        if let Some(answer) = answer_now {
            self.answer(txn, answer);
        }
        let is_query_done = begin == Begin::Query && !is_lost;
        let replica = self.replica();
        self.feed(Event::Executed { txn, op, replica, outcome, elapsed_ns: 0 });
        if is_query_done {
            self.open.remove(&txn);
        }
        self.give_way();
    }
}

/// What is told of a transaction that may not commit where it stands.
pub(super) fn given_up() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "what the transaction has read or written was changed by another one before it could commit",
    )
    .hint("Run it again.")
}

/// Whether a message was too long to be read.
pub(super) fn is_frame(error: &LaneError) -> bool {
    matches!(error, LaneError::Frame(_))
}

/// Before something is done again that was given up so often.
pub(super) fn pause_after(losses: u32) -> Duration {
    LOST_PAUSE.saturating_mul(1 << losses.min(6)).min(LOST_PAUSE_MAX)
}

/// Whether a lock was not there that was not to be waited for.
fn waits_for_nobody(error: &LaneError) -> bool {
    matches!(error, LaneError::Database(fields) if fields.code == SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether a server has only given up one transaction.
pub(super) fn is_of_transaction(error: &LaneError) -> bool {
    matches!(error, LaneError::Database(fields) if !is_going_away(fields.code))
}

/// It is so everywhere.
pub(super) fn too_long_a_row(error: &LaneError) -> Answer {
    Answer::of_failure(&Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, error.to_string()))
}

pub(super) fn too_large(held_max: usize, is_committed: bool) -> Answer {
    let but = if is_committed { "; it was committed" } else { "" };
    let failure = Failure::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the results of a transaction exceed {held_max} bytes{but}"),
    );
    let failure = failure.hint("Return fewer rows, or raise limits.held_result_bytes_max.");
    Answer { is_over: is_committed, ..Answer::of_failure(&failure) }
}
