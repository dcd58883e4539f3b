//! Curves of throughput over databases, and of several figures over the rate of whole transactions, as SVG; those of papers without a scheduler
//! are in the files below.

mod peers;
mod sites;

use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

use crate::claims::Paper;
use crate::effort::Effort;
use crate::experiment::{Experiment, Metric, Mix};
use crate::quantity::Quantity;
use crate::results::Results;
use crate::statistics::Estimate;
use crate::variation::Variation;
use crate::whole::{WholeExperiment, WholeMetric};

/// A figure of a paper, with what came out here.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Its file's name, without an ending: `cas-figure-11`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What its axes show.
    pub axes: [&'static str; 2],
    /// If there are any, it has bars instead of curves: a group of each of these names, one bar from each curve, whose points name the group's place.
    pub groups: &'static [&'static str],
    /// The curves that something is known of.
    pub curves: Vec<Curve>,
}

/// A curve: means over seeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// What it stands for.
    pub label: String,
    /// Of both axes: databases and interactions a second, or a rate and a figure.
    pub points: Vec<(u16, f64)>,
}

/// A figure cannot be drawn; a fault of ours.
#[derive(Debug, Error)]
#[error("draw {name}: {error}")]
pub struct DrawError {
    name: String,
    error: String,
}

/// What a paper's figure shows.
struct Plan {
    paper: &'static str,
    figure: u8,
    mix: Mix,
    lines: Lines,
}

enum Lines {
    Systems(&'static [&'static str]),
    /// The same with what reading one and writing all allows, up to the largest clusters.
    Bounded(&'static [&'static str]),
    /// `onecopy` and the bound.
    Beyond,
    /// `conflict_aware` on databases so many times as fast.
    Speeds(&'static [u32]),
}

const CAS: &[&str] = &["onecopy", "conflict_aware", "fixed_conflict", "variable_load", "fixed_load", "eager"];
const DV: &[&str] =
    &["onecopy", "versioning", "versioning_no_early_release", "versioning_late_acquire", "conflict_aware"];
const LOOSE: &[&str] = &["onecopy", "level0", "level1", "level2", "special", "versioning", "eager"];

const OWN: &[&str] = &["onecopy", "versioning", "conflict_aware", "eager"];

const PLANS: [Plan; 18] = [
    Plan { paper: "cas", figure: 11, mix: Mix::TpcwBrowsing, lines: Lines::Systems(CAS) },
    Plan { paper: "cas", figure: 12, mix: Mix::TpcwShopping, lines: Lines::Systems(CAS) },
    Plan { paper: "cas", figure: 13, mix: Mix::TpcwOrdering, lines: Lines::Systems(CAS) },
    Plan { paper: "cas", figure: 15, mix: Mix::TpcwShopping, lines: Lines::Speeds(&[1, 2, 4]) },
    Plan { paper: "dv", figure: 8, mix: Mix::TpcwShopping, lines: Lines::Systems(DV) },
    Plan { paper: "dv", figure: 9, mix: Mix::TpcwOrdering, lines: Lines::Systems(DV) },
    Plan { paper: "dv", figure: 10, mix: Mix::Auction, lines: Lines::Systems(DV) },
    Plan { paper: "dv", figure: 11, mix: Mix::TpcwBrowsing, lines: Lines::Systems(LOOSE) },
    Plan { paper: "dv", figure: 12, mix: Mix::TpcwShopping, lines: Lines::Systems(LOOSE) },
    Plan { paper: "dv", figure: 13, mix: Mix::TpcwOrdering, lines: Lines::Systems(LOOSE) },
    Plan { paper: "dv", figure: 14, mix: Mix::BulletinBoard, lines: Lines::Systems(LOOSE) },
    Plan { paper: "dv", figure: 15, mix: Mix::Auction, lines: Lines::Systems(LOOSE) },
    Plan { paper: "onecopy", figure: 1, mix: Mix::TpcwBrowsing, lines: Lines::Bounded(OWN) },
    Plan { paper: "onecopy", figure: 2, mix: Mix::TpcwShopping, lines: Lines::Bounded(OWN) },
    Plan { paper: "onecopy", figure: 3, mix: Mix::TpcwOrdering, lines: Lines::Bounded(OWN) },
    Plan { paper: "onecopy", figure: 4, mix: Mix::TpcwBrowsing, lines: Lines::Beyond },
    Plan { paper: "onecopy", figure: 5, mix: Mix::TpcwShopping, lines: Lines::Beyond },
    Plan { paper: "onecopy", figure: 6, mix: Mix::TpcwOrdering, lines: Lines::Beyond },
];

