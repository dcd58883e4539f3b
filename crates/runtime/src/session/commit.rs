//! Beginning and ending transactions, and committing at the home.

use std::sync::Arc;

use bytes::BytesMut;
use onecopy_core::{ClassId, Csn, Event, OpId, Refusal, ReplicaId, StatementKind, TxnId};
use onecopy_wire::backend::ErrorFields;
use onecopy_wire::backend::build::Severity;

use super::beside::LOSSES_MAX;
use super::client::ClientError;
use super::home::{Home, Turn};
use super::job::{Aside, Job, Quiet};
use super::listening::Listening;
use super::run::{Ran, break_off, roll_back};
use super::txn::{Lane, Txn};
use super::unit::Request;
use super::{Done, Session};
use crate::errors::{Cancelled, Failure};
use crate::lane::{LaneError, is_going_away};
use crate::record::{Record, Write};
use crate::scheduler::{Directive, Mail, Writes};
use crate::server::Shared;
use crate::server::cancel::Whereabouts;

/// Why a transaction cannot ask for its commit.
pub(super) enum Unsettled {
    /// A constraint that was deferred is violated, or its check was cancelled: the server's own message, which names it.
    Violated(Box<ErrorFields>),
    HomeLost,
    /// The client has been told why.
    Told,
}

impl Unsettled {
    /// Answers it.
    pub(super) fn put(&self, out: &mut BytesMut) {
        match self {
            Unsettled::Violated(fields) => fields.put_error(out),
            Unsettled::HomeLost => {
                Failure::of_refusal(Refusal::HomeLost, Cancelled::Timeout).put(out, Severity::Error);
            }
            Unsettled::Told => {}
        }
    }
}

impl Session {
    /// What transactions that begin alike have in common, for prediction.
    pub(super) fn form(&mut self) -> u64 {
        use std::hash::{Hash, Hasher};
        let settings = self.environment.hash();
        if let Some((under, form)) = self.form
            && under == settings
        {
            return form;
        }
        let mut hasher = std::hash::DefaultHasher::new();
        self.who.user.hash(&mut hasher);
        self.environment.value("application_name").hash(&mut hasher);
        self.form = Some((settings, hasher.finish()));
        hasher.finish()
    }

    pub(super) fn begin_txn(&mut self, explicit: bool, read_only: bool) {
        let form = self.form();
        let id = self.shared.scheduler.new_txn(&self.mail);
        let form = form ^ u64::from(explicit) << 1 ^ u64::from(read_only);
        let mut txn = Txn::new(id, explicit, form, &self.environment);
        txn.read_only = read_only;
        txn.isolation = self.default_isolation();
        if let (false, Some(moment)) = (explicit, self.moment.take()) {
            txn.started_micros = moment;
        }
        self.txn = Some(txn);
    }

    /// Several statements in one message, or before one Sync, are one transaction.
    pub(super) fn begin_implicit(&mut self) {
        if !self.has_transactions() {
            return;
        }
        self.begin_txn(false, self.default_read_only());
    }

    /// Commits (or, after an error, ends) an implicit transaction.
    pub(super) async fn end_implicit(&mut self) -> Result<Done, ClientError> {
        match &self.txn {
            Some(txn) if !txn.explicit && txn.failed => self.rollback().await,
            Some(txn) if !txn.explicit => return self.commit().await,
            _ => {}
        }
        Ok(Done::Answered)
    }

    /// Commits the open transaction; on failure an error has been answered and the transaction is over.
    pub(super) async fn commit(&mut self) -> Result<Done, ClientError> {
        let Some(txn) = self.txn.as_mut() else { return Ok(Done::Answered) };
        let (id, op) = (txn.id, txn.take_op());
        if !txn.begun || txn.over {
            // Nothing of it was executed on a replica.
            self.end_without_replica();
            self.local_settings_end();
            self.close_txn();
            return Ok(Done::Answered);
        }
        let listening = match self.request_commit(id, Event::Commit { txn: id, op }).await {
            Ok(listening) => listening,
            Err(unsettled) => {
                self.is_void |= matches!(unsettled, Unsettled::HomeLost);
                self.rollback().await;
                unsettled.put(&mut self.client.output);
                return Ok(Done::Failed);
            }
        };
        let done = self.carry_out_commit(id, op).await;
        self.listened_at_commit(listening, matches!(done, Ok(Done::Answered)));
        self.local_settings_end();
        self.end_change(matches!(done, Ok(Done::Answered))).await;
        // The core must hear that the client is gone.
        if done.is_err() {
            self.abandon()
        } else {
            self.close_txn()
        }
        done
    }

