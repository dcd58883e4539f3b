//! The log on a real disk that is made to fail, with its thread.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};

use crate::disk::{Folder, Inject};
use crate::log::{Hooks, Log, Options};
use crate::{
    Action, AppendError, Cause, Durable, Effect, Fault, Genesis, Kind, LogId, Record, Seq, Settings, State,
};

const E: Epoch = Epoch(1);

enum Heard {
    Durable(Durable),
    Failed(Fault),
}

fn options() -> Options {
    Options {
        settings: Settings { segment_len: 20_000, group_len_max: 5_000, ..Settings::default() },
        genesis: Some(Genesis { log_id: LogId(7), epoch: E, after: Csn(0) }),
        ..Options::default()
    }
}

fn hooks(tell: Sender<Heard>) -> Hooks {
    let tell_failed = tell.clone();
    Hooks::new(
        move |durable| tell.send(Heard::Durable(durable)).unwrap_or_default(),
        move |fault| tell_failed.send(Heard::Failed(fault.clone())).unwrap_or_default(),
    )
}

fn open(path: &Path, inject: Option<Inject>) -> (Log, crate::Recovered, Receiver<Heard>) {
    let (tell, heard) = channel();
    let mut folder = Folder::open(path).expect("the folder is ours");
    folder.inject = inject;
    let (log, recovered) = Log::open_on(folder, path, options(), hooks(tell)).expect("open");
    (log, recovered, heard)
}

fn commit(csn: u64) -> Record {
    Record::commit(E, Csn(csn), Bytes::from(vec![csn as u8; 100]))
}

/// Everything that was heard up to the failure: the last durable commit, and the failure.
fn hear_failure(heard: &Receiver<Heard>) -> (Csn, Fault) {
    let mut last = Csn(0);
    loop {
        match heard.recv_timeout(Duration::from_secs(30)).expect("the log says that it failed") {
            Heard::Durable(durable) => last = durable.csn,
            Heard::Failed(fault) => return (last, fault),
        }
    }
}

/// Lets the effect at place `nth` of those that `matches` names fail with `error`.
fn fail_nth(action: Action, nth: usize, error: fn() -> io::Error) -> Inject {
    let mut seen = 0;
    Box::new(move |effect: &Effect| {
        seen += usize::from(effect.action().0 == action);
        (effect.action().0 == action && seen == nth).then(error)
    })
}

/// Appends until the log fails, expects it to have stopped for good, and everything that it acknowledged to be there.
fn check_stops(action: Action, nth: usize, error: fn() -> io::Error, cause: Cause) -> Fault {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, _, heard) = open(folder.path(), Some(fail_nth(action, nth, error)));
    let refused = (1..1_000_000).find_map(|csn| log.append(commit(csn)).err()).expect("the log stops");
    assert_eq!(refused, AppendError::Failed);
    let (acknowledged, fault) = hear_failure(&heard);
    assert_eq!((fault.action, fault.cause), (action, cause));
    assert_eq!(log.status().state, State::Failed(fault.clone()));
    assert_eq!(log.durable().csn, acknowledged);
    let read = log.read_from(Csn(1)).expect("what is durable can be read").map(|entry| entry.expect("whole"));
    assert_eq!(read.count() as u64, acknowledged.0);
    assert_eq!(log.append(commit(acknowledged.0 + 1)), Err(AppendError::Failed));
    assert_eq!(log.close(), Err(fault.clone()));
    drop(log);

    let (log, recovered, _heard) = open(folder.path(), None);
    assert!(recovered.last >= acknowledged, "{acknowledged} acknowledged, {recovered:?}");
    let read: Vec<Csn> = log
        .read_from(Csn(1))
        .expect("readable")
        .map(|entry| {
            let record = entry.expect("whole").record;
            assert_eq!(record, commit(record.csn.0));
            record.csn
        })
        .collect();
    assert_eq!(read, (1..=recovered.last.0).map(Csn).collect::<Vec<_>>());
    assert_eq!(log.append(commit(recovered.last.0 + 1)), Ok(Seq(recovered.records + 1)));
    assert_eq!(log.close(), Ok(()));
    fault
}

#[test]
fn a_failed_sync_stops_the_log_for_good_and_nothing_acknowledged_is_lost() {
    let fault = check_stops(Action::Sync, 3, || io::Error::from_raw_os_error(5), Cause::Device);
    let words = fault.to_string();
    assert!(words.contains("sync segment 0000000000000001.seg: Input/output error"), "{words}");
    assert!(words.contains("Every acknowledged commit is in the log"), "{words}");
}

#[test]
fn a_full_disk_stops_the_log_with_clear_words_and_nothing_acknowledged_is_lost() {
    let no_space = || io::Error::from_raw_os_error(28);
    let fault = check_stops(Action::Write, 4, no_space, Cause::DiskFull);
    assert!(fault.to_string().contains("Make room on the log's file system"), "{fault}");
    check_stops(Action::Create, 3, no_space, Cause::DiskFull);
}

#[test]
fn a_log_that_cannot_be_repaired_does_not_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ..) = open(folder.path(), None);
    log.append(commit(1)).expect("admitted");
    drop(log);
    let mut broken = Folder::open(folder.path()).expect("the folder is ours");
    broken.inject = Some(fail_nth(Action::Create, 1, || io::Error::from_raw_os_error(5)));
    let (tell, _heard) = channel();
    let failed =
        Log::open_on(broken, folder.path(), options(), hooks(tell)).err().expect("it cannot be opened");
    assert!(failed.to_string().contains("create segment"), "{failed}");
    let (_log, recovered, _heard) = open(folder.path(), None);
    assert_eq!(recovered.last, Csn(1));
}

#[test]
fn a_start_knows_which_commits_are_annulled_and_which_replicas_there_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, begun, _) = open(folder.path(), None);
    assert_eq!(begun.annulled, []);
    for csn in 1..=3 {
        log.append(commit(csn)).expect("admitted");
    }
    for csn in [3, 1] {
        log.append(Record::annulment(Epoch(1), Csn(csn), "23514: no")).expect("admitted");
    }
    let set =
        |names: &'static str| Record::other(Kind::REPLICAS, Epoch(1), Bytes::from_static(names.as_bytes()));
    log.append(set("r1 r2")).expect("admitted");
    let place = log.append(set("r1 r3")).expect("admitted");
    log.append(commit(4)).expect("admitted");
    assert_eq!(log.close(), Ok(()));
    drop(log);
    let (log, recovered, _heard) = open(folder.path(), None);
    assert_eq!((recovered.annulled, recovered.last), (vec![Csn(3), Csn(1)], Csn(4)));
    assert_eq!(log.held().replicas, Some((place, Bytes::from_static(b"r1 r3"))));
}

#[test]
fn a_hook_that_panics_stops_the_log_as_our_bug() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tell, heard) = channel();
    let on_failed = move |fault: &Fault| tell.send(Heard::Failed(fault.clone())).unwrap_or_default();
    let hooks = Hooks::new(|durable| assert!(durable.csn < Csn(2), "planted panic"), on_failed);
    let (log, _) = Log::open(folder.path(), options(), hooks).expect("open");
    log.append(commit(1)).expect("admitted");
    log.append(commit(2)).expect("admitted");
    let (_, fault) = hear_failure(&heard);
    assert_eq!(fault.cause, Cause::Internal);
    assert!(fault.detail.contains("planted panic"), "{fault}");
    assert_eq!(log.append(commit(3)), Err(AppendError::Failed));
    assert_eq!(log.close(), Err(fault));
}
