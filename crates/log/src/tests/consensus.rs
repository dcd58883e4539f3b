//! One node alone: its exact effects, what it refuses, what it does with messages that no honest node sends, and the node
//! whose folder was put back.

use std::collections::VecDeque;

use bytes::Bytes;
use onecopy_core::{Csn, Epoch};
use proptest::prelude::*;

use crate::consensus::{
    Change, ChangeError, Config, Dropped, Effect, MemberError, Membership, Node, NodeId, OpenError, Origin,
    ProposeError, ReadId,
};
use crate::record::{SegmentHeader, Shared, Start};
use crate::simulated::SimulatedDisk;
use crate::{
    AppendError, Durability, Engine, Genesis, Kind, LogId, Record, SegmentNo, Seq, Settings, recover,
};

const ID: LogId = LogId(0x77);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);

fn genesis() -> Genesis {
    Genesis { log_id: ID, epoch: Epoch(5), after: Csn(0) }
}

fn config(node: NodeId) -> Config {
    Config {
        node,
        incarnation: 1,
        election_ticks: 10,
        heartbeat_ticks: 2,
        settings: Settings { zero_ahead_len: 0, segment_len: 1 << 16, ..Settings::default() },
        recent_bytes_max: 1 << 16,
        proposed_bytes_max: 1 << 16,
        random: 3,
    }
}

fn origin(membership: Membership) -> Option<Origin> {
    Some(Origin { genesis: genesis(), membership })
}

/// A node with a disk that does at once what it is told.
struct Rig {
    node: Node,
    disk: SimulatedDisk,
}

impl Rig {
    fn open(mut disk: SimulatedDisk, origin: Option<Origin>, config: Config) -> (Rig, Vec<Effect>) {
        let mut effects = Vec::new();
        let recovery = recover(&mut disk).expect("sound");
        let node = Node::open(recovery, origin, config, &mut effects).expect("opens");
        let mut rig = Rig { node, disk };
        let effects = rig.settle(effects);
        (rig, effects)
    }

    /// Carries out what is for the disk, and what comes of it; returns the rest, headers of segments included.
    fn settle(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut rest = Vec::new();
        let mut due = std::collections::VecDeque::from(effects);
        while let Some(effect) = due.pop_front() {
            let Effect::Disk(order) = effect else {
                rest.push(effect);
                continue;
            };
            self.disk.start(order);
            while self.disk.is_busy() {
                if let Some(event) = self.disk.step() {
                    let mut more = Vec::new();
                    self.node.on_disk(event, &mut more);
                    due.extend(more);
                }
            }
        }
        rest
    }

    fn act(&mut self, act: impl FnOnce(&mut Node, &mut Vec<Effect>)) -> Vec<Effect> {
        let mut effects = Vec::new();
        act(&mut self.node, &mut effects);
        self.settle(effects)
    }

    /// Until it leads.
    fn elect(&mut self) -> Vec<Effect> {
        let mut seen = Vec::new();
        while !self.node.leads() {
            seen.extend(self.act(|node, effects| node.tick(1, effects)));
        }
        seen
    }

    fn newest_header(&mut self) -> Shared {
        use crate::medium::{Medium, read_header};
        let newest = self.disk.segments().expect("readable").into_iter().max().expect("there is a segment");
        let bytes = read_header(&mut self.disk, newest).expect("readable");
        SegmentHeader::decode(&bytes, newest).expect("whole").shared.expect("shared")
    }
}

fn commit(epoch: u64, csn: u64) -> Record {
    Record::commit(Epoch(epoch), Csn(csn), Bytes::from_static(b"writes"))
}

#[test]
fn a_node_that_is_alone_elects_itself_and_commits_what_its_disk_has() {
    let (mut rig, effects) = Rig::open(SimulatedDisk::new(), origin(Membership::alone(N1)), config(N1));
    assert_eq!(effects, [Effect::BecameFollower { epoch: Epoch(5), leader: None }]);
    assert_eq!(
        rig.elect(),
        [
            Effect::BecameLeader { epoch: Epoch(6) },
            Effect::Committed { place: Seq(1), csn: Csn(0) },
            Effect::LeaderReady { epoch: Epoch(6), csn: Csn(0) },
        ]
    );
    let shared = rig.newest_header();
    assert_eq!((shared.term, shared.vote, shared.start), (Epoch(6), Some(N1), Start::Continues));
    let mut place = None;
    let effects = rig.act(|node, effects| place = node.propose(commit(6, 1), effects).ok());
    assert_eq!((place, effects), (Some(Seq(2)), vec![Effect::Committed { place: Seq(2), csn: Csn(1) }]));
    let effects = rig.act(|node, effects| node.read(ReadId(7), effects));
    assert_eq!(effects, [Effect::ReadConfirmed { read: ReadId(7), floor: Csn(1) }]);
}

