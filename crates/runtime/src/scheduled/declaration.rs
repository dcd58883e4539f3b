//! What an application says about its transactions: the tables that each will touch, and which it has used for the last
//! time.
//!
//! It says so in a comment before the first statement (or before BEGIN), `/* onecopy: tables=a,b writes=c last=a */`, or by
//! the settings `onecopy.tables`, `onecopy.writes`, `onecopy.last_use` and `onecopy.stale_ms`. Nobody has to: docs/protocols/real_servers.md
//! says what happens otherwise.

use std::sync::Arc;

use onecopy_classify::{Catalogue, NoParams, Scratch, table_id};
use onecopy_core::{Access, AccessSet, Item, Mode, TableId};
use onecopy_wire::sqlstate::SqlState;

use crate::agent::quote_identifier;
use crate::classifier::{Classifier, Manner};
use crate::errors::Failure;

const TABLES: &str = "tables";
const WRITES: &str = "writes";
const LAST_USE: &str = "last_use";
/// As comments write it.
const LAST: &str = "last";
const PREFIX: &str = "onecopy.";
/// Milliseconds by which what a single statement reads may be old.
const STALE: &str = "stale_ms";
const HINT: &str = "Write /* onecopy: tables=a,b writes=c last=a stale_ms=30000 */: tables that are read, that are \
     written, that are not used again; and how old what a single statement reads may be.";

/// A table's name, with its schema before it if that was written.
type Name = Vec<String>;

/// The tables of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    read: Vec<TableId>,
    written: Vec<TableId>,
}

impl Declared {
    fn is_empty(&self) -> bool {
        self.read.is_empty() && self.written.is_empty()
    }

    fn access(&self) -> AccessSet {
        let of = |tables: &[TableId], mode| -> Vec<Access> {
            tables.iter().map(|table| Access::new(Item::table(*table), mode)).collect()
        };
        of(&self.read, Mode::Shared).into_iter().chain(of(&self.written, Mode::Exclusive)).collect()
    }
}

/// What is declared in a session at the moment.
#[derive(Default)]
pub struct Declarations {
    /// For every transaction, by settings.
    session: Declared,
    /// For the one that is open or about to begin.
    transaction: Option<Declared>,
    /// For the next statement.
    last_use: Option<Arc<[TableId]>>,
    /// How old what is read may be, in nanoseconds: for every statement, and for the next.
    session_stale_ok_ns: Option<u64>,
    stale_ok_ns: Option<u64>,
}

/// Where names of tables are looked up.
pub struct Names<'a> {
    pub classifier: &'a Classifier,
    pub search_path: &'a [String],
}

impl Declarations {
    /// Reads the comments before a statement. `may_declare` says that its transaction has not begun.
    ///
    /// # Errors
    /// If it is no declaration, or names what is no table; or if a transaction declares its tables too late.
    pub fn read_comment(&mut self, sql: &str, may_declare: bool, names: &Names<'_>) -> Result<(), Failure> {
        let Some(text) = comment(sql) else { return Ok(()) };
        let mut declared = Declared::default();
        for (key, tables) in entries(text).ok_or_else(|| malformed(text))? {
            match key {
                TABLES | WRITES if !may_declare => return Err(too_late()),
                TABLES => declared.read.extend(names.all(&tables)?),
                WRITES => names.written(&tables, &mut declared)?,
                LAST | LAST_USE => self.last_use = Some(names.all(&tables)?.into()),
                STALE => self.stale_ok_ns = Some(staleness(&tables).ok_or_else(|| malformed(text))?),
                _ => return Err(malformed(text)),
            }
        }
        if !declared.is_empty() {
            self.transaction = Some(declared);
        }
        Ok(())
    }

