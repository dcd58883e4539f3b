//! At which steps of the protocol a run is, for whoever counts what was hit by faults.

use onecopy_core::{Csn, OpId, ReplicaId, StatementKind, TxnId};

use super::Simulation;
use super::node::OpenTxn;
use super::replicas::{Membership, Replica};
use crate::coverage::Stage;

impl Simulation<'_> {
    /// The steps that are under way: those of one replica only there, if one is named.
    pub(super) fn stages(&self, at: Option<ReplicaId>) -> Vec<Stage> {
        let there = |id: &ReplicaId| at.is_none_or(|at| at == *id);
        let replicas = || self.replica_ids().filter(there).map(|id| &self.replicas[usize::from(id.0)]);
        Stage::ALL.into_iter().filter(|stage| self.is_under_way(*stage, &replicas)).collect()
    }

    fn is_under_way<'a, I: Iterator<Item = &'a Replica>>(
        &self,
        stage: Stage,
        replicas: &dyn Fn() -> I,
    ) -> bool {
        let any_of = |holds: &dyn Fn(&Replica) -> bool| replicas().any(holds);
        let any_txn = |holds: &dyn Fn(&TxnId, &OpenTxn) -> bool| {
            self.node.txns.iter().any(|(txn, open)| holds(txn, open))
        };
        let newest = self.replicas.iter().map(|replica| replica.database.progress()).max();
        let newest = newest.unwrap_or(Csn(0));
        match stage {
            Stage::Waiting => any_txn(&|txn, open| self.waits(*txn, open)),
            Stage::Executing => any_of(&|replica| !replica.outstanding.is_empty()),
            Stage::FirstWrite => any_of(&|replica| {
                replica
                    .outstanding
                    .iter()
                    .any(|(txn, op)| replica.lanes.contains_key(txn) && self.is_first_write(*txn, *op))
            }),
            Stage::Written => any_of(&|replica| {
                replica.lanes.keys().any(|txn| {
                    let open = self.node.txns.get(txn);
                    open.is_some_and(|open| open.decided.is_none() && !open.writes.is_empty())
                })
            }),
            Stage::Revalidating => any_of(&|replica| self.reruns(replica).any(|open| open.done_at_home == 0)),
            Stage::Moving => any_of(&|replica| self.reruns(replica).any(|open| open.done_at_home > 0)),
            Stage::Decided => self.log.durable() < self.log.end(),
            Stage::Durable => newest < self.log.durable(),
            Stage::Committed => {
                any_txn(&|_, open| open.attended && open.decided.is_some_and(|csn| csn <= newest))
            }
            Stage::Applying => any_of(&|replica| !replica.runs.is_empty()),
            Stage::Fencing => self.replicas.iter().any(|replica| {
                !replica.up
                    && matches!(
                        replica.membership,
                        Membership::Stays | Membership::Differs | Membership::Leaves
                    )
            }),
            Stage::CatchingUp => any_of(&|replica| replica.up && replica.catches_up_to.is_some()),
            Stage::Joining => self.replicas.iter().any(|replica| {
                matches!(replica.membership, Membership::AwaitingSource | Membership::AwaitingCopy(_))
            }),
            Stage::Departing => self.replicas.iter().any(|replica| replica.membership == Membership::Leaves),
        }
    }

    /// Its statement has not been sent to any replica.
    pub(super) fn waits(&self, txn: TxnId, open: &OpenTxn) -> bool {
        let Some(op) = open.awaited.filter(|op| open.begun && open.plans.contains_key(op)) else {
            return false;
        };
        let is_busy = |replica: &Replica| {
            replica.outstanding.contains(&(txn, op)) || replica.lanes.get(&txn).is_some_and(|lane| lane.busy)
        };
        let is_answered = open.answers.keys().any(|(of, _)| *of == op);
        !is_answered && !self.replicas.iter().any(is_busy)
    }

    /// Transactions that are doing again, on a replica, what they had done elsewhere.
    fn reruns<'a>(&'a self, replica: &'a Replica) -> impl Iterator<Item = &'a OpenTxn> {
        let executes = |txn: TxnId| replica.outstanding.iter().any(|(of, _)| *of == txn);
        let busy = replica.lanes.iter().filter(move |(txn, lane)| lane.busy && !executes(**txn));
        busy.filter_map(|(txn, _)| self.node.txns.get(txn))
    }

    pub(super) fn is_first_write(&self, txn: TxnId, op: OpId) -> bool {
        self.node.txns.get(&txn).is_some_and(|open| {
            let plan = open.plans.get(&op);
            open.writes.is_empty() && plan.is_some_and(|plan| plan.kind() == StatementKind::Write)
        })
    }
}
