//! Statements whose result no two servers would compute alike: do clients get what was stored, and only once?
//!
//! Clients insert rows with serial, identity, `now()`, `random()` and `gen_random_uuid()`, as defaults and as values,
//! update to random values, delete with a LIMIT, and share job queues by SKIP LOCKED. Each checks what it was told:
//! the row returned is the row stored, whoever reads it; numbers and identifiers are handed out once, to committed
//! and aborted transactions alike, and ascend within a session; `lastval()` and `currval()` are this session's;
//! `now()` is one moment in a transaction; a job, or a row deleted, is one client's.
//!
//! Afterwards [`super::compare_replicas`] shows whether the servers agree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::session::{Session, Shape};
use super::statement::{Answer, Step};
use super::tally::{Fault, note};
use super::trouble::Trouble;
use super::{Isolation, execute_all};
use crate::connection::Target;
use crate::{Error, Result};

/// What to do and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect. Tables named `nd_...` are made there, those of an earlier run replaced.
    pub dsn: String,
    /// Clients at once; each has two connections.
    pub clients: u32,
    /// How long, at most.
    pub duration: Duration,
    /// How many times, at most, some client does something.
    pub actions: u64,
    /// What clients do is drawn from this.
    pub seed: u64,
    /// A statement without an answer for longer is a fault.
    pub answer_within: Duration,
    /// How far `now()` may be from this machine's clock.
    pub clock_skew_max: Duration,
    /// Whether the actions that a middleware may refuse with 0A000 are tried: triggers that call `random()`, and
    /// `ctid`.
    pub exotic: bool,
}

