//! What the thirty protocols promise, by the histories of random transactions.

mod failures;

use onecopy_core::item::{ColumnId, ColumnSet, Item, Mode, TableId, ValueHash};
use onecopy_core::protocol::certified::{Certified, Commits};
use onecopy_core::protocol::wide_area::Message::Request;
use onecopy_core::protocol::wide_area::{Choice, Delivery, Execution, Items, Queries, WideArea};
use onecopy_core::protocol::{Guarantee, Status, certified};
use onecopy_core::{Access, Moment};

use super::*;
use crate::check::{self, Level};

const MS: u64 = 1_000_000;

/// Transactions on registers that are spread over three tables.
struct Few {
    random: Random,
    registers: i64,
    fails: bool,
}

impl Source for Few {
    fn next(&mut self) -> Arriving {
        let mut some = |least, most| {
            let count = random::uniform(&mut self.random, least, most);
            let mut registers: Vec<u64> =
                (0..count).map(|_| random::uniform(&mut self.random, 0, self.registers - 1) as u64).collect();
            registers.sort_unstable();
            registers.dedup();
            registers
        };
        let writes = if some(0, 1).is_empty() { some(1, 2) } else { Vec::new() };
        let mut reads = some(1, 3);
        // Whoever writes has read it, so that a history shows the order of versions.
        reads.extend(&writes);
        reads.sort_unstable();
        reads.dedup();
        let of = |register: &u64, mode| {
            let row = [(ColumnId(1), ValueHash::of_integer(*register as i64))];
            Access::of_columns(Item::rows(TableId(register % 3), row), mode, ColumnSet::ALL)
        };
        let written = writes.iter().map(|register| of(register, Mode::NoKeyExclusive));
        let access = written.chain(reads.iter().map(|register| of(register, Mode::Shared))).collect();
        let fails = self.fails && !writes.is_empty() && random::unit(&mut self.random) < 0.1;
        // Not drawn, so that runs of what knows nothing of this stay as they were.
        let fails_in_place = self.fails && reads.contains(&3);
        let only_writes = reads.len() != 4;
        Arriving { access, reads, writes, fails, fails_in_place, only_writes, work: None, user: None }
    }
}

fn setup(seed: u64) -> Setup {
    Setup {
        seed,
        distances: Distances::equal(4, 5 * MS, 8.0),
        rate: 120.0,
        transactions: 400,
        sending: Sending::default(),
        costs: Costs {
            update_ns: 3 * MS,
            query_ns: 3 * MS,
            apply_ns: 2 * MS,
            apply_ends_ns: MS,
            commit_ns: MS,
            message_ns: MS / 10,
            writes_ns: MS / 10,
            token_ns: MS / 10,
        },
        order: if seed.is_multiple_of(2) {
            Order::Token { burst: 20 }
        } else {
            Order::Sequencer { gathers_ns: if seed.is_multiple_of(3) { 2 * MS } else { 0 } }
        },
        executing_max: seed.is_multiple_of(5).then_some(2),
        together_max: if seed.is_multiple_of(3) { 4 } else { 1 },
        gives_up: None,
        discipline: if seed.is_multiple_of(3) { Discipline::Queued } else { Discipline::Shared },
        history: true,
    }
}

fn run_few(setup: &Setup, choice: Choice, fails: bool) -> Outcome {
    let source = &mut Few { random: random::stream(setup.seed, 9), registers: 8, fails };
    let protocol = Box::new(WideArea::new(choice, setup.distances.sites() as u16));
    run(setup, source, protocol).expect("histories make sense")
}

#[test]
fn a_run_is_given_up_once_those_who_count_have_waited_for_too_long_together() {
    let choice = Choice::all().next().expect("there are some");
    let whole = run_few(&setup(1), choice, false);
    let counted = 40..360;
    let responses = whole.measured.served[40..360].iter().filter_map(Served::response_ns);
    let waited: u128 = responses.map(u128::from).sum();
    let with_patience = |sum_ns: u128| {
        let patience = Patience { of: counted.clone(), sum_ns };
        run_few(&Setup { gives_up: Some(patience), ..setup(1) }, choice, false)
    };
    let within = with_patience(waited);
    assert!(!within.given_up && within.measured == whole.measured);
    let beyond = with_patience(waited / 2);
    assert!(beyond.given_up && beyond.faults.is_empty(), "{:?}", beyond.faults);
    assert!(beyond.events < whole.events * 3 / 4, "{} of {}", beyond.events, whole.events);
}

fn all(items: Items) -> impl Iterator<Item = Choice> {
    Choice::all().map(move |choice| Choice { items, ..choice })
}

