//! Money moves between accounts. Nobody may ever see another sum.

use onecopy_sim::check::Operation;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::super::client::{Client, On, Over};
use super::super::statement::{Answer, Step};
use super::super::world::{self, ACCOUNTS, BALANCE};
use super::register_step;

const NAME: &str = "transfer";

pub(super) async fn run(client: &mut Client) {
    let accounts = client.world.accounts();
    match client.random.random_range(0..9) {
        0 => {
            client.batch(NAME, vec![read_range(accounts.clone()), sum(accounts)]).await;
        }
        1 => {
            client.batch("transfer, sum", vec![sum(accounts)]).await;
        }
        // What went wrong is recorded already.
        2 => {
            let _: Result<(), Over> = audit(client).await;
        }
        3 | 4 => {
            let _: Result<(), Over> = compute_at_client(client).await;
        }
        5 => {
            let _: Result<(), Over> = change_ones_mind(client).await;
        }
        6 => {
            let (from, to, amount) = pick(client);
            let versions = [client.world.fresh(), client.world.fresh()];
            client.batch(NAME, vec![in_one_statement(from, to, amount, versions)]).await;
        }
        _ => {
            let (from, to, amount) = pick(client);
            let steps = vec![add(client, from, -amount), add(client, to, amount)];
            client.batch_whole(NAME, steps).await;
        }
    }
}

fn pick(client: &mut Client) -> (i64, i64, i64) {
    let accounts: Vec<i64> = client.world.accounts().collect();
    let mut two = accounts.choose_multiple(&mut client.random, 2);
    let (from, to) = (two.next().copied().unwrap_or(0), two.next().copied().unwrap_or(0));
    (from, to, client.random.random_range(1..10))
}

/// All accounts with their versions, in one statement; the sum is in the statement's meaning.
pub(super) fn read_range(accounts: std::ops::Range<i64>) -> Step {
    let sql = "SELECT id, version, balance FROM torture_account WHERE id BETWEEN $1 AND $2 ORDER BY id";
    let bounds = [accounts.start, accounts.end - 1];
    Step::new(sql, &bounds, Vec::new(), move |answer| {
        let whole = accounts.end - accounts.start == ACCOUNTS;
        let total = balances(answer)?;
        if whole && total != ACCOUNTS * BALANCE {
            return Err(format!("the accounts add up to {total}, not to {}", ACCOUNTS * BALANCE));
        }
        super::registers(answer, accounts.clone(), world::account)
    })
}

fn balances(answer: &Answer) -> Result<i64, String> {
    (0..answer.rows.len()).map(|row| answer.int(row, 2)).sum()
}

fn sum(accounts: std::ops::Range<i64>) -> Step {
    let sql = "SELECT sum(balance)::bigint FROM torture_account WHERE id >= $1 AND id < $2";
    Step::new(sql, &[accounts.start, accounts.end], Vec::new(), |answer| match answer.int(0, 0)? {
        total if total == ACCOUNTS * BALANCE => Ok(Vec::new()),
        total => Err(format!("the accounts add up to {total}, not to {}", ACCOUNTS * BALANCE)),
    })
}

/// All accounts in several statements of one transaction.
async fn audit(client: &mut Client) -> Result<(), Over> {
    let accounts = client.world.accounts();
    let middle = accounts.start + client.random.random_range(1..ACCOUNTS);
    let mut open = client.begin(format!("{NAME}, audit"), On::Main, true).await?;
    let mut total = 0;
    for part in [accounts.start..middle, middle..accounts.end] {
        let answer = client.step(&mut open, &read_range(part)).await?;
        total += balances(&answer).unwrap_or_default();
    }
    if total != ACCOUNTS * BALANCE {
        client.tally.broken("sum of accounts", format!("two reads of one transaction add up to {total}"));
    }
    client.commit(open).await;
    Ok(())
}

/// Adds to an account, without having read it.
fn add(client: &mut Client, account: i64, amount: i64) -> Step {
    let sql = "UPDATE torture_account SET balance = balance + $2, previous = version, version = $3 WHERE id = $1 \
               RETURNING previous, version";
    let version = client.world.fresh();
    let register = world::account(account);
    let write = Operation::Write { register, value: world::value(version) };
    Step::new(sql, &[account, amount, version], vec![write.clone()], move |answer| {
        answer.must_change(1)?;
        let before = Operation::Read { register, value: answer.int_or_null(0, 0)?.map(world::value) };
        Ok(vec![before, write.clone(), register_read(register, answer, 0, 1)?])
    })
}

fn register_read(
    register: onecopy_sim::check::Register,
    answer: &Answer,
    row: usize,
    column: usize,
) -> Result<Operation, String> {
    Ok(Operation::Read { register, value: answer.int_or_null(row, column)?.map(world::value) })
}

/// Both accounts in one statement.
fn in_one_statement(from: i64, to: i64, amount: i64, versions: [i64; 2]) -> Step {
    let sql = "UPDATE torture_account \
               SET balance = balance + CASE id WHEN $1 THEN -$3::bigint ELSE $3::bigint END, previous = version, \
               version = CASE id WHEN $1 THEN $4::bigint ELSE $5::bigint END \
               WHERE id IN ($1, $2) RETURNING id, previous";
    let write = |account, version| Operation::Write {
        register: world::account(account),
        value: world::value(version),
    };
    let writes = vec![write(from, versions[0]), write(to, versions[1])];
    Step::new(sql, &[from, to, amount, versions[0], versions[1]], writes.clone(), move |answer| {
        answer.must_change(2)?;
        let mut operations = super::registers(answer, [from, to], world::account)?;
        operations.extend(writes.iter().cloned());
        Ok(operations)
    })
}

/// Gives to one, takes it back to a savepoint, and gives to another.
async fn change_ones_mind(client: &mut Client) -> Result<(), Over> {
    let (from, to, amount) = pick(client);
    let other = client.random.random_range(client.world.accounts());
    let mut open = client.begin(format!("{NAME}, savepoint"), On::Main, false).await?;
    for (account, change, keep) in [(from, -amount, true), (to, amount, false), (other, amount, true)] {
        if !keep {
            client.savepoint(&mut open).await?;
        }
        let step = add(client, account, change);
        client.step(&mut open, &step).await?;
        if !keep {
            client.rollback_to_savepoint(&mut open).await?;
        }
    }
    client.commit(open).await;
    Ok(())
}

/// The client reads both balances, computes, and writes them back.
async fn compute_at_client(client: &mut Client) -> Result<(), Over> {
    let (from, to, amount) = pick(client);
    let lock = client.random.random_bool(0.4);
    let class = if lock { "transfer, FOR UPDATE" } else { "transfer, read then update" };
    let read = |account: i64| {
        let sql = if lock {
            "SELECT id, version, balance FROM torture_account WHERE id IN ($1, $2) FOR UPDATE"
        } else {
            "SELECT id, version, balance FROM torture_account WHERE id IN ($1, $2)"
        };
        register_step(sql, [account, account], [account], world::account)
    };
    let mut open = client.begin(class.to_owned(), On::Main, false).await?;
    for (account, change) in [(from, -amount), (to, amount)] {
        let answer = client.step(&mut open, &read(account)).await?;
        let balance = answer.int(0, 2).unwrap_or_default() + change;
        let version = client.world.fresh();
        let sql = "UPDATE torture_account SET balance = $2, previous = version, version = $3 WHERE id = $1";
        let write = Operation::Write { register: world::account(account), value: world::value(version) };
        client.step(&mut open, &Step::write(sql, &[account, balance, version], write)).await?;
    }
    client.commit(open).await;
    Ok(())
}
