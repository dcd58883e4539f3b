//! The log in a real folder: many threads, many openings, other processes, and the end of a process at any moment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use onecopy_log::inspect::{self, Found};
use onecopy_log::{
    AppendError, Durability, Durable, Files, Genesis, Hooks, Kind, Log, LogId, OpenError, Options, PayloadId,
    ReadError, Record, Recovered, SegmentNo, Seq, Settings, State, retire,
};

const E: Epoch = Epoch(1);

fn options() -> Options {
    Options {
        settings: Settings { segment_len: 50_000, zero_ahead_len: 10_000, ..Settings::default() },
        genesis: Some(Genesis { log_id: LogId(0xabc), epoch: E, after: Csn(0) }),
        ..Options::default()
    }
}

fn in_memory() -> Options {
    let settings = Settings { durability: Durability::Memory, ..options().settings };
    Options { settings, ..options() }
}

fn open(path: &Path, options: Options) -> (Log, Recovered, Receiver<Durable>) {
    let (tell, heard) = channel();
    let on_durable = move |durable| tell.send(durable).unwrap_or_default();
    let hooks = Hooks::new(on_durable, |fault| panic!("{fault}"));
    let (log, recovered) = Log::open(path, options, hooks).expect("open");
    (log, recovered, heard)
}

fn body(csn: u64) -> Bytes {
    let len = (csn * 7919 % 700) as usize;
    Bytes::from(csn.to_le_bytes().repeat(len / 8 + 1))
}

fn commit(csn: u64) -> Record {
    Record::commit(E, Csn(csn), body(csn))
}

fn wait_for(heard: &Receiver<Durable>, csn: u64) {
    while heard.recv_timeout(Duration::from_secs(60)).expect("it becomes durable").csn < Csn(csn) {}
}

fn expect_commits(log: &Log, from: u64, to: u64) {
    let read = log.read_from(Csn(from)).expect("in the log").map(|entry| entry.expect("whole").record);
    let mut next = from;
    for record in read.filter(|record| record.kind == Kind::COMMIT) {
        assert_eq!(record, Record { epoch: record.epoch, ..commit(next) });
        next += 1;
    }
    assert_eq!(next, to + 1);
}

#[test]
fn what_was_appended_is_there_after_closing_and_opening_again() {
    for options in [options(), in_memory()] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some/where");
        let mut last = 0;
        for opening in 0..5 {
            let (log, recovered, heard) = open(&path, options);
            assert_eq!((recovered.begun, recovered.log_id), (opening == 0, LogId(0xabc)));
            assert_eq!((recovered.last, recovered.tail), (Csn(last), None));
            expect_commits(&log, 1, last);
            for csn in last + 1..=last + 300 {
                log.append(commit(csn)).expect("admitted");
            }
            last += 300;
            wait_for(&heard, last);
            expect_commits(&log, last - 10, last);
            assert_eq!(log.backlog_bytes(), 0);
            log.close().expect("closed in order");
            assert_eq!(log.append(commit(last + 1)), Err(AppendError::Closed));
            assert_eq!(log.status().state, State::Closed);
        }
    }
}

#[test]
fn records_of_many_threads_are_grouped_and_all_become_durable() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, heard) = open(folder.path(), options());
    let next = Mutex::new(1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    // The order of commits is decided by one; here the lock stands for it.
                    let mut next = next.lock().expect("no thread panics");
                    log.append(commit(*next)).expect("admitted");
                    *next += 1;
                }
            });
        }
    });
    wait_for(&heard, 4_000);
    expect_commits(&log, 1, 4_000);
    let written = log.status().written;
    assert_eq!(written.records, 4_000);
    assert!(written.groups < 4_000, "{written:?}");
}

