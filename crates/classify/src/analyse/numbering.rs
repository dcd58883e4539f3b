//! Rows whose number the text does not show, and which need numbers of sequences or other values of their own: INSERT
//! from a query, and COPY that leaves columns out.
//!
//! How many rows there are is found out at home, a block of so many numbers is drawn, and the rows are numbered in the
//! order in which they come. Since that order need not be the same elsewhere, the rows are shipped.

use super::freeze::closing;
use super::{Analyser, Resolved};
use crate::ast::{Body, Copy, Expr, From, Insert, Literal, Overriding, Query, Select, Statement, With};
use crate::capture::CapturePlan;
use crate::catalogue::{Column, Table};
use crate::class::{Numbered, Numbering};
use crate::lexer::TokenKind;
use crate::rewrite::{Frozen, FrozenKind, Piece, Rewrite, Splice, qualified, quoted};

/// The alias of the rows inside the statement, and the table that holds those of a COPY.
const ROWS: &str = "onecopy_rows";

/// Where the parts of an INSERT from a query are.
pub(super) struct QueryPlaces {
    /// The word INSERT.
    insert: u32,
    /// Before the parenthesis that closes the column list.
    columns: Option<u32>,
    /// OVERRIDING, or the query.
    source: u32,
    /// The query.
    pub(super) from: u32,
    pub(super) to: u32,
}

/// What the conclusion needs to number rows.
pub(super) enum Numbers {
    /// The text that counts the rows is made of these places.
    Query(QueryPlaces),
    Copy(CopyNumbers),
}

/// A COPY whose rows go through a table of the transaction's own.
pub(super) struct CopyNumbers {
    create: String,
    /// The table's name in the text.
    name: (u32, u32),
    /// The INSERT that takes the rows over, up to its RETURNING.
    insert: Vec<Piece>,
}

