//! A session that a front carries: what it says to its front, which makes it again on another node when this one is lost
//! (docs/nodes.md).
//!
//! Outside transactions a session is what it was begun with, and what has changed since: settings, prepared statements,
//! what it listens to, what it has drawn from sequences. Each of these is a part of its script, which is said again when
//! it has changed; what tells that is a number or a list of what has, so that a ReadyForQuery costs nothing for what
//! stays as it is.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_classify::Isolation;
use onecopy_wire::WireError;
use onecopy_wire::carried::{Fail, Idle, Script, Values, tag};
use onecopy_wire::frontend::{Target, build};

use super::Session;
use super::extended::PreparedStatement;
use crate::agent::quote_identifier;
use crate::record::{Origin, Record};
use crate::scheduler::{Commits, Writes};

/// Names in statements are looked up under settings, so those come first.
const PART_SETTINGS: u32 = 0;
/// The first of the named statements, each of which is a part.
const PART_STATEMENTS: u32 = 1;
/// Behind all that is said by Query, which takes the unnamed statement away.
const PART_UNNAMED: u32 = u32::MAX - 1;
/// Behind whatever else might draw a value.
const PART_VALUES: u32 = u32::MAX;

/// What a session is to its front, which goes on with it elsewhere.
pub struct Carried {
    /// Which session it is, on whatever node.
    session: [u8; 16],
    pub commits: Commits,
    told: Told,
}

/// What the front has been told of the script.
#[derive(Default)]
struct Told {
    settings: Option<Settings>,
    drawn_changes: u64,
    unnamed: Option<Arc<PreparedStatement>>,
    statements: HashMap<String, (u32, Arc<PreparedStatement>)>,
    /// How many numbers the named statements have used.
    parts: u32,
    /// How many commits.
    commits: u64,
}

/// Identifies the settings of a session.
#[derive(Clone, Copy, PartialEq)]
struct Settings {
    environment: u64,
    defaults: Defaults,
}

/// What transactions are unless they say otherwise, by SET SESSION CHARACTERISTICS.
#[derive(Clone, Copy, PartialEq, Default)]
struct Defaults {
    isolation: Option<Isolation>,
    is_read_only: bool,
    is_deferrable: bool,
}

/// The messages of a part.
#[derive(Default)]
struct Part {
    answers: u32,
    messages: BytesMut,
}

impl Carried {
    /// One that has made so many commits on other nodes.
    pub fn new(session: [u8; 16], commits: u64) -> Carried {
        Carried { session, commits: Commits::new(commits), told: Told { commits, ..Told::default() } }
    }

    /// Which commit of the session comes next.
    fn next_origin(&self) -> Origin {
        Origin { session: self.session, number: self.commits.made() + 1 }
    }
}

impl Session {
    /// The same, perhaps carried by a front.
    pub fn carried(mut self, carried: Option<Carried>) -> Session {
        if let Some(mut carried) = carried {
            self.statements.watch();
            // A new session begins with these by itself.
            carried.told.settings = Some(self.settings_now());
            self.carried = Some(carried);
        }
        self
    }

    /// The origin of the transaction that is about to ask for its commit.
    pub(super) fn next_origin(&self) -> Option<Origin> {
        self.carried.as_ref().map(Carried::next_origin)
    }

    /// What a transaction has written, as it goes to the log, to be counted when it is decided.
    pub(super) fn counted(&self, record: Record) -> Writes {
        let commits = self.carried.as_ref().map(|carried| carried.commits.clone());
        Writes { commits, ..Writes::of(record) }
    }

    /// Before a ReadyForQuery outside transactions.
    pub(super) fn tell_front(&mut self) {
        let Some(mut carried) = self.carried.take() else { return };
        self.tell_script(&mut carried.told);
        self.tell_position(&mut carried);
        self.carried = Some(carried);
    }

