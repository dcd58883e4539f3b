//! Draws what clients ask for, by the benchmark's rules.

use super::constants::Constants;
use super::parameters::{
    Customer, Delivery, Kind, NewOrder, OrderLine, OrderStatus, Parameters, Payment, StockLevel,
};
use super::population::{DISTRICTS, Population, Scale, last_name};
use super::rules::rules;
use crate::random::{self, Random, chance, uniform};
use crate::value::Timestamp;

/// Which warehouse a terminal works for, its home warehouse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HomeWarehouse {
    /// Each terminal has one, with a district whose stock it looks at, as the benchmark wants it.
    #[default]
    Terminal,
    /// Any, drawn anew for each transaction.
    Uniform,
}

impl HomeWarehouse {
    /// Both.
    pub const ALL: [HomeWarehouse; 2] = [HomeWarehouse::Terminal, HomeWarehouse::Uniform];

    /// The name: `terminal` or `uniform`.
    pub fn as_str(self) -> &'static str {
        match self {
            HomeWarehouse::Terminal => "terminal",
            HomeWarehouse::Uniform => "uniform",
        }
    }
}

impl std::fmt::Display for HomeWarehouse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// No such rule.
#[derive(Debug, thiserror::Error)]
#[error("there is no rule {0:?} for home warehouses: choose terminal or uniform")]
pub struct UnknownHomeWarehouse(String);

impl std::str::FromStr for HomeWarehouse {
    type Err = UnknownHomeWarehouse;

    fn from_str(name: &str) -> Result<Self, UnknownHomeWarehouse> {
        let found = HomeWarehouse::ALL.into_iter().find(|home| home.as_str() == name);
        found.ok_or_else(|| UnknownHomeWarehouse(name.to_owned()))
    }
}

/// Draws the parameters of one terminal's transactions. What it draws follows from its seed and number, and does not depend on what
/// becomes of the transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    scale: Scale,
    constants: Constants,
    /// Warehouse and district, if they are always the same.
    home: Option<(i64, i64)>,
    random: Random,
    /// The keys of the history above the highest one are dealt to the terminals in turn, so that no two get the same.
    next_history: i64,
    terminals: i64,
}

impl Generator {
    /// That of terminal `number` of `terminals`, counted from 0. `highest_history` is the highest key of the history before the first
    /// of them starts; of a freshly loaded supplier that is [`Population::highest_history`].
    pub fn new(
        population: &Population,
        home_warehouse: HomeWarehouse,
        seed: u64,
        number: u32,
        terminals: u32,
        highest_history: i64,
    ) -> Self {
        let (scale, number) = (population.scale(), i64::from(number));
        let own = (number % scale.warehouses() + 1, number / scale.warehouses() % DISTRICTS + 1);
        Generator {
            scale,
            constants: population.constants(),
            home: (home_warehouse == HomeWarehouse::Terminal).then_some(own),
            random: random::stream(seed, number as u64),
            next_history: highest_history + 1 + number,
            terminals: i64::from(terminals.max(1)),
        }
    }

    /// A transaction by the mix.
    pub fn kind(&mut self) -> Kind {
        let mut drawn = uniform(&mut self.random, 1, 100);
        let by_share = |kind: &Kind| {
            drawn -= rules().share_percent(*kind);
            drawn <= 0
        };
        Kind::ALL.into_iter().find(by_share).unwrap_or(Kind::NewOrder)
    }

    /// The parameters of a transaction that begins at this time.
    pub fn draw(&mut self, kind: Kind, now: Timestamp) -> Parameters {
        let (w, own_district) = match self.home {
            Some(home) => home,
            None => (uniform(&mut self.random, 1, self.scale.warehouses()), self.district()),
        };
        match kind {
            Kind::NewOrder => Parameters::NewOrder(self.new_order(w, now)),
            Kind::Payment => Parameters::Payment(self.payment(w, now)),
            Kind::OrderStatus => {
                let (d, customer) = (self.district(), self.customer());
                Parameters::OrderStatus(OrderStatus { w, d, customer })
            }
            Kind::Delivery => {
                let carrier = self.within(rules().client.carrier);
                Parameters::Delivery(Delivery { w, carrier, now })
            }
            Kind::StockLevel => {
                let threshold = self.within(rules().client.stock_threshold);
                Parameters::StockLevel(StockLevel { w, d: own_district, threshold })
            }
        }
    }