#[test]
fn all_thirty_are_serializable_and_leave_sites_identical() {
    for items in [Items::Tables, Items::Rows] {
        assert_eq!(all(items).count(), 30);
        for choice in all(items) {
            for seed in 0..4 {
                let outcome = run_few(&setup(seed), choice, seed > 1);
                assert_eq!(outcome.faults, [], "{choice:?} seed {seed}");
                let history = outcome.history.expect("it was asked for");
                let checked = check::check(&history, Level::Serializable);
                assert!(checked.is_valid(), "{choice:?} seed {seed}: {checked:?}");
            }
        }
    }
}

#[test]
fn only_what_takes_its_place_when_it_is_received_is_ever_undone() {
    let undone = |choice: &Choice| run_few(&setup(1), *choice, false).measured.undone();
    let takes_chances = |choice: &Choice| matches!(choice.delivery, Delivery::OptAgreed | Delivery::OptSafe);
    let (chances, others): (Vec<Choice>, Vec<Choice>) = all(Items::Tables).partition(takes_chances);
    assert!(chances.iter().map(undone).sum::<u64>() > 10);
    assert_eq!(others.iter().map(undone).sum::<u64>(), 0);
}

#[test]
fn snapshots_where_commits_are_not_in_order_show_long_forks() {
    let mut forks = 0;
    for choice in all(Items::Rows).filter(|choice| choice.queries == Queries::Snapshot) {
        let choice = Choice { queries: Queries::LooseSnapshot, ..choice };
        for seed in 0..3 {
            let outcome = run_few(&setup(seed), choice, false);
            assert_eq!(outcome.faults, [], "{choice:?} seed {seed}");
            let history = outcome.history.expect("it was asked for");
            assert!(
                check::check(&history, Level::ParallelSnapshotIsolation).is_valid(),
                "{choice:?} seed {seed}"
            );
            forks += u64::from(!check::check(&history, Level::Serializable).is_valid());
        }
    }
    assert!(forks > 2, "{forks}");
}

/// Whoever reads one register.
struct Reader;

impl Source for Reader {
    fn next(&mut self) -> Arriving {
        let (access, reads, writes) = (onecopy_core::AccessSet::new(), vec![0], Vec::new());
        let (fails, fails_in_place, only_writes) = (false, false, false);
        Arriving { access, reads, writes, fails, fails_in_place, only_writes, work: None, user: None }
    }
}

#[test]
fn a_site_executes_so_many_at_a_time_and_those_first_that_arrived_first() {
    let choice = Choice {
        queries: Queries::Snapshot,
        execution: Execution::Symmetric,
        delivery: Delivery::Agreed,
        items: Items::Tables,
    };
    let answered_ms = |executing_max| {
        let distances = Distances::equal(1, 0, 0.0);
        let (rate, transactions, discipline) = (1e9, 4, Discipline::Shared);
        let setup = Setup { distances, rate, transactions, discipline, executing_max, ..setup(1) };
        let outcome = run(&setup, &mut Reader, Box::new(WideArea::new(choice, 1))).expect("it makes sense");
        let served = outcome.measured.served.iter();
        served
            .map(|of| (of.response_ns().expect("all are answered") as f64 / MS as f64).round())
            .collect::<Vec<_>>()
    };
    assert_eq!(answered_ms(None), [12.0; 4]);
    assert_eq!(answered_ms(Some(2)), [6.0, 6.0, 12.0, 12.0]);
    assert_eq!(answered_ms(Some(1)), [3.0, 6.0, 9.0, 12.0]);
}

/// Whoever writes one register.
struct Writer;

impl Source for Writer {
    fn next(&mut self) -> Arriving {
        let item = Item::rows(TableId(0), [(ColumnId(1), ValueHash::of_integer(0))]);
        let access = [Access::of_columns(item, Mode::NoKeyExclusive, ColumnSet::ALL)].into_iter().collect();
        let (reads, writes) = (vec![0], vec![0]);
        let (fails, fails_in_place, only_writes) = (false, false, false);
        Arriving { access, reads, writes, fails, fails_in_place, only_writes, work: None, user: None }
    }
}

