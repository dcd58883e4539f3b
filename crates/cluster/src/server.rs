//! One local PostgreSQL server in one folder.
//!
//! ```text
//! DIR/data/            PostgreSQL's own; onecopy.conf in it holds the settings given here
//! DIR/server.log       what the server says
//! DIR/server.json      port, superuser and password, so that a second start finds them
//! DIR/lock             held while a process has the folder
//! DIR/.s.PGSQL.PORT    the Unix socket, unless the path would be too long for one
//! ```

use crate::account::Account;
use crate::binaries::Binaries;
use crate::file::write_private;
use crate::ports::{free_port, is_free};
use crate::process::{self, children, is_postmaster_of};
use crate::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A Unix socket's path may have 107 bytes and a final NUL on Linux, 103 on other systems.
const SOCKET_PATH_LEN_MAX: usize = 103;
/// A log file longer than this is put aside at the next start; one older one is kept.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// How much of a log an error message may show.
const LOG_TAIL_LINES: usize = 20;
/// How long a stop may take before the next harder one is tried.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the backends of a killed postmaster may hold its shared memory before a new one gives up.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(15);
/// Starts with another port after a random one was taken between its choice and its use.
const PORT_ATTEMPTS: u32 = 5;

/// How clients prove who they are. The server listens on loopback only either way.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Auth {
    /// Any user of this machine is let in.
    #[default]
    Trust,
    /// SCRAM-SHA-256 with this password, or with a random one; [`Server::dsn`] carries it.
    Scram {
        /// The superuser's password; `None` makes one up.
        password: Option<String>,
    },
}

/// How a server is made and run.
///
/// Superuser, locale, encoding, checksums and authentication are fixed when the data is made; for a folder that
/// exists they are what they were.
#[derive(Clone, Debug)]
pub struct Options {
    /// The TCP port on 127.0.0.1; 0 takes the one of the last start, or else a free one.
    pub port: u16,
    /// The name of the superuser that `initdb` makes.
    pub superuser: String,
    /// Lines for `postgresql.conf`: name and value; the value is quoted here. Later ones win.
    pub settings: Vec<(String, String)>,
    /// The locale of the cluster's databases.
    pub locale: String,
    /// The encoding of the cluster's databases.
    pub encoding: String,
    /// Whether data pages carry checksums.
    pub checksums: bool,
    /// How clients prove who they are.
    pub auth: Auth,
    /// How long a start, recovery from a crash included, may take.
    pub start_timeout: Duration,
    /// Whether the server goes on when this process dies without stopping it. If not, a watchdog shuts it down.
    pub outlive: bool,
    /// The folder of PostgreSQL's programs; `None` finds the newest supported ones.
    pub binaries: Option<PathBuf>,
    /// Where new data folders are kept to be copied instead of made by `initdb` each time, for tests, which make
    /// hundreds. The copies share a system identifier. Servers with a password are made by `initdb` all the same.
    pub templates: Option<PathBuf>,
}

impl Default for Options {
    /// A server as PostgreSQL ships it, durable commits included; with the templates of `ONECOPY_DATA_TEMPLATES`.
    fn default() -> Options {
        Options {
            port: 0,
            superuser: "postgres".to_owned(),
            settings: Vec::new(),
            locale: "C.UTF-8".to_owned(),
            encoding: "UTF8".to_owned(),
            checksums: true,
            auth: Auth::Trust,
            start_timeout: Duration::from_secs(120),
            outlive: false,
            binaries: None,
            templates: env::var_os("ONECOPY_DATA_TEMPLATES").map(PathBuf::from),
        }
    }
}

impl Options {
    /// A replica behind onecopy: the log of commits is durable before any replica commits, so the replica itself
    /// need not wait for its disk (design 3.4). `fsync` stays on, or a crash could destroy the replica.
    #[must_use]
    pub fn replica() -> Options {
        Options::default().with("max_connections", "200").with("synchronous_commit", "off")
    }

