//! Values that are frozen into the text: the time, and what sequences hand out.

use super::expr::At;
use super::numbering::{Numbers, counted_end};
use super::sameness::strip_casts;
use super::{Analyser, Resolved};
use crate::ast::{Call, ClockKind, Expr, Literal, Name, Target};
use crate::lexer::{Layout, Token, TokenKind, tokens};
use crate::rewrite::{Frozen, FrozenKind, Piece, Rewrite, Splice, quoted};

/// What a clock expression yields.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    Transaction,
    Statement,
    Value { kind: ClockKind, precision: Option<i32> },
}

/// What came of the replacements.
pub(super) struct Finished {
    pub(super) rewrite: Rewrite,
    /// With the time frozen too, for a statement that changes nothing and reads the clock.
    pub(super) in_block: Option<Rewrite>,
    /// For each number of a frozen value that was given out its number in `rewrite`.
    pub(super) numbers: Vec<Option<u32>>,
    /// The text that counts the rows of an INSERT's query.
    pub(super) count: Option<Rewrite>,
    /// What inserts the rows of a COPY, with its frozen values.
    pub(super) copied: Option<(Vec<Piece>, Vec<Frozen>)>,
}

/// Replacements of text, by offsets in the text under analysis.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    list: Vec<Edit>,
    frozen: Vec<Frozen>,
}

#[derive(Clone, Debug)]
struct Edit {
    from: u32,
    to: u32,
    insert: Vec<Piece>,
    /// Needed only if the statement changes something.
    for_writes: bool,
    /// It surrounds the query of an INSERT and is no part of it.
    around: bool,
}

impl Edits {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn add_frozen(&mut self, kind: FrozenKind, type_name: &str) -> u32 {
        // The time is one value however often it is asked for; each draw from a sequence is its own.
        let shared = matches!(kind, FrozenKind::TransactionTimestamp | FrozenKind::StatementTimestamp);
        if let Some(i) = self.frozen.iter().position(|f| shared && f.kind == kind) {
            return i as u32;
        }
        self.frozen.push(Frozen { kind, type_name: type_name.to_owned() });
        (self.frozen.len() - 1) as u32
    }

    pub(super) fn replace(&mut self, from: u32, to: u32, insert: Vec<Piece>, for_writes: bool) {
        self.list.push(Edit { from, to, insert, for_writes, around: false });
    }

    pub(super) fn insert(&mut self, at: u32, insert: Vec<Piece>) {
        self.list.push(Edit { from: at, to: at, insert, for_writes: true, around: false });
    }

    /// Inserts what surrounds the query of an INSERT.
    pub(super) fn surround(&mut self, at: u32, insert: Vec<Piece>) {
        self.list.push(Edit { from: at, to: at, insert, for_writes: true, around: true });
    }

    pub(super) fn kind(&self, index: u32) -> Option<&FrozenKind> {
        self.frozen.get(index as usize).map(|f| &f.kind)
    }

    /// The number of the frozen value that replaces all of what begins at an offset.
    pub(super) fn frozen_at(&self, from: u32) -> Option<u32> {
        self.list.iter().find(|e| e.from == from && e.to > e.from).and_then(|e| match e.insert.first() {
            Some(Piece::Frozen(index)) => Some(*index),
            _ => None,
        })
    }

    /// Whether a frozen value is a number of a sequence; a time is written as the session's settings say.
    pub(super) fn is_number(&self, index: u32) -> bool {
        let is_time =
            |f: &Frozen| matches!(f.kind, FrozenKind::TransactionTimestamp | FrozenKind::StatementTimestamp);
        self.frozen.get(index as usize).is_some_and(|f| !is_time(f))
    }

    /// Whether a frozen value is drawn from a sequence.
    pub(super) fn draws(&self, index: u32) -> bool {
        self.frozen.get(index as usize).is_some_and(|f| matches!(f.kind, FrozenKind::NextVal { .. }))
    }

    pub(super) fn has_text_at(&self, at: u32, text: &str) -> bool {
        self.list
            .iter()
            .any(|e| e.from == at && e.insert.iter().any(|p| matches!(p, Piece::Text(t) if t == text)))
    }

