//! PostgreSQL's own grammar, through `pg_raw_parse`: the only file that knows this dependency.
//!
//! The raw tree is read field by field into [`crate::ast`]. The crate's `walk` panics on statements that it does
//! not know, so nothing here uses it: every node is matched by hand, and one that has no arm becomes `Unknown`.
//! Nesting is bounded, since everything that reads a tree recurses.

use crate::ast::{
    Alias, AlterCommand, AlterEffect, Body, Call, ClockKind, CommonTable, Copy, CreateTable, Delete, Discard,
    Distinct, Expr, From, Insert, IntoTable, Isolation, JoinKind, Literal, LockStrength, LockWait, Locking,
    Mentions, Merge, MergeAction, MergeArm, MergeMatch, Modes, Name, OnConflict, Overriding, Parted,
    PartedBy, Query, RelationKind, Select, SessionValue, SetValue, Star, Statement, SubqueryKind, Target,
    Transaction, TypeRef, Update, Utility, Window, With,
};
use pg_raw_parse::list::{CastNodeList, NodeList};
use pg_raw_parse::nodes as pg;
use pg_raw_parse::raw;
use pg_raw_parse::{ConstValue, Node};

/// The deepest nesting of expressions and subqueries that is analysed. PostgreSQL's own limit is its stack
/// (`max_stack_depth`), a few thousand levels.
pub(crate) const DEPTH_MAX: u32 = 400;

/// FRAMEOPTION_ROWS of PostgreSQL's `parsenodes.h`.
const FRAME_OF_ROWS: i32 = 0x4;

/// One statement of a string.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub statement: Statement,
    /// How its text names columns.
    pub mentions: Mentions,
}

/// Why a string could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ParseError {
    /// The grammar refuses it.
    #[error("{0}")]
    Syntax(String),
    /// Expressions or subqueries are nested too deeply.
    #[error("expressions or subqueries are nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
}

/// Reads all statements of a string.
pub(crate) fn parse(sql: &str) -> Result<Vec<Parsed>, ParseError> {
    let tree = pg_raw_parse::parse(sql).map_err(|e| ParseError::Syntax(message(&e)))?;
    tree.stmts()
        .map(|node| {
            let mut reader = Reader { depth: 0, mentions: Mentions::default() };
            let statement = reader.statement(node)?;
            Ok(Parsed { statement, mentions: reader.mentions })
        })
        .collect()
}

/// Where the first statement of a string ends (before its semicolon), or None if the string does not parse.
pub(crate) fn first_statement_end(sql: &str) -> Option<usize> {
    let tree = pg_raw_parse::parse(sql).ok()?;
    let first = tree.iter().next()?;
    let start = usize::try_from(first.stmt_location).unwrap_or(0);
    match usize::try_from(first.stmt_len) {
        Ok(len) if len > 0 => Some((start + len).min(sql.len())),
        _ => Some(sql.len()),
    }
}

/// Reads one expression as the catalogue shows it (a default, a generated column, an index expression).
pub(crate) fn parse_expression(text: &str) -> Result<Expr, ParseError> {
    let parsed = parse(&format!("SELECT {text}"))?;
    match parsed.into_iter().next().map(|p| p.statement) {
        Some(Statement::Query(query)) => match query.body {
            Body::Select(mut select) if select.targets.len() == 1 && select.from.is_empty() => {
                Ok(select.targets.remove(0).value)
            }
            _ => Ok(Expr::Unknown),
        },
        _ => Ok(Expr::Unknown),
    }
}

fn message(error: &pg_raw_parse::Error) -> String {
    match error {
        pg_raw_parse::Error::Parse(e) => e.to_string(),
        pg_raw_parse::Error::PgError(e) => e.to_string(),
        pg_raw_parse::Error::StatementContainedNul(_) => "the statement contains a NUL byte".to_owned(),
    }
}

type Read<T> = Result<T, ParseError>;

struct Reader {
    depth: u32,
    mentions: Mentions,
}

