//! What the goals of onecopy say.

use super::{About, Open, Parts, at, one_processor, part, part_of_the_bound, peak};
use crate::experiment::Experiment;
use crate::variation::Variation;
use crate::verdict::Test;

/// onecopy-01.
pub(super) fn near_the_bound(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        let one = Experiment::new(mix, about.first(), 1)?;
        for &size in &about.sizes {
            let all = Experiment { replicas: size, ..one.clone() };
            let label = format!("{}: part of the bound", at(mix, size));
            parts.push(part(label, Test::AtLeast(part_of_the_bound(&one, &all), about.value(0)?)));
        }
    }
    Ok(parts)
}

/// onecopy-02.
pub(super) fn not_behind(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for &size in &about.sizes {
            for other in about.others() {
                let ratio = peak(mix, about.first(), size)? / peak(mix, other, size)?;
                let label = format!("{}: over {other}", at(mix, size));
                parts.push(part(label, Test::AtLeast(ratio, about.value(0)?)));
            }
        }
    }
    Ok(parts)
}

/// onecopy-03.
pub(super) fn nothing_is_lost_beyond(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for step in about.sizes.windows(2) {
            let ratio = peak(mix, about.first(), step[1])? / peak(mix, about.first(), step[0])?;
            let label = format!("{}: over {}", at(mix, step[1]), step[0]);
            parts.push(part(label, Test::AtLeast(ratio, about.value(0)?)));
        }
    }
    if parts.is_empty() {
        Err(Open("No such size is simulated with this effort.".to_owned()))
    } else {
        Ok(parts)
    }
}

/// onecopy-04.
pub(super) fn past_the_bound(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        let one = Experiment::new(mix, about.first(), 1)?;
        for &size in &about.sizes {
            let mut all = Experiment { replicas: size, ..one.clone() };
            Variation::MeasuredApply.apply(&mut all);
            let label = format!("{}: part of the bound, applying at its measured cost", at(mix, size));
            parts.push(part(label, Test::AtLeast(part_of_the_bound(&one, &all), about.value(0)?)));
        }
    }
    Ok(parts)
}

/// onecopy-05.
pub(super) fn one_scheduler(about: &About) -> Parts {
    let mut parts = Vec::new();
    for &mix in &about.mixes {
        for &size in &about.sizes {
            parts.push(one_processor(about, mix, size, about.value(0)?)?);
        }
    }
    Ok(parts)
}
