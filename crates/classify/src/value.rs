//! Constants and parameters as values of items: the canonical forms under which a type's equality is equality
//! of bytes. Whatever is not surely canonical has no value, and the item leaves its column out.

use crate::catalogue::Column;
use crate::lexer::{Const, ConstKind};
use onecopy_core::ValueHash;
use std::borrow::Cow;

/// OIDs of built-in types (`pg_type.dat`; fixed since PostgreSQL 8).
pub mod oid {
    /// bool
    pub const BOOL: u32 = 16;
    /// bytea
    pub const BYTEA: u32 = 17;
    /// name
    pub const NAME: u32 = 19;
    /// int8
    pub const INT8: u32 = 20;
    /// int2
    pub const INT2: u32 = 21;
    /// int4
    pub const INT4: u32 = 23;
    /// text
    pub const TEXT: u32 = 25;
    /// oid
    pub const OID: u32 = 26;
    /// float4
    pub const FLOAT4: u32 = 700;
    /// float8
    pub const FLOAT8: u32 = 701;
    /// json
    pub const JSON: u32 = 114;
    /// jsonb
    pub const JSONB: u32 = 3802;
    /// unknown
    pub const UNKNOWN: u32 = 705;
    /// bpchar
    pub const BPCHAR: u32 = 1042;
    /// varchar
    pub const VARCHAR: u32 = 1043;
    /// date
    pub const DATE: u32 = 1082;
    /// time
    pub const TIME: u32 = 1083;
    /// timestamp
    pub const TIMESTAMP: u32 = 1114;
    /// timestamptz
    pub const TIMESTAMPTZ: u32 = 1184;
    /// timetz
    pub const TIMETZ: u32 = 1266;
    /// numeric
    pub const NUMERIC: u32 = 1700;
    /// uuid
    pub const UUID: u32 = 2950;
    /// int2[]
    pub const INT2_ARRAY: u32 = 1005;
    /// int4[]
    pub const INT4_ARRAY: u32 = 1007;
    /// text[]
    pub const TEXT_ARRAY: u32 = 1009;
    /// bpchar[]
    pub const BPCHAR_ARRAY: u32 = 1014;
    /// varchar[]
    pub const VARCHAR_ARRAY: u32 = 1015;
    /// int8[]
    pub const INT8_ARRAY: u32 = 1016;
    /// timetz[]
    pub const TIMETZ_ARRAY: u32 = 1270;
    /// uuid[]
    pub const UUID_ARRAY: u32 = 2951;
}

/// A parameter as the client bound it.
#[derive(Clone, Copy, Debug)]
pub struct ParamValue<'a> {
    /// The type's OID as the client declared it at Parse, 0 if it left it open.
    pub type_oid: u32,
    /// Format code 1 instead of 0.
    pub binary: bool,
    /// None is NULL.
    pub bytes: Option<&'a [u8]>,
}

/// The name of a built-in type that clients declare by number, and whose arrays are written as those of any other.
#[must_use]
pub fn type_name(oid: u32) -> Option<&'static str> {
    Some(match oid {
        16 => "bool",
        17 => "bytea",
        20 => "int8",
        21 => "int2",
        23 => "int4",
        25 => "text",
        114 => "json",
        700 => "float4",
        701 => "float8",
        1042 => "bpchar",
        1043 => "varchar",
        1082 => "date",
        1083 => "time",
        1114 => "timestamp",
        1184 => "timestamptz",
        1186 => "interval",
        1700 => "numeric",
        2950 => "uuid",
        3802 => "jsonb",
        _ => return None,
    })
}

/// The parameters of one execution. Text is UTF-8.
pub trait Params {
    /// The parameter `$number` (from 1), or None if there is none.
    fn param(&self, number: u32) -> Option<ParamValue<'_>>;
}

/// No parameters: a simple Query.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoParams;

impl Params for NoParams {
    fn param(&self, _: u32) -> Option<ParamValue<'_>> {
        None
    }
}

impl Params for [ParamValue<'_>] {
    fn param(&self, number: u32) -> Option<ParamValue<'_>> {
        self.get((number as usize).checked_sub(1)?).copied()
    }
}

impl Params for Vec<ParamValue<'_>> {
    fn param(&self, number: u32) -> Option<ParamValue<'_>> {
        self.as_slice().param(number)
    }
}

