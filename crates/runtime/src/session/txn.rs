//! One open transaction of a session: its lanes, what it has read and written so far.

use onecopy_classify::{Isolation, Modes};
use onecopy_core::{AccessSet, OpId, ReplicaId, TxnId};
use onecopy_wire::sqlstate::SqlState;

use crate::agent::{quote, quote_identifier};
use crate::changed::Changed;
use crate::errors::Failure;
use crate::notifications::Notification;
use crate::pool::{Lent, ShownCatalogue};
use crate::record::{Settings, What, Write};
use crate::session::course::{BYTES_MAX, Course, Past};
use crate::session::environment::Environment;
use crate::session::home::Turn;

/// An open transaction.
pub struct Txn {
    pub id: TxnId,
    /// Opened by BEGIN; otherwise by several statements in one message, or up to one Sync.
    pub explicit: bool,
    /// One statement, which the core commits by itself.
    pub autocommit: bool,
    /// The core knows of it.
    pub begun: bool,
    /// The core has forgotten it: only its end is awaited.
    pub over: bool,
    /// It was a front's, and cannot go on at this node: what it had done is not known here.
    pub is_lost: bool,
    pub failed: bool,
    pub read_only: bool,
    /// It has become read-only after its first statement.
    pub refuses_writes: bool,
    /// A statement of it has taken a server's snapshot, after which its modes are settled.
    pub has_queried: bool,
    /// As it was said to be. All are as good as the strictest; a server only lets nobody change it too late.
    pub isolation: Isolation,
    /// Whether it was said to be DEFERRABLE, which changes nothing here and is shown.
    pub deferrable: Option<bool>,
    pub form: u64,
    /// The items that it may write, where that was found out before it began.
    pub declared: Option<AccessSet>,
    pub next_op: u32,
    pub snapshot: Option<Lane>,
    pub home: Option<Lane>,
    /// The one on which something was under way when the client vanished.
    pub broken: Option<Lane>,
    /// Who sends the commit on the home's lane.
    pub turn: Turn,
    /// It has left its read phase.
    pub at_home: bool,
    /// A statement of it was executed at a home, so that what it has read is held there, and elsewhere.
    pub ran_at_home: bool,
    /// A read of its read phase has failed, of which its client knows: it may have divided by what was 0.
    pub failed_read: bool,
    /// It has something at its home that cannot be had at another: a temporary table of ours.
    pub bound_to_home: bool,
    /// What it has done, to be done again where it goes on.
    pub course: Course,
    /// Every replica executes it, on lanes that are not the session's.
    pub is_everywhere: bool,
    /// Cursors or portals may be open in the middle of their rows: the home must have them, too.
    pub cursors: bool,
    /// It may execute named portals again that were executed to their end: if the home has them, they are without rows there, too.
    pub ended_portals: bool,
    pub writes: Vec<Write>,
    pub writes_bytes: usize,
    /// Rows of tables with foreign keys that it has changed, or has tried to.
    pub changed: Changed,
    /// Settings that were in force at the first write, then at the last one.
    pub write_settings: Option<[Settings; 2]>,
    /// When constraints are to be checked, as it was said since the last write, each time under these settings: it is part of
    /// the record if another write follows.
    pub constraints_set: Vec<(String, Settings)>,
    pub savepoints: Vec<Savepoint>,
    /// What it will have notified when it commits.
    pub notifications: Vec<Notification>,
    /// What it will have begun and ended to listen to.
    pub listens: Vec<Listen>,
    pub schema_changed: bool,
    /// It may have locked tables as a whole: whose text is read outside of it may wait for it.
    pub locks_tables: bool,
    /// So does whoever only looks at them there.
    pub locks_readers_out: bool,
    /// Sequences that it has restarted, by schema and name.
    pub restarted: Vec<(String, String)>,
    /// Nobody classifies until this transaction's definitions have been read.
    pub changing: bool,
    /// Definitions as this transaction has changed them.
    pub catalogue: Option<std::sync::Arc<onecopy_classify::Catalogue>>,
    /// The last change of definitions by others that `catalogue` surely contains; 0 while that is not known.
    pub generation: u64,
    /// Microseconds since 1970 at which it began: its `now()`.
    pub started_micros: i64,
    /// What SET LOCAL has set, for the record.
    pub local_settings: Vec<(String, String)>,
    /// The session's settings when it began, to return to on rollback.
    pub environment_before: Environment,
    /// What the client has heard of settings in it.
    pub told: Vec<Told>,
    /// The replica whose object ids it has been shown.
    pub shown_catalogue_of: Option<ShownCatalogue>,
}

/// A lane of a transaction.
pub struct Lane {
    pub lent: Lent,
    pub replica: ReplicaId,
}

