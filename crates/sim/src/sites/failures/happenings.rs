//! What fails, and how sites begin.

use std::collections::BTreeSet;

use onecopy_core::event::{Event, Place};
use onecopy_core::{AccessSet, Csn, NodeId};
use onecopy_workload::random;

use super::judge::End;
use super::site::{Beginning, Ended};
use super::{Asks, Bug, Packet, Simulation, Standing, index_of};
use crate::server::Server;

/// Between the end of a beginning and the next one, while the server stays.
const AGAIN_NS: u64 = 2_000_000;

/// What happens at sites that fail.
pub(super) enum Happening {
    Fail,
    /// A process is started.
    Return(usize),
    /// The database of another site is copied to one whose own holds what never happened.
    Copy(usize),
    /// The how many-th beginning of a site.
    Begin {
        site: usize,
        nth: u32,
    },
    /// These hear each other again, as far as this failure goes.
    Heal(Vec<(usize, usize)>),
    HealAll,
}

impl Simulation<'_> {
    pub(super) fn start_failures(&mut self) {
        let first = self.draw_ns(self.failing.between_ns);
        self.in_ns(first, Happening::Fail);
        self.in_ns(self.failing.until_ns, Happening::HealAll);
    }

    fn in_ns(&mut self, ns: u64, happening: Happening) {
        self.queue.schedule(self.after(ns), super::Wake::Happens(happening));
    }

    pub(super) fn on_happening(&mut self, happening: Happening) {
        match happening {
            Happening::Fail => self.fail_somewhere(),
            Happening::Return(site) => {
                self.note("a site returns");
                self.sites[site].leader_heard = self.queue.now();
                self.begin(site);
                self.settle(site);
            }
            Happening::Copy(site) => self.copy(site),
            Happening::Begin { site, nth } if self.sites[site].beginnings == nth => {
                self.begin(site);
                self.settle(site);
            }
            Happening::Begin { .. } => {}
            Happening::Heal(pairs) => {
                for pair in pairs {
                    let cut = self.cut.remove(&pair).unwrap_or_default();
                    if cut > 1 {
                        self.cut.insert(pair, cut - 1);
                    }
                }
            }
            Happening::HealAll => self.cut.clear(),
        }
    }

    fn fail_somewhere(&mut self) {
        if self.queue.now().0 >= self.failing.until_ns {
            return;
        }
        let next = self.draw_ns(self.failing.between_ns);
        self.in_ns(next, Happening::Fail);
        let last = self.sites.len() as i64 - 1;
        let mut any = |last| random::uniform(&mut self.chance, 0, last) as usize;
        let (drawn, other, kind) = (any(last), any(last - 1), any(7));
        let leader = (0..self.sites.len())
            .filter(|site| self.sites[*site].leads.is_some())
            .max_by_key(|site| self.sites[*site].role);
        let site = match self.failing.leader_part {
            Some(part) if random::unit(&mut self.chance) < part => leader.unwrap_or(drawn),
            Some(_) => drawn,
            None if leader == Some(drawn) => return,
            None => drawn,
        };
        let other = if other >= site { other + 1 } else { other };
        if self.failing.leader_part.is_none() && (leader == Some(other) || leader.is_none()) {
            return;
        }
        match kind {
            0..=2 if self.sites[site].lives() => self.lose_site(site),
            3 if self.sites[site].is_up() => self.lose_server(site),
            4 => {
                self.note("a site is cut off");
                let pairs = self.others(site).flat_map(|other| [(site, other), (other, site)]).collect();
                self.cut(pairs);
            }
            5 => {
                self.note("a site is not heard by any other one");
                let pairs = self.others(site).map(|other| (site, other)).collect();
                self.cut(pairs);
            }
            6 => {
                self.note("two sites do not hear each other");
                self.cut(vec![(site, other), (other, site)]);
            }
            7 => {
                self.note("a site does not hear another one");
                self.cut(vec![(site, other)]);
            }
            _ => {}
        }
    }

    fn cut(&mut self, pairs: Vec<(usize, usize)>) {
        for pair in &pairs {
            *self.cut.entry(*pair).or_default() += 1;
        }
        let after = self.draw_ns(self.failing.cut_ns);
        self.in_ns(after, Happening::Heal(pairs));
    }

    /// A site's machine has failed.
    fn lose_site(&mut self, site: usize) {
        let is_leader = self.sites[site].leads.is_some();
        self.note(if is_leader { "the leader is lost" } else { "a site is lost" });
        self.forget_commits(site);
        self.end_process(site, Standing::Down);
        // Some others hear of it by their connections, the rest by silence.
        for to in self.others(site) {
            if random::unit(&mut self.chance) < 0.5 {
                self.send(site, to, Packet::Parted);
            }
        }
        let away = self.draw_ns(self.failing.away_ns);
        self.in_ns(away, Happening::Return(site));
    }

    /// A site's server has crashed; its process has not, but does not lead any more.
    fn lose_server(&mut self, site: usize) {
        self.note("a server crashes");
        self.forget_commits(site);
        let at = &mut self.sites[site];
        (at.role, at.leads) = (None, None);
        self.hand_back(site, Standing::ServerDown);
        let away = self.draw_ns(self.failing.away_ns);
        let nth = self.sites[site].beginnings;
        self.in_ns(away, Happening::Begin { site, nth });
    }

    fn forget_commits(&mut self, site: usize) {
        let most = self.failing.lost_max as i64;
        let count = random::uniform(&mut self.chance, 0, most) as usize;
        self.sites[site].database.forget_last(count);
    }

    /// Nobody at this site is answered any more.
    fn end_process(&mut self, site: usize, standing: Standing) {
        let now = self.queue.now();
        self.servers[site] = Server::new(1, self.setup.discipline, site as u16);
        let at = &mut self.sites[site];
        (at.standing, at.role, at.leads, at.durable) = (standing, None, None, Csn(0));
        (at.process, at.beginnings) = (at.process + 1, at.beginnings + 1);
        at.pending.clear();
        at.queries.clear();
        at.now.ended = None;
        for txn in self.txns.iter_mut().filter(|txn| txn.site == site && txn.end == End::Waiting) {
            txn.end = if txn.is_update() { End::Unknown { at: now } } else { End::Refused };
        }
    }

    /// A beginning is over; what its clients wait for is for the next one.
    fn hand_back(&mut self, site: usize, standing: Standing) {
        self.servers[site] = Server::new(1, self.setup.discipline, site as u16);
        let at = &mut self.sites[site];
        let mut waiting: Vec<usize> =
            at.now.open.values().filter(|open| open.has_client).map(|open| open.of).collect();
        waiting.append(&mut at.now.ahead);
        waiting.sort_unstable();
        at.now.open.clear();
        at.queries.extend(waiting);
        (at.standing, at.beginnings) = (standing, at.beginnings + 1);
    }

    pub(super) fn end_beginning(&mut self, site: usize, ended: Ended) {
        match ended {
            Ended::Anew(why) => {
                self.note(why);
                self.hand_back(site, Standing::Beginning);
                let nth = self.sites[site].beginnings;
                self.in_ns(AGAIN_NS, Happening::Begin { site, nth });
            }
            Ended::Diverged => self.diverge(site),
        }
    }

    fn diverge(&mut self, site: usize) {
        self.note("a site finds that its database holds what never happened");
        self.end_process(site, Standing::Diverged);
        let after = self.draw_ns(self.failing.away_ns);
        self.in_ns(after, Happening::Copy(site));
    }

    fn copy(&mut self, site: usize) {
        // Of one that contains nothing that is not in the log, or what never happened would go from site to site.
        let is_whole =
            |of: &usize| self.sites[*of].is_up() && self.sites[*of].database.beside(&self.log).is_empty();
        let of = self.others(site).find(is_whole);
        match of {
            Some(of) => self.sites[site].database = self.sites[of].database.clone(),
            // Nobody has one, and perhaps nobody ever will, as these sites are missing for a majority.
            None => {
                self.note("a database is restored as it was before");
                self.sites[site].database.restore(&self.log);
            }
        }
        self.in_ns(0, Happening::Return(site));
    }
}

