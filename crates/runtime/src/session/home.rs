//! The commit of a transaction at its home, in its turn.
//!
//! Commits at one home follow each other, so the time from the answer to one until the next is sent counts for all that
//! wait. A commit is therefore built as soon as its place in the order is known and left with the scheduler; the thread
//! that learns that its turn has come sends it, and the session finds the answer on its lane.

use onecopy_core::{Csn, Event, ReplicaId, TxnId};
use onecopy_wire::WireError;
use onecopy_wire::frontend::build;

use super::txn::Lane;
use crate::lane::{self, LaneError, StatementKey};
use crate::postgres::connect::Credentials;
use crate::postgres::progress;
use crate::scheduler::{ArmedCommit, Directive, Mail};
use crate::server::Shared;

/// Who sends the commit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The session, when a directive says so.
    #[default]
    Told,
    /// The scheduler, as this commit.
    Armed(Csn),
}

/// A transaction that is to be committed where it was executed.
pub struct Home<'a> {
    pub shared: &'a Shared,
    pub who: &'a Credentials,
    pub txn: TxnId,
}

impl Home<'_> {
    /// Leaves the commit with the scheduler, if the lane can be sent to by others.
    pub fn arm(&self, lane: &mut lane::Lane, replica: ReplicaId, csn: Csn) -> Turn {
        let (Some(socket), true) = (lane.direct(), lane.output.is_empty()) else { return Turn::Told };
        if put_commit(self.shared, self.who, lane, csn).is_err() {
            // It will be told, and fail then.
            lane.output.clear();
            lane.forget_prepared();
            return Turn::Told;
        }
        let messages = lane.output.split().freeze();
        self.shared.scheduler.arm(self.txn, ArmedCommit { replica, messages, socket });
        Turn::Armed(csn)
    }

    /// The next directive; `None` if there is news of the lane instead: it has committed or is lost, and was taken.
    pub async fn next(&self, turn: &mut Turn, home: &mut Option<Lane>, mail: &Mail) -> Option<Directive> {
        let (Turn::Armed(csn), Some(lane)) = (*turn, home.as_mut()) else {
            return Some(mail.next(self.txn).await);
        };
        let received = tokio::select! {
            biased;
            directive = mail.next(self.txn) => return Some(directive),
            received = lane.lent.lane.fill() => received,
        };
        *turn = Turn::Told;
        match (self.shared.scheduler.disarm(self.txn), received) {
            (None, received) => {
                let answer = match received {
                    Ok(()) => committed(&mut lane.lent.lane).await,
                    Err(error) => Err(error),
                };
                let lane = home.take()?;
                self.settle(csn, lane, answer).await;
                None
            }
            // The server has said something by itself. It is read together with the answer to the commit.
            (Some(commit), Ok(())) => {
                self.shared.scheduler.arm(self.txn, commit);
                *turn = Turn::Armed(csn);
                None
            }
            (Some(_), Err(error)) => {
                let lane = home.take()?;
                self.lose(&lane, &error);
                None
            }
        }
    }

    /// Marks and commits the open transaction, now that a directive says so, and says what came of it.
    pub async fn commit(&self, replica: ReplicaId, csn: Csn, lane: Option<Lane>) {
        let Some(mut lane) = lane else {
            return self.shared.scheduler.handle(Event::HomeLost { txn: self.txn, replica });
        };
        if let Some(commit) = self.shared.scheduler.disarm(self.txn) {
            lane.lent.lane.output.extend_from_slice(&commit.messages);
        }
        let answer = self.send(&mut lane.lent.lane, csn).await;
        self.settle(csn, lane, answer).await;
    }

    /// Gives up what is open on a lane that the transaction must leave. Whether it was committed is found out when the
    /// replica enters service again.
    ///
    /// Returns the lane if it can be rolled back.
    pub fn leave(&self, turn: &mut Turn, lane: Lane) -> Option<Lane> {
        let sent = *turn != Turn::Told && self.shared.scheduler.disarm(self.txn).is_none();
        *turn = Turn::Told;
        // A lane on which a commit is under way is closed.
        (!sent).then_some(lane)
    }

    async fn send(&self, lane: &mut lane::Lane, csn: Csn) -> Result<(), LaneError> {
        if lane.output.is_empty() {
            put_commit(self.shared, self.who, lane, csn)?;
        }
        lane.flush().await?;
        committed(lane).await
    }

    async fn settle(&self, csn: Csn, mut lane: Lane, answer: Result<(), LaneError>) {
        let (scheduler, replica) = (&self.shared.scheduler, lane.replica);
        let pool = &self.shared.pools[usize::from(replica.0)];
        match answer {
            Ok(()) => {
                if lane.lent.lane.has_own_definitions {
                    pool.note_definitions_changed();
                }
                if lane.lent.lane.changes_roles {
                    pool.note_roles_changed();
                }
                // If the server has crashed since it answered, it may have lost what it answered.
                scheduler.handle_if(|| pool.is_current(&lane.lent), Event::Applied { replica, csn });
                pool.give_back(self.who, lane.lent);
            }
            Err(error) if error.is_database() => {
                tracing::warn!(%error, %csn, replica = replica.0, "commit at the home was refused; it will be applied");
                if lane.lent.lane.roll_back().await.is_ok() {
                    pool.give_back(self.who, lane.lent);
                }
                scheduler.handle(Event::HomeLost { txn: self.txn, replica });
            }
            Err(error) => self.lose(&lane, &error),
        }
    }

    fn lose(&self, lane: &Lane, error: &LaneError) {
        self.shared.pools[usize::from(lane.replica.0)].suspect(lane.lent.lane.incarnation, error);
    }
}

/// Appends what marks and commits the open transaction.
fn put_commit(shared: &Shared, who: &Credentials, lane: &mut lane::Lane, csn: Csn) -> Result<(), WireError> {
    if who.user == shared.agent_user {
        progress::put_advance(lane, csn.previous(), csn, shared.epoch as i64)?;
    } else {
        let (number, epoch) = (csn.0.to_string(), shared.epoch.to_string());
        let proof = progress::proof(&shared.secret, csn, shared.epoch);
        let key = StatementKey::of(progress::ADVANCE_AS_CLIENT, &progress::ADVANCE_AS_CLIENT_TYPES);
        let (name, _) = lane.prepare(key, progress::ADVANCE_AS_CLIENT, &progress::ADVANCE_AS_CLIENT_TYPES)?;
        let params = [Some(number.as_bytes()), Some(epoch.as_bytes()), Some(proof.as_bytes())];
        build::bind(&mut lane.output, "", &name, [], params, [])?;
        build::execute(&mut lane.output, "", 0)?;
    }
    let key = StatementKey::of("COMMIT", &[]);
    let (name, _) = lane.prepare(key, "COMMIT", &[])?;
    build::bind(&mut lane.output, "", &name, [], [], [])?;
    build::execute(&mut lane.output, "", 0)?;
    build::sync(&mut lane.output);
    Ok(())
}

/// Reads the answer to a commit.
async fn committed(lane: &mut lane::Lane) -> Result<(), LaneError> {
    match lane.ready().await? {
        (_, None) => Ok(()),
        (_, Some(fields)) => {
            // What was to be prepared after the error is not.
            lane.forget_prepared();
            lane.settings = u64::MAX;
            Err(LaneError::Database(fields))
        }
    }
}