    fn covers(&self, from: u32) -> bool {
        self.list.iter().any(|e| e.from == from && e.to > e.from)
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The rewrites, and for each number that was given out the final one; None if edits overlap.
    pub(super) fn finish(
        mut self,
        sql: &str,
        layout: Layout<'_>,
        writes: bool,
        rows: Option<&Numbers>,
    ) -> Option<Finished> {
        self.list.sort_by_key(|e| e.from);
        let mut numbers: Vec<Option<u32>> = vec![None; self.frozen.len()];
        let mut frozen = Vec::new();
        let list: Vec<&Edit> = self.list.iter().filter(|e| writes || !e.for_writes).collect();
        let splices = self.splices(&list, sql, layout, &mut numbers, &mut frozen)?;
        let rewrite = Rewrite { splices, frozen: frozen.clone() };
        // The values of the plain rewrite come first here as well: whoever knows more values knows those.
        let (mut more, mut all) = (numbers.clone(), frozen.clone());
        let in_block = match !writes && self.list.iter().any(|e| e.for_writes) {
            true => {
                let list: Vec<&Edit> = self.list.iter().collect();
                let splices = self.splices(&list, sql, layout, &mut more, &mut all);
                splices.map(|splices| Rewrite { splices, frozen: all })
            }
            false => None,
        };
        let mut finished = Finished { rewrite, in_block, numbers, count: None, copied: None };
        if let Some(places) = rows.and_then(Numbers::counted) {
            let splices = self.counting(places, sql, layout, &mut finished.numbers, &mut frozen)?;
            finished.count = Some(Rewrite { splices, frozen: frozen.clone() });
        }
        if let Some(pieces) = rows.and_then(Numbers::copied) {
            let insert = self.renumbered(pieces, &mut finished.numbers, &mut frozen);
            finished.copied = Some((insert, frozen));
        }
        Some(finished)
    }

    /// The text that counts the rows of an INSERT's query.
    fn counting(
        &self,
        (insert, from, to): (u32, u32, u32),
        sql: &str,
        layout: Layout<'_>,
        numbers: &mut [Option<u32>],
        frozen: &mut Vec<Frozen>,
    ) -> Option<Vec<Splice>> {
        let own = |from, to, text: String| Edit {
            from,
            to,
            insert: vec![Piece::Text(text)],
            for_writes: true,
            around: true,
        };
        let head = own(0, 0, "SELECT pg_catalog.count(*) FROM (".to_owned());
        let cut = own(insert, from, "(".to_owned());
        let tail = own(to, layout.end, format!("){}", counted_end()));
        let inner =
            self.list.iter().filter(|e| !e.around && (e.to <= insert || e.from >= from && e.to <= to));
        let mut list: Vec<&Edit> = vec![&head, &cut];
        list.extend(inner);
        list.push(&tail);
        list.sort_by_key(|e| e.from);
        self.splices(&list, sql, layout, numbers, frozen)
    }

    /// Pieces with the final numbers of their frozen values.
    fn renumbered(
        &self,
        pieces: &[Piece],
        numbers: &mut [Option<u32>],
        frozen: &mut Vec<Frozen>,
    ) -> Vec<Piece> {
        let number = |piece: &Piece| match piece {
            Piece::Frozen(index) => {
                let slot = &mut numbers[*index as usize];
                Piece::Frozen(*slot.get_or_insert_with(|| {
                    frozen.push(self.frozen[*index as usize].clone());
                    (frozen.len() - 1) as u32
                }))
            }
            Piece::Text(text) => Piece::Text(text.clone()),
        };
        pieces.iter().map(number).collect()
    }

    fn splices(
        &self,
        list: &[&Edit],
        sql: &str,
        layout: Layout<'_>,
        numbers: &mut [Option<u32>],
        frozen: &mut Vec<Frozen>,
    ) -> Option<Vec<Splice>> {
        if list.windows(2).any(|pair| pair[0].to > pair[1].from) {
            return None;
        }
        let mut splices = Vec::with_capacity(list.len());
        for edit in list {
            let mut insert = self.renumbered(&edit.insert, numbers, frozen);
            keep_apart(sql, edit.from, edit.to, &mut insert);
            splices.push(Splice { from: layout.position(edit.from), to: layout.position(edit.to), insert });
        }
        Some(splices)
    }

    /// A text (from an offset on) with the edits applied, as pieces whose frozen values are added to `into`.
    pub(super) fn apply(&self, text: &str, start: usize, into: &mut Edits) -> Vec<Piece> {
        let mut edits: Vec<&Edit> = self.list.iter().collect();
        edits.sort_by_key(|e| e.from);
        let numbers: Vec<u32> =
            self.frozen.iter().map(|f| into.add_frozen(f.kind.clone(), &f.type_name)).collect();
        let mut pieces = Vec::new();
        let mut at = start;
        for edit in edits {
            pieces.push(Piece::Text(text.get(at..edit.from as usize).unwrap_or("").to_owned()));
            pieces.extend(edit.insert.iter().map(|piece| match piece {
                Piece::Frozen(index) => Piece::Frozen(numbers[*index as usize]),
                Piece::Text(text) => Piece::Text(text.clone()),
            }));
            at = edit.to as usize;
        }
        pieces.push(Piece::Text(text.get(at..).unwrap_or("").to_owned()));
        pieces.retain(|p| !matches!(p, Piece::Text(t) if t.is_empty()));
        pieces
    }
}

impl<'a> Analyser<'a> {
    /// Freezes a clock expression that begins at `place`.
    pub(super) fn freeze_clock(&mut self, clock: Clock, place: u32, at: At) {
        if self.scope_is_body(at.scope) {
            self.unreplayable("a view or function reads the clock");
            return;
        }
        if at.relation {
            self.unreplayable("the time stands in FROM");
            return;
        }
        if self.edits.covers(place) {
            return;
        }
        let Some(end) = self.call_end(place) else {
            self.unreplayable("it reads the clock at a place that could not be located");
            return;
        };
        let kind = match clock {
            Clock::Statement => FrozenKind::StatementTimestamp,
            _ => FrozenKind::TransactionTimestamp,
        };
        let index = self.edits.add_frozen(kind, "timestamptz");
        let mut insert = vec![Piece::Frozen(index)];
        if let Clock::Value { kind, precision } = clock {
            let modifier = precision.map_or(String::new(), |p| format!("({p})"));
            let cast = match kind {
                ClockKind::Date => "::date".to_owned(),
                ClockKind::Time => format!("::timetz{modifier}"),
                ClockKind::Timestamp if modifier.is_empty() => String::new(),
                ClockKind::Timestamp => format!("::timestamptz{modifier}"),
                ClockKind::LocalTime => format!("::time{modifier}"),
                ClockKind::LocalTimestamp => format!("::timestamp{modifier}"),
            };
            insert.push(Piece::Text(cast));
        }
        self.frozen_places.insert(place);
        self.edits.replace(place, end, insert, true);
    }

