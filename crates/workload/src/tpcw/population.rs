//! How large the bookstore is, and its rows.
//!
//! Every row is drawn from a stream of its own, so any part of a table can be made at any time, in any order and by several
//! workers, and the same seed gives the same bookstore.

use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use super::rules::rules;
use crate::random::{self, Random, choose, push_text, uniform};
use crate::site::SiteRows;
use crate::value::{Date, Decimal, Timestamp};

/// How large a bookstore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    items: i64,
    browsers: i64,
}

/// A scale that the schema cannot hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "a bookstore of {items} items for {browsers} emulated browsers is out of range: \
     choose 20 to 10,000,000 items and 1 to 100,000 browsers"
)]
pub struct ScaleError {
    items: i64,
    browsers: i64,
}

impl Scale {
    /// A bookstore of so many items (the benchmark knows 1,000, 10,000 and so on) whose customers are those of so many
    /// emulated browsers.
    pub fn new(items: i64, browsers: i64) -> Result<Self, ScaleError> {
        let in_range = (20..=10_000_000).contains(&items) && (1..=100_000).contains(&browsers);
        in_range.then_some(Scale { items, browsers }).ok_or(ScaleError { items, browsers })
    }

    /// Books.
    pub fn items(&self) -> i64 {
        self.items
    }

    /// Emulated browsers for which the customers are counted.
    pub fn browsers(&self) -> i64 {
        self.browsers
    }

    /// Authors.
    pub fn authors(&self) -> i64 {
        self.items / 4
    }

    /// Customers at the start.
    pub fn customers(&self) -> i64 {
        2_880 * self.browsers
    }

    /// Addresses at the start.
    pub fn addresses(&self) -> i64 {
        2 * self.customers()
    }

    /// Orders at the start.
    pub fn orders(&self) -> i64 {
        self.customers() * 9 / 10
    }

    /// Numbers that author search strings spell go from 0 to this.
    pub fn author_search_max(&self) -> i64 {
        self.items / rules().client.search_author_divisor
    }

    /// Numbers that title search strings spell go from 0 to this.
    pub fn title_search_max(&self) -> i64 {
        self.items / rules().client.search_title_divisor
    }
}

/// The tables, in the order of the catalogue: a table after those that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// country
    Country,
    /// author
    Author,
    /// address
    Address,
    /// customer
    Customer,
    /// item
    Item,
    /// orders
    Orders,
    /// order_line
    OrderLine,
    /// cc_xacts
    CreditCard,
    /// shopping_cart
    Cart,
    /// shopping_cart_line
    CartLine,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 10] = [
        Table::Country,
        Table::Author,
        Table::Address,
        Table::Customer,
        Table::Item,
        Table::Orders,
        Table::OrderLine,
        Table::CreditCard,
        Table::Cart,
        Table::CartLine,
    ];

    /// The table's name in the database.
    pub fn name(self) -> &'static str {
        &super::catalogue().tables[self as usize].name
    }
}

/// The rows of a bookstore.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    scale: Scale,
    seed: u64,
    loaded_at: Timestamp,
}

/// A book, as far as others than the loader need to know it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) author: i64,
    pub(super) subject: usize,
    pub(super) published: Date,
    pub(super) related: [i64; 5],
    pub(super) srp_cents: i64,
    pub(super) cost_cents: i64,
    pub(super) stock: i64,
}

/// An order, as far as others than the loader need to know it.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) customer: i64,
    pub(super) date: Timestamp,
    sub_total_cents: i64,
    ship_date: Timestamp,
    bill_address: i64,
    ship_address: i64,
    ship_type: &'static str,
    status: &'static str,
    pub(super) lines: i64,
}

impl Order {
    /// Loaded orders pay shipping by the line.
    fn total_cents(&self) -> i64 {
        let client = &rules().client;
        self.sub_total_cents + client.tax_cents(self.sub_total_cents) + client.shipping_cents(self.lines)
    }
}

