//! The family against sections 2 and 3 of its paper; whole lists of effects are compared.

use super::*;
use crate::effect::How;
use crate::event::{Begin, Outcome, Statement, StatementKind};
use crate::ids::{ClassId, Csn, OpId, ReplicaId, SessionId};
use crate::item::{Access, Item, Mode, TableId};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const T1: TxnId = TxnId(1);
const T2: TxnId = TxnId(2);
const Q: TxnId = TxnId(9);

/// One of two sites, `A`.
struct Rig {
    protocol: WideArea,
    effects: Vec<Effect>,
}

fn rig(queries: Queries, execution: Execution, delivery: Delivery) -> Rig {
    let choice = Choice { queries, execution, delivery, items: Items::Tables };
    Rig { protocol: WideArea::new(choice, 2), effects: Vec::new() }
}

fn table(number: u64, mode: Mode) -> AccessSet {
    [Access::new(Item::table(TableId(number)), mode)].into_iter().collect()
}

fn writes(number: u64) -> AccessSet {
    table(number, Mode::NoKeyExclusive)
}

fn request(txn: TxnId, access: AccessSet) -> AnyMessage {
    AnyMessage::WideArea(Message::Request { txn, access })
}

fn execute(txn: TxnId, op: u32) -> Effect {
    let how = How::Home { open: true };
    Effect::Execute { txn, op: OpId(op), replica: ReplicaId(0), how, hold: true }
}

fn query(txn: TxnId) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica: ReplicaId(0), how: How::Alone, hold: false }
}

fn commit(txn: TxnId, place: u64) -> Effect {
    Effect::CommitAt { txn, replica: ReplicaId(0), csn: Csn(place) }
}

fn leave(txn: TxnId) -> Effect {
    Effect::Leave { txn, replica: ReplicaId(0) }
}

/// Its client hears what came of it at a site.
fn release(txn: TxnId, op: u32, site: u16) -> Effect {
    Effect::Release { txn, op: OpId(op), replica: ReplicaId(site) }
}

fn acknowledge(txn: TxnId, place: u64) -> Effect {
    Effect::Acknowledge { txn, op: OpId(0), csn: Csn(place) }
}

fn forget(txn: TxnId) -> Effect {
    Effect::Forget { txn }
}

fn write_set(txn: TxnId, place: u64) -> Message {
    Message::WriteSet { txn, place: Csn(place), op: OpId(0) }
}

fn failed(txn: TxnId) -> Message {
    Message::Failed { txn, op: OpId(0) }
}

fn ship(message: Message) -> Effect {
    let (Message::WriteSet { txn, .. } | Message::Failed { txn, .. } | Message::Request { txn, .. }) =
        message;
    Effect::Ship { txn, to: Place::Peer(B), message: AnyMessage::WideArea(message) }
}

fn apply(txn: TxnId) -> Effect {
    Effect::ApplyShipped { origin: Place::Peer(B), txn, replica: ReplicaId(0) }
}

impl Rig {
    fn hears(&mut self, event: Event) {
        self.protocol.handle(Place::Peer(A), Instant(0), event, &mut self.effects);
        assert_eq!(self.protocol.broken_invariant(), None);
    }
    #[track_caller]
    fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }
    fn client(&mut self, txn: TxnId, kind: StatementKind, access: AccessSet) {
        let (session, stale_ok_ns) = (SessionId(0), None);
        let begin = Begin { txn, session, read_only: false, form: 0, declared: None, stale_ok_ns };
        self.hears(Event::Autocommit { begin, statement: Statement::new(ClassId(1), kind, access) });
    }
    fn delivered(&mut self, moment: Moment, place: u64, from: NodeId, txn: TxnId, access: AccessSet) {
        let message = request(txn, access);
        self.hears(Event::Delivered { from, moment, place: Csn(place), message });
    }
    /// All three at once.
    fn arrives(&mut self, place: u64, from: NodeId, txn: TxnId, number: u64) {
        for moment in [Moment::Received, Moment::Ordered, Moment::Stable] {
            self.delivered(moment, place, from, txn, writes(number));
        }
    }
    fn executed(&mut self, txn: TxnId, op: u32, outcome: Outcome) {
        let (op, replica) = (OpId(op), ReplicaId(0));
        self.hears(Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
    }
    fn done(&mut self, txn: TxnId, op: u32) {
        self.executed(txn, op, Outcome::Done { returned: Vec::new() });
    }
    fn committed(&mut self, place: u64) {
        self.hears(Event::Applied { replica: ReplicaId(0), csn: Csn(place) });
    }
    fn told(&mut self, message: Message) {
        self.hears(Event::Message { from: Place::Peer(B), message: AnyMessage::WideArea(message) });
    }
    fn applied(&mut self, txn: TxnId) {
        self.hears(Event::ShippedApplied { origin: Place::Peer(B), txn, replica: ReplicaId(0) });
    }
}