impl Reader {
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Reader) -> Read<T>) -> Read<T> {
        if self.depth >= DEPTH_MAX {
            return Err(ParseError::TooDeep);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn statement(&mut self, node: Node<'_>) -> Read<Statement> {
        self.deeper(|r| {
            Ok(match node {
                Node::SelectStmt(s) => Statement::Query(Box::new(r.query(s)?)),
                Node::InsertStmt(s) => Statement::Insert(Box::new(r.insert(s)?)),
                Node::UpdateStmt(s) => Statement::Update(Box::new(r.update(s)?)),
                Node::DeleteStmt(s) => Statement::Delete(Box::new(r.delete(s)?)),
                Node::MergeStmt(s) => Statement::Merge(Box::new(r.merge(s)?)),
                other => Statement::Utility(r.utility(other)?),
            })
        })
    }

    /// Every reference to columns is read here, and by [`Reader::using`].
    fn column_ref(&mut self, column: &pg::ColumnRef) -> Expr {
        let mut path = Vec::new();
        let mut star = false;
        for field in column.fields() {
            match field {
                Node::String(s) => path.push(owned(s.sval())),
                Node::A_Star(_) => star = true,
                _ => return Expr::Unknown,
            }
        }
        self.mentions.paths.insert((path.clone(), if star { Star::Yes } else { Star::No }));
        Expr::Column { path, star, at: offset(column.location) }
    }

    fn using(&mut self, join: &pg::JoinExpr) -> Vec<String> {
        let names = strings(join.using_clause());
        self.mentions.natural |= join.is_natural;
        self.mentions.paths.extend(names.iter().map(|name| (vec![name.clone()], Star::No)));
        names
    }

    // Queries.

    fn query(&mut self, s: &pg::SelectStmt) -> Read<Query> {
        self.deeper(|r| {
            Ok(Query {
                with: r.with(s.with_clause())?,
                body: r.body(s)?,
                order_by: r.sort_keys(s.sort_clause())?,
                limit: r.optional(s.limit_count())?,
                offset: r.optional(s.limit_offset())?,
                with_ties: s.limit_option == raw::LimitOption::LIMIT_OPTION_WITH_TIES,
                locking: s.locking_clause().iter().map(locking).collect(),
                into: s.into_clause().and_then(|i| i.rel()).map(|rel| IntoTable {
                    name: name_of(rel),
                    temporary: rel.relpersistence as u8 == b't',
                    unlogged: rel.relpersistence as u8 == b'u',
                }),
            })
        })
    }

    fn body(&mut self, s: &pg::SelectStmt) -> Read<Body> {
        if s.op != raw::SetOperation::SETOP_NONE {
            return self.set_operation(s);
        }
        if !s.values_lists().is_empty() {
            let mut rows = Vec::new();
            for row in s.values_lists() {
                rows.push(self.nodes(row)?);
            }
            return Ok(Body::Values(rows));
        }
        let mut group_by = Vec::new();
        let mut grouping_sets = s.group_distinct;
        for node in s.group_clause() {
            grouping_sets |= matches!(node, Node::GroupingSet(_));
            group_by.push(self.expr(node)?);
        }
        let distinct = match s.distinct_clause().first() {
            None => Distinct::None,
            Some(Node::None) => Distinct::All,
            Some(_) => Distinct::On(self.list(s.distinct_clause())?),
        };
        Ok(Body::Select(Box::new(Select {
            distinct,
            targets: self.targets(s.target_list())?,
            from: self.relations(s.from_clause())?,
            filter: self.optional(s.where_clause())?,
            group_by,
            grouping_sets,
            having: self.optional(s.having_clause())?,
            windows: self.windows(s.window_clause())?,
        })))
    }

    /// The left spine of set operations can be thousands long; it is read in a loop.
    fn set_operation(&mut self, s: &pg::SelectStmt) -> Read<Body> {
        let mut arms = Vec::new();
        let mut union_all = true;
        let mut at = s;
        loop {
            union_all &= at.op == raw::SetOperation::SETOP_UNION && at.all;
            if let Some(right) = at.rarg() {
                arms.push(self.query(right)?);
            }
            let Some(left) = at.larg() else { break };
            if left.op == raw::SetOperation::SETOP_NONE || !is_plain_set_operation(left) {
                arms.push(self.query(left)?);
                break;
            }
            at = left;
        }
        arms.reverse();
        Ok(Body::Set { arms, union_all })
    }

    fn with(&mut self, with: Option<&pg::WithClause>) -> Read<Option<With>> {
        let Some(with) = with else { return Ok(None) };
        let mut tables = Vec::new();
        for table in with.ctes() {
            tables.push(CommonTable {
                name: owned(table.ctename()),
                columns: words(table.aliascolnames()),
                statement: self.statement(table.ctequery())?,
            });
        }
        Ok(Some(With { recursive: with.recursive, tables }))
    }

    fn targets(&mut self, list: &CastNodeList<pg::ResTarget>) -> Read<Vec<Target>> {
        list.iter().map(|target| self.target(target)).collect()
    }

    fn target_nodes(&mut self, list: &NodeList) -> Read<Vec<Target>> {
        let mut targets = Vec::new();
        for node in list {
            targets.push(match node {
                Node::ResTarget(target) => self.target(target)?,
                other => Target { name: None, partial: false, value: self.expr(other)? },
            });
        }
        Ok(targets)
    }

    fn target(&mut self, target: &pg::ResTarget) -> Read<Target> {
        let mut value = match target.val() {
            Node::None => Expr::Default { at: offset(target.location) },
            value => self.expr(value)?,
        };
        let mut subscripts = self.subscripts(target.indirection())?;
        subscripts.retain(|part| !matches!(part, Expr::Literal { .. } | Expr::Selection { .. }));
        if !subscripts.is_empty() {
            value = Expr::Form(std::iter::once(value).chain(subscripts).collect());
        }
        Ok(Target {
            name: target.name().map(str::to_owned),
            partial: !target.indirection().is_empty(),
            value,
        })
    }

    /// What follows a value or a column in brackets and behind dots.
    fn subscripts(&mut self, indirection: &NodeList) -> Read<Vec<Expr>> {
        let mut parts = Vec::new();
        for step in indirection {
            match step {
                Node::A_Indices(indices) => {
                    for index in [indices.lidx(), indices.uidx()] {
                        parts.extend(self.optional(index)?);
                    }
                }
                Node::String(name) => parts.push(Expr::Selection { name: owned(name.sval()) }),
                Node::A_Star(_) => {}
                _ => parts.push(Expr::Unknown),
            }
        }
        Ok(parts)
    }

    fn relations(&mut self, list: &NodeList) -> Read<Vec<From>> {
        list.iter().map(|node| self.relation(node)).collect()
    }

    fn relation(&mut self, node: Node<'_>) -> Read<From> {
        self.deeper(|r| {
            Ok(match node {
                Node::RangeVar(table) => {
                    From::Table { name: name_of(table), only: !table.inh, alias: alias_of(table.alias()) }
                }
                Node::RangeSubselect(sub) => From::Query {
                    query: Box::new(r.statement(sub.subquery())?),
                    lateral: sub.lateral,
                    alias: alias_of(sub.alias()),
                },
                Node::RangeFunction(function) => {
                    let mut calls = Vec::new();
                    for item in function.functions() {
                        // Each is a list of the call and its column definitions.
                        match item {
                            Node::NodeList(pair) => calls.push(match pair.first() {
                                Some(call) => r.expr(call)?,
                                None => Expr::Unknown,
                            }),
                            call => calls.push(r.expr(call)?),
                        }
                    }
                    if let ([Expr::Call(call)], columns) = (calls.as_mut_slice(), function.coldeflist()) {
                        call.record = columns.iter().map(|c| type_ref(c.type_name()).name).collect();
                    }
                    From::Function {
                        calls,
                        alias: alias_of(function.alias()),
                        ordinality: function.ordinality,
                    }
                }
                Node::JoinExpr(join) => From::Join {
                    kind: match join.jointype {
                        raw::JoinType::JOIN_INNER => JoinKind::Inner,
                        raw::JoinType::JOIN_LEFT => JoinKind::Left,
                        raw::JoinType::JOIN_RIGHT => JoinKind::Right,
                        _ => JoinKind::Full,
                    },
                    left: Box::new(r.relation(join.larg())?),
                    right: Box::new(r.relation(join.rarg())?),
                    on: r.optional(join.quals())?,
                    using: r.using(join),
                    natural: join.is_natural,
                    alias: alias_of(join.alias()).or_else(|| alias_of(join.join_using_alias())),
                },
                Node::RangeTableSample(sample) => From::Sample {
                    table: Box::new(r.relation(sample.relation())?),
                    arguments: r
                        .list(sample.args())?
                        .into_iter()
                        .chain(r.optional(sample.repeatable())?)
                        .collect(),
                },
                Node::RangeTableFunc(table) => {
                    let mut parts = vec![r.expr(table.docexpr())?, r.expr(table.rowexpr())?];
                    let mut types = Vec::new();
                    for column in table.columns() {
                        types.extend(column.type_name().map(|name| type_ref(Some(name)).name));
                        parts.push(r.expr(column.colexpr())?);
                        parts.push(r.expr(column.coldefexpr())?);
                    }
                    for node in table.namespaces() {
                        parts.push(r.expr(node)?);
                    }
                    From::Other { parts, types: Some(types), alias: alias_of(table.alias()) }
                }
                Node::JsonTable(table) => {
                    let mut parts = r.json_value(table.context_item())?;
                    let mut types = Vec::new();
                    parts.extend(r.list(table.passing())?);
                    for column in table.columns() {
                        types.extend(column.type_name().map(|name| type_ref(Some(name)).name));
                        // Defaults of nested columns are the only places for expressions.
                        let plain = column.on_empty().is_none()
                            && column.on_error().is_none()
                            && column.columns().is_empty();
                        if !plain {
                            parts.push(Expr::Unknown);
                        }
                    }
                    From::Other { parts, types: Some(types), alias: alias_of(table.alias()) }
                }
                _ => From::Other { parts: vec![Expr::Unknown], types: None, alias: None },
            })
        })
    }

    fn sort_keys(&mut self, list: &CastNodeList<pg::SortBy>) -> Read<Vec<Expr>> {
        list.iter().map(|key| self.expr(key.node())).collect()
    }

    fn windows(&mut self, list: &NodeList) -> Read<Vec<Window>> {
        let mut windows = Vec::new();
        for node in list {
            if let Node::WindowDef(window) = node {
                windows.push(self.window(window)?);
            }
        }
        Ok(windows)
    }

    fn window(&mut self, window: &pg::WindowDef) -> Read<Window> {
        Ok(Window {
            rows: window.frame_options & FRAME_OF_ROWS != 0,
            partition_by: self.list(window.partition_clause())?,
            order_by: self.sort_keys(window.order_clause())?,
            frame: vec![self.expr(window.start_offset())?, self.expr(window.end_offset())?],
        })
    }

    // Writes.

    fn insert(&mut self, s: &pg::InsertStmt) -> Read<Insert> {
        let source = match s.select_stmt() {
            Node::SelectStmt(select) => Some(Box::new(self.query(select)?)),
            _ => None,
        };
        let relation = s.relation();
        Ok(Insert {
            with: self.with(s.with_clause())?,
            table: relation.map(name_of).unwrap_or_default(),
            alias: relation.and_then(|r| alias_of(r.alias())).map(|a| a.name),
            columns: self.target_nodes(s.cols())?,
            source,
            overriding: overriding(s.override_),
            on_conflict: match s.on_conflict_clause() {
                Some(clause) => self.on_conflict(clause)?,
                None => None,
            },
            returning: self.returning(s.returning_clause())?,
        })
    }

    fn on_conflict(&mut self, clause: &pg::OnConflictClause) -> Read<Option<OnConflict>> {
        let mut conflict =
            OnConflict { columns: None, constraint: None, infer_parts: Vec::new(), update: None };
        if let Some(infer) = clause.infer() {
            conflict.constraint = infer.conname().map(str::to_owned);
            let mut columns = Some(Vec::new());
            for node in infer.index_elems() {
                let Node::IndexElem(element) = node else { continue };
                match (element.name(), &mut columns) {
                    (Some(name), Some(columns)) => columns.push(name.to_owned()),
                    (None, _) => {
                        columns = None;
                        conflict.infer_parts.push(self.expr(element.expr())?);
                    }
                    _ => {}
                }
            }
            if let Some(filter) = self.optional(infer.where_clause())? {
                conflict.infer_parts.push(filter);
                columns = None;
            }
            conflict.columns = columns.filter(|c| !c.is_empty());
        }
        match clause.action {
            raw::OnConflictAction::ONCONFLICT_NOTHING => Ok(Some(conflict)),
            raw::OnConflictAction::ONCONFLICT_UPDATE => {
                conflict.update =
                    Some((self.targets(clause.target_list())?, self.optional(clause.where_clause())?));
                Ok(Some(conflict))
            }
            _ => Ok(None),
        }
    }

    fn update(&mut self, s: &pg::UpdateStmt) -> Read<Update> {
        let relation = s.relation();
        Ok(Update {
            with: self.with(s.with_clause())?,
            table: relation.map(name_of).unwrap_or_default(),
            only: relation.is_some_and(|r| !r.inh),
            alias: relation.and_then(|r| alias_of(r.alias())).map(|a| a.name),
            set: self.targets(s.target_list())?,
            from: self.relations(s.from_clause())?,
            filter: self.optional(s.where_clause())?,
            returning: self.returning(s.returning_clause())?,
        })
    }

    fn delete(&mut self, s: &pg::DeleteStmt) -> Read<Delete> {
        let relation = s.relation();
        Ok(Delete {
            with: self.with(s.with_clause())?,
            table: relation.map(name_of).unwrap_or_default(),
            only: relation.is_some_and(|r| !r.inh),
            alias: relation.and_then(|r| alias_of(r.alias())).map(|a| a.name),
            using: self.relations(s.using_clause())?,
            filter: self.optional(s.where_clause())?,
            returning: self.returning(s.returning_clause())?,
        })
    }

    fn merge(&mut self, s: &pg::MergeStmt) -> Read<Merge> {
        let relation = s.relation();
        let mut arms = Vec::new();
        for when in s.merge_when_clauses() {
            let action = match when.command_type {
                raw::CmdType::CMD_UPDATE => MergeAction::Update(self.target_nodes(when.target_list())?),
                raw::CmdType::CMD_DELETE => MergeAction::Delete,
                raw::CmdType::CMD_INSERT => MergeAction::Insert {
                    columns: self.target_nodes(when.target_list())?,
                    values: self.list(when.values())?,
                    overriding: overriding(when.override_),
                },
                _ => MergeAction::Nothing,
            };
            arms.push(MergeArm {
                condition: self.optional(when.condition())?,
                matched: match when.match_kind {
                    raw::MergeMatchKind::MERGE_WHEN_MATCHED => MergeMatch::Matched,
                    raw::MergeMatchKind::MERGE_WHEN_NOT_MATCHED_BY_SOURCE => MergeMatch::NotMatchedBySource,
                    _ => MergeMatch::NotMatchedByTarget,
                },
                action,
            });
        }
        Ok(Merge {
            with: self.with(s.with_clause())?,
            table: relation.map(name_of).unwrap_or_default(),
            only: relation.is_some_and(|r| !r.inh),
            alias: relation.and_then(|r| alias_of(r.alias())).map(|a| a.name),
            source: self.relation(s.source_relation())?,
            on: self.expr(s.join_condition())?,
            arms,
            returning: self.returning(s.returning_clause())?,
        })
    }

    fn returning(&mut self, clause: Option<&pg::ReturningClause>) -> Read<Option<Vec<Target>>> {
        match clause {
            Some(clause) => Ok(Some(self.target_nodes(clause.exprs())?)),
            None => Ok(None),
        }
    }

    // Expressions.

    fn optional(&mut self, node: Node<'_>) -> Read<Option<Expr>> {
        match node {
            Node::None => Ok(None),
            node => self.expr(node).map(Some),
        }
    }

    fn list(&mut self, list: &NodeList) -> Read<Vec<Expr>> {
        list.iter().map(|node| self.expr(node)).collect()
    }

    fn nodes(&mut self, node: Node<'_>) -> Read<Vec<Expr>> {
        match node {
            Node::NodeList(list) => self.list(list),
            Node::None => Ok(Vec::new()),
            node => Ok(vec![self.expr(node)?]),
        }
    }

    fn boxed(&mut self, node: Node<'_>) -> Read<Box<Expr>> {
        self.expr(node).map(Box::new)
    }

    fn expr(&mut self, node: Node<'_>) -> Read<Expr> {
        self.deeper(|r| r.expr_at(node))
    }

    fn expr_at(&mut self, node: Node<'_>) -> Read<Expr> {
        Ok(match node {
            Node::None => Expr::Form(Vec::new()),
            Node::NodeList(list) => Expr::Row(self.list(list)?),
            Node::ColumnRef(column) => self.column_ref(column),
            Node::A_Const(constant) => {
                Expr::Literal { value: literal(constant), at: offset(constant.location) }
            }
            Node::ParamRef(param) => match u32::try_from(param.number) {
                Ok(number) if number > 0 => Expr::Param { number, at: offset(param.location) },
                _ => Expr::Unknown,
            },
            Node::A_Expr(e) => return self.operator(e),
            Node::BoolExpr(e) => {
                let mut parts = self.list(e.args())?;
                match e.boolop {
                    raw::BoolExprType::AND_EXPR => Expr::And(parts),
                    raw::BoolExprType::OR_EXPR => Expr::Or(parts),
                    _ => Expr::Not(Box::new(parts.pop().unwrap_or(Expr::Unknown))),
                }
            }
            Node::FuncCall(call) => Expr::Call(Box::new(self.call(call)?)),
            Node::TypeCast(cast) => {
                Expr::Cast { value: self.boxed(cast.arg())?, to: type_ref(cast.type_name()) }
            }
            Node::SubLink(link) => self.sub_link(link)?,
            Node::SQLValueFunction(function) => value_function(function),
            Node::RowExpr(row) => Expr::Row(self.list(row.args())?),
            Node::A_ArrayExpr(array) => Expr::Array(self.list(array.elements())?),
            Node::CollateClause(collate) => Expr::Collate { value: self.boxed(collate.arg())? },
            Node::SetToDefault(default) => Expr::Default { at: offset(default.location) },
            Node::CurrentOfExpr(_) => Expr::CurrentOf,
            Node::MultiAssignRef(assign) => Expr::MultiAssign {
                source: self.boxed(assign.source())?,
                column: u32::try_from(assign.colno).unwrap_or(0),
                of: u32::try_from(assign.ncolumns).unwrap_or(0),
            },
            Node::NamedArgExpr(argument) => return self.expr(argument.arg()),
            other => Expr::Form(self.form(other)?),
        })
    }

    /// The parts of built-in forms; `Unknown` for a node without an arm.
    fn form(&mut self, node: Node<'_>) -> Read<Vec<Expr>> {
        let mut parts = Vec::new();
        match node {
            Node::NullTest(e) => parts.push(self.expr(e.arg())?),
            Node::BooleanTest(e) => parts.push(self.expr(e.arg())?),
            Node::CaseExpr(e) => {
                parts.push(self.expr(e.arg())?);
                parts.extend(self.list(e.args())?);
                parts.push(self.expr(e.defresult())?);
            }
            Node::CaseWhen(e) => {
                parts.push(self.expr(e.expr())?);
                parts.push(self.expr(e.result())?);
            }
            Node::CoalesceExpr(e) => parts = self.list(e.args())?,
            // One part, by which it differs from COALESCE: what is chosen goes by the order of values.
            Node::MinMaxExpr(e) => parts.push(Expr::Form(self.list(e.args())?)),
            Node::GroupingFunc(e) => parts = self.list(e.args())?,
            Node::GroupingSet(e) => parts = self.list(e.content())?,
            Node::A_Indirection(e) => {
                parts.push(self.expr(e.arg())?);
                parts.extend(self.subscripts(e.indirection())?);
            }
            Node::ResTarget(target) => parts.push(self.expr(target.val())?),
            Node::SortBy(key) => parts.push(self.expr(key.node())?),
            Node::XmlExpr(e) => {
                parts = self.list(e.named_args())?;
                parts.extend(self.list(e.args())?);
            }
            Node::XmlSerialize(e) => parts.push(self.expr(e.expr())?),
            Node::JsonIsPredicate(e) => parts.push(self.expr(e.expr())?),
            Node::JsonParseExpr(e) => parts = self.json_value(e.expr())?,
            Node::JsonScalarExpr(e) => parts.push(self.expr(e.expr())?),
            Node::JsonSerializeExpr(e) => parts = self.json_value(e.expr())?,
            Node::JsonValueExpr(e) => parts = self.json_value(Some(e))?,
            Node::JsonKeyValue(e) => {
                parts.push(self.expr(e.key())?);
                parts.extend(self.json_value(e.value())?);
            }
            Node::JsonArgument(e) => parts = self.json_value(e.val())?,
            Node::JsonObjectConstructor(e) => {
                parts.push(of_no_part());
                for pair in e.exprs() {
                    parts.push(self.expr(pair.key())?);
                    parts.extend(self.json_value(pair.value())?);
                }
            }
            Node::JsonArrayConstructor(e) => {
                parts.push(of_no_part());
                for value in e.exprs() {
                    parts.extend(self.json_value(Some(value))?);
                }
            }
            Node::JsonArrayQueryConstructor(e) => {
                if let Node::SelectStmt(select) = e.query() {
                    parts.push(subquery(SubqueryKind::Array, None, self.query(select)?));
                } else {
                    parts.push(Expr::Unknown);
                }
            }
            Node::JsonFuncExpr(e) => {
                parts = self.json_value(e.context_item())?;
                parts.push(self.expr(e.pathspec())?);
                parts.push(of_no_part());
                parts.extend(self.list(e.passing())?);
                for behaviour in [e.on_empty(), e.on_error()].into_iter().flatten() {
                    parts.push(self.expr(behaviour.expr())?);
                }
                if let Some(output) = e.output() {
                    // RETURNING: what is found is read as that type.
                    let value = Box::new(Expr::Form(std::mem::take(&mut parts)));
                    parts.push(Expr::Cast { value, to: type_ref(output.type_name()) });
                }
            }
            Node::JsonObjectAgg(e) => {
                if let Some(pair) = e.arg() {
                    parts.push(self.expr(pair.key())?);
                    parts.extend(self.json_value(pair.value())?);
                }
                parts.push(self.json_aggregate("json_objectagg", e.constructor())?);
            }
            Node::JsonArrayAgg(e) => {
                parts = self.json_value(e.arg())?;
                parts.push(self.json_aggregate("json_arrayagg", e.constructor())?);
            }
            Node::String(_) | Node::Integer(_) | Node::Float(_) | Node::Boolean(_) => {}
            _ => parts.push(Expr::Unknown),
        }
        Ok(parts)
    }

    fn json_value(&mut self, value: Option<&pg::JsonValueExpr>) -> Read<Vec<Expr>> {
        match value {
            Some(value) => Ok(vec![self.expr(value.raw_expr())?]),
            None => Ok(Vec::new()),
        }
    }

    /// JSON_ARRAYAGG and JSON_OBJECTAGG as a call of an aggregate whose result depends on the order of rows.
    fn json_aggregate(&mut self, name: &str, constructor: Option<&pg::JsonAggConstructor>) -> Read<Expr> {
        let Some(constructor) = constructor else { return Ok(Expr::Unknown) };
        Ok(Expr::Call(Box::new(Call {
            name: Name::new(vec!["pg_catalog".to_owned(), name.to_owned()]),
            arguments: Vec::new(),
            named: false,
            star: false,
            distinct: false,
            order_by: self.list(constructor.agg_order())?,
            within_group: false,
            filter: self.optional(constructor.agg_filter())?,
            record: Vec::new(),
            over: match constructor.over() {
                Some(window) => Some(self.window(window)?),
                None => None,
            },
            at: offset(constructor.location),
        })))
    }

    fn operator(&mut self, e: &pg::A_Expr) -> Read<Expr> {
        use raw::A_Expr_Kind as Kind;
        let name = Name::new(words(e.name()));
        Ok(match e.kind {
            Kind::AEXPR_OP if is_chain(e) => self.chain(e)?,
            Kind::AEXPR_OP => Expr::Operator {
                name,
                left: self.optional(e.lexpr())?.map(Box::new),
                right: self.optional(e.rexpr())?.map(Box::new),
            },
            Kind::AEXPR_OP_ANY | Kind::AEXPR_OP_ALL => Expr::OfArray {
                name,
                all: e.kind == Kind::AEXPR_OP_ALL,
                left: self.boxed(e.lexpr())?,
                right: self.boxed(e.rexpr())?,
            },
            Kind::AEXPR_IN => Expr::In {
                left: self.boxed(e.lexpr())?,
                list: self.nodes(e.rexpr())?,
                negated: name.last() != "=",
            },
            Kind::AEXPR_LIKE | Kind::AEXPR_ILIKE | Kind::AEXPR_SIMILAR => Expr::Operator {
                name,
                left: self.optional(e.lexpr())?.map(Box::new),
                right: self.optional(e.rexpr())?.map(Box::new),
            },
            // IS [NOT] DISTINCT FROM, NULLIF and BETWEEN use the default operators of the type.
            _ => {
                let mut parts = self.nodes(e.lexpr())?;
                parts.extend(self.nodes(e.rexpr())?);
                Expr::Form(parts)
            }
        })
    }

    fn chain(&mut self, e: &pg::A_Expr) -> Read<Expr> {
        let (mut operators, mut operands) = (Vec::new(), Vec::new());
        let mut at = e;
        loop {
            operators.push(Name::new(words(at.name())));
            operands.push(self.expr(at.rexpr())?);
            match at.lexpr() {
                Node::A_Expr(left) if left.kind == raw::A_Expr_Kind::AEXPR_OP => at = left,
                left => {
                    operands.push(self.expr(left)?);
                    break;
                }
            }
        }
        operators.reverse();
        operands.reverse();
        Ok(Expr::Chain { operators, operands })
    }

    fn call(&mut self, call: &pg::FuncCall) -> Read<Call> {
        let named = call.func_variadic || call.args().iter().any(|a| matches!(a, Node::NamedArgExpr(_)));
        Ok(Call {
            record: Vec::new(),
            name: Name::new(words(call.funcname())),
            arguments: self.list(call.args())?,
            named,
            star: call.agg_star,
            distinct: call.agg_distinct,
            order_by: self.sort_keys(call.agg_order())?,
            within_group: call.agg_within_group,
            filter: self.optional(call.agg_filter())?,
            over: match call.over() {
                Some(window) => Some(self.window(window)?),
                None => None,
            },
            at: offset(call.location),
        })
    }

    fn sub_link(&mut self, link: &pg::SubLink) -> Read<Expr> {
        use raw::SubLinkType as Kind;
        let Node::SelectStmt(select) = link.subselect() else { return Ok(Expr::Unknown) };
        let kind = match link.sub_link_type {
            Kind::EXISTS_SUBLINK => SubqueryKind::Exists,
            Kind::ANY_SUBLINK => SubqueryKind::Any,
            Kind::ALL_SUBLINK => SubqueryKind::All,
            Kind::EXPR_SUBLINK => SubqueryKind::Scalar,
            Kind::ARRAY_SUBLINK => SubqueryKind::Array,
            _ => SubqueryKind::Row,
        };
        let test = self.optional(link.testexpr())?.map(Box::new);
        let operator = (!link.oper_name().is_empty()).then(|| Name::new(words(link.oper_name())));
        Ok(Expr::Subquery { kind, test, operator, query: Box::new(self.query(select)?) })
    }

    // Everything else.

    fn utility(&mut self, node: Node<'_>) -> Read<Utility> {
        Ok(match node {
            Node::TransactionStmt(s) => transaction(s),
            Node::VariableSetStmt(s) => variable_set(s),
            Node::VariableShowStmt(s) => Utility::Show { name: owned(s.name()) },
            Node::ConstraintsSetStmt(s) => {
                Utility::SetConstraints { names: range_vars(s.constraints()), deferred: s.deferred }
            }
            Node::DiscardStmt(s) => Utility::Discard(match s.target {
                raw::DiscardMode::DISCARD_ALL => Discard::All,
                raw::DiscardMode::DISCARD_PLANS => Discard::Plans,
                raw::DiscardMode::DISCARD_SEQUENCES => Discard::Sequences,
                _ => Discard::Temp,
            }),
            Node::PrepareStmt(s) => {
                Utility::Prepare { name: owned(s.name()), statement: Box::new(self.statement(s.query())?) }
            }
            Node::ExecuteStmt(s) => {
                Utility::Execute { name: owned(s.name()), arguments: self.list(s.params())? }
            }
            Node::DeallocateStmt(s) => Utility::Deallocate { name: s.name().map(str::to_owned) },
            Node::DeclareCursorStmt(s) => Utility::Declare {
                name: owned(s.portalname()),
                hold: s.options & CURSOR_HOLD != 0,
                scroll: s.options & CURSOR_SCROLL != 0,
                query: Box::new(self.statement(s.query())?),
            },
            Node::FetchStmt(s) => Utility::Fetch { name: owned(s.portalname()), is_move: s.ismove },
            Node::ClosePortalStmt(s) => Utility::Close { name: s.portalname().map(str::to_owned) },
            Node::ExplainStmt(s) => Utility::Explain {
                analyze: s.options().iter().any(|o| o.defname() == Some("analyze") && option_is_on(o.arg())),
                statement: Box::new(self.statement(s.query())?),
            },
            Node::CopyStmt(s) => Utility::Copy(Box::new(self.copy(s)?)),
            Node::CreateStmt(s) => Utility::CreateTable(self.create_table(s)?),
            Node::CreateTableAsStmt(s) => {
                let rel = s.into().and_then(pg::IntoClause::rel);
                Utility::CreateTableAs {
                    name: rel.map(name_of).unwrap_or_default(),
                    temporary: rel.is_some_and(is_temporary),
                    query: Box::new(self.statement(s.query())?),
                    materialised: s.objtype == raw::ObjectType::OBJECT_MATVIEW,
                    if_not_exists: s.if_not_exists,
                }
            }
            Node::IndexStmt(s) => {
                let mut parts = Vec::new();
                for element in s.index_params() {
                    parts.extend(self.optional(element.expr())?);
                }
                parts.extend(self.optional(s.where_clause())?);
                Utility::CreateIndex {
                    table: s.relation().map(name_of).unwrap_or_default(),
                    concurrently: s.concurrent,
                    parts,
                }
            }
            Node::ViewStmt(s) => Utility::CreateView {
                name: s.view().map(name_of).unwrap_or_default(),
                temporary: s.view().is_some_and(is_temporary),
                query: Box::new(self.statement(s.query())?),
            },
            Node::AlterTableStmt(s) => {
                let mut commands = Vec::new();
                for command in s.cmds() {
                    commands.push(match command {
                        Node::AlterTableCmd(command) => self.alter_command(command)?,
                        _ => AlterCommand {
                            converted_column: None,
                            value: None,
                            called_default: None,
                            added_type: None,
                            converted_to: None,
                            checks: Vec::new(),
                            effect: AlterEffect::Rewrites,
                            tables: Vec::new(),
                            changes_ties: true,
                            cascade: false,
                        },
                    });
                }
                Utility::AlterTable {
                    table: s.relation().map(name_of).unwrap_or_default(),
                    kind: relation_kind(s.objtype),
                    commands,
                }
            }
            Node::DropStmt(s) => drop_statement(s),
            Node::TruncateStmt(s) => Utility::Truncate {
                tables: range_vars(s.relations()),
                cascade: s.behavior == raw::DropBehavior::DROP_CASCADE,
                restart: s.restart_seqs,
            },
            Node::LockStmt(s) => {
                Utility::Lock { tables: range_vars(s.relations()), mode: s.mode, no_wait: s.nowait }
            }
            Node::RenameStmt(s) => match s.relation() {
                Some(table) => Utility::Rename {
                    tag: "ALTER ... RENAME",
                    table: name_of(table),
                    to_schema: None,
                    to_name: is_relation(s.rename_type).then(|| owned(s.newname())),
                },
                None => Utility::OtherDdl { tag: "ALTER", tables: Vec::new() },
            },
            Node::RefreshMatViewStmt(s) => Utility::RefreshView {
                name: s.relation().map(name_of).unwrap_or_default(),
                concurrently: s.concurrent,
            },
            Node::CreateSeqStmt(s) => {
                Utility::CreateSequence { temporary: s.sequence().is_some_and(is_temporary) }
            }
            Node::AlterSeqStmt(s) => {
                Utility::AlterSequence { name: s.sequence().map(name_of).unwrap_or_default() }
            }
            Node::CreateTrigStmt(s) => Utility::CreateTrigger {
                table: s.relation().map(name_of).unwrap_or_default(),
                condition: self.optional(s.when_clause())?,
            },
            Node::ListenStmt(s) => Utility::Listen { channel: owned(s.conditionname()) },
            Node::UnlistenStmt(s) => Utility::Unlisten { channel: s.conditionname().map(str::to_owned) },
            Node::NotifyStmt(s) => {
                Utility::Notify { channel: owned(s.conditionname()), payload: owned(s.payload()) }
            }
            Node::DoStmt(_) => Utility::Do,
            Node::CallStmt(s) => match s.funccall() {
                Some(call) => Utility::Call(Box::new(self.call(call)?)),
                None => Utility::Unknown,
            },
            Node::LoadStmt(_) => Utility::Load,
            Node::CheckPointStmt(_) => Utility::Checkpoint,
            other => {
                let (settings, definition) = (kept_settings(other), other_statement(other));
                match settings.is_empty() {
                    true => definition,
                    false => Utility::KeepsSettings { settings, definition: Box::new(definition) },
                }
            }
        })
    }

    fn copy(&mut self, s: &pg::CopyStmt) -> Read<Copy> {
        let mut format = None;
        let mut freeze = false;
        let mut default_marker = false;
        let mut header = false;
        let (mut delimiter, mut quote, mut escape, mut encoding) = (None, None, None, None);
        for option in s.options() {
            let text = || option.arg().as_str().map(str::to_owned);
            match option.defname() {
                Some("format") => format = option.arg().as_str().map(str::to_ascii_lowercase),
                Some("delimiter") => delimiter = text(),
                Some("quote") => quote = text(),
                Some("escape") => escape = text(),
                Some("encoding") => encoding = text(),
                Some("header") => header = option_is_on(option.arg()),
                Some("freeze") => freeze = option_is_on(option.arg()),
                Some("default") => default_marker = true,
                _ => {}
            }
        }
        Ok(Copy {
            table: s.relation().map(name_of),
            columns: words(s.attlist()),
            query: match s.query() {
                Node::None => None,
                query => Some(Box::new(self.statement(query)?)),
            },
            from: s.is_from,
            server_side: s.is_program || s.filename().is_some(),
            freeze,
            filter: self.optional(s.where_clause())?,
            format,
            default_marker,
            delimiter,
            quote,
            escape,
            encoding,
            header,
        })
    }

    fn create_table(&mut self, s: &pg::CreateStmt) -> Read<CreateTable> {
        let mut others = range_vars(s.inh_relations());
        let (mut expressions, mut columns) = (Vec::new(), Vec::new());
        for element in s.table_elts() {
            match element {
                Node::ColumnDef(column) => {
                    columns.push((owned(column.colname()), type_ref(column.type_name())));
                    expressions.extend(self.column_expressions(column, &mut others)?);
                }
                Node::Constraint(constraint) => others.extend(constraint.pktable().map(name_of)),
                Node::TableLikeClause(like) => others.extend(like.relation().map(name_of)),
                _ => {}
            }
        }
        let rel = s.relation();
        Ok(CreateTable {
            name: rel.map(name_of).unwrap_or_default(),
            temporary: rel.is_some_and(is_temporary),
            if_not_exists: s.if_not_exists,
            others,
            expressions,
            columns,
            parted: self.parted(s.partspec())?,
        })
    }

    fn parted(&mut self, spec: Option<&pg::PartitionSpec>) -> Read<Option<Parted>> {
        use raw::PartitionStrategy as Strategy;
        let Some(spec) = spec else { return Ok(None) };
        let mut key = Vec::new();
        for element in spec.part_params() {
            match element.name() {
                Some(name) => {
                    key.push(Expr::Column { path: vec![name.to_owned()], star: false, at: u32::MAX });
                }
                None => key.extend(self.optional(element.expr())?),
            }
        }
        let by = match spec.strategy {
            Strategy::PARTITION_STRATEGY_LIST => PartedBy::List,
            Strategy::PARTITION_STRATEGY_RANGE => PartedBy::Range,
            _ => PartedBy::Hash,
        };
        Ok(Some(Parted { by, key }))
    }

    /// Default and generation expressions of a column definition; its foreign keys' parents go to `others`.
    fn column_expressions(&mut self, column: &pg::ColumnDef, others: &mut Vec<Name>) -> Read<Vec<Expr>> {
        let mut expressions = Vec::new();
        expressions.extend(self.optional(column.raw_default())?);
        for constraint in column.constraints() {
            let Node::Constraint(constraint) = constraint else { continue };
            others.extend(constraint.pktable().map(name_of));
            expressions.extend(self.optional(constraint.raw_expr())?);
        }
        Ok(expressions)
    }

    fn alter_command(&mut self, command: &pg::AlterTableCmd) -> Read<AlterCommand> {
        use raw::AlterTableType as Kind;
        let mut tables = Vec::new();
        let mut called_default = None;
        let mut added_type = None;
        let mut converted_to = None;
        let mut converted_column = None;
        let mut value = None;
        let mut checks = Vec::new();
        let effect = match command.subtype {
            Kind::AT_AddColumn => match command.def() {
                Node::ColumnDef(column) => {
                    let computes = |c: &Node<'_>| {
                        use raw::ConstrType::{CONSTR_DEFAULT, CONSTR_GENERATED};
                        matches!(c, Node::Constraint(c) if matches!(c.contype, CONSTR_DEFAULT | CONSTR_GENERATED))
                    };
                    for constraint in column.constraints() {
                        if let Node::Constraint(constraint) = constraint {
                            checks.extend(self.added_check(constraint)?);
                        }
                    }
                    let of_column = type_ref(column.type_name());
                    match column.constraints().iter().any(|c| computes(&c)) {
                        true => {
                            converted_to = Some(of_column);
                            let mut expressions = Vec::new();
                            for constraint in column.constraints().iter().filter(|c| computes(c)) {
                                let Node::Constraint(constraint) = constraint else { continue };
                                expressions.extend(self.optional(constraint.raw_expr())?);
                            }
                            value = expressions.pop();
                        }
                        false => added_type = Some(of_column.name),
                    }
                    self.added_column(column, &mut tables, &mut called_default)?
                }
                _ => AlterEffect::Evaluates,
            },
            Kind::AT_AlterColumnType => match command.def() {
                Node::ColumnDef(column) => {
                    converted_to = Some(type_ref(column.type_name()));
                    converted_column = command.name().map(str::to_owned);
                    value = self.optional(column.raw_default())?;
                    match &value {
                        Some(using) if !is_simple(using) => AlterEffect::Evaluates,
                        _ => AlterEffect::Rewrites,
                    }
                }
                _ => AlterEffect::Evaluates,
            },
            Kind::AT_AddConstraint => {
                if let Node::Constraint(constraint) = command.def() {
                    tables.extend(constraint.pktable().map(name_of));
                    checks.extend(self.added_check(constraint)?);
                }
                AlterEffect::Scans
            }
            Kind::AT_ChangeOwner => AlterEffect::Owner,
            Kind::AT_AddIdentity => AlterEffect::CatalogueOnly,
            Kind::AT_AddIndex
            | Kind::AT_AddIndexConstraint
            | Kind::AT_ValidateConstraint
            | Kind::AT_SetNotNull => AlterEffect::Scans,
            Kind::AT_AttachPartition
            | Kind::AT_DetachPartition
            | Kind::AT_DetachPartitionFinalize
            | Kind::AT_AddInherit
            | Kind::AT_DropInherit => {
                match command.def() {
                    Node::PartitionCmd(partition) => tables.extend(partition.name().map(name_of)),
                    Node::RangeVar(parent) => tables.push(name_of(parent)),
                    _ => {}
                }
                AlterEffect::Rewrites
            }
            Kind::AT_SetExpression => AlterEffect::Evaluates,
            Kind::AT_SetLogged | Kind::AT_SetUnLogged | Kind::AT_SetAccessMethod | Kind::AT_SetTableSpace => {
                AlterEffect::Rewrites
            }
            _ => AlterEffect::CatalogueOnly,
        };
        Ok(AlterCommand {
            converted_column,
            value,
            called_default,
            added_type,
            converted_to,
            checks,
            effect,
            tables,
            changes_ties: changes_ties(command.subtype),
            cascade: command.behavior == raw::DropBehavior::DROP_CASCADE,
        })
    }

    /// A CHECK that rows which are there must pass.
    fn added_check(&mut self, constraint: &pg::Constraint) -> Read<Option<Expr>> {
        match constraint.contype == raw::ConstrType::CONSTR_CHECK && !constraint.skip_validation {
            true => self.optional(constraint.raw_expr()),
            false => Ok(None),
        }
    }

    fn added_column(
        &mut self,
        column: &pg::ColumnDef,
        tables: &mut Vec<Name>,
        called_default: &mut Option<(String, Expr)>,
    ) -> Read<AlterEffect> {
        let serial = column.type_name().is_some_and(|t| {
            matches!(
                t.names().iter().next_back().and_then(pg::String::sval),
                Some("serial" | "bigserial" | "smallserial" | "serial4" | "serial8" | "serial2")
            )
        });
        let mut effect = if serial { AlterEffect::Evaluates } else { AlterEffect::CatalogueOnly };
        for constraint in column.constraints() {
            let Node::Constraint(constraint) = constraint else { continue };
            let found = match constraint.contype {
                raw::ConstrType::CONSTR_IDENTITY => AlterEffect::Evaluates,
                raw::ConstrType::CONSTR_GENERATED => AlterEffect::Rewrites,
                raw::ConstrType::CONSTR_DEFAULT => match self.optional(constraint.raw_expr())? {
                    Some(default) if is_simple(&default) => AlterEffect::CatalogueOnly,
                    Some(default @ (Expr::Call(_) | Expr::Clock { .. })) => {
                        *called_default = column.colname().map(|name| (name.to_owned(), default));
                        AlterEffect::Evaluates
                    }
                    _ => AlterEffect::Evaluates,
                },
                raw::ConstrType::CONSTR_FOREIGN => {
                    tables.extend(constraint.pktable().map(name_of));
                    AlterEffect::Scans
                }
                _ => AlterEffect::Scans,
            };
            effect = effect.max(found);
        }
        Ok(effect)
    }
}

