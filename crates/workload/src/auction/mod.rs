//! The auction site (RUBiS): 27 pages, 59 statements, a population of any scale and emulated visitors.
//!
//! * [`catalogue`] and its plan: tables, pages and statements, from `data/auction.toml`.
//! * [`Mix`]: how visitors walk; [`Mix::Write15`] is the paper's.
//! * [`Scale`] and [`Population`]: how large the site is, and its rows.
//! * [`Auction`]: the site as its visitors know it; [`Memory`] answers them where there is no database.
//! * [`checks`]: what must hold in the database after any run.

mod checks;
mod memory;
mod population;

pub use checks::checks;
pub use memory::Memory;
pub use population::{Population, Scale, ScaleError};

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::catalogue::{Catalogue, InteractionId};
use crate::random::{Random, chance, choose, text, uniform};
use crate::site::{self, Ids, Plan, Site, Transitions, Vars, Visitor};
use crate::value::{Timestamp, Value};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../../data/auction.toml")).expect("data/auction.toml is in order")
});

static PLAN: LazyLock<Plan> =
    LazyLock::new(|| Plan::parse(&CATALOGUE, VARIABLES).expect("data/auction.toml says what its pages do"));

static TRANSITIONS: LazyLock<[Transitions; 3]> = LazyLock::new(|| {
    Mix::ALL.map(|mix| {
        let csv = include_str!("../../data/auction_transitions.csv");
        Transitions::parse(csv, mix.as_str(), &CATALOGUE, page("HOME"))
            .expect("data/auction_transitions.csv is in order")
    })
});

/// What a visitor knows and chooses.
const VARIABLES: &[&str] = &[
    "user",
    "nickname",
    "password",
    "now",
    "month_ago",
    "category",
    "region",
    "region_name",
    "offset",
    "item",
    "profile",
    "quantity",
    "max_bid",
    "price",
    "bid",
    "bid_limit",
    "rating",
    "text",
    "long_text",
    "end",
    "new_user",
    "new_nickname",
    "new_password",
    "email",
    "new_item",
    "new_price",
    "new_quantity",
    "new_reserve",
    "new_buy_now",
    "new_bid",
    "new_purchase",
    "new_comment",
];

/// Items on one page of a search.
const PAGE_ITEMS: i64 = 20;
/// The most that somebody sells or buys at once.
const QUANTITY_MAX: i64 = 10;
/// Who sells one thing only, has a reserve price, and can be bought from at once.
const SINGLE_PROBABILITY: f64 = 0.8;
const RESERVE_PROBABILITY: f64 = 0.4;
const BUY_NOW_PROBABILITY: f64 = 0.1;
/// An item on sale for the first time has a price from 1 to this.
const PRICE_MAX: i64 = 5_000;
/// A reserve price, and the price of buying now, are up to so much higher.
const PRICE_STEP_MAX: i64 = 999;
/// A bid is up to so much higher than the one before.
const BID_STEP_MAX: i64 = 10;
/// What a comment may say of somebody.
const RATINGS: [i64; 5] = [-5, -3, 0, 3, 5];
/// The longest descriptions and comments, in bytes.
const DESCRIPTION_LEN_MAX: usize = 8_192;
const COMMENT_LEN_MAX: usize = 2_048;
/// The longest duration of an auction.
const DURATION_DAYS_MAX: i64 = 7;

/// The tables, pages and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

fn page(id: &str) -> InteractionId {
    let place = catalogue().interactions.iter().position(|interaction| interaction.id == id);
    InteractionId(place.unwrap_or_else(|| panic!("no page {id}")) as u16)
}

/// How visitors walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mix {
    /// 15 % of the interactions that reach the database write, as DV says of its mix: see docs/laboratory.md.
    #[default]
    Write15,
    /// The published probabilities, repaired where they did not add up: 11.1 % write.
    Default,
    /// Nobody writes.
    BrowseOnly,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 3] = [Mix::Write15, Mix::Default, Mix::BrowseOnly];

    /// Its name, which is that of its column in the data.
    pub fn as_str(self) -> &'static str {
        match self {
            Mix::Write15 => "write15",
            Mix::Default => "default",
            Mix::BrowseOnly => "browse_only",
        }
    }

    /// What follows what.
    pub fn transitions(self) -> &'static Transitions {
        &TRANSITIONS[self as usize]
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No mix has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no mix {0:?}: choose write15, default or browse_only")]
pub struct UnknownMix(String);

impl FromStr for Mix {
    type Err = UnknownMix;

