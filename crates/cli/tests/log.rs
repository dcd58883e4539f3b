//! `onecopy log` on logs that are whole, unfinished, damaged, newer, or being written.

use bytes::{BufMut, Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};
use onecopy_log::{Durability, Genesis, Hooks, Log, LogId, Options, PayloadId, Record, SegmentNo, Settings};
use snapbox::cmd::{Command, cargo_bin};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const E: Epoch = Epoch(7);

/// What one `UPDATE` of one row looks like in the log, as docs/log-format.md has it.
fn body(csn: u64) -> Bytes {
    let mut body = BytesMut::new();
    let put = |body: &mut BytesMut, text: &str| {
        body.put_u32_le(text.len() as u32);
        body.put_slice(text.as_bytes());
    };
    body.put_u8(1);
    put(&mut body, "shop");
    body.put_u32_le(1);
    put(&mut body, "TimeZone");
    put(&mut body, "UTC");
    body.put_u32_le(1);
    body.put_slice(&[2, 0]);
    body.put_u64_le(1);
    put(&mut body, "UPDATE t SET a = 1 WHERE id = $1");
    body.put_u32_le(0);
    let id = csn.to_string();
    let bind_len = 2 + 2 + 4 + id.len() + 2;
    body.put_u32_le(bind_len as u32);
    body.put_slice(&[0, 0, 0, 1]);
    body.put_u32(id.len() as u32);
    body.put_slice(id.as_bytes());
    body.put_u16(0);
    body.freeze()
}

fn open(path: &Path) -> Log {
    let settings = Settings {
        durability: Durability::Disk,
        segment_len: 4096 + 1000,
        zero_ahead_len: 0,
        ..Settings::default()
    };
    let genesis = Some(Genesis { log_id: LogId(0xabc), epoch: Epoch(1), after: Csn(0) });
    let options = Options { settings, genesis, ..Options::default() };
    Log::open(path, options, Hooks::new(|_| {}, |_| {})).unwrap().0
}

/// A log of ten commits in several segments; the last one's writes are partly in a chunk.
fn log() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    for csn in 1..=9 {
        log.append(Record::commit(E, Csn(csn), body(csn))).unwrap();
    }
    let (begin, end) = (body(10).slice(..20), body(10).slice(20..));
    log.append(Record::payload(E, PayloadId(3), 0, begin)).unwrap();
    log.append(Record::annulment(E, Csn(9), "no replica could apply it")).unwrap();
    log.append(Record::commit_with_payload(E, Csn(10), PayloadId(3), 1, end)).unwrap();
    drop(log);
    (dir, path)
}

fn onecopy(path: &Path, args: &[&str]) -> Output {
    let dir = path.to_str().unwrap();
    Command::new(cargo_bin!("onecopy")).args(["log", "--dir", dir]).args(args).output().unwrap()
}

