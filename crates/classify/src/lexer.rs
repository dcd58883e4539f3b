//! One pass over a statement's bytes by PostgreSQL's lexical rules: its constants become placeholders, so that
//! statements that differ only in constants share one normalised text, and with it one parse.
//!
//! Whatever is not copied byte for byte into the normalised text (constants, comments, white space) leaves an *anchor*:
//! the offset at which it ends. The bytes between two anchors are therefore the
//! same in all statements of a class but for the case of letters, and a place in them can be named once for
//! the class, as a [`Position`].
//!
//! Assumed: UTF-8, `standard_conforming_strings = on`. [`Normalised::backslash`] tells when the assumption
//! matters. The rules are those of PostgreSQL's `scan.l`; what it refuses, the parser refuses later.

use std::hash::{BuildHasherDefault, Hasher};

/// The kinds of constants, as far as their spelling shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConstKind {
    /// Decimal digits that fit an int4 (without sign).
    Int4,
    /// Decimal digits that fit an int8 but no int4 (without sign).
    Int8,
    /// Other decimal numbers: larger integers, fractions, exponents.
    Numeric,
    /// Numbers in another base or with underscores.
    OtherNumber,
    /// `'…'` without a quote inside: the value is the text between the quotes.
    Plain,
    /// `'…'` with doubled quotes inside.
    Quoted,
    /// `E'…'`.
    Escape,
    /// `U&'…'`.
    Unicode,
    /// `$tag$…$tag$`.
    Dollar,
    /// Several string literals that lines join into one.
    Joined,
    /// `B'…'` and `X'…'`.
    Bits,
}

impl ConstKind {
    /// The byte that stands for a constant in the normalised text. Constants of one placeholder are
    /// interchangeable to the grammar. None of these bytes can stand outside quotes in the text otherwise.
    #[must_use]
    pub fn placeholder(self) -> u8 {
        match self {
            ConstKind::Int4 => 1,
            ConstKind::Int8 => 2,
            ConstKind::Numeric => 3,
            ConstKind::OtherNumber => 4,
            ConstKind::Bits => 5,
            ConstKind::Plain
            | ConstKind::Quoted
            | ConstKind::Escape
            | ConstKind::Unicode
            | ConstKind::Dollar
            | ConstKind::Joined => 6,
        }
    }

    /// Whether the constant is a character string.
    #[must_use]
    pub fn is_string(self) -> bool {
        self.placeholder() == 6
    }

    /// Whether the constant is a number.
    #[must_use]
    pub fn is_number(self) -> bool {
        self.placeholder() <= 4
    }
}

/// Where a constant stands in the statement, prefix and quotes included: `sql[start..end]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Const {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
    /// How it is written.
    pub kind: ConstKind,
}

impl Const {
    /// The constant as written.
    #[must_use]
    pub fn text<'a>(&self, sql: &'a str) -> &'a str {
        sql.get(self.start as usize..self.end as usize).unwrap_or("")
    }
}

/// A place in all statements of a class: `delta` bytes after an anchor, or after the start for anchor 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// 0 for the start of the string, else 1 + the anchor's index.
    pub anchor: u32,
    /// Bytes after the anchor.
    pub delta: u32,
}

/// Where the constants and anchors of one statement are: what, beside the text, differs within a class.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The constants in order.
    pub consts: &'a [Const],
    /// Ends of everything that the normalised text does not repeat byte for byte, in order.
    pub anchors: &'a [u32],
    /// Offset after the statement's last byte, before its semicolon.
    pub end: u32,
}

impl Layout<'_> {
    /// The place of an offset.
    #[must_use]
    pub fn position(&self, offset: u32) -> Position {
        let before = self.anchors.partition_point(|end| *end <= offset);
        let base = if before == 0 { 0 } else { self.anchors[before - 1] };
        Position { anchor: before as u32, delta: offset - base }
    }

    /// The offset of a place, never beyond the statement's end.
    #[must_use]
    pub fn offset(&self, position: Position) -> usize {
        let base = match position.anchor {
            0 => 0,
            i => self.anchors.get(i as usize - 1).copied().unwrap_or(self.end),
        };
        base.saturating_add(position.delta).min(self.end) as usize
    }

    /// A copy that outlives the scratch buffers.
    #[must_use]
    pub fn to_owned(&self) -> OwnedLayout {
        OwnedLayout { consts: self.consts.into(), anchors: self.anchors.into(), end: self.end }
    }
}

