//! A simulated disk. It keeps what was synced and nothing else: a crash may lose, keep or tear every sector that was
//! written since, each on its own, and may show anything where a file has grown.
//!
//! It promises no more than POSIX and a device that writes a sector's bytes in place: bytes that a write did not
//! change stay as they were, also in a sector that is being written when the power fails.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::Bytes;

use crate::engine::{Action, Cause, Effect, Event, Fault};
use crate::medium::Medium;
use crate::planted::{Bug, planted};
use crate::record::SegmentNo;

const SECTOR_LEN: usize = 512;

/// Draws a number below the given one, which is at least 1. All chance comes from the caller, so runs can be repeated.
pub type Dice<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Files in memory, as the process sees them and as they would be found after a power failure.
#[derive(Clone, Default)]
pub struct SimulatedDisk {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    steps: VecDeque<Step>,
}

#[derive(Clone, Default)]
struct Inode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Bytes)>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Remove(String),
}

/// What an effect consists of; the power may fail before and after each.
#[derive(Clone)]
enum Step {
    CreateFile(String),
    Write(String, u64, Bytes),
    SyncFile(String),
    Rename(String, String),
    Unlink(String),
    SyncFolder,
    Refresh(String, u64, u64),
    Answer(Event),
}

impl SimulatedDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::default()
    }

    /// Begins to carry out an effect, after those begun before.
    pub fn start(&mut self, effect: Effect) {
        let name = effect.action().1.file_name();
        match effect {
            Effect::Create { segment, header } => {
                let temporary = format!("{name}.tmp");
                self.steps.extend([
                    Step::CreateFile(temporary.clone()),
                    Step::Write(temporary.clone(), 0, header),
                    Step::SyncFile(temporary.clone()),
                    Step::Rename(temporary, name),
                    Step::SyncFolder,
                    Step::Answer(Event::Created(segment)),
                ]);
            }
            Effect::Write { segment, offset, bytes } => {
                self.steps.extend([Step::Write(name, offset, bytes), Step::Answer(Event::Written(segment))]);
            }
            Effect::Sync { segment } => {
                self.steps.extend([Step::SyncFile(name), Step::Answer(Event::Synced(segment))]);
            }
            Effect::Refresh { segment, from, to } => {
                self.steps.extend([Step::Refresh(name, from, to), Step::Answer(Event::Refreshed(segment))]);
            }
            Effect::Delete { segment } => {
                self.steps.extend([
                    Step::Unlink(name),
                    Step::SyncFolder,
                    Step::Answer(Event::Deleted(segment)),
                ]);
            }
        }
    }

    /// Whether an effect is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Carries out the next step. Returns the event when that finishes an effect.
    pub fn step(&mut self) -> Option<Event> {
        match self.steps.pop_front()? {
            Step::Answer(event) => return Some(event),
            Step::CreateFile(name) => {
                self.inodes.insert(self.next_inode, Inode::default());
                self.change_name(NameChange::Set(name, self.next_inode));
                self.next_inode += 1;
            }
            Step::Write(name, offset, bytes) => self.inode(&name).write(offset as usize, bytes),
            Step::SyncFile(name) => self.inode(&name).sync(),
            Step::Rename(from, to) => {
                let inode = self.names[&from];
                self.change_name(NameChange::Remove(from));
                self.change_name(NameChange::Set(to, inode));
            }
            Step::Unlink(name) => self.change_name(NameChange::Remove(name)),
            Step::SyncFolder => {
                if !planted(Bug::NoFolderSync) {
                    self.durable_names = self.names.clone();
                    self.unsynced_names.clear();
                }
            }
            Step::Refresh(name, from, to) => {
                let inode = self.inode(&name);
                let bytes = Bytes::copy_from_slice(&inode.seen[from as usize..to as usize]);
                inode.write(from as usize, bytes);
            }
        }
        // The answer to what is done costs nothing: it is no point at which anything could fail.
        match self.steps.front() {
            Some(Step::Answer(_)) => self.step(),
            _ => None,
        }
    }

    /// The next step fails: of a write, a part may be done; of a sync, nobody knows what was written, and the system
    /// no longer means to write the rest. Everything behind it is dropped. `None` if nothing is under way.
    pub fn fail(&mut self, cause: Cause, dice: Dice<'_>) -> Option<Event> {
        let step = self.steps.pop_front()?;
        let (action, name) = match step {
            Step::Write(name, offset, bytes) => {
                let len = dice(bytes.len() as u64 + 1) as usize;
                self.inode(&name).write(offset as usize, bytes.slice(..len));
                (Action::Write, name)
            }
            Step::SyncFile(name) => {
                let inode = self.inode(&name);
                inode.durable = inode.after_crash(&[], dice);
                inode.unsynced.clear();
                if planted(Bug::RetrySync) {
                    return self.step();
                }
                (Action::Sync, name)
            }
            Step::CreateFile(name) | Step::Rename(name, _) => (Action::Create, name),
            Step::Refresh(name, ..) => (Action::Refresh, name),
            Step::Unlink(name) => (Action::Delete, name),
            Step::SyncFolder | Step::Answer(_) => (Action::Create, String::new()),
        };
        self.steps.clear();
        let segment = SegmentNo::from_file_name(name.trim_end_matches(".tmp")).unwrap_or_default();
        Some(Event::Failed(Fault { action, segment, cause, detail: "simulated".to_owned() }))
    }

    /// The process ends: what it wrote stays, of a write under way a part.
    pub fn kill(&mut self, dice: Dice<'_>) {
        if let Some(Step::Write(name, offset, bytes)) = self.steps.front().cloned() {
            let len = dice(bytes.len() as u64 + 1) as usize;
            self.inode(&name).write(offset as usize, bytes.slice(..len));
        }
        self.steps.clear();
        self.remove_unfinished();
    }

    /// The power fails, and comes back.
    pub fn crash(&mut self, dice: Dice<'_>) {
        self.kill(dice);
        for change in std::mem::take(&mut self.unsynced_names) {
            if dice(2) == 0 {
                apply(&mut self.durable_names, change);
            }
        }
        self.names = self.durable_names.clone();
        let stale: Vec<Vec<u8>> = self.inodes.values().map(|inode| inode.seen.clone()).collect();
        self.inodes.retain(|inode, _| self.names.values().any(|named| named == inode));
        for inode in self.inodes.values_mut() {
            let survived = inode.after_crash(&stale, dice);
            *inode = Inode { seen: survived.clone(), durable: survived, unsynced: Vec::new() };
        }
        self.remove_unfinished();
    }

    /// Turns one bit of a segment around, on the device.
    pub fn flip(&mut self, segment: SegmentNo, bit: u64) {
        let inode = self.inode(&segment.file_name());
        let (byte, mask) = ((bit / 8) as usize, 1 << (bit % 8));
        for contents in [&mut inode.seen, &mut inode.durable] {
            if let Some(byte) = contents.get_mut(byte) {
                *byte ^= mask;
            }
        }
    }

    /// Somebody removes a segment.
    pub fn remove(&mut self, segment: SegmentNo) {
        self.names.remove(&segment.file_name());
        self.durable_names.remove(&segment.file_name());
    }

    fn inode(&mut self, name: &str) -> &mut Inode {
        let inode = self.names.get(name).unwrap_or_else(|| panic!("{name} exists"));
        self.inodes.get_mut(inode).expect("a name's inode exists")
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, change.clone());
        self.unsynced_names.push(change);
    }

    /// As a driver does when it opens a folder.
    fn remove_unfinished(&mut self) {
        self.names.retain(|name, _| !name.ends_with(".tmp"));
        self.durable_names.retain(|name, _| !name.ends_with(".tmp"));
        let is_temporary = |change: &NameChange| match change {
            NameChange::Set(name, _) | NameChange::Remove(name) => name.ends_with(".tmp"),
        };
        self.unsynced_names.retain(|change| !is_temporary(change));
    }
}

