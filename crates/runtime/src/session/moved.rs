//! Going on elsewhere: at the home after the first write, in another snapshot, or at another home when a replica was lost.
//!
//! What the transaction has done is done again there ([`Course`]). Until a statement has run at a home, what was read must
//! give the same answers; from then on its items are held, and only what was written is done again, as any replica would
//! apply it.

use onecopy_core::{Event, How, ReplicaId, TxnId};
use onecopy_wire::backend::{Backend, row_count};
use onecopy_wire::frontend::build;

use super::Session;
use super::client::ClientError;
use super::course::{Course, Past, Read};
use super::txn::{Lane, Txn};
use super::unit::{self, Answer, AnswerHash, Sink, UnitError, Watch};
use crate::errors::Failure;
use crate::lane::{self, LaneError, is_going_away};
use crate::record::{What, Write};

/// What follows the names in the Bind of a statement without parameters.
const NO_PARAMS: [u8; 6] = [0; 6];

/// What becomes of the reads of a course that is done again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reads {
    /// They are made again and must give the same answers.
    Compared,
    /// They are made again for the sake of cursors: nothing of what they read has changed.
    Repeated,
    /// They are left out: their items are held, and no cursor depends on them.
    LeftOut,
}

impl Session {
    /// Opens the transaction at a home or in a new snapshot, does again there what it has done, and says whether it came out the
    /// same. Returns why there is no lane for it, if that is not the replica's fault.
    pub(super) async fn revalidate(
        &mut self,
        id: TxnId,
        replica: ReplicaId,
        how: How,
    ) -> Result<Option<Failure>, ClientError> {
        let Some(txn) = self.txn.as_ref() else { return Ok(None) };
        let moves = txn.ran_at_home;
        let possible = if moves { txn.can_move() } else { txn.can_read_again() };
        if !possible {
            self.shared.scheduler.handle(Event::Revalidated { txn: id, replica, same: false });
            return Ok(None);
        }
        let mut commands = Vec::new();
        let mut lane = match self.lane_for(replica, how, &mut commands).await {
            Ok(lane) => lane,
            Err(error) if error.is_refusal() => return Ok(Some(Failure::of_lane(&error))),
            Err(error) => {
                self.shared.pools[usize::from(replica.0)].suspect_now(&error);
                self.shared.scheduler.handle(Event::HomeLost { txn: id, replica });
                return Ok(None);
            }
        };
        let reads = if moves { Reads::LeftOut } else { Reads::Compared };
        match self.repeat_course(&mut lane, &commands, reads).await {
            Ok(same) => {
                self.keep_lane(lane);
                self.shared.scheduler.handle(Event::Revalidated { txn: id, replica, same });
            }
            Err(LaneError::Database(fields)) if !is_going_away(fields.code) => {
                let error = LaneError::Database(fields);
                tracing::info!(%error, replica = replica.0, "what a transaction has done cannot be done again elsewhere");
                self.keep_lane(lane);
                self.shared.scheduler.handle(Event::Revalidated { txn: id, replica, same: false });
            }
            Err(error) => {
                self.lose_lane(lane, &error);
                self.shared.scheduler.handle(Event::HomeLost { txn: id, replica });
            }
        }
        Ok(None)
    }

    /// Does again on a lane, after `commands`, what the transaction has done. Returns whether it came out the same, and ends with
    /// the first step that did not.
    pub(super) async fn repeat_course(
        &mut self,
        lane: &mut Lane,
        commands: &[String],
        reads: Reads,
    ) -> Result<bool, LaneError> {
        let taken =
            self.txn.as_mut().map(|txn| (std::mem::take(&mut txn.course), std::mem::take(&mut txn.writes)));
        let (course, writes) = taken.unwrap_or_default();
        let result = match reads {
            Reads::LeftOut => {
                repeat(&mut lane.lent.lane, commands, &course.without_reads(), &writes, reads).await
            }
            _ => repeat(&mut lane.lent.lane, commands, &course, &writes, reads).await,
        };
        lane.lent.lane.read_under = self.reads_under();
        if let Some(txn) = self.txn.as_mut() {
            // It may have to be done once more, elsewhere or because this lane is lost.
            (txn.course, txn.writes) = (course, writes);
        }
        result
    }

    /// The lane on which the transaction executed is lost. Its next statement goes on elsewhere.
    pub(super) fn on_lane_lost(&mut self, lane: Lane, error: &LaneError) {
        let (replica, id) = (lane.replica, self.txn.as_ref().map(|txn| txn.id));
        self.lose_lane(lane, error);
        if let Some(txn) = id {
            self.shared.scheduler.handle(Event::HomeLost { txn, replica });
        }
    }
}

