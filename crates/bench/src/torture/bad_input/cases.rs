//! What bad clients do, and what a server may answer.

use super::raw::{
    Door, End, PROTOCOL_3, Raw, Seen, bind, execute, flush, lying, message, parse, query, startup, sync,
    untagged,
};

/// One bad client.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) act: fn(&Door) -> Outcome,
    pub(super) expect: Expect,
}

/// What became of it; an error is a failure of the case itself.
pub(super) type Outcome = Result<Acted, String>;

pub(super) enum Acted {
    /// What the server said last.
    Saw(Seen),
    /// The client is gone, in the state that the case names.
    Vanished,
    /// The server cannot be attacked in this way.
    NotApplicable(&'static str),
}

/// What is right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// An error, or the connection closed, or both; not silence.
    Refused,
    /// An error with one of these SQLSTATEs, and then the next statement is awaited.
    Error(&'static [&'static str]),
    /// An error with one of these SQLSTATEs, and then the connection is closed.
    Fatal(&'static [&'static str]),
    /// No harm done: the next statement is awaited, with or without an error before.
    Ready,
    /// The connection is closed, or the server waits for the rest.
    ClosedOrWaiting,
    /// Nobody is left to be answered, and nothing was done.
    Nothing,
    /// Nobody is left to be answered; the row may have been updated once, since all that it takes was sent.
    PerhapsDone,
}

impl Expect {
    /// Why what was seen is wrong.
    pub(super) fn judge(self, seen: &Seen) -> Result<(), String> {
        let code = seen.codes.first().map_or("", String::as_str);
        let right = match self {
            Expect::Refused => {
                seen.end == End::Closed || (!seen.codes.is_empty() && seen.end != End::Garbage)
            }
            Expect::Error(codes) => codes.contains(&code) && seen.end == End::Ready,
            Expect::Fatal(codes) => codes.contains(&code) && seen.end == End::Closed,
            Expect::Ready => seen.end == End::Ready,
            Expect::ClosedOrWaiting => matches!(seen.end, End::Closed | End::Silent | End::AsksPassword),
            Expect::Nothing | Expect::PerhapsDone => true,
        };
        if right { Ok(()) } else { Err(format!("{self:?} expected, got {seen:?}")) }
    }
}

