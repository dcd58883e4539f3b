//! Tables that are joined by key: of these only the rows that an answer shows are taken.

use super::clients::block_on;
use super::three::Three;
use super::wait_until;
use std::time::Duration;
use tokio_postgres::{Client, SimpleQueryMessage};

const TABLES: &str = "
    CREATE TABLE item (id int PRIMARY KEY, title text NOT NULL, stock int NOT NULL);
    CREATE TABLE line (id int PRIMARY KEY, cart int NOT NULL, item int NOT NULL REFERENCES item, qty int NOT NULL);
    INSERT INTO item SELECT n, 'title ' || n, 10 FROM generate_series(1, 80) n;
    INSERT INTO line SELECT n, 1, n, 0 FROM generate_series(1, 2) n;
    INSERT INTO line SELECT n, 2, n, 0 FROM generate_series(3, 80) n";

const CART: &str =
    "SELECT l.item, i.title FROM line l JOIN item i ON i.id = l.item WHERE l.cart = 1 ORDER BY l.id";
const CHANGE: &str = "UPDATE line SET qty = qty + 1 WHERE cart = 1";

fn count(three: &Three, what: &str) -> u64 {
    three.status()["status"][what].as_u64().unwrap()
}

/// The cart, by one of the ways in which clients ask.
async fn cart(client: &Client, way: &str) -> Vec<(i32, String)> {
    match way {
        "simple" => {
            let rows = client.simple_query(CART).await.unwrap();
            let row = |message: &SimpleQueryMessage| match message {
                SimpleQueryMessage::Row(row) => {
                    Some((row.get(0).unwrap().parse().unwrap(), row.get(1).unwrap().to_owned()))
                }
                _ => None,
            };
            rows.iter().filter_map(row).collect()
        }
        _ => client.query(CART, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect(),
    }
}

fn titles(titles: [&str; 2]) -> Vec<(i32, String)> {
    (1..).zip(titles).map(|(id, title)| (id, title.to_owned())).collect()
}

#[test]
fn whoever_has_seen_rows_of_a_joined_table_holds_these_and_no_others() {
    block_on(async {
        let three = Three::start();
        let [mut one, other, third] = three.clients(3).await.try_into().unwrap();
        other.batch_execute(TABLES).await.unwrap();
        for way in ["simple", "extended"] {
            // A read phase that becomes a transaction at home, and a read at home.
            for reads_first in [true, false] {
                let txn = one.transaction().await.unwrap();
                if reads_first {
                    cart(txn.client(), way).await;
                }
                txn.batch_execute(CHANGE).await.unwrap();
                if !reads_first {
                    cart(txn.client(), way).await;
                }
                let waited = count(&three, "grants_waited");
                other.batch_execute("UPDATE item SET title = 'other' WHERE id = 3").await.unwrap();
                assert_eq!(count(&three, "grants_waited"), waited, "{way}");
                let change = async {
                    third.batch_execute("UPDATE item SET title = 'title 1' WHERE id = 1").await.unwrap();
                };
                let then = async {
                    wait_until("it waits", || count(&three, "grants_waited") > waited);
                    txn.commit().await.unwrap();
                };
                tokio::join!(change, then);
            }
        }
        assert_eq!(count(&three, "executed_again"), 0);
    });
}

#[test]
fn an_answer_that_shows_a_row_of_another_transaction_is_had_again_when_that_is_over() {
    block_on(async {
        let three = Three::start();
        let [mut one, mut other] = three.clients(2).await.try_into().unwrap();
        other.batch_execute(TABLES).await.unwrap();
        for (way, title) in [("simple", "first"), ("extended", "second")] {
            let changing = other.transaction().await.unwrap();
            changing.execute("UPDATE item SET title = $1 WHERE id = 2", &[&title]).await.unwrap();
            let txn = one.transaction().await.unwrap();
            txn.batch_execute(CHANGE).await.unwrap();
            let again = count(&three, "executed_again");
            let then = async {
                // The other future must be polled meanwhile.
                while count(&three, "executed_again") == again {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                changing.commit().await.unwrap();
            };
            let (seen, ()) = tokio::join!(cart(txn.client(), way), then);
            assert_eq!(seen, titles(["title 1", title]), "{way}");
            txn.commit().await.unwrap();
        }
        // The client may also give up.
        let changing = other.transaction().await.unwrap();
        changing.batch_execute("UPDATE item SET title = 'third' WHERE id = 2").await.unwrap();
        let txn = one.transaction().await.unwrap();
        txn.batch_execute("SET LOCAL lock_timeout = '200ms'").await.unwrap();
        txn.batch_execute(CHANGE).await.unwrap();
        let refused = txn.simple_query(CART).await.unwrap_err();
        assert_eq!(refused.code(), Some(&tokio_postgres::error::SqlState::LOCK_NOT_AVAILABLE), "{refused}");
        txn.rollback().await.unwrap();
        changing.commit().await.unwrap();
        assert_eq!(cart(&one, "simple").await, titles(["title 1", "third"]));
    });
}

#[test]
fn an_answer_too_large_to_be_held_is_streamed_under_the_whole_table() {
    block_on(async {
        let three = Three::start();
        let [mut one, other] = three.clients(2).await.try_into().unwrap();
        other.batch_execute(TABLES).await.unwrap();
        let txn = one.transaction().await.unwrap();
        txn.batch_execute(CHANGE).await.unwrap();
        let large = "SELECT l.item, i.title, repeat('x', 1000000) FROM line l JOIN item i ON i.id = l.item WHERE l.cart = 2";
        // A function is no part of a plain join; a title may be as long.
        assert_eq!(txn.query(large, &[]).await.unwrap().len(), 78);
        assert_eq!(count(&three, "executed_again"), 0);
        txn.rollback().await.unwrap();

        other.batch_execute("UPDATE item SET title = repeat('x', 1000000) WHERE id > 2").await.unwrap();
        let txn = one.transaction().await.unwrap();
        txn.batch_execute(CHANGE).await.unwrap();
        let large = "SELECT l.item, i.title FROM line l JOIN item i ON i.id = l.item WHERE l.cart = 2";
        let rows = txn.query(large, &[]).await.unwrap();
        assert!(rows.len() == 78 && rows.iter().all(|row| row.get::<_, &str>(1).len() == 1_000_000));
        assert_eq!(count(&three, "executed_again"), 1);
        let waited = count(&three, "grants_waited");
        let then = async {
            wait_until("it waits", || count(&three, "grants_waited") > waited);
            txn.commit().await.unwrap();
        };
        let (changed, ()) =
            tokio::join!(other.batch_execute("UPDATE item SET title = 'short' WHERE id = 1"), then);
        changed.unwrap();
    });
}
