//! An emulated browser: a customer who walks through the bookstore.

use std::collections::VecDeque;
use std::time::Duration;

use super::mix::{Interaction, Mix};
use super::population::{Population, Scale, spell, spell_padded};
use super::rules::rules;
use super::statement::Statement;
use super::transactions::{
    Address, AddressStage, AdminUpdate, Card, CartChange, CartLine, CartUpdate, Display, Learn, Purchase,
    PurchaseProgress, Registration, Single, Transaction, two_hours_after,
};
use crate::client::{Action, Client, Failure, Reply, Rows, Script, Step};
use crate::random::{self, Random, chance, choose, digits, exponential, nurand, text, uniform};
use crate::value::{Date, Timestamp, Value};

/// The bookstore as its customers know it.
#[derive(Clone, Copy, Debug)]
pub struct Shop {
    /// How customers walk.
    pub mix: &'static Mix,
    /// How large it is.
    pub scale: Scale,
}

/// The highest ids in use when browsers start; new rows get higher ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Highest {
    /// customer.c_id
    pub customer: i64,
    /// address.addr_id
    pub address: i64,
    /// orders.o_id
    pub order: i64,
    /// shopping_cart.sc_id
    pub cart: i64,
}

impl Highest {
    /// Those of a freshly loaded bookstore.
    pub fn loaded(scale: Scale) -> Self {
        Highest { customer: scale.customers(), address: scale.addresses(), order: scale.orders(), cart: 0 }
    }
}

/// Ids for new rows. The ids above the highest ones are dealt to the browsers in turn, like cards: no two browsers
/// get the same, none has to ask, and what a browser gets does not depend on what the others do.
#[derive(Clone, Debug)]
struct Ids {
    next: Highest,
    browsers: i64,
}

impl Ids {
    fn new(highest: Highest, browser: u32, browsers: u32) -> Self {
        let first = |highest: i64| highest + 1 + i64::from(browser);
        Ids {
            next: Highest {
                customer: first(highest.customer),
                address: first(highest.address),
                order: first(highest.order),
                cart: first(highest.cart),
            },
            browsers: i64::from(browsers),
        }
    }

    fn take(&mut self, of: impl Fn(&mut Highest) -> &mut i64) -> i64 {
        let next = of(&mut self.next);
        let taken = *next;
        *next += self.browsers;
        taken
    }
}

/// One emulated browser.
///
/// Its choices follow from its seed and number and from the answers it gets; the times it is told go into rows.
#[derive(Clone, Debug)]
pub struct Browser {
    shop: Shop,
    random: Random,
    ids: Ids,
    session: Session,
    /// What the current interaction has left to do.
    plan: VecDeque<Transaction>,
    running: Option<Running>,
    state: State,
    /// The interaction that runs, or that follows the pause.
    at: Interaction,
    /// The interaction before it.
    came_from: Option<Interaction>,
}

/// What a customer's browser remembers from page to page.
#[derive(Clone, Debug)]
struct Session {
    /// How much longer the customer stays; the session ends at HOME once nothing is left. Counted in pauses, unscaled
    /// and without response times, so that it means the same at whatever speed a driver runs.
    left: Duration,
    /// No page was shown yet.
    is_new: bool,
    customer: Option<i64>,
    cart: Option<i64>,
    lines: Vec<CartLine>,
    /// The product looked at last.
    item: Option<i64>,
    srp_cents: i64,
    /// Items that the page on the screen shows.
    shown: Vec<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    AwaitingPause,
    AwaitingBegin,
    AwaitingRows,
    AwaitingCommit,
    AwaitingRollback,
}

#[derive(Clone, Debug)]
struct Running {
    /// As it was before its first step, to run it again.
    start: Transaction,
    now: Transaction,
}

impl Browser {
    /// Browser `number` of `browsers`, counted from 0. `highest` is what is in the database before the first of them starts.
    pub fn new(shop: Shop, seed: u64, number: u32, browsers: u32, highest: Highest) -> Self {
        let session = Session {
            left: Duration::ZERO,
            is_new: true,
            customer: None,
            cart: None,
            lines: Vec::new(),
            item: None,
            srp_cents: 0,
            shown: Vec::new(),
        };
        Browser {
            shop,
            random: random::stream(seed, u64::from(number)),
            ids: Ids::new(highest, number, browsers.max(1)),
            session,
            plan: VecDeque::new(),
            running: None,
            state: State::Idle,
            at: Interaction::Home,
            came_from: None,
        }
    }