#[test]
fn an_update_is_multicast_and_executed_when_it_is_delivered_section_2() {
    let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::Safe);
    rig.client(T1, StatementKind::Write, writes(1));
    rig.expect(&[Effect::Multicast { txn: T1, message: request(T1, writes(1)) }]);
    rig.delivered(Moment::Received, 0, A, T1, writes(1));
    rig.delivered(Moment::Ordered, 1, A, T1, writes(1));
    rig.expect(&[]);
    rig.delivered(Moment::Stable, 1, A, T1, writes(1));
    rig.expect(&[execute(T1, 0)]);
    rig.done(T1, 0);
    rig.expect(&[commit(T1, 1)]);
    rig.committed(1);
    rig.expect(&[release(T1, 0, 0), acknowledge(T1, 1), forget(T1)]);
}

#[test]
fn those_that_conflict_run_in_the_order_of_delivery_and_others_at_once_section_2() {
    let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::Agreed);
    rig.arrives(1, B, T1, 1);
    rig.arrives(2, A, T2, 1);
    rig.arrives(3, A, TxnId(3), 2);
    rig.expect(&[execute(T1, 0), execute(TxnId(3), 0)]);
    rig.done(T1, 0);
    rig.expect(&[commit(T1, 1)]);
    // Its client is elsewhere.
    rig.committed(1);
    rig.expect(&[forget(T1), execute(T2, 0)]);
}

#[test]
fn a_query_waits_in_the_line_and_is_waited_for_or_reads_at_once_section_3_1() {
    let mut locked = rig(Queries::Locked, Execution::Symmetric, Delivery::Agreed);
    locked.arrives(1, B, T1, 1);
    locked.client(Q, StatementKind::Read, table(1, Mode::Shared));
    locked.arrives(2, B, T2, 1);
    locked.done(T1, 0);
    locked.committed(1);
    locked.expect(&[execute(T1, 0), commit(T1, 1), forget(T1), query(Q)]);
    locked.done(Q, 0);
    locked.expect(&[execute(T2, 0)]);

    let mut snapshot = rig(Queries::Snapshot, Execution::Symmetric, Delivery::Agreed);
    snapshot.arrives(1, B, T1, 1);
    snapshot.client(Q, StatementKind::Read, table(1, Mode::Shared));
    snapshot.expect(&[execute(T1, 0), query(Q)]);
}

#[test]
fn where_queries_read_snapshots_updates_commit_in_the_order_though_they_do_not_conflict() {
    let mut rig = rig(Queries::Snapshot, Execution::Symmetric, Delivery::Agreed);
    rig.arrives(1, B, T1, 1);
    rig.arrives(2, B, T2, 2);
    rig.done(T2, 0);
    rig.expect(&[execute(T1, 0), execute(T2, 0)]);
    rig.done(T1, 0);
    // The database commits them in this order.
    rig.expect(&[commit(T1, 1), commit(T2, 2)]);
    rig.committed(1);
    rig.expect(&[forget(T1)]);
}

#[test]
fn with_a_local_copy_the_site_of_the_client_executes_and_ships_section_3_2() {
    let mut rig = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Agreed);
    rig.arrives(1, A, T1, 1);
    rig.arrives(2, B, T2, 1);
    rig.expect(&[execute(T1, 0)]);
    rig.done(T1, 0);
    rig.expect(&[ship(write_set(T1, 1)), commit(T1, 1)]);
    // What the other has written may be here before it can be applied.
    rig.told(write_set(T2, 2));
    rig.expect(&[]);
    rig.committed(1);
    rig.expect(&[release(T1, 0, 0), acknowledge(T1, 1), forget(T1), apply(T2)]);
    rig.applied(T2);
    rig.expect(&[forget(T2)]);
    assert_eq!(rig.protocol.status().transactions, 0);
}

