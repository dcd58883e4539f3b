//! The crate's own tests that need more than the public API: planted bugs, failing disks.

mod cluster;
mod consensus;
mod effects;
mod real_disk;
mod shared;
mod simulation;

/// Fails if one of the figures of what a test has met is 0: what never happened was not tested.
fn expect_everything_happened(coverage: &impl std::fmt::Debug) {
    let figures = format!("{coverage:?}");
    let never = figures.split([' ', ',', '}']).filter(|word| *word == "0").count();
    assert_eq!(never, 0, "something that was meant to happen never did: {figures}");
}
