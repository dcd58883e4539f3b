//! Access sets with holes: items whose values come from a statement's constants, parameters and frozen values.

use crate::lexer::Layout;
use crate::rewrite::FrozenValue;
use crate::value::{self, Canon, Found, ParamValue, Params, Use, string_value};
use onecopy_core::{Access, AccessSet, ColumnId, ColumnSet, Item, Mode, Space, TableId, ValueHash};
use smallvec::SmallVec;

/// The most items that one list (`IN (...)`, an array, the rows of VALUES) makes before it counts as one wider item.
pub(crate) const ITEMS_MAX: usize = 64;

/// The access set of a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AccessTemplate {
    pub items: Vec<ItemTemplate>,
    /// The type that the server gives to each parameter whose type the client leaves open (0: not certain),
    /// from `$1`.
    pub param_types: Vec<u32>,
}

/// What foreign keys lock where they are checked again: see [`crate::Class::rechecks`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecheckTemplate {
    /// The tables whose rows change and whose foreign keys are meant.
    pub tables: Vec<TableId>,
    /// The rows to which they refer.
    pub parents: AccessTemplate,
}

/// A table of which a query reads only rows that its answer shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShownTemplate {
    pub table: TableId,
    /// The columns of its rows that are read.
    pub of: ColumnSet,
    /// What names a row.
    pub columns: Vec<ShownColumn>,
}

/// A column of a key whose value an answer shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShownColumn {
    pub column: ColumnId,
    /// Which column of the answer shows it, from 0.
    pub place: u16,
    /// That column's type.
    pub type_oid: u32,
    pub canon: Canon,
}

impl ShownTemplate {
    /// The item of a row of the answer, whose values `value` gives by their places; `Ok(None)` if it has none. Fails if a value is
    /// not surely canonical.
    fn item<'v>(&self, value: impl Fn(usize) -> ParamValue<'v>) -> Result<Option<Access>, NotCanonical> {
        let mut equals = Bound::new();
        for shown in &self.columns {
            let given = ParamValue { type_oid: shown.type_oid, ..value(usize::from(shown.place)) };
            match value::of_param(given, shown.type_oid, shown.canon, Use::Compare) {
                Found::Value(hash) => equals.push((shown.column, hash)),
                Found::Null => return Ok(None),
                Found::Open => return Err(NotCanonical),
            }
        }
        let item = Item { table: self.table, space: Space::Rows, equals: sorted(equals) };
        Ok(Some(Access::of_columns(item, Mode::Shared, self.of)))
    }
}

/// A value in an answer is in a form that may be one of several for the same value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotCanonical;

/// Adds the items that a row of an answer shows.
pub(crate) fn shown_by_row<'v>(
    templates: &[ShownTemplate],
    value: impl Fn(usize) -> ParamValue<'v>,
    items: &mut Vec<Access>,
) -> Result<(), NotCanonical> {
    for template in templates {
        if let Some(access) = template.item(&value)?
            && !items.contains(&access)
        {
            items.push(access);
        }
    }
    Ok(())
}

/// One item, or several that differ in one column's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ItemTemplate {
    pub table: TableId,
    pub space: Space,
    pub mode: Mode,
    /// The columns of its rows that are read, or that change.
    pub of: ColumnSet,
    /// The columns that have values. Sorted by column, each at most once.
    pub columns: Vec<ColumnTemplate>,
    pub null: NullRule,
}

impl ItemTemplate {
    /// Whether what is taken of all rows of a table ([`ItemTemplate::columns`] is empty) gives all that another gives.
    pub(crate) fn covers_rows(&self, other: &ItemTemplate) -> bool {
        let item = Item::table(self.table);
        self.space == Space::Rows
            && self.columns.is_empty()
            && !other.is_reference_beside(self.mode)
            && other.space == Space::Rows
            && other.table == self.table
            && Access::of_columns(item.clone(), self.mode, self.of)
                .covers(&Access::of_columns(item, other.mode, other.of))
    }

    /// Whether no row can be meant: nothing equals NULL.
    pub(crate) fn is_empty(&self) -> bool {
        let is_null = |c: &ColumnTemplate| matches!(&c.values, Values::One(o) if o.source == Source::Null);
        self.null == NullRule::Skip && self.columns.iter().any(is_null)
    }

    /// Whether it is what a foreign key refers to, beside rows that are only read: replicas lock that when they apply the
    /// change, and they do not read.
    pub(crate) fn is_reference_beside(&self, mode: Mode) -> bool {
        self.mode == Mode::KeyShared && mode != Mode::KeyShared && !mode.writes()
    }
}

/// What a NULL among an item's values means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NullRule {
    /// The item is empty: nothing equals NULL.
    Skip,
    /// The row holds NULL there.
    Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnTemplate {
    pub column: ColumnId,
    pub canon: Canon,
    pub values: Values,
}

/// The values that a column may have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    One(Operand),
    Any(Vec<Operand>),
    /// The elements of an array.
    Array(Operand),
}

