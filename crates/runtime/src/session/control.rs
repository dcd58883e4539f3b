//! BEGIN, COMMIT, ROLLBACK and ROLLBACK TO: answered by the session, also inside a failed transaction.

use onecopy_classify::{Kind, Modes};
use onecopy_wire::sqlstate::SqlState;

use super::client::ClientError;
use super::course::Past;
use super::{Done, Session};
use crate::classifier::Statement;
use crate::errors::Failure;

impl Session {
    /// Transaction control: answered here, also inside a failed transaction.
    pub(super) async fn execute_control(
        &mut self,
        statement: &Statement,
        extended: bool,
    ) -> Result<Option<Done>, ClientError> {
        let is_failed = self.is_failed();
        let done = match &statement.class.kind {
            Kind::Begin(modes) if !is_failed => {
                match self.txn.as_mut() {
                    Some(txn) if txn.explicit => {
                        self.warn(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "there is already a transaction in progress",
                        );
                    }
                    Some(_) => {}
                    None => {
                        self.client.need_not_confirm();
                        self.begin_txn(true, modes.read_only.unwrap_or_else(|| self.default_read_only()));
                    }
                }
                let set = self.txn.as_mut().map_or(Ok(()), |txn| {
                    txn.set_modes(modes)?;
                    // Inside a message of several statements, BEGIN makes their transaction an explicit one.
                    txn.explicit = true;
                    Ok(())
                });
                let starts = statement.class.text.trim_start().get(..5);
                let is_start = starts.is_some_and(|word| word.eq_ignore_ascii_case("start"));
                self.answer_modes(set, if is_start { "START TRANSACTION" } else { "BEGIN" }, extended).await?
            }
            Kind::Commit { chain: true } if self.is_outside_block() => {
                self.chained_outside("COMMIT AND CHAIN", extended).await?
            }
            Kind::Commit { chain } => self.on_commit(extended, *chain).await?,
            Kind::Rollback { chain: true } if self.is_outside_block() => {
                self.chained_outside("ROLLBACK AND CHAIN", extended).await?
            }
            Kind::Rollback { chain } => {
                let modes = self.modes_of_txn();
                if self.txn.is_none() {
                    self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
                }
                self.client.need_not_confirm();
                self.rollback().await;
                self.portals.clear();
                self.answer_command(extended, "ROLLBACK");
                if *chain {
                    self.begin_with(modes);
                }
                Done::Answered
            }
            Kind::RollbackTo(name) => self.on_rollback_to(statement, name, extended).await?,
            _ => return Ok(None),
        };
        Ok(Some(done))
    }

    /// No BEGIN is open.
    fn is_outside_block(&self) -> bool {
        self.txn.as_ref().is_none_or(|txn| !txn.explicit)
    }

