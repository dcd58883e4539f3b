//! No false negatives: two statements whose items do not conflict leave the same database and give the same
//! answers in either order.

use super::generate::Generator;
use super::server::{Answer, Session, TestServer};
use onecopy_classify::whole::{Conflicts, Granularity, Reads, foresee};
use onecopy_classify::{
    Catalogue, Class, Context, Determinism, FrozenValue, NoParams, ParamValue, Scratch, classify, normalise,
};
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Mode, Space, conflict_index};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Pairs tried by default; `COMMUTE_PAIRS` asks for more, `COMMUTE_SEED` for others.
const PAIRS: u64 = 600;

/// Queries tried by default, each against many small writes; `COMMUTE_READS` asks for more.
const READS: u64 = 150;

#[test]
fn statements_that_do_not_conflict_commute() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("commute", "random");
    let (pairs, seed) = (number("COMMUTE_PAIRS", PAIRS), number("COMMUTE_SEED", 1));
    let differ = count_not_commuting(&session, pairs, seed, Gap::None);
    assert_eq!(
        differ, 0,
        "pairs that do not commute; COMMUTE_SEED={seed} COMMUTE_PAIRS={pairs} replays them"
    );
}

/// Kinds of items that a test can leave out, to see that their absence is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gap {
    None,
    Keys,
    Shared,
    NewRows,
    Parents,
    /// Of all columns that are read one is forgotten.
    Columns,
    /// Of all columns that change one is forgotten.
    Changes,
    /// Items are those of whole transactions.
    Foreseen(Reads),
}

impl Gap {
    fn leaves_out(self, access: &Access) -> bool {
        match self {
            Gap::None => false,
            Gap::Keys => matches!(access.item.space, Space::Key(_)),
            Gap::Shared => access.mode == Mode::Shared,
            Gap::NewRows => access.mode == Mode::Insert,
            Gap::Parents => access.mode == Mode::KeyShared,
            Gap::Columns | Gap::Changes | Gap::Foreseen(_) => false,
        }
    }

    fn conflict(self, a: &AccessSet, b: &AccessSet) -> bool {
        match self {
            Gap::Foreseen(_) => a.iter().any(|x| b.iter().any(|y| conflict_index::conflict(x, y))),
            _ => conflict(a, b),
        }
    }

    fn columns(self, access: &Access) -> ColumnSet {
        let forgets = matches!(
            (self, access.mode),
            (Gap::Columns, Mode::Shared) | (Gap::Changes, Mode::NoKeyExclusive)
        );
        let has = |c: &ColumnId| access.columns.overlaps(ColumnSet::NONE.with(*c));
        match forgets {
            true => (1..64).map(ColumnId).filter(|c| *c != ColumnId(2)).filter(has).collect(),
            false => access.columns,
        }
    }
}

/// Those that wait for nobody have read nothing that the other writes, whatever columns of a row each changes.
#[test]
fn statements_that_are_not_foreseen_to_conflict_commute_if_reads_count() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("foreseen", "random");
    let (pairs, seed) = (number("COMMUTE_PAIRS", PAIRS), number("COMMUTE_SEED", 2));
    let differ = count_not_commuting(&session, pairs, seed, Gap::Foreseen(Reads::Counted));
    assert_eq!(
        differ, 0,
        "pairs that do not commute; COMMUTE_SEED={seed} COMMUTE_PAIRS={pairs} replays them"
    );
    assert!(
        count_not_commuting(&session, 4000, 5, Gap::Foreseen(Reads::Ignored)) > 0,
        "reads need not be counted"
    );
}

#[test]
fn a_query_does_not_see_writes_whose_items_it_does_not_touch() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("reads", "random");
    let seed = number("COMMUTE_SEED", 1);
    let unseen = count_seen(&session, number("COMMUTE_READS", READS), seed, Gap::None);
    assert_eq!(
        unseen, 0,
        "queries that see a write that their items do not; COMMUTE_SEED={seed} replays them"
    );
}

#[test]
fn an_answer_does_not_change_by_writes_apart_from_the_rows_that_it_shows() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("shown", "random");
    let (reads, seed) = (number("COMMUTE_READS", 2 * READS), number("COMMUTE_SEED", 1));
    assert_eq!(count_changed(&session, reads, seed, false), 0, "COMMUTE_SEED={seed} replays them");
    assert!(count_changed(&session, 8 * READS, 5, true) > 0, "a row can be left out unnoticed");
}

