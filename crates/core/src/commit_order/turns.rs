//! Reads stay together on one replica for a turn, so that they meet warm caches.

use super::replicas::{Replica, Tuning};
use crate::ids::{Instant, ReplicaId};

/// A turn at reads takes at most the time for which reads have come without a pause, divided by this and by the number of
/// replicas (but never less than the shortest turn).
const TURNS_A_REPLICA: u64 = 3;

/// Whose turn it is to serve reads.
///
/// While reads that are placed keep coming turns grow, in proportion to the time for which they have. If they come evenly, each
/// of three replicas serves a quarter at least from 0.3 s on, and 27 to 40 percent from 1 s on.
#[derive(Default, Debug)]
pub(crate) struct Turns {
    whose: usize,
    since: Instant,
    last_read: Instant,
    /// Since when no pause was as long as the shortest turn.
    busy_since: Instant,
}

impl Turns {
    /// Whose turn it is for a read that comes now, of the replicas that are up and stay.
    pub(crate) fn take(&mut self, now: Instant, replicas: &[Replica], tuning: &Tuning) -> ReplicaId {
        if now.since_ns(self.last_read) >= tuning.turn_ns {
            self.busy_since = now;
        }
        self.last_read = now;
        let members = replicas.iter().filter(|replica| !replica.is_gone()).count().max(1) as u64;
        let length_ns = (now.since_ns(self.busy_since) / (TURNS_A_REPLICA * members))
            .clamp(tuning.turn_ns, tuning.turn_max_ns.max(tuning.turn_ns));
        if now.since_ns(self.since) >= length_ns || !replicas[self.whose].stays_up() {
            let mut others = (self.whose + 1..replicas.len()).chain(0..self.whose);
            self.whose = others.find(|at| replicas[*at].stays_up()).unwrap_or(self.whose);
            self.since = now;
        }
        ReplicaId(self.whose as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Csn;

    const MS: u64 = 1_000_000;

    fn up(count: usize) -> Vec<Replica> {
        let mut replicas: Vec<_> = (0..count).map(|_| Replica::default()).collect();
        replicas.iter_mut().for_each(|replica| replica.on_up(Csn(0)));
        replicas
    }

    /// Who serves reads that come every tenth of a millisecond, from `from_ms` on.
    fn served(turns: &mut Turns, replicas: &[Replica], from_ms: u64, reads: u64) -> Vec<usize> {
        let tuning = Tuning::default();
        let at = |read: u64| Instant(from_ms * MS + read * MS / 10);
        (0..reads).map(|read| usize::from(turns.take(at(read), replicas, &tuning).0)).collect()
    }

    #[test]
    fn three_replicas_share_reads_that_keep_coming_while_their_turns_grow() {
        let served = served(&mut Turns::default(), &up(3), 1_000, 300_000);
        let (mut counts, mut turn, mut longest) = ([0_u32; 3], 0, 0);
        for (read, whose) in served.iter().enumerate() {
            counts[*whose] += 1;
            turn = if read > 0 && served[read - 1] == *whose { turn + 1 } else { 1 };
            longest = longest.max(turn);
            let share = |count: &u32| f64::from(*count) / (read + 1) as f64;
            let (least, most) = (share(counts.iter().min().unwrap()), share(counts.iter().max().unwrap()));
            assert!(read < 3_000 || least >= 0.25, "{counts:?}");
            assert!(read < 10_000 || (0.27..=0.40).contains(&least) && most <= 0.40, "{counts:?}");
        }
        assert_eq!(longest, 10_000, "a second");
    }

    #[test]
    fn a_turn_passes_over_a_replica_that_is_down_and_ends_when_it_goes_down() {
        let (mut turns, mut replicas) = (Turns::default(), up(3));
        let first = served(&mut turns, &replicas, 1_000, 1)[0];
        let (second, third) = ((first + 1) % 3, (first + 2) % 3);
        replicas[first].up = false;
        assert_eq!(served(&mut turns, &replicas, 1_001, 1), [second]);
        replicas[third].up = false;
        assert_eq!(served(&mut turns, &replicas, 2_000, 2_000), vec![second; 2_000]);
    }
}