    /// `nextval('sequence')`.
    pub(super) fn next_value(&mut self, call: &'a Call, at: At) {
        let Some(sequence) = self.sequence_argument(call, at) else {
            self.effects.writes = true;
            self.refuse("nextval() of a sequence that is not named by a constant", "name the sequence");
            return;
        };
        if self.scope_is_body(at.scope) {
            self.effects.writes = true;
            self.refuse(
                "nextval() is called inside a function, trigger or view",
                "draw the value in the statement and pass it on",
            );
            return;
        }
        if !at.once || at.relation {
            self.effects.writes = true;
            self.refuse(
                "nextval() may be evaluated more than once here",
                "draw each value by a statement of its own, or insert rows by VALUES",
            );
            return;
        }
        self.freeze_sequence(FrozenOf::Next(sequence), call.at);
    }

    /// `currval('sequence')` and `lastval()`.
    pub(super) fn current_value(&mut self, call: &'a Call, last: bool, at: At) {
        if self.scope_is_body(at.scope) {
            self.unreplayable("currval() or lastval() is called inside a function, trigger or view");
            self.effects.pins_session = true;
            return;
        }
        if at.relation {
            self.refuse("currval() or lastval() stands in FROM", "call it in the target list");
            return;
        }
        if last {
            self.freeze_sequence(FrozenOf::Last, call.at);
            return;
        }
        match self.sequence_argument(call, at) {
            Some(sequence) => self.freeze_sequence(FrozenOf::Current(sequence), call.at),
            None => {
                self.refuse("currval() of a sequence that is not named by a constant", "name the sequence")
            }
        }
    }

