//! Decided commits that no replica can apply: they never happen (docs/protocols/onecopy.md, *Commits that never happen*).
//!
//! Whatever can fail at a transaction's home fails before its decision. Should one be refused all the same, by its home and by
//! every other replica, then nobody has seen any of it and nobody was told of it, and all replicas would wait for ever for what
//! none of them can do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onecopy_core::{Csn, ReplicaId};
use onecopy_wire::backend::ErrorFields;
use parking_lot::Mutex;

/// What is known of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Word {
    /// It may be applying any commit.
    #[default]
    None,
    /// Fenced and out of service, it contains everything before this commit and has refused it.
    Refuses(Csn),
    /// It is out of service, and has said nothing. What it contains is looked at before it serves.
    Away,
    /// The same, and it is to be copied anew from another one first.
    Apart,
}

#[derive(Debug)]
struct State {
    words: Vec<Word>,
    names: Vec<String>,
    /// Those of earlier processes that may be annulled: whether somebody was told of one, only an operator can know.
    allowed: BTreeSet<Csn>,
    /// Annulled, but the log may not say so yet.
    deciding: BTreeSet<Csn>,
    annulled: BTreeSet<Csn>,
    /// What to tell the clients of these.
    reasons: BTreeMap<Csn, Arc<ErrorFields>>,
}

/// What becomes of a commit that a replica has refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All have refused it. Whoever hears this makes that durable.
    Annul,
    /// The replicas of these names have not.
    Await(Vec<String>),
    /// An earlier process decided it, and no operator has given leave.
    AwaitOperator,
    /// Some replica has contained it, or it is annulled already.
    Keep,
}

/// How a replica applies a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// By its record.
    Whole,
    /// Not yet: it is being annulled.
    NotYet,
    /// It passes over it.
    Never,
}

/// The words of all replicas, and what followed from them.
///
/// Invariant: while a commit is not annulled, no replica that has refused it tries it again without taking its word back; and
/// none comes into service that has committed what is annulled.
pub struct Annulments(Mutex<State>);

impl Annulments {
    /// Of the replicas of these names; `annulled` are the commits that the log says are, `allowed` those of earlier processes
    /// that may be.
    pub fn new(
        names: Vec<String>,
        annulled: impl IntoIterator<Item = Csn>,
        allowed: impl IntoIterator<Item = Csn>,
    ) -> Annulments {
        Annulments(Mutex::new(State {
            words: vec![Word::Away; names.len()],
            names,
            allowed: allowed.into_iter().collect(),
            deciding: BTreeSet::new(),
            annulled: annulled.into_iter().collect(),
            reasons: BTreeMap::new(),
        }))
    }

    /// The replica is about to look at what it contains, and to apply commits.
    pub fn enter(&self, replica: ReplicaId) {
        self.set(replica, Word::None);
    }

    /// The replica is out of service, and comes back by [`Annulments::enter`] only. What it has said stands until then.
    pub fn leave(&self, replica: ReplicaId) {
        if let Some(word @ Word::None) = self.0.lock().words.get_mut(usize::from(replica.0)) {
            *word = Word::Away;
        }
    }

    /// The same, and it must be copied anew, so that it then contains what another one does.
    pub fn stand_apart(&self, replica: ReplicaId) {
        self.set(replica, Word::Apart);
    }

    /// There is one more replica, of this name. It is to be copied first.
    pub fn add(&self, name: &str) {
        let mut state = self.0.lock();
        state.names.push(name.to_owned());
        state.words.push(Word::Apart);
    }

    fn set(&self, replica: ReplicaId, word: Word) {
        if let Some(known) = self.0.lock().words.get_mut(usize::from(replica.0)) {
            *known = word;
        }
    }

