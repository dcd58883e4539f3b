//! Putting the writes of many commits together: executions of one statement become one execution for many rows, where
//! that is the same. A replica that applies what others executed then does a part of their work only.
//!
//! All writes of a database transaction become visible at once, so only writes that meet in an item need keep their
//! order. If anything goes wrong with what was put together, the agent applies the same commits one by one. Sites and peers
//! do likewise within one transaction.
//!
//! Each execution must affect as many rows as at its home. Of executions that cannot affect more than one, and did affect
//! one, the sum tells: it is reached only if each affects one. Others are counted one by one by the server, before it
//! commits, which costs it about a tenth more.

use bytes::{BufMut, Bytes, BytesMut};
use hashbrown::HashMap;
use onecopy_classify::{BulkText, Scratch};
use onecopy_core::{Access, Item, Mode, Space, TableId};
use onecopy_wire::{Format, WireError, frontend};
use smallvec::SmallVec;

use crate::lane::{Lane, StatementKey};
use crate::record::{What, Write};

/// Executions that one statement stands for at most.
const ROWS_MAX: usize = 1_000;

/// A statement for many executions, as a lane prepares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    pub sql: String,
    /// Its other form, which fails unless each execution affects the rows that are expected of it.
    pub counted: Option<String>,
    /// Type of each array's elements.
    elements: Vec<u32>,
}

impl Form {
    /// The form of a statement whose parameters have these types; None if there is none.
    pub fn of(sql: &str, types: &[u32]) -> Option<Form> {
        if types.is_empty() {
            return None;
        }
        let names: Option<Vec<&str>> =
            types.iter().map(|oid| onecopy_classify::value::type_name(*oid)).collect();
        let (text, names) = (BulkText::of(sql, &mut Scratch::default())?, names?);
        let counted = text.counted_with_types(&names);
        Some(Form { sql: text.with_types(&names), counted, elements: types.to_vec() })
    }
}

/// What is known of statements: their form, or that they have none.
pub type Forms = HashMap<StatementKey, Option<Form>>;

/// What is sent to a replica for one or more writes.
#[derive(Debug)]
pub enum Step<'a> {
    One(&'a Write),
    Many(Many<'a>),
}

/// Executions of one statement.
#[derive(Debug)]
pub struct Many<'a> {
    pub form: &'a Form,
    key: StatementKey,
    formats: Formats,
    executions: Vec<Execution<'a>>,
    /// The rows of each are counted by the server.
    is_counted: bool,
}

type Formats = SmallVec<[Format; 8]>;

#[derive(Debug)]
struct Execution<'a> {
    write: &'a Write,
    params: SmallVec<[Option<Bytes>; 8]>,
    /// Rows that it must affect.
    rows: u64,
    /// Nothing but its count tells that it has affected so many.
    is_counted: bool,
}

/// Arranges writes so that executions of one statement come together, without changing the order of two that conflict.
/// All are executed under the same settings ([`StatementKey::under`]).
pub fn arrange<'a>(
    writes: impl IntoIterator<Item = &'a Write>,
    forms: &'a Forms,
    settings: u64,
) -> Vec<Step<'a>> {
    let mut steps: Vec<Step<'a>> = Vec::new();
    let mut seen = Seen::default();
    // Nothing goes before this step any more.
    let mut floor = 0;
    for write in writes {
        let Some((form, key, formats, execution)) = candidate(write, forms, settings) else {
            steps.push(Step::One(write));
            floor = steps.len();
            seen = Seen::default();
            continue;
        };
        let reach = write.reach.as_deref().unwrap_or_default();
        let from = reach.iter().filter_map(|access| seen.last_conflict(access)).max();
        let from = from.map_or(floor, |last| last + 1);
        let open = steps[from..].iter().position(|step| match step {
            Step::Many(many) => {
                many.key == key
                    && many.formats == formats
                    && many.is_counted == execution.is_counted
                    && many.executions.len() < ROWS_MAX
            }
            Step::One(_) => false,
        });
        let at = match open {
            Some(offset) => from + offset,
            None => {
                let is_counted = execution.is_counted;
                steps.push(Step::Many(Many { form, key, formats, executions: Vec::new(), is_counted }));
                steps.len() - 1
            }
        };
        if let Step::Many(many) = &mut steps[at] {
            many.executions.push(execution);
        }
        reach.iter().for_each(|access| seen.note(access, at));
    }
    for step in &mut steps {
        if let Step::Many(Many { executions, .. }) = step
            && let [only] = executions.as_slice()
        {
            *step = Step::One(only.write);
        }
    }
    steps
}

