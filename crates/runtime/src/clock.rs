//! The one place that reads the clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onecopy_core::Instant;

/// Monotonic time since the start of the process, as the core counts it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { start: std::time::Instant::now() }
    }

    pub fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }
}

/// The time of day in microseconds since 1970, for `now()` in statements.
pub fn unix_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros() as i64
}

/// A point in time after which something is given up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    pub fn after(duration: Duration) -> Deadline {
        Deadline(tokio::time::Instant::now() + duration)
    }

    /// The deadline of a limit in milliseconds, of which 0 is none.
    pub fn within_ms(limit_ms: u64) -> Option<Deadline> {
        (limit_ms > 0).then(|| Deadline::after(Duration::from_millis(limit_ms)))
    }

    pub fn has_passed(self) -> bool {
        tokio::time::Instant::now() >= self.0
    }

    pub async fn reached(self) {
        tokio::time::sleep_until(self.0).await;
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    pub fn elapsed_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    pub fn elapsed_s(self) -> u64 {
        self.0.elapsed().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_zero_is_never_reached() {
        assert!(Deadline::within_ms(0).is_none());
        assert!(Deadline::within_ms(86_400_000).is_some_and(|deadline| !deadline.has_passed()));
    }
}
