//! The engine's exact effects, and the exact words of recovery.

use bytes::{Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};

use crate::record::{FRAME_HEADER_LEN, FrameHeader, HeaderDefect, SegmentHeader, Stamp, encode_frame};
use crate::simulated::SimulatedDisk;
use crate::{
    Action, AppendError, Cause, Corruption, Damage, Durability, Effect, Engine, Event, Fault, Genesis, Kind,
    LogId, PayloadId, ReadError, Record, Records, RecoverError, SegmentNo, Seq, Settings, State, recover,
};

const E: Epoch = Epoch(1);
const ID: LogId = LogId(0x1234);
const HEADER: u64 = 4096;
const FRAME: u64 = FRAME_HEADER_LEN as u64;

fn settings() -> Settings {
    Settings {
        durability: Durability::Disk,
        segment_len: HEADER + 1000,
        group_len_max: 500,
        zero_ahead_len: 0,
    }
}

fn commit(csn: u64) -> Record {
    Record::commit(E, Csn(csn), Bytes::from(format!("writes {csn}")))
}

/// A commit whose frame takes 64 + 136 = 200 bytes.
fn large(csn: u64) -> Record {
    Record::commit(E, Csn(csn), Bytes::from(vec![csn as u8; 136]))
}

fn frames(segment: u64, first: u64, synced: u64, records: &[Record]) -> Bytes {
    let mut bytes = BytesMut::new();
    for (nth, record) in records.iter().enumerate() {
        let header = FrameHeader::of(record, Seq(first + nth as u64), Seq(synced));
        encode_frame(&mut bytes, Stamp::new(ID, SegmentNo(segment)), &header, &record.body);
    }
    bytes.freeze()
}

fn own(kind: Kind, segment: u64, seq: u64, synced: u64, csn: u64) -> Bytes {
    let mut bytes = BytesMut::new();
    let header = FrameHeader::own(kind, Seq(seq), Seq(synced), Csn(csn), E);
    encode_frame(&mut bytes, Stamp::new(ID, SegmentNo(segment)), &header, &[]);
    bytes.freeze()
}

fn header(number: u64, first_seq: u64, first_csn: u64, synced: u64) -> Effect {
    let header = SegmentHeader {
        log_id: ID,
        number: SegmentNo(number),
        first_seq: Seq(first_seq),
        first_csn: Csn(first_csn),
        epoch: E,
        synced: Seq(synced),
        shared: None,
    };
    Effect::Create { segment: SegmentNo(number), header: header.encode() }
}

fn write(segment: u64, offset: u64, bytes: Bytes) -> Effect {
    Effect::Write { segment: SegmentNo(segment), offset, bytes }
}

fn sync(segment: u64) -> Effect {
    Effect::Sync { segment: SegmentNo(segment) }
}

/// The engine with a disk that does at once what it is told.
struct Rig {
    engine: Engine,
    disk: SimulatedDisk,
}

impl Rig {
    fn begin(settings: Settings) -> Rig {
        let mut effects = Vec::new();
        let genesis = Genesis { log_id: ID, epoch: E, after: Csn(0) };
        let engine = Engine::begin(genesis, settings, &mut effects);
        assert_eq!(effects, [header(1, 1, 1, 1)]);
        let mut rig = Rig { engine, disk: SimulatedDisk::new() };
        assert_eq!(rig.perform(effects), []);
        rig
    }

    /// As a new process would, on the same disk.
    fn resume(disk: SimulatedDisk, settings: Settings) -> (Rig, Vec<Effect>) {
        let mut rig = Rig { engine: Rig::begin(settings).engine, disk };
        let mut effects = Vec::new();
        let recovery = recover(&mut rig.disk).expect("sound").expect("there is a log");
        rig.engine = Engine::resume(recovery, settings, &mut effects);
        (rig, effects)
    }

