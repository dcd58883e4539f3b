//! What must be true of measured quantities for a claim to hold.
//!
//! Most claims follow from their kind and metric; where a sentence says more than that, its reading stands here, made before
//! anything was compared (docs/laboratory.md, *How claims are read*).

use std::collections::BTreeSet;

use onecopy_core::protocol::level2;
use onecopy_core::table_queues::{LockMode, TableLocks};
use onecopy_core::table_versions::{Assigner, Reached};
use onecopy_sim::perf::{Bookstore, Demand, Profile, heaviest_read_in_writes};
use onecopy_workload::catalogue::Class;
use onecopy_workload::tpcw::Scale;

use crate::claims::{Claim, DecidableBy, Kind};
use crate::effort::Effort;
use crate::experiment::{Durability, Experiment, Metric, Mix, databases};
use crate::quantity::Quantity;
use crate::verdict::Test;

/// What has to be looked at for a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// The claim holds if each part does.
    pub parts: Vec<Part>,
    /// Why nothing, or not all of it, is looked at.
    pub remark: Option<String>,
}

/// A part of a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// What is looked at.
    pub label: String,
    /// What must be true.
    pub test: Test,
}

impl Question {
    /// What has to be run to answer it.
    pub fn experiments(&self, into: &mut BTreeSet<Experiment>) {
        self.parts.iter().for_each(|part| part.test.experiments(into));
    }
}

/// What has to be looked at for a claim, with so much effort.
#[must_use]
pub fn question(claim: &Claim, effort: &Effort) -> Question {
    let remark = match claim.decidable_by {
        DecidableBy::Argument => Some("The paper argues; nothing was measured.".to_owned()),
        DecidableBy::None => Some("It is about the authors' machines.".to_owned()),
        _ => None,
    };
    if remark.is_some() {
        return Question { parts: Vec::new(), remark };
    }
    match parts(claim, effort) {
        Ok(parts) => Question { parts, remark },
        Err(Open(reason)) => Question { parts: Vec::new(), remark: Some(reason) },
    }
}

/// Why a claim cannot be looked at here.
struct Open(String);

impl<E: std::error::Error> From<E> for Open {
    fn from(error: E) -> Open {
        Open(error.to_string())
    }
}

type Parts = Result<Vec<Part>, Open>;

fn parts(claim: &Claim, effort: &Effort) -> Parts {
    let about = About::new(claim, effort);
    match claim.id.as_str() {
        "cas-13" => best_by_more_where_more_is_written(&about?),
        "cas-14" => lazy_beats_eager(&about?),
        "cas-17" => a_replica_for_each_read(&about?),
        "cas-20" => less_where_throughput_is_higher(&about?, Metric::Response, "answers later"),
        "cas-24" => less_where_throughput_is_higher(&about?, Metric::Waiting, "waits longer"),
        "cas-21" => mostly_waiting(&about?),
        "cas-22" => Err(Open(
            "Waiting for own earlier writes is not told apart from waiting for conflicts yet.".into(),
        )),
        "cas-26" => cost_of_fault_tolerance(&about?),
        "cas-30" => best_at_every_size(&about?),
        "cas-31" => flattens_where_the_other_grows(&about?),
        "cas-36" => share_of_writes(&about?),
        "cas-37" => idle_by_conflicts(&about?),
        "cas-39" => work_of_the_scheduler(&about?),
        "cas-40" => same_shape(&about?),
        "cas-42" | "cas-43" => lead_with_few_conflicts(&about?),
        "cas-44" => smaller_lead_with_fewer_conflicts(&about?),
        "cas-45" => conflicts_end_scaling(&about?),
        "cas-46" => costs_of_interactions(claim),
        "cas-47" => shares_of_looking(claim),
        "cas-29" | "dv-23" => Err(Open("Needs real servers beside the simulation.".into())),
        "dv-11" | "dv-12" | "dv-13" | "dv-28" => better_with_more_conflicts(&about?),
        "dv-20" => behind(&about?),
        "dv-24" => versions_of_the_example(claim),
        "dv-25" => Err(Open("Checked by the tests of the protocol `versioning`.".into())),
        "dv-26" => bound_of_level2(claim),
        "dv-27" => bounds_of_special(claim),
        "dv-29" => Err(Open("Checked by the tests of the workloads.".into())),
        _ => by_kind(&about?),
    }
}

/// A claim with its workloads and systems looked up.
struct About<'a> {
    claim: &'a Claim,
    mixes: Vec<Mix>,
    /// Those of the claim's sizes that are simulated.
    sizes: Vec<u16>,
    /// All sizes at which curves are measured.
    curve: &'a [u16],
}

