//! Why a replica is out of service, for people and for programs.

use parking_lot::Mutex;

use crate::clock::Stopwatch;

/// What keeps a replica out of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Nobody has tried yet.
    Starting,
    /// No connection to it can be opened.
    Unreachable,
    /// It is connected, and leaves a question unanswered.
    Silent,
    /// A connection to it ended; what it contains is found out anew.
    ConnectionLost,
    /// Sessions that may still execute what was sent before do not end.
    SessionsRemain,
    /// A commit cannot be applied to it.
    RecordFails,
    /// A commit has waited there for too long, for somebody who is not onecopy.
    Stuck,
    /// Its contents differ from those of the others.
    Differs,
    /// It follows another commit log.
    OtherLog,
    /// It contains commits that the commit log has lost.
    OtherHistory,
    /// The commit log does not hold any more what it lacks.
    RecordsGone,
    /// Its server is of another version than what the log holds for it was written for.
    OtherVersion,
    /// onecopy's schema is missing on it.
    NoSchema,
    /// It is being copied from another one.
    Copying,
    /// Another node leads, and uses it.
    OtherLeader,
}

impl Reason {
    /// The word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Starting => "starting",
            Reason::Unreachable => "unreachable",
            Reason::Silent => "silent",
            Reason::ConnectionLost => "connection_lost",
            Reason::SessionsRemain => "sessions_remain",
            Reason::RecordFails => "record_fails",
            Reason::Stuck => "stuck",
            Reason::Differs => "differs",
            Reason::OtherLog => "other_log",
            Reason::OtherHistory => "other_history",
            Reason::RecordsGone => "records_gone",
            Reason::OtherVersion => "other_version",
            Reason::NoSchema => "no_schema",
            Reason::Copying => "copying",
            Reason::OtherLeader => "other_leader",
        }
    }
}

/// A replica that is out of service.
#[derive(Clone, Debug)]
pub struct Absence {
    pub reason: Reason,
    /// What happened and what to do about it, for people.
    pub detail: String,
    since: Stopwatch,
}

impl Absence {
    /// Seconds for which the replica has been out of service, for whatever reasons.
    pub fn lasts_s(&self) -> u64 {
        self.since.elapsed_s()
    }
}

/// Whether a replica serves, and why not.
pub struct Standing(Mutex<Option<Absence>>);

impl Default for Standing {
    fn default() -> Standing {
        let detail = "it has not been in service since onecopy was started".to_owned();
        Standing(Mutex::new(Some(Absence { reason: Reason::Starting, detail, since: Stopwatch::start() })))
    }
}

impl Standing {
    /// The replica serves.
    pub fn enter(&self) {
        *self.0.lock() = None;
    }

    /// The replica does not serve, or still does not. Whether this says anything new.
    pub fn leave(&self, reason: Reason, detail: String) -> bool {
        let mut absence = self.0.lock();
        let is_new = absence.as_ref().is_none_or(|known| known.reason != reason);
        let since = absence.as_ref().map_or_else(Stopwatch::start, |known| known.since);
        *absence = Some(Absence { reason, detail, since });
        is_new
    }

    /// Why it is out of service; `None` when it serves.
    pub fn absence(&self) -> Option<Absence> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_news_only_when_its_reason_changes() {
        let standing = Standing::default();
        assert_eq!(standing.absence().unwrap().reason, Reason::Starting);
        assert!(standing.leave(Reason::Unreachable, "refused".to_owned()));
        assert!(!standing.leave(Reason::Unreachable, "timed out".to_owned()));
        assert_eq!(standing.absence().unwrap().detail, "timed out");
        standing.enter();
        assert!(standing.absence().is_none());
        assert!(standing.leave(Reason::Unreachable, "refused".to_owned()));
    }
}
