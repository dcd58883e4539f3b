//! A workload as the driver needs it: users who ask, and somebody who answers in the databases' stead.

use onecopy_workload::tpcw::{Browser, Highest, Mix, MixName, Population, Scale, Shelf, Shop};
use onecopy_workload::{Catalogue, Client, Date, Rows, StatementId, Timestamp, Value};

/// What is asked, by whom, and what comes back.
///
/// Answers only have to be such that users go on as they would: what the databases hold is counted in versions, not rows.
pub trait Workload {
    /// Its tables and statements.
    fn catalogue(&self) -> &'static Catalogue;

    /// The user with this number, of at most `users_max`.
    fn user(&self, seed: u64, number: u32, users_max: u32) -> Box<dyn Client>;

    /// The rows and keys that its statements touch, as `onecopy explain` shows them.
    fn items(&self) -> &'static str;

    /// What a statement returns.
    fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows;
}

/// TPC-W with one of its mixes.
#[derive(Clone, Debug)]
pub struct Bookstore {
    shop: Shop,
    shelf: Shelf,
}

impl Bookstore {
    /// A bookstore of this size. One with 100,000 items takes a second to fill; clones are cheaper.
    #[must_use]
    pub fn new(mix: MixName, scale: Scale) -> Bookstore {
        let shelf = Shelf::new(Population::new(scale, 0, opening()));
        Bookstore { shop: Shop { mix: Mix::of(mix), scale }, shelf }
    }
}

pub(super) const BOOKSTORE_ITEMS: &str = include_str!("../../data/items/tpcw.txt");

/// The virtual date at which runs begin.
pub(super) fn opening() -> Timestamp {
    Date::from_calendar(2003, 3, 26).into()
}

impl Workload for Bookstore {
    fn catalogue(&self) -> &'static Catalogue {
        onecopy_workload::tpcw::catalogue()
    }

    fn items(&self) -> &'static str {
        BOOKSTORE_ITEMS
    }

    fn user(&self, seed: u64, number: u32, users_max: u32) -> Box<dyn Client> {
        let highest = Highest::loaded(self.shop.scale);
        Box::new(Browser::new(self.shop, seed, number, users_max, highest))
    }

    fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        self.shelf.answer(statement, params)
    }
}
