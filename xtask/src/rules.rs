//! The rules: what each package may depend on and mention. ARCHITECTURE.md gives the reasons.

use crate::dependencies::Dependencies;
use crate::sources::{Mention, Source, read_folder};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

/// What was looked at, and what was found.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rules: usize,
    pub(crate) files: usize,
    pub(crate) violations: Vec<Violation>,
}

/// Something that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// `file:line`, or the package.
    place: String,
    /// What is there.
    what: String,
    /// The rule that it breaks.
    rule: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.place, self.what, self.rule)
    }
}

/// A package may not depend on these, directly or not.
struct DependencyRule {
    rule: &'static str,
    packages: &'static [&'static str],
    forbidden: &'static [&'static str],
    /// What these depend on does not count. Each needs a reason beside it.
    except_by: &'static [&'static str],
}

/// Files may not mention these outside of tests.
struct SourceRule {
    rule: &'static str,
    packages: &'static [&'static str],
    /// Files, as seen from `src`, to which the rule does not apply.
    except: &'static [&'static str],
    /// Lists of paths, each with all that is below it; or of macros and global state as [`Mention`] writes them.
    forbidden: &'static [&'static [&'static str]],
}

const ASYNC_AND_SOCKETS: &[&str] =
    &["tokio", "mio", "socket2", "async-std", "async-io", "smol", "polling", "tokio-postgres"];
const OS_RANDOMNESS: &[&str] = &["getrandom", "rand_os", "fastrand"];
const SQL_PARSERS: &[&str] = &["pg_raw_parse", "pg_query", "sqlparser"];

const DEPENDENCY_RULES: &[DependencyRule] = &[
    DependencyRule {
        rule: "core, wire, classify and log depend on no runtime and no sockets",
        packages: &["core", "wire", "classify", "log"],
        forbidden: ASYNC_AND_SOCKETS,
        except_by: &[],
    },
    DependencyRule {
        rule: "core, wire, classify and log depend on no randomness of the operating system",
        packages: &["core", "wire", "classify", "log"],
        forbidden: OS_RANDOMNESS,
        // Raft's library draws election timeouts; the log replaces each before it counts, and a test compares whole runs.
        except_by: &["raft"],
    },
];

const INPUT_OUTPUT: &[&str] = &[
    "std::net",
    "std::fs",
    "std::process",
    "std::env",
    "std::os",
    "tokio",
    "mio",
    "socket2",
    "rustix",
    "libc",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
];
/// The traits and errors of `std::io` reach nothing by themselves, but only the log's engine has a use for them.
const IO_TRAITS: &[&str] = &["std::io"];
const STANDARD_STREAMS: &[&str] = &["std::io::stdin", "std::io::stdout", "std::io::stderr"];
const CLOCK_AND_THREADS: &[&str] = &["std::time::Instant", "std::time::SystemTime", "std::thread"];
const LOCKS: &[&str] = &[
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::sync::Barrier",
    "std::sync::Once",
    "std::sync::OnceLock",
    "std::sync::mpsc",
    "parking_lot",
];
const RANDOMNESS: &[&str] = &[
    "rand::rng",
    "rand::thread_rng",
    "rand::random",
    "rand::rngs::OsRng",
    "rand::rngs::ThreadRng",
    "getrandom",
    "std::collections::hash_map::RandomState",
    "std::hash::RandomState",
];
/// Maps whose order of iteration the operating system's randomness decides.
const UNORDERED_MAPS: &[&str] = &[
    "std::collections::HashMap",
    "std::collections::HashSet",
    "hashbrown::HashMap",
    "hashbrown::HashSet",
    "hashbrown::DefaultHashBuilder",
];
/// What changes behind a shared reference. `LazyLock` alone is a constant that is computed at its first use.
const GLOBAL_STATE: &[&str] = &[
    "static mut",
    "static Mutex",
    "static RwLock",
    "static OnceLock",
    "static OnceCell",
    "static Once",
    "static Cell",
    "static RefCell",
    "static UnsafeCell",
    "static AtomicBool",
    "static AtomicU8",
    "static AtomicU16",
    "static AtomicU32",
    "static AtomicU64",
    "static AtomicUsize",
    "static AtomicI32",
    "static AtomicI64",
    "static AtomicPtr",
    "thread_local!",
    "lazy_static!",
];

