//! Large random histories are accepted; corrupted ones are rejected wherever the corruption can be observed.
//!
//! A corruption is observable for certain if real time alone proves it: what a read no longer shows had been
//! answered before the read began. Others may leave a history that another order explains, so of those only the
//! rate of detection is printed.

use std::collections::HashMap;
use std::time::Instant;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::generate::{Kinds, Shape, serial};
use crate::check::{History, Level, List, Operation, Register, Status, Transaction, Value, check};

const LEVELS: [Level; 4] = [
    Level::StrictSerializable,
    Level::Serializable,
    Level::SnapshotIsolation,
    Level::ParallelSnapshotIsolation,
];

#[test]
fn random_serial_executions_are_accepted_at_every_level() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let shape = Shape {
            transactions: 500,
            processes: random.random_range(1..40),
            kinds: *[Kinds::Lists, Kinds::Registers, Kinds::Rows, Kinds::All].choose(&mut random).unwrap(),
            blind: random.random(),
            unknown: if random.random() { 0.2 } else { 0.0 },
            ..Shape::large(0)
        };
        let history = serial(&mut random, &shape).history;
        for level in LEVELS {
            let report = check(&history, level);
            assert!(report.is_valid(), "seed {seed} {shape:?}\n{report}");
        }
    }
}

/// Unoptimised builds check a tenth of it, in about the same time.
const LARGE: usize = if cfg!(debug_assertions) { 10_000 } else { 100_000 };

#[test]
fn hundred_thousand_transactions_take_seconds() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let history = serial(&mut random, &Shape::large(LARGE)).history;
    for level in LEVELS {
        let start = Instant::now();
        let report = check(&history, level);
        println!("{level:?}: {:?}, {:?}", start.elapsed(), report.evidence);
        assert!(report.is_valid(), "{report}");
        assert!(report.evidence.read_write > LARGE, "too few conflicts to prove anything");
        assert!(start.elapsed().as_secs() < 30, "took {:?}", start.elapsed());
    }
}

#[test]
fn one_stale_read_among_a_hundred_thousand_transactions_is_found_in_seconds() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut transactions = serial(&mut random, &Shape::large(LARGE)).history.into_transactions();
    // A read in the last tenth of a list that was done with in the first.
    let early = transactions.iter().take(LARGE / 10).flat_map(|transaction| &transaction.operations);
    let list = early
        .filter_map(|step| match step {
            Operation::ReadList { list, values } if values.len() > 3 => Some((*list, values[..2].to_vec())),
            _ => None,
        })
        .next_back()
        .expect("some list was read");
    let late = transactions[LARGE / 10 * 9..]
        .iter_mut()
        .find(|transaction| transaction.status == Status::Committed)
        .unwrap();
    late.operations.push(Operation::ReadList { list: list.0, values: list.1 });
    let history = History::new(transactions).unwrap();
    let start = Instant::now();
    let report = check(&history, Level::StrictSerializable);
    println!("{:?}\n{report}", start.elapsed());
    assert!(!report.is_valid());
    assert!(start.elapsed().as_secs() < 30, "took {:?}", start.elapsed());
}

/// What can be done to a history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Corruption {
    /// Two reads of one object in different versions, each given the other's.
    SwapReads,
    /// A value that a client was told of vanishes from every read of others.
    DropAppend,
    /// A read shows the version before the one that it showed.
    ShiftBack,
    /// A register read shows an older version.
    OlderVersion,
    /// A scan misses a row.
    MissRow,
}

#[derive(Default)]
struct Rate {
    observable: usize,
    observed: usize,
    others: usize,
    others_found: usize,
}

