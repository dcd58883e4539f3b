//! A server's bytes, taken for everything that a server can send: an answer to SSLRequest, a stream of messages,
//! an authentication, a certificate. Beyond not panicking: what was decoded is built again byte for byte, the relay
//! passes the same bytes however they are cut, and no server without the password is believed.

#![no_main]

use std::sync::OnceLock;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use onecopy_wire::backend::{self, Backend, ErrorFields, Fields};
use onecopy_wire::relay::{Next, RelayState, Scan, TagSet, scan};
use onecopy_wire::scram::{Binding, Client, Credential, Keys, NONCE_LEN, SCRAM_SHA_256};
use onecopy_wire::{Frame, Frames, Head, channel_binding, startup};

#[path = "../../crates/wire/tests/rebuild/mod.rs"]
#[allow(dead_code)]
mod rebuild;

const DECODE_LEN_MAX: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let _ = startup::decode_ssl_reply(data);
    let _ = channel_binding::tls_server_end_point(data);
    for frame in Frames::new(data, 1 << 20).map_while(Result::ok) {
        message(&frame);
    }
    relayed(data);
    authentication(data);
});

fn message(frame: &Frame<'_>) {
    let Ok(message) = backend::decode(frame.tag, frame.body) else { return };
    let mut again = BytesMut::new();
    if rebuild::server(&message, &mut again).expect("was decoded") {
        let expected = match &message {
            Backend::RowDescription(columns) => known_formats(columns, frame.bytes),
            _ => frame.bytes.to_vec(),
        };
        assert_eq!(again, expected, "{message:?}");
    }
    match message {
        Backend::Error(fields) | Backend::Notice(fields) => report(&fields),
        Backend::CommandComplete(tag) => {
            let _ = backend::row_count(tag);
        }
        Backend::DataRow(row) => {
            stripped(frame, row.len(), |body| backend::data_row(body).expect("well formed").len());
            let mut out = BytesMut::new();
            backend::strip_columns(frame.tag, frame.body, row.len() / 2, &mut out).expect("has so many");
            let left = backend::data_row(&out[5..]).expect("well formed");
            let expected = rebuild::first_values(&row, row.len() - row.len() / 2);
            assert!(left.iter().eq(expected));
        }
        Backend::RowDescription(columns) => stripped(frame, columns.len(), |body| {
            let left = backend::RowDescription::decode(body).expect("well formed");
            assert!(left.iter().eq(columns.iter().take(left.len())));
            left.len()
        }),
        _ => {}
    }
}

/// The message with text in the place of each format that there is not.
fn known_formats(columns: &backend::RowDescription<'_>, message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    // Tag, length and number of columns; of each its name, a zero, and 18 bytes of which the last two are its format.
    let mut at = 7;
    for column in columns.iter() {
        at += column.name.len() + 19;
        if !matches!(bytes[at - 2..at], [0, 0 | 1]) {
            bytes[at - 2..at].fill(0);
        }
    }
    bytes
}

/// A report that was copied says the same when it is sent and read again.
fn report(fields: &Fields<'_>) {
    let owned = fields.to_owned();
    let mut again = BytesMut::new();
    owned.put_error(&mut again);
    let reread = Fields::decode(&again[5..]).expect("well formed").to_owned();
    // Sent in both fields where the server sent only one.
    let localized =
        Some(&owned.severity_localized).filter(|text| !text.is_empty()).unwrap_or(&owned.severity);
    let expected = ErrorFields { severity_localized: localized.clone(), ..owned };
    assert_eq!(reread, expected);
}

fn stripped(frame: &Frame<'_>, columns: usize, count: impl Fn(&[u8]) -> usize) {
    for drop in [0, 1, columns, columns + 1] {
        let mut out = BytesMut::new();
        match backend::strip_columns(frame.tag, frame.body, drop, &mut out) {
            Ok(()) => assert_eq!(count(&out[5..]), columns - drop),
            Err(_) => assert!(drop > columns && out.is_empty()),
        }
        assert!(drop > 0 || out == frame.bytes);
    }
}

/// Scanned in one piece and byte by byte, the same bytes pass and the same frames are decoded.
fn relayed(data: &[u8]) {
    assert_eq!(relay(data, data.len()), relay(data, 1));
}

/// Bytes passed in total, and the frames to decode, when `data` arrive `at_once` bytes at a time.
fn relay(data: &[u8], at_once: usize) -> (usize, Vec<Head>, bool) {
    let mut state = RelayState::new(TagSet::BORING, DECODE_LEN_MAX);
    let (mut begin, mut end, mut passed) = (0, 0, 0);
    let mut decoded = Vec::new();
    loop {
        let Scan { pass, next } = scan(&data[begin..end], &mut state);
        begin += pass;
        passed += pass;
        match next {
            Next::Decode(head) => {
                decoded.push(head);
                begin += head.len;
                assert!(begin <= end);
            }
            Next::Read(need) if end == data.len() => {
                assert!(need > 0);
                return (passed, decoded, false);
            }
            Next::Read(need) => {
                assert!(need > 0);
                end += at_once.min(data.len() - end);
            }
            Next::Fail(_) => return (passed, decoded, true),
        }
    }
}

fn authentication(data: &[u8]) {
    // Kept keys rather than a password: what a password costs is bounded, but not worth fuzzing time.
    static KEYS: OnceLock<Keys> = OnceLock::new();
    let keys = KEYS.get_or_init(|| Keys::derive("a password", b"salt", 1)).clone();
    let client = Client::new(Credential::Keys(keys), [0; NONCE_LEN], Binding::Unavailable);
    let (awaiting, _) = client.hello([SCRAM_SHA_256]).expect("offered");
    // First and last message in one input, separated by a line's end.
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    if let Ok((awaiting, _)) = awaiting.on_server_first(&data[..end]) {
        let last = data.get(end + 1..).unwrap_or_default();
        assert!(awaiting.on_server_final(last).is_err(), "believed a server without the password");
    }
}
