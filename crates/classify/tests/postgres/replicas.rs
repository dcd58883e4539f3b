//! Determinism: what is executed at home and what is applied elsewhere leave the same contents, though rows lie in
//! another order there, and the clock and random numbers differ.

use super::generate::Generator;
use super::server::{Answer, Session, TestServer};
use onecopy_classify::{
    CapturePlan, Catalogue, Class, Context, Determinism, FrozenKind, FrozenValue, Layout, NoParams, Numbered,
    Scratch, captured_sql, classify, normalise,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::path::Path;

/// Statements tried by default; `REPLICA_STATEMENTS` asks for more, `REPLICA_SEED` for others.
const STATEMENTS: u64 = 400;

#[test]
fn random_statements_leave_two_replicas_alike() {
    let Some(server) = TestServer::start() else { return };
    let (home, other) = (server.create("home", "random"), server.create("other", "random"));
    let catalogue = home.catalogue();
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (statements, seed) = (number("REPLICA_STATEMENTS", STATEMENTS), number("REPLICA_SEED", 1));
    let mut generator = Generator { random: ChaCha8Rng::seed_from_u64(seed), noisy: false };
    let mut pair = Pair::new(&home, &other, &catalogue);
    for round in 0..statements {
        if round % 40 == 0 {
            let tables: Vec<&str> = catalogue.tables.iter().map(|t| t.name.as_str()).collect();
            let truncate = format!("TRUNCATE {} CASCADE", tables.join(", "));
            pair.both(&truncate);
            generator.noisy = false;
            generator.fill().iter().for_each(|sql| pair.both_ask(sql));
            pair.scatter();
        }
        generator.noisy = round % 3 != 0;
        let group = generator.group();
        let sql = generator.write(group);
        pair.apply(&sql, &format!("seed {seed}, statement {round}"));
    }
    pair.report();
    assert!(pair.replayed > statements / 10 && pair.captured > statements / 40, "the test shows little");
}

#[test]
fn the_cases_of_writes_leave_two_replicas_alike() {
    let Some(server) = TestServer::start() else { return };
    let (home, other) = (server.create("shop_home", "shop"), server.create("shop_other", "shop"));
    let catalogue = home.catalogue();
    let mut pair = Pair::new(&home, &other, &catalogue);
    pair.try_cases(SHOP_ROWS, &["writes", "other"]);
    assert!(pair.replayed > 60 && pair.captured > 15, "the test shows little");
}

/// What users define has other OIDs in another database, as on another server.
#[test]
fn the_cases_of_oids_leave_two_replicas_alike() {
    let Some(server) = TestServer::start() else { return };
    let (home, other) = (server.create("oids_home", "oids"), server.create("oids_other", "oids"));
    let oid = "SELECT 'plain'::regclass::oid";
    assert_ne!(home.value(oid), other.value(oid));
    let catalogue = home.catalogue();
    let mut pair = Pair::new(&home, &other, &catalogue);
    pair.try_cases(OID_ROWS, &["oids"]);
    assert!(pair.replayed > 10 && pair.captured > 20, "the test shows little");
}

/// Two databases that must stay alike.
struct Pair<'s> {
    home: &'s Session<'s>,
    other: &'s Session<'s>,
    catalogue: &'s Catalogue,
    sequences: HashMap<String, i64>,
    replayed: u64,
    prepared: u64,
    captured: u64,
    refused: u64,
    failed: u64,
}

