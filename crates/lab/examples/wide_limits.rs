//! How much sites carry until updates, or queries, take longer than 800 ms: the paper's protocols for wide areas, the same on rows, and certification.
//!
//! `cargo run --release -p onecopy-lab --example wide_limits [SITES [VARIATION | MIX | RATE | PART]...]`, with 4 sites and `this-machine` unless something else is said; with
//! `browsing`, `shopping` or `ordering` it is not the paper's benchmark but the bookstore's transactions; with rates (a second) nothing but
//! these is asked; what is none of these is the name of a system that is to run, or a part of all names of those that are. Each figure is the mean of three seeds
//! of 30 seconds at least. A rate is within the limit if updates and queries take at most 800 ms on average, and nine of ten transactions are answered as fast as they come.
//! What is past the limit is 3 % more; how late answers are there grows with the length of a run, so limits are so good to about 5 %.

use std::error::Error;

use onecopy_lab::Variation;
use onecopy_lab::wide::{Arrivals, WideExperiment, WideMetric};

const LIMIT_S: f64 = 0.8;
/// What is carried is answered as fast as it comes, to within this.
const CARRIED: f64 = 0.9;
const SEEDS: u64 = 3;
/// Steps up to the limit.
const STEP: f64 = 1.3;
/// Up to where it is narrowed down.
const CLOSE: f64 = 1.03;
const SYSTEMS: [&str; 12] = [
    "symmetric agreed",
    "symmetric safe",
    "primary_copy agreed",
    "local_copy agreed",
    "locked symmetric agreed",
    "symmetric agreed rows",
    "primary_copy agreed rows",
    "local_copy agreed rows",
    "local_copy safe rows",
    "ordered local_copy agreed rows",
    "certified agreed",
    "certified safe",
];

struct At {
    rate: u32,
    updates_s: f64,
    undone: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let sites: u16 = words.next().map_or(Ok(4), |word| word.parse())?;
    let (mut variations, mut parts, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut arrivals = Arrivals::TenTables;
    for word in words {
        match (Variation::named(&word), word.parse()) {
            (Some(known), _) => variations.push(known),
            (None, Ok(mix)) => arrivals = Arrivals::Bookstore(mix),
            (None, Err(_)) => match word.parse() {
                Ok(rate) => rates.push(rate),
                Err(_) => parts.push(word),
            },
        }
    }
    if variations.is_empty() {
        variations.push(Variation::ThisMachine);
    }
    let names: Vec<&str> = variations.iter().map(|variation| variation.name()).collect();
    println!("{sites} sites, {arrivals:?}, {}\n", names.join(", "));
    println!("{:<32}{:>12}{:>12}{:>12}{:>12}", "", "a second", "over first", "updates, ms", "undone, %");
    let mut first = None;
    let is_named = |system: &str| parts.iter().any(|part| part == system);
    let is_a_name = SYSTEMS.into_iter().any(is_named);
    let is_meant = |system: &&str| match is_a_name {
        true => is_named(system),
        false => parts.iter().all(|part| system.contains(part.as_str())),
    };
    for system in SYSTEMS.into_iter().filter(is_meant) {
        for &rate in &rates {
            match try_rate(system, sites, (rate, arrivals), &variations)? {
                Some(At { updates_s, undone, .. }) => {
                    println!(
                        "{system:<32}{rate:>12}{:>12}{:>12.0}{:>12.2}",
                        "",
                        updates_s * 1e3,
                        undone * 1e2
                    );
                }
                None => println!("{system:<32}{rate:>12}{:>12}{:>12}", "", "beyond"),
            }
        }
        if !rates.is_empty() {
            continue;
        }
        let At { rate, updates_s, undone } = limit(system, sites, arrivals, &variations)?;
        let over = f64::from(rate) / f64::from(*first.get_or_insert(rate));
        println!("{system:<32}{rate:>12}{over:>12.2}{:>12.0}{:>12.2}", updates_s * 1e3, undone * 1e2);
    }
    Ok(())
}

/// The highest rate within the limit.
fn limit(
    system: &str,
    sites: u16,
    arrivals: Arrivals,
    variations: &[Variation],
) -> Result<At, Box<dyn Error>> {
    let mut within = At { rate: 0, updates_s: 0.0, undone: 0.0 };
    let (mut rate, mut beyond) = (8 * u32::from(sites), None);
    loop {
        match try_rate(system, sites, (rate, arrivals), variations)? {
            Some(at) => within = at,
            None => beyond = Some(rate),
        }
        rate = match beyond {
            None => (f64::from(rate) * STEP) as u32,
            Some(beyond)
                if f64::from(beyond) > f64::from(within.rate) * CLOSE && beyond > within.rate + 1 =>
            {
                within.rate.midpoint(beyond)
            }
            Some(_) => return Ok(within),
        };
    }
}

/// Nothing if something takes too long.
fn try_rate(
    system: &str,
    sites: u16,
    (rate, arrivals): (u32, Arrivals),
    variations: &[Variation],
) -> Result<Option<At>, Box<dyn Error>> {
    let mut experiment = WideExperiment { arrivals, ..WideExperiment::new(system, sites, rate)? };
    variations.iter().for_each(|variation| variation.apply_to_wide(&mut experiment));
    let mut sums = [0.0; 4];
    let metrics = [WideMetric::Updates, WideMetric::Queries, WideMetric::Throughput, WideMetric::Undone];
    for seed in 0..SEEDS {
        // With so long a wait in one of them, what the others find makes no difference.
        let Some(figures) = experiment.run_within(seed, LIMIT_S * SEEDS as f64)? else { return Ok(None) };
        for (sum, metric) in sums.iter_mut().zip(metrics) {
            *sum += figures.get(metric) / SEEDS as f64;
        }
    }
    let [updates_s, queries_s, throughput, undone] = sums;
    let is_within = updates_s <= LIMIT_S && queries_s <= LIMIT_S && throughput >= CARRIED * f64::from(rate);
    Ok(is_within.then_some(At { rate, updates_s, undone }))
}
