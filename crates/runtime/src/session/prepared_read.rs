//! The shortest way of what most clients send most often: a prepared read outside any transaction, with its Sync.
//!
//! It comes to the same as its messages one by one, but needs neither a portal nor a job: the core is told, and the client's
//! messages go to the lane almost as they are. Whatever stands in the way, a lane on which the statement is not prepared
//! yet for example, the messages are still there and are taken one by one.

use std::sync::LazyLock;

use bytes::{Buf, BytesMut};
use onecopy_core::{AccessSet, ClassId, Event, How, OpId, Outcome, Refusal, ReplicaId, TxnId};
use onecopy_wire::backend::Status;
use onecopy_wire::frame::HEAD_LEN;
use onecopy_wire::frontend::{Bind, Target, build, tag};

use super::Session;
use super::client::ClientError;
use super::portals::params_of;
use super::txn::Lane;
use super::unit::{self, UnitError};
use crate::clock::Stopwatch;
use crate::errors::{Cancelled, Failure};
use crate::lane::{StatementKey, StatementName};
use crate::server::cancel::Whereabouts;

/// Execute of the unnamed portal for all rows, and Sync.
static EXECUTE_AND_SYNC: LazyLock<BytesMut> = LazyLock::new(|| end(false));
/// Describe of the unnamed portal, and those.
static DESCRIBE_EXECUTE_AND_SYNC: LazyLock<BytesMut> = LazyLock::new(|| end(true));

/// How the messages of a prepared read end.
fn end(describes: bool) -> BytesMut {
    let mut messages = BytesMut::new();
    if describes {
        // An empty name always fits.
        let _ = build::describe(&mut messages, Target::Portal, "");
    }
    let _ = build::execute(&mut messages, "", 0);
    build::sync(&mut messages);
    messages
}

/// A read that is its own transaction, as the core knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedRead {
    pub txn: TxnId,
    /// Where it is to be executed, unless it has to wait.
    pub at: Option<(OpId, ReplicaId)>,
}

/// What the client's input begins with.
struct PreparedRead {
    key: StatementKey,
    class: ClassId,
    access: AccessSet,
    /// Where the part of the Bind begins that follows its names.
    rest: usize,
    /// Length of the Bind.
    bind: usize,
    /// Length of all messages.
    len: usize,
}

impl Session {
    /// Serves a prepared read if that is what the input begins with, and nothing is in its way; says whether it did.
    pub(super) async fn serve_prepared_read(&mut self) -> Result<bool, ClientError> {
        let Some(read) = self.prepared_read()? else { return Ok(false) };
        let placed = self.place_single_read(read.class, read.access);
        let ready = placed
            .at
            .and_then(|(op, replica)| self.lane_with(replica, read.key).map(|(lane, name)| (op, lane, name)));
        let Some((op, mut lane, name)) = ready else {
            self.placed_read = Some(placed);
            return Ok(false);
        };
        let (txn, replica) = (placed.txn, lane.replica);
        let started = Stopwatch::start();
        self.client.request_begins(false);
        self.client.begin_to_confirm();
        let on_lane = &mut lane.lent.lane;
        on_lane.put_bind(&name, &self.client.input[read.rest..read.bind]);
        on_lane.output.extend_from_slice(&self.client.input[read.bind..read.len]);
        self.cancel.set(Whereabouts::OnLane { replica, backend: on_lane.backend.clone() });
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        let result = unit::pass_on(on_lane, &mut self.client).await;
        self.cancel.set(Whereabouts::Idle);
        let elapsed_ns = started.elapsed_ns();
        match result {
            Ok(answer) => {
                let outcome = match answer.error {
                    None => Outcome::Done { returned: Vec::new() },
                    Some(_) => Outcome::Failed,
                };
                self.pass_on_reports(&answer);
                self.return_lane(lane, How::Alone, answer.status.unwrap_or(Status::Failed)).await;
                self.report(txn, op, replica, outcome, elapsed_ns);
            }
            Err(UnitError::Client(error)) => {
                // The lane is in the middle of something.
                drop(lane);
                self.report(txn, op, replica, Outcome::Failed, elapsed_ns);
                return Err(error);
            }
            Err(UnitError::Lane(error)) => {
                self.lose_lane(lane, &error);
                if self.client.sent == sent {
                    self.client.output.truncate(begun_at);
                    let outcome = Outcome::Lost { answer_begun: false };
                    self.report(txn, op, replica, outcome, elapsed_ns);
                    self.placed_read = Some(PlacedRead { txn, at: None });
                    return Ok(false);
                }
                self.report(txn, op, replica, Outcome::Failed, elapsed_ns);
                self.fail(&Failure::of_refusal(Refusal::AnswerCut, Cancelled::Timeout));
            }
        }
        self.client.input.advance(read.len);
        self.synced().await?;
        Ok(true)
    }

