//! What other sites say, and what stands in the log.

use std::sync::Arc;

use bytes::Bytes;
use onecopy_core::event::{Moment, Place};
use onecopy_core::message::Message as CoreMessage;
use onecopy_core::protocol::certified;
use onecopy_core::protocol::wide_area::Message;
use onecopy_core::{Csn, Epoch, Event, NodeId, TxnId};
use onecopy_log::consensus::NodeId as PeerId;
use onecopy_wire::sqlstate::SqlState;

use super::work::given_up;
use super::{Ahead, Ended, Open, SILENCE_MAX, Site};
use crate::agent::History;
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::record::Record;
use crate::sites::Scheme;
use crate::sites::database::Answer;
use crate::sites::messages::{SiteMessage, take_id};
use crate::sites::request::{Asks, Request};
use crate::sites::transaction::Transaction;
use onecopy_core::multicast::{MessageId, Told};

/// Places of the log that may be under way here at once: a site that is behind takes no more of them than it can work at.
const READ_MAX: u64 = 128;
/// Messages about updates that have not come themselves.
const EARLY_MAX: usize = 10_000;

/// From other sites, and the log.
impl Site<'_> {
    pub(super) fn on_heard(&mut self, from: PeerId, message: SiteMessage) {
        let Some(node) = self.node_of(from.0) else { return };
        match message {
            // Whoever is behind will read it in the log.
            SiteMessage::Request { .. }
                if self.is_behind() && self.begins_early() && self.around.leads.is_none() => {}
            SiteMessage::Request { id, body } => self.take_message(id, body),
            SiteMessage::Place { epoch, place, id } => {
                let mut told = Vec::new();
                self.order.on_place(epoch, place, id, &mut told);
                self.tell(told);
            }
            SiteMessage::Writes { id, .. } | SiteMessage::Failed { id, .. } => {
                let txn = self.by_id.get(&id).copied();
                let stands = txn.and_then(|txn| self.open.get(&txn)?.stands).is_some();
                match txn {
                    Some(txn) if stands => self.on_outcome(node, txn, message),
                    // Its end is known here.
                    None if self.order.has_stood(id) => {}
                    _ if self.early.len() >= EARLY_MAX => {}
                    _ => drop(self.early.insert(id, (node, message))),
                }
            }
            SiteMessage::Alive { contained, told, incarnation, likeness, blocks } => {
                blocks.into_iter().for_each(|block| self.outcomes.hear(from.0, block));
                // Whoever was there first goes on.
                if (self.around.incarnation, self.around.this) > (incarnation, from.0)
                    && let Some(what) = self.around.likeness.differs_from(likeness)
                {
                    self.ended = Some(Ended::Stuck(format!(
                        "this site is not like site {}, which was started before: {what}, and start it again",
                        from.0
                    )));
                }
                self.floors.insert(from.0, contained);
                if self.heard.insert(node, Deadline::after(SILENCE_MAX)).is_none() {
                    self.back_at.insert(node, told);
                }
            }
        }
    }

    /// Whether others executed long ago what this site is at.
    pub(super) fn is_behind(&self) -> bool {
        let stable = self.order.stable_up_to();
        self.lost.iter().any(|node| self.back_at.get(node).is_some_and(|back_at| stable < *back_at))
    }

    /// Whether updates begin as soon as they are here.
    pub(super) fn begins_early(&self) -> bool {
        match self.around.scheme {
            Scheme::WideArea(choice) => choice.delivery.takes_place_at() == Moment::Received,
            Scheme::Certified => false,
        }
    }

    /// What came of an execution elsewhere counts if the update stands here where it does there, behind the same others: what was executed where a lost
    /// leader said is of no use.
    pub(super) fn on_outcome(&mut self, node: NodeId, txn: TxnId, message: SiteMessage) {
        let from = Place::Peer(node);
        let Some(open) = self.open.get_mut(&txn) else { return };
        if let SiteMessage::Writes { place, epoch, .. } | SiteMessage::Failed { place, epoch, .. } = &message
            && open.stands != Some((*place, *epoch))
        {
            return tracing::debug!(node = node.0, %place, "ignoring what was executed at another place");
        }
        let message = match message {
            SiteMessage::Writes { place, op, writes, answer, .. } => {
                let (Ok(writes), Some(answer)) = (Record::decode(writes), Answer::decode(answer)) else {
                    return tracing::warn!(node = node.0, "another site has said what cannot be read");
                };
                open.shipped = Some((writes, answer));
                Message::WriteSet { txn, place, op }
            }
            SiteMessage::Failed { op, answer, .. } => {
                open.shipped = Answer::decode(answer).map(|answer| (Record::default(), answer));
                Message::Failed { txn, op }
            }
            _ => return,
        };
        self.feed(Event::Message { from, message: CoreMessage::WideArea(message) });
    }

    pub(super) fn tell(&mut self, told: Vec<Told<Bytes>>) {
        for one in told {
            match one {
                Told::Received(id, body) => self.on_received(id, body),
                Told::Ordered(id, place, epoch) => self.on_ordered(id, place, epoch),
                Told::Stable(id, place) => self.on_moment(id, Moment::Stable, place),
            }
        }
    }

    pub(super) fn on_received(&mut self, id: MessageId, body: Bytes) {
        if self.found_ids.contains(&id) {
            // The database contained it before the log was known to.
            return;
        }
        let txn = match self.by_id.get(&id) {
            Some(txn) => *txn,
            None => {
                let Some(open) = self.read_update(id, body) else {
                    return tracing::error!(
                        ?id,
                        "an update cannot be read, or is of no known site; it happens nowhere"
                    );
                };
                let txn = self.new_txn();
                self.by_id.insert(id, txn);
                self.open.insert(txn, open);
                txn
            }
        };
        self.deliver(id, txn, Moment::Received, Csn(0));
    }

    fn on_ordered(&mut self, id: MessageId, place: Csn, epoch: Epoch) {
        let txn = self.by_id.get(&id).copied();
        if let Some(open) = txn.and_then(|txn| self.open.get_mut(&txn)) {
            open.stands = Some((place, epoch));
        }
        self.on_moment(id, Moment::Ordered, place);
        if let (Some((node, message)), Some(txn)) = (self.early.remove(&id), txn) {
            self.on_outcome(node, txn, message);
        }
    }

    fn read_update(&mut self, id: MessageId, body: Bytes) -> Option<Open> {
        self.node_of(id.node)?;
        if self.is_certified() {
            let (request, record) = Request::decode(body)?;
            if request.is_in_place() {
                let transaction = Transaction::read(record, &self.around.classifier, &mut self.scratch);
                let open = Open::new(Arc::new(transaction), true, Some(id), None);
                return Some(Open { request: Some(request), ..open });
            }
            let transaction = Arc::new(Transaction::to_apply(Record::default()));
            let open = Open::new(transaction, true, Some(id), None);
            return Some(Open { writes: record, request: Some(request), ..open });
        }
        let record = Record::decode(body).ok()?;
        let transaction = Transaction::read(record, &self.around.classifier, &mut self.scratch);
        Some(Open::new(Arc::new(transaction), true, Some(id), None))
    }

    pub(super) fn on_moment(&mut self, id: MessageId, moment: Moment, place: Csn) {
        if let Some(txn) = self.by_id.get(&id).copied() {
            let before = self.place_of(txn);
            if let Some(open) = self.open.get_mut(&txn) {
                open.place = place;
            }
            if self.unconnected.remove(&(before, txn)) {
                self.unconnected.insert((place, txn));
            }
            self.deliver(id, txn, moment, place);
        } else if moment == Moment::Stable && !self.contained.contains(&place) && place > self.floor {
            // It could not be read.
            self.note_nothing(place, id);
        }
    }

    pub(super) fn deliver(&mut self, id: MessageId, txn: TxnId, moment: Moment, place: Csn) {
        let (Some(from), Some(open)) = (self.node_of(id.node), self.open.get(&txn)) else { return };
        let message = match &open.request {
            Some(Request { asks, access }) => {
                let access = access.clone();
                CoreMessage::Certified(match *asks {
                    Asks::Verdict { snapshot, op } => {
                        certified::Message::Request { txn, op, snapshot, access }
                    }
                    Asks::InPlace => certified::Message::InPlace { txn, access },
                })
            }
            None => {
                let access = open.transaction.access.clone();
                CoreMessage::WideArea(Message::Request { txn, access })
            }
        };
        self.feed(Event::Delivered { from, moment, place, message });
    }

    /// Reads what has become durable.
    pub(super) fn read_log(&mut self) {
        loop {
            let place = self.order.stable_up_to().next();
            if place > self.durable || place.0 > self.floor.0 + READ_MAX || self.ended.is_some() {
                break;
            }
            let (epoch, id, body) = match self.history.read(place) {
                Ok(Some((epoch, mut body))) => match take_id(&mut body) {
                    Some(id) => (Epoch(epoch), id, body),
                    None => (Epoch(epoch), MessageId::default(), body),
                },
                Ok(None) => {
                    self.ended = Some(Ended::Log(format!("place {place} is not in the log")));
                    return;
                }
                Err(error) => {
                    self.ended = Some(Ended::Log(format!("read place {place} of the log: {error}")));
                    return;
                }
            };
            match self.found.remove(&place) {
                Some(here) if here != id => {
                    self.ended = Some(Ended::Diverged(format!(
                        "its database has committed another transaction at place {place} than the log has there: one that was acknowledged before it was durable, and lost"
                    )));
                    return;
                }
                Some(_) => {
                    self.order.pass_over(place, id);
                    self.note_contained(place);
                    self.answer_found(id, !self.unchanged.contains(&place));
                }
                None => self.take_stable(place, epoch, id, body),
            }
        }
        self.give_places();
        // What a site has said since it is heard again is about what comes behind this place.
        let stable = self.order.stable_up_to();
        let is_back = |node: &NodeId| self.back_at.get(node).is_some_and(|back_at| stable >= *back_at);
        let back: Vec<NodeId> = self.lost.iter().copied().filter(is_back).collect();
        for node in back {
            self.lost.remove(&node);
            self.back_at.remove(&node);
            self.feed(Event::PeerBack { node });
        }
    }

    pub(super) fn take_stable(&mut self, place: Csn, epoch: Epoch, id: MessageId, body: Bytes) {
        let had_stood = self.order.has_stood(id);
        let mut told = Vec::new();
        match self.order.on_stable(place, epoch, id, body, &mut told) {
            Ok(()) if had_stood => self.note_nothing(place, id),
            Ok(()) => self.tell(told),
            Err(orphaned) => self.begin_again(format!(
                "place {} was told to be another message's than it has become, by a leader that was lost",
                orphaned.place
            )),
        }
        if let Some(leads) = &mut self.around.leads {
            leads.given.remove(&id);
        }
    }

    /// What stands at a place changes nothing. The database is told so with the next commit, since it must not be executed once more on what comes
    /// later.
    pub(super) fn note_nothing(&mut self, place: Csn, id: MessageId) {
        self.nothing.push((place, id));
        self.note_contained(place);
    }

    /// An own client's update of before this site began anew has its place for certain: it is committed, or may not commit and changes nothing there. If so it
    /// runs again, unless its client has seen answers.
    pub(super) fn answer_found(&mut self, id: MessageId, is_committed: bool) {
        let Some(pending) = self.around.pending.remove(&id) else { return };
        if !is_committed {
            match pending.whole {
                Some(_) if pending.answer.is_closed() => {}
                Some(transaction) => self.on_submit(transaction, pending.answer),
                // It may be gone.
                None => drop(pending.answer.send(Answer::of_failure(&given_up()))),
            }
            return;
        }
        let lost = || {
            let failure = Failure::new(
                SqlState::STATEMENT_COMPLETION_UNKNOWN,
                "the transaction was committed, and its results were lost with a connection to the server",
            );
            Answer::of_over(&failure.hint("Do not run it again."))
        };
        // It may be gone.
        let _ = pending.answer.send(pending.known.unwrap_or_else(lost));
    }

    /// The database contains what stands at a place, or nobody's ever will.
    pub(super) fn note_contained(&mut self, place: Csn) {
        self.contained.insert(place);
        while self.contained.remove(&self.floor.next()) {
            self.floor = self.floor.next();
        }
        self.around.figures.note(self.floor, self.order.stable_up_to());
        while let Some(first) = self.ahead.first_entry().filter(|first| *first.key() <= self.floor) {
            for ahead in first.remove() {
                match ahead {
                    Ahead::Query((transaction, answer)) => self.on_submit(transaction, answer),
                    Ahead::Begins(beginning) => self.on_beginning(beginning),
                }
            }
        }
    }
}