fn apply(names: &mut BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Set(name, inode) => names.insert(name, inode),
        NameChange::Remove(name) => names.remove(&name),
    };
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: Bytes) {
        lay(&mut self.seen, offset, &bytes);
        self.unsynced.push((offset, bytes));
    }

    fn sync(&mut self) {
        for (offset, bytes) in self.unsynced.drain(..) {
            lay(&mut self.durable, offset, &bytes);
        }
    }

    /// What the device may hold if the power fails now. `stale`: contents that grown files may show.
    fn after_crash(&self, stale: &[Vec<u8>], dice: Dice<'_>) -> Vec<u8> {
        let written_len = self.unsynced.iter().map(|(offset, bytes)| offset + bytes.len()).max();
        let full_len = written_len.unwrap_or(0).max(self.durable.len());
        let grown_len = (full_len - self.durable.len()) as u64;
        let len = match dice(3) {
            0 => self.durable.len(),
            1 => full_len,
            _ => self.durable.len() + dice(grown_len + 1) as usize,
        };
        let mut survived = self.durable.clone();
        survived.resize(full_len, 0);
        for start in (0..full_len).step_by(SECTOR_LEN) {
            let end = (start + SECTOR_LEN).min(full_len);
            let touching: Vec<&(usize, Bytes)> = self
                .unsynced
                .iter()
                .filter(|(offset, bytes)| *offset < end && offset + bytes.len() > start)
                .collect();
            if !touching.is_empty() {
                garble(&mut survived[start..end], start, self.durable.len(), stale, dice);
                let kept = dice(touching.len() as u64 + 1) as usize;
                let torn_at = if dice(4) == 0 { start + dice(SECTOR_LEN as u64) as usize } else { end };
                for (nth, (offset, bytes)) in touching[..kept].iter().enumerate() {
                    let to = if nth + 1 == kept { end.min(torn_at) } else { end };
                    let (from, to) = ((*offset).max(start), to.min(offset + bytes.len()));
                    if from < to {
                        survived[from..to].copy_from_slice(&bytes[from - offset..to - offset]);
                    }
                }
            }
        }
        survived.truncate(len);
        survived
    }
}

