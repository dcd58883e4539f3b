//! Advisory locks: one table for all sessions of the served database. They protect nothing on the replicas, so no
//! replica needs to know of them.
//!
//! Requests for one key wait first come, first served. Whoever holds the key already goes ahead of those that wait for
//! it (PostgreSQL's rule: they could not be served before it anyway). A circle of waiting sessions is found when it
//! closes: if somebody in it waits only for its turn, and not for a holder, it is served out of turn; else the
//! session that closed the circle is refused.
//!
//! The rules ([`Table`]) know no time and no waiting; [`AdvisoryLocks`] puts them behind a lock, and
//! [`SessionLocks`] is what one session holds of them, given back when it is dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use onecopy_core::SessionId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What is locked. One number and two numbers are different keys, whatever the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    One(i64),
    Two(i32, i32),
}

/// How it is locked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Compatible with itself.
    Shared,
    Exclusive,
}

impl Mode {
    fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }

    /// As PostgreSQL's messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Shared => "ShareLock",
            Mode::Exclusive => "ExclusiveLock",
        }
    }
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Granted,
    /// It waits; the grant is told later.
    Waits,
    /// It would have to wait, and does not want to.
    Busy,
    /// Waiting would close a circle that nothing else breaks.
    Deadlock,
    /// The table holds as much as it may.
    Full,
}

/// The table: who holds what, and who waits for it.
#[derive(Default)]
struct Table {
    locks: HashMap<Key, Lock>,
    /// What each waiting session waits for; a session does one thing at a time.
    waiting: HashMap<SessionId, Key>,
    /// Pairs of a session and a key that it holds.
    held: usize,
    held_max: usize,
}

#[derive(Default)]
struct Lock {
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
}

struct Holder {
    session: SessionId,
    shared: u64,
    exclusive: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiter {
    session: SessionId,
    mode: Mode,
}

impl Holder {
    fn conflicts(&self, mode: Mode) -> bool {
        self.exclusive > 0 || mode == Mode::Exclusive
    }

    fn count(&mut self, mode: Mode) -> &mut u64 {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }
}

impl Lock {
    fn fits_holders(&self, waiter: Waiter) -> bool {
        !self.holders.iter().any(|holder| holder.session != waiter.session && holder.conflicts(waiter.mode))
    }

    /// Where a request belongs in the queue: before whoever waits for what its session holds already.
    fn place(&self, session: SessionId) -> usize {
        let mine = self.holders.iter().find(|holder| holder.session == session);
        mine.and_then(|mine| self.queue.iter().position(|waiter| mine.conflicts(waiter.mode)))
            .unwrap_or(self.queue.len())
    }

    fn hold(&mut self, waiter: Waiter) -> bool {
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.session == waiter.session) {
            *holder.count(waiter.mode) += 1;
            return false;
        }
        let mut holder = Holder { session: waiter.session, shared: 0, exclusive: 0 };
        *holder.count(waiter.mode) = 1;
        self.holders.push(holder);
        true
    }
}

/// Somebody in a circle: who waits, and whether only for its turn.
struct Link {
    session: SessionId,
    for_turn: bool,
}

impl Table {
    fn new(held_max: usize) -> Table {
        Table { held_max, ..Table::default() }
    }

