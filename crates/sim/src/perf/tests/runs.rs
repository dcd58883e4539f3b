//! Figures agree with what must hold of every queueing system, and a setup determines its run.

use onecopy_workload::tpcw::MixName;

use super::{PROTOCOLS, run_well, the_2003};
use crate::perf::{Discipline, Durability, Items, Latency, Loads, SECOND_NS, Setup, Users};

fn short<'a>(profile: &'a crate::perf::Profile, replicas: u16, users: Users) -> Setup<'a> {
    Setup { warm_up_ns: 20 * SECOND_NS, measured_ns: 100 * SECOND_NS, ..Setup::new(profile, replicas, users) }
}

#[test]
fn the_same_setup_gives_the_same_trace_and_another_seed_another() {
    let profile = the_2003();
    for name in PROTOCOLS {
        for network in [Latency::default(), Latency { hop_ns: 50_000, jitter_ns: 400_000, overtaking: false }]
        {
            let setup = Setup {
                network,
                warm_up_ns: 4 * SECOND_NS,
                measured_ns: 6 * SECOND_NS,
                ..short(&profile, 3, Users::Closed(60))
            };
            let kept = Setup { keep_trace: true, ..setup.clone() };
            let (once, again) =
                (run_well(&kept, MixName::Ordering, name), run_well(&kept, MixName::Ordering, name));
            assert!(once.trace.as_ref().is_some_and(|trace| trace.lines().count() > 1_000));
            assert_eq!((once.trace, once.trace_hash), (again.trace, again.trace_hash));
            let quiet = run_well(&setup, MixName::Ordering, name);
            assert_eq!((quiet.trace_hash, quiet.measured), (again.trace_hash, again.measured));
            let other = run_well(&Setup { seed: 1, ..setup }, MixName::Ordering, name);
            assert_ne!(other.trace_hash, again.trace_hash);
        }
    }
}

#[test]
fn one_replica_obeys_the_laws_of_queues() {
    let profile = the_2003();
    for name in PROTOCOLS {
        for discipline in [Discipline::Shared, Discipline::Queued] {
            const USERS: u32 = 40;
            let setup = Setup { discipline, ..short(&profile, 1, Users::Closed(USERS)) };
            let measured = run_well(&setup, MixName::Shopping, name).measured;
            // Little's law: users = throughput * (think time + response time).
            let think_s = 7.0;
            let users = measured.throughput() * (think_s + measured.response.mean_ms() / 1e3);
            assert!((users / f64::from(USERS) - 1.0).abs() < 0.12, "{name} {discipline:?}: {users}");
            // The utilisation law: busy = throughput * demand, 132 ms for an interaction of this mix.
            let time = measured.replica_time();
            let demand_ms = 1e3 * (time.read + time.write) / measured.throughput();
            assert!((demand_ms / 132.0 - 1.0).abs() < 0.12, "{name} {discipline:?}: {demand_ms}");
            assert!(time.write > 0.0 && time.write < 0.02, "{name}: {time:?}");
        }
    }
}

#[test]
fn users_who_share_connections_wait_for_one_and_none_is_used_twice() {
    let profile = the_2003();
    for name in PROTOCOLS {
        let setup = short(&profile, 4, Users::Closed(200));
        let own = run_well(&setup, MixName::Browsing, name);
        // Where there are enough nobody waits.
        let enough = Setup { connections: Some(200), ..setup.clone() };
        assert_eq!(run_well(&enough, MixName::Browsing, name).trace_hash, own.trace_hash, "{name}");
        // With one, one database reads at a time, and all are asked by one interaction after the other.
        let one = run_well(&Setup { connections: Some(1), ..setup }, MixName::Browsing, name).measured;
        assert!(one.replica_time().idle > 0.7, "{name}: {:?}", one.replica_time());
        assert!(one.throughput() < 0.5 * own.measured.throughput(), "{name}: {}", one.throughput());
        let think_s = 7.0;
        let users = one.throughput() * (think_s + one.response.mean_ms() / 1e3);
        assert!((users / 200.0 - 1.0).abs() < 0.3, "{name}: {users}");
    }
}

#[test]
fn users_who_think_half_as_long_are_as_many_as_they_need_to_be() {
    let profile = the_2003();
    let setup = Setup { think_factor: 0.5, ..short(&profile, 2, Users::Closed(20)) };
    let measured = run_well(&setup, MixName::Shopping, "onecopy").measured;
    let users = measured.throughput() * (3.5 + measured.response.mean_ms() / 1e3);
    assert!((users / 20.0 - 1.0).abs() < 0.12, "{users}");
}

