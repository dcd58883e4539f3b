//! What the paper on wide areas says (docs/protocols/wide_area.md, *How claims are read*).

use onecopy_core::protocol::wide_area::Choice;

use super::{Open, Part, Parts, part};
use crate::claims::Claim;
use crate::quantity::Quantity;
use crate::verdict::Test;
use crate::wide::{WideExperiment, WideMetric};

/// Kinds of delivery, the fastest first.
const DELIVERIES: [&str; 3] = ["agreed", "opt_safe", "safe"];

pub(super) fn parts(claim: &Claim) -> Parts {
    match claim.id.as_str() {
        "wan-04" => between(claim),
        "wan-05" => sixty(claim),
        "wan-06" => more_than_alone(claim),
        "wan-07" => in_this_order(claim, &claim.rates),
        "wan-08" => mostly_the_message(claim),
        "wan-09" => every_part_grows(claim),
        "wan-10" => messages_wait_for_writes(claim),
        "wan-11" => local_share(claim),
        "wan-12" => nearer_to(claim),
        "wan-14" => in_this_order(claim, &claim.rates),
        "wan-15" => locked_as_snapshot(claim),
        "wan-16" => locked_is_worse(claim),
        "wan-17" => climbs_late(claim),
        "wan-18" => deliveries_rank(claim),
        "wan-19" | "wan-34" => within(claim),
        "wan-20" => received_as_ordered(claim),
        "wan-21" => stable_alike(claim),
        "wan-22" => grow_with_load(claim),
        "wan-23" => rank_alike(claim),
        "wan-24" => overlap_shrinks(claim),
        "wan-25" => hardly_out_of_order(claim),
        "wan-27" => sooner_with_sites(claim),
        "wan-28" => later_with_sites(claim),
        "wan-29" => best_with_four(claim),
        "wan-30" => eighty(claim),
        "wan-31" => gains_less(claim),
        "wan-32" => takes_less(claim),
        "wan-33" => carried(claim),
        "wan-36" => Ok(vec![part("protocols", number_of_protocols(claim)?)]),
        _ => Err(Open("No reading of it is written down.".to_owned())),
    }
}

/// A time of a system; `local` and `remote` behind its name mean updates that execute at their client's site, or elsewhere.
fn of(metric: WideMetric, system: &str, sites: u16, rate: u32) -> Result<Quantity, Open> {
    let (name, metric) = match (metric, system.rsplit_once(' ')) {
        (WideMetric::Updates, Some((name, "local"))) => (name, WideMetric::LocalUpdates),
        (WideMetric::Updates, Some((name, "remote"))) => (name, WideMetric::RemoteUpdates),
        _ => (system, metric),
    };
    Ok(Quantity::OfWide(metric, WideExperiment::new(name, sites, rate)?))
}

fn updates(system: &str, sites: u16, rate: u32) -> Result<Quantity, Open> {
    of(WideMetric::Updates, system, sites, rate)
}

fn at(what: &str, sites: u16, rate: u32) -> String {
    format!("{what}, {sites} sites, {rate} a second")
}

fn sites(claim: &Claim) -> Result<u16, Open> {
    claim.replicas.first().copied().ok_or_else(|| Open("The paper gives no number of sites.".to_owned()))
}

fn value(claim: &Claim, place: usize) -> Result<f64, Open> {
    claim.values.get(place).copied().ok_or_else(|| Open("The paper gives no number.".to_owned()))
}

fn first_and_last(rates: &[u32]) -> Result<(u32, u32), Open> {
    match rates {
        [first, .., last] => Ok((*first, *last)),
        _ => Err(Open("The paper gives too few rates.".to_owned())),
    }
}

fn between(claim: &Claim) -> Parts {
    let (sites, (low, high)) = (sites(claim)?, first_and_last(&claim.rates)?);
    let mut parts = Vec::new();
    for system in &claim.systems {
        let least = Test::AtLeast(updates(system, sites, low)?, value(claim, 0)?);
        parts.push(part(at(system, sites, low), least));
        let most = Test::AtMost(updates(system, sites, high)?, value(claim, 1)?);
        parts.push(part(at(system, sites, high), most));
    }
    Ok(parts)
}

/// What is carried is answered as fast as it comes, to within this.
const CARRIED: f64 = 0.95;

