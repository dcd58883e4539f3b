//! What whole transactions are foreseen to do, reads included: statement by statement, one row a rule.

use onecopy_classify::whole::{Conflicts, Granularity, Reads, foresee};
use onecopy_classify::{Catalogue, Context, ParamValue, Params, Scratch, classify, normalise, table_id};
use onecopy_core::conflict_index::conflict;
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Mode, Space, TableId};
use std::fs;
use std::path::Path;

fn shop() -> Catalogue {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/catalogues");
    let read = |file: &str| fs::read_to_string(dir.join(file)).expect("catalogue file");
    let mut catalogue = Catalogue::from_json(&read("shop.json")).expect("catalogue document");
    catalogue.builtins = serde_json::from_str(&read("builtins15.json")).expect("list of functions");
    catalogue.rebuild();
    catalogue
}

/// `$1` is 7, and the others are the results of earlier statements.
struct FirstKnown;

impl Params for FirstKnown {
    fn param(&self, number: u32) -> Option<ParamValue<'_>> {
        (number == 1).then_some(ParamValue { type_oid: 0, binary: false, bytes: Some(b"7") })
    }
}

fn foreseen(catalogue: &Catalogue, sql: &str, granularity: Granularity, reads: Reads) -> AccessSet {
    let path = ["public".to_owned()];
    let context = Context { catalogue, search_path: &path, temporary: &[] };
    let mut scratch = Scratch::default();
    let normalised = normalise(sql, &mut scratch);
    let class = classify(sql, &normalised, &context);
    let mut foreseen = AccessSet::new();
    let counted = Conflicts { granularity, reads };
    foresee(&class, sql, normalised.layout, &FirstKnown, &[], counted, &mut foreseen);
    foreseen
}

/// `Shared child (parent_id) of id, note`: the columns that name the rows, and those that are read or change.
fn shown(catalogue: &Catalogue, access: &Access) -> String {
    if access.item.table == TableId::ALL {
        return format!("{:?} everything", access.mode);
    }
    let table = catalogue.tables.iter().find(|t| table_id(&t.schema, &t.name) == access.item.table);
    let table = table.expect("the table is in the catalogue");
    let name =
        |column: &ColumnId| table.column_by_number(column.0).expect("it is one of its columns").name.clone();
    let mut text = format!("{:?} {}", access.mode, table.name);
    if let Space::Key(key) = access.item.space {
        let key = table.unique.iter().find(|of| of.id() == key).expect("it is one of its keys");
        text.push_str(&format!(" key {}", key.name));
    }
    if !access.item.equals.is_empty() {
        let names: Vec<String> = access.item.equals.iter().map(|(column, _)| name(column)).collect();
        text.push_str(&format!(" ({})", names.join(", ")));
    }
    if matches!(access.mode, Mode::Shared | Mode::NoKeyExclusive) && access.columns != ColumnSet::ALL {
        let numbers = table.columns.iter().map(|column| ColumnId(column.number));
        let names: Vec<String> =
            numbers.filter(|n| access.columns.overlaps(ColumnSet::NONE.with(*n))).map(|n| name(&n)).collect();
        text.push_str(&format!(" of {}", names.join(", ")));
    }
    text
}

