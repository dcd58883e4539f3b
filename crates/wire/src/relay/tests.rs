use bytes::BytesMut;

use super::*;
use crate::backend::{Status, build};

fn relay() -> RelayState {
    RelayState::new(TagSet::BORING, 1024)
}

fn row(len: usize) -> BytesMut {
    let mut out = BytesMut::new();
    build::data_row(&mut out, [Some(&vec![b'x'; len - 11][..])]).unwrap();
    assert_eq!(out.len(), len);
    out
}

fn ready() -> BytesMut {
    let mut out = BytesMut::new();
    build::ready_for_query(&mut out, Status::Idle);
    out
}

#[test]
fn rows_pass_in_one_piece_up_to_the_frame_that_must_be_read() {
    let mut buf = BytesMut::new();
    build::parse_complete(&mut buf);
    build::bind_complete(&mut buf);
    build::text_row_description(&mut buf, &["a"]).unwrap();
    build::text_row(&mut buf, &["1"]).unwrap();
    let pass = buf.len();
    build::command_complete(&mut buf, "SELECT 1");
    let head = Head { tag: b'C', len: buf.len() - pass };
    buf.extend_from_slice(&ready());

    let mut state = relay();
    assert_eq!(scan(&buf, &mut state), Scan { pass, next: Next::Decode(head) });
    let rest = &buf[pass + head.len..];
    let ready = Head { tag: b'Z', len: 6 };
    assert_eq!(scan(rest, &mut state), Scan { pass: 0, next: Next::Decode(ready) });
    assert_eq!(scan(&[], &mut state), Scan { pass: 0, next: Next::Read(5) });
    // Whoever does not ask how many there were gets them in the same piece.
    let mut uncounted = RelayState::new(TagSet::BORING.with(b"C"), 1024);
    assert_eq!(scan(&buf, &mut uncounted), Scan { pass: pass + head.len, next: Next::Decode(ready) });
    assert_eq!(state, relay());
}

#[test]
fn an_incomplete_small_frame_waits_for_exactly_its_rest() {
    let row = row(100);
    for have in 0..100 {
        let need = if have < 5 { 5 - have } else { 100 - have };
        let mut state = relay();
        assert_eq!(scan(&row[..have], &mut state), Scan { pass: 0, next: Next::Read(need) });
        assert_eq!(state.mid_frame(), 0);
    }
    assert_eq!(scan(&ready()[..5], &mut relay()), Scan { pass: 0, next: Next::Read(1) });
}

#[test]
fn a_large_frame_passes_in_pieces_and_what_follows_is_found() {
    let mut all = row(60);
    all.extend_from_slice(&row(LARGE_LEN_MIN));
    let large_end = all.len();
    all.extend_from_slice(&row(60));
    let stop_at = all.len();
    all.extend_from_slice(&ready());

    let mut state = relay();
    assert_eq!(scan(&all[..64], &mut state), Scan { pass: 60, next: Next::Read(1) }, "head incomplete");
    assert_eq!(scan(&all[60..70], &mut state), Scan { pass: 10, next: Next::Read(1) });
    assert_eq!(state.mid_frame(), large_end - 70);
    assert_eq!(scan(&all[70..70], &mut state), Scan { pass: 0, next: Next::Read(1) });
    assert_eq!(scan(&all[70..1000], &mut state), Scan { pass: 930, next: Next::Read(1) });
    let scanned = scan(&all[1000..], &mut state);
    assert_eq!(scanned, Scan { pass: stop_at - 1000, next: Next::Decode(Head { tag: b'Z', len: 6 }) });
    assert_eq!(state.mid_frame(), 0);
}

#[test]
fn an_impossible_length_fails_after_what_precedes_it_has_passed() {
    let mut buf = row(60);
    buf.extend_from_slice(b"D\0\0\0\x03");
    let fault = FrameError::TooShort { tag: b'D', declared: 3 };
    assert_eq!(scan(&buf, &mut relay()), Scan { pass: 60, next: Next::Fail(fault) });
}

#[test]
fn a_frame_to_decode_is_refused_by_its_head_when_it_is_too_long() {
    let mut state = relay();
    let fault = FrameError::TooLong { tag: b'E', len: 1025, max: 1024 };
    assert_eq!(scan(b"E\0\0\x04\0", &mut state), Scan { pass: 0, next: Next::Fail(fault) });
    assert_eq!(scan(b"E\0\0\x03\xff", &mut state), Scan { pass: 0, next: Next::Read(1019) });
}

#[test]
fn what_is_boring_can_be_chosen() {
    let set = TagSet::BORING.without(b"T1");
    for tag in 0..=255_u8 {
        assert_eq!(set.contains(tag), b"Ddtn23s".contains(&tag), "{}", char::from(tag));
    }
    let mut state = RelayState::new(set, 1024);
    assert_eq!(scan(b"1\0\0\0\x04", &mut state).next, Next::Decode(Head { tag: b'1', len: 5 }));
}

proptest::proptest! {
    /// However a stream is cut into receives, the same bytes pass and the same frames are decoded.
    #[test]
    fn cuts_do_not_matter(
        frames in proptest::collection::vec((proptest::sample::select(&b"DdT1CZE"[..]), 0..300_usize), 1..20),
        large_at in 0..20_usize,
        cuts in proptest::collection::vec(1..40_000_usize, 1..50),
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        let mut passed = 0;
        for (i, (tag, len)) in frames.iter().enumerate() {
            let boring = TagSet::BORING.contains(*tag);
            let len = if i == large_at && boring { LARGE_LEN_MIN + len } else { *len };
            stream.push(*tag);
            stream.extend_from_slice(&(len as u32 + 4).to_be_bytes());
            stream.resize(stream.len() + len, i as u8);
            if boring { passed += len + 5 } else { expected.push(Head { tag: *tag, len: len + 5 }) }
        }
        let (mut state, mut buf, mut decoded, mut pass) = (relay(), Vec::new(), Vec::new(), 0);
        let mut rest = &stream[..];
        let mut cuts = cuts.iter().cycle();
        let mut need = 0;
        loop {
            let found = scan(&buf, &mut state);
            pass += found.pass;
            buf.drain(..found.pass);
            match found.next {
                Next::Decode(head) => {
                    assert!(need == 0, "there was something to find before {need} more bytes came");
                    decoded.push(head);
                    buf.drain(..head.len);
                }
                Next::Read(_) if rest.is_empty() => break,
                Next::Read(more) => {
                    assert!(more > 0);
                    need = more;
                    let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                    need = need.saturating_sub(now.len());
                    buf.extend_from_slice(now);
                    rest = later;
                }
                Next::Fail(error) => panic!("{error}"),
            }
        }
        assert_eq!((decoded, pass, buf.len(), state.mid_frame()), (expected, passed, 0, 0));
    }
}