impl SiteRows for Population {
    fn keys(&self, table: usize) -> RangeInclusive<i64> {
        Population::keys(self, Table::ALL[table])
    }

    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        Population::copy(self, Table::ALL[table], keys, out)
    }
}

/// The streams of random numbers: one for each row of each of these.
#[derive(Clone, Copy)]
enum Draw {
    Country,
    Author,
    AuthorText,
    Address,
    Customer,
    Item,
    ItemText,
    Order,
    OrderLine,
    CreditCard,
}

/// Name and currency.
static COUNTRIES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    include_str!("../../data/countries.csv").lines().skip(1).filter_map(|line| line.split_once(',')).collect()
});

impl Population {
    /// The bookstore of this scale and seed, with dates that lead up to `loaded_at`.
    pub fn new(scale: Scale, seed: u64, loaded_at: Timestamp) -> Self {
        Population { scale, seed, loaded_at }
    }

    /// Its scale.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// When the bookstore opens: dates of orders lead up to it.
    pub fn loaded_at(&self) -> Timestamp {
        self.loaded_at
    }

    /// The keys by which a table's rows are made: each stands for one row, but for [`Table::OrderLine`], where it is the
    /// order, with all its lines.
    pub fn keys(&self, table: Table) -> RangeInclusive<i64> {
        let last = match table {
            Table::Country => COUNTRIES.len() as i64,
            Table::Author => self.scale.authors(),
            Table::Address => self.scale.addresses(),
            Table::Customer => self.scale.customers(),
            Table::Item => self.scale.items(),
            Table::Orders | Table::OrderLine | Table::CreditCard => self.scale.orders(),
            Table::Cart | Table::CartLine => 0,
        };
        1..=last
    }

    /// Appends the rows of these keys, in the text format of COPY and with the columns in the order of the catalogue.
    /// Returns the number of rows.
    pub fn copy(&self, table: Table, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        let mut rows = 0;
        for key in keys {
            rows += match table {
                Table::Country => self.copy_country(key, out),
                Table::Author => self.copy_author(key, out),
                Table::Address => self.copy_address(key, out),
                Table::Customer => self.copy_customer(key, out),
                Table::Item => self.copy_item(key, out),
                Table::Orders => self.copy_order(key, out),
                Table::OrderLine => self.copy_order_lines(key, out),
                Table::CreditCard => self.copy_credit_card(key, out),
                Table::Cart | Table::CartLine => 0,
            };
        }
        rows
    }

    /// The copies of an item on the shelf when the bookstore opened.
    pub fn initial_stock(&self, item: i64) -> i64 {
        self.item(item).stock
    }

