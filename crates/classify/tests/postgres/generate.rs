//! Random statements over the schema `random`, from domains so small that most pairs of them meet.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

pub struct Generator {
    pub random: ChaCha8Rng,
    /// Whether statements may depend on the clock, random numbers and the order of rows.
    pub noisy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Int,
    Text,
    Mood,
    Numeric,
    Bool,
}

type Columns = &'static [(&'static str, Type)];

use Type::{Bool, Int, Mood, Numeric, Text};

const TABLES: &[(&str, Columns)] = &[
    ("p", &[("id", Int), ("r", Int), ("n", Text)]),
    ("c", &[("id", Int), ("p", Int), ("n", Text)]),
    ("k", &[("id", Int), ("p", Int), ("n", Text)]),
    ("s", &[("id", Int), ("k", Int), ("r", Int)]),
    ("w", &[("a", Int), ("b", Int), ("c", Int), ("d", Int)]),
    (
        "t",
        &[
            ("id", Int),
            ("i8", Int),
            ("x", Text),
            ("v", Text),
            ("h", Text),
            ("m", Mood),
            ("q", Numeric),
            ("e", Numeric),
        ],
    ),
    ("f", &[("id", Int), ("x", Text), ("dead", Bool)]),
    ("l", &[("id", Int), ("x", Text)]),
    ("g", &[("id", Int), ("a", Int)]),
    ("o", &[("a", Int), ("n", Int)]),
    ("z", &[("r", Int), ("id", Int), ("v", Int)]),
    ("z2", &[("v", Int), ("id", Int), ("r", Int)]),
    ("u", &[("id", Int), ("n", Int)]),
    ("ui", &[("id", Int), ("n", Int), ("extra", Int)]),
];

/// Tables with rows of which statements of one run are made, so that they meet.
const GROUPS: &[&[&str]] = &[
    &["p", "c", "k", "s"],
    &["p", "c"],
    &["p", "k", "s"],
    &["w", "o"],
    &["t"],
    &["t", "f", "l", "g"],
    &["f"],
    &["l"],
    &["g"],
    &["z", "z2"],
    &["u", "ui"],
    &["p", "c", "w", "o", "t", "u"],
];

impl Generator {
    /// Statements that fill the tables.
    pub fn fill(&mut self) -> Vec<String> {
        let mut statements = Vec::new();
        for (table, _) in TABLES {
            for _ in 0..4 {
                statements.push(self.insert(table, false));
            }
        }
        statements
    }

    /// Two statements over the same few tables.
    pub fn pair(&mut self) -> (String, String) {
        let group = *self.pick(GROUPS);
        (self.statement(group), self.statement(group))
    }

    /// A new child and a new parent.
    pub fn family(&mut self) -> (String, String) {
        (self.insert("c", false), self.insert("p", false))
    }