    fn append(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            self.engine.append(record).expect("admitted");
        }
    }

    fn flush(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.engine.flush(&mut effects);
        effects
    }

    /// Carries the effects out and returns what the engine wants then, of its own.
    fn perform(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut more = Vec::new();
        for effect in effects {
            self.disk.start(effect);
            while self.disk.is_busy() {
                if let Some(event) = self.disk.step() {
                    self.engine.handle(event, &mut more);
                }
            }
        }
        more
    }

    fn run(&mut self) {
        let mut effects = self.flush();
        while !effects.is_empty() {
            effects = self.perform(effects);
            if effects.is_empty() {
                effects = self.flush();
            }
        }
    }

    fn mark(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.engine.mark(&mut effects);
        effects
    }

    fn durable(&self) -> u64 {
        self.engine.durable().csn.0
    }

    fn read(&mut self, csn: u64) -> Result<Vec<Record>, ReadError> {
        let mut records = Records::from(Csn(csn), &self.engine, &mut self.disk)?;
        let mut read = Vec::new();
        while let Some(entry) = records.next(&self.engine)? {
            read.push(entry.record);
        }
        Ok(read)
    }
}

fn corruption(disk: &mut SimulatedDisk) -> Corruption {
    match recover(disk) {
        Err(RecoverError::Corrupt(corruption)) => corruption,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the damage was not found"),
    }
}

#[test]
fn what_gathers_while_a_group_is_under_way_becomes_one_write_and_one_sync() {
    let mut rig = Rig::begin(settings());
    rig.append([commit(1)]);
    let first = rig.flush();
    assert_eq!(first, [write(1, HEADER, frames(1, 1, 1, &[commit(1)])), sync(1)]);

    rig.append([commit(2), commit(3)]);
    assert_eq!(rig.flush(), [], "one group at a time");
    assert_eq!(rig.durable(), 0);
    rig.engine.handle(Event::Written(SegmentNo(1)), &mut Vec::new());
    assert_eq!(rig.durable(), 0, "written is not durable");
    rig.engine.handle(Event::Synced(SegmentNo(1)), &mut Vec::new());
    assert_eq!(rig.durable(), 1);

    let offset = HEADER + commit(1).frame_len();
    let second = rig.flush();
    assert_eq!(second, [write(1, offset, frames(1, 2, 2, &[commit(2), commit(3)])), sync(1)]);
    rig.disk.start(first[0].clone());
    while rig.disk.is_busy() {
        rig.disk.step();
    }
    assert_eq!(rig.perform(second), []);
    assert_eq!(rig.durable(), 3);
    assert_eq!(rig.flush(), []);
    assert_eq!(rig.read(1).expect("readable"), [commit(1), commit(2), commit(3)]);
}

#[test]
fn a_group_takes_no_more_than_its_length_but_always_one_record() {
    let mut rig = Rig::begin(Settings { group_len_max: 450, segment_len: 1 << 20, ..settings() });
    let huge = Record::commit(E, Csn(4), Bytes::from(vec![7; 1000]));
    rig.append([large(1), large(2), large(3), huge.clone()]);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER, frames(1, 1, 1, &[large(1), large(2)])), sync(1)]);
    rig.perform(effects);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER + 400, frames(1, 3, 3, &[large(3)])), sync(1)]);
    rig.perform(effects);
    assert_eq!(rig.flush(), [write(1, HEADER + 600, frames(1, 4, 4, &[huge])), sync(1)]);
}

#[test]
fn with_memory_durability_a_group_is_durable_when_written_and_claims_nothing() {
    let mut rig = Rig::begin(Settings { durability: Durability::Memory, ..settings() });
    rig.append([commit(1)]);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER, frames(1, 1, 1, &[commit(1)]))]);
    rig.perform(effects);
    assert_eq!(rig.durable(), 1);
    rig.append([commit(2)]);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER + commit(1).frame_len(), frames(1, 2, 1, &[commit(2)]))]);
    rig.perform(effects);
    assert_eq!(rig.mark(), [], "nothing is known to be safe");
}

