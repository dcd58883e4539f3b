//! The admin console: a database of its own name that answers SHOW, VERIFY, EXCLUDE and EXPLAIN, and changes the set of
//! replicas.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hashbrown::HashSet;
use onecopy_classify::{Capturing, Class, Determinism, Kind, Scratch};
use onecopy_core::{
    Access, AccessSet, Begin, ClassId, Csn, Event, Item, Mode, OpId, SessionId, StatementKind,
};
use onecopy_log::consensus::{NodeId, Role};
use onecopy_wire::backend::Status;
use onecopy_wire::backend::build::{self, Severity};
use onecopy_wire::frontend::{self, Frontend};
use onecopy_wire::sqlstate::SqlState;

use crate::clock::Deadline;
use crate::errors::Failure;
use crate::exclusions::Outcome;
use crate::lane::LaneError;
use crate::membership;
use crate::nodes::members;
use crate::pool::Pool;
use crate::postgres::checks::{self, TableSum};
use crate::postgres::connect::Credentials;
use crate::postgres::fingerprints::{self, Fingerprint};
use crate::postgres::version::ServerVersion;
use crate::scheduler::{Directive, Mail};
use crate::server::Shared;
use crate::session::client::{Client, ClientError};
use crate::settings::{ClientAuth, ReplicaSettings, ReplicaTls};
use crate::standing::{Absence, Reason};

/// How long VERIFY waits for writers to finish, for every replica to reach the last commit then, and before that for a replica
/// that gets no further.
const VERIFY_WAIT: Duration = Duration::from_secs(60);
/// How often VERIFY compares while definitions change.
const VERIFY_ROUNDS: u32 = 5;
/// How many differences of one replica VERIFY names.
const DIFFERENCES_MAX: usize = 30;
/// How long EXCLUDE waits until the replica is out of service, and says so itself.
const EXCLUDE_WAIT: Duration = Duration::from_secs(10);

struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    command: &'static str,
}

/// Serves one console.
pub async fn serve(mut client: Client, who: Credentials, shared: Arc<Shared>) {
    let is_proven = matches!(shared.settings.auth, ClientAuth::Scram(_));
    if is_proven && who.user != shared.agent_user {
        let message = format!("user \"{}\" may not use the admin console", who.user);
        let hint = format!("Connect as \"{}\".", shared.agent_user);
        Failure::new(SqlState::INSUFFICIENT_PRIVILEGE, message)
            .hint(hint)
            .put(&mut client.output, Severity::Fatal);
        return client.close().await;
    }
    for (name, value) in [
        ("server_version", "15.0 (onecopy)"),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("standard_conforming_strings", "on"),
        ("integer_datetimes", "on"),
    ] {
        build::parameter_status(&mut client.output, name, value);
    }
    build::ready_for_query(&mut client.output, Status::Idle);
    // The client is gone, or broke the protocol: either way there is nobody to tell.
    let _ = converse(&mut client, &shared).await;
    client.close().await;
}

async fn converse(client: &mut Client, shared: &Arc<Shared>) -> Result<(), ClientError> {
    loop {
        let (tag, body) = client.next().await?;
        match frontend::decode(tag, &body)? {
            Frontend::Query(sql) => {
                answer(&mut client.output, execute(sql.trim().trim_end_matches(';').trim(), shared).await);
                build::ready_for_query(&mut client.output, Status::Idle);
            }
            Frontend::Terminate => return Ok(()),
            Frontend::Sync => build::ready_for_query(&mut client.output, Status::Idle),
            _ => Failure::unsupported(
                "the admin console speaks the simple protocol only",
                "With psql that is the default.",
            )
            .put(&mut client.output, Severity::Error),
        }
        client.flush().await?;
    }
}

fn answer(out: &mut BytesMut, result: Result<Table, Failure>) {
    match result {
        Ok(table) => {
            // The console's own names and rows are short.
            let _ = build::text_row_description(out, &table.columns);
            for row in &table.rows {
                let _ = build::text_row(out, row);
            }
            build::command_complete(out, table.command);
        }
        Err(failure) => failure.put(out, Severity::Error),
    }
}

