//! `onecopy.progress`: what a replica contains, written in the same database transaction as what it says (design 3.4).
//!
//! One row a database transaction, with the last CSN that it contains; rows are only ever inserted: a single hot row falls to
//! a quarter of its speed under a held snapshot. `prev` must not be null and is looked up as the newest row, which must be
//! that of the CSN before: a commit whose predecessor is not there, or that is there already, raises an error.
//!
//! A commit that was annulled has a row of its own, with its epoch below zero.

use std::collections::BTreeSet;
use std::time::Duration;

use onecopy_core::Csn;
use onecopy_wire::frontend::build;
use onecopy_wire::{Format, WireError};

use crate::lane::{Lane, LaneError, StatementKey};
use crate::postgres::connect::SESSION_MARK;

/// Rows kept behind the newest; older ones are of no use to anybody.
pub const KEEP_ROWS: u64 = 10_000;

/// How often the sessions that are to end are looked at: for some seconds.
const FENCE_ROUNDS: u32 = 40;

/// The statement of an agent's lane that marks commits: `$1` the CSN before them, `$2` the last one, `$3` the epoch.
pub const ADVANCE: &str = "INSERT INTO onecopy.progress (csn, prev, epoch) VALUES ($2, \
     (SELECT newest.csn FROM (SELECT p.csn FROM onecopy.progress p ORDER BY p.csn DESC LIMIT 1) newest \
     WHERE newest.csn = $1), $3)";
/// Parameter types of [`ADVANCE`]: three bigints.
pub const ADVANCE_TYPES: [u32; 3] = [20, 20, 20];

/// The same for a lane of a client's role: a function with the owner's rights, and `$3` that proves to it that
/// onecopy is calling.
pub const ADVANCE_AS_CLIENT: &str = "SELECT onecopy.advance($1, $2, $3)";
/// Parameter types of [`ADVANCE_AS_CLIENT`].
pub const ADVANCE_AS_CLIENT_TYPES: [u32; 3] = [20, 20, 25];

/// What a replica says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// The log that its commits come from.
    pub log_id: String,
    /// Epoch of its newest commit.
    pub epoch: u64,
    /// Its newest commit.
    pub csn: Csn,
    /// Proves to the replica that onecopy is calling.
    pub secret: String,
    /// Why it must not serve: its contents were found to differ.
    pub differs: Option<String>,
}

/// Reads the position; `None` on a server that onecopy has never used.
pub async fn read(lane: &mut Lane) -> Result<Option<Position>, LaneError> {
    let exists = lane.query("SELECT pg_catalog.to_regclass('onecopy.progress') IS NOT NULL").await?;
    if exists.first().and_then(|row| row.first()).and_then(Option::as_deref) != Some("t") {
        return Ok(None);
    }
    let rows = lane
        .query(
            "SELECT m.log_id, m.secret, p.epoch, p.csn, pg_catalog.to_jsonb(m) ->> 'differs' FROM onecopy.meta m, \
             (SELECT epoch, csn FROM onecopy.progress ORDER BY csn DESC LIMIT 1) p",
        )
        .await?;
    Ok(rows.into_iter().next().map(|row| {
        let differs = row.get(4).cloned().flatten();
        let mut values = row.into_iter().map(Option::unwrap_or_default);
        let mut next = || values.next().unwrap_or_default();
        let (log_id, secret) = (next(), next());
        let epoch = next().parse::<i64>().map_or(0, i64::unsigned_abs);
        let csn = next().parse().unwrap_or(0);
        Position { log_id, epoch, csn: Csn(csn), secret, differs }
    }))
}

/// The first commit after which a replica can tell which commits it has passed over, since they were annulled; and those.
pub async fn passed_over(lane: &mut Lane) -> Result<(Csn, BTreeSet<Csn>), LaneError> {
    let sql = "(SELECT csn FROM onecopy.progress ORDER BY csn LIMIT 1) UNION ALL SELECT csn FROM onecopy.progress WHERE epoch < 0";
    let rows = lane.query(sql).await?;
    let mut numbers = rows.iter().flatten().flatten().map(|number| Csn(number.parse().unwrap_or(0)));
    let lowest = numbers.next().unwrap_or(Csn(0));
    Ok((lowest.next(), numbers.collect()))
}

/// Notes on a replica that its contents differ from what they should be: it is not to serve again. The column is made when
/// it is first needed.
pub async fn exclude(lane: &mut Lane, reason: &str) -> Result<(), LaneError> {
    // What was under way behind it may have failed. And this must not be lost by a crash.
    lane.command("ROLLBACK").await?;
    let reason = crate::agent::quote(reason);
    lane.command(&format!(
        "SET synchronous_commit = on; ALTER TABLE onecopy.meta ADD COLUMN IF NOT EXISTS differs text; \
         UPDATE onecopy.meta SET differs = {reason}"
    ))
    .await
}

