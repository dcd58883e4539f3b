//! The CPUs of one simulated database.
//!
//! Costs are CPU time on an idle machine. Under [`Discipline::Shared`] all jobs run at once, each at the same speed: of
//! `n` jobs on `c` CPUs that is min(1, c / n). Under [`Discipline::Queued`] as many as there are CPUs run, in the order in
//! which they came.
//!
//! Both are one mechanism: `work` is how much a job has received that has run since the beginning, so a job ends when
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
pub(super) struct Server<J> {
    cpus: u64,
    discipline: Discipline,
    now: Instant,
    /// What a job that has run from the beginning would have received, in 2^-16 ns.
    work: u64,
    /// By the work at which they end, then in the order in which they started.
    running: BinaryHeap<Reverse<(u64, u64, u32)>>,
    started: u64,
    jobs: Vec<Option<(Kind, J)>>,
    free: Vec<u32>,
    waiting: VecDeque<(Kind, u64, J)>,
    /// How many of those that run are of each kind.
    counts: [u64; 2],
    busy: [u64; 2],
    /// For when a completion is on the calendar of the one who drives this.
    pub(super) expected: Option<Instant>,
}

impl<J> Server<J> {
    /// An idle server.
    pub(super) fn new(cpus: u32, discipline: Discipline) -> Server<J> {
        Server {
            cpus: u64::from(cpus.max(1)),
            discipline,
            now: Instant(0),
            work: 0,
            running: BinaryHeap::new(),
            started: 0,
            jobs: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            counts: [0; 2],
            busy: [0; 2],
            expected: None,
        }
    }

    /// A job that needs so much CPU time arrives.
    pub(super) fn arrive(&mut self, now: Instant, kind: Kind, cost_ns: u64, job: J) {
        self.advance(now);
        if self.is_full() || !self.waiting.is_empty() {
            self.waiting.push_back((kind, cost_ns, job));
        } else {
            self.start(kind, cost_ns, job);
        }
    }

    /// The job that was just over goes on with another one, which nobody overtakes.
    pub(super) fn go_on(&mut self, kind: Kind, cost_ns: u64, job: J) {
        self.start(kind, cost_ns, job);
    }

    fn is_full(&self) -> bool {
        self.discipline == Discipline::Queued && self.running.len() as u64 >= self.cpus
    }

    /// A job that is over by now, if there is one. To be called until there is none: only then those that wait start.
    pub(super) fn complete(&mut self, now: Instant) -> Option<J> {
        self.advance(now);
        while !self.is_full()
            && let Some((kind, cost_ns, job)) = self.waiting.pop_front()
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
    pub(super) fn next_completion(&self) -> Option<Instant> {
        let Reverse((ends, ..)) = self.running.peek()?;
        let missing = ends.saturating_sub(self.work);
        let jobs = self.running.len() as u64;
        let running = jobs.min(self.cpus);
        // Rounded up: then `work` will have got there.
        let elapsed = (u128::from(missing) * u128::from(jobs)).div_ceil(u128::from(running));
        let elapsed_ns = (elapsed as u64).div_ceil(1 << FRACTION_BITS);
        Some(self.now.plus_ns(elapsed_ns))
    }

    /// Time spent since the last call, up to now.
    pub(super) fn take_busy(&mut self, now: Instant) -> Busy {
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
        let elapsed_ns = now.since_ns(self.now);
        self.now = self.now.max(now);
        let jobs = self.running.len() as u64;
        if elapsed_ns == 0 || jobs == 0 {
            return;
        }
        let running = jobs.min(self.cpus);
        let shared = |time: u64, part: u64| (u128::from(time) * u128::from(part) / u128::from(jobs)) as u64;
        self.work += shared(elapsed_ns << FRACTION_BITS, running);
        for (busy, count) in self.busy.iter_mut().zip(self.counts) {
            *busy += shared(elapsed_ns, running * count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs jobs that arrive at these times with these costs; when each is over.
    fn run(cpus: u32, discipline: Discipline, jobs: &[(u64, u64)]) -> Vec<u64> {
        let mut server = Server::new(cpus, discipline);
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
    fn a_job_that_goes_on_is_not_overtaken() {
        let mut server = Server::new(1, Discipline::Queued);
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
    fn a_job_without_cost_is_over_at_once() {
        assert_eq!(run(1, Discipline::Shared, &[(0, 100), (7, 0)]), [100, 7]);
    }

    #[test]
    fn time_is_split_between_reading_writing_and_idling() {
        let mut server = Server::new(2, Discipline::Shared);
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