    /// The interaction that runs, or that follows the pause.
    pub fn interaction(&self) -> Interaction {
        self.at
    }

    fn start_session(&mut self) {
        let client = &rules().client;
        let random = &mut self.random;
        let length = exponential(random, client.session_mean(), client.session_max());
        let is_known = chance(random, client.known_customer_probability);
        let customer = self.draw_customer();
        self.session = Session {
            left: length,
            is_new: true,
            customer: is_known.then_some(customer),
            cart: None,
            lines: Vec::new(),
            item: None,
            srp_cents: 0,
            shown: Vec::new(),
        };
    }

    fn start_interaction(&mut self, now: Timestamp) {
        if self.at == Interaction::Home && self.session.left.is_zero() {
            self.start_session();
        }
        let plan = self.plan_of(self.at, now);
        self.session.shown.clear();
        self.session.is_new = false;
        self.plan = plan.into();
    }

    /// Starts what comes next of the interaction, or ends it.
    fn advance(&mut self) -> Action {
        let Some(mut transaction) = self.plan.pop_front() else { return self.think() };
        if let Transaction::Admin(update) = &mut transaction {
            update.srp_cents = self.session.srp_cents;
        }
        self.start(transaction)
    }

    fn start(&mut self, transaction: Transaction) -> Action {
        let running = self.running.insert(Running { start: transaction.clone(), now: transaction });
        if running.now.is_bracketed() {
            self.state = State::AwaitingBegin;
            let statement = super::catalogue().statement(running.now.a_statement().into());
            return Action::Begin(statement.transaction);
        }
        self.step(None)
    }

    fn step(&mut self, rows: Option<Rows>) -> Action {
        let Some(running) = &mut self.running else { return self.advance() };
        match running.now.next(rows) {
            Step::Execute(statement, params) => {
                self.state = State::AwaitingRows;
                Action::Execute(statement, params)
            }
            Step::Commit if running.now.is_bracketed() => {
                self.state = State::AwaitingCommit;
                Action::Commit
            }
            Step::Commit => self.finish(),
            Step::Rollback => {
                self.state = State::AwaitingRollback;
                Action::Rollback
            }
        }
    }

    /// The transaction has committed: what it taught counts from now on.
    fn finish(&mut self) -> Action {
        if let Some(running) = self.running.take() {
            self.learn(running.now);
        }
        self.advance()
    }

    fn learn(&mut self, transaction: Transaction) {
        let session = &mut self.session;
        match transaction {
            Transaction::Single(Single { rows, learn, .. }) => {
                let rows = rows.unwrap_or_default();
                match learn {
                    Learn::Nothing => {}
                    Learn::Items => session.shown.extend(rows.ints(0)),
                    Learn::Price => session.srp_cents = price(&rows).unwrap_or(session.srp_cents),
                    Learn::Password(password) => {
                        if rows.first(0).and_then(Value::as_text) != Some(&password) {
                            self.plan.clear();
                        }
                    }
                }
            }
            Transaction::Cart(update) => session.lines = update.lines,
            Transaction::Registration(registration) => session.customer = Some(registration.customer),
            Transaction::Purchase(_) => session.lines.clear(),
            Transaction::Display(_) | Transaction::Admin(_) => {}
        }
    }

    fn think(&mut self) -> Action {
        self.came_from = Some(self.at);
        self.at = self.shop.mix.next(self.at, &mut self.random);
        self.pause()
    }

    fn pause(&mut self) -> Action {
        let client = &rules().client;
        let pause = exponential(&mut self.random, client.think_time_mean(), client.think_time_max());
        self.session.left = self.session.left.saturating_sub(pause);
        self.state = State::AwaitingPause;
        Action::Think { pause, next: self.at.into() }
    }

