//! A client of a site: its messages become transactions that come whole, and their answers messages.
//!
//! Whole is what one Query message holds, or what is executed up to a Sync; with or without BEGIN and COMMIT around it. Those that come statement by
//! statement, where that may be: [`conversation`]. What a session sets: [`settings`].

mod conversation;
mod settings;

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use onecopy_classify::references::{references, replace};
use onecopy_classify::{Class, FrozenKind, FrozenValue, Kind, NoParams, Scratch, normalise};
use onecopy_core::Csn;
use onecopy_wire::backend::{self, Status, build, build::Severity};
use onecopy_wire::frame::HEAD_LEN;
use onecopy_wire::frontend::{self, Bind, Frontend, Named, Parse, Target};
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, Start};
use rand::Rng;
use tokio::sync::oneshot;

use self::conversation::Conversation;
use super::database::{self, Answer, PartAnswer};
use super::transaction::{
    Transaction, not_whole, refusal, refusal_as_source, refusal_of_write, with_params, writes,
};
use super::{Shared, console, freshness};
use crate::classifier::{Statement, rewrite_of, search_path};
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::postgres::connect::Credentials;
use crate::record::{Record, Settings, What, Write};
use crate::server::door::{Opened, refuse};
use crate::server::startup::{ADMIN_DATABASE, startup_environment};
use crate::session::client::{Client, ClientError};
use crate::session::drawn::Drawn;
use crate::session::environment::Environment;
use crate::session::frozen::timestamp;
use crate::stream::Stream;

/// Serves one connection from its first byte to its last.
pub async fn handle(stream: Stream, shared: Arc<Shared>, crowded: bool) {
    match shared.door.admit(stream, crowded).await {
        Some(Opened::Session(client, start, who, counted)) => {
            begin(client, &start, who, shared).await;
            drop(counted);
        }
        // A transaction that was multicast cannot be taken back. What comes statement by statement could be, and is not yet.
        Some(Opened::Cancel { .. }) | None => {}
    }
}

async fn begin(client: Client, start: &Start, who: Credentials, shared: Arc<Shared>) {
    let asked = start.database().to_owned();
    if asked == ADMIN_DATABASE {
        return console::serve(client, &shared).await;
    }
    if asked != shared.database_name {
        let message = format!("database \"{asked}\" does not exist");
        let failure = Failure::new(SqlState::INVALID_CATALOG_NAME, message)
            .hint(format!("This site serves \"{}\".", shared.database_name));
        return refuse(client, &failure).await;
    }
    let environment = match startup_environment(start, &shared.classifier.catalogue(), &who.user) {
        Ok(environment) => environment,
        Err(failure) => return refuse(client, &failure).await,
    };
    let mut session = Session {
        client,
        shared,
        user: who.user,
        environment,
        reported: HashMap::new(),
        statements: HashMap::new(),
        portals: HashMap::new(),
        steps: Vec::new(),
        skipping: false,
        drawn: Drawn::default(),
        scratch: Scratch::default(),
        conversation: None,
    };
    if let Some(failure) = settings::refusal_of_default(&session.environment) {
        return refuse(session.client, &failure).await;
    }
    let begins_with = session.environment.value(freshness::SETTING).map(str::to_owned);
    if let Some(value) = begins_with
        && let Err(failure) = session.set_staleness_max(Some(&value))
    {
        return refuse(session.client, &failure).await;
    }
    if let Err(failure) = session.report_settings().await {
        return refuse(session.client, &failure).await;
    }
    let pid: u32 = rand::rng().random_range(1..=0x7fff_ffff);
    let key: [u8; startup::CANCEL_KEY_LEN_MIN] = rand::rng().random();
    if build::backend_key_data(&mut session.client.output, pid, &key).is_err() {
        return;
    }
    session.ready();
    match session.run().await {
        Ok(None) | Err(ClientError::Gone | ClientError::Lost(_)) => {}
        Ok(Some(failure)) => {
            // Whoever does not read may take its time.
            session.conversation = None;
            refuse(session.client, &failure).await;
        }
        Err(error) => {
            let code = match error {
                ClientError::TooLarge(_) => SqlState::PROGRAM_LIMIT_EXCEEDED,
                _ => SqlState::PROTOCOL_VIOLATION,
            };
            refuse(session.client, &Failure::new(code, error.to_string())).await;
        }
    }
}

