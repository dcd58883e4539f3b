//! Measures the commit log on a folder's device: what an append costs its caller, how long a record takes to become
//! durable, and how many become durable a second, with a given number of records under way at a time.
//!
//! `cargo run --release -p onecopy-log --example measure_log -- [FOLDER] [SECONDS a line] [BODY bytes]`
//!
//! The lines of one round are interleaved, three rounds, so that what else the machine does falls on all alike.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use onecopy_core::{Csn, Epoch};
use onecopy_log::{Durability, Genesis, Hooks, Log, LogId, Options, Record, Settings};

const UNDER_WAY: [u64; 6] = [1, 2, 8, 32, 128, 1024];
const ROUNDS: usize = 3;

/// One way to run the log.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    settings: Settings,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let body_len: usize = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let disk = |zero_ahead_len| Settings { zero_ahead_len, ..Settings::default() };
    let ways = [
        Way { name: "disk, file grows", settings: disk(0) },
        Way { name: "disk, 128 KiB ahead", settings: disk(128 << 10) },
        Way { name: "disk, 512 KiB ahead", settings: disk(512 << 10) },
        Way { name: "disk, 2 MiB ahead", settings: disk(2 << 20) },
        Way { name: "memory", settings: Settings { durability: Durability::Memory, ..Settings::default() } },
    ];
    println!(
        "{:<20} {:>9} {:>9} {:>6} | append ns {:>6} {:>7} | durable us {:>6} {:>7} {:>7} | sync us {:>6}",
        "", "under way", "records/s", "group", "median", "p99", "median", "p99", "max", "mean"
    );
    for _ in 0..ROUNDS {
        for under_way in UNDER_WAY {
            for way in ways {
                measure(Path::new(&folder), way, under_way, Duration::from_secs_f64(seconds), body_len)?;
            }
        }
        println!();
    }
    measure_opening(Path::new(&folder), body_len)
}

/// How fast a log is verified when it is opened, and read.
fn measure_opening(folder: &Path, body_len: usize) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(folder)?;
    let options = Options {
        settings: Settings { durability: Durability::Memory, ..Settings::default() },
        genesis: Some(Genesis { log_id: LogId(1), epoch: Epoch(1), after: Csn(0) }),
        ..Options::default()
    };
    let hooks = || Hooks::new(|_| {}, |fault| eprintln!("{fault}"));
    let (log, _) = Log::open(folder.path(), options, hooks())?;
    let body = Bytes::from(vec![0xA5; body_len]);
    let records = (512 << 20) / Record::commit(Epoch(1), Csn(1), body.clone()).frame_len();
    for csn in 1..=records {
        while log.backlog_bytes() > 16 << 20 {
            std::thread::yield_now();
        }
        log.append(Record::commit(Epoch(1), Csn(csn), body.clone()))?;
    }
    log.close()?;
    drop(log);
    let started = Instant::now();
    let (log, recovered) = Log::open(folder.path(), options, hooks())?;
    let opened = started.elapsed();
    let started = Instant::now();
    let read = log.read_from(Csn(1))?.filter(Result::is_ok).count();
    let took = started.elapsed();
    println!(
        "512 MiB in {} records: opened in {:.2} s, {read} read in {:.2} s",
        recovered.records,
        opened.as_secs_f64(),
        took.as_secs_f64()
    );
    Ok(())
}

fn measure(
    folder: &Path,
    way: Way,
    under_way: u64,
    duration: Duration,
    body_len: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(folder)?;
    let options = Options {
        settings: way.settings,
        genesis: Some(Genesis { log_id: LogId(1), epoch: Epoch(1), after: Csn(0) }),
        ..Options::default()
    };
    let durable = Arc::new(AtomicU64::new(0));
    let (wake, woken) = mpsc::channel();
    let told = Arc::clone(&durable);
    let on_durable = move |up_to: onecopy_log::Durable| {
        told.store(up_to.csn.0, Ordering::Release);
        wake.send(Instant::now()).unwrap_or_default();
    };
    let (log, _) = Log::open(folder.path(), options, Hooks::new(on_durable, |fault| eprintln!("{fault}")))?;

    let body = Bytes::from(vec![0xA5; body_len]);
    let mut append_ns = Histogram::<u64>::new(3)?;
    let mut durable_ns = Histogram::<u64>::new(3)?;
    let mut appended_at = vec![Instant::now(); under_way as usize];
    let (mut appended, mut seen) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < duration {
        while appended < seen + under_way {
            appended += 1;
            let before = Instant::now();
            log.append(Record::commit(Epoch(1), Csn(appended), body.clone()))?;
            append_ns.record(before.elapsed().as_nanos() as u64)?;
            appended_at[(appended % under_way) as usize] = before;
        }
        let at = woken.recv()?;
        let now_durable = durable.load(Ordering::Acquire);
        for csn in seen + 1..=now_durable {
            let took = at.saturating_duration_since(appended_at[(csn % under_way) as usize]);
            durable_ns.record(took.as_nanos() as u64)?;
        }
        seen = now_durable;
    }
    let took = started.elapsed();
    let written = log.status().written;
    log.close()?;
    let us = |ns: u64| ns as f64 / 1e3;
    println!(
        "{:<20} {under_way:>9} {:>9.0} {:>6.1} | {:>16} {:>7} | {:>17.1} {:>7.1} {:>7.0} | {:>14.1}",
        way.name,
        seen as f64 / took.as_secs_f64(),
        written.records as f64 / written.groups.max(1) as f64,
        append_ns.value_at_quantile(0.5),
        append_ns.value_at_quantile(0.99),
        us(durable_ns.value_at_quantile(0.5)),
        us(durable_ns.value_at_quantile(0.99)),
        us(durable_ns.max()),
        us(written.sync_ns_total / written.syncs.max(1)),
    );
    Ok(())
}