#[test]
fn with_a_primary_copy_a_client_elsewhere_hears_of_the_commit_with_the_writes_section_3_2() {
    let mut rig = rig(Queries::Snapshot, Execution::PrimaryCopy, Delivery::Agreed);
    // The second of two sites is responsible for table 1, the first one for table 2.
    rig.arrives(1, A, T1, 1);
    rig.arrives(2, B, T2, 2);
    rig.expect(&[execute(T2, 0)]);
    rig.told(write_set(T1, 1));
    rig.expect(&[release(T1, 0, 1), acknowledge(T1, 1), apply(T1)]);
    rig.done(T2, 0);
    rig.expect(&[ship(write_set(T2, 2)), commit(T2, 2)]);
    rig.applied(T1);
    rig.expect(&[forget(T1)]);
    rig.committed(2);
    rig.expect(&[forget(T2)]);
}

#[test]
fn writes_may_come_before_what_they_belong_to() {
    let mut rig = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Safe);
    rig.delivered(Moment::Received, 0, B, T1, writes(1));
    rig.told(write_set(T1, 1));
    rig.delivered(Moment::Ordered, 1, B, T1, writes(1));
    rig.expect(&[]);
    rig.delivered(Moment::Stable, 1, B, T1, writes(1));
    rig.expect(&[apply(T1)]);
}

#[test]
fn optimistic_delivery_executes_before_the_order_is_known_and_commits_after_section_3_4() {
    let mut agreed = rig(Queries::Locked, Execution::Symmetric, Delivery::OptAgreed);
    agreed.delivered(Moment::Received, 0, A, T1, writes(1));
    agreed.expect(&[execute(T1, 0)]);
    agreed.done(T1, 0);
    agreed.expect(&[]);
    agreed.delivered(Moment::Ordered, 1, A, T1, writes(1));
    agreed.expect(&[commit(T1, 1)]);

    let mut safe = rig(Queries::Locked, Execution::Symmetric, Delivery::OptSafe);
    safe.delivered(Moment::Received, 0, A, T1, writes(1));
    safe.delivered(Moment::Ordered, 1, A, T1, writes(1));
    safe.done(T1, 0);
    safe.expect(&[execute(T1, 0)]);
    safe.delivered(Moment::Stable, 1, A, T1, writes(1));
    safe.expect(&[commit(T1, 1)]);
}

#[test]
fn what_ran_in_a_wrong_order_is_undone_and_runs_again_if_it_conflicts_section_3_4() {
    let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::OptAgreed);
    rig.delivered(Moment::Received, 0, A, T1, writes(1));
    rig.delivered(Moment::Received, 0, A, TxnId(3), writes(2));
    rig.delivered(Moment::Received, 0, B, T2, writes(1));
    rig.expect(&[execute(T1, 0), execute(TxnId(3), 0)]);
    // T2 is before both; it does not conflict with T3.
    rig.delivered(Moment::Ordered, 1, B, T2, writes(1));
    rig.expect(&[leave(T1), execute(T2, 0)]);
    // What was undone is reported all the same.
    rig.done(T1, 0);
    rig.delivered(Moment::Ordered, 2, A, T1, writes(1));
    rig.done(T2, 0);
    rig.expect(&[commit(T2, 1)]);
    rig.committed(1);
    rig.expect(&[forget(T2), execute(T1, 1)]);
    rig.done(T1, 1);
    rig.expect(&[commit(T1, 2)]);
}

#[test]
fn a_query_that_has_begun_stays_before_what_is_moved() {
    let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::OptAgreed);
    rig.delivered(Moment::Received, 0, A, T1, writes(1));
    rig.client(Q, StatementKind::Read, table(2, Mode::Shared));
    rig.delivered(Moment::Received, 0, B, T2, writes(2));
    rig.expect(&[execute(T1, 0), query(Q)]);
    rig.delivered(Moment::Ordered, 1, B, T2, writes(2));
    rig.expect(&[]);
    rig.done(Q, 0);
    rig.expect(&[execute(T2, 0)]);
}