async fn execute(command: &str, shared: &Arc<Shared>) -> Result<Table, Failure> {
    let upper = command.to_ascii_uppercase();
    match upper.as_str() {
        "SHOW STATUS" => Ok(show_status(shared)),
        "SHOW REPLICAS" => Ok(show_replicas(shared)),
        "SHOW WAITS" => Ok(show_waits(shared)),
        "SHOW NODES" => Ok(show_nodes(shared)),
        "SHOW VERSION" => Ok(Table {
            columns: vec!["version"],
            rows: vec![vec![format!("onecopy {}", env!("CARGO_PKG_VERSION"))]],
            command: "SHOW",
        }),
        "VERIFY" => verify(shared).await,
        _ if upper.starts_with("ADD REPLICA ") => add(&command["ADD REPLICA ".len()..], shared).await,
        _ if upper.starts_with("REPLACE REPLICA ") => {
            replace(&command["REPLACE REPLICA ".len()..], shared).await
        }
        _ if upper.starts_with("REMOVE REPLICA ") => {
            remove(&command["REMOVE REPLICA ".len()..], shared).await
        }
        _ if upper.starts_with("ADD NODE ") => change_nodes(&upper["ADD NODE ".len()..], shared, true).await,
        _ if upper.starts_with("REMOVE NODE ") => {
            change_nodes(&upper["REMOVE NODE ".len()..], shared, false).await
        }
        _ if upper.starts_with("EXCLUDE ") => exclude(command["EXCLUDE ".len()..].trim(), shared).await,
        _ if upper.starts_with("EXPLAIN ") => Ok(explain(&command["EXPLAIN ".len()..], shared)),
        "SHOW HELP" | "HELP" | "" => Ok(Table {
            columns: vec!["command", "what"],
            rows: HELP
                .iter()
                .map(|(command, what)| vec![(*command).to_owned(), (*what).to_owned()])
                .collect(),
            command: "SHOW",
        }),
        _ => Err(Failure::new(SqlState::SYNTAX_ERROR, format!("unknown console command: {command}"))
            .hint("SHOW HELP lists the commands.")),
    }
}

const HELP: &[(&str, &str)] = &[
    ("SHOW STATUS", "positions and counters"),
    ("SHOW REPLICAS", "each replica's state, position and load"),
    ("SHOW WAITS", "which transactions wait for which"),
    ("SHOW NODES", "the nodes that share the log, and how far behind each is"),
    ("SHOW VERSION", "the version of onecopy"),
    ("VERIFY", "compares contents, definitions and sequences of all replicas at one commit"),
    ("EXCLUDE replica", "takes a replica that is wrong out of service, until it is copied anew"),
    (
        "ADD REPLICA name HOST 'host' PORT n [TLS 'mode']",
        "has a server that holds nothing join: it is copied from a replica in service, and serves",
    ),
    ("REPLACE REPLICA name", "wipes a replica that is out of service, and copies it anew"),
    ("ADD NODE n", "has a node that was begun to join take part in the log, and count when it has caught up"),
    ("REMOVE NODE n", "has a node leave for good; its number is used up"),
    ("REMOVE REPLICA name [NOW]", "has a replica leave for good, when nothing is open there any more"),
    ("EXPLAIN statement", "class, items, determinism and rewrite of a statement"),
];

fn show_status(shared: &Shared) -> Table {
    let status = shared.scheduler.status();
    let log = shared.log.status();
    let pairs: Vec<(&str, String)> = vec![
        ("protocol", shared.settings.protocol.clone()),
        (
            "changes",
            if shared.classifier.manner().captures == Capturing::Never { "replayed" } else { "shipped" }
                .to_owned(),
        ),
        ("uptime_s", shared.started.elapsed_s().to_string()),
        ("epoch", shared.epoch.to_string()),
        ("decided", status.decided.to_string()),
        ("told", status.told.to_string()),
        ("durable", log.durable.csn.0.to_string()),
        ("connections", shared.door.connections().to_string()),
        ("transactions", status.transactions.to_string()),
        ("grants_at_once", status.grants_at_once.to_string()),
        ("grants_waited", status.grants_waited.to_string()),
        ("freshness_waits", status.freshness_waits.to_string()),
        ("reads_placed", status.reads_placed.to_string()),
        ("predicted", status.predicted.to_string()),
        ("revalidations", status.revalidations.to_string()),
        ("executed_again", status.executed_again.to_string()),
        ("reads_changed", status.reads_changed.to_string()),
        ("deadlocks", status.deadlocks.to_string()),
        ("every_table_locked", status.every_table_locked.to_string()),
        ("mispredicted", status.mispredicted.to_string()),
        ("log_first", log.first.0.to_string()),
        ("log_kept_bytes", log.sizes.bytes.to_string()),
        ("log_groups", log.written.groups.to_string()),
        ("log_records", log.written.records.to_string()),
        ("log_bytes", log.written.bytes.to_string()),
        ("log_syncs", log.written.syncs.to_string()),
    ];
    Table {
        columns: vec!["name", "value"],
        rows: pairs.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect(),
        command: "SHOW",
    }
}

