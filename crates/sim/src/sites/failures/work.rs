//! What the core wants done, and what came of it.

use onecopy_core::effect::Effect;
use onecopy_core::event::{Event, Outcome as Executed, Place};
use onecopy_core::multicast::MessageId;
use onecopy_core::protocol::certified::Commits;
use onecopy_core::protocol::{Position, certified, wide_area};
use onecopy_core::{Csn, Message, NodeId, OpId, ReplicaId, TxnId};
use onecopy_workload::random;

use super::database::{Commit, Version};
use super::judge::End;
use super::site::{Open, Outcome, Pending, Reply};
use super::{Asks, Family, Fault, Job, Packet, Sent, Simulation};
use crate::server::Kind;

/// What the core wants done.
impl Simulation<'_> {
    pub(super) fn carry_out(&mut self, site: usize, effect: Effect) {
        match effect {
            Effect::Multicast { txn, message: Message::Certified(certified::Message::InPlace { .. }) }
                if !self.only_writes(site, txn) =>
            {
                self.feed(site, Event::HomeLost { txn, replica: Self::replica(site) });
            }
            Effect::Multicast { txn, message: Message::Certified(message) } => self.ask(site, txn, message),
            Effect::Multicast { txn, .. } => {
                if let Some(id) = self.open(site, txn).and_then(|open| open.id) {
                    self.multicast(site, id);
                }
            }
            Effect::Execute { txn, op, .. } => self.execute(site, txn, op),
            Effect::Leave { txn, .. } => {
                if let Some(open) = self.open(site, txn) {
                    open.op = None;
                }
                self.take_back(site, txn);
            }
            Effect::Release { txn, replica, .. } => {
                let is_own = usize::from(replica.0) == site;
                let Some(open) = self.open(site, txn) else { return };
                let of = open.of;
                let reply = match &open.shipped {
                    Some(reply) if !is_own => reply.clone(),
                    _ => open.reply.clone(),
                };
                // What has failed is not acknowledged.
                let is_in_place = self.sites[site].now.open.get(&txn).is_some_and(|open| open.in_place);
                let arriving = &self.txns[of].arriving;
                if arriving.fails || is_in_place && arriving.fails_in_place {
                    let at = self.queue.now();
                    self.answer(site, txn, End::Aborted { at });
                } else if let Some(open) = self.open(site, txn) {
                    open.chosen = Some(reply);
                }
            }
            Effect::Acknowledge { txn, csn, .. } => self.acknowledge(site, txn, csn),
            Effect::Ship { txn, to: Place::Peer(NodeId(to)), message: Message::WideArea(message) } => {
                self.ship(site, txn, to.into(), message);
            }
            Effect::CommitAt { txn, csn, .. } => {
                let rests_on = self.rests_on(site, csn);
                let Some(open) = self.open(site, txn) else { return };
                (open.place, open.is_shipped, open.is_committing) = (csn, false, true);
                open.reply.rests_on.extend(rests_on);
                self.take_turn(site, txn, self.setup.costs.commit_ns);
            }
            Effect::ExecuteAt { txn, op, csn, .. } => {
                let Some(open) = self.open(site, txn) else { return };
                open.op = Some(op);
                (open.place, open.is_shipped, open.in_place, open.is_committing) = (csn, false, true, true);
                let costs = self.setup.costs;
                self.take_turn(site, txn, costs.update_ns + costs.commit_ns);
            }
            Effect::ApplyShipped { txn, .. } => {
                let Some(open) = self.open(site, txn) else { return };
                (open.is_shipped, open.is_committing) = (true, true);
                self.take_turn(site, txn, self.setup.costs.apply_ns);
            }
            Effect::Forget { txn } => self.forget(site, txn),
            _ => self.senseless(0, "is given an order that sites have no use for"),
        }
    }

    fn open(&mut self, site: usize, txn: TxnId) -> Option<&mut Open> {
        self.sites[site].now.open.get_mut(&txn)
    }

    fn only_writes(&mut self, site: usize, txn: TxnId) -> bool {
        let of = self.open(site, txn).map(|open| open.of);
        of.is_some_and(|of| self.txns[of].arriving.only_writes)
    }

    fn replica(site: usize) -> ReplicaId {
        ReplicaId(site as u16)
    }

    /// What was told of places up to this one and is not durable anywhere.
    fn rests_on(&self, site: usize, place: Csn) -> Vec<(Csn, MessageId)> {
        let told = self.sites[site].now.order.told_only();
        told.filter(|(at, id)| *at <= place && self.log.durable_at(*at) != Some(*id)).collect()
    }

    /// Multicasts what has executed here.
    fn ask(&mut self, site: usize, txn: TxnId, message: certified::Message) {
        let Some(open) = self.open(site, txn) else { return };
        let (of, reply) = (open.of, open.reply.clone());
        let (asks, known) = match message {
            certified::Message::Request { op, snapshot, access, .. } => {
                (Asks::Verdict { op, snapshot, access, reply: reply.clone() }, Some(reply))
            }
            certified::Message::InPlace { access, .. } => (Asks::Place { access }, None),
        };
        let id = self.name(Sent { from: site, of, asks: Some(asks) });
        let resend_at = self.after(self.failing.resend_ns);
        if let Some(open) = self.open(site, txn) {
            (open.id, open.has_client) = (Some(id), false);
        }
        self.sites[site].pending.insert(id, Pending { of, known, resend_at });
        self.sites[site].now.by_id.insert(id, txn);
        self.multicast(site, id);
    }

    /// An own update may not commit at its place, which is certain, and runs again: it has none any more.
    fn take_back(&mut self, site: usize, txn: TxnId) {
        if !self.family.is_certified() {
            return;
        }
        let Some(open) = self.open(site, txn).filter(|open| open.place != Csn(0)) else { return };
        let place = std::mem::take(&mut open.place);
        if let Some(id) = open.id.take() {
            let at = &mut self.sites[site];
            at.now.by_id.remove(&id);
            let has_client = at.pending.remove(&id).is_some();
            if let Some(open) = self.open(site, txn) {
                open.has_client = has_client;
            }
            self.note_nothing(site, place, id);
        }
    }

    fn execute(&mut self, site: usize, txn: TxnId, op: OpId) {
        let at = &mut self.sites[site];
        let Some(open) = at.now.open.get_mut(&txn) else { return };
        let arriving = &self.txns[open.of].arriving;
        (open.op, open.is_shipped, open.is_committing) = (Some(op), false, false);
        let rests_on = at.database.beside(&self.log);
        open.reply = Reply { found: at.database.find(&arriving.reads), rests_on };
        let (kind, cost_ns) = match open.is_update {
            true => (Kind::Write, self.setup.costs.update_ns),
            false => (Kind::Read, self.setup.costs.query_ns),
        };
        if open.is_update {
            self.feed(site, Event::Opening { txn });
        }
        self.work(site, kind, cost_ns, Job::Execute { txn, op });
    }

    fn acknowledge(&mut self, site: usize, txn: TxnId, csn: Csn) {
        let durable = self.log.durable().len() as u64;
        let Some(open) = self.open(site, txn) else { return };
        let (of, id, reply) = (open.of, open.id, open.chosen.take());
        if self.family.loses_nothing() && csn.0 > durable {
            self.fault(Fault::NotDurable { txn: TxnId(of as u64), site });
        }
        let at = self.queue.now();
        let rests_on = id.map(|id| (csn, id)).into_iter().collect();
        self.answer(site, txn, End::Committed { at, reply, rests_on });
    }

    fn ship(&mut self, site: usize, txn: TxnId, to: usize, message: wide_area::Message) {
        let rests_on = match &message {
            wide_area::Message::WriteSet { place, .. } => self.rests_on(site, *place),
            _ => Vec::new(),
        };
        let Some(open) = self.open(site, txn) else { return };
        let Some(id) = open.id else { return };
        let mut reply = open.reply.clone();
        reply.rests_on.extend(rests_on);
        let stands = self.sites[site].now.placed.get(&id).copied().unwrap_or_default();
        let outcome = Box::new(Outcome { message, reply, stands });
        self.send(site, to, Packet::Outcome { id, outcome });
    }

    fn forget(&mut self, site: usize, txn: TxnId) {
        let is_certified = self.family.is_certified();
        let now = &mut self.sites[site].now;
        let Some(open) = now.open.remove(&txn) else { return };
        let Some(id) = open.id else { return };
        now.by_id.remove(&id);
        let is_contained = open.place <= now.floor || now.contained.contains(&open.place);
        // What is certified when it is stable has its place for certain only then: then that is known to be nobody's.
        let is_certain =
            self.family != Family::Certified(Commits::Stable) || open.place <= now.order.stable_up_to();
        if !is_contained && is_certain {
            // It has failed, everywhere.
            self.note_nothing(site, open.place, id);
        }
        if is_certified {
            // An own client's of before this beginning.
            self.answer_found(site, id, is_contained);
        }
    }

    /// Where commits are to be in one order, that is the order in which they were asked for.
    fn take_turn(&mut self, site: usize, txn: TxnId, cost_ns: u64) {
        let now = &mut self.sites[site].now;
        if now.core.position() == Position::Prefix && now.turns.iter().all(|(other, _)| *other != txn) {
            now.turns.push_back((txn, false));
        }
        self.work(site, Kind::Write, cost_ns, Job::Commit(txn));
    }

    fn answer(&mut self, site: usize, txn: TxnId, end: End) {
        let Some(open) = self.open(site, txn) else { return };
        let (of, id, has_client) = (open.of, open.id, std::mem::take(&mut open.has_client));
        let pending = id.and_then(|id| self.sites[site].pending.remove(&id));
        if pending.is_some() || has_client {
            self.end(of, end);
        }
    }
}

