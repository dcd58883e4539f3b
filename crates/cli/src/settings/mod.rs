//! Settings defined once: their names, defaults, ranges and documentation come from one place, and reading, the
//! commented example and the reference page are derived from it.
//!
//! `section!` defines a table of the TOML file as a plain struct, `choice!` a setting that is one of several
//! words. Nothing in a file is ignored: an unknown key, a wrong type and a value out of range are each reported
//! with line and column, all in one go.

mod example;
mod problem;
mod reader;

pub use example::{example, reference};
pub use problem::{Problem, SettingsError};
pub use reader::{Reader, Step, read};

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::DeValue;

/// A type that a setting can have.
pub trait Setting: Sized {
    /// What a value looks like in the file.
    const SHAPE: Shape;

    /// Reads a value; reports to the reader and returns `None` if it is not one.
    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self>;

    /// The value as TOML; `None` for what is left out of the file.
    fn show(&self) -> Option<String>;

    /// The value as a number, if its range can be checked.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A table of the file; defined by `section!`.
pub trait Section: Sized {
    /// Its keys with their documentation.
    const SCHEMA: &'static Schema;

    /// Reads the table; reports to the reader and returns `None` if something is wrong with it.
    fn read_section(
        table: &toml::de::DeTable<'_>,
        at: std::ops::Range<usize>,
        reader: &mut Reader,
    ) -> Option<Self>;
}

/// What a table may hold.
#[derive(Debug)]
pub struct Schema {
    /// Its documentation, a line each.
    pub docs: &'static [&'static str],
    /// Its keys in the order of their definition.
    pub keys: &'static [Key],
}

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// Its documentation, a line each.
    pub docs: &'static [&'static str],
    /// What its values look like.
    pub shape: Shape,
    /// The default as TOML; `None` if there is none, or if it is to leave the key out.
    pub default: fn() -> Option<String>,
    /// Whether the key must be given.
    pub required: bool,
    /// A value for the example, in place of the default.
    pub sample: Option<&'static str>,
    /// The least and the greatest number.
    pub range: Option<RangeInclusive<u64>>,
}

/// What a value looks like in the file.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A single value; what to call it.
    Plain(&'static str),
    /// One of these words, each with its documentation.
    Choice(&'static [(&'static str, &'static [&'static str])]),
    /// A table.
    Section(&'static Schema),
    /// An array.
    List(&'static Shape),
}

/// Text that must not appear in messages and logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"***\"")
    }
}

/// Defines a table of the file: a plain struct, its [`Section`] and its defaults.
///
/// Each key is `name: Type = default;`, or `name: Type;` if it must be given. `, in 1..=9` adds the range of a number,
/// `, such as "\"sample\""` the TOML that the example shows in place of the default.
macro_rules! section {
    ($(#[doc = $doc:literal])* pub struct $name:ident {
        $($(#[doc = $key_doc:literal])* $key:ident: $type:ty
            $(= $default:expr)? $(, in $range:expr)? $(, such as $sample:literal)?;)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $key_doc])* pub $key: $type,)*
        }

        impl $crate::settings::Section for $name {
            const SCHEMA: &'static $crate::settings::Schema = &$crate::settings::Schema {
                docs: &[$($doc),*],
                keys: &[$($crate::settings::Key {
                    name: stringify!($key),
                    docs: &[$($key_doc),*],
                    shape: <$type as $crate::settings::Setting>::SHAPE,
                    default: || {
                        let default: Option<$type> = $crate::settings::optional!($($default)?);
                        default.and_then(|value| $crate::settings::Setting::show(&value))
                    },
                    required: $crate::settings::absent!($($default)?),
                    sample: $crate::settings::optional!($($sample)?),
                    range: $crate::settings::optional!($($range)?),
                }),*],
            };

            fn read_section(
                table: &toml::de::DeTable<'_>, at: std::ops::Range<usize>, reader: &mut $crate::settings::Reader,
            ) -> Option<Self> {
                reader.refuse_unknown_keys(table, Self::SCHEMA);
                // All keys are read before any failure is returned, so that every problem is reported at once.
                $(let $key: Option<$type> =
                    reader.key(table, at.clone(), stringify!($key), $crate::settings::optional!($($default)?),
                        $crate::settings::optional!($($range)?));)*
                Some($name { $($key: $key?),* })
            }
        }

        impl $crate::settings::Setting for $name {
            const SHAPE: $crate::settings::Shape =
                $crate::settings::Shape::Section(<$name as $crate::settings::Section>::SCHEMA);

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>, reader: &mut $crate::settings::Reader,
            ) -> Option<Self> {
                reader.section(value)
            }

            fn show(&self) -> Option<String> {
                None
            }
        }
    };
}