struct Session {
    client: Client,
    shared: Arc<Shared>,
    user: String,
    environment: Environment,
    /// What the client was told of the server's settings.
    reported: HashMap<String, String>,
    statements: HashMap<String, Arc<Prepared>>,
    portals: HashMap<String, Portal>,
    /// What a Sync will answer.
    steps: Vec<Step>,
    /// An error was answered: everything up to the next Sync is skipped.
    skipping: bool,
    drawn: Drawn,
    scratch: Scratch,
    /// The transaction that is open, if it comes statement by statement.
    conversation: Option<Conversation>,
}

struct Prepared {
    sql: String,
    types: Vec<u32>,
}

#[derive(Clone)]
struct Portal {
    prepared: Arc<Prepared>,
    /// What follows the names in its Bind.
    bind: Bytes,
}

/// A message of the extended protocol, as it is to be answered.
enum Step {
    Parsed,
    Bound,
    Closed,
    /// What a server says of a statement, or a portal.
    Described(Bytes),
    /// A portal's description, which comes with what is executed next, if anything is.
    DescribePortal(Portal),
    Execute(Portal),
    Failed(Failure),
}

/// What a part of a message is.
enum Piece {
    /// BEGIN or COMMIT.
    Bracket(&'static str),
    /// A statement.
    Part,
    Nothing,
}

impl Session {
    fn ready(&mut self) {
        let status = match &self.conversation {
            None => Status::Idle,
            Some(conversation) if conversation.has_failed() => Status::Failed,
            Some(_) => Status::InTransaction,
        };
        build::ready_for_query(&mut self.client.output, status);
    }

    /// Tells the client of an error, after which a transaction that is open has failed.
    fn fail(&mut self, failure: &Failure) {
        if let Some(conversation) = &mut self.conversation {
            conversation.fail();
        }
        failure.put(&mut self.client.output, Severity::Error);
    }

