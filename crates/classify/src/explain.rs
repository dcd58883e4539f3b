//! What a statement would do and why, for people: the data behind `onecopy explain`.

use crate::analyse::{Context, classify};
use crate::capture::captured_sql;
use crate::catalogue::Catalogue;
use crate::class::{Class, Determinism, Numbered};
use crate::lexer::{Scratch, normalise};
use crate::rewrite::{FrozenKind, Rewrite};
use crate::template::{AccessTemplate, ColumnTemplate, ItemTemplate, ShownTemplate, Source, Values};
use crate::value::{NoParams, string_value};
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Mode, Space, TableId};
use std::fmt;

/// An explanation of one statement.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The class.
    pub class: Class,
    /// Its items, bound without parameters.
    pub access: AccessSet,
    /// The items as text, one line each: mode, table, columns with values.
    pub items: Vec<String>,
    /// The items that it takes beside them if its transaction has changed the same rows before.
    pub again: Vec<String>,
    /// What its answer shows of rows, which stand for whole tables among the items.
    pub shown: Vec<String>,
    /// How its changes reach the other replicas, with the reason.
    pub determinism: String,
    /// The text that is executed at home, if it is rewritten: frozen values are shown as `<now>`, `<nextval of s>`.
    pub rewritten: Option<String>,
    /// What is executed at home before it, to number its rows or to see whether it may be executed.
    pub before: Vec<String>,
    /// The text that is executed inside a transaction, if it differs from that outside.
    pub in_block: Option<String>,
    /// The form in which replicas keep it prepared, if there is one: the other replicas, and if it is repeated and
    /// [`crate::Parameterised::answers`] the one that executes it for the client.
    pub prepared_as: Option<String>,
    /// The statement that applies a captured row, if rows are captured.
    pub captured: Option<String>,
}

/// Explains the first statement of a string.
#[must_use]
pub fn explain(sql: &str, context: &Context<'_>) -> Explanation {
    let mut scratch = Scratch::default();
    let normalised = normalise(sql, &mut scratch);
    let class = classify(sql, &normalised, context);
    let layout = normalised.layout;
    let access = class.bind(sql, layout, &NoParams, &[]);
    let texts = |template: &AccessTemplate| -> Vec<String> {
        template
            .items
            .iter()
            .map(|item| item_text(item, sql, &normalised, &class, context.catalogue))
            .collect()
    };
    let items = texts(&class.access);
    let again = class.rechecks.as_deref().map(|rechecks| texts(&rechecks.parents)).unwrap_or_default();
    let shown = class.shown.iter().map(|shown| shown_text(shown, context.catalogue)).collect();
    let rewrite = match &class.determinism {
        Determinism::Capture(plan) => &plan.rewrite,
        Determinism::Number(plan) => &plan.capture.rewrite,
        _ => &class.rewrite,
    };
    let render = |rewrite: &Rewrite| {
        let values: Vec<_> = rewrite
            .frozen
            .iter()
            .map(|f| crate::rewrite::FrozenValue(format!("<{}>", frozen_text(&f.kind))))
            .collect();
        rewrite.render_simple(sql, layout, &values)
    };
    let rewritten = (!rewrite.is_empty()).then(|| render(rewrite));
    let in_block = class.in_block.as_deref().map(render);
    let before = match &class.determinism {
        Determinism::Number(plan) => match &plan.source {
            Numbered::Query { count, .. } => vec![render(count)],
            Numbered::Copy { create, copy, .. } => vec![create.clone(), render(copy)],
        },
        _ => class.guard.iter().map(|guard| guard.sql.clone()).collect(),
    };
    let mut determinism = determinism_text(&class.determinism);
    if class.copied_moments.is_some() && matches!(class.determinism, Determinism::Replay) {
        determinism.push_str(", unless its data name a moment by the clock ('now' ...), which is refused");
    }
    Explanation {
        items,
        again,
        shown,
        determinism,
        rewritten,
        before,
        in_block,
        prepared_as: class.parameterised.as_ref().map(|p| p.sql.to_string()),
        captured: match &class.determinism {
            Determinism::Capture(plan) => Some(captured_sql(plan).sql),
            Determinism::Number(plan) => Some(captured_sql(&plan.capture).sql),
            _ => None,
        },
        access,
        class,
    }
}

