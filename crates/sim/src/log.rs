//! The simulated commit log: appended at once, durable later, in groups.

use std::rc::Rc;

use onecopy_core::{Csn, TableId, TxnId};

use crate::plan::{Answer, Plan};

/// One statement as the log carries it, with what it did at home.
#[derive(Clone, PartialEq, Debug)]
pub struct Kept {
    /// What the client asked for.
    pub plan: Plan,
    /// What came of it at home.
    pub answer: Answer,
    /// Whether the changed rows are shipped, rather than the statement.
    pub captured: bool,
}

impl Kept {
    /// What is executed where the record is applied.
    #[must_use]
    pub fn to_apply(&self) -> Plan {
        if self.captured { Plan::Images(self.answer.changes.clone().into()) } else { self.plan.clone() }
    }
}

/// What is decided.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    /// A transaction commits with these writes.
    Commit {
        /// The transaction.
        txn: TxnId,
        /// Its writes in order.
        writes: Rc<[Kept]>,
    },
    /// Values of a sequence are reserved.
    Reserve {
        /// The sequence.
        sequence: TableId,
        /// The last value reserved.
        last: i64,
    },
}

/// The log of one served database, from its first decision, with what a driver keeps in each record.
#[derive(Debug)]
pub struct Log<R = Record> {
    records: Vec<R>,
    durable: Csn,
    flushing: Option<Csn>,
}

impl<R> Default for Log<R> {
    fn default() -> Log<R> {
        Log { records: Vec::new(), durable: Csn(0), flushing: None }
    }
}

impl<R> Log<R> {
    /// Adds a record. Returns its CSN.
    pub fn append(&mut self, record: R) -> Csn {
        self.records.push(record);
        self.end()
    }

    /// The last record, durable or not.
    #[must_use]
    pub fn end(&self) -> Csn {
        Csn(self.records.len() as u64)
    }

    /// The last record that no crash can take away.
    #[must_use]
    pub fn durable(&self) -> Csn {
        self.durable
    }

    /// Starts to write everything appended so far, unless a write is under way or there is nothing. Whether it did.
    pub fn start_flush(&mut self) -> bool {
        let needed = self.flushing.is_none() && self.durable < self.end();
        if needed {
            self.flushing = Some(self.end());
        }
        needed
    }

    /// The write that is under way is done. Returns the last durable record.
    pub fn finish_flush(&mut self) -> Csn {
        self.durable = self.flushing.take().unwrap_or(self.durable);
        self.durable
    }

    /// The node crashed: of what was not durable, `survivors` records happened to reach the disk.
    pub fn crash(&mut self, survivors: u64) {
        let end = self.end().0.min(self.durable.0 + survivors);
        self.records.truncate(end as usize);
        self.durable = Csn(end);
        self.flushing = None;
    }

    /// A record; `None` if there is none with this CSN.
    #[must_use]
    pub fn get(&self, csn: Csn) -> Option<&R> {
        let index = csn.0.checked_sub(1)?;
        self.records.get(usize::try_from(index).ok()?)
    }

    /// All records in order.
    pub fn iter(&self) -> impl Iterator<Item = (Csn, &R)> {
        (1..).map(Csn).zip(&self.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(last: i64) -> Record {
        Record::Reserve { sequence: TableId(1), last }
    }

    #[test]
    fn what_is_appended_during_a_write_waits_for_the_next_one() {
        let mut log: Log = Log::default();
        assert!(!log.start_flush(), "nothing to write");
        log.append(reserve(1));
        assert!(log.start_flush());
        log.append(reserve(2));
        assert!(!log.start_flush(), "one is under way");
        assert_eq!(log.finish_flush(), Csn(1));
        assert!(log.start_flush());
        assert_eq!(log.finish_flush(), Csn(2));
    }

    #[test]
    fn a_crash_keeps_what_is_durable_and_perhaps_a_little_more() {
        let mut log: Log = Log::default();
        (1..=4).for_each(|last| _ = log.append(reserve(last)));
        log.start_flush();
        log.crash(1);
        assert_eq!((log.end(), log.durable()), (Csn(1), Csn(1)));
        assert_eq!(log.get(Csn(1)), Some(&reserve(1)));
        assert_eq!(log.get(Csn(2)), None);
    }
}
