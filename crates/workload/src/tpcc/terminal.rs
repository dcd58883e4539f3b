//! An emulated terminal: it types a transaction, waits for it, and looks at the result.

use std::time::Duration;

use super::generator::{Generator, HomeWarehouse};
use super::parameters::{Kind, Parameters};
use super::population::Population;
use super::rules::rules;
use super::transactions::Transaction;
use super::whole::{TAKEN_BACK, whole};
use crate::client::{Action, Client, Failure, Reply, Rows, Script, Step, Whole};
use crate::random::{self, Random, exponential};
use crate::value::Timestamp;

/// Streams of random numbers from here on are for pauses, so that these do not change what is asked for.
const PAUSE_STREAMS: u64 = 1 << 41;

/// One emulated terminal, in a closed loop: keying time, transaction, think time. The pause between two transactions is the think time
/// of the one and the keying time of the other, as the transaction begins when it has been typed.
///
/// A transaction that the terminal takes back as the benchmark wants it is complete; whatever else ends one is given up, and the next
/// one follows after the same pause.
#[derive(Clone, Debug)]
pub struct Terminal {
    generator: Generator,
    pauses: Random,
    /// What runs, or follows the pause.
    kind: Kind,
    running: Option<Running>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    AwaitingPause,
    AwaitingBegin,
    AwaitingRows,
    AwaitingCommit,
    AwaitingRollback,
    /// For the reply to a transaction that went as one text.
    AwaitingAll,
}

#[derive(Clone, Debug)]
struct Running {
    /// As it was before its first step, to run it again.
    start: Transaction,
    now: Transaction,
}

impl Terminal {
    /// Terminal `number` of `terminals`, counted from 0. `highest_history` is the highest key of the history before the first of
    /// them starts.
    pub fn new(
        population: &Population,
        home_warehouse: HomeWarehouse,
        seed: u64,
        number: u32,
        terminals: u32,
        highest_history: i64,
    ) -> Self {
        let mut generator =
            Generator::new(population, home_warehouse, seed, number, terminals, highest_history);
        Terminal {
            kind: generator.kind(),
            generator,
            pauses: random::stream(seed, PAUSE_STREAMS + u64::from(number)),
            running: None,
            state: State::Idle,
        }
    }

    /// The transaction that runs, or that follows the pause.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Looks at the result, and types what is next.
    fn think(&mut self) -> Action {
        let rules = rules();
        let mean = rules.think_time_mean(self.kind);
        let looked = exponential(&mut self.pauses, mean, rules.think_time_max(self.kind));
        self.kind = self.generator.kind();
        self.type_next(looked)
    }

    fn type_next(&mut self, looked: Duration) -> Action {
        self.running = None;
        self.state = State::AwaitingPause;
        let pause = looked + rules().keying_time(self.kind);
        Action::Think { pause, next: self.kind.into() }
    }

    fn start(&mut self, transaction: Transaction) -> Action {
        self.running = Some(Running { start: transaction.clone(), now: transaction });
        self.state = State::AwaitingBegin;
        Action::Begin(self.kind.transaction())
    }

    fn step(&mut self, rows: Option<Rows>) -> Action {
        let Some(running) = &mut self.running else { return self.think() };
        match running.now.next(rows) {
            Step::Execute(statement, params) => {
                self.state = State::AwaitingRows;
                Action::Execute(statement, params)
            }
            Step::Commit => {
                self.state = State::AwaitingCommit;
                Action::Commit
            }
            Step::Rollback => {
                self.state = State::AwaitingRollback;
                Action::Rollback
            }
        }
    }
}

impl Client for Terminal {
    fn next(&mut self, now: Timestamp, reply: Reply) -> Action {
        match (self.state, reply) {
            (State::Idle, _) => self.type_next(Duration::ZERO),
            (State::AwaitingPause, _) => {
                let parameters = self.generator.draw(self.kind, now);
                self.start(Transaction::new(parameters))
            }
            (_, Reply::Failed(Failure::Retry)) => match self.running.take() {
                Some(running) => self.start(running.start),
                None => self.think(),
            },
            (_, Reply::Failed(Failure::GiveUp)) => self.think(),
            (State::AwaitingBegin, _) => self.step(None),
            (State::AwaitingRows, Reply::Rows(rows)) => self.step(Some(rows)),
            (State::AwaitingRows, Reply::Done) => self.step(Some(Rows::default())),
            (State::AwaitingCommit | State::AwaitingRollback | State::AwaitingAll, _) => self.think(),
        }
    }

    fn rollback_completes(&self) -> bool {
        let completes = |running: &Running| match (self.state, running.start.parameters()) {
            (State::AwaitingAll, Parameters::NewOrder(order)) => order.is_taken_back,
            _ => running.now.is_taken_back_as_asked(),
        };
        self.running.as_ref().is_some_and(completes)
    }

    fn whole(&mut self, begin: &str) -> Option<Whole> {
        let running = self.running.as_ref()?;
        self.state = State::AwaitingAll;
        Some(whole(running.start.parameters(), begin))
    }