fn is_carried(system: &str, sites: u16, rate: u32) -> Result<Part, Open> {
    let throughput = of(WideMetric::Throughput, system, sites, rate)?;
    Ok(part(
        at(&format!("{system}: carried"), sites, rate),
        Test::AtLeast(throughput, CARRIED * f64::from(rate)),
    ))
}

fn is_too_much(system: &str, sites: u16, rate: u32) -> Result<Part, Open> {
    let throughput = of(WideMetric::Throughput, system, sites, rate)?;
    Ok(part(
        at(&format!("{system}: not carried"), sites, rate),
        Test::AtMost(throughput, CARRIED * f64::from(rate)),
    ))
}

fn sixty(claim: &Claim) -> Parts {
    let (sites, rate) = (sites(claim)?, claim.rates[0]);
    let (first, others) = (&claim.systems[0], &claim.systems[1..]);
    let fast = Test::AtMost(updates(first, sites, rate)?, value(claim, 0)?);
    let mut parts = vec![is_carried(first, sites, rate)?, part(at(first, sites, rate), fast)];
    for other in others {
        parts.push(is_carried(other, sites, rate)?);
        let least = Test::AtLeast(updates(other, sites, rate)?, value(claim, 1)?);
        parts.push(part(at(&format!("{other}: at least"), sites, rate), least));
        let most = Test::AtMost(updates(other, sites, rate)?, value(claim, 2)?);
        parts.push(part(at(&format!("{other}: at most"), sites, rate), most));
    }
    Ok(parts)
}

fn more_than_alone(claim: &Claim) -> Parts {
    let (sites, system) = (sites(claim)?, &claim.systems[0]);
    let (low, high) = first_and_last(&claim.rates)?;
    let limit = value(claim, 0)?;
    Ok(vec![
        part(at(system, sites, low), Test::AtMost(updates(system, sites, low)?, limit)),
        part(at("too much", sites, high), Test::AtLeast(updates(system, sites, high)?, limit)),
    ])
}

/// Each system takes less than the next one.
fn in_this_order(claim: &Claim, rates: &[u32]) -> Parts {
    let sites = sites(claim)?;
    let mut parts = Vec::new();
    for rate in rates {
        for pair in claim.systems.windows(2) {
            let test = Test::More(updates(&pair[1], sites, *rate)?, updates(&pair[0], sites, *rate)?);
            parts.push(part(at(&format!("{} over {}", pair[1], pair[0]), sites, *rate), test));
        }
    }
    Ok(parts)
}

fn mostly_the_message(claim: &Claim) -> Parts {
    let (sites, rate, first) = (sites(claim)?, claim.rates[0], &claim.systems[0]);
    let share = of(WideMetric::Delivery, first, sites, rate)? / updates(first, sites, rate)?;
    let mut parts = vec![part(at("delivery's share", sites, rate), Test::AtLeast(share, value(claim, 0)?))];
    for system in &claim.systems {
        let (delivery, execution) =
            (of(WideMetric::Delivery, system, sites, rate)?, of(WideMetric::Execution, system, sites, rate)?);
        parts.push(part(
            at(&format!("{system}: delivery over execution"), sites, rate),
            Test::More(delivery, execution),
        ));
    }
    Ok(parts)
}

fn every_part_grows(claim: &Claim) -> Parts {
    let (sites, (low, high)) = (sites(claim)?, first_and_last(&claim.rates)?);
    let mut parts = Vec::new();
    for system in &claim.systems {
        for (name, metric) in [
            ("delivery", WideMetric::Delivery),
            ("execution", WideMetric::Execution),
            ("rest", WideMetric::Rest),
        ] {
            let test = Test::More(of(metric, system, sites, high)?, of(metric, system, sites, low)?);
            parts.push(part(format!("{system}: {name}, {high} a second over {low}"), test));
        }
    }
    Ok(parts)
}

fn messages_wait_for_writes(claim: &Claim) -> Parts {
    let (sites, (low, high)) = (sites(claim)?, first_and_last(&claim.rates)?);
    let delivery = |system: &str, rate: u32| of(WideMetric::Delivery, system, sites, rate);
    let over = |rate: u32| {
        let (first, second) = (delivery(&claim.systems[0], rate)?, delivery(&claim.systems[1], rate)?);
        Ok::<_, Open>((first, second))
    };
    let mut parts = Vec::new();
    for rate in [low, high] {
        let (first, second) = over(rate)?;
        parts.push(part(at("delivery", sites, rate), Test::More(first, second)));
    }
    let ratio = |rate: u32| over(rate).map(|(first, second)| first / second);
    parts.push(part(format!("more so at {high} than at {low}"), Test::More(ratio(high)?, ratio(low)?)));
    Ok(parts)
}

