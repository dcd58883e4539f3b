//! Values of sequences: reserved by decisions before they are given out (design 3.7).

use crate::effect::{Decision, Effect};
use crate::ids::OpId;
use crate::item::TableId;
use crate::sequences::{Giving, Sequences, Want};

use super::replicas::Decisions;

/// Gives a transaction what it wants of sequences, or has it wait for a reservation.
pub(crate) fn on_next_values(
    want: Want,
    sequences: &mut Sequences,
    decisions: &mut Decisions,
    effects: &mut Vec<Effect>,
) {
    let (txn, op) = (want.txn, want.op);
    match sequences.next(want) {
        Giving::Given(values) => effects.push(Effect::Values { txn, op, values }),
        Giving::Waits { reserve } => reserve_in(decisions, reserve, effects),
    }
}

/// Reservations have become durable: whoever waited for them gets values.
pub(crate) fn on_reserved(
    reserved: Vec<(TableId, i64)>,
    sequences: &mut Sequences,
    decisions: &mut Decisions,
    effects: &mut Vec<Effect>,
) {
    for (sequence, last) in reserved {
        let (served, more) = sequences.reserved(sequence, last);
        for (Want { txn, op, .. }, values) in served {
            effects.push(Effect::Values { txn, op, values });
        }
        reserve_in(decisions, more, effects);
    }
}

fn reserve_in(
    decisions: &mut Decisions,
    reserve: impl IntoIterator<Item = (TableId, i64)>,
    effects: &mut Vec<Effect>,
) {
    for (sequence, last) in reserve {
        let csn = decisions.decide(None, None, OpId(0), Some((sequence, last)));
        effects.push(Effect::Append { csn, decision: Decision::Reserve { sequence, last } });
    }
}
