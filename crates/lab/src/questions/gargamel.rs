//! What Gargamel says (docs/protocols/chains.md, *How claims are read*).

use onecopy_workload::tpcc::{Kind, rules};

use super::{Open, Parts, SATURATES, part};
use crate::claims::Claim;
use crate::quantity::Quantity;
use crate::verdict::Test;
use crate::whole::{Judge, WholeExperiment, WholeMetric, shares_of_pairs};

/// Workers where the paper has as many as are wanted.
const UNBOUNDED: u16 = 2_000;
/// The paper's number of workers (Table I).
const WORKERS: u16 = 100;
/// So many of the paper's workers are as good as all.
const ALL_BUSY: f64 = 99.0;
/// Rates between which cost grows where there are as many workers as are wanted: of more, `round_robin` would want more of them.
const GROWTH: [u32; 3] = [40, 55, 70];
/// How much slower *negligible* may be.
const NEGLIGIBLE: f64 = 1.05;

pub(super) fn parts(claim: &Claim) -> Parts {
    match claim.id.as_str() {
        "gargamel-01" => over_others(claim, WholeMetric::UpdateResponse),
        "gargamel-02" => over_others(claim, WholeMetric::HighestOfUpdates),
        "gargamel-03" => an_order_of_magnitude(claim),
        "gargamel-04" => as_others(claim, WholeMetric::Throughput),
        "gargamel-05" => more_while_they_arrive(claim),
        "gargamel-06" => grows_with_the_rate(claim),
        "gargamel-07" => no_more_beyond(claim),
        "gargamel-08" => saturates_its_workers(claim),
        "gargamel-09" => over_others(claim, WholeMetric::Penalty),
        "gargamel-10" => low_penalties(claim),
        "gargamel-11" => as_others(claim, WholeMetric::SpeedUp),
        "gargamel-12" => speed_up_flattens(claim),
        "gargamel-13" => bounded(claim, WholeMetric::Queue),
        "gargamel-14" => one_chain_is_slow(claim),
        "gargamel-15" => all_are_busy(claim),
        "gargamel-16" => frees_workers(claim),
        "gargamel-17" => a_small_queue(claim),
        "gargamel-18" => wanted_workers(claim),
        "gargamel-19" => cheaper(claim),
        "gargamel-20" => as_others(claim, WholeMetric::Cost),
        "gargamel-21" => cost_of_others(claim),
        "gargamel-22" => false_positives(claim),
        "gargamel-23" => shares(claim),
        "gargamel-24" => conservative(claim),
        "gargamel-25" => in_vain(claim),
        _ => Err(Open("No reading of it is written down.".to_owned())),
    }
}

fn of(metric: WholeMetric, system: &str, rate: u32, workers: u16) -> Result<Quantity, Open> {
    Ok(Quantity::OfWhole(metric, WholeExperiment::new(system, rate, workers)?))
}

fn rate(claim: &Claim) -> Result<u32, Open> {
    claim.rates.first().copied().ok_or_else(|| Open("The paper gives no rate.".to_owned()))
}

fn value(claim: &Claim, place: usize) -> Result<f64, Open> {
    let values = &claim.values;
    values.get(place).copied().ok_or_else(|| Open("The paper gives no number.".to_owned()))
}

fn label(system: &str, rate: u32) -> String {
    format!("{system}, {rate} a second")
}

/// The first system over each other one.
fn over_others(claim: &Claim, metric: WholeMetric) -> Parts {
    let rate = rate(claim)?;
    let over = |other: &String| {
        let ratio = of(metric, &claim.systems[0], rate, WORKERS)? / of(metric, other, rate, WORKERS)?;
        Ok(part(format!("{rate} a second: over {other}"), Test::RatioNear(ratio, value(claim, 0)?)))
    };
    claim.systems[1..].iter().map(over).collect()
}

