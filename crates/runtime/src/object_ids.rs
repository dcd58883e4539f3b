//! Object ids as clients are told them.
//!
//! What users define (types, and tables with their row types) has another object id on every replica: a server counts
//! also what is rolled back. Drivers look a type up once, by its id, so the ids in descriptions must be the same whoever
//! answers. Each object gets one number: its id on the reference replica, to which queries of the catalogue go, when it is
//! first met. It keeps that for as long as the process runs, also when another replica becomes the reference.
//!
//! On each replica an object is known by its id, which it keeps when it is renamed and which nothing else gets later. Only
//! to find out that two replicas' ids mean the same object are names compared, as both replicas have them under the same
//! definitions. Ids not met yet are learnt when definitions have changed and, if a description is faster, by its lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use onecopy_core::ReplicaId;
use onecopy_wire::WireError;
use onecopy_wire::backend::{OidOf, replace_oids};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// The lowest id of what is not the server's own, and so has the same id everywhere.
pub const FIRST_USERS_OID: u32 = 16_384;
/// PostgreSQL's type "unknown", which drivers take as text.
const UNKNOWN_TYPE: u32 = 705;
/// How long a description waits for ids that were not met yet: definitions may be changing all the time.
const LEARN_WAIT: Duration = Duration::from_secs(1);
/// Where numbers begin, downwards, for objects whose own number is another object's already.
const FIRST_OWN_NUMBER: u32 = u32::MAX - 1;

/// Lists what users have defined: "t" for types and "r" for relations, schema, name, id, and how a type is written in SQL.
/// An array is named by its elements' type, since its own name may be chosen by the server.
pub const LIST: &str = "SELECT CASE WHEN e.oid IS NULL THEN 't' ELSE 'a' END, n.nspname, \
    coalesce(e.typname, t.typname), t.oid, \
    pg_catalog.quote_ident(n.nspname) OPERATOR(pg_catalog.||) '.' OPERATOR(pg_catalog.||) pg_catalog.quote_ident(t.typname) \
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace \
    LEFT JOIN pg_catalog.pg_type e ON e.typarray OPERATOR(pg_catalog.=) t.oid \
    WHERE t.oid OPERATOR(pg_catalog.>=) 16384 \
    UNION ALL SELECT 'r', n.nspname, c.relname, c.oid, NULL \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
    WHERE c.oid OPERATOR(pg_catalog.>=) 16384 AND c.relkind NOT IN ('i', 'I', 't')";

/// What an object is called: its kind, schema and name.
type Name = (String, String, String);

/// An object as one replica has it.
#[derive(Clone, Debug)]
pub struct Listed {
    name: Name,
    oid: u32,
    /// As SQL writes it, if it is a type.
    sql: Option<String>,
}

impl Listed {
    /// Reads a row of [`LIST`].
    pub fn of_row(row: Vec<Option<String>>) -> Option<Listed> {
        let mut values = row.into_iter();
        let mut next = || values.next().flatten();
        let name = (next()?, next()?, next()?);
        Some(Listed { name, oid: next()?.parse().ok()?, sql: next() })
    }
}

/// All objects that a replica has.
pub struct Reading {
    pub replica: ReplicaId,
    /// What was known of an earlier incarnation of the replica counts no more: it may have been copied anew.
    pub incarnation: u64,
    pub objects: Vec<Listed>,
}

/// Numbers by the ids of one replica.
type Numbers = Arc<HashMap<u32, u32>>;

#[derive(Default)]
struct OfReplica {
    incarnation: u64,
    numbers: Numbers,
}

#[derive(Default)]
struct State {
    replicas: HashMap<ReplicaId, OfReplica>,
    /// The replica that was the reference when it was last read.
    reference: Option<ReplicaId>,
    /// Numbers by name, and types by number, as last read.
    by_name: HashMap<Name, u32>,
    types: HashMap<u32, Arc<str>>,
    /// Every number that was ever given or told: clients may know an object by it for as long as they live, also one that
    /// was rolled back, so it is never another one's. Four bytes for each.
    given: HashSet<u32>,
    /// Those among them that are a replica's own ids, told before their objects were met: whose, and in which incarnation.
    /// They are dropped when the object is met, and with the incarnation.
    told: HashMap<u32, (ReplicaId, u64)>,
    /// The definitions under which it was last read.
    generation: u64,
}

