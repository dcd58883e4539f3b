//! Edges of session order and of real time.

use super::graph::{GraphBuilder, Kind, Object, end_ns};
use super::history::{History, Process, Status};

/// Each transaction precedes the next one of its process. One with an unknown end precedes nothing, since it may
/// take effect later.
pub(super) fn add_session_edges(history: &History, counts: &[bool], graph: &mut GraphBuilder) {
    let mut in_order: Vec<(Process, u64, u32)> = history
        .iter()
        .filter(|(index, _)| counts[index.0 as usize])
        .map(|(index, transaction)| (transaction.process, transaction.invoked_ns, index.0))
        .collect();
    in_order.sort_unstable();
    let mut last_known: Option<(Process, u32)> = None;
    for (process, _, transaction) in in_order {
        if let Some((_, earlier)) = last_known.filter(|(earlier, _)| *earlier == process) {
            graph.add(earlier, transaction, Kind::Session, Object::Nothing);
        }
        if history.transactions()[transaction as usize].status == Status::Committed {
            last_known = Some((process, transaction));
        }
    }
}

/// Each transaction precedes those that began after it had completed.
///
/// Only a frontier is kept: the completed transactions that no other completed one follows. Whoever begins comes
/// after them, and through them after everything earlier, so that there are at most as many edges as
/// transactions times processes, and sorting is what takes longest.
pub(super) fn add_real_time_edges(history: &History, counts: &[bool], graph: &mut GraphBuilder) {
    let members =
        || (0..counts.len()).filter(|&place| counts[place]).map(|place| super::history::index_of(place).0);
    let begin = |transaction: u32| history.transactions()[transaction as usize].invoked_ns;
    let mut by_begin: Vec<u32> = members().collect();
    by_begin.sort_by_key(|&transaction| (begin(transaction), transaction));
    let mut by_end: Vec<u32> = members().collect();
    by_end.sort_by_key(|&transaction| (end_ns(history, transaction), transaction));
    let mut ended = by_end.into_iter().peekable();
    let mut frontier: Vec<u32> = Vec::new();
    for transaction in by_begin {
        while let Some(over) = ended.next_if(|&over| end_ns(history, over) < begin(transaction)) {
            frontier.retain(|&earlier| end_ns(history, earlier) >= begin(over));
            frontier.push(over);
        }
        for &earlier in &frontier {
            graph.add(earlier, transaction, Kind::RealTime, Object::Nothing);
        }
    }
}