    fn from_str(name: &str) -> Result<Self, UnknownMix> {
        Self::ALL.into_iter().find(|mix| mix.as_str() == name).ok_or_else(|| UnknownMix(name.to_owned()))
    }
}

/// The auction site as its visitors know it.
#[derive(Clone, Copy, Debug)]
pub struct Auction {
    /// How visitors walk.
    pub mix: Mix,
    /// How large it is.
    pub scale: Scale,
}

/// Tables whose new rows get ids from visitors; the places in this list are those below.
const ID_TABLES: &[&str] = &["users", "items", "bids", "buy_now", "comments"];
const USERS: usize = 0;
const ITEMS: usize = 1;
const BIDS: usize = 2;
const PURCHASES: usize = 3;
const COMMENTS: usize = 4;

impl Auction {
    /// An emulated visitor: `number` of `visitors`. `highest` are the ids in use, by [`Site::id_tables`].
    pub fn visitor(self, seed: u64, number: u32, visitors: u32, highest: &[i64]) -> Visitor<Auction> {
        Visitor::new(self, seed, number, visitors, highest)
    }

    /// The highest ids of a freshly loaded site, by [`Site::id_tables`].
    pub fn loaded(&self) -> Vec<i64> {
        let scale = self.scale;
        // Old items have ids behind the current ones.
        vec![scale.users(), 2 * scale.items(), Population::BIDS_MAX * scale.items(), 0, scale.items()]
    }

    fn someone(&self, vars: &mut Vars, user: i64) {
        vars.set("user", user);
        vars.set("nickname", site::nickname(user));
        vars.set("password", site::password(user));
    }
}

impl Site for Auction {
    fn catalogue(&self) -> &'static Catalogue {
        catalogue()
    }

    fn plan(&self) -> &'static Plan {
        &PLAN
    }

    fn variables(&self) -> &'static [&'static str] {
        VARIABLES
    }

    fn id_tables(&self) -> &'static [&'static str] {
        ID_TABLES
    }

    fn begin(&self, vars: &mut Vars, random: &mut Random) -> &'static Transitions {
        self.someone(vars, uniform(random, 1, self.scale.users()));
        let (item, profile) =
            (uniform(random, 1, self.scale.items()), uniform(random, 1, self.scale.users()));
        vars.set("item", item);
        vars.set("profile", profile);
        vars.set("category", uniform(random, 1, Population::CATEGORIES));
        let region = uniform(random, 1, Population::REGIONS);
        vars.set("region", region);
        vars.set("region_name", Population::region_name(region));
        vars.set("offset", 0);
        self.mix.transitions()
    }

    fn choose(
        &self,
        page: InteractionId,
        came_from: Option<InteractionId>,
        vars: &mut Vars,
        ids: &mut Ids,
        random: &mut Random,
        now: Timestamp,
    ) {
        vars.set("now", now);
        vars.set("month_ago", now.plus_days(-30));
        match catalogue().interaction(page).id.as_str() {
            "SEARCH_CATEGORY" | "SEARCH_REGION" => {
                // Who searches again looks at the next page.
                let next = (came_from == Some(page)).then(|| vars.int("offset").unwrap_or(0) + PAGE_ITEMS);
                vars.set("offset", next.unwrap_or(0));
            }
            "REGISTER_USER" => {
                let user = ids.take(USERS);
                vars.set("new_user", user);
                vars.set("new_nickname", site::nickname(user));
                vars.set("new_password", site::password(user));
                vars.set("email", Population::email(user));
                vars.set("text", text(random, 3, 20));
            }
            "STORE_BUY_NOW" => {
                vars.set("new_purchase", ids.take(PURCHASES));
                vars.set("quantity", self.quantity(random));
            }
            "STORE_BID" => {
                // A little more than was bid when the form was shown.
                let highest = vars.int("max_bid").unwrap_or(0).max(vars.int("price").unwrap_or(0));
                let bid = highest + uniform(random, 1, BID_STEP_MAX);
                vars.set("bid", bid);
                vars.set("bid_limit", bid + uniform(random, 0, BID_STEP_MAX));
                vars.set("quantity", self.quantity(random));
                vars.set("new_bid", ids.take(BIDS));
            }
            "STORE_COMMENT" => {
                vars.set("new_comment", ids.take(COMMENTS));
                vars.set("rating", *choose(random, &RATINGS));
                vars.set("text", text(random, 1, COMMENT_LEN_MAX));
            }
            "REGISTER_ITEM" => {
                let price = uniform(random, 1, PRICE_MAX);
                let reserve = price + uniform(random, 0, PRICE_STEP_MAX);
                let has_reserve = chance(random, RESERVE_PROBABILITY);
                let buy_now = price + reserve + uniform(random, 0, PRICE_STEP_MAX);
                let can_be_bought = chance(random, BUY_NOW_PROBABILITY);
                vars.set("new_item", ids.take(ITEMS));
                vars.set("text", text(random, 10, 100));
                vars.set("long_text", text(random, 1, DESCRIPTION_LEN_MAX));
                vars.set("new_price", price);
                vars.set("new_reserve", if has_reserve { reserve } else { 0 });
                vars.set("new_buy_now", if can_be_bought { buy_now } else { 0 });
                vars.set("new_quantity", self.quantity(random));
                vars.set("end", Value::from(now.plus_days(uniform(random, 1, DURATION_DAYS_MAX))));
            }
            _ => {}
        }
    }
}