/// A savepoint, with what had been written and set when it was made.
pub struct Savepoint {
    pub name: String,
    pub writes: usize,
    pub writes_bytes: usize,
    pub read_only: bool,
    pub refuses_writes: bool,
    pub write_settings: Option<[Settings; 2]>,
    pub constraints_set: Vec<(String, Settings)>,
    pub local_settings: Vec<(String, String)>,
    pub environment: Environment,
    /// With the values that the client had been told last.
    pub told: Vec<(Told, String)>,
    pub notifications: usize,
    pub listens: usize,
    /// How many portals the session had bound.
    pub portals: u64,
    /// Advisory locks held until the transaction ends.
    pub locks: usize,
}

/// A setting of which servers tell their clients, and of which the client was told in a transaction.
#[derive(Clone, Debug)]
pub struct Told {
    pub name: String,
    /// What it had heard before.
    pub before: String,
    /// What it was told last that holds after a commit, too; `None`: what it had heard before.
    pub lasting: Option<String>,
}

/// A change of what a session listens to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    To(String),
    NoLongerTo(String),
    ToNothing,
}

impl Txn {
    /// It has nothing open anywhere though it has begun and goes on: it left its snapshot for a statement that was withdrawn, or
    /// its replica was lost. Its next statement opens another snapshot, or finds another home.
    pub fn is_between_lanes(&self) -> bool {
        self.begun && !self.over && !self.is_everywhere && !self.has_lane()
    }

    /// Nothing that would have to be done or compared again was executed on a replica.
    pub fn is_untouched(&self) -> bool {
        !self.has_lane()
            && self.writes.is_empty()
            && self.course.is_empty()
            && self.savepoints.is_empty()
            && self.local_settings.is_empty()
    }

    fn has_lane(&self) -> bool {
        self.home.is_some() || self.snapshot.is_some()
    }

    /// What BEGIN or SET TRANSACTION says of it, unless it comes too late for a server. BEGIN may follow other statements of
    /// the same message.
    pub fn set_modes(&mut self, modes: &Modes) -> Result<(), Failure> {
        let refuse = |what: &str| Err(Failure::new(SqlState::ACTIVE_SQL_TRANSACTION, what));
        if let Some(isolation) = modes.isolation.filter(|isolation| *isolation != self.isolation) {
            if self.has_queried {
                return refuse("SET TRANSACTION ISOLATION LEVEL must be called before any query");
            }
            if !self.savepoints.is_empty() {
                return refuse("SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction");
            }
            self.isolation = isolation;
        }
        match modes.read_only {
            // The core, and with it lanes, were told at its beginning.
            Some(true) => {
                self.refuses_writes |= self.begun && !self.read_only;
                self.read_only = true;
            }
            Some(false) if self.read_only => {
                if !self.savepoints.is_empty() {
                    return refuse("cannot set transaction read-write mode inside a read-only transaction");
                }
                if self.has_queried || self.begun && !self.refuses_writes {
                    return refuse("transaction read-write mode must be set before any query");
                }
                (self.read_only, self.refuses_writes) = (false, false);
            }
            _ => {}
        }
        if modes.deferrable.is_some() {
            if !self.savepoints.is_empty() {
                return refuse("SET TRANSACTION [NOT] DEFERRABLE cannot be called within a subtransaction");
            }
            if self.has_queried {
                return refuse("SET TRANSACTION [NOT] DEFERRABLE must be called before any query");
            }
            self.deferrable = modes.deferrable;
        }
        Ok(())
    }

    pub fn new(id: TxnId, explicit: bool, form: u64, environment: &Environment) -> Txn {
        Txn {
            id,
            explicit,
            autocommit: false,
            begun: false,
            over: false,
            is_lost: false,
            failed: false,
            read_only: false,
            refuses_writes: false,
            has_queried: false,
            isolation: Isolation::ReadCommitted,
            deferrable: None,
            form,
            declared: None,
            next_op: 0,
            snapshot: None,
            home: None,
            broken: None,
            turn: Turn::Told,
            at_home: false,
            ran_at_home: false,
            failed_read: false,
            bound_to_home: false,
            course: Course::default(),
            is_everywhere: false,
            cursors: false,
            ended_portals: false,
            writes: Vec::new(),
            writes_bytes: 0,
            changed: Changed::default(),
            write_settings: None,
            constraints_set: Vec::new(),
            savepoints: Vec::new(),
            notifications: Vec::new(),
            listens: Vec::new(),
            schema_changed: false,
            locks_tables: false,
            locks_readers_out: false,
            restarted: Vec::new(),
            changing: false,
            catalogue: None,
            generation: 0,
            started_micros: crate::clock::unix_micros(),
            local_settings: Vec::new(),
            environment_before: environment.clone(),
            told: Vec::new(),
            shown_catalogue_of: None,
        }
    }

