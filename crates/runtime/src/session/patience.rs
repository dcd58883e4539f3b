//! How long a statement waits here before it is given up: for others, for its turn, for a replica.

use std::time::Duration;

use super::Session;
use crate::errors::Cancelled;

/// What a statement with NOWAIT still waits for: a commit that is on its way to the replica where the statement belongs
/// is nobody's lock.
const NO_WAIT_GRACE: Duration = Duration::from_millis(50);

impl Session {
    /// For how long the statement may wait, and what ends it then; `None` if for ever. The servers count the time for which
    /// they execute it themselves.
    pub(super) fn patience(&self, no_wait: bool) -> Option<(Duration, Cancelled)> {
        let limit_ms = self.shared.limits.wait_timeout_ms;
        let limits = [
            no_wait.then_some((NO_WAIT_GRACE, Cancelled::NoWait)),
            self.timeout("lock_timeout").map(|limit| (limit, Cancelled::LockTimeout)),
            self.timeout("statement_timeout").map(|limit| (limit, Cancelled::StatementTimeout)),
            (limit_ms > 0).then_some((Duration::from_millis(limit_ms), Cancelled::Timeout)),
        ];
        limits.into_iter().flatten().min_by_key(|(limit, _)| *limit)
    }

    /// A setting of the session that limits time, if it has set one.
    fn timeout(&self, name: &str) -> Option<Duration> {
        let local = self.txn.as_ref().and_then(|txn| {
            let mut settings = txn.local_settings.iter().rev();
            settings.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
        });
        milliseconds(local.or_else(|| self.environment.value(name))?)
    }
}

/// A time as settings write it: milliseconds, unless a unit follows. `None` for 0, which is no limit.
fn milliseconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "us" => 0.001,
        "" | "ms" => 1.0,
        "s" => 1_000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    let milliseconds = (number.parse::<f64>().ok()? * factor).round();
    (milliseconds >= 1.0).then(|| Duration::from_millis(milliseconds.min(f64::from(i32::MAX)) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_read_as_settings_are() {
        let read = |text| milliseconds(text).map(|limit| limit.as_millis());
        assert_eq!(read("250"), Some(250));
        assert_eq!(read(" 1.5 s"), Some(1_500));
        assert_eq!(read("2min"), Some(120_000));
        assert_eq!((read("0"), read("0ms"), read("soon")), (None, None, None));
    }
}
