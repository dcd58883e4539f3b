//! What clients were told, and what must be true in the end.
//!
//! Checked in the end: everybody who could be is answered; all sites contain the same, and every update that stands in the log and does not fail; each found
//! at its place what one copy would have shown it there, wherever it was executed; what clients were told rests on that. Checked at each commit and answer of
//! those that lose nothing: it is durable.

use std::collections::{BTreeMap, BTreeSet};

use onecopy_core::multicast::MessageId;
use onecopy_core::{Csn, Instant, TxnId};

use super::database::{Found, Version};
use super::site::Reply;
use super::{Failed, Fault, Simulation, Txn, index_of};
use crate::check::{History, MalformedHistory, Operation, Process, Register, Status, Transaction, Value};

/// What a client knows of its transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    Waiting,
    /// Its site was not there, or did not answer what only reads.
    Refused,
    /// Its site was lost.
    Unknown {
        at: Instant,
    },
    Aborted {
        at: Instant,
    },
    Committed {
        at: Instant,
        /// Nothing if it was told that its results were lost.
        reply: Option<Reply>,
        /// Its own place, if that was not known to be durable.
        rests_on: Vec<(Csn, MessageId)>,
    },
}

/// Of each update that happened, what it found at its place.
type Happened = BTreeMap<usize, Found>;

impl Simulation<'_> {
    pub(super) fn end(&mut self, of: usize, end: End) {
        if self.txns[of].end != End::Waiting {
            return self.senseless(of, "is answered twice");
        }
        self.txns[of].end = end;
    }

    pub(super) fn finish(mut self) -> Result<Failed, MalformedHistory> {
        if let Some(of) = self.txns.iter().position(|txn| txn.end == End::Waiting) {
            self.fault(Fault::Stuck { txn: TxnId(of as u64) });
        } else if !self.is_over {
            let places = self.log.durable().len() as u64;
            let missing = self.sites.iter().map(|site| places.saturating_sub(site.now.floor.0)).sum();
            self.fault(Fault::Missing { missing });
        }
        if !self.log.is_kept() {
            self.fault(Fault::Invariant { what: "the log has lost what was durable".to_owned() });
        }
        let happened = if self.is_over { self.compare() } else { Happened::new() };
        let mut lost = Vec::new();
        for of in 0..self.txns.len() {
            let is_told = matches!(self.txns[of].end, End::Committed { .. }) && self.txns[of].is_update();
            if is_told && self.is_over && !happened.contains_key(&of) {
                let txn = TxnId(of as u64);
                lost.push(txn);
                if self.family.loses_nothing() {
                    self.fault(Fault::Lost { txn });
                }
            }
        }
        let transactions = (0..self.txns.len()).filter_map(|of| self.told(of, &happened)).collect();
        let history = History::new(transactions)?;
        let events = self.queue.scheduled();
        Ok(Failed { history, faults: self.faults, lost, happened: self.happened, events })
    }

    /// All sites with each other, and with one copy that takes what they contain in its order.
    fn compare(&mut self) -> Happened {
        let databases: Vec<_> = self.sites.iter().map(|site| &site.database).collect();
        let (first, others) = databases.split_first().expect("there are sites");
        let mut faults = Vec::new();
        for (site, other) in (1..).zip(others) {
            let mut registers = first.registers().keys().chain(other.registers().keys());
            let differs =
                |register: &&u64| first.registers().get(register) != other.registers().get(register);
            if let Some(register) = registers.find(differs) {
                faults.push(Fault::Differs { site, register: *register });
            } else if first.changed() != other.changed() {
                faults.push(Fault::Missing { missing: 1 });
            }
        }
        let versions: Vec<BTreeMap<Csn, Version>> =
            databases.iter().map(|database| database.versions()).collect();
        let mut happened = Happened::new();
        let mut copy: BTreeMap<u64, Version> = BTreeMap::new();
        for (place, id) in first.changed() {
            let of = self.messages[index_of(id)].of;
            let (txn, arriving) = (TxnId(of as u64), &self.txns[of].arriving);
            let found: Found = arriving.reads.iter().map(|register| copy.get(register).copied()).collect();
            let version = Version::new(txn, &found);
            if let Some(site) = versions.iter().position(|versions| versions.get(&place) != Some(&version)) {
                faults.push(Fault::Disagreement { txn, site });
            }
            copy.extend(arriving.writes.iter().map(|register| (*register, version)));
            if self.log.durable_at(place) != Some(id) || happened.insert(of, found).is_some() {
                faults.push(Fault::Senseless { txn, what: "happened twice, or where it does not stand" });
            }
        }
        if !self.family.is_certified() {
            let stand: BTreeSet<usize> =
                self.log.durable().iter().map(|id| self.messages[index_of(*id)].of).collect();
            let is_missing = |of: &&usize| !self.txns[**of].arriving.fails && !happened.contains_key(*of);
            let missing = stand.iter().filter(is_missing).count() as u64;
            faults.extend((missing > 0).then_some(Fault::Missing { missing }));
        }
        faults.into_iter().for_each(|fault| self.fault(fault));
        happened
    }

    fn stands(&self, places: &[(Csn, MessageId)]) -> bool {
        places.iter().all(|(place, id)| self.log.durable_at(*place) == Some(*id))
    }

    /// What a client was told, in the words of the checker. What a site answered that rests on places that were lost says nothing of the others.
    fn told(&mut self, of: usize, happened: &Happened) -> Option<Transaction> {
        let txn = &self.txns[of];
        let none = Found::new();
        let happened = happened.get(&of);
        let (at, status, found) = match &txn.end {
            End::Waiting | End::Refused => return None,
            End::Unknown { at } => (*at, Status::Unknown, happened),
            End::Aborted { .. } if happened.is_some() => {
                self.senseless(of, "happened, and its client was told that it did not");
                return None;
            }
            End::Aborted { at } => (*at, Status::Aborted, None),
            End::Committed { at, reply, rests_on } => {
                let of_reply = reply.as_ref().map_or(&[][..], |reply| &reply.rests_on);
                let stands = self.stands(rests_on) && self.stands(of_reply);
                match (reply, txn.is_update()) {
                    (_, false) if !stands => {
                        self.note("a query has read what never happened");
                        return None;
                    }
                    (reply, false) => (*at, Status::Committed, reply.as_ref().map(|reply| &reply.found)),
                    (_, true) if happened.is_none() => (*at, Status::Unknown, None),
                    (Some(reply), true) if stands && Some(&reply.found) != happened => {
                        let (txn, site) = (TxnId(of as u64), txn.site);
                        self.fault(Fault::Disagreement { txn, site });
                        return None;
                    }
                    (_, true) => (*at, Status::Committed, happened),
                }
            }
        };
        Some(transaction(of, txn, at, status, found.unwrap_or(&none)))
    }
}

/// Each transaction comes from a client of its own.
fn transaction(of: usize, txn: &Txn, at: Instant, status: Status, found: &Found) -> Transaction {
    // A history's values are numbers above zero.
    let value = |of: u64| Value(of + 1);
    let reads = txn.arriving.reads.iter().zip(found);
    let reads = reads.map(|(register, found)| Operation::Read {
        register: Register(*register),
        value: found.map(|found| value(found.txn.0)),
    });
    let write = |register: &u64| Operation::Write { register: Register(*register), value: value(of as u64) };
    Transaction {
        process: Process(of as u32),
        invoked_ns: txn.arrived.0,
        completed_ns: at.0,
        status,
        operations: reads.chain(txn.arriving.writes.iter().map(write)).collect(),
    }
}
