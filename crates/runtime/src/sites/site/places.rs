//! What the site that leads does, and what is done by the clock.

use bytes::{BufMut, Bytes, BytesMut};
use onecopy_core::{Csn, Event, NodeId};
use onecopy_log::MemberEvent;

use super::{Ended, RESEND_AFTER, Site};
use crate::clock::Deadline;
use crate::nodes;
use crate::nodes::links::Said;
use crate::server::log::LogDecisions;
use crate::sites::database;
use crate::sites::messages::{ID_LEN, SiteMessage, put_id};
use onecopy_core::multicast::MessageId;

/// Of the node that leads.
impl Site<'_> {
    pub(super) fn on_member(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Ready { epoch, csn } => {
                tracing::info!(epoch = epoch.0, "this site gives updates their places");
                self.around.lead(epoch, csn);
                self.order.begin_epoch(epoch);
                self.durable = self.durable.max(csn);
            }
            MemberEvent::Follows { epoch, leader } => {
                tracing::info!(epoch = epoch.0, leader = leader.map(|leader| leader.0), "another site leads");
                self.around.leads = None;
                self.resend(true);
            }
            MemberEvent::Leads { .. } => self.around.leads = None,
            MemberEvent::BeginningOffered { place, csn } => {
                self.ended = Some(Ended::Diverged(format!(
                    "this site was away for longer than the log is kept (its next record {place} and place {csn} are gone): remove it, copy another site's database, the schema \"onecopy\" included, and add it with an empty log"
                )));
            }
            MemberEvent::Dropped { epoch, records } => {
                tracing::info!(epoch = epoch.0, records, "places of an epoch that is over were not given");
            }
            MemberEvent::Members(members) => tracing::info!(?members, "the nodes that share the log"),
            MemberEvent::OtherLog { log_id } => nodes::speaks_of_other_log(log_id),
            MemberEvent::Stopped(reason) => self.ended = Some(Ended::Log(reason.to_string())),
        }
    }

    /// Gives places to all that have none, once everything is known that has one.
    pub(super) fn give_places(&mut self) {
        let stable = self.order.stable_up_to();
        let Some(leads) = self.around.leads.as_mut().filter(|leads| !leads.is_ready && stable >= leads.after)
        else {
            return;
        };
        leads.is_ready = true;
        if self.order.told_only().next().is_some() {
            return self.begin_again("places were told by a leader that was lost, and stand in no log");
        }
        self.order.unplaced().into_iter().for_each(|(id, _)| self.give_place(id));
    }

    pub(super) fn give_place(&mut self, id: MessageId) {
        let Some(leads) = self.around.leads.as_mut().filter(|leads| leads.is_ready) else { return };
        if !leads.given.insert(id) {
            return;
        }
        let Some(body) = self.order.body(id) else { return };
        let (epoch, place) = (leads.epoch, leads.next);
        leads.next = place.next();
        let mut record = BytesMut::with_capacity(ID_LEN + body.len());
        put_id(id, &mut record);
        record.put_slice(&body);
        let decisions = LogDecisions { log: self.around.log.clone(), epoch };
        if let Err(error) = decisions.append_whole(place, record.freeze()) {
            tracing::info!(%error, %place, "a place was not given");
            self.around.leads = None;
            return;
        }
        self.around.log.wake();
        self.around.links.say(&Said::Site(SiteMessage::Place { epoch, place, id }.encode()));
        let mut told = Vec::new();
        self.order.on_place(epoch, place, id, &mut told);
        self.tell(told);
    }
}

