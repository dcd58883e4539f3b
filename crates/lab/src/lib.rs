//! The laboratory: what published papers claim, rerun in virtual time and set beside what they say.
//!
//! The files stand in the order in which a claim passes them: `claims` is what the papers say, as data; `questions` makes
//! of each claim what must be true of measured quantities, with `scheduler_cost`, what was measured of a scheduler's CPU time;
//! `experiment` is what has to be run for that, `variation` in what else it can be asked, `asking` of users who ask otherwise, `effort`
//! how thoroughly; `runner` runs it on all cores; `results` and `kept` keep what came out; `quantity`, `statistics` and `verdict` judge; `figures` and `report` show.
//! docs/laboratory.md is the design, and says when a claim holds.

pub mod claims;

mod questions;
mod scheduler_cost;

mod asking;
mod effort;
mod experiment;
mod variation;
pub mod whole;
pub mod wide;

mod kept;
mod results;
mod runner;

mod quantity;
mod statistics;
mod verdict;

mod figures;
mod report;

pub use effort::Effort;
pub use experiment::{Durability, Experiment, Figures, Metric, Mix, UnknownSystem};
pub use quantity::{Missing, Needed, Quantity};
pub use questions::{Part, Question, question};
pub use report::{Report, ReportError, Tally, asked_elsewhere, write_report};
pub use results::{Results, ResultsError, SOURCES};
pub use runner::{LabError, Progress, missing, run_all};
pub use scheduler_cost::SchedulerCost;
pub use statistics::Estimate;
pub use variation::Variation;
pub use verdict::{Outcome, Test, Verdict, judge};
