//! How large the supplier is, and its rows.
//!
//! Every row is drawn from a stream of its own, so any part of a table can be made at any time, in any order and by several
//! workers, and the same seed gives the same supplier.

use std::ops::RangeInclusive;

use super::constants::Constants;
use super::rules::rules;
use crate::random::{self, Random, chance, digits, text, uniform};
use crate::site::{Line, SiteRows};
use crate::value::{Decimal, Timestamp};

/// Districts of a warehouse: a stock has a column for each.
pub const DISTRICTS: i64 = 10;

/// How large a supplier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    warehouses: i64,
    customers: i64,
}

/// A scale that the rules do not allow.
#[derive(Debug, thiserror::Error)]
#[error(
    "a supplier of {warehouses} warehouses with {customers} customers in each district is out of range: \
     choose 1 to 100,000 warehouses and 10 to 3,000 customers"
)]
pub struct ScaleError {
    warehouses: i64,
    customers: i64,
}

impl Scale {
    /// A supplier of so many warehouses, with so many customers in each district. The benchmark has 3,000; with fewer, orders, items
    /// and stocks are fewer in proportion.
    ///
    /// # Errors
    /// If there would be no warehouse, fewer than 10 customers or more than the benchmark's, or too many warehouses.
    pub fn new(warehouses: i64, customers: i64) -> Result<Self, ScaleError> {
        let full = rules().population.customers_per_district;
        let in_range = (1..=100_000).contains(&warehouses) && (10..=full).contains(&customers);
        in_range.then_some(Scale { warehouses, customers }).ok_or(ScaleError { warehouses, customers })
    }

    /// Warehouses.
    pub fn warehouses(self) -> i64 {
        self.warehouses
    }

    /// Customers of each district, each of whom has one order at the start.
    pub fn customers(self) -> i64 {
        self.customers
    }

    /// Whether a warehouse is as large as the benchmark wants it.
    pub fn is_full(self) -> bool {
        self.customers == rules().population.customers_per_district
    }

    /// Items, and stocks of each warehouse.
    pub fn items(self) -> i64 {
        self.part_of(rules().population.items)
    }

    /// Orders of each district that wait for their delivery at the start; they are the last ones.
    pub fn undelivered(self) -> i64 {
        self.part_of(rules().population.undelivered_orders)
    }

    /// Last names of which each district has a customer for sure.
    pub fn last_names(self) -> i64 {
        rules().random.last_names.min(self.customers)
    }

    /// All districts.
    fn districts(self) -> i64 {
        self.warehouses * DISTRICTS
    }

    /// In proportion to the customers, rounded up.
    fn part_of(self, full: i64) -> i64 {
        let all = rules().population.customers_per_district;
        (full * self.customers + all - 1) / all
    }
}

/// The tables, in the order of the catalogue: a table after those that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Table {
    Warehouse,
    District,
    Customer,
    History,
    Item,
    Stock,
    Orders,
    NewOrder,
    OrderLine,
}

impl Table {
    const ALL: [Table; 9] = [
        Table::Warehouse,
        Table::District,
        Table::Customer,
        Table::History,
        Table::Item,
        Table::Stock,
        Table::Orders,
        Table::NewOrder,
        Table::OrderLine,
    ];
}

/// The rows of a supplier.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    scale: Scale,
    seed: u64,
    loaded_at: Timestamp,
    constants: Constants,
}

/// The streams of random numbers: one for each row of each of these.
#[derive(Clone, Copy)]
enum Draw {
    Constants,
    Warehouse,
    District,
    Customer,
    LastName,
    History,
    Item,
    Stock,
    StockText,
    Order,
    OrderLine,
    /// One a district.
    Permutation,
}

/// An order at the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) customer: i64,
    pub(super) lines: i64,
    carrier: i64,
}

impl SiteRows for Population {
    /// Each key stands for one row, but in `order_line`, where it is the order with all its lines.
    fn keys(&self, table: usize) -> RangeInclusive<i64> {
        let scale = self.scale;
        let last = match Table::ALL[table] {
            Table::Warehouse => scale.warehouses,
            Table::District => scale.districts(),
            Table::Customer | Table::History | Table::Orders | Table::OrderLine => {
                scale.districts() * scale.customers
            }
            Table::Item => scale.items(),
            Table::Stock => scale.warehouses * scale.items(),
            Table::NewOrder => scale.districts() * scale.undelivered(),
        };
        1..=last
    }

    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        let mut rows = 0;
        for key in keys {
            rows += match Table::ALL[table] {
                Table::Warehouse => self.copy_warehouse(key, out),
                Table::District => self.copy_district(key, out),
                Table::Customer => self.copy_customer(key, out),
                Table::History => self.copy_history(key, out),
                Table::Item => self.copy_item(key, out),
                Table::Stock => self.copy_stock(key, out),
                Table::Orders => self.copy_order(key, out),
                Table::NewOrder => self.copy_new_order(key, out),
                Table::OrderLine => self.copy_order_lines(key, out),
            };
        }
        rows
    }
}

