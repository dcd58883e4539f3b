//! A protocol of scheduler and workers in a test: events in, whole lists of effects out.

use super::{SCHEDULER, Schedules, Workers, Works};
use crate::effect::{Decision, Effect, How};
use crate::event::{Begin, Event, Outcome, Place, Statement, StatementKind};
use crate::ids::{ClassId, Csn, Instant, OpId, ReplicaId, SessionId, TxnId};
use crate::item::{Access, AccessSet, ColumnId, Item, Mode, TableId, ValueHash};
use crate::message::Message;
use crate::protocol::Protocol;

pub(crate) const W0: ReplicaId = ReplicaId(0);
pub(crate) const W1: ReplicaId = ReplicaId(1);
pub(crate) const W2: ReplicaId = ReplicaId(2);
pub(crate) const T1: TxnId = TxnId(1);
pub(crate) const T2: TxnId = TxnId(2);
pub(crate) const T3: TxnId = TxnId(3);
pub(crate) const T4: TxnId = TxnId(4);
pub(crate) const T5: TxnId = TxnId(5);

pub(crate) struct Rig<S, W> {
    protocol: Workers<S, W>,
    pub(crate) effects: Vec<Effect>,
}

impl<S: Schedules, W: Works> Rig<S, W> {
    pub(crate) fn new(protocol: Workers<S, W>) -> Rig<S, W> {
        Rig { protocol, effects: Vec::new() }
    }

    pub(crate) fn at(&mut self, place: Place, event: Event) {
        self.protocol.handle(place, Instant(0), event, &mut self.effects);
    }

    /// Where the transactions of a session arrive.
    pub(crate) fn place_of_session(&self, session: u64) -> Place {
        let session = SessionId(session);
        let begin = Begin { txn: T1, session, read_only: false, form: 0, declared: None, stale_ok_ns: None };
        let statement = Statement::new(ClassId(1), StatementKind::Write, AccessSet::new());
        self.protocol.place_of(&Event::Autocommit { begin, statement })
    }

    /// Transactions that are not over.
    pub(crate) fn open(&self) -> u64 {
        self.protocol.status().transactions
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, effects: &[Effect]) {
        assert_eq!(std::mem::take(&mut self.effects), effects);
    }

    /// A replica is there, and contains everything up to this.
    pub(crate) fn up(&mut self, replica: ReplicaId, applied: u64) {
        self.at(Place::Proxy(replica), Event::ReplicaUp { replica, applied: Csn(applied) });
    }

    pub(crate) fn down(&mut self, replica: ReplicaId) {
        self.at(Place::Proxy(replica), Event::ReplicaDown { replica });
    }

    /// A transaction of a form arrives.
    pub(crate) fn arrive(
        &mut self,
        txn: TxnId,
        form: u64,
        kind: StatementKind,
        access: impl IntoIterator<Item = Access>,
    ) {
        let begin =
            Begin { txn, session: SessionId(0), read_only: false, form, declared: None, stale_ok_ns: None };
        let statement = Statement::new(ClassId(1), kind, access.into_iter().collect());
        self.at(SCHEDULER, Event::Autocommit { begin, statement });
    }

    pub(crate) fn message(&mut self, from: Place, to: Place, message: Message) {
        self.at(to, Event::Message { from, message });
    }

    /// A worker has executed something, and changed these rows.
    pub(crate) fn executed(&mut self, txn: TxnId, replica: ReplicaId, rows: &[i64]) {
        let returned = rows.iter().map(|row| changed(*row)).collect();
        self.comes_of(txn, replica, Outcome::Done { returned });
    }

    pub(crate) fn comes_of(&mut self, txn: TxnId, replica: ReplicaId, outcome: Outcome) {
        let event = Event::Executed { txn, op: OpId(0), replica, outcome, elapsed_ns: 1 };
        self.at(Place::Proxy(replica), event);
    }

    pub(crate) fn durable(&mut self, csn: u64) {
        self.at(SCHEDULER, Event::Durable { csn: Csn(csn) });
    }

    pub(crate) fn committed(&mut self, replica: ReplicaId, csn: u64) {
        self.at(Place::Proxy(replica), Event::Applied { replica, csn: Csn(csn) });
    }

    pub(crate) fn applied(&mut self, origin: ReplicaId, txn: TxnId, replica: ReplicaId) {
        let origin = Place::Proxy(origin);
        self.at(Place::Proxy(replica), Event::ShippedApplied { origin, txn, replica });
    }
}

/// A row, changed.
pub(crate) fn changed(row: i64) -> Access {
    Access::new(Item::rows(TableId(1), [(ColumnId(1), ValueHash::of_integer(row))]), Mode::NoKeyExclusive)
}

pub(crate) fn execute(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Execute { txn, op: OpId(0), replica, how: How::Home { open: true }, hold: true }
}

pub(crate) fn release(txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::Release { txn, op: OpId(0), replica }
}

pub(crate) fn acknowledge(txn: TxnId, csn: u64) -> Effect {
    Effect::Acknowledge { txn, op: OpId(0), csn: Csn(csn) }
}

pub(crate) fn append(txn: TxnId, csn: u64) -> Effect {
    Effect::Append { csn: Csn(csn), decision: Decision::Commit(txn) }
}

pub(crate) fn commit_at(txn: TxnId, replica: ReplicaId, csn: u64) -> Effect {
    Effect::CommitAt { txn, replica, csn: Csn(csn) }
}

pub(crate) fn apply(replica: ReplicaId, from: u64, to: u64) -> Effect {
    Effect::Apply { replica, from: Csn(from), to: Csn(to) }
}

pub(crate) fn apply_shipped(origin: ReplicaId, txn: TxnId, replica: ReplicaId) -> Effect {
    Effect::ApplyShipped { origin: Place::Proxy(origin), txn, replica }
}
