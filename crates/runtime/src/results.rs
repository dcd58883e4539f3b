//! What statements of a whole transaction have returned, for later ones that name its columns.

use hashbrown::HashMap;
use onecopy_classify::oid;
use onecopy_classify::references::{Reference, replace};
use onecopy_wire::backend::{Backend, RowDescription, decode, tag};
use onecopy_wire::frame::{self, HEAD_LEN};
use onecopy_wire::sqlstate::SqlState;

use crate::agent::quote;
use crate::errors::Failure;
use crate::lane::DECODE_LEN_MAX;

/// What earlier statements have returned, as later ones may name it.
#[derive(Default)]
pub struct Results {
    found: HashMap<String, Found>,
}

enum Found {
    /// In the only row, as a constant of its type.
    Value(String),
    /// There was no row, or NULL in it.
    Null,
    /// There were more rows than one.
    Many,
}

impl Results {
    /// The statement with values in the place of its references.
    pub fn put_into(&self, sql: &str, references: &[Reference]) -> Result<String, Failure> {
        for reference in references {
            let name = &reference.name;
            match self.found.get(name) {
                Some(Found::Value(_) | Found::Null) => {}
                Some(Found::Many) => {
                    let what = format!("\":{name}\" refers to a result of more than one row");
                    return Err(Failure::new(SqlState::CARDINALITY_VIOLATION, what)
                        .hint("Have the earlier statement return one row, by LIMIT 1 for example."));
                }
                None => {
                    let what =
                        format!("\":{name}\" refers to a column that no earlier statement has returned");
                    return Err(Failure::new(SqlState::UNDEFINED_COLUMN, what)
                        .hint("Name the column in an earlier statement of the same query, by AS if need be; its answer must not be larger than limits.held_result_bytes_max."));
                }
            }
        }
        Ok(replace(sql, references, |_, reference| match self.found.get(&reference.name) {
            Some(Found::Value(constant)) => constant.clone(),
            _ => "NULL".to_owned(),
        }))
    }

    /// Takes in an answer: a description, and rows in text form.
    pub fn learn(&mut self, mut answer: &[u8]) {
        let mut columns: Vec<(String, u32)> = Vec::new();
        let mut rows = 0_usize;
        while let Ok(Some(head)) = frame::peek(answer, DECODE_LEN_MAX) {
            let Some(body) = answer.get(HEAD_LEN..head.len) else { return };
            match head.tag {
                tag::ROW_DESCRIPTION => {
                    let described = RowDescription::decode(body).ok();
                    let described = described.iter().flat_map(RowDescription::iter);
                    let name = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
                    columns = described.map(|column| (name(column.name), column.type_oid)).collect();
                    rows = 0;
                    self.found.extend(columns.iter().map(|(name, _)| (name.clone(), Found::Null)));
                }
                tag::DATA_ROW if rows < 2 => {
                    rows += 1;
                    self.learn_row(&columns, body, rows == 1);
                }
                _ => {}
            }
            answer = &answer[head.len..];
        }
    }

    fn learn_row(&mut self, columns: &[(String, u32)], body: &[u8], is_first: bool) {
        let Ok(Backend::DataRow(values)) = decode(tag::DATA_ROW, body) else { return };
        for ((name, type_oid), value) in columns.iter().zip(values.iter()) {
            let found = match value {
                _ if !is_first => Found::Many,
                None => Found::Null,
                Some(value) => Found::Value(constant(*type_oid, &String::from_utf8_lossy(value))),
            };
            self.found.insert(name.clone(), found);
        }
    }

    /// An answer was too large to be looked at.
    pub fn forget(&mut self) {
        self.found.clear();
    }
}

/// A value as a constant of its type, so that an operator means what it would mean for the column.
fn constant(type_oid: u32, text: &str) -> String {
    let name = match type_oid {
        oid::BOOL => "bool",
        oid::BYTEA => "bytea",
        oid::INT2 => "int2",
        oid::INT4 => "int4",
        oid::INT8 => "int8",
        oid::FLOAT4 => "float4",
        oid::FLOAT8 => "float8",
        oid::NUMERIC => "numeric",
        oid::TEXT => "text",
        oid::VARCHAR => "varchar",
        oid::BPCHAR => "bpchar",
        oid::JSON => "json",
        oid::JSONB => "jsonb",
        oid::UUID => "uuid",
        oid::DATE => "date",
        oid::TIME => "time",
        oid::TIMETZ => "timetz",
        oid::TIMESTAMP => "timestamp",
        oid::TIMESTAMPTZ => "timestamptz",
        oid::INET => "inet",
        oid::CIDR => "cidr",
        // It becomes what its place wants, as any constant.
        _ => return quote(text),
    };
    format!("{}::pg_catalog.{name}", quote(text))
}
