//! The `onecopy` binary.
fn main() {}