impl Population {
    /// The supplier of this scale and seed, whose orders were all entered at `loaded_at`.
    pub fn new(scale: Scale, seed: u64, loaded_at: Timestamp) -> Self {
        let constants = Constants::draw(&mut random::stream(seed, (Draw::Constants as u64) << 48));
        Population { scale, seed, loaded_at, constants }
    }

    /// Its scale.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// What terminals draw customers and items with.
    pub fn constants(&self) -> Constants {
        self.constants
    }

    /// The highest key of the history at the start.
    pub fn highest_history(&self) -> i64 {
        self.scale.districts() * self.scale.customers
    }

    /// Pieces of an item that a warehouse has at the start.
    pub fn initial_stock(&self, warehouse: i64, item: i64) -> i64 {
        let [least, most] = rules().population.stock_quantity;
        let key = (warehouse - 1) * self.scale.items() + item;
        uniform(&mut self.stream(Draw::Stock, key), least, most)
    }

    /// What an item costs, in cents.
    pub(super) fn price_cents(&self, item: i64) -> i64 {
        let [least, most] = rules().population.price_cents;
        uniform(&mut self.stream(Draw::Item, item), least, most)
    }

    /// The number of the last name of a customer.
    pub(super) fn last_name(&self, warehouse: i64, district: i64, customer: i64) -> i64 {
        if customer <= rules().random.last_names {
            return customer - 1;
        }
        let key = self.in_district(warehouse, district, customer);
        self.constants.loaded_last_name(&mut self.stream(Draw::LastName, key))
    }

    /// The first name of a customer, and whether the credit is bad.
    pub(super) fn customer(&self, warehouse: i64, district: i64, customer: i64) -> (String, bool) {
        let random = &mut self.stream(Draw::Customer, self.in_district(warehouse, district, customer));
        (text(random, 8, 16), chance(random, rules().population.bad_credit_probability))
    }

    /// An order of a district, `1 <= order <= customers`.
    pub(super) fn order(&self, warehouse: i64, district: i64, order: i64) -> Order {
        let random = &mut self.stream(Draw::Order, self.in_district(warehouse, district, order));
        let client = &rules().client;
        let ([fewest, most], [first, last]) = (client.order_lines, client.carrier);
        let district = (warehouse - 1) * DISTRICTS + district;
        let mut words = self.stream(Draw::Permutation, district);
        let keys = std::array::from_fn(|_| uniform(&mut words, 0, i64::from(u32::MAX)) as u64);
        Order {
            customer: permute(order - 1, self.scale.customers, keys) + 1,
            lines: uniform(random, fewest, most),
            carrier: uniform(random, first, last),
        }
    }

    /// What the lines of an order cost, in cents.
    pub(super) fn amounts_cents(&self, warehouse: i64, district: i64, order: i64) -> i64 {
        let lines = self.order(warehouse, district, order).lines;
        let random = &mut self.stream(Draw::OrderLine, self.in_district(warehouse, district, order));
        (0..lines).map(|_| self.draw_line(random, order).1).sum()
    }

    /// What the lines of an order are of.
    pub(super) fn items(&self, warehouse: i64, district: i64, order: i64) -> Vec<i64> {
        let lines = self.order(warehouse, district, order).lines;
        let random = &mut self.stream(Draw::OrderLine, self.in_district(warehouse, district, order));
        (0..lines).map(|_| self.draw_line(random, order).0).collect()
    }

    /// Whether an order waits for its delivery at the start.
    pub(super) fn is_undelivered(&self, order: i64) -> bool {
        order > self.scale.customers - self.scale.undelivered()
    }

    fn stream(&self, draw: Draw, key: i64) -> Random {
        random::stream(self.seed, ((draw as u64) << 48) | key as u64)
    }

    /// The key of what has this number in a district that has as many of it as customers.
    fn in_district(&self, warehouse: i64, district: i64, number: i64) -> i64 {
        ((warehouse - 1) * DISTRICTS + district - 1) * self.scale.customers + number
    }

