//! How many workers are worth what they cost.
//!
//! Where workers run one transaction at a time, a chain that finds no worker waits, and a worker without a chain is paid for nothing. The
//! scheduler knows the number of both, so it knows what one worker more would have done so far, and what one less would have cost.
//!
//! For each worker more, and each less, this keeps what it would have saved since that began to pay: a sum that grows by what is saved, falls
//! by what is lost, and never falls below zero (a CUSUM: Page, *Continuous inspection schemes*, Biometrika 1954). Once it reaches what the
//! change itself costs, the change is made: the break-even rule of renting or buying, which needs no forecast of arrivals, and at which what
//! was lost by waiting for certainty is what certainty would have cost.
//!
//! Prices are multiples of what one worker costs; times are in nanoseconds.

use crate::ids::Instant;

/// What workers and waiting cost. One worker costs 1 a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// What it costs that a chain waits for a worker, a second. At 1 or less no worker is worth its price.
    pub waiting: f64,
    /// From when a worker is hired until it serves. It is paid for meanwhile.
    pub start_ns: u64,
    /// A worker is paid for at least so long once it serves.
    pub least_ns: u64,
}

/// How much there is to do, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Chains that could run and have no worker.
    pub waiting: u64,
    /// Workers that serve, are to stay, and have nothing to do.
    pub idle: u64,
    /// Workers that serve and are to stay.
    pub in_use: u64,
    /// Workers that are hired and do not serve yet.
    pub coming: u64,
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
///
/// Invariant: of two places in `more`, or in `less`, the earlier one has saved at least as much.
#[derive(Debug)]
pub struct Autoscaler {
    costs: Costs,
    least: u64,
    most: u64,
    at: Instant,
    /// At place k: what the (k+1)-th worker more would have saved.
    more: Vec<f64>,
    /// At place k: what it would have saved to have k+1 workers less.
    less: Vec<f64>,
}

impl Autoscaler {
    /// With so many workers at least, of which one is needed, and at most, which is no less.
    #[must_use]
    pub fn new(costs: Costs, least: u64, most: u64) -> Autoscaler {
        let least = least.max(1);
        let most = most.max(least);
        Autoscaler { costs, least, most, at: Instant(0), more: Vec::new(), less: Vec::new() }
    }

    /// There is so much to do, and was since the last time.
    pub fn observe(&mut self, now: Instant, demand: Demand) -> Change {
        let seconds = now.since_ns(self.at) as f64 / 1e9;
        self.at = now;
        // Whoever is coming takes on the first of those that wait.
        let unserved = demand.waiting.saturating_sub(demand.coming);
        let waiting = self.costs.waiting;
        sum_up(&mut self.more, unserved, |is_wanted| seconds * (if is_wanted { waiting } else { 0.0 } - 1.0));
        sum_up(&mut self.less, demand.idle, |is_idle| seconds * (1.0 - if is_idle { 0.0 } else { waiting }));

        let seconds_of = |ns: u64| ns as f64 / 1e9;
        let to_hire = seconds_of(self.costs.start_ns) + seconds_of(self.costs.least_ns);
        let room = self.most.saturating_sub(demand.in_use + demand.coming);
        let hired = room.min(reached(&self.more, to_hire));
        if hired > 0 {
            self.more.drain(..hired as usize);
            return Change::Hire(hired);
        }
        // To have one again it is paid while it starts, and a chain waits for it.
        let to_release = seconds_of(self.costs.start_ns) * (1.0 + waiting);
        let room = demand.in_use.saturating_sub(self.least).min(demand.idle);
        let released = room.min(reached(&self.less, to_release));
        if released > 0 {
            self.less.drain(..released as usize);
            return Change::Release(released);
        }
        Change::None
    }
}

/// Adds to each place what it has saved: the first so many were used.
fn sum_up(sums: &mut Vec<f64>, used: u64, saved: impl Fn(bool) -> f64) {
    sums.resize(sums.len().max(used as usize), 0.0);
    for (place, sum) in (0_u64..).zip(sums.iter_mut()) {
        *sum = (*sum + saved(place < used)).max(0.0);
    }
    let kept = sums.iter().rposition(|sum| *sum > 0.0).map_or(0, |last| last + 1);
    sums.truncate(kept);
}