    /// The name of a country; `number` may be any, and wraps.
    pub fn country_name(number: i64) -> &'static str {
        COUNTRIES[number.rem_euclid(COUNTRIES.len() as i64) as usize].0
    }

    fn stream(&self, draw: Draw, key: i64) -> Random {
        random::stream(self.seed, ((draw as u64) << 48) | key as u64)
    }

    pub(super) fn item(&self, id: i64) -> Item {
        let random = &mut self.stream(Draw::Item, id);
        let authors = self.scale.authors();
        let author = if id <= authors { id } else { uniform(random, 1, authors) };
        let srp_cents = uniform(random, 100, 99_999);
        let discount = uniform(random, 0, 50);
        Item {
            author,
            subject: uniform(random, 0, rules().domains.subjects.len() as i64 - 1) as usize,
            published: date_between(random, 1930, 2000),
            related: self.related(random, id),
            srp_cents,
            cost_cents: srp_cents * (100 - discount) / 100,
            stock: uniform(random, 10, 30),
        }
    }

    /// Five different other items.
    fn related(&self, random: &mut Random, id: i64) -> [i64; 5] {
        let mut related = [0; 5];
        for place in 0..related.len() {
            related[place] = loop {
                let drawn = uniform(random, 1, self.scale.items);
                if drawn != id && !related[..place].contains(&drawn) {
                    break drawn;
                }
            };
        }
        related
    }

    pub(super) fn order(&self, id: i64) -> Order {
        let random = &mut self.stream(Draw::Order, id);
        let domains = &rules().domains;
        let date = self.loaded_at.plus_days(-uniform(random, 1, 60));
        // Within the day: orders of one day differ in their time.
        let date = Timestamp { micros: date.micros - uniform(random, 0, 86_399) * 1_000_000 };
        Order {
            customer: uniform(random, 1, self.scale.customers()),
            date,
            sub_total_cents: uniform(random, 1_000, 999_999),
            ship_date: date.plus_days(uniform(random, 0, 7)),
            bill_address: uniform(random, 1, self.scale.addresses()),
            ship_address: uniform(random, 1, self.scale.addresses()),
            ship_type: choose(random, &domains.ship_types).as_str(),
            status: choose(random, &domains.order_status).as_str(),
            lines: uniform(random, 1, 5),
        }
    }

    fn copy_country(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Country, id);
        let (name, currency) = COUNTRIES[id as usize - 1];
        let exchange = Decimal { units: uniform(random, 10_000, 200_000_000), scale: 6 };
        Line(out).int(id).put(name).put(exchange).put(currency).end()
    }

    fn copy_author(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Author, id);
        let texts = &mut self.stream(Draw::AuthorText, id);
        let mut last_name = spell_padded(id % (self.scale.author_search_max() + 1));
        push_text(texts, 0, 6, &mut last_name);
        let born = date_between(random, 1800, 1990);
        Line(out)
            .int(id)
            .text(texts, 3, 20)
            .put(last_name)
            .text(texts, 1, 20)
            .put(born)
            .text(texts, 125, 500)
            .end()
    }

    fn copy_address(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Address, id);
        let country = uniform(random, 1, COUNTRIES.len() as i64);
        let line = Line(out).int(id).text(random, 15, 40).text(random, 15, 40).text(random, 4, 30);
        line.text(random, 2, 20).text(random, 5, 10).int(country).end()
    }

    fn copy_customer(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Customer, id);
        let name = spell(id);
        let password = name.to_lowercase();
        let today = self.loaded_at.date();
        let since = today.plus_days(-uniform(random, 1, 730));
        let last_login = since.plus_days(uniform(random, 0, 60)).min(today);
        let address = uniform(random, 1, self.scale.addresses());
        let phone_length = uniform(random, 9, 16) as usize;
        let discount = Decimal::cents(uniform(random, 0, rules().client.discount_max_percent));
        let paid = Decimal::cents(uniform(random, 0, 99_999));
        let born = date_between(random, 1880, 2000);
        Line(out)
            .int(id)
            .put(&name)
            .put(&password)
            .text(random, 8, 15)
            .text(random, 8, 15)
            .int(address)
            .put(random::digits(random, phone_length))
            .put(format_args!("{password}@example.com"))
            .put(since)
            .put(last_login)
            .put(self.loaded_at)
            .put(Timestamp { micros: self.loaded_at.micros + 7_200_000_000 })
            .put(discount)
            .put(Decimal::cents(0))
            .put(paid)
            .put(born)
            .text(random, 100, 500)
            .end()
    }

    fn copy_item(&self, id: i64, out: &mut String) -> u64 {
        let item = self.item(id);
        let random = &mut self.stream(Draw::ItemText, id);
        let mut title = spell_padded(id % (self.scale.title_search_max() + 1));
        if random::chance(random, 0.9) {
            title.push(' ');
            push_text(random, 1, 45, &mut title);
        }
        let domains = &rules().domains;
        let mut line = Line(out)
            .int(id)
            .put(title)
            .int(item.author)
            .put(item.published)
            .text(random, 14, 60)
            .put(&domains.subjects[item.subject])
            .text(random, 100, 500);
        for related in item.related {
            line = line.int(related);
        }
        let available = item.published.plus_days(uniform(random, 1, 30));
        let isbn = random::digits(random, 13);
        let pages = uniform(random, 20, 9_999);
        let mut side = || Decimal::cents(uniform(random, 1, 9_999));
        let dimensions = format!("{}x{}x{}", side(), side(), side());
        line.put(thumbnail(id, 0))
            .put(image(id, 0))
            .put(Decimal::cents(item.srp_cents))
            .put(Decimal::cents(item.cost_cents))
            .put(available)
            .int(item.stock)
            .put(isbn)
            .int(pages)
            .put(choose(random, &domains.backings))
            .put(dimensions)
            .end()
    }

    fn copy_order(&self, id: i64, out: &mut String) -> u64 {
        let order = self.order(id);
        Line(out)
            .int(id)
            .int(order.customer)
            .put(order.date)
            .put(Decimal::cents(order.sub_total_cents))
            .put(Decimal::cents(rules().client.tax_cents(order.sub_total_cents)))
            .put(Decimal::cents(order.total_cents()))
            .put(order.ship_type)
            .put(order.ship_date)
            .int(order.bill_address)
            .int(order.ship_address)
            .put(order.status)
            .end()
    }

    fn copy_order_lines(&self, order: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::OrderLine, order);
        let lines = self.order(order).lines;
        for line in 1..=lines {
            let item = uniform(random, 1, self.scale.items);
            let copies = uniform(random, 1, 300);
            let discount = Decimal::cents(uniform(random, 0, 30));
            Line(out).int(line).int(order).int(item).int(copies).put(discount).text(random, 20, 100).end();
        }
        lines as u64
    }

    fn copy_credit_card(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::CreditCard, id);
        let order = self.order(id);
        let expires = self.loaded_at.date().plus_days(uniform(random, 10, 730));
        let country = uniform(random, 1, COUNTRIES.len() as i64);
        Line(out)
            .int(id)
            .put(choose(random, &rules().domains.card_types))
            .put(random::digits(random, 16))
            .text(random, 14, 30)
            .put(expires)
            .text(random, 15, 15)
            .put(Decimal::cents(order.total_cents()))
            .put(order.ship_date)
            .int(country)
            .end()
    }
}

