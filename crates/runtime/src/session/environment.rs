//! What a session has set, so that it can be set again on every lane that it borrows, and recorded with its writes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use onecopy_classify::Catalogue;

use crate::agent::quote;
use crate::lane::Lane;
use crate::record::Settings;

/// The settings of a session.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Shared with the copies that transactions keep to return to.
    settings: Arc<Vec<Setting>>,
    /// What RESET goes back to.
    initial: Arc<Vec<Setting>>,
    hash: u64,
    /// Those that may change what a statement means, as records carry them.
    meaningful: Settings,
    meaningful_hash: u64,
}

#[derive(Clone, Debug, Hash)]
struct Setting {
    name: String,
    /// The command that sets it; empty for what lanes must not know.
    command: String,
    /// Its value for `set_config`, if the text showed it.
    value: Option<String>,
}

impl Environment {
    /// Of a new session: what the server's files, its database and its role say, as far as it changes the meaning of statements
    /// or is heeded here, and what its startup packet asked for. Lanes know nothing of either.
    pub fn of_startup(catalogue: &Catalogue, user: &str, asked: &[(String, String)]) -> Environment {
        let mut environment = Environment::default();
        let begins = catalogue.settings.iter().filter(|setting| {
            setting.role.as_deref().is_none_or(|role| role == user)
                && (is_kept_here(&setting.name)
                    || told_by_sessions().any(|name| name.eq_ignore_ascii_case(&setting.name)))
        });
        let begins = begins.map(|setting| (&setting.name, &setting.value));
        for (name, value) in begins.chain(asked.iter().map(|(name, value)| (name, value))) {
            let command = format!("SELECT pg_catalog.set_config({}, {}, false)", quote(name), quote(value));
            environment.set(name, command, Some(value.clone()));
        }
        environment.initial = environment.settings.clone();
        environment
    }

    /// Identifies the settings; 0 for none.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Identifies those that may change what a statement means; 0 for none.
    pub fn meaningful_hash(&self) -> u64 {
        self.meaningful_hash
    }

    pub fn set(&mut self, name: &str, command: String, value: Option<String>) {
        let command = if is_kept_here(name) { String::new() } else { command };
        let settings = Arc::make_mut(&mut self.settings);
        settings.retain(|setting| !setting.name.eq_ignore_ascii_case(name));
        settings.push(Setting { name: name.to_owned(), command, value });
        self.rehash();
    }

    pub fn reset(&mut self, name: &str) {
        let settings = Arc::make_mut(&mut self.settings);
        let is_named = |setting: &&Setting| setting.name.eq_ignore_ascii_case(name);
        settings.retain(|setting| !is_named(&setting));
        settings.extend(self.initial.iter().find(is_named).cloned());
        self.rehash();
    }

    pub fn reset_all(&mut self) {
        self.settings = self.initial.clone();
        self.rehash();
    }

    /// Names and values of those that may change what a statement means, for a record.
    pub fn meaningful(&self) -> &Settings {
        &self.meaningful
    }

