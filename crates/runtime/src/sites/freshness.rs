//! How old what a query reads may be: up to which place of the order a site must contain everything before it may run.
//!
//! A majority is asked how far the log is; the answer is about the moment of the question, by this site's clock alone. Of questions one is on its
//! way at a time, for all who wait.

use std::sync::Arc;
use std::time::Duration;

use onecopy_core::{Csn, Instant};
use onecopy_log::Member;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::errors::Failure;
use crate::session::patience::{in_milliseconds, shown_limit};

/// The setting of a session.
pub const SETTING: &str = "onecopy.staleness_max";
/// Its value for queries that may be as old as they are.
const ANY: &str = "-1";
/// How often it is asked anyway.
const ASK_PAUSE: Duration = Duration::from_secs(1);
/// Answers that are remembered.
const KNOWN_MAX: usize = 64;

/// What a setting says, as it is shown: a time, or [`ANY`].
pub fn shown(value: &str) -> Result<String, Failure> {
    if value.trim() == ANY {
        return Ok(ANY.to_owned());
    }
    shown_limit(SETTING, value).map_err(|failure| {
        failure.hint("It is a time, such as '5s' or 0, or -1 for queries that may be as old as they are.")
    })
}

/// How a bound is shown.
pub fn shown_bound(bound: Duration) -> String {
    let milliseconds = bound.as_millis().to_string();
    shown(&milliseconds).unwrap_or(milliseconds)
}

/// The bound that a shown value is; `None` for none.
pub fn bound_of(shown: &str) -> Option<Duration> {
    in_milliseconds(shown).map(|milliseconds| Duration::from_millis(milliseconds as u64))
}

/// Of one site.
pub struct Freshness {
    member: Arc<Member>,
    clock: Clock,
    answers: Arc<Answers>,
}

#[derive(Default)]
struct Answers {
    known: Mutex<Known>,
    news: Notify,
}

#[derive(Default, Debug)]
struct Known {
    is_asking: bool,
    /// The log has stopped.
    is_over: bool,
    /// When it was asked, and the last place then: nothing that was told by then is behind it.
    answers: Vec<(Instant, Csn)>,
}

impl Known {
    fn learn(&mut self, asked: Instant, place: Csn) {
        self.is_asking = false;
        self.answers.push((asked, place));
        if self.answers.len() > KNOWN_MAX {
            // Whoever may miss what is newer than some time is to find an answer that is hardly newer: where the two beside it are close to each
            // other for their age.
            let widened = |at: usize| {
                let [before, after] = [at - 1, at + 1].map(|at| self.answers[at].0.0);
                (after - before) as f64 / (asked.0 - before) as f64
            };
            let inner = 1..self.answers.len() - 1;
            if let Some(at) = inner.min_by(|a, b| widened(*a).total_cmp(&widened(*b))) {
                self.answers.remove(at);
            }
        }
    }

    /// The earliest place that will do for who may miss only what is newer than that.
    fn place_since(&self, since: Instant) -> Option<Csn> {
        self.answers.iter().find(|(asked, _)| *asked >= since).map(|(_, place)| *place)
    }
}

/// One question. Whoever drops it without an answer says that there will be none.
struct Question {
    answers: Arc<Answers>,
    at: Instant,
    is_answered: bool,
}

impl Question {
    fn answer(mut self, place: Csn) {
        self.is_answered = true;
        self.answers.known.lock().learn(self.at, place);
        self.answers.news.notify_waiters();
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answers.known.lock().is_over = true;
            self.answers.news.notify_waiters();
        }
    }
}

impl Freshness {
    pub fn new(member: Arc<Member>, clock: Clock) -> Freshness {
        Freshness { member, clock, answers: Arc::default() }
    }

    /// The place up to which the database must contain everything for a query that has come now and is to see whatever the node that leads knew this
    /// long ago to be on a majority of disks; `None` if the log has stopped. Waits as long as no majority is heard.
    pub async fn place(&self, bound: Duration) -> Option<Csn> {
        let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let since = Instant(self.clock.now().0.saturating_sub(bound_ns));
        loop {
            let news = self.answers.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            {
                let known = self.answers.known.lock();
                if let Some(place) = known.place_since(since) {
                    return Some(place);
                }
                if known.is_over {
                    return None;
                }
            }
            self.ask();
            news.await;
        }
    }

    /// Asks now and then, so that whoever may read what is some seconds old need not wait.
    pub async fn keep_asking(&self) {
        let mut due = tokio::time::interval(ASK_PAUSE);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            self.ask();
        }
    }

    /// Asks, unless that is under way.
    fn ask(&self) {
        if std::mem::replace(&mut self.answers.known.lock().is_asking, true) {
            return;
        }
        let question = Question { answers: self.answers.clone(), at: self.clock.now(), is_answered: false };
        self.member.confirm(Box::new(move |place| question.answer(place)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_written_as_times_are() {
        for (written, expected, ms) in [
            ("0", "0", Some(0)),
            ("1500", "1500ms", Some(1_500)),
            (" 2 min", "2min", Some(120_000)),
            (" -1", "-1", None),
        ] {
            let shown = shown(written).unwrap();
            assert_eq!(shown, expected);
            assert_eq!(bound_of(&shown), ms.map(Duration::from_millis));
        }
        assert!(shown("soon").unwrap_err().message.contains("invalid value"));
        assert!(shown("-2").is_err());
    }

    #[test]
    fn the_earliest_place_counts_that_is_new_enough() {
        let mut known = Known::default();
        for n in 1..=3 {
            known.learn(Instant(10 * n), Csn(n));
        }
        assert_eq!(known.place_since(Instant(0)), Some(Csn(1)));
        assert_eq!(known.place_since(Instant(20)), Some(Csn(2)));
        assert_eq!(known.place_since(Instant(21)), Some(Csn(3)));
        assert_eq!(known.place_since(Instant(31)), None);
        for n in 4..=100 {
            known.learn(Instant(10 * n), Csn(n));
        }
        assert_eq!((known.answers.len(), known.place_since(Instant(0))), (KNOWN_MAX, Some(Csn(1))));
    }

    #[test]
    fn what_is_remembered_is_sparser_the_older_it_is() {
        let mut known = Known::default();
        let now = 100_000;
        for n in 1..=now {
            known.learn(Instant(n), Csn(n));
        }
        assert_eq!(known.answers.len(), KNOWN_MAX);
        for age in [0, 1, 10, 100, 1_000, 10_000, 90_000] {
            let place = known.place_since(Instant(now - age)).unwrap();
            assert!((now - age..=now - age / 2).contains(&place.0), "{age}: {}", now - place.0);
        }
    }
}