    fn freeze_sequence(&mut self, of: FrozenOf, place: u32) {
        if self.edits.covers(place) {
            return;
        }
        let Some(end) = self.call_end(place) else {
            self.effects.writes = true;
            self.refuse("a call of a sequence function could not be located", "simplify the statement");
            return;
        };
        let name = |index: usize| {
            let s = &self.context.catalogue.sequences[index];
            (s.schema.clone(), s.name.clone())
        };
        let kind = match of {
            FrozenOf::Next(index) => {
                let (schema, name) = name(index);
                FrozenKind::NextVal { schema, name }
            }
            FrozenOf::Current(index) => {
                let (schema, name) = name(index);
                FrozenKind::CurrVal { schema, name }
            }
            FrozenOf::Last => FrozenKind::LastVal,
        };
        let index = self.edits.add_frozen(kind, "bigint");
        self.frozen_places.insert(place);
        self.edits.replace(place, end, vec![Piece::Frozen(index)], false);
    }

    /// The sequence that a call's only argument names by a literal.
    pub(super) fn sequence_argument(&mut self, call: &'a Call, at: At) -> Option<usize> {
        // pg_get_expr() shows 'name'::text::regclass for late binding.
        let name = strip_casts(call.arguments.first()?);
        if let Expr::Call(call) = name {
            return self.serial_sequence(call, at);
        }
        let text = self.pinned_text(name, at)?;
        self.sequence_named(text)
    }

    /// The sequence that `pg_get_serial_sequence('table', 'column')` names: that which the column owns.
    fn serial_sequence(&mut self, call: &'a Call, at: At) -> Option<usize> {
        let is_it = matches!(call.name.schema(), None | Some("pg_catalog"))
            && call.name.last() == "pg_get_serial_sequence";
        let [table, column] = call.arguments.as_slice() else { return None };
        if !is_it || call.named {
            return None;
        }
        let (table, column) = (self.pinned_text(table, at)?, self.pinned_text(column, at)?);
        let name = Name::new(crate::rewrite::identifier_parts(table)?);
        let Resolved::Table(table) = self.peek(&name) else { return None };
        let table = self.table(table);
        let owns = |(schema, name, owned): &(String, String, String)| {
            (schema, name, owned) == (&table.schema, &table.name, column)
        };
        self.catalogue().sequences.iter().position(|sequence| sequence.owner.as_ref().is_some_and(owns))
    }

