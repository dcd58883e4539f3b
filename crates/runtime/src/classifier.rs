//! Classification as sessions use it: the definitions in force, one parse a class, and what to do while they change.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use onecopy_classify::{
    CapturePlan, Capturing, Catalogue, Class, ClassCache, Context, FrozenValue, OwnedLayout, Parameterised,
    Rewrite, Scratch, context_key,
};
use onecopy_core::Csn;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::record::{What, after_names};

/// A statement that has been classified.
#[derive(Clone)]
pub struct Statement {
    /// Its text: one statement, as the client wrote it.
    pub sql: Arc<str>,
    pub class: Arc<Class>,
    pub layout: OwnedLayout,
    /// The definitions under which it was classified.
    pub generation: u64,
    /// How often its class was met before, as far as is remembered.
    pub uses: u32,
}

impl Statement {
    /// Whether its like was met often enough to keep it prepared on every lane.
    pub fn is_frequent(&self) -> bool {
        self.uses >= USES_BEFORE_PREPARED
    }

    /// It with its constants as parameters, so that whoever does it again need not parse each one anew; None if one of them
    /// must stay in the text.
    pub fn parameterised(&self, frozen: &[FrozenValue]) -> Option<What> {
        let form = self.class.parameterised.as_ref()?;
        let bind = self.bind_constants(form, frozen)?;
        Some(What::prepared(&form.sql, &form.types, bind))
    }

    /// The form in which it is executed for its client, too, where its answer is that to its text, if it is frequent: the
    /// server then neither parses nor plans it again.
    pub fn frequent_form(&self) -> Option<&Parameterised> {
        self.class.parameterised.as_ref().filter(|form| form.answers && self.is_frequent())
    }

    /// What follows the names in a Bind of its constants and frozen values.
    pub fn bind_constants(&self, form: &Parameterised, frozen: &[FrozenValue]) -> Option<Bytes> {
        let values = form.values(&self.sql, self.layout.layout(), frozen)?;
        let mut bind = BytesMut::new();
        let values = values.iter().map(|value| Some(value.as_bytes()));
        onecopy_wire::frontend::build::bind(&mut bind, "", "", [], values, []).ok()?;
        Some(after_names(&bind.freeze()))
    }

    /// What the analysis found, for people.
    pub fn explain(&self, catalogue: &Catalogue, search_path: &[String]) -> Vec<(String, String)> {
        let context = Context { catalogue, search_path, temporary: &[] };
        let found = onecopy_classify::explain(&self.sql, &context);
        let word = found.prepared_word();
        let mut rows = vec![
            ("class".to_owned(), found.class.text.clone()),
            ("kind".to_owned(), format!("{:?}", found.class.kind)),
        ];
        rows.extend(found.items.into_iter().map(|item| ("item".to_owned(), item)));
        rows.push(("changes".to_owned(), found.determinism));
        rows.extend(found.before.into_iter().map(|text| ("before it".to_owned(), text)));
        rows.extend(found.rewritten.map(|text| ("rewritten".to_owned(), text)));
        rows.extend(found.in_block.map(|text| ("in a block".to_owned(), text)));
        rows.extend(found.prepared_as.map(|text| (word.to_owned(), text)));
        rows.extend(found.captured.map(|text| ("applied as".to_owned(), text)));
        rows
    }
}

/// How often a class is met in texts before it is kept prepared.
const USES_BEFORE_PREPARED: u32 = 3;
/// Classes kept; beyond it those not used for longest are made anew.
const CLASSES_MAX: usize = 20_000;

/// How changes of rows reach other replicas, for those who classify while it is in force. A transaction keeps the manner in which
/// it began, so that it is known when the last one is over that replays.
#[derive(Debug, Default)]
pub struct Manner {
    /// Whether no change of rows is replayed, and why: servers of different versions serve, or soon will, for example.
    pub captures: Capturing,
}

/// The definitions in force, for either manner.
struct Definitions {
    plain: Arc<Catalogue>,
    /// Made when it is needed.
    capturing: Option<Arc<Catalogue>>,
}

/// The definitions in force and the classes found under them.
pub struct Classifier {
    definitions: RwLock<Definitions>,
    manner: RwLock<Arc<Manner>>,
    /// Manners that were in force before and may still be kept by somebody.
    earlier: Mutex<Vec<Weak<Manner>>>,
    /// A replica that has applied this much contains every change up to the generation in force.
    contained_at: AtomicU64,
    cache: Mutex<ClassCache>,
    generation: AtomicU64,
    /// Changes of definitions that are decided or about to be, and not yet read.
    changing: AtomicU32,
    settled: Notify,
    has_deferrable: AtomicBool,
}

