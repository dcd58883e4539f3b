//! PostgreSQL protocol 3 messages, both ways: bytes in, types out, no sockets.
//!
//! A proxy stands between clients and servers, so every message exists here in both directions: [`frontend`]
//! holds what clients say, [`backend`] what servers say; each has a decoder (what a proxy must read) and a
//! `build` module (what a proxy must write). [`relay`] finds the bytes that need neither.
//!
//! Decoding borrows from the bytes that were read and allocates nothing; building appends to a
//! [`bytes::BytesMut`]. Every length and count is checked against the bytes that are there before it is
//! trusted, and a message must fill its frame exactly: what one side takes for the rest of a message and the
//! other for the next one is how statements are smuggled past a proxy.
//!
//! Deliberately absent: I/O, clocks, randomness (nonces are arguments), and the choice of a SQLSTATE for an error.

pub mod frame;
pub mod startup;

pub mod channel_binding;
pub mod password;
pub mod scram;

pub mod frontend;

pub mod backend;

pub mod carried;

pub mod relay;
pub mod values;

pub mod sqlstate;

pub mod errors;

mod read;
mod write;

pub use errors::{BuildError, FrameError, Malformed, StartupError, WireError};
pub use frame::{Frame, Frames, Head};
pub use sqlstate::SqlState;
pub use values::{Format, Formats, Oids, Values};
