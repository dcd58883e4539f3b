//! Whether what a replica contains is the beginning of what the commit log says (design 4).
//!
//! A log that was put back to an earlier state, or that lost its end with its machine (`durability = "memory"`), gives the
//! same numbers to other commits. A replica that has the lost ones would go on over them without anybody noticing.

use onecopy_core::Csn;
use onecopy_log::{Entry, Kind, Log, ReadError};

use crate::postgres::progress::Position;

/// A replica contains what the log does not: it must not serve.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// Commits behind the log's end.
    #[error(
        "it contains commit {csn}, and the commit log ends with {end}: the log has lost commits; copy it anew from another replica"
    )]
    Ahead { csn: Csn, end: Csn },
    /// The log has another commit in the place of its last one.
    #[error(
        "its commit {csn} was made in epoch {found} of the commit log, which decided that commit in epoch {expected}: it contains commits that the log has lost; copy it anew from another replica"
    )]
    Forked { csn: Csn, found: u64, expected: u64 },
    #[error("read the commit log: {0}")]
    Unreadable(ReadError),
}

/// Compares a replica's position with the log.
///
/// A replica marks what it contains with the epoch of the decision, and no two processes have the same one.
///
/// # Errors
/// [`Stranger`]. Commits that the log does not hold any more cannot be compared and pass.
pub fn check(log: &Log, position: &Position) -> Result<(), Stranger> {
    let (csn, end) = (position.csn, log.durable().csn);
    if csn > end {
        return Err(Stranger::Ahead { csn, end });
    }
    let mut records = match log.read_from(csn) {
        Ok(records) => records,
        Err(ReadError::Truncated { .. }) => return Ok(()),
        Err(error) => return Err(Stranger::Unreadable(error)),
    };
    while let Some(Entry { record, .. }) = records.try_next().map_err(Stranger::Unreadable)? {
        if record.kind == Kind::COMMIT && record.csn == csn && position.epoch != record.epoch.0 {
            return Err(Stranger::Forked { csn, found: position.epoch, expected: record.epoch.0 });
        }
        if record.csn >= csn {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onecopy_core::Epoch;
    use onecopy_log::{Genesis, Hooks, LogId, Options, Record};

    use super::*;

    /// A log of three commits, the last one of epoch 2.
    fn log(dir: &std::path::Path) -> Log {
        let genesis = Genesis { log_id: LogId(7), epoch: Epoch(1), after: Csn(0) };
        let options = Options { genesis: Some(genesis), ..Options::default() };
        let (log, _) = Log::open(dir, options, Hooks::new(|_| {}, |_| {})).unwrap();
        for (epoch, csn) in [(1, 1), (1, 2), (2, 3)] {
            log.append(Record::commit(Epoch(epoch), Csn(csn), Bytes::from_static(b"w"))).unwrap();
        }
        while log.durable().csn < Csn(3) {
            std::thread::yield_now();
        }
        log
    }

    #[test]
    fn replica_goes_on_only_where_the_log_has_the_same_commits() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let at = |epoch, csn| {
            let (log_id, secret) = (String::new(), String::new());
            check(&log, &Position { log_id, epoch, csn: Csn(csn), secret, differs: None })
        };
        for (epoch, csn) in [(0, 0), (1, 1), (1, 2), (2, 3)] {
            assert!(at(epoch, csn).is_ok(), "commit {csn} of epoch {epoch}");
        }
        assert!(matches!(at(5, 2), Err(Stranger::Forked { csn: Csn(2), found: 5, expected: 1 })));
        assert!(matches!(at(1, 3), Err(Stranger::Forked { csn: Csn(3), found: 1, expected: 2 })));
        assert!(matches!(at(1, 4), Err(Stranger::Ahead { csn: Csn(4), end: Csn(3) })));
    }
}
