//! Control groups of the kernel that hold processes to a part of a processor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cpu;

/// Over which time a quota is counted: short beside what a customer's pause takes, so that a server is slow rather than held, and long
/// enough for several statements at once. With 20 ms, of which a twentieth is 1 ms, each statement found caches cold and cost up to
/// half as much again.
const PERIOD_US: u64 = 50_000;
/// The least quota that the kernel takes.
const QUOTA_MIN_US: u64 = 1_000;
/// How long it may take until processes that were killed have left their group.
const EMPTY_MAX: Duration = Duration::from_secs(5);

/// Why there are no groups to be had: for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unavailable(String);

/// Where groups can be made: below the group of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// Version 1: the folders of the controllers `cpu` and `cpuacct`, which may be one.
    V1 { cpu: PathBuf, account: PathBuf },
    /// Version 2.
    V2 { dir: PathBuf },
}

impl Hierarchy {
    /// Finds where groups with a quota can be made, by making one.
    pub(crate) fn find() -> Result<Hierarchy, Unavailable> {
        let unreadable = |file: &str, error: io::Error| Unavailable(format!("read {file}: {error}"));
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| unreadable("/proc/mounts", error))?;
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(|error| unreadable("/proc/self/cgroup", error))?;
        let found = Hierarchy::of(&mounts, &own).ok_or_else(|| {
            Unavailable("this machine has no control groups with the controller cpu mounted".to_owned())
        })?;
        CpuGroup::create(&found, "probe", Some(0.5))?;
        Ok(found)
    }

    fn of(mounts: &str, own: &str) -> Option<Hierarchy> {
        let v1 = |controller: &str| {
            let mount = mounts.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let [_, dir, "cgroup", options, ..] = fields[..] else { return None };
                options.split(',').any(|option| option == controller).then_some(dir)
            })?;
            let of = |line: &str| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers.split(',').any(|each| each == controller).then(|| path.to_owned())
            };
            let path = own.lines().find_map(of)?;
            Some(Path::new(mount).join(path.trim_start_matches('/')))
        };
        if let (Some(cpu), Some(account)) = (v1("cpu"), v1("cpuacct")) {
            return Some(Hierarchy::V1 { cpu, account });
        }
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, dir, "cgroup2", ..] = fields[..] else { return None };
            Some(dir)
        })?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(Hierarchy::V2 { dir: Path::new(mount).join(path.trim_start_matches('/')) })
    }
}

/// A group of processes with a quota of CPU time. Dropping it lets whoever is left in it go, and removes it.
#[derive(Debug)]
pub(crate) struct CpuGroup {
    hierarchy: Hierarchy,
    name: String,
}

