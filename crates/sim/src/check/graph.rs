//! The dependency graph: who must come before whom, and why.
//!
//! Nodes are transactions, by their place in the history. Only those that count as committed have edges.

use super::history::{History, List, Operation, Register, Row, Status, Table, Value};
use super::report::seconds;

/// Why one transaction precedes another; the order is that in which explanations prefer them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Kind {
    /// The second overwrote what the first wrote.
    WriteWrite,
    /// The second read what the first wrote.
    WriteRead,
    /// The first read a version that the second overwrote: an anti-dependency.
    ReadWrite,
    /// One process ran both, one after the other.
    Session,
    /// The first completed before the second was invoked.
    RealTime,
}

impl Kind {
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The object that an edge is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Object {
    List(List, Value),
    Register(Register, Option<Value>, Value),
    Row(Table, Row),
    /// Of session and real-time edges.
    Nothing,
}

impl Object {
    /// Whether two edges speak of the same list, register or table.
    pub(super) fn same(self, other: Object) -> bool {
        match (self, other) {
            (Object::List(a, _), Object::List(b, _)) => a == b,
            (Object::Register(a, ..), Object::Register(b, ..)) => a == b,
            (Object::Row(a, i), Object::Row(b, j)) => (a, i) == (b, j),
            _ => false,
        }
    }
}

/// One reason why a transaction precedes another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Edge {
    pub(super) to: u32,
    pub(super) kind: Kind,
    /// What it is about: of lists the value that came later (of `WriteRead` the value read), of registers the
    /// earlier and the later version (of `WriteRead` twice the same), of rows the row.
    pub(super) object: Object,
    /// The later version of the list is in no read at all.
    pub(super) unseen: bool,
}

/// The graph, edges sorted by source, then by target and kind.
pub(super) struct Graph {
    offsets: Vec<usize>,
    edges: Vec<Edge>,
}

/// Collects edges in any order.
#[derive(Default)]
pub(super) struct GraphBuilder {
    edges: Vec<(u32, Edge)>,
}

impl GraphBuilder {
    /// Adds an edge unless it leads to its own source.
    pub(super) fn add(&mut self, from: u32, to: u32, kind: Kind, object: Object) {
        self.add_edge(from, Edge { to, kind, object, unseen: false });
    }

    pub(super) fn add_edge(&mut self, from: u32, edge: Edge) {
        if from != edge.to {
            self.edges.push((from, edge));
        }
    }

    /// How many edges of a kind there are.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.edges.iter().filter(|(_, edge)| edge.kind == kind).count()
    }

    pub(super) fn build(mut self, nodes: usize) -> Graph {
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut offsets = vec![0; nodes + 1];
        for (from, _) in &self.edges {
            offsets[*from as usize + 1] += 1;
        }
        for place in 0..nodes {
            offsets[place + 1] += offsets[place];
        }
        Graph { offsets, edges: self.edges.into_iter().map(|(_, edge)| edge).collect() }
    }
}

impl Graph {
    pub(super) fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(super) fn edges_from(&self, node: u32) -> &[Edge] {
        &self.edges[self.offsets[node as usize]..self.offsets[node as usize + 1]]
    }

    pub(super) fn targets(&self) -> Adjacency {
        Adjacency { offsets: self.offsets.clone(), targets: self.edges.iter().map(|edge| edge.to).collect() }
    }
}

/// A graph without reasons, for searches.
pub(super) struct Adjacency {
    offsets: Vec<usize>,
    targets: Vec<u32>,
}

impl Adjacency {
    /// Builds a graph from the successors of each node in turn.
    pub(super) fn from_successors<I: IntoIterator<Item = u32>>(
        nodes: usize,
        mut successors: impl FnMut(u32) -> I,
    ) -> Adjacency {
        let mut adjacency = Adjacency { offsets: Vec::with_capacity(nodes + 1), targets: Vec::new() };
        adjacency.offsets.push(0);
        for node in 0..nodes {
            adjacency.targets.extend(successors(u32::try_from(node).expect("nodes are u32")));
            adjacency.offsets.push(adjacency.targets.len());
        }
        adjacency
    }

    pub(super) fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(super) fn successors(&self, node: u32) -> &[u32] {
        &self.targets[self.offsets[node as usize]..self.offsets[node as usize + 1]]
    }