    /// What the input begins with, if that can be served in the short way.
    fn prepared_read(&self) -> Result<Option<PreparedRead>, ClientError> {
        let is_plain = self.txn.is_none()
            && !self.skipping
            && self.steps.is_empty()
            && self.portals.is_empty()
            && self.listener.is_none()
            && !self.deaf;
        let Some(head) = self.client.peek()?.filter(|head| is_plain && head.tag == tag::BIND) else {
            return Ok(None);
        };
        let (bind, after) = self.client.input.split_at(head.len);
        let ends: [&[u8]; 2] = [&EXECUTE_AND_SYNC, &DESCRIBE_EXECUTE_AND_SYNC];
        let found = ends.into_iter().find(|end| after.starts_with(end));
        let (Some(end), Ok(decoded)) = (found, Bind::decode(&bind[HEAD_LEN..])) else { return Ok(None) };
        let prepared = self.statements.get(decoded.statement).filter(|_| decoded.portal.is_empty());
        let Some(prepared) = prepared else { return Ok(None) };
        if end.len() > EXECUTE_AND_SYNC.len() && !prepared.preparation.shape.is_known() {
            // What the client is told now must be kept.
            return Ok(None);
        }
        let classifier = &self.shared.classifier;
        if classifier.is_changing() || self.embeds_object_ids(prepared, &decoded) {
            return Ok(None);
        }
        let (settings, generation) = (self.environment.hash(), classifier.generation());
        let known = prepared.classified.lock();
        let known =
            known.as_ref().filter(|known| known.only_reads && known.holds(settings, generation, None));
        let Some(known) = known else { return Ok(None) };
        let statement = &known.statement;
        // The error about a wrong number of parameters names the statement: there it must be the client's.
        if decoded.params.len() != statement.class.params_max as usize
            || !self.admits_prepared_read(&statement.sql)
        {
            return Ok(None);
        }
        let params = params_of(&decoded, prepared);
        let access = statement.class.bind(&statement.sql, statement.layout.layout(), params.as_slice(), &[]);
        Ok(Some(PreparedRead {
            key: prepared.preparation.key,
            class: statement.class.id,
            access,
            rest: HEAD_LEN + 1 + decoded.statement.len() + 1,
            bind: head.len,
            len: head.len + end.len(),
        }))
    }

    /// An idle lane that needs nothing before it executes a statement, and the statement's name on it.
    fn lane_with(&self, replica: ReplicaId, key: StatementKey) -> Option<(Lane, StatementName)> {
        let mut lent = self.shared.pools[usize::from(replica.0)].lend_idle(&self.who)?;
        let lane = &mut lent.lane;
        let is_dressed = lane.settings == self.environment.hash()
            && lane.generation == self.shared.classifier.generation()
            && !lane.has_own_definitions
            && !lane.has_too_many_prepared();
        lane.read_under = self.reads_under();
        let name = if is_dressed { lane.prepared_name(key) } else { None };
        match name {
            Some(name) => {
                if let Some(ids) = &mut lane.object_ids {
                    ids.begin();
                }
                Some((Lane { lent, replica }, name))
            }
            None => {
                self.give_back(Lane { lent, replica });
                None
            }
        }
    }

    /// A read that the core was told of was not executed after all.
    pub(super) fn forget_placed_read(&mut self) {
        let Some(PlacedRead { txn, at }) = self.placed_read.take() else { return };
        match at {
            Some((op, replica)) => self.report(txn, op, replica, Outcome::Failed, 0),
            None => {
                self.shared.scheduler.handle(Event::Rollback { txn });
                self.shared.scheduler.end_txn(txn);
            }
        }
    }
}
