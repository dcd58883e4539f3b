//! TPC-C's transactions as they arrive whole: what each may write, by the analysis of its SQL, and what it does write.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::LazyLock;

use onecopy_classify::whole::{Granularity, foresee};
use onecopy_classify::{
    Catalogue as Tables, Class, Context, OwnedLayout, ParamValue, Scratch, classify, normalise, table_id,
};
use onecopy_core::conflict_index::conflict;
use onecopy_core::{Access, AccessSet, Mode, Space};
use onecopy_sim::whole::{Arriving, Drawn, Source};
use onecopy_workload::client::{Script, Step};
use onecopy_workload::random::Random;
use onecopy_workload::tpcc::{
    Generator, HomeWarehouse, Kind, Memory, Parameters, Population, Scale, Transaction, catalogue,
};
use onecopy_workload::{StatementId, Timestamp, Value};

/// The tables as a server describes them.
const TABLES: &str = include_str!("../../../classify/tests/catalogues/tpcc.json");

/// How long each kind takes at a worker: Gargamel's Table I.
const DURATIONS: [(Kind, Drawn); 5] = [
    (Kind::NewOrder, Drawn { ns: 700e6, variance: 0.025 }),
    (Kind::Payment, Drawn { ns: 660e6, variance: 0.028 }),
    (Kind::OrderStatus, Drawn { ns: 680e6, variance: 0.028 }),
    (Kind::Delivery, Drawn { ns: 660e6, variance: 0.035 }),
    (Kind::StockLevel, Drawn { ns: 1_010e6, variance: 0.022 }),
];

/// The classes of all statements.
#[derive(Debug)]
pub struct Classes {
    statements: Vec<(Class, String, OwnedLayout)>,
    granularity: Granularity,
}

impl Classes {
    /// Analyses the SQL of TPC-C's statements.
    #[must_use]
    pub fn new(granularity: Granularity) -> Classes {
        let mut tables = Tables::from_json(TABLES).unwrap_or_default();
        tables.rebuild();
        let path = ["public".to_owned()];
        let context = Context { catalogue: &tables, search_path: &path, temporary: &[] };
        let mut scratch = Scratch::default();
        let statements = catalogue().statements.iter().map(|statement| {
            let normalised = normalise(&statement.sql, &mut scratch);
            let class = classify(&statement.sql, &normalised, &context);
            (class, statement.sql.clone(), normalised.layout.to_owned())
        });
        Classes { statements: statements.collect(), granularity }
    }

    /// Adds what an execution of a statement with these parameters may do; those that are `None` are not known.
    fn add(&self, statement: StatementId, known: &[Option<Value>], foreseen: &mut AccessSet) {
        let (class, sql, layout) = &self.statements[usize::from(statement.0)];
        let known = Known(known.iter().map(|value| value.as_ref().map(text)).collect());
        foresee(class, sql, layout.layout(), &known, &[], self.granularity, foreseen);
    }

    /// What a transaction may do, by what its client gave.
    #[must_use]
    pub fn foreseen(&self, given: &Parameters) -> AccessSet {
        let mut foreseen = AccessSet::new();
        let of = &catalogue().transaction(given.kind().transaction()).statements;
        for statement in of.clone() {
            let data = &catalogue().statements[statement];
            for round in 0..given.rounds(data.group.as_deref()) {
                let known: Vec<Option<Value>> =
                    data.params.iter().map(|name| given.value_in_round(name, round)).collect();
                self.add(StatementId(statement as u16), &known, &mut foreseen);
            }
        }
        foreseen
    }

    /// What it writes when it runs at the same time as others that arrive with it: where each takes the oldest order of a district, all
    /// mean the same one, though the supplier here has given another one to each.
    #[must_use]
    pub fn written(&self, given: &Parameters, foreseen: &[Access], supplier: &mut Memory) -> Vec<Access> {
        let orders = table_id("public", "new_order");
        let taken = |access: &&Access| access.item.table == orders && access.mode == Mode::Exclusive;
        let removes = |access: &Access| taken(&access) && access.item.space == Space::Rows;
        let done = self.done(given, supplier).into_iter();
        let done = done.filter(|access| access.mode != Mode::KeyShared && !removes(access));
        done.chain(foreseen.iter().filter(|access| removes(access)).cloned()).collect()
    }

    /// What it does when it runs on this supplier.
    #[must_use]
    pub fn done(&self, given: &Parameters, supplier: &mut Memory) -> AccessSet {
        let mut done = AccessSet::new();
        let mut script = Transaction::new(given.clone());
        let mut rows = None;
        loop {
            match script.next(rows.take()) {
                Step::Execute(statement, params) => {
                    let answer = supplier.answer(statement, &params);
                    // What finds no row changes none.
                    let changes = answer.count > 0;
                    rows = Some(answer);
                    let known: Vec<Option<Value>> = params.into_iter().map(Some).collect();
                    if changes {
                        self.add(statement, &known, &mut done);
                    }
                }
                Step::Commit => return done,
                Step::Rollback => return AccessSet::new(),
            }
        }
    }
}

struct Known(Vec<Option<Option<String>>>);

impl onecopy_classify::Params for Known {
    fn param(&self, number: u32) -> Option<ParamValue<'_>> {
        let value = self.0.get((number as usize).checked_sub(1)?)?.as_ref()?;
        Some(ParamValue { type_oid: 0, binary: false, bytes: value.as_deref().map(str::as_bytes) })
    }
}

