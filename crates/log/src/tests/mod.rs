//! The crate's own tests that need more than the public API: planted bugs, failing disks.

mod cluster;
mod consensus;
mod effects;
mod real_disk;
mod simulation;