    /// Asks for a key once more; `served` receives other sessions that are served on this occasion.
    fn request(
        &mut self,
        session: SessionId,
        key: Key,
        mode: Mode,
        wait: bool,
        served: &mut Vec<SessionId>,
    ) -> Answer {
        let waiter = Waiter { session, mode };
        let full = self.held >= self.held_max;
        let lock = self.locks.entry(key).or_default();
        let new = !lock.holders.iter().any(|holder| holder.session == session);
        if full && new {
            self.tidy(key);
            return Answer::Full;
        }
        let place = lock.place(session);
        let ahead = lock.queue.iter().take(place).any(|other| other.mode.conflicts(mode));
        if !ahead && lock.fits_holders(waiter) {
            self.held += usize::from(lock.hold(waiter));
            return Answer::Granted;
        }
        if !wait {
            return Answer::Busy;
        }
        lock.queue.insert(place, waiter);
        self.waiting.insert(session, key);
        while let Some(circle) = self.circle(session) {
            let out_of_turn = circle.iter().filter(|link| link.for_turn).find_map(|link| {
                let key = self.waiting.get(&link.session)?;
                let lock = self.locks.get(key)?;
                let waiter = lock.queue.iter().find(|waiter| waiter.session == link.session)?;
                lock.fits_holders(*waiter).then_some(link.session)
            });
            match out_of_turn {
                Some(other) => self.serve(other),
                None => {
                    self.withdraw(session, served);
                    return Answer::Deadlock;
                }
            }
            if out_of_turn == Some(session) {
                return Answer::Granted;
            }
            served.extend(out_of_turn);
        }
        Answer::Waits
    }

    /// Gives back one hold. The session must have it.
    fn release(&mut self, session: SessionId, key: Key, mode: Mode, served: &mut Vec<SessionId>) {
        let Some(lock) = self.locks.get_mut(&key) else { return };
        let Some(at) = lock.holders.iter().position(|holder| holder.session == session) else { return };
        let count = lock.holders[at].count(mode);
        *count = count.saturating_sub(1);
        if lock.holders[at].shared == 0 && lock.holders[at].exclusive == 0 {
            lock.holders.remove(at);
            self.held -= 1;
        }
        self.serve_queue(key, served);
    }

    /// Takes back a request that waits; false if it does not wait any more, since it was granted.
    fn withdraw(&mut self, session: SessionId, served: &mut Vec<SessionId>) -> bool {
        let Some(key) = self.waiting.remove(&session) else { return false };
        if let Some(lock) = self.locks.get_mut(&key) {
            lock.queue.retain(|waiter| waiter.session != session);
        }
        self.serve_queue(key, served);
        true
    }

    /// Serves whoever can be, in order; nobody passes one whom it would keep waiting.
    fn serve_queue(&mut self, key: Key, served: &mut Vec<SessionId>) {
        let Some(lock) = self.locks.get_mut(&key) else { return };
        let mut at = 0;
        while let Some(waiter) = lock.queue.get(at).copied() {
            let ahead = lock.queue.iter().take(at).any(|other| other.mode.conflicts(waiter.mode));
            if ahead || !lock.fits_holders(waiter) {
                at += 1;
                continue;
            }
            lock.queue.remove(at);
            self.held += usize::from(lock.hold(waiter));
            self.waiting.remove(&waiter.session);
            served.push(waiter.session);
        }
        self.tidy(key);
    }

    /// Serves one that waits, whoever stands before it.
    fn serve(&mut self, session: SessionId) {
        let Some(lock) = self.waiting.remove(&session).and_then(|key| self.locks.get_mut(&key)) else {
            return;
        };
        if let Some(at) = lock.queue.iter().position(|waiter| waiter.session == session)
            && let Some(waiter) = lock.queue.remove(at)
        {
            self.held += usize::from(lock.hold(waiter));
        }
    }

    fn tidy(&mut self, key: Key) {
        if self.locks.get(&key).is_some_and(|lock| lock.holders.is_empty() && lock.queue.is_empty()) {
            self.locks.remove(&key);
        }
    }

    /// Whom a waiting session waits for: holders, and those before it in the queue.
    fn blockers(&self, session: SessionId) -> Vec<(SessionId, bool)> {
        let Some(lock) = self.waiting.get(&session).and_then(|key| self.locks.get(key)) else {
            return Vec::new();
        };
        let Some(at) = lock.queue.iter().position(|waiter| waiter.session == session) else {
            return Vec::new();
        };
        let mode = lock.queue[at].mode;
        let holders = lock
            .holders
            .iter()
            .filter(|holder| holder.session != session && holder.conflicts(mode))
            .map(|holder| (holder.session, false));
        let before = lock.queue.iter().take(at).filter(|other| other.mode.conflicts(mode));
        holders.chain(before.map(|other| (other.session, true))).collect()
    }