fn local_share(claim: &Claim) -> Parts {
    let (sites, rate, system) = (sites(claim)?, claim.rates[0], &claim.systems[0]);
    let share = of(WideMetric::Local, system, sites, rate)?;
    Ok(vec![part(at("local", sites, rate), Test::Near(share, value(claim, 0)?))])
}

fn nearer_to(claim: &Claim) -> Parts {
    let (sites, (low, high)) = (sites(claim)?, first_and_last(&claim.rates)?);
    let (local, primary) = (&claim.systems[0], &claim.systems[1]);
    let distances = |rate: u32| {
        let it = updates(local, sites, rate)?;
        let near = updates(&format!("{primary} local"), sites, rate)?;
        let far = updates(&format!("{primary} remote"), sites, rate)?;
        Ok::<_, Open>((it.clone() - near, far - it))
    };
    let ((to_local, to_remote), (then_local, then_remote)) = (distances(low)?, distances(high)?);
    Ok(vec![
        part(at("nearer to local updates", sites, low), Test::More(to_remote, to_local)),
        part(at("nearer to remote updates", sites, high), Test::More(then_local, then_remote)),
    ])
}

const TIMES: [(&str, WideMetric); 2] = [("queries", WideMetric::Queries), ("updates", WideMetric::Updates)];

fn locked_as_snapshot(claim: &Claim) -> Parts {
    let sites = sites(claim)?;
    let mut parts = Vec::new();
    for rate in &claim.rates {
        for (name, metric) in TIMES {
            let [snapshot, locked] = [0, 1].map(|place| of(metric, &claim.systems[place], sites, *rate));
            parts.push(part(at(name, sites, *rate), Test::Equal(locked?, snapshot?)));
        }
    }
    Ok(parts)
}

fn locked_is_worse(claim: &Claim) -> Parts {
    let (sites, (low, high)) = (sites(claim)?, first_and_last(&claim.rates)?);
    let mut parts = Vec::new();
    for system in &claim.systems {
        let locked = format!("locked {system}");
        for (name, metric) in TIMES {
            let pair = |rate: u32| {
                Ok::<_, Open>((of(metric, &locked, sites, rate)?, of(metric, system, sites, rate)?))
            };
            for rate in [low, high] {
                let (locked, snapshot) = pair(rate)?;
                parts.push(part(at(&format!("{system}: {name}"), sites, rate), Test::More(locked, snapshot)));
            }
            let ratio = |rate: u32| pair(rate).map(|(locked, snapshot)| locked / snapshot);
            parts.push(part(
                format!("{system}: {name}, more so at {high} than at {low}"),
                Test::More(ratio(high)?, ratio(low)?),
            ));
        }
    }
    Ok(parts)
}

/// From the third rate to the fourth it grows faster than from the first to the second.
fn climbs_late(claim: &Claim) -> Parts {
    let (sites, system) = (sites(claim)?, &claim.systems[0]);
    let [one, two, three, four] = claim.rates[..] else {
        return Err(Open("The paper gives other rates.".to_owned()));
    };
    let slope = |from: u32, to: u32| {
        let more = updates(system, sites, to)? - updates(system, sites, from)?;
        Ok::<_, Open>(more / Quantity::Constant(f64::from(to - from)))
    };
    let label = format!("{three} to {four} a second against {one} to {two}, s for each");
    Ok(vec![part(label, Test::More(slope(three, four)?, slope(one, two)?))])
}

fn deliveries_rank(claim: &Claim) -> Parts {
    let mut parts = in_this_order(claim, &claim.rates)?;
    let sites = sites(claim)?;
    for rate in &claim.rates {
        let ratio = updates(&claim.systems[2], sites, *rate)? / updates(&claim.systems[1], sites, *rate)?;
        parts.push(part(
            at("safe over opt_safe, at most", sites, *rate),
            Test::AtMost(ratio, value(claim, 0)?),
        ));
    }
    Ok(parts)
}

