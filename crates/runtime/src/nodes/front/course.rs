//! What a front keeps of a session so that it can go on elsewhere: what its client has sent and heard since it last had no
//! transaction open. Without sockets: messages in, messages out.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use onecopy_wire::backend::{Fields, Status, build, build::Severity, tag as from_term};
use onecopy_wire::carried::{self, Fail, Idle, Script};
use onecopy_wire::frame::{Frame, Frames, HEAD_LEN};
use onecopy_wire::frontend::{self, Frontend, tag as from_client};
use onecopy_wire::sqlstate::SqlState;
use sha2::{Digest, Sha256};

use super::words::{
    PREPARED_BY, SET_BY, gives_up, is_command, is_commit, is_single, may_change_session, may_commit,
};
use crate::errors::Failure;

/// Bytes of a client's messages that are kept to be sent again.
const KEPT_LEN_MAX: usize = 4 << 20;
/// Bytes of answers that are held until their request is answered whole.
const HELD_LEN_MAX: usize = 64 << 10;

/// Where in a script stands what the front itself has to add: behind all named statements (session/carried.rs).
const PART_KEPT: u32 = u32::MAX - 2;

/// One session, as its front sees it.
pub struct Course {
    /// Where it stood when it last had no transaction open.
    position: Idle,
    /// What makes it again, by part.
    script: BTreeMap<u32, Part>,
    /// The same of the session before this one, until this one has been made by it.
    former: Option<BTreeMap<u32, Part>>,
    /// What the client has sent since then, as far as it is kept.
    sent: BytesMut,
    is_kept: bool,
    /// The client has begun a request that is not complete.
    has_begun: bool,
    /// Its complete requests: where each ends in what was sent, and the message by which it does.
    requests: Vec<Request>,
    /// How many of them the present session has answered.
    answered: usize,
    /// How many of them the client has seen answered.
    told: usize,
    /// What the client has heard of it all.
    heard: Heard,
    /// The same when it last heard a ReadyForQuery: anything more is of a request that is not answered whole.
    heard_whole: Heard,
    /// It may have heard something of that request before it sent all of it.
    has_flushed: bool,
    /// Where in what was sent begins what the present session has not been sent yet. What may commit something does not go
    /// out before all that the client had heard has come out as it was: else what is told to have failed would have been done.
    withheld: Option<usize>,
    /// Answers that it has not heard yet.
    held: BytesMut,
    /// The client waits for answers before its request is complete.
    wants_now: bool,
    /// What the client was told last.
    status: Status,
    phase: Phase,
    /// What is to be heard again, if messages were sent again.
    replay: Option<Replay>,
    /// A transaction has ended, and the next one has begun in the same breath: where the session stood in between.
    chained: Option<Idle>,
    /// What the present session said before its next ReadyForQuery.
    idle: Option<Idle>,
    /// The client has been told that it is connected.
    is_greeted: bool,
    /// What the client is told in answer to its next request: nothing of it is known elsewhere.
    refused: Option<Failure>,
    /// Its block has failed, of which a session made again must be told.
    has_failed: bool,
    /// The client's messages are passed over up to the next Sync.
    skips: bool,
    /// The session has said that it ends.
    has_ended: bool,
}

struct Part {
    answers: u32,
    messages: Bytes,
}

#[derive(Clone, Copy)]
struct Request {
    end: usize,
    by: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is being connected.
    Starting,
    /// So many ReadyForQuery are still to come of what makes it again.
    Restoring(u32),
    Following,
}

#[derive(Clone, Default)]
struct Heard {
    len: u64,
    hash: Sha256,
}

impl Heard {
    fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.hash.update(bytes);
    }

    fn is(&self, other: &Heard) -> bool {
        self.len == other.len && self.hash.clone().finalize() == other.hash.clone().finalize()
    }
}

/// What is to be heard again, and what of it was.
struct Replay {
    expected: Heard,
    again: Heard,
    /// It ends within the answer to a request.
    is_partly: bool,
}

