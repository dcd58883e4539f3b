//! What the analysis of TPC-C's SQL says of pairs of transactions, against what the paper says and what they do.

use std::collections::BTreeMap;

use onecopy_classify::table_id;
use onecopy_classify::whole::{Granularity, Reads};
use onecopy_core::conflict_index::conflict;
use onecopy_core::protocol::{WHOLE, whole_by_name};
use onecopy_core::{Access, AccessSet, Csn, TableId};
use onecopy_sim::check::{Level, check};
use onecopy_sim::whole::{Arriving, Setup, Source, run};
use onecopy_workload::Timestamp;
use onecopy_workload::tpcc::{
    Customer, Generator, HomeWarehouse, Kind, Memory, Parameters, Population, Scale, Touched,
};

use super::{Classes, Judge, Supplier, WholeExperiment, shares_of_pairs, touched};
use crate::variation::Variation;

/// Gargamel's Table II. An unknown customer may be any of the district (IV.A).
fn table_2(a: &Parameters, b: &Parameters) -> bool {
    match (a, b) {
        (Parameters::NewOrder(a), Parameters::NewOrder(b)) => {
            let same = |line: &&onecopy_workload::tpcc::OrderLine| {
                b.lines.iter().any(|other| (line.supply, line.item) == (other.supply, other.item))
            };
            (a.w, a.d) == (b.w, b.d) || a.lines.iter().any(|line| same(&line))
        }
        (Parameters::Payment(a), Parameters::Payment(b)) => {
            let same_customer = match (&a.customer, &b.customer) {
                (Customer::Number(a), Customer::Number(b)) => a == b,
                _ => true,
            };
            a.w == b.w || (a.cw, a.cd) == (b.cw, b.cd) && same_customer
        }
        (Parameters::Delivery(a), Parameters::Delivery(b)) => a.w == b.w,
        (Parameters::Delivery(a), Parameters::Payment(b))
        | (Parameters::Payment(b), Parameters::Delivery(a)) => a.w == b.cw,
        _ => false,
    }
}

/// The same by row: orders and payments of a district change one row of it, orders its next number and payments its sum.
fn table_2_by_row(a: &Parameters, b: &Parameters) -> bool {
    let (order, payment) = match (a, b) {
        (Parameters::NewOrder(order), Parameters::Payment(payment))
        | (Parameters::Payment(payment), Parameters::NewOrder(order)) => (order, payment),
        _ => return table_2(a, b),
    };
    (order.w, order.d) == (payment.w, payment.d)
}

fn may_conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|a| b.iter().any(|b| conflict(a, b)))
}

/// Transactions of two small warehouses, with what each may write and what it would write, both on the same supplier.
struct Drawn {
    given: Parameters,
    foreseen: AccessSet,
    done: AccessSet,
}

/// Given, and the same supplier for all.
fn drawn_by<D>(count: usize, seed: u64, mut draw: impl FnMut(Parameters, Memory) -> D) -> Vec<D> {
    let population = Population::new(Scale::new(2, 60).expect("it is in range"), seed, Timestamp::default());
    let highest = population.highest_history();
    let mut generator = Generator::new(&population, HomeWarehouse::Uniform, seed, 0, 1, highest);
    let supplier = {
        // Once for all: every district is made when it is asked for first.
        let mut supplier = Memory::new(population);
        for _ in 0..200 {
            let given = generator.draw(Kind::Payment, Timestamp::default());
            let _ = touched(&given, &mut supplier);
        }
        supplier
    };
    let mut one = || {
        let kind = generator.kind();
        draw(generator.draw(kind, Timestamp::default()), supplier.clone())
    };
    (0..count).map(|_| one()).collect()
}

fn drawn(classes: &Classes, count: usize, seed: u64) -> Vec<Drawn> {
    drawn_by(count, seed, |given, mut supplier| {
        // What only looks is in no chain.
        let reads = matches!(given.kind(), Kind::OrderStatus | Kind::StockLevel);
        let foreseen = if reads { AccessSet::new() } else { classes.foreseen(&given) };
        let done = classes.done(&given, &mut supplier);
        Drawn { given, foreseen, done }
    })
}

/// Pairs of transactions, in numbers.
#[derive(Default, Debug)]
struct Pairs {
    all: u64,
    in_one_warehouse: u64,
    conflicting: u64,
    foreseen_in_vain: u64,
}

/// Compares each transaction with each later one.
fn compare(granularity: Granularity, paper: fn(&Parameters, &Parameters) -> bool, count: usize) -> Pairs {
    let classes = Classes::new(granularity, Reads::Ignored);
    let drawn = drawn(&classes, count, 3);
    let mut pairs = Pairs::default();
    for (at, a) in drawn.iter().enumerate() {
        for b in &drawn[at + 1..] {
            let foreseen = may_conflict(&a.foreseen, &b.foreseen);
            assert_eq!(foreseen, paper(&a.given, &b.given), "{:?}\n{:?}", a.given, b.given);
            let conflicts = may_conflict(&a.done, &b.done);
            assert!(foreseen || !conflicts, "not foreseen: {:?}\n{:?}", a.given, b.given);
            pairs.all += 1;
            pairs.in_one_warehouse += u64::from(a.given.value("w") == b.given.value("w"));
            pairs.conflicting += u64::from(conflicts);
            pairs.foreseen_in_vain += u64::from(foreseen && !conflicts);
        }
    }
    println!("{granularity:?}: {pairs:?}");
    pairs
}

