//! How many files the process may open, and what it needs: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::errors::ServeError;
use crate::settings::{Limits, Settings};

/// Connections that are accepted beyond `connections_max`, to be told that there are too many, or to cancel a statement; each
/// may open another one to a replica.
pub const ADMITTED_BEYOND: usize = 64;
/// A lane's socket, and a second handle of it by which others than its session can end it.
const PER_LANE: u64 = 2;
/// The agent's connections to its replica, and those that are opened to ask something once.
const PER_REPLICA: u64 = 8;
/// A worker's event loop.
const PER_WORKER: u64 = 8;
/// Where several nodes serve together, a client has a connection to its node, which has one to the node that leads; if that is
/// the same by now, it is the other end of it, too. And a node leads as many clients of others as it may have itself.
const PER_CARRIED_CLIENT: u64 = 3;
/// Both directions to another node, while they are made again.
const PER_NODE: u64 = 8;
/// The log, the listeners, the standard streams, and what libraries open.
const OTHERS: u64 = 64;

/// Sees to it that the process may open as many files as its limits need. Where the system does not let it, the limits are
/// lowered, and a warning says so: a process without a file left could neither reach its replicas nor write its log.
///
/// # Errors
/// [`ServeError::Files`] if not even the least can be served.
pub fn make_room(settings: &mut Settings) -> Result<(), ServeError> {
    let needed = Need::of(settings);
    let wanted = needed.with(&settings.limits);
    let files_max = raise(wanted);
    let Some(lowered) = needed.fit(&settings.limits, files_max)? else { return Ok(()) };
    tracing::warn!(
        "the process may open {files_max} files, and limits.connections_max = {} with pool.lanes_per_replica_max = {} need \
         {wanted}: {} client connections and {} connections for statements on each replica are served; let it open more \
         (ulimit -Hn, LimitNOFILE= of systemd), or lower these settings",
        settings.limits.connections_max,
        settings.limits.lanes_per_replica_max,
        lowered.connections_max,
        lowered.lanes_per_replica_max,
    );
    settings.limits = lowered;
    Ok(())
}

/// The same for one more replica, while limits are in force already.
///
/// # Errors
/// If the system does not let it.
pub fn make_room_for(settings: &Settings, replicas: usize) -> Result<(), String> {
    let wanted = Need::of_replicas(settings, replicas as u64).with(&settings.limits);
    let files_max = raise(wanted);
    if files_max >= wanted {
        return Ok(());
    }
    Err(format!(
        "onecopy may open {files_max} files and needs {wanted} with one more replica; let it open more (ulimit -Hn, LimitNOFILE= of systemd), or lower limits.connections_max or pool.lanes_per_replica_max, and start it again"
    ))
}

/// Raises the limit of the process to what is wanted, as far as it may; returns what it is now.
fn raise(wanted: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let raised = wanted.min(now.maximum.unwrap_or(u64::MAX));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: now.maximum }) {
        Ok(()) => raised,
        Err(_) => current,
    }
}

/// Files that a server needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Need {
    /// Whatever its limits are.
    fixed: u64,
    replicas: u64,
    per_client: u64,
}

impl Need {
    fn of(settings: &Settings) -> Need {
        Need::of_replicas(settings, settings.replicas.len() as u64)
    }

    fn of_replicas(settings: &Settings, replicas: u64) -> Need {
        let workers = settings.workers as u64;
        let listeners = settings.listen.len() as u64;
        let fixed = OTHERS
            + listeners
            + PER_REPLICA * replicas
            + PER_WORKER * workers.max(1)
            + 2 * ADMITTED_BEYOND as u64;
        match &settings.nodes {
            None => Need { fixed, replicas, per_client: 1 },
            Some(nodes) => {
                // Their fronts' requests to cancel, and ours.
                let among = PER_NODE * nodes.nodes.len() as u64 + 2 * ADMITTED_BEYOND as u64;
                Need { fixed: fixed + among, replicas, per_client: PER_CARRIED_CLIENT }
            }
        }
    }

