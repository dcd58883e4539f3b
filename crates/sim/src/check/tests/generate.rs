//! Random histories that are strictly serializable by construction: transactions run one at a time on a model, each
//! at a moment between its invocation and its completion.

use std::collections::{BTreeSet, HashMap};

use onecopy_core::Csn;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::check::replay::Place;
use crate::check::{History, List, Operation, Process, Register, Row, Status, Table, Transaction, Value};

/// Which kinds of objects transactions use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kinds {
    Lists,
    Registers,
    Rows,
    All,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) transactions: usize,
    pub(super) processes: u32,
    pub(super) kinds: Kinds,
    /// How many objects of each kind are in use at once; each is replaced by a fresh one after `writes_max` writes.
    pub(super) objects: u64,
    pub(super) writes_max: u64,
    pub(super) steps_max: usize,
    pub(super) aborted: f64,
    pub(super) unknown: f64,
    /// Registers are written without being read first.
    pub(super) blind: bool,
}

impl Shape {
    pub(super) fn large(transactions: usize) -> Shape {
        Shape {
            transactions,
            processes: 16,
            kinds: Kinds::All,
            objects: 12,
            writes_max: 40,
            steps_max: 4,
            aborted: 0.05,
            unknown: 0.02,
            blind: true,
        }
    }

    pub(super) fn small(kinds: Kinds) -> Shape {
        Shape {
            transactions: 6,
            processes: 3,
            kinds,
            objects: 2,
            writes_max: 100,
            steps_max: 3,
            aborted: 0.1,
            unknown: 0.1,
            blind: true,
        }
    }
}

pub(super) struct Generated {
    pub(super) history: History,
    pub(super) places: Vec<Place>,
}

pub(super) fn serial(random: &mut ChaCha8Rng, shape: &Shape) -> Generated {
    let mut planned = plan(random, shape);
    planned.sort_by_key(|plan| plan.point);
    let mut model = Model::new(*shape);
    let mut csn = Csn(0);
    let (mut transactions, mut places) = (Vec::new(), Vec::new());
    for plan in planned {
        let status = match random.random::<f64>() {
            draw if draw < shape.aborted => Status::Aborted,
            draw if draw < shape.aborted + shape.unknown => Status::Unknown,
            _ => Status::Committed,
        };
        let takes_effect = match status {
            Status::Committed => true,
            Status::Aborted => false,
            Status::Unknown => random.random(),
        };
        let operations = model.run(random, takes_effect);
        let writes = takes_effect && operations.iter().any(|step| !step.is_read());
        let reads = operations.iter().filter(|step| step.is_read()).count();
        let snapshots = vec![csn; reads];
        if writes {
            csn = csn.next();
        }
        places.push(Place { csn: writes.then_some(csn), snapshots });
        // One whose end nobody heard may have been given up at any time after it began.
        let completed_ns =
            if status == Status::Unknown { random.random_range(plan.from..=plan.to) } else { plan.to };
        transactions.push(Transaction {
            process: plan.process,
            invoked_ns: plan.from,
            completed_ns,
            status,
            operations,
        });
    }
    Generated { history: History::new(transactions).expect("well formed"), places }
}

struct Plan {
    process: Process,
    from: u64,
    point: (u64, usize),
    to: u64,
}

fn plan(random: &mut ChaCha8Rng, shape: &Shape) -> Vec<Plan> {
    let mut clocks = vec![0_u64; shape.processes as usize];
    let plan = |place: usize| {
        let process = (0..clocks.len()).min_by_key(|&process| clocks[process]).expect("at least one process");
        let from = clocks[process] + random.random_range(0..20);
        let at = from + random.random_range(0..50);
        let to = at + random.random_range(0..50);
        clocks[process] = to + 1;
        Plan { process: Process(u32::try_from(process).unwrap()), from, point: (at, place), to }
    };
    (0..shape.transactions).map(plan).collect()
}

/// The one database that a serial execution runs on.
#[derive(Clone)]
struct Model {
    shape: Shape,
    lists: HashMap<u64, Vec<Value>>,
    registers: HashMap<u64, Option<Value>>,
    tables: HashMap<u64, BTreeSet<Row>>,
    /// For each place in use, by kind, which object stands there and how often it was written.
    in_use: HashMap<(u8, u64), (u64, u64)>,
    next_object: u64,
    next_value: u64,
}

impl Model {
    fn new(shape: Shape) -> Model {
        Model {
            shape,
            lists: HashMap::new(),
            registers: HashMap::new(),
            tables: HashMap::new(),
            in_use: HashMap::new(),
            next_object: shape.objects,
            next_value: 1,
        }
    }

    fn run(&mut self, random: &mut ChaCha8Rng, takes_effect: bool) -> Vec<Operation> {
        let before = (!takes_effect).then(|| self.clone());
        let steps = random.random_range(1..=self.shape.steps_max);
        let operations = (0..steps).flat_map(|_| self.step(random)).collect();
        if let Some(before) = before {
            // Values are used once, even by who aborts.
            let (next_value, next_object) = (self.next_value, self.next_object);
            *self = Model { next_value, next_object, ..before };
        }
        operations
    }

    fn step(&mut self, random: &mut ChaCha8Rng) -> Vec<Operation> {
        let kind = match self.shape.kinds {
            Kinds::Lists => 0,
            Kinds::Registers => 1,
            Kinds::Rows => 2,
            Kinds::All => random.random_range(0..3),
        };
        let write = random.random_bool(0.5);
        let object = self.object(random, kind, write);
        match kind {
            0 => vec![self.list_step(List(object), write)],
            1 => self.register_step(Register(object), write),
            _ => vec![self.row_step(random, Table(object), write)],
        }
    }

    fn object(&mut self, random: &mut ChaCha8Rng, kind: u8, write: bool) -> u64 {
        let place = random.random_range(0..self.shape.objects);
        let (object, writes) = self.in_use.entry((kind, place)).or_insert((place, 0));
        if write {
            *writes += 1;
            if *writes > self.shape.writes_max {
                // Nobody will touch it again.
                let _ = match kind {
                    0 => self.lists.remove(object).is_some(),
                    1 => self.registers.remove(object).is_some(),
                    _ => self.tables.remove(object).is_some(),
                };
                (*object, *writes) = (self.next_object, 1);
                self.next_object += 1;
            }
        }
        *object
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value - 1
    }

    fn list_step(&mut self, list: List, write: bool) -> Operation {
        let value = Value(self.value());
        let values = self.lists.entry(list.0).or_default();
        if write {
            values.push(value);
            return Operation::Append { list, value };
        }
        Operation::ReadList { list, values: values.clone() }
    }

    fn register_step(&mut self, register: Register, write: bool) -> Vec<Operation> {
        let value = Value(self.value());
        let current = self.registers.entry(register.0).or_default();
        let read = Operation::Read { register, value: *current };
        if !write {
            return vec![read];
        }
        *current = Some(value);
        let write = Operation::Write { register, value };
        if self.shape.blind { vec![write] } else { vec![read, write] }
    }

    fn row_step(&mut self, random: &mut ChaCha8Rng, table: Table, write: bool) -> Operation {
        let row = Row(self.value());
        let rows = self.tables.entry(table.0).or_default();
        if !write {
            return Operation::Scan { table, rows: rows.iter().copied().collect() };
        }
        if !rows.is_empty() && random.random_bool(0.3) {
            let victim = *rows.iter().nth(random.random_range(0..rows.len())).unwrap();
            rows.remove(&victim);
            return Operation::Delete { table, row: victim };
        }
        rows.insert(row);
        Operation::Insert { table, row }
    }
}
