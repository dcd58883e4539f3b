//! What is built is decoded as it was meant, and what can be decoded is built again as it was.

mod rebuild;

use bytes::BytesMut;
use onecopy_wire::backend::build::{self as reply, Report, Severity};
use onecopy_wire::backend::{self, Authentication, Backend, Column, ErrorFields, Status, row_count};
use onecopy_wire::frontend::{self, Frontend, Target, build as send};
use onecopy_wire::startup::{self, StartupPacket, VERSION_3_0, VERSION_3_2};
use onecopy_wire::{Format, Frame, Frames, SqlState};
use proptest::prelude::*;

/// The only frame of a buffer.
fn only(buf: &BytesMut) -> Frame<'_> {
    let mut frames = Frames::new(buf, buf.len());
    let frame = frames.next().unwrap().unwrap();
    assert_eq!(frames.consumed(), buf.len());
    frame
}

fn built(build: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    build(&mut out);
    out
}

fn from_client(frame: &BytesMut) -> Frontend<'_> {
    frontend::decode(only(frame).tag, only(frame).body).unwrap()
}

fn from_server(frame: &BytesMut) -> Backend<'_> {
    backend::decode(only(frame).tag, only(frame).body).unwrap()
}

#[test]
fn messages_of_clients() {
    let frame = built(|out| send::query(out, "select 'ü'").unwrap());
    assert_eq!(&frame[..], b"Q\0\0\0\x10select '\xc3\xbc'\0");
    assert_eq!(from_client(&frame), Frontend::Query("select 'ü'"));

    let frame = built(|out| send::parse(out, "s", "select $1", [23, 0]).unwrap());
    let Frontend::Parse(parse) = from_client(&frame) else { panic!() };
    assert_eq!((parse.name, parse.sql), ("s", "select $1"));
    assert_eq!(parse.types.iter().collect::<Vec<_>>(), [23, 0]);

    let values: [Option<&[u8]>; 3] = [Some(b"1"), None, Some(b"")];
    let frame = built(|out| {
        send::bind(out, "p", "s", [Format::Binary], values, [Format::Text, Format::Binary]).unwrap()
    });
    let Frontend::Bind(bind) = from_client(&frame) else { panic!() };
    assert_eq!((bind.portal, bind.statement, bind.params.len()), ("p", "s", 3));
    assert_eq!(bind.params.iter().collect::<Vec<_>>(), values);
    assert_eq!(
        (bind.params.get(1), bind.params.get(2), bind.params.get(3)),
        (Some(None), Some(Some(&b""[..])), None)
    );
    assert_eq!([0, 1, 2].map(|i| bind.param_formats.of(i)), [Format::Binary; 3]);
    assert_eq!([0, 1, 2].map(|i| bind.result_formats.of(i)), [Format::Text, Format::Binary, Format::Text]);

    for target in [Target::Statement, Target::Portal] {
        let named = frontend::Named { target, name: "n" };
        let frame = built(|out| send::describe(out, target, "n").unwrap());
        assert_eq!(from_client(&frame), Frontend::Describe(named));
        let frame = built(|out| send::close(out, target, "n").unwrap());
        assert_eq!(from_client(&frame), Frontend::Close(named));
    }
    for (asked, max_rows) in [(0, 0), (7, 7), (i32::MAX as u32, i32::MAX as u32), (1 << 31, 0)] {
        let frame = built(|out| send::execute(out, "p", asked).unwrap());
        assert_eq!(from_client(&frame), Frontend::Execute(frontend::Execute { portal: "p", max_rows }));
    }
    let negative = frontend::decode(b'E', b"\0\xff\xff\xff\xff");
    assert_eq!(negative, Ok(Frontend::Execute(frontend::Execute { portal: "", max_rows: 0 })), "no limit");

    assert_eq!(from_client(&built(send::sync)), Frontend::Sync);
    assert_eq!(from_client(&built(send::flush)), Frontend::Flush);
    assert_eq!(from_client(&built(send::terminate)), Frontend::Terminate);
    assert_eq!(from_client(&built(send::copy_done)), Frontend::CopyDone);
    assert_eq!(
        from_client(&built(|out| send::copy_data(out, b"1\t2\n").unwrap())),
        Frontend::CopyData(b"1\t2\n")
    );
    assert_eq!(from_client(&built(|out| send::copy_fail(out, "why\0not"))), Frontend::CopyFail("why"));
    assert_eq!(frontend::decode(b'F', b"anything"), Ok(Frontend::FunctionCall(b"anything")));

    let frame = built(|out| send::password(out, "geheim").unwrap());
    assert_eq!(frontend::password(only(&frame).body), Ok("geheim"));
    assert_eq!(format!("{:?}", from_client(&frame)), "Password(7 secret bytes)");
    let frame = built(|out| send::sasl_initial_response(out, "SCRAM-SHA-256", b"n,,").unwrap());
    let initial = frontend::SaslInitial::decode(only(&frame).body).unwrap();
    assert_eq!((initial.mechanism, initial.data), ("SCRAM-SHA-256", Some(&b"n,,"[..])));
}

