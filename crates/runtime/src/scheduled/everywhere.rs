//! The scheduler's effects for protocols that execute writes on every replica: what concerns a replica goes to the
//! transaction's part there, what concerns the client to its session.

use hashbrown::HashMap;
use onecopy_core::{Csn, Decision, Effect, Event, How, ReplicaId, TxnId};

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::spread::{Errand, Order, Spread};
use super::turns::{Due, Turns};

/// Beside the core: the transactions that it executes everywhere, and the turns of their commits.
pub struct Everywhere {
    spreads: HashMap<TxnId, Arc<Spread>>,
    turns: Box<[Turns]>,
}

/// What is left of an effect for those who carry out the others.
pub enum Rest {
    Nothing,
    Effect(Effect),
    /// An agent is to apply these decisions, in order.
    Apply(ReplicaId, Csn, Csn),
}

impl Everywhere {
    pub fn new(replicas: usize) -> Everywhere {
        Everywhere { spreads: HashMap::new(), turns: (0..replicas).map(|_| Turns::default()).collect() }
    }

    /// The transaction's orders for replicas go here from now on.
    pub fn add(&mut self, spread: &Arc<Spread>) {
        self.spreads.insert(spread.txn, spread.clone());
    }

    /// Something is about to be told to the core. What has its turn by it is appended.
    pub fn notice(&mut self, event: &Event, errands: &mut impl Extend<Errand>) -> Rest {
        let turns = |replica: ReplicaId| usize::from(replica.0);
        match event {
            Event::ReplicaUp { replica, applied } => {
                if let Some(turns) = self.turns.get_mut(turns(*replica)) {
                    turns.enter(*applied);
                }
            }
            Event::ReplicaDown { replica } => {
                if let Some(turns) = self.turns.get_mut(turns(*replica)) {
                    turns.leave();
                }
            }
            Event::Applied { replica, csn } => {
                let next = self.turns.get_mut(turns(*replica)).and_then(|turns| turns.reached(*csn));
                if let Some((csn, due)) = next {
                    return self.do_now(*replica, csn, due, errands);
                }
            }
            _ => {}
        }
        Rest::Nothing
    }

    /// Carries out an effect as far as it concerns transactions that every replica executes.
    pub fn carry_out(&mut self, effect: Effect, errands: &mut impl Extend<Errand>) -> Rest {
        match effect {
            Effect::Execute { txn, op, replica, how: How::Home { open }, hold: true } => {
                match self.spreads.get(&txn) {
                    Some(spread) => {
                        errands.extend(spread.post(replica, Order::Execute { op, open }));
                        Rest::Nothing
                    }
                    // Nobody's statement: whoever asked only wants to know that it may run.
                    None => Rest::Effect(effect),
                }
            }
            Effect::Leave { txn, replica } if self.spreads.contains_key(&txn) => {
                if let Some(spread) = self.spreads.get(&txn) {
                    errands.extend(spread.post(replica, Order::Leave));
                }
                Rest::Nothing
            }
            Effect::CommitAt { txn, replica, csn } => {
                self.at_its_turn(replica, csn, Due::Commit(txn), errands)
            }
            Effect::Apply { replica, from, to } => self.at_its_turn(replica, from, Due::Apply(to), errands),
            Effect::Finish { txn, op, replica: Some(replica) } => {
                if let Some(spread) = self.spreads.get(&txn) {
                    errands.extend(spread.post(replica, Order::Finish));
                }
                // It wrote nothing, so its client need not wait for that.
                Rest::Effect(Effect::Finish { txn, op, replica: None })
            }
            Effect::Append { decision: Decision::Commit(txn), .. } => {
                if let Some(spread) = self.spreads.get(&txn) {
                    spread.is_decided.store(true, Ordering::Release);
                    if spread.changes_definitions {
                        spread.shared.classifier.begin_change();
                    }
                }
                Rest::Effect(effect)
            }
            Effect::Acknowledge { txn, .. } => {
                let spread = self.spreads.get(&txn).filter(|spread| spread.changes_definitions);
                errands.extend(spread.map(|spread| Errand::ReadDefinitions(spread.clone())));
                Rest::Effect(effect)
            }
            Effect::Forget { txn } => {
                self.spreads.remove(&txn);
                Rest::Effect(effect)
            }
            effect => Rest::Effect(effect),
        }
    }

    fn at_its_turn(
        &mut self,
        replica: ReplicaId,
        csn: Csn,
        due: Due,
        errands: &mut impl Extend<Errand>,
    ) -> Rest {
        let Some(turns) = self.turns.get_mut(usize::from(replica.0)) else { return Rest::Nothing };
        match turns.offer(csn, due) {
            Some(due) => self.do_now(replica, csn, due, errands),
            None => Rest::Nothing,
        }
    }

    fn do_now(&self, replica: ReplicaId, csn: Csn, due: Due, errands: &mut impl Extend<Errand>) -> Rest {
        match due {
            Due::Apply(to) => Rest::Apply(replica, csn, to),
            Due::Commit(txn) => {
                match self.spreads.get(&txn) {
                    Some(spread) => errands.extend(spread.post(replica, Order::Commit { csn })),
                    None => tracing::error!(?txn, %csn, "commit a transaction that is over"),
                }
                Rest::Nothing
            }
        }
    }
}
