//! Shrinking: what a failure does not need is left out, greedily, as long as the same promise is still broken.
//!
//! Faults go first, then clients and their transactions, then replicas and what makes a run manifold. Each attempt is a
//! run, so the number of attempts bounds the time.

use super::Case;
use crate::{Mix, Scenario};

/// So many attempts make most cases as small as they get.
pub const ATTEMPTS_MAX: usize = 2_000;

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smallest case that was found.
    pub case: Case,
    /// How many runs it took.
    pub attempts: usize,
}

/// Makes a case smaller that fails with this kind of failure. `on_attempt` hears of each attempt with what is the
/// smallest so far.
pub fn shrink(
    case: &Case,
    kind: &str,
    attempts_max: usize,
    on_attempt: &mut dyn FnMut(usize, &Case),
) -> Shrunk {
    let mut shrinking = Shrinking { best: case.clone(), kind, attempts: 0, attempts_max, on_attempt };
    loop {
        let before = shrinking.best.scenario.clone();
        shrinking.fewer_faults();
        shrinking.fewer_clients();
        shrinking.fewer_transactions();
        shrinking.simpler();
        if shrinking.best.scenario == before || shrinking.is_over() {
            return Shrunk { case: shrinking.best, attempts: shrinking.attempts };
        }
    }
}

struct Shrinking<'a> {
    best: Case,
    kind: &'a str,
    attempts: usize,
    attempts_max: usize,
    on_attempt: &'a mut dyn FnMut(usize, &Case),
}

impl Shrinking<'_> {
    fn is_over(&self) -> bool {
        self.attempts >= self.attempts_max
    }

    /// Keeps what `change` makes of the best case, if it is another one and fails alike. Whether it did.
    fn keep_if(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        let mut case = self.best.clone();
        change(&mut case.scenario);
        if self.is_over() || case.scenario == self.best.scenario {
            return false;
        }
        self.attempts += 1;
        let fails = case.run().failures.iter().any(|failure| failure.kind() == self.kind);
        if fails {
            self.best = case;
        }
        (self.on_attempt)(self.attempts, &self.best);
        fails
    }

    /// All of them at once, then halves, and so on down to each by itself.
    fn fewer_faults(&mut self) {
        let mut size = self.best.scenario.breakages.len();
        while size > 0 {
            let mut from = 0;
            while from < self.best.scenario.breakages.len() {
                let to = (from + size).min(self.best.scenario.breakages.len());
                if !self.keep_if(|scenario| _ = scenario.breakages.drain(from..to)) {
                    from = to;
                }
            }
            size /= 2;
        }
    }

    fn fewer_clients(&mut self) {
        while self.keep_if(|scenario| scenario.clients = (scenario.clients / 2).max(1)) {}
        while self.keep_if(|scenario| scenario.clients = (scenario.clients - 1).max(1)) {}
        let fewer = |by: fn(u32) -> u32| {
            move |scenario: &mut Scenario| {
                scenario.transactions_per_client = by(scenario.transactions_per_client).max(1);
            }
        };
        while self.keep_if(fewer(|count| count / 2)) {}
        while self.keep_if(fewer(|count| count - 1)) {}
    }

    /// Leaves single transactions out, many at once first.
    fn fewer_transactions(&mut self) {
        let all = |of: &Scenario| of.clients as u64 * u64::from(of.transactions_per_client);
        let count = all(&self.best.scenario);
        // Of what does not exist any more nothing can be left out.
        self.best.scenario.left_out.retain(|nth| *nth < count);
        let mut size = count / 2;
        while size > 0 {
            let mut from = 0;
            while from < count {
                let to = (from + size).min(count);
                self.keep_if(|scenario| scenario.left_out.extend(from..to));
                from = to;
            }
            size /= 2;
        }
    }

    fn simpler(&mut self) {
        while self.keep_if(|scenario| scenario.replicas = (scenario.replicas - 1).max(1)) {}
        while self.keep_if(|scenario| scenario.keys = (scenario.keys - 1).max(1)) {}
        self.keep_if(|scenario| scenario.lost_commits_max = 0);
        self.keep_if(|scenario| scenario.captured_per_mille = 0);
        self.keep_if(|scenario| scenario.apply_batch_max = 1);
        self.keep_if(|scenario| scenario.declared = false);
        let accidents: [fn(&mut Mix); 4] = [
            |mix| mix.rollback_per_mille = 0,
            |mix| mix.vanish_per_mille = 0,
            |mix| mix.cancel_per_mille = 0,
            |mix| mix.stall_per_mille = 0,
        ];
        for accident in accidents {
            self.keep_if(|scenario| accident(&mut scenario.mix));
        }
    }
}
