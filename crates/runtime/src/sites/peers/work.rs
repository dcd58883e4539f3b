//! What a peer's core wants done, and what came of it.

use std::sync::atomic::Ordering;

use onecopy_core::peers::Message as Written;
use onecopy_core::peers::parts::Division;
use onecopy_core::{Access, Csn, Effect, Event, How, Message, NodeId, OpId, Outcome, Place, TxnId};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::mpsc;

use super::afar::Elsewhere;
use super::{Done, LOSSES_MAX, LOST_PAUSE, Peer, Waiting};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError};
use crate::record::Record;
use crate::sites::database::{self, Answer, ApplyError, Begin, Ran};
use crate::sites::too_long;

/// What the core wants done.
impl Peer {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Execute { txn, how, .. } => self.execute(txn, how),
            Effect::CommitAt { txn, csn, .. } => self.wait(Waiting::Commit(txn, csn)),
            Effect::ApplyShipped { origin: Place::Peer(from), txn, .. } => {
                self.wait(Waiting::Apply(from, txn))
            }
            Effect::PassOver { origin: Place::Peer(from), txn, .. } => {
                self.written.remove(&(from, txn));
                self.passed_over.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Acknowledge { txn, .. } | Effect::Release { txn, .. } => {
                let answer = self.open.get(&txn).map(|open| open.answer.clone());
                self.answer(txn, answer.unwrap_or_default());
            }
            Effect::Leave { txn, .. } => {
                if let Some(lane) = self.open.get_mut(&txn).and_then(|open| open.lane.take()) {
                    let database = self.shared.database.clone();
                    tokio::spawn(async move { database.leave(lane).await });
                }
            }
            Effect::Send { to: Place::Peer(to), message } => self.say(to, &message, None),
            Effect::Ship { txn, to: Place::Peer(to), mut message } => {
                let writes = self.open.get(&txn).map(|open| open.writes.clone()).unwrap_or_default();
                if let Message::Peers(Written::Update { change, .. }) = &mut message {
                    // What has found no row hides nothing.
                    change.take_if(|_| writes.writes.iter().any(|write| write.rows != Some(1)));
                }
                self.say(to, &message, Some(&writes));
            }
            Effect::Refuse { txn, .. } => {
                let failure = Failure::new(SqlState::SERIALIZATION_FAILURE, "the transaction was given up");
                self.answer(txn, Answer::of_failure(&failure.hint("Run it again.")));
            }
            Effect::Forget { txn } => drop(self.open.remove(&txn)),
            Effect::Finish { .. } => {}
            other => tracing::debug!(?other, "nothing to be done at a peer"),
        }
    }

    fn execute(&mut self, txn: TxnId, how: How) {
        let writes = matches!(how, How::Home { .. });
        let Some(open) = self.open.get(&txn) else { return };
        if open.wanted.is_some() {
            return self.cross(txn, writes);
        }
        let held_max = self.held_max(open);
        let transaction = open.transaction.clone();
        let (database, done) = (self.shared.database.clone(), self.done.clone());
        let is_divided =
            |access: &Access| self.parts.divisions.get(access.item.table) == Some(&Division::Clients);
        let checks_at_once = self.shared.classifier.has_deferrable();
        let begin = match writes {
            // Nobody is asked about these, so the server sees to it.
            _ if transaction.access.iter().any(is_divided) => Begin::Serializable { writes },
            // What it only reads may change, and is to be of one moment.
            true if self.parts.divisions.writes_parts_only(&transaction.access) => {
                Begin::Certified { read_only: false, checks_at_once }
            }
            true => Begin::Update { checks_at_once },
            false => Begin::Query,
        };
        let has_snapshot = !writes || matches!(begin, Begin::Certified { .. });
        let turn = has_snapshot.then(|| self.next_opening());
        tokio::spawn(async move {
            let opened = |done: &mpsc::UnboundedSender<Done>| {
                if let Some(turn) = turn {
                    // Nobody listens any more where the peer has ended.
                    let _ = done.send(Done::Opened { turn });
                }
            };
            let (lane, ran) = match database.lend().await {
                Ok(mut lane) => {
                    let begun = match turn {
                        Some(_) => database::open_snapshot(&mut lane, &transaction.record, begin).await,
                        None => Ok(()),
                    };
                    opened(&done);
                    let ran = match (begun, turn) {
                        (Err(error), _) => Err(error),
                        (Ok(()), Some(_)) => database::go_on(&mut lane, &transaction, held_max).await,
                        (Ok(()), None) => database::run(&mut lane, &transaction, begin, held_max).await,
                    };
                    let is_well = ran.as_ref().err().is_none_or(LaneError::is_database);
                    (is_well.then_some(lane), ran)
                }
                Err(error) => {
                    opened(&done);
                    (None, Err(error))
                }
            };
            if ran.is_err() {
                tokio::time::sleep(LOST_PAUSE).await;
            }
            let lane = lane.map(Box::new);
            let _ = done.send(Done::Executed { txn, lane, ran, elsewhere: Elsewhere::default() });
        });
    }

    /// The turn of a read that takes its snapshot now.
    pub(super) fn next_opening(&mut self) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.opening.insert(turn);
        turn
    }

    fn wait(&mut self, what: Waiting) {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.waiting.push_back((turn, what));
        self.go_on();
    }

    /// Commits what no read has to be opened before.
    pub(super) fn go_on(&mut self) {
        while let Some((turn, _)) = self.waiting.front()
            && self.opening.first().is_none_or(|opening| opening > turn)
            && let Some((_, what)) = self.waiting.pop_front()
        {
            match what {
                Waiting::Commit(txn, csn) => self.commit(txn, csn),
                Waiting::Apply(from, txn) => {
                    self.to_apply.push_back((from, txn));
                    self.apply_next();
                }
            }
        }
    }

    fn commit(&mut self, txn: TxnId, csn: Csn) {
        if !self.prepares_elsewhere(txn, csn) {
            self.commit_here(txn, csn);
        }
    }

    pub(super) fn commit_here(&mut self, txn: TxnId, csn: Csn) {
        let Some(lane) = self.open.get_mut(&txn).and_then(|open| open.lane.take()) else {
            return self.end("the connection on which a transaction was open is lost");
        };
        let (database, done) = (self.shared.database.clone(), self.done.clone());
        tokio::spawn(async move {
            let result = database.commit_durably(lane).await;
            let _ = done.send(Done::Committed { txn, csn, result });
        });
    }

    /// Applies as much at once as there are connections for; where nobody has put it in an order, one after the other.
    fn apply_next(&mut self) {
        let at_once = if self.core.name() == "weak" { 1 } else { self.applies_max };
        while self.applying < at_once
            && let Some((from, txn)) = self.to_apply.pop_front()
        {
            self.applying += 1;
            self.apply(from, txn);
        }
    }

    fn apply(&mut self, from: NodeId, txn: TxnId) {
        let Some(writes) = self.written.get(&(from, txn)).cloned() else {
            return self.end("what another peer has written has not come with its message");
        };
        let (shared, done) = (self.shared.clone(), self.done.clone());
        tokio::spawn(async move {
            let database = &shared.database;
            let applying = async {
                let mut lane = database.lend().await?;
                match database.apply(&mut lane, &writes, &shared.classifier, false).await {
                    Ok(()) => Ok(database.commit_durably(lane).await?),
                    // What was still to be sent on it is not known.
                    Err(ApplyError::Lane(error)) if !error.is_database() => Err(error.into()),
                    Err(error) => {
                        database.leave(lane).await;
                        Err(error)
                    }
                }
            };
            let result: Result<(), ApplyError> = applying.await;
            if result.is_err() {
                tokio::time::sleep(LOST_PAUSE).await;
            }
            let _ = done.send(Done::Applied { from, txn, result });
        });
    }
}

