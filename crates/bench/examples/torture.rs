//! Tortures what a `cluster.json` describes, and compares the servers behind it.
//!
//! usage: torture DIR SECONDS [SEED] [workload ...|nondeterminism|bad_input]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use onecopy_bench::torture::{self, Isolation, Workload};
use onecopy_cluster::ClusterFile;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().ok_or("usage: torture DIR SECONDS [SEED] [workload ...]")?;
    let seconds: u64 = args.get(1).map_or(Ok(10), |text| text.parse())?;
    let seed: u64 = args.get(2).map_or(Ok(1), |text| text.parse())?;
    let cluster = ClusterFile::read(Path::new(dir))?;
    let dsn = cluster.client.dsn.clone();
    let names = args.get(3..).unwrap_or_default();
    let mut passed = true;
    if names.iter().any(|name| name == "nondeterminism") {
        let mut options = torture::nondeterminism::Options::new(&dsn);
        options.duration = Duration::from_secs(seconds);
        let report = torture::nondeterminism::run(&options).await?;
        println!("{report}");
        passed &= report.passed();
    } else if names.iter().any(|name| name == "bad_input") {
        let mut options = torture::bad_input::Options::new(&dsn);
        options.seed = Some(seed);
        let report = torture::bad_input::run(&options).await?;
        println!("{report}");
        passed &= report.passed();
    } else {
        let mut options = torture::Options::new(&dsn);
        options.duration = Duration::from_secs(seconds);
        options.seed = seed;
        options.isolation = Isolation::Mixed;
        options.go_on = false;
        let chosen: Vec<Workload> = Workload::ALL
            .into_iter()
            .filter(|workload| names.is_empty() || names.contains(&format!("{workload:?}")))
            .collect();
        options.workloads = chosen;
        let report = torture::run(&options).await?;
        println!("{report}");
        passed &= report.passed();
    }
    let dsns: Vec<String> = cluster.replicas.iter().map(|replica| replica.dsn.clone()).collect();
    let comparison =
        torture::compare_until_identical(&dsns, &Default::default(), Duration::from_secs(30)).await?;
    println!("{comparison}");
    if passed && comparison.identical() { Ok(()) } else { Err("something happened that must not".into()) }
}