fn show_replicas(shared: &Shared) -> Table {
    let status = shared.scheduler.status();
    let rows = shared
        .pools
        .members()
        .filter_map(|pool| Some((pool, status.replicas.get(usize::from(pool.replica.0))?)))
        .map(|(pool, replica)| {
            let absence = pool.standing.absence().filter(|_| !replica.up);
            let of_absence =
                |what: &dyn Fn(&Absence) -> String| absence.as_ref().map(what).unwrap_or_default();
            vec![
                pool.name().to_owned(),
                pool.connector.address.place(),
                pool.version().map(|version| version.to_string()).unwrap_or_default(),
                state(pool, replica.up, absence.as_ref()).to_owned(),
                replica.applied.to_string(),
                replica.reads.to_string(),
                replica.home_statements.to_string(),
                replica.applies.to_string(),
                pool.apply_transactions().to_string(),
                format!("{:.3}", replica.outstanding_ns / 1e6),
                pool.lent().to_string(),
                pool.idle().to_string(),
                of_absence(&|absence| absence.reason.word().to_owned()),
                of_absence(&|absence| absence.lasts_s().to_string()),
                match pool.is_leaving() {
                    true => format!("it leaves; {} transactions are open there", replica.open),
                    false => of_absence(&|absence| absence.detail.clone()),
                },
            ]
        })
        .collect();
    Table {
        columns: vec![
            "name",
            "address",
            "version",
            "state",
            "applied",
            "reads",
            "home_statements",
            "applies",
            "apply_transactions",
            "outstanding_ms",
            "lanes_lent",
            "lanes_idle",
            "out_because",
            "out_s",
            "detail",
        ],
        rows,
        command: "SHOW",
    }
}

fn state(pool: &Pool, up: bool, absence: Option<&Absence>) -> &'static str {
    match absence {
        _ if pool.is_leaving() => "leaving",
        _ if up => "up",
        Some(absence) if absence.reason == Reason::Copying => "copying",
        _ => "down",
    }
}

fn show_waits(shared: &Shared) -> Table {
    let status = shared.scheduler.status();
    let rows = status
        .waits_for
        .iter()
        .map(|(txn, blockers)| {
            let blockers: Vec<String> = blockers.iter().map(u64::to_string).collect();
            vec![txn.to_string(), blockers.join(" ")]
        })
        .collect();
    Table { columns: vec!["transaction", "waits_for"], rows, command: "SHOW" }
}

/// None where this process is alone.
fn show_nodes(shared: &Shared) -> Table {
    let status = shared.member.as_ref().map(|member| member.status());
    let rows = status.iter().flat_map(|status| {
        status.members.nodes().map(move |(id, role)| {
            let place = shared.places.as_ref().and_then(|places| places.of(id.0));
            let matched = status.matched.iter().find(|(node, _)| *node == id).and_then(|(_, place)| *place);
            let role = match role {
                Role::Voter if status.leader == Some(id) => "leader",
                Role::Voter => "follower",
                Role::Learner if place.as_ref().is_some_and(|node| !node.voting) => "non-voting",
                Role::Learner => "learner",
            };
            vec![
                id.to_string(),
                place.map(|node| format!("{}:{}", node.host, node.port)).unwrap_or_default(),
                role.to_owned(),
                matched.map(|place| place.to_string()).unwrap_or_default(),
                matched.map(|place| status.ordered.0.saturating_sub(place.0).to_string()).unwrap_or_default(),
            ]
        })
    });
    Table {
        columns: vec!["node", "address", "role", "acknowledged", "behind"],
        rows: rows.collect(),
        command: "SHOW",
    }
}

