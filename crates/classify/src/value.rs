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
    /// "char"
    pub const CHAR: u32 = 18;
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
    /// interval
    pub const INTERVAL: u32 = 1186;
    /// timetz
    pub const TIMETZ: u32 = 1266;
    /// numeric
    pub const NUMERIC: u32 = 1700;
    /// uuid
    pub const UUID: u32 = 2950;
    /// inet
    pub const INET: u32 = 869;
    /// cidr
    pub const CIDR: u32 = 650;
    /// money
    pub const MONEY: u32 = 790;
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

/// Whether what statements say of a column's value can name rows: whether values of its type that are equal have one form.
#[must_use]
pub fn is_named_by_values(column: &Column) -> bool {
    Canon::of(column).is_some()
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

pub(crate) fn integer(text: &str) -> Option<i64> {
    // Seldom is anything beside it.
    text.parse().or_else(|_| text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']).parse()).ok()
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