/// A [`Layout`] kept with a prepared statement.
#[derive(Clone, Debug)]
pub struct OwnedLayout {
    consts: Box<[Const]>,
    anchors: Box<[u32]>,
    end: u32,
}

impl OwnedLayout {
    /// The layout, borrowed.
    #[must_use]
    pub fn layout(&self) -> Layout<'_> {
        Layout { consts: &self.consts, anchors: &self.anchors, end: self.end }
    }
}

/// Buffers that [`normalise`] fills and reuses, so that it allocates nothing in the steady state.
#[derive(Default, Debug)]
pub struct Scratch {
    text: Vec<u8>,
    consts: Vec<Const>,
    anchors: Vec<u32>,
}

/// The first statement of a string in normalised form.
#[derive(Clone, Copy, Debug)]
pub struct Normalised<'a> {
    /// A hash of `text`.
    pub hash: u64,
    /// The statement with constants replaced by placeholder bytes, white space and comments by one blank, and
    /// letters outside quotes in lower case.
    pub text: &'a [u8],
    /// Where constants and anchors are in the string.
    pub layout: Layout<'a>,
    /// Offset of the next statement, when another follows the semicolon.
    pub next: Option<u32>,
    /// A string in plain quotes contains a backslash: its meaning depends on `standard_conforming_strings`.
    pub backslash: bool,
    /// A quote or comment has no end: the server will refuse the statement.
    pub unterminated: bool,
}

/// Normalises the first statement of `sql` (up to a top-level semicolon).
///
/// Strings of 4 GiB and more are cut there; the runtime's limit on statements lies far below.
pub fn normalise<'s>(sql: &str, scratch: &'s mut Scratch) -> Normalised<'s> {
    let found = run(sql, scratch, sql.len(), true);
    if !found.atomic {
        return finish(found, scratch);
    }
    // Semicolons inside BEGIN ATOMIC ... END end no statement, and only the grammar knows that END.
    let end = crate::grammar::first_statement_end(sql).unwrap_or(sql.len());
    let mut found = run(sql, scratch, end, false);
    let rest = sql.get(end..).unwrap_or("");
    let skipped = rest.len() - rest.trim_start_matches([';', ' ', '\t', '\n', '\r', '\x0b', '\x0c']).len();
    found.next = (end + skipped < sql.len()).then_some((end + skipped) as u32);
    finish(found, scratch)
}

/// Hashes bytes well enough for tables whose keys are compared in full.
#[must_use]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |h: u64, w: u64| {
        let product = u128::from(h ^ w).wrapping_mul(u128::from(K | 1));
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut hash = K ^ (bytes.len() as u64);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        hash = fold(hash.rotate_left(23), u64::from_le_bytes(chunk.try_into().unwrap_or([0; 8])));
    }
    let mut word = [0; 8];
    let rest = chunks.remainder();
    word[..rest.len()].copy_from_slice(rest);
    fold(fold(hash.rotate_left(23), u64::from_le_bytes(word)), K)
}

/// A hasher for keys that are hashes already.
#[derive(Default, Clone, Copy, Debug)]
pub struct PassHash(u64);

impl Hasher for PassHash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_bytes(bytes);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Builds [`PassHash`].
pub type BuildPassHash = BuildHasherDefault<PassHash>;

struct Found {
    end: usize,
    next: Option<u32>,
    backslash: bool,
    unterminated: bool,
    atomic: bool,
}

fn finish(found: Found, scratch: &Scratch) -> Normalised<'_> {
    Normalised {
        hash: hash_bytes(&scratch.text),
        text: &scratch.text,
        layout: Layout { consts: &scratch.consts, anchors: &scratch.anchors, end: found.end as u32 },
        next: found.next,
        backslash: found.backslash,
        unterminated: found.unterminated,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Space,
    Letter,
    Digit,
    Quote,
    DoubleQuote,
    Dollar,
    Dash,
    Slash,
    Dot,
    Semicolon,
    Open,
    Close,
    Other,
    Control,
}

