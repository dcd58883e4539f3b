//! All places of a protocol in one process: messages are delivered at once, in the order in which they were sent.

use std::collections::VecDeque;

use crate::effect::Effect;
use crate::event::{Event, Place};
use crate::ids::Instant;

use super::{Engine, Foresight, Guarantee, Position, Protocol, Statements, Status, Writes};

/// A protocol whose messages never leave it: its effects are only those that concern databases, clients, log and
/// timers.
pub struct InProcess {
    protocol: Box<dyn Protocol>,
    mail: VecDeque<(Place, Place, crate::message::Message)>,
    step: Vec<Effect>,
}

impl InProcess {
    /// Keeps the messages of this protocol to itself.
    #[must_use]
    pub fn new(protocol: Box<dyn Protocol>) -> InProcess {
        InProcess { protocol, mail: VecDeque::new(), step: Vec::new() }
    }

    fn step(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        self.protocol.handle(place, now, event, &mut self.step);
        for effect in self.step.drain(..) {
            match effect {
                Effect::Send { to, message } => self.mail.push_back((place, to, message)),
                effect => effects.push(effect),
            }
        }
    }
}

impl Protocol for InProcess {
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

    fn statements(&self) -> Statements {
        self.protocol.statements()
    }

    fn foresight(&self) -> Option<Foresight> {
        self.protocol.foresight()
    }

    fn changes_replicas(&self) -> bool {
        self.protocol.changes_replicas()
    }

    fn engine_is(&mut self, engine: Engine) {
        self.protocol.engine_is(engine);
    }

    fn place_of(&self, event: &Event) -> Place {
        self.protocol.place_of(event)
    }

    /// Handles the event and everything that its messages bring about. An event other than a message may be addressed
    /// to any place: it is handed to the one where it happens.
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        let place =
            if matches!(event, Event::Message { .. }) { place } else { self.protocol.place_of(&event) };
        self.step(place, now, event, effects);
        while let Some((from, to, message)) = self.mail.pop_front() {
            self.step(to, now, Event::Message { from, message }, effects);
        }
    }

    fn status(&self) -> Status {
        self.protocol.status()
    }
}
