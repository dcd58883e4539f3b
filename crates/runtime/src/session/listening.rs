//! LISTEN, UNLISTEN and NOTIFY of one session.

use onecopy_core::TxnId;
use onecopy_wire::backend::build;
use onecopy_wire::sqlstate::SqlState;

use super::txn::Listen;
use super::{Done, Session};
use crate::errors::Failure;
use crate::notifications::{Listener, Notification};

/// Bytes of the longest channel name, as in PostgreSQL (NAMEDATALEN - 1).
const CHANNEL_LEN_MAX: usize = 63;
/// Bytes of the longest payload, as in PostgreSQL.
const PAYLOAD_LEN_MAX: usize = 7_999;

/// What a client hears before its connection ends since it did not take its notifications.
pub(super) fn overflow() -> Failure {
    Failure::new(
        SqlState::CONFIGURATION_LIMIT_EXCEEDED,
        "terminating connection because too many notifications wait for it",
    )
    .hint("A session takes its notifications when it has no transaction open; limits.notifications_bytes_max is the limit.")
}

impl Session {
    pub(super) fn on_listen(&mut self, change: Listen, extended: bool) -> Done {
        let command = if matches!(change, Listen::To(_)) { "LISTEN" } else { "UNLISTEN" };
        match self.txn.as_mut() {
            Some(txn) => txn.listens.push(change),
            None => self.listen(&change),
        }
        self.answer_command(extended, command);
        Done::Answered
    }

    pub(super) async fn on_notify(&mut self, channel: &str, payload: &str, extended: bool) -> Done {
        if let Err(failure) = self.notify(channel.to_owned(), payload.to_owned()) {
            self.fail(&failure);
            if let Some(id) = self.txn.as_ref().map(|txn| txn.id) {
                self.end_if_failed(id).await;
            }
            return Done::Failed;
        }
        self.publish_own();
        self.answer_command(extended, "NOTIFY");
        Done::Answered
    }

    /// Keeps a notification until its transaction commits.
    pub(super) fn notify(&mut self, channel: String, payload: String) -> Result<(), Failure> {
        let wrong = |what| Err(Failure::new(SqlState::INVALID_PARAMETER_VALUE, what));
        if channel.is_empty() {
            return wrong("channel name cannot be empty");
        }
        if channel.len() > CHANNEL_LEN_MAX {
            return wrong("channel name too long");
        }
        if payload.len() > PAYLOAD_LEN_MAX {
            return wrong("payload string too long");
        }
        let notification = Notification { pid: self.pid(), channel, payload };
        let Some(txn) = self.txn.as_mut() else {
            self.notified.push(notification);
            return Ok(());
        };
        let max = self.shared.limits.transaction_bytes_max;
        txn.writes_bytes += notification.len();
        if txn.writes_bytes > max {
            return Err(Failure::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("the transaction's writes and notifications exceed {max} bytes"),
            )
            .hint("Notify in smaller transactions, or raise limits.transaction_bytes_max."));
        }
        txn.notifications.push(notification);
        Ok(())
    }

    /// The number by which the client may cancel, and by which others know who notified.
    fn pid(&self) -> u32 {
        (self.id.0 & 0x7fff_ffff) as u32
    }

    /// Delivers what a statement outside any transaction has notified.
    pub(super) fn publish_own(&mut self) {
        if !self.notified.is_empty() {
            self.shared.channels.publish(std::mem::take(&mut self.notified));
        }
    }

    fn listen(&mut self, change: &Listen) {
        match change {
            Listen::To(channel) => {
                self.listener().listen(channel);
            }
            Listen::NoLongerTo(channel) => {
                if let Some(listener) = &mut self.listener {
                    listener.unlisten(channel);
                }
            }
            Listen::ToNothing => {
                if let Some(listener) = &mut self.listener {
                    listener.unlisten_all();
                }
            }
        }
    }

    fn listener(&mut self) -> &mut Listener {
        let Session { shared, id, listener, .. } = self;
        let bytes_max = shared.limits.notifications_bytes_max;
        listener.get_or_insert_with(|| Listener::new(&shared.channels, *id, bytes_max))
    }

    /// A transaction that no replica knows of has come to its end.
    pub(super) fn end_without_replica(&mut self) {
        let Some(txn) = self.txn.as_mut().filter(|txn| !txn.over) else { return };
        let (listens, notifications) =
            (std::mem::take(&mut txn.listens), std::mem::take(&mut txn.notifications));
        listens.iter().for_each(|change| self.listen(change));
        if !notifications.is_empty() {
            self.shared.channels.publish(notifications);
        }
    }

    /// Before the decision: who listens in a transaction must hear whatever commits after it.
    pub(super) fn listen_at_commit(&mut self, id: TxnId) -> Listening {
        let Some(txn) = self.txn.as_mut() else { return Listening::default() };
        let (changes, notifications) =
            (std::mem::take(&mut txn.listens), std::mem::take(&mut txn.notifications));
        if !notifications.is_empty() {
            self.shared.scheduler.notify_at_end(id, notifications);
        }
        let mut new = Vec::new();
        for change in &changes {
            if let Listen::To(channel) = change
                && self.listener().listen(channel)
            {
                new.push(channel.clone());
            }
        }
        Listening { changes, new }
    }

    /// After the decision.
    pub(super) fn listened_at_commit(&mut self, listening: Listening, committed: bool) {
        if committed {
            listening.changes.iter().for_each(|change| self.listen(change));
        } else if let Some(listener) = &mut self.listener {
            listening.new.iter().for_each(|channel| listener.unlisten(channel));
        }
    }

    /// Passes on what waits, unless a transaction is open.
    pub(super) fn deliver_notifications(&mut self) {
        let Some(listener) = self.listener.as_ref().filter(|listener| listener.has_any()) else { return };
        if self.txn.is_some() {
            return;
        }
        match listener.take() {
            Ok(notifications) => {
                for said in notifications {
                    build::notification(&mut self.client.output, said.pid, &said.channel, &said.payload);
                }
            }
            Err(_) => self.deaf = true,
        }
    }
}

/// What a transaction changes in what its session listens to.
#[derive(Default)]
pub(super) struct Listening {
    changes: Vec<Listen>,
    /// Listened to from before the decision on.
    new: Vec<String>,
}
