//! What deciding costs: CPU time, instructions and memory of the core alone, in runs of the laboratory.
//!
//! `cargo run --release -p onecopy-sim --example scheduler_cost -- [MIX [PROTOCOLS [REPLICAS [USERS_PER_REPLICA]]]]`, where
//! protocols, numbers of replicas and numbers of users are separated by commas. One line for each combination, counted over a
//! whole run:
//!
//! - transactions, and how many of them were open in the end;
//! - events of the scheduler for each transaction, and the CPU time and instructions that handling those takes;
//! - messages for each transaction, as the laboratory counts them, and the CPU time for each of these;
//! - transactions that one core could schedule in a second;
//! - the same instructions for the sequencer and the proxies together, where a protocol has them on other machines;
//! - memory of the core in the end.
//!
//! Instructions are counted by valgrind (callgrind), which has to be installed, in the same run over again; they hardly depend on
//! what else the machine does. Without valgrind they are left out.

use std::alloc::System;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant as WallInstant;

use onecopy_core::effect::Effect;
use onecopy_core::protocol::{
    Engine, Guarantee, Position, Protocol, Statements, Status, Writes, apart_by_name,
};
use onecopy_core::{Csn, Event, Instant, Place};
use onecopy_sim::perf::{Bookstore, Items, Messages, Profile, SECOND_NS, Setup, Users, run};
use onecopy_workload::tpcw::{MixName, Scale};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Users come in over the first 7 seconds.
const RUN_S: u64 = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize, default: &str| arguments.get(place).cloned().unwrap_or(default.to_owned());
    let mix: MixName = argument(0, "shopping").parse()?;
    let protocols = argument(1, "onecopy,conflict_aware,versioning");
    let [replicas, users] = [argument(2, "1,8,60,300"), argument(3, "60")];
    let is_counting = argument(4, "") == "counting";
    if is_counting {
        let case = Case { mix, protocol: protocols, replicas: replicas.parse()?, users: users.parse()? };
        case.run()?;
        return Ok(());
    }
    println!(
        "{mix}; a transaction at the scheduler, and at the sequencer and the proxies (elsewhere)\n\
         protocol         replicas   users     open     done  events  CPU us  instructions      a second  elsewhere     state \
         messages  ns each"
    );
    for protocol in protocols.split(',') {
        for replicas in numbers(&replicas)? {
            for users in numbers(&users)? {
                let case = Case { mix, protocol: protocol.to_owned(), replicas: replicas as u16, users };
                println!("{}", Line { cost: case.run()?, instructions: case.instructions()?, case });
            }
        }
    }
    Ok(())
}

fn numbers(list: &str) -> Result<Vec<u32>, std::num::ParseIntError> {
    list.split(',').map(str::parse).collect()
}

struct Case {
    mix: MixName,
    protocol: String,
    replicas: u16,
    /// For each replica.
    users: u32,
}

impl Case {
    fn run(&self) -> Result<Cost, Box<dyn std::error::Error>> {
        let profile = Profile::named("2003", "tpcw").ok_or("the profile is missing")?;
        let mut bookstore = Bookstore::new(self.mix, Scale::new(100_000, 100)?).of_eight_tables();
        let items = if self.protocol == "onecopy" { Items::Rows } else { Items::DeclaredTables };
        let users = self.users * u32::from(self.replicas);
        let setup = Setup {
            items,
            warm_up_ns: 0,
            measured_ns: RUN_S * SECOND_NS,
            ..Setup::new(&profile, self.replicas, Users::Closed(users))
        };
        let inner = apart_by_name(&self.protocol, usize::from(self.replicas), Csn(0))?;
        let cost = Arc::new(Mutex::new(Cost::default()));
        let metered = Metered { inner: Some(inner), now: Cost::default(), told: Arc::clone(&cost) };
        let outcome = run(&setup, &mut bookstore, Box::new(metered))?;
        if let Some(fault) = outcome.faults.first() {
            return Err(fault.to_string().into());
        }
        let mut cost = *cost.lock().map_err(|_| "a run panicked")?;
        // There is no warm-up, so what was measured is the whole run.
        let Messages { users, from_scheduler, to_scheduler, .. } = outcome.measured.messages;
        cost.messages = users + from_scheduler + to_scheduler;
        Ok(cost)
    }