/// The figures of a paper, as far as something is known: those with a curve of two points or more.
#[must_use]
pub fn figures_of(
    paper: &Paper,
    variations: &[Variation],
    effort: &Effort,
    results: &Results,
) -> Vec<Figure> {
    let plans = PLANS.iter().filter(|plan| plan.paper == paper.name);
    // Where only the bound is known, there is nothing to show.
    let is_bound = |curve: &Curve| curve.label == "bound";
    let figures = plans.map(|plan| Figure {
        name: format!("{}-figure-{}", plan.paper, plan.figure),
        title: plan.title(),
        axes: ["databases", "interactions a second"],
        groups: &[],
        curves: plan.curves(variations, effort, results),
    });
    let figures = figures.filter(|figure| !figure.curves.iter().all(is_bound));
    let others = match paper.name.as_str() {
        "gargamel" => figures_over_rates(variations, effort, results),
        "wan" => sites::figures(variations, effort, results),
        "invalidation" => peers::figures(variations, effort, results),
        _ => Vec::new(),
    };
    figures.chain(others).collect()
}

/// Rates of whole transactions at which something may be known, a second.
const RATES: [u32; 9] = [10, 50, 75, 100, 150, 175, 200, 250, 300];

/// Systems whose figures are of one size; one chain of all updates is behind by orders of magnitude.
const OVER_RATES_OF: [&str; 3] = ["chains", "tashkent_plus", "round_robin"];

/// Figures of whole transactions: number, what they show, of what, with how many workers.
const OVER_RATES: [(u8, &str, WholeMetric, u16); 5] = [
    (5, "highest throughput, a second", WholeMetric::Highest, 100),
    (6, "mean penalty ratio", WholeMetric::Penalty, 100),
    (8, "speed-up", WholeMetric::SpeedUp, 100),
    (10, "transactions that find no worker, on average", WholeMetric::Queue, 100),
    (12, "the most workers busy at once", WholeMetric::Cost, 100),
];

fn figures_over_rates(variations: &[Variation], effort: &Effort, results: &Results) -> Vec<Figure> {
    let figure = |(number, what, metric, workers): &(u8, &'static str, WholeMetric, u16)| {
        let curve = |system: &&'static str| {
            let point = |rate: &u32| {
                let mut experiment = WholeExperiment::new(system, *rate, *workers).ok()?;
                variations.iter().for_each(|variation| variation.apply_to_whole(&mut experiment));
                let samples = Quantity::OfWhole(*metric, experiment).samples(results, effort.seeds).ok()?;
                Some((*rate as u16, Estimate::of(&samples)?.mean))
            };
            Curve { label: (*system).to_owned(), points: RATES.iter().filter_map(point).collect() }
        };
        let curves = OVER_RATES_OF.iter().map(curve).filter(|curve| curve.points.len() > 1);
        Figure {
            name: format!("gargamel-figure-{number}"),
            title: format!("GARGAMEL figure {number}: {what}"),
            axes: ["transactions that arrive, a second", what],
            groups: &[],
            curves: curves.collect(),
        }
    };
    OVER_RATES.iter().map(figure).filter(|figure| !figure.curves.is_empty()).collect()
}

impl Plan {
    fn title(&self) -> String {
        let what = match self.lines {
            Lines::Systems(_) => "",
            Lines::Bounded(_) => ", and what reading one and writing all allows",
            Lines::Beyond => ", beyond the papers' clusters",
            Lines::Speeds(_) => ", conflict_aware on faster databases",
        };
        let number = match self.paper {
            "onecopy" => String::new(),
            paper => format!("{} figure {}: ", paper.to_uppercase(), self.figure),
        };
        format!("{number}{}{what}", self.mix.name())
    }

    /// What reading one and writing all allows at most, by what one database does.
    fn bound(
        &self,
        sizes: &[u16],
        variations: &[Variation],
        effort: &Effort,
        results: &Results,
    ) -> Option<Curve> {
        let mut one = Experiment::new(self.mix, "onecopy", 1).ok()?;
        variations.iter().for_each(|variation| variation.apply(&mut one));
        let mean = |metric: Metric| {
            let samples = Quantity::Of(metric, one.clone()).samples(results, effort.seeds).ok()?;
            Some(Estimate::of(&samples)?.mean)
        };
        let (peak, writes) = (mean(Metric::Peak)?, mean(Metric::WriteShare)?);
        let point = |&size: &u16| (size, peak / (writes + (1.0 - writes) / f64::from(size)));
        Some(Curve { label: "bound".to_owned(), points: sizes.iter().map(point).collect() })
    }

