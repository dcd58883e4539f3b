//! Bind rewritten: the client's parameters keep their bytes and their formats, whichever of the protocol's ways
//! of saying formats the client chose, and further parameters in text follow.

use bytes::BytesMut;
use onecopy_wire::frontend::{Bind, build, rewrite_bind};
use onecopy_wire::{BuildError, Format, WireError};
use proptest::prelude::*;

use Format::{Binary, Text};

fn body(frame: &BytesMut) -> &[u8] {
    let len = u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize;
    assert_eq!((frame[0], frame.len()), (b'B', len + 1));
    &frame[5..]
}

fn bind(formats: &[Format], params: &[Option<&[u8]>], results: &[Format]) -> BytesMut {
    let mut out = BytesMut::new();
    let formats = formats.iter().copied();
    build::bind(&mut out, "p", "s", formats, params.iter().copied(), results.iter().copied()).unwrap();
    out
}

#[test]
fn every_way_of_saying_formats() {
    let (a, b): (Option<&[u8]>, Option<&[u8]>) = (Some(b"a"), Some(b"\0b"));
    for (formats, params, extra, codes) in [
        // No codes: all text, and so are the extra ones.
        (&[][..], &[][..], 0, &[][..]),
        (&[], &[], 2, &[]),
        (&[], &[a, b], 0, &[]),
        (&[], &[a, b], 2, &[]),
        // One code for all, which must not become the code of the extra ones.
        (&[Text], &[a, b], 0, &[Text]),
        (&[Text], &[a, b], 1, &[]),
        (&[Binary], &[a, b], 0, &[Binary]),
        (&[Binary], &[a, b], 1, &[Binary, Binary, Text]),
        (&[Binary], &[a, None], 2, &[Binary, Binary, Text, Text]),
        // One code that is at once the code of the only parameter.
        (&[Binary], &[a], 1, &[Binary, Text]),
        (&[Text], &[a], 1, &[]),
        // One code for all of no parameters at all.
        (&[Binary], &[], 0, &[Binary]),
        (&[Binary], &[], 1, &[Text]),
        (&[Text], &[], 1, &[]),
        // One code a parameter.
        (&[Binary, Text], &[a, b], 0, &[Binary, Text]),
        (&[Binary, Text], &[a, b], 2, &[Binary, Text, Text, Text]),
        (&[Text, Binary, Binary], &[a, None, b], 1, &[Text, Binary, Binary, Text]),
    ] {
        let extras = &[&b"now"[..], b""][..extra];
        let old = bind(formats, params, &[Binary, Text]);
        let mut new = BytesMut::new();
        rewrite_bind(body(&old), "portal", "statement", extras, &mut new).unwrap();

        let all: Vec<_> = params.iter().copied().chain(extras.iter().map(|value| Some(*value))).collect();
        let mut expected = BytesMut::new();
        let codes = codes.iter().copied();
        build::bind(&mut expected, "portal", "statement", codes, all, [Binary, Text]).unwrap();
        assert_eq!(new, expected, "{formats:?} for {} values and {extra} more", params.len());
    }
}

#[test]
fn more_parameters_than_fit_are_refused_and_nothing_is_written() {
    let params = vec![None; 65_534];
    let old = bind(&[Binary], &params, &[]);
    let mut out = BytesMut::from(&b"before"[..]);
    rewrite_bind(body(&old), "", "", &[b"x"], &mut out).unwrap();
    assert_eq!(Bind::decode(body(&out.split_off(6))).unwrap().params.len(), 65_535);

    let error = rewrite_bind(body(&old), "", "", &[b"x", b"y"], &mut out).unwrap_err();
    assert_eq!(error, BuildError::Count { message: "Bind", field: "parameters", count: 65_536 }.into());
    let error = rewrite_bind(body(&old), "", "zero\0byte", &[], &mut out).unwrap_err();
    assert!(matches!(error, WireError::Build(BuildError::ZeroByte { .. })));
    assert_eq!(&out[..], b"before");
}

#[test]
fn a_malformed_bind_is_not_rewritten() {
    let old = bind(&[Binary], &[Some(b"abc")], &[]);
    let mut out = BytesMut::new();
    for len in 0..body(&old).len() {
        assert!(rewrite_bind(&body(&old)[..len], "", "", &[b"x"], &mut out).is_err(), "cut at {len}");
    }
    assert!(out.is_empty());
}

proptest! {
    /// Whatever a client may send, its parameters arrive with the bytes and the format that it meant.
    #[test]
    fn meaning_is_kept(
        params in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..6),
        codes in prop::collection::vec(any::<bool>(), 6),
        style in 0..3_usize,
        results in prop::collection::vec(any::<bool>(), 0..4),
        extra in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4),
        portal in "[^\0]{0,10}",
        statement in "[^\0]{0,10}",
    ) {
        let format = |binary: &bool| if *binary { Binary } else { Text };
        let code_count = [0, 1, params.len()][style];
        let formats: Vec<_> = codes[..code_count].iter().map(format).collect();
        let results: Vec<_> = results.iter().map(format).collect();
        let params: Vec<Option<&[u8]>> = params.iter().map(|value| value.as_deref()).collect();
        let extra: Vec<&[u8]> = extra.iter().map(|value| &value[..]).collect();
        let old = bind(&formats, &params, &results);
        let before = Bind::decode(body(&old)).unwrap();
        let mut new = BytesMut::new();
        before.rewrite(&portal, &statement, &extra, &mut new).unwrap();
        let after = Bind::decode(body(&new)).unwrap();

        prop_assert_eq!((after.portal, after.statement), (&*portal, &*statement));
        prop_assert_eq!(after.result_formats, before.result_formats);
        let expected: Vec<_> = params.iter().copied().chain(extra.iter().map(|value| Some(*value))).collect();
        prop_assert_eq!(after.params.iter().collect::<Vec<_>>(), expected);
        for i in 0..after.params.len() {
            let meant = if i < params.len() { before.param_formats.of(i) } else { Text };
            prop_assert_eq!(after.param_formats.of(i), meant);
        }
    }
}