    /// The customer leaves; later another one comes.
    fn give_up(&mut self) -> Action {
        self.plan.clear();
        self.running = None;
        self.came_from = None;
        self.at = Interaction::Home;
        self.session.left = Duration::ZERO;
        self.pause()
    }

    fn draw_customer(&mut self) -> i64 {
        let customers = self.shop.scale.customers();
        nurand(&mut self.random, rules().client.nurand_customer(customers), 1, customers)
    }

    fn draw_item(&mut self) -> i64 {
        uniform(&mut self.random, 1, self.shop.scale.items())
    }
}

impl Client for Browser {
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action {
        match (self.state, reply) {
            (State::AwaitingPause, _) => {
                self.start_interaction(now);
                self.advance()
            }
            (State::Idle, _) => {
                self.state = State::AwaitingPause;
                Action::Think { pause: Duration::ZERO, next: self.at.into() }
            }
            (_, Reply::Failed(Failure::Retry)) => match self.running.take() {
                Some(running) => self.start(running.start),
                None => self.give_up(),
            },
            (State::AwaitingRollback, _) | (_, Reply::Failed(Failure::GiveUp)) => self.give_up(),
            (State::AwaitingBegin, _) => self.step(None),
            (State::AwaitingRows, Reply::Rows(rows)) => self.step(Some(rows)),
            (State::AwaitingRows, Reply::Done) => self.step(Some(Rows::default())),
            (State::AwaitingCommit, _) => self.finish(),
        }
    }

    fn is_usual(&self) -> bool {
        match self.running.as_ref().map(|running| &running.start) {
            Some(Transaction::Purchase(purchase)) => purchase.new_address.is_none(),
            // The others have no rare statements, or none that their customers can foresee.
            Some(_) | None => false,
        }
    }
}

/// What each page asks of the database.
impl Browser {
    fn plan_of(&mut self, interaction: Interaction, now: Timestamp) -> Vec<Transaction> {
        match interaction {
            Interaction::Home => self.home(),
            Interaction::NewProducts => self.list(Statement::NewpPromo, Statement::NewpList),
            Interaction::BestSellers => self.list(Statement::BessPromo, Statement::BessList),
            Interaction::ProductDetail => self.product_detail(),
            Interaction::SearchRequest => vec![self.promotion(Statement::SreqPromo)],
            Interaction::SearchResults => self.search_results(),
            Interaction::ShoppingCart => self.shopping_cart(now),
            Interaction::CustomerRegistration => self.customer_registration(),
            Interaction::BuyRequest => self.buy_request(now),
            Interaction::BuyConfirm => self.buy_confirm(now),
            Interaction::OrderInquiry => Vec::new(),
            Interaction::OrderDisplay => self.order_display(),
            Interaction::AdminRequest => self.admin_request(),
            Interaction::AdminConfirm => self.admin_confirm(now),
        }
    }

    fn home(&mut self) -> Vec<Transaction> {
        let mut plan = Vec::new();
        if let (Some(customer), true) = (self.session.customer, self.session.is_new) {
            plan.push(Transaction::single(Statement::HomeGreetName, vec![customer.into()]));
        }
        plan.push(self.promotion(Statement::HomePromo));
        plan
    }

    /// Five items that go with a random one.
    fn promotion(&mut self, statement: Statement) -> Transaction {
        let item = self.draw_item();
        Transaction::learning(statement, vec![item.into()], Learn::Items)
    }

    fn list(&mut self, promotion: Statement, list: Statement) -> Vec<Transaction> {
        let subject = choose(&mut self.random, &rules().domains.subjects).as_str();
        vec![self.promotion(promotion), Transaction::learning(list, vec![subject.into()], Learn::Items)]
    }

    /// One of the items on the page before; the same once more if that was a product's page.
    fn product_detail(&mut self) -> Vec<Transaction> {
        let random = &mut self.random;
        let item = match (self.session.shown.as_slice(), self.session.item) {
            ([], Some(item)) => item,
            ([], None) => self.draw_item(),
            (shown, _) => *choose(random, shown),
        };
        self.session.item = Some(item);
        vec![Transaction::single(Statement::ProdDetail, vec![item.into()])]
    }

