//! A unit: what is executed on a lane in one exchange, up to one ReadyForQuery, and the relaying of its answer.
//!
//! A simple statement is a unit; of the extended protocol, everything up to an Execute (or to a Sync without one).

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_classify::MomentSearch;
use onecopy_classify::moment_text::may_keep_moment;
use onecopy_wire::backend::{
    Backend, Column, ErrorFields, RowDescription, Status, row_count, strip_columns, tag,
};
use onecopy_wire::frontend::{self, Frontend, Target, build};
use onecopy_wire::relay::{Next, RelayState, TagSet, scan};
use onecopy_wire::{SqlState, WireError, backend};

use crate::errors::Failure;
use crate::lane::{DECODE_LEN_MAX, Lane, LaneError, StatementKey, StatementName, is_going_away};
use crate::session::client::{Client, ClientError, SEND_LEN};
use crate::session::portals::Portal;
use crate::session::shown::Shown;

/// A statement as the client prepared it, and as it is prepared on lanes.
#[derive(Clone, Debug)]
pub struct Preparation {
    pub key: StatementKey,
    pub sql: Arc<str>,
    pub types: Arc<[u32]>,
    /// What the client was told of its rows.
    pub shape: Arc<Shape>,
}

/// What a client was first told of the rows that a prepared statement returns, as a hash; 0 if nothing yet. It reads the
/// rows of later executions by that.
#[derive(Debug, Default)]
pub struct Shape(AtomicU64);

