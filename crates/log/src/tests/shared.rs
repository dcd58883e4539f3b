//! Three nodes that share a log, each with real threads and a folder of its own, and a network of channels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use parking_lot::Mutex;

use crate::consensus::{Change, MemberError, Membership, NodeId, Origin, ProposeError, Role};
use crate::disk::Folder;
use crate::log::{Log, OpenError};
use crate::shared::{Member, MemberEvent, Network, SharedHooks, SharedOptions};
use crate::{AppendError, Durable, Genesis, Kind, LogId, Record, Seq, Settings, State};

/// How long something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// All nodes, and the links between them.
#[derive(Default)]
struct Net {
    members: Mutex<BTreeMap<NodeId, Weak<Member>>>,
    /// Nodes that nobody reaches, and that reach nobody.
    cut_off: Mutex<BTreeSet<NodeId>>,
    /// Nodes whose disks fail.
    broken: Mutex<BTreeSet<NodeId>>,
}

/// One node's way into it. Messages arrive on a thread of their own, in order.
struct Way {
    from: NodeId,
    net: Arc<Net>,
    out: std::sync::mpsc::Sender<(NodeId, Bytes)>,
}

impl Network for Way {
    fn send(&self, to: NodeId, message: Bytes) {
        let cut_off = self.net.cut_off.lock();
        if !cut_off.contains(&self.from) && !cut_off.contains(&to) {
            self.out.send((to, message)).unwrap_or_default();
        }
    }
}

impl Net {
    fn way(self: &Arc<Net>, from: NodeId) -> Box<Way> {
        let (out, messages) = channel::<(NodeId, Bytes)>();
        let net = Arc::clone(self);
        thread::spawn(move || {
            for (to, message) in messages {
                let member = net.members.lock().get(&to).and_then(Weak::upgrade);
                if let Some(member) = member {
                    member.receive(message);
                }
            }
        });
        Box::new(Way { from, net: Arc::clone(self), out })
    }
}

/// A node that runs.
struct Running {
    log: Log,
    member: Arc<Member>,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    durable: Vec<Durable>,
    events: Vec<MemberEvent>,
}

struct Cluster {
    folder: tempfile::TempDir,
    net: Arc<Net>,
    nodes: BTreeMap<NodeId, Running>,
    lives: u64,
}

fn settings() -> Settings {
    Settings { segment_len: 40_000, group_len_max: 10_000, zero_ahead_len: 4_096, ..Settings::default() }
}

fn options(node: NodeId, incarnation: u64) -> SharedOptions {
    SharedOptions {
        node,
        incarnation,
        random: 7,
        settings: settings(),
        tick_ms: 30,
        election_ticks: 10,
        heartbeat_ticks: 2,
        recent_bytes_max: 20_000,
        proposed_bytes_max: 10_000,
        ..SharedOptions::default()
    }
}

fn origin(voters: &[NodeId]) -> Origin {
    let genesis = Genesis { log_id: LogId(77), epoch: Epoch(1), after: Csn(0) };
    Origin { genesis, membership: Membership::of_voters(voters) }
}

fn body(csn: Csn) -> Bytes {
    Bytes::from(format!("commit {csn} and what it wrote, which is more than this but never looked at"))
}

