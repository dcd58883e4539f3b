//! The sequencer, and the one that follows it (5.2).
//!
//! Its successor starts behind the last number that any scheduler knows. No proxy can know a later one: a scheduler uses a number
//! only when all others have recorded it. Numbers before that and known to nobody were on their way; they are made void, when all
//! schedulers know how far numbers have been given, and whoever waits asks again.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Place;
use crate::ids::{Epoch, NodeId, SequenceNumber};

use super::{Message, Output, send, send_to_all};

/// Invariant: every number is given once, one after the other, over all epochs.
#[derive(Debug)]
pub struct Sequencer {
    epoch: Epoch,
    last: SequenceNumber,
    /// Whose the numbers are that are not over.
    given: BTreeMap<SequenceNumber, NodeId>,
    /// Those of its predecessors that are nobody's. Who takes over hears of them, too: those that were told may have failed.
    void: BTreeSet<SequenceNumber>,
    /// Numbers that nobody knows are among those that the answers leave out.
    awaiting_known: Option<AwaitingKnown>,
    awaiting_recorded: Option<AwaitingRecorded>,
    failed: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct AwaitingKnown {
    schedulers: BTreeSet<NodeId>,
    missing: BTreeSet<NodeId>,
    floor: SequenceNumber,
    last: SequenceNumber,
}

/// Who is to know how far numbers were given, before any of those that are nobody's is made void.
#[derive(Debug)]
struct AwaitingRecorded {
    schedulers: BTreeSet<NodeId>,
    missing: BTreeSet<NodeId>,
}

impl Default for Sequencer {
    /// The first one.
    fn default() -> Sequencer {
        Sequencer {
            epoch: Epoch(1),
            last: SequenceNumber(0),
            given: BTreeMap::new(),
            void: BTreeSet::new(),
            awaiting_known: None,
            awaiting_recorded: None,
            failed: BTreeSet::new(),
        }
    }
}

impl Sequencer {
    /// The successor of one that failed, with a later epoch than that.
    #[must_use]
    pub fn successor(
        epoch: Epoch,
        schedulers: impl IntoIterator<Item = NodeId>,
        outputs: &mut Vec<Output>,
    ) -> Sequencer {
        let mut sequencer = Sequencer { epoch, ..Sequencer::default() };
        sequencer.ask(schedulers.into_iter().collect(), outputs);
        sequencer
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn ask(&mut self, schedulers: BTreeSet<NodeId>, outputs: &mut Vec<Output>) {
        send_to_all(&schedulers, &Message::KnownRequest { epoch: self.epoch }, outputs);
        self.given.clear();
        self.void.clear();
        let missing = schedulers.clone();
        let none = SequenceNumber(0);
        self.awaiting_known = Some(AwaitingKnown { schedulers, missing, floor: none, last: none });
    }

    /// A scheduler has said something.
    pub fn handle(&mut self, from: NodeId, message: Message, outputs: &mut Vec<Output>) {
        if self.failed.contains(&from) {
            return;
        }
        match message {
            Message::Known { epoch, floor, last, numbers } if epoch == self.epoch => {
                self.given.extend(numbers);
                self.on_known(from, floor, last, outputs);
            }
            // Whoever asks while it is not known which numbers are free asks again when it is.
            _ if self.awaiting_known.is_some() => {}
            Message::EpochRecorded { epoch } if epoch == self.epoch => self.recorded(from, outputs),
            Message::NumberRequest { txn, epoch, floor } if epoch == self.epoch => {
                self.given = self.given.split_off(&floor.next());
                self.void = self.void.split_off(&floor.next());
                self.last = self.last.next();
                self.given.insert(self.last, from);
                let number = Message::Number { txn, number: self.last, epoch: self.epoch };
                send(Place::Scheduler(from), number, outputs);
            }
            Message::TakeOver { round, failed } => {
                self.failed.extend(failed.iter().copied());
                let given = self.given.iter().filter(|(_, node)| failed.contains(node));
                let numbers = given.map(|(number, _)| *number).chain(self.void.iter().copied()).collect();
                send(Place::Scheduler(from), Message::Given { epoch: self.epoch, round, numbers }, outputs);
            }
            _ => {}
        }
    }

    fn on_known(
        &mut self,
        from: NodeId,
        floor: SequenceNumber,
        last: SequenceNumber,
        outputs: &mut Vec<Output>,
    ) {
        let Some(awaiting) = &mut self.awaiting_known else { return };
        awaiting.missing.remove(&from);
        awaiting.floor = awaiting.floor.max(floor);
        awaiting.last = awaiting.last.max(last);
        if !awaiting.missing.is_empty() {
            return;
        }
        self.last = awaiting.last.max(awaiting.floor);
        let beyond = (awaiting.floor.0 + 1..=self.last.0).map(SequenceNumber);
        self.void = beyond.filter(|number| !self.given.contains_key(number)).collect();
        let schedulers = std::mem::take(&mut awaiting.schedulers);
        self.awaiting_known = None;
        send_to_all(&schedulers, &Message::NewEpoch { epoch: self.epoch, last: self.last }, outputs);
        self.awaiting_recorded = Some(AwaitingRecorded { missing: schedulers.clone(), schedulers });
    }

    fn recorded(&mut self, by: NodeId, outputs: &mut Vec<Output>) {
        let Some(awaiting) = &mut self.awaiting_recorded else { return };
        awaiting.missing.remove(&by);
        if awaiting.missing.is_empty() {
            let numbers = self.void.iter().copied().collect();
            let void = Message::Void { epoch: self.epoch, numbers };
            send_to_all(&awaiting.schedulers, &void, outputs);
            self.awaiting_recorded = None;
        }
    }

    /// A scheduler has failed. If it had not answered, the others may have heard of a number of its after they did: they are
    /// asked again, now that they hear nothing of it any more.
    pub fn scheduler_failed(&mut self, node: NodeId, outputs: &mut Vec<Output>) {
        self.failed.insert(node);
        if let Some(awaiting) = self.awaiting_known.take() {
            let mut schedulers = awaiting.schedulers;
            schedulers.remove(&node);
            self.epoch = Epoch(self.epoch.0 + 1);
            self.ask(schedulers, outputs);
        }
        if let Some(awaiting) = &mut self.awaiting_recorded {
            awaiting.schedulers.remove(&node);
            self.recorded(node, outputs);
        }
    }

    /// A scheduler is new. It is told when numbers are given.
    pub fn scheduler_joined(&mut self, node: NodeId, outputs: &mut Vec<Output>) {
        match &mut self.awaiting_known {
            Some(awaiting) => {
                awaiting.schedulers.insert(node);
            }
            None => {
                let new_epoch = Message::NewEpoch { epoch: self.epoch, last: self.last };
                send(Place::Scheduler(node), new_epoch, outputs);
            }
        }
    }
}
