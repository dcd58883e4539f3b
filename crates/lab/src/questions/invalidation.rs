//! What the paper on invalidation says (docs/protocols/invalidation.md, *How claims are read*).

use super::{Open, Part, Parts, at, cas, gains_of, part};
use crate::claims::Claim;
use crate::experiment::{Experiment, Metric, Mix, UnknownSystem};
use crate::quantity::Quantity;
use crate::variation::Variation;
use crate::verdict::Test;

pub(super) fn parts(claim: &Claim) -> Parts {
    let asked = Asked::new(claim)?;
    match claim.id.as_str() {
        "invalidation-01" => asked.first_has_more(Metric::PeerMessages),
        "invalidation-02" => asked.more_by_mix(Metric::PeerMessages),
        "invalidation-03" => asked.small_part(Metric::PeerMessages),
        "invalidation-05" => asked.whatever_the_mix(Metric::Waiting),
        "invalidation-06" => asked.cheaper_access(),
        "invalidation-08" => asked.first_has_more(Metric::WriteWaiting),
        "invalidation-09" => asked.more_by_mix(Metric::WriteWaiting),
        "invalidation-10" => asked.first_has_more(Metric::SharedWrites),
        "invalidation-11" => asked.more_by_mix(Metric::SharedWrites),
        "invalidation-12" => asked.small_part(Metric::SharedAccesses),
        "invalidation-13" => asked.small_part(Metric::SharedWrites),
        "invalidation-14" => asked.costs_less_than_it_gains(),
        "invalidation-15" => asked.hardly_later(),
        "invalidation-16" => asked.faster_than_all(),
        "invalidation-17" => asked.fast_with_fewer(),
        "invalidation-18" => asked.less_when_ordering(),
        "invalidation-19" => asked.as_much_when_ordering(),
        "invalidation-20" => asked.loses_nothing(),
        "invalidation-21" => asked.has_less(),
        "invalidation-22" => asked.grows(),
        "invalidation-23" => asked.brings_less(),
        "invalidation-25" => cas::shares_of_looking(claim),
        _ => Err(Open("No reading of it is written down.".to_owned())),
    }
}

/// A figure of a system in the paper's cluster.
pub(crate) fn cluster_figure(
    metric: Metric,
    mix: Mix,
    system: &str,
    replicas: u16,
) -> Result<Quantity, UnknownSystem> {
    let experiment = Experiment::new(mix, system, replicas)?.of_invalidation();
    Ok(Quantity::Of(metric.where_locks_are_writes(system), experiment))
}

/// Interactions a second there with as many users as serve the system best: with more databases more can
/// be served (V-D), so there must have been more to serve.
pub(crate) fn cluster_peak(mix: Mix, system: &str, replicas: u16) -> Result<Quantity, UnknownSystem> {
    let mut quantity = cluster_figure(Metric::Peak, mix, system, replicas)?;
    quantity.vary(&[Variation::OwnPeaks]);
    Ok(quantity)
}

struct Asked<'a> {
    claim: &'a Claim,
    mixes: Vec<Mix>,
}

