//! What the paper on wide areas shows, over rates and over sites (Lin et al., figures 3 to 7), and the messages that go with it.

use super::{Curve, Figure};
use crate::effort::Effort;
use crate::quantity::Quantity;
use crate::results::Results;
use crate::statistics::Estimate;
use crate::variation::Variation;
use crate::wide::{WideExperiment, WideMetric};

/// What an axis of times is in.
const MS: f64 = 1e3;

/// A curve's name, its protocol's words, and what is shown of it.
type Line = (&'static str, &'static str, WideMetric);

struct Plan {
    name: &'static str,
    what: &'static str,
    over: Over,
    /// What it is in, and how many of that make up one of what is measured.
    unit: (&'static str, f64),
    lines: &'static [Line],
}

enum Over {
    /// Transactions a second, at so many sites.
    Rates(u16),
    /// Sites, at each of these rates: a curve for each.
    Sites(&'static [u32]),
}

/// Rates at which something may be known, without those that are too much: as in the paper (5.1).
const RATES: [u32; 6] = [20, 30, 40, 45, 50, 60];
/// Numbers of sites likewise.
const SITES: [u16; 5] = [2, 3, 4, 6, 8];

const ANSWERS: (&str, f64) = ("mean response time, ms", MS);

const PLANS: [Plan; 10] = [
    Plan {
        name: "3a",
        what: "updates by where they execute",
        over: Over::Rates(4),
        unit: ANSWERS,
        lines: &[
            ("symmetric", "symmetric agreed", WideMetric::Updates),
            ("primary copy, local", "primary_copy agreed", WideMetric::LocalUpdates),
            ("primary copy, remote", "primary_copy agreed", WideMetric::RemoteUpdates),
            ("local copy", "local_copy agreed", WideMetric::Updates),
        ],
    },
    Plan {
        name: "3b",
        what: "until an update's message is delivered",
        over: Over::Rates(4),
        unit: ("mean time of delivery, ms", MS),
        lines: &[
            ("symmetric", "symmetric agreed", WideMetric::Delivery),
            ("primary copy, local", "primary_copy agreed", WideMetric::Delivery),
            ("local copy", "local_copy agreed", WideMetric::Delivery),
        ],
    },
    Plan {
        name: "4a",
        what: "queries from snapshots or under locks, symmetric",
        over: Over::Rates(4),
        unit: ANSWERS,
        lines: &[
            ("queries, snapshot", "symmetric agreed", WideMetric::Queries),
            ("queries, locked", "locked symmetric agreed", WideMetric::Queries),
            ("updates, snapshot", "symmetric agreed", WideMetric::Updates),
            ("updates, locked", "locked symmetric agreed", WideMetric::Updates),
        ],
    },
    Plan {
        name: "4b",
        what: "the same, local copy",
        over: Over::Rates(4),
        unit: ANSWERS,
        lines: &[
            ("queries, snapshot", "local_copy agreed", WideMetric::Queries),
            ("queries, locked", "locked local_copy agreed", WideMetric::Queries),
            ("updates, snapshot", "local_copy agreed", WideMetric::Updates),
            ("updates, locked", "locked local_copy agreed", WideMetric::Updates),
        ],
    },
    Plan {
        name: "5a",
        what: "updates by what is promised of their delivery",
        over: Over::Rates(4),
        unit: ANSWERS,
        lines: &[
            ("agreed", "symmetric agreed", WideMetric::Updates),
            ("opt-safe", "symmetric opt_safe", WideMetric::Updates),
            ("safe", "symmetric safe", WideMetric::Updates),
            ("agreed: ordered", "symmetric agreed", WideMetric::Ordered),
            ("safe: stable", "symmetric safe", WideMetric::Stable),
        ],
    },
    Plan {
        name: "6a",
        what: "queries, primary copy, opt-safe",
        over: Over::Sites(&[20, 40, 60, 80]),
        unit: ANSWERS,
        lines: &[("", "primary_copy opt_safe", WideMetric::Queries)],
    },
    Plan {
        name: "6b",
        what: "local updates, primary copy, opt-safe",
        over: Over::Sites(&[20, 40, 60, 80]),
        unit: ANSWERS,
        lines: &[("", "primary_copy opt_safe", WideMetric::LocalUpdates)],
    },
    Plan {
        name: "7a",
        what: "queries, symmetric, agreed",
        over: Over::Sites(&[20, 40, 60]),
        unit: ANSWERS,
        lines: &[("", "symmetric agreed", WideMetric::Queries)],
    },
    Plan {
        name: "7b",
        what: "updates, symmetric, agreed",
        over: Over::Sites(&[20, 40, 60]),
        unit: ANSWERS,
        lines: &[("", "symmetric agreed", WideMetric::Updates)],
    },
    Plan {
        name: "messages",
        what: "messages from site to site, but for the token",
        over: Over::Sites(&[40]),
        unit: ("messages for each update", 1.0),
        lines: &[
            ("symmetric, ", "symmetric agreed", WideMetric::Messages),
            ("primary copy, ", "primary_copy opt_safe", WideMetric::Messages),
        ],
    },
];

/// Those of which something is known.
pub(super) fn figures(variations: &[Variation], effort: &Effort, results: &Results) -> Vec<Figure> {
    let figures = PLANS.iter().map(|plan| plan.figure(variations, effort, results));
    figures.filter(|figure| !figure.curves.is_empty()).collect()
}

impl Plan {
    fn figure(&self, variations: &[Variation], effort: &Effort, results: &Results) -> Figure {
        let value = |(_, system, metric): &Line, sites: u16, rate: u32| {
            let mut experiment = WideExperiment::new(system, sites, rate).ok()?;
            variations.iter().for_each(|variation| variation.apply_to_wide(&mut experiment));
            let samples = Quantity::OfWide(*metric, experiment).samples(results, effort.seeds).ok()?;
            Some(Estimate::of(&samples)?.mean * self.unit.1)
        };
        let curve = |line: &Line| match self.over {
            Over::Rates(sites) => {
                let point = |&rate: &u32| Some((rate as u16, value(line, sites, rate)?));
                vec![Curve { label: line.0.to_owned(), points: RATES.iter().filter_map(point).collect() }]
            }
            Over::Sites(rates) => {
                let at_rate = |&rate: &u32| Curve {
                    label: format!("{}{rate} a second", line.0),
                    points: SITES
                        .iter()
                        .filter_map(|&sites| Some((sites, value(line, sites, rate)?)))
                        .collect(),
                };
                rates.iter().map(at_rate).collect()
            }
        };
        let axis = match self.over {
            Over::Rates(_) => "transactions that arrive, a second",
            Over::Sites(_) => "sites",
        };
        let (number, title) = match self.name {
            "messages" => ("messages".to_owned(), format!("WAN: {}", self.what)),
            number => (format!("figure-{number}"), format!("WAN figure {number}: {}", self.what)),
        };
        Figure {
            name: format!("wan-{number}"),
            title,
            axes: [axis, self.unit.0],
            groups: &[],
            curves: self.lines.iter().flat_map(curve).filter(|curve| curve.points.len() > 1).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::Kept;
    use crate::wide::WideFigures;

    #[test]
    fn times_are_in_milliseconds_and_sites_have_a_curve_for_each_rate() {
        let mut results = Results::in_memory();
        let mut add = |system: &str, sites: u16, rate: u32, updates_s: f64| {
            let experiment = WideExperiment::new(system, sites, rate).expect("there is one");
            let figures = WideFigures { updates_s, messages: f64::from(sites - 1), ..WideFigures::default() };
            WideExperiment::rows_mut(&mut results).add(&experiment, 0, figures).expect("memory takes all");
        };
        for (sites, rate, s) in [(2, 20, 0.05), (4, 20, 0.1), (2, 40, 0.06), (4, 40, 0.14)] {
            add("symmetric agreed", sites, rate, s);
        }
        let effort = Effort { seeds: 1, ..Effort::quick() };
        let figures = figures(&[], &effort, &results);
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).expect("it is there");
        let curve =
            |label: &str, points: [(u16, f64); 2]| Curve { label: label.into(), points: points.into() };
        let by_rate =
            [curve("20 a second", [(2, 50.0), (4, 100.0)]), curve("40 a second", [(2, 60.0), (4, 140.0)])];
        assert_eq!(of("wan-figure-7b").curves, by_rate);
        assert_eq!(of("wan-figure-3a").curves, [curve("symmetric", [(20, 100.0), (40, 140.0)])]);
        let messages = curve("symmetric, 40 a second", [(2, 1.0), (4, 3.0)]);
        assert_eq!(of("wan-messages").curves, [messages]);
        assert!(figures.iter().all(|figure| figure.svg().is_ok()));
    }
}