/// Licences whose conditions a binary under Apache-2.0 can meet.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "PostgreSQL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The parts of the log that drive the pure engine on a real disk.
const LOG_DRIVER: &[&str] = &[
    "alone.rs",
    "disk.rs",
    "gate.rs",
    "inspect.rs",
    "log.rs",
    "shared.rs",
    "shared/state.rs",
    "shared/threads.rs",
];

const SOURCE_RULES: &[SourceRule] = &[
    SourceRule {
        rule: "core, wire and classify do no input or output",
        packages: &["core", "wire", "classify"],
        except: &[],
        forbidden: &[INPUT_OUTPUT, IO_TRAITS],
    },
    SourceRule {
        rule: "the log's engine does no input or output",
        packages: &["log"],
        except: LOG_DRIVER,
        forbidden: &[INPUT_OUTPUT, STANDARD_STREAMS],
    },
    SourceRule {
        rule: "core, wire and classify read no clock, start no thread and take no lock",
        packages: &["core", "wire", "classify"],
        except: &[],
        forbidden: &[CLOCK_AND_THREADS, LOCKS],
    },
    SourceRule {
        rule: "the log's engine reads no clock, starts no thread and takes no lock",
        packages: &["log"],
        except: LOG_DRIVER,
        forbidden: &[CLOCK_AND_THREADS, LOCKS],
    },
    SourceRule {
        rule: "what the simulator runs draws random numbers only from those that it is given",
        packages: &["core", "wire", "classify", "log", "sim", "workload"],
        except: &[],
        forbidden: &[RANDOMNESS],
    },
    SourceRule {
        rule: "what the simulator runs has no global state",
        packages: &["core", "wire", "classify", "log", "sim", "workload"],
        except: &[],
        forbidden: &[GLOBAL_STATE],
    },
    SourceRule {
        rule: "core's maps iterate in the same order in every run: map.rs gives them a fixed hasher",
        packages: &["core"],
        except: &["map.rs"],
        forbidden: &[UNORDERED_MAPS],
    },
    SourceRule {
        rule: "one place of the runtime reads the clock: clock.rs",
        packages: &["runtime"],
        except: &["clock.rs"],
        forbidden: &[&["std::time::Instant", "std::time::SystemTime", "tokio::time::Instant"]],
    },
    SourceRule {
        rule: "the simulator and the workloads take their time from virtual clocks",
        packages: &["sim", "workload"],
        except: &[],
        forbidden: &[CLOCK_AND_THREADS, &["std::net"]],
    },
    SourceRule {
        rule: "only classify parses SQL",
        packages: &["core", "wire", "log", "runtime", "sim", "workload", "bench", "cluster", "cli"],
        except: &[],
        forbidden: &[SQL_PARSERS],
    },
];

/// Checks every rule on the repository below `workspace`.
pub(crate) fn check(workspace: &Path) -> Result<Report, String> {
    let dependencies = Dependencies::read(workspace)?;
    let page = workspace.join("ARCHITECTURE.md");
    let page = fs::read_to_string(&page).map_err(|error| format!("read {}: {error}", page.display()))?;
    let sources = read_sources(workspace, &dependencies)?;

    let mut violations = directions(&dependencies, &allowed_directions(&page)?);
    violations.extend(parsers(&dependencies));
    violations.extend(licences(&dependencies));
    for rule in DEPENDENCY_RULES {
        violations.extend(dependency_rule(rule, &dependencies));
    }
    for rule in SOURCE_RULES {
        violations
            .extend(rule.packages.iter().flat_map(|package| source_rule(rule, package, workspace, &sources)));
    }
    violations.extend(protocols(workspace, &sources));
    violations.sort_by(|a, b| (&a.place, &a.what).cmp(&(&b.place, &b.what)));
    let files = sources.values().map(Vec::len).sum();
    Ok(Report { rules: DEPENDENCY_RULES.len() + SOURCE_RULES.len() + 4, files, violations })
}

