//! A workload as the driver needs it: users who ask, and somebody who answers in the databases' stead.

use onecopy_workload::auction::{self, Auction};
use onecopy_workload::bulletin_board::{self, BulletinBoard};
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
    catalogue: &'static Catalogue,
}

impl Bookstore {
    /// A bookstore of this size. One with 100,000 items takes a second to fill; clones are cheaper.
    #[must_use]
    pub fn new(mix: MixName, scale: Scale) -> Bookstore {
        let shelf = Shelf::new(Population::new(scale, 0, opening()));
        let catalogue = onecopy_workload::tpcw::catalogue();
        Bookstore { shop: Shop { mix: Mix::of(mix), scale }, shelf, catalogue }
    }

    /// The same with carts in the tables of the orders: [`catalogue_of_eight_tables`].
    ///
    /// [`catalogue_of_eight_tables`]: onecopy_workload::tpcw::catalogue_of_eight_tables
    #[must_use]
    pub fn of_eight_tables(self) -> Bookstore {
        Bookstore { catalogue: onecopy_workload::tpcw::catalogue_of_eight_tables(), ..self }
    }
}

pub(super) const BOOKSTORE_ITEMS: &str = include_str!("../../data/items/tpcw.txt");
pub(super) const AUCTION_ITEMS: &str = include_str!("../../data/items/auction.txt");
pub(super) const BOARD_ITEMS: &str = include_str!("../../data/items/bulletin_board.txt");

/// The virtual date at which runs begin.
pub(super) fn opening() -> Timestamp {
    Date::from_calendar(2003, 3, 26).into()
}

impl Workload for Bookstore {
    fn catalogue(&self) -> &'static Catalogue {
        self.catalogue
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

/// The auction site with one of its mixes.
#[derive(Clone, Debug)]
pub struct AuctionSite {
    site: Auction,
    memory: auction::Memory,
    reads_alone: bool,
}

impl AuctionSite {
    /// An auction site of this size. Clones are cheap.
    #[must_use]
    pub fn new(mix: auction::Mix, scale: auction::Scale) -> AuctionSite {
        let population = auction::Population::new(scale, 0, opening());
        let memory = auction::Memory::new(&population);
        AuctionSite { site: Auction { mix, scale }, memory, reads_alone: false }
    }

    /// The same site, whose visitors walk otherwise.
    #[must_use]
    pub fn of_mix(mut self, mix: auction::Mix) -> AuctionSite {
        self.site.mix = mix;
        self
    }

    /// The same site, but that each query of a page that changes nothing stands alone.
    #[must_use]
    pub fn reading_alone(self) -> AuctionSite {
        AuctionSite { reads_alone: true, ..self }
    }
}

impl Workload for AuctionSite {
    fn catalogue(&self) -> &'static Catalogue {
        auction::catalogue()
    }

    fn items(&self) -> &'static str {
        AUCTION_ITEMS
    }

    fn user(&self, seed: u64, number: u32, users_max: u32) -> Box<dyn Client> {
        let visitor = self.site.visitor(seed, number, users_max, &self.site.loaded());
        Box::new(if self.reads_alone { visitor.reading_alone() } else { visitor })
    }

    fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        self.memory.answer(statement, params)
    }
}

/// The bulletin board with one of its mixes.
#[derive(Clone, Debug)]
pub struct Board {
    site: BulletinBoard,
    memory: bulletin_board::Memory,
}

impl Board {
    /// A bulletin board of this size. Clones are cheap.
    #[must_use]
    pub fn new(mix: bulletin_board::Mix, scale: bulletin_board::Scale) -> Board {
        let population = bulletin_board::Population::new(scale, 0, opening());
        Board { site: BulletinBoard { mix, scale }, memory: bulletin_board::Memory::new(population) }
    }
}

impl Workload for Board {
    fn catalogue(&self) -> &'static Catalogue {
        bulletin_board::catalogue()
    }

    fn items(&self) -> &'static str {
        BOARD_ITEMS
    }

    fn user(&self, seed: u64, number: u32, users_max: u32) -> Box<dyn Client> {
        Box::new(self.site.visitor(seed, number, users_max, &self.site.loaded()))
    }

    fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        self.memory.answer(statement, params)
    }
}
