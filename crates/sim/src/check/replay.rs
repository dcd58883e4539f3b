//! The other checker: given the order that the system intended, every read is compared with a model.
//!
//! It shares nothing with the inference but the form of a history, and it is exact: with the commit sequence
//! number of every transaction and the position of every snapshot there is nothing to guess. A position is a CSN:
//! a snapshot at `p` shows exactly the transactions up to `p`.
//!
//! What is verified: each read shows the model at its own position; no CSN is given twice; and each transaction
//! stands at one place where all its reads are right, which in real time is after everything that had completed
//! before it was invoked. The place of one that wrote is just before its CSN. The place of one that only read is the
//! first that its reads allow: not its snapshot, since a snapshot may be older than commits that touched nothing
//! that was read from it. A scan may be right there, wrong a little later and right again: rows that came have gone.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use onecopy_core::Csn;
use thiserror::Error;

use super::history::{History, List, Operation, Register, Row, Status, Table, TransactionIndex, Value};
use super::report::seconds;
use super::text;

/// Where the system says that a transaction stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The transaction's CSN; `None` if it committed nothing.
    pub csn: Option<Csn>,
    /// For each reading operation of the transaction, in order, the position of the snapshot that it read.
    /// A read under locks after the first write reads at the newest position that its replica had.
    pub snapshots: Vec<Csn>,
}

/// What is demanded of the order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Time {
    /// Whoever begins after another has completed comes after it.
    Real,
    /// Any one order will do.
    Any,
}

/// Why a history is not what its intended order makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// Two transactions have one CSN.
    CsnTwice {
        /// The CSN.
        csn: Csn,
        /// Who had it first.
        first: TransactionIndex,
        /// Who had it again.
        second: TransactionIndex,
    },
    /// A client was told that its transaction committed, and it wrote something, but it has no CSN.
    NotOrdered {
        /// The transaction.
        transaction: TransactionIndex,
    },
    /// A client was told that its transaction aborted, but it has a CSN.
    AbortedButOrdered {
        /// The transaction.
        transaction: TransactionIndex,
        /// Its CSN.
        csn: Csn,
    },
    /// A transaction took a snapshot at or past its own commit.
    SnapshotPastCommit {
        /// The transaction.
        transaction: TransactionIndex,
        /// The snapshot.
        snapshot: Csn,
        /// Its CSN.
        csn: Csn,
    },
    /// A read shows something else than the model.
    WrongRead {
        /// The transaction.
        transaction: TransactionIndex,
        /// Which of its operations, from 0.
        operation: usize,
        /// What it showed, in the notation of [`text`].
        saw: String,
        /// What it should have shown.
        expected: String,
        /// At which position.
        at: Csn,
        /// Whether that is the snapshot that it read (the replica was wrong), or the place in the order where the
        /// whole transaction stands (the snapshot was too old).
        at_own_snapshot: bool,
    },
    /// A transaction stands before one that had completed before it was invoked.
    OutOfTime {
        /// The one that completed earlier, but stands later.
        earlier: TransactionIndex,
        /// The one that was invoked later.
        later: TransactionIndex,
        /// The newest position that `earlier` showed or made.
        earlier_at: Csn,
        /// The position that `later` was given.
        later_at: Csn,
    },
}

/// Why an order cannot be compared with a history: a fault of whoever recorded it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MalformedOrder {
    /// Not one place for each transaction.
    #[error("{places} places for {transactions} transactions; give each one a place")]
    Length {
        /// How many places there are.
        places: usize,
        /// How many transactions there are.
        transactions: usize,
    },
    /// Not one snapshot for each reading operation.
    #[error(
        "{transaction} has {snapshots} snapshots for {reads} reads; give each read the position that it read"
    )]
    Snapshots {
        /// The transaction.
        transaction: TransactionIndex,
        /// How many snapshots it has.
        snapshots: usize,
        /// How many reads.
        reads: usize,
    },
}

