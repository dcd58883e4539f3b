//! One transaction that every replica executes: what it has open on each of them, and the orders that the core has
//! given for it there.
//!
//! It outlives the session's interest in it: the client is answered when the first replica has done something, and the
//! others go on. On each replica its orders are carried out one after the other, by a task on the event loop to which
//! the session's lanes belong; the task ends when there is nothing to do. Only reads are carried out by the session
//! itself, so that their rows go to the client as they come: the protocols send a read where everything before it in its
//! transaction has been done, so that the lane is free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use onecopy_core::{Csn, Event, OpId, Outcome, ReplicaId, TxnId};
use onecopy_wire::backend::build::Severity;
use onecopy_wire::backend::{Backend as Message, ErrorFields, decode};
use onecopy_wire::frame::HEAD_LEN;
use onecopy_wire::sqlstate::SqlState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use crate::clock::Stopwatch;
use crate::errors::{Cancelled, Failure};
use crate::pool::{Lent, Pool};
use crate::postgres::connect::{Credentials, CustomNames};
use crate::record::{Record, Write};
use crate::scheduler::{Commits, Writes};
use crate::server::Shared;
use crate::server::cancel::{Backend, Target};
use crate::session::environment::Environment;
use crate::session::home::Home;
use crate::session::txn::Lane;
use crate::session::unit::{self, Answer, Captured, Request, Sink, UnitError, Watch};

/// How long a replica's part of a transaction waits for a lane. All may be held by transactions that wait for the turn of
/// their commit behind this one; it is then applied from the log, for which the agent has a connection of its own.
const LANE_PATIENCE: Duration = Duration::from_secs(2);

/// How every part begins. Tables are locked in one order everywhere, so each statement sees what all transactions
/// before its own have committed (docs/protocols/real_servers.md).
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";
/// Where there are deferrable constraints: what fails must fail before the decision.
const AT_ONCE: &str = "SET CONSTRAINTS ALL IMMEDIATE";

/// A statement that every replica executes.
pub struct Operation {
    pub op: OpId,
    pub request: Request,
    pub attire: Attire,
    /// The definitions under which it was classified; 0 if they do not matter.
    pub generation: u64,
    /// It changes rows, so that all replicas must have changed as many.
    pub writes: bool,
    /// What is logged if it is all of its transaction, but for the number of rows.
    pub record: Option<Record>,
    /// By what its commit is counted if it is all of its transaction.
    pub commits: Option<Commits>,
    /// It may change settings of its lane.
    pub sets: bool,
    /// So many columns at the end of its rows are for the session.
    pub probe: Option<usize>,
    pub answers: Mutex<Answers>,
}

/// What replicas have answered.
#[derive(Default)]
pub struct Answers {
    of: SmallVec<[Answered; 3]>,
    /// The session has one, and wants no other.
    is_taken: bool,
}

/// One replica's answer to a statement.
pub struct Answered {
    replica: ReplicaId,
    pub answer: Answer,
    /// What the client would be sent.
    pub held: BytesMut,
}

/// The settings under which a statement runs.
#[derive(Clone)]
pub struct Attire {
    pub environment: Environment,
    /// Identifies those under which servers read its text.
    pub reads_under: u64,
    /// What the session has named so far.
    pub customs: CustomNames,
}

/// What a replica is to do for a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Execute a statement; `open` says that its block starts here.
    Execute { op: OpId, open: bool },
    /// End what is open without committing it.
    Leave,
    /// Commit what is open, as this CSN.
    Commit { csn: Csn },
    /// Commit what is open and wrote nothing.
    Finish,
}

/// What must be done about an order that was put down, once no lock is held.
pub enum Errand {
    /// Carry out the orders for this replica.
    Drain(Arc<Spread>, ReplicaId),
    /// Cancel what is being executed: nobody wants it any more.
    Cancel(Arc<Spread>, Target),
    /// Read the definitions that the transaction has changed.
    ReadDefinitions(Arc<Spread>),
}

impl Errand {
    pub fn run(self) {
        match self {
            Errand::Drain(spread, replica) => {
                let runtime = spread.runtime.clone();
                drop(runtime.spawn(spread.drain(replica)));
            }
            Errand::Cancel(spread, target) => {
                let runtime = spread.runtime.clone();
                drop(runtime.spawn(async move { target.cancel(&spread.shared).await }));
            }
            Errand::ReadDefinitions(spread) => {
                let runtime = spread.runtime.clone();
                drop(runtime.spawn(async move {
                    spread.shared.read_definitions_after(true, &spread.restarted).await;
                }));
            }
        }
    }
}

