//! The paper's ten tables: half of the transactions update ten rows of one of them, or of two, and half read (section 5.1).

use onecopy_core::item::{ColumnId, ColumnSet, Item, Mode, TableId, ValueHash};
use onecopy_core::{Access, AccessSet};
use onecopy_sim::sites::{Arriving, Source};
use onecopy_workload::random::{self, Random};

/// Tables, and rows of each.
const TABLES: i64 = 10;
const ROWS: i64 = 10_000;
/// Rows that an update changes, and that a query reads.
const TOUCHED: i64 = 10;

const STREAM: u64 = 11;

pub(super) struct TenTables {
    random: Random,
    /// The rows of a transaction lie in two tables.
    two: bool,
}

impl TenTables {
    pub(super) fn new(seed: u64, two: bool) -> TenTables {
        TenTables { random: random::stream(seed, STREAM), two }
    }
}

impl Source for TenTables {
    fn next(&mut self) -> Arriving {
        let table = random::uniform(&mut self.random, 0, TABLES - 1);
        let mut rows: Vec<i64> =
            (0..TOUCHED).map(|_| random::uniform(&mut self.random, 0, ROWS - 1)).collect();
        rows.sort_unstable();
        rows.dedup();
        let updates = random::unit(&mut self.random) < 0.5;
        let mode = if updates { Mode::NoKeyExclusive } else { Mode::Shared };
        let other = match self.two {
            true => (table + random::uniform(&mut self.random, 1, TABLES - 1)) % TABLES,
            false => table,
        };
        let rows: Vec<(i64, i64)> = rows.into_iter().zip([table, other].into_iter().cycle()).collect();
        let access: AccessSet = rows
            .iter()
            .map(|(row, table)| {
                let equals = [(ColumnId(1), ValueHash::of_integer(*row))];
                Access::of_columns(Item::rows(TableId(*table as u64), equals), mode, ColumnSet::ALL)
            })
            .collect();
        let registers: Vec<u64> = rows.iter().map(|(row, table)| (table * ROWS + row) as u64).collect();
        let writes = if updates { registers.clone() } else { Vec::new() };
        Arriving {
            access,
            reads: registers,
            writes,
            fails: false,
            fails_in_place: false,
            only_writes: true,
            work: None,
            user: None,
        }
    }
}
