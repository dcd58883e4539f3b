//! Two rows appear, each by itself; readers of both are to agree which came first.

use onecopy_sim::check::Operation;
use rand::Rng;

use super::super::client::Client;
use super::super::statement::Step;
use super::super::world;
use super::register_step;

const NAME: &str = "long fork";

pub(super) async fn run(client: &mut Client) {
    let (pair, to_insert) = client.world.pair();
    if let Some(row) = to_insert {
        let version = client.world.fresh();
        let sql = "INSERT INTO torture_pair (id, version) VALUES ($1, $2)";
        let write = Operation::Write { register: world::pair_member(row), value: world::value(version) };
        client.batch("long fork, insert", vec![Step::write(sql, &[row, version], write)]).await;
        return;
    }
    let [first, second] = if client.random.random() { pair } else { [pair[1], pair[0]] };
    let steps = match client.random.random_range(0..3) {
        0 => vec![read_range(pair[0]..pair[1] + 1)],
        1 => {
            let sql = "SELECT id, version FROM torture_pair WHERE id IN ($1, $2)";
            vec![register_step(sql, [first, second], [first, second], world::pair_member)]
        }
        _ => [first, second]
            .map(|row| {
                let sql = "SELECT id, version FROM torture_pair WHERE id = $1 AND id = $2";
                register_step(sql, [row, row], [row], world::pair_member)
            })
            .into(),
    };
    client.batch(NAME, steps).await;
}

pub(super) fn read_range(rows: std::ops::Range<i64>) -> Step {
    let sql = "SELECT id, version FROM torture_pair WHERE id BETWEEN $1 AND $2";
    register_step(sql, [rows.start, rows.end - 1], rows, world::pair_member)
}
