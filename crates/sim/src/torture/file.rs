//! A case as a text that people can read and change, in TOML.

use std::collections::BTreeSet;
use std::fmt;

use onecopy_core::ReplicaId;
use serde::{Deserialize, Serialize};

use super::Case;
use crate::planted::Planting;
use crate::scenario::HERE;
use crate::{Breakage, Mix, Moment, Scenario};

/// A text that is not one of a case, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// What stands in the file, in its order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    plant: Option<String>,
    replicas: usize,
    clients: usize,
    transactions_per_client: u32,
    /// Transactions that are left out, by the order in which clients begin them.
    #[serde(default)]
    left_out: BTreeSet<u64>,
    keys: u64,
    think_max_ns: u64,
    lost_commits_max: u64,
    #[serde(default = "one")]
    apply_slowness: u64,
    captured_per_mille: u64,
    apply_batch_max: u64,
    declared: bool,
    mix: Mix,
    #[serde(default, rename = "fault", skip_serializing_if = "Vec::is_empty")]
    faults: Vec<WrittenFault>,
}

fn one() -> u64 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFault {
    /// A moment: what is done for the n-th time.
    at: String,
    /// What breaks then.
    what: String,
}

impl Case {
    /// The text of a file from which [`Case::read`] makes the same case.
    ///
    /// # Panics
    /// Never: all of it can be written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let of = &self.scenario;
        let written = Written {
            seed: of.seed,
            plant: self.plant.map(|bug| bug.name.to_owned()),
            replicas: of.replicas,
            clients: of.clients,
            transactions_per_client: of.transactions_per_client,
            left_out: of.left_out.clone(),
            keys: of.keys,
            think_max_ns: of.think_max_ns,
            lost_commits_max: of.lost_commits_max,
            apply_slowness: of.apply_slowness,
            captured_per_mille: of.captured_per_mille,
            apply_batch_max: of.apply_batch_max,
            declared: of.declared,
            mix: of.mix.clone(),
            faults: of.breakages.iter().map(|fault| WrittenFault::of(*fault)).collect(),
        };
        toml::to_string(&written).expect("numbers, texts and lists of them")
    }

    /// The case that a text describes.
    ///
    /// # Errors
    /// When it is not the text of a case, or of one that has no replica, client or key.
    pub fn read(text: &str) -> Result<Case, Unreadable> {
        let written: Written = toml::from_str(text).map_err(|error| Unreadable(error.to_string()))?;
        let plant = written.plant.map(|name| {
            Planting::named(&name).ok_or_else(|| Unreadable(format!("there is no bug `{name}` to plant")))
        });
        let faults = written.faults.iter().map(|fault| {
            let WrittenFault { at, what } = fault;
            fault.read().ok_or_else(|| Unreadable(format!("`{what}` at `{at}` is no fault and its moment")))
        });
        let positive =
            [written.replicas as u64, written.clients as u64, written.keys, written.apply_slowness];
        if positive.contains(&0) || written.apply_batch_max == 0 {
            let what = "replicas, clients, keys, apply_slowness and apply_batch_max must not be 0";
            return Err(Unreadable(what.to_owned()));
        }
        let scenario = Scenario {
            replicas: written.replicas,
            clients: written.clients,
            transactions_per_client: written.transactions_per_client,
            keys: written.keys,
            mix: written.mix,
            think_max_ns: written.think_max_ns,
            breakages: faults.collect::<Result<_, _>>()?,
            lost_commits_max: written.lost_commits_max,
            apply_slowness: written.apply_slowness,
            captured_per_mille: written.captured_per_mille,
            apply_batch_max: written.apply_batch_max,
            declared: written.declared,
            left_out: written.left_out,
            ..Scenario::calm(written.seed)
        };
        Ok(Case { scenario, plant: plant.transpose()? })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, nth) = self.parts();
        write!(f, "{name} {nth}")
    }
}

impl Moment {
    fn parts(self) -> (&'static str, u64) {
        match self {
            Moment::Step(nth) => ("step", nth),
            Moment::Append(nth) => ("append", nth),
            Moment::CommitAt(nth) => ("commit-at", nth),
            Moment::Apply(nth) => ("apply", nth),
            Moment::Revalidate(nth) => ("revalidate", nth),
            Moment::Move(nth) => ("move", nth),
            Moment::FirstWrite(nth) => ("first-write", nth),
            Moment::Durable(nth) => ("durable", nth),
            Moment::Commit(nth) => ("commit", nth),
            Moment::Lost(nth) => ("lost", nth),
            Moment::Back(nth) => ("back", nth),
            Moment::Copy(nth) => ("copy", nth),
            Moment::Leave(nth) => ("leave", nth),
            Moment::Behind(nth) => ("behind", nth),
            Moment::Shown(nth) => ("shown", nth),
        }
    }

