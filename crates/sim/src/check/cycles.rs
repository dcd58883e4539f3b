//! Cycles of the dependency graph: whether a level forbids one, the shortest that shows it, and its name.
//!
//! Which cycles a level forbids, by the anti-dependencies (rw) in them (Adya 1999 for serializability; the
//! characterisations by dependency graphs of Cerone and Gotsman, 2018, for the other two):
//!
//! | level | forbidden |
//! |---|---|
//! | serializability | any cycle |
//! | snapshot isolation | cycles in which no two anti-dependencies are adjacent |
//! | parallel snapshot isolation | cycles with at most one anti-dependency |
//!
//! Session and real-time edges, where they are promised, count like dependencies: what precedes in time must be
//! seen. Whether there is a forbidden cycle is decided exactly. Which one is shown is found by searches from many
//! starts under a budget, so a component of many thousand transactions may show one that is not the shortest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::graph::{Adjacency, Edge, Graph, Kind, Object, end_ns, sentence};
use super::history::{History, Transaction};
use super::report::{Anomaly, Findings};
use super::{Level, Options};

/// Finds the cycles that `options` forbid, and notes them.
pub(super) fn find(graph: &Graph, options: Options, findings: &mut Findings<'_>) {
    let mut place = vec![0; graph.nodes()];
    for members in graph.targets().components().cyclic() {
        Component::of(graph, members, &mut place, findings.history()).find(options, findings);
    }
}

const WRITE_WRITE: u8 = 1 << Kind::WriteWrite as u8;
const DEPENDENCIES: u8 = WRITE_WRITE | 1 << Kind::WriteRead as u8;
const READ_WRITE: u8 = 1 << Kind::ReadWrite as u8;
const SESSION: u8 = 1 << Kind::Session as u8;
const REAL_TIME: u8 = 1 << Kind::RealTime as u8;

/// Which anti-dependencies a cycle may have; each pattern's cycles are worse than the next one's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pattern {
    /// None, and only write-write dependencies besides.
    Writes,
    /// None.
    Dependencies,
    /// Exactly one.
    One,
    /// Any number, no two of them adjacent.
    Apart,
    /// Any.
    Any,
}

impl Pattern {
    fn forbidden_by(level: Level) -> &'static [Pattern] {
        use Pattern::{Any, Apart, Dependencies, One, Writes};
        match level {
            Level::ParallelSnapshotIsolation => &[Writes, Dependencies, One],
            Level::SnapshotIsolation => &[Writes, Dependencies, One, Apart],
            Level::Serializable | Level::StrictSerializable => &[Writes, Dependencies, One, Apart, Any],
        }
    }

    /// The worst pattern that a cycle of these edges has.
    fn of(cycle: &[(u32, Edge)]) -> Pattern {
        let read_write = |place: usize| cycle[place % cycle.len()].1.kind == Kind::ReadWrite;
        let count = (0..cycle.len()).filter(|&place| read_write(place)).count();
        let adjacent = (0..cycle.len()).any(|place| read_write(place) && read_write(place + 1));
        match count {
            0 if cycle.iter().all(|(_, edge)| edge.kind == Kind::WriteWrite) => Pattern::Writes,
            0 => Pattern::Dependencies,
            1 => Pattern::One,
            _ if !adjacent => Pattern::Apart,
            _ => Pattern::Any,
        }
    }
}

/// A strongly connected component, its transactions renumbered from 0.
struct Component<'h> {
    history: &'h History,
    /// The transactions, ascending.
    members: Vec<u32>,
    offsets: Vec<usize>,
    /// Edges within the component, sorted by source, then target and kind; targets are renumbered.
    edges: Vec<Edge>,
    /// Members by the time they began, latest first.
    latest_first: Vec<u32>,
}

/// A cycle: each transaction (renumbered) with the edge that leads on.
type Cycle = Vec<(u32, Edge)>;