    /// Before a ReadyForQuery in a transaction: tells of a commit since the last one outside of any, as by COMMIT AND CHAIN,
    /// which would be taken for that of the transaction that is open now.
    pub(super) fn tell_front_of_chained(&mut self) {
        let Some(mut carried) = self.carried.take() else { return };
        if carried.commits.made() != carried.told.commits {
            // What it has set and prepared stays, whatever becomes of what has just begun.
            self.tell_script(&mut carried.told);
            self.tell_position(&mut carried);
        }
        self.carried = Some(carried);
    }

    fn tell_position(&mut self, carried: &mut Carried) {
        let commits = carried.commits.made();
        carried.told.commits = commits;
        // What is notified while nobody listens for it is heard by nobody, and would be missed in silence.
        let listens = self.listener.as_ref().is_some_and(|listener| !listener.channels().is_empty());
        let movable = !self.locks.has_any_until_unlocked() && !self.has_declared() && !listens;
        let idle = Idle { commits, csn: self.shared.scheduler.told(), movable };
        idle.encode(&mut self.client.output);
    }

    fn tell_script(&mut self, told: &mut Told) {
        let settings = self.settings_now();
        if told.settings.replace(settings) != Some(settings) {
            let part = Part::of_settings(self.environment.changes(), settings.defaults);
            self.tell_part(PART_SETTINGS, &part);
        }
        if let Some(part) = told.change_of_unnamed(self.statements.get(""), self.statements.unnamed_to_bind())
        {
            self.tell_part(PART_UNNAMED, &part);
        }
        for name in self.statements.take_changed() {
            if let Some((number, part)) = told.change_of(&name, self.statements.get(&name)) {
                self.tell_part(number, &part);
            }
        }
        let drawn = self.drawn.changes();
        if std::mem::replace(&mut told.drawn_changes, drawn) != drawn {
            let part = Part::of_values(self.drawn.all().as_ref());
            self.tell_part(PART_VALUES, &part);
        }
    }

    fn tell_part(&mut self, number: u32, part: &Part) {
        let script = Script { part: number, answers: part.answers, messages: &part.messages };
        note(script.encode(&mut self.client.output));
    }

    fn settings_now(&self) -> Settings {
        let defaults = Defaults {
            isolation: self.default_isolation,
            is_read_only: self.default_read_only,
            is_deferrable: self.default_deferrable,
        };
        Settings { environment: self.environment.hash(), defaults }
    }

    /// Does what a front says for itself, not for its client; whether it was that.
    pub(super) async fn is_said_by_front(&mut self, tag: u8, body: &Bytes) -> Result<bool, WireError> {
        match tag {
            tag::VALUES => self.drawn.take_over(&Values::decode(body)?),
            tag::FAIL => self.fail_for_front(&Fail::decode(body)?).await,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The client believes that it is in a transaction, and has been told that it failed.
    async fn fail_for_front(&mut self, fail: &Fail<'_>) {
        tracing::debug!(code = %fail.code, message = fail.message, "failing a transaction that cannot go on here");
        if self.fail_block_alone() {
            return;
        }
        if self.txn.is_none() {
            self.begin_txn(true, self.default_read_only());
        }
        self.fail_transaction();
        if let Some(txn) = self.txn.as_mut() {
            // Its savepoints are not known here.
            txn.is_lost = true;
        }
        if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
            self.end_if_failed(id).await;
        }
    }
}

impl Told {
    /// The part of a named statement, if it is not what it was.
    fn change_of(&mut self, name: &str, now: Option<&Arc<PreparedStatement>>) -> Option<(u32, Part)> {
        let known = self.statements.get(name).map(|(number, statement)| (*number, statement));
        match (known, now) {
            (None, None) => None,
            (Some((_, before)), Some(now)) if Arc::ptr_eq(before, now) => None,
            (Some((number, _)), None) => {
                self.statements.remove(name);
                Some((number, Part::default()))
            }
            (known, Some(now)) => {
                let number = known.map_or(PART_STATEMENTS + self.parts, |(number, _)| number);
                self.parts = self.parts.max(number - PART_STATEMENTS + 1);
                self.statements.insert(name.to_owned(), (number, now.clone()));
                Some((number, Part::of_statement(name, now)))
            }
        }
    }

