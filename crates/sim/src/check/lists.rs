//! Lists: the longest read of a list is the order of its versions.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::graph::{Edge, GraphBuilder, Kind, Object};
use super::history::{List, Operation, Status, Value};
use super::outside::{Outside, Writers};
use super::report::{Anomaly, Findings};

/// Judges the reads of lists, and adds the dependencies that they show.
pub(super) fn infer(
    outside: &Outside<'_>,
    writers: &Writers,
    graph: &mut GraphBuilder,
    findings: &mut Findings<'_>,
) {
    let mut lists: BTreeMap<List, Seen<'_>> = BTreeMap::new();
    for &(reader, list, values) in &outside.lists {
        lists.entry(list).or_default().reads.push((reader, values));
    }
    for (index, transaction) in findings.history().iter() {
        if writers.counts[index.0 as usize] {
            for step in &transaction.operations {
                if let Operation::Append { list, value } = *step {
                    lists.entry(list).or_default().appends.push((index.0, value));
                }
            }
        }
    }
    for (list, seen) in &lists {
        let order = version_order(*list, seen, writers, findings);
        order.report_lost_updates(*list, seen, findings);
        order.add_dependencies(*list, seen, writers, graph);
    }
}

/// What is known of one list.
#[derive(Default)]
struct Seen<'h> {
    reads: Vec<(u32, &'h [Value])>,
    /// By transactions that count as committed.
    appends: Vec<(u32, Value)>,
}

/// The order of a list's versions, as far as reads show it.
struct Order<'h> {
    /// The longest read.
    values: &'h [Value],
    /// For each read of `Seen` whether it can be a state of this list.
    fits: Vec<bool>,
}

fn version_order<'h>(
    list: List,
    seen: &Seen<'h>,
    writers: &Writers,
    findings: &mut Findings<'_>,
) -> Order<'h> {
    let mut judged: HashMap<&[Value], bool> = HashMap::new();
    let mut fits: Vec<bool> = seen
        .reads
        .iter()
        .map(|&(reader, values)| {
            *judged.entry(values).or_insert_with(|| is_possible(list, reader, values, writers, findings))
        })
        .collect();
    let longest =
        (0..seen.reads.len()).filter(|&place| fits[place]).max_by_key(|&place| seen.reads[place].1.len());
    let Some(longest) = longest else { return Order { values: &[], fits } };
    let (witness, values) = seen.reads[longest];
    for (place, &(reader, read)) in seen.reads.iter().enumerate() {
        if fits[place] && !values.starts_with(read) {
            fits[place] = false;
            let differs = values.iter().zip(read).take_while(|(a, b)| a == b).count();
            findings.add(Anomaly::IncompatibleOrders, &[reader, witness], || {
                vec![format!(
                    "of list {list} T{reader} saw {} and T{witness} saw {} in place {}, after the same beginning",
                    read[differs],
                    values[differs],
                    differs + 1
                )]
            });
        }
    }
    for (place, &(reader, read)) in seen.reads.iter().enumerate() {
        if fits[place] {
            check_intermediate(list, reader, read, writers, findings);
        }
    }
    Order { values, fits }
}

/// Whether a read can be a state of the list at all; each distinct read is reported once.
fn is_possible(
    list: List,
    reader: u32,
    values: &[Value],
    writers: &Writers,
    findings: &mut Findings<'_>,
) -> bool {
    let history = findings.history();
    let mut possible = true;
    let mut unique = HashSet::with_capacity(values.len());
    let mut seen_of_writer: HashMap<u32, u32> = HashMap::new();
    for &value in values {
        if !unique.insert(value) {
            possible = false;
            let writer = writers.appended.get(&(list, value)).map_or(reader, |write| write.transaction);
            findings.add(Anomaly::DuplicateAppend, &[reader, writer], || {
                vec![format!("T{reader} saw {value} twice in list {list}, which T{writer} appended once")]
            });
            continue;
        }
        match writers.appended.get(&(list, value)) {
            None => {
                possible = false;
                findings.add(Anomaly::UnwrittenRead, &[reader], || {
                    vec![format!("T{reader} saw {value} in list {list}, which no transaction appended")]
                });
            }
            Some(write) if history.transactions()[write.transaction as usize].status == Status::Aborted => {
                let writer = write.transaction;
                findings.add(Anomaly::AbortedRead, &[reader, writer], || {
                    vec![format!(
                        "T{reader} saw {value} in list {list}, which T{writer} appended before it aborted"
                    )]
                });
            }
            Some(write) => {
                let writer = write.transaction;
                let seen = seen_of_writer.entry(writer).or_default();
                if write.earlier == *seen {
                    *seen += 1;
                    continue;
                }
                possible = false;
                findings.add(Anomaly::IncompatibleOrders, &[reader, writer], || {
                    vec![format!(
                        "T{reader} saw {value} in list {list}, but before it not all that T{writer} had appended earlier"
                    )]
                });
            }
        }
    }
    possible
}