const CURSOR_SCROLL: i32 = 0x0002;
const CURSOR_HOLD: i32 = 0x0020;

/// Whether an expression certainly has the same value everywhere and at all times.
fn is_simple(expr: &Expr) -> bool {
    match expr {
        Expr::Literal { .. } => true,
        Expr::Cast { value, .. } => {
            is_simple(value)
                && !matches!(&**value, Expr::Literal { value: Literal::Text(t), .. } if crate::moment_text::has_clock_word(t))
        }
        Expr::Column { star: false, .. } => true,
        Expr::Array(parts) | Expr::Form(parts) => parts.iter().all(is_simple),
        _ => false,
    }
}

/// Whether a chain of operators begins here: the left operand is an operator again.
fn is_chain(e: &pg::A_Expr) -> bool {
    matches!(e.lexpr(), Node::A_Expr(left) if left.kind == raw::A_Expr_Kind::AEXPR_OP)
}

fn is_plain_set_operation(s: &pg::SelectStmt) -> bool {
    s.with_clause().is_none()
        && s.sort_clause().is_empty()
        && s.locking_clause().is_empty()
        && matches!(s.limit_count(), Node::None)
        && matches!(s.limit_offset(), Node::None)
}

/// Whether CREATE SCHEMA may contain this: what belongs to the schema and is no session's own.
fn is_schema_element(element: Node) -> bool {
    let is_kept = |relation: Option<&pg::RangeVar>| relation.is_some_and(|r| !is_temporary(r));
    match element {
        Node::CreateStmt(s) => is_kept(s.relation()),
        Node::ViewStmt(s) => is_kept(s.view()),
        Node::CreateSeqStmt(s) => is_kept(s.sequence()),
        Node::IndexStmt(s) => !s.concurrent,
        Node::GrantStmt(_) | Node::CreateTrigStmt(_) => true,
        _ => false,
    }
}

