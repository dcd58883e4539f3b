//! A bookstore in memory, which answers a browser's statements where no database is at hand: in tests of the emulator
//! and in simulations that care for times and not for contents.

use std::collections::{BTreeMap, HashMap};

use super::population::{Item, Order, Population, Table, spell};
use super::rules::rules;
use super::statement::Statement;
use crate::catalogue::StatementId;
use crate::client::Rows;
use crate::value::{Decimal, Value};

/// A bookstore in memory.
///
/// It answers with what browsers read, in the columns where they read it; other columns are NULL. It knows no transactions:
/// what it is told it keeps at once.
#[derive(Clone, Debug)]
pub struct Shelf {
    population: Population,
    items: Vec<Item>,
    /// Items of each subject, newest first.
    subjects: Vec<Vec<i64>>,
    authors: HashMap<i64, Vec<i64>>,
    last_orders: HashMap<i64, i64>,
    customers: HashMap<i64, Customer>,
    carts: HashMap<i64, BTreeMap<i64, i64>>,
}

#[derive(Clone, Copy, Debug)]
struct Customer {
    discount_percent: i64,
    address: i64,
}

/// What a page of a list shows at most.
const PAGE: usize = 50;

impl Shelf {
    /// A freshly loaded bookstore.
    pub fn new(population: Population) -> Self {
        let items: Vec<Item> = population.keys(Table::Item).map(|id| population.item(id)).collect();
        let mut subjects = vec![Vec::new(); rules().domains.subjects.len()];
        let mut authors: HashMap<i64, Vec<i64>> = HashMap::new();
        for (id, item) in (1..).zip(&items) {
            subjects[item.subject].push(id);
            authors.entry(item.author).or_default().push(id);
        }
        for subject in &mut subjects {
            subject.sort_by_key(|id: &i64| std::cmp::Reverse(items[*id as usize - 1].published));
        }
        let mut last: HashMap<i64, (i64, Order)> = HashMap::new();
        for id in population.keys(Table::Orders) {
            let order = population.order(id);
            if last.get(&order.customer).is_none_or(|(_, newest)| newest.date <= order.date) {
                last.insert(order.customer, (id, order));
            }
        }
        let last_orders = last.into_iter().map(|(customer, (id, _))| (customer, id)).collect();
        Shelf {
            population,
            items,
            subjects,
            authors,
            last_orders,
            customers: HashMap::new(),
            carts: HashMap::new(),
        }
    }

