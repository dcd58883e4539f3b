//! An auction site in memory, which answers a visitor's statements where no database is at hand: in simulations that care for
//! times and not for contents.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::catalogue;
use super::population::Population;
use crate::catalogue::StatementId;
use crate::client::Rows;
use crate::value::Value;

/// An auction site in memory.
///
/// It answers with what visitors read, in the columns where they read it; other columns are NULL, and rows of which nothing is
/// read are left out. Items are found in the order of their ids, those that were put on sale later by nobody but their
/// sellers. It knows no transactions: what it is told it keeps at once. A clone shares what was loaded.
#[derive(Clone, Debug)]
pub struct Memory {
    loaded: Arc<Loaded>,
    changed: HashMap<i64, Lot>,
    /// Bidders, by item.
    bidders: HashMap<i64, Vec<i64>>,
    /// Items, by bidder and by buyer.
    bid_on: HashMap<i64, Vec<i64>>,
    bought: HashMap<i64, Vec<i64>>,
    /// Who wrote about somebody.
    commented_by: HashMap<i64, Vec<i64>>,
}

/// What the site starts with.
#[derive(Debug)]
struct Loaded {
    items: i64,
    /// Items by their ids, from 1 on; those that were sold follow those on sale.
    lots: Vec<Lot>,
    /// Items on sale by their category and their seller's region.
    by_region: HashMap<(i64, i64), Vec<i64>>,
    bidders: Vec<Vec<i64>>,
    bid_on: HashMap<i64, Vec<i64>>,
    /// Who wrote about the seller of an item.
    comments: HashMap<i64, Vec<i64>>,
}

/// What visitors see of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lot {
    pub(super) seller: i64,
    pub(super) price: i64,
    pub(super) quantity: i64,
    pub(super) max_bid: i64,
}

/// What a statement asks of the site, or tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Nothing comes back, or nothing that somebody reads.
    Unread,
    Changed,
    RegionOfName,
    Regions,
    Categories,
    OfCategory,
    OfRegion,
    OnSale,
    Sold,
    HighestBid,
    Quantity,
    Price,
    Rating,
    BidsOn,
    BidBy,
    BoughtBy,
    CommentsOn,
    Raise,
    Bid,
    SellAll,
    SellSome,
    Buy,
    Comment,
    Register,
}

/// By statement.
static ANSWERS: LazyLock<Vec<Answer>> = LazyLock::new(|| {
    let answer = |id: &str| match id {
        "register_user.region" | "browse_categories_region.region" => Answer::RegionOfName,
        "browse_regions.list" => Answer::Regions,
        "browse_categories.list" | "browse_categories_region.list" | "select_sell_category.list" => {
            Answer::Categories
        }
        "search_category.page" => Answer::OfCategory,
        "search_region.page" => Answer::OfRegion,
        "view_item.item" | "buy_now.item" | "put_bid.item" | "put_comment.item" | "about_me.biditem" => {
            Answer::OnSale
        }
        "view_item.olditem" => Answer::Sold,
        "view_item.maxbid" | "put_bid.maxbid" => Answer::HighestBid,
        "store_buy_now.item" => Answer::Quantity,
        "store_bid.read" => Answer::Price,
        "store_comment.read" => Answer::Rating,
        "view_bids.list" => Answer::BidsOn,
        "about_me.bids" | "about_me.won" => Answer::BidBy,
        "about_me.bought" => Answer::BoughtBy,
        "view_user.comments" | "about_me.comments" => Answer::CommentsOn,
        "store_bid.raise" => Answer::Raise,
        "store_bid.insert" => Answer::Bid,
        "store_buy_now.close" => Answer::SellAll,
        "store_buy_now.dec" => Answer::SellSome,
        "store_buy_now.insert" => Answer::Buy,
        "store_comment.insert" => Answer::Comment,
        "register_item.insert" => Answer::Register,
        "register_user.insert" | "store_bid.count" | "store_comment.rate" => Answer::Changed,
        _ => Answer::Unread,
    };
    catalogue().statements.iter().map(|statement| answer(&statement.id)).collect()
});

/// Items on a page of a search, as its statement says.
const PAGE: usize = super::PAGE_ITEMS as usize;

impl Memory {
    /// A freshly loaded site.
    pub fn new(population: &Population) -> Memory {
        Memory {
            loaded: Arc::new(Loaded::new(population)),
            changed: HashMap::new(),
            bidders: HashMap::new(),
            bid_on: HashMap::new(),
            bought: HashMap::new(),
            commented_by: HashMap::new(),
        }
    }

