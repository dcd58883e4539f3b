//! The format: records, the frames that hold them, and the header of a segment.
//!
//! `docs/log-format.md` describes the bytes; this file is the only place that reads or writes them. Nothing here
//! trusts a byte that a checksum does not cover, and no length is used before its checksum was verified.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};

use crate::consensus::{Membership, NODES_MAX, NodeId};
use crate::planted::{Bug, planted};

/// The newest version that this build reads. It writes this one where several nodes share a log, else version 1.
pub const FORMAT_VERSION: u32 = 2;
const FORMAT_VERSION_ALONE: u32 = 1;
/// Bytes of a segment before its first frame: one device block, so that no write of records ever touches it.
pub const SEGMENT_HEADER_LEN: u64 = 4096;
/// Bytes of a frame before its body.
pub const FRAME_HEADER_LEN: usize = 64;
/// The largest body of one record, in bytes. A larger write goes as [`Kind::PAYLOAD`] chunks.
pub const BODY_LEN_MAX: usize = 16 << 20;

/// Frames begin at multiples of this many bytes, so that a reader can find them again after damage.
pub(crate) const ALIGN: u64 = 8;

const MAGIC: [u8; 8] = *b"1COPYLOG";
const HEADER_CRC_AT: usize = SEGMENT_HEADER_LEN as usize - 4;
const FLAG_PAYLOAD: u8 = 1;
/// Larger places than any log reaches, far from where adding to them could overflow.
pub(crate) const PLACE_MAX: u64 = u64::MAX / 4;

/// Which log a record belongs to: random, drawn by whoever begins a log, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u128);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{:032x}", self.0)
    }
}

/// A record's place in its log: 1 for the first, dense, whatever the record's kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The place after this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}", self.0)
    }
}

/// One file of the log. Numbers only grow, and none is used for two different segments of one log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentNo(pub u64);

impl SegmentNo {
    /// The file's name inside the log's folder.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{:016}.seg", self.0)
    }

    /// The segment that a file name stands for; `None` if it is not one of ours.
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<SegmentNo> {
        let digits = name.strip_suffix(".seg")?;
        let well_formed = digits.len() >= 16 && digits.bytes().all(|b| b.is_ascii_digit());
        let segment = SegmentNo(digits.parse().ok().filter(|_| well_formed)?);
        (segment.file_name() == name).then_some(segment)
    }
}

impl fmt::Display for SegmentNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for SegmentNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// The writes of one large transaction that were logged before its decision; unique within an epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PayloadId(pub u64);

