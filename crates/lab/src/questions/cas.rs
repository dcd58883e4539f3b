//! What sentences of CAS say beyond their kind and metric.

use onecopy_sim::perf::{Bookstore, Demand, Profile, heaviest_read_in_writes};
use onecopy_workload::catalogue::Class;
use onecopy_workload::tpcw::{MixName, Scale};

use super::by_kind::{conflict_aware_with, reliability};
use super::{
    About, MEASURED_MAX, ON_TOP, Open, Parts, SATURATES, SCALES, at, figure, gains, lead, one_processor,
    part, part_of_the_bound, peak, percent,
};
use crate::claims::Claim;
use crate::experiment::{Experiment, Metric, Mix};
use crate::quantity::Quantity;
use crate::verdict::Test;

/// cas-13. The lead is said to grow over all; it is looked at for those over which the text gives it.
pub(super) fn best_by_more_where_more_is_written(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for size in about.clusters() {
            for other in about.others() {
                let test = Test::More(peak(mix, about.first(), size)?, peak(mix, other, size)?);
                parts.push(part(format!("{}: more than {other}", at(mix, size)), test));
            }
        }
    }
    for other in ["eager", "fixed_load", "fixed_conflict"] {
        parts.extend(lead_grows_with_writes(about, about.first(), other)?);
    }
    Ok(parts)
}

fn lead_grows_with_writes(about: &About, first: &str, second: &str) -> Parts {
    let size = about.size()?;
    let steps = about.mixes.windows(2).map(|step| {
        let test = Test::More(lead(step[1], first, second, size)?, lead(step[0], first, second, size)?);
        Ok(part(format!("{first}'s lead over {second}, {} against {}", step[1].name(), step[0].name()), test))
    });
    steps.collect()
}

/// The schedulers that answer before all databases have (CAS 6).
const LAZY: [&str; 4] = ["conflict_aware", "fixed_load", "fixed_conflict", "variable_load"];

/// cas-14.
pub(super) fn lazy_beats_eager(about: &About) -> Parts {
    let mut parts = Vec::new();
    for lazy in LAZY {
        for &mix in &about.mixes {
            for size in about.clusters() {
                let test = Test::More(peak(mix, lazy, size)?, peak(mix, "eager", size)?);
                parts.push(part(format!("{}: {lazy} more than eager", at(mix, size)), test));
            }
        }
        parts.extend(lead_grows_with_writes(about, lazy, "eager")?);
    }
    Ok(parts)
}

/// cas-17. Variable against fixed, each with each, but for what cas-15 says.
pub(super) fn a_replica_for_each_read(about: &About) -> Parts {
    let (mut parts, size) = (Vec::new(), about.size()?);
    for &mix in &about.mixes {
        for variable in ["conflict_aware", "variable_load"] {
            for fixed in ["fixed_load", "fixed_conflict"] {
                let is_exception =
                    (variable, fixed) == ("variable_load", "fixed_conflict") && mix != Mix::TpcwOrdering;
                if !is_exception {
                    let test = Test::More(peak(mix, variable, size)?, peak(mix, fixed, size)?);
                    parts.push(part(format!("{}: {variable} more than {fixed}", at(mix, size)), test));
                }
            }
        }
    }
    Ok(parts)
}

fn figures(metric: Metric, mix: Mix, systems: &[String], size: u16) -> Result<Vec<Quantity>, Open> {
    systems.iter().map(|system| figure(metric, mix, system, size)).collect()
}

/// cas-20 and cas-24. The first has less of it than each other one, and whoever has less of it has the higher peak.
pub(super) fn less_where_throughput_is_higher(about: &About, metric: Metric, others_do: &str) -> Parts {
    let mut parts = Vec::new();
    let (size, systems) = (about.size()?, &about.claim.systems);
    for &mix in &about.mixes {
        for other in about.others() {
            let [first, more] = [about.first(), other].map(|system| figure(metric, mix, system, size));
            parts.push(part(format!("{}: {other} {others_do}", at(mix, size)), Test::More(more?, first?)));
        }
        let peaks = figures(Metric::Peak, mix, systems, size)?;
        let test = Test::Opposed(peaks, figures(metric, mix, systems, size)?);
        parts.push(part(format!("{}: ranked as by throughput", at(mix, size)), test));
    }
    Ok(parts)
}