/// What a command that must succeed prints.
fn printed(path: &Path, args: &[&str]) -> String {
    let output = onecopy(path, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a command that must fail says.
fn complaint(path: &Path, args: &[&str]) -> String {
    let output = onecopy(path, args);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn segment(path: &Path, number: u64) -> PathBuf {
    path.join(SegmentNo(number).file_name())
}

/// Changes one byte of a segment.
fn spoil(path: &Path, number: u64, offset: usize) {
    let file = segment(path, number);
    let mut bytes = fs::read(&file).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

#[test]
fn segments_are_listed_with_what_is_in_them() {
    let (_dir, path) = log();
    let text = printed(&path, &[]);
    assert!(text.starts_with("log 00000000000000000000000000000abc in "), "{text}");
    let heads = ["segment", "format", "first_place", "first_csn", "epoch", "bytes", "file_bytes", "records"];
    assert!(heads.iter().all(|head| text.contains(head)), "{text}");
    let listed: serde_json::Value = serde_json::from_str(&printed(&path, &["--json"])).unwrap();
    let segments = listed["segments"].as_array().unwrap();
    assert!(segments.len() > 2, "{listed:#}");
    let sum = |name: &str| segments.iter().map(|segment| segment[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("records"), sum("commits"), sum("damaged")), (12, 10, 0));
    assert_eq!((segments[0]["format"].as_u64(), segments[0]["first_place"].as_u64()), (Some(1), Some(1)));
    // The folder of a local cluster has its log inside.
    assert_eq!(printed(path.parent().unwrap(), &["--json"]), printed(&path, &["--json"]));
}

#[test]
fn commits_are_shown_with_what_they_wrote() {
    let (_dir, path) = log();
    let text = printed(&path, &["show", "--from", "3", "--to", "4"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "commit             3  epoch 7  place 3  1 writes, 1 rows, 101 bytes  by \"shop\"",
            "commit             4  epoch 7  place 4  1 writes, 1 rows, 101 bytes  by \"shop\"",
        ]
    );
    let text = printed(&path, &["show", "--from", "10", "--writes"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "commit            10  epoch 7  place 12  1 writes, 1 rows, 102 bytes  by \"shop\"",
            "    set TimeZone = \"UTC\"",
            "    UPDATE t SET a = 1 WHERE id = $1  -- 1 rows; with '10'",
        ]
    );
    let text = printed(&path, &["show", "--from", "9"]);
    assert!(text.contains("payload            9  epoch 7  place 10  payload 3 chunk 0"), "{text}");
    assert!(text.contains("commit 9 never happens: no replica could apply it"), "{text}");
}

#[test]
fn commit_of_a_session_that_a_front_carries_says_which_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plain = body(1);
    let mut carried = BytesMut::new();
    carried.put_u8(2);
    carried.put_slice(&[0xab; 16]);
    carried.put_u64_le(3);
    carried.put_slice(&plain[1..]);
    log.append(Record::commit(E, Csn(1), carried.freeze())).unwrap();
    drop(log);
    let session = "ab".repeat(16);
    let text = printed(dir.path(), &["show", "--writes"]);
    assert!(text.contains(&format!("\n    commit 3 of session {session}\n")), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&printed(dir.path(), &["show", "--json"])).unwrap();
    assert_eq!((&shown["session"], &shown["session_commit"]), (&session.into(), &3.into()));
}

#[test]
fn json_has_one_record_a_line() {
    let (_dir, path) = log();
    let text = printed(&path, &["show", "--json", "--writes"]);
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 12);
    let expected = serde_json::json!({
        "kind": "commit", "csn": 10, "epoch": 7, "place": 12, "bytes": 102, "payload": 3, "chunks": 1,
        "user": "shop", "rows": 1, "writes": 1, "settings": { "TimeZone": "UTC" },
        "statements": [{
            "text": "UPDATE t SET a = 1 WHERE id = $1", "rows": 1, "captured": false, "parameters": ["10"],
            "copied_bytes": null,
        }],
    });
    assert_eq!(records[11], expected);
    assert_eq!((&records[10]["annuls"], &records[9]["chunk"]), (&9.into(), &0.into()));
}

#[test]
fn body_of_another_version_is_shown_as_unreadable_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.append(Record::commit(E, Csn(1), Bytes::from_static(&[9, 9]))).unwrap();
    log.append(Record::commit(E, Csn(2), Bytes::new())).unwrap();
    drop(log);
    let text = printed(dir.path(), &["show"]);
    assert!(text.contains("2 bytes that cannot be read: ") && text.contains("unknown version"), "{text}");
    assert!(text.contains("commit             2  epoch 7  place 2  0 writes, 0 rows, 0 bytes\n"), "{text}");
}

#[test]
fn whole_log_passes_the_check_and_an_unfinished_end_is_named() {
    let (_dir, path) = log();
    let text = printed(&path, &["check"]);
    assert!(text.contains("is whole: commits 1 to 10, 12 records in "), "{text}");
    assert!(!text.contains("unfinished"), "{text}");

    let last = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let last = last.filter(|file| file.extension().is_some_and(|end| end == "seg")).max().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    bytes.extend([7; 100]);
    fs::write(&last, bytes).unwrap();
    let text = printed(&path, &["check"]);
    assert!(text.contains("its end is unfinished: 100 bytes of "), "{text}");
    let verdict: serde_json::Value = serde_json::from_str(&printed(&path, &["check", "--json"])).unwrap();
    assert_eq!((&verdict["whole"], &verdict["unfinished"]["bytes"]), (&true.into(), &100.into()));
}

#[test]
fn flipped_bit_fails_the_check_and_what_can_be_read_is_shown() {
    let (_dir, path) = log();
    // In the body of the second record: behind the header, a frame of 64 + 104 bytes, and a frame's header.
    spoil(&path, 1, 4096 + 168 + 64 + 10);
    let said = complaint(&path, &["check"]);
    assert!(said.contains("the checksum of a record's body does not match"), "{said}");
    assert!(said.contains("segment 0000000000000001.seg, byte 4264, record 2, behind CSN 1"), "{said}");
    let output = onecopy(&path, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdict["whole"], false);

    let output = onecopy(&path, &["show"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("\ncommit").count() + 1, 9, "{text}");
    assert!(text.contains("-- damaged: 0000000000000001.seg, bytes 4264 to 4432"), "{text}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not all of it could be read") && said.contains("`onecopy log check`"), "{said}");
}

#[test]
fn missing_segment_fails_the_check() {
    let (_dir, path) = log();
    fs::remove_file(segment(&path, 2)).unwrap();
    let said = complaint(&path, &["check"]);
    assert!(said.contains("a start would be refused") && said.contains("a segment is missing"), "{said}");
}

#[test]
fn damaged_and_newer_headers_are_told_apart() {
    let (_dir, path) = log();
    spoil(&path, 2, 20);
    for args in [&["check"][..], &["show"], &[]] {
        let said = complaint(&path, args);
        assert!(said.contains("the checksum of the segment's header does not match"), "{said}");
    }
    let file = segment(&path, 2);
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 0x10;
    bytes[8] = 99;
    let sum = crc32fast::hash(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&sum.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    for args in [&["check"][..], &["show"], &[]] {
        let said = complaint(&path, args);
        assert!(
            said.contains("the segment has format version 99; this program reads up to version"),
            "{said}"
        );
    }
}

#[test]
fn folder_without_a_log_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let said = complaint(dir.path(), &["check"]);
    assert!(said.contains("there is no commit log in ") && said.contains("by --dir"), "{said}");
    let said = complaint(&dir.path().join("nowhere"), &[]);
    assert!(said.contains("nowhere: No such file or directory"), "{said}");
}

#[test]
fn log_that_is_written_and_cut_meanwhile_is_never_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut csn = 0;
            while !done.load(Ordering::Relaxed) {
                csn += 1;
                let seq = log.append(Record::commit(E, Csn(csn), body(csn))).unwrap();
                while log.status().durable.seq < seq {
                    std::thread::yield_now();
                }
                if csn % 20 == 0 {
                    log.truncate_before(Csn(csn - 10));
                }
            }
        });
        let checked = std::panic::catch_unwind(|| {
            for _ in 0..20 {
                printed(dir.path(), &["check"]);
                printed(dir.path(), &[]);
            }
        });
        done.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
}
