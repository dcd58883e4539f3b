//! Bytes that must be refused, as tables: what a broken or hostile peer can put into frames, first packets and
//! messages. Each case says what is wrong with it.

use onecopy_wire::frontend::Bind;
use onecopy_wire::startup::{self, SslReply, Start, StartupPacket, VERSION_3_0, VERSION_3_2};
use onecopy_wire::{
    BuildError, Format, FrameError, Frames, Head, Malformed, StartupError, WireError, backend, frame,
    frontend,
};

const MAX: usize = 1 << 20;

fn framed(tag: u8, declared: i32, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &declared.to_be_bytes(), body].concat()
}

#[test]
fn lengths_that_no_frame_can_have() {
    for declared in [0, 1, 2, 3, -1, -4, i32::MIN, i32::MIN + 4] {
        let too_short = Err(FrameError::TooShort { tag: b'Q', declared });
        assert_eq!(frame::peek(&framed(b'Q', declared, b"select 1\0"), MAX), too_short);
        assert_eq!(frontend::peek(&framed(b'Q', declared, b""), MAX), too_short);
    }
    for declared in [i32::MAX, i32::MAX - 1, i32::MAX - 3, 1 << 30, MAX as i32] {
        let len = declared as usize + 1;
        let too_long = Err(FrameError::TooLong { tag: b'Q', len, max: MAX });
        assert_eq!(frame::peek(&framed(b'Q', declared, b""), MAX), too_long);
    }
    assert_eq!(frame::peek(&framed(b'Q', MAX as i32 - 1, b""), MAX), Ok(Some(Head { tag: b'Q', len: MAX })));
    assert_eq!(
        frame::peek(&framed(b'Q', i32::MAX, b""), frame::FRAME_LEN_MAX),
        Ok(Some(Head { tag: b'Q', len: 1 << 31 }))
    );
    for incomplete in [&b""[..], b"Q", b"Q\0\0\0"] {
        assert_eq!(frame::peek(incomplete, MAX), Ok(None));
    }
}

#[test]
fn frames_end_at_the_first_incomplete_or_impossible_one() {
    let buf = [framed(b'S', 4, b""), framed(b'Q', 6, b"x\0"), framed(b'Q', 100, b"select")].concat();
    let mut frames = Frames::new(&buf, MAX);
    let sync = frames.next().unwrap().unwrap();
    assert_eq!((sync.tag, sync.body, sync.bytes), (b'S', &b""[..], &b"S\0\0\0\x04"[..]));
    assert_eq!(frames.next().unwrap().unwrap().body, b"x\0");
    assert_eq!((frames.next(), frames.consumed()), (None, 12));

    let buf = [framed(b'S', 4, b""), framed(b'Q', 3, b"")].concat();
    let mut frames = Frames::new(&buf, MAX);
    assert!(frames.next().unwrap().is_ok());
    assert_eq!(frames.next(), Some(Err(FrameError::TooShort { tag: b'Q', declared: 3 })));
    assert_eq!((frames.next(), frames.consumed()), (None, 5), "nothing is read after an error");
}

#[test]
fn a_message_that_need_not_be_long_may_not_be_long() {
    for tag in *b"ESDCHcfpX" {
        let too_long = Err(FrameError::TooLong { tag, len: 10_002, max: frontend::SMALL_LEN_MAX });
        assert_eq!(frontend::peek(&framed(tag, 10_001, b""), MAX), too_long);
    }
    for tag in *b"QPBdF" {
        assert!(frontend::peek(&framed(tag, 10_001, b""), MAX).is_ok());
    }
    for tag in *b"\0\x16ARZTKNt\xff" {
        let unexpected = Err(FrameError::UnexpectedTag { tag });
        assert_eq!(frontend::peek(&[tag], MAX), unexpected, "refused by its first byte");
    }
}

