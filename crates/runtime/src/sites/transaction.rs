//! A transaction that comes whole, as every site knows it: its statements, and what they may touch.

use onecopy_classify::catalogue::Column;
use onecopy_classify::references::{Reference, references, replace};
use onecopy_classify::{
    Bulk, Catalogue, Class, Determinism, FrozenKind, Kind, NoParams, ParamValue, Scratch, normalise, oid,
};
use onecopy_core::{Access, AccessSet, ColumnId, Csn, Item, Mode, RowChange, TableId};
use onecopy_wire::Format;
use onecopy_wire::frontend::Bind;
use onecopy_wire::sqlstate::SqlState;

use crate::classifier::{Classifier, rewrite_of, search_path};
use crate::errors::Failure;
use crate::record::{Record, What};
use crate::session::environment::hash_of;

/// See the module.
#[derive(Debug)]
pub struct Transaction {
    /// Its statements, the reading ones included, with the role and the settings under which they run.
    pub record: Record,
    /// Of each statement.
    pub parts: Vec<Part>,
    /// What it may touch.
    pub access: AccessSet,
    /// What rows refer to that it changes: checked again where they were added, or changed before, in the same database transaction.
    pub parents: AccessSet,
    /// If it changes values of one row by a key of integers, and nothing else: which.
    pub change: Option<RowChange>,
    /// Of a query: what the database must contain up to there before it runs.
    pub not_before: Csn,
    /// Under which role and settings its statements are read ([`read_under`]), whatever settings it carries besides.
    pub read_under: u64,
    /// Whether each site may execute all its statements: all write, and none fails by locks that others know nothing of. (What reads may fail for the plan that one
    /// server has.)
    pub only_writes: bool,
}

/// What is known of a statement beside its text.
#[derive(Debug)]
pub struct Part {
    /// The columns of earlier results that it names.
    pub references: Vec<Reference>,
    /// It may change something, or keep others from it.
    pub writes: bool,
    /// It is to be executed where what its transaction wrote is applied: not if all that it does is to keep others from it.
    pub is_shipped: bool,
    /// If its like is frequent, it with its constants as parameters: so it is done again elsewhere.
    pub prepared: Option<What>,
    /// And here: its answer is that to its text.
    pub runs_prepared: bool,
}

impl Part {
    /// One that nothing is known of but its text.
    pub fn plain(writes: bool) -> Part {
        Part { references: Vec::new(), writes, is_shipped: writes, prepared: None, runs_prepared: false }
    }
}

impl Transaction {
    /// Finds out what a transaction may touch, by this site's definitions.
    pub fn read(record: Record, classifier: &Classifier, scratch: &mut Scratch) -> Transaction {
        let catalogue = classifier.catalogue();
        let path = path_of(&record, &catalogue);
        let manner = classifier.manner();
        let (mut access, mut parents) = (AccessSet::new(), AccessSet::new());
        let (mut parts, mut change, mut only_writes) = (Vec::new(), None, true);
        for write in &record.writes {
            let (sql, bind) = match &write.what {
                What::Text(sql) => (sql.as_str(), None),
                What::Prepared { sql, types, bind, .. } => (&**sql, Some((types, bind))),
                What::Copy { .. } => ("", None),
            };
            let named = match bind {
                // What is bound has parameters for that.
                Some(_) => Vec::new(),
                None => {
                    let normalised = normalise(sql, scratch);
                    references(sql, normalised.layout.consts)
                }
            };
            let text = replace(sql, &named, |nth, _| format!("${}", nth + 1));
            let (statement, _) = classifier.classify(&manner, &text, &path, scratch);
            let layout = statement.layout.layout();
            let (class, sql) = (&statement.class, &statement.sql);
            let (touched, checked) = match bind {
                // The server will say so.
                _ if matches!(class.kind, Kind::SyntaxError { .. }) => (AccessSet::new(), None),
                _ if !is_plain(class) => {
                    ([Access::new(Item::everything(), Mode::Exclusive)].into_iter().collect(), None)
                }
                None => {
                    let touched = class.bind(sql, layout, &NoParams, &[]);
                    let checked = class.rechecks(&touched, sql, layout, &NoParams, &[]);
                    (touched, checked)
                }
                Some((types, bind)) => with_params(types, bind, |params| {
                    let touched = class.bind(sql, layout, params, &[]);
                    let checked = class.rechecks(&touched, sql, layout, params, &[]);
                    (touched, checked)
                }),
            };
            parents.extend(checked.into_iter().flat_map(|checked| checked.parents));
            if record.writes.len() == 1 {
                change = statement.class.row_change(&touched).filter(|change| is_told(change, &catalogue));
            }
            access.extend(touched);
            let is_shipped = changes(class);
            only_writes &= is_shipped && waits_for_locks(class);
            let runs_prepared = statement.frequent_form().is_some() && class.in_block.is_none();
            let has_constants_only = bind.is_none() && named.is_empty();
            let is_asked_for = has_constants_only && (is_shipped && statement.is_frequent() || runs_prepared);
            parts.push(Part {
                writes: writes(class),
                is_shipped,
                prepared: is_asked_for.then(|| statement.parameterised(&[])).flatten(),
                runs_prepared,
                references: named,
            });
        }
        let read_under = read_under(&record);
        let not_before = Csn(0);
        Transaction { record, parts, access, parents, change, not_before, read_under, only_writes }
    }

