//! One emulated client: runs transactions in all the ways that clients send them, and records what it saw.

use std::sync::Arc;
use std::time::Instant;

use onecopy_sim::check::{Operation, Process, Status, Transaction};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::Isolation;
use super::session::{Session, Shape};
use super::statement::{Answer, Step};
use super::tally::{End, Tally};
use super::trouble::Trouble;
use super::world::World;

/// Which of a client's connections is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    Main,
    /// A second connection of the same client, which acts only when the first does not.
    Other,
}

/// How a transaction whose statements do not depend on each other's answers is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// One statement by itself.
    Autocommit,
    /// BEGIN, statement by statement, COMMIT.
    Interactive,
    /// `BEGIN; ...; COMMIT` in one simple query.
    OneString,
    /// Several statements in one simple query, without BEGIN: one transaction.
    Implicit,
    /// BEGIN, all statements and COMMIT sent before the first answer has come.
    Pipelined,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            How::Autocommit => "autocommit",
            How::Interactive => "interactive",
            How::OneString => "one string",
            How::Implicit => "implicit",
            How::Pipelined => "pipelined",
        }
    }
}

/// The transaction is over and recorded; its workload has nothing more to do.
#[derive(Debug)]
pub(super) struct Over;

pub(super) struct Client {
    pub(super) world: Arc<World>,
    pub(super) random: ChaCha8Rng,
    pub(super) tally: Tally,
    pub(super) history: Vec<Transaction>,
    process: Process,
    isolation: Isolation,
    clock: Instant,
    main: Session,
    other: Session,
}

/// A transaction that goes on.
pub(super) struct Open {
    on: On,
    class: String,
    invoked_ns: u64,
    operations: Vec<Operation>,
    /// Where savepoints that are open begin in `operations`, and when they began.
    savepoints: Vec<(usize, u64)>,
    /// What was rolled back to a savepoint: to be seen by nobody.
    undone: Vec<(u64, Vec<Operation>)>,
    /// The shape of every statement; if not given, each has its own.
    shape: Option<Shape>,
}

impl Client {
    pub(super) fn new(
        world: Arc<World>,
        process: Process,
        random: ChaCha8Rng,
        isolation: Isolation,
        clock: Instant,
        [main, other]: [Session; 2],
    ) -> Client {
        Client {
            world,
            random,
            tally: Tally::default(),
            history: Vec::new(),
            process,
            isolation,
            clock,
            main,
            other,
        }
    }

    /// Runs statements as one transaction, sent in a way chosen at random. Any of them may be taken back to a
    /// savepoint.
    pub(super) async fn batch(&mut self, workload: &str, steps: Vec<Step>) -> End {
        let how = self.way(steps.len());
        self.batch_as(workload, On::Main, steps, how).await
    }

    /// Runs statements that only make sense together.
    pub(super) async fn batch_whole(&mut self, workload: &str, steps: Vec<Step>) -> End {
        match self.way(steps.len()) {
            How::Interactive => {
                self.interactive(workload, On::Main, steps, 0.0).await.map_or(End::Aborted, |end| end)
            }
            how => self.batch_as(workload, On::Main, steps, how).await,
        }
    }

    fn way(&mut self, steps: usize) -> How {
        let ways = match steps {
            1 => &[How::Autocommit, How::Autocommit, How::Autocommit, How::Interactive, How::OneString][..],
            _ => &[How::Interactive, How::Interactive, How::OneString, How::Implicit, How::Pipelined],
        };
        *ways.choose(&mut self.random).unwrap_or(&How::Interactive)
    }

    /// Runs statements as one transaction.
    pub(super) async fn batch_as(&mut self, workload: &str, on: On, steps: Vec<Step>, how: How) -> End {
        if how == How::Interactive {
            return self.interactive(workload, on, steps, 0.15).await.map_or(End::Aborted, |end| end);
        }
        let class = format!("{workload}, {}", how.name());
        let shape = self.shape();
        let begin = self.begin_command(steps.iter().all(|step| step.writes.is_empty()));
        let session = self.session(on);
        // What connects and prepares is no part of the transaction.
        let ready = match session.connect().await {
            Ok(()) if how == How::Pipelined => session.prepare_all(&steps).await,
            Ok(()) if how == How::Autocommit && shape == Shape::Prepared => {
                session.prepare(steps[0].sql).await
            }
            other => other,
        };
        let mut open = Open::new(on, class, self.now());
        if let Err(trouble) = ready {
            return self.ended(open, End::Aborted, Some(trouble)).await;
        }
        let sent = self.send_batch(on, &steps, how, shape, &begin).await;
        let (end, trouble) = self.understand(&mut open, &steps, sent);
        self.ended(open, end, trouble).await
    }