/// A transaction at one replica.
#[derive(Default)]
struct Branch {
    at: Mutex<At>,
}

#[derive(Default)]
struct At {
    /// With the incarnation of the replica for which each was given.
    orders: VecDeque<(u64, Order)>,
    /// Somebody carries them out.
    is_drained: bool,
    /// What is open, unless it is in use.
    lane: Option<Lent>,
    /// The session has the lane, and must end what is open when it has done.
    must_leave: bool,
    is_borrowed: bool,
    /// Where a statement is being executed.
    executing: Option<(OpId, Arc<Backend>)>,
    /// Rows that each write has changed.
    rows: Vec<(OpId, Option<u64>)>,
}

/// A transaction that every replica executes.
pub struct Spread {
    pub txn: TxnId,
    pub shared: Arc<Shared>,
    pub who: Arc<Credentials>,
    runtime: Handle,
    branches: Box<[Branch]>,
    operations: Mutex<SmallVec<[Arc<Operation>; 4]>>,
    /// The writes that are logged, each with how many there were then: what was rolled back to a savepoint is not.
    logged: Mutex<SmallVec<[(OpId, usize); 4]>>,
    /// It changes definitions.
    pub changes_definitions: bool,
    /// Sequences that it restarts, by schema and name.
    restarted: Vec<(String, String)>,
    /// Its decision has been made, with the writes that it needs.
    pub is_decided: AtomicBool,
}

impl Spread {
    /// To be made on the event loop to which its lanes shall belong.
    pub fn new(
        txn: TxnId,
        shared: &Arc<Shared>,
        who: &Arc<Credentials>,
        changes_definitions: bool,
        restarted: Vec<(String, String)>,
    ) -> Arc<Spread> {
        Arc::new(Spread {
            txn,
            shared: shared.clone(),
            who: who.clone(),
            runtime: Handle::current(),
            branches: shared.pools.iter().map(|_| Branch::default()).collect(),
            operations: Mutex::default(),
            logged: Mutex::default(),
            changes_definitions,
            restarted,
            is_decided: AtomicBool::new(false),
        })
    }

    pub fn add(&self, operation: Operation) -> Arc<Operation> {
        let operation = Arc::new(operation);
        self.operations.lock().push(operation.clone());
        operation
    }

    /// A write is logged, as the one with this number, counted from 1.
    pub fn note_logged(&self, op: OpId, number: usize) {
        self.logged.lock().push((op, number));
    }

    /// Only so many writes are logged: the others were rolled back to a savepoint.
    pub fn keep_logged(&self, count: usize) {
        self.logged.lock().retain(|(_, number)| *number <= count);
    }

    fn pool(&self, replica: ReplicaId) -> &Arc<Pool> {
        &self.shared.pools[usize::from(replica.0)]
    }

    fn branch(&self, replica: ReplicaId) -> &Branch {
        &self.branches[usize::from(replica.0)]
    }

    /// Puts down an order. What is returned has to be run when no lock is held.
    pub fn post(self: &Arc<Spread>, replica: ReplicaId, order: Order) -> Option<Errand> {
        let mut at = self.branch(replica).at.lock();
        at.orders.push_back((self.pool(replica).incarnation(), order));
        if !std::mem::replace(&mut at.is_drained, true) {
            return Some(Errand::Drain(self.clone(), replica));
        }
        let (_, backend) = at.executing.as_ref().filter(|_| order == Order::Leave)?;
        Some(Errand::Cancel(self.clone(), Target::new(replica, backend)))
    }

    /// Where a statement is being executed, for its client's wish that it be cancelled.
    pub fn executing(&self, op: OpId) -> Vec<Target> {
        let of_branch = |(replica, branch): (u16, &Branch)| {
            let at = branch.at.lock();
            let (_, backend) = at.executing.as_ref().filter(|(executing, _)| *executing == op)?;
            Some(Target::new(ReplicaId(replica), backend))
        };
        (0..).zip(&self.branches).filter_map(of_branch).collect()
    }