    fn search_results(&mut self) -> Vec<Transaction> {
        let scale = self.shop.scale;
        let promotion = self.promotion(Statement::SresPromo);
        let random = &mut self.random;
        let spread = rules().client.nurand_search(scale.items());
        let mut beginning =
            |last: i64| -> Value { format!("{}%", spell_padded(nurand(random, spread, 0, last))).into() };
        let (by_author, by_title) =
            (beginning(scale.author_search_max()), beginning(scale.title_search_max()));
        let subject = choose(random, &rules().domains.subjects).as_str();
        let (statement, wanted) = match uniform(random, 0, 2) {
            0 => (Statement::SresAuthor, by_author),
            1 => (Statement::SresTitle, by_title),
            _ => (Statement::SresSubject, subject.into()),
        };
        vec![promotion, Transaction::learning(statement, vec![wanted], Learn::Items)]
    }

    /// Coming from a product adds it, coming from the cart itself refreshes it.
    fn shopping_cart(&mut self, now: Timestamp) -> Vec<Transaction> {
        let mut plan = Vec::new();
        let cart = match self.session.cart {
            Some(cart) => cart,
            None => {
                let cart = self.ids.take(|ids| &mut ids.cart);
                self.session.cart = Some(cart);
                plan.push(Transaction::single(Statement::ShopCreate, vec![cart.into(), now.into()]));
                cart
            }
        };
        let change = match (self.came_from, self.session.item) {
            (Some(Interaction::ProductDetail), Some(item)) => CartChange::Add(item),
            (Some(Interaction::ShoppingCart), _) => CartChange::Refresh(self.draw_quantities()),
            _ => CartChange::Nothing,
        };
        let item = self.draw_item();
        plan.push(Transaction::Cart(CartUpdate::new(cart, now, change, item)));
        plan.push(self.promotion(Statement::ShopPromo));
        plan
    }

    /// Any quantity for a single line; for several, at least one of them gets a quantity other than its present one.
    fn draw_quantities(&mut self) -> Vec<(i64, i64)> {
        let client = &rules().client;
        let random = &mut self.random;
        let lines = &self.session.lines;
        if let [line] = lines.as_slice() {
            let [low, high] = client.cart_quantity_single;
            return vec![(line.item, uniform(random, low, high))];
        }
        let [low, high] = client.cart_quantity_several;
        let must_change = uniform(random, 0, lines.len() as i64 - 1) as usize;
        let mut changes = Vec::new();
        for (place, line) in lines.iter().enumerate() {
            if place == must_change || chance(random, 0.5) {
                let quantity = match uniform(random, low, high - 1) {
                    // One of the others: the present quantity is left out of the range.
                    drawn if (low..=high).contains(&line.quantity) && drawn >= line.quantity => drawn + 1,
                    drawn => drawn,
                };
                changes.push((line.item, quantity));
            }
        }
        changes
    }

    fn customer_registration(&mut self) -> Vec<Transaction> {
        let known = self.session.customer.into_iter();
        known.map(|customer| Transaction::single(Statement::CregUserName, vec![customer.into()])).collect()
    }

    fn buy_request(&mut self, now: Timestamp) -> Vec<Transaction> {
        let mut plan = match self.session.customer {
            Some(customer) => {
                let expires = two_hours_after(now);
                vec![
                    Transaction::single(Statement::BuyrLookup, vec![spell(customer).into()]),
                    Transaction::single(
                        Statement::BuyrRefresh,
                        vec![customer.into(), now.into(), expires.into()],
                    ),
                ]
            }
            None => vec![Transaction::Registration(Box::new(self.draw_registration(now)))],
        };
        let cart = self.session.cart.into_iter();
        plan.extend(cart.map(|cart| Transaction::single(Statement::BuyrCart, vec![cart.into()])));
        plan
    }