    pub fn take_op(&mut self) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        op
    }

    pub fn lane_at(&mut self, replica: ReplicaId) -> Option<Lane> {
        if self.home.as_ref().is_some_and(|lane| lane.replica == replica) {
            return self.home.take();
        }
        if self.snapshot.as_ref().is_some_and(|lane| lane.replica == replica) {
            return self.snapshot.take();
        }
        None
    }

    /// A setting is set otherwise from now on.
    pub fn forget_local(&mut self, name: &str) {
        self.local_settings.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    /// Keeps writes that were made under these settings.
    pub fn note_writes(&mut self, writes: Vec<Write>, settings: Settings) {
        if writes.is_empty() {
            return;
        }
        let first = self.writes.len();
        for (sql, settings) in std::mem::take(&mut self.constraints_set) {
            let set = Write { lasts: true, ..Write::new(What::Text(sql)) };
            self.append_writes(vec![set], settings);
        }
        self.writes_bytes += writes.iter().map(Write::len).sum::<usize>();
        self.append_writes(writes, settings);
        if !self.autocommit {
            self.course.note(Past::Wrote(first..self.writes.len()));
        }
    }

    fn append_writes(&mut self, writes: Vec<Write>, settings: Settings) {
        match &mut self.write_settings {
            None => self.write_settings = Some([settings.clone(), settings]),
            Some([_, last]) => {
                self.writes.extend(changes(last, &settings));
                *last = settings;
            }
        }
        self.writes.extend(writes);
    }

    /// Keeps a SET CONSTRAINTS, which takes room at once.
    pub fn note_constraints(&mut self, sql: String, settings: Settings) {
        self.writes_bytes += sql.len();
        self.constraints_set.push((sql, settings));
    }

    /// What was written since a savepoint is undone, and takes no room any more.
    pub fn return_writes_to(&mut self, savepoint: usize) {
        let Some(savepoint) = self.savepoints.get(savepoint) else { return };
        self.writes.truncate(savepoint.writes);
        self.writes_bytes = savepoint.writes_bytes;
        self.write_settings = savepoint.write_settings.clone();
        self.constraints_set = savepoint.constraints_set.clone();
    }

    /// All that was written is undone.
    pub fn forget_writes(&mut self) {
        self.writes.clear();
        self.writes_bytes = 0;
        self.write_settings = None;
    }

    /// What was written, with the settings that must be in force before; in the end they are in force again.
    pub fn take_writes(&mut self) -> (Settings, Vec<Write>) {
        let mut writes = std::mem::take(&mut self.writes);
        let Some([first, last]) = self.write_settings.take() else { return (Settings::default(), writes) };
        writes.extend(changes(&last, &first));
        (first, writes)
    }

    /// Whether its reads are done again at its home although nothing of what they read has changed.
    pub fn repeats_reads(&self) -> bool {
        (self.cursors || self.ended_portals) && self.course.has_reads()
    }

    /// Why a transaction that leaves its read phase cannot bring its cursors along.
    pub fn lost_cursors(&self) -> Option<Failure> {
        (self.cursors && self.course.has_lost_reads()).then(|| {
            let message = format!(
                "a transaction with cursors cannot begin to write after reads of more than {BYTES_MAX} bytes of statements"
            );
            Failure::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
                .hint("Write or lock rows before opening cursors, or read in a transaction of its own.")
        })
    }
}

