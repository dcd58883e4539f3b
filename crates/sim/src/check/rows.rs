//! Rows: each appears at most once and disappears at most once, so a scan is placed by what it saw and missed.
//!
//! A row that was seen puts its inserter before the reader and its deleter after. A row that was not seen was
//! either not yet there or no longer there; where the history does not tell which, nothing is concluded.

use std::collections::{BTreeMap, HashMap};

use super::Options;
use super::graph::{GraphBuilder, Kind, Object, end_ns};
use super::history::{History, Row, Status, Table};
use super::outside::{Outside, Writers};
use super::report::{Anomaly, Findings};

/// Judges scans, and adds the dependencies that they show.
pub(super) fn infer(
    outside: &Outside<'_>,
    writers: &Writers,
    options: Options,
    graph: &mut GraphBuilder,
    findings: &mut Findings<'_>,
) {
    let mut rows: BTreeMap<Table, Vec<(Row, u32)>> = BTreeMap::new();
    for (&(table, row), &inserter) in &writers.inserted {
        if writers.counts[inserter as usize] {
            rows.entry(table).or_default().push((row, inserter));
        }
    }
    for rows in rows.values_mut() {
        rows.sort_unstable();
    }
    add_deletions(writers, graph, findings);
    for (reader, table, seen, touched) in &outside.scans {
        for &row in seen {
            judge_seen(*reader, *table, row, writers, findings);
            if writers.inserted.get(&(*table, row)) == Some(reader) {
                findings.add(Anomaly::InternalInconsistency, &[*reader], || {
                    vec![format!("T{reader} saw row {row} of table {table} before it inserted it")]
                });
            }
        }
        for &(row, inserter) in rows.get(table).into_iter().flatten() {
            if touched.contains(&row) {
                continue;
            }
            let place = Placed { reader: *reader, table: *table, row, inserter };
            if seen.binary_search(&row).is_ok() {
                place.seen(writers, graph);
            } else {
                place.missed(writers, options, graph, findings);
            }
        }
    }
}

fn add_deletions(writers: &Writers, graph: &mut GraphBuilder, findings: &mut Findings<'_>) {
    let mut deleted: Vec<_> = writers.deleted.iter().collect();
    deleted.sort_unstable();
    for (&(table, row), deleters) in deleted {
        for pair in deleters.windows(2) {
            findings.add(Anomaly::LostUpdate, pair, || {
                vec![format!("T{} and T{} both deleted row {row} of table {table}", pair[0], pair[1])]
            });
        }
        for &deleter in deleters {
            judge_seen(deleter, table, row, writers, findings);
            if let Some(&inserter) = writers.inserted.get(&(table, row))
                && writers.counts[inserter as usize]
            {
                graph.add(inserter, deleter, Kind::WriteWrite, Object::Row(table, row));
            }
        }
    }
}

/// Reports a row that was seen, or found by a deletion, although no transaction that counts inserted it.
fn judge_seen(reader: u32, table: Table, row: Row, writers: &Writers, findings: &mut Findings<'_>) {
    let Some(&inserter) = writers.inserted.get(&(table, row)) else {
        findings.add(Anomaly::UnwrittenRead, &[reader], || {
            vec![format!("T{reader} saw row {row} of table {table}, which no transaction inserted")]
        });
        return;
    };
    let own_deleter = writers.deleted.get(&(table, row)).is_some_and(|deleters| deleters.contains(&inserter));
    if findings.history().transactions()[inserter as usize].status == Status::Aborted {
        findings.add(Anomaly::AbortedRead, &[reader, inserter], || {
            vec![format!(
                "T{reader} saw row {row} of table {table}, which T{inserter} inserted before it aborted"
            )]
        });
    } else if own_deleter && inserter != reader {
        findings.add(Anomaly::IntermediateRead, &[reader, inserter], || {
            vec![format!(
                "T{reader} saw row {row} of table {table}, which T{inserter} inserted and deleted again"
            )]
        });
    }
}

/// One row as one scan met it.
struct Placed {
    reader: u32,
    table: Table,
    row: Row,
    inserter: u32,
}

impl Placed {
    fn object(&self) -> Object {
        Object::Row(self.table, self.row)
    }

    fn seen(&self, writers: &Writers, graph: &mut GraphBuilder) {
        graph.add(self.inserter, self.reader, Kind::WriteRead, self.object());
        for &deleter in writers.deleted.get(&(self.table, self.row)).into_iter().flatten() {
            graph.add(self.reader, deleter, Kind::ReadWrite, self.object());
        }
    }

    fn missed(
        &self,
        writers: &Writers,
        options: Options,
        graph: &mut GraphBuilder,
        findings: &mut Findings<'_>,
    ) {
        let of_row = |deleters: &'_ HashMap<(Table, Row), Vec<u32>>| {
            deleters.get(&(self.table, self.row)).cloned().unwrap_or_default()
        };
        let (known, perhaps) = (of_row(&writers.deleted), of_row(&writers.perhaps_deleted));
        let history = findings.history();
        if known.contains(&self.inserter) {
            // It never was there for others.
        } else if known
            .iter()
            .chain(&perhaps)
            .all(|&deleter| options.real_time && self.ends_before(deleter, history))
        {
            // Nobody misses a row because of a deletion that was not yet asked for.
            graph.add(self.reader, self.inserter, Kind::ReadWrite, self.object());
        } else if let [deleter] = known[..]
            && perhaps.is_empty()
            && self.must_follow_the_insert(options, history)
        {
            graph.add(deleter, self.reader, Kind::WriteRead, self.object());
        } else {
            findings.evidence.undecided += 1;
        }
    }

    fn ends_before(&self, deleter: u32, history: &History) -> bool {
        history.transactions()[deleter as usize].invoked_ns > end_ns(history, self.reader)
    }

    fn must_follow_the_insert(&self, options: Options, history: &History) -> bool {
        let (inserter, reader) =
            (&history.transactions()[self.inserter as usize], &history.transactions()[self.reader as usize]);
        let after = end_ns(history, self.inserter) < reader.invoked_ns;
        after && (options.real_time || (options.session_order && inserter.process == reader.process))
    }
}
