//! Which replicas leave service for good since their contents were found to differ: decided in one place for all, so that
//! two that are found to differ in the same moment do not exclude each other.

use onecopy_core::ReplicaId;
use parking_lot::Mutex;

/// What was found and decided about one replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Finding {
    #[default]
    Sound,
    /// Its contents differ, and what becomes of it is to be decided.
    Differs(String),
    /// It goes on serving all the same, since nobody else does, and is on its way back into service.
    Kept,
    /// It does not serve any more, which is still to be noted on it.
    Excluded(String),
    /// It is noted on the replica itself, and there it is found at the next attempt; unless it was copied anew by then.
    Noted,
}

/// What becomes of a replica whose contents differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It must not serve, for this reason, which is to be noted on it.
    Exclude(String),
    /// It is the last one: its contents are all that there is.
    Keep(String),
}

/// How the exclusion of a replica has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is noted on the replica, which stays out of service.
    Excluded,
    /// It serves, or is about to, since nobody else did.
    Kept,
}

/// The findings about all replicas.
///
/// Invariant: of the replicas that serve, or are about to, one is never excluded.
pub struct Exclusions(Mutex<Vec<Finding>>);

impl Exclusions {
    pub fn new(replicas: usize) -> Exclusions {
        Exclusions(Mutex::new(vec![Finding::Sound; replicas]))
    }

    /// A replica's contents were found to differ. The first difference is remembered.
    pub fn note_difference(&self, replica: ReplicaId, difference: impl FnOnce() -> String) {
        let mut findings = self.0.lock();
        if let Some(finding) = findings.get_mut(usize::from(replica.0))
            && matches!(finding, Finding::Sound | Finding::Kept)
        {
            *finding = Finding::Differs(difference());
        }
    }

