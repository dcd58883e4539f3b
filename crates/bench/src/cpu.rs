//! CPU time of process trees, from /proc.
//!
//! A process's own time moves to its parent's account of ended children when it is waited for, so the sum over a
//! tree of both accounts neither loses nor repeats anything, whoever ends in between.

use std::collections::HashMap;
use std::fs;

use serde::Serialize;

/// A process tree to account for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Such as `proxy` or `server 1`.
    pub(crate) name: String,
    /// The process at its root.
    pub(crate) root: u32,
    /// Trees in it that are accounted for elsewhere.
    pub(crate) without: Vec<u32>,
}

impl Group {
    /// The trees of servers, and of a program in front of them, which may have started them.
    pub(crate) fn of_servers(front: &str, program: Option<u32>, servers: &[u32]) -> Vec<Group> {
        let front = program.map(|root| Group { name: front.to_owned(), root, without: servers.to_vec() });
        let server = |(place, pid): (usize, &u32)| Group {
            name: format!("server {}", place + 1),
            root: *pid,
            without: Vec::new(),
        };
        front.into_iter().chain(servers.iter().enumerate().map(server)).collect()
    }
}

/// What a process tree spent during a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// Such as `client`, `proxy` or `server 1`.
    pub name: String,
    /// CPU time, user and system, in seconds.
    pub seconds: f64,
}

/// The accounts at one moment, in clock ticks.
pub(crate) struct Meter {
    ticks: Vec<(String, u64)>,
}

impl Meter {
    /// Reads the accounts of these trees, and that of ended children of this process as `client`.
    pub(crate) fn read(groups: &[Group]) -> Self {
        let processes = processes();
        let me = std::process::id();
        // The own account holds every pgbench that has ended.
        let client = processes.get(&me).map_or(0, |process| process.ended_children);
        let mut ticks = vec![("client".to_owned(), client)];
        for group in groups {
            ticks.push((group.name.clone(), tree_ticks(&processes, group.root, &group.without)));
        }
        Meter { ticks }
    }

    /// What was spent since an earlier reading of the same trees.
    pub(crate) fn since(&self, before: &Meter) -> Vec<Usage> {
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let spent = |((name, now), (_, then)): (&(String, u64), &(String, u64))| Usage {
            name: name.clone(),
            seconds: now.saturating_sub(*then) as f64 / per_second,
        };
        self.ticks.iter().zip(&before.ticks).map(spent).collect()
    }
}

/// What /proc says of one process, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    own: u64,
    ended_children: u64,
}

fn processes() -> HashMap<u32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// "123 (name) S parent ...": the name may hold anything, so fields are counted from the last parenthesis.
fn parse(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        ended_children: ticks(13)? + ticks(14)?,
    })
}

/// Every process of a tree, its root included, as far as they run now.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let processes = processes();
    let mut found = vec![root];
    let mut place = 0;
    while let Some(parent) = found.get(place).copied() {
        let children = processes.iter().filter(|(_, process)| process.parent == parent);
        found.extend(children.map(|(pid, _)| *pid));
        place += 1;
    }
    found
}

/// CPU time of these trees, in seconds: of what still runs, and of what ended and was waited for.
pub(crate) fn spent_s(roots: &[u32]) -> f64 {
    let processes = processes();
    let ticks: u64 = roots.iter().map(|root| tree_ticks(&processes, *root, &[])).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU time that the whole machine spent on anything, and all that it had, in clock ticks since it started.
pub(crate) fn machine() -> Option<(u64, u64)> {
    machine_of(&fs::read_to_string("/proc/stat").ok()?)
}

/// "cpu  user nice system idle iowait irq softirq steal ...": what was stolen was spent, too, by somebody else.
fn machine_of(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let (all, idle) = (ticks.iter().sum::<u64>(), ticks.get(3)? + ticks.get(4)?);
    Some((all - idle, all))
}

fn tree_ticks(processes: &HashMap<u32, Process>, root: u32, without: &[u32]) -> u64 {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, process) in processes {
        children.entry(process.parent).or_default().push(*pid);
    }
    let mut sum = 0;
    let mut todo = vec![root];
    while let Some(pid) = todo.pop() {
        let Some(process) = processes.get(&pid).filter(|_| !without.contains(&pid)) else { continue };
        sum += process.own + process.ended_children;
        todo.extend(children.get(&pid).into_iter().flatten());
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 100";
        assert_eq!(parse(line), Some(Process { parent: 3, own: 110, ended_children: 15 }));
        assert_eq!(parse("7 (short) S 3"), None);
    }

    #[test]
    fn what_the_machine_does_is_all_but_idling_and_waiting_for_disks() {
        assert_eq!(machine_of("cpu  10 1 5 100 20 0 2 2 7 7\ncpu0 1 1 1 1\n"), Some((20, 140)));
        assert_eq!(machine_of("cpu0 1 1"), None);
    }

    #[test]
    fn a_tree_is_summed_without_the_trees_left_out() {
        let process = |parent, own| Process { parent, own, ended_children: 1 };
        let processes = HashMap::from([
            (1, process(0, 10)),
            (2, process(1, 20)),
            (3, process(2, 40)),
            (4, process(1, 80)),
            (5, process(4, 160)),
            (9, process(0, 500)),
        ]);
        assert_eq!(tree_ticks(&processes, 1, &[]), 315);
        assert_eq!(tree_ticks(&processes, 1, &[4]), 73);
        assert_eq!(tree_ticks(&processes, 77, &[]), 0);
    }

    /// Other tests have children, too, so the tree is one of its own.
    #[test]
    fn work_of_a_child_shows_in_its_tree_while_it_runs_and_here_after_it_has_ended() {
        // Enough work for several ticks, done by a child of the tree's root.
        let work = "read go; sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo done; read end";
        let mut root = Command::new("sh")
            .args(["-c", work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let group = Group { name: "tree".to_owned(), root: root.id(), without: Vec::new() };
        let before = Meter::read(std::slice::from_ref(&group));
        let spent = || Meter::read(std::slice::from_ref(&group)).since(&before);
        let mut input = root.stdin.take().expect("it is a pipe");
        input.write_all(b"\n").expect("it reads");
        let mut answer = String::new();
        BufReader::new(root.stdout.take().expect("it is a pipe")).read_line(&mut answer).expect("it answers");
        let tree = &spent()[1];
        assert_eq!((answer.trim(), &*tree.name), ("done", "tree"));
        assert!(tree.seconds > 0.05, "{tree:?}");
        assert!(spent_s(&[root.id()]) >= tree.seconds);

        drop(input);
        root.wait().expect("it ends");
        let client = &spent()[0];
        assert_eq!(client.name, "client");
        assert!(client.seconds > 0.05, "{client:?}");
    }
}
