//! How large the auction site is, and its rows.

use std::ops::RangeInclusive;

use super::memory::Lot;
use super::{
    BID_STEP_MAX, BUY_NOW_PROBABILITY, COMMENT_LEN_MAX, DESCRIPTION_LEN_MAX, DURATION_DAYS_MAX, PRICE_MAX,
    PRICE_STEP_MAX, QUANTITY_MAX, RATINGS, RESERVE_PROBABILITY, SINGLE_PROBABILITY,
};
use crate::random::{self, Random, chance, choose, text, uniform};
use crate::site::{self, Line, SiteRows};
use crate::value::Timestamp;

/// How large an auction site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    items: i64,
    users: i64,
}

/// A scale that the schema cannot hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "an auction site of {items} items and {users} users is out of range: choose 20 to 10,000,000 items and 2 to \
     100,000,000 users"
)]
pub struct ScaleError {
    items: i64,
    users: i64,
}

impl Scale {
    /// That of DV 6.2, with as many users as RUBiS has.
    pub const OF_THE_PAPER: Scale = Scale { items: 33_000, users: 1_000_000 };

    /// An auction site with so many items on sale (DV: 33,000), as many that were sold, and so many users (RUBiS: 1,000,000).
    ///
    /// # Errors
    /// [`ScaleError`] if ids would not fit.
    pub fn new(items: i64, users: i64) -> Result<Scale, ScaleError> {
        let in_range = (20..=10_000_000).contains(&items) && (2..=100_000_000).contains(&users);
        in_range.then_some(Scale { items, users }).ok_or(ScaleError { items, users })
    }

    /// Items on sale at the start.
    pub fn items(&self) -> i64 {
        self.items
    }

    /// Users at the start.
    pub fn users(&self) -> i64 {
        self.users
    }
}

/// The rows of an auction site.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    scale: Scale,
    seed: u64,
    loaded_at: Timestamp,
}

/// What is sold, as far as its bids need to know it.
struct Item {
    random: Random,
    seller: i64,
    price: i64,
    quantity: i64,
    bids: i64,
    max_bid: i64,
}

#[derive(Clone, Copy)]
enum Draw {
    User,
    Item,
    Bid,
    Comment,
}

impl Population {
    /// Categories of DV 6.2.
    pub const CATEGORIES: i64 = 40;
    /// Regions of DV 6.2.
    pub const REGIONS: i64 = 62;
    /// An item has up to so many bids at the start: ten on average.
    pub const BIDS_MAX: i64 = 20;

    /// The site of this scale and seed. Auctions begin at `loaded_at`, and end within a week; others have ended before.
    pub fn new(scale: Scale, seed: u64, loaded_at: Timestamp) -> Population {
        Population { scale, seed, loaded_at }
    }

    /// A user's address.
    pub fn email(user: i64) -> String {
        format!("user{user}@auction.example")
    }

    /// A region's name.
    pub fn region_name(region: i64) -> String {
        format!("Region {region}")
    }

    fn stream(&self, draw: Draw, key: i64) -> Random {
        random::stream(self.seed, ((draw as u64) << 48) | key as u64)
    }

    /// An item; the stream goes on behind what was drawn.
    fn item(&self, id: i64) -> Item {
        let mut random = self.stream(Draw::Item, id);
        let seller = uniform(&mut random, 1, self.scale.users);
        let price = uniform(&mut random, 1, PRICE_MAX);
        let is_single = chance(&mut random, SINGLE_PROBABILITY);
        let quantity = if is_single { 1 } else { uniform(&mut random, 2, QUANTITY_MAX) };
        // Those that were sold have no bids any more.
        let bids = if id > self.scale.items { 0 } else { uniform(&mut random, 0, Self::BIDS_MAX) };
        let max_bid = self.bids(id, price, bids).last().map_or(0, |(_, bid)| *bid);
        Item { random, seller, price, quantity, bids, max_bid }
    }

    /// Bidders and bids of an item.
    fn bids(&self, item: i64, price: i64, count: i64) -> Vec<(i64, i64)> {
        let random = &mut self.stream(Draw::Bid, item);
        let mut highest = price;
        (0..count)
            .map(|_| {
                highest += uniform(random, 1, BID_STEP_MAX);
                (uniform(random, 1, self.scale.users), highest)
            })
            .collect()
    }

    /// How large the site is.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// So many of an item were on sale when the site opened.
    pub(super) fn initial_quantity(&self, item: i64) -> i64 {
        self.item(item).quantity
    }

    /// What visitors see of an item.
    pub(super) fn lot(&self, id: i64) -> Lot {
        let Item { seller, price, quantity, max_bid, .. } = self.item(id);
        Lot { seller, price, quantity, max_bid }
    }

    /// Who bids on an item, in the order of their bids.
    pub(super) fn bidders(&self, item: i64) -> Vec<i64> {
        let Item { price, bids, .. } = self.item(item);
        self.bids(item, price, bids).into_iter().map(|(bidder, _)| bidder).collect()
    }

    /// An item's category.
    pub(super) fn category(item: i64) -> i64 {
        (item - 1) % Self::CATEGORIES + 1
    }

    /// A user's region.
    pub(super) fn region(&self, user: i64) -> i64 {
        uniform(&mut self.stream(Draw::User, user), 1, Self::REGIONS)
    }

    /// Who wrote the comment on an item's seller.
    pub(super) fn commenter(&self, item: i64) -> i64 {
        uniform(&mut self.stream(Draw::Comment, item), 1, self.scale.users)
    }