/// How a site begins.
impl Simulation<'_> {
    /// With what its database contains. Who certifies waits until the log is known to go as far as that.
    pub(super) fn begin(&mut self, site: usize) {
        let sites = self.sites.len();
        let at = &mut self.sites[site];
        at.standing = Standing::Beginning;
        let mut found = at.database.places();
        if self.failing.bug == Some(Bug::ExecutesAgain) {
            found.clear();
        }
        let mut committed = Csn(0);
        while found.contains_key(&committed.next()) {
            committed = committed.next();
        }
        if self.failing.bug == Some(Bug::SkipsAPlace)
            && let Some(id) = self.log.durable_at(committed.next()).filter(|_| at.beginnings > 0)
        {
            committed = committed.next();
            found.insert(committed, id);
        }
        let mut written = Vec::new();
        if self.family.is_certified() {
            if at.durable < committed {
                let nth = at.beginnings;
                return self.in_ns(AGAIN_NS, Happening::Begin { site, nth });
            }
            match self.written(site, committed) {
                Some(all) => written = all,
                None => return self.diverge(site),
            }
        }
        let (me, unchanged) = (NodeId(site as u16), self.sites[site].database.unchanged());
        let mut core = self.family.begin(me, sites as u16, committed, written);
        for node in self.others(site).map(|node| NodeId(node as u16)) {
            // Until this site has caught up, it executes by itself what the others have long ago.
            let now = self.queue.now();
            core.handle(Place::Peer(me), now, Event::PeerLost { node }, &mut Vec::new());
        }
        let at = &mut self.sites[site];
        at.now = Beginning::new(core, found, unchanged, site, sites);
        at.standing = Standing::Up;
        at.now.pass_on_at = self.queue.now().plus_ns(self.failing.resend_ns);
        if let Some(leads) = &mut at.leads {
            // What it has given a place and is not durable yet stands there, too.
            (leads.is_ready, leads.after) = (false, Csn(self.log.len(leads.epoch)));
            leads.given.clear();
        }
        let queries = std::mem::take(&mut at.queries);
        queries.into_iter().for_each(|of| self.submit(site, of));
        self.resend(site, true);
    }

    /// What was written at places that a database contains; nothing if the log has others there. What has failed in place counts as written at the first place at which it stands.
    fn written(&self, site: usize, committed: Csn) -> Option<Vec<(Csn, AccessSet)>> {
        let database = &self.sites[site].database;
        let (changed, is_compared) = (database.changed(), self.failing.bug != Some(Bug::NotCompared));
        let (mut written, mut met) = (Vec::new(), BTreeSet::new());
        for (place, id) in database.places().into_iter().filter(|(place, _)| *place <= committed) {
            let asks = self.messages[index_of(id)].asks.as_ref();
            let is_first = met.insert(id);
            let has_failed = is_first && matches!(asks, Some(Asks::Place { .. }));
            let forgets_failed = self.failing.bug == Some(Bug::ForgetsFailed);
            if !changed.contains_key(&place) && (!has_failed || forgets_failed) {
                continue;
            }
            if is_compared && self.log.read(site, place).map(|(_, id)| id) != Some(id) {
                return None;
            }
            written.push((place, asks.map(Asks::access).cloned().unwrap_or_default()));
        }
        Some(written)
    }
}
