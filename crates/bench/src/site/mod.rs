//! Loads a web site, lets emulated users visit it, and checks its rules afterwards: what [`Website`] says of the bookstore, the
//! auction site, the bulletin board, the wholesale supplier and pgbench's tables is enough for that.

mod check;
mod crowd;
mod journal;
mod load;
mod mark;
mod report;
mod texts;

use std::path::PathBuf;
use std::time::Duration;

use onecopy_workload::catalogue::Interaction;
use onecopy_workload::client::Client;
use onecopy_workload::site::{Check, SiteRows};
use onecopy_workload::{Catalogue, InteractionId, Timestamp};

use crate::auction::Auction;
use crate::bulletin_board::BulletinBoard;
pub use crate::connection::Protocol;
use crate::pgbench::Pgbench;
use crate::tpcc::Supplier;
use crate::tpcw::Bookstore;
use crate::{Error, Result};
pub use check::{CheckReport, Checked, check};
pub use crowd::run;
pub(crate) use crowd::{Arrival, Crowd, Offered, TIMED_OUT};
pub use journal::Incident;
#[cfg(test)]
pub(crate) use journal::{Acknowledged, Lost};
pub(crate) use journal::{Noted, Told, Witness, WitnessKey};
pub use load::{LoadReport, load};
pub(crate) use load::{load_at, now};
pub(crate) use mark::{find, highest, server_version};
pub(crate) use report::Collected;
pub use report::{Counted, Latency, PageReport, Report, Sample, Second};
pub(crate) use texts::Texts;

/// A web site of some size that emulated users visit.
pub trait Website: Clone + Send + Sync + 'static {
    /// Its rows when it was loaded.
    type Population: SiteRows + Send + Sync + 'static;
    /// An emulated user.
    type User: Client + Send + Sync + 'static;

    /// What messages call it: "bookstore".
    const NAME: &'static str;
    /// What reports call it.
    const TITLE: &'static str;
    /// What its users are called: "customers".
    const USERS: &'static str;
    /// The subcommand of `onecopy bench` that runs it, and the beginning of the names of its results.
    const COMMAND: &'static str;
    /// What to say of it to the subcommand that loads it: options, with a space before them.
    const LOAD_OPTIONS: &'static str;
    /// A table of one row that says what was loaded; made last, so that it stands for a whole site.
    const MARK_TABLE: &'static str;
    /// The numbers that say how large it is: columns of the mark.
    const SCALE: [&'static str; 2];
    /// Columns and tables of the ids that users give to new rows; those that share their ids stand together.
    const IDS: &'static [&'static [(&'static str, &'static str)]];

    /// Its tables, pages and statements.
    fn catalogue() -> &'static Catalogue;

    /// How large it is, in the order of [`Website::SCALE`].
    fn scale(&self) -> [i64; 2];

    /// The same of another size.
    #[must_use]
    fn of_scale(&self, scale: [i64; 2]) -> Self;

    /// As large as in the papers.
    fn of_paper_size() -> Self;

    /// The rows of one of this size and seed.
    ///
    /// # Errors
    /// [`Error::Option`] if the schema cannot hold it.
    fn population(&self, seed: u64, loaded_at: Timestamp) -> Result<Self::Population>;

    /// How large it is, in words.
    fn size(&self) -> String;

    /// How users walk.
    fn mix(&self) -> &'static str;

    /// What interactions per second are called.
    fn metric(&self) -> &'static str {
        "interactions/s"
    }

    /// What reports call a page.
    fn page_title(interaction: &Interaction) -> String {
        interaction.name.clone()
    }

    /// Within this 90 % of a page's users should have their answer, if the site's authors say so.
    fn response_limit(_page: InteractionId) -> Option<Duration> {
        None
    }

    /// Figures that its authors want besides, by their names.
    fn measures(_report: &Report) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// What whoever reads a report must know of the site, if anything.
    fn remark(&self) -> Option<String> {
        None
    }

    /// User `number` of `users`, counted from 0. `highest` are the ids in use, by [`Website::IDS`].
    fn user(
        &self,
        population: &Self::Population,
        seed: u64,
        number: u32,
        users: u32,
        highest: &[i64],
    ) -> Self::User;

    /// What must hold after any run.
    fn checks(population: &Self::Population) -> Vec<Check<Self::Population>>;
}