impl Replay {
    fn new(expected: Heard, again: Heard, is_partly: bool) -> Replay {
        Replay { expected, again, is_partly }
    }

    fn is_done(&self) -> bool {
        self.again.len == self.expected.len
    }
}

/// What was to be the same is not: the session cannot go on as if nothing had happened.
#[derive(Debug, PartialEq, Eq)]
pub struct Diverged;

/// Why a session cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub enum Lost {
    /// It had what only the lost node had.
    Pinned,
    /// More was sent than is kept.
    TooMuch,
    /// What it had heard cannot be compared before something is done that depends on it.
    Unchecked,
}

impl Default for Course {
    fn default() -> Course {
        Course {
            // Nothing was committed yet, and nothing is asked about.
            position: Idle { commits: 0, csn: u64::MAX, movable: true },
            script: BTreeMap::new(),
            former: None,
            sent: BytesMut::new(),
            is_kept: true,
            has_begun: false,
            requests: Vec::new(),
            answered: 0,
            told: 0,
            heard: Heard::default(),
            heard_whole: Heard::default(),
            has_flushed: false,
            withheld: None,
            held: BytesMut::new(),
            wants_now: false,
            status: Status::Idle,
            phase: Phase::Starting,
            replay: None,
            chained: None,
            idle: None,
            is_greeted: false,
            refused: None,
            has_failed: false,
            skips: false,
            has_ended: false,
        }
    }
}

impl Course {
    /// How many commits the session had made when it last had no transaction open, and the last commit of all then.
    pub fn position(&self) -> (u64, u64) {
        let position = self.chained.as_ref().unwrap_or(&self.position);
        (position.commits, position.csn)
    }

    /// Whether a request of the client's waits for its answer, or it has begun one: something that may have been committed.
    pub fn is_in_doubt(&self) -> bool {
        self.requests.len() > self.told || self.has_begun || (self.told == 0 && !self.sent.is_empty())
    }

    /// Whether the client's messages wait until what came before them has come out as it did before.
    pub fn withholds(&self) -> bool {
        self.withheld.is_some()
    }

    /// Whether it has said that it ends, so that nobody is to make it again.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether more may be taken from the client before the session has answered.
    pub fn may_take_more(&self) -> bool {
        self.held.len() <= HELD_LEN_MAX
    }

    /// A whole message of the client's; what is to be sent on is appended to `up`, what it is answered here to `down`.
    pub fn on_client(&mut self, frame: Frame<'_>, up: &mut BytesMut, down: &mut BytesMut) {
        if self.skips {
            if frame.tag == from_client::SYNC {
                self.skips = false;
                self.answer_ready(down);
            }
            return;
        }
        if let Some(failure) = self.refused.take_if(|_| frame.tag != from_client::TERMINATE)
            && !self.refuse(&failure, frame, down)
        {
            return;
        }
        if self.withheld.is_none() {
            up.extend_from_slice(frame.bytes);
        }
        if self.is_kept && self.sent.len() + frame.bytes.len() <= KEPT_LEN_MAX {
            self.sent.extend_from_slice(frame.bytes);
        } else {
            self.is_kept = false;
        }
        match frame.tag {
            from_client::QUERY | from_client::SYNC | from_client::FUNCTION_CALL => {
                self.requests.push(Request { end: self.sent.len(), by: frame.tag });
                (self.wants_now, self.has_begun) = (false, false);
            }
            // Data belongs to the request that asked for it.
            from_client::COPY_DATA | from_client::COPY_DONE | from_client::COPY_FAIL => {
                if let Some(request) = self.requests.last_mut() {
                    request.end = self.sent.len();
                }
            }
            from_client::TERMINATE => {}
            tag => {
                self.has_begun = true;
                self.wants_now |= tag == from_client::FLUSH;
                self.has_flushed |= tag == from_client::FLUSH;
            }
        }
    }