    /// Asks the core for the commit of the open transaction, by the event that means it. Whatever can still fail at its home
    /// fails before that: once it is decided, every replica has to commit it.
    pub(super) async fn request_commit(&mut self, id: TxnId, event: Event) -> Result<Listening, Unsettled> {
        self.settle_constraints().await?;
        if let Some(txn) = self.txn.as_mut().filter(|txn| txn.schema_changed) {
            txn.changing = true;
            if let Some(home) = &mut txn.home {
                home.lent.lane.changes_roles = txn.writes.iter().any(Write::may_change_roles);
            }
            self.shared.classifier.begin_change();
        }
        let writes = self.record_of_writes();
        let listening = self.listen_at_commit(id);
        let decided = self.shared.scheduler.handle_with_writes(id, writes, event);
        self.arm_commit(id, decided);
        Ok(listening)
    }

    /// What it has changed in definitions is read, if it did commit.
    pub(super) async fn end_change(&mut self, committed: bool) {
        let Some(txn) = self.txn.as_mut().filter(|txn| txn.changing) else { return };
        txn.changing = false;
        let restarted = std::mem::take(&mut txn.restarted);
        self.shared.read_definitions_after(committed, &restarted).await;
    }

    /// Deferred constraints are made immediate before the decision: what fails must fail here (design 3.4).
    async fn settle_constraints(&mut self) -> Result<(), Unsettled> {
        let Some(txn) = self.txn.as_ref().filter(|txn| !txn.writes.is_empty()) else { return Ok(()) };
        // One that it has made itself is in nobody's catalogue yet.
        if !txn.schema_changed && !self.shared.classifier.has_deferrable() {
            return Ok(());
        }
        let autocommit = txn.autocommit;
        for _ in 0..=LOSSES_MAX {
            let Some(mut lane) = self.txn.as_mut().and_then(|txn| txn.home.take()) else {
                // Its home was lost since its last statement: they are checked at another one.
                self.find_home().await?;
                continue;
            };
            let backend = lane.lent.lane.backend.clone();
            self.cancel.set(Whereabouts::OnLane { replica: lane.replica, backend });
            let result = lane.lent.lane.command("SET CONSTRAINTS ALL IMMEDIATE").await;
            self.cancel.set(Whereabouts::Idle);
            match result {
                Ok(()) => {
                    if let Some(txn) = self.txn.as_mut() {
                        txn.home = Some(lane);
                    }
                    return Ok(());
                }
                Err(LaneError::Database(fields)) if !is_going_away(fields.code) => {
                    self.roll_back_lane(lane).await;
                    return Err(Unsettled::Violated(fields));
                }
                Err(error) if autocommit => {
                    self.lose_lane(lane, &error);
                    return Err(Unsettled::HomeLost);
                }
                Err(error) => self.on_lane_lost(lane, &error),
            }
        }
        // What is checked may well be the reason.
        Err(Unsettled::HomeLost)
    }

    /// Has an open transaction whose home was lost go on at another one.
    async fn find_home(&mut self) -> Result<(), Unsettled> {
        let request = Request::Simple("SELECT".to_owned());
        let aside = Aside { quiet: Quiet::Dropped, ..Aside::default() };
        let job = Job::in_place(ClassId::default(), StatementKind::LockingRead, request, aside);
        match Box::pin(self.run_job(job)).await {
            Ok(Ran::Answered(answer)) if answer.error.is_none() => Ok(()),
            _ => Err(Unsettled::Told),
        }
    }

    async fn carry_out_commit(&mut self, id: TxnId, op: OpId) -> Result<Done, ClientError> {
        // Unless it is decided already, it may wait for items that only answers have shown, or for others' decisions, and be given
        // up. From here on the decision may be made at any time: the client is not listened to until it is known, but where the core
        // can tell of itself whether it was.
        let mut undecided = self.txn.as_ref().is_some_and(|txn| txn.turn == Turn::Told);
        loop {
            let directive = if std::mem::take(&mut undecided) {
                let watches = self.txn.as_ref().is_some_and(|txn| txn.is_everywhere);
                self.await_directive(Whereabouts::Waiting { txn: id, op }, id, op, false, watches).await?
            } else {
                let Some(directive) = self.next_at_commit(id).await else { continue };
                directive
            };
            match directive {
                Directive::CommitAt { replica, csn } => self.commit_at(id, replica, csn).await,
                Directive::Acknowledge { .. } => {
                    self.client.need_not_confirm();
                    self.detach_home(id);
                    return Ok(Done::Answered);
                }
                Directive::Finish { replica, .. } => {
                    self.finish(replica).await;
                    return Ok(Done::Answered);
                }
                Directive::Leave { replica } => self.leave(replica).await,
                Directive::Refuse { reason, .. } => {
                    self.is_void |= reason == Refusal::HomeLost;
                    let cancelled = self.cancel.take_cause(id, op).unwrap_or(Cancelled::Timeout);
                    let failure = Failure::of_refusal(reason, cancelled);
                    return Ok(self.commit_failed(|out| failure.put(out, Severity::Error)));
                }
                Directive::Annul { reason } => return Ok(self.commit_failed(|out| reason.put_error(out))),
                other => tracing::debug!(?other, "while committing: ignoring"),
            }
        }
    }