    /// Runs a transaction statement by statement; some are rolled back, or a statement of them to a savepoint.
    async fn interactive(
        &mut self,
        workload: &str,
        on: On,
        steps: Vec<Step>,
        taken_back: f64,
    ) -> Result<End, Over> {
        let class = format!("{workload}, {}", How::Interactive.name());
        let only_reads = steps.iter().all(|step| step.writes.is_empty());
        let mut open = self.begin(class, on, only_reads).await?;
        let doomed = self.random.random_bool(taken_back).then(|| self.random.random_range(0..steps.len()));
        for (place, step) in steps.iter().enumerate() {
            if doomed == Some(place) {
                self.savepoint(&mut open).await?;
                self.step(&mut open, step).await?;
                self.rollback_to_savepoint(&mut open).await?;
            } else {
                self.step(&mut open, step).await?;
            }
        }
        if self.random.random_bool(0.05) {
            Ok(self.rollback(open).await)
        } else {
            Ok(self.commit(open).await)
        }
    }

    /// Begins a transaction.
    pub(super) async fn begin(&mut self, class: String, on: On, only_reads: bool) -> Result<Open, Over> {
        let begin = self.begin_command(only_reads);
        let one_shape = self.random.random_bool(0.5);
        let shape = one_shape.then(|| self.shape());
        let ready = self.session(on).connect().await;
        let mut open = Open::new(on, class, self.now());
        open.shape = shape;
        match ready {
            Ok(()) => self.command(&mut open, &begin).await.map(|()| open),
            Err(trouble) => {
                self.ended(open, End::Aborted, Some(trouble)).await;
                Err(Over)
            }
        }
    }

    /// Runs one statement of an open transaction. An error ends the transaction.
    pub(super) async fn step(&mut self, open: &mut Open, step: &Step) -> Result<Answer, Over> {
        let shape = open.shape.unwrap_or_else(|| self.shape());
        let sent = self.session(open.on).send(step, shape).await;
        let understood = sent.and_then(|answer| {
            let operations = step.meaning(&answer).map_err(|why| Trouble::Nonsense { why })?;
            Ok((answer, operations))
        });
        match understood {
            Ok((answer, operations)) => {
                open.operations.extend(operations);
                Ok(answer)
            }
            Err(trouble) => {
                open.operations.extend(step.writes.iter().cloned());
                self.give_up(open, trouble).await;
                Err(Over)
            }
        }
    }

    pub(super) async fn savepoint(&mut self, open: &mut Open) -> Result<(), Over> {
        let command = format!("SAVEPOINT s{}", open.savepoints.len());
        open.savepoints.push((open.operations.len(), self.now()));
        self.command(open, &command).await
    }

    /// Takes back what was done since the last savepoint, and forgets the savepoint.
    pub(super) async fn rollback_to_savepoint(&mut self, open: &mut Open) -> Result<(), Over> {
        let Some((from, since)) = open.savepoints.pop() else { return Ok(()) };
        let undone = open.operations.split_off(from);
        open.undone.push((since, undone));
        let name = open.savepoints.len();
        self.command(open, &format!("ROLLBACK TO SAVEPOINT s{name}")).await?;
        self.command(open, &format!("RELEASE SAVEPOINT s{name}")).await
    }

    pub(super) async fn commit(&mut self, open: Open) -> End {
        let text = *["COMMIT", "COMMIT", "END"].choose(&mut self.random).unwrap_or(&"COMMIT");
        match self.session(open.on).simple(text).await {
            Ok(_) => self.ended(open, End::Committed, None).await,
            Err(trouble) => {
                let end = if trouble.is_refusal() { End::Aborted } else { End::Unknown };
                self.ended(open, end, Some(trouble)).await
            }
        }
    }

    pub(super) async fn rollback(&mut self, open: Open) -> End {
        let trouble = self.session(open.on).simple("ROLLBACK").await.err();
        let end = if trouble.is_some() { End::Aborted } else { End::RolledBack };
        self.ended(open, end, trouble).await
    }