async fn change_nodes(number: &str, shared: &Arc<Shared>, adds: bool) -> Result<Table, Failure> {
    let command = if adds { "ADD NODE" } else { "REMOVE NODE" };
    let id = number
        .trim()
        .parse()
        .map_err(|_| Failure::new(SqlState::SYNTAX_ERROR, format!("{command} wants the number of a node")))?;
    let (Some(member), Some(places)) = (&shared.member, &shared.places) else {
        return Err(Failure::unsupported(
            "onecopy runs as one process, which no node can join",
            "Begin a cluster of several: docs/nodes.md.",
        ));
    };
    match adds {
        true => members::add(member, places, NodeId(id)).await?,
        false => members::remove(member, NodeId(id)).await?,
    }
    Ok(Table { columns: Vec::new(), rows: Vec::new(), command })
}

fn explain(sql: &str, shared: &Shared) -> Table {
    let mut scratch = Scratch::default();
    let manner = shared.classifier.manner();
    let catalogue = shared.classifier.catalogue_in(&manner);
    let path = crate::classifier::search_path("\"$user\", public", &shared.agent_user, &catalogue);
    let (statement, _) = shared.classifier.classify(&manner, sql, &path, &mut scratch);
    let mut rows: Vec<Vec<String>> =
        statement.explain(&catalogue, &path).into_iter().map(|(what, value)| vec![what, value]).collect();
    let status = shared.scheduler.status();
    let is_up = |pool: &&Arc<Pool>| {
        status.replicas.get(usize::from(pool.replica.0)).is_some_and(|replica| replica.up)
    };
    let up: Vec<&str> = shared.pools.members().filter(is_up).map(|pool| pool.name()).collect();
    rows.push(vec!["served by".to_owned(), served_by(&statement.class, &up)]);
    Table { columns: vec!["what", "value"], rows, command: "EXPLAIN" }
}

/// Which of the replicas in service would execute a statement, and why.
fn served_by(class: &Class, up: &[&str]) -> String {
    let (first, all) = (up.first().unwrap_or(&"none"), up.join(", "));
    let effects = &class.effects;
    match (&class.kind, &class.determinism) {
        (Kind::SyntaxError { .. } | Kind::Unsupported | Kind::Ddl { temporary: true, .. }, _)
        | (_, Determinism::Refuse(_)) => "none: it is refused".to_owned(),
        (Kind::Maintenance { .. }, _) => {
            format!("{all}, one after the other: it has no place in the order of commits")
        }
        _ if effects.catalogue_only => {
            format!("{first}: catalogue queries show object ids, which differ between replicas")
        }
        _ if effects.writes => {
            format!("home: one of {all} that contains the last writers of its items; then all")
        }
        _ if effects.locks_rows || matches!(class.kind, Kind::LockTable { .. }) => {
            format!("home: one of {all} that contains the last writers of its items")
        }
        _ if effects.reads => {
            format!("one of {all} that contains the last writers of its items")
        }
        _ => format!("{all}: any, it reads no table"),
    }
}

/// Compares all replicas at one commit: writers are held off until every replica has a snapshot of it.
/// A snapshot shows rows as they were, but tables as they are, and sequences as well: a definition that has changed on one
/// of the replicas while they were read, or numbers that were drawn, make them differ. Then they are compared again.
async fn verify(shared: &Arc<Shared>) -> Result<Table, Failure> {
    catch_up(shared).await?;
    let mut rounds = 0;
    loop {
        let generation = shared.classifier.generation();
        let verified = verify_once(shared).await;
        rounds += 1;
        let changed = shared.classifier.is_changing() || shared.classifier.generation() != generation;
        if rounds == VERIFY_ROUNDS || !may_say_otherwise(&verified, changed) {
            return verified.map(|(table, _)| table).map_err(|error| match error {
                NotVerified::NotReached(failure) => failure,
                NotVerified::NotRead(error) => Failure::of_lane(&error),
            });
        }
    }
}

