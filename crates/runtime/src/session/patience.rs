//! How long a statement waits here before it is given up: for others, for its turn, for a replica.

use std::time::Duration;

use super::Session;
use super::environment::{LOCK_TIMEOUT, STATEMENT_TIMEOUT};
use crate::errors::{Cancelled, Failure};
use onecopy_wire::sqlstate::SqlState;

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
            self.timeout(LOCK_TIMEOUT).map(|limit| (limit, Cancelled::LockTimeout)),
            self.timeout(STATEMENT_TIMEOUT).map(|limit| (limit, Cancelled::StatementTimeout)),
            (limit_ms > 0).then_some((Duration::from_millis(limit_ms), Cancelled::Timeout)),
        ];
        limits.into_iter().flatten().min_by_key(|(limit, _)| *limit)
    }

    /// A setting of the session that limits time, if it or what it began with sets one.
    pub(super) fn timeout(&self, name: &str) -> Option<Duration> {
        milliseconds(self.setting(name)?)
    }

    /// What is set for the transaction, by the session, or by what it began with.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        let local = self.txn.as_ref().and_then(|txn| {
            let mut settings = txn.local_settings.iter().rev();
            settings.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
        });
        local.or_else(|| self.environment.value(name))
    }
}

/// Waits for something for a limited time; if that is over, returns what a client is told.
pub(super) async fn within<T>(
    patience: Option<(Duration, Cancelled)>,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    match patience {
        None => Ok(work.await),
        Some((limit, cause)) => tokio::time::timeout(limit, work).await.map_err(|_| cause.failure()),
    }
}

/// A time limit as `SHOW` tells it: in the largest unit that needs no fraction.
pub fn shown_limit(name: &str, value: &str) -> Result<String, Failure> {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
    let wrong = |message: String| Failure::new(SqlState::INVALID_PARAMETER_VALUE, message);
    let text = value.trim();
    let (sign, size) = text.strip_prefix('-').map_or((1.0, text), |size| (-1.0, size));
    let Some(limit) = in_milliseconds(size).map(|limit| sign * limit) else {
        let failure = wrong(format!("invalid value for parameter \"{name}\": \"{value}\""));
        return Err(failure
            .hint("Valid units for this parameter are \"us\", \"ms\", \"s\", \"min\", \"h\", and \"d\"."));
    };
    if !(0.0..=f64::from(i32::MAX)).contains(&limit) {
        let range = format!("(0 .. {})", i32::MAX);
        return Err(wrong(format!("{limit} ms is outside the valid range for parameter \"{name}\" {range}")));
    }
    let limit = limit as u64;
    let unit = UNITS.iter().find(|(unit, _)| limit > 0 && limit.is_multiple_of(*unit));
    Ok(unit.map_or_else(|| "0".to_owned(), |(unit, word)| format!("{}{word}", limit / unit)))
}

/// A time as settings write it: milliseconds, unless a unit follows. `None` for 0, which is no limit.
fn milliseconds(text: &str) -> Option<Duration> {
    let milliseconds = in_milliseconds(text)?;
    (milliseconds >= 1.0).then(|| Duration::from_millis(milliseconds.min(f64::from(i32::MAX)) as u64))
}

/// A time as settings write it, in milliseconds.
pub fn in_milliseconds(text: &str) -> Option<f64> {
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
    Some((number.parse::<f64>().ok()? * factor).round())
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

    #[test]
    fn time_limits_are_shown_as_the_server_shows_them() {
        let shown = |value| shown_limit("x", value).map_err(|failure| failure.message);
        for (value, expected) in
            [("0", "0"), ("1500", "1500ms"), ("60s", "1min"), (" 2 h", "2h"), ("1d", "1d"), ("0.5s", "500ms")]
        {
            assert_eq!(shown(value).as_deref(), Ok(expected));
        }
        assert_eq!(shown("soon"), Err("invalid value for parameter \"x\": \"soon\"".to_owned()));
        let outside = "-1 ms is outside the valid range for parameter \"x\" (0 .. 2147483647)";
        assert_eq!(shown("-1"), Err(outside.to_owned()));
    }
}