    /// Why the replica must not come into service now.
    pub fn reason(&self, replica: ReplicaId) -> Option<String> {
        match self.0.lock().get(usize::from(replica.0)) {
            Some(Finding::Differs(reason) | Finding::Excluded(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    /// What became of a replica that was found to differ; `None` while that is not decided, or not noted on it.
    pub fn outcome(&self, replica: ReplicaId) -> Option<Outcome> {
        match self.0.lock().get(usize::from(replica.0))? {
            Finding::Differs(_) | Finding::Excluded(_) => None,
            Finding::Noted => Some(Outcome::Excluded),
            // One that was kept is as sound as the others once it serves.
            Finding::Kept | Finding::Sound => Some(Outcome::Kept),
        }
    }

    /// Decides about a replica; `None` if there is nothing to decide. `serves` says who is in service: it is asked while
    /// nobody else decides.
    pub fn decide(&self, replica: ReplicaId, serves: impl Fn(ReplicaId) -> bool) -> Option<Verdict> {
        let mut findings = self.0.lock();
        let me = usize::from(replica.0);
        let difference = match findings.get(me)? {
            Finding::Differs(difference) => difference.clone(),
            Finding::Excluded(difference) => return Some(Verdict::Exclude(difference.clone())),
            Finding::Sound | Finding::Kept | Finding::Noted => return None,
        };
        // One that differs, too, may be the one that is kept.
        let remains = |(at, finding): (usize, &Finding)| match finding {
            _ if at == me => false,
            Finding::Excluded(_) | Finding::Noted => false,
            Finding::Kept => true,
            Finding::Sound | Finding::Differs(_) => u16::try_from(at).is_ok_and(|at| serves(ReplicaId(at))),
        };
        if findings.iter().enumerate().any(remains) {
            findings[me] = Finding::Excluded(difference.clone());
            Some(Verdict::Exclude(difference))
        } else {
            findings[me] = Finding::Kept;
            Some(Verdict::Keep(difference))
        }
    }

    /// That the replica differs is noted on it.
    pub fn noted(&self, replica: ReplicaId) {
        if let Some(known) = self.0.lock().get_mut(usize::from(replica.0)) {
            *known = Finding::Noted;
        }
    }

    /// There is one more replica.
    pub fn add(&self) {
        self.0.lock().push(Finding::Sound);
    }

    /// The replica was copied anew: whatever was found before is not there any more.
    pub fn begin_anew(&self, replica: ReplicaId) {
        if let Some(known) = self.0.lock().get_mut(usize::from(replica.0)) {
            *known = Finding::Sound;
        }
    }

    /// The replica serves: nothing speaks against it any more, but what was found since it was let in.
    pub fn enter(&self, replica: ReplicaId) {
        if let Some(known) = self.0.lock().get_mut(usize::from(replica.0))
            && matches!(known, Finding::Kept | Finding::Noted)
        {
            *known = Finding::Sound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R0: ReplicaId = ReplicaId(0);
    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    fn differing(replicas: usize, differ: &[ReplicaId]) -> Exclusions {
        let exclusions = Exclusions::new(replicas);
        for replica in differ {
            exclusions.note_difference(*replica, || format!("rows of {}", replica.0));
        }
        exclusions
    }
    fn exclude(replica: u16) -> Option<Verdict> {
        Some(Verdict::Exclude(format!("rows of {replica}")))
    }
    fn keep(replica: u16) -> Option<Verdict> {
        Some(Verdict::Keep(format!("rows of {replica}")))
    }

    #[test]
    fn one_of_two_that_differ_at_once_is_kept_whoever_decides_first_and_whether_they_still_serve() {
        for (first, second) in [(R0, R1), (R1, R0)] {
            let exclusions = differing(2, &[R0, R1]);
            assert_eq!(exclusions.decide(first, |_| true), exclude(first.0));
            assert_eq!(exclusions.decide(second, |_| true), keep(second.0));
            // Noted, and not yet reported to be out of service.
            let exclusions = differing(2, &[R0, R1]);
            assert_eq!(exclusions.decide(first, |_| true), exclude(first.0));
            exclusions.noted(first);
            assert_eq!(exclusions.decide(second, |_| true), keep(second.0));
            // Both out of service already.
            let exclusions = differing(2, &[R0, R1]);
            assert_eq!(exclusions.decide(first, |_| false), keep(first.0));
            assert_eq!(exclusions.decide(second, |_| false), exclude(second.0));
        }
    }

    #[test]
    fn all_that_differ_are_excluded_while_another_serves() {
        let exclusions = differing(3, &[R0, R2]);
        assert_eq!(exclusions.decide(R0, |_| true), exclude(0));
        assert_eq!(exclusions.decide(R2, |_| true), exclude(2));
        assert_eq!(exclusions.decide(R1, |_| true), None);
    }

    #[test]
    fn the_last_one_in_service_is_kept_and_serves_again() {
        let exclusions = differing(2, &[R0]);
        assert_eq!(exclusions.reason(R0), Some("rows of 0".to_owned()));
        assert_eq!(exclusions.decide(R0, |replica| replica == R0), keep(0));
        assert_eq!(exclusions.reason(R0), None);
        exclusions.enter(R0);
        assert_eq!(exclusions.decide(R0, |_| true), None);
    }

    #[test]
    fn an_exclusion_stands_until_it_is_noted_and_the_replica_serves_again_as_a_new_copy() {
        let exclusions = differing(2, &[R0]);
        assert_eq!(exclusions.decide(R0, |_| true), exclude(0));
        // The note failed. Whoever serves meanwhile, it is not decided anew.
        assert_eq!(exclusions.decide(R0, |_| false), exclude(0));
        assert_eq!(exclusions.reason(R0), Some("rows of 0".to_owned()));
        exclusions.noted(R0);
        assert_eq!(exclusions.reason(R0), None);
        exclusions.enter(R0);
        exclusions.note_difference(R0, || "rows of 0".to_owned());
        assert_eq!(exclusions.decide(R0, |_| true), exclude(0));
    }

    #[test]
    fn replica_that_is_added_or_copied_anew_is_sound() {
        let exclusions = differing(2, &[R0]);
        exclusions.decide(R0, |_| true);
        exclusions.begin_anew(R0);
        assert_eq!((exclusions.reason(R0), exclusions.decide(R0, |_| true)), (None, None));
        exclusions.add();
        exclusions.note_difference(R2, || "rows of 2".to_owned());
        assert_eq!(exclusions.decide(R2, |_| true), exclude(2));
    }

    #[test]
    fn outcome_is_known_when_the_exclusion_is_noted_or_the_replica_is_kept() {
        let exclusions = differing(2, &[R0]);
        assert_eq!(exclusions.outcome(R0), None);
        exclusions.decide(R0, |_| true);
        assert_eq!(exclusions.outcome(R0), None, "not noted yet");
        exclusions.noted(R0);
        assert_eq!(exclusions.outcome(R0), Some(Outcome::Excluded));
        // The others have failed meanwhile.
        let exclusions = differing(2, &[R0]);
        exclusions.decide(R0, |_| false);
        assert_eq!(exclusions.outcome(R0), Some(Outcome::Kept), "before it serves again");
        exclusions.enter(R0);
        assert_eq!(exclusions.outcome(R0), Some(Outcome::Kept));
    }

    #[test]
    fn difference_that_is_found_while_the_replica_comes_into_service_is_not_forgotten() {
        let exclusions = differing(2, &[R0]);
        exclusions.enter(R0);
        assert_eq!(exclusions.decide(R0, |_| true), exclude(0));
    }

    #[test]
    fn agents_that_decide_in_the_same_moment_leave_one_replica_in_service() {
        for _ in 0..50 {
            let exclusions = differing(3, &[R0, R1, R2]);
            let barrier = std::sync::Barrier::new(3);
            let verdicts: Vec<_> = std::thread::scope(|scope| {
                let deciding = [R0, R1, R2].map(|replica| {
                    let (exclusions, barrier) = (&exclusions, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        exclusions.decide(replica, |_| true)
                    })
                });
                deciding.map(|thread| thread.join().unwrap()).into()
            });
            let kept = verdicts.iter().filter(|verdict| matches!(verdict, Some(Verdict::Keep(_)))).count();
            assert_eq!(kept, 1, "{verdicts:?}");
        }
    }
}
