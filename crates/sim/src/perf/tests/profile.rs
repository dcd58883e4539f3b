//! The profile `2003` keeps what the conflict-aware scheduling paper says of its machine, and is fitted to nothing else.

use std::collections::BTreeMap;

use onecopy_workload::tpcw::{MixName, catalogue};
use onecopy_workload::{Action, InteractionId, Reply};

use super::{bookstore, the_2003};
use crate::perf::workload::{Workload as _, opening};

/// What users of a mix cost one idle database, in milliseconds.
#[derive(Default)]
struct Demand {
    reads_ms: f64,
    /// With their commits.
    writes_ms: f64,
    /// Of each kind of interaction that touches the database: the least and the most.
    interactions_ms: BTreeMap<InteractionId, (f64, f64)>,
}

fn demand(mix: MixName) -> Demand {
    let profile = the_2003();
    let mut bookstore = bookstore(mix);
    let mut demand = Demand::default();
    const USERS: u32 = 10;
    for number in 0..USERS {
        let mut user = bookstore.user(1, number, USERS);
        let (mut reply, mut now) = (Reply::Done, opening());
        let (mut interaction, mut spent_ms) = (None, 0.0);
        let (mut open, mut wrote) = (false, false);
        let mut left = 4_000;
        while left > 0 {
            let action = user.next(now, reply);
            let mut commits = false;
            reply = match &action {
                Action::Think { pause, next } => {
                    if let Some(done) = interaction.replace(*next).filter(|_| spent_ms > 0.0) {
                        let (least, most) =
                            demand.interactions_ms.entry(done).or_insert((spent_ms, spent_ms));
                        (*least, *most) = (least.min(spent_ms), most.max(spent_ms));
                    }
                    spent_ms = 0.0;
                    left -= 1;
                    now = now.plus(*pause);
                    Reply::Done
                }
                Action::Begin(_) => {
                    (open, wrote) = (true, false);
                    Reply::Done
                }
                Action::Execute(id, params) => {
                    let statement = catalogue().statement(*id);
                    let cost_ms = profile.statements_ms[&statement.id];
                    let writes = !statement.writes.is_empty();
                    *(if writes { &mut demand.writes_ms } else { &mut demand.reads_ms }) += cost_ms;
                    spent_ms += cost_ms;
                    wrote |= writes;
                    commits = writes && !open;
                    Reply::Rows(bookstore.answer(*id, params))
                }
                Action::Commit => {
                    (open, commits) = (false, wrote);
                    Reply::Done
                }
                Action::Rollback => panic!("nobody takes anything back"),
            };
            if commits {
                demand.writes_ms += profile.commit_ms;
                spent_ms += profile.commit_ms;
            }
        }
    }
    demand
}

/// CAS 9.2.2, cas-35.
#[test]
fn writes_take_below_1_percent_when_browsing_and_shopping_and_6_when_ordering() {
    let share = |mix| {
        let Demand { reads_ms, writes_ms, .. } = demand(mix);
        100.0 * writes_ms / (reads_ms + writes_ms)
    };
    assert!(share(MixName::Browsing) < 1.0, "{}", share(MixName::Browsing));
    assert!(share(MixName::Shopping) < 1.0, "{}", share(MixName::Shopping));
    assert!((share(MixName::Ordering) - 6.0).abs() < 0.5, "{}", share(MixName::Ordering));
}

/// CAS 7.1, cas-46.
#[test]
fn interactions_take_20_to_700_ms() {
    for mix in MixName::ALL {
        let interactions = demand(mix).interactions_ms;
        // ORDI shows a form without asking a database.
        assert_eq!(interactions.len(), 13, "{mix}: {interactions:?}");
        for (id, (least, most)) in interactions {
            let name = &catalogue().interaction(id).id;
            assert!(least >= 20.0 && most <= 700.0, "{mix} {name}: {least} to {most} ms");
        }
    }
}

/// CAS 7.1, cas-46.
#[test]
fn the_heaviest_read_costs_50_average_writes() {
    let profile = the_2003();
    let cost = |statement: &&onecopy_workload::catalogue::Statement| profile.statements_ms[&statement.id];
    let (writes, reads): (Vec<_>, Vec<_>) =
        catalogue().statements.iter().partition(|statement| !statement.writes.is_empty());
    let mean_write = writes.iter().map(cost).sum::<f64>() / writes.len() as f64;
    let heaviest = reads.iter().map(cost).fold(0.0, f64::max);
    assert!((heaviest / mean_write - 50.0).abs() < 0.5, "{heaviest} / {mean_write}");
}
