//! Complete histories: what clients asked, what they were answered, and when.
//!
//! Three kinds of objects are understood, each with its own ids, because each lets a checker infer the order of
//! its versions in a different way:
//!
//! * a **list** that transactions append unique values to: reading it shows all its versions so far, in order;
//! * a **register** that is overwritten with unique values: whoever reads before writing shows which version
//!   was overwritten;
//! * a **table** whose rows appear at most once and disappear at most once: a scan is a predicate read and shows
//!   which rows existed.
//!
//! Every object starts empty (`[]`, `nil`, `{}`). Setting up other contents is a transaction of the history.

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A client that runs one transaction after the other.
    Process(u32), "p"
);
number!(
    /// A list that values are appended to.
    List(u64), "l"
);
number!(
    /// A register that values are written to.
    Register(u64), "r"
);
number!(
    /// A set of rows that is read as a whole.
    Table(u64), "t"
);
number!(
    /// A row of a table, by its key.
    Row(u64), ""
);
number!(
    /// A value, written at most once to one object in a history.
    Value(u64), ""
);
number!(
    /// A transaction, by its place in [`History::transactions`].
    TransactionIndex(u32), "T"
);

/// One step of a transaction, with what the client was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A value was put at the end of a list.
    Append {
        /// The list.
        list: List,
        /// The value, unique in the list's history.
        value: Value,
    },
    /// A whole list was read.
    ReadList {
        /// The list.
        list: List,
        /// Its values, oldest first.
        values: Vec<Value>,
    },
    /// A register was overwritten.
    Write {
        /// The register.
        register: Register,
        /// The value, unique in the register's history.
        value: Value,
    },
    /// A register was read.
    Read {
        /// The register.
        register: Register,
        /// The value seen, `None` if it was never written.
        value: Option<Value>,
    },
    /// A row was added to a table.
    Insert {
        /// The table.
        table: Table,
        /// The row, inserted at most once in the table's history.
        row: Row,
    },
    /// A row that was there was removed; a delete that found nothing is not recorded.
    Delete {
        /// The table.
        table: Table,
        /// The row.
        row: Row,
    },
    /// All rows of a table were read.
    Scan {
        /// The table.
        table: Table,
        /// The rows seen, sorted, each once.
        rows: Vec<Row>,
    },
}

impl Operation {
    /// Whether this only looks.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Operation::ReadList { .. } | Operation::Read { .. } | Operation::Scan { .. })
    }
}

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// The client was told that it committed.
    Committed,
    /// The client was told that it did not commit, or knows that it never asked for it.
    Aborted,
    /// The client asked for the commit and never heard (the connection broke): it may have committed, and may
    /// still commit after the client gave up.
    Unknown,
}

/// One transaction as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Who ran it.
    pub process: Process,
    /// When its first statement was sent, in nanoseconds of any one clock.
    pub invoked_ns: u64,
    /// When its end was known to the client, or when the client gave up. `invoked_ns <= completed_ns`.
    pub completed_ns: u64,
    /// How it ended.
    pub status: Status,
    /// Its steps in order, with their answers.
    pub operations: Vec<Operation>,
}

/// A complete history whose form has been checked: a checker can rely on unique values and sequential processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    transactions: Vec<Transaction>,
}

/// Why a list of transactions is not a history: a fault of whoever recorded it, not of the database.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MalformedHistory {
    /// A transaction ended before it began.
    #[error("{transaction} completed before it was invoked; record both times from one monotonic clock")]
    EndsBeforeItBegins {
        /// The transaction.
        transaction: TransactionIndex,
    },
    /// One process ran two transactions at once, so that its session order has no meaning.
    #[error("{first} and {second} of process {process} overlap in time; give each connection a process")]
    ProcessOverlaps {
        /// The process.
        process: Process,
        /// The one that began first.
        first: TransactionIndex,
        /// The one that began before the first had ended.
        second: TransactionIndex,
    },
    /// One value was written twice to one object, so that a read of it does not tell whose it is.
    #[error(
        "{first} and {second} both wrote {what}; write a fresh value in every attempt, aborted ones included"
    )]
    WrittenTwice {
        /// The first writer.
        first: TransactionIndex,
        /// The second writer, perhaps the same.
        second: TransactionIndex,
        /// The object with the value.
        what: String,
    },
    /// A scan lists its rows unsorted or twice.
    #[error("a scan in {transaction} lists its rows unsorted or twice; sort and compare them when recording")]
    ScanUnsorted {
        /// The transaction.
        transaction: TransactionIndex,
    },
    /// More transactions than can be counted.
    #[error("{count} transactions are more than {} can be checked at once; check in rounds", u32::MAX)]
    TooLong {
        /// How many there were.
        count: usize,
    },
}