impl<'h> Component<'h> {
    fn of(graph: &Graph, members: Vec<u32>, place: &mut [u32], history: &'h History) -> Component<'h> {
        for (local, &member) in (0_u32..).zip(&members) {
            place[member as usize] = local;
        }
        let mut component =
            Component { history, offsets: vec![0], edges: Vec::new(), latest_first: Vec::new(), members };
        for &member in &component.members {
            let inside = graph.edges_from(member).iter().filter_map(|edge| {
                let to = place[edge.to as usize];
                (component.members.get(to as usize) == Some(&edge.to)).then_some(Edge { to, ..*edge })
            });
            component.edges.extend(inside);
            component.offsets.push(component.edges.len());
        }
        let mut latest_first: Vec<u32> = component.nodes().collect();
        latest_first.sort_by_key(|&node| (Reverse(component.begin(node)), node));
        component.latest_first = latest_first;
        component
    }

    fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.members.len()).expect("members are numbered by u32")
    }

    fn edges_from(&self, node: u32) -> &[Edge] {
        &self.edges[self.offsets[node as usize]..self.offsets[node as usize + 1]]
    }

    fn transaction(&self, node: u32) -> &Transaction {
        &self.history.transactions()[self.members[node as usize] as usize]
    }

    fn begin(&self, node: u32) -> u64 {
        self.transaction(node).invoked_ns
    }

    fn end(&self, node: u32) -> u64 {
        end_ns(self.history, self.members[node as usize])
    }

    /// Searches with ever more kinds of edges until a forbidden cycle is found, so that what is named is as bad as
    /// can be: a cycle of dependencies breaks weaker promises than one that needs real time. Only when it is too
    /// long to follow, a shorter one through time is shown too.
    fn find(&self, options: Options, findings: &mut Findings<'_>) {
        // Real time implies the order of sessions.
        let ordered = match (options.session_order, options.real_time) {
            (_, true) => Some(DEPENDENCIES | SESSION | REAL_TIME),
            (true, false) => Some(DEPENDENCIES | SESSION),
            (false, false) => None,
        };
        for kinds in [Some(DEPENDENCIES), ordered].into_iter().flatten() {
            if self.find_with(kinds, options.level, findings).is_some_and(|length| length <= FOLLOWED_MAX) {
                return;
            }
        }
    }

    /// The length of the shortest cycle found, if any.
    fn find_with(&self, kinds: u8, level: Level, findings: &mut Findings<'_>) -> Option<usize> {
        let patterns = Pattern::forbidden_by(level);
        let mut found = BTreeMap::new();
        for cycle in self.pairs(kinds, patterns) {
            found.insert(Pattern::of(&cycle), cycle.len());
            self.note(&cycle, findings);
        }
        for &pattern in patterns {
            // A search for the looser patterns would find the cycles of the stricter again.
            let known = match pattern {
                Pattern::One => found.contains_key(&Pattern::One),
                _ => found.keys().any(|&worse| worse <= pattern),
            };
            if !known && let Some(cycle) = self.shortest(pattern, kinds) {
                found.insert(pattern, cycle.len());
                self.note(&cycle, findings);
            }
        }
        found.into_values().min()
    }

    fn note(&self, cycle: &[(u32, Edge)], findings: &mut Findings<'_>) {
        let Some(anomaly) = name(cycle) else { return };
        let global = |local: u32| self.members[local as usize];
        // Told from whoever began first.
        let first = (0..cycle.len()).min_by_key(|&place| (self.begin(cycle[place].0), cycle[place].0));
        let cycle = [&cycle[first.unwrap_or(0)..], &cycle[..first.unwrap_or(0)]].concat();
        let transactions: Vec<u32> = cycle.iter().map(|(node, _)| global(*node)).collect();
        findings.add(anomaly, &transactions, || {
            let reason = |(node, edge): &(u32, Edge)| {
                sentence(self.history, global(*node), &Edge { to: global(edge.to), ..*edge })
            };
            cycle.iter().map(reason).collect()
        });
    }

    /// The worst cycle of each two transactions that have one of these patterns.
    fn pairs(&self, kinds: u8, patterns: &[Pattern]) -> Vec<Cycle> {
        let mut cycles = Vec::new();
        for a in self.nodes() {
            for edges in self.edges_from(a).chunk_by(|x, y| x.to == y.to) {
                let b = edges[0].to;
                let there = self.between(a, b, kinds);
                let back = self.between(b, a, kinds);
                let explicit = |edges: &[Edge]| edges.iter().any(|edge| edge.kind != Kind::RealTime);
                // Met from both ends if both have edges of their own; two edges of time alone are no cycle.
                if !explicit(&there) || (a > b && explicit(&back)) {
                    continue;
                }
                let combinations = there.iter().flat_map(|x| back.iter().map(|y| vec![(a, *x), (b, *y)]));
                let forbidden = combinations.filter(|cycle| patterns.contains(&Pattern::of(cycle)));
                let worst = forbidden.filter(|cycle| name(cycle).is_some()).min_by_key(|cycle| name(cycle));
                cycles.extend(worst);
            }
        }
        cycles
    }

    fn between(&self, a: u32, b: u32, kinds: u8) -> Vec<Edge> {
        let edges = self.edges_from(a);
        let first = edges.partition_point(|edge| edge.to < b);
        let mut between: Vec<Edge> = edges[first..]
            .iter()
            .take_while(|edge| edge.to == b)
            .filter(|edge| edge.kind.bit() & (kinds | READ_WRITE) != 0 && edge.kind != Kind::RealTime)
            .copied()
            .collect();
        if kinds & REAL_TIME != 0 && self.end(a) < self.begin(b) {
            between.push(in_time(b));
        }
        between
    }

    /// A cycle of a pattern, the shortest that the budget finds, if there is any.
    fn shortest(&self, pattern: Pattern, kinds: u8) -> Option<Cycle> {
        let mut search = Search::new(self, if pattern == Pattern::Writes { WRITE_WRITE } else { kinds });
        match pattern {
            Pattern::Writes | Pattern::Dependencies => {
                let within = self.adjacency(search.kinds);
                search.shortest_through(&on_cycles(&within))
            }
            Pattern::Any => {
                search.kinds |= READ_WRITE;
                let within = self.adjacency(search.kinds);
                search.shortest_through(&on_cycles(&within))
            }
            Pattern::One => {
                let closing = self.closed_by_dependencies(kinds);
                search.shortest_closing(&closing)
            }
            Pattern::Apart => {
                search.apart = true;
                search.shortest_through(&on_cycles(&self.apart(kinds)))
            }
        }
    }

    fn adjacency(&self, kinds: u8) -> Adjacency {
        Adjacency::from_successors(self.members.len(), |node| {
            self.edges_from(node).iter().filter(move |edge| edge.kind.bit() & kinds != 0).map(|edge| edge.to)
        })
    }

    /// The graph of states: node 2n means that n was reached by a dependency, 2n + 1 by an anti-dependency, from
    /// where no anti-dependency leads on.
    fn apart(&self, kinds: u8) -> Adjacency {
        Adjacency::from_successors(self.members.len() * 2, |state| {
            self.edges_from(state / 2).iter().filter_map(move |edge| match edge.kind {
                Kind::ReadWrite => state.is_multiple_of(2).then_some(edge.to * 2 + 1),
                _ => (edge.kind.bit() & kinds != 0).then_some(edge.to * 2),
            })
        })
    }

    /// All anti-dependencies a -> b where dependencies lead from b to a: exactly those that close a cycle with one
    /// anti-dependency.
    ///
    /// An order of the dependencies is laid along time, so that nearly all anti-dependencies lead forward in it and
    /// are dismissed at once. Of the rest, reachability is found for `BATCH` targets at a time, one bit each.
    fn closed_by_dependencies(&self, kinds: u8) -> Vec<(u32, Edge)> {
        const WORDS: usize = 8;
        const BATCH: usize = WORDS * 64;
        let condensed = Condensed::of(self, &self.adjacency(kinds));
        let of = |node: u32| condensed.place[node as usize];
        let backward: Vec<(u32, Edge)> = self
            .nodes()
            .flat_map(|node| self.edges_from(node).iter().map(move |edge| (node, *edge)))
            .filter(|(from, edge)| edge.kind == Kind::ReadWrite && of(*from) >= of(edge.to))
            .collect();
        let targets: Vec<usize> =
            backward.iter().map(|(_, edge)| of(edge.to)).collect::<BTreeSet<_>>().into_iter().collect();
        let mut closing = Vec::new();
        let mut reached = vec![[0_u64; WORDS]; condensed.successors.len()];
        for batch in targets.chunks(BATCH) {
            reached.fill([0; WORDS]);
            for (bit, &target) in batch.iter().enumerate() {
                reached[target][bit / 64] |= 1 << (bit % 64);
            }
            for from in batch[0]..reached.len() {
                let bits = reached[from];
                if bits != [0; WORDS] {
                    for &to in &condensed.successors[from] {
                        for (word, bits) in reached[to].iter_mut().zip(bits) {
                            *word |= bits;
                        }
                    }
                }
            }
            for (from, edge) in &backward {
                if let Ok(bit) = batch.binary_search(&of(edge.to))
                    && reached[of(*from)][bit / 64] & (1 << (bit % 64)) != 0
                {
                    closing.push((*from, *edge));
                }
            }
        }
        closing
    }
}

