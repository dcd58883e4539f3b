//! Any text, taken for a statement. Beyond not panicking: constants are where the layout says; comments around a
//! statement change nothing; a class holds for the statement that it came from; and what is rewritten still is a
//! statement, whatever values are put into it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use onecopy_classify::{
    Catalogue, Class, Context, Determinism, FrozenValue, Kind, Normalised, ParamValue, Rewrite, Scratch, classify,
    explain, normalise,
};

/// Longer texts only make the fuzzer slow; lengths have tests of their own.
const LEN_MAX: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if text.len() > LEN_MAX {
        return;
    }
    let mut rest = text;
    loop {
        let mut scratch = Scratch::default();
        let normalised = normalise(rest, &mut scratch);
        statement(rest, &normalised);
        match normalised.next {
            Some(next) => {
                assert!(next > normalised.layout.end, "no progress");
                rest = &rest[next as usize..];
            }
            None => break,
        }
    }
});

fn catalogue() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let json = include_str!("../../crates/classify/tests/catalogues/shop.json");
        let mut catalogue = Catalogue::from_json(json).expect("catalogue document");
        let builtins = include_str!("../../crates/classify/tests/catalogues/builtins15.json");
        catalogue.builtins = serde_json::from_str(builtins).expect("list of functions");
        catalogue.rebuild();
        catalogue
    })
}

fn context() -> Context<'static> {
    static PATH: OnceLock<[String; 1]> = OnceLock::new();
    Context { catalogue: catalogue(), search_path: PATH.get_or_init(|| ["public".to_owned()]), temporary: &[] }
}

fn statement(sql: &str, normalised: &Normalised<'_>) {
    let layout = normalised.layout;
    assert!(sql.is_char_boundary(layout.end as usize));
    let placeholders = normalised.text.iter().filter(|b| (1..=6).contains(*b));
    assert!(placeholders.count() >= layout.consts.len(), "a constant without placeholder");
    let mut at = 0;
    for constant in layout.consts {
        assert!(at <= constant.start && constant.start < constant.end && constant.end <= layout.end);
        assert!(sql.get(constant.start as usize..constant.end as usize).is_some());
        assert_eq!(layout.offset(layout.position(constant.start)), constant.start as usize);
        at = constant.end;
    }
    assert!(layout.anchors.windows(2).all(|pair| pair[0] <= pair[1]));

    let class = classify(sql, normalised, &context());
    assert!(class.holds_for(sql, normalised));
    bind(&class, sql, normalised);
    if matches!(class.kind, Kind::SyntaxError { .. }) {
        return;
    }
    let _ = explain(sql, &context()).to_string();
    if normalised.unterminated {
        return;
    }
    let statement = &sql[..layout.end as usize];
    let surrounded = format!("/* a /* b */ */ {statement}\n -- c");
    let mut scratch = Scratch::default();
    let again = normalise(&surrounded, &mut scratch);
    assert_eq!(again.text, normalised.text, "comments around a statement change its text");

    rewritten(&class.rewrite, &class, sql, normalised);
    if let Determinism::Capture(plan) = &class.determinism {
        rewritten(&plan.rewrite, &class, sql, normalised);
        must_parse(&onecopy_classify::captured_sql(plan).sql);
    }
    if let Some(form) = &class.parameterised {
        must_parse(&form.sql);
        let frozen = vec![FrozenValue("1".to_owned()); class.rewrite.frozen.len()];
        if let Some(values) = form.values(sql, layout, &frozen) {
            assert_eq!(values.len(), form.types.len());
        }
    }
}

fn rewritten(rewrite: &Rewrite, class: &Class, sql: &str, normalised: &Normalised<'_>) {
    for value in ["1", "it's a \\ $$ -- /*", ""] {
        let frozen = vec![FrozenValue(value.to_owned()); rewrite.frozen.len()];
        must_parse(&rewrite.render_simple(sql, normalised.layout, &frozen));
    }
    if class.params_max < 60_000 {
        must_parse(&rewrite.render_extended(sql, normalised.layout, class.params_max));
    }
}

fn must_parse(sql: &str) {
    let mut scratch = Scratch::default();
    let normalised = normalise(sql, &mut scratch);
    let class = classify(sql, &normalised, &context());
    assert!(!matches!(class.kind, Kind::SyntaxError { .. }), "{sql}: {:?}", class.kind);
    assert!(normalised.next.is_none(), "{sql}");
}

fn bind(class: &Class, sql: &str, normalised: &Normalised<'_>) {
    let odd: &[Option<&[u8]>] = &[None, Some(b""), Some(b"5"), Some(b"\xff\x00"), Some(b"{1,NULL,\"a\\\"\"}"), Some(&[0; 20])];
    for (i, bytes) in odd.iter().enumerate() {
        for type_oid in [0, 20, 23, 25, 1007, 1700, 2950] {
            let params: Vec<ParamValue<'_>> =
                (0..4).map(|_| ParamValue { type_oid, binary: i % 2 == 1, bytes: *bytes }).collect();
            let _ = class.bind(sql, normalised.layout, &params, &[FrozenValue("7".to_owned())]);
            let _ = class.determinism_of(sql, normalised.layout, &params);
        }
    }
}