#[test]
fn a_reader_follows_the_log_across_segments_while_it_grows() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, _heard) = open(folder.path(), options());
    let mut reader = log.read_from(Csn(1)).expect("the beginning");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for csn in 1..=3_000 {
                log.append(commit(csn)).expect("admitted");
            }
        });
        let mut next = 1;
        let started = std::time::Instant::now();
        while next <= 3_000 {
            assert!(started.elapsed() < Duration::from_secs(60), "{:?}", log.status());
            match reader.try_next().expect("whole") {
                Some(entry) => {
                    assert_eq!((entry.seq, entry.record), (Seq(next), commit(next)));
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
    assert!(log.status().sizes.segments > 10);
}

#[test]
fn a_large_payload_is_read_through_its_commit_and_goes_with_its_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, heard) = open(folder.path(), options());
    let chunk = |number: u32| Bytes::from(vec![number as u8; 3_000]);
    for number in 0..100 {
        log.append(Record::payload(E, PayloadId(5), number, chunk(number))).expect("admitted");
        log.append(commit(u64::from(number) + 1)).expect("admitted");
    }
    log.append(Record::payload(E, PayloadId(6), 0, chunk(0))).expect("admitted");
    log.append(Record::commit_with_payload(E, Csn(101), PayloadId(5), 100, body(101))).expect("admitted");
    wait_for(&heard, 101);
    log.truncate_before(Csn(101));
    log.close().expect("closed in order");
    drop(log);

    let (log, recovered, heard) = open(folder.path(), options());
    assert_eq!((recovered.first, recovered.last, recovered.undecided.len()), (Csn(1), Csn(101), 1));
    let mut reader = log.read_from(Csn(101)).expect("in the log");
    let large = reader.next().expect("there").expect("whole").record;
    let read: Vec<Bytes> =
        reader.payload_of(&large).expect("named").map(|chunk| chunk.expect("whole")).collect();
    assert_eq!(read, (0..100).map(chunk).collect::<Vec<_>>());
    let small = commit(100);
    assert!(matches!(reader.payload_of(&small), Err(ReadError::NoPayload(Csn(100)))));

    log.append(commit(102)).expect("admitted");
    wait_for(&heard, 102);
    log.truncate_before(Csn(102));
    log.append(commit(103)).expect("admitted");
    wait_for(&heard, 103);
    log.close().expect("closed in order");
    assert_eq!(log.status().first, Csn(102));
    assert!(matches!(log.read_from(Csn(101)), Err(ReadError::Truncated { first: Csn(102), .. })));
    expect_commits(&log, 102, 103);
    assert_eq!(log.status().sizes.segments, 1);
}

#[test]
fn a_folder_belongs_to_one_log_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ..) = open(folder.path(), options());
    let second = Log::open(folder.path(), options(), Hooks::new(|_| {}, |_| {})).err().expect("locked");
    let words = second.to_string();
    assert!(words.contains(&format!("in use by process {}", std::process::id())), "{words}");
    assert!(matches!(retire(folder.path()), Err(OpenError::Folder(_))));
    drop(log);
    drop(open(folder.path(), options()));
}

#[test]
fn only_the_owner_may_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    drop(open(folder.path(), options()));
    for entry in std::fs::read_dir(folder.path()).expect("readable") {
        let metadata = entry.expect("readable").metadata().expect("readable");
        assert_eq!(metadata.permissions().mode() & 0o077, 0);
    }
}

#[test]
fn an_empty_folder_is_no_log_unless_one_is_to_begin() {
    let folder = tempfile::tempdir().expect("a folder");
    let hooks = Hooks::new(|_| {}, |_| {});
    let missing = Log::open(folder.path(), Options { genesis: None, ..options() }, hooks).err();
    assert!(matches!(missing, Some(OpenError::Missing(_))));
    let after = Genesis { log_id: LogId(1), epoch: Epoch(4), after: Csn(70) };
    let (log, recovered, heard) = open(folder.path(), Options { genesis: Some(after), ..options() });
    assert_eq!((recovered.epoch, recovered.first, recovered.last), (Epoch(4), Csn(71), Csn(70)));
    let old = AppendError::OldEpoch { current: Epoch(4), found: E };
    assert_eq!(log.append(commit(71)), Err(old));
    log.append(Record { epoch: Epoch(4), ..commit(71) }).expect("admitted");
    wait_for(&heard, 71);
}

#[test]
fn a_retired_log_makes_room_for_a_new_one_and_stays_readable() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, heard) = open(folder.path(), options());
    for csn in 1..=500 {
        log.append(commit(csn)).expect("admitted");
    }
    wait_for(&heard, 500);
    drop(log);
    let aside = retire(folder.path()).expect("put aside");
    let verdict = inspect::verify(&mut Files::new(&aside)).expect("readable");
    let held = verdict.outcome.expect("sound").expect("a log");
    assert_eq!((held.first, held.last, held.records), (Csn(1), Csn(500), 500));
    let genesis = Genesis { log_id: LogId(2), epoch: Epoch(2), after: Csn(510) };
    let (log, recovered, _) = open(folder.path(), Options { genesis: Some(genesis), ..options() });
    assert_eq!((recovered.begun, recovered.log_id, recovered.last), (true, LogId(2), Csn(510)));
    drop(log);
    let (first, first_again) = (retire(folder.path()), retire(folder.path()));
    assert!(matches!(first_again, Err(OpenError::Missing(_))));
    drop(open(folder.path(), Options { genesis: Some(genesis), ..options() }));
    let second = retire(folder.path()).expect("put aside");
    assert_ne!(first.expect("put aside"), second, "nothing that was put aside is overwritten");
}