    fn commit_failed(&mut self, put: impl FnOnce(&mut BytesMut)) -> Done {
        if let Some(txn) = self.txn.as_mut() {
            txn.over = true;
        }
        self.environment_rolled_back();
        put(&mut self.client.output);
        Done::Failed
    }

    /// Rolls the open transaction back.
    pub(super) async fn rollback(&mut self) {
        let Some(txn) = self.txn.as_mut() else { return };
        let (id, tell) = (txn.id, txn.begun && !txn.over);
        txn.over = true;
        // The lanes first: items must not be let go while the database still holds its own locks on them.
        let lanes: Vec<Lane> = txn.snapshot.take().into_iter().chain(txn.home.take()).collect();
        for lane in lanes {
            self.roll_back_lane(lane).await;
        }
        if tell {
            self.shared.scheduler.handle(Event::Rollback { txn: id });
        }
        self.environment_rolled_back();
        self.close_txn();
    }

    pub(super) fn environment_rolled_back(&mut self) {
        let Some(txn) = self.txn.as_mut() else { return };
        self.environment = txn.environment_before.clone();
        for told in std::mem::take(&mut txn.told) {
            self.tell(&told.name, &told.before);
        }
    }

    /// What SET LOCAL has set is over.
    fn local_settings_end(&mut self) {
        let Some(txn) = self.txn.as_mut() else { return };
        for told in std::mem::take(&mut txn.told) {
            self.tell(&told.name, told.lasting.as_deref().unwrap_or(&told.before));
        }
    }

    /// The transaction is over, however it ended.
    pub(super) fn close_txn(&mut self) {
        let Some(txn) = self.txn.take() else { return };
        self.close_everywhere();
        self.portals.clear();
        self.shared.scheduler.end_txn(txn.id);
        self.locks.return_to(0);
        for lane in txn.snapshot.into_iter().chain(txn.home) {
            // Nothing should be left open; what is, is closed with its connection.
            tracing::debug!(replica = lane.replica.0, "closing a lane that was left open");
        }
    }

    /// An error was answered inside a transaction.
    pub(super) fn fail_transaction(&mut self) {
        self.fail_alone();
        if let Some(txn) = self.txn.as_mut() {
            txn.failed = true;
            // What was locked since the savepoint to which it may go back is free at once, as in PostgreSQL.
            self.locks.return_to(txn.savepoints.last().map_or(0, |savepoint| savepoint.locks));
        }
    }

    /// A replica answered a statement with an error.
    pub(super) fn on_statement_failed(&mut self) {
        self.skipping = true;
        self.steps.clear();
        self.fail_transaction();
    }

    /// Without a savepoint to go back to, a failed transaction holds nothing any more.
    pub(super) async fn end_if_failed(&mut self, id: TxnId) {
        let Some(txn) = self.txn.as_mut() else { return };
        if !txn.savepoints.is_empty() || txn.over {
            return;
        }
        let tell = !txn.autocommit;
        txn.over = true;
        let lanes: Vec<Lane> = txn.snapshot.take().into_iter().chain(txn.home.take()).collect();
        for lane in lanes {
            self.roll_back_lane(lane).await;
        }
        // The core knows of the end of a transaction of one statement by that statement's failure.
        if tell {
            self.shared.scheduler.handle(Event::Rollback { txn: id });
        }
    }