/// Waits until `what` is so.
fn wait_until<T>(title: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(is) = what() {
            return is;
        }
        assert!(started.elapsed() < PATIENCE, "not in time: {title}");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Cluster {
    fn of(ids: &[u64]) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = Cluster { folder, net: Arc::new(Net::default()), nodes: BTreeMap::new(), lives: 0 };
        let voters: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        for id in &voters {
            cluster.begin(*id, origin(&voters)).expect("an empty folder");
            cluster.start(*id);
        }
        cluster
    }

    fn begin(&self, id: NodeId, origin: Origin) -> Result<(), OpenError> {
        let folder = Folder::open(&self.path(id)).expect("the folder is ours");
        Log::begin_shared(folder, origin, id, settings()).map(drop)
    }

    fn path(&self, id: NodeId) -> std::path::PathBuf {
        self.folder.path().join(id.to_string())
    }

    fn start(&mut self, id: NodeId) {
        self.lives += 1;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (on_durable, on_event) = (Arc::clone(&heard), Arc::clone(&heard));
        let hooks = SharedHooks::new(
            move |durable| on_durable.lock().durable.push(durable),
            move |event| on_event.lock().events.push(event),
        );
        let path = self.path(id);
        let mut folder = Folder::open(&path).expect("the folder is ours");
        let net = Arc::clone(&self.net);
        folder.inject =
            Some(Box::new(move |_| net.broken.lock().contains(&id).then(|| std::io::Error::other("broken"))));
        let options = options(id, self.lives);
        let (log, member) = Log::open_shared(folder, &path, options, self.net.way(id), hooks).expect("opens");
        self.net.members.lock().insert(id, Arc::downgrade(&member));
        self.nodes.insert(id, Running { log, member, heard });
    }

    fn stop(&mut self, id: NodeId) -> Running {
        let running = self.nodes.remove(&id).expect("it runs");
        running.log.close().expect("closes");
        running
    }

    fn running(&self, id: NodeId) -> &Running {
        &self.nodes[&id]
    }

    /// The node that is ready to lead, of those that can be reached.
    fn leader(&self) -> (NodeId, Epoch) {
        wait_until("a leader is ready", || {
            let cut_off = self.net.cut_off.lock().clone();
            let mut statuses = self.nodes.iter().filter(|(id, _)| !cut_off.contains(id));
            statuses.find_map(|(id, node)| {
                let status = node.member.status();
                status.ready.then_some((*id, status.epoch))
            })
        })
    }

    fn followers(&self) -> Vec<NodeId> {
        let (leader, _) = self.leader();
        self.nodes.keys().copied().filter(|id| *id != leader).collect()
    }

    /// Appends as many commits at the leader, and returns the last one once it is told. On a machine that has much else to
    /// do, another node may lead before that is done.
    fn append(&self, count: u64) -> Csn {
        let (leader, _) = self.leader();
        let target = Csn(self.running(leader).log.status().appended.0 + count);
        wait_until("some leader takes what is appended", || {
            let (leader, epoch) = self.leader();
            let Running { log, member, .. } = self.running(leader);
            let mut last = log.status().appended;
            let quietly = |csn| log.append_quietly(Record::commit(epoch, csn, body(csn)));
            while last < target && quietly(last.next()).is_ok() {
                log.wake();
                last = last.next();
            }
            let is_told = wait_until("what was appended is told, or the term is over", || {
                let status = member.status();
                let is_told = log.durable().csn >= target;
                let is_over = !status.ready || status.epoch != epoch || status.stopped.is_some();
                (is_told || is_over).then_some(is_told)
            });
            is_told.then_some(target)
        })
    }

    fn wait_for_all(&self, csn: Csn) {
        for (id, node) in &self.nodes {
            wait_until(&format!("node {id} has commit {csn}"), || {
                (node.log.durable().csn >= csn).then_some(())
            });
        }
    }

    fn cut_off(&self, id: NodeId) {
        self.net.cut_off.lock().insert(id);
    }

    fn heal(&self) {
        self.net.cut_off.lock().clear();
    }
}

impl Running {
    /// All that a reader is shown.
    fn records(&self) -> Vec<(Seq, Record)> {
        let reader = self.log.read_from(self.log.held().first).expect("readable");
        reader.map(|entry| entry.map(|entry| (entry.seq, entry.record)).expect("whole")).collect()
    }

    fn commits(&self) -> Vec<Csn> {
        let records = self.records().into_iter().map(|(_, record)| record);
        let commits = records.filter(|record| record.kind == Kind::COMMIT);
        commits
            .map(|record| {
                assert_eq!(record.body, body(record.csn));
                record.csn
            })
            .collect()
    }