    /// SET of one of onecopy's settings, RESET if `value` is `None`; says whether it is one.
    ///
    /// # Errors
    /// As [`Declarations::read_comment`].
    pub fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        local: bool,
        may_declare: bool,
        names: &Names<'_>,
    ) -> Result<bool, Failure> {
        let Some(name) = name
            .get(..PREFIX.len())
            .filter(|prefix| prefix.eq_ignore_ascii_case(PREFIX))
            .and_then(|_| name.get(PREFIX.len()..))
        else {
            return Ok(false);
        };
        let tables = match value.filter(|value| !value.trim().is_empty()) {
            Some(value) => list(value).ok_or_else(|| malformed(value))?,
            None => Vec::new(),
        };
        let declared = match local {
            true if !may_declare && matches!(name, TABLES | WRITES) => return Err(too_late()),
            true => self.transaction.get_or_insert_with(|| self.session.clone()),
            false => &mut self.session,
        };
        match name {
            TABLES => declared.read = names.all(&tables)?,
            WRITES => {
                declared.written.clear();
                names.written(&tables, declared)?;
            }
            LAST_USE => self.last_use = (!tables.is_empty()).then_some(names.all(&tables)?.into()),
            STALE if tables.is_empty() => self.session_stale_ok_ns = None,
            STALE => {
                let wrong = || malformed(value.unwrap_or_default());
                self.session_stale_ok_ns = Some(staleness(&tables).ok_or_else(wrong)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the transaction that begins now declares.
    pub fn take_declared(&mut self) -> Option<AccessSet> {
        let declared = self.transaction.take().unwrap_or_else(|| self.session.clone());
        (!declared.is_empty()).then(|| declared.access())
    }

    /// The tables that are not used after the statement that is about to be executed.
    pub fn take_last_use(&mut self) -> Option<Arc<[TableId]>> {
        self.last_use.take()
    }

    /// How old what the statement that is about to be executed reads may be, in nanoseconds.
    pub fn take_stale_ok_ns(&mut self) -> Option<u64> {
        self.stale_ok_ns.take().or(self.session_stale_ok_ns)
    }

    /// Whether something is declared for every transaction.
    pub fn has_any_of_session(&self) -> bool {
        !self.session.is_empty() || self.session_stale_ok_ns.is_some()
    }

    /// RESET ALL.
    pub fn reset(&mut self) {
        self.session = Declared::default();
        self.session_stale_ok_ns = None;
    }

    /// Whatever was declared for a transaction that is over is of no use to the next one.
    pub fn end_transaction(&mut self) {
        self.transaction = None;
        self.last_use = None;
    }
}

impl Names<'_> {
    fn all(&self, names: &[Name]) -> Result<Vec<TableId>, Failure> {
        let mut found = Vec::new();
        for name in names {
            found.extend(self.tables_of(name)?);
        }
        Ok(found)
    }

    /// Writes to tables, and what their foreign keys read.
    fn written(&self, names: &[Name], declared: &mut Declared) -> Result<(), Failure> {
        let catalogue = self.classifier.catalogue();
        for table in self.all(names)? {
            declared.written.push(table);
            let is_this =
                |known: &&onecopy_classify::catalogue::Table| table_id(&known.schema, &known.name) == table;
            let keys = catalogue.tables.iter().filter(is_this).flat_map(|table| &table.foreign_keys);
            declared.read.extend(keys.map(|key| table_id(&key.parent_schema, &key.parent)));
        }
        Ok(())
    }

    /// The tables that stand for a name: itself, its root if it is a partition, those that it reads if it is a view.
    fn tables_of(&self, name: &[String]) -> Result<Vec<TableId>, Failure> {
        let catalogue = self.classifier.catalogue();
        let found = match name {
            [name] => self
                .search_path
                .iter()
                .find(|schema| exists(&catalogue, schema, name))
                .map(|schema| (schema, name)),
            [schema, name] if exists(&catalogue, schema, name) => Some((schema, name)),
            _ => None,
        };
        let Some((schema, name)) = found else {
            let message = format!("relation \"{}\" does not exist", name.join("."));
            return Err(Failure::new(SqlState::UNDEFINED_TABLE, message).hint(HINT));
        };
        let sql = format!("TABLE {}.{}", quote_identifier(schema), quote_identifier(name));
        let (statement, _) =
            self.classifier.classify(&Manner::default(), &sql, self.search_path, &mut Scratch::default());
        let access = statement.class.bind(&statement.sql, statement.layout.layout(), &NoParams, &[]);
        let mut tables: Vec<TableId> = access.iter().map(|access| access.item.table).collect();
        tables.dedup();
        Ok(tables)
    }
}

fn exists(catalogue: &Catalogue, schema: &str, name: &str) -> bool {
    catalogue.tables.iter().any(|table| table.schema == schema && table.name == name)
        || catalogue.views.iter().any(|view| view.schema == schema && view.name == name)
}

/// What follows `onecopy:` in the comments before a statement.
fn comment(sql: &str) -> Option<&str> {
    // Of a string of several statements it may begin with the end of the one before.
    let mut rest = sql.trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    loop {
        if let Some(line) = rest.strip_prefix("--") {
            rest = line.split_once('\n')?.1.trim_start();
        } else {
            let (text, after) = rest.strip_prefix("/*")?.split_once("*/")?;
            if let Some(declaration) = text.trim_start().strip_prefix("onecopy:") {
                return Some(declaration);
            }
            rest = after.trim_start();
        }
    }
}

/// The entries `key=name,name ...` of a declaration.
fn entries(text: &str) -> Option<Vec<(&str, Vec<Name>)>> {
    let mut entries = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        // The next entry's key is what stands before its sign: up to the blank that ends the list before it.
        let end = after.find('=').map_or(after.len(), |next| {
            let before = after[..next].trim_end();
            before.rfind(|c: char| c.is_whitespace()).map_or(0, |blank| blank + 1)
        });
        entries.push((key.trim(), list(&after[..end])?));
        rest = after[end..].trim();
    }
    Some(entries)
}

/// Names between commas, each with its parts.
fn list(text: &str) -> Option<Vec<Name>> {
    text.split(',').map(|name| parts(name.trim())).collect()
}

/// `name` or `schema.name`, folded as the server does unless quoted.
fn parts(name: &str) -> Option<Name> {
    let mut parts = Vec::new();
    let mut rest = name;
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (part, after) = quoted.split_once('"')?;
                (part.to_owned(), after)
            }
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                (rest[..end].to_ascii_lowercase(), &rest[end..])
            }
        };
        if part.is_empty() || part.chars().any(char::is_whitespace) && !rest.starts_with('"') {
            return None;
        }
        parts.push(part);
        match after.strip_prefix('.') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(parts).filter(|parts| parts.len() <= 2),
        }
    }
}