#[test]
fn corruption_that_can_be_observed_is_always_found() {
    use Corruption::{DropAppend, MissRow, OlderVersion, ShiftBack, SwapReads};
    let mut rates: HashMap<Corruption, Rate> = HashMap::new();
    for seed in 0..if cfg!(debug_assertions) { 15 } else { 60 } {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let shape = Shape { unknown: 0.01, blind: seed % 2 == 0, ..Shape::large(400) };
        let transactions = serial(&mut random, &shape).history.into_transactions();
        for corruption in [SwapReads, DropAppend, ShiftBack, OlderVersion, MissRow] {
            for _ in 0..25 {
                let mut corrupted = transactions.clone();
                let Some(observable) = corrupt(corruption, &mut random, &mut corrupted) else { continue };
                let history = History::new(corrupted).unwrap();
                let found = !check(&history, Level::StrictSerializable).is_valid();
                let rate = rates.entry(corruption).or_default();
                if observable {
                    rate.observable += 1;
                    rate.observed += usize::from(found);
                    assert!(
                        found,
                        "seed {seed}: {corruption:?} was not found\n{}",
                        crate::check::text::write(&history)
                    );
                } else {
                    rate.others += 1;
                    rate.others_found += usize::from(found);
                }
            }
        }
    }
    for (corruption, rate) in &rates {
        println!(
            "{corruption:?}: {} of {} observable found; of {} others {}",
            rate.observed, rate.observable, rate.others, rate.others_found
        );
        assert!(rate.observable > 50, "{corruption:?}: too few to prove anything");
    }
    assert_eq!(rates.len(), 5);
}

/// Corrupts one place; whether real time proves it, or `None` if there was nothing to corrupt.
fn corrupt(
    corruption: Corruption,
    random: &mut ChaCha8Rng,
    transactions: &mut [Transaction],
) -> Option<bool> {
    match corruption {
        Corruption::SwapReads => swap_reads(random, transactions),
        Corruption::DropAppend => drop_append(random, transactions),
        Corruption::ShiftBack => shift_back(random, transactions),
        Corruption::OlderVersion => older_version(random, transactions),
        Corruption::MissRow => miss_row(random, transactions),
    }
}

/// Committed transactions' operations of one kind as (transaction, step).
fn steps(transactions: &[Transaction], wanted: impl Fn(&Operation) -> bool) -> Vec<(usize, usize)> {
    let committed = transactions.iter().enumerate().filter(|(_, t)| t.status == Status::Committed);
    committed
        .flat_map(|(place, t)| {
            t.operations.iter().enumerate().map(move |(step, operation)| (place, step, operation))
        })
        .filter(|(.., operation)| wanted(operation))
        .map(|(place, step, _)| (place, step))
        .collect()
}

fn before(transactions: &[Transaction], earlier: usize, later: usize) -> bool {
    transactions[earlier].status == Status::Committed
        && transactions[earlier].completed_ns < transactions[later].invoked_ns
}

fn appender(transactions: &[Transaction], list: List, value: Value) -> usize {
    let append = Operation::Append { list, value };
    transactions.iter().position(|transaction| transaction.operations.contains(&append)).unwrap()
}

fn touches(transaction: &Transaction, list: List) -> usize {
    let touches = |step: &&Operation| match step {
        Operation::Append { list: other, .. } | Operation::ReadList { list: other, .. } => *other == list,
        _ => false,
    };
    transaction.operations.iter().filter(touches).count()
}

fn list_at(transactions: &[Transaction], (place, step): (usize, usize)) -> (List, Vec<Value>) {
    match &transactions[place].operations[step] {
        Operation::ReadList { list, values } => (*list, values.clone()),
        other => panic!("not a read of a list: {other:?}"),
    }
}

fn set_list(transactions: &mut [Transaction], (place, step): (usize, usize), new: Vec<Value>) {
    if let Operation::ReadList { values, .. } = &mut transactions[place].operations[step] {
        *values = new;
    }
}