/// Creates the schema on a server that shall follow a log from `csn` on.
pub async fn create(lane: &mut Lane, log_id: &str, secret: &str, csn: Csn) -> Result<(), LaneError> {
    lane.command(&create_sql(log_id, secret, csn)).await
}

/// The commands that create the schema: what `create` sends.
pub fn create_sql(log_id: &str, secret: &str, csn: Csn) -> String {
    format!(
        "BEGIN; {}; INSERT INTO onecopy.progress VALUES ({csn}, {csn}, 0); COMMIT",
        schema_sql(log_id, secret),
        csn = csn.0
    )
}

/// The commands that make the schema without saying what the server contains: in the transaction that makes it, at least one
/// row of progress must follow.
pub fn schema_sql(log_id: &str, secret: &str) -> String {
    format!(
        "CREATE SCHEMA onecopy;
         CREATE TABLE onecopy.meta (log_id text NOT NULL, secret text NOT NULL);
         INSERT INTO onecopy.meta VALUES ('{log_id}', '{secret}');
         {LEADER_SQL};
         CREATE TABLE onecopy.progress (
             csn bigint PRIMARY KEY, prev bigint NOT NULL, epoch bigint NOT NULL
         ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000);
         CREATE FUNCTION onecopy.advance(commit_number bigint, in_epoch bigint, proof text) RETURNS void
         LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $body$
         BEGIN
             IF proof IS DISTINCT FROM encode(sha256(convert_to(
                 (SELECT m.secret FROM onecopy.meta m) || ':' || commit_number || ':' || in_epoch, 'UTF8')), 'hex')
             THEN
                 RAISE EXCEPTION 'onecopy.advance may only be called by onecopy' USING ERRCODE = '42501';
             END IF;
             INSERT INTO onecopy.progress (csn, prev, epoch) VALUES (commit_number,
                 (SELECT newest.csn FROM (SELECT p.csn FROM onecopy.progress p ORDER BY p.csn DESC LIMIT 1) newest
                  WHERE newest.csn = commit_number - 1), in_epoch);
         END $body$;
         REVOKE ALL ON SCHEMA onecopy FROM PUBLIC;
         GRANT USAGE ON SCHEMA onecopy TO PUBLIC;
         REVOKE ALL ON ALL TABLES IN SCHEMA onecopy FROM PUBLIC;
         GRANT EXECUTE ON FUNCTION onecopy.advance TO PUBLIC"
    )
}

/// What says which of several nodes may use the replica: the newest epoch that has.
const LEADER_SQL: &str = "ALTER TABLE onecopy.meta ADD COLUMN leader bigint NOT NULL DEFAULT 0;
         CREATE FUNCTION onecopy.leader() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER
             SET search_path = pg_catalog AS 'SELECT m.leader FROM onecopy.meta m'";
/// Asks for that, whoever asks.
pub const LEADER: &str = "onecopy.leader()";

/// Claims the replica for a node that leads in this epoch: to be done before the sessions of others are ended, since whoever
/// connects afterwards sees it, and whoever was connected before is ended.
async fn claim(lane: &mut Lane, Claim { epoch, log_id }: Claim<'_>) -> Result<(), FenceError> {
    let exists = "SELECT pg_catalog.to_regclass('onecopy.meta') IS NOT NULL, \
         pg_catalog.to_regprocedure('onecopy.leader()') IS NOT NULL";
    let rows = lane.query(exists).await?;
    let is_there =
        |nth: usize| rows.first().and_then(|row| row.get(nth)).and_then(Option::as_deref) == Some("t");
    if !is_there(0) {
        // onecopy has never used it.
        return Ok(());
    }
    if !is_there(1) {
        // It was made by a version that knew of one node only.
        lane.command(&format!("BEGIN; {LEADER_SQL}; COMMIT")).await?;
    }
    let followed = lane.query("SELECT log_id FROM onecopy.meta").await?;
    let followed = followed.into_iter().flatten().next().flatten().unwrap_or_default();
    if followed != log_id {
        // Whoever serves by that log is not to be disturbed.
        return Err(FenceError::OtherLog { followed, ours: log_id.to_owned() });
    }
    // A crash of the server must not forget it.
    lane.command(&format!(
        "BEGIN; SET LOCAL synchronous_commit = on; \
         UPDATE onecopy.meta SET leader = {epoch} WHERE leader < {epoch}; COMMIT"
    ))
    .await?;
    let found = lane.query(&format!("SELECT {LEADER}")).await?;
    let found = found.first().and_then(|row| row.first()).and_then(|value| value.as_deref()?.parse().ok());
    match found {
        Some(found) if found == epoch => Ok(()),
        found => Err(FenceError::Deposed { found: found.unwrap_or(0), epoch }),
    }
}

