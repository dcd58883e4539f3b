use onecopy_wire::frontend::build as say;

use super::*;

const KEY: (u32, &[u8]) = (7, b"key!");

/// A course, what it sends on and what its client hears.
#[derive(Default)]
struct Rig {
    course: Course,
    up: BytesMut,
    down: BytesMut,
}

impl Rig {
    /// Connected, with nothing committed yet.
    fn new() -> Rig {
        let mut rig = Rig::default();
        rig.course.resume(&mut rig.up).unwrap();
        rig.begin(Idle { commits: 0, csn: 5, movable: true });
        assert_eq!(tags(&rig.heard()), "KZ");
        rig
    }

    /// A session begins.
    fn begin(&mut self, idle: Idle) {
        self.session(|out| {
            build::backend_key_data(out, 99, b"term").unwrap();
            idle.encode(out);
            build::ready_for_query(out, Status::Idle);
        })
        .unwrap();
    }

    fn client(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let mut messages = BytesMut::new();
        put(&mut messages);
        for frame in Frames::new(&messages, usize::MAX).map(Result::unwrap) {
            self.course.on_client(frame, &mut self.up, &mut self.down);
        }
    }

    fn query(&mut self, sql: &str) {
        self.client(|out| say::query(out, sql).unwrap());
    }

    fn session(&mut self, put: impl FnOnce(&mut BytesMut)) -> Result<(), Diverged> {
        let mut messages = BytesMut::new();
        put(&mut messages);
        for frame in Frames::new(&messages, usize::MAX).map(Result::unwrap) {
            self.course.on_session(frame, KEY, &mut self.down)?;
            self.course.proceed(&mut self.up);
        }
        Ok(())
    }

    /// It answers a request.
    fn answer(&mut self, tag: &str, status: Status, commits: u64) -> Result<(), Diverged> {
        self.session(|out| {
            build::command_complete(out, tag);
            if status == Status::Idle {
                Idle { commits, csn: 5 + commits, movable: true }.encode(out);
            }
            build::ready_for_query(out, status);
        })
    }

    fn heard(&mut self) -> BytesMut {
        self.down.split()
    }

    fn sent(&mut self) -> BytesMut {
        self.up.split()
    }

    /// Its node is lost, and another one takes it on.
    fn resume(&mut self) -> BytesMut {
        self.up.clear();
        self.course.resume(&mut self.up).unwrap();
        let (commits, csn) = self.course.position();
        self.begin(Idle { commits, csn, movable: true });
        self.sent()
    }
}

fn tags(messages: &[u8]) -> String {
    Frames::new(messages, usize::MAX).map(|frame| char::from(frame.unwrap().tag)).collect()
}

/// The texts of what is asked.
fn asked(messages: &[u8]) -> Vec<String> {
    let frames = Frames::new(messages, usize::MAX).map(Result::unwrap);
    frames
        .map(|frame| match frame.tag {
            carried::tag::FAIL => "(fails)".to_owned(),
            carried::tag::VALUES => "(values)".to_owned(),
            _ => match frontend::decode(frame.tag, frame.body).unwrap() {
                Frontend::Query(sql) => sql.to_owned(),
                other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
            },
        })
        .collect()
}

fn error_code(messages: &[u8]) -> Option<String> {
    let mut frames = Frames::new(messages, usize::MAX).map(Result::unwrap);
    let error = frames.find(|frame| frame.tag == from_term::ERROR_RESPONSE)?;
    Some(Fields::decode(error.body).unwrap().code().as_str().to_owned())
}

fn conflict() -> Failure {
    Failure::new(SqlState::SERIALIZATION_FAILURE, "it has changed")
}

