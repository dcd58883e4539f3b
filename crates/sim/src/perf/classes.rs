//! A workload's statements as the core and the databases see them: classes with costs and access sets.

use std::sync::Arc;

use onecopy_core::{Access, AccessSet, ClassId, Item, Mode, Statement, StatementKind, TableId};
use onecopy_workload::catalogue::TableIndex;
use onecopy_workload::{Catalogue, StatementId, TransactionId};
use smallvec::SmallVec;

use super::profile::{Profile, ProfileError};
use super::versions::Touch;

/// What a statement touches.
pub(super) type Touches = SmallVec<[Touch; 4]>;

#[derive(Debug)]
pub(super) struct Class {
    /// CPU time on an idle database, in nanoseconds.
    pub(super) cost_ns: u64,
    /// What the core is told.
    pub(super) statement: Statement,
    /// What it reads and writes in a database.
    pub(super) touches: Touches,
    /// How old what it reads may be, in nanoseconds.
    pub(super) stale_ok_ns: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Classes {
    statements: Vec<Class>,
    /// By transaction: the tables to declare, and those of one that is usual.
    declared: Vec<[AccessSet; 2]>,
    pub(super) tables: usize,
    pub(super) commit_ns: u64,
    pub(super) log_write_ns: u64,
    apply_factor: f64,
}

impl Classes {
    pub(super) fn new(catalogue: &Catalogue, profile: &Profile, speed: u32) -> Result<Classes, ProfileError> {
        let speed = u64::from(speed.max(1));
        let costs_ns = profile.costs_ns(catalogue)?;
        let class = |(place, statement): (usize, &onecopy_workload::catalogue::Statement)| {
            let writes = !statement.writes.is_empty();
            let touch =
                |table: &TableIndex, writes| Touch { object: u64::from(table.0), reads: true, writes };
            let read_only = statement.reads.iter().filter(|table| !statement.writes.contains(table));
            let touches = read_only
                .map(|table| touch(table, false))
                .chain(statement.writes.iter().map(|table| touch(table, true)));
            Class {
                cost_ns: costs_ns[place] / speed,
                statement: Statement {
                    class: ClassId(place as u64 + 1),
                    kind: if writes { StatementKind::Write } else { StatementKind::Read },
                    access: tables(&statement.reads, &statement.writes),
                    shown: Vec::new(),
                    last_use: Some(last_use(catalogue, place)),
                    change: None,
                },
                touches: touches.collect(),
                stale_ok_ns: stale_ok_ns(catalogue, statement.transaction),
            }
        };
        let declared = |transaction: &onecopy_workload::catalogue::Transaction| {
            let usual_reads = transaction.reads.iter().chain(&transaction.writes).copied();
            let usual_reads: Vec<TableIndex> =
                usual_reads.filter(|table| !transaction.writes_usual.contains(table)).collect();
            [tables(&transaction.reads, &transaction.writes), tables(&usual_reads, &transaction.writes_usual)]
        };
        Ok(Classes {
            statements: catalogue.statements.iter().enumerate().map(class).collect(),
            declared: catalogue.transactions.iter().map(declared).collect(),
            tables: catalogue.tables.len(),
            commit_ns: profile.commit_ns() / speed,
            // A faster database does not make the scheduler's disk faster.
            log_write_ns: profile.log_write_ns(),
            apply_factor: profile.apply_factor,
        })
    }

    /// A statement's class.
    pub(super) fn of(&self, statement: StatementId) -> &Class {
        &self.statements[usize::from(statement.0)]
    }

    /// The tables of a transaction, as its application declares them.
    pub(super) fn declared(&self, transaction: TransactionId, usual: bool) -> AccessSet {
        self.declared[usize::from(transaction.0)][usize::from(usual)].clone()
    }

    /// What applying writes costs that cost this to execute, with their commit, in nanoseconds.
    pub(super) fn apply_ns(&self, executing_ns: u64) -> u64 {
        self.apply_alone_ns(executing_ns) + self.commit_ns
    }

    /// The same without the commit.
    pub(super) fn apply_alone_ns(&self, executing_ns: u64) -> u64 {
        (executing_ns as f64 * self.apply_factor) as u64
    }
}

/// The tables that a statement's transaction does not touch after it: those of which it, or one before it, is the last use. A
/// loop may come round again, so what it uses last is let go with what follows it.
fn last_use(catalogue: &Catalogue, place: usize) -> Arc<[TableId]> {
    let statements = &catalogue.statements;
    let first = catalogue.transaction(statements[place].transaction).statements.start;
    let end = if statements[place].repeat.is_some() { place } else { place + 1 };
    statements[first..end]
        .iter()
        .flat_map(|statement| &statement.last_use)
        .map(|table| table_id(*table))
        .collect()
}

/// How old what a transaction reads may be, if its interaction says that.
fn stale_ok_ns(catalogue: &Catalogue, transaction: TransactionId) -> Option<u64> {
    let interaction = catalogue.transaction(transaction).interaction;
    catalogue.interaction(interaction).stale_ok.map(|bound| bound.as_nanos() as u64)
}

/// As what the core knows a table.
#[must_use]
pub fn table_id(table: TableIndex) -> TableId {
    TableId(u64::from(table.0) + 1)
}

/// Whole tables: of one that is read and written, the writing counts.
fn tables(reads: &[TableIndex], writes: &[TableIndex]) -> AccessSet {
    let access = |table: &TableIndex, mode| Access::new(Item::table(table_id(*table)), mode);
    let read_only = reads.iter().filter(|table| !writes.contains(table));
    let reads = read_only.map(|table| access(table, Mode::Shared));
    reads.chain(writes.iter().map(|table| access(table, Mode::Exclusive))).collect()
}