    /// Names and values of all whose value is known.
    pub fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = self.settings.iter().filter(|setting| !setting.command.is_empty());
        known.filter_map(|setting| Some((setting.name.as_str(), setting.value.as_deref()?)))
    }

    /// Names of the customised settings among these.
    pub fn customs(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| setting.name.as_str()).filter(|name| is_custom(name))
    }

    /// The value of a setting, if the session has set it.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.settings
            .iter()
            .find(|setting| setting.name.eq_ignore_ascii_case(name))
            .and_then(|setting| setting.value.as_deref())
    }

    /// The value to which a setting returns, if it is known.
    pub fn initial_value(&self, name: &str) -> Option<&str> {
        let mut initial = self.initial.iter();
        initial
            .find(|setting| setting.name.eq_ignore_ascii_case(name))
            .and_then(|found| found.value.as_deref())
    }

    /// The command that makes a lane's settings these, whatever they were.
    pub fn command(&self) -> String {
        let mut command = String::from("RESET ALL");
        for setting in self.settings.iter().filter(|setting| !setting.command.is_empty()) {
            command.push_str("; ");
            command.push_str(&setting.command);
        }
        command
    }

    /// The commands that make these settings of those with which the session began.
    pub fn changes(&self) -> impl Iterator<Item = String> {
        let is_changed = |setting: &&Setting| {
            !self.initial.iter().any(|initial| {
                initial.name.eq_ignore_ascii_case(&setting.name)
                    && (&initial.command, &initial.value) == (&setting.command, &setting.value)
            })
        };
        self.settings.iter().filter(is_changed).filter_map(|setting| {
            if !setting.command.is_empty() {
                return Some(setting.command.clone());
            }
            let (name, value) = (quote(&setting.name), quote(setting.value.as_deref()?));
            Some(format!("SELECT pg_catalog.set_config({name}, {value}, false)"))
        })
    }

    /// The command that sets on a lane, after RESET ALL, that to which RESET returns, if there is anything.
    pub fn initial_command(&self) -> Option<String> {
        let sent = self.initial.iter().filter(|setting| !setting.command.is_empty());
        let call = |setting: &Setting| {
            let (name, value) = (quote(&setting.name), quote(setting.value.as_deref()?));
            Some(format!("pg_catalog.set_config({name}, {value}, false)"))
        };
        let calls: Vec<String> = sent.filter_map(call).collect();
        (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")))
    }

    /// Makes a lane's settings these, and has it forget what was prepared under other definitions: by the commands that
    /// are appended. Its texts are read under the settings that `reads_under` identifies. Definitions have the generation
    /// `in_force`, and on the lane's replica `contained`, which is asked only if they may have changed.
    pub fn dress(
        &self,
        lane: &mut Lane,
        in_force: u64,
        contained: impl FnOnce() -> u64,
        reads_under: u64,
        commands: &mut Vec<String>,
    ) {
        if let Some(ids) = &mut lane.object_ids {
            ids.begin();
        }
        if lane.generation != in_force || lane.has_own_definitions || lane.has_too_many_prepared() {
            if lane.has_prepared() {
                lane.unprepare_all();
                commands.push("DEALLOCATE ALL".to_owned());
            }
            lane.generation = contained();
            lane.has_own_definitions = false;
            // A setting may name something that is gone: this must fail before a record says it.
            lane.settings = u64::MAX;
        }
        if lane.settings != self.hash {
            commands.push(self.command());
            lane.settings = self.hash;
        }
        lane.read_under = reads_under;
    }

    fn rehash(&mut self) {
        let meaningful: Vec<&Setting> =
            self.settings.iter().filter(|setting| is_meaningful(&setting.name)).collect();
        self.meaningful_hash = if meaningful.is_empty() { 0 } else { hash_of(&meaningful) };
        let of_setting = |setting: &&Setting| Some((setting.name.clone(), setting.value.clone()?));
        self.meaningful = meaningful.iter().filter_map(of_setting).collect();
        self.hash = if self.settings.is_empty() { 0 } else { hash_of(&self.settings) };
    }
}

/// Whether a setting is a customised one: of an extension, or of the client's own.
pub fn is_custom(name: &str) -> bool {
    name.contains('.')
}

