//! Replicas as the scheduler sees them: in service or not, how loaded, and where table locks stand in the way.

use crate::ids::ReplicaId;
use crate::item::TableId;
use crate::load::Load;
use crate::map::HashMap;
use crate::protocol::ReplicaStatus;
use crate::table_queues::{LockMode, TableLocks};
use crate::table_versions::Reached;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Down,
    /// It takes part in everything that starts now, behind what it has missed.
    CatchingUp,
    Up,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) service: Service,
    pub(super) load: Load,
    pub(super) reads: u64,
    last_chosen: u64,
    /// The versions that are known to be there, where versions decide.
    pub(super) reached: Reached,
    /// How many transactions that have not let go here write each table, and how many such locks there are in all.
    writers: HashMap<TableId, u32>,
    writers_of_any: u32,
}

impl Replica {
    /// Forgets everything that concerned its connections.
    pub(super) fn reset(&mut self, service: Service) {
        self.service = service;
        self.load = Load::default();
        self.reached = Reached::default();
        self.writers.clear();
        self.writers_of_any = 0;
    }

    pub(super) fn lock(&mut self, locks: &TableLocks) {
        for (table, _) in locks.iter().filter(|(_, mode)| *mode == LockMode::Write) {
            *self.writers.entry(table).or_insert(0) += 1;
            self.writers_of_any += 1;
        }
    }

    pub(super) fn unlock(&mut self, locks: &TableLocks) {
        for (table, _) in locks.iter().filter(|(_, mode)| *mode == LockMode::Write) {
            if let Some(count) = self.writers.get_mut(&table) {
                *count -= 1;
                self.writers_of_any -= 1;
                if *count == 0 {
                    self.writers.remove(&table);
                }
            }
        }
    }

    /// Whether a reader of these tables would meet a writer.
    pub(super) fn conflicts_with_reader(&self, locks: &TableLocks) -> bool {
        if self.writers.contains_key(&TableId::ALL) {
            return !locks.is_empty();
        }
        locks.iter().any(|(table, _)| match table {
            TableId::ALL => self.writers_of_any > 0,
            table => self.writers.contains_key(&table),
        })
    }
}

#[derive(Debug)]
pub(super) struct Replicas {
    replicas: Vec<Replica>,
    choices: u64,
}

impl Replicas {
    pub(super) fn new(count: usize) -> Replicas {
        let down = || Replica {
            service: Service::Down,
            load: Load::default(),
            reads: 0,
            last_chosen: 0,
            reached: Reached::default(),
            writers: HashMap::default(),
            writers_of_any: 0,
        };
        Replicas { replicas: (0..count).map(|_| down()).collect(), choices: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.replicas.len()
    }

    pub(super) fn get(&self, id: ReplicaId) -> &Replica {
        &self.replicas[usize::from(id.0)]
    }

    pub(super) fn get_mut(&mut self, id: ReplicaId) -> &mut Replica {
        &mut self.replicas[usize::from(id.0)]
    }

    /// Those that are sent messages: up or catching up.
    pub(super) fn serving(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        let serving: Vec<ReplicaId> =
            self.ids().filter(|id| self.get(*id).service != Service::Down).collect();
        serving.into_iter()
    }

    /// Those that are up; if none is, those that catch up.
    pub(super) fn best(&self) -> Vec<ReplicaId> {
        let up: Vec<ReplicaId> = self.ids().filter(|id| self.get(*id).service == Service::Up).collect();
        if up.is_empty() { self.serving().collect() } else { up }
    }

    /// The least loaded of these, for a read.
    pub(super) fn choose(&mut self, among: impl IntoIterator<Item = ReplicaId>) -> Option<ReplicaId> {
        let chosen = self.least_loaded(among)?;
        self.get_mut(chosen).reads += 1;
        Some(chosen)
    }

    /// The least loaded of these, of equals the one that was not chosen for longest (CAS 4.10).
    pub(super) fn least_loaded(&mut self, among: impl IntoIterator<Item = ReplicaId>) -> Option<ReplicaId> {
        let chosen = among.into_iter().min_by(|a, b| {
            let (a, b) = (self.get(*a), self.get(*b));
            let by_load = a.load.outstanding_ns().total_cmp(&b.load.outstanding_ns());
            by_load.then(a.last_chosen.cmp(&b.last_chosen))
        })?;
        self.choices += 1;
        let choices = self.choices;
        self.get_mut(chosen).last_chosen = choices;
        Some(chosen)
    }

    /// What the proxies know is added by them.
    pub(super) fn status(&self) -> Vec<ReplicaStatus> {
        let status = |replica: &Replica| ReplicaStatus {
            up: replica.service == Service::Up,
            outstanding_ns: replica.load.outstanding_ns(),
            reads: replica.reads,
            ..ReplicaStatus::default()
        };
        self.replicas.iter().map(status).collect()
    }

    fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.replicas.len() as u16).map(ReplicaId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TableId = TableId(1);
    const B: TableId = TableId(2);

    fn locks(table: TableId, mode: LockMode) -> TableLocks {
        TableLocks::of_tables([(table, mode)])
    }

    #[test]
    fn a_reader_meets_writers_of_its_tables_and_of_the_whole() {
        let mut replicas = Replicas::new(1);
        let replica = replicas.get_mut(ReplicaId(0));
        let reads = |table| locks(table, LockMode::Read);
        replica.lock(&locks(A, LockMode::Write));
        replica.lock(&reads(B));
        assert!(replica.conflicts_with_reader(&reads(A)));
        assert!(!replica.conflicts_with_reader(&reads(B)));
        assert!(replica.conflicts_with_reader(&reads(TableId::ALL)));
        replica.unlock(&locks(A, LockMode::Write));
        assert!(!replica.conflicts_with_reader(&reads(TableId::ALL)));
        replica.lock(&locks(TableId::ALL, LockMode::Write));
        assert!(replica.conflicts_with_reader(&reads(B)));
        assert!(!replica.conflicts_with_reader(&TableLocks::default()));
    }
}
