//! What is noted of single requests and commits while users are at work, for whom counts do not tell enough.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use onecopy_workload::client::Action;
use onecopy_workload::{Catalogue, StatementId, Value};
use serde::Serialize;

/// Rows by which it is found out afterwards which transactions have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Witness {
    /// The statement that inserts one, within a transaction of several statements.
    pub(crate) statement: &'static str,
    /// Its parameters that tell rows apart.
    pub(crate) params: [usize; 2],
    /// A query for all rows, by the same as two integers each; times are microseconds since 1970.
    pub(crate) rows: &'static str,
}

/// What tells rows of a [`Witness`] apart.
pub(crate) type WitnessKey = [i64; 2];

/// A request that failed, or whose reply took long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Incident {
    /// When the reply came, in milliseconds from the beginning of the load.
    pub at_ms: u64,
    /// From the request to the reply, in milliseconds.
    pub waited_ms: f64,
    /// The statement's name in the catalogue, or BEGIN, COMMIT, ROLLBACK.
    pub request: String,
    /// The SQLSTATE, `timeout` or `connection lost`; `None` is success.
    pub code: Option<String>,
    /// What was said with it.
    pub message: String,
    /// The driver ran the transaction again, as after any conflict.
    pub again: bool,
    /// The host of the client's connection, by its place in the connection string, or that of its last one.
    pub host: usize,
    /// Of a transaction that only reads.
    pub only_reads: bool,
}

impl Incident {
    /// One line each.
    pub(crate) fn csv(incidents: &[Incident]) -> String {
        let mut csv = "at_ms,waited_ms,request,code,again,node,only_reads,message\n".to_owned();
        for incident in incidents {
            let Incident { at_ms, waited_ms, request, code, message, again, host, only_reads } = incident;
            let (code, message) = (code.as_deref().unwrap_or_default(), message.replace('"', "\"\""));
            let (again, node, only_reads) = (u8::from(*again), host + 1, u8::from(*only_reads));
            let _ = writeln!(
                csv,
                "{at_ms},{waited_ms:.1},{request},{code},{again},{node},{only_reads},\"{message}\""
            );
        }
        csv
    }
}

/// A COMMIT of an update that was acknowledged. Times are in milliseconds from the beginning of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) sent_ms: u64,
    pub(crate) at_ms: u64,
}

/// A connection that ended though its client was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// In milliseconds from the beginning of the load.
    pub(crate) at_ms: u64,
    /// Where it was to, by its place in the connection string.
    pub(crate) host: usize,
}

/// When connections ended though their clients were there, and where they were to.
pub(super) type Losses = Arc<Mutex<Vec<(Instant, usize)>>>;

/// What a client was told of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    /// That it did not happen.
    RolledBack,
    /// Nothing that could be relied upon.
    Nothing,
    /// That it happened.
    Committed,
}

/// Everything that was noted.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) incidents: Vec<Incident>,
    /// By the witness's key. A transaction that ran again under the same key counts as what was told last.
    pub(crate) transactions: HashMap<WitnessKey, Told>,
    pub(crate) acknowledged: Vec<Acknowledged>,
    pub(crate) lost: Vec<Lost>,
}

/// Takes notes.
#[derive(Debug)]
pub(crate) struct Journal {
    begin: Instant,
    /// A request is noted from here on.
    slow: Duration,
    catalogue: &'static Catalogue,
    witness: Witness,
    noted: Mutex<Noted>,
    losses: Losses,
}

/// A request that was replied to.
pub(super) struct Request<'a> {
    pub(super) action: &'a Action,
    pub(super) sent: Instant,
    /// As in [`Incident`].
    pub(super) host: usize,
    pub(super) only_reads: bool,
}

impl Journal {
    pub(super) fn new(
        begin: Instant,
        slow: Duration,
        catalogue: &'static Catalogue,
        witness: Witness,
        losses: Losses,
    ) -> Self {
        Journal { begin, slow, catalogue, witness, noted: Mutex::default(), losses }
    }

    /// A request was replied to now.
    pub(super) fn on_reply(&self, request: &Request<'_>, refused: Option<&Refused>, again: bool) {
        let Request { action, sent, host, only_reads } = *request;
        let now = Instant::now();
        let at_ms = self.ms(now);
        if matches!(action, Action::Commit) && refused.is_none() && !only_reads {
            self.noted().acknowledged.push(Acknowledged { sent_ms: self.ms(sent), at_ms });
        }
        let waited = now - sent;
        if refused.is_none() && waited < self.slow {
            return;
        }
        let request = match action {
            Action::Execute(statement, _) => &self.catalogue.statement(*statement).id,
            Action::Begin(_) => "BEGIN",
            Action::Commit => "COMMIT",
            Action::Rollback => "ROLLBACK",
            Action::Think { .. } => return,
        };
        let incident = Incident {
            at_ms,
            waited_ms: waited.as_secs_f64() * 1_000.0,
            request: request.to_owned(),
            code: refused.map(|refused| refused.code.clone()),
            message: refused.map(|refused| refused.message.clone()).unwrap_or_default(),
            again,
            host,
            only_reads,
        };
        self.noted().incidents.push(incident);
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.begin).as_millis() as u64
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().expect("no user panics with the lock")
    }

    /// What a statement leaves behind, if it is the witness's.
    pub(super) fn key(&self, statement: StatementId, params: &[Value]) -> Option<WitnessKey> {
        if self.catalogue.statement(statement).id != self.witness.statement {
            return None;
        }
        let int = |place: usize| match params.get(place)? {
            Value::Timestamp(time) => Some(time.micros),
            other => other.as_int(),
        };
        let [first, second] = self.witness.params;
        Some([int(first)?, int(second)?])
    }

    /// A transaction has ended; `None` left nothing behind.
    pub(super) fn on_end(&self, key: Option<WitnessKey>, told: Told) {
        let Some(key) = key else { return };
        self.noted().transactions.insert(key, told);
    }

    pub(crate) fn take(&self) -> Noted {
        let losses = std::mem::take(&mut *self.losses.lock().expect("nobody panics with the losses"));
        let lost = |(at, host): &(Instant, usize)| Lost { at_ms: self.ms(*at), host: *host };
        Noted { lost: losses.iter().map(lost).collect(), ..std::mem::take(&mut *self.noted()) }
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    /// The SQLSTATE, or what stands in its place.
    pub(super) code: String,
    pub(super) message: String,
}

impl Refused {
    /// What a client knows of a transaction whose COMMIT was answered so.
    pub(super) fn told(&self) -> Told {
        // Connection exceptions, an unknown completion, whatever ends sessions, and what is no SQLSTATE.
        let code = self.code.as_str();
        let says_nothing =
            code.len() != 5 || code.starts_with("08") || code.starts_with("57P") || code == "40003";
        if says_nothing { Told::Nothing } else { Told::RolledBack }
    }
}
