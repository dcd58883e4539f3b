//! Messages, elections, and what is done by the clock.

use onecopy_core::multicast::MessageId;
use onecopy_core::{Csn, Epoch, Event, Instant, NodeId};
use onecopy_workload::random;

use super::log::Heard;
use super::site::Leads;
use super::{Bug, Fault, Job, Packet, Simulation, Standing, Wake, index_of};
use crate::server::Kind;

/// Between sites.
impl Simulation<'_> {
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains_key(&(from, to))
    }

    pub(super) fn send(&mut self, from: usize, to: usize, packet: Packet) {
        if self.is_cut(from, to) || !self.sites[to].lives() {
            return;
        }
        let takes_ns = self.setup.distances.draw_ns(from, to, &mut self.network);
        let last = self.channels.entry((from, to)).or_insert(Instant(0));
        *last = self.queue.now().plus_ns(takes_ns).max(last.plus_ns(1));
        let (at, process) = (*last, self.sites[to].process);
        self.queue.schedule(at, Wake::Arrives { from, to, process, packet });
    }

    pub(super) fn say(&mut self, from: usize, packet: &Packet) {
        for to in self.others(from) {
            self.send(from, to, packet.clone());
        }
    }

    pub(super) fn on_packet(&mut self, from: usize, to: usize, packet: Packet) {
        match packet {
            Packet::Records { epoch, len, durable } => self.on_records(from, to, epoch, len, durable),
            Packet::Written { epoch, len } => self.on_acknowledged(from, to, epoch, len),
            // What a site does not hear while it begins is in the log.
            packet if self.sites[to].is_up() => {
                self.work(to, Kind::Read, self.setup.costs.message_ns, Job::Take { from, packet });
            }
            _ => {}
        }
    }
}

/// The log.
impl Simulation<'_> {
    fn say_records(&mut self, site: usize, epoch: Epoch) {
        let (len, durable) = (self.log.len(epoch), self.log.durable_by(epoch));
        self.say(site, &Packet::Records { epoch, len, durable });
    }

    fn write(&mut self, site: usize, epoch: Epoch, len: u64, durable: Csn) {
        let process = self.sites[site].process;
        let at = self.after(self.failing.disk_ns);
        self.queue.schedule(at, Wake::Written { site, process, epoch, len, durable });
    }

    fn on_records(&mut self, from: usize, site: usize, epoch: Epoch, len: u64, durable: Csn) {
        match self.log.hears(site, epoch) {
            Heard::Old => {
                let epoch = self.log.promised(site);
                return self.send(site, from, Packet::Written { epoch, len: 0 });
            }
            Heard::Known => {}
            Heard::New => self.follow(site),
        }
        self.sites[site].leader_heard = self.queue.now();
        match self.log.written(site, epoch) >= len && len > 0 {
            true => self.on_written(site, epoch, len, durable),
            false => self.write(site, epoch, len, durable),
        }
    }

    pub(super) fn on_written(&mut self, site: usize, epoch: Epoch, len: u64, durable: Csn) {
        if !self.log.write(site, epoch, len) {
            return;
        }
        let leader = self.log.leader(epoch);
        match leader == site {
            true => self.on_acknowledged(site, site, epoch, len),
            false => self.send(site, leader, Packet::Written { epoch, len }),
        }
        self.note_durable(site, epoch, durable);
    }

    /// It counts where it is on this site's own disk.
    fn note_durable(&mut self, site: usize, epoch: Epoch, durable: Csn) {
        let written = Csn(self.log.written(site, epoch));
        let durable = if self.has_bug(Bug::StableAlone) { written } else { durable.min(written) };
        self.sites[site].durable = self.sites[site].durable.max(durable);
    }

    fn on_acknowledged(&mut self, from: usize, site: usize, epoch: Epoch, len: u64) {
        match self.sites[site].role {
            Some(own) if epoch > own => return self.follow(site),
            Some(own) if epoch == own => {}
            _ => return,
        }
        let progress = self.log.acknowledged(epoch, from, len);
        self.note_durable(site, epoch, progress.durable);
        if progress.is_news {
            self.say_records(site, epoch);
        }
        if progress.becomes_ready && matches!(self.sites[site].standing, Standing::Up | Standing::Beginning) {
            let after = Csn(self.log.len(epoch));
            self.sites[site].leads =
                Some(Leads { epoch, after, is_ready: false, given: std::collections::BTreeSet::new() });
            self.sites[site].now.order.begin_epoch(epoch);
            self.note("a site gives places");
        }
    }

    /// Another site leads.
    fn follow(&mut self, site: usize) {
        if self.sites[site].role.take().is_some() {
            self.note("a site that led hears of a later leader");
        }
        self.sites[site].leads = None;
        if self.sites[site].is_up() {
            self.resend(site, true);
        }
    }

    /// Whoever has heard no leader for long leads, if a majority has not either and its log is as new as theirs.
    fn want_to_lead(&mut self, site: usize) {
        let (now, least_ns) = (self.queue.now(), self.failing.election_ns);
        let patience_ns = (least_ns as f64 * (1.0 + random::unit(&mut self.chance))) as u64;
        let can = matches!(self.sites[site].standing, Standing::Up | Standing::Beginning);
        if !can || now.since_ns(self.sites[site].leader_heard) < patience_ns {
            return;
        }
        let mut voters = self.reached_by(site);
        voters.retain(|voter| {
            let other = &self.sites[*voter];
            other.lives() && other.role.is_none() && now.since_ns(other.leader_heard) >= least_ns
        });
        voters.insert(site);
        let voters: Vec<usize> = voters.into_iter().collect();
        let Some(epoch) = self.log.elect(site, &voters) else { return };
        self.note("elections");
        let at = &mut self.sites[site];
        (at.role, at.leads, at.leader_heard) = (Some(epoch), None, now);
        self.write(site, epoch, self.log.len(epoch), Csn(0));
        self.say_records(site, epoch);
    }
}

