//! What a transaction has done in its read phase, in the order in which it did it.
//!
//! A server forgets all of it when the transaction goes on elsewhere: at its home after its first write, or in another
//! snapshot. So it is done again there, with settings, savepoints and reads in their places among each other: a cursor that
//! was declared before a savepoint outlives a return to it, and a read is made under the settings under which it was made.

use std::mem::size_of;

use super::unit::Request;
use crate::agent::quote_identifier;

/// Bytes of the read phase that are kept for doing it again. Of a longer one settings and savepoints are kept, and no reads: if
/// what it has read may have changed, the transaction is refused.
pub const BYTES_MAX: usize = 4 * 1024 * 1024;

/// One step.
#[derive(Clone, Debug)]
pub enum Past {
    /// A command that changed settings.
    Setting(String),
    /// SAVEPOINT of this name.
    Savepoint(String),
    /// RELEASE.
    Released(String),
    /// ROLLBACK TO.
    ReturnedTo(String),
    Read(Read),
}

/// Something that a replica has answered.
#[derive(Clone, Debug)]
pub struct Read {
    pub request: Request,
    /// Of its answer.
    pub hash: u64,
    /// Identifies the settings under which the server read its text.
    pub read_under: u64,
}

impl Past {
    /// The command that does it again; of a read there is none.
    pub fn command(&self) -> Option<String> {
        match self {
            Past::Setting(command) => Some(command.clone()),
            Past::Savepoint(name) => Some(format!("SAVEPOINT {}", quote_identifier(name))),
            Past::Released(name) => Some(format!("RELEASE SAVEPOINT {}", quote_identifier(name))),
            Past::ReturnedTo(name) => Some(format!("ROLLBACK TO SAVEPOINT {}", quote_identifier(name))),
            Past::Read(_) => None,
        }
    }

    fn len(&self) -> usize {
        let bytes = match self {
            Past::Setting(text) | Past::Savepoint(text) | Past::Released(text) | Past::ReturnedTo(text) => {
                text.len()
            }
            Past::Read(read) => read.request.len(),
        };
        bytes + size_of::<Past>()
    }
}

/// The steps of a transaction's read phase.
#[derive(Default)]
pub struct ReadPhase {
    steps: Vec<Past>,
    /// Where savepoints to which the transaction may return were made among the steps.
    savepoints: Vec<usize>,
    bytes: usize,
    reads: usize,
    lost: bool,
}

impl ReadPhase {
    /// Keeps a step.
    pub fn note(&mut self, step: Past) {
        match &step {
            Past::Savepoint(_) => self.savepoints.push(self.steps.len()),
            Past::Released(name) => {
                let Some(at) = self.savepoint(name) else { return };
                let made = self.savepoints[at];
                self.savepoints.truncate(at);
                if !self.has_read_since(made) {
                    // All that remains of it are settings.
                    let since = self.steps.split_off(made);
                    let kept = since.into_iter().filter(|step| matches!(step, Past::Setting(_)));
                    self.steps.extend(kept);
                    return self.count();
                }
            }
            Past::ReturnedTo(name) => {
                let Some(at) = self.savepoint(name) else { return };
                let made = self.savepoints[at];
                self.savepoints.truncate(at + 1);
                if !self.has_read_since(made) {
                    self.steps.truncate(made + 1);
                    return self.count();
                }
            }
            Past::Read(_) if self.lost => return,
            Past::Read(_) => self.reads += 1,
            Past::Setting(_) => {}
        }
        self.bytes += step.len();
        self.steps.push(step);
        if self.bytes > BYTES_MAX && self.reads > 0 {
            self.lose_reads();
        }
    }

    /// All steps.
    pub fn steps(&self) -> &[Past] {
        &self.steps
    }

    /// What has to be done where the reads need not be done again.
    pub fn commands(&self) -> Vec<String> {
        let commands = |phase: &ReadPhase| phase.steps.iter().filter_map(Past::command).collect();
        if self.reads == 0 { commands(self) } else { commands(&self.without_reads()) }
    }

    pub fn has_reads(&self) -> bool {
        self.reads > 0
    }

