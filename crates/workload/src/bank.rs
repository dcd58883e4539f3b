//! The bank: transfers that keep a total, and withdrawals that must not overdraw a pair of pockets.
//!
//! Invariants of a serializable history, at every moment that a reader can see:
//! * the balances of all accounts add up to [`Bank::total`];
//! * the two pockets of an owner together hold at least nothing.
//!
//! [`Bank::draw`] gives transactions; each is a [`Script`] and, once run, says what it saw.

use std::sync::LazyLock;

use crate::catalogue::{Catalogue, StatementId};
use crate::client::{Rows, Script, Step};
use crate::random::{Random, uniform};
use crate::value::Value;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../data/bank.toml")).expect("data/bank.toml is in order")
});

/// The tables and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// How large the bank is.
#[derive(Clone, Copy, Debug)]
pub struct Bank {
    /// Accounts, with ids from 1; at least 2. Few accounts mean many conflicts.
    pub accounts: i64,
    /// Owners of two pockets each, with ids from 1; at least 1.
    pub owners: i64,
    /// What every account and pocket holds at the start.
    pub initial: i64,
}

/// What a transaction is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Move money between two accounts.
    Transfer {
        /// The account that pays.
        from: i64,
        /// The account that gains.
        to: i64,
        /// How much, above 0.
        amount: i64,
        /// How it is written.
        style: TransferStyle,
    },
    /// Add up all accounts.
    Audit {
        /// Account by account in one transaction, instead of in one statement.
        walk: bool,
    },
    /// Take from one pocket if both together hold enough.
    Withdraw {
        /// Whose pockets.
        owner: i64,
        /// 0 or 1.
        side: i64,
        /// How much, above 0.
        amount: i64,
    },
    /// Put into one pocket.
    Deposit {
        /// Whose pocket.
        owner: i64,
        /// 0 or 1.
        side: i64,
        /// How much, above 0.
        amount: i64,
    },
}

/// The ways to write a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStyle {
    /// Read both balances, write both results; refused (rolled back) if the payer has too little.
    Computed,
    /// The same, reading FOR UPDATE.
    Locked,
    /// Two relative updates.
    Relative,
    /// One statement, in autocommit.
    Single,
}

/// One transaction of the bank.
#[derive(Clone, Debug)]
pub struct Transaction {
    request: Request,
    accounts: i64,
    stage: usize,
    balances: Vec<i64>,
}

impl Bank {
    /// What all accounts together hold, always.
    pub fn total(&self) -> i64 {
        self.accounts * self.initial
    }

    /// The statements that create the tables and fill them.
    pub fn load(&self) -> Vec<String> {
        let rows = |ids: i64, row: &dyn Fn(i64) -> String| -> String {
            (1..=ids).map(row).collect::<Vec<_>>().join(", ")
        };
        let initial = self.initial;
        let accounts = rows(self.accounts, &|id| format!("({id}, {initial})"));
        let pockets = rows(self.owners, &|owner| format!("({owner}, 0, {initial}), ({owner}, 1, {initial})"));
        let mut statements = catalogue().create_tables();
        statements.push(format!("INSERT INTO bank_account (id, balance) VALUES {accounts}"));
        statements.push(format!("INSERT INTO bank_pocket (owner, side, balance) VALUES {pockets}"));
        statements
    }

    /// The next transaction of some client: about half transfers, a quarter audits, a quarter pockets.
    pub fn draw(&self, random: &mut Random) -> Transaction {
        let amount = uniform(random, 1, (self.initial / 4).max(1));
        let owner = uniform(random, 1, self.owners);
        let side = uniform(random, 0, 1);
        let request = match uniform(random, 0, 7) {
            0 => Request::Audit { walk: false },
            1 => Request::Audit { walk: true },
            2 => Request::Withdraw { owner, side, amount: 2 * amount },
            3 => Request::Deposit { owner, side, amount },
            style => {
                let from = uniform(random, 1, self.accounts);
                // Any account but the payer.
                let to = (from + uniform(random, 0, self.accounts - 2)) % self.accounts + 1;
                let styles = [
                    TransferStyle::Computed,
                    TransferStyle::Locked,
                    TransferStyle::Relative,
                    TransferStyle::Single,
                ];
                Request::Transfer { from, to, amount, style: styles[style as usize - 4] }
            }
        };
        Transaction::new(*self, request)
    }
}

impl Transaction {
    /// The transaction for a request of one's own.
    pub fn new(bank: Bank, request: Request) -> Self {
        Transaction { request, accounts: bank.accounts, stage: 0, balances: Vec::new() }
    }

    /// What was asked.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Whether it runs between BEGIN and COMMIT; otherwise its only statement is a transaction of its own.
    pub fn is_bracketed(&self) -> bool {
        !matches!(
            self.request,
            Request::Transfer { style: TransferStyle::Single, .. }
                | Request::Audit { walk: false }
                | Request::Deposit { .. }
        )
    }

    /// The total that an audit saw, once it has run.
    pub fn audited(&self) -> Option<i64> {
        match self.request {
            Request::Audit { walk: false } => self.balances.first().copied(),
            Request::Audit { walk: true } => {
                (self.balances.len() as i64 == self.accounts).then(|| self.balances.iter().sum())
            }
            _ => None,
        }
    }

