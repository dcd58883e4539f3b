//! How many workers are worth what they cost.
//!
//! Where workers run one transaction at a time, what finds no worker waits, and a worker without anything to do is paid for nothing. The
//! scheduler knows the number of both, and how fast workers are, so it can reckon what would have happened with one worker more, or two, and with
//! one less, or two: how many transactions would wait now (a fluid model: so many more are finished a second, as long as some wait).
//!
//! For each of these this keeps what it would have saved since that began to pay: a sum that grows by what is saved, falls
//! by what is lost, and never falls below zero (a CUSUM: Page, *Continuous inspection schemes*, Biometrika 1954). Once it reaches what the
//! change itself costs, the change is made: the break-even rule of renting or buying. So it is late where demand rises fast beside the time that a
//! worker takes to start; one that forecasts hires for what will be there by then, too.
//!
//! Prices are multiples of what one worker costs; times are in nanoseconds.

use self::forecast::Forecast;
use crate::ids::Instant;

mod forecast;

/// What workers and waiting cost. One worker costs 1 a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// What it costs that a transaction waits for a worker, a second.
    pub waiting: f64,
    /// From when a worker is hired until it serves. It is paid for meanwhile.
    pub start_ns: u64,
    /// A worker is paid for at least so long once it serves.
    pub least_ns: u64,
}

/// How much there is to do, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Transactions that could run and have no worker; of a chain its first.
    pub waiting: u64,
    /// Workers that serve, are to stay, and have nothing to do.
    pub idle: u64,
    /// Workers that serve and are to stay.
    pub in_use: u64,
    /// Workers that are hired and do not serve yet.
    pub coming: u64,
    /// Transactions that were finished since the last time.
    pub finished: u64,
}

/// What is to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// So many workers more.
    Hire(u64),
    /// So many fewer of those that serve.
    Release(u64),
}

/// Decides how many workers there are.
#[derive(Debug)]
pub struct Autoscaler {
    costs: Costs,
    least: u64,
    most: u64,
    at: Instant,
    waiting: u64,
    coming: u64,
    /// Transactions that were finished, and the seconds that workers were busy with them; both fade.
    finished: f64,
    busy_s: f64,
    /// At place k, what k+1 workers more would have come to.
    more: Vec<Otherwise>,
    /// At place k, what k+1 workers less would have come to.
    less: Vec<Otherwise>,
    forecast: Option<Forecast>,
}

/// What another number of workers would have come to.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Otherwise {
    /// How many transactions would wait for a worker; with fewer workers, besides those that do.
    waiting: f64,
    /// What the last one of them, hired or released, would have saved since that began to pay.
    saved: f64,
}

impl Autoscaler {
    /// With so many workers at least, of which one is needed, and at most, which is no less.
    #[must_use]
    pub fn new(costs: Costs, least: u64, most: u64) -> Autoscaler {
        let least = least.max(1);
        Autoscaler {
            costs,
            least,
            most: most.max(least),
            at: Instant(0),
            waiting: 0,
            coming: 0,
            finished: 0.0,
            busy_s: 0.0,
            more: Vec::new(),
            less: Vec::new(),
            forecast: None,
        }
    }

    /// Hires for what will be there when a worker serves, and releases none of those.
    #[must_use]
    pub fn forecasting(mut self) -> Autoscaler {
        let memory_s = seconds_of(self.costs.start_ns);
        self.forecast = Some(Forecast::new(memory_s));
        self
    }

    /// There is so much to do, and was since the last time.
    pub fn observe(&mut self, now: Instant, demand: Demand) -> Change {
        let seconds = now.since_ns(self.at) as f64 / 1e9;
        self.at = now;
        let rate = self.learn(seconds, &demand);
        let wanted = self.foresee(seconds, rate, &demand);
        self.reckon_more(seconds, rate, &demand);
        self.reckon_less(seconds, rate, &demand);

        let to_hire = seconds_of(self.costs.start_ns) + seconds_of(self.costs.least_ns);
        // Whoever is coming is one of those that would be more.
        let missing = wanted.min(self.most).saturating_sub(demand.in_use + demand.coming);
        let hired = reached(self.more.iter().skip(demand.coming as usize), to_hire).max(missing);
        if hired > 0 {
            self.coming += hired;
            return Change::Hire(hired);
        }
        // To have one again it is paid while it starts, and somebody waits for it, unless that was foreseen.
        let waits = if self.forecast.is_some() { 0.0 } else { self.costs.waiting };
        let to_release = seconds_of(self.costs.start_ns) * (1.0 + waits);
        let needless = demand.in_use.saturating_sub(wanted);
        let released = reached(self.less.iter(), to_release).min(demand.idle).min(needless);
        if released > 0 {
            self.less.drain(..released as usize);
            let waiting = self.waiting as f64;
            self.more.splice(..0, vec![Otherwise { waiting, saved: 0.0 }; released as usize]);
            return Change::Release(released);
        }
        Change::None
    }

