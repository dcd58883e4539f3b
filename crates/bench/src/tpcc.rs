//! TPC-C against any DSN.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::{site, tpcc};
//! let target = "host=127.0.0.1 port=6432 user=postgres".into();
//! let options = tpcc::Options { target, ..tpcc::Options::default() };
//! site::load(&options).await?;
//! println!("{}", site::run(&options).await?);
//! println!("{}", site::check(&options).await?);
//! # Ok(()) }
//! ```

use std::time::Duration;

use onecopy_workload::catalogue::Interaction;
use onecopy_workload::site::Check;
use onecopy_workload::tpcc::{self, HomeWarehouse, Kind, Population, Scale, Terminal, rules};
use onecopy_workload::{Catalogue, InteractionId, Timestamp};

use crate::site::{self, Report, Website};
use crate::table::thousands;
use crate::{Error, Result};

/// What to load and what to run.
pub type Options = site::Options<Supplier>;

/// The wholesale supplier.
#[derive(Clone, Copy, Debug)]
pub struct Supplier {
    /// Warehouses, each with ten districts.
    pub warehouses: i64,
    /// Customers of each district. The benchmark has 3,000; with fewer, orders, items and stocks are fewer in proportion.
    pub customers: i64,
    /// Which warehouse a terminal works for.
    pub home_warehouse: HomeWarehouse,
}

impl Default for Supplier {
    /// One warehouse of the benchmark's size.
    fn default() -> Self {
        Supplier {
            warehouses: 1,
            customers: rules().population.customers_per_district,
            home_warehouse: HomeWarehouse::Terminal,
        }
    }
}

impl Supplier {
    /// What new orders that were entered each minute are called in [`Report::measures`].
    pub const NEW_ORDERS: &'static str = "new orders a minute";

    /// As many terminals as the benchmark wants of so many warehouses.
    #[must_use]
    pub fn terminals(&self) -> u32 {
        let terminals = rules().client.terminals_per_warehouse.saturating_mul(self.warehouses.max(1));
        u32::try_from(terminals).unwrap_or(u32::MAX)
    }
}

impl Website for Supplier {
    type Population = Population;
    type User = Terminal;

    const NAME: &'static str = "wholesale supplier";
    const TITLE: &'static str = "TPC-C";
    const USERS: &'static str = "terminals";
    const COMMAND: &'static str = "tpcc";
    const LOAD_OPTIONS: &'static str = " --site tpcc";
    const MARK_TABLE: &'static str = "tpcc_supplier";
    const SCALE: [&'static str; 2] = ["warehouses", "customers"];
    const IDS: &'static [&'static [(&'static str, &'static str)]] = &[&[("h_id", "history")]];

    fn catalogue() -> &'static Catalogue {
        tpcc::catalogue()
    }

    fn scale(&self) -> [i64; 2] {
        [self.warehouses, self.customers]
    }

    fn of_scale(&self, [warehouses, customers]: [i64; 2]) -> Self {
        Supplier { warehouses, customers, ..*self }
    }

    /// The ten warehouses of the paper on Gargamel.
    fn of_paper_size() -> Self {
        Supplier { warehouses: 10, ..Supplier::default() }
    }

    fn population(&self, seed: u64, loaded_at: Timestamp) -> Result<Population> {
        let scale = Scale::new(self.warehouses, self.customers);
        let scale = scale.map_err(|error| Error::Option(error.to_string()))?;
        Ok(Population::new(scale, seed, loaded_at))
    }

    fn size(&self) -> String {
        let (warehouses, customers) = (thousands(self.warehouses as f64), thousands(self.customers as f64));
        format!("{warehouses} warehouses of {customers} customers a district")
    }

    fn mix(&self) -> &'static str {
        match self.home_warehouse {
            HomeWarehouse::Terminal => "standard",
            HomeWarehouse::Uniform => "uniform",
        }
    }

    fn metric(&self) -> &'static str {
        "transactions/s"
    }

    fn response_limit(page: InteractionId) -> Option<Duration> {
        Some(rules().response_limit(Kind::from_id(page)?))
    }

    fn page_title(interaction: &Interaction) -> String {
        interaction.name.clone()
    }

    /// New orders that were entered; those that were taken back, as the benchmark wants it of a hundredth, are not among them.
    fn measures(report: &Report) -> Vec<(&'static str, f64)> {
        let new_orders = report.pages.get(Kind::NewOrder as usize).map_or(0, |page| page.completed);
        let entered = new_orders.saturating_sub(report.taken_back);
        vec![(Self::NEW_ORDERS, entered as f64 * 60.0 / report.seconds.max(1e-9))]
    }

    fn remark(&self) -> Option<String> {
        let full = Supplier::default().customers;
        (self.customers != full).then(|| {
            format!(
                "not of the specification's size: {} customers a district instead of {}, and orders, items and stocks in \
                 proportion; not to be compared with results of that size",
                thousands(self.customers as f64),
                thousands(full as f64)
            )
        })
    }

    fn user(&self, population: &Population, seed: u64, number: u32, users: u32, highest: &[i64]) -> Terminal {
        let history = highest.first().copied().unwrap_or(0);
        Terminal::new(population, self.home_warehouse, seed, number, users, history)
    }

    fn checks(population: &Population) -> Vec<Check<Population>> {
        tpcc::checks(population)
    }
}