fn as_others(claim: &Claim, metric: WholeMetric) -> Parts {
    let rate = rate(claim)?;
    let like = |other: &String| {
        let (first, second) =
            (of(metric, &claim.systems[0], rate, WORKERS)?, of(metric, other, rate, WORKERS)?);
        Ok(part(format!("{rate} a second: as {other}"), Test::Equal(first, second)))
    };
    claim.systems[1..].iter().map(like).collect()
}

fn an_order_of_magnitude(claim: &Claim) -> Parts {
    let (high, low) = (claim.rates[0], claim.rates[1]);
    let mut parts = Vec::new();
    for other in &claim.systems[1..] {
        let highest = |system: &str| of(WholeMetric::Highest, system, high, WORKERS);
        let (ours, theirs) = (highest(&claim.systems[0])?, highest(other)?);
        parts.push(part(
            format!("{high} a second: more than {other}"),
            Test::More(ours.clone(), theirs.clone()),
        ));
        parts.push(part(
            format!("{high} a second: over {other}, at most"),
            Test::AtMost(ours / theirs, value(claim, 0)?),
        ));
        let penalty = |system: &str| of(WholeMetric::Penalty, system, low, WORKERS);
        let ratio = penalty(&claim.systems[0])? / penalty(other)?;
        parts.push(part(
            format!("{low} a second: penalty over {other}'s, at most"),
            Test::AtMost(ratio, NEGLIGIBLE),
        ));
    }
    Ok(parts)
}

fn more_while_they_arrive(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let throughput = |system: &str| of(WholeMetric::Throughput, system, rate, WORKERS);
    let mut parts = Vec::new();
    for other in &claim.systems[1..] {
        let test = Test::More(throughput(&claim.systems[0])?, throughput(other)?);
        parts.push(part(format!("{rate} a second: more than {other}"), test));
    }
    for system in &claim.systems {
        let afterwards = of(WholeMetric::ThroughputAfterwards, system, rate, WORKERS)?;
        parts.push(part(
            format!("{}: less afterwards", label(system, rate)),
            Test::More(throughput(system)?, afterwards),
        ));
    }
    Ok(parts)
}

fn grows_with_the_rate(claim: &Claim) -> Parts {
    let highest = |system: &str, rate: u32| of(WholeMetric::Highest, system, rate, WORKERS);
    let first = &claim.systems[0];
    let mut parts = Vec::new();
    for other in &claim.systems[1..] {
        let lead = |rate: u32| Ok::<_, Open>(highest(first, rate)? / highest(other, rate)?);
        let (low, high) = (claim.rates[0], claim.rates[claim.rates.len() - 1]);
        parts.push(part(
            format!("lead over {other}, {high} a second against {low}"),
            Test::More(lead(high)?, lead(low)?),
        ));
        let largest = |system: &str| {
            let all = claim.rates.iter().map(|rate| highest(system, *rate));
            Ok::<_, Open>(Quantity::Largest(all.collect::<Result<_, _>>()?))
        };
        let ratio = largest(first)? / largest(other)?;
        parts.push(part(
            format!("highest of all rates, over {other}"),
            Test::RatioNear(ratio, value(claim, 0)?),
        ));
    }
    Ok(parts)
}

/// From the claim's rate on each further transaction that arrives brings less than a tenth of a commit.
fn no_more_beyond(claim: &Claim) -> Parts {
    let from = value(claim, 0)? as u32;
    let mut parts = Vec::new();
    for system in &claim.systems {
        let at = |rate: u32| of(WholeMetric::Highest, system, rate, WORKERS);
        for &rate in claim.rates.iter().filter(|rate| **rate > from) {
            let gain = (at(rate)? - at(from)?) / Quantity::Constant(f64::from(rate - from));
            let label = format!("{system}: each transaction a second from {from} to {rate}");
            parts.push(part(label, Test::AtMost(gain, SATURATES)));
        }
    }
    Ok(parts)
}

