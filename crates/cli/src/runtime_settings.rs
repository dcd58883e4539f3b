//! From the configuration files to what the runtime is started with.

use crate::config::{
    AuthMethod, ClientTlsMode, Config, Durability, Loaded, Node, ReplicaTlsMode, SiteDelivery, SiteExecution,
    SiteItems, SiteQueries, User, WideArea,
};
use onecopy_core::protocol::wide_area::{Choice, Delivery, Execution, Items, Queries};
use onecopy_runtime::settings::{
    ClientAuth, Limits, LogSettings, NodeSettings, NodesSettings, PartSettings, ReplicaSettings, ReplicaTls,
    Settings, TlsSettings, UserSettings,
};
use std::net::{IpAddr, SocketAddr};
use std::thread::available_parallelism;

/// What the runtime is started with. The configuration was checked, so it names exactly one database.
#[must_use]
pub fn runtime_settings(loaded: &Loaded) -> Settings {
    let Loaded { config, secrets, warnings: _ } = loaded;
    let database = config.databases.first();
    let auth = match config.auth.method {
        AuthMethod::Scram => ClientAuth::Scram(secrets.users.iter().map(user).collect()),
        AuthMethod::Trust => ClientAuth::Trust,
    };
    Settings {
        listen: addresses(config),
        tls: client_tls(config),
        auth,
        database: database.map(|database| database.name.clone()).unwrap_or_default(),
        replicas: replicas(config),
        replica_tls: replica_tls(config, config.replica_tls.mode),
        replica_tls_root: config.replica_tls.authority.clone(),
        agent_user: secrets.replica_login.user.clone(),
        agent_password: secrets.replica_login.password.as_ref().map(|password| password.0.clone()),
        protocol: config.protocol.word().to_owned(),
        wide_area: wide_area(&config.wide_area),
        staleness_max_ms: config.wide_area.staleness_max_ms,
        divided: config.peers.divided.clone(),
        parts: config.peers.parts.iter().map(part).collect(),
        deals: config.peers.deals,
        granules: config.peers.granules,
        coalesces: config.peers.coalesces,
        log: LogSettings {
            dir: config.log.dir.clone(),
            durable: config.log.durability == Durability::Disk,
            segment_bytes: config.log.segment_bytes,
            kept_bytes_max: config.log.kept_bytes_max,
        },
        limits: limits(config),
        workers: workers(config),
        annul: Vec::new(),
        nodes: nodes(loaded),
    }
}

fn wide_area(chosen: &WideArea) -> Choice {
    Choice {
        queries: match chosen.queries {
            SiteQueries::Snapshot => Queries::Snapshot,
            SiteQueries::Locked => Queries::Locked,
        },
        execution: match chosen.execution {
            SiteExecution::Symmetric => Execution::Symmetric,
            SiteExecution::PrimaryCopy => Execution::PrimaryCopy,
            SiteExecution::LocalCopy => Execution::LocalCopy,
        },
        delivery: match chosen.delivery {
            SiteDelivery::Safe => Delivery::Safe,
            SiteDelivery::Agreed => Delivery::Agreed,
            SiteDelivery::OptAgreed => Delivery::OptAgreed,
            SiteDelivery::OptSafe => Delivery::OptSafe,
            SiteDelivery::OrderedOptSafe => Delivery::OrderedOptSafe,
        },
        items: match chosen.items {
            SiteItems::Rows => Items::Rows,
            SiteItems::Tables => Items::Tables,
        },
    }
}

fn nodes(Loaded { config, secrets, .. }: &Loaded) -> Option<NodesSettings> {
    let cluster = &config.cluster;
    let (this, secret) = (cluster.node?, secrets.cluster_secret.as_ref()?.0.clone());
    let node = |node: &Node| NodeSettings {
        id: node.id.into(),
        host: node.host.clone(),
        port: node.port,
        voting: node.voting,
    };
    Some(NodesSettings {
        this: this.into(),
        secret,
        nodes: cluster.nodes.iter().map(node).collect(),
        election_timeout_ms: cluster.election_timeout_ms,
    })
}

