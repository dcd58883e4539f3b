//! How old what a query reads may be: up to which place of the order a site must contain everything before it may run.
//!
//! A majority is asked how far the log is; the answer is about the moment of the question, by this site's clock alone. Of questions one is on its
//! way at a time, for all who wait.

use std::collections::VecDeque;
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

/// The bound that a shown value is; `None` for none.
pub fn bound_of(shown: &str) -> Option<Duration> {
    in_milliseconds(shown).map(|milliseconds| Duration::from_millis(milliseconds as u64))
}

/// Of one site.
pub struct Freshness {
    member: Arc<Member>,
    clock: Clock,
    asked: Arc<Asked>,
}

#[derive(Default)]
struct Asked {
    known: Mutex<Known>,
    news: Notify,
}

#[derive(Default, Debug)]
struct Known {
    is_asking: bool,
    /// The log has stopped.
    is_over: bool,
    /// When it was asked, and the last place then: nothing that was told by then is behind it.
    answers: VecDeque<(Instant, Csn)>,
}

impl Known {
    fn learn(&mut self, asked: Instant, place: Csn) {
        self.is_asking = false;
        if self.answers.len() >= KNOWN_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((asked, place));
    }

    /// The earliest place that will do for who may miss only what is newer than that.
    fn place_since(&self, since: Instant) -> Option<Csn> {
        self.answers.iter().find(|(asked, _)| *asked >= since).map(|(_, place)| *place)
    }
}

/// One question. Whoever drops it without an answer says that there will be none.
struct Question {
    asked: Arc<Asked>,
    at: Instant,
    is_answered: bool,
}

impl Question {
    fn answer(mut self, place: Csn) {
        self.is_answered = true;
        self.asked.known.lock().learn(self.at, place);
        self.asked.news.notify_waiters();
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            self.asked.known.lock().is_over = true;
            self.asked.news.notify_waiters();
        }
    }
}

impl Freshness {
    pub fn new(member: Arc<Member>, clock: Clock) -> Freshness {
        Freshness { member, clock, asked: Arc::default() }
    }

    /// The place up to which the database must contain everything for a query that has come now and is to see whatever was on a majority of
    /// disks this long ago; `None` if the log has stopped. Waits as long as no majority is heard.
    pub async fn place(&self, bound: Duration) -> Option<Csn> {
        let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let since = Instant(self.clock.now().0.saturating_sub(bound_ns));
        loop {
            let news = self.asked.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            {
                let known = self.asked.known.lock();
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
        if std::mem::replace(&mut self.asked.known.lock().is_asking, true) {
            return;
        }
        let question = Question { asked: self.asked.clone(), at: self.clock.now(), is_answered: false };
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
        assert_eq!((known.answers.len(), known.place_since(Instant(0))), (KNOWN_MAX, Some(Csn(37))));
    }
}
