//! What sites say to each other, beside the log.
//!
//! Format: a kind byte, numbers of eight bytes, and byte strings with a length of four bytes before them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_core::{Csn, Epoch, OpId};

use super::likeness::Likeness;
use super::outcomes::Block;
use onecopy_core::multicast::MessageId;

const KIND_REQUEST: u8 = 1;
const KIND_PLACE: u8 = 2;
const KIND_WRITES: u8 = 3;
const KIND_FAILED: u8 = 4;
const KIND_ALIVE: u8 = 5;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SiteMessage {
    /// An update, by the site of its client; to all.
    Request { id: MessageId, body: Bytes },
    /// The leader's: an update has a place in the order, which is not durable yet.
    Place { epoch: Epoch, place: Csn, id: MessageId },
    /// What an update wrote, and for the site of its client the answer. Where it stands there, and in which epoch it was given that place.
    Writes { id: MessageId, place: Csn, epoch: Epoch, op: OpId, writes: Bytes, answer: Bytes },
    /// An update was rolled back, and for the site of its client the error; and where it stands there.
    Failed { id: MessageId, place: Csn, epoch: Epoch, op: OpId, answer: Bytes },
    /// That it lives; up to which place its database contains everything, and the last place of which it has said anything; when it was started,
    /// and what has to be the same at all.
    /// And blocks at whose places nothing can happen any more at it.
    Alive { contained: Csn, told: Csn, incarnation: u64, likeness: Likeness, blocks: Vec<Block> },
}

impl SiteMessage {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            SiteMessage::Request { id, body } => {
                out.put_u8(KIND_REQUEST);
                put_id(*id, &mut out);
                put_bytes(&mut out, body);
            }
            SiteMessage::Place { epoch, place, id } => {
                out.put_u8(KIND_PLACE);
                out.put_u64(epoch.0);
                out.put_u64(place.0);
                put_id(*id, &mut out);
            }
            SiteMessage::Writes { id, place, epoch, op, writes, answer } => {
                out.put_u8(KIND_WRITES);
                put_id(*id, &mut out);
                out.put_u64(place.0);
                out.put_u64(epoch.0);
                out.put_u64(op.0.into());
                put_bytes(&mut out, writes);
                put_bytes(&mut out, answer);
            }
            SiteMessage::Failed { id, place, epoch, op, answer } => {
                out.put_u8(KIND_FAILED);
                put_id(*id, &mut out);
                out.put_u64(place.0);
                out.put_u64(epoch.0);
                out.put_u64(op.0.into());
                put_bytes(&mut out, answer);
            }
            SiteMessage::Alive { contained, told, incarnation, likeness, blocks } => {
                out.put_u8(KIND_ALIVE);
                out.put_u64(contained.0);
                out.put_u64(told.0);
                out.put_u64(*incarnation);
                likeness.put(&mut out);
                for Block { number, digest } in blocks {
                    out.put_u64(*number);
                    out.put_u64(*digest);
                }
            }
        }
        out.freeze()
    }

    /// `None` for what is no message of this version.
    pub fn decode(mut input: Bytes) -> Option<SiteMessage> {
        let input = &mut input;
        let message = match input.try_get_u8().ok()? {
            KIND_REQUEST => SiteMessage::Request { id: take_id(input)?, body: take_bytes(input)? },
            KIND_PLACE => {
                let (epoch, place) = (Epoch(take(input)?), Csn(take(input)?));
                SiteMessage::Place { epoch, place, id: take_id(input)? }
            }
            KIND_WRITES => {
                let (id, place) = (take_id(input)?, Csn(take(input)?));
                let (epoch, op) = (Epoch(take(input)?), take_op(input)?);
                let (writes, answer) = (take_bytes(input)?, take_bytes(input)?);
                SiteMessage::Writes { id, place, epoch, op, writes, answer }
            }
            KIND_FAILED => {
                let (id, place) = (take_id(input)?, Csn(take(input)?));
                let (epoch, op) = (Epoch(take(input)?), take_op(input)?);
                SiteMessage::Failed { id, place, epoch, op, answer: take_bytes(input)? }
            }
            KIND_ALIVE => {
                let (contained, told) = (Csn(take(input)?), Csn(take(input)?));
                let incarnation = take(input)?;
                let likeness = Likeness::take(input)?;
                let mut blocks = Vec::new();
                while input.has_remaining() {
                    blocks.push(Block { number: take(input)?, digest: take(input)? });
                }
                SiteMessage::Alive { contained, told, incarnation, likeness, blocks }
            }
            _ => return None,
        };
        (!input.has_remaining()).then_some(message)
    }
}

/// Bytes of a message's name.
pub const ID_LEN: usize = 24;

pub fn put_id(MessageId { node, incarnation, number }: MessageId, out: &mut BytesMut) {
    [node, incarnation, number].into_iter().for_each(|number| out.put_u64(number));
}

pub fn take_id(input: &mut Bytes) -> Option<MessageId> {
    Some(MessageId { node: take(input)?, incarnation: take(input)?, number: take(input)? })
}

pub fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    // A message of the nodes' is shorter than that.
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

pub fn take_bytes(input: &mut Bytes) -> Option<Bytes> {
    let len = input.try_get_u32().ok()? as usize;
    // What is kept must not keep the buffer in which it came with many others.
    (input.remaining() >= len).then(|| Bytes::copy_from_slice(&input.split_to(len)))
}

fn take(input: &mut Bytes) -> Option<u64> {
    input.try_get_u64().ok()
}

fn take_op(input: &mut Bytes) -> Option<OpId> {
    Some(OpId(take(input)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        let id = MessageId { node: 1, incarnation: 7, number: 3 };
        let mut out = BytesMut::new();
        put_id(id, &mut out);
        assert_eq!(out.len(), ID_LEN);
        assert_eq!(take_id(&mut out.freeze()), Some(id));
        assert_eq!(take_id(&mut Bytes::from_static(&[0; 23])), None);
    }

    #[test]
    fn messages_come_back_as_they_went_and_what_is_cut_is_none() {
        let id = MessageId { node: 2, incarnation: 1 << 50, number: 9 };
        let some = |text: &'static str| Bytes::from_static(text.as_bytes());
        let (place, epoch, op) = (Csn(77), Epoch(4), OpId(3));
        let likeness = Likeness { settings: 1, definitions: 2 };
        for message in [
            SiteMessage::Request { id, body: some("UPDATE t SET a = 1") },
            SiteMessage::Place { epoch, place, id },
            SiteMessage::Writes { id, place, epoch, op, writes: some("w"), answer: some("") },
            SiteMessage::Failed { id, place, epoch, op, answer: some("no") },
            SiteMessage::Alive {
                contained: place,
                told: Csn(78),
                incarnation: 5,
                likeness,
                blocks: Vec::new(),
            },
        ] {
            let sent = message.encode();
            assert_eq!(SiteMessage::decode(sent.clone()), Some(message));
            for len in 0..sent.len() {
                assert_eq!(SiteMessage::decode(sent.slice(..len)), None, "cut at {len}");
            }
        }
        let blocks = vec![Block { number: 3, digest: 1 }, Block { number: 4, digest: 2 }];
        let alive = SiteMessage::Alive { contained: place, told: place, incarnation: 5, likeness, blocks };
        assert_eq!(SiteMessage::decode(alive.encode()), Some(alive));
        assert_eq!(SiteMessage::decode(some("\u{9}")), None);
    }
}