    /// How many transactions a busy worker finishes a second.
    fn learn(&mut self, seconds: f64, demand: &Demand) -> f64 {
        let memory = seconds_of(self.costs.start_ns + self.costs.least_ns).max(seconds);
        let kept = 1.0 - seconds / memory.max(f64::MIN_POSITIVE);
        self.finished = self.finished * kept + demand.finished as f64;
        self.busy_s = self.busy_s * kept + demand.in_use.saturating_sub(demand.idle) as f64 * seconds;
        if self.busy_s > 0.0 { self.finished / self.busy_s } else { 0.0 }
    }

    /// How many workers are wanted now or when one that is hired now serves, as far as that is foreseen.
    fn foresee(&mut self, seconds: f64, rate: f64, demand: &Demand) -> u64 {
        let Some(forecast) = &mut self.forecast else { return 0 };
        let busy = demand.in_use.saturating_sub(demand.idle) as f64;
        // What begins to wait would keep others busy; what no longer does was there before.
        let more = demand.waiting as f64 - self.waiting as f64;
        let load = if rate * seconds > 0.0 { busy + more / (rate * seconds) } else { busy };
        forecast.observe(seconds, load.max(0.0));
        let busy = forecast.after(0.0).max(forecast.after(seconds_of(self.costs.start_ns)));
        forecast::staffing(busy, self.costs.waiting).ceil() as u64
    }

    fn reckon_more(&mut self, seconds: f64, rate: f64, demand: &Demand) {
        let serving = self.coming.saturating_sub(demand.coming).min(self.more.len() as u64);
        let with_them = self.more.drain(..serving as usize).next_back();
        if let Some(with_them) = with_them {
            // What came together while they started waits all the same, and would with still more.
            let still = self.waiting as f64 - with_them.waiting;
            self.more.iter_mut().for_each(|otherwise| otherwise.waiting += still);
        }
        self.less.splice(..0, vec![Otherwise::default(); serving as usize]);
        self.coming = demand.coming;
        let change = demand.waiting as f64 - self.waiting as f64;
        let now = Otherwise { waiting: demand.waiting as f64, saved: 0.0 };
        let room = self.most.saturating_sub(demand.in_use);
        self.more.resize(room as usize, Otherwise { waiting: self.waiting as f64, ..now });
        self.waiting = demand.waiting;
        let mut before = now.waiting;
        for (more, otherwise) in (1_u32..).zip(&mut self.more) {
            let waiting = otherwise.waiting + change - f64::from(more) * rate * seconds;
            otherwise.waiting = waiting.clamp(0.0, before);
            otherwise.save(seconds * (self.costs.waiting * (before - otherwise.waiting) - 1.0));
            before = otherwise.waiting;
        }
    }

    fn reckon_less(&mut self, seconds: f64, rate: f64, demand: &Demand) {
        let room = demand.in_use.saturating_sub(self.least);
        self.less.resize(room as usize, Otherwise::default());
        let mut before = 0.0;
        for (less, otherwise) in (1_u32..).zip(&mut self.less) {
            // So many would have been missing; or, if it is below zero, would have had time for what waits.
            let missing = f64::from(less) - demand.idle as f64;
            otherwise.waiting = (otherwise.waiting + missing * rate * seconds).max(before);
            otherwise.save(seconds * (1.0 - self.costs.waiting * (otherwise.waiting - before)));
            before = otherwise.waiting;
        }
    }
}

impl Otherwise {
    fn save(&mut self, more: f64) {
        self.saved = (self.saved + more).max(0.0);
    }
}

