//! A bounded cache of classes: one parse a class.

use crate::analyse::{Context, classify};
use crate::class::Class;
use crate::lexer::{BuildPassHash, Normalised};
use std::collections::HashMap;
use std::sync::Arc;

/// Classes by the hash of their normalised text. One instance serves one thread, or stands behind a lock.
///
/// Hits compare the whole normalised text, so that a collision of hashes cannot mix up two statements, and the
/// constants on which the analysis depended. A class also depends on the catalogue's generation, the
/// search_path and the temporary relations, which are part of the key.
#[derive(Debug)]
pub struct ClassCache {
    entries: HashMap<u64, Vec<Entry>, BuildPassHash>,
    len: usize,
    len_max: usize,
    clock: u64,
    hits: u64,
    misses: u64,
}

#[derive(Debug)]
struct Entry {
    context: u64,
    class: Arc<Class>,
    used: u64,
    uses: u32,
}

/// Different values of pinned constants that are kept for one text.
const VARIANTS_MAX: usize = 8;

/// Longer normalised texts are classified each time: they are bulk inserts that hardly come twice.
const TEXT_LEN_MAX: usize = 64 * 1024;

impl ClassCache {
    /// A cache of at most `len_max` classes.
    #[must_use]
    pub fn new(len_max: usize) -> ClassCache {
        ClassCache {
            entries: HashMap::default(),
            len: 0,
            len_max: len_max.max(1),
            clock: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// The class of a statement, found or made, and how often it was found before. `context_key` must change whenever
    /// the context does: see [`context_key`].
    pub fn get(
        &mut self,
        sql: &str,
        normalised: &Normalised<'_>,
        context: &Context<'_>,
        context_key: u64,
    ) -> (Arc<Class>, u32) {
        let key = normalised.hash ^ context_key;
        self.clock += 1;
        if let Some(variants) = self.entries.get_mut(&key) {
            let found =
                variants.iter_mut().find(|e| e.context == context_key && e.class.holds_for(sql, normalised));
            if let Some(entry) = found {
                entry.used = self.clock;
                entry.uses = entry.uses.saturating_add(1);
                self.hits += 1;
                return (Arc::clone(&entry.class), entry.uses);
            }
        }
        self.misses += 1;
        let class = Arc::new(classify(sql, normalised, context));
        if normalised.text.len() <= TEXT_LEN_MAX {
            let entry = Entry { context: context_key, class: Arc::clone(&class), used: self.clock, uses: 0 };
            self.insert(key, entry);
        }
        (class, 0)
    }

    /// Number of classes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// (hits, misses) since it was made.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.len = 0;
    }

    fn insert(&mut self, key: u64, entry: Entry) {
        if self.len >= self.len_max {
            self.evict();
        }
        let variants = self.entries.entry(key).or_default();
        if variants.len() >= VARIANTS_MAX {
            let oldest = variants.iter().enumerate().min_by_key(|(_, e)| e.used).map(|(i, _)| i);
            if let Some(oldest) = oldest {
                variants.swap_remove(oldest);
                self.len -= 1;
            }
        }
        variants.push(entry);
        self.len += 1;
    }

    /// Drops the quarter that was not used for longest, so that the cost of a full pass is shared by many.
    fn evict(&mut self) {
        let mut used: Vec<u64> = self.entries.values().flatten().map(|e| e.used).collect();
        used.sort_unstable();
        let Some(limit) = used.get(used.len() / 4).copied() else { return };
        self.entries.retain(|_, variants| {
            variants.retain(|e| e.used > limit);
            !variants.is_empty()
        });
        self.len = self.entries.values().map(Vec::len).sum();
    }
}

/// A key that differs between contexts: compute it once whenever the catalogue, the search_path or the temporary
/// relations of a session change.
#[must_use]
pub fn context_key(context: &Context<'_>) -> u64 {
    let mut text = context.catalogue.generation().to_le_bytes().to_vec();
    for name in context.search_path {
        text.extend_from_slice(name.as_bytes());
        text.push(0);
    }
    text.push(1);
    for name in context.temporary {
        text.extend_from_slice(name.as_bytes());
        text.push(0);
    }
    crate::lexer::hash_bytes(&text)
}