/// How values of a column are made canonical.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Canon {
    /// int2, int4, int8: the number. Holds the least type's size in bytes.
    Integer,
    /// numeric with at most `scale` fractional digits stored (None: any).
    Numeric {
        scale: Option<u16>,
    },
    /// text and varchar under a deterministic collation: the bytes. `length_max` counts characters.
    Text {
        length_max: Option<u32>,
    },
    /// char(n): the bytes without trailing blanks.
    Blank {
        length_max: Option<u32>,
    },
    Uuid,
    Bytea,
    Bool,
    /// An enumeration's label.
    Label,
}

impl Canon {
    /// The canonical form of a column's values, or None if its type has none here.
    pub(crate) fn of(column: &Column) -> Option<Canon> {
        // atttypmod of the character types is the length plus the size of a header, 4.
        let length_max = (column.modifier >= 4).then(|| (column.modifier - 4) as u32);
        if column.type_kind == 'e' {
            return Some(Canon::Label);
        }
        match column.type_oid {
            oid::INT2 | oid::INT4 | oid::INT8 => Some(Canon::Integer),
            oid::NUMERIC => Some(Canon::Numeric {
                // The scale is the low 11 bits, signed; negative scales round integers.
                scale: match column.modifier {
                    m if m < 4 => None,
                    m => Some(match ((m - 4) & 0x7ff) as u16 {
                        s if s & 0x400 != 0 => return None,
                        s => s,
                    }),
                },
            }),
            oid::TEXT | oid::VARCHAR if column.deterministic => Some(Canon::Text { length_max }),
            oid::BPCHAR if column.deterministic => Some(Canon::Blank { length_max }),
            oid::UUID => Some(Canon::Uuid),
            oid::BYTEA => Some(Canon::Bytea),
            oid::BOOL => Some(Canon::Bool),
            _ => None,
        }
    }

    /// Whether equality between columns of two forms carries a value from one to the other.
    pub(crate) fn same_family(self, other: Canon) -> bool {
        use Canon::{Blank, Text};
        match (self, other) {
            (Canon::Numeric { .. }, Canon::Numeric { .. }) => true,
            (Text { .. } | Blank { .. }, Text { .. } | Blank { .. }) => true,
            // Labels of different enumerations cannot be compared at all.
            (a, b) => a == b,
        }
    }
}

/// What a value is for: a comparison, or storing, which may change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Use {
    Compare,
    Store,
}

/// A value found at bind time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Null,
    Value(ValueHash),
    /// Not surely canonical.
    Open,
}

/// What stands for NULL in the item of an inserted row: no comparison looks for it.
pub(crate) fn null_hash() -> ValueHash {
    ValueHash(0x006e_756c_6c00_0001)
}

/// The value of text that the type's input function would read.
pub(crate) fn of_text(text: &str, canon: Canon, usage: Use) -> Found {
    let value = match canon {
        Canon::Integer => integer(text).map(ValueHash::of_integer),
        Canon::Numeric { scale } => numeric(text, scale, usage),
        Canon::Text { length_max } => {
            let fits = usage == Use::Compare || length_max.is_none_or(|max| fits(text, max));
            fits.then(|| ValueHash::of_bytes(text.as_bytes()))
        }
        Canon::Blank { length_max } => {
            let text = text.trim_end_matches(' ');
            let fits = usage == Use::Compare || length_max.is_none_or(|max| fits(text, max));
            fits.then(|| ValueHash::of_bytes(text.as_bytes()))
        }
        Canon::Uuid => uuid(text).map(|bytes| ValueHash::of_bytes(&bytes)),
        Canon::Bytea => hex_bytea(text).map(|bytes| ValueHash::of_bytes(&bytes)),
        Canon::Bool => boolean(text).map(|b| ValueHash::of_integer(i64::from(b))),
        Canon::Label => Some(ValueHash::of_bytes(text.as_bytes())),
    };
    value.map_or(Found::Open, Found::Value)
}

/// The value of an integer constant.
pub(crate) fn of_integer(value: i64, canon: Canon) -> Found {
    match canon {
        Canon::Integer => Found::Value(ValueHash::of_integer(value)),
        Canon::Numeric { .. } => Found::Value(numeric_hash(&value.to_string())),
        _ => Found::Open,
    }
}

