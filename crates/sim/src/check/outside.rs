//! What each transaction saw of the others: its reads without the effects of its own writes.
//!
//! Finding that, a transaction that contradicts itself is found too: its own write missing from a later read of
//! its own, or one object read twice with different answers. Of a transaction that does, the first read of an
//! object is kept.

use std::collections::{BTreeSet, HashMap};

use super::history::{History, List, Operation, Register, Row, Status, Table, Value};
use super::report::{Anomaly, Findings};
use super::text;

/// Who wrote what, in all transactions of a history, and which of them count as committed.
pub(super) struct Writers {
    /// By list and value.
    pub(super) appended: HashMap<(List, Value), Write>,
    /// By register and value.
    pub(super) written: HashMap<(Register, Value), Write>,
    /// By table and row.
    pub(super) inserted: HashMap<(Table, Row), u32>,
    /// By table and row, those that count as committed; more than one is an anomaly.
    pub(super) deleted: HashMap<(Table, Row), Vec<u32>>,
    /// By table and row, those with an unknown end, of which nobody saw another write: perhaps they deleted it.
    pub(super) perhaps_deleted: HashMap<(Table, Row), Vec<u32>>,
    /// Whether a transaction counts as committed.
    pub(super) counts: Vec<bool>,
}

/// One write of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Write {
    pub(super) transaction: u32,
    /// How many writes of this object the transaction had made before.
    pub(super) earlier: u32,
    /// Whether it is the transaction's last write of this object.
    pub(super) last: bool,
}

/// What transactions saw of the others, in the order of the history.
#[derive(Default)]
pub(super) struct Outside<'h> {
    pub(super) lists: Vec<(u32, List, &'h [Value])>,
    pub(super) registers: Vec<(u32, Register, Option<Value>)>,
    /// The last two are the rows seen, and those that could not be judged since the transaction had itself
    /// inserted or deleted them before.
    pub(super) scans: Vec<(u32, Table, Vec<Row>, BTreeSet<Row>)>,
}

impl Writers {
    /// Finds who wrote what, and counts an unknown transaction as committed if somebody that counts saw it.
    pub(super) fn of(history: &History) -> Writers {
        let mut writers = Writers {
            appended: HashMap::new(),
            written: HashMap::new(),
            inserted: HashMap::new(),
            deleted: HashMap::new(),
            perhaps_deleted: HashMap::new(),
            counts: history.transactions().iter().map(|t| t.status == Status::Committed).collect(),
        };
        for (index, transaction) in history.iter() {
            writers.add(index.0, &transaction.operations);
        }
        writers.count_unknown_that_were_seen(history);
        for (index, transaction) in history.iter() {
            for step in &transaction.operations {
                let Operation::Delete { table, row } = *step else { continue };
                if writers.counts[index.0 as usize] {
                    writers.deleted.entry((table, row)).or_default().push(index.0);
                } else if transaction.status == Status::Unknown {
                    writers.perhaps_deleted.entry((table, row)).or_default().push(index.0);
                }
            }
        }
        writers
    }

    fn add(&mut self, transaction: u32, steps: &[Operation]) {
        let mut lists: HashMap<List, (u32, Value)> = HashMap::new();
        let mut registers: HashMap<Register, (u32, Value)> = HashMap::new();
        for step in steps {
            match *step {
                Operation::Append { list, value } => {
                    let earlier = lists.get(&list).map_or(0, |(count, _)| *count);
                    lists.insert(list, (earlier + 1, value));
                    self.appended.insert((list, value), Write { transaction, earlier, last: false });
                }
                Operation::Write { register, value } => {
                    let earlier = registers.get(&register).map_or(0, |(count, _)| *count);
                    registers.insert(register, (earlier + 1, value));
                    self.written.insert((register, value), Write { transaction, earlier, last: false });
                }
                Operation::Insert { table, row } => {
                    self.inserted.insert((table, row), transaction);
                }
                _ => {}
            }
        }
        for (list, (_, value)) in lists {
            self.appended.get_mut(&(list, value)).expect("just inserted").last = true;
        }
        for (register, (_, value)) in registers {
            self.written.get_mut(&(register, value)).expect("just inserted").last = true;
        }
    }

    fn count_unknown_that_were_seen(&mut self, history: &History) {
        let transactions = history.transactions();
        if transactions.iter().all(|transaction| transaction.status != Status::Unknown) {
            return;
        }
        let unknown = |index: u32| transactions[index as usize].status == Status::Unknown;
        let mut to_visit: Vec<u32> =
            history.iter().map(|(index, _)| index.0).filter(|&index| self.counts[index as usize]).collect();
        while let Some(reader) = to_visit.pop() {
            for writer in self.seen_by(&transactions[reader as usize].operations) {
                if unknown(writer) && !self.counts[writer as usize] {
                    self.counts[writer as usize] = true;
                    to_visit.push(writer);
                }
            }
        }
    }

    /// Whose writes some operations show. A deletion of an unknown end shows in no read for certain.
    fn seen_by(&self, steps: &[Operation]) -> Vec<u32> {
        let mut seen = Vec::new();
        for step in steps {
            match step {
                Operation::ReadList { list, values } => seen.extend(
                    values
                        .iter()
                        .filter_map(|&value| self.appended.get(&(*list, value)))
                        .map(|write| write.transaction),
                ),
                Operation::Read { register, value: Some(value) } => {
                    seen.extend(self.written.get(&(*register, *value)).map(|write| write.transaction));
                }
                Operation::Scan { table, rows } => {
                    seen.extend(rows.iter().filter_map(|&row| self.inserted.get(&(*table, row))));
                }
                Operation::Delete { table, row } => seen.extend(self.inserted.get(&(*table, *row))),
                _ => {}
            }
        }
        seen
    }
}

