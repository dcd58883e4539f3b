//! What a page does with the results of its statements, as the catalogue's data say it.
//!
//! | where | what | means |
//! |---|---|---|
//! | `params` | `item` | a variable of the visitor |
//! | | `@store_bid.read.0` | a column of the first row of an earlier result of the page |
//! | | `each.4` | a column of the present row of `each` |
//! | | `7`, `a + b`, `a - b` | a number; sum and difference of two of these |
//! | `each` | `["view_story.top"]` | the statement runs once for every row of these results, those that it adds included |
//! | `only_if` | `none s`, `some s` | a result is empty, or not |
//! | | `a > b` (`<`, `>=`, `<=`, `=`, `!=`) | of numbers; false if one of them is none |
//! | | `... and ...` | all of these |
//! | `learn` | `item.0` | a variable gets a column of a row that the visitor picks; all of one statement from the same row |

use crate::catalogue::{Catalogue, StatementId};
use crate::client::Rows;
use crate::value::{Decimal, Value};

use super::visitor::Vars;

/// A statement's data say something that is not in the table above, or name what is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("statement {statement}: `{text}` is not understood, or names what is not there")]
pub struct PlanError {
    statement: String,
    text: String,
}

/// What each statement of a catalogue needs and teaches.
#[derive(Clone, Debug)]
pub struct Plan {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    params: Vec<Expression>,
    each: Vec<StatementId>,
    only_if: Vec<Condition>,
    /// Variables by their places, with columns.
    learn: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Number(i64),
    /// A variable by its place.
    Variable(usize),
    First(StatementId, usize),
    Each(usize),
    Sum(Box<Expression>, Box<Expression>),
    Difference(Box<Expression>, Box<Expression>),
}

#[derive(Clone, Debug)]
enum Condition {
    None(StatementId),
    Some(StatementId),
    Compare(Expression, Comparison, Expression),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// Longer ones first: `<` begins `<=`.
const COMPARISONS: [(&str, Comparison); 6] = [
    (" <= ", Comparison::LessOrEqual),
    (" >= ", Comparison::GreaterOrEqual),
    (" != ", Comparison::NotEqual),
    (" < ", Comparison::Less),
    (" > ", Comparison::Greater),
    (" = ", Comparison::Equal),
];

/// What a statement may refer to while a page is made.
pub(super) struct Context<'a> {
    pub(super) vars: &'a Vars,
    /// By statement of the whole catalogue; empty where none has run on this page.
    pub(super) results: &'a [Rows],
    pub(super) each: Option<&'a [Value]>,
}

impl Plan {
    /// Reads the plan of a catalogue, with these variables.
    ///
    /// # Errors
    /// [`PlanError`], with what was not understood.
    pub fn parse(catalogue: &Catalogue, variables: &[&str]) -> Result<Plan, PlanError> {
        let step = |statement: &crate::catalogue::Statement| {
            let not_understood =
                |text: &str| PlanError { statement: statement.id.clone(), text: text.to_owned() };
            let reader = Reader { catalogue, variables };
            let params = statement.params.iter();
            let params = params.map(|text| reader.expression(text).ok_or_else(|| not_understood(text)));
            let each = statement.each.iter();
            let each = each.map(|text| catalogue.statement_id(text).ok_or_else(|| not_understood(text)));
            let conditions = statement.only_if.iter().flat_map(|text| text.split(" and "));
            let only_if = conditions.map(|text| reader.condition(text).ok_or_else(|| not_understood(text)));
            let learn = statement.learn.iter();
            let learn = learn.map(|text| reader.lesson(text).ok_or_else(|| not_understood(text)));
            let step = Step {
                params: params.collect::<Result<_, _>>()?,
                each: each.collect::<Result<_, _>>()?,
                only_if: only_if.collect::<Result<_, _>>()?,
                learn: learn.collect::<Result<_, _>>()?,
            };
            if step.params.len() != statement.parameter_count() {
                return Err(not_understood("params"));
            }
            Ok(step)
        };
        Ok(Plan { steps: catalogue.statements.iter().map(step).collect::<Result<_, _>>()? })
    }

    fn step(&self, statement: StatementId) -> &Step {
        &self.steps[usize::from(statement.0)]
    }

    /// The results for whose rows a statement is repeated; none if it runs once.
    pub(super) fn each(&self, statement: StatementId) -> &[StatementId] {
        &self.step(statement).each
    }

    /// A statement's parameters, if it runs.
    pub(super) fn params(&self, statement: StatementId, context: &Context<'_>) -> Option<Vec<Value>> {
        let step = self.step(statement);
        let holds = step.only_if.iter().all(|condition| condition.holds(context));
        holds.then(|| step.params.iter().map(|expression| expression.value(context)).collect())
    }

    /// The variables that a result teaches, with columns.
    pub(super) fn learn(&self, statement: StatementId) -> &[(usize, usize)] {
        &self.step(statement).learn
    }
}

struct Reader<'a> {
    catalogue: &'a Catalogue,
    variables: &'a [&'a str],
}

