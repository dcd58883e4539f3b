//! The replicas of the served database, by their numbers: replicas are added while everything runs, and a number whose replica
//! has left is not given again.

use std::ops::Index;
use std::sync::Arc;

use onecopy_core::ReplicaId;

use crate::pool::Pool;

/// The lanes of every replica that there has been since the start.
pub struct Pools(boxcar::Vec<Arc<Pool>>);

impl Pools {
    pub fn new(pools: impl IntoIterator<Item = Arc<Pool>>) -> Pools {
        Pools(pools.into_iter().collect())
    }

    /// To be called when everything else knows the replica already: whoever looks through all of them finds it from now on.
    pub fn add(&self, pool: Arc<Pool>) {
        self.0.push(pool);
    }

    /// Numbers that were given.
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// All of them, also those that have left.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pool>> + Clone {
        self.0.iter().map(|(_, pool)| pool)
    }

    /// Those that are of the set, whether or not they serve.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Pool>> + Clone {
        self.iter().filter(|pool| !pool.is_gone())
    }

    /// Those that serve, the ones last that are about to leave for good.
    pub fn in_service(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let up = |leaving: bool| self.iter().filter(move |pool| pool.is_up() && pool.is_leaving() == leaving);
        up(false).chain(up(true))
    }

    /// The member of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Pool>> {
        self.members().find(|pool| pool.name() == name)
    }

    pub fn of(&self, replica: ReplicaId) -> &Arc<Pool> {
        &self.0[usize::from(replica.0)]
    }
}

impl Index<usize> for Pools {
    type Output = Arc<Pool>;

    fn index(&self, number: usize) -> &Arc<Pool> {
        &self.0[number]
    }
}