    /// The same options with one more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Options {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same options with another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Options {
        self.port = port;
        self
    }
}

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ends all sessions, writes everything to disk: the next start needs no recovery.
    Fast,
    /// Ends at once, as if it had crashed; the next start recovers from the write-ahead log.
    Immediate,
}

/// What outlasts the process: `server.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// That of the last start, 0 before the first.
    port: u16,
    superuser: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<String>,
}

/// One local PostgreSQL server. Dropping it stops the server, and removes its folder if that was temporary.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    options: Options,
    binaries: Binaries,
    account: Account,
    saved: Saved,
    running: Option<Running>,
    /// Held for as long as this value lives, so that two processes never run one folder.
    _lock: FolderLock,
    /// Last, so that the folder goes only after the server has stopped.
    temporary: Option<TempDir>,
}

#[derive(Debug)]
struct Running {
    postmaster: Child,
    watchdog: Option<Child>,
    paused: Vec<u32>,
}

impl Server {
    /// Makes a server in a folder, or takes the one that is there. It does not run yet.
    ///
    /// # Errors
    /// When PostgreSQL is not installed, the folder cannot be used or is in use, or `initdb` fails.
    pub fn init(dir: impl AsRef<Path>, options: &Options) -> Result<Server> {
        Self::init_in(dir.as_ref(), options, None)
    }

    /// Makes and starts a server in a temporary folder, which goes with it.
    ///
    /// # Errors
    /// As [`Server::init`] and [`Server::start`].
    pub fn temporary(options: &Options) -> Result<Server> {
        let folder = temporary_folder()?;
        let dir = folder.path().to_owned();
        let mut server = Self::init_in(&dir, options, Some(folder))?;
        server.start()?;
        Ok(server)
    }

