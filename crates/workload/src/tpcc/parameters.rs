//! What a client gives for one transaction, by the names that the catalogue's statements use.

use super::population::DISTRICTS;
use super::rules::rules;
use crate::catalogue::{InteractionId, TransactionId};
use crate::value::{Decimal, Timestamp, Value};

/// The five transactions, in the order of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A customer orders some items.
    NewOrder,
    /// A customer pays.
    Payment,
    /// A customer asks for the last order.
    OrderStatus,
    /// The oldest order of each district is delivered.
    Delivery,
    /// Which items of the last orders are low on stock.
    StockLevel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] =
        [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];

    /// The name in the catalogue: `NEW_ORDER`.
    pub fn id(self) -> &'static str {
        &super::catalogue().interaction(self.into()).id
    }

    /// Its only transaction.
    pub fn transaction(self) -> TransactionId {
        TransactionId(self as u16)
    }

    /// The kind of an interaction of this catalogue.
    pub fn from_id(id: InteractionId) -> Option<Kind> {
        Kind::ALL.get(usize::from(id.0)).copied()
    }
}

impl From<Kind> for InteractionId {
    fn from(kind: Kind) -> Self {
        InteractionId(kind as u16)
    }
}

/// What a client gives for one transaction. Warehouses, districts, customers and items are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// `NEW_ORDER`
    NewOrder(NewOrder),
    /// `PAYMENT`
    Payment(Payment),
    /// `ORDER_STATUS`
    OrderStatus(OrderStatus),
    /// `DELIVERY`
    Delivery(Delivery),
    /// `STOCK_LEVEL`
    StockLevel(StockLevel),
}

/// A customer orders some items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOrder {
    /// Warehouse of the terminal and of the customer.
    pub w: i64,
    /// District of the customer.
    pub d: i64,
    /// The customer's number.
    pub c: i64,
    /// What is ordered, at least one line.
    pub lines: Vec<OrderLine>,
    /// The last line names an item that is not there, so that the order is taken back.
    pub is_taken_back: bool,
    /// The client's clock.
    pub now: Timestamp,
}

/// A line of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderLine {
    /// The warehouse that supplies it.
    pub supply: i64,
    /// The item.
    pub item: i64,
    /// Pieces.
    pub quantity: i64,
}

/// A customer pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Warehouse of the terminal.
    pub w: i64,
    /// The district that is paid.
    pub d: i64,
    /// Warehouse of the customer.
    pub cw: i64,
    /// District of the customer.
    pub cd: i64,
    /// Who pays.
    pub customer: Customer,
    /// How much, in cents.
    pub amount_cents: i64,
    /// The key of the history's new row.
    pub history: i64,
    /// The client's clock.
    pub now: Timestamp,
}

/// A customer asks for the last order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderStatus {
    /// Warehouse of the terminal and of the customer.
    pub w: i64,
    /// District of the customer.
    pub d: i64,
    /// Who asks.
    pub customer: Customer,
}

/// The oldest order of each district is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The warehouse.
    pub w: i64,
    /// Who delivers.
    pub carrier: i64,
    /// The client's clock.
    pub now: Timestamp,
}

/// How many items of a district's last orders are low on stock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StockLevel {
    /// Warehouse of the terminal.
    pub w: i64,
    /// District of the terminal.
    pub d: i64,
    /// Fewer pieces than this are low stock.
    pub threshold: i64,
}

/// How a client names a customer of a district.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Customer {
    /// By number.
    Number(i64),
    /// By last name, which several may have: of those, in the order of their first names, the one in the middle.
    LastName(String),
}

impl Customer {
    /// The number, if it was given.
    pub fn number(&self) -> Option<i64> {
        match self {
            Customer::Number(number) => Some(*number),
            Customer::LastName(_) => None,
        }
    }

    fn last_name(&self) -> Option<&str> {
        match self {
            Customer::Number(_) => None,
            Customer::LastName(name) => Some(name),
        }
    }
}

impl Parameters {
    /// The names under which statements of the catalogue take values that are known before a transaction begins. Those of a loop's
    /// rounds have a value in [`Parameters::value_in_round`] only.
    pub const NAMES: [&str; 18] = [
        "w",
        "d",
        "c",
        "c_last",
        "cw",
        "cd",
        "amount",
        "history",
        "carrier",
        "threshold",
        "now",
        "lines",
        "all_local",
        "line.number",
        "line.supply",
        "line.item",
        "line.quantity",
        "line.remote",
    ];

    /// Which transaction.
    pub fn kind(&self) -> Kind {
        match self {
            Parameters::NewOrder(_) => Kind::NewOrder,
            Parameters::Payment(_) => Kind::Payment,
            Parameters::OrderStatus(_) => Kind::OrderStatus,
            Parameters::Delivery(_) => Kind::Delivery,
            Parameters::StockLevel(_) => Kind::StockLevel,
        }
    }

    /// The lines of an order; none of any other transaction.
    pub fn lines(&self) -> &[OrderLine] {
        match self {
            Parameters::NewOrder(order) => &order.lines,
            _ => &[],
        }
    }

    /// How often the statements of a loop run at most, by the name of the loop in the catalogue (`group`): as often as there are lines
    /// or districts. Statements outside of loops run once.
    pub fn rounds(&self, group: Option<&str>) -> usize {
        match group {
            Some("line") => self.lines().len(),
            Some("district") => DISTRICTS as usize,
            _ => 1,
        }
    }

