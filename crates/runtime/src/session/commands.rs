//! What servers say of commands: their names in errors, and which take a snapshot.

use onecopy_classify::{Class, Kind};

/// Whether a server takes a snapshot for a statement, if the transaction has none yet.
pub(super) fn takes_snapshot(kind: &Kind) -> bool {
    !matches!(
        kind,
        Kind::Savepoint(_)
            | Kind::Release(_)
            | Kind::Set { .. }
            | Kind::Reset(_)
            | Kind::Show(_)
            | Kind::SetTransaction { .. }
            | Kind::SetConstraints { .. }
            | Kind::SetRole { .. }
            | Kind::SetSessionAuthorization { .. }
            | Kind::LockTable { .. }
            | Kind::Listen(_)
            | Kind::Unlisten(_)
            | Kind::Notify { .. }
            | Kind::Empty
    )
}

/// A command as servers name it where it is forbidden.
pub(super) fn command_tag(class: &Class) -> String {
    let kind = match &class.kind {
        Kind::Explain { inner, .. } => inner,
        kind => kind,
    };
    match kind {
        Kind::Truncate { .. } => "TRUNCATE TABLE".to_owned(),
        Kind::CopyIn { .. } => "COPY FROM".to_owned(),
        Kind::WriteCte => "SELECT".to_owned(),
        Kind::Ddl { command, .. } if command.ends_with(" AS") || command.contains("VIEW") => {
            (*command).to_owned()
        }
        _ => first_words(&class.text),
    }
}

/// The words by which a command that makes, changes or drops an object says so; of others the first.
fn first_words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut words = words.map(str::to_ascii_uppercase);
    let Some(first) = words.next() else { return String::new() };
    if !matches!(first.as_str(), "CREATE" | "ALTER" | "DROP") {
        return first;
    }
    let says_how =
        ["OR", "REPLACE", "UNIQUE", "UNLOGGED", "CONSTRAINT", "TRUSTED", "PROCEDURAL", "RECURSIVE"];
    let mut words = words.skip_while(|word| says_how.contains(&word.as_str()));
    let object = words.next().unwrap_or_default();
    let of_two =
        ["FOREIGN", "EVENT", "ACCESS", "DEFAULT", "OPERATOR", "TEXT", "USER", "LARGE", "MATERIALIZED"];
    match (object.as_str(), words.next()) {
        ("USER", second) if second.as_deref() != Some("MAPPING") => format!("{first} ROLE"),
        ("GROUP", _) => format!("{first} ROLE"),
        (_, Some(second)) if of_two.contains(&object.as_str()) => format!("{first} {object} {second}"),
        _ => format!("{first} {object}"),
    }
}