#[test]
fn inspection_lists_records_and_finds_each_damaged_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, heard) = open(folder.path(), options());
    for csn in 1..=200 {
        log.append(commit(csn)).expect("admitted");
    }
    wait_for(&heard, 200);
    drop(log);
    let mut files = Files::new(folder.path());
    let sound = inspect::verify(&mut files).expect("readable");
    assert!(sound.is_sound());
    assert_eq!(sound.segments.iter().map(|segment| segment.commits).sum::<u64>(), 200);
    assert_eq!(sound.segments.iter().map(|segment| segment.damaged).sum::<u64>(), 0);

    let first = SegmentNo(1);
    let frames = || inspect::frames(Files::new(folder.path()), first).expect("readable").expect("a header");
    let third = frames().nth(2).expect("three records").expect("readable");
    let Found::Frame(third) = third else { panic!("{third:?}") };
    assert_eq!((third.seq, third.csn, &third.body), (Seq(3), Csn(3), &body(3)));
    let file =
        std::fs::OpenOptions::new().write(true).open(folder.path().join(first.file_name())).expect("ours");
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", third.offset + 70).expect("written");

    let verdict = inspect::verify(&mut Files::new(folder.path())).expect("readable");
    assert!(!verdict.is_sound());
    assert_eq!(verdict.segments[0].damaged, 1);
    assert_eq!(verdict.segments[0].records, sound.segments[0].records - 1);
    let found = frames().nth(2).expect("a place").expect("readable");
    let to = third.offset + third.len;
    assert!(matches!(found, Found::Damage { offset, to: end, .. } if offset == third.offset && end == to));
    let refused = Log::open(folder.path(), options(), Hooks::new(|_| {}, |_| {})).err().expect("damaged");
    let words = refused.to_string();
    assert!(words.contains(&format!("byte {}, record 3, behind CSN 2", third.offset)), "{words}");
}

/// The other half of the test below: appends for ever and prints what became durable. Ends by being killed.
#[test]
fn child_appends_until_it_is_killed() {
    let Ok(path) = std::env::var("ONECOPY_LOG_KILL_FOLDER") else { return };
    let durability = if std::env::var("ONECOPY_LOG_KILL_MEMORY").is_ok() { in_memory() } else { options() };
    let tell = |durable: Durable| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "durable {}", durable.csn).and_then(|()| out.flush()).expect("the parent listens");
    };
    let (log, recovered) =
        Log::open(Path::new(&path), durability, Hooks::new(tell, |fault| panic!("{fault}"))).expect("open");
    let epoch = Epoch(recovered.epoch.0 + 1);
    log.append(Record::other(Kind::EPOCH, epoch, Bytes::new())).expect("admitted");
    for csn in recovered.last.0 + 1.. {
        while log.backlog_bytes() > 100_000 {
            std::thread::yield_now();
        }
        log.append(Record { epoch, ..commit(csn) }).expect("admitted");
        if csn % 50 == 0 {
            log.truncate_before(Csn(csn.saturating_sub(1_000)));
        }
    }
}

#[test]
fn a_process_killed_at_any_moment_loses_nothing_that_it_acknowledged() {
    for memory in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut acknowledged = 0;
        for round in 0..12 {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args(["--exact", "child_appends_until_it_is_killed", "--nocapture"]);
            command.env("ONECOPY_LOG_KILL_FOLDER", folder.path());
            if memory {
                command.env("ONECOPY_LOG_KILL_MEMORY", "1");
            }
            let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
            let out = BufReader::new(child.stdout.take().expect("piped"));
            let mut lines = out.lines().map_while(Result::ok);
            let parse = |line: String| {
                let csn = line.split("durable ").nth(1)?.trim().parse::<u64>().ok()?;
                Some(csn)
            };
            for csn in lines.by_ref().filter_map(parse).take(3 + round * 11) {
                acknowledged = csn;
            }
            child.kill().expect("killed");
            // What was printed before the end counts, except a line that was cut in the middle of its number.
            let rest: Vec<String> = lines.collect();
            let whole = rest.len().saturating_sub(1);
            acknowledged = rest.into_iter().take(whole).filter_map(parse).next_back().unwrap_or(acknowledged);
            child.wait().expect("ended");
            let verdict = inspect::verify(&mut Files::new(folder.path())).expect("readable");
            let held = verdict.outcome.expect("sound").expect("a log");
            assert!(held.last.0 >= acknowledged, "{acknowledged} acknowledged, {held:?}");
        }
        let (log, recovered, _) = open(folder.path(), options());
        assert!(recovered.first.0 > 1, "truncated meanwhile: {recovered:?}");
        expect_commits(&log, recovered.first.0, recovered.last.0);
        assert!(acknowledged > 1_000);
    }
}

