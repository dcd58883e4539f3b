//! Values as parameters and results carry them: what a workload needs to understand, and no more.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// One SQL value. What comes back may also be the text form of any of these ([`Value::Text`]): the simple query
/// protocol says nothing about types. The accessors accept both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// SQL NULL.
    #[default]
    Null,
    /// Any integer type.
    Int(i64),
    /// numeric.
    Decimal(Decimal),
    /// Any character type, and every type that a workload does not look into, in its text form.
    Text(String),
    /// date.
    Date(Date),
    /// timestamp without time zone.
    Timestamp(Timestamp),
}

impl Value {
    /// The integer, if it is one or spells one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(int) => Some(*int),
            Value::Text(text) => text.trim().parse().ok(),
            Value::Decimal(decimal) if decimal.scale == 0 => Some(decimal.units),
            _ => None,
        }
    }

    /// The number in hundredths, if it is a number with at most two digits after the point or spells one.
    pub fn as_cents(&self) -> Option<i64> {
        match self {
            Value::Int(int) => int.checked_mul(100),
            Value::Decimal(decimal) => decimal.rescale(2),
            Value::Text(text) => Decimal::parse(text.trim())?.rescale(2),
            _ => None,
        }
    }

    /// The characters, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Appends the value as an SQL literal, for statements sent without parameters. Strings are quoted so that they
    /// read the same whatever `standard_conforming_strings` says.
    pub fn write_literal(&self, out: &mut String) {
        match self {
            Value::Null => out.push_str("NULL"),
            // A sign after an operator such as `-` would start a comment: `qty--1`.
            Value::Int(int) if *int < 0 => {
                let _ = write!(out, "({int})");
            }
            Value::Int(int) => {
                let _ = write!(out, "{int}");
            }
            Value::Decimal(decimal) if decimal.units < 0 => {
                let _ = write!(out, "({decimal})");
            }
            Value::Decimal(decimal) => {
                let _ = write!(out, "{decimal}");
            }
            Value::Text(text) => {
                if text.contains('\\') {
                    out.push_str(" E");
                }
                out.push('\'');
                for character in text.chars() {
                    if matches!(character, '\'' | '\\') {
                        out.push(character);
                    }
                    out.push(character);
                }
                out.push('\'');
            }
            Value::Date(date) => {
                let _ = write!(out, "'{date}'");
            }
            Value::Timestamp(timestamp) => {
                let _ = write!(out, "'{timestamp}'");
            }
        }
    }
}

/// The text form that the database reads and writes; NULL has none and gives the empty string.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => Ok(()),
            Value::Int(int) => int.fmt(f),
            Value::Decimal(decimal) => decimal.fmt(f),
            Value::Text(text) => f.write_str(text),
            Value::Date(date) => date.fmt(f),
            Value::Timestamp(timestamp) => timestamp.fmt(f),
        }
    }
}

impl From<i64> for Value {
    fn from(int: i64) -> Self {
        Value::Int(int)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<Decimal> for Value {
    fn from(decimal: Decimal) -> Self {
        Value::Decimal(decimal)
    }
}

impl From<Date> for Value {
    fn from(date: Date) -> Self {
        Value::Date(date)
    }
}

impl From<Timestamp> for Value {
    fn from(timestamp: Timestamp) -> Self {
        Value::Timestamp(timestamp)
    }
}

/// A decimal number: `units / 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    /// The digits, without the point.
    pub units: i64,
    /// Digits after the point, at most 18.
    pub scale: u8,
}

impl Decimal {
    /// A sum of money, or any number in hundredths.
    pub fn cents(cents: i64) -> Self {
        Decimal { units: cents, scale: 2 }
    }

