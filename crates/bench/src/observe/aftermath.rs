//! What is found when a load is over.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::commits::{self, Commits};
use super::watch::{self, Verified};
use crate::site::{self, CheckReport, Options, Told, Website, Witness, WitnessKey};

/// Whether the replicas are identical, the site keeps its rules, and each transaction happened as its client was told.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Aftermath {
    /// What VERIFY said of each replica.
    pub verified: Vec<Verified>,
    /// The site's own rules; `None` if they could not be checked.
    pub checked: Option<CheckReport>,
    /// What clients were told beside what the database holds; `None` if that could not be compared.
    pub commits: Option<Commits>,
}

impl Aftermath {
    /// Looks at the site that was visited, whose clients were told this of their transactions; `before` is what its database held at
    /// first. Returns also why something could not be looked at.
    pub(crate) async fn look<S: Website>(
        visits: &Options<S>,
        witness: &Witness,
        before: &HashMap<WitnessKey, u64>,
        told: &HashMap<WitnessKey, Told>,
    ) -> (Aftermath, Vec<String>) {
        let mut failures = Vec::new();
        let mut noted = |error: crate::Error| failures.push(error.to_string());
        let aftermath = Aftermath {
            verified: watch::verify(&visits.target).await.map_err(&mut noted).unwrap_or_default(),
            checked: site::check(visits).await.map_err(&mut noted).ok(),
            commits: commits::rows(&visits.target, witness)
                .await
                .map(|found| Commits::of(told, before, &found))
                .map_err(&mut noted)
                .ok(),
        };
        (aftermath, failures)
    }

    /// What is wrong, in words, or was not looked at, where so many replicas are to be compared.
    pub(crate) fn wrong(&self, replicas: usize) -> Vec<String> {
        let differing = self.verified.iter().filter(|one| !one.is_identical());
        let mut wrong: Vec<String> =
            differing.map(|one| format!("{}: {}", one.replica, one.verdict)).collect();
        let missing = replicas.saturating_sub(self.verified.len());
        if missing > 0 || self.verified.is_empty() {
            wrong.push(format!("{missing} of {replicas} replicas were not compared"));
        }
        match &self.checked {
            Some(checked) if checked.holds() => {}
            Some(_) => wrong.push("the site's rules are broken".to_owned()),
            None => wrong.push("the site's rules were not checked".to_owned()),
        }
        match &self.commits {
            Some(commits) => wrong.extend(commits.wrong()),
            None => wrong.push("transactions were not compared with what their clients were told".to_owned()),
        }
        wrong
    }
}

impl fmt::Display for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Verified { replica, csn, verdict } in &self.verified {
            writeln!(f, "{replica} at commit {csn}: {verdict}")?;
        }
        if let Some(checked) = &self.checked {
            write!(f, "{checked}")?;
        }
        match &self.commits {
            Some(commits) => writeln!(f, "{commits}"),
            None => Ok(()),
        }
    }
}