/// Commands of a record that make the settings `to` of `from`, up to the end of the database transaction.
fn changes(from: &Settings, to: &Settings) -> Vec<Write> {
    if from == to {
        return Vec::new();
    }
    let command = |sql| Write::new(What::Text(sql));
    let set = to.iter().filter(|setting| !from.contains(setting));
    let set = set.map(|(name, value)| {
        format!("SELECT pg_catalog.set_config({}, {}, true)", quote(name), quote(value))
    });
    let is_set = |name: &str| to.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    let unset = from.iter().filter(|(name, _)| !is_set(name));
    let unset = unset.map(|(name, _)| format!("SET LOCAL {} TO DEFAULT", quote_identifier(name)));
    set.chain(unset).map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::course::{Past, Read};
    use crate::session::unit::Request;
    use onecopy_core::TxnId;

    fn write(sql: &str) -> Write {
        Write { rows: Some(1), ..Write::new(What::Text(sql.to_owned())) }
    }

    fn savepoint(txn: &Txn) -> Savepoint {
        Savepoint {
            name: "s".to_owned(),
            writes: txn.writes.len(),
            writes_bytes: txn.writes_bytes,
            read_only: false,
            refuses_writes: false,
            write_settings: txn.write_settings.clone(),
            constraints_set: txn.constraints_set.clone(),
            local_settings: Vec::new(),
            environment: Environment::default(),
            told: Vec::new(),
            notifications: 0,
            listens: 0,
            portals: 0,
            locks: 0,
        }
    }

    fn settings(settings: &[(&str, &str)]) -> Settings {
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn transaction_that_has_read_is_not_untouched_even_if_it_has_read_too_much_to_be_kept() {
        let mut txn = Txn::new(TxnId(1), true, 0, &Environment::default());
        assert!(txn.is_untouched());
        let read = |text: &str| {
            Past::Read(Read { request: Request::Simple(text.to_owned()), hash: 1, read_under: 0 })
        };
        txn.course.note(read("SELECT 1"));
        assert!(!txn.is_untouched());
        txn.course.note(read(&" ".repeat(BYTES_MAX)));
        assert!(!txn.course.has_reads() && txn.course.has_lost_reads() && !txn.is_untouched());
    }

    #[test]
    fn reads_are_repeated_where_portals_may_be_executed_again() {
        let mut txn = Txn::new(TxnId(1), true, 0, &Environment::default());
        txn.ended_portals = true;
        assert!(!txn.repeats_reads(), "there is nothing to be repeated");
        let read = |text: &str| {
            Past::Read(Read { request: Request::Simple(text.to_owned()), hash: 1, read_under: 0 })
        };
        txn.course.note(read("SELECT 1"));
        assert!(txn.repeats_reads());
        txn.course.note(read(&" ".repeat(BYTES_MAX)));
        assert!(!txn.repeats_reads() && txn.lost_cursors().is_none(), "it goes on without them");
        txn.cursors = true;
        assert!(txn.lost_cursors().is_some());
    }

    #[test]
    fn writes_that_a_savepoint_undoes_take_no_room() {
        let mut txn = Txn::new(TxnId(1), true, 0, &Environment::default());
        txn.note_writes(vec![write("kept")], Settings::default());
        let bytes = txn.writes_bytes;
        let savepoint = savepoint(&txn);
        txn.savepoints.push(savepoint);
        txn.note_writes(vec![write("undone")], settings(&[("TimeZone", "UTC")]));
        assert!(txn.writes_bytes > bytes);
        txn.return_writes_to(0);
        assert_eq!((txn.writes.len(), txn.writes_bytes), (1, bytes));
        assert_eq!(txn.take_writes().0, Settings::default());
    }

    #[test]
    fn constraints_that_are_set_are_recorded_before_the_write_that_follows_and_not_without_one() {
        let mut txn = Txn::new(TxnId(1), true, 0, &Environment::default());
        let path = |path| settings(&[("search_path", path)]);
        txn.note_constraints("SET CONSTRAINTS one DEFERRED".to_owned(), path("a"));
        let savepoint = savepoint(&txn);
        txn.savepoints.push(savepoint);
        txn.note_writes(vec![write("undone")], path("a"));
        txn.note_constraints("SET CONSTRAINTS undone DEFERRED".to_owned(), path("a"));
        txn.return_writes_to(0);
        txn.note_writes(vec![write("kept")], path("b"));
        txn.note_constraints("SET CONSTRAINTS last IMMEDIATE".to_owned(), path("b"));
        let (before, writes) = txn.take_writes();
        assert_eq!(before, path("a"));
        let set = |path| {
            Write::new(What::Text(format!("SELECT pg_catalog.set_config('search_path', '{path}', true)")))
        };
        let expected = [
            Write { lasts: true, ..Write::new(What::Text("SET CONSTRAINTS one DEFERRED".to_owned())) },
            set("b"),
            write("kept"),
            set("a"),
        ];
        assert_eq!(writes, expected);
    }

    #[test]
    fn settings_change_between_two_writes_and_the_record_changes_them_at_the_same_place() {
        let mut txn = Txn::new(TxnId(1), true, 0, &Environment::default());
        txn.note_writes(vec![write("a")], settings(&[("search_path", "one"), ("TimeZone", "UTC")]));
        txn.note_writes(vec![write("b")], settings(&[("search_path", "one"), ("TimeZone", "UTC")]));
        txn.note_writes(Vec::new(), settings(&[("search_path", "nobody wrote under this")]));
        txn.note_writes(vec![write("c")], settings(&[("search_path", "o'two")]));
        let (before, writes) = txn.take_writes();
        assert_eq!(before, settings(&[("search_path", "one"), ("TimeZone", "UTC")]));
        let texts: Vec<String> = writes
            .into_iter()
            .map(|write| match write.what {
                What::Text(sql) => sql,
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            "a",
            "b",
            "SELECT pg_catalog.set_config('search_path', 'o''two', true)",
            "SET LOCAL \"TimeZone\" TO DEFAULT",
            "c",
            "SELECT pg_catalog.set_config('search_path', 'one', true)",
            "SELECT pg_catalog.set_config('TimeZone', 'UTC', true)",
        ];
        assert_eq!(texts, expected);
    }
}
