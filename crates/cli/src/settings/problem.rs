//! What is wrong with a file, shown with the line that it is about.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The bytes of the file that it is about; empty at 0 if it is about no place in particular.
    pub at: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// A file of settings that was refused. `Display` shows each problem with its line.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("read {path}: {source}\n{help}", path = path.display(), help = how_to_provide(path, example, source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The option of `onecopy config` that prints an example of it.
        example: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// Others than its owner could read or change the secrets.
    #[error("{path} holds secrets and {who}\nrun: chmod {mode} {path}", path = path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Who can do what with it.
        who: &'static str,
        /// The mode to give it.
        mode: &'static str,
    },
    /// The file is to say who may connect, and does not.
    #[error(
        "{path} names no users, and auth.method = \"scram-sha-256\" lets in nobody else\nadd a [[users]] table with name and password for each role that connects",
        path = path.display()
    )]
    NoUsers {
        /// The file.
        path: PathBuf,
    },
    /// Nodes are to serve together, and no secret is given by which they know each other.
    #[error(
        "{path} holds no cluster_secret, and cluster.node says that this is one of several nodes\nadd cluster_secret = \"...\" with 32 random characters or more, the same on all nodes",
        path = path.display()
    )]
    NoClusterSecret {
        /// The file.
        path: PathBuf,
    },
    /// The file holds something else than what is known.
    #[error("{}", Report { path, text, problems })]
    Refused {
        /// The file.
        path: PathBuf,
        /// Its contents, of which the lines in question are shown.
        text: String,
        /// What is wrong, in the order of the file.
        problems: Vec<Problem>,
    },
}

fn how_to_provide(path: &Path, example: &str, why: &io::Error) -> String {
    if why.kind() == io::ErrorKind::NotFound {
        format!("to begin with an example: onecopy config {example} > {}", path.display())
    } else {
        "let the user who runs onecopy read it".to_owned()
    }
}

struct Report<'a> {
    path: &'a Path,
    text: &'a str,
    problems: &'a [Problem],
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            self.show(problem, f)?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn show(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = Place::of(self.text, &problem.at);
        let (path, line, column) = (self.path.display(), place.line, place.column);
        write!(f, "{}", problem.message)?;
        if problem.at.is_empty() {
            write!(f, "\n  --> {path}")?;
        } else {
            let margin = " ".repeat(line.to_string().len());
            write!(f, "\n{margin} --> {path}:{line}:{column}\n{margin} |\n{line} | {}", place.text)?;
            write!(f, "\n{margin} | {}{}", " ".repeat(column - 1), "^".repeat(place.width))?;
        }
        match &problem.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// Where some bytes of a text are for a reader: line and column from 1, in characters.
struct Place<'a> {
    line: usize,
    column: usize,
    /// How many characters to underline, at least 1 and not beyond the line.
    width: usize,
    text: &'a str,
}

impl<'a> Place<'a> {
    fn of(text: &'a str, at: &Range<usize>) -> Place<'a> {
        let start = floor_char_boundary(text, at.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = floor_char_boundary(text, at.end.min(line_end)).max(start);
        Place {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width: text[start..end].chars().count().max(1),
            text: text[line_start..line_end].trim_end(),
        }
    }
}

fn floor_char_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_shown_with_its_line_and_underlined() {
        let text = "protocol = \"onecopy\"\nworkrs = 2\n";
        let error = SettingsError::Refused {
            path: "onecopy.toml".into(),
            text: text.into(),
            problems: vec![Problem { at: 21..27, message: "unknown key".into(), help: Some("look".into()) }],
        };
        let expected = "unknown key\n  --> onecopy.toml:2:1\n  |\n2 | workrs = 2\n  | ^^^^^^\n  help: look";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn places_outside_and_within_characters_are_survived() {
        let place = Place::of("é", &(1..99));
        assert_eq!((place.line, place.column, place.width), (1, 1, 1));
    }
}
