//! Several processes, each before a database of its own, whose updates take effect in one order: replication over wide areas, on real
//! servers (docs/protocols/wide_area.md).
//!
//! ```text
//!   client -- client.rs --> transaction.rs        messages become a transaction; what it may touch
//!                 |  spoken.rs                     or come statement by statement
//!                 |
//!                 v
//!              site.rs  <-->  the core's protocol  what happens, and what is to be done
//!              |     |
//!     the core's     database.rs                  received, ordered, stable; executed, applied, committed
//!     multicast     freshness.rs                  up to where a query must see
//!   likeness.rs                                    what has to be the same at all
//!       |     |
//!   messages.rs  the log that all sites share      between sites
//!   request.rs                                     what is asked of all sites of a transaction
//!   outcomes.rs                                    whether what all sites execute came to the same at each
//! ```

mod client;
mod console;
mod database;
mod freshness;
mod likeness;
mod messages;
mod outcomes;
pub mod peers;
mod request;
mod site;
mod spoken;
mod transaction;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onecopy_classify::Catalogue;
use onecopy_core::Csn;
use onecopy_core::protocol::wide_area::{Choice, Delivery, Execution, Items, Queries};
use onecopy_log::consensus::MESSAGE_LEN_MAX;
use onecopy_log::{Log, Member, SharedHooks};
use onecopy_wire::sqlstate::SqlState;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::classifier::Classifier;
use crate::clock::{self, Clock};
use crate::errors::{Failure, ServeError};
use crate::nodes::handshake::Purpose;
use crate::nodes::links::{self, Said};
use crate::nodes::peers::{Peers as Others, Serve};
use crate::nodes::{self, init};
use crate::postgres::checks::{self, Facts};
use crate::postgres::connect::{Credentials, CustomNames};
use crate::server::door::Door;
use crate::server::{self, Handle, files, preparation, tls};
use crate::settings::{NodesSettings, ReplicaSettings, Settings};
use crate::workers::{Admission, Workers};
use database::{Answer, Database};
use freshness::Freshness;
use likeness::Likeness;
use messages::SiteMessage;
use site::{Ended, Input, Surroundings};
use spoken::Ask;
use transaction::Transaction;

/// The names of the protocols that are served so in the configuration.
const WIDE_AREA: &str = "wide_area";
const CERTIFIED: &str = "certified";

/// Whether a configured protocol is one of these.
pub fn is_one(protocol: &str) -> bool {
    [WIDE_AREA, CERTIFIED].contains(&protocol)
}

/// By what updates of all sites are put in one order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// Before they execute.
    WideArea(Choice),
    /// When they have executed.
    Certified,
}

/// Before a site begins anew whose server cannot be reached.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Takes a client's transaction, to be answered once; false where nobody does any more.
type Submit = Box<dyn Fn(Arc<Transaction>, oneshot::Sender<Answer>) -> bool + Send + Sync>;
/// Takes what is asked of a transaction that comes statement by statement.
type Speak = Box<dyn Fn(Ask) -> bool + Send + Sync>;
/// What the console shows.
type Shown = Box<dyn Fn() -> Vec<(&'static str, String)> + Send + Sync>;

/// What clients of a site share.
pub struct Shared {
    pub door: Arc<Door>,
    pub database_name: String,
    pub classifier: Arc<Classifier>,
    pub database: Arc<Database>,
    pub submit: Submit,
    /// Where transactions may come statement by statement.
    spoken: Option<Speaking>,
    pub shown: Shown,
    /// Bytes of an answer that may be held.
    pub held_max: usize,
    /// How long a client waits for an answer, in milliseconds; 0 for ever.
    pub wait_ms: u64,
    /// The number of this site among them, and how many there are.
    pub place: (i64, i64),
    /// What says up to where a query must see, where that can be asked.
    freshness: Option<Arc<Freshness>>,
    /// How old it may be, unless a session says otherwise.
    staleness_max: Option<Duration>,
}

/// What carries transactions that come statement by statement.
struct Speaking {
    speak: Speak,
    /// So many at once.
    permits: Arc<Semaphore>,
    /// How long a client may be silent in one, in milliseconds; 0 for ever.
    silence_max_ms: u64,
}

/// What clients are served by.
struct Clients<'n> {
    database: Arc<Database>,
    catalogue: Catalogue,
    /// Of all sites, in order.
    numbers: &'n [u64],
    this: u64,
    submit: Submit,
    speak: Option<Speak>,
    shown: Shown,
    freshness: Option<Arc<Freshness>>,
}