/// By what a node claims a replica, where there are several and this one leads.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub epoch: u64,
    pub log_id: &'a str,
}

/// Claims the replica, if there is something to claim it by, and ends every earlier session on it.
pub async fn fence_for(lane: &mut Lane, by: Option<Claim<'_>>) -> Result<(), FenceError> {
    if let Some(by) = by {
        claim(lane, by).await?;
    }
    fence(lane).await
}

/// Ends every earlier session of onecopy on the replica, and waits until none is left: commands that were sent before
/// a connection broke may still be running (design 3.4). One that does not end for seconds is reported, and the replica
/// must not be used.
async fn fence(lane: &mut Lane) -> Result<(), FenceError> {
    let terminate = format!(
        "SELECT l.pid, pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l \
         WHERE l.locktype = 'advisory' AND l.classid::bigint = {SESSION_MARK} AND l.pid <> pg_catalog.pg_backend_pid() \
         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())"
    );
    let mut pause = Duration::from_millis(1);
    for _ in 1..FENCE_ROUNDS {
        if lane.query(&terminate).await?.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
    let remaining = lane.query(&terminate).await?;
    let pids: Vec<String> =
        remaining.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
    if pids.is_empty() { Ok(()) } else { Err(FenceError::SessionsRemain(pids.join(", "))) }
}

/// Why a replica is not fenced.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error(
        "earlier sessions of onecopy on it do not end, and what they execute may still be committed (process ids on its server: {0}); let them go on if they are stopped, or restart the server"
    )]
    SessionsRemain(String),
    #[error("another node leads: it uses the replica in epoch {found}, and this one leads in {epoch}")]
    Deposed { found: u64, epoch: u64 },
    #[error(
        "it follows log {followed}, and the one of this node is {ours}: was this node begun with another secret, database or `voting` than those that serve?"
    )]
    OtherLog { followed: String, ours: String },
}

/// Appends what marks, by an agent's lane, the commits after `before` up to `to`.
pub fn put_advance(lane: &mut Lane, before: Csn, to: Csn, epoch: i64) -> Result<(), WireError> {
    let key = StatementKey::of(ADVANCE, &ADVANCE_TYPES);
    let (name, _) = lane.prepare(key, ADVANCE, &ADVANCE_TYPES)?;
    let numbers = [before.0 as i64, to.0 as i64, epoch].map(i64::to_be_bytes);
    let params = numbers.iter().map(|number| Some(&number[..]));
    build::bind(&mut lane.output, "", &name, [Format::Binary], params, [])?;
    build::execute(&mut lane.output, "", 0)
}

/// Whether there is anything to prune, and enough of it, since it was done at `pruned`. With exactly as many rows as are
/// kept there is nothing: to prune then would put the first row off until there are twice as many.
pub fn is_due(pruned: Csn, applied: Csn) -> bool {
    applied.0 > pruned.0.saturating_add(KEEP_ROWS)
}

/// Deletes rows that nobody needs any more: those that have become too old since it was done at `pruned`.
pub async fn prune(lane: &mut Lane, pruned: Csn, applied: Csn) -> Result<(), LaneError> {
    lane.command(&prune_sql(pruned, applied)).await
}

/// The command that `prune` sends. It names where to begin: a snapshot that is held open keeps the index entries of all that
/// was deleted since, and a search from the lowest one on would read them again each time.
pub fn prune_sql(pruned: Csn, applied: Csn) -> String {
    let [from, to] = [pruned, applied].map(|csn| csn.0.saturating_sub(KEEP_ROWS));
    format!("DELETE FROM onecopy.progress WHERE csn >= {from} AND csn < {to}")
}

/// What proves to [`ADVANCE_AS_CLIENT`] that onecopy is calling, for one commit only.
pub fn proof(secret: &str, csn: Csn, epoch: u64) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{secret}:{}:{epoch}", csn.0));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_always_deletes_something_whenever_it_is_looked_at() {
        let lowest_after =
            |pruned: u64, applied: u64| is_due(Csn(pruned), Csn(applied)).then(|| applied - KEEP_ROWS);
        assert_eq!(lowest_after(0, KEEP_ROWS), None);
        for applied in KEEP_ROWS + 1..KEEP_ROWS + 100 {
            assert_eq!(lowest_after(0, applied), Some(applied - KEEP_ROWS));
            assert_eq!(lowest_after(applied, applied + KEEP_ROWS), None);
            assert_eq!(lowest_after(applied, applied + KEEP_ROWS + 1), Some(applied + 1));
        }
    }
}
