//! Rows and keys that statements touch, for protocols that count conflicts on them.
//!
//! Which they are is data: what classify finds in the statements' texts, as `onecopy explain` shows it, one block for each
//! statement. Here it is bound to parameters.

use std::collections::BTreeSet;

use onecopy_core::item::Space;
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Item, KeyId, Mode, TableId, ValueHash};
use onecopy_workload::{Catalogue, StatementId, Value};
use smallvec::SmallVec;
use thiserror::Error;

use super::classes::Touches;
use super::versions::{Object, Touch};

/// Why a list of items cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ItemsError {
    /// A line is not of the form `Shared table key name (column = $1) of column`, or names what does not exist.
    #[error("items, line {line}: `{text}` is no item of a known table with known columns")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// A statement has no items, or has them twice.
    #[error("items: {statement} must have exactly one block")]
    Statement {
        /// The statement.
        statement: String,
    },
}

/// The items of a workload's statements.
#[derive(Debug)]
pub(super) struct Items {
    /// By statement.
    statements: Vec<Vec<Pattern>>,
    /// By table: the columns by which some statement reads a part of it, and those that it reads.
    read_by: Vec<BTreeSet<(Columns, ColumnSet)>>,
}

type Columns = SmallVec<[ColumnId; 4]>;

/// An item whose values are parameters or numbers.
#[derive(Clone, Debug)]
struct Pattern {
    table: u16,
    space: Space,
    mode: Mode,
    of: ColumnSet,
    equals: SmallVec<[(ColumnId, Operand); 4]>,
}

/// What a column equals.
#[derive(Clone, Copy, Debug)]
enum Operand {
    /// A parameter, by its place.
    Parameter(usize),
    /// A number of the statement's text.
    Number(i64),
}

impl Operand {
    fn parse(text: &str) -> Option<Operand> {
        match text.strip_prefix('$') {
            Some(number) => number.parse::<usize>().ok()?.checked_sub(1).map(Operand::Parameter),
            None => text.parse().ok().map(Operand::Number),
        }
    }

    fn hash(self, params: &[Value]) -> ValueHash {
        match self {
            Operand::Parameter(place) => hash(params.get(place)),
            Operand::Number(number) => ValueHash::of_integer(number),
        }
    }
}

impl Items {
    pub(super) fn parse(text: &str, catalogue: &Catalogue) -> Result<Items, ItemsError> {
        let mut statements: Vec<Option<Vec<Pattern>>> = vec![None; catalogue.statements.len()];
        let mut current = None;
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = || ItemsError::Line { line: number, text: line.trim().to_owned() };
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if !line.starts_with(' ') {
                let id = catalogue.statement_id(line).ok_or_else(wrong)?;
                let block = &mut statements[usize::from(id.0)];
                if block.replace(Vec::new()).is_some() {
                    return Err(ItemsError::Statement { statement: line.to_owned() });
                }
                current = Some(id);
                continue;
            }
            let id = current.ok_or_else(wrong)?;
            let pattern = Pattern::parse(line.trim(), catalogue).ok_or_else(wrong)?;
            statements[usize::from(id.0)].get_or_insert_default().push(pattern);
        }
        let missing = |place: usize| {
            let statement = catalogue.statements[place].id.clone();
            ItemsError::Statement { statement }
        };
        let statements = statements.into_iter().enumerate();
        let statements: Vec<Vec<Pattern>> =
            statements.map(|(place, block)| block.ok_or_else(|| missing(place))).collect::<Result<_, _>>()?;
        let mut read_by = vec![BTreeSet::new(); catalogue.tables.len()];
        for pattern in statements.iter().flatten().filter(|pattern| pattern.reads_rows()) {
            read_by[usize::from(pattern.table)].insert((pattern.columns(), pattern.of));
        }
        Ok(Items { statements, read_by })
    }

    /// What the core is told of an execution.
    pub(super) fn access(&self, statement: StatementId, params: &[Value]) -> AccessSet {
        self.statements[usize::from(statement.0)].iter().map(|pattern| pattern.access(params)).collect()
    }

    /// What an execution reads and writes in a database.
    ///
    /// Objects are tables and parts of them, each in the columns that some statement reads. Whoever changes rows writes every
    /// object that surely has them, if it changes one of its columns: its own part after reading it, since whoever else writes
    /// that must come before or after, and the others without, since two inserts into one part need no order.
    pub(super) fn touches(&self, statement: StatementId, params: &[Value]) -> Touches {
        let mut touches = Touches::new();
        let patterns = self.statements[usize::from(statement.0)].iter();
        for pattern in
            patterns.filter(|pattern| pattern.space == Space::Rows && pattern.mode != Mode::KeyShared)
        {
            let own = pattern.columns();
            if pattern.reads_rows() {
                merge(&mut touches, pattern.object(&own, pattern.of, params), true, false);
                continue;
            }
            let table = usize::from(pattern.table);
            let read_by = self.read_by[table].iter();
            let of_rows = read_by.filter(|(columns, of)| {
                let has_them = columns.iter().all(|column| own.contains(column));
                has_them && (pattern.mode != Mode::NoKeyExclusive || of.overlaps(pattern.of))
            });
            for (columns, of) in of_rows {
                let ordered = *columns == own && pattern.mode != Mode::Insert;
                merge(&mut touches, pattern.object(columns, *of, params), ordered, true);
            }
        }
        touches
    }
}

