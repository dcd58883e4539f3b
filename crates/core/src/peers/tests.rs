//! What all peers do alike, in runs in which chance decides what happens next.

use super::rig::{DONE, Rig, Run, acknowledge, apply, comes, commit, forget, read, update, write};
use super::{Message, Peers, Permission, Turn};
use crate::effect::{Effect, How, Refusal};
use crate::event::{Event, Outcome, StatementKind};
use crate::ids::{NodeId, OpId, ReplicaId, TxnId};
use crate::item::TableId;
use crate::map::HashSet;
use crate::message::Message as AnyMessage;
use crate::protocol::{Guarantee, Protocol, invalidation, lock_central, lock_distributed, partitioned, weak};
use crate::table_queues::TableLocks;

const RUNS: u64 = 300;
const TRANSACTIONS: usize = 40;

#[track_caller]
fn keeps_its_promise<P: Protocol + 'static>(new: impl Fn(u16) -> P) {
    for seed in 0..RUNS {
        let nodes = 1 + (seed % 4) as u16;
        let judged = Run::new(new(nodes), nodes, seed).go(TRANSACTIONS);
        assert_eq!(judged, Ok(()), "{nodes} nodes, seed {seed}");
    }
}

/// Whether some run goes wrong in this way.
fn goes_wrong<P: Protocol + 'static>(new: impl Fn(u16) -> P, how: &str) -> bool {
    let what = |seed| Run::new(new(3), 3, seed).go(TRANSACTIONS).err();
    (0..RUNS).filter_map(what).any(|what| what.contains(how))
}

#[test]
fn peers_that_ask_are_strictly_serializable_and_end_alike() {
    keeps_its_promise(invalidation::new);
    keeps_its_promise(|nodes| partitioned::new(nodes, &[]));
    keeps_its_promise(lock_distributed::new);
    keeps_its_promise(lock_central::new);
}

#[test]
fn peers_that_do_not_ask_are_not() {
    assert!(goes_wrong(weak::new, "differs at"));
}

/// Grants at once, and lets updates be applied in the order of versions that nobody agreed on.
#[derive(Debug)]
struct Careless;

impl Permission for Careless {
    fn new(_: NodeId, _: u16) -> Careless {
        Careless
    }
    fn ask(&mut self, txn: TxnId, _: &TableLocks, turn: &mut Turn<'_>) {
        turn.grant(txn);
    }
    fn on_message(&mut self, _: NodeId, _: AnyMessage, _: &mut Turn<'_>) {}
    fn over(&mut self, _: TxnId, _: bool, _: &mut Turn<'_>) {}
}

#[test]
fn two_that_write_at_once_are_found() {
    let new = |nodes| Peers::<Careless>::new("careless", Guarantee::None, nodes, &HashSet::default());
    assert!(goes_wrong(new, "at once"));
}

#[test]
fn updates_are_applied_in_the_order_of_versions() {
    let (here, there, elsewhere) = (NodeId(0), NodeId(1), NodeId(2));
    let (a, reader) = (TableId(1), TxnId(2));
    let mut rig = Rig::new(invalidation::new(3));
    let update = |txn, version| {
        let versions = [(a, version)].into_iter().collect();
        AnyMessage::Peers(Message::Update { txn: TxnId(txn), versions })
    };
    rig.says(elsewhere, here, update(8, 2));
    rig.expect(&[]);
    rig.says(there, here, update(7, 1));
    rig.expect(&[apply(there, TxnId(7), here)]);
    rig.at(here, 2, comes(reader, StatementKind::Read, &[a]));
    rig.update_applied(there, TxnId(7), here);
    rig.expect(&[apply(elsewhere, TxnId(8), here)]);
    rig.update_applied(elsewhere, TxnId(8), here);
    rig.expect(&[read(reader, here)]);
}

#[test]
fn a_write_that_is_lost_before_its_commit_executes_again_under_the_same_permission() {
    let (here, there, w, a) = (NodeId(0), NodeId(1), TxnId(1), TableId(1));
    let mut rig = Rig::new(lock_central::new(2));
    rig.at(here, 1, comes(w, StatementKind::Write, &[a]));
    rig.executed(here, w, Outcome::Lost { answer_begun: false });
    rig.executed(here, w, DONE);
    rig.expect(&[write(w, here), write(w, here), commit(w, here, 1)]);
    rig.at(here, 1, Event::HomeLost { txn: w, replica: ReplicaId(0) });
    rig.executed(here, w, DONE);
    rig.committed(here, 2);
    rig.expect(&[
        write(w, here),
        commit(w, here, 2),
        acknowledge(w, 2),
        update(w, there, &[(a, 1)]),
        forget(w),
    ]);
}

#[test]
fn a_read_that_is_lost_waits_for_what_has_been_announced_since_it_began() {
    let (here, there, r, a) = (NodeId(0), NodeId(1), TxnId(1), TableId(1));
    let mut rig = Rig::new(invalidation::new(2));
    rig.at(here, 1, comes(r, StatementKind::Read, &[a]));
    rig.expect(&[read(r, here)]);
    let versions = [(a, 1)].into_iter().collect();
    rig.says(there, here, AnyMessage::Peers(Message::Update { txn: TxnId(7), versions }));
    rig.executed(here, r, Outcome::Lost { answer_begun: false });
    rig.expect(&[apply(there, TxnId(7), here)]);
    rig.update_applied(there, TxnId(7), here);
    rig.expect(&[read(r, here)]);
}

#[test]
fn a_write_whose_answer_is_too_large_to_be_held_is_refused_if_it_is_lost_after_that() {
    let (here, w, a) = (NodeId(0), TxnId(1), TableId(1));
    let replica = ReplicaId(0);
    let mut rig = Rig::new(lock_central::new(2));
    rig.at(here, 1, comes(w, StatementKind::Write, &[a]));
    rig.executed(here, w, Outcome::TooLarge);
    let how = How::Home { open: true };
    rig.expect(&[
        write(w, here),
        Effect::Leave { txn: w, replica },
        Effect::Execute { txn: w, op: OpId(0), replica, how, hold: false },
    ]);
    rig.executed(here, w, DONE);
    rig.at(here, 1, Event::HomeLost { txn: w, replica });
    let reason = Refusal::AnswerCut;
    rig.expect(&[commit(w, here, 1), Effect::Refuse { txn: w, op: OpId(0), reason }, forget(w)]);
    // Its lock is free again.
    rig.at(here, 1, comes(TxnId(2), StatementKind::Read, &[a]));
    rig.expect(&[read(TxnId(2), here)]);
}
