//! Which sessions have committed what, as the log says: asked when a session goes on at another node, and nobody has heard
//! whether its last commit was decided.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use onecopy_core::Csn;
use onecopy_log::{Kind, Log, ReadError, Reader};
use parking_lot::{Condvar, Mutex};

use crate::record::{Origin, Record};

/// Sessions that are kept in mind; then the half that committed longest ago is forgotten.
const SESSIONS_MAX: usize = 200_000;
/// Between looking whether the thread has read so far.
const READ_PAUSE: Duration = Duration::from_millis(1);
/// After the log could not be read.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the log that are read for it at a start.
const READ_BYTES_AT_START: u64 = 64 << 20;

/// What became of the commits that a session has heard nothing of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// There were none, and there never will be.
    Nothing,
    /// Its commits up to this number were decided, the last one as this commit.
    Committed { number: u64, csn: Csn },
    /// That was too long ago.
    Unknown,
}

/// What the log says of sessions, kept up to date by a thread of its own.
pub struct Origins {
    known: Mutex<Known>,
    /// Somebody waits until more is known, or the thread for more to read.
    changed: Condvar,
}

struct Known {
    /// Each one's last commit.
    sessions: HashMap<[u8; 16], (u64, Csn)>,
    /// Of all commits behind this one it is known whose they are.
    since: Csn,
    /// All commits up to this one were looked at.
    read: Csn,
    /// Commits up to this one can be read.
    durable: Csn,
    is_over: bool,
}

impl Known {
    fn note(&mut self, csn: Csn, origin: Option<Origin>) {
        self.read = csn;
        if let Some(Origin { session, number }) = origin {
            self.sessions.insert(session, (number, csn));
            if self.sessions.len() > SESSIONS_MAX {
                self.forget_half();
            }
        }
    }

    fn forget_half(&mut self) {
        let mut times: Vec<Csn> = self.sessions.values().map(|(_, csn)| *csn).collect();
        let middle = times.len() / 2;
        let (_, until, _) = times.select_nth_unstable(middle);
        let until = *until;
        self.sessions.retain(|_, (_, csn)| *csn > until);
        self.since = self.since.max(until);
    }

    fn outcome(&self, session: &[u8; 16], number: u64, heard: Csn) -> Outcome {
        match self.sessions.get(session) {
            Some(&(last, csn)) if last > number => Outcome::Committed { number: last, csn },
            // Whatever it committed then is behind what it had heard of, and would be here.
            _ if heard >= self.since => Outcome::Nothing,
            _ => Outcome::Unknown,
        }
    }
}

impl Origins {
    /// Begins to read the log.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(log: &Arc<Log>) -> std::io::Result<Arc<Origins>> {
        let held = log.held();
        let from = log.oldest_within(READ_BYTES_AT_START).max(held.first);
        let before = Csn(from.0.saturating_sub(1)).min(held.last);
        let known = Known {
            sessions: HashMap::new(),
            since: before,
            read: before,
            durable: held.last,
            is_over: false,
        };
        let origins = Arc::new(Origins { known: Mutex::new(known), changed: Condvar::new() });
        let (reading, log) = (origins.clone(), log.clone());
        std::thread::Builder::new().name("onecopy-origins".into()).spawn(move || reading.keep(&log))?;
        Ok(origins)
    }

    /// Commits up to this one are durable on a majority.
    pub fn advance(&self, durable: Csn) {
        let mut known = self.known.lock();
        if durable > known.durable {
            known.durable = durable;
            drop(known);
            self.changed.notify_all();
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.known.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits until all commits up to this one were looked at.
    pub async fn read_up_to(&self, csn: Csn) {
        let lags = || {
            let known = self.known.lock();
            known.read < csn && !known.is_over
        };
        while lags() {
            tokio::time::sleep(READ_PAUSE).await;
        }
    }

    /// What became of what a session committed after its commit `number`, of which it was the last to hear when commit `heard`
    /// was the last of all.
    pub fn outcome(&self, session: &[u8; 16], number: u64, heard: Csn) -> Outcome {
        self.known.lock().outcome(session, number, heard)
    }

    fn keep(&self, log: &Log) {
        loop {
            let from = {
                let mut known = self.known.lock();
                while known.read >= known.durable && !known.is_over {
                    self.changed.wait(&mut known);
                }
                if known.is_over {
                    return;
                }
                known.read.next()
            };
            if let Err(error) = log.read_from(from).and_then(|mut reader| self.read(&mut reader)) {
                // The log was cut off at its beginning, or begins anew: nothing is known of what is gone.
                tracing::info!(%error, "sessions that committed before this are not known any more");
                let first = log.held().first;
                let mut known = self.known.lock();
                let before = Csn(first.0.saturating_sub(1)).max(known.read);
                (known.since, known.read) = (before, before);
                drop(known);
                self.changed.notify_all();
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }

    /// Reads on to the end of what can be read.
    fn read(&self, reader: &mut Reader) -> Result<(), ReadError> {
        while let Some(entry) = reader.try_next()? {
            if entry.record.kind != Kind::COMMIT {
                continue;
            }
            let csn = entry.record.csn;
            let origin = match &entry.record.payload {
                None => Record::origin_of(&entry.record.body),
                // What a body begins with is in the first of its pieces.
                Some(_) => {
                    let first = reader.payload_of(&entry.record)?.next().transpose()?;
                    first.and_then(|chunk| Record::origin_of(&chunk))
                }
            };
            self.known.lock().note(csn, origin);
            self.changed.notify_all();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(since: u64) -> Known {
        let since = Csn(since);
        Known { sessions: HashMap::new(), since, read: since, durable: since, is_over: false }
    }

    #[test]
    fn what_was_committed_is_known_and_what_was_not_too() {
        let (a, b) = ([1; 16], [2; 16]);
        let mut known = known(10);
        known.note(Csn(11), Some(Origin { session: a, number: 3 }));
        known.note(Csn(12), None);
        known.note(Csn(13), Some(Origin { session: a, number: 4 }));
        let committed = Outcome::Committed { number: 4, csn: Csn(13) };
        assert_eq!(known.outcome(&a, 3, Csn(11)), committed);
        assert_eq!(known.outcome(&a, 2, Csn(10)), committed);
        assert_eq!(known.outcome(&a, 4, Csn(13)), Outcome::Nothing);
        assert_eq!(known.outcome(&b, 0, Csn(10)), Outcome::Nothing);
        // It may have committed before what is known of.
        assert_eq!(known.outcome(&b, 0, Csn(9)), Outcome::Unknown);
        assert_eq!(known.read, Csn(13));
    }

    #[test]
    fn sessions_that_committed_longest_ago_are_forgotten_first_and_nothing_is_guessed_of_them() {
        let session = |n: u64| {
            let mut session = [0; 16];
            session[..8].copy_from_slice(&n.to_le_bytes());
            session
        };
        let mut known = known(0);
        let all = SESSIONS_MAX as u64 + 1;
        (1..=all).for_each(|n| known.note(Csn(n), Some(Origin { session: session(n), number: 1 })));
        assert!(known.sessions.len() <= SESSIONS_MAX / 2 + 1);
        assert_eq!(known.outcome(&session(1), 0, Csn(0)), Outcome::Unknown);
        assert_eq!(known.outcome(&session(all), 0, Csn(0)), Outcome::Committed { number: 1, csn: Csn(all) });
        assert_eq!(known.outcome(&session(all), 1, Csn(all)), Outcome::Nothing);
    }
}
