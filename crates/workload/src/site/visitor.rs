//! An emulated user of a site: walks from page to page, and runs the statements of each as the plan says.

use std::time::Duration;

use super::plan::{Context, Plan};
use super::transitions::{Transitions, Walk};
use crate::catalogue::{Catalogue, InteractionId, StatementId, TransactionId};
use crate::client::{Action, Client, Failure, Reply, Rows};
use crate::random::{self, Random, exponential, uniform};
use crate::value::{Timestamp, Value};

/// How long a visitor looks at a page: negative exponential (RUBiS and RUBBoS, as TPC-W).
const THINK_MEAN: Duration = Duration::from_secs(7);
const THINK_MAX: Duration = Duration::from_secs(70);

/// A site, as its visitors know it.
pub trait Site {
    /// Its pages and statements.
    fn catalogue(&self) -> &'static Catalogue;

    /// What its pages do with results.
    fn plan(&self) -> &'static Plan;

    /// The names of a visitor's variables.
    fn variables(&self) -> &'static [&'static str];

    /// The names of the tables whose new rows get ids from visitors.
    fn id_tables(&self) -> &'static [&'static str];

    /// A new visitor comes: sets who that is, and says how they walk.
    fn begin(&self, vars: &mut Vars, random: &mut Random) -> &'static Transitions;

    /// Before a page: sets what the visitor chooses there. `came_from` is the page before.
    fn choose(
        &self,
        page: InteractionId,
        came_from: Option<InteractionId>,
        vars: &mut Vars,
        ids: &mut Ids,
        random: &mut Random,
        now: Timestamp,
    );
}

/// A visitor's variables, by name.
#[derive(Clone, Debug)]
pub struct Vars {
    names: &'static [&'static str],
    values: Vec<Value>,
}

impl Vars {
    fn new(names: &'static [&'static str]) -> Vars {
        Vars { names, values: vec![Value::Null; names.len()] }
    }

    #[cfg(test)]
    pub(super) fn of(all: &[(&'static str, Value)]) -> Vars {
        let names: Vec<&'static str> = all.iter().map(|(name, _)| *name).collect();
        Vars { names: names.leak(), values: all.iter().map(|(_, value)| value.clone()).collect() }
    }

    /// Gives a variable a value; panics if the site has no such variable.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let place = self.place(name);
        self.values[place] = value.into();
    }

    /// The value of a variable as an integer, if it is one; panics if the site has no such variable.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.values[self.place(name)].as_int()
    }

    pub(super) fn at(&self, place: usize) -> &Value {
        &self.values[place]
    }

    fn place(&self, name: &str) -> usize {
        self.names.iter().position(|known| *known == name).unwrap_or_else(|| panic!("no variable {name}"))
    }
}

/// Ids for new rows. The ids above the highest ones in use are dealt to the visitors in turn, like cards: no two get the
/// same, none has to ask, and what one gets does not depend on what the others do.
#[derive(Clone, Debug)]
pub struct Ids {
    next: Vec<i64>,
    visitors: i64,
}

impl Ids {
    /// The next id for a table, by its place among [`Site::id_tables`].
    pub fn take(&mut self, table: usize) -> i64 {
        let taken = self.next[table];
        self.next[table] += self.visitors;
        taken
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "a state is named by what it waits for")]
enum State {
    AwaitingPause,
    AwaitingBegin,
    AwaitingRows,
    AwaitingCommit,
}

/// One emulated user.
///
/// The choices follow from seed and number and from the answers; the times that it is told go into rows.
#[derive(Clone, Debug)]
pub struct Visitor<S> {
    site: S,
    random: Random,
    ids: Ids,
    vars: Vars,
    transitions: &'static Transitions,
    walk: Walk,
    came_from: Option<InteractionId>,
    /// Whether several queries that change nothing are one transaction.
    brackets_reads: bool,
    state: State,
    is_new: bool,
    /// The place of the transaction that runs, or is next; and of the statement.
    transaction: usize,
    statement: usize,
    /// How often the statement ran, or how many rows it has gone through.
    runs: usize,
    last: Option<(StatementId, Vec<Value>)>,
    /// By statement, of this page.
    results: Vec<Rows>,
}

impl<S: Site> Visitor<S> {
    /// Visitor `number` of `visitors`, counted from 0. `highest` are the highest ids in use, by [`Site::id_tables`].
    pub fn new(site: S, seed: u64, number: u32, visitors: u32, highest: &[i64]) -> Self {
        let mut random = random::stream(seed, u64::from(number));
        let mut vars = Vars::new(site.variables());
        let transitions = site.begin(&mut vars, &mut random);
        let next = highest.iter().map(|highest| highest + 1 + i64::from(number)).collect();
        let results = vec![Rows::default(); site.catalogue().statements.len()];
        Visitor {
            random,
            ids: Ids { next, visitors: i64::from(visitors.max(1)) },
            vars,
            transitions,
            walk: transitions.begin(),
            came_from: None,
            state: State::AwaitingPause,
            is_new: true,
            transaction: 0,
            statement: 0,
            runs: 0,
            last: None,
            results,
            site,
            brackets_reads: true,
        }
    }

    /// The same visitor, but that each query of a page that changes nothing stands alone, as in the servlet version of RUBiS.
    #[must_use]
    pub fn reading_alone(self) -> Self {
        Visitor { brackets_reads: false, ..self }
    }

