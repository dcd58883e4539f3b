//! How sites fail, and who decides at them.

use onecopy_core::protocol::Protocol;
use onecopy_core::protocol::certified::{Certified, Commits};
use onecopy_core::protocol::wide_area::{Choice, WideArea};
use onecopy_core::{AccessSet, Csn, Moment, NodeId};

/// Who decides at sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// One of those for wide areas.
    WideArea(Choice),
    /// Certification.
    Certified(Commits),
}

impl Family {
    /// Whether only what no failure can lose is committed, and told.
    #[must_use]
    pub fn loses_nothing(self) -> bool {
        match self {
            Family::WideArea(choice) => choice.delivery.commits_at() == Moment::Stable,
            Family::Certified(commits) => commits == Commits::Stable,
        }
    }

    pub(super) fn is_certified(self) -> bool {
        matches!(self, Family::Certified(_))
    }

    pub(super) fn begins_early(self) -> bool {
        match self {
            Family::WideArea(choice) => choice.delivery.takes_place_at() == Moment::Received,
            Family::Certified(_) => false,
        }
    }

    /// One site begins. Where updates are certified, with what its database has committed, and what was written there.
    pub(super) fn begin(
        self,
        me: NodeId,
        sites: u16,
        committed: Csn,
        written: Vec<(Csn, AccessSet)>,
    ) -> Box<dyn Protocol> {
        match self {
            Family::WideArea(choice) => Box::new(WideArea::new(choice, sites)),
            Family::Certified(commits) => {
                let mut core = Certified::new(commits, sites);
                core.resume(me, committed, written);
                Box::new(core)
            }
        }
    }
}

/// How sites fail, and by which clocks they notice. Times are in nanoseconds; those that are drawn are means.
#[derive(Clone, PartialEq, Debug)]
pub struct Failing {
    /// From one failure to the next; drawn.
    pub between_ns: u64,
    /// For how long a site, or its server, is away, and until another site's database is copied; drawn.
    pub away_ns: u64,
    /// For how long sites do not hear each other; drawn.
    pub cut_ns: u64,
    /// Until then there are failures. Then all that is cut is healed.
    pub until_ns: u64,
    /// Of what a database committed last it loses at most so many.
    pub lost_max: u64,
    /// The part of failures that meet the site that leads; nothing if it is to be spared by all.
    pub leader_part: Option<f64>,
    /// The part of executions of updates that a server gives up.
    pub given_up_part: f64,
    /// Until what was given to a disk is on it.
    pub disk_ns: u64,
    /// From one sign of life to the next.
    pub alive_ns: u64,
    /// Who is not heard for so long counts as lost.
    pub silence_ns: u64,
    /// What has had no place for so long is sent again.
    pub resend_ns: u64,
    /// Signs of life between two timers of the core.
    pub timer_every: u64,
    /// Who has heard no leader for so long wants to lead.
    pub election_ns: u64,
    /// What is wrong with the driver, to see whether it is found.
    pub bug: Option<Bug>,
}

/// Something that a site does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Who learns that a place that was told is another message's goes on as if it were not.
    ToldPlacesStand,
    /// What is on a site's own disk counts as being on a majority of them.
    StableAlone,
    /// The core does not hear that another site is lost, and its clock stands still.
    LossesUntold,
    /// Who returns takes the first place that its database lacks for contained.
    SkipsAPlace,
    /// What has no place is not sent again.
    NothingSentAgain,
    /// What a site has sent before its process was lost, and hears of from others, it does not pass on.
    OwnNotPassedOn,
    /// A database is not compared with the log.
    NotCompared,
    /// Who returns executes what its database contains already.
    ExecutesAgain,
    /// Who returns answers queries from a database that has committed something and lacks what stands before it.
    ReadsBeforeGaps,
    /// Writes are applied whatever stood before where they were executed.
    WritesOfAnyOrder,
    /// Who returns does not count as written what has failed in place.
    ForgetsFailed,
}
