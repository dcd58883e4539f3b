//! TPC-W against any DSN.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::tpcw::{self, Options};
//! let options = Options { target: "host=127.0.0.1 port=6432 user=postgres".into(), ..Options::default() };
//! tpcw::load(&options).await?;
//! println!("{}", tpcw::run(&options).await?);
//! println!("{}", tpcw::check(&options).await?);
//! # Ok(()) }
//! ```

mod calibrate;

use std::time::Duration;

use onecopy_workload::catalogue::Interaction;
use onecopy_workload::site::Check;
use onecopy_workload::tpcw::{self, Browser, Highest, Mix, MixName, Population, Scale, Shop, rules};
use onecopy_workload::{Catalogue, InteractionId, Timestamp};

use crate::site::{self, Website, Witness};
pub use crate::site::{Protocol, check, load, run};
use crate::table::thousands;
use crate::{Error, Result};
pub use calibrate::{Calibrate, Calibrated, Calibration, MET_MIN, calibrate, log_write_ms};
pub(crate) use calibrate::{Meter, Walk, calibrate_by};

/// What to load and what to run.
pub type Options = site::Options<Bookstore>;

/// The bookstore.
#[derive(Clone, Copy, Debug)]
pub struct Bookstore {
    /// Books in the store: 1,000, 10,000, ...
    pub items: i64,
    /// Emulated browsers that the customers are counted for: 2,880 customers each.
    pub browsers: i64,
    /// How customers walk.
    pub mix: MixName,
}

impl Default for Bookstore {
    /// The smallest one with the shopping mix.
    fn default() -> Self {
        Bookstore { items: 1_000, browsers: 1, mix: MixName::Shopping }
    }
}

impl Bookstore {
    /// The orders, each with the number that its customer gave it.
    pub(crate) const WITNESS: Witness = Witness {
        statement: "buyc.order.insert",
        params: [0, 1],
        rows: "SELECT o_id::bigint, o_c_id::bigint FROM orders",
    };
}

impl Website for Bookstore {
    type Population = Population;
    type User = Browser;

    const NAME: &'static str = "bookstore";
    const TITLE: &'static str = "TPC-W";
    const USERS: &'static str = "customers";
    const COMMAND: &'static str = "tpcw";
    const LOAD_OPTIONS: &'static str = "";
    const MARK_TABLE: &'static str = "tpcw_bookstore";
    const SCALE: [&'static str; 2] = ["items", "browsers"];
    const IDS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("c_id", "customer")],
        &[("addr_id", "address")],
        &[("o_id", "orders")],
        &[("sc_id", "shopping_cart")],
    ];

    fn catalogue() -> &'static Catalogue {
        tpcw::catalogue()
    }

    fn scale(&self) -> [i64; 2] {
        [self.items, self.browsers]
    }

    fn of_scale(&self, [items, browsers]: [i64; 2]) -> Self {
        Bookstore { items, browsers, ..*self }
    }

    fn of_paper_size() -> Self {
        Bookstore { items: 100_000, browsers: 1_000, ..Bookstore::default() }
    }

    fn population(&self, seed: u64, loaded_at: Timestamp) -> Result<Population> {
        let scale =
            Scale::new(self.items, self.browsers).map_err(|error| Error::Option(error.to_string()))?;
        Ok(Population::new(scale, seed, loaded_at))
    }

    fn size(&self) -> String {
        let customers = thousands(2_880.0 * self.browsers as f64);
        format!("{} items, {customers} customers", thousands(self.items as f64))
    }

    fn mix(&self) -> &'static str {
        self.mix.as_str()
    }

    fn metric(&self) -> &'static str {
        self.mix.metric()
    }

    /// With the benchmark's four letters.
    fn page_title(interaction: &Interaction) -> String {
        format!("{} {}", interaction.id, interaction.name)
    }

    fn response_limit(page: InteractionId) -> Option<Duration> {
        let interaction = tpcw::Interaction::ALL.get(usize::from(page.0))?;
        Some(rules().response_limit(*interaction))
    }

    fn user(&self, population: &Population, seed: u64, number: u32, users: u32, highest: &[i64]) -> Browser {
        let shop = Shop { mix: Mix::of(self.mix), scale: population.scale() };
        let &[customer, address, order, cart] = highest else { unreachable!("as many as there are IDS") };
        Browser::new(shop, seed, number, users, Highest { customer, address, order, cart })
    }

    fn checks(population: &Population) -> Vec<Check<Population>> {
        tpcw::checks(population)
    }
}