impl fmt::Display for PayloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a record is. Open: the log keeps kinds that it does not know, so that later versions can add some.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// A decided transaction: its CSN follows that of the commit before it.
    pub const COMMIT: Kind = Kind(1);
    /// A chunk of a transaction's writes, logged before its decision.
    pub const PAYLOAD: Kind = Kind(2);
    /// The transaction of a payload will never decide: its chunks need not be kept.
    pub const ABANDON: Kind = Kind(3);
    /// Values handed out by the scheduler (sequences, identities) up to a bound.
    pub const RESERVATION: Kind = Kind(4);
    /// State of a statement that runs outside the order (VACUUM, CREATE INDEX CONCURRENTLY).
    pub const MAINTENANCE: Kind = Kind(5);
    /// A leader took over: its epoch is the record's.
    pub const EPOCH: Kind = Kind(6);
    /// A commit that was decided and that no replica can apply: it never happens.
    pub const ANNULMENT: Kind = Kind(7);
    /// Which nodes share the log, from here on.
    pub const MEMBERSHIP: Kind = Kind(8);
    /// Which replicas there are, from here on.
    pub const REPLICAS: Kind = Kind(9);

    /// The log's own: everything before this frame is on stable storage, and nothing follows yet.
    pub(crate) const MARK: Kind = Kind(0xF0);
    /// The log's own: the records go on in a later segment, which exists.
    pub(crate) const SEAL: Kind = Kind(0xF1);

    /// Whether a caller may append records of this kind: 0 and 0xF0 to 0xFF belong to the log itself.
    #[must_use]
    pub fn is_appendable(self) -> bool {
        (1..0xF0).contains(&self.0)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::COMMIT => f.write_str("commit"),
            Kind::PAYLOAD => f.write_str("payload"),
            Kind::ABANDON => f.write_str("abandon"),
            Kind::RESERVATION => f.write_str("reservation"),
            Kind::MAINTENANCE => f.write_str("maintenance"),
            Kind::EPOCH => f.write_str("epoch"),
            Kind::ANNULMENT => f.write_str("annulment"),
            Kind::MEMBERSHIP => f.write_str("membership"),
            Kind::REPLICAS => f.write_str("replicas"),
            Kind::MARK => f.write_str("mark"),
            Kind::SEAL => f.write_str("seal"),
            Kind(other) => write!(f, "kind {other}"),
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a record refers to a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadRef {
    /// Which payload.
    pub id: PayloadId,
    /// In a [`Kind::PAYLOAD`] record: its number, from 0. In a [`Kind::COMMIT`]: how many chunks there are. Else 0.
    pub chunk: u32,
}

/// What is appended and read back. The body's meaning belongs to the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it is.
    pub kind: Kind,
    /// The term of the leader that wrote it; never less than that of the record before.
    pub epoch: Epoch,
    /// A commit's place in the order. Any other record carries that of the commit before it, set by the log.
    pub csn: Csn,
    /// The payload that this record adds to, decides or abandons.
    pub payload: Option<PayloadRef>,
    /// At most [`BODY_LEN_MAX`] bytes.
    pub body: Bytes,
}

impl Record {
    /// A decided transaction whose writes are in `body`.
    #[must_use]
    pub fn commit(epoch: Epoch, csn: Csn, body: Bytes) -> Record {
        Record { kind: Kind::COMMIT, epoch, csn, payload: None, body }
    }

    /// A decided transaction, the first part of whose writes was logged as `chunks` chunks of payload `id`.
    #[must_use]
    pub fn commit_with_payload(epoch: Epoch, csn: Csn, id: PayloadId, chunks: u32, body: Bytes) -> Record {
        Record { kind: Kind::COMMIT, epoch, csn, payload: Some(PayloadRef { id, chunk: chunks }), body }
    }

    /// Chunk number `chunk` (from 0, in order) of payload `id`.
    #[must_use]
    pub fn payload(epoch: Epoch, id: PayloadId, chunk: u32, body: Bytes) -> Record {
        Record { kind: Kind::PAYLOAD, epoch, csn: Csn(0), payload: Some(PayloadRef { id, chunk }), body }
    }

    /// The transaction of payload `id` was rolled back.
    #[must_use]
    pub fn abandon(epoch: Epoch, id: PayloadId) -> Record {
        let payload = Some(PayloadRef { id, chunk: 0 });
        Record { kind: Kind::ABANDON, epoch, csn: Csn(0), payload, body: Bytes::new() }
    }

    /// A record that neither decides a transaction nor belongs to a payload.
    #[must_use]
    pub fn other(kind: Kind, epoch: Epoch, body: Bytes) -> Record {
        Record { kind, epoch, csn: Csn(0), payload: None, body }
    }

    /// Commit `csn`, which stands earlier in the log, never happens. `reason` is for people.
    #[must_use]
    pub fn annulment(epoch: Epoch, csn: Csn, reason: &str) -> Record {
        let mut body = BytesMut::with_capacity(8 + reason.len());
        body.put_u64_le(csn.0);
        body.put_slice(reason.as_bytes());
        Record::other(Kind::ANNULMENT, epoch, body.freeze())
    }

    /// Bytes that the record takes in a segment.
    #[must_use]
    pub fn frame_len(&self) -> u64 {
        frame_len(self.body.len())
    }
}

/// The commit that an annulment of this body is about.
pub(crate) fn annulled_by(body: &[u8]) -> Option<Csn> {
    Some(Csn(u64::from_le_bytes(*body.first_chunk()?)))
}