    /// A text literal, on which the class depends.
    fn pinned_text(&mut self, expr: &'a Expr, at: At) -> Option<&'a String> {
        let Expr::Literal { value: Literal::Text(text), at: place } = strip_casts(expr) else { return None };
        if !self.scope_is_body(at.scope) {
            let (index, _) = self.const_at(*place)?;
            self.pinned.insert(index);
        }
        Some(text)
    }

    /// Keeps the names of result columns that frozen values would change.
    pub(super) fn keep_name(&mut self, target: &'a Target, edits_before: usize, at: At) {
        if target.name.is_some() || self.edits.len() == edits_before || self.scope_is_body(at.scope) {
            return;
        }
        let Some((name, place)) = column_name(&target.value) else { return };
        if let Some(end) = self.target_end(place) {
            let text = format!(" AS {}", quoted(&name));
            // Named only when values are frozen: the same condition as that of the first new edit.
            let for_writes = self.edits.list.get(edits_before).is_some_and(|e| e.for_writes);
            self.edits.replace(end, end, vec![Piece::Text(text)], for_writes);
        }
    }

    /// The tokens of the text under analysis.
    pub(super) fn tokens(&self) -> Vec<Token> {
        tokens(self.sql, self.layout)
    }

    pub(super) fn word(&self, token: &Token) -> String {
        self.sql.get(token.start..token.end).unwrap_or("").to_ascii_lowercase()
    }

    /// The end of a call, or of a keyword with an optional precision, that begins at an offset.
    pub(super) fn call_end(&self, place: u32) -> Option<u32> {
        let tokens = self.tokens();
        let mut i = tokens.iter().position(|t| t.start == place as usize)?;
        if !matches!(tokens[i].kind, TokenKind::Word | TokenKind::QuotedWord) {
            return None;
        }
        // A qualified name.
        while tokens.get(i + 1).is_some_and(|t| t.kind == TokenKind::Byte(b'.')) {
            i += 2;
        }
        let mut end = tokens.get(i)?.end;
        if tokens.get(i + 1).is_some_and(|t| t.kind == TokenKind::Byte(b'(')) {
            end = tokens[closing(&tokens, i + 1)?].end;
        }
        u32::try_from(end).ok()
    }

    /// Where the item of a target list ends that contains an offset, be it in parentheses or a CAST.
    fn target_end(&self, place: u32) -> Option<u32> {
        let tokens = self.tokens();
        let mut i = tokens.iter().position(|t| t.start == place as usize)?;
        let mut end = tokens[i].end;
        let mut previous = String::new();
        let mut open = enclosing(&tokens, i);
        while let Some(token) = tokens.get(i) {
            match token.kind {
                TokenKind::Byte(b'(' | b'[') => i = closing(&tokens, i)?,
                TokenKind::Byte(b')') => match open.pop() {
                    // What a subquery's own parentheses enclose is more than this item.
                    Some(opened) if !tokens.get(opened + 1).is_some_and(|t| self.begins_query(t)) => {}
                    _ => break,
                },
                TokenKind::Byte(b',' | b']') => break,
                TokenKind::Word => {
                    let word = self.word(token);
                    let of_expression = word == "from" && previous == "distinct";
                    if ENDS_TARGET.contains(&word.as_str()) && !of_expression {
                        break;
                    }
                    previous = word;
                }
                _ => {}
            }
            end = tokens[i].end;
            i += 1;
        }
        u32::try_from(end).ok()
    }

    fn begins_query(&self, token: &Token) -> bool {
        token.kind == TokenKind::Word
            && matches!(
                self.word(token).as_str(),
                "select" | "with" | "values" | "insert" | "update" | "delete" | "merge"
            )
    }
}

/// The parentheses that are open at a token, the innermost last.
fn enclosing(tokens: &[Token], at: usize) -> Vec<usize> {
    let mut open = Vec::new();
    for (i, token) in tokens.iter().enumerate().take(at) {
        match token.kind {
            TokenKind::Byte(b'(') => open.push(i),
            TokenKind::Byte(b')') => drop(open.pop()),
            _ => {}
        }
    }
    open
}

enum FrozenOf {
    Next(usize),
    Current(usize),
    Last,
}

const ENDS_TARGET: &[&str] = &[
    "from",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
    "union",
    "intersect",
    "except",
    "window",
    "into",
    "returning",
    "on",
];

/// Puts blanks where inserted text would run into the words or quotes beside it.
fn keep_apart(sql: &str, from: u32, to: u32, insert: &mut Vec<Piece>) {
    let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '\'' | '"') || !c.is_ascii();
    let starts = match insert.first() {
        Some(Piece::Text(text)) => text.chars().next(),
        Some(Piece::Frozen(_)) => Some('\''),
        None => None,
    };
    let ends = match insert.last() {
        Some(Piece::Text(text)) => text.chars().next_back(),
        // A type's name follows the value.
        Some(Piece::Frozen(_)) => Some('t'),
        None => None,
    };
    let before = sql.get(..from as usize).and_then(|s| s.chars().next_back());
    let after = sql.get(to as usize..).and_then(|s| s.chars().next());
    if starts.is_some_and(joins) && before.is_some_and(joins) {
        insert.insert(0, Piece::Text(" ".to_owned()));
    }
    if ends.is_some_and(joins) && after.is_some_and(joins) {
        insert.push(Piece::Text(" ".to_owned()));
    }
}

/// The index of the token that closes the parenthesis or bracket at `open`.
pub(super) fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            TokenKind::Byte(b'(' | b'[') => depth += 1,
            TokenKind::Byte(b')' | b']') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// The name that PostgreSQL gives to a result column after the call or clock expression in it, with its offset.
pub(super) fn column_name(expr: &Expr) -> Option<(String, u32)> {
    match expr {
        Expr::Call(call) => Some((call.name.last().to_owned(), call.at)),
        Expr::Cast { value, .. } => column_name(value),
        Expr::Collate { value } => column_name(value),
        Expr::Clock { kind, at, .. } => {
            let name = match kind {
                ClockKind::Date => "current_date",
                ClockKind::Time => "current_time",
                ClockKind::Timestamp => "current_timestamp",
                ClockKind::LocalTime => "localtime",
                ClockKind::LocalTimestamp => "localtimestamp",
            };
            Some((name.to_owned(), *at))
        }
        _ => None,
    }
}
