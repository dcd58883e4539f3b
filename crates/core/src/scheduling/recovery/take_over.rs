//! A scheduler finishes what others have begun that failed (5.3.1). The one with the lowest name does; if another one fails
//! meanwhile, it begins anew, for all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Place;
use crate::ids::{NodeId, SequenceNumber};

use super::{End, Message, Output, Scheduler, send, send_to_all};

#[derive(Debug)]
pub(super) struct TakingOver {
    round: usize,
    state: State,
}

#[derive(Debug)]
#[allow(clippy::enum_variant_names, reason = "states are named by what they wait for")]
enum State {
    /// What others know of their transactions.
    AwaitingRecords {
        peers: BTreeSet<NodeId>,
        sequencer: bool,
        ends: BTreeMap<SequenceNumber, Option<End>>,
    },
    /// That others know how they end.
    AwaitingOutcomes {
        peers: BTreeSet<NodeId>,
        numbers: BTreeSet<SequenceNumber>,
    },
    AwaitingDisk {
        committed: BTreeSet<SequenceNumber>,
    },
}

impl Scheduler {
    pub(super) fn take_over(&mut self, outputs: &mut Vec<Output>) {
        let round = self.failed.len();
        let failed: Vec<NodeId> = self.failed.iter().copied().collect();
        let theirs = self.records.iter().filter(|(_, record)| failed.contains(&record.coordinator));
        let ends = theirs.map(|(number, record)| (*number, record.end.clone()));
        // Also what it has taken over already, and was not through with.
        let again = self.unfinished().into_iter().filter_map(|number| {
            let record = self.records.get(&number)?;
            Some((number, record.end.clone()))
        });
        let ends = ends.chain(again).collect();
        let peers = self.peers.clone();
        self.taking_over =
            Some(TakingOver { round, state: State::AwaitingRecords { peers, sequencer: true, ends } });
        send_to_all(&self.peers, &Message::TakeOver { round, failed: failed.clone() }, outputs);
        send(Place::Sequencer, Message::TakeOver { round, failed }, outputs);
    }

    fn unfinished(&self) -> BTreeSet<SequenceNumber> {
        match self.taking_over.as_ref().map(|taking| &taking.state) {
            Some(State::AwaitingRecords { ends, .. }) => ends.keys().copied().collect(),
            Some(State::AwaitingOutcomes { numbers, .. } | State::AwaitingDisk { committed: numbers }) => {
                numbers.clone()
            }
            None => BTreeSet::new(),
        }
    }

    /// There is a new sequencer; the former one may not have answered.
    pub(super) fn ask_sequencer_again(&self, outputs: &mut Vec<Output>) {
        if let Some(TakingOver { round, state: State::AwaitingRecords { sequencer: true, .. } }) =
            &self.taking_over
        {
            let failed = self.failed.iter().copied().collect();
            send(Place::Sequencer, Message::TakeOver { round: *round, failed }, outputs);
        }
    }

    pub(super) fn on_given(
        &mut self,
        of_round: usize,
        numbers: Vec<SequenceNumber>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(TakingOver { round, state: State::AwaitingRecords { sequencer, ends, .. } }) =
            &mut self.taking_over
        else {
            return;
        };
        if of_round == *round {
            *sequencer = false;
            for number in numbers {
                self.last = self.last.max(number);
                // It may have been taken over before.
                let record = self.records.get(&number);
                ends.entry(number).or_insert_with(|| record.and_then(|record| record.end.clone()));
            }
            self.settle(outputs);
        }
    }

    pub(super) fn on_held(
        &mut self,
        from: NodeId,
        of_round: usize,
        records: Vec<(SequenceNumber, Option<End>)>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(TakingOver { round, state: State::AwaitingRecords { peers, ends, .. } }) =
            &mut self.taking_over
        else {
            return;
        };
        if of_round == *round {
            peers.remove(&from);
            for (number, end) in records {
                let known = ends.entry(number).or_insert(None);
                *known = known.take().or(end);
            }
            self.settle(outputs);
        }
    }

    /// When all is known: what anybody has a decision of is finished, all else never was. The others are told first (open 4).
    fn settle(&mut self, outputs: &mut Vec<Output>) {
        let Some(TakingOver { round, state: State::AwaitingRecords { peers, sequencer, ends } }) =
            &mut self.taking_over
        else {
            return;
        };
        if *sequencer || !peers.is_empty() {
            return;
        }
        let round = *round;
        let ends: Vec<_> = std::mem::take(ends)
            .into_iter()
            .map(|(number, end)| (number, end.unwrap_or(End::Aborted)))
            .filter(|(number, _)| *number > self.floor)
            .collect();
        for (number, end) in &ends {
            self.record(*number, self.node, Some(end.clone()));
        }
        let numbers = ends.iter().map(|(number, _)| *number).collect();
        let state = State::AwaitingOutcomes { peers: self.peers.clone(), numbers };
        self.taking_over = Some(TakingOver { round, state });
        send_to_all(&self.peers, &Message::Outcome { round, ends }, outputs);
        self.on_outcome_recorded(self.node, round, outputs);
    }

    pub(super) fn on_outcome_recorded(&mut self, from: NodeId, of_round: usize, outputs: &mut Vec<Output>) {
        let Some(TakingOver { round, state: State::AwaitingOutcomes { peers, numbers } }) =
            &mut self.taking_over
        else {
            return;
        };
        if of_round != *round {
            return;
        }
        peers.remove(&from);
        if !peers.is_empty() {
            return;
        }
        let mut committed = BTreeSet::new();
        for number in std::mem::take(numbers) {
            match self.records.get(&number).and_then(|record| record.end.clone()) {
                Some(End::Committed { writes, .. }) => {
                    committed.insert(number);
                    outputs.push(Output::Log { number, writes });
                }
                Some(End::Aborted) => self.tell_decided(number, outputs),
                // Every database has had it in its checkpoint meanwhile.
                None => {}
            }
        }
        self.taking_over = Some(TakingOver { round: of_round, state: State::AwaitingDisk { committed } });
        self.finish_take_over(outputs);
    }

    pub(super) fn taken_over_logged(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        let Some(TakingOver { state: State::AwaitingDisk { committed }, .. }) = &mut self.taking_over else {
            return;
        };
        if committed.remove(&number) {
            self.tell_decided(number, outputs);
            self.finish_take_over(outputs);
        }
    }

    fn tell_decided(&mut self, number: SequenceNumber, outputs: &mut Vec<Output>) {
        self.decide(number);
        send_to_all(&self.peers, &Message::Decided { number }, outputs);
    }

    /// Proxies are asked last: what they say is then all that they will have of those that failed.
    fn finish_take_over(&mut self, outputs: &mut Vec<Output>) {
        if matches!(&self.taking_over, Some(TakingOver { state: State::AwaitingDisk { committed }, .. }) if committed.is_empty())
        {
            self.taking_over = None;
            self.tell_proxies(&Message::StandingRequest, outputs);
        }
    }
}