impl CpuGroup {
    /// Makes a group; its processes together get so much of one processor, or all that they can if there is no cap.
    pub(crate) fn create(
        hierarchy: &Hierarchy,
        name: &str,
        cap: Option<f64>,
    ) -> Result<CpuGroup, Unavailable> {
        // Names must not meet, within a process and beside another one.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("onecopy-bench-{}-{number}-{name}", std::process::id());
        let group = CpuGroup { hierarchy: hierarchy.clone(), name };
        for dir in group.dirs() {
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Unavailable(format!("make the control group {}: {error}", dir.display())));
                }
                _ => {}
            }
        }
        group.set_cap(cap)?;
        Ok(group)
    }

    /// Changes the cap; without one its processes do what they can.
    pub(crate) fn set_cap(&self, cap: Option<f64>) -> Result<(), Unavailable> {
        let (period_us, quota_us) = quota_us(cap);
        match &self.hierarchy {
            Hierarchy::V1 { cpu, .. } => {
                let dir = cpu.join(&self.name);
                write(&dir.join("cpu.cfs_period_us"), &period_us.to_string())?;
                let quota = quota_us.map_or("-1".to_owned(), |quota| quota.to_string());
                write(&dir.join("cpu.cfs_quota_us"), &quota)
            }
            Hierarchy::V2 { dir } => {
                let limit = dir.join(&self.name).join("cpu.max");
                if !limit.exists() {
                    // Whoever owns this group may hand the controller on.
                    write(&dir.join("cgroup.subtree_control"), "+cpu")?;
                }
                let quota = quota_us.map_or("max".to_owned(), |quota| quota.to_string());
                write(&limit, &format!("{quota} {period_us}"))
            }
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs = match &self.hierarchy {
            Hierarchy::V1 { cpu, account } => vec![cpu.join(&self.name), account.join(&self.name)],
            Hierarchy::V2 { dir } => vec![dir.join(&self.name)],
        };
        dirs.dedup();
        dirs
    }

    /// Puts a process and all that it has started into the group. What they start later is born there.
    pub(crate) fn add_tree(&self, root: u32) -> Result<(), Unavailable> {
        // Somebody who was not there yet may have started another one meanwhile.
        loop {
            let inside = members(&self.dirs()[0]);
            let outside: Vec<u32> = cpu::tree(root).into_iter().filter(|pid| !inside.contains(pid)).collect();
            if outside.is_empty() {
                return Ok(());
            }
            for pid in outside {
                for dir in self.dirs() {
                    move_to(&dir, pid)?;
                }
            }
        }
    }

    /// Keeps its processes, and what they start later, on one processor: of those that this process may use the `place`-th, counted round.
    ///
    /// The kernel hands a quota to processors in slices of some milliseconds, more than a small one has in a period. So of a group
    /// whose processes run on several processors one may have all of it, while those on the others are held.
    pub(crate) fn pin(&self, place: usize) -> Result<(), Unavailable> {
        let usable = sched_getaffinity(None)
            .map_err(|error| Unavailable(format!("ask which processors there are: {error}")))?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number)).collect();
        let mut only = CpuSet::new();
        only.set(usable[place % usable.len()]);
        let mut pinned = Vec::new();
        // Somebody who was not there yet may have been started from elsewhere meanwhile.
        loop {
            let inside = members(&self.dirs()[0]);
            let new: Vec<u32> = inside.into_iter().filter(|pid| !pinned.contains(pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                match sched_setaffinity(Pid::from_raw(pid as i32), &only) {
                    // It has ended.
                    Ok(()) | Err(Errno::SRCH) => pinned.push(pid),
                    Err(error) => {
                        return Err(Unavailable(format!("keep process {pid} on one processor: {error}")));
                    }
                }
            }
        }
    }

    /// CPU time that its processes have spent in it, those that have ended included.
    pub(crate) fn spent(&self) -> Result<Duration, Unavailable> {
        let read = |path: PathBuf| {
            fs::read_to_string(&path)
                .map_err(|error| Unavailable(format!("read {}: {error}", path.display())))
        };
        let spent = match &self.hierarchy {
            Hierarchy::V1 { account, .. } => {
                let text = read(account.join(&self.name).join("cpuacct.usage"))?;
                text.trim().parse().ok().map(Duration::from_nanos)
            }
            Hierarchy::V2 { dir } => {
                let text = read(dir.join(&self.name).join("cpu.stat"))?;
                let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
                usage.and_then(|usage| usage.trim().parse().ok()).map(Duration::from_micros)
            }
        };
        spent.ok_or_else(|| Unavailable(format!("the control group {} does not say its CPU time", self.name)))
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        for dir in self.dirs() {
            let parent = dir.parent().unwrap_or(Path::new("/")).to_owned();
            // A process that is ending cannot be moved, and is gone soon.
            while fs::remove_dir(&dir).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                if begin.elapsed() > EMPTY_MAX {
                    eprintln!("the control group {} could not be removed: use rmdir", dir.display());
                    break;
                }
                for pid in members(&dir) {
                    // It may have ended.
                    let _ = move_to(&parent, pid);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The period in which a group with such a cap has its quota, in microseconds.
pub(crate) fn period_us(cap: f64) -> u64 {
    quota_us(Some(cap)).0
}

/// The period, and the quota in it where there is a cap.
fn quota_us(cap: Option<f64>) -> (u64, Option<u64>) {
    let Some(cap) = cap else { return (PERIOD_US, None) };
    let quota_us = ((PERIOD_US as f64 * cap).round() as u64).max(QUOTA_MIN_US);
    ((quota_us as f64 / cap).round() as u64, Some(quota_us))
}

/// The processes in a group's folder; none if it is gone.
fn members(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A process that has ended meanwhile is no error.
fn move_to(dir: &Path, pid: u32) -> Result<(), Unavailable> {
    let path = dir.join("cgroup.procs");
    match fs::write(&path, pid.to_string()) {
        Err(_) if !Path::new("/proc").join(pid.to_string()).exists() => Ok(()),
        done => done.map_err(|error| {
            Unavailable(format!("put process {pid} into the control group {}: {error}", dir.display()))
        }),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Unavailable> {
    fs::write(path, text)
        .map_err(|error| Unavailable(format!("write {text} into {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn controllers_are_found_where_they_are_mounted_below_the_own_group() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "5:cpuset:/\n4:cpu,cpuacct:/jobs/7\n0::/else\n";
        let both = PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/jobs/7");
        let found = Hierarchy::of(mounts, own);
        assert_eq!(found, Some(Hierarchy::V1 { cpu: both.clone(), account: both }));

        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let dir = PathBuf::from("/sys/fs/cgroup/user.slice");
        assert_eq!(Hierarchy::of(mounts, "0::/user.slice\n"), Some(Hierarchy::V2 { dir }));
        assert_eq!(Hierarchy::of("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }

    #[test]
    fn small_caps_have_longer_periods_and_no_quota_that_the_kernel_refuses() {
        assert_eq!(quota_us(Some(0.1)), (50_000, Some(5_000)));
        assert_eq!(quota_us(Some(0.01)), (100_000, Some(1_000)));
        assert_eq!(quota_us(None), (50_000, None));
    }

    /// A shell; one that was started so does nothing but count, in a child of its own.
    struct Busy(Child);

    impl Busy {
        fn start() -> Busy {
            let mut command = Command::new("sh");
            command.args(["-c", "(while :; do :; done) & wait"]).stdout(Stdio::null()).stderr(Stdio::null());
            Busy(command.spawn().unwrap())
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            for pid in cpu::tree(self.0.id()).into_iter().rev() {
                let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_group_is_kept_on_one_processor_with_what_it_starts_later() {
        let hierarchy = match Hierarchy::find() {
            Ok(hierarchy) => hierarchy,
            Err(why) => return eprintln!("not tested: {why}"),
        };
        let group = CpuGroup::create(&hierarchy, "test", None).unwrap();
        let command = "read line; sleep 60 & echo; wait";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut shell = Busy(shell);
        group.add_tree(shell.0.id()).unwrap();
        for place in [0, 1] {
            group.pin(place).unwrap();
        }
        shell.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        shell.0.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let tree = cpu::tree(shell.0.id());
        assert_eq!(tree.len(), 2);
        let on = |pid: &u32| sched_getaffinity(Pid::from_raw(*pid as i32)).unwrap();
        assert!(tree.iter().all(|pid| on(pid).count() == 1));
        assert_eq!(on(&tree[0]), on(&tree[1]));
    }

    #[test]
    fn a_tree_is_held_back_and_counted_and_its_group_goes_with_it() {
        let hierarchy = match Hierarchy::find() {
            Ok(hierarchy) => hierarchy,
            Err(why) => return eprintln!("not tested: {why}"),
        };
        let group = CpuGroup::create(&hierarchy, "test", Some(0.1)).unwrap();
        let dirs = group.dirs();
        let shell = Busy::start();
        group.add_tree(shell.0.id()).unwrap();
        let tree = cpu::tree(shell.0.id());
        assert_eq!(members(&dirs[0]).len(), tree.len());
        let stat = match &hierarchy {
            Hierarchy::V1 { cpu, .. } => cpu,
            Hierarchy::V2 { dir } => dir,
        };
        let stat = stat.join(&group.name).join("cpu.stat");
        let held_back = || {
            let text = fs::read_to_string(&stat).unwrap();
            let count = text.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
            count.parse::<u64>().unwrap()
        };
        // It never wants less than it may have.
        while held_back() < 3 || group.spent().unwrap() < Duration::from_millis(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(group);
        assert!(dirs.iter().all(|dir| !dir.exists()));
    }
}
