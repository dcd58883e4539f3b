//! The transactions of the interactions: what each sends, given what came back so far.
//!
//! All choices are made before a transaction starts, so that it does the same when it has to run again. What it learns
//! reaches the session only once it has committed.

use super::population::{image, spell, thumbnail};
use super::rules::rules;
use super::statement::Statement;
use crate::client::{Rows, Script, Step};
use crate::random::{Random, text};
use crate::value::{Date, Decimal, Timestamp, Value};

/// One transaction of an interaction.
#[derive(Clone, Debug)]
pub(super) enum Transaction {
    /// One statement in autocommit.
    Single(Single),
    /// `shop.update`
    Cart(CartUpdate),
    /// `buyr.newcustomer`
    Registration(Box<Registration>),
    /// `buyc.order`
    Purchase(Box<Purchase>),
    /// `ordd.show`
    Display(Display),
    /// `admc.update`
    Admin(AdminUpdate),
}

impl Script for Transaction {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        match self {
            Transaction::Single(single) => single.next(rows),
            Transaction::Cart(cart) => cart.next(rows),
            Transaction::Registration(registration) => registration.next(rows),
            Transaction::Purchase(purchase) => purchase.next(rows),
            Transaction::Display(display) => display.next(rows),
            Transaction::Admin(admin) => admin.next(rows),
        }
    }
}

impl Transaction {
    /// A statement whose result the customer only looks at.
    pub(super) fn single(statement: Statement, params: Vec<Value>) -> Self {
        Transaction::Single(Single { statement, params, rows: None, learn: Learn::Nothing })
    }

    /// A statement whose result the session needs.
    pub(super) fn learning(statement: Statement, params: Vec<Value>, learn: Learn) -> Self {
        Transaction::Single(Single { statement, params, rows: None, learn })
    }

    /// Any statement of it, from which the catalogue knows the transaction.
    pub(super) fn a_statement(&self) -> Statement {
        match self {
            Transaction::Single(single) => single.statement,
            Transaction::Cart(_) => Statement::ShopCount,
            Transaction::Registration(_) => Statement::BuyrCustomer,
            Transaction::Purchase(_) => Statement::BuycOrder,
            Transaction::Display(_) => Statement::OrddLast,
            Transaction::Admin(_) => Statement::AdmcUpdate,
        }
    }

    /// Whether it runs between BEGIN and COMMIT.
    pub(super) fn is_bracketed(&self) -> bool {
        !matches!(self, Transaction::Single(_))
    }
}

/// What the session takes from the result of a single statement.
#[derive(Clone, Debug)]
pub(super) enum Learn {
    /// Nothing.
    Nothing,
    /// The first column: items that the page shows.
    Items,
    /// The list price of the item on the page.
    Price,
    /// Whether the password is this one; if not, the page ends here.
    Password(String),
}

/// A statement that is a transaction of its own.
#[derive(Clone, Debug)]
pub(super) struct Single {
    pub(super) statement: Statement,
    params: Vec<Value>,
    /// What came back.
    pub(super) rows: Option<Rows>,
    pub(super) learn: Learn,
}

impl Single {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        match rows {
            None => execute(self.statement, self.params.clone()),
            Some(rows) => {
                self.rows = Some(rows);
                Step::Commit
            }
        }
    }
}

/// A line of a cart, as a page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CartLine {
    pub(super) item: i64,
    pub(super) quantity: i64,
    pub(super) cost_cents: i64,
}

/// What the two statements that show a cart return, by item: the database may return lines in any order.
fn cart_lines(rows: &Rows) -> Vec<CartLine> {
    let line = |row: &Vec<Value>| {
        Some(CartLine {
            item: row.first()?.as_int()?,
            quantity: row.get(1)?.as_int()?,
            cost_cents: row.get(3)?.as_cents()?,
        })
    };
    let mut lines: Vec<CartLine> = rows.rows.iter().filter_map(line).collect();
    lines.sort_unstable_by_key(|line| line.item);
    lines
}

/// What a visit to the cart changes.
#[derive(Clone, Debug)]
pub(super) enum CartChange {
    /// Only look.
    Nothing,
    /// One more copy of this item.
    Add(i64),
    /// Other quantities for these items; 0 removes the line.
    Refresh(Vec<(i64, i64)>),
}