impl<'s> Pair<'s> {
    fn new(home: &'s Session<'s>, other: &'s Session<'s>, catalogue: &'s Catalogue) -> Pair<'s> {
        for session in [home, other] {
            session.run("SET TimeZone = 'UTC'");
        }
        Pair {
            home,
            other,
            catalogue,
            sequences: HashMap::new(),
            replayed: 0,
            prepared: 0,
            captured: 0,
            refused: 0,
            failed: 0,
        }
    }

    /// Executes the changes among cases one by one, each on these rows.
    fn try_cases(&mut self, rows: &[&str], files: &[&str]) {
        for sql in rows {
            self.both(sql);
        }
        self.scatter();
        for file in files {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cases/{file}.txt"));
            let text = std::fs::read_to_string(path).expect("cases");
            for block in text.split("\ncase: ").skip(1) {
                let (title, rest) = block.split_once('\n').expect("a statement");
                let sql = rest.split("\n----").next().expect("a statement");
                let changes = [
                    "INSERT",
                    "UPDATE",
                    "DELETE",
                    "MERGE",
                    "WITH",
                    "TRUNCATE",
                    "CALL",
                    "CREATE TABLE copied",
                    "ALTER TABLE watched",
                ];
                let fits = changes.iter().any(|c| sql.starts_with(c))
                    && !sql.contains('$')
                    && !sql.contains("scratch");
                if fits {
                    self.both("BEGIN");
                    self.apply(sql, title);
                    self.both("ROLLBACK");
                }
            }
        }
        self.report();
    }

    fn both(&self, sql: &str) {
        self.home.run(sql);
        self.other.run(sql);
    }

    fn both_ask(&self, sql: &str) {
        let (a, b) = (self.home.ask(sql), self.other.ask(sql));
        assert_eq!(matches!(a, Answer::Error(_)), matches!(b, Answer::Error(_)), "{sql}");
    }

    /// Puts the rows of the other replica in another order.
    fn scatter(&self) {
        self.other.run("SET session_replication_role = replica");
        for table in self.catalogue.tables.iter().filter(|t| t.kind == 'r' && t.schema == "public") {
            let columns: Vec<String> = table
                .columns
                .iter()
                .filter(|c| c.generated.is_none())
                .map(|c| format!("\"{}\"", c.name))
                .collect();
            let (name, list) = (&table.name, columns.join(", "));
            self.other.run(&format!(
                "CREATE TEMP TABLE moved AS SELECT {list} FROM ONLY \"{name}\" ORDER BY md5(random()::text);
                 DELETE FROM ONLY \"{name}\";
                 INSERT INTO \"{name}\" ({list}) OVERRIDING SYSTEM VALUE SELECT * FROM moved;
                 DROP TABLE moved"
            ));
        }
        self.other.run("SET session_replication_role = origin");
        self.compare("after its rows were moved");
    }

    /// Executes a statement at home and applies it to the other, as the class says.
    fn apply(&mut self, sql: &str, what: &str) {
        let path = ["public".to_owned()];
        let context = Context { catalogue: self.catalogue, search_path: &path, temporary: &[] };
        let mut scratch = Scratch::default();
        let normalised = normalise(sql, &mut scratch);
        let class = classify(sql, &normalised, &context);
        let layout = normalised.layout;
        match class.determinism_of(sql, layout, &NoParams).clone() {
            Determinism::Read => {
                self.home.ask(sql);
            }
            Determinism::Refuse(_) => self.refused += 1,
            Determinism::Replay => self.replay(sql, layout, &class),
            Determinism::Capture(plan) => {
                let Some(frozen) = self.freeze(&plan.rewrite.frozen) else { return };
                self.capture(sql, layout, &plan, &frozen, what);
            }
            Determinism::Number(plan) => {
                let Some(mut frozen) = self.freeze(&plan.capture.rewrite.frozen) else { return };
                let Numbered::Query { count, .. } = &plan.source else { return };
                match self.ask_guarded(self.home, &count.render_simple(sql, layout, &frozen)) {
                    Answer::Rows(rows, _) => {
                        let count: i64 = rows[0][0].as_deref().unwrap().parse().unwrap();
                        for block in &plan.blocks {
                            let FrozenKind::NextVal { name, .. } =
                                &plan.capture.rewrite.frozen[block.frozen].kind
                            else {
                                panic!("a block is drawn")
                            };
                            let last = self.sequences.entry(name.clone()).or_insert(1000);
                            frozen[block.frozen] = FrozenValue((*last + block.increment).to_string());
                            *last += count * block.increment;
                        }
                        self.capture(sql, layout, &plan.capture, &frozen, what);
                    }
                    Answer::Error(_) => self.failed += 1,
                }
            }
        }
        self.compare(&format!("{what}: {sql}\n{:?}", class.determinism));
    }

    /// Ships the rows that a statement changes.
    fn capture(
        &mut self,
        sql: &str,
        layout: Layout<'_>,
        plan: &CapturePlan,
        frozen: &[FrozenValue],
        what: &str,
    ) {
        let text = plan.rewrite.render_simple(sql, layout, frozen);
        let Answer::Rows(rows, _) = self.ask_guarded(self.home, &text) else {
            self.failed += 1;
            return;
        };
        let apply = captured_sql(plan);
        self.other.run("SET session_replication_role = replica");
        for row in rows {
            let row = &row[row.len() - apply.types.len()..];
            let values: Vec<Option<&str>> = row.iter().map(Option::as_deref).collect();
            let answer = self.other.execute(&[], &apply.sql, &values);
            assert!(matches!(answer, Answer::Rows(_, 1)), "{what}: {sql}\n{}: {answer:?}", apply.sql);
        }
        self.other.run("SET session_replication_role = origin");
        self.captured += 1;
    }

    fn replay(&mut self, sql: &str, layout: Layout<'_>, class: &Class) {
        let Some(frozen) = self.freeze(&class.rewrite.frozen) else { return };
        let text = class.rewrite.render_simple(sql, layout, &frozen);
        let at_home = self.ask_guarded(self.home, &text);
        let form = class.parameterised.as_ref().and_then(|f| Some((f, f.values(sql, layout, &frozen)?)));
        let elsewhere = match form {
            Some((form, values)) => {
                self.prepared += 1;
                let values: Vec<Option<&str>> = values.iter().map(|v| Some(v.as_ref())).collect();
                self.guarded(self.other, |session| session.execute(&form.types, &form.sql, &values))
            }
            None => self.ask_guarded(self.other, &text),
        };
        let outcome = |answer: &Answer| match answer {
            Answer::Rows(_, count) => format!("{count} rows"),
            // Which of several errors comes first may depend on the order of rows.
            Answer::Error(_) => "error".to_owned(),
        };
        assert_eq!(outcome(&at_home), outcome(&elsewhere), "{sql}\n{text}");
        match at_home {
            Answer::Rows(..) => self.replayed += 1,
            Answer::Error(_) => self.failed += 1,
        }
    }

    fn ask_guarded(&self, session: &Session<'_>, sql: &str) -> Answer {
        self.guarded(session, |session| session.ask(sql))
    }

    /// An error must not end a transaction around.
    fn guarded(&self, session: &Session<'_>, then: impl Fn(&Session<'_>) -> Answer) -> Answer {
        let inside = session
            .value("SELECT pg_current_xact_id_if_assigned() IS NOT NULL OR now() <> statement_timestamp()");
        if inside != "t" {
            return then(session);
        }
        session.run("SAVEPOINT guard");
        let answer = then(session);
        if matches!(answer, Answer::Error(_)) {
            session.run("ROLLBACK TO guard");
        }
        session.run("RELEASE guard");
        answer
    }