    /// The answer to a statement of the catalogue with its parameters; empty if it is of another workload.
    pub fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        let int = |place: usize| params.get(place).and_then(Value::as_int).unwrap_or(0);
        let Some(answer) = ANSWERS.get(usize::from(statement.0)) else { return Rows::default() };
        match answer {
            Answer::Unread => Rows::default(),
            Answer::Changed => Rows::changed(1),
            Answer::RegionOfName => {
                let name = params.first().and_then(Value::as_text).unwrap_or_default();
                column((1..=Population::REGIONS).find(|region| Population::region_name(*region) == name))
            }
            Answer::Regions => {
                let row = |region| vec![Value::Int(region), Population::region_name(region).into()];
                Rows::returned((1..=Population::REGIONS).map(row).collect())
            }
            Answer::Categories => column(1..=Population::CATEGORIES),
            Answer::OfCategory => {
                let in_category = (int(0)..=self.loaded.items).step_by(Population::CATEGORIES as usize);
                column(in_category.skip(offset(int(2))).take(PAGE))
            }
            Answer::OfRegion => {
                let found = self.loaded.by_region.get(&(int(0), int(1)));
                column(found.into_iter().flatten().copied().skip(offset(int(3))).take(PAGE))
            }
            Answer::OnSale => self.item(int(0), true),
            Answer::Sold => self.item(int(0), false),
            Answer::HighestBid => match self.lot(int(0)) {
                Some(Lot { max_bid, .. }) if max_bid > 0 => column([max_bid]),
                // The largest of nothing.
                _ => Rows::returned(vec![vec![Value::Null]]),
            },
            Answer::Quantity => column(self.lot(int(0)).map(|lot| lot.quantity)),
            Answer::Price => column(self.lot(int(0)).map(|lot| lot.max_bid)),
            Answer::Rating => column([0]),
            Answer::BidsOn => {
                let place = usize::try_from(int(0) - 1).unwrap_or(usize::MAX);
                let loaded = self.loaded.bidders.get(place).into_iter().flatten();
                second_column(loaded.chain(self.bidders.get(&int(0)).into_iter().flatten()))
            }
            Answer::BidBy => {
                let loaded = self.loaded.bid_on.get(&int(0)).into_iter().flatten();
                column(loaded.chain(self.bid_on.get(&int(0)).into_iter().flatten()).copied())
            }
            Answer::BoughtBy => column(self.bought.get(&int(0)).into_iter().flatten().copied()),
            Answer::CommentsOn => {
                let loaded = self.loaded.comments.get(&int(0)).into_iter().flatten();
                second_column(loaded.chain(self.commented_by.get(&int(0)).into_iter().flatten()))
            }
            Answer::Raise => self.change(int(0), |lot| lot.max_bid = int(1)),
            Answer::Bid => {
                self.bidders.entry(int(2)).or_default().push(int(1));
                self.bid_on.entry(int(1)).or_default().push(int(2));
                Rows::changed(1)
            }
            Answer::SellAll => self.change(int(0), |lot| lot.quantity = 0),
            Answer::SellSome => self.change(int(0), |lot| lot.quantity -= int(1)),
            Answer::Buy => {
                self.bought.entry(int(1)).or_default().push(int(2));
                Rows::changed(1)
            }
            Answer::Comment => {
                self.commented_by.entry(int(2)).or_default().push(int(1));
                Rows::changed(1)
            }
            Answer::Register => {
                let lot = Lot { seller: int(9), price: int(3), quantity: int(4), max_bid: 0 };
                self.changed.insert(int(0), lot);
                Rows::changed(1)
            }
        }
    }

    fn lot(&self, item: i64) -> Option<Lot> {
        let place = usize::try_from(item - 1).ok()?;
        self.changed.get(&item).or_else(|| self.loaded.lots.get(place)).copied()
    }

    fn change(&mut self, item: i64, change: impl FnOnce(&mut Lot)) -> Rows {
        let Some(mut lot) = self.lot(item) else { return Rows::changed(0) };
        change(&mut lot);
        self.changed.insert(item, lot);
        Rows::changed(1)
    }

    /// The row of an item, if it is among those on sale, or among those that were sold.
    fn item(&self, id: i64, on_sale: bool) -> Rows {
        let was_sold = (self.loaded.items + 1..=2 * self.loaded.items).contains(&id);
        let Some(lot) = self.lot(id).filter(|_| was_sold != on_sale) else { return Rows::default() };
        let mut row = vec![Value::Null; 13];
        let known = [(0, id), (3, lot.price), (4, lot.quantity), (8, lot.max_bid), (11, lot.seller)];
        for (place, value) in known {
            row[place] = Value::Int(value);
        }
        Rows::returned(vec![row])
    }
}

