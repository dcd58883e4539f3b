//! The two scripts of pgbench that everyone quotes, as [`Client`]s without think time.

use std::sync::LazyLock;
use std::time::Duration;

use crate::catalogue::{Catalogue, InteractionId, StatementId, TransactionId};
use crate::client::{Action, Client, Failure, Reply};
use crate::random::{Random, uniform};
use crate::value::{Timestamp, Value};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../data/pgbench.toml")).expect("data/pgbench.toml is in order")
});

/// The tables and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// The statements that create the tables and fill them, at a scale of at least 1.
pub fn load(scale: i64) -> Vec<String> {
    let mut statements = catalogue().create_tables();
    let fill = |table: &str, columns: &str, values: &str, per_scale: i64| {
        let rows = per_scale * scale;
        format!("INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series(1, {rows}) AS n")
    };
    statements.push(fill("pgbench_branches", "bid, bbalance", "n, 0", 1));
    statements.push(fill("pgbench_tellers", "tid, bid, tbalance", "n, (n - 1) / 10 + 1, 0", 10));
    let values = "n, (n - 1) / 100000 + 1, 0, ''";
    statements.push(fill("pgbench_accounts", "aid, bid, abalance, filler", values, 100_000));
    statements
}

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One account's balance by primary key, in autocommit.
    SelectOnly,
    /// A deposit: account, teller, branch and history, in one transaction.
    TpcbLike,
}

/// One client of pgbench.
#[derive(Clone, Debug)]
pub struct Bencher {
    kind: Kind,
    scale: i64,
    random: Random,
    stage: Stage,
    deposit: Deposit,
}

#[derive(Clone, Copy, Debug)]
struct Deposit {
    account: i64,
    teller: i64,
    branch: i64,
    delta: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    AwaitingNext,
    AwaitingRows(usize),
    AwaitingBegin,
    AwaitingCommit,
}

impl Bencher {
    /// A client on tables of this scale.
    pub fn new(kind: Kind, scale: i64, random: Random) -> Self {
        let deposit = Deposit { account: 1, teller: 1, branch: 1, delta: 0 };
        Bencher { kind, scale, random, stage: Stage::Idle, deposit }
    }

    fn start(&mut self) -> Action {
        match self.kind {
            Kind::SelectOnly => {
                self.stage = Stage::AwaitingRows(0);
                let account = self.deposit.account;
                Action::Execute(self.statement(0), vec![Value::Int(account)])
            }
            Kind::TpcbLike => {
                self.stage = Stage::AwaitingBegin;
                Action::Begin(TransactionId(self.kind as u16))
            }
        }
    }

    fn draw(&mut self) {
        let random = &mut self.random;
        self.deposit = Deposit {
            account: uniform(random, 1, 100_000 * self.scale),
            teller: uniform(random, 1, 10 * self.scale),
            branch: uniform(random, 1, self.scale),
            delta: uniform(random, -5_000, 5_000),
        };
    }

    fn think(&mut self) -> Action {
        self.draw();
        self.stage = Stage::AwaitingNext;
        Action::Think { pause: Duration::ZERO, next: InteractionId(self.kind as u16) }
    }

    fn statement(&self, place: usize) -> StatementId {
        let transaction = &catalogue().transactions[self.kind as usize];
        StatementId((transaction.statements.start + place) as u16)
    }

    fn deposit(&mut self, place: usize, now: Timestamp) -> Action {
        let Deposit { account, teller, branch, delta } = self.deposit;
        let ints: &[i64] = match place {
            0 => &[account, delta],
            1 => &[account],
            2 => &[teller, delta],
            3 => &[branch, delta],
            4 => &[teller, branch, account, delta],
            _ => {
                self.stage = Stage::AwaitingCommit;
                return Action::Commit;
            }
        };
        let mut params: Vec<Value> = ints.iter().copied().map(Value::Int).collect();
        if place == 4 {
            params.push(Value::Timestamp(now));
        }
        self.stage = Stage::AwaitingRows(place);
        Action::Execute(self.statement(place), params)
    }
}

impl Client for Bencher {
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action {
        match (self.stage, reply) {
            (_, Reply::Failed(Failure::Retry)) => self.start(),
            (_, Reply::Failed(Failure::GiveUp)) => self.think(),
            (Stage::Idle, _) => self.think(),
            (Stage::AwaitingNext, _) => self.start(),
            (Stage::AwaitingBegin, _) => self.deposit(0, now),
            (Stage::AwaitingRows(place), _) if self.kind == Kind::TpcbLike => self.deposit(place + 1, now),
            (Stage::AwaitingRows(_) | Stage::AwaitingCommit, _) => self.think(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Rows;
    use crate::random::stream;

    #[test]
    fn a_deposit_runs_its_five_statements_between_begin_and_commit() {
        let mut bencher = Bencher::new(Kind::TpcbLike, 2, stream(1, 0));
        let now = Timestamp::default();
        assert!(matches!(bencher.next(now, Reply::Done), Action::Think { next: InteractionId(1), .. }));
        assert_eq!(bencher.next(now, Reply::Done), Action::Begin(TransactionId(1)));
        let mut statements = Vec::new();
        let mut action = bencher.next(now, Reply::Done);
        let first = action.clone();
        while let Action::Execute(statement, params) = action {
            assert_eq!(catalogue().statement(statement).parameter_count(), params.len());
            statements.push(catalogue().statement(statement).id.as_str());
            action = bencher.next(now, Reply::Rows(Rows::changed(1)));
        }
        assert_eq!(action, Action::Commit);
        assert_eq!(
            statements,
            ["account", "balance", "teller", "branch", "history"].map(|name| format!("tpcb.deposit.{name}"))
        );
        // COMMIT failed: the same deposit again.
        assert_eq!(bencher.next(now, Reply::Failed(Failure::Retry)), Action::Begin(TransactionId(1)));
        assert_eq!(bencher.next(now, Reply::Done), first);
    }
}
