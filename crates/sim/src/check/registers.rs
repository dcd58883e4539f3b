//! Registers: who reads a version and overwrites it shows which version came next.
//!
//! What else orders two versions depends on the promise. If transactions keep to real time, then of two that touch
//! a register one after the other, the later cannot end with the older version; likewise in session order. All
//! that gives a partial order of versions, which is enough for dependencies between neighbours. A history whose
//! clients read what they overwrite leaves nothing undecided; blind writes at once are undecided.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::Options;
use super::graph::{GraphBuilder, Kind, Object, end_ns};
use super::history::{Operation, Register, Status, Value};
use super::outside::{Outside, Writers};
use super::report::{Anomaly, Findings, seconds};

/// Judges the reads of registers, and adds the dependencies that they show.
pub(super) fn infer(
    outside: &Outside<'_>,
    writers: &Writers,
    options: Options,
    graph: &mut GraphBuilder,
    findings: &mut Findings<'_>,
) {
    for (register, touches) in touched(outside, writers, findings) {
        let touches = judged(register, touches, writers, findings);
        report_lost_updates(register, &touches, findings);
        let versions = Versions::of(&touches, options, findings);
        add_dependencies(register, &versions, &touches, graph);
    }
}

/// What one transaction did to a register.
#[derive(Clone, Copy, Default)]
struct Touch {
    transaction: u32,
    /// The version of others that it read, if it read before it wrote.
    read: Option<Option<Value>>,
    /// The last value that it wrote.
    wrote: Option<Value>,
}

impl Touch {
    /// The first version that the transaction saw or made.
    fn first(&self) -> Option<Value> {
        self.read.unwrap_or(self.wrote)
    }

    /// The version that it left or last saw.
    fn last(&self) -> Option<Value> {
        self.wrote.or(self.read.flatten())
    }
}

fn touched(
    outside: &Outside<'_>,
    writers: &Writers,
    findings: &Findings<'_>,
) -> BTreeMap<Register, Vec<Touch>> {
    let mut touches: BTreeMap<Register, BTreeMap<u32, Touch>> = BTreeMap::new();
    for &(transaction, register, value) in &outside.registers {
        let touch = touches.entry(register).or_default().entry(transaction).or_default();
        touch.read = Some(value);
    }
    for (index, transaction) in findings.history().iter() {
        if writers.counts[index.0 as usize] {
            for step in &transaction.operations {
                if let Operation::Write { register, value } = *step {
                    touches.entry(register).or_default().entry(index.0).or_default().wrote = Some(value);
                }
            }
        }
    }
    let with_index = |(transaction, touch)| Touch { transaction, ..touch };
    touches
        .into_iter()
        .map(|(register, by_transaction)| (register, by_transaction.into_iter().map(with_index).collect()))
        .collect()
}

/// Reports reads of what never was a version, and forgets them.
fn judged(
    register: Register,
    mut touches: Vec<Touch>,
    writers: &Writers,
    findings: &mut Findings<'_>,
) -> Vec<Touch> {
    let history = findings.history();
    for touch in &mut touches {
        let Some(Some(value)) = touch.read else { continue };
        let reader = touch.transaction;
        let Some(write) = writers.written.get(&(register, value)) else {
            touch.read = None;
            findings.add(Anomaly::UnwrittenRead, &[reader], || {
                vec![format!("T{reader} saw {value} in register {register}, which no transaction wrote")]
            });
            continue;
        };
        let writer = write.transaction;
        if writer == reader {
            touch.read = None;
            findings.add(Anomaly::InternalInconsistency, &[reader], || {
                vec![format!("T{reader} saw {value} in register {register} before it wrote it")]
            });
        } else if history.transactions()[writer as usize].status == Status::Aborted {
            touch.read = None;
            findings.add(Anomaly::AbortedRead, &[reader, writer], || {
                vec![format!(
                    "T{reader} saw {value} in register {register}, which T{writer} wrote before it aborted"
                )]
            });
        } else if !write.last {
            touch.read = None;
            findings.add(Anomaly::IntermediateRead, &[reader, writer], || {
                vec![format!(
                    "T{reader} saw {value} in register {register}, which T{writer} itself overwrote"
                )]
            });
        }
    }
    touches.retain(|touch| touch.read.is_some() || touch.wrote.is_some());
    touches
}

/// Two transactions that read one version and each overwrote it: whichever came second lost the first's update.
fn report_lost_updates(register: Register, touches: &[Touch], findings: &mut Findings<'_>) {
    let mut updates: HashMap<Option<Value>, u32> = HashMap::new();
    for touch in touches {
        let (Some(read), Some(wrote)) = (touch.read, touch.wrote) else { continue };
        let second = touch.transaction;
        if let Some(&first) = updates.get(&read) {
            findings.add(Anomaly::LostUpdate, &[first, second], || {
                let version = read.map_or_else(|| "nil".to_owned(), |value| value.to_string());
                vec![
                    format!("T{first} and T{second} both read version {version} of register {register} and overwrote it"),
                    format!("the later of them never saw what the other wrote; T{second} wrote {wrote}"),
                ]
            });
        } else {
            updates.insert(read, second);
        }
    }
}

