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
    /// A line is not of the form `Shared table key name (column = $1) of column`, behind `shown` perhaps, or names what does not
    /// exist.
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
    statements: Vec<Block>,
    /// By table: the columns by which some statement reads a part of it, and those that it reads.
    read_by: Vec<BTreeSet<(Columns, ColumnSet)>>,
}

type Columns = SmallVec<[ColumnId; 4]>;

/// The items of a statement.
#[derive(Clone, Debug, Default)]
struct Block {
    items: Vec<Pattern>,
    /// What each row of the answer shows, in the place of whole tables.
    shown: Vec<Pattern>,
}

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
    /// A column of the answer, by its place.
    Column(usize),
}

impl Operand {
    fn parse(text: &str) -> Option<Operand> {
        let place = |number: &str| number.parse::<usize>().ok()?.checked_sub(1);
        match (text.strip_prefix('$'), text.strip_prefix("column ")) {
            (Some(number), _) => place(number).map(Operand::Parameter),
            (_, Some(number)) => place(number).map(Operand::Column),
            (None, None) => text.parse().ok().map(Operand::Number),
        }
    }

    fn hash(self, params: &[Value], row: &[Value]) -> ValueHash {
        match self {
            Operand::Parameter(place) => hash(params.get(place)),
            Operand::Number(number) => ValueHash::of_integer(number),
            Operand::Column(place) => hash(row.get(place)),
        }
    }
}