/// A value and what it is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Operand {
    pub source: Source,
    pub usage: Use,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    Const {
        index: u32,
        negated: bool,
    },
    Param {
        number: u32,
    },
    /// Known from the catalogue or the fixed text.
    Fixed(ValueHash),
    Null,
    /// `rewrite.frozen[index]`.
    Frozen(u32),
}

impl AccessTemplate {
    pub(crate) fn bind<P: Params + ?Sized>(
        &self,
        sql: &str,
        layout: Layout<'_>,
        params: &P,
        frozen: &[FrozenValue],
    ) -> AccessSet {
        self.bind_those(sql, layout, params, frozen, |_, _, _| true)
    }

    /// Those items that count, by their tables, spaces and modes.
    pub(crate) fn bind_those<P: Params + ?Sized>(
        &self,
        sql: &str,
        layout: Layout<'_>,
        params: &P,
        frozen: &[FrozenValue],
        counts: impl Fn(TableId, Space, Mode) -> bool,
    ) -> AccessSet {
        let binder = Binder { sql, layout, params, frozen, types: &self.param_types };
        let mut set = AccessSet::new();
        for item in self.items.iter().filter(|item| counts(item.table, item.space, item.mode)) {
            binder.item(item, &mut set);
        }
        set
    }
}

struct Binder<'a, P: ?Sized> {
    sql: &'a str,
    layout: Layout<'a>,
    params: &'a P,
    frozen: &'a [FrozenValue],
    types: &'a [u32],
}

type Bound = SmallVec<[(ColumnId, ValueHash); 2]>;

impl<P: Params + ?Sized> Binder<'_, P> {
    fn item(&self, template: &ItemTemplate, set: &mut AccessSet) {
        let mut single = Bound::new();
        let mut lists: SmallVec<[(ColumnId, Vec<ValueHash>); 1]> = SmallVec::new();
        for column in &template.columns {
            match &column.values {
                Values::One(operand) => match self.value(*operand, column.canon) {
                    Found::Value(value) => single.push((column.column, value)),
                    Found::Null if template.null == NullRule::Skip => return,
                    Found::Null => single.push((column.column, value::null_hash())),
                    Found::Open => {}
                },
                Values::Any(operands) => {
                    let mut values = Vec::with_capacity(operands.len());
                    let certain = operands.iter().all(|operand| match self.value(*operand, column.canon) {
                        Found::Value(value) => {
                            values.push(value);
                            true
                        }
                        Found::Null => true,
                        Found::Open => false,
                    });
                    if certain {
                        lists.push((column.column, distinct(values)));
                    }
                }
                Values::Array(operand) => {
                    if let Some(values) = self.array(*operand, column.canon) {
                        lists.push((column.column, distinct(values)));
                    }
                }
            }
        }
        let mut push = |equals: Bound| {
            let item = Item { table: template.table, space: template.space, equals: sorted(equals) };
            let access = Access::of_columns(item, template.mode, template.of);
            if !set.contains(&access) {
                set.push(access);
            }
        };
        if lists.is_empty() {
            push(single);
            return;
        }
        let mut found = vec![single];
        // Short lists first: what would make too many items widens them instead.
        lists.sort_by_key(|(_, values)| values.len());
        for (column, values) in lists {
            if values.is_empty() {
                return;
            }
            if found.len() * values.len() > ITEMS_MAX {
                break;
            }
            found = found
                .iter()
                .flat_map(|equals| {
                    values.iter().map(move |value| {
                        let mut equals = equals.clone();
                        equals.push((column, *value));
                        equals
                    })
                })
                .collect();
        }
        found.into_iter().for_each(&mut push);
    }

    fn value(&self, operand: Operand, canon: Canon) -> Found {
        match operand.source {
            Source::Fixed(value) => Found::Value(value),
            Source::Null => Found::Null,
            Source::Const { index, negated } => match self.layout.consts.get(index as usize) {
                Some(constant) => value::of_const(self.sql, *constant, negated, canon, operand.usage),
                None => Found::Open,
            },
            Source::Param { number } => match self.params.param(number) {
                Some(param) => value::of_param(param, self.inferred(number), canon, operand.usage),
                None => Found::Open,
            },
            Source::Frozen(index) => match self.frozen.get(index as usize) {
                Some(frozen) => value::of_text(&frozen.0, canon, operand.usage),
                None => Found::Open,
            },
        }
    }

    fn array(&self, operand: Operand, canon: Canon) -> Option<Vec<ValueHash>> {
        match operand.source {
            Source::Param { number } => {
                let param = self.params.param(number)?;
                value::array_elements(param, self.inferred(number), canon, ITEMS_MAX)
            }
            Source::Const { index, negated: false } => {
                let constant = self.layout.consts.get(index as usize)?;
                value::const_array(&string_value(self.sql, *constant)?, canon, ITEMS_MAX)
            }
            _ => None,
        }
    }

    fn inferred(&self, number: u32) -> u32 {
        self.types.get((number as usize).wrapping_sub(1)).copied().unwrap_or(0)
    }
}

fn distinct(mut values: Vec<ValueHash>) -> Vec<ValueHash> {
    values.sort_unstable();
    values.dedup();
    values
}

fn sorted(mut equals: Bound) -> Bound {
    equals.sort_unstable_by_key(|(column, _)| *column);
    equals
}