/// The number in syllables, one a decimal digit: user names are customers' ids spelled so.
pub fn spell(number: i64) -> String {
    let syllables = &rules().domains.syllables;
    number.to_string().bytes().map(|digit| syllables[usize::from(digit - b'0')].as_str()).collect()
}

/// The number in syllables, padded to seven digits: what search strings, titles and authors' names begin with.
pub fn spell_padded(number: i64) -> String {
    let zero = &rules().domains.syllables[0];
    let spelled = spell(number);
    zero.repeat(7_usize.saturating_sub(spelled.len() / zero.len())) + &spelled
}

/// Where an item's small picture is; `version` tells pictures of one item apart.
pub(super) fn thumbnail(item: i64, version: i64) -> String {
    format!("img{}/thumb_{item}_{version}.gif", item % 100)
}

/// Where an item's large picture is.
pub(super) fn image(item: i64, version: i64) -> String {
    format!("img{}/image_{item}_{version}.gif", item % 100)
}

/// A day of the years from `first` to `last`.
fn date_between(random: &mut Random, first: i64, last: i64) -> Date {
    let (from, to) = (Date::from_calendar(first, 1, 1), Date::from_calendar(last, 12, 31));
    Date { days: uniform(random, from.days, to.days) }
}

/// One line of COPY's text format. No value that is put needs an escape: all are numbers, dates and plain words.
struct Line<'a>(&'a mut String);