    fn freeze(&mut self, frozen: &[onecopy_classify::Frozen]) -> Option<Vec<FrozenValue>> {
        frozen
            .iter()
            .map(|f| {
                Some(FrozenValue(match &f.kind {
                    FrozenKind::TransactionTimestamp => "2026-01-02 03:04:05.678901+00".to_owned(),
                    FrozenKind::StatementTimestamp => "2026-01-02 03:04:06.789012+00".to_owned(),
                    FrozenKind::NextVal { name, .. } => {
                        let next = self.sequences.entry(name.clone()).or_insert(1000);
                        *next += 1;
                        next.to_string()
                    }
                    FrozenKind::CurrVal { name, .. } => self.sequences.get(name)?.to_string(),
                    FrozenKind::LastVal => self.sequences.values().next()?.to_string(),
                }))
            })
            .collect()
    }

    fn compare(&self, what: &str) {
        let (a, b) = (self.home.contents(self.catalogue), self.other.contents(self.catalogue));
        for (home, other) in a.iter().zip(&b) {
            assert_eq!(home, other, "the replicas differ: {what}");
        }
    }

    fn report(&self) {
        eprintln!(
            "{} replayed ({} prepared), {} captured, {} refused, {} failed alike",
            self.replayed, self.prepared, self.captured, self.refused, self.failed
        );
    }
}