const RULES: &[(&str, &str, &[&str])] = &[
    (
        "rows by values that are known",
        "SELECT note FROM child WHERE id = $1",
        &["Shared child (id) of id, note"],
    ),
    (
        "a value that is not known widens them",
        "SELECT note FROM child WHERE id = $2",
        &["Shared child of id, note"],
    ),
    (
        "a range is read as the whole table",
        "SELECT note FROM child WHERE id BETWEEN 3 AND 4",
        &["Shared child of id, note"],
    ),
    (
        "the order is read",
        "SELECT id FROM child WHERE parent_id = 1 ORDER BY note",
        &["Shared child (parent_id) of id, parent_id, note"],
    ),
    ("whether there are rows is read", "SELECT count(*) FROM child", &["Shared child of "]),
    (
        "a join",
        "SELECT p.name FROM child c JOIN parent p ON p.id = c.parent_id WHERE c.note = 'x'",
        &["Shared child of id, parent_id, note", "Shared parent of id, name"],
    ),
    (
        "a sub-query",
        "SELECT 1 FROM parent WHERE rank = 1 AND EXISTS (SELECT FROM child WHERE parent_id = 2)",
        &["Shared parent (rank) of rank", "Shared child (parent_id) of parent_id"],
    ),
    ("a view", "SELECT n FROM child_counts", &["Shared child"]),
    ("a function", "SELECT name_of(7)", &["Shared parent"]),
    (
        "an update finds its rows",
        "UPDATE child SET note = 'x' WHERE id = 1",
        &["Shared child (id) of id", "NoKeyExclusive child (id) of note"],
    ),
    (
        "the right-hand side is read",
        "UPDATE child SET note = note || 'x' WHERE id = 1",
        &["Shared child (id) of id, note", "NoKeyExclusive child (id) of note"],
    ),
    (
        "what is returned is read",
        "UPDATE parent SET name = 'x' WHERE id = 1 RETURNING rank",
        &["Shared parent (id) of id, rank", "NoKeyExclusive parent (id) of name"],
    ),
    (
        "an update by a condition",
        "UPDATE child SET note = 'x' WHERE parent_id = 3",
        &["Shared child (parent_id) of parent_id", "NoKeyExclusive child (parent_id) of note"],
    ),
    (
        "rows that move from one value to another",
        "UPDATE child SET parent_id = 4 WHERE parent_id = 3",
        &[
            "Shared child (parent_id) of parent_id",
            "NoKeyExclusive child (parent_id) of parent_id",
            "Shared child (parent_id) of parent_id",
            "NoKeyExclusive child (parent_id) of parent_id",
            "KeyShared parent (id)",
            "KeyShared parent key parent_pkey (id)",
        ],
    ),
    (
        "the other tables of an update",
        "UPDATE child c SET note = p.name FROM parent p WHERE p.rank = 1 AND c.id = 2",
        &[
            "Shared parent (rank) of id, name, rank",
            "Shared child (id) of id",
            "NoKeyExclusive child (id) of note",
        ],
    ),
    (
        "what covers the rows read does not hide them",
        "UPDATE parent SET rank = (SELECT max(id) FROM child_names)",
        &["Shared child", "Shared parent", "Exclusive parent", "Exclusive parent key parent_rank_key"],
    ),
    (
        "a check may look at any column",
        "UPDATE typed SET bo = true WHERE i8 = 1",
        &["Shared typed (i8)", "NoKeyExclusive typed (i8) of bo"],
    ),
    ("so may a trigger", "UPDATE stamped SET v = 1 WHERE id = 1", &["Exclusive everything"]),
    (
        "a computed column",
        "UPDATE computed SET a = 1 WHERE id = 1",
        &["Shared computed (id)", "Exclusive computed (id)", "Exclusive computed key computed_double_a_key"],
    ),
    (
        "rows that go were there",
        "DELETE FROM child WHERE parent_id = 3",
        &[
            "Shared child (parent_id) of parent_id",
            "Exclusive child (parent_id)",
            "Exclusive child key child_pkey",
        ],
    ),
    (
        "nobody may refer to them",
        "DELETE FROM parent WHERE id = 1",
        &[
            "Shared parent (id) of id",
            "Exclusive parent (id)",
            "Exclusive parent key parent_pkey (id)",
            "Exclusive parent key parent_rank_key",
            "Shared cascading (parent_id)",
            "Exclusive cascading (parent_id)",
            "Exclusive cascading key cascading_pkey",
            "Exclusive cascading key cascading_label_key",
            "Shared nulling",
            "NoKeyExclusive nulling of cascading_id",
            "Shared child (parent_id)",
        ],
    ),
    (
        "a new row has a key and refers",
        "INSERT INTO child (id, parent_id) VALUES (1, 2)",
        &[
            "Insert child (id, parent_id)",
            "Exclusive child key child_pkey (id)",
            "KeyShared parent (id)",
            "KeyShared parent key parent_pkey (id)",
        ],
    ),
    (
        "new rows are of others",
        "INSERT INTO keyless SELECT id, note FROM child WHERE parent_id = 1",
        &["Shared child (parent_id) of id, parent_id, note", "Insert keyless"],
    ),
    (
        "a row that is there instead",
        "INSERT INTO parent (id, name) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET name = parent.name || 'x'",
        &[
            "Insert parent (id, rank)",
            "Exclusive parent key parent_pkey (id)",
            "Shared parent (id) of id, name",
            "NoKeyExclusive parent (id) of name",
        ],
    ),
    (
        "a row that is there already",
        "INSERT INTO multi (a, b) VALUES (1, 2) ON CONFLICT DO NOTHING",
        &["Insert multi (a, b, c)", "Exclusive multi key multi_pkey (a, b)"],
    ),
    (
        "a lock finds its rows",
        "SELECT id FROM child WHERE parent_id = 3 FOR UPDATE",
        &["Shared child (parent_id)", "Exclusive child (parent_id)"],
    ),
    ("what is not looked into", "TRUNCATE child", &["Exclusive everything"]),
];