    /// Warehouse, district and number of what has this key, where a district has so many.
    fn placed(key: i64, in_district: i64) -> (i64, i64, i64) {
        let (district, number) = ((key - 1) / in_district, (key - 1) % in_district + 1);
        (district / DISTRICTS + 1, district % DISTRICTS + 1, number)
    }

    /// Item and amount in cents.
    fn draw_line(&self, random: &mut Random, order: i64) -> (i64, i64) {
        let item = uniform(random, 1, self.scale.items());
        let [least, most] = rules().population.undelivered_amount_cents;
        let amount = uniform(random, least, most);
        (item, if self.is_undelivered(order) { amount } else { 0 })
    }

    fn copy_warehouse(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Warehouse, id);
        let population = &rules().population;
        let paid = DISTRICTS * self.scale.customers * population.paid_cents;
        let line = Line::new(out).put(id).put(text(random, 6, 10));
        let line = put_address(line, random);
        line.put(rate(random, population.tax_max_basis_points)).put(Decimal::cents(paid)).end()
    }

    fn copy_district(&self, key: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::District, key);
        let (warehouse, district) = ((key - 1) / DISTRICTS + 1, (key - 1) % DISTRICTS + 1);
        let population = &rules().population;
        let paid = self.scale.customers * population.paid_cents;
        let line = Line::new(out).put(district).put(warehouse).put(text(random, 6, 10));
        put_address(line, random)
            .put(rate(random, population.tax_max_basis_points))
            .put(Decimal::cents(paid))
            .put(self.scale.customers + 1)
            .end()
    }

    fn copy_customer(&self, key: i64, out: &mut String) -> u64 {
        let (warehouse, district, number) = Self::placed(key, self.scale.customers);
        let random = &mut self.stream(Draw::Customer, key);
        let population = &rules().population;
        // In the order of `customer`, which draws the same.
        let first_name = text(random, 8, 16);
        let credit = if chance(random, population.bad_credit_probability) { "BC" } else { "GC" };
        let line = Line::new(out).put(number).put(district).put(warehouse).put(first_name).put("OE");
        let line = line.put(last_name(self.last_name(warehouse, district, number)));
        put_address(line, random)
            .put(digits(random, 16))
            .put(self.loaded_at)
            .put(credit)
            .put(Decimal::cents(population.credit_limit_cents))
            .put(rate(random, population.discount_max_basis_points))
            .put(Decimal::cents(-population.paid_cents))
            .put(Decimal::cents(population.paid_cents))
            .put(1)
            .put(0)
            .put(text(random, 300, 500))
            .end()
    }

    fn copy_history(&self, key: i64, out: &mut String) -> u64 {
        let (warehouse, district, customer) = Self::placed(key, self.scale.customers);
        let random = &mut self.stream(Draw::History, key);
        Line::new(out)
            .put(key)
            .put(customer)
            .put(district)
            .put(warehouse)
            .put(district)
            .put(warehouse)
            .put(self.loaded_at)
            .put(Decimal::cents(rules().population.paid_cents))
            .put(text(random, 12, 24))
            .end()
    }

    fn copy_item(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Item, id);
        let population = &rules().population;
        // In the order of `price_cents`, which draws the same.
        let [least, most] = population.price_cents;
        let price = Decimal::cents(uniform(random, least, most));
        Line::new(out)
            .put(id)
            .put(uniform(random, 1, population.image_max))
            .put(text(random, 14, 24))
            .put(price)
            .put(data(random))
            .end()
    }

    fn copy_stock(&self, key: i64, out: &mut String) -> u64 {
        let items = self.scale.items();
        let (warehouse, item) = ((key - 1) / items + 1, (key - 1) % items + 1);
        let random = &mut self.stream(Draw::StockText, key);
        let mut line = Line::new(out).put(item).put(warehouse).put(self.initial_stock(warehouse, item));
        for _ in 0..DISTRICTS {
            line = line.put(text(random, 24, 24));
        }
        line.put(0).put(0).put(0).put(data(random)).end()
    }

    fn copy_order(&self, key: i64, out: &mut String) -> u64 {
        let (warehouse, district, id) = Self::placed(key, self.scale.customers);
        let order = self.order(warehouse, district, id);
        let line =
            Line::new(out).put(id).put(district).put(warehouse).put(order.customer).put(self.loaded_at);
        let line = if self.is_undelivered(id) { line.put(NULL) } else { line.put(order.carrier) };
        line.put(order.lines).put(1).end()
    }

    fn copy_new_order(&self, key: i64, out: &mut String) -> u64 {
        let undelivered = self.scale.undelivered();
        let (warehouse, district, number) = Self::placed(key, undelivered);
        let id = self.scale.customers - undelivered + number;
        Line::new(out).put(id).put(district).put(warehouse).end()
    }

    fn copy_order_lines(&self, key: i64, out: &mut String) -> u64 {
        let (warehouse, district, order) = Self::placed(key, self.scale.customers);
        let lines = self.order(warehouse, district, order).lines;
        let random = &mut self.stream(Draw::OrderLine, key);
        // What `amounts_cents` draws comes first.
        let drawn: Vec<(i64, i64)> = (0..lines).map(|_| self.draw_line(random, order)).collect();
        for (number, (item, amount_cents)) in (1..).zip(drawn) {
            let line =
                Line::new(out).put(order).put(district).put(warehouse).put(number).put(item).put(warehouse);
            let line = if self.is_undelivered(order) { line.put(NULL) } else { line.put(self.loaded_at) };
            line.put(5).put(Decimal::cents(amount_cents)).put(text(random, 24, 24)).end();
        }
        lines as u64
    }
}

