//! The five transactions: what each sends, given what came back so far.
//!
//! What a client gives goes to the places where the catalogue's statements name it, so that data and code cannot part; what is
//! computed from results goes to the places that have no name. All choices are made before a transaction starts, so that it does
//! the same when it has to run again.

use super::parameters::{Parameters, Payment};
use super::population::DISTRICTS;
use super::rules::rules;
use super::statement::Statement;
use crate::client::{Rows, Script, Step};
use crate::value::{Decimal, Value};

/// A transaction with its parameters.
#[derive(Clone, Debug)]
pub struct Transaction {
    given: Parameters,
    /// The statement whose result comes next.
    awaited: Option<Statement>,
    /// Of the loop over lines or districts, counted from 0.
    round: usize,
    known: Known,
}

/// What results have told.
#[derive(Clone, Debug, Default)]
struct Known {
    customer: Option<i64>,
    /// Of the order that is entered, delivered or shown; or of the next one.
    order: i64,
    price_cents: i64,
    dist_info: Option<Value>,
    warehouse_name: String,
    district_name: String,
    /// What is to be noted of a customer with bad credit.
    customer_data: Option<String>,
    /// Who gets the order that is delivered.
    recipient: i64,
}

impl Transaction {
    /// At its beginning.
    pub fn new(given: Parameters) -> Self {
        let known = Known::default();
        Transaction { given, awaited: None, round: 0, known }
    }

    /// What its client gave.
    pub fn parameters(&self) -> &Parameters {
        &self.given
    }

    /// Whether a rollback now is what the client asked for, and not because of rows that are not there.
    pub fn is_taken_back_as_asked(&self) -> bool {
        match &self.given {
            Parameters::NewOrder(order) => {
                let is_last = self.round + 1 == order.lines.len();
                order.is_taken_back && is_last && self.awaited == Some(Statement::NewOrderItem)
            }
            _ => false,
        }
    }

    fn begin(&mut self) -> Step {
        match &self.given {
            Parameters::NewOrder(_) => self.send(Statement::NewOrderWarehouse, []),
            Parameters::Payment(_) => self.send(Statement::PaymentWarehouse, []),
            Parameters::OrderStatus(status) => match status.customer.number() {
                Some(_) => self.send(Statement::OrderStatusCustomer, []),
                None => self.send(Statement::OrderStatusByName, []),
            },
            Parameters::Delivery(_) => self.send(Statement::DeliveryOldest, []),
            Parameters::StockLevel(_) => self.send(Statement::StockLevelDistrict, []),
        }
    }

    /// Sends a statement. What it needs that is given stands in the catalogue by name; `computed` is what else it needs, in order.
    fn send<const N: usize>(&mut self, statement: Statement, computed: [Value; N]) -> Step {
        self.awaited = Some(statement);
        let mut computed = computed.into_iter();
        let names = &super::catalogue().statement(statement.into()).params;
        let value = |name: &String| match (name.as_str(), self.known.customer) {
            ("?", _) => computed.next(),
            ("c", Some(found)) => Some(found.into()),
            (name, _) => self.given.value_in_round(name, self.round),
        };
        // A test sees to it that there is a value for each.
        let params = names.iter().map(value).map(Option::unwrap_or_default).collect();
        Step::Execute(statement.into(), params)
    }

    fn next_line(&mut self) -> Step {
        self.round += 1;
        if self.round < self.given.lines().len() {
            self.send(Statement::NewOrderItem, [])
        } else {
            Step::Commit
        }
    }

    fn next_district(&mut self) -> Step {
        self.round += 1;
        if self.round < DISTRICTS as usize { self.send(Statement::DeliveryOldest, []) } else { Step::Commit }
    }

    /// Of the customers of one name, the one in the middle, and before it if there are two.
    fn find_customer(&mut self, rows: &Rows) -> Option<i64> {
        let middle = rows.rows.get(rows.rows.len().checked_sub(1)? / 2)?;
        self.known.customer = Some(middle.first()?.as_int()?);
        self.known.customer
    }

    fn on_stock(&mut self, rows: &Rows) -> Option<Step> {
        let line = *self.given.lines().get(self.round)?;
        let stock = rows.first(0)?.as_int()?;
        // The stock's quantity and data stand before what it says for each district.
        let district = self.given.value("d")?.as_int()?;
        self.known.dist_info = rows.first(1 + usize::try_from(district).ok()?).cloned();
        let left = rules().client.stock_after(stock, line.quantity);
        Some(self.send(Statement::NewOrderSetStock, [left.into()]))
    }