/// Milliseconds as nanoseconds.
fn staleness(value: &[Name]) -> Option<u64> {
    let [value] = value else { return None };
    let [value] = &value[..] else { return None };
    value.parse::<u64>().ok()?.checked_mul(1_000_000)
}

fn malformed(text: &str) -> Failure {
    let message = format!("\"{}\" is not a declaration of tables", text.trim());
    Failure::new(SqlState::SYNTAX_ERROR, message).hint(HINT)
}

fn too_late() -> Failure {
    Failure::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "the tables of a transaction must be declared before its first statement",
    )
    .hint("Declare them with BEGIN, with the first statement after it, or by SET LOCAL before that.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<(&str, Vec<String>)>> {
        let joined = |names: Vec<Name>| names.iter().map(|name| name.join(".")).collect();
        entries(text).map(|entries| entries.into_iter().map(|(key, names)| (key, joined(names))).collect())
    }

    #[test]
    fn declaration_is_read_from_the_comments_before_a_statement_only() {
        assert_eq!(comment("/* onecopy: tables=a */ SELECT 1"), Some(" tables=a "));
        assert_eq!(comment(" -- hello\n/* app */ /*onecopy: writes=b*/ UPDATE b"), Some(" writes=b"));
        assert_eq!(comment("SELECT '/* onecopy: tables=a */'"), None);
        assert_eq!(comment("SELECT 1 /* onecopy: tables=a */"), None);
        assert_eq!(comment("/* onecopy: never closed"), None);
        assert_eq!(comment("-- onecopy: tables=a"), None);
        assert_eq!(comment("; /* onecopy: tables=a */ "), Some(" tables=a "));
    }

    #[test]
    fn entries_are_lists_of_names_that_are_folded_unless_quoted() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            read(r#" tables=A, shop.Item writes="Big"."T x" last=a "#),
            Some(vec![
                ("tables", names(&["a", "shop.item"])),
                ("writes", names(&["Big.T x"])),
                ("last", names(&["a"])),
            ])
        );
        assert_eq!(read(""), Some(Vec::new()));
        for wrong in ["tables", "tables=", "tables=a,,b", "tables=a b", "tables=a.b.c", "=a", r#"tables="a"#]
        {
            assert!(
                read(wrong).is_none_or(|entries| entries.iter().any(|(key, _)| key.is_empty())),
                "{wrong}"
            );
        }
    }
}