/// The value of a constant of the statement; `negated` if a minus sign stands before it.
pub(crate) fn of_const(sql: &str, constant: Const, negated: bool, canon: Canon, usage: Use) -> Found {
    let text = constant.text(sql);
    match constant.kind {
        ConstKind::Int4 | ConstKind::Int8 => match (canon, integer(text)) {
            (_, Some(value)) => of_integer(if negated { value.wrapping_neg() } else { value }, canon),
            _ => Found::Open,
        },
        ConstKind::Numeric if matches!(canon, Canon::Numeric { .. }) => {
            if negated {
                of_text(&format!("-{text}"), canon, usage)
            } else {
                of_text(text, canon, usage)
            }
        }
        _ if negated => Found::Open,
        _ => match string_value(sql, constant) {
            Some(text) => of_text(&text, canon, usage),
            None => Found::Open,
        },
    }
}

/// The value of a parameter. `inferred` is the type that the server will give to a parameter whose type the client
/// left open, 0 if that is not certain.
pub(crate) fn of_param(param: ParamValue<'_>, inferred: u32, canon: Canon, usage: Use) -> Found {
    let Some(bytes) = param.bytes else { return Found::Null };
    let type_oid = match param.type_oid {
        0 | oid::UNKNOWN => inferred,
        declared => declared,
    };
    let text = || std::str::from_utf8(bytes).ok();
    match (canon, type_oid) {
        (Canon::Integer | Canon::Numeric { .. }, oid::INT2 | oid::INT4 | oid::INT8) => {
            let value = if param.binary { binary_integer(bytes) } else { text().and_then(integer) };
            value.map_or(Found::Open, |v| of_integer(v, canon))
        }
        (Canon::Numeric { .. }, oid::NUMERIC) if !param.binary => {
            text().map_or(Found::Open, |t| of_text(t, canon, usage))
        }
        (Canon::Text { .. }, oid::TEXT | oid::VARCHAR) => {
            text().map_or(Found::Open, |t| of_text(t, canon, usage))
        }
        (Canon::Blank { .. }, oid::TEXT | oid::VARCHAR | oid::BPCHAR) => {
            text().map_or(Found::Open, |t| of_text(t, canon, usage))
        }
        (Canon::Uuid, oid::UUID) if param.binary && bytes.len() == 16 => {
            Found::Value(ValueHash::of_bytes(bytes))
        }
        (Canon::Bytea, oid::BYTEA) if param.binary => Found::Value(ValueHash::of_bytes(bytes)),
        (Canon::Uuid, oid::UUID) | (Canon::Bytea, oid::BYTEA) | (Canon::Bool, oid::BOOL) if !param.binary => {
            text().map_or(Found::Open, |t| of_text(t, canon, usage))
        }
        (Canon::Bool, oid::BOOL) => match bytes {
            [0] => Found::Value(ValueHash::of_integer(0)),
            [1] => Found::Value(ValueHash::of_integer(1)),
            _ => Found::Open,
        },
        // A label's OID is the replica's own; the server resolves it, and both formats are the label's text.
        (Canon::Label, type_oid) if type_oid >= FIRST_USER_OID => {
            text().map_or(Found::Open, |t| of_text(t, canon, usage))
        }
        _ => Found::Open,
    }
}

/// OIDs below this belong to the system (`FirstNormalObjectId`).
pub(crate) const FIRST_USER_OID: u32 = 16384;

/// The elements of an array parameter, or None if they are not certain. NULL elements match nothing.
pub(crate) fn array_elements(
    param: ParamValue<'_>,
    inferred: u32,
    canon: Canon,
    count_max: usize,
) -> Option<Vec<ValueHash>> {
    let bytes = param.bytes?;
    let type_oid = if matches!(param.type_oid, 0 | oid::UNKNOWN) { inferred } else { param.type_oid };
    let element_oid = match type_oid {
        oid::INT2_ARRAY => oid::INT2,
        oid::INT4_ARRAY => oid::INT4,
        oid::INT8_ARRAY => oid::INT8,
        oid::TEXT_ARRAY => oid::TEXT,
        oid::VARCHAR_ARRAY => oid::VARCHAR,
        oid::BPCHAR_ARRAY => oid::BPCHAR,
        oid::UUID_ARRAY => oid::UUID,
        _ => return None,
    };
    let (elements, element_oid) = if param.binary {
        binary_array(bytes, count_max)?
    } else {
        (text_array(std::str::from_utf8(bytes).ok()?, count_max)?, element_oid)
    };
    let mut values = Vec::with_capacity(elements.len());
    for element in elements {
        let element = ParamValue { type_oid: element_oid, binary: param.binary, bytes: element.as_deref() };
        match of_param(element, 0, canon, Use::Compare) {
            Found::Value(value) => values.push(value),
            Found::Null => {}
            Found::Open => return None,
        }
    }
    Some(values)
}

