//! What should be so in the end of a run, and whether it is.

use super::{Serving, UpgradeReport};
use crate::failures::report::list;
use crate::table::thousands;

/// Something that should be so in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// What.
    pub what: String,
    /// Why it is not; empty if it is.
    pub missed: Vec<String>,
}

impl UpgradeReport {
    /// What should be so in the end.
    #[must_use]
    pub fn goals(&self) -> Vec<Goal> {
        let goal = |what: String, missed: Vec<String>| Goal { what, missed };
        let bound = self.rates.map_or(0, |rates| rates.backlog_max);
        vec![
            goal("no customer met an error".to_owned(), self.met()),
            goal(
                format!(
                    "all that was due was carried, with at most {} pages behind",
                    thousands(f64::from(bound))
                ),
                self.not_carried(),
            ),
            goal(self.change(), self.not_changed()),
            goal("nothing lost, nothing differs".to_owned(), self.aftermath.wrong(self.serving.len())),
        ]
    }

    /// Why any of that is not so; empty if all is.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        self.goals().into_iter().flat_map(|goal| goal.missed).collect()
    }

    fn met(&self) -> Vec<String> {
        let mut met = Vec::new();
        if !self.errors.is_empty() {
            met.push(format!("pages failed: {}", list(&self.errors)));
        }
        if self.connections_lost > 0 {
            met.push(format!("{} connections were lost", self.connections_lost));
        }
        if self.cut_off > 0 {
            met.push(format!("{} pages were never shown", self.cut_off));
        }
        met
    }

    fn not_carried(&self) -> Vec<String> {
        let due = thousands(self.arrivals.len() as f64);
        match self.turned_away {
            _ if self.arrivals.is_empty() => vec!["nothing was due".to_owned()],
            0 => Vec::new(),
            away => vec![format!("{} of {due} pages that were due were turned away", thousands(away as f64))],
        }
    }

    /// What the changes were.
    fn change(&self) -> String {
        let [from, to] = &self.versions;
        let of = match major(from) == major(to) {
            true => format!("servers of the same major version ({from}, {to}): no upgrade"),
            false => format!("servers of another major version: upgraded from {from} to {to}"),
        };
        format!("one more replica joined, and all {} were replaced by {of}", self.new.len())
    }

    fn not_changed(&self) -> Vec<String> {
        let mut wrong = self.failures.clone();
        let is_new = |one: &&Serving| self.new.contains(&one.replica) && one.version == self.versions[1];
        let new = self.serving.iter().filter(is_new).count();
        if new < self.new.len() || new < self.serving.len() {
            let serving: Vec<String> = self.serving.iter().map(Serving::to_string).collect();
            wrong.push(format!("in the end these served: {}", serving.join(", ")));
        }
        wrong
    }
}

/// What stands before the first dot.
fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::report::tests::report;
    use super::*;
    use crate::observe::commits::Commits;
    use crate::site::{CheckReport, Checked};

    #[test]
    fn all_goals_are_met_where_nothing_went_wrong() {
        let report = report();
        assert_eq!(report.wrong(), [""; 0]);
        assert_eq!(report.to_string().matches("\nmet: ").count(), 4, "{report}");
        assert!(report.goals()[2].what.ends_with("upgraded from 16.9 to 18.1"), "{report}");
    }

    #[test]
    fn same_version_is_said_to_be_no_upgrade() {
        let mut report = report();
        report.versions = ["18.1".to_owned(), "18.1".to_owned()];
        assert!(report.goals()[2].what.ends_with("no upgrade") && report.wrong().is_empty());
    }

    #[test]
    fn each_goal_is_missed_by_what_belongs_to_it() {
        let missed = |change: fn(&mut UpgradeReport)| {
            let mut report = report();
            change(&mut report);
            let missed = report.goals().iter().map(|goal| goal.missed.len()).collect::<Vec<_>>();
            assert_eq!(report.to_string().contains("MISSED"), missed.iter().any(|missed| *missed > 0));
            missed
        };
        assert_eq!(missed(|report| report.errors = BTreeMap::from([("57P01".to_owned(), 1)])), [1, 0, 0, 0]);
        assert_eq!(missed(|report| (report.connections_lost, report.cut_off) = (1, 1)), [2, 0, 0, 0]);
        // What ran again came to a good end.
        assert_eq!(missed(|report| report.retries = BTreeMap::from([("40001".to_owned(), 1)])), [0; 4]);
        assert_eq!(missed(|report| report.turned_away = 1), [0, 1, 0, 0]);
        assert_eq!(missed(|report| report.serving[0].replica = "r1".to_owned()), [0, 0, 1, 0]);
        assert_eq!(missed(|report| report.serving[0].version = "16.9".to_owned()), [0, 0, 1, 0]);
        assert_eq!(missed(|report| report.failures.push("r3 joins: refused".to_owned())), [0, 0, 1, 0]);
        let left = |report: &mut UpgradeReport| drop(report.serving.pop());
        assert_eq!(missed(left), [0, 0, 1, 0]);
        assert_eq!(missed(|report| drop(report.aftermath.verified.pop())), [0, 0, 0, 1]);
        assert_eq!(
            missed(|report| report.aftermath.commits = Some(Commits { lost: 1, ..Commits::default() })),
            [0, 0, 0, 1]
        );
        let broken = |report: &mut UpgradeReport| {
            let broken = Checked { rule: "money stays".to_owned(), violations: 1 };
            report.aftermath.checked = Some(CheckReport { checked: vec![broken] });
        };
        assert_eq!(missed(broken), [0, 0, 0, 1]);
    }
}