#[test]
fn an_idle_session_goes_on_with_nothing_but_its_script() {
    let mut rig = Rig::new();
    rig.query("SET a = 1");
    let mut script = BytesMut::new();
    say::query(&mut script, "SET a = 1").unwrap();
    rig.session(|out| {
        build::command_complete(out, "SET");
        Script { part: 0, answers: 1, messages: &script }.encode(out).unwrap();
    })
    .unwrap();
    rig.answer("SET", Status::Idle, 0).unwrap();
    rig.heard();
    assert_eq!(asked(&rig.resume()), ["SET a = 1"]);
    assert_eq!(tags(&rig.heard()), "", "the client is not told again that it is connected");
    // Lost before the script was answered: the former one is still there.
    assert_eq!(asked(&rig.resume()), ["SET a = 1"]);
    rig.session(|out| Script { part: 0, answers: 1, messages: &script }.encode(out).unwrap()).unwrap();
    rig.answer("SET", Status::Idle, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "", "nor of the answers to the script");
    rig.query("SELECT 1");
    rig.answer("SELECT 1", Status::Idle, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "CZ");
    assert_eq!(asked(&rig.resume()), ["SET a = 1"]);
}

#[test]
fn a_part_of_the_script_takes_the_place_of_what_it_was_and_may_go() {
    let mut rig = Rig::new();
    let part = |sql: &str| {
        let mut messages = BytesMut::new();
        if !sql.is_empty() {
            say::query(&mut messages, sql).unwrap();
        }
        messages
    };
    let mut scripted = |parts: &[(u32, &str)]| {
        rig.session(|out| {
            for (number, sql) in parts {
                let answers = u32::from(!sql.is_empty());
                Script { part: *number, answers, messages: &part(sql) }.encode(out).unwrap();
            }
        })
        .unwrap();
        asked(&rig.resume())
    };
    assert_eq!(scripted(&[(2, "LISTEN a"), (1, "SET b = 1")]), ["SET b = 1", "LISTEN a"]);
    // The session made again says all of it again.
    rig.session(|out| {
        for (number, sql) in [(1, "SET b = 1"), (2, "LISTEN a")] {
            Script { part: number, answers: 1, messages: &part(sql) }.encode(out).unwrap();
        }
    })
    .unwrap();
    (0..2).for_each(|_| rig.answer("SET", Status::Idle, 0).unwrap());
    rig.session(|out| Script { part: 1, answers: 0, messages: &[] }.encode(out).unwrap()).unwrap();
    assert_eq!(asked(&rig.resume()), ["LISTEN a"]);
}

#[test]
fn an_open_transaction_is_done_again_and_the_client_hears_only_the_rest() {
    let mut rig = Rig::new();
    rig.query("BEGIN");
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    rig.query("UPDATE t");
    rig.answer("UPDATE 1", Status::InTransaction, 0).unwrap();
    rig.query("SELECT 2");
    rig.heard();
    assert_eq!(asked(&rig.resume()), ["BEGIN", "UPDATE t"]);
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "");
    // Lost once more, in the middle.
    assert_eq!(asked(&rig.resume()), ["BEGIN", "UPDATE t"]);
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    assert_eq!(asked(&rig.sent()), Vec::<String>::new());
    rig.answer("UPDATE 1", Status::InTransaction, 0).unwrap();
    assert_eq!(asked(&rig.sent()), ["SELECT 2"], "it may depend on what was heard");
    rig.answer("SELECT 1", Status::InTransaction, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "CZ");
    rig.query("COMMIT");
    rig.answer("COMMIT", Status::Idle, 1).unwrap();
    assert_eq!(rig.course.position(), (1, 6));
    assert_eq!(asked(&rig.resume()), Vec::<String>::new());
}

#[test]
fn answers_that_come_out_differently_fail_the_transaction_and_not_the_session() {
    let mut rig = Rig::new();
    rig.query("BEGIN");
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    rig.query("UPDATE t");
    rig.answer("UPDATE 1", Status::InTransaction, 0).unwrap();
    rig.query("SELECT 2");
    rig.heard();
    rig.resume();
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    assert_eq!(rig.answer("UPDATE 0", Status::InTransaction, 0), Err(Diverged));
    rig.up.clear();
    let Rig { course, up, down } = &mut rig;
    course.give_up(conflict(), up, down).unwrap();
    assert_eq!(asked(&rig.sent()), ["(fails)"]);
    let heard = rig.heard();
    assert_eq!((tags(&heard), error_code(&heard)), ("EZ".to_owned(), Some("40001".to_owned())));
    assert_eq!(heard.last(), Some(&Status::Failed.code()));
    rig.begin(Idle { commits: 0, csn: 9, movable: true });
    // The failed block outlives another loss.
    rig.query("SELECT 3");
    assert_eq!(asked(&rig.resume()), ["(fails)", "SELECT 3"]);
    rig.session(|out| {
        conflict().put(out, Severity::Error);
        build::ready_for_query(out, Status::Failed);
    })
    .unwrap();
    rig.query("ROLLBACK");
    rig.answer("ROLLBACK", Status::Idle, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "EZCZ");
    assert_eq!(asked(&rig.resume()), Vec::<String>::new());
}