#[test]
fn what_fronts_say_is_accepted_of_them_only() {
    for tag in *b"@!" {
        let head = Some(Head { tag, len: 10_002 });
        assert_eq!(frontend::peek_carried(&framed(tag, 10_001, b""), MAX), Ok(head));
        let too_long = Err(FrameError::TooLong { tag, len: MAX + 1, max: MAX });
        assert_eq!(frontend::peek_carried(&framed(tag, MAX as i32, b""), MAX), too_long);
        assert_eq!(frontend::peek(&[tag], MAX), Err(FrameError::UnexpectedTag { tag }));
    }
    assert_eq!(frontend::peek_carried(b"", MAX), Ok(None));
    assert_eq!(frontend::peek_carried(b"S\0\0\0\x04", MAX), Ok(Some(Head { tag: b'S', len: 5 })));
    assert_eq!(frontend::peek_carried(b"#", MAX), Err(FrameError::UnexpectedTag { tag: b'#' }));
}

#[test]
fn before_authentication_only_an_answer_to_it_is_accepted() {
    assert_eq!(frontend::peek_auth(b""), Ok(None));
    assert_eq!(frontend::peek_auth(b"p\0\0\0\x05"), Ok(Some(Head { tag: b'p', len: 6 })));
    assert_eq!(frontend::peek_auth(b"X\0\0\0\x04"), Ok(Some(Head { tag: b'X', len: 5 })));
    let too_long = FrameError::TooLong { tag: b'p', len: 65_541, max: frontend::AUTH_LEN_MAX };
    assert_eq!(frontend::peek_auth(&framed(b'p', 65_540, b"")), Err(too_long));
    assert!(frontend::peek_auth(&framed(b'X', 5, b"")).is_err());
    // A second startup packet begins with the first byte of its length.
    for tag in *b"\0QSdF" {
        assert_eq!(frontend::peek_auth(&[tag, 0, 0, 0, 4]), Err(FrameError::UnexpectedTag { tag }));
    }
}

fn client_error(tag: u8, body: &[u8]) -> Malformed {
    match frontend::decode(tag, body) {
        Err(WireError::Client(malformed)) => malformed,
        other => panic!("{} {body:02x?}: {other:?}", char::from(tag)),
    }
}

#[test]
fn messages_of_clients_that_do_not_fill_their_frame_exactly() {
    for (tag, body, why) in [
        (b'Q', &b""[..], "no terminator"),
        (b'Q', b"select 1", "no terminator"),
        (b'Q', b"select 1\0 drop table t\0", "a second statement behind the zero byte"),
        (b'Q', b"select 1\0\0", "one terminator too many"),
        (b'Q', b"select 1\0Q\0\0\0\x0dselect 2\0", "a second message inside the first"),
        (b'P', b"", "nothing"),
        (b'P', b"s\0", "no statement"),
        (b'P', b"s\0select 1\0", "no number of types"),
        (b'P', b"s\0select 1\0\0", "half a number of types"),
        (b'P', b"s\0select 1\0\0\x01", "no type"),
        (b'P', b"s\0select 1\0\0\x01\0\0\0", "three quarters of a type"),
        (b'P', b"s\0select 1\0\xff\xff\0\0\0\x17", "a negative number, or 65535"),
        (b'P', b"s\0select 1\0\0\0x", "a byte too many"),
        (b'B', b"", "nothing"),
        (b'B', b"\0", "no statement's name"),
        (b'B', b"\0\0", "no format codes"),
        (b'B', b"\0\0\0\x01\0\0", "no parameters"),
        (b'B', b"\0\0\0\0\0\x01", "no length of the parameter"),
        (b'B', b"\0\0\0\0\0\x01\0\0\0\x05abcd\0\0", "a length past the end"),
        (b'B', b"\0\0\0\0\0\x01\x7f\xff\xff\xffabcd\0\0", "a length near 2^31"),
        (b'B', b"\0\0\0\0\0\x02\0\0\0\x01a\0\0", "one parameter fewer than announced"),
        (b'B', b"\0\0\0\0\xff\xff\0\0\0\x01a\0\0", "65534 fewer"),
        (b'B', b"\0\0\0\0\0\x01\0\0\0\x01a", "no result formats"),
        (b'B', b"\0\0\0\0\0\x01\0\0\0\x01a\0\x01", "no result format"),
        (b'B', b"\0\0\0\0\0\x01\0\0\0\x01a\0\0\0", "a byte too many"),
        (b'B', b"\0\0\xff\xff\0\0\0\0\0\0", "65535 format codes"),
        (b'D', b"", "nothing"),
        (b'D', b"S", "no name"),
        (b'D', b"Sname", "no terminator"),
        (b'D', b"Sname\0x", "a byte too many"),
        (b'C', b"Pname\0\0", "a byte too many"),
        (b'E', b"\0\0\0\0", "three quarters of a row limit"),
        (b'E', b"\0\0\0\0\0\0", "a byte too many"),
        (b'S', b"\0", "a body"),
        (b'H', b"S\0\0\0\x04", "a Sync inside"),
        (b'X', b"\0", "a body"),
        (b'c', b"\0", "a body"),
        (b'f', b"", "no terminator"),
        (b'f', b"a\0b\0", "two reasons"),
    ] {
        let error = client_error(tag, body);
        let expected = matches!(
            error,
            Malformed::Truncated { .. } | Malformed::TrailingBytes { .. } | Malformed::Unterminated { .. }
        );
        assert!(expected, "{} with {why}: {error:?}", char::from(tag));
    }
}

