//! Definitions and sequences as a replica has them.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use onecopy_classify::catalogue::{DefaultSetting, Sequence};
use onecopy_classify::catalogue_queries::{CATALOGUE_SETUP, SERVER_SETTINGS_QUERY, catalogue_query};
use onecopy_classify::{Catalogue, table_id};
use onecopy_core::{SequenceDefinition, TableId};
use parking_lot::Mutex;

use crate::agent::quote;
use crate::lane::{Lane, LaneError};
use crate::postgres::connect::SESSION_MARK;
use crate::record::{Record, What, Write};

/// Reads the catalogue snapshot that classification works with, outside of transactions, on a lane of the agent's role, and the
/// settings with which the server begins sessions on a `plain` connection of it.
pub async fn read(lane: &mut Lane, plain: &mut Lane) -> Result<Catalogue, LaneError> {
    // One message is one transaction, with which the setup ends.
    let mut catalogue = read_by(lane, |query| format!("{CATALOGUE_SETUP}; {query}")).await?;
    // What is said for roles and databases is stronger, and stands after it.
    catalogue.settings.splice(0..0, server_settings(plain).await?);
    Ok(catalogue)
}

/// The settings with which the server begins every session.
async fn server_settings(plain: &mut Lane) -> Result<Vec<DefaultSetting>, LaneError> {
    let rows = plain.query(SERVER_SETTINGS_QUERY).await?;
    let of_row = |row: Vec<Option<String>>| {
        let mut values = row.into_iter().map(Option::unwrap_or_default);
        Some(DefaultSetting { role: None, name: values.next()?, value: values.next()? })
    };
    Ok(rows.into_iter().filter_map(of_row).collect())
}

/// The same inside an open transaction, whose own changes it shows, but for the server's settings: no session begins
/// there. Nothing of the reading stays in it, not even locks, unless it fails, which the transaction does then, too.
pub async fn read_in_transaction(lane: &mut Lane) -> Result<Catalogue, LaneError> {
    let read = |query: &str| {
        let (begin, end) = (format!("SAVEPOINT {SAVEPOINT}"), format!("ROLLBACK TO SAVEPOINT {SAVEPOINT}"));
        format!("{begin}; {CATALOGUE_SETUP}; {query}; {end}; RELEASE SAVEPOINT {SAVEPOINT}")
    };
    read_by(lane, read).await
}

async fn read_by(lane: &mut Lane, commands: impl Fn(&str) -> String) -> Result<Catalogue, LaneError> {
    let version = lane.query("SHOW server_version_num").await?;
    let version =
        version.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let rows = lane.query(&commands(&catalogue_query(version))).await?;
    let json = rows.into_iter().flatten().flatten().next().unwrap_or_default();
    Catalogue::from_json(&json).map_err(|error| LaneError::Lost(std::io::Error::other(error.to_string())))
}

/// Hides a savepoint of the same name of the client's, if there is one, while definitions are read.
const SAVEPOINT: &str = "onecopy_definitions";

/// The state of every sequence: identity, rules with the next free value, and qualified name.
pub async fn sequences<'a>(
    lane: &mut Lane,
    catalogue: &'a Catalogue,
) -> Result<Vec<(TableId, SequenceDefinition, &'a Sequence)>, LaneError> {
    let rows = lane
        .query("SELECT schemaname, sequencename, last_value FROM pg_catalog.pg_sequences WHERE schemaname <> 'onecopy'")
        .await?;
    let mut last: HashMap<(String, String), Option<i64>> = HashMap::new();
    for row in rows {
        let mut values = row.into_iter();
        let mut next = || values.next().flatten();
        let (schema, name) = (next().unwrap_or_default(), next().unwrap_or_default());
        last.insert((schema, name), next().and_then(|value| value.parse().ok()));
    }
    let last_of = |s: &Sequence| last.get(&(s.schema.clone(), s.name.clone())).copied().flatten();
    // The view shows no value of those that were never asked, or were restarted: theirs is the next one.
    let unasked: Vec<&Sequence> = catalogue.sequences.iter().filter(|s| last_of(s).is_none()).collect();
    let mut first: HashMap<(String, String), i64> = HashMap::new();
    for some in unasked.chunks(SEQUENCES_AT_ONCE) {
        let query = |(i, s): (usize, &&Sequence)| format!("SELECT {i}, last_value FROM {}", qualified(s));
        let queries: Vec<String> = some.iter().enumerate().map(query).collect();
        for row in lane.query(&queries.join(" UNION ALL ")).await? {
            let mut numbers = row.iter().flatten().filter_map(|value| value.parse::<i64>().ok());
            let (Some(i), Some(value)) = (numbers.next(), numbers.next()) else { continue };
            if let Some(s) = usize::try_from(i).ok().and_then(|i| some.get(i)) {
                first.insert((s.schema.clone(), s.name.clone()), value);
            }
        }
    }
    let definition = |sequence: &Sequence| {
        let first = first.get(&(sequence.schema.clone(), sequence.name.clone())).copied();
        SequenceDefinition {
            next: match last_of(sequence) {
                Some(last) => last.saturating_add(sequence.increment),
                None => first.unwrap_or(sequence.start),
            },
            increment: sequence.increment,
            min: sequence.min,
            max: sequence.max,
            cycle: sequence.cycle,
        }
    };
    Ok(catalogue
        .sequences
        .iter()
        .map(|sequence| (table_id(&sequence.schema, &sequence.name), definition(sequence), sequence))
        .collect())
}

