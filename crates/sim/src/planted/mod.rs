//! Bugs to plant: a simulator that never caught one proves nothing. Each is wrapped around the unchanged protocol and
//! alters what it hears or orders; for each promise there is one that breaks it.

mod bugs;

use onecopy_core::commit_order::Tuning;
use onecopy_core::protocol::onecopy::Onecopy;
use onecopy_core::protocol::{Guarantee, Position, Protocol, Status, Writes};
use onecopy_core::{Csn, Effect, Event, Instant, Place};

pub use bugs::*;

/// A bug that can be asked for by its name.
#[derive(Clone, Copy, Debug)]
pub struct Planting {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is wrong, in a few words.
    pub what: &'static str,
    /// Makes the protocol with the bug in it.
    pub make: fn(usize, Csn, Tuning) -> Box<dyn Protocol>,
    /// One of these kinds of [`crate::Failure`] has to show it.
    pub found_as: &'static [&'static str],
}

/// All of them.
pub const BUGS: [Planting; 20] = [
    Planting {
        name: "commit-order-skipped",
        what: "a replica commits the first decision of some runs after the others",
        make: plant::<CommitOrderSkipped>,
        found_as: &["commit out of order"],
    },
    Planting {
        name: "copy-believed-further",
        what: "a copy is believed to contain one commit more than it does",
        make: plant::<CopyBelievedFurther>,
        found_as: &["commit out of order"],
    },
    Planting {
        name: "read-too-early",
        what: "single reads run where the newest commit is missing",
        make: plant::<ReadTooEarly>,
        found_as: &["anomaly", "order broken"],
    },
    Planting {
        name: "conflict-missed",
        what: "one update in four forgets an item",
        make: plant::<ConflictMissed>,
        found_as: &["anomaly", "order broken", "apply blocked", "disagreement"],
    },
    Planting {
        name: "columns-confused",
        what: "reads name a column that nobody changes",
        make: plant::<ColumnsConfused>,
        found_as: &["anomaly", "order broken"],
    },
    Planting {
        name: "conflicts-missed",
        what: "updates hold nothing",
        make: plant::<ConflictsMissed>,
        found_as: &["deadlock in a database"],
    },
    Planting {
        name: "acknowledged-before-durable",
        what: "clients hear of a commit before it is durable",
        make: plant::<AcknowledgedBeforeDurable>,
        found_as: &["acknowledged early", "commit lost"],
    },
    Planting {
        name: "told-before-durable",
        what: "replicas hear of a commit before it is durable",
        make: plant::<ToldBeforeDurable>,
        found_as: &["replica ahead of the log"],
    },
    Planting {
        name: "home-too-early",
        what: "a home executes before it contains what its statement must see",
        make: plant::<HomeTooEarly>,
        found_as: &["anomaly", "order broken", "apply blocked"],
    },
    Planting {
        name: "revalidation-skipped",
        what: "reads that may have changed are not run again",
        make: plant::<RevalidationSkipped>,
        found_as: &["anomaly", "order broken"],
    },
    Planting {
        name: "snapshot-moved-unchecked",
        what: "a snapshot is exchanged without running its reads again",
        make: plant::<SnapshotMovedUnchecked>,
        found_as: &["anomaly", "order broken"],
    },
    Planting {
        name: "apply-skipped",
        what: "a decision is not applied, and said to be",
        make: plant::<ApplySkipped>,
        found_as: &["commit out of order", "replica differs"],
    },
    Planting {
        name: "apply-twice",
        what: "every run of decisions is ordered twice",
        make: plant::<ApplyTwice>,
        found_as: &["order senseless", "commit out of order"],
    },
    Planting {
        name: "leave-lost",
        what: "a transaction is not ended where it is left",
        make: plant::<LeaveLost>,
        found_as: &["lane leaked"],
    },
    Planting {
        name: "execute-lost",
        what: "a statement is never executed",
        make: plant::<ExecuteLost>,
        found_as: &["stuck"],
    },
    Planting {
        name: "rollback-lost",
        what: "the core does not hear of some rollbacks",
        make: plant::<RollbackLost>,
        found_as: &["core leaked"],
    },
    Planting {
        name: "same-value",
        what: "a sequence gives every transaction the same value",
        make: plant::<SameValue>,
        found_as: &["value given twice"],
    },
    Planting {
        name: "shown-forgotten",
        what: "rows that only an answer shows are not held",
        make: plant::<ShownForgotten>,
        found_as: &["anomaly", "order broken"],
    },
    Planting {
        name: "losses-forgotten",
        what: "a read that was lost with its replica runs on the next one, however many it has brought down",
        make: plant::<LossesForgotten>,
        found_as: &["servers brought down"],
    },
    Planting {
        name: "waits-unheard",
        what: "nobody hears who waits for whom within servers",
        make: plant::<WaitsUnheard>,
        found_as: &["stuck"],
    },
];

impl Planting {
    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Planting> {
        const ALL: &[Planting] = &BUGS;
        ALL.iter().find(|bug| bug.name == name)
    }
}

/// Alters what a protocol hears and orders.
pub trait Bug: Send {
    /// Hands on an event, or not, or another, and does the same with the orders that come of it.
    fn handle(&mut self, inner: &mut Inner<'_>, event: Event, effects: &mut Vec<Effect>);
}

/// The unchanged protocol, at one instant.
pub struct Inner<'a> {
    protocol: &'a mut dyn Protocol,
    place: Place,
    now: Instant,
}

impl Inner<'_> {
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.protocol.handle(self.place, self.now, event, &mut effects);
        effects
    }
}

struct Planted {
    protocol: Onecopy,
    bug: Box<dyn Bug>,
}

impl Protocol for Planted {
    fn name(&self) -> &'static str {
        self.protocol.name()
    }
    fn guarantee(&self) -> Guarantee {
        self.protocol.guarantee()
    }
    fn position(&self) -> Position {
        self.protocol.position()
    }
    fn writes(&self) -> Writes {
        self.protocol.writes()
    }
    fn place_of(&self, event: &Event) -> Place {
        self.protocol.place_of(event)
    }
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.bug.handle(&mut Inner { protocol: &mut self.protocol, place, now }, event, effects);
    }
    fn status(&self) -> Status {
        self.protocol.status()
    }
    fn broken_invariant(&self) -> Option<String> {
        self.protocol.broken_invariant()
    }
}

/// The protocol with a bug in it, as a run makes it.
#[must_use]
pub fn plant<B: Bug + Default + 'static>(replicas: usize, decided: Csn, tuning: Tuning) -> Box<dyn Protocol> {
    Box::new(Planted { protocol: Onecopy::tuned(replicas, decided, tuning), bug: Box::new(B::default()) })
}
