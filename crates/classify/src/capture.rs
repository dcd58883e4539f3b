//! Captured writes: the rows that a statement changed at home, shipped to the other replicas as one deterministic
//! statement a row.
//!
//! The statement at home returns the columns of the plan as the *last* columns of its RETURNING list. The client
//! gets the columns before them, or only the command tag if it asked for none.

use crate::rewrite::{Rewrite, quoted};
use onecopy_core::TableId;
use std::fmt::Write as _;

/// How a statement's changed rows are taken and applied.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturePlan {
    /// Why it cannot be replayed.
    pub reason: String,
    /// The table that it changes.
    pub table: TableId,
    /// The table's name, qualified and quoted.
    pub table_sql: String,
    /// What it does to rows.
    pub op: CaptureOp,
    /// Columns of the primary key, in key order; empty for an INSERT into a table without one.
    pub key: Vec<CaptureColumn>,
    /// The columns that are returned and shipped, in order: the key's for a DELETE, else all but generated ones. An UPDATE has
    /// those of the key also where they are generated.
    pub columns: Vec<CaptureColumn>,
    /// The class's rewrite with the columns added to the RETURNING list: to be rendered instead of it at home.
    pub rewrite: Rewrite,
    /// What was added at the end: ` RETURNING ...`, or `, ...` after the client's own list.
    pub returning: String,
    /// The client asked for rows itself.
    pub client_returns: bool,
    /// The COPY that takes many new rows at once, columns in order; None for other changes and where policies forbid it.
    pub bulk: Option<String>,
    /// Rows are deleted to which foreign keys refer that then change others: they must act where the rows are applied, too.
    pub cascades: bool,
}

/// What a captured statement does to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureOp {
    /// Rows were added.
    Insert,
    /// Rows were changed, their keys not.
    Update,
    /// Rows were removed.
    Delete,
    /// Rows were added or changed (INSERT ... ON CONFLICT DO UPDATE).
    Upsert,
}

/// A column that is shipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureColumn {
    /// Its name, not quoted.
    pub name: String,
    /// Its type as SQL writes it.
    pub type_name: String,
    /// GENERATED ALWAYS AS IDENTITY: given when a row is inserted, and never changed afterwards.
    pub fixed: bool,
}

/// A statement that applies one captured row: `$1` ... take the plan's columns in order, in text format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSql {
    /// The statement, with a cast at every parameter.
    pub sql: String,
    /// The type of each parameter as SQL writes it.
    pub types: Vec<String>,
}

/// The statement that applies a row of the plan. It must run with triggers off
/// (`session_replication_role = replica`), since their effects are captured or part of the row; only where it
/// [cascades](CapturePlan::cascades) foreign keys must act.
#[must_use]
pub fn captured_sql(plan: &CapturePlan) -> CapturedSql {
    let columns: Vec<String> = plan.columns.iter().map(|c| quoted(&c.name)).collect();
    let slot = |i: usize| format!("${}::{}", i + 1, plan.columns[i].type_name);
    let slots: Vec<String> = (0..columns.len()).map(slot).collect();
    let is_key = |i: usize| plan.key.iter().any(|k| k.name == plan.columns[i].name);
    let changes = |i: usize| !is_key(i) && !plan.columns[i].fixed;
    // What an UPDATE cannot assign must be used nevertheless, or the server would not know the parameter's type.
    let names_row = |i: usize| is_key(i) || plan.op == CaptureOp::Update && plan.columns[i].fixed;
    let key: Vec<String> = (0..columns.len())
        .filter(|i| names_row(*i))
        .map(|i| format!("{} = {}", columns[i], slots[i]))
        .collect();
    let assigned: Vec<String> = (0..columns.len())
        .filter(|i| changes(*i))
        .map(|i| format!("{} = {}", columns[i], slots[i]))
        .collect();
    let insert = || {
        if columns.is_empty() {
            return format!("INSERT INTO {} DEFAULT VALUES", plan.table_sql);
        }
        format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})",
            plan.table_sql,
            columns.join(", "),
            slots.join(", ")
        )
    };
    let sql = match plan.op {
        CaptureOp::Insert => insert(),
        // A table of key columns only: nothing can have changed.
        CaptureOp::Update if assigned.is_empty() => {
            format!("SELECT 1 FROM {} WHERE {}", plan.table_sql, key.join(" AND "))
        }
        CaptureOp::Update => {
            format!("UPDATE {} SET {} WHERE {}", plan.table_sql, assigned.join(", "), key.join(" AND "))
        }
        CaptureOp::Delete => format!("DELETE FROM {} WHERE {}", plan.table_sql, key.join(" AND ")),
        CaptureOp::Upsert => {
            let mut sql = insert();
            let conflict: Vec<String> = plan.key.iter().map(|k| quoted(&k.name)).collect();
            let set: Vec<String> = (0..columns.len())
                .filter(|i| changes(*i))
                .map(|i| format!("{0} = EXCLUDED.{0}", columns[i]))
                .collect();
            // Writing to a String cannot fail.
            let _ = write!(sql, " ON CONFLICT ({}) DO ", conflict.join(", "));
            if set.is_empty() {
                sql.push_str("NOTHING");
            } else {
                let _ = write!(sql, "UPDATE SET {}", set.join(", "));
            }
            sql
        }
    };
    CapturedSql { sql, types: plan.columns.iter().map(|c| c.type_name.clone()).collect() }
}