    fn draw_registration(&mut self, now: Timestamp) -> Registration {
        let address = self.draw_address();
        let random = &mut self.random;
        let phone_length = uniform(random, 9, 16) as usize;
        let (first, last) = (Date::from_calendar(1880, 1, 1), Date::from_calendar(2000, 12, 31));
        Registration {
            customer: self.ids.take(|ids| &mut ids.customer),
            address,
            first_name: text(random, 8, 15),
            last_name: text(random, 8, 15),
            phone: digits(random, phone_length),
            discount_percent: uniform(random, 0, rules().client.discount_max_percent),
            birthdate: Date { days: uniform(random, first.days, last.days) },
            data: text(random, 100, 500),
            now,
            stage: AddressStage::default(),
            country: 0,
        }
    }

    fn draw_address(&mut self) -> Address {
        let random = &mut self.random;
        let lengths = [(15, 40), (15, 40), (4, 30), (2, 20), (5, 10)];
        Address {
            id: self.ids.take(|ids| &mut ids.address),
            country: Population::country_name(uniform(random, 0, 91)),
            fields: lengths.map(|(min, max)| text(random, min, max)),
        }
    }

    fn buy_confirm(&mut self, now: Timestamp) -> Vec<Transaction> {
        // BUYC follows BUYR only, which follows CREG and SHOP: there is a customer and a cart.
        let (Some(customer), Some(cart)) = (self.session.customer, self.session.cart) else {
            return Vec::new();
        };
        let client = &rules().client;
        let is_elsewhere = chance(&mut self.random, client.new_address_probability);
        let new_address = is_elsewhere.then(|| self.draw_address());
        let domains = &rules().domains;
        let random = &mut self.random;
        let purchase = Purchase {
            order: self.ids.take(|ids| &mut ids.order),
            customer,
            cart,
            now,
            new_address,
            ship_type: choose(random, &domains.ship_types).as_str(),
            ship_days: uniform(random, 1, 7),
            card: Card {
                card_type: choose(random, &domains.card_types).as_str(),
                number: digits(random, 16),
                name: text(random, 14, 30),
                expires: now.date().plus_days(uniform(random, 10, 730)),
                authorisation: text(random, 15, 15),
            },
            random: random::fork(random),
            progress: PurchaseProgress::default(),
        };
        vec![Transaction::Purchase(Box::new(purchase))]
    }

    /// A customer whom the session does not know signs in as somebody.
    fn order_display(&mut self) -> Vec<Transaction> {
        let customer = match self.session.customer {
            Some(customer) => customer,
            None => self.draw_customer(),
        };
        let user_name = spell(customer);
        let password = Learn::Password(user_name.to_lowercase());
        vec![
            Transaction::learning(Statement::OrddPassword, vec![user_name.as_str().into()], password),
            Transaction::Display(Display::new(user_name)),
        ]
    }

    fn admin_request(&mut self) -> Vec<Transaction> {
        let item = self.admin_item();
        vec![Transaction::single(Statement::AdmrItem, vec![item.into()])]
    }

    fn admin_confirm(&mut self, now: Timestamp) -> Vec<Transaction> {
        let item = self.admin_item();
        let random = &mut self.random;
        let update = AdminUpdate {
            item,
            items: self.shop.scale.items(),
            srp_cents: 0,
            discount_percent: uniform(random, 0, 50),
            version: uniform(random, 1, 999_999),
            today: now.date(),
            stage: 0,
        };
        vec![
            Transaction::learning(Statement::AdmcItem, vec![item.into()], Learn::Price),
            Transaction::Admin(update),
        ]
    }

    /// The product looked at before: administration starts from a product's page.
    fn admin_item(&mut self) -> i64 {
        let item = match self.session.item {
            Some(item) => item,
            None => self.draw_item(),
        };
        self.session.item = Some(item);
        item
    }
}

