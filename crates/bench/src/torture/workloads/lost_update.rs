//! A client reads a hot row, computes, and writes the result back: what applications written for one server do.

use onecopy_sim::check::Operation;
use rand::Rng;

use super::super::client::{Client, On, Over};
use super::super::statement::Step;
use super::super::world;
use super::register_step;

pub(super) async fn run(client: &mut Client) {
    // What went wrong is recorded already.
    let _: Result<(), Over> = read_then_update(client).await;
}

async fn read_then_update(client: &mut Client) -> Result<(), Over> {
    let counter = client.random.random_range(client.world.counters());
    let lock = client.random.random_bool(0.2);
    let (class, read) = if lock {
        (
            "lost update, FOR UPDATE",
            "SELECT id, version, total FROM torture_counter WHERE id IN ($1, $2) FOR UPDATE",
        )
    } else {
        (
            "lost update, read then update",
            "SELECT id, version, total FROM torture_counter WHERE id IN ($1, $2)",
        )
    };
    let read = register_step(read, [counter, counter], [counter], world::counter);
    let mut open = client.begin(class.to_owned(), On::Main, false).await?;
    let answer = client.step(&mut open, &read).await?;
    let total = answer.int(0, 2).unwrap_or_default() + 1;
    let version = client.world.fresh();
    let sql = "UPDATE torture_counter SET total = $2, version = $3 WHERE id = $1";
    let write = Operation::Write { register: world::counter(counter), value: world::value(version) };
    client.step(&mut open, &Step::write(sql, &[counter, total, version], write)).await?;
    client.commit(open).await;
    Ok(())
}

pub(super) fn read_range(counters: std::ops::Range<i64>) -> Step {
    let sql = "SELECT id, version FROM torture_counter WHERE id BETWEEN $1 AND $2";
    register_step(sql, [counters.start, counters.end - 1], counters, world::counter)
}