#[test]
fn a_full_segment_is_followed_by_a_new_one_and_then_sealed() {
    let mut rig = Rig::begin(settings());
    rig.append((1..=5).map(large));
    rig.run();
    rig.append([large(6)]);
    let effects = rig.flush();
    assert_eq!(effects, [header(2, 6, 6, 6)], "the new segment exists before anything goes there");
    let effects = rig.perform(effects);
    assert_eq!(effects, [write(1, HEADER + 1000, own(Kind::SEAL, 1, 6, 6, 5))]);
    assert_eq!(rig.perform(effects), []);
    let effects = rig.flush();
    assert_eq!(effects, [write(2, HEADER, frames(2, 6, 6, &[large(6)])), sync(2)]);
    rig.perform(effects);
    assert_eq!(rig.read(5).expect("readable"), [large(5), large(6)]);
}

#[test]
fn zeros_are_written_ahead_up_to_the_next_step_and_the_segments_end() {
    let mut rig = Rig::begin(Settings { zero_ahead_len: 600, ..settings() });
    let padded = |bytes: Bytes, len: usize| {
        let mut padded = BytesMut::from(&bytes[..]);
        padded.resize(len, 0);
        padded.freeze()
    };
    rig.append([large(1)]);
    let effects = rig.flush();
    // The next multiple of 600 behind 4096 + 200 is 4800.
    assert_eq!(effects, [write(1, HEADER, padded(frames(1, 1, 1, &[large(1)]), 704)), sync(1)]);
    rig.perform(effects);
    rig.append([large(2)]);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER + 200, frames(1, 2, 2, &[large(2)])), sync(1)]);
    rig.perform(effects);
    rig.append([large(3), large(4)]);
    let effects = rig.flush();
    let end = 1000 - 400;
    assert_eq!(
        effects,
        [write(1, HEADER + 400, padded(frames(1, 3, 3, &[large(3), large(4)]), end)), sync(1)]
    );
}

#[test]
fn an_idle_log_is_marked_once_and_the_next_record_takes_the_marks_place() {
    let mut rig = Rig::begin(settings());
    assert_eq!(rig.mark(), [], "the header says it all");
    rig.append([commit(1)]);
    assert_eq!(rig.mark(), [], "something is due");
    rig.run();
    let offset = HEADER + commit(1).frame_len();
    let mark = rig.mark();
    assert_eq!(mark, [write(1, offset, own(Kind::MARK, 1, 2, 2, 1))]);
    assert_eq!(rig.perform(mark), []);
    assert_eq!(rig.mark(), []);
    rig.append([commit(2)]);
    assert_eq!(rig.flush(), [write(1, offset, frames(1, 2, 2, &[commit(2)])), sync(1)]);
}

#[test]
fn after_any_failure_nothing_is_written_acknowledged_or_taken() {
    let fault = Fault {
        action: Action::Sync,
        segment: SegmentNo(1),
        cause: Cause::Device,
        detail: "Input/output error".to_owned(),
    };
    let mut rig = Rig::begin(settings());
    rig.append([commit(1)]);
    let effects = rig.flush();
    rig.engine.handle(Event::Written(SegmentNo(1)), &mut Vec::new());
    rig.append([commit(2)]);
    let mut more = Vec::new();
    rig.engine.handle(Event::Failed(fault.clone()), &mut more);
    assert_eq!((more, effects.len()), (Vec::new(), 2));
    assert_eq!(rig.engine.append(commit(3)), Err(AppendError::Failed));
    assert_eq!(rig.flush(), []);
    assert_eq!(rig.mark(), []);
    rig.engine.close();
    assert_eq!(rig.flush(), []);
    assert_eq!((rig.durable(), rig.engine.state()), (0, State::Failed(fault)));
}