/// How often the answer of a join by key changes by a write that is apart from the rows that it shows; `forgets`: from all but
/// the last of them.
fn count_changed(session: &Session<'_>, reads: u64, seed: u64, forgets: bool) -> u64 {
    let catalogue = session.catalogue();
    let mut generator = Generator { random: ChaCha8Rng::seed_from_u64(seed), noisy: false };
    let (mut tally, mut joins) = (Tally { explains: !forgets, ..Tally::default() }, 0);
    for round in 0..reads {
        if round % 25 == 0 {
            refill(session, &catalogue, &mut generator);
        }
        let read = generator.key_join();
        let class = class_of(&catalogue, &read);
        let Some(items) = access(&catalogue, &read, Gap::None) else { continue };
        let whole = class.shown_among(&items);
        if whole.is_empty() {
            continue;
        }
        session.run("BEGIN");
        let before = sorted(session.ask(&read));
        let Answer::Rows(rows, _) = &before else {
            session.run("ROLLBACK");
            continue;
        };
        joins += 1;
        let mut shown = Vec::new();
        for row in rows {
            let value = |place: usize| ParamValue {
                type_oid: 0,
                binary: false,
                bytes: row[place].as_deref().map(str::as_bytes),
            };
            class.shown_by_row(value, &mut shown).expect("numbers are canonical");
        }
        if forgets {
            shown.pop();
        }
        let items: AccessSet =
            items.into_iter().filter(|access| !whole.contains(access)).chain(shown).collect();
        let group = &["p", "c", "k", "s"];
        tally.try_writes(session, &catalogue, &mut generator, group, (&read, &items, &before), Gap::None);
        session.run("ROLLBACK");
        if forgets && tally.seen > 0 {
            break;
        }
    }
    eprintln!("{joins} joins, {tally:?}");
    assert!(forgets || joins * 4 > reads && tally.apart * 10 > tally.tried, "the test shows nothing");
    tally.seen
}

#[test]
fn a_gap_in_the_items_is_found() {
    let Some(server) = TestServer::start() else { return };
    let session = server.create("gaps", "random");
    for gap in [Gap::Shared, Gap::NewRows, Gap::Columns, Gap::Changes] {
        assert!(count_seen(&session, READS, 5, gap) > 0, "{gap:?} can be left out unnoticed");
    }
    for gap in [Gap::Keys, Gap::Parents] {
        assert!(count_not_commuting(&session, 4000, 5, gap) > 0, "{gap:?} can be left out unnoticed");
    }
}

/// How often a query's answer changes by a write that is apart from it.
fn count_seen(session: &Session<'_>, reads: u64, seed: u64, gap: Gap) -> u64 {
    let catalogue = session.catalogue();
    let mut generator = Generator { random: ChaCha8Rng::seed_from_u64(seed), noisy: false };
    let mut tally = Tally { explains: gap == Gap::None, ..Tally::default() };
    for round in 0..reads {
        if round % 25 == 0 {
            refill(session, &catalogue, &mut generator);
        }
        let group = generator.group();
        let read = generator.select(group, 0);
        let Some(a) = access(&catalogue, &read, gap) else { continue };
        session.run("BEGIN");
        let before = sorted(session.ask(&read));
        if matches!(before, Answer::Error(_)) {
            session.run("ROLLBACK");
            continue;
        }
        tally.try_writes(session, &catalogue, &mut generator, group, (&read, &a, &before), gap);
        session.run("ROLLBACK");
    }
    assert!(tally.apart * 10 > tally.tried, "{tally:?}: the test shows nothing");
    tally.seen
}

/// Writes, how many of them were apart from a query's items, and how many of those its answer saw.
#[derive(Default, Debug)]
struct Tally {
    tried: u64,
    apart: u64,
    seen: u64,
    /// Says which were seen.
    explains: bool,
}