#[test]
fn an_update_that_fails_fails_at_its_place_and_others_hear_of_it() {
    let mut local = rig(Queries::Locked, Execution::LocalCopy, Delivery::OptAgreed);
    local.delivered(Moment::Received, 0, A, T1, writes(1));
    local.executed(T1, 0, Outcome::Failed);
    // It may yet be behind another one, and not fail there.
    local.expect(&[execute(T1, 0)]);
    local.delivered(Moment::Ordered, 1, A, T1, writes(1));
    local.expect(&[ship(failed(T1)), release(T1, 0, 0), leave(T1), forget(T1)]);

    let mut elsewhere = rig(Queries::Locked, Execution::LocalCopy, Delivery::Agreed);
    elsewhere.arrives(1, B, T1, 1);
    elsewhere.arrives(2, A, T2, 1);
    elsewhere.expect(&[]);
    elsewhere.told(failed(T1));
    elsewhere.expect(&[forget(T1), execute(T2, 0)]);

    let mut everywhere = rig(Queries::Locked, Execution::Symmetric, Delivery::Agreed);
    everywhere.arrives(1, B, T1, 1);
    everywhere.executed(T1, 0, Outcome::Failed);
    everywhere.expect(&[execute(T1, 0), leave(T1), forget(T1)]);
}

#[test]
fn that_an_update_fails_may_be_known_before_it_is_delivered_and_before_it_is_its_turn() {
    let mut early = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Safe);
    early.delivered(Moment::Received, 0, B, T1, writes(1));
    early.told(failed(T1));
    early.delivered(Moment::Ordered, 1, B, T1, writes(1));
    early.expect(&[]);
    early.delivered(Moment::Stable, 1, B, T1, writes(1));
    early.expect(&[forget(T1)]);

    let mut in_order = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Agreed);
    in_order.arrives(1, B, T1, 1);
    in_order.arrives(2, A, T2, 2);
    in_order.executed(T2, 0, Outcome::Failed);
    in_order.expect(&[execute(T2, 0), ship(failed(T2)), release(T2, 0, 0), leave(T2), forget(T2)]);
}

#[test]
fn where_queries_read_snapshots_updates_are_given_to_the_database_in_order_and_not_one_by_one() {
    let apply = |txn| Effect::ApplyShipped { origin: Place::Peer(B), txn, replica: ReplicaId(0) };
    let mut in_order = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Agreed);
    in_order.arrives(1, B, T1, 1);
    in_order.arrives(2, B, T2, 2);
    in_order.told(write_set(T2, 2));
    in_order.expect(&[]);
    in_order.told(write_set(T1, 1));
    in_order.expect(&[apply(T1), apply(T2)]);

    let mut loose = rig(Queries::LooseSnapshot, Execution::LocalCopy, Delivery::Agreed);
    loose.arrives(1, B, T1, 1);
    loose.arrives(2, B, T2, 2);
    loose.told(write_set(T2, 2));
    loose.expect(&[apply(T2)]);
}

#[test]
fn what_is_lost_with_a_connection_executes_again_and_what_was_shipped_is_applied() {
    let mut executing = rig(Queries::Locked, Execution::Symmetric, Delivery::Agreed);
    executing.arrives(1, B, T1, 1);
    executing.executed(T1, 0, Outcome::Lost { answer_begun: false });
    executing.expect(&[execute(T1, 0), execute(T1, 1)]);
    executing.done(T1, 1);
    executing.hears(Event::HomeLost { txn: T1, replica: ReplicaId(0) });
    executing.expect(&[commit(T1, 1), execute(T1, 2)]);

    let mut shipped = rig(Queries::Locked, Execution::LocalCopy, Delivery::Agreed);
    shipped.arrives(1, A, T1, 1);
    shipped.done(T1, 0);
    shipped.hears(Event::HomeLost { txn: T1, replica: ReplicaId(0) });
    let own = Effect::ApplyShipped { origin: Place::Peer(A), txn: T1, replica: ReplicaId(0) };
    shipped.expect(&[execute(T1, 0), ship(write_set(T1, 1)), commit(T1, 1), own]);
    shipped.applied(T1);
    shipped.expect(&[release(T1, 0, 0), acknowledge(T1, 1), forget(T1)]);
}