    fn on_stock_set(&mut self) -> Step {
        let quantity = self.given.lines().get(self.round).map_or(0, |line| line.quantity);
        let amount = Decimal::cents(quantity.saturating_mul(self.known.price_cents));
        let dist_info = self.known.dist_info.take().unwrap_or_default();
        let order = self.known.order;
        self.send(Statement::NewOrderLine, [order.into(), amount.into(), dist_info])
    }

    fn on_paid(&mut self) -> Step {
        let Known { warehouse_name, district_name, .. } = &self.known;
        let data = format!("{warehouse_name}    {district_name}");
        self.send(Statement::PaymentHistory, [data.into()])
    }
}

impl Payment {
    /// What is noted of the customer who was found, if the credit is bad.
    fn new_data(&self, found: Option<i64>, rows: &Rows) -> Option<String> {
        let credit = rows.first(10)?.as_text()?;
        let customer = self.customer.number().or(found)?;
        (credit == "BC")
            .then(|| self.note(customer, rows.first(14).and_then(Value::as_text).unwrap_or_default()))
    }
}

impl Script for Transaction {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        let rows = rows.unwrap_or_default();
        // The row is not there: this is no supplier, or the order is to be taken back.
        self.on_rows(&rows).unwrap_or(Step::Rollback)
    }
}