fn is_temporary(table: &pg::RangeVar) -> bool {
    table.relpersistence as u8 == b't' || table.schemaname().is_some_and(|s| s.starts_with("pg_temp"))
}

fn offset(location: i32) -> u32 {
    u32::try_from(location).unwrap_or(u32::MAX)
}

fn owned(text: Option<&str>) -> String {
    text.unwrap_or_default().to_owned()
}

fn words(list: &NodeList) -> Vec<String> {
    list.iter().filter_map(|node| node.as_str().map(str::to_owned)).collect()
}

fn strings(list: &CastNodeList<pg::String>) -> Vec<String> {
    list.iter().filter_map(|s| s.sval().map(str::to_owned)).collect()
}

fn name_of(table: &pg::RangeVar) -> Name {
    let parts = [table.catalogname(), table.schemaname(), table.relname()];
    Name::new(parts.into_iter().flatten().map(str::to_owned).collect())
}

fn range_vars(list: &NodeList) -> Vec<Name> {
    list.iter()
        .filter_map(|node| match node {
            Node::RangeVar(table) => Some(name_of(table)),
            _ => None,
        })
        .collect()
}

fn alias_of(alias: Option<&pg::Alias>) -> Option<Alias> {
    alias.map(|a| Alias { name: owned(a.aliasname()), columns: words(a.colnames()) })
}