impl Reader<'_> {
    fn expression(&self, text: &str) -> Option<Expression> {
        let both =
            |(a, b): (&str, &str)| Some((Box::new(self.expression(a)?), Box::new(self.expression(b)?)));
        if let Some(parts) = text.split_once(" + ") {
            return both(parts).map(|(a, b)| Expression::Sum(a, b));
        }
        if let Some(parts) = text.split_once(" - ") {
            return both(parts).map(|(a, b)| Expression::Difference(a, b));
        }
        if let Ok(number) = text.parse() {
            return Some(Expression::Number(number));
        }
        if let Some(column) = text.strip_prefix("each.") {
            return Some(Expression::Each(column.parse().ok()?));
        }
        if let Some(result) = text.strip_prefix('@') {
            let (statement, column) = result.rsplit_once('.')?;
            return Some(Expression::First(self.catalogue.statement_id(statement)?, column.parse().ok()?));
        }
        self.variable(text).map(Expression::Variable)
    }

    fn variable(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|known| *known == name)
    }

    fn condition(&self, text: &str) -> Option<Condition> {
        if let Some(statement) = text.strip_prefix("none ") {
            return self.catalogue.statement_id(statement).map(Condition::None);
        }
        if let Some(statement) = text.strip_prefix("some ") {
            return self.catalogue.statement_id(statement).map(Condition::Some);
        }
        COMPARISONS.iter().find_map(|(sign, comparison)| {
            let (a, b) = text.split_once(sign)?;
            Some(Condition::Compare(self.expression(a)?, *comparison, self.expression(b)?))
        })
    }

    fn lesson(&self, text: &str) -> Option<(usize, usize)> {
        let (variable, column) = text.split_once('.')?;
        Some((self.variable(variable)?, column.parse().ok()?))
    }
}

impl Expression {
    /// NULL where there is no such row or column.
    fn value(&self, context: &Context<'_>) -> Value {
        let found = match self {
            Expression::Number(number) => return Value::Int(*number),
            Expression::Variable(place) => return context.vars.at(*place).clone(),
            Expression::First(statement, column) => context.results[usize::from(statement.0)].first(*column),
            Expression::Each(column) => context.each.and_then(|row| row.get(*column)),
            Expression::Sum(a, b) => return add(&a.value(context), &b.value(context), 1),
            Expression::Difference(a, b) => return add(&a.value(context), &b.value(context), -1),
        };
        found.cloned().unwrap_or(Value::Null)
    }
}

fn add(a: &Value, b: &Value, sign: i64) -> Value {
    match (a.as_cents(), b.as_cents()) {
        (Some(a), Some(b)) => {
            let cents = a.saturating_add(b.saturating_mul(sign));
            if cents % 100 == 0 { Value::Int(cents / 100) } else { Value::Decimal(Decimal::cents(cents)) }
        }
        _ => Value::Null,
    }
}

impl Condition {
    fn holds(&self, context: &Context<'_>) -> bool {
        let is_empty = |statement: &StatementId| context.results[usize::from(statement.0)].rows.is_empty();
        match self {
            Condition::None(statement) => is_empty(statement),
            Condition::Some(statement) => !is_empty(statement),
            Condition::Compare(a, comparison, b) => {
                let (Some(a), Some(b)) = (a.value(context).as_cents(), b.value(context).as_cents()) else {
                    return false;
                };
                match comparison {
                    Comparison::Less => a < b,
                    Comparison::LessOrEqual => a <= b,
                    Comparison::Greater => a > b,
                    Comparison::GreaterOrEqual => a >= b,
                    Comparison::Equal => a == b,
                    Comparison::NotEqual => a != b,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(more: &str) -> Catalogue {
        Catalogue::parse(&format!(
            "name = \"x\"\ntable = [{{ name = \"t\", columns = [] }}]\n\
             [[interaction]]\nid = \"I\"\nname = \"\"\nclass = \"browse\"\n[[interaction.transaction]]\nid = \"i\"\n\
             [[interaction.transaction.statement]]\nid = \"i.a\"\nsql = \"SELECT 1 FROM t\"\nreads = [\"t\"]\nlearn = [\"x.1\"]\n\
             [[interaction.transaction.statement]]\nid = \"i.b\"\nsql = \"SELECT $1 FROM t\"\nreads = [\"t\"]\n{more}\n"
        ))
        .unwrap()
    }

    #[test]
    fn parameters_and_conditions_are_of_variables_and_results() {
        let vars = Vars::of(&[("x", Value::Int(3)), ("y", Value::from("12.50"))]);
        let results = [Rows::returned(vec![vec![Value::Int(7), Value::Null]]), Rows::default()];
        let row = [Value::from("5")];
        let context = Context { vars: &vars, results: &results, each: Some(&row) };
        let param = |params: &str, only_if: &str| {
            let more = format!("params = [\"{params}\"]\nonly_if = \"{only_if}\"");
            let plan = Plan::parse(&catalogue(&more), &["x", "y"]).unwrap();
            plan.params(StatementId(1), &context).map(|mut params| params.remove(0))
        };
        assert_eq!(param("x", "some i.a"), Some(Value::Int(3)));
        assert_eq!(param("@i.a.0 + x", "@i.a.0 > x and each.0 = 5"), Some(Value::Int(10)));
        assert_eq!(param("y - each.0", "none i.b"), Some(Value::Decimal(Decimal::cents(750))));
        assert_eq!(param("@i.b.0", "x >= 3 and x <= 3"), Some(Value::Null));
        for not in ["none i.a", "some i.b", "x != 3", "x + 1 < 4", "@i.a.1 = 0", "@i.b.0 < 1"] {
            assert_eq!(param("x", not), None, "{not}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_statement() {
        for more in [
            "params = [\"z\"]",
            "params = []",
            "params = [\"x\"]\nonly_if = \"x ~ 1\"",
            "params = [\"@i.c.0\"]",
            "params = [\"x\"]\neach = [\"i.c\"]",
            "params = [\"x\"]\nlearn = [\"x\"]",
        ] {
            let error = Plan::parse(&catalogue(more), &["x"]).unwrap_err();
            assert!(error.to_string().starts_with("statement i.b: "), "{error}");
        }
    }
}
