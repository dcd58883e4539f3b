//! What is derived from a schema: the commented example file and the reference page.

use super::{Key, Schema, Shape, with_separators};
use std::fmt::Write;

/// A file with every setting: what must be given with a sample, everything else commented out at its default.
#[must_use]
pub fn example(schema: &Schema) -> String {
    let mut text = String::new();
    comment(&mut text, schema.docs);
    text.push('\n');
    keys_of_example(&mut text, "", schema, false);
    text
}

/// The reference in Markdown: one part a table of the file, one entry a setting.
#[must_use]
pub fn reference(schema: &Schema) -> String {
    let mut text = String::new();
    keys_of_reference(&mut text, "", schema);
    text
}

/// `idle`: of a part that is not there by default, all of which is commented out.
fn keys_of_example(text: &mut String, path: &str, schema: &Schema, idle: bool) {
    for key in schema.keys.iter().filter(|key| table_of(key).is_none()) {
        comment(text, key.docs);
        choices(key, |word, docs| {
            let _ = writeln!(text, "#   \"{word}\": {}", docs.join("\n#      ").trim());
        });
        if let Some(range) = &key.range {
            let _ = writeln!(
                text,
                "#   From {} to {}.",
                with_separators(*range.start()),
                with_separators(*range.end())
            );
        }
        let mark = if key.required && !idle { "" } else { "#" };
        let value = key.sample.map(str::to_owned).or_else(key.default).unwrap_or_default();
        let _ = writeln!(text, "{mark}{} = {value}\n", key.name);
    }
    for (key, table) in schema.keys.iter().filter_map(|key| Some((key, table_of(key)?))) {
        let inner = join(path, key.name);
        comment(text, key.docs);
        // Where nothing has to be given, neither has a list in it.
        let idle = table.repeated && schema.keys.iter().all(|key| !key.required);
        let mark = if idle { "#" } else { "" };
        let _ = writeln!(text, "{mark}{}", table.heading(&inner));
        keys_of_example(text, &inner, table.schema, idle);
    }
}

fn keys_of_reference(text: &mut String, path: &str, schema: &Schema) {
    for key in schema.keys.iter().filter(|key| table_of(key).is_none()) {
        let _ = write!(text, "**`{}`** ({}", key.name, kind(&key.shape));
        if let Some(range) = &key.range {
            let _ = write!(
                text,
                " from {} to {}",
                with_separators(*range.start()),
                with_separators(*range.end())
            );
        }
        let _ = match (key.default)() {
            _ if key.required => writeln!(text, "; required)  "),
            Some(default) => writeln!(text, "; default `{default}`)  "),
            None => writeln!(text, "; not set by default)  "),
        };
        let _ = writeln!(text, "{}", paragraph(key.docs));
        choices(key, |word, docs| {
            let _ = writeln!(text, "- `\"{word}\"`: {}", sentence(docs));
        });
        text.push('\n');
    }
    for (key, table) in schema.keys.iter().filter_map(|key| Some((key, table_of(key)?))) {
        let inner = join(path, key.name);
        let _ = writeln!(text, "### `{}`\n\n{}\n", table.heading(&inner), paragraph(key.docs));
        keys_of_reference(text, &inner, table.schema);
    }
}

/// A key whose value is written as a table, or as several.
struct Table {
    schema: &'static Schema,
    repeated: bool,
}

impl Table {
    fn heading(&self, path: &str) -> String {
        if self.repeated { format!("[[{path}]]") } else { format!("[{path}]") }
    }
}

fn table_of(key: &Key) -> Option<Table> {
    match key.shape {
        Shape::Section(schema) => Some(Table { schema, repeated: false }),
        Shape::List(Shape::Section(schema)) => Some(Table { schema, repeated: true }),
        Shape::Plain(_) | Shape::Choice(_) | Shape::List(_) => None,
    }
}

fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Plain(kind) => (*kind).to_owned(),
        Shape::Choice(_) => "one of the words below".to_owned(),
        Shape::List(inner) => format!("an array, each {}", kind(inner)),
        Shape::Section(_) => "a table".to_owned(),
    }
}

fn choices(key: &Key, mut each: impl FnMut(&str, &[&str])) {
    if let Shape::Choice(words) = key.shape {
        words.iter().for_each(|(word, docs)| each(word, docs));
    }
}

fn comment(text: &mut String, docs: &[&str]) {
    for line in docs {
        let _ = writeln!(text, "#{}", line.trim_end());
    }
}

fn paragraph(docs: &[&str]) -> String {
    docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n")
}

fn sentence(docs: &[&str]) -> String {
    docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
