//! The oracle tries all orders of small histories. What the checker reports must be impossible in every order; for
//! lists, what is impossible in every order must be reported.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::generate::{Kinds, Shape, serial};
use crate::check::{History, Level, Operation, Status, Transaction, Value, check, text};

/// The contents of the database, by object in the notation of histories.
#[derive(Clone, Default, PartialEq, Eq)]
struct State {
    lists: BTreeMap<u64, Vec<Value>>,
    registers: BTreeMap<u64, Value>,
    tables: BTreeMap<u64, BTreeSet<u64>>,
}

impl State {
    /// Runs a transaction; `None` if it would have seen something else. Deleting what is not there would have been
    /// seen too.
    fn after(mut self, steps: &[Operation]) -> Option<State> {
        for step in steps {
            match step {
                Operation::Append { list, value } => self.lists.entry(list.0).or_default().push(*value),
                Operation::ReadList { list, values } => {
                    let same = self.lists.get(&list.0).map_or(values.is_empty(), |list| list == values);
                    same.then_some(())?;
                }
                Operation::Write { register, value } => {
                    self.registers.insert(register.0, *value);
                }
                Operation::Read { register, value } => {
                    (self.registers.get(&register.0) == value.as_ref()).then_some(())?;
                }
                Operation::Insert { table, row } => {
                    self.tables.entry(table.0).or_default().insert(row.0);
                }
                Operation::Delete { table, row } => {
                    self.tables.entry(table.0).or_default().remove(&row.0).then_some(())?;
                }
                Operation::Scan { table, rows } => {
                    let rows: BTreeSet<u64> = rows.iter().map(|row| row.0).collect();
                    let same = self.tables.get(&table.0).map_or(rows.is_empty(), |table| *table == rows);
                    same.then_some(())?;
                }
            }
        }
        Some(self)
    }
}

/// Objects that a transaction writes, as snapshot isolation counts conflicts.
fn writes(steps: &[Operation]) -> BTreeSet<(u8, u64, u64)> {
    let write = |step: &Operation| match step {
        Operation::Append { list, .. } => Some((0, list.0, 0)),
        Operation::Write { register, .. } => Some((1, register.0, 0)),
        Operation::Insert { table, row } | Operation::Delete { table, row } => Some((2, table.0, row.0)),
        _ => None,
    };
    steps.iter().filter_map(write).collect()
}

fn effects(steps: &[Operation]) -> Vec<Operation> {
    steps.iter().filter(|step| !step.is_read()).cloned().collect()
}

/// Whether some order of the committed transactions, and of any of the unknown ones, explains everything.
fn explained(history: &History, level: Level) -> bool {
    let candidates: Vec<&Transaction> =
        history.transactions().iter().filter(|transaction| transaction.status != Status::Aborted).collect();
    Orders { candidates: &candidates, level, states: vec![State::default()], placed: Vec::new() }.any()
}

struct Orders<'h> {
    candidates: &'h [&'h Transaction],
    level: Level,
    /// The state before the first and after each transaction placed.
    states: Vec<State>,
    placed: Vec<usize>,
}

impl Orders<'_> {
    fn any(&mut self) -> bool {
        let left: Vec<usize> =
            (0..self.candidates.len()).filter(|place| !self.placed.contains(place)).collect();
        if left.iter().all(|&place| self.candidates[place].status == Status::Unknown) {
            return true;
        }
        left.iter().any(|&next| {
            let too_early = self.level == Level::StrictSerializable
                && left.iter().any(|&other| {
                    self.candidates[other].status == Status::Committed
                        && self.candidates[other].completed_ns < self.candidates[next].invoked_ns
                });
            let Some(state) = (!too_early).then(|| self.state_after(next)).flatten() else { return false };
            self.states.push(state);
            self.placed.push(next);
            let found = self.any();
            self.states.pop();
            self.placed.pop();
            found
        })
    }

    fn state_after(&self, next: usize) -> Option<State> {
        let steps = &self.candidates[next].operations;
        let now = self.states.last().expect("begins with one");
        if self.level != Level::SnapshotIsolation {
            return now.clone().after(steps);
        }
        // Some earlier snapshot explains the reads, and nobody wrote the same since.
        let own = writes(steps);
        let conflicts =
            |place: usize| !own.is_disjoint(&writes(&self.candidates[self.placed[place]].operations));
        let oldest =
            (0..self.placed.len()).rev().find(|&place| conflicts(place)).map_or(0, |place| place + 1);
        let explained = (oldest..self.states.len()).any(|at| self.states[at].clone().after(steps).is_some());
        explained.then(|| now.clone().after(&effects(steps))).flatten()
    }
}

