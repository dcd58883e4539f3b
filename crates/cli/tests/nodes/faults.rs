//! Faults at random under load: what clients saw is checked for strict serializability, and the replicas are compared.

use crate::relay::Cut;
use crate::rig::{Nodes, block_on, connect};
use onecopy_bench::torture::{CompareOptions, Isolation, Options, compare_until_identical, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long replicas may take to apply what clients have been told of.
const CATCH_UP: Duration = Duration::from_secs(60);

/// What happens to a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    KillLeader,
    KillFollower,
    KillReplica,
    StopLeader,
    StopFollower,
    StopReplica,
    KillAllNodes,
    IsolateLeader,
    IsolateFollower,
    /// What the leader says reaches nobody.
    MuteLeader,
    /// It hears nobody.
    DeafLeader,
    /// One node does not hear another, both of whom hear the third.
    OneWay,
    LeaderWithoutReplica,
    LeaderWithoutReplicas,
    /// Connections of a node to the leader are reset.
    ResetLinks,
    TwoAtOnce,
}

const FAULTS: [Fault; 16] = [
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillReplica,
    Fault::StopLeader,
    Fault::StopFollower,
    Fault::StopReplica,
    Fault::KillAllNodes,
    Fault::IsolateLeader,
    Fault::IsolateFollower,
    Fault::MuteLeader,
    Fault::DeafLeader,
    Fault::OneWay,
    Fault::LeaderWithoutReplica,
    Fault::LeaderWithoutReplicas,
    Fault::ResetLinks,
    Fault::TwoAtOnce,
];

/// Numbers from a seed (SplitMix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) % bound
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Brings a fault about, and its end.
fn inject(nodes: &mut Nodes, draw: &mut Draw, fault: Fault) {
    let leader = nodes.leader();
    let follower = (leader + 1 + draw.index(nodes.count() - 1)) % nodes.count();
    let others: Vec<usize> = (0..nodes.count()).filter(|node| *node != leader).collect();
    let replica = draw.index(nodes.servers.servers().len());
    let lasts = draw.ms(300, 4_000);
    eprintln!("{fault:?}: leader {leader}, follower {follower}, replica {replica}, {lasts:?}");
    let wait = || std::thread::sleep(lasts);
    match fault {
        Fault::KillLeader => {
            nodes.kill(leader);
            wait();
            nodes.spawn(leader);
        }
        Fault::KillFollower => {
            nodes.kill(follower);
            wait();
            nodes.spawn(follower);
        }
        Fault::KillReplica => {
            nodes.servers.server_mut(replica).kill_all().unwrap();
            wait();
            nodes.servers.server_mut(replica).start().unwrap();
        }
        Fault::StopLeader | Fault::StopFollower => {
            let node = if fault == Fault::StopLeader { leader } else { follower };
            nodes.signal(node, "-STOP");
            wait();
            nodes.signal(node, "-CONT");
        }
        Fault::StopReplica => {
            nodes.servers.server_mut(replica).pause().unwrap();
            wait();
            nodes.servers.server_mut(replica).resume().unwrap();
        }
        Fault::KillAllNodes => {
            (0..nodes.count()).for_each(|node| nodes.kill(node));
            (0..nodes.count()).for_each(|node| nodes.spawn(node));
        }
        Fault::IsolateLeader | Fault::IsolateFollower => {
            nodes.isolate(if fault == Fault::IsolateLeader { leader } else { follower });
            wait();
        }
        Fault::MuteLeader => {
            others.iter().for_each(|other| nodes.cut(leader, *other, true));
            wait();
        }
        Fault::DeafLeader => {
            others.iter().for_each(|other| nodes.cut(*other, leader, true));
            wait();
        }
        Fault::OneWay => {
            let to = (follower + 1 + draw.index(nodes.count() - 1)) % nodes.count();
            nodes.cut(follower, to, true);
            wait();
        }
        Fault::LeaderWithoutReplica => {
            nodes.way(leader, replica).cut(Cut::BOTH);
            wait();
        }
        Fault::LeaderWithoutReplicas => {
            let cut = if draw.below(2) == 0 { Cut::BOTH } else { Cut::REFUSED };
            (0..nodes.servers.servers().len()).for_each(|server| nodes.way(leader, server).cut(cut));
            wait();
        }
        Fault::ResetLinks => {
            for _ in 0..5 {
                nodes.link(follower, leader).cut(Cut::REFUSED);
                std::thread::sleep(Duration::from_millis(20));
                nodes.link(follower, leader).heal();
                std::thread::sleep(lasts / 5);
            }
        }
        Fault::TwoAtOnce => {
            nodes.servers.server_mut(replica).kill_all().unwrap();
            nodes.kill(leader);
            wait();
            nodes.servers.server_mut(replica).start().unwrap();
            nodes.spawn(leader);
        }
    }
    nodes.heal();
}