/// A hash of settings, which is not that of none: 0.
pub fn hash_of(settings: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    settings.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Whether onecopy itself honours a setting: a server would end the connection, which is not this client's alone.
pub fn is_kept_here(name: &str) -> bool {
    [IDLE_IN_TRANSACTION, IDLE_SESSION].iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// For how long a statement may wait for others.
pub const LOCK_TIMEOUT: &str = "lock_timeout";
/// For how long a statement may run.
pub const STATEMENT_TIMEOUT: &str = "statement_timeout";
/// Whether transactions change nothing unless they say otherwise.
pub const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";
/// For how long a session may leave a transaction open without a statement.
pub const IDLE_IN_TRANSACTION: &str = "idle_in_transaction_session_timeout";
/// For how long a session may be silent outside transactions.
pub const IDLE_SESSION: &str = "idle_session_timeout";

/// Whether a setting may change what a statement means, so that its record must carry it.
pub fn is_meaningful(name: &str) -> bool {
    meaningful_names().any(|known| known.eq_ignore_ascii_case(name))
}

fn meaningful_names() -> impl Iterator<Item = &'static str> {
    onecopy_classify::ENVIRONMENT_SETTINGS.iter().copied().chain(["search_path"])
}

/// Settings of which a session says on its lanes what its role and database begin with: those that may change what a
/// statement means, and those that are heeded here, too.
pub fn told_by_sessions() -> impl Iterator<Item = &'static str> {
    meaningful_names().chain([LOCK_TIMEOUT, STATEMENT_TIMEOUT, DEFAULT_READ_ONLY])
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_classify::catalogue::DefaultSetting;

    fn begins(role: Option<&str>, name: &str, value: &str) -> DefaultSetting {
        DefaultSetting { role: role.map(str::to_owned), name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_session_begins_with_the_strongest_default_and_returns_to_it() {
        let mut catalogue = Catalogue::default();
        catalogue.settings = vec![
            begins(None, "search_path", "one"),
            begins(None, "TimeZone", "UTC"),
            begins(Some("ada"), "search_path", "two"),
            begins(Some("bo"), "search_path", "three"),
            begins(None, "work_mem", "64MB"),
        ];
        let asked = [("timezone".to_owned(), "Asia/Tokyo".to_owned())];
        let mut environment = Environment::of_startup(&catalogue, "ada", &asked);
        let begun = environment.hash();
        assert_eq!(environment.value("search_path"), Some("two"));
        assert_eq!(environment.value("TimeZone"), Some("Asia/Tokyo"));
        assert_eq!(environment.value("work_mem"), None, "it does not change what a statement means");
        environment.set("search_path", "SET search_path = four".to_owned(), Some("four".to_owned()));
        environment.set("DateStyle", "SET DateStyle = German".to_owned(), Some("German".to_owned()));
        assert_ne!(environment.hash(), begun);
        let changes: Vec<String> = environment.changes().collect();
        assert_eq!(changes, ["SET search_path = four", "SET DateStyle = German"]);
        environment.reset("Search_Path");
        assert_eq!(environment.value("search_path"), Some("two"));
        assert_eq!(environment.changes().collect::<Vec<_>>(), ["SET DateStyle = German"]);
        assert_eq!(environment.value("datestyle"), Some("German"));
        environment.reset_all();
        assert_eq!((environment.value("datestyle"), environment.hash()), (None, begun));
    }

    #[test]
    fn time_limits_that_a_role_or_the_server_begins_with_are_known_and_returned_to() {
        let mut catalogue = Catalogue::default();
        catalogue.settings = vec![
            begins(None, "lock_timeout", "30000"),
            begins(None, "Statement_Timeout", "1min"),
            begins(Some("ada"), "lock_timeout", "5s"),
        ];
        let mut environment = Environment::of_startup(&catalogue, "ada", &[]);
        assert_eq!(environment.value(LOCK_TIMEOUT), Some("5s"));
        assert_eq!(environment.value(STATEMENT_TIMEOUT), Some("1min"));
        assert!(environment.command().contains("set_config('lock_timeout', '5s', false)"));
        assert_eq!(environment.meaningful_hash(), 0, "records need not carry them");
        environment.set(LOCK_TIMEOUT, "SET lock_timeout = 0".to_owned(), Some("0".to_owned()));
        assert_eq!(environment.value(LOCK_TIMEOUT), Some("0"));
        environment.reset(LOCK_TIMEOUT);
        assert_eq!(environment.value(LOCK_TIMEOUT), Some("5s"));
        let bo = Environment::of_startup(&catalogue, "bo", &[]);
        assert_eq!(bo.value(LOCK_TIMEOUT), Some("30000"));
    }

    #[test]
    fn what_would_end_a_lane_is_kept_and_never_sent_to_it() {
        let mut catalogue = Catalogue::default();
        catalogue.settings = vec![begins(Some("ada"), IDLE_SESSION, "1h")];
        let asked = [("Idle_In_Transaction_Session_Timeout".to_owned(), "5s".to_owned())];
        let mut environment = Environment::of_startup(&catalogue, "ada", &asked);
        assert_eq!(environment.value(IDLE_SESSION), Some("1h"));
        assert_eq!(environment.value(IDLE_IN_TRANSACTION), Some("5s"));
        environment.set(IDLE_SESSION, "SET idle_session_timeout = 7".to_owned(), Some("7".to_owned()));
        assert_eq!(environment.command(), "RESET ALL");
        let kept = "SELECT pg_catalog.set_config('idle_session_timeout', '7', false)";
        assert_eq!(environment.changes().collect::<Vec<_>>(), [kept]);
        environment.reset(IDLE_SESSION);
        assert_eq!(environment.value(IDLE_SESSION), Some("1h"));
    }
}
