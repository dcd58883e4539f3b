//! The node between clients and the core: sessions, open transactions with what is kept for them, the log.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::effect::How;
use onecopy_core::protocol::{Position, Writes};
use onecopy_core::sequences::RESERVED_VALUES;
use onecopy_core::{
    AccessSet, Begin, Csn, Decision, Event, Instant, OpId, Refusal, ReplicaId, SequenceDefinition, SessionId,
    StatementKind, TableId, TxnId,
};

use super::replicas::{Membership, Operation};
use super::{Simulation, Wake};
use crate::clients::schema::{CYCLE, CYCLE_MAX, SEQUENCE};
use crate::clients::script::Draft;
use crate::clients::{ClientWake, Connection, Reply, Request};
use crate::database::Fault;
use crate::failure::Failure;
use crate::log::{Kept, Record};
use crate::plan::{Answer, Key, Plan};
use crate::scenario::Moment;
use crate::timing::Step;

/// The node: one life of it an epoch.
#[derive(Default, Debug)]
pub(super) struct Node {
    pub(super) epoch: u64,
    pub(super) up: bool,
    /// Connections before this one were made to an earlier life.
    pub(super) first_connection: Connection,
    sessions: BTreeMap<Connection, TxnId>,
    pub(super) txns: BTreeMap<TxnId, OpenTxn>,
    /// What the core has opened on replicas and not ended, whatever became of the connection; with the place in the order
    /// at which it is to be committed.
    pub(super) unended: BTreeMap<(TxnId, ReplicaId), Option<Csn>>,
    /// Never given twice, not even by different lives.
    last_txn: u64,
    /// What some replica contained when it was fenced, up to this.
    pub(super) found: Csn,
    /// Decisions that some replica was reported to have committed, at the end of a unit.
    pub(super) committed: BTreeSet<Csn>,
    /// Replicas that the core was told to be down.
    pub(super) told_down: BTreeSet<ReplicaId>,
    /// It does nothing for now; what it was told meanwhile waits.
    pub(super) stands_still: bool,
    pub(super) unheard: Vec<Wake>,
    /// How far its clock is ahead of the time.
    pub(super) clock_ahead_ns: u64,
}

/// What the driver keeps of a transaction that the core knows.
#[derive(Debug)]
pub(super) struct OpenTxn {
    pub(super) client: usize,
    connection: Connection,
    /// The client's request that is under way.
    number: u64,
    begin: Begin,
    autocommit: bool,
    /// Whether the core has heard of it.
    pub(super) begun: bool,
    /// Its place in the order, once it is decided: then it goes on whatever becomes of its client.
    pub(super) decided: Option<Csn>,
    /// Whether its client still wants to hear of it.
    pub(super) attended: bool,
    next_op: u32,
    /// The statement or commit whose answer the client awaits.
    pub(super) awaited: Option<OpId>,
    /// A statement that waits for the value of a sequence.
    unbound: Option<Draft>,
    pub(super) plans: BTreeMap<OpId, Plan>,
    /// Answers that came, by statement and replica.
    pub(super) answers: BTreeMap<(OpId, ReplicaId), Result<Answer, Fault>>,
    /// Whose answer to its only statement the client shall have.
    released: Option<ReplicaId>,
    /// Statements of the read phase, and those executed at a home, with what the client was told.
    pub(super) done: Vec<(Plan, Answer)>,
    /// How many of them were done at a home: what came before was found to be the same there, and its items are held.
    pub(super) done_at_home: usize,
    /// A statement of the read phase has failed: whether it would fail again nobody can say.
    pub(super) has_failed: bool,
    /// A statement of whose answer the client has seen a part.
    pub(super) begun_answer: Option<OpId>,
    /// The statement that was sent to a replica last.
    pub(super) last_sent: Option<OpId>,
    /// How often it was done again somewhere.
    pub(super) revalidations: u32,
    /// After so many executions it brings down the server that executes it.
    pub(super) poison: Option<u32>,
    pub(super) executions: u32,
    pub(super) servers_brought_down: u32,
    pub(super) writes: BTreeMap<OpId, Kept>,
}

/// A reply with its address.
#[derive(Debug)]
pub(super) struct Letter {
    client: usize,
    connection: Connection,
    number: u64,
    reply: Reply,
}

