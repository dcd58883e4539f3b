//! Users whose single reads ask for their locks everywhere before they run, as longer transactions do.
//!
//! CAS 4.8 has single reads lock at one replica only, and describes that for conflict-aware scheduling. Of a scheduler that sends each
//! transaction to whoever grants its locks first (6.3) it does not say whether single reads are excepted.

use onecopy_sim::perf::Workload;
use onecopy_workload::{Action, Catalogue, Client, Reply, Rows, StatementId, Timestamp, Value};

/// A workload with such users.
pub(crate) struct Asking(pub Box<dyn Workload>);

impl Workload for Asking {
    fn catalogue(&self) -> &'static Catalogue {
        self.0.catalogue()
    }

    fn user(&self, seed: u64, number: u32, users_max: u32) -> Box<dyn Client> {
        let user = self.0.user(seed, number, users_max);
        Box::new(AskingUser { user, catalogue: self.0.catalogue(), at: At::Outside })
    }

    fn items(&self) -> &'static str {
        self.0.items()
    }

    fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        self.0.answer(statement, params)
    }
}

struct AskingUser {
    user: Box<dyn Client>,
    catalogue: &'static Catalogue,
    at: At,
}

/// Where a user is.
enum At {
    Outside,
    /// In a transaction of its own.
    Within,
    /// The transaction of a single read has begun.
    Begun(StatementId, Vec<Value>),
    Reading,
    /// It ends.
    Ending(Rows),
}

impl AskingUser {
    fn goes_on(&mut self, now: Timestamp, reply: Reply) -> Action {
        let action = self.user.next(now, reply);
        match action {
            Action::Begin(_) => self.at = At::Within,
            Action::Commit | Action::Rollback | Action::Think { .. } => self.at = At::Outside,
            Action::Execute(statement, params) if self.is_single_read(statement) => {
                self.at = At::Begun(statement, params);
                return Action::Begin(self.catalogue.statement(statement).transaction);
            }
            Action::Execute(..) => {}
        }
        action
    }

    fn is_single_read(&self, statement: StatementId) -> bool {
        matches!(self.at, At::Outside) && self.catalogue.statement(statement).writes.is_empty()
    }
}

impl Client for AskingUser {
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action {
        let failed = matches!(reply, Reply::Failed(_));
        match (std::mem::replace(&mut self.at, At::Outside), reply) {
            (_, reply) if failed => self.goes_on(now, reply),
            (At::Begun(statement, params), _) => {
                self.at = At::Reading;
                Action::Execute(statement, params)
            }
            (At::Reading, reply) => {
                self.at = At::Ending(match reply {
                    Reply::Rows(rows) => rows,
                    Reply::Done | Reply::Failed(_) => Rows::default(),
                });
                Action::Commit
            }
            (At::Ending(rows), _) => self.goes_on(now, Reply::Rows(rows)),
            (at, reply) => {
                self.at = at;
                self.goes_on(now, reply)
            }
        }
    }

    fn is_usual(&self) -> bool {
        self.user.is_usual()
    }
}

#[cfg(test)]
mod tests {
    use onecopy_sim::perf::Bookstore;
    use onecopy_workload::tpcw::{MixName, Scale};
    use onecopy_workload::{Date, Failure};

    use super::*;

    /// A user asks the same as without, and each statement stands between a beginning and an end but for single updates.
    #[test]
    fn single_reads_stand_in_transactions_and_pages_are_the_same() {
        let now = Date::from_calendar(2003, 3, 26).into();
        let scale = Scale::new(1_000, 1).expect("it is one of the benchmark's");
        let plain = || Bookstore::new(MixName::Shopping, scale);
        let asked = |mut site: Box<dyn Workload>| {
            let mut user = site.user(1, 0, 1);
            let (mut reply, mut actions) = (Reply::Done, Vec::new());
            for _ in 0..3_000 {
                let action = user.next(now, reply);
                reply = match &action {
                    Action::Execute(statement, params) => Reply::Rows(site.answer(*statement, params)),
                    _ => Reply::Done,
                };
                actions.push(action);
            }
            actions
        };
        let pages = |actions: Vec<Action>| {
            let is_bracket = |action: &Action| matches!(action, Action::Begin(_) | Action::Commit);
            actions.into_iter().filter(|action| !is_bracket(action)).take(1_000).collect::<Vec<_>>()
        };
        let asking = asked(Box::new(Asking(Box::new(plain()))));
        let mut open = false;
        for action in &asking {
            match action {
                Action::Begin(_) => open = true,
                Action::Commit | Action::Rollback => open = false,
                Action::Execute(statement, _) => {
                    assert!(open || !plain().catalogue().statement(*statement).writes.is_empty());
                }
                Action::Think { .. } => assert!(!open),
            }
        }
        assert_eq!(pages(asking), pages(asked(Box::new(plain()))));
    }

    #[test]
    fn a_single_read_that_is_refused_begins_again() {
        let now = Date::from_calendar(2003, 3, 26).into();
        let scale = Scale::new(1_000, 1).expect("it is one of the benchmark's");
        let site = Asking(Box::new(Bookstore::new(MixName::Browsing, scale)));
        let mut user = site.user(1, 0, 1);
        assert!(matches!(user.next(now, Reply::Done), Action::Think { .. }));
        let begun = user.next(now, Reply::Done);
        let Action::Begin(transaction) = begun else { panic!("{begun:?}") };
        let first = user.next(now, Reply::Done);
        assert_eq!(user.next(now, Reply::Failed(Failure::Retry)), Action::Begin(transaction));
        assert_eq!(user.next(now, Reply::Done), first);
    }
}