/// The numbering, and who waits for it to become more complete.
pub struct ObjectIds {
    state: Mutex<State>,
    /// Counts the changes of `state`.
    version: AtomicU64,
    asked: AtomicU64,
    is_asked: Notify,
    /// Up to which question each replica was read anew.
    answered: watch::Sender<HashMap<ReplicaId, u64>>,
}

impl Default for ObjectIds {
    fn default() -> ObjectIds {
        ObjectIds {
            state: Mutex::default(),
            version: AtomicU64::new(1),
            asked: AtomicU64::new(0),
            is_asked: Notify::new(),
            answered: watch::Sender::default(),
        }
    }
}

impl ObjectIds {
    /// Asks for the replicas to be read; the number of the question.
    pub fn ask(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.is_asked.notify_one();
        number
    }

    /// Waits until somebody has asked; the number of the newest question.
    pub async fn question(&self) -> u64 {
        self.is_asked.notified().await;
        self.newest_question()
    }

    /// The number of the newest question.
    pub fn newest_question(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// These replicas were read after a question.
    pub fn answer(&self, question: u64, read: &[ReplicaId]) {
        self.answered.send_modify(|answered| {
            answered.extend(read.iter().map(|replica| (*replica, question)));
        });
    }

    /// Has the replicas read, and waits for one of them (`None`: whichever is first) for a limited time.
    pub async fn learn(&self, replica: Option<ReplicaId>) {
        let question = self.ask();
        let mut answered = self.answered.subscribe();
        let answer = answered.wait_for(|answered| match &replica {
            Some(replica) => answered.get(replica).is_some_and(|upto| *upto >= question),
            None => answered.values().any(|upto| *upto >= question),
        });
        // What is not known then is told as far as it cannot be mistaken.
        let _in_time = tokio::time::timeout(LEARN_WAIT, answer).await;
    }

    /// Takes in what replicas have under the same definitions, that of the reference replica first.
    pub fn take(&self, readings: &[Reading], generation: u64) {
        let mut state = self.state.lock();
        if state.take(readings) {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        state.generation = generation;
    }

    /// The replica has left for good: its ids mean nothing any more.
    pub fn forget(&self, replica: ReplicaId) {
        self.state.lock().replicas.remove(&replica);
        self.answered.send_modify(|answered| {
            answered.remove(&replica);
        });
    }

    /// How SQL writes a type that a client knows by a number, under these definitions. The outer `None` if they have not
    /// been read yet.
    pub fn type_of(&self, number: u32, generation: u64) -> Option<Option<Arc<str>>> {
        let state = self.state.lock();
        (state.generation == generation).then(|| state.type_of(number))
    }

    /// Whether no replica that was read has this number as the id of anything else than the object that clients know by it.
    fn is_same_everywhere(&self, number: u32) -> bool {
        let state = self.state.lock();
        state.replicas.values().all(|known| known.numbers.get(&number) == Some(&number))
    }

    /// Whether a value in binary form holds ids of users' types that are not the same on all replicas. Such are arrays,
    /// composites and records; a value of another type that happens to be built like one counts as one.
    pub fn differ_in(&self, value: &[u8]) -> bool {
        let mut differ = false;
        let mut look = |oid: u32| differ |= oid >= FIRST_USERS_OID && !self.is_same_everywhere(oid);
        (oids_of_array(value, &mut look).is_some() || oids_of_record(value, &mut look).is_some()) && differ
    }

    fn numbers(&self, replica: ReplicaId, incarnation: u64) -> (u64, Numbers) {
        let state = self.state.lock();
        let of_replica = state.replicas.get(&replica).filter(|known| known.incarnation == incarnation);
        (
            self.version.load(Ordering::Acquire),
            of_replica.map(|known| known.numbers.clone()).unwrap_or_default(),
        )
    }

    /// What to say of an object of a replica that has no number: a transaction has just made it, and nobody else sees it
    /// yet. Its id there, unless clients know another object by that; then nothing else gets it, and when the object is met
    /// it is its number.
    fn stand_in(&self, replica: ReplicaId, incarnation: u64, of: OidOf, oid: u32) -> u32 {
        let state = &mut *self.state.lock();
        let known = state.replicas.get(&replica).filter(|known| known.incarnation == incarnation);
        if let Some(number) = known.and_then(|known| known.numbers.get(&oid)) {
            // It was met since the lane has looked.
            return *number;
        }
        if state.given.insert(oid) {
            state.told.insert(oid, (replica, incarnation));
        }
        match (state.told.get(&oid) == Some(&(replica, incarnation)), of) {
            (true, _) => oid,
            (false, OidOf::Type) => UNKNOWN_TYPE,
            (false, OidOf::Table) => 0,
        }
    }
}

impl State {
    /// Whether anything changed.
    fn take(&mut self, readings: &[Reading]) -> bool {
        let mut changed = false;
        for reading in readings {
            let known = self.replicas.entry(reading.replica).or_default();
            if known.incarnation != reading.incarnation {
                *known = OfReplica { incarnation: reading.incarnation, numbers: Numbers::default() };
                changed = true;
            }
        }
        // A replica that was read before has numbers for all that was there then.
        let was_read = |state: &State, replica| !state.replicas[replica].numbers.is_empty();
        let mut numbers: HashMap<&Name, u32> = HashMap::new();
        let mut is_new: HashSet<&Name> = HashSet::new();
        for reading in readings {
            for object in &reading.objects {
                match self.replicas[&reading.replica].numbers.get(&object.oid) {
                    Some(number) => drop(numbers.entry(&object.name).or_insert(*number)),
                    None if was_read(self, &reading.replica) => drop(is_new.insert(&object.name)),
                    None => {}
                }
            }
        }
        let mut told: HashMap<&Name, u32> = HashMap::new();
        for reading in readings.iter().filter(|_| !self.told.is_empty()) {
            let was_told = |object: &&Listed| {
                self.told.get(&object.oid) == Some(&(reading.replica, reading.incarnation))
            };
            for object in reading.objects.iter().filter(was_told) {
                told.entry(&object.name).or_insert(object.oid);
            }
        }
        let mut types = HashMap::new();
        for object in readings.iter().flat_map(|reading| &reading.objects) {
            let known = numbers.get(&object.name).copied();
            let number = known.unwrap_or_else(|| {
                let earlier = self.by_name.get(&object.name).filter(|_| !is_new.contains(&object.name));
                let chosen = earlier.or_else(|| told.get(&object.name)).copied();
                chosen.unwrap_or_else(|| self.new_number(object.oid))
            });
            numbers.insert(&object.name, number);
            if let Some(sql) = &object.sql {
                types.entry(number).or_insert_with(|| sql.as_str().into());
            }
        }
        for reading in readings {
            let Some(known) = self.replicas.get_mut(&reading.replica) else { continue };
            let unknown = |object: &&Listed| !known.numbers.contains_key(&object.oid);
            if reading.objects.iter().any(|object| unknown(&object)) {
                let mut all = HashMap::clone(&known.numbers);
                all.extend(reading.objects.iter().map(|object| (object.oid, numbers[&object.name])));
                known.numbers = Arc::new(all);
                changed = true;
            }
        }
        // What has a number now is known by that, and what a lost incarnation has told is met nowhere any more.
        self.told.retain(|oid, (replica, incarnation)| {
            self.replicas
                .get(replica)
                .is_none_or(|known| known.incarnation <= *incarnation && !known.numbers.contains_key(oid))
        });
        self.reference = readings.first().map(|reading| reading.replica);
        self.by_name = numbers.into_iter().map(|(name, number)| (name.clone(), number)).collect();
        self.types = types;
        changed
    }

    /// A number for an object that is met for the first time, with this id on the reference replica.
    fn new_number(&mut self, oid: u32) -> u32 {
        let mut number = oid;
        let mut own = FIRST_OWN_NUMBER;
        while !self.given.insert(number) {
            number = own;
            own -= 1;
        }
        number
    }

    fn type_of(&self, number: u32) -> Option<Arc<str>> {
        if let Some(found) = self.types.get(&number) {
            return Some(found.clone());
        }
        // The client has it from the catalogue of a replica that became the reference later.
        let of_replica = |known: &OfReplica| known.numbers.get(&number).copied();
        let by_reference = self.reference.and_then(|reference| of_replica(self.replicas.get(&reference)?));
        // Or from the home of its own transaction, which has just made it: then any replica's id that only one object has.
        let found = by_reference.or_else(|| {
            let mut found: Vec<u32> = self.replicas.values().filter_map(of_replica).collect();
            found.dedup();
            (found.len() == 1).then(|| found[0])
        })?;
        self.types.get(&found).cloned()
    }
}

/// The most dimensions that an array of PostgreSQL has.
const DIMENSIONS_MAX: u32 = 6;

/// Shows the elements' type of an array in binary form; None if it is none. What composite elements hold need not be looked
/// at: their own type is a user's. (array_send)
fn oids_of_array(mut value: &[u8], look: &mut impl FnMut(u32)) -> Option<()> {
    let (dimensions, has_nulls, element) = (take(&mut value)?, take(&mut value)?, take(&mut value)?);
    if dimensions > DIMENSIONS_MAX || has_nulls > 1 {
        return None;
    }
    let mut count = u32::from(dimensions > 0);
    for _ in 0..dimensions {
        count = count.checked_mul(take(&mut value)?)?;
        let _lower_bound = take(&mut value)?;
    }
    for _ in 0..count {
        take_value(&mut value)?;
    }
    value.is_empty().then(|| look(element))
}

/// Shows the types of the fields of a composite in binary form; None if it is none. (record_send)
fn oids_of_record(mut value: &[u8], look: &mut impl FnMut(u32)) -> Option<()> {
    let count = take(&mut value)?;
    let mut types = Vec::new();
    for _ in 0..count {
        types.push(take(&mut value)?);
        // A field that holds others of users' types is of a user's type itself.
        take_value(&mut value)?;
    }
    value.is_empty().then(|| types.into_iter().for_each(look))
}

fn take(value: &mut &[u8]) -> Option<u32> {
    let (taken, rest) = value.split_first_chunk()?;
    *value = rest;
    Some(u32::from_be_bytes(*taken))
}

/// A length and so many bytes; -1 stands for null.
fn take_value<'a>(value: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = match take(value)? {
        u32::MAX => 0,
        len => len as usize,
    };
    let (taken, rest) = value.split_at_checked(len)?;
    *value = rest;
    Some(taken)
}

