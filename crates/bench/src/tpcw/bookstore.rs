//! The bookstore in the database: what was loaded, and which ids are in use.

use onecopy_workload::Timestamp;
use onecopy_workload::tpcw::{Highest, Population, Scale};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{Error, Result};

/// A table of one row that says what was loaded; made last, so that it stands for a whole bookstore.
pub(crate) const MARK_TABLE: &str = "tpcw_bookstore";

/// What the database holds: `None` is no bookstore.
pub(crate) async fn find(client: &Client) -> Result<Option<(Population, u64)>> {
    // Through the simple protocol, which every proxy knows.
    let query = format!("SELECT items, browsers, seed, loaded_at_us FROM {MARK_TABLE}");
    let row = match first_row(client, &query).await {
        Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE) => return Ok(None),
        found => found?,
    };
    let [items, browsers, seed, loaded_at] = row[..] else { return Ok(None) };
    let scale = Scale::new(items, browsers).map_err(|error| Error::Option(error.to_string()))?;
    let seed = seed as u64;
    Ok(Some((Population::new(scale, seed, Timestamp { micros: loaded_at }), seed)))
}

/// The statements that make the mark.
pub(crate) fn mark(scale: Scale, seed: u64, loaded_at: Timestamp) -> [String; 2] {
    let create = format!(
        "CREATE TABLE {MARK_TABLE} (items integer PRIMARY KEY, browsers integer NOT NULL, \
         seed bigint NOT NULL, loaded_at_us bigint NOT NULL)"
    );
    // A seed uses all 64 bits; the column has a sign.
    let (items, browsers, seed, micros) = (scale.items(), scale.browsers(), seed as i64, loaded_at.micros);
    let insert = format!("INSERT INTO {MARK_TABLE} VALUES ({items}, {browsers}, {seed}, {micros})");
    [create, insert]
}

/// What the server calls its version; nothing if it does not say.
pub(crate) async fn server_version(client: &Client) -> String {
    let said = client.simple_query("SHOW server_version").await.unwrap_or_default();
    let cell = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    said.iter().find_map(cell).unwrap_or_default()
}

/// The highest ids in use.
pub(crate) async fn highest(client: &Client) -> Result<Highest> {
    let mut found = [0; 4];
    for (place, (column, table)) in
        [("c_id", "customer"), ("addr_id", "address"), ("o_id", "orders"), ("sc_id", "shopping_cart")]
            .into_iter()
            .enumerate()
    {
        let row = first_row(client, &format!("SELECT coalesce(max({column}), 0) FROM {table}")).await?;
        found[place] = row.first().copied().unwrap_or(0);
    }
    let [customer, address, order, cart] = found;
    Ok(Highest { customer, address, order, cart })
}

/// The integers of a query's first row; empty if there is none.
pub(crate) async fn first_row(client: &Client, query: &str) -> Result<Vec<i64>> {
    Ok(rows(client, query).await?.into_iter().next().unwrap_or_default())
}

/// The integers of a query's rows, through the simple protocol.
pub(crate) async fn rows(client: &Client, query: &str) -> Result<Vec<Vec<i64>>> {
    let messages = client.simple_query(query).await.map_err(Error::database(format!("run {query:?}")))?;
    let mut rows = Vec::new();
    for message in messages {
        let SimpleQueryMessage::Row(row) = message else { continue };
        let ints =
            (0..row.len()).map(|column| row.get(column).and_then(|text| text.parse().ok()).unwrap_or(0));
        rows.push(ints.collect());
    }
    Ok(rows)
}