#[test]
fn a_client_that_had_asked_nothing_hears_of_its_lost_transaction_at_its_next_request() {
    let lost = || {
        let mut rig = Rig::new();
        rig.query("BEGIN");
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig.heard();
        rig.sent();
        let Rig { course, up, down } = &mut rig;
        course.give_up(conflict(), up, down).unwrap();
        rig.begin(Idle { commits: 0, csn: 9, movable: true });
        assert_eq!((asked(&rig.sent()), tags(&rig.heard())), (vec!["(fails)".to_owned()], String::new()));
        rig
    };
    let mut rig = lost();
    rig.query("COMMIT");
    let heard = rig.heard();
    assert_eq!((tags(&heard), error_code(&heard).as_deref()), ("EZ".to_owned(), Some("40001")));
    assert_eq!(tags(&rig.sent()), "", "a COMMIT of what is lost would end well");
    rig.query("ROLLBACK");
    assert_eq!(asked(&rig.sent()), ["ROLLBACK"]);

    // By the extended protocol, up to the Sync.
    let mut rig = lost();
    rig.client(|out| {
        say::parse(out, "", "SELECT 1", []).unwrap();
        say::bind(out, "", "", [], [], []).unwrap();
        say::execute(out, "", 0).unwrap();
    });
    assert_eq!(tags(&rig.heard()), "E");
    rig.client(say::sync);
    assert_eq!((tags(&rig.heard()), tags(&rig.sent())), ("Z".to_owned(), String::new()));

    // Nobody goes back to a savepoint of what is lost.
    for sql in ["ROLLBACK TO SAVEPOINT s", "rollback work to s", "ROLLBACK PREPARED 'p'"] {
        let mut rig = lost();
        rig.query(sql);
        let heard = rig.heard();
        assert_eq!((tags(&heard), error_code(&heard).as_deref()), ("EZ".to_owned(), Some("40001")), "{sql}");
        assert_eq!(tags(&rig.sent()), "", "{sql}");
    }

    // Whoever gives up need not hear why.
    for sql in ["ROLLBACK;", "abort work", "ROLLBACK TRANSACTION; SELECT 1", "rollback and chain"] {
        let mut rig = lost();
        rig.query(sql);
        assert_eq!((asked(&rig.sent()), tags(&rig.heard())), (vec![sql.to_owned()], String::new()));
    }
    let mut rig = lost();
    rig.query("  rollback");
    assert_eq!((asked(&rig.sent()), tags(&rig.heard())), (vec!["  rollback".to_owned()], String::new()));
}

