//! Values of workloads as the driver sends and receives them.

use std::error::Error;

use bytes::BytesMut;
use onecopy_workload::Value;
use onecopy_workload::value::{Date, Decimal, Timestamp};
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A parameter, sent in text format: the server knows its type.
#[derive(Debug)]
pub(crate) struct Parameter<'a>(pub(crate) &'a Value);

impl ToSql for Parameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if let Value::Null = self.0 {
            return Ok(IsNull::Yes);
        }
        out.extend_from_slice(self.0.to_string().as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A column of a result, received in binary format. Types that workloads do not look into become NULL.
pub(crate) struct Cell(pub(crate) Value);

/// Days and microseconds from 1970-01-01, from which workloads count, to 2000-01-01, from which PostgreSQL does.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;

impl<'a> FromSql<'a> for Cell {
    fn from_sql(column: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let value = match *column {
            Type::INT2 => Value::Int(i64::from(i16::from_sql(column, raw)?)),
            Type::INT4 => Value::Int(i64::from(i32::from_sql(column, raw)?)),
            Type::INT8 => Value::Int(i64::from_sql(column, raw)?),
            Type::NUMERIC => numeric(raw)?,
            Type::FLOAT4 => float(f64::from(f32::from_sql(column, raw)?)),
            Type::FLOAT8 => float(f64::from_sql(column, raw)?),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
                Value::Text(std::str::from_utf8(raw)?.to_owned())
            }
            Type::DATE => {
                let days = i32::from_be_bytes(raw.try_into()?);
                Value::Date(Date { days: i64::from(days) + EPOCH_DAYS })
            }
            Type::TIMESTAMP => {
                let micros = i64::from_be_bytes(raw.try_into()?);
                Value::Timestamp(Timestamp { micros: micros.saturating_add(EPOCH_MICROS) })
            }
            _ => Value::Null,
        };
        Ok(Cell(value))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Cell(Value::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// The shortest decimal number that stands for this one. NaN, infinities and numbers of more than 18 digits become NULL.
fn float(number: f64) -> Value {
    Decimal::parse(&number.to_string()).map_or(Value::Null, Value::Decimal)
}

/// numeric in binary: number of digits, weight, sign, scale, then digits to the base of 10,000. NaN, infinities and numbers of
/// more than 18 digits become NULL.
fn numeric(raw: &[u8]) -> Result<Value, Box<dyn Error + Sync + Send>> {
    let (words, rest) = raw.as_chunks::<2>();
    let words: Vec<i64> = words.iter().map(|word| i64::from(i16::from_be_bytes(*word))).collect();
    let [count, weight, sign, scale, digits @ ..] = &words[..] else {
        return Err("numeric is too short".into());
    };
    if !rest.is_empty() || digits.len() as i64 != *count {
        return Err("numeric has not the digits that it says".into());
    }
    let decimal = || -> Option<Decimal> {
        let negative = match *sign {
            0 => false,
            0x4000 => true,
            _ => return None,
        };
        // The digit at place p stands for 10,000^(weight - p); in units of 10^-scale that is a power of ten that may
        // be negative for the last digit only, whose end is zeros then.
        let mut units: i64 = 0;
        for (place, digit) in (0_i64..).zip(digits) {
            let power = 4 * (weight - place) + scale;
            let value = match u32::try_from(power) {
                Ok(power) => digit.checked_mul(10_i64.checked_pow(power)?)?,
                Err(_) => digit / 10_i64.checked_pow(u32::try_from(-power).ok()?)?,
            };
            units = units.checked_add(value)?;
        }
        Some(Decimal { units: if negative { -units } else { units }, scale: u8::try_from(*scale).ok()? })
    };
    Ok(decimal().map_or(Value::Null, Value::Decimal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(words: &[i16]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn floats_are_read_as_what_they_stand_for() {
        let read = |number: f64| Cell::from_sql(&Type::FLOAT8, &number.to_be_bytes()).unwrap().0;
        assert_eq!((read(5_000.0).as_int(), read(-0.1).as_cents()), (Some(5_000), Some(-10)));
        for not in [f64::NAN, f64::INFINITY, 1e300, 1e-30] {
            assert_eq!(read(not), Value::Null, "{not}");
        }
    }

    #[test]
    fn numerics_are_read() {
        // As PostgreSQL 15 sends 12345.67, -0.05, 0.00, 50.00 and 20000.
        for (words, expected) in [
            (&[3, 1, 0, 2, 1, 2345, 6700][..], "12345.67"),
            (&[1, -1, 0x4000, 2, 500], "-0.05"),
            (&[0, 0, 0, 2], "0.00"),
            (&[1, 0, 0, 2, 50], "50.00"),
            (&[1, 1, 0, 0, 2], "20000"),
        ] {
            assert_eq!(numeric(&raw(words)).unwrap().to_string(), expected);
        }
        assert_eq!(numeric(&raw(&[0, 0, -0x4000, 0])).unwrap(), Value::Null);
        assert!(numeric(&raw(&[2, 0, 0, 0, 1])).is_err());
        assert!(numeric(&[0, 0, 0]).is_err());
    }
}
