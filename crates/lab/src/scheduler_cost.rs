//! What handling a message costs a scheduler in CPU time, as data: `data/scheduler_cost.toml`.
//!
//! Virtual time knows how many messages a scheduler handles and not what they cost it. What it costs was measured once, and is
//! kept beside the claims, so that the same runs give the same verdict on every machine.

use std::sync::LazyLock;

use serde::Deserialize;

/// What a message costs the scheduler of a system.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerCost {
    /// The protocol, as configurations name it.
    pub system: String,
    /// What the core takes to decide, in nanoseconds for each message that the scheduler sends or receives; above 0.
    pub deciding_ns: f64,
    /// What is around it, sessions and network, in nanoseconds for each message; above 0.
    pub transport_ns: f64,
}

impl SchedulerCost {
    /// That of a system; `None` where it was not measured.
    #[must_use]
    pub fn of(system: &str) -> Option<&'static SchedulerCost> {
        COSTS.iter().find(|cost| cost.system == system)
    }

    /// Messages that keep one processor busy for a second.
    #[must_use]
    pub fn messages_per_s(&self) -> f64 {
        1e9 / (self.deciding_ns + self.transport_ns)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cost: Vec<SchedulerCost>,
}

static COSTS: LazyLock<Vec<SchedulerCost>> = LazyLock::new(|| {
    let file: File =
        toml::from_str(include_str!("../data/scheduler_cost.toml")).expect("data/scheduler_cost is in order");
    file.cost
});

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_core::protocol::SELECTABLE;

    #[test]
    fn costs_are_those_of_systems_that_are_there() {
        for cost in COSTS.iter() {
            assert!(SELECTABLE.contains(&cost.system.as_str()), "{cost:?}");
            assert!(cost.deciding_ns > 0.0 && cost.transport_ns > 0.0, "{cost:?}");
        }
    }

    #[test]
    fn a_processor_is_full_when_its_second_is_used_up() {
        let cost = SchedulerCost { system: "eager".to_owned(), deciding_ns: 1_000.0, transport_ns: 3_000.0 };
        assert_eq!(cost.messages_per_s(), 250_000.0);
        assert_eq!(SchedulerCost::of("level0"), None, "nobody measured it");
    }
}