    /// The value of this name. `None` if this transaction has none, which of `c` and `c_last` depends on how the customer is
    /// named.
    pub fn value(&self, name: &str) -> Option<Value> {
        match self {
            Parameters::NewOrder(order) => order.value(name),
            Parameters::Payment(payment) => payment.value(name),
            Parameters::OrderStatus(status) => status.value(name),
            Parameters::Delivery(delivery) => delivery.value(name),
            Parameters::StockLevel(level) => level.value(name),
        }
    }

    /// The same within a loop, where a name may be that of the line or the district of this round, counted from 0.
    pub fn value_in_round(&self, name: &str, round: usize) -> Option<Value> {
        match (name, self) {
            ("district", Parameters::Delivery(_)) => Some(Value::Int(round as i64 + 1)),
            (_, Parameters::NewOrder(order)) if name.starts_with("line.") => {
                let line = order.lines.get(round)?;
                match name {
                    "line.number" => Some(Value::Int(round as i64 + 1)),
                    "line.supply" => Some(Value::Int(line.supply)),
                    "line.item" => Some(Value::Int(line.item)),
                    "line.quantity" => Some(Value::Int(line.quantity)),
                    "line.remote" => Some(Value::Int(i64::from(line.supply != order.w))),
                    _ => None,
                }
            }
            _ => self.value(name),
        }
    }
}

impl NewOrder {
    fn value(&self, name: &str) -> Option<Value> {
        let is_local = || self.lines.iter().all(|line| line.supply == self.w);
        match name {
            "w" => Some(self.w.into()),
            "d" => Some(self.d.into()),
            "c" => Some(self.c.into()),
            "now" => Some(self.now.into()),
            "lines" => Some(Value::Int(self.lines.len() as i64)),
            "all_local" => Some(Value::Int(i64::from(is_local()))),
            _ => None,
        }
    }
}

impl Payment {
    fn value(&self, name: &str) -> Option<Value> {
        match name {
            "w" => Some(self.w.into()),
            "d" => Some(self.d.into()),
            "cw" => Some(self.cw.into()),
            "cd" => Some(self.cd.into()),
            "c" => self.customer.number().map(Value::Int),
            "c_last" => self.customer.last_name().map(Value::from),
            "amount" => Some(Decimal::cents(self.amount_cents).into()),
            "history" => Some(self.history.into()),
            "now" => Some(self.now.into()),
            _ => None,
        }
    }

    /// What is noted of a customer with bad credit: this payment, before what was noted already, as far as there is room.
    pub(super) fn note(&self, customer: i64, noted: &str) -> String {
        let Payment { w, d, cw, cd, amount_cents, .. } = self;
        let note = format!("{customer} {cd} {cw} {d} {w} {} {noted}", Decimal::cents(*amount_cents));
        note.chars().take(rules().client.customer_data_max).collect()
    }
}

impl OrderStatus {
    fn value(&self, name: &str) -> Option<Value> {
        match name {
            "w" => Some(self.w.into()),
            "d" => Some(self.d.into()),
            "c" => self.customer.number().map(Value::Int),
            "c_last" => self.customer.last_name().map(Value::from),
            _ => None,
        }
    }
}

impl Delivery {
    fn value(&self, name: &str) -> Option<Value> {
        match name {
            "w" => Some(self.w.into()),
            "carrier" => Some(self.carrier.into()),
            "now" => Some(self.now.into()),
            _ => None,
        }
    }
}

impl StockLevel {
    fn value(&self, name: &str) -> Option<Value> {
        match name {
            "w" => Some(self.w.into()),
            "d" => Some(self.d.into()),
            "threshold" => Some(self.threshold.into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::catalogue;

    #[test]
    fn kinds_stand_in_the_order_of_the_catalogue() {
        let names = ["new_order", "payment", "order_status", "delivery", "stock_level"];
        for (kind, name) in Kind::ALL.into_iter().zip(names) {
            assert_eq!(catalogue().transaction_id(name), Some(kind.transaction()));
            assert_eq!(catalogue().transaction(kind.transaction()).interaction, kind.into());
            assert_eq!((kind.id(), Kind::from_id(kind.into())), (name.to_uppercase().as_str(), Some(kind)));
        }
        assert_eq!(catalogue().interactions.len(), 5);
    }

    #[test]
    fn statements_use_the_names_that_there_are() {
        for statement in &catalogue().statements {
            assert_eq!(statement.params.len(), statement.parameter_count(), "{}", statement.id);
            for name in &statement.params {
                let of_loop = match statement.group.as_deref() {
                    Some("line") => name.starts_with("line."),
                    Some("district") => name == "district",
                    _ => false,
                };
                let is_known = name == "?" || Parameters::NAMES.contains(&name.as_str());
                assert!(of_loop || is_known && !name.starts_with("line."), "{}: {name}", statement.id);
            }
        }
    }

    #[test]
    fn what_is_noted_of_a_customer_keeps_to_its_length() {
        let customer = Customer::Number(3);
        let now = Timestamp::default();
        let payment = Payment { w: 1, d: 2, cw: 4, cd: 5, customer, amount_cents: 1_234, history: 9, now };
        assert_eq!(payment.note(3, "before"), "3 5 4 2 1 12.34 before");
        assert_eq!(payment.note(3, &"x".repeat(500)).len(), 500);
    }
}