#[test]
fn first_packets() {
    for version in [VERSION_3_0, VERSION_3_2] {
        let params = [("user", "u"), ("database", "d"), ("application_name", "")];
        let packet = built(|out| startup::startup(out, version, &params).unwrap());
        let (StartupPacket::Start(start), len) = startup::decode(&packet).unwrap().unwrap() else { panic!() };
        assert_eq!((len, start.version, start.user(), start.database()), (packet.len(), version, "u", "d"));
        assert_eq!(start.get("application_name"), Some(""));
    }
    let packet = built(startup::ssl_request);
    assert_eq!(startup::decode(&packet), Ok(Some((StartupPacket::SslRequest, 8))));
    for len in [4, 256] {
        let packet = built(|out| startup::cancel_request(out, 1 << 31, &vec![9; len]).unwrap());
        let cancel = StartupPacket::Cancel { pid: 1 << 31, key: &vec![9; len] };
        assert_eq!(startup::decode(&packet), Ok(Some((cancel, 12 + len))));
    }
}

#[test]
fn messages_of_servers_without_contents() {
    for (build, message) in [
        (reply::parse_complete as fn(&mut BytesMut), Backend::ParseComplete),
        (reply::bind_complete, Backend::BindComplete),
        (reply::close_complete, Backend::CloseComplete),
        (reply::no_data, Backend::NoData),
        (reply::empty_query_response, Backend::EmptyQuery),
        (reply::portal_suspended, Backend::PortalSuspended),
        (reply::copy_done, Backend::CopyDone),
        (reply::authentication_ok, Backend::Authentication(Authentication::Ok)),
        (
            reply::authentication_cleartext_password,
            Backend::Authentication(Authentication::CleartextPassword),
        ),
    ] {
        assert_eq!(from_server(&built(build)), message);
    }
    for status in [Status::Idle, Status::InTransaction, Status::Failed] {
        let frame = built(|out| reply::ready_for_query(out, status));
        assert_eq!(from_server(&frame), Backend::ReadyForQuery(status));
    }
}