    fn transfer(&self, from: i64, to: i64, amount: i64, style: TransferStyle) -> Step {
        let name = match style {
            TransferStyle::Computed => "computed",
            TransferStyle::Locked => "locked",
            TransferStyle::Relative => return self.relative(from, to, amount),
            TransferStyle::Single => return self.single(from, to, amount),
        };
        let step = |statement: &str, params: &[i64]| execute(&format!("transfer.{name}.{statement}"), params);
        match (self.stage, self.balances.as_slice()) {
            (0, _) => step("from", &[from]),
            (1, _) => step("to", &[to]),
            (2, [payer, _]) if *payer < amount => Step::Rollback,
            (2, [payer, _]) => step("take", &[from, payer - amount]),
            (3, [_, gainer]) => step("give", &[to, gainer + amount]),
            (4, _) => Step::Commit,
            // A balance did not come back: there is nothing to compute with.
            _ => Step::Rollback,
        }
    }

    fn relative(&self, from: i64, to: i64, amount: i64) -> Step {
        match self.stage {
            0 => execute("transfer.relative.take", &[from, amount]),
            1 => execute("transfer.relative.give", &[to, amount]),
            _ => Step::Commit,
        }
    }

    fn single(&self, from: i64, to: i64, amount: i64) -> Step {
        match self.stage {
            0 => execute("transfer.single.move", &[from, to, amount]),
            _ => Step::Commit,
        }
    }

    fn audit(&self, walk: bool) -> Step {
        match (walk, self.stage as i64) {
            (false, 0) => execute("audit.single.total", &[]),
            (true, done) if done < self.accounts => execute("audit.walk.one", &[done + 1]),
            _ => Step::Commit,
        }
    }

    fn withdraw(&self, owner: i64, side: i64, amount: i64) -> Step {
        match self.stage {
            0 => execute("pocket.withdraw.both", &[owner]),
            1 if self.balances.iter().sum::<i64>() < amount => Step::Rollback,
            1 => execute("pocket.withdraw.take", &[owner, side, amount]),
            _ => Step::Commit,
        }
    }
}

impl Script for Transaction {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        if let Some(rows) = rows {
            self.stage += 1;
            self.balances.extend(rows.ints(0));
        }
        match self.request {
            Request::Transfer { from, to, amount, style } => self.transfer(from, to, amount, style),
            Request::Audit { walk } => self.audit(walk),
            Request::Withdraw { owner, side, amount } => self.withdraw(owner, side, amount),
            Request::Deposit { owner, side, amount } => match self.stage {
                0 => execute("pocket.deposit.give", &[owner, side, amount]),
                _ => Step::Commit,
            },
        }
    }
}

fn execute(statement: &str, params: &[i64]) -> Step {
    let id: StatementId = CATALOGUE.statement_id(statement).expect("the statement is in data/bank.toml");
    Step::Execute(id, params.iter().copied().map(Value::Int).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    const BANK: Bank = Bank { accounts: 3, owners: 1, initial: 100 };

    fn names(mut transaction: Transaction, answers: &[&[i64]]) -> Vec<String> {
        let mut names = Vec::new();
        let mut rows = None;
        for answer in answers.iter().chain([&&[][..]]) {
            match transaction.next(rows) {
                Step::Execute(id, params) => {
                    let params: Vec<String> = params.iter().map(Value::to_string).collect();
                    names.push(format!("{} {}", catalogue().statement(id).id, params.join(" ")));
                }
                end => {
                    names.push(format!("{end:?}"));
                    break;
                }
            }
            rows = Some(Rows::returned(answer.iter().map(|int| vec![Value::Int(*int)]).collect()));
        }
        names
    }

    #[test]
    fn a_computed_transfer_writes_what_follows_from_what_it_read() {
        let request = Request::Transfer { from: 1, to: 3, amount: 30, style: TransferStyle::Computed };
        assert_eq!(
            names(Transaction::new(BANK, request), &[&[100], &[50], &[], &[]]),
            [
                "transfer.computed.from 1",
                "transfer.computed.to 3",
                "transfer.computed.take 1 70",
                "transfer.computed.give 3 80",
                "Commit"
            ]
        );
        let refused = names(Transaction::new(BANK, request), &[&[20], &[50]]);
        assert_eq!(refused.last().unwrap(), "Rollback");
    }

    #[test]
    fn an_audit_adds_up_every_account() {
        let mut audit = Transaction::new(BANK, Request::Audit { walk: true });
        let mut rows = None;
        while let Step::Execute(..) = audit.next(rows.take()) {
            rows = Some(Rows::returned(vec![vec![Value::Int(100)]]));
        }
        assert_eq!(audit.audited(), Some(BANK.total()));
    }

    #[test]
    fn draws_are_in_range_and_repeat_with_the_seed() {
        let (mut first, mut second) = (stream(5, 0), stream(5, 0));
        let mut styles = std::collections::BTreeSet::new();
        for _ in 0..2_000 {
            let request = BANK.draw(&mut first).request();
            assert_eq!(request, BANK.draw(&mut second).request());
            styles.insert(
                std::mem::discriminant(&request) == std::mem::discriminant(&Request::Audit { walk: true }),
            );
            if let Request::Transfer { from, to, amount, .. } = request {
                assert!(from != to && (1..=3).contains(&from) && (1..=3).contains(&to) && amount > 0);
            }
        }
        assert_eq!(styles.len(), 2);
    }
}