impl<'a> Analyser<'a> {
    /// Adds columns around the query of an INSERT: `SELECT rows.*, values FROM (query) AS rows`.
    pub(super) fn add_columns_around(
        &mut self,
        insert: &'a Insert,
        given: &[(&'a Column, bool)],
        added: &[&'a Column],
        slots: &[Vec<Piece>],
    ) -> bool {
        let Some(query) = insert.source.as_deref() else { return false };
        if given.iter().any(|(_, partial)| *partial) {
            return false;
        }
        let Some(places) = self.query_places(insert) else { return false };
        let draws = slots.iter().flatten().any(|piece| self.is_draw(piece));
        if draws && self.unsteady {
            // Whether the rows are more than were counted shows in the numbers that they got: if those are stored as
            // they are, and not in rows that were there before.
            let hidden = |slot: &Vec<Piece>| slot.len() > 1 && slot.iter().any(|piece| self.is_draw(piece));
            let updates = insert.on_conflict.as_ref().is_some_and(|c| c.update.is_some());
            if updates || slots.iter().any(hidden) {
                return false;
            }
        }
        self.note_draws(added, slots);
        self.type_literals(query, given);
        let names =
            |columns: &[&Column]| columns.iter().map(|c| quoted(&c.name)).collect::<Vec<_>>().join(", ");
        match places.columns {
            Some(end) => self.edits.surround(end, vec![Piece::Text(format!(", {}", names(added)))]),
            None => {
                let mut all: Vec<&Column> = given.iter().map(|(c, _)| *c).collect();
                all.extend(added);
                self.edits.surround(places.source, vec![Piece::Text(format!("({}) ", names(&all)))]);
            }
        }
        let always = added.iter().any(|c| c.identity == Some('a'));
        if always && insert.overriding == Overriding::None {
            self.edits.surround(places.source, vec![Piece::Text("OVERRIDING SYSTEM VALUE ".to_owned())]);
        }
        let mut head = vec![Piece::Text(format!("SELECT {ROWS}.*"))];
        head.extend(self.row_values(slots));
        head.push(Piece::Text(" FROM (".to_owned()));
        self.edits.surround(places.from, head);
        self.edits.surround(places.to, vec![Piece::Text(format!(") AS {ROWS}"))]);
        if draws {
            self.unreplayable("its rows are numbered in the order in which a query yields them");
            self.numbers = Some(Numbers::Query(places));
        }
        true
    }

    /// Values for each row, each after a comma; what is drawn from sequences ascends row by row.
    fn row_values(&self, slots: &[Vec<Piece>]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for slot in slots {
            pieces.push(Piece::Text(", ".to_owned()));
            for piece in slot {
                match piece {
                    Piece::Frozen(index) if self.edits.draws(*index) => {
                        let step = self.increment(*index);
                        pieces.push(Piece::Text("(".to_owned()));
                        pieces.push(Piece::Frozen(*index));
                        pieces.push(Piece::Text(format!(
                            " + (pg_catalog.row_number() OVER () - 1) * ({step}))"
                        )));
                    }
                    piece => pieces.push(piece.clone()),
                }
            }
        }
        pieces
    }

    /// Remembers which columns take numbers as they are drawn.
    fn note_draws(&mut self, added: &[&'a Column], slots: &[Vec<Piece>]) {
        for (column, slot) in added.iter().zip(slots) {
            if let [piece @ Piece::Frozen(index)] = slot.as_slice()
                && self.is_draw(piece)
            {
                self.drawn.push((column.name.clone(), *index));
            }
        }
    }

    fn increment(&self, frozen: u32) -> i64 {
        match self.edits.kind(frozen) {
            Some(FrozenKind::NextVal { schema, name }) => {
                let sequences = &self.catalogue().sequences;
                sequences.iter().find(|s| s.schema == *schema && s.name == *name).map_or(1, |s| s.increment)
            }
            _ => 1,
        }
    }

    /// Text without a type takes that of the column beside which it stands, which it would not inside a subquery.
    fn type_literals(&mut self, query: &'a Query, given: &[(&'a Column, bool)]) {
        let Body::Select(select) = &query.body else { return };
        let is_star = |e: &Expr| matches!(e, Expr::Column { star: true, .. });
        let stars = select.targets.iter().filter(|t| is_star(&t.value)).count();
        let first_star = select.targets.iter().position(|t| is_star(&t.value));
        for (i, target) in select.targets.iter().enumerate() {
            let column = match first_star {
                Some(star) if i > star && stars == 1 => {
                    given.len().checked_sub(select.targets.len() - i).and_then(|at| given.get(at))
                }
                Some(star) if i >= star => None,
                _ => given.get(i),
            };
            let Some((column, _)) = column else { continue };
            let end = match &target.value {
                Expr::Literal { value: Literal::Text(_), at } => {
                    let index = self.const_at(*at).map(|(index, _)| index as usize);
                    index.and_then(|i| self.layout.consts.get(i)).map(|c| c.end)
                }
                Expr::Literal { value: Literal::Null, at } | Expr::Param { at, .. } => {
                    let tokens = self.tokens();
                    let token = tokens.iter().find(|t| t.start == *at as usize);
                    token.and_then(|t| u32::try_from(t.end).ok())
                }
                _ => None,
            };
            if let Some(end) = end {
                let cast = format!("::{}", without_modifiers(&column.type_name));
                self.edits.insert(end, vec![Piece::Text(cast)]);
            }
        }
    }

    fn query_places(&self, insert: &Insert) -> Option<QueryPlaces> {
        let tokens = self.tokens();
        let offset = |i: usize| tokens.get(i).and_then(|t| u32::try_from(t.start).ok());
        let is = |i: usize, word: &str| {
            tokens.get(i).is_some_and(|t| t.kind == TokenKind::Word && self.word(t) == word)
        };
        // WITH clauses hold INSERTs of their own, in parentheses.
        let mut i = 0;
        while !is(i, "insert") {
            i = match tokens.get(i)?.kind {
                TokenKind::Byte(b'(') => closing(&tokens, i)? + 1,
                _ => i + 1,
            };
        }
        let word = offset(i)?;
        // INSERT INTO name [. name] ... [AS alias]
        i += 3;
        while tokens.get(i)?.kind == TokenKind::Byte(b'.') {
            i += 2;
        }
        if is(i, "as") {
            i += 2;
        }
        let mut columns = None;
        if !insert.columns.is_empty() {
            let close = closing(&tokens, i)?;
            columns = Some(offset(close)?);
            i = close + 1;
        }
        let source = offset(i)?;
        if is(i, "overriding") {
            i += 3;
        }
        let from = offset(i)?;
        let mut end = tokens.get(i)?.end;
        while let Some(token) = tokens.get(i) {
            let conflict = insert.on_conflict.is_some() && is(i, "on") && is(i + 1, "conflict");
            if conflict || insert.returning.is_some() && is(i, "returning") {
                break;
            }
            if matches!(token.kind, TokenKind::Byte(b'(' | b'[')) {
                i = closing(&tokens, i)?;
            }
            end = tokens.get(i)?.end;
            i += 1;
        }
        Some(QueryPlaces { insert: word, columns, source, from, to: u32::try_from(end).ok()? })
    }

    /// COPY FROM STDIN that leaves out columns which get values of their own.
    pub(super) fn number_copy(
        &mut self,
        copy: &'a Copy,
        table: &'a Table,
        columns: &[&'a Column],
        added: &[(&'a Column, Vec<Piece>)],
    ) {
        let Some(name) = self.copied_name() else {
            return self
                .refuse("the table of COPY could not be located", "name every column and send its values");
        };
        if copy.default_marker {
            return self.refuse(
                "COPY with the option DEFAULT into a table whose defaults are drawn or differ from call to call",
                "leave the columns out",
            );
        }
        // An unknown column is an error; until the server says so, anything may happen.
        if !copy.columns.is_empty() && columns.len() != copy.columns.len() {
            return self.refuse("COPY names a column that is not in the catalogue", "check its name");
        }
        let typed: Vec<String> =
            columns.iter().map(|c| format!("{} {}", quoted(&c.name), c.type_name)).collect();
        let mut names: Vec<String> = columns.iter().map(|c| quoted(&c.name)).collect();
        names.extend(added.iter().map(|(c, _)| quoted(&c.name)));
        let mut insert = vec![Piece::Text(format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {ROWS}.*",
            qualified(&table.schema, &table.name),
            names.join(", ")
        ))];
        let slots: Vec<Vec<Piece>> = added.iter().map(|(_, pieces)| pieces.clone()).collect();
        insert.extend(self.row_values(&slots));
        let columns: Vec<&Column> = added.iter().map(|(c, _)| *c).collect();
        self.note_draws(&columns, &slots);
        insert.push(Piece::Text(format!(" FROM pg_temp.{ROWS}")));
        self.unreplayable("columns that COPY leaves out get values of their own");
        self.numbers = Some(Numbers::Copy(CopyNumbers {
            create: format!("CREATE TEMPORARY TABLE {ROWS} ({}) ON COMMIT DROP", typed.join(", ")),
            name,
            insert,
        }));
    }

    /// Where the name after COPY stands.
    fn copied_name(&self) -> Option<(u32, u32)> {
        let tokens = self.tokens();
        let mut i = 1;
        // COPY BINARY is an old form.
        if self.word(tokens.get(i)?) == "binary" && tokens.get(i + 1)?.kind != TokenKind::Byte(b'(') {
            i += 1;
        }
        let from = u32::try_from(tokens.get(i)?.start).ok()?;
        while tokens.get(i + 1)?.kind == TokenKind::Byte(b'.') {
            i += 2;
        }
        Some((from, u32::try_from(tokens.get(i)?.end).ok()?))
    }

    /// The conclusion for rows that are numbered: `rewrite` is the statement's own.
    pub(super) fn numbering(
        &self,
        numbers: &Numbers,
        count: Option<Rewrite>,
        numbered: &mut CapturePlan,
        copied: Option<(Vec<Piece>, Vec<Frozen>)>,
    ) -> Option<Numbered> {
        match numbers {
            Numbers::Query(places) => {
                // The text that counts must have every parameter of the statement.
                let (insert, from, to) = (places.insert, places.from, places.to);
                let counted = |at: &u32| *at < insert || (from..to).contains(at);
                let all = self.params.values().all(|at| at.keys().any(counted));
                if all { Some(Numbered::Query { count: count?, unsteady: self.unsteady }) } else { None }
            }
            Numbers::Copy(copy) => {
                let (mut insert, frozen) = copied?;
                insert.push(Piece::Text(numbered.returning.clone()));
                let start = self.layout.position(0);
                let end = self.layout.position(self.layout.end);
                numbered.rewrite = Rewrite { splices: vec![Splice { from: start, to: end, insert }], frozen };
                let name = (self.layout.position(copy.name.0), self.layout.position(copy.name.1));
                let insert = vec![Piece::Text(format!("pg_temp.{ROWS}"))];
                Some(Numbered::Copy {
                    create: copy.create.clone(),
                    copy: Rewrite {
                        splices: vec![Splice { from: name.0, to: name.1, insert }],
                        frozen: Vec::new(),
                    },
                    drop: format!("DROP TABLE pg_temp.{ROWS}"),
                })
            }
        }
    }

    /// The values of a plan that begin blocks; `numbers` are the final numbers of frozen values.
    pub(super) fn blocks(&self, plan: &CapturePlan, numbers: &[Option<u32>]) -> Vec<Numbering> {
        let sequences = &self.catalogue().sequences;
        let column = |frozen: usize| {
            let is_it = |(_, index): &&(String, u32)| {
                numbers.get(*index as usize).copied().flatten().is_some_and(|n| n as usize == frozen)
            };
            let (name, _) = self.drawn.iter().find(is_it)?;
            plan.columns.iter().position(|c| c.name == *name)
        };
        let of = |(frozen, f): (usize, &Frozen)| match &f.kind {
            FrozenKind::NextVal { schema, name } => {
                let found = sequences.iter().find(|s| s.schema == *schema && s.name == *name)?;
                Some(Numbering { frozen, increment: found.increment, column: column(frozen) })
            }
            _ => None,
        };
        plan.rewrite.frozen.iter().enumerate().filter_map(of).collect()
    }

    /// How many columns a query has; None if that is not known.
    pub(super) fn width(&self, query: &Query, withs: &[&With]) -> Option<usize> {
        let mut withs = withs.to_vec();
        withs.extend(&query.with);
        match &query.body {
            Body::Values(rows) => rows.first().map(Vec::len),
            Body::Set { arms, .. } => self.width(arms.first()?, &withs),
            Body::Select(select) => self.select_width(select, &withs),
        }
    }

    fn select_width(&self, select: &Select, withs: &[&With]) -> Option<usize> {
        let mut items = Vec::new();
        let mut known = true;
        for item in &select.from {
            known &= self.item_widths(item, withs, &mut items).is_some();
        }
        let mut width = 0;
        for target in &select.targets {
            width += match &target.value {
                Expr::Column { path, star: true, .. } => {
                    let of = |(alias, _): &&(String, usize)| path.last().is_none_or(|p| p == alias);
                    known.then(|| items.iter().filter(of).map(|(_, width)| width).sum())?
                }
                _ => 1,
            };
        }
        Some(width)
    }

    fn item_widths(&self, item: &From, withs: &[&With], into: &mut Vec<(String, usize)>) -> Option<()> {
        match item {
            From::Table { name, alias, .. } => {
                let shown = alias.as_ref().map_or_else(|| name.last().to_owned(), |a| a.name.clone());
                let mut ctes = withs.iter().rev().flat_map(|w| &w.tables);
                let cte = ctes.find(|t| name.schema().is_none() && t.name == name.last());
                let width = match (cte, self.peek(name)) {
                    (Some(cte), _) if !cte.columns.is_empty() => cte.columns.len(),
                    (Some(cte), _) => match &cte.statement {
                        // It may name itself; what it is made of is not looked up there.
                        Statement::Query(query) => self.width(query, &[])?,
                        _ => return None,
                    },
                    (None, Resolved::Table(table)) => self.table(table).columns.len(),
                    (None, Resolved::View(view)) => self.catalogue().views[view].columns.len(),
                    _ => return None,
                };
                into.push((shown, width));
            }
            From::Query { query, alias, .. } => {
                let Statement::Query(query) = &**query else { return None };
                into.push((alias.as_ref()?.name.clone(), self.width(query, withs)?));
            }
            From::Join { left, right, using, natural, alias, .. } => {
                if !using.is_empty() || *natural || alias.is_some() {
                    return None;
                }
                self.item_widths(left, withs, into)?;
                self.item_widths(right, withs, into)?;
            }
            From::Sample { table, .. } => self.item_widths(table, withs, into)?,
            From::Function { .. } | From::Other { .. } => return None,
        }
        Some(())
    }
}

impl Numbers {
    /// What was to be inserted from the rows of a COPY.
    pub(super) fn copied(&self) -> Option<&[Piece]> {
        match self {
            Numbers::Copy(copy) => Some(&copy.insert),
            Numbers::Query(_) => None,
        }
    }

    /// The places from which the text that counts is made: the word INSERT, and the query.
    pub(super) fn counted(&self) -> Option<(u32, u32, u32)> {
        match self {
            Numbers::Query(places) => Some((places.insert, places.from, places.to)),
            Numbers::Copy(_) => None,
        }
    }
}

/// The alias of the rows that are counted.
pub(super) fn counted_end() -> String {
    format!(") AS {ROWS}")
}

/// A type without length, precision or fields: a value that is cast to it keeps all that it has, so that the column
/// itself still refuses what is too long for it.
fn without_modifiers(type_name: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0;
    for c in type_name.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let (base, array) = match plain.strip_suffix("[]") {
        Some(base) => (base, "[]"),
        None => (plain.as_str(), ""),
    };
    // These mean one character, one bit, and no fields when nothing is said.
    let base = match base {
        "character" | "bpchar" => "pg_catalog.bpchar",
        "bit" => "pg_catalog.\"bit\"",
        base if base.starts_with("interval") => "interval",
        base => base,
    };
    format!("{base}{array}")
}

#[cfg(test)]
mod tests {
    use super::without_modifiers;

    #[test]
    fn types_lose_what_limits_them() {
        let cases = [
            ("integer", "integer"),
            ("character varying(10)", "character varying"),
            ("character(3)", "pg_catalog.bpchar"),
            ("character(3)[]", "pg_catalog.bpchar[]"),
            ("bit(8)", "pg_catalog.\"bit\""),
            ("numeric(10,2)", "numeric"),
            ("timestamp(3) with time zone", "timestamp with time zone"),
            ("interval day to second(2)", "interval"),
            ("shop.\"Mood\"", "shop.\"Mood\""),
        ];
        for (full, plain) in cases {
            assert_eq!(without_modifiers(full), plain);
        }
    }
}
