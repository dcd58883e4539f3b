//! Messages between nodes, byte for byte. Nothing read here is trusted: every length is bounded, every number small
//! enough to be added to, and a checksum covers all of it.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | CRC-32 of the rest |
//! | 4 | 1 | version: 1 |
//! | 5 | 1 | kind |
//! | 6 | 1 | 1: refused; 2: a beginning follows the context |
//! | 7 | 1 | 0 |
//! | 8 | 16 | log id |
//! | 24 | 8 | from |
//! | 32 | 8 | to |
//! | 40 | 8 | incarnation of the sender |
//! | 48 | 8 | place of the sender's last durable record |
//! | 56 | 8 | epoch (Raft's term) |
//! | 64 | 8 | epoch of the record at the place below |
//! | 72 | 8 | place (Raft's index) |
//! | 80 | 8 | place up to which records are durable on a majority |
//! | 88 | 8 | epoch of the record there |
//! | 96 | 8 | hint of a refusal |
//! | 104 | 4 | length of the context, at most 64; then the context |
//! | | 168 | with flag 2: place, epoch, last commit, members of a log's beginning |
//! | | 4 | count of records; then each one's epoch (8), length (4) and bytes |
//!
//! Integers are little-endian. A record is nothing at all (a leader took over), or kind (1), 1 if it has a payload (1), 0
//! (2), chunk (4), CSN (8), payload (8), body.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::membership::{Membership, NODES_MAX, NodeId, Role};
use crate::record::{BODY_LEN_MAX, Kind, LogId, PLACE_MAX, PayloadId, PayloadRef, Record, Seq};

const VERSION: u8 = 1;
/// Bytes of the largest message: one record of the largest size, or many small ones.
pub const MESSAGE_LEN_MAX: usize = BODY_LEN_MAX + (2 << 20);
const HEAD_LEN: usize = 104;
const RECORD_HEAD_LEN: usize = 24;
const CONTEXT_LEN_MAX: usize = 64;
const FLAG_REFUSED: u8 = 1;
const FLAG_BEGINNING: u8 = 2;
/// Kind of the one message that is not Raft's.
const KIND_OLD_LOG: u8 = 100;

const KINDS: [(u8, MessageType); 12] = [
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgRequestPreVote),
    (6, MessageType::MsgRequestPreVoteResponse),
    (7, MessageType::MsgHeartbeat),
    (8, MessageType::MsgHeartbeatResponse),
    (9, MessageType::MsgSnapshot),
    (10, MessageType::MsgReadIndex),
    (11, MessageType::MsgReadIndexResp),
    (12, MessageType::MsgTimeoutNow),
];

/// Who sends a message, and in which state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Envelope {
    pub(super) log_id: LogId,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    /// Greater at each start of the node.
    pub(super) incarnation: u64,
    /// The sender's last durable record.
    pub(super) durable: Seq,
}

/// What a message says.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Content {
    Raft(Box<Message>),
    /// To a node that restarted: in its former life it had acknowledged this record, which it does not hold any more.
    OldLog {
        incarnation: u64,
        acknowledged: Seq,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends too early, or goes on behind its end.
    #[error("its length is wrong")]
    Length,
    /// The checksum does not match.
    #[error("its checksum does not match")]
    Checksum,
    /// Another version of this program sent it.
    #[error("it has version {0}, and this program knows {VERSION}")]
    Version(u8),
    /// No such kind.
    #[error("it is of the unknown kind {0}")]
    Kind(u8),
    /// A number is larger than any log reaches, or a field has a value that it cannot have.
    #[error("a field of it has an impossible value")]
    Value,
}

