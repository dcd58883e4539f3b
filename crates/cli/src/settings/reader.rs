//! Reads a TOML file against its schema and collects everything that is wrong with it.

use super::{Problem, Schema, Section, Setting, SettingsError, Shape};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys further apart than this many edits are not mistaken for each other.
const SUGGESTION_EDITS_MAX: usize = 3;

/// Reads the text of a file; `path` is only for messages. `check` may find fault with the values as a whole.
///
/// # Errors
/// [`SettingsError::Refused`] with every problem found.
pub fn read<T: Section>(
    path: &Path,
    text: &str,
    check: impl FnOnce(&T, &mut Reader),
) -> Result<T, SettingsError> {
    let refused =
        |problems| SettingsError::Refused { path: path.to_owned(), text: text.to_owned(), problems };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().unwrap_or(0..0);
        // A position at the end of a line has no width; it is a place all the same.
        let at = at.start..at.end.max(at.start + 1);
        refused(vec![Problem { at, message: error.message().to_owned(), help: None }])
    })?;
    let mut reader = Reader { root: T::SCHEMA, path: Vec::new(), places: Vec::new(), problems: Vec::new() };
    let value = T::read_section(document.get_ref(), 0..0, &mut reader);
    if let Some(value) = &value {
        check(value, &mut reader);
    }
    reader.problems.sort_by_key(|problem| problem.at.start);
    match value {
        Some(value) if reader.problems.is_empty() => Ok(value),
        _ => Err(refused(reader.problems)),
    }
}

/// One step from a value to a value within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// The item of an array, from 0.
    Item(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Step {
        Step::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Step {
        Step::Item(index)
    }
}

/// Where in the file we are, and what was wrong so far.
#[derive(Debug)]
pub struct Reader {
    root: &'static Schema,
    path: Vec<Step>,
    /// Where each value that was read stands.
    places: Vec<(Vec<Step>, Range<usize>)>,
    problems: Vec<Problem>,
}

impl Reader {
    /// Notes something that is wrong.
    pub fn report(&mut self, at: Range<usize>, message: impl Into<String>, help: Option<String>) {
        self.problems.push(Problem { at, message: message.into(), help });
    }

    /// Notes something that is wrong with the value at a path (or, if the file does not give it, with the nearest
    /// one around it).
    pub fn report_at(&mut self, path: &[Step], message: impl Into<String>, help: Option<String>) {
        let around = (0..=path.len()).rev().map(|length| &path[..length]);
        let found = around.filter_map(|path| self.places.iter().find(|(at, _)| at == path)).next();
        let at = found.map_or(0..0, |(_, at)| at.clone());
        self.report(at, message, help);
    }

    /// Notes that a value has another type than it should.
    pub(crate) fn wrong_type<T>(&mut self, value: &Spanned<DeValue<'_>>, expected: &str) -> Option<T> {
        let found = match value.get_ref() {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        let name = self.name();
        self.report(value.span(), format!("`{name}` must be {expected}, this is {found}"), None);
        None
    }

    pub(crate) fn inside<T>(&mut self, step: Step, read: impl FnOnce(&mut Reader) -> T) -> T {
        self.path.push(step);
        let result = read(self);
        self.path.pop();
        result
    }

    /// Reads the value of one key, or takes its default.
    pub(crate) fn key<T: Setting>(
        &mut self,
        table: &DeTable<'_>,
        table_at: Range<usize>,
        name: &str,
        default: Option<T>,
        range: Option<RangeInclusive<u64>>,
    ) -> Option<T> {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else {
            if default.is_none() {
                let table = self.name();
                self.report(table_at, format!("`{name}` is missing {}", in_section(&table)), None);
            }
            return default;
        };
        let at = if matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_)) {
            key.span()
        } else {
            value.span()
        };
        self.inside(Step::from(name), |reader| {
            reader.places.push((reader.path.clone(), at));
            let read = T::read(value, reader)?;
            reader.check_range(value.span(), &read, range).then_some(read)
        })
    }

    pub(crate) fn section<T: Section>(&mut self, value: &Spanned<DeValue<'_>>) -> Option<T> {
        match value.get_ref() {
            DeValue::Table(table) => {
                self.places.push((self.path.clone(), value.span()));
                T::read_section(table, value.span(), self)
            }
            _ => self.wrong_type(value, "a table"),
        }
    }

    pub(crate) fn choice<T>(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        words: &[&str],
        from_word: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let DeValue::String(word) = value.get_ref() else {
            return self.wrong_type(value, &quoted_list(words));
        };
        let found = from_word(word);
        if found.is_none() {
            let help = match nearest(word, words.iter().copied()) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => format!("it may be {}", quoted_list(words)),
            };
            let message = format!("\"{word}\" is no value of `{}`", self.name());
            self.report(value.span(), message, Some(help));
        }
        found
    }

    pub(crate) fn unsigned(&mut self, value: &Spanned<DeValue<'_>>, max: u64) -> Option<u64> {
        let DeValue::Integer(number) = value.get_ref() else {
            return self.wrong_type(value, "a whole number");
        };
        let digits = number.as_str().replace('_', "");
        match u64::from_str_radix(&digits, number.radix()) {
            Ok(number) if number <= max => Some(number),
            _ => {
                let message = format!("`{}` must be from 0 to {max}, this is {number}", self.name());
                self.report(value.span(), message, None);
                None
            }
        }
    }

    /// Notes keys that the table may not have, each with the key that was probably meant.
    pub(crate) fn refuse_unknown_keys(&mut self, table: &DeTable<'_>, schema: &'static Schema) {
        let known = || schema.keys.iter().map(|key| key.name);
        for (key, _) in table.iter().filter(|(key, _)| !known().any(|name| name == key.get_ref().as_ref())) {
            let name = key.get_ref().as_ref();
            let help = elsewhere(name, self.root)
                .map(|at| format!("`{name}` belongs {at}"))
                .or_else(|| nearest(name, known()).map(|name| format!("did you mean `{name}`?")))
                .unwrap_or_else(|| format!("known here: {}", known().collect::<Vec<_>>().join(", ")));
            let message = format!("unknown key `{name}` {}", in_section(&self.name()));
            self.report(key.span(), message, Some(help));
        }
    }

    fn check_range<T: Setting>(
        &mut self,
        at: Range<usize>,
        value: &T,
        range: Option<RangeInclusive<u64>>,
    ) -> bool {
        let (Some(number), Some(range)) = (value.number(), range) else { return true };
        let fits = range.contains(&number);
        if !fits {
            let message = format!(
                "`{}` must be from {} to {}, this is {number}",
                self.name(),
                range.start(),
                range.end()
            );
            self.report(at, message, None);
        }
        fits
    }

    /// The path so far as TOML writes it: `databases.replicas`.
    fn name(&self) -> String {
        let keys = self.path.iter().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Item(_) => None,
        });
        keys.collect::<Vec<_>>().join(".")
    }
}

