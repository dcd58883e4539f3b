//! What published papers claim, as data: `data/claims/`, written down before anything was compared with it.
//!
//! docs/laboratory.md says when a claim of each kind holds.

use std::sync::LazyLock;

use serde::Deserialize;

/// A paper's claims.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The version of the file's format; 1.
    pub format: u32,
    /// The short name by which it is cited.
    #[serde(rename = "paper")]
    pub name: String,
    /// Its title.
    pub title: String,
    /// Who wrote it, and where it appeared.
    pub authors: String,
    /// Its claims, in its order.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
}

/// One claim.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The paper and a number: `cas-12`.
    pub id: String,
    /// Where the paper says so.
    pub section: String,
    /// The figure that shows it, if there is one.
    pub figure: Option<String>,
    /// What sort of sentence it is.
    pub kind: Kind,
    /// On which workloads.
    pub workloads: Vec<String>,
    /// What is compared, or measured.
    pub systems: Vec<String>,
    /// What of it.
    pub metric: String,
    /// At how many databases (or workers); empty if that does not matter.
    pub replicas: Vec<u16>,
    /// At how many transactions a second, where transactions arrive at a rate.
    #[serde(default)]
    pub rates: Vec<u32>,
    /// The paper's figures: one, or one for each workload, size or part of the sentence.
    #[serde(default)]
    pub values: Vec<f64>,
    /// The claim in our words.
    pub says: String,
    /// How the paper knows.
    pub evidence: Evidence,
    /// How it can be decided here.
    pub decidable_by: DecidableBy,
}

/// What sort of sentence a claim is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The first system has more than each other one.
    More,
    /// The first system has less than each other one.
    Less,
    /// The first over the second.
    Ratio,
    /// All are about equal.
    Equal,
    /// A figure has a bound.
    AtMost,
    /// A ratio has a lower bound.
    AtLeast,
    /// A figure that is no ratio of systems.
    Level,
    /// Grows up to so many databases.
    Scales,
    /// Grows more slowly.
    Flattens,
    /// Does not grow beyond so many databases.
    Saturates,
    /// Curves are alike.
    Shape,
    /// Why something is as it is.
    Cause,
    /// Something that is computed rather than run.
    Property,
    /// A worked example.
    Example,
    /// Something that is argued, or that nobody can decide elsewhere.
    Argument,
}

/// How a paper knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// On real machines.
    Measured,
    /// In simulation.
    Simulated,
    /// Both.
    Both,
    /// By a worked example.
    Example,
    /// It is a property of the workload.
    Workload,
    /// By argument, or it was shown elsewhere.
    Argued,
    /// It is what somebody wants.
    Goal,
}

/// How a claim can be decided here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidableBy {
    /// In virtual time.
    Simulation,
    /// In virtual time and on real servers.
    Both,
    /// By a computation or a test.
    Check,
    /// By argument only.
    Argument,
    /// Not here.
    None,
}

impl Claim {
    /// Whether a verdict is owed.
    #[must_use]
    pub fn is_decidable(&self) -> bool {
        matches!(self.decidable_by, DecidableBy::Simulation | DecidableBy::Both | DecidableBy::Check)
    }
}

static PAPERS: LazyLock<[Paper; 6]> = LazyLock::new(|| {
    [
        include_str!("../data/claims/cas.toml"),
        include_str!("../data/claims/dv.toml"),
        include_str!("../data/claims/gargamel.toml"),
        include_str!("../data/claims/wan.toml"),
        include_str!("../data/claims/invalidation.toml"),
        include_str!("../data/claims/onecopy.toml"),
    ]
    .map(|text| toml::from_str(text).expect("data/claims is in order"))
});

/// The papers whose claims are known, and last what onecopy is to do.
#[must_use]
pub fn papers() -> &'static [Paper] {
    &*PAPERS
}

impl Paper {
    /// Whether somebody else wrote it.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.name != "onecopy"
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> impl Iterator<Item = &'static Claim> {
        papers().iter().flat_map(|paper| &paper.claims)
    }

    #[test]
    fn every_claim_of_each_paper_is_there_once_and_in_order() {
        for (paper, (name, count)) in papers().iter().zip([
            ("cas", 49),
            ("dv", 30),
            ("gargamel", 26),
            ("wan", 37),
            ("invalidation", 25),
            ("onecopy", 5),
        ]) {
            let ids: Vec<&str> = paper.claims.iter().map(|claim| claim.id.as_str()).collect();
            let expected: Vec<String> = (1..=count).map(|number| format!("{name}-{number:02}")).collect();
            assert_eq!(ids, expected);
            assert_eq!((paper.name.as_str(), paper.format), (name, 1));
        }
    }

    #[test]
    fn each_decidable_claim_is_owed_a_verdict() {
        let published =
            || papers().iter().filter(|paper| paper.is_published()).flat_map(|paper| &paper.claims);
        assert_eq!(published().count(), 167);
        assert_eq!(published().filter(|claim| claim.is_decidable()).count(), 150);
    }

    #[test]
    fn claims_name_what_they_need() {
        for claim in all() {
            let Claim { id, kind, systems, values, replicas, workloads, .. } = claim;
            assert!(!workloads.is_empty() && !systems.is_empty(), "{id}");
            match kind {
                Kind::Ratio => {
                    assert!(systems.len() >= 2 && !values.is_empty(), "{id}");
                }
                Kind::AtMost
                | Kind::AtLeast
                | Kind::Level
                | Kind::Scales
                | Kind::Flattens
                | Kind::Saturates => {
                    assert!(!values.is_empty(), "{id}");
                }
                _ => {}
            }
            assert!(replicas.iter().all(|count| (1..=2_000).contains(count)), "{id}");
            let a_sentence = claim.says.ends_with(['.', ')']);
            assert!(a_sentence, "{id}: {}", claim.says);
        }
    }

    #[test]
    fn names_of_workloads_and_metrics_are_not_spelled_in_two_ways() {
        let workloads: BTreeSet<&str> =
            all().flat_map(|claim| &claim.workloads).map(String::as_str).collect();
        let expected = [
            "auction",
            "bulletin board",
            "one table",
            "ten tables",
            "three tables",
            "tpcc",
            "tpcw browsing",
            "tpcw ordering",
            "tpcw shopping",
        ];
        assert_eq!(workloads.into_iter().collect::<Vec<_>>(), expected);
        let metrics: BTreeSet<&str> = all().map(|claim| claim.metric.as_str()).collect();
        let peaks: Vec<&str> = metrics.into_iter().filter(|metric| metric.contains("peak")).collect();
        let expected = [
            "difference of peaks in percent",
            "largest peak ratio",
            "loss of peak in percent",
            "peak",
            "peak at 1 % of the conflicts",
            "peak over the size before",
            "response time at the peak",
        ];
        assert_eq!(peaks, expected);
    }
}