const BYTES: [Byte; 256] = {
    let mut table = [Byte::Other; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = match i as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => Byte::Space,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80..=0xff => Byte::Letter,
            b'0'..=b'9' => Byte::Digit,
            b'\'' => Byte::Quote,
            b'"' => Byte::DoubleQuote,
            b'$' => Byte::Dollar,
            b'-' => Byte::Dash,
            b'/' => Byte::Slash,
            b'.' => Byte::Dot,
            b';' => Byte::Semicolon,
            b'(' | b'[' => Byte::Open,
            b')' | b']' => Byte::Close,
            0x00..=0x1f | 0x7f => Byte::Control,
            _ => Byte::Other,
        };
        i += 1;
    }
    table
};

fn class(byte: u8) -> Byte {
    BYTES[byte as usize]
}

fn continues_identifier(byte: u8) -> bool {
    matches!(class(byte), Byte::Letter | Byte::Digit | Byte::Dollar)
}

/// The pass. `split` ends the statement at the first semicolon outside parentheses.
fn run(sql: &str, scratch: &mut Scratch, limit: usize, split: bool) -> Found {
    let bytes = &sql.as_bytes()[..limit.min(u32::MAX as usize - 1)];
    let Scratch { text, consts, anchors } = scratch;
    text.clear();
    consts.clear();
    anchors.clear();
    let mut found =
        Found { end: bytes.len(), next: None, backslash: false, unterminated: false, atomic: false };
    let mut depth = 0_u32;
    let mut i = skip_gap(bytes, 0, &mut found.unterminated);
    // Also where there is no gap: the text does not tell whether there is one.
    anchors.push(i as u32);
    while i < bytes.len() {
        let byte = bytes[i];
        match class(byte) {
            Byte::Letter => {
                let start = i;
                i = identifier_end(bytes, i);
                if bytes.get(i) == Some(&b'\'')
                    && i - start == 1
                    && let Some(kind) = match byte {
                        b'e' | b'E' => Some(ConstKind::Escape),
                        b'b' | b'B' | b'x' | b'X' => Some(ConstKind::Bits),
                        _ => None,
                    }
                {
                    let (end, kind) = string_end(bytes, i, kind, &mut found);
                    push_const(text, consts, anchors, start, end, kind);
                    i = end;
                    continue;
                }
                if i - start == 1 && (byte | 0x20) == b'u' && bytes.get(i) == Some(&b'&') {
                    match bytes.get(i + 1) {
                        Some(b'\'') => {
                            let (end, kind) = string_end(bytes, i + 1, ConstKind::Unicode, &mut found);
                            push_const(text, consts, anchors, start, end, kind);
                            i = end;
                            continue;
                        }
                        Some(b'"') => {
                            let end = quoted_end(bytes, i + 1, &mut found.unterminated);
                            text.extend_from_slice(&bytes[start..end]);
                            i = end;
                            continue;
                        }
                        _ => {}
                    }
                }
                text.extend(bytes[start..i].iter().map(u8::to_ascii_lowercase));
                found.atomic |= split && i - start == 6 && is_atomic_body(text);
            }
            Byte::Space => {
                let end = skip_gap(bytes, i, &mut found.unterminated);
                i = gap(end, text, anchors);
            }
            Byte::Dash if bytes.get(i + 1) == Some(&b'-') => {
                let end = skip_gap(bytes, i, &mut found.unterminated);
                i = gap(end, text, anchors);
            }
            Byte::Slash if bytes.get(i + 1) == Some(&b'*') => {
                let end = skip_gap(bytes, i, &mut found.unterminated);
                i = gap(end, text, anchors);
            }
            Byte::Digit => {
                let (end, kind) = number_end(bytes, i);
                push_const(text, consts, anchors, i, end, kind);
                i = end;
            }
            Byte::Dot if bytes.get(i + 1).is_some_and(u8::is_ascii_digit) => {
                let (end, kind) = number_end(bytes, i);
                push_const(text, consts, anchors, i, end, kind);
                i = end;
            }
            Byte::Quote => {
                let (end, kind) = string_end(bytes, i, ConstKind::Plain, &mut found);
                push_const(text, consts, anchors, i, end, kind);
                i = end;
            }
            Byte::DoubleQuote => {
                let end = quoted_end(bytes, i, &mut found.unterminated);
                text.extend_from_slice(&bytes[i..end]);
                i = end;
            }
            Byte::Dollar => {
                if bytes.get(i + 1).is_some_and(u8::is_ascii_digit) {
                    text.push(byte);
                    i += 1;
                    while i < bytes.len() && bytes[i].is_ascii_digit() {
                        text.push(bytes[i]);
                        i += 1;
                    }
                } else if let Some(end) = dollar_end(bytes, i, &mut found.unterminated) {
                    push_const(text, consts, anchors, i, end, ConstKind::Dollar);
                    i = end;
                } else {
                    text.push(byte);
                    i += 1;
                }
            }
            Byte::Semicolon if depth == 0 && !found.atomic => {
                let mut next = i;
                while next < bytes.len() && bytes[next] == b';' {
                    next = skip_gap(bytes, next + 1, &mut found.unterminated);
                }
                let statement_is_empty = text.is_empty();
                if split && !(statement_is_empty && next < bytes.len()) {
                    found.end = i;
                    found.next = (next < bytes.len()).then_some(next as u32);
                    break;
                }
                if split {
                    // Semicolons before the first statement are no statement of their own.
                    anchors.clear();
                    anchors.push(next as u32);
                    i = next;
                    continue;
                }
                text.push(byte);
                i += 1;
            }
            other => {
                match other {
                    Byte::Open => depth += 1,
                    Byte::Close => depth = depth.saturating_sub(1),
                    _ => {}
                }
                // Control bytes are no part of any token; they must not look like placeholders.
                text.push(if other == Byte::Control { 0 } else { byte });
                i += 1;
            }
        }
    }
    if text.last() == Some(&b' ') {
        text.pop();
    }
    found
}