fn overriding(kind: raw::OverridingKind::Type) -> Overriding {
    match kind {
        raw::OverridingKind::OVERRIDING_USER_VALUE => Overriding::User,
        raw::OverridingKind::OVERRIDING_SYSTEM_VALUE => Overriding::System,
        _ => Overriding::None,
    }
}

fn subquery(kind: SubqueryKind, test: Option<Box<Expr>>, query: Query) -> Expr {
    Expr::Subquery { kind, test, operator: None, query: Box::new(query) }
}

fn literal(constant: &pg::A_Const) -> Literal {
    match constant.val() {
        None => Literal::Null,
        Some(ConstValue::Integer(i)) => Literal::Int(i64::from(i)),
        Some(ConstValue::Float(text)) => Literal::Number(text.to_owned()),
        Some(ConstValue::Boolean(b)) => Literal::Bool(b),
        Some(ConstValue::String(text)) => Literal::Text(text.to_owned()),
        Some(ConstValue::BitString(text)) => Literal::Bits(text.to_owned()),
        Some(_) => Literal::Bits(String::new()),
    }
}

fn value_function(function: &pg::SQLValueFunction) -> Expr {
    use raw::SQLValueFunctionOp as Op;
    let precise = Some(function.typmod);
    let (kind, precision) = match function.op {
        Op::SVFOP_CURRENT_DATE => (ClockKind::Date, None),
        Op::SVFOP_CURRENT_TIME => (ClockKind::Time, None),
        Op::SVFOP_CURRENT_TIME_N => (ClockKind::Time, precise),
        Op::SVFOP_CURRENT_TIMESTAMP => (ClockKind::Timestamp, None),
        Op::SVFOP_CURRENT_TIMESTAMP_N => (ClockKind::Timestamp, precise),
        Op::SVFOP_LOCALTIME => (ClockKind::LocalTime, None),
        Op::SVFOP_LOCALTIME_N => (ClockKind::LocalTime, precise),
        Op::SVFOP_LOCALTIMESTAMP => (ClockKind::LocalTimestamp, None),
        Op::SVFOP_LOCALTIMESTAMP_N => (ClockKind::LocalTimestamp, precise),
        Op::SVFOP_CURRENT_ROLE | Op::SVFOP_CURRENT_USER | Op::SVFOP_USER => {
            return Expr::Session(SessionValue::Role);
        }
        Op::SVFOP_CURRENT_SCHEMA => return Expr::Session(SessionValue::Schema),
        _ => return Expr::Session(SessionValue::Other),
    };
    Expr::Clock { kind, precision, at: offset(function.location) }
}

