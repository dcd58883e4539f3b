//! Eager replication: every lock request, write and commit is done on all replicas before the client is answered.
//!
//! Idea. The comparison that shows what asynchrony is worth: the same sequence numbers, the same table locks, the same
//! writes everywhere as conflict-aware scheduling, but nobody may lag behind. So any replica will do for a read, and
//! the least loaded one is taken.
//!
//! Paper: C. Amza, A. L. Cox, W. Zwaenepoel: Conflict-Aware Scheduling for Dynamic Content Applications (USITS 2003),
//! cited as CAS; section 6.1. What it shares with the paper's other schedulers is in [`crate::scheduling`].
//!
//! Guarantee: 1-copy serializability, as the paper promises. (It is strict in fact: whoever was answered has committed
//! on every replica in service, and until then holds its locks on all of them.)
//!
//! How it differs from the paper: a replica that is catching up takes part in everything, but nobody waits for it; its
//! queues make whatever reads there wait.
//!
//! Invariants: those of the scheduler and the proxy, in their files. A restart is as for every protocol whose
//! [`Position`] is a set: gaps in `onecopy.progress` are filled from the log.

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::{Csn, Instant};
use crate::scheduling::{AnswerAfter, Policy, ReadAt, Scheduling};

use super::{Guarantee, Position, Protocol, Status, Writes};

/// The roles of eager replication.
#[derive(Debug)]
pub struct Eager(Scheduling);

impl Eager {
    /// Its roles for `replicas` servers, all down, whose log ends at `decided`.
    #[must_use]
    pub fn new(replicas: usize, decided: Csn) -> Eager {
        let policy = Policy { answer_after: AnswerAfter::All, read_at: ReadAt::LeastLoaded };
        Eager(Scheduling::new(policy, replicas, decided))
    }
}

impl Protocol for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::OneCopySerializability
    }

    fn position(&self) -> Position {
        Position::Set
    }

    fn writes(&self) -> Writes {
        Writes::Everywhere
    }

    fn place_of(&self, event: &Event) -> Place {
        Scheduling::place_of(event)
    }

    fn handle(&mut self, place: Place, _now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.0.handle(place, event, effects);
    }

    fn status(&self) -> Status {
        self.0.status()
    }
}

#[cfg(test)]
mod tests;
