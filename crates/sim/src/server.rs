//! The CPUs of one simulated database.
//!
//! Costs are CPU time on an idle machine. Under [`Discipline::Shared`] all jobs run at once, each at the same speed: of
//! `n` jobs on `c` CPUs that is min(1, c / n). Under [`Discipline::Queued`] as many as there are CPUs run, in the order in
//! which they came; under [`Discipline::WritesFirst`] likewise, but those that write before those that read.
//!
//! Under [`Discipline::Capped`] they run at once, faster than they may for long, until what they may have in a period is used up.
//!
//! All are one mechanism: `work` is how much a job has received that has run since the beginning, so a job ends when
//! `work` reaches what it was when the job started plus the job's cost, however many others came and went.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use onecopy_core::Instant;

/// Who runs when there are more jobs than CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Discipline {
    /// Everybody, each as slowly (threads of a database).
    #[default]
    Shared,
    /// First come, first served.
    Queued,
    /// What writes before what reads, each first come, first served; nobody who runs is interrupted.
    WritesFirst,
    /// Everybody, each as slowly, on CPUs that are `speed` times as fast as costs say, and stand still when they have done in
    /// a period what they would do in it at speed 1: a control group with a quota. Each server's periods begin at another time.
    Capped {
        /// 1 / the part of a CPU that the server may use; 1 at least.
        speed: u32,
        /// How long a period is; 1 at least.
        period_ns: u64,
    },
}

/// What CPUs may still do. Nothing is saved for the next period.
#[derive(Debug)]
struct Quota {
    speed: u64,
    period_ns: u64,
    /// At which the period that `left_ns` is about ends.
    ends: Instant,
    /// CPU time, as costs are counted, of all CPUs.
    left_ns: u64,
}

/// What a job's time is counted as.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Reading.
    Read,
    /// Writing, committing and applying.
    Write,
}

/// CPU time spent since it was last counted from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Busy {
    /// On reading, in nanoseconds.
    pub read_ns: u64,
    /// On writing, in nanoseconds.
    pub write_ns: u64,
}

/// Fractions of a nanosecond, so that sharing does not lose time: work is counted in 2^-16 ns.
const FRACTION_BITS: u32 = 16;

#[derive(Debug)]
pub(crate) struct Server<J> {
    cpus: u64,
    discipline: Discipline,
    /// [`Discipline::Capped`] has one.
    quota: Option<Quota>,
    now: Instant,
    /// What a job that has run from the beginning would have received, in 2^-16 ns.
    work: u64,
    /// By the work at which they end, then in the order in which they started.
    running: BinaryHeap<Reverse<(u64, u64, u32)>>,
    started: u64,
    jobs: Vec<Option<(Kind, J)>>,
    free: Vec<u32>,
    /// Those that others let pass, then the others.
    waiting: [VecDeque<(Kind, u64, J)>; 2],
    /// How many of those that run are of each kind.
    counts: [u64; 2],
    busy: [u64; 2],
    /// For when a completion is on the calendar of the one who drives this.
    expected: Option<Instant>,
}

impl<J> Server<J> {
    /// An idle server; the `place`-th of its cluster.
    pub(crate) fn new(cpus: u32, discipline: Discipline, place: u16) -> Server<J> {
        let cpus = u64::from(cpus.max(1));
        let quota = match discipline {
            Discipline::Capped { speed, period_ns } => Some(Quota::new(cpus, speed, period_ns, place)),
            _ => None,
        };
        Server {
            cpus,
            discipline,
            quota,
            now: Instant(0),
            work: 0,
            running: BinaryHeap::new(),
            started: 0,
            jobs: Vec::new(),
            free: Vec::new(),
            waiting: [VecDeque::new(), VecDeque::new()],
            counts: [0; 2],
            busy: [0; 2],
            expected: None,
        }
    }

    /// A job that needs so much CPU time arrives.
    pub(crate) fn arrive(&mut self, now: Instant, kind: Kind, cost_ns: u64, job: J) {
        self.advance(now);
        let is_busy = self.is_full() || self.waiting.iter().any(|queue| !queue.is_empty());
        // What needs no CPU waits for none.
        if is_busy && cost_ns > 0 {
            let passes = self.discipline == Discipline::WritesFirst && kind == Kind::Write;
            self.waiting[usize::from(!passes)].push_back((kind, cost_ns, job));
        } else {
            self.start(kind, cost_ns, job);
        }
    }

