//! Users: they ask, wait for the answer, look at the page for a while, and go on.

use std::collections::VecDeque;

use onecopy_core::{Instant, TxnId};
use onecopy_workload::random::{Random, unit};
use onecopy_workload::{Action, Client, Failure, InteractionId, Reply, StatementId, TransactionId, Value};

use super::history::Entry;
use super::network::Machine;
use super::setup::{SECOND_NS, Users};
use super::workload::opening;
use super::{Simulation, Wake};

/// Users are dealt ids for new rows from so many heaps, so an open loop never has more.
const USERS_MAX: u32 = 1 << 20;
/// Over which time users of a closed loop come in, in nanoseconds: TPC-W's mean think time.
const ENTER_NS: u64 = 7 * SECOND_NS;
/// A user of a closed loop has made up to so many interactions before. All begin at the same page, and their first interactions
/// are not those of the mix: with none before, a wave of first purchases comes after one to two minutes.
const BEFORE_MAX: f64 = 60.0;

pub(super) struct User {
    client: Box<dyn Client>,
    /// When the present interaction began; nothing while the user thinks.
    started: Option<Instant>,
    interaction: InteractionId,
    /// A transaction that has begun for the user and not yet at the scheduler; with whether it is usual.
    pub(super) begun: Option<(TransactionId, bool)>,
    /// What the user has sent, and the scheduler has not received.
    pub(super) request: Option<Request>,
    /// When it was sent.
    pub(super) sent: Instant,
    /// The statement whose answer the user awaits, with its parameters.
    pub(super) asked: Option<(StatementId, Vec<Value>)>,
    /// An answer on its way.
    pub(super) answer: Option<Answer>,
    /// The transaction that is open at the scheduler.
    pub(super) txn: Option<TxnId>,
    /// What the history knows of the transaction that the user means, where the protocol knows only its statements.
    pub(super) meant: Option<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Statement(StatementId),
    Commit,
    Rollback,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Done,
    /// Refused; the transaction starts again.
    Refused,
}

/// Who is there, and who comes.
pub(super) struct Crowd {
    pub(super) users: Vec<User>,
    model: Users,
    /// Of an open loop: those whose interaction is over.
    idle: VecDeque<u32>,
    /// Connections that nobody uses; `None` where each user has one.
    free: Option<u32>,
    /// Those whose interaction waits for a connection.
    queue: VecDeque<u32>,
    random: Random,
}

impl Crowd {
    pub(super) fn new(model: Users, connections: Option<u32>, random: Random) -> Crowd {
        let free = connections.map(|count| count.max(1));
        Crowd { users: Vec::new(), model, idle: VecDeque::new(), free, queue: VecDeque::new(), random }
    }

    /// Whether a user gets a connection at once; otherwise it waits for one.
    fn connects(&mut self, user: u32) -> bool {
        match &mut self.free {
            Some(0) => {
                self.queue.push_back(user);
                false
            }
            Some(free) => {
                *free -= 1;
                true
            }
            None => true,
        }
    }

    /// An interaction is over; who gets its connection.
    fn disconnects(&mut self) -> Option<u32> {
        let next = self.queue.pop_front();
        if let (None, Some(free)) = (next, &mut self.free) {
            *free += 1;
        }
        next
    }

    /// From one arrival to the next, in nanoseconds.
    fn gap_ns(&mut self, per_second: f64) -> u64 {
        let gap_s = -(1.0 - unit(&mut self.random)).ln() / per_second.max(1e-6);
        (gap_s * SECOND_NS as f64) as u64
    }
}