    /// Answers the first request after a transaction was lost; says whether it is to be sent on all the same.
    fn refuse(&mut self, failure: &Failure, frame: Frame<'_>, down: &mut BytesMut) -> bool {
        let body = &frame.bytes[HEAD_LEN..];
        let text = match frontend::decode(frame.tag, body) {
            Ok(Frontend::Query(sql)) => sql,
            Ok(Frontend::Parse(parse)) => parse.sql,
            _ => "",
        };
        // Whoever gives it up need not hear that it is lost.
        if gives_up(text) {
            return true;
        }
        failure.put(down, Severity::Error);
        match frame.tag {
            from_client::QUERY | from_client::SYNC | from_client::FUNCTION_CALL => self.answer_ready(down),
            _ => self.skips = true,
        }
        false
    }

    fn answer_ready(&mut self, down: &mut BytesMut) {
        build::ready_for_query(down, self.status);
    }

    /// A message of the session's; what the client is to hear is appended to `down`. `key` is what the client may cancel by.
    ///
    /// # Errors
    /// [`Diverged`]: what was to be heard again is not what was heard. Nothing more of this session is to be taken.
    pub fn on_session(
        &mut self,
        frame: Frame<'_>,
        key: (u32, &[u8]),
        down: &mut BytesMut,
    ) -> Result<(), Diverged> {
        match frame.tag {
            carried::tag::IDLE => {
                self.idle = Idle::decode(frame.body).ok();
                return Ok(());
            }
            carried::tag::SCRIPT => {
                if let Ok(script) = Script::decode(frame.body) {
                    self.note_script(&script);
                }
                return Ok(());
            }
            from_term::ERROR_RESPONSE if is_fatal(frame.body) => {
                self.has_ended = true;
                down.unsplit(self.held.split());
                down.extend_from_slice(frame.bytes);
                return Ok(());
            }
            _ => {}
        }
        match self.phase {
            Phase::Starting => self.on_starting(frame, key, down),
            Phase::Restoring(answers) => {
                if frame.tag == from_term::READY_FOR_QUERY {
                    self.take_position();
                    self.restored(answers - 1);
                }
            }
            Phase::Following => return self.on_following(frame, down),
        }
        Ok(())
    }

    fn note_script(&mut self, script: &Script<'_>) {
        if script.messages.is_empty() {
            self.script.remove(&script.part);
        } else {
            let messages = Bytes::copy_from_slice(script.messages);
            self.script.insert(script.part, Part { answers: script.answers, messages });
        }
    }

    fn take_position(&mut self) {
        if let Some(idle) = self.idle.take() {
            self.position = idle;
        } else if !self.is_greeted {
            // The console says nothing of the kind: what it shows is this node's.
            self.position.movable = false;
        }
    }

    fn on_starting(&mut self, frame: Frame<'_>, (pid, key): (u32, &[u8]), down: &mut BytesMut) {
        match frame.tag {
            from_term::READY_FOR_QUERY => {
                self.take_position();
                if !self.is_greeted {
                    self.is_greeted = true;
                    down.unsplit(self.held.split());
                    // It is as long as the client's protocol allows.
                    let _ = build::backend_key_data(down, pid, key);
                    down.extend_from_slice(frame.bytes);
                }
                let answers = self.former.iter().flat_map(BTreeMap::values).map(|part| part.answers).sum();
                self.restored(answers);
            }
            from_term::BACKEND_KEY_DATA => {}
            _ if self.is_greeted => {}
            _ => self.held.extend_from_slice(frame.bytes),
        }
    }

    fn restored(&mut self, answers: u32) {
        self.phase = if answers > 0 { Phase::Restoring(answers) } else { Phase::Following };
        if answers == 0 {
            self.former = None;
        }
    }

