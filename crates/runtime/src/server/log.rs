//! The log as the rest of a server sees it: decisions go there, and are read again for replicas that need them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use onecopy_core::{Csn, Epoch};
use onecopy_log::{AppendError, Log, PayloadId, Record as LogRecord, Seq};
use parking_lot::Mutex;

use crate::agent::History;
use crate::ancestry::{self, Stranger};
use crate::postgres::progress::Position;
use crate::scheduler::Decisions;

pub struct LogDecisions {
    pub log: Arc<Log>,
    pub epoch: Epoch,
}

/// Bytes of one record of the log; a longer body goes ahead of its decision in chunks. The first one holds the head of the
/// body, so that its origin can be read from there.
const CHUNK_LEN: usize = 8 * 1024 * 1024;

impl LogDecisions {
    /// Appends one, in as many records as it takes; it is not written before somebody wakes the log.
    ///
    /// # Errors
    /// Why it stands in no log.
    pub fn append_whole(&self, csn: Csn, mut body: Bytes) -> Result<(), AppendError> {
        if body.len() <= CHUNK_LEN {
            return self.log.append_quietly(LogRecord::commit(self.epoch, csn, body)).map(drop);
        }
        let payload = PayloadId(csn.0);
        let mut chunks = 0;
        while body.len() > CHUNK_LEN {
            let chunk = body.split_to(CHUNK_LEN);
            self.log.append_quietly(LogRecord::payload(self.epoch, payload, chunks, chunk))?;
            chunks += 1;
        }
        let decision = LogRecord::commit_with_payload(self.epoch, csn, payload, chunks, body);
        self.log.append_quietly(decision).map(drop)
    }
}

impl Decisions for LogDecisions {
    fn append(&self, csn: Csn, body: Bytes) {
        match self.append_whole(csn, body) {
            Ok(()) => {}
            // Another node leads: what waits for this commit is about to end.
            Err(error @ AppendError::NotLeading { .. }) => tracing::info!(%error, %csn, "not decided"),
            // Nothing is acknowledged that is not durable: the transaction waits, and so does everything after it.
            Err(error) => tracing::error!(%error, %csn, "append to the commit log"),
        }
    }

    fn wake(&self) {
        self.log.wake();
    }
}

pub struct LogHistory {
    log: Arc<Log>,
    epoch: Epoch,
    /// Catching up reads in order: the reader is kept.
    reader: Mutex<Option<(Csn, onecopy_log::Reader)>>,
}

impl LogHistory {
    pub fn new(log: Arc<Log>, epoch: Epoch) -> LogHistory {
        LogHistory { log, epoch, reader: Mutex::new(None) }
    }
}

impl History for LogHistory {
    fn read(&self, csn: Csn) -> std::io::Result<Option<(u64, Bytes)>> {
        let mut kept = self.reader.lock();
        let mut reader = match kept.take() {
            Some((next, reader)) if next == csn => reader,
            _ => self.log.read_from(csn).map_err(std::io::Error::other)?,
        };
        while let Some(entry) = reader.try_next().map_err(std::io::Error::other)? {
            if entry.record.csn == csn && entry.record.kind == onecopy_log::Kind::COMMIT {
                let epoch = entry.record.epoch.0;
                let mut body = BytesMut::new();
                if entry.record.payload.is_some() {
                    for chunk in reader.payload_of(&entry.record).map_err(std::io::Error::other)? {
                        body.extend_from_slice(&chunk.map_err(std::io::Error::other)?);
                    }
                }
                *kept = Some((csn.next(), reader));
                if body.is_empty() {
                    return Ok(Some((epoch, entry.record.body)));
                }
                body.extend_from_slice(&entry.record.body);
                return Ok(Some((epoch, body.freeze())));
            }
            if entry.record.csn > csn {
                break;
            }
        }
        Ok(None)
    }

    fn check(&self, position: &Position) -> Result<(), Stranger> {
        ancestry::check(&self.log, position)
    }

    fn annul(&self, csn: Csn, reason: &str) -> Result<Seq, AppendError> {
        self.log.append(LogRecord::annulment(self.epoch, csn, reason))
    }

    fn is_durable(&self, seq: Seq) -> bool {
        self.log.durable().seq >= seq
    }
}
