//! The figures that terminals and the population follow, read from `data/tpcc.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use super::DATA;
use super::parameters::Kind;

/// The figures of the benchmark.
#[derive(Clone, Debug, Deserialize)]
pub struct Rules {
    mix: BTreeMap<String, i64>,
    keying_time_s: BTreeMap<String, f64>,
    think_time_mean_s: BTreeMap<String, f64>,
    response_limit_s: BTreeMap<String, f64>,
    /// What terminals ask for.
    pub client: ClientRules,
    /// NURand, and how names are spelled.
    pub random: RandomRules,
    /// What the database starts with.
    pub population: PopulationRules,
}

/// What terminals ask for, and how orders are reckoned. Ranges include both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRules {
    think_time_max_factor: f64,
    /// Terminals of a warehouse.
    pub terminals_per_warehouse: i64,
    /// Range of the lines of an order.
    pub order_lines: [i64; 2],
    /// Range of the quantity of a line.
    pub order_quantity: [i64; 2],
    /// Share of lines that another warehouse supplies.
    pub remote_line_probability: f64,
    /// Share of orders whose last item is not there.
    pub rollback_probability: f64,
    /// Share of payments at a warehouse that is not the customer's.
    pub remote_customer_probability: f64,
    /// Share of customers who are looked for by last name.
    pub by_last_name_probability: f64,
    /// Range of payments, in cents.
    pub payment_cents: [i64; 2],
    /// Range of carriers.
    pub carrier: [i64; 2],
    /// Range of what counts as low stock.
    pub stock_threshold: [i64; 2],
    /// Orders that a stock level looks at.
    pub stock_orders: i64,
    /// A sale that would leave fewer pieces than this adds a delivery.
    pub stock_min: i64,
    /// Pieces in a delivery.
    pub stock_delivery: i64,
    /// Bytes of what is noted of a customer with bad credit, at most.
    pub customer_data_max: usize,
}

/// NURand, and how names are spelled.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomRules {
    /// The constant A for last names.
    pub a_last_name: i64,
    /// The constant A for customers' numbers.
    pub a_customer: i64,
    /// The constant A for items.
    pub a_item: i64,
    /// Range of the distance between the constants C for last names that are loaded and that are asked for.
    pub last_name_distance: [i64; 2],
    /// Distances in it that are left out.
    pub last_name_distance_not: Vec<i64>,
    /// Last names that there are.
    pub last_names: i64,
    /// One for each decimal digit.
    pub syllables: Vec<String>,
}

/// What the database starts with. Ranges include both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PopulationRules {
    /// Districts of a warehouse.
    pub districts_per_warehouse: i64,
    /// Customers of a district, and its orders.
    pub customers_per_district: i64,
    /// Items, and stocks of each warehouse.
    pub items: i64,
    /// Orders of a district that are not delivered yet.
    pub undelivered_orders: i64,
    /// Share of customers with bad credit.
    pub bad_credit_probability: f64,
    /// Share of items, and of stocks, of the original brand.
    pub original_probability: f64,
    /// What a customer may owe, in cents.
    pub credit_limit_cents: i64,
    /// What each customer has paid, in cents.
    pub paid_cents: i64,
    /// Highest tax, in hundredths of a percent.
    pub tax_max_basis_points: i64,
    /// Highest discount of a customer, in hundredths of a percent.
    pub discount_max_basis_points: i64,
    /// Range of prices, in cents.
    pub price_cents: [i64; 2],
    /// Range of pieces in stock.
    pub stock_quantity: [i64; 2],
    /// Highest number of an item's image.
    pub image_max: i64,
    /// Range of what a line costs that is not delivered yet, in cents.
    pub undelivered_amount_cents: [i64; 2],
}

static RULES: LazyLock<Rules> = LazyLock::new(|| toml::from_str(DATA).expect("data/tpcc.toml is in order"));

/// The figures of the benchmark.
pub fn rules() -> &'static Rules {
    &RULES
}

impl Rules {
    /// The share of a kind of transactions, in percent.
    pub fn share_percent(&self, kind: Kind) -> i64 {
        self.mix.get(kind.id()).copied().unwrap_or(0)
    }

    /// How long it takes to type what a transaction asks for.
    pub fn keying_time(&self, kind: Kind) -> Duration {
        seconds(&self.keying_time_s, kind)
    }

    /// Mean of the time that a result is looked at.
    pub fn think_time_mean(&self, kind: Kind) -> Duration {
        seconds(&self.think_time_mean_s, kind)
    }

    /// The longest time that a result is looked at.
    pub fn think_time_max(&self, kind: Kind) -> Duration {
        self.think_time_mean(kind).mul_f64(self.client.think_time_max_factor)
    }

    /// Within this time 90 % of the transactions of a kind should be answered.
    pub fn response_limit(&self, kind: Kind) -> Duration {
        seconds(&self.response_limit_s, kind)
    }
}

impl ClientRules {
    /// Pieces in stock after a sale.
    pub fn stock_after(&self, stock: i64, sold: i64) -> i64 {
        let left = stock.saturating_sub(sold);
        if left < self.stock_min { left + self.stock_delivery } else { left }
    }
}

/// Zero for what the data does not know, which a test rules out.
fn seconds(by_kind: &BTreeMap<String, f64>, kind: Kind) -> Duration {
    Duration::from_secs_f64(by_kind.get(kind.id()).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_for_every_kind_and_shares_add_up() {
        let rules = rules();
        assert_eq!(Kind::ALL.map(|kind| rules.share_percent(kind)), [45, 43, 4, 4, 4]);
        assert_eq!(Kind::ALL.map(|kind| rules.keying_time(kind).as_secs()), [18, 3, 2, 2, 2]);
        assert_eq!(Kind::ALL.map(|kind| rules.think_time_mean(kind).as_secs()), [12, 12, 10, 5, 5]);
        assert_eq!(rules.think_time_max(Kind::Payment), Duration::from_secs(120));
        assert_eq!(Kind::ALL.map(|kind| rules.response_limit(kind).as_secs()), [5, 5, 5, 80, 20]);
        assert_eq!(rules.random.syllables.len(), 10);
    }

    #[test]
    fn a_sale_leaves_ten_pieces_at_least() {
        let client = &rules().client;
        assert_eq!(client.stock_after(20, 10), 10);
        assert_eq!(client.stock_after(19, 10), 100);
        assert_eq!(client.stock_after(10, 1), 100);
    }
}