#[test]
fn segment_with_the_record_of_which_replicas_there_are_stays_until_there_is_a_later_one() {
    let mut rig = Rig::begin(settings());
    let set = || Record::other(Kind::REPLICAS, Epoch(1), Bytes::from_static(b"r1 r2"));
    rig.append((1..=7).map(large).chain([set()]).chain((8..=17).map(large)));
    rig.run();
    rig.engine.truncate_before(Csn(16));
    assert_eq!(rig.engine.first(), Csn(6), "the record stands behind commit 7");
    rig.append([set(), large(18)]);
    rig.run();
    rig.engine.truncate_before(Csn(16));
    assert!(rig.engine.first() > Csn(10));
}

#[test]
fn whole_segments_behind_the_needed_commit_are_deleted_oldest_first_between_groups() {
    let mut rig = Rig::begin(settings());
    rig.append((1..=17).map(large));
    rig.run();
    assert_eq!(rig.engine.sizes().segments, 4);
    let last_two = 2 * HEADER + 1000 + 400;
    assert_eq!(rig.engine.oldest_within(last_two), Csn(11));
    assert_eq!(rig.engine.oldest_within(last_two - 1), Csn(16));
    assert_eq!(rig.engine.oldest_within(0), Csn(16));
    assert_eq!(rig.engine.oldest_within(u64::MAX), Csn(1));
    rig.engine.truncate_before(Csn(10));
    assert_eq!(rig.engine.first(), Csn(6), "commit 10 is the last of segment 2");
    rig.engine.truncate_before(Csn(16));
    rig.append([large(18), large(19)]);
    let delete = |segment| Effect::Delete { segment: SegmentNo(segment) };
    let mut seen = Vec::new();
    loop {
        let effects = rig.flush();
        if effects.is_empty() {
            break;
        }
        seen.extend(effects.iter().filter(|effect| effect.action().0 != Action::Sync).map(Effect::action));
        assert_eq!(rig.perform(effects), []);
        if seen.len() == 2 {
            rig.append([large(20)]);
        }
    }
    let deleted = |segment| (Action::Delete, SegmentNo(segment));
    let written = (Action::Write, SegmentNo(4));
    assert_eq!(seen, [deleted(1), written, deleted(2), written, deleted(3)], "{:?}", delete(1));
    assert!(matches!(rig.read(15), Err(ReadError::Truncated { first: Csn(16), .. })));
    assert_eq!(rig.read(19).expect("readable"), [large(19), large(20)]);
    rig.engine.truncate_before(Csn(1000));
    assert_eq!(rig.flush(), [], "the last segment stays");
}

#[test]
fn a_segment_stays_while_a_later_commit_or_an_open_transaction_needs_a_chunk_in_it() {
    let (p, q) = (PayloadId(1), PayloadId(2));
    let mut rig = Rig::begin(settings());
    rig.append([Record::payload(E, p, 0, Bytes::from_static(b"begin"))]);
    rig.append((1..=6).map(large));
    rig.append([Record::payload(E, q, 0, Bytes::new())]);
    rig.run();
    rig.engine.truncate_before(Csn(7));
    assert_eq!(rig.engine.first(), Csn(1), "payload 1 may still be decided");
    rig.append([Record::commit_with_payload(E, Csn(7), p, 1, Bytes::new())]);
    rig.append((8..=12).map(large));
    rig.run();
    rig.engine.truncate_before(Csn(7));
    assert_eq!(rig.engine.first(), Csn(1), "commit 7 needs it");
    let commit = rig.read(7).expect("readable")[0].clone();
    let mut payload = crate::Payload::of(&commit, &rig.engine, &mut rig.disk).expect("payload 1");
    assert_eq!(payload.next(&rig.engine).expect("readable"), Some(Bytes::from_static(b"begin")));
    assert_eq!(payload.next(&rig.engine).expect("readable"), None);
    rig.engine.truncate_before(Csn(12));
    assert_eq!(
        rig.engine.first(),
        Csn(8),
        "payload 2 may still be decided; commit 7 stays without its chunk"
    );
    rig.append([Record::abandon(E, q)]);
    rig.run();
    rig.engine.truncate_before(Csn(12));
    assert_eq!(rig.engine.first(), Csn(10));
}

