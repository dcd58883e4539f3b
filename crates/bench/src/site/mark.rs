//! A site in the database: what was loaded, and which ids are in use.

use onecopy_workload::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{Options, Website};
use crate::{Error, Result};

/// A site that was found.
pub(crate) struct Found<S: Website> {
    /// The one that was asked for, of the size that was found.
    pub(crate) site: S,
    pub(crate) seed: u64,
    pub(crate) population: S::Population,
}

/// Has all queries up to [`end`] show what was committed before, if that must be asked for: where transactions go whole, a query by itself
/// may show an older state.
pub(super) async fn begin<T>(client: &Client, options: &Options<T>) -> Result<()> {
    command(client, options, "BEGIN").await
}

/// After [`begin`].
pub(super) async fn end<T>(client: &Client, options: &Options<T>) -> Result<()> {
    command(client, options, "COMMIT").await
}

async fn command<T>(client: &Client, options: &Options<T>, command: &str) -> Result<()> {
    if !options.whole {
        return Ok(());
    }
    client.batch_execute(command).await.map_err(Error::database(format!("run {command}")))
}

/// What the database holds, whatever the size of the site that is asked for.
///
/// # Errors
/// [`Error::NotLoaded`] if it holds none of this kind.
pub(crate) async fn find<S: Website>(client: &Client, site: &S) -> Result<Found<S>> {
    let found = look_for(client, site).await?;
    found.ok_or(Error::NotLoaded { site: S::NAME, options: S::LOAD_OPTIONS })
}

/// The same; `None` is no site of this kind.
pub(super) async fn look_for<S: Website>(client: &Client, site: &S) -> Result<Option<Found<S>>> {
    let [first, second] = S::SCALE;
    // Through the simple protocol, which every proxy knows.
    let query = format!("SELECT {first}, {second}, seed, loaded_at_us FROM {}", S::MARK_TABLE);
    let row = match first_row(client, &query).await {
        Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE) => return Ok(None),
        found => found?,
    };
    let [first, second, seed, micros] = row[..] else { return Ok(None) };
    let (site, seed) = (site.of_scale([first, second]), seed as u64);
    let population = site.population(seed, Timestamp { micros })?;
    Ok(Some(Found { site, seed, population }))
}

/// The statements that make the mark.
pub(super) fn mark<S: Website>(site: &S, seed: u64, loaded_at: Timestamp) -> [String; 2] {
    let (table, [first, second]) = (S::MARK_TABLE, S::SCALE);
    let create = format!(
        "CREATE TABLE {table} ({first} integer PRIMARY KEY, {second} integer NOT NULL, \
         seed bigint NOT NULL, loaded_at_us bigint NOT NULL)"
    );
    // A seed uses all 64 bits; the column has a sign.
    let ([first, second], seed, micros) = (site.scale(), seed as i64, loaded_at.micros);
    let insert = format!("INSERT INTO {table} VALUES ({first}, {second}, {seed}, {micros})");
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

/// The highest ids in use, by [`Website::IDS`].
pub(crate) async fn highest<S: Website>(client: &Client) -> Result<Vec<i64>> {
    let mut highest = Vec::new();
    for together in S::IDS {
        let mut most = 0;
        for (column, table) in *together {
            let row = first_row(client, &format!("SELECT coalesce(max({column}), 0) FROM {table}")).await?;
            most = most.max(row.first().copied().unwrap_or(0));
        }
        highest.push(most);
    }
    Ok(highest)
}

/// The integers of a query's first row; empty if there is none.
async fn first_row(client: &Client, query: &str) -> Result<Vec<i64>> {
    Ok(rows(client, query).await?.into_iter().next().unwrap_or_default())
}

/// The integers of a query's rows, through the simple protocol.
pub(super) async fn rows(client: &Client, query: &str) -> Result<Vec<Vec<i64>>> {
    let messages = client.simple_query(query).await.map_err(Error::database(format!("run {query:?}")))?;
    let mut rows = Vec::new();
    for message in messages {
        let SimpleQueryMessage::Row(row) = message else { continue };
        let int = |column| {
            let text = row.get(column).unwrap_or("NULL");
            let unreadable =
                |_| Error::Option(format!("{query:?} answers {text} where an integer should be"));
            text.parse().map_err(unreadable)
        };
        rows.push((0..row.len()).map(int).collect::<Result<Vec<i64>>>()?);
    }
    Ok(rows)
}
