//! The bulletin board (RUBBoS) against any DSN. Its pages have no transactions, so there is no isolation level to choose, and nothing
//! to declare.
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::{bulletin_board, site};
//! let target = "host=127.0.0.1 port=6432 user=postgres".into();
//! let options = bulletin_board::Options { target, ..bulletin_board::Options::default() };
//! site::load(&options).await?;
//! println!("{}", site::run(&options).await?);
//! println!("{}", site::check(&options).await?);
//! # Ok(()) }
//! ```

use onecopy_workload::bulletin_board::{self, Mix, Population, Scale};
use onecopy_workload::site::{Check, Visitor};
use onecopy_workload::{Catalogue, Timestamp};

use crate::site::{self, Website};
use crate::table::thousands;
use crate::{Error, Result};

/// What to load and what to run.
pub type Options = site::Options<BulletinBoard>;

/// The bulletin board.
#[derive(Clone, Copy, Debug)]
pub struct BulletinBoard {
    /// Days of which there are stories at the start; those of the last month are new.
    pub days: i64,
    /// Users at the start.
    pub users: i64,
    /// How visitors walk.
    pub mix: Mix,
}

impl Default for BulletinBoard {
    /// A small one, which is loaded in seconds.
    fn default() -> Self {
        BulletinBoard { days: 45, users: 10_000, mix: Mix::default() }
    }
}

impl Website for BulletinBoard {
    type Population = Population;
    type User = Visitor<bulletin_board::BulletinBoard>;

    const NAME: &'static str = "bulletin board";
    const TITLE: &'static str = "Bulletin board";
    const USERS: &'static str = "visitors";
    const COMMAND: &'static str = "bulletin-board";
    const LOAD_OPTIONS: &'static str = " --site bulletin-board";
    const MARK_TABLE: &'static str = "bulletin_board";
    const SCALE: [&'static str; 2] = ["days", "users"];
    const IDS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("id", "users")],
        &[("id", "stories"), ("id", "old_stories")],
        &[("id", "submissions")],
        &[("id", "comments"), ("id", "old_comments")],
        &[("id", "moderator_log")],
    ];

    fn catalogue() -> &'static Catalogue {
        bulletin_board::catalogue()
    }

    fn scale(&self) -> [i64; 2] {
        [self.days, self.users]
    }

    fn of_scale(&self, [days, users]: [i64; 2]) -> Self {
        BulletinBoard { days, users, ..*self }
    }

    fn of_paper_size() -> Self {
        let scale = Scale::OF_THE_PAPER;
        BulletinBoard { days: scale.days(), users: scale.users(), ..BulletinBoard::default() }
    }

    fn population(&self, seed: u64, loaded_at: Timestamp) -> Result<Population> {
        let scale = Scale::new(self.days, self.users).map_err(|error| Error::Option(error.to_string()))?;
        Ok(Population::new(scale, seed, loaded_at))
    }

    fn size(&self) -> String {
        format!("stories of {} days, {} users", thousands(self.days as f64), thousands(self.users as f64))
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
        let site = bulletin_board::BulletinBoard { mix: self.mix, scale: population.scale() };
        site.visitor(seed, number, users, highest)
    }

    fn checks(population: &Population) -> Vec<Check<Population>> {
        bulletin_board::checks(population)
    }
}

#[cfg(test)]
mod tests {
    use onecopy_workload::site::Site;

    use super::*;

    #[test]
    fn ids_are_in_the_order_in_which_visitors_take_them() {
        let site = bulletin_board::BulletinBoard { mix: Mix::default(), scale: Scale::OF_THE_PAPER };
        let tables: Vec<&str> = BulletinBoard::IDS.iter().map(|together| together[0].1).collect();
        assert_eq!(tables, site.id_tables());
    }
}
