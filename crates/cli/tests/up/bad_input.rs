//! Clients that send what no honest client sends, or vanish in every state, at a server that asks for passwords.

use super::clients::{connect, rows};
use super::folder;
use onecopy_bench::torture;
use onecopy_bench::torture::bad_input::{Held, Options, run_with};
use onecopy_cli::config::{Durability, Protocol};
use onecopy_cli::local::{LocalCluster, LocalOptions};
use onecopy_cli::runtime_settings::runtime_settings;
use onecopy_cli::serving::{Background, tcp_port};
use onecopy_runtime::settings::{ClientAuth, UserSettings};
use std::time::Duration;
use tokio_postgres::Client;

const STATEMENT_BYTES_MAX: usize = 4 << 20;

/// What the console tells.
async fn held(console: &Client) -> Result<Held, String> {
    let status = rows(console, "SHOW STATUS").await;
    let connections = status.split(", ").find_map(|pair| pair.strip_prefix("connections "));
    let sessions = connections.and_then(|count| count.parse().ok()).ok_or(status.clone())?;
    let replicas = console.simple_query("SHOW REPLICAS").await.map_err(|error| error.to_string())?;
    let lent = replicas.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get("lanes_lent")?.parse::<u64>().ok(),
        _ => None,
    });
    Ok(Held { sessions, lanes: lent.sum() })
}

#[test]
fn bad_clients_are_refused_and_leave_nothing_behind() {
    let dir = folder();
    let options = LocalOptions {
        dir: dir.path().to_owned(),
        replicas: 2,
        port: 0,
        protocol: Protocol::Onecopy,
        durability: Durability::Disk,
        pg_bin: None,
    };
    let local = LocalCluster::start(&options).unwrap();
    let mut settings = runtime_settings(local.loaded());
    settings.auth = ClientAuth::Scram(vec![UserSettings {
        name: settings.agent_user.clone(),
        password: "let me in".to_owned(),
        replica_password: settings.agent_password.clone(),
    }]);
    settings.limits.message_bytes_max = STATEMENT_BYTES_MAX;
    let user = settings.agent_user.clone();
    let server = Background::start(settings).unwrap();
    let port = tcp_port(server.addresses()).unwrap();
    let dsn = format!("host=127.0.0.1 port={port} user={user} password='let me in'");
    super::clients::block_on(async {
        let console = connect(&format!("{dsn} dbname=onecopy")).await;
        let mut options = Options::new(format!("{dsn} dbname=postgres"));
        options.statement_max_bytes = Some(STATEMENT_BYTES_MAX);
        // Others may be testing on this machine at the same time.
        options.patience = Duration::from_secs(30);
        let report = run_with(&options, async || held(&console).await).await.unwrap();
        assert!(report.passed(), "{report}");
        let skipped = |case: &&torture::bad_input::CaseReport| {
            matches!(case.verdict, torture::bad_input::Verdict::NotApplicable(_))
        };
        let skipped: Vec<&str> = report.cases.iter().filter(skipped).map(|case| &*case.name).collect();
        assert_eq!(skipped, ["vanish with a temporary table"]);
        let replicas: Vec<String> = local.replica_dsns();
        let comparison =
            torture::compare_until_identical(&replicas, &Default::default(), Duration::from_secs(60))
                .await
                .unwrap();
        assert!(comparison.identical(), "{comparison}");
    });
    server.stop().unwrap();
    local.stop().unwrap();
}