    /// The answer to a statement of the catalogue with its parameters; empty if it is of another workload.
    pub fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        let Some(statement) = Statement::from_id(statement) else { return Rows::default() };
        let int = |place: usize| params.get(place).and_then(Value::as_int).unwrap_or(0);
        let text = |place: usize| params.get(place).and_then(Value::as_text).unwrap_or("");
        match statement {
            Statement::HomePromo
            | Statement::NewpPromo
            | Statement::BessPromo
            | Statement::SreqPromo
            | Statement::SresPromo
            | Statement::ShopPromo => column(self.item(int(0)).related),
            Statement::NewpList | Statement::BessList | Statement::SresSubject => self.subject(text(0)),
            Statement::SresTitle => self.by_title(text(0)),
            Statement::SresAuthor => self.by_author(text(0)),
            Statement::HomeGreetName => one(vec![Value::Null, Value::Null]),
            Statement::ProdDetail | Statement::AdmrItem | Statement::AdmcItem => self.detail(int(0)),
            Statement::ShopCreate => {
                self.carts.insert(int(0), BTreeMap::new());
                Rows::changed(1)
            }
            Statement::ShopFind => column(self.cart(int(0)).get(&int(1)).copied()),
            Statement::ShopBump => self.change_line(int(0), int(1), |quantity| quantity + 1),
            Statement::ShopAdd | Statement::ShopAddSuggested => {
                self.cart(int(0)).insert(int(1), 1);
                Rows::changed(1)
            }
            Statement::ShopSetQuantity => self.change_line(int(1), int(2), |_| int(0)),
            Statement::ShopRemove => Rows::changed(u64::from(self.cart(int(0)).remove(&int(1)).is_some())),
            Statement::ShopCount => column([self.cart(int(0)).len() as i64]),
            Statement::ShopSuggest => column([self.item(int(0)).related[0]]),
            Statement::ShopTouch => Rows::changed(1),
            Statement::ShopShow | Statement::BuyrCart | Statement::BuycCart => self.show(int(0)),
            Statement::CregUserName => one(vec![spell(int(0)).into()]),
            Statement::BuyrLookup => one(vec![unspell(text(0)).unwrap_or(0).into()]),
            Statement::BuyrCountry | Statement::BuycCountry => self.country(text(0)),
            Statement::BuyrFindAddress | Statement::BuycFindAddress => Rows::default(),
            Statement::BuyrCustomer => {
                let discount_percent = params.get(12).and_then(Value::as_cents).unwrap_or(0);
                self.customers.insert(int(0), Customer { discount_percent, address: int(5) });
                Rows::changed(1)
            }
            Statement::BuycCustomer => {
                let Customer { discount_percent, address } = self.customer(int(0));
                one(vec![Decimal::cents(discount_percent).into(), address.into()])
            }
            Statement::BuycOrder => {
                self.last_orders.insert(int(1), int(0));
                Rows::changed(1)
            }
            Statement::BuycStock => column([self.item(int(0)).stock]),
            Statement::BuycSetStock => {
                let stock = int(1);
                self.change_item(int(0), |item| item.stock = stock)
            }
            Statement::BuycShipCountry => column([1]),
            Statement::BuycClear => {
                let lines = std::mem::take(self.cart(int(0)));
                Rows::changed(lines.len() as u64)
            }
            Statement::BuyrRefresh
            | Statement::BuyrAddress
            | Statement::BuycAddress
            | Statement::BuycLine
            | Statement::BuycCard => Rows::changed(1),
            Statement::OrddPassword => one(vec![text(0).to_lowercase().into()]),
            Statement::OrddLast => {
                column(unspell(text(0)).and_then(|customer| self.last_orders.get(&customer).copied()))
            }
            Statement::OrddOrder => one(vec![int(0).into()]),
            Statement::OrddLines => column([1, 2, 3]),
            Statement::AdmcUpdate => {
                let cost_cents = params.get(1).and_then(Value::as_cents).unwrap_or(0);
                self.change_item(int(0), |item| item.cost_cents = cost_cents)
            }
            Statement::AdmcRelated => Rows::default(),
            Statement::AdmcSetRelated => {
                let related = [1, 2, 3, 4, 5].map(int);
                self.change_item(int(0), |item| item.related = related)
            }
        }
    }

    fn item(&self, id: i64) -> &Item {
        // Ids from outside wrap instead of failing.
        &self.items[(id - 1).rem_euclid(self.items.len() as i64) as usize]
    }

    fn change_item(&mut self, id: i64, change: impl FnOnce(&mut Item)) -> Rows {
        let place = (id - 1).rem_euclid(self.items.len() as i64) as usize;
        change(&mut self.items[place]);
        Rows::changed(1)
    }

    fn cart(&mut self, id: i64) -> &mut BTreeMap<i64, i64> {
        self.carts.entry(id).or_default()
    }

    fn change_line(&mut self, cart: i64, item: i64, change: impl FnOnce(i64) -> i64) -> Rows {
        match self.cart(cart).get_mut(&item) {
            Some(quantity) => {
                *quantity = change(*quantity);
                Rows::changed(1)
            }
            None => Rows::changed(0),
        }
    }

    fn show(&mut self, cart: i64) -> Rows {
        let lines = self.cart(cart).clone();
        let row = |(item, quantity): (i64, i64)| {
            let cost = Decimal::cents(self.item(item).cost_cents);
            vec![item.into(), quantity.into(), Value::Null, cost.into(), Value::Null, Value::Null]
        };
        Rows::returned(lines.into_iter().map(row).collect())
    }

    fn subject(&self, name: &str) -> Rows {
        let place = rules().domains.subjects.iter().position(|subject| subject == name).unwrap_or(0);
        column(self.subjects[place].iter().copied().take(PAGE))
    }

    /// The row of `i.*`, of which browsers read the list price.
    fn detail(&self, id: i64) -> Rows {
        let columns = super::catalogue().tables[Table::Item as usize].columns.iter();
        let srp_cents = self.item(id).srp_cents;
        let value = |name: &str| match name {
            "i_id" => Value::Int(id),
            "i_srp" => Value::Decimal(Decimal::cents(srp_cents)),
            _ => Value::Null,
        };
        one(columns.map(|column| value(&column.name)).collect())
    }

    fn by_title(&self, pattern: &str) -> Rows {
        let cycle = self.population.scale().title_search_max() + 1;
        let Some(number) = unspell(pattern.trim_end_matches('%')) else { return Rows::default() };
        let matches = (number..=self.population.scale().items()).step_by(cycle as usize);
        column(matches.filter(|id| *id > 0).take(PAGE))
    }

    fn by_author(&self, pattern: &str) -> Rows {
        let cycle = self.population.scale().author_search_max() + 1;
        let Some(number) = unspell(pattern.trim_end_matches('%')) else { return Rows::default() };
        let authors = (number..=self.population.scale().authors()).step_by(cycle as usize);
        let items = authors.filter_map(|author| self.authors.get(&author)).flatten();
        column(items.copied().take(PAGE))
    }

    fn country(&self, name: &str) -> Rows {
        let mut countries = self.population.keys(Table::Country);
        column(countries.find(|id| Population::country_name(id - 1) == name))
    }

    fn customer(&self, id: i64) -> Customer {
        let loaded = Customer {
            discount_percent: id % (rules().client.discount_max_percent + 1),
            address: 1 + id % self.population.scale().addresses(),
        };
        self.customers.get(&id).copied().unwrap_or(loaded)
    }
}