impl Transaction {
    /// What follows the awaited result; `None` if it lacks what is needed.
    fn on_rows(&mut self, rows: &Rows) -> Option<Step> {
        let Some(awaited) = self.awaited else { return Some(self.begin()) };
        let order: Value = self.known.order.into();
        let text = |column| Some(rows.first(column)?.as_text().unwrap_or_default().to_owned());
        let step = match awaited {
            Statement::NewOrderWarehouse => self.send(Statement::NewOrderDistrict, []),
            Statement::NewOrderDistrict => {
                self.known.order = rows.first(1)?.as_int()?;
                self.send(Statement::NewOrderCustomer, [])
            }
            Statement::NewOrderCustomer => self.send(Statement::NewOrderOrder, [order]),
            Statement::NewOrderOrder => self.send(Statement::NewOrderMark, [order]),
            Statement::NewOrderMark => self.send(Statement::NewOrderItem, []),
            Statement::NewOrderItem => {
                self.known.price_cents = rows.first(0)?.as_cents()?;
                self.send(Statement::NewOrderStock, [])
            }
            Statement::NewOrderStock => self.on_stock(rows)?,
            Statement::NewOrderSetStock => self.on_stock_set(),
            Statement::NewOrderLine => self.next_line(),

            Statement::PaymentWarehouse => {
                self.known.warehouse_name = text(0)?;
                self.send(Statement::PaymentDistrict, [])
            }
            Statement::PaymentDistrict => {
                self.known.district_name = text(0)?;
                let is_known = self.given.value("c").is_some();
                let next = if is_known { Statement::PaymentCustomer } else { Statement::PaymentByName };
                self.send(next, [])
            }
            Statement::PaymentByName => {
                self.find_customer(rows)?;
                self.send(Statement::PaymentCustomer, [])
            }
            Statement::PaymentCustomer => {
                if let Parameters::Payment(payment) = &self.given {
                    self.known.customer_data = payment.new_data(self.known.customer, rows);
                }
                rows.first(0)?;
                self.send(Statement::PaymentPay, [])
            }
            Statement::PaymentPay => match self.known.customer_data.take() {
                Some(data) => self.send(Statement::PaymentData, [data.into()]),
                None => self.on_paid(),
            },
            Statement::PaymentData => self.on_paid(),

            Statement::OrderStatusByName => {
                self.find_customer(rows)?;
                self.send(Statement::OrderStatusOrder, [])
            }
            Statement::OrderStatusCustomer => self.send(Statement::OrderStatusOrder, []),
            Statement::OrderStatusOrder => match rows.first(0).and_then(Value::as_int) {
                Some(order) => self.send(Statement::OrderStatusLines, [order.into()]),
                None => Step::Commit,
            },

            Statement::DeliveryOldest => match rows.first(0).and_then(Value::as_int) {
                Some(oldest) => {
                    self.known.order = oldest;
                    self.send(Statement::DeliveryTake, [oldest.into()])
                }
                None => self.next_district(),
            },
            // On a server that lets two deliveries see the same order, the one that comes late leaves it to the other.
            Statement::DeliveryTake if rows.count == 0 => self.next_district(),
            Statement::DeliveryTake => self.send(Statement::DeliveryCustomer, [order]),
            Statement::DeliveryCustomer => {
                self.known.recipient = rows.first(0)?.as_int()?;
                self.send(Statement::DeliveryCarrier, [order])
            }
            Statement::DeliveryCarrier => self.send(Statement::DeliveryLines, [order]),
            Statement::DeliveryLines => self.send(Statement::DeliveryTotal, [order]),
            Statement::DeliveryTotal => {
                let total = Decimal::cents(rows.first(0)?.as_cents().unwrap_or(0));
                self.send(Statement::DeliveryCredit, [self.known.recipient.into(), total.into()])
            }
            Statement::DeliveryCredit => self.next_district(),

            Statement::StockLevelDistrict => {
                let next = rows.first(0)?.as_int()?;
                let first = next.saturating_sub(rules().client.stock_orders);
                self.send(Statement::StockLevelCount, [next.into(), first.into()])
            }
            Statement::PaymentHistory | Statement::OrderStatusLines | Statement::StockLevelCount => {
                Step::Commit
            }
        };
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::catalogue::StatementId;
    use crate::random::{Random, stream, text, uniform};
    use crate::tpcc::{Generator, HomeWarehouse, Kind, Population, Scale, catalogue};
    use crate::value::Timestamp;

    /// Rows of any number, as wide as any statement's, of values that it may make sense of or not.
    fn random_rows(random: &mut Random) -> Rows {
        let value = |random: &mut Random| match uniform(random, 0, 7) {
            0 => Value::Null,
            1 => text(random, 1, 10).into(),
            2 => "BC".into(),
            3 => Decimal::cents(uniform(random, 0, 10_000)).into(),
            _ => Value::Int(uniform(random, 1, 4_000)),
        };
        let count = uniform(random, 0, 9);
        let rows = (0..count).map(|_| (0..15).map(|_| value(random)).collect()).collect();
        Rows { rows, count: count as u64 }
    }

    fn generator() -> Generator {
        let population = Population::new(Scale::new(3, 100).unwrap(), 3, Timestamp::default());
        Generator::new(&population, HomeWarehouse::Uniform, 5, 0, 1, population.highest_history())
    }

    /// Runs a transaction over such rows; `see` is told each statement and the round of its loop.
    fn run(
        transaction: &mut Transaction,
        random: &mut Random,
        mut see: impl FnMut(StatementId, &[Value], usize),
    ) {
        let mut rows = None;
        let mut times: BTreeMap<StatementId, usize> = BTreeMap::new();
        while let Step::Execute(statement, params) = transaction.next(rows.take()) {
            let times = times.entry(statement).or_insert(0);
            // Not all rounds of a loop run all its statements; the transaction's own count is compared where they do.
            let round = transaction.round;
            assert!(*times <= round, "{}", catalogue().statement(statement).id);
            *times += 1;
            see(statement, &params, round);
            // Mostly what lets it go on.
            rows = Some(loop {
                let drawn = random_rows(random);
                if !drawn.rows.is_empty() || uniform(random, 0, 9) == 0 {
                    break drawn;
                }
            });
        }
    }

    #[test]
    fn each_parameter_that_has_a_name_has_its_value_whatever_comes_back() {
        let mut generator = generator();
        let mut random = stream(11, 0);
        let mut used = BTreeSet::new();
        for turn in 0..4_000 {
            let kind = Kind::ALL[turn % 5];
            let given = generator.draw(kind, Timestamp { micros: turn as i64 });
            let mut transaction = Transaction::new(given.clone());
            let mut found = None;
            run(&mut transaction, &mut random, |id, params, round| {
                let statement = catalogue().statement(id);
                assert_eq!(catalogue().transaction(statement.transaction).id.to_uppercase(), kind.id());
                assert_eq!(params.len(), statement.parameter_count());
                assert!(round < given.rounds(statement.group.as_deref()).max(1));
                used.insert(id);
                for (name, value) in statement.params.iter().zip(params) {
                    match (name.as_str(), given.value_in_round(name, round)) {
                        ("?", _) => {}
                        (_, Some(expected)) => assert_eq!(*value, expected, "{}: {name}", statement.id),
                        // A customer who was named is found once, and stays the same.
                        ("c", None) => {
                            assert!(given.value("c_last").is_some());
                            assert_eq!(found.get_or_insert(value.clone()), value);
                            assert!(value.as_int().is_some());
                        }
                        (name, None) => panic!("{} has no {name}", statement.id),
                    }
                }
            });
        }
        assert_eq!(used.len(), Statement::ALL.len());
    }

    /// By what the columns of a statement's text are, independently of the names of its parameters.
    #[test]
    fn each_name_stands_where_its_column_stands_in_the_text() {
        let allowed = |transaction: &str, column: &str| -> &'static [&'static str] {
            match (transaction, column) {
                ("payment", "c_w_id" | "h_c_w_id") => &["cw"],
                ("payment", "c_d_id" | "h_c_d_id") => &["cd"],
                (_, "ol_supply_w_id" | "s_w_id") => &["line.supply"],
                (_, "s_i_id" | "i_id" | "ol_i_id") => &["line.item"],
                ("delivery", column) if column.ends_with("_d_id") => &["district"],
                (_, "d_id") => &["d"],
                (_, column) if column.ends_with("_d_id") => &["d"],
                (_, column) if column.ends_with("w_id") => &["w"],
                ("delivery", "c_id") => &["?"],
                (_, "c_id" | "o_c_id" | "h_c_id") => &["c"],
                (_, "c_last") => &["c_last"],
                (_, "o_entry_d" | "h_date" | "ol_delivery_d") => &["now"],
                (_, "o_ol_cnt") => &["lines"],
                (_, "o_all_local") => &["all_local"],
                (_, "ol_number") => &["line.number"],
                (_, "ol_quantity" | "s_ytd") => &["line.quantity"],
                (_, "s_remote_cnt") => &["line.remote"],
                ("stock_level", "s_quantity") => &["threshold"],
                (_, "o_carrier_id") => &["carrier"],
                (_, "h_id") => &["history"],
                ("payment", "w_ytd" | "d_ytd" | "c_balance" | "c_ytd_payment" | "h_amount") => &["amount"],
                _ => &["?"],
            }
        };
        for statement in &catalogue().statements {
            let transaction = &catalogue().transaction(statement.transaction).id;
            let mut seen = BTreeSet::new();
            for (column, number) in columns(&statement.sql) {
                let name = statement.params[number - 1].as_str();
                assert!(allowed(transaction, &column).contains(&name), "{}: {column} {name}", statement.id);
                seen.insert(number);
            }
            assert_eq!(seen.len(), statement.params.len(), "{}", statement.id);
        }
    }