impl Simulation<'_> {
    pub(super) fn start_users(&mut self) {
        match self.crowd.model {
            Users::Closed(count) => {
                for _ in 0..count {
                    let enters_ns = (unit(&mut self.crowd.random) * ENTER_NS as f64) as u64;
                    let before = (unit(&mut self.crowd.random) * BEFORE_MAX) as u32;
                    let user = self.new_user(count);
                    self.user_was_there(user, before);
                    self.queue.schedule(Instant(enters_ns), Wake::User(user));
                }
            }
            Users::Open(_) => self.expect_arrival(),
        }
    }

    fn expect_arrival(&mut self) {
        let Users::Open(per_second) = self.crowd.model else { return };
        let at = self.queue.now().plus_ns(self.crowd.gap_ns(per_second));
        self.queue.schedule(at, Wake::Arrival);
    }

    /// An interaction arrives: of a user who has nothing else to do, or of a new one.
    pub(super) fn on_arrival(&mut self) {
        self.expect_arrival();
        let user = match self.crowd.idle.pop_front() {
            Some(user) => user,
            None => {
                let user = self.new_user(USERS_MAX);
                // What a new user does first is to think, for no time at all.
                self.user_acts(user, Reply::Done);
                self.crowd.idle.retain(|idle| *idle != user);
                user
            }
        };
        self.on_user(user);
    }

    fn new_user(&mut self, users_max: u32) -> u32 {
        let number = self.crowd.users.len() as u32;
        let client = self.workload.user(self.setup.seed, number, users_max);
        self.crowd.users.push(User {
            client,
            started: None,
            interaction: InteractionId(0),
            begun: None,
            request: None,
            sent: Instant(0),
            asked: None,
            answer: None,
            txn: None,
            meant: None,
        });
        number
    }

    /// A user makes so many interactions before the run begins, and then thinks. No database notices.
    fn user_was_there(&mut self, number: u32, interactions: u32) {
        let user = &mut self.crowd.users[number as usize];
        let (mut reply, mut made) = (Reply::Done, 0);
        while made <= interactions {
            reply = match user.client.next(opening(), reply) {
                Action::Execute(statement, params) => Reply::Rows(self.workload.answer(statement, &params)),
                Action::Think { next, .. } => {
                    made += 1;
                    user.interaction = next;
                    Reply::Done
                }
                Action::Begin(_) | Action::Commit | Action::Rollback => Reply::Done,
            };
        }
    }

    /// A pause is over, or an answer has come.
    pub(super) fn on_user(&mut self, number: u32) {
        let now = self.queue.now();
        let user = &mut self.crowd.users[number as usize];
        let reply = match user.answer.take() {
            None => {
                user.started = Some(now);
                self.in_progress[usize::from(user.interaction.0)] += 1;
                if !self.crowd.connects(number) {
                    return;
                }
                Reply::Done
            }
            Some(Answer::Refused) => Reply::Failed(Failure::Retry),
            Some(Answer::Done) => match user.asked.take() {
                Some((statement, params)) => Reply::Rows(self.workload.answer(statement, &params)),
                None => Reply::Done,
            },
        };
        self.user_acts(number, reply);
    }

    /// A user has a connection for the interaction that waited for one.
    pub(super) fn on_connected(&mut self, number: u32) {
        self.user_acts(number, Reply::Done);
    }

    fn user_acts(&mut self, number: u32, mut reply: Reply) {
        let now = self.queue.now();
        let clock = opening().plus(std::time::Duration::from_nanos(now.0));
        let user = &mut self.crowd.users[number as usize];
        let request = loop {
            match user.client.next(clock, reply) {
                // What begins is sent with its first statement.
                Action::Begin(transaction) => {
                    user.begun = Some((transaction, user.client.is_usual()));
                    reply = Reply::Done;
                }
                Action::Think { pause, next } => {
                    let done = std::mem::replace(&mut user.interaction, next);
                    let started = user.started.take();
                    let pause_ns = (pause.as_nanos() as f64 * self.setup.think_factor) as u64;
                    if let Some(started) = started {
                        self.in_progress[usize::from(done.0)] -= 1;
                        self.measured.interaction(done, now.since_ns(started));
                        if let Some(next) = self.crowd.disconnects() {
                            self.queue.schedule(now, Wake::Connected(next));
                        }
                    }
                    return self.user_pauses(number, pause_ns);
                }
                Action::Execute(statement, params) => {
                    user.asked = Some((statement, params));
                    break Request::Statement(statement);
                }
                // Where statements stand alone, the application does not say where transactions begin and end.
                Action::Commit | Action::Rollback if self.alone => {
                    (user.begun, user.meant) = (None, None);
                    reply = Reply::Done;
                }
                Action::Commit => break Request::Commit,
                Action::Rollback => break Request::Rollback,
            }
        };
        user.request = Some(request);
        user.sent = now;
        self.measured.messages.users += 1;
        let at = self.network.arrival(now, Machine::Users, self.front(number));
        self.queue.schedule(at, Wake::Request(number));
    }

    fn user_pauses(&mut self, number: u32, pause_ns: u64) {
        match self.crowd.model {
            Users::Closed(_) => self.queue.schedule(self.queue.now().plus_ns(pause_ns), Wake::User(number)),
            Users::Open(_) => self.crowd.idle.push_back(number),
        }
    }
}