    /// A replica that is fenced and out of service has refused a commit; `is_own` if this process decided it, and `contained` is
    /// the last one that any replica has contained since it was started.
    pub fn refuse(
        &self,
        replica: ReplicaId,
        csn: Csn,
        fields: &ErrorFields,
        is_own: bool,
        contained: Csn,
    ) -> Verdict {
        let mut state = self.0.lock();
        if let Some(known) = state.words.get_mut(usize::from(replica.0)) {
            *known = Word::Refuses(csn);
        }
        if contained >= csn || state.annulled.contains(&csn) || state.deciding.contains(&csn) {
            return Verdict::Keep;
        }
        let silent = state.names.iter().zip(&state.words);
        let silent = silent.filter(|(_, word)| ![Word::Refuses(csn), Word::Apart].contains(word));
        let silent: Vec<String> = silent.map(|(name, _)| name.clone()).collect();
        if !silent.is_empty() {
            return Verdict::Await(silent);
        }
        if !is_own && !state.allowed.contains(&csn) {
            return Verdict::AwaitOperator;
        }
        state.deciding.insert(csn);
        state.reasons.insert(csn, Arc::new(fields.clone()));
        Verdict::Annul
    }

    /// The log says that the commit is annulled. `tell` gets what its client is to hear, before any replica passes over it.
    pub fn confirm(&self, csn: Csn, tell: impl FnOnce(Arc<ErrorFields>)) {
        let mut state = self.0.lock();
        if let Some(reason) = state.reasons.remove(&csn) {
            tell(reason);
        }
        state.deciding.remove(&csn);
        state.annulled.insert(csn);
    }

    /// How a commit is to be applied.
    pub fn how(&self, csn: Csn) -> How {
        let state = self.0.lock();
        if state.annulled.contains(&csn) {
            How::Never
        } else if state.deciding.contains(&csn) {
            How::NotYet
        } else {
            How::Whole
        }
    }

    /// Compares what a replica has passed over with what is annulled, from the first commit on of which it can tell up to its
    /// last one.
    ///
    /// # Errors
    /// A commit that is annulled and that it contains, or the other way round.
    pub fn check(&self, passed_over: &BTreeSet<Csn>, first: Csn, last: Csn) -> Result<(), Mistaken> {
        // Of one that was just copied, nothing.
        if first > last {
            return Ok(());
        }
        let state = self.0.lock();
        let annulled: BTreeSet<Csn> = state.annulled.range(first..=last).copied().collect();
        let told: BTreeSet<Csn> = passed_over.range(first..=last).copied().collect();
        match annulled.symmetric_difference(&told).next() {
            None => Ok(()),
            Some(csn) if annulled.contains(csn) => Err(Mistaken::Contains(*csn)),
            Some(csn) => Err(Mistaken::Lacks(*csn)),
        }
    }
}

/// A replica and the log do not agree on what is annulled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistaken {
    /// It has committed what is annulled.
    #[error(
        "it contains commit {0}, which was annulled while it was away; copy it anew from another replica"
    )]
    Contains(Csn),
    /// It has passed over what the log does not say is annulled.
    #[error(
        "it has passed over commit {0} as annulled, and the commit log has lost that; copy it anew from another replica"
    )]
    Lacks(Csn),
}

/// Whether an error says that a commit's own statements cannot be executed on what the replica contains, and so would come
/// again: not that something is lacking, under way, or wrong with the server.
pub fn is_lasting(fields: &ErrorFields) -> bool {
    const CLASSES: [&str; 9] = ["0A", "21", "22", "23", "2B", "42", "44", "54", "P0"];
    CLASSES.contains(&fields.code.class()) && fields.schema.as_deref() != Some("onecopy")
}

#[cfg(test)]
mod tests {
    use onecopy_wire::sqlstate::SqlState;

    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    /// All of them in service.
    fn annulments(replicas: u16) -> Annulments {
        let annulments =
            Annulments::new((0..replicas).map(|replica| format!("r{replica}")).collect(), [], []);
        (0..replicas).for_each(|replica| annulments.enter(ReplicaId(replica)));
        annulments
    }

    fn error(code: &str) -> ErrorFields {
        ErrorFields { code: SqlState::parse(code.as_bytes()).unwrap(), ..ErrorFields::default() }
    }

    fn refuse(annulments: &Annulments, replica: ReplicaId, csn: u64) -> Verdict {
        annulments.refuse(replica, Csn(csn), &error("23514"), true, Csn(4))
    }

