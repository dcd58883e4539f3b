//! How a transaction begins and ends on a connection: commands of our own around its statements. They are prepared once on each connection, and go
//! in one batch with what comes after them or before, since at small transactions they would cost a server more than the statements do.

use std::fmt::Write as _;

use onecopy_core::Csn;
use onecopy_core::multicast::MessageId;
use onecopy_wire::WireError;
use onecopy_wire::frontend::build;
use smallvec::SmallVec;

use crate::lane::{Lane, LaneError, StatementKey};
use crate::record::Record;

#[cfg(test)]
mod tests;

/// What is onecopy's own is not its client's.
const NO_ROLE: &str = "SET LOCAL ROLE NONE";
/// Ends what has only read.
pub const ROLLBACK: &str = "ROLLBACK";
/// Takes a transaction's snapshot, if nothing before it has.
const SNAPSHOT: &str = "SELECT";
/// Notes what stands at a place, and at several.
const CHANGED: &str = "INSERT INTO onecopy.site_progress VALUES ($1, $2, $3, $4, true)";
const ALL_CHANGED: &str = "INSERT INTO onecopy.site_progress SELECT *, true FROM ROWS FROM \
    (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]), \
    pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.int8[]))";
/// The same of what has changed nothing, which another commit may have noted.
const UNCHANGED: &str = "INSERT INTO onecopy.site_progress SELECT *, false FROM ROWS FROM \
    (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]), \
    pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.int8[])) \
    ON CONFLICT (place) DO NOTHING";

/// How a transaction is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// In a snapshot, to read only.
    Query,
    /// Beside others that nobody has put in an order: the server does.
    Serializable {
        /// Not only to read.
        writes: bool,
    },
    /// In a snapshot, before anybody has put it in an order.
    Certified {
        /// It promised not to write.
        read_only: bool,
        /// As of `Update`.
        checks_at_once: bool,
    },
    /// Behind all that it conflicts with.
    Update {
        /// Some constraint may be checked at the end only: it is to be checked at once.
        checks_at_once: bool,
    },
}

impl Begin {
    fn command(self) -> &'static str {
        match self {
            Begin::Query | Begin::Certified { read_only: true, .. } => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            }
            Begin::Serializable { writes: false } => "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY",
            Begin::Serializable { writes: true } => "BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE",
            Begin::Update { .. } => "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE",
            Begin::Certified { .. } => "BEGIN ISOLATION LEVEL REPEATABLE READ, READ WRITE",
        }
    }
}

/// Commands of our own that were appended to a connection's output and have not been answered.
#[derive(Debug, Default)]
pub struct Own {
    /// How many there are, each of which is to be completed.
    pub commands: usize,
    prepared: SmallVec<[StatementKey; 4]>,
}

impl Own {
    /// Appends one.
    pub fn put(&mut self, lane: &mut Lane, sql: &str, params: &[&str]) -> Result<(), WireError> {
        self.prepared.extend(lane.put_own(sql, params)?);
        self.commands += 1;
        Ok(())
    }

    /// They may not have been reached, so what was prepared with them is not to be relied on.
    pub fn forget(self, lane: &mut Lane) {
        self.prepared.into_iter().for_each(|key| lane.unprepare_own(key));
    }

    /// Sends them, and waits for their end.
    ///
    /// # Errors
    /// When one of them fails, and none after it is executed; or the connection is lost.
    pub async fn carry_out(self, lane: &mut Lane) -> Result<(), LaneError> {
        build::sync(&mut lane.output);
        lane.flush_while_reading().await?;
        let done = lane.collect(1).await;
        if done.is_err() {
            self.forget(lane);
        }
        done.map(drop)
    }

    /// Has the rest of a transaction run for its role, under its settings.
    pub fn settle(&mut self, lane: &mut Lane, record: &Record) -> Result<(), WireError> {
        let settings = record.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let role = Some(("role", record.user.as_str())).filter(|(_, user)| !user.is_empty());
        let mut params: SmallVec<[&str; 24]> = SmallVec::new();
        let mut calls = String::new();
        // The role comes last: it need not be permitted to set them.
        for (name, value) in settings.chain(role) {
            let (start, nth) = (if calls.is_empty() { "SELECT " } else { ", " }, params.len());
            // Writing to a String cannot fail.
            let _ = write!(calls, "{start}pg_catalog.set_config(${}, ${}, true)", nth + 1, nth + 2);
            params.extend([name, value]);
        }
        if calls.is_empty() { Ok(()) } else { self.put(lane, &calls, &params) }
    }

    /// Begins a transaction for its role, under its settings.
    pub fn begin(lane: &mut Lane, record: &Record, begin: Begin) -> Result<Own, WireError> {
        let mut own = Own::default();
        own.put(lane, begin.command(), &[])?;
        own.settle(lane, record)?;
        if let Begin::Update { checks_at_once: true } | Begin::Certified { checks_at_once: true, .. } = begin
        {
            own.put(lane, "SET CONSTRAINTS ALL IMMEDIATE", &[])?;
        }
        Ok(own)
    }

    /// Commits what is open, as what stands at some places of the order, and says what else stands before the last one and changed nothing.
    pub fn commit(
        lane: &mut Lane,
        places: &[(Csn, MessageId)],
        nothing: &[(Csn, MessageId)],
    ) -> Result<Own, WireError> {
        let mut own = Own::default();
        own.put(lane, NO_ROLE, &[])?;
        own.note(lane, if places.len() == 1 { CHANGED } else { ALL_CHANGED }, places)?;
        if !nothing.is_empty() {
            own.note(lane, UNCHANGED, nothing)?;
        }
        own.put(lane, "COMMIT", &[])?;
        Ok(own)
    }

    /// Notes what stands at some places.
    fn note(&mut self, lane: &mut Lane, sql: &str, places: &[(Csn, MessageId)]) -> Result<(), WireError> {
        let mut lists = [const { String::new() }; 4];
        for (place, id) in places {
            let numbers = [place.0, id.node, id.incarnation, id.number];
            for (list, number) in lists.iter_mut().zip(numbers) {
                let comma = if list.is_empty() { "" } else { "," };
                // Writing to a String cannot fail.
                let _ = write!(list, "{comma}{number}");
            }
        }
        let texts = lists.map(|list| if sql == CHANGED { list } else { format!("{{{list}}}") });
        self.put(lane, sql, &texts.each_ref().map(String::as_str))
    }

    /// Commits what is open, on the server's disk.
    pub fn commit_durably(lane: &mut Lane) -> Result<Own, WireError> {
        let mut own = Own::default();
        own.put(lane, NO_ROLE, &[])?;
        own.put(lane, "SET LOCAL synchronous_commit = on", &[])?;
        own.put(lane, "COMMIT", &[])?;
        Ok(own)
    }
}

/// Begins a transaction for its role, under its settings.
///
/// # Errors
/// When the connection is lost, or the server refuses the role or the settings: something is open then, and has failed.
pub async fn begin(lane: &mut Lane, record: &Record, begin: Begin) -> Result<(), LaneError> {
    Own::begin(lane, record, begin)?.carry_out(lane).await
}

/// The same, and takes its snapshot.
///
/// # Errors
/// As of [`begin`].
pub async fn open_snapshot(lane: &mut Lane, record: &Record, begin: Begin) -> Result<(), LaneError> {
    let mut own = Own::begin(lane, record, begin)?;
    own.put(lane, SNAPSHOT, &[])?;
    own.carry_out(lane).await
}
