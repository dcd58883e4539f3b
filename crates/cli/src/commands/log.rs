//! `onecopy log`.

use crate::CommandError;
use crate::config::Log;
use crate::console::Table;
use crate::local::default_dir;
use crate::output::print;
use bytes::{Bytes, BytesMut};
use clap::Subcommand;
use onecopy_log::inspect::{self, Found, FrameReport, SegmentReport, Verdict};
use onecopy_log::{Files, Kind, Medium, PayloadId, RecoverError, SegmentNo};
use onecopy_runtime::log_body::{self, Origin, Parameter, Statement, Writes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Look into a log of commits: its segments, its records, whether it is whole.
///
/// Nothing is changed and nothing is locked: it may be written to meanwhile. Then what is written last may look
/// unfinished, as after a crash.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(Show),
    Check(Check),
}

/// Which log, and how to show it.
#[derive(Debug, clap::Args)]
struct Folder {
    /// The folder of the log, `log.dir` of the configuration; or that of a local cluster [default: that of the
    /// configuration's defaults, else of `onecopy up`]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
    /// Print JSON: one document, or with `show` one object a line
    #[arg(long, global = true)]
    json: bool,
}

/// Show records, oldest first: kind, commit, epoch, and what a commit wrote.
#[derive(Debug, clap::Args)]
struct Show {
    /// Begin with this commit
    #[arg(long, value_name = "CSN")]
    from: Option<u64>,
    /// End behind this commit
    #[arg(long, value_name = "CSN")]
    to: Option<u64>,
    /// The statements of each commit, with settings and parameters
    #[arg(long)]
    writes: bool,
}

/// Verify every checksum, and say what a start would conclude; fails if that is not to start.
#[derive(Debug, clap::Args)]
struct Check {}

impl Args {
    /// Reads the log and prints what was asked for.
    ///
    /// # Errors
    /// When there is no log, it is damaged, or it cannot be read.
    pub fn run(self) -> Result<(), CommandError> {
        let path = self.folder.path()?;
        match self.command {
            None => list(&path, self.folder.json),
            Some(Command::Show(show)) => show.run(&path, self.folder.json),
            Some(Command::Check(Check {})) => check(&path, self.folder.json),
        }
    }
}

impl Folder {
    /// The folder that holds the segments.
    fn path(&self) -> Result<PathBuf, CommandError> {
        let path = match &self.dir {
            Some(dir) => dir.clone(),
            None => {
                let usual = Log::default().dir;
                if usual.exists() { usual } else { default_dir("local") }
            }
        };
        let inner = path.join("log");
        let path = if holds_segments(&path)? || !inner.is_dir() { path } else { inner };
        if holds_segments(&path)? {
            return Ok(path);
        }
        Err(format!(
            "there is no commit log in {}: it holds no file like {}; name the folder of the log (log.dir of the \
             configuration) by --dir",
            path.display(),
            SegmentNo(1).file_name()
        )
        .into())
    }
}

fn holds_segments(path: &Path) -> Result<bool, CommandError> {
    let read = |error| format!("read folder {}: {error}; say by --dir where the log is", path.display());
    Ok(!Files::new(path).segments().map_err(read)?.is_empty())
}

/// The segments and what is in them.
fn list(path: &Path, json: bool) -> Result<(), CommandError> {
    let segments = segments(path)?;
    if json {
        let segments: Vec<Value> = segments.iter().map(segment_json).collect();
        print(format!("{:#}", json!({ "dir": path.display().to_string(), "segments": segments })))?;
    } else {
        let mut log_ids = segments.iter().filter_map(|segment| segment.header.ok());
        let log_id = log_ids.next_back().map_or("unknown".to_owned(), |header| header.log_id.to_string());
        print(format!("log {log_id} in {}\n\n{}", path.display(), segment_table(&segments)))?;
    }
    match segments.iter().find_map(|segment| Some((segment.number, segment.header.err()?))) {
        Some((number, defect)) => {
            Err(format!("{}: {defect}; `onecopy log check` says what that means", number.file_name()).into())
        }
        None => Ok(()),
    }
}