    pub fn has_settings(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Past::Setting(_)))
    }

    /// Too much was read to be kept.
    pub fn has_lost_reads(&self) -> bool {
        self.lost
    }

    /// Nothing has been done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && !self.lost
    }

    fn savepoint(&self, name: &str) -> Option<usize> {
        let is_named = |step: &usize| matches!(&self.steps[*step], Past::Savepoint(known) if known == name);
        self.savepoints.iter().rposition(is_named)
    }

    fn has_read_since(&self, made: usize) -> bool {
        self.reads > 0 && self.steps[made..].iter().any(|step| matches!(step, Past::Read(_)))
    }

    /// The same as if nothing had been read: steps that undo each other are left out.
    fn without_reads(&self) -> ReadPhase {
        let mut phase = ReadPhase::default();
        for step in self.steps.iter().filter(|step| !matches!(step, Past::Read(_))) {
            phase.note(step.clone());
        }
        phase
    }

    fn lose_reads(&mut self) {
        *self = ReadPhase { lost: true, ..self.without_reads() };
    }

    fn count(&mut self) {
        self.bytes = self.steps.iter().map(Past::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Past {
        Past::Read(Read { request: Request::Simple(text.to_owned()), hash: 1, read_under: 0 })
    }

    fn setting(text: &str) -> Past {
        Past::Setting(text.to_owned())
    }

    fn savepoint(name: &str) -> Past {
        Past::Savepoint(name.to_owned())
    }

    fn released(name: &str) -> Past {
        Past::Released(name.to_owned())
    }

    fn returned_to(name: &str) -> Past {
        Past::ReturnedTo(name.to_owned())
    }

    fn phase(steps: impl IntoIterator<Item = Past>) -> ReadPhase {
        let mut phase = ReadPhase::default();
        steps.into_iter().for_each(|step| phase.note(step));
        phase
    }

    fn all(phase: &ReadPhase) -> String {
        let text = |step: &Past| match step {
            Past::Read(Read { request: Request::Simple(text), .. }) => text.clone(),
            step => step.command().unwrap(),
        };
        phase.steps().iter().map(text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn steps_keep_their_order_where_something_was_read_between_them() {
        let phase = phase([
            read("declare"),
            savepoint("s"),
            read("fetch"),
            returned_to("s"),
            setting("SET a"),
            savepoint("T"),
            read("again"),
            released("T"),
        ]);
        assert_eq!(
            all(&phase),
            "declare; SAVEPOINT \"s\"; fetch; ROLLBACK TO SAVEPOINT \"s\"; SET a; SAVEPOINT \"T\"; again; \
             RELEASE SAVEPOINT \"T\""
        );
        assert_eq!(phase.commands(), ["SAVEPOINT \"s\"", "SET a"], "what is left of it without reads");
    }

    #[test]
    fn steps_that_undo_each_other_are_forgotten_where_nothing_was_read_between_them() {
        let forgotten = phase([
            savepoint("s"),
            setting("SET a"),
            savepoint("t"),
            setting("SET b"),
            released("t"),
            setting("SET c"),
        ]);
        assert_eq!(all(&forgotten), "SAVEPOINT \"s\"; SET a; SET b; SET c");
        let mut returned = forgotten;
        returned.note(returned_to("s"));
        assert_eq!(all(&returned), "SAVEPOINT \"s\"");
        returned.note(setting("SET d"));
        returned.note(released("s"));
        assert_eq!(all(&returned), "SET d");
        // A savepoint hides an earlier one of its name until it is released.
        let hidden = phase([
            savepoint("s"),
            setting("SET a"),
            savepoint("s"),
            setting("SET b"),
            returned_to("s"),
            returned_to("s"),
            released("s"),
            returned_to("s"),
        ]);
        assert_eq!(all(&hidden), "SAVEPOINT \"s\"");
        let mut many = ReadPhase::default();
        for _ in 0..1000 {
            many.note(savepoint("s"));
            many.note(released("s"));
        }
        assert!(many.is_empty() && many.bytes == 0);
    }

    #[test]
    fn too_many_reads_are_not_kept_and_savepoints_are() {
        let mut phase = phase([savepoint("s"), read("one"), returned_to("s"), setting("SET a")]);
        phase.note(read(&" ".repeat(BYTES_MAX)));
        assert!(phase.has_lost_reads() && !phase.has_reads() && !phase.is_empty());
        assert_eq!(phase.commands(), ["SAVEPOINT \"s\"", "SET a"]);
        phase.note(read("two"));
        phase.note(savepoint("t"));
        phase.note(returned_to("s"));
        assert_eq!(all(&phase), "SAVEPOINT \"s\"");
    }
}
