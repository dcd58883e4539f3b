//! What ties an authentication to the TLS connection that it runs over.
//!
//! `tls-server-end-point` (RFC 5929) is a hash of the server's certificate, by the hash function of the
//! certificate's own signature, or SHA-256 where that is MD5 or SHA-1.

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

const SEQUENCE: u8 = 0x30;
const OID: u8 = 0x06;
/// `[0]` within the parameters of RSASSA-PSS: the hash function.
const PSS_HASH: u8 = 0xa0;

/// Object identifiers as they are encoded.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];

/// The binding for a server with this certificate, which is in DER. `None` where it is not a certificate, or
/// where its signature names no hash function, as Ed25519's does not: then there is no such binding.
#[must_use]
pub fn tls_server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (certificate_fields, _) = take(certificate, SEQUENCE)?;
    let (_to_be_signed, rest) = take(certificate_fields, SEQUENCE)?;
    let (algorithm, _) = take(rest, SEQUENCE)?;
    Some(match signature_hash(algorithm)? {
        Hash::Sha224 => Sha224::digest(certificate).to_vec(),
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

fn signature_hash(algorithm: &[u8]) -> Option<Hash> {
    let (oid, parameters) = take(algorithm, OID)?;
    if let Some(ecdsa) = oid.strip_prefix(ECDSA) {
        return match ecdsa {
            [1] | [3, 2] => Some(Hash::Sha256),
            [3, 1] => Some(Hash::Sha224),
            [3, 3] => Some(Hash::Sha384),
            [3, 4] => Some(Hash::Sha512),
            _ => None,
        };
    }
    match oid.strip_prefix(RSA)? {
        // MD5 and SHA-1, which the binding must not use.
        [4 | 5] => Some(Hash::Sha256),
        [10] => pss_hash(parameters),
        [11] => Some(Hash::Sha256),
        [12] => Some(Hash::Sha384),
        [13] => Some(Hash::Sha512),
        [14] => Some(Hash::Sha224),
        _ => None,
    }
}

fn pss_hash(parameters: &[u8]) -> Option<Hash> {
    let (parameters, _) = take(parameters, SEQUENCE)?;
    // Where none is named, it is SHA-1.
    let Some((hash, _)) = take(parameters, PSS_HASH) else { return Some(Hash::Sha256) };
    let (hash, _) = take(hash, SEQUENCE)?;
    let (oid, _) = take(hash, OID)?;
    if oid == SHA1 {
        return Some(Hash::Sha256);
    }
    match oid.strip_prefix(SHA2)? {
        [1] => Some(Hash::Sha256),
        [2] => Some(Hash::Sha384),
        [3] => Some(Hash::Sha512),
        [4] => Some(Hash::Sha224),
        _ => None,
    }
}

/// The content of the DER element of this kind at the start of `input`, and what follows it.
fn take(input: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = input.split_first_chunk::<2>()?;
    if found != kind {
        return None;
    }
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests;