/// Changes the cart and shows it. An empty cart gets an item that goes with a random one.
#[derive(Clone, Debug)]
pub(super) struct CartUpdate {
    cart: i64,
    now: Timestamp,
    change: CartChange,
    random_item: i64,
    stage: CartStage,
    /// The cart as shown.
    pub(super) lines: Vec<CartLine>,
}

#[derive(Clone, Copy, Debug)]
enum CartStage {
    Start,
    AwaitingFind,
    AwaitingAdd,
    AwaitingChange(usize),
    AwaitingCount,
    AwaitingSuggestion,
    AwaitingAddSuggested,
    AwaitingTouch,
    AwaitingShow,
}

impl CartUpdate {
    pub(super) fn new(cart: i64, now: Timestamp, change: CartChange, random_item: i64) -> Self {
        CartUpdate { cart, now, change, random_item, stage: CartStage::Start, lines: Vec::new() }
    }

    fn next(&mut self, rows: Option<Rows>) -> Step {
        let rows = rows.unwrap_or_default();
        match (self.stage, &self.change) {
            (CartStage::Start, CartChange::Add(item)) => {
                let params = ints(&[self.cart, *item]);
                self.send(CartStage::AwaitingFind, Statement::ShopFind, params)
            }
            (CartStage::Start, _) => self.change(0),
            (CartStage::AwaitingFind, CartChange::Add(item)) => {
                let is_new = rows.rows.is_empty();
                let statement = if is_new { Statement::ShopAdd } else { Statement::ShopBump };
                let params = ints(&[self.cart, *item]);
                self.send(CartStage::AwaitingAdd, statement, params)
            }
            (CartStage::AwaitingChange(done), _) => self.change(done + 1),
            (CartStage::AwaitingFind | CartStage::AwaitingAdd, _) => self.count(),
            (CartStage::AwaitingCount, _) if rows.first(0).and_then(Value::as_int) == Some(0) => {
                let params = ints(&[self.random_item]);
                self.send(CartStage::AwaitingSuggestion, Statement::ShopSuggest, params)
            }
            (CartStage::AwaitingCount | CartStage::AwaitingAddSuggested, _) => {
                let params = vec![self.cart.into(), self.now.into()];
                self.send(CartStage::AwaitingTouch, Statement::ShopTouch, params)
            }
            (CartStage::AwaitingSuggestion, _) => {
                let suggested = rows.first(0).and_then(Value::as_int).unwrap_or(self.random_item);
                let params = ints(&[self.cart, suggested]);
                self.send(CartStage::AwaitingAddSuggested, Statement::ShopAddSuggested, params)
            }
            (CartStage::AwaitingTouch, _) => {
                let params = ints(&[self.cart]);
                self.send(CartStage::AwaitingShow, Statement::ShopShow, params)
            }
            (CartStage::AwaitingShow, _) => {
                self.lines = cart_lines(&rows);
                Step::Commit
            }
        }
    }

    /// The change with this number, or what follows the last.
    fn change(&mut self, number: usize) -> Step {
        let CartChange::Refresh(changes) = &self.change else { return self.count() };
        match changes.get(number) {
            None => self.count(),
            Some(&(item, 0)) => {
                let params = ints(&[self.cart, item]);
                self.send(CartStage::AwaitingChange(number), Statement::ShopRemove, params)
            }
            Some(&(item, quantity)) => {
                let params = ints(&[quantity, self.cart, item]);
                self.send(CartStage::AwaitingChange(number), Statement::ShopSetQuantity, params)
            }
        }
    }

    fn count(&mut self) -> Step {
        let params = ints(&[self.cart]);
        self.send(CartStage::AwaitingCount, Statement::ShopCount, params)
    }

    fn send(&mut self, stage: CartStage, statement: Statement, params: Vec<Value>) -> Step {
        self.stage = stage;
        execute(statement, params)
    }
}

/// An address that a customer enters.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) id: i64,
    pub(super) country: &'static str,
    /// Two lines of street, city, state and zip code.
    pub(super) fields: [String; 5],
}

impl Address {
    /// The parameters of the statement that looks for it.
    fn find(&self, country: i64) -> Vec<Value> {
        let mut params: Vec<Value> = self.fields.iter().map(|field| field.as_str().into()).collect();
        params.push(country.into());
        params
    }