fn merge(touches: &mut Touches, object: Object, reads: bool, writes: bool) {
    match touches.iter_mut().find(|touch| touch.object == object) {
        Some(touch) => (touch.reads, touch.writes) = (touch.reads | reads, touch.writes | writes),
        None => touches.push(Touch { object, reads, writes }),
    }
}

impl Pattern {
    /// `Mode table[ key name][ (column = $1, other = 0, ...)][ of column, other, ...]`
    fn parse(text: &str, catalogue: &Catalogue) -> Option<Pattern> {
        let (text, of) = match text.split_once(" of ") {
            Some((text, of)) => (text, Some(of)),
            None => (text, None),
        };
        let (head, equals) = match text.split_once(" (") {
            Some((head, equals)) => (head, equals.strip_suffix(')')?),
            None => (text, ""),
        };
        let words: Vec<&str> = head.split(' ').collect();
        let (mode, name, space) = match words[..] {
            [mode, table] => (mode, table, Space::Rows),
            // A table of this catalogue has one key, its primary key.
            [mode, table, "key", _] => (mode, table, Space::Key(KeyId(1))),
            _ => return None,
        };
        let mode = match mode {
            "KeyShared" => Mode::KeyShared,
            "Shared" => Mode::Shared,
            "Insert" => Mode::Insert,
            "NoKeyExclusive" => Mode::NoKeyExclusive,
            "Exclusive" => Mode::Exclusive,
            _ => return None,
        };
        let table = catalogue.table_index(name)?;
        let columns = &catalogue.table(table).columns;
        let column = |name: &str| {
            let place = columns.iter().position(|known| known.name == name)?;
            Some(ColumnId(place as u16 + 1))
        };
        let equal = |text: &str| {
            let (name, operand) = text.split_once(" = ")?;
            Some((column(name)?, Operand::parse(operand)?))
        };
        let equals = equals.split(", ").filter(|equal| !equal.is_empty());
        let equals = equals.map(equal).collect::<Option<_>>()?;
        let of = match of {
            None => ColumnSet::ALL,
            Some("no column") => ColumnSet::NONE,
            Some(names) => names.split(", ").map(column).collect::<Option<_>>()?,
        };
        Some(Pattern { table: table.0, space, mode, of, equals })
    }

    fn reads_rows(&self) -> bool {
        self.space == Space::Rows && self.mode == Mode::Shared
    }

    fn columns(&self) -> Columns {
        let mut columns: Columns = self.equals.iter().map(|(column, _)| *column).collect();
        columns.sort_unstable();
        columns
    }

    fn access(&self, params: &[Value]) -> Access {
        let table = TableId(u64::from(self.table) + 1);
        let equals = self.equals.iter().map(|(column, operand)| (*column, operand.hash(params)));
        let item = match self.space {
            Space::Rows => Item::rows(table, equals),
            Space::Key(key) => Item::key(table, key, equals),
            Space::Schema => Item::schema(table),
        };
        Access::of_columns(item, self.mode, self.of)
    }