/// Why one version of a register is older than another.
#[derive(Clone, Copy)]
enum Because {
    /// A transaction read the one and wrote the other.
    Overwrote(u32),
    /// The first transaction ended with the one before the second began, which first saw the other.
    InTime(u32, u32),
    /// The same, in the session of one process.
    InSession(u32, u32),
    /// The register starts empty.
    Starts,
}

/// The partial order of a register's versions, by immediate successors.
struct Versions {
    successors: BTreeMap<Option<Value>, Vec<Option<Value>>>,
}

impl Versions {
    /// Finds the order; if it contradicts itself, that is reported, and only what was overwritten is kept.
    fn of(touches: &[Touch], options: Options, findings: &mut Findings<'_>) -> Versions {
        let overwritten: Vec<_> = touches
            .iter()
            .filter_map(|touch| Some((touch.read?, touch.wrote?, touch.transaction)))
            .map(|(read, wrote, transaction)| (read, Some(wrote), Because::Overwrote(transaction)))
            .collect();
        let mut reasons = overwritten.clone();
        if options.real_time {
            add_in_time(touches, findings, &mut reasons);
        }
        if options.session_order {
            add_in_session(touches, findings, &mut reasons);
        }
        if let Some(cycle) = shortest_cycle(&reasons) {
            report_contradiction(&cycle, findings);
            reasons = overwritten;
            if shortest_cycle(&reasons).is_some() {
                // Those who read and overwrote in a cycle are a cycle of dependencies too, which is reported there.
                reasons.clear();
            }
        }
        let with_predecessor: HashSet<Option<Value>> = reasons.iter().map(|(_, to, _)| *to).collect();
        let firsts = touches.iter().filter_map(|touch| touch.wrote).map(Some);
        let firsts: Vec<_> = firsts.filter(|version| !with_predecessor.contains(version)).collect();
        reasons.extend(firsts.into_iter().map(|first| (None, first, Because::Starts)));
        let mut successors: BTreeMap<Option<Value>, Vec<Option<Value>>> = BTreeMap::new();
        for (from, to, _) in reasons {
            let successors = successors.entry(from).or_default();
            if !successors.contains(&to) {
                successors.push(to);
            }
        }
        Versions { successors }
    }
}

type Reason = (Option<Value>, Option<Value>, Because);

/// A frontier of transactions that are over: whoever begins comes after all of them, and those before them are
/// implied.
fn add_in_time(touches: &[Touch], findings: &Findings<'_>, reasons: &mut Vec<Reason>) {
    let history = findings.history();
    let begin = |touch: &Touch| history.transactions()[touch.transaction as usize].invoked_ns;
    let end = |touch: &Touch| end_ns(history, touch.transaction);
    let mut by_begin: Vec<&Touch> = touches.iter().collect();
    by_begin.sort_by_key(|touch| (begin(touch), touch.transaction));
    let mut by_end = by_begin.clone();
    by_end.sort_by_key(|touch| (end(touch), touch.transaction));
    let mut ended = by_end.into_iter().peekable();
    let mut frontier: Vec<&Touch> = Vec::new();
    for touch in by_begin {
        while let Some(over) = ended.next_if(|over| end(over) < begin(touch)) {
            frontier.retain(|earlier| end(earlier) >= begin(over));
            frontier.push(over);
        }
        for earlier in &frontier {
            let (from, to) = (earlier.last(), touch.first());
            if from != to {
                reasons.push((from, to, Because::InTime(earlier.transaction, touch.transaction)));
            }
        }
    }
}

fn add_in_session(touches: &[Touch], findings: &Findings<'_>, reasons: &mut Vec<Reason>) {
    let transactions = findings.history().transactions();
    let transaction = |touch: &Touch| &transactions[touch.transaction as usize];
    let mut in_order: Vec<&Touch> =
        touches.iter().filter(|touch| transaction(touch).status == Status::Committed).collect();
    in_order.sort_by_key(|touch| (transaction(touch).process, transaction(touch).invoked_ns));
    for pair in in_order.windows(2) {
        let (from, to) = (pair[0].last(), pair[1].first());
        if transaction(pair[0]).process == transaction(pair[1]).process && from != to {
            reasons.push((from, to, Because::InSession(pair[0].transaction, pair[1].transaction)));
        }
    }
}

/// A short cycle of versions, if there is any.
fn shortest_cycle(reasons: &[Reason]) -> Option<Vec<Reason>> {
    const STARTS_MAX: usize = 256;
    let rest = without_sources(without_sources(reasons.to_vec(), |r| (r.0, r.1)), |r| (r.1, r.0));
    let mut next: HashMap<Option<Value>, Vec<&Reason>> = HashMap::new();
    for reason in &rest {
        next.entry(reason.0).or_default().push(reason);
    }
    let starts: BTreeSet<Option<Value>> = rest.iter().map(|reason| reason.0).collect();
    let cycles = starts.into_iter().take(STARTS_MAX).filter_map(|start| shortest_cycle_through(start, &next));
    cycles.min_by_key(Vec::len)
}