impl Items {
    pub(super) fn parse(text: &str, catalogue: &Catalogue) -> Result<Items, ItemsError> {
        let mut statements: Vec<Option<Block>> = vec![None; catalogue.statements.len()];
        let mut current = None;
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = || ItemsError::Line { line: number, text: line.trim().to_owned() };
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if !line.starts_with(' ') {
                let id = catalogue.statement_id(line).ok_or_else(wrong)?;
                let block = &mut statements[usize::from(id.0)];
                if block.replace(Block::default()).is_some() {
                    return Err(ItemsError::Statement { statement: line.to_owned() });
                }
                current = Some(id);
                continue;
            }
            let id = current.ok_or_else(wrong)?;
            let block = statements[usize::from(id.0)].get_or_insert_default();
            let (text, list) = match line.trim().strip_prefix("shown ") {
                Some(text) => (text, &mut block.shown),
                None => (line.trim(), &mut block.items),
            };
            list.push(Pattern::parse(text, catalogue).ok_or_else(wrong)?);
        }
        let missing = |place: usize| {
            let statement = catalogue.statements[place].id.clone();
            ItemsError::Statement { statement }
        };
        let statements = statements.into_iter().enumerate();
        let statements: Vec<Block> =
            statements.map(|(place, block)| block.ok_or_else(|| missing(place))).collect::<Result<_, _>>()?;
        let mut read_by = vec![BTreeSet::new(); catalogue.tables.len()];
        let patterns = statements.iter().flat_map(|block| block.items.iter().chain(&block.shown));
        for pattern in patterns.filter(|pattern| pattern.reads_rows()) {
            read_by[usize::from(pattern.table)].insert((pattern.columns(), pattern.of));
        }
        Ok(Items { statements, read_by })
    }

    /// What the core is told of an execution.
    pub(super) fn access(&self, statement: StatementId, params: &[Value]) -> AccessSet {
        self.block(statement).items.iter().map(|pattern| pattern.access(params, &[])).collect()
    }

    fn block(&self, statement: StatementId) -> &Block {
        &self.statements[usize::from(statement.0)]
    }

    /// Whether the answer of a statement shows items.
    pub(super) fn are_shown(&self, statement: StatementId) -> bool {
        !self.block(statement).shown.is_empty()
    }

    /// Those of its items of which the answer shows the rows.
    pub(super) fn shown(&self, statement: StatementId, params: &[Value]) -> Vec<Access> {
        let block = self.block(statement);
        let items = block.items.iter().filter(|pattern| block.shows(pattern));
        items.map(|pattern| pattern.access(params, &[])).collect()
    }

    /// The items that an answer shows.
    pub(super) fn returned(&self, statement: StatementId, rows: &[Vec<Value>]) -> Vec<Access> {
        let shown = &self.block(statement).shown;
        let all = rows.iter().flat_map(|row| shown.iter().map(|pattern| pattern.access(&[], row)));
        let mut returned: Vec<Access> = Vec::new();
        for access in all {
            if !returned.contains(&access) {
                returned.push(access);
            }
        }
        returned
    }

    /// What an execution reads and writes in a database.
    ///
    /// Objects are tables and parts of them, each in the columns that some statement reads. Whoever changes rows writes every
    /// object that surely has them, if it changes one of its columns: its own part after reading it, since whoever else writes
    /// that must come before or after, and the others without, since two inserts into one part need no order. Of a table whose
    /// rows the answer shows, it is those that are read.
    pub(super) fn touches(&self, statement: StatementId, params: &[Value], rows: &[Vec<Value>]) -> Touches {
        let mut touches = Touches::new();
        let block = self.block(statement);
        for row in rows {
            for pattern in &block.shown {
                let object = pattern.object(&pattern.columns(), pattern.of, params, row);
                merge(&mut touches, object, true, false);
            }
        }
        let patterns = block.items.iter().filter(|pattern| !block.shows(pattern));
        for pattern in
            patterns.filter(|pattern| pattern.space == Space::Rows && pattern.mode != Mode::KeyShared)
        {
            let own = pattern.columns();
            if pattern.reads_rows() {
                merge(&mut touches, pattern.object(&own, pattern.of, params, &[]), true, false);
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
                merge(&mut touches, pattern.object(columns, *of, params, &[]), ordered, true);
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

impl Block {
    /// Whether the answer shows which rows of an item matter.
    fn shows(&self, pattern: &Pattern) -> bool {
        pattern.reads_rows()
            && pattern.equals.is_empty()
            && self.shown.iter().any(|shown| shown.table == pattern.table)
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

    fn access(&self, params: &[Value], row: &[Value]) -> Access {
        let table = TableId(u64::from(self.table) + 1);
        let equals = self.equals.iter().map(|(column, operand)| (*column, operand.hash(params, row)));
        let item = match self.space {
            Space::Rows => Item::rows(table, equals),
            Space::Key(key) => Item::key(table, key, equals),
            Space::Schema => Item::schema(table),
        };
        Access::of_columns(item, self.mode, self.of)
    }

    /// Some columns of the part of the table in which these have their values, or of the table if there are none; the table
    /// itself, if it is all columns.
    fn object(&self, columns: &Columns, of: ColumnSet, params: &[Value], row: &[Value]) -> Object {
        if columns.is_empty() && of == ColumnSet::ALL {
            return u64::from(self.table);
        }
        let mut words = vec![u64::from(self.table), of.bits()];
        for column in columns {
            let operand = self.equals.iter().find(|(known, _)| known == column).map(|(_, operand)| *operand);
            words.push(u64::from(column.0));
            words.push(operand.map_or(hash(None), |operand| operand.hash(params, row)).0);
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
            let (items, shown) = items.split_once("\nshown").unwrap_or((items, ""));
            // What is locked where a row changes twice in a transaction concerns servers, which are not simulated so closely.
            let items = items.split_once("\nagain").map_or(items, |(items, _)| items);
            let items = items.trim().lines().map(words);
            let shown = shown.lines().filter(|line| !line.trim().is_empty());
            let shown = shown.map(|line| format!("shown {}", words(line)));
            classified.insert(words(sql), items.chain(shown).collect());
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
            items.touches(catalogue.statement_id(id).unwrap(), &params, &[])
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
            items.touches(statement.into(), &params, &[])
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
        assert_eq!((count.len(), show.len(), find.len(), bump.len(), add.len()), (1, 1, 1, 2, 3));
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
    fn rows_that_an_answer_shows_are_read_in_the_place_of_their_table() {
        let (items, show) = (items(), StatementId::from(Statement::ShopShow));
        let cart = [Value::Int(5)];
        let line = |item: i64| vec![Value::Int(item), Value::Int(1)];
        assert!(items.are_shown(show) && !items.are_shown(Statement::ShopCount.into()));
        let item = TableId(u64::from(catalogue().table_index("item").unwrap().0) + 1);
        let shown = items.shown(show, &cart);
        assert!(items.access(show, &cart).contains(&shown[0]));
        assert_eq!((shown.len(), &shown[0].item), (1, &Item::table(item)));
        let returned = items.returned(show, &[line(3), line(4), line(3)]);
        let row = |key: i64| Item::rows(item, [(ColumnId(1), ValueHash::of_integer(key))]);
        assert_eq!(returned.iter().map(|access| &access.item).collect::<Vec<_>>(), [&row(3), &row(4)]);

        let read = items.touches(show, &cart, &[line(3)]);
        let written = |key: i64| {
            let changed = [9, 0, 0, 0].map(Value::Int);
            let price: Vec<Value> = [Value::Int(key)].into_iter().chain(changed).collect();
            items.touches(Statement::AdmcUpdate.into(), &price, &[])
        };
        let meets = |key: i64| written(key).iter().any(|touch| touch.object == read[0].object);
        assert_eq!((read.len(), meets(3), meets(4)), (2, true, false));
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