/// i_srp in the result of `i.*`.
fn price(rows: &Rows) -> Option<i64> {
    let item = &super::catalogue().tables[super::Table::Item as usize];
    let column = item.columns.iter().position(|column| column.name == "i_srp")?;
    rows.first(column)?.as_cents()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalogue::StatementId;
    use crate::tpcw::{MixName, Shelf, catalogue};

    /// With few items, so that customers meet one again.
    fn shop(mix: MixName) -> Shop {
        Shop { mix: Mix::of(mix), scale: Scale::new(100, 1).unwrap() }
    }

    fn shelf() -> Shelf {
        let opened = Timestamp::from(Date::from_calendar(2026, 1, 1));
        Shelf::new(Population::new(shop(MixName::Shopping).scale, 1, opened))
    }

    fn browser(mix: MixName, seed: u64) -> Browser {
        let shop = shop(mix);
        Browser::new(shop, seed, 0, 1, Highest::loaded(shop.scale))
    }

    /// Lets a browser walk for so many interactions over a shelf, with `see` told every action.
    fn walk(
        browser: &mut Browser,
        shelf: &mut Shelf,
        interactions: usize,
        mut see: impl FnMut(Timestamp, &Action),
    ) {
        let mut now = Timestamp::from(Date::from_calendar(2026, 2, 1));
        let mut reply = Reply::Done;
        let mut seen = 0;
        loop {
            let action = browser.next(now, reply);
            see(now, &action);
            reply = match action {
                Action::Think { pause, .. } => {
                    seen += 1;
                    if seen > interactions {
                        return;
                    }
                    now = now.plus(pause);
                    Reply::Done
                }
                Action::Execute(statement, params) => Reply::Rows(shelf.answer(statement, &params)),
                _ => Reply::Done,
            };
        }
    }

    #[test]
    fn a_browser_keeps_the_mix_the_think_time_and_the_brackets() {
        let mut used: BTreeSet<StatementId> = BTreeSet::new();
        for mix in MixName::ALL {
            let mut counts = [0_u32; 14];
            let (mut thought, mut is_open) = (Duration::ZERO, false);
            walk(&mut browser(mix, 1), &mut shelf(), 60_000, |_, action| match action {
                Action::Think { pause, next } => {
                    assert!(!is_open);
                    thought += *pause;
                    counts[usize::from(next.0)] += 1;
                }
                Action::Begin(_) => is_open = true,
                Action::Commit => is_open = false,
                Action::Rollback => panic!("the shelf has all that a page asks for"),
                Action::Execute(id, params) => {
                    let statement = catalogue().statement(*id);
                    assert_eq!(statement.parameter_count(), params.len(), "{}", statement.id);
                    assert_eq!(catalogue().transaction(statement.transaction).kind.is_bracketed(), is_open);
                    used.insert(*id);
                }
            });
            for (share, count) in Mix::of(mix).stationary().iter().zip(counts) {
                let measured = f64::from(count) / 60_000.0;
                // Sessions end at HOME and start there, so they do not bend the shares.
                assert!((share - measured).abs() < 0.01, "{mix}: {share} {measured}");
            }
            let mean = thought.as_secs_f64() / 60_000.0;
            assert!((mean - 7.0).abs() < 0.1, "{mean}");
        }
        let unused = Statement::ALL.iter().find(|statement| !used.contains(&(**statement).into()));
        assert_eq!(unused, None);
    }

    #[test]
    fn a_purchase_is_usual_unless_it_writes_an_address() {
        let mut browser = browser(MixName::Ordering, 2);
        let mut shelf = shelf();
        let (mut reply, mut said, mut wrote) = (Reply::Done, None, false);
        let mut purchases = [0, 0];
        while purchases[0] < 200 {
            let action = browser.next(Timestamp::default(), reply);
            let purchase = catalogue().transaction_id("buyc.order").unwrap();
            match &action {
                Action::Begin(transaction) if *transaction == purchase => {
                    (said, wrote) = (Some(browser.is_usual()), false);
                }
                Action::Begin(_) => assert!(!browser.is_usual()),
                Action::Execute(statement, _) => wrote |= *statement == Statement::BuycAddress.into(),
                Action::Commit => {
                    if let Some(usual) = said.take() {
                        assert_eq!(usual, !wrote);
                        purchases[usize::from(wrote)] += 1;
                    }
                }
                _ => {}
            }
            reply = match action {
                Action::Execute(statement, params) => Reply::Rows(shelf.answer(statement, &params)),
                _ => Reply::Done,
            };
        }
        assert!(purchases[1] > 0);
    }

    #[test]
    fn the_same_seed_walks_the_same_way() {
        let course = |seed| {
            let mut actions = Vec::new();
            walk(&mut browser(MixName::Ordering, seed), &mut shelf(), 2_000, |_, action| {
                actions.push(action.clone())
            });
            actions
        };
        assert_eq!(course(5), course(5));
        assert_ne!(course(5), course(6));
    }

    #[test]
    fn a_transaction_that_failed_runs_again_with_the_same_choices() {
        let mut browser = browser(MixName::Ordering, 3);
        let mut shelf = shelf();
        let now = Timestamp::from(Date::from_calendar(2026, 2, 1));
        let mut reply = Reply::Done;
        let mut course: Vec<Action> = Vec::new();
        let mut repeated = 0;
        for _ in 0..20_000 {
            let action = browser.next(now, reply);
            reply = match &action {
                Action::Begin(_) => {
                    course.clear();
                    Reply::Done
                }
                Action::Execute(statement, params) => Reply::Rows(shelf.answer(*statement, params)),
                Action::Commit => {
                    // Statements do not depend on what the first attempt left on the shelf, except in the cart's count.
                    let first = std::mem::take(&mut course);
                    let mut again = browser.clone();
                    let restarted = again.next(now, Reply::Failed(Failure::Retry));
                    assert!(matches!(restarted, Action::Begin(_)));
                    assert_eq!(again.next(now, Reply::Done), first[0]);
                    repeated += 1;
                    Reply::Done
                }
                _ => Reply::Done,
            };
            if !matches!(action, Action::Begin(_) | Action::Think { .. }) {
                course.push(action);
            }
        }
        assert!(repeated > 500);
    }

    #[test]
    fn a_customer_who_gives_up_comes_back_as_another() {
        let mut browser = browser(MixName::Ordering, 4);
        let mut shelf = shelf();
        let now = Timestamp::from(Date::from_calendar(2026, 2, 1));
        let mut reply = Reply::Done;
        loop {
            match browser.next(now, reply) {
                Action::Execute(statement, params) => reply = Reply::Rows(shelf.answer(statement, &params)),
                Action::Commit if browser.interaction() == Interaction::ShoppingCart => break,
                _ => reply = Reply::Done,
            }
        }
        let left = browser.next(now, Reply::Failed(Failure::GiveUp));
        assert!(matches!(left, Action::Think { next, .. } if next == Interaction::Home.into()));
        browser.next(now, Reply::Done);
        assert_eq!(browser.session.cart, None);
        assert!(browser.session.left > Duration::ZERO);
    }

    #[test]
    fn browsers_never_share_an_id_not_even_after_a_restart() {
        let mut seen = BTreeSet::new();
        let mut highest = Highest { order: 100, ..Highest::default() };
        for _restart in 0..3 {
            let mut browsers: Vec<Ids> = (0..7).map(|number| Ids::new(highest, number, 7)).collect();
            for (number, ids) in browsers.iter_mut().enumerate() {
                for _ in 0..=number * 3 {
                    let id = ids.take(|ids| &mut ids.order);
                    assert!(id > 100 && seen.insert(id));
                }
            }
            highest.order = *seen.last().unwrap();
        }
    }

    #[test]
    fn sessions_end_at_home_with_another_customer() {
        let mut customers = BTreeSet::new();
        let (mut known, mut sessions) = (0, 0);
        let mut browser = browser(MixName::Shopping, 8);
        let mut shelf = shelf();
        let mut reply = Reply::Done;
        while sessions < 400 {
            let over = browser.state == State::AwaitingPause
                && browser.interaction() == Interaction::Home
                && browser.session.left.is_zero();
            let action = browser.next(Timestamp::default(), reply);
            if over {
                assert!(browser.session.left <= rules().client.session_max());
                sessions += 1;
                known += u32::from(browser.session.customer.is_some());
                customers.extend(browser.session.customer);
            }
            reply = match action {
                Action::Execute(statement, params) => Reply::Rows(shelf.answer(statement, &params)),
                _ => Reply::Done,
            };
        }
        assert!((285..355).contains(&known), "{known} of 400 customers are known, which should be 80 %");
        assert!(
            customers.len() > 150 && customers.iter().all(|id| (1..=2_880).contains(id)),
            "{}",
            customers.len()
        );
    }
}
