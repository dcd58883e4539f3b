//! Lanes of one replica, by user, reused between statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashMap;
use onecopy_core::ReplicaId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lane::{Lane, LaneError};
use crate::postgres::connect::{Connector, Credentials};
use crate::scheduler::AgentQueue;

/// The lanes of one replica.
pub struct Pool {
    pub replica: ReplicaId,
    pub connector: Connector,
    #[allow(clippy::vec_box, reason = "a lane is lent and given back more often than it is used in place")]
    idle: Mutex<HashMap<String, Vec<Box<Lane>>>>,
    permits: Arc<Semaphore>,
    incarnation: AtomicU64,
    up: AtomicBool,
    agent: Arc<AgentQueue>,
}

/// A lane that is given back by [`Pool::give_back`], or closed when dropped.
pub struct Lent {
    pub lane: Box<Lane>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub fn new(replica: ReplicaId, connector: Connector, lanes_max: usize, agent: Arc<AgentQueue>) -> Pool {
        Pool {
            replica,
            connector,
            idle: Mutex::new(HashMap::new()),
            permits: Arc::new(Semaphore::new(lanes_max)),
            incarnation: AtomicU64::new(0),
            up: AtomicBool::new(false),
            agent,
        }
    }

    /// A lane for a user; waits while all are lent.
    pub async fn lend(&self, who: &Credentials) -> Result<Lent, LaneError> {
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.permits.clone().acquire_owned().await.map_err(|_| LaneError::Closed)?,
        };
        let incarnation = self.incarnation.load(Ordering::Acquire);
        if !self.up.load(Ordering::Acquire) {
            return Err(LaneError::Closed);
        }
        let idle = self.idle.lock().get_mut(&who.user).and_then(Vec::pop);
        if let Some(lane) = idle
            && lane.incarnation == incarnation
        {
            return Ok(Lent { lane, _permit: permit });
        }
        let mut lane = Box::new(self.connector.connect_marked(who, incarnation).await?);
        if self.incarnation.load(Ordering::Acquire) != incarnation {
            return Err(LaneError::Closed);
        }
        lane.incarnation = incarnation;
        Ok(Lent { lane, _permit: permit })
    }

    /// Takes back a lane on which nothing is open and nothing is outstanding.
    pub fn give_back(&self, who: &Credentials, lent: Lent) {
        if lent.lane.incarnation != self.incarnation.load(Ordering::Acquire) {
            return;
        }
        let mut idle = self.idle.lock();
        match idle.get_mut(&who.user) {
            Some(lanes) => lanes.push(lent.lane),
            None => drop(idle.insert(who.user.clone(), vec![lent.lane])),
        }
    }

    /// Lanes lent at this moment.
    pub fn lent(&self, lanes_max: usize) -> usize {
        lanes_max - self.permits.available_permits()
    }

    /// Lanes that wait to be lent.
    pub fn idle(&self) -> usize {
        self.idle.lock().values().map(Vec::len).sum()
    }

    /// A lane was lost: the replica is to be fenced before it serves again.
    pub fn suspect(&self, incarnation: u64, reason: &LaneError) {
        if incarnation == self.incarnation.load(Ordering::Acquire) && self.up.load(Ordering::Acquire) {
            self.agent.suspect(&reason.to_string());
        }
    }

    /// A lane could not be opened, or was found closed: the same.
    pub fn suspect_now(&self, reason: &LaneError) {
        self.suspect(self.incarnation.load(Ordering::Acquire), reason);
    }

    /// The replica was fenced: only lanes opened from now on may be used.
    pub fn open(&self) -> u64 {
        self.idle.lock().clear();
        let incarnation = self.incarnation.fetch_add(1, Ordering::AcqRel) + 1;
        self.up.store(true, Ordering::Release);
        incarnation
    }

    /// The replica must not be used.
    pub fn close(&self) {
        self.up.store(false, Ordering::Release);
        self.incarnation.fetch_add(1, Ordering::AcqRel);
        self.idle.lock().clear();
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }
}