/// Separates what transactions that count saw of others from their own writes.
pub(super) fn outside<'h>(writers: &Writers, findings: &mut Findings<'h>) -> Outside<'h> {
    let history = findings.history();
    let mut outside = Outside::default();
    for (index, transaction) in history.iter() {
        if writers.counts[index.0 as usize] {
            Own { index: index.0, ..Own::default() }.run(&transaction.operations, &mut outside, findings);
        }
    }
    outside
}

/// One transaction's view of the objects that it has touched.
#[derive(Default)]
struct Own<'h> {
    index: u32,
    lists: HashMap<List, OwnList<'h>>,
    registers: HashMap<Register, Option<Value>>,
    tables: HashMap<Table, OwnTable<'h>>,
}

#[derive(Default)]
struct OwnList<'h> {
    /// What the others had appended, once it was read.
    base: Option<&'h [Value]>,
    /// What the transaction has appended so far.
    appended: Vec<Value>,
    /// What it will append until its end, so far included.
    will_append: Vec<Value>,
}

#[derive(Default)]
struct OwnTable<'h> {
    /// The first scan.
    base: Option<&'h [Row]>,
    /// Rows inserted (true) or deleted (false) by the transaction, the last action of each; since the first scan,
    /// or before it as well.
    changes: HashMap<Row, bool>,
}

impl<'h> Own<'h> {
    fn run(mut self, steps: &'h [Operation], outside: &mut Outside<'h>, findings: &mut Findings<'h>) {
        for step in steps {
            if let Operation::Append { list, value } = step {
                self.lists.entry(*list).or_default().will_append.push(*value);
            }
        }
        for step in steps {
            match step {
                Operation::Append { list, value } => {
                    self.lists.entry(*list).or_default().appended.push(*value);
                }
                Operation::ReadList { list, values } => self.on_list(*list, values, step, outside, findings),
                Operation::Write { register, value } => {
                    self.registers.insert(*register, Some(*value));
                }
                Operation::Read { register, value } => {
                    self.on_register(*register, *value, step, outside, findings);
                }
                Operation::Insert { table, row } => {
                    self.tables.entry(*table).or_default().changes.insert(*row, true);
                }
                Operation::Delete { table, row } => {
                    self.tables.entry(*table).or_default().changes.insert(*row, false);
                }
                Operation::Scan { table, rows } => self.on_scan(*table, rows, step, outside, findings),
            }
        }
    }

    fn on_list(
        &mut self,
        list: List,
        values: &'h [Value],
        step: &Operation,
        outside: &mut Outside<'h>,
        findings: &mut Findings<'h>,
    ) {
        let own = self.lists.entry(list).or_default();
        let Some(base) = values.strip_suffix(&own.appended[..]) else {
            let appended = own.appended.clone();
            self.contradiction(step, findings, &format!("after it had itself appended {appended:?} last"));
            return;
        };
        if let Some(&value) = own.will_append.iter().find(|value| base.contains(value)) {
            if own.appended.contains(&value) {
                let index = self.index;
                findings.add(Anomaly::DuplicateAppend, &[index], || {
                    vec![format!("T{index} saw its own append of {value} twice in list {list}")]
                });
            } else {
                self.contradiction(step, findings, &format!("before it appended {value}"));
            }
            return;
        }
        match own.base {
            None => {
                own.base = Some(base);
                outside.lists.push((self.index, list, base));
            }
            Some(before) if before == base => {}
            Some(before) => {
                let seen = Operation::ReadList { list, values: before.to_vec() };
                let before = text::short_operation(&seen);
                self.contradiction(step, findings, &format!("but earlier, of others' appends, `{before}`"));
            }
        }
    }

    fn on_register(
        &mut self,
        register: Register,
        value: Option<Value>,
        step: &Operation,
        outside: &mut Outside<'h>,
        findings: &mut Findings<'h>,
    ) {
        match self.registers.get(&register) {
            None => {
                self.registers.insert(register, value);
                outside.registers.push((self.index, register, value));
            }
            Some(expected) if *expected == value => {}
            Some(expected) => {
                let seen = text::operation(&Operation::Read { register, value: *expected });
                self.contradiction(step, findings, &format!("where its earlier steps demand `{seen}`"));
            }
        }
    }

    fn on_scan(
        &mut self,
        table: Table,
        rows: &'h [Row],
        step: &Operation,
        outside: &mut Outside<'h>,
        findings: &mut Findings<'h>,
    ) {
        let own = self.tables.entry(table).or_default();
        let wrong = match own.base {
            None => {
                own.base = Some(rows);
                let touched: BTreeSet<Row> = own.changes.keys().copied().collect();
                let others = rows.iter().copied().filter(|row| !touched.contains(row)).collect();
                outside.scans.push((self.index, table, others, touched));
                own.changes
                    .iter()
                    .find(|(row, there)| rows.binary_search(row).is_ok() != **there)
                    .map(|(row, _)| *row)
            }
            Some(base) => {
                let mut expected: BTreeSet<Row> = base.iter().copied().collect();
                for (&row, &there) in &own.changes {
                    if there {
                        expected.insert(row)
                    } else {
                        expected.remove(&row)
                    };
                }
                let seen: BTreeSet<Row> = rows.iter().copied().collect();
                expected.symmetric_difference(&seen).next().copied()
            }
        };
        if let Some(row) = wrong {
            self.contradiction(
                step,
                findings,
                &format!("where its earlier steps say otherwise of row {row}"),
            );
        }
    }

    fn contradiction(&self, step: &Operation, findings: &mut Findings<'h>, against: &str) {
        let index = self.index;
        findings.add(Anomaly::InternalInconsistency, &[index], || {
            vec![format!("T{index} saw `{}` {against}", text::short_operation(step))]
        });
    }
}
