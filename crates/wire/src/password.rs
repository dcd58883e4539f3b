//! Passwords: how they are normalised before they are hashed, and the md5 answer that old servers ask for.

use std::borrow::Cow;

use md5::{Digest, Md5};

/// A password as SCRAM hashes it: normalised with SASLprep (RFC 4013), so that the same characters typed on
/// different systems are the same bytes. As in PostgreSQL, a password that SASLprep prohibits is taken as it is.
#[must_use]
pub fn normalize(password: &str) -> Cow<'_, str> {
    stringprep::saslprep(password).unwrap_or(Cow::Borrowed(password))
}

/// The answer to an md5 request of a server, for [`crate::frontend::build::password`]: `md5` and the hash, in
/// hexadecimal, of the hash of password and user together with the server's salt.
#[must_use]
pub fn md5(user: &str, password: &str, salt: [u8; 4]) -> String {
    let inner = hex(&Md5::new().chain_update(password).chain_update(user).finalize());
    let outer = hex(&Md5::new().chain_update(inner).chain_update(salt).finalize());
    format!("md5{outer}")
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_answers_agree_with_another_implementation() {
        for (user, password) in [("md5_user", "password"), ("ü", ""), ("", "pw")] {
            let salt = [0x2a, 0x3d, 0x8f, 0xe0];
            let expected =
                postgres_protocol::authentication::md5_hash(user.as_bytes(), password.as_bytes(), salt);
            assert_eq!(md5(user, password, salt), expected);
        }
    }

    #[test]
    fn what_looks_the_same_becomes_the_same() {
        assert_eq!(normalize("I\u{ad}X"), "IX", "soft hyphens vanish");
        assert_eq!(normalize("\u{2168}"), "IX", "compatibility forms are spelled out");
        assert_eq!(normalize("a\u{a0}b"), "a b", "any space is a space");
        assert_eq!(normalize("bell\u{7}"), "bell\u{7}", "prohibited: taken as it is");
    }
}
