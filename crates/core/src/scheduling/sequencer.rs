//! The sequencer: the one giver of sequence numbers (CAS 4.1).

use crate::effect::Effect;
use crate::ids::SequenceNumber;

use super::{Message, SCHEDULER, send};

/// Invariant: every number is given once, one after the other, from 1 on.
#[derive(Default, Debug)]
pub(super) struct Sequencer {
    last: SequenceNumber,
}

impl Sequencer {
    pub(super) fn handle_message(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        if let Message::NumberRequest { txn } = *message {
            self.last = self.last.next();
            send(SCHEDULER, Message::Number { txn, number: self.last }, effects);
        }
    }
}