fn type_ref(name: Option<&pg::TypeName>) -> TypeRef {
    match name {
        Some(t) => TypeRef {
            name: Name::new(strings(t.names())),
            modifiers: !t.typmods().is_empty(),
            array: !t.array_bounds().is_empty(),
            set_of: t.setof || t.pct_type,
        },
        None => TypeRef { name: Name::default(), modifiers: true, array: false, set_of: true },
    }
}

fn locking(clause: &pg::LockingClause) -> Locking {
    use raw::LockClauseStrength as Strength;
    Locking {
        strength: match clause.strength {
            Strength::LCS_FORKEYSHARE => LockStrength::KeyShare,
            Strength::LCS_FORSHARE => LockStrength::Share,
            Strength::LCS_FORNOKEYUPDATE => LockStrength::NoKeyUpdate,
            _ => LockStrength::Update,
        },
        wait: match clause.wait_policy {
            raw::LockWaitPolicy::LockWaitSkip => LockWait::SkipLocked,
            raw::LockWaitPolicy::LockWaitError => LockWait::NoWait,
            _ => LockWait::Block,
        },
        of: range_vars(clause.locked_rels()).iter().map(|n| n.last().to_owned()).collect(),
    }
}

/// Whether an option such as ANALYZE is on: present without a value, or with one that says so.
fn option_is_on(argument: Node<'_>) -> bool {
    match argument {
        Node::None => true,
        Node::Integer(i) => i.ival != 0,
        Node::Boolean(b) => b.boolval,
        Node::String(s) => {
            !matches!(s.sval().map(str::to_ascii_lowercase).as_deref(), Some("false" | "off" | "0" | "no"))
        }
        _ => true,
    }
}