/// The command that ends, on one replica, the transactions of onecopy that hold tables against everybody, so that definitions
/// can be read. Their clients get 40001. Whatever is connected past onecopy is left alone.
pub fn end_locking() -> String {
    format!(
        "SELECT pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l
         JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
         WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted
         AND l.pid <> pg_catalog.pg_backend_pid()
         AND EXISTS (SELECT FROM pg_catalog.pg_locks mark WHERE mark.pid = l.pid AND mark.locktype = 'advisory'
             AND mark.classid::bigint = {SESSION_MARK})"
    )
}

/// Sequences whose values are read by one query.
const SEQUENCES_AT_ONCE: usize = 200;

fn qualified(sequence: &Sequence) -> String {
    let quoted = |name: &str| crate::agent::quote_identifier(name);
    format!("{}.{}", quoted(&sequence.schema), quoted(&sequence.name))
}

/// Whether a sequence has the same rules.
pub fn same(a: &Sequence, b: &Sequence) -> bool {
    (a.start, a.increment, a.min, a.max, a.cycle) == (b.start, b.increment, b.min, b.max, b.cycle)
}

/// What a reservation must know of sequences, by identity.
pub type SequenceNames = Arc<Mutex<HashMap<TableId, NamedSequence>>>;

/// A sequence as a reservation writes it.
pub struct NamedSequence {
    /// Its qualified, quoted name.
    name: String,
    increment: i64,
    min: i64,
    max: i64,
}

impl NamedSequence {
    /// The command that moves it past `last`, or back to its beginning if `last` is the value before that. It does nothing if
    /// the sequence was dropped, or has other bounds, by a commit between: a decided command must not fail.
    fn moved_past(&self, last: i64) -> String {
        let is_own = (self.min..=self.max).contains(&last);
        let (value, called) =
            if is_own { (last, true) } else { (last.saturating_add(self.increment), false) };
        format!(
            "SELECT pg_catalog.setval(s.seqrelid, {value}, {called}) FROM pg_catalog.pg_sequence s \
             WHERE s.seqrelid = pg_catalog.to_regclass({}) AND {value} BETWEEN s.seqmin AND s.seqmax",
            quote(&self.name)
        )
    }
}

/// Renders a reservation: every replica's own sequence moves past what may be handed out.
pub fn reservation(names: SequenceNames) -> Box<dyn Fn(TableId, i64) -> Bytes + Send + Sync> {
    Box::new(move |sequence, last| {
        let names = names.lock();
        let Some(named) = names.get(&sequence) else { return Bytes::new() };
        let write = Write::new(What::Text(named.moved_past(last)));
        Record { writes: vec![write], ..Record::default() }.encode()
    })
}

/// The names that [`reservation`] needs.
pub fn names(catalogue: &Catalogue) -> HashMap<TableId, NamedSequence> {
    let named =
        |s: &Sequence| NamedSequence { name: qualified(s), increment: s.increment, min: s.min, max: s.max };
    catalogue.sequences.iter().map(|s| (table_id(&s.schema, &s.name), named(s))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_moved_past_a_value_or_back_to_its_beginning() {
        let of = |increment, min, max| NamedSequence { name: "s.q".to_owned(), increment, min, max };
        let command = |call: &str, value: i64| {
            format!(
                "SELECT pg_catalog.setval(s.seqrelid, {call}) FROM pg_catalog.pg_sequence s \
                 WHERE s.seqrelid = pg_catalog.to_regclass('s.q') AND {value} BETWEEN s.seqmin AND s.seqmax"
            )
        };
        assert_eq!(of(1, 1, 100).moved_past(1), command("1, true", 1));
        assert_eq!(of(1, 1, 100).moved_past(0), command("1, false", 1));
        assert_eq!(of(-5, -100, -1).moved_past(4), command("-1, false", -1));
        assert_eq!(of(10, 3, 100).moved_past(-7), command("3, false", 3));
    }
}
