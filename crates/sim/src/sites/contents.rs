//! What sites hold: for each register the transaction that wrote it last; and what clients saw of that.

use std::collections::BTreeMap;

use onecopy_core::map::HashMap;
use onecopy_core::{Instant, TxnId};

use super::Arriving;
use crate::check::{History, MalformedHistory, Operation, Process, Register, Status, Transaction, Value};

type Found = Vec<Option<TxnId>>;

#[derive(Debug)]
pub(super) struct Contents {
    sites: Vec<BTreeMap<u64, TxnId>>,
    /// Of the last execution at each site, what it found in what it reads.
    found: HashMap<(TxnId, usize), Found>,
}

impl Contents {
    pub(super) fn new(sites: usize) -> Contents {
        Contents { sites: vec![BTreeMap::new(); sites], found: HashMap::default() }
    }

    pub(super) fn begin(&mut self, txn: TxnId, site: usize, reads: &[u64]) {
        let found = reads.iter().map(|register| self.sites[site].get(register).copied()).collect();
        self.found.insert((txn, site), found);
    }

    /// What it wrote is committed at a site.
    pub(super) fn write(&mut self, txn: TxnId, site: usize, writes: &[u64]) {
        self.sites[site].extend(writes.iter().map(|register| (*register, txn)));
    }

    pub(super) fn found(&self, txn: TxnId, site: usize) -> Option<&Found> {
        self.found.get(&(txn, site))
    }

    /// The first site that holds something else than the first one, and where.
    pub(super) fn first_difference(&self) -> Option<(usize, u64)> {
        let (first, others) = self.sites.split_first()?;
        others.iter().zip(1..).find_map(|(holds, site)| {
            let mut registers = first.keys().chain(holds.keys());
            Some((site, *registers.find(|register| first.get(register) != holds.get(register))?))
        })
    }
}

/// What clients saw, in the words of the checker. Each transaction comes from a client of its own.
#[derive(Default, Debug)]
pub(super) struct Recorder {
    transactions: Vec<Transaction>,
}

impl Recorder {
    pub(super) fn answered(
        &mut self,
        txn: TxnId,
        arrived: Instant,
        answered: Instant,
        found: &[Option<TxnId>],
        arriving: &Arriving,
    ) {
        // A history's values are numbers above zero.
        let value = |txn: TxnId| Value(txn.0 + 1);
        let reads = arriving.reads.iter().zip(found);
        let reads = reads.map(|(r, saw)| Operation::Read { register: Register(*r), value: saw.map(value) });
        let write = |r: &u64| Operation::Write { register: Register(*r), value: value(txn) };
        let operations = reads.chain(arriving.writes.iter().map(write)).collect();
        self.transactions.push(Transaction {
            process: Process(txn.0 as u32),
            invoked_ns: arrived.0,
            completed_ns: answered.0,
            status: Status::Committed,
            operations,
        });
    }

    pub(super) fn finish(self) -> Result<History, MalformedHistory> {
        History::new(self.transactions)
    }
}
