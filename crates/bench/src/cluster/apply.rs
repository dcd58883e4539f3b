//! What applying a write costs a replica of onecopy, as a part of what executing it costs.

use onecopy_sim::perf::Profile;
use onecopy_workload::tpcw::{MixName, catalogue};

use super::servers::{Running, Template};
use super::{Bench, System, measure};
use crate::Result;
use crate::tpcw::Walk;

/// Pages of the walk: some 200 orders.
const PAGES: u64 = 2_000;

/// The factor by CPU time, which neither waiting nor a quota changes.
///
/// One client walks through the same pages of the ordering mix, with the same seed, on one server and on two. Each statement is
/// executed on one server in both walks; with two, the other one applies what was written. So the second walk costs more by
/// what applying and committing elsewhere costs:
///
/// factor = (CPU of two servers - CPU of one - commits x CPU of a commit) / CPU of executing the writes
///
/// where a statement's CPU time is its calibrated cost times the cap, since the cost was measured on a server that used up its
/// quota. It is not below 0, to which chance may bring it.
pub(super) async fn factor(bench: &Bench<'_>, template: &Template, profile: &Profile) -> Result<f64> {
    let (one_s, _) = walk(bench, template, profile, 1).await?;
    let (two_s, written) = walk(bench, template, profile, 2).await?;
    let cap = bench.options.cap;
    Ok(factor_of(two_s - one_s, written.commits_ms * cap / 1e3, written.writes_ms * cap / 1e3))
}

fn factor_of(more_s: f64, commits_s: f64, writes_s: f64) -> f64 {
    if writes_s > 0.0 { ((more_s - commits_s) / writes_s).max(0.0) } else { 1.0 }
}

/// What was written on a walk costs, by the profile, in milliseconds of a capped server.
struct Written {
    writes_ms: f64,
    commits_ms: f64,
}

/// CPU time of all servers during the walk in seconds, with their idling, and what was written.
async fn walk(
    bench: &Bench<'_>,
    template: &Template,
    profile: &Profile,
    size: u32,
) -> Result<(f64, Written)> {
    bench.say(format!("{}: what applying costs, a walk with {size}", System::Onecopy));
    // Nobody waits for the clock here, so the servers may be as fast as they can.
    let running = Running::start(bench, System::Onecopy, size, None, template).await?;
    let options = measure::customers(bench, &running, MixName::Ordering, 1);
    let mut walk = Walk::open(&options, &[MixName::Ordering]).await?;
    let before = running.spent_s()?;
    walk.until(|pages, _| pages < PAGES).await?;
    // What is still to be applied, is applied.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let spent = running.spent_s()? - before;
    let (writes, commits) = walk.ledger.written();
    let cost_ms =
        |(id, count): &(_, u64)| profile.statements_ms[&catalogue().statement(*id).id] * *count as f64;
    let writes_ms = writes.iter().map(cost_ms).sum();
    Ok((spent, Written { writes_ms, commits_ms: profile.commit_ms * commits as f64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_what_the_second_server_spends_for_what_the_first_one_wrote() {
        assert_eq!(factor_of(3.0, 1.0, 4.0), 0.5);
        assert_eq!(factor_of(0.5, 1.0, 4.0), 0.0);
        assert_eq!(factor_of(0.5, 0.0, 0.0), 1.0);
    }
}