    /// One of which nobody asks what it may touch.
    pub fn plain(record: Record, parts: Vec<Part>) -> Transaction {
        let (access, parents) = (AccessSet::new(), AccessSet::new());
        let read_under = read_under(&record);
        let (change, not_before, only_writes) = (None, Csn(0), false);
        Transaction { record, parts, access, parents, change, not_before, read_under, only_writes }
    }

    /// What was written elsewhere, to be applied.
    pub fn to_apply(record: Record) -> Transaction {
        let parts = record.writes.iter().map(|_| Part::plain(true)).collect();
        Transaction::plain(record, parts)
    }

    /// Whether it may change something.
    pub fn is_update(&self) -> bool {
        self.parts.iter().any(|part| part.writes)
    }
}

/// Literals are read and names are found when a statement is prepared, so what is prepared stands for its text under the same settings and for the same
/// role only: these, as a number.
pub fn read_under(record: &Record) -> u64 {
    hash_of(&(&record.user, &record.settings))
}

/// The schemas in which a transaction finds what it names.
fn path_of(record: &Record, catalogue: &Catalogue) -> Vec<String> {
    let path = record.settings.iter().find(|(name, _)| name.eq_ignore_ascii_case("search_path"));
    let path = path.map_or("\"$user\", public", |(_, value)| value);
    search_path(path, &record.user, catalogue)
}

/// Finds out which of what was written may be put together, and what it touches then, by this site's definitions.
pub fn reach(record: &mut Record, classifier: &Classifier, scratch: &mut Scratch) {
    let path = path_of(record, &classifier.catalogue());
    let manner = classifier.manner();
    for write in &mut record.writes {
        let What::Prepared { sql, types, bind, .. } = &write.what else { continue };
        let (statement, _) = classifier.classify(&manner, sql, &path, scratch);
        let class = &statement.class;
        if class.bulk == Bulk::No {
            continue;
        }
        let layout = statement.layout.layout();
        let touched = with_params(types, bind, |params| class.bind(&statement.sql, layout, params, &[]));
        write.one_row = class.bulk.is_one_row(&touched);
        write.reach = Some(touched.as_slice().into());
    }
}

/// Whether the row's key is of integers, whose hashes differ.
fn is_told(change: &RowChange, catalogue: &Catalogue) -> bool {
    let Some(table) = catalogue.table_by_id(change.row.table) else { return false };
    let is_integer = |number: &ColumnId| {
        let column = table.columns.iter().find(|column| column.number == number.0);
        column.is_some_and(|column| matches!(column.type_oid, oid::INT2 | oid::INT4 | oid::INT8))
    };
    change.row.equals.iter().all(|(number, _)| is_integer(number))
}

/// Whether its items say all that it touches.
fn is_plain(class: &Class) -> bool {
    matches!(
        class.kind,
        Kind::Select
            | Kind::SelectLocking { .. }
            | Kind::Insert
            | Kind::Update
            | Kind::Delete
            | Kind::Merge
            | Kind::WriteCte
            | Kind::Show(_)
    )
}

/// Whether a statement may change something, or keep others from it.
pub fn writes(class: &Class) -> bool {
    changes(class) || class.effects.locks_rows
}

fn changes(class: &Class) -> bool {
    class.effects.writes || matches!(class.kind, Kind::Truncate { .. })
}

