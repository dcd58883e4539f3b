//! Sites at a distance, as processes: the micro-benchmark of *A Middleware for Consistent Data Replication: Is it feasible in WANs?* (Lin and
//! others, Euro-Par 2005, section 5.1) on real servers, by any of the protocol's choices.
//!
//! Ten tables; half of the transactions update ten rows of one of them, half read ten. They arrive at random, whether or not others are answered,
//! each at a site drawn at random. Everything runs on this machine: sites, their servers, and the ways between them ([`distance`]).
//!
//! ```no_run
//! # async fn demo() -> onecopy_bench::Result<()> {
//! use onecopy_bench::wide_area::{self, Options};
//! println!("{}", wide_area::run(&Options::default()).await?);
//! # Ok(()) }
//! ```

pub mod distance;
mod load;
mod report;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use onecopy_cluster::{Binaries, Cluster, Server, free_port};
use serde::Serialize;

use crate::bar::Bar;
use crate::compare::Machine;
use crate::connection::Target;
use crate::cpu;
use crate::cpu_groups::{CpuGroup, Hierarchy};
use crate::nodes::{Nodes, Setup};
use crate::torture::{CompareOptions, compare_until_identical};
use crate::workplace::Workplace;
use crate::{Error, Result};
use distance::{Distance, Topology};
use load::Stage;
pub use load::{Shape, Spent, Times};
pub use report::Comparison;

/// How long sites may take to hold the same in the end.
const CATCH_UP: Duration = Duration::from_secs(60);
/// Milliseconds after which a site that hears nothing asks to lead: several times what a word and its answer take between continents.
const ELECTION_TIMEOUT_MS: u64 = 2_000;

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// By what, in this order.
    pub choices: Vec<Choice>,
    /// Where the sites are.
    pub topology: Topology,
    /// Transactions a second at all sites together, one after the other.
    pub rates: Vec<u32>,
    /// How long transactions arrive before at a rate that rises to the next one, and do not count.
    pub warm_up: Duration,
    /// How long transactions arrive at one rate.
    pub duration: Duration,
    /// The share of one processor that a site's process and its server get together; `None` for what they can.
    pub cap: Option<f64>,
    /// Rows of each table.
    pub rows: u32,
    /// The same seed gives the same arrivals.
    pub seed: u64,
    /// Where it works, and what it leaves.
    pub workplace: Workplace,
}

impl Default for Options {
    /// Symmetric execution, local copies and certification at four sites, each held to a quarter of a processor.
    fn default() -> Self {
        Options {
            choices: [
                ("symmetric", "safe"),
                ("local_copy", "safe"),
                ("symmetric", "agreed"),
                (CERTIFIED, "safe"),
            ]
            .map(|(execution, delivery)| Choice {
                queries: "snapshot".to_owned(),
                execution: execution.to_owned(),
                delivery: delivery.to_owned(),
                items: "rows".to_owned(),
            })
            .to_vec(),
            topology: Topology::FourSites,
            rates: vec![20, 40, 80],
            warm_up: Duration::from_secs(5),
            duration: Duration::from_secs(15),
            cap: Some(0.25),
            rows: 10_000,
            seed: 1,
            workplace: Workplace::default(),
        }
    }
}

/// One of the combinations of `wide_area`, by the words of its configuration; or `certified`, which has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// How queries are treated.
    pub queries: String,
    /// Where updates execute.
    pub execution: String,
    /// What is waited for.
    pub delivery: String,
    /// What conflicts are counted on.
    pub items: String,
}

/// The protocol that executes before it orders. It stands among the places of execution.
const CERTIFIED: &str = "certified";
/// The words of each aspect, the first of which stands where none is said.
const WORDS: [&[&str]; 4] = [
    &["snapshot", "locked"],
    &["symmetric", "primary_copy", "local_copy", CERTIFIED],
    &["safe", "agreed", "opt_agreed", "opt_safe", "ordered_opt_safe"],
    &["rows", "tables"],
];

impl FromStr for Choice {
    type Err = String;

    /// Words in any order, with a plus between them: `locked+symmetric+agreed`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut chosen = WORDS.map(|words| words[0].to_owned());
        for word in text.split('+') {
            let Some(aspect) = WORDS.iter().position(|words| words.contains(&word)) else {
                return Err(format!("{word:?} is none of {}", WORDS.concat().join(", ")));
            };
            word.clone_into(&mut chosen[aspect]);
        }
        let [queries, execution, delivery, items] = chosen;
        let choice = Choice { queries, execution, delivery, items };
        let has_others =
            [&choice.queries, &choice.delivery, &choice.items] != [WORDS[0][0], WORDS[2][0], WORDS[3][0]];
        if choice.is_certified() && has_others {
            return Err(format!(
                "{CERTIFIED} stands alone: it reads snapshots, is safe, and counts conflicts on rows"
            ));
        }
        Ok(choice)
    }
}

impl Choice {
    fn is_certified(&self) -> bool {
        self.execution == CERTIFIED
    }

    /// What a site's configuration says of it.
    fn settings(&self) -> String {
        let Choice { queries, execution, delivery, items } = self;
        match self.is_certified() {
            true => format!("protocol = \"{CERTIFIED}\"\n"),
            false => format!(
                "protocol = \"wide_area\"\nwide_area.queries = \"{queries}\"\nwide_area.execution = \"{execution}\"\n\
                 wide_area.delivery = \"{delivery}\"\nwide_area.items = \"{items}\"\n"
            ),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { queries, execution, delivery, items } = self;
        match self.is_certified() {
            true => f.pad(CERTIFIED),
            false => f.pad(&format!("{queries}+{execution}+{delivery}+{items}")),
        }
    }
}

/// One rate by one choice.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// By what.
    pub choice: Choice,
    /// Transactions a second that arrived.
    pub rate: u32,
    /// Those that were answered meanwhile, a second.
    pub carried: f64,
    /// CPU time that all sites' processes, and all their servers, took for each of these, in milliseconds.
    pub cpu_ms: Spent,
    /// Response times of updates.
    pub updates: Times,
    /// Response times of queries.
    pub queries: Times,
    /// Transactions that failed, and why the first did.
    pub failed: u64,
    /// The first error, if there was one.
    pub failure: Option<String>,
}

