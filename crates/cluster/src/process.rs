//! Processes of the operating system, found and signalled by their ids.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sends a signal; a process that is gone is no error.
pub(crate) fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = to_pid(pid) else { return Ok(()) };
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a process runs that was started as `postgres -D data`; a zombie does not run.
pub(crate) fn is_postmaster_of(pid: u32, data: &Path) -> bool {
    let alive = to_pid(pid).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    alive && arguments(pid).iter().any(|argument| Path::new(argument) == data)
}

/// The direct children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    processes().into_iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid).collect()
}

/// Every process with its parent; a process that ends while we look is left out.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return processes_by_ps() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        Some((pid, parent_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
    })
    .collect()
}

/// "123 (name with spaces and ) maybe) S 1 ...": the parent is the second field after the last parenthesis.
fn parent_in_stat(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn processes_by_ps() -> Vec<(u32, u32)> {
    let lines = ps(&["-A", "-o", "pid=,ppid="]);
    let pair = |line: &str| {
        let mut fields = line.split_whitespace().map(str::parse);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    };
    lines.lines().filter_map(pair).collect()
}

fn arguments(pid: u32) -> Vec<String> {
    match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(bytes) => {
            bytes.split(|b| *b == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
        }
        Err(_) if Path::new("/proc/self").exists() => Vec::new(),
        Err(_) => {
            ps(&["-p", &pid.to_string(), "-o", "command="]).split_whitespace().map(str::to_owned).collect()
        }
    }
}

fn ps(args: &[&str]) -> String {
    let output = Command::new("ps").args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_behind_a_name_with_spaces_and_parentheses() {
        assert_eq!(parent_in_stat("12 (a) b (c) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent_in_stat("garbage"), None);
    }

    #[test]
    fn a_started_process_is_among_our_children() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(!is_postmaster_of(child.id(), Path::new("/some/data")));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
