//! What happens to the cluster while its customers go on.

use std::time::{Duration, Instant};

use super::servers::Servers;
use super::{Options, report::Span};
use crate::bar::Bar;
use crate::observe::watch::Watch;
use crate::{Error, Result, cpu};

/// How long a replica may take until it serves, its copy begun anew included, or until it has left.
const CHANGE_MAX: Duration = Duration::from_secs(900);

/// Where it happens.
pub(super) struct Scene<'a> {
    calm: Duration,
    servers: &'a mut Servers,
    watch: &'a Watch,
    /// Of the load; all times count from it.
    begin: Instant,
    bar: &'a Bar,
    /// Phase by phase.
    spans: Vec<Span>,
    /// The one that is played, and what the machine had spent at its beginning.
    now: Option<(Span, Option<(u64, u64)>)>,
}

/// What is to happen in a phase.
enum Step {
    Calm,
    /// The server of this number, counted from 0, joins.
    Join(usize),
    /// It leaves, and its server is stopped.
    Leave(usize),
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        options: &Options,
        servers: &'a mut Servers,
        watch: &'a Watch,
        begin: Instant,
        bar: &'a Bar,
    ) -> Scene<'a> {
        Scene { calm: options.calm, servers, watch, begin, bar, spans: Vec::new(), now: None }
    }

    /// All phases in turn, until one fails.
    pub(super) async fn play(&mut self) -> Result<()> {
        // One more of the old ones; then as many new ones as there are old ones then.
        let old = self.servers.count() / 2;
        self.phase("calm".to_owned(), Step::Calm).await?;
        let joins = |servers: &Servers, number| format!("{} joins", servers.name(number));
        self.phase(joins(self.servers, old - 1), Step::Join(old - 1)).await?;
        for number in 0..old {
            self.phase(joins(self.servers, old + number), Step::Join(old + number)).await?;
            self.phase(format!("{} leaves", self.servers.name(number)), Step::Leave(number)).await?;
        }
        self.phase("calm again".to_owned(), Step::Calm).await
    }

    /// What was played. A phase that is under way ends here.
    pub(super) fn spans(mut self) -> Vec<Span> {
        self.end_phase(false);
        self.spans
    }

    async fn phase(&mut self, name: String, step: Step) -> Result<()> {
        self.bar.say(name.clone());
        let joins = match step {
            Step::Join(number) => Some(self.servers.name(number).to_owned()),
            _ => None,
        };
        let begin_ms = self.begin.elapsed().as_millis() as u64;
        let span = Span { name: name.clone(), joins, begin_ms, end_ms: begin_ms, busy: 0.0, done: false };
        self.now = Some((span, cpu::machine()));
        let done = match step {
            Step::Calm => {
                tokio::time::sleep(self.calm).await;
                Ok(())
            }
            Step::Join(number) => self.join(number).await,
            Step::Leave(number) => self.leave(number).await,
        };
        self.end_phase(done.is_ok());
        self.bar.step();
        done.map_err(|error| Error::Option(format!("{name}: {error}")))?;
        self.servers.expect_alive()
    }

    fn end_phase(&mut self, done: bool) {
        let Some((mut span, before)) = self.now.take() else { return };
        span.end_ms = self.begin.elapsed().as_millis() as u64;
        span.busy = before.zip(cpu::machine()).map_or(0.0, |((busy, all), (busy_now, all_now))| {
            (busy_now - busy) as f64 / (all_now - all).max(1) as f64
        });
        span.done = done;
        self.spans.push(span);
    }

    async fn join(&mut self, number: usize) -> Result<()> {
        self.servers.launch(number).await?;
        self.servers.add(number).await?;
        let name = self.servers.name(number);
        let up = tokio::time::timeout(CHANGE_MAX, self.watch.until(name, true)).await;
        up.map_err(|_| self.too_long(name, "does not serve"))
    }

    async fn leave(&mut self, number: usize) -> Result<()> {
        self.servers.remove(number).await?;
        let name = self.servers.name(number);
        let gone = tokio::time::timeout(CHANGE_MAX, self.watch.until_gone(name)).await;
        gone.map_err(|_| self.too_long(name, "has not left"))?;
        self.servers.stop(number).await
    }

    fn too_long(&self, name: &str, what: &str) -> Error {
        let changes = self.watch.changes();
        let last = changes.iter().rev().find(|change| change.replica == name);
        let detail = last.map(|change| format!(": {} {}", change.because, change.detail)).unwrap_or_default();
        Error::Option(format!("{what} after {} s{detail}", CHANGE_MAX.as_secs()))
    }
}