/// Needs a file system of a few megabytes of its own: `ONECOPY_LOG_SMALL_FOLDER` names a folder there.
#[test]
fn a_file_system_that_fills_up_stops_the_log_and_room_lets_it_go_on() {
    let Ok(folder) = std::env::var("ONECOPY_LOG_SMALL_FOLDER") else { return };
    let path = Path::new(&folder).join("log");
    let (tell, heard) = channel();
    let tell_failed = tell.clone();
    let hooks = Hooks::new(
        move |durable| tell.send(Ok(durable)).unwrap_or_default(),
        move |fault| tell_failed.send(Err(fault.clone())).unwrap_or_default(),
    );
    let options = Options { settings: Settings { segment_len: 1 << 20, ..Settings::default() }, ..options() };
    let (log, recovered) = Log::open(&path, options, hooks).expect("open");
    assert!(recovered.begun);
    let mut last = 0;
    while log.append(commit(last + 1)).is_ok() {
        last += 1;
    }
    let mut acknowledged = Csn(0);
    let fault = loop {
        match heard.recv_timeout(Duration::from_secs(30)).expect("the log says that it failed") {
            Ok(durable) => acknowledged = durable.csn,
            Err(fault) => break fault,
        }
    };
    println!("{acknowledged} of {last} acknowledged, then: {fault}");
    assert_eq!(fault.cause, onecopy_log::Cause::DiskFull);
    expect_commits(&log, 1, acknowledged.0);
    drop(log);
    let hooks = || Hooks::new(|_| {}, |_| {});
    let refused = Log::open(&path, options, hooks()).err().expect("still no room");
    println!("opened again: {refused}");
    std::fs::remove_file(Path::new(&folder).join("ballast"))
        .expect("ballast was put there to make room with");
    let (log, recovered, heard) = open(&path, options);
    assert!(recovered.last >= acknowledged);
    log.append(commit(recovered.last.0 + 1)).expect("admitted");
    wait_for(&heard, recovered.last.0 + 1);
    expect_commits(&log, 1, recovered.last.0 + 1);
}

#[test]
fn hooks_may_append_and_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared: Arc<Mutex<Option<Arc<Log>>>> = Arc::default();
    let (tell, heard) = channel();
    let in_hook = Arc::clone(&shared);
    let on_durable = move |durable: Durable| {
        let log = in_hook.lock().expect("no panic").clone();
        let Some(log) = log else { return };
        if durable.csn < Csn(50) {
            log.append(commit(durable.csn.0 + 1)).expect("admitted");
        } else {
            let read = log.read_from(Csn(1)).expect("in the log").count();
            tell.send(read).expect("heard");
        }
    };
    let (log, _) = Log::open(folder.path(), options(), Hooks::new(on_durable, |_| {})).expect("open");
    let log = Arc::new(log);
    *shared.lock().expect("no panic") = Some(Arc::clone(&log));
    log.append(commit(1)).expect("admitted");
    assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(50));
    *shared.lock().expect("no panic") = None;
}

mod any_bytes {
    use std::collections::BTreeMap;
    use std::io;

    use onecopy_log::record::{SEGMENT_HEADER_LEN, SegmentHeader};
    use onecopy_log::{Medium, recover};
    use proptest::prelude::*;

    use super::*;

    struct Bytes(BTreeMap<SegmentNo, Vec<u8>>);

    impl Medium for Bytes {
        fn segments(&mut self) -> io::Result<Vec<SegmentNo>> {
            Ok(self.0.keys().copied().collect())
        }

        fn len(&mut self, segment: SegmentNo) -> io::Result<u64> {
            Ok(self.0[&segment].len() as u64)
        }

        fn read_at(&mut self, segment: SegmentNo, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let from = self.0[&segment].get(offset as usize..).unwrap_or(&[]);
            let len = from.len().min(buffer.len());
            buffer[..len].copy_from_slice(&from[..len]);
            Ok(len)
        }
    }

    fn header(number: u64, first: u64) -> SegmentHeader {
        SegmentHeader {
            log_id: LogId(1),
            number: SegmentNo(number),
            first_seq: Seq(first),
            first_csn: Csn(first),
            epoch: E,
            synced: Seq(first),
            shared: None,
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_recovery_or_inspection_panic(
            segments in prop::collection::btree_map(
                1..4_u64,
                (any::<Option<u64>>(), prop::collection::vec(any::<u8>(), 0..9_000)),
                0..4,
            )
        ) {
            let file = |(number, (first, bytes)): (u64, (Option<u64>, Vec<u8>))| {
                let mut file = first.map_or(Vec::new(), |first| header(number, first).encode().to_vec());
                file.extend(bytes);
                (SegmentNo(number), file)
            };
            let mut medium = Bytes(segments.into_iter().map(file).collect());
            let _outcome = recover(&mut medium);
            let verdict = inspect::verify(&mut medium).expect("readable");
            for segment in verdict.segments {
                prop_assert!(segment.used_len <= segment.file_len.max(SEGMENT_HEADER_LEN));
            }
        }
    }
}
