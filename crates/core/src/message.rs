//! Messages between the places of a protocol: one type a protocol, under one enum.

/// What one place of a protocol says to another.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {}