    fn silent(names: &[&str]) -> Verdict {
        Verdict::Await(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn commit_is_annulled_when_every_replica_has_refused_it_and_passed_over_once_that_is_durable() {
        let annulments = annulments(3);
        assert_eq!(refuse(&annulments, R0, 5), silent(&["r1", "r2"]));
        assert_eq!(refuse(&annulments, R2, 5), silent(&["r1"]));
        annulments.leave(R2);
        assert_eq!(annulments.how(Csn(5)), How::Whole);
        assert_eq!(refuse(&annulments, R1, 5), Verdict::Annul);
        assert_eq!(annulments.how(Csn(5)), How::NotYet);
        assert_eq!(refuse(&annulments, R0, 5), Verdict::Keep);
        let mut told = None;
        annulments.confirm(Csn(5), |reason| told = Some(reason));
        assert_eq!(told.unwrap().code.as_str(), "23514");
        assert_eq!(annulments.how(Csn(5)), How::Never);
        assert_eq!(refuse(&annulments, R0, 5), Verdict::Keep);
        assert_eq!(annulments.how(Csn(6)), How::Whole);
    }

    #[test]
    fn replica_that_tries_again_refuses_another_commit_or_is_away_does_not_count() {
        let annulments = annulments(4);
        refuse(&annulments, R0, 5);
        refuse(&annulments, R1, 6);
        annulments.enter(R0);
        annulments.leave(ReplicaId(3));
        assert_eq!(refuse(&annulments, R2, 5), silent(&["r0", "r1", "r3"]));
    }

    #[test]
    fn replica_that_must_be_copied_anew_is_not_waited_for() {
        let annulments = annulments(2);
        annulments.stand_apart(R1);
        annulments.leave(R1);
        assert_eq!(refuse(&annulments, R0, 5), Verdict::Annul);
    }

    #[test]
    fn replica_that_was_added_is_waited_for_once_it_serves() {
        let annulments = annulments(1);
        annulments.add("r9");
        annulments.enter(R1);
        assert_eq!(refuse(&annulments, R0, 5), silent(&["r9"]));
    }

    #[test]
    fn commit_that_some_replica_has_contained_is_kept() {
        let annulments = annulments(1);
        assert_eq!(refuse(&annulments, R0, 4), Verdict::Keep);
        assert_eq!(annulments.how(Csn(4)), How::Whole);
    }

    #[test]
    fn commit_of_an_earlier_process_waits_for_an_operator() {
        for (allowed, verdict) in [(5, Verdict::Annul), (6, Verdict::AwaitOperator)] {
            let annulments = Annulments::new(vec!["r0".to_owned()], [], [Csn(allowed)]);
            assert_eq!(annulments.refuse(R0, Csn(5), &error("23514"), false, Csn(4)), verdict);
        }
    }

    #[test]
    fn replica_serves_only_if_it_has_passed_over_what_the_log_says() {
        let annulments = Annulments::new(vec!["r0".to_owned()], [Csn(3), Csn(8)], []);
        assert_eq!(annulments.how(Csn(3)), How::Never);
        let check = |passed: &[u64], first, last| {
            annulments.check(&passed.iter().map(|csn| Csn(*csn)).collect(), Csn(first), Csn(last))
        };
        assert_eq!([check(&[3], 0, 7), check(&[3, 8], 0, 9), check(&[], 4, 7)], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(check(&[9], 8, 7), Ok(()), "it can tell of nothing");
        assert_eq!(check(&[], 0, 7), Err(Mistaken::Contains(Csn(3))));
        assert_eq!(check(&[3, 5], 0, 7), Err(Mistaken::Lacks(Csn(5))));
    }

    #[test]
    fn errors_that_may_pass_annul_nothing() {
        for code in ["23505", "23503", "42704", "P0001", "22003", "54000"] {
            assert!(is_lasting(&error(code)), "{code}");
        }
        let passing = ["53100", "57014", "57P01", "58030", "40001", "08006", "55P03", "25006", "XX000"];
        for code in passing {
            assert!(!is_lasting(&error(code)), "{code}");
        }
        // The row of progress itself.
        assert!(!is_lasting(&ErrorFields { schema: Some("onecopy".to_owned()), ..error("23502") }));
    }
}
