//! What the runtime is started with, given both files.

use onecopy_cli::config::load;
use onecopy_cli::runtime_settings::runtime_settings;
use onecopy_runtime::settings::{ClientAuth, ReplicaTls, Settings};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SECRETS: &str = "\
[replica_login]
user = \"agent\"
password = \"inner\"
[[users]]
name = \"app\"
password = \"outer\"
replica_password = \"third\"
";

fn settings(config: &str) -> Settings {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("onecopy.toml"), config).unwrap();
    let secrets = dir.path().join("onecopy.secrets.toml");
    fs::write(&secrets, SECRETS).unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
    let loaded = load(&dir.path().join("onecopy.toml")).unwrap_or_else(|error| panic!("{error}"));
    runtime_settings(&loaded)
}

#[test]
fn every_setting_reaches_the_runtime() {
    let settings = settings(
        "protocol = \"onecopy\"
workers = 3
[listen]
addresses = [\"10.1.2.3\", \"::1\"]
port = 7000
socket_dir = \"/run/onecopy\"
[client_tls]
mode = \"require\"
certificate = \"/c\"
key = \"/k\"
[replica_tls]
mode = \"verify-full\"
authority = \"/a\"
[log]
dir = \"/l\"
durability = \"memory\"
segment_bytes = 2_097_152
kept_bytes_max = 3_000_000
[pool]
lanes_per_replica_max = 5
connect_timeout_ms = 11
[limits]
connections_max = 6
statement_bytes_max = 7000
transaction_bytes_max = 80_000
held_result_bytes_max = 9
unapplied_bytes_max = 160_000
advisory_locks_max = 14
notifications_bytes_max = 15_000
query_wait_timeout_ms = 10
idle_in_transaction_timeout_ms = 12
startup_timeout_ms = 130
[[databases]]
name = \"shop\"
[[databases.replicas]]
name = \"r1\"
host = \"h1\"
[[databases.replicas]]
name = \"r2\"
host = \"h2\"
port = 5433
tls = \"disable\"
",
    );
    assert_eq!(settings.protocol, "onecopy");
    assert_eq!(settings.workers, 3);
    assert_eq!(settings.listen, ["10.1.2.3:7000", "[::1]:7000", "/run/onecopy:7000"]);
    let tls = settings.tls.unwrap();
    assert!(tls.required && tls.certificate.ends_with("c") && tls.key.ends_with("k"));
    assert_eq!(settings.database, "shop");
    assert_eq!(settings.replicas[0].tls, ReplicaTls::VerifyFull { root: "/a".into() });
    assert_eq!(settings.replicas[1].tls, ReplicaTls::Disable);
    let place =
        |at: usize| (&*settings.replicas[at].name, &*settings.replicas[at].host, settings.replicas[at].port);
    assert_eq!((place(0), place(1)), (("r1", "h1", 5432), ("r2", "h2", 5433)));
    assert_eq!((&*settings.agent_user, settings.agent_password.as_deref()), ("agent", Some("inner")));
    let ClientAuth::Scram(users) = &settings.auth else { panic!("{:?}", settings.auth) };
    let user = &users[0];
    assert_eq!(
        (&*user.name, &*user.password, user.replica_password.as_deref()),
        ("app", "outer", Some("third"))
    );
    assert!(
        !settings.log.durable && settings.log.dir.ends_with("l") && settings.log.segment_bytes == 2_097_152
    );
    assert_eq!(settings.log.kept_bytes_max, 3_000_000);
    let limits = settings.limits;
    assert_eq!((limits.lanes_per_replica_max, limits.connect_timeout_ms), (5, 11));
    assert_eq!((limits.connections_max, limits.message_bytes_max), (6, 7000));
    assert_eq!((limits.transaction_bytes_max, limits.held_result_bytes_max), (80_000, 9));
    assert_eq!(limits.unapplied_bytes_max, 160_000);
    assert_eq!((limits.advisory_locks_max, limits.notifications_bytes_max), (14, 15_000));
    assert_eq!((limits.wait_timeout_ms, limits.idle_in_transaction_timeout_ms), (10, 12));
    assert_eq!(limits.startup_timeout_ms, 130);
}

#[test]
fn trust_passes_no_users_on_and_one_worker_a_processor_is_the_default() {
    let settings = settings(
        "[auth]\nmethod = \"trust\"\n[[databases]]\nname = \"a\"\n[[databases.replicas]]\nname = \"r1\"\nhost = \"h\"\n",
    );
    assert!(matches!(settings.auth, ClientAuth::Trust));
    assert!(settings.tls.is_none());
    assert!(settings.workers >= 1);
    assert!(settings.log.durable);
    assert_eq!(settings.listen, ["127.0.0.1:6432"]);
}