/// cas-21. For each of the five schedulers.
pub(super) fn mostly_waiting(about: &About) -> Parts {
    let (mut parts, size) = (Vec::new(), about.size()?);
    for &mix in &about.mixes {
        for system in LAZY.into_iter().chain(["eager"]) {
            let test = Test::More(
                figure(Metric::Waiting, mix, system, size)?,
                figure(Metric::Execution, mix, system, size)?,
            );
            parts.push(part(format!("{}: {system}", at(mix, size)), test));
        }
    }
    Ok(parts)
}

/// cas-22. For each of the five schedulers; negligible is what 5 % allow.
pub(super) fn waiting_for_own_writes(about: &About) -> Parts {
    let (mut parts, size) = (Vec::new(), about.size()?);
    for &mix in &about.mixes {
        for system in LAZY.into_iter().chain(["eager"]) {
            let of = |metric: Metric| figure(metric, mix, system, size);
            // There is no sum of quantities.
            let all = of(Metric::Waiting)? - (Quantity::Constant(0.0) - of(Metric::Execution)?);
            let share = percent(of(Metric::OwnWaiting)? / all);
            let label = format!("{}: {system}, percent of the query time", at(mix, size));
            parts.push(part(label, Test::AtMost(share, 100.0 * ON_TOP)));
        }
    }
    Ok(parts)
}

/// cas-26. A loss is a ratio of systems; that nearly all of it is the disk's means that with more schedulers it is the same.
pub(super) fn cost_of_fault_tolerance(about: &About) -> Parts {
    let (mix, size) = (about.mix(), about.size()?);
    let [unreliable, reliable, two, three] = ["unreliable", "reliable", "reliable-2", "reliable-3"]
        .map(|name| conflict_aware_with(mix, size, reliability(name).unwrap_or_default()));
    let (unreliable, reliable) = (unreliable?, reliable?);
    let paper = 1.0 - about.value(0)? / 100.0;
    let mut parts = vec![part(
        format!("{}: reliable over unreliable", at(mix, size)),
        Test::RatioNear(reliable.clone() / unreliable, paper),
    )];
    for (name, more) in [("reliable-2", two?), ("reliable-3", three?)] {
        parts.push(part(
            format!("{}: {name} over reliable", at(mix, size)),
            Test::Equal(more, reliable.clone()),
        ));
    }
    Ok(parts)
}

/// cas-30. Its lead grows from the clusters that were measured to the largest, when shopping and ordering; the others keep
/// their order.
pub(super) fn best_at_every_size(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for size in about.clusters() {
            for other in about.others() {
                let test = Test::More(peak(mix, about.first(), size)?, peak(mix, other, size)?);
                parts.push(part(format!("{}: more than {other}", at(mix, size)), test));
            }
            if size > MEASURED_MAX {
                let [small, large] =
                    [MEASURED_MAX, size].map(|size| figures(Metric::Peak, mix, about.others(), size));
                parts.push(part(
                    format!("{}: ranked as with {MEASURED_MAX}", at(mix, size)),
                    Test::SameOrder(small?, large?),
                ));
            }
        }
        if mix != Mix::TpcwBrowsing {
            for other in about.others() {
                let [small, large] =
                    [MEASURED_MAX, about.size()?].map(|size| lead(mix, about.first(), other, size));
                parts.push(part(
                    format!("{}: larger lead over {other} than with {MEASURED_MAX}", at(mix, about.size()?)),
                    Test::More(large?, small?),
                ));
            }
        }
    }
    Ok(parts)
}

/// Beyond this size cas-02 and cas-31 speak of flattening.
const FLATTENS_FROM: u16 = 40;

/// Where curves of claims bend, if not at a size of every effort.
pub(super) const BENDS: [(&str, u16); 2] = [("cas-02", FLATTENS_FROM), ("cas-31", FLATTENS_FROM)];

/// cas-31.
pub(super) fn flattens_where_the_other_grows(about: &About) -> Parts {
    let (mut parts, mix) = (Vec::new(), about.mix());
    let growing = gains(mix, "conflict_aware", &about.sizes)?;
    let first = growing.first().map(|(_, _, gain)| gain.clone());
    for system in &about.claim.systems {
        for ((from, to, gain), (_, _, grows)) in gains(mix, system, &about.sizes)?.into_iter().zip(&growing) {
            if from >= FLATTENS_FROM {
                parts.push(part(
                    format!("{system}, each database from {from} to {to}"),
                    Test::AtMost(gain.clone(), SCALES),
                ));
                parts.push(part(
                    format!("less than conflict_aware from {from} to {to}"),
                    Test::More(grows.clone(), gain),
                ));
            }
        }
    }
    if let (Some(first), Some((from, to, last))) = (first, growing.last()) {
        parts.push(part(
            format!("conflict_aware, each database from {from} to {to}"),
            Test::AtLeast(last.clone(), SATURATES),
        ));
        parts.push(part("and less than in the beginning", Test::More(first, last.clone())));
    }
    Ok(parts)
}