/// What a grown file shows where nothing was written yet: zeros, noise, or what another file once held there.
fn garble(sector: &mut [u8], start: usize, durable_len: usize, stale: &[Vec<u8>], dice: Dice<'_>) {
    let end = start + sector.len();
    let grown_from = durable_len.clamp(start, end);
    let grown = &mut sector[grown_from - start..];
    match dice(4) {
        0 => grown.fill_with(|| dice(256) as u8),
        1 if !stale.is_empty() => {
            let old = &stale[dice(stale.len() as u64) as usize];
            if let Some(old) = old.get(grown_from..end) {
                grown.copy_from_slice(old);
            }
        }
        _ => {}
    }
}

fn lay(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if contents.len() < offset + bytes.len() {
        contents.resize(offset + bytes.len(), 0);
    }
    contents[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Medium for SimulatedDisk {
    fn segments(&mut self) -> io::Result<Vec<SegmentNo>> {
        Ok(self.names.keys().filter_map(|name| SegmentNo::from_file_name(name)).collect())
    }

    fn len(&mut self, segment: SegmentNo) -> io::Result<u64> {
        let inode = self.names.get(&segment.file_name()).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.inodes[inode].seen.len() as u64)
    }

    fn read_at(&mut self, segment: SegmentNo, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let inode = self.names.get(&segment.file_name()).ok_or(io::ErrorKind::NotFound)?;
        let seen = &self.inodes[inode].seen;
        let from = (offset as usize).min(seen.len());
        let len = buffer.len().min(seen.len() - from);
        buffer[..len].copy_from_slice(&seen[from..from + len]);
        Ok(len)
    }
}