/// How many of the first places have saved so much.
fn reached(sums: &[f64], enough: f64) -> u64 {
    sums.iter().take_while(|sum| **sum > 0.0 && **sum >= enough).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting costs three workers; a worker takes 4 s to start, and is paid for another 6 s at least.
    const COSTS: Costs = Costs { waiting: 3.0, start_ns: 4_000_000_000, least_ns: 6_000_000_000 };

    fn demand(waiting: u64, idle: u64, in_use: u64, coming: u64) -> Demand {
        Demand { waiting, idle, in_use, coming }
    }

    /// What is decided at each of the next seconds while the same is to be done.
    fn seconds(scaler: &mut Autoscaler, count: u64, demand: Demand) -> Vec<Change> {
        let observe = |_| scaler.observe(scaler.at.plus_ns(1_000_000_000), demand);
        (0..count).map(observe).collect()
    }

    #[test]
    fn a_worker_is_hired_when_waiting_has_cost_what_it_costs_at_least() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        // Each second one more would have saved 3 and cost 1, and it costs 10 in all.
        assert_eq!(seconds(&mut scaler, 4, demand(1, 0, 2, 0)), [Change::None; 4]);
        assert_eq!(seconds(&mut scaler, 1, demand(1, 0, 2, 0)), [Change::Hire(1)]);
        // Who is coming serves whoever waits.
        assert_eq!(seconds(&mut scaler, 9, demand(1, 0, 2, 1)), [Change::None; 9]);
    }

    #[test]
    fn as_many_are_hired_as_would_have_paid_and_no_more_than_there_may_be() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        seconds(&mut scaler, 3, demand(3, 0, 2, 0));
        seconds(&mut scaler, 1, demand(2, 0, 2, 0));
        assert_eq!(seconds(&mut scaler, 1, demand(3, 0, 2, 0)), [Change::Hire(2)]);
        let mut scaler = Autoscaler::new(COSTS, 1, 4);
        assert_eq!(seconds(&mut scaler, 5, demand(7, 0, 2, 1))[4], Change::Hire(1));
    }

    #[test]
    fn who_waits_now_and_then_gets_a_worker_if_that_is_often_enough() {
        let ever_hires = |busy: u64, quiet: u64| {
            let mut scaler = Autoscaler::new(COSTS, 1, 9);
            (0..20).any(|_| {
                seconds(&mut scaler, quiet, demand(0, 0, 2, 0));
                seconds(&mut scaler, busy, demand(1, 0, 2, 0)).contains(&Change::Hire(1))
            })
        };
        // A third of the time is where a worker costs what it saves.
        assert!(ever_hires(2, 3));
        assert!(!ever_hires(1, 3));
    }

    #[test]
    fn a_worker_is_released_when_to_keep_it_has_cost_what_it_costs_to_have_it_again() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        // 4 s in which it is paid, and in which somebody waits for it.
        assert_eq!(seconds(&mut scaler, 15, demand(0, 1, 3, 0)), [Change::None; 15]);
        assert_eq!(seconds(&mut scaler, 1, demand(0, 1, 3, 0)), [Change::Release(1)]);
        // Without its idleness the others are not too many.
        assert_eq!(seconds(&mut scaler, 30, demand(0, 0, 2, 0)), [Change::None; 30]);
    }

    #[test]
    fn who_was_needed_meanwhile_is_kept_for_longer() {
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        seconds(&mut scaler, 15, demand(0, 1, 3, 0));
        // A second in which one less would have made a chain wait: it costs 3 and saves 1.
        assert_eq!(seconds(&mut scaler, 1, demand(0, 0, 3, 0)), [Change::None]);
        assert_eq!(seconds(&mut scaler, 2, demand(0, 1, 3, 0)), [Change::None; 2]);
        assert_eq!(seconds(&mut scaler, 1, demand(0, 1, 3, 0)), [Change::Release(1)]);
    }

    #[test]
    fn the_least_stay_and_only_who_has_nothing_to_do_is_released() {
        let mut scaler = Autoscaler::new(COSTS, 2, 9);
        assert_eq!(seconds(&mut scaler, 40, demand(0, 2, 2, 0)), [Change::None; 40]);
        let mut scaler = Autoscaler::new(COSTS, 0, 9);
        assert_eq!(seconds(&mut scaler, 40, demand(0, 1, 1, 0)), [Change::None; 40]);
        let mut scaler = Autoscaler::new(COSTS, 1, 9);
        assert_eq!(seconds(&mut scaler, 16, demand(0, 3, 5, 0))[15], Change::Release(3));
    }

    #[test]
    fn no_worker_is_worth_its_price_if_waiting_costs_no_more() {
        let costs = Costs { waiting: 1.0, ..COSTS };
        let mut scaler = Autoscaler::new(costs, 1, 9);
        assert_eq!(seconds(&mut scaler, 100, demand(50, 0, 2, 0)), [Change::None; 100]);
    }
}
