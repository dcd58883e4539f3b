//! What applying a write costs a replica of onecopy, as a part of what executing it costs.

use std::time::Duration;

use onecopy_sim::perf::Profile;
use onecopy_workload::catalogue::StatementId;
use onecopy_workload::tpcw::{MixName, catalogue};

use super::servers::{Running, Template};
use super::{Bench, System, measure};
use crate::connection::Target;
use crate::observe::watch::{self, CONSOLE};
use crate::tpcw::{Meter, Walk};
use crate::{Error, Result};

/// Turns, and pages of each: some 200 orders in all.
const TURNS: u32 = 10;
const PAGES: u64 = 200;

/// How long a turn waits in the end, so that what is still to be applied is.
const APPLIED: Duration = Duration::from_millis(300);

/// The factor by CPU time, which neither waiting nor a quota changes.
///
/// One client walks through the same pages of the ordering mix, with the same seed, on one server and on two. Each statement is
/// executed on one server in both walks; with two, the other one applies what was written. So the second walk costs more by
/// what applying and committing it there costs:
///
/// factor = (CPU of two servers - CPU of one - transactions that applied x CPU of a commit) / CPU of executing the writes
///
/// where a statement's CPU time is its calibrated cost times the cap. One transaction may apply what several have written. It is not below 0, to which chance may bring it. The two walks take
/// turns, because what the same pages cost drifts by more, over seconds, than what is looked for.
pub(super) async fn factor(bench: &Bench<'_>, template: &Template, profile: &Profile) -> Result<f64> {
    bench.say(format!("{}: what applying costs", System::Onecopy));
    // Nobody waits for the clock here, so the servers may be as fast as they can.
    let one = Running::start(bench, System::Onecopy, 1, None, template).await?;
    let two = Running::start(bench, System::Onecopy, 2, None, template).await?;
    let (mut on_one, mut on_two) = (Walker::open(bench, &one).await?, Walker::open(bench, &two).await?);
    // Until processes have learnt their tables nothing counts.
    on_one.turn().await?;
    on_two.turn().await?;
    let before = on_two.written();
    let applied_before = apply_transactions(&two).await?;
    let mut more_s = 0.0;
    for _ in 0..TURNS {
        more_s -= on_one.turn().await?;
        more_s += on_two.turn().await?;
    }
    let written = on_two.written();
    let applied = apply_transactions(&two).await? - applied_before;
    let cost_ms =
        |(id, count): (StatementId, u64)| profile.statements_ms[&catalogue().statement(id).id] * count as f64;
    let writes_ms: f64 =
        written.0.into_iter().map(cost_ms).sum::<f64>() - before.0.into_iter().map(cost_ms).sum::<f64>();
    let commits_ms = profile.commit_ms * applied as f64;
    bench.say(format!("{} commits were applied in {applied} transactions", written.1 - before.1));
    let cap = bench.options.cap;
    Ok(factor_of(more_s, commits_ms * cap / 1e3, writes_ms * cap / 1e3))
}

/// Transactions that have applied commits at its replicas.
async fn apply_transactions(running: &Running) -> Result<u64> {
    let client = Target::parse(&running.dsn)?.on_database(CONSOLE).connect().await?;
    let said = client.simple_query("SHOW REPLICAS").await.map_err(Error::database("ask for the replicas"))?;
    Ok(watch::rows(&said).filter_map(|row| watch::cell(row, "apply_transactions").parse::<u64>().ok()).sum())
}

/// The client on one of the clusters.
struct Walker<'a> {
    running: &'a Running,
    walk: Walk,
}

impl Walker<'_> {
    async fn open<'a>(bench: &Bench<'_>, running: &'a Running) -> Result<Walker<'a>> {
        let options = measure::customers(bench, running, MixName::Ordering, 1);
        Ok(Walker { running, walk: Walk::open(&options, &[MixName::Ordering]).await? })
    }

    /// Shows some pages; the CPU time of all servers meanwhile in seconds, with their idling.
    async fn turn(&mut self) -> Result<f64> {
        let before_s = self.running.spent_s()?;
        self.walk.until(&Meter::waiting(), |pages, _| pages < PAGES).await?;
        tokio::time::sleep(APPLIED).await;
        Ok(self.running.spent_s()? - before_s)
    }

    /// Writes by statement, and transactions that wrote, since it was opened.
    fn written(&self) -> (Vec<(StatementId, u64)>, u64) {
        self.walk.ledger.written()
    }
}

fn factor_of(more_s: f64, commits_s: f64, writes_s: f64) -> f64 {
    if writes_s > 0.0 { ((more_s - commits_s) / writes_s).max(0.0) } else { 1.0 }
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
