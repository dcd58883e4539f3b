//! TPC-C's transactions as they arrive whole: what each may write, by the analysis of its SQL, and what it does write.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::LazyLock;

use onecopy_classify::whole::{Conflicts, Granularity, Reads, foresee};
use onecopy_classify::{
    Catalogue as Tables, Class, Context, OwnedLayout, ParamValue, Scratch, classify, normalise, table_id,
};
use onecopy_core::conflict_index::conflict;
use onecopy_core::{Access, AccessSet, Mode, Space};
use onecopy_sim::whole::{Arriving, Drawn, Source};
use onecopy_workload::client::{Rows, Script, Step};
use onecopy_workload::tpcc::{
    Generator, HomeWarehouse, How, Kind, Memory, Parameters, Population, Scale, Touched, Transaction,
    catalogue,
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
    reads: Reads,
}

impl Classes {
    /// Analyses the SQL of TPC-C's statements.
    #[must_use]
    pub fn new(granularity: Granularity, reads: Reads) -> Classes {
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
        Classes { statements: statements.collect(), granularity, reads }
    }

    /// Adds what an execution of a statement may do.
    fn add(&self, Execution { statement, known }: &Execution, foreseen: &mut AccessSet) {
        let (class, sql, layout) = &self.statements[usize::from(statement.0)];
        let counted = Conflicts { granularity: self.granularity, reads: self.reads };
        foresee(class, sql, layout.layout(), known, &[], counted, foreseen);
    }

    /// What a transaction may do, by what its client gave.
    #[must_use]
    pub fn foreseen(&self, given: &Parameters) -> AccessSet {
        self.foreseen_of(&Execution::all(given))
    }

    /// The same, by its statements.
    #[must_use]
    pub fn foreseen_of(&self, executions: &[Execution]) -> AccessSet {
        let mut foreseen = AccessSet::new();
        executions.iter().for_each(|execution| self.add(execution, &mut foreseen));
        foreseen
    }

    /// What it does when it runs on this supplier.
    #[must_use]
    pub fn done(&self, given: &Parameters, supplier: &mut Memory) -> AccessSet {
        self.run(given, supplier).0
    }

    /// What it does by the analysis, and what it touches by what is written down of the benchmark. Nothing if it is taken back.
    fn run(&self, given: &Parameters, supplier: &mut Memory) -> (AccessSet, Vec<Touched>) {
        let (mut done, mut touched) = (AccessSet::new(), Vec::new());
        let is_kept = execute(given, supplier, |statement, params, touches, rows| {
            touched.extend(touches);
            // What finds no row changes none.
            if rows.count > 0 {
                let known = Known(params.iter().map(|value| Some(text(value))).collect());
                self.add(&Execution { statement, known }, &mut done);
            }
        });
        if is_kept { (done, touched) } else { (AccessSet::new(), Vec::new()) }
    }
}

/// What of what a transaction does is written when it runs at the same time as others that arrive with it: where each takes the oldest order
/// of a district, all mean the same one, though the supplier here has given another one to each.
fn written_of(done: AccessSet, foreseen: &[Access]) -> Vec<Access> {
    let orders = table_id("public", "new_order");
    let taken = |access: &&Access| access.item.table == orders && access.mode == Mode::Exclusive;
    let removes = |access: &Access| taken(&access) && access.item.space == Space::Rows;
    let done = done.into_iter().filter(|access| access.mode.writes() && !removes(access));
    done.chain(foreseen.iter().filter(|access| removes(access)).cloned()).collect()
}

/// What of it is written in the eyes of a judge. Table II asks for the parameters alone, so of all but payments that is what is foreseen.
fn written_as(judge: Judge, given: &Parameters, done: AccessSet, foreseen: &[Access]) -> Vec<Access> {
    match (judge, given) {
        (Judge::Rows, _) | (Judge::TableTwo, Parameters::Payment(_)) => written_of(done, foreseen),
        _ => foreseen.iter().filter(|access| access.mode.writes()).cloned().collect(),
    }
}

