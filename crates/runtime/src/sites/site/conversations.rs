//! Transactions whose statements come one by one (protocol = "certified"): they execute here until their clients end them, and then ask for a place.

use std::sync::Arc;

use onecopy_core::{Csn, Event, OpId, Outcome, TxnId};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::oneshot;

use super::work::{given_up, is_of_transaction};
use super::{Ahead, Done, Open, Site, begin_of};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError};
use crate::record::Record;
use crate::sites::database::{Answer, Begin, Ran};
use crate::sites::request::{Asks, Request};
use crate::sites::spoken::{Ask, Beginning, Did, Kept, Name, Said};
use crate::sites::too_long;
use crate::sites::transaction::Transaction;

/// The only execution of one.
const OP: OpId = OpId(0);

/// What is told of one that a site does not know any more, or cannot begin.
pub(super) fn lost() -> Failure {
    Failure::new(
        SqlState::SERIALIZATION_FAILURE,
        "the transaction was given up, since this site had to begin anew from its log",
    )
    .hint("Nothing of it was committed. Run it again.")
}

/// Answers whoever asks while the site cannot do anything.
pub(super) fn refuse(ask: Ask) {
    // Whoever has asked may be gone.
    match ask {
        Ask::Begin(Beginning { begun, .. }) => drop(begun.send(Err(lost()))),
        Ask::Step { answer, .. } => drop(answer.send(Err(lost()))),
        Ask::End { did: None, answer, .. } => drop(answer.send(Answer::default())),
        Ask::End { did: Some(_), answer, .. } => drop(answer.send(Answer::of_failure(&lost()))),
    }
}

impl Site<'_> {
    pub(super) fn on_spoken(&mut self, ask: Ask) {
        match ask {
            Ask::Begin(beginning) if beginning.not_before > self.floor => {
                self.ahead.entry(beginning.not_before).or_default().push(Ahead::Begins(beginning));
            }
            Ask::Begin(beginning) => self.on_beginning(beginning),
            Ask::Step { name, .. } | Ask::End { name, .. } if name.beginning != self.around.beginnings => {
                refuse(ask);
            }
            Ask::Step { name, statement, answer } => self.step(name.txn, statement, answer),
            Ask::End { name, did, answer } => self.end(name.txn, did, answer),
        }
    }

    pub(super) fn on_beginning(&mut self, Beginning { read_only, begun, .. }: Beginning) {
        let txn = self.new_txn();
        let open = Open::new(Arc::new(Transaction::to_apply(Record::default())), true, None, None);
        let kept = Kept { read_only, begun: Some(begun), is_doomed: false };
        self.open.insert(txn, Open { kept: Some(kept), ..open });
        self.feed(Event::Begin(begin_of(txn, read_only)));
    }

    /// There is a connection for it now.
    pub(super) fn has_begun(&mut self, txn: TxnId) {
        let name = Name { beginning: self.around.beginnings, txn };
        let begun = self.open.get_mut(&txn).and_then(|open| open.kept.as_mut()?.begun.take());
        if begun.is_some_and(|begun| begun.send(Ok(name)).is_err()) {
            // Its client did not wait.
            self.report(txn, Outcome::Failed);
        }
    }

    fn report(&mut self, txn: TxnId, outcome: Outcome) {
        let replica = self.replica();
        self.feed(Event::Executed { txn, op: OP, replica, outcome, elapsed_ns: 0 });
    }

    fn step(&mut self, txn: TxnId, statement: Arc<Transaction>, answer: oneshot::Sender<Said>) {
        let Some(Open { lane, pid, kept: Some(kept), .. }) = self.open.get_mut(&txn) else {
            // Whoever has asked may be gone.
            return drop(answer.send(Err(given_up())));
        };
        let (lane, pid, read_only) = (lane.take(), pid.clone(), kept.read_only);
        let checks_at_once = self.around.classifier.has_deferrable();
        let begin = Begin::Certified { read_only, checks_at_once };
        let (database, done) = (self.around.database.clone(), self.done.clone());
        let held_max = self.around.held_max;
        tokio::spawn(async move {
            let (lane, ran) = database.execute(lane, &pid, &statement, begin, held_max).await;
            // Nobody listens any more where the site has begun anew.
            let _ = done.send(Done::Stepped { txn, lane, ran, answer });
        });
    }

    pub(super) fn on_stepped(
        &mut self,
        txn: TxnId,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
        answer: oneshot::Sender<Said>,
    ) {
        let is_lost = match &ran {
            Err(error) if !is_of_transaction(error) && !matches!(error, LaneError::Frame(_)) => {
                self.begin_again(error.to_string());
                return drop(answer.send(Err(lost())));
            }
            _ => lane.is_none(),
        };
        let said = ran.map_err(|error| Failure::of_lane(&error));
        let Some(open) = self.open.get_mut(&txn) else {
            if let Some(lane) = lane {
                let database = self.around.database.clone();
                tokio::spawn(async move { database.leave(lane).await });
            }
            return drop(answer.send(Err(given_up())));
        };
        open.lane = lane;
        let is_doomed = open.kept.as_ref().is_some_and(|kept| kept.is_doomed);
        // Whoever has asked may be gone.
        drop(answer.send(if is_doomed { Err(given_up()) } else { said }));
        if is_doomed || is_lost {
            self.leave(txn);
            let replica = self.replica();
            self.feed(Event::HomeLost { txn, replica });
        }
    }

    fn end(&mut self, txn: TxnId, did: Option<Box<Did>>, answer: oneshot::Sender<Answer>) {
        let Some(open) = self.open.get_mut(&txn).filter(|open| open.kept.is_some()) else {
            return match did {
                None => drop(answer.send(Answer::default())),
                Some(_) => drop(answer.send(Answer::of_failure(&given_up()))),
            };
        };
        match did {
            None => {
                drop(answer.send(Answer::default()));
                self.report(txn, Outcome::Failed);
            }
            Some(did) => {
                let (access, writes) = *did;
                (open.client, open.writes) = (Some(answer), writes);
                let outcome = self.sendable(txn, Outcome::Done { returned: access.to_vec() });
                self.report(txn, outcome);
            }
        }
    }

    /// What is reported of an update that has executed here: it fails if it is too long for the other sites.
    pub(super) fn sendable(&mut self, txn: TxnId, outcome: Outcome) -> Outcome {
        let is_certified = self.is_certified();
        let open = self.open.get_mut(&txn).filter(|open| is_certified && open.is_update);
        let (Some(open), Outcome::Done { returned }) = (open, &outcome) else { return outcome };
        let access = open.transaction.access.iter().chain(returned).cloned().collect();
        let request = Request { asks: Asks::Verdict { snapshot: Csn(0), op: OP }, access };
        match too_long(&request.encode(&open.writes), 0) {
            None => outcome,
            Some(failure) => {
                open.answer = Answer::of_failure(&failure);
                Outcome::Failed
            }
        }
    }
}