impl Auction {
    fn quantity(&self, random: &mut Random) -> i64 {
        if chance(random, SINGLE_PROBABILITY) { 1 } else { uniform(random, 2, QUANTITY_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Kind;
    use crate::random::stream;
    use crate::site::tests::{expect_every_statement_and_one_course, published_shares};

    #[test]
    fn shares_of_pages_are_the_published_ones() {
        for mix in Mix::ALL {
            let published =
                published_shares(include_str!("../../data/auction_shares.csv"), mix.as_str(), catalogue());
            let ours = mix.transitions().shares(2_000_000, &mut stream(1, 0));
            for ((interaction, ours), theirs) in catalogue().interactions.iter().zip(ours).zip(published) {
                let difference = ours * 100.0 - theirs;
                assert!(difference.abs() < 0.25, "{mix:?} {}: {difference:+.3}", interaction.id);
            }
        }
    }

    #[test]
    fn fifteen_percent_of_what_reaches_the_database_writes() {
        for (mix, expected) in [(Mix::Write15, 0.15), (Mix::Default, 0.111), (Mix::BrowseOnly, 0.0)] {
            let shares = mix.transitions().shares(500_000, &mut stream(2, 0));
            let share = crate::site::tests::write_share(catalogue(), &shares);
            assert!((share - expected).abs() < 0.003, "{mix:?}: {share}");
        }
    }

    #[test]
    fn catalogue_is_that_of_the_papers() {
        let tables: Vec<&str> = catalogue().tables.iter().map(|table| table.name.as_str()).collect();
        for named in ["users", "items", "bids", "buy_now", "comments", "categories", "regions"] {
            assert!(tables.contains(&named), "DV 6.2 names {named}");
        }
        assert_eq!((catalogue().interactions.len(), catalogue().statements.len()), (27, 59));
        let bid = catalogue().transaction(catalogue().transaction_id("store_bid.tx").unwrap());
        let names = |of: &[crate::catalogue::TableIndex]| -> Vec<&str> {
            of.iter().map(|table| catalogue().table(*table).name.as_str()).collect()
        };
        assert_eq!((names(&bid.reads), names(&bid.writes)), (vec![], vec!["items", "bids"]));
    }

    #[test]
    fn every_statement_runs_and_the_same_seed_gives_the_same_course() {
        let site = Auction { mix: Mix::Write15, scale: Scale::new(200, 50).unwrap() };
        expect_every_statement_and_one_course(catalogue(), || site.visitor(7, 0, 1, &site.loaded()), 15_000);
    }

    #[test]
    fn whoever_reads_alone_brackets_only_what_changes_data() {
        use crate::client::{Action, Client as _, Reply, Rows};

        let site = Auction { mix: Mix::Write15, scale: Scale::new(200, 50).unwrap() };
        let mut visitor = site.visitor(7, 0, 1, &site.loaded()).reading_alone();
        let (mut open, mut alone, mut bracketed, mut reply) = (None, 0, 0, Reply::Done);
        for _ in 0..20_000 {
            reply = match visitor.next(crate::value::Timestamp::default(), reply) {
                Action::Begin(transaction) => {
                    open = Some(transaction);
                    Reply::Done
                }
                Action::Execute(statement, _) => {
                    let of = catalogue().statement(statement).transaction;
                    assert_eq!(open.is_some(), catalogue().transaction(of).kind == Kind::MultiUpdate);
                    alone += u32::from(catalogue().transaction(of).kind == Kind::MultiRead);
                    bracketed += u32::from(open == Some(of));
                    Reply::Rows(Rows::default())
                }
                Action::Commit => {
                    open = None;
                    Reply::Done
                }
                _ => Reply::Done,
            };
        }
        assert!(alone > 1_000 && bracketed > 100, "{alone} and {bracketed}");
    }
}