impl Explanation {
    /// What is done with the prepared form: only the other replicas use it, or also the one that answers.
    #[must_use]
    pub fn prepared_word(&self) -> &'static str {
        match &self.class.parameterised {
            Some(form) if form.answers => "prepared as",
            _ => "replayed as",
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "class        {}", self.class.text)?;
        writeln!(f, "kind         {:?}", self.class.kind)?;
        if self.items.is_empty() {
            writeln!(f, "items        none")?;
        }
        for (i, item) in self.items.iter().enumerate() {
            writeln!(f, "{}{item}", if i == 0 { "items        " } else { "             " })?;
        }
        for (i, item) in self.again.iter().enumerate() {
            writeln!(f, "{}{item}", if i == 0 { "again        " } else { "             " })?;
        }
        for (i, item) in self.shown.iter().enumerate() {
            writeln!(f, "{}{item}", if i == 0 { "shown        " } else { "             " })?;
        }
        writeln!(f, "changes      {}", self.determinism)?;
        for text in &self.before {
            writeln!(f, "before it    {text}")?;
        }
        if let Some(text) = &self.rewritten {
            writeln!(f, "rewritten    {text}")?;
        }
        if let Some(text) = &self.in_block {
            writeln!(f, "in a block   {text}")?;
        }
        if let Some(text) = &self.prepared_as {
            writeln!(f, "{}  {text}", self.prepared_word())?;
        }
        if let Some(text) = &self.captured {
            writeln!(f, "applied as   {text}")?;
        }
        Ok(())
    }
}

/// One item of a class as text: mode, table, columns with what their values come from.
fn item_text(
    item: &ItemTemplate,
    sql: &str,
    normalised: &crate::lexer::Normalised<'_>,
    class: &Class,
    catalogue: &Catalogue,
) -> String {
    let columns: Vec<String> = item
        .columns
        .iter()
        .map(|c| {
            let name = column_name(catalogue, item.table, c.column);
            format!("{name} = {}", values_text(c, sql, normalised, class))
        })
        .collect();
    let columns = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
    let (table, space) = (table_name(catalogue, item.table), space_text(catalogue, item.table, item.space));
    format!("{:?} {table}{space}{columns}{}", item.mode, columns_text(catalogue, item.table, item.of))
}

/// What an answer shows, as an item whose values are columns of the answer, from 1.
fn shown_text(shown: &ShownTemplate, catalogue: &Catalogue) -> String {
    let columns = shown
        .columns
        .iter()
        .map(|c| format!("{} = column {}", column_name(catalogue, shown.table, c.column), c.place + 1));
    let columns = columns.collect::<Vec<_>>().join(", ");
    let (table, of) = (table_name(catalogue, shown.table), columns_text(catalogue, shown.table, shown.of));
    format!("{:?} {table} ({columns}){of}", Mode::Shared)
}

fn space_text(catalogue: &Catalogue, table: TableId, space: Space) -> String {
    match space {
        Space::Rows => String::new(),
        Space::Schema if table != TableId::NAMES => " definition".to_owned(),
        Space::Schema => String::new(),
        Space::Key(key) => format!(" key {}", key_name(catalogue, table, key)),
    }
}

/// One access as text: mode, table, columns with the hashes of their values.
#[must_use]
pub fn access_text(catalogue: &Catalogue, access: &Access) -> String {
    let item = &access.item;
    let space = space_text(catalogue, item.table, item.space);
    let columns: Vec<String> = item
        .equals
        .iter()
        .map(|(c, v)| format!("{} = #{:08x}", column_name(catalogue, item.table, *c), v.0 >> 32))
        .collect();
    let columns = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
    let of = columns_text(catalogue, item.table, access.columns);
    format!("{:?} {}{space}{columns}{of}", access.mode, table_name(catalogue, item.table))
}

