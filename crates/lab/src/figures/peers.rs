//! What the paper on invalidation shows of its mixes (Repantis et al., figures 4 to 10), and of more databases (figure 11).

use super::{Curve, Figure};
use crate::effort::Effort;
use crate::experiment::{Metric, Mix};
use crate::quantity::Quantity;
use crate::questions::invalidation::{cluster_figure, cluster_peak};
use crate::results::Results;
use crate::statistics::Estimate;
use crate::variation::Variation;

const MIXES: [(&str, Mix); 3] =
    [("browsing", Mix::TpcwBrowsing), ("shopping", Mix::TpcwShopping), ("ordering", Mix::TpcwOrdering)];
const GROUPS: [&str; 3] = [MIXES[0].0, MIXES[1].0, MIXES[2].0];

/// The paper's own number of databases.
const SIZE: u16 = 4;
const SIZES: [u16; 4] = [1, 2, 4, 8];

const STRONG: &[&str] = &["invalidation", "partitioned", "lock_distributed"];
/// Who asks others before it reads or writes what all have.
const ASKING: &[&str] = &["invalidation", "lock_distributed"];
const ALL: &[&str] = &["weak", "partitioned", "invalidation", "lock_distributed"];

/// What one database alone is called, in figures that have it.
const ALONE: &str = "one database";

/// Number, what is shown, of whom, and whether of one database, too.
type Plan = (u8, &'static str, Metric, &'static [&'static str], bool);

const PLANS: [Plan; 7] = [
    (4, "messages of a peer, a second", Metric::PeerMessages, STRONG, false),
    (5, "mean time to access a table, ms", Metric::Waiting, ASKING, false),
    (6, "mean time to access a table for writing, ms", Metric::WriteWaiting, ASKING, false),
    (7, "accesses to shared tables, a second", Metric::SharedAccesses, STRONG, false),
    (8, "writes of shared tables, a second", Metric::SharedWrites, STRONG, false),
    (9, "mean response time, ms", Metric::Response, ALL, true),
    (10, "interactions a second", Metric::Peak, ALL, true),
];

/// Those of which something is known.
pub(super) fn figures(variations: &[Variation], effort: &Effort, results: &Results) -> Vec<Figure> {
    let mean = |mut quantity: Quantity| {
        quantity.vary(variations);
        Some(Estimate::of(&quantity.samples(results, effort.seeds).ok()?)?.mean)
    };
    let value = |metric: Metric, mix: Mix, system: &str, size: u16| {
        mean(cluster_figure(metric, mix, system, size).ok()?)
    };
    let by_mix = |(number, what, metric, systems, has_one): &Plan| {
        let bars = |label: &str, system: &str, size: u16| {
            let point = |(place, (_, mix)): (usize, &(&str, Mix))| {
                Some((place as u16, value(*metric, *mix, system, size)?))
            };
            Curve { label: label.to_owned(), points: MIXES.iter().enumerate().filter_map(point).collect() }
        };
        let mut curves: Vec<Curve> = systems.iter().map(|system| bars(system, system, SIZE)).collect();
        if *has_one {
            curves.push(bars(ALONE, "weak", 1));
        }
        curves.retain(|curve| !curve.points.is_empty());
        Figure {
            name: format!("invalidation-figure-{number}"),
            title: format!("INVALIDATION figure {number}: {what}"),
            axes: ["mix", what],
            groups: &GROUPS,
            curves,
        }
    };
    let over_sizes = || {
        let curve = |(name, mix): &(&str, Mix)| {
            let point = |&size: &u16| Some((size, mean(cluster_peak(*mix, "invalidation", size).ok()?)?));
            Curve { label: (*name).to_owned(), points: SIZES.iter().filter_map(point).collect() }
        };
        Figure {
            name: "invalidation-figure-11".to_owned(),
            title: "INVALIDATION figure 11: throughput".to_owned(),
            axes: ["databases", "interactions a second"],
            groups: &[],
            curves: MIXES.iter().map(curve).filter(|curve| curve.points.len() > 1).collect(),
        }
    };
    let figures = PLANS.iter().map(by_mix).chain(std::iter::once_with(over_sizes));
    figures.filter(|figure| !figure.curves.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;
    use crate::quantity::tests::results;

    #[test]
    fn mixes_are_groups_of_bars_and_sizes_are_curves() {
        let of = |mix, system: &str, size| {
            Experiment::new(mix, system, size).expect("it is there").of_invalidation()
        };
        let (browsing, alone) = (of(Mix::TpcwBrowsing, "invalidation", 4), of(Mix::TpcwBrowsing, "weak", 1));
        let ordering = of(Mix::TpcwOrdering, "invalidation", 4);
        let at_peak = |size| {
            let mut experiment = of(Mix::TpcwOrdering, "invalidation", size);
            Variation::OwnPeaks.apply(&mut experiment);
            experiment
        };
        let [four, eight] = [4, 8].map(at_peak);
        let results = results(&[
            (&browsing, &[20.0]),
            (&alone, &[5.0]),
            (&ordering, &[32.0]),
            (&four, &[33.0]),
            (&eight, &[40.0]),
        ]);
        let figures = figures(&[], &Effort { seeds: 1, ..Effort::quick() }, &results);
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).expect("it is there");
        let ten = of("invalidation-figure-10");
        let bars =
            |label: &str, points: &[(u16, f64)]| Curve { label: label.into(), points: points.to_vec() };
        assert_eq!(ten.curves, [bars("invalidation", &[(0, 20.0), (2, 32.0)]), bars(ALONE, &[(0, 5.0)])]);
        let svg = ten.svg().expect("it is drawn");
        assert!(GROUPS.iter().all(|group| svg.contains(group)), "{svg}");
        assert_eq!(of("invalidation-figure-11").curves, [bars("ordering", &[(4, 33.0), (8, 40.0)])]);
    }
}