    /// The job that was just over goes on with another one, which nobody overtakes.
    pub(crate) fn go_on(&mut self, kind: Kind, cost_ns: u64, job: J) {
        self.start(kind, cost_ns, job);
    }

    fn is_full(&self) -> bool {
        matches!(self.discipline, Discipline::Queued | Discipline::WritesFirst)
            && self.running.len() as u64 >= self.cpus
    }

    /// A job that is over by now, if there is one. To be called until there is none: only then those that wait start.
    pub(crate) fn complete(&mut self, now: Instant) -> Option<J> {
        self.advance(now);
        while !self.is_full()
            && let Some((kind, cost_ns, job)) = self.waiting.iter_mut().find_map(VecDeque::pop_front)
        {
            self.start(kind, cost_ns, job);
        }
        let Reverse((ends, ..)) = self.running.peek()?;
        if *ends > self.work {
            return None;
        }
        let Reverse((_, _, place)) = self.running.pop()?;
        let (kind, job) = self.jobs[place as usize].take()?;
        self.free.push(place);
        self.counts[kind as usize] -= 1;
        Some(job)
    }

    /// When the next job is over if nothing else arrives.
    pub(crate) fn next_completion(&self) -> Option<Instant> {
        let Reverse((ends, ..)) = self.running.peek()?;
        let missing = ends.saturating_sub(self.work);
        let jobs = self.running.len() as u64;
        let running = jobs.min(self.cpus);
        // Rounded up: then `work` will have got there.
        let needed = (u128::from(missing) * u128::from(jobs)).div_ceil(1 << FRACTION_BITS);
        let needed_ns = needed as u64;
        Some(match &self.quota {
            None => self.now.plus_ns(needed_ns.div_ceil(running)),
            Some(quota) => quota.done(self.now, needed_ns, self.cpus, running),
        })
    }

    /// When that is, if it is not on the calendar of the one who drives this, who puts it there.
    pub(crate) fn expect_completion(&mut self) -> Option<Instant> {
        let is_sooner = |at: &Instant| self.expected.is_none_or(|expected| *at < expected);
        let at = self.next_completion().filter(is_sooner)?;
        self.expected = Some(at);
        Some(at)
    }

    /// Whether the completion that is on the calendar for now is the one that is expected; then it is not any more. Others were put there before something sooner
    /// came, and each would put one more there in its place.
    pub(crate) fn is_expected(&mut self, now: Instant) -> bool {
        let is_expected = self.expected == Some(now);
        if is_expected {
            self.expected = None;
        }
        is_expected
    }

    /// Time spent since the last call, up to now.
    pub(crate) fn take_busy(&mut self, now: Instant) -> Busy {
        self.advance(now);
        let [read_ns, write_ns] = std::mem::take(&mut self.busy);
        Busy { read_ns, write_ns }
    }

    fn start(&mut self, kind: Kind, cost_ns: u64, job: J) {
        self.started += 1;
        self.counts[kind as usize] += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.jobs[place as usize] = Some((kind, job));
                place
            }
            None => {
                self.jobs.push(Some((kind, job)));
                (self.jobs.len() - 1) as u32
            }
        };
        self.running.push(Reverse((self.work + (cost_ns << FRACTION_BITS), self.started, place)));
    }

    fn advance(&mut self, now: Instant) {
        let before = self.now;
        self.now = self.now.max(now);
        let jobs = self.running.len() as u64;
        let running = jobs.min(self.cpus);
        // CPU time of all of them together.
        let done_ns = match &mut self.quota {
            None => self.now.since_ns(before) * running,
            Some(quota) => quota.advance(before, self.now, self.cpus, running),
        };
        if done_ns == 0 {
            return;
        }
        self.work += ((u128::from(done_ns) << FRACTION_BITS) / u128::from(jobs)) as u64;
        for (busy, count) in self.busy.iter_mut().zip(self.counts) {
            *busy += (u128::from(done_ns) * u128::from(count) / u128::from(jobs)) as u64;
        }
    }
}

impl Quota {
    fn new(cpus: u64, speed: u32, period_ns: u64, place: u16) -> Quota {
        let (speed, period_ns) = (u64::from(speed.max(1)), period_ns.max(1));
        // Spread over the period in any number of servers: multiples of the golden ratio.
        let part = (f64::from(place) * 0.618_033_988_749_894_9).fract();
        let first_ns = (period_ns as f64 * part) as u64;
        Quota { speed, period_ns, ends: Instant(first_ns.max(1)), left_ns: period_ns * cpus }
    }