/// What is needed to put a write together with others.
fn candidate<'a>(
    write: &'a Write,
    forms: &'a Forms,
    settings: u64,
) -> Option<(&'a Form, StatementKey, Formats, Execution<'a>)> {
    let (What::Prepared { key, bind, .. }, Some(reach), Some(rows), false) =
        (&write.what, &write.reach, write.rows, write.captured)
    else {
        return None;
    };
    if reach.iter().any(|access| access.item.table == TableId::ALL) {
        return None;
    }
    let form = forms.get(&key.under(settings))?.as_ref()?;
    let is_counted = !(write.one_row && rows == 1);
    if is_counted && form.counted.is_none() {
        return None;
    }
    // Two empty names go before what is kept of a Bind.
    let mut body = BytesMut::with_capacity(2 + bind.len());
    body.put_slice(&[0, 0]);
    body.put_slice(bind);
    let body = body.freeze();
    let bound = frontend::Bind::decode(&body).ok()?;
    let formats = (0..bound.params.len()).map(|i| bound.param_formats.of(i)).collect();
    let params: SmallVec<[Option<Bytes>; 8]> =
        bound.params.iter().map(|value| value.map(|value| body.slice_ref(value))).collect();
    let execution = Execution { write, params, rows, is_counted };
    (execution.params.len() == form.elements.len()).then_some((form, *key, formats, execution))
}

impl Many<'_> {
    /// The statement that stands for all executions.
    pub fn sql(&self) -> &str {
        match &self.form.counted {
            Some(counted) if self.is_counted => counted,
            _ => &self.form.sql,
        }
    }

    /// The number of rows in the server's answer.
    pub fn rows(&self) -> u64 {
        // The answer of one that counts is its verdict.
        if self.is_counted { 1 } else { self.executions.iter().map(|execution| execution.rows).sum() }
    }

    /// The rows that are expected of each execution, as the counting form takes them.
    fn expected(&self) -> Option<BytesMut> {
        let mut out = BytesMut::new();
        for (number, execution) in (1..).zip(&self.executions).filter(|(_, execution)| execution.rows > 0) {
            let before = if out.is_empty() { "{" } else { "," };
            out.put_slice(format!("{before}{{{number},{}}}", execution.rows).as_bytes());
        }
        (!out.is_empty()).then(|| {
            out.put_u8(b'}');
            out
        })
    }

    /// Prepares the statement on a lane where it is new, and appends the Bind of all executions; also its key, if it was new.
    ///
    /// # Errors
    /// When the arrays are too large for a message.
    pub fn put(&self, lane: &mut Lane) -> Result<Option<StatementKey>, WireError> {
        let key = StatementKey::of(self.sql(), &[]);
        let (name, is_new) = lane.prepare(key, self.sql(), &[])?;
        self.put_bind(&name, &mut lane.output)?;
        Ok(is_new.then_some(key))
    }

    fn put_bind(&self, statement: &str, out: &mut BytesMut) -> Result<(), WireError> {
        let mut params: Vec<Option<BytesMut>> =
            (0..self.form.elements.len()).map(|column| Some(self.array(column))).collect();
        let mut formats = self.formats.clone();
        if self.is_counted {
            params.push(self.expected());
            formats.push(Format::Text);
        }
        frontend::build::bind(out, "", statement, formats, params.iter().map(Option::as_deref), [])?;
        Ok(())
    }

    /// The array of one parameter's values, in the format in which they came.
    fn array(&self, column: usize) -> BytesMut {
        let values = self.executions.iter().map(|execution| execution.params[column].as_deref());
        let mut out = BytesMut::new();
        if self.formats[column] == Format::Binary {
            let has_null = values.clone().any(|value| value.is_none());
            out.put_i32(1);
            out.put_i32(i32::from(has_null));
            out.put_u32(self.form.elements[column]);
            out.put_i32(self.executions.len() as i32);
            out.put_i32(1);
            for value in values {
                match value {
                    Some(value) => {
                        out.put_i32(value.len() as i32);
                        out.put_slice(value);
                    }
                    None => out.put_i32(-1),
                }
            }
            return out;
        }
        out.put_u8(b'{');
        for (i, value) in values.enumerate() {
            if i > 0 {
                out.put_u8(b',');
            }
            match value {
                Some(value) => {
                    out.put_u8(b'"');
                    for &byte in value {
                        if matches!(byte, b'"' | b'\\') {
                            out.put_u8(b'\\');
                        }
                        out.put_u8(byte);
                    }
                    out.put_u8(b'"');
                }
                None => out.put_slice(b"NULL"),
            }
        }
        out.put_u8(b'}');
        out
    }
}