/// The parameters of what follows the names in a Bind message.
pub fn with_params<R>(types: &[u32], bind: &[u8], read: impl FnOnce(&[ParamValue<'_>]) -> R) -> R {
    // Without names, of which each is a zero byte.
    let whole = [&[0, 0], bind].concat();
    let Ok(bind) = Bind::decode(&whole) else { return read(&[]) };
    let value = |(nth, bytes)| ParamValue {
        type_oid: types.get(nth).copied().unwrap_or(0),
        binary: bind.param_formats.of(nth) == Format::Binary,
        bytes,
    };
    let params: Vec<ParamValue<'_>> = bind.params.iter().enumerate().map(value).collect();
    read(&params)
}

/// A transaction of which only a part has come.
pub fn not_whole() -> Failure {
    Failure::unsupported(
        "this protocol takes transactions that come whole",
        "Send all statements, from BEGIN to COMMIT, as one query or as one pipelined batch, or each by itself; or use protocol = \"onecopy\".",
    )
}

/// Why a statement cannot be part of a transaction that promises to read only, if so. Numbers are drawn before a server executes what draws them.
pub fn refusal_of_write(class: &Class) -> Option<Failure> {
    let frozen = &rewrite_of(class, None, true).frozen;
    let draws = frozen.iter().any(|frozen| matches!(frozen.kind, FrozenKind::NextVal { .. }));
    let what = match () {
        () if draws => "nextval()".to_owned(),
        () if changes(class) => first_word(&class.text),
        () if class.effects.locks_rows => "SELECT FOR UPDATE".to_owned(),
        () => return None,
    };
    let message = format!("cannot execute {what} in a read-only transaction");
    Some(Failure::new(SqlState::READ_ONLY_SQL_TRANSACTION, message).hint("Begin it without READ ONLY."))
}

/// Why a statement cannot be part of a transaction that sites execute each by itself.
pub fn refusal(class: &Class, determinism: &Determinism) -> Option<Failure> {
    let effects = &class.effects;
    let what = match &class.kind {
        Kind::Begin(_) | Kind::Commit { .. } | Kind::Rollback { .. } => {
            return Some(not_whole());
        }
        Kind::Truncate { .. } | Kind::Empty => None,
        Kind::Ddl { command, .. } => Some((*command).to_owned()),
        Kind::SyntaxError { .. } => None,
        _ if !is_plain(class) => Some(format!("this kind of statement ({})", first_word(&class.text))),
        // What is not known to be harmless might do anything, with the rights of the agent.
        _ if class.tables.contains(&TableId::ALL) => {
            Some("a statement of which it cannot be told what it touches".to_owned())
        }
        _ if effects.temporary_tables => Some("a temporary table".to_owned()),
        _ if effects.advisory_locks => Some("an advisory lock".to_owned()),
        _ if effects.notifies => Some("a notification".to_owned()),
        _ if effects.sets_config || effects.sets_custom_locally => Some("set_config()".to_owned()),
        _ if effects.pins_session => Some("what belongs to one session of one server".to_owned()),
        _ => None,
    };
    if let Some(what) = what {
        let hint = match class.kind {
            Kind::Ddl { .. } => {
                "Stop all sites, change the definitions on each server directly, and start them again."
            }
            _ => "Use protocol = \"onecopy\" where an application needs it.",
        };
        return Some(Failure::unsupported(format!("{what} cannot be served by this protocol"), hint));
    }
    match determinism {
        Determinism::Read | Determinism::Replay => None,
        Determinism::Refuse(refusal) => {
            Some(Failure::unsupported(refusal.reason.clone(), refusal.hint.clone()))
        }
        Determinism::Capture(plan) => Some(not_the_same(&plan.reason)),
        Determinism::Number(plan) => Some(not_the_same(&plan.capture.reason)),
    }
}

/// Words of which the one row that a query returns may be another one elsewhere, or have other values: what takes some of many rows, and
/// what depends on their order.
const PICKS: [&str; 16] = [
    "limit",
    "offset",
    "fetch",
    "on",
    "over",
    "tablesample",
    "array_agg",
    "string_agg",
    "json_agg",
    "jsonb_agg",
    "json_object_agg",
    "jsonb_object_agg",
    "xmlagg",
    "mode",
    "stddev",
    "variance",
];

/// Whether it waits for what others hold: no NOWAIT is in it, as a word of any kind.
fn waits_for_locks(class: &Class) -> bool {
    let mut words = class.text.split(|c: char| !c.is_alphanumeric() && c != '_');
    !words.any(|word| word.eq_ignore_ascii_case("nowait"))
}

/// Why what a query returns cannot be used by later statements of its transaction, which each site executes by itself.
pub fn refusal_as_source(class: &Class, catalogue: &Catalogue) -> Option<Failure> {
    let effects = &class.effects;
    let has_floats = class.tables.iter().filter_map(|table| catalogue.table_by_id(*table)).any(|table| {
        let is_float = |column: &Column| matches!(column.type_oid, oid::FLOAT4 | oid::FLOAT8);
        table.columns.iter().any(is_float)
    });
    let words = || class.text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_ascii_lowercase);
    let adds_up = words().any(|word| matches!(word.as_str(), "sum" | "avg"));
    let joins = class.text.to_ascii_lowercase().contains(" join ");
    let picks = words().find(|word| PICKS.contains(&word.as_str()) && !(word == "on" && joins));
    let what = match picks {
        Some(word) => format!("it says {}", word.to_ascii_uppercase()),
        None if has_floats && adds_up => {
            "it adds up, maybe floats, whose sum depends on their order".to_owned()
        }
        None if effects.reads_random => "it calls a function whose result changes".to_owned(),
        None if effects.reads_clock => "it reads the clock".to_owned(),
        None if effects.reads_session || effects.reads_physical || effects.reads_catalogue => {
            "it reads what belongs to one server".to_owned()
        }
        None => return None,
    };
    Some(Failure::unsupported(
        format!(
            "a later statement uses what a query returns, which may be something else at another site: {what}"
        ),
        "Find the row by its key, or by min() or max(); or have the application give the value.",
    ))
}

fn not_the_same(reason: &str) -> Failure {
    Failure::unsupported(
        format!("the statement may do something else at another site: {reason}"),
        "Have the application give the values, or order the rows; or use protocol = \"onecopy\", which ships rows.",
    )
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_core::Csn;

    use crate::record::Write;

    fn transaction(statements: Vec<What>) -> Transaction {
        let classifier = Classifier::new(Catalogue::default(), Csn(0));
        let writes = statements.into_iter().map(Write::new).collect();
        let record = Record { user: "shop".into(), writes, ..Record::default() };
        Transaction::read(record, &classifier, &mut Scratch::default())
    }

    #[test]
    fn statements_that_name_earlier_results_are_known_and_what_only_reads_is_no_update() {
        let found = transaction(vec![
            What::Text("SELECT 1 AS a".into()),
            What::Text("SELECT :a + 1, ':b', x[1]::int".into()),
        ]);
        let named: Vec<Vec<&str>> = found
            .parts
            .iter()
            .map(|part| part.references.iter().map(|reference| reference.name.as_str()).collect())
            .collect();
        assert_eq!(named, [vec![], vec!["a"]]);
        assert!(!found.is_update());
    }

    #[test]
    fn what_is_no_plain_statement_touches_everything() {
        let found = transaction(vec![What::Text("TRUNCATE t".into())]);
        assert!(found.is_update());
        assert!(found.access.iter().any(|access| access.item == Item::everything()));
    }

    #[test]
    fn what_may_be_another_row_elsewhere_is_no_source_for_later_statements() {
        let classifier = Classifier::new(Catalogue::default(), Csn(0));
        let is_refused = |sql: &str| {
            let path = ["public".to_owned()];
            let found = classifier.classify(&classifier.manner(), sql, &path, &mut Scratch::default());
            refusal_as_source(&found.0.class, &Catalogue::default()).is_some()
        };
        for sql in [
            "SELECT random() AS r",
            "SELECT id FROM t LIMIT 1",
            "SELECT id FROM t ORDER BY v FETCH FIRST ROW ONLY",
            "SELECT DISTINCT ON (v) id FROM t",
            "SELECT string_agg(v, ',') FROM t",
            "SELECT pg_backend_pid()",
        ] {
            assert!(is_refused(sql), "{sql}");
        }
        for sql in [
            "SELECT v FROM t WHERE id = 1",
            "SELECT min(id) FROM t",
            "SELECT a.v FROM t a JOIN t b ON a.id = b.id WHERE a.id = 3",
        ] {
            assert!(!is_refused(sql), "{sql}");
        }
    }

    #[test]
    fn parameters_are_read_without_the_names_before_them() {
        // No formats, two values, no result formats.
        let bind = b"\0\0\0\x02\0\0\0\x017\xff\xff\xff\xff\0\0";
        let read = with_params(&[23], bind, |params| {
            params.iter().map(|value| (value.type_oid, value.bytes.map(<[u8]>::to_vec))).collect::<Vec<_>>()
        });
        assert_eq!(read, [(23, Some(b"7".to_vec())), (0, None)]);
    }
}
