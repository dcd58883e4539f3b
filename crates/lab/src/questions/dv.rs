//! What sentences of DV say beyond their kind and metric.

use std::collections::BTreeSet;

use onecopy_core::protocol::level2;
use onecopy_core::table_queues::{LockMode, TableLocks, TableQueues};
use onecopy_core::table_versions::{Assigner, Reached};
use onecopy_sim::perf::{AuctionSite, Board, Demand, Profile, Workload};
use onecopy_workload::{auction, bulletin_board};

use super::{About, MEASURED_MAX, ON_TOP, Open, Part, Parts, at, lead, part, peak};
use crate::claims::Claim;
use crate::experiment::Mix;
use crate::verdict::Test;

/// dv-11 to dv-13, dv-28. Versioning is nowhere slower, faster in the largest cluster, and its lead has grown by then.
pub(super) fn better_with_more_conflicts(about: &About) -> Parts {
    let (first, other) = (about.first(), &about.others()[0]);
    let (mut parts, size) = (Vec::new(), about.size()?);
    for &mix in &about.mixes {
        for &size in &about.sizes {
            parts.push(part(
                format!("{}: not slower", at(mix, size)),
                Test::AtLeast(lead(mix, first, other, size)?, 1.0 - ON_TOP),
            ));
        }
        parts.push(part(
            format!("{}: faster", at(mix, size)),
            Test::More(peak(mix, first, size)?, peak(mix, other, size)?),
        ));
        let [small, large] = [MEASURED_MAX, size].map(|size| lead(mix, first, other, size));
        parts.push(part(
            format!("{}: larger lead than with {MEASURED_MAX}", at(mix, size)),
            Test::More(large?, small?),
        ));
    }
    Ok(parts)
}

/// dv-20. *x percent behind* is judged as a ratio.
pub(super) fn behind(about: &About) -> Parts {
    let size = about.size()?;
    let parts = about.mixes.iter().zip(&about.claim.values).map(|(&mix, &paper)| {
        let ratio = lead(mix, &about.others()[0], about.first(), size)?;
        Ok(part(at(mix, size), Test::Near(ratio, 1.0 - paper / 100.0)))
    });
    parts.collect()
}

/// dv-24. The sequencer's rule, run on the paper's example.
pub(super) fn versions_of_the_example(claim: &Claim) -> Parts {
    let table = onecopy_core::TableId(0);
    let (mut assigner, mut reached, mut assigned) = (Assigner::default(), Reached::default(), Vec::new());
    let (mut after, mut waits) = (Vec::new(), false);
    for letter in "wwrwrrrw".chars() {
        let mode = if letter == 'w' { LockMode::Write } else { LockMode::Read };
        let all = assigner.assign(&TableLocks::of_tables([(table, mode)]));
        assigned.extend(all.iter().filter(|one| one.table == table).copied());
    }
    for one in &assigned {
        waits |= !reached.admits(one);
        after.push(reached.release(one).0);
    }
    let ours: Vec<u64> = assigned.iter().map(|one| one.version.0).collect();
    let is_papers = ours.iter().map(|version| *version as f64).eq(claim.values.iter().copied());
    let released = after.iter().copied().eq(1..=8);
    Ok(vec![part(
        "w w r w r r r w",
        Test::Known(is_papers && released && !waits, format!("{ours:?}, then {after:?}")),
    )])
}

