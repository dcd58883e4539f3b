//! Decided commits that no replica can apply: they never happen (docs/protocols/onecopy.md, *Commits that never happen*).
//!
//! Whatever can fail at a transaction's home fails before its decision. Should one be refused all the same, by its home and by
//! every other replica, then nobody has seen any of it and nobody was told of it, and all replicas would wait for ever for what
//! none of them can do.

use std::collections::BTreeMap;
use std::sync::Arc;

use onecopy_core::{Csn, ReplicaId};
use onecopy_wire::sqlstate::SqlState;
use parking_lot::Mutex;

use crate::errors::Failure;

/// What is known of a replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Word {
    /// It may contain any commit, or be about to apply it.
    #[default]
    None,
    /// Fenced and out of service, it contains everything before this commit and has refused it.
    Refuses(Csn),
    /// It is to be copied anew from another one before it serves, whatever it contains.
    Apart,
}

#[derive(Clone, Debug)]
struct Annulment {
    /// What the transaction's client is told, if it still waits.
    failure: Arc<Failure>,
    /// It is durable: from now on replicas pass over the commit.
    is_durable: bool,
}

struct State {
    words: Vec<Word>,
    names: Vec<String>,
    annulled: BTreeMap<Csn, Annulment>,
}

/// What becomes of a commit that a replica has refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All have refused it. Whoever hears this makes that durable.
    Annul,
    /// The replicas of these names have not.
    Await(Vec<String>),
    /// Some replica has contained it since onecopy was started.
    Keep,
}

/// How a replica applies a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// By its record.
    Valid,
    /// Not yet: it is being annulled.
    InDoubt,
    /// As if it were empty.
    Annulled,
}

/// The words of all replicas, and what followed from them.
///
/// Invariant: while a commit is not annulled, no replica that has refused it tries it again without taking its word back.
pub struct Annulments(Mutex<State>);

impl Annulments {
    /// Of the replicas of these names; `annulled` are the commits that the log says are.
    pub fn new(names: Vec<String>, annulled: impl IntoIterator<Item = Csn>) -> Annulments {
        let failure = Failure::new(SqlState::SERIALIZATION_FAILURE, "no replica could apply the commit");
        let annulment = Annulment { failure: Arc::new(failure), is_durable: true };
        let annulled = annulled.into_iter().map(|csn| (csn, annulment.clone())).collect();
        Annulments(Mutex::new(State { words: vec![Word::None; names.len()], names, annulled }))
    }

    /// The replica is about to apply commits.
    pub fn take_back(&self, replica: ReplicaId) {
        self.set(replica, Word::None);
    }

    /// The replica must be copied anew, and then contains what another one does.
    pub fn stand_apart(&self, replica: ReplicaId) {
        self.set(replica, Word::Apart);
    }

    fn set(&self, replica: ReplicaId, word: Word) {
        if let Some(known) = self.0.lock().words.get_mut(usize::from(replica.0)) {
            *known = word;
        }
    }

    /// A replica that is fenced and out of service has refused a commit. `contained` is the last one that any replica has
    /// contained since onecopy was started.
    pub fn refuse(&self, replica: ReplicaId, csn: Csn, failure: Failure, contained: Csn) -> Verdict {
        let mut state = self.0.lock();
        if let Some(known) = state.words.get_mut(usize::from(replica.0)) {
            *known = Word::Refuses(csn);
        }
        if contained >= csn {
            return Verdict::Keep;
        }
        let others = state.names.iter().zip(&state.words);
        let others = others.filter(|(_, word)| !matches!(word, Word::Apart) && **word != Word::Refuses(csn));
        let others: Vec<String> = others.map(|(name, _)| name.clone()).collect();
        if !others.is_empty() {
            return Verdict::Await(others);
        }
        state.annulled.insert(csn, Annulment { failure: Arc::new(failure), is_durable: false });
        Verdict::Annul
    }