    fn init_in(dir: &Path, options: &Options, temporary: Option<TempDir>) -> Result<Server> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let dir = dir.canonicalize().map_err(Error::io("resolve", dir))?;
        let lock = lock(&dir)?;
        let data = dir.join("data");
        let saved_path = dir.join("server.json");
        let (account, binaries, saved) = if data.exists() {
            let account = Account::owning(&data)?;
            (account, binaries_for(&data, options)?, read_saved(&saved_path)?)
        } else {
            let account = Account::choose()?;
            let saved = Saved {
                port: options.port,
                superuser: options.superuser.clone(),
                password: options.auth.password()?,
            };
            (account, binaries_of(options)?, saved)
        };
        account.own(&dir)?;
        account.check_can_enter(&dir)?;
        let server = Server {
            dir,
            options: options.clone(),
            binaries,
            account,
            saved,
            running: None,
            _lock: lock,
            temporary,
        };
        if !data.exists() {
            write_private(&saved_path, &server.saved)?;
            server.make_data()?;
        }
        Ok(server)
    }

    /// Starts the server and waits until it accepts connections. A running server is left alone.
    ///
    /// A postmaster that an earlier process left behind on this folder is shut down first.
    ///
    /// # Errors
    /// [`Error::PortTaken`] for a port that was asked for; [`Error::DidNotStart`] or [`Error::StartTimeout`] with the
    /// end of the log.
    pub fn start(&mut self) -> Result<()> {
        self.launch()?;
        self.await_ready()
    }

    /// Starts the server without waiting; [`Server::await_ready`] must follow.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(crate) fn launch(&mut self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        self.reap();
        self.clear_the_way()?;
        self.choose_port()?;
        self.spawn()
    }

    /// Waits until the launched server accepts connections.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        let mut port_attempts = PORT_ATTEMPTS;
        loop {
            if self.is_ready() {
                return Ok(());
            }
            let Some(running) = &mut self.running else { return Err(self.not_running()) };
            if let Some(status) = running.postmaster.try_wait().map_err(Error::io("wait for", &self.dir))? {
                self.reap();
                self.after_failed_start(status, begin, &mut port_attempts)?;
            }
            if begin.elapsed() > self.options.start_timeout {
                return Err(self.give_up_starting());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server and waits for its end; if it does not end in a minute, it is stopped harder.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be signalled. A server that does not run is no error.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        self.ask_to_stop(how)?;
        self.await_stopped(how)
    }

    /// Sends the signal of a stop without waiting; [`Server::await_stopped`] must follow.
    pub(crate) fn ask_to_stop(&mut self, how: Stop) -> Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        running.dismiss_watchdog();
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        process::signal(running.postmaster.id(), signal)
            .map_err(Error::io("signal the server in", &self.dir))?;
        self.resume()
    }

    /// Waits for the end after [`Server::ask_to_stop`].
    pub(crate) fn await_stopped(&mut self, how: Stop) -> Result<()> {
        if self.wait_for_end(STOP_TIMEOUT)? {
            return Ok(());
        }
        if how == Stop::Fast {
            return self.stop(Stop::Immediate);
        }
        self.kill_all()
    }

    /// Stops and starts the server; its port stays.
    ///
    /// # Errors
    /// As [`Server::stop`] and [`Server::start`].
    pub fn restart(&mut self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.start()
    }

    /// SIGKILL for the postmaster alone. Its backends notice and end when they next wait; one that is busy goes on
    /// until then, and may still commit.
    ///
    /// # Errors
    /// [`Error::NotRunning`], or [`Error::Io`] when it cannot be signalled.
    pub fn kill(&mut self) -> Result<()> {
        let Some(running) = &mut self.running else { return Err(self.not_running()) };
        running.dismiss_watchdog();
        running.postmaster.kill().map_err(Error::io("kill the server in", &self.dir))?;
        self.resume()?;
        self.wait_for_end(STOP_TIMEOUT).map(drop)
    }

    /// SIGKILL for the postmaster and every process of it at once, as when the power fails (but for what the
    /// operating system still holds).
    ///
    /// # Errors
    /// As [`Server::kill`].
    pub fn kill_all(&mut self) -> Result<()> {
        let Some(running) = &mut self.running else { return Err(self.not_running()) };
        running.dismiss_watchdog();
        let postmaster = running.postmaster.id();
        // Stopped first, so that it neither forks nor reacts to the death of its children.
        let signal =
            |pid, signal| process::signal(pid, signal).map_err(Error::io("kill the server in", &self.dir));
        signal(postmaster, Signal::STOP)?;
        for child in children(postmaster) {
            signal(child, Signal::KILL)?;
        }
        signal(postmaster, Signal::KILL)?;
        self.wait_for_end(STOP_TIMEOUT).map(drop)
    }

    /// SIGSTOP for the postmaster and every process of it: the server hangs, its connections stay open.
    ///
    /// # Errors
    /// [`Error::NotRunning`], or [`Error::Io`] when it cannot be signalled.
    pub fn pause(&mut self) -> Result<()> {
        let Some(running) = &mut self.running else { return Err(self.not_running()) };
        let postmaster = running.postmaster.id();
        let mut stop = |pid| {
            running.paused.push(pid);
            process::signal(pid, Signal::STOP).map_err(Error::io("pause the server in", &self.dir))
        };
        stop(postmaster)?;
        children(postmaster).into_iter().try_for_each(stop)
    }

    /// Lets a paused server go on; one that is not paused is left alone.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be signalled.
    pub fn resume(&mut self) -> Result<()> {
        let paused =
            self.running.as_mut().map(|running| std::mem::take(&mut running.paused)).unwrap_or_default();
        paused.into_iter().rev().try_for_each(|pid| {
            process::signal(pid, Signal::CONT).map_err(Error::io("resume the server in", &self.dir))
        })
    }

    /// Whether the server's process runs (a paused one does).
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| matches!(running.postmaster.try_wait(), Ok(None)))
    }

    /// How the server has ended if it did so by itself, told once. Its process is gone for good then: until its parent
    /// has asked, the system keeps the id of a process that has ended, and by its id in `postmaster.pid` whoever starts
    /// the server again would take it for a running one.
    pub fn take_end(&mut self) -> Option<ExitStatus> {
        let status = self.running.as_mut()?.postmaster.try_wait().ok()??;
        // The id may be another process's from now on: nobody of ours may signal it any more.
        self.reap();
        Some(status)
    }

    /// The postmaster's process id, while the server was started and not stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.postmaster.id())
    }

    /// The server's folder, an absolute path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// PostgreSQL's data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The log file.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// The last `lines` lines of the log; empty if there is none.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log_path(), lines)
    }

    /// The port on 127.0.0.1: that of the last start, 0 before the first.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.saved.port
    }

    /// The address for TCP connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.saved.port).into()
    }

    /// The folder of the Unix socket, which is quicker than TCP; `None` where the path is too long for one.
    #[must_use]
    pub fn socket_dir(&self) -> Option<&Path> {
        // ".s.PGSQL.65535.lock"
        (self.dir.as_os_str().len() + 20 <= SOCKET_PATH_LEN_MAX).then_some(&*self.dir)
    }

    /// The superuser's name.
    #[must_use]
    pub fn superuser(&self) -> &str {
        &self.saved.superuser
    }

    /// The superuser's password, unless everybody is let in.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.saved.password.as_deref()
    }

    /// A libpq connection string over TCP to the database `postgres`, with the password if there is one.
    #[must_use]
    pub fn dsn(&self) -> String {
        self.dsn_of("postgres")
    }

    /// The same for another database.
    #[must_use]
    pub fn dsn_of(&self, database: &str) -> String {
        let mut dsn = format!(
            "host=127.0.0.1 port={} user={} dbname={}",
            self.saved.port,
            dsn_value(&self.saved.superuser),
            dsn_value(database)
        );
        if let Some(password) = &self.saved.password {
            let _ = write!(dsn, " password={}", dsn_value(password));
        }
        dsn
    }

    /// The programs that run it.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The user of the operating system that runs it.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// A command of this PostgreSQL (such as `pg_dump` or `pg_basebackup`) that will run as the server's user, in the
    /// server's folder, with nothing of our environment but PATH.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        command.current_dir(&self.dir).stdin(Stdio::null()).env_clear();
        for keep in ["PATH", "LD_LIBRARY_PATH", "TZDIR"] {
            if let Some(value) = env::var_os(keep) {
                command.env(keep, value);
            }
        }
        self.account.apply(&mut command);
        command
    }

    /// Makes the data beside the final place, so that a folder `data` that exists is always whole.
    fn make_data(&self) -> Result<()> {
        let unfinished = self.dir.join("data.tmp");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(Error::io("remove", &unfinished))?;
        }
        match self.template() {
            None => self.initdb(&unfinished)?,
            Some(template) if template.exists() => self.copy_data(&template, &unfinished)?,
            Some(template) => {
                self.initdb(&unfinished)?;
                self.keep_as_template(&unfinished, &template)?;
            }
        }
        let configuration = unfinished.join("postgresql.conf");
        let mut file = OpenOptions::new()
            .append(true)
            .open(&configuration)
            .map_err(Error::io("open", &configuration))?;
        file.write_all(b"\ninclude = 'onecopy.conf'\n").map_err(Error::io("write", &configuration))?;
        fs::rename(&unfinished, self.data_dir()).map_err(Error::io("rename", &unfinished))
    }

    fn initdb(&self, data: &Path) -> Result<()> {
        let mut command = self.command("initdb");
        command.arg("-D").arg(data).args(self.initdb_arguments());
        let password_file = self.dir.join("password.tmp");
        match &self.saved.password {
            None => command.arg("--auth=trust"),
            Some(password) => {
                self.write_owned(&password_file, &format!("{password}\n"))?;
                command.arg("--auth=scram-sha-256").arg("--pwfile").arg(&password_file)
            }
        };
        let made = run(&mut command, "initdb");
        if self.saved.password.is_some() {
            fs::remove_file(&password_file).map_err(Error::io("remove", &password_file))?;
        }
        made
    }

    fn initdb_arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--username={}", self.saved.superuser),
            format!("--encoding={}", self.options.encoding),
            format!("--locale={}", self.options.locale),
            "--lc-messages=C".to_owned(),
            // A data folder lost to a crash of the machine right after its making is made again; nothing is in it.
            "--no-sync".to_owned(),
        ];
        if self.options.checksums {
            arguments.push("--data-checksums".to_owned());
        } else if self.binaries.major >= 18 {
            arguments.push("--no-data-checksums".to_owned());
        }
        arguments
    }

    /// Where data like this server's is kept, or is to be: named by all that `initdb` is told.
    fn template(&self) -> Option<PathBuf> {
        let templates = self.options.templates.as_ref().filter(|_| self.saved.password.is_none())?;
        let mut hasher = DefaultHasher::new();
        (self.binaries.program("initdb"), &self.account.name, self.initdb_arguments()).hash(&mut hasher);
        Some(templates.join(format!("{:016x}", hasher.finish())))
    }

    /// Servers may be made at the same time; whoever is second throws his away.
    fn keep_as_template(&self, data: &Path, template: &Path) -> Result<()> {
        let templates = template.parent().unwrap_or(Path::new("/"));
        let folder = TempDir::new_in(templates).map_err(Error::io("make a folder in", templates))?;
        self.account.own(folder.path())?;
        let whole = folder.path().join("data");
        self.copy_data(data, &whole)?;
        match fs::rename(&whole, template) {
            Err(_) if template.exists() => Ok(()),
            renamed => renamed.map_err(Error::io("rename", &whole)),
        }
    }

    fn copy_data(&self, from: &Path, to: &Path) -> Result<()> {
        let mut command = Command::new("cp");
        command.arg("-Rp").arg(from).arg(to).current_dir("/").stdin(Stdio::null());
        self.account.apply(&mut command);
        run(&mut command, "cp")
    }

    /// Shuts down whatever server runs on the folder's data without being ours: it was started by hand after ours had
    /// ended. None is no error.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be signalled.
    pub fn stop_others(&self) -> Result<()> {
        if self.running.is_some() { Ok(()) } else { self.clear_the_way() }
    }

    /// Deals with what an earlier process left: a live postmaster is shut down, a stale pid file removed.
    fn clear_the_way(&self) -> Result<()> {
        let data = self.data_dir();
        let pid_file = data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&pid_file) else { return Ok(()) };
        let Some(pid) = text.lines().next().and_then(|line| line.trim().parse::<u32>().ok()) else {
            return Ok(()); // PostgreSQL says what is wrong with it
        };
        for signal in [Signal::INT, Signal::QUIT, Signal::KILL] {
            if !is_postmaster_of(pid, &data) {
                break;
            }
            process::signal(pid, Signal::CONT).map_err(Error::io("signal the server in", &self.dir))?;
            process::signal(pid, signal).map_err(Error::io("signal the server in", &self.dir))?;
            let begin = Instant::now();
            while is_postmaster_of(pid, &data) && begin.elapsed() < STOP_TIMEOUT {
                sleep(Duration::from_millis(10));
            }
        }
        // The id may by now belong to any other process, which PostgreSQL would take for a living postmaster.
        match fs::remove_file(&pid_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &pid_file)(error))
            }
            _ => Ok(()),
        }
    }

    /// Takes the port that was asked for, else that of the last start, else a free one.
    fn choose_port(&mut self) -> Result<()> {
        let wanted = self.options.port;
        if wanted != 0 {
            if !is_free(wanted) {
                return Err(Error::PortTaken { port: wanted });
            }
            self.saved.port = wanted;
        } else if self.saved.port == 0 || !is_free(self.saved.port) {
            self.saved.port = free_port()?;
        }
        write_private(&self.dir.join("server.json"), &self.saved)
    }

    fn spawn(&mut self) -> Result<()> {
        self.write_owned(&self.data_dir().join("onecopy.conf"), &self.configuration())?;
        let log = self.open_log()?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data_dir());
        command.stdout(log.try_clone().map_err(Error::io("open", self.log_path()))?).stderr(log);
        // A group of its own: Ctrl-C at the terminal is for us, who then stop the servers in order.
        command.process_group(0);
        let postmaster = command.spawn().map_err(Error::io("run", self.binaries.program("postgres")))?;
        let watchdog = if self.options.outlive { None } else { Some(self.spawn_watchdog(postmaster.id())?) };
        self.running = Some(Running { postmaster, watchdog, paused: Vec::new() });
        Ok(())
    }

    /// A shell that waits for its input to end, which it does when this process dies however it dies, and then
    /// shuts the server down.
    fn spawn_watchdog(&self, postmaster: u32) -> Result<Child> {
        let signal = if self.temporary.is_some() { "-QUIT" } else { "-INT" };
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            "read -r _; kill \"$1\" \"$2\"",
            "onecopy-watchdog",
            signal,
            &postmaster.to_string(),
        ]);
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        self.account.apply(&mut command);
        command.spawn().map_err(Error::io("run", "/bin/sh"))
    }

    /// What distinguishes a failed start that may be tried again from one that may not.
    fn after_failed_start(
        &mut self,
        status: ExitStatus,
        begin: Instant,
        port_attempts: &mut u32,
    ) -> Result<()> {
        let log_tail = self.log_tail(LOG_TAIL_LINES);
        let port_lost = log_tail.contains("Address already in use");
        if port_lost && self.options.port != 0 {
            return Err(Error::PortTaken { port: self.options.port });
        }
        if port_lost && *port_attempts > 0 {
            *port_attempts -= 1;
            self.saved.port = 0;
            return self.launch();
        }
        // Backends of a killed postmaster hold its shared memory until they notice that it is gone.
        if log_tail.contains("is still in use") && begin.elapsed() < LEFTOVER_TIMEOUT {
            sleep(Duration::from_millis(100));
            return self.launch();
        }
        Err(Error::DidNotStart {
            dir: self.dir.clone(),
            status: describe(status),
            log: self.log_path(),
            tail: log_tail,
        })
    }

    fn give_up_starting(&mut self) -> Error {
        let error = Error::StartTimeout {
            dir: self.dir.clone(),
            seconds: self.options.start_timeout.as_secs(),
            log: self.log_path(),
            tail: self.log_tail(LOG_TAIL_LINES),
        };
        // The caller hears why the start failed; that the end failed too would add nothing.
        let _ = self.stop(Stop::Immediate);
        error
    }

    /// Whether the postmaster that we started says in its pid file that it accepts connections (as pg_ctl looks).
    fn is_ready(&self) -> bool {
        let text = fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        let pid = lines.next().and_then(|line| line.trim().parse().ok());
        pid.is_some() && pid == self.pid() && lines.nth(6).is_some_and(|status| status.trim() == "ready")
    }

    fn wait_for_end(&mut self, timeout: Duration) -> Result<bool> {
        let begin = Instant::now();
        let mut nap = Duration::from_millis(1);
        while self.is_running() {
            if begin.elapsed() > timeout {
                return Ok(false);
            }
            sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(20));
        }
        self.reap();
        Ok(true)
    }

    /// Forgets a process that has ended.
    fn reap(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.dismiss_watchdog();
            let _ = running.postmaster.try_wait();
        }
    }

    fn configuration(&self) -> String {
        let sockets = self.socket_dir().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
        let port = self.saved.port.to_string();
        let fixed: [(&str, &str); 11] = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
            ("unix_socket_directories", &sockets),
            ("password_encryption", "scram-sha-256"),
            ("fsync", "on"),
            ("autovacuum", "on"),
            ("logging_collector", "off"),
            ("log_destination", "stderr"),
            ("log_line_prefix", "%m [%p] %q%u@%d %a "),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        let given = self.options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut text =
            "# Written by onecopy at every start; use ALTER SYSTEM for settings of your own.\n".to_owned();
        for (name, value) in fixed.into_iter().chain(given) {
            let _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
        }
        text
    }

    fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
            fs::rename(&path, self.dir.join("server.log.1")).map_err(Error::io("rename", &path))?;
        }
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let log = log.map_err(Error::io("open", &path))?;
        self.account.own(&path)?;
        Ok(log)
    }

    fn write_owned(&self, path: &Path, text: &str) -> Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::io("write", path))?;
        self.account.own(path)
    }

    fn not_running(&self) -> Error {
        Error::NotRunning { dir: self.dir.clone() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let how = if self.temporary.is_some() { Stop::Immediate } else { Stop::Fast };
        // Nobody is left to hear of a failure.
        let _ = self.stop(how);
    }
}