#[test]
fn closing_finishes_what_is_pending_and_syncs_a_mark() {
    let mut rig = Rig::begin(settings());
    rig.append([commit(1)]);
    rig.engine.close();
    assert_eq!(rig.engine.append(commit(2)), Err(AppendError::Closed));
    assert_eq!(rig.engine.state(), State::Closing);
    let effects = rig.flush();
    assert_eq!(effects, [write(1, HEADER, frames(1, 1, 1, &[commit(1)])), sync(1)]);
    rig.perform(effects);
    let effects = rig.flush();
    let offset = HEADER + commit(1).frame_len();
    assert_eq!(effects, [write(1, offset, own(Kind::MARK, 1, 2, 2, 1)), sync(1)]);
    assert_eq!(rig.perform(effects), []);
    assert_eq!((rig.engine.state(), rig.flush()), (State::Closed, vec![]));
}

#[test]
fn closing_a_log_in_memory_syncs_every_segment_before_it_says_so() {
    let mut rig = Rig::begin(Settings { durability: Durability::Memory, ..settings() });
    rig.append((1..=6).map(large));
    rig.run();
    rig.engine.close();
    let effects = rig.flush();
    let mark = write(2, HEADER + 200, own(Kind::MARK, 2, 7, 7, 6));
    assert_eq!(effects, [sync(1), sync(2), mark, sync(2)]);
    assert_eq!(rig.perform(effects), []);
    assert_eq!(rig.engine.state(), State::Closed);
}

#[test]
fn a_log_goes_on_in_a_new_segment_after_what_is_not_proven_safe_was_written_again() {
    let mut rig = Rig::begin(settings());
    rig.append([commit(1), commit(2)]);
    rig.run();
    let end = HEADER + commit(1).frame_len() + commit(2).frame_len();
    let (mut rig, effects) = Rig::resume(rig.disk, settings());
    let refresh = Effect::Refresh { segment: SegmentNo(1), from: HEADER, to: end };
    assert_eq!(effects, [refresh, sync(1)]);
    let effects = rig.perform(effects);
    assert_eq!(effects, [header(2, 3, 3, 3)]);
    let effects = rig.perform(effects);
    assert_eq!(effects, [write(1, end, own(Kind::SEAL, 1, 3, 3, 2))]);
    assert_eq!(rig.perform(effects), []);
    rig.append([commit(3)]);
    rig.run();
    assert_eq!(rig.read(1).expect("readable"), [commit(1), commit(2), commit(3)]);

    let mark = rig.mark();
    rig.perform(mark);
    let (_, effects) = Rig::resume(rig.disk, settings());
    assert_eq!(effects, [header(3, 4, 4, 4)], "what is marked needs no repair");
}

#[test]
fn reading_passes_over_chunks_and_follows_the_end() {
    let mut rig = Rig::begin(settings());
    let reservation = Record::other(Kind::RESERVATION, E, Bytes::from_static(b"up to 32"));
    rig.append([large(1), reservation.clone(), Record::payload(E, PayloadId(1), 0, Bytes::new())]);
    rig.run();
    let mut records = Records::from(Csn(2), &rig.engine, rig.disk.clone()).expect("the next commit");
    let reserved = Record { csn: Csn(1), ..reservation };
    assert_eq!(records.next(&rig.engine).expect("readable").map(|entry| entry.record), Some(reserved));
    assert_eq!(records.next(&rig.engine).expect("readable"), None);
    assert!(matches!(rig.read(3), Err(ReadError::Beyond { last: Csn(1), .. })));
    assert!(matches!(rig.read(0), Err(ReadError::Truncated { first: Csn(1), .. })));
}