fn push_const(
    text: &mut Vec<u8>,
    consts: &mut Vec<Const>,
    anchors: &mut Vec<u32>,
    start: usize,
    end: usize,
    kind: ConstKind,
) {
    text.push(kind.placeholder());
    consts.push(Const { start: start as u32, end: end as u32, kind });
    anchors.push(end as u32);
}

/// Copies a gap as one blank. Its length is not in the text, so what follows counts from its end, whatever it is here:
/// all statements of a class have the same anchors. (A gap that ends the statement is dropped from the text, and
/// nothing follows that could be placed.)
fn gap(end: usize, text: &mut Vec<u8>, anchors: &mut Vec<u32>) -> usize {
    text.push(b' ');
    anchors.push(end as u32);
    end
}

/// Where white space and comments end.
fn skip_gap(bytes: &[u8], mut i: usize, unterminated: &mut bool) -> usize {
    loop {
        match bytes.get(i) {
            Some(b) if class(*b) == Byte::Space => i += 1,
            Some(b'-') if bytes.get(i + 1) == Some(&b'-') => i = line_end(bytes, i),
            Some(b'/') if bytes.get(i + 1) == Some(&b'*') => i = comment_end(bytes, i, unterminated),
            _ => return i,
        }
    }
}

fn line_end(bytes: &[u8], mut i: usize) -> usize {
    while i < bytes.len() && bytes[i] != b'\n' && bytes[i] != b'\r' {
        i += 1;
    }
    i
}

