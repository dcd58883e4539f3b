//! What a Rust source file mentions outside of its tests: paths, with `use` resolved, macros that keep state or print,
//! and global state.
//!
//! The file is read as tokens, so comments and strings do not count, and what macros contain does.

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Something that a file mentions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mention {
    /// The line, from 1.
    pub(crate) line: usize,
    /// `std::time::Instant::now`, `std::net::*`, `println!`, or `static mut` and the like.
    pub(crate) what: String,
}

/// One source file without its tests.
#[derive(Debug)]
pub(crate) struct Source {
    /// Where it is.
    pub(crate) file: PathBuf,
    /// What it mentions, in the order of the file.
    pub(crate) mentions: Vec<Mention>,
}

/// Reads every source file below a folder, but for those that only tests include.
pub(crate) fn read_folder(folder: &Path) -> Result<Vec<Source>, String> {
    let mut files = Vec::new();
    collect_files(folder, &mut files)?;
    files.sort();
    let mut parsed = Vec::new();
    let mut of_tests = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| format!("read {}: {error}", file.display()))?;
        let scan = Scan::of(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        of_tests.extend(scan.test_modules.iter().flat_map(|name| module_places(&file, name)));
        parsed.push(Source { file, mentions: scan.mentions() });
    }
    parsed.retain(|source| !of_tests.iter().any(|place| source.file.starts_with(place)));
    Ok(parsed)
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("read {}: {error}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Where the module `name` declared in `file` may lie: as a file or as a folder.
fn module_places(file: &Path, name: &str) -> [PathBuf; 2] {
    let parent = file.parent().unwrap_or(Path::new(""));
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let base = if matches!(stem, "lib" | "main" | "mod") { parent.to_owned() } else { parent.join(stem) };
    [base.join(format!("{name}.rs")), base.join(name)]
}

/// Macros that keep global state, or print.
const MACROS: &[&str] = &["thread_local", "lazy_static", "print", "println", "eprint", "eprintln", "dbg"];

/// A file's tokens, sorted out.
#[derive(Default)]
struct Scan {
    /// Paths as written, each with its line; a `use` tree is written out.
    paths: Vec<(usize, Vec<String>)>,
    /// What a first segment stands for after `use`.
    names: BTreeMap<String, Vec<String>>,
    /// Global state and macros: what no path names.
    others: Vec<Mention>,
    test_modules: Vec<String>,
}

impl Scan {
    fn of(text: &str) -> Result<Scan, String> {
        let tokens: TokenStream = text.parse().map_err(|error| format!("not Rust: {error}"))?;
        let mut scan = Scan::default();
        scan.stream(tokens);
        Ok(scan)
    }

    fn mentions(&self) -> Vec<Mention> {
        let written_out = |path: &[String]| match self.names.get(&path[0]) {
            Some(full) if full.as_slice() != path => [full.as_slice(), &path[1..]].concat().join("::"),
            _ => path.join("::"),
        };
        let paths = self.paths.iter().map(|(line, path)| Mention { line: *line, what: written_out(path) });
        let all: BTreeSet<Mention> = paths.chain(self.others.iter().cloned()).collect();
        all.into_iter().collect()
    }

    fn stream(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' => self.attribute(&tokens, at),
                // The lifetime 'static, or another.
                TokenTree::Punct(punct) if punct.as_char() == '\'' => at + 2,
                TokenTree::Ident(word) if word == "use" => self.use_declaration(&tokens, at + 1),
                TokenTree::Ident(word) if word == "static" => self.static_item(&tokens, at),
                TokenTree::Ident(_) => self.path(&tokens, at),
                TokenTree::Group(group) => {
                    self.stream(group.stream());
                    at + 1
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => at + 1,
            };
        }
    }

    /// Skips an attribute, and with `#[cfg(test)]` or `#[test]` the item behind it.
    fn attribute(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let Some(group) = bracket(tokens.get(at + 1)) else { return at + 1 };
        let text: String = group.stream().to_string().split_whitespace().collect();
        let of_test = text == "test" || text == "cfg(test)" || text.starts_with("cfg(all(test,");
        if of_test { self.test_item(tokens, at + 2) } else { at + 2 }
    }

    /// Skips one item: to its body, or to its semicolon.
    fn test_item(&mut self, tokens: &[TokenTree], mut at: usize) -> usize {
        let start = at;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
                TokenTree::Punct(punct) if punct.as_char() == ';' => break,
                _ => {}
            }
        }
        let item = &tokens[start..at];
        let name = item.windows(2).find_map(|pair| match pair {
            [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "mod" => Some(name.to_string()),
            _ => None,
        });
        let elsewhere = matches!(item.last(), Some(TokenTree::Punct(_)));
        self.test_modules.extend(name.filter(|_| elsewhere));
        at
    }

    fn use_declaration(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let rest = &tokens[at..];
        let is_semicolon =
            |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';');
        let length = rest.iter().position(is_semicolon).unwrap_or(rest.len());
        self.use_tree(&rest[..length], &[]);
        at + length
    }

    /// `a::b`, `a::{b, c}`, `a::*` or `a as b` behind the prefix that encloses it.
    fn use_tree(&mut self, tokens: &[TokenTree], prefix: &[String]) {
        let mut path = prefix.to_vec();
        let mut name = None;
        let mut line = 0;
        for (index, token) in tokens.iter().enumerate() {
            line = line.max(token.span().start().line);
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = tokens.get(index + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => path.push("*".to_owned()),
                TokenTree::Group(group) => return self.use_group(group, &path),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if let Some(last) = path.last().cloned() {
            self.names.insert(name.unwrap_or(last), path.clone());
            self.paths.push((line, path));
        }
    }

    fn use_group(&mut self, group: &Group, prefix: &[String]) {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
        tokens.split(is_comma).filter(|tree| !tree.is_empty()).for_each(|tree| self.use_tree(tree, prefix));
    }

    /// `static mut`, and a `static` whose type can change behind a shared reference.
    fn static_item(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let rest = &tokens[at + 1..];
        let ends = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if matches!(punct.as_char(), '=' | ';'));
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        let words = words_of(&rest[..length]);
        let changes = |word: &String| {
            let kinds = ["Mutex", "RwLock", "Atomic", "Once", "Lazy", "Cell", "RefCell", "UnsafeCell"];
            word == "mut" || kinds.iter().any(|kind| word.starts_with(kind))
        };
        let line = tokens[at].span().start().line;
        let mentions = words.iter().filter(|word| changes(word));
        self.others.extend(mentions.map(|word| Mention { line, what: format!("static {word}") }));
        at + 1
    }

    fn path(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let line = tokens[at].span().start().line;
        let mut path = Vec::new();
        let mut next = at;
        while let Some(TokenTree::Ident(word)) = tokens.get(next) {
            path.push(word.to_string());
            next += 1;
            if !is_path_separator(tokens, next) {
                break;
            }
            next += 2;
        }
        let is_macro = matches!(tokens.get(next), Some(TokenTree::Punct(punct)) if punct.as_char() == '!');
        let name = path.last().map(String::as_str).unwrap_or_default();
        if is_macro && MACROS.contains(&name) {
            self.others.push(Mention { line, what: format!("{name}!") });
        }
        self.paths.push((line, path));
        next
    }
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |token: Option<&TokenTree>| match token {
        Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => Some(punct.spacing()),
        _ => None,
    };
    colon(tokens.get(at)) == Some(Spacing::Joint) && colon(tokens.get(at + 1)).is_some()
}