/// The elements of an array written as a constant (`'{1,2}'`).
pub(crate) fn const_array(text: &str, canon: Canon, count_max: usize) -> Option<Vec<ValueHash>> {
    let mut values = Vec::new();
    for element in text_array(text, count_max)? {
        let Some(element) = element else { continue };
        match of_text(std::str::from_utf8(&element).ok()?, canon, Use::Compare) {
            Found::Value(value) => values.push(value),
            _ => return None,
        }
    }
    Some(values)
}

/// The value of a string constant, or None where reading it needs more than quotes and simple escapes.
pub(crate) fn string_value(sql: &str, constant: Const) -> Option<Cow<'_, str>> {
    let text = constant.text(sql);
    match constant.kind {
        ConstKind::Plain => Some(Cow::Borrowed(text.get(1..text.len().checked_sub(1)?)?)),
        ConstKind::Quoted => Some(Cow::Owned(text.get(1..text.len().checked_sub(1)?)?.replace("''", "'"))),
        ConstKind::Escape => {
            let inner = text.get(2..text.len().checked_sub(1)?)?;
            let unescaped = !inner.contains(['\\', '\'']);
            unescaped.then_some(Cow::Borrowed(inner))
        }
        ConstKind::Dollar => {
            let tag = text[1..].find('$')? + 2;
            Some(Cow::Borrowed(text.get(tag..text.len().checked_sub(tag)?)?))
        }
        _ => None,
    }
}

/// Whether text may mean a moment that depends on the clock when read as a date or time, or as something that holds some:
/// `now`, `today`, `tomorrow`, `yesterday`.
pub(crate) fn has_clock_word(text: &str) -> bool {
    // Arrays, ranges and rows hold any number of dates.
    let begin = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
    let is_short = || {
        // The longest date that PostgreSQL reads is MAXDATELEN = 128 bytes, blanks and punctuation around it not counted.
        let counted = text.bytes().filter(|byte| !byte.is_ascii_punctuation() && !byte.is_ascii_whitespace());
        counted.take(161).count() <= 160
    };
    let mut search = ClockWords::default();
    (begin.starts_with(['{', '[', '(']) || is_short()) && {
        text.bytes().for_each(|byte| search.read(byte));
        search.finish()
    }
}

/// A search for words that name a moment by the clock, byte by byte: the one that everything uses which looks for them in
/// values.
///
/// Arrays, ranges and rows are read without their quotes and backslashes, which may stand inside of a word.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockWords {
    as_written: Word,
    unquoted: Word,
    found: bool,
}

/// The letters before: more than there is room for are no such word.
#[derive(Clone, Debug, Default)]
struct Word {
    letters: [u8; CLOCK_WORD_LEN_MAX],
    len: usize,
}

impl Word {
    fn push(&mut self, letter: u8) {
        if let Some(place) = self.letters.get_mut(self.len) {
            *place = letter;
        }
        self.len += 1;
    }

    /// Ends it; true if it is one of those.
    fn end(&mut self) -> bool {
        let len = std::mem::take(&mut self.len);
        self.letters.get(..len).is_some_and(is_clock_word)
    }
}

impl ClockWords {
    /// Reads the next byte.
    pub(crate) fn read(&mut self, byte: u8) {
        if byte.is_ascii_alphabetic() {
            self.as_written.push(byte);
            self.unquoted.push(byte);
            return;
        }
        self.found |= self.as_written.end();
        if !matches!(byte, b'"' | b'\\') {
            self.found |= self.unquoted.end();
        }
    }

    /// The value ends here; true if a word was found in it or in an earlier one.
    pub(crate) fn finish(&mut self) -> bool {
        self.found |= self.as_written.end() | self.unquoted.end();
        self.found
    }

    /// Whether a word was found so far.
    pub(crate) fn found(&self) -> bool {
        self.found
    }
}

const CLOCK_WORDS: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];
/// The longest of them, in letters.
const CLOCK_WORD_LEN_MAX: usize = 9;