#[test]
fn an_answer_that_is_too_large_to_be_held_goes_out_when_it_cannot_be_undone() {
    let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::OptAgreed);
    rig.delivered(Moment::Received, 0, A, T1, writes(1));
    rig.executed(T1, 0, Outcome::TooLarge);
    rig.expect(&[execute(T1, 0), leave(T1)]);
    rig.delivered(Moment::Ordered, 1, A, T1, writes(1));
    let (how, replica) = (How::Home { open: true }, ReplicaId(0));
    rig.expect(&[Effect::Execute { txn: T1, op: OpId(1), replica, how, hold: false }]);
}

#[test]
fn rows_of_one_table_do_not_conflict_where_items_are_rows() {
    use crate::item::{ColumnId, ValueHash};
    let row = |value| {
        let item = Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(value))]);
        [Access::new(item, Mode::NoKeyExclusive)].into_iter().collect::<AccessSet>()
    };
    for (items, begun) in [(Items::Tables, 1), (Items::Rows, 2)] {
        let mut rig = rig(Queries::Locked, Execution::Symmetric, Delivery::Agreed);
        let choice = Choice { items, ..rig.protocol.sites[0].choice() };
        rig.protocol = WideArea::new(choice, 2);
        for (place, txn) in [(1, T1), (2, T2)] {
            rig.delivered(Moment::Received, 0, B, txn, row(place as i64));
            rig.delivered(Moment::Ordered, place, B, txn, row(place as i64));
        }
        assert_eq!(rig.effects.len(), begun, "{items:?}");
    }
}

/// Who is to execute an update is lost, or what it sent is: the others execute it themselves, once, and a client is answered by its own site.
#[test]
fn writes_that_may_never_come_are_not_waited_for() {
    let local = || rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Agreed);
    let mut lost = local();
    lost.arrives(1, B, T1, 7);
    lost.expect(&[]);
    lost.hears(Event::PeerLost { node: B });
    lost.expect(&[execute(T1, 0)]);
    // It comes after all.
    lost.told(write_set(T1, 1));
    lost.expect(&[]);
    lost.done(T1, 0);
    lost.expect(&[commit(T1, 1)]);
    lost.committed(1);
    lost.expect(&[forget(T1)]);
    // As long as it is not heard, nobody waits for it.
    lost.arrives(2, B, T2, 7);
    lost.expect(&[execute(T2, 0)]);

    let mut back = local();
    back.hears(Event::PeerLost { node: B });
    back.hears(Event::PeerBack { node: B });
    back.arrives(1, B, T1, 7);
    back.expect(&[]);
    for _ in 0..3 {
        back.hears(Event::Timer { timer: 0 });
    }
    back.expect(&[]);
    back.hears(Event::Timer { timer: 0 });
    back.expect(&[execute(T1, 0)]);

    // Of an own client's update, whose primary is lost: it is answered from here.
    let mut primary = rig(Queries::Snapshot, Execution::PrimaryCopy, Delivery::Agreed);
    primary.arrives(1, A, T1, 7);
    primary.expect(&[]);
    primary.hears(Event::PeerLost { node: B });
    primary.expect(&[execute(T1, 0)]);
    primary.done(T1, 0);
    primary.expect(&[commit(T1, 1)]);
    primary.committed(1);
    primary.expect(&[release(T1, 0, 0), acknowledge(T1, 1), forget(T1)]);
}

/// An update that was shipped and then failed where it was executed once more stays what it was first.
#[test]
fn writes_that_have_come_are_not_taken_back() {
    let mut rig = rig(Queries::Snapshot, Execution::LocalCopy, Delivery::Agreed);
    rig.arrives(1, B, T1, 7);
    rig.told(write_set(T1, 1));
    rig.expect(&[apply(T1)]);
    rig.told(failed(T1));
    rig.expect(&[]);
}

/// Its primary has executed an update where a leader told that was lost: here it stands elsewhere, and is executed.
#[test]
fn writes_of_another_place_are_not_applied() {
    let mut rig = rig(Queries::Locked, Execution::PrimaryCopy, Delivery::OrderedOptSafe);
    rig.arrives(2, B, T1, 7);
    rig.told(write_set(T1, 1));
    rig.expect(&[]);
    for _ in 0..4 {
        rig.hears(Event::Timer { timer: 0 });
    }
    rig.expect(&[execute(T1, 0)]);
    rig.done(T1, 0);
    rig.expect(&[commit(T1, 2)]);
}