/// Compares a history with its intended order; an empty list means that they agree.
///
/// Transactions with a CSN count as committed, those with an unknown end included. Reads of transactions that did
/// not commit are compared with the model at their own snapshots only.
///
/// # Errors
/// If `places` does not fit the history.
pub fn replay(history: &History, places: &[Place], time: Time) -> Result<Vec<Mismatch>, MalformedOrder> {
    check_form(history, places)?;
    let mut mismatches = Vec::new();
    let model = Model::of(history, places, &mut mismatches);
    for (index, transaction) in history.iter() {
        let place = &places[index.0 as usize];
        match (transaction.status, place.csn) {
            (Status::Committed, None) if transaction.operations.iter().any(|step| !step.is_read()) => {
                mismatches.push(Mismatch::NotOrdered { transaction: index });
            }
            (Status::Aborted, Some(csn)) => {
                mismatches.push(Mismatch::AbortedButOrdered { transaction: index, csn });
            }
            _ => {}
        }
        check_snapshots(history, index, place, &model, &mut mismatches);
    }
    check_places(history, places, time, &model, &mut mismatches);
    Ok(mismatches)
}

fn check_form(history: &History, places: &[Place]) -> Result<(), MalformedOrder> {
    let transactions = history.transactions();
    if places.len() != transactions.len() {
        return Err(MalformedOrder::Length { places: places.len(), transactions: transactions.len() });
    }
    for (index, transaction) in history.iter() {
        let reads = transaction.operations.iter().filter(|step| step.is_read()).count();
        let snapshots = places[index.0 as usize].snapshots.len();
        if reads != snapshots {
            return Err(MalformedOrder::Snapshots { transaction: index, snapshots, reads });
        }
    }
    Ok(())
}

/// All versions of everything.
#[derive(Default)]
struct Model {
    lists: HashMap<List, (Vec<Csn>, Vec<Value>)>,
    registers: HashMap<Register, Vec<(Csn, Value)>>,
    /// For each row when it appeared and when it went.
    tables: HashMap<Table, BTreeMap<Row, (Csn, Option<Csn>)>>,
}

impl Model {
    fn of(history: &History, places: &[Place], mismatches: &mut Vec<Mismatch>) -> Model {
        let mut in_order: BTreeMap<Csn, TransactionIndex> = BTreeMap::new();
        for (index, _) in history.iter() {
            let Some(csn) = places[index.0 as usize].csn else { continue };
            if let Some(&first) = in_order.get(&csn) {
                mismatches.push(Mismatch::CsnTwice { csn, first, second: index });
            } else {
                in_order.insert(csn, index);
            }
        }
        let mut model = Model::default();
        for (csn, index) in in_order {
            for step in &history.transaction(index).operations {
                model.apply(csn, step);
            }
        }
        model
    }

    fn apply(&mut self, csn: Csn, step: &Operation) {
        match *step {
            Operation::Append { list, value } => {
                let (csns, values) = self.lists.entry(list).or_default();
                csns.push(csn);
                values.push(value);
            }
            Operation::Write { register, value } => {
                self.registers.entry(register).or_default().push((csn, value));
            }
            Operation::Insert { table, row } => {
                self.tables.entry(table).or_default().insert(row, (csn, None));
            }
            Operation::Delete { table, row } => {
                if let Some((_, gone)) = self.tables.entry(table).or_default().get_mut(&row) {
                    gone.get_or_insert(csn);
                }
            }
            Operation::ReadList { .. } | Operation::Read { .. } | Operation::Scan { .. } => {}
        }
    }

    /// The newest change at or before a position of the object that a read shows.
    fn since(&self, read: &Operation, at: Csn) -> Csn {
        let newest = match read {
            Operation::ReadList { list, .. } => {
                let csns = self.lists.get(list).map_or(&[][..], |(csns, _)| &csns[..]);
                csns[..csns.partition_point(|&csn| csn <= at)].last().copied()
            }
            Operation::Read { register, .. } => {
                let versions = self.registers.get(register).map_or(&[][..], Vec::as_slice);
                versions[..versions.partition_point(|(csn, _)| *csn <= at)].last().map(|(csn, _)| *csn)
            }
            Operation::Scan { table, .. } => {
                let lives = self.tables.get(table).into_iter().flat_map(BTreeMap::values);
                lives.flat_map(|(from, to)| [Some(*from), *to]).flatten().filter(|csn| *csn <= at).max()
            }
            _ => None,
        };
        newest.unwrap_or_default()
    }

    /// Compares one read with the model at a position.
    fn compare(
        &self,
        history: &History,
        transaction: TransactionIndex,
        operation: usize,
        step: &Operation,
        at: Csn,
        at_own_snapshot: bool,
    ) -> Option<Mismatch> {
        let own = &history.transaction(transaction).operations[..operation];
        let expected = text::operation(&self.differs(step, at, own)?);
        let saw = text::operation(step);
        Some(Mismatch::WrongRead { transaction, operation, saw, expected, at, at_own_snapshot })
    }