    fn durable(&self) -> Csn {
        self.heard.lock().durable.last().map_or(Csn(0), |durable| durable.csn)
    }

    fn wait_for_event(&self, title: &str, wanted: impl Fn(&MemberEvent) -> bool) {
        wait_until(title, || self.heard.lock().events.iter().any(&wanted).then_some(()));
    }
}

fn up_to(last: Csn) -> Vec<Csn> {
    (1..=last.0).map(Csn).collect()
}

#[test]
fn what_the_leader_appends_is_read_the_same_at_every_node() {
    let cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(1_000);
    cluster.wait_for_all(last);
    wait_until("all are shown the same", || {
        let shown: Vec<_> = cluster.nodes.values().map(Running::records).collect();
        shown.windows(2).all(|two| two[0] == two[1]).then_some(())
    });
    for node in cluster.nodes.values() {
        assert_eq!(node.commits(), up_to(Csn(1_000)));
        let held = node.log.held();
        assert_eq!((held.log_id, held.first, held.last), (LogId(77), Csn(1), Csn(1_000)));
        assert!(held.epoch > Epoch(1) && held.epoch <= node.member.status().epoch);
        assert_eq!(held.annulled, []);
        assert_eq!(node.log.status().state, State::Running);
        let told = node.heard.lock().durable.clone();
        assert!(told.is_sorted_by(|a, b| a.seq < b.seq), "told once, in order: {told:?}");
    }
    let (leader, epoch) = cluster.leader();
    let node = cluster.running(leader);
    let written = node.log.status().written;
    assert!(written.groups < 1_000, "commits that come together share a sync: {written:?}");
    assert_eq!(node.log.backlog_bytes(), 0);
    let leads = |event: &MemberEvent| *event == MemberEvent::Leads { epoch };
    let ready = |event: &MemberEvent| matches!(event, MemberEvent::Ready { epoch: of, .. } if *of == epoch);
    node.wait_for_event("it is ready", ready);
    let events = node.heard.lock().events.clone();
    assert!(events.iter().position(leads) < events.iter().position(ready), "{events:?}");
}

#[test]
fn leader_is_stopped_and_another_goes_on_with_all_that_was_told() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(100);
    let (first, epoch) = cluster.leader();
    let all_queued = (last.0 + 1..=last.0 + 20)
        .map(Csn)
        .all(|csn| cluster.running(first).log.append_quietly(Record::commit(epoch, csn, body(csn))).is_ok());
    let stopped = cluster.stop(first);
    let (told, kept) = (stopped.durable(), stopped.commits());
    let was_deposed = stopped.member.status().epoch > epoch;
    assert!(was_deposed || !all_queued || told == Csn(120), "closing waits for a majority: {told}");
    drop(stopped);
    let (second, _) = cluster.leader();
    assert!(told >= last && cluster.running(second).commits().starts_with(&kept));
    let last = cluster.append(50);
    cluster.wait_for_all(last);

    cluster.start(first);
    let last = cluster.append(50);
    cluster.wait_for_all(last);
    for node in cluster.nodes.values() {
        assert_eq!(node.commits(), up_to(last));
    }
}

#[test]
fn leader_is_cut_off_without_a_word_and_nothing_told_is_missing() {
    let cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(100);
    cluster.wait_for_all(last);
    let (old, epoch) = cluster.leader();
    cluster.cut_off(old);
    let lonely = &cluster.running(old).log;
    // Unless it was deposed just now, it does not know yet.
    let _lost = lonely.append(Record::commit(epoch, last.next(), Bytes::from_static(b"lost")));
    let last = cluster.append(100);
    assert_eq!((last, cluster.running(old).durable()), (Csn(200), Csn(100)));

    cluster.heal();
    cluster.wait_for_all(last);
    for node in cluster.nodes.values() {
        assert_eq!(node.commits(), up_to(last), "what no majority had is gone");
    }
}

