//! Claims that say what their kind and metric say.

use super::{About, ON_TOP, Open, Parts, SATURATES, SCALES, at, figure, gains, lead, part, peak, percent};
use crate::claims::Kind;
use crate::experiment::{Durability, Experiment, Metric, Mix};
use crate::quantity::Quantity;
use crate::verdict::Test;

pub(super) fn by_kind(about: &About) -> Parts {
    let About { claim, mixes, .. } = about;
    let mut parts = Vec::new();
    match (claim.kind, claim.metric.as_str()) {
        (Kind::Ratio, "peak") => {
            let quantity = lead(about.mix(), about.first(), &about.others()[0], about.size()?)?;
            parts.push(part(at(about.mix(), about.size()?), Test::RatioNear(quantity, about.value(0)?)));
        }
        (Kind::Ratio, "largest peak ratio") => {
            for (place, largest) in about.claim.replicas.iter().enumerate() {
                let mut leads = Vec::new();
                for &mix in mixes {
                    for &size in about.curve.iter().filter(|size| (2..=*largest).contains(*size)) {
                        leads.push(lead(mix, about.first(), &about.others()[0], size)?);
                    }
                }
                let test = Test::RatioNear(Quantity::Largest(leads), about.value(place)?);
                parts.push(part(format!("largest up to {largest} databases"), test));
            }
        }
        (Kind::More, "peak") => {
            for &mix in mixes {
                for other in about.others() {
                    let test = Test::More(
                        peak(mix, about.first(), about.size()?)?,
                        peak(mix, other, about.size()?)?,
                    );
                    parts.push(part(format!("{}: more than {other}", at(mix, about.size()?)), test));
                }
            }
        }
        (Kind::Equal, metric) => return about_equal(about, metric),
        (Kind::AtMost, "percent behind") => {
            let ratio = lead(about.mix(), about.first(), &about.others()[0], about.size()?)?;
            let bound = (1.0 - about.value(0)? / 100.0) * (1.0 - ON_TOP);
            let label = format!(
                "{}: over {}, at least {bound:.2}",
                at(about.mix(), about.size()?),
                about.others()[0]
            );
            parts.push(part(label, Test::AtLeast(ratio, bound)));
        }
        (Kind::AtMost, "idle percent") => {
            let idle = percent(figure(Metric::Idle, about.mix(), about.first(), about.size()?)?);
            parts.push(part(
                at(about.mix(), about.size()?),
                Test::AtMost(idle, about.value(0)? * (1.0 + ON_TOP)),
            ));
        }
        (Kind::Level, "idle percent") => {
            let idle = percent(figure(Metric::Idle, about.mix(), about.first(), about.size()?)?);
            parts.push(part(at(about.mix(), about.size()?), Test::Near(idle, about.value(0)?)));
        }
        (Kind::Level, "write percent") => {
            for (place, &mix) in mixes.iter().enumerate() {
                let writing = percent(figure(Metric::Writing, mix, about.first(), about.size()?)?);
                let paper = about.value(place)?;
                let is_bound = mix != Mix::TpcwOrdering;
                let test = if is_bound {
                    Test::AtMost(writing, paper * (1.0 + ON_TOP))
                } else {
                    Test::Near(writing, paper)
                };
                parts.push(part(at(mix, about.size()?), test));
            }
        }
        (Kind::Scales | Kind::Saturates, "peak") => {
            let bound = about.value(0)? as u16;
            for (from, to, gain) in gains(about.mix(), about.first(), &about.sizes)? {
                let label = format!("each database from {from} to {to}");
                match claim.kind {
                    Kind::Scales if to <= bound => parts.push(part(label, Test::AtLeast(gain, SCALES))),
                    Kind::Scales => {
                        parts.push(part(format!("{label}, less"), Test::AtMost(gain.clone(), SCALES)));
                        parts.push(part(format!("{label}, but something"), Test::AtLeast(gain, SATURATES)));
                    }
                    _ if from >= bound => parts.push(part(label, Test::AtMost(gain, SATURATES))),
                    _ => {}
                }
            }
        }
        (kind, metric) => return Err(Open(format!("No reading of {kind:?} for {metric} is written down."))),
    }
    Ok(parts)
}

/// Of what these claims are about, the last system is what the others are compared with; elsewhere it is the first.
const AGAINST_THE_LAST: [&str; 4] = ["cas-25", "dv-15", "dv-16", "dv-17"];

/// All against one of them; with several sizes at each.
fn about_equal(about: &About, metric: &str) -> Parts {
    let metric = match metric {
        "peak" => Metric::Peak,
        "execution time of queries" => Metric::Execution,
        other => return Err(Open(format!("No reading of {other} is written down."))),
    };
    let special_is_for = |mix: Mix, system: &str| system != "special" || mix.name().starts_with("tpcw");
    let systems = &about.claim.systems;
    let last = systems.len() - 1;
    let reference = if AGAINST_THE_LAST.contains(&about.claim.id.as_str()) { last } else { 0 };
    let against = &systems[reference];
    let others: Vec<&String> = systems.iter().filter(|system| *system != against).collect();
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for &size in &about.sizes {
            for other in others.iter().filter(|system| special_is_for(mix, system)) {
                let (this, that) = match reliability(other) {
                    None => (figure(metric, mix, against, size)?, figure(metric, mix, other, size)?),
                    Some(durability) => {
                        let first = reliability(against).unwrap_or_default();
                        (conflict_aware_with(mix, size, first)?, conflict_aware_with(mix, size, durability)?)
                    }
                };
                parts.push(part(
                    format!("{}: {} over {other}", at(mix, size), against),
                    Test::Equal(this, that),
                ));
            }
        }
    }
    Ok(parts)
}

/// CAS 8.4's names.
pub(super) fn reliability(name: &str) -> Option<Durability> {
    match name {
        "unreliable" => Some(Durability::Memory),
        "reliable" => Some(Durability::Disk),
        "reliable-2" => Some(Durability::Replicated(2)),
        "reliable-3" => Some(Durability::Replicated(3)),
        _ => None,
    }
}

pub(super) fn conflict_aware_with(mix: Mix, replicas: u16, durability: Durability) -> Result<Quantity, Open> {
    let experiment = Experiment { durability, ..Experiment::new(mix, "conflict_aware", replicas)? };
    Ok(Quantity::peak(&experiment))
}