impl<'a> About<'a> {
    fn new(claim: &'a Claim, effort: &'a Effort) -> Result<About<'a>, Open> {
        let mixes = claim.workloads.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        Ok(About { claim, mixes, sizes: effort.sizes_of(&claim.replicas), curve: &effort.sizes })
    }

    /// The only size, or the largest.
    fn size(&self) -> Result<u16, Open> {
        self.sizes
            .last()
            .copied()
            .ok_or_else(|| Open("No such size is simulated with this effort.".to_owned()))
    }

    fn mix(&self) -> Mix {
        self.mixes[0]
    }

    /// The systems after the first.
    fn others(&self) -> &[String] {
        &self.claim.systems[1..]
    }

    fn first(&self) -> &str {
        &self.claim.systems[0]
    }

    /// Sizes at which schedulers can differ: with one database there is nothing to choose.
    fn clusters(&self) -> impl Iterator<Item = u16> {
        self.sizes.iter().copied().filter(|size| *size > 1)
    }

    fn value(&self, place: usize) -> Result<f64, Open> {
        let values = &self.claim.values;
        values
            .get(place)
            .or(values.last())
            .copied()
            .ok_or_else(|| Open("The paper gives no number.".to_owned()))
    }
}

/// The sizes between which leads are said to grow.
const MEASURED_MAX: u16 = 8;

/// The share of one replica's throughput that each further one must bring for a curve to scale.
const SCALES: f64 = 0.5;

/// And below which it has saturated.
const SATURATES: f64 = 0.1;

/// What *at most x percent* allows on top (docs/laboratory.md).
const ON_TOP: f64 = 0.05;

/// The names of systems that stand for several.
const LEVELS: [&str; 3] = ["level0", "level1", "level2"];

fn peak(mix: Mix, system: &str, replicas: u16) -> Result<Quantity, Open> {
    figure(Metric::Peak, mix, system, replicas)
}

/// A figure of a system; the best level is the one whose figure is largest.
fn figure(metric: Metric, mix: Mix, system: &str, replicas: u16) -> Result<Quantity, Open> {
    if system == "best level" {
        let levels = LEVELS.iter().map(|level| figure(metric, mix, level, replicas));
        return Ok(Quantity::Largest(levels.collect::<Result<_, _>>()?));
    }
    Ok(Quantity::Of(metric, Experiment::new(mix, system, replicas)?))
}

fn lead(mix: Mix, first: &str, second: &str, replicas: u16) -> Result<Quantity, Open> {
    Ok(peak(mix, first, replicas)? / peak(mix, second, replicas)?)
}

fn part(label: impl Into<String>, test: Test) -> Part {
    Part { label: label.into(), test }
}

fn at(mix: Mix, replicas: u16) -> String {
    format!("{}, {}", mix.name(), databases(replicas))
}

fn percent(quantity: Quantity) -> Quantity {
    quantity / Quantity::Constant(0.01)
}

/// What each further database brings from one size to the next, over one database's throughput.
fn gains(mix: Mix, system: &str, sizes: &[u16]) -> Result<Vec<(u16, u16, Quantity)>, Open> {
    let one = peak(mix, system, 1)?;
    let steps = sizes.windows(2).map(|step| {
        let [from, to] = [step[0], step[1]];
        let more = peak(mix, system, to)? - peak(mix, system, from)?;
        Ok((from, to, more / one.clone() / Quantity::Constant(f64::from(to - from))))
    });
    steps.collect()
}