/// All of them.
pub(super) const CASES: &[Case] = &[
    // Before the session begins.
    Case { name: "length of startup 0", act: |d| first(d, &[0; 8]), expect: Expect::Refused },
    Case { name: "length of startup 7", act: |d| first(d, &[0, 0, 0, 7, 0, 3, 0]), expect: Expect::Refused },
    Case {
        name: "length of startup 2 GB",
        act: |d| first(d, &[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0]),
        expect: Expect::Refused,
    },
    Case { name: "length of startup negative", act: |d| first(d, &[0xff; 8]), expect: Expect::Refused },
    Case { name: "startup of 1 MB", act: startup_of_a_megabyte, expect: Expect::Refused },
    Case { name: "startup without end", act: startup_without_end, expect: Expect::Refused },
    Case { name: "startup with a name without a value", act: startup_odd, expect: Expect::Refused },
    Case {
        name: "startup without a user",
        act: |d| first(d, &startup(PROTOCOL_3, &[])),
        expect: Expect::Fatal(&["28000", "08P01"]),
    },
    Case { name: "protocol 1.0", act: |d| old_protocol(d, 1), expect: Expect::Refused },
    Case { name: "protocol 2.0", act: |d| old_protocol(d, 2), expect: Expect::Refused },
    Case {
        name: "protocol 4.0",
        act: |d| first(d, &startup(4 << 16, &[("user", "u")])),
        expect: Expect::Refused,
    },
    Case {
        name: "protocol 3.999 with an option that nobody knows",
        act: newer_protocol,
        expect: Expect::Ready,
    },
    Case { name: "HTTP", act: |d| first(d, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), expect: Expect::Refused },
    Case { name: "TLS without asking first", act: tls_hello, expect: Expect::Refused },
    Case { name: "request for GSS encryption", act: gss, expect: Expect::Ready },
    Case { name: "request for TLS, then garbage", act: tls_then_garbage, expect: Expect::Refused },
    Case { name: "request for TLS again and again", act: tls_again, expect: Expect::Refused },
    Case { name: "cancel with a wrong key", act: wrong_cancel, expect: Expect::ClosedOrWaiting },
    Case {
        name: "cancel with no key",
        act: |d| first(d, &untagged(&80_877_102_u32.to_be_bytes())),
        expect: Expect::ClosedOrWaiting,
    },
    Case { name: "unknown database", act: unknown_database, expect: Expect::Fatal(&["3D000"]) },
    Case { name: "unknown user", act: unknown_user, expect: Expect::Fatal(&["28P01", "28000"]) },
    Case { name: "wrong password", act: wrong_password, expect: Expect::Fatal(&["28P01", "28000"]) },
    Case { name: "empty password", act: empty_password, expect: Expect::Fatal(&["28P01", "28000"]) },
    Case { name: "query instead of a password", act: query_instead_of_password, expect: Expect::Refused },
    Case { name: "broken SCRAM message", act: broken_scram, expect: Expect::Refused },
    Case { name: "vanish before a word", act: |d| vanish_after(d, &[]), expect: Expect::Nothing },
    Case {
        name: "vanish in the length of startup",
        act: |d| vanish_after(d, &[0, 0]),
        expect: Expect::Nothing,
    },
    Case { name: "vanish in startup", act: |d| vanish_after(d, &d.startup()[..12]), expect: Expect::Nothing },
    Case { name: "vanish after startup", act: |d| vanish_after(d, &d.startup()), expect: Expect::Nothing },
    Case {
        name: "vanish after a request for TLS",
        act: |d| vanish_after(d, &tls_request()),
        expect: Expect::Nothing,
    },
    Case { name: "vanish when asked for a password", act: vanish_when_asked, expect: Expect::Nothing },
    // Messages that are none.
    Case {
        name: "message that nobody knows",
        act: |d| send(d, &message(b'z', b"hello")),
        expect: Expect::Refused,
    },
    Case { name: "message of a server", act: |d| send(d, &message(b'Z', b"I")), expect: Expect::Refused },
    Case {
        name: "password out of turn",
        act: |d| send(d, &message(b'p', b"secret\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "length of message 0",
        act: |d| send(d, &lying(b'Q', 0, b"SELECT 1\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "length of message 3",
        act: |d| send(d, &lying(b'Q', 3, b"SELECT 1\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "length of message negative",
        act: |d| send(d, &lying(b'Q', u32::MAX, b"SELECT 1\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "length of message 2 GB",
        act: |d| send(d, &lying(b'Q', 0x7fff_ffff, b"SELECT 1\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "length of Sync 1 GB",
        act: |d| send(d, &lying(b'S', 0x4000_0000, b"")),
        expect: Expect::Refused,
    },
    Case {
        name: "query without an end",
        act: |d| send(d, &message(b'Q', b"SELECT 1")),
        expect: Expect::Refused,
    },
    Case {
        name: "query with more after its end",
        act: |d| send(d, &message(b'Q', b"SELECT 1\0SELECT 2\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "query with bytes that are not UTF-8",
        act: |d| send(d, &message(b'Q', b"SELECT '\xff\xfe'\0")),
        expect: Expect::Error(&["22021"]),
    },
    Case { name: "empty Parse", act: |d| send_sync(d, &message(b'P', b"")), expect: Expect::Refused },
    Case {
        name: "Parse without an end",
        act: |d| send_sync(d, &message(b'P', b"s\0SELECT 1")),
        expect: Expect::Refused,
    },
    Case {
        name: "Parse with more types than there are",
        act: |d| send_sync(d, &message(b'P', b"s\0SELECT 1\0\xff\xff\0\0")),
        expect: Expect::Refused,
    },
    Case { name: "empty Bind", act: |d| send_sync(d, &message(b'B', b"")), expect: Expect::Refused },
    Case { name: "Bind with a parameter of 2 GB", act: bind_lying, expect: Expect::Refused },
    Case { name: "Bind with formats that nobody knows", act: bind_formats, expect: Expect::Refused },
    Case {
        name: "Describe of what is neither",
        act: |d| send_sync(d, &message(b'D', b"X\0")),
        expect: Expect::Refused,
    },
    Case {
        name: "Close of what is neither",
        act: |d| send_sync(d, &message(b'C', b"X\0")),
        expect: Expect::Refused,
    },
    Case { name: "empty Execute", act: |d| send_sync(d, &message(b'E', b"")), expect: Expect::Refused },
    Case {
        name: "function call that is none",
        act: |d| send(d, &message(b'F', b"\0")),
        expect: Expect::Refused,
    },
    // Messages at the wrong time.
    Case { name: "data of a COPY that is none", act: stray_copy, expect: Expect::Ready },
    Case {
        name: "Bind to an unknown statement",
        act: |d| send_sync(d, &bind("", "nobody", &[])),
        expect: Expect::Error(&["26000"]),
    },
    Case {
        name: "Execute of an unknown portal",
        act: |d| send_sync(d, &execute("nobody", 0)),
        expect: Expect::Error(&["34000"]),
    },
    Case {
        name: "Describe of an unknown statement",
        act: |d| send_sync(d, &message(b'D', b"Snobody\0")),
        expect: Expect::Error(&["26000"]),
    },
    Case {
        name: "Describe of an unknown portal",
        act: |d| send_sync(d, &message(b'D', b"Pnobody\0")),
        expect: Expect::Error(&["34000"]),
    },
    Case { name: "Bind with too few parameters", act: bind_too_few, expect: Expect::Error(&["08P01"]) },
    Case { name: "prepared twice", act: parse_twice, expect: Expect::Error(&["42P05"]) },
    Case { name: "error in a pipeline", act: error_in_a_pipeline, expect: Expect::Error(&["42601"]) },
    Case { name: "a thousand Syncs", act: many_syncs, expect: Expect::Ready },
    Case { name: "a thousand Flushes", act: many_flushes, expect: Expect::Ready },
    Case {
        name: "simple query in the middle of an extended one",
        act: query_in_extended,
        expect: Expect::Ready,
    },
    Case {
        name: "query after Terminate",
        act: |d| send(d, &[message(b'X', b""), query("SELECT 1")].concat()),
        expect: Expect::Refused,
    },
    // Statements.
    Case {
        name: "SQL that does not parse",
        act: |d| send(d, &query("SELEC 1")),
        expect: Expect::Error(&["42601"]),
    },
    Case {
        name: "SQL that does not parse, extended",
        act: |d| send_sync(d, &parse("", "SELECT FROM WHERE )")),
        expect: Expect::Error(&["42601"]),
    },
    Case {
        name: "string without an end",
        act: |d| send(d, &query("SELECT 'abc")),
        expect: Expect::Error(&["42601"]),
    },
    Case {
        name: "comment without an end",
        act: |d| send(d, &query("SELECT 1 /* abc")),
        expect: Expect::Error(&["42601"]),
    },
    Case { name: "nothing", act: |d| send(d, &query("")), expect: Expect::Ready },
    Case { name: "nothing but semicolons", act: |d| send(d, &query(";;;")), expect: Expect::Ready },
    Case {
        name: "unknown table",
        act: |d| send(d, &query("SELECT * FROM no_such_table")),
        expect: Expect::Error(&["42P01"]),
    },
    Case {
        name: "division by zero",
        act: |d| send(d, &query("SELECT 1 / 0")),
        expect: Expect::Error(&["22012"]),
    },
    Case {
        name: "error in the middle of a string of statements",
        act: error_in_a_string,
        expect: Expect::Error(&["22012"]),
    },
    Case { name: "20,000 parentheses", act: parentheses, expect: Expect::Ready },
    Case { name: "20,000 operators", act: operators, expect: Expect::Ready },
    Case {
        name: "5,000 statements in one string",
        act: |d| send(d, &query(&"SELECT 1;".repeat(5_000))),
        expect: Expect::Ready,
    },
    Case {
        name: "statement of 1 MB",
        act: |d| send(d, &query(&format!("SELECT length('{}')", "x".repeat(1 << 20)))),
        expect: Expect::Ready,
    },
    Case { name: "statement larger than the limit", act: too_large, expect: Expect::Refused },
    Case {
        name: "prepared statement larger than the limit",
        act: too_large_extended,
        expect: Expect::Refused,
    },
    // Vanishing.
    Case {
        name: "vanish in a message's length",
        act: |d| enter_and_vanish(d, &[], &[b'Q', 0, 0]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a query message",
        act: |d| enter_and_vanish(d, &[], &query(UPDATE)[..20]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish while a query runs",
        act: |d| enter_and_vanish(d, &[], &query("SELECT pg_sleep(1)")),
        expect: Expect::Nothing,
    },
    Case { name: "vanish while an update runs", act: vanish_in_update, expect: Expect::PerhapsDone },
    Case {
        name: "vanish while a commit runs",
        act: |d| enter_and_vanish(d, &["BEGIN", UPDATE], &query("COMMIT")),
        expect: Expect::PerhapsDone,
    },
    Case {
        name: "vanish in a transaction",
        act: |d| enter_and_vanish(d, &["BEGIN"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a transaction that holds rows",
        act: |d| enter_and_vanish(d, &["BEGIN", UPDATE], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a transaction that has locked rows",
        act: |d| enter_and_vanish(d, &["BEGIN", "SELECT * FROM bad_row FOR UPDATE"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a transaction that has locked the table",
        act: |d| enter_and_vanish(d, &["BEGIN", "LOCK TABLE bad_row"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a transaction that failed",
        act: |d| enter_and_vanish(d, &["BEGIN", UPDATE, "SELECT 1 / 0"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a savepoint",
        act: |d| enter_and_vanish(d, &["BEGIN", "SAVEPOINT s", UPDATE], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in a transaction that reads",
        act: |d| {
            enter_and_vanish(d, &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM bad_row"], &[])
        },
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish in the next statement of a transaction",
        act: |d| enter_and_vanish(d, &["BEGIN", UPDATE], &query("SELECT pg_sleep(1)")),
        expect: Expect::Nothing,
    },
    Case { name: "vanish while waiting for a row", act: vanish_while_waiting, expect: Expect::Nothing },
    Case { name: "vanish in COPY from the client", act: vanish_in_copy_in, expect: Expect::Nothing },
    Case {
        name: "vanish in a row of COPY from the client",
        act: vanish_in_copy_row,
        expect: Expect::Nothing,
    },
    Case { name: "vanish in COPY to the client", act: vanish_in_copy_out, expect: Expect::Nothing },
    Case { name: "vanish with unread results", act: vanish_unread, expect: Expect::Nothing },
    Case { name: "vanish in Bind", act: vanish_in_bind, expect: Expect::Nothing },
    Case { name: "vanish before Sync", act: vanish_before_sync, expect: Expect::Nothing },
    Case { name: "vanish with a portal half read", act: vanish_with_a_portal, expect: Expect::Nothing },
    Case {
        name: "vanish with a cursor",
        act: |d| {
            enter_and_vanish(
                d,
                &["BEGIN", "DECLARE c CURSOR FOR SELECT * FROM bad_row", "FETCH 1 FROM c"],
                &[],
            )
        },
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish with an advisory lock",
        act: |d| enter_and_vanish(d, &["SELECT pg_advisory_lock(4711)"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish with a temporary table",
        act: |d| enter_and_vanish(d, &["CREATE TEMPORARY TABLE bad_temp (id int)"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish with a setting",
        act: |d| enter_and_vanish(d, &["SET statement_timeout = '1ms'"], &[]),
        expect: Expect::Nothing,
    },
    Case {
        name: "vanish when listening",
        act: |d| enter_and_vanish(d, &["LISTEN bad_channel"], &[]),
        expect: Expect::Nothing,
    },
];

/// The update that no vanished client may have made, unless it was answered.
const UPDATE: &str = "UPDATE bad_row SET n = n + 1 WHERE id = 1";

fn io_failed(error: std::io::Error) -> String {
    error.to_string()
}

/// Sends something as the first words on a connection, and looks.
fn first(door: &Door, bytes: &[u8]) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    // The server may close before all is sent; then that is what is seen.
    let _ = raw.send(bytes);
    Ok(Acted::Saw(raw.until_over(door.patience)))
}

/// Sends something on a session, and looks.
fn send(door: &Door, bytes: &[u8]) -> Outcome {
    let mut raw = door.enter()?;
    let _ = raw.send(bytes);
    Ok(Acted::Saw(raw.until_over(door.patience)))
}

/// The same with a Sync after it.
fn send_sync(door: &Door, bytes: &[u8]) -> Outcome {
    send(door, &[bytes, &sync()].concat())
}

fn vanish_after(door: &Door, bytes: &[u8]) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(bytes).map_err(io_failed)?;
    raw.vanish();
    Ok(Acted::Vanished)
}

/// Runs statements, sends more without waiting for an answer, and is gone.
fn enter_and_vanish(door: &Door, statements: &[&str], more: &[u8]) -> Outcome {
    let mut raw = door.enter()?;
    for statement in statements {
        let seen = raw.ask(statement)?;
        if seen.end != End::Ready {
            return Err(format!("{statement}: {seen:?}"));
        }
        // Some statements are meant to fail; those that a server may not know leave nothing to vanish from.
        if seen.codes.iter().any(|code| code == "0A000") {
            return Ok(Acted::NotApplicable("the statement is refused with 0A000"));
        }
    }
    if !more.is_empty() {
        raw.send(more).map_err(io_failed)?;
        // Long enough for the statement to have begun.
        std::thread::sleep(door.pause / 2);
    }
    raw.vanish();
    Ok(Acted::Vanished)
}

fn startup_of_a_megabyte(door: &Door) -> Outcome {
    let value = "x".repeat(1 << 20);
    first(
        door,
        &startup(PROTOCOL_3, &[("user", &door.user), ("database", &door.database), ("options", &value)]),
    )
}

fn startup_without_end(door: &Door) -> Outcome {
    let body = [&PROTOCOL_3.to_be_bytes()[..], b"user\0", door.user.as_bytes()].concat();
    first(door, &untagged(&body))
}

fn startup_odd(door: &Door) -> Outcome {
    let body = [&PROTOCOL_3.to_be_bytes()[..], b"user\0", door.user.as_bytes(), b"\0database\0"].concat();
    first(door, &untagged(&body))
}

/// The error of an old protocol has an old form.
fn old_protocol(door: &Door, major: u32) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(&startup(major << 16, &[("user", &door.user)])).map_err(io_failed)?;
    Ok(Acted::Saw(closed_if_not_messages(raw.until_over(door.patience))))
}

fn newer_protocol(door: &Door) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    let parameters = [("user", door.user.as_str()), ("database", &door.database), ("_pq_.nobody_knows", "1")];
    raw.send(&startup(PROTOCOL_3 + 999, &parameters)).map_err(io_failed)?;
    let password = door.password.clone().unwrap_or_default();
    Ok(Acted::Saw(raw.authenticate(&door.user, &password).map_err(io_failed)?))
}

fn tls_hello(door: &Door) -> Outcome {
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    first(door, &hello)
}

fn tls_request() -> Vec<u8> {
    untagged(&80_877_103_u32.to_be_bytes())
}

fn gss(door: &Door) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(&untagged(&80_877_104_u32.to_be_bytes())).map_err(io_failed)?;
    if raw.byte().map_err(io_failed)? != b'N' {
        return Ok(Acted::NotApplicable("the server offers GSS encryption"));
    }
    raw.send(&door.startup()).map_err(io_failed)?;
    let password = door.password.clone().unwrap_or_default();
    Ok(Acted::Saw(raw.authenticate(&door.user, &password).map_err(io_failed)?))
}

fn tls_then_garbage(door: &Door) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(&tls_request()).map_err(io_failed)?;
    raw.byte().map_err(io_failed)?;
    let _ = raw.send(&[0xff; 64]);
    Ok(Acted::Saw(closed_if_not_messages(raw.until_over(door.patience))))
}

/// What follows a broken TLS handshake, or a protocol of old, is no message of today's.
fn closed_if_not_messages(seen: Seen) -> Seen {
    if seen.end == End::Garbage { Seen { end: End::Closed, ..seen } } else { seen }
}

fn tls_again(door: &Door) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    for _ in 0..3 {
        let _ = raw.send(&tls_request());
        match raw.peek() {
            Ok(b'N') => {
                raw.byte().map_err(io_failed)?;
            }
            Ok(b'S') => return Ok(Acted::NotApplicable("the server begins TLS")),
            Ok(_) | Err(_) => return Ok(Acted::Saw(raw.until_over(door.patience))),
        }
    }
    // Whoever goes on answering may wait for a startup that never comes; garbage must not be taken for one.
    let _ = raw.send(&[0xff; 64]);
    Ok(Acted::Saw(closed_if_not_messages(raw.until_over(door.patience))))
}

fn wrong_cancel(door: &Door) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    let body = [80_877_102_u32.to_be_bytes(), 1_u32.to_be_bytes(), 2_u32.to_be_bytes()].concat();
    raw.send(&untagged(&body)).map_err(io_failed)?;
    Ok(Acted::Saw(raw.until_over(door.pause)))
}

fn enter_as(door: &Door, user: &str, database: &str, password: &[u8]) -> Outcome {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(&startup(PROTOCOL_3, &[("user", user), ("database", database)])).map_err(io_failed)?;
    Ok(Acted::Saw(raw.authenticate(user, password).map_err(io_failed)?))
}

fn unknown_database(door: &Door) -> Outcome {
    enter_as(door, &door.user, "no_such_database", &door.password.clone().unwrap_or_default())
}

fn unknown_user(door: &Door) -> Outcome {
    enter_as(door, "no_such_user", &door.database, b"secret")
}

fn asks_password(door: &Door) -> Result<Option<Raw>, String> {
    let mut raw = door.knock().map_err(io_failed)?;
    raw.send(&door.startup()).map_err(io_failed)?;
    Ok((raw.until_over(door.patience).end == End::AsksPassword).then_some(raw))
}

const TRUSTS: Outcome = Ok(Acted::NotApplicable("the server asks nobody for a password"));

fn wrong_password(door: &Door) -> Outcome {
    match asks_password(door)? {
        Some(_) => enter_as(door, &door.user, &door.database, b"certainly not the password"),
        None => TRUSTS,
    }
}

fn empty_password(door: &Door) -> Outcome {
    match asks_password(door)? {
        Some(_) => enter_as(door, &door.user, &door.database, b""),
        None => TRUSTS,
    }
}

fn query_instead_of_password(door: &Door) -> Outcome {
    answer_password_with(door, &query(UPDATE))
}

fn broken_scram(door: &Door) -> Outcome {
    answer_password_with(door, &message(b'p', b"SCRAM-SHA-256\0\x7f\xff\xff\xffn,,n=,r="))
}

fn answer_password_with(door: &Door, bytes: &[u8]) -> Outcome {
    let Some(mut raw) = asks_password(door)? else { return TRUSTS };
    let _ = raw.send(bytes);
    Ok(Acted::Saw(raw.until_over(door.patience)))
}

fn vanish_when_asked(door: &Door) -> Outcome {
    match asks_password(door)? {
        Some(raw) => {
            raw.vanish();
            Ok(Acted::Vanished)
        }
        None => TRUSTS,
    }
}

fn bind_lying(door: &Door) -> Outcome {
    let body = [&b"\0s\0\0\0\0\x01"[..], &0x7fff_ffff_u32.to_be_bytes(), b"abc"].concat();
    send(door, &[parse("s", "SELECT $1::text"), message(b'B', &body), sync()].concat())
}

fn bind_formats(door: &Door) -> Outcome {
    let body = [&b"\0s\0\0\x01\0\x09\0\x01"[..], &3_u32.to_be_bytes(), b"abc", &[0, 1, 0, 9]].concat();
    send(door, &[parse("s", "SELECT $1::text"), message(b'B', &body), execute("", 0), sync()].concat())
}

/// The protocol lets a server drop what is left over of a COPY that failed.
fn stray_copy(door: &Door) -> Outcome {
    send(
        door,
        &[message(b'd', b"1\t1\n"), message(b'c', b""), message(b'f', b"no\0"), query("SELECT 1")].concat(),
    )
}

fn bind_too_few(door: &Door) -> Outcome {
    send(door, &[parse("s", "SELECT $1::text, $2::text"), bind("", "s", &["one"]), sync()].concat())
}

fn parse_twice(door: &Door) -> Outcome {
    send(door, &[parse("s", "SELECT 1"), parse("s", "SELECT 2"), sync()].concat())
}

/// What comes between an error and Sync is skipped.
fn error_in_a_pipeline(door: &Door) -> Outcome {
    let skipped = [parse("", UPDATE), bind("", "", &[]), execute("", 0)].concat();
    send(door, &[parse("", "SELEC"), skipped.clone(), skipped, sync()].concat())
}

fn many_syncs(door: &Door) -> Outcome {
    let mut raw = door.enter()?;
    raw.send(&sync().repeat(1_000)).map_err(io_failed)?;
    for number in 0..1_000 {
        let seen = raw.until_over(door.patience);
        if seen.end != End::Ready || !seen.codes.is_empty() {
            return Err(format!("Sync {number} of 1,000: {seen:?}"));
        }
    }
    Ok(Acted::Saw(raw.ask("SELECT 1")?))
}

fn many_flushes(door: &Door) -> Outcome {
    send(door, &[flush().repeat(1_000), query("SELECT 1")].concat())
}

fn query_in_extended(door: &Door) -> Outcome {
    send(door, &[parse("", "SELECT 1"), bind("", "", &[]), query("SELECT 2")].concat())
}

/// Statements of one string are one transaction: the first takes no effect.
fn error_in_a_string(door: &Door) -> Outcome {
    send(door, &query(&format!("{UPDATE}; SELECT 1 / 0; {UPDATE}")))
}

fn parentheses(door: &Door) -> Outcome {
    send(door, &query(&format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000))))
}

fn operators(door: &Door) -> Outcome {
    send(door, &query(&format!("SELECT 1{}", " + 1".repeat(20_000))))
}

fn too_large(door: &Door) -> Outcome {
    match door.statement_max_bytes {
        Some(limit) => send(door, &query(&format!("SELECT length('{}')", "x".repeat(limit)))),
        None => Ok(Acted::NotApplicable("no limit was given")),
    }
}

fn too_large_extended(door: &Door) -> Outcome {
    match door.statement_max_bytes {
        Some(limit) => send_sync(door, &parse("", &format!("SELECT length('{}')", "x".repeat(limit)))),
        None => Ok(Acted::NotApplicable("no limit was given")),
    }
}

/// Long enough to vanish in, and the same on every server.
fn vanish_in_update(door: &Door) -> Outcome {
    let slow = format!("{UPDATE} AND (SELECT count(*) FROM generate_series(1, 2000000)) > 0");
    let acted = enter_and_vanish(door, &[], &query(&slow));
    // Until the server has noticed, or has done it.
    std::thread::sleep(door.pause * 5);
    acted
}

fn vanish_while_waiting(door: &Door) -> Outcome {
    let mut holder = door.enter()?;
    for statement in ["BEGIN", UPDATE] {
        let seen = holder.ask(statement)?;
        if seen.end != End::Ready || !seen.codes.is_empty() {
            return Err(format!("{statement}: {seen:?}"));
        }
    }
    enter_and_vanish(door, &["BEGIN"], &query(UPDATE))?;
    let seen = holder.ask("ROLLBACK")?;
    if seen.end == End::Ready {
        Ok(Acted::Vanished)
    } else {
        Err(format!("ROLLBACK of the holder: {seen:?}"))
    }
}

fn begin_copy(door: &Door) -> Result<Raw, String> {
    let mut raw = door.enter()?;
    let seen = raw.ask("COPY bad_row (id, n) FROM STDIN")?;
    if seen.end == End::CopyIn { Ok(raw) } else { Err(format!("COPY: {seen:?}")) }
}

fn vanish_in_copy_in(door: &Door) -> Outcome {
    let mut raw = begin_copy(door)?;
    raw.send(&message(b'd', b"1001\t1\n1002\t1\n").repeat(100)).map_err(io_failed)?;
    raw.vanish();
    Ok(Acted::Vanished)
}

fn vanish_in_copy_row(door: &Door) -> Outcome {
    let mut raw = begin_copy(door)?;
    let row = message(b'd', b"1003\t1\n");
    raw.send(&[&row[..], &message(b'd', b"1004\t1\n")[..8]].concat()).map_err(io_failed)?;
    std::thread::sleep(door.pause / 3);
    raw.vanish();
    Ok(Acted::Vanished)
}

fn vanish_in_copy_out(door: &Door) -> Outcome {
    begin_and_vanish(door, &query("COPY (SELECT * FROM generate_series(1, 3000000)) TO STDOUT"))
}

fn vanish_unread(door: &Door) -> Outcome {
    begin_and_vanish(door, &query("SELECT repeat('x', 100) FROM generate_series(1, 1000000)"))
}

/// Sends something, waits until the answer has begun, and is gone.
fn begin_and_vanish(door: &Door, bytes: &[u8]) -> Outcome {
    let mut raw = door.enter()?;
    raw.send(bytes).map_err(io_failed)?;
    raw.taste().map_err(io_failed)?;
    raw.vanish();
    Ok(Acted::Vanished)
}

fn vanish_in_bind(door: &Door) -> Outcome {
    let update = "UPDATE bad_row SET n = n + $1::bigint WHERE id = 1";
    let whole = bind("", "s", &["1"]);
    enter_and_vanish(door, &["BEGIN", UPDATE], &[&parse("s", update), &whole[..whole.len() - 4]].concat())
}

/// Without Sync the statement's transaction does not end, so it takes no effect.
fn vanish_before_sync(door: &Door) -> Outcome {
    enter_and_vanish(door, &[], &[parse("", UPDATE), bind("", "", &[]), execute("", 0), flush()].concat())
}

fn vanish_with_a_portal(door: &Door) -> Outcome {
    let rows = parse("", "SELECT * FROM generate_series(1, 100)");
    enter_and_vanish(door, &["BEGIN", UPDATE], &[rows, bind("p", "", &[]), execute("p", 1), flush()].concat())
}
