//! The certificates in `tests/certificates` are self-signed, made with OpenSSL and named by how they are signed; the
//! expected hashes are OpenSSL's.

use super::tls_server_end_point;

macro_rules! certificate {
    ($name:literal) => {
        (
            $name,
            &include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/", $name, ".der"))[..],
        )
    };
}

#[test]
fn a_certificate_is_hashed_by_the_hash_function_of_its_signature() {
    for ((name, certificate), expected) in [
        (certificate!("ecdsa_sha224"), "f447facb474348f4"),
        (certificate!("ecdsa_sha256"), "7ffcf601799903d0"),
        (certificate!("ecdsa_sha384"), "4c9cc09795b21618"),
        (certificate!("ecdsa_sha512"), "88b4d4f26f67cd8e"),
        (certificate!("ecdsa_sha1"), "4d4836d4c1700585"),
        (certificate!("rsa_md5"), "f4013963d5c31fcb"),
        (certificate!("rsa_sha512"), "7f763df66b56b76e"),
        (certificate!("pss_sha1"), "72bd01744ca9e481"),
        (certificate!("pss_sha256"), "030c6edb27f7a949"),
        (certificate!("pss_sha384"), "77114269745e1e26"),
    ] {
        let hash = tls_server_end_point(certificate).unwrap_or_else(|| panic!("{name} has no binding"));
        let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "{name}");
    }
}

#[test]
fn a_certificate_whose_signature_names_no_hash_function_has_no_binding() {
    assert_eq!(tls_server_end_point(certificate!("ed25519").1), None);
}

#[test]
fn what_is_not_a_certificate_has_no_binding() {
    let (_, whole) = certificate!("rsa_sha512");
    for len in 0..whole.len() {
        assert_eq!(tls_server_end_point(&whole[..len]), None, "cut at {len}");
    }
    for bytes in [&b"\x30\x80"[..], b"\x30\x85\x01\x01\x01\x01\x01", b"\x30\x84\xff\xff\xff\xff", b"hello"] {
        assert_eq!(tls_server_end_point(bytes), None, "{bytes:02x?}");
    }
}

#[test]
fn lengths_of_one_byte_more_than_seven_bits_are_read() {
    let signed = [&[0x30, 0x81, 0x80][..], &[0; 0x80]].concat();
    let algorithm = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let certificate = [&[0x30, 0x81, 0x8f][..], &signed, &algorithm].concat();
    let expected = <sha2::Sha256 as sha2::Digest>::digest(&certificate).to_vec();
    assert_eq!(tls_server_end_point(&certificate), Some(expected));
}