/// Clients are being served.
struct Started {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    tasks: tokio::task::JoinSet<()>,
    addresses: Vec<String>,
}

impl Started {
    async fn begin(settings: &Settings, clients: Clients<'_>) -> Result<Started, ServeError> {
        let Clients { database, catalogue, numbers, this, submit, speak, shown, freshness } = clients;
        let listeners = server::listen(settings).await?;
        let tls = settings.tls.as_ref().map(tls::Acceptor::load).transpose()?;
        let at = numbers.iter().position(|number| *number == this).unwrap_or(0);
        let shared = Arc::new(Shared {
            door: Arc::new(Door::new(settings, tls)),
            database_name: settings.database.clone(),
            classifier: Arc::new(Classifier::new(catalogue, Csn(0))),
            database,
            submit,
            spoken: speak.map(|speak| Speaking {
                speak,
                permits: Arc::new(Semaphore::new(spoken_max(settings))),
                silence_max_ms: settings.limits.idle_in_transaction_timeout_ms,
            }),
            shown,
            held_max: settings.limits.held_result_bytes_max,
            wait_ms: settings.limits.wait_timeout_ms,
            place: (i64::try_from(at).unwrap_or(0), i64::try_from(numbers.len()).unwrap_or(1)),
            freshness,
            staleness_max: settings.staleness_max_ms.map(Duration::from_millis),
        });
        let workers = Arc::new(Workers::start(settings.workers).map_err(ServeError::Threads)?);
        let mut tasks = tokio::task::JoinSet::new();
        let admissions = Arc::new(Semaphore::new(settings.limits.connections_max + files::ADMITTED_BEYOND));
        let addresses = listeners.iter().map(|(address, _)| address.clone()).collect();
        for (_, listener) in listeners {
            let (shared, workers) = (shared.clone(), workers.clone());
            let serve = move |stream, admission: Admission| {
                let (shared, crowded) = (shared.clone(), admission.crowded);
                workers.serve(stream, admission, move |stream| client::handle(stream, shared, crowded));
            };
            tasks.spawn(server::accept(listener, admissions.clone(), serve));
        }
        Ok(Started { shared, workers, tasks, addresses })
    }

    fn handle(&self) -> Handle {
        Handle { addresses: self.addresses.clone() }
    }

    /// Serves no client any more.
    async fn end(mut self) {
        self.tasks.shutdown().await;
        drop(self.workers);
    }
}

/// Updates that may have a connection at once.
fn updates_max(settings: &Settings) -> usize {
    settings.limits.lanes_per_replica_max.div_ceil(2)
}

/// Those of them that may come statement by statement: whoever waits for its client is not to be in the way of all others.
fn spoken_max(settings: &Settings) -> usize {
    (updates_max(settings) * 3 / 4).max(1)
}

/// What is chosen.
fn scheme(settings: &Settings) -> Result<Scheme, ServeError> {
    if settings.protocol == WIDE_AREA {
        return Ok(Scheme::WideArea(settings.wide_area));
    }
    let choice = settings.wide_area;
    let names = [
        (
            "queries",
            choice.queries == Queries::Snapshot,
            "snapshot: queries read what is committed at their site",
        ),
        (
            "execution",
            choice.execution == Execution::Symmetric,
            "its own: an update executes where its client is",
        ),
        (
            "delivery",
            choice.delivery == Delivery::Safe,
            "safe: whoever reads what is lost later would be let commit",
        ),
        ("items", choice.items == Items::Rows, "rows"),
    ];
    match names.into_iter().find(|(_, is_so, _)| !is_so) {
        None => Ok(Scheme::Certified),
        Some((name, _, what)) => Err(ServeError::Settings(format!(
            "wide_area.{name} cannot be chosen for protocol = \"{CERTIFIED}\", where it is {what}; leave it out, or set protocol = \"{WIDE_AREA}\""
        ))),
    }
}

/// What a message has beside a transaction, at most.
const HEAD_LEN_MAX: usize = 1_024;