/// One cluster, one load, and faults until the load is nearly over.
fn torture(mut nodes: Nodes, seconds: u64, seed: u64, faults: Vec<Fault>) -> Nodes {
    block_on(async {
        let replicas: Vec<String> = nodes.servers.servers().iter().map(|server| server.dsn()).collect();
        // Those of an earlier run tell nothing of this one. Who makes them does not try again.
        let client = nodes.client(nodes.leader()).await;
        client.batch_execute("DROP TABLE IF EXISTS torture_counter").await.unwrap();
        nodes.everywhere("SELECT to_regclass('torture_counter')").await;
        let options = Options {
            duration: Duration::from_secs(seconds),
            seed,
            isolation: Isolation::Mixed,
            round: 40_000,
            clients: 9,
            keep_in: Some(std::env::temp_dir()),
            ..Options::new(nodes.dsn_of_all())
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let begun = are_rows_made(&replicas[0]);
        let is_over_too = is_over.clone();
        let injecting = async {
            begun.await;
            tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                let mut draw = Draw(seed);
                let mut injected = 0;
                // The last one lasts, and what it has done must be over when all is read at the end.
                while began.elapsed() + Duration::from_secs(9) < Duration::from_secs(seconds)
                    && !is_over_too.load(Ordering::Relaxed)
                {
                    let fault = match faults.get(injected) {
                        Some(fault) => *fault,
                        None => FAULTS[draw.index(FAULTS.len())],
                    };
                    inject(&mut nodes, &mut draw, fault);
                    injected += 1;
                    std::thread::sleep(draw.ms(200, 2_000));
                }
                (nodes, injected)
            })
            .await
            .unwrap()
        };
        let tortured = async {
            let report = run(&options).await.unwrap();
            is_over.store(true, Ordering::Relaxed);
            report
        };
        let (report, (nodes, injected)) = futures_util::future::join(tortured, injecting).await;
        println!("{injected} faults\n{report}");
        let comparison =
            compare_until_identical(&replicas, &CompareOptions::default(), CATCH_UP).await.unwrap();
        println!("{comparison}");
        for node in 0..nodes.count() {
            let messages = nodes.messages(node);
            assert!(!messages.contains("panicked"), "node {node}: {messages}");
        }
        if !report.passed() || !comparison.identical() {
            nodes.keep_messages();
        }
        assert!(
            report.passed(),
            "see above: an anomaly, a broken invariant or an error that must not happen"
        );
        assert!(comparison.identical(), "see above: the replicas differ");
        assert!(injected > 2 && report.total().committed > 100, "{report}");
        nodes
    })
}

/// Waits until a server has all tables and rows with which the load begins: the last ones.
async fn are_rows_made(dsn: &str) {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(client) = connect(dsn).await else { continue };
        let counted = client.query_one("SELECT count(*) FROM torture_counter", &[]).await;
        if counted.is_ok_and(|row| row.get::<_, i64>(0) > 0) {
            return;
        }
    }
}

/// About 30 seconds.
#[test]
fn faults_at_random_under_load_cause_no_anomaly_and_leave_equal_replicas() {
    let faults = vec![Fault::KillLeader, Fault::IsolateLeader];
    torture(Nodes::start_apart(3, 3), 22, 11, faults);
}

/// The same for long, with several seeds.
#[test]
#[ignore = "takes SOAK_SECONDS; run by make soak"]
fn soak_with_faults_finds_no_anomaly() {
    let variable = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let (seconds, seed) = (variable("SOAK_SECONDS", 600), variable("SOAK_SEED", 1));
    let mut nodes = Nodes::start_apart(3, 3);
    let began = Instant::now();
    for seed in seed.. {
        if began.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        eprintln!("seed {seed}");
        nodes = torture(nodes, seconds.min(60), seed, Vec::new());
    }
}
