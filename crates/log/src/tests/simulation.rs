//! The engine on a simulated disk under a seeded adversary: power failures, ends of the process and device errors at
//! every step, torn and lost sectors, flipped bits.
//!
//! Checked after every single step, as if the machine had stopped there:
//! 1. nothing that was acknowledged is lost;
//! 2. what is recovered is what was appended, from the first record on, byte for byte: none is invented, none is skipped;
//! 3. recovery, stopped anywhere and begun again, ends with the same records;
//! 4. a payload can be read whole as long as its commit can;
//! 5. a flipped bit is detected, or has hit nothing that counts;
//! 6. a log that has failed takes nothing more and acknowledges nothing more.
//!
//! Then the same test has to find every bug that is planted.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::expect_everything_happened;
use crate::medium::Medium;
use crate::planted::{Bug, plant};
use crate::simulated::SimulatedDisk;
use crate::{
    AppendError, Cause, Durability, Effect, Engine, Event, Genesis, Kind, LogId, Payload, PayloadId, Record,
    Records, RecoverError, Seq, Settings, State, recover,
};

const STEPS: usize = 400;

#[test]
fn machine_process_and_device_fail_at_every_step_and_no_promise_is_broken() {
    let only = std::env::var("ONECOPY_LOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let usual = if cfg!(debug_assertions) { 6 } else { 100 };
    let count = std::env::var("ONECOPY_LOG_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual);
    let seeds = only.map_or(0..count, |seed: u64| seed..seed + 1);
    let mut coverage = Coverage::default();
    for seed in seeds.clone() {
        if let Err(violation) = run(seed, &mut coverage) {
            panic!(
                "seed {seed}: {violation}\n\
                 replay: ONECOPY_LOG_SEED={seed} cargo test -p onecopy-log no_promise_is_broken"
            );
        }
    }
    println!("{} seeds: {coverage:?}", seeds.end - seeds.start);
    if only.is_none() {
        expect_everything_happened(&coverage);
    }
}

#[test]
fn every_planted_bug_is_found() {
    let bugs = [
        Bug::AcknowledgeBeforeSync,
        Bug::SkipChecksums,
        Bug::CutAtAnyDamage,
        Bug::NoRefresh,
        Bug::RetrySync,
        Bug::NoFolderSync,
        Bug::ForgetPayload,
    ];
    for bug in bugs {
        let found = |seed| plant(bug, || run(seed, &mut Coverage::default())).err();
        let found = (0..200).find_map(|seed| Some((seed, found(seed)?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} was not found in 200 seeds"));
        println!("{bug:?}: seed {seed}: {violation}");
    }
}

/// How often what was meant to happen did.
#[derive(Default, Debug)]
struct Coverage {
    crashes_tried: u64,
    tails_cut: u64,
    segments_given_up: u64,
    unacknowledged_survived: u64,
    recoveries_interrupted: u64,
    repairs: u64,
    crashes: u64,
    kills: u64,
    device_failures: u64,
    flips_found: u64,
    flips_harmless: u64,
    rotations: u64,
    segments_dropped: u64,
    payloads_read: u64,
    undecided: u64,
}

struct World {
    rng: ChaCha8Rng,
    settings: Settings,
    disk: SimulatedDisk,
    engine: Engine,
    effects: VecDeque<Effect>,
    /// Record `seq` is at `seq - 1`.
    appended: Vec<Record>,
    /// So many records were acknowledged.
    acknowledged: u64,
    /// So many must survive a power failure.
    safe: u64,
    keep: Csn,
    epoch: Epoch,
    open: BTreeMap<PayloadId, u32>,
}

fn run(seed: u64, coverage: &mut Coverage) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        match world.rng.random_range(0..100) {
            0..30 => world.append()?,
            30..93 => world.pump(coverage)?,
            93 => world.truncate(),
            94 => world.flip_bits(coverage)?,
            95..97 => world.mark(),
            97 => world.fail_device(coverage)?,
            98 => {
                coverage.kills += 1;
                world.disk.kill(&mut dice(&mut world.rng));
                world.reopen(false, coverage)?;
            }
            _ => {
                coverage.crashes += 1;
                world.disk.crash(&mut dice(&mut world.rng));
                world.reopen(true, coverage)?;
            }
        }
    }
    world.settle(coverage)?;
    world.flip_bits(coverage)
}

fn dice(rng: &mut ChaCha8Rng) -> impl FnMut(u64) -> u64 + use<'_> {
    |below| rng.random_range(0..below)
}

fn settings(rng: &mut ChaCha8Rng) -> Settings {
    Settings {
        durability: if rng.random_ratio(1, 5) { Durability::Memory } else { Durability::Disk },
        segment_len: rng.random_range(5_000..12_000),
        group_len_max: rng.random_range(100..4_000),
        zero_ahead_len: [0, 512, 1_000, 4_096][rng.random_range(0..4)],
    }
}

fn genesis() -> Genesis {
    Genesis { log_id: LogId(0xfeed_beef), epoch: Epoch(1), after: Csn(0) }
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let settings = settings(&mut rng);
        let mut effects = Vec::new();
        let engine = Engine::begin(genesis(), settings, &mut effects);
        World {
            rng,
            settings,
            disk: SimulatedDisk::new(),
            engine,
            effects: effects.into(),
            appended: Vec::new(),
            acknowledged: 0,
            safe: 0,
            keep: Csn(1),
            epoch: Epoch(1),
            open: BTreeMap::new(),
        }
    }

    fn append(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.random_range(1..6) {
            let mut record = self.some_record();
            if record.kind != Kind::COMMIT {
                record.csn = self.last_csn();
            }
            let expected = Seq(self.appended.len() as u64 + 1);
            let seq = self.engine.append(record.clone()).map_err(|error| format!("append: {error}"))?;
            expect(seq == expected, || format!("record {expected} was given place {seq}"))?;
            self.appended.push(record);
        }
        Ok(())
    }

    fn some_record(&mut self) -> Record {
        let body = self.some_body();
        let epoch = self.epoch;
        let payload = self.open.iter().nth(self.rng.random_range(0..3)).map(|(&id, &chunks)| (id, chunks));
        match (self.rng.random_range(0..20), payload) {
            (0..6, _) => {
                let (id, chunk) = payload.unwrap_or((PayloadId(self.rng.random_range(0..5)), 0));
                let chunk = self.open.get(&id).copied().unwrap_or(chunk);
                self.open.insert(id, chunk + 1);
                Record::payload(epoch, id, chunk, body)
            }
            (6..8, Some((id, chunks))) => {
                self.open.remove(&id);
                Record::commit_with_payload(epoch, self.last_csn().next(), id, chunks, body)
            }
            (8, Some((id, _))) => {
                self.open.remove(&id);
                Record::abandon(epoch, id)
            }
            (9, _) => Record::other(Kind::RESERVATION, epoch, body),
            (10, _) => Record::other(Kind(77), epoch, body),
            _ => Record::commit(epoch, self.last_csn().next(), body),
        }
    }

    /// Mostly small; sometimes empty, larger than a group, or what the log's own files contain.
    fn some_body(&mut self) -> Bytes {
        let len = match self.rng.random_range(0..10) {
            0 => 0,
            1 => self.rng.random_range(0..3_000),
            _ => self.rng.random_range(0..120),
        };
        let mut body = vec![0; len];
        self.rng.fill(&mut body[..]);
        if let Some(&segment) = self.disk.segments().ok().and_then(|all| all.last().copied()).as_ref()
            && self.rng.random_ratio(1, 5)
        {
            let offset = self.rng.random_range(4_096 / 8..5_000 / 8) * 8;
            let read = self.disk.read_at(segment, offset, &mut body).unwrap_or(0);
            body.truncate(read);
        }
        body.into()
    }

    fn last_csn(&self) -> Csn {
        self.appended.last().map_or(Csn(0), |record| record.csn)
    }

    /// The disk takes one step, and the machine is thought to stop behind it.
    fn pump(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        if self.disk.is_busy() {
            let event = self.disk.step();
            if let Some(event) = event {
                coverage.rotations += u64::from(matches!(event, Event::Created(_)));
                coverage.segments_dropped += u64::from(matches!(event, Event::Deleted(_)));
                self.answer(event);
            }
            self.try_crashes(coverage)
        } else if let Some(effect) = self.effects.pop_front() {
            self.disk.start(effect);
            self.try_crashes(coverage)
        } else {
            let mut effects = Vec::new();
            self.engine.flush(&mut effects);
            self.effects.extend(effects);
            Ok(())
        }
    }

    fn answer(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.engine.handle(event, &mut effects);
        self.effects.extend(effects);
        self.acknowledged = self.engine.durable().seq.0 - 1;
        if self.settings.durability == Durability::Disk {
            self.safe = self.acknowledged;
        }
    }

    fn try_crashes(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        for _ in 0..2 {
            coverage.crashes_tried += 1;
            let mut disk = self.disk.clone();
            let mut rng = ChaCha8Rng::seed_from_u64(self.rng.random());
            if rng.random_ratio(1, 4) {
                disk.kill(&mut dice(&mut rng));
                self.check(disk, self.acknowledged, &mut rng, coverage).map_err(|e| format!("kill: {e}"))?;
            } else {
                disk.crash(&mut dice(&mut rng));
                self.check(disk, self.safe, &mut rng, coverage).map_err(|e| format!("crash: {e}"))?;
            }
        }
        Ok(())
    }

    /// Opens what is on `disk` and expects the first `safe` records at least, and none that was not appended.
    fn check(
        &self,
        mut disk: SimulatedDisk,
        safe: u64,
        rng: &mut ChaCha8Rng,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let Some(found) = self.recovered_len(&mut disk, safe, coverage)? else {
            return Ok(());
        };
        let settings = settings(rng);
        let mut engine = open(&mut disk, settings);
        let mut effects = VecDeque::from(engine.1);
        let interrupted = rng.random_ratio(1, 3).then(|| rng.random_range(0..20));
        let mut steps = 0;
        while let Some(effect) = effects.pop_front() {
            coverage.repairs += u64::from(matches!(effect, Effect::Refresh { .. }));
            disk.start(effect);
            while disk.is_busy() {
                if Some(steps) == interrupted {
                    coverage.recoveries_interrupted += 1;
                    disk.crash(&mut dice(rng));
                    let safe = safe.min(self.safe);
                    return self.check(disk, safe, rng, coverage).map_err(|e| format!("in recovery: {e}"));
                }
                steps += 1;
                if let Some(event) = disk.step() {
                    let mut more = Vec::new();
                    engine.0.handle(event, &mut more);
                    effects.extend(more);
                }
            }
        }
        self.compare(&engine.0, &mut disk, found, coverage)?;
        if settings.durability == Durability::Disk {
            disk.crash(&mut dice(rng));
            let again = self.recovered_len(&mut disk, found, coverage)?;
            expect(again == Some(found), || format!("{found} records recovered, then {again:?}"))?;
        }
        Ok(())
    }

    /// How many records recovery finds, from the first on.
    fn recovered_len(
        &self,
        disk: &mut SimulatedDisk,
        safe: u64,
        coverage: &mut Coverage,
    ) -> Result<Option<u64>, String> {
        let recovery = recover(disk).map_err(|error| format!("start refused: {error}"))?;
        let Some(recovery) = recovery else {
            return expect(self.acknowledged == 0, || "the whole log is gone".to_owned()).map(|()| None);
        };
        let found = recovery.end().seq.0 - 1;
        let appended = self.appended.len() as u64;
        expect(found >= safe, || format!("{safe} records were safe, {found} recovered"))?;
        expect(found <= appended, || format!("{appended} records were appended, {found} recovered"))?;
        expect(recovery.first() <= self.keep, || {
            format!("commits from {} on are needed, those before {} gone", self.keep, recovery.first())
        })?;
        coverage.undecided += recovery.undecided.len() as u64;
        coverage.unacknowledged_survived += u64::from(found > self.acknowledged);
        if let Some(tail) = recovery.tail {
            coverage.tails_cut += 1;
            coverage.segments_given_up += u64::from(tail.segments > 0);
        }
        Ok(Some(found))
    }

    /// Everything that can be read is what was appended.
    fn compare(
        &self,
        engine: &Engine,
        disk: &mut SimulatedDisk,
        found: u64,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let first = engine.first();
        let mut records = Records::from(first, engine, disk.clone()).map_err(|error| error.to_string())?;
        let mut read = Vec::new();
        while let Some(entry) = records.next(engine).map_err(|error| error.to_string())? {
            if entry.record.kind == Kind::COMMIT && entry.record.payload.is_some() {
                self.compare_payload(engine, disk, entry.seq, &entry.record)?;
                coverage.payloads_read += 1;
            }
            read.push((entry.seq, entry.record));
        }
        let first_seq = read.first().map_or(Seq(found + 1), |(seq, _)| *seq);
        let from = |record: &Record| match record.kind {
            Kind::PAYLOAD => false,
            Kind::COMMIT => record.csn >= first,
            _ => record.csn >= first.previous(),
        };
        let expected: Vec<(Seq, Record)> = (1..=found)
            .map(|seq| (Seq(seq), &self.appended[seq as usize - 1]))
            .filter(|(seq, record)| *seq >= first_seq && from(record))
            .map(|(seq, record)| (seq, record.clone()))
            .collect();
        let same = read.iter().zip(&expected).take_while(|(read, expected)| read == expected).count();
        expect(same == read.len() && same == expected.len(), || {
            let (read, expected) = (read.get(same), expected.get(same));
            format!("{same} records are as they were appended, then {read:?} instead of {expected:?}")
        })
    }

    fn compare_payload(
        &self,
        engine: &Engine,
        disk: &mut SimulatedDisk,
        seq: Seq,
        commit: &Record,
    ) -> Result<(), String> {
        let mut payload = Payload::of(commit, engine, disk).map_err(|error| error.to_string())?;
        let mut read = Vec::new();
        while let Some(chunk) = payload.next(engine).map_err(|error| error.to_string())? {
            read.push(chunk);
        }
        let named = commit.payload.expect("the commit names a payload");
        let before = self.appended[..seq.0 as usize - 1].iter().rev();
        let chunks = before.filter(|record| {
            record.kind == Kind::PAYLOAD
                && record.payload.map(|payload| payload.id) == Some(named.id)
                && record.epoch == commit.epoch
        });
        let mut expected: Vec<Bytes> =
            chunks.take(named.chunk as usize).map(|record| record.body.clone()).collect();
        expected.reverse();
        expect(read == expected, || format!("the payload of commit {} is not what was logged", commit.csn))
    }

    fn truncate(&mut self) {
        let durable = self.engine.durable().csn.0;
        self.keep = self.keep.max(Csn(self.rng.random_range(0..=durable) + 1));
        self.engine.truncate_before(self.keep);
    }

    fn mark(&mut self) {
        if self.effects.is_empty() && !self.disk.is_busy() {
            let mut effects = Vec::new();
            self.engine.mark(&mut effects);
            self.effects.extend(effects);
        }
    }

    /// Finishes what is under way, up to the mark.
    fn settle(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        loop {
            self.pump(coverage)?;
            if self.effects.is_empty() && !self.disk.is_busy() {
                let mut effects = Vec::new();
                self.engine.flush(&mut effects);
                if effects.is_empty() {
                    self.engine.mark(&mut effects);
                }
                if effects.is_empty() {
                    return Ok(());
                }
                self.effects.extend(effects);
            }
        }
    }

    /// Each of a hundred bits on its own, once everything is marked.
    fn flip_bits(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        self.settle(coverage)?;
        if self.settings.durability == Durability::Memory {
            return Ok(());
        }
        for _ in 0..100 {
            let mut disk = self.disk.clone();
            let segments = disk.segments().expect("simulated disks can be read");
            let segment = segments[self.rng.random_range(0..segments.len())];
            let len = disk.len(segment).expect("the segment exists");
            let bit = self.rng.random_range(0..len * 8);
            disk.flip(segment, bit);
            let mut rng = ChaCha8Rng::seed_from_u64(self.rng.random());
            match recover(&mut disk) {
                Err(RecoverError::Corrupt(_)) => coverage.flips_found += 1,
                _ => {
                    coverage.flips_harmless += 1;
                    disk.kill(&mut dice(&mut rng));
                    let flipped = |error| format!("bit {bit} of segment {segment} flipped: {error}");
                    self.check(disk, self.acknowledged, &mut rng, coverage).map_err(flipped)?;
                }
            }
        }
        Ok(())
    }

    fn fail_device(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        while !self.disk.is_busy() {
            let Some(effect) = self.effects.pop_front() else { return Ok(()) };
            self.disk.start(effect);
        }
        coverage.device_failures += 1;
        let cause = if self.rng.random() { Cause::DiskFull } else { Cause::Device };
        let Some(event) = self.disk.fail(cause, &mut dice(&mut self.rng)) else { return Ok(()) };
        if !matches!(event, Event::Failed(_)) {
            self.answer(event);
            return Ok(());
        }
        let durable = self.engine.durable();
        self.answer(event);
        let record = Record::commit(self.epoch, self.last_csn().next(), Bytes::new());
        expect(self.engine.append(record) == Err(AppendError::Failed), || "appended after a failure".into())?;
        let mut effects = Vec::new();
        self.engine.flush(&mut effects);
        expect(effects.is_empty() && self.engine.durable() == durable, || "went on after a failure".into())?;
        expect(matches!(self.engine.state(), State::Failed(_)), || "the failure was forgotten".into())?;
        self.disk.kill(&mut dice(&mut self.rng));
        self.reopen(false, coverage)
    }

    /// Goes on with what is on the disk, as a new process.
    fn reopen(&mut self, power_failed: bool, coverage: &mut Coverage) -> Result<(), String> {
        let safe = if power_failed { self.safe } else { self.acknowledged };
        let mut rng = ChaCha8Rng::seed_from_u64(self.rng.random());
        self.check(self.disk.clone(), safe, &mut rng, coverage)?;
        let found = self.recovered_len(&mut self.disk.clone(), safe, coverage)?.unwrap_or(0);
        self.appended.truncate(found as usize);
        self.acknowledged = safe.min(found);
        self.safe = self.safe.min(found);
        self.settings = settings(&mut self.rng);
        let (engine, effects) = open(&mut self.disk, self.settings);
        (self.engine, self.effects) = (engine, effects.into());
        self.open.clear();
        // Until the repair is done, nobody was told about anything: the log is not open yet.
        while let Some(effect) = self.effects.pop_front() {
            self.disk.start(effect);
            while self.disk.is_busy() {
                if let Some(event) = self.disk.step() {
                    let mut effects = Vec::new();
                    self.engine.handle(event, &mut effects);
                    self.effects.extend(effects);
                }
                self.try_crashes(coverage)?;
            }
        }
        self.acknowledged = found;
        if self.settings.durability == Durability::Disk {
            self.safe = found;
        }
        if self.rng.random_ratio(4, 5) {
            self.epoch = Epoch(self.epoch.0 + 1);
            let mut record = Record::other(Kind::EPOCH, self.epoch, Bytes::new());
            record.csn = self.last_csn();
            self.engine.append(record.clone()).map_err(|error| error.to_string())?;
            self.appended.push(record);
        }
        Ok(())
    }
}

fn open(disk: &mut SimulatedDisk, settings: Settings) -> (Engine, Vec<Effect>) {
    let mut effects = Vec::new();
    let engine = match recover(disk).expect("recovered before") {
        Some(recovery) => Engine::resume(recovery, settings, &mut effects),
        None => Engine::begin(genesis(), settings, &mut effects),
    };
    (engine, effects)
}

fn expect(holds: bool, violation: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation()) }
}
