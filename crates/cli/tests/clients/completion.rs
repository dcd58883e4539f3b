//! psql's completion of names, by a terminal: what it offers comes from catalogue queries of its own.

use super::{Servers, installed, transcript};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// psql at a terminal.
struct Terminal {
    psql: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// What the screen showed since the last [`Terminal::expect`].
    shown: String,
}

impl Terminal {
    fn open(dsn: &str) -> Terminal {
        let main: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        let end = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).unwrap());
        let psql = installed("psql", "postgresql-client")
            .args(["-X", "-d", dsn])
            .args(["-v", "PROMPT1=ready> ", "-v", "PROMPT2=more> "])
            .env("TERM", "dumb")
            .env("INPUTRC", "/dev/null")
            .env("PSQL_HISTORY", "/dev/null")
            .env("PAGER", "cat")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(main);
        let mut reader = keys.try_clone().unwrap();
        let (sender, screen) = channel();
        // Ends with an error when psql has closed its end.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { psql, keys, screen, shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this, and forgets what was before it.
    fn expect(&mut self, text: &str) {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            let left = Duration::from_secs(60).saturating_sub(begin.elapsed());
            match self.screen.recv_timeout(left) {
                // Bells and carriage returns come and go with the terminal's library.
                Ok(bytes) => self
                    .shown
                    .extend(String::from_utf8_lossy(&bytes).chars().filter(|c| !"\x07\r".contains(*c))),
                Err(_) => panic!("psql never showed {text:?}, but {:?}", self.shown),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

#[test]
fn psql_completes_names_of_tables_columns_and_schemas() {
    let servers = Servers::shared();
    let make = "CREATE SCHEMA completion; \
                CREATE TABLE completion.accounting_entries (entry_number int PRIMARY KEY, amount int); \
                INSERT INTO completion.accounting_entries VALUES (1, 4711)";
    transcript(installed("psql", "postgresql-client").args(["-X", "-q", "-c", make, "-d", servers.dsn()]));
    let mut terminal = Terminal::open(servers.dsn());
    terminal.expect("ready> ");
    terminal.press("SET search_path = completion;\n");
    terminal.expect("SET\n");
    terminal.expect("ready> ");
    terminal.press("SELECT * FROM acc\t");
    terminal.expect("SELECT * FROM accounting_entries ");
    terminal.press(";\n");
    terminal.expect("1 |   4711");
    terminal.expect("ready> ");
    terminal.press("SELECT * FROM comp\t");
    terminal.expect("SELECT * FROM completion.");
    terminal.press("acc\t");
    terminal.expect("accounting_entries ");
    terminal.press("WHERE ent\t");
    terminal.expect("WHERE entry_number ");
    terminal.press("= 1;\n");
    terminal.expect("1 |   4711");
    terminal.expect("ready> ");
    terminal.press("UPDATE acc\t");
    terminal.expect("UPDATE accounting_entries ");
    terminal.press("SET am\t");
    terminal.expect("SET amount ");
    terminal.press("= 4712;\n");
    terminal.expect("UPDATE 1\n");
    terminal.press("\\d acc\t");
    terminal.expect("\\d accounting_entries");
    terminal.press("\n");
    terminal.expect("\"accounting_entries_pkey\" PRIMARY KEY, btree (entry_number)");
    servers.assert_identical();
}