/// A graph whose strongly connected components are drawn together, in topological order: edges lead to higher
/// places. Of what the edges leave open, what completed first comes first.
struct Condensed {
    /// The place of each node's component.
    place: Vec<usize>,
    /// By place.
    successors: Vec<Vec<usize>>,
}

impl Condensed {
    fn of(component: &Component<'_>, graph: &Adjacency) -> Condensed {
        let components = graph.components();
        let of = |node: u32| components.of[node as usize] as usize;
        let mut edges = vec![Vec::new(); components.count];
        let mut predecessors = vec![0_usize; components.count];
        let mut completed_ns = vec![0; components.count];
        for node in component.nodes() {
            let from = of(node);
            completed_ns[from] = completed_ns[from].max(component.transaction(node).completed_ns);
            for to in graph.successors(node).iter().map(|&to| of(to)).filter(|&to| to != from) {
                edges[from].push(to);
                predecessors[to] += 1;
            }
        }
        let free = (0..components.count).filter(|&number| predecessors[number] == 0);
        let mut free: BinaryHeap<_> = free.map(|number| Reverse((completed_ns[number], number))).collect();
        let mut place_of = vec![0; components.count];
        let mut in_order = Vec::with_capacity(components.count);
        while let Some(Reverse((_, number))) = free.pop() {
            place_of[number] = in_order.len();
            in_order.push(number);
            for &to in &edges[number] {
                predecessors[to] -= 1;
                if predecessors[to] == 0 {
                    free.push(Reverse((completed_ns[to], to)));
                }
            }
        }
        Condensed {
            place: component.nodes().map(|node| place_of[of(node)]).collect(),
            successors: in_order
                .iter()
                .map(|&number| edges[number].iter().map(|&to| place_of[to]).collect())
                .collect(),
        }
    }
}

