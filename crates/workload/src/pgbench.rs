//! The two scripts of pgbench that everyone quotes, as [`Client`]s without think time.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::Duration;

use crate::catalogue::{Catalogue, InteractionId, StatementId, TransactionId};
use crate::client::{Action, Client, Failure, Reply};
use crate::random::{Random, uniform};
use crate::site::{Check, Line, SiteRows};
use crate::value::{Timestamp, Value};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../data/pgbench.toml")).expect("data/pgbench.toml is in order")
});

/// The tables and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// Tellers of a branch.
const TELLERS: i64 = 10;
/// Accounts of a branch, where nobody says otherwise.
pub const ACCOUNTS: i64 = 100_000;

/// How large the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    branches: i64,
    accounts: i64,
}

impl Scale {
    /// So many branches, each with so many accounts (pgbench has [`ACCOUNTS`]); `None` if there would be none of them, or more than
    /// the tables' integers can count.
    #[must_use]
    pub fn new(branches: i64, accounts: i64) -> Option<Scale> {
        let is_possible = |all: i64| (1..=i64::from(i32::MAX)).contains(&all);
        let all = [branches, accounts, branches.checked_mul(TELLERS)?, branches.checked_mul(accounts)?];
        all.into_iter().all(is_possible).then_some(Scale { branches, accounts })
    }

    /// Branches.
    #[must_use]
    pub fn branches(self) -> i64 {
        self.branches
    }

    /// Accounts of each branch.
    #[must_use]
    pub fn accounts(self) -> i64 {
        self.accounts
    }
}

impl SiteRows for Scale {
    fn keys(&self, table: usize) -> RangeInclusive<i64> {
        let last = match catalogue().tables[table].name.as_str() {
            "pgbench_branches" => self.branches,
            "pgbench_tellers" => TELLERS * self.branches,
            "pgbench_accounts" => self.accounts * self.branches,
            _ => 0,
        };
        1..=last
    }

    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        let each = match catalogue().tables[table].name.as_str() {
            "pgbench_branches" => None,
            "pgbench_tellers" => Some(TELLERS),
            _ => Some(self.accounts),
        };
        keys.map(|key| {
            let line = Line::new(out).put(key);
            let line = match each {
                Some(each) => line.put((key - 1) / each + 1),
                None => line,
            };
            line.put(0).put("").end()
        })
        .sum()
    }
}

/// What must hold after any run: a deposit changes all or nothing.
#[must_use]
pub fn checks() -> Vec<Check<Scale>> {
    let differs = |kind: &str, key: &str, balance: &str| {
        format!(
            "(SELECT {key} FROM {kind} FULL JOIN (SELECT {key}, sum(delta) AS delta FROM pgbench_history GROUP BY {key}) AS made \
             USING ({key}) WHERE {balance} IS DISTINCT FROM coalesce(delta, 0)) AS wrong"
        )
    };
    vec![
        Check::count(
            "an account holds what was deposited there",
            differs("pgbench_accounts", "aid", "abalance"),
        ),
        Check::count(
            "a teller's balance is what went through his hands",
            differs("pgbench_tellers", "tid", "tbalance"),
        ),
        Check::count(
            "a branch's balance is what was deposited there",
            differs("pgbench_branches", "bid", "bbalance"),
        ),
    ]
}

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One account's balance by primary key, in autocommit.
    SelectOnly,
    /// A deposit: account, teller, branch and history, in one transaction.
    TpcbLike,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::SelectOnly, Kind::TpcbLike];

    /// As pgbench calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::SelectOnly => "select-only",
            Kind::TpcbLike => "tpcb-like",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| format!("there is no script {name:?}: choose select-only or tpcb-like"))
    }
}

/// One client of pgbench.
#[derive(Clone, Debug)]
pub struct Bencher {
    kind: Kind,
    scale: Scale,
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
    pub fn new(kind: Kind, scale: Scale, random: Random) -> Self {
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
        let (random, Scale { branches, accounts }) = (&mut self.random, self.scale);
        self.deposit = Deposit {
            account: uniform(random, 1, accounts * branches),
            teller: uniform(random, 1, TELLERS * branches),
            branch: uniform(random, 1, branches),
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
        let mut bencher = Bencher::new(Kind::TpcbLike, Scale::new(2, ACCOUNTS).unwrap(), stream(1, 0));
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