/// By the clock.
impl Site<'_> {
    pub(super) fn lose(&mut self, node: NodeId) {
        self.heard.remove(&node);
        self.back_at.remove(&node);
        if self.lost.insert(node) {
            tracing::warn!(node = self.peer(node).0, "another site is not heard any more");
            self.feed(Event::PeerLost { node });
        }
    }

    pub(super) fn on_tick(&mut self) {
        let (contained, told) = (self.floor, self.order.ordered_up_to());
        let (incarnation, likeness) = (self.around.incarnation, self.around.likeness);
        // What is not stable may be lost, and others come to stand there.
        let blocks = self.outcomes.says(contained.min(self.order.stable_up_to()));
        let alive = SiteMessage::Alive { contained, told, incarnation, likeness, blocks };
        self.around.links.say(&Said::Site(alive.encode()));
        self.compare_outcomes();
        let silent: Vec<NodeId> =
            self.heard.iter().filter(|(_, until)| until.has_passed()).map(|(node, _)| *node).collect();
        silent.into_iter().for_each(|node| self.lose(node));
        self.resend(false);
        self.pass_on();
        self.around.figures.hear(self.heard.len());
        self.ahead.retain(|_, waiting| {
            waiting.retain(|ahead| !ahead.is_closed());
            !waiting.is_empty()
        });
        if self.around.leads.is_some() {
            self.forget_log();
        }
        if progress_is_due(self.pruned, self.floor) {
            self.pruned = self.floor;
            let (database, floor) = (self.around.database.clone(), self.floor);
            tokio::spawn(async move {
                if let Err(error) = database.prune(floor).await {
                    tracing::warn!(%error, "forget old places");
                }
            });
        }
    }

    /// What all sites have executed must have come to the same.
    fn compare_outcomes(&mut self) {
        for (place, is_wrong) in self.outcomes.compare(self.around.sites.len() - 1) {
            if is_wrong {
                self.ended = Some(Ended::Diverged(format!(
                    "what all sites execute has changed other rows here than at most sites, at a place from {place} on: a statement has failed here alone, or does not do the same everywhere"
                )));
            } else {
                tracing::error!(%place, "what all sites execute has changed other rows at some than at others, at a place from this one on; compare their databases");
            }
        }
    }

    /// Nobody needs what all sites contain, but to know which messages stood there.
    pub(super) fn forget_log(&mut self) {
        let all = self.around.sites.iter().map(|site| match *site == self.around.this {
            true => Some(self.floor),
            false => self.floors.get(site).copied(),
        });
        let Some(least) = all.collect::<Option<Vec<_>>>().and_then(|floors| floors.into_iter().min()) else {
            return;
        };
        let keep = Csn(least.0.saturating_sub(3 * database::KEEP_ROWS));
        if keep > self.around.log.held().first {
            self.around.log.truncate_before(keep);
            self.around.links.say(&Said::Keep(keep));
        }
    }

    /// Sends updates again that have no place in the log, all or those that are due.
    pub(super) fn resend(&mut self, all: bool) {
        let mut again = Vec::new();
        for (id, pending) in &mut self.around.pending {
            if (all || pending.resend_at.has_passed()) && !self.order.has_stood(*id) {
                pending.resend_at = Deadline::after(RESEND_AFTER);
                again.push((*id, pending.body.clone()));
            }
        }
        again.into_iter().for_each(|(id, body)| self.multicast(id, body));
    }

    /// Says again what others have sent and what has had no place for a while: whoever sent it may be lost before the leader heard of it.
    pub(super) fn pass_on(&mut self) {
        if !self.pass_on_at.has_passed() {
            return;
        }
        self.pass_on_at = Deadline::after(RESEND_AFTER);
        let unplaced = self.order.unplaced();
        let before = std::mem::take(&mut self.unplaced);
        for (id, body) in unplaced {
            // What is pending is sent again anyway. An own one that is not was sent before this process began: nobody else may have it any more.
            if before.contains(&id) && !self.around.pending.contains_key(&id) {
                self.around.links.say(&Said::Site(SiteMessage::Request { id, body }.encode()));
            }
            self.unplaced.insert(id);
        }
    }

    pub(super) fn multicast(&mut self, id: MessageId, body: Bytes) {
        self.around.links.say(&Said::Site(SiteMessage::Request { id, body: body.clone() }.encode()));
        self.take_message(id, body);
    }

    pub(super) fn take_message(&mut self, id: MessageId, body: Bytes) {
        let mut told = Vec::new();
        let is_new = self.order.on_message(id, body, &mut told);
        // That it is here comes before its place.
        self.tell(told);
        if is_new {
            self.give_place(id);
        }
    }
}

/// Whether it is worth to forget places of the database.
fn progress_is_due(pruned: Csn, floor: Csn) -> bool {
    floor.0 > pruned.0.saturating_add(database::KEEP_ROWS)
}