#[test]
fn leader_hands_over_to_a_node_that_has_all_of_its_log() {
    let cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(100);
    let (heir, epoch) = wait_until("a leader has handed over", || {
        let (leader, epoch) = cluster.leader();
        let heir = cluster.running(leader).member.hand_over()?;
        assert_ne!(heir, leader);
        let follows = |event: &MemberEvent| matches!(event, MemberEvent::Follows { epoch: of, leader: Some(_) } if *of > epoch);
        cluster.running(leader).wait_for_event("it follows", follows);
        Some((heir, epoch))
    });
    let (leader, next) = cluster.leader();
    assert!(
        next > epoch && (leader == heir || next > Epoch(epoch.0 + 1)),
        "{leader} leads in {next}, after {epoch}"
    );
    let followers = cluster.followers();
    assert_eq!(cluster.running(followers[0]).member.hand_over(), None, "it has nothing to hand over");
    let last = Csn(last.0.max(cluster.append(50).0));
    cluster.wait_for_all(last);
    for node in cluster.nodes.values() {
        assert_eq!(node.commits(), up_to(last));
    }
}

#[test]
fn follower_that_was_away_catches_up_from_the_disk_of_the_leader() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    let away = cluster.followers()[0];
    drop(cluster.stop(away));
    let last = cluster.append(2_000);
    cluster.wait_for_all(last);
    wait_until("the annulment is told", || {
        let (leader, epoch) = cluster.leader();
        let log = &cluster.running(leader).log;
        if log.held().annulled.is_empty() {
            let place = log.append(Record::annulment(epoch, Csn(7), "23514: no")).ok()?;
            wait_until("it is, or the term is over", || {
                let is_over = cluster.running(leader).member.status().epoch > epoch;
                (is_over || log.durable().seq >= place).then_some(())
            });
        }
        (log.held().annulled == [Csn(7)]).then_some(())
    });
    let set = Bytes::from_static(b"r1 r2 r4");
    wait_until("which replicas there are is told", || {
        let (leader, epoch) = cluster.leader();
        let log = &cluster.running(leader).log;
        let is_told = || log.held().replicas.is_some_and(|(_, told)| told == set);
        is_told().then_some(()).or_else(|| {
            let place = log.append(Record::other(Kind::REPLICAS, epoch, set.clone())).ok()?;
            wait_until("it is, or the term is over", || {
                let is_over = cluster.running(leader).member.status().epoch > epoch;
                (is_over || log.durable().seq >= place).then_some(())
            });
            is_told().then_some(())
        })
    });
    cluster.start(away);
    cluster.wait_for_all(last);
    wait_until("the follower knows of the annulment", || {
        let held = cluster.running(away).log.held();
        (held.annulled == [Csn(7)] && held.replicas.is_some_and(|(_, told)| told == set)).then_some(())
    });
    assert_eq!(cluster.running(away).commits(), up_to(last));
    drop(cluster.stop(away));
    cluster.start(away);
    wait_until("it knows after a start, too", || {
        let held = cluster.running(away).log.held();
        (held.annulled == [Csn(7)] && held.replicas.is_some_and(|(_, told)| told == set)).then_some(())
    });
}

