//! What must be true of measured quantities for a claim to hold.
//!
//! Most claims follow from their kind and metric; where a sentence says more than that, its reading stands in its paper's file,
//! made before anything was compared (docs/laboratory.md, *How claims are read*).

mod by_kind;
mod cas;
mod dv;
mod gargamel;
pub(crate) mod invalidation;
mod own;
mod wan;

use crate::claims::{Claim, DecidableBy};
use crate::effort::Effort;
use crate::experiment::{Experiment, Metric, Mix, databases};
use crate::quantity::{Needed, Quantity};
use crate::scheduler_cost::SchedulerCost;
use crate::variation::Variation;
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
    /// The same question of clusters that differ in some ways.
    #[must_use]
    pub fn varied(mut self, variations: &[Variation]) -> Question {
        let quantities = self.parts.iter_mut().flat_map(|part| part.test.quantities_mut());
        quantities.for_each(|quantity| quantity.vary(variations));
        self
    }

    /// What has to be run to answer it.
    pub fn experiments(&self, into: &mut Needed) {
        self.parts.iter().for_each(|part| part.test.experiments(into));
    }
}

/// What compares simulation with servers is no matter of simulation.
const NEED_SERVERS: [&str; 2] = ["cas-29", "dv-23"];

/// What has to be looked at for a claim, with so much effort.
#[must_use]
pub fn question(claim: &Claim, effort: &Effort) -> Question {
    let remark = match claim.decidable_by {
        DecidableBy::Argument => Some("The paper argues; nothing was measured.".to_owned()),
        DecidableBy::None => Some("It is about the authors' machines.".to_owned()),
        _ if NEED_SERVERS.contains(&claim.id.as_str()) => {
            Some("Needs real servers beside the simulation: `make cluster-bench`.".to_owned())
        }
        _ => None,
    };
    if let (None, true) = (&remark, claim.id.starts_with("gargamel-")) {
        return match gargamel::parts(claim) {
            Ok(parts) => Question { parts, remark },
            Err(Open(reason)) => Question { parts: Vec::new(), remark: Some(reason) },
        };
    }
    if remark.is_some() {
        return Question { parts: Vec::new(), remark };
    }
    let found = match claim.id.split_once('-') {
        Some(("wan", _)) => wan::parts(claim),
        Some(("invalidation", _)) => invalidation::parts(claim),
        _ => parts(claim, effort),
    };
    match found {
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
        "cas-13" => cas::best_by_more_where_more_is_written(&about?),
        "cas-14" => cas::lazy_beats_eager(&about?),
        "cas-17" => cas::a_replica_for_each_read(&about?),
        "cas-20" => cas::less_where_throughput_is_higher(&about?, Metric::Response, "answers later"),
        "cas-24" => cas::less_where_throughput_is_higher(&about?, Metric::Waiting, "waits longer"),
        "cas-21" => cas::mostly_waiting(&about?),
        "cas-22" => cas::waiting_for_own_writes(&about?),
        "cas-26" => cas::cost_of_fault_tolerance(&about?),
        "cas-30" => cas::best_at_every_size(&about?),
        "cas-31" => cas::flattens_where_the_other_grows(&about?),
        "cas-36" => cas::share_of_writes(&about?),
        "cas-37" => cas::idle_by_conflicts(&about?),
        "cas-39" => cas::work_of_the_scheduler(&about?),
        "cas-40" => cas::same_shape(&about?),
        "cas-42" | "cas-43" => cas::lead_with_few_conflicts(&about?),
        "cas-44" => cas::smaller_lead_with_fewer_conflicts(&about?),
        "cas-45" => cas::conflicts_end_scaling(&about?),
        "cas-46" => cas::costs_of_interactions(claim),
        "cas-47" => cas::shares_of_looking(claim),
        "dv-11" | "dv-12" | "dv-13" | "dv-28" => dv::better_with_more_conflicts(&about?),
        "dv-20" => dv::behind(&about?),
        "dv-24" => dv::versions_of_the_example(claim),
        "dv-25" => Ok(dv::steps_of_the_example(claim)),
        "dv-26" => dv::bound_of_level2(claim),
        "dv-27" => dv::bounds_of_special(claim),
        "dv-29" => dv::shares_of_writing(claim),
        "onecopy-01" => own::near_the_bound(&about?),
        "onecopy-02" => own::not_behind(&about?),
        "onecopy-03" => own::nothing_is_lost_beyond(&about?),
        "onecopy-04" => own::past_the_bound(&about?),
        "onecopy-05" => own::one_scheduler(&about?),
        _ => by_kind::by_kind(&about?),
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
        let mut sizes = effort.sizes_of(&claim.replicas);
        // A claim on where a curve bends needs the size at which it is to bend, however few sizes there are.
        let bend = cas::BENDS.iter().filter(|(id, _)| *id == claim.id).map(|(_, size)| *size);
        sizes.extend(bend);
        sizes.sort_unstable();
        sizes.dedup();
        Ok(About { claim, mixes, sizes, curve: &effort.sizes })
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

/// The scheduler takes at most so many percent of one processor.
fn one_processor(about: &About, mix: Mix, size: u16, percent_max: f64) -> Result<Part, Open> {
    let cost = SchedulerCost::of(about.first())
        .ok_or_else(|| Open("What a message costs the scheduler was not measured.".to_owned()))?;
    let messages = figure(Metric::SchedulerMessages, mix, about.first(), size)?;
    let share = messages / Quantity::Constant(cost.messages_per_s());
    let label = format!("{}: percent of one processor that the scheduler takes", at(mix, size));
    Ok(part(label, Test::AtMost(percent(share), percent_max)))
}

/// Throughput over one database's, as a part of what reading one and writing all allows: 1 / (w + (1 - w) / N), where w is
/// the share of writes in the time of one database.
fn part_of_the_bound(one: &Experiment, all: &Experiment) -> Quantity {
    let writes = || Quantity::Of(Metric::WriteShare, one.clone());
    let least = writes() - (writes() - Quantity::Constant(1.0)) / Quantity::Constant(f64::from(all.replicas));
    let scaling = Quantity::peak(all) / Quantity::peak(one);
    scaling / (Quantity::Constant(1.0) / least)
}

/// What each further database brings from one size to the next, over one database's throughput.
fn gains(mix: Mix, system: &str, sizes: &[u16]) -> Result<Vec<(u16, u16, Quantity)>, Open> {
    gains_of(sizes, |size| peak(mix, system, size))
}

/// The same of any throughput by size.
fn gains_of(
    sizes: &[u16],
    peak: impl Fn(u16) -> Result<Quantity, Open>,
) -> Result<Vec<(u16, u16, Quantity)>, Open> {
    let one = peak(1)?;
    let steps = sizes.windows(2).map(|step| {
        let [from, to] = [step[0], step[1]];
        let more = peak(to)? - peak(from)?;
        Ok((from, to, more / one.clone() / Quantity::Constant(f64::from(to - from))))
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claims::papers;
    use crate::experiment::Figures;
    use crate::quantity::tests::with_peak;
    use crate::results::Results;
    use crate::verdict::judge;

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
    fn a_question_of_clusters_that_differ_is_about_those_only() {
        for (claim, question) in questions() {
            let mut experiments = Needed::default();
            question.varied(&Variation::ALL).experiments(&mut experiments);
            // Of alternatives the last counts: databases serve one thing after the other, for as many users as serve each system best.
            let is_so = |one: &Experiment| {
                one.has(Variation::SlowNetwork)
                    && ![Variation::Shared, Variation::UsersOfFour, Variation::SmallBookstore]
                        .iter()
                        .any(|of| one.has(*of))
                    && one.has_ten_tables() == one.mix.bookstore().is_some()
            };
            assert!(experiments.peaks.iter().all(is_so), "{}", claim.id);
        }
    }

    #[test]
    fn quick_effort_asks_the_same_questions_of_fewer_sizes() {
        // Clusters of peers are small: their sizes are those of the claim.
        for (claim, question) in questions().filter(|(claim, _)| !claim.id.starts_with("invalidation-")) {
            let quick = super::question(claim, &Effort::quick());
            assert_eq!(quick.parts.is_empty(), question.parts.is_empty(), "{}", claim.id);
            let sizes = |question: &Question| {
                let mut experiments = Needed::default();
                question.experiments(&mut experiments);
                experiments.peaks.into_iter().map(|experiment| experiment.replicas).collect::<BTreeSet<u16>>()
            };
            let (few, all) = (sizes(&quick), sizes(&question));
            assert!(few.len() <= all.len(), "{}: {few:?} of {all:?}", claim.id);
            let bends = cas::BENDS.iter().filter(|(id, _)| *id == claim.id).map(|(_, size)| *size);
            let effort = Effort::quick();
            let known: BTreeSet<u16> =
                effort.sizes.iter().chain(&effort.sizes_beyond).copied().chain(bends).collect();
            assert!(few.is_subset(&known), "{}: {few:?}", claim.id);
        }
    }

    #[test]
    fn what_can_be_computed_holds() {
        let results = Results::in_memory();
        for id in ["cas-46", "cas-47", "dv-24", "dv-25", "dv-26", "dv-27", "dv-29", "invalidation-25"] {
            let (_, question) = questions().find(|(claim, _)| claim.id == id).expect("it is there");
            let verdict = judge(&question.parts, &results, 1);
            assert_eq!(verdict.holds(), Some(true), "{id}: {verdict:?}");
        }
    }

    #[test]
    fn one_scheduler_is_enough_up_to_the_messages_that_fill_a_processor() {
        let (_, question) = questions().find(|(claim, _)| claim.id == "cas-39").expect("it is there");
        let mut experiments = Needed::default();
        question.experiments(&mut experiments);
        let shares_hold = |scheduler_messages: f64| {
            let mut results = Results::in_memory();
            for experiment in &experiments.peaks {
                let figures = Figures { scheduler_messages, ..with_peak(100.0) };
                results.add(experiment, 0, figures).expect("memory takes all");
            }
            let outcomes = judge(&question.parts, &results, 1).outcomes;
            let shares = outcomes.into_iter().filter(|outcome| outcome.label.contains("one processor"));
            shares.map(|share| share.holds).collect::<Vec<_>>()
        };
        let full = SchedulerCost::of("conflict_aware").expect("it was measured").messages_per_s();
        assert_eq!(shares_hold(0.99 * full), [Some(true); 3]);
        assert_eq!(shares_hold(1.01 * full), [Some(false); 3]);
    }
}