impl Classifier {
    /// Begins with definitions that every replica has which has applied as much.
    pub fn new(catalogue: Catalogue, told: Csn) -> Classifier {
        Classifier {
            has_deferrable: AtomicBool::new(catalogue.deferrable),
            definitions: RwLock::new(Definitions { plain: Arc::new(catalogue), capturing: None }),
            manner: RwLock::default(),
            earlier: Mutex::default(),
            contained_at: AtomicU64::new(told.0),
            cache: Mutex::new(ClassCache::new(CLASSES_MAX)),
            generation: AtomicU64::new(1),
            changing: AtomicU32::new(0),
            settled: Notify::new(),
        }
    }

    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.definitions.read().plain.clone()
    }

    /// How changes reach other replicas for a transaction that begins now.
    pub fn manner(&self) -> Arc<Manner> {
        self.manner.read().clone()
    }

    /// Whoever begins from now on has all changes of rows captured, or not. Returns whether this is news.
    pub fn set_manner(&self, captures: Capturing) -> bool {
        let mut manner = self.manner.write();
        if manner.captures == captures {
            return false;
        }
        let former = std::mem::replace(&mut *manner, Arc::new(Manner { captures }));
        self.earlier.lock().push(Arc::downgrade(&former));
        true
    }

    /// How many still go on that began when changes were replayed, where all are captured now.
    pub fn replaying(&self) -> usize {
        let mut earlier = self.earlier.lock();
        earlier.retain(|manner| manner.strong_count() > 0);
        let of = |manner: &Weak<Manner>| {
            manner.upgrade().map_or(0, |m| {
                // One of them is this one.
                if m.captures == Capturing::Never { Arc::strong_count(&m) - 1 } else { 0 }
            })
        };
        earlier.iter().map(of).sum()
    }

    /// The definitions in force, as somebody classifies by them.
    pub fn catalogue_in(&self, manner: &Manner) -> Arc<Catalogue> {
        {
            let definitions = self.definitions.read();
            match &definitions.capturing {
                _ if manner.captures == Capturing::Never => return definitions.plain.clone(),
                Some(capturing) if capturing.captures == manner.captures => return capturing.clone(),
                _ => {}
            }
        }
        let mut definitions = self.definitions.write();
        let Definitions { plain, capturing } = &mut *definitions;
        if capturing.as_ref().is_none_or(|known| known.captures != manner.captures) {
            *capturing = Some(Arc::new(plain.capturing(manner.captures)));
        }
        capturing.clone().unwrap_or_else(|| plain.clone())
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The generation in force, if a replica that has applied so much surely contains it.
    pub fn generation_contained(&self, applied: Csn) -> Option<u64> {
        // In this order: a newer position is only demanded for nothing.
        let generation = self.generation();
        (applied.0 >= self.contained_at.load(Ordering::Acquire)).then_some(generation)
    }

    /// Classifies the first statement of `sql`; also the offset of the next one.
    pub fn classify(
        &self,
        manner: &Manner,
        sql: &str,
        search_path: &[String],
        scratch: &mut Scratch,
    ) -> (Statement, Option<usize>) {
        // In this order: what is classified under newer definitions than it says is only refused for nothing.
        let generation = self.generation();
        self.classify_under(&self.catalogue_in(manner), generation, sql, search_path, scratch)
    }

    /// The same under definitions that only one transaction sees so far (generation 0: not kept).
    pub fn classify_under(
        &self,
        catalogue: &Catalogue,
        generation: u64,
        sql: &str,
        search_path: &[String],
        scratch: &mut Scratch,
    ) -> (Statement, Option<usize>) {
        let normalised = onecopy_classify::normalise(sql, scratch);
        let context = Context { catalogue, search_path, temporary: &[] };
        let (class, uses) = if generation == 0 {
            (Arc::new(onecopy_classify::classify(sql, &normalised, &context)), 0)
        } else {
            let key = context_key(&context);
            self.cache.lock().get(sql, &normalised, &context, key)
        };
        let layout = normalised.layout.to_owned();
        let next = normalised.next.map(|next| next as usize);
        let text = sql.get(..normalised.layout.end as usize).unwrap_or(sql);
        (Statement { sql: text.into(), class, layout, generation, uses }, next)
    }

    /// Whether any constraint may be checked later than its statement.
    pub fn has_deferrable(&self) -> bool {
        self.has_deferrable.load(Ordering::Acquire)
    }

    /// A transaction that changes definitions is about to be decided: nobody classifies until they are read again.
    pub fn begin_change(&self) {
        self.changing.fetch_add(1, Ordering::AcqRel);
    }

    /// The new definitions were read from a replica that contained everything up to a position, or the change did not
    /// happen (`None`).
    pub fn end_change(&self, read: Option<(Catalogue, Csn)>) {
        if let Some((catalogue, told)) = read {
            self.contained_at.fetch_max(told.0, Ordering::AcqRel);
            self.has_deferrable.store(catalogue.deferrable, Ordering::Release);
            *self.definitions.write() = Definitions { plain: Arc::new(catalogue), capturing: None };
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        if self.changing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled.notify_waiters();
        }
    }

    pub fn is_changing(&self) -> bool {
        self.changing.load(Ordering::Acquire) > 0
    }

    /// Whether the definitions in force are not those of a generation, or will soon not be.
    pub fn is_newer_than(&self, generation: u64) -> bool {
        self.is_changing() || self.generation() != generation
    }

    /// Waits until no definitions are changing.
    pub async fn settled(&self) {
        loop {
            let notified = self.settled.notified();
            if !self.is_changing() {
                return;
            }
            notified.await;
        }
    }
}