#[test]
fn a_commit_whose_answer_is_lost_is_answered_by_what_the_log_says() {
    let in_transaction = || {
        let mut rig = Rig::new();
        rig.query("BEGIN");
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig.heard();
        rig
    };
    let committed = |rig: &mut Rig| {
        rig.up.clear();
        let Rig { course, up, down } = rig;
        course.committed(1, 6, up, down)
    };
    for text in ["COMMIT", "end;", " commit work ; "] {
        let mut rig = in_transaction();
        rig.query(text);
        assert!(committed(&mut rig), "{text}");
        let heard = rig.heard();
        assert_eq!((tags(&heard).as_str(), heard.last()), ("CZ", Some(&Status::Idle.code())));
        assert_eq!((rig.course.position(), tags(&rig.sent())), ((1, 6), String::new()));
    }
    // By the extended protocol.
    let mut rig = in_transaction();
    rig.client(|out| {
        say::parse(out, "", "COMMIT", []).unwrap();
        say::bind(out, "", "", [], [], []).unwrap();
        say::describe(out, frontend::Target::Portal, "").unwrap();
        say::execute(out, "", 0).unwrap();
        say::sync(out);
    });
    assert!(committed(&mut rig));
    assert_eq!(tags(&rig.heard()), "12nCZ");
    // What else it committed by, nobody can answer.
    for text in ["COMMIT; SELECT 1", "COMMIT AND CHAIN", "COMMIT PREPARED 'x'"] {
        let mut rig = in_transaction();
        rig.query(text);
        assert!(!committed(&mut rig), "{text}");
    }
    let mut rig = Rig::new();
    rig.query("INSERT INTO t VALUES (1)");
    assert!(!committed(&mut rig));
    let Rig { course, up, down } = &mut rig;
    assert!(course.concluded(1, 6, &conflict(), up, down));
    assert_eq!((tags(&rig.heard()), rig.course.position()), ("EZ".to_owned(), (1, 6)));
    rig.begin(Idle { commits: 1, csn: 6, movable: true });
    rig.query("SELECT 1");
    rig.answer("SELECT 1", Status::Idle, 1).unwrap();
    assert_eq!(tags(&rig.heard()), "CZ");
    // Of several at once nobody can say which.
    let mut rig = Rig::new();
    rig.query("INSERT INTO t VALUES (1)");
    rig.query("INSERT INTO t VALUES (2)");
    let Rig { course, up, down } = &mut rig;
    assert!(!course.concluded(1, 6, &conflict(), up, down));
}

#[test]
fn requests_behind_an_answered_one_are_sent_again_and_it_is_not() {
    let mut rig = Rig::new();
    ["INSERT 1", "INSERT 2", "INSERT 3"].iter().for_each(|sql| rig.query(sql));
    rig.answer("INSERT 0 1", Status::Idle, 1).unwrap();
    assert_eq!(rig.course.position(), (1, 6));
    assert_eq!(asked(&rig.resume()), ["INSERT 2", "INSERT 3"]);
    rig.answer("INSERT 0 1", Status::Idle, 2).unwrap();
    rig.answer("INSERT 0 1", Status::Idle, 3).unwrap();
    assert_eq!(tags(&rig.heard()), "CZCZCZ");
    assert_eq!(asked(&rig.resume()), Vec::<String>::new());
}

#[test]
fn large_answers_are_passed_on_at_once_and_must_come_again_as_they_were() {
    let mut rig = Rig::new();
    rig.query("SELECT large");
    let row = |out: &mut BytesMut, value: &str| build::text_row(out, &[value.repeat(40_000)]).unwrap();
    rig.session(|out| row(out, "a")).unwrap();
    assert_eq!(tags(&rig.heard()), "", "held, so that what is repeated is unseen");
    rig.session(|out| row(out, "b")).unwrap();
    assert_eq!(tags(&rig.heard()), "DD");
    assert_eq!(asked(&rig.resume()), ["SELECT large"]);
    rig.session(|out| row(out, "a")).unwrap();
    rig.session(|out| row(out, "b")).unwrap();
    assert_eq!(tags(&rig.heard()), "");
    rig.session(|out| row(out, "c")).unwrap();
    rig.answer("SELECT 3", Status::Idle, 0).unwrap();
    assert_eq!(tags(&rig.heard()), "DCZ");

    let mut rig = Rig::new();
    rig.query("SELECT large");
    rig.session(|out| ["a", "b"].into_iter().for_each(|value| row(out, value))).unwrap();
    rig.resume();
    rig.session(|out| row(out, "a")).unwrap();
    assert_eq!(rig.session(|out| row(out, "x")), Err(Diverged));
}

#[test]
fn a_copy_goes_on_while_its_data_come_and_a_second_sync_is_no_second_request() {
    let mut rig = Rig::new();
    rig.client(|out| {
        say::parse(out, "", "COPY t FROM STDIN", []).unwrap();
        say::bind(out, "", "", [], [], []).unwrap();
        say::execute(out, "", 0).unwrap();
        say::sync(out);
    });
    rig.session(|out| build::copy_in_response(out, onecopy_wire::Format::Text, 1)).unwrap();
    assert_eq!(tags(&rig.heard()), "G", "its client waits for this");
    rig.client(|out| {
        say::copy_data(out, b"1\n").unwrap();
        say::copy_done(out);
        say::sync(out);
    });
    rig.answer("COPY 1", Status::Idle, 1).unwrap();
    assert_eq!(tags(&rig.heard()), "CZ");
    assert_eq!(tags(&rig.resume()), "", "all of it was answered");
}

