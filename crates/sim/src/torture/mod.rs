//! Torture: every fault at every step, on one seed after the other. First everything breaks and safety is demanded; when
//! the clients are done nothing breaks any more, and progress is demanded: a transaction that conflicts with all others
//! must get through, and every replica must contain everything.
//!
//! A seed that fails is replayed exactly, and shrunk: [`shrink`] leaves out what the failure does not need. What is left
//! is a file that replays it, too.

mod file;
mod shrink;

use onecopy_core::protocol::onecopy::Onecopy;

use crate::planted::Planting;
use crate::{Outcome, Scenario, run};

pub use file::Unreadable;
pub use shrink::{ATTEMPTS_MAX, Shrunk, shrink};

/// What is run: a scenario under the protocol `onecopy`, perhaps with a bug in it.
#[derive(Clone, Debug)]
pub struct Case {
    /// What the run is like.
    pub scenario: Scenario,
    /// The bug that is planted.
    pub plant: Option<&'static Planting>,
}

impl Case {
    /// The case of a seed, under all faults.
    #[must_use]
    pub fn of_seed(seed: u64, plant: Option<&'static Planting>) -> Case {
        Case { scenario: Scenario::torture(seed), plant }
    }

    /// Runs it to its end and judges it.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let tuning = self.scenario.tuning;
        match self.plant {
            Some(bug) => run(&self.scenario, &|replicas, decided| (bug.make)(replicas, decided, tuning)),
            None => {
                run(&self.scenario, &|replicas, decided| Box::new(Onecopy::tuned(replicas, decided, tuning)))
            }
        }
    }

    /// The same with the text of its trace.
    #[must_use]
    pub fn run_with_trace(&self) -> Outcome {
        let scenario = Scenario { keep_trace: true, ..self.scenario.clone() };
        Case { scenario, plant: self.plant }.run()
    }
}