fn transaction(s: &pg::TransactionStmt) -> Utility {
    use raw::TransactionStmtKind as Kind;
    let name = || owned(s.savepoint_name());
    Utility::Transaction(match s.kind {
        Kind::TRANS_STMT_BEGIN | Kind::TRANS_STMT_START => Transaction::Begin { modes: modes(s.options()) },
        Kind::TRANS_STMT_COMMIT => Transaction::Commit { chain: s.chain },
        Kind::TRANS_STMT_ROLLBACK => Transaction::Rollback { chain: s.chain },
        Kind::TRANS_STMT_SAVEPOINT => Transaction::Savepoint(name()),
        Kind::TRANS_STMT_RELEASE => Transaction::Release(name()),
        Kind::TRANS_STMT_ROLLBACK_TO => Transaction::RollbackTo(name()),
        Kind::TRANS_STMT_PREPARE => Transaction::PrepareTwoPhase,
        Kind::TRANS_STMT_COMMIT_PREPARED => Transaction::CommitTwoPhase,
        _ => Transaction::RollbackTwoPhase,
    })
}

fn modes(options: &NodeList) -> Modes {
    let mut modes = Modes::default();
    for node in options {
        let Node::DefElem(option) = node else { continue };
        let argument = const_text(option.arg());
        let on = argument.as_deref() == Some("1") || argument.as_deref() == Some("true");
        match option.defname() {
            Some("transaction_isolation") => modes.isolation = argument.as_deref().and_then(isolation),
            Some("transaction_read_only") => modes.read_only = Some(on),
            Some("transaction_deferrable") => modes.deferrable = Some(on),
            _ => {}
        }
    }
    modes
}

/// The isolation level that a setting's value names.
pub(crate) fn isolation(text: &str) -> Option<Isolation> {
    match text.to_ascii_lowercase().as_str() {
        "read uncommitted" => Some(Isolation::ReadUncommitted),
        "read committed" => Some(Isolation::ReadCommitted),
        "repeatable read" => Some(Isolation::RepeatableRead),
        "serializable" => Some(Isolation::Serializable),
        _ => None,
    }
}

fn const_text(node: Node<'_>) -> Option<String> {
    match node {
        Node::A_Const(constant) => constant.val().map(|v| match v {
            ConstValue::Unrecognized(_) => String::new(),
            value => value.to_string(),
        }),
        Node::String(s) => s.sval().map(str::to_owned),
        Node::Integer(i) => Some(i.ival.to_string()),
        Node::Float(f) => f.fval().map(str::to_owned),
        Node::Boolean(b) => Some(b.boolval.to_string()),
        _ => None,
    }
}

fn variable_set(s: &pg::VariableSetStmt) -> Utility {
    use raw::VariableSetKind as Kind;
    let name = owned(s.name());
    match s.kind {
        Kind::VAR_RESET => Utility::Reset { name: Some(name) },
        Kind::VAR_RESET_ALL => Utility::Reset { name: None },
        Kind::VAR_SET_MULTI => {
            let snapshot = (name == "TRANSACTION SNAPSHOT")
                .then(|| s.args().first().and_then(const_text).unwrap_or_default());
            let session = name == "SESSION CHARACTERISTICS";
            Utility::SetTransaction { modes: modes(s.args()), session, snapshot }
        }
        kind => Utility::Set {
            name,
            values: s
                .args()
                .iter()
                .map(|node| const_text(node).map_or(SetValue::Other, SetValue::Text))
                .collect(),
            local: s.is_local,
            is_default: kind == Kind::VAR_SET_DEFAULT,
        },
    }
}

/// Whether it is the relation itself that gets another name, and not a part of it.
fn is_relation(kind: raw::ObjectType::Type) -> bool {
    relation_kind(kind) != RelationKind::Other
}

fn relation_kind(kind: raw::ObjectType::Type) -> RelationKind {
    use raw::ObjectType as Kind;
    match kind {
        Kind::OBJECT_TABLE | Kind::OBJECT_FOREIGN_TABLE => RelationKind::Table,
        Kind::OBJECT_INDEX => RelationKind::Index,
        Kind::OBJECT_VIEW => RelationKind::View,
        Kind::OBJECT_MATVIEW => RelationKind::MaterialisedView,
        Kind::OBJECT_SEQUENCE => RelationKind::Sequence,
        _ => RelationKind::Other,
    }
}

fn drop_statement(s: &pg::DropStmt) -> Utility {
    use raw::ObjectType as Kind;
    let belongs_to_table =
        matches!(s.remove_type, Kind::OBJECT_TRIGGER | Kind::OBJECT_RULE | Kind::OBJECT_POLICY);
    let names: Vec<Name> = s
        .objects()
        .iter()
        .filter_map(|node| match node {
            Node::NodeList(parts) => {
                let mut parts = words(parts);
                if belongs_to_table {
                    parts.pop();
                }
                Some(Name::new(parts))
            }
            Node::String(part) => Some(Name::new(vec![owned(part.sval())])),
            _ => None,
        })
        .collect();
    let tag = match s.remove_type {
        Kind::OBJECT_TABLE => "DROP TABLE",
        Kind::OBJECT_INDEX => "DROP INDEX",
        Kind::OBJECT_VIEW => "DROP VIEW",
        Kind::OBJECT_MATVIEW => "DROP MATERIALIZED VIEW",
        Kind::OBJECT_SEQUENCE => "DROP SEQUENCE",
        Kind::OBJECT_FUNCTION => "DROP FUNCTION",
        Kind::OBJECT_TRIGGER => "DROP TRIGGER",
        Kind::OBJECT_SCHEMA => "DROP SCHEMA",
        Kind::OBJECT_TYPE => "DROP TYPE",
        Kind::OBJECT_EXTENSION => "DROP EXTENSION",
        Kind::OBJECT_RULE => "DROP RULE",
        Kind::OBJECT_POLICY => "DROP POLICY",
        Kind::OBJECT_EVENT_TRIGGER => "DROP EVENT TRIGGER",
        _ => "DROP",
    };
    Utility::Drop {
        kind: if belongs_to_table { RelationKind::Table } else { relation_kind(s.remove_type) },
        names,
        cascade: s.behavior == raw::DropBehavior::DROP_CASCADE,
        concurrently: s.concurrent,
        tag,
    }
}

/// Whether an ALTER TABLE command may make, drop or check foreign keys other than to a table that it names.
fn changes_ties(kind: raw::AlterTableType::Type) -> bool {
    use raw::AlterTableType as Kind;
    !matches!(
        kind,
        Kind::AT_AddColumn
            | Kind::AT_ColumnDefault
            | Kind::AT_DropNotNull
            | Kind::AT_SetNotNull
            | Kind::AT_SetStatistics
            | Kind::AT_SetOptions
            | Kind::AT_ResetOptions
            | Kind::AT_SetStorage
            | Kind::AT_SetCompression
            | Kind::AT_AddIndex
            | Kind::AT_AddIndexConstraint
            | Kind::AT_AddConstraint
            | Kind::AT_ChangeOwner
            | Kind::AT_ClusterOn
            | Kind::AT_DropCluster
            | Kind::AT_SetTableSpace
            | Kind::AT_SetRelOptions
            | Kind::AT_ResetRelOptions
            | Kind::AT_EnableTrig
            | Kind::AT_EnableAlwaysTrig
            | Kind::AT_EnableReplicaTrig
            | Kind::AT_DisableTrig
            | Kind::AT_EnableTrigAll
            | Kind::AT_DisableTrigAll
            | Kind::AT_EnableTrigUser
            | Kind::AT_DisableTrigUser
            | Kind::AT_AddInherit
            | Kind::AT_DropInherit
            | Kind::AT_ReplicaIdentity
            | Kind::AT_EnableRowSecurity
            | Kind::AT_DisableRowSecurity
            | Kind::AT_ForceRowSecurity
            | Kind::AT_NoForceRowSecurity
            | Kind::AT_AddIdentity
            | Kind::AT_SetIdentity
            | Kind::AT_DropIdentity
    )
}

