//! The figures that the client model and the population follow, read from `data/tpcw.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use super::DATA;
use super::mix::Interaction;

/// The figures of the benchmark.
#[derive(Clone, Debug, Deserialize)]
pub struct Rules {
    /// How customers behave.
    pub client: ClientRules,
    /// Sets of values.
    pub domains: Domains,
    #[serde(rename = "response_limit_s")]
    response_limits_s: BTreeMap<String, f64>,
}

/// How customers behave, and how orders are reckoned.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRules {
    /// Share of sessions whose customer is registered already.
    pub known_customer_probability: f64,
    think_time_mean_s: f64,
    think_time_max_s: f64,
    session_mean_s: f64,
    session_max_s: f64,
    /// Range of the new quantity when a cart of one line is refreshed.
    pub cart_quantity_single: [i64; 2],
    /// Range of new quantities when a cart of several lines is refreshed.
    pub cart_quantity_several: [i64; 2],
    /// Share of orders sent to an address that is not the customer's.
    pub new_address_probability: f64,
    /// Highest discount of a customer, in percent.
    pub discount_max_percent: i64,
    /// Tax in hundredths of a percent.
    pub tax_basis_points: i64,
    /// Shipping of an order, in cents.
    pub shipping_base_cents: i64,
    /// Shipping of each copy, in cents.
    pub shipping_copy_cents: i64,
    /// A sale that would leave fewer copies than this adds a delivery.
    pub stock_min: i64,
    /// Copies in a delivery.
    pub stock_delivery: i64,
    nurand_customer: Vec<Spread>,
    nurand_search: Vec<Spread>,
    /// Numbers that author search strings spell: 0 to items / this.
    pub search_author_divisor: i64,
    /// Numbers that title search strings spell: 0 to items / this.
    pub search_title_divisor: i64,
}

/// The constant A of NURand from a size on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spread {
    from: i64,
    a: i64,
}

/// Sets of values that columns take.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domains {
    /// Subjects of books.
    pub subjects: Vec<String>,
    /// Kinds of binding.
    pub backings: Vec<String>,
    /// Credit cards.
    pub card_types: Vec<String>,
    /// Ways of sending.
    pub ship_types: Vec<String>,
    /// States of an order.
    pub order_status: Vec<String>,
    /// One for each decimal digit.
    pub syllables: Vec<String>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| toml::from_str(DATA).expect("data/tpcw.toml is in order"));

/// The figures of the benchmark.
pub fn rules() -> &'static Rules {
    &RULES
}

impl Rules {
    /// Within this time 90 % of the interactions of a kind should be answered.
    pub fn response_limit(&self, interaction: Interaction) -> Duration {
        Duration::from_secs_f64(
            self.response_limits_s.get(interaction.id()).copied().unwrap_or(f64::INFINITY).min(1e6),
        )
    }
}

impl ClientRules {
    /// Mean of the think time.
    pub fn think_time_mean(&self) -> Duration {
        Duration::from_secs_f64(self.think_time_mean_s)
    }

    /// Longest think time.
    pub fn think_time_max(&self) -> Duration {
        Duration::from_secs_f64(self.think_time_max_s)
    }

    /// Mean of the shortest length of a session.
    pub fn session_mean(&self) -> Duration {
        Duration::from_secs_f64(self.session_mean_s)
    }

    /// Limit of the shortest length of a session.
    pub fn session_max(&self) -> Duration {
        Duration::from_secs_f64(self.session_max_s)
    }

    /// The constant A of NURand for drawing one of so many customers.
    pub fn nurand_customer(&self, customers: i64) -> i64 {
        spread(&self.nurand_customer, customers)
    }

    /// The constant A of NURand for drawing a search string among so many items.
    pub fn nurand_search(&self, items: i64) -> i64 {
        spread(&self.nurand_search, items)
    }

    /// Tax on a sum, rounded half up.
    pub fn tax_cents(&self, sub_total_cents: i64) -> i64 {
        (sub_total_cents * self.tax_basis_points + 5_000) / 10_000
    }

    /// What an order costs to send.
    pub fn shipping_cents(&self, copies: i64) -> i64 {
        self.shipping_base_cents + self.shipping_copy_cents * copies
    }

    /// Copies on the shelf after a sale.
    pub fn stock_after(&self, stock: i64, sold: i64) -> i64 {
        let left = stock - sold;
        if left < self.stock_min { left + self.stock_delivery } else { left }
    }
}

fn spread(entries: &[Spread], size: i64) -> i64 {
    entries.iter().rev().find(|entry| entry.from <= size).or(entries.first()).map_or(1, |entry| entry.a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let rules = rules();
        assert_eq!(rules.domains.subjects.len(), 24);
        assert_eq!(rules.domains.syllables.len(), 10);
        assert_eq!(rules.client.nurand_customer(2_880), 1_023);
        assert_eq!(rules.client.nurand_customer(144_000), 16_383);
        assert_eq!(rules.client.nurand_customer(2_800_000), 1_048_575);
        assert_eq!(rules.client.nurand_search(1_000), 63);
        assert_eq!(rules.client.nurand_search(100_000), 4_095);
        assert_eq!(rules.response_limit(Interaction::AdminConfirm), Duration::from_secs(20));
        assert!(Interaction::ALL.iter().all(|each| rules.response_limit(*each) < Duration::from_secs(60)));
    }

    #[test]
    fn orders_are_reckoned_in_cents() {
        let client = &rules().client;
        assert_eq!(client.tax_cents(10_000), 825);
        assert_eq!(client.tax_cents(1), 0);
        assert_eq!(client.tax_cents(7), 1);
        assert_eq!(client.shipping_cents(4), 700);
        assert_eq!(client.stock_after(15, 5), 10);
        assert_eq!(client.stock_after(15, 6), 30);
    }
}
