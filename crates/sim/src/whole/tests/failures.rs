//! Replicas fail, return and join while transactions run; and bugs that each of the checks finds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use onecopy_core::protocol::{Guarantee, Status};
use onecopy_core::{Message, NodeId, chaining};

use super::*;

pub(super) const FAILING: Failing = Failing {
    between_ns: 8_000_000,
    noticed_after_ns: 2_000_000,
    away_ns: 10_000_000,
    until_ns: 120_000_000,
    lost_max: 8,
    joining: 1,
    durable_after_ns: 1_000_000,
    heard_after_ns: 100_000,
    fail_part: 0.03,
};

/// A run of some 250 transactions on four workers, and one that joins, of which two are away on average.
fn run_failing_few(protocol: Box<dyn Protocol>, seed: u64) -> Outcome {
    let setup = Setup {
        seed,
        workers: 4,
        rate: 2_000.0,
        load_ns: 120_000_000,
        message: Drawn { ns: 300_000.0, variance: 0.2 },
        apply_ns: 100_000,
        history: true,
        ..Setup::gargamel(seed)
    };
    let source = &mut Few { random: random::stream(seed, 9), registers: 12, foresees_reads: false };
    run_failing(&setup, &FAILING, source, protocol).expect("histories make sense")
}

#[track_caller]
fn expect_kept(protocol: &str, level: Level, seeds: u64) {
    for seed in 0..seeds {
        let outcome = run_failing_few(whole_by_name(protocol, 4, Csn(0)).expect("it is one of them"), seed);
        assert_eq!(outcome.faults, [], "{protocol}, seed {seed}");
        let history = outcome.history.expect("it was asked for");
        assert!(check::check(&history, level).is_valid(), "{protocol}, seed {seed}: {level:?}");
    }
}

#[test]
fn replicas_fail_return_and_join_chains_keep_parallel_snapshot_isolation_and_lose_nothing() {
    expect_kept("chains", Level::ParallelSnapshotIsolation, 200);
}

#[test]
fn replicas_fail_return_and_join_one_chain_of_all_updates_loses_nothing() {
    expect_kept("centralised_writes", Level::ParallelSnapshotIsolation, 100);
}

/// Something is done to what a protocol hears and orders.
pub(super) type Alters = fn(&mut Altered, &mut Event, &mut Vec<Effect>);

/// A protocol of which something is altered, or counted.
pub(super) struct Altered {
    protocol: Box<dyn Protocol>,
    /// Before an event; an event that is to be kept from the protocol becomes a timer.
    hears: fn(&mut Event),
    /// After an event.
    orders: Alters,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Protocol for Altered {
    fn name(&self) -> &'static str {
        self.protocol.name()
    }
    fn guarantee(&self) -> Guarantee {
        self.protocol.guarantee()
    }
    fn place_of(&self, event: &Event) -> Place {
        self.protocol.place_of(event)
    }
    fn changes_replicas(&self) -> bool {
        self.protocol.changes_replicas()
    }
    fn status(&self) -> Status {
        self.protocol.status()
    }
    fn handle(&mut self, place: Place, now: Instant, mut event: Event, effects: &mut Vec<Effect>) {
        (self.hears)(&mut event);
        let mut own = Vec::new();
        self.protocol.handle(place, now, event.clone(), &mut own);
        (self.orders)(self, &mut event, &mut own);
        effects.append(&mut own);
    }
}

impl Altered {
    /// After each event this is done to what the protocol orders.
    pub(super) fn new(protocol: Box<dyn Protocol>, orders: Alters) -> Altered {
        Altered { protocol, hears: |_| {}, orders, counts: Arc::default() }
    }
}

fn altered(hears: fn(&mut Event), orders: Alters) -> Altered {
    let protocol = whole_by_name("chains", 4, Csn(0)).expect("it is one of them");
    Altered { hears, ..Altered::new(protocol, orders) }
}

/// What is said by the message of this event, or goes with this effect.
pub(super) fn said(effect: &mut Effect) -> Option<&mut chaining::Message> {
    match effect {
        Effect::Send { message: Message::Chaining(message), .. }
        | Effect::Ship { message: Message::Chaining(message), .. } => Some(message),
        _ => None,
    }
}