    /// There is nothing that the next transaction could be like.
    async fn chained_outside(&mut self, command: &str, extended: bool) -> Result<Done, ClientError> {
        let what = format!("{command} can only be used in transaction blocks");
        let failure = Failure::new(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
        self.answer_modes(Err(failure), command, extended).await
    }

    async fn on_commit(&mut self, extended: bool, chain: bool) -> Result<Done, ClientError> {
        if extended {
            // What stands before its Execute is answered even if that fails.
            self.answer_steps();
        }
        let (failed, modes) = (self.is_failed(), self.modes_of_txn());
        if self.txn.is_none() {
            self.warn(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
        }
        if failed {
            self.rollback().await;
            self.answer_command(extended, "ROLLBACK");
        } else {
            // Those of a transaction that has not begun here, too.
            self.portals.clear();
            if self.commit().await? == Done::Failed {
                self.skipping = true;
                return Ok(Done::Failed);
            }
            self.answer_command(extended, "COMMIT");
        }
        if chain {
            self.begin_with(modes);
        }
        Ok(Done::Answered)
    }

    /// What the open transaction was said to be, which AND CHAIN passes on.
    fn modes_of_txn(&self) -> Modes {
        self.txn.as_ref().map_or_else(Modes::default, |txn| Modes {
            read_only: Some(txn.read_only),
            deferrable: txn.deferrable,
            isolation: Some(txn.isolation),
        })
    }

    fn begin_with(&mut self, modes: Modes) {
        self.begin_txn(true, modes.read_only.unwrap_or(false));
        if let Some(txn) = self.txn.as_mut() {
            txn.deferrable = modes.deferrable;
            txn.isolation = modes.isolation.unwrap_or(txn.isolation);
        }
    }

    /// ROLLBACK TO: what was written since the savepoint is not replayed anywhere.
    async fn on_rollback_to(
        &mut self,
        statement: &Statement,
        name: &str,
        extended: bool,
    ) -> Result<Done, ClientError> {
        if extended {
            self.answer_steps();
        }
        let Some(txn) = self.txn.as_mut() else {
            let what = "ROLLBACK TO SAVEPOINT can only be used in transaction blocks";
            let failure = Failure::new(SqlState::NO_ACTIVE_SQL_TRANSACTION, what);
            self.fail(&failure);
            return Ok(Done::Failed);
        };
        let at = txn.savepoints.iter().rposition(|savepoint| savepoint.name == name);
        if txn.is_lost || txn.over && at.is_some() {
            // What was written before the savepoint is nowhere any more.
            self.fail(
                &Failure::new(
                    SqlState::SERIALIZATION_FAILURE,
                    format!("the transaction was given up and cannot go back to savepoint \"{name}\""),
                )
                .hint("Nothing of it was committed. Run the transaction again."),
            );
            return Ok(Done::Failed);
        }
        let Some(at) = at else {
            self.fail(&Failure::new(
                SqlState::INVALID_SAVEPOINT_SPECIFICATION,
                format!("savepoint \"{name}\" does not exist"),
            ));
            return Ok(Done::Failed);
        };
        txn.return_writes_to(at);
        let savepoint = &txn.savepoints[at];
        txn.local_settings = savepoint.local_settings.clone();
        self.environment = savepoint.environment.clone();
        let (told_then, portals) = (savepoint.told.clone(), savepoint.portals);
        (txn.read_only, txn.refuses_writes) = (savepoint.read_only, savepoint.refuses_writes);
        txn.notifications.truncate(savepoint.notifications);
        txn.listens.truncate(savepoint.listens);
        self.locks.return_to(savepoint.locks);
        txn.savepoints.truncate(at + 1);
        let mut heard = Vec::with_capacity(txn.told.len());
        for told in &mut txn.told {
            let then = told_then.iter().find(|(then, _)| then.name == told.name);
            told.lasting = then.and_then(|(then, _)| then.lasting.clone());
            heard.push((told.name.clone(), then.map_or(&told.before, |(_, value)| value).clone()));
        }
        if !txn.is_everywhere {
            txn.course.note(Past::ReturnedTo(name.to_owned()));
        }
        self.drop_portals_after(portals);
        for (name, value) in heard {
            self.tell(&name, &value);
        }
        if self.txn.as_ref().is_some_and(|txn| txn.is_everywhere) {
            return self.roll_back_everywhere(statement, extended).await;
        }
        // The lane is told directly: the transaction goes on where it was, with the items that it holds. Without one it is told
        // when it is opened.
        let result = match self.open_lane() {
            Some(mut lane) => {
                let result = lane.lent.lane.command(&statement.sql).await;
                Some((lane, result))
            }
            None => None,
        };
        match result {
            Some((lane, Ok(()))) => {
                self.keep_lane(lane);
                if let Some(txn) = self.txn.as_mut() {
                    txn.failed = false;
                }
                if self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some()) {
                    // A change of definitions may have been undone.
                    self.read_own_definitions().await;
                }
                self.answer_command(extended, "ROLLBACK");
                Ok(Done::Answered)
            }
            Some((lane, Err(error))) if error.is_database() => {
                self.keep_lane(lane);
                self.fail(&Failure::of_lane(&error));
                Ok(Done::Failed)
            }
            lost => {
                if let Some((lane, Err(error))) = lost {
                    self.on_lane_lost(lane, &error);
                }
                if let Some(txn) = self.txn.as_mut() {
                    txn.failed = false;
                }
                self.answer_command(extended, "ROLLBACK");
                Ok(Done::Answered)
            }
        }
    }
}
