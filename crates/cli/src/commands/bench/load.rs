//! `onecopy bench load`.

use super::site::Place;
use crate::CommandError;
use crate::output::print;
use onecopy_bench::auction::Auction;
use onecopy_bench::bulletin_board::BulletinBoard;
use onecopy_bench::pgbench::Pgbench;
use onecopy_bench::site::{self, Options, Website};
use onecopy_bench::tpcc::Supplier;
use onecopy_bench::tpcw::Bookstore;

/// Fill a database with a site: the TPC-W bookstore, the auction site, the bulletin board, the wholesale supplier of TPC-C or
/// pgbench's bank.
///
/// One of the same size and seed that is there is left alone.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Which site.
    #[arg(long, value_enum, default_value = "bookstore")]
    site: Kind,
    /// How many books it has, or items on sale [default: 1000]
    #[arg(long)]
    items: Option<i64>,
    /// Emulated browsers that the bookstore's customers are counted for: 2,880 customers each [default: 1]
    #[arg(long)]
    browsers: Option<i64>,
    /// How many users the auction site or the bulletin board has [default: 10000]
    #[arg(long)]
    users: Option<i64>,
    /// Of how many days the bulletin board has stories [default: 45]
    #[arg(long)]
    days: Option<i64>,
    /// How many warehouses the supplier has [default: 1]
    #[arg(long)]
    warehouses: Option<i64>,
    /// How many customers each of the supplier's districts has; with fewer, orders, items and stocks are fewer in proportion [default: 3000]
    #[arg(long)]
    customers: Option<i64>,
    /// How many branches pgbench's bank has, what pgbench calls its scale [default: 10]
    #[arg(long)]
    branches: Option<i64>,
    /// How many accounts each branch has [default: 100000]
    #[arg(long)]
    accounts: Option<i64>,
    /// As large as in the papers: see the commands that run the sites; 100,000 books and 1,000 emulated browsers; 10
    /// warehouses.
    #[arg(long, conflicts_with_all = ["items", "browsers", "users", "days", "warehouses", "customers", "branches", "accounts"])]
    paper_size: bool,
    /// Replace the site that is there, and whatever tables have its tables' names, with all of the site that they are of.
    #[arg(long)]
    reload: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Bookstore,
    Auction,
    BulletinBoard,
    Tpcc,
    Pgbench,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        match self.site {
            Kind::Bookstore => self.load::<Bookstore>().await,
            Kind::Auction => self.load::<Auction>().await,
            Kind::BulletinBoard => self.load::<BulletinBoard>().await,
            Kind::Tpcc => self.load::<Supplier>().await,
            Kind::Pgbench if self.paper_size => {
                Err("no paper has pgbench's bank: say by --branches and --accounts how large it is".into())
            }
            Kind::Pgbench => self.load::<Pgbench>().await,
        }
    }

    async fn load<S: Website + Default>(self) -> Result<(), CommandError> {
        let site = self.sized(if self.paper_size { S::of_paper_size() } else { S::default() })?;
        let options = Options { reload: self.reload, ..self.place.options(site) };
        Ok(print(site::load(&options).await?)?)
    }

    /// The site with the size that was given, as far as it was.
    fn sized<S: Website>(&self, site: S) -> Result<S, CommandError> {
        let [first, second] = S::SCALE;
        let given = [
            ("items", self.items),
            ("browsers", self.browsers),
            ("users", self.users),
            ("days", self.days),
            ("warehouses", self.warehouses),
            ("customers", self.customers),
            ("branches", self.branches),
            ("accounts", self.accounts),
        ];
        let mut scale = site.scale();
        for (name, value) in given {
            let Some(value) = value else { continue };
            let place = S::SCALE.iter().position(|own| *own == name).ok_or_else(|| {
                format!("the {} has no --{name}: say by --{first} and --{second} how large it is", S::NAME)
            })?;
            scale[place] = value;
        }
        Ok(site.of_scale(scale))
    }
}