/// All segments. One that is dropped between listing and reading is no error.
fn segments(path: &Path) -> Result<Vec<SegmentReport>, CommandError> {
    let mut looks = 0;
    loop {
        looks += 1;
        match inspect::segments(&mut Files::new(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound && looks < 10 => {}
            read => return Ok(read.map_err(|error| format!("read the log in {}: {error}", path.display()))?),
        }
    }
}

fn segment_table(segments: &[SegmentReport]) -> Table {
    const COLUMNS: [&str; 10] = [
        "segment",
        "format",
        "first_place",
        "first_csn",
        "epoch",
        "bytes",
        "file_bytes",
        "records",
        "commits",
        "damaged",
    ];
    let row = |segment: &SegmentReport| {
        let header = |of: fn(&onecopy_log::record::SegmentHeader) -> u64| {
            segment.header.as_ref().map_or("-".to_owned(), |header| of(header).to_string())
        };
        vec![
            segment.number.to_string(),
            segment.header.map_or("-".to_owned(), |header| header.version().to_string()),
            header(|header| header.first_seq.0),
            header(|header| header.first_csn.0),
            header(|header| header.epoch.0),
            segment.used_len.to_string(),
            segment.file_len.to_string(),
            segment.records.to_string(),
            segment.commits.to_string(),
            segment.damaged.to_string(),
        ]
    };
    Table { columns: COLUMNS.map(String::from).to_vec(), rows: segments.iter().map(row).collect() }
}

fn segment_json(segment: &SegmentReport) -> Value {
    let mut object = json!({
        "segment": segment.number.0, "file": segment.number.file_name(), "bytes": segment.used_len,
        "file_bytes": segment.file_len, "records": segment.records, "commits": segment.commits,
        "damaged": segment.damaged,
    });
    match &segment.header {
        Ok(header) => {
            object["format"] = json!(header.version());
            object["log_id"] = json!(header.log_id.to_string());
            object["first_place"] = json!(header.first_seq.0);
            object["first_csn"] = json!(header.first_csn.0);
            object["epoch"] = json!(header.epoch.0);
        }
        Err(defect) => object["defect"] = json!(defect.to_string()),
    }
    object
}

/// Whether the log is whole.
fn check(path: &Path, json: bool) -> Result<(), CommandError> {
    let read = inspect::verify_while_written(&mut Files::new(path));
    let verdict = read.map_err(|error| format!("read the log in {}: {error}", path.display()))?;
    if json {
        print(format!("{:#}", verdict_json(path, &verdict)))?;
    } else if let Ok(Some(_)) = &verdict.outcome {
        print(verdict_text(path, &verdict))?;
    }
    match verdict.outcome {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("there is no commit log in {}", path.display()).into()),
        Err(error) => Err(refusal(path, &error).into()),
    }
}

fn refusal(path: &Path, error: &RecoverError) -> String {
    format!("a start would be refused in {}: {error}", path.display())
}

fn verdict_text(path: &Path, verdict: &Verdict) -> String {
    let Ok(Some(holding)) = &verdict.outcome else { return String::new() };
    let (first, last) = (holding.first.0, holding.last.0);
    let commits = if first > last {
        format!("no commit yet, {first} is next")
    } else {
        format!("commits {first} to {last}")
    };
    let mut text = format!(
        "the log in {} is whole: {commits}, {} records in {} segments, log {}, epoch {}",
        path.display(),
        holding.records,
        verdict.segments.len(),
        holding.log_id,
        holding.epoch
    );
    if let Some(tail) = &holding.tail {
        text += &format!(
            "\nits end is unfinished: {} bytes of {} from byte {} on, and {} later segments, would be given up by a start \
             ({}). Nobody was told that they were safe; where the log is being written, that is usual",
            tail.len,
            tail.segment.file_name(),
            tail.offset,
            tail.segments,
            tail.defect
        );
    }
    text
}

fn verdict_json(path: &Path, verdict: &Verdict) -> Value {
    let mut object = json!({
        "dir": path.display().to_string(),
        "whole": matches!(verdict.outcome, Ok(Some(_))),
        "segments": verdict.segments.iter().map(segment_json).collect::<Vec<_>>(),
    });
    match &verdict.outcome {
        Ok(Some(holding)) => {
            object["log_id"] = json!(holding.log_id.to_string());
            object["epoch"] = json!(holding.epoch.0);
            object["first"] = json!(holding.first.0);
            object["last"] = json!(holding.last.0);
            object["records"] = json!(holding.records);
            object["unfinished"] = match &holding.tail {
                Some(tail) => json!({
                    "segment": tail.segment.0, "offset": tail.offset, "bytes": tail.len,
                    "later_segments": tail.segments, "defect": tail.defect.to_string(),
                }),
                None => Value::Null,
            };
        }
        Ok(None) => {}
        Err(error) => object["refused"] = json!(error.to_string()),
    }
    object
}