/// The numbering as one lane needs it.
pub struct LaneIds {
    ids: Arc<ObjectIds>,
    replica: ReplicaId,
    incarnation: u64,
    version: u64,
    numbers: Numbers,
    /// What was said of objects that had no number when it was asked for.
    stand_ins: HashMap<u32, u32>,
    /// The lane's transaction has changed definitions: asking for what nobody else can see yet is of no use.
    pub own_definitions: bool,
}

impl LaneIds {
    pub fn new(ids: Arc<ObjectIds>, replica: ReplicaId, incarnation: u64) -> LaneIds {
        LaneIds {
            ids,
            replica,
            incarnation,
            version: 0,
            numbers: Numbers::default(),
            stand_ins: HashMap::new(),
            own_definitions: false,
        }
    }

    /// Somebody else uses the lane from now on: what could not be known before may be now.
    pub fn begin(&mut self) {
        self.own_definitions = false;
        if !self.stand_ins.is_empty() {
            self.stand_ins.clear();
        }
    }

    /// Puts numbers in the place of the ids in a description (`tag` and body of the frame); other messages stay as they are.
    ///
    /// # Errors
    /// If the description is malformed.
    pub async fn tell(&mut self, tag: u8, body: &mut [u8]) -> Result<(), WireError> {
        self.catch_up();
        if self.replace(tag, body)? {
            return Ok(());
        }
        if !self.own_definitions {
            let ids = self.ids.clone();
            ids.learn(Some(self.replica)).await;
            self.catch_up();
        }
        let (numbers, stand_ins, ids) = (&self.numbers, &mut self.stand_ins, &self.ids);
        let stand_in = |of, oid| ids.stand_in(self.replica, self.incarnation, of, oid);
        replace_oids(tag, body, |of, oid| match numbers.get(&oid) {
            _ if oid < FIRST_USERS_OID => oid,
            Some(number) => *number,
            None => *stand_ins.entry(oid).or_insert_with(|| stand_in(of, oid)),
        })
    }

