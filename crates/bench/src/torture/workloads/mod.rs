//! The workloads: each a way in which a database that is not one copy shows it.

mod list_append;
mod long_fork;
mod lost_update;
mod predicate;
mod read_your_writes;
mod transfer;
mod write_skew;

use onecopy_sim::check::Operation;
use serde::{Deserialize, Serialize};

use super::client::{Client, How, On};
use super::statement::Step;
use super::world::{self, World};

/// What transactions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Money moves between accounts; readers add up all accounts, in one statement and in several.
    Transfer,
    /// Values are appended to arrays and texts, several in a transaction; whole lists are read.
    ListAppend,
    /// Two rows appear; readers of both may not see them in opposite orders.
    LongFork,
    /// A doctor goes off call only while the other of the shift is on.
    WriteSkew,
    /// A client reads a hot row and writes back what it has computed from it.
    LostUpdate,
    /// A row is added only while its group has fewer than a number.
    Predicate,
    /// One connection commits, another reads at once.
    ReadYourWritesAcrossConnections,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 7] = [
        Workload::Transfer,
        Workload::ListAppend,
        Workload::LongFork,
        Workload::WriteSkew,
        Workload::LostUpdate,
        Workload::Predicate,
        Workload::ReadYourWritesAcrossConnections,
    ];

    /// Runs one transaction, or a few that belong together.
    pub(super) async fn run(self, client: &mut Client) {
        match self {
            Workload::Transfer => transfer::run(client).await,
            Workload::ListAppend => list_append::run(client).await,
            Workload::LongFork => long_fork::run(client).await,
            Workload::WriteSkew => write_skew::run(client).await,
            Workload::LostUpdate => lost_update::run(client).await,
            Workload::Predicate => predicate::run(client).await,
            Workload::ReadYourWritesAcrossConnections => read_your_writes::run(client).await,
        }
    }
}

/// Statements that put a round's first rows into the tables; they stand for what histories call empty.
pub(super) fn setup(world: &World) -> Vec<String> {
    let lists = |array: bool| {
        let there = world.lists().filter(move |&list| world::is_array(list) == array);
        there.filter(|&list| world.is_there(list)).collect::<Vec<i64>>()
    };
    let mut statements = Vec::new();
    insert(&mut statements, "torture_list (id, items)", lists(true), |id| format!("({id}, '{{}}')"));
    insert(&mut statements, "torture_text (id, items)", lists(false), |id| format!("({id}, '')"));
    insert(&mut statements, "torture_account (id, balance)", world.accounts(), |id| {
        format!("({id}, {})", world::BALANCE)
    });
    insert(&mut statements, "torture_doctor (id, shift, on_call)", world.doctors(), |id| {
        format!("({id}, {}, 1)", world.shift(id))
    });
    insert(&mut statements, "torture_duty (id, shift, doctor)", world.doctors(), |id| {
        format!("({id}, {}, {id})", world.shift(id))
    });
    insert(&mut statements, "torture_counter (id, total)", world.counters(), |id| format!("({id}, 0)"));
    statements
}

fn insert(
    statements: &mut Vec<String>,
    into: &str,
    ids: impl IntoIterator<Item = i64>,
    row: impl Fn(i64) -> String,
) {
    const ROWS_A_STATEMENT: usize = 100;
    let rows: Vec<String> = ids.into_iter().map(row).collect();
    for chunk in rows.chunks(ROWS_A_STATEMENT) {
        statements.push(format!("INSERT INTO {into} VALUES {}", chunk.join(", ")));
    }
}

/// Reads everything that a round has written, after all its clients have ended.
pub(super) async fn read_all(client: &mut Client) {
    let world = client.world.clone();
    let lists: Vec<i64> = world.used_lists().collect();
    let steps = lists
        .into_iter()
        .map(list_append::read_one)
        .chain([transfer::read_range(world.accounts()), write_skew::read_range(world.doctors())])
        .chain([lost_update::read_range(world.counters()), long_fork::read_range(world.pairs())])
        .chain(world.groups().map(predicate::scan));
    for step in steps {
        client.batch_as("final read", On::Main, vec![step], How::Autocommit).await;
    }
}

/// Reads of registers from rows (id, version), of ids that the statement asked for; a row that is missing was never
/// written.
fn registers(
    answer: &super::statement::Answer,
    ids: impl IntoIterator<Item = i64>,
    register: impl Fn(i64) -> onecopy_sim::check::Register,
) -> Result<Vec<Operation>, String> {
    let mut found = std::collections::BTreeMap::new();
    for row in 0..answer.rows.len() {
        if found.insert(answer.int(row, 0)?, answer.int_or_null(row, 1)?).is_some() {
            return Err(format!("row {} came twice", answer.int(row, 0)?));
        }
    }
    let read = |id| {
        let version = found.remove(&id).flatten();
        Operation::Read { register: register(id), value: version.map(world::value) }
    };
    let reads = ids.into_iter().map(read).collect();
    match found.keys().next() {
        Some(id) => Err(format!("row {id} was not asked for")),
        None => Ok(reads),
    }
}

/// A read of rows (id, version, ...) by the two ids or bounds that are the statement's parameters.
fn register_step(
    sql: &'static str,
    params: [i64; 2],
    ids: impl IntoIterator<Item = i64> + Clone + Send + Sync + 'static,
    register: fn(i64) -> onecopy_sim::check::Register,
) -> Step {
    Step::new(sql, &params, Vec::new(), move |answer| registers(answer, ids.clone(), register))
}