    /// The parameters of the statement that inserts it.
    fn insert(&self, country: i64) -> Vec<Value> {
        let mut params = vec![self.id.into()];
        params.extend(self.find(country));
        params
    }
}

/// A new customer, with an address.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    pub(super) customer: i64,
    pub(super) address: Address,
    pub(super) first_name: String,
    pub(super) last_name: String,
    pub(super) phone: String,
    pub(super) discount_percent: i64,
    pub(super) birthdate: Date,
    pub(super) data: String,
    pub(super) now: Timestamp,
    pub(super) stage: AddressStage,
    pub(super) country: i64,
}

/// Up to the point where the address has an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum AddressStage {
    #[default]
    Start,
    AwaitingCountry,
    AwaitingFound,
    AwaitingAddress,
    AwaitingRest,
}

impl Registration {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        let found = rows.as_ref().and_then(|rows| rows.first(0)).and_then(Value::as_int);
        match (self.stage, found) {
            (AddressStage::Start, _) => {
                self.stage = AddressStage::AwaitingCountry;
                execute(Statement::BuyrCountry, vec![self.address.country.into()])
            }
            (AddressStage::AwaitingCountry, Some(country)) => {
                self.stage = AddressStage::AwaitingFound;
                self.country = country;
                execute(Statement::BuyrFindAddress, self.address.find(country))
            }
            // No such country: this is no bookstore.
            (AddressStage::AwaitingCountry, None) => Step::Rollback,
            (AddressStage::AwaitingFound, None) => {
                self.stage = AddressStage::AwaitingAddress;
                execute(Statement::BuyrAddress, self.address.insert(self.country))
            }
            (AddressStage::AwaitingFound, Some(address)) => self.insert(address),
            (AddressStage::AwaitingAddress, _) => self.insert(self.address.id),
            (AddressStage::AwaitingRest, _) => Step::Commit,
        }
    }

    fn insert(&mut self, address: i64) -> Step {
        self.stage = AddressStage::AwaitingRest;
        let user_name = spell(self.customer);
        let password = user_name.to_lowercase();
        let today = self.now.date();
        let params = vec![
            self.customer.into(),
            user_name.into(),
            password.as_str().into(),
            self.first_name.as_str().into(),
            self.last_name.as_str().into(),
            address.into(),
            self.phone.as_str().into(),
            format!("{password}@example.com").into(),
            today.into(),
            today.into(),
            self.now.into(),
            two_hours_after(self.now).into(),
            Decimal::cents(self.discount_percent).into(),
            self.birthdate.into(),
            self.data.as_str().into(),
        ];
        execute(Statement::BuyrCustomer, params)
    }
}

/// Turns the cart into an order.
#[derive(Clone, Debug)]
pub(super) struct Purchase {
    pub(super) order: i64,
    pub(super) customer: i64,
    pub(super) cart: i64,
    pub(super) now: Timestamp,
    /// Where it is sent, if not to the customer's address.
    pub(super) new_address: Option<Address>,
    pub(super) ship_type: &'static str,
    pub(super) ship_days: i64,
    pub(super) card: Card,
    /// For the comments on the lines, of which nobody knows yet how many there are.
    pub(super) random: Random,
    pub(super) progress: PurchaseProgress,
}

/// What pays for an order.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) card_type: &'static str,
    pub(super) number: String,
    pub(super) name: String,
    pub(super) expires: Date,
    pub(super) authorisation: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PurchaseProgress {
    stage: PurchaseStage,
    discount_percent: i64,
    bill_address: i64,
    ship_address: i64,
    country: i64,
    lines: Vec<CartLine>,
    total_cents: i64,
}

#[derive(Clone, Copy, Debug, Default)]
enum PurchaseStage {
    #[default]
    Start,
    AwaitingCustomer,
    AwaitingCart,
    AwaitingCountry,
    AwaitingFound,
    AwaitingAddress,
    AwaitingOrder,
    AwaitingLine(usize),
    AwaitingStock(usize),
    AwaitingSetStock(usize),
    AwaitingShipCountry,
    AwaitingCard,
    AwaitingClear,
}