    fn curves(&self, variations: &[Variation], effort: &Effort, results: &Results) -> Vec<Curve> {
        let plain = |system: &str| Experiment::new(self.mix, system, 1).ok();
        let beyond: Vec<u16> = effort.sizes.iter().chain(&effort.sizes_beyond).copied().collect();
        let (sizes, bound) = match self.lines {
            Lines::Beyond => (&beyond, self.bound(&beyond, variations, effort, results)),
            Lines::Bounded(_) => (&effort.sizes, self.bound(&effort.sizes, variations, effort, results)),
            Lines::Systems(_) | Lines::Speeds(_) => (&effort.sizes, None),
        };
        let lines: Vec<(String, Experiment)> = match &self.lines {
            Lines::Beyond => plain("onecopy").map(|line| ("onecopy".to_owned(), line)).into_iter().collect(),
            Lines::Systems(systems) | Lines::Bounded(systems) => {
                systems.iter().filter_map(|system| Some(((*system).to_owned(), plain(system)?))).collect()
            }
            Lines::Speeds(speeds) => {
                let line = |speed: &u32| {
                    Some((format!("{speed} x"), Experiment { speed: *speed, ..plain("conflict_aware")? }))
                };
                speeds.iter().filter_map(line).collect()
            }
        };
        let curves = lines.into_iter().map(|(label, line)| {
            let point = |&replicas: &u16| {
                let mut experiment = Experiment { replicas, ..line.clone() };
                variations.iter().for_each(|variation| variation.apply(&mut experiment));
                let samples: Vec<f64> =
                    (0..effort.seeds).filter_map(|seed| Some(results.get(&experiment, seed)?.peak)).collect();
                Some((replicas, Estimate::of(&samples)?.mean))
            };
            Curve { label, points: sizes.iter().filter_map(point).collect() }
        });
        curves.filter(|curve| curve.points.len() > 1).chain(bound).collect()
    }
}

/// Width and height of a figure, in pixels.
const SIZE: (u32, u32) = (720, 440);

/// How many numbers stand at an axis of curves.
const X_LABELS: usize = 11;
/// The part of the way from one group of bars to the next that bars take, and the part of its own that a bar takes.
const GROUP_WIDTH: f64 = 0.8;
const BAR_PART: f64 = 0.9;

impl Figure {
    /// The name of the group whose middle is here; nothing between two.
    fn group_at(&self, place: f64) -> &'static str {
        let is_middle = (place - place.round()).abs() < 0.01;
        let group = if is_middle && place > -0.5 { self.groups.get(place.round() as usize) } else { None };
        group.copied().unwrap_or_default()
    }

    /// Draws it.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String, DrawError> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&area)
                .map_err(|error| DrawError { name: self.name.clone(), error: error.to_string() })?;
        }
        Ok(text)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let has_bars = !self.groups.is_empty();
        let largest = points().map(|(size, _)| *size).max().unwrap_or(1);
        let highest = points().map(|(_, peak)| *peak).fold(1.0, f64::max);
        let across = match has_bars {
            true => -0.5..self.groups.len() as f64 - 0.5,
            false => 0.0..f64::from(largest) * 1.02,
        };
        let named = |place: &f64| match has_bars {
            true => self.group_at(*place).to_owned(),
            false => format!("{place:.0}"),
        };
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .caption(&self.title, ("sans-serif", 18))
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(across, 0.0..highest * 1.08)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .x_labels(if has_bars { 2 * self.groups.len() + 1 } else { X_LABELS })
            .x_label_formatter(&named)
            .y_label_formatter(&|peak| format!("{peak:.0}"))
            .draw()?;
        for (place, curve) in self.curves.iter().enumerate() {
            let color = Palette99::pick(place).to_rgba();
            if has_bars {
                let width = GROUP_WIDTH / self.curves.len() as f64;
                let left = place as f64 * width - GROUP_WIDTH / 2.0;
                let bar = |(group, height): &(u16, f64)| {
                    let left = f64::from(*group) + left;
                    Rectangle::new([(left, 0.0), (left + width * BAR_PART, *height)], color.filled())
                };
                chart
                    .draw_series(curve.points.iter().map(bar))?
                    .label(&curve.label)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 18, y + 4)], color.filled()));
                continue;
            }
            let points = || curve.points.iter().map(|(size, peak)| (f64::from(*size), *peak));
            chart
                .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
                .label(&curve.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::papers;
    use crate::quantity::tests::{of, results};

    #[test]
    fn a_figure_has_the_curves_that_something_is_known_of() {
        let (first, second, alone) = (of("eager", 1), of("eager", 8), of("conflict_aware", 8));
        let results = results(&[(&first, &[10.0, 12.0]), (&second, &[20.0, 22.0]), (&alone, &[70.0, 70.0])]);
        let effort = Effort { seeds: 2, ..Effort::quick() };
        let figures = figures_of(&papers()[0], &[], &effort, &results);
        let [figure] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!(figure.name, "cas-figure-12");
        assert_eq!(figure.curves, [Curve { label: "eager".to_owned(), points: vec![(1, 11.0), (8, 21.0)] }]);
        let svg = figure.svg().expect("it is drawn");
        assert!(svg.contains("CAS figure 12: tpcw shopping") && svg.contains("eager"), "{svg}");
    }
}