#[test]
fn majority_confirms_and_a_minority_does_not() {
    let cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(10);
    let ask = |id: NodeId, epoch: Option<Epoch>| {
        let (done, answer) = channel();
        let done = Box::new(move |csn| done.send(csn).unwrap_or_default());
        match epoch {
            None => cluster.running(id).member.confirm(done),
            Some(epoch) => cluster.running(id).member.confirm_leads(epoch, done),
        }
        answer
    };
    cluster.wait_for_all(last);
    for id in cluster.nodes.keys() {
        assert_eq!(ask(*id, None).recv_timeout(PATIENCE), Ok(last), "at node {id}");
    }
    let (leader, epoch) = wait_until("a leader confirms that it leads", || {
        let (leader, epoch) = cluster.leader();
        let floor = ask(leader, Some(epoch)).recv_timeout(PATIENCE).ok()?;
        assert_eq!(floor, last);
        Some((leader, epoch))
    });
    let other = Epoch(epoch.0 + 100);
    ask(leader, Some(other)).recv_timeout(PATIENCE).expect_err("dropped: it does not lead in that epoch");

    cluster.cut_off(leader);
    let in_epoch = ask(leader, Some(epoch));
    let at_all = ask(leader, None);
    cluster.leader();
    assert_eq!(in_epoch.recv_timeout(PATIENCE).ok(), None, "dropped when the node steps back");
    assert!(at_all.try_recv().is_err(), "nobody has confirmed anything");
    cluster.heal();
    assert!(at_all.recv_timeout(PATIENCE).expect("by the new leader") >= last);
    let closed = {
        let running = cluster.running(leader);
        running.log.close().expect("closes");
        ask(leader, None)
    };
    closed.recv_timeout(PATIENCE).expect_err("dropped: the log is closed");
}

#[test]
fn what_is_appended_in_an_epoch_that_is_over_is_in_no_log() {
    let cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(10);
    cluster.wait_for_all(last);
    let over = Epoch(1);
    let next = Record::commit(over, last.next(), body(last.next()));
    for node in cluster.nodes.values() {
        let refused = Err(AppendError::NotLeading { epoch: over });
        assert_eq!(node.log.append_quietly(next.clone()), refused);
        assert_eq!(node.log.append(next.clone()), refused);
    }
    wait_until("a mistake is told at once, as long as the node leads", || {
        let (leader, epoch) = cluster.leader();
        let out_of_order = Record::commit(epoch, Csn(12), body(Csn(12)));
        let log = &cluster.running(leader).log;
        let order = Err(AppendError::Order { last, found: Csn(12) });
        (log.append_quietly(out_of_order.clone()) == order && log.append(out_of_order) == order).then_some(())
    });

    // More than may be proposed: the rest waits in the queue until the node has stepped back.
    let (leader, epoch) = wait_until("a leader that knows nothing is cut off", || {
        let (leader, epoch) = cluster.leader();
        cluster.cut_off(leader);
        let log = &cluster.running(leader).log;
        let next = log.status().appended.next();
        let quietly = |csn| log.append_quietly(Record::commit(epoch, csn, body(csn)));
        let all_queued = (next.0..next.0 + 300).map(Csn).all(|csn| quietly(csn).is_ok());
        let one_more = Record::commit(epoch, Csn(next.0 + 300), Bytes::new());
        let is_busy = matches!(log.append(one_more), Err(AppendError::Busy { .. }));
        if !all_queued || !is_busy {
            cluster.heal();
            return None;
        }
        Some((leader, epoch))
    });
    let node = cluster.running(leader);
    node.wait_for_event("it drops what it could not propose", |event| {
        matches!(event, MemberEvent::Dropped { epoch: of, records } if *of == epoch && *records > 100)
    });
    let refused = node.log.append_quietly(Record::commit(epoch, Csn(11), body(Csn(11))));
    assert_eq!((refused, node.log.backlog_bytes()), (Err(AppendError::NotLeading { epoch }), 0));
    let last = cluster.append(1);
    cluster.heal();
    cluster.wait_for_all(last);
    assert_eq!(node.commits(), up_to(last));
}

