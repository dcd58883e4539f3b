//! Rows of divided tables are at their peers before these serve: what a server has is looked at, and what was copied whole is dealt, once.

use onecopy_core::NodeId;

use super::parts::{self, Parts};
use crate::agent::quote;
use crate::errors::ServeError;
use crate::lane::LaneError;
use crate::settings::Settings;
use crate::sites::database::Database;

/// Whether rows of tables that are divided by a column are to be removed here, since they belong to others, and a digest of what there is before that.
///
/// # Errors
/// If there are such rows, and they are not to be, or were dealt in another way before.
pub async fn look_before_serving(
    settings: &Settings,
    database: &Database,
    parts: &Parts,
    me: NodeId,
) -> Result<(bool, String), ServeError> {
    let failed = |error: LaneError| ServeError::Replicas(format!("look at divided tables: {error}"));
    let found = look(database, parts, me).await.map_err(failed)?;
    let Found { others, dealt, is_bytes, unchecked, contents } = found;
    if let Some(what) = unchecked {
        let what = format!(
            "peers.parts: rows that come from another peer could not be added, since they need not satisfy {what}, which is NOT VALID: have PostgreSQL VALIDATE it"
        );
        return Err(ServeError::Settings(what));
    }
    if is_bytes {
        return Err(ServeError::Settings(
            "peers.parts needs a database whose encoding is known, and this one's is SQL_ASCII".to_owned(),
        ));
    }
    let refused = |what: &str| {
        Err(ServeError::Settings(format!(
            "{others} rows of tables in peers.parts belong to other peers; {what}"
        )))
    };
    match dealt {
        Some(dealt) if dealt != parts.shown() && others > 0 => refused(
            "rows were dealt by other columns, bounds or peers before, so no server may have them all: bring each row to its peer, by pg_dump or COPY, and drop the table onecopy.parts at all",
        ),
        Some(dealt) if dealt == parts.shown() && others > 0 => refused(
            "they were not there when rows were dealt: see whether their peers have them, and remove them here",
        ),
        None if others > 0 && !settings.deals => refused(
            "if all databases were copied whole, so that each has all rows, start all peers once with peers.deals = true, by which each removes what is not its own",
        ),
        Some(_) => Ok((false, String::new())),
        None if settings.deals => Ok((true, contents)),
        None => Ok((false, String::new())),
    }
}

/// What a server has of divided tables before its peer serves.
struct Found {
    /// Rows that belong to other peers.
    others: u64,
    /// How rows were dealt before, if they were.
    dealt: Option<String>,
    /// The server does not know what its bytes mean, so rows cannot be read as text.
    is_bytes: bool,
    /// A constraint that rows need not satisfy.
    unchecked: Option<String>,
    /// A digest of all rows.
    contents: String,
}

/// Looks at a server before its peer serves.
///
/// # Errors
/// When the server cannot be asked.
async fn look(database: &Database, parts: &Parts, me: NodeId) -> Result<Found, LaneError> {
    let mut lane = database.lend().await?;
    parts::open(&mut lane).await?;
    let others = parts.count_others(&mut lane, me).await?;
    let exists = lane.query("SELECT pg_catalog.to_regclass('onecopy.parts') IS NOT NULL").await?;
    let dealt = match exists.first().and_then(|row| row.first()).and_then(Option::as_deref) {
        Some("t") => {
            lane.query("SELECT division FROM onecopy.parts").await?.into_iter().flatten().flatten().next()
        }
        _ => None,
    };
    let encoding = lane.query("SHOW server_encoding").await?.into_iter().flatten().flatten().next();
    let (unchecked, contents) = (parts.unchecked(&mut lane).await?, parts.digest(&mut lane).await?);
    database.leave(lane).await;
    let is_bytes = encoding.as_deref() == Some("SQL_ASCII");
    Ok(Found { others, dealt, is_bytes, unchecked, contents })
}

/// Removes what a peer has of rows that belong to others, and notes how they were dealt. Returns how many.
///
/// # Errors
/// When the server cannot do it.
pub async fn deal(database: &Database, parts: &Parts, me: NodeId) -> Result<u64, LaneError> {
    let mut lane = database.lend().await?;
    parts::open(&mut lane).await?;
    let others = parts.keep_own(&mut lane, &parts.everything(), me).await?;
    lane.command(&format!(
        "CREATE SCHEMA IF NOT EXISTS onecopy; CREATE TABLE IF NOT EXISTS onecopy.parts (division text NOT NULL); \
         DELETE FROM onecopy.parts; INSERT INTO onecopy.parts VALUES ({})",
        quote(&parts.shown())
    ))
    .await?;
    database.commit_durably(lane).await?;
    Ok(others)
}