#[test]
fn damage_to_what_was_safe_is_named_with_its_place() {
    let mut rig = Rig::begin(settings());
    rig.append([large(1)]);
    rig.run();
    rig.append([large(2)]);
    rig.run();
    rig.disk.flip(SegmentNo(1), (HEADER + FRAME + 3) * 8);
    let found = corruption(&mut rig.disk);
    let damage = Damage::Record { defect: crate::record::Defect::Body, proof: Seq(2) };
    assert_eq!(found, Corruption { segment: SegmentNo(1), offset: HEADER, seq: Seq(1), csn: Csn(0), damage });
    let words = found.to_string();
    assert!(words.contains("0000000000000001.seg, byte 4096, record 1, behind CSN 0"), "{words}");
}

#[test]
fn the_header_of_an_empty_segment_proves_that_those_before_it_were_safe() {
    let mut rig = Rig::begin(settings());
    rig.append((1..=5).map(large));
    rig.run();
    rig.append([large(6)]);
    let effects = rig.flush();
    assert_eq!(effects, [header(2, 6, 6, 6)]);
    let _unsealed = rig.perform(effects);
    rig.disk.flip(SegmentNo(1), (HEADER + 1000 - 1) * 8);
    let found = corruption(&mut rig.disk);
    let damage = Damage::Record { defect: crate::record::Defect::Body, proof: Seq(6) };
    assert_eq!((found.seq, found.damage), (Seq(5), damage));
}

#[test]
fn a_whole_record_in_a_wrong_place_is_damage() {
    let mut rig = Rig::begin(settings());
    rig.append([commit(1)]);
    rig.run();
    let offset = HEADER + commit(1).frame_len();
    let misplaced = write(1, offset, frames(1, 3, 3, &[Record { csn: Csn(2), ..commit(3) }]));
    rig.disk.start(misplaced);
    while rig.disk.is_busy() {
        rig.disk.step();
    }
    let found = corruption(&mut rig.disk);
    let defect = crate::record::Defect::Place { expected: Seq(2), found: Seq(3) };
    assert_eq!((found.offset, found.damage), (offset, Damage::Record { defect, proof: Seq(3) }));
}

#[test]
fn a_frame_of_another_log_or_segment_is_no_record() {
    for stamp in [Stamp::new(LogId(9), SegmentNo(1)), Stamp::new(ID, SegmentNo(2))] {
        let mut rig = Rig::begin(settings());
        let record = commit(1);
        let mut foreign = BytesMut::new();
        let header = FrameHeader::of(&record, Seq(1), Seq(1));
        encode_frame(&mut foreign, stamp, &header, &record.body);
        rig.disk.start(write(1, HEADER, foreign.freeze()));
        while rig.disk.is_busy() {
            rig.disk.step();
        }
        let recovery = recover(&mut rig.disk).expect("an unfinished end").expect("there is a log");
        assert_eq!((recovery.records(), recovery.tail.map(|tail| tail.headers)), (0, Some(0)));
    }
}

#[test]
fn segments_that_stayed_empty_are_removed_at_the_next_start() {
    let mut disk = Rig::begin(settings()).disk;
    for number in 2..5 {
        let (mut rig, mut effects) = Rig::resume(disk, settings());
        assert_eq!(effects, [header(number, 1, 1, 1)]);
        while !effects.is_empty() {
            effects = rig.perform(effects);
        }
        rig.run();
        disk = rig.disk;
        let left = crate::Medium::segments(&mut disk).expect("readable");
        assert!(left.len() <= 2, "{left:?}");
    }
}

