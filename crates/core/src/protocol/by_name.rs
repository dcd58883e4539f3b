//! The protocols that may be chosen by name.

use crate::ids::Csn;
use crate::peers::granules::Granules;
use crate::peers::parts::Divisions;

use super::onecopy::Onecopy;
use super::{
    InProcess, Protocol, centralised_writes, chains, chains_redundant, chains_serializable, conflict_aware,
    eager, fixed_conflict, fixed_load, invalidation, level0, level1, level2, lock_central, lock_distributed,
    partitioned, round_robin, special, tashkent_plus, variable_load, versioning, versioning_late_acquire,
    versioning_no_early_release, weak,
};

/// The names of those that are complete, the default first.
pub const SELECTABLE: [&str; 16] = [
    "onecopy",
    "conflict_aware",
    "eager",
    "fixed_load",
    "fixed_conflict",
    "variable_load",
    "versioning",
    "versioning_no_early_release",
    "versioning_late_acquire",
    "level0",
    "level1",
    "level2",
    "special",
    "chains",
    "chains_serializable",
    "centralised_writes",
];

/// The names of those that run whole transactions as one statement each, in the simulator.
pub const WHOLE: [&str; 5] =
    ["chains", "chains_redundant", "centralised_writes", "round_robin", "tashkent_plus"];

/// One of [`WHOLE`] with its places apart, for so many workers, whose log ends at `decided`.
///
/// # Errors
/// If none of them has this name.
pub fn whole_by_name(name: &str, workers: usize, decided: Csn) -> Result<Box<dyn Protocol>, UnknownProtocol> {
    match name {
        "chains" => Ok(Box::new(chains::new(workers, decided))),
        "chains_redundant" => Ok(Box::new(chains_redundant::new(workers, decided))),
        "centralised_writes" => Ok(Box::new(centralised_writes::new(workers, decided))),
        "round_robin" => Ok(Box::new(round_robin::new(workers, decided))),
        "tashkent_plus" => Ok(Box::new(tashkent_plus::new(workers, decided))),
        _ => Err(unknown(name, &WHOLE)),
    }
}

/// The names of those in which each replica has a peer with clients of its own, in the simulator.
pub const PEERS: [&str; 5] = ["invalidation", "weak", "partitioned", "lock_distributed", "lock_central"];

/// One of [`PEERS`], for so many nodes; of the `divided` tables each has rows of its own, where the protocol is `partitioned`, and others may be cut into
/// `granules`, which makes no difference for `weak`.
///
/// # Errors
/// If none of them has this name.
pub fn peers_by_name(
    name: &str,
    nodes: u16,
    divided: &Divisions,
    granules: &Granules,
) -> Result<Box<dyn Protocol>, UnknownProtocol> {
    match name {
        "invalidation" => Ok(Box::new(invalidation::new(nodes).cut(granules))),
        "weak" => Ok(Box::new(weak::new(nodes))),
        "partitioned" => Ok(Box::new(partitioned::new(nodes, divided).cut(granules))),
        "lock_distributed" => Ok(Box::new(lock_distributed::new(nodes).cut(granules))),
        "lock_central" => Ok(Box::new(lock_central::new(nodes).cut(granules))),
        _ => Err(unknown(name, &PEERS)),
    }
}

/// The configuration names a protocol that does not exist, or that is not complete.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown protocol `{name}`: choose one of {}{}", .choices.join(", "), hint(*.nearest))]
pub struct UnknownProtocol {
    /// What was asked for.
    pub name: String,
    /// Those that there are.
    pub choices: &'static [&'static str],
    /// The known name that looks most like it, if any does.
    pub nearest: Option<&'static str>,
}

/// A protocol with all its places in one process, for `replicas` servers, all down, whose log ends at `decided`.
///
/// # Errors
/// If no selectable protocol has this name.
pub fn by_name(name: &str, replicas: usize, decided: Csn) -> Result<Box<dyn Protocol>, UnknownProtocol> {
    let protocol = apart_by_name(name, replicas, decided)?;
    // The default has one place, and its messages need no delivery.
    Ok(if name == SELECTABLE[0] { protocol } else { Box::new(InProcess::new(protocol)) })
}