#[test]
fn folder_that_was_emptied_is_refused_and_one_with_a_log_is_not_begun_again() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    let id = NodeId(3);
    let again = cluster.stop(id);
    drop(again);
    assert!(matches!(cluster.begin(id, origin(&[id])), Err(OpenError::Exists(_))));
    let opened = |path: &Path, options| {
        let folder = Folder::open(path).expect("the folder is ours");
        let hooks = SharedHooks::new(|_| {}, |_| {});
        Log::open_shared(folder, path, options, cluster.net.way(id), hooks).map(drop)
    };
    let path = cluster.path(id);
    assert!(matches!(opened(&path, options(NodeId(2), 99)), Err(OpenError::Node(_))), "another node's");
    assert!(matches!(opened(&path, options(id, 0)), Err(OpenError::Node(_))), "no incarnation");
    std::fs::remove_dir_all(&path).expect("removed");
    assert!(matches!(opened(&path, options(id, 99)), Err(OpenError::Missing(_))));
}

#[test]
fn node_is_added_and_promoted_and_leads_when_the_others_stop() {
    let mut cluster = Cluster::of(&[1]);
    let last = cluster.append(300);
    cluster.wait_for_all(last);
    let (joins, leads) = (NodeId(2), NodeId(1));
    cluster.begin(joins, origin(&[])).expect("an empty folder");
    cluster.start(joins);
    let member = Arc::clone(&cluster.running(leads).member);
    let foreign = cluster.running(joins).member.change(Change::Promote(joins));
    assert!(matches!(foreign, Err(MemberError::Propose(ProposeError::NotLeader { .. }))));
    member.change(Change::AddLearner(joins)).expect("it leads");
    wait_until("the learner has caught up", || {
        let status = member.status();
        (status.matched == [(joins, Some(status.ordered))]).then_some(())
    });
    wait_until("it can be promoted", || member.change(Change::Promote(joins)).ok());
    let both = Membership::of_voters(&[leads, joins]);
    for node in cluster.nodes.values() {
        node.wait_for_event("both are voters", |event| *event == MemberEvent::Members(both));
    }
    let last = cluster.append(10);
    cluster.wait_for_all(last);
    assert_eq!(cluster.running(joins).commits(), up_to(last));
    assert_eq!(member.status().members.role(joins), Some(Role::Voter));
}

#[test]
fn segments_that_nobody_needs_are_dropped_and_whoever_needs_them_is_offered_a_beginning() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    let away = cluster.followers()[0];
    drop(cluster.stop(away));
    let last = cluster.append(2_000);
    cluster.wait_for_all(last);
    for node in cluster.nodes.values() {
        node.log.truncate_before(last);
        wait_until("segments are dropped", || (node.log.held().first > Csn(1_000)).then_some(()));
    }
    cluster.start(away);
    let node = cluster.running(away);
    node.wait_for_event("a beginning is offered", |event| {
        matches!(event, MemberEvent::BeginningOffered { .. })
    });
    let offered = cluster.nodes.values().map(|node| node.member.status().beginnings).sum::<u64>();
    assert!(offered > 0, "whoever offers it knows that something is left out");
    node.member.accept_beginning();
    let last = cluster.append(10);
    cluster.wait_for_all(last);
    let commits = cluster.nodes.iter().find(|(id, _)| **id != away).expect("three").1.commits();
    assert!(commits.ends_with(&node.commits()) && node.commits().ends_with(&[last]));
}

#[test]
fn disk_that_fails_stops_the_node_and_the_others_go_on() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    let last = cluster.append(10);
    cluster.wait_for_all(last);
    let (id, _) = cluster.leader();
    cluster.net.broken.lock().insert(id);
    let last = cluster.append(10);
    let failed = cluster.nodes.remove(&id).expect("it ran");
    cluster.wait_for_all(last);
    failed.wait_for_event("it says so", |event| matches!(event, MemberEvent::Stopped(_)));
    assert!(matches!(failed.log.status().state, State::Failed(_)));
    assert!(failed.member.status().stopped.is_some());
    let record = Record::commit(Epoch(1), Csn(1), Bytes::new());
    assert_eq!(failed.log.append(record), Err(AppendError::Failed));
    failed.log.close().expect_err("the failure");
    let last = cluster.append(10);
    cluster.wait_for_all(last);
}
