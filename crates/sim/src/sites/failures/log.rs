//! The log that sites share, by what consensus guarantees: one leader an epoch, whose records only grow; what is on a majority of disks is in the log of
//! each later leader.
//!
//! Messages between sites are the driver's. It chooses who may lead, as elections would: whose log is at least as new as those of a majority that it
//! reaches, and which promises to hear no earlier leader any more. A disk's log is always the beginning of that of one leader, so an epoch and a length say what it holds.
//!
//! Invariants:
//! - a disk's epoch and length, compared in this order, never go down;
//! - what was durable once stands at the same place in the log of each later leader.

use onecopy_core::multicast::MessageId;
use onecopy_core::{Csn, Epoch};

/// What one leader has given places, and what it took over.
#[derive(Debug)]
struct Led {
    leader: usize,
    /// By places from 1 on: who gave it, and to whom.
    records: Vec<(Epoch, MessageId)>,
    /// How many of them it took over.
    taken_over: u64,
    /// Of each site that has answered, how many are on its disk.
    on_disks: Vec<Option<u64>>,
    durable: u64,
    is_ready: bool,
}

/// What a site's disk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Disk {
    /// No leader before this one is heard any more.
    promised: Epoch,
    /// So many records of this leader.
    epoch: Epoch,
    len: u64,
}

/// How a leader counts for who hears it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// There is a later one.
    Old,
    Known,
    New,
}

/// What a leader knows when one more disk has something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    pub(super) durable: Csn,
    /// What it took over is durable only now, so that it may give places.
    pub(super) becomes_ready: bool,
    pub(super) is_news: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SharedLog {
    /// By epochs; nobody leads the first.
    led: Vec<Led>,
    disks: Vec<Disk>,
    /// Whatever was durable once.
    durable: Vec<MessageId>,
    is_kept: bool,
}

impl SharedLog {
    pub(super) fn new(sites: usize) -> SharedLog {
        let nobody = Led {
            leader: usize::MAX,
            records: Vec::new(),
            taken_over: 0,
            on_disks: Vec::new(),
            durable: 0,
            is_ready: false,
        };
        let disk = Disk { promised: Epoch(0), epoch: Epoch(0), len: 0 };
        SharedLog { led: vec![nobody], disks: vec![disk; sites], durable: Vec::new(), is_kept: true }
    }

    pub(super) fn majority(&self) -> usize {
        self.disks.len() / 2 + 1
    }

    /// Whatever was durable once, in its order from place 1 on.
    pub(super) fn durable(&self) -> &[MessageId] {
        &self.durable
    }

    /// What stands for good at a place.
    pub(super) fn durable_at(&self, place: Csn) -> Option<MessageId> {
        self.durable.get((place.0 as usize).checked_sub(1)?).copied()
    }

    /// Whether all leaders agreed on what was durable.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// A site is to lead with the consent of those of these whose logs are no newer than its own. Returns its epoch if these are a majority.
    pub(super) fn elect(&mut self, site: usize, voters: &[usize]) -> Option<Epoch> {
        let Disk { epoch, len, .. } = self.disks[site];
        let consents = |voter: &&usize| {
            let disk = self.disks[**voter];
            (disk.epoch, disk.len) <= (epoch, len)
        };
        let consenting: Vec<usize> = voters.iter().filter(consents).copied().collect();
        if consenting.len() < self.majority() {
            return None;
        }
        let new = Epoch(self.led.len() as u64);
        consenting.iter().for_each(|voter| self.disks[*voter].promised = new);
        let records = self.led[epoch.0 as usize].records[..len as usize].to_vec();
        let stand = self.durable.iter().copied();
        self.is_kept &= records.iter().map(|(_, id)| *id).take(self.durable.len()).eq(stand);
        let on_disks = vec![None; self.disks.len()];
        let (durable, is_ready) = (0, false);
        self.led.push(Led { leader: site, records, taken_over: len, on_disks, durable, is_ready });
        Some(new)
    }

    pub(super) fn leader(&self, epoch: Epoch) -> usize {
        self.led[epoch.0 as usize].leader
    }

    /// How many records a leader has.
    pub(super) fn len(&self, epoch: Epoch) -> u64 {
        self.led[epoch.0 as usize].records.len() as u64
    }

    /// Up to which place a leader knows that its log is durable.
    pub(super) fn durable_by(&self, epoch: Epoch) -> Csn {
        Csn(self.led[epoch.0 as usize].durable)
    }

    /// A leader gives a message the next place.
    pub(super) fn append(&mut self, epoch: Epoch, message: MessageId) -> Csn {
        let led = &mut self.led[epoch.0 as usize];
        led.records.push((epoch, message));
        Csn(led.records.len() as u64)
    }