fn swap_reads(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) -> Option<bool> {
    let reads = steps(transactions, |step| matches!(step, Operation::ReadList { .. }));
    let pairs: Vec<_> = reads
        .iter()
        .flat_map(|a| reads.iter().map(move |b| (*a, *b)))
        .filter(|(a, b)| {
            let ((x, older), (y, newer)) = (list_at(transactions, *a), list_at(transactions, *b));
            x == y && a.0 < b.0 && older.len() < newer.len()
        })
        .collect();
    let (a, b) = *pairs.choose(random)?;
    let ((list, older), (_, newer)) = (list_at(transactions, a), list_at(transactions, b));
    set_list(transactions, a, newer);
    set_list(transactions, b, older);
    let alone = touches(&transactions[a.0], list) == 1 && touches(&transactions[b.0], list) == 1;
    Some(alone && before(transactions, a.0, b.0))
}

fn drop_append(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) -> Option<bool> {
    let reads =
        steps(transactions, |step| matches!(step, Operation::ReadList { values, .. } if !values.is_empty()));
    let (list, values) = list_at(transactions, *reads.choose(random)?);
    let value = *values.choose(random)?;
    let writer = appender(transactions, list, value);
    let mut observable = false;
    for read in reads {
        let (other, mut values) = list_at(transactions, read);
        if other == list && read.0 != writer && values.contains(&value) {
            values.retain(|seen| *seen != value);
            set_list(transactions, read, values);
            observable |= before(transactions, writer, read.0);
        }
    }
    Some(observable)
}

fn shift_back(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) -> Option<bool> {
    let reads =
        steps(transactions, |step| matches!(step, Operation::ReadList { values, .. } if !values.is_empty()));
    let read = *reads.choose(random)?;
    let (list, mut values) = list_at(transactions, read);
    let writer = appender(transactions, list, values.pop()?);
    set_list(transactions, read, values);
    Some(writer == read.0 || before(transactions, writer, read.0))
}

fn older_version(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) -> Option<bool> {
    let reads = steps(transactions, |step| matches!(step, Operation::Read { value: Some(_), .. }));
    let (reader, step) = *reads.choose(random)?;
    let Operation::Read { register, value } = transactions[reader].operations[step] else { return None };
    let wrote = |place: usize, version: Value| {
        transactions[place].operations.contains(&Operation::Write { register, value: version })
    };
    let current = (0..transactions.len()).find(|&place| wrote(place, value.unwrap()))?;
    let older = (0..current).rev().find_map(|place| {
        let last = last_write(&transactions[place], register)?;
        (transactions[place].status == Status::Committed).then_some((place, last))
    });
    let observable = match older {
        // Two writes and the read one after the other: no order has the first one's version in the read.
        Some((place, _)) => before(transactions, place, current) && before(transactions, current, reader),
        None => before(transactions, current, reader),
    };
    if let Operation::Read { value, .. } = &mut transactions[reader].operations[step] {
        *value = older.map(|(_, version)| version);
    }
    Some(observable)
}

fn last_write(transaction: &Transaction, register: Register) -> Option<Value> {
    transaction.operations.iter().rev().find_map(|step| match *step {
        Operation::Write { register: to, value } if to == register => Some(value),
        _ => None,
    })
}

fn miss_row(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) -> Option<bool> {
    let scans = steps(transactions, |step| matches!(step, Operation::Scan { rows, .. } if !rows.is_empty()));
    let (reader, step) = *scans.choose(random)?;
    let Operation::Scan { table, rows } = &mut transactions[reader].operations[step] else { return None };
    let (table, row) = (*table, rows.remove(random.random_range(0..rows.len())));
    let does = |transaction: &Transaction, operation: &Operation| transaction.operations.contains(operation);
    let insert = Operation::Insert { table, row };
    let delete = Operation::Delete { table, row };
    let inserter = transactions.iter().position(|transaction| does(transaction, &insert))?;
    let deleted = transactions.iter().any(|transaction| {
        transaction.status != Status::Aborted
            && transaction.invoked_ns <= transactions[reader].completed_ns
            && does(transaction, &delete)
    });
    Some(!deleted && before(transactions, inserter, reader))
}