#[test]
fn what_a_site_sends_waits_for_what_it_has_sent_before_and_so_does_the_token() {
    let choice = Choice {
        queries: Queries::Snapshot,
        execution: Execution::LocalCopy,
        delivery: Delivery::Safe,
        items: Items::Tables,
    };
    let costs = Costs {
        update_ns: 0,
        query_ns: 0,
        apply_ns: 0,
        apply_ends_ns: 0,
        commit_ns: 0,
        message_ns: 0,
        writes_ns: 0,
        token_ns: 0,
    };
    // One update, at a site drawn at random: with three sites it is sent twice, and so is what it wrote.
    let one = |seed: u64, execution: Execution, order: Order, sending: Sending| {
        let distances = Distances::equal(3, 10 * MS, 0.0);
        let (rate, transactions, choice) = (1e9, 1, Choice { execution, ..choice });
        let setup = Setup { distances, rate, transactions, costs, sending, order, ..setup(seed) };
        let outcome = run(&setup, &mut Writer, Box::new(WideArea::new(choice, 3))).expect("it makes sense");
        assert_eq!(outcome.faults, []);
        outcome.measured.served[0].clone()
    };
    let ms = |ns: u64| (ns as f64 / MS as f64).round();
    let (messages, writes) =
        (Sending { message_ns: 3 * MS, writes_ns: 0 }, Sending { message_ns: 0, writes_ns: 3 * MS });
    let token = Order::Token { burst: 20 };
    let delivered_ms = |order, sending| {
        let of = one(1, Execution::LocalCopy, order, sending);
        of.delivered.map(|at| ms(at.expect("it is delivered").since_ns(of.arrived)))
    };
    let [received, ordered, stable] = delivered_ms(token, Sending::default());
    assert_eq!(ordered, received);
    assert_eq!(delivered_ms(token, messages), [received, ordered, stable + 6.0]);
    // What was written goes out after it was stable.
    assert_eq!(delivered_ms(token, writes), [received, ordered, stable]);
    // Where one site numbers messages it has this one 3 ms later. What it tells of it occupies nothing, and
    // comes to the third site after the message.
    let numbers = Order::Sequencer { gathers_ns: 0 };
    let [_, _, stable] = delivered_ms(numbers, Sending::default());
    assert_eq!(delivered_ms(numbers, messages)[2], stable + 3.0);
    // A client who waits for what another site wrote waits for its link.
    let later = |seed| {
        let answered = |sending| one(seed, Execution::PrimaryCopy, numbers, sending).response_ns();
        ms(answered(writes).expect("it is answered") - answered(Sending::default()).expect("it is answered"))
    };
    let later: std::collections::BTreeSet<u64> = (0..12).map(|seed| later(seed) as u64).collect();
    assert_eq!(later, std::collections::BTreeSet::from([0, 3, 6]));
}

fn run_certified(setup: &Setup, commits: Commits, fails: bool) -> Outcome {
    let source = &mut Few { random: random::stream(setup.seed, 9), registers: 8, fails };
    let protocol = Box::new(Certified::new(commits, setup.distances.sites() as u16));
    run(setup, source, protocol).expect("histories make sense")
}

#[test]
fn what_is_certified_is_serializable_and_leaves_sites_identical() {
    let mut given_up = 0;
    for commits in [Commits::Ordered, Commits::Stable] {
        for seed in 0..12 {
            let outcome = run_certified(&setup(seed), commits, seed > 5);
            assert_eq!(outcome.faults, [], "{commits:?} seed {seed}");
            given_up += outcome.measured.undone();
            let history = outcome.history.expect("it was asked for");
            let checked = check::check(&history, Level::Serializable);
            assert!(checked.is_valid(), "{commits:?} seed {seed}: {checked:?}");
        }
    }
    assert!(given_up > 100, "{given_up}");
}

#[test]
fn whoever_began_before_what_is_known_runs_again() {
    let undone = |places| {
        let source = &mut Few { random: random::stream(3, 9), registers: 8, fails: false };
        let protocol = Box::new(Certified::remembering(places, Commits::Ordered, 4));
        let outcome = run(&setup(3), source, protocol).expect("histories make sense");
        assert_eq!(outcome.faults, []);
        let history = outcome.history.expect("it was asked for");
        assert!(check::check(&history, Level::Serializable).is_valid());
        outcome.measured.undone()
    };
    assert!(undone(8) > undone(1_000));
}

#[test]
fn what_is_certified_by_its_writes_alone_is_not_serializable() {
    let anomalies = (0..12).filter(|seed| {
        let source = &mut Few { random: random::stream(*seed, 9), registers: 8, fails: false };
        let reads_do_not_count: Bug = |_, _, mut event| {
            if let Event::Delivered {
                message: Message::Certified(certified::Message::Request { access, .. }),
                ..
            } = &mut event
            {
                access.retain(|access| access.mode.writes());
            }
            vec![event]
        };
        let protocol = Box::new(Certified::new(Commits::Ordered, 4));
        let buggy = Box::new(Buggy { protocol, bug: reads_do_not_count, held: None });
        let history = run(&setup(*seed), source, buggy).expect("histories make sense").history;
        !check::check(&history.expect("it was asked for"), Level::Serializable).is_valid()
    });
    assert!(anomalies.count() > 2);
}

