//! Pages that are due when they are due, whatever became of those before them: an open loop.
//!
//! Users with pauses ask for less when answers take longer, and so hide how long everybody else would have waited. Here the times at
//! which pages are due are drawn beforehand, as of many users who know nothing of each other: a Poisson process. A page that is due is
//! given to the user who has been free for longest, or to a new one, and its response time counts from when it was due.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onecopy_workload::InteractionId;
use onecopy_workload::client::{Action, Client, Reply};
use onecopy_workload::random::{self, Random, exponential};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::{Collected, Crowd, Makes, User, Website, now};

/// A stream of random numbers that is no user's.
const ARRIVAL_STREAM: u64 = 1 << 42;
/// No two pages are further apart than so many times the mean; one in e^30 would be.
const GAP_MAX: u32 = 30;

/// When pages are due, as times from the beginning, without an end.
#[derive(Clone, Debug)]
struct Arrivals {
    random: Random,
    mean: Duration,
    last: Duration,
}

impl Arrivals {
    /// `per_second > 0` in the mean. The same seed gives the same times.
    fn new(per_second: f64, seed: u64) -> Arrivals {
        let mean = Duration::from_secs_f64(1.0 / per_second);
        Arrivals { random: random::stream(seed, ARRIVAL_STREAM), mean, last: Duration::ZERO }
    }

    fn next(&mut self) -> Duration {
        self.last += exponential(&mut self.random, self.mean, self.mean * GAP_MAX);
        self.last
    }
}

/// A page that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// In milliseconds from the beginning.
    pub(crate) at_ms: u64,
    /// Pages that were due then and not yet shown, this one included.
    pub(crate) backlog: u32,
    /// The backlog was at its bound: nobody asked for this page.
    pub(crate) turned_away: bool,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offered {
    /// Every page that was due, in order.
    pub(crate) arrivals: Vec<Arrival>,
    /// Users there were in the end.
    pub(crate) users: u32,
}

/// Pages becoming due. Dropping it leaves them unshown.
pub(crate) struct OpenLoad {
    /// Takes how long the pages may take that are on their way.
    end: oneshot::Sender<Duration>,
    task: JoinHandle<(Offered, usize)>,
    collected: Arc<Mutex<Collected>>,
}

impl<S: Website> Crowd<'_, S> {
    /// From `begin` on pages are due `per_second` in the mean, at times that are drawn from the seed. So many users are there at first,
    /// and one more comes whenever none is free. A page that is due while `backlog_max` others are not shown is turned away: noted,
    /// and asked for by nobody. There will be at most as many users as the options say, which must be no fewer than `backlog_max`.
    pub(crate) fn offer(self, begin: Instant, per_second: f64, users: u32, backlog_max: u32) -> OpenLoad {
        self.clock.send_modify(|clock| clock.counted_from = begin);
        let collected = self.makes.collected.clone();
        let (end, ended) = oneshot::channel();
        let arrivals = Arrivals::new(per_second, self.makes.seed);
        let mut desk = Desk {
            begin,
            backlog_max: backlog_max.min(self.makes.users_max),
            makes: self.makes,
            free: VecDeque::new(),
            pages: JoinSet::new(),
            offered: Offered::default(),
        };
        (0..users.min(desk.makes.users_max)).for_each(|_| {
            let free = desk.newcomer();
            desk.free.push_back(free);
        });
        OpenLoad { end, task: tokio::spawn(desk.serve(arrivals, ended)), collected }
    }
}

impl OpenLoad {
    /// No more pages are due. Returns what users have met, what was asked for, and how many pages were not shown in this time.
    pub(crate) async fn finish(self, limit: Duration) -> (Collected, Offered, usize) {
        // If nobody hears it, the task has panicked.
        let _ = self.end.send(limit);
        let (offered, cut_off) =
            self.task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let collected = std::mem::take(&mut *self.collected.lock().expect("no user panics with the lock"));
        (collected, offered, cut_off)
    }
}

/// A user between two pages, and which one is next.
type Free<C> = (User<C>, InteractionId);

/// Gives pages that are due to users who are free.
struct Desk<S: Website> {
    begin: Instant,
    backlog_max: u32,
    makes: Makes<S>,
    /// Who has been free for longest comes first.
    free: VecDeque<Free<S::User>>,
    /// Pages on their way, those that wait for a connection included.
    pages: JoinSet<Free<S::User>>,
    offered: Offered,
}