/// Text in which a word stands that names a moment by the clock, as a regular expression whose case does not count: what
/// [`ClockWords`] finds, and more.
pub(crate) fn clock_words_pattern() -> String {
    let split = |word: &str| word.chars().map(String::from).collect::<Vec<_>>().join("[[:punct:]]*");
    format!("(^|[^a-z])({})([^a-z]|$)", CLOCK_WORDS.map(split).join("|"))
}

/// Built-in types whose values are OIDs that are shown as names: the OID of the type, that of its arrays, and how SQL writes
/// both.
const NAME_TYPES: [(u32, u32, &str, &str); 11] = [
    (24, 1008, "regproc", "regproc[]"),
    (2202, 2207, "regprocedure", "regprocedure[]"),
    (2203, 2208, "regoper", "regoper[]"),
    (2204, 2209, "regoperator", "regoperator[]"),
    (2205, 2210, "regclass", "regclass[]"),
    (2206, 2211, "regtype", "regtype[]"),
    (3734, 3735, "regconfig", "regconfig[]"),
    (3769, 3770, "regdictionary", "regdictionary[]"),
    (4089, 4090, "regnamespace", "regnamespace[]"),
    (4096, 4097, "regrole", "regrole[]"),
    (4191, 4192, "regcollation", "regcollation[]"),
];

/// The name of a built-in type whose values are OIDs that are shown as names, or an array of such, as SQL writes it.
#[must_use]
pub fn name_type(oid: u32) -> Option<&'static str> {
    NAME_TYPES.iter().find_map(|(of, of_array, name, array)| match oid {
        _ if oid == *of => Some(*name),
        _ if oid == *of_array => Some(*array),
        _ => None,
    })
}

/// Whether `pg_catalog` has such a type of a name, which may be that of an array (`_regclass`).
pub(crate) fn names_name_type(name: &str) -> bool {
    let element = name.strip_prefix('_').unwrap_or(name);
    NAME_TYPES.iter().any(|(_, _, known, _)| *known == element)
}

/// The OIDs of such types, with commas between them.
pub(crate) fn name_type_oids() -> String {
    NAME_TYPES.map(|(oid, ..)| oid.to_string()).join(", ")
}

/// Whether text that is read as a time with time zone, or as several, may leave the zone's offset to the session's time zone and
/// the present day, as `12:00` does and `12:00 Europe/Paris`.
pub(crate) fn lacks_offset(text: &str) -> bool {
    let text = text.replace(['\\', '"', '{', '}'], "");
    let has_offset = |time: &str| {
        let upper = time.trim().to_ascii_uppercase();
        let signed =
            upper.as_bytes().windows(2).any(|w| matches!(w[0], b'+' | b'-') && w[1].is_ascii_digit());
        signed || ["Z", "UTC", "GMT"].iter().any(|zone| upper.ends_with(zone))
    };
    !text.split(',').all(has_offset)
}