fn by_kind(about: &About) -> Parts {
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
fn reliability(name: &str) -> Option<Durability> {
    match name {
        "unreliable" => Some(Durability::Memory),
        "reliable" => Some(Durability::Disk),
        "reliable-2" => Some(Durability::Replicated(2)),
        "reliable-3" => Some(Durability::Replicated(3)),
        _ => None,
    }
}

fn conflict_aware_with(mix: Mix, replicas: u16, durability: Durability) -> Result<Quantity, Open> {
    let experiment = Experiment { durability, ..Experiment::new(mix, "conflict_aware", replicas)? };
    Ok(Quantity::peak(&experiment))
}

/// cas-13. The lead is said to grow over all; it is looked at for those over which the text gives it.
fn best_by_more_where_more_is_written(about: &About) -> Parts {
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
fn lazy_beats_eager(about: &About) -> Parts {
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
fn a_replica_for_each_read(about: &About) -> Parts {
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
fn less_where_throughput_is_higher(about: &About, metric: Metric, others_do: &str) -> Parts {
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
fn mostly_waiting(about: &About) -> Parts {
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

/// cas-26. A loss is a ratio of systems; that nearly all of it is the disk's means that with more schedulers it is the same.
fn cost_of_fault_tolerance(about: &About) -> Parts {
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
fn best_at_every_size(about: &About) -> Parts {
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

/// cas-31.
fn flattens_where_the_other_grows(about: &About) -> Parts {
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
fn share_of_writes(about: &About) -> Parts {
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
fn idle_by_conflicts(about: &About) -> Parts {
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

/// cas-39. Work is counted in messages.
fn work_of_the_scheduler(about: &About) -> Parts {
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
    parts.push(part("one scheduler is enough", Test::Owed("its CPU time is not measured yet")));
    Ok(parts)
}

/// cas-40.
fn same_shape(about: &About) -> Parts {
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
fn lead_with_few_conflicts(about: &About) -> Parts {
    let ratio = lead_at(1, about.mix(), about.first(), &about.others()[0], about.size()?)?;
    Ok(vec![part(
        format!("{}, 1 % of the conflicts", at(about.mix(), about.size()?)),
        Test::RatioNear(ratio, about.value(0)?),
    )])
}

/// cas-44.
fn smaller_lead_with_fewer_conflicts(about: &About) -> Parts {
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

/// Throughput over one database's, as a part of what reading one and writing all allows: 1 / (w + (1 - w) / N), where w is
/// the share of writes at one database.
fn part_of_the_bound(conflict_percent: u32, mix: Mix, system: &str, size: u16) -> Result<Quantity, Open> {
    let [one, all] = [1, size].map(|size| with_conflicts(conflict_percent, mix, system, size));
    let (one, all) = (one?, all?);
    let writes = || Quantity::Of(Metric::Writing, one.clone());
    let least = writes() - (writes() - Quantity::Constant(1.0)) / Quantity::Constant(f64::from(size));
    let scaling = Quantity::peak(&all) / Quantity::peak(&one);
    Ok(scaling / (Quantity::Constant(1.0) / least))
}

/// cas-45. Where scaling ends, it comes within 5 % of what reading one and writing all allows once conflicts are gone (one in a
/// hundred is left), and is further away with them.
fn conflicts_end_scaling(about: &About) -> Parts {
    let mut parts = Vec::new();
    for mix in [Mix::TpcwShopping, Mix::TpcwOrdering] {
        let size = bottleneck_size(mix);
        let [without, with] = [1, 100].map(|percent| part_of_the_bound(percent, mix, about.first(), size));
        let label = format!("{}: part of what writing all allows", at(mix, size));
        parts.push(part(format!("{label}, 1 % of the conflicts"), Test::AtLeast(without?, 1.0 - ON_TOP)));
        parts.push(part(format!("{label}, all conflicts"), Test::AtMost(with?, 1.0 - ON_TOP)));
    }
    Ok(parts)
}

/// cas-46. What the profile was fitted to, computed from it.
fn costs_of_interactions(claim: &Claim) -> Parts {
    let profile = Profile::named("2003").ok_or_else(|| Open("The profile 2003 is missing.".to_owned()))?;
    let [least, most, writes] = claim.values[..] else {
        return Err(Open("The paper gives three numbers.".to_owned()));
    };
    let mut parts = Vec::new();
    for name in &claim.workloads {
        let mix: Mix = name.parse()?;
        let mut bookstore = Bookstore::new(mix.bookstore(), Scale::new(1_000, 1)?);
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
fn shares_of_looking(claim: &Claim) -> Parts {
    let parts = claim.workloads.iter().zip(&claim.values).map(|(name, &paper)| {
        let mix: Mix = name.parse()?;
        let shares = onecopy_workload::tpcw::Mix::of(mix.bookstore()).stationary();
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

/// dv-11 to dv-13, dv-28. Versioning is nowhere slower, faster in the largest cluster, and its lead has grown by then.
fn better_with_more_conflicts(about: &About) -> Parts {
    let (first, other) = (about.first(), &about.others()[0]);
    let (mut parts, size) = (Vec::new(), about.size()?);
    for &mix in &about.mixes {
        for &size in &about.sizes {
            parts.push(part(
                format!("{}: not slower", at(mix, size)),
                Test::AtLeast(lead(mix, first, other, size)?, 1.0 - ON_TOP),
            ));
        }
        parts.push(part(
            format!("{}: faster", at(mix, size)),
            Test::More(peak(mix, first, size)?, peak(mix, other, size)?),
        ));
        let [small, large] = [MEASURED_MAX, size].map(|size| lead(mix, first, other, size));
        parts.push(part(
            format!("{}: larger lead than with {MEASURED_MAX}", at(mix, size)),
            Test::More(large?, small?),
        ));
    }
    Ok(parts)
}

/// dv-20. *x percent behind* is judged as a ratio.
fn behind(about: &About) -> Parts {
    let size = about.size()?;
    let parts = about.mixes.iter().zip(&about.claim.values).map(|(&mix, &paper)| {
        let ratio = lead(mix, &about.others()[0], about.first(), size)?;
        Ok(part(at(mix, size), Test::Near(ratio, 1.0 - paper / 100.0)))
    });
    parts.collect()
}

/// dv-24. The sequencer's rule, run on the paper's example.
fn versions_of_the_example(claim: &Claim) -> Parts {
    let table = onecopy_core::TableId(0);
    let (mut assigner, mut reached, mut assigned) = (Assigner::default(), Reached::default(), Vec::new());
    let (mut after, mut waits) = (Vec::new(), false);
    for letter in "wwrwrrrw".chars() {
        let mode = if letter == 'w' { LockMode::Write } else { LockMode::Read };
        let all = assigner.assign(&TableLocks::of_tables([(table, mode)]));
        assigned.extend(all.iter().filter(|one| one.table == table).copied());
    }
    for one in &assigned {
        waits |= !reached.admits(one);
        after.push(reached.release(one).0);
    }
    let ours: Vec<u64> = assigned.iter().map(|one| one.version.0).collect();
    let is_papers = ours.iter().map(|version| *version as f64).eq(claim.values.iter().copied());
    let released = after.iter().copied().eq(1..=8);
    Ok(vec![part(
        "w w r w r r r w",
        Test::Known(is_papers && released && !waits, format!("{ours:?}, then {after:?}")),
    )])
}

/// dv-26. That reads keep the bound is what the protocol's tests show.
fn bound_of_level2(claim: &Claim) -> Parts {
    let ours = level2::STALE_MAX_NS as f64 / 1e9;
    Ok(vec![part(
        "the protocol's bound",
        Test::Known(Some(&ours) == claim.values.first(), format!("{ours} s")),
    )])
}

/// dv-27. The bound is the interaction's; that what must be current is, and that no query sees half an update, is what the
/// protocol's tests show.
fn bounds_of_special(claim: &Claim) -> Parts {
    let interactions = &onecopy_workload::tpcw::catalogue().interactions;
    let bounds: BTreeSet<u32> = interactions
        .iter()
        .filter_map(|interaction| interaction.stale_ok.map(|bound| bound.as_secs() as u32))
        .collect();
    let stale = interactions.iter().filter(|interaction| interaction.stale_ok.is_some()).count();
    let is_papers = bounds.iter().map(|bound| f64::from(*bound)).eq(claim.values.iter().copied());
    let found = format!("{bounds:?} s for {stale} of {} interactions", interactions.len());
    Ok(vec![part(
        "bounds of TPC-W's interactions",
        Test::Known(is_papers && stale < interactions.len(), found),
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::papers;

    fn questions() -> impl Iterator<Item = (&'static Claim, Question)> {
        papers().iter().flat_map(|paper| &paper.claims).map(|claim| (claim, question(claim, &Effort::full())))
    }

    #[test]
    fn each_claim_is_looked_at_or_says_why_not() {
        for (claim, Question { parts, remark }) in questions() {
            assert!(parts.is_empty() == remark.is_some(), "{}: {remark:?}", claim.id);
            assert!(remark.iter().all(|remark| !remark.contains("No reading")), "{}: {remark:?}", claim.id);
        }
    }

    #[test]
    fn quick_effort_asks_the_same_questions_of_fewer_sizes() {
        for (claim, question) in questions() {
            let quick = super::question(claim, &Effort::quick());
            assert_eq!(quick.parts.is_empty(), question.parts.is_empty(), "{}", claim.id);
            let sizes = |question: &Question| {
                let mut experiments = BTreeSet::new();
                question.experiments(&mut experiments);
                experiments.into_iter().map(|experiment| experiment.replicas).collect::<BTreeSet<u16>>()
            };
            let (few, all) = (sizes(&quick), sizes(&question));
            assert!(few.len() <= all.len(), "{}: {few:?} of {all:?}", claim.id);
            assert!(few.iter().all(|size| Effort::quick().sizes.contains(size)), "{}: {few:?}", claim.id);
        }
    }

    #[test]
    fn what_can_be_computed_holds() {
        let results = crate::results::Results::in_memory();
        for id in ["cas-46", "cas-47", "dv-24", "dv-26", "dv-27"] {
            let (_, question) = questions().find(|(claim, _)| claim.id == id).expect("it is there");
            let verdict = crate::verdict::judge(&question.parts, &results, 1);
            assert_eq!(verdict.holds(), Some(true), "{id}: {verdict:?}");
        }
    }
}