    /// The first place from `first` on where all reads of a transaction are right, up to the newest snapshot that it
    /// read; `first` itself if there is none.
    fn first_place(
        &self,
        history: &History,
        transaction: TransactionIndex,
        place: &Place,
        first: Csn,
    ) -> Csn {
        let steps = &history.transaction(transaction).operations;
        let are_right = |at: &Csn| {
            reads(history, transaction, place)
                .all(|(operation, step, _)| self.differs(step, *at, &steps[..operation]).is_none())
        };
        let newest = place.snapshots.iter().copied().max().unwrap_or_default();
        (first.0..=newest.0).map(Csn).find(are_right).unwrap_or(first)
    }

    /// What a read shows at a position to a transaction that has done `own` before; `None` if `read` shows just that.
    fn differs(&self, read: &Operation, at: Csn, own: &[Operation]) -> Option<Operation> {
        let expected = match *read {
            Operation::ReadList { list, .. } => {
                let (csns, values) =
                    self.lists.get(&list).map_or((&[][..], &[][..]), |(c, v)| (&c[..], &v[..]));
                let mut values = values[..csns.partition_point(|&csn| csn <= at)].to_vec();
                values.extend(own.iter().filter_map(|step| match *step {
                    Operation::Append { list: to, value } if to == list => Some(value),
                    _ => None,
                }));
                Operation::ReadList { list, values }
            }
            Operation::Read { register, .. } => {
                let versions = self.registers.get(&register).map_or(&[][..], Vec::as_slice);
                let before =
                    versions[..versions.partition_point(|(csn, _)| *csn <= at)].last().map(|(_, v)| *v);
                let own = own.iter().rev().find_map(|step| match *step {
                    Operation::Write { register: to, value } if to == register => Some(value),
                    _ => None,
                });
                Operation::Read { register, value: own.or(before) }
            }
            Operation::Scan { table, .. } => {
                let there = |&(from, to): &(Csn, Option<Csn>)| from <= at && to.is_none_or(|to| to > at);
                let rows = self.tables.get(&table).into_iter().flatten();
                let mut rows: BTreeMap<Row, bool> = rows.map(|(row, life)| (*row, there(life))).collect();
                for step in own {
                    match *step {
                        Operation::Insert { table: to, row } if to == table => rows.insert(row, true),
                        Operation::Delete { table: to, row } if to == table => rows.insert(row, false),
                        _ => None,
                    };
                }
                let rows = rows.into_iter().filter(|(_, there)| *there).map(|(row, _)| row).collect();
                Operation::Scan { table, rows }
            }
            _ => return None,
        };
        (expected != *read).then_some(expected)
    }
}

/// The reads of a transaction: which operation, what it showed, the position of its snapshot.
fn reads<'h>(
    history: &'h History,
    transaction: TransactionIndex,
    place: &Place,
) -> impl Iterator<Item = (usize, &'h Operation, Csn)> {
    let steps = history.transaction(transaction).operations.iter().enumerate();
    let reads = steps.filter(|(_, step)| step.is_read());
    reads.zip(&place.snapshots).map(|((operation, step), &snapshot)| (operation, step, snapshot))
}

fn check_snapshots(
    history: &History,
    transaction: TransactionIndex,
    place: &Place,
    model: &Model,
    mismatches: &mut Vec<Mismatch>,
) {
    for (operation, step, snapshot) in reads(history, transaction, place) {
        if let Some(csn) = place.csn.filter(|csn| snapshot >= *csn) {
            mismatches.push(Mismatch::SnapshotPastCommit { transaction, snapshot, csn });
        } else {
            mismatches.extend(model.compare(history, transaction, operation, step, snapshot, true));
        }
    }
}