/// The same with its places apart: messages between them are effects, for a driver that carries them.
///
/// # Errors
/// If no selectable protocol has this name.
pub fn apart_by_name(
    name: &str,
    replicas: usize,
    decided: Csn,
) -> Result<Box<dyn Protocol>, UnknownProtocol> {
    match name {
        "onecopy" => Ok(Box::new(Onecopy::new(replicas, decided))),
        "conflict_aware" => Ok(Box::new(conflict_aware::new(replicas, decided))),
        "eager" => Ok(Box::new(eager::new(replicas, decided))),
        "fixed_load" => Ok(Box::new(fixed_load::new(replicas, decided))),
        "fixed_conflict" => Ok(Box::new(fixed_conflict::new(replicas, decided))),
        "variable_load" => Ok(Box::new(variable_load::new(replicas, decided))),
        "versioning" => Ok(Box::new(versioning::new(replicas, decided))),
        "versioning_no_early_release" => Ok(Box::new(versioning_no_early_release::new(replicas, decided))),
        "versioning_late_acquire" => Ok(Box::new(versioning_late_acquire::new(replicas, decided))),
        "level0" => Ok(Box::new(level0::new(replicas, decided))),
        "level1" => Ok(Box::new(level1::new(replicas, decided))),
        "level2" => Ok(Box::new(level2::new(replicas, decided))),
        "special" => Ok(Box::new(special::new(replicas, decided))),
        "chains" => Ok(Box::new(chains::in_order(replicas, decided))),
        "chains_serializable" => Ok(Box::new(chains_serializable::in_order(replicas, decided))),
        "centralised_writes" => Ok(Box::new(centralised_writes::in_order(replicas, decided))),
        _ => Err(unknown(name, &SELECTABLE)),
    }
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn unknown(name: &str, choices: &'static [&'static str]) -> UnknownProtocol {
    UnknownProtocol { name: name.to_owned(), choices, nearest: nearest(name, choices) }
}

/// The known name that fewest changes lead to, unless it would be another word altogether.
fn nearest(name: &str, choices: &[&'static str]) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let distance = |known: &&str| strsim::damerau_levenshtein(&name, known);
    let nearest = choices.iter().copied().min_by_key(distance)?;
    (distance(&nearest) * 2 < nearest.len()).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selectable_name_gives_the_protocol_of_that_name() {
        for name in SELECTABLE {
            let protocol = by_name(name, 3, Csn(0)).expect("it is selectable");
            assert_eq!(protocol.name(), name);
            assert_eq!(protocol.status().replicas.len(), 3);
            assert_eq!(apart_by_name(name, 3, Csn(0)).expect("it is selectable").name(), name);
        }
    }

    #[test]
    fn every_name_for_whole_transactions_gives_the_protocol_of_that_name() {
        for name in WHOLE {
            let protocol = whole_by_name(name, 3, Csn(0)).expect("it is there");
            assert_eq!((protocol.name(), protocol.status().replicas.len()), (name, 3));
        }
        let error = whole_by_name("chain", 3, Csn(0)).err().expect("it is unknown").to_string();
        assert!(error.ends_with("tashkent_plus; did you mean `chains`?"), "{error}");
    }

    #[test]
    fn every_name_for_peers_gives_the_protocol_of_that_name() {
        for name in PEERS {
            let protocol =
                peers_by_name(name, 3, &Divisions::default(), &Granules::default()).expect("it is there");
            assert_eq!((protocol.name(), protocol.status().replicas.len()), (name, 3));
        }
        let error = peers_by_name("weka", 3, &Divisions::default(), &Granules::default());
        let error = error.err().expect("it is unknown").to_string();
        assert!(error.ends_with("lock_central; did you mean `weak`?"), "{error}");
    }

    #[test]
    fn a_name_that_is_nearly_right_gets_a_suggestion() {
        let unknown = |name| by_name(name, 1, Csn(0)).err().expect("it is unknown").to_string();
        let names = SELECTABLE.join(", ");
        assert_eq!(
            unknown("conflict-awar"),
            format!(
                "unknown protocol `conflict-awar`: choose one of {names}; did you mean `conflict_aware`?"
            )
        );
        assert_eq!(unknown("paxos"), format!("unknown protocol `paxos`: choose one of {names}"));
    }

    #[test]
    fn what_needs_clients_at_peers_or_whole_transactions_cannot_be_selected() {
        assert!(by_name("invalidation", 1, Csn(0)).is_err());
        assert!(by_name("round_robin", 1, Csn(0)).is_err());
    }
}
