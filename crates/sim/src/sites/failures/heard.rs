//! What other sites say, and what stands in the log.

use onecopy_core::event::{Event, Moment, Place};
use onecopy_core::multicast::{MessageId, Told};
use onecopy_core::protocol::{certified, wide_area};
use onecopy_core::{Csn, Epoch, Message, NodeId, TxnId};

use super::judge::End;
use super::site::{Ended, Open, Outcome};
use super::{Asks, Bug, OF_OTHERS, Packet, Simulation, index_of};

/// Places of the log that may be under way here at once.
const READ_MAX: u64 = 128;

impl Simulation<'_> {
    pub(super) fn take(&mut self, from: usize, site: usize, packet: Packet) {
        match packet {
            // Whoever is behind will read it in the log.
            Packet::Request(_)
                if self.is_behind(site) && self.family.begins_early() && self.sites[site].leads.is_none() => {
            }
            Packet::Request(id) => self.take_message(site, id),
            Packet::Place { epoch, place, id } => {
                let mut told = Vec::new();
                self.sites[site].now.order.on_place(epoch, place, id, &mut told);
                self.tell(site, told);
            }
            Packet::Outcome { id, outcome } => {
                let now = &mut self.sites[site].now;
                let is_known = now.by_id.contains_key(&id) || !now.order.has_stood(id);
                match now.placed.contains_key(&id) || self.failing.bug == Some(Bug::WritesOfAnyOrder) {
                    // Its end is known here.
                    _ if !is_known => {}
                    true => self.on_outcome(from, site, id, *outcome),
                    false => drop(now.early.insert(id, (from, *outcome))),
                }
            }
            Packet::Alive { told } => {
                let until = self.after(self.failing.silence_ns);
                let now = &mut self.sites[site].now;
                if now.heard.insert(from, until).is_none() {
                    now.back_at.insert(from, told);
                }
            }
            Packet::Parted => self.lose(site, from),
            Packet::Records { .. } | Packet::Written { .. } => {}
        }
    }

    /// Whether others executed long ago what this site is at.
    fn is_behind(&self, site: usize) -> bool {
        let now = &self.sites[site].now;
        let stable = now.order.stable_up_to();
        now.lost.iter().any(|node| now.back_at.get(node).is_some_and(|back_at| stable < *back_at))
    }

    /// It counts if the update stands where it did there, behind the same others: what was executed where a lost leader said is of no use.
    fn on_outcome(&mut self, from: usize, site: usize, id: MessageId, outcome: Outcome) {
        let now = &mut self.sites[site].now;
        let stands = now.placed.get(&id).copied();
        let Some(txn) = now.by_id.get(&id).copied() else {
            now.early.insert(id, (from, outcome));
            return;
        };
        if stands != Some(outcome.stands) && self.failing.bug != Some(Bug::WritesOfAnyOrder) {
            return self.note("writes of another order are not used");
        }
        let Some(open) = now.open.get_mut(&txn) else { return };
        open.shipped = Some(outcome.reply);
        let message = match outcome.message {
            wide_area::Message::WriteSet { place, op, .. } => wide_area::Message::WriteSet { txn, place, op },
            wide_area::Message::Failed { op, .. } => wide_area::Message::Failed { txn, op },
            wide_area::Message::Request { .. } => return,
        };
        let from = Place::Peer(NodeId(from as u16));
        self.feed(site, Event::Message { from, message: Message::WideArea(message) });
    }

    pub(super) fn tell(&mut self, site: usize, told: Vec<Told<()>>) {
        for one in told {
            match one {
                Told::Received(id, ()) => self.on_received(site, id),
                Told::Ordered(id, place, epoch) => {
                    self.sites[site].now.placed.insert(id, (place, epoch));
                    self.on_moment(site, id, Moment::Ordered, place);
                    if let Some((from, outcome)) = self.sites[site].now.early.remove(&id) {
                        self.on_outcome(from, site, id, outcome);
                    }
                }
                Told::Stable(id, place) => self.on_moment(site, id, Moment::Stable, place),
            }
        }
    }

    fn on_received(&mut self, site: usize, id: MessageId) {
        let sent = &self.messages[index_of(id)];
        let now = &mut self.sites[site].now;
        if now.found_ids.contains(&id) {
            // The database contained it before the log was known to.
            return;
        }
        let txn = *now.by_id.entry(id).or_insert(TxnId(OF_OTHERS + id.number));
        let shipped = match &sent.asks {
            Some(Asks::Verdict { reply, .. }) => Some(reply.clone()),
            Some(Asks::Place { .. }) | None => None,
        };
        let open = || Open { shipped, ..Open::new(sent.of, true, Some(id), false) };
        now.open.entry(txn).or_insert_with(open);
        self.deliver(site, id, txn, Moment::Received, Csn(0));
        if self.failing.bug == Some(Bug::WritesOfAnyOrder)
            && let Some((from, outcome)) = self.sites[site].now.early.remove(&id)
        {
            self.on_outcome(from, site, id, outcome);
        }
    }

    fn on_moment(&mut self, site: usize, id: MessageId, moment: Moment, place: Csn) {
        let now = &mut self.sites[site].now;
        if let Some(txn) = now.by_id.get(&id).copied() {
            if let Some(open) = now.open.get_mut(&txn) {
                open.place = place;
            }
            self.deliver(site, id, txn, moment, place);
        } else if moment == Moment::Stable && !now.contained.contains(&place) && place > now.floor {
            self.note_nothing(site, place, id);
        }
    }

    fn deliver(&mut self, site: usize, id: MessageId, txn: TxnId, moment: Moment, place: Csn) {
        let sent = &self.messages[index_of(id)];
        let from = NodeId(sent.from as u16);
        let message = match &sent.asks {
            Some(Asks::Verdict { op, snapshot, access, .. }) => {
                let (op, snapshot, access) = (*op, *snapshot, access.clone());
                Message::Certified(certified::Message::Request { txn, op, snapshot, access })
            }
            Some(Asks::Place { access }) => {
                Message::Certified(certified::Message::InPlace { txn, access: access.clone() })
            }
            None => {
                let access = self.txns[sent.of].arriving.access.clone();
                Message::WideArea(wide_area::Message::Request { txn, access })
            }
        };
        self.feed(site, Event::Delivered { from, moment, place, message });
    }
}