impl Txn {
    /// Whether all that its read phase was told can be had again. A read that failed is not made again: that would fail the lane,
    /// too, and perhaps otherwise.
    fn can_read_again(&self) -> bool {
        !self.course.has_lost_reads() && !self.failed_read
    }

    /// Whether a transaction that has left its read phase can be done again at another home: not if it has changed definitions,
    /// whose numbers differ between replicas, if cursors or portals may be open, or if it has something that its record lacks.
    fn can_move(&self) -> bool {
        let has_own_definitions =
            self.schema_changed || self.catalogue.is_some() || !self.restarted.is_empty();
        !(has_own_definitions || self.cursors || self.ended_portals || self.bound_to_home)
    }
}

/// Runs commands, then the steps of a transaction.
async fn repeat(
    lane: &mut lane::Lane,
    commands: &[String],
    course: &Course,
    writes: &[Write],
    reads: Reads,
) -> Result<bool, LaneError> {
    for command in commands {
        lane.command(command).await?;
    }
    for step in course.steps() {
        let same = match step {
            Past::Read(read) => read_again(lane, read, reads == Reads::Compared).await?,
            Past::Wrote(which) => write_again(lane, writes.get(which.clone()).unwrap_or_default()).await?,
            step => {
                if let Some(command) = step.command() {
                    lane.command(&command).await?;
                }
                true
            }
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn read_again(lane: &mut lane::Lane, read: &Read, compare: bool) -> Result<bool, LaneError> {
    lane.read_under = read.read_under;
    let mut watch = Watch { hash: compare.then(AnswerHash::default), ..Watch::default() };
    match unit::run(lane, 0, &read.request, Sink::Drop, &mut watch, None).await {
        Ok(Answer { error: Some(error), .. }) if !compare => Err(LaneError::Database(error)),
        Ok(answer) if compare => {
            let again = watch.hash.map(|hash| hash.value());
            Ok(answer.error.is_none() && again == Some(read.hash))
        }
        Ok(_) => Ok(true),
        Err(UnitError::Lane(error)) => Err(error),
        // Nobody is asked for anything.
        Err(UnitError::Client(_)) => Err(LaneError::Closed),
    }
}

/// Does writes again as their record has them, one exchange for all. Rows that were captured are put in past triggers, which only
/// a superuser may.
async fn write_again(lane: &mut lane::Lane, writes: &[Write]) -> Result<bool, LaneError> {
    let mut expected = Vec::with_capacity(writes.len());
    for write in writes {
        if write.captured {
            put(lane, "SET LOCAL session_replication_role = replica", &[], &NO_PARAMS)?;
            expected.push(None);
        }
        match &write.what {
            What::Text(sql) => put(lane, sql, &[], &NO_PARAMS)?,
            What::Prepared { sql, types, bind, .. } => put(lane, sql, types, bind)?,
            What::Copy { sql, data } => {
                put(lane, sql, &[], &NO_PARAMS)?;
                for chunk in data {
                    build::copy_data(&mut lane.output, chunk)?;
                }
                build::copy_done(&mut lane.output);
            }
        }
        expected.push(write.rows);
        if write.captured {
            put(lane, "SET LOCAL session_replication_role = origin", &[], &NO_PARAMS)?;
            expected.push(None);
        }
    }
    build::sync(&mut lane.output);
    lane.flush_while_reading().await?;
    affects(lane, &expected).await
}

/// Appends one statement, by the unnamed ones, with what follows the names in its Bind.
fn put(lane: &mut lane::Lane, sql: &str, types: &[u32], bind: &[u8]) -> Result<(), LaneError> {
    build::parse(&mut lane.output, "", sql, types.iter().copied())?;
    lane.put_bind("", bind);
    build::execute(&mut lane.output, "", 0)?;
    Ok(())
}

/// Reads the answers up to a ReadyForQuery; whether each command affected as many rows as is known of it.
async fn affects(lane: &mut lane::Lane, expected: &[Option<u64>]) -> Result<bool, LaneError> {
    let (mut same, mut done, mut failure) = (true, 0, None);
    loop {
        let head = lane.next_frame().await?;
        let is_end = match onecopy_wire::backend::decode(head.tag, lane.body(head))? {
            Backend::CommandComplete(tag) => {
                let rows = expected.get(done).copied().flatten();
                same &= rows.is_none() || rows == row_count(tag);
                done += 1;
                false
            }
            Backend::Error(fields) => {
                failure.get_or_insert_with(|| Box::new(fields.to_owned()));
                false
            }
            Backend::ReadyForQuery(_) => true,
            _ => false,
        };
        lane.consume(head);
        if is_end {
            break;
        }
    }
    match failure {
        Some(fields) => Err(LaneError::Database(fields)),
        None => Ok(same),
    }
}