/// The columns that an access is of, unless they are all.
fn columns_text(catalogue: &Catalogue, table: TableId, of: ColumnSet) -> String {
    if of == ColumnSet::ALL {
        return String::new();
    }
    let columns = catalogue.table_by_id(table).into_iter().flat_map(|t| &t.columns);
    let named = columns.filter(|c| of.overlaps(ColumnSet::NONE.with(ColumnId(c.number))));
    let named: Vec<&str> = named.map(|c| c.name.as_str()).collect();
    format!(" of {}", if named.is_empty() { "no column".to_owned() } else { named.join(", ") })
}

fn table_name(catalogue: &Catalogue, id: TableId) -> String {
    if id == TableId::ALL {
        return "whole database".to_owned();
    }
    if id == TableId::NAMES {
        return "all names".to_owned();
    }
    let is_named = |schema: &str, name: &str| crate::catalogue::table_id(schema, name) == id;
    let view = || catalogue.views.iter().find(|v| is_named(&v.schema, &v.name));
    let sequence = || catalogue.sequences.iter().find(|s| is_named(&s.schema, &s.name));
    if let Some(table) = catalogue.table_by_id(id) {
        match table.schema.as_str() {
            "public" => table.name.clone(),
            schema => format!("{schema}.{}", table.name),
        }
    } else if let Some(view) = view() {
        view.name.clone()
    } else if let Some(sequence) = sequence() {
        sequence.name.clone()
    } else {
        format!("new table #{:08x}", id.0 >> 32)
    }
}

fn column_name(catalogue: &Catalogue, table: TableId, column: ColumnId) -> String {
    let found = catalogue.table_by_id(table).and_then(|t| t.column_by_number(column.0));
    found.map_or_else(|| format!("column {}", column.0), |c| c.name.clone())
}

fn key_name(catalogue: &Catalogue, table: TableId, key: onecopy_core::KeyId) -> String {
    let found = catalogue.table_by_id(table).and_then(|t| t.unique.iter().find(|k| k.id() == key));
    found.map_or_else(|| format!("#{:08x}", key.0), |k| k.name.clone())
}

fn values_text(
    column: &ColumnTemplate,
    sql: &str,
    normalised: &crate::lexer::Normalised<'_>,
    class: &Class,
) -> String {
    let one = |source: &Source| match source {
        Source::Const { index, negated } => {
            let text =
                normalised.layout.consts.get(*index as usize).map(|c| {
                    string_value(sql, *c).map_or_else(|| c.text(sql).to_owned(), |t| format!("'{t}'"))
                });
            format!("{}{}", if *negated { "-" } else { "" }, text.unwrap_or_default())
        }
        Source::Param { number } => format!("${number}"),
        Source::Fixed(_) => "<constant>".to_owned(),
        Source::Null => "NULL".to_owned(),
        Source::Frozen(index) => match class.rewrite.frozen.get(*index as usize) {
            Some(frozen) => format!("<{}>", frozen_text(&frozen.kind)),
            None => "<unknown>".to_owned(),
        },
    };
    match &column.values {
        Values::One(operand) => one(&operand.source),
        Values::Any(operands) => {
            let all: Vec<String> = operands.iter().map(|o| one(&o.source)).collect();
            format!("any of {}", all.join(", "))
        }
        Values::Array(operand) => format!("any of {}", one(&operand.source)),
    }
}

fn frozen_text(kind: &FrozenKind) -> String {
    match kind {
        FrozenKind::TransactionTimestamp => "now".to_owned(),
        FrozenKind::StatementTimestamp => "time of the statement".to_owned(),
        FrozenKind::NextVal { name, .. } => format!("nextval of {name}"),
        FrozenKind::CurrVal { name, .. } => format!("currval of {name}"),
        FrozenKind::LastVal => "lastval".to_owned(),
    }
}

fn determinism_text(determinism: &Determinism) -> String {
    match determinism {
        Determinism::Read => "nothing".to_owned(),
        Determinism::Replay => "the statement is executed on every replica".to_owned(),
        Determinism::Capture(plan) => format!("its rows are shipped: {}", plan.reason),
        Determinism::Number(plan) => format!("its rows are shipped: {}", plan.capture.reason),
        Determinism::Refuse(refusal) => format!("refused: {} ({})", refusal.reason, refusal.hint),
    }
}
