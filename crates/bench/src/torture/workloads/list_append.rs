//! Values are appended to lists in every way that SQL has, several in a transaction, and whole lists are read.

use onecopy_sim::check::Operation;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::super::client::{Client, On, Over};
use super::super::statement::{Answer, Step};
use super::super::world::{self, LISTS, is_array};

const NAME: &str = "list append";

pub(super) async fn run(client: &mut Client) {
    if client.random.random_bool(0.2) {
        // What went wrong is recorded already.
        let _: Result<(), Over> = read_for_update_then_append(client).await;
        return;
    }
    let mut places: Vec<i64> = (0..LISTS).collect();
    let steps = (0..client.random.random_range(1..=4)).map(|_| {
        // Two steps of a transaction may touch the same list: it must see its own writes.
        let place = *places.choose(&mut client.random).unwrap_or(&0);
        places.rotate_left(1);
        step(client, place)
    });
    let steps = steps.collect();
    client.batch(NAME, steps).await;
}

/// A random read of, or append to, a list in use.
pub(super) fn step(client: &mut Client, place: i64) -> Step {
    let world = client.world.clone();
    match client.random.random_range(0..10) {
        0..=2 => read_one(world.list(place, false)),
        3 => {
            let other = (place + client.random.random_range(1..LISTS)) % LISTS;
            read_two(world.list(place, false), world.list(other, false))
        }
        4 if is_array(world.list(place, false)) => {
            let (list, other) = (world.list(place, true), world.list(LISTS - 2, false));
            if !is_array(other) && world.is_there(list) && world.is_there(other) {
                append_to_both(list, other, [world.fresh(), world.fresh()])
            } else {
                append(client, list)
            }
        }
        _ => {
            let list = world.list(place, true);
            append(client, list)
        }
    }
}

/// Appends a fresh value.
pub(super) fn append(client: &mut Client, list: i64) -> Step {
    let value = client.world.fresh();
    let returning = client.random.random_bool(0.5);
    let update = client.world.is_there(list) && client.random.random_bool(0.6);
    let cte = client.random.random_bool(0.3);
    let sql = match (is_array(list), update, returning) {
        (true, true, true) if cte => {
            "WITH w AS (UPDATE torture_list SET items = items || $2::bigint WHERE id = $1 RETURNING id, items) \
             SELECT id, items FROM w"
        }
        (true, true, true) => {
            "UPDATE torture_list SET items = items || $2::bigint WHERE id = $1 RETURNING id, items"
        }
        (true, true, false) => {
            "UPDATE torture_list SET items = array_append(items, $2::bigint) WHERE id = $1"
        }
        (true, false, true) => {
            "INSERT INTO torture_list (id, items) VALUES ($1, ARRAY[$2::bigint]) \
             ON CONFLICT (id) DO UPDATE SET items = torture_list.items || excluded.items RETURNING id, items"
        }
        (true, false, false) => {
            "INSERT INTO torture_list (id, items) VALUES ($1, ARRAY[$2::bigint]) \
             ON CONFLICT (id) DO UPDATE SET items = torture_list.items || excluded.items"
        }
        (false, true, true) => {
            "UPDATE torture_text SET items = items || ' ' || ($2::bigint)::text WHERE id = $1 RETURNING id, items"
        }
        (false, true, false) => {
            "UPDATE torture_text SET items = items || ' ' || ($2::bigint)::text WHERE id = $1"
        }
        (false, false, true) => {
            "INSERT INTO torture_text (id, items) VALUES ($1, ($2::bigint)::text) \
             ON CONFLICT (id) DO UPDATE SET items = torture_text.items || ' ' || excluded.items RETURNING id, items"
        }
        (false, false, false) => {
            "INSERT INTO torture_text (id, items) VALUES ($1, ($2::bigint)::text) \
             ON CONFLICT (id) DO UPDATE SET items = torture_text.items || ' ' || excluded.items"
        }
    };
    let write = Operation::Append { list: world::list(list), value: world::value(value) };
    if !returning {
        return Step::write(sql, &[list, value], write);
    }
    Step::new(sql, &[list, value], vec![write.clone()], move |answer| {
        answer.must_change(1)?;
        Ok(vec![write.clone(), read(answer, 0, list)?])
    })
}