#[test]
fn a_session_that_holds_what_only_its_node_has_cannot_go_on() {
    let mut rig = Rig::new();
    rig.query("SELECT pg_advisory_lock(1)");
    rig.session(|out| {
        build::command_complete(out, "SELECT 1");
        Idle { commits: 0, csn: 5, movable: false }.encode(out);
        build::ready_for_query(out, Status::Idle);
    })
    .unwrap();
    assert_eq!(rig.course.resume(&mut BytesMut::new()), Err(Lost::Pinned));
    assert_eq!(rig.course.check_movable(), Err(Lost::Pinned));
}

#[test]
fn more_than_is_kept_is_not_sent_again_and_forgotten_at_the_end_of_its_transaction() {
    let mut rig = Rig::new();
    rig.query("BEGIN");
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    rig.query(&"x".repeat(KEPT_LEN_MAX));
    rig.heard();
    assert_eq!(rig.course.resume(&mut BytesMut::new()), Err(Lost::TooMuch));
    let Rig { course, up, down } = &mut rig;
    course.give_up(conflict(), up, down).unwrap();
    assert_eq!(tags(&rig.heard()), "EZ");
    rig.begin(Idle { commits: 0, csn: 5, movable: true });
    rig.query("ROLLBACK");
    rig.answer("ROLLBACK", Status::Idle, 0).unwrap();
    rig.query("SELECT 1");
    assert_eq!(asked(&rig.resume()), ["SELECT 1"]);
}

#[test]
fn a_session_that_says_that_it_ends_is_not_made_again() {
    let mut rig = Rig::new();
    rig.query("SELECT 1");
    let failure = Failure::new(SqlState::ADMIN_SHUTDOWN, "terminated");
    rig.session(|out| failure.put(out, Severity::Fatal)).unwrap();
    assert!(rig.course.has_ended());
    assert_eq!(error_code(&rig.heard()).as_deref(), Some("57P01"));
}

#[test]
fn nothing_is_committed_before_all_that_was_heard_has_come_out_as_it_was() {
    let in_transaction = || {
        let mut rig = Rig::new();
        rig.query("BEGIN");
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig.query("SELECT v");
        rig.answer("SELECT 10", Status::InTransaction, 0).unwrap();
        rig.query("COMMIT");
        rig.heard();
        assert_eq!(asked(&rig.resume()), ["BEGIN", "SELECT v"]);
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig
    };
    // Longer, as long, and shorter: nothing more would come of the last one.
    for other in ["SELECT 100", "SELECT 11", "SELECT 9"] {
        let mut rig = in_transaction();
        assert_eq!(rig.answer(other, Status::InTransaction, 0), Err(Diverged), "{other}");
        assert_eq!(tags(&rig.sent()), "");
    }
    let mut rig = in_transaction();
    // What comes meanwhile waits behind it.
    rig.query("SELECT 1");
    assert_eq!(tags(&rig.sent()), "");
    rig.answer("SELECT 10", Status::InTransaction, 0).unwrap();
    assert_eq!(asked(&rig.sent()), ["COMMIT", "SELECT 1"]);
    rig.answer("COMMIT", Status::Idle, 1).unwrap();
    rig.answer("SELECT 1", Status::Idle, 1).unwrap();
    assert_eq!(tags(&rig.heard()), "CZCZ");
}

