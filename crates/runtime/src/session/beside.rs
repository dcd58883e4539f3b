//! What is asked of a replica beside the open transaction, or outside any: queries of the catalogue, and what statements are.

use std::cmp::Reverse;
use std::time::Duration;

use onecopy_core::ReplicaId;
use onecopy_core::protocol::ReplicaStatus;
use onecopy_wire::backend::Status;
use onecopy_wire::sqlstate::SqlState;

use onecopy_classify::Kind;

use super::client::ClientError;
use super::environment::is_meaningful;
use super::patience::within;
use super::portals::Portal;
use super::run::break_off;
use super::txn::Lane;
use super::unit::{self, Answer, Request, Sink, UnitError, Watch};
use super::{Done, Session};
use crate::classifier::Statement;
use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::server::cancel::Whereabouts;

/// Replicas that may be lost under one statement before its client hears of it.
pub(super) const LOSSES_MAX: u32 = 5;

impl Session {
    /// The replica whose object ids clients see: the first that is up and stays.
    fn reference_replica(&self) -> Option<ReplicaId> {
        let pools = &self.shared.pools;
        // A transaction goes on with the one whose numbers it has shown, for as long as that serves.
        let shown = self.txn.as_ref().and_then(|txn| txn.shown_catalogue_of.as_ref());
        let shown = shown.map(|shown| pools.of(shown.replica)).filter(|pool| pool.is_up());
        shown.or_else(|| pools.in_service().next()).map(|pool| pool.replica)
    }