/// Changes one read at random, or a time.
fn corrupt(random: &mut ChaCha8Rng, transactions: &mut [Transaction]) {
    let seen_lists: Vec<Vec<Value>> = transactions
        .iter()
        .flat_map(|transaction| &transaction.operations)
        .filter_map(
            |step| if let Operation::ReadList { values, .. } = step { Some(values.clone()) } else { None },
        )
        .collect();
    let written: Vec<Value> = transactions
        .iter()
        .flat_map(|transaction| &transaction.operations)
        .filter_map(|step| match step {
            Operation::Write { value, .. } => Some(*value),
            _ => None,
        })
        .collect();
    let place = random.random_range(0..transactions.len());
    let steps = &mut transactions[place].operations;
    let step = random.random_range(0..steps.len());
    match &mut steps[step] {
        Operation::ReadList { values, .. } => match random.random_range(0..4) {
            0 => drop(values.pop()),
            1 if !values.is_empty() => drop(values.remove(random.random_range(0..values.len()))),
            2 if values.len() > 1 => values.swap(0, 1),
            _ => values.clone_from(&seen_lists[random.random_range(0..seen_lists.len())]),
        },
        Operation::Read { value, .. } if !written.is_empty() => {
            let other = random.random_range(0..=written.len());
            *value = written.get(other).copied();
        }
        Operation::Scan { rows, .. } if !rows.is_empty() => {
            rows.remove(random.random_range(0..rows.len()));
        }
        _ => {}
    }
}

struct Tally {
    impossible: usize,
    missed: usize,
    possible: usize,
}

/// Compares checker and oracle on corrupted small histories; a false alarm fails at once.
fn compare(kinds: Kinds, level: Level, blind: bool, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally { impossible: 0, missed: 0, possible: 0 };
    for seed in seeds {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let shape = Shape { blind, ..Shape::small(kinds) };
        let mut transactions = serial(&mut random, &shape).history.into_transactions();
        for _ in 0..random.random_range(0..4) {
            corrupt(&mut random, &mut transactions);
        }
        let history = History::new(transactions).expect("corruption keeps the form");
        let report = check(&history, level);
        match (explained(&history, level), report.is_valid()) {
            (true, true) => tally.possible += 1,
            (false, false) => tally.impossible += 1,
            (true, false) => {
                panic!("false alarm, seed {seed} {kinds:?}\n{}\n{report}", text::write(&history))
            }
            (false, true) => {
                tally.impossible += 1;
                tally.missed += 1;
                if kinds == Kinds::Lists && level != Level::SnapshotIsolation {
                    panic!("missed at {level:?}, seed {seed}\n{}", text::write(&history));
                }
            }
        }
    }
    println!(
        "{kinds:?} {level:?} blind={blind}: {} possible, {} impossible, {} of them missed",
        tally.possible, tally.impossible, tally.missed
    );
    assert!(tally.possible > 100 && tally.impossible > 100, "too few of a kind to prove anything");
    tally
}

#[test]
fn lists_are_judged_exactly_as_by_trying_all_orders() {
    for level in [Level::StrictSerializable, Level::Serializable] {
        assert_eq!(compare(Kinds::Lists, level, true, 0..4_000).missed, 0);
    }
}

#[test]
fn registers_that_are_read_before_written_are_judged_nearly_exactly() {
    for level in [Level::StrictSerializable, Level::Serializable] {
        let tally = compare(Kinds::Registers, level, false, 0..4_000);
        assert!(tally.missed * 50 <= tally.impossible);
    }
}

#[test]
fn nothing_possible_is_reported_of_any_kind_of_object() {
    for (kinds, blind) in
        [(Kinds::Registers, true), (Kinds::Rows, true), (Kinds::All, true), (Kinds::All, false)]
    {
        for level in [Level::StrictSerializable, Level::Serializable, Level::SnapshotIsolation] {
            compare(kinds, level, blind, 0..1_500);
        }
    }
}

#[test]
fn snapshot_isolation_of_lists_is_judged_as_by_trying_all_orders() {
    let tally = compare(Kinds::Lists, Level::SnapshotIsolation, true, 0..4_000);
    assert!(tally.missed * 50 <= tally.impossible);
}

#[test]
fn stronger_level_forbids_what_a_weaker_one_forbids() {
    for seed in 0..3_000 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut transactions = serial(&mut random, &Shape::small(Kinds::All)).history.into_transactions();
        for _ in 0..3 {
            corrupt(&mut random, &mut transactions);
        }
        let history = History::new(transactions).expect("corruption keeps the form");
        let valid = |level| check(&history, level).is_valid();
        let levels = [
            Level::ParallelSnapshotIsolation,
            Level::SnapshotIsolation,
            Level::Serializable,
            Level::StrictSerializable,
        ];
        for pair in levels.windows(2) {
            assert!(valid(pair[0]) || !valid(pair[1]), "seed {seed}: {pair:?}\n{}", text::write(&history));
        }
    }
}
