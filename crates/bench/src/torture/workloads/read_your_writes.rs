//! One connection commits, and another of the same client reads at once: what was answered must be seen.

use onecopy_sim::check::{Operation, Status};
use rand::Rng;

use super::super::client::{Client, How, On};
use super::super::tally::End;
use super::super::world::LISTS;
use super::list_append::{append, read_one};

pub(super) async fn run(client: &mut Client) {
    let list = client.world.list(client.random.random_range(0..LISTS), true);
    let write = append(client, list);
    let (writer, reader) = if client.random.random() { (On::Main, On::Other) } else { (On::Other, On::Main) };
    let how = [How::Autocommit, How::Interactive, How::OneString][client.random.random_range(0..3)];
    let before = client.history.len();
    if client.batch_as("read your writes, write", writer, vec![write], how).await != End::Committed {
        return;
    }
    // Nothing, if it was rolled back to a savepoint.
    let written = committed(client, before).find_map(|step| match step {
        Operation::Append { value, .. } => Some(*value),
        _ => None,
    });
    let how = [How::Autocommit, How::Autocommit, How::Interactive][client.random.random_range(0..3)];
    let before = client.history.len();
    client.batch_as("read your writes, read", reader, vec![read_one(list)], how).await;
    // The checker would find it too; here it is told at once what the client noticed.
    let seen = committed(client, before).find_map(|step| match step {
        Operation::ReadList { values, .. } => Some(values.clone()),
        _ => None,
    });
    if let (Some(value), Some(values)) = (written, seen)
        && !values.contains(&value)
    {
        let missing =
            format!("list {list} was read as {values:?}, although the append of {value} had been answered");
        client.tally.broken("read your writes across connections", missing);
    }
}

/// The operations of committed transactions since a place in the history.
fn committed(client: &Client, since: usize) -> impl Iterator<Item = &Operation> {
    let transactions = client.history[since..].iter();
    transactions.filter(|transaction| transaction.status == Status::Committed).flat_map(|one| &one.operations)
}