/// Of 4,500 transactions each is compared with each: `ONECOPY_PAIRS=4500` makes ten million pairs.
fn transactions() -> usize {
    std::env::var("ONECOPY_PAIRS").ok().and_then(|count| count.parse().ok()).unwrap_or(500)
}

#[test]
fn by_cell_the_analysis_finds_table_2_and_every_conflict_that_there_is() {
    let pairs = compare(Granularity::Cell, table_2, transactions());
    assert!(5 * pairs.in_one_warehouse >= pairs.all && 12 * pairs.conflicting >= pairs.all, "{pairs:?}");
}

#[test]
fn by_row_the_analysis_finds_one_pair_of_kinds_more_and_every_conflict_that_there_is() {
    let pairs = compare(Granularity::Row, table_2_by_row, transactions());
    assert!(5 * pairs.in_one_warehouse >= pairs.all && 10 * pairs.conflicting >= pairs.all, "{pairs:?}");
}

/// What a transaction may read and write, and what it does by what is written down of the benchmark, by tables.
struct Looking {
    given: Parameters,
    foreseen: BTreeMap<TableId, Vec<Access>>,
    touched: BTreeMap<TableId, Vec<Touched>>,
}

fn by_table<T>(all: impl IntoIterator<Item = T>, table: impl Fn(&T) -> TableId) -> BTreeMap<TableId, Vec<T>> {
    let mut tables: BTreeMap<TableId, Vec<T>> = BTreeMap::new();
    all.into_iter().for_each(|one| tables.entry(table(&one)).or_default().push(one));
    tables
}

fn meet<T>(
    a: &BTreeMap<TableId, Vec<T>>,
    b: &BTreeMap<TableId, Vec<T>>,
    conflict: impl Fn(&T, &T) -> bool,
) -> bool {
    a.iter()
        .any(|(table, a)| b.get(table).is_some_and(|b| a.iter().any(|a| b.iter().any(|b| conflict(a, b)))))
}

/// Both ways: what one reads and the other writes, rows that appear where one looks included, and what both write.
#[test]
fn if_reads_count_the_analysis_finds_whatever_one_reads_and_another_writes() {
    let classes = Classes::new(Granularity::Cell, Reads::Counted);
    let drawn = drawn_by(transactions(), 4, |given, mut supplier| Looking {
        foreseen: by_table(classes.foreseen(&given), |access| access.item.table),
        touched: by_table(touched(&given, &mut supplier), |touched| table_id("public", touched.table)),
        given,
    });
    let mut pairs = Pairs::default();
    let mut of_kinds: BTreeMap<[Kind; 2], [u64; 3]> = BTreeMap::new();
    for (at, a) in drawn.iter().enumerate() {
        for b in &drawn[at + 1..] {
            let foreseen = meet(&a.foreseen, &b.foreseen, conflict);
            let conflicts = meet(&a.touched, &b.touched, Touched::conflicts);
            assert!(
                foreseen || !conflicts,
                "not foreseen: {:?}
{:?}",
                a.given,
                b.given
            );
            let in_vain = u64::from(foreseen && !conflicts);
            pairs.all += 1;
            pairs.in_one_warehouse += u64::from(a.given.value("w") == b.given.value("w"));
            pairs.conflicting += u64::from(conflicts);
            pairs.foreseen_in_vain += in_vain;
            let mut kinds = [a.given.kind(), b.given.kind()];
            kinds.sort_unstable();
            let [all, conflicting, vain] = of_kinds.entry(kinds).or_default();
            (*all, *conflicting, *vain) = (*all + 1, *conflicting + u64::from(conflicts), *vain + in_vain);
        }
    }
    println!("reads, too: {pairs:?} {of_kinds:?}");
    assert!(5 * pairs.in_one_warehouse >= pairs.all && 8 * pairs.conflicting >= pairs.all, "{pairs:?}");
    // Of all kinds that touch each other's data, some do.
    assert!(of_kinds.values().filter(|[_, conflicting, _]| *conflicting > 0).count() >= 9, "{of_kinds:?}");
}

/// Whether a history of some 600 transactions keeps a level under chains, where workers are told of each other's writes late.
fn keeps(level: Level, supplier: &mut Supplier) -> bool {
    const WORKERS: u16 = 30;
    let setup = Setup {
        workers: WORKERS,
        rate: 100.0,
        load_ns: 6_000_000_000,
        message: onecopy_sim::whole::Drawn { ns: 2e9, variance: 0.2 },
        history: true,
        ..Setup::gargamel(0)
    };
    let protocol = whole_by_name("chains", usize::from(WORKERS), Csn(0)).expect("it is there");
    let outcome = run(&setup, supplier, protocol).expect("histories make sense");
    assert_eq!(outcome.faults, []);
    check(&outcome.history.expect("it was asked for"), level).is_valid()
}

