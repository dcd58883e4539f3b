//! A client's bytes, taken for everything that a client can send: a first packet, a stream of messages, and an
//! authentication. Beyond not panicking: what was decoded is built again byte for byte, a rewritten Bind keeps its
//! meaning, and nobody is let in.

#![no_main]

use std::sync::OnceLock;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use onecopy_wire::frontend::{self, Bind, Frontend, SaslInitial};
use onecopy_wire::scram::{NONCE_LEN, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, Server, Verifier};
use onecopy_wire::startup::{self, Start, StartupPacket};
use onecopy_wire::{Format, frame};

#[path = "../../crates/wire/tests/rebuild/mod.rs"]
#[allow(dead_code)]
mod rebuild;

fuzz_target!(|data: &[u8]| {
    first_packet(data);
    messages(data);
    authentication(data);
    let _ = Verifier::parse(&String::from_utf8_lossy(data));
});

fn first_packet(data: &[u8]) {
    let Ok(Some((packet, len))) = startup::decode(data) else { return };
    assert!((8..=startup::STARTUP_LEN_MAX).contains(&len) && len <= data.len());
    match packet {
        StartupPacket::SslRequest | StartupPacket::GssEncRequest => assert_eq!(data.len(), 8),
        StartupPacket::Cancel { pid, key } => {
            let mut again = BytesMut::new();
            startup::cancel_request(&mut again, pid, key).expect("was decoded");
            assert_eq!(again, data[..len]);
        }
        StartupPacket::Start(start) => started(&start, &data[..len]),
    }
}

fn started(start: &Start, packet: &[u8]) {
    assert!(!start.user().is_empty() && !start.database().is_empty());
    let negotiation = start.negotiate();
    assert!(negotiation.version <= start.version);
    if let Ok(settings) = start.options() {
        assert!(settings.iter().all(|(name, _)| !name.is_empty()));
    }
    if start.extensions.is_empty() {
        let params: Vec<_> = start.params.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut again = BytesMut::new();
        startup::startup(&mut again, start.version, &params).expect("was decoded");
        assert_eq!(again, packet);
    }
}

fn messages(mut data: &[u8]) {
    while let Ok(Some(head)) = frontend::peek(data, 1 << 20) {
        let Some((bytes, rest)) = data.split_at_checked(head.len) else { return };
        data = rest;
        let Ok(message) = frontend::decode(head.tag, &bytes[frame::HEAD_LEN..]) else { continue };
        let mut again = BytesMut::new();
        let known = rebuild::client(&message, &mut again).expect("was decoded");
        match message {
            // A negative row limit becomes none.
            Frontend::Execute(execute) if execute.max_rows == 0 => {}
            // Codes of formats that there are not become text.
            Frontend::Bind(bind) if unknown_formats(&bind) => {}
            _ => assert!(!known || again == bytes, "{message:?}"),
        }
        if let Frontend::Bind(bind) = message {
            rewritten(&bind);
        }
    }
}

fn unknown_formats(bind: &Bind<'_>) -> bool {
    bind.param_formats.unknown().or(bind.result_formats.unknown()).is_some()
}

fn rewritten(before: &Bind<'_>) {
    let extra: &[&[u8]] = &[b"2026-01-01", b""];
    let mut out = BytesMut::new();
    before.rewrite("portal", "statement", extra, &mut out).expect("fits");
    let after = Bind::decode(&out[frame::HEAD_LEN..]).expect("well formed");
    let own = before.params.len();
    assert_eq!(after.params.len(), own + extra.len());
    assert!(after.params.iter().zip(before.params).all(|(new, old)| new == old));
    assert!(after.params.iter().skip(own).eq(extra.iter().map(|value| Some(*value))));
    assert!((0..own).all(|i| after.param_formats.of(i) == before.param_formats.of(i)));
    assert!((own..own + extra.len()).all(|i| after.param_formats.of(i) == Format::Text));
    assert_eq!(after.result_formats, before.result_formats);
}

fn authentication(data: &[u8]) {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    let verifier = VERIFIER.get_or_init(|| Verifier::from_password("a password", b"salt", 1));
    let server = |end_point| Server::new(verifier.clone(), [0; NONCE_LEN], end_point);
    if let Ok(initial) = SaslInitial::decode(data) {
        let _ = server(None).on_client_first(initial.mechanism, initial.data.unwrap_or_default());
    }
    let _ = server(None).on_client_first(SCRAM_SHA_256, data);
    let _ = server(Some(vec![0; 32])).on_client_first(SCRAM_SHA_256_PLUS, data);
    // First and last message in one input, separated by a line's end.
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    if let Ok((awaiting, _)) = server(None).on_client_first(SCRAM_SHA_256, &data[..end]) {
        let answer = awaiting.on_client_final(&data[end + 1..]);
        assert!(answer.is_err(), "let in without the password");
    }
}