/// A value as a client sends it; `None` is NULL.
fn text(value: &Value) -> Option<String> {
    (*value != Value::Null).then(|| value.to_string())
}

/// Of pairs of transactions of the mix, how many were foreseen to conflict in vain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PairShares {
    /// Pairs of transactions of all kinds.
    pub all: u64,
    /// Those that conflict.
    pub conflicting: u64,
    /// Pairs of payments of which one finds its customer by name, foreseen in vain.
    pub in_vain_by_name: u64,
    /// Others that were foreseen in vain.
    pub in_vain_otherwise: u64,
}

/// Transactions of which each is compared with each.
const COMPARED: usize = 1_000;

/// Compares transactions of a supplier of the paper's size, half a million pairs, by cell. Done once.
#[must_use]
pub fn shares_of_pairs() -> PairShares {
    static SHARES: LazyLock<PairShares> = LazyLock::new(compare_pairs);
    *SHARES
}

fn compare_pairs() -> PairShares {
    let classes = Classes::new(Granularity::Cell);
    let mut shares = PairShares::default();
    let Ok(scale) = Scale::new(10, 3_000) else { return shares };
    let population = Population::new(scale, 1, Timestamp::default());
    let mut generator =
        Generator::new(&population, HomeWarehouse::Uniform, 1, 0, 1, population.highest_history());
    let mut supplier = Memory::new(population);
    let drawn: Vec<(Parameters, AccessSet, AccessSet)> = (0..COMPARED)
        .map(|_| {
            let kind = generator.kind();
            let given = generator.draw(kind, Timestamp::default());
            // What only looks is in no chain, and an order that is taken back leaves nothing to compare.
            let is_taken_back = matches!(&given, Parameters::NewOrder(order) if order.is_taken_back);
            if is_taken_back || matches!(kind, Kind::OrderStatus | Kind::StockLevel) {
                return (given, AccessSet::new(), AccessSet::new());
            }
            let foreseen = classes.foreseen(&given);
            let done = classes.written(&given, &foreseen, &mut supplier).into();
            (given, foreseen, done)
        })
        .collect();
    let conflict = |a: &[Access], b: &[Access]| a.iter().any(|a| b.iter().any(|b| conflict(a, b)));
    let by_name = |given: &Parameters| matches!(given, Parameters::Payment(_)) && given.value("c").is_none();
    let is_payment = |given: &Parameters| matches!(given, Parameters::Payment(_));
    for (at, (given, foreseen, done)) in drawn.iter().enumerate() {
        for (other, theirs, did) in &drawn[at + 1..] {
            shares.all += 1;
            if conflict(done, did) {
                shares.conflicting += 1;
            } else if conflict(foreseen, theirs) {
                let of_payments = is_payment(given) && is_payment(other);
                match of_payments && (by_name(given) || by_name(other)) {
                    true => shares.in_vain_by_name += 1,
                    false => shares.in_vain_otherwise += 1,
                }
            }
        }
    }
    shares
}

/// Transactions of clients of all warehouses, by the mix.
#[derive(Debug)]
pub struct Supplier {
    classes: Classes,
    generator: Generator,
    memory: Memory,
    notes_registers: bool,
}

impl Supplier {
    /// A supplier of so many warehouses, of the benchmark's size, with conflicts by cell as the paper counts them.
    #[must_use]
    pub fn new(seed: u64, warehouses: i64) -> Option<Supplier> {
        let scale = Scale::new(warehouses, 3_000).ok()?;
        let population = Population::new(scale, seed, Timestamp::default());
        let highest = population.highest_history();
        Some(Supplier {
            classes: Classes::new(Granularity::Cell),
            generator: Generator::new(&population, HomeWarehouse::Uniform, seed, 0, 1, highest),
            memory: Memory::new(population),
            notes_registers: false,
        })
    }

    /// The same, and each changed cell is a register, so that a run finds updates that are lost.
    #[must_use]
    pub fn noting_registers(self) -> Supplier {
        Supplier { notes_registers: true, ..self }
    }
}

impl Source for Supplier {
    fn next(&mut self, durations: &mut Random) -> Arriving {
        let kind = self.generator.kind();
        let given = self.generator.draw(kind, Timestamp::default());
        let duration = DURATIONS.iter().find(|(of, _)| *of == kind).map(|(_, drawn)| *drawn);
        let updates = !matches!(kind, Kind::OrderStatus | Kind::StockLevel);
        let foreseen = if updates { self.classes.foreseen(&given) } else { AccessSet::new() };
        let written = self.classes.written(&given, &foreseen, &mut self.memory);
        let registers = if self.notes_registers { registers(&written) } else { Vec::new() };
        Arriving {
            kind: kind as u64,
            updates,
            foreseen,
            written,
            duration_ns: duration.map_or(0, |drawn| drawn.draw_ns(durations)),
            reads: registers.clone(),
            writes: registers,
        }
    }
}

/// A number for each cell that is changed.
fn registers(written: &[Access]) -> Vec<u64> {
    let changed = written.iter().filter(|access| access.mode == Mode::NoKeyExclusive);
    let cells = changed.flat_map(|access| {
        let columns = (0..64).filter(|column| access.columns.bits() >> column & 1 == 1);
        columns.map(|column| (access.item.clone(), column))
    });
    let mut registers: Vec<u64> =
        cells.map(|cell| BuildHasherDefault::<DefaultHasher>::default().hash_one(cell)).collect();
    registers.sort_unstable();
    registers.dedup();
    registers
}