/// What an answer stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It was read in the snapshot of a read phase, and may have to be read again.
    InSnapshot,
    /// Its items are held.
    Held,
    /// It counts once the core has granted what it shows.
    ToBeReleased,
}

/// Whether an answer shows items that the core has to grant before the client may have it.
pub(super) fn awaits_release(plan: &Plan, hold: bool, how: How) -> bool {
    hold && matches!(how, How::Home { .. }) && matches!(plan, Plan::Join { fails: false, .. })
}

impl OpenTxn {
    /// Notes what its client is told, to be done again elsewhere if need be.
    fn keep_done(&mut self, plan: &Plan, answer: &Answer, standing: Standing) {
        self.done.push((plan.clone(), answer.clone()));
        self.done_at_home += usize::from(standing != Standing::InSnapshot);
    }

    /// Addresses a reply to the client, if it still wants to hear.
    fn letter(&self, reply: Reply) -> Option<Letter> {
        let (client, connection, number) = (self.client, self.connection, self.number);
        self.attended.then_some(Letter { client, connection, number, reply })
    }
}

impl Simulation<'_> {
    /// The node starts, for the first time or after a crash, on what is durable in the log.
    pub(super) fn start_node(&mut self) {
        let decided = self.log.durable();
        self.protocol = (self.make)(self.replicas.len(), decided);
        self.node.up = true;
        self.node.found = Csn(0);
        self.node.committed.clear();
        self.node.told_down.clear();
        for (of, max, cycle) in [(SEQUENCE, i64::MAX, false), (CYCLE, CYCLE_MAX, true)] {
            let reserved = self.log.iter().filter_map(|(_, record)| match record {
                Record::Reserve { sequence, last } if *sequence == of => Some(*last),
                _ => None,
            });
            let next = reserved.last().filter(|last| *last < max).map_or(1, |last| last + 1);
            let definition = SequenceDefinition { next, increment: 1, min: 1, max, cycle };
            self.feed(Event::Sequence { sequence: of, definition });
        }
        self.begin_anew_what_was_copied();
        for replica in self.replica_ids() {
            if self.replica(replica).membership != Membership::Stays {
                continue;
            }
            let at = self.in_a(Step::Repair);
            let session = self.replica(replica).session;
            self.queue.schedule(at, Wake::Fence { replica, session });
        }
        self.node.first_connection = Connection(self.next_connection + 1);
        for client in 0..self.clients.len() {
            let at = self.in_a(Step::Reply);
            self.wake_client(client, at, ClientWake::NodeLost);
        }
    }

    /// The node dies with everything that only it knew.
    pub(super) fn crash_node(&mut self) {
        self.statistics.absorb(&self.protocol.status());
        self.node.up = false;
        self.node.epoch += 1;
        self.node.stands_still = false;
        self.node.unheard.clear();
        self.node.clock_ahead_ns = 0;
        self.node.sessions.clear();
        self.node.txns.clear();
        self.node.unended.clear();
        let undecided = self.log.end().0 - self.log.durable().0;
        let survivors = self.choices.between(0, undecided);
        self.log.crash(survivors);
        self.note(format_args!("node lost; the log ends at {}", self.log.end()));
        let at = self.in_a(Step::Repair);
        self.queue.schedule(at, Wake::NodeUp);
    }

    pub(super) fn on_request(&mut self, client: usize, connection: Connection, request: Request) {
        if !self.node.up || connection < self.node.first_connection {
            return;
        }
        self.note(format_args!("{connection:?} {request:?}"));
        self.want_somewhere();
        self.look_sometimes();
        let open = self.node.sessions.get(&connection).copied();
        match (request, open) {
            (Request::Single { draft, poison, entry }, None) => {
                let txn = self.open_txn(client, connection, true, false, 0, None);
                self.poison(txn, poison);
                self.recorder.named(entry, txn);
                self.on_statement(txn, draft);
            }
            (Request::Begin { read_only, form, declares, poison, first, entry }, None) => {
                let txn = self.open_txn(client, connection, false, read_only, form, declares);
                self.poison(txn, poison);
                self.recorder.named(entry, txn);
                self.on_statement(txn, first);
            }
            (Request::Statement(draft), Some(txn)) => self.on_statement(txn, draft),
            (Request::Commit, Some(txn)) => {
                let op = self.next_op(txn);
                self.feed(Event::Commit { txn, op });
            }
            (Request::Rollback, Some(txn)) => self.roll_back(txn),
            (Request::Cancel, Some(txn)) => self.on_cancel(txn),
            (Request::Disconnect, Some(txn)) => {
                if let Some(open) = self.node.txns.get_mut(&txn) {
                    open.attended = false;
                }
                self.end_lanes_of_undecided(txn);
                self.roll_back(txn);
                self.node.sessions.remove(&connection);
            }
            // The transaction had ended before the request came.
            (Request::Rollback | Request::Cancel | Request::Disconnect, None) => {}
            (_, open) => {
                let txn = open.unwrap_or_default();
                self.fail(Failure::OrderSenseless {
                    txn,
                    op: None,
                    what: "an answer came too early or twice",
                });
            }
        }
    }

    /// Sometimes somebody who has no transaction waits for a replica: for what is told, as whoever asks for the catalogue, or
    /// for what is decided, as whoever compares contents.
    fn want_somewhere(&mut self) {
        if self.outsiders.chance(super::WANTED_PER_MILLE) {
            let replica = ReplicaId(self.outsiders.below(self.replicas.len() as u64) as u16);
            let csn = self.outsiders.pick(&[self.log.durable(), self.log.end()]);
            self.feed(Event::Wanted { replica, csn });
        }
    }

    fn open_txn(
        &mut self,
        client: usize,
        connection: Connection,
        autocommit: bool,
        read_only: bool,
        form: u64,
        declared: Option<AccessSet>,
    ) -> TxnId {
        self.node.last_txn += 1;
        let txn = TxnId(self.node.last_txn);
        let begin =
            Begin { txn, session: SessionId(connection.0), read_only, form, declared, stale_ok_ns: None };
        let open = OpenTxn {
            client,
            connection,
            number: 0,
            begin,
            autocommit,
            begun: false,
            decided: None,
            attended: true,
            next_op: 0,
            awaited: None,
            unbound: None,
            plans: BTreeMap::new(),
            answers: BTreeMap::new(),
            released: None,
            done: Vec::new(),
            done_at_home: 0,
            has_failed: false,
            begun_answer: None,
            last_sent: None,
            revalidations: 0,
            poison: None,
            executions: 0,
            servers_brought_down: 0,
            writes: BTreeMap::new(),
        };
        self.node.txns.insert(txn, open);
        self.node.sessions.insert(connection, txn);
        txn
    }

    /// From some execution on its statements bring down servers: where one replica executes it, or all would be down.
    fn poison(&mut self, txn: TxnId, poison: Option<u32>) {
        let everywhere = self.writes_everywhere();
        if let Some(open) = self.node.txns.get_mut(&txn) {
            open.poison = poison.filter(|_| !everywhere);
        }
    }

    /// Numbers the request that a transaction's client has just sent.
    fn next_op(&mut self, txn: TxnId) -> OpId {
        let Some(open) = self.node.txns.get_mut(&txn) else { return OpId(0) };
        let op = OpId(open.next_op);
        open.next_op += 1;
        open.awaited = Some(op);
        open.number = self.clients[open.client].requests;
        op
    }

    fn on_statement(&mut self, txn: TxnId, draft: Draft) {
        let op = self.next_op(txn);
        if draft.draws.is_empty() {
            return self.submit(txn, op, draft.plan);
        }
        if let Some(open) = self.node.txns.get_mut(&txn) {
            self.wanted_values.insert((txn, op), draft.draws);
            let wants = draft.draws.iter().map(|sequence| (*sequence, 1)).collect();
            open.unbound = Some(draft);
            self.feed(Event::NextValues { txn, op, wants });
        }
    }

    pub(super) fn on_values(&mut self, txn: TxnId, op: OpId, values: &[Option<i64>]) {
        let draws = self.wanted_values.remove(&(txn, op)).unwrap_or_default();
        let mut drawn = Vec::new();
        for (sequence, value) in draws.iter().zip(values) {
            let Some(value) = *value else { continue };
            drawn.push((*sequence, value));
            if *sequence == SEQUENCE && value > self.reserved_up_to(SEQUENCE) {
                self.senseless(txn, Some(op), "gives a value whose reservation a crash would lose");
            }
            let again = match *sequence {
                CYCLE => self.is_given_too_soon(value),
                _ => !self.given_values.insert(value),
            };
            if again {
                self.fail(Failure::ValueGivenTwice { value });
            }
        }
        let Some(open) = self.node.txns.get_mut(&txn).filter(|open| open.awaited == Some(op)) else { return };
        let Some(Draft { mut plan, .. }) = open.unbound.take() else { return };
        if drawn.len() != draws.len() || values.len() != draws.len() {
            return self.senseless(txn, Some(op), "has no value of a sequence that has some");
        }
        let of_sequence = drawn.iter().find(|(sequence, _)| *sequence == SEQUENCE);
        if let (Plan::Insert { key, .. }, Some((_, value))) = (&mut plan, of_sequence) {
            *key = Key(*value as u64);
        }
        self.submit(txn, op, plan);
    }

    /// The last value of a sequence that a durable record has reserved; 0 if there is none.
    fn reserved_up_to(&self, of: TableId) -> i64 {
        let durable = self.log.durable();
        let records = self.log.iter().take_while(|(csn, _)| *csn <= durable);
        let reserved = records.filter_map(|(_, record)| match record {
            Record::Reserve { sequence, last } if *sequence == of => Some(*last),
            _ => None,
        });
        reserved.max().unwrap_or_default()
    }

    /// A value of the sequence that cycles comes again when all others have come, but for those that crashes have lost: as many each
    /// as are reserved at once.
    fn is_given_too_soon(&mut self, value: i64) -> bool {
        // Only the default protocol can be tuned.
        let at_once = match self.writes_everywhere() {
            true => RESERVED_VALUES,
            false => self.scenario.tuning.limits.reserved_values,
        };
        let lost = self.node.epoch as usize * (at_once as usize + 1);
        let before = self.cycled_values.iter().rev().position(|given| *given == value);
        self.cycled_values.push(value);
        before.is_some_and(|since| since + 1 + lost < CYCLE_MAX as usize)
    }

    fn submit(&mut self, txn: TxnId, op: OpId, plan: Plan) {
        let Some(open) = self.node.txns.get_mut(&txn) else { return };
        let mut statement = plan.classify();
        if open.autocommit {
            // Nothing follows for which it would have to hold anything.
            statement.shown.clear();
        }
        open.plans.insert(op, plan);
        let begin = (!std::mem::replace(&mut open.begun, true)).then(|| open.begin.clone());
        match (begin, open.autocommit) {
            (Some(begin), true) => self.feed(Event::Autocommit { begin, statement }),
            (Some(begin), false) => {
                self.feed(Event::Begin(begin));
                self.feed(Event::Statement { txn, op, statement });
            }
            (None, _) => self.feed(Event::Statement { txn, op, statement }),
        }
    }

    fn roll_back(&mut self, txn: TxnId) {
        let Some(open) = self.node.txns.get(&txn) else { return };
        if open.begun {
            self.feed(Event::Rollback { txn });
        }
        if self.node.txns.get(&txn).is_some_and(|open| open.decided.is_none()) {
            self.close_txn(txn);
        }
    }

    /// The core hears of a client that is gone once its transaction is over in the databases, also what was under way there:
    /// nobody whom the core then lets go on meets that.
    fn end_lanes_of_undecided(&mut self, txn: TxnId) {
        let is_undecided = self.node.txns.get(&txn).is_some_and(|open| open.decided.is_none());
        if is_undecided && !self.writes_everywhere() {
            for replica in self.replica_ids() {
                self.lose_lane(replica, txn, false);
            }
        }
    }

    /// Gives up the wait in the core, and the one in a database if the statement has got so far.
    pub(super) fn on_cancel(&mut self, txn: TxnId) {
        let Some(open) = self.node.txns.get(&txn).filter(|open| open.begun && open.unbound.is_none()) else {
            return;
        };
        let Some(op) = open.awaited else { return };
        self.feed(Event::Cancel { txn, op });
        if self.node.txns.contains_key(&txn) {
            self.cancel_in_databases(txn);
        }
    }

    /// Nothing will be asked any more for the transaction on any replica.
    pub(super) fn on_forget(&mut self, txn: TxnId) {
        if self.writes_everywhere() {
            self.close_txn(txn);
            self.node.txns.remove(&txn);
        }
    }

    /// The transaction is over for its client. Where all replicas execute it, some may not be done.
    fn close_txn(&mut self, txn: TxnId) {
        let Some(open) = self.node.txns.get_mut(&txn) else { return };
        open.attended = false;
        open.awaited = None;
        if self.node.sessions.get(&open.connection) == Some(&txn) {
            self.node.sessions.remove(&open.connection);
        }
        if !(open.begun && self.writes_everywhere()) {
            self.node.txns.remove(&txn);
        }
    }

    pub(super) fn writes_everywhere(&self) -> bool {
        self.protocol.writes() == Writes::Everywhere
    }
}