fn seconds_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// How many of the first have saved so much.
fn reached<'a>(otherwise: impl Iterator<Item = &'a Otherwise>, enough: f64) -> u64 {
    otherwise.take_while(|of| of.saved > 0.0 && of.saved >= enough).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting costs three workers; a worker takes 4 s to start, and is paid for another 6 s at least.
    const COSTS: Costs = Costs { waiting: 3.0, start_ns: 4_000_000_000, least_ns: 6_000_000_000 };

    /// Each busy worker finishes one a second.
    fn demand(waiting: u64, idle: u64, in_use: u64, coming: u64) -> Demand {
        Demand { waiting, idle, in_use, coming, finished: in_use - idle }
    }

    /// What is decided at each of the next seconds, of which this is to be done.
    fn seconds(scaler: &mut Autoscaler, demands: impl IntoIterator<Item = Demand>) -> Vec<Change> {
        let mut observe = |demand| scaler.observe(scaler.at.plus_ns(1_000_000_000), demand);
        demands.into_iter().map(&mut observe).collect()
    }

    fn same(demand: Demand, seconds: usize) -> impl Iterator<Item = Demand> {
        std::iter::repeat_n(demand, seconds)
    }

    #[test]
    fn a_worker_is_hired_when_it_would_have_saved_what_it_costs_at_least() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        // Each second it would have saved 3 and cost 1, and it costs 10 in all.
        assert_eq!(seconds(&mut scaler, same(demand(1, 0, 2, 0), 4)), [Change::None; 4]);
        assert_eq!(seconds(&mut scaler, same(demand(1, 0, 2, 0), 1)), [Change::Hire(1)]);
        // Whoever is coming would serve whoever waits.
        assert_eq!(seconds(&mut scaler, same(demand(1, 0, 2, 1), 9)), [Change::None; 9]);
    }

    #[test]
    fn a_worker_serves_one_after_another_of_those_that_wait() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        // Three wait, and no more come: one worker has served them in three seconds.
        assert_eq!(seconds(&mut scaler, same(demand(3, 0, 2, 0), 3))[2], Change::Hire(1));
        // Two more wait each second: one worker does not do.
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        let growing = (1..=3).map(|second| demand(2 * second, 0, 2, 0));
        assert_eq!(seconds(&mut scaler, growing), [Change::None, Change::None, Change::Hire(2)]);
    }

    #[test]
    fn one_that_serves_when_another_is_hired_is_not_hired_twice() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        let growing = (1..=3).map(|second| demand(2 * second, 0, 2, 1));
        assert_eq!(seconds(&mut scaler, growing)[2], Change::Hire(1));
        // The first one serves by now, and only the second is coming.
        assert_eq!(seconds(&mut scaler, [demand(7, 0, 3, 1)]), [Change::None]);
    }

    #[test]
    fn what_came_together_while_workers_started_is_worth_more_of_them() {
        let mut scaler = Autoscaler::new(COSTS, 1, 30);
        let growing = (1..=3).map(|second| demand(2 * second, 0, 2, 0));
        assert_eq!(seconds(&mut scaler, growing)[2], Change::Hire(2));
        let starting = (4..=10).map(|second| demand(2 * second, 0, 2, 2));
        assert_eq!(seconds(&mut scaler, starting), [Change::None; 7]);
        // The two serve, so it grows no longer; the twenty that wait are served by others at last.
        let changes = seconds(&mut scaler, same(demand(20, 0, 4, 0), 4));
        assert!(matches!(changes[2], Change::Hire(3..)), "{changes:?}");
    }

    #[test]
    fn there_are_no_more_than_there_may_be() {
        let mut scaler = Autoscaler::new(COSTS, 1, 3);
        let growing = (1..=9).map(|second| demand(5 * second, 0, 2, 0));
        assert_eq!(
            seconds(&mut scaler, growing).iter().find(|change| **change != Change::None),
            Some(&Change::Hire(1))
        );
        let growing = (10..=19).map(|second| demand(5 * second, 0, 2, 1));
        assert_eq!(seconds(&mut scaler, growing), [Change::None; 10]);
    }

    #[test]
    fn who_waits_now_and_then_gets_a_worker_if_that_is_often_enough() {
        let ever_hires = |busy: usize, quiet: usize| {
            let mut scaler = Autoscaler::new(COSTS, 1, 9);
            (0..20).any(|_| {
                seconds(&mut scaler, same(demand(0, 0, 2, 0), quiet));
                seconds(&mut scaler, same(demand(1, 0, 2, 0), busy)).contains(&Change::Hire(1))
            })
        };
        // A third of the time is where a worker costs what it saves.
        assert!(ever_hires(2, 3));
        assert!(!ever_hires(1, 3));
    }

    #[test]
    fn a_worker_is_released_when_that_would_have_saved_what_it_costs_to_have_it_again() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        // 4 s in which it is paid, and in which somebody waits for it.
        assert_eq!(seconds(&mut scaler, same(demand(0, 1, 3, 0), 15)), [Change::None; 15]);
        assert_eq!(seconds(&mut scaler, same(demand(0, 1, 3, 0), 1)), [Change::Release(1)]);
        // The others have enough to do.
        assert_eq!(seconds(&mut scaler, same(demand(0, 0, 2, 0), 30)), [Change::None; 30]);
    }

    #[test]
    fn who_was_needed_is_kept_until_the_others_would_have_caught_up() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        seconds(&mut scaler, same(demand(0, 1, 3, 0), 15));
        // One transaction would have waited from then on, since the others were busy all the time.
        let all = [demand(0, 0, 3, 0)].into_iter().chain(same(demand(0, 1, 3, 0), 30));
        assert_eq!(seconds(&mut scaler, all), [Change::None; 31]);
        // Another idle worker would have served it.
        let changes = seconds(&mut scaler, same(demand(0, 2, 3, 0), 18));
        assert!(changes[..15].iter().all(|change| *change == Change::None), "{changes:?}");
        assert!(changes[15..].iter().any(|change| matches!(change, Change::Release(_))), "{changes:?}");
    }

    #[test]
    fn the_least_stay_and_only_who_has_nothing_to_do_is_released() {
        let mut scaler = Autoscaler::new(COSTS, 2, 9);
        assert_eq!(seconds(&mut scaler, same(demand(0, 2, 2, 0), 40)), [Change::None; 40]);
        let mut scaler = Autoscaler::new(COSTS, 0, 9);
        assert_eq!(seconds(&mut scaler, same(demand(0, 1, 1, 0), 40)), [Change::None; 40]);
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        assert_eq!(seconds(&mut scaler, same(demand(0, 3, 5, 0), 16))[15], Change::Release(3));
    }

    #[test]
    fn where_waiting_costs_nothing_nobody_is_hired() {
        let mut scaler = Autoscaler::new(Costs { waiting: 0.0, ..COSTS }, 1, 9);
        assert_eq!(seconds(&mut scaler, same(demand(50, 0, 2, 0), 100)), [Change::None; 100]);
    }

    #[test]
    fn who_forecasts_hires_for_what_will_be_there_when_a_worker_serves() {
        let rising = |scaler: &mut Autoscaler| {
            let busy = (0..60).map(|second| demand(0, 20 - second / 4, 20, 0));
            seconds(scaler, busy).iter().position(|change| *change != Change::None)
        };
        // Nobody waits yet, so without a forecast nobody is hired.
        assert_eq!(rising(&mut Autoscaler::new(COSTS, 20, 30)), None);
        // Beside 14 busy ones five are wanted (1.3 of their root), and in four seconds one more will be busy.
        let first = rising(&mut Autoscaler::new(COSTS, 20, 30).forecasting()).expect("one is hired");
        assert!((50..60).contains(&first), "{first}");
    }

    #[test]
    fn who_forecasts_keeps_whom_chance_may_need_and_releases_others_sooner() {
        let at = |scaler: &mut Autoscaler| {
            let changes = seconds(scaler, same(demand(0, 6, 10, 0), 16));
            changes
                .iter()
                .enumerate()
                .find(|(_, change)| **change != Change::None)
                .map(|(at, change)| (at, *change))
        };
        assert_eq!(at(&mut Autoscaler::new(COSTS, 1, 30)), Some((15, Change::Release(6))));
        // Four are busy, and three more may be by chance.
        assert_eq!(at(&mut Autoscaler::new(COSTS, 1, 30).forecasting()), Some((3, Change::Release(3))));
    }

    #[test]
    fn what_waits_from_before_is_not_taken_for_more_to_come() {
        let mut scaler = Autoscaler::new(COSTS, 1, 30).forecasting();
        seconds(&mut scaler, same(demand(0, 0, 2, 0), 30));
        // As many come as are finished, so they are two workers' work, and two more may be by chance.
        let changes = seconds(&mut scaler, same(demand(40, 0, 4, 2), 1));
        assert!(matches!(changes[0], Change::Hire(_)), "forty came at once: {changes:?}");
        let changes = seconds(&mut scaler, (1..40).map(|second| demand(40 - second, 0, 5, 20)));
        assert_eq!(changes, [Change::None; 39]);
    }
}