fn bracket(token: Option<&TokenTree>) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => Some(group),
        _ => None,
    }
}

fn words_of(tokens: &[TokenTree]) -> Vec<String> {
    let mut words = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Group(group) => {
                words.extend(words_of(&group.stream().into_iter().collect::<Vec<_>>()))
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentions(text: &str) -> Vec<String> {
        Scan::of(text).unwrap().mentions().into_iter().map(|mention| mention.what).collect()
    }

    #[track_caller]
    fn check(text: &str, what: &str, expected: bool) {
        let found = mentions(text);
        assert_eq!(found.iter().any(|mention| mention == what), expected, "{what} in {found:?}");
    }

    #[test]
    fn paths_are_found_however_they_are_written() {
        check("fn f() { std::time::Instant::now(); }", "std::time::Instant::now", true);
        check("fn f() { ::std::thread::sleep(d) }", "std::thread::sleep", true);
        check("use std::{fmt, net::{IpAddr, TcpStream}};", "std::net::TcpStream", true);
        check("use std::time; fn f() { time::SystemTime::now() }", "std::time::SystemTime::now", true);
        check("use std::thread as t; fn f() { t::spawn(g) }", "std::thread::spawn", true);
        check(
            "use std::time::{self, Duration}; fn f() { time::Instant::now() }",
            "std::time::Instant::now",
            true,
        );
        check("use std::net::*;", "std::net::*", true);
        check("fn f() { vec![std::fs::read(p)] }", "std::fs::read", true);
        check("macro_rules! m { () => { std::env::var(x) } }", "std::env::var", true);
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        check("// std::net::TcpStream\n/// std::net::TcpStream\nfn f() {}", "std::net::TcpStream", false);
        check("fn f() { \"std::net::TcpStream\" }", "std::net::TcpStream", false);
        check("#[cfg(test)] mod tests { use std::net::TcpStream; }", "std::net::TcpStream", false);
        check(
            "#[test] fn f() { std::net::TcpStream::connect(a) } fn g() {}",
            "std::net::TcpStream::connect",
            false,
        );
        check("#[cfg(test)] mod t {} fn g() { std::fs::read(p) }", "std::fs::read", true);
        check("#[cfg(unix)] fn g() { std::fs::read(p) }", "std::fs::read", true);
    }

    #[test]
    fn global_state_is_found_and_constants_are_not() {
        check("static mut COUNT: u32 = 0;", "static mut", true);
        check("static COUNT: AtomicU64 = AtomicU64::new(0);", "static AtomicU64", true);
        check("static NAMES: std::sync::Mutex<Vec<u8>> = x;", "static Mutex", true);
        check("static NAMES: LazyLock<Mutex<u8>> = x;", "static Mutex", true);
        check("thread_local! { static X: u32 = 0; }", "thread_local!", true);
        assert_eq!(mentions("static NAMES: [&'static str; 1] = [\"a\"];"), ["NAMES", "str"]);
        check("fn f(x: &'static Mutex<u8>) {}", "static Mutex", false);
    }

    #[test]
    fn macros_that_print_are_found_and_their_names_alone_are_not() {
        check("fn f() { println!(\"x\") }", "println!", true);
        check("fn f() { std::eprintln!(\"x\") }", "eprintln!", true);
        check("macro_rules! m { () => { dbg!(x) } }", "dbg!", true);
        check("fn print() {} fn f() { print() }", "print!", false);
    }

    #[test]
    fn files_of_test_modules_are_named_by_their_declaration() {
        let scan = Scan::of("#[cfg(test)]\nmod tests;\nmod other;").unwrap();
        assert_eq!(scan.test_modules, ["tests"]);
        assert_eq!(module_places(Path::new("src/lib.rs"), "tests")[0], Path::new("src/tests.rs"));
        assert_eq!(module_places(Path::new("src/a.rs"), "tests")[1], Path::new("src/a/tests"));
        assert_eq!(module_places(Path::new("src/a/mod.rs"), "tests")[0], Path::new("src/a/tests.rs"));
    }
}