    fn on_following(&mut self, frame: Frame<'_>, down: &mut BytesMut) -> Result<(), Diverged> {
        let is_aside = matches!(
            frame.tag,
            from_term::NOTICE_RESPONSE | from_term::NOTIFICATION_RESPONSE | from_term::PARAMETER_STATUS
        );
        if let Some(replay) = &mut self.replay {
            if is_aside {
                return Ok(());
            }
            replay.again.add(frame.bytes);
            if frame.tag == from_term::READY_FOR_QUERY {
                self.answered += 1;
                self.idle = None;
            }
            // It is the end of what the session says, so that nothing more would come.
            let is_end = match frame.tag {
                from_term::READY_FOR_QUERY => replay.is_partly || self.answered >= self.told,
                from_term::ERROR_RESPONSE => replay.is_partly,
                _ => false,
            };
            return match replay.again.len.cmp(&replay.expected.len) {
                Ordering::Less if !is_end => Ok(()),
                Ordering::Equal if replay.again.is(&replay.expected) => Ok(()),
                _ => Err(Diverged),
            };
        }
        if is_aside {
            let is_waiting = self.told < self.requests.len();
            let out = if is_waiting || !self.held.is_empty() { &mut self.held } else { &mut *down };
            out.extend_from_slice(frame.bytes);
            if self.held.len() > HELD_LEN_MAX {
                self.tell(down);
            }
            return Ok(());
        }
        self.held.extend_from_slice(frame.bytes);
        match frame.tag {
            from_term::READY_FOR_QUERY => self.on_ready(frame, down),
            from_term::COPY_IN_RESPONSE | from_term::COPY_OUT_RESPONSE | from_term::COPY_BOTH_RESPONSE => {
                // A Sync that comes before the data is passed over, and another one follows.
                if frame.tag == from_term::COPY_IN_RESPONSE
                    && self.requests.get(self.answered).is_some_and(|request| request.by == from_client::SYNC)
                {
                    self.requests.remove(self.answered);
                }
                self.tell(down);
            }
            _ if self.wants_now || self.held.len() > HELD_LEN_MAX => self.tell(down),
            _ => {}
        }
        Ok(())
    }

    /// Lets the client hear what is held.
    fn tell(&mut self, down: &mut BytesMut) {
        for frame in Frames::new(&self.held, usize::MAX).flatten() {
            let is_aside = matches!(
                frame.tag,
                from_term::NOTICE_RESPONSE | from_term::NOTIFICATION_RESPONSE | from_term::PARAMETER_STATUS
            );
            if !is_aside {
                self.heard.add(frame.bytes);
            }
        }
        down.unsplit(self.held.split());
    }

    fn on_ready(&mut self, frame: Frame<'_>, down: &mut BytesMut) {
        self.status = Status::decode(frame.body).unwrap_or(Status::Idle);
        self.tell(down);
        self.answered += 1;
        self.told = self.answered;
        self.heard_whole = self.heard.clone();
        self.has_flushed &= self.requests.len() > self.told || self.has_begun;
        if self.status == Status::Idle {
            self.take_position();
            self.chained = None;
            self.forget_answered();
        } else if let Some(idle) = self.idle.take() {
            self.chained = Some(idle);
        }
        self.idle = None;
    }

    /// What was answered is over, once and for all.
    fn forget_answered(&mut self) {
        let done = self.answered.min(self.requests.len());
        let end = done.checked_sub(1).map_or(0, |last| self.requests[last].end);
        if done == self.requests.len() && !self.is_kept {
            self.sent.clear();
            self.is_kept = !self.has_begun;
        } else {
            drop(self.sent.split_to(end.min(self.sent.len())));
        }
        self.requests.drain(..done);
        self.requests.iter_mut().for_each(|request| request.end -= end.min(request.end));
        (self.answered, self.told) = (0, 0);
        (self.heard, self.heard_whole) = (Heard::default(), Heard::default());
        self.has_failed = false;
    }