/// Waits until every replica in service contains what is decided now, as long as it gets further: one may be minutes behind
/// after a load, and nobody shall be held off for that.
async fn catch_up(shared: &Arc<Shared>) -> Result<(), Failure> {
    let csn = shared.scheduler.status().decided;
    for pool in shared.pools.members() {
        shared.scheduler.want(pool.replica, Csn(csn));
        let mut reached = 0;
        let mut deadline = Deadline::after(VERIFY_WAIT);
        while pool.is_up() {
            let applied = shared.scheduler.status().replicas[usize::from(pool.replica.0)].applied;
            if applied >= csn {
                break;
            }
            if applied > reached {
                (reached, deadline) = (applied, Deadline::after(VERIFY_WAIT));
            } else if deadline.has_passed() {
                let message =
                    format!("replica {} gets no further than commit {applied} of {csn}", pool.name());
                return Err(Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                    .hint("SHOW REPLICAS, and pg_stat_activity of its server, say what it waits for."));
            }
            // Each look at the status holds the scheduler up a little, perhaps for minutes.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Whether replicas may be found equal by another comparison. Whoever waited for writers or replicas in vain is not made to
/// wait again, with everybody else behind it.
fn may_say_otherwise(verified: &Result<(Table, bool), NotVerified>, definitions_changed: bool) -> bool {
    match verified {
        Ok((table, moved)) => {
            let differs = table.rows.iter().flatten().any(|cell| cell.starts_with("DIFFERS"));
            differs && (definitions_changed || *moved)
        }
        Err(NotVerified::NotRead(_)) => definitions_changed,
        Err(NotVerified::NotReached(_)) => false,
    }
}

/// Why replicas were not compared.
#[derive(Debug)]
enum NotVerified {
    /// Writers did not finish in time, a replica did not get as far as the others, or the comparison itself failed.
    NotReached(Failure),
    /// A replica could not be read.
    NotRead(LaneError),
}

impl From<Failure> for NotVerified {
    fn from(failure: Failure) -> NotVerified {
        NotVerified::NotReached(failure)
    }
}

impl From<LaneError> for NotVerified {
    fn from(error: LaneError) -> NotVerified {
        NotVerified::NotRead(error)
    }
}

/// What one replica holds.
struct Contents {
    /// Of the server that holds them.
    version: Option<ServerVersion>,
    tables: Vec<TableSum>,
    definitions: Vec<Fingerprint>,
    sequences: Vec<Fingerprint>,
}

/// Also says whether something was decided while sequences were read, which nothing else keeps still.
async fn verify_once(shared: &Arc<Shared>) -> Result<(Table, bool), NotVerified> {
    let mail: Arc<Mail> = Arc::default();
    let txn = shared.scheduler.new_txn(&mail);
    let begin =
        Begin { txn, session: SessionId(0), read_only: false, form: 0, declared: None, stale_ok_ns: None };
    let access: AccessSet = [Access::new(Item::everything(), Mode::Shared)].into_iter().collect();
    let statement = onecopy_core::Statement::new(ClassId(0), StatementKind::LockingRead, access);
    shared.scheduler.handle(Event::Begin(begin));
    shared.scheduler.handle(Event::Statement { txn, op: OpId(0), statement });
    let granted = tokio::time::timeout(VERIFY_WAIT, mail.next(txn)).await.ok();
    let result =
        match granted {
            Some(Directive::Execute { .. }) => snapshots(shared).await,
            _ => Err(Failure::new(SqlState::LOCK_NOT_AVAILABLE, "writers did not finish in time; try again")
                .into()),
        };
    let decided = shared.scheduler.status().decided;
    shared.scheduler.handle(Event::Rollback { txn });
    // Nothing was executed where it was asked for, and after the rollback nothing more is. A protocol in which every replica
    // executes waits for each to say so.
    for directive in granted.into_iter().chain(std::iter::from_fn(|| mail.take(txn))) {
        if let Directive::Execute { op, replica, .. } = directive {
            let outcome = onecopy_core::Outcome::Failed;
            shared.scheduler.handle(Event::Executed { txn, op, replica, outcome, elapsed_ns: 0 });
        }
    }
    shared.scheduler.end_txn(txn);
    let (csn, snapshots) = result?;
    let read = side_by_side(snapshots.into_iter().map(|snapshot| async move {
        let Snapshot { name, version, mut lent, sequences } = snapshot;
        let contents = async {
            let tables = checks::contents(&mut lent.lane).await?;
            let definitions = fingerprints::definitions(&mut lent.lane).await?;
            lent.lane.command("ROLLBACK").await?;
            Ok::<_, LaneError>(Contents { version, tables, definitions, sequences })
        };
        (name, contents.await)
    }))
    .await?;
    let mut replicas = Vec::with_capacity(read.len());
    for (name, contents) in read {
        replicas.push((name, contents?));
    }
    Ok((verdict(csn, &replicas), decided != csn))
}

/// Runs futures side by side and returns their results in order. One that panics is an error of ours: without its result
/// replicas would seem equal that were not compared.
async fn side_by_side<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Result<Vec<T>, Failure> {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.map_err(|error| {
            Failure::new(SqlState::INTERNAL_ERROR, format!("a replica could not be compared: {error}"))
                .hint("This is a bug of onecopy's; its log says where it happened.")
        })?);
    }
    Ok(results)
}

/// A replica at one commit: rows are in the snapshot that the lane has open.
struct Snapshot {
    name: String,
    version: Option<ServerVersion>,
    lent: crate::pool::Lent,
    sequences: Vec<Fingerprint>,
}

/// With all writers held off: a snapshot of the same commit on every replica in service.
async fn snapshots(shared: &Arc<Shared>) -> Result<(u64, Vec<Snapshot>), NotVerified> {
    let csn = shared.scheduler.status().decided;
    let deadline = Deadline::after(VERIFY_WAIT);
    let mut snapshots = Vec::new();
    for pool in shared.pools.members() {
        if !pool.is_up() {
            continue;
        }
        shared.scheduler.want(pool.replica, Csn(csn));
        while shared.scheduler.status().replicas[usize::from(pool.replica.0)].applied < csn {
            if deadline.has_passed() || !pool.is_up() {
                let message = format!("replica {} did not reach commit {csn} in time", pool.name());
                return Err(Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut lent = pool.lend(&shared.agent).await?;
        lent.lane.settings = u64::MAX;
        let sequences = open_snapshot(&mut lent).await?;
        let (name, version) = (pool.name().to_owned(), pool.version());
        snapshots.push(Snapshot { name, version, lent, sequences });
    }
    Ok((csn, snapshots))
}

async fn open_snapshot(lent: &mut crate::pool::Lent) -> Result<Vec<Fingerprint>, LaneError> {
    lent.lane.command("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    lent.lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    fingerprints::sequences(&mut lent.lane).await
}

/// Compares with the one with which most others agree: where three differ from one, that one is the exception.
fn verdict(csn: u64, replicas: &[(String, Contents)]) -> Table {
    let agreeing = |(_, contents): &(String, Contents)| {
        replicas.iter().filter(|(_, other)| differences(other, contents).is_empty()).count()
    };
    // The first of those with most.
    let reference = replicas.iter().rev().max_by_key(|replica| agreeing(replica));
    let mut rows = Vec::new();
    if let Some((reference, first)) = reference {
        for (name, contents) in replicas {
            let verdict = match differences(first, contents) {
                _ if name == reference => "reference".to_owned(),
                differences if differences.is_empty() => "identical".to_owned(),
                differences => {
                    let beyond = differences.len().saturating_sub(DIFFERENCES_MAX);
                    let named = differences[..differences.len() - beyond].join(", ");
                    let more = if beyond > 0 { format!(", and {beyond} more") } else { String::new() };
                    format!("DIFFERS: {named}{more}")
                }
            };
            rows.push(vec![name.clone(), csn.to_string(), contents.tables.len().to_string(), verdict]);
        }
    }
    Table { columns: vec!["replica", "csn", "tables", "verdict"], rows, command: "VERIFY" }
}

/// What differs, by name. Objects that one of them lacks are named once, among the definitions.
fn differences(a: &Contents, b: &Contents) -> Vec<String> {
    let in_both = |tables: &[TableSum], others: &[TableSum]| -> Vec<TableSum> {
        let others: HashSet<&str> = others.iter().map(|table| table.table.as_str()).collect();
        tables.iter().filter(|table| others.contains(table.table.as_str())).cloned().collect()
    };
    let mut found = if a.version == b.version {
        let rows = checks::differences(&in_both(&a.tables, &b.tables), &in_both(&b.tables, &a.tables));
        [rows, fingerprints::differences(&a.definitions, &b.definitions)].concat()
    } else {
        // Each version prints definitions in its own way, and has kinds of its own.
        checks::differences(&a.tables, &b.tables)
    };
    found.extend(fingerprints::places(&a.sequences, &b.sequences));
    found
}

/// A word of the console's commands: as it stands, or a text in quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Word {
    Plain(String),
    Quoted(String),
}

impl Word {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Word::Plain(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn text(&self) -> &str {
        let (Word::Plain(text) | Word::Quoted(text)) = self;
        text
    }
}

/// Divides a command at blanks; names and texts may stand in quotes, doubled inside.
fn words(command: &str) -> Result<Vec<Word>, Failure> {
    let mut words = Vec::new();
    let mut rest = command.trim_start();
    while let Some(first) = rest.chars().next() {
        if !matches!(first, '"' | '\'') {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(Word::Plain(rest[..end].to_owned()));
            rest = rest[end..].trim_start();
            continue;
        }
        let mut text = String::new();
        let mut chars = rest.char_indices().skip(1).peekable();
        let end = loop {
            match chars.next() {
                None => {
                    let message = format!("a quote is not closed: {rest}");
                    return Err(Failure::new(SqlState::SYNTAX_ERROR, message));
                }
                Some((at, c)) if c == first && chars.next_if(|(_, next)| *next == first).is_none() => {
                    break at + 1;
                }
                Some((_, c)) => text.push(c),
            }
        };
        words.push(Word::Quoted(text));
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

async fn add(command: &str, shared: &Arc<Shared>) -> Result<Table, Failure> {
    let form = || {
        Failure::new(SqlState::SYNTAX_ERROR, format!("not understood: ADD REPLICA {command}"))
            .hint("The form is: ADD REPLICA r4 HOST 'db4.example.org' PORT 5432 [TLS 'require'].")
    };
    let words = words(command)?;
    let (name, host, port, tls) = match words.as_slice() {
        [name, h, host, p, port] if h.is("HOST") && p.is("PORT") => (name, host, port, None),
        [name, h, host, p, port, t, tls] if h.is("HOST") && p.is("PORT") && t.is("TLS") => {
            (name, host, port, Some(tls.text()))
        }
        _ => return Err(form()),
    };
    let port = port.text().parse().ok().filter(|port| *port > 0).ok_or_else(form)?;
    let settings = &shared.settings;
    let tls = match tls {
        None => settings.replica_tls.clone(),
        Some(word) => ReplicaTls::of_word(word, settings.replica_tls_root.as_ref())
            .map_err(|message| Failure::new(SqlState::INVALID_PARAMETER_VALUE, message))?,
    };
    let replica = ReplicaSettings { name: name.text().to_owned(), host: host.text().to_owned(), port, tls };
    membership::add(shared, replica).await?;
    Ok(changed(name.text(), "added; it serves when it has been copied", "ADD REPLICA"))
}

async fn replace(command: &str, shared: &Arc<Shared>) -> Result<Table, Failure> {
    let words = words(command)?;
    let [name] = words.as_slice() else {
        let message = format!("not understood: REPLACE REPLICA {command}");
        return Err(Failure::new(SqlState::SYNTAX_ERROR, message).hint("The form is: REPLACE REPLICA r2."));
    };
    membership::replace(shared, name.text()).await?;
    Ok(changed(name.text(), "wiped; it serves when it has been copied", "REPLACE REPLICA"))
}

async fn remove(command: &str, shared: &Arc<Shared>) -> Result<Table, Failure> {
    let words = words(command)?;
    let (name, at_once) = match words.as_slice() {
        [name] => (name, false),
        [name, now] if now.is("NOW") => (name, true),
        _ => {
            let message = format!("not understood: REMOVE REPLICA {command}");
            return Err(
                Failure::new(SqlState::SYNTAX_ERROR, message).hint("The form is: REMOVE REPLICA r3 [NOW].")
            );
        }
    };
    membership::remove(shared, name.text(), at_once).await?;
    Ok(changed(name.text(), "leaves", "REMOVE REPLICA"))
}

fn changed(name: &str, state: &str, command: &'static str) -> Table {
    Table { columns: vec!["replica", "state"], rows: vec![vec![name.to_owned(), state.to_owned()]], command }
}

/// Takes a replica out of service whose contents are wrong; it comes back when it was copied anew.
async fn exclude(name: &str, shared: &Arc<Shared>) -> Result<Table, Failure> {
    let name = name.trim_matches('"');
    let pool = membership::named(shared, name)?;
    let place = usize::from(pool.replica.0);
    let is_up = |place: usize| shared.scheduler.status().replicas[place].up;
    let is_last = || {
        let message = format!("no replica would serve without \"{name}\"");
        Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
            .hint("Its contents are all that there is. `onecopy status` says why the others do not serve.")
    };
    if !(0..shared.pools.len()).any(|other| other != place && is_up(other)) {
        return Err(is_last());
    }
    let replica = pool.replica;
    tracing::warn!(replica = name, "the operator takes the replica out of service");
    shared
        .exclusions
        .note_difference(replica, || "an operator has found that it differs (EXCLUDE)".to_owned());
    shared.scheduler.agents[place].suspect("an operator takes it out of service");
    let deadline = Deadline::after(EXCLUDE_WAIT);
    loop {
        match shared.exclusions.outcome(replica) {
            Some(Outcome::Excluded) if !is_up(place) => break,
            // The others have failed meanwhile.
            Some(Outcome::Kept) => return Err(is_last()),
            _ => {}
        }
        if deadline.has_passed() {
            let message = format!("that \"{name}\" differs could not be noted on it so far");
            return Err(Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                .hint("It is done as soon as the server answers, if onecopy is not restarted before."));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let state = "out of service until it is copied anew".to_owned();
    Ok(Table {
        columns: vec!["replica", "state"],
        rows: vec![vec![name.to_owned(), state]],
        command: "EXCLUDE",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(rows: &str) -> Contents {
        let table = TableSum { table: "s.t".to_owned(), rows: rows.to_owned(), sum: String::new() };
        Contents { version: None, tables: vec![table], definitions: Vec::new(), sequences: Vec::new() }
    }

    #[test]
    fn exception_among_several_replicas_is_what_differs() {
        let verdicts = |contents: &[&str]| -> Vec<String> {
            let replicas: Vec<(String, Contents)> =
                (1..).zip(contents).map(|(n, rows)| (format!("r{n}"), holding(rows))).collect();
            verdict(7, &replicas).rows.into_iter().map(|row| row[3].clone()).collect()
        };
        assert_eq!(verdicts(&["1", "1", "1"]), ["reference", "identical", "identical"]);
        assert_eq!(verdicts(&["2", "1", "1"]), ["DIFFERS: s.t (1 rows and 2)", "reference", "identical"]);
        assert_eq!(verdicts(&["1", "2"]), ["reference", "DIFFERS: s.t (1 rows and 2)"]);
        assert_eq!(verdicts(&[]), [""; 0]);
    }

    #[test]
    fn replicas_are_compared_again_only_where_that_may_find_them_equal() {
        let found = |rows: [&str; 2], moved| {
            let replicas = [("r1".to_owned(), holding(rows[0])), ("r2".to_owned(), holding(rows[1]))];
            Ok((verdict(7, &replicas), moved))
        };
        let unread = || Err(NotVerified::from(LaneError::Closed));
        let late = || Err(NotVerified::from(Failure::new(SqlState::LOCK_NOT_AVAILABLE, "writers")));
        for (verified, definitions_changed, again) in [
            (found(["1", "1"], true), true, false),
            (found(["1", "2"], false), false, false),
            (found(["1", "2"], true), false, true),
            (found(["1", "2"], false), true, true),
            (unread(), true, true),
            (unread(), false, false),
            (late(), true, false),
        ] {
            assert_eq!(may_say_otherwise(&verified, definitions_changed), again);
        }
    }

    #[test]
    fn words_are_divided_at_blanks_and_may_stand_in_quotes() {
        let plain = |text: &str| Word::Plain(text.to_owned());
        let quoted = |text: &str| Word::Quoted(text.to_owned());
        assert_eq!(
            words(" r4 HOST '/tmp/a b' PORT 5432 \"a \"\" b\" 'it''s' ").unwrap(),
            [
                plain("r4"),
                plain("HOST"),
                quoted("/tmp/a b"),
                plain("PORT"),
                plain("5432"),
                quoted("a \" b"),
                quoted("it's")
            ]
        );
        assert_eq!(words("").unwrap(), []);
        assert!(words("r4 HOST 'x").unwrap_err().message.contains("not closed"));
    }

    #[tokio::test]
    async fn comparison_that_panics_is_an_error_and_no_replica_less() {
        let numbers = |bad: Option<u32>| {
            side_by_side((0..3).map(move |n| async move {
                assert_ne!(Some(n), bad, "planted");
                n
            }))
        };
        assert_eq!(numbers(None).await.unwrap(), [0, 1, 2]);
        let failure = numbers(Some(1)).await.unwrap_err();
        assert_eq!(failure.code, SqlState::INTERNAL_ERROR);
    }
}
