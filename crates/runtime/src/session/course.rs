//! What a transaction has done so far, in the order in which it did it.
//!
//! A server forgets all of it when the transaction goes on elsewhere: at its home after its first write, in another
//! snapshot, or at another home if its own was lost. So it is done again there, with settings, savepoints, reads and writes in
//! their places among each other: a cursor that was declared before a savepoint outlives a return to it, a read is made under
//! the settings under which it was made, and a later return to a savepoint undoes what was written since. What is read at a
//! home is not kept: its items are held, so it would be the same.

use std::mem::size_of;
use std::ops::Range;

use super::unit::Request;
use crate::agent::quote_identifier;

/// Bytes of steps that are kept for doing them again. Of more than that settings, savepoints and writes are kept, and no reads: if
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
    /// These of the writes that its transaction keeps for its record.
    Wrote(Range<usize>),
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
    /// The command that does it again; of reads and writes there is none.
    pub fn command(&self) -> Option<String> {
        match self {
            Past::Setting(command) => Some(command.clone()),
            Past::Savepoint(name) => Some(format!("SAVEPOINT {}", quote_identifier(name))),
            Past::Released(name) => Some(format!("RELEASE SAVEPOINT {}", quote_identifier(name))),
            Past::ReturnedTo(name) => Some(format!("ROLLBACK TO SAVEPOINT {}", quote_identifier(name))),
            Past::Read(_) | Past::Wrote(_) => None,
        }
    }

    fn len(&self) -> usize {
        let bytes = match self {
            Past::Setting(text) | Past::Savepoint(text) | Past::Released(text) | Past::ReturnedTo(text) => {
                text.len()
            }
            Past::Read(read) => read.request.len(),
            Past::Wrote(_) => 0,
        };
        bytes + size_of::<Past>()
    }
}

/// The steps of a transaction.
#[derive(Default)]
pub struct Course {
    steps: Vec<Past>,
    /// Where savepoints to which the transaction may return were made among the steps.
    savepoints: Vec<usize>,
    bytes: usize,
    reads: usize,
    lost: bool,
}

impl Course {
    /// Keeps a step.
    pub fn note(&mut self, step: Past) {
        match &step {
            Past::Savepoint(_) => self.savepoints.push(self.steps.len()),
            Past::Released(name) => {
                let Some(at) = self.savepoint(name) else { return };
                let made = self.savepoints[at];
                self.savepoints.truncate(at);
                if !self.has_read_since(made) {
                    // All that remains of it are settings and writes.
                    let since = self.steps.split_off(made);
                    let kept =
                        since.into_iter().filter(|step| matches!(step, Past::Setting(_) | Past::Wrote(_)));
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
                // Its transaction has forgotten them.
                let mut at = 0;
                self.steps.retain(|step| {
                    at += 1;
                    at <= made || !matches!(step, Past::Wrote(_))
                });
                self.count();
            }
            Past::Read(_) if self.lost => return,
            Past::Read(_) => self.reads += 1,
            Past::Wrote(which) => {
                // Writes in a row are one step, however many.
                if let Some(Past::Wrote(before)) = self.steps.last_mut()
                    && before.end == which.start
                {
                    before.end = which.end;
                    return;
                }
            }
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

    /// The commands that have to be done where nothing was written yet and the reads need not be done again.
    pub fn commands(&self) -> Vec<String> {
        let commands = |course: &Course| course.steps.iter().filter_map(Past::command).collect();
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
    pub fn without_reads(&self) -> Course {
        let mut course = Course::default();
        for step in self.steps.iter().filter(|step| !matches!(step, Past::Read(_))) {
            course.note(step.clone());
        }
        course
    }

    fn lose_reads(&mut self) {
        *self = Course { lost: true, ..self.without_reads() };
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

    fn course(steps: impl IntoIterator<Item = Past>) -> Course {
        let mut course = Course::default();
        steps.into_iter().for_each(|step| course.note(step));
        course
    }

    fn all(course: &Course) -> String {
        let text = |step: &Past| match step {
            Past::Read(Read { request: Request::Simple(text), .. }) => text.clone(),
            step => step.command().unwrap(),
        };
        course.steps().iter().map(text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn steps_keep_their_order_where_something_was_read_between_them() {
        let kept = course([
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
            all(&kept),
            "declare; SAVEPOINT \"s\"; fetch; ROLLBACK TO SAVEPOINT \"s\"; SET a; SAVEPOINT \"T\"; again; \
             RELEASE SAVEPOINT \"T\""
        );
        assert_eq!(kept.commands(), ["SAVEPOINT \"s\"", "SET a"], "what is left of it without reads");
    }

    #[test]
    fn steps_that_undo_each_other_are_forgotten_where_nothing_was_read_between_them() {
        let forgotten = course([
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
        let hidden = course([
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
        let mut many = Course::default();
        for _ in 0..1000 {
            many.note(savepoint("s"));
            many.note(released("s"));
        }
        assert!(many.is_empty() && many.bytes == 0);
    }

    #[test]
    fn writes_are_done_again_in_their_places_unless_a_return_to_a_savepoint_has_undone_them() {
        let kept = course([
            Past::Wrote(0..1),
            savepoint("s"),
            Past::Wrote(1..2),
            Past::Wrote(2..3),
            setting("SET a"),
            released("s"),
            savepoint("t"),
            read("fetch"),
            Past::Wrote(3..4),
            returned_to("t"),
            Past::Wrote(3..5),
        ]);
        let writes = kept.steps().iter().filter_map(|step| match step {
            Past::Wrote(range) => Some(range.clone()),
            _ => None,
        });
        assert_eq!(writes.collect::<Vec<_>>(), [0..1, 1..3, 3..5]);
        assert_eq!(kept.steps().len(), 7, "{:?}", kept.steps());
        let without = kept.without_reads();
        assert!(
            matches!(without.steps(), [
            Past::Wrote(first), Past::Setting(_), Past::Savepoint(_), Past::Wrote(second)
        ] if (first, second) == (&(0..3), &(3..5))),
            "{:?}",
            without.steps()
        );
    }

    #[test]
    fn too_many_reads_are_not_kept_and_savepoints_are() {
        let mut kept = course([savepoint("s"), read("one"), returned_to("s"), setting("SET a")]);
        kept.note(read(&" ".repeat(BYTES_MAX)));
        assert!(kept.has_lost_reads() && !kept.has_reads() && !kept.is_empty());
        assert_eq!(kept.commands(), ["SAVEPOINT \"s\"", "SET a"]);
        kept.note(read("two"));
        kept.note(savepoint("t"));
        kept.note(returned_to("s"));
        assert_eq!(all(&kept), "SAVEPOINT \"s\"");
    }
}
