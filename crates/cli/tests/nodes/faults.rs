//! What can happen to a cluster: bringing it about, and its end.

use crate::relay::Cut;
use crate::rig::{Nodes, connect};
use onecopy_cluster::Stop;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_postgres::SimpleQueryMessage;

/// Sessions on a replica; the one that asks is none of them.
const SESSIONS: &str =
    "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// What happens to a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// `kill -9`; it is started again.
    KillLeader,
    KillFollower,
    /// `kill -9` of all processes of a server.
    KillReplica,
    /// `kill -9` of one session's process, after which PostgreSQL ends all others and recovers.
    KillBackend,
    /// SIGSTOP, then SIGCONT.
    StopLeader,
    StopFollower,
    StopReplica,
    /// Its server gets a tenth of the time that it would have.
    SlowReplica,
    /// SIGTERM, and again when it has ended.
    RestartLeader,
    RestartFollower,
    RestartReplica,
    /// A follower starts with the log that it had some time ago; when it has refused, the right one is put back.
    OldLog,
    /// The same with a log whose end is missing, or in which a bit is wrong.
    CutLog,
    FlippedBit,
    /// `pg_terminate_backend` of every session on a replica.
    EndSessions,
    KillAllNodes,
    /// All nodes and all servers at once.
    KillEverything,
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
    /// What the leader says does not reach a replica, or the other way round.
    ReplicaOneWay,
    /// Connections of a node to the leader are reset.
    ResetLinks,
    TwoAtOnce,
}

pub const FAULTS: [Fault; 27] = [
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillReplica,
    Fault::KillBackend,
    Fault::StopLeader,
    Fault::StopFollower,
    Fault::StopReplica,
    Fault::SlowReplica,
    Fault::RestartLeader,
    Fault::RestartFollower,
    Fault::RestartReplica,
    Fault::OldLog,
    Fault::CutLog,
    Fault::FlippedBit,
    Fault::EndSessions,
    Fault::KillAllNodes,
    Fault::KillEverything,
    Fault::IsolateLeader,
    Fault::IsolateFollower,
    Fault::MuteLeader,
    Fault::DeafLeader,
    Fault::OneWay,
    Fault::LeaderWithoutReplica,
    Fault::LeaderWithoutReplicas,
    Fault::ReplicaOneWay,
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

    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Brings a fault about, and its end. For a thread that may block, of a runtime.
pub fn inject(nodes: &mut Nodes, draw: &mut Draw, fault: Fault) {
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
        Fault::KillBackend => {
            let pid = ask(nodes, replica, &format!("SELECT pid {SESSIONS} ORDER BY random() LIMIT 1"));
            // It may have none at this moment, or have ended it.
            if let Some(pid) = pid {
                let _ = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
            }
            wait();
        }
        Fault::EndSessions => {
            ask(nodes, replica, &format!("SELECT count(pg_terminate_backend(pid)) {SESSIONS}"));
        }
        Fault::RestartLeader | Fault::RestartFollower => {
            let node = if fault == Fault::RestartLeader { leader } else { follower };
            nodes.stop(node);
            nodes.spawn(node);
        }
        Fault::RestartReplica => nodes.servers.server_mut(replica).restart(Stop::Fast).unwrap(),
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
        Fault::SlowReplica => {
            let (began, server) = (Instant::now(), nodes.servers.server_mut(replica));
            while began.elapsed() < lasts {
                server.pause().unwrap();
                std::thread::sleep(Duration::from_millis(45));
                server.resume().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Fault::OldLog | Fault::CutLog | Fault::FlippedBit => {
            nodes.kill(follower);
            nodes.keep_log(follower);
            match fault {
                Fault::OldLog => {
                    nodes.spawn(follower);
                    wait();
                    nodes.kill(follower);
                    nodes.exchange_logs(follower);
                }
                Fault::CutLog => {
                    nodes.damage_log(follower, |records| records.truncate(draw.index(records.len())));
                }
                _ => nodes.damage_log(follower, |records| {
                    let byte = draw.index(records.len());
                    records[byte] ^= 1 << draw.below(8);
                }),
            }
            let refused = nodes.refuses(follower);
            eprintln!("{fault:?}: {refused:?}");
            // Unless it had acknowledged nothing of what is missing now.
            if let Some(said) = refused {
                assert!(said.contains("open the commit log: "), "{said}");
                nodes.exchange_logs(follower);
                nodes.spawn(follower);
            }
        }
        Fault::KillAllNodes => {
            (0..nodes.count()).for_each(|node| nodes.kill(node));
            (0..nodes.count()).for_each(|node| nodes.spawn(node));
        }
        Fault::KillEverything => {
            nodes.kill_all();
            nodes.start_all();
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
        Fault::ReplicaOneWay => {
            let there = draw.below(2) == 0;
            nodes.way(leader, replica).cut(Cut { there, back: !there, refuses: false });
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

/// The first cell of what a replica says, asked past onecopy; `None` if it says nothing, or cannot be asked now.
fn ask(nodes: &Nodes, replica: usize, sql: &str) -> Option<String> {
    let dsn = nodes.servers.server(replica).dsn();
    tokio::runtime::Handle::current().block_on(async {
        let messages = connect(&dsn).await.ok()?.simple_query(sql).await.ok()?;
        messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    })
}
