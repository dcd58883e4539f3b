//! A supplier in memory, which answers a terminal's statements where no database is at hand: in tests and in simulations that care
//! for times and not for contents.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::population::{Population, last_name};
use super::statement::Statement;
use crate::catalogue::StatementId;
use crate::client::Rows;
use crate::value::{Decimal, Value};

/// A supplier in memory.
///
/// It answers with what terminals read, in the columns where they read it; other columns are NULL. It knows no transactions: what
/// it is told it keeps at once, so an order that is taken back leaves one without all its lines. A district is made when somebody
/// asks for it.
#[derive(Clone, Debug)]
pub struct Memory {
    population: Population,
    districts: HashMap<[i64; 2], District>,
    /// Pieces, of stocks that were sold from.
    stocks: HashMap<[i64; 2], i64>,
}

#[derive(Clone, Debug)]
struct District {
    /// Customers by last name, in the order of their first names.
    by_name: HashMap<String, Vec<i64>>,
    /// By customer, from 1 on.
    last_orders: Vec<i64>,
    next_order: i64,
    oldest_undelivered: i64,
    /// Those orders that terminals have entered.
    entered: HashMap<i64, Entered>,
}

#[derive(Clone, Debug)]
struct Entered {
    customer: i64,
    cents: i64,
    items: Vec<i64>,
}

impl District {
    fn new(population: &Population, warehouse: i64, district: i64) -> Self {
        let scale = population.scale();
        let mut named: Vec<(i64, String, i64)> = (1..=scale.customers())
            .map(|customer| {
                let (first_name, _) = population.customer(warehouse, district, customer);
                (population.last_name(warehouse, district, customer), first_name, customer)
            })
            .collect();
        named.sort();
        let mut by_name: HashMap<String, Vec<i64>> = HashMap::new();
        for (name, _, customer) in named {
            by_name.entry(last_name(name)).or_default().push(customer);
        }
        let mut last_orders = vec![0; scale.customers() as usize + 1];
        for order in 1..=scale.customers() {
            last_orders[population.order(warehouse, district, order).customer as usize] = order;
        }
        District {
            by_name,
            last_orders,
            next_order: scale.customers() + 1,
            oldest_undelivered: scale.customers() - scale.undelivered() + 1,
            entered: HashMap::new(),
        }
    }
}

impl Memory {
    /// A freshly loaded supplier.
    pub fn new(population: Population) -> Self {
        Memory { population, districts: HashMap::new(), stocks: HashMap::new() }
    }