    /// Strongly connected components by Tarjan's algorithm, iterative: the component of each node, numbered so
    /// that every edge leads from a component to itself or to one with a lower number.
    pub(super) fn components(&self) -> Components {
        const UNSEEN: u32 = u32::MAX;
        let nodes = self.nodes();
        let mut order = vec![UNSEEN; nodes];
        let mut low = vec![0_u32; nodes];
        let mut component = vec![UNSEEN; nodes];
        let mut open: Vec<u32> = Vec::new();
        let mut path: Vec<(u32, usize)> = Vec::new();
        let (mut next_order, mut count) = (0_u32, 0_u32);
        for root in 0..nodes {
            if order[root] != UNSEEN {
                continue;
            }
            path.push((u32::try_from(root).expect("nodes are u32"), self.offsets[root]));
            while let Some(top) = path.last_mut() {
                let (node, edge) = (top.0 as usize, top.1);
                if edge == self.offsets[node] && order[node] == UNSEEN {
                    order[node] = next_order;
                    low[node] = next_order;
                    next_order += 1;
                    open.push(top.0);
                }
                if edge < self.offsets[node + 1] {
                    top.1 += 1;
                    let to = self.targets[edge] as usize;
                    if order[to] == UNSEEN {
                        path.push((self.targets[edge], self.offsets[to]));
                    } else if component[to] == UNSEEN {
                        low[node] = low[node].min(order[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    low[parent as usize] = low[parent as usize].min(low[node]);
                }
                if low[node] == order[node] {
                    while let Some(member) = open.pop() {
                        component[member as usize] = count;
                        if member as usize == node {
                            break;
                        }
                    }
                    count += 1;
                }
            }
        }
        Components { of: component, count: count as usize }
    }
}

/// The strongly connected components of a graph.
pub(super) struct Components {
    /// The component of each node.
    pub(super) of: Vec<u32>,
    /// How many there are.
    pub(super) count: usize,
}

impl Components {
    /// The components that contain a cycle (loops do not occur), each with its nodes in ascending order.
    pub(super) fn cyclic(&self) -> Vec<Vec<u32>> {
        let mut sizes = vec![0_u32; self.count];
        for &component in &self.of {
            sizes[component as usize] += 1;
        }
        let mut places = vec![usize::MAX; self.count];
        let mut cyclic: Vec<Vec<u32>> = Vec::new();
        for (node, &component) in self.of.iter().enumerate() {
            if sizes[component as usize] < 2 {
                continue;
            }
            let place = &mut places[component as usize];
            if *place == usize::MAX {
                *place = cyclic.len();
                cyclic.push(Vec::new());
            }
            cyclic[*place].push(u32::try_from(node).expect("nodes are u32"));
        }
        cyclic
    }
}

/// Says in a sentence why `from` precedes `edge.to`.
pub(super) fn sentence(history: &History, from: u32, edge: &Edge) -> String {
    let to = edge.to;
    let (a, b) = (format!("T{from}"), format!("T{to}"));
    match (edge.kind, edge.object) {
        (Kind::WriteWrite, Object::List(list, value)) if edge.unseen => {
            format!(
                "{a} precedes {b}: in list {list} everything that was read precedes {b}'s {value}, which nobody read"
            )
        }
        (Kind::WriteWrite, Object::List(list, value)) => {
            format!("{a} precedes {b}: {b} appended {value} to list {list} next after {a}'s append")
        }
        (Kind::WriteWrite, Object::Register(register, before, after)) => format!(
            "{a} precedes {b}: {b} overwrote {a}'s version {} of register {register} with {after}",
            version(before)
        ),
        (Kind::WriteWrite, Object::Row(table, row)) => {
            format!("{a} precedes {b}: {b} deleted row {row} of table {table}, which {a} had inserted")
        }
        (Kind::WriteRead, Object::List(list, value)) => {
            format!("{a} precedes {b}: {b} read list {list} up to {value}, which {a} appended")
        }
        (Kind::WriteRead, Object::Register(register, _, value)) => {
            format!("{a} precedes {b}: {b} read {value} in register {register}, which {a} wrote")
        }
        (Kind::WriteRead, Object::Row(table, row)) if deletes(history, from, table, row) => {
            format!("{a} precedes {b}: {b} scanned table {table} without row {row}, which {a} deleted")
        }
        (Kind::WriteRead, Object::Row(table, row)) => {
            format!("{a} precedes {b}: {b} scanned table {table} with row {row}, which {a} inserted")
        }
        (Kind::ReadWrite, Object::List(list, value)) if edge.unseen => {
            format!(
                "{a} precedes {b}: {a} read list {list} without {b}'s append of {value}, which nobody ever read"
            )
        }
        (Kind::ReadWrite, Object::List(list, value)) => {
            format!("{a} precedes {b}: {a} read list {list} without {value}, which {b} appended")
        }
        (Kind::ReadWrite, Object::Register(register, before, after)) => format!(
            "{a} precedes {b}: {a} read version {} of register {register}, which {b} overwrote with {after}",
            version(before)
        ),
        (Kind::ReadWrite, Object::Row(table, row)) if deletes(history, to, table, row) => {
            format!("{a} precedes {b}: {a} scanned table {table} with row {row}, which {b} deleted")
        }
        (Kind::ReadWrite, Object::Row(table, row)) => {
            format!("{a} precedes {b}: {a} scanned table {table} without row {row}, which {b} inserted")
        }
        (Kind::Session, _) => {
            let process = history.transactions()[from as usize].process;
            format!("{a} precedes {b}: process {process} ran {a} before {b}")
        }
        (Kind::RealTime, _) | (_, Object::Nothing) => {
            let end = history.transactions()[from as usize].completed_ns;
            let begin = history.transactions()[to as usize].invoked_ns;
            format!(
                "{a} precedes {b}: {a} had completed at {}, {b} began at {}",
                seconds(end),
                seconds(begin)
            )
        }
    }
}

fn version(value: Option<Value>) -> String {
    value.map_or_else(|| "nil".to_owned(), |value| value.to_string())
}

fn deletes(history: &History, transaction: u32, table: Table, row: Row) -> bool {
    history.transactions()[transaction as usize].operations.contains(&Operation::Delete { table, row })
}

/// When a transaction was over, for the order in time: one with an unknown end may commit at any later moment.
pub(super) fn end_ns(history: &History, transaction: u32) -> u64 {
    let transaction = &history.transactions()[transaction as usize];
    if transaction.status == Status::Unknown { u64::MAX } else { transaction.completed_ns }
}