/// cas-36. A size for each mix.
pub(super) fn share_of_writes(about: &About) -> Parts {
    let triples = about.mixes.iter().zip(&about.claim.replicas).zip(&about.claim.values);
    let parts = triples.map(|((&mix, &size), &paper)| {
        let writing = percent(figure(Metric::Writing, mix, about.first(), size)?);
        Ok(part(at(mix, size), Test::Near(writing, paper)))
    });
    parts.collect()
}

/// The sizes at which CAS 9.2.2 looks at how databases spend their time.
fn bottleneck_size(mix: Mix) -> u16 {
    if mix == Mix::TpcwOrdering { 16 } else { 60 }
}

fn with_conflicts(conflict_percent: u32, mix: Mix, system: &str, replicas: u16) -> Result<Experiment, Open> {
    Ok(Experiment { conflict_percent, ..Experiment::new(mix, system, replicas)? })
}

/// cas-37. Without conflicts (one in a hundred is left) nobody idles, though load is balanced as before.
pub(super) fn idle_by_conflicts(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        let size = bottleneck_size(mix);
        let idle = Quantity::Of(Metric::Idle, with_conflicts(1, mix, about.first(), size)?);
        parts.push(part(
            format!("{}: idle percent with 1 % of the conflicts", at(mix, size)),
            Test::AtMost(percent(idle), 100.0 * ON_TOP),
        ));
        let writing = percent(figure(Metric::Writing, mix, about.first(), size)?);
        parts.push(part(
            format!("{}: percent of the time spent in writes", at(mix, size)),
            Test::AtMost(writing, 100.0 * (1.0 - ON_TOP)),
        ));
    }
    Ok(parts)
}

/// cas-39. Work is counted in messages; what one costs in CPU time was measured once.
pub(super) fn work_of_the_scheduler(about: &About) -> Parts {
    let messages = |mix: Mix, size: u16| figure(Metric::SchedulerMessages, mix, about.first(), size);
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        let (small, large) = (MEASURED_MAX, bottleneck_size(mix));
        let growth = messages(mix, large)?
            / messages(mix, small)?
            / Quantity::Constant(f64::from(large) / f64::from(small));
        parts.push(part(
            format!("{}: growth of messages since {small}, over that of databases", at(mix, large)),
            Test::Near(growth, 1.0),
        ));
    }
    for mix in [Mix::TpcwBrowsing, Mix::TpcwOrdering] {
        let shopping = messages(Mix::TpcwShopping, bottleneck_size(Mix::TpcwShopping))?;
        parts.push(part(
            format!("shopping is busier than {}", mix.name()),
            Test::More(shopping, messages(mix, bottleneck_size(mix))?),
        ));
    }
    for &mix in &about.mixes {
        parts.push(one_processor(about, mix, about.size()?, 100.0)?);
    }
    Ok(parts)
}

/// cas-40.
pub(super) fn same_shape(about: &About) -> Parts {
    let (mut parts, mix) = (Vec::new(), about.mix());
    for speed in [2, 4] {
        let fast = |size: u16| -> Result<Quantity, Open> {
            Ok(Quantity::peak(&Experiment { speed, ..Experiment::new(mix, about.first(), size)? }))
        };
        let over_one = fast(1)? / peak(mix, about.first(), 1)?;
        parts
            .push(part(format!("{speed} times as fast, 1 database"), Test::Near(over_one, f64::from(speed))));
        for size in about.clusters() {
            let shape = fast(size)? / fast(1)?;
            let plain = peak(mix, about.first(), size)? / peak(mix, about.first(), 1)?;
            parts.push(part(
                format!("{speed} times as fast, {size} databases: shape over the plain one's"),
                Test::Near(shape / plain, 1.0),
            ));
        }
    }
    Ok(parts)
}

fn lead_at(conflict_percent: u32, mix: Mix, first: &str, second: &str, size: u16) -> Result<Quantity, Open> {
    let [first, second] = [first, second].map(|system| with_conflicts(conflict_percent, mix, system, size));
    Ok(Quantity::peak(&first?) / Quantity::peak(&second?))
}