    /// A circle of waiting sessions through this one, if there is one.
    fn circle(&self, start: SessionId) -> Option<Vec<Link>> {
        let mut from: HashMap<SessionId, (SessionId, bool)> = HashMap::new();
        let mut left = vec![start];
        while let Some(session) = left.pop() {
            for (blocker, for_turn) in self.blockers(session) {
                if blocker == start {
                    let mut circle = vec![Link { session, for_turn }];
                    let mut at = session;
                    while let Some((previous, for_turn)) = from.get(&at) {
                        circle.push(Link { session: *previous, for_turn: *for_turn });
                        at = *previous;
                    }
                    return Some(circle);
                }
                if !from.contains_key(&blocker) {
                    from.insert(blocker, (session, for_turn));
                    left.push(blocker);
                }
            }
        }
        None
    }
}

/// The table as sessions on several threads share it.
pub struct AdvisoryLocks(Mutex<Shared>);

struct Shared {
    table: Table,
    /// Who is to be told of its grant.
    told: HashMap<SessionId, oneshot::Sender<()>>,
}

impl Shared {
    fn tell(&mut self, served: Vec<SessionId>) {
        for session in served {
            if let Some(told) = self.told.remove(&session) {
                // One that does not listen any more finds out when it withdraws.
                let _ = told.send(());
            }
        }
    }
}

impl AdvisoryLocks {
    /// `held_max`: how many locks all sessions together may hold, one counted once a session.
    pub fn new(held_max: usize) -> AdvisoryLocks {
        AdvisoryLocks(Mutex::new(Shared { table: Table::new(held_max), told: HashMap::new() }))
    }

    pub fn held_max(&self) -> usize {
        self.0.lock().table.held_max
    }

    /// Who waits, each with those for whom: holders, and the nearest before it. Whoever stands before that one is met from there.
    pub fn waits(&self) -> Vec<(SessionId, SessionId)> {
        let shared = self.0.lock();
        let mut waits = Vec::new();
        for lock in shared.table.locks.values() {
            for (at, waiter) in lock.queue.iter().enumerate() {
                let holds =
                    |holder: &&Holder| holder.session != waiter.session && holder.conflicts(waiter.mode);
                waits
                    .extend(lock.holders.iter().filter(holds).map(|holder| (waiter.session, holder.session)));
                let nearest = lock.queue.iter().take(at).rfind(|other| other.mode.conflicts(waiter.mode));
                waits.extend(nearest.map(|other| (waiter.session, other.session)));
            }
        }
        waits
    }

    /// Tells a session that waits that it would wait for ever: what it awaits is never sent.
    pub fn refuse(&self, session: SessionId) {
        self.0.lock().told.remove(&session);
    }

    fn request(
        &self,
        session: SessionId,
        key: Key,
        mode: Mode,
        wait: bool,
    ) -> (Answer, oneshot::Receiver<()>) {
        let (tell, told) = oneshot::channel();
        let mut shared = self.0.lock();
        let mut served = Vec::new();
        let answer = shared.table.request(session, key, mode, wait, &mut served);
        if answer == Answer::Waits {
            shared.told.insert(session, tell);
        }
        shared.tell(served);
        (answer, told)
    }

    fn release(&self, session: SessionId, holds: impl IntoIterator<Item = (Key, Mode)>) {
        let mut shared = self.0.lock();
        let mut served = Vec::new();
        for (key, mode) in holds {
            shared.table.release(session, key, mode, &mut served);
        }
        shared.tell(served);
    }

    fn withdraw(&self, session: SessionId) -> bool {
        let mut shared = self.0.lock();
        let mut served = Vec::new();
        let withdrawn = shared.table.withdraw(session, &mut served);
        shared.told.remove(&session);
        shared.tell(served);
        withdrawn
    }
}

/// Until when a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    Unlocked,
    TransactionEnds,
}