/// Why a transaction cannot be sent to other sites, if it is too long for that with so many bytes beside it.
fn too_long(encoded: &[u8], beside: usize) -> Option<Failure> {
    let len = encoded.len() + beside;
    if len + HEAD_LEN_MAX <= MESSAGE_LEN_MAX {
        return None;
    }
    let what = format!("a transaction of {len} bytes is too long to be sent to other sites");
    let hint = format!("At most {} bytes pass: use several transactions.", MESSAGE_LEN_MAX - HEAD_LEN_MAX);
    Some(Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, what).hint(hint))
}

/// The only server of a site.
fn own_replica(settings: &Settings) -> Result<ReplicaSettings, ServeError> {
    match &settings.replicas[..] {
        [replica] => Ok(replica.clone()),
        several => Err(ServeError::Settings(format!(
            "protocol = \"{}\" has one database at each site, and {} are configured; list this site's own one only",
            settings.protocol,
            several.len()
        ))),
    }
}

fn database_of(settings: &Settings, replica: &ReplicaSettings) -> Arc<Database> {
    let agent = Credentials {
        user: settings.agent_user.clone(),
        password: settings.agent_password.clone(),
        customs: CustomNames::default(),
    };
    let queries_max = (settings.limits.lanes_per_replica_max / 2).max(1);
    Arc::new(Database::new(server::connector(settings, replica, None), agent, queries_max))
}

/// What a server says of itself, if it can be served.
async fn facts_of(database: &Database, replica: &ReplicaSettings) -> Result<Facts, ServeError> {
    let failed = |error: String| ServeError::Replicas(format!("{}: {error}", replica.name));
    let facts = database.facts().await.map_err(|error| failed(error.to_string()))?;
    checks::compare(&[(&replica.name, &facts)], false).map_err(ServeError::Replicas)?;
    Ok(facts)
}

/// What is told of a site.
#[derive(Default)]
pub struct Figures {
    contained: AtomicU64,
    stable: AtomicU64,
    heard: AtomicU64,
    pub begun: AtomicU64,
    /// Updates that were executed in place.
    pub in_place: AtomicU64,
}

impl Figures {
    pub fn note(&self, contained: Csn, stable: Csn) {
        self.contained.store(contained.0, Ordering::Relaxed);
        self.stable.store(stable.0, Ordering::Relaxed);
    }

    fn shown(&self, this: u64, log: &Log, member: &Member) -> Vec<(&'static str, String)> {
        let leader = member.status().leader.map_or_else(String::new, |leader| leader.0.to_string());
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed).to_string();
        vec![
            ("site", this.to_string()),
            ("leader", leader),
            ("others_heard", number(&self.heard)),
            ("stable", number(&self.stable)),
            ("contained", number(&self.contained)),
            ("log_first", log.held().first.to_string()),
            ("begun", number(&self.begun)),
            ("in_place", number(&self.in_place)),
        ]
    }

    pub fn hear(&self, others: usize) {
        self.heard.store(others as u64, Ordering::Relaxed);
    }
}

impl Shared {
    /// Draws a number of a sequence: each site has its own ones, so nobody is asked. The server's counter counts them.
    pub async fn draw(&self, schema: &str, name: &str) -> Result<i64, Failure> {
        let catalogue = self.classifier.catalogue();
        let known = catalogue.sequences.iter().find(|one| one.schema == schema && one.name == name);
        let Some(known) = known else {
            let what = format!("sequence \"{schema}.{name}\" does not exist");
            return Err(Failure::new(SqlState::UNDEFINED_TABLE, what));
        };
        let whole =
            format!("{}.{}", crate::agent::quote_identifier(schema), crate::agent::quote_identifier(name));
        let asked = async {
            let mut lane = self.database.lend().await?;
            // Commits of the agent's are not waited for; but nobody else knows how far it has counted.
            let sql = format!(
                "SELECT pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.nextval({})",
                crate::agent::quote(&whole)
            );
            let rows = lane.query(&sql).await;
            if rows.as_ref().err().is_none_or(crate::lane::LaneError::is_database) {
                self.database.give_back(lane);
            }
            rows
        };
        let rows = asked.await.map_err(|error| Failure::of_lane(&error))?;
        let drawn = rows.into_iter().flatten().flatten().next_back().and_then(|text| text.parse().ok());
        let value = drawn.and_then(|drawn| own_number(drawn, known.start, known.increment, self.place));
        value.filter(|value| (known.min..=known.max).contains(value)).ok_or_else(|| {
            let what = format!("sequence \"{name}\" has no more numbers for this site");
            Failure::new(SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, what)
        })
    }
}