impl Loaded {
    fn new(population: &Population) -> Loaded {
        let items = population.scale().items();
        let mut loaded = Loaded {
            items,
            lots: (1..=2 * items).map(|id| population.lot(id)).collect(),
            by_region: HashMap::new(),
            bidders: (1..=items).map(|id| population.bidders(id)).collect(),
            bid_on: HashMap::new(),
            comments: HashMap::new(),
        };
        for (id, lot) in (1..=items).zip(&loaded.lots) {
            let place = (Population::category(id), population.region(lot.seller));
            loaded.by_region.entry(place).or_default().push(id);
            loaded.comments.entry(lot.seller).or_default().push(population.commenter(id));
        }
        for (id, bidders) in (1..).zip(&loaded.bidders) {
            for bidder in bidders {
                let bid_on = loaded.bid_on.entry(*bidder).or_default();
                if bid_on.last() != Some(&id) {
                    bid_on.push(id);
                }
            }
        }
        loaded
    }
}

fn offset(rows: i64) -> usize {
    usize::try_from(rows).unwrap_or(0)
}

fn column(ints: impl IntoIterator<Item = i64>) -> Rows {
    Rows::returned(ints.into_iter().map(|int| vec![Value::Int(int)]).collect())
}

fn second_column<'a>(ints: impl Iterator<Item = &'a i64>) -> Rows {
    Rows::returned(ints.map(|int| vec![Value::Null, Value::Int(*int)]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auction::Scale;
    use crate::value::Timestamp;

    fn memory() -> Memory {
        Memory::new(&Population::new(Scale::new(400, 30).unwrap(), 3, Timestamp::default()))
    }

    fn ask(memory: &mut Memory, statement: &str, params: &[i64]) -> Vec<Vec<Value>> {
        let params: Vec<Value> = params.iter().map(|int| Value::Int(*int)).collect();
        memory.answer(catalogue().statement_id(statement).unwrap(), &params).rows
    }

    #[test]
    fn what_was_bid_and_sold_is_seen_afterwards() {
        let mut memory = memory();
        let quantity = |memory: &mut Memory| ask(memory, "store_buy_now.item", &[7])[0][0].as_int().unwrap();
        let bids = ask(&mut memory, "view_bids.list", &[7]).len();
        let (before, bid_on) = (quantity(&mut memory), ask(&mut memory, "about_me.bids", &[31]).len());
        ask(&mut memory, "store_bid.raise", &[7, 9_000]);
        ask(&mut memory, "store_bid.insert", &[9_999, 31, 7, 1, 9_000, 9_000]);
        ask(&mut memory, "store_buy_now.dec", &[7, 1]);
        assert_eq!(ask(&mut memory, "put_bid.item", &[7])[0][8], Value::Int(9_000));
        assert_eq!(ask(&mut memory, "view_item.maxbid", &[7])[0][0], Value::Int(9_000));
        assert_eq!(ask(&mut memory, "view_bids.list", &[7]).len(), bids + 1);
        assert_eq!(ask(&mut memory, "about_me.bids", &[31]).len(), bid_on + 1);
        assert_eq!(quantity(&mut memory), before - 1);
    }

    #[test]
    fn items_are_on_sale_or_sold_and_searches_find_those_on_sale() {
        let mut memory = memory();
        for (item, on_sale) in [(1, true), (400, true), (401, false), (800, false)] {
            assert_eq!(ask(&mut memory, "view_item.item", &[item]).len(), usize::from(on_sale), "{item}");
            assert_eq!(ask(&mut memory, "view_item.olditem", &[item]).len(), usize::from(!on_sale), "{item}");
        }
        // 400 items over 40 categories and 62 regions.
        assert_eq!(ask(&mut memory, "search_category.page", &[40, 0, 0]).len(), 10);
        assert_eq!(ask(&mut memory, "search_category.page", &[40, 0, 20]).len(), 0);
        let regions = 1..=Population::REGIONS;
        let found = regions.map(|region| ask(&mut memory, "search_region.page", &[40, region, 0, 0]).len());
        assert_eq!(found.sum::<usize>(), 10);
        ask(&mut memory, "register_item.insert", &[801, 0, 0, 50, 1, 0, 0, 0, 0, 12, 3]);
        assert_eq!(ask(&mut memory, "view_item.item", &[801])[0][11], Value::Int(12));
    }
}