/// Takes away what has no predecessor, again and again; `ends` tells which way a reason leads.
fn without_sources(
    mut reasons: Vec<Reason>,
    ends: impl Fn(&Reason) -> (Option<Value>, Option<Value>),
) -> Vec<Reason> {
    let mut next: HashMap<Option<Value>, Vec<Option<Value>>> = HashMap::new();
    let mut predecessors: HashMap<Option<Value>, usize> = HashMap::new();
    for reason in &reasons {
        let (from, to) = ends(reason);
        next.entry(from).or_default().push(to);
        predecessors.entry(from).or_default();
        *predecessors.entry(to).or_default() += 1;
    }
    let sources = predecessors.iter().filter(|(_, count)| **count == 0);
    let mut sources: Vec<Option<Value>> = sources.map(|(version, _)| *version).collect();
    while let Some(source) = sources.pop() {
        predecessors.remove(&source);
        for to in next.remove(&source).unwrap_or_default() {
            if let Some(count) = predecessors.get_mut(&to) {
                *count -= 1;
                if *count == 0 {
                    sources.push(to);
                }
            }
        }
    }
    reasons.retain(|reason| predecessors.contains_key(&ends(reason).0));
    reasons
}

fn shortest_cycle_through(
    start: Option<Value>,
    next: &HashMap<Option<Value>, Vec<&Reason>>,
) -> Option<Vec<Reason>> {
    let mut came_by: HashMap<Option<Value>, Reason> = HashMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(version) = queue.pop_front() {
        for &&reason in next.get(&version).into_iter().flatten() {
            if reason.1 == start {
                let mut cycle = vec![reason];
                let mut at = version;
                while at != start {
                    cycle.push(came_by[&at]);
                    at = came_by[&at].0;
                }
                cycle.reverse();
                return Some(cycle);
            }
            came_by.entry(reason.1).or_insert_with(|| {
                queue.push_back(reason.1);
                reason
            });
        }
    }
    None
}

fn report_contradiction(cycle: &[Reason], findings: &mut Findings<'_>) {
    let history = findings.history();
    let mut transactions = Vec::new();
    let mut only_overwritten = true;
    for (.., because) in cycle {
        match *because {
            Because::Overwrote(transaction) => transactions.push(transaction),
            Because::InTime(a, b) | Because::InSession(a, b) => {
                only_overwritten = false;
                transactions.extend([a, b]);
            }
            Because::Starts => {}
        }
    }
    if only_overwritten {
        return;
    }
    findings.add(Anomaly::StaleRead, &transactions, || {
        let name = |version: Option<Value>| version.map_or_else(|| "nil".to_owned(), |value| value.to_string());
        let sentence = |&(from, to, because): &Reason| {
            let (from, to) = (name(from), name(to));
            match because {
                Because::Overwrote(t) => format!("version {from} is older than {to}: T{t} read {from} and wrote {to}"),
                Because::InTime(a, b) => format!(
                    "version {from} is older than {to}: T{a} had ended with {from} at {}, T{b}, which met {to}, began at {}",
                    seconds(end_ns(history, a)),
                    seconds(history.transactions()[b as usize].invoked_ns)
                ),
                Because::InSession(a, b) => {
                    format!("version {from} is older than {to}: one process ended T{a} with {from} before T{b} met {to}")
                }
                Because::Starts => format!("version {from} is older than {to}: the register starts empty"),
            }
        };
        cycle.iter().map(sentence).collect()
    });
}

fn add_dependencies(register: Register, versions: &Versions, touches: &[Touch], graph: &mut GraphBuilder) {
    let writers: HashMap<Value, u32> =
        touches.iter().filter_map(|touch| Some((touch.wrote?, touch.transaction))).collect();
    for touch in touches {
        if let Some(Some(value)) = touch.read
            && let Some(&writer) = writers.get(&value)
        {
            let object = Object::Register(register, Some(value), value);
            graph.add(writer, touch.transaction, Kind::WriteRead, object);
        }
    }
    let mut readers: HashMap<Option<Value>, Vec<u32>> = HashMap::new();
    for touch in touches {
        if let Some(read) = touch.read {
            readers.entry(read).or_default().push(touch.transaction);
        }
    }
    for (&before, successors) in &versions.successors {
        for &after in successors {
            // Who meets nil after a value was written reads what its first writer overwrote: a cycle of dependencies.
            let Some(after) = after else { continue };
            let Some(&overwriter) = writers.get(&after) else { continue };
            let object = Object::Register(register, before, after);
            if let Some(writer) = before.and_then(|value| writers.get(&value)) {
                graph.add(*writer, overwriter, Kind::WriteWrite, object);
            }
            for &reader in readers.get(&before).into_iter().flatten() {
                graph.add(reader, overwriter, Kind::ReadWrite, object);
            }
        }
    }
}