/// The same, and there all workers execute something.
fn saturates_its_workers(claim: &Claim) -> Parts {
    let mut parts = no_more_beyond(claim)?;
    for system in &claim.systems {
        let rate = value(claim, 0)? as u32;
        let busy = of(WholeMetric::Busy, system, rate, WORKERS)?;
        parts.push(part(format!("{}: busy workers", label(system, rate)), Test::AtLeast(busy, ALL_BUSY)));
    }
    Ok(parts)
}

fn low_penalties(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let near = |(place, system): (usize, &String)| {
        let share = of(WholeMetric::PenaltyUpTo4, system, rate, WORKERS)?;
        Ok(part(label(system, rate), Test::Near(share, value(claim, place.min(1))?)))
    };
    claim.systems.iter().enumerate().map(near).collect()
}

/// Beyond the claim's rate a speed-up grows by less than a tenth of what it grew by for each transaction up to there.
fn speed_up_flattens(claim: &Claim) -> Parts {
    let from = value(claim, 0)? as u32;
    let mut parts = Vec::new();
    for system in &claim.systems {
        let at = |rate: u32| of(WholeMetric::SpeedUp, system, rate, WORKERS);
        for &rate in claim.rates.iter().filter(|rate| **rate > from) {
            let growth = (at(rate)? - at(from)?) / at(from)?;
            let steps = f64::from(rate - from) / f64::from(from);
            let label = format!("{system}: growth from {from} to {rate} over that up to {from}");
            parts.push(part(label, Test::AtMost(growth / Quantity::Constant(steps), SATURATES)));
        }
    }
    Ok(parts)
}

fn bounded(claim: &Claim, metric: WholeMetric) -> Parts {
    let rate = rate(claim)?;
    let bound = |system: &String| {
        let quantity = of(metric, system, rate, WORKERS)?;
        Ok(part(label(system, rate), Test::AtMost(quantity, value(claim, 0)?)))
    };
    claim.systems.iter().map(bound).collect()
}

fn one_chain_is_slow(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let (slow, other) = (&claim.systems[0], &claim.systems[1]);
    let pair = |metric, first: &str, second: &str| {
        Ok::<_, Open>(Test::More(of(metric, first, rate, WORKERS)?, of(metric, second, rate, WORKERS)?))
    };
    Ok(vec![
        part(format!("{other} has more workers busy"), pair(WholeMetric::Busy, other, slow)?),
        part(format!("{slow} takes longer for all"), pair(WholeMetric::Total, slow, other)?),
    ])
}

fn all_are_busy(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let mut parts = Vec::new();
    for system in &claim.systems {
        let busy = of(WholeMetric::Busy, system, rate, WORKERS)?;
        parts.push(part(
            format!("{}: busy workers", label(system, rate)),
            Test::AtLeast(busy, value(claim, 0)?),
        ));
        // Over ten and ten times that of chains.
        let (queue, chains) = (
            of(WholeMetric::Queue, system, rate, WORKERS)?,
            of(WholeMetric::Queue, "chains", rate, WORKERS)?,
        );
        let ten_times = chains / Quantity::Constant(1.0 / value(claim, 1)?);
        parts.push(part(
            format!("{}: queue, over ten times that of chains", label(system, rate)),
            Test::More(queue, ten_times),
        ));
    }
    Ok(parts)
}

fn frees_workers(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let busy = |system: &str| of(WholeMetric::BusyAfterwards, system, rate, WORKERS);
    let first = &claim.systems[0];
    let mut parts = vec![part(label(first, rate), Test::AtMost(busy(first)?, value(claim, 0)?))];
    for other in &claim.systems[1..] {
        parts.push(part(label(other, rate), Test::AtLeast(busy(other)?, value(claim, 1)?)));
    }
    Ok(parts)
}

fn a_small_queue(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let queue = |system: &str| of(WholeMetric::Queue, system, rate, WORKERS);
    let ratio = queue(&claim.systems[0])? / queue(&claim.systems[1])?;
    Ok(vec![part(
        format!("{rate} a second: over {}", claim.systems[1]),
        Test::AtMost(ratio, value(claim, 0)?),
    )])
}

