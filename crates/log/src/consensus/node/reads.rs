//! Floors of reads: a majority is asked whether this node's leader still leads, once for all reads that have gathered meanwhile
//! (step 8 of `docs/protocols/commit-log.md`).

use super::super::effect::{Effect, ReadId};
use super::Node;
use crate::planted::{Bug, planted};
use crate::record::Seq;

#[derive(Default)]
pub(super) struct Reads {
    /// For the next round.
    gathering: Vec<ReadId>,
    round: Option<Round>,
    /// Rounds that a majority has confirmed, and the record that has to be committed here first.
    confirmed: Vec<(Seq, Vec<ReadId>)>,
    rounds: u64,
}

/// Reads about which a majority is asked together.
struct Round {
    context: Vec<u8>,
    reads: Vec<ReadId>,
    ticks: u32,
}

impl Node {
    /// Asks for the floor of a read; [`Effect::ReadConfirmed`] answers, perhaps only under another leader.
    pub fn read(&mut self, read: ReadId, effects: &mut Vec<Effect>) {
        if self.is_stopped {
            return;
        }
        if planted(Bug::ReadWithoutMajority) && self.is_ready {
            effects.push(Effect::ReadConfirmed { read, floor: self.committed.1 });
            return;
        }
        self.reads.gathering.push(read);
        if self.is_open {
            self.work(effects);
        }
    }

    /// Nobody waits for this read any more.
    pub fn forget_read(&mut self, read: ReadId) {
        self.reads.gathering.retain(|other| *other != read);
        if let Some(round) = &mut self.reads.round {
            round.reads.retain(|other| *other != read);
        }
        self.reads.confirmed.iter_mut().for_each(|(_, reads)| reads.retain(|other| *other != read));
    }

    /// Asks a majority about all reads that have gathered, unless a round is under way (step 8).
    pub(super) fn begin_round(&mut self) -> bool {
        let can_ask = if self.leads() { self.is_ready } else { self.raft.raft.leader_id != 0 };
        if self.reads.round.is_some() || self.reads.gathering.is_empty() || !can_ask {
            return false;
        }
        self.reads.rounds += 1;
        let words = [self.config.node.0, self.config.incarnation, self.reads.rounds];
        let context: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let reads = std::mem::take(&mut self.reads.gathering);
        self.raft.read_index(context.clone());
        self.reads.round = Some(Round { context, reads, ticks: 0 });
        true
    }

    /// A round that was not answered, since a message was lost or the leader had no right to, is asked again.
    pub(super) fn tick_round(&mut self) {
        let Some(round) = &mut self.reads.round else { return };
        round.ticks += 1;
        if round.ticks > u32::from(self.config.election_ticks) {
            self.gather_again();
        }
    }

    pub(super) fn gather_again(&mut self) {
        if let Some(round) = self.reads.round.take() {
            self.reads.gathering.extend(round.reads);
        }
    }

    pub(super) fn on_read_state(&mut self, place: Seq, context: &[u8]) {
        if let Some(round) = self.reads.round.take_if(|round| round.context == context) {
            self.reads.confirmed.push((place, round.reads));
        }
    }

    pub(super) fn confirm_reads(&mut self, effects: &mut Vec<Effect>) {
        let (committed, floor) = self.committed;
        self.reads.confirmed.retain_mut(|(place, reads)| {
            if *place <= committed {
                effects.extend(reads.drain(..).map(|read| Effect::ReadConfirmed { read, floor }));
            }
            !reads.is_empty()
        });
    }
}
