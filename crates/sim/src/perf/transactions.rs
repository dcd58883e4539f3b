//! A workload's transactions, each by itself: for drivers to which they come whole and at rates that do not depend on answers.

use onecopy_core::AccessSet;
use onecopy_workload::{Action, Client, Reply, Rows, StatementId, Value};
use thiserror::Error;

use super::classes::Classes;
use super::items::{Items, ItemsError};
use super::profile::{Profile, ProfileError};
use super::workload::{Workload, opening};

/// Why a workload's transactions cannot be drawn.
#[derive(Debug, Error)]
pub enum TransactionsError {
    /// The profile is not for it.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Its items cannot be used.
    #[error(transparent)]
    Items(#[from] ItemsError),
}

/// One transaction.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Transaction {
    /// The rows and keys that its statements read and write.
    pub access: AccessSet,
    /// Whether it writes.
    pub writes: bool,
    /// CPU time of its statements on an idle database, in nanoseconds.
    pub executing_ns: u64,
    /// Of those of them that write.
    pub writing_ns: u64,
}

/// Users who walk one after the other, as far as the end of their next transaction.
pub struct Transactions {
    workload: Box<dyn Workload>,
    classes: Classes,
    items: Items,
    users: Vec<(Box<dyn Client>, Reply)>,
    next: usize,
}

impl Transactions {
    /// So many users of a workload, at costs of a profile.
    ///
    /// # Errors
    /// If the profile, or the workload's items, do not fit.
    pub fn new(
        workload: Box<dyn Workload>,
        profile: &Profile,
        seed: u64,
        users: u32,
    ) -> Result<Transactions, TransactionsError> {
        let catalogue = workload.catalogue();
        Ok(Transactions {
            classes: Classes::new(catalogue, profile, 1)?,
            items: Items::parse(workload.items(), catalogue)?,
            users: (0..users).map(|number| (workload.user(seed, number, users), Reply::Done)).collect(),
            workload,
            next: 0,
        })
    }

    /// What to commit costs, in nanoseconds.
    #[must_use]
    pub fn commit_ns(&self) -> u64 {
        self.classes.commit_ns
    }

    /// What applying the writes of a transaction costs, with their commit, in nanoseconds.
    #[must_use]
    pub fn apply_ns(&self, transaction: &Transaction) -> u64 {
        self.classes.apply_ns(transaction.writing_ns)
    }

    /// The next one.
    pub fn draw(&mut self) -> Transaction {
        let place = self.next;
        self.next = (place + 1) % self.users.len();
        let (mut transaction, mut is_open) = (Transaction::default(), false);
        loop {
            let (user, reply) = &mut self.users[place];
            let reply_to = std::mem::replace(reply, Reply::Done);
            match user.next(opening(), reply_to) {
                Action::Think { .. } => {}
                Action::Begin(_) => is_open = true,
                Action::Execute(statement, params) => {
                    self.note(&mut transaction, statement, &params);
                    let rows: Rows = self.workload.answer(statement, &params);
                    self.users[place].1 = Reply::Rows(rows);
                    if !is_open {
                        return transaction;
                    }
                }
                Action::Commit if transaction.executing_ns > 0 => return transaction,
                Action::Commit => is_open = false,
                // It asks for nothing that lasts.
                Action::Rollback => (transaction, is_open) = (Transaction::default(), false),
            }
        }
    }

    fn note(&self, transaction: &mut Transaction, statement: StatementId, params: &[Value]) {
        let class = self.classes.of(statement);
        transaction.executing_ns += class.cost_ns;
        if class.statement.kind == onecopy_core::StatementKind::Write {
            transaction.writes = true;
            transaction.writing_ns += class.cost_ns;
        }
        for access in self.items.access(statement, params) {
            if !transaction.access.contains(&access) {
                transaction.access.push(access);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use onecopy_workload::tpcw::{MixName, Scale};

    use super::*;
    use crate::perf::{Bookstore, Demand};

    /// What transactions cost is what their users cost, and as many of them write.
    #[test]
    fn what_is_drawn_is_what_users_do() {
        let profile = Profile::named("2003", "tpcw").unwrap();
        let shop = || Bookstore::new(MixName::Ordering, Scale::new(1_000, 1).unwrap());
        let mut transactions = Transactions::new(Box::new(shop()), &profile, 1, 20).unwrap();
        let drawn: Vec<Transaction> = (0..20_000).map(|_| transactions.draw()).collect();
        assert!(drawn.iter().all(|of| of.executing_ns > 0 && of.writing_ns <= of.executing_ns));
        assert!(drawn.iter().all(|of| of.writes == of.access.iter().any(|access| access.mode.writes())));
        let sum = |of: fn(&Transaction) -> u64| drawn.iter().map(of).sum::<u64>() as f64 / 1e6;
        let (executing, writing) = (sum(|of| of.executing_ns), sum(|of| of.writing_ns));
        let commits = drawn.iter().filter(|of| of.writes).count() as f64 * profile.commit_ms;
        let demand = Demand::of(&profile, &mut shop(), 20, 500).unwrap();
        let share = (writing + commits) / (executing + commits);
        assert!((share / demand.write_share() - 1.0).abs() < 0.05, "{share} {}", demand.write_share());
        // Nobody waits for what it does not touch.
        let apply = transactions.apply_ns(drawn.iter().find(|of| of.writes).unwrap());
        assert!(apply > transactions.commit_ns());
    }
}
