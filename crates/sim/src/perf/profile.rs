//! What statements cost: a table by name, made from a publication or measured by a calibration.

use std::collections::BTreeMap;

use onecopy_workload::Catalogue;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The costs of a workload's statements on one idle database.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The workload whose statements it knows.
    pub workload: String,
    /// The machine, and where the figures are from.
    pub source: String,
    /// A commit of a transaction that wrote, in milliseconds of CPU time.
    pub commit_ms: f64,
    /// A write of the log to stable storage, in milliseconds.
    pub log_write_ms: f64,
    /// What applying a write costs, as a part of what executing it costs.
    pub apply_factor: f64,
    /// By statement, in milliseconds of CPU time.
    pub statements_ms: BTreeMap<String, f64>,
}

/// Why a profile cannot be used.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// Not TOML, or not of the right shape.
    #[error("read the profile: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// It is for another workload.
    #[error("profile {profile} is for {expected}, not for {actual}; choose one that was made for {actual}")]
    OtherWorkload {
        /// The profile.
        profile: String,
        /// Its workload.
        expected: String,
        /// The workload that is run.
        actual: String,
    },
    /// It has no cost for a statement, or one for something that is none.
    #[error("profile {profile} and the catalogue disagree about {statement}: each must name it exactly once")]
    Statement {
        /// The profile.
        profile: String,
        /// The statement.
        statement: String,
    },
    /// A cost that is none.
    #[error("profile {profile}: {what} is {value}; it must be a number from 0 to {max}")]
    Value {
        /// The profile.
        profile: String,
        /// Which figure.
        what: String,
        /// What it is.
        value: f64,
        /// What it may be.
        max: f64,
    },
}

/// An hour for one statement is a mistake.
const COST_MAX_MS: f64 = 3_600_000.0;

/// The profiles that come with onecopy, by name and workload.
pub const NAMED: [(&str, &str, &str); 4] = [
    ("2003", "tpcw", include_str!("../../data/profiles/2003_tpcw.toml")),
    ("2003", "auction", include_str!("../../data/profiles/2003_auction.toml")),
    ("2003", "bulletin_board", include_str!("../../data/profiles/2003_bulletin_board.toml")),
    ("2026", "tpcw", include_str!("../../data/profiles/2026_tpcw.toml")),
];

impl Profile {
    /// A profile that comes with onecopy; nothing if none has this name for this workload.
    ///
    /// # Panics
    /// If it is not in order, which a test excludes.
    #[must_use]
    pub fn named(name: &str, workload: &str) -> Option<Profile> {
        let (_, _, text) = NAMED.iter().find(|(known, of, _)| (*known, *of) == (name, workload))?;
        Some(Profile::parse(text).unwrap_or_else(|error| panic!("profile {name} of {workload}: {error}")))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// If it is not of the right shape, or a figure is out of range.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text).map_err(Box::new)?;
        let times = [("commit_ms", profile.commit_ms), ("log_write_ms", profile.log_write_ms)];
        let statements = profile.statements_ms.iter().map(|(name, cost)| (name.as_str(), *cost));
        for (what, value) in
            times.into_iter().chain([("apply_factor", profile.apply_factor)]).chain(statements)
        {
            // NaN is in no range.
            if !(0.0..=COST_MAX_MS).contains(&value) {
                let (profile, what) = (profile.name.clone(), what.to_owned());
                return Err(ProfileError::Value { profile, what, value, max: COST_MAX_MS });
            }
        }
        Ok(profile)
    }

    /// The text that [`Profile::parse`] reads, after lines of comment.
    ///
    /// # Panics
    /// Never: every profile can be written.
    #[must_use]
    pub fn to_toml(&self, comment: &str) -> String {
        let comment: String =
            comment.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        let text = toml::to_string(self).expect("texts, numbers and a table of numbers have a form in TOML");
        if comment.is_empty() { text } else { format!("{comment}\n{text}") }
    }

