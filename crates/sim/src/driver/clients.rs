//! What clients do when they wake.

use super::{Simulation, Wake};
use crate::check::{Process, Status};
use crate::clients::script::{Ending, Script};
use crate::clients::{Client, ClientWake, Connection, Current, Reply, Request};
use crate::failure::Failure;
use crate::timing::Step;
use onecopy_core::Instant;

impl Simulation<'_> {
    pub(super) fn add_client(&mut self, transactions: u32) -> usize {
        let connection = self.new_connection();
        self.clients.push(Client {
            process: Process(connection.0 as u32),
            connection,
            remaining: transactions,
            current: None,
            awaits: None,
            requests: 0,
            sends_after: Instant(0),
        });
        self.clients.len() - 1
    }

    /// The client does its next step after a while.
    pub(super) fn client_thinks(&mut self, client: usize) {
        let pause_ns = self.scripts.think_ns(self.scenario.think_max_ns);
        self.client_thinks_for(client, pause_ns);
    }

    fn client_thinks_for(&mut self, client: usize, pause_ns: u64) {
        let at = self.queue.now().plus_ns(pause_ns);
        self.wake_client(client, at, ClientWake::Next);
    }

    pub(super) fn wake_client(&mut self, client: usize, at: Instant, wake: ClientWake) {
        let connection = self.clients[client].connection;
        self.queue.schedule(at, Wake::Client { client, connection, wake });
    }

    pub(super) fn on_client(&mut self, client: usize, connection: Connection, wake: ClientWake) {
        if self.clients[client].connection != connection {
            return;
        }
        let awaits = self.clients[client].awaits;
        match wake {
            ClientWake::Next => self.client_goes_on(client),
            ClientWake::Reply(number, reply) if awaits == Some(number) => self.on_reply(client, reply),
            ClientWake::Cancel(number) if awaits == Some(number) => {
                self.send_request(client, Request::Cancel)
            }
            ClientWake::Vanish(number) if awaits == Some(number) => {
                self.send_request(client, Request::Disconnect);
                self.client_lost_connection(client);
            }
            ClientWake::NodeLost => self.client_lost_connection(client),
            ClientWake::Reply(..) | ClientWake::Cancel(_) | ClientWake::Vanish(_) => {}
        }
    }

    fn client_goes_on(&mut self, client: usize) {
        if self.clients[client].current.is_none() {
            if self.clients[client].remaining == 0 {
                return;
            }
            self.clients[client].remaining -= 1;
            let script = self.scripts.draw();
            self.begun += 1;
            if self.scenario.left_out.contains(&(self.begun - 1)) {
                return self.client_thinks(client);
            }
            self.begin_script(client, script);
        }
        let now = self.queue.now();
        let stall_ns = 4 * self.scenario.think_max_ns;
        let Some(current) = &mut self.clients[client].current else { return };
        let step = current.step;
        if current.script.stalls_before == Some(step) {
            current.script.stalls_before = None;
            return self.client_thinks_for(client, stall_ns);
        }
        if step >= current.script.statements.len() && current.script.ending == Ending::Rollback {
            self.send_request(client, Request::Rollback);
            return self.end_script(client, Status::Aborted);
        }
        let (cancels, ending) = (current.script.cancels, current.script.ending);
        let request = next_request(current, self.scenario.declared);
        if !current.script.bracketed && current.may_commit_now() {
            self.recorder.sent_single(current.entry);
        }
        self.clients[client].requests += 1;
        let number = self.clients[client].requests;
        self.clients[client].awaits = Some(number);
        self.send_request(client, request);
        let soon = |random: &mut crate::random::Random| now.plus_ns(random.below(2_000_000));
        if cancels == Some(step) {
            let at = soon(&mut self.choices);
            self.wake_client(client, at, ClientWake::Cancel(number));
        }
        if ending == (Ending::Vanish { step }) {
            let at = soon(&mut self.choices);
            self.wake_client(client, at, ClientWake::Vanish(number));
        }
    }

    pub(super) fn begin_script(&mut self, client: usize, script: Script) {
        let entry = self.recorder.begin(self.clients[client].process, self.queue.now());
        self.clients[client].current = Some(Current { script, entry, step: 0 });
    }

    fn on_reply(&mut self, client: usize, reply: Reply) {
        self.clients[client].awaits = None;
        let Some(current) = &mut self.clients[client].current else { return };
        match reply {
            Reply::Answer(plan, answer) => {
                self.recorder.answered(current.entry, &plan, &answer);
                current.step += 1;
                if current.script.bracketed {
                    self.client_thinks(client);
                } else {
                    self.end_script(client, Status::Committed);
                }
            }
            Reply::Committed(of_single) => {
                if let Some((plan, answer)) = of_single {
                    self.recorder.answered(current.entry, &plan, &answer);
                }
                self.end_script(client, Status::Committed);
            }
            Reply::Broken(plan, answer) if current.script.returns => {
                self.statistics.returned_after_failures += 1;
                self.recorder.answered(current.entry, &plan, &answer);
                current.step += 1;
                self.client_thinks(client);
            }
            Reply::Failed | Reply::Broken(..) => {
                if current.script.bracketed {
                    self.send_request(client, Request::Rollback);
                }
                self.end_script(client, Status::Aborted);
            }
            Reply::Withdrawn if current.script.returns => {
                self.statistics.returned += 1;
                current.step += 1;
                self.client_thinks(client);
            }
            Reply::Withdrawn => {
                self.send_request(client, Request::Rollback);
                self.end_script(client, Status::Aborted);
            }
            Reply::Refused(_) => self.end_script(client, Status::Aborted),
        }
    }

    fn end_script(&mut self, client: usize, status: Status) {
        self.clients[client].awaits = None;
        if let Some(current) = self.clients[client].current.take() {
            self.recorder.ended(current.entry, status, self.queue.now());
        }
        self.client_thinks(client);
    }

    /// The client does not learn what became of what it had asked for, and goes on over a new connection.
    fn client_lost_connection(&mut self, client: usize) {
        let connection = self.new_connection();
        let lost = &mut self.clients[client];
        let perhaps = lost.awaits.is_some() && lost.current.as_ref().is_some_and(Current::may_commit_now);
        lost.connection = connection;
        lost.process = Process(connection.0 as u32);
        lost.sends_after = Instant(0);
        self.end_script(client, if perhaps { Status::Unknown } else { Status::Aborted });
    }

    fn send_request(&mut self, client: usize, request: Request) {
        let at = self.in_a(Step::Request).max(self.clients[client].sends_after.plus_ns(1));
        self.clients[client].sends_after = at;
        let connection = self.clients[client].connection;
        self.queue.schedule(at, Wake::Request { client, connection, request });
    }

    fn new_connection(&mut self) -> Connection {
        self.next_connection += 1;
        Connection(self.next_connection)
    }

    /// After all clients are done: a transaction that conflicts with everything must find nothing in its way.
    pub(super) fn probe(&mut self) {
        if self.failures.iter().any(|failure| matches!(failure, Failure::Stuck { .. })) {
            return;
        }
        self.breakages.clear();
        let client = self.add_client(0);
        self.begin_script(client, Script::probe());
        self.client_thinks_for(client, 0);
        self.go_on();
    }
}

fn next_request(current: &Current, declared: bool) -> Request {
    let script = &current.script;
    let Some(draft) = script.statements.get(current.step).cloned() else { return Request::Commit };
    match (script.bracketed, current.step) {
        (false, _) => Request::Single { draft, poison: script.poison, entry: current.entry },
        (true, 0) => Request::Begin {
            read_only: script.read_only,
            form: script.form,
            declares: if declared { script.declares() } else { None },
            poison: script.poison,
            first: draft,
            entry: current.entry,
        },
        (true, _) => Request::Statement(draft),
    }
}