/// The sources of each package in `crates`, by the name of its folder.
fn read_sources(
    workspace: &Path,
    dependencies: &Dependencies,
) -> Result<BTreeMap<String, Vec<Source>>, String> {
    let packages = dependencies.members().filter_map(short_name).filter(|package| *package != "xtask");
    let read = |package: &str| {
        let folder = workspace.join("crates").join(package).join("src");
        Ok((package.to_owned(), read_folder(&folder)?))
    };
    packages.map(read).collect()
}

/// The rows `| core | nothing |` and `| classify | core |` of the table in ARCHITECTURE.md whose head is
/// `| package | may use |`; names stand in backquotes.
fn allowed_directions(page: &str) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let table = page.lines().skip_while(|line| !line.starts_with("| package | may use")).skip(2);
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut allowed = BTreeMap::new();
    for line in table.take_while(|line| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split('|');
        let package = cells.next().map(names).unwrap_or_default();
        let used = cells.next().map(names).unwrap_or_default();
        allowed.extend(package.into_iter().map(|package| (package, used.iter().cloned().collect())));
    }
    if allowed.is_empty() {
        return Err("ARCHITECTURE.md has no table `| package | may use |`".to_owned());
    }
    Ok(allowed)
}

fn directions(dependencies: &Dependencies, allowed: &BTreeMap<String, BTreeSet<String>>) -> Vec<Violation> {
    let rule = "packages depend on each other as ARCHITECTURE.md says";
    let mut violations = Vec::new();
    for member in dependencies.members() {
        let Some(package) = short_name(member).filter(|package| *package != "xtask") else { continue };
        let Some(may) = allowed.get(package) else {
            let what = "is not in the table of ARCHITECTURE.md".to_owned();
            violations.push(Violation { place: package.to_owned(), what, rule });
            continue;
        };
        let direct = dependencies.direct(member);
        for used in direct.iter().filter_map(|name| short_name(name)).filter(|used| !may.contains(*used)) {
            violations.push(Violation {
                place: package.to_owned(),
                what: format!("depends on {used}"),
                rule,
            });
        }
    }
    violations
}

fn parsers(dependencies: &Dependencies) -> Vec<Violation> {
    let others = dependencies.members().filter(|member| *member != "onecopy-classify");
    let uses = |member: &str| {
        let direct = dependencies.direct(member);
        let parsers = SQL_PARSERS.iter().filter(move |parser| direct.contains(**parser));
        let place = member.to_owned();
        parsers.map(move |parser| Violation {
            place: place.clone(),
            what: format!("depends on {parser}"),
            rule: "only classify depends on an SQL parser",
        })
    };
    others.flat_map(|member| uses(member).collect::<Vec<_>>()).collect()
}

fn licences(dependencies: &Dependencies) -> Vec<Violation> {
    let others = dependencies.licences().into_iter().filter(|(_, licence)| !may_be_used(licence));
    let violation = |(package, licence): (&str, &str)| Violation {
        place: package.to_owned(),
        what: if licence.is_empty() { "names no licence".to_owned() } else { format!("is under {licence}") },
        rule: "what we ship is compatible with Apache-2.0",
    };
    others.map(violation).collect()
}

/// Whether an SPDX expression can be met: of what AND joins every part, of what OR joins (or, in old packages, a
/// slash) any. Deeper nesting is refused, which is safe.
fn may_be_used(licence: &str) -> bool {
    let allowed = |one: &str| LICENCES.contains(&one.trim_matches(|c| " ()".contains(c)));
    let any = |part: &str| part.replace('/', " OR ").split(" OR ").any(allowed);
    licence.split(" AND ").all(any)
}

fn dependency_rule(rule: &DependencyRule, dependencies: &Dependencies) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in rule.packages {
        let all = dependencies.all(&format!("onecopy-{package}"), rule.except_by);
        for (_, way) in rule.forbidden.iter().filter_map(|forbidden| all.get_key_value(forbidden)) {
            violations.push(Violation { place: (*package).to_owned(), what: way.clone(), rule: rule.rule });
        }
    }
    violations
}