/// NULL in the text format of COPY.
const NULL: &str = "\\N";

/// The last name of this number, of three digits: a syllable for each.
pub fn last_name(number: i64) -> String {
    let syllable = |place: i64| rules().random.syllables[(number / place).rem_euclid(10) as usize].as_str();
    [syllable(100), syllable(10), syllable(1)].concat()
}

/// Streets, city, state and zip code.
fn put_address<'a>(line: Line<'a>, random: &mut Random) -> Line<'a> {
    let line = line.put(text(random, 10, 20)).put(text(random, 10, 20)).put(text(random, 10, 20));
    line.put(text(random, 2, 2)).put(format_args!("{}11111", digits(random, 4)))
}

/// A rate of at most so many hundredths of a percent.
fn rate(random: &mut Random, max_basis_points: i64) -> Decimal {
    Decimal { units: uniform(random, 0, max_basis_points), scale: 4 }
}

/// What is said of an item or a stock, with the original brand somewhere in some.
fn data(random: &mut Random) -> String {
    const ORIGINAL: &str = "ORIGINAL";
    let mut data = text(random, 26, 50);
    if chance(random, rules().population.original_probability) {
        let at = uniform(random, 0, (data.len() - ORIGINAL.len()) as i64) as usize;
        data.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
    }
    data
}