/// The marks and tables of all sites, some of which have the same names.
fn all() -> [(&'static str, &'static Catalogue); 5] {
    fn of<S: Website>() -> (&'static str, &'static Catalogue) {
        (S::MARK_TABLE, S::catalogue())
    }
    [of::<Bookstore>(), of::<Auction>(), of::<BulletinBoard>(), of::<Supplier>(), of::<Pgbench>()]
}

/// What to load and what to run.
#[derive(Clone, Debug)]
pub struct Options<S> {
    /// `host=... port=... user=... dbname=...` or a URL. Connections are not encrypted.
    pub target: String,
    /// The site: how large it is, and how users walk.
    pub site: S,
    /// For [`load`]: replace a site of another scale or seed, and tables that are in the way.
    pub reload: bool,
    /// Emulated users at work.
    pub clients: u32,
    /// Database connections that they share; `None` is one each, at most 64.
    pub connections: Option<u32>,
    /// Pauses between pages are multiplied by this; 0 lets users click as fast as pages come.
    pub think_factor: f64,
    /// Time at the beginning that does not count; the users come one after the other during it.
    pub ramp: Duration,
    /// Time that counts.
    pub duration: Duration,
    /// How long a page may take before the user leaves.
    pub page_timeout: Duration,
    /// The same seed gives the same site, and the same users up to what the answers decide.
    pub seed: u64,
    /// How statements are sent.
    pub protocol: Protocol,
    /// An isolation level such as `SERIALIZABLE` for BEGIN; `None` leaves it to the server.
    pub isolation: Option<String>,
    /// Tell the target which tables each transaction will touch, and which it has used for the last time, as the papers'
    /// protocols want it; to others these are comments.
    pub declare: bool,
    /// Send each transaction as one text where users have one, for protocols that must know it before it runs. Other servers do not
    /// understand its references to earlier results.
    pub whole: bool,
    /// How often a transaction runs again after SQLSTATE 40001 or 40P01 before the user leaves.
    pub retries_max: u32,
    /// A folder for results; a new folder is made in it for each run.
    pub results: Option<PathBuf>,
    /// Show progress on standard error.
    pub progress: bool,
}

impl<S: Default> Default for Options<S> {
    /// The site's default for half a minute, with pauses a tenth as long as they should be.
    fn default() -> Self {
        Options {
            target: String::new(),
            site: S::default(),
            reload: false,
            clients: 50,
            connections: None,
            think_factor: 0.1,
            ramp: Duration::from_secs(3),
            duration: Duration::from_secs(30),
            page_timeout: Duration::from_secs(60),
            seed: 1,
            protocol: Protocol::Prepared,
            isolation: None,
            declare: false,
            whole: false,
            retries_max: 20,
            results: None,
            progress: true,
        }
    }
}

impl<S> Options<S> {
    /// Connections to open.
    pub(crate) fn connection_count(&self) -> u32 {
        self.connections.unwrap_or(self.clients.min(64)).clamp(1, self.clients.max(1))
    }

    pub(crate) fn begin(&self) -> Result<String> {
        let Some(level) = &self.isolation else { return Ok("BEGIN".to_owned()) };
        let level = level.to_uppercase();
        match level.as_str() {
            "SERIALIZABLE" | "REPEATABLE READ" | "READ COMMITTED" => {
                Ok(format!("BEGIN ISOLATION LEVEL {level}"))
            }
            _ => Err(Error::Option(format!(
                "there is no isolation level {level:?}: choose serializable, repeatable read or read committed"
            ))),
        }
    }
}

/// The time to the second, fit for a file's name.
pub(crate) fn time_stamp() -> String {
    now().to_string().replace([' ', ':'], "-").chars().take(19).collect()
}