fn in_section(section: &str) -> String {
    if section.is_empty() { "at the top level".to_owned() } else { format!("in [{section}]") }
}

fn quoted_list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The known name that is fewest edits away, if it is near enough to have been meant.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 2).min(SUGGESTION_EDITS_MAX);
    let distance = |known: &str| strsim::osa_distance(&name.to_lowercase(), known);
    known
        .map(|known| (distance(known), known))
        .filter(|(edits, _)| *edits <= limit)
        .min()
        .map(|(_, known)| known)
}

/// Where in the file a key of this name may stand.
fn elsewhere(name: &str, root: &'static Schema) -> Option<String> {
    if root.keys.iter().any(|key| key.name == name) {
        return Some("at the top level, before the first [section]".to_owned());
    }
    let mut sections = Vec::new();
    for key in root.keys {
        collect_sections(key.name.to_owned(), &key.shape, &mut sections);
    }
    let found = sections.into_iter().find(|(_, schema)| schema.keys.iter().any(|key| key.name == name));
    found.map(|(path, _)| format!("in {path}"))
}

fn collect_sections(path: String, shape: &Shape, found: &mut Vec<(String, &'static Schema)>) {
    let (label, schema) = match shape {
        Shape::Section(schema) => (format!("[{path}]"), *schema),
        Shape::List(Shape::Section(schema)) => (format!("[[{path}]]"), *schema),
        Shape::Plain(_) | Shape::Choice(_) | Shape::List(_) => return,
    };
    found.push((label, schema));
    for key in schema.keys {
        collect_sections(format!("{path}.{}", key.name), &key.shape, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_found_and_a_distant_one_is_not() {
        let known = || ["connections_max", "port", "dir"].into_iter();
        assert_eq!(nearest("conections_max", known()), Some("connections_max"));
        assert_eq!(nearest("Port", known()), Some("port"));
        assert_eq!(nearest("prot", known()), Some("port"));
        assert_eq!(nearest("colour", known()), None);
        assert_eq!(nearest("x", known()), None);
    }

    #[test]
    fn words_are_listed_as_one_would_say_them() {
        assert_eq!(quoted_list(&["a"]), "\"a\"");
        assert_eq!(quoted_list(&["a", "b", "c"]), "\"a\", \"b\" or \"c\"");
    }
}