impl Running {
    fn dismiss_watchdog(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
    }
}

impl Auth {
    /// The password to set; made up if none is given.
    pub(crate) fn password(&self) -> Result<Option<String>> {
        match self {
            Auth::Trust => Ok(None),
            Auth::Scram { password: Some(password) } => Ok(Some(password.clone())),
            Auth::Scram { password: None } => random_password().map(Some),
        }
    }
}

/// A folder under the system's temporary one that the server's user may be given.
pub(crate) fn temporary_folder() -> Result<TempDir> {
    let parent = env::temp_dir();
    tempfile::Builder::new()
        .prefix("onecopy-")
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir_in(&parent)
        .map_err(Error::io("create a folder in", parent))
}

/// A folder that nobody else may use. It is let go by itself and not by closing the file: a process that is just being
/// started may have the file open, too, until it runs its own program.
#[derive(Debug)]
struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // If not, closing does it.
        let _unlocked = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(dir: &Path) -> Result<FolderLock> {
    let path = dir.join("lock");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = file.map_err(Error::io("open", &path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        return Err(Error::InUse { dir: dir.to_owned(), holder: format!("pid {}", holder.trim()) });
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(Error::io("write", &path))?;
    Ok(FolderLock(file))
}

pub(crate) fn read_saved(path: &Path) -> Result<Saved> {
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })
}