/// The place of `number` in a random order of `0..count`, for `0 <= number < count`: a Feistel network over the next power of four, which
/// is walked through until it leads back into the range. So the order need not be kept, and each place is known by itself.
fn permute(number: i64, count: i64, keys: [u64; 4]) -> i64 {
    let mut half_bits = 1;
    while 1_i64 << (2 * half_bits) < count {
        half_bits += 1;
    }
    let mask = (1_u64 << half_bits) - 1;
    let mut place = number as u64;
    loop {
        let (mut left, mut right) = (place >> half_bits, place & mask);
        for key in keys {
            // The finaliser of SplitMix64.
            let mut mixed = (right ^ (key << 16)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (left, right) = (right, left ^ ((mixed ^ (mixed >> 31)) & mask));
        }
        place = (left << half_bits) | right;
        if (place as i64) < count {
            return place as i64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::tpcc::catalogue;
    use crate::value::Date;

    fn population(customers: i64) -> Population {
        let loaded_at = Timestamp::from(Date::from_calendar(2026, 1, 1));
        Population::new(Scale::new(2, customers).unwrap(), 7, loaded_at)
    }

    fn rows(population: &Population, table: Table) -> Vec<Vec<String>> {
        let mut text = String::new();
        let place = table as usize;
        let rows = population.copy(place, population.keys(place), &mut text);
        let lines: Vec<Vec<String>> =
            text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
        assert_eq!(lines.len() as u64, rows);
        lines
    }

    fn int(value: &str) -> i64 {
        value.parse().unwrap()
    }

    #[test]
    fn row_counts_follow_the_scale() {
        let counts = |customers| {
            let population = population(customers);
            let keys = |table: Table| *population.keys(table as usize).end();
            Table::ALL[..8].iter().map(|table| keys(*table)).collect::<Vec<i64>>()
        };
        assert_eq!(counts(3_000), [2, 20, 60_000, 60_000, 100_000, 200_000, 60_000, 18_000]);
        assert_eq!(counts(30), [2, 20, 600, 600, 1_000, 2_000, 600, 180]);
        let lines = rows(&population(300), Table::OrderLine).len() as f64 / 6_000.0;
        assert!((lines - 10.0).abs() < 0.1, "{lines} lines an order");
        assert!(Scale::new(0, 3_000).is_err() && Scale::new(1, 9).is_err());
        assert!(Scale::new(1, 3_001).unwrap_err().to_string().contains("choose 1 to"));
    }

    #[test]
    fn rows_fit_their_columns_and_keys_are_unique() {
        let population = population(30);
        for (place, table) in catalogue().tables.iter().enumerate() {
            let key: Vec<usize> = table
                .columns
                .iter()
                .enumerate()
                .filter_map(|(at, column)| table.primary_key.contains(&column.name).then_some(at))
                .collect();
            let mut seen = BTreeSet::new();
            for row in rows(&population, Table::ALL[place]) {
                assert_eq!(row.len(), table.columns.len(), "{}", table.name);
                for (value, column) in row.iter().zip(&table.columns) {
                    let width = column.sql_type.split(['(', ')']).nth(1).and_then(|width| width.parse().ok());
                    if let (Some(width), true) = (width, column.sql_type.contains("char")) {
                        let fits: usize = width;
                        assert!(value.len() <= fits, "{}.{}: {value}", table.name, column.name);
                    }
                    assert!(value == NULL || !value.contains('\\') && !value.is_empty());
                }
                assert!(seen.insert(key.iter().map(|at| row[*at].clone()).collect::<Vec<_>>()), "{row:?}");
            }
        }
    }

    #[test]
    fn every_customer_of_a_district_has_one_order_in_a_random_order() {
        for customers in [10, 30, 257, 3_000] {
            let population = population(customers);
            let of = |district| -> Vec<i64> {
                (1..=customers).map(|order| population.order(2, district, order).customer).collect()
            };
            let mut sorted = of(3);
            assert_ne!(sorted, of(4));
            let fixed = (1..).zip(&sorted).filter(|(order, customer)| order == *customer).count();
            assert!(fixed < 10, "{fixed} of {customers} at their own place");
            sorted.sort_unstable();
            assert_eq!(sorted, (1..=customers).collect::<Vec<i64>>());
        }
    }

    #[test]
    fn any_part_is_the_same_whenever_it_is_made() {
        let (population, place) = (population(30), Table::OrderLine as usize);
        let (mut whole, mut parts) = (String::new(), String::new());
        population.copy(place, 1..=100, &mut whole);
        population.copy(place, 1..=40, &mut parts);
        population.copy(place, 41..=100, &mut parts);
        assert_eq!(whole, parts);
    }

    /// What conditions and terminals rely upon; that the conditions hold on what is loaded, a database says.
    #[test]
    fn values_keep_the_rules() {
        let population = population(1_100);
        let undelivered = rows(&population, Table::NewOrder);
        assert_eq!(undelivered[0], ["771", "1", "1"]);
        assert_eq!(undelivered.last().unwrap(), &["1100", "10", "2"]);
        for order in rows(&population, Table::Orders) {
            assert_eq!(order[5] == NULL, int(&order[0]) > 770);
        }
        let mut totals: BTreeMap<[i64; 3], i64> = BTreeMap::new();
        for line in rows(&population, Table::OrderLine) {
            let cents = Decimal::parse(&line[8]).unwrap().units;
            assert_eq!((line[6] == NULL, cents > 0), (int(&line[0]) > 770, int(&line[0]) > 770));
            *totals.entry([int(&line[2]), int(&line[1]), int(&line[0])]).or_default() += cents;
        }
        for ([warehouse, district, order], total) in totals {
            assert_eq!(population.amounts_cents(warehouse, district, order), total);
        }
        let customers = rows(&population, Table::Customer);
        let bad = customers.iter().filter(|customer| customer[13] == "BC").count() as f64 / 22_000.0;
        assert!((bad - 0.1).abs() < 0.01, "{bad}");
        for customer in &customers {
            let (first_name, is_bad) =
                population.customer(int(&customer[2]), int(&customer[1]), int(&customer[0]));
            assert_eq!((first_name.as_str(), is_bad), (customer[3].as_str(), customer[13] == "BC"));
        }
        assert_eq!((customers[371][5].as_str(), last_name(371).as_str()), ("PRICALLYOUGHT", "PRICALLYOUGHT"));
        let items = rows(&population, Table::Item);
        let original =
            items.iter().filter(|item| item[4].contains("ORIGINAL")).count() as f64 / items.len() as f64;
        assert!((original - 0.1).abs() < 0.01, "{original}");
        for item in items.iter().take(100) {
            assert_eq!(Decimal::parse(&item[3]).unwrap().units, population.price_cents(int(&item[0])));
        }
        assert_eq!(rows(&population, Table::District)[11][..2], ["2", "2"]);
    }
}