impl Options {
    /// Eight clients for half a minute.
    #[must_use]
    pub fn new(dsn: impl Into<String>) -> Options {
        Options {
            dsn: dsn.into(),
            clients: 8,
            duration: Duration::from_secs(30),
            actions: u64::MAX,
            seed: 1,
            answer_within: Duration::from_secs(30),
            clock_skew_max: Duration::from_secs(60),
            exotic: true,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// With which the choices can be repeated.
    pub seed: u64,
    /// Time that clients ran, in seconds.
    pub seconds: f64,
    /// How often each action was done to its end.
    pub done: BTreeMap<String, u64>,
    /// How often each property held.
    pub held: BTreeMap<String, u64>,
    /// Properties that did not hold.
    pub wrong: BTreeMap<String, Fault>,
    /// Actions that ended with 40001 or 40P01.
    pub conflicts: u64,
    /// Actions whose connection broke.
    pub connection_errors: u64,
    /// Exotic actions that were refused with 0A000, which is allowed.
    pub refused: BTreeMap<String, Fault>,
    /// Every other error.
    pub faults: BTreeMap<String, Fault>,
}

impl Report {
    /// Whether nothing happened that must not.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.wrong.is_empty() && self.faults.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done: u64 = self.done.values().sum();
        writeln!(
            f,
            "seed {}: {:.1} s, {done} actions done, {} conflicts, {} connection errors",
            self.seed, self.seconds, self.conflicts, self.connection_errors
        )?;
        self.done.iter().try_for_each(|(action, count)| writeln!(f, "  {count:>7} {action}"))?;
        self.held.iter().try_for_each(|(property, count)| writeln!(f, "{property}: held {count} times"))?;
        let faults = [("WRONG", &self.wrong), ("FAULT", &self.faults), ("refused", &self.refused)];
        faults.iter().flat_map(|(word, faults)| faults.iter().map(move |fault| (word, fault))).try_for_each(
            |(word, (kind, fault))| {
                writeln!(f, "{word} {kind}: {} times; first: {}", fault.count, fault.first)
            },
        )
    }
}

const SCHEMA: &[&str] = &[
    "DROP TABLE IF EXISTS nd_row",
    "DROP TABLE IF EXISTS nd_plain",
    "DROP TABLE IF EXISTS nd_pile",
    "DROP TABLE IF EXISTS nd_job",
    "DROP SEQUENCE IF EXISTS nd_seq",
    "CREATE TABLE nd_row (id serial PRIMARY KEY, ident bigint GENERATED ALWAYS AS IDENTITY UNIQUE, \
     client bigint NOT NULL, at timestamptz NOT NULL DEFAULT now(), \
     clock timestamptz NOT NULL DEFAULT clock_timestamp(), rnd double precision NOT NULL DEFAULT random(), \
     token uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE, note text NOT NULL DEFAULT '')",
    "CREATE TABLE nd_plain (id bigint PRIMARY KEY, rnd double precision, at timestamptz, token uuid, \
     n bigint NOT NULL DEFAULT 0)",
    "CREATE TABLE nd_pile (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, client bigint NOT NULL)",
    "CREATE TABLE nd_job (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'new', taken_by bigint, \
     taken_at timestamptz)",
    "CREATE INDEX nd_job_new ON nd_job (id) WHERE state = 'new'",
    "CREATE SEQUENCE nd_seq",
    "INSERT INTO nd_plain (id) VALUES (1), (2), (3), (4), (5), (6)",
];

const EXOTIC_SCHEMA: &[&str] = &[
    "DROP TABLE IF EXISTS nd_trigger",
    "CREATE TABLE nd_trigger (id serial PRIMARY KEY, client bigint NOT NULL, stamp timestamptz, rnd double precision)",
    "CREATE OR REPLACE FUNCTION nd_stamp() RETURNS trigger LANGUAGE plpgsql AS \
     $$ BEGIN NEW.stamp := clock_timestamp(); NEW.rnd := random(); RETURN NEW; END $$",
    "CREATE TRIGGER nd_stamp BEFORE INSERT ON nd_trigger FOR EACH ROW EXECUTE FUNCTION nd_stamp()",
];

/// Everything of a row of `nd_row`, in text form.
macro_rules! row {
    () => {
        "id, ident, client, at::text, clock::text, rnd::text, token::text, note, extract(epoch FROM at)::bigint"
    };
}

/// A statement that returns such rows.
macro_rules! returning_row {
    ($insert:literal) => {
        concat!($insert, " RETURNING ", row!())
    };
}

/// Runs until the time or the number of actions is over, then reads everything once more.
///
/// # Errors
/// If the DSN is none, or the tables cannot be made. What clients meet is in the report.
pub async fn run(options: &Options) -> Result<Report> {
    if options.clients == 0 {
        return Err(Error::Option("nondeterminism needs at least one client".to_owned()));
    }
    let target = Target::parse(&options.dsn)?;
    let schema = SCHEMA.iter().chain(if options.exotic { EXOTIC_SCHEMA } else { &[] });
    execute_all(&target, schema.map(|&sql| sql.to_owned()), "make the tables").await?;
    let shared = Arc::new(Shared::default());
    let (began, tried) = (Instant::now(), AtomicU64::new(0));
    let until = began + options.duration;
    let clients = (0..options.clients).map(|number| {
        let client = Client::new(options, &target, &shared, number);
        let tried = &tried;
        async move { client.drive(options, until, tried).await }
    });
    let mut report = Report { seed: options.seed, ..Report::default() };
    let mut reports = join_all(clients).await;
    report.seconds = began.elapsed().as_secs_f64();
    let mut last = Client::new(options, &target, &shared, options.clients);
    let _: std::result::Result<(), Over> = last.read_everything().await;
    reports.push(last.report);
    reports.into_iter().for_each(|one| report.merge(one));
    Ok(report)
}

impl Report {
    fn merge(&mut self, other: Report) {
        for (mine, theirs) in [(&mut self.done, other.done), (&mut self.held, other.held)] {
            for (name, count) in theirs {
                *mine.entry(name).or_default() += count;
            }
        }
        let faults = [
            (&mut self.wrong, other.wrong),
            (&mut self.refused, other.refused),
            (&mut self.faults, other.faults),
        ];
        for (mine, theirs) in faults {
            for (kind, fault) in theirs {
                mine.entry(kind).or_insert(Fault { count: 0, first: fault.first }).count += fault.count;
            }
        }
        self.conflicts += other.conflicts;
        self.connection_errors += other.connection_errors;
    }
}

/// A row as it was returned, in text form.
type Cells = Vec<Option<String>>;

/// A version's number, with its row.
type Version = (i64, Cells);

/// What all clients have been told.
#[derive(Default)]
struct Shared {
    /// Numbers and identifiers that were handed out: by sequence or column, whoever got them.
    handed_out: Mutex<HashSet<(&'static str, String)>>,
    /// Rows deleted and jobs taken, by committed transactions.
    taken: Mutex<HashMap<(&'static str, i64), u32>>,
    /// Rows of `nd_row` as they were returned to whoever inserted them, by id.
    rows: Mutex<BTreeMap<i64, Cells>>,
    /// The newest version of each row of `nd_plain` as it was returned: n, and the rest.
    plain: Mutex<BTreeMap<i64, Version>>,
    /// Whether some transaction's end is unknown, so that more may be stored than was told.
    unknown: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A client that panicked ends the run anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The action ended early, and it was noted why.
struct Over;

type Done<T = ()> = std::result::Result<T, Over>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Main,
    Other,
}

struct Client {
    number: i64,
    random: ChaCha8Rng,
    shared: Arc<Shared>,
    main: Session,
    other: Session,
    report: Report,
    clock_skew_max: Duration,
    /// The newest number of each sequence that each of the two sessions got.
    ascending: HashMap<(&'static str, bool), i64>,
}

/// What can be done, with whether 0A000 is an answer.
const ACTIONS: [(&str, bool); 15] = [
    ("insert defaults", false),
    ("insert values", false),
    ("insert several rows", false),
    ("insert from select", false),
    ("insert twice in a transaction", false),
    ("insert and roll back", false),
    ("update to random values", false),
    ("update several rows to random values", false),
    ("upsert random values", false),
    ("delete with a limit", false),
    ("take a job", false),
    ("add jobs", false),
    ("nextval", false),
    ("insert in a string of statements", false),
    ("exotic", true),
];

impl Client {
    fn new(options: &Options, target: &Target, shared: &Arc<Shared>, number: u32) -> Client {
        let mut random = ChaCha8Rng::seed_from_u64(options.seed);
        random.set_stream(u64::from(number));
        let session = || Session::new(target.clone(), Isolation::Default, options.answer_within);
        Client {
            number: i64::from(number),
            random,
            shared: Arc::clone(shared),
            main: session(),
            other: session(),
            report: Report::default(),
            clock_skew_max: options.clock_skew_max,
            ascending: HashMap::new(),
        }
    }

    async fn drive(mut self, options: &Options, until: Instant, tried: &AtomicU64) -> Report {
        let actions = if options.exotic { ACTIONS.len() } else { ACTIONS.len() - 1 };
        while Instant::now() < until && tried.fetch_add(1, Ordering::Relaxed) < options.actions {
            let action = self.random.random_range(0..actions);
            if self.act(action).await.is_ok() {
                *self.report.done.entry(ACTIONS[action].0.to_owned()).or_default() += 1;
            }
        }
        self.report
    }

    async fn act(&mut self, action: usize) -> Done {
        match action {
            0 => self.insert(returning_row!("INSERT INTO nd_row (client) VALUES ($1)"), 1).await,
            1 => {
                let sql = returning_row!(
                    "INSERT INTO nd_row (client, at, clock, rnd, token, note) VALUES ($1, now(), \
                     clock_timestamp(), random(), gen_random_uuid(), md5(random()::text))"
                );
                self.insert(sql, 1).await
            }
            2 => self.insert(returning_row!("INSERT INTO nd_row (client) VALUES ($1), ($1), ($1)"), 3).await,
            3 => {
                let sql = returning_row!(
                    "INSERT INTO nd_row (client, note) SELECT $1::bigint, random()::text FROM generate_series(1, 3)"
                );
                self.insert(sql, 3).await
            }
            4 => self.insert_twice().await,
            5 => self.insert_and_roll_back().await,
            6 => self.update_one().await,
            7 => self.update_several().await,
            8 => self.upsert().await,
            9 => self.delete_with_limit().await,
            10 => self.take_a_job().await,
            11 => self.add_jobs().await,
            12 => self.next_value().await,
            13 => self.insert_in_a_string().await,
            _ => self.exotic().await,
        }
    }

    /// Inserts rows by themselves, and compares what came back with what is stored and with this session's numbers.
    async fn insert(&mut self, sql: &'static str, rows: usize) -> Done {
        let number = self.number;
        let answer = self.query(On::Main, sql, &[number]).await?;
        self.must_be("rows are returned", answer.rows.len() == rows, || {
            format!("{rows} expected: {answer:?}")
        });
        self.note_inserted(On::Main, &answer, true);
        let numbers = "SELECT currval('nd_row_id_seq'), currval('nd_row_ident_seq'), lastval()";
        if self.random.random_bool(0.5) {
            // Another session's numbers are its own.
            self.insert_into_pile(On::Other).await?;
        }
        let current = self.query(On::Main, numbers, &[]).await?;
        let last = answer.rows.last().cloned().unwrap_or_default();
        let expected =
            [last.first().cloned().flatten(), last.get(1).cloned().flatten(), last.get(1).cloned().flatten()];
        self.must_be("currval and lastval are this session's", current.rows == [expected.to_vec()], || {
            format!("{expected:?} expected after {last:?}, got {current:?}")
        });
        for row in &answer.rows {
            let on = if self.random.random() { On::Main } else { On::Other };
            self.compare_stored(on, row).await?;
        }
        Ok(())
    }

    /// Reads a row that was returned.
    async fn compare_stored(&mut self, on: On, row: &[Option<String>]) -> Done {
        let id = row.first().cloned().flatten().and_then(|id| id.parse().ok()).unwrap_or(0);
        let stored = self.query(on, concat!("SELECT ", row!(), " FROM nd_row WHERE id = $1"), &[id]).await?;
        self.must_be("the row returned is the row stored", stored.rows == [row.to_vec()], || {
            format!("returned {row:?}, stored {:?}", stored.rows)
        });
        Ok(())
    }

    /// Remembers what was handed out, and checks that nobody had it before.
    fn note_inserted(&mut self, on: On, answer: &Answer, committed: bool) {
        let moments: HashSet<Option<&str>> =
            (0..answer.rows.len()).map(|row| answer.cell(row, 3).unwrap_or(None)).collect();
        self.must_be("now() is one moment in a statement", moments.len() == 1, || format!("{answer:?}"));
        for (row, cells) in answer.rows.iter().enumerate() {
            for (column, name) in
                [(0, "nd_row.id"), (1, "nd_row.ident"), (5, "nd_row.rnd"), (6, "nd_row.token")]
            {
                self.must_be_new(name, cells[column].clone().unwrap_or_default());
            }
            self.must_ascend("nd_row.id", on, answer.int(row, 0).unwrap_or(0));
            self.must_ascend("nd_row.ident", on, answer.int(row, 1).unwrap_or(0));
            let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let there = u64::try_from(answer.int(row, 8).unwrap_or(0)).unwrap_or(0);
            let skew = self.clock_skew_max.as_secs();
            self.must_be("now() is about now", here.abs_diff(there) <= skew, || {
                format!("{there}, here {here}")
            });
            if committed {
                lock(&self.shared.rows).insert(answer.int(row, 0).unwrap_or(0), cells.clone());
            }
        }
    }

    async fn insert_twice(&mut self) -> Done {
        let number = self.number;
        let insert = returning_row!("INSERT INTO nd_row (client) VALUES ($1)");
        self.command(On::Main, "BEGIN").await?;
        let first = self.query(On::Main, insert, &[number]).await?;
        let now = self
            .query(
                On::Main,
                "SELECT now()::text, current_timestamp::text, transaction_timestamp()::text",
                &[],
            )
            .await?;
        let second = self.query(On::Main, insert, &[number]).await?;
        let seen = self
            .query(
                On::Main,
                concat!("SELECT ", row!(), " FROM nd_row WHERE id = $1"),
                &[first.int(0, 0).unwrap_or(0)],
            )
            .await?;
        self.must_be("the row returned is the row stored", seen.rows == first.rows, || {
            format!("{first:?}, {seen:?}")
        });
        self.commit(On::Main).await?;
        let moments: HashSet<&str> =
            [first.text(0, 3), second.text(0, 3), now.text(0, 0), now.text(0, 1), now.text(0, 2)]
                .into_iter()
                .map(|moment| moment.unwrap_or(""))
                .collect();
        self.must_be("now() is one moment in a transaction", moments.len() == 1, || format!("{moments:?}"));
        self.note_inserted(On::Main, &first, true);
        self.note_inserted(On::Main, &second, true);
        for answer in [first, second] {
            self.compare_stored(On::Other, &answer.rows[0]).await?;
        }
        Ok(())
    }

    async fn insert_and_roll_back(&mut self) -> Done {
        let number = self.number;
        self.command(On::Main, "BEGIN").await?;
        let answer = self
            .query(On::Main, returning_row!("INSERT INTO nd_row (client) VALUES ($1)"), &[number])
            .await?;
        self.command(On::Main, "ROLLBACK").await?;
        self.note_inserted(On::Main, &answer, false);
        let id = answer.int(0, 0).unwrap_or(0);
        let stored = self.query(On::Other, "SELECT id FROM nd_row WHERE id = $1", &[id]).await?;
        self.must_be("what was rolled back is not stored", stored.rows.is_empty(), || format!("{stored:?}"));
        Ok(())
    }

    async fn update_one(&mut self) -> Done {
        let id = self.random.random_range(1..=6);
        let sql = "UPDATE nd_plain SET rnd = random(), at = clock_timestamp(), token = gen_random_uuid(), n = n + 1 \
                   WHERE id = $1 RETURNING id, n, rnd::text, at::text, token::text";
        self.command(On::Main, "BEGIN").await?;
        let answer = self.query(On::Main, sql, &[id]).await?;
        let read = "SELECT id, n, rnd::text, at::text, token::text FROM nd_plain WHERE id = $1";
        let seen = self.query(On::Main, read, &[id]).await?;
        self.commit(On::Main).await?;
        self.must_be("the row returned is the row stored", seen.rows == answer.rows, || {
            format!("{answer:?}, {seen:?}")
        });
        self.note_plain(&answer);
        Ok(())
    }

    async fn update_several(&mut self) -> Done {
        let sql = "UPDATE nd_plain SET rnd = random(), token = gen_random_uuid(), n = n + 1 \
                   WHERE id BETWEEN $1 AND $1 + 2 RETURNING id, n, rnd::text, at::text, token::text";
        let from = self.random.random_range(1..=4);
        let answer = self.query(On::Main, sql, &[from]).await?;
        self.must_be("rows are returned", answer.rows.len() == 3, || format!("3 expected: {answer:?}"));
        self.note_plain(&answer);
        Ok(())
    }

    async fn upsert(&mut self) -> Done {
        let sql = "INSERT INTO nd_plain AS p (id, rnd, at, token) VALUES ($1, random(), now(), gen_random_uuid()) \
                   ON CONFLICT (id) DO UPDATE SET rnd = random(), at = excluded.at, token = excluded.token, n = p.n + 1 \
                   RETURNING id, n, rnd::text, at::text, token::text";
        let id = self.random.random_range(5..=30);
        let answer = self.query(On::Main, sql, &[id]).await?;
        self.note_plain(&answer);
        Ok(())
    }

    /// Rows (id, n, rnd, at, token) that were committed.
    fn note_plain(&mut self, answer: &Answer) {
        for row in 0..answer.rows.len() {
            self.must_be_new("nd_plain.rnd", answer.text(row, 2).unwrap_or("").to_owned());
            self.must_be_new("nd_plain.token", answer.text(row, 4).unwrap_or("").to_owned());
            let (id, n) = (answer.int(row, 0).unwrap_or(0), answer.int(row, 1).unwrap_or(0));
            self.must_be_new("nd_plain.n", format!("{id}: {n}"));
            let mut plain = lock(&self.shared.plain);
            let newest = plain.entry(id).or_default();
            if n >= newest.0 {
                *newest = (n, answer.rows[row].clone());
            }
        }
    }

    async fn insert_into_pile(&mut self, on: On) -> Done<i64> {
        let number = self.number;
        let answer =
            self.query(on, "INSERT INTO nd_pile (client) VALUES ($1) RETURNING id", &[number]).await?;
        let id = answer.int(0, 0).unwrap_or(0);
        self.must_be_new("nd_pile.id", id.to_string());
        self.must_ascend("nd_pile.id", on, id);
        Ok(id)
    }

    async fn delete_with_limit(&mut self) -> Done {
        let on = if self.random.random() { On::Main } else { On::Other };
        let id = self.insert_into_pile(on).await?;
        let last = self.query(on, "SELECT lastval()", &[]).await?;
        self.must_be("currval and lastval are this session's", last.int(0, 0) == Ok(id), || {
            format!("{id}, {last:?}")
        });
        let sql = match self.random.random_range(0..4) {
            0 => "DELETE FROM nd_pile WHERE id IN (SELECT id FROM nd_pile ORDER BY id LIMIT 2) RETURNING id",
            1 => "DELETE FROM nd_pile WHERE id IN (SELECT id FROM nd_pile LIMIT 2) RETURNING id",
            2 => {
                "DELETE FROM nd_pile WHERE id IN (SELECT id FROM nd_pile ORDER BY random() LIMIT 2) RETURNING id"
            }
            _ => {
                "DELETE FROM nd_pile WHERE id IN \
                 (SELECT id FROM nd_pile ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) RETURNING id"
            }
        };
        let deleted = self.query(On::Main, sql, &[]).await?;
        self.must_be("a LIMIT limits", deleted.rows.len() <= 2, || format!("{deleted:?}"));
        for row in 0..deleted.rows.len() {
            let id = deleted.int(row, 0).unwrap_or(0);
            self.take("nd_pile", id);
            let left = self.query(On::Other, "SELECT id FROM nd_pile WHERE id = $1", &[id]).await?;
            self.must_be("what was deleted is gone", left.rows.is_empty(), || format!("{left:?}"));
        }
        Ok(())
    }

    async fn add_jobs(&mut self) -> Done {
        let answer = self
            .query(On::Main, "INSERT INTO nd_job (state) VALUES ('new'), ('new'), ('new') RETURNING id", &[])
            .await?;
        for row in 0..answer.rows.len() {
            self.must_be_new("nd_job.id", answer.text(row, 0).unwrap_or("").to_owned());
        }
        Ok(())
    }

    async fn take_a_job(&mut self) -> Done {
        let number = self.number;
        let taken = match self.random.random_range(0..3) {
            0 => {
                let sql =
                    "SELECT id FROM nd_job WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
                let update = "UPDATE nd_job SET state = 'done', taken_by = $2, taken_at = now() \
                              WHERE id = $1 AND state = 'new'";
                self.command(On::Main, "BEGIN").await?;
                let job = self.query(On::Main, sql, &[]).await?;
                if let Ok(id) = job.int(0, 0) {
                    let updated = self.query(On::Main, update, &[id, number]).await?;
                    self.must_be("a job that was locked is there", updated.count == 1, || {
                        format!("job {id}: {updated:?}")
                    });
                }
                self.commit(On::Main).await?;
                job
            }
            1 => {
                let sql = "UPDATE nd_job SET state = 'done', taken_by = $1, taken_at = clock_timestamp() \
                           WHERE id = (SELECT id FROM nd_job WHERE state = 'new' ORDER BY id LIMIT 1 \
                           FOR UPDATE SKIP LOCKED) RETURNING id";
                self.query(On::Main, sql, &[number]).await?
            }
            _ => {
                let sql = "DELETE FROM nd_job WHERE id = (SELECT id FROM nd_job WHERE state = 'new' ORDER BY id \
                           LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id";
                self.query(On::Main, sql, &[]).await?
            }
        };
        for row in 0..taken.rows.len() {
            self.take("nd_job", taken.int(row, 0).unwrap_or(0));
        }
        Ok(())
    }

    async fn next_value(&mut self) -> Done {
        let next = self.query(On::Main, "SELECT nextval('nd_seq')", &[]).await?;
        let value = next.int(0, 0).unwrap_or(0);
        self.must_be_new("nd_seq", value.to_string());
        self.must_ascend("nd_seq", On::Main, value);
        let current = self.query(On::Main, "SELECT currval('nd_seq'), lastval()", &[]).await?;
        let both = [current.int(0, 0), current.int(0, 1)];
        self.must_be("currval and lastval are this session's", both == [Ok(value), Ok(value)], || {
            format!("{value} expected, got {current:?}")
        });
        Ok(())
    }

    async fn insert_in_a_string(&mut self) -> Done {
        let sql = format!(
            "INSERT INTO nd_pile (client) VALUES ({0}) RETURNING id; INSERT INTO nd_pile (client) VALUES ({0}) \
             RETURNING id; SELECT lastval(), currval('nd_pile_id_seq')",
            self.number
        );
        let answers = self.string(On::Main, &sql).await?;
        let ids: Vec<i64> = answers.iter().take(2).map(|answer| answer.int(0, 0).unwrap_or(0)).collect();
        for &id in &ids {
            self.must_be_new("nd_pile.id", id.to_string());
            self.must_ascend("nd_pile.id", On::Main, id);
        }
        let last = answers.last().cloned().unwrap_or_default();
        let expected = ids.last().copied().ok_or_else(String::new);
        let right = last.int(0, 0) == expected && last.int(0, 1) == expected;
        self.must_be("currval and lastval are this session's", right, || format!("{answers:?}"));
        Ok(())
    }

    async fn exotic(&mut self) -> Done {
        let number = self.number;
        if self.random.random() {
            let sql = "INSERT INTO nd_trigger (client) VALUES ($1) RETURNING id, stamp::text, rnd::text";
            let answer = self.query_exotic("trigger that calls random()", sql, &[number]).await?;
            let read = "SELECT id, stamp::text, rnd::text FROM nd_trigger WHERE id = $1";
            let stored = self.query(On::Other, read, &[answer.int(0, 0).unwrap_or(0)]).await?;
            self.must_be("the row returned is the row stored", stored.rows == answer.rows, || {
                format!("{answer:?}, {stored:?}")
            });
        } else {
            self.insert_into_pile(On::Main).await?;
            let sql = "DELETE FROM nd_pile WHERE ctid = (SELECT ctid FROM nd_pile LIMIT 1) RETURNING id";
            let deleted = self.query_exotic("DELETE by ctid", sql, &[]).await?;
            for row in 0..deleted.rows.len() {
                self.take("nd_pile", deleted.int(row, 0).unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Compares what is stored at the end with what clients were told.
    async fn read_everything(&mut self) -> Done {
        let stored =
            self.query(On::Main, concat!("SELECT ", row!(), " FROM nd_row ORDER BY id"), &[]).await?;
        let stored: BTreeMap<i64, Cells> = stored
            .rows
            .iter()
            .enumerate()
            .map(|(row, cells)| (stored.int(row, 0).unwrap_or(0), cells.clone()))
            .collect();
        let told = lock(&self.shared.rows).clone();
        for (id, row) in &told {
            self.must_be("the row returned is stored at the end", stored.get(id) == Some(row), || {
                format!("returned {row:?}, stored {:?}", stored.get(id))
            });
        }
        let complete = !self.shared.unknown.load(Ordering::Relaxed);
        let untold = stored.keys().find(|id| !told.contains_key(*id)).copied();
        self.must_be("nothing is stored that nobody was told", untold.is_none() || !complete, || {
            format!("{untold:?}")
        });
        let sql = "SELECT id, n, rnd::text, at::text, token::text FROM nd_plain WHERE n > 0 OR token IS NOT NULL ORDER BY id";
        let plain = self.query(On::Main, sql, &[]).await?;
        let told = lock(&self.shared.plain).clone();
        for (row, cells) in plain.rows.iter().enumerate() {
            let told = told.get(&plain.int(row, 0).unwrap_or(0)).map(|(_, cells)| cells);
            self.must_be(
                "the newest version returned is stored at the end",
                told == Some(cells) || !complete,
                || format!("returned {told:?}, stored {cells:?}"),
            );
        }
        let sql = "SELECT id, state FROM nd_job UNION ALL SELECT id, 'pile' FROM nd_pile ORDER BY id";
        let left = self.query(On::Main, sql, &[]).await?;
        let taken = lock(&self.shared.taken).clone();
        for row in 0..left.rows.len() {
            let id = left.int(row, 0).unwrap_or(0);
            let right = match left.text(row, 1).unwrap_or("") {
                "pile" => !taken.contains_key(&("nd_pile", id)),
                "done" => taken.contains_key(&("nd_job", id)) || !complete,
                _ => !taken.contains_key(&("nd_job", id)),
            };
            self.must_be("what was taken is taken at the end", right, || format!("{:?}", left.rows[row]));
        }
        Ok(())
    }

    fn take(&mut self, from: &'static str, id: i64) {
        let times = {
            let mut taken = lock(&self.shared.taken);
            let times = taken.entry((from, id)).or_default();
            *times += 1;
            *times
        };
        self.must_be("a row is taken once", times == 1, || format!("{from} {id} was taken {times} times"));
    }

    fn must_be_new(&mut self, what: &'static str, value: String) {
        let new = lock(&self.shared.handed_out).insert((what, value.clone()));
        self.must_be("what is handed out is handed out once", new, || {
            format!("{what} {value} was given twice")
        });
    }

    fn must_ascend(&mut self, what: &'static str, on: On, value: i64) {
        let before = self.ascending.insert((what, on == On::Main), value);
        self.must_be("numbers ascend within a session", before.is_none_or(|before| before < value), || {
            format!("{what}: {value} after {before:?}")
        });
    }

    fn must_be(&mut self, property: &str, holds: bool, why: impl FnOnce() -> String) {
        if holds {
            *self.report.held.entry(property.to_owned()).or_default() += 1;
        } else {
            note(&mut self.report.wrong, property.to_owned(), why());
        }
    }

    fn session(&mut self, on: On) -> &mut Session {
        match on {
            On::Main => &mut self.main,
            On::Other => &mut self.other,
        }
    }

    async fn query(&mut self, on: On, sql: &'static str, params: &[i64]) -> Done<Answer> {
        self.query_or_refusal(on, None, sql, params).await
    }

    /// A statement that may be refused with 0A000.
    async fn query_exotic(&mut self, what: &'static str, sql: &'static str, params: &[i64]) -> Done<Answer> {
        self.query_or_refusal(On::Main, Some(what), sql, params).await
    }

    async fn query_or_refusal(
        &mut self,
        on: On,
        exotic: Option<&str>,
        sql: &'static str,
        params: &[i64],
    ) -> Done<Answer> {
        let shape = [Shape::Simple, Shape::Prepared, Shape::Unnamed][self.random.random_range(0..3)];
        let step = Step::new(sql, params, Vec::new(), |_| Ok(Vec::new()));
        let session = self.session(on);
        let sent = match session.connect().await {
            Ok(()) => session.send(&step, shape).await,
            Err(trouble) => Err(trouble),
        };
        match sent {
            Ok(answer) => Ok(answer),
            Err(trouble) => Err(self.over(on, sql, exotic, trouble).await),
        }
    }

    async fn string(&mut self, on: On, sql: &str) -> Done<Vec<Answer>> {
        let session = self.session(on);
        let sent = match session.connect().await {
            Ok(()) => session.simple(sql).await,
            Err(trouble) => Err(trouble),
        };
        match sent {
            Ok(answers) => Ok(answers),
            Err(trouble) => Err(self.over(on, sql, None, trouble).await),
        }
    }

    async fn command(&mut self, on: On, sql: &str) -> Done {
        self.string(on, sql).await.map(|_| ())
    }

    async fn commit(&mut self, on: On) -> Done {
        self.command(on, "COMMIT").await
    }

    /// Notes why an action ended early, and brings its connection back into order.
    async fn over(&mut self, on: On, sql: &str, exotic: Option<&str>, trouble: Trouble) -> Over {
        let lost = match trouble {
            Trouble::Refused { code, .. } if code == "40001" || code == "40P01" => {
                self.report.conflicts += 1;
                false
            }
            Trouble::Refused { code, message } => {
                match exotic {
                    Some(what) if code == "0A000" => note(&mut self.report.refused, what.to_owned(), message),
                    _ => note(&mut self.report.faults, code, format!("{sql}: {message}")),
                }
                false
            }
            Trouble::Lost { .. } => {
                self.report.connection_errors += 1;
                true
            }
            Trouble::Stalled { doing } => {
                note(&mut self.report.faults, "stalled".to_owned(), doing);
                true
            }
            Trouble::Nonsense { why } => {
                note(&mut self.report.faults, "unexpected answer".to_owned(), format!("{sql}: {why}"));
                false
            }
        };
        if lost || self.session(on).simple("ROLLBACK").await.is_err() {
            self.shared.unknown.store(true, Ordering::Relaxed);
            self.session(on).disconnect();
            // Numbers ascend within one session; the next one begins anew.
            self.ascending.retain(|(_, main), _| *main != (on == On::Main));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Over
    }
}
