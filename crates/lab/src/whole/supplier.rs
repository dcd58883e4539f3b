//! TPC-C's transactions as they arrive whole: what each may write, by the analysis of its SQL, and what it does write.

use std::sync::LazyLock;

use onecopy_classify::whole::{Counted, Granularity, foresee};
use onecopy_classify::{
    Catalogue as Tables, Class, Context, OwnedLayout, ParamValue, Scratch, classify, normalise,
};
use onecopy_core::conflict_index::conflict;
use onecopy_core::{Access, AccessSet, Mode};
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
    counted: Counted,
}

impl Classes {
    /// Analyses the SQL of TPC-C's statements.
    #[must_use]
    pub fn new(granularity: Granularity, counted: Counted) -> Classes {
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
        Classes { statements: statements.collect(), granularity, counted }
    }

    /// Adds what an execution of a statement with these parameters may do; those that are `None` are not known.
    fn add(&self, statement: StatementId, known: &[Option<Value>], foreseen: &mut AccessSet) {
        let (class, sql, layout) = &self.statements[usize::from(statement.0)];
        let known = Known(known.iter().map(|value| value.as_ref().map(text)).collect());
        foresee(class, sql, layout.layout(), &known, self.granularity, self.counted, foreseen);
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

/// Of pairs of transactions that update, how many were foreseen to conflict in vain.
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
    let classes = Classes::new(Granularity::Cell, Counted::Writes);
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
            if matches!(kind, Kind::OrderStatus | Kind::StockLevel) {
                return (given, AccessSet::new(), AccessSet::new());
            }
            let (foreseen, done) = (classes.foreseen(&given), classes.done(&given, &mut supplier));
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
}

impl Supplier {
    /// A supplier of so many warehouses, of the benchmark's size, with conflicts by cell as the paper counts them.
    #[must_use]
    pub fn new(seed: u64, warehouses: i64) -> Option<Supplier> {
        let scale = Scale::new(warehouses, 3_000).ok()?;
        let population = Population::new(scale, seed, Timestamp::default());
        let highest = population.highest_history();
        Some(Supplier {
            classes: Classes::new(Granularity::Cell, Counted::Writes),
            generator: Generator::new(&population, HomeWarehouse::Uniform, seed, 0, 1, highest),
            memory: Memory::new(population),
        })
    }
}

impl Source for Supplier {
    fn next(&mut self, durations: &mut Random) -> Arriving {
        let kind = self.generator.kind();
        let given = self.generator.draw(kind, Timestamp::default());
        let duration = DURATIONS.iter().find(|(of, _)| *of == kind).map(|(_, drawn)| *drawn);
        let updates = !matches!(kind, Kind::OrderStatus | Kind::StockLevel);
        let foreseen = if updates { self.classes.foreseen(&given) } else { AccessSet::new() };
        let written = self.classes.done(&given, &mut self.memory);
        Arriving {
            kind: kind as u64,
            updates,
            foreseen,
            written: written.into_iter().filter(changes).collect(),
            duration_ns: duration.map_or(0, |drawn| drawn.draw_ns(durations)),
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }
}

/// Whether it is a change, and not what it refers to.
fn changes(access: &Access) -> bool {
    access.mode != Mode::KeyShared
}