fn binaries_of(options: &Options) -> Result<Binaries> {
    options.binaries.as_deref().map_or_else(Binaries::find, Binaries::at)
}

/// The programs that fit data made before: only those of the same major version read it.
pub(crate) fn binaries_for(data: &Path, options: &Options) -> Result<Binaries> {
    let path = data.join("PG_VERSION");
    let found = fs::read_to_string(&path).map_err(Error::io("read", &path))?.trim().to_owned();
    let major = found.parse::<u32>().ok();
    let preferred = binaries_of(options).ok().filter(|binaries| Some(binaries.major) == major);
    let fitting = preferred.or_else(|| Binaries::find_major(major?).ok());
    fitting.ok_or(Error::OtherVersion { data: data.to_owned(), found })
}

fn run(command: &mut Command, program: &str) -> Result<()> {
    let output = command.output().map_err(Error::io("run", program))?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Program {
        program: program.to_owned(),
        status: describe(output.status),
        output: last_lines(&text, LOG_TAIL_LINES),
    })
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

fn tail(path: &Path, lines: usize) -> String {
    const WINDOW_BYTES: u64 = 64 << 10;
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(WINDOW_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    last_lines(&read().unwrap_or_default(), lines)
}

fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Quotes a value of a libpq connection string where it needs quotes.
fn dsn_value(value: &str) -> String {
    let plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && c != '\'' && c != '\\');
    if plain {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// 144 bits from the operating system, in hexadecimal digits.
fn random_password() -> Result<String> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 18];
    File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).map_err(Error::io("read", path))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_connection_string_are_quoted_where_needed() {
        assert_eq!(dsn_value("postgres"), "postgres");
        assert_eq!(dsn_value(""), "''");
        assert_eq!(dsn_value("it's a \\"), "'it\\'s a \\\\'");
    }

    #[test]
    fn last_lines_are_at_most_as_many_as_asked() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
        assert_eq!(last_lines("", 2), "");
    }
}