impl Line<'_> {
    fn put(self, value: impl Display) -> Self {
        let _ = write!(self.0, "{value}\t");
        self
    }

    fn int(self, value: i64) -> Self {
        self.put(value)
    }

    fn text(self, random: &mut Random, min: usize, max: usize) -> Self {
        push_text(random, min, max, self.0);
        self.0.push('\t');
        self
    }

    /// Ends the line; returns 1, the number of rows in it.
    fn end(self) -> u64 {
        self.0.pop();
        self.0.push('\n');
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population() -> Population {
        let loaded_at = Timestamp::from(Date::from_calendar(2026, 1, 1));
        Population::new(Scale::new(1_000, 1).unwrap(), 7, loaded_at)
    }

    fn table(table: Table) -> Vec<Vec<String>> {
        let mut text = String::new();
        let population = population();
        let rows = population.copy(table, population.keys(table), &mut text);
        let lines: Vec<Vec<String>> =
            text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
        assert_eq!(lines.len() as u64, rows);
        lines
    }

    #[test]
    fn row_counts_follow_the_scale() {
        let counts: Vec<usize> = Table::ALL[..6].iter().map(|each| table(*each).len()).collect();
        assert_eq!(counts, [92, 250, 5_760, 2_880, 1_000, 2_592]);
        let lines = table(Table::OrderLine).len() as f64 / 2_592.0;
        assert!((lines - 3.0).abs() < 0.1, "{lines} lines an order");
        assert_eq!(table(Table::CreditCard).len(), 2_592);
    }

    #[test]
    fn rows_fit_their_columns() {
        for each in Table::ALL {
            let columns = &super::super::catalogue().tables[each as usize].columns;
            for row in table(each) {
                assert_eq!(row.len(), columns.len(), "{}", each.name());
                for (value, column) in row.iter().zip(columns) {
                    let width = column.sql_type.split(['(', ')']).nth(1).and_then(|width| width.parse().ok());
                    if let (Some(width), true) = (width, column.sql_type.contains("char")) {
                        let fits: usize = width;
                        assert!(value.len() <= fits, "{}.{}: {value}", each.name(), column.name);
                    }
                    assert!(!value.contains('\\') && (!value.is_empty() || column.name == "a_mname"));
                }
            }
        }
    }

    #[test]
    fn any_part_is_the_same_whenever_it_is_made() {
        let population = population();
        let (mut whole, mut parts) = (String::new(), String::new());
        population.copy(Table::OrderLine, 1..=100, &mut whole);
        population.copy(Table::OrderLine, 1..=40, &mut parts);
        population.copy(Table::OrderLine, 41..=100, &mut parts);
        assert_eq!(whole, parts);
        let other = Population { seed: 8, ..population };
        parts.clear();
        other.copy(Table::OrderLine, 1..=100, &mut parts);
        assert_ne!(whole, parts);
    }

    #[test]
    fn values_keep_the_rules() {
        for (place, row) in table(Table::Item).iter().enumerate() {
            let id = place as i64 + 1;
            let cents = |column: usize| Decimal::parse(&row[column]).unwrap().units;
            let (srp, cost) = (cents(14), cents(15));
            assert!((100..=99_999).contains(&srp) && cost <= srp && cost >= srp / 2);
            assert!((10..=30).contains(&row[17].parse::<i64>().unwrap()));
            let related: Vec<i64> = row[7..12].iter().map(|value| value.parse().unwrap()).collect();
            let mut distinct = related.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() == 5 && !related.contains(&id));
            assert!(id > 250 || row[2] == id.to_string());
            assert!(row[1].len() >= 14 && row[1].starts_with(&spell_padded(id % 201)));
        }
        for row in table(Table::Orders) {
            let cents = |column: usize| Decimal::parse(&row[column]).unwrap().units;
            let shipping = cents(5) - cents(3) - cents(4);
            assert!((400..=800).contains(&shipping), "{row:?}");
            assert!(row[2] <= row[7]);
        }
        let customers = table(Table::Customer);
        assert_eq!(customers[2_879][1..3], ["ALININBA", "alininba"]);
    }

    #[test]
    fn numbers_are_spelled_in_syllables() {
        assert_eq!(spell(10_203), "OGBAALBARI");
        assert_eq!(spell_padded(42), "BABABABABAREAL");
        assert!(Scale::new(10, 1).is_err() && Scale::new(1_000, 0).is_err());
        assert!(Scale::new(1, 1).unwrap_err().to_string().contains("choose 20 to"));
    }
}