    /// The session's node is lost, and nothing of what the client has no answer to was committed: appends what makes it
    /// again, and all that is to be done again, to what is sent to a session that has just begun elsewhere.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub fn resume(&mut self, up: &mut BytesMut) -> Result<(), Lost> {
        self.check_movable()?;
        let has_more = !self.sent.is_empty() || !self.requests.is_empty();
        if !self.is_kept && has_more {
            return Err(Lost::TooMuch);
        }
        // What began it is not there to be done again, or what the client has sent since may depend on what it had heard.
        if self.chained.is_some() || (self.heard.len > self.heard_whole.len && self.has_flushed) {
            return Err(Lost::Unchecked);
        }
        if self.status == Status::Failed && self.may_have_committed() {
            self.forget_block()?;
        }
        self.begin_anew(up);
        if self.has_failed {
            fail(up);
        }
        self.withheld = Some(0);
        if self.heard_whole.len > 0 {
            let end = self.told.checked_sub(1).map_or(0, |last| self.requests[last].end);
            self.send_withheld(end, up);
            self.replay = Some(Replay::new(self.heard_whole.clone(), Heard::default(), false));
        } else {
            self.proceed(up);
        }
        Ok(())
    }

    /// Whether one of the answered requests of the open block would have committed it if it had not failed: done again it might.
    fn may_have_committed(&self) -> bool {
        let end = self.told.checked_sub(1).map_or(0, |last| self.requests[last].end);
        Frames::new(&self.sent[..end], usize::MAX).flatten().any(|frame| {
            match frontend::decode(frame.tag, frame.body) {
                Ok(Frontend::Query(sql) | Frontend::Parse(frontend::Parse { sql, .. })) => may_commit(sql),
                Ok(Frontend::Bind(bind)) => self.is_prepared(bind.statement, may_commit),
                _ => false,
            }
        })
    }

    /// Of a block that has failed nothing is done again but its failure.
    fn forget_block(&mut self) -> Result<(), Lost> {
        self.keep_what_stays(self.told.checked_sub(1).map_or(0, |last| self.requests[last].end), false)?;
        self.answered = self.told;
        self.forget_answered();
        self.has_failed = true;
        Ok(())
    }

    /// Sends what was withheld, as soon as the client may have it done: to be called after each message of the session's.
    pub fn proceed(&mut self, up: &mut BytesMut) {
        if self.withheld.is_none() || self.replay.as_ref().is_some_and(|replay| !replay.is_done()) {
            return;
        }
        let again = self.replay.take().map_or_else(Heard::default, |replay| replay.again);
        if again.len < self.heard.len {
            // All of the request of which it had heard something, and nothing behind it.
            let end = self.requests.get(self.told).map_or(self.sent.len(), |request| request.end);
            self.send_withheld(end, up);
            self.replay = Some(Replay::new(self.heard.clone(), again, true));
        } else {
            self.send_withheld(self.sent.len(), up);
            self.withheld = None;
        }
    }

    fn send_withheld(&mut self, end: usize, up: &mut BytesMut) {
        let from = self.withheld.unwrap_or(end).min(end);
        up.extend_from_slice(&self.sent[from..end]);
        self.withheld = Some(end);
    }

    /// Whether it could go on elsewhere at all.
    pub fn check_movable(&self) -> Result<(), Lost> {
        if self.position.movable { Ok(()) } else { Err(Lost::Pinned) }
    }

    /// Gives the open transaction, or the request under way, up: the client is told `failure`. Appends what makes the session
    /// again to what is sent to one that has just begun elsewhere.
    ///
    /// # Errors
    /// [`Lost`] if more was sent behind it than is kept, or the session cannot be made again.
    pub fn give_up(&mut self, failure: Failure, up: &mut BytesMut, down: &mut BytesMut) -> Result<(), Lost> {
        self.check_movable()?;
        if !self.is_kept && (self.requests.len() > self.told + 1 || self.has_begun) {
            return Err(Lost::TooMuch);
        }
        let is_open = self.status != Status::Idle;
        self.keep_what_stays(self.told.checked_sub(1).map_or(0, |last| self.requests[last].end), false)?;
        if let Some(idle) = self.chained.take() {
            self.position = idle;
        }
        self.has_flushed = false;
        self.held.clear();
        self.begin_anew(up);
        let is_asked = self.requests.len() > self.told;
        if is_open {
            self.status = Status::Failed;
            self.has_failed = true;
            fail(up);
        }
        if is_asked {
            failure.put(down, Severity::Error);
            self.answer_ready(down);
            self.told += 1;
        } else if self.has_begun {
            failure.put(down, Severity::Error);
            (self.skips, self.has_begun) = (true, false);
            self.requests.push(Request { end: self.sent.len(), by: from_client::SYNC });
            self.told += 1;
        } else {
            self.refused = Some(failure);
        }
        // What was answered now counts as over; what was sent behind it has still to be done.
        let has_failed = self.has_failed;
        self.answered = self.told;
        self.forget_answered();
        self.has_failed = has_failed;
        up.extend_from_slice(&self.sent);
        Ok(())
    }

    /// Begins with a session that has just begun elsewhere.
    fn begin_anew(&mut self, up: &mut BytesMut) {
        self.phase = Phase::Starting;
        self.idle = None;
        (self.replay, self.withheld) = (None, None);
        self.answered = 0;
        self.held.clear();
        let script = std::mem::take(&mut self.script);
        // One that was not made by it yet is made by the one before.
        let former = self.former.get_or_insert(script);
        former.values().for_each(|part| up.extend_from_slice(&part.messages));
    }

    /// The client's messages up to this place will not be sent again: adds to the script what they have changed of the session
    /// itself and the lost session could not tell any more. Statements stay prepared whatever becomes of their transaction; what
    /// it has set is there only if it was committed.
    ///
    /// # Errors
    /// If it cannot be told from the texts what they have changed: they are not read as SQL here.
    fn keep_what_stays(&mut self, end: usize, is_committed: bool) -> Result<(), Lost> {
        let mut part = Part { answers: 0, messages: Bytes::new() };
        let mut messages = BytesMut::new();
        for frame in Frames::new(&self.sent[..end.min(self.sent.len())], usize::MAX).flatten() {
            match frontend::decode(frame.tag, frame.body) {
                Ok(Frontend::Parse(parse)) if !parse.name.is_empty() => {}
                Ok(Frontend::Close(frontend::Named { target: frontend::Target::Statement, name }))
                    if !name.is_empty() => {}
                Ok(Frontend::Query(sql) | Frontend::Parse(frontend::Parse { sql, .. })) => {
                    let is_set = is_committed && is_command(sql, SET_BY);
                    if is_single(sql) && (is_command(sql, PREPARED_BY) || is_set) {
                        part.answers += u32::from(frontend::build::query(&mut messages, sql).is_ok());
                    } else if may_change_session(sql, is_committed) {
                        return Err(Lost::Unchecked);
                    }
                    continue;
                }
                _ => continue,
            }
            messages.extend_from_slice(frame.bytes);
            frontend::build::sync(&mut messages);
            part.answers += 1;
        }
        if part.answers == 0 {
            return Ok(());
        }
        let former = self.former.get_or_insert_with(|| std::mem::take(&mut self.script));
        if let Some(before) = former.remove(&PART_KEPT) {
            part.answers += before.answers;
            messages = [&before.messages[..], &messages[..]].concat().as_slice().into();
        }
        part.messages = messages.freeze();
        former.insert(PART_KEPT, part);
        Ok(())
    }

    /// The last request of the client's was committed, and its answer is lost. If it was a COMMIT and nothing else, the
    /// answer is known: appends it to `down`, and what makes the session again to `up`. Else says so.
    pub fn committed(&mut self, commits: u64, csn: u64, up: &mut BytesMut, down: &mut BytesMut) -> bool {
        let Some(answer) = self.answer_to_commit() else { return false };
        if self.conclude(commits, csn, up).is_err() {
            return false;
        }
        down.extend_from_slice(&answer);
        true
    }

    /// The same where the answer is not known: the client is told `failure`. False if more was sent than what was committed, or
    /// may have been.
    pub fn concluded(
        &mut self,
        commits: u64,
        csn: u64,
        failure: &Failure,
        up: &mut BytesMut,
        down: &mut BytesMut,
    ) -> bool {
        if self.requests.len() != self.told + 1
            || self.sent.len() > self.requests[self.told].end
            || !self.is_of_one_statement()
            || self.conclude(commits, csn, up).is_err()
        {
            return false;
        }
        failure.put(down, Severity::Error);
        self.answer_ready(down);
        true
    }

    /// Whether the request that waits for its answer is surely of one statement: then all of it was committed.
    fn is_of_one_statement(&self) -> bool {
        let begin = self.told.checked_sub(1).map_or(0, |last| self.requests[last].end);
        let end = self.requests[self.told].end;
        let mut executed = 0;
        for frame in Frames::new(&self.sent[begin..end], usize::MAX).flatten() {
            match frontend::decode(frame.tag, frame.body) {
                Ok(Frontend::Query(sql)) if !is_single(sql) => return false,
                Ok(Frontend::Query(_) | Frontend::Execute(_)) => executed += 1,
                _ => {}
            }
        }
        self.is_kept && executed == 1
    }

    fn conclude(&mut self, commits: u64, csn: u64, up: &mut BytesMut) -> Result<(), Lost> {
        self.keep_what_stays(self.sent.len(), true)?;
        self.begin_anew(up);
        self.position = Idle { commits, csn, movable: true };
        (self.chained, self.has_flushed) = (None, false);
        self.status = Status::Idle;
        self.answered = self.requests.len();
        self.forget_answered();
        self.has_failed = false;
        Ok(())
    }

    fn answer_to_commit(&self) -> Option<BytesMut> {
        if self.requests.len() != self.told + 1 || !self.is_kept {
            return None;
        }
        let begin = self.told.checked_sub(1).map_or(0, |last| self.requests[last].end);
        let end = self.requests[self.told].end;
        if self.sent.len() > end || self.status != Status::InTransaction {
            return None;
        }
        let mut answer = BytesMut::new();
        let mut commits = 0;
        let mut bound = None;
        for frame in Frames::new(&self.sent[begin..end], usize::MAX).flatten() {
            match frontend::decode(frame.tag, frame.body).ok()? {
                Frontend::Query(sql) if is_commit(sql) => {
                    build::command_complete(&mut answer, "COMMIT");
                    commits += 1;
                }
                Frontend::Parse(parse) if is_commit(parse.sql) => build::parse_complete(&mut answer),
                Frontend::Bind(bind) => {
                    bound = Some(self.is_prepared(bind.statement, is_commit));
                    build::bind_complete(&mut answer);
                }
                Frontend::Describe(frontend::Named { target: frontend::Target::Portal, .. }) => {
                    build::no_data(&mut answer);
                }
                Frontend::Execute(_) if bound == Some(true) => {
                    build::command_complete(&mut answer, "COMMIT");
                    commits += 1;
                }
                Frontend::Close(_) => build::close_complete(&mut answer),
                Frontend::Sync => {}
                _ => return None,
            }
        }
        build::ready_for_query(&mut answer, Status::Idle);
        (commits == 1).then_some(answer)
    }

    /// Whether what was prepared under a name is such a text.
    fn is_prepared(&self, name: &str, is_such: impl Fn(&str) -> bool) -> bool {
        let scripts = self.former.as_ref().unwrap_or(&self.script).values();
        let texts = scripts.map(|part| &part.messages[..]).chain([&self.sent[..]]);
        let mut is_such_last = false;
        for frame in texts.flat_map(|messages| Frames::new(messages, usize::MAX).flatten()) {
            if let Ok(Frontend::Parse(parse)) = frontend::decode(frame.tag, frame.body)
                && parse.name == name
            {
                is_such_last = is_such(parse.sql);
            }
        }
        is_such_last
    }
}

/// What tells a session that its block has failed.
fn fail(up: &mut BytesMut) {
    Fail { code: SqlState::SERIALIZATION_FAILURE, message: "the node that led was lost" }.encode(up);
}

fn is_fatal(body: &[u8]) -> bool {
    let severity = Fields::decode(body).ok().and_then(|fields| fields.get(b'V').or_else(|| fields.get(b'S')));
    severity.is_some_and(|severity| severity == b"FATAL" || severity == b"PANIC")
}

#[cfg(test)]
mod tests;