impl Purchase {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        let rows = rows.unwrap_or_default();
        let found = rows.first(0).and_then(Value::as_int);
        match self.progress.stage {
            PurchaseStage::Start => {
                let params = ints(&[self.customer]);
                self.send(PurchaseStage::AwaitingCustomer, Statement::BuycCustomer, params)
            }
            PurchaseStage::AwaitingCustomer => self.on_customer(&rows),
            PurchaseStage::AwaitingCart => self.on_cart(&rows),
            PurchaseStage::AwaitingCountry => self.on_country(found),
            PurchaseStage::AwaitingFound => self.on_found(found),
            PurchaseStage::AwaitingAddress => self.insert_order(),
            PurchaseStage::AwaitingOrder => self.insert_line(0),
            PurchaseStage::AwaitingLine(place) => {
                let params = ints(&[self.progress.lines[place].item]);
                self.send(PurchaseStage::AwaitingStock(place), Statement::BuycStock, params)
            }
            PurchaseStage::AwaitingStock(place) => self.on_stock(place, found),
            PurchaseStage::AwaitingSetStock(place) if place + 1 < self.progress.lines.len() => {
                self.insert_line(place + 1)
            }
            PurchaseStage::AwaitingSetStock(_) => {
                let params = ints(&[self.progress.ship_address]);
                self.send(PurchaseStage::AwaitingShipCountry, Statement::BuycShipCountry, params)
            }
            PurchaseStage::AwaitingShipCountry => self.insert_card(found),
            PurchaseStage::AwaitingCard => {
                let params = ints(&[self.cart]);
                self.send(PurchaseStage::AwaitingClear, Statement::BuycClear, params)
            }
            PurchaseStage::AwaitingClear => Step::Commit,
        }
    }

    fn on_customer(&mut self, rows: &Rows) -> Step {
        let discount = rows.first(0).and_then(Value::as_cents);
        let address = rows.first(1).and_then(Value::as_int);
        let (Some(discount), Some(address)) = (discount, address) else { return Step::Rollback };
        self.progress.discount_percent = discount;
        self.progress.bill_address = address;
        self.progress.ship_address = address;
        let params = ints(&[self.cart]);
        self.send(PurchaseStage::AwaitingCart, Statement::BuycCart, params)
    }

    fn on_cart(&mut self, rows: &Rows) -> Step {
        self.progress.lines = cart_lines(rows);
        if self.progress.lines.is_empty() {
            return Step::Rollback;
        }
        match &self.new_address {
            None => self.insert_order(),
            Some(address) => {
                let params = vec![address.country.into()];
                self.send(PurchaseStage::AwaitingCountry, Statement::BuycCountry, params)
            }
        }
    }

    fn on_country(&mut self, found: Option<i64>) -> Step {
        let (Some(address), Some(country)) = (&self.new_address, found) else { return Step::Rollback };
        let params = address.find(country);
        self.progress.country = country;
        self.send(PurchaseStage::AwaitingFound, Statement::BuycFindAddress, params)
    }

    fn on_found(&mut self, found: Option<i64>) -> Step {
        let Some(address) = &self.new_address else { return Step::Rollback };
        self.progress.ship_address = found.unwrap_or(address.id);
        if found.is_some() {
            return self.insert_order();
        }
        let params = address.insert(self.progress.country);
        self.send(PurchaseStage::AwaitingAddress, Statement::BuycAddress, params)
    }

    fn insert_order(&mut self) -> Step {
        let client = &rules().client;
        let progress = &mut self.progress;
        let list_cents: i64 = progress.lines.iter().map(|line| line.cost_cents * line.quantity).sum();
        let copies: i64 = progress.lines.iter().map(|line| line.quantity).sum();
        let sub_total_cents = (list_cents * (100 - progress.discount_percent) + 50) / 100;
        let tax_cents = client.tax_cents(sub_total_cents);
        progress.total_cents = sub_total_cents + tax_cents + client.shipping_cents(copies);
        let params = vec![
            self.order.into(),
            self.customer.into(),
            self.now.into(),
            Decimal::cents(sub_total_cents).into(),
            Decimal::cents(tax_cents).into(),
            Decimal::cents(progress.total_cents).into(),
            self.ship_type.into(),
            self.now.plus_days(self.ship_days).into(),
            progress.bill_address.into(),
            progress.ship_address.into(),
        ];
        self.send(PurchaseStage::AwaitingOrder, Statement::BuycOrder, params)
    }

    fn insert_line(&mut self, place: usize) -> Step {
        let line = self.progress.lines[place];
        let params = vec![
            (place as i64 + 1).into(),
            self.order.into(),
            line.item.into(),
            line.quantity.into(),
            Decimal::cents(self.progress.discount_percent).into(),
            text(&mut self.random, 20, 100).into(),
        ];
        self.send(PurchaseStage::AwaitingLine(place), Statement::BuycLine, params)
    }

    fn on_stock(&mut self, place: usize, stock: Option<i64>) -> Step {
        let line = self.progress.lines[place];
        let Some(stock) = stock else { return Step::Rollback };
        let params = ints(&[line.item, rules().client.stock_after(stock, line.quantity)]);
        self.send(PurchaseStage::AwaitingSetStock(place), Statement::BuycSetStock, params)
    }

    fn insert_card(&mut self, country: Option<i64>) -> Step {
        let Some(country) = country else { return Step::Rollback };
        let params = vec![
            self.order.into(),
            self.card.card_type.into(),
            self.card.number.as_str().into(),
            self.card.name.as_str().into(),
            self.card.expires.into(),
            self.card.authorisation.as_str().into(),
            Decimal::cents(self.progress.total_cents).into(),
            self.now.into(),
            country.into(),
        ];
        self.send(PurchaseStage::AwaitingCard, Statement::BuycCard, params)
    }

    fn send(&mut self, stage: PurchaseStage, statement: Statement, params: Vec<Value>) -> Step {
        self.progress.stage = stage;
        execute(statement, params)
    }
}