    /// Instructions of the scheduler, and of all other places, in such a run.
    fn instructions(&self) -> Result<Option<[u64; 2]>, Box<dyn std::error::Error>> {
        let mut counts = [0; 2];
        for (count, function) in counts.iter_mut().zip(["schedule", "do_elsewhere"]) {
            let file = std::env::temp_dir().join(format!("onecopy-callgrind-{}", std::process::id()));
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["--tool=callgrind", "--collect-atstart=no"]);
            valgrind.arg(format!("--toggle-collect=*scheduler_cost*{function}*"));
            valgrind.arg(format!("--callgrind-out-file={}", file.display()));
            valgrind.arg(std::env::current_exe()?).args([self.mix.to_string(), self.protocol.clone()]);
            valgrind.args([self.replicas.to_string(), self.users.to_string(), "counting".to_owned()]);
            let ended = match valgrind.stdout(Stdio::null()).stderr(Stdio::null()).status() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                ended => ended?,
            };
            if !ended.success() {
                return Err(format!("valgrind ended with {ended}").into());
            }
            *count = total(&file)?;
            std::fs::remove_file(&file)?;
        }
        Ok(Some(counts))
    }
}

/// What callgrind counted.
fn total(file: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file)?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ")).ok_or("callgrind says no total")?;
    Ok(total.trim().parse()?)
}

/// What a run's decisions took.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Transactions that began.
    begun: u64,
    /// Of these, open in the end.
    open: u64,
    /// Events of the scheduler.
    events: u64,
    /// Time that it was busy with them, in nanoseconds.
    busy_ns: u64,
    /// Messages to and from the scheduler.
    messages: u64,
    /// Memory of the core in the end, at all places.
    state_bytes: u64,
}

/// A protocol that is watched.
struct Metered {
    inner: Option<Box<dyn Protocol>>,
    now: Cost,
    told: Arc<Mutex<Cost>>,
}

impl Metered {
    fn inner(&self) -> &dyn Protocol {
        self.inner.as_deref().expect("it is there until this is dropped")
    }
}

/// Its instructions are counted by name.
#[inline(never)]
fn schedule(
    protocol: &mut dyn Protocol,
    place: Place,
    now: Instant,
    event: Event,
    effects: &mut Vec<Effect>,
) {
    protocol.handle(place, now, event, effects);
}

/// As [`schedule`], for other places than the scheduler.
#[inline(never)]
fn do_elsewhere(
    protocol: &mut dyn Protocol,
    place: Place,
    now: Instant,
    event: Event,
    effects: &mut Vec<Effect>,
) {
    // Two functions that do the same would be made one.
    std::hint::black_box(place);
    protocol.handle(place, now, event, effects);
}

impl Protocol for Metered {
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    fn guarantee(&self) -> Guarantee {
        self.inner().guarantee()
    }

    fn position(&self) -> Position {
        self.inner().position()
    }

    fn writes(&self) -> Writes {
        self.inner().writes()
    }

    fn statements(&self) -> Statements {
        self.inner().statements()
    }

    fn engine_is(&mut self, engine: Engine) {
        if let Some(inner) = &mut self.inner {
            inner.engine_is(engine);
        }
    }

    fn place_of(&self, event: &Event) -> Place {
        self.inner().place_of(event)
    }

    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        let Some(inner) = self.inner.as_deref_mut() else { return };
        self.now.begun += u64::from(matches!(event, Event::Begin(_) | Event::Autocommit { .. }));
        if !matches!(place, Place::Scheduler(_)) {
            return do_elsewhere(inner, place, now, event, effects);
        }
        let started = WallInstant::now();
        schedule(inner, place, now, event, effects);
        self.now.busy_ns += started.elapsed().as_nanos() as u64;
        self.now.events += 1;
    }

    fn status(&self) -> Status {
        self.inner().status()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.now.open = self.inner().status().transactions;
        let region = Region::new(ALLOCATOR);
        drop(self.inner.take());
        self.now.state_bytes = region.change().bytes_deallocated as u64;
        if let Ok(mut told) = self.told.lock() {
            *told = self.now;
        }
    }
}

struct Line {
    case: Case,
    cost: Cost,
    instructions: Option<[u64; 2]>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { case, cost, instructions } = self;
        let each = |sum: u64| sum as f64 / cost.begun.max(1) as f64;
        let cpu_us = each(cost.busy_ns) / 1e3;
        let instructions = instructions.map(|counts| counts.map(|count| format!("{:.0}", each(count))));
        let [here, elsewhere] = instructions.unwrap_or(["-".to_owned(), "-".to_owned()]);
        write!(
            f,
            "{:<16} {:>8} {:>7} {:>8} {:>8} {:>7.1} {:>7.2} {:>13} {:>13.0} {:>10} {:>6} KiB {:>7.1} {:>8.0}",
            case.protocol,
            case.replicas,
            case.users * u32::from(case.replicas),
            cost.open,
            cost.begun - cost.open,
            each(cost.events),
            cpu_us,
            here,
            1e6 / cpu_us,
            elsewhere,
            cost.state_bytes / 1024,
            each(cost.messages),
            cost.busy_ns as f64 / cost.messages.max(1) as f64
        )
    }
}