/// Of the site that leads.
impl Simulation<'_> {
    /// Gives places to all that have none, once everything is known that has one.
    pub(super) fn give_places(&mut self, site: usize) {
        let at = &mut self.sites[site];
        let stable = at.now.order.stable_up_to();
        let Some(leads) = at.leads.as_mut().filter(|leads| !leads.is_ready && stable >= leads.after) else {
            return;
        };
        leads.is_ready = true;
        if at.now.order.told_only().next().is_some() {
            return self.begin_again(site, "begun anew to lead: places were told that stand in no log");
        }
        let unplaced = at.now.order.unplaced();
        unplaced.into_iter().for_each(|(id, ())| self.give_place(site, id));
    }

    pub(super) fn give_place(&mut self, site: usize, id: MessageId) {
        let at = &mut self.sites[site];
        let Some(leads) = at.leads.as_mut().filter(|leads| leads.is_ready) else { return };
        if !leads.given.insert(id) || at.now.order.body(id).is_none() {
            return;
        }
        let epoch = leads.epoch;
        let place = self.log.append(epoch, id);
        self.write(site, epoch, place.0, Csn(0));
        self.say_records(site, epoch);
        self.say(site, &Packet::Place { epoch, place, id });
        let mut told = Vec::new();
        self.sites[site].now.order.on_place(epoch, place, id, &mut told);
        self.tell(site, told);
    }
}

/// By the clock.
impl Simulation<'_> {
    pub(super) fn on_tick(&mut self, site: usize) {
        if !self.sites[site].lives() {
            return;
        }
        match self.sites[site].role {
            Some(epoch) => {
                self.sites[site].leader_heard = self.queue.now();
                self.say_records(site, epoch);
            }
            None => self.want_to_lead(site),
        }
        if !self.sites[site].is_up() {
            return;
        }
        let now = self.queue.now();
        let told = self.sites[site].now.order.ordered_up_to();
        self.say(site, &Packet::Alive { told });
        let heard = &self.sites[site].now.heard;
        let silent: Vec<usize> =
            heard.iter().filter(|(_, until)| **until <= now).map(|(node, _)| *node).collect();
        silent.into_iter().for_each(|node| self.lose(site, node));
        self.resend(site, false);
        self.pass_on(site);
        self.sites[site].ticks += 1;
        let rings = self.sites[site].ticks.is_multiple_of(self.failing.timer_every);
        if rings && !self.has_bug(Bug::LossesUntold) {
            self.feed(site, Event::Timer { timer: 0 });
        }
        if let Some(what) = self.sites[site].now.core.broken_invariant() {
            self.fault(Fault::Invariant { what });
        }
    }

    pub(super) fn lose(&mut self, site: usize, node: usize) {
        let now = &mut self.sites[site].now;
        now.heard.remove(&node);
        now.back_at.remove(&node);
        if now.lost.insert(node) && !self.has_bug(Bug::LossesUntold) {
            self.note("a site is lost to another one");
            self.feed(site, Event::PeerLost { node: NodeId(node as u16) });
        }
    }

    /// Sends updates again that have no place in the log, all or those that are due.
    pub(super) fn resend(&mut self, site: usize, all: bool) {
        if self.has_bug(Bug::NothingSentAgain) {
            return;
        }
        let (now, next) = (self.queue.now(), self.after(self.failing.resend_ns));
        let at = &mut self.sites[site];
        let mut again = Vec::new();
        for (id, pending) in &mut at.pending {
            if (all || pending.resend_at <= now) && !at.now.order.has_stood(*id) {
                pending.resend_at = next;
                again.push(*id);
            }
        }
        again.into_iter().for_each(|id| self.multicast(site, id));
    }

    /// Says again what others have sent and what has had no place for a while: whoever sent it may be lost before the leader heard of it.
    fn pass_on(&mut self, site: usize) {
        let now = self.queue.now();
        if self.sites[site].now.pass_on_at > now || self.has_bug(Bug::NothingSentAgain) {
            return;
        }
        self.sites[site].now.pass_on_at = self.after(self.failing.resend_ns);
        let unplaced = self.sites[site].now.order.unplaced();
        let before = std::mem::take(&mut self.sites[site].now.unplaced);
        for (id, ()) in unplaced {
            // An own one of before this process was lost is nobody's to send but this.
            let is_sent_again = match self.has_bug(Bug::OwnNotPassedOn) {
                true => self.messages[index_of(id)].from == site,
                false => self.sites[site].pending.contains_key(&id),
            };
            if before.contains(&id) && !is_sent_again {
                self.say(site, &Packet::Request(id));
            }
            self.sites[site].now.unplaced.insert(id);
        }
    }

    pub(super) fn multicast(&mut self, site: usize, id: MessageId) {
        self.say(site, &Packet::Request(id));
        self.take_message(site, id);
    }

    pub(super) fn take_message(&mut self, site: usize, id: MessageId) {
        let mut told = Vec::new();
        let is_new = self.sites[site].now.order.on_message(id, (), &mut told);
        // That it is here comes before its place.
        self.tell(site, told);
        if is_new {
            self.give_place(site, id);
        }
    }
}
