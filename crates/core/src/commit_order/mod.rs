//! Replicas that commit in one order: where each stands in it and what it does next, which decisions there are, and where
//! statements run. For protocols whose replicas contain prefixes of the order.

mod limits;
mod replicas;
mod turns;
mod values;

pub use limits::Limits;
pub use replicas::Tuning;
pub(crate) use replicas::{Decisions, Replicas};
pub(crate) use values::{on_next_values, on_reserved};