const SHOP_ROWS: &[&str] = &[
    "INSERT INTO parent SELECT i, 'parent ' || i, i * 10 FROM generate_series(1, 9) i",
    "INSERT INTO child SELECT i, i % 5 + 1, chr(97 + i % 4) FROM generate_series(1, 30) i",
    "INSERT INTO cascading SELECT i, i % 5 + 1, 'label ' || i FROM generate_series(1, 9) i",
    "INSERT INTO nulling SELECT i, i % 9 + 1 FROM generate_series(1, 20) i",
    "INSERT INTO tree SELECT i, nullif(i / 2, 0) FROM generate_series(1, 20) i",
    "INSERT INTO job (state, created, token) SELECT CASE WHEN i % 2 = 0 THEN 'new' ELSE 'old' END,
        '2020-01-01', '00000000-0000-0000-0000-000000000001' FROM generate_series(1, 9) i",
    "INSERT INTO account (owner) VALUES ('a'), ('b')",
    "INSERT INTO multi SELECT i, i % 3, i, i FROM generate_series(1, 9) i",
    "INSERT INTO partial_key SELECT i, 'mail' || i, false FROM generate_series(1, 5) i",
    "INSERT INTO expression_key SELECT i, 'mail' || i, i FROM generate_series(1, 5) i",
    "INSERT INTO computed SELECT i, i FROM generate_series(1, 5) i",
    "INSERT INTO floats SELECT i, 1e16 / i + 0.1 * i, i FROM generate_series(1, 50) i",
    "INSERT INTO measure SELECT i % 2 + 1, i, i FROM generate_series(1, 9) i",
    "INSERT INTO animal SELECT i, 'a' || i FROM generate_series(1, 9) i",
    "INSERT INTO dog SELECT i, 'd' || i, i FROM generate_series(1, 9) i",
    "INSERT INTO keyless SELECT i, 'k' || i FROM generate_series(1, 9) i",
    "INSERT INTO secret SELECT i, 'me', i FROM generate_series(1, 9) i",
    "REFRESH MATERIALIZED VIEW names",
];

const OID_ROWS: &[&str] = &[
    "INSERT INTO plain SELECT i, i, i, 'text ' || i, 'rats' FROM generate_series(1, 9) i",
    "INSERT INTO watched VALUES (1, 'plain', 1, 'a'), (2, 'watched', 2, 'b'), (3, 'by_name', 3, 'c'), (4, NULL, 4, 'd')",
    "INSERT INTO watched_too VALUES (1, 'plain', 'held', '{watched,plain}', '(1,held)'), (2, 'found', NULL, NULL, NULL)",
    "INSERT INTO by_name VALUES ('plain', 101), ('found', 102), ('held', 103)",
    "INSERT INTO held VALUES (1, 'sad', '{ok}', '(1,ok)', '[sad,ok]'), (2, 'ok', NULL, NULL, NULL), (21, 'happy', NULL, NULL, NULL)",
    "INSERT INTO listed VALUES (1, 'sad')",
    "REFRESH MATERIALIZED VIEW watched_rows",
];