    pub fn statement(&mut self, group: &[&'static str]) -> String {
        match self.random.random_range(0..100) {
            0..30 => self.select(group, 0),
            30..36 => self.locking(group),
            36..62 => {
                let table = *self.pick(group);
                self.update(table, group)
            }
            62..76 => {
                let table = *self.pick(group);
                self.delete(table, group)
            }
            76..94 => {
                let table = *self.pick(group);
                self.insert(table, true)
            }
            94..96 => self.insert_select(group),
            96..98 => self.merge(group),
            98 => self.write_cte(group),
            _ => self.call(),
        }
    }

    pub fn write(&mut self, group: &[&'static str]) -> String {
        loop {
            let statement = self.statement(group);
            let reads = ["SELECT", "(", "VALUES"];
            if !reads.iter().any(|r| statement.starts_with(r)) && !statement.starts_with("WITH x AS (SELECT")
            {
                return statement;
            }
        }
    }

    /// A query of tables joined by foreign keys, or nearly so.
    pub fn key_join(&mut self) -> String {
        let (joined, tables): (_, &[(&str, &str)]) = *self.pick(&[
            ("c x JOIN p y ON y.id = x.p", &[("x", "c"), ("y", "p")][..]),
            ("c x LEFT JOIN p y ON x.p = y.id", &[("x", "c"), ("y", "p")]),
            ("p y JOIN k x ON y.id = x.p", &[("y", "p"), ("x", "k")]),
            ("s x, k y", &[("x", "s"), ("y", "k")]),
            ("s x JOIN p y ON y.r = x.r", &[("x", "s"), ("y", "p")]),
            ("s x JOIN k y ON y.id = x.k JOIN p z ON z.id = y.p", &[("x", "s"), ("y", "k"), ("z", "p")]),
            (
                "s x LEFT JOIN k y ON y.id = x.k LEFT JOIN p z ON z.id = y.p",
                &[("x", "s"), ("y", "k"), ("z", "p")],
            ),
            ("s x JOIN k y ON y.id = x.k JOIN p z ON z.r = x.r", &[("x", "s"), ("y", "k"), ("z", "p")]),
            ("c x JOIN p y ON y.r = x.p", &[("x", "c"), ("y", "p")]),
            (
                "s x JOIN k y ON y.id = x.k JOIN p z ON z.id = y.p AND z.r = 1",
                &[("x", "s"), ("y", "k"), ("z", "p")],
            ),
            (
                "c x CROSS JOIN p y LEFT JOIN k z ON z.p = x.p AND y.id = x.p",
                &[("x", "c"), ("y", "p"), ("z", "k")],
            ),
        ]);
        let relations: Vec<(&str, Columns)> =
            tables.iter().map(|(alias, table)| (*alias, self.columns(table))).collect();
        let n = self.number();
        let mut conditions = vec![format!("x.{} = {n}", self.pick(&["id", "id", "n", "id"]))];
        if joined == "s x, k y" {
            conditions.push("y.id = x.k".to_owned());
        }
        if conditions[0].starts_with("x.n") {
            conditions[0] = if joined.contains("s x") {
                "x.k IS NOT NULL".to_owned()
            } else {
                "x.n IS NOT NULL".to_owned()
            };
        }
        if self.chance(15) {
            let (alias, columns) = *self.pick(&relations);
            conditions.push(self.simple(alias, columns));
        }
        let shown = match self.chance(30) {
            true => self.shown(&relations),
            false => {
                let (alias, columns) = *self.pick(&relations);
                let (column, _) = *self.pick(columns);
                format!("x.*, {alias}.{column}")
            }
        };
        let last = if self.chance(10) { " LIMIT 2" } else { "" };
        format!("SELECT {shown} FROM {joined} WHERE {}{last}", conditions.join(" AND "))
    }

    /// A write of about one row.
    pub fn small_write(&mut self, group: &[&'static str]) -> String {
        let table = *self.pick(group);
        let columns = self.columns(table);
        let ((name, kind), (other, other_kind)) = (*self.pick(columns), *self.pick(columns));
        let mut condition = format!("x.{name} = {}", self.plain(kind));
        if self.chance(40) {
            let value = self.plain(other_kind);
            condition.push_str(&format!(" AND x.{other} = {value}"));
        }
        match self.random.random_range(0..3) {
            0 => self.insert(table, true),
            1 => format!("DELETE FROM {table} x WHERE {condition}"),
            _ => {
                let set = self.assignment("x", columns);
                format!("UPDATE {table} x SET {set} WHERE {condition}")
            }
        }
    }

    pub fn group(&mut self) -> &'static [&'static str] {
        self.pick::<&[&str]>(GROUPS)
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        of.choose(&mut self.random).expect("a choice")
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn columns(&self, table: &str) -> Columns {
        TABLES.iter().find(|(name, _)| *name == table).map(|(_, c)| *c).expect("a table")
    }

    fn literal(&mut self, kind: Type) -> String {
        let number = self.random.random_range(0..4);
        if self.chance(3) {
            return "NULL".to_owned();
        }
        if self.noisy && self.chance(12) {
            return match kind {
                Int => self
                    .pick(&[
                        "(random() * 4)::int",
                        "extract(day FROM now())::int",
                        "extract(microseconds FROM clock_timestamp())::int",
                        "(SELECT id FROM p LIMIT 1)",
                        "(SELECT a FROM o ORDER BY a LIMIT 1)",
                        "(SELECT id FROM c ORDER BY id DESC LIMIT 1)",
                        "(SELECT sum(n) FROM o)",
                        "pg_backend_pid() % 4",
                    ])
                    .to_string(),
                Text => self
                    .pick(&[
                        "md5(random()::text)",
                        "now()::text",
                        "CURRENT_DATE::text",
                        "left(gen_random_uuid()::text, 2)",
                        "(SELECT string_agg(x, '') FROM f)",
                        "(SELECT min(x) FROM l)",
                        "current_user::text",
                        "(SELECT ctid::text FROM f LIMIT 1)",
                    ])
                    .to_string(),
                Mood => "CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END::mood".to_owned(),
                Numeric => self.pick(&["(random() * 9)::numeric", "(SELECT max(q) FROM t)"]).to_string(),
                Bool => "random() < 0.5".to_owned(),
            };
        }
        match kind {
            Int => match self.random.random_range(0..12) {
                0 => format!("'{number}'"),
                1 => format!("{number}::bigint"),
                2 => format!("' {number} '"),
                3 => format!("'{number}'::int"),
                4 => format!("-{number}"),
                _ => number.to_string(),
            },
            Text => {
                let text = self.pick(&["a", "b", "A", "a ", "", "ab", "b  "]);
                match self.random.random_range(0..8) {
                    0 => format!("E'{text}'"),
                    1 => format!("$${text}$$"),
                    2 => format!("'{text}'::text"),
                    3 => format!("'{text}'::varchar"),
                    4 => format!("'{text}'::bpchar"),
                    _ => format!("'{text}'"),
                }
            }
            Mood => format!("'{}'", self.pick(&["a", "b", "c"])),
            Numeric => self
                .pick(&["1", "1.0", "'1.00'", "2", "2.5", "-1", "1.04", "'0.96'", "1::numeric", "0", "1e0"])
                .to_string(),
            Bool => self.pick(&["true", "false", "'t'", "'off'"]).to_string(),
        }
    }

    /// A condition over one table by an alias.
    fn condition(&mut self, alias: &str, columns: Columns, group: &[&'static str], depth: u32) -> String {
        let (name, kind) = *self.pick(columns);
        let column = format!("{alias}.{name}");
        if self.noisy && self.chance(6) {
            let table = *self.pick(group);
            let first = self.columns(table)[0].0;
            if kind == Int {
                return match self.random.random_range(0..3) {
                    0 => format!("{column} IN (SELECT {first} FROM {table} LIMIT 2)"),
                    1 => format!("{column} IN (SELECT {first} FROM {table} ORDER BY {first} LIMIT 2)"),
                    _ => format!("{column} >= (SELECT {first} FROM {table} OFFSET 1 LIMIT 1)"),
                };
            }
            return format!("random() < 0.5 AND {column} IS NOT NULL");
        }
        match self.random.random_range(0..40) {
            0..18 => {
                let literal = self.literal(kind);
                if self.chance(15) {
                    format!("{literal} = {column}")
                } else {
                    format!("{column} = {literal}")
                }
            }
            18..21 => {
                let list: Vec<String> =
                    (0..self.random.random_range(1..4)).map(|_| self.plain(kind)).collect();
                format!("{column} IN ({})", list.join(", "))
            }
            21 if kind == Int => {
                let list: Vec<String> =
                    (0..self.random.random_range(0..4)).map(|_| self.number().to_string()).collect();
                format!("{column} = ANY('{{{}}}')", list.join(","))
            }
            22 if kind == Int => format!("{column} = ANY(ARRAY[{}, {}])", self.number(), self.number()),
            23 => {
                let (other, other_kind) = *self.pick(columns);
                let (left, right) = (self.plain(kind), self.plain(other_kind));
                format!("({column}, {alias}.{other}) = ({left}, {right})")
            }
            24 => {
                let (other, other_kind) = *self.pick(columns);
                let rows: Vec<String> =
                    (0..2).map(|_| format!("({}, {})", self.plain(kind), self.plain(other_kind))).collect();
                format!("({column}, {alias}.{other}) IN ({})", rows.join(", "))
            }
            25..29 if depth < 3 => {
                let (a, b) = (
                    self.condition(alias, columns, group, depth + 1),
                    self.condition(alias, columns, group, depth + 1),
                );
                format!("({a} AND {b})")
            }
            29..31 if depth < 3 => {
                let (a, b) = (
                    self.condition(alias, columns, group, depth + 1),
                    self.condition(alias, columns, group, depth + 1),
                );
                format!("({a} OR {b})")
            }
            31 if depth < 3 => format!("NOT ({})", self.condition(alias, columns, group, depth + 1)),
            32 if kind == Int => format!("{column} < {}", self.number()),
            33 => format!("{column} IS NOT NULL"),
            34 if kind == Int && depth < 2 => {
                let table = *self.pick(group);
                let of = self.columns(table);
                let ints: Vec<_> = of.iter().filter(|(_, k)| *k == Int).collect();
                let target = self.pick(&ints).0;
                let inner = format!("i{depth}");
                let condition = self.condition(&inner, of, group, depth + 2);
                format!("{column} IN (SELECT {inner}.{target} FROM {table} {inner} WHERE {condition})")
            }
            35 if kind == Int && depth < 2 => {
                let table = *self.pick(group);
                let of = self.columns(table);
                let ints: Vec<_> = of.iter().filter(|(_, k)| *k == Int).collect();
                let target = self.pick(&ints).0;
                let inner = format!("e{depth}");
                let condition = self.condition(&inner, of, group, depth + 2);
                let not = if self.chance(30) { "NOT " } else { "" };
                format!(
                    "{not}EXISTS (SELECT FROM {table} {inner} WHERE {inner}.{target} = {column} AND {condition})"
                )
            }
            36 => format!("{column} IS NOT DISTINCT FROM {}", self.plain(kind)),
            37 => format!("{column}::text = '{}'", self.number()),
            _ => format!("{column} = {}", self.plain(kind)),
        }
    }

    fn plain(&mut self, kind: Type) -> String {
        match kind {
            Int => self.number().to_string(),
            Text => format!("'{}'", self.pick(&["a", "b", "A", "a "])),
            Mood => format!("'{}'", self.pick(&["a", "b"])),
            Numeric => self.pick(&["1", "2.5"]).to_string(),
            Bool => self.pick(&["true", "false"]).to_string(),
        }
    }

    fn number(&mut self) -> i32 {
        self.random.random_range(0..4)
    }

    pub fn select(&mut self, group: &[&'static str], depth: u32) -> String {
        match self.random.random_range(0..27) {
            0..8 => {
                let table = *self.pick(group);
                let only = if self.chance(10) { "ONLY " } else { "" };
                let columns = self.columns(table);
                let condition = self.condition("x", columns, group, 0);
                let shown = self.shown(&[("x", columns)]);
                format!("SELECT {shown} FROM {only}{table} x WHERE {condition}")
            }
            8..14 => self.join(group),
            14 => {
                let table = *self.pick(group);
                let condition = self.condition("x", self.columns(table), group, 0);
                format!("SELECT count(*) FROM {table} x WHERE {condition}")
            }
            15 => {
                let table = *self.pick(group);
                let columns = self.columns(table);
                let (inner, outer) =
                    (self.condition("y", columns, group, 1), self.condition("x", columns, group, 1));
                let distinct = if self.chance(30) { "DISTINCT " } else { "" };
                let shown = self.shown(&[("x", columns)]);
                let all = self.all("y", columns);
                format!(
                    "SELECT {shown} FROM (SELECT {distinct}{all} FROM {table} y WHERE {inner}) x WHERE {outer}"
                )
            }
            16 if depth == 0 => {
                let (a, b) = (self.select(group, 1), self.select(group, 1));
                let strip = |s: &str| s.replacen("SELECT *", "SELECT 1", 1);
                if a.starts_with("SELECT *") && b.starts_with("SELECT *") {
                    let with = *self.pick(&["UNION ALL", "UNION", "EXCEPT", "INTERSECT"]);
                    format!("({}) {with} ({})", strip(&a), strip(&b))
                } else {
                    a
                }
            }
            17 => {
                let table = *self.pick(group);
                let columns = self.columns(table);
                let (inner, outer) =
                    (self.condition("y", columns, group, 1), self.condition("x", columns, group, 1));
                let (all, shown) = (self.all("y", columns), self.shown(&[("x", columns)]));
                format!(
                    "WITH x AS (SELECT {all} FROM {table} y WHERE {inner}) SELECT {shown} FROM x WHERE {outer}"
                )
            }
            18 if group.contains(&"c") => {
                let n = self.number();
                let view = *self.pick(&[
                    "cp x WHERE x.id",
                    "cp x WHERE x.p",
                    "cp x WHERE x.r",
                    "cl x WHERE x.id",
                    "cl x WHERE x.p",
                    "cc x WHERE x.p",
                ]);
                let shown = *self.pick(&["*", "x", "x.id", "count(*)"]);
                format!("SELECT {shown} FROM {view} = {n}")
            }
            19 if group.contains(&"p") => format!("SELECT named({})", self.number()),
            20 => {
                let (a, b) = (*self.pick(group), *self.pick(group));
                let (of_a, of_b) = (self.columns(a), self.columns(b));
                let condition = self.condition("x", of_a, group, 1);
                let link = self.link("x", of_a, "y", of_b);
                let shown = self.shown(&[("x", of_a)]);
                format!(
                    "SELECT {shown}, (SELECT count(*) FROM {b} y WHERE {link}) FROM {a} x WHERE {condition}"
                )
            }
            21 => {
                let (a, b) = (*self.pick(group), *self.pick(group));
                let (of_a, of_b) = (self.columns(a), self.columns(b));
                let condition = self.condition("x", of_a, group, 1);
                let link = self.link("x", of_a, "y", of_b);
                let join = *self.pick(&["CROSS JOIN LATERAL", "LEFT JOIN LATERAL"]);
                let on = if join.starts_with("LEFT") { " ON true" } else { "" };
                let (shown, all) = (self.shown(&[("x", of_a), ("z", of_b)]), self.all("y", of_b));
                format!(
                    "SELECT {shown} FROM {a} x {join} (SELECT {all} FROM {b} y WHERE {link}) z{on} WHERE {condition}"
                )
            }
            22 => {
                let (a, b) = (*self.pick(group), *self.pick(group));
                let shown = self.shown(&[("x", self.columns(a)), ("y", self.columns(b))]);
                format!("SELECT {shown} FROM {a} x NATURAL JOIN {b} y")
            }
            23 => {
                let (a, b) = (*self.pick(group), *self.pick(group));
                let (of_a, of_b) = (self.columns(a), self.columns(b));
                let (link, (name, _)) = (self.link("x", of_a, "y", of_b), *self.pick(of_a));
                let shown = *self.pick(&["j", "j.*", "count(j)"]);
                let shown = if self.chance(40) { format!("j.{name}") } else { shown.to_owned() };
                format!("SELECT {shown} FROM ({a} x JOIN {b} y ON {link}) AS j")
            }
            24 => {
                let table = *self.pick(group);
                let columns = self.columns(table);
                let names: Vec<String> = (0..columns.len()).map(|n| format!("c{n}")).collect();
                let (at, n) = (self.random.random_range(0..columns.len()), self.number());
                format!("SELECT x.c{at} FROM {table} AS x ({}) WHERE x.c0 = {n}", names.join(", "))
            }
            _ => {
                let table = *self.pick(group);
                let columns = self.columns(table);
                let (name, kind) = columns[0];
                let literal = self.literal(kind);
                let shown = self.shown(&[("x", columns)]);
                format!("SELECT {shown} FROM {table} x WHERE x.{name} = {literal}")
            }
        }
    }

    /// What a query shows of its relations.
    fn shown(&mut self, relations: &[(&str, Columns)]) -> String {
        let (alias, columns) = *self.pick(relations);
        let (name, _) = *self.pick(columns);
        match self.random.random_range(0..20) {
            0..5 => "*".to_owned(),
            5 => format!("{alias}.*"),
            6 => alias.to_owned(),
            7 => format!("row_to_json({alias})"),
            8 => format!("({alias}).{name}"),
            9 => "count(*)".to_owned(),
            10 => format!("count({alias}.{name})"),
            11 => "1".to_owned(),
            12 if relations.len() == 1 => name.to_owned(),
            _ => {
                let (other, of_other) = *self.pick(relations);
                let (second, _) = *self.pick(of_other);
                format!("{alias}.{name}, {other}.{second}")
            }
        }
    }

    /// All columns of a relation.
    fn all(&mut self, alias: &str, columns: Columns) -> String {
        match self.random.random_range(0..3) {
            0 => "*".to_owned(),
            1 => format!("{alias}.*"),
            _ => columns.iter().map(|(name, _)| format!("{alias}.{name}")).collect::<Vec<_>>().join(", "),
        }
    }

    /// An equality between columns of two relations whose types can be compared.
    fn link(&mut self, a: &str, of_a: Columns, b: &str, of_b: Columns) -> String {
        for _ in 0..20 {
            let ((x, kind_x), (y, kind_y)) = (*self.pick(of_a), *self.pick(of_b));
            if kind_x == kind_y {
                return format!("{a}.{x} = {b}.{y}");
            }
        }
        "true".to_owned()
    }

    fn join(&mut self, group: &[&'static str]) -> String {
        let (a, b) = (*self.pick(group), *self.pick(group));
        let (of_a, of_b) = (self.columns(a), self.columns(b));
        let kind = *self.pick(&["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let mut on = self.link("x", of_a, "y", of_b);
        if kind != "FULL JOIN" && self.chance(40) {
            let extra = if self.chance(50) { self.simple("x", of_a) } else { self.simple("y", of_b) };
            on = format!("{on} AND {extra}");
        }
        let shown = self.shown(&[("x", of_a), ("y", of_b)]);
        let mut sql = format!("SELECT {shown} FROM {a} x {kind} {b} y ON {on}");
        if self.chance(30) {
            let third = *self.pick(group);
            let of_third = self.columns(third);
            let kind = *self.pick(&["JOIN", "LEFT JOIN", "RIGHT JOIN"]);
            let link = if self.chance(50) {
                self.link("x", of_a, "v", of_third)
            } else {
                self.link("y", of_b, "v", of_third)
            };
            let extra =
                if self.chance(30) { format!(" AND {}", self.simple("v", of_third)) } else { String::new() };
            sql.push_str(&format!(" {kind} {third} v ON {link}{extra}"));
        }
        if self.chance(80) {
            let condition = if self.chance(50) {
                self.condition("x", of_a, group, 1)
            } else {
                self.condition("y", of_b, group, 1)
            };
            sql.push_str(&format!(" WHERE {condition}"));
        }
        sql
    }

    fn simple(&mut self, alias: &str, columns: Columns) -> String {
        let (name, kind) = *self.pick(columns);
        format!("{alias}.{name} = {}", self.plain(kind))
    }

    fn locking(&mut self, group: &[&'static str]) -> String {
        let table = *self.pick(group);
        let condition = self.condition("x", self.columns(table), group, 1);
        let lock = *self.pick(&["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"]);
        format!("SELECT * FROM {table} x WHERE {condition} FOR {lock}")
    }

    fn assignment(&mut self, alias: &str, columns: Columns) -> String {
        let (name, kind) = *self.pick(columns);
        let value = match self.random.random_range(0..8) {
            0 if kind == Int => format!("{alias}.{name} + 1"),
            1 => {
                let same: Vec<_> = columns.iter().filter(|(_, k)| *k == kind).collect();
                format!("{alias}.{}", self.pick(&same).0)
            }
            2 => "DEFAULT".to_owned(),
            3 if kind == Int => format!("(SELECT count(*) FROM o WHERE o.a = {})", self.number()),
            _ => self.literal(kind),
        };
        format!("{name} = {value}")
    }

    fn update(&mut self, table: &'static str, group: &[&'static str]) -> String {
        let columns = self.columns(table);
        let mut set = vec![self.assignment("x", columns)];
        if self.chance(30) {
            let more = self.assignment("x", columns);
            if more.split('=').next() != set[0].split('=').next() {
                set.push(more);
            }
        }
        let condition = self.condition("x", columns, group, 0);
        let only = if self.chance(5) { "ONLY " } else { "" };
        let returning = if self.chance(20) { " RETURNING x.*" } else { "" };
        if self.chance(10) {
            let other = *self.pick(group);
            let link = self.link("x", columns, "y", self.columns(other));
            return format!(
                "UPDATE {only}{table} x SET {} FROM {other} y WHERE {link} AND {condition}",
                set.join(", ")
            );
        }
        format!("UPDATE {only}{table} x SET {} WHERE {condition}{returning}", set.join(", "))
    }

    fn delete(&mut self, table: &'static str, group: &[&'static str]) -> String {
        let columns = self.columns(table);
        let condition = self.condition("x", columns, group, 0);
        if self.chance(12) {
            let other = *self.pick(group);
            let link = self.link("x", columns, "y", self.columns(other));
            return format!("DELETE FROM {table} x USING {other} y WHERE {link} AND {condition}");
        }
        let returning = if self.chance(20) { " RETURNING *" } else { "" };
        format!("DELETE FROM {table} x WHERE {condition}{returning}")
    }

    fn insert(&mut self, table: &'static str, conflicts: bool) -> String {
        let columns = self.columns(table);
        let given: Vec<(&str, Type)> =
            columns.iter().enumerate().filter(|(i, _)| *i < 2 || self.chance(85)).map(|(_, c)| *c).collect();
        let rows: Vec<String> = (0..if self.chance(80) { 1 } else { 2 })
            .map(|_| {
                let values: Vec<String> = given
                    .iter()
                    .map(|(_, kind)| if self.chance(4) { "DEFAULT".to_owned() } else { self.literal(*kind) })
                    .collect();
                format!("({})", values.join(", "))
            })
            .collect();
        let names: Vec<&str> = given.iter().map(|(n, _)| *n).collect();
        let mut sql = format!("INSERT INTO {table} ({}) VALUES {}", names.join(", "), rows.join(", "));
        if !conflicts {
            return format!("{sql} ON CONFLICT DO NOTHING");
        }
        let key: &[&str] = match table {
            "p" => &["id", "r"],
            "k" => &["id", "n"],
            "w" => &["a, b", "c"],
            "t" => &["id", "x", "v", "h"],
            "c" | "s" | "f" | "g" | "l" | "u" | "ui" => &["id"],
            _ => &[],
        };
        match self.random.random_range(0..10) {
            0 => sql.push_str(" ON CONFLICT DO NOTHING"),
            1 if !key.is_empty() => {
                let on = *self.pick(key);
                sql.push_str(&format!(" ON CONFLICT ({on}) DO NOTHING"));
            }
            2 | 3 if !key.is_empty() => {
                let on = *self.pick(key);
                let (name, kind) = *self.pick(columns);
                let value = match self.random.random_range(0..4) {
                    0 => format!("EXCLUDED.{name}"),
                    1 if kind == Int => format!("{table}.{name} + 1"),
                    _ => self.literal(kind),
                };
                sql.push_str(&format!(" ON CONFLICT ({on}) DO UPDATE SET {name} = {value}"));
                if self.chance(30) {
                    let condition = self.simple(table, columns);
                    sql.push_str(&format!(" WHERE {condition}"));
                }
            }
            _ => {}
        }
        if self.chance(15) {
            sql.push_str(" RETURNING *");
        }
        sql
    }

    fn insert_select(&mut self, group: &[&'static str]) -> String {
        let (to, from) = (*self.pick(group), *self.pick(group));
        let (of_to, of_from) = (self.columns(to), self.columns(from));
        let condition = self.condition("x", of_from, group, 1);
        let targets: Vec<String> = of_to
            .iter()
            .map(|(_, kind)| {
                let same: Vec<_> = of_from.iter().filter(|(_, k)| k == kind).collect();
                if same.is_empty() || self.chance(40) {
                    self.literal(*kind)
                } else {
                    format!("x.{}", self.pick(&same).0)
                }
            })
            .collect();
        let names: Vec<&str> = of_to.iter().map(|(n, _)| *n).collect();
        format!(
            "INSERT INTO {to} ({}) SELECT {} FROM {from} x WHERE {condition}",
            names.join(", "),
            targets.join(", ")
        )
    }

    fn merge(&mut self, group: &[&'static str]) -> String {
        let (to, from) = (*self.pick(group), *self.pick(group));
        let (of_to, of_from) = (self.columns(to), self.columns(from));
        let link = self.link("x", of_to, "y", of_from);
        let extra = if self.chance(40) { format!(" AND {}", self.simple("x", of_to)) } else { String::new() };
        let (name, kind) = *self.pick(of_to);
        let value = self.literal(kind);
        let matched =
            if self.chance(50) { format!("UPDATE SET {name} = {value}") } else { "DELETE".to_owned() };
        let (first, second) = (of_to[0].0, of_to[1].0);
        let not_matched = if self.chance(60) {
            format!(
                " WHEN NOT MATCHED THEN INSERT ({first}, {second}) VALUES ({}, {})",
                self.number(),
                self.number()
            )
        } else {
            String::new()
        };
        format!("MERGE INTO {to} x USING {from} y ON {link}{extra} WHEN MATCHED THEN {matched}{not_matched}")
    }

    fn write_cte(&mut self, group: &[&'static str]) -> String {
        let (a, b) = (*self.pick(group), *self.pick(group));
        let write = if self.chance(50) { self.update(a, group) } else { self.delete(a, group) };
        let write = write.split(" RETURNING").next().unwrap_or_default().to_owned();
        let condition = self.condition("x", self.columns(b), group, 1);
        format!("WITH q AS ({write} RETURNING 1) SELECT * FROM {b} x WHERE {condition}")
    }

    fn call(&mut self) -> String {
        format!("SELECT bump({})", self.number())
    }
}
