//! How many workers will be wanted when one that is hired now serves.

/// Foresees how many workers will be busy by what was and how it changed (Brown's double exponential smoothing).
#[derive(Debug)]
pub(super) struct Forecast {
    /// How fast the past fades: after so many seconds a third of it still counts.
    memory_s: f64,
    smoothed: f64,
    smoothed_twice: f64,
    /// How many workers' work there is more each second.
    trend: f64,
    has_begun: bool,
}

impl Forecast {
    pub(super) fn new(memory_s: f64) -> Forecast {
        Forecast { memory_s, smoothed: 0.0, smoothed_twice: 0.0, trend: 0.0, has_begun: false }
    }

    /// So many workers' work came for so many seconds.
    pub(super) fn observe(&mut self, seconds: f64, load: f64) {
        if !self.has_begun {
            (self.smoothed, self.smoothed_twice, self.has_begun) = (load, load, true);
        }
        if seconds <= 0.0 {
            return;
        }
        let fades = (-seconds / self.memory_s.max(seconds)).exp();
        self.smoothed = load + fades * (self.smoothed - load);
        self.smoothed_twice = self.smoothed + fades * (self.smoothed_twice - self.smoothed);
        self.trend = (self.smoothed - self.smoothed_twice) * (1.0 - fades) / fades / seconds;
    }

    /// How many workers' work there will be after so many seconds, if it goes on like that.
    pub(super) fn after(&self, seconds: f64) -> f64 {
        (2.0 * self.smoothed - self.smoothed_twice + self.trend * seconds).max(0.0)
    }
}

/// How many workers are worth what they cost where so many are busy on average and come and go by chance, and a second of waiting costs so
/// many of them: square-root staffing (Borst, Mandelbaum, Reiman, *Dimensioning Large Call Centers*, Operations Research 52, 2004, whose
/// approximation of the safety factor this is).
pub(super) fn staffing(busy: f64, waiting: f64) -> f64 {
    let safety = if waiting < 20.0 {
        (waiting / (1.0 + waiting * ((std::f64::consts::PI / 2.0).sqrt() - 1.0))).sqrt()
    } else {
        (2.0 * (waiting / (2.0 * std::f64::consts::PI).sqrt()).ln()).sqrt()
    };
    busy + safety * busy.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rises_evenly_is_foreseen_to_go_on_and_what_stays_to_stay() {
        let mut forecast = Forecast::new(10.0);
        (0..50).for_each(|_| forecast.observe(1.0, 7.0));
        assert!((forecast.after(30.0) - 7.0).abs() < 1e-9);
        (1..=200).for_each(|second| forecast.observe(1.0, 7.0 + 0.5 * f64::from(second)));
        assert!((forecast.after(30.0) - (7.0 + 0.5 * 230.0)).abs() < 1e-3, "{forecast:?}");
        // What falls is never less than nothing.
        (1..=200).for_each(|second| forecast.observe(1.0, 107.0 - 0.5 * f64::from(second)));
        assert_eq!(forecast.after(60.0), 0.0);
    }

    #[test]
    fn what_was_looked_at_more_often_is_the_same() {
        let (mut often, mut seldom) = (Forecast::new(20.0), Forecast::new(20.0));
        (0..400).for_each(|step| often.observe(0.25, f64::from(step) * 0.25));
        (0..100).for_each(|step| seldom.observe(1.0, f64::from(step)));
        assert!((often.after(5.0) - seldom.after(5.0)).abs() < 1.0, "{often:?} {seldom:?}");
    }

    #[test]
    fn the_more_waiting_costs_the_more_workers_are_worth_it() {
        let workers: Vec<f64> =
            [0.0, 1.0, 3.0, 19.9, 20.0, 1_000.0].map(|waiting| staffing(100.0, waiting)).to_vec();
        assert_eq!(workers[0], 100.0);
        assert!(workers.is_sorted(), "{workers:?}");
        // A safety factor of 1.306.
        assert!((workers[2] - 113.06).abs() < 0.01, "{workers:?}");
    }
}