/// A record that was read, with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place in the log.
    pub seq: Seq,
    /// The record as it was appended.
    pub record: Record,
}

/// Why the bytes at a place are not the frame that should be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Defect {
    /// Fewer bytes are left than a header takes.
    #[error("the file ends within the header of a record")]
    HeaderCut,
    /// The header's checksum does not match its bytes.
    #[error("the checksum of a record's header does not match")]
    Header,
    /// Fewer bytes are left than the header announces.
    #[error("the file ends within the body of a record")]
    BodyCut,
    /// The body's checksum does not match its bytes.
    #[error("the checksum of a record's body does not match")]
    Body,
    /// The frame is whole, but is not the next one.
    #[error("record {found} stands where record {expected} should be")]
    Place {
        /// The next record's place.
        expected: Seq,
        /// What the header says.
        found: Seq,
    },
    /// Nothing is here.
    #[error("the record is missing")]
    Missing,
}

/// Mixed into every frame's checksum: a frame is valid only in the segment that it was written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) fn new(log_id: LogId, segment: SegmentNo) -> Stamp {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&log_id.0.to_le_bytes());
        hasher.update(&segment.0.to_le_bytes());
        Stamp(hasher.finalize())
    }

    fn sum(self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// What a frame says before its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub(crate) kind: Kind,
    pub(crate) seq: Seq,
    /// Every record before this one was on stable storage when the frame was written; `synced <= seq`.
    pub(crate) synced: Seq,
    pub(crate) csn: Csn,
    pub(crate) epoch: Epoch,
    pub(crate) payload: Option<PayloadRef>,
    pub(crate) body_len: u32,
    body_crc: u32,
}

impl FrameHeader {
    pub(crate) fn of(record: &Record, seq: Seq, synced: Seq) -> FrameHeader {
        FrameHeader {
            kind: record.kind,
            seq,
            synced,
            csn: record.csn,
            epoch: record.epoch,
            payload: record.payload,
            body_len: record.body.len() as u32,
            body_crc: 0,
        }
    }

    /// One of the log's own frames, without a body: it takes the place of the next record without using it up.
    pub(crate) fn own(kind: Kind, seq: Seq, synced: Seq, csn: Csn, epoch: Epoch) -> FrameHeader {
        FrameHeader { kind, seq, synced, csn, epoch, payload: None, body_len: 0, body_crc: 0 }
    }

    pub(crate) fn frame_len(&self) -> u64 {
        frame_len(self.body_len as usize)
    }

    /// Body and padding, in bytes.
    pub(crate) fn padded_len(&self) -> usize {
        padded_len(self.body_len as usize)
    }

    pub(crate) fn body_matches(&self, padded_body: &[u8]) -> bool {
        crc32fast::hash(padded_body) == self.body_crc || planted(Bug::SkipChecksums)
    }
}