/// Starts the sites, measures and stops them, for each choice.
///
/// # Errors
/// When there is no PostgreSQL, sites cannot be started, or they differ in the end.
pub async fn run(options: &Options) -> Result<Comparison> {
    if options.rates.is_empty() || options.rates.contains(&0) || options.duration.is_zero() {
        return Err(Error::Option("rates and duration must be above zero".to_owned()));
    }
    let binaries = Binaries::find()?;
    let hierarchy = match options.cap {
        Some(_) => Some(Hierarchy::find().map_err(|error| Error::Option(error.to_string()))?),
        None => None,
    };
    let results = options.workplace.results_folder("wide-area")?;
    let bar = options.workplace.bar(options.choices.len() * options.rates.len());
    let machine = Machine::look(&binaries, &[("onecopy", Some(&*options.workplace.onecopy))]);
    let mut comparison = Comparison::new(options, machine);
    for choice in &options.choices {
        bar.say(format!("starting {choice}"));
        measure(options, choice, hierarchy.as_ref(), &bar, &mut comparison).await?;
    }
    bar.finish();
    if let Some(results) = &results {
        comparison.save(results)?;
    }
    Ok(comparison)
}

async fn measure(
    options: &Options,
    choice: &Choice,
    hierarchy: Option<&Hierarchy>,
    bar: &Bar,
    comparison: &mut Comparison,
) -> Result<()> {
    let shape = Shape { rows: options.rows, ..Shape::default() };
    let folder = options.workplace.work_folder("wide-area")?;
    let count = options.topology.sites();
    let mut servers =
        Cluster::create(folder.path().join("servers"), count, &onecopy_cluster::Options::replica())?;
    servers.start()?;
    let dsns: Vec<String> = servers.servers().iter().map(Server::dsn).collect();
    for dsn in &dsns {
        let client = Target::parse(dsn)?.connect().await?;
        client.batch_execute(&shape.setup()).await.map_err(Error::database("make the tables"))?;
    }
    let ports = (0..count).map(|_| Ok(free_port()?)).collect::<Result<Vec<u16>>>()?;
    let distance = Distance::open(options.topology, &ports, options.seed)
        .await
        .map_err(|error| Error::Option(format!("open the ways between sites: {error}")))?;
    let settings =
        format!("{}workers = 1\ncluster.election_timeout_ms = {ELECTION_TIMEOUT_MS}\n", choice.settings());
    let setup = Setup { onecopy: &options.workplace.onecopy, count: count as u32, settings };
    let sites = Nodes::start_sites(&setup, folder.path(), &servers, &ports, &distance).await?;
    let mut groups = Vec::new();
    if let (Some(hierarchy), Some(cap)) = (hierarchy, options.cap) {
        let roots = servers.servers().iter().map(Server::pid).zip(sites.pids());
        for (number, (server, site)) in roots.enumerate() {
            let made = CpuGroup::create(hierarchy, &format!("site-{}", number + 1), Some(cap));
            let filled = made.and_then(|group| {
                server.into_iter().chain([site]).try_for_each(|root| group.add_tree(root))?;
                Ok(group)
            });
            groups.push(filled.map_err(|error| Error::Option(error.to_string()))?);
        }
    }
    let targets: Vec<Target> =
        (0..count).map(|site| Target::parse(&sites.dsn(site))).collect::<Result<_>>()?;
    load::await_service(&targets).await?;
    let servers_of: Vec<u32> = servers.servers().iter().filter_map(Server::pid).collect();
    let processes = sites.pids();
    let spent = || Spent { sites: cpu::spent_s(&processes), servers: cpu::spent_s(&servers_of) };
    let pools = load::pools(&targets);
    for (step, rate) in options.rates.iter().enumerate() {
        bar.say(format!("{choice}: {rate} a second"));
        let seed = options.seed.wrapping_mul(1_000).wrapping_add(step as u64);
        let stage = Stage { rate: *rate, warm_up: options.warm_up, duration: options.duration, seed };
        let measured = load::run(&shape, &pools, &stage, spent).await?;
        comparison.samples.push(Sample {
            choice: choice.clone(),
            rate: *rate,
            carried: measured.carried,
            cpu_ms: measured.cpu_ms,
            updates: measured.updates,
            queries: measured.queries,
            failed: measured.failed,
            failure: measured.failure,
        });
        bar.step();
    }
    for group in &groups {
        group.set_cap(None).map_err(|error| Error::Option(error.to_string()))?;
    }
    let compared = compare_until_identical(&dsns, &CompareOptions::default(), CATCH_UP).await?;
    if !compared.identical() {
        return Err(Error::Option(format!("{choice}: sites differ in the end: {:?}", compared.differences)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_what_is_said_of_it_and_the_rest_is_usual() {
        let chosen: Choice = "locked+agreed".parse().unwrap();
        assert_eq!(chosen.to_string(), "locked+symmetric+agreed+rows");
        assert_eq!("tables+locked+agreed+rows".parse::<Choice>().unwrap(), chosen);
        assert!("locked+fast".parse::<Choice>().unwrap_err().contains("opt_safe"));
        assert_eq!("certified".parse::<Choice>().unwrap().to_string(), "certified");
        assert!("certified+agreed".parse::<Choice>().unwrap_err().contains("alone"));
    }
}