/// The number that a site takes in the place of one that its server has counted: of all sites' together none twice.
fn own_number(counted: i64, start: i64, increment: i64, (site, sites): (i64, i64)) -> Option<i64> {
    let nth = counted.checked_sub(start)?.checked_div(increment)?;
    let nth = nth.checked_mul(sites)?.checked_add(site)?;
    nth.checked_mul(increment)?.checked_add(start)
}

/// Serves as one of several sites, until `shutdown` is ready.
///
/// # Errors
/// [`ServeError`] if serving cannot start, the log has failed, or the database is not what it should be.
pub async fn serve(
    mut settings: Settings,
    sites: NodesSettings,
    ready: impl FnOnce(&Handle),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let scheme = scheme(&settings)?;
    let replica = own_replica(&settings)?;
    files::make_room(&mut settings)?;
    let sites = Arc::new(sites);
    let folder = preparation::lock_log(&settings)?;
    let for_sites = nodes::listen_for_nodes(&sites).await?;
    let peers = Others::start(&sites).map_err(ServeError::Threads)?;
    let links = peers.links.clone();

    let (inputs, received) = mpsc::unbounded_channel();
    let hooks = {
        let (durable, member) = (inputs.clone(), inputs.clone());
        SharedHooks::new(
            // Without a receiver the process is ending.
            move |reached: onecopy_log::Durable| drop(durable.send(Input::Durable(reached.csn))),
            move |event| drop(member.send(Input::Member(event))),
        )
    };
    let opened = Log::open_shared(
        folder,
        &settings.log.dir,
        nodes::options(&settings, &sites),
        Box::new(links.clone()),
        hooks,
    );
    let (log, member) = opened.map_err(|error| ServeError::Log(error.to_string()))?;
    let log = Arc::new(log);
    peers.serve(for_sites, answer(&log, &member, &links, &inputs)).map_err(ServeError::Threads)?;

    let database = database_of(&settings, &replica);
    let log_id = log.held().log_id.to_string();
    let failed = |error: String| ServeError::Replicas(format!("{}: {error}", replica.name));
    let mut contained = database.begin(&log_id).await.map_err(|error| failed(error.to_string()))?;
    check(&contained, &log_id).map_err(failed)?;
    let facts = facts_of(&database, &replica).await?;
    let catalogue = database.definitions().await.map_err(|error| failed(error.to_string()))?;
    let mut numbers: Vec<u64> = sites.nodes.iter().map(|node| node.id).collect();
    numbers.sort_unstable();
    let started = format!("{} {:?} {numbers:?} {}", settings.protocol, settings.wide_area, request::FORMAT);
    // Where items are what sites tell each other, they have to mean the same.
    let more = if scheme == Scheme::Certified { likeness::numbers(&catalogue) } else { Vec::new() };
    let likeness = Likeness::read(started, &facts, &database, more).await;
    let likeness = likeness.map_err(|error| failed(error.to_string()))?;
    let figures = Arc::<Figures>::default();
    let submit = {
        let inputs = inputs.clone();
        move |transaction, answer| inputs.send(Input::Submit { transaction, answer }).is_ok()
    };
    let speak: Option<Speak> = (scheme == Scheme::Certified).then(|| {
        let inputs = inputs.clone();
        Box::new(move |ask| inputs.send(Input::Spoken(ask)).is_ok()) as Speak
    });
    let shown = {
        let (figures, log, member, this) = (figures.clone(), log.clone(), member.clone(), sites.this);
        move || figures.shown(this, &log, &member)
    };
    let (submit, shown) = (Box::new(submit), Box::new(shown));
    let (database, this) = (database.clone(), sites.this);
    let freshness = Arc::new(Freshness::new(member.clone(), Clock::start()));
    let clients = Clients {
        database: database.clone(),
        catalogue,
        numbers: &numbers,
        this,
        submit,
        speak,
        shown,
        freshness: Some(freshness.clone()),
    };
    let mut started = Started::begin(&settings, clients).await?;
    started.tasks.spawn(async move { freshness.keep_asking().await });
    ready(&started.handle());

    let mut around = Surroundings {
        scheme,
        this: sites.this,
        sites: numbers,
        incarnation: u64::try_from(clock::unix_micros()).unwrap_or(0),
        likeness,
        links: links.clone(),
        log: log.clone(),
        database: database.clone(),
        classifier: started.shared.classifier.clone(),
        held_max: settings.limits.held_result_bytes_max,
        updates_max: updates_max(&settings),
        inputs: received,
        pending: BTreeMap::new(),
        queries: Vec::new(),
        beginnings: 0,
        next_number: 1,
        clock: Clock::start(),
        leads: None,
        figures: figures.clone(),
    };
    let running = async {
        loop {
            figures.begun.fetch_add(1, Ordering::Relaxed);
            match around.run(contained).await {
                Ended::Anew(why) => tracing::warn!("{why}; this site begins anew from the log"),
                Ended::Log(why) => return ServeError::LogFailed(why),
                Ended::Stuck(why) => return failed(why),
                Ended::Diverged(why) => {
                    if let Err(error) = database.note_diverged(&why).await {
                        tracing::error!(%error, "note that the database differs");
                    }
                    return failed(why);
                }
            }
            loop {
                match database.begin(&log_id).await {
                    Ok(found) => {
                        contained = found;
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "reach this site's database; trying again");
                        // Whoever gives places must know what has one, and this site cannot get on.
                        if around.leads.is_some() {
                            let _heir = member.hand_over();
                        }
                        if let Some(why) = around.take_for(RETRY_PAUSE).await {
                            return ServeError::LogFailed(why);
                        }
                    }
                }
            }
        }
    };
    let ended = tokio::select! {
        () = shutdown => None,
        error = running => Some(error),
    };
    started.end().await;
    if ended.is_none() {
        // Then the others wait for less than it takes to miss a leader.
        let _heir = member.hand_over();
        tokio::time::sleep(Duration::from_millis(sites.election_timeout_ms / 2)).await;
    }
    let closed = log.close();
    peers.end();
    match ended {
        Some(error) => Err(error),
        None => closed.map_err(|fault| ServeError::LogFailed(fault.to_string())),
    }
}