/// Between protocol and driver: what the protocol hears instead of something.
type Bug = fn(&mut Option<Event>, Place, Event) -> Vec<Event>;

struct Buggy {
    protocol: Box<dyn Protocol>,
    bug: Bug,
    held: Option<Event>,
}

impl Protocol for Buggy {
    fn name(&self) -> &'static str {
        self.protocol.name()
    }
    fn guarantee(&self) -> Guarantee {
        self.protocol.guarantee()
    }
    fn position(&self) -> Position {
        self.protocol.position()
    }
    fn handle(&mut self, place: Place, now: Instant, event: Event, effects: &mut Vec<Effect>) {
        for event in (self.bug)(&mut self.held, place, event) {
            self.protocol.handle(place, now, event, effects);
        }
    }
    fn status(&self) -> Status {
        self.protocol.status()
    }
}

/// What is found with a bug, in the first of some runs.
fn found(execution: Execution, delivery: Delivery, bug: Bug) -> Option<String> {
    let (queries, items) = (Queries::Locked, Items::Rows);
    (0..20).find_map(|seed| {
        let source = &mut Few { random: random::stream(seed, 9), registers: 6, fails: false };
        let protocol = Box::new(WideArea::new(Choice { queries, execution, delivery, items }, 4));
        let outcome = run(&setup(seed), source, Box::new(Buggy { protocol, bug, held: None }));
        let outcome = outcome.expect("histories make sense");
        if let Some(fault) = outcome.faults.first() {
            return Some(fault.to_string());
        }
        let history = outcome.history.expect("it was asked for");
        (!check::check(&history, Level::Serializable).is_valid()).then(|| "an anomaly".to_owned())
    })
}

#[test]
fn planted_bugs_are_found() {
    assert_eq!(found(Execution::LocalCopy, Delivery::Agreed, |_, _, event| vec![event]), None);

    let queries_wait_for_nobody: Bug = |_, _, mut event| {
        if let Event::Autocommit { statement, .. } = &mut event
            && statement.kind == StatementKind::Read
        {
            statement.access.clear();
        }
        vec![event]
    };
    assert_eq!(
        found(Execution::LocalCopy, Delivery::Agreed, queries_wait_for_nobody).as_deref(),
        Some("an anomaly")
    );

    let reads_of_updates_are_not_foreseen: Bug = |_, _, mut event| {
        if let Event::Delivered { message: Message::WideArea(Request { access, .. }), .. } = &mut event {
            access.retain(|access| access.mode.writes());
        }
        vec![event]
    };
    let found_then = found(Execution::LocalCopy, Delivery::Agreed, reads_of_updates_are_not_foreseen);
    assert_eq!(found_then.as_deref(), Some("an anomaly"));

    let one_site_takes_two_in_the_other_order: Bug = |held, place, event| {
        let is_ordered = matches!(event, Event::Delivered { moment: Moment::Ordered, .. });
        match held.take() {
            _ if !is_ordered || place != Place::Peer(NodeId(1)) => vec![event],
            None => {
                *held = Some(event);
                vec![]
            }
            Some(before) => vec![event, before],
        }
    };
    let found_then = found(Execution::Symmetric, Delivery::Agreed, one_site_takes_two_in_the_other_order);
    assert!(found_then.is_some_and(|what| what.contains("than elsewhere") || what.contains("differs")));

    // A site believes of some that they are ordered where they happen to stand.
    let guesses_are_taken_for_the_order: Bug = |_, place, event| match event {
        Event::Delivered { moment: Moment::Received, from, place: at, message }
            if place == Place::Peer(NodeId(1)) =>
        {
            let heard = |moment| Event::Delivered { from, moment, place: at, message: message.clone() };
            vec![heard(Moment::Received), heard(Moment::Ordered)]
        }
        event => vec![event],
    };
    let found_then = found(Execution::Symmetric, Delivery::OptAgreed, guesses_are_taken_for_the_order);
    assert!(found_then.is_some());

    let writes_are_lost: Bug = |_, place, event| match event {
        Event::Message { .. } if place == Place::Peer(NodeId(2)) => vec![],
        event => vec![event],
    };
    let found_then = found(Execution::LocalCopy, Delivery::Agreed, writes_are_lost);
    assert!(found_then.is_some_and(|what| what.contains("never")));
}

#[test]
fn the_same_setup_gives_the_same_run() {
    let choice = all(Items::Tables).last().expect("there are thirty");
    let [a, b] = [0, 1].map(|_| run_few(&setup(3), choice, true));
    assert_eq!((a.measured, a.events), (b.measured, b.events));
}