/// What was done.
impl Peer {
    pub(super) fn on_done(&mut self, done: Done) {
        match done {
            Done::Opened { turn } => {
                self.opening.remove(&turn);
                self.go_on();
            }
            Done::Executed { txn, lane, ran, elsewhere } => {
                if let Some(open) = self.open.get_mut(&txn) {
                    open.elsewhere = elsewhere;
                }
                self.on_executed(txn, lane.map(|lane| *lane), ran);
            }
            Done::Afar(done) => self.on_done_afar(done),
            Done::Committed { txn, csn, result: Ok(()) } => {
                if !self.finishes_elsewhere(txn) {
                    let replica = self.replica();
                    self.feed(Event::Applied { replica, csn });
                }
            }
            Done::Committed { txn, result: Err(error), .. } => {
                self.end(format!("whether {txn} was committed is not known: {error}"));
            }
            Done::Applied { from, txn, result } => self.on_applied(from, txn, result),
        }
    }

    fn on_applied(&mut self, from: NodeId, txn: TxnId, result: Result<(), ApplyError>) {
        match result {
            Ok(()) => {}
            Err(ApplyError::Lane(LaneError::Shortage(_))) => return self.apply(from, txn),
            Err(ApplyError::Lane(error)) if error.is_database() && self.gives_up(from, txn, &error) => {
                return self.end(format!("what another peer has written cannot be applied: {error}"));
            }
            Err(ApplyError::Lane(error)) if error.is_database() => return self.apply(from, txn),
            // It promises nothing else.
            Err(error) if self.core.name() == "weak" => {
                tracing::debug!(%error, "what another peer has written is left out");
            }
            Err(error) => return self.end(error.to_string()),
        }
        self.written.remove(&(from, txn));
        self.retries.remove(&(from, txn));
        self.applying -= 1;
        self.apply_next();
        let replica = self.replica();
        self.feed(Event::ShippedApplied { origin: Place::Peer(from), txn, replica });
    }