/// Done again it might succeed, and be committed, though its client was told that it had failed.
#[test]
fn what_failed_and_would_have_committed_is_not_done_again() {
    let whole = "BEGIN; UPDATE t SET a = 1; COMMIT";
    let whole_by_parts = |out: &mut BytesMut| {
        for sql in ["BEGIN", "UPDATE t SET a = 1", "COMMIT"] {
            say::parse(out, "", sql, []).unwrap();
            say::bind(out, "", "", [], [], []).unwrap();
            say::execute(out, "", 0).unwrap();
        }
        say::sync(out);
    };
    let by_name = |out: &mut BytesMut| {
        for name in ["begins", "ends"] {
            say::bind(out, "", name, [], [], []).unwrap();
            say::execute(out, "", 0).unwrap();
        }
        say::sync(out);
    };
    for way in [0, 1, 2] {
        let mut rig = Rig::new();
        match way {
            0 => rig.query(whole),
            1 => rig.client(whole_by_parts),
            _ => {
                rig.client(|out| say::parse(out, "ends", "COMMIT", []).unwrap());
                rig.client(by_name);
            }
        }
        rig.session(|out| {
            conflict().put(out, Severity::Error);
            build::ready_for_query(out, Status::Failed);
        })
        .unwrap();
        rig.heard();
        // Whether or not the client has gone on.
        let goes_on = way != 1;
        if goes_on {
            rig.query("ROLLBACK");
        }
        let sent = asked(&rig.resume());
        let (last, before) = sent.split_last().unwrap();
        assert_eq!(last, if goes_on { "ROLLBACK" } else { "(fails)" }, "{way}: {sent:?}");
        assert!(
            before.iter().all(|sql| ["(fails)", "Parse", "Sync"].contains(&sql.as_str())),
            "{way}: {sent:?}"
        );
        // Once more, before anything was answered.
        assert_eq!(asked(&rig.resume()), sent);
        if !goes_on {
            rig.query("ROLLBACK");
        }
        rig.heard();
    }
}

/// What was done before it, and failed, is: the client may return to a savepoint.
#[test]
fn a_block_that_failed_without_a_commit_in_what_failed_is_done_again() {
    let mut rig = Rig::new();
    for (sql, status) in
        [("BEGIN", Status::InTransaction), ("SAVEPOINT s", Status::InTransaction), ("x", Status::Failed)]
    {
        rig.query(sql);
        rig.answer("", status, 0).unwrap();
    }
    rig.heard();
    assert_eq!(asked(&rig.resume()), ["BEGIN", "SAVEPOINT s", "x"]);
}

#[test]
fn what_was_asked_behind_a_large_answer_waits_until_that_has_come_again() {
    let mut rig = Rig::new();
    rig.query("SELECT large");
    rig.query("UPDATE t");
    let row = |out: &mut BytesMut, value: &str| build::text_row(out, &[value.repeat(70_000)]).unwrap();
    rig.session(|out| row(out, "a")).unwrap();
    assert_eq!(tags(&rig.heard()), "D");
    assert_eq!(asked(&rig.resume()), ["SELECT large"]);
    rig.session(|out| row(out, "a")).unwrap();
    assert_eq!(asked(&rig.sent()), ["UPDATE t"]);
    assert_eq!(asked(&rig.resume()), ["SELECT large"]);
    // It is shorter now.
    assert_eq!(rig.answer("SELECT 0", Status::Idle, 0), Err(Diverged));
    assert_eq!(tags(&rig.sent()), "");
}

#[test]
fn a_request_that_was_answered_in_part_while_it_was_made_is_given_up() {
    let mut rig = Rig::new();
    rig.client(|out| {
        say::parse(out, "", "SELECT v", []).unwrap();
        say::bind(out, "", "", [], [], []).unwrap();
        say::execute(out, "", 0).unwrap();
        say::flush(out);
    });
    rig.session(build::parse_complete).unwrap();
    assert_eq!(tags(&rig.heard()), "1");
    assert_eq!(rig.course.resume(&mut BytesMut::new()), Err(Lost::Unchecked));
    let Rig { course, up, down } = &mut rig;
    course.give_up(conflict(), up, down).unwrap();
    assert_eq!(tags(&rig.heard()), "E");
    rig.client(say::sync);
    assert_eq!(tags(&rig.heard()), "Z");
}