    /// Which parameters are compared with, added to or written to which columns.
    fn columns(sql: &str) -> Vec<(String, usize)> {
        let number = |word: &str| word.trim_end_matches([')', ',']).strip_prefix('$')?.parse().ok();
        if let Some((target, values)) = sql.split_once("VALUES") {
            let list = |text: &str| -> Vec<String> {
                let inner = text.split_once('(').unwrap().1.split_once(')').unwrap().0.to_owned();
                inner.split(',').map(|part| part.trim().to_owned()).collect()
            };
            let pairs = list(target).into_iter().zip(list(values));
            return pairs.filter_map(|(column, value)| Some((column, number(&value)?))).collect();
        }
        let words: Vec<&str> = sql.split_whitespace().collect();
        let column = |at: usize| words[at - 2].rsplit('.').next().unwrap().to_owned();
        (2..words.len()).filter_map(|at| Some((column(at), number(words[at])?))).collect()
    }

    #[test]
    fn an_order_whose_last_item_is_not_there_is_taken_back_as_asked() {
        let mut generator = generator();
        let row = |values: &[i64]| Rows::returned(vec![values.iter().copied().map(Value::Int).collect()]);
        for _ in 0..2_000 {
            let given = generator.draw(Kind::NewOrder, Timestamp::default());
            let mut transaction = Transaction::new(given.clone());
            let mut rows = None;
            let mut items = 0;
            let end = loop {
                match transaction.next(rows.take()) {
                    Step::Execute(id, params) if id == Statement::NewOrderItem.into() => {
                        items += 1;
                        let is_there = params[0].as_int().unwrap() <= Scale::new(3, 100).unwrap().items();
                        rows = Some(if is_there { row(&[7]) } else { Rows::default() });
                    }
                    Step::Execute(..) => rows = Some(row(&[5; 12])),
                    end => break end,
                }
            };
            let Parameters::NewOrder(order) = given else { panic!("not what was asked for") };
            assert_eq!(items, order.lines.len());
            assert_eq!(end == Step::Rollback, order.is_taken_back);
            assert_eq!(transaction.is_taken_back_as_asked(), order.is_taken_back);
        }
    }

    #[test]
    fn the_customer_in_the_middle_is_taken() {
        let found = |count: i64| {
            let mut transaction = Transaction::new(generator().draw(Kind::OrderStatus, Timestamp::default()));
            transaction.find_customer(&Rows::returned((1..=count).map(|id| vec![id.into()]).collect()))
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(found), [None, Some(1), Some(1), Some(2), Some(2), Some(3)]);
    }
}