/// Answers.
impl Simulation<'_> {
    /// A statement's answer came from a replica.
    pub(super) fn on_answer(
        &mut self,
        txn: TxnId,
        op: OpId,
        replica: ReplicaId,
        standing: Standing,
        answer: Result<Answer, Fault>,
    ) {
        let captured = self.choices.chance(self.scenario.captured_per_mille);
        let replayed_only = self.writes_everywhere();
        let Some(open) = self.node.txns.get_mut(&txn) else { return };
        let Some(plan) = open.plans.get(&op).cloned() else { return };
        if let Ok(answer) = &answer {
            if plan.fails() {
                open.has_failed |= standing == Standing::InSnapshot;
            } else if standing != Standing::ToBeReleased && !replayed_only {
                open.keep_done(&plan, answer, standing);
            }
            match plan.kind() {
                _ if standing == Standing::InSnapshot => {}
                StatementKind::Read | StatementKind::LockingRead => {}
                kind => match open.writes.get(&op) {
                    Some(first) if first.answer.changes != answer.changes => {
                        self.fail(Failure::Disagreement { replica, csn: None, txn: Some(txn) });
                        return;
                    }
                    Some(_) => {}
                    None => {
                        // TRUNCATE is never shipped as rows.
                        let captured = captured && !replayed_only && kind == StatementKind::Write;
                        open.writes.insert(op, Kept { plan, answer: answer.clone(), captured });
                    }
                },
            }
        }
        if let Some(open) = self.node.txns.get_mut(&txn) {
            open.answers.insert((op, replica), answer);
        }
    }

    /// A held answer may go to its client; that of an only statement when it is committed, but an error at once.
    pub(super) fn on_release(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) {
        let Some(open) = self.node.txns.get_mut(&txn) else { return };
        let failed = matches!(open.answers.get(&(op, replica)), Some(Err(_)));
        if open.autocommit && !failed {
            open.released = Some(replica);
        } else {
            if let (Some(plan), Some(Ok(answer))) =
                (open.plans.get(&op).cloned(), open.answers.get(&(op, replica)).cloned())
                && awaits_release(&plan, true, How::Home { open: false })
            {
                open.keep_done(&plan, &answer, Standing::ToBeReleased);
            }
            let letter = self.take_answer(txn, op, replica);
            self.post(letter, self.queue.now());
        }
    }

    /// What the client is sent once a replica has answered and nothing has to be waited for.
    pub(super) fn take_answer(&mut self, txn: TxnId, op: OpId, replica: ReplicaId) -> Option<Letter> {
        let open = self.node.txns.get_mut(&txn).filter(|open| open.awaited == Some(op))?;
        let reply = match (open.plans.get(&op), open.answers.get(&(op, replica))) {
            (Some(plan), Some(Ok(answer))) if plan.fails() => Reply::Broken(plan.clone(), answer.clone()),
            (Some(plan), Some(Ok(answer))) => Reply::Answer(plan.clone(), answer.clone()),
            (_, Some(Err(_))) => Reply::Failed,
            _ => {
                self.senseless(txn, Some(op), "releases an answer that did not come");
                return None;
            }
        };
        let (letter, autocommit) = (open.letter(reply), open.autocommit);
        open.awaited = None;
        if autocommit {
            self.close_txn(txn);
        }
        letter
    }

    /// Sends a letter that leaves the node at some instant.
    pub(super) fn post(&mut self, letter: Option<Letter>, from: Instant) {
        let Some(Letter { client, connection, number, reply }) = letter else { return };
        let failed = matches!(reply, Reply::Failed | Reply::Broken(..));
        self.statistics.failed_statements += u64::from(failed);
        let at = from.plus_ns(self.timing.duration_ns(from, Step::Reply));
        self.queue.schedule(at, Wake::Client { client, connection, wake: ClientWake::Reply(number, reply) });
    }

    /// The statement has run nowhere. A client that returns to a savepoint before it goes on as if nothing had been.
    pub(super) fn on_withdraw(&mut self, txn: TxnId, op: OpId) {
        self.statistics.withdrawn += 1;
        let Some(open) = self.node.txns.get_mut(&txn).filter(|open| open.awaited == Some(op)) else {
            return self.senseless(txn, Some(op), "withdraws what nobody awaits");
        };
        open.plans.remove(&op);
        open.awaited = None;
        self.reply(txn, Reply::Withdrawn);
    }

    pub(super) fn on_refuse(&mut self, txn: TxnId, op: OpId, reason: Refusal) {
        *self.statistics.refused.entry(format!("{reason:?}")).or_default() += 1;
        let awaited = self.node.txns.get(&txn).map(|open| open.awaited);
        if awaited.is_some_and(|awaited| awaited != Some(op)) {
            self.senseless(txn, Some(op), "refuses what nobody awaits");
        }
        self.reply(txn, Reply::Refused(reason));
        self.close_txn(txn);
    }

    pub(super) fn on_finish(&mut self, txn: TxnId, op: OpId, replica: Option<ReplicaId>) {
        if let Some(replica) = replica {
            self.node.unended.remove(&(txn, replica));
            self.end_lane(txn, replica, |lane| Operation::Finish { lane, txn });
        }
        self.answer_committed(txn, op);
    }

    pub(super) fn on_acknowledge(&mut self, txn: TxnId, op: OpId, csn: Csn) {
        // A unit of several decisions is reported by its last.
        let contained = csn <= self.node.found
            || match self.protocol.position() {
                Position::Prefix => self.node.committed.last().is_some_and(|last| csn <= *last),
                Position::Set => self.node.committed.contains(&csn),
            };
        if csn > self.log.durable() || !contained {
            self.fail(Failure::AcknowledgedEarly { txn, csn });
        }
        if self.node.txns.get(&txn).is_some_and(|open| open.attended) {
            self.acknowledged.push((txn, csn));
        }
        self.answer_committed(txn, op);
    }

    fn answer_committed(&mut self, txn: TxnId, op: OpId) {
        let Some(open) = self.node.txns.get(&txn).filter(|open| open.attended) else {
            return self.close_txn(txn);
        };
        if open.awaited != Some(op) {
            return self.senseless(txn, Some(op), "commits what its client had not asked to commit");
        }
        let reply = if open.autocommit {
            let mut answers = open.answers.iter().filter(|((of, _), _)| *of == op);
            let released = open.released;
            let answer = answers.find(|((_, at), _)| released.is_none_or(|released| released == *at));
            match (open.plans.get(&op), answer) {
                (Some(plan), Some((_, Ok(answer)))) => Reply::Committed(Some((plan.clone(), answer.clone()))),
                (_, Some((_, Err(_)))) => Reply::Failed,
                _ => return self.senseless(txn, Some(op), "commits a statement that was not answered"),
            }
        } else {
            Reply::Committed(None)
        };
        self.reply(txn, reply);
        self.close_txn(txn);
    }

    fn reply(&mut self, txn: TxnId, reply: Reply) {
        let letter = self.node.txns.get(&txn).and_then(|open| open.letter(reply));
        self.post(letter, self.queue.now());
    }
}

/// The log.
impl Simulation<'_> {
    pub(super) fn on_append(&mut self, csn: Csn, decision: Decision) {
        let record = match decision {
            Decision::Reserve { sequence, last } => Record::Reserve { sequence, last },
            Decision::Commit(txn) => {
                let Some(open) = self.node.txns.get_mut(&txn) else {
                    return self.senseless(txn, None, "decides a transaction that is over");
                };
                open.decided = Some(csn);
                Record::Commit { txn, writes: open.writes.values().cloned().collect() }
            }
        };
        if self.log.append(record) != csn {
            self.senseless(TxnId(0), None, "leaves a gap in the log");
        }
        self.flush();
    }

    pub(super) fn on_flushed(&mut self) {
        let csn = self.log.finish_flush();
        self.feed(Event::Durable { csn });
        self.flush();
        self.counts.flushes += 1;
        self.reached(Moment::Durable(self.counts.flushes), None);
    }

    fn flush(&mut self) {
        if self.log.start_flush() {
            let at = self.in_a(Step::Flush);
            self.queue.schedule(at, Wake::Flushed { epoch: self.node.epoch });
        }
    }
}