#[test]
fn what_statements_read_and_write_is_foreseen() {
    let catalogue = shop();
    let mut wrong = String::new();
    for (rule, sql, expected) in RULES {
        let accesses = foreseen(&catalogue, sql, Granularity::Cell, Reads::Counted);
        let found: Vec<String> = accesses.iter().map(|access| shown(&catalogue, access)).collect();
        if found != *expected {
            wrong.push_str(&format!(
                "{rule}: {sql}\n{}\n",
                found.iter().map(|f| format!("    \"{f}\",\n")).collect::<String>()
            ));
        }
    }
    assert!(wrong.is_empty(), "found:\n{wrong}");
}

/// Two that change a row have it in common, and a reader only what it reads.
#[test]
fn by_row_updates_of_a_row_conflict_and_readers_of_other_columns_do_not() {
    let catalogue = shop();
    let of = |sql| foreseen(&catalogue, sql, Granularity::Row, Reads::Counted);
    let meet = |a: &AccessSet, b: &AccessSet| a.iter().any(|a| b.iter().any(|b| conflict(a, b)));
    let name = of("UPDATE parent SET name = 'x' WHERE id = 1");
    let note = of("UPDATE child SET note = 'x' WHERE id = 1");
    let parent = of("UPDATE child SET parent_id = 2 WHERE id = 1");
    assert!(meet(&note, &parent) && !meet(&name, &note));
    assert!(meet(&parent, &of("SELECT parent_id FROM child WHERE id = 1")));
    assert!(!meet(&parent, &of("SELECT note FROM child WHERE id = 1")));
}

/// A row whose foreign key falls back to its default takes the value of a unique key there; keys of rows that go are free.
#[test]
fn a_removal_takes_the_keys_that_defaults_give() {
    let mut catalogue = shop();
    let nulling = catalogue.tables.iter_mut().find(|table| table.name == "nulling").expect("it is there");
    nulling.foreign_keys[0].on_delete = 'd';
    let mut key = nulling.unique[0].clone();
    (key.name, key.columns, key.primary) = ("nulling_cascading_id_key".to_owned(), vec![2], false);
    nulling.unique.push(key);
    catalogue.rebuild();
    let keys = |sql| {
        let accesses = foreseen(&catalogue, sql, Granularity::Cell, Reads::Ignored);
        let keys = accesses.iter().filter(|access| matches!(access.item.space, Space::Key(_)));
        keys.map(|access| shown(&catalogue, access)).collect::<Vec<_>>()
    };
    let taken = keys("DELETE FROM cascading WHERE id = $1");
    assert!(
        !taken.is_empty() && taken.iter().all(|key| key.contains("nulling_cascading_id_key")),
        "{taken:?}"
    );
    assert_eq!(keys("DELETE FROM nulling WHERE id = $1"), Vec::<String>::new());
}

/// What one statement changes of one row, and whether the values depend on what the database contains.
#[test]
fn changes_of_one_row_are_known_and_blind_if_nothing_is_read_for_them() {
    let catalogue = shop();
    let path = ["public".to_owned()];
    let change = |sql: &str| {
        let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
        let mut scratch = Scratch::default();
        let normalised = normalise(sql, &mut scratch);
        let class = classify(sql, &normalised, &context);
        let change = class.row_change(&class.bind(sql, normalised.layout, &FirstKnown, &[]))?;
        Some((change.columns, change.is_blind))
    };
    let columns = |numbers: &[u16]| numbers.iter().copied().map(ColumnId).collect::<ColumnSet>();
    for (sql, expected) in [
        ("UPDATE child SET note = 'x' WHERE id = 1", Some((columns(&[3]), true))),
        ("UPDATE job SET state = 'x', payload = 'y' WHERE id = 1", Some((columns(&[2, 5]), true))),
        ("UPDATE parent SET rank = 3 WHERE id = 1", None),
        ("UPDATE child SET note = note || 'x' WHERE id = 1", Some((columns(&[3]), false))),
        ("UPDATE child SET note = 'x' WHERE id = 1 AND note = 'y'", Some((columns(&[3]), false))),
        ("UPDATE child SET note = 'x' WHERE parent_id = 3", None),
        ("UPDATE child SET id = 2 WHERE id = 1", None),
        // Here more may change than is said, so it is not known what is hidden.
        ("UPDATE child SET id = id, note = 'x' WHERE id = 1", None),
        ("UPDATE child SET id = 1, note = 'x' WHERE id = 1", None),
        ("DELETE FROM child WHERE id = 1", None),
        ("INSERT INTO child (id) VALUES (1)", None),
        ("UPDATE stamped SET v = 1 WHERE id = 1", None),
    ] {
        assert_eq!(change(sql), expected, "{sql}");
    }
    // A computed column changes as well.
    assert!(change("UPDATE computed SET a = 1 WHERE id = 1").is_none_or(|(_, is_blind)| !is_blind));
}
