//! What is PostgreSQL's own: connecting, fencing, the progress table, checks, definitions.

pub mod checks;
pub mod connect;
pub mod definitions;
pub mod fingerprints;
pub mod progress;
pub mod version;
