//! What is derived from a password, and what a server stores instead of it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::SALT_LEN;
use crate::password;

/// Bytes of every key and signature.
pub(super) const KEY_LEN: usize = 32;
pub(super) type Key = [u8; KEY_LEN];

/// Bytes of the longest salt accepted.
pub(super) const SALT_LEN_MAX: usize = 1024;

/// What a client needs to authenticate, derived from a password for one salt: worth keeping, since the derivation
/// takes about a millisecond of CPU time. Whoever has it can authenticate; it is a secret like the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
    pub(super) client_key: Key,
    pub(super) server_key: Key,
}

impl Keys {
    /// Derives keys from a password, which is normalised first. The time is proportional to `iterations`, of
    /// which 0 counts as 1.
    #[must_use]
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> Keys {
        let iterations = iterations.max(1);
        let salted = salted_password(password::normalize(password).as_bytes(), salt, iterations);
        Keys {
            salt: salt.to_vec(),
            iterations,
            client_key: hmac(&salted, &[b"Client Key"]),
            server_key: hmac(&salted, &[b"Server Key"]),
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// What a server stores of a password. Enough to check one, not enough to authenticate with.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
    pub(super) stored_key: Key,
    pub(super) server_key: Key,
    /// Stands for a user that does not exist; never satisfied.
    pub(super) is_mock: bool,
}

/// Why a text is not a verifier. The text is not repeated, since it is a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a SCRAM verifier; expected SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>, in base64"
)]
pub struct VerifierError;

impl Verifier {
    /// What to store of a password. `salt` should be [`SALT_LEN`] random bytes. The time is proportional to
    /// `iterations`; do it once, not at every connection.
    #[must_use]
    pub fn from_password(password: &str, salt: &[u8], iterations: u32) -> Verifier {
        Keys::derive(password, salt, iterations).into()
    }

    /// Reads the text that PostgreSQL stores in `pg_authid.rolpassword`.
    ///
    /// # Errors
    /// [`VerifierError`] if it is anything else, an md5 hash for example.
    pub fn parse(text: &str) -> Result<Verifier, VerifierError> {
        parse(text).ok_or(VerifierError)
    }

    /// A verifier for a user that does not exist, so that its absence cannot be seen: always the same one for the
    /// same name, as a real user's is, and with no password that satisfies it. `secret` is random, and the same as
    /// long as the verifiers are; `iterations` are those of all real users, one each, among which one is chosen.
    #[must_use]
    pub fn mock(secret: &[u8], user: &str, iterations: &[u32]) -> Verifier {
        let derive = |what: &[u8]| hmac(secret, &[what, user.as_bytes()]);
        // Not told by the salt, which the client sees.
        let [a, b, c, d, ..] = derive(b"iterations ");
        let choice = u32::from_be_bytes([a, b, c, d]) as usize;
        let chosen = iterations.get(choice.checked_rem(iterations.len()).unwrap_or(0)).copied();
        Verifier {
            salt: derive(b"salt ")[..SALT_LEN].to_vec(),
            iterations: chosen.unwrap_or(super::ITERATIONS_DEFAULT).max(1),
            stored_key: derive(b"stored key "),
            server_key: derive(b"server key "),
            is_mock: true,
        }
    }

    /// How many iterations a client has to do.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The text that PostgreSQL stores.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!(
            "{}${}:{}${}:{}",
            super::SCRAM_SHA_256,
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key),
        )
    }

    /// Whether this is the password, for clients that send it in the clear. Takes as long as
    /// [`Verifier::from_password`].
    #[must_use]
    pub fn accepts(&self, password: &str) -> bool {
        let keys = Keys::derive(password, &self.salt, self.iterations);
        let fits = sha256(&keys.client_key).ct_eq(&self.stored_key);
        bool::from(fits) && !self.is_mock
    }
}

impl From<Keys> for Verifier {
    fn from(keys: Keys) -> Verifier {
        Verifier {
            salt: keys.salt,
            iterations: keys.iterations,
            stored_key: sha256(&keys.client_key),
            server_key: keys.server_key,
            is_mock: false,
        }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

fn parse(text: &str) -> Option<Verifier> {
    let rest = text.strip_prefix(super::SCRAM_SHA_256)?.strip_prefix('$')?;
    let (derivation, keys) = rest.split_once('$')?;
    let (iterations, salt) = derivation.split_once(':')?;
    let (stored_key, server_key) = keys.split_once(':')?;
    let salt = BASE64.decode(salt).ok()?;
    Some(Verifier {
        iterations: super::message::parse_iterations(iterations)?,
        salt: (1..=SALT_LEN_MAX).contains(&salt.len()).then_some(salt)?,
        stored_key: decode_key(stored_key)?,
        server_key: decode_key(server_key)?,
        is_mock: false,
    })
}

/// A key from its base64 text, if it has the right length.
pub(super) fn decode_key(text: &str) -> Option<Key> {
    BASE64.decode(text).ok()?.try_into().ok()
}

/// `Hi` of RFC 5802, which is PBKDF2 with one block.
fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let keyed = keyed(password);
    let mut block = finish(keyed.clone().chain_update(salt).chain_update(1_u32.to_be_bytes()));
    let mut sum = block;
    for _ in 1..iterations {
        block = finish(keyed.clone().chain_update(block));
        sum = xor(&sum, &block);
    }
    sum
}

pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    finish(parts.iter().fold(keyed(key), |mac, part| mac.chain_update(part)))
}

pub(super) fn sha256(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

pub(super) fn xor(a: &Key, b: &Key) -> Key {
    std::array::from_fn(|i| a[i] ^ b[i])
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn finish(mac: Hmac<Sha256>) -> Key {
    mac.finalize().into_bytes().into()
}