    fn copy_user(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::User, id);
        let region = uniform(random, 1, Self::REGIONS);
        Line::new(out)
            .put(id)
            .put(text(random, 3, 20))
            .put(text(random, 3, 20))
            .put(site::nickname(id))
            .put(site::password(id))
            .put(Self::email(id))
            .put(0)
            .put(0)
            .put(self.loaded_at)
            .put(region)
            .end()
    }

    fn copy_item(&self, id: i64, out: &mut String) -> u64 {
        let Item { mut random, seller, price, quantity, bids, max_bid } = self.item(id);
        let random = &mut random;
        let reserve = price + uniform(random, 0, PRICE_STEP_MAX);
        let reserve = if chance(random, RESERVE_PROBABILITY) { reserve } else { 0 };
        let buy_now = price + reserve + uniform(random, 0, PRICE_STEP_MAX);
        let buy_now = if chance(random, BUY_NOW_PROBABILITY) { buy_now } else { 0 };
        let days = uniform(random, 1, DURATION_DAYS_MAX);
        let is_old = id > self.scale.items;
        let begin =
            if is_old { self.loaded_at.plus_days(-days - uniform(random, 0, 365)) } else { self.loaded_at };
        Line::new(out)
            .put(id)
            .put(text(random, 10, 100))
            .put(text(random, 1, DESCRIPTION_LEN_MAX))
            .put(price)
            .put(quantity)
            .put(reserve)
            .put(buy_now)
            .put(bids)
            .put(max_bid)
            .put(begin)
            .put(begin.plus_days(days))
            .put(seller)
            .put(Self::category(id))
            .end()
    }

    fn copy_bids(&self, item: i64, out: &mut String) -> u64 {
        let Item { price, bids, quantity, .. } = self.item(item);
        let first = (item - 1) * Self::BIDS_MAX;
        let mut rows = 0;
        for (number, (bidder, bid)) in (1..).zip(self.bids(item, price, bids)) {
            rows += Line::new(out)
                .put(first + number)
                .put(bidder)
                .put(item)
                .put((number - 1) % quantity + 1)
                .put(bid)
                .put(bid)
                .put(self.loaded_at)
                .end();
        }
        rows
    }

    fn copy_comment(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::Comment, id);
        let seller = self.item(id).seller;
        Line::new(out)
            .put(id)
            .put(uniform(random, 1, self.scale.users))
            .put(seller)
            .put(id)
            .put(*choose(random, &RATINGS))
            .put(self.loaded_at)
            .put(text(random, 1, COMMENT_LEN_MAX))
            .end()
    }
}

impl SiteRows for Population {
    fn keys(&self, table: usize) -> RangeInclusive<i64> {
        let items = self.scale.items;
        match super::catalogue().tables[table].name.as_str() {
            "categories" => 1..=Self::CATEGORIES,
            "regions" => 1..=Self::REGIONS,
            "users" => 1..=self.scale.users,
            "items" | "bids" | "comments" => 1..=items,
            "old_items" => items + 1..=2 * items,
            _ => RangeInclusive::new(1, 0),
        }
    }

    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        let name = super::catalogue().tables[table].name.as_str();
        let row = |key: i64, out: &mut String| match name {
            "categories" => Line::new(out).put(key).put(format_args!("Category {key}")).end(),
            "regions" => Line::new(out).put(key).put(Self::region_name(key)).end(),
            "users" => self.copy_user(key, out),
            "items" | "old_items" => self.copy_item(key, out),
            "bids" => self.copy_bids(key, out),
            "comments" => self.copy_comment(key, out),
            _ => 0,
        };
        keys.map(|key| row(key, out)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(population: &Population, table: &str) -> Vec<Vec<String>> {
        let place = super::super::catalogue().table_index(table).unwrap();
        let mut text = String::new();
        let keys = population.keys(usize::from(place.0));
        let count = population.copy(usize::from(place.0), keys, &mut text);
        let rows: Vec<Vec<String>> =
            text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
        assert_eq!(rows.len() as u64, count);
        let columns = super::super::catalogue().table(place).columns.len();
        assert!(rows.iter().all(|row| row.len() == columns), "{table}");
        rows
    }

    #[test]
    fn cached_numbers_of_items_are_those_of_their_bids() {
        let population = Population::new(Scale::new(400, 30).unwrap(), 3, Timestamp::default());
        let (items, bids) = (rows(&population, "items"), rows(&population, "bids"));
        let int = |cell: &str| cell.parse::<i64>().unwrap();
        for item in &items {
            let of_item: Vec<i64> =
                bids.iter().filter(|bid| bid[2] == item[0]).map(|bid| int(&bid[4])).collect();
            assert_eq!(int(&item[7]), of_item.len() as i64);
            assert_eq!(int(&item[8]), of_item.iter().copied().max().unwrap_or(0));
        }
        let mean = bids.len() as f64 / items.len() as f64;
        assert!((9.0..11.0).contains(&mean), "{mean} bids an item");
        let single = items.iter().filter(|item| item[4] == "1").count();
        assert!((280..360).contains(&single), "{single} of 400 sell one thing");
        assert_eq!((rows(&population, "old_items").len(), rows(&population, "comments").len()), (400, 400));
        assert_eq!((rows(&population, "regions").len(), rows(&population, "buy_now").len()), (62, 0));
    }
}