/// The settings of SET ... FROM CURRENT, for a function, role or database.
fn kept_settings(node: Node<'_>) -> Vec<String> {
    let of_options = |options: &CastNodeList<pg::DefElem>| {
        let kept = options.iter().filter_map(|option| match option.arg() {
            Node::VariableSetStmt(set) => from_current(set),
            _ => None,
        });
        kept.collect()
    };
    match node {
        Node::CreateFunctionStmt(s) => of_options(s.options()),
        Node::AlterFunctionStmt(s) => of_options(s.actions()),
        Node::AlterRoleSetStmt(s) => s.setstmt().and_then(from_current).into_iter().collect(),
        Node::AlterDatabaseSetStmt(s) => s.setstmt().and_then(from_current).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn from_current(set: &pg::VariableSetStmt) -> Option<String> {
    (set.kind == raw::VariableSetKind::VAR_SET_CURRENT).then(|| owned(set.name()))
}

/// Statements without parts that matter: DDL of other objects, and what belongs to a server, not a database.
fn other_statement(node: Node<'_>) -> Utility {
    let maintenance = |tag| Utility::Maintenance { tag, tables: Vec::new() };
    let ddl = |tag| Utility::OtherDdl { tag, tables: Vec::new() };
    let on_table = |tag, table: Option<&pg::RangeVar>| Utility::OtherDdl {
        tag,
        tables: table.map(name_of).into_iter().collect(),
    };
    match node {
        Node::VacuumStmt(s) => Utility::Maintenance {
            tag: if s.is_vacuumcmd { "VACUUM" } else { "ANALYZE" },
            tables: s.rels().iter().filter_map(|r| r.relation().map(name_of)).collect(),
        },
        Node::ClusterStmt(s) => {
            Utility::Maintenance { tag: "CLUSTER", tables: s.relation().map(name_of).into_iter().collect() }
        }
        Node::ReindexStmt(s) => {
            Utility::Maintenance { tag: "REINDEX", tables: s.relation().map(name_of).into_iter().collect() }
        }
        Node::CreatedbStmt(_) => maintenance("CREATE DATABASE"),
        Node::DropdbStmt(_) => maintenance("DROP DATABASE"),
        Node::AlterDatabaseStmt(_) | Node::AlterDatabaseRefreshCollStmt(_) => maintenance("ALTER DATABASE"),
        Node::AlterSystemStmt(_) => maintenance("ALTER SYSTEM"),
        Node::CreateTableSpaceStmt(_) => maintenance("CREATE TABLESPACE"),
        Node::DropTableSpaceStmt(_) => maintenance("DROP TABLESPACE"),
        Node::AlterTableSpaceOptionsStmt(_) => maintenance("ALTER TABLESPACE"),
        Node::AlterTableMoveAllStmt(_) => maintenance("ALTER TABLE ALL IN TABLESPACE"),
        Node::CreateSubscriptionStmt(_) => maintenance("CREATE SUBSCRIPTION"),
        Node::AlterSubscriptionStmt(_) => maintenance("ALTER SUBSCRIPTION"),
        Node::DropSubscriptionStmt(_) => maintenance("DROP SUBSCRIPTION"),
        Node::AlterDatabaseSetStmt(_) => ddl("ALTER DATABASE SET"),
        Node::AlterRoleSetStmt(_) => ddl("ALTER ROLE SET"),
        Node::CreateSchemaStmt(s) if s.schema_elts().into_iter().all(is_schema_element) => {
            ddl("CREATE SCHEMA")
        }
        Node::CreateExtensionStmt(_) => ddl("CREATE EXTENSION"),
        Node::AlterExtensionStmt(_) | Node::AlterExtensionContentsStmt(_) => ddl("ALTER EXTENSION"),
        Node::CreateFdwStmt(_) => ddl("CREATE FOREIGN DATA WRAPPER"),
        Node::AlterFdwStmt(_) => ddl("ALTER FOREIGN DATA WRAPPER"),
        Node::CreateForeignServerStmt(_) => ddl("CREATE SERVER"),
        Node::AlterForeignServerStmt(_) => ddl("ALTER SERVER"),
        Node::CreateUserMappingStmt(_) => ddl("CREATE USER MAPPING"),
        Node::AlterUserMappingStmt(_) => ddl("ALTER USER MAPPING"),
        Node::DropUserMappingStmt(_) => ddl("DROP USER MAPPING"),
        Node::ImportForeignSchemaStmt(_) => ddl("IMPORT FOREIGN SCHEMA"),
        Node::CreatePolicyStmt(s) => on_table("CREATE POLICY", s.table()),
        Node::AlterPolicyStmt(s) => on_table("ALTER POLICY", s.table()),
        Node::CreateAmStmt(_) => ddl("CREATE ACCESS METHOD"),
        Node::CreateEventTrigStmt(_) => ddl("CREATE EVENT TRIGGER"),
        Node::AlterEventTrigStmt(_) => ddl("ALTER EVENT TRIGGER"),
        Node::CreatePLangStmt(_) => ddl("CREATE LANGUAGE"),
        Node::CreateRoleStmt(_) => ddl("CREATE ROLE"),
        Node::AlterRoleStmt(_) => ddl("ALTER ROLE"),
        Node::DropRoleStmt(_) => ddl("DROP ROLE"),
        Node::GrantStmt(_) => ddl("GRANT"),
        Node::GrantRoleStmt(_) => ddl("GRANT ROLE"),
        Node::AlterDefaultPrivilegesStmt(_) => ddl("ALTER DEFAULT PRIVILEGES"),
        Node::DefineStmt(_) => ddl("CREATE"),
        Node::CreateDomainStmt(_) => ddl("CREATE DOMAIN"),
        Node::AlterDomainStmt(_) => ddl("ALTER DOMAIN"),
        Node::AlterCollationStmt(_) => ddl("ALTER COLLATION"),
        Node::CreateOpClassStmt(_) => ddl("CREATE OPERATOR CLASS"),
        Node::CreateOpFamilyStmt(_) => ddl("CREATE OPERATOR FAMILY"),
        Node::AlterOpFamilyStmt(_) => ddl("ALTER OPERATOR FAMILY"),
        Node::CommentStmt(_) => ddl("COMMENT"),
        Node::SecLabelStmt(_) => ddl("SECURITY LABEL"),
        Node::CreateStatsStmt(_) => ddl("CREATE STATISTICS"),
        Node::AlterStatsStmt(_) => ddl("ALTER STATISTICS"),
        Node::CreateFunctionStmt(s) if s.replace && !s.is_procedure => {
            Utility::ReplaceFunction { name: Name::new(words(s.funcname())) }
        }
        Node::CreateFunctionStmt(_) => ddl("CREATE FUNCTION"),
        Node::AlterFunctionStmt(_) => ddl("ALTER FUNCTION"),
        Node::AlterObjectDependsStmt(_) => ddl("ALTER"),
        Node::AlterObjectSchemaStmt(s) => match s.relation() {
            Some(table) => Utility::Rename {
                tag: "ALTER ... SET SCHEMA",
                table: name_of(table),
                to_schema: Some(owned(s.newschema())),
                to_name: None,
            },
            None => ddl("ALTER ... SET SCHEMA"),
        },
        Node::AlterOwnerStmt(s) => on_table("ALTER ... OWNER TO", s.relation()),
        Node::AlterOperatorStmt(_) => ddl("ALTER OPERATOR"),
        Node::AlterTypeStmt(_) => ddl("ALTER TYPE"),
        Node::RuleStmt(s) => on_table("CREATE RULE", s.relation()),
        Node::CompositeTypeStmt(_) => ddl("CREATE TYPE"),
        Node::CreateEnumStmt(_) => ddl("CREATE TYPE"),
        Node::CreateRangeStmt(_) => ddl("CREATE TYPE"),
        Node::AlterEnumStmt(_) => ddl("ALTER TYPE"),
        Node::CreateConversionStmt(_) => ddl("CREATE CONVERSION"),
        Node::CreateCastStmt(_) => ddl("CREATE CAST"),
        Node::CreateTransformStmt(_) => ddl("CREATE TRANSFORM"),
        Node::DropOwnedStmt(_) => ddl("DROP OWNED"),
        Node::ReassignOwnedStmt(_) => ddl("REASSIGN OWNED"),
        Node::AlterTSDictionaryStmt(_) => ddl("ALTER TEXT SEARCH DICTIONARY"),
        Node::AlterTSConfigurationStmt(_) => ddl("ALTER TEXT SEARCH CONFIGURATION"),
        Node::CreatePublicationStmt(_) => ddl("CREATE PUBLICATION"),
        Node::AlterPublicationStmt(_) => ddl("ALTER PUBLICATION"),
        Node::ReplicaIdentityStmt(_) => ddl("ALTER TABLE REPLICA IDENTITY"),
        _ => Utility::Unknown,
    }
}

/// Stands among the parts of a form whose value is of the type of none of them.
fn of_no_part() -> Expr {
    Expr::Array(Vec::new())
}
