//! Prints the catalogue query for a server version, to be piped into psql.

fn main() {
    let version = std::env::args().nth(1).and_then(|v| v.parse().ok()).unwrap_or(150_000);
    println!("BEGIN;");
    println!("{};", onecopy_classify::catalogue_queries::CATALOGUE_SETUP);
    println!("{};", onecopy_classify::catalogue_queries::catalogue_query(version));
    println!("COMMIT;");
}