    /// What is done from one time to another while so many CPUs have something to do.
    fn advance(&mut self, from: Instant, to: Instant, cpus: u64, running: u64) -> u64 {
        let (mut from, mut done_ns) = (from, 0);
        while from < to {
            let until = to.min(self.ends);
            let able_ns = until.since_ns(from) * self.speed * running;
            let spent_ns = able_ns.min(self.left_ns);
            (done_ns, self.left_ns, from) = (done_ns + spent_ns, self.left_ns - spent_ns, until);
            if until == self.ends {
                // Whole periods are not gone through one by one.
                let periods = to.since_ns(self.ends) / self.period_ns;
                let each_ns = (self.period_ns * self.speed * running).min(self.period_ns * cpus);
                done_ns += each_ns * periods;
                from = self.ends.plus_ns(periods * self.period_ns);
                self.ends = from.plus_ns(self.period_ns);
                self.left_ns = self.period_ns * cpus;
            }
        }
        done_ns
    }

    /// When so much more is done, if so many CPUs have something to do all the time.
    fn done(&self, now: Instant, needed_ns: u64, cpus: u64, running: u64) -> Instant {
        let rate = self.speed * running;
        let able_ns = (self.ends.since_ns(now) * rate).min(self.left_ns);
        if needed_ns <= able_ns {
            return now.plus_ns(needed_ns.div_ceil(rate));
        }
        let rest_ns = needed_ns - able_ns;
        let each_ns = (self.period_ns * rate).min(self.period_ns * cpus);
        let periods = (rest_ns - 1) / each_ns;
        let last_ns = (rest_ns - periods * each_ns).div_ceil(rate);
        self.ends.plus_ns(periods * self.period_ns + last_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs jobs that arrive at these times with these costs; when each is over.
    fn run(cpus: u32, discipline: Discipline, jobs: &[(u64, u64)]) -> Vec<u64> {
        let mut server = Server::new(cpus, discipline, 0);
        let mut over = vec![0; jobs.len()];
        let mut arrivals = jobs.iter().enumerate().peekable();
        loop {
            let next = server.next_completion();
            match (arrivals.peek(), next) {
                (Some((_, (at, _))), next) if next.is_none_or(|next| Instant(*at) <= next) => {
                    let (number, (at, cost_ns)) = arrivals.next().expect("it was peeked at");
                    server.arrive(Instant(*at), Kind::Read, *cost_ns, number);
                }
                (_, Some(now)) => {
                    while let Some(number) = server.complete(now) {
                        over[number] = now.0;
                    }
                }
                (_, None) => return over,
            }
        }
    }

    #[test]
    fn jobs_that_share_a_cpu_take_as_long_as_their_sum() {
        assert_eq!(run(1, Discipline::Shared, &[(0, 100), (0, 100)]), [200, 200]);
        assert_eq!(run(1, Discipline::Shared, &[(0, 100), (50, 10)]), [110, 70]);
        assert_eq!(run(1, Discipline::Shared, &[(0, 30), (0, 60), (0, 90)]), [90, 150, 180]);
    }

    #[test]
    fn jobs_do_not_disturb_each_other_while_there_are_cpus() {
        assert_eq!(run(2, Discipline::Shared, &[(0, 100), (10, 100)]), [100, 110]);
        assert_eq!(run(2, Discipline::Shared, &[(0, 100), (0, 100), (0, 100)]), [150, 150, 150]);
    }

    #[test]
    fn queued_jobs_run_in_the_order_of_their_arrival() {
        assert_eq!(run(1, Discipline::Queued, &[(0, 100), (50, 10)]), [100, 110]);
        assert_eq!(run(2, Discipline::Queued, &[(0, 100), (0, 10), (5, 20)]), [100, 10, 30]);
    }

    #[test]
    fn jobs_that_write_overtake_those_that_read_but_interrupt_none() {
        let mut server = Server::new(1, Discipline::WritesFirst, 0);
        for (kind, job) in
            [(Kind::Read, "running"), (Kind::Read, "read"), (Kind::Write, "w1"), (Kind::Write, "w2")]
        {
            server.arrive(Instant(0), kind, 10, job);
        }
        let over: Vec<&str> = (1..=4)
            .flat_map(|turn| std::iter::from_fn(|| server.complete(Instant(turn * 10))).collect::<Vec<_>>())
            .collect();
        assert_eq!(over, ["running", "w1", "w2", "read"]);
    }

    #[test]
    fn a_completion_that_something_sooner_has_put_off_is_not_expected_any_more() {
        let mut server = Server::new(1, Discipline::Shared, 0);
        server.arrive(Instant(0), Kind::Read, 100, "long");
        assert_eq!(server.expect_completion(), Some(Instant(100)));
        server.arrive(Instant(10), Kind::Read, 5, "short");
        assert_eq!(server.expect_completion(), Some(Instant(20)));
        assert!(server.is_expected(Instant(20)));
        assert_eq!((server.complete(Instant(20)), server.complete(Instant(20))), (Some("short"), None));
        assert_eq!(server.expect_completion(), Some(Instant(105)));
        assert!(!server.is_expected(Instant(100)));
        assert_eq!(server.expect_completion(), None, "it is on the calendar");
        assert!(server.is_expected(Instant(105)));
    }

    #[test]
    fn a_job_that_goes_on_is_not_overtaken() {
        let mut server = Server::new(1, Discipline::Queued, 0);
        server.arrive(Instant(0), Kind::Write, 100, "first");
        server.arrive(Instant(0), Kind::Read, 50, "read");
        assert_eq!(server.complete(Instant(100)), Some("first"));
        server.arrive(Instant(100), Kind::Read, 10, "last");
        server.go_on(Kind::Write, 100, "second");
        let mut over = Vec::new();
        loop {
            while let Some(job) = server.complete(server.now) {
                over.push((server.now.0, job));
            }
            let Some(next) = server.next_completion() else { break };
            server.advance(next);
        }
        assert_eq!(over, [(200, "second"), (250, "read"), (260, "last")]);
    }

    #[test]
    fn capped_servers_are_fast_until_the_quota_of_the_period_is_used_up() {
        let capped = Discipline::Capped { speed: 10, period_ns: 100 };
        let mut server = Server::new(1, capped, 0);
        // Its first period is over at once; then 100 may be done from 1 to 101, in 10 if there is something to do.
        server.arrive(Instant(21), Kind::Read, 60, 'a');
        assert_eq!(server.next_completion(), Some(Instant(27)));
        assert_eq!(server.complete(Instant(27)), Some('a'));
        server.arrive(Instant(31), Kind::Write, 60, 'b');
        // 40 at once, the others when the next period begins.
        assert_eq!(server.next_completion(), Some(Instant(103)));
        assert_eq!(server.complete(Instant(102)), None);
        assert_eq!(server.complete(Instant(103)), Some('b'));
        assert_eq!(server.take_busy(Instant(103)), Busy { read_ns: 60, write_ns: 60 });
        // Nothing is saved, and long jobs go at the speed that they are held to.
        server.arrive(Instant(1_001), Kind::Read, 1_000, 'c');
        assert_eq!(server.next_completion(), Some(Instant(1_911)));
        assert_eq!(server.complete(Instant(1_910)), None);
        assert_eq!(server.complete(Instant(1_911)), Some('c'));
    }

    #[test]
    fn capped_servers_of_a_cluster_do_not_begin_their_periods_together() {
        let capped = Discipline::Capped { speed: 10, period_ns: 100 };
        let ends = |place| {
            let mut server = Server::new(1, capped, place);
            server.arrive(Instant(1_000), Kind::Read, 150, ());
            server.next_completion().expect("it is at work").0
        };
        let mut all: Vec<u64> = (0..5).map(ends).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5, "{all:?}");
    }

    #[test]
    fn a_job_without_cost_is_over_at_once() {
        assert_eq!(run(1, Discipline::Shared, &[(0, 100), (7, 0)]), [100, 7]);
        assert_eq!(run(1, Discipline::Queued, &[(0, 100), (5, 10), (7, 0)]), [100, 110, 7]);
    }

    #[test]
    fn time_is_split_between_reading_writing_and_idling() {
        let mut server = Server::new(2, Discipline::Shared, 0);
        server.arrive(Instant(0), Kind::Read, 100, 'r');
        server.arrive(Instant(0), Kind::Write, 100, 'w');
        server.arrive(Instant(0), Kind::Write, 100, 'v');
        assert_eq!(server.take_busy(Instant(30)), Busy { read_ns: 20, write_ns: 40 });
        assert_eq!(server.next_completion(), Some(Instant(150)));
        let over: Vec<char> = std::iter::from_fn(|| server.complete(Instant(150))).collect();
        assert_eq!(over, ['r', 'w', 'v']);
        assert_eq!(server.take_busy(Instant(1_000)), Busy { read_ns: 80, write_ns: 160 });
        assert_eq!(server.next_completion(), None);
    }
}