#[test]
fn idle_databases_answer_as_fast_as_the_profile_says() {
    let profile = the_2003();
    for name in PROTOCOLS {
        let measured = run_well(&short(&profile, 4, Users::Closed(1)), MixName::Browsing, name).measured;
        assert!(measured.response.quantile_ms(0.0) >= 20.0, "{name}");
        assert!(measured.response.quantile_ms(1.0) <= 720.0, "{name}: {:?}", measured.response);
        let waited = measured.statements.waiting_ns() as f64 / measured.statements.total_ns as f64;
        assert!(waited < 0.02, "{name}: {waited}");
    }
}

#[test]
fn an_open_loop_gets_what_arrives() {
    let profile = the_2003();
    for name in PROTOCOLS {
        let measured = run_well(&short(&profile, 4, Users::Open(12.0)), MixName::Shopping, name).measured;
        assert!((measured.throughput() - 12.0).abs() < 1.2, "{name}: {}", measured.throughput());
    }
}

#[test]
fn faster_databases_and_more_cpus_do_the_same_in_less_time() {
    let profile = the_2003();
    let setup = short(&profile, 2, Users::Closed(20));
    let response =
        |setup: &Setup<'_>| run_well(setup, MixName::Shopping, "conflict_aware").measured.response.mean_ms();
    let slow = response(&setup);
    assert!(response(&Setup { speed: 4, ..setup.clone() }) < slow / 3.0);
    assert!(response(&Setup { cpus: 4, ..setup }) < slow);
}

#[test]
fn uneven_times_have_the_same_mean_and_make_whoever_waits_for_all_wait_longer() {
    let profile = the_2003();
    let measured = |uneven, users, protocol| {
        let setup = Setup { uneven, ..short(&profile, 4, Users::Closed(users)) };
        run_well(&setup, MixName::Ordering, protocol).measured
    };
    let [plain, uneven] = [false, true].map(|uneven| measured(uneven, 80, "conflict_aware").replica_time());
    assert!((plain.idle - uneven.idle).abs() < 0.05, "{plain:?} {uneven:?}");
    // Half of the interactions write, and the slowest of four takes twice the mean.
    let [plain, uneven] = [false, true].map(|uneven| measured(uneven, 80, "eager").response.quantile_ms(0.6));
    assert!(uneven > 1.1 * plain, "{plain} {uneven}");
}

#[test]
fn nobody_declares_tables_if_the_setup_says_so() {
    let profile = the_2003();
    let setup =
        Setup { items: Items::Tables, loads: Loads::Measured, ..short(&profile, 2, Users::Closed(20)) };
    let measured = run_well(&setup, MixName::Ordering, "conflict_aware").measured;
    assert!(measured.throughput() > 1.0);
    let declared = short(&profile, 2, Users::Closed(20));
    assert_eq!(run_well(&declared, MixName::Ordering, "conflict_aware").measured.every_table_locked, 0);
}

#[test]
fn six_hundred_replicas_fit() {
    let profile = the_2003();
    let setup =
        Setup { warm_up_ns: SECOND_NS, measured_ns: SECOND_NS, ..short(&profile, 600, Users::Open(200.0)) };
    // The others differ from conflict_aware by a line.
    for name in ["conflict_aware", "onecopy"] {
        assert!(run_well(&setup, MixName::Shopping, name).measured.throughput() > 0.0);
    }
}

#[test]
fn conflicts_that_do_not_count_are_not_waited_for() {
    let profile = the_2003();
    let setup = short(&profile, 4, Users::Closed(300));
    let waiting = |setup: &Setup<'_>| {
        let statements = run_well(setup, MixName::Ordering, "conflict_aware").measured.statements;
        statements.waiting_ns() as f64 / statements.count as f64
    };
    let all = waiting(&setup);
    let few = waiting(&Setup { conflict_percent: 1, ..setup.clone() });
    assert!(few < all / 4.0, "{few} against {all}");
    assert_eq!(waiting(&Setup { conflict_percent: 100, ..setup }), all);
}

#[test]
fn a_commit_waits_for_the_disk_and_for_other_schedulers_only_where_that_is_asked_for() {
    let profile = the_2003();
    let commit_ms = |durability| {
        let setup = Setup { durability, ..short(&profile, 2, Users::Closed(1)) };
        let setup = Setup { measured_ns: 2_000 * SECOND_NS, ..setup };
        let commits = run_well(&setup, MixName::Ordering, "conflict_aware").measured.commits;
        commits.total_ns as f64 / 1e6 / commits.count as f64
    };
    let times = [Durability::Memory, Durability::Disk, Durability::Replicated(2)].map(commit_ms);
    // Two hops and the commit; the disk's 8 ms; two hops more.
    let expected = [1.2, 9.2, 9.4];
    for (time, expected) in times.iter().zip(expected) {
        assert!((time - expected).abs() < 0.05, "{times:?}");
    }
}