#[test]
fn the_last_group_may_be_torn_and_only_that() {
    let mut rig = Rig::begin(settings());
    rig.append([large(1)]);
    rig.run();
    rig.append([large(2), large(3)]);
    rig.run();
    let mut torn = rig.disk.clone();
    torn.flip(SegmentNo(1), (HEADER + 200 + FRAME) * 8);
    let recovery = recover(&mut torn).expect("torn, not damaged").expect("there is a log");
    assert_eq!(recovery.end().csn, Csn(1));
    let tail = recovery.tail.expect("an unfinished end");
    assert_eq!((tail.offset, tail.len, tail.headers), (HEADER + 200, 400, 2));

    let mark = rig.mark();
    rig.perform(mark);
    rig.disk.flip(SegmentNo(1), (HEADER + 200 + FRAME) * 8);
    assert_eq!(corruption(&mut rig.disk).seq, Seq(2));
}

#[test]
fn a_missing_segment_is_noticed_wherever_it_was() {
    let mut rig = Rig::begin(settings());
    rig.append((1..=12).map(large));
    rig.run();
    let mut middle = rig.disk.clone();
    middle.remove(SegmentNo(2));
    assert_eq!(corruption(&mut middle).damage, Damage::Gap { expected: Seq(6), found: Seq(11) });
    let mut last = rig.disk.clone();
    last.remove(SegmentNo(3));
    assert_eq!(corruption(&mut last).damage, Damage::MissingSegment);
    rig.disk.remove(SegmentNo(1));
    let recovery = recover(&mut rig.disk).expect("as if truncated").expect("there is a log");
    assert_eq!(recovery.first(), Csn(6));
}

#[test]
fn a_segment_that_cannot_be_ours_is_refused() {
    let mut rig = Rig::begin(settings());
    rig.append([commit(1)]);
    rig.run();
    let mut damaged = rig.disk.clone();
    damaged.flip(SegmentNo(1), 20 * 8);
    assert_eq!(corruption(&mut damaged).damage, Damage::Header(HeaderDefect::Checksum));
    let mut foreign = rig.disk.clone();
    let header = SegmentHeader {
        log_id: LogId(9),
        number: SegmentNo(2),
        first_seq: Seq(2),
        first_csn: Csn(2),
        epoch: E,
        synced: Seq(2),
        shared: None,
    };
    foreign.start(Effect::Create { segment: SegmentNo(2), header: header.encode() });
    while foreign.is_busy() {
        foreign.step();
    }
    assert_eq!(corruption(&mut foreign).damage, Damage::ForeignLog { expected: ID, found: LogId(9) });
    let mut later = BytesMut::from(&header.encode()[..]);
    later[8] = 3;
    let crc = crc32fast::hash(&later[..HEADER as usize - 4]);
    later[HEADER as usize - 4..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(SegmentHeader::decode(&later, SegmentNo(2)), Err(HeaderDefect::Version(3)));
}

#[test]
fn undecided_payloads_end_with_the_run_that_logged_them() {
    let mut rig = Rig::begin(settings());
    rig.append([Record::payload(E, PayloadId(1), 0, Bytes::from_static(b"old"))]);
    rig.run();
    let recovery = recover(&mut rig.disk).expect("sound").expect("there is a log");
    assert_eq!(recovery.undecided.len(), 1);
    let (mut rig, effects) = Rig::resume(rig.disk, settings());
    let mut effects = effects;
    while !effects.is_empty() {
        effects = rig.perform(effects);
    }
    let decide = Record::commit_with_payload(E, Csn(1), PayloadId(1), 1, Bytes::new());
    let refused = AppendError::Payload { id: PayloadId(1), logged: 0, found: 1 };
    assert_eq!(rig.engine.append(decide.clone()), Err(refused));
    rig.append([Record::payload(E, PayloadId(1), 0, Bytes::from_static(b"new")), decide.clone()]);
    rig.run();
    let (rig, _) = Rig::resume(rig.disk, settings());
    let mut payload = crate::Payload::of(&decide, &rig.engine, rig.disk).expect("payload 1");
    assert_eq!(payload.next(&rig.engine).expect("readable"), Some(Bytes::from_static(b"new")));
}