fn within(claim: &Claim) -> Parts {
    let sites = sites(claim)?;
    let mut parts = Vec::new();
    for system in &claim.systems {
        for rate in &claim.rates {
            let test = Test::AtMost(updates(system, sites, *rate)?, value(claim, 0)?);
            parts.push(part(at(system, sites, *rate), test));
        }
    }
    Ok(parts)
}

fn received_as_ordered(claim: &Claim) -> Parts {
    let (sites, system) = (sites(claim)?, &claim.systems[0]);
    let each = |rate: &u32| {
        let (received, ordered) =
            (of(WideMetric::Received, system, sites, *rate)?, of(WideMetric::Ordered, system, sites, *rate)?);
        Ok(part(at(system, sites, *rate), Test::Equal(received, ordered)))
    };
    claim.rates.iter().map(each).collect()
}

fn stable_alike(claim: &Claim) -> Parts {
    let sites = sites(claim)?;
    let each = |rate: &u32| {
        let stable = |system: &str| of(WideMetric::Stable, system, sites, *rate);
        let test = Test::Equal(stable(&claim.systems[0])?, stable(&claim.systems[1])?);
        Ok(part(at("stable", sites, *rate), test))
    };
    claim.rates.iter().map(each).collect()
}

fn grow_with_load(claim: &Claim) -> Parts {
    let sites = sites(claim)?;
    let mut parts = Vec::new();
    for system in &claim.systems {
        let last = if system.ends_with("agreed") { WideMetric::Ordered } else { WideMetric::Stable };
        for (name, metric) in [("delivery", last), ("response", WideMetric::Updates)] {
            for step in claim.rates.windows(2) {
                let test =
                    Test::More(of(metric, system, sites, step[1])?, of(metric, system, sites, step[0])?);
                parts.push(part(format!("{system}: {name}, {} a second over {}", step[1], step[0]), test));
            }
        }
    }
    Ok(parts)
}

fn rank_alike(claim: &Claim) -> Parts {
    let sites = sites(claim)?;
    let (last, others) = claim.systems.split_last().ok_or_else(|| Open("It names no system.".to_owned()))?;
    let mut parts = Vec::new();
    for rate in &claim.rates {
        for execution in others {
            let of = |delivery: &str| updates(&format!("{execution} {delivery}"), sites, *rate);
            for pair in DELIVERIES.windows(2) {
                let label = at(&format!("{execution}: {} over {}", pair[1], pair[0]), sites, *rate);
                parts.push(part(label, Test::More(of(pair[1])?, of(pair[0])?)));
            }
            for delivery in DELIVERIES {
                let label = at(&format!("{execution} {delivery} over {last}"), sites, *rate);
                let symmetric = updates(&format!("{last} {delivery}"), sites, *rate)?;
                parts.push(part(label, Test::More(of(delivery)?, symmetric)));
            }
        }
    }
    Ok(parts)
}

fn overlap_shrinks(claim: &Claim) -> Parts {
    let (sites, system) = (sites(claim)?, &claim.systems[0]);
    let overlap = |rate: u32| of(WideMetric::Overlap, system, sites, rate);
    let first = Test::AtLeast(overlap(claim.rates[0])?, value(claim, 0)?);
    let mut parts = vec![part(at("overlap", sites, claim.rates[0]), first)];
    for step in claim.rates.windows(2) {
        let label = format!("{} a second over {}", step[0], step[1]);
        parts.push(part(label, Test::More(overlap(step[0])?, overlap(step[1])?)));
    }
    Ok(parts)
}

fn hardly_out_of_order(claim: &Claim) -> Parts {
    let (sites, rate, system) = (sites(claim)?, claim.rates[0], &claim.systems[0]);
    let most = |metric: WideMetric, place: usize| {
        Ok::<_, Open>(Test::AtMost(of(metric, system, sites, rate)?, value(claim, place)?))
    };
    Ok(vec![
        part(at("out of order", sites, rate), most(WideMetric::OutOfOrder, 0)?),
        part(at("undone", sites, rate), most(WideMetric::Undone, 1)?),
    ])
}