/// cas-42 and cas-43.
pub(super) fn lead_with_few_conflicts(about: &About) -> Parts {
    let ratio = lead_at(1, about.mix(), about.first(), &about.others()[0], about.size()?)?;
    Ok(vec![part(
        format!("{}, 1 % of the conflicts", at(about.mix(), about.size()?)),
        Test::RatioNear(ratio, about.value(0)?),
    )])
}

/// cas-44.
pub(super) fn smaller_lead_with_fewer_conflicts(about: &About) -> Parts {
    let (mix, size) = (about.mix(), about.size()?);
    let parts = about.others().iter().map(|other| {
        let [few, all] = [1, 100].map(|percent| lead_at(percent, mix, about.first(), other, size));
        Ok(part(
            format!("{}: lead over {other}, all conflicts against 1 %", at(mix, size)),
            Test::More(all?, few?),
        ))
    });
    parts.collect()
}

/// cas-45. Where scaling ends, it comes within 5 % of what reading one and writing all allows once conflicts are gone (one in a
/// hundred is left), and is further away with them.
pub(super) fn conflicts_end_scaling(about: &About) -> Parts {
    let mut parts = Vec::new();
    for mix in [Mix::TpcwShopping, Mix::TpcwOrdering] {
        let size = bottleneck_size(mix);
        let part_with = |percent: u32| -> Result<Quantity, Open> {
            let one = with_conflicts(percent, mix, about.first(), 1)?;
            let all = with_conflicts(percent, mix, about.first(), size)?;
            Ok(part_of_the_bound(&one, &all))
        };
        let [without, with] = [1, 100].map(part_with);
        let label = format!("{}: part of what writing all allows", at(mix, size));
        parts.push(part(format!("{label}, 1 % of the conflicts"), Test::AtLeast(without?, 1.0 - ON_TOP)));
        parts.push(part(format!("{label}, all conflicts"), Test::AtMost(with?, 1.0 - ON_TOP)));
    }
    Ok(parts)
}

fn of_bookstore(mix: Mix) -> Result<MixName, Open> {
    mix.bookstore().ok_or_else(|| Open(format!("{} is no mix of the bookstore.", mix.name())))
}

/// cas-46. What the profile was fitted to, computed from it.
pub(super) fn costs_of_interactions(claim: &Claim) -> Parts {
    let profile =
        Profile::named("2003", "tpcw").ok_or_else(|| Open("The profile 2003 is missing.".to_owned()))?;
    let [least, most, writes] = claim.values[..] else {
        return Err(Open("The paper gives three numbers.".to_owned()));
    };
    let mut parts = Vec::new();
    for name in &claim.workloads {
        let mix: Mix = name.parse()?;
        let mut bookstore = Bookstore::new(of_bookstore(mix)?, Scale::new(1_000, 1)?);
        let interactions = Demand::of(&profile, &mut bookstore, 10, 1_000)?.interactions_ms;
        let shortest = interactions.values().map(|(least, _)| *least).fold(f64::INFINITY, f64::min);
        let longest = interactions.values().map(|(_, most)| *most).fold(0.0, f64::max);
        let found = format!("{shortest:.0} to {longest:.0} ms");
        parts.push(part(mix.name(), Test::Known(shortest >= least && longest <= most, found)));
        if parts.len() == claim.workloads.len() {
            let ours = heaviest_read_in_writes(&profile, &bookstore);
            let found = format!("{ours:.0} (the paper: {writes})");
            parts.push(part(
                "the heaviest read in average writes",
                Test::Known((ours - writes).abs() < 1.0, found),
            ));
        }
    }
    Ok(parts)
}

/// cas-47. A property of the mixes, computed from their matrices.
pub(super) fn shares_of_looking(claim: &Claim) -> Parts {
    let parts = claim.workloads.iter().zip(&claim.values).map(|(name, &paper)| {
        let mix: Mix = name.parse()?;
        let shares = onecopy_workload::tpcw::Mix::of(of_bookstore(mix)?).stationary();
        let looking = onecopy_workload::tpcw::Interaction::ALL
            .into_iter()
            .zip(shares)
            .filter(|(interaction, _)| interaction.class() == Class::Browse)
            .map(|(_, share)| share);
        let ours = 100.0 * looking.sum::<f64>();
        Ok(part(
            mix.name(),
            Test::Known((ours - paper).abs() < 1.0, format!("{ours:.1} (the paper: {paper})")),
        ))
    });
    parts.collect()
}