    fn with(self, limits: &Limits) -> u64 {
        let lanes = self.per_lane().saturating_mul(limits.lanes_per_replica_max as u64);
        self.fixed
            .saturating_add(lanes)
            .saturating_add(self.per_client.saturating_mul(limits.connections_max as u64))
    }

    /// Files of one more lane on each replica.
    fn per_lane(self) -> u64 {
        PER_LANE * self.replicas.max(1)
    }

    /// Limits that need no more files than there may be; `None` if these do already.
    fn fit(self, limits: &Limits, files_max: u64) -> Result<Option<Limits>, ServeError> {
        if self.with(limits) <= files_max {
            return Ok(None);
        }
        let least = self.fixed + self.per_lane() + self.per_client;
        if files_max < least {
            return Err(ServeError::Files { files_max, least });
        }
        let room = files_max - self.fixed;
        // Lanes are shared by all clients: few of them serve many, so they take half at most.
        let lanes = (room / 2 / self.per_lane()).clamp(1, limits.lanes_per_replica_max as u64);
        let connections =
            ((room - lanes * self.per_lane()) / self.per_client).min(limits.connections_max as u64);
        Ok(Some(Limits {
            lanes_per_replica_max: lanes as usize,
            connections_max: connections as usize,
            ..limits.clone()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections_max: usize, lanes_per_replica_max: usize) -> Limits {
        Limits {
            connections_max,
            lanes_per_replica_max,
            message_bytes_max: 1,
            transaction_bytes_max: 1,
            held_result_bytes_max: 1,
            unapplied_bytes_max: 1,
            advisory_locks_max: 1,
            notifications_bytes_max: 1,
            idle_in_transaction_timeout_ms: 0,
            wait_timeout_ms: 0,
            startup_timeout_ms: 0,
            connect_timeout_ms: 0,
            silence_timeout_ms: 0,
        }
    }
    const NEED: Need = Need { fixed: 100, replicas: 3, per_client: 1 };

    /// Connections and lanes that are served instead.
    fn fitted(limits: &Limits, files_max: u64) -> Option<(usize, usize)> {
        let lowered = NEED.fit(limits, files_max).unwrap()?;
        assert!(NEED.with(&lowered) <= files_max);
        Some((lowered.connections_max, lowered.lanes_per_replica_max))
    }

    #[test]
    fn limits_that_fit_stay_and_others_are_lowered_until_they_do() {
        let wished = limits(2_000, 64);
        assert_eq!(NEED.with(&wished), 100 + 3 * 2 * 64 + 2_000);
        assert_eq!(fitted(&wished, 2_484), None);
        assert_eq!(fitted(&wished, 2_483), Some((1_999, 64)));
        assert_eq!(fitted(&wished, 1_024), Some((540, 64)));
        assert_eq!(fitted(&wished, 400), Some((150, 25)));
        assert_eq!(fitted(&limits(10, 1_000), 1_000), Some((10, 75)));
        assert_eq!(fitted(&wished, 107), Some((1, 1)));
    }

    #[test]
    fn clients_that_are_carried_to_another_node_need_more_than_one_each() {
        let need = Need { per_client: 3, ..NEED };
        let wished = limits(2_000, 64);
        assert_eq!(need.with(&wished), 100 + 3 * 2 * 64 + 3 * 2_000);
        for files_max in [109, 400, 1_024, 6_483] {
            let lowered = need.fit(&wished, files_max).unwrap().unwrap();
            assert!(need.with(&lowered) <= files_max && lowered.connections_max > 0, "{files_max}");
        }
        assert!(need.fit(&wished, 108).is_err());
    }

    #[test]
    fn start_with_no_room_for_one_client_is_refused_with_what_it_needs() {
        let refused = NEED.fit(&limits(2_000, 64), 106).unwrap_err().to_string();
        assert!(refused.contains("106") && refused.contains("107"), "{refused}");
    }

    #[test]
    fn limit_of_the_process_is_raised_as_far_as_it_may_be_and_never_lowered() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert_eq!(raise(1), before);
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(raise(before.min(most)), before.min(most));
    }
}
