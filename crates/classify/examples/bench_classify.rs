//! Prints what the hot path costs: normalise, look up the class, bind the items.

use onecopy_classify::{Catalogue, ClassCache, Context, NoParams, Scratch, context_key, normalise};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let path = std::env::args().nth(1);
    let json = match path.map(std::fs::read_to_string) {
        Some(Ok(json)) => json,
        Some(Err(error)) => {
            eprintln!("cannot read the catalogue: {error}");
            std::process::exit(1);
        }
        None => include_str!("../tests/catalogues/pgbench.json").to_owned(),
    };
    let catalogue = match Catalogue::from_json(&json) {
        Ok(catalogue) => catalogue,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let search_path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &search_path, temporary: &[] };
    for sql in [
        "SELECT abalance FROM pgbench_accounts WHERE aid = 12345;",
        "UPDATE pgbench_accounts SET abalance = abalance + -512 WHERE aid = 12345;",
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (7, 1, 12345, -512, CURRENT_TIMESTAMP);",
        "BEGIN",
    ] {
        measure(sql, &context);
    }
}

fn measure(sql: &str, context: &Context<'_>) {
    const ROUNDS: u32 = 200_000;
    let key = context_key(context);
    let mut scratch = Scratch::default();
    let mut cache = ClassCache::new(1000);
    let time = |label: &str, rounds: u32, run: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..rounds {
            run();
        }
        println!("{label:<24} {:>8.0} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    };
    println!("{sql}");
    time("  parse and classify", ROUNDS / 100, &mut || {
        let normalised = normalise(sql, &mut scratch);
        black_box(onecopy_classify::classify(sql, &normalised, context));
    });
    time("  normalise", ROUNDS, &mut || {
        black_box(normalise(black_box(sql), &mut scratch).hash);
    });
    time("  normalise, look up", ROUNDS, &mut || {
        let normalised = normalise(black_box(sql), &mut scratch);
        black_box(cache.get(sql, &normalised, context, key));
    });
    time("  normalise ... bind", ROUNDS, &mut || {
        let normalised = normalise(black_box(sql), &mut scratch);
        let (class, _) = cache.get(sql, &normalised, context, key);
        black_box(class.bind(sql, normalised.layout, &NoParams, &[]));
    });
}