    /// The answer to a statement of the catalogue with its parameters; empty if it is of another workload.
    pub fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        let Some(statement) = Statement::from_id(statement) else { return Rows::default() };
        let int = |place: usize| params.get(place).and_then(Value::as_int).unwrap_or(0);
        match statement {
            Statement::NewOrderWarehouse | Statement::NewOrderCustomer | Statement::OrderStatusCustomer => {
                one([(0, Value::Null)])
            }
            Statement::NewOrderDistrict => {
                let district = self.district(int(0), int(1));
                let order = district.next_order;
                district.next_order += 1;
                one([(1, order.into())])
            }
            Statement::NewOrderOrder => {
                let (order, customer) = (int(0), int(3));
                let district = self.district(int(2), int(1));
                district.entered.insert(order, Entered { customer, cents: 0, items: Vec::new() });
                if let Some(last) = district.last_orders.get_mut(customer as usize) {
                    *last = order;
                }
                Rows::changed(1)
            }
            Statement::NewOrderItem if (1..=self.population.scale().items()).contains(&int(0)) => {
                one([(0, Decimal::cents(self.population.price_cents(int(0))).into())])
            }
            Statement::NewOrderItem => Rows::default(),
            Statement::NewOrderStock => {
                let key = [int(0), int(1)];
                let initial = self.population.initial_stock(key[0], key[1]);
                one([(0, self.stocks.get(&key).copied().unwrap_or(initial).into())])
            }
            Statement::NewOrderSetStock => {
                self.stocks.insert([int(0), int(1)], int(2));
                Rows::changed(1)
            }
            Statement::NewOrderLine => {
                let cents = params.get(7).and_then(Value::as_cents).unwrap_or(0);
                if let Some(order) = self.district(int(2), int(1)).entered.get_mut(&int(0)) {
                    order.cents += cents;
                    order.items.push(int(4));
                }
                Rows::changed(1)
            }
            Statement::PaymentWarehouse | Statement::PaymentDistrict => one([(0, "somewhere".into())]),
            Statement::PaymentByName | Statement::OrderStatusByName => {
                let name = params.get(2).and_then(Value::as_text).unwrap_or_default();
                let found = self.customers_named(int(0), int(1), name);
                Rows::returned(found.into_iter().map(|customer| vec![customer.into()]).collect())
            }
            Statement::PaymentCustomer => {
                let (first_name, is_bad) = self.population.customer(int(0), int(1), int(2));
                let credit = if is_bad { "BC" } else { "GC" };
                one([(0, first_name.into()), (10, credit.into()), (14, "something".into())])
            }
            Statement::OrderStatusOrder => {
                let last = self.last_order(int(0), int(1), int(2));
                last.map_or_else(Rows::default, |order| one([(0, order.into())]))
            }
            Statement::DeliveryOldest => {
                let District { oldest_undelivered, next_order, .. } = self.district(int(0), int(1));
                let oldest = Some(*oldest_undelivered).filter(|oldest| oldest < next_order);
                one([(0, oldest.map_or(Value::Null, Value::Int))])
            }
            Statement::DeliveryTake => {
                let oldest = &mut self.district(int(0), int(1)).oldest_undelivered;
                let is_there = *oldest == int(2);
                *oldest += i64::from(is_there);
                Rows::changed(u64::from(is_there))
            }
            Statement::DeliveryCustomer => one([(0, self.recipient(int(0), int(1), int(2)).into())]),
            Statement::DeliveryTotal => {
                one([(0, Decimal::cents(self.total_cents(int(0), int(1), int(2))).into())])
            }
            Statement::StockLevelDistrict => one([(0, self.district(int(0), int(1)).next_order.into())]),
            Statement::StockLevelCount | Statement::OrderStatusLines => one([(0, Value::Int(0))]),
            Statement::NewOrderMark
            | Statement::PaymentPay
            | Statement::PaymentData
            | Statement::PaymentHistory
            | Statement::DeliveryCarrier
            | Statement::DeliveryLines
            | Statement::DeliveryCredit => Rows::changed(1),
        }
    }

    fn district(&mut self, warehouse: i64, district: i64) -> &mut District {
        let population = &self.population;
        let make = || District::new(population, warehouse, district);
        self.districts.entry([warehouse, district]).or_insert_with(make)
    }

    /// In the order of their first names.
    pub(super) fn customers_named(&mut self, warehouse: i64, district: i64, name: &str) -> Vec<i64> {
        self.district(warehouse, district).by_name.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn last_order(&mut self, warehouse: i64, district: i64, customer: i64) -> Option<i64> {
        self.district(warehouse, district).last_orders.get(customer as usize).copied()
    }

    /// Whose order it is.
    pub(super) fn recipient(&mut self, warehouse: i64, district: i64, order: i64) -> i64 {
        let population = self.population;
        let entered = self.district(warehouse, district).entered.get(&order).map(|order| order.customer);
        entered.unwrap_or_else(|| population.order(warehouse, district, order).customer)
    }

    fn total_cents(&mut self, warehouse: i64, district: i64, order: i64) -> i64 {
        let population = self.population;
        let entered = self.district(warehouse, district).entered.get(&order).map(|order| order.cents);
        entered.unwrap_or_else(|| population.amounts_cents(warehouse, district, order))
    }

    /// The items of some orders.
    pub(super) fn items_of(&mut self, warehouse: i64, district: i64, orders: Range<i64>) -> BTreeSet<i64> {
        let population = self.population;
        let loaded = 1..=population.scale().customers();
        let mut items = BTreeSet::new();
        for order in orders {
            match self.district(warehouse, district).entered.get(&order) {
                Some(entered) => items.extend(&entered.items),
                None if loaded.contains(&order) => items.extend(population.items(warehouse, district, order)),
                None => {}
            }
        }
        items
    }
}

/// A row with these values in these columns, as wide as any.
fn one<const N: usize>(values: [(usize, Value); N]) -> Rows {
    const COLUMNS: usize = 15;
    let mut row = vec![Value::Null; COLUMNS];
    for (column, value) in values {
        row[column] = value;
    }
    Rows::returned(vec![row])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Script, Step};
    use crate::tpcc::{Delivery, Parameters, Scale, Transaction};
    use crate::value::Timestamp;

    #[test]
    fn deliveries_take_the_orders_of_each_district_from_the_oldest_until_none_is_left() {
        let population = Population::new(Scale::new(1, 100).unwrap(), 1, Timestamp::default());
        let mut memory = Memory::new(population);
        for round in 0..32 {
            let delivery = Delivery { w: 1, carrier: 3, now: Timestamp::default() };
            let mut transaction = Transaction::new(Parameters::Delivery(delivery));
            let (mut rows, mut credited) = (None, Vec::new());
            while let Step::Execute(id, params) = transaction.next(rows.take()) {
                if id == Statement::DeliveryCredit.into() {
                    credited.push((
                        params[1].as_int().unwrap(),
                        params[2].as_int().unwrap(),
                        params[3].as_cents(),
                    ));
                }
                rows = Some(memory.answer(id, &params));
            }
            let expected: Vec<(i64, i64, Option<i64>)> = (1..=10)
                .filter(|_| round < 30)
                .map(|district| {
                    let (order, cents) = (71 + round, population.amounts_cents(1, district, 71 + round));
                    (district, population.order(1, district, order).customer, Some(cents))
                })
                .collect();
            assert_eq!(credited, expected);
        }
    }
}
