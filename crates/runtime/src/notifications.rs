//! LISTEN and NOTIFY among the sessions of this process.
//!
//! A notification is delivered when its transaction is told to its client as committed, in the order of commits:
//! the scheduler hands them over while it holds its lock. Every listener has a queue, which its session empties while it
//! has no transaction open. A queue that grows too long ends its session: nothing is dropped in silence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::{HashMap, HashSet};
use onecopy_core::SessionId;
use parking_lot::Mutex;

/// What a client is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Notification {
    /// The number under which the notifying session may be cancelled.
    pub pid: u32,
    pub channel: String,
    pub payload: String,
}

impl Notification {
    /// Bytes that it takes in memory, about.
    pub fn len(&self) -> usize {
        size_of::<Notification>() + self.channel.len() + self.payload.len()
    }
}

/// All channels that somebody listens to.
#[derive(Default)]
pub struct Channels {
    listeners: Mutex<HashMap<String, Listeners>>,
}

/// Who listens to one channel.
type Listeners = Vec<(SessionId, Arc<Queue>)>;

impl Channels {
    /// Delivers what one transaction has notified; a notification that it has made several times is delivered once.
    pub fn publish(&self, notifications: Vec<Notification>) {
        let listeners = self.listeners.lock();
        let mut seen = HashSet::new();
        for notification in notifications {
            let Some(to) = listeners.get(&notification.channel) else { continue };
            if !seen.insert(notification.clone()) {
                continue;
            }
            let notification = Arc::new(notification);
            to.iter().for_each(|(_, queue)| queue.put(notification.clone()));
        }
    }

    fn listen(&self, channel: &str, session: SessionId, queue: &Arc<Queue>) {
        let mut listeners = self.listeners.lock();
        listeners.entry(channel.to_owned()).or_default().push((session, queue.clone()));
    }

    fn unlisten(&self, channel: &str, session: SessionId) {
        let mut listeners = self.listeners.lock();
        if let Some(queues) = listeners.get_mut(channel) {
            queues.retain(|(other, _)| *other != session);
            if queues.is_empty() {
                listeners.remove(channel);
            }
        }
    }
}

/// What waits for one session.
struct Queue {
    waiting: Mutex<Waiting>,
    /// Whether anything waits, to be asked without a lock.
    any: AtomicBool,
    arrived: tokio::sync::Notify,
    bytes_max: usize,
}

#[derive(Default)]
struct Waiting {
    notifications: VecDeque<Arc<Notification>>,
    bytes: usize,
    overflow: bool,
}

impl Queue {
    fn put(&self, notification: Arc<Notification>) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += notification.len();
        if waiting.bytes > self.bytes_max {
            waiting.overflow = true;
            waiting.notifications.clear();
        }
        if !waiting.overflow {
            waiting.notifications.push_back(notification);
        }
        self.any.store(true, Ordering::Release);
        self.arrived.notify_one();
    }
}

/// More was notified than the session's queue may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overflow;

/// What one session listens to; it stops when this is dropped.
pub struct Listener {
    all: Arc<Channels>,
    session: SessionId,
    channels: HashSet<String>,
    queue: Arc<Queue>,
}

impl Listener {
    /// `bytes_max`: how much may wait for the session.
    pub fn new(all: &Arc<Channels>, session: SessionId, bytes_max: usize) -> Listener {
        let queue = Queue {
            waiting: Mutex::default(),
            any: AtomicBool::new(false),
            arrived: tokio::sync::Notify::new(),
            bytes_max,
        };
        Listener { all: all.clone(), session, channels: HashSet::new(), queue: Arc::new(queue) }
    }

    /// Listens from now on; false if it did already.
    pub fn listen(&mut self, channel: &str) -> bool {
        let new = self.channels.insert(channel.to_owned());
        if new {
            self.all.listen(channel, self.session, &self.queue);
        }
        new
    }

    /// What it listens to, in the order of names.
    pub fn channels(&self) -> Vec<&str> {
        let mut channels: Vec<&str> = self.channels.iter().map(String::as_str).collect();
        channels.sort_unstable();
        channels
    }

    pub fn unlisten(&mut self, channel: &str) {
        if self.channels.remove(channel) {
            self.all.unlisten(channel, self.session);
        }
    }

    pub fn unlisten_all(&mut self) {
        for channel in self.channels.drain() {
            self.all.unlisten(&channel, self.session);
        }
    }

    /// Whether something waits to be taken.
    pub fn has_any(&self) -> bool {
        self.queue.any.load(Ordering::Acquire)
    }

    /// Takes everything that waits.
    ///
    /// # Errors
    /// [`Overflow`]: some of it was lost.
    pub fn take(&self) -> Result<VecDeque<Arc<Notification>>, Overflow> {
        let mut waiting = self.queue.waiting.lock();
        self.queue.any.store(false, Ordering::Release);
        waiting.bytes = 0;
        if waiting.overflow {
            return Err(Overflow);
        }
        Ok(std::mem::take(&mut waiting.notifications))
    }

    /// Ready when something waits.
    pub async fn arrived(&self) {
        while !self.has_any() {
            self.queue.arrived.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.unlisten_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(channel: &str, payload: &str) -> Notification {
        Notification { pid: 7, channel: channel.to_owned(), payload: payload.to_owned() }
    }

    fn taken(listener: &Listener) -> Vec<String> {
        listener.take().unwrap().iter().map(|n| format!("{} {}", n.channel, n.payload)).collect()
    }

    #[test]
    fn listeners_hear_in_order_what_is_said_on_their_channels_and_repetitions_once() {
        let all = Arc::<Channels>::default();
        let mut one = Listener::new(&all, SessionId(1), 10_000);
        let mut two = Listener::new(&all, SessionId(2), 10_000);
        assert!(one.listen("a") && !one.listen("a") && one.listen("b") && two.listen("b"));
        all.publish(vec![said("b", "1"), said("a", "2"), said("b", "1"), said("c", "3")]);
        all.publish(vec![said("b", "1")]);
        assert_eq!(taken(&one), ["b 1", "a 2", "b 1"]);
        assert_eq!(taken(&two), ["b 1", "b 1"]);
        assert!(!one.has_any());
        one.unlisten("b");
        drop(two);
        all.publish(vec![said("b", "4"), said("a", "5")]);
        assert_eq!(taken(&one), ["a 5"]);
        one.unlisten_all();
        assert!(all.listeners.lock().is_empty());
    }

    #[test]
    fn listener_that_does_not_take_what_waits_is_told_so() {
        let all = Arc::<Channels>::default();
        let mut one = Listener::new(&all, SessionId(1), 10_000);
        one.listen("a");
        for _ in 0..10 {
            all.publish(vec![said("a", &"x".repeat(2_000))]);
        }
        assert_eq!(one.take().unwrap_err(), Overflow);
        assert!(one.queue.waiting.lock().notifications.is_empty(), "nothing is kept for it");
    }
}