/// The bytes of a message; `None` if Raft wants one sent that nodes do not exchange.
pub(super) fn encode(envelope: &Envelope, content: &Content) -> Option<Bytes> {
    let mut out = BytesMut::with_capacity(256);
    out.put_bytes(0, 4);
    out.put_u8(VERSION);
    match content {
        Content::OldLog { incarnation, acknowledged } => {
            out.put_slice(&[KIND_OLD_LOG, 0, 0]);
            put_envelope(&mut out, envelope);
            for word in [0, 0, acknowledged.0, *incarnation, 0, 0] {
                out.put_u64_le(word);
            }
            out.put_u64_le(0);
        }
        Content::Raft(message) => {
            let kind =
                KINDS.iter().find(|(_, kind)| *kind == message.get_msg_type()).map(|(kind, _)| *kind)?;
            let has_beginning = message.has_snapshot() && !message.get_snapshot().is_empty();
            let flags = u8::from(message.reject) * FLAG_REFUSED + u8::from(has_beginning) * FLAG_BEGINNING;
            out.put_slice(&[kind, flags, 0]);
            put_envelope(&mut out, envelope);
            let m = message;
            for word in [m.term, m.log_term, m.index, m.commit, m.commit_term, m.reject_hint] {
                out.put_u64_le(word);
            }
            out.put_u32_le(m.context.len() as u32);
            out.put_slice(&m.context);
            if has_beginning {
                put_beginning(&mut out, m.get_snapshot())?;
            }
            out.put_u32_le(m.entries.len() as u32);
            for entry in m.get_entries() {
                let data = data_of(entry);
                out.put_u64_le(entry.term);
                out.put_u32_le(data.len() as u32);
                out.put_slice(data);
            }
        }
    }
    let sum = crc32fast::hash(&out[4..]);
    out[..4].copy_from_slice(&sum.to_le_bytes());
    Some(out.freeze())
}

fn put_envelope(out: &mut BytesMut, envelope: &Envelope) {
    out.put_u128_le(envelope.log_id.0);
    for word in [envelope.from.0, envelope.to.0, envelope.incarnation, envelope.durable.0] {
        out.put_u64_le(word);
    }
}

fn put_beginning(out: &mut BytesMut, snapshot: &Snapshot) -> Option<()> {
    let (csn, membership) = beginning_of(snapshot)?;
    let metadata = snapshot.get_metadata();
    for word in [metadata.index, metadata.term, csn.0] {
        out.put_u64_le(word);
    }
    out.put_slice(&membership.encode());
    Some(())
}

/// Reads a message.
pub(super) fn decode(mut bytes: Bytes) -> Result<(Envelope, Content), Malformed> {
    if !(HEAD_LEN + 8..=MESSAGE_LEN_MAX).contains(&bytes.len()) {
        return Err(Malformed::Length);
    }
    if bytes.get_u32_le() != crc32fast::hash(&bytes) {
        return Err(Malformed::Checksum);
    }
    let (version, kind, flags, zero) = (bytes.get_u8(), bytes.get_u8(), bytes.get_u8(), bytes.get_u8());
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let log_id = LogId(bytes.get_u128_le());
    let mut word = || bytes.get_u64_le();
    let (from, to, incarnation, durable) = (word(), word(), word(), word());
    let (term, log_term, index, commit, commit_term, hint) = (word(), word(), word(), word(), word(), word());
    let envelope =
        Envelope { log_id, from: NodeId(from), to: NodeId(to), incarnation, durable: Seq(durable) };
    let known_flags = FLAG_REFUSED | FLAG_BEGINNING;
    let small = [durable, term, log_term, index, commit_term, hint].iter().all(|word| *word <= PLACE_MAX);
    if from == 0 || to == 0 || zero != 0 || flags & !known_flags != 0 || !small {
        return Err(Malformed::Value);
    }
    if kind == KIND_OLD_LOG {
        let content = Content::OldLog { incarnation: commit, acknowledged: Seq(index) };
        return if bytes.len() == 8 { Ok((envelope, content)) } else { Err(Malformed::Length) };
    }
    let kind = KINDS.iter().find(|(known, _)| *known == kind).ok_or(Malformed::Kind(kind))?.1;
    if commit > PLACE_MAX {
        return Err(Malformed::Value);
    }
    let mut message = Message {
        from,
        to,
        term,
        log_term,
        index,
        commit,
        commit_term,
        reject: flags & FLAG_REFUSED != 0,
        reject_hint: hint,
        ..Message::default()
    };
    message.set_msg_type(kind);
    let context_len = bytes.get_u32_le() as usize;
    if context_len > CONTEXT_LEN_MAX || bytes.remaining() < context_len {
        return Err(Malformed::Length);
    }
    message.context = bytes.split_to(context_len);
    if flags & FLAG_BEGINNING != 0 {
        message.set_snapshot(take_beginning(&mut bytes)?);
    }
    message.set_entries(take_entries(&mut bytes, index)?.into());
    if bytes.has_remaining() {
        Err(Malformed::Length)
    } else {
        Ok((envelope, Content::Raft(Box::new(message))))
    }
}

