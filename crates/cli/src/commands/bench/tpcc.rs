//! `onecopy bench tpcc`.

use super::site::{Transactions, Visits};
use crate::CommandError;
use crate::output::print;
use onecopy_bench::site;
use onecopy_bench::tpcc::{Options, Supplier};
use onecopy_workload::tpcc::HomeWarehouse;

/// Let emulated terminals enter, pay and deliver orders at the wholesale supplier of TPC-C, and check its consistency conditions.
///
/// The supplier is loaded first if it is not there. The results show transactions per second and response times by kind, and new orders
/// a minute. Fails if a condition does not hold afterwards; a PostgreSQL server by itself keeps all of them only with
/// --isolation "repeatable read".
#[derive(Debug, clap::Args)]
#[command(mut_arg("clients", |arg| {
    arg.long("terminals").help("Terminals at work [default: 10 for each warehouse]")
}))]
pub(super) struct Args {
    /// How many warehouses it has, each with ten districts.
    #[arg(long, default_value_t = Supplier::default().warehouses)]
    warehouses: i64,
    /// How many customers each district has; with fewer than 3,000, orders, items and stocks are fewer in proportion, and the results
    /// are not those of the specification's size.
    #[arg(long, default_value_t = Supplier::default().customers)]
    customers: i64,
    /// Which warehouse a terminal works for: terminal (its own, as the specification has it) or uniform (any, drawn for each
    /// transaction).
    #[arg(long, value_name = "RULE", default_value_t = Supplier::default().home_warehouse)]
    home_warehouse: HomeWarehouse,
    /// Send each transaction as one text, from BEGIN to COMMIT, in which later statements name columns of earlier results: for onecopy
    /// under chains or centralised_writes, which know so what it may write; --protocol says nothing then.
    #[arg(long)]
    whole: bool,
    #[command(flatten)]
    visits: Visits,
    #[command(flatten)]
    transactions: Transactions,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let site = Supplier {
            warehouses: self.warehouses,
            customers: self.customers,
            home_warehouse: self.home_warehouse,
        };
        let options = self.visits.options(site, site.terminals(), self.transactions);
        let options = Options { whole: self.whole, ..options };
        site::load(&options).await?;
        print(site::run(&options).await?)?;
        let check = site::check(&options).await?;
        print(&check)?;
        if check.holds() { Ok(()) } else { Err("consistency conditions do not hold".into()) }
    }
}
