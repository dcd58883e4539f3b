//! The statements that a client has prepared, by their names.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::extended::PreparedStatement;

/// A session's prepared statements.
#[derive(Default)]
pub struct Statements {
    known: HashMap<String, Arc<PreparedStatement>>,
    /// The named ones that have come or gone since somebody asked, if anybody will.
    changed: Option<HashSet<String>>,
    /// The unnamed one was bound.
    is_unnamed_bound: bool,
}

impl Statements {
    /// Keeps from now on what changes.
    pub fn watch(&mut self) {
        self.changed = Some(HashSet::new());
    }

    /// The names that have changed since this was asked last.
    pub fn take_changed(&mut self) -> impl Iterator<Item = String> + use<> {
        self.changed.as_mut().map(std::mem::take).unwrap_or_default().into_iter()
    }

    pub fn get(&self, name: &str) -> Option<&Arc<PreparedStatement>> {
        self.known.get(name)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The unnamed statement, if it was never bound: a client that has sent it by itself will do so.
    pub fn unnamed_to_bind(&self) -> Option<&Arc<PreparedStatement>> {
        self.known.get("").filter(|_| !self.is_unnamed_bound)
    }

    /// A Bind names it.
    pub fn bound(&mut self, name: &str) {
        self.is_unnamed_bound |= name.is_empty();
    }

    pub fn insert(&mut self, name: String, statement: Arc<PreparedStatement>) {
        self.note(&name);
        self.known.insert(name, statement);
    }

    pub fn remove(&mut self, name: &str) -> Option<Arc<PreparedStatement>> {
        let removed = self.known.remove(name);
        if removed.is_some() {
            self.note(name);
        }
        removed
    }

    pub fn clear(&mut self) {
        for name in std::mem::take(&mut self.known).into_keys() {
            self.note(&name);
        }
    }

    fn note(&mut self, name: &str) {
        if name.is_empty() {
            self.is_unnamed_bound = false;
        } else if let Some(changed) = &mut self.changed
            && !changed.contains(name)
        {
            changed.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(statements: &mut Statements) -> Vec<String> {
        let mut changed: Vec<String> = statements.take_changed().collect();
        changed.sort();
        changed
    }

    #[test]
    fn names_that_come_or_go_are_told_once_if_anybody_asks() {
        let statement = Arc::new(PreparedStatement::new("SELECT 1", &[]));
        let mut statements = Statements::default();
        statements.insert("a".to_owned(), statement.clone());
        assert!(changed(&mut statements).is_empty());
        statements.watch();
        for name in ["b", "c", ""] {
            statements.insert(name.to_owned(), statement.clone());
        }
        assert!(statements.remove("b").is_some() && statements.remove("d").is_none());
        assert_eq!(changed(&mut statements), ["b", "c"]);
        assert!(changed(&mut statements).is_empty());
        statements.clear();
        assert_eq!(changed(&mut statements), ["a", "c"]);
        assert!(!statements.contains_key("c"));
    }

    #[test]
    fn unnamed_statement_waits_until_it_is_bound_and_the_next_one_waits_again() {
        let statement = Arc::new(PreparedStatement::new("SELECT 1", &[]));
        let mut statements = Statements::default();
        assert!(statements.unnamed_to_bind().is_none());
        statements.insert(String::new(), statement.clone());
        statements.bound("other");
        assert!(statements.unnamed_to_bind().is_some());
        statements.bound("");
        assert!(statements.unnamed_to_bind().is_none() && statements.get("").is_some());
        statements.insert(String::new(), statement);
        assert!(statements.unnamed_to_bind().is_some());
    }
}
