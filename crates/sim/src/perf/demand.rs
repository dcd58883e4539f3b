//! What users cost a database that has nothing else to do: the sum of their statements, without any waiting.

use std::collections::BTreeMap;

use onecopy_workload::{Action, InteractionId, Reply};

use super::profile::{Profile, ProfileError};
use super::workload::{Workload, opening};

/// What users cost one idle database, in milliseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Demand {
    /// Of all their reads.
    pub reads_ms: f64,
    /// Of all their writes, with their commits.
    pub writes_ms: f64,
    /// Interactions that touch the database.
    pub asked: u64,
    /// Those of them that write.
    pub wrote: u64,
    /// Of each kind of interaction that touches the database: the least and the most that one took.
    pub interactions_ms: BTreeMap<InteractionId, (f64, f64)>,
}

impl Demand {
    /// Lets so many users walk through so many interactions each, one user after the other.
    ///
    /// # Errors
    /// If the profile is not for this workload.
    pub fn of(
        profile: &Profile,
        workload: &mut dyn Workload,
        users: u32,
        interactions: u32,
    ) -> Result<Demand, ProfileError> {
        profile.costs_ns(workload.catalogue())?;
        let mut demand = Demand::default();
        for number in 0..users {
            demand.walk(profile, workload, (number, users), interactions);
        }
        Ok(demand)
    }

    fn walk(
        &mut self,
        profile: &Profile,
        workload: &mut dyn Workload,
        (number, users): (u32, u32),
        interactions: u32,
    ) {
        let mut user = workload.user(1, number, users);
        let (mut reply, mut now, mut left) = (Reply::Done, opening(), interactions);
        let (mut interaction, mut spent_ms) = (None, 0.0);
        let (mut open, mut wrote, mut changes) = (false, false, false);
        while left > 0 {
            let action = user.next(now, reply);
            let mut commits = false;
            reply = match &action {
                Action::Think { pause, next } => {
                    if let Some(done) = interaction.replace(*next).filter(|_| spent_ms > 0.0) {
                        self.asked += 1;
                        self.wrote += u64::from(changes);
                        let (least, most) = self.interactions_ms.entry(done).or_insert((spent_ms, spent_ms));
                        (*least, *most) = (least.min(spent_ms), most.max(spent_ms));
                    }
                    (spent_ms, changes) = (0.0, false);
                    left -= 1;
                    now = now.plus(*pause);
                    Reply::Done
                }
                Action::Begin(_) => {
                    (open, wrote) = (true, false);
                    Reply::Done
                }
                Action::Execute(id, params) => {
                    let statement = workload.catalogue().statement(*id);
                    let cost_ms = profile.statements_ms[&statement.id];
                    let writes = !statement.writes.is_empty();
                    *(if writes { &mut self.writes_ms } else { &mut self.reads_ms }) += cost_ms;
                    spent_ms += cost_ms;
                    (wrote, changes) = (wrote || writes, changes || writes);
                    commits = writes && !open;
                    Reply::Rows(workload.answer(*id, params))
                }
                Action::Commit => {
                    (open, commits) = (false, wrote);
                    Reply::Done
                }
                Action::Rollback => {
                    open = false;
                    Reply::Done
                }
            };
            if commits {
                self.writes_ms += profile.commit_ms;
                spent_ms += profile.commit_ms;
            }
        }
    }

    /// The share of writes and commits in all of it, 0 to 1.
    #[must_use]
    pub fn write_share(&self) -> f64 {
        self.writes_ms / (self.reads_ms + self.writes_ms)
    }
}

/// The cost of the heaviest read in average writes, each write statement counted once.
#[must_use]
pub fn heaviest_read_in_writes(profile: &Profile, workload: &dyn Workload) -> f64 {
    let cost = |statement: &&onecopy_workload::catalogue::Statement| profile.statements_ms[&statement.id];
    let (writes, reads): (Vec<_>, Vec<_>) =
        workload.catalogue().statements.iter().partition(|statement| !statement.writes.is_empty());
    let mean_write = writes.iter().map(cost).sum::<f64>() / writes.len() as f64;
    reads.iter().map(cost).fold(0.0, f64::max) / mean_write
}
