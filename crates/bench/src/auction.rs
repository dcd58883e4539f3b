//! The auction site (RUBiS) against any DSN.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::{auction, site};
//! let target = "host=127.0.0.1 port=6432 user=postgres".into();
//! let options = auction::Options { target, ..auction::Options::default() };
//! site::load(&options).await?;
//! println!("{}", site::run(&options).await?);
//! println!("{}", site::check(&options).await?);
//! # Ok(()) }
//! ```

use onecopy_workload::auction::{self, Mix, Population, Scale};
use onecopy_workload::site::{Check, Visitor};
use onecopy_workload::{Catalogue, Timestamp};

use crate::site::{self, Website};
use crate::table::thousands;
use crate::{Error, Result};

/// What to load and what to run.
pub type Options = site::Options<Auction>;

/// The auction site.
#[derive(Clone, Copy, Debug)]
pub struct Auction {
    /// Items on sale at the start; as many were sold before.
    pub items: i64,
    /// Users at the start.
    pub users: i64,
    /// How visitors walk.
    pub mix: Mix,
}

impl Default for Auction {
    /// A small one, which is loaded in seconds.
    fn default() -> Self {
        Auction { items: 1_000, users: 10_000, mix: Mix::default() }
    }
}

impl Website for Auction {
    type Population = Population;
    type User = Visitor<auction::Auction>;

    const NAME: &'static str = "auction site";
    const TITLE: &'static str = "Auction site";
    const USERS: &'static str = "visitors";
    const COMMAND: &'static str = "auction";
    const LOAD_OPTIONS: &'static str = " --site auction";
    const MARK_TABLE: &'static str = "auction_site";
    const SCALE: [&'static str; 2] = ["items", "users"];
    const IDS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("id", "users")],
        &[("id", "items"), ("id", "old_items")],
        &[("id", "bids")],
        &[("id", "buy_now")],
        &[("id", "comments")],
    ];

    fn catalogue() -> &'static Catalogue {
        auction::catalogue()
    }

    fn scale(&self) -> [i64; 2] {
        [self.items, self.users]
    }

    fn of_scale(&self, [items, users]: [i64; 2]) -> Self {
        Auction { items, users, ..*self }
    }

    fn of_paper_size() -> Self {
        let scale = Scale::OF_THE_PAPER;
        Auction { items: scale.items(), users: scale.users(), ..Auction::default() }
    }

    fn population(&self, seed: u64, loaded_at: Timestamp) -> Result<Population> {
        let scale = Scale::new(self.items, self.users).map_err(|error| Error::Option(error.to_string()))?;
        Ok(Population::new(scale, seed, loaded_at))
    }

    fn size(&self) -> String {
        format!("{} items on sale, {} users", thousands(self.items as f64), thousands(self.users as f64))
    }

    fn mix(&self) -> &'static str {
        self.mix.as_str()
    }

    fn user(
        &self,
        population: &Population,
        seed: u64,
        number: u32,
        users: u32,
        highest: &[i64],
    ) -> Self::User {
        let site = auction::Auction { mix: self.mix, scale: population.scale() };
        site.visitor(seed, number, users, highest)
    }

    fn checks(population: &Population) -> Vec<Check<Population>> {
        auction::checks(population)
    }
}

#[cfg(test)]
mod tests {
    use onecopy_workload::site::Site;

    use super::*;

    #[test]
    fn ids_are_in_the_order_in_which_visitors_take_them() {
        let site = auction::Auction { mix: Mix::default(), scale: Scale::OF_THE_PAPER };
        let tables: Vec<&str> = Auction::IDS.iter().map(|together| together[0].1).collect();
        assert_eq!(tables, site.id_tables());
    }
}