impl<'a> Asked<'a> {
    fn new(claim: &'a Claim) -> Result<Asked<'a>, Open> {
        let mixes = claim.workloads.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        Ok(Asked { claim, mixes })
    }

    fn size(&self) -> Result<u16, Open> {
        self.claim.replicas.first().copied().ok_or_else(|| Open("The paper gives no size.".to_owned()))
    }

    fn value(&self) -> Result<f64, Open> {
        self.claim.values.first().copied().ok_or_else(|| Open("The paper gives no number.".to_owned()))
    }

    fn of(&self, metric: Metric, mix: Mix, system: usize) -> Result<Quantity, Open> {
        Ok(cluster_figure(metric, mix, &self.claim.systems[system], self.size()?)?)
    }

    fn label(&self, mix: Mix, system: usize) -> Result<String, Open> {
        Ok(format!("{}: {}", at(mix, self.size()?), self.claim.systems[system]))
    }

    /// In each mix.
    fn first_has_more(&self, metric: Metric) -> Parts {
        let parts = self.mixes.iter().map(|&mix| {
            let test = Test::More(self.of(metric, mix, 0)?, self.of(metric, mix, 1)?);
            Ok(part(at(mix, self.size()?), test))
        });
        parts.collect()
    }

    /// From each mix to the next, for each system.
    fn more_by_mix(&self, metric: Metric) -> Parts {
        let mut parts = Vec::new();
        for system in 0..self.claim.systems.len() {
            for pair in self.mixes.windows(2) {
                let test = Test::More(self.of(metric, pair[0], system)?, self.of(metric, pair[1], system)?);
                let label = format!("{}, more than {}", self.label(pair[0], system)?, pair[1].name());
                parts.push(part(label, test));
            }
        }
        Ok(parts)
    }

    /// The first system's is at most this part of each other one's.
    fn small_part(&self, metric: Metric) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            for system in 1..self.claim.systems.len() {
                let ratio = self.of(metric, mix, 0)? / self.of(metric, mix, system)?;
                let label = format!("{}: part of {}", at(mix, self.size()?), self.claim.systems[system]);
                parts.push(part(label, Test::AtMost(ratio, self.value()?)));
            }
        }
        Ok(parts)
    }

    fn whatever_the_mix(&self, metric: Metric) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            for &other in self.mixes.iter().filter(|other| **other != mix) {
                let ratio = self.of(metric, mix, 0)? / self.of(metric, other, 0)?;
                let label = format!("{} over {}", mix.name(), other.name());
                parts.push(part(label, Test::AtMost(ratio, self.value()?)));
            }
        }
        Ok(parts)
    }

    fn cheaper_access(&self) -> Parts {
        let metric = Metric::Waiting;
        let ratio = |mix| Ok::<_, Open>(self.of(metric, mix, 1)? / self.of(metric, mix, 0)?);
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            let test = Test::More(self.of(metric, mix, 1)?, self.of(metric, mix, 0)?);
            parts.push(part(format!("{}: less", at(mix, self.size()?)), test));
        }
        for pair in self.mixes.windows(2) {
            let label = format!("larger part saved in {} than in {}", pair[0].name(), pair[1].name());
            parts.push(part(label, Test::More(ratio(pair[0])?, ratio(pair[1])?)));
            let test = Test::More(self.of(metric, pair[1], 0)?, self.of(metric, pair[0], 0)?);
            parts.push(part(format!("{}, more than {}", self.label(pair[1], 0)?, pair[0].name()), test));
        }
        Ok(parts)
    }

    fn alone(&self, metric: Metric, mix: Mix) -> Result<Quantity, Open> {
        Ok(cluster_figure(metric, mix, "weak", 1)?)
    }

    fn costs_less_than_it_gains(&self) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            for system in [0, 1] {
                let label = self.label(mix, system)?;
                let costs =
                    Test::More(self.of(Metric::Response, mix, system)?, self.of(Metric::Response, mix, 2)?);
                parts.push(part(format!("{label}, later than weak"), costs));
                let gains =
                    Test::More(self.alone(Metric::Response, mix)?, self.of(Metric::Response, mix, system)?);
                parts.push(part(format!("{label}, sooner than one database"), gains));
            }
        }
        Ok(parts)
    }

    fn hardly_later(&self) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            for system in [0, 1] {
                let ratio = self.of(Metric::Response, mix, system)? / self.of(Metric::Response, mix, 2)?;
                let label = format!("{} over weak", self.label(mix, system)?);
                parts.push(part(label, Test::AtMost(ratio, self.value()?)));
            }
        }
        Ok(parts)
    }

    fn faster_than_all(&self) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            let first = || self.of(Metric::Response, mix, 0);
            for system in 1..self.claim.systems.len() {
                let test = Test::More(self.of(Metric::Response, mix, system)?, first()?);
                parts.push(part(format!("{}, later", self.label(mix, system)?), test));
            }
            let test = Test::More(self.alone(Metric::Response, mix)?, first()?);
            parts.push(part(format!("{}, later", at(mix, 1)), test));
        }
        Ok(parts)
    }

    fn fast_with_fewer(&self) -> Parts {
        let mut parts = Vec::new();
        for &mix in &self.mixes {
            for (metric, what) in [(Metric::Response, "answers sooner"), (Metric::Peak, "serves fewer")] {
                let test = Test::More(self.of(metric, mix, 1)?, self.of(metric, mix, 0)?);
                parts.push(part(format!("{} {what}", self.label(mix, 0)?), test));
            }
        }
        Ok(parts)
    }

    fn less_when_ordering(&self) -> Parts {
        let parts = (0..self.claim.systems.len()).map(|system| {
            let [ordering, browsing] = [0, 1].map(|mix| self.of(Metric::Peak, self.mixes[mix], system));
            Ok(part(self.label(self.mixes[0], system)?, Test::More(browsing?, ordering?)))
        });
        parts.collect()
    }

    fn as_much_when_ordering(&self) -> Parts {
        let [ordering, browsing] = [0, 1].map(|mix| self.of(Metric::Peak, self.mixes[mix], 0));
        let label = format!("{} over browsing", self.label(self.mixes[0], 0)?);
        Ok(vec![part(label, Test::AtLeast(ordering? / browsing?, self.value()?))])
    }

    fn loses_nothing(&self) -> Parts {
        let parts = self.mixes.iter().map(|&mix| {
            let ratio = self.of(Metric::Peak, mix, 0)? / self.of(Metric::Peak, mix, 1)?;
            Ok(part(format!("{} over weak", self.label(mix, 0)?), Test::AtLeast(ratio, self.value()?)))
        });
        parts.collect()
    }

    fn has_less(&self) -> Parts {
        let mix = self.mixes[0];
        let test = Test::More(self.of(Metric::Peak, mix, 1)?, self.of(Metric::Peak, mix, 0)?);
        Ok(vec![part(self.label(mix, 0)?, test)])
    }

    fn grows(&self) -> Parts {
        let (system, sizes) = (&self.claim.systems[0], &self.claim.replicas);
        let mut parts: Vec<Part> = Vec::new();
        for &mix in &self.mixes {
            for pair in sizes.windows(2) {
                let test =
                    Test::More(cluster_peak(mix, system, pair[1])?, cluster_peak(mix, system, pair[0])?);
                parts.push(part(format!("{}, more than with {}", at(mix, pair[1]), pair[0]), test));
            }
        }
        let largest = *sizes.last().ok_or_else(|| Open("The paper gives no size.".to_owned()))?;
        let scaling =
            |mix| Ok::<_, Open>(cluster_peak(mix, system, largest)? / cluster_peak(mix, system, sizes[0])?);
        for pair in self.mixes.windows(2) {
            let label = format!("with {largest} over one: {} more than {}", pair[0].name(), pair[1].name());
            parts.push(part(label, Test::More(scaling(pair[0])?, scaling(pair[1])?)));
        }
        Ok(parts)
    }

    fn brings_less(&self) -> Parts {
        let (system, sizes) = (&self.claim.systems[0], &self.claim.replicas);
        let mut parts = Vec::new();
        let mut last_over_first = Vec::new();
        for &mix in &self.mixes {
            let steps = gains_of(sizes, |size| Ok(cluster_peak(mix, system, size)?))?;
            for pair in steps.windows(2) {
                let label = format!("{}: each brings less than before", at(mix, pair[1].1));
                parts.push(part(label, Test::More(pair[0].2.clone(), pair[1].2.clone())));
            }
            if let [first, .., last] = &steps[..] {
                last_over_first.push(last.2.clone() / first.2.clone());
            }
        }
        for (pair, mixes) in last_over_first.windows(2).zip(self.mixes.windows(2)) {
            let label = format!("falls by more when {} than when {}", mixes[1].name(), mixes[0].name());
            parts.push(part(label, Test::More(pair[0].clone(), pair[1].clone())));
        }
        Ok(parts)
    }
}