    /// The lane on which the transaction is open at a replica, for the session to read on.
    pub fn borrow(&self, replica: ReplicaId) -> Option<Lent> {
        let mut at = self.branch(replica).at.lock();
        at.is_borrowed = true;
        at.lane.take()
    }

    /// Takes back a borrowed lane, or one on which the session has opened the transaction; `None` if it was lost.
    pub async fn put_back(&self, replica: ReplicaId, lane: Option<Lent>) {
        let unwanted = {
            let mut at = self.branch(replica).at.lock();
            at.is_borrowed = false;
            match std::mem::take(&mut at.must_leave) {
                true => lane,
                false => {
                    at.lane = lane;
                    None
                }
            }
        };
        if let Some(lane) = unwanted {
            self.roll_back(replica, lane).await;
        }
    }

    /// Carries out the orders for a replica until there is none.
    async fn drain(self: Arc<Spread>, replica: ReplicaId) {
        loop {
            let (given_in, order, lane) = {
                let mut at = self.branch(replica).at.lock();
                let Some((given_in, order)) = at.orders.pop_front() else {
                    at.is_drained = false;
                    return;
                };
                at.must_leave |= at.is_borrowed && order == Order::Leave;
                (given_in, order, at.lane.take())
            };
            let pool = self.pool(replica);
            if pool.incarnation() != given_in {
                // The core has been told, or will be, that the replica left service, and what was open on it is gone.
                continue;
            }
            match (order, lane) {
                (Order::Execute { op, open }, lane) => {
                    self.execute(replica, given_in, op, open, lane).await;
                }
                (Order::Leave, Some(lane)) => self.roll_back(replica, lane).await,
                (Order::Leave | Order::Finish, None) => {}
                (Order::Finish, Some(mut lane)) => match lane.lane.command("COMMIT").await {
                    Ok(()) => pool.give_back(&self.who, lane),
                    Err(error) if error.is_database() => self.roll_back(replica, lane).await,
                    Err(error) => pool.suspect(lane.lane.incarnation, &error),
                },
                (Order::Commit { csn }, lane) => self.commit(replica, csn, lane).await,
            }
        }
    }

    async fn roll_back(&self, replica: ReplicaId, mut lent: Lent) {
        let pool = self.pool(replica);
        if !pool.is_current(&lent) {
            // It is closed, and may belong to a server that does not answer any more.
            return;
        }
        match lent.lane.roll_back().await {
            Ok(()) => pool.give_back(&self.who, lent),
            Err(error) => pool.suspect(lent.lane.incarnation, &error),
        }
    }

    /// Commits in its turn. A replica on which other numbers of rows were changed than were logged does not: it applies the
    /// record, and what it differs in is found there (design 3.8).
    async fn commit(&self, replica: ReplicaId, csn: Csn, lane: Option<Lent>) {
        let home = Home { shared: &self.shared, who: &self.who, txn: self.txn };
        let lane = match lane {
            Some(lent) if self.agrees(replica, csn) => Some(Lane { lent, replica }),
            Some(lent) => {
                tracing::warn!(
                    replica = replica.0, %csn,
                    "a transaction changed other numbers of rows here than at the replica that answered; it will be applied"
                );
                self.roll_back(replica, lent).await;
                None
            }
            None => None,
        };
        home.commit(replica, csn, lane).await;
    }

    fn agrees(&self, replica: ReplicaId, csn: Csn) -> bool {
        let Some(Writes { body, record, .. }) = self.shared.scheduler.recent(csn) else { return true };
        let Some(record) = record.or_else(|| Record::decode(body).ok().map(Arc::new)) else { return true };
        let is_logged = |op: OpId| self.logged.lock().iter().any(|(logged, _)| *logged == op);
        let at = self.branch(replica).at.lock();
        // Settings are among the writes, and say no number.
        let logged = record.writes.iter().filter_map(|write| write.rows);
        let here = at.rows.iter().filter(|(op, _)| is_logged(*op)).filter_map(|(_, rows)| *rows);
        logged.eq(here)
    }