    fn session(&mut self, on: On) -> &mut Session {
        match on {
            On::Main => &mut self.main,
            On::Other => &mut self.other,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn shape(&mut self) -> Shape {
        *[Shape::Simple, Shape::Prepared, Shape::Unnamed].choose(&mut self.random).unwrap_or(&Shape::Simple)
    }

    /// BEGIN in one of its forms.
    fn begin_command(&mut self, only_reads: bool) -> String {
        let mut command = *["BEGIN", "START TRANSACTION"].choose(&mut self.random).unwrap_or(&"BEGIN");
        let mut modes = Vec::new();
        if self.isolation == Isolation::Mixed && self.random.random_bool(0.5) {
            command = "BEGIN";
            let levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
            modes.extend(levels.choose(&mut self.random).map(|level| format!("ISOLATION LEVEL {level}")));
        }
        if only_reads && self.random.random_bool(0.3) {
            modes.push("READ ONLY".to_owned());
        }
        if modes.is_empty() { command.to_owned() } else { format!("{command} {}", modes.join(", ")) }
    }

    async fn command(&mut self, open: &mut Open, sql: &str) -> Result<(), Over> {
        match self.session(open.on).simple(sql).await {
            Ok(_) => Ok(()),
            Err(trouble) => {
                self.give_up(open, trouble).await;
                Err(Over)
            }
        }
    }

    /// Ends a transaction before its commit was asked for.
    async fn give_up(&mut self, open: &mut Open, trouble: Trouble) {
        let open = std::mem::replace(open, Open::new(open.on, String::new(), 0));
        self.ended(open, End::Aborted, Some(trouble)).await;
    }

    async fn send_batch(&mut self, on: On, steps: &[Step], how: How, shape: Shape, begin: &str) -> Sent {
        let session = self.session(on);
        let statements = || steps.iter().map(Step::with_literals).collect::<Vec<_>>().join("; ");
        match how {
            How::Autocommit => Sent::answers(session.send(&steps[0], shape).await.map(|answer| vec![answer])),
            How::OneString => {
                let answers = session.simple(&format!("{begin}; {}; COMMIT", statements())).await;
                // Those of BEGIN and COMMIT say nothing.
                Sent::answers(answers.map(|answers| answers.into_iter().skip(1).take(steps.len()).collect()))
            }
            How::Implicit | How::Interactive => Sent::answers(session.simple(&statements()).await),
            How::Pipelined => match session.pipeline(begin, steps, "COMMIT").await {
                Ok((answers, ended)) => Sent { answers, ended },
                Err(trouble) => Sent { answers: Vec::new(), ended: Err(trouble) },
            },
        }
    }

    /// What the answers to a whole transaction say of its operations and its end.
    fn understand(&mut self, open: &mut Open, steps: &[Step], sent: Sent) -> (End, Option<Trouble>) {
        let mut trouble = None;
        let mut answers = sent.answers.into_iter();
        for step in steps {
            let understood = match answers.next() {
                Some(Ok(answer)) => step.meaning(&answer).map_err(|why| Trouble::Nonsense { why }),
                Some(Err(refusal)) => Err(refusal),
                None if sent.ended.is_ok() => {
                    Err(Trouble::Nonsense { why: format!("no answer to {}", step.sql) })
                }
                None => Ok(step.writes.clone()),
            };
            match understood {
                Ok(operations) => open.operations.extend(operations),
                Err(other) => {
                    open.operations.extend(step.writes.iter().cloned());
                    // The first says what happened; those after it that the transaction is aborted.
                    trouble.get_or_insert(other);
                }
            }
        }
        let trouble = match (trouble, sent.ended) {
            // An answer that makes no sense does not stop the commit.
            (Some(Trouble::Nonsense { .. }) | None, Err(trouble)) => Some(trouble),
            (trouble, _) => trouble,
        };
        let end = match &trouble {
            None => End::Committed,
            Some(Trouble::Refused { .. }) => End::Aborted,
            Some(Trouble::Lost { .. } | Trouble::Stalled { .. } | Trouble::Nonsense { .. }) => End::Unknown,
        };
        (end, trouble)
    }

    /// Records the transaction, and brings its connection back into order.
    async fn ended(&mut self, open: Open, end: End, trouble: Option<Trouble>) -> End {
        let completed_ns = self.now();
        self.tally.ended(&open.class, end, trouble.as_ref());
        for (since, operations) in open.undone {
            self.record(since, completed_ns, Status::Aborted, operations);
        }
        let status = match end {
            End::Committed => Status::Committed,
            End::Unknown => Status::Unknown,
            End::RolledBack | End::Aborted => Status::Aborted,
        };
        self.record(open.invoked_ns, completed_ns, status, open.operations);
        let session = self.session(open.on);
        let broken = match &trouble {
            None => false,
            Some(Trouble::Refused { .. } | Trouble::Nonsense { .. }) => {
                session.simple("ROLLBACK").await.is_err()
            }
            Some(Trouble::Lost { .. } | Trouble::Stalled { .. }) => true,
        };
        if broken {
            self.session(open.on).disconnect();
            // Whoever cannot connect does not try at full speed.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        end
    }

    fn record(&mut self, invoked_ns: u64, completed_ns: u64, status: Status, operations: Vec<Operation>) {
        if !operations.is_empty() {
            let process = self.process;
            self.history.push(Transaction { process, invoked_ns, completed_ns, status, operations });
        }
    }
}

impl Open {
    fn new(on: On, class: String, invoked_ns: u64) -> Open {
        Open {
            on,
            class,
            invoked_ns,
            operations: Vec::new(),
            savepoints: Vec::new(),
            undone: Vec::new(),
            shape: None,
        }
    }
}

/// What came of a transaction that was sent as a whole.
struct Sent {
    /// One for each statement, as far as they came.
    answers: Vec<Result<Answer, Trouble>>,
    /// Of the commit.
    ended: Result<(), Trouble>,
}

impl Sent {
    fn answers(answers: Result<Vec<Answer>, Trouble>) -> Sent {
        match answers {
            Ok(answers) => Sent { answers: answers.into_iter().map(Ok).collect(), ended: Ok(()) },
            Err(trouble) => Sent { answers: Vec::new(), ended: Err(trouble) },
        }
    }
}