    /// One of each kind.
    const KINDS: [fn(u64) -> Moment; 15] = [
        Moment::Step,
        Moment::Append,
        Moment::CommitAt,
        Moment::Apply,
        Moment::Revalidate,
        Moment::Move,
        Moment::FirstWrite,
        Moment::Durable,
        Moment::Commit,
        Moment::Lost,
        Moment::Back,
        Moment::Copy,
        Moment::Leave,
        Moment::Behind,
        Moment::Shown,
    ];
}

impl fmt::Display for Breakage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replica() {
            Some(HERE) => write!(f, "{} here", self.name()),
            Some(replica) => write!(f, "{} {}", self.name(), replica.0),
            None => f.write_str(self.name()),
        }
    }
}

impl Breakage {
    fn name(self) -> &'static str {
        match self {
            Breakage::Connections(_) => "connections",
            Breakage::Server(_) => "server",
            Breakage::Lane(_) => "lane",
            Breakage::Node => "node",
            Breakage::Join => "join",
            Breakage::Depart { at_once: false, .. } => "depart",
            Breakage::Depart { at_once: true, .. } => "depart-at-once",
            Breakage::Pause(_) => "pause",
            Breakage::PauseNode => "pause-node",
            Breakage::SlowDisk => "slow-disk",
            Breakage::Clock => "clock",
            Breakage::Diverge(_) => "diverge",
            Breakage::GiveUp => "give-up",
        }
    }

    /// Every kind, of one replica.
    fn kinds(replica: ReplicaId) -> [Breakage; 13] {
        [
            Breakage::Connections(replica),
            Breakage::Server(replica),
            Breakage::Lane(replica),
            Breakage::Node,
            Breakage::Join,
            Breakage::Depart { replica, at_once: false },
            Breakage::Depart { replica, at_once: true },
            Breakage::Pause(replica),
            Breakage::PauseNode,
            Breakage::SlowDisk,
            Breakage::Clock,
            Breakage::Diverge(replica),
            Breakage::GiveUp,
        ]
    }
}

impl WrittenFault {
    fn of((moment, breakage): (Moment, Breakage)) -> WrittenFault {
        WrittenFault { at: moment.to_string(), what: breakage.to_string() }
    }

    fn read(&self) -> Option<(Moment, Breakage)> {
        let (name, nth) = self.at.split_once(' ')?;
        let nth = nth.parse().ok()?;
        let moment = Moment::KINDS.iter().map(|kind| kind(nth)).find(|moment| moment.parts().0 == name)?;
        let mut words = self.what.split(' ');
        let (name, replica) = (words.next()?, words.next());
        let read = |id: &str| if id == "here" { Ok(HERE) } else { id.parse().map(ReplicaId) };
        let replica = replica.map(read).transpose().ok()?;
        let kinds = Breakage::kinds(replica.unwrap_or_default());
        let breakage = kinds.into_iter().find(|kind| kind.name() == name)?;
        let is_whole = breakage.replica().is_some() == replica.is_some() && words.next().is_none();
        is_whole.then_some((moment, breakage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_the_same_once_written_and_read() {
        for seed in 0..200 {
            let case = Case::of_seed(seed, Planting::named("leave-lost"));
            let left_out = BTreeSet::from([seed, seed + 7]);
            let case = Case { scenario: Scenario { left_out, ..case.scenario }, ..case };
            let read = Case::read(&case.to_text()).expect("it was written by us");
            assert_eq!((read.scenario, read.plant.map(|bug| bug.name)), (case.scenario, Some("leave-lost")));
        }
    }

    #[test]
    fn what_is_no_case_is_refused_with_the_reason() {
        let text = Case::of_seed(1, None).to_text();
        let refused = |from: &str, to: &str| {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from} is not there");
            Case::read(&changed).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(refused("clients", "klients").contains("klients"));
        assert!(refused("seed = 1", "seed = 1\nplant = \"x\"").contains("no bug `x`"));
        let fault = "[[fault]]\nat = \"step 1\"\nwhat = \"server\"\n\n[[fault]]";
        assert!(refused("[[fault]]", fault).contains("`server` at `step 1` is no fault"));
        assert!(refused("\nclients = ", "\nclients = 0 # ").contains("must not be 0"));
    }
}