    /// Reads `-12.50`. `None` if it is no plain decimal number or has too many digits.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !plain(whole) || !plain(fraction) || fraction.len() > 18 {
            return None;
        }
        let units: i64 = format!("{whole}{fraction}").parse().ok()?;
        Some(Decimal { units: if negative { -units } else { units }, scale: fraction.len() as u8 })
    }

    /// The units at another scale; `None` if digits would be lost or it does not fit.
    pub fn rescale(self, scale: u8) -> Option<i64> {
        if scale >= self.scale {
            self.units.checked_mul(10_i64.checked_pow(u32::from(scale - self.scale))?)
        } else {
            let divisor = 10_i64.checked_pow(u32::from(self.scale - scale))?;
            (self.units % divisor == 0).then_some(self.units / divisor)
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scale == 0 {
            return write!(f, "{}", self.units);
        }
        let sign = if self.units < 0 { "-" } else { "" };
        let one = 10_u64.pow(u32::from(self.scale));
        let units = self.units.unsigned_abs();
        write!(f, "{sign}{}.{:0width$}", units / one, units % one, width = usize::from(self.scale))
    }
}

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A day, counted from 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Days since 1970-01-01, which may be negative.
    pub days: i64,
}

impl Date {
    /// The day of the Gregorian calendar; `month` in 1..=12, `day` in 1..=31.
    pub fn from_calendar(year: i64, month: i64, day: i64) -> Self {
        // Years start in March, so that the leap day is the last one; 400 years have 146,097 days.
        let year = if month <= 2 { year - 1 } else { year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        Date { days: era * 146_097 + day_of_era - 719_468 }
    }

    /// Year, month (1..=12) and day (1..=31).
    pub fn calendar(self) -> (i64, i64, i64) {
        let days = self.days + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        (era * 400 + year_of_era + i64::from(month <= 2), month, day)
    }

    /// So many days later, or earlier if negative.
    pub fn plus_days(self, days: i64) -> Self {
        Date { days: self.days + days }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.calendar();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// A point in time without time zone, and the clock that drivers pass in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Microseconds since 1970-01-01 00:00:00.
    pub micros: i64,
}

impl Timestamp {
    /// The day that it falls on.
    pub fn date(self) -> Date {
        Date { days: self.micros.div_euclid(MICROS_PER_DAY) }
    }

    /// So much later.
    pub fn plus(self, time: Duration) -> Self {
        Timestamp { micros: self.micros + time.as_micros() as i64 }
    }

    /// So many days later, or earlier if negative.
    pub fn plus_days(self, days: i64) -> Self {
        Timestamp { micros: self.micros + days * MICROS_PER_DAY }
    }
}

impl From<Date> for Timestamp {
    fn from(date: Date) -> Self {
        Timestamp { micros: date.days * MICROS_PER_DAY }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.micros.rem_euclid(MICROS_PER_DAY);
        let seconds = micros / 1_000_000;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{} {hour:02}:{minute:02}:{second:02}.{:06}", self.date(), micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_go_to_the_calendar_and_back() {
        for (year, month, day, days) in
            [(1970, 1, 1, 0), (2000, 1, 1, 10_957), (1900, 3, 1, -25_508), (2024, 2, 29, 19_782)]
        {
            let date = Date::from_calendar(year, month, day);
            assert_eq!(date.days, days);
            assert_eq!(date.calendar(), (year, month, day));
        }
        for days in -80_000..80_000 {
            let (year, month, day) = Date { days }.calendar();
            assert_eq!(Date::from_calendar(year, month, day).days, days);
        }
        assert_eq!(Timestamp { micros: -1 }.to_string(), "1969-12-31 23:59:59.999999");
    }

    #[test]
    fn decimals_read_back_what_they_write() {
        for text in ["0.00", "-0.05", "12.50", "999.990000", "7", "-7"] {
            assert_eq!(Decimal::parse(text).unwrap().to_string(), text);
        }
        for text in ["", ".", "-", "1e5", "NaN", "1.2.3", "99999999999999999999"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Value::from("0.35").as_cents(), Some(35));
        assert_eq!(Value::from(Decimal { units: 500, scale: 3 }).as_cents(), Some(50));
        assert_eq!(Value::from(Decimal { units: 501, scale: 3 }).as_cents(), None);
    }

    #[test]
    fn literals_are_quoted() {
        let literal = |value: Value| {
            let mut out = String::new();
            value.write_literal(&mut out);
            out
        };
        assert_eq!(literal("O'Neill".into()), "'O''Neill'");
        assert_eq!(literal("a\\b".into()), " E'a\\\\b'");
        assert_eq!(literal(Value::Int(-3)), "(-3)");
        assert_eq!(literal(Value::Null), "NULL");
    }
}
