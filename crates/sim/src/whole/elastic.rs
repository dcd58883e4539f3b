//! Workers that are hired and released while whole transactions run, as the core's autoscaler decides.
//!
//! Who is hired is a copy of another replica, and serves after a time, when it has got from the log what it lacks. Who is released
//! finishes what it was given, and leaves for good.

use onecopy_core::autoscaler::{Autoscaler, Change, Costs, Demand};
use onecopy_core::map::HashMap;
use onecopy_core::{Event, Instant, ReplicaId, Status};

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
    /// Whether workers are hired for what is forecast, too.
    pub forecasts: bool,
}

#[derive(Debug)]
pub(super) struct Scaling {
    elastic: Elastic,
    autoscaler: Autoscaler,
    /// Hired, and not up yet.
    coming: Vec<ReplicaId>,
    /// Hired, and since when they serve.
    serving: HashMap<ReplicaId, Instant>,
    /// Transactions that were committed at the last look.
    committed: usize,
}

impl Scaling {
    pub(super) fn new(elastic: &Elastic) -> Scaling {
        let mut autoscaler =
            Autoscaler::new(elastic.costs, u64::from(elastic.least), u64::from(elastic.most));
        if elastic.forecasts {
            autoscaler = autoscaler.forecasting();
        }
        Scaling {
            elastic: *elastic,
            autoscaler,
            coming: Vec::new(),
            serving: HashMap::default(),
            committed: 0,
        }
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
        scaling.coming.retain(|replica| {
            let is_up = status.replicas[usize::from(replica.0)].up;
            if is_up {
                scaling.serving.insert(*replica, now);
            }
            !is_up
        });
        let staying = in_use(&status);
        let in_use = staying.len() as u64;
        let coming = scaling.coming.len() as u64;
        let is_idle = |replica: &ReplicaId| !status.replicas[usize::from(replica.0)].busy;
        let idle: Vec<ReplicaId> = staying.iter().copied().filter(is_idle).collect();
        let waiting = status.awaiting_worker;
        let committed = self.measured.committed.len();
        let finished = (committed - std::mem::replace(&mut scaling.committed, committed)) as u64;
        let demand = Demand { waiting, idle: idle.len() as u64, in_use, coming, finished };
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
            let Some(scaling) = &mut self.scaling else { continue };
            // One that leaves early is paid for its least time all the same.
            if let Some(since) = scaling.serving.remove(&replica) {
                let short = scaling.elastic.costs.least_ns.saturating_sub(self.queue.now().since_ns(since));
                self.measured.scaled.paid_s += short as f64 / 1e9;
            }
        }
    }
}

/// Workers that serve and are to stay.
fn in_use(status: &Status) -> Vec<ReplicaId> {
    let all = (0..).map(ReplicaId).zip(&status.replicas);
    all.filter(|(_, of)| of.up && !of.leaving && !of.gone).map(|(replica, _)| replica).collect()
}