/// From each number of sites to the next.
fn steps(
    claim: &Claim,
    rate: u32,
    metric: WideMetric,
    is_more: impl Fn(usize) -> bool,
) -> Result<Vec<Part>, Open> {
    let system = &claim.systems[0];
    let each = |(place, step): (usize, &[u16])| {
        let (few, many) = (of(metric, system, step[0], rate)?, of(metric, system, step[1], rate)?);
        let (word, test) = match is_more(place) {
            true => ("more", Test::More(many, few)),
            false => ("less", Test::More(few, many)),
        };
        Ok(part(format!("{rate} a second: {word} with {} sites than with {}", step[1], step[0]), test))
    };
    claim.replicas.windows(2).enumerate().map(each).collect()
}

fn sooner_with_sites(claim: &Claim) -> Parts {
    let each = |rate: &u32| steps(claim, *rate, WideMetric::Queries, |_| false);
    Ok(claim.rates.iter().map(each).collect::<Result<Vec<_>, _>>()?.concat())
}

fn later_with_sites(claim: &Claim) -> Parts {
    let each = |rate: &u32| steps(claim, *rate, WideMetric::Updates, |_| true);
    let mut parts = claim.rates.iter().map(each).collect::<Result<Vec<_>, _>>()?.concat();
    let (_, rate) = first_and_last(&claim.rates)?;
    let most = claim.replicas.iter().copied().max().unwrap_or_default();
    let last = updates(&claim.systems[0], most, rate)?;
    parts.push(part(at("updates", most, rate), Test::Near(last, value(claim, 0)?)));
    Ok(parts)
}

fn best_with_four(claim: &Claim) -> Parts {
    steps(claim, claim.rates[0], WideMetric::Updates, |place| place > 0)
}

fn eighty(claim: &Claim) -> Parts {
    let (rate, system) = (claim.rates[0], &claim.systems[0]);
    let [two, four, six] = claim.replicas[..] else {
        return Err(Open("The paper gives other sites.".to_owned()));
    };
    let time = |sites: u16| of(WideMetric::Updates, system, sites, rate);
    let name = system.trim_end_matches(" local");
    Ok(vec![
        is_too_much(name, two, rate)?,
        is_carried(name, four, rate)?,
        is_carried(name, six, rate)?,
        part(at("updates", four, rate), Test::AtLeast(time(four)?, value(claim, 0)?)),
        part(format!("less with {six} sites than with {four}"), Test::More(time(four)?, time(six)?)),
    ])
}

fn gains_less(claim: &Claim) -> Parts {
    let [few, many] = claim.replicas[..] else { return Err(Open("The paper gives other sites.".to_owned())) };
    let mut parts = Vec::new();
    for rate in &claim.rates {
        let left = |system: &str| {
            let queries = |sites: u16| of(WideMetric::Queries, system, sites, *rate);
            Ok::<_, Open>(queries(many)? / queries(few)?)
        };
        let (first, second) = (left(&claim.systems[0])?, left(&claim.systems[1])?);
        parts.push(part(
            format!("{rate} a second: sooner"),
            Test::More(Quantity::Constant(1.0), first.clone()),
        ));
        parts.push(part(format!("{rate} a second: less is gained"), Test::More(first, second)));
    }
    Ok(parts)
}

fn takes_less(claim: &Claim) -> Parts {
    let mut parts = Vec::new();
    for rate in &claim.rates {
        for sites in &claim.replicas {
            let (first, second) =
                (updates(&claim.systems[0], *sites, *rate)?, updates(&claim.systems[1], *sites, *rate)?);
            parts.push(part(at("less", *sites, *rate), Test::More(second, first)));
        }
        parts.extend(steps(claim, *rate, WideMetric::Updates, |_| true)?);
    }
    Ok(parts)
}

fn carried(claim: &Claim) -> Parts {
    let ((low, high), system) = (first_and_last(&claim.rates)?, &claim.systems[0]);
    let mut parts: Vec<Part> =
        claim.replicas.iter().map(|sites| is_carried(system, *sites, low)).collect::<Result<_, _>>()?;
    let [few, more, ..] = claim.replicas[..] else {
        return Err(Open("The paper gives other sites.".to_owned()));
    };
    let throughput = |sites: u16| of(WideMetric::Throughput, system, sites, high);
    let label = format!("{high} a second: more with {more} sites than with {few}");
    parts.push(part(label, Test::More(throughput(more)?, throughput(few)?)));
    Ok(parts)
}

fn number_of_protocols(claim: &Claim) -> Result<Test, Open> {
    let (all, said) = (Choice::all().count(), value(claim, 0)?);
    Ok(Test::Known((all as f64 - said).abs() < 0.5, all.to_string()))
}