/// The rewrite of an execution: with the columns that are captured, if there are any; inside a transaction with the
/// time frozen, which is one value there.
pub fn rewrite_of<'a>(class: &'a Class, capture: Option<&'a CapturePlan>, in_block: bool) -> &'a Rewrite {
    match (capture, &class.in_block) {
        (Some(plan), _) => &plan.rewrite,
        (None, Some(rewrite)) if in_block => rewrite,
        _ => &class.rewrite,
    }
}

/// The schemas that a `search_path` setting names, as classification wants them.
pub fn search_path(setting: &str, user: &str, catalogue: &Catalogue) -> Vec<String> {
    let mut schemas = Vec::new();
    let mut rest = setting.trim();
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                // A doubled quote stands for one.
                let mut end = 0;
                let bytes = quoted.as_bytes();
                while end < bytes.len() && (bytes[end] != b'"' || bytes.get(end + 1) == Some(&b'"')) {
                    end += if bytes[end] == b'"' { 2 } else { 1 };
                }
                let end = end.min(bytes.len());
                (quoted[..end].replace("\"\"", "\""), quoted.get(end + 1..).unwrap_or(""))
            }
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_ascii_lowercase(), &rest[end..])
            }
        };
        let name = if name == "$user" { user.to_owned() } else { name };
        if catalogue.schemas.contains(&name) {
            schemas.push(name);
        }
        rest = after.trim_start().strip_prefix(',').unwrap_or("").trim_start();
    }
    schemas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_keeps_the_manner_in_which_it_began() {
        let classifier = Classifier::new(Catalogue::default(), Csn(0));
        let began = classifier.manner();
        assert!(began.captures == Capturing::Never && classifier.replaying() == 0, "nothing has changed yet");
        let between = Capturing::BetweenVersions;
        assert!(classifier.set_manner(between) && !classifier.set_manner(between));
        let later = classifier.manner();
        assert_eq!((later.captures, classifier.replaying()), (between, 1));
        let same = began.clone();
        drop(began);
        assert_eq!(classifier.replaying(), 1, "its transaction goes on");
        drop(same);
        assert_eq!(classifier.replaying(), 0);
        classifier.set_manner(Capturing::Never);
        assert_eq!(classifier.replaying(), 0, "who still captures does no harm");
        drop(later);
    }

    #[test]
    fn definitions_that_were_read_anew_are_those_of_either_manner() {
        let named = |name: &str| {
            let mut catalogue = Catalogue::default();
            name.clone_into(&mut catalogue.database);
            catalogue
        };
        let classifier = Classifier::new(named("one"), Csn(0));
        let capturing = Manner { captures: Capturing::ByProtocol };
        let found = |manner| {
            let catalogue = classifier.catalogue_in(manner);
            (catalogue.database.clone(), catalogue.captures != Capturing::Never)
        };
        assert_eq!(found(&capturing), ("one".to_owned(), true));
        classifier.begin_change();
        classifier.end_change(Some((named("two"), Csn(1))));
        assert_eq!(found(&capturing), ("two".to_owned(), true));
        assert_eq!(found(&Manner::default()), ("two".to_owned(), false));
    }

    #[test]
    fn a_search_path_is_read_as_the_server_reads_it() {
        let schemas = ["public", "shop", "a b", "Q\"x"].map(str::to_owned).to_vec();
        let mut catalogue = Catalogue::default();
        catalogue.schemas = schemas;
        let read = |setting| search_path(setting, "shop", &catalogue);
        assert_eq!(read("\"$user\", public"), ["shop", "public"]);
        assert_eq!(read("PUBLIC,missing"), ["public"]);
        assert_eq!(read("\"a b\", \"Q\"\"x\""), ["a b", "Q\"x"]);
        assert!(read("").is_empty());
    }
}