impl<S: Website> Desk<S> {
    async fn serve(
        mut self,
        mut arrivals: Arrivals,
        mut end: oneshot::Receiver<Duration>,
    ) -> (Offered, usize) {
        let mut due = self.begin + arrivals.next();
        let limit = loop {
            tokio::select! {
                Some(shown) = self.pages.join_next() => self.free.push_back(unwrap(shown)),
                () = tokio::time::sleep_until(due.into()) => {
                    self.on_due(due);
                    due = self.begin + arrivals.next();
                }
                limit = &mut end => break limit.unwrap_or_default(),
            }
        };
        let all_shown = async { while self.pages.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(limit, all_shown).await.is_ok();
        let cut_off = if in_time { 0 } else { self.pages.len() };
        self.pages.shutdown().await;
        (self.offered, cut_off)
    }

    fn on_due(&mut self, due: Instant) {
        // Those that were shown while nobody looked are no backlog.
        while let Some(shown) = self.pages.try_join_next() {
            self.free.push_back(unwrap(shown));
        }
        let before = self.pages.len() as u32;
        let turned_away = before >= self.backlog_max;
        let at_ms = (due - self.begin).as_millis() as u64;
        self.offered.arrivals.push(Arrival { at_ms, backlog: before + 1, turned_away });
        if turned_away {
            return;
        }
        let (mut user, interaction) = self.free.pop_front().unwrap_or_else(|| self.newcomer());
        let pool = self.makes.pool.clone();
        self.pages.spawn(async move {
            let (action, _) = user.page(&pool, due, interaction).await;
            (user, next(&action))
        });
    }

    fn newcomer(&mut self) -> Free<S::User> {
        let mut user = self.makes.user(self.offered.users);
        self.offered.users += 1;
        let action = user.client.next(now(), Reply::Done);
        (user, next(&action))
    }
}

/// The page after a pause.
fn next(action: &Action) -> InteractionId {
    let Action::Think { next, .. } = action else { unreachable!("pages begin and end with a pause") };
    *next
}

fn unwrap<T>(ended: std::result::Result<T, tokio::task::JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[cfg(test)]
mod tests {
    use onecopy_cluster::Server;

    use super::*;
    use crate::site::{Options, load};
    use crate::tpcw::Bookstore;

    #[test]
    fn pages_are_due_by_a_poisson_process_that_the_seed_decides() {
        const SECONDS: usize = 2_000;
        let mut arrivals = Arrivals::new(40.0, 1);
        let mut counts = [0_u32; SECONDS];
        let mut last = Duration::ZERO;
        loop {
            let at = arrivals.next();
            assert!(at >= last);
            last = at;
            let Some(count) = counts.get_mut(at.as_secs() as usize) else { break };
            *count += 1;
        }
        // Of a Poisson process both are the rate.
        let mean = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / SECONDS as f64;
        let square = |count: &u32| (f64::from(*count) - mean).powi(2);
        let variance = counts.iter().map(square).sum::<f64>() / SECONDS as f64;
        assert!((mean - 40.0).abs() < 0.6 && (variance - 40.0).abs() < 5.0, "{mean} {variance}");
        let first = |seed| Arrivals::new(40.0, seed).next();
        assert!(first(1) == first(1) && first(1) != first(2));
    }

    /// A small bookstore on a server of its own.
    async fn bookstore(clients: u32) -> (Server, Options<Bookstore>) {
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let options = Options {
            target: server.dsn(),
            site: Bookstore { items: 100, ..Bookstore::default() },
            clients,
            connections: Some(8),
            progress: false,
            ..Options::default()
        };
        load(&options).await.unwrap();
        (server, options)
    }

    #[tokio::test]
    async fn pages_are_due_while_the_server_stands_still_and_count_from_when_they_were_due() {
        let (mut server, options) = bookstore(1_000).await;
        let crowd = Crowd::open(&options).await.unwrap();
        let begin = Instant::now();
        let load = crowd.offer(begin, 40.0, 2, 1_000);
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.pause().unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.resume().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (collected, offered, cut_off) = load.finish(Duration::from_secs(30)).await;
        assert_eq!((cut_off, collected.errors.len()), (0, 0), "{:?}", collected.errors);
        let due = offered.arrivals.len();
        assert!((50..110).contains(&due), "{due}");
        assert_eq!(collected.samples.len(), due);
        assert!(offered.arrivals.iter().all(|arrival| !arrival.turned_away));
        // Hardly fewer than are due in a second, more than there are connections.
        let backlog = offered.arrivals.iter().map(|arrival| arrival.backlog).max().unwrap();
        assert!(backlog > 20 && offered.users >= backlog, "{backlog} {}", offered.users);
        let slow = collected.samples.iter().filter(|sample| sample.latency_us > 500_000).count();
        assert!(slow > 10, "{slow}");
    }

    #[tokio::test]
    async fn page_that_is_due_while_the_backlog_is_at_its_bound_is_noted_as_turned_away() {
        let (mut server, options) = bookstore(5).await;
        let crowd = Crowd::open(&options).await.unwrap();
        server.pause().unwrap();
        let load = crowd.offer(Instant::now(), 100.0, 1, 5);
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.resume().unwrap();
        let (collected, offered, cut_off) = load.finish(Duration::from_secs(30)).await;
        let away = offered.arrivals.iter().filter(|arrival| arrival.turned_away).count();
        assert_eq!((cut_off, offered.users), (0, 5));
        assert!(away > 10 && collected.samples.len() + away == offered.arrivals.len(), "{away}");
    }
}