    fn new_order(&mut self, w: i64, now: Timestamp) -> NewOrder {
        let client = &rules().client;
        let (d, c) = (self.district(), self.constants.customer(&mut self.random, self.scale));
        let count = self.within(client.order_lines);
        let mut lines: Vec<OrderLine> = (0..count).map(|_| self.line(w)).collect();
        let is_taken_back = chance(&mut self.random, client.rollback_probability);
        if let (true, Some(last)) = (is_taken_back, lines.last_mut()) {
            last.item = self.scale.items() + 1;
        }
        NewOrder { w, d, c, lines, is_taken_back, now }
    }

    fn line(&mut self, w: i64) -> OrderLine {
        let client = &rules().client;
        let is_remote = chance(&mut self.random, client.remote_line_probability);
        OrderLine {
            supply: if is_remote { self.other_warehouse(w) } else { w },
            item: self.constants.item(&mut self.random, self.scale),
            quantity: self.within(client.order_quantity),
        }
    }

    fn payment(&mut self, w: i64, now: Timestamp) -> Payment {
        let client = &rules().client;
        let d = self.district();
        let is_remote = chance(&mut self.random, client.remote_customer_probability);
        let (cw, cd) = if is_remote { (self.other_warehouse(w), self.district()) } else { (w, d) };
        let customer = self.customer();
        let amount_cents = self.within(client.payment_cents);
        let history = self.next_history;
        self.next_history += self.terminals;
        Payment { w, d, cw, cd, customer, amount_cents, history, now }
    }

    fn customer(&mut self) -> Customer {
        if chance(&mut self.random, rules().client.by_last_name_probability) {
            let name = self.constants.last_name(&mut self.random, self.scale);
            return Customer::LastName(last_name(name));
        }
        Customer::Number(self.constants.customer(&mut self.random, self.scale))
    }

    fn district(&mut self) -> i64 {
        uniform(&mut self.random, 1, DISTRICTS)
    }

    /// Another warehouse than this; the same if there is no other.
    fn other_warehouse(&mut self, w: i64) -> i64 {
        let warehouses = self.scale.warehouses();
        if warehouses == 1 {
            return w;
        }
        let other = uniform(&mut self.random, 1, warehouses - 1);
        if other < w { other } else { other + 1 }
    }