fn wanted_workers(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let busy = |system: &str| of(WholeMetric::Busy, system, rate, UNBOUNDED);
    Ok(vec![
        part(label(&claim.systems[0], rate), Test::AtMost(busy(&claim.systems[0])?, value(claim, 0)?)),
        part(label(&claim.systems[1], rate), Test::Near(busy(&claim.systems[1])?, value(claim, 1)?)),
    ])
}

fn cheaper(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let cost = |system: &str| of(WholeMetric::Cost, system, rate, UNBOUNDED);
    let ratio = cost(&claim.systems[0])? / cost(&claim.systems[1])?;
    Ok(vec![part(format!("{rate} a second"), Test::RatioNear(ratio, value(claim, 0)?))])
}

fn cost_of_others(claim: &Claim) -> Parts {
    let (low, high) = (claim.rates[0], claim.rates[1]);
    let mut parts = Vec::new();
    for system in &claim.systems {
        let cost = |rate, workers| of(WholeMetric::Cost, system, rate, workers);
        parts.push(part(
            format!("{system}, {WORKERS} workers: {high} a second as {low}"),
            Test::Equal(cost(high, WORKERS)?, cost(low, WORKERS)?),
        ));
        // What the others cost at a low rate is as little as chains, so the line does not begin at zero.
        let [low, middle, high] = GROWTH;
        let grows = |from, to| Ok::<_, Open>(cost(to, UNBOUNDED)? - cost(from, UNBOUNDED)?);
        let growth = grows(middle, high)? / grows(low, middle)?;
        let label = format!(
            "{system}, as many workers as are wanted: growth from {middle} to {high} a second over that from {low}"
        );
        parts.push(part(label, Test::Near(growth, value(claim, 1)?)));
    }
    Ok(parts)
}

/// Pairs of updates of a supplier of the paper's size.
fn false_positives(claim: &Claim) -> Parts {
    let shares = shares_of_pairs(Judge::TableTwo);
    let percent = |count: u64| 100.0 * count as f64 / shares.all as f64;
    let (by_name, others) = (percent(shares.in_vain_by_name), percent(shares.in_vain_otherwise));
    let paper = value(claim, 0)?;
    let near = (by_name - paper).abs() <= 0.25 * paper;
    Ok(vec![
        part("pairs of payments with a customer found by name", Test::Known(near, format!("{by_name:.3} %"))),
        part("no others", Test::Known(shares.in_vain_otherwise == 0, format!("{others:.3} %"))),
    ])
}

fn shares(claim: &Claim) -> Parts {
    let share = |kinds: &[Kind]| kinds.iter().map(|kind| rules().share_percent(*kind)).sum::<i64>() as f64;
    let updates = share(&[Kind::NewOrder, Kind::Payment, Kind::Delivery]);
    let reads = share(&[Kind::OrderStatus, Kind::StockLevel]);
    let holds = (updates, reads) == (value(claim, 0)?, value(claim, 1)?);
    Ok(vec![part("percent", Test::Known(holds, format!("{updates} and {reads}")))])
}

fn conservative(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let throughput = |system: &str| of(WholeMetric::Throughput, system, rate, WORKERS);
    let test = Test::More(throughput(&claim.systems[1])?, throughput(&claim.systems[0])?);
    Ok(vec![part(format!("{}: more", label(&claim.systems[1], rate)), test)])
}

fn in_vain(claim: &Claim) -> Parts {
    let rate = rate(claim)?;
    let vain = |system: &str| of(WholeMetric::InVain, system, rate, WORKERS);
    let first = &claim.systems[0];
    let mut parts = vec![part(label(first, rate), Test::AtMost(vain(first)?, value(claim, 0)?))];
    for other in &claim.systems[1..] {
        parts.push(part(label(other, rate), Test::AtLeast(vain(other)?, value(claim, 1)?)));
    }
    Ok(parts)
}