/// What is foreseen by who knows what will be written; what is only read is as wide as before.
fn known(written: &[Access], foreseen: AccessSet) -> AccessSet {
    let reads = foreseen.into_iter().filter(|access| matches!(access.mode, Mode::Shared | Mode::Update));
    written.iter().cloned().chain(reads).collect()
}

/// Runs a transaction; returns whether it is committed. `see` is told of each statement when it has been answered, with what it touched.
fn execute(
    given: &Parameters,
    supplier: &mut Memory,
    mut see: impl FnMut(StatementId, &[Value], Vec<Touched>, &Rows),
) -> bool {
    let mut script = Transaction::new(given.clone());
    let mut rows = None;
    loop {
        match script.next(rows.take()) {
            Step::Execute(statement, params) => {
                let touched = supplier.touched(statement, &params);
                let answer = supplier.answer(statement, &params);
                see(statement, &params, touched, &answer);
                rows = Some(answer);
            }
            Step::Commit => return true,
            Step::Rollback => return false,
        }
    }
}

/// What a transaction reads and writes when it runs on this supplier, by what is written down of the benchmark. Nothing if it is taken back.
#[must_use]
pub fn touched(given: &Parameters, supplier: &mut Memory) -> Vec<Touched> {
    let mut all = Vec::new();
    let is_kept = execute(given, supplier, |_, _, touched, _| all.extend(touched));
    if is_kept { all } else { Vec::new() }
}

/// A statement of a transaction that has not run yet, with those of its parameters that are known, as a client sends them.
#[derive(Clone, Debug)]
pub struct Execution {
    statement: StatementId,
    known: Known,
}

impl Execution {
    /// All that a transaction may execute.
    #[must_use]
    pub fn all(given: &Parameters) -> Vec<Execution> {
        let mut executions = Vec::new();
        let of = &catalogue().transaction(given.kind().transaction()).statements;
        for statement in of.clone() {
            let data = &catalogue().statements[statement];
            for round in 0..given.rounds(data.group.as_deref()) {
                let value = |name: &String| given.value_in_round(name, round).as_ref().map(text);
                let known = Known(data.params.iter().map(value).collect());
                executions.push(Execution { statement: StatementId(statement as u16), known });
            }
        }
        executions
    }
}

/// The values of parameters; those that are `None` are not known.
#[derive(Clone, Debug)]
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
pub fn shares_of_pairs(judge: Judge) -> PairShares {
    static BY_TABLE: LazyLock<PairShares> = LazyLock::new(|| compare_pairs(Judge::TableTwo));
    static BY_ROWS: LazyLock<PairShares> = LazyLock::new(|| compare_pairs(Judge::Rows));
    match judge {
        Judge::TableTwo => *BY_TABLE,
        Judge::Rows => *BY_ROWS,
    }
}

fn compare_pairs(judge: Judge) -> PairShares {
    let classes = Classes::new(Granularity::Cell, Reads::Ignored);
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
            let done = written_as(judge, &given, classes.done(&given, &mut supplier), &foreseen).into();
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

/// By what it is found out whether two transactions that ran are in conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// Gargamel's Table II, of the customer who was meant.
    TableTwo,
    /// The rows that they wrote.
    Rows,
}

/// Transactions of clients of all warehouses, by the mix.
#[derive(Debug)]
pub struct Supplier {
    classes: Classes,
    generator: Generator,
    memory: Memory,
    judge: Judge,
    knows_customers: bool,
    notes: Notes,
}

/// Which cells are registers of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Notes {
    Nothing,
    Changes,
    ChangesAndReads,
}

impl Supplier {
    /// A supplier of so many warehouses, of the benchmark's size, with conflicts by cell as the paper counts them.
    #[must_use]
    pub fn new(seed: u64, warehouses: i64, judge: Judge) -> Option<Supplier> {
        Some(Supplier::of_scale(seed, Scale::new(warehouses, 3_000).ok()?, judge))
    }