    /// Executes a statement and reports what came of it. Nothing is reported of a replica that left service meanwhile.
    async fn execute(&self, replica: ReplicaId, given_in: u64, op: OpId, open: bool, lane: Option<Lent>) {
        let operation = self.operations.lock().iter().find(|operation| operation.op == op).cloned();
        let Some(operation) = operation else {
            return tracing::error!(?op, txn = ?self.txn, "the protocol executes a statement that nobody asked for");
        };
        let started = Stopwatch::start();
        let pool = self.pool(replica).clone();
        let (outcome, answered) = match self.run(replica, &operation, open, lane).await {
            Ran::Answered(answered) => {
                let failed = answered.answer.error.is_some();
                let outcome = if failed { Outcome::Failed } else { Outcome::Done { returned: Vec::new() } };
                (outcome, Some(answered))
            }
            Ran::Lost => (Outcome::Lost { answer_begun: false }, None),
        };
        let failed = outcome == Outcome::Failed;
        let mut writes = None;
        if let Some(answered) = answered {
            if !failed {
                let rows = answered.answer.rows;
                if operation.writes {
                    let mut at = self.branch(replica).at.lock();
                    at.rows.retain(|(known, _)| *known != op);
                    at.rows.push((op, rows));
                }
                writes = operation.record.as_ref().filter(|_| !self.is_decided.load(Ordering::Acquire));
                writes = writes.filter(|_| pool.incarnation() == given_in);
            }
            let mut answers = operation.answers.lock();
            answers.of.retain(|known| known.replica != replica);
            if !answers.is_taken {
                answers.of.push(answered);
            }
        }
        let event = Event::Executed { txn: self.txn, op, replica, outcome, elapsed_ns: started.elapsed_ns() };
        let scheduler = &self.shared.scheduler;
        match writes {
            // This may be what the decision waits for.
            Some(record) => {
                let logged = logged(record, self.rows_of(replica));
                let writes = Writes { commits: operation.commits.clone(), ..logged };
                scheduler.handle_with_writes(self.txn, writes, event);
            }
            None => scheduler.handle_if(|| pool.incarnation() == given_in, event),
        }
    }

    fn rows_of(&self, replica: ReplicaId) -> Option<u64> {
        self.branch(replica).at.lock().rows.last().and_then(|(_, rows)| *rows)
    }

    async fn run(&self, replica: ReplicaId, operation: &Operation, open: bool, lane: Option<Lent>) -> Ran {
        let classifier = &self.shared.classifier;
        let is_outdated = || classifier.is_changing() || operation.generation != classifier.generation();
        if operation.generation != 0 && !self.is_decided.load(Ordering::Acquire) && is_outdated() {
            // What it touches may be something else by now, unless it has been executed elsewhere in its turn. To wait until
            // it is known could be to wait for itself.
            self.branch(replica).at.lock().lane = lane;
            return Ran::refused(replica, &Failure::outdated());
        }
        let mut commands = Vec::new();
        let lent = match (lane, open) {
            (Some(lent), false) => Ok(lent),
            (_, true) => self.open_lane(replica, &operation.attire, &mut commands).await,
            (None, false) => return Ran::Lost,
        };
        let mut lent = match lent {
            Ok(lent) => lent,
            Err(Some(failure)) => return Ran::refused(replica, &failure),
            Err(None) => return Ran::Lost,
        };
        if !open {
            self.shared.renew(&mut lent.lane, replica);
            if operation.writes && classifier.has_deferrable() {
                // The constraint may be younger than the transaction.
                commands.push(AT_ONCE.to_owned());
            }
        }
        lent.lane.read_under = operation.attire.reads_under;
        lent.lane.customs.add_all(&operation.attire.customs);
        {
            let mut at = self.branch(replica).at.lock();
            if at.orders.iter().any(|(_, order)| *order == Order::Leave) {
                // Nobody wants it any more, and a cancel request would come before the statement.
                if !open {
                    at.lane = Some(lent);
                }
                return Ran::refused(replica, &Cancelled::Client.failure());
            }
            at.executing = Some((operation.op, lent.lane.backend.clone()));
        }
        let mut held = BytesMut::new();
        let held_max = self.shared.limits.held_result_bytes_max;
        let mut watch =
            Watch { kept_bytes_max: self.shared.limits.transaction_bytes_max, ..Watch::default() };
        if let Some(columns) = operation.probe {
            watch.capture = Some(Captured { columns, client_returns: true, ..Captured::default() });
        }
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let result = match unit::put_prelude(&mut lent.lane, &commands) {
            Err(error) => Err(UnitError::from(error)),
            Ok(prelude) => {
                let sink = Sink::Hold(&mut held, held_max);
                unit::run(&mut lent.lane, prelude, &operation.request, sink, &mut watch, None).await
            }
        };
        if self.changes_definitions {
            lent.lane.has_own_definitions = true;
            // Maybe, and changes of definitions are rare.
            lent.lane.changes_roles = true;
            lent.lane.generation = 0;
        }
        if operation.sets {
            // It is dressed anew for whoever borrows it next.
            lent.lane.settings = u64::MAX;
        }
        let mut at = self.branch(replica).at.lock();
        at.executing = None;
        match result {
            Ok(mut answer) => {
                answer.probed = watch.capture.take().map(|captured| captured.rows).unwrap_or_default();
                at.lane = Some(lent);
                if answer.overflow {
                    return Ran::refused(replica, &too_large(held_max));
                }
                Ran::Answered(Answered { replica, answer, held })
            }
            Err(UnitError::Lane(error)) => {
                drop(at);
                self.pool(replica).suspect(lent.lane.incarnation, &error);
                Ran::Lost
            }
            // No client takes part.
            Err(UnitError::Client(_)) => Ran::Lost,
        }
    }