/// What came of a session's request.
pub enum Taken {
    Yes,
    /// Somebody else holds it, and the request does not wait.
    No,
    /// Await this, then say how it ended by [`SessionLocks::waited`]. It fails if the waiting would never end.
    Awaits(oneshot::Receiver<()>),
    Deadlock,
    Full,
}

/// What one session holds.
pub struct SessionLocks {
    locks: Arc<AdvisoryLocks>,
    session: SessionId,
    /// Until they are unlocked, and how often.
    of_session: HashMap<(Key, Mode), u64>,
    /// Until the transaction ends, in the order in which they were taken.
    of_txn: Vec<(Key, Mode)>,
    of_txn_known: HashSet<(Key, Mode)>,
    awaited: Option<(Key, Mode, Until)>,
}

impl SessionLocks {
    pub fn new(locks: &Arc<AdvisoryLocks>, session: SessionId) -> SessionLocks {
        SessionLocks {
            locks: locks.clone(),
            session,
            of_session: HashMap::new(),
            of_txn: Vec::new(),
            of_txn_known: HashSet::new(),
            awaited: None,
        }
    }

    pub fn take(&mut self, key: Key, mode: Mode, until: Until, wait: bool) -> Taken {
        if until == Until::TransactionEnds && self.of_txn_known.contains(&(key, mode)) {
            return Taken::Yes;
        }
        let (answer, told) = self.locks.request(self.session, key, mode, wait);
        match answer {
            Answer::Granted => {
                self.note(key, mode, until);
                Taken::Yes
            }
            Answer::Waits => {
                self.awaited = Some((key, mode, until));
                Taken::Awaits(told)
            }
            Answer::Busy => Taken::No,
            Answer::Deadlock => Taken::Deadlock,
            Answer::Full => Taken::Full,
        }
    }

    /// The waiting is over, since the lock was granted or somebody gave it up. Whether the lock is held now.
    pub fn waited(&mut self) -> bool {
        let Some((key, mode, until)) = self.awaited.take() else { return false };
        if self.locks.withdraw(self.session) {
            return false;
        }
        self.note(key, mode, until);
        true
    }

    fn note(&mut self, key: Key, mode: Mode, until: Until) {
        match until {
            Until::Unlocked => *self.of_session.entry((key, mode)).or_default() += 1,
            Until::TransactionEnds => {
                self.of_txn_known.insert((key, mode));
                self.of_txn.push((key, mode));
            }
        }
    }

    /// Gives back what was taken until it is unlocked, once; false if it was not taken so.
    pub fn unlock(&mut self, key: Key, mode: Mode) -> bool {
        match self.of_session.get_mut(&(key, mode)) {
            None => return false,
            Some(1) => drop(self.of_session.remove(&(key, mode))),
            Some(count) => *count -= 1,
        }
        self.locks.release(self.session, [(key, mode)]);
        true
    }

    /// Whether anything is taken until it is unlocked.
    pub fn has_any_until_unlocked(&self) -> bool {
        !self.of_session.is_empty()
    }

    /// Gives back everything that was taken until it is unlocked.
    pub fn unlock_all(&mut self) {
        if self.of_session.is_empty() {
            return;
        }
        let holds = self.of_session.drain().flat_map(|(hold, count)| (0..count).map(move |_| hold));
        self.locks.release(self.session, holds);
    }

    /// How many were taken until the transaction ends: to go back to.
    pub fn mark(&self) -> usize {
        self.of_txn.len()
    }

    /// Gives back what the transaction has taken since a mark.
    pub fn return_to(&mut self, mark: usize) {
        if self.of_txn.len() <= mark {
            return;
        }
        let holds: Vec<(Key, Mode)> = self.of_txn.drain(mark..).collect();
        holds.iter().for_each(|hold| {
            self.of_txn_known.remove(hold);
        });
        self.locks.release(self.session, holds);
    }
}

impl Drop for SessionLocks {
    fn drop(&mut self) {
        self.waited();
        self.return_to(0);
        self.unlock_all();
    }
}

#[cfg(test)]
mod tests;
