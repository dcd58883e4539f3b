//! What executes in its turn, at all sites (protocol = "certified"): an update that was found to be in vain.

use std::sync::atomic::Ordering;

use onecopy_core::{Event, Outcome, TxnId};
use onecopy_log::consensus::MESSAGE_LEN_MAX;

use super::work::{LOSSES_MAX, is_frame, is_of_transaction, pause_after, too_large, too_long_a_row};
use super::{Done, Ended, Site};
use crate::errors::Failure;
use crate::lane::{Lane, LaneError};
use crate::record::{Record, Write};
use crate::sites;
use crate::sites::database::{Begin, Ran};
use crate::sites::request::{Asks, Request};
use crate::sites::transaction::Transaction;

/// Bytes of what an update may touch, for each access, about.
const ACCESS_LEN_ABOUT: usize = 128;

impl Site<'_> {
    /// Executes an update in its turn: everything before it that it could meet is committed here.
    pub(super) fn execute_in_place(&mut self, txn: TxnId) {
        let Some(open) = self.open.get(&txn) else { return };
        let (transaction, pid, pause) =
            (open.transaction.clone(), open.pid.clone(), pause_after(open.losses));
        let held_max = self.held_max(open.id);
        let begin = Begin::Update { checks_at_once: self.around.classifier.has_deferrable() };
        let (watch, done, database) =
            (self.watch(txn, &pid), self.done.clone(), self.around.database.clone());
        tokio::spawn(async move {
            let executing = database.execute(None, &pid, &transaction, begin, held_max);
            let (lane, ran) = watch.over(executing).await;
            if ran.is_err() {
                tokio::time::sleep(pause).await;
            }
            let _ = done.send(Done::ExecutedInPlace { txn, lane, ran });
        });
    }

    pub(super) fn on_executed_in_place(
        &mut self,
        txn: TxnId,
        lane: Option<Lane>,
        ran: Result<(Ran, Record), LaneError>,
    ) {
        let has_failed = match &ran {
            Ok((ran, _)) => matches!(ran, Ran::Failed(_)),
            Err(error) => is_frame(error),
        };
        let (answer, writes) = match ran {
            Ok((Ran::Done(answer) | Ran::Failed(answer), writes)) => (answer, writes),
            Ok((Ran::TooLarge, writes)) => (too_large(self.around.held_max, true), writes),
            Ok((Ran::NotBegun(why), _)) => return self.cannot_begin(&why),
            Err(error) if has_failed => (too_long_a_row(&error), Record::default()),
            Err(error) if !is_of_transaction(&error) => return self.begin_again(error.to_string()),
            Err(error) => {
                tracing::debug!(%error, "an update is to be executed again in its turn");
                if self.gives_up(txn) {
                    self.ended = Some(Ended::Stuck(format!(
                        "its server has given up an update {LOSSES_MAX} times in its turn: {error}"
                    )));
                }
                if let Some(open) = self.open.get_mut(&txn) {
                    // It is rolled back.
                    open.lane = lane;
                }
                return self.apply_again(txn, true);
            }
        };
        let Some(open) = self.open.get_mut(&txn) else { return };
        (open.answer, open.writes, open.lane) = (answer, writes, lane);
        if !has_failed {
            return self.note_applied(txn);
        }
        let op = open.in_place_op;
        self.note_in_place();
        self.drop_turn(txn);
        let (replica, outcome) = (self.replica(), Outcome::Failed);
        self.feed(Event::Executed { txn, op, replica, outcome, elapsed_ns: 0 });
        self.commit_next();
    }

    pub(super) fn note_in_place(&self) {
        self.around.figures.in_place.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why an update could not be sent to be executed in place, if it is too long for that.
pub(super) fn too_long(transaction: &Transaction) -> Option<Failure> {
    let Transaction { record, access, .. } = transaction;
    let len: usize = record.writes.iter().map(Write::len).sum();
    // Bytes are counted only where they may be too many.
    if len + access.len() * ACCESS_LEN_ABOUT < MESSAGE_LEN_MAX / 2 {
        return None;
    }
    sites::too_long(&Request { asks: Asks::InPlace, access: access.clone() }.encode(record), 0)
}