/// dv-25. Two transactions write the same three tables, one write each in a step. With versions a write starts when its own
/// table is free, and passes it on at once; with locks, all of which are asked for at the start, when the other has committed.
pub(super) fn steps_of_the_example(claim: &Claim) -> Vec<Part> {
    let tables = [1, 2, 3].map(onecopy_core::TableId);
    let all = TableLocks::of_tables(tables.map(|table| (table, LockMode::Write)));
    let (mut assigner, mut reached) = (Assigner::default(), Reached::default());
    let assigned = [assigner.assign(&all), assigner.assign(&all)];
    let versioning = steps(|open, progress| {
        let version = assigned[open].iter().find(|one| one.table == tables[progress]).copied();
        // What is written in this step is passed on with the next.
        version.filter(|version| reached.admits(version)).map(|version| reached.release(&version)).is_some()
    });
    let mut queues = TableQueues::default();
    let mut holds = [0, 1].map(|transaction: usize| queues.request(transaction, all.clone()));
    let locking = steps(|open, progress| {
        let runs = holds[open];
        if runs && progress + 1 == tables.len() {
            queues.release(open).into_iter().for_each(|next| holds[next] = true);
        }
        runs
    });
    let ours = [versioning, locking];
    let is_papers = ours.iter().map(|steps| f64::from(*steps)).eq(claim.values.iter().copied());
    vec![part(
        "two transactions that write three tables",
        Test::Known(is_papers, format!("{versioning} steps, and {locking} with locks")),
    )]
}

/// In each step each of two transactions writes its next table if `runs` lets it; what that frees is free in the next step.
fn steps(mut runs: impl FnMut(usize, usize) -> bool) -> u32 {
    let (mut progress, mut count) = ([0; 2], 0);
    while progress.iter().any(|done| *done < 3) && count < 100 {
        // The later one first: it must not see what the earlier one does in the same step.
        for transaction in [1, 0] {
            if progress[transaction] < 3 && runs(transaction, progress[transaction]) {
                progress[transaction] += 1;
            }
        }
        count += 1;
    }
    count
}

/// dv-29. Of the interactions that reach the database, as many visitors make them.
pub(super) fn shares_of_writing(claim: &Claim) -> Parts {
    let (mut parts, small) = (Vec::new(), 2_000);
    let auction = AuctionSite::new(auction::Mix::Write15, auction::Scale::new(small, small)?);
    let board = Board::new(bulletin_board::Mix::Default, bulletin_board::Scale::new(60, small)?);
    let sites: [(Mix, Box<dyn Workload>); 2] =
        [(Mix::Auction, Box::new(auction)), (Mix::BulletinBoard, Box::new(board))];
    for ((mix, mut site), paper) in sites.into_iter().zip(&claim.values) {
        let name = &site.catalogue().name;
        let profile = Profile::named("2003", name).ok_or_else(|| Open(format!("{name} has no profile.")))?;
        let demand = Demand::of(&profile, site.as_mut(), 200, 200)?;
        let ours = 100.0 * demand.wrote as f64 / demand.asked.max(1) as f64;
        let found = format!("{ours:.1} (the paper: {paper})");
        parts.push(part(mix.name(), Test::Known((ours - paper).abs() < 1.0, found)));
    }
    Ok(parts)
}

/// dv-26. That reads keep the bound is what the protocol's tests show.
pub(super) fn bound_of_level2(claim: &Claim) -> Parts {
    let ours = level2::STALE_MAX_NS as f64 / 1e9;
    Ok(vec![part(
        "the protocol's bound",
        Test::Known(Some(&ours) == claim.values.first(), format!("{ours} s")),
    )])
}

/// dv-27. The bound is the interaction's; that what must be current is, and that no query sees half an update, is what the
/// protocol's tests show.
pub(super) fn bounds_of_special(claim: &Claim) -> Parts {
    let interactions = &onecopy_workload::tpcw::catalogue().interactions;
    let bounds: BTreeSet<u32> = interactions
        .iter()
        .filter_map(|interaction| interaction.stale_ok.map(|bound| bound.as_secs() as u32))
        .collect();
    let stale = interactions.iter().filter(|interaction| interaction.stale_ok.is_some()).count();
    let is_papers = bounds.iter().map(|bound| f64::from(*bound)).eq(claim.values.iter().copied());
    let found = format!("{bounds:?} s for {stale} of {} interactions", interactions.len());
    Ok(vec![part(
        "bounds of TPC-W's interactions",
        Test::Known(is_papers && stale < interactions.len(), found),
    )])
}