/// Sweeps through time and places one transaction after the other.
fn check_places(
    history: &History,
    places: &[Place],
    time: Time,
    model: &Model,
    mismatches: &mut Vec<Mismatch>,
) {
    let committed = |index: &TransactionIndex| history.transaction(*index).status == Status::Committed;
    let mut by_end: Vec<TransactionIndex> =
        history.iter().map(|(index, _)| index).filter(committed).collect();
    by_end.sort_by_key(|&index| (history.transaction(index).completed_ns, index));
    let mut by_begin: Vec<TransactionIndex> = history
        .iter()
        .map(|(index, _)| index)
        .filter(|index| committed(index) || places[index.0 as usize].csn.is_some())
        .collect();
    by_begin.sort_by_key(|&index| (history.transaction(index).invoked_ns, index));
    let mut ended = by_end.into_iter().peekable();
    // The newest position that a completed transaction made or showed, and who that was.
    let mut complete: Option<(Csn, TransactionIndex)> = None;
    let mut stands_at: HashMap<TransactionIndex, Csn> = HashMap::new();
    for index in by_begin {
        let begin = history.transaction(index).invoked_ns;
        while let Some(over) = ended.next_if(|&over| history.transaction(over).completed_ns < begin) {
            complete = complete.max(stands_at.get(&over).map(|&at| (at, over)));
        }
        let floor = complete.filter(|_| time == Time::Real);
        let place = &places[index.0 as usize];
        let before = match place.csn {
            Some(csn) => {
                stands_at.insert(index, csn);
                csn.previous()
            }
            None => {
                let shown =
                    reads(history, index, place).map(|(_, step, snapshot)| model.since(step, snapshot));
                let first = shown.chain(floor.map(|(at, _)| at)).max().unwrap_or_default();
                let at = model.first_place(history, index, place, first);
                stands_at.insert(index, at);
                at
            }
        };
        if let Some((earlier_at, earlier)) = floor.filter(|(at, _)| before < *at) {
            mismatches.push(Mismatch::OutOfTime { earlier, later: index, earlier_at, later_at: before });
            continue;
        }
        for (operation, step, snapshot) in reads(history, index, place) {
            // One that differs at its own snapshot is reported already.
            if snapshot != before && model.compare(history, index, operation, step, snapshot, true).is_none()
            {
                mismatches.extend(model.compare(history, index, operation, step, before, false));
            }
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::CsnTwice { csn, first, second } => {
                write!(f, "{first} and {second} both have CSN {csn}")
            }
            Mismatch::NotOrdered { transaction } => {
                write!(f, "{transaction} committed writes, as its client was told, but has no CSN")
            }
            Mismatch::AbortedButOrdered { transaction, csn } => {
                write!(f, "{transaction} aborted, as its client was told, but has CSN {csn}")
            }
            Mismatch::SnapshotPastCommit { transaction, snapshot, csn } => {
                write!(
                    f,
                    "{transaction} with CSN {csn} read a snapshot at {snapshot}, which holds its own commit"
                )
            }
            Mismatch::WrongRead { transaction, operation, saw, expected, at, at_own_snapshot } => {
                let place =
                    if *at_own_snapshot { "the snapshot that it read" } else { "its place in the order" };
                write!(
                    f,
                    "{transaction}, step {operation}: saw `{saw}`; at {at}, {place}, it is `{expected}`"
                )
            }
            Mismatch::OutOfTime { earlier, later, earlier_at, later_at } => write!(
                f,
                "{later} began after {earlier} had completed, which stands at or saw {earlier_at}, but is placed at {later_at}"
            ),
        }
    }
}

/// Explains mismatches with the transactions that they name, for the first few.
#[must_use]
pub fn explain(history: &History, mismatches: &[Mismatch]) -> String {
    const SHOWN: usize = 10;
    let mut lines: Vec<String> = Vec::new();
    for mismatch in mismatches.iter().take(SHOWN) {
        lines.push(format!("- {mismatch}"));
        let named = match mismatch {
            Mismatch::CsnTwice { first, second, .. } => vec![*first, *second],
            Mismatch::OutOfTime { earlier, later, .. } => vec![*earlier, *later],
            Mismatch::NotOrdered { transaction }
            | Mismatch::AbortedButOrdered { transaction, .. }
            | Mismatch::SnapshotPastCommit { transaction, .. }
            | Mismatch::WrongRead { transaction, .. } => vec![*transaction],
        };
        for index in named {
            let transaction = history.transaction(index);
            let (from, to) = (seconds(transaction.invoked_ns), seconds(transaction.completed_ns));
            let steps: Vec<String> = transaction.operations.iter().map(text::short_operation).collect();
            lines.push(format!(
                "    {index} by {}, {from} .. {to}: {}",
                transaction.process,
                steps.join("; ")
            ));
        }
    }
    if mismatches.len() > SHOWN {
        lines.push(format!("({} more)", mismatches.len() - SHOWN));
    }
    lines.join("\n")
}