impl Show {
    fn run(&self, path: &Path, json: bool) -> Result<(), CommandError> {
        let mut out = BufWriter::new(io::stdout().lock());
        match self.write(path, json, &mut out).and_then(|()| Ok(out.flush()?)) {
            Err(Stop::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(Stop::Output(error)) => Err(error.into()),
            Err(Stop::Log(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    fn write(&self, path: &Path, json: bool, out: &mut impl Write) -> Result<(), Stop> {
        let mut history = inspect::history(Files::new(path)).map_err(|error| refusal(path, &error))?;
        let mut chunks = Chunks::default();
        let mut damaged = None;
        while let Some(found) = history.next() {
            let found = found.map_err(|error| match error.kind() {
                ErrorKind::NotFound => "a segment was dropped while it was to be read; ask again".to_owned(),
                _ => format!("read the log in {}: {error}", path.display()),
            });
            let frame = match found? {
                (_, Found::Frame(frame)) => frame,
                (segment, Found::Damage { offset, to, defect }) => {
                    let end = history.is_in_last_segment();
                    damaged = Some(format!("{}, bytes {offset} to {to}: {defect}", segment.file_name()));
                    if !json {
                        let what = if end { "unfinished or damaged" } else { "damaged" };
                        writeln!(out, "-- {what}: {}", damaged.as_deref().unwrap_or_default())?;
                    }
                    continue;
                }
            };
            if self.to.is_some_and(|to| frame.csn.0 > to) {
                return Ok(());
            }
            let body = chunks.body_of(&frame);
            if !frame.kind.is_appendable() || self.from.is_some_and(|from| frame.csn.0 < from) {
                continue;
            }
            if json {
                writeln!(out, "{}", self.json(&frame, body))?;
            } else {
                self.text(&frame, body, out)?;
            }
        }
        match damaged {
            Some(damaged) => Err(Stop::Log(
                format!("not all of it could be read: {damaged}; `onecopy log check` says what that means")
                    .into(),
            )),
            None => Ok(()),
        }
    }

    fn text(
        &self,
        frame: &FrameReport,
        body: Result<Bytes, &'static str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        write!(
            out,
            "{:<11} {:>8}  epoch {}  place {}",
            frame.kind.to_string(),
            frame.csn.0,
            frame.epoch,
            frame.seq
        )?;
        if let (Some(payload), false) = (frame.payload, frame.kind == Kind::COMMIT) {
            write!(out, "  payload {} chunk {}", payload.id, payload.chunk)?;
        }
        if frame.kind != Kind::COMMIT {
            if let Some((csn, reason)) = annulment(frame) {
                return writeln!(out, "  commit {csn} never happens: {reason}");
            }
            writeln!(out, "  {} bytes", frame.body.len())?;
            return match replicas(frame).filter(|_| self.writes) {
                Some(set) => set.lines().try_for_each(|line| writeln!(out, "    {line}")),
                None => Ok(()),
            };
        }
        let len = body.as_ref().map_or(frame.body.len(), Bytes::len);
        match read_writes(body) {
            Err(reason) => writeln!(out, "  {len} bytes that cannot be read: {reason}"),
            Ok(writes) => {
                let user =
                    if writes.user.is_empty() { String::new() } else { format!("  by {:?}", writes.user) };
                writeln!(
                    out,
                    "  {} writes, {} rows, {len} bytes{user}",
                    writes.statements.len(),
                    rows_text(&writes)
                )?;
                if self.writes {
                    if let Some(Origin { session, number }) = &writes.origin {
                        writeln!(out, "    commit {number} of session {}", hex(session))?;
                    }
                    for (name, value) in &writes.settings {
                        writeln!(out, "    set {name} = {value:?}")?;
                    }
                    writes.statements.iter().try_for_each(|statement| statement_text(statement, out))?;
                }
                Ok(())
            }
        }
    }

    fn json(&self, frame: &FrameReport, body: Result<Bytes, &'static str>) -> Value {
        let mut object = json!({
            "kind": frame.kind.to_string(), "csn": frame.csn.0, "epoch": frame.epoch.0, "place": frame.seq.0,
            "bytes": body.as_ref().map_or(frame.body.len(), Bytes::len),
        });
        if let Some(payload) = frame.payload {
            let chunk = if frame.kind == Kind::COMMIT { "chunks" } else { "chunk" };
            object["payload"] = json!(payload.id.0);
            object[chunk] = json!(payload.chunk);
        }
        if let Some((csn, reason)) = annulment(frame) {
            object["annuls"] = json!(csn);
            object["reason"] = json!(reason);
        }
        if let Some(set) = replicas(frame).filter(|_| self.writes) {
            object["replicas"] = json!(set);
        }
        if frame.kind != Kind::COMMIT {
            return object;
        }
        match read_writes(body) {
            Err(reason) => object["unreadable"] = json!(reason),
            Ok(writes) => {
                object["user"] = json!(writes.user);
                if let Some(Origin { session, number }) = &writes.origin {
                    object["session"] = json!(hex(session));
                    object["session_commit"] = json!(number);
                }
                object["rows"] = json!(rows(&writes));
                object["writes"] = json!(writes.statements.len());
                if self.writes {
                    object["settings"] =
                        writes.settings.iter().cloned().collect::<BTreeMap<_, _>>().into_iter().collect();
                    object["statements"] = writes.statements.iter().map(statement_json).collect();
                }
            }
        }
        object
    }
}

/// Why nothing more is shown.
enum Stop {
    Output(io::Error),
    Log(CommandError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Output(error)
    }
}

impl From<String> for Stop {
    fn from(error: String) -> Stop {
        Stop::Log(error.into())
    }
}

/// The chunks of transactions that were not decided yet.
#[derive(Default)]
struct Chunks {
    epoch: u64,
    open: BTreeMap<PayloadId, Vec<Bytes>>,
}

impl Chunks {
    /// The whole body of a commit, and of any other record its own.
    fn body_of(&mut self, frame: &FrameReport) -> Result<Bytes, &'static str> {
        if frame.epoch.0 > self.epoch {
            self.open.clear();
            self.epoch = frame.epoch.0;
        }
        let Some(payload) = frame.payload else { return Ok(frame.body.clone()) };
        match frame.kind {
            Kind::PAYLOAD => {
                let chunks = self.open.entry(payload.id).or_default();
                if payload.chunk == 0 {
                    chunks.clear();
                }
                chunks.push(frame.body.clone());
                Ok(frame.body.clone())
            }
            Kind::COMMIT => {
                let chunks = self.open.remove(&payload.id).unwrap_or_default();
                if chunks.len() != payload.chunk as usize {
                    return Err("the first part of its writes is no longer in the log");
                }
                let mut whole = BytesMut::new();
                chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
                whole.extend_from_slice(&frame.body);
                Ok(whole.freeze())
            }
            _ => {
                self.open.remove(&payload.id);
                Ok(frame.body.clone())
            }
        }
    }
}

fn read_writes(body: Result<Bytes, &'static str>) -> Result<Writes, String> {
    log_body::read(body?).map_err(|error| error.to_string())
}

/// The commit that an annulment is about, and why.
fn annulment(frame: &FrameReport) -> Option<(u64, String)> {
    let (csn, reason) = frame.body.split_first_chunk::<8>().filter(|_| frame.kind == Kind::ANNULMENT)?;
    Some((u64::from_le_bytes(*csn), String::from_utf8_lossy(reason).into_owned()))
}

/// Which replicas there are, as `replicas.toml` says it.
fn replicas(frame: &FrameReport) -> Option<String> {
    (frame.kind == Kind::REPLICAS).then(|| String::from_utf8_lossy(&frame.body).into_owned())
}

/// Rows that all writes must affect together; `None` if that is not known of each.
fn rows(writes: &Writes) -> Option<u64> {
    writes.statements.iter().map(|statement| statement.rows).sum()
}

fn rows_text(writes: &Writes) -> String {
    let known: u64 = writes.statements.iter().filter_map(|statement| statement.rows).sum();
    if rows(writes).is_some() { known.to_string() } else { format!("at least {known}") }
}

fn statement_text(statement: &Statement, out: &mut impl Write) -> io::Result<()> {
    let rows = statement.rows.map(|rows| format!("{rows} rows"));
    let copied = statement.copied_bytes.map(|bytes| format!("{bytes} bytes of data"));
    let captured = statement.captured.then(|| "captured".to_owned());
    let parameters: Vec<String> = statement.parameters.iter().map(parameter_text).collect();
    let parameters = (!parameters.is_empty()).then(|| format!("with {}", parameters.join(", ")));
    let notes: Vec<String> = [rows, copied, captured, parameters].into_iter().flatten().collect();
    let mut lines = statement.text.lines();
    write!(out, "    {}", lines.next().unwrap_or_default())?;
    lines.try_for_each(|line| write!(out, "\n    {line}"))?;
    if notes.is_empty() { writeln!(out) } else { writeln!(out, "  -- {}", notes.join("; ")) }
}

fn parameter_text(parameter: &Parameter) -> String {
    match parameter {
        Parameter::Null => "NULL".to_owned(),
        Parameter::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Parameter::Binary(bytes) => format!("\\x{}", hex(bytes)),
    }
}

fn statement_json(statement: &Statement) -> Value {
    let parameter = |parameter: &Parameter| match parameter {
        Parameter::Null => Value::Null,
        Parameter::Text(text) => json!(text),
        Parameter::Binary(bytes) => json!({ "hex": hex(bytes) }),
    };
    json!({
        "text": statement.text, "rows": statement.rows, "captured": statement.captured,
        "parameters": statement.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "copied_bytes": statement.copied_bytes,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