/// The nodes that lie on a cycle.
fn on_cycles(graph: &Adjacency) -> Vec<u32> {
    let mut nodes = graph.components().cyclic().concat();
    nodes.sort_unstable();
    nodes
}

fn in_time(to: u32) -> Edge {
    Edge { to, kind: Kind::RealTime, object: Object::Nothing, unseen: false }
}

/// A cycle of at most so many transactions can be followed by a human.
const FOLLOWED_MAX: usize = 4;

/// Cycles of two are found pair by pair, so that no search needs to look for a shorter one than this.
const SHORTEST: usize = 3;

/// Breadth-first searches for short cycles in a component.
///
/// Real time is not followed edge by edge, which would count a long wait as many steps: from a transaction every
/// one that began later is one step away. A search visits those in the order in which they began, latest first, and
/// each once.
struct Search<'c, 'h> {
    component: &'c Component<'h>,
    kinds: u8,
    /// No two anti-dependencies may be adjacent; nodes are the states of `Component::apart`.
    apart: bool,
    /// The search in which a state was reached last, and how.
    reached: Vec<(u32, u32, Edge)>,
    searches: u32,
    /// How many more steps may be taken once a cycle is known.
    budget: u64,
}

impl<'c, 'h> Search<'c, 'h> {
    fn new(component: &'c Component<'h>, kinds: u8) -> Search<'c, 'h> {
        const BUDGET: u64 = 5_000_000;
        Search {
            component,
            kinds,
            apart: false,
            reached: vec![(0, 0, in_time(0)); component.members.len() * 2],
            searches: 0,
            budget: BUDGET,
        }
    }

    /// A short cycle through one of `starts`, each of which must lie on a cycle.
    fn shortest_through(&mut self, starts: &[u32]) -> Option<Cycle> {
        let mut best: Option<Cycle> = None;
        for &start in starts {
            let limit = best.as_ref().map_or(usize::MAX, |cycle| cycle.len() - 1);
            if limit < SHORTEST || (best.is_some() && self.budget == 0) {
                break;
            }
            let start = if self.apart { start } else { start * 2 };
            best = self.path(start, start, limit).or(best);
        }
        best
    }

    /// A short cycle that one of these anti-dependencies closes.
    fn shortest_closing(&mut self, closing: &[(u32, Edge)]) -> Option<Cycle> {
        let mut best: Option<Cycle> = None;
        for (from, edge) in closing {
            let limit = best.as_ref().map_or(usize::MAX, |cycle| cycle.len() - 1);
            if limit < SHORTEST || (best.is_some() && self.budget == 0) {
                break;
            }
            if let Some(mut path) = self.path(edge.to * 2, from * 2, limit - 1) {
                path.insert(0, (*from, *edge));
                best = Some(path);
            }
        }
        best
    }