#[test]
fn a_log_of_one_node_becomes_shared_with_all_that_it_holds_committed() {
    let mut disk = SimulatedDisk::new();
    let mut effects = Vec::new();
    let mut engine = Engine::begin(genesis(), config(N1).settings, &mut effects);
    engine.append(commit(1_000, 1)).expect("admitted");
    while !effects.is_empty() {
        for effect in std::mem::take(&mut effects) {
            disk.start(effect);
            while disk.is_busy() {
                if let Some(event) = disk.step() {
                    engine.handle(event, &mut effects);
                }
            }
        }
        engine.flush(&mut effects);
    }
    let open = |origin, node| {
        let recovery = recover(&mut disk.clone()).expect("sound");
        Node::open(recovery, origin, config(node), &mut Vec::new()).err()
    };
    assert_eq!(open(None, N1), Some(OpenError::Alone));
    assert_eq!(open(origin(Membership::of_voters(&[N1, N2, N3])), N1), Some(OpenError::Alone));

    let (mut rig, _) = Rig::open(disk, origin(Membership::alone(N1)), config(N1));
    assert_eq!(rig.node.committed(), (Seq(1), Csn(1)));
    assert_eq!(
        rig.elect(),
        [
            Effect::BecameLeader { epoch: Epoch(1_001) },
            Effect::Committed { place: Seq(2), csn: Csn(1) },
            Effect::LeaderReady { epoch: Epoch(1_001), csn: Csn(1) }
        ]
    );
    let (mut again, _) = Rig::open(rig.disk.clone(), None, Config { incarnation: 2, ..config(N1) });
    again.elect();
    assert_eq!(again.node.epoch(), Epoch(1_002));
    let recovery = recover(&mut rig.disk).expect("sound");
    let other = Node::open(recovery, None, config(N2), &mut Vec::new()).err();
    assert_eq!(other, Some(OpenError::WrongNode { expected: N2, found: N1 }));
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(Membership::alone(N1)), config(N1));
    let follower = rig.node.propose(commit(5, 1), &mut Vec::new());
    assert_eq!(follower, Err(ProposeError::NotLeader { leader: None }));
    rig.elect();
    let mut effects = Vec::new();
    let node = &mut rig.node;
    let order = AppendError::Order { last: Csn(0), found: Csn(2) };
    assert_eq!(node.propose(commit(6, 2), &mut effects), Err(order.into()));
    let old = AppendError::OldEpoch { current: Epoch(6), found: Epoch(5) };
    assert_eq!(node.propose(commit(5, 1), &mut effects), Err(old.into()));
    let members = Record::other(Kind::MEMBERSHIP, Epoch(6), Membership::alone(N2).encode());
    assert_eq!(node.propose(members, &mut effects), Err(AppendError::Form(Kind::MEMBERSHIP).into()));
    let change = |node: &mut Node, change| node.change(change, &mut Vec::new());
    assert_eq!(change(node, Change::Remove(N1)), Err(MemberError::Change(ChangeError::Leader(N1))));
    assert_eq!(change(node, Change::Promote(N2)), Err(MemberError::Change(ChangeError::Absent(N2))));
    assert_eq!((effects, node.tail()), (Vec::new(), (Seq(2), Csn(0))));
    let memory = Settings { durability: Durability::Memory, ..config(N1).settings };
    let opened = Node::open(None, None, Config { settings: memory, ..config(N1) }, &mut Vec::new());
    assert!(matches!(opened.err(), Some(OpenError::Config(_))));
}

#[test]
fn a_leader_takes_no_more_than_may_wait_for_a_majority() {
    let config = Config { proposed_bytes_max: 100, ..config(N1) };
    let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(Membership::alone(N1)), config);
    rig.elect();
    let mut effects = Vec::new();
    rig.node.propose(commit(6, 1), &mut effects).expect("taken");
    rig.node.propose(commit(6, 2), &mut effects).expect("taken");
    let busy = rig.node.propose(commit(6, 3), &mut effects);
    assert_eq!(busy, Err(ProposeError::Busy { bytes: 144 }));
    rig.settle(effects);
    rig.node.propose(commit(6, 3), &mut Vec::new()).expect("taken once the others are committed");
}