    /// The client is gone: nothing of it stays open.
    pub(super) fn abandon(&mut self) {
        let Some(mut txn) = self.txn.take() else { return };
        self.close_everywhere();
        let lanes: Vec<Lane> = txn.snapshot.take().into_iter().chain(txn.home.take()).collect();
        let (shared, who) = (self.shared.clone(), self.who.clone());
        let (id, tell) = (txn.id, txn.begun && !txn.over);
        let end = move |shared: &Shared| {
            if tell {
                shared.scheduler.handle(Event::Rollback { txn: id });
            }
            shared.scheduler.end_txn(id);
        };
        let broken = txn.broken.take();
        if lanes.is_empty() && broken.is_none() {
            return end(&shared);
        }
        tokio::spawn(async move {
            // The lanes first: items must not be let go while the database still holds its own locks on them.
            if let Some(lane) = broken {
                break_off(&shared, lane).await;
            }
            for lane in lanes {
                roll_back(&shared, &who, lane).await;
            }
            end(&shared);
        });
    }

    /// What the transaction has written, as it goes to the log.
    pub(super) fn record_of_writes(&mut self) -> Writes {
        let Some(txn) = self.txn.as_mut() else { return Writes::default() };
        if txn.writes.is_empty() {
            return Writes::default();
        }
        let (settings, writes) = txn.take_writes();
        self.counted(Record { origin: self.next_origin(), user: self.who.user.clone(), settings, writes })
    }

    /// Prepares the commit of a transaction that was decided, to be sent by whoever learns that its turn has come.
    pub(super) fn arm_commit(&mut self, id: TxnId, decided: Option<Csn>) {
        let (Some(csn), Some(txn)) = (decided, self.txn.as_mut()) else { return };
        let Some(Lane { lent, replica }) = txn.home.as_mut() else { return };
        let home = Home { shared: &self.shared, who: &self.who, txn: id };
        txn.turn = home.arm(&mut lent.lane, *replica, csn);
    }

    /// The next directive of a transaction that may be decided; `None` if its home has committed meanwhile.
    pub(super) async fn next_at_commit(&mut self, id: TxnId) -> Option<Directive> {
        let Some(txn) = self.txn.as_mut() else { return Some(self.mail.next(id).await) };
        let home = Home { shared: &self.shared, who: &self.who, txn: id };
        home.next(&mut txn.turn, &mut txn.home, &self.mail).await
    }

    /// Commits the home's open transaction at its turn.
    pub(super) async fn commit_at(&mut self, id: TxnId, replica: ReplicaId, csn: Csn) {
        let lane = self.txn.as_mut().and_then(|txn| txn.lane_at(replica));
        Home { shared: &self.shared, who: &self.who, txn: id }.commit(replica, csn, lane).await;
    }

    /// If another replica was the first to commit, the home's own turn is awaited in the background.
    pub(super) fn detach_home(&mut self, id: TxnId) {
        let Some((lane, mut turn)) = self.txn.as_mut().and_then(|txn| Some((txn.home.take()?, txn.turn)))
        else {
            return;
        };
        let mail: Arc<Mail> = Arc::default();
        self.shared.scheduler.redirect(id, &self.mail, &mail);
        // The session forgets the transaction; the scheduler must go on knowing where its mail goes.
        if let Some(txn) = self.txn.as_mut() {
            txn.id = TxnId(0);
        }
        let (shared, who) = (self.shared.clone(), self.who.clone());
        tokio::spawn(async move {
            let home = Home { shared: &shared, who: &who, txn: id };
            let mut lane = Some(lane);
            while lane.is_some() {
                match home.next(&mut turn, &mut lane, &mail).await {
                    Some(Directive::CommitAt { replica, csn }) => {
                        home.commit(replica, csn, lane.take()).await;
                    }
                    // The lane is closed, and with it what may be under way on it.
                    Some(Directive::Leave { .. } | Directive::Refuse { .. }) => break,
                    _ => {}
                }
            }
            shared.scheduler.end_txn(id);
        });
    }

    /// Ends a transaction that wrote nothing.
    pub(super) async fn finish(&mut self, replica: Option<ReplicaId>) {
        let Some(lane) = replica.and_then(|replica| self.txn.as_mut().and_then(|txn| txn.lane_at(replica)))
        else {
            return;
        };
        let mut lane = lane;
        match lane.lent.lane.command("COMMIT").await {
            Ok(()) => self.give_back(lane),
            Err(error) if error.is_database() => self.roll_back_lane(lane).await,
            Err(error) => self.lose_lane(lane, &error),
        }
    }

    pub(super) fn answer_or_fail(&mut self, ran: &Ran) -> Done {
        match ran {
            Ran::Answered(answer) if answer.error.is_none() => Done::Answered,
            _ => Done::Failed,
        }
    }
}