/// Shows a customer's last order.
#[derive(Clone, Debug)]
pub(super) struct Display {
    user_name: String,
    stage: usize,
    order: i64,
}

impl Display {
    pub(super) fn new(user_name: String) -> Self {
        Display { user_name, stage: 0, order: 0 }
    }

    fn next(&mut self, rows: Option<Rows>) -> Step {
        self.stage += 1;
        match self.stage {
            1 => execute(Statement::OrddLast, vec![self.user_name.as_str().into()]),
            2 => match rows.and_then(|rows| rows.first(0)?.as_int()) {
                Some(order) => {
                    self.order = order;
                    execute(Statement::OrddOrder, ints(&[order]))
                }
                None => Step::Commit,
            },
            3 => execute(Statement::OrddLines, ints(&[self.order])),
            _ => Step::Commit,
        }
    }
}

/// Gives an item another price and other pictures, and names anew what goes with it.
#[derive(Clone, Debug)]
pub(super) struct AdminUpdate {
    pub(super) item: i64,
    /// Items in the bookstore.
    pub(super) items: i64,
    /// The list price, known once the page before has been read.
    pub(super) srp_cents: i64,
    pub(super) discount_percent: i64,
    /// Tells the new pictures from the old.
    pub(super) version: i64,
    pub(super) today: Date,
    pub(super) stage: usize,
}

impl AdminUpdate {
    fn next(&mut self, rows: Option<Rows>) -> Step {
        self.stage += 1;
        match self.stage {
            1 => {
                let cost_cents = self.srp_cents * (100 - self.discount_percent) / 100;
                let params = vec![
                    self.item.into(),
                    Decimal::cents(cost_cents).into(),
                    image(self.item, self.version).into(),
                    thumbnail(self.item, self.version).into(),
                    self.today.into(),
                ];
                execute(Statement::AdmcUpdate, params)
            }
            2 => execute(Statement::AdmcRelated, ints(&[self.item])),
            3 => {
                let mut related: Vec<i64> = rows.iter().flat_map(|rows| rows.ints(0)).take(5).collect();
                let followers = (0..self.items).map(|step| (self.item + step) % self.items + 1);
                for follower in followers {
                    if related.len() == 5 {
                        break;
                    }
                    if follower != self.item && !related.contains(&follower) {
                        related.push(follower);
                    }
                }
                related.insert(0, self.item);
                execute(Statement::AdmcSetRelated, ints(&related))
            }
            _ => Step::Commit,
        }
    }
}

/// When a login at this time expires.
pub(super) fn two_hours_after(now: Timestamp) -> Timestamp {
    Timestamp { micros: now.micros + 7_200_000_000 }
}

fn execute(statement: Statement, params: Vec<Value>) -> Step {
    Step::Execute(statement.into(), params)
}

fn ints(values: &[i64]) -> Vec<Value> {
    values.iter().copied().map(Value::Int).collect()
}