    /// The newest leader that a site may hear.
    pub(super) fn promised(&self, site: usize) -> Epoch {
        self.disks[site].promised
    }

    /// A site hears the leader of an epoch.
    pub(super) fn hears(&mut self, site: usize, epoch: Epoch) -> Heard {
        let promised = &mut self.disks[site].promised;
        match epoch.cmp(promised) {
            std::cmp::Ordering::Less => Heard::Old,
            std::cmp::Ordering::Equal => Heard::Known,
            std::cmp::Ordering::Greater => {
                *promised = epoch;
                Heard::New
            }
        }
    }

    /// So many records of a leader are on a site's disk. Returns whether it may be told so.
    pub(super) fn write(&mut self, site: usize, epoch: Epoch, len: u64) -> bool {
        let disk = &mut self.disks[site];
        if epoch < disk.promised {
            return false;
        }
        (disk.epoch, disk.len) = (disk.epoch, disk.len).max((epoch, len));
        true
    }

    /// How many records of the leader of an epoch are on a site's disk.
    pub(super) fn written(&self, site: usize, epoch: Epoch) -> u64 {
        let disk = self.disks[site];
        if disk.epoch == epoch { disk.len } else { 0 }
    }

    /// What stands at a place on a site's disk, and who gave it that place. Where both are the same, so is everything before.
    pub(super) fn read(&self, site: usize, place: Csn) -> Option<(Epoch, MessageId)> {
        let disk = self.disks[site];
        let records = &self.led[disk.epoch.0 as usize].records[..disk.len as usize];
        records.get((place.0 as usize).checked_sub(1)?).copied()
    }

    /// A leader hears that so many of its records are on a site's disk.
    pub(super) fn acknowledged(&mut self, epoch: Epoch, site: usize, len: u64) -> Progress {
        let majority = self.majority();
        let led = &mut self.led[epoch.0 as usize];
        led.on_disks[site] = led.on_disks[site].max(Some(len));
        let mut lens: Vec<u64> = led.on_disks.iter().flatten().copied().collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        let durable = lens.get(majority - 1).copied().unwrap_or(0);
        let is_news = durable > led.durable;
        led.durable = durable.max(led.durable);
        let becomes_ready = !led.is_ready && lens.len() >= majority && durable >= led.taken_over;
        led.is_ready |= becomes_ready;
        let from = self.durable.len();
        let news = led.records.get(from..durable as usize).unwrap_or_default();
        self.durable.extend(news.iter().map(|(_, id)| *id));
        Progress { durable: Csn(led.durable), becomes_ready, is_news }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn message(number: u64) -> MessageId {
        MessageId { node: 0, incarnation: 1, number }
    }

    const A: MessageId = message(1);
    const B: MessageId = message(2);

    fn led_by(site: usize, voters: &[usize], log: &mut SharedLog) -> Epoch {
        log.elect(site, voters).expect("these are a majority")
    }

    #[test]
    fn what_is_on_a_majority_of_disks_is_durable_and_what_is_not_may_be_lost() {
        let mut log = SharedLog::new(3);
        let first = led_by(0, &[0, 1, 2], &mut log);
        assert_eq!((log.append(first, A), log.append(first, B)), (Csn(1), Csn(2)));
        assert!(log.write(0, first, 2) && log.write(1, first, 1));
        assert_eq!(log.acknowledged(first, 0, 2).durable, Csn(0));
        assert_eq!(
            log.acknowledged(first, 1, 1),
            Progress { durable: Csn(1), becomes_ready: true, is_news: true }
        );
        assert_eq!(log.elect(2, &[1, 2]), None, "the other has what is durable");
        let second = led_by(1, &[1, 2], &mut log);
        assert_eq!(log.append(second, message(3)), Csn(2));
        assert!(log.write(1, second, 2) && log.write(2, second, 2));
        log.acknowledged(second, 1, 2);
        log.acknowledged(second, 2, 2);
        assert_eq!(log.durable(), [A, message(3)]);
        assert_eq!(log.hears(0, second), Heard::New);
        assert!(!log.write(0, first, 9), "nobody hears the first one any more");
        assert!(log.is_kept());
    }

    #[test]
    fn a_leader_gives_places_when_what_it_took_over_is_durable() {
        let mut log = SharedLog::new(3);
        let first = led_by(0, &[0, 1], &mut log);
        log.append(first, A);
        log.write(1, first, 1);
        let second = led_by(1, &[1, 2], &mut log);
        assert!(!log.acknowledged(second, 1, 1).becomes_ready);
        assert!(!log.acknowledged(second, 2, 0).becomes_ready);
        assert!(log.acknowledged(second, 2, 1).becomes_ready);
        assert_eq!(log.durable_at(Csn(1)), Some(A));
    }
}