#[test]
fn whatever_is_rare_happens_in_these_runs() {
    let count = |altered: &mut Altered, event: &mut Event, effects: &mut Vec<Effect>| {
        let mut counts = altered.counts.lock().expect("nobody panics with it");
        let mut count = |what| *counts.entry(what).or_default() += 1;
        let is_down = matches!(event, Event::ReplicaDown { .. });
        let given = effects
            .iter_mut()
            .filter_map(said)
            .any(|message| matches!(message, chaining::Message::Update { .. }));
        if given
            && matches!(event, Event::Message { message: Message::Chaining(of), .. } if matches!(of, chaining::Message::GivenBack { .. }))
        {
            count("update given again");
        }
        for effect in effects {
            match effect {
                Effect::Acknowledge { .. } if is_down => {
                    count("durable and not committed when its replica fails")
                }
                Effect::ApplyShipped { origin, replica, .. } if *origin == Place::Proxy(*replica) => {
                    count("own write set");
                }
                Effect::Apply { .. } => count("log for who returns"),
                effect => match said(effect) {
                    Some(chaining::Message::GivenBack { .. }) if is_down => count("given back by who fails"),
                    Some(chaining::Message::GivenBack { .. }) => count("given back when it arrives, or lost"),
                    Some(chaining::Message::LostIsDurable { .. }) => {
                        count("decided and not durable when its replica fails")
                    }
                    Some(chaining::Message::WroteNothing { .. }) => count("failed"),
                    _ => {}
                },
            }
        }
    };
    let altered = altered(|_| {}, count);
    let counts = altered.counts.clone();
    let mut next = Some(altered);
    for seed in 0..100 {
        let protocol = match next.take() {
            Some(altered) => altered,
            None => Altered { counts: counts.clone(), ..self::altered(|_| {}, count) },
        };
        assert_eq!(run_failing_few(Box::new(protocol), seed).faults, []);
    }
    let counts = counts.lock().expect("nobody panics with it");
    assert!(counts.len() == 8 && counts.values().all(|count| *count >= 10), "{counts:?}");
}

/// Expects that one of some runs shows a fault of a kind.
#[track_caller]
fn expect_found(hears: fn(&mut Event), orders: Alters, is_it: fn(&Fault) -> bool) {
    let mut others = Vec::new();
    for seed in 0..100 {
        let faults = run_failing_few(Box::new(altered(hears, orders)), seed).faults;
        if faults.iter().any(is_it) {
            return;
        }
        others.extend(faults);
    }
    others.truncate(5);
    panic!("a hundred seeds do not show it, but {others:?}");
}

#[test]
fn what_is_given_back_and_forgotten_is_found_stuck() {
    let forget = |event: &mut Event| {
        if let Event::Message { message: Message::Chaining(chaining::Message::GivenBack { txns }), .. } =
            event
        {
            txns.pop();
        }
    };
    expect_found(forget, |_, _, _| {}, |fault| matches!(fault, Fault::Stuck { .. }));
}

#[test]
fn a_decided_update_that_runs_again_is_found() {
    // Durable and not committed: the worker is told that it never was decided.
    let again = |_: &mut Altered, event: &mut Event, effects: &mut Vec<Effect>| {
        if matches!(event, Event::ReplicaDown { .. })
            && let Some(Effect::Acknowledge { txn, .. }) =
                effects.iter().find(|effect| matches!(effect, Effect::Acknowledge { .. })).cloned()
        {
            let message = Message::Chaining(chaining::Message::GivenBack { txns: vec![txn] });
            effects.push(Effect::Send { to: Place::Scheduler(NodeId(0)), message });
        }
    };
    let is_it = |fault: &Fault| {
        matches!(
            fault,
            Fault::Senseless { what: "is answered twice", .. }
                | Fault::Senseless { what: "is executed again for nothing", .. }
        )
    };
    expect_found(|_| {}, again, is_it);
}