fn check_intermediate(
    list: List,
    reader: u32,
    values: &[Value],
    writers: &Writers,
    findings: &mut Findings<'_>,
) {
    let Some(&last) = values.last() else { return };
    let Some(write) = writers.appended.get(&(list, last)) else { return };
    if !write.last && write.transaction != reader {
        let writer = write.transaction;
        findings.add(Anomaly::IntermediateRead, &[reader, writer], || {
            vec![format!("T{reader} saw list {list} up to {last}, after which T{writer} appended more to it")]
        });
    }
}

impl Order<'_> {
    fn add_dependencies(&self, list: List, seen: &Seen<'_>, writers: &Writers, graph: &mut GraphBuilder) {
        // Places without a writer are values of aborted transactions, which are reported already.
        let writer = |value: Value| {
            let writer = writers.appended.get(&(list, value))?.transaction;
            writers.counts[writer as usize].then_some(writer)
        };
        let chain: Vec<(u32, Value)> =
            self.values.iter().filter_map(|&value| Some((writer(value)?, value))).collect();
        for pair in chain.windows(2) {
            graph.add(pair[0].0, pair[1].0, Kind::WriteWrite, Object::List(list, pair[1].1));
        }
        let unread = self.unread(seen);
        if let Some(&(last, _)) = chain.last() {
            for &(appender, value) in &unread {
                let edge = Edge {
                    to: appender,
                    kind: Kind::WriteWrite,
                    object: Object::List(list, value),
                    unseen: true,
                };
                graph.add_edge(last, edge);
            }
        }
        // next[i]: the first place at or after i whose writer counts.
        let mut next = vec![None; self.values.len() + 1];
        for place in (0..self.values.len()).rev() {
            next[place] =
                writer(self.values[place]).map(|writer| (writer, self.values[place])).or(next[place + 1]);
        }
        for (&(reader, values), _) in seen.reads.iter().zip(&self.fits).filter(|(_, fits)| **fits) {
            if let Some((from, value)) = values.iter().rev().find_map(|&value| Some((writer(value)?, value)))
            {
                graph.add(from, reader, Kind::WriteRead, Object::List(list, value));
            }
            match next[values.len()] {
                Some((to, value)) => graph.add(reader, to, Kind::ReadWrite, Object::List(list, value)),
                None => {
                    for &(to, value) in &unread {
                        let object = Object::List(list, value);
                        graph.add_edge(reader, Edge { to, kind: Kind::ReadWrite, object, unseen: true });
                    }
                }
            }
        }
    }

    /// Of two transactions that read the newest version that anybody read, and then appended what nobody read,
    /// whichever came second had not seen the first. (Where reads show an order, that is a cycle.)
    fn report_lost_updates(&self, list: List, seen: &Seen<'_>, findings: &mut Findings<'_>) {
        let unread: BTreeMap<u32, Value> = self.unread(seen).into_iter().collect();
        let fitting = seen.reads.iter().zip(&self.fits).filter(|(_, fits)| **fits);
        let newest = fitting.filter(|((_, values), _)| values.len() == self.values.len());
        let updates: Vec<u32> =
            newest.map(|((reader, _), _)| *reader).filter(|reader| unread.contains_key(reader)).collect();
        for pair in updates.windows(2) {
            findings.add(Anomaly::LostUpdate, pair, || {
                let [first, second] = [pair[0], pair[1]];
                vec![format!(
                    "T{first} and T{second} both read list {list} in the same version, and appended {} and {} to it; \
                     whichever came second had not seen the other",
                    unread[&first], unread[&second]
                )]
            });
        }
    }

    /// Appends that no read shows: they come after all that was read. One for each transaction.
    fn unread(&self, seen: &Seen<'_>) -> Vec<(u32, Value)> {
        let read: HashSet<Value> = self.values.iter().copied().collect();
        let mut unread: Vec<(u32, Value)> =
            seen.appends.iter().copied().filter(|(_, value)| !read.contains(value)).collect();
        unread.dedup_by_key(|(transaction, _)| *transaction);
        unread
    }
}