    /// The same of another size.
    #[must_use]
    pub fn of_scale(seed: u64, scale: Scale, judge: Judge) -> Supplier {
        let population = Population::new(scale, seed, Timestamp::default());
        let highest = population.highest_history();
        Supplier {
            classes: Classes::new(Granularity::Cell, Reads::Ignored),
            generator: Generator::new(&population, HomeWarehouse::Uniform, seed, 0, 1, highest),
            memory: Memory::new(population),
            judge,
            knows_customers: false,
            notes: Notes::Nothing,
        }
    }

    /// The same, where what is read is foreseen as well: those that only look are in the chains, too.
    #[must_use]
    pub fn counting_reads(self) -> Supplier {
        Supplier { classes: Classes::new(Granularity::Cell, Reads::Counted), ..self }
    }

    /// The same, and its classifier knows which customer has a name.
    #[must_use]
    pub fn knowing_customers(self) -> Supplier {
        Supplier { knows_customers: true, ..self }
    }

    /// The same, and each changed cell is a register, so that a run finds updates that are lost.
    #[must_use]
    pub fn noting_registers(self) -> Supplier {
        Supplier { notes: Notes::Changes, ..self }
    }

    /// The same, and so is each cell that is read, so that a history shows who read what.
    #[must_use]
    pub fn noting_reads(self) -> Supplier {
        Supplier { notes: Notes::ChangesAndReads, ..self }
    }
}

impl Source for Supplier {
    fn next(&mut self) -> Arriving {
        let kind = self.generator.kind();
        let given = self.generator.draw(kind, Timestamp::default());
        let duration = DURATIONS.iter().find(|(of, _)| *of == kind).map(|(_, drawn)| *drawn);
        let looks_only = matches!(kind, Kind::OrderStatus | Kind::StockLevel);
        let updates = !looks_only || self.classes.reads == Reads::Counted;
        let foreseen = if updates { self.classes.foreseen(&given) } else { AccessSet::new() };
        let (done, touched) = self.classes.run(&given, &mut self.memory);
        let written = written_as(self.judge, &given, done, &foreseen);
        let foreseen = match self.knows_customers && updates {
            true => known(&written, foreseen),
            false => foreseen,
        };
        let (reads, writes) = match self.notes {
            Notes::Nothing => (Vec::new(), Vec::new()),
            Notes::Changes => (registers(&written), registers(&written)),
            // Whoever writes has read it, so that a history shows the order of versions.
            Notes::ChangesAndReads => {
                (cells(&touched, |_| true), cells(&touched, |how| matches!(how, How::Changes(_))))
            }
        };
        Arriving {
            kind: kind as u64,
            updates,
            foreseen,
            written,
            duration: duration.unwrap_or(Drawn { ns: 0.0, variance: 0.0 }),
            reads,
            writes,
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
    numbered(cells)
}

/// A number for each cell of rows that are known by their keys and touched so. Which rows there are is not in it.
fn cells(touched: &[Touched], so: impl Fn(How) -> bool) -> Vec<u64> {
    let of_row = |touched: &Touched| {
        let key: &[&str] = match touched.table {
            "warehouse" => &["w_id"],
            "district" => &["d_w_id", "d_id"],
            "customer" => &["c_w_id", "c_d_id", "c_id"],
            "orders" => &["o_w_id", "o_d_id", "o_id"],
            "stock" => &["s_w_id", "s_i_id"],
            _ => return Vec::new(),
        };
        let value =
            |column: &&str| touched.known.iter().find(|(known, _)| known == column).map(|(_, value)| *value);
        let (Some(key), How::Reads(columns) | How::Changes(columns)) =
            (key.iter().map(value).collect::<Option<Vec<i64>>>(), touched.how)
        else {
            return Vec::new();
        };
        columns.iter().map(|column| (touched.table, key.clone(), *column)).collect()
    };
    numbered(touched.iter().filter(|touched| so(touched.how)).flat_map(of_row))
}

fn numbered(cells: impl Iterator<Item = impl Hash>) -> Vec<u64> {
    let mut registers: Vec<u64> =
        cells.map(|cell| BuildHasherDefault::<DefaultHasher>::default().hash_one(cell)).collect();
    registers.sort_unstable();
    registers.dedup();
    registers
}