/// At which step each item was last touched.
#[derive(Default)]
struct Seen {
    spaces: HashMap<(TableId, Space), Touched>,
}

/// The items of one space of a table. As long as all name the same columns, two of them meet only if they are equal.
#[derive(Default)]
struct Touched {
    by_value: HashMap<onecopy_core::Equals, Last>,
    all: Last,
    mixed: bool,
}

/// The last step at which something was taken in each mode.
#[derive(Default)]
struct Last(SmallVec<[(Mode, usize); 2]>);

impl Last {
    fn note(&mut self, mode: Mode, step: usize) {
        match self.0.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, last)) => *last = step.max(*last),
            None => self.0.push((mode, step)),
        }
    }

    fn conflict(&self, mode: Mode) -> Option<usize> {
        self.0.iter().filter(|(other, _)| other.conflicts(mode)).map(|(_, step)| *step).max()
    }
}

impl Seen {
    fn last_conflict(&self, access: &Access) -> Option<usize> {
        let Access { item, mode, .. } = access;
        let touched = self.spaces.get(&(item.table, item.space))?;
        if touched.mixed || !touched.names_like(item) {
            return touched.all.conflict(*mode);
        }
        touched.by_value.get(&item.equals)?.conflict(*mode)
    }

    fn note(&mut self, access: &Access, step: usize) {
        let Access { item, mode, .. } = access;
        let touched = self.spaces.entry((item.table, item.space)).or_default();
        touched.mixed |= !touched.names_like(item);
        touched.all.note(*mode, step);
        touched.by_value.entry(item.equals.clone()).or_default().note(*mode, step);
    }
}