/// From the log.
impl Simulation<'_> {
    /// Reads what has become durable.
    pub(super) fn read_log(&mut self, site: usize) {
        loop {
            let at = &mut self.sites[site];
            let place = at.now.order.stable_up_to().next();
            if place > at.durable || place.0 > at.now.floor.0 + READ_MAX || at.now.ended.is_some() {
                break;
            }
            let Some((epoch, id)) = self.log.read(site, place) else {
                return self.senseless(0, "stands at a place that is durable and in no log");
            };
            match at.now.found.remove(&place) {
                Some(here) if here != id && self.failing.bug != Some(Bug::NotCompared) => {
                    at.now.ended = Some(Ended::Diverged);
                    return;
                }
                Some(_) => {
                    at.now.order.pass_over(place, id);
                    let is_committed = !at.now.unchanged.contains(&place);
                    self.note_contained(site, place);
                    self.answer_found(site, id, is_committed);
                }
                None => self.take_stable(site, place, epoch, id),
            }
        }
        self.give_places(site);
        // What a site has said since it is heard again is about what comes behind this place.
        let now = &mut self.sites[site].now;
        let stable = now.order.stable_up_to();
        let is_back = |node: &usize| now.back_at.get(node).is_some_and(|back_at| stable >= *back_at);
        let back: Vec<usize> = now.lost.iter().copied().filter(is_back).collect();
        for node in back {
            let now = &mut self.sites[site].now;
            now.lost.remove(&node);
            now.back_at.remove(&node);
            self.feed(site, Event::PeerBack { node: NodeId(node as u16) });
        }
    }

    fn take_stable(&mut self, site: usize, place: Csn, epoch: Epoch, id: MessageId) {
        let order = &mut self.sites[site].now.order;
        let had_stood = order.has_stood(id);
        let mut told = Vec::new();
        match order.on_stable(place, epoch, id, (), &mut told) {
            Ok(()) if had_stood => self.note_nothing(site, place, id),
            Ok(()) => self.tell(site, told),
            Err(_) if self.failing.bug == Some(Bug::ToldPlacesStand) => {
                self.sites[site].now.order.pass_over(place, id);
            }
            Err(_) => self.begin_again(site, "begun anew: a place that was told is another message's"),
        }
        if let Some(leads) = &mut self.sites[site].leads {
            leads.given.remove(&id);
        }
    }

    /// What stands at a place changes nothing. The database is told so with the next commit, since it must not be executed once more on what comes
    /// later.
    pub(super) fn note_nothing(&mut self, site: usize, place: Csn, id: MessageId) {
        self.sites[site].now.nothing.push((place, id));
        self.note_contained(site, place);
    }

    /// An own client's update had its place when this site began anew: it was committed, or had failed, or may not commit.
    pub(super) fn answer_found(&mut self, site: usize, id: MessageId, is_committed: bool) {
        if let Some(pending) = self.sites[site].pending.remove(&id) {
            self.note("answered from what was found");
            let at = self.queue.now();
            let end = match is_committed {
                true => End::Committed { at, reply: pending.known, rests_on: Vec::new() },
                false => End::Aborted { at },
            };
            self.end(pending.of, end);
        }
    }

    /// The database contains what stands at a place, or nobody's ever will.
    pub(super) fn note_contained(&mut self, site: usize, place: Csn) {
        let now = &mut self.sites[site].now;
        now.contained.insert(place);
        while now.contained.remove(&now.floor.next()) {
            now.floor = now.floor.next();
        }
        if now.floor >= now.whole_from {
            let ahead = std::mem::take(&mut now.ahead);
            ahead.into_iter().for_each(|of| self.submit(site, of));
        }
    }
}