    /// Some columns of the part of the table in which these have their values, or of the table if there are none; the table
    /// itself, if it is all columns.
    fn object(&self, columns: &Columns, of: ColumnSet, params: &[Value]) -> Object {
        if columns.is_empty() && of == ColumnSet::ALL {
            return u64::from(self.table);
        }
        let mut words = vec![u64::from(self.table), of.bits()];
        for column in columns {
            let operand = self.equals.iter().find(|(known, _)| known == column).map(|(_, operand)| *operand);
            words.push(u64::from(column.0));
            words.push(operand.map_or(hash(None), |operand| operand.hash(params)).0);
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        // Tables have small numbers.
        ValueHash::of_bytes(&bytes).0 | 1 << 63
    }
}

fn hash(value: Option<&Value>) -> ValueHash {
    match value {
        Some(Value::Int(int)) => ValueHash::of_integer(*int),
        Some(Value::Text(text)) => ValueHash::of_bytes(text.as_bytes()),
        // No item names a column of another type; a value that is not there equals only itself.
        _ => ValueHash(0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onecopy_workload::tpcw::{Statement, catalogue};
    use onecopy_workload::{auction, bulletin_board};

    use super::*;
    use crate::perf::workload::{AUCTION_ITEMS, BOARD_ITEMS, BOOKSTORE_ITEMS};

    fn items() -> Items {
        Items::parse(BOOKSTORE_ITEMS, catalogue()).unwrap()
    }

    /// classify's cases: a statement's text with its items.
    fn classified(cases: &str) -> BTreeMap<String, Vec<String>> {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut classified = BTreeMap::new();
        for case in cases.split("\ncase: ").skip(1) {
            let (head, answer) = case.split_once("----\n").unwrap();
            let (_, sql) = head.split_once('\n').unwrap();
            let (_, items) = answer.split_once("items").unwrap();
            let (items, _) = items.split_once("\nchanges").unwrap();
            // What is locked where a row changes twice in a transaction concerns servers, which are not simulated so closely.
            let items = items.split_once("\nagain").map_or(items, |(items, _)| items);
            classified.insert(words(sql), items.trim().lines().map(words).collect());
        }
        classified
    }

    fn updated(list: &str, catalogue: &Catalogue, classified: &BTreeMap<String, Vec<String>>) -> String {
        let comments = list.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
        let block = |statement: &onecopy_workload::catalogue::Statement| {
            let sql = statement.sql.split_whitespace().collect::<Vec<_>>().join(" ");
            let items = classified[&sql].iter().map(|item| format!("  {item}\n"));
            format!("\n{}\n{}", statement.id, items.collect::<String>())
        };
        comments.chain(catalogue.statements.iter().map(block)).collect()
    }

    /// `UPDATE_ITEMS=1` takes over what classify finds.
    #[test]
    fn items_are_those_that_classify_finds() {
        let tpcw = include_str!("../../../classify/tests/cases/tpcw.txt");
        let auction = include_str!("../../../classify/tests/cases/auction.txt");
        let board = include_str!("../../../classify/tests/cases/bulletin_board.txt");
        for (name, list, cases, catalogue, count) in [
            ("tpcw", BOOKSTORE_ITEMS, tpcw, catalogue(), 53),
            ("auction", AUCTION_ITEMS, auction, auction::catalogue(), 59),
            ("bulletin_board", BOARD_ITEMS, board, bulletin_board::catalogue(), 66),
        ] {
            let classified = classified(cases);
            if std::env::var_os("UPDATE_ITEMS").is_some() {
                let path = format!("{}/data/items/{name}.txt", env!("CARGO_MANIFEST_DIR"));
                std::fs::write(path, updated(list, catalogue, &classified)).unwrap();
                continue;
            }
            let mut ours: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            let mut current = "";
            for line in list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
                match line.strip_prefix("  ") {
                    Some(item) => ours.get_mut(current).unwrap().push(item.to_owned()),
                    None => {
                        current = line;
                        ours.insert(current, Vec::new());
                    }
                }
            }
            let mut compared = 0;
            for statement in &catalogue.statements {
                let sql = statement.sql.split_whitespace().collect::<Vec<_>>().join(" ");
                if let Some(expected) = classified.get(&sql) {
                    assert_eq!(&ours[statement.id.as_str()], expected, "{}", statement.id);
                    compared += 1;
                }
            }
            assert_eq!(compared, count, "{}", catalogue.name);
            assert!(Items::parse(list, catalogue).is_ok(), "{}", catalogue.name);
        }
    }

    #[test]
    fn numbers_in_the_text_of_a_statement_are_values() {
        let catalogue = bulletin_board::catalogue();
        let items = Items::parse(BOARD_ITEMS, catalogue).unwrap();
        let touch = |id: &str, params: &[i64]| {
            let params: Vec<Value> = params.iter().map(|int| Value::Int(*int)).collect();
            items.touches(catalogue.statement_id(id).unwrap(), &params)
        };
        let top = touch("view_story.top", &[7, 0])[0].object;
        let written = |parent: i64| touch("store_comment.insert", &[1, 2, 7, parent]);
        let has = |parent: i64| written(parent).iter().any(|touch| touch.object == top);
        assert_eq!((has(0), has(3)), (true, false));
    }

    #[test]
    fn whoever_writes_a_row_writes_the_parts_that_are_read_and_surely_have_it() {
        let items = items();
        let touch = |statement: Statement, params: &[i64]| {
            let params: Vec<Value> = params.iter().map(|int| Value::Int(*int)).collect();
            items.touches(statement.into(), &params)
        };
        let cart_line = u64::from(catalogue().table_index("shopping_cart_line").unwrap().0);
        let count = touch(Statement::ShopCount, &[5]);
        let show = touch(Statement::ShopShow, &[5]);
        let find = touch(Statement::ShopFind, &[5, 7]);
        let bump = touch(Statement::ShopBump, &[5, 7]);
        let add = touch(Statement::ShopAdd, &[5, 7]);
        let object = |touches: &Touches| touches[0].object;
        let how = |touches: &Touches, object| {
            touches.iter().find(|touch| touch.object == object).map(|touch| (touch.reads, touch.writes))
        };
        // By cart with all columns, or only to count, and by cart and item; nobody reads the whole table.
        assert_eq!((count.len(), show.len(), find.len(), bump.len(), add.len()), (1, 2, 1, 2, 3));
        assert_eq!(how(&bump, object(&find)), Some((true, true)));
        assert_eq!(how(&add, object(&find)), Some((false, true)));
        for (read, bumped) in [(&show, Some((false, true))), (&count, None)] {
            assert_eq!(how(&bump, object(read)), bumped);
            assert_eq!(how(&add, object(read)), Some((false, true)));
        }
        assert_eq!(how(&bump, cart_line), None);
        assert_eq!(how(&touch(Statement::ShopBump, &[6, 7]), object(&show)), None);
        // All of item is read, and it by its key, but the stock only by its key.
        let related = touch(Statement::HomePromo, &[3]);
        let stock = touch(Statement::BuycSetStock, &[3, 9]);
        assert_eq!(how(&stock, object(&related)), None);
        assert_eq!(how(&stock, object(&touch(Statement::BuycStock, &[3]))), Some((true, true)));
        let change = touch(Statement::AdmcSetRelated, &[1, 2, 3, 4, 5, 9]);
        assert_eq!(how(&change, object(&related)), Some((false, true)));
    }

    #[test]
    fn what_is_no_item_is_named_with_its_line() {
        let said = |text: &str| Items::parse(text, catalogue()).unwrap_err().to_string();
        assert!(said("home.greet.name\n  Shared customers\n").contains("line 2: `Shared customers`"));
        assert!(said("home.greet.name\n  Shared customer (c_idd = $1)\n").contains("line 2"));
        assert!(said("home.greet\n").contains("line 1"));
        assert!(said("home.greet.name\n\nhome.greet.name\n").contains("exactly one block"));
        assert!(said("home.greet.name\n").contains("home.promo.related must have"));
    }
}