#[test]
fn who_is_acknowledged_when_decided_is_found() {
    let early = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        let appended = effects.iter().find_map(|effect| match effect {
            Effect::Append { csn, decision: Decision::Commit(txn) } => Some((*txn, *csn)),
            _ => None,
        });
        effects.retain(|effect| !matches!(effect, Effect::Acknowledge { .. }));
        effects.extend(appended.map(|(txn, csn)| Effect::Acknowledge { txn, op: OpId(0), csn }));
    };
    expect_found(|_| {}, early, |fault| matches!(fault, Fault::AcknowledgedEarly { .. }));
}

#[test]
fn what_is_committed_when_decided_is_found() {
    let early = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        let appended = effects.iter().find_map(|effect| match effect {
            Effect::Append { csn, decision: Decision::Commit(txn) } => Some((*txn, *csn)),
            _ => None,
        });
        let replica = ReplicaId(0);
        effects.extend(appended.map(|(txn, csn)| Effect::CommitAt { txn, replica, csn }));
    };
    expect_found(|_| {}, early, |fault| matches!(fault, Fault::NotDurable { .. }));
}

#[test]
fn write_sets_that_forget_what_their_workers_contained_are_found_out_of_order() {
    let forget = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        for message in effects.iter_mut().filter_map(said) {
            if let chaining::Message::WriteSet { origin, vector, .. } = message {
                let own = usize::from(origin.0);
                let only_own = vector.iter().enumerate().map(|(at, last)| if at == own { *last } else { 0 });
                *vector = only_own.collect();
            }
        }
    };
    expect_found(|_| {}, forget, |fault| matches!(fault, Fault::OutOfOrder { .. }));
    expect_found(|_| {}, forget, |fault| matches!(fault, Fault::OrderDiffers { .. }));
}

#[test]
fn predecessors_that_are_forgotten_when_an_update_runs_elsewhere_are_found() {
    let forget = |_: &mut Altered, event: &mut Event, effects: &mut Vec<Effect>| {
        let is_given_back = matches!(
            event,
            Event::Message { message: Message::Chaining(chaining::Message::GivenBack { .. }), .. }
        );
        for message in effects.iter_mut().filter_map(said).filter(|_| is_given_back) {
            if let chaining::Message::Update { predecessors, .. } = message {
                predecessors.clear();
            }
        }
    };
    expect_found(|_| {}, forget, |fault| matches!(fault, Fault::LostUpdate { .. }));
}

#[test]
fn a_decision_of_a_replica_that_fails_which_nobody_ships_is_found() {
    let keep = |_: &mut Altered, event: &mut Event, effects: &mut Vec<Effect>| {
        if matches!(event, Event::ReplicaDown { .. }) {
            effects.retain(|effect| !matches!(effect, Effect::Ship { .. }));
        }
    };
    expect_found(|_| {}, keep, |fault| matches!(fault, Fault::Stuck { .. } | Fault::Missing { .. }));
}

#[test]
fn a_replica_that_is_believed_to_contain_more_than_it_does_is_found() {
    let believe = |event: &mut Event| {
        if let Event::ReplicaUp { applied, .. } = event {
            *applied = applied.next();
        }
    };
    let lacks = |fault: &Fault| matches!(fault, Fault::OutOfOrder { .. } | Fault::Missing { .. });
    expect_found(believe, |_, _, _| {}, lacks);
}

#[test]
fn a_replica_that_is_not_given_the_log_lacks_it_in_the_end() {
    // It is said to have it at once.
    let skip = |altered: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        if let Some(at) = effects.iter().position(|effect| matches!(effect, Effect::Apply { .. }))
            && let Effect::Apply { replica, to, .. } = effects.remove(at)
        {
            let event = Event::Applied { replica, csn: to };
            altered.protocol.handle(Place::Proxy(replica), Instant(0), event, effects);
        }
    };
    expect_found(|_| {}, skip, |fault| matches!(fault, Fault::Missing { .. }));
}

#[test]
fn a_write_set_that_is_applied_twice_is_found() {
    let twice = |_: &mut Altered, _: &mut Event, effects: &mut Vec<Effect>| {
        let first = effects.iter().find(|effect| matches!(effect, Effect::ApplyShipped { .. })).cloned();
        effects.extend(first);
    };
    let is_it =
        |fault: &Fault| matches!(fault, Fault::Senseless { what: "is applied where it is contained", .. });
    expect_found(|_| {}, twice, is_it);
}
