//! Loads a web site, lets emulated users visit it, and checks its rules afterwards.

mod check;
mod crowd;
mod load;
mod report;
mod texts;

pub use check::{CheckReport, Checked, check};
pub(crate) use crowd::Crowd;
pub use crowd::run;
pub(crate) use load::now;
pub use load::{LoadReport, load};
pub(crate) use report::Collected;
pub use report::{Counted, Latency, PageReport, Report, Sample, Second};
pub(crate) use texts::Texts;
