//! What a site's CPU does, and in which order what is ready commits.

use onecopy_core::event::Outcome as Executed;
use onecopy_core::{Event, Place, ReplicaId, TxnId};

use super::{Fault, InPlace, Job, Simulation, Turn, Wake};
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
            Job::Commit { txn, .. } | Job::Apply { txn, .. } | Job::InPlace(InPlace { txn, .. }) => {
                self.may_commit(site, txn, job);
            }
            Job::Together { first, count } => self.applied_together(site, first, count),
            Job::Take(packet) => self.take(site, packet),
            Job::Token => self.pass_token(site),
        }
    }

    /// Where commits are in order, this is the next one.
    pub(super) fn expect_commit(&mut self, site: usize, txn: TxnId) {
        if let Some(gates) = &mut self.gates
            && gates[site].iter().all(|turn| turn.txn != txn)
        {
            gates[site].push_back(Turn { txn, waits: None, after: None, ready: None });
        }
    }

    /// Begins once all that it conflicts with, of what comes before it, is committed here.
    pub(super) fn execute_in_turn(&mut self, site: usize, what: InPlace) {
        let access = |txn: TxnId| &self.txns[txn.0 as usize].arriving.access;
        let own = access(what.txn);
        let conflicts =
            |txn: &TxnId| access(*txn).iter().any(|one| own.iter().any(|other| one.conflicts(other)));
        let Some(gates) = &self.gates else { return self.execute_in_place(site, what) };
        let before = gates[site].iter().map(|turn| turn.txn).take_while(|txn| *txn != what.txn);
        let after: Vec<TxnId> = before.filter(conflicts).collect();
        let turn =
            self.gates.as_mut().and_then(|gates| gates[site].iter_mut().find(|turn| turn.txn == what.txn));
        match turn {
            Some(turn) if !after.is_empty() => turn.after = Some((what, after)),
            _ => self.execute_in_place(site, what),
        }
    }

    fn execute_in_place(&mut self, site: usize, what: InPlace) {
        let (costs, work) = (self.setup.costs, self.txns[what.txn.0 as usize].arriving.work);
        let execute_ns = work.map_or(costs.update_ns, |work| work.execute_ns);
        self.work(site, Kind::Write, execute_ns + costs.commit_ns, Job::InPlace(what));
    }

    /// This one is committed, or never will be: who waits for nobody else any more executes.
    fn execute_after(&mut self, site: usize, gone: TxnId) {
        let Some(gates) = &mut self.gates else { return };
        let mut begin = Vec::new();
        for turn in &mut gates[site] {
            if let Some((what, after)) = &mut turn.after {
                after.retain(|txn| *txn != gone);
                begin.extend(after.is_empty().then_some(*what));
                if after.is_empty() {
                    turn.after = None;
                }
            }
        }
        begin.into_iter().for_each(|what| self.execute_in_place(site, what));
    }

    fn apply_ns(&self, txn: TxnId) -> u64 {
        let work = self.txns[txn.0 as usize].arriving.work;
        work.map_or(self.setup.costs.apply_ns, |work| work.apply_ns)
    }

    /// What another site has executed is applied: at once, or with others.
    pub(super) fn apply(&mut self, site: usize, txn: TxnId, origin: Place) {
        let turn = match &mut self.gates {
            Some(gates) if self.setup.together_max > 1 => gates[site].iter_mut().find(|turn| turn.txn == txn),
            _ => None,
        };
        match turn {
            Some(turn) => {
                turn.waits = Some(origin);
                self.apply_together(site);
            }
            None => self.work(site, Kind::Write, self.apply_ns(txn), Job::Apply { txn, origin }),
        }
    }

    fn apply_together(&mut self, site: usize) {
        let Some(gates) = self.gates.as_ref().filter(|_| !self.applying[site]) else { return };
        let turns = gates[site].iter().skip_while(|turn| turn.waits.is_none());
        let unit = turns.take_while(|turn| turn.waits.is_some()).take(self.setup.together_max);
        let (mut first, mut count, mut cost_ns) = (None, 0, 0);
        for turn in unit {
            cost_ns += self.apply_ns(turn.txn).saturating_sub(self.setup.costs.apply_ends_ns);
            first.get_or_insert(turn.txn);
            count += 1;
        }
        if let Some(first) = first {
            self.applying[site] = true;
            cost_ns += self.setup.costs.apply_ends_ns;
            self.work(site, Kind::Write, cost_ns, Job::Together { first, count });
        }
    }

    fn applied_together(&mut self, site: usize, first: TxnId, count: usize) {
        self.applying[site] = false;
        let Some(gates) = &mut self.gates else { return };
        let turns = gates[site].iter_mut().skip_while(|turn| turn.txn != first).take(count);
        for turn in turns {
            turn.ready = turn.waits.take().map(|origin| Job::Apply { txn: turn.txn, origin });
        }
        self.commit_next(site);
        self.apply_together(site);
    }

    /// What is ready commits, once all have that are to commit before it.
    fn may_commit(&mut self, site: usize, txn: TxnId, job: Job) {
        let Some(gates) = &mut self.gates else { return self.commit(site, job) };
        if let Some(turn) = gates[site].iter_mut().find(|turn| turn.txn == txn) {
            turn.ready = Some(job);
        }
        self.commit_next(site);
    }

    fn commit_next(&mut self, site: usize) {
        while let Some(gate) = self.gates.as_mut().map(|gates| &mut gates[site])
            && gate.front().is_some_and(|turn| turn.ready.is_some())
            && let Some(Turn { txn, ready: Some(job), .. }) = gate.pop_front()
        {
            self.commit(site, job);
            self.execute_after(site, txn);
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
            Job::InPlace(InPlace { txn, op, csn }) => {
                let of = &self.txns[txn.0 as usize].arriving;
                if of.fails || of.fails_in_place {
                    self.txns[txn.0 as usize].served.failed = true;
                    // It is committed nowhere.
                    self.awaited -= 1;
                    let outcome = Executed::Failed;
                    return self.feed(site, Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
                }
                self.contents.begin(txn, site, &of.reads);
                self.committed(site, txn);
                self.feed(site, Event::Applied { replica, csn });
            }
            Job::Execute { .. } | Job::Together { .. } | Job::Take(_) | Job::Token => {}
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