impl Shape {
    pub fn is_known(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Both are known and differ.
    pub fn differs_from(&self, other: &Shape) -> bool {
        let (ours, theirs) = (self.0.load(Ordering::Acquire), other.0.load(Ordering::Acquire));
        ours != 0 && theirs != 0 && ours != theirs
    }

    /// The client is told of these columns.
    fn learn<'c>(&self, columns: impl Iterator<Item = Column<'c>>) {
        let mut hasher = std::hash::DefaultHasher::new();
        for column in columns {
            // Formats are chosen anew by every Bind.
            (column.name, column.type_oid, column.typmod).hash(&mut hasher);
        }
        // The first one stays.
        let _ = self.0.compare_exchange(0, hasher.finish().max(1), Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Preparation {
    pub fn new(sql: &str, types: &[u32]) -> Preparation {
        let key = StatementKey::of(sql, types);
        // What a server has once read as a moment stands in what it prepared: no other Parse may get that.
        let key = if may_keep_moment(sql) { key.unlike_others() } else { key };
        Preparation { key, sql: sql.into(), types: types.into(), shape: Arc::default() }
    }
}

/// One message of the extended protocol, resolved.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client's Parse; it has to be answered.
    Parse(Preparation),
    /// A client's Bind, with the values that were frozen for it. One that is done `again` was answered before.
    Bind { statement: Preparation, body: Bytes, extra: Vec<String>, again: bool },
    /// Describe of a statement.
    DescribeStatement(Preparation),
    /// Describe of a portal, with what is known of the rows of its statement.
    DescribePortal { portal: String, shape: Option<Arc<Shape>> },
    /// Execute. During a COPY FROM STDIN the server ignores Sync: it has to follow the data.
    Execute { portal: String, max_rows: u32, copies_in: bool },
    /// Close of a portal on the server.
    ClosePortal(String),
    /// Close of a statement: ours stay prepared, but it has to be answered.
    CloseStatement,
}

impl Step {
    /// Whether it is the Bind of this portal.
    pub(super) fn binds(&self, portal: &Portal) -> bool {
        matches!(self, Step::Bind { body, .. } if *body == portal.body)
    }
}

/// What to send.
#[derive(Clone, Debug)]
pub enum Request {
    /// A text for the simple protocol.
    Simple(String),
    /// Messages of the extended protocol.
    Extended(Vec<Step>),
    /// A statement that the client sent as text, in a form that lanes keep prepared. The answer is that to the text.
    Prepared(Repeated),
}

impl Request {
    /// Steps that only bind and close portals, and the hash of their answer.
    pub fn of_completions(steps: Vec<Step>) -> (Request, u64) {
        let mut hash = AnswerHash::default();
        for step in &steps {
            let mut frame = BytesMut::new();
            match step {
                Step::Bind { .. } => backend::build::bind_complete(&mut frame),
                _ => backend::build::close_complete(&mut frame),
            }
            hash.add(&frame);
        }
        (Request::Extended(steps), hash.value())
    }
}

impl Request {
    /// What an error says of a Bind, with the client's name of its statement instead of the lane's.
    fn as_named_by_client(&self, lane: &Lane, error: &ErrorFields) -> Option<String> {
        let Request::Extended(steps) = self else { return None };
        if error.code != SqlState::PROTOCOL_VIOLATION {
            return None;
        }
        steps.iter().find_map(|step| {
            let Step::Bind { statement, body, .. } = step else { return None };
            let name = format!("\"{}\"", &*lane.prepared_name(statement.key)?);
            let bind = frontend::Bind::decode(body).ok()?;
            let client = format!("\"{}\"", bind.statement);
            error.message.contains(&name).then(|| error.message.replace(&name, &client))
        })
    }

    /// The client is not to be told of what it binds and closes.
    fn is_bound_by_us(&self) -> bool {
        match self {
            Request::Simple(_) => false,
            Request::Prepared(_) => true,
            Request::Extended(steps) => {
                steps.iter().any(|step| matches!(step, Step::Bind { again: true, .. }))
            }
        }
    }
}

/// A simple statement with its constants as parameters.
#[derive(Clone, Debug)]
pub struct Repeated {
    pub statement: Preparation,
    /// What follows the names in a Bind message.
    pub bind: Bytes,
    /// Whether it returns rows.
    pub returns: bool,
    /// The definitions under which it was classified.
    pub generation: u64,
}

/// Where the answer goes.
pub enum Sink<'a> {
    /// To the client, as it comes.
    Client(&'a mut Client),
    /// Into a buffer of at most so many bytes.
    Hold(&'a mut BytesMut, usize),
    /// Nowhere.
    Drop,
}

/// What has to be done with the rows beside passing them on.
#[derive(Default)]
pub struct Watch {
    /// Hash the answer, so that it can be compared with one given again.
    pub hash: Option<AnswerHash>,
    /// Keep the last columns of every row and take them out of what the client sees.
    pub capture: Option<Captured>,
    /// Read from its rows which items they show.
    pub shown: Option<Shown>,
    /// Do not keep the data of a COPY: they are of no use to anybody else.
    pub discard_copy: bool,
    /// Looks in the data of a COPY for words that name a moment by the clock: data to be replayed must not hold any.
    pub moments: Option<MomentSearch>,
    /// Bytes of COPY data or captured rows that may be kept; more is an error.
    pub kept_bytes_max: usize,
}

/// A hash of an answer's frames.
#[derive(Clone, Default)]
pub struct AnswerHash(std::hash::DefaultHasher);

impl AnswerHash {
    fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

/// Rows that a statement changed, as text.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// How many columns at the end are ours.
    pub columns: usize,
    /// Whether the client asked for rows at all.
    pub client_returns: bool,
    /// Descriptions of the client's own statement that come first, without our columns.
    pub plain_descriptions: usize,
    /// Whether a description must be answered even where the client asked for no rows (the extended protocol).
    pub must_describe: bool,
    pub rows: Vec<Vec<Option<Bytes>>>,
    pub bytes: usize,
}

/// What came of a unit.
#[derive(Debug, Default)]
pub struct Answer {
    pub error: Option<Box<ErrorFields>>,
    /// Rows affected, by the last command tag, if somebody asked.
    pub rows: Option<u64>,
    pub status: Option<Status>,
    /// The held answer grew too large and was dropped.
    pub overflow: bool,
    /// There was more to keep than may be kept: nothing was.
    pub kept_overflow: bool,
    /// Settings that the server reported.
    pub reported: Vec<(String, String)>,
    /// Statements whose Parse was not carried out, because of the error.
    pub unparsed: Vec<StatementKey>,
    /// Why a COPY was ended by us.
    pub copy_failure: Option<Box<Failure>>,
    /// COPY data that the client sent.
    pub copy: Vec<Bytes>,
    pub copy_bytes: usize,
    /// Columns that the session asked for itself, by row.
    pub probed: Vec<Vec<Option<Bytes>>>,
}

/// Why a unit could not be carried to its end.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl From<WireError> for UnitError {
    fn from(error: WireError) -> UnitError {
        UnitError::Lane(LaneError::Protocol(error))
    }
}

/// What goes ahead of a unit and is not the client's.
#[derive(Clone, Copy, Default)]
pub struct Prelude {
    /// So many commands, each answered by a ReadyForQuery of its own.
    ready: u32,
    /// After them the beginning of a transaction and what belongs into it: so many commands, answered with the unit. If
    /// one fails, by a cancel request for example, the server skips the unit. A write that was executed without its
    /// BEGIN would commit at once, on this replica only.
    begins: u32,
}

impl From<u32> for Prelude {
    fn from(ready: u32) -> Prelude {
        Prelude { ready, begins: 0 }
    }
}

/// Appends commands of our own that go ahead of a request. From the one on that begins a transaction, they share the
/// request's ReadyForQuery, and with it a message each way.
pub fn put_prelude(lane: &mut Lane, commands: &[&str]) -> Result<Prelude, WireError> {
    let begin = commands.iter().position(|command| command.starts_with("BEGIN "));
    let (alone, together) = commands.split_at(begin.unwrap_or(commands.len()));
    let mut ready = alone.len() as u32;
    if lane.has_too_many_prepared() {
        // Of a transaction that goes on: who begins on a lane has looked at that.
        lane.put_closes()?;
        ready += 1;
    }
    for sql in alone {
        build::query(&mut lane.output, sql)?;
    }
    for sql in together {
        let (name, _) = lane.prepare(StatementKey::of(sql, &[]), sql, &[])?;
        lane.put_bind(&name, &[0; 6]);
        build::execute(&mut lane.output, "", 0)?;
    }
    Ok(Prelude { ready, begins: together.len() as u32 })
}

/// What the answers of the steps mean, in order.
#[derive(Default)]
struct Expectations {
    /// Every Parse on its way.
    parses: std::collections::VecDeque<ExpectedParse>,
    /// Every Describe on its way, if there is something to learn from any; the next one at the end.
    described: Vec<Option<Arc<Shape>>>,
    /// The Sync of the unit has not been sent yet.
    owes_sync: bool,
}

/// A Parse on its way.
struct ExpectedParse {
    key: StatementKey,
    /// It prepares the statement on the lane; else it is only there to be answered.
    prepares: bool,
    /// The client asked for it.
    visible: bool,
}

/// Sends a unit; `synthesised` receives what can be answered without the server.
fn put_request(
    lane: &mut Lane,
    request: &Request,
    synthesised: &mut BytesMut,
) -> Result<Expectations, WireError> {
    let mut expectations = Expectations::default();
    match request {
        Request::Simple(sql) => build::query(&mut lane.output, sql)?,
        Request::Prepared(repeated) => {
            let Repeated { statement, bind, returns, generation } = repeated;
            if lane.generation == *generation {
                let name = prepared(lane, statement, &mut expectations)?;
                lane.put_bind(&name, bind);
            } else {
                // What a lane keeps may have been planned for other definitions; the client expects a fresh plan.
                build::parse(&mut lane.output, "", &statement.sql, statement.types.iter().copied())?;
                expectations.parses.push_back(ExpectedParse {
                    key: statement.key,
                    prepares: false,
                    visible: false,
                });
                lane.put_bind("", bind);
            }
            if *returns {
                build::describe(&mut lane.output, Target::Portal, "")?;
            }
            build::execute(&mut lane.output, "", 0)?;
            build::sync(&mut lane.output);
        }
        Request::Extended(steps) => {
            expectations.described = shapes_to_learn(steps);
            let mut leading = true;
            for step in steps {
                leading &= matches!(step, Step::Parse(_) | Step::CloseStatement);
                put_step(lane, step, leading, synthesised, &mut expectations)?;
                expectations.owes_sync |= matches!(step, Step::Execute { copies_in: true, .. });
            }
            if expectations.owes_sync {
                build::flush(&mut lane.output);
            } else {
                build::sync(&mut lane.output);
            }
        }
    }
    Ok(expectations)
}

/// What the answer to each Describe tells, the last one first; nothing if all of it is known.
fn shapes_to_learn(steps: &[Step]) -> Vec<Option<Arc<Shape>>> {
    let shapes = || {
        steps.iter().rev().filter_map(|step| match step {
            Step::DescribeStatement(statement) => Some(Some(&statement.shape)),
            Step::DescribePortal { shape, .. } => Some(shape.as_ref()),
            _ => None,
        })
    };
    if shapes().flatten().all(|shape| shape.is_known()) {
        return Vec::new();
    }
    shapes().map(|shape| shape.cloned()).collect()
}

fn put_step(
    lane: &mut Lane,
    step: &Step,
    leading: bool,
    synthesised: &mut BytesMut,
    expectations: &mut Expectations,
) -> Result<(), WireError> {
    match step {
        Step::Parse(statement) if lane.is_prepared(statement.key) => {
            if leading && expectations.parses.is_empty() {
                backend::build::parse_complete(synthesised);
            } else {
                // An answer in the middle of others can only come from the server.
                build::parse(&mut lane.output, "", &statement.sql, statement.types.iter().copied())?;
                let parse = ExpectedParse { key: statement.key, prepares: false, visible: true };
                expectations.parses.push_back(parse);
            }
        }
        Step::Parse(statement) => {
            lane.prepare(statement.key, &statement.sql, &statement.types)?;
            expectations.parses.push_back(ExpectedParse {
                key: statement.key,
                prepares: true,
                visible: true,
            });
        }
        Step::Bind { statement, body, extra, again } => {
            let name = prepared(lane, statement, expectations)?;
            let bind = frontend::Bind::decode(body)?;
            if *again {
                build::close(&mut lane.output, Target::Portal, bind.portal)?;
            }
            let extra: Vec<&[u8]> = extra.iter().map(String::as_bytes).collect();
            bind.rewrite(bind.portal, &name, &extra, &mut lane.output)?;
        }
        Step::DescribeStatement(statement) => {
            let name = prepared(lane, statement, expectations)?;
            build::describe(&mut lane.output, Target::Statement, &name)?;
        }
        Step::DescribePortal { portal, .. } => build::describe(&mut lane.output, Target::Portal, portal)?,
        Step::Execute { portal, max_rows, .. } => build::execute(&mut lane.output, portal, *max_rows)?,
        Step::ClosePortal(portal) => build::close(&mut lane.output, Target::Portal, portal)?,
        Step::CloseStatement if leading && expectations.parses.is_empty() => {
            backend::build::close_complete(synthesised);
        }
        Step::CloseStatement => build::close(&mut lane.output, Target::Statement, "oc_none")?,
    }
    Ok(())
}

fn prepared(
    lane: &mut Lane,
    statement: &Preparation,
    expectations: &mut Expectations,
) -> Result<StatementName, WireError> {
    let (name, is_new) = lane.prepare(statement.key, &statement.sql, &statement.types)?;
    if is_new {
        expectations.parses.push_back(ExpectedParse { key: statement.key, prepares: true, visible: false });
    }
    Ok(name)
}

/// Runs a unit on a lane: `prelude` ReadyForQuery of our own commands come first; an error of theirs is the answer.
pub async fn run(
    lane: &mut Lane,
    prelude: impl Into<Prelude>,
    request: &Request,
    sink: Sink<'_>,
    watch: &mut Watch,
    client_copy: Option<&mut Client>,
) -> Result<Answer, UnitError> {
    let bound_by_us = request.is_bound_by_us();
    let answer = Answer::default();
    let mut relay = Relay {
        sink,
        watch,
        answer,
        copy_client: client_copy,
        bound_by_us,
        counts_rows: true,
        request: Some(request),
    };
    let mut synthesised = BytesMut::new();
    let mut expectations = put_request(lane, request, &mut synthesised)?;
    lane.flush().await?;
    if !synthesised.is_empty() {
        relay.emit(&synthesised).await?;
    }
    let prelude: Prelude = prelude.into();
    let result = match prelude.ready {
        0 => Ok(()),
        ready => lane.collect(ready).await.map(drop),
    };
    // What was to begin has been sent: its answer must be read whatever became of the commands before it.
    let mut begun = Ok(());
    for _ in 0..prelude.begins {
        if begun.is_ok() {
            begun = lane.command_complete().await;
        }
    }
    let skipped = begun.is_err();
    match result.and(begun) {
        Ok(()) => {}
        Err(LaneError::Database(fields)) => {
            // The statement ran without what should have gone before, or not at all: its answer is of no use to anybody.
            if skipped && matches!(request, Request::Simple(_)) {
                // The text was skipped, too, and only a Sync ends that.
                expectations.owes_sync = true;
            }
            pay_sync(lane, &mut expectations).await?;
            let (status, _) = lane.ready().await?;
            let mut answer = BytesMut::new();
            fields.put_error(&mut answer);
            relay.emit(&answer).await?;
            relay.answer.error = Some(fields);
            relay.answer.status = Some(status);
            relay.answer.unparsed = forget_unparsed(lane, &mut expectations);
            // Nor is it known what of the prelude is prepared, or set.
            lane.forget_prepared();
            lane.generation = 0;
            lane.settings = u64::MAX;
            return Ok(relay.answer);
        }
        Err(error) => return Err(error.into()),
    }
    if let Err(error) = relay.relay(lane, &mut expectations).await {
        return Err(relay.unless_cut(error));
    }
    relay.answer.unparsed = forget_unparsed(lane, &mut expectations);
    Ok(relay.answer)
}

/// Sends what was appended to a lane's output, messages of the client's own up to a Sync, and relays the answer. Nothing
/// among them is a Parse.
pub async fn pass_on(lane: &mut Lane, client: &mut Client) -> Result<Answer, UnitError> {
    lane.flush().await?;
    let mut watch = Watch::default();
    let (sink, answer) = (Sink::Client(client), Answer::default());
    let mut relay = Relay {
        sink,
        watch: &mut watch,
        answer,
        copy_client: None,
        bound_by_us: false,
        counts_rows: false,
        request: None,
    };
    match relay.relay(lane, &mut Expectations::default()).await {
        Ok(()) => Ok(relay.answer),
        Err(error) => Err(relay.unless_cut(error)),
    }
}

/// After an error the server skips to Sync: what it was to prepare may not be there. What the client was to hear of.
fn forget_unparsed(lane: &mut Lane, expectations: &mut Expectations) -> Vec<StatementKey> {
    let mut unparsed = Vec::new();
    for parse in expectations.parses.drain(..) {
        if parse.prepares {
            lane.unprepare(parse.key);
        }
        if parse.visible {
            unparsed.push(parse.key);
        }
    }
    unparsed
}

struct Relay<'a, 'b> {
    sink: Sink<'a>,
    watch: &'b mut Watch,
    answer: Answer,
    /// Who sends COPY data, when the sink is not the client.
    copy_client: Option<&'a mut Client>,
    /// The client does not know of the Bind, or has heard of it.
    bound_by_us: bool,
    /// Somebody asks how many rows were affected.
    counts_rows: bool,
    /// What was sent, where its errors may name statements as the lane does.
    request: Option<&'a Request>,
}

impl Relay<'_, '_> {
    async fn relay(&mut self, lane: &mut Lane, expectations: &mut Expectations) -> Result<(), UnitError> {
        // Descriptions hold object ids.
        let read = [tag::PARSE_COMPLETE, tag::ROW_DESCRIPTION, tag::PARAMETER_DESCRIPTION];
        let boring = if self.watch.capture.is_some() {
            let boring = TagSet::BORING.without(&read).without(&[tag::DATA_ROW]);
            if self.bound_by_us { boring.without(&[tag::BIND_COMPLETE, tag::CLOSE_COMPLETE]) } else { boring }
        } else if self.bound_by_us {
            TagSet::BORING.without(&read).without(&[tag::BIND_COMPLETE, tag::CLOSE_COMPLETE])
        } else {
            TagSet::BORING.without(&read)
        };
        let boring = if expectations.described.is_empty() { boring } else { boring.without(&[tag::NO_DATA]) };
        let boring = if self.watch.shown.is_some() { boring.without(&[tag::DATA_ROW]) } else { boring };
        // Nearly every answer to a read is passed on in one piece then.
        let boring = if self.counts_rows { boring } else { boring.with(&[tag::COMMAND_COMPLETE]) };
        let mut state = RelayState::new(boring, DECODE_LEN_MAX);
        loop {
            let found = scan(&lane.input, &mut state);
            if found.pass > 0 {
                self.pass(lane, found.pass, state.mid_frame() > 0).await?;
            }
            match found.next {
                Next::Read(_) => lane.fill().await?,
                Next::Fail(error) => return Err(LaneError::Frame(error).into()),
                Next::Decode(head) if head.tag == tag::READY_FOR_QUERY => {
                    self.answer.status = Some(Status::decode(lane.body(head))?);
                    lane.consume(head);
                    return Ok(());
                }
                Next::Decode(head) => {
                    self.on_frame(lane, head, expectations).await?;
                }
            }
        }
    }

    /// Forwards bytes that nobody needs to read.
    async fn pass(&mut self, lane: &mut Lane, len: usize, mid_frame: bool) -> Result<(), UnitError> {
        if let Some(hash) = &mut self.watch.hash {
            hash.add(&lane.input[..len]);
        }
        self.put(&lane.input[..len]);
        lane.input.advance(len);
        if let Sink::Client(client) = &mut self.sink {
            client.mid_message = mid_frame;
            let is_held = client.output.len() < client.hold_max;
            if !is_held && (client.output.len() >= SEND_LEN || mid_frame) {
                client.flush().await?;
            }
        }
        Ok(())
    }

    /// Reads one frame other than the unit's end.
    async fn on_frame(
        &mut self,
        lane: &mut Lane,
        head: onecopy_wire::Head,
        expectations: &mut Expectations,
    ) -> Result<(), UnitError> {
        if matches!(head.tag, tag::ROW_DESCRIPTION | tag::PARAMETER_DESCRIPTION) {
            lane.tell_object_ids(head).await?;
            if head.tag == tag::ROW_DESCRIPTION {
                self.learn_shape(&lane.input[onecopy_wire::frame::HEAD_LEN..head.len], expectations)?;
            }
            if self.watch.capture.is_none() {
                self.pass(lane, head.len, false).await?;
                return Ok(());
            }
        }
        if head.tag == tag::DATA_ROW
            && let Some(shown) = &mut self.watch.shown
        {
            shown.on_row(&lane.input[onecopy_wire::frame::HEAD_LEN..head.len])?;
            return self.pass(lane, head.len, false).await;
        }
        let frame = &lane.input[..head.len];
        match backend::decode(head.tag, &frame[onecopy_wire::frame::HEAD_LEN..])? {
            Backend::ParseComplete => {
                if expectations.parses.pop_front().is_none_or(|parse| parse.visible) {
                    put(&mut self.sink, &mut self.answer, frame);
                }
            }
            Backend::NoData => {
                if let Some(Some(shape)) = expectations.described.pop() {
                    shape.learn(std::iter::empty());
                }
                put(&mut self.sink, &mut self.answer, frame);
            }
            Backend::BindComplete | Backend::CloseComplete if self.bound_by_us => {
                lane.consume(head);
                return Ok(());
            }
            Backend::CommandComplete(command) => {
                self.answer.rows = row_count(command);
                put(&mut self.sink, &mut self.answer, frame);
            }
            // It is the connection that ends, whatever the statement was doing.
            Backend::Error(fields) if is_going_away(fields.code()) => return Err(LaneError::Closed.into()),
            Backend::Error(fields) => {
                let mut fields = Box::new(fields.to_owned());
                let named = self.request.and_then(|request| request.as_named_by_client(lane, &fields));
                if let Some(message) = named {
                    fields.message = message;
                    let mut ours = BytesMut::new();
                    fields.put_error(&mut ours);
                    put(&mut self.sink, &mut self.answer, &ours);
                } else if let Some(failure) = self.answer.copy_failure.take() {
                    // The server only repeats what it was told.
                    (fields.code, fields.message, fields.hint) =
                        (failure.code, failure.message, failure.hint);
                    fields.context = None;
                    let mut ours = BytesMut::new();
                    fields.put_error(&mut ours);
                    put(&mut self.sink, &mut self.answer, &ours);
                } else {
                    put(&mut self.sink, &mut self.answer, frame);
                }
                self.answer.error = Some(fields);
                pay_sync(lane, expectations).await?;
            }
            Backend::ParameterStatus(status) => {
                self.answer.reported.push((status.name.to_owned(), status.value.to_string()));
                lane.params.insert(status.name.to_owned(), status.value.to_string());
            }
            Backend::RowDescription(_) | Backend::DataRow(_) => {
                let (tag, body) = (head.tag, lane.input.split_to(head.len).freeze());
                self.on_captured(tag, body.slice(onecopy_wire::frame::HEAD_LEN..))?;
                return Ok(());
            }
            Backend::CopyIn(_) => {
                put(&mut self.sink, &mut self.answer, frame);
                lane.consume(head);
                self.copy_in(lane).await?;
                pay_sync(lane, expectations).await?;
                return Ok(());
            }
            Backend::CopyBoth(_) => return Err(LaneError::Closed.into()),
            Backend::Notification(_) => {}
            _ => put(&mut self.sink, &mut self.answer, frame),
        }
        if let Some(hash) = &mut self.watch.hash
            && head.tag != tag::NOTICE_RESPONSE
            && head.tag != tag::PARAMETER_STATUS
            && head.tag != tag::PARSE_COMPLETE
        {
            hash.add(&lane.input[..head.len]);
        }
        lane.consume(head);
        Ok(())
    }

    /// The client hears of columns: those of its own statement.
    fn learn_shape(&self, body: &[u8], expectations: &mut Expectations) -> Result<(), WireError> {
        let Some(Some(shape)) = expectations.described.pop() else { return Ok(()) };
        let description = RowDescription::decode(body)?;
        let ours = match &self.watch.capture {
            Some(capture) if capture.plain_descriptions > 0 => 0,
            Some(capture) if capture.client_returns => capture.columns,
            Some(_) => description.len(),
            None => 0,
        };
        shape.learn(description.iter().take(description.len().saturating_sub(ours)));
        Ok(())
    }

    /// Takes our columns out of a row (or of its description) and keeps them.
    fn on_captured(&mut self, tag: u8, body: Bytes) -> Result<(), UnitError> {
        let Some(capture) = &mut self.watch.capture else { return Ok(()) };
        if tag == tag::DATA_ROW {
            let values = backend::data_row(&body)?;
            let first = values.len().saturating_sub(capture.columns);
            let row: Vec<Option<Bytes>> =
                values.iter().skip(first).map(|value| value.map(|value| body.slice_ref(value))).collect();
            capture.bytes += body.len();
            if capture.bytes <= self.watch.kept_bytes_max {
                capture.rows.push(row);
            } else {
                capture.rows.clear();
                self.answer.kept_overflow = true;
            }
        }
        if tag == tag::ROW_DESCRIPTION && capture.plain_descriptions > 0 {
            capture.plain_descriptions -= 1;
            let mut frame = BytesMut::with_capacity(body.len() + onecopy_wire::frame::HEAD_LEN);
            frame.put_u8(tag);
            frame.put_u32(body.len() as u32 + 4);
            frame.put_slice(&body);
            self.put(&frame);
        } else if tag == tag::ROW_DESCRIPTION && !capture.client_returns && capture.must_describe {
            let mut frame = BytesMut::new();
            backend::build::no_data(&mut frame);
            self.put(&frame);
        } else if capture.client_returns {
            let mut stripped = BytesMut::new();
            strip_columns(tag, &body, capture.columns, &mut stripped)?;
            self.put(&stripped);
        }
        Ok(())
    }

    /// Carries the client's COPY data to the server and keeps it, until either ends it.
    async fn copy_in(&mut self, lane: &mut Lane) -> Result<(), UnitError> {
        let Relay { sink, copy_client, answer, watch, .. } = self;
        let client: &mut Client = match (sink, copy_client) {
            (Sink::Client(client), _) => client,
            (Sink::Hold(held, _), Some(client)) => {
                // The client sends nothing before it has seen CopyInResponse.
                client.output.extend_from_slice(held);
                held.clear();
                client
            }
            _ => {
                return Err(ClientError::Protocol("COPY FROM STDIN has nobody to ask for data".into()).into());
            }
        };
        client.flush().await?;
        loop {
            while let Some(head) = client.peek()? {
                let frame = client.input.split_to(head.len).freeze();
                let body = frame.slice(onecopy_wire::frame::HEAD_LEN..);
                let message = frontend::decode(head.tag, &body)?;
                let names_moment = match (&message, &mut watch.moments) {
                    (Frontend::CopyData(_), Some(search)) => search.read(&body),
                    (Frontend::CopyDone, Some(search)) => search.finish(),
                    _ => false,
                };
                if names_moment {
                    answer.copy.clear();
                    answer.copy_failure = Some(Box::new(names_moment_by_clock()));
                    build::copy_fail(&mut lane.output, "a field names a moment by the clock");
                    lane.flush().await?;
                    return match message {
                        Frontend::CopyDone => Ok(()),
                        _ => discard_copy(client).await.map_err(UnitError::from),
                    };
                }
                match message {
                    Frontend::CopyData(_) => {
                        lane.output.put_slice(&frame);
                        answer.copy_bytes += body.len();
                        if !watch.discard_copy {
                            answer.copy.push(body);
                            if answer.copy_bytes > watch.kept_bytes_max {
                                answer.copy.clear();
                                answer.copy_failure = Some(Box::new(kept_too_much(watch.kept_bytes_max)));
                                build::copy_fail(&mut lane.output, "too large");
                                lane.flush().await?;
                                return discard_copy(client).await.map_err(UnitError::from);
                            }
                        }
                    }
                    Frontend::CopyDone => {
                        build::copy_done(&mut lane.output);
                        lane.flush().await?;
                        return Ok(());
                    }
                    Frontend::CopyFail(reason) => {
                        build::copy_fail(&mut lane.output, reason);
                        lane.flush().await?;
                        return Ok(());
                    }
                    // The protocol says that these have no meaning here.
                    Frontend::Flush | Frontend::Sync => {}
                    _ => {
                        build::copy_fail(&mut lane.output, "the client sent something other than COPY data");
                        lane.flush().await?;
                        return Err(ClientError::Protocol(
                            "unexpected message during COPY FROM STDIN".into(),
                        )
                        .into());
                    }
                }
                if lane.output.len() > SEND_LEN {
                    lane.flush().await?;
                }
            }
            lane.flush().await?;
            tokio::select! {
                biased;
                // The server says something only if it has given up: what the client still sends is dropped.
                received = lane.fill() => {
                    received?;
                    return discard_copy(client).await.map_err(UnitError::from);
                }
                received = client.fill() => received?,
            }
        }
    }

    /// A lane that is lost in the middle of a message takes the client with it: no error could be told from the message's
    /// rest.
    fn unless_cut(&self, error: UnitError) -> UnitError {
        match (&self.sink, error) {
            (Sink::Client(client), UnitError::Lane(error)) if client.mid_message => {
                let cut = format!("an answer was cut in the middle of a message: {error}");
                ClientError::Lost(std::io::Error::other(cut)).into()
            }
            (_, error) => error,
        }
    }

    async fn emit(&mut self, bytes: &[u8]) -> Result<(), UnitError> {
        self.put(bytes);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        put(&mut self.sink, &mut self.answer, bytes);
    }
}

fn put(sink: &mut Sink<'_>, answer: &mut Answer, bytes: &[u8]) {
    match sink {
        Sink::Client(client) => client.output.extend_from_slice(bytes),
        Sink::Hold(held, max) => {
            if answer.overflow || held.len() + bytes.len() > *max {
                answer.overflow = true;
                held.clear();
            } else {
                held.extend_from_slice(bytes);
            }
        }
        Sink::Drop => {}
    }
}

/// Sends the Sync that was kept back for COPY data, now that they have ended or an error came before them.
async fn pay_sync(lane: &mut Lane, expectations: &mut Expectations) -> Result<(), LaneError> {
    if std::mem::take(&mut expectations.owes_sync) {
        build::sync(&mut lane.output);
        lane.flush().await?;
    }
    Ok(())
}

/// What a client hears whose transaction writes more than is kept for the other replicas.
pub fn kept_too_much(bytes_max: usize) -> Failure {
    Failure::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the transaction's writes exceed {bytes_max} bytes"),
    )
    .hint("Write in smaller transactions, or raise limits.transaction_bytes_max.")
}

/// What a client hears whose COPY each replica would read by its own clock.
fn names_moment_by_clock() -> Failure {
    Failure::unsupported(
        "the data of COPY name a moment by the clock ('now', 'today' ...), which each replica would read by its own",
        "Send the moment itself; or leave the column out and let its default be now() or CURRENT_DATE; or use INSERT.",
    )
}

/// After the server has given up a COPY, the client may go on sending until it hears of it.
async fn discard_copy(client: &mut Client) -> Result<(), ClientError> {
    client.flush().await?;
    while let Some(head) = client.peek()? {
        match head.tag {
            frontend::tag::COPY_DATA => client.input.advance(head.len),
            frontend::tag::COPY_DONE | frontend::tag::COPY_FAIL => {
                client.input.advance(head.len);
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

impl Request {
    /// Bytes that this takes in memory, about.
    pub fn len(&self) -> usize {
        match self {
            Request::Simple(sql) => sql.len(),
            Request::Prepared(repeated) => 64 + repeated.bind.len(),
            Request::Extended(steps) => steps
                .iter()
                .map(|step| match step {
                    Step::Bind { body, .. } => 64 + body.len(),
                    _ => 64,
                })
                .sum(),
        }
    }

    /// How many row descriptions of the client's own statement will be answered: none if it returns no rows.
    pub fn statement_descriptions(&self, returns: bool) -> usize {
        match self {
            Request::Extended(steps) if returns => {
                steps.iter().filter(|step| matches!(step, Step::DescribeStatement(_))).count()
            }
            _ => 0,
        }
    }
}