/// One statement that appends to a list of each table and shows both. Of one table PostgreSQL would change them in no
/// certain order, so whoever executes statements again elsewhere may refuse that.
fn append_to_both(first: i64, second: i64, values: [i64; 2]) -> Step {
    let sql = "WITH a AS (UPDATE torture_list SET items = items || $2::bigint WHERE id = $1 RETURNING id, items), \
               b AS (UPDATE torture_text SET items = items || ' ' || ($4::bigint)::text WHERE id = $3 RETURNING id, items) \
               SELECT 1 AS place, id, items::text FROM a UNION ALL SELECT 2, id, items FROM b ORDER BY place";
    let write = |list, number| Operation::Append { list: world::list(list), value: world::value(number) };
    let writes = vec![write(first, values[0]), write(second, values[1])];
    Step::new(sql, &[first, values[0], second, values[1]], writes.clone(), move |answer| {
        let without_place = Answer {
            rows: answer.rows.iter().map(|cells| cells.iter().skip(1).cloned().collect()).collect(),
            count: answer.count,
        };
        if answer.rows.len() != 2 {
            return Err("2 rows expected".to_owned());
        }
        let reads = [read(&without_place, 0, first)?, read(&without_place, 1, second)?];
        Ok(writes.iter().cloned().chain(reads).collect())
    })
}

pub(super) fn read_one(list: i64) -> Step {
    let sql = if is_array(list) {
        "SELECT id, items FROM torture_list WHERE id = $1"
    } else {
        "SELECT id, items FROM torture_text WHERE id = $1"
    };
    Step::new(sql, &[list], Vec::new(), move |answer| Ok(vec![read_or_empty(answer, list)?]))
}

/// Reads two lists in one statement, whichever tables they are in.
fn read_two(first: i64, second: i64) -> Step {
    let sql = match (is_array(first), is_array(second)) {
        (true, true) => "SELECT id, items::text FROM torture_list WHERE id IN ($1, $2)",
        (false, false) => "SELECT id, items FROM torture_text WHERE id IN ($1, $2)",
        _ => {
            "SELECT id, items::text FROM torture_list WHERE id IN ($1, $2) \
             UNION ALL SELECT id, items FROM torture_text WHERE id IN ($1, $2)"
        }
    };
    Step::new(sql, &[first, second], Vec::new(), move |answer| {
        Ok(vec![read_or_empty(answer, first)?, read_or_empty(answer, second)?])
    })
}

/// The client computes the new list itself, under a lock that it took for it.
async fn read_for_update_then_append(client: &mut Client) -> Result<(), Over> {
    let place = client.random.random_range(0..LISTS) / 2 * 2;
    let list = client.world.list(place, true);
    if !client.world.is_there(list) {
        return Ok(());
    }
    let value = client.world.fresh();
    let lock = if is_array(list) {
        "SELECT id, items FROM torture_list WHERE id = $1 FOR UPDATE"
    } else {
        "SELECT id, items FROM torture_text WHERE id = $1 FOR NO KEY UPDATE"
    };
    let lock = Step::new(lock, &[list], Vec::new(), move |answer| Ok(vec![read(answer, 0, list)?]));
    let update = if is_array(list) {
        "UPDATE torture_list SET items = items || $2::bigint WHERE id = $1 AND cardinality(items) = $3"
    } else {
        "UPDATE torture_text SET items = items || ' ' || ($2::bigint)::text \
         WHERE id = $1 AND cardinality(string_to_array(trim(items), ' ')) = $3"
    };
    let mut open = client.begin(format!("{NAME}, FOR UPDATE"), On::Main, false).await?;
    let answer = client.step(&mut open, &lock).await?;
    let length = answer.ints(0, 1).map(|items| i64::try_from(items.len()).unwrap_or(-1)).unwrap_or(-1);
    let write = Operation::Append { list: world::list(list), value: world::value(value) };
    // Whoever holds the lock finds the list as it was, so exactly one row changes.
    let update = Step::write(update, &[list, value, length], write);
    client.step(&mut open, &update).await?;
    client.commit(open).await;
    Ok(())
}

/// The read of a list from a row (id, items).
fn read(answer: &Answer, row: usize, list: i64) -> Result<Operation, String> {
    if answer.int(row, 0)? != list {
        return Err(format!("row {list} expected, got {}", answer.int(row, 0)?));
    }
    let values = answer.ints(row, 1)?.into_iter().map(world::value).collect();
    Ok(Operation::ReadList { list: world::list(list), values })
}

fn read_or_empty(answer: &Answer, list: i64) -> Result<Operation, String> {
    for row in 0..answer.rows.len() {
        if answer.int(row, 0)? == list {
            return read(answer, row, list);
        }
    }
    Ok(Operation::ReadList { list: world::list(list), values: Vec::new() })
}