#[test]
fn a_commit_that_begins_the_next_transaction_is_not_mistaken_for_the_commit_of_that_one() {
    let chained = || {
        let mut rig = Rig::new();
        rig.query("BEGIN");
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig.query("COMMIT AND CHAIN");
        rig.session(|out| {
            build::command_complete(out, "COMMIT");
            Idle { commits: 1, csn: 6, movable: true }.encode(out);
            build::ready_for_query(out, Status::InTransaction);
        })
        .unwrap();
        assert_eq!(rig.course.position(), (1, 6), "it is asked about what comes behind");
        rig.query("COMMIT");
        rig.heard();
        rig
    };
    let mut rig = chained();
    assert_eq!(rig.course.resume(&mut BytesMut::new()), Err(Lost::Unchecked));
    let Rig { course, up, down } = &mut rig;
    course.give_up(conflict(), up, down).unwrap();
    assert_eq!((tags(&rig.heard()), rig.course.position()), ("EZ".to_owned(), (1, 6)));
    let mut rig = chained();
    let Rig { course, up, down } = &mut rig;
    assert!(course.committed(2, 7, up, down));
    assert_eq!((tags(&rig.heard()), rig.course.position()), ("CZ".to_owned(), (2, 7)));
}

#[test]
fn notices_are_no_reason_to_hear_nothing_more_from_the_client() {
    let mut rig = Rig::new();
    rig.query("DO loud");
    let notice = Failure::new(SqlState::ADMIN_SHUTDOWN, "x".repeat(HELD_LEN_MAX));
    rig.session(|out| {
        let mut error = BytesMut::new();
        notice.put(&mut error, Severity::Error);
        error[0] = from_term::NOTICE_RESPONSE;
        out.unsplit(error);
    })
    .unwrap();
    assert!(rig.course.may_take_more());
    assert_eq!(tags(&rig.heard()), "N");
}

#[test]
fn statements_prepared_in_a_transaction_that_is_not_sent_again_stay_prepared() {
    let mut rig = Rig::new();
    rig.query("BEGIN");
    rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
    rig.client(|out| {
        say::parse(out, "s1", "SELECT 1", []).unwrap();
        say::sync(out);
    });
    rig.answer("PREPARE", Status::InTransaction, 0).unwrap();
    rig.query("SET a = 1; SELECT 1");
    rig.answer("SET", Status::InTransaction, 0).unwrap();
    rig.query("COMMIT");
    rig.sent();
    let Rig { course, up, down } = &mut rig;
    course.give_up(conflict(), up, down).unwrap();
    assert_eq!(asked(&rig.sent()), ["Parse", "Sync", "(fails)"], "what was set is undone");
    // Lost again before it was made.
    rig.query("ROLLBACK");
    rig.sent();
    assert_eq!(asked(&rig.resume())[..3], ["Parse", "Sync", "(fails)"]);

    let committed = |text: &str| {
        let mut rig = Rig::new();
        rig.query("BEGIN");
        rig.answer("BEGIN", Status::InTransaction, 0).unwrap();
        rig.query(text);
        rig.answer("SET", Status::InTransaction, 0).unwrap();
        rig.query("COMMIT");
        rig.sent();
        let Rig { course, up, down } = &mut rig;
        course.committed(1, 6, up, down).then(|| asked(&rig.sent()))
    };
    let kept = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(committed("SET a = 1;"), kept(&["SET a = 1;"]));
    assert_eq!(committed("UPDATE t SET a = 1"), kept(&[]));
    // What stands in a text may be data, and is not taken for commands; nor is it lost that there may be some.
    assert_eq!(committed("INSERT INTO t VALUES ('x; SET role = admin; ')"), None);
    assert_eq!(committed("SELECT set_config('a', '1', false)"), None);
}

#[test]
fn only_what_is_surely_all_of_a_request_is_said_to_be_committed() {
    let concluded = |text: &str| {
        let mut rig = Rig::new();
        rig.query(text);
        let Rig { course, up, down } = &mut rig;
        course.concluded(1, 6, &conflict(), up, down)
    };
    assert!(concluded("INSERT INTO t VALUES (1) ; "));
    assert!(!concluded("BEGIN; INSERT INTO t VALUES (1); COMMIT; BEGIN; INSERT INTO t VALUES (2); COMMIT"));
    assert!(!is_commit("COMMIT;BEGIN"));
}