    /// A shortest path of at least one step and at most `limit`, from a state to a state.
    fn path(&mut self, start: u32, goal: u32, limit: usize) -> Option<Cycle> {
        self.searches += 1;
        let component = self.component;
        let in_time_kinds = self.kinds & REAL_TIME != 0;
        let mut later = component.latest_first.iter().peekable();
        let mut queue = VecDeque::from([(start, 0_usize)]);
        while let Some((state, depth)) = queue.pop_front() {
            if depth == limit {
                return None;
            }
            let node = state / 2;
            if in_time_kinds && goal.is_multiple_of(2) && component.end(node) < component.begin(goal / 2) {
                return Some(self.path_to(start, state, in_time(goal / 2)));
            }
            for edge in component.edges_from(node) {
                let next = match edge.kind {
                    Kind::RealTime => continue,
                    Kind::ReadWrite if self.apart && state.is_multiple_of(2) => edge.to * 2 + 1,
                    Kind::ReadWrite if self.apart => continue,
                    kind if kind.bit() & self.kinds != 0 => edge.to * 2,
                    _ => continue,
                };
                if next == goal {
                    return Some(self.path_to(start, state, *edge));
                }
                self.reach(next, state, *edge, start, depth, &mut queue);
            }
            if in_time_kinds {
                while let Some(&next) = later.next_if(|next| component.begin(**next) > component.end(node)) {
                    self.reach(next * 2, state, in_time(next), start, depth, &mut queue);
                }
            }
        }
        None
    }

    fn reach(
        &mut self,
        next: u32,
        from: u32,
        by: Edge,
        start: u32,
        depth: usize,
        queue: &mut VecDeque<(u32, usize)>,
    ) {
        self.budget = self.budget.saturating_sub(1);
        let reached = &mut self.reached[next as usize];
        if next != start && reached.0 != self.searches {
            *reached = (self.searches, from, by);
            queue.push_back((next, depth + 1));
        }
    }

    fn path_to(&self, start: u32, last: u32, edge: Edge) -> Cycle {
        let mut path = vec![(last / 2, edge)];
        let mut state = last;
        while state != start {
            let (_, from, by) = self.reached[state as usize];
            path.push((from / 2, by));
            state = from;
        }
        path.reverse();
        path
    }
}

/// The name of a cycle; none if another part of the check has reported it.
fn name(cycle: &[(u32, Edge)]) -> Option<Anomaly> {
    let anti: Vec<&Edge> =
        cycle.iter().map(|(_, edge)| edge).filter(|edge| edge.kind == Kind::ReadWrite).collect();
    let timed = |edge: &Edge| matches!(edge.kind, Kind::Session | Kind::RealTime);
    let others = || cycle.iter().map(|(_, edge)| edge).filter(|edge| edge.kind != Kind::ReadWrite);
    let any_timed = others().any(timed);
    Some(match anti[..] {
        _ if others().all(timed) && anti.is_empty() => return None,
        [] if any_timed && others().any(|edge| edge.unseen) => Anomaly::LostAppend,
        [] if any_timed => Anomaly::OrderViolation,
        [] if cycle.iter().all(|(_, edge)| edge.kind == Kind::WriteWrite) => Anomaly::DirtyWrite,
        [] => Anomaly::CircularInformationFlow,
        [read] if any_timed && read.unseen && others().all(timed) => Anomaly::LostAppend,
        [_] if any_timed => Anomaly::StaleRead,
        [read] if others().all(|edge| edge.kind == Kind::WriteWrite && edge.object.same(read.object)) => {
            Anomaly::LostUpdate
        }
        [_] => Anomaly::ReadSkew,
        _ if any_timed => Anomaly::OrderViolation,
        // Both read one version and overwrote it: reported as a lost update where versions are ordered.
        [a, b] if cycle.len() == 2 && a.object.same(b.object) => return None,
        _ if Pattern::of(cycle) == Pattern::Apart => Anomaly::LongFork,
        _ if anti.iter().any(|edge| matches!(edge.object, Object::Row(..))) => Anomaly::Phantom,
        _ if anti.len() == cycle.len() => Anomaly::WriteSkew,
        _ => Anomaly::AntiDependencyCycle,
    })
}
