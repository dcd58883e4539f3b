//! Lists that only grow. Every value is appended once, so a list that somebody read tells the order of the
//! transactions that wrote it; cycles of such orders are anomalies (write cycles, lost updates, stale reads, skew).
//!
//! [`Generator::draw`] gives transactions; each is a [`Script`] and, once run, carries what its reads returned.

use std::sync::LazyLock;

use crate::catalogue::{Catalogue, StatementId};
use crate::client::{Rows, Script, Step};
use crate::random::{Random, chance, uniform};
use crate::value::Value;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../data/list_append.toml")).expect("data/list_append.toml is in order")
});

/// The tables and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// One client's source of transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    client: i64,
    clients: i64,
    keys: i64,
    appends_per_key: i64,
    drawn: i64,
    appended: i64,
}

/// One operation on one list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the whole list.
    Read {
        /// Which list.
        key: i64,
        /// How the row is found.
        by: Path,
    },
    /// Append a value that nobody else appends anywhere.
    Append {
        /// Which list.
        key: i64,
        /// What.
        value: i64,
        /// How the row is found.
        by: Path,
    },
}

/// How a statement finds the row of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By primary key: a read, or an append that inserts the row if it is missing.
    Key,
    /// By an indexed column that is no key. An append to a missing row does nothing.
    Alias,
    /// By primary key: a read FOR UPDATE, or a plain update, which does nothing if the row is missing.
    Locked,
}

/// One transaction: its operations, and what came back.
#[derive(Clone, Debug)]
pub struct Transaction {
    operations: Vec<Operation>,
    results: Vec<Outcome>,
}

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The list that a read saw; a missing row is an empty list.
    List(Vec<i64>),
    /// Whether an append found (or made) its row; if not, nothing was appended.
    Appended(bool),
    /// A read returned something that is no list of numbers: the text.
    Garbled(String),
}

impl Generator {
    /// For client `client` of `clients`, on `keys` lists at a time; a list retires after it got about
    /// `appends_per_key` values, so that lists stay short.
    pub fn new(client: i64, clients: i64, keys: i64, appends_per_key: i64) -> Self {
        Generator { client, clients, keys, appends_per_key, drawn: 0, appended: 0 }
    }

    /// The next transaction: one to four operations, half of them appends.
    pub fn draw(&mut self, random: &mut Random) -> Transaction {
        let count = uniform(random, 1, 4);
        let operations = (0..count).map(|_| self.operation(random)).collect();
        Transaction { operations, results: Vec::new() }
    }

    fn operation(&mut self, random: &mut Random) -> Operation {
        self.drawn += 1;
        // Half of all operations of all clients are appends, spread over the keys of the window.
        let retired = self.drawn * self.clients / (2 * self.appends_per_key);
        let key = retired + uniform(random, 0, self.keys - 1);
        let by = [Path::Key, Path::Key, Path::Alias, Path::Locked][uniform(random, 0, 3) as usize];
        if chance(random, 0.5) {
            return Operation::Read { key, by };
        }
        self.appended += 1;
        Operation::Append { key, value: self.appended * self.clients + self.client, by }
    }
}

impl Operation {
    /// The statement and its parameters.
    pub fn statement(&self) -> (StatementId, Vec<Value>) {
        let (key, name, by) = match self {
            Operation::Read { key, by } => (*key, "read", by),
            Operation::Append { key, by, .. } => (*key, "append", by),
        };
        let table = if key % 2 == 0 { "even" } else { "odd" };
        let path = match (name, by) {
            (_, Path::Alias) => "alias",
            ("append", Path::Key) => "upsert",
            ("read", Path::Locked) => "locked",
            _ => "key",
        };
        let id = CATALOGUE.statement_id(&format!("{table}.{name}.{path}"));
        let found = if *by == Path::Alias { alias(key) } else { key };
        let mut params = vec![Value::Int(found)];
        if let Operation::Append { value, by, .. } = self {
            if *by == Path::Key {
                params.push(Value::Int(alias(key)));
            }
            params.push(Value::Text(value.to_string()));
        }
        (id.expect("the statement is in data/list_append.toml"), params)
    }

    fn outcome(&self, rows: &Rows) -> Outcome {
        let Operation::Read { .. } = self else { return Outcome::Appended(rows.count > 0) };
        let text = rows.first(0).and_then(Value::as_text).unwrap_or("");
        match text.split_whitespace().map(str::parse).collect::<Result<Vec<i64>, _>>() {
            Ok(list) => Outcome::List(list),
            Err(_) => Outcome::Garbled(text.to_owned()),
        }
    }
}

/// The second name of a list: its key, moved out of the range of keys.
fn alias(key: i64) -> i64 {
    key + 1_000_000_000
}

impl Transaction {
    /// A transaction of one's own.
    pub fn new(operations: Vec<Operation>) -> Self {
        Transaction { operations, results: Vec::new() }
    }

    /// What it does, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// What came of each operation, as far as it has run.
    pub fn results(&self) -> &[Outcome] {
        &self.results
    }

    /// Whether it runs between BEGIN and COMMIT; otherwise its only statement is a transaction of its own.
    pub fn is_bracketed(&self) -> bool {
        self.operations.len() > 1
    }
}

impl Script for Transaction {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        if let (Some(rows), Some(operation)) = (rows, self.operations.get(self.results.len())) {
            self.results.push(operation.outcome(&rows));
        }
        match self.operations.get(self.results.len()) {
            Some(operation) => {
                let (statement, params) = operation.statement();
                Step::Execute(statement, params)
            }
            None => Step::Commit,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::stream;

    #[test]
    fn every_statement_is_drawn_and_no_value_twice() {
        let mut statements = BTreeSet::new();
        let mut values = BTreeSet::new();
        for client in 0..4 {
            let mut generator = Generator::new(client, 4, 6, 20);
            let mut random = stream(1, client as u64);
            for _ in 0..500 {
                for operation in generator.draw(&mut random).operations() {
                    let (statement, params) = operation.statement();
                    assert_eq!(catalogue().statement(statement).parameter_count(), params.len());
                    statements.insert(statement);
                    if let Operation::Append { value, .. } = operation {
                        assert!(values.insert(*value));
                    }
                }
            }
        }
        assert_eq!(statements.len(), catalogue().statements.len());
    }

    #[test]
    fn a_transaction_carries_what_it_read() {
        let mut transaction = Transaction::new(vec![
            Operation::Read { key: 2, by: Path::Key },
            Operation::Append { key: 3, value: 9, by: Path::Alias },
            Operation::Read { key: 4, by: Path::Locked },
        ]);
        transaction.next(None);
        transaction.next(Some(Rows::returned(vec![vec!["4 7".into()]])));
        transaction.next(Some(Rows::changed(0)));
        assert_eq!(transaction.next(Some(Rows::returned(vec![]))), Step::Commit);
        assert_eq!(
            transaction.results(),
            [Outcome::List(vec![4, 7]), Outcome::Appended(false), Outcome::List(vec![])]
        );
    }
}