fn one(row: Vec<Value>) -> Rows {
    Rows::returned(vec![row])
}

fn column(ints: impl IntoIterator<Item = i64>) -> Rows {
    Rows::returned(ints.into_iter().map(|int| vec![Value::Int(int)]).collect())
}

/// The number that these syllables spell.
fn unspell(text: &str) -> Option<i64> {
    let syllables = &rules().domains.syllables;
    let digit = |pair: &[u8]| syllables.iter().position(|syllable| syllable.as_bytes() == pair);
    let mut number = 0_i64;
    for pair in text.as_bytes().chunks(2) {
        number = number.checked_mul(10)?.checked_add(digit(pair)? as i64)?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcw::{Scale, spell_padded};
    use crate::value::Date;

    fn shelf() -> Shelf {
        let opened = Date::from_calendar(2026, 1, 1).into();
        Shelf::new(Population::new(Scale::new(1_000, 1).unwrap(), 1, opened))
    }

    #[test]
    fn searches_find_about_as_many_as_intended() {
        let mut shelf = shelf();
        let mut found = [0, 0];
        for number in 0..=100 {
            let pattern = format!("{}%", spell_padded(number));
            let patterns = [pattern.as_str().into()];
            found[0] += shelf.answer(Statement::SresTitle.into(), &patterns).rows.len();
            found[1] += shelf.answer(Statement::SresAuthor.into(), &patterns).rows.len();
        }
        // 1,000 items over 201 titles and 101 authors' names.
        assert!((480..=520).contains(&found[0]), "{}", found[0]);
        assert_eq!(found[1], 1_000);
    }

    #[test]
    fn names_are_spelled_and_read_back() {
        for number in [0, 7, 2_880, 9_999_999] {
            assert_eq!(unspell(&spell(number)), Some(number));
            assert_eq!(unspell(&spell_padded(number)), Some(number));
        }
        assert_eq!(unspell("XX"), None);
    }
}