    /// The part of the unnamed statement, if it must be said. Most are bound in the same breath and never again: those are not
    /// worth a message each. One that was said must not outlive the next one.
    fn change_of_unnamed(
        &mut self,
        now: Option<&Arc<PreparedStatement>>,
        to_bind: Option<&Arc<PreparedStatement>>,
    ) -> Option<Part> {
        let is_told = |of: Option<&Arc<PreparedStatement>>| match (&self.unnamed, of) {
            (Some(told), Some(of)) => Arc::ptr_eq(told, of),
            (told, of) => told.is_none() && of.is_none(),
        };
        if is_told(now) || is_told(to_bind) {
            return None;
        }
        self.unnamed = to_bind.cloned();
        Some(to_bind.map_or_else(Part::default, |statement| Part::of_statement("", statement)))
    }
}

impl Part {
    fn of_settings(commands: impl Iterator<Item = String>, defaults: Defaults) -> Part {
        let mut part = Part::default();
        // One by one: one that cannot be set any more takes no others with it.
        commands.for_each(|command| part.query(&command));
        if let Some(command) = defaults.command() {
            part.query(&command);
        }
        part
    }

    /// Each with a Sync: one that cannot be prepared any more takes no others with it.
    fn of_statement(name: &str, statement: &PreparedStatement) -> Part {
        let mut part = Part::default();
        if let Some(count) = statement.parameters_unseen() {
            // Only by PREPARE it can have parameters that it does not use. Those that it uses are cast in its text already.
            let types = vec!["unknown"; count].join(", ");
            part.query(&format!("PREPARE {} ({types}) AS {}", quote_identifier(name), statement.sql));
            return part;
        }
        let types = statement.types.iter().copied();
        let parsed = build::parse(&mut part.messages, name, &statement.sql, types);
        // A client that was told what it returns must hear of it when that changes.
        let described = parsed.and_then(|()| build::describe(&mut part.messages, Target::Statement, name));
        note(described);
        build::sync(&mut part.messages);
        part.answers += 1;
        part
    }

    /// With a Sync, before whose answer the new session says that it has them.
    fn of_values(values: Option<&Values<'_>>) -> Part {
        let mut part = Part::default();
        if let Some(values) = values {
            note(values.encode(&mut part.messages));
            build::sync(&mut part.messages);
            part.answers += 1;
        }
        part
    }