impl Touched {
    /// Whether an item names the same columns as those that are known.
    fn names_like(&self, item: &Item) -> bool {
        self.by_value.keys().next().is_none_or(|known| {
            known.len() == item.equals.len() && known.iter().zip(&item.equals).all(|((a, _), (b, _))| a == b)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_core::{ColumnId, ValueHash};

    const UPDATE: &str = "UPDATE t SET a = $1 WHERE id = $2";
    const INSERT: &str = "INSERT INTO u VALUES ($1, $2)";

    fn write(sql: &str, params: [&str; 2], reach: Vec<Access>) -> Write {
        let mut bind = BytesMut::new();
        let values = params.iter().map(|value| Some(value.as_bytes()));
        frontend::build::bind(&mut bind, "", "", [], values, []).unwrap();
        let bind = bind.freeze().slice(onecopy_wire::frame::HEAD_LEN + 2..);
        let what = What::prepared(sql, &[], bind);
        Write { rows: Some(1), reach: Some(reach.into()), one_row: true, ..Write::new(what) }
    }

    fn row(table: u64, id: i64, mode: Mode) -> Access {
        Access::new(Item::rows(TableId(table), [(ColumnId(1), ValueHash::of_integer(id))]), mode)
    }

    fn update(value: &str, id: i64) -> Write {
        write(UPDATE, [value, &id.to_string()], vec![row(1, id, Mode::NoKeyExclusive)])
    }

    fn insert(id: &str) -> Write {
        write(INSERT, [id, "x"], vec![Access::new(Item::table(TableId(2)), Mode::Insert)])
    }

    fn forms() -> Forms {
        [UPDATE, INSERT]
            .into_iter()
            .map(|sql| (StatementKey::of(sql, &[]), Form::of(sql, &[23, 23])))
            .collect()
    }

    /// The first parameters of each step's executions.
    fn arranged(writes: &[Write]) -> Vec<String> {
        let forms = forms();
        arrange(writes, &forms, 0)
            .iter()
            .map(|step| match step {
                Step::One(Write { what: What::Prepared { bind, .. }, .. }) => {
                    // One format list, one count, one length, then the value.
                    String::from_utf8_lossy(&bind[8..9]).into_owned()
                }
                Step::One(_) => "text".to_owned(),
                Step::Many(many) => String::from_utf8(many.array(0).to_vec()).unwrap(),
            })
            .collect()
    }

    #[test]
    fn executions_of_one_statement_come_together_unless_they_meet_in_a_row() {
        let writes =
            [update("1", 10), insert("2"), update("3", 11), insert("4"), update("5", 10), update("6", 12)];
        assert_eq!(arranged(&writes), [r#"{"1","3","6"}"#, r#"{"2","4"}"#, "5"]);
    }

    #[test]
    fn a_row_that_a_later_statement_needs_is_there_before_it() {
        let child = |id: &str, parent| {
            write(
                INSERT,
                [id, "x"],
                vec![Access::new(Item::table(TableId(2)), Mode::Insert), row(1, parent, Mode::KeyShared)],
            )
        };
        let parent = |id: i64| write(UPDATE, ["9", &id.to_string()], vec![row(1, id, Mode::Exclusive)]);
        let writes = [child("1", 10), child("2", 11), parent(11), child("3", 11), child("4", 12)];
        assert_eq!(arranged(&writes), [r#"{"1","2","4"}"#, "9", "3"]);
    }

    #[test]
    fn nothing_passes_a_write_of_which_nothing_is_known() {
        let text = Write { rows: Some(1), ..Write::new(What::Text("TRUNCATE t".to_owned())) };
        let writes = [update("1", 10), text, update("2", 11), update("3", 12)];
        assert_eq!(arranged(&writes), ["1", "text", r#"{"2","3"}"#]);
    }

    #[test]
    fn items_that_name_other_columns_meet_whatever_their_values_are() {
        let other = Access::new(
            Item::rows(TableId(1), [(ColumnId(2), ValueHash::of_integer(5))]),
            Mode::NoKeyExclusive,
        );
        let writes = [update("1", 10), write(INSERT, ["2", "x"], vec![other]), update("3", 11)];
        assert_eq!(arranged(&writes), ["1", "2", "3"]);
    }

    #[test]
    fn executions_are_counted_unless_their_sum_tells_how_many_rows_each_affects() {
        let counted = |value: &str, id, rows| Write { rows: Some(rows), one_row: false, ..update(value, id) };
        let writes = [
            update("1", 10),
            counted("2", 11, 1),
            update("3", 12),
            counted("4", 13, 0),
            counted("5", 14, 7),
            Write { rows: Some(0), ..update("6", 15) },
            // An INSERT that did not add a row did something that is not known.
            Write { rows: Some(0), ..insert("7") },
        ];
        assert_eq!(arranged(&writes), [r#"{"1","3"}"#, r#"{"2","4","5","6"}"#, "7"]);
        let forms = forms();
        let steps = arrange(&writes, &forms, 0);
        let [Step::Many(summed), Step::Many(counted), _] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((summed.rows(), counted.rows()), (2, 1));
        assert_eq!(counted.expected().unwrap(), "{{1,1},{3,7}}");
        assert!(counted.sql().starts_with("WITH") && summed.sql().starts_with("UPDATE"));
        let none = [counted_none(1), counted_none(2)];
        let steps = arrange(&none, &forms, 0);
        let [Step::Many(many)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(many.expected(), None);
    }

    fn counted_none(id: i64) -> Write {
        Write { rows: Some(0), one_row: false, ..update("0", id) }
    }

    #[test]
    fn arrays_keep_nulls_quotes_and_binary_values() {
        let forms = forms();
        let texts = [update("a\"b\\c", 1), update("", 2)];
        let steps = arrange(&texts, &forms, 0);
        let [Step::Many(many)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(&many.array(0)[..], br#"{"a\"b\\c",""}"#);
        assert_eq!(many.rows(), 2);

        let binary = |id: i64, value: Option<&[u8]>| {
            let mut bind = BytesMut::new();
            let id_bytes = (id as i32).to_be_bytes();
            let params = [value, Some(&id_bytes[..])];
            frontend::build::bind(&mut bind, "", "", [Format::Binary], params, []).unwrap();
            let bind = bind.freeze().slice(onecopy_wire::frame::HEAD_LEN + 2..);
            let reach = vec![row(1, id, Mode::NoKeyExclusive)].into();
            let what = What::prepared(UPDATE, &[], bind);
            Write { rows: Some(1), reach: Some(reach), one_row: true, ..Write::new(what) }
        };
        let writes = [binary(1, Some(&[0, 0, 0, 7])), binary(2, None)];
        let steps = arrange(&writes, &forms, 0);
        let [Step::Many(many)] = steps.as_slice() else { panic!("{steps:?}") };
        let expected = [
            [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1].as_slice(),
            &[0, 0, 0, 4, 0, 0, 0, 7],
            &[0xff, 0xff, 0xff, 0xff],
        ];
        assert_eq!(&many.array(0)[..], expected.concat());
    }
}
