//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677), both sides.
//!
//! The proxy is the server towards its clients and a client towards its servers. Each side is a chain of values
//! named by what they wait for; a step consumes one and returns the next, so a message out of order, or a second
//! try with the same nonce, cannot be written down. Random bytes are arguments. Nothing here is printed by
//! `Debug`, and secrets are compared in constant time.
//!
//! A client that knows a wrong password and one that names no user see the same bytes and the same failure
//! ([`Verifier::mock`]).

mod client;
mod keys;
mod message;
mod server;

pub use client::{AwaitingServerFinal, AwaitingServerFirst, Binding, Client, Credential, Hello};
pub use keys::{Keys, Verifier, VerifierError};
pub use server::{Authenticated, AwaitingClientFinal, Server};

/// Name of the mechanism without channel binding.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";

/// Name of the mechanism with channel binding.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Random bytes of a nonce of ours, before it is written as text.
pub const NONCE_LEN: usize = 18;

/// Random bytes of a salt of ours.
pub const SALT_LEN: usize = 16;

/// Iterations of a new verifier, where nothing else is configured. PostgreSQL's default.
pub const ITERATIONS_DEFAULT: u32 = 4096;

/// Most iterations that a server may ask us to do. They are CPU time (about a third of a microsecond each), so a
/// server that is not ours could otherwise stop us with one number.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// Bytes of the longest nonce accepted from a peer.
pub const PEER_NONCE_LEN_MAX: usize = 256;

/// Bytes of the longest message accepted from a peer.
pub const MESSAGE_LEN_MAX: usize = 4096;

/// Why an exchange ended without success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The peer's message is not what the exchange has at this point.
    #[error("malformed SCRAM message: {what}")]
    Malformed {
        /// What was expected.
        what: &'static str,
    },
    /// The peer's message, or a part of it, is too long.
    #[error("SCRAM {what} has {len} bytes; at most {max} are accepted")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The client chose a mechanism that was not offered.
    #[error("the client chose a SASL mechanism that was not offered")]
    MechanismNotOffered,
    /// The client's mechanism and its binding flag do not fit together.
    #[error("the client's channel binding does not fit its SASL mechanism")]
    BindingFlag,
    /// The client believes that we cannot bind, although it was offered: somebody in between removed the offer.
    #[error(
        "the client supports channel binding but was kept from seeing the offer; the connection is intercepted"
    )]
    BindingDowngraded,
    /// The client is bound to another TLS connection than ours.
    #[error("channel binding check failed; the connection is intercepted, or a TLS proxy lies in between")]
    BindingMismatch,
    /// The client wants to act as another user than it authenticates as.
    #[error("SCRAM authorization identities are not supported")]
    AuthorizationIdentity,
    /// The peer demands an extension that does not exist here.
    #[error("the peer requires a SCRAM extension that is not supported")]
    MandatoryExtension,
    /// The peer's nonce does not continue ours.
    #[error("SCRAM nonce does not match")]
    NonceMismatch,
    /// The client does not know the password, or there is no such user. Nobody may learn which.
    #[error("password authentication failed")]
    ProofMismatch,
    /// The server offers no mechanism that we know.
    #[error("the server offers no SASL mechanism that is supported; SCRAM-SHA-256 is")]
    NoMechanism,
    /// Channel binding was required, and the server does not offer it.
    #[error("channel binding is required, but the server does not offer SCRAM-SHA-256-PLUS")]
    BindingNotOffered,
    /// The server asks for an unreasonable number of iterations.
    #[error("the server asks for {iterations} SCRAM iterations; 1 to {max} are accepted")]
    Iterations {
        /// The number.
        iterations: u32,
        /// The limit.
        max: u32,
    },
    /// The stored keys are for another salt or number of iterations than the server's: its password is not the one
    /// that they come from, or not stored in the same way.
    #[error(
        "stored SCRAM keys do not fit the server's salt and iterations; copy the verifier to it, or give a password"
    )]
    KeysDoNotFit,
    /// The server ended the exchange with an error.
    #[error("the server refused authentication: {reason}")]
    Refused {
        /// The error's name, letters and hyphens only.
        reason: String,
    },
    /// The server does not know the password either: it is not the server that it seems.
    #[error("the server could not prove that it knows the password")]
    ServerSignatureMismatch,
}
