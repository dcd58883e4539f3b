//! Foreign keys that servers check although their columns keep their values: what they lock then is no item of the statement.

use super::clients::{block_on, connect, home_of};
use super::three::Three;
use super::wait_until;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

const TABLES: &str = "
    CREATE TABLE shop (id int PRIMARY KEY, name text UNIQUE);
    CREATE TABLE item (id int PRIMARY KEY, shop int NOT NULL REFERENCES shop, price int, stock int);
    CREATE TABLE piece (id int, region int, shop int REFERENCES shop, PRIMARY KEY (id, region))
        PARTITION BY LIST (region);
    CREATE TABLE piece_1 PARTITION OF piece FOR VALUES IN (1);
    CREATE TABLE piece_2 PARTITION OF piece FOR VALUES IN (2);
    CREATE TABLE other (id int PRIMARY KEY, n int);
    INSERT INTO shop SELECT n, 'shop ' || n FROM generate_series(1, 3) n;
    INSERT INTO item SELECT n, n, 0, 0 FROM generate_series(1, 3) n;
    INSERT INTO piece VALUES (1, 1, 1);
    INSERT INTO other VALUES (1, 0)";

const RENAME: &str = "UPDATE shop SET name = 'renamed' WHERE id = 1";
/// It writes the rows anew, which then are those of its transaction.
const COMPUTE: &str = "ALTER TABLE item ADD total int GENERATED ALWAYS AS (price * stock) STORED";

/// How often a transaction had to wait for another one.
fn waited(three: &Three) -> u64 {
    three.status()["status"]["grants_waited"].as_u64().unwrap()
}

#[test]
fn row_whose_keys_are_checked_again_waits_for_the_row_to_which_it_refers_where_a_circle_is_seen() {
    block_on(async {
        let three = Three::start();
        let [one, mut other] = three.clients(2).await.try_into().unwrap();
        one.batch_execute(TABLES).await.unwrap();
        let price = "UPDATE item SET price = price + 1 WHERE id = 1";
        for (before, change) in [
            (price, "UPDATE item SET stock = stock + 1 WHERE id = 1"),
            (price, "UPDATE item SET stock = 7 WHERE shop = 1"),
            (price, "UPDATE piece SET region = 2 WHERE id = 1"),
            (COMPUTE, "UPDATE item SET stock = 8 WHERE id = 1"),
        ] {
            one.batch_execute("BEGIN").await.unwrap();
            one.batch_execute(before).await.unwrap();
            let renaming = other.transaction().await.unwrap();
            renaming.batch_execute(RENAME).await.unwrap();
            let so_far = waited(&three);
            let closes_circle = async {
                wait_until("it waits", || waited(&three) > so_far);
                let refused =
                    renaming.batch_execute("UPDATE item SET price = 9 WHERE id = 1").await.unwrap_err();
                assert_eq!(refused.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{change}: {refused}");
                renaming.rollback().await.unwrap();
            };
            let (changed, ()) = tokio::join!(one.batch_execute(change), closes_circle);
            changed.unwrap();
            one.batch_execute("COMMIT").await.unwrap();
        }
        let all = "SELECT i.price, i.stock, i.total, p.region FROM item i JOIN piece p ON p.id = i.id";
        assert_eq!(three.everywhere(all).await, "3 8 24 2");
    });
}

/// Several commits change one row, and a replica that is the home of none of them has all of them to apply at once. A transaction
/// there has locked what the row refers to, and has its turn after them.
#[test]
fn commits_that_change_one_row_do_not_wait_together_for_a_transaction_with_a_later_turn() {
    block_on(async {
        let three = Three::start();
        let [one, mut other] = three.clients(2).await.try_into().unwrap();
        one.batch_execute(TABLES).await.unwrap();
        let renaming = other.transaction().await.unwrap();
        let rename = async { renaming.batch_execute(RENAME).await.unwrap() };
        let at = away_from_the_others(&three, &one, rename).await;
        let mut behind = connect(&three.file.replicas[at].dsn).await;
        let lock = behind.transaction().await.unwrap();
        lock.batch_execute("LOCK TABLE other").await.unwrap();
        // The first waits there for the lock, so that the others come together behind it.
        for change in [
            "UPDATE other SET n = 1 WHERE id = 1",
            "UPDATE item SET price = 5 WHERE id = 1",
            "UPDATE item SET stock = 6 WHERE id = 1",
            "UPDATE item SET price = 7 WHERE id = 1",
            COMPUTE,
            "UPDATE item SET stock = 8 WHERE id = 1",
        ] {
            let home = home_of(three.dir.path(), async { one.batch_execute(change).await.unwrap() }).await;
            assert_ne!(home, at);
        }
        lock.rollback().await.unwrap();
        let applied =
            |status: &serde_json::Value, of: usize| status["replicas"][of]["applied"].as_u64().unwrap();
        let last = (0..3).map(|of| applied(&three.status(), of)).max().unwrap();
        wait_until("they are applied", || applied(&three.status(), at) >= last);
        renaming.commit().await.unwrap();
        let all = "SELECT s.name, i.price, i.stock, i.total FROM item i JOIN shop s ON s.id = i.shop WHERE i.id = 1";
        assert_eq!(three.everywhere(all).await, "renamed 7 8 56");
    });
}

/// Executes a transaction's first statement while the replica on which transactions find their homes has so much to do that
/// it finds another one: which one.
async fn away_from_the_others(three: &Three, others: &Client, execute: impl Future<Output = ()>) -> usize {
    let long = "SELECT pg_sleep(0.1) FROM other WHERE id = 1 FOR UPDATE";
    // What it costs is learned.
    let usual = home_of(three.dir.path(), async { others.batch_execute(long).await.unwrap() }).await;
    let mut behind = connect(&three.file.replicas[usual].dsn).await;
    let lock = behind.transaction().await.unwrap();
    // There it is not done with the next one before the other statement has found its home.
    lock.batch_execute("LOCK TABLE other").await.unwrap();
    let (slept, at) = tokio::join!(others.batch_execute(long), async {
        wait_until("it is sent", || {
            three.status()["replicas"][usual]["outstanding_ms"].as_f64().unwrap() > 0.0
        });
        let at = home_of(three.dir.path(), execute).await;
        lock.rollback().await.unwrap();
        at
    });
    slept.unwrap();
    assert_ne!(at, usual);
    at
}
