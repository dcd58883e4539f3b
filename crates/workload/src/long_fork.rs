//! Registers that are each written once, in groups. Two reads of a group, one of which saw a write and not another while the
//! second saw it the other way round, are a long fork: no single order of the two writes explains both.
//!
//! One [`Generator`] is shared by all clients, since a register has one writer.

use std::sync::LazyLock;

use crate::catalogue::{Catalogue, StatementId};
use crate::client::{Rows, Script, Step};
use crate::random::{Random, chance, uniform};
use crate::value::Value;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../data/long_fork.toml")).expect("data/long_fork.toml is in order")
});

/// The table and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// The source of transactions of all clients.
#[derive(Clone, Debug)]
pub struct Generator {
    group_size: i64,
    next_group: i64,
    unwritten: Vec<i64>,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write a register for the first and last time, in autocommit.
    Write {
        /// Which.
        key: i64,
        /// The group that it belongs to.
        group: i64,
    },
    /// Read all registers of a group.
    Read {
        /// Which group.
        group: i64,
        /// The registers in the order in which they are read one by one in a transaction; empty: all in one statement.
        walk: Vec<i64>,
    },
}

/// One transaction: its operation, and what it saw.
#[derive(Clone, Debug)]
pub struct Transaction {
    operation: Operation,
    stage: usize,
    seen: Vec<i64>,
}

impl Generator {
    /// Groups of so many registers; at least 2.
    pub fn new(group_size: i64) -> Self {
        Generator { group_size, next_group: 0, unwritten: Vec::new() }
    }

    /// The registers of a group.
    pub fn keys(&self, group: i64) -> std::ops::Range<i64> {
        group * self.group_size..(group + 1) * self.group_size
    }

    /// The next transaction of some client. A third are writes: of registers of the two newest groups, in random order.
    pub fn draw(&mut self, random: &mut Random) -> Transaction {
        if self.unwritten.len() as i64 <= self.group_size {
            self.unwritten.extend(self.keys(self.next_group));
            self.next_group += 1;
        }
        let operation = if chance(random, 0.33) {
            let drawn = uniform(random, 0, self.unwritten.len() as i64 - 1) as usize;
            let key = self.unwritten.swap_remove(drawn);
            Operation::Write { key, group: key / self.group_size }
        } else {
            let group = (self.next_group - 1 - uniform(random, 0, 1)).max(0);
            Operation::Read { group, walk: self.walk(random, group) }
        };
        Transaction { operation, stage: 0, seen: Vec::new() }
    }

    /// Half of the time nothing, else the group's registers in random order.
    fn walk(&self, random: &mut Random, group: i64) -> Vec<i64> {
        if chance(random, 0.5) {
            return Vec::new();
        }
        let mut keys: Vec<i64> = self.keys(group).collect();
        for place in (1..keys.len()).rev() {
            keys.swap(place, uniform(random, 0, place as i64) as usize);
        }
        keys
    }
}

impl Transaction {
    /// What it does.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The written registers that a read saw.
    pub fn seen(&self) -> &[i64] {
        &self.seen
    }

    /// Whether it runs between BEGIN and COMMIT; otherwise its only statement is a transaction of its own.
    pub fn is_bracketed(&self) -> bool {
        matches!(&self.operation, Operation::Read { walk, .. } if !walk.is_empty())
    }
}

impl Script for Transaction {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        if let Some(rows) = rows {
            self.stage += 1;
            self.seen.extend(rows.ints(0));
        }
        match (&self.operation, self.stage) {
            (Operation::Write { key, group }, 0) => execute("write.insert.one", &[*key, *group]),
            (Operation::Read { group, walk }, 0) if walk.is_empty() => {
                execute("read.single.family", &[*group])
            }
            (Operation::Read { walk, .. }, stage) if stage < walk.len() => {
                execute("read.walk.one", &[walk[stage]])
            }
            _ => Step::Commit,
        }
    }
}

fn execute(statement: &str, params: &[i64]) -> Step {
    let id: StatementId = CATALOGUE.statement_id(statement).expect("the statement is in data/long_fork.toml");
    Step::Execute(id, params.iter().copied().map(Value::Int).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::stream;

    #[test]
    fn registers_are_written_once_and_groups_are_read_while_they_fill() {
        let mut generator = Generator::new(4);
        let mut random = stream(9, 0);
        let mut written = BTreeSet::new();
        let mut partly_read = 0;
        for _ in 0..3_000 {
            match generator.draw(&mut random).operation() {
                Operation::Write { key, group } => {
                    assert!(written.insert(*key) && generator.keys(*group).contains(key));
                }
                Operation::Read { group, walk } => {
                    let filled = generator.keys(*group).filter(|key| written.contains(key)).count();
                    partly_read += usize::from((1..4).contains(&filled));
                    assert!(walk.is_empty() || walk.iter().copied().collect::<BTreeSet<_>>().len() == 4);
                }
            }
        }
        assert!(partly_read > 500, "{partly_read}");
    }

    #[test]
    fn a_walk_reads_register_by_register() {
        let operation = Operation::Read { group: 0, walk: vec![1, 0] };
        let mut transaction = Transaction { operation, stage: 0, seen: Vec::new() };
        assert!(transaction.is_bracketed());
        assert!(matches!(transaction.next(None), Step::Execute(_, params) if params == [Value::Int(1)]));
        let hit = Rows::returned(vec![vec![Value::Int(1)]]);
        assert!(matches!(transaction.next(Some(hit)), Step::Execute(_, params) if params == [Value::Int(0)]));
        assert_eq!(transaction.next(Some(Rows::default())), Step::Commit);
        assert_eq!(transaction.seen(), [1]);
    }
}