fn source_rule(
    rule: &SourceRule,
    package: &str,
    workspace: &Path,
    sources: &BTreeMap<String, Vec<Source>>,
) -> Vec<Violation> {
    let src = workspace.join("crates").join(package).join("src");
    let exempt = |source: &Source| rule.except.iter().any(|file| source.file == src.join(file));
    let files = sources.get(package).into_iter().flatten().filter(|source| !exempt(source));
    files.flat_map(|source| mentions_of(source, rule, workspace)).collect()
}

/// The first mention of each forbidden path; the others of a file go with it.
fn mentions_of(source: &Source, rule: &SourceRule, workspace: &Path) -> Vec<Violation> {
    let first = |path: &&str| source.mentions.iter().find(|mention| is_within(&mention.what, path));
    let violation = |mention: &Mention| Violation {
        place: place(source, mention, workspace),
        what: mention.what.clone(),
        rule: rule.rule,
    };
    rule.forbidden.iter().copied().flatten().filter_map(first).map(violation).collect()
}

/// Whether a mention is the path, something below it, or a `*` that brings in the path's last segment.
fn is_within(mention: &str, path: &str) -> bool {
    let below = |mention: &str, path: &str| {
        mention.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let parent = path.rsplit_once("::").map(|(parent, _)| parent);
    below(mention, path) || parent.is_some() && mention.strip_suffix("::*") == parent
}

/// Files in the protocols' folder that are no protocol: the trait, and the list by which a driver finds one.
const NO_PROTOCOLS: &[&str] = &["mod", "by_name"];

/// No file of one protocol names another: they share building blocks, which lie outside the folder.
fn protocols(workspace: &Path, sources: &BTreeMap<String, Vec<Source>>) -> Vec<Violation> {
    let folder = workspace.join("crates/core/src/protocol");
    let core = || sources.get("core").into_iter().flatten();
    let protocol_of = |source: &Source| {
        let first = source.file.strip_prefix(&folder).ok()?.components().next()?;
        let name = Path::new(first.as_os_str()).file_stem()?.to_str()?.to_owned();
        (!NO_PROTOCOLS.contains(&name.as_str())).then_some(name)
    };
    let all: BTreeSet<String> = core().filter_map(protocol_of).collect();
    let mut violations = Vec::new();
    for (source, own) in core().filter_map(|source| Some((source, protocol_of(source)?))) {
        let names_other = |mention: &&Mention| {
            let segments: Vec<&str> = mention.what.split("::").collect();
            segments.len() > 1 && segments.iter().any(|segment| *segment != own && all.contains(*segment))
        };
        violations.extend(source.mentions.iter().filter(names_other).map(|mention| Violation {
            place: place(source, mention, workspace),
            what: mention.what.clone(),
            rule: "no protocol mentions another",
        }));
    }
    violations
}

fn place(source: &Source, mention: &Mention, workspace: &Path) -> String {
    let file = source.file.strip_prefix(workspace).unwrap_or(&source.file);
    format!("{}:{}", file.display(), mention.line)
}

/// `onecopy-core` to `core`; `None` for packages that are not ours.
fn short_name(package: &str) -> Option<&str> {
    package.strip_prefix("onecopy-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::PathBuf;

    /// A repository with one file, which breaks or keeps a rule.
    fn with_file(path: &str, mentions: &[&str]) -> BTreeMap<String, Vec<Source>> {
        let package = path.split('/').nth(1).unwrap().to_owned();
        let mentions = mentions.iter().map(|what| Mention { line: 1, what: (*what).to_owned() }).collect();
        let source = Source { file: PathBuf::from("/w").join(path), mentions };
        BTreeMap::from([(package, vec![source])])
    }

    fn violations(path: &str, mentions: &[&str]) -> Vec<Violation> {
        let sources = with_file(path, mentions);
        let package = path.split('/').nth(1).unwrap();
        let rules = SOURCE_RULES.iter().filter(|rule| rule.packages.contains(&package));
        rules.flat_map(|rule| source_rule(rule, package, Path::new("/w"), &sources)).collect()
    }

    fn broken(path: &str, mentions: &[&str]) -> Vec<String> {
        seen(violations(path, mentions))
    }

    fn rules_broken(path: &str, mention: &str) -> Vec<&'static str> {
        violations(path, &[mention]).into_iter().map(|violation| violation.rule).collect()
    }

    #[test]
    fn repository_keeps_its_rules() {
        let report = check(&crate::workspace()).unwrap();
        let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "\n{}", violations.join("\n"));
    }

    /// One violation or more a rule; none is left out.
    const PLANTED: &[(&str, &str, &str)] = &[
        ("core, wire and classify do no input", "crates/core/src/a.rs", "std::net::TcpStream"),
        ("core, wire and classify do no input", "crates/wire/src/a.rs", "std::io::stdout"),
        ("core, wire and classify do no input", "crates/wire/src/a.rs", "std::io::Read"),
        ("core, wire and classify do no input", "crates/classify/src/a.rs", "println!"),
        ("the log's engine does no input", "crates/log/src/engine.rs", "std::fs::File"),
        ("the log's engine does no input", "crates/log/src/engine.rs", "std::io::stderr"),
        ("the log's engine does no input", "crates/log/src/engine.rs", "eprintln!"),
        ("core, wire and classify read no clock", "crates/wire/src/a.rs", "std::time::Instant::now"),
        ("core, wire and classify read no clock", "crates/core/src/a.rs", "std::sync::Mutex::new"),
        ("core, wire and classify read no clock", "crates/core/src/a.rs", "std::sync::RwLock"),
        ("core, wire and classify read no clock", "crates/classify/src/a.rs", "std::sync::Condvar"),
        ("core, wire and classify read no clock", "crates/classify/src/a.rs", "parking_lot::Mutex"),
        ("the log's engine reads no clock", "crates/log/src/engine.rs", "std::time::SystemTime::now"),
        ("the log's engine reads no clock", "crates/log/src/engine.rs", "std::sync::Condvar"),
        ("what the simulator runs draws random", "crates/core/src/a.rs", "rand::rng"),
        ("what the simulator runs has no global", "crates/classify/src/a.rs", "static OnceLock"),
        ("core's maps iterate", "crates/core/src/a.rs", "std::collections::HashMap"),
        ("one place of the runtime reads", "crates/runtime/src/a.rs", "tokio::time::Instant::now"),
        ("the simulator and the workloads take", "crates/sim/src/a.rs", "std::time::SystemTime::now"),
        ("only classify parses SQL", "crates/runtime/src/a.rs", "sqlparser::parse"),
    ];

    #[test]
    fn planted_mentions_break_their_rule_and_no_rule_is_without_one() {
        for (rule, file, mention) in PLANTED {
            assert_eq!(broken(file, &[mention]), [format!("{file}:1: {mention}")], "{rule}");
            let rules = rules_broken(file, mention);
            assert!(rules.len() == 1 && rules[0].starts_with(rule), "{mention} breaks {rules:?}");
        }
        for rule in SOURCE_RULES {
            let is_planted = PLANTED.iter().any(|(planted, ..)| rule.rule.starts_with(planted));
            assert!(is_planted, "nothing is planted for: {}", rule.rule);
        }
        assert!(!broken("crates/core/src/a.rs", &["std::*"]).is_empty());
    }

    /// `core -> helper -> tokio, getrandom`, and `runtime`, which uses `core` and an SQL parser.
    fn planted_dependencies() -> Dependencies {
        let package = |name: &str| {
            let licence = if name == "helper" { "GPL-3.0" } else { "MIT" };
            json!({"id": name, "name": name, "license": licence, "targets": [{"kind": ["lib"]}]})
        };
        let node = |name: &str, used: &[&str]| {
            let edge = |to: &&str| json!({"pkg": to, "dep_kinds": [{"kind": null}]});
            json!({"id": name, "deps": used.iter().map(edge).collect::<Vec<_>>()})
        };
        let all = ["onecopy-core", "onecopy-runtime", "helper", "tokio", "getrandom", "sqlparser"];
        Dependencies::of(&json!({
            "packages": all.map(package),
            "workspace_members": ["onecopy-core", "onecopy-runtime"],
            "resolve": {"nodes": [
                node("onecopy-core", &["helper"]),
                node("onecopy-runtime", &["onecopy-core", "sqlparser"]),
                node("helper", &["tokio", "getrandom"]),
            ]},
        }))
        .unwrap()
    }

    fn seen(violations: Vec<Violation>) -> Vec<String> {
        violations.into_iter().map(|violation| format!("{}: {}", violation.place, violation.what)).collect()
    }

    #[test]
    fn planted_dependencies_are_found_directly_or_not() {
        let dependencies = planted_dependencies();
        let found = DEPENDENCY_RULES.iter().map(|rule| seen(dependency_rule(rule, &dependencies)));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [["core: onecopy-core -> helper -> tokio"], ["core: onecopy-core -> helper -> getrandom"],]
        );
        assert_eq!(seen(parsers(&dependencies)), ["onecopy-runtime: depends on sqlparser"]);
        assert_eq!(seen(licences(&dependencies)), ["helper: is under GPL-3.0"]);
    }

    #[test]
    fn planted_direction_is_found_and_so_is_a_package_that_the_table_lacks() {
        let dependencies = planted_dependencies();
        let none = BTreeSet::new();
        let allowed = BTreeMap::from([("core".to_owned(), none.clone()), ("runtime".to_owned(), none)]);
        assert_eq!(seen(directions(&dependencies, &allowed)), ["runtime: depends on core"]);
        assert_eq!(
            seen(directions(&dependencies, &BTreeMap::new())),
            [
                "core: is not in the table of ARCHITECTURE.md",
                "runtime: is not in the table of ARCHITECTURE.md"
            ]
        );
    }

    #[test]
    fn what_is_allowed_is_left_alone() {
        assert_eq!(
            broken("crates/core/src/a.rs", &["std::time::Duration", "std::network", "netstd::net"]),
            [""; 0]
        );
        assert_eq!(broken("crates/log/src/disk.rs", &["std::fs::File"]), [""; 0]);
        assert_eq!(broken("crates/log/src/engine.rs", &["std::io", "std::io::Error"]), [""; 0]);
        assert_eq!(broken("crates/runtime/src/clock.rs", &["std::time::Instant"]), [""; 0]);
        assert_eq!(broken("crates/core/src/map.rs", &["std::collections::HashMap"]), [""; 0]);
        assert_eq!(broken("crates/classify/src/a.rs", &["std::sync::Arc"]), [""; 0]);
        assert_eq!(broken("crates/runtime/src/a.rs", &["std::net::TcpStream", "static AtomicU64"]), [""; 0]);
        assert_eq!(broken("crates/core/src/a.rs", &["std::fmt::*", "crate::ids::*"]), [""; 0]);
    }

    #[test]
    fn licences_are_judged_by_their_expression() {
        assert!(may_be_used("MIT OR Apache-2.0"));
        assert!(may_be_used("MIT/Apache-2.0"));
        assert!(may_be_used("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(may_be_used("GPL-3.0 OR MIT"));
        assert!(!may_be_used("GPL-3.0"));
        assert!(!may_be_used("MIT AND GPL-3.0"));
        assert!(!may_be_used(""));
    }

    #[test]
    fn protocol_that_mentions_another_is_found() {
        let mut sources =
            with_file("crates/core/src/protocol/eager.rs", &["crate::protocol::chains::Chain", "chains"]);
        let chains =
            with_file("crates/core/src/protocol/chains/mod.rs", &["super::Role", "crate::item_locks"]);
        sources.get_mut("core").unwrap().extend(chains.into_values().flatten());
        let list = with_file(
            "crates/core/src/protocol/by_name.rs",
            &["super::chains::Chains", "super::eager::Eager"],
        );
        sources.get_mut("core").unwrap().extend(list.into_values().flatten());
        let found = protocols(Path::new("/w"), &sources);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].what, "crate::protocol::chains::Chain");
    }

    #[test]
    fn table_of_directions_is_read_from_the_page() {
        let page = "text\n\n| package | may use |\n|---|---|\n| `core` | nothing of ours |\n| `sim` | `core`, `log` |\n\nmore";
        let allowed = allowed_directions(page).unwrap();
        assert_eq!(allowed["core"], BTreeSet::new());
        assert_eq!(allowed["sim"], BTreeSet::from(["core".to_owned(), "log".to_owned()]));
        assert!(allowed_directions("nothing").is_err());
    }
}