    fn catch_up(&mut self) {
        if self.version != self.ids.version.load(Ordering::Acquire) {
            (self.version, self.numbers) = self.ids.numbers(self.replica, self.incarnation);
            self.stand_ins.clear();
        }
    }

    /// Replaces all ids, or none if one of them is not known.
    fn replace(&self, tag: u8, body: &mut [u8]) -> Result<bool, WireError> {
        let number_of = |oid: u32| match oid {
            0..FIRST_USERS_OID => Some(oid),
            _ => self.numbers.get(&oid).or_else(|| self.stand_ins.get(&oid)).copied(),
        };
        let (mut all_known, mut differs) = (true, false);
        replace_oids(tag, body, |_, oid| {
            let number = number_of(oid);
            all_known &= number.is_some();
            differs |= number.is_some_and(|number| number != oid);
            oid
        })?;
        if all_known && differs {
            replace_oids(tag, body, |_, oid| number_of(oid).unwrap_or(oid))?;
        }
        Ok(all_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use onecopy_wire::backend::build;
    use onecopy_wire::frame::HEAD_LEN;

    fn types(of: &[(&str, u32)]) -> Vec<Listed> {
        let listed = |(name, oid): &(&str, u32)| Listed {
            name: ("t".into(), "public".into(), (*name).into()),
            oid: *oid,
            sql: Some(format!("public.{name}")),
        };
        of.iter().map(listed).collect()
    }

    fn reading(replica: u16, incarnation: u64, of: &[(&str, u32)]) -> Reading {
        Reading { replica: ReplicaId(replica), incarnation, objects: types(of) }
    }

    fn number(ids: &ObjectIds, replica: u16, incarnation: u64, oid: u32) -> Option<u32> {
        ids.numbers(ReplicaId(replica), incarnation).1.get(&oid).copied()
    }

    #[test]
    fn numbers_are_those_of_the_reference_replica_and_stay_when_another_takes_its_place() {
        let ids = ObjectIds::default();
        ids.take(
            &[reading(0, 1, &[("a", 20_000), ("b", 20_003)]), reading(1, 1, &[("a", 30_000), ("b", 20_000)])],
            1,
        );
        assert_eq!(number(&ids, 1, 1, 30_000), Some(20_000));
        assert_eq!(number(&ids, 1, 1, 20_000), Some(20_003));
        // The first is lost; what is new is met on the second, where its id is the number of another object.
        ids.take(&[reading(1, 1, &[("a", 30_000), ("b", 20_000), ("c", 20_003), ("d", 40_000)])], 2);
        assert_eq!(number(&ids, 1, 1, 30_000), Some(20_000));
        assert_eq!(number(&ids, 1, 1, 20_003), Some(FIRST_OWN_NUMBER));
        assert_eq!(number(&ids, 1, 1, 40_000), Some(40_000));
        // It comes back, and may have been copied anew.
        assert_eq!(number(&ids, 0, 2, 20_000), None);
        let all = [("a", 20_500), ("b", 20_501), ("c", 20_502), ("d", 20_503)];
        ids.take(&[reading(0, 2, &all), reading(1, 1, &[("a", 30_000), ("b", 20_000), ("c", 20_003)])], 2);
        assert_eq!(number(&ids, 0, 2, 20_500), Some(20_000));
        assert_eq!(number(&ids, 0, 2, 20_502), Some(FIRST_OWN_NUMBER));
        assert_eq!(ids.type_of(20_003, 2), Some(Some("public.b".into())));
        assert_eq!(ids.type_of(20_501, 2), Some(Some("public.b".into())), "as the catalogue shows it now");
        assert_eq!((ids.type_of(20_504, 2), ids.type_of(20_504, 3)), (Some(None), None));
    }

    #[test]
    fn type_is_known_by_the_id_of_the_home_that_made_it_unless_that_is_anothers_elsewhere() {
        let ids = ObjectIds::default();
        let of = |replica, a, b| reading(replica, 1, &[("a", a), ("b", b)]);
        ids.take(&[of(0, 20_000, 20_001), of(1, 30_000, 30_001), of(2, 40_000, 30_000)], 1);
        assert_eq!(ids.type_of(30_001, 1), Some(Some("public.b".into())));
        assert_eq!(
            ids.type_of(30_000, 1),
            Some(None),
            "it is one type on one replica, and another on another"
        );
        assert_eq!(ids.type_of(50_000, 1), Some(None));
    }

    #[test]
    fn renamed_object_keeps_its_number_and_one_made_again_gets_another() {
        let ids = ObjectIds::default();
        ids.take(&[reading(0, 1, &[("a", 20_000)]), reading(1, 1, &[("a", 30_000)])], 1);
        // "a" is renamed to "b", and another "a" made.
        ids.take(
            &[reading(0, 1, &[("b", 20_000), ("a", 20_005)]), reading(1, 1, &[("b", 30_000), ("a", 30_001)])],
            2,
        );
        assert_eq!((number(&ids, 1, 1, 30_000), number(&ids, 1, 1, 30_001)), (Some(20_000), Some(20_005)));
        // Dropped and made again, read on one replica only.
        ids.take(&[reading(1, 1, &[("b", 30_000), ("a", 30_002)])], 3);
        assert_eq!(number(&ids, 1, 1, 30_002), Some(30_002));
    }

    #[test]
    fn only_replica_that_comes_back_has_the_numbers_that_were_told() {
        let ids = ObjectIds::default();
        ids.take(&[reading(0, 1, &[("a", 20_000)]), reading(1, 1, &[("a", 30_000)])], 1);
        ids.take(&[reading(1, 2, &[("a", 30_007), ("b", 20_000)])], 1);
        assert_eq!(number(&ids, 1, 2, 30_007), Some(20_000));
        assert_eq!(number(&ids, 1, 2, 20_000), Some(FIRST_OWN_NUMBER));
    }

    #[test]
    fn binary_values_with_ids_that_differ_are_told_from_others() {
        let ids = ObjectIds::default();
        let both = [("same", 20_000)];
        ids.take(&[reading(0, 1, &[("a", 20_001), both[0]]), reading(1, 1, &[("a", 30_000), both[0]])], 1);
        let bytes = |numbers: &[u32], text: &[u8]| {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            bytes.extend(text);
            bytes
        };
        assert!(ids.differ_in(&bytes(&[1, 0, 20_001, 1, 1, 2], b"ok")));
        assert!(ids.differ_in(&bytes(&[1, 1, 20_001, 1, 1, u32::MAX], b"")));
        assert!(ids.differ_in(&bytes(&[0, 0, 20_001], b"")), "an empty array");
        assert!(ids.differ_in(&bytes(&[2, 25, 0, 20_001, 2], b"ok")), "a composite");
        for harmless in [
            bytes(&[1, 0, 20_000, 1, 1, 2], b"ok"),
            bytes(&[1, 0, 25, 1, 1, 2], b"ok"),
            bytes(&[1, 0, 20_001, 1, 1, 3], b"ok"),
            bytes(&[2, 25, 0, 20_001, 2], b"okay"),
            bytes(&[6, 0, 20_001, u32::MAX, 1, u32::MAX, 1], b""),
            b"ok".to_vec(),
        ] {
            assert!(!ids.differ_in(&harmless), "{harmless:?}");
        }
    }

    #[test]
    fn id_that_was_told_before_its_object_was_met_is_no_other_objects_number() {
        let ids = ObjectIds::default();
        ids.take(&[reading(0, 1, &[("a", 20_000)]), reading(1, 1, &[("a", 30_000)])], 1);
        // A transaction on the second replica has made "b", and was told its id there; more than once.
        for _ in 0..2 {
            assert_eq!(ids.stand_in(ReplicaId(1), 1, OidOf::Type, 20_001), 20_001);
        }
        assert_eq!(ids.stand_in(ReplicaId(2), 1, OidOf::Type, 20_001), UNKNOWN_TYPE, "another's there");
        assert_eq!(ids.stand_in(ReplicaId(1), 1, OidOf::Table, 20_000), 0, "the number of \"a\"");
        // Meanwhile another client makes "c", whose id on the reference replica is the same.
        ids.take(
            &[reading(0, 1, &[("a", 20_000), ("c", 20_001)]), reading(1, 1, &[("a", 30_000), ("c", 30_001)])],
            2,
        );
        assert_eq!(number(&ids, 0, 1, 20_001), Some(FIRST_OWN_NUMBER));
        // The transaction commits: "b" keeps what its client knows.
        let first = [("a", 20_000), ("c", 20_001), ("b", 20_002)];
        ids.take(&[reading(0, 1, &first), reading(1, 1, &[("a", 30_000), ("c", 30_001), ("b", 20_001)])], 3);
        assert_eq!((number(&ids, 0, 1, 20_002), number(&ids, 1, 1, 20_001)), (Some(20_001), Some(20_001)));
        assert_eq!(ids.type_of(20_001, 3), Some(Some("public.b".into())));
    }

    #[test]
    fn ids_that_were_told_are_kept_until_their_objects_are_met_or_their_replica_comes_back() {
        let ids = ObjectIds::default();
        let first = reading(0, 1, &[("a", 20_000)]);
        ids.take(&[first, reading(1, 1, &[("a", 30_000)])], 1);
        for oid in 30_001..30_010 {
            ids.stand_in(ReplicaId(1), 1, OidOf::Type, oid);
        }
        let told = || ids.state.lock().told.len();
        assert_eq!(told(), 9);
        let two = [("a", 30_000), ("b", 30_001)];
        ids.take(&[reading(0, 1, &[("a", 20_000), ("b", 20_001)]), reading(1, 1, &two)], 2);
        assert_eq!(told(), 8);
        // A lane that has not looked since then.
        assert_eq!(ids.stand_in(ReplicaId(1), 1, OidOf::Type, 30_001), 30_001);
        assert_eq!(told(), 8);
        // The others were rolled back, and their replica was lost.
        ids.take(&[reading(0, 1, &[("a", 20_000), ("b", 20_001)]), reading(1, 2, &two)], 2);
        assert_eq!(told(), 0);
        // Clients may still know them.
        ids.take(&[reading(0, 1, &[("c", 30_005)])], 3);
        assert_eq!(number(&ids, 0, 1, 30_005), Some(FIRST_OWN_NUMBER));
    }

    #[tokio::test]
    async fn description_waits_until_its_own_replica_was_read() {
        let ids = Arc::new(ObjectIds::default());
        ids.take(&[reading(0, 1, &[("a", 20_000)]), reading(1, 1, &[("a", 30_000)])], 1);
        let mut lane = LaneIds::new(ids.clone(), ReplicaId(1), 1);
        let mut told = BytesMut::new();
        build::parameter_description(&mut told, [30_001]).unwrap();
        {
            let mut tell = std::pin::pin!(lane.tell(b't', &mut told[HEAD_LEN..]));
            let mut is_pending = async || {
                tokio::select! {
                    biased;
                    _ = &mut tell => false,
                    () = std::future::ready(()) => true,
                }
            };
            assert!(is_pending().await);
            // The replica lags behind the definitions under which the first was read.
            let of_first = || reading(0, 1, &[("a", 20_000), ("b", 20_001)]);
            ids.take(&[of_first()], 2);
            ids.answer(ids.newest_question(), &[ReplicaId(0)]);
            assert!(is_pending().await);
            ids.take(&[of_first(), reading(1, 1, &[("a", 30_000), ("b", 30_001)])], 2);
            ids.answer(ids.newest_question(), &[ReplicaId(0), ReplicaId(1)]);
            tell.await.unwrap();
        }
        let mut expected = BytesMut::new();
        build::parameter_description(&mut expected, [20_001]).unwrap();
        assert_eq!(told, expected);
    }

    #[tokio::test]
    async fn description_has_numbers_and_nothing_that_could_be_mistaken() {
        let ids = Arc::new(ObjectIds::default());
        ids.take(&[reading(0, 1, &[("a", 20_000)]), reading(1, 1, &[("a", 30_000)])], 1);
        let mut lane = LaneIds::new(ids, ReplicaId(1), 1);
        lane.own_definitions = true;
        let mut told = BytesMut::new();
        build::parameter_description(&mut told, [25, 30_000, 20_000, 30_001]).unwrap();
        lane.tell(b't', &mut told[HEAD_LEN..]).await.unwrap();
        let mut expected = BytesMut::new();
        build::parameter_description(&mut expected, [25, 20_000, UNKNOWN_TYPE, 30_001]).unwrap();
        assert_eq!(told, expected);

        // What had to stand in once is asked for again by whoever uses the lane next.
        assert!(lane.replace(b't', &mut told[HEAD_LEN..]).unwrap());
        lane.begin();
        assert!(!lane.replace(b't', &mut told[HEAD_LEN..]).unwrap());
        assert!(!lane.own_definitions);
    }
}