#[test]
fn records_that_have_gathered_are_taken_together_up_to_the_first_that_cannot_be() {
    let config = Config { proposed_bytes_max: 200, ..config(N1) };
    let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(Membership::alone(N1)), config);
    rig.elect();
    let mut effects = Vec::new();
    let mut gathered: VecDeque<Record> = (1..=4).map(|csn| commit(6, csn)).collect();
    let taken = rig.node.propose_gathered(&mut gathered, &mut effects);
    assert_eq!(taken, (3 * 72, Err(ProposeError::Busy { bytes: 3 * 72 })));
    assert_eq!((Vec::from(gathered), rig.node.tail()), (vec![commit(6, 4)], (Seq(5), Csn(3))));
    assert_eq!(rig.settle(effects), [Effect::Committed { place: Seq(4), csn: Csn(3) }]);

    let order = AppendError::Order { last: Csn(4), found: Csn(6) };
    let mut gathered = VecDeque::from([commit(6, 4), commit(6, 6), commit(6, 5)]);
    let taken = rig.node.propose_gathered(&mut gathered, &mut Vec::new());
    assert_eq!((taken, gathered.len()), ((72, Err(order.into())), 2));
    assert_eq!(rig.node.proposed_bytes(), 72);
}

#[test]
fn a_message_of_another_log_or_for_another_node_is_dropped() {
    let voters = Membership::of_voters(&[N1, N2, N3]);
    let (mut sender, _) = Rig::open(SimulatedDisk::new(), origin(voters), config(N1));
    let message = loop {
        let effects = sender.act(|node, effects| node.tick(1, effects));
        let to_2 = effects.into_iter().find_map(|effect| match effect {
            Effect::Send { to: N2, message } => Some(message),
            _ => None,
        });
        if let Some(message) = to_2 {
            break message;
        }
    };
    let receive = |node, log_id| {
        let genesis = Genesis { log_id, ..genesis() };
        let origin = Some(Origin { genesis, membership: voters });
        let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin, config(node));
        rig.node.receive(message.clone(), &mut Vec::new())
    };
    assert_eq!(receive(N2, ID), Ok(()));
    assert_eq!(receive(N2, LogId(9)), Err(Dropped::OtherLog(ID)));
    assert_eq!(receive(N3, ID), Err(Dropped::OtherNode { from: N1, to: N2 }));
    for at in 0..message.len() {
        let mut flipped = message.to_vec();
        flipped[at] ^= 1;
        let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(voters), config(N2));
        let dropped = rig.node.receive(flipped.into(), &mut Vec::new());
        assert!(matches!(dropped, Err(Dropped::Malformed(_))), "byte {at}: {dropped:?}");
    }
}