    fn gives_up(&mut self, from: NodeId, txn: TxnId, error: &LaneError) -> bool {
        // Of resources there may be more later.
        if matches!(error, LaneError::Database(fields) if fields.code.as_str().starts_with("53")) {
            return false;
        }
        let retries = self.retries.entry((from, txn)).or_default();
        *retries += 1;
        *retries > LOSSES_MAX
    }

    fn on_executed(&mut self, txn: TxnId, lane: Option<Lane>, ran: Result<(Ran, Record), LaneError>) {
        let database = self.shared.database.clone();
        let Some(open) = self.open.get_mut(&txn) else {
            drop(lane.map(|lane| tokio::spawn(async move { database.leave(lane).await })));
            return;
        };
        let is_update = open.transaction.is_update();
        let versions_len = Peer::versions_len(&self.granules, &open.transaction.access);
        let outcome = match ran {
            Ok((Ran::Done(answer), writes)) => {
                let is_told = is_update && !self.parts.divisions.writes_parts_only(&open.transaction.access);
                let failure = match is_told {
                    true => too_long(&writes.encode(), versions_len),
                    false => None,
                };
                (open.answer, open.writes) = (answer, writes);
                match failure {
                    // With the values that it has found it is too long for the others.
                    Some(failure) => {
                        open.answer = Answer::of_failure(&failure);
                        Outcome::Failed
                    }
                    None => Outcome::Done { returned: Vec::new() },
                }
            }
            Ok((Ran::Failed(answer), _)) => {
                open.answer = answer;
                Outcome::Failed
            }
            Ok((Ran::TooLarge, _)) => {
                let hint = match open.is_forwarded {
                    true => "Return fewer rows, or ask the peer that has them.",
                    false => "Return fewer rows, or raise limits.held_result_bytes_max.",
                };
                let what = "the results of a transaction are too long to be held";
                let failure = Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, what);
                open.answer = Answer::of_failure(&failure.hint(hint));
                Outcome::Failed
            }
            Ok((Ran::NotBegun(why), _)) => {
                open.answer = Answer::of_failure(&Failure::new(SqlState::INVALID_PARAMETER_VALUE, why));
                Outcome::Failed
            }
            Err(error @ LaneError::Frame(_)) => {
                open.answer =
                    Answer::of_failure(&Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, error.to_string()));
                Outcome::Failed
            }
            Err(LaneError::Shortage(error)) => {
                tracing::warn!(%error, "open another connection; trying again");
                Outcome::Lost { answer_begun: false }
            }
            Err(error) if !error.is_database() => {
                return self.end(format!("its server is lost: {error}"));
            }
            Err(error) => {
                open.losses += 1;
                if open.losses > LOSSES_MAX {
                    open.answer = Answer::of_failure(&Failure::of_lane(&error));
                    Outcome::Failed
                } else {
                    Outcome::Lost { answer_begun: false }
                }
            }
        };
        let keeps = is_update && !matches!(outcome, Outcome::Lost { .. });
        match lane {
            Some(lane) if keeps => open.lane = Some(lane),
            Some(lane) => drop(tokio::spawn(async move { database.leave(lane).await })),
            None => {}
        }
        if !is_update && !matches!(outcome, Outcome::Lost { .. }) {
            let answer = open.answer.clone();
            self.answer(txn, answer);
        }
        let replica = self.replica();
        self.feed(Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 0 });
    }
}