/// Appends one frame to `out`.
pub(crate) fn encode_frame(out: &mut BytesMut, stamp: Stamp, header: &FrameHeader, body: &[u8]) {
    debug_assert_eq!(header.body_len as usize, body.len());
    let start = out.len();
    out.reserve(header.frame_len() as usize);
    out.put_bytes(0, FRAME_HEADER_LEN);
    out.put_slice(body);
    out.put_bytes(0, header.padded_len() - body.len());
    let (head, padded_body) = out[start..].split_at_mut(FRAME_HEADER_LEN);
    let payload = header.payload.unwrap_or(PayloadRef { id: PayloadId(0), chunk: 0 });
    head[4..8].copy_from_slice(&crc32fast::hash(padded_body).to_le_bytes());
    head[8..12].copy_from_slice(&header.body_len.to_le_bytes());
    head[12] = header.kind.0;
    head[13] = if header.payload.is_some() { FLAG_PAYLOAD } else { 0 };
    head[16..24].copy_from_slice(&header.seq.0.to_le_bytes());
    head[24..32].copy_from_slice(&header.synced.0.to_le_bytes());
    head[32..40].copy_from_slice(&header.csn.0.to_le_bytes());
    head[40..48].copy_from_slice(&header.epoch.0.to_le_bytes());
    head[48..56].copy_from_slice(&payload.id.0.to_le_bytes());
    head[56..60].copy_from_slice(&payload.chunk.to_le_bytes());
    let crc = stamp.sum(&head[4..]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The header in the first [`FRAME_HEADER_LEN`] bytes, `None` unless its checksum matches and its fields are possible.
pub(crate) fn decode_header(head: &[u8], stamp: Stamp) -> Option<FrameHeader> {
    let head = head.first_chunk::<FRAME_HEADER_LEN>()?;
    let kind = Kind(head[12]);
    let flags = head[13];
    let body_len = u32_at(head, 8);
    // Cheap tests first: a search for frames in a damaged region tries every place.
    if kind.0 == 0 || flags & !FLAG_PAYLOAD != 0 || body_len as usize > BODY_LEN_MAX {
        return None;
    }
    if u32_at(head, 0) != stamp.sum(&head[4..]) && !planted(Bug::SkipChecksums) {
        return None;
    }
    let payload = PayloadRef { id: PayloadId(u64_at(head, 48)), chunk: u32_at(head, 56) };
    let (seq, synced) = (Seq(u64_at(head, 16)), Seq(u64_at(head, 24)));
    (synced <= seq).then_some(FrameHeader {
        kind,
        seq,
        synced,
        csn: Csn(u64_at(head, 32)),
        epoch: Epoch(u64_at(head, 40)),
        payload: (flags & FLAG_PAYLOAD != 0).then_some(payload),
        body_len,
        body_crc: u32_at(head, 4),
    })
}

/// The first [`SEGMENT_HEADER_LEN`] bytes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The log that the segment belongs to.
    pub log_id: LogId,
    /// The segment's own number; equal to that in its file name.
    pub number: SegmentNo,
    /// The first record that can stand here. What earlier segments hold from this place on is void.
    pub first_seq: Seq,
    /// The CSN of the first commit that can stand here.
    pub first_csn: Csn,
    /// The highest epoch when the segment was created.
    pub epoch: Epoch,
    /// Every record before this one was on stable storage when the segment was created; `synced <= first_seq`.
    pub synced: Seq,
    /// What a node of several has to remember; `None` in the log of one that is alone.
    pub shared: Option<Shared>,
}

/// What a node of several has promised the others. It stands in the header of the newest segment: a node that votes, or
/// learns of a later epoch, begins a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Whose copy of the log this is.
    pub node: NodeId,
    /// The latest epoch that the node has heard of.
    pub term: Epoch,
    /// For whom it voted in that epoch.
    pub vote: Option<NodeId>,
    /// The last record that was known to be durable on a majority when the segment was created; it may be far behind.
    /// `committed < first_seq`.
    pub committed: Seq,
    /// How the segment follows those before it.
    pub start: Start,
    /// Which nodes share the log, by all records before the segment.
    pub membership: Membership,
}

/// How a segment follows those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// It goes on behind their last record that is safe.
    #[default]
    Continues,
    /// What they hold from its first place on is void although it may be safe: another leader never had it.
    Cuts,
    /// All that they hold is void, and records between may be missing: the node was too far behind.
    Begins,
}

impl Shared {
    fn encode(&self, out: &mut [u8]) {
        out[72] = match self.start {
            Start::Continues => 0,
            Start::Cuts => 1,
            Start::Begins => 2,
        };
        out[80..88].copy_from_slice(&self.node.0.to_le_bytes());
        out[88..96].copy_from_slice(&self.term.0.to_le_bytes());
        out[96..104].copy_from_slice(&self.vote.map_or(0, |vote| vote.0).to_le_bytes());
        out[104..112].copy_from_slice(&self.committed.0.to_le_bytes());
        let members = self.membership.encode();
        out[112..112 + members.len()].copy_from_slice(&members);
    }

