//! Workers that are hired and released while whole transactions run, as the core's autoscaler decides.
//!
//! Who is hired is a copy of another replica, and serves after a time, when it has got from the log what it lacks. Who is released
//! finishes what it was given, and leaves for good.

use onecopy_core::autoscaler::{Autoscaler, Change, Costs, Demand};
use onecopy_core::{Event, ReplicaId, Status};

use super::failures::Happening;
use super::{Simulation, Wake};

/// When workers are hired and released.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Elastic {
    /// What they cost, and what waiting costs.
    pub costs: Costs,
    /// At least so many.
    pub least: u16,
    /// At most so many.
    pub most: u16,
    /// How often it is looked at how much there is to do, in nanoseconds.
    pub every_ns: u64,
}

#[derive(Debug)]
pub(super) struct Scaling {
    elastic: Elastic,
    autoscaler: Autoscaler,
    /// Hired, and not up yet.
    coming: Vec<ReplicaId>,
}

impl Scaling {
    pub(super) fn new(elastic: &Elastic) -> Scaling {
        let autoscaler = Autoscaler::new(elastic.costs, u64::from(elastic.least), u64::from(elastic.most));
        Scaling { elastic: *elastic, autoscaler, coming: Vec::new() }
    }

    pub(super) fn every_ns(&self) -> u64 {
        self.elastic.every_ns
    }
}

impl Simulation<'_> {
    /// Looks at how much there is to do, and changes how many there are to do it.
    pub(super) fn scale(&mut self) {
        let now = self.queue.now();
        let status = self.protocol.status();
        self.let_go(&status);
        let Some(scaling) = &mut self.scaling else { return };
        scaling.coming.retain(|replica| !status.replicas[usize::from(replica.0)].up);
        let staying = in_use(&status);
        let in_use = staying.len() as u64;
        let coming = scaling.coming.len() as u64;
        let is_idle = |replica: &&ReplicaId| self.executing[usize::from(replica.0)].is_none();
        let waiting = status.awaiting_worker;
        let demand = Demand { waiting, idle: in_use.saturating_sub(status.occupied_workers), in_use, coming };
        let every_s = scaling.elastic.every_ns as f64 / 1e9;
        // Those that are to leave are paid until they have.
        let paid = status.replicas.iter().filter(|replica| !replica.gone).count() as u64;
        let scaled = &mut self.measured.scaled;
        scaled.most = scaled.most.max(paid);
        scaled.paid_s += paid as f64 * every_s;
        scaled.waited_s += waiting as f64 * every_s;
        match scaling.autoscaler.observe(now, demand) {
            Change::None => {}
            Change::Hire(count) => (0..count).for_each(|_| self.hire(&staying)),
            Change::Release(count) => {
                let idle: Vec<ReplicaId> = staying.iter().filter(is_idle).copied().collect();
                idle.iter().rev().take(count as usize).for_each(|replica| self.release(*replica));
            }
        }
        if self.goes_on() {
            let after = self.scaling.as_ref().map_or(0, Scaling::every_ns);
            self.queue.schedule(now.plus_ns(after), Wake::Scale);
        }
    }

    fn hire(&mut self, staying: &[ReplicaId]) {
        let Some(of) = staying.first() else { return };
        self.join_as_copy_of(*of);
        let new = ReplicaId(self.executing.len() as u16 - 1);
        let Some(scaling) = &mut self.scaling else { return };
        scaling.coming.push(new);
        let after = scaling.elastic.costs.start_ns;
        self.measured.scaled.hired += 1;
        self.in_ns(after, Happening::Return(new));
    }

    fn release(&mut self, replica: ReplicaId) {
        self.measured.scaled.released += 1;
        self.feed_at_home(Event::ReplicaLeaving { replica });
    }

    /// Who is to leave and has finished leaves.
    fn let_go(&mut self, status: &Status) {
        let all = (0..).map(ReplicaId).zip(&status.replicas);
        for (replica, _) in all.filter(|(_, of)| of.leaving && of.open == 0) {
            self.remove(replica);
        }
    }
}

/// Workers that serve and are to stay.
fn in_use(status: &Status) -> Vec<ReplicaId> {
    let all = (0..).map(ReplicaId).zip(&status.replicas);
    all.filter(|(_, of)| of.up && !of.leaving && !of.gone).map(|(replica, _)| replica).collect()
}