/// As [`section!`], for a table all of whose keys have defaults.
macro_rules! section_with_defaults {
    ($(#[doc = $doc:literal])* pub struct $name:ident {
        $($(#[doc = $key_doc:literal])* $key:ident: $type:ty
            = $default:expr $(, in $range:expr)? $(, such as $sample:literal)?;)*
    }) => {
        $crate::settings::section! {
            $(#[doc = $doc])* pub struct $name {
                $($(#[doc = $key_doc])* $key: $type = $default $(, in $range)? $(, such as $sample)?;)*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $default),* }
            }
        }
    };
}

/// Defines a setting that is one of several words.
macro_rules! choice {
    ($(#[doc = $doc:literal])* pub enum $name:ident {
        $($(#[doc = $variant_doc:literal])* $variant:ident = $word:literal,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $variant_doc])* $variant,)*
        }

        impl $name {
            /// The word that stands for it in the file.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

            /// What the word stands for.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl clap::ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                &[$($name::$variant),*]
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                let help = match self { $($name::$variant => concat!($($variant_doc),*).trim()),* };
                Some(clap::builder::PossibleValue::new(self.word()).help(help))
            }
        }

        impl $crate::settings::Setting for $name {
            const SHAPE: $crate::settings::Shape =
                $crate::settings::Shape::Choice(&[$(($word, &[$($variant_doc),*])),*]);

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>, reader: &mut $crate::settings::Reader,
            ) -> Option<Self> {
                reader.choice(value, &[$($word),*], Self::from_word)
            }

            fn show(&self) -> Option<String> {
                Some(format!("\"{}\"", self.word()))
            }
        }
    };
}

/// `Some(value)`, or `None` for no value.
macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Whether no value is given.
macro_rules! absent {
    () => {
        true
    };
    ($value:expr) => {
        false
    };
}

pub(crate) use {absent, choice, optional, section, section_with_defaults};

macro_rules! unsigned {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const SHAPE: Shape = Shape::Plain("a whole number");

            fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
                reader.unsigned(value, u64::from(<$type>::MAX)).and_then(|number| <$type>::try_from(number).ok())
            }

            fn show(&self) -> Option<String> {
                Some(with_separators(u64::from(*self)))
            }

            fn number(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
        }
    )*};
}

unsigned!(u16, u32, u64);

impl Setting for i64 {
    const SHAPE: Shape = Shape::Plain("a whole number, perhaps negative");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        let what = "a whole number of 64 bits";
        let DeValue::Integer(number) = value.get_ref() else { return reader.wrong_type(value, what) };
        match i64::from_str_radix(&number.as_str().replace('_', ""), number.radix()) {
            Ok(number) => Some(number),
            Err(_) => reader.wrong_type(value, what),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for bool {
    const SHAPE: Shape = Shape::Plain("true or false");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            _ => reader.wrong_type(value, "true or false"),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for String {
    const SHAPE: Shape = Shape::Plain("text");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => Some(text.clone().into_owned()),
            _ => reader.wrong_type(value, "text in quotes"),
        }
    }

    fn show(&self) -> Option<String> {
        Some(toml::Value::String(self.clone()).to_string())
    }
}

impl Setting for PathBuf {
    const SHAPE: Shape = Shape::Plain("a path");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        String::read(value, reader).map(PathBuf::from)
    }

    fn show(&self) -> Option<String> {
        self.to_string_lossy().into_owned().show()
    }
}

impl Setting for IpAddr {
    const SHAPE: Shape = Shape::Plain("an IP address");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        let text = String::read(value, reader)?;
        let problem = || format!("`{text}` is not an IP address");
        text.parse()
            .map_err(|_| reader.report(value.span(), problem(), Some("such as 127.0.0.1 or ::".into())))
            .ok()
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

impl Setting for Secret {
    const SHAPE: Shape = Shape::Plain("text");

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        String::read(value, reader).map(Secret)
    }

    fn show(&self) -> Option<String> {
        self.0.show()
    }
}

impl<T: Setting> Setting for Option<T> {
    const SHAPE: Shape = T::SHAPE;

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        T::read(value, reader).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

impl<T: Setting> Setting for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);

    fn read(value: &Spanned<DeValue<'_>>, reader: &mut Reader) -> Option<Self> {
        let DeValue::Array(items) = value.get_ref() else { return reader.wrong_type(value, "an array") };
        let read = items
            .iter()
            .enumerate()
            .map(|(index, item)| reader.inside(Step::Item(index), |r| T::read(item, r)));
        // Collected twice, so that a wrong item does not hide the problems of those after it.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    fn show(&self) -> Option<String> {
        let items: Option<Vec<String>> = self.iter().map(T::show).collect();
        Some(format!("[{}]", items?.join(", ")))
    }
}

/// 10000 as `10_000`, which TOML reads and people do too.
fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped_by_thousands() {
        assert_eq!(with_separators(0), "0");
        assert_eq!(with_separators(6432), "6432");
        assert_eq!(with_separators(10_000), "10_000");
        assert_eq!(with_separators(268_435_456), "268_435_456");
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", Some(Secret("hunter2".into()))), "Some(\"***\")");
    }
}