    fn failure_completes(&self, sqlstate: &str) -> bool {
        sqlstate == TAKEN_BACK && self.state == State::AwaitingAll && self.rollback_completes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalogue::StatementId;
    use crate::tpcc::{Memory, Scale, Statement, catalogue};
    use crate::value::Date;

    fn population() -> Population {
        Population::new(Scale::new(2, 100).unwrap(), 1, Date::from_calendar(2026, 1, 1).into())
    }

    fn terminal(seed: u64) -> Terminal {
        let population = population();
        Terminal::new(&population, HomeWarehouse::Terminal, seed, 0, 1, population.highest_history())
    }

    /// Lets a terminal work for so many transactions over a supplier in memory, with `see` told every action and whether a
    /// rollback would complete its transaction.
    fn work(terminal: &mut Terminal, transactions: usize, mut see: impl FnMut(&Action, bool)) {
        let mut memory = Memory::new(population());
        let mut now = Timestamp::from(Date::from_calendar(2026, 2, 1));
        let mut reply = Reply::Done;
        let mut seen = 0;
        loop {
            let action = terminal.next(now, reply);
            see(&action, terminal.rollback_completes());
            reply = match action {
                Action::Think { pause, .. } => {
                    seen += 1;
                    if seen > transactions {
                        return;
                    }
                    now = now.plus(pause);
                    Reply::Done
                }
                Action::Execute(statement, params) => Reply::Rows(memory.answer(statement, &params)),
                _ => Reply::Done,
            };
        }
    }

    #[test]
    fn a_terminal_keeps_the_mix_the_pauses_and_the_brackets() {
        const TRANSACTIONS: usize = 20_000;
        let mut counts = [0; 5];
        let (mut paused, mut is_open, mut rollbacks) = (Duration::ZERO, false, 0);
        let mut used: BTreeSet<StatementId> = BTreeSet::new();
        work(&mut terminal(1), TRANSACTIONS, |action, completes| match action {
            Action::Think { pause, next } => {
                assert!(!is_open);
                paused += *pause;
                counts[usize::from(next.0)] += 1;
            }
            Action::Begin(_) => is_open = true,
            Action::Commit => is_open = false,
            Action::Rollback => {
                assert!(completes, "memory has all that a terminal asks for");
                (is_open, rollbacks) = (false, rollbacks + 1);
            }
            Action::Execute(id, params) => {
                assert!(is_open && params.len() == catalogue().statement(*id).parameter_count());
                assert!(!params.contains(&crate::Value::Null) || *id == Statement::NewOrderLine.into());
                used.insert(*id);
            }
        });
        assert_eq!(used.len(), Statement::ALL.len());
        let mut expected = 0.0;
        for kind in Kind::ALL {
            let share = rules().share_percent(kind) as f64 / 100.0;
            let measured = f64::from(counts[kind as usize]) / TRANSACTIONS as f64;
            assert!((share - measured).abs() < 0.02, "{kind:?}: {measured}");
            // What is cut off at ten times the mean is less than 1/20,000 of it.
            expected += share * (rules().keying_time(kind) + rules().think_time_mean(kind)).as_secs_f64();
        }
        let mean = paused.as_secs_f64() / TRANSACTIONS as f64;
        assert!((mean - expected).abs() < 0.5, "{mean} {expected}");
        assert!((50..130).contains(&rollbacks), "{rollbacks} of some 9,000 orders");
    }

    #[test]
    fn a_transaction_that_goes_whole_has_one_reply_and_fails_as_asked_if_it_is_to_be_taken_back() {
        let (mut terminal, mut now) = (terminal(4), Timestamp::default());
        let (mut reply, mut taken_back) = (Reply::Done, 0);
        for _ in 0..4_000 {
            now = now.plus(Duration::from_secs(1));
            reply = match terminal.next(now, reply) {
                Action::Think { .. } => Reply::Done,
                Action::Begin(transaction) => {
                    assert_eq!(transaction, terminal.kind().transaction());
                    let whole = terminal.whole("BEGIN").unwrap();
                    let text = &whole.text;
                    assert!(!terminal.failure_completes("40001"));
                    // Items are 3,334.
                    let is_to_fail = text.contains("s_i_id = 3335;");
                    assert_eq!(terminal.failure_completes(TAKEN_BACK), is_to_fail, "{text}");
                    taken_back += usize::from(is_to_fail);
                    let mut again = terminal.clone();
                    assert_eq!(again.next(now, Reply::Failed(Failure::Retry)), Action::Begin(transaction));
                    assert_eq!(again.whole("BEGIN"), Some(whole));
                    Reply::Done
                }
                other => panic!("{other:?}"),
            };
        }
        assert!((3..30).contains(&taken_back), "{taken_back} of some 900 orders");
    }

    #[test]
    fn the_same_seed_works_the_same_way() {
        let course = |seed| {
            let mut actions = Vec::new();
            work(&mut terminal(seed), 300, |action, _| actions.push(action.clone()));
            actions
        };
        assert_eq!(course(5), course(5));
        assert_ne!(course(5), course(6));
    }

    #[test]
    fn a_transaction_that_failed_runs_again_with_the_same_choices_and_one_given_up_is_left() {
        let mut terminal = terminal(3);
        let mut memory = Memory::new(population());
        let mut reply = Reply::Done;
        let (mut first, mut repeated) = (None, 0);
        let mut now = Timestamp::default();
        for _ in 0..10_000 {
            now = now.plus(Duration::from_millis(1));
            let action = terminal.next(now, reply);
            reply = match &action {
                Action::Execute(statement, params) => {
                    first.get_or_insert_with(|| action.clone());
                    Reply::Rows(memory.answer(*statement, params))
                }
                Action::Commit => {
                    let later = now.plus(Duration::from_secs(5));
                    let mut again = terminal.clone();
                    assert!(matches!(again.next(later, Reply::Failed(Failure::Retry)), Action::Begin(_)));
                    assert_eq!(Some(again.next(later, Reply::Done)), first.take());
                    let mut left = terminal.clone();
                    let paused = left.next(later, Reply::Failed(Failure::GiveUp));
                    assert!(matches!(paused, Action::Think { .. }));
                    assert!(matches!(left.next(later, Reply::Done), Action::Begin(_)));
                    repeated += 1;
                    Reply::Done
                }
                Action::Rollback => {
                    first = None;
                    Reply::Done
                }
                _ => Reply::Done,
            };
        }
        assert!(repeated > 200, "{repeated}");
    }
}
