//! The server's side, towards clients.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::keys::{Key, decode_key, hmac, sha256, xor};
use super::message::{Attributes, check_nonce, text};
use super::{Keys, NONCE_LEN, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, Verifier};

/// An exchange before the client's first message.
pub struct Server {
    verifier: Verifier,
    nonce: String,
    end_point: Option<Vec<u8>>,
}

impl Server {
    /// An exchange with a client that says it is the user of this verifier. `nonce` is random and never used
    /// twice. `end_point` is the binding to the TLS connection, if there is one
    /// ([`crate::channel_binding::tls_server_end_point`] of our certificate).
    #[must_use]
    pub fn new(verifier: Verifier, nonce: [u8; NONCE_LEN], end_point: Option<Vec<u8>>) -> Server {
        Server { verifier, nonce: BASE64.encode(nonce), end_point }
    }

    /// The mechanisms to offer, the favourite first.
    #[must_use]
    pub fn mechanisms(&self) -> &'static [&'static str] {
        match self.end_point {
            Some(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
            None => &[SCRAM_SHA_256],
        }
    }

    /// Takes the client's choice and first message; returns what to send in an AuthenticationSASLContinue.
    ///
    /// # Errors
    /// [`ScramError`]; the exchange is over.
    pub fn on_client_first(
        self,
        mechanism: &str,
        data: &[u8],
    ) -> Result<(AwaitingClientFinal, String), ScramError> {
        if !self.mechanisms().contains(&mechanism) {
            return Err(ScramError::MechanismNotOffered);
        }
        let message = text(data, "client-first-message")?;
        let (header, binding, bare) = self.gs2_header(message, mechanism)?;
        let mut attributes = Attributes::of(bare);
        attributes.no_mandatory_extension()?;
        // The name in the startup packet counts; PostgreSQL's clients send an empty one here.
        attributes.take('n', "a user name")?;
        let client_nonce = check_nonce(attributes.take('r', "the client's nonce")?)?;
        attributes.finish("client-first-message")?;

        let nonce = format!("{client_nonce}{}", self.nonce);
        let salt = BASE64.encode(&self.verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", self.verifier.iterations);
        let mut binding_input = header.as_bytes().to_vec();
        binding_input.extend_from_slice(binding);
        let next = AwaitingClientFinal {
            binding: BASE64.encode(binding_input),
            auth_message: format!("{bare},{server_first},"),
            nonce,
            verifier: self.verifier,
        };
        Ok((next, server_first))
    }

    /// Splits off the header that says how the client binds; returns it, the binding's data, and the rest.
    fn gs2_header<'a>(
        &self,
        message: &'a str,
        mechanism: &str,
    ) -> Result<(&'a str, &[u8], &'a str), ScramError> {
        const WHAT: &str = "a channel binding flag and an authorization identity";
        let malformed = ScramError::Malformed { what: WHAT };
        let (flag, rest) = message.split_once(',').ok_or(malformed.clone())?;
        let (identity, bare) = rest.split_once(',').ok_or(malformed.clone())?;
        let plus = mechanism == SCRAM_SHA_256_PLUS;
        let binding = match (flag, &self.end_point) {
            ("p=tls-server-end-point", Some(end_point)) if plus => &end_point[..],
            ("n", _) if !plus => &[],
            ("y", None) if !plus => &[],
            ("y", Some(_)) if !plus => return Err(ScramError::BindingDowngraded),
            ("n" | "y", _) => return Err(ScramError::BindingFlag),
            (flag, _) if flag.starts_with("p=") => return Err(ScramError::BindingFlag),
            _ => return Err(malformed),
        };
        if !identity.is_empty() {
            return Err(ScramError::AuthorizationIdentity);
        }
        Ok((&message[..message.len() - bare.len()], binding, bare))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// An exchange that waits for the client's proof.
pub struct AwaitingClientFinal {
    verifier: Verifier,
    /// The client's nonce and ours.
    nonce: String,
    /// What the client must repeat of its header, with the binding's data, in base64.
    binding: String,
    /// What is signed, but for the end, which is still to come.
    auth_message: String,
}

impl AwaitingClientFinal {
    /// Takes the client's proof; returns what to send in an AuthenticationSASLFinal.
    ///
    /// # Errors
    /// [`ScramError::ProofMismatch`] for a wrong password as for an unknown user, others for a broken or
    /// intercepted exchange.
    pub fn on_client_final(mut self, data: &[u8]) -> Result<(Authenticated, String), ScramError> {
        const WHAT: &str = "client-final-message";
        let message = text(data, WHAT)?;
        // The proof signs everything before itself.
        let (signed, proof) = message.rsplit_once(",p=").ok_or(ScramError::Malformed { what: "a proof" })?;
        let proof = decode_key(proof).ok_or(ScramError::Malformed { what: "a proof of 32 bytes" })?;
        let mut attributes = Attributes::of(signed);
        let binding = attributes.take('c', "the channel binding")?;
        let nonce = attributes.take('r', "the nonce")?;
        attributes.no_mandatory_extension()?;
        attributes.finish(WHAT)?;
        if binding != self.binding {
            return Err(ScramError::BindingMismatch);
        }
        if nonce != self.nonce {
            return Err(ScramError::NonceMismatch);
        }
        self.auth_message.push_str(signed);
        let client_key = self.check_proof(&proof)?;
        let signature = hmac(&self.verifier.server_key, &[self.auth_message.as_bytes()]);
        let Verifier { salt, iterations, server_key, .. } = self.verifier;
        let keys = Keys { salt, iterations, client_key, server_key };
        Ok((Authenticated { keys }, format!("v={}", BASE64.encode(signature))))
    }

    fn check_proof(&self, proof: &Key) -> Result<Key, ScramError> {
        let signature = hmac(&self.verifier.stored_key, &[self.auth_message.as_bytes()]);
        let client_key = xor(proof, &signature);
        let fits = sha256(&client_key).ct_eq(&self.verifier.stored_key);
        if bool::from(fits) && !self.verifier.is_mock {
            Ok(client_key)
        } else {
            Err(ScramError::ProofMismatch)
        }
    }
}

impl fmt::Debug for AwaitingClientFinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwaitingClientFinal").finish_non_exhaustive()
    }
}

/// Proof that the client knows the password. Exists only where an exchange has succeeded.
#[derive(Debug)]
pub struct Authenticated {
    keys: Keys,
}

impl Authenticated {
    /// What the client's proof revealed: enough to authenticate as that user to every server that stores the
    /// same verifier, without knowing the password.
    #[must_use]
    pub fn into_keys(self) -> Keys {
        self.keys
    }
}