#[test]
fn authentication_requests() {
    let frame = built(|out| reply::authentication_sasl(out, &["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]));
    let Backend::Authentication(Authentication::Sasl(mechanisms)) = from_server(&frame) else { panic!() };
    assert_eq!(mechanisms.iter().collect::<Vec<_>>(), ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
    assert!(mechanisms.contains("SCRAM-SHA-256") && !mechanisms.contains("SCRAM-SHA"));

    let frame = built(|out| reply::authentication_sasl_continue(out, b"r=").unwrap());
    assert_eq!(from_server(&frame), Backend::Authentication(Authentication::SaslContinue(b"r=")));
    let frame = built(|out| reply::authentication_sasl_final(out, b"v=").unwrap());
    assert_eq!(from_server(&frame), Backend::Authentication(Authentication::SaslFinal(b"v=")));
    assert_eq!(Authentication::decode(b"\0\0\0\x05salt"), Ok(Authentication::Md5Password { salt: *b"salt" }));
    for (method, body) in [(7, &b"\0\0\0\x07"[..]), (8, b"\0\0\0\x08token"), (9, b"\0\0\0\x09")] {
        assert_eq!(Authentication::decode(body), Ok(Authentication::Unsupported { method }));
    }
}

#[test]
fn what_a_session_begins_with() {
    let frame = built(|out| reply::parameter_status(out, "server_version", "15.6"));
    let Backend::ParameterStatus(status) = from_server(&frame) else { panic!() };
    assert_eq!((status.name, &*status.value), ("server_version", "15.6"));

    let frame = built(|out| reply::backend_key_data(out, 77, &[1; 32]).unwrap());
    let Backend::BackendKeyData(key) = from_server(&frame) else { panic!() };
    assert_eq!((key.pid, key.key), (77, &[1; 32][..]));
    assert_eq!(format!("{key:?}"), "BackendKey { pid: 77, .. }", "the key is a secret");

    let frame = built(|out| reply::negotiate_protocol_version(out, VERSION_3_2, &["_pq_.a", "_pq_.b"]));
    let Backend::NegotiateProtocolVersion(answer) = from_server(&frame) else { panic!() };
    assert_eq!(answer.version, VERSION_3_2);
    assert_eq!(answer.unknown().collect::<Vec<_>>(), ["_pq_.a", "_pq_.b"]);
}

#[test]
fn errors_and_notices() {
    let report = Report {
        detail: Some("detail"),
        hint: Some("hint\0and more"),
        position: Some(8),
        ..Report::new(Severity::Fatal, SqlState::TOO_MANY_CONNECTIONS, "message")
    };
    let expected = ErrorFields {
        severity: "FATAL".to_owned(),
        severity_localized: "FATAL".to_owned(),
        code: SqlState::TOO_MANY_CONNECTIONS,
        message: "message".to_owned(),
        detail: Some("detail".to_owned()),
        hint: Some("hint".to_owned()),
        position: Some("8".to_owned()),
        ..ErrorFields::default()
    };
    let frame = built(|out| reply::error(out, &report));
    let Backend::Error(fields) = from_server(&frame) else { panic!() };
    assert_eq!(fields.to_owned(), expected);
    assert_eq!(fields.get(b'M'), Some(&b"message"[..]));
    let again = built(|out| expected.put_error(out));
    assert_eq!(again, frame);

    let frame = built(|out| reply::notice(out, &Report { severity: Severity::Notice, ..report }));
    let Backend::Notice(fields) = from_server(&frame) else { panic!() };
    assert_eq!(fields.get(b'V'), Some(&b"NOTICE"[..]));
    let again = built(|out| fields.to_owned().put_notice(out));
    assert_eq!(again, frame);
}

#[test]
fn every_field_of_an_error_survives() {
    let mut body = Vec::new();
    for letter in b"SVCMDHPpqWstcdnFLR" {
        let text =
            if *letter == b'C' { "23505".to_owned() } else { format!("text of {}", char::from(*letter)) };
        body.extend_from_slice(&[*letter]);
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let fields = backend::Fields::decode(&body).unwrap();
    let frame = built(|out| fields.to_owned().put_error(out));
    assert_eq!(only(&frame).body, body);
}

#[test]
fn a_giant_message_is_cut_between_characters() {
    let text = "x".to_owned() + &"ü".repeat(40_000);
    let frame = built(|out| reply::error(out, &Report::new(Severity::Error, SqlState::DISK_FULL, &text)));
    let Backend::Error(fields) = from_server(&frame) else { panic!() };
    let message = fields.to_owned().message;
    assert_eq!((message.len(), text.starts_with(&message)), (64 * 1024 - 1, true));
}

#[test]
fn object_ids_in_descriptions_are_replaced_in_their_places() {
    let column = |name, table_oid, type_oid| Column { table_oid, type_oid, ..Column::text(name) };
    let mut frame = built(|out| reply::row_description(out, [column("a", 1, 2), column("", 0, 4)]).unwrap());
    let mut seen = Vec::new();
    backend::replace_oids(b'T', &mut frame[5..], |of, oid| {
        seen.push((of, oid));
        oid + 70_000
    })
    .unwrap();
    let (table, a_type) = (backend::OidOf::Table, backend::OidOf::Type);
    assert_eq!(seen, [(table, 1), (a_type, 2), (table, 0), (a_type, 4)]);
    let Backend::RowDescription(columns) = from_server(&frame) else { panic!() };
    let expected = [column("a", 70_001, 70_002), column("", 70_000, 70_004)];
    assert_eq!(columns.iter().collect::<Vec<_>>(), expected);

    let mut frame = built(|out| reply::parameter_description(out, [23, 20_000]).unwrap());
    backend::replace_oids(b't', &mut frame[5..], |_, oid| oid + 1).unwrap();
    let Backend::ParameterDescription(types) = from_server(&frame) else { panic!() };
    assert_eq!(types.iter().collect::<Vec<_>>(), [24, 20_001]);

    for (tag, len) in [(b'T', 1), (b'T', 20), (b't', 0), (b't', 7)] {
        let mut frame = built(|out| match tag {
            b'T' => reply::row_description(out, [column("a", 1, 2)]).unwrap(),
            _ => reply::parameter_description(out, [23, 25]).unwrap(),
        });
        assert!(backend::replace_oids(tag, &mut frame[5..5 + len], |_, oid| oid).is_err(), "{tag} {len}");
    }
}

#[test]
fn rows_and_their_descriptions() {
    let frame = built(|out| reply::text_row_description(out, &["a", "ü"]).unwrap());
    let Backend::RowDescription(columns) = from_server(&frame) else { panic!() };
    assert_eq!(columns.iter().collect::<Vec<_>>(), [Column::text("a"), Column::text("ü")]);
    assert_eq!((columns.len(), columns.is_empty()), (2, false));

    let frame = built(|out| reply::text_row(out, &["1", ""]).unwrap());
    let Backend::DataRow(row) = from_server(&frame) else { panic!() };
    assert_eq!(row.iter().collect::<Vec<_>>(), [Some(&b"1"[..]), Some(b"")]);

    let frame = built(|out| reply::parameter_description(out, [23, 25]).unwrap());
    let Backend::ParameterDescription(types) = from_server(&frame) else { panic!() };
    assert_eq!(types.iter().collect::<Vec<_>>(), [23, 25]);
}

#[test]
fn the_rest() {
    for format in [Format::Text, Format::Binary] {
        let frame = built(|out| reply::copy_in_response(out, format, 2));
        let Backend::CopyIn(copy) = from_server(&frame) else { panic!() };
        assert_eq!((copy.overall, copy.columns.iter().collect::<Vec<_>>()), (format, vec![format; 2]));
        let frame = built(|out| reply::copy_out_response(out, format, 0));
        let Backend::CopyOut(copy) = from_server(&frame) else { panic!() };
        assert_eq!((copy.overall, copy.columns.len()), (format, 0));
    }
    assert_eq!(from_server(&built(|out| reply::copy_data(out, b"1\n").unwrap())), Backend::CopyData(b"1\n"));
    let frame = built(|out| reply::notification(out, 7, "channel", "payload"));
    let Backend::Notification(notification) = from_server(&frame) else { panic!() };
    assert_eq!((notification.pid, &*notification.channel, &*notification.payload), (7, "channel", "payload"));
}

#[test]
fn rows_counted_by_command_tags() {
    for (tag, count) in [
        ("SELECT 0", Some(0)),
        ("INSERT 0 3", Some(3)),
        ("UPDATE 18446744073709551615", Some(u64::MAX)),
        ("COPY 5", Some(5)),
        ("MERGE 2", Some(2)),
        ("BEGIN", None),
        ("CREATE TABLE", None),
        ("", None),
        ("UPDATE ", None),
        ("UPDATE +1", None),
        ("UPDATE -1", None),
        ("UPDATE 18446744073709551616", None),
    ] {
        let frame = built(|out| reply::command_complete(out, tag));
        assert_eq!(from_server(&frame), Backend::CommandComplete(tag));
        assert_eq!(row_count(tag), count, "{tag}");
    }
}

fn column() -> impl Strategy<Value = (Vec<u8>, u32, i16, u32, i16, i32, bool)> {
    let name = prop::collection::vec(1..=255_u8, 0..10);
    (name, any::<u32>(), any::<i16>(), any::<u32>(), any::<i16>(), any::<i32>(), any::<bool>())
}

/// Bodies that come near to valid messages: small counts and lengths, letters, zero bytes.
fn almost_a_body() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(vec![0]),
        Just(vec![0, 1]),
        Just(vec![0, 0, 0, 1]),
        Just(vec![0xff; 4]),
        prop::collection::vec(any::<u8>(), 0..6),
        "[a-zSPü]{0,4}\0".prop_map(String::into_bytes),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// A description of rows in which formats that there are not are text: that is what they count as.
fn with_known_formats(mut body: Vec<u8>) -> Vec<u8> {
    let mut at = 2;
    while at < body.len() {
        let name_len = body[at..].iter().position(|byte| *byte == 0).unwrap();
        at += name_len + 1 + 18;
        let format = &mut body[at - 2..at];
        if format != [0, 1] {
            format.fill(0);
        }
    }
    body
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever can be decoded is built again byte for byte, so nothing in it was overlooked.
    #[test]
    fn no_byte_of_a_clients_message_is_overlooked(
        tag in prop::sample::select(&b"QPBDECHSdcfpX"[..]), body in almost_a_body(),
    ) {
        if let Ok(message) = frontend::decode(tag, &body) {
            let mut out = BytesMut::new();
            prop_assert!(rebuild::client(&message, &mut out).unwrap());
            let negative_limit = tag == b'E' && body[body.len() - 4] & 0x80 != 0;
            prop_assert!(only(&out).body == body || negative_limit);
        }
    }

    #[test]
    fn no_byte_of_a_servers_message_is_overlooked(
        tag in prop::sample::select(&b"RK23CdcGHDIEVvnNAtS1sZT"[..]), body in almost_a_body(),
    ) {
        if let Ok(message) = backend::decode(tag, &body) {
            let mut out = BytesMut::new();
            if rebuild::server(&message, &mut out).unwrap() {
                let body = if tag == b'T' { with_known_formats(body) } else { body };
                prop_assert_eq!(only(&out).body, body);
            }
        }
    }

    #[test]
    fn columns_are_stripped_from_the_end(
        columns in prop::collection::vec(column(), 0..6),
        row in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..10)), 0..6),
        keep in 0..6_usize,
    ) {
        let format = |binary| if binary { Format::Binary } else { Format::Text };
        let columns: Vec<_> = columns
            .iter()
            .map(|&(ref name, table_oid, attnum, type_oid, type_len, typmod, binary)| Column {
                name, table_oid, attnum, type_oid, type_len, typmod, format: format(binary),
            })
            .collect();
        let whole = built(|out| reply::row_description(out, columns.iter().copied()).unwrap());
        let mut out = BytesMut::new();
        let drop = columns.len().saturating_sub(keep);
        backend::strip_columns(b'T', only(&whole).body, drop, &mut out).unwrap();
        let Backend::RowDescription(left) = from_server(&out) else { panic!() };
        prop_assert_eq!(left.iter().collect::<Vec<_>>(), &columns[..columns.len() - drop]);

        let row: Vec<Option<&[u8]>> = row.iter().map(|value| value.as_deref()).collect();
        let whole = built(|out| reply::data_row(out, row.iter().copied()).unwrap());
        let mut out = BytesMut::new();
        let drop = row.len().saturating_sub(keep);
        backend::strip_columns(b'D', only(&whole).body, drop, &mut out).unwrap();
        let Backend::DataRow(left) = from_server(&out) else { panic!() };
        prop_assert_eq!(left.iter().collect::<Vec<_>>(), rebuild::first_values(&backend::data_row(only(&whole).body).unwrap(), row.len() - drop));
    }

    /// Random bytes never panic, in whatever they are taken for.
    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), tag in any::<u8>()) {
        let _ = startup::decode(&bytes);
        let _ = frontend::decode(tag, &bytes);
        let _ = frontend::SaslInitial::decode(&bytes);
        let _ = backend::decode(tag, &bytes);
        let _ = Frames::new(&bytes, 1000).count();
    }
}