/// Threads that serve connections. Servers on the same machine need more of it than onecopy does: it leaves them half of
/// the processors, and what fewer threads serve together costs each of them less.
fn workers(config: &Config) -> usize {
    let processors = available_parallelism().map_or(1, usize::from);
    let mut replicas = config.databases.iter().flat_map(|database| &database.replicas);
    match config.workers {
        0 if replicas.any(|replica| is_here(&replica.host)) => processors.div_ceil(2),
        0 => processors,
        given => count(given),
    }
}

/// Whether a host is surely this machine: a folder of sockets, or an address that leaves no machine.
fn is_here(host: &str) -> bool {
    host.starts_with('/')
        || host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn addresses(config: &Config) -> Vec<String> {
    let port = config.listen.port;
    let tcp = config.listen.addresses.iter().map(|address| SocketAddr::new(*address, port).to_string());
    let unix = config.listen.socket_dir.iter().map(|dir| format!("{}:{port}", dir.display()));
    tcp.chain(unix).collect()
}

fn client_tls(config: &Config) -> Option<TlsSettings> {
    let tls = &config.client_tls;
    let required = match tls.mode {
        ClientTlsMode::Disable => return None,
        ClientTlsMode::Allow => false,
        ClientTlsMode::Require => true,
    };
    Some(TlsSettings { certificate: tls.certificate.clone()?, key: tls.key.clone()?, required })
}

fn user(user: &User) -> UserSettings {
    UserSettings {
        name: user.name.clone(),
        password: user.password.0.clone(),
        replica_password: user.replica_password.as_ref().map(|password| password.0.clone()),
    }
}

fn replicas(config: &Config) -> Vec<ReplicaSettings> {
    let given = config.databases.iter().flat_map(|database| &database.replicas);
    let replica = |replica: &crate::config::Replica| ReplicaSettings {
        name: replica.name.clone(),
        host: replica.host.clone(),
        port: replica.port,
        tls: replica_tls(config, replica.tls.unwrap_or(config.replica_tls.mode)),
    };
    given.map(replica).collect()
}

fn part(of: &crate::config::Part) -> PartSettings {
    let crate::config::Part { table, column, bounds } = of.clone();
    PartSettings { table, column, bounds }
}

fn replica_tls(config: &Config, mode: ReplicaTlsMode) -> ReplicaTls {
    match (mode, &config.replica_tls.authority) {
        (ReplicaTlsMode::Disable, _) => ReplicaTls::Disable,
        (ReplicaTlsMode::VerifyFull, Some(root)) => ReplicaTls::VerifyFull { root: root.clone() },
        // The configuration's check refuses verify-full without an authority.
        (ReplicaTlsMode::Require | ReplicaTlsMode::VerifyFull, _) => ReplicaTls::Require,
    }
}

fn limits(config: &Config) -> Limits {
    let limits = &config.limits;
    Limits {
        connections_max: count(limits.connections_max),
        lanes_per_replica_max: count(config.pool.lanes_per_replica_max),
        message_bytes_max: bytes(limits.statement_bytes_max),
        transaction_bytes_max: bytes(limits.transaction_bytes_max),
        held_result_bytes_max: bytes(limits.held_result_bytes_max),
        unapplied_bytes_max: bytes(limits.unapplied_bytes_max),
        advisory_locks_max: count(limits.advisory_locks_max),
        notifications_bytes_max: bytes(limits.notifications_bytes_max),
        idle_in_transaction_timeout_ms: limits.idle_in_transaction_timeout_ms,
        wait_timeout_ms: limits.query_wait_timeout_ms,
        startup_timeout_ms: limits.startup_timeout_ms,
        connect_timeout_ms: config.pool.connect_timeout_ms,
        silence_timeout_ms: config.pool.silence_timeout_ms,
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::is_here;

    #[test]
    fn hosts_that_are_surely_this_machine() {
        for host in ["/var/run/postgresql", "127.0.0.1", "127.3.2.1", "::1", "Localhost"] {
            assert!(is_here(host), "{host}");
        }
        for host in ["10.0.0.1", "db1.example.org", "localhost.example.org", "fe80::1", ""] {
            assert!(!is_here(host), "{host}");
        }
    }
}