    /// A lane for the transaction at a replica, with the commands that open it there; or why there is none, if that is
    /// the client's business.
    pub async fn open_lane(
        &self,
        replica: ReplicaId,
        attire: &Attire,
        commands: &mut Vec<String>,
    ) -> Result<Lent, Option<Failure>> {
        let pool = self.pool(replica);
        let lent = tokio::time::timeout(LANE_PATIENCE, pool.lend(&self.who)).await;
        let mut lent = match lent {
            Ok(Ok(lent)) => lent,
            Ok(Err(error)) if error.is_refusal() => return Err(Some(Failure::of_lane(&error))),
            Ok(Err(error)) => {
                pool.suspect_now(&error);
                return Err(None);
            }
            Err(_) => {
                tracing::warn!(replica = replica.0, txn = ?self.txn, "no lane is free; it is to be applied from the log");
                return Err(None);
            }
        };
        let generation = self.shared.classifier.generation();
        let contained = || self.shared.generation_at(replica).unwrap_or(0);
        attire.environment.dress(&mut lent.lane, generation, contained, attire.reads_under, commands);
        commands.push(BEGIN.to_owned());
        if self.shared.classifier.has_deferrable() {
            commands.push(AT_ONCE.to_owned());
        }
        Ok(lent)
    }
}

impl Operation {
    /// The answer that the core has chosen; the others are dropped.
    pub fn take(&self, replica: ReplicaId) -> Option<Answered> {
        let mut answers = self.answers.lock();
        answers.is_taken = true;
        let mut of = std::mem::take(&mut answers.of);
        let index = of.iter().position(|answered| answered.replica == replica)?;
        Some(of.swap_remove(index))
    }
}

enum Ran {
    Answered(Answered),
    Lost,
}

impl Ran {
    /// An error of our own in the place of a server's.
    fn refused(replica: ReplicaId, failure: &Failure) -> Ran {
        let mut held = BytesMut::new();
        failure.put(&mut held, Severity::Error);
        let answer = Answer { error: fields_of(&held), ..Answer::default() };
        Ran::Answered(Answered { replica, answer, held })
    }
}

/// An error's fields from its own message.
fn fields_of(frame: &[u8]) -> Option<Box<ErrorFields>> {
    let (tag, body) = (*frame.first()?, frame.get(HEAD_LEN..)?);
    match decode(tag, body) {
        Ok(Message::Error(fields)) => Some(Box::new(fields.to_owned())),
        _ => None,
    }
}

pub fn too_large(held_max: usize) -> Failure {
    Failure::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the result of a statement that every replica executes exceeds {held_max} bytes"),
    )
    .hint("Return fewer rows from statements that write or lock, or raise limits.held_result_bytes_max.")
}

/// A transaction of one statement as it is logged.
fn logged(record: &Record, rows: Option<u64>) -> Writes {
    let mut record = record.clone();
    if let Some(write) = record.writes.last_mut() {
        *write = Write { rows, ..write.clone() };
    }
    Writes::of(record)
}
