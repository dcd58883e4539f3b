//! What sentences of DV say beyond their kind and metric.

use std::collections::BTreeSet;

use onecopy_core::protocol::level2;
use onecopy_core::table_queues::{LockMode, TableLocks};
use onecopy_core::table_versions::{Assigner, Reached};

use super::{About, MEASURED_MAX, ON_TOP, Parts, at, lead, part, peak};
use crate::claims::Claim;
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
