//! Messages on their way, and the moments at which sites hear of them.

use std::ops::Range;

use onecopy_core::protocol::certified::Message as CertifiedMessage;
use onecopy_core::protocol::wide_area::Message as WideMessage;
use onecopy_core::{Csn, Event, Instant, Message, Moment, NodeId, Place, TxnId};

use super::sequencer::SEQUENCER;
use super::{Job, Order, Outgoing, Packet, Receipts, Sending, Simulation, Told, Wake};
use crate::server::Kind;

impl Simulation<'_> {
    pub(super) fn pass_token(&mut self, site: usize) {
        let sites = self.servers.len();
        let Order::Token { burst } = self.order else { return };
        let (stable, out) = self.ring.has_token(site, burst);
        for number in stable {
            self.deliver_number(site, Moment::Stable, number);
        }
        for sent in out {
            match sent.message {
                Outgoing::ToAll { txn, message } => {
                    let number = sent.number.unwrap_or_default();
                    self.numbered.push(self.sent.len());
                    self.sent.push((NodeId(site as u16), txn, message));
                    for to in (0..sites).filter(|to| *to != site) {
                        self.transmit(site, to, Packet::Ordered(number));
                    }
                    self.take(site, Packet::Ordered(number));
                }
                Outgoing::Shipped { to, message } => {
                    for to in to {
                        let message = message.clone();
                        self.transmit(site, to, Packet::Shipped { from: site, message });
                    }
                }
            }
        }
        let next = (site + 1) % sites;
        let at = self.arrival(site, next, 0);
        self.queue.schedule(at, Wake::Token(next));
    }

    pub(super) fn transmit(&mut self, from: usize, to: usize, packet: Packet) {
        self.measured.messages += 1;
        let Sending { message_ns, writes_ns } = self.setup.sending;
        let sending_ns = match packet {
            Packet::Told(_) => 0,
            _ if self.has_writes(&packet) => writes_ns,
            _ => message_ns,
        };
        let at = self.arrival(from, to, sending_ns);
        self.queue.schedule(at, Wake::Arrives { site: to, packet });
    }

    /// When something arrives that occupies its sender's link for so long, once what was sent before has gone.
    fn arrival(&mut self, from: usize, to: usize, sending_ns: u64) -> Instant {
        let takes_ns = self.setup.distances.draw_ns(from, to, &mut self.network);
        let sent = self.links[from].max(self.queue.now()).plus_ns(sending_ns);
        self.links[from] = sent;
        let last = self.channels.entry((from, to)).or_insert(Instant(0));
        *last = sent.plus_ns(takes_ns).max(last.plus_ns(1));
        *last
    }

    /// CPU time to take it in.
    pub(super) fn taking_ns(&self, packet: &Packet) -> u64 {
        let costs = &self.setup.costs;
        if self.has_writes(packet) { costs.writes_ns } else { costs.message_ns }
    }

    /// Whether it says what an update wrote.
    fn has_writes(&self, packet: &Packet) -> bool {
        let sent = |message: usize| self.sent.get(message).map(|(_, _, message)| message);
        let message = match packet {
            Packet::Shipped { message, .. } => Some(message),
            Packet::Ordered(number) => self.numbered.get(*number as usize - 1).and_then(|nth| sent(*nth)),
            Packet::Unnumbered(nth) => sent(*nth),
            Packet::Told(_) => None,
        };
        message.is_some_and(|message| match message {
            Message::Certified(message) => matches!(message, CertifiedMessage::Request { .. }),
            Message::WideArea(message) => matches!(message, WideMessage::WriteSet { .. }),
            _ => false,
        })
    }

    pub(super) fn take(&mut self, site: usize, packet: Packet) {
        match packet {
            Packet::Shipped { from, message } => {
                let from = Place::Peer(NodeId(from as u16));
                self.feed(site, Event::Message { from, message });
            }
            Packet::Ordered(number) => {
                self.deliver_number(site, Moment::Received, number);
                let ordered = self.ring.arrives(site, number);
                self.ordered(site, ordered);
            }
            Packet::Unnumbered(message) => {
                self.deliver(site, Moment::Received, 0, message);
                let ordered = self.sequencer.has_message(site, message);
                self.have(site, ordered);
                if site == SEQUENCER {
                    let number = self.sequencer.next();
                    self.numbered.push(message);
                    self.gather(site, |told| told.numbers.push((message, number)));
                }
            }
            Packet::Told(Told { numbers, site: other, has }) => {
                for (message, number) in numbers {
                    let ordered = self.sequencer.has_number(site, message, number);
                    self.have(site, ordered);
                }
                for number in has.map_or(0..0, |upto| self.sequencer.has(site, other, upto)) {
                    self.deliver_number(site, Moment::Stable, number);
                }
            }
        }
    }

    /// Everybody has to know what a site has.
    fn have(&mut self, site: usize, numbers: Range<u64>) {
        let upto = numbers.end.saturating_sub(1);
        if !numbers.is_empty() {
            self.ordered(site, numbers);
            self.gather(site, |told| told.has = Some(upto));
        }
    }

    /// The others will be told something more.
    fn gather(&mut self, site: usize, what: impl FnOnce(&mut Told)) {
        let gathers_ns = match self.order {
            Order::Sequencer { gathers_ns } => gathers_ns,
            Order::Token { .. } => 0,
        };
        let is_first = self.untold[site].is_none();
        what(self.untold[site].get_or_insert_with(|| Told { site, ..Told::default() }));
        if gathers_ns == 0 {
            self.tell(site);
        } else if is_first {
            self.queue.schedule(self.queue.now().plus_ns(gathers_ns), Wake::Tells(site));
        }
    }

    pub(super) fn tell(&mut self, site: usize) {
        if let Some(told) = self.untold[site].take() {
            self.send_everywhere(site, &Packet::Told(told));
        }
    }

    pub(super) fn send_to_all(&mut self, site: usize, txn: TxnId, message: Message) {
        self.sent.push((NodeId(site as u16), txn, message));
        self.send_everywhere(site, &Packet::Unnumbered(self.sent.len() - 1));
    }

    /// To all others, and then to itself.
    fn send_everywhere(&mut self, site: usize, packet: &Packet) {
        for to in (0..self.servers.len()).filter(|to| *to != site) {
            self.transmit(site, to, packet.clone());
        }
        self.work(site, Kind::Read, 0, Job::Take(packet.clone()));
    }

    fn ordered(&mut self, site: usize, numbers: Range<u64>) {
        for number in numbers {
            self.deliver_number(site, Moment::Ordered, number);
        }
    }

    fn deliver_number(&mut self, site: usize, moment: Moment, number: u64) {
        if let Some(message) = self.numbered.get(number as usize - 1) {
            self.deliver(site, moment, number, *message);
        }
    }

    /// Who was received before something that comes before it is out of order.
    fn count_order(&mut self, site: usize, moment: Moment, message: usize) {
        let Receipts { ranks, next, highest } = &mut self.receipts[site];
        match moment {
            Moment::Received => {
                *next += 1;
                ranks.insert(message, *next);
            }
            Moment::Ordered => {
                let rank = ranks.remove(&message).unwrap_or_default();
                self.measured.ordered += 1;
                self.measured.out_of_order += u64::from(rank < *highest);
                *highest = rank.max(*highest);
            }
            Moment::Stable => {}
        }
    }

    fn deliver(&mut self, site: usize, moment: Moment, number: u64, message: usize) {
        self.count_order(site, moment, message);
        let Some((from, txn, message)) = self.sent.get(message).cloned() else { return };
        let of = &mut self.txns[txn.0 as usize].served;
        if of.site == site {
            of.delivered[moment as usize] = Some(self.queue.now());
        }
        self.feed(site, Event::Delivered { from, moment, place: Csn(number), message });
    }
}