/// Whether text that is read as the name of an object, or as several, may hold a number in the place of one: as 16384 does,
/// and `{16384,child}`.
pub(crate) fn has_number(text: &str) -> bool {
    let text = text.replace(['\\', '"'], "");
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii();
    let mut words = text.split(|c: char| !is_name(c));
    words.any(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a word names a moment by the clock, in any case.
pub(crate) fn is_clock_word(word: &[u8]) -> bool {
    CLOCK_WORDS.iter().any(|w| word.eq_ignore_ascii_case(w.as_bytes()))
}

/// Whether values of a built-in type are, or consist of, dates or times of day.
pub(crate) fn holds_moments(type_oid: u32) -> bool {
    match type_oid {
        oid::DATE | oid::TIME | oid::TIMETZ | oid::TIMESTAMP | oid::TIMESTAMPTZ => true,
        // Their arrays.
        1182 | 1183 | 1270 | 1115 | 1185 => true,
        // tsrange, tstzrange, daterange, each followed by its array; then multiranges, and their arrays.
        3908..=3913 | 4533..=4535 | 6152 | 6153 | 6155 => true,
        _ => false,
    }
}

/// Whether a statement may hold a literal that names a moment by the clock: one that a server reads when it prepares the
/// statement, and then keeps.
#[must_use]
pub fn may_keep_moment(sql: &str) -> bool {
    let has_word = |text: &str| {
        let mut search = ClockWords::default();
        text.bytes().for_each(|byte| search.read(byte));
        search.finish()
    };
    // Where quotes may be something else, the whole text is looked at.
    let is_plain = !["--", "/*", "\\", "$$"].iter().any(|mark| sql.contains(mark));
    let first = usize::from(is_plain);
    (sql.contains('\'') || sql.contains("$$")) && sql.split('\'').skip(first).step_by(1 + first).any(has_word)
}

/// Whether text that is a date or time as a whole names a moment by the clock, as `today 12:00 UTC` does. Prose in which
/// such a word stands does not.
pub(crate) fn names_moment(text: &str) -> bool {
    let is_part = |word: &str| {
        let known = [
            "now",
            "today",
            "tomorrow",
            "yesterday",
            "allballs",
            "infinity",
            "epoch",
            "null",
            "am",
            "pm",
            "z",
        ];
        known.iter().any(|known| word.eq_ignore_ascii_case(known))
            || word.contains('/')
            || (3..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase())
    };
    let unquoted = text.replace(['\\', '"'], "");
    let words = unquoted.split(|c: char| !c.is_ascii_alphabetic() && c != '/' && c != '_');
    has_clock_word(text) && words.filter(|word| !word.is_empty()).all(is_part)
}

pub(crate) fn integer(text: &str) -> Option<i64> {
    let text = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn binary_integer(bytes: &[u8]) -> Option<i64> {
    match *bytes {
        [a, b] => Some(i64::from(i16::from_be_bytes([a, b]))),
        [a, b, c, d] => Some(i64::from(i32::from_be_bytes([a, b, c, d]))),
        [a, b, c, d, e, f, g, h] => Some(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

/// Plain decimals only: no exponent, NaN or infinity.
fn numeric(text: &str, scale: Option<u16>, usage: Use) -> Option<ValueHash> {
    let text = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    // Storing rounds to the column's scale.
    if usage == Use::Store && scale.is_some_and(|s| fraction.len() > usize::from(s)) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let negative = text.starts_with('-') && !(whole.is_empty() && fraction.is_empty());
    let mut canonical = String::with_capacity(text.len() + 1);
    if negative {
        canonical.push('-');
    }
    canonical.push_str(if whole.is_empty() { "0" } else { whole });
    if !fraction.is_empty() {
        canonical.push('.');
        canonical.push_str(fraction);
    }
    Some(numeric_hash(&canonical))
}

fn numeric_hash(canonical: &str) -> ValueHash {
    ValueHash::of_bytes(canonical.as_bytes())
}

fn fits(text: &str, length_max: u32) -> bool {
    text.len() <= length_max as usize || text.chars().count() <= length_max as usize
}

/// The forms that PostgreSQL reads: hyphens after any group of four digits, braces around all.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let text = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}')?,
        None => text,
    };
    let mut bytes = [0_u8; 16];
    let mut count = 0;
    for b in text.bytes() {
        let digit = match b {
            b'-' if count > 0 && count % 4 == 0 => continue,
            b => (b as char).to_digit(16)? as u8,
        };
        if count == 32 {
            return None;
        }
        bytes[count / 2] = bytes[count / 2] << 4 | digit;
        count += 1;
    }
    (count == 32).then_some(bytes)
}

fn hex_bytea(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?;
    if digits.len() % 2 != 0 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let nibble = |b: u8| (b as char).to_digit(16).unwrap_or(0) as u8;
    Some(digits.as_bytes().chunks_exact(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect())
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "t" | "true" | "y" | "yes" | "on" | "1" => Some(true),
        "f" | "false" | "n" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

type Elements<'a> = Vec<Option<Cow<'a, [u8]>>>;

/// One-dimensional arrays of simple elements.
fn text_array(text: &str, count_max: usize) -> Option<Elements<'static>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    if inner.trim().is_empty() {
        return Some(elements);
    }
    let bytes = inner.as_bytes();
    let mut i = 0;
    loop {
        if elements.len() >= count_max {
            return None;
        }
        while bytes.get(i).is_some_and(|b| b.is_ascii_whitespace()) {
            i += 1;
        }
        let mut element = Vec::new();
        if bytes.get(i) == Some(&b'"') {
            i += 1;
            loop {
                match *bytes.get(i)? {
                    b'"' => break,
                    b'\\' => {
                        element.push(*bytes.get(i + 1)?);
                        i += 2;
                    }
                    b => {
                        element.push(b);
                        i += 1;
                    }
                }
            }
            i += 1;
            while bytes.get(i).is_some_and(|b| b.is_ascii_whitespace()) {
                i += 1;
            }
            elements.push(Some(Cow::Owned(element)));
        } else {
            while let Some(b) = bytes.get(i) {
                match b {
                    b',' => break,
                    b'{' | b'}' | b'"' | b'\\' => return None,
                    b => element.push(*b),
                }
                i += 1;
            }
            let end = element.iter().rposition(|b| !b.is_ascii_whitespace())? + 1;
            element.truncate(end);
            let null = element.eq_ignore_ascii_case(b"null");
            elements.push((!null).then_some(Cow::Owned(element)));
        }
        match bytes.get(i) {
            None => return Some(elements),
            Some(b',') => i += 1,
            Some(_) => return None,
        }
    }
}

/// The elements of an array in binary form, with their type's OID.
fn binary_array(bytes: &[u8], count_max: usize) -> Option<(Elements<'_>, u32)> {
    let word = |at: usize| -> Option<i32> {
        Some(i32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let element_oid = word(8)? as u32;
    if word(0)? == 0 {
        return Some((Vec::new(), element_oid));
    }
    if word(0)? != 1 {
        return None;
    }
    let count = usize::try_from(word(12)?).ok()?;
    if count > count_max {
        return None;
    }
    let mut elements = Vec::with_capacity(count);
    let mut at = 20;
    for _ in 0..count {
        match word(at)? {
            -1 => {
                elements.push(None);
                at += 4;
            }
            len => {
                let start = at + 4;
                let end = start.checked_add(usize::try_from(len).ok()?)?;
                elements.push(Some(Cow::Borrowed(bytes.get(start..end)?)));
                at = end;
            }
        }
    }
    (at == bytes.len()).then_some((elements, element_oid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_times_are_seen() {
        for (text, lacks) in [
            ("12:00", true),
            ("12:00 Europe/Paris", true),
            ("12:00+01", false),
            ("12:00:00.5 -05:30", false),
            ("12:00z", false),
            ("12:00 UTC", false),
            ("{12:00+01,13:00+01}", false),
            ("{12:00+01,13:00}", true),
            ("", true),
        ] {
            assert_eq!(lacks_offset(text), lacks, "{text}");
        }
    }

    #[test]
    fn numbers_are_told_from_names() {
        for (text, found) in [
            ("16384", true),
            (" 16384 ", true),
            ("{child,16384}", true),
            ("{\"163\\84\"}", true),
            ("(child,16384)", true),
            ("child", false),
            ("public.child_2", false),
            ("f(int4)", false),
            ("-", false),
            ("t2$3", false),
        ] {
            assert_eq!(has_number(text), found, "{text}");
        }
    }

    #[test]
    fn words_for_moments_are_found_wherever_a_server_reads_them() {
        let (blanks, prose) = (" ".repeat(200), "it is as it was ".repeat(20));
        for (text, found) in [
            ("now".to_owned(), true),
            (format!("{blanks}now"), true),
            (format!("Today{blanks}"), true),
            (format!("{}now", "!.-".repeat(100)), true),
            ("{2020-01-01,now}".to_owned(), true),
            ("\u{b}{now}".to_owned(), true),
            (r"{no\w}".to_owned(), true),
            (r#"{"n\ow"}"#.to_owned(), true),
            (r#"[n"o"w,)"#.to_owned(), true),
            (r#"(1,n""ow)"#.to_owned(), true),
            ("nowhere".to_owned(), false),
            ("2020-01-01".to_owned(), false),
            // Longer than any date.
            (format!("{prose}now"), false),
        ] {
            assert_eq!(has_clock_word(&text), found, "{text}");
        }
    }

    #[test]
    fn literals_that_a_server_keeps_are_found_as_it_reads_them() {
        for (text, found) in [
            ("today 12:00 UTC", true),
            (r#"{"no\w"}"#, true),
            ("[now,infinity)", true),
            ("we do it now", false),
            (r#"{"when": "now", "what": "it"}"#, false),
        ] {
            assert_eq!(names_moment(text), found, "{text}");
        }
        for (sql, found) in [
            ("SELECT 'now'::date", true),
            (r"SELECT '{no\w}'::date[]", true),
            (r#"SELECT '{n"o"w}'::date[]"#, true),
            ("SELECT now() WHERE note = 'it'", false),
        ] {
            assert_eq!(may_keep_moment(sql), found, "{sql}");
        }
    }
}
