//! What a site's CPU does, and in which order what is ready commits.

use onecopy_core::event::Outcome as Executed;
use onecopy_core::{Event, ReplicaId, TxnId};

use super::{Fault, Job, Simulation, Wake};
use crate::server::Kind;

impl Simulation<'_> {
    pub(super) fn work(&mut self, site: usize, kind: Kind, cost_ns: u64, job: Job) {
        let now = self.queue.now();
        self.servers[site].arrive(now, kind, cost_ns, job);
        self.expect_completion(site);
    }

    /// Whoever may execute begins, unless it is found to come too early.
    pub(super) fn admit(&mut self, site: usize) {
        while self.setup.executing_max.is_none_or(|max| self.admissions[site].executing < max)
            && let Some((&txn, &op)) = self.admissions[site].waiting.first_key_value()
        {
            if self.txns[txn.0 as usize].served.updates {
                self.feed(site, Event::Opening { txn });
            }
            if self.admissions[site].waiting.get(&txn) == Some(&op) {
                self.admissions[site].waiting.remove(&txn);
                self.begin(site, txn, op);
            }
        }
    }

    fn expect_completion(&mut self, site: usize) {
        if let Some(at) = self.servers[site].expect_completion() {
            self.queue.schedule(at, Wake::Completion(site));
        }
    }

    pub(super) fn on_completion(&mut self, site: usize) {
        let now = self.queue.now();
        if !self.servers[site].is_expected(now) {
            return;
        }
        while let Some(job) = self.servers[site].complete(now) {
            self.done(site, job);
        }
        self.expect_completion(site);
    }

    fn done(&mut self, site: usize, job: Job) {
        let now = self.queue.now();
        let replica = ReplicaId(site as u16);
        match job {
            Job::Execute { txn, op } => {
                self.admissions[site].executing -= 1;
                let of = &mut self.txns[txn.0 as usize];
                if of.served.executed_at == Some(site) {
                    of.served.executed = Some(now);
                }
                let outcome = match of.arriving.fails {
                    true => Executed::Failed,
                    false => Executed::Done { returned: Vec::new() },
                };
                if !of.served.updates {
                    self.answered(txn, site);
                }
                self.feed(site, Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
                self.admit(site);
            }
            Job::Commit { txn, .. } | Job::Apply { txn, .. } => self.may_commit(site, txn, job),
            Job::Take(packet) => self.take(site, packet),
            Job::Token => self.pass_token(site),
        }
    }

    /// Where commits are in order, this is the next one.
    pub(super) fn expect_commit(&mut self, site: usize, txn: TxnId) {
        if let Some(gates) = &mut self.gates
            && gates[site].iter().all(|(other, _)| *other != txn)
        {
            gates[site].push_back((txn, None));
        }
    }

    /// What is ready commits, once all have that are to commit before it.
    fn may_commit(&mut self, site: usize, txn: TxnId, job: Job) {
        let Some(gates) = &mut self.gates else { return self.commit(site, job) };
        if let Some((_, ready)) = gates[site].iter_mut().find(|(other, _)| *other == txn) {
            *ready = Some(job);
        }
        while let Some(gate) = self.gates.as_mut().map(|gates| &mut gates[site])
            && gate.front().is_some_and(|(_, ready)| ready.is_some())
            && let Some((_, Some(job))) = gate.pop_front()
        {
            self.commit(site, job);
        }
    }

    fn commit(&mut self, site: usize, job: Job) {
        let replica = ReplicaId(site as u16);
        match job {
            Job::Commit { txn, csn } => {
                self.committed(site, txn);
                self.feed(site, Event::Applied { replica, csn });
            }
            Job::Apply { txn, origin } => {
                self.committed(site, txn);
                self.feed(site, Event::ShippedApplied { origin, txn, replica });
            }
            Job::Execute { .. } | Job::Take(_) | Job::Token => {}
        }
    }

    fn committed(&mut self, site: usize, txn: TxnId) {
        let of = &mut self.txns[txn.0 as usize];
        of.commits += 1;
        self.awaited -= 1;
        self.contents.write(txn, site, &of.arriving.writes);
        if of.commits < self.servers.len() as u16 {
            return;
        }
        // It is executed nowhere any more.
        let found = (0..self.servers.len()).filter_map(|site| Some((site, self.contents.found(txn, site)?)));
        let first = self.contents.found(txn, of.served.site);
        let differs = found.into_iter().find(|(_, found)| first.is_some_and(|first| first != *found));
        if let Some((site, _)) = differs {
            self.fault(Fault::Disagreement { txn, site });
        }
    }
}