/// A message with a right checksum from node 2 to node 1, whatever it says.
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
fn message(kind: u8, flags: u8, words: [u64; 6], context: &[u8], entries: &[(u64, Vec<u8>)]) -> Bytes {
    let mut out = vec![0, 0, 0, 0, 1, kind, flags, 0];
    out.extend(ID.0.to_le_bytes());
    for word in [2, 1, 1, 0].into_iter().chain(words) {
        out.extend(u64::to_le_bytes(word));
    }
    out.extend((context.len() as u32).to_le_bytes());
    out.extend(context);
    if flags & 2 != 0 {
        for word in [words[2], words[1], words[3]] {
            out.extend(word.to_le_bytes());
        }
        out.extend(Membership::of_voters(&[N1, N2, N3]).encode());
    }
    out.extend((entries.len() as u32).to_le_bytes());
    for (epoch, data) in entries {
        out.extend(epoch.to_le_bytes());
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    let sum = crc32fast::hash(&out[4..]);
    out[..4].copy_from_slice(&sum.to_le_bytes());
    out.into()
}

fn entry(csn: u64) -> Vec<u8> {
    let mut data = vec![1, 0, 0, 0, 0, 0, 0, 0];
    data.extend(csn.to_le_bytes());
    data.extend([0; 8]);
    data.extend(b"writes");
    data
}

fn some_message() -> impl Strategy<Value = Bytes> {
    let word = || prop_oneof![0..12_u64, any::<u64>()];
    let small = || 0..12_u64;
    let words = prop_oneof![
        9 => [small(), small(), small(), small(), small(), small()],
        1 => [word(), word(), word(), word(), word(), word()],
    ];
    let data =
        prop_oneof![Just(Vec::new()), (0..5_u64).prop_map(entry), prop::collection::vec(any::<u8>(), 0..40)];
    let entries = prop::collection::vec((0..9_u64, data), 0..4);
    let context = prop::collection::vec(any::<u8>(), 0..30);
    (prop_oneof![1..=11_u8, Just(100), any::<u8>()], 0..4_u8, words, context, entries)
        .prop_map(|(kind, flags, words, context, entries)| message(kind, flags, words, &context, &entries))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_node_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let voters = Membership::of_voters(&[N1, N2, N3]);
        let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(voters), config(N1));
        let _dropped = rig.node.receive(bytes.into(), &mut Vec::new());
    }

    #[test]
    fn no_messages_of_a_mad_peer_make_a_node_panic(messages in prop::collection::vec(some_message(), 1..30)) {
        let voters = Membership::of_voters(&[N1, N2, N3]);
        let (mut rig, _) = Rig::open(SimulatedDisk::new(), origin(voters), config(N1));
        for (nth, message) in messages.into_iter().enumerate() {
            rig.act(|node, effects| {
                let _dropped = node.receive(message, effects);
            });
            if nth % 3 == 0 {
                rig.act(|node, effects| node.tick(nth as u64, effects));
            }
            if nth % 7 == 0 {
                rig.act(Node::accept_beginning);
            }
        }
    }
}

#[test]
fn a_segment_that_cuts_voids_what_was_safe_and_one_that_begins_voids_all() {
    let header = |number: u64, first: u64, start| SegmentHeader {
        log_id: ID,
        number: SegmentNo(number),
        first_seq: Seq(first),
        first_csn: Csn(first),
        epoch: Epoch(1),
        synced: Seq(first),
        shared: Some(Shared {
            node: N1,
            term: Epoch(9),
            vote: Some(N2),
            committed: Seq(first - 1),
            start,
            membership: Membership::alone(N1),
        }),
    };
    let mut disk = SimulatedDisk::new();
    let put = |disk: &mut SimulatedDisk, effect| {
        disk.start(effect);
        while disk.is_busy() {
            disk.step();
        }
    };
    let create = |disk: &mut SimulatedDisk, header: SegmentHeader| {
        put(disk, crate::Effect::Create { segment: header.number, header: header.encode() });
    };
    // Three records in segment 1, the last of which says that those before it are safe.
    create(&mut disk, header(1, 1, Start::Continues));
    let mut bytes = bytes::BytesMut::new();
    for csn in 1..=3 {
        let record = commit(1, csn);
        let frame = crate::record::FrameHeader::of(&record, Seq(csn), Seq(csn));
        let stamp = crate::record::Stamp::new(ID, SegmentNo(1));
        crate::record::encode_frame(&mut bytes, stamp, &frame, &record.body);
    }
    put(&mut disk, crate::Effect::Write { segment: SegmentNo(1), offset: 4096, bytes: bytes.freeze() });
    let end = |disk: &mut SimulatedDisk| {
        recover(disk).map(|found| found.map(|recovery| (recovery.end().seq, recovery.first())))
    };
    assert_eq!(end(&mut disk.clone()).expect("sound"), Some((Seq(4), Csn(1))));

    let mut continued = disk.clone();
    create(&mut continued, header(2, 2, Start::Continues));
    create(&mut continued, header(3, 2, Start::Continues));
    put(&mut continued, crate::Effect::Delete { segment: SegmentNo(2) });
    let mut cut = disk.clone();
    create(&mut cut, header(2, 2, Start::Cuts));
    assert_eq!(end(&mut cut).expect("sound"), Some((Seq(2), Csn(1))));
    let mut begun = cut.clone();
    create(&mut begun, header(3, 10, Start::Begins));
    let recovery = recover(&mut begun).expect("sound").expect("there is a log");
    assert_eq!((recovery.end().seq, recovery.first(), recovery.records()), (Seq(10), Csn(10), 0));
    let shared = recovery.shared.expect("shared");
    assert_eq!((shared.term, shared.vote, shared.membership), (Epoch(9), Some(N2), Membership::alone(N1)));
}