    /// Whether the present transaction stands between BEGIN and COMMIT.
    fn is_bracketed(&self) -> bool {
        let kind = self.site.catalogue().transactions[self.transaction].kind;
        kind.is_bracketed() && (self.brackets_reads || kind.is_update())
    }

    /// The page that is shown, or follows the pause.
    pub fn interaction(&self) -> InteractionId {
        self.walk.at
    }

    fn think(&mut self) -> Action {
        self.state = State::AwaitingPause;
        let pause = exponential(&mut self.random, THINK_MEAN, THINK_MAX);
        Action::Think { pause, next: self.walk.at }
    }

    /// The visitor leaves; later another one comes.
    fn leave(&mut self) {
        self.vars = Vars::new(self.site.variables());
        self.transitions = self.site.begin(&mut self.vars, &mut self.random);
        self.walk = self.transitions.begin();
        self.came_from = None;
    }

    fn show_page(&mut self, now: Timestamp) -> Action {
        let page = self.walk.at;
        self.site.choose(page, self.came_from, &mut self.vars, &mut self.ids, &mut self.random, now);
        let transactions = &self.site.catalogue().interaction(page).transactions;
        for transaction in &self.site.catalogue().transactions[transactions.clone()] {
            self.results[transaction.statements.clone()].fill(Rows::default());
        }
        self.transaction = transactions.start;
        self.start_transaction()
    }

    /// The next transaction of the page, or its end.
    fn start_transaction(&mut self) -> Action {
        let catalogue = self.site.catalogue();
        let page = catalogue.interaction(self.walk.at);
        if self.transaction >= page.transactions.end {
            return self.finish_page();
        }
        let transaction = &catalogue.transactions[self.transaction];
        self.statement = transaction.statements.start;
        self.runs = 0;
        if self.is_bracketed() {
            self.results[transaction.statements.clone()].fill(Rows::default());
            self.state = State::AwaitingBegin;
            return Action::Begin(TransactionId(self.transaction as u16));
        }
        self.step()
    }

    /// The next statement of the transaction, or its end.
    fn step(&mut self) -> Action {
        let transaction = &self.site.catalogue().transactions[self.transaction];
        let plan = self.site.plan();
        while self.statement < transaction.statements.end {
            let statement = StatementId(self.statement as u16);
            let sources = plan.each(statement);
            let row = self.row(sources, self.runs);
            if (sources.is_empty() && self.runs > 0) || (!sources.is_empty() && row.is_none()) {
                self.statement += 1;
                self.runs = 0;
                continue;
            }
            let context = Context { vars: &self.vars, results: &self.results, each: row };
            let params = plan.params(statement, &context);
            self.runs += 1;
            if let Some(params) = params {
                self.state = State::AwaitingRows;
                self.last = Some((statement, params.clone()));
                return Action::Execute(statement, params);
            }
        }
        if self.is_bracketed() {
            self.state = State::AwaitingCommit;
            return Action::Commit;
        }
        self.transaction += 1;
        self.start_transaction()
    }

    /// The row at this place among those of several results.
    fn row(&self, sources: &[StatementId], mut place: usize) -> Option<&[Value]> {
        for source in sources {
            let rows = &self.results[usize::from(source.0)].rows;
            match rows.get(place) {
                Some(row) => return Some(row),
                None => place -= rows.len(),
            }
        }
        None
    }

    fn finish_page(&mut self) -> Action {
        let catalogue = self.site.catalogue();
        let transactions = catalogue.interaction(self.walk.at).transactions.clone();
        for place in
            catalogue.transactions[transactions].iter().flat_map(|transaction| transaction.statements.clone())
        {
            let lessons = self.site.plan().learn(StatementId(place as u16));
            let rows = &self.results[place].rows;
            if lessons.is_empty() || rows.is_empty() {
                continue;
            }
            let picked = &rows[uniform(&mut self.random, 0, rows.len() as i64 - 1) as usize];
            for (variable, column) in lessons {
                if let Some(value) = picked.get(*column) {
                    self.vars.values[*variable] = value.clone();
                }
            }
        }
        self.came_from = Some(self.walk.at);
        if !self.transitions.go_on(&mut self.walk, &mut self.random) {
            self.leave();
        }
        self.think()
    }

    fn failed(&mut self, failure: Failure) -> Action {
        let is_bracketed = self.is_bracketed();
        match (failure, self.last.clone()) {
            (Failure::GiveUp, _) => {
                self.leave();
                self.think()
            }
            (Failure::Retry, Some((statement, params))) if !is_bracketed => {
                self.state = State::AwaitingRows;
                Action::Execute(statement, params)
            }
            // With the same choices, which were made before the page.
            (Failure::Retry, _) => self.start_transaction(),
        }
    }
}

impl<S: Site> Client for Visitor<S> {
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action {
        if std::mem::take(&mut self.is_new) {
            return self.think();
        }
        match (self.state, reply) {
            (State::AwaitingPause, _) => self.show_page(now),
            (_, Reply::Failed(failure)) => self.failed(failure),
            (State::AwaitingRows, reply) => {
                if let (Reply::Rows(rows), Some((statement, _))) = (reply, &self.last) {
                    let all = &mut self.results[usize::from(statement.0)];
                    all.count += rows.count;
                    all.rows.extend(rows.rows);
                }
                self.step()
            }
            (State::AwaitingBegin, _) => self.step(),
            (State::AwaitingCommit, _) => {
                self.transaction += 1;
                self.start_transaction()
            }
        }
    }
}
