//! The form of a simple statement with its constants and frozen values as parameters, so that replicas can keep it
//! prepared: the other replicas for a write, and for what is found by its key the one that answers the client as well.
//!
//! A constant becomes a parameter only where the parameter surely gets the literal's type and means the same. A
//! number literal has a type of its own, which the parameter declares. A string literal has none until its
//! context gives it one, and so has a parameter of unspecified type; but rules for literals and parameters differ
//! in corners, so only places are taken where both get the type of one column.

use crate::lexer::Layout;
use crate::rewrite::FrozenValue;
use crate::value::string_value;
use std::borrow::Cow;
use std::sync::Arc;

/// A statement of a class as one text with parameters, the same for all statements of the class.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameterised {
    /// The text with `$1` ...
    pub sql: Arc<str>,
    /// What each parameter stands for, in order.
    pub params: Vec<ReplayParam>,
    /// The types' OIDs to declare, in order; 0 leaves it to the server.
    pub types: Arc<[u32]>,
    /// Whether it may be executed for the client in place of the text. Its answers and errors are the text's, for all
    /// constants are numbers; and it needs no plan of its own for each, for it finds its rows by their key.
    pub answers: bool,
}

/// What a parameter of such a form stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayParam {
    /// A constant, by its index in the layout.
    Const(u32),
    /// A frozen value, by its index in the rewrite.
    Frozen(u32),
}

impl Parameterised {
    /// The parameters' values in text format, in order, or None if a constant's value needs more than unquoting:
    /// then the text itself must be replayed.
    #[must_use]
    pub fn values<'v>(
        &self,
        sql: &'v str,
        layout: Layout<'_>,
        frozen: &'v [FrozenValue],
    ) -> Option<Vec<Cow<'v, str>>> {
        self.params
            .iter()
            .map(|param| match param {
                ReplayParam::Const(index) => {
                    let constant = *layout.consts.get(*index as usize)?;
                    if constant.kind.is_string() {
                        string_value(sql, constant)
                    } else {
                        Some(Cow::Borrowed(constant.text(sql)))
                    }
                }
                ReplayParam::Frozen(index) => {
                    frozen.get(*index as usize).map(|v| Cow::Borrowed(v.0.as_str()))
                }
            })
            .collect()
    }
}
