//! Explains statements against a catalogue document: `explain catalogue.json "SELECT ..." ...`; without statements,
//! those on standard input, separated by lines of `--`.

use onecopy_classify::{Catalogue, Context, explain};
use std::io::Read as _;

fn main() {
    let mut args = std::env::args().skip(1);
    let json = args.next().map(std::fs::read_to_string);
    let catalogue = match json {
        Some(Ok(json)) => Catalogue::from_json(&json),
        _ => {
            eprintln!("usage: explain CATALOGUE.json [SQL ...]");
            std::process::exit(2);
        }
    };
    let catalogue = match catalogue {
        Ok(catalogue) => catalogue,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let mut statements: Vec<String> = args.collect();
    if statements.is_empty() {
        let mut text = String::new();
        if std::io::stdin().read_to_string(&mut text).is_err() {
            eprintln!("standard input is no UTF-8 text");
            std::process::exit(1);
        }
        statements = text.split("\n--\n").map(|s| s.trim().to_owned()).collect();
    }
    let search_path = ["public".to_owned()];
    let context = Context { catalogue: &catalogue, search_path: &search_path, temporary: &[] };
    for sql in &statements {
        println!("{sql}\n{}", explain(sql, &context));
    }
}