    fn within(&mut self, [least, most]: [i64; 2]) -> i64 {
        uniform(&mut self.random, least, most)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const WAREHOUSES: i64 = 4;

    fn population() -> Population {
        Population::new(Scale::new(WAREHOUSES, 300).unwrap(), 1, Timestamp::default())
    }

    fn generator(home_warehouse: HomeWarehouse, number: u32, terminals: u32) -> Generator {
        let population = population();
        Generator::new(&population, home_warehouse, 1, number, terminals, population.highest_history())
    }

    #[track_caller]
    fn about(share: f64, part: usize, all: usize) {
        let measured = part as f64 / all as f64;
        // Five standard deviations.
        let tolerance = 5.0 * (share * (1.0 - share) / all as f64).sqrt();
        assert!((measured - share).abs() < tolerance, "{part} of {all} instead of {share}");
    }

    #[test]
    fn kinds_keep_the_mix() {
        let mut generator = generator(HomeWarehouse::Terminal, 0, 1);
        let kinds: Vec<Kind> = (0..50_000).map(|_| generator.kind()).collect();
        for kind in Kind::ALL {
            let count = kinds.iter().filter(|drawn| **drawn == kind).count();
            about(rules().share_percent(kind) as f64 / 100.0, count, kinds.len());
        }
    }

    #[test]
    fn orders_keep_the_rules() {
        let mut generator = generator(HomeWarehouse::Uniform, 0, 1);
        let (mut lines, mut remote, mut taken_back) = (0, 0, 0);
        const ORDERS: usize = 20_000;
        for _ in 0..ORDERS {
            let Parameters::NewOrder(order) = generator.draw(Kind::NewOrder, Timestamp::default()) else {
                panic!("not what was asked for");
            };
            assert!((1..=WAREHOUSES).contains(&order.w) && (1..=10).contains(&order.d));
            assert!((1..=300).contains(&order.c) && (5..=15).contains(&order.lines.len()));
            lines += order.lines.len();
            remote += order.lines.iter().filter(|line| line.supply != order.w).count();
            taken_back += usize::from(order.is_taken_back);
            let (last, others) = order.lines.split_last().unwrap();
            assert_eq!(last.item > 10_000, order.is_taken_back);
            assert!(others.iter().all(|line| (1..=10_000).contains(&line.item)));
            assert!(order.lines.iter().all(|line| (1..=WAREHOUSES).contains(&line.supply)));
            assert!(order.lines.iter().all(|line| (1..=10).contains(&line.quantity)));
        }
        about(0.01, remote, lines);
        about(0.01, taken_back, ORDERS);
        assert!((lines as f64 / ORDERS as f64 - 10.0).abs() < 0.1);
    }

    #[test]
    fn payments_keep_the_rules() {
        let mut generator = generator(HomeWarehouse::Terminal, 6, 8);
        let (mut remote, mut by_name, mut keys) = (0, 0, BTreeSet::new());
        const PAYMENTS: usize = 20_000;
        for _ in 0..PAYMENTS {
            let Parameters::Payment(payment) = generator.draw(Kind::Payment, Timestamp::default()) else {
                panic!("not what was asked for");
            };
            assert_eq!(payment.w, 3);
            remote += usize::from(payment.cw != payment.w);
            by_name += usize::from(payment.customer.number().is_none());
            assert!(payment.cw != payment.w || payment.cd == payment.d);
            assert!((100..=500_000).contains(&payment.amount_cents));
            assert!(payment.history > 12_000 && (payment.history - 12_001) % 8 == 6);
            assert!(keys.insert(payment.history));
        }
        about(0.15, remote, PAYMENTS);
        about(0.6, by_name, PAYMENTS);
    }

    #[test]
    fn terminals_stay_at_home_and_share_the_districts() {
        let mut homes = BTreeSet::new();
        for number in 0..40 {
            let mut generator = generator(HomeWarehouse::Terminal, number, 40);
            for _ in 0..5 {
                let Parameters::StockLevel(level) = generator.draw(Kind::StockLevel, Timestamp::default())
                else {
                    panic!("not what was asked for");
                };
                assert!((10..=20).contains(&level.threshold));
                homes.insert((level.w, level.d));
            }
        }
        assert_eq!(homes.len(), 40);
        let mut anywhere = BTreeSet::new();
        let mut generator = generator(HomeWarehouse::Uniform, 0, 1);
        for _ in 0..1_000 {
            anywhere
                .insert(generator.draw(Kind::Delivery, Timestamp::default()).value("w").unwrap().to_string());
        }
        assert_eq!(anywhere.len(), 4);
    }

    #[test]
    fn one_warehouse_supplies_everything_itself() {
        let population = Population::new(Scale::new(1, 10).unwrap(), 1, Timestamp::default());
        let mut generator = Generator::new(&population, HomeWarehouse::Uniform, 1, 0, 1, 100);
        for _ in 0..2_000 {
            let order = generator.draw(Kind::NewOrder, Timestamp::default());
            assert!(order.lines().iter().all(|line| line.supply == 1));
            let payment = generator.draw(Kind::Payment, Timestamp::default());
            assert_eq!(payment.value("cw"), payment.value("w"));
        }
    }
}