fn take_beginning(bytes: &mut Bytes) -> Result<Snapshot, Malformed> {
    if bytes.remaining() < 24 + 16 * NODES_MAX {
        return Err(Malformed::Length);
    }
    let (index, term, csn) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
    let membership = Membership::decode(&bytes.split_to(16 * NODES_MAX)).ok_or(Malformed::Value)?;
    if [index, term, csn].iter().any(|word| *word > PLACE_MAX)
        || index == 0
        || term == 0
        || membership.voters().count() == 0
    {
        return Err(Malformed::Value);
    }
    Ok(beginning(Seq(index), Epoch(term), Csn(csn), &membership))
}

fn take_entries(bytes: &mut Bytes, before: u64) -> Result<Vec<Entry>, Malformed> {
    let count = bytes.try_get_u32_le().map_err(|_| Malformed::Length)?;
    let mut entries = Vec::new();
    for nth in 1..=u64::from(count) {
        if bytes.remaining() < 12 {
            return Err(Malformed::Length);
        }
        let (term, len) = (bytes.get_u64_le(), bytes.get_u32_le() as usize);
        if bytes.remaining() < len || len > BODY_LEN_MAX + RECORD_HEAD_LEN {
            return Err(Malformed::Length);
        }
        let data = bytes.split_to(len);
        if term > PLACE_MAX {
            return Err(Malformed::Value);
        }
        entries.push(entry_with(Seq(before + nth), Epoch(term), data));
    }
    Ok(entries)
}

/// What Raft calls a snapshot: no data, only where a log begins.
pub(super) fn beginning(place: Seq, epoch: Epoch, csn: Csn, membership: &Membership) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (place.0, epoch.0);
    metadata.set_conf_state(conf_state(membership));
    let mut data = BytesMut::new();
    data.put_u64_le(csn.0);
    data.put_slice(&membership.encode());
    snapshot.data = data.freeze();
    snapshot
}

/// The last commit before a beginning, and who shares the log there.
pub(super) fn beginning_of(snapshot: &Snapshot) -> Option<(Csn, Membership)> {
    let (csn, members) = snapshot.data.split_first_chunk::<8>()?;
    Some((Csn(u64::from_le_bytes(*csn)), Membership::decode(members)?))
}

pub(super) fn conf_state(membership: &Membership) -> raft::eraftpb::ConfState {
    let ids = |wanted: Role| -> Vec<u64> {
        membership.nodes().filter(|(_, role)| *role == wanted).map(|(node, _)| node.0).collect()
    };
    (ids(Role::Voter), ids(Role::Learner)).into()
}

/// A record as Raft's entries carry it.
pub(super) fn encode_record(record: &Record) -> Bytes {
    let mut out = BytesMut::with_capacity(RECORD_HEAD_LEN + record.body.len());
    let payload = record.payload.unwrap_or(PayloadRef { id: PayloadId(0), chunk: 0 });
    out.put_slice(&[record.kind.0, u8::from(record.payload.is_some()), 0, 0]);
    out.put_u32_le(payload.chunk);
    out.put_u64_le(record.csn.0);
    out.put_u64_le(payload.id.0);
    out.put_slice(&record.body);
    out.freeze()
}

/// The record in an entry that stands behind commit `last`; `None` if it holds none.
pub(super) fn record_of(entry: &Entry, last: Csn) -> Option<Record> {
    let mut data = data_of(entry).clone();
    let epoch = Epoch(entry.term);
    if data.is_empty() {
        return Some(Record { csn: last, ..Record::other(Kind::EPOCH, epoch, Bytes::new()) });
    }
    if data.len() < RECORD_HEAD_LEN {
        return None;
    }
    let (kind, has_payload, _zero) = (Kind(data.get_u8()), data.get_u8(), data.get_u16_le());
    let (chunk, csn, id) = (data.get_u32_le(), Csn(data.get_u64_le()), PayloadId(data.get_u64_le()));
    let payload = (has_payload == 1).then_some(PayloadRef { id, chunk });
    (has_payload <= 1).then_some(Record { kind, epoch, csn, payload, body: data })
}

/// An entry at `place` with an encoded record.
pub(super) fn entry_with(place: Seq, epoch: Epoch, data: Bytes) -> Entry {
    let mut entry = Entry { index: place.0, term: epoch.0, ..Entry::default() };
    if data.first() == Some(&Kind::MEMBERSHIP.0) {
        entry.set_entry_type(EntryType::EntryConfChangeV2);
    }
    entry.data = data;
    entry
}

/// The encoded record of an entry. Raft itself wants the data of a change of members in its own form as long as that is
/// proposed; ours is the context then.
pub(super) fn data_of(entry: &Entry) -> &Bytes {
    if entry.context.is_empty() { &entry.data } else { &entry.context }
}