/// Whether a database may serve by this log.
fn check(contained: &database::Contained, log_id: &str) -> Result<(), String> {
    if let Some(why) = &contained.diverged {
        return Err(format!("it must not serve: {why}"));
    }
    match &contained.log_id {
        Some(known) if known != log_id => Err(format!(
            "it follows log {known}, and this site's is {log_id}: copy another site's database, the schema \"onecopy\" included"
        )),
        _ => Ok(()),
    }
}

/// What is done with connections of other sites.
fn answer(
    log: &Arc<Log>,
    member: &Arc<Member>,
    links: &links::Links,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Serve {
    let (log, member, links, inputs) = (log.clone(), member.clone(), links.clone(), inputs.clone());
    Arc::new(move |stream, from, purpose| {
        let (log, member, links, inputs) = (log.clone(), member.clone(), links.clone(), inputs.clone());
        Box::pin(async move {
            match purpose {
                Purpose::Log => {
                    let heard = links::hear(stream, |said| match said {
                        Said::Log(message) => member.receive(message),
                        Said::Keep(csn) => log.truncate_before(csn),
                        Said::Place(place) => links.learn(from, place),
                        Said::Site(message) => match SiteMessage::decode(message) {
                            // Without a receiver the process is ending.
                            Some(message) => drop(inputs.send(Input::Heard { from, message })),
                            None => tracing::warn!(site = from.0, "another site speaks another version"),
                        },
                    });
                    let ended = heard.await;
                    drop(inputs.send(Input::Parted { from }));
                    ended
                }
                Purpose::Origin => init::tell(stream, &log.held()).await,
                Purpose::Session | Purpose::Cancel => {
                    Err(std::io::Error::other("a site takes no clients of others"))
                }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_draw_different_numbers_however_far_each_has_counted() {
        let mut drawn = std::collections::BTreeSet::new();
        for site in 0..3 {
            for counted in (10..70).step_by(5) {
                assert!(drawn.insert(own_number(counted, 10, 5, (site, 3)).unwrap()));
            }
        }
        assert_eq!(drawn.len(), 36);
        assert!(drawn.iter().all(|number| (number - 10) % 5 == 0));
        // Nobody draws what was drawn before the sites were made of one database.
        assert!(own_number(45, 10, 5, (0, 3)).unwrap() >= 45);
        assert_eq!(own_number(i64::MAX, 0, 1, (0, 3)), None);
    }
}