fn comment_end(bytes: &[u8], start: usize, unterminated: &mut bool) -> usize {
    let mut depth = 0_u32;
    let mut i = start;
    while i < bytes.len() {
        if bytes[i] == b'/' && bytes.get(i + 1) == Some(&b'*') {
            depth += 1;
            i += 2;
        } else if bytes[i] == b'*' && bytes.get(i + 1) == Some(&b'/') {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    *unterminated = true;
    i
}

fn identifier_end(bytes: &[u8], mut i: usize) -> usize {
    while i < bytes.len() && continues_identifier(bytes[i]) {
        i += 1;
    }
    i
}

fn quoted_end(bytes: &[u8], start: usize, unterminated: &mut bool) -> usize {
    let mut i = start + 1;
    while i < bytes.len() {
        if bytes[i] == b'"' {
            if bytes.get(i + 1) == Some(&b'"') {
                i += 2;
                continue;
            }
            return i + 1;
        }
        i += 1;
    }
    *unterminated = true;
    i
}

/// The end of a string literal whose opening quote is at `quote`, with the kind that it turned out to have.
fn string_end(bytes: &[u8], quote: usize, kind: ConstKind, found: &mut Found) -> (usize, ConstKind) {
    let mut kind = kind;
    let mut i = quote + 1;
    loop {
        match bytes.get(i) {
            None => {
                found.unterminated = true;
                return (bytes.len(), kind);
            }
            Some(b'\'') if bytes.get(i + 1) == Some(&b'\'') => {
                if kind == ConstKind::Plain {
                    kind = ConstKind::Quoted;
                }
                i += 2;
            }
            Some(b'\'') => match continuation(bytes, i + 1) {
                Some(next) => {
                    if kind != ConstKind::Bits {
                        // An escape string stays one: the rest is read by its rules.
                        let escapes = kind == ConstKind::Escape;
                        let (end, _) = joined_end(bytes, next, escapes, found);
                        return (end, ConstKind::Joined);
                    }
                    i = next;
                }
                None => return (i + 1, kind),
            },
            Some(b'\\') if kind == ConstKind::Escape => i += 2,
            Some(b'\\') => {
                found.backslash |= matches!(kind, ConstKind::Plain | ConstKind::Quoted);
                i += 1;
            }
            Some(_) => i += 1,
        }
    }
}

fn joined_end(bytes: &[u8], mut i: usize, escapes: bool, found: &mut Found) -> (usize, ConstKind) {
    loop {
        match bytes.get(i) {
            None => {
                found.unterminated = true;
                return (bytes.len(), ConstKind::Joined);
            }
            Some(b'\'') if bytes.get(i + 1) == Some(&b'\'') => i += 2,
            Some(b'\'') => match continuation(bytes, i + 1) {
                Some(next) => i = next,
                None => return (i + 1, ConstKind::Joined),
            },
            Some(b'\\') if escapes => i += 2,
            Some(b'\\') => {
                found.backslash = true;
                i += 1;
            }
            Some(_) => i += 1,
        }
    }
}

/// The offset after the quote that continues a literal ended at `i`: white space with a line end lies between,
/// and after the line end possibly comments of one line.
fn continuation(bytes: &[u8], mut i: usize) -> Option<usize> {
    let mut line_ended = false;
    loop {
        match bytes.get(i)? {
            b'\n' | b'\r' => {
                line_ended = true;
                i += 1;
            }
            b' ' | b'\t' | 0x0b | 0x0c => i += 1,
            b'-' if bytes.get(i + 1) == Some(&b'-') && line_ended => {
                i = line_end(bytes, i);
            }
            b'\'' if line_ended => return Some(i + 1),
            _ => return None,
        }
    }
}

/// The end of a dollar-quoted string that starts at `start`, or None if no tag starts there.
fn dollar_end(bytes: &[u8], start: usize, unterminated: &mut bool) -> Option<usize> {
    let mut i = start + 1;
    while i < bytes.len() && bytes[i] != b'$' {
        let fits = match class(bytes[i]) {
            Byte::Letter => true,
            Byte::Digit => i > start + 1,
            _ => false,
        };
        if !fits {
            return None;
        }
        i += 1;
    }
    if i >= bytes.len() {
        return None;
    }
    let tag = &bytes[start..=i];
    let body = i + 1;
    let mut at = body;
    while at + tag.len() <= bytes.len() {
        if bytes[at] == b'$' && &bytes[at..at + tag.len()] == tag {
            return Some(at + tag.len());
        }
        at += 1;
    }
    *unterminated = true;
    Some(bytes.len())
}

fn number_end(bytes: &[u8], start: usize) -> (usize, ConstKind) {
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    if bytes[start] == b'0'
        && let Some(b'x' | b'X' | b'o' | b'O' | b'b' | b'B') = bytes.get(start + 1)
    {
        let end =
            (start + 2..).find(|i| !bytes.get(*i).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_'));
        return (end.unwrap_or(bytes.len()), ConstKind::OtherNumber);
    }
    let mut i = start;
    let mut odd = false;
    let mut value: Option<u64> = Some(0);
    let mut digits = |i: &mut usize, odd: &mut bool| {
        loop {
            match bytes.get(*i) {
                Some(b) if b.is_ascii_digit() => {
                    value = value
                        .and_then(|v| v.checked_mul(10))
                        .and_then(|v| v.checked_add(u64::from(b - b'0')));
                }
                Some(b'_') if bytes.get(*i + 1).is_some_and(u8::is_ascii_digit) => *odd = true,
                _ => break,
            }
            *i += 1;
        }
    };
    digits(&mut i, &mut odd);
    let integer_end = i;
    // `1..10` is the range of PL/pgSQL: the dots are no decimal point.
    if bytes.get(i) == Some(&b'.') && bytes.get(i + 1) != Some(&b'.') {
        i += 1;
        digits(&mut i, &mut odd);
    }
    if let Some(b'e' | b'E') = bytes.get(i) {
        let signed = matches!(bytes.get(i + 1), Some(b'+' | b'-'));
        let first = i + 1 + usize::from(signed);
        if digit(first) {
            i = first;
            digits(&mut i, &mut odd);
        }
    }
    let kind = match value {
        _ if odd => ConstKind::OtherNumber,
        Some(v) if i == integer_end && v <= i32::MAX as u64 => ConstKind::Int4,
        Some(v) if i == integer_end && v <= i64::MAX as u64 => ConstKind::Int8,
        _ => ConstKind::Numeric,
    };
    (i, kind)
}

/// Whether the text so far is a CREATE whose body begins with BEGIN ATOMIC.
fn is_atomic_body(text: &[u8]) -> bool {
    text.ends_with(b"begin atomic") && text.starts_with(b"create")
}

/// One token of a statement, for the places where text is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
    /// What it is.
    pub kind: TokenKind,
}

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenKind {
    /// An identifier or keyword without quotes.
    Word,
    /// A quoted identifier.
    QuotedWord,
    /// A constant.
    Const,
    /// `$n`.
    Param,
    /// A parenthesis, bracket, comma, dot or another single byte of punctuation or of an operator.
    Byte(u8),
}

/// The tokens of a statement, without white space and comments. Operators come byte by byte.
pub(crate) fn tokens(sql: &str, layout: Layout<'_>) -> Vec<Token> {
    let bytes = &sql.as_bytes()[..(layout.end as usize).min(sql.len())];
    let mut found = Vec::new();
    let mut consts = layout.consts.iter().peekable();
    let mut ignore = false;
    let mut i = skip_gap(bytes, layout.anchors.first().map_or(0, |_| 0), &mut ignore);
    while i < bytes.len() {
        if let Some(constant) = consts.next_if(|c| c.start as usize == i) {
            let end = constant.end as usize;
            found.push(Token { start: i, end, kind: TokenKind::Const });
            i = skip_gap(bytes, end, &mut ignore);
            continue;
        }
        let (end, kind) = match class(bytes[i]) {
            Byte::Letter => {
                let end = identifier_end(bytes, i);
                let unicode = end - i == 1
                    && (bytes[i] | 0x20) == b'u'
                    && bytes.get(end) == Some(&b'&')
                    && bytes.get(end + 1) == Some(&b'"');
                if unicode {
                    (quoted_end(bytes, end + 1, &mut ignore), TokenKind::QuotedWord)
                } else {
                    (end, TokenKind::Word)
                }
            }
            Byte::DoubleQuote => (quoted_end(bytes, i, &mut ignore), TokenKind::QuotedWord),
            Byte::Dollar => {
                let digits = bytes[i + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
                (i + 1 + digits, TokenKind::Param)
            }
            _ => (i + 1, TokenKind::Byte(bytes[i])),
        };
        found.push(Token { start: i, end, kind });
        i = skip_gap(bytes, end, &mut ignore);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_one_text_have_their_tokens_at_the_same_places() {
        let texts = [
            "SELECT 1, now() FROM t WHERE a = 'x'",
            "  select 22, now()  from /* FROM */ t -- nested /*\n where a = $$ x $$ ",
            ";; SELECT\n1,\tnow() FROM t WHERE a = E'x';",
        ];
        let mut first: Option<(Vec<u8>, Vec<Position>)> = None;
        for text in texts {
            let mut scratch = Scratch::default();
            let normalised = normalise(text, &mut scratch);
            let layout = normalised.layout;
            let begin = |token: &Token| layout.position(token.start as u32);
            let starts = tokens(text, layout);
            let starts = starts.iter().filter(|token| token.kind != TokenKind::Byte(b';')).map(begin);
            let found = (normalised.text.to_vec(), starts.collect());
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{text}");
        }
    }
}