    /// Serves the client until it leaves, or is told why it has to.
    async fn run(&mut self) -> Result<Option<Failure>, ClientError> {
        loop {
            let (tag, body) = match self.next_message().await? {
                Ok(message) => message,
                Err(failure) => return Ok(Some(failure)),
            };
            let body = body.freeze();
            let message = match frontend::decode(tag, &body) {
                Ok(message) => message,
                Err(error) if std::str::from_utf8(&body).is_err() && tag == frontend::tag::QUERY => {
                    tracing::debug!(%error, "a text that is not UTF-8");
                    self.fail(&Failure::not_utf8(&body));
                    self.ready();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match message {
                Frontend::Query(sql) => {
                    self.skipping = false;
                    self.steps.clear();
                    self.on_query(sql).await;
                    self.ready();
                }
                Frontend::Sync => {
                    let steps = std::mem::take(&mut self.steps);
                    if !self.skipping {
                        self.answer_steps(steps).await;
                    }
                    self.skipping = false;
                    self.portals.clear();
                    self.ready();
                }
                Frontend::Terminate => return Ok(None),
                _ if self.skipping => {}
                Frontend::Parse(parse) => self.on_parse(&parse).await,
                Frontend::Bind(bind) => self.on_bind(&bind, &body),
                Frontend::Describe(named) => self.on_describe(named).await,
                Frontend::Execute(execute) => {
                    let portal = self.portals.get(execute.portal).cloned();
                    self.steps.push(match portal {
                        Some(portal) => Step::Execute(portal),
                        None => Step::Failed(Failure::new(
                            SqlState::INVALID_CURSOR_NAME,
                            format!("portal \"{}\" does not exist", execute.portal),
                        )),
                    });
                }
                Frontend::Close(named) => {
                    match named.target {
                        Target::Statement => drop(self.statements.remove(named.name)),
                        Target::Portal => drop(self.portals.remove(named.name)),
                    }
                    self.steps.push(Step::Closed);
                }
                Frontend::Flush => self.on_flush().await?,
                Frontend::FunctionCall(_) => {
                    self.fail(&Failure::unsupported(
                        "the function call message is not supported",
                        "Call the function by SELECT.",
                    ));
                    self.ready();
                }
                Frontend::Password(_) => {
                    let what = "a password was sent, and none was asked for";
                    return Err(ClientError::Protocol(what.to_owned()));
                }
                Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail(_) => {}
            }
        }
    }

    /// What has been asked so far is answered, if nothing is to be executed: that waits for the Sync that ends its transaction.
    async fn on_flush(&mut self) -> Result<(), ClientError> {
        let steps = std::mem::take(&mut self.steps);
        let portals = self.portals_of(&steps);
        if self.conversation.is_some() || self.is_spoken(&portals) {
            self.converse(steps).await;
        } else if !portals.is_empty() {
            self.fail(&Failure::unsupported(
                "a Flush asks for results before the end of a transaction that is to come whole",
                "Send a Sync in its place.",
            ));
            self.skipping = true;
        } else {
            self.answer_steps(steps).await;
        }
        self.client.flush().await
    }
}

/// Transactions.
impl Session {
    async fn on_query(&mut self, sql: &str) {
        let mut pieces = Vec::new();
        let mut rest = Some(sql);
        let mut statements = Vec::new();
        while let Some(text) = rest {
            let normalised = normalise(text, &mut self.scratch);
            let own = text.get(..normalised.layout.end as usize).unwrap_or(text).to_owned();
            let named = references(&own, normalised.layout.consts);
            rest = normalised.next.and_then(|next| text.get(next as usize..));
            let classified = replace(&own, &named, |nth, _| format!("${}", nth + 1));
            let statement = self.classify(&classified);
            pieces.push(match statement.class.kind {
                Kind::Empty => Piece::Nothing,
                Kind::Begin(_) => Piece::Bracket("BEGIN"),
                Kind::Commit { chain: false } => Piece::Bracket("COMMIT"),
                _ => Piece::Part,
            });
            if statement.class.kind != Kind::Empty {
                statements.push((own, statement));
            }
        }
        if self.is_spoken(&statements) {
            return self.converse_in_text(&statements).await;
        }
        if let [(text, statement)] = &statements[..]
            && let Some(done) = self.on_session_command(text, statement).await
        {
            match done {
                Ok(tag) => build::command_complete(&mut self.client.output, &tag),
                Err(failure) => self.fail(&failure),
            }
            return;
        }
        if statements.is_empty() {
            return build::empty_query_response(&mut self.client.output);
        }
        // A server goes through the grammar before it executes anything.
        let bad =
            |(_, statement): &&(String, Statement)| matches!(statement.class.kind, Kind::SyntaxError { .. });
        if let Some((text, _)) = statements.iter().find(bad) {
            let what = vec![What::Text(text.clone())];
            let answer = self.submit(what).await;
            return self.put_error(answer);
        }
        let inner = match without_brackets(&statements) {
            Ok(inner) => inner,
            Err(failure) => return self.fail(&failure),
        };
        let answer = match broken_promise(&statements) {
            Some(failure) => Answer::of_failure(&failure),
            None => match self.settle_texts(inner).await {
                Ok(whats) if whats.is_empty() => Answer::default(),
                Ok(whats) => self.submit(whats).await,
                Err(failure) => return self.fail(&failure),
            },
        };
        let is_bracketed = matches!(pieces.first(), Some(Piece::Bracket(_)));
        let mut parts = answer.parts.into_iter();
        for piece in pieces {
            match piece {
                Piece::Nothing => {}
                Piece::Bracket("COMMIT") if answer.error.is_some() => {}
                Piece::Bracket(tag) => build::command_complete(&mut self.client.output, tag),
                Piece::Part => {
                    let Some(part) = parts.next() else { break };
                    self.put_part(&part, true);
                }
            }
        }
        if let Some(error) = answer.error {
            self.client.output.extend_from_slice(&error);
            if is_bracketed && !answer.is_over {
                self.stay_failed();
            }
        }
    }

    fn put_part(&mut self, part: &PartAnswer, is_described: bool) {
        let out = &mut self.client.output;
        if is_described && part.description.first() == Some(&onecopy_wire::backend::tag::ROW_DESCRIPTION) {
            out.extend_from_slice(&part.description);
        }
        out.extend_from_slice(&part.rows);
        out.extend_from_slice(&part.completion);
    }

    fn put_error(&mut self, answer: Answer) {
        match answer.error {
            Some(error) => self.client.output.extend_from_slice(&error),
            None => self.fail(&Failure::new(SqlState::SYNTAX_ERROR, "syntax error")),
        }
    }

    fn classify(&mut self, sql: &str) -> Statement {
        let classifier = &self.shared.classifier;
        let catalogue = classifier.catalogue();
        let path = self.environment.value("search_path").unwrap_or("\"$user\", public");
        let path = search_path(path, &self.user, &catalogue);
        classifier.classify(&classifier.manner(), sql, &path, &mut self.scratch).0
    }

    /// What is to be executed of a query's statements.
    async fn settle_texts(&mut self, statements: &[(String, Statement)]) -> Result<Vec<What>, Failure> {
        let moment = crate::clock::unix_micros();
        let mut whats = Vec::new();
        let refers = statements.iter().any(|(text, statement)| text != &*statement.sql);
        let writes = statements.iter().any(|(_, statement)| writes(&statement.class));
        for (text, statement) in statements {
            if refers
                && writes
                && statement.class.effects.returns_rows
                && let Some(failure) =
                    refusal_as_source(&statement.class, &self.shared.classifier.catalogue())
            {
                return Err(failure);
            }
            whats.push(What::Text(self.settle(text, statement, moment).await?));
        }
        Ok(whats)
    }

    /// The text that means the same at every site.
    async fn settle(&mut self, text: &str, statement: &Statement, moment: i64) -> Result<String, Failure> {
        let class = &statement.class;
        let determinism = class.determinism_of(&statement.sql, statement.layout.layout(), &NoParams).clone();
        if let Some(failure) = refusal(class, &determinism).or_else(|| self.refusal_of_truncate(class)) {
            return Err(failure);
        }
        let rewrite = rewrite_of(class, None, true);
        if rewrite.is_empty() {
            return Ok(text.to_owned());
        }
        if text != &*statement.sql {
            return Err(Failure::unsupported(
                "a statement that names an earlier result cannot also take the time or a number of a sequence",
                "Have the application give that value.",
            ));
        }
        let values = self.freeze(statement, moment).await?;
        Ok(rewrite.render_simple(&statement.sql, statement.layout.layout(), &values))
    }

    /// Transactions that only read are not certified, and a server shows older snapshots an empty table.
    fn refusal_of_truncate(&self, class: &Class) -> Option<Failure> {
        let is_refused = self.shared.spoken.is_some() && matches!(class.kind, Kind::Truncate { .. });
        is_refused.then(|| {
            Failure::unsupported(
                "TRUNCATE cannot be served by this protocol: transactions that have begun would find the table empty",
                "Use DELETE.",
            )
        })
    }

    async fn freeze(&mut self, statement: &Statement, moment: i64) -> Result<Vec<FrozenValue>, Failure> {
        let not_yet = |message: String| Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message);
        let mut values = Vec::new();
        for frozen in &rewrite_of(&statement.class, None, true).frozen {
            values.push(FrozenValue(match &frozen.kind {
                FrozenKind::TransactionTimestamp => timestamp(moment),
                FrozenKind::StatementTimestamp => timestamp(crate::clock::unix_micros()),
                FrozenKind::NextVal { schema, name } => {
                    let value = self.shared.draw(schema, name).await?;
                    self.drawn.draw(schema, name, value);
                    value.to_string()
                }
                FrozenKind::CurrVal { schema, name } => {
                    let drawn = self.drawn.of(schema, name);
                    let what =
                        || format!("currval of sequence \"{name}\" is not yet defined in this session");
                    drawn.ok_or_else(|| not_yet(what()))?.to_string()
                }
                FrozenKind::LastVal => {
                    let what = "lastval is not yet defined in this session";
                    self.drawn.last().ok_or_else(|| not_yet(what.to_owned()))?.to_string()
                }
            }));
        }
        Ok(values)
    }

    async fn submit(&mut self, whats: Vec<What>) -> Answer {
        let record = Record {
            origin: None,
            user: self.user.clone(),
            settings: self.environment.meaningful().clone(),
            writes: whats.into_iter().map(Write::new).collect(),
        };
        let mut transaction = Transaction::read(record, &self.shared.classifier, &mut self.scratch);
        let is_update = transaction.is_update();
        let deadline = Deadline::within_ms(self.shared.wait_ms);
        let (answer, answered) = oneshot::channel();
        let gone = || {
            Answer::of_over(
                &Failure::new(SqlState::ADMIN_SHUTDOWN, "this site is ending")
                    .hint("Whether a transaction that was sent has happened is not known."),
            )
        };
        let overdue = async {
            match deadline {
                Some(deadline) => deadline.reached().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(overdue);
        // Whoever looks at no table sees nothing that could be old.
        // So does an update that executes at its place; where it executes before, and fails, nobody else sees that it was old.
        let executes_before = self.shared.spoken.is_some();
        let bound = self.staleness_max();
        let bound = bound.filter(|_| (!is_update || executes_before) && !transaction.access.is_empty());
        if !is_update {
            // What only reads is sent to no other site, so it may carry what SHOW shows.
            transaction.record.settings = self.settings();
        }
        if let (Some(bound), Some(freshness)) = (bound, &self.shared.freshness) {
            tokio::select! {
                place = freshness.place(bound) => match place {
                    Some(place) => transaction.not_before = place,
                    None => {
                        let ending = Failure::new(SqlState::ADMIN_SHUTDOWN, "this site is ending");
                        return Answer::of_failure(&ending);
                    }
                },
                () = &mut overdue => return Answer::of_failure(&not_known_failure()),
            }
        }
        let is_bounded = transaction.not_before > Csn(0) && !is_update;
        if !(self.shared.submit)(Arc::new(transaction), answer) {
            return gone();
        }
        tokio::select! {
            answered = answered => answered.unwrap_or_else(|_| gone()),
            () = overdue => Answer {
                is_over: is_update,
                ..Answer::of_failure(&match is_bounded {
                    true => not_known_failure(),
                    false => overdue_failure(is_update),
                })
            },
        }
    }

    /// Those that its queries run under: what SHOW shows is among them.
    fn settings(&self) -> Settings {
        let meaningful = self.environment.meaningful();
        let own = self.environment.value(freshness::SETTING).map(str::to_owned);
        match own.or_else(|| self.shared.staleness_max.map(freshness::shown_bound)) {
            Some(value) => {
                meaningful.iter().cloned().chain([(freshness::SETTING.to_owned(), value)]).collect()
            }
            None => meaningful.clone(),
        }
    }

    /// How old what a query reads may be, if that matters.
    fn staleness_max(&self) -> Option<std::time::Duration> {
        match self.environment.value(freshness::SETTING) {
            Some(value) => freshness::bound_of(value),
            None => self.shared.staleness_max,
        }
    }
}

/// Whoever may not read what is too old, and waits for longer than anybody may.
fn not_known_failure() -> Failure {
    let what = "the query waited too long until this site had what others have committed";
    Failure::new(SqlState::LOCK_NOT_AVAILABLE, what).hint(
        "Ask another site, or set onecopy.staleness_max to -1 and read what this one has; SHOW SITE in the database \"onecopy\" says whether other sites are heard.",
    )
}

/// Whoever waits for longer than anybody may.
fn overdue_failure(is_update: bool) -> Failure {
    let limit = "limits.query_wait_timeout_ms is the limit; SHOW SITE in the database \"onecopy\" says whether other sites are heard.";
    match is_update {
        true => Failure::new(
            SqlState::STATEMENT_COMPLETION_UNKNOWN,
            "the transaction was sent to all sites, and is not ordered or executed yet; it may still commit",
        ),
        false => {
            Failure::new(SqlState::LOCK_NOT_AVAILABLE, "the query waited too long for other transactions")
        }
    }
    .hint(limit)
}

/// The statements between BEGIN and COMMIT, or all.
fn without_brackets<T>(statements: &[(T, Statement)]) -> Result<&[(T, Statement)], Failure> {
    let kind = |at: usize| statements.get(at).map(|(_, statement)| &statement.class.kind);
    let begins = matches!(kind(0), Some(Kind::Begin(_)));
    let ends =
        statements.len() > 1 && matches!(kind(statements.len() - 1), Some(Kind::Commit { chain: false }));
    match (begins, ends) {
        (true, true) => Ok(&statements[1..statements.len() - 1]),
        (false, false) => Ok(statements),
        _ => Err(not_whole()),
    }
}

/// Why statements that begin with BEGIN READ ONLY fail, if one of them is none that only reads. None is executed then, not those before it either.
fn broken_promise<T>(statements: &[(T, Statement)]) -> Option<Failure> {
    let (_, first) = statements.first()?;
    let promises = matches!(&first.class.kind, Kind::Begin(modes) if modes.read_only == Some(true));
    statements.iter().filter(|_| promises).find_map(|(_, statement)| refusal_of_write(&statement.class))
}

/// The extended protocol.
impl Session {
    async fn on_parse(&mut self, parse: &Parse<'_>) {
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            let message = format!("prepared statement \"{}\" already exists", parse.name);
            let failure = Failure::new(SqlState::DUPLICATE_PREPARED_STATEMENT, message);
            return self.steps.push(Step::Failed(failure));
        }
        self.statements.remove("");
        let prepared = Prepared { sql: parse.sql.to_owned(), types: parse.types.iter().collect() };
        let statement = self.classify(parse.sql);
        if matches!(statement.class.kind, Kind::SyntaxError { .. })
            && let Err(failure) = self.describe(&prepared, None).await
        {
            return self.steps.push(Step::Failed(failure));
        }
        self.statements.insert(parse.name.to_owned(), Arc::new(prepared));
        self.steps.push(Step::Parsed);
    }

    fn on_bind(&mut self, bind: &Bind<'_>, body: &Bytes) {
        let Some(prepared) = self.statements.get(bind.statement).cloned() else {
            let what = format!("prepared statement \"{}\" does not exist", bind.statement);
            let failure = Failure::new(SqlState::INVALID_SQL_STATEMENT_NAME, what);
            return self.steps.push(Step::Failed(failure));
        };
        let names = bind.portal.len() + 1 + bind.statement.len() + 1;
        let portal = Portal { prepared, bind: body.slice(names.min(body.len())..) };
        self.portals.insert(bind.portal.to_owned(), portal);
        self.steps.push(Step::Bound);
    }

    async fn on_describe(&mut self, named: Named<'_>) {
        let step = match named.target {
            Target::Statement => match self.statements.get(named.name).cloned() {
                Some(prepared) => {
                    self.describe(&prepared, None).await.map_or_else(Step::Failed, Step::Described)
                }
                None => Step::Failed(Failure::new(
                    SqlState::INVALID_SQL_STATEMENT_NAME,
                    format!("prepared statement \"{}\" does not exist", named.name),
                )),
            },
            Target::Portal => match self.portals.get(named.name).cloned() {
                Some(portal) => Step::DescribePortal(portal),
                None => Step::Failed(Failure::new(
                    SqlState::INVALID_CURSOR_NAME,
                    format!("portal \"{}\" does not exist", named.name),
                )),
            },
        };
        self.steps.push(step);
    }

    /// What the server says of a statement, or of a portal.
    async fn describe(&mut self, prepared: &Prepared, bind: Option<&Bytes>) -> Result<Bytes, Failure> {
        let record = Record { user: self.user.clone(), settings: self.settings(), ..Record::default() };
        let described = async {
            let _permit = self.shared.database.aside().await;
            let mut lane = self.shared.database.lend().await?;
            let found = database::describe(&mut lane, &record, &prepared.sql, &prepared.types, bind).await;
            if !matches!(&found, Err(error) if !error.is_database()) {
                self.shared.database.leave(lane).await;
            }
            found
        };
        described.await.map_err(|error: LaneError| Failure::of_lane(&error))
    }

    async fn answer_steps(&mut self, steps: Vec<Step>) {
        let portals = self.portals_of(&steps);
        if self.conversation.is_some() || self.is_spoken(&portals) {
            return self.converse(steps).await;
        }
        let mut failure = steps.iter().find_map(|step| match step {
            Step::Failed(because) => Some(because.clone()),
            _ => None,
        });
        let mut answer = Answer::default();
        let mut command = None;
        if failure.is_none() {
            match &portals[..] {
                [] => {}
                [(portal, statement)]
                    if let Some(done) = {
                        let sql = portal.prepared.sql.clone();
                        self.on_session_command(&sql, &statement.clone()).await
                    } =>
                {
                    match done {
                        Ok(tag) => command = Some(tag),
                        Err(because) => failure = Some(because),
                    }
                }
                _ if without_brackets(&portals).is_ok()
                    && let Some(because) = broken_promise(&portals) =>
                {
                    answer = Answer::of_failure(&because);
                }
                _ => match self.settle_all(&portals).await {
                    Ok(whats) if whats.is_empty() => {}
                    Ok(whats) => answer = self.submit(whats).await,
                    Err(because) => failure = Some(because),
                },
            }
        }
        let mut executed = portals.iter();
        let mut parts = answer.parts.iter().peekable();
        for step in steps {
            match step {
                Step::Parsed => build::parse_complete(&mut self.client.output),
                Step::Bound => build::bind_complete(&mut self.client.output),
                Step::Closed => build::close_complete(&mut self.client.output),
                Step::Described(described) => self.client.output.extend_from_slice(&described),
                Step::DescribePortal(portal) => {
                    let next = executed.clone().next().map(|(_, statement)| &statement.class.kind);
                    if next.is_some_and(|kind| is_bracket(kind).is_some()) || command.is_some() {
                        build::no_data(&mut self.client.output);
                    } else if let Some(part) = parts.peek().filter(|_| next.is_some()) {
                        self.client.output.extend_from_slice(&part.description);
                    } else if next.is_none() {
                        match self.describe(&portal.prepared, Some(&portal.bind)).await {
                            Ok(described) => self.client.output.extend_from_slice(&described),
                            Err(because) => {
                                failure = Some(because);
                                break;
                            }
                        }
                    }
                }
                Step::Execute(portal) if self.classify(&portal.prepared.sql).class.kind == Kind::Empty => {
                    build::empty_query_response(&mut self.client.output);
                }
                Step::Execute(_) => {
                    let bracket = executed.next().and_then(|(_, s)| is_bracket(&s.class.kind));
                    if failure.is_some() || bracket == Some("COMMIT") && answer.error.is_some() {
                        break;
                    }
                    match (bracket, &command) {
                        (Some(tag), _) => build::command_complete(&mut self.client.output, tag),
                        (None, Some(tag)) => build::command_complete(&mut self.client.output, tag),
                        (None, None) => match parts.next() {
                            Some(part) => {
                                self.client.output.extend_from_slice(&part.rows);
                                self.client.output.extend_from_slice(&part.completion);
                            }
                            None => break,
                        },
                    }
                }
                Step::Failed(_) => break,
            }
        }
        if let Some(failure) = failure {
            self.fail(&failure);
            self.skipping = true;
        } else if let Some(error) = &answer.error {
            self.client.output.extend_from_slice(error);
            self.skipping = true;
            let is_bracketed =
                portals.first().is_some_and(|(_, statement)| is_bracket(&statement.class.kind).is_some());
            if is_bracketed && !answer.is_over {
                self.stay_failed();
            }
        }
    }

    /// What is to be executed of these, with what it is.
    fn portals_of(&mut self, steps: &[Step]) -> Vec<(Portal, Statement)> {
        let mut portals = Vec::new();
        for step in steps {
            if let Step::Execute(portal) = step {
                let statement = self.classify(&portal.prepared.sql);
                if statement.class.kind != Kind::Empty {
                    portals.push((portal.clone(), statement));
                }
            }
        }
        portals
    }

    async fn settle_all(&mut self, portals: &[(Portal, Statement)]) -> Result<Vec<What>, Failure> {
        let moment = crate::clock::unix_micros();
        let mut whats = Vec::new();
        for (portal, statement) in without_brackets(portals)? {
            whats.push(self.settle_portal(portal, statement, moment).await?);
        }
        Ok(whats)
    }

    async fn settle_portal(
        &mut self,
        portal: &Portal,
        statement: &Statement,
        moment: i64,
    ) -> Result<What, Failure> {
        let (class, layout) = (&statement.class, statement.layout.layout());
        let types = &portal.prepared.types;
        let determinism = with_params(types, &portal.bind, |params| {
            class.determinism_of(&statement.sql, layout, params).clone()
        });
        if let Some(failure) = refusal(class, &determinism).or_else(|| self.refusal_of_truncate(class)) {
            return Err(failure);
        }
        let rewrite = rewrite_of(class, None, true);
        let sql = match rewrite.is_empty() {
            true => portal.prepared.sql.clone(),
            false => {
                let values = self.freeze(statement, moment).await?;
                rewrite.render_simple(&statement.sql, layout, &values)
            }
        };
        Ok(What::prepared(&sql, types, portal.bind.clone()))
    }
}

/// What a server's error says.
fn failure_of(message: &[u8]) -> Failure {
    let body = message.get(HEAD_LEN..).unwrap_or_default();
    match backend::decode(backend::tag::ERROR_RESPONSE, body) {
        Ok(backend::Backend::Error(fields)) => {
            Failure::of_lane(&LaneError::Database(Box::new(fields.to_owned())))
        }
        _ => Failure::new(SqlState::INTERNAL_ERROR, "an error that cannot be read"),
    }
}

fn is_bracket(kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::Begin(_) => Some("BEGIN"),
        Kind::Commit { chain: false } => Some("COMMIT"),
        _ => None,
    }
}