    /// The cost of every statement of a catalogue, in nanoseconds, in its order.
    ///
    /// # Errors
    /// If the profile was made for another one.
    pub fn costs_ns(&self, catalogue: &Catalogue) -> Result<Vec<u64>, ProfileError> {
        let profile = || self.name.clone();
        if self.workload != catalogue.name {
            let (expected, actual) = (self.workload.clone(), catalogue.name.clone());
            return Err(ProfileError::OtherWorkload { profile: profile(), expected, actual });
        }
        let unknown = self.statements_ms.keys().find(|name| catalogue.statement_id(name).is_none());
        if let Some(statement) = unknown {
            return Err(ProfileError::Statement { profile: profile(), statement: statement.clone() });
        }
        let cost_ns = |id: &String| {
            let missing = || ProfileError::Statement { profile: profile(), statement: id.clone() };
            self.statements_ms.get(id).map(|cost| ns(*cost)).ok_or_else(missing)
        };
        catalogue.statements.iter().map(|statement| cost_ns(&statement.id)).collect()
    }

    /// The cost of a commit that wrote, in nanoseconds.
    #[must_use]
    pub fn commit_ns(&self) -> u64 {
        ns(self.commit_ms)
    }

    /// The time of a write of the log, in nanoseconds.
    #[must_use]
    pub fn log_write_ns(&self) -> u64 {
        ns(self.log_write_ms)
    }
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_workload::tpcw::catalogue;

    fn text(workload: &str, cost: &str, also: &str) -> String {
        let statements = catalogue().statements.iter().map(|each| format!("\"{}\" = {cost}\n", each.id));
        format!(
            "name = \"x\"\nworkload = \"{workload}\"\nsource = \"none\"\ncommit_ms = 1\nlog_write_ms = 2.5\n\
             apply_factor = 1\n[statements_ms]\n{}{also}",
            statements.collect::<String>()
        )
    }

    #[test]
    fn costs_stand_in_the_order_of_the_catalogue() {
        let profile = Profile::parse(&text("tpcw", "0.25", "")).unwrap();
        assert_eq!(profile.costs_ns(catalogue()).unwrap(), vec![250_000; 53]);
        assert_eq!((profile.commit_ns(), profile.log_write_ns()), (1_000_000, 2_500_000));
    }

    #[test]
    fn a_profile_that_was_written_is_read_as_it_was() {
        let profile = Profile::parse(&text("tpcw", "0.25", "")).unwrap();
        let written = profile.to_toml("measured\n\nby nobody");
        assert!(written.starts_with("# measured\n#\n# by nobody\n\nname = "), "{written}");
        assert_eq!(Profile::parse(&written).unwrap(), profile);
        assert!(profile.to_toml("").starts_with("name = "));
    }

    #[test]
    fn named_profiles_are_in_order_and_fit_their_workload() {
        let catalogues = [
            catalogue(),
            onecopy_workload::auction::catalogue(),
            onecopy_workload::bulletin_board::catalogue(),
            catalogue(),
        ];
        for ((name, workload, _), catalogue) in NAMED.into_iter().zip(catalogues) {
            let profile = Profile::named(name, workload).unwrap();
            assert_eq!((profile.name.as_str(), profile.workload.as_str()), (name, workload));
            assert!(profile.costs_ns(catalogue).unwrap().iter().all(|cost| *cost > 0));
        }
        assert_eq!((Profile::named("2004", "tpcw"), Profile::named("2003", "tpcc")), (None, None));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_named() {
        let costs = |text: &str| Profile::parse(text).and_then(|profile| profile.costs_ns(catalogue()));
        let said = |text: &str| costs(text).unwrap_err().to_string();
        assert!(said(&text("auction", "1", "")).contains("is for auction, not for tpcw"));
        assert!(said(&text("tpcw", "1", "\"home.extra\" = 1\n")).contains("disagree about home.extra"));
        let missing = text("tpcw", "1", "").replace("\"prod.detail.item\" = 1\n", "");
        assert!(said(&missing).contains("prod.detail.item"));
        for wrong in ["-1", "nan", "1e300"] {
            assert!(said(&text("tpcw", wrong, "")).contains("must be a number from 0"), "{wrong}");
        }
    }
}