    /// The log says that the commit is annulled. `tell` gets what its client is to hear, before any replica passes over it.
    pub fn confirm(&self, csn: Csn, tell: impl FnOnce(Arc<Failure>)) {
        if let Some(annulment) = self.0.lock().annulled.get_mut(&csn) {
            tell(annulment.failure.clone());
            annulment.is_durable = true;
        }
    }

    /// How a commit is to be applied.
    pub fn standing(&self, csn: Csn) -> Standing {
        match self.0.lock().annulled.get(&csn) {
            None => Standing::Valid,
            Some(Annulment { is_durable: false, .. }) => Standing::InDoubt,
            Some(Annulment { is_durable: true, .. }) => Standing::Annulled,
        }
    }
}

/// Whether an error says something about what a replica contains, and so would come again: not that it lacks memory or disk,
/// is shutting down, or has lost a connection.
pub fn is_lasting(code: SqlState) -> bool {
    !["08", "40", "53", "57", "58", "F0", "XX"].contains(&code.class())
        && code != SqlState::LOCK_NOT_AVAILABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    fn annulments(replicas: usize) -> Annulments {
        Annulments::new((0..replicas).map(|replica| format!("r{replica}")).collect(), [])
    }

    fn refuse(annulments: &Annulments, replica: ReplicaId, csn: u64) -> Verdict {
        annulments.refuse(replica, Csn(csn), Failure::new(SqlState::RAISE_EXCEPTION, "no"), Csn(4))
    }

    #[test]
    fn commit_is_annulled_when_every_replica_has_refused_it_and_passed_over_once_that_is_durable() {
        let annulments = annulments(3);
        assert_eq!(refuse(&annulments, R0, 5), Verdict::Await(vec!["r1".to_owned(), "r2".to_owned()]));
        assert_eq!(refuse(&annulments, R2, 5), Verdict::Await(vec!["r1".to_owned()]));
        assert_eq!(annulments.standing(Csn(5)), Standing::Valid);
        assert_eq!(refuse(&annulments, R1, 5), Verdict::Annul);
        assert_eq!(annulments.standing(Csn(5)), Standing::InDoubt);
        let mut told = String::new();
        annulments.confirm(Csn(5), |failure| told.clone_from(&failure.message));
        assert_eq!(told, "no");
        assert_eq!(annulments.standing(Csn(5)), Standing::Annulled);
        assert_eq!(annulments.standing(Csn(6)), Standing::Valid);
    }

    #[test]
    fn replica_that_tries_again_or_refuses_another_commit_does_not_count() {
        let annulments = annulments(3);
        refuse(&annulments, R0, 5);
        refuse(&annulments, R1, 6);
        annulments.take_back(R0);
        assert_eq!(refuse(&annulments, R2, 5), Verdict::Await(vec!["r0".to_owned(), "r1".to_owned()]));
    }

    #[test]
    fn replica_that_must_be_copied_anew_is_not_waited_for() {
        let annulments = annulments(2);
        annulments.stand_apart(R1);
        assert_eq!(refuse(&annulments, R0, 5), Verdict::Annul);
    }

    #[test]
    fn commit_that_some_replica_has_contained_is_kept() {
        let annulments = annulments(1);
        assert_eq!(refuse(&annulments, R0, 4), Verdict::Keep);
        assert_eq!(annulments.standing(Csn(4)), Standing::Valid);
    }

    #[test]
    fn what_the_log_says_holds_from_the_start() {
        let annulments = Annulments::new(vec!["r0".to_owned()], [Csn(3)]);
        assert_eq!(annulments.standing(Csn(3)), Standing::Annulled);
    }

    #[test]
    fn errors_that_may_pass_annul_nothing() {
        for code in ["23505", "23503", "42704", "P0001", "22003", "55000", "54000"] {
            assert!(is_lasting(SqlState::parse(code.as_bytes()).unwrap()), "{code}");
        }
        for code in ["53100", "53200", "57014", "57P01", "58030", "40001", "40P01", "08006", "55P03", "XX000"]
        {
            assert!(!is_lasting(SqlState::parse(code.as_bytes()).unwrap()), "{code}");
        }
    }
}