#[test]
fn messages_of_clients_with_impossible_values() {
    let value =
        |value| move |error: Malformed| matches!(error, Malformed::Value { value: v, .. } if v == value);
    assert!(value(-2)(client_error(b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0")), "a length below -1");
    assert!(value(i64::from(i32::MIN))(client_error(b'B', b"\0\0\0\0\0\x01\x80\0\0\0\0\0")));
    assert!(value(i64::from(b'T'))(client_error(b'D', b"Tname\0")));
    assert_eq!(
        client_error(b'B', b"\0\0\0\x02\0\0\0\0\0\x01\0\0\0\x01a\0\0"),
        Malformed::FormatCount { message: "Bind", formats: 2, values: 1 }
    );
    for tag in *b"\0AKRTZ1" {
        assert_eq!(client_error(tag, b""), Malformed::UnknownTag { tag });
    }
}

#[test]
fn formats_that_do_not_exist_are_read_and_told_of() {
    let unknown = |body: &[u8]| {
        let bind = Bind::decode(body).unwrap();
        let both = bind.param_formats.iter().chain(bind.result_formats.iter());
        (bind.param_formats.unknown(), bind.result_formats.unknown(), both.collect::<Vec<_>>())
    };
    let two = unknown(b"\0\0\0\x01\0\x02\0\0\0\x01\0\x01");
    assert_eq!(two, (Some(2), None, vec![Format::Text, Format::Binary]));
    // What the last byte alone says is not enough.
    let wide = unknown(b"\0\0\0\0\0\0\0\x02\x01\x01\xff\xff");
    assert_eq!(wide, (None, Some(257), vec![Format::Text; 2]));
    assert_eq!(unknown(b"\0\0\0\0\0\0\0\x01\xff\xff"), (None, Some(-1), vec![Format::Text]));
    let described = b"\0\x01a\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x02";
    let described = backend::RowDescription::decode(described).unwrap();
    assert_eq!(described.iter().next().unwrap().format, Format::Text);
    let wide = Bind::decode(b"\0\0\0\0\0\0\0\x01\x01\x01").unwrap();
    assert_eq!(wide.result_formats.of(3), Format::Text);
}

#[test]
fn text_that_is_not_utf_8() {
    for (tag, body, at) in [
        (b'Q', &b"select '\xff'\0"[..], 8),
        (b'Q', b"\xc0\x80\0", 0),
        (b'Q', b"select '\xed\xa0\x80'\0", 8),
        (b'Q', b"select '\xe2\x82\0", 8),
        (b'P', b"\xff\0select 1\0\0\0", 0),
        (b'P', b"\0\xff\0\0\0", 0),
        (b'B', b"\xff\0\0\0\0\0\0\0\0", 0),
        (b'B', b"\0\xff\0\0\0\0\0\0\0", 0),
        (b'D', b"S\xff\0", 0),
        (b'E', b"a\xff\0\0\0\0\0", 1),
        (b'f', b"\xff\0", 0),
    ] {
        let error = client_error(tag, body);
        assert!(matches!(error, Malformed::NotUtf8 { at: found, .. } if found == at), "{error:?}");
    }
    assert!(frontend::password(b"\xff\0").is_err());
}

#[test]
fn answers_to_sasl_that_are_malformed() {
    for body in [
        &b""[..],
        b"SCRAM-SHA-256",
        b"SCRAM-SHA-256\0",
        b"SCRAM-SHA-256\0\0\0\0",
        b"SCRAM-SHA-256\0\0\0\0\x05n,,n",
        b"SCRAM-SHA-256\0\0\0\0\x03n,,n",
        b"SCRAM-SHA-256\0\x7f\xff\xff\xffn,,n",
        b"SCRAM-SHA-256\0\xff\xff\xff\xfe",
        b"\xff\0\0\0\0\0",
    ] {
        assert!(frontend::SaslInitial::decode(body).is_err(), "{body:02x?}");
    }
    assert_eq!(frontend::SaslInitial::decode(b"X\0\xff\xff\xff\xff").unwrap().data, None);
    assert_eq!(frontend::SaslInitial::decode(b"X\0\0\0\0\0").unwrap().data, Some(&b""[..]));
}

#[test]
fn messages_of_servers_that_are_malformed() {
    for (tag, body, why) in [
        (b'Z', &b""[..], "no status"),
        (b'Z', b"X", "an unknown status"),
        (b'Z', b"II", "two"),
        (b'C', b"SELECT 1", "no terminator"),
        (b'C', b"SELECT 1\0x", "bytes left over"),
        (b'D', b"\0", "half a count"),
        (b'D', b"\0\x01", "no column"),
        (b'D', b"\0\x01\0\0\0\x02a", "a short column"),
        (b'D', b"\0\x01\xff\xff\xff\xfe", "a length below -1"),
        (b'D', b"\0\0x", "bytes left over"),
        (b'D', b"\xff\xff\xff\xff\xff\xff", "65534 columns fewer than announced"),
        (b'T', b"\0\x01a\0", "a column without its numbers"),
        (b'T', b"\0\0\0", "bytes left over"),
        (b't', b"\0\x02\0\0\0\x17", "one type fewer than announced"),
        (b'E', b"", "no list"),
        (b'E', b"SERROR", "no terminator"),
        (b'E', b"SERROR\0", "no end of the list"),
        (b'E', b"SERROR\0\0\0", "bytes left over"),
        (b'E', b"SERROR\0\0C40001\0\0", "a second list"),
        (b'N', b"SNOTICE\0M", "a field without text"),
        (b'S', b"TimeZone\0", "no value"),
        (b'S', b"a\0b\0c\0", "three texts"),
        (b'K', b"\0\0\0\x01", "no key"),
        (b'K', b"\0\0\0\x01abc", "a key of three bytes"),
        (b'K', &[0; 4 + 257], "a key of 257 bytes"),
        (b'R', b"\0\0", "half a method"),
        (b'R', b"\0\0\0\0x", "bytes left over"),
        (b'R', b"\0\0\0\x05abc", "a short salt"),
        (b'R', b"\0\0\0\x05abcde", "a long salt"),
        (b'R', b"\0\0\0\x0aSCRAM-SHA-256\0", "no end of the list"),
        (b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0x", "bytes left over"),
        (b'G', b"\x02\0\0", "an unknown format"),
        (b'H', b"\0\0\x02\0\0", "one format fewer than announced"),
        (b'A', b"\0\0\0\x01channel\0", "no payload"),
        (b'v', b"\0\x03\0\0\xff\xff\xff\xff_pq_.a\0", "4 billion options"),
        (b'v', b"\0\x03\0\0\0\0\0\0_pq_.a\0", "bytes left over"),
        (b'V', b"\0\0\0\x02a", "a short result"),
        (b'1', b"\0", "a body"),
        (b'I', b"\0", "a body"),
        (b'Q', b"", "a client's message"),
        (b'\0', b"", "an unknown message"),
    ] {
        let error = backend::decode(tag, body);
        assert!(matches!(error, Err(WireError::Server(_))), "{} with {why}: {error:?}", char::from(tag));
    }
}

#[test]
fn an_error_without_a_valid_sqlstate_counts_as_internal() {
    for body in [&b"SERROR\0MOops\0\0"[..], b"SERROR\0C\0\0", b"C4000\0\0", b"C4000x\0\0", b"\0"] {
        let fields = backend::Fields::decode(body).unwrap();
        assert_eq!(fields.code().as_str(), "XX000");
        assert_eq!(fields.to_owned().code.as_str(), "XX000");
    }
    let fields = backend::Fields::decode(b"SFEHLER\0M\xff!\0zunknown\0C40001\0\0").unwrap().to_owned();
    assert_eq!((fields.code.as_str(), &*fields.message), ("40001", "\u{fffd}!"));
    assert_eq!((&*fields.severity, &*fields.severity_localized), ("FEHLER", "FEHLER"));
}

fn startup_packet(code: u32, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], &code.to_be_bytes(), body].concat()
}

fn startup_error(buf: &[u8]) -> StartupError {
    match startup::decode(buf) {
        Err(WireError::Startup(error)) => error,
        other => panic!("{buf:02x?}: {other:?}"),
    }
}

const V3: u32 = 3 << 16;
const SSL: u32 = 80_877_103;
const GSSENC: u32 = 80_877_104;
const CANCEL: u32 = 80_877_102;

#[test]
fn first_packets_with_impossible_lengths() {
    for declared in [0, 1, 4, 7, -1, i32::MIN, i32::MAX, 10_001, 0x1603_0102] {
        let buf = [&declared.to_be_bytes()[..], &V3.to_be_bytes(), b"user\0a\0\0"].concat();
        assert_eq!(startup_error(&buf), StartupError::Length { declared, min: 8, max: 10_000 });
        assert_eq!(
            startup_error(&buf[..4]),
            StartupError::Length { declared, min: 8, max: 10_000 },
            "nothing more has to arrive"
        );
    }
    let good = startup_packet(V3, b"user\0a\0\0");
    for len in 0..good.len() {
        assert_eq!(startup::decode(&good[..len]), Ok(None));
    }
    let padding = "x".repeat(10_000 - 8 - b"user\0a\0p\0\0\0".len());
    let longest = startup_packet(V3, format!("user\0a\0p\0{padding}\0\0").as_bytes());
    assert_eq!((longest.len(), startup::decode(&longest).unwrap().unwrap().1), (10_000, 10_000));
}

#[test]
fn startup_packets_that_are_malformed() {
    for body in [
        &b""[..],
        b"user",
        b"user\0",
        b"user\0a",
        b"user\0a\0",
        b"user\0a\0database",
        b"user\0a\0\0x",
        b"user\0a\0\0database\0b\0\0",
        b"user\0a\0\0\0",
    ] {
        assert_eq!(startup_error(&startup_packet(V3, body)), StartupError::Unterminated, "{body:02x?}");
    }
    for body in [&b"\0"[..], b"user\0\0\0", b"database\0postgres\0\0"] {
        assert_eq!(startup_error(&startup_packet(V3, body)), StartupError::NoUser);
    }
    for (body, name) in [
        (&b"user\0a\0user\0postgres\0\0"[..], "user"),
        (b"user\0a\0options\0\0options\0-c x=y\0\0", "options"),
        (b"user\0a\0_pq_.x\0on\0_pq_.x\0off\0\0", "_pq_.x"),
    ] {
        let duplicate = StartupError::Duplicate { name: name.to_owned() };
        assert_eq!(startup_error(&startup_packet(V3, body)), duplicate);
    }
    assert_eq!(startup_error(&startup_packet(V3, b"user\0\xff\0\0")), StartupError::NotUtf8 { index: 1 });
    assert_eq!(
        startup_error(&startup_packet(V3, b"user\0a\0b\xff\0\0\0")),
        StartupError::NotUtf8 { index: 2 }
    );
    for (code, version) in [
        (2 << 16, (2, 0)),
        (4 << 16, (4, 0)),
        (0, (0, 0)),
        (80_877_105, (1234, 5681)),
        (u32::MAX, (65535, 65535)),
    ] {
        let (major, minor) = version;
        let error = StartupError::Version { major, minor };
        assert_eq!(startup_error(&startup_packet(code, b"user\0a\0\0")), error);
    }
}

#[test]
fn nothing_may_follow_an_encryption_request_in_the_clear() {
    for (code, request, packet) in [
        (SSL, "SSLRequest", StartupPacket::SslRequest),
        (GSSENC, "GSSENCRequest", StartupPacket::GssEncRequest),
    ] {
        let buf = startup_packet(code, b"");
        assert_eq!(startup::decode(&buf), Ok(Some((packet, 8))));
        let injected = [&buf[..], &startup_packet(V3, b"user\0a\0\0")].concat();
        assert_eq!(startup_error(&injected), StartupError::BytesAfterRequest { request, len: 16 });
        assert_eq!(
            startup_error(&[&buf[..], b"x"].concat()),
            StartupError::BytesAfterRequest { request, len: 1 }
        );
        let long = startup_packet(code, b"x");
        assert_eq!(startup_error(&long), StartupError::RequestLength { request, len: 9, expected: "8" });
    }
    assert_eq!(startup::decode_ssl_reply(b""), Ok(None));
    assert_eq!(startup::decode_ssl_reply(b"S"), Ok(Some(SslReply::Accepted)));
    assert_eq!(startup::decode_ssl_reply(b"N"), Ok(Some(SslReply::Refused)));
    for reply in [&b"E\0\0\0\x20SFATAL\0Mtrust me\0\0"[..], b"SR\0\0\0\x08\0\0\0\0", b"NE", b"G", b"\0"] {
        let error = StartupError::SslReply { first: reply[0], len: reply.len() };
        assert_eq!(startup::decode_ssl_reply(reply), Err(error.into()), "{reply:02x?}");
    }
}

#[test]
fn cancel_requests() {
    for len in [4, 5, 32, 256] {
        let key = vec![7; len];
        let buf = startup_packet(CANCEL, &[&[0, 0, 1, 0][..], &key].concat());
        let cancel = StartupPacket::Cancel { pid: 256, key: &key };
        assert_eq!(startup::decode(&buf), Ok(Some((cancel, len + 12))));
    }
    for len in [0, 3, 4, 7, 4 + 257, 9000] {
        let error = startup_error(&startup_packet(CANCEL, &vec![0; len]));
        assert!(matches!(error, StartupError::RequestLength { request: "CancelRequest", .. }), "{len}");
    }
}

fn start(code: u32, body: &[u8]) -> Start {
    match startup::decode(&startup_packet(code, body)) {
        Ok(Some((StartupPacket::Start(start), _))) => start,
        other => panic!("{other:?}"),
    }
}

#[test]
fn versions_and_extensions_are_negotiated() {
    for (minor, body, version, must_tell, key_len_max) in [
        (0, &b"user\0a\0\0"[..], VERSION_3_0, false, 4),
        (1, b"user\0a\0\0", (3, 1), false, 4),
        (2, b"user\0a\0\0", VERSION_3_2, false, 256),
        (3, b"user\0a\0\0", VERSION_3_2, true, 256),
        (9999, b"user\0a\0\0", VERSION_3_2, true, 256),
        (0, b"user\0a\0_pq_.command_compression\0on\0\0", VERSION_3_0, true, 4),
    ] {
        let negotiation = start(V3 | minor, body).negotiate();
        assert_eq!((negotiation.version, negotiation.must_tell), (version, must_tell), "3.{minor}");
        assert_eq!(negotiation.cancel_key_len_max(), key_len_max);
    }
    let start = start(V3, b"user\0a\0_pq_.x\0on\0database\0\0_pq_.y\0\0\0");
    assert_eq!((start.user(), start.database(), start.get("_pq_.x")), ("a", "a", None));
    assert_eq!(start.extensions, ["_pq_.x", "_pq_.y"]);
}

#[test]
fn settings_in_the_parameter_options() {
    let options = |text: &str| start(V3, format!("user\0a\0options\0{text}\0\0").as_bytes()).options();
    let settings = |pairs: &[(&str, &str)]| {
        Ok(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    };
    assert_eq!(options(""), settings(&[]));
    assert_eq!(
        options("  -c geqo=off  -cwork_mem=4MB\t--search-path=a,b "),
        settings(&[("geqo", "off"), ("work_mem", "4MB"), ("search_path", "a,b")])
    );
    assert_eq!(options(r"-c a=b\ c\\d\"), settings(&[("a", r"b c\d")]));
    assert_eq!(options("-c a=b=c -c d="), settings(&[("a", "b=c"), ("d", "")]));
    for (text, at) in [
        ("-c", "-c"),
        ("-c=x", "-c=x"),
        ("-c =x", "-c"),
        ("--=x", "--=x"),
        ("--", "--"),
        ("-c a", "-c"),
        ("-d 5", "-d"),
        ("-p 1234", "-p"),
        ("postgres", "postgres"),
        ("-c a=b x", "x"),
    ] {
        assert_eq!(options(text), Err(StartupError::Options { at: at.to_owned() }), "{text}");
    }
}

#[test]
fn direct_tls_is_told_from_any_packet() {
    assert!(startup::is_direct_tls(b"\x16\x03\x01"));
    assert!(!startup::is_direct_tls(b""));
    assert!(!startup::is_direct_tls(&startup_packet(SSL, b"")));
}

#[test]
fn what_cannot_be_sent_leaves_the_output_as_it_was() {
    use onecopy_wire::backend::build as reply;
    use onecopy_wire::frontend::{Target, build as send};
    let mut out = bytes::BytesMut::from(&b"before"[..]);
    let expect = |result: Result<(), WireError>, why: &str, out: &bytes::BytesMut| {
        assert!(matches!(result, Err(WireError::Build(_))), "{why}: {result:?}");
        assert_eq!(&out[..], b"before", "{why}");
    };
    let many = || (0..70_000).map(|_| None);
    let mut fails = |why: &str, build: &dyn Fn(&mut bytes::BytesMut) -> Result<(), WireError>| {
        let result = build(&mut out);
        expect(result, why, &out);
    };
    fails("statement", &|out| send::query(out, "a\0b"));
    fails("name", &|out| send::parse(out, "a\0b", "", []));
    fails("statement", &|out| send::parse(out, "", "a\0b", []));
    fails("types", &|out| send::parse(out, "", "", 0..65_536));
    fails("portal", &|out| send::bind(out, "\0", "", [], [], []));
    fails("statement's name", &|out| send::bind(out, "", "\0", [], [], []));
    fails("parameters", &|out| send::bind(out, "", "", [], many(), []));
    fails("describe", &|out| send::describe(out, Target::Portal, "\0"));
    fails("close", &|out| send::close(out, Target::Statement, "\0"));
    fails("execute", &|out| send::execute(out, "\0", 0));
    fails("password", &|out| send::password(out, "a\0"));
    fails("mechanism", &|out| send::sasl_initial_response(out, "\0", b""));
    fails("column", &|out| reply::text_row_description(out, &["a\0"]));
    fails("columns", &|out| reply::data_row(out, many()));
    fails("key", &|out| reply::backend_key_data(out, 1, &[0; 257]));
    fails("cancel key", &|out| startup::cancel_request(out, 1, &[0; 257]));
    fails("parameter", &|out| startup::startup(out, VERSION_3_0, &[("user", "a\0b")]));
    fails("empty name", &|out| startup::startup(out, VERSION_3_0, &[("", "a")]));
    fails("long packet", &|out| startup::startup(out, VERSION_3_0, &[("user", &"x".repeat(10_000))]));
    fails("drop", &|out| backend::strip_columns(b'D', b"\0\x01\0\0\0\x01a", 2, out));
    fails("drop", &|out| backend::strip_columns(b'T', b"\0\0", 1, out));
    let drop = BuildError::Columns { message: "DataRow", drop: 2, columns: 1 };
    assert_eq!(drop.to_string(), "cannot drop the last 2 columns of DataRow with 1");
}

#[test]
fn errors_say_what_and_why() {
    for (error, text) in [
        (
            WireError::from(FrameError::TooShort { tag: b'Q', declared: -1 }),
            "message 'Q' declares the length -1; the least is 4",
        ),
        (
            FrameError::TooLong { tag: 0, len: 70_000, max: 10 }.into(),
            "message 0x00 has 70000 bytes; at most 10 are accepted here",
        ),
        (
            WireError::Client(client_error(b'S', b"x")),
            "protocol violation by the client: Sync has 1 bytes after its last field",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
