//! Reads that are transactions of their own and were placed at once.
//!
//! Nearly all reads are. They hold no items, have one replica for one statement, and teach the predictor nothing; so of
//! them only that is kept which is needed when they are answered, or when their replica is lost before that.

use super::txn::{Pending, Tables, Txn};
use super::{
    Begin, Effect, How, Onecopy, OpId, Outcome, Refusal, ReplicaId, Statement, StatementKind, TxnId,
};

/// The only statement of such a transaction.
const OP: OpId = OpId(0);

#[derive(Debug)]
pub(super) struct LoneRead {
    statement: Statement,
    replica: ReplicaId,
    /// The time that was expected of it when it was sent.
    expected_ns: f64,
}

impl Onecopy {
    /// A transaction of one statement. If it only reads, it is executed by any replica that contains the last writers of its
    /// items (design 3.5).
    pub(super) fn on_autocommit(&mut self, begin: Begin, statement: Statement, effects: &mut Vec<Effect>) {
        let txn = begin.txn;
        if statement.kind == StatementKind::Read
            && let Some(replica) = self.choose_for_read(&statement.access, effects)
        {
            let expected_ns = self.costs.expected_ns(statement.class);
            self.replicas.get_mut(replica).load.add(expected_ns);
            effects.push(Effect::Execute { txn, op: OP, replica, how: How::Alone, hold: false });
            self.lone_reads.insert(txn, LoneRead { statement, replica, expected_ns });
            return;
        }
        self.on_begin(&begin, true);
        self.on_statement(txn, OP, statement, effects);
    }

    /// Its answer has come, or will not. Says whether it was one of these.
    pub(super) fn on_lone_read_executed(
        &mut self,
        txn: TxnId,
        outcome: &Outcome,
        elapsed_ns: u64,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(read) = self.forget_lone_read(txn) else { return false };
        match outcome {
            Outcome::Done { .. } => {
                let cost_ns = self.replicas.get(read.replica).load.share_of_one_more(elapsed_ns);
                self.costs.learn(read.statement.class, cost_ns);
            }
            Outcome::Failed | Outcome::TooLarge => {}
            Outcome::Lost { answer_begun: true } => {
                effects.push(Effect::Refuse { txn, op: OP, reason: Refusal::AnswerCut });
            }
            // It is placed again, and may have to wait this time.
            Outcome::Lost { answer_begun: false } => {
                let mut open = Txn::of_lone_read();
                // It is the first.
                let _ = open.may_lose(read.replica, self.replicas.get(read.replica).ups);
                let before = open.mark();
                open.pending = Some(Pending::new(OP, read.statement, Tables::new(), before));
                self.txns.insert(txn, open);
                self.place_single_read(txn, effects);
            }
        }
        true
    }

    /// How many are under way on a replica.
    pub(super) fn lone_reads_on(&self, replica: ReplicaId) -> usize {
        self.lone_reads.values().filter(|read| read.replica == replica).count()
    }

    /// Its replica has nothing to do for it any more.
    pub(super) fn forget_lone_read(&mut self, txn: TxnId) -> Option<LoneRead> {
        let read = self.lone_reads.remove(&txn)?;
        self.replicas.get_mut(read.replica).load.remove(read.expected_ns);
        Some(read)
    }
}