impl Tally {
    /// Tries writes one by one after a query in an open transaction: its text, items and answer.
    fn try_writes(
        &mut self,
        session: &Session<'_>,
        catalogue: &Catalogue,
        generator: &mut Generator,
        group: &[&'static str],
        (read, items, before): (&str, &AccessSet, &Answer),
        gap: Gap,
    ) {
        for _ in 0..24 {
            let write = generator.small_write(group);
            let Some(others) = access(catalogue, &write, gap) else { continue };
            self.tried += 1;
            if conflict(items, &others) {
                continue;
            }
            self.apart += 1;
            session.run("SAVEPOINT s");
            if !matches!(session.ask(&write), Answer::Error(_)) {
                let after = sorted(session.ask(read));
                if after != *before {
                    self.seen += 1;
                    if self.explains {
                        eprintln!(
                            "{read}\n  {items:?}\n{write}\n  {others:?}\n  before {before:?}\n  after {after:?}"
                        );
                    }
                }
            }
            session.run("ROLLBACK TO s");
        }
    }
}

/// How often two statements that are apart do not commute.
fn count_not_commuting(session: &Session<'_>, pairs: u64, seed: u64, gap: Gap) -> u64 {
    let catalogue = session.catalogue();
    let mut generator = Generator { random: ChaCha8Rng::seed_from_u64(seed), noisy: false };
    let (mut apart, mut errors, mut differ, mut tried) = (0, 0, 0, 0);
    for round in 0..pairs {
        if round % 50 == 0 {
            refill(session, &catalogue, &mut generator);
        }
        // New parents meet new children seldom among all pairs.
        let (first, second) = if gap == Gap::Parents { generator.family() } else { generator.pair() };
        let (a, b) = (access(&catalogue, &first, gap), access(&catalogue, &second, gap));
        let (Some(a), Some(b)) = (a, b) else { continue };
        tried += 1;
        if gap.conflict(&a, &b) {
            continue;
        }
        apart += 1;
        let forth = run(session, &catalogue, &first, &second);
        let (answers, contents) = run(session, &catalogue, &second, &first);
        let back = ([answers[1].clone(), answers[0].clone()], contents);
        errors += forth.0.iter().filter(|a| matches!(a, Answer::Error(_))).count();
        if forth != back {
            differ += 1;
            if !matches!(gap, Gap::None | Gap::Foreseen(Reads::Counted)) {
                return differ;
            }
            eprintln!(
                "seed {seed}, pair {round}:\n  {first}\n    {a:?}\n  {second}\n    {b:?}\n  forth {:?}\n  back  {:?}",
                forth.0, back.0
            );
            for (x, y) in forth.1.iter().zip(&back.1).filter(|(x, y)| x != y) {
                eprintln!("  {x:?}\n  {y:?}");
            }
        }
    }
    eprintln!("{tried} pairs, {apart} without conflict, {errors} errors among their answers");
    assert!(apart * 10 > tried, "hardly any pair was without conflict: the test shows nothing");
    assert!(errors * 2 < apart * 2, "most statements fail: the test shows little");
    differ
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn conflict(a: &AccessSet, b: &AccessSet) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.conflicts(y)))
}

fn sorted(answer: Answer) -> Answer {
    match answer {
        Answer::Rows(mut rows, count) => {
            rows.sort();
            Answer::Rows(rows, count)
        }
        error => error,
    }
}

/// Sorted answers of both statements and the contents after them, rolled back.
fn run(
    session: &Session<'_>,
    catalogue: &Catalogue,
    first: &str,
    second: &str,
) -> ([Answer; 2], Vec<(String, Answer)>) {
    session.run("BEGIN");
    let answers = [first, second].map(|sql| {
        session.run("SAVEPOINT s");
        let answer = sorted(session.ask(sql));
        if matches!(answer, Answer::Error(_)) {
            session.run("ROLLBACK TO s");
        }
        session.run("RELEASE s");
        answer
    });
    let contents = session.contents(catalogue);
    session.run("ROLLBACK");
    (answers, contents)
}

fn refill(session: &Session<'_>, catalogue: &Catalogue, generator: &mut Generator) {
    let tables: Vec<&str> = catalogue.tables.iter().map(|t| t.name.as_str()).collect();
    session.run(&format!("TRUNCATE {} CASCADE", tables.join(", ")));
    for sql in generator.fill() {
        // Rows without parents are refused: fine.
        let _ = session.ask(&sql);
    }
}

fn class_of(catalogue: &Catalogue, sql: &str) -> Class {
    let path = ["public".to_owned()];
    let context = Context { catalogue, search_path: &path, temporary: &[] };
    classify(sql, &normalise(sql, &mut Scratch::default()), &context)
}

/// The items of a statement that is executed as it stands; None for one whose result need not be the same twice.
fn access(catalogue: &Catalogue, sql: &str, gap: Gap) -> Option<AccessSet> {
    let class = class_of(catalogue, sql);
    let mut scratch = Scratch::default();
    let normalised = normalise(sql, &mut scratch);
    match class.determinism {
        Determinism::Read | Determinism::Replay => {}
        _ => return None,
    }
    assert!(class.rewrite.is_empty(), "{sql}");
    if let Gap::Foreseen(reads) = gap {
        let mut foreseen = AccessSet::new();
        let counted = Conflicts { granularity: Granularity::Cell, reads };
        foresee(&class, sql, normalised.layout, &NoParams, &[], counted, &mut foreseen);
        return Some(foreseen);
    }
    let frozen: [FrozenValue; 0] = [];
    let set = class.bind(sql, normalised.layout, &NoParams, &frozen);
    let kept = set.into_iter().filter(|access| !gap.leaves_out(access));
    Some(kept.map(|access| Access { columns: gap.columns(&access), ..access }).collect())
}