impl History {
    /// Takes transactions in any order.
    ///
    /// # Errors
    /// What makes the history meaningless, see [`MalformedHistory`].
    pub fn new(transactions: Vec<Transaction>) -> Result<History, MalformedHistory> {
        if transactions.len() >= u32::MAX as usize {
            return Err(MalformedHistory::TooLong { count: transactions.len() });
        }
        check_times(&transactions)?;
        check_scans(&transactions)?;
        check_unique(&transactions)?;
        Ok(History { transactions })
    }

    /// The transactions, as they were given.
    #[must_use]
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
    }

    /// One transaction.
    ///
    /// # Panics
    /// If the index is of another history.
    #[must_use]
    pub fn transaction(&self, index: TransactionIndex) -> &Transaction {
        &self.transactions[index.0 as usize]
    }

    /// The transactions with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (TransactionIndex, &Transaction)> {
        self.transactions.iter().enumerate().map(|(index, transaction)| (index_of(index), transaction))
    }

    /// Gives the transactions back, to be changed and checked anew.
    #[must_use]
    pub fn into_transactions(self) -> Vec<Transaction> {
        self.transactions
    }
}

/// The index of the transaction at a place; places fit since `History::new` counted them.
pub(super) fn index_of(place: usize) -> TransactionIndex {
    TransactionIndex(u32::try_from(place).expect("History::new bounds the number of transactions"))
}

fn check_times(transactions: &[Transaction]) -> Result<(), MalformedHistory> {
    for (place, transaction) in transactions.iter().enumerate() {
        if transaction.completed_ns < transaction.invoked_ns {
            return Err(MalformedHistory::EndsBeforeItBegins { transaction: index_of(place) });
        }
    }
    // Aborted transactions take no part in the session order, and a savepoint that was rolled back is recorded
    // as an aborted transaction within another.
    let mut places: Vec<usize> =
        (0..transactions.len()).filter(|&place| transactions[place].status != Status::Aborted).collect();
    places.sort_by_key(|&place| (transactions[place].process, transactions[place].invoked_ns, place));
    for pair in places.windows(2) {
        let (first, second) = (&transactions[pair[0]], &transactions[pair[1]]);
        if first.process == second.process && second.invoked_ns < first.completed_ns {
            return Err(MalformedHistory::ProcessOverlaps {
                process: first.process,
                first: index_of(pair[0]),
                second: index_of(pair[1]),
            });
        }
    }
    Ok(())
}

fn check_scans(transactions: &[Transaction]) -> Result<(), MalformedHistory> {
    for (place, transaction) in transactions.iter().enumerate() {
        for operation in &transaction.operations {
            if let Operation::Scan { rows, .. } = operation
                && rows.windows(2).any(|pair| pair[0] >= pair[1])
            {
                return Err(MalformedHistory::ScanUnsorted { transaction: index_of(place) });
            }
        }
    }
    Ok(())
}

fn check_unique(transactions: &[Transaction]) -> Result<(), MalformedHistory> {
    #[derive(PartialEq, Eq, Hash)]
    enum Written {
        Appended(List, Value),
        Wrote(Register, Value),
        Inserted(Table, Row),
    }
    let mut writers = HashMap::new();
    for (place, transaction) in transactions.iter().enumerate() {
        for operation in &transaction.operations {
            let written = match *operation {
                Operation::Append { list, value } => Written::Appended(list, value),
                Operation::Write { register, value } => Written::Wrote(register, value),
                Operation::Insert { table, row } => Written::Inserted(table, row),
                _ => continue,
            };
            if let Some(first) = writers.insert(written, place) {
                return Err(MalformedHistory::WrittenTwice {
                    first: index_of(first),
                    second: index_of(place),
                    what: super::text::operation(operation),
                });
            }
        }
    }
    Ok(())
}