#[test]
fn a_supplier_whose_reads_are_foreseen_is_serializable_and_another_has_long_forks() {
    let scale = || Scale::new(2, 60).expect("it is in range");
    let supplier = || Supplier::of_scale(0, scale(), Judge::Rows).noting_reads();
    assert!(keeps(Level::Serializable, &mut supplier().counting_reads()));
    assert!(keeps(Level::ParallelSnapshotIsolation, &mut supplier()));
    assert!(!keeps(Level::Serializable, &mut supplier()));
}

#[test]
fn no_update_of_a_supplier_is_lost_and_workers_agree_in_the_end() {
    for name in WHOLE {
        let setup = Setup { workers: 12, rate: 30.0, load_ns: 8_000_000_000, ..Setup::gargamel(2) };
        let mut source =
            Supplier::new(2, 2, Judge::Rows).expect("there is such a supplier").noting_registers();
        let protocol = whole_by_name(name, 12, Csn(0)).expect("it is there");
        let outcome = run(&setup, &mut source, protocol).expect("it keeps no history");
        assert_eq!(outcome.faults, [], "{name}");
        assert!(outcome.measured.committed.len() > 150, "{name}");
    }
}

/// The first so many that arrive.
fn arriving(mut supplier: Supplier, count: usize) -> Vec<Arriving> {
    (0..count).map(|_| supplier.next()).collect()
}

#[test]
fn by_table_2_a_delivery_conflicts_with_whoever_pays_in_its_warehouse_and_by_the_rows_hardly() {
    let supplier = |judge| Supplier::new(1, 1, judge).expect("there is such a supplier");
    let conflicts = |judge| {
        let all = arriving(supplier(judge), 400);
        let of = |kind: Kind| all.iter().filter(move |one| one.kind == kind as u64);
        let pairs =
            of(Kind::Delivery).flat_map(|delivery| of(Kind::Payment).map(move |payment| (delivery, payment)));
        let (mut count, mut all) = (0, 0);
        for (delivery, payment) in pairs {
            all += 1;
            count += usize::from(may_conflict(&delivery.written, &payment.written));
        }
        (count, all)
    };
    let (by_table, all) = conflicts(Judge::TableTwo);
    assert!(all > 100 && by_table == all, "{by_table} of {all}");
    let (by_rows, all) = conflicts(Judge::Rows);
    assert!(20 * by_rows < all, "{by_rows} of {all}");
}

#[test]
fn foreseen_in_vain_by_table_2_are_payments_with_a_name_only_and_by_the_rows_deliveries_as_well() {
    let [by_table, by_rows] = [Judge::TableTwo, Judge::Rows].map(shares_of_pairs);
    assert_eq!(by_table.in_vain_otherwise, 0);
    assert_eq!(by_table.in_vain_by_name, by_rows.in_vain_by_name);
    assert!(by_rows.in_vain_otherwise > 4 * by_rows.in_vain_by_name, "{by_rows:?}");
}

#[test]
fn who_knows_customers_foresees_what_is_written_and_nothing_else() {
    let supplier = Supplier::new(1, 2, Judge::TableTwo).expect("there is such a supplier");
    for one in arriving(supplier.knowing_customers(), 200) {
        assert_eq!(one.foreseen, AccessSet::from(one.written));
    }
}

#[test]
fn each_variation_of_whole_transactions_can_be_run() {
    for system in WHOLE {
        let mut experiment = WholeExperiment::new(system, 20, 20).expect("it is there");
        let plain = experiment.run(1).expect("it runs");
        let alternatives = [Variation::DrawnAnew];
        let all = Variation::ALL.into_iter().filter(|one| !alternatives.contains(one));
        all.for_each(|variation| variation.apply_to_whole(&mut experiment));
        assert_ne!(experiment.run(1).expect("it runs"), plain, "{system}");
    }
}

#[test]
fn ratios_of_tashkent_plus_are_by_its_own_durations_unless_asked_otherwise() {
    let plain = WholeExperiment::new("tashkent_plus", 1, 100).expect("it is there");
    let mut undiscounted = plain.clone();
    Variation::UndiscountedRatios.apply_to_whole(&mut undiscounted);
    let (plain, undiscounted) = (plain.run(1).expect("it runs"), undiscounted.run(1).expect("it runs"));
    assert!((undiscounted.penalty / plain.penalty - 0.9).abs() < 1e-6, "{plain:?} {undiscounted:?}");
    assert!((undiscounted.speed_up * 0.9 / plain.speed_up - 1.0).abs() < 1e-6);
    assert_eq!(undiscounted.total_s, plain.total_s);
}