    fn query(&mut self, sql: &str) {
        let built = build::query(&mut self.messages, sql);
        self.answers += u32::from(built.is_ok());
        note(built);
    }
}

/// Names and texts that came in messages go into messages.
fn note(built: Result<(), WireError>) {
    if let Err(error) = built {
        tracing::error!(%error, "say how a session is made again");
    }
}

impl Defaults {
    /// The command that makes them what they are; `None` if they are as they begin.
    fn command(self) -> Option<String> {
        let isolation = self.isolation.map(|isolation| match isolation {
            Isolation::ReadUncommitted => "ISOLATION LEVEL READ UNCOMMITTED",
            Isolation::ReadCommitted => "ISOLATION LEVEL READ COMMITTED",
            Isolation::RepeatableRead => "ISOLATION LEVEL REPEATABLE READ",
            Isolation::Serializable => "ISOLATION LEVEL SERIALIZABLE",
        });
        let modes =
            [isolation, self.is_read_only.then_some("READ ONLY"), self.is_deferrable.then_some("DEFERRABLE")];
        let modes: Vec<&str> = modes.into_iter().flatten().collect();
        (!modes.is_empty())
            .then(|| format!("SET SESSION CHARACTERISTICS AS TRANSACTION {}", modes.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_wire::frontend::{Frontend, decode};
    use onecopy_wire::{Frames, frame};

    fn statement(sql: &str) -> Arc<PreparedStatement> {
        Arc::new(PreparedStatement::new(sql, &[]))
    }

    /// The tags of a part's messages, of which as many are answered as it says.
    fn tags(part: &Part) -> String {
        let frames = Frames::new(&part.messages, frame::FRAME_LEN_MAX);
        let tags: String = frames.map(|frame| char::from(frame.unwrap().tag)).collect();
        assert_eq!(tags.matches(['Q', 'S']).count(), part.answers as usize);
        tags
    }

    #[test]
    fn each_statement_is_a_part_that_is_said_once_replaced_and_taken_away() {
        let mut told = Told::default();
        let (one, two) = (statement("SELECT 1"), statement("SELECT 2"));
        let mut change = |name: &str, now: Option<&Arc<PreparedStatement>>| {
            told.change_of(name, now).map(|(number, part)| (number, tags(&part)))
        };
        let said = |number| Some((PART_STATEMENTS + number, "PDS".to_owned()));
        assert_eq!(change("a", Some(&one)), said(0));
        assert_eq!(change("b", Some(&one)), said(1));
        assert_eq!(change("a", Some(&one)), None);
        assert_eq!(change("a", Some(&two)), said(0), "in its place");
        assert_eq!(change("a", None), Some((PART_STATEMENTS, String::new())));
        assert_eq!(change("a", None), None);
        assert_eq!(change("a", Some(&one)), said(2), "no number is used again");
    }

    #[test]
    fn unnamed_statement_never_stands_for_another_one() {
        let mut told = Told::default();
        let (one, two) = (statement("SELECT 1"), statement("SELECT 2"));
        let mut change = |now: Option<&_>, to_bind: Option<&_>| {
            told.change_of_unnamed(now, to_bind).map(|part| tags(&part))
        };
        assert_eq!(change(Some(&one), None), None, "bound at once");
        assert_eq!(change(Some(&one), Some(&one)).as_deref(), Some("PDS"));
        assert_eq!(change(Some(&one), Some(&one)), None);
        assert_eq!(change(Some(&one), None), None, "bound now, and still there");
        assert_eq!(change(Some(&two), None).as_deref(), Some(""));
        assert_eq!(change(Some(&two), Some(&two)).as_deref(), Some("PDS"));
        assert_eq!(change(None, None).as_deref(), Some(""));
    }

    #[test]
    fn prepared_parameters_that_no_text_shows_are_declared_again() {
        let query = |sql: &str, declared: &[&str]| {
            let mut prepared = PreparedStatement::new(sql, &[]);
            prepared.declared = declared.iter().map(|name| (*name).to_owned()).collect();
            let part = Part::of_statement("it\"s", &prepared);
            let first = Frames::new(&part.messages, frame::FRAME_LEN_MAX).next()?.ok()?;
            match decode(first.tag, first.body) {
                Ok(Frontend::Query(sql)) => Some(sql.to_owned()),
                _ => None,
            }
        };
        assert_eq!(query("SELECT ($1::int)", &["int"]), None);
        let declared = query("SELECT ($1::int)", &["int", "text"]);
        let expected = "PREPARE \"it\"\"s\" (unknown, unknown) AS SELECT ($1::int)";
        assert_eq!(declared.as_deref(), Some(expected));
    }

    #[test]
    fn parts_of_what_is_as_it_began_are_empty() {
        assert_eq!(tags(&Part::of_settings(std::iter::empty(), Defaults::default())), "");
        assert_eq!(tags(&Part::of_values(None)), "");
        let defaults = Defaults { is_read_only: true, ..Defaults::default() };
        assert_eq!(tags(&Part::of_settings(["SET a.b = 1".to_owned()].into_iter(), defaults)), "QQ");
        assert_eq!(tags(&Part::of_values(Some(&Values { last: Some(1), ..Values::default() }))), "@S");
    }

    #[test]
    fn defaults_of_transactions_are_one_command() {
        let defaults =
            Defaults { isolation: Some(Isolation::RepeatableRead), is_read_only: true, is_deferrable: true };
        let expected = "SET SESSION CHARACTERISTICS AS TRANSACTION \
                        ISOLATION LEVEL REPEATABLE READ, READ ONLY, DEFERRABLE";
        assert_eq!(defaults.command().as_deref(), Some(expected));
    }
}