    fn decode(head: &[u8]) -> Option<Shared> {
        let start = match head[72] {
            0 => Start::Continues,
            1 => Start::Cuts,
            2 => Start::Begins,
            _ => return None,
        };
        let node = |at| Some(NodeId(u64_at(head, at))).filter(|node| node.0 != 0);
        Some(Shared {
            node: node(80)?,
            term: Epoch(u64_at(head, 88)),
            vote: node(96),
            committed: Seq(u64_at(head, 104)),
            start,
            membership: Membership::decode(&head[112..112 + 16 * NODES_MAX])?,
        })
    }
}

/// Why a segment's header cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderDefect {
    /// The file is shorter than a header.
    #[error("the file has only {0} bytes, less than a segment's header")]
    Cut(u64),
    /// The file does not begin as a segment does.
    #[error("the file does not begin like a segment of a commit log")]
    Magic,
    /// The checksum does not match.
    #[error("the checksum of the segment's header does not match")]
    Checksum,
    /// The header is whole but contradicts itself or its file's name.
    #[error("the segment's header contradicts itself or the file's name")]
    Contradiction,
    /// Written by a later version of this program.
    #[error("the segment has format version {0}; this program reads up to version {FORMAT_VERSION}")]
    Version(u32),
}

impl SegmentHeader {
    /// The version of the format that the segment has.
    #[must_use]
    pub fn version(&self) -> u32 {
        if self.shared.is_some() { FORMAT_VERSION } else { FORMAT_VERSION_ALONE }
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::zeroed(SEGMENT_HEADER_LEN as usize);
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.version().to_le_bytes());
        out[16..32].copy_from_slice(&self.log_id.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_seq.0.to_le_bytes());
        out[48..56].copy_from_slice(&self.first_csn.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[64..72].copy_from_slice(&self.synced.0.to_le_bytes());
        if let Some(shared) = &self.shared {
            shared.encode(&mut out);
        }
        let crc = crc32fast::hash(&out[..HEADER_CRC_AT]);
        out[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }

    /// Reads the header of segment `number` from the beginning of its file.
    ///
    /// # Errors
    /// Which part of the header is not as it should be.
    pub fn decode(bytes: &[u8], number: SegmentNo) -> Result<SegmentHeader, HeaderDefect> {
        let cut = HeaderDefect::Cut(bytes.len() as u64);
        let head = bytes.first_chunk::<{ SEGMENT_HEADER_LEN as usize }>().ok_or(cut)?;
        if head[..8] != MAGIC {
            return Err(HeaderDefect::Magic);
        }
        // Magic, version and checksum keep their places in every version, so that this answer is always right.
        let sum_matches = crc32fast::hash(&head[..HEADER_CRC_AT]) == u32_at(head, HEADER_CRC_AT);
        if !sum_matches && !planted(Bug::SkipChecksums) {
            return Err(HeaderDefect::Checksum);
        }
        let version = u32_at(head, 8);
        let shared = match version {
            FORMAT_VERSION_ALONE => None,
            FORMAT_VERSION => Some(Shared::decode(head).ok_or(HeaderDefect::Contradiction)?),
            _ => return Err(HeaderDefect::Version(version)),
        };
        let mut log_id = [0; 16];
        log_id.copy_from_slice(&head[16..32]);
        let header = SegmentHeader {
            log_id: LogId(u128::from_le_bytes(log_id)),
            number: SegmentNo(u64_at(head, 32)),
            first_seq: Seq(u64_at(head, 40)),
            first_csn: Csn(u64_at(head, 48)),
            epoch: Epoch(u64_at(head, 56)),
            synced: Seq(u64_at(head, 64)),
            shared,
        };
        let possible = (1..=PLACE_MAX).contains(&header.first_seq.0)
            && (1..=PLACE_MAX).contains(&header.first_csn.0)
            && shared.is_none_or(|shared| shared.committed < header.first_seq);
        if header.number != number || header.synced > header.first_seq || !possible {
            return Err(HeaderDefect::Contradiction);
        }
        Ok(header)
    }
}

fn frame_len(body_len: usize) -> u64 {
    (FRAME_HEADER_LEN + padded_len(body_len)) as u64
}

fn padded_len(body_len: usize) -> usize {
    body_len.next_multiple_of(ALIGN as usize)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