/// What was done.
impl Simulation<'_> {
    pub(super) fn done(&mut self, site: usize, job: Job) {
        match job {
            Job::Execute { txn, op } => self.on_executed(site, txn, op),
            Job::Commit(txn) => self.may_commit(site, txn),
            Job::Take { from, packet } => self.take(from, site, packet),
        }
    }

    fn on_executed(&mut self, site: usize, txn: TxnId, op: OpId) {
        let given_up = random::unit(&mut self.chance) < self.failing.given_up_part;
        let Some(open) = self.open(site, txn) else { return };
        let (of, is_update, reply) = (open.of, open.is_update, open.reply.clone());
        let counts = open.op == Some(op);
        let outcome = match self.txns[of].arriving.fails {
            _ if given_up && is_update => Executed::Lost { answer_begun: false },
            true => Executed::Failed,
            false => Executed::Done { returned: Vec::new() },
        };
        if !is_update && counts {
            let at = self.queue.now();
            self.answer(site, txn, End::Committed { at, reply: Some(reply), rests_on: Vec::new() });
        }
        let replica = Self::replica(site);
        self.feed(site, Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
        if !is_update {
            self.sites[site].now.open.remove(&txn);
        }
    }

    /// What is ready commits, once all have that are to commit before it.
    fn may_commit(&mut self, site: usize, txn: TxnId) {
        let now = &mut self.sites[site].now;
        if now.core.position() != Position::Prefix {
            return self.commit(site, txn);
        }
        if let Some((_, is_ready)) = now.turns.iter_mut().find(|(other, _)| *other == txn) {
            *is_ready = true;
        }
        while let Some((next, true)) = self.sites[site].now.turns.front().copied() {
            self.sites[site].now.turns.pop_front();
            self.commit(site, next);
        }
    }

    /// In its turn, so on all that comes before it. Whether its statements do not fail.
    fn execute_in_place(&mut self, site: usize, txn: TxnId) -> bool {
        let at = &mut self.sites[site];
        let Some(open) = at.now.open.get_mut(&txn) else { return false };
        let arriving = &self.txns[open.of].arriving;
        let rests_on = at.database.beside(&self.log);
        open.reply = Reply { found: at.database.find(&arriving.reads), rests_on };
        let fails = arriving.fails || arriving.fails_in_place;
        self.note("executed in place");
        !fails
    }

    fn commit(&mut self, site: usize, txn: TxnId) {
        let is_certified = self.family.is_certified();
        let Some(open) = self.open(site, txn).filter(|open| open.is_committing) else { return };
        open.is_committing = false;
        let (in_place, op) = (open.in_place, open.op.unwrap_or_default());
        if in_place && !self.execute_in_place(site, txn) {
            let (replica, outcome) = (Self::replica(site), Executed::Failed);
            return self.feed(site, Event::Executed { txn, op, replica, outcome, elapsed_ns: 1 });
        }
        let Some(open) = self.open(site, txn) else { return };
        let (of, place, is_shipped) = (open.of, open.place, open.is_shipped);
        let found = match &open.shipped {
            Some(reply) if is_shipped => reply.found.clone(),
            _ => open.reply.found.clone(),
        };
        let Some(id) = open.id else { return };
        // What is certified was told it when it was multicast.
        let known = open.chosen.clone().unwrap_or_else(|| open.reply.clone());
        if let Some(pending) = self.sites[site].pending.get_mut(&id).filter(|_| !is_certified || in_place) {
            pending.known = Some(known);
        }
        if self.family.loses_nothing() && self.log.durable_at(place) != Some(id) {
            self.fault(Fault::NotDurable { txn: TxnId(of as u64), site });
        }
        if self.sites[site].database.has(place) {
            // It is refused, as the place is a key.
            return match self.sites[site].now.found.contains_key(&place) {
                true => self.begin_again(site, "begun anew: a place is another message's in the database"),
                false => self.senseless(of, "is committed where another one was"),
            };
        }
        let now = &mut self.sites[site].now;
        // Of what stands there once more and is not committed where it stands first, only the second place might be found after a crash.
        let is_over = |of: &MessageId| !now.by_id.contains_key(of);
        let is_told = |(before, of): &(Csn, MessageId)| (!is_certified || *before < place) && is_over(of);
        let nothing = now.nothing.iter().filter(|one| is_told(one)).copied().collect();
        now.nothing.retain(|one| !is_told(one));
        let writes = self.txns[of].arriving.writes.clone();
        let version = Version::new(TxnId(of as u64), &found);
        let commit = Commit { place, message: id, writes, version, nothing };
        self.sites[site].database.commit(commit);
        self.note_contained(site, place);
        let replica = Self::replica(site);
        let event = match is_shipped {
            true => Event::ShippedApplied { origin: Place::Peer(NodeId(site as u16)), txn, replica },
            false => Event::Applied { replica, csn: place },
        };
        self.feed(site, event);
    }
}
