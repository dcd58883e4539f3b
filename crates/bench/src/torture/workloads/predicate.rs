//! A row is added to a group only while the group has fewer than a number; what is counted are rows that may not be
//! there yet.

use onecopy_sim::check::Operation;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::super::client::{Client, On, Over};
use super::super::statement::{Answer, Step};
use super::super::world::{self, GROUP_MAX};

const NAME: &str = "predicate";

pub(super) async fn run(client: &mut Client) {
    match client.random.random_range(0..6) {
        0 => {
            let steps = vec![scan(client.world.group(false)), count(client.world.group(false))];
            client.batch("predicate, count", steps).await;
        }
        1 => {
            let group = client.world.group(true);
            let row = client.world.fresh_row();
            let sql = "INSERT INTO torture_row (id, grp) SELECT $2::bigint, $1::bigint \
                       WHERE (SELECT count(*) FROM torture_row WHERE grp = $1) < $3";
            let limit = i64::try_from(GROUP_MAX).unwrap_or(i64::MAX);
            let insert = Operation::Insert { table: world::group(group), row: world::row(row) };
            let step = Step::new(sql, &[group, row, limit], vec![insert.clone()], move |answer| match answer
                .count
            {
                0 => Ok(Vec::new()),
                _ => Ok(vec![insert.clone()]),
            });
            client.batch("predicate, conditional insert", vec![step]).await;
        }
        // What went wrong is recorded already.
        _ => {
            let _: Result<(), Over> = count_then_change(client).await;
        }
    }
}

/// The rows of a group.
pub(super) fn scan(group: i64) -> Step {
    Step::new("SELECT id FROM torture_row WHERE grp = $1", &[group], Vec::new(), move |answer| {
        let rows = rows(answer)?;
        if rows.len() > GROUP_MAX {
            return Err(format!("{} rows in a group that has room for {GROUP_MAX}", rows.len()));
        }
        Ok(vec![Operation::Scan {
            table: world::group(group),
            rows: rows.into_iter().map(world::row).collect(),
        }])
    })
}

fn rows(answer: &Answer) -> Result<Vec<i64>, String> {
    let mut rows =
        (0..answer.rows.len()).map(|row| answer.int(row, 0)).collect::<Result<Vec<i64>, String>>()?;
    rows.sort_unstable();
    let count = rows.len();
    rows.dedup();
    if rows.len() == count { Ok(rows) } else { Err("a row came twice".to_owned()) }
}

fn count(group: i64) -> Step {
    Step::new("SELECT count(*) FROM torture_row WHERE grp = $1", &[group], Vec::new(), |answer| {
        let count = answer.int(0, 0)?;
        if usize::try_from(count).is_ok_and(|count| count <= GROUP_MAX) {
            Ok(Vec::new())
        } else {
            Err(format!("{count} rows in a group that has room for {GROUP_MAX}"))
        }
    })
}

async fn count_then_change(client: &mut Client) -> Result<(), Over> {
    let group = client.world.group(true);
    let table = world::group(group);
    let mut open = client.begin(NAME.to_owned(), On::Main, false).await?;
    let answer = client.step(&mut open, &scan(group)).await?;
    let rows = rows(&answer).unwrap_or_default();
    let change = match rows.choose(&mut client.random) {
        Some(&row) if rows.len() >= GROUP_MAX || client.random.random_bool(0.3) => {
            let delete = Operation::Delete { table, row: world::row(row) };
            Step::new("DELETE FROM torture_row WHERE id = $1", &[row], vec![delete.clone()], move |answer| {
                match answer.count {
                    0 => Err("the row that this transaction has just read is gone".to_owned()),
                    _ => Ok(vec![delete.clone()]),
                }
            })
        }
        _ => {
            let row = client.world.fresh_row();
            let insert = Operation::Insert { table, row: world::row(row) };
            Step::write("INSERT INTO torture_row (id, grp) VALUES ($2, $1)", &[group, row], insert)
        }
    };
    client.step(&mut open, &change).await?;
    client.commit(open).await;
    Ok(())
}
