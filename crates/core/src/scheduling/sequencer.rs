//! The sequencer: the one giver of sequence numbers (CAS 4.1), and of versions of tables (DV 4.2).

use crate::effect::Effect;
use crate::ids::SequenceNumber;
use crate::table_versions::Assigner;

use super::{Message, SCHEDULER, send};

/// Invariants: every number is given once, one after the other, from 1 on; versions are given in the order of numbers.
#[derive(Default, Debug)]
pub(super) struct Sequencer {
    last: SequenceNumber,
    versions: Assigner,
}

impl Sequencer {
    pub(super) fn handle_message(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        if let Message::NumberRequest { txn, tables } = message {
            self.last = self.last.next();
            let versions = self.versions.assign(tables);
            send(SCHEDULER, Message::Number { txn: *txn, number: self.last, versions }, effects);
        }
    }
}