    /// The same, after waiting for one as long as a statement may wait.
    pub(super) async fn await_reference_replica(&self) -> Option<ReplicaId> {
        let limit_ms = self.shared.limits.wait_timeout_ms;
        let deadline = Deadline::after(Duration::from_millis(limit_ms));
        let pause = Duration::from_millis(10);
        loop {
            let found = self.reference_replica();
            if found.is_some() || limit_ms != 0 && deadline.has_passed() {
                return found;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// A lane outside any transaction, with this session's settings.
    pub(super) async fn plain_lane(&mut self, replica: ReplicaId) -> Result<Lane, LaneError> {
        let pool = self.shared.pools[usize::from(replica.0)].clone();
        let lent = match pool.lend(&self.who).await {
            Ok(lent) => lent,
            Err(error) => {
                pool.suspect_now(&error);
                return Err(error);
            }
        };
        // Its transaction waits for what is done here, though that is no part of it.
        lent.lane.backend.serve(self.txn.as_ref().map(|txn| txn.id));
        let mut lane = Lane { lent, replica };
        let mut commands = Vec::new();
        self.dress(&mut lane, &self.environment, &mut commands);
        for command in commands {
            if let Err(error) = lane.lent.lane.command(&command).await {
                self.lose_lane(lane, &error);
                return Err(error);
            }
        }
        Ok(lane)
    }

    /// Whether a portal shows the catalogue, and not that of the open transaction's own replica.
    pub(super) fn is_shown_elsewhere(&self, portal: &Portal) -> bool {
        let class = &portal.statement.class;
        let shows = matches!(class.kind, Kind::Select | Kind::Explain { analyze: false, .. });
        shows && class.effects.catalogue_only && self.sees_shared_catalogue(Some(portal))
    }

    /// Whether a query of the catalogue finds outside the open transaction what it would find inside. Where it does not,
    /// the transaction has changed definitions, so that nobody else has been told of them, or settings; or it would have to wait
    /// there for itself; or its portal was bound on the transaction's own lane, with an earlier message.
    pub(super) fn sees_shared_catalogue(&self, portal: Option<&Portal>) -> bool {
        let Some(txn) = &self.txn else { return true };
        let steps_stand_alone = || {
            let bound = self.steps.iter().filter(|step| matches!(step, unit::Step::Bind { .. })).count();
            let others = |step: &unit::Step| {
                matches!(step, unit::Step::ClosePortal(_) | unit::Step::Execute { max_rows: 1.., .. })
            };
            bound == 1 && !self.steps.iter().any(others)
        };
        !txn.schema_changed
            && !txn.locks_readers_out
            && txn.catalogue.is_none()
            && txn.local_settings.is_empty()
            && (portal.is_none() || steps_stand_alone())
    }

    /// Catalogue queries show object ids, which differ between replicas: all run on one of them.
    pub(super) async fn on_catalogue_query(
        &mut self,
        statement: &Statement,
        portal: Option<&Portal>,
    ) -> Result<Done, ClientError> {
        let request = match portal {
            Some(_) => Request::Extended(std::mem::take(&mut self.steps)),
            None => Request::Simple(statement.sql.to_string()),
        };
        self.run_beside(&request, true).await
    }

    /// Runs a unit that changes nothing outside the open transaction, where every definition is that anybody was told of: one
    /// that shows the catalogue on the reference replica. A replica that is lost before it answered is replaced.
    async fn run_beside(&mut self, request: &Request, shows_catalogue: bool) -> Result<Done, ClientError> {
        self.client.must_confirm();
        self.client.begin_to_confirm();
        let (begun_at, sent) = (self.client.output.len(), self.client.sent);
        // To read a text takes no time, but it may wait for who has locked its tables.
        let patience = if shows_catalogue { None } else { self.patience(false) };
        let mut losses = 0;
        loop {
            let found = match shows_catalogue {
                true => self.await_reference_replica().await,
                false => self.await_most_advanced_replica().await,
            };
            let Some(replica) = found else {
                self.fail(&no_replica());
                return Ok(Done::Failed);
            };
            if let Some(txn) = self.txn.as_mut().filter(|_| shows_catalogue)
                && txn
                    .shown_catalogue_of
                    .get_or_insert_with(|| self.shared.pools.of(replica).show_catalogue())
                    .replica
                    != replica
            {
                let failure = Failure::new(
                    SqlState::SERIALIZATION_FAILURE,
                    "the replica whose catalogue the transaction has read is out of service, and another one has other object ids",
                );
                self.fail(&failure.hint("Run the transaction again."));
                return Ok(Done::Failed);
            }
            let lane = match self.lane_beside(replica).await {
                Ok(lane) => lane,
                Err(failure) => {
                    self.fail(&failure);
                    return Ok(Done::Failed);
                }
            };
            let error = match lane {
                Ok(mut lane) => {
                    let held_max = self.held_max();
                    let parts = shows_catalogue && self.fetches_parts();
                    let sink = match parts {
                        true => Sink::Hold(&mut self.held, held_max),
                        false => Sink::Client(&mut self.client),
                    };
                    let mut watch = Watch::default();
                    let backend = lane.lent.lane.backend.clone();
                    self.cancel.set(Whereabouts::OnLane { replica, backend });
                    let run = unit::run(&mut lane.lent.lane, 0, request, sink, &mut watch, None);
                    let result = within(patience, run).await;
                    self.cancel.set(Whereabouts::Idle);
                    let result = match result {
                        Ok(result) => result,
                        Err(failure) => {
                            break_off(&self.shared, lane).await;
                            if self.client.sent == sent {
                                self.client.output.truncate(begun_at);
                            }
                            self.fail(&failure);
                            return Ok(Done::Failed);
                        }
                    };
                    match result {
                        Err(UnitError::Lane(error)) if self.client.sent == sent => {
                            self.drop_held();
                            self.client.output.truncate(begun_at);
                            self.lose_lane(lane, &error);
                            error
                        }
                        Ok(answer) if answer.overflow => {
                            self.give_back(lane);
                            self.drop_held();
                            self.fail(&self.held_too_much());
                            return Ok(Done::Failed);
                        }
                        Ok(answer) => {
                            self.confirm_parsed(&answer.unparsed);
                            if parts {
                                self.release_held();
                            }
                            return self.after_lone_unit(lane, Ok(answer)).await;
                        }
                        Err(error) => return self.after_lone_unit(lane, Err(error)).await,
                    }
                }
                Err(error) => error,
            };
            losses += 1;
            if error.is_refusal() || losses > LOSSES_MAX {
                self.fail(&Failure::of_lane(&error));
                return Ok(Done::Failed);
            }
        }
    }

    /// A lane of a replica outside the open transaction, once the replica contains what anybody was told of; for as long as a
    /// statement may wait.
    pub(super) async fn lane_beside(
        &mut self,
        replica: ReplicaId,
    ) -> Result<Result<Lane, LaneError>, Failure> {
        let told = self.shared.scheduler.status().told;
        let patience = self.patience(false);
        let shared = self.shared.clone();
        let lane = async {
            shared.await_applied(replica, told).await;
            self.plain_lane(replica).await
        };
        within(patience, lane).await
    }

    /// The replica that has applied most: it says first what others are told of.
    pub(super) async fn await_most_advanced_replica(&self) -> Option<ReplicaId> {
        match most_advanced(&self.shared.scheduler.status().replicas) {
            Some(replica) => Some(replica),
            None => self.await_reference_replica().await,
        }
    }

    /// Whether what a statement is can be found out outside the open transaction. On the transaction's own lane, the server
    /// would hold its tables before the core has granted them, and nobody would know of that: a change of definitions might
    /// wait there for a transaction that waits for it. Where lanes are scarce, waiting for another one would be no better; and if
    /// the transaction has locked tables, the other one might wait for this.
    pub(super) fn describes_beside(&self) -> bool {
        let Some(txn) = &self.txn else { return true };
        if self.is_by_itself() || txn.locks_tables {
            return false;
        }
        let most_advanced = most_advanced(&self.shared.scheduler.status().replicas);
        most_advanced.is_some_and(|replica| self.shared.pools[usize::from(replica.0)].has_room(&self.who))
    }

    /// Whether a text may mean something else inside the open transaction than outside.
    pub(super) fn is_by_itself(&self) -> bool {
        self.txn.as_ref().is_some_and(|txn| {
            txn.catalogue.is_some() || txn.local_settings.iter().any(|(name, _)| is_meaningful(name))
        })
    }

    /// What has to happen after a unit outside the core's order.
    pub(super) async fn after_lone_unit(
        &mut self,
        lane: Lane,
        result: Result<Answer, UnitError>,
    ) -> Result<Done, ClientError> {
        match result {
            Ok(answer) => {
                self.confirm_parsed(&answer.unparsed);
                self.pass_on_reports(&answer);
                if answer.status == Some(Status::Idle) {
                    self.give_back(lane)
                } else {
                    self.roll_back_lane(lane).await
                }
                if answer.error.is_some() {
                    self.on_statement_failed();
                    if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                        self.end_if_failed(id).await;
                    }
                    return Ok(Done::Failed);
                }
                Ok(Done::Answered)
            }
            Err(UnitError::Client(error)) => Err(error),
            Err(UnitError::Lane(error)) => {
                let failure = Failure::of_lane(&error);
                self.lose_lane(lane, &error);
                self.fail_statement(&failure).await
            }
        }
    }

    /// Parse and Describe outside the open transaction, if there is one.
    pub(super) async fn describe_anywhere(&mut self, request: &Request) -> Result<Done, ClientError> {
        self.run_beside(request, false).await
    }
}

pub(super) fn no_replica() -> Failure {
    Failure::new(SqlState::CANNOT_CONNECT_NOW, "no replica is in service")
        .hint("Statements run again as soon as one replica is back; `onecopy status` shows them.")
}

/// The first of the replicas in service that have applied most; one that is about to leave only if there is no other.
pub(super) fn most_advanced(replicas: &[ReplicaStatus]) -> Option<ReplicaId> {
    let up = replicas.iter().enumerate().filter(|(_, replica)| replica.up);
    let (index, _) =
        up.max_by_key(|(index, replica)| (!replica.leaving, replica.applied, Reverse(*index)))?;
    u16::try_from(index).ok().map(ReplicaId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_asked_for_its_words_is_in_service_and_lags_least() {
        let replica = |up, applied| ReplicaStatus { up, applied, ..ReplicaStatus::default() };
        let found = |replicas: &[ReplicaStatus]| most_advanced(replicas);
        assert_eq!(found(&[replica(true, 3), replica(false, 9), replica(true, 5)]), Some(ReplicaId(2)));
        assert_eq!(found(&[replica(true, 5), replica(true, 5)]), Some(ReplicaId(0)));
        assert_eq!(found(&[replica(false, 5)]), None);
        let leaving = ReplicaStatus { leaving: true, ..replica(true, 9) };
        assert_eq!(found(&[leaving.clone(), replica(true, 5)]), Some(ReplicaId(1)));
        assert_eq!(found(&[leaving]), Some(ReplicaId(0)));
    }
}
