//! From an accepted connection to a session.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use onecopy_classify::Catalogue;
use onecopy_classify::catalogue::DefaultSetting;
use onecopy_core::{Epoch, SessionId};
use onecopy_wire::backend::{Status, build};
use onecopy_wire::carried::Idle;
use onecopy_wire::sqlstate::SqlState;
use onecopy_wire::startup::{self, Start};
use rand::Rng;
use tokio::io::AsyncWriteExt;

use crate::clock::Deadline;
use crate::errors::Failure;
use crate::lane::LaneError;
use crate::pool::{Lent, Pool};
use crate::postgres::connect::Credentials;
use crate::server::door::{Opened, refuse};
use crate::server::{Shared, cancel};
use crate::session::Session;
use crate::session::carried::Carried;
use crate::session::client::{Client, Gate};
use crate::session::environment::{Environment, is_kept_here};
use crate::session::patience::shown_limit;
use crate::session::settings::forbidden_setting;
use crate::stream::Stream;

/// The database name under which the admin console answers.
pub const ADMIN_DATABASE: &str = "onecopy";

/// Serves one connection from its first byte to its last; `crowded` is as in [`Door::admit`](crate::server::door::Door::admit).
pub async fn handle(stream: Stream, shared: Arc<Shared>, crowded: bool) {
    if let Some(opened) = shared.door.admit(stream, crowded).await {
        serve_opened(opened, shared).await;
    }
}

/// Serves a connection of which the first is known.
pub async fn serve_opened(opened: Opened, shared: Arc<Shared>) {
    match opened {
        Opened::Session(client, start, who, counted) => {
            begin(client, start, who, shared).await;
            drop(counted);
        }
        Opened::Cancel { mut stream, pid, key } => {
            let carried_out = cancel::cancel(&shared, pid, &key);
            // The server that is to be told may be slow, but not for ever.
            if tokio::time::timeout(shared.door.startup_timeout(), carried_out).await.is_ok() {
                let _ = stream.shutdown().await;
            }
        }
    }
}

/// Tells the client the server's settings and serves it.
async fn begin(client: Client, start: Start, who: Credentials, shared: Arc<Shared>) {
    serve(client, start, who, None, shared).await;
}

/// The same for a client that a front carries: it has found out who that is, and says which session this is.
pub async fn begin_carried(
    mut client: Client,
    start: Start,
    who: Credentials,
    carried: Carried,
    shared: Arc<Shared>,
) {
    client.is_carried = true;
    serve(client, start, who, Some(carried), shared).await;
}

async fn serve(
    mut client: Client,
    start: Start,
    mut who: Credentials,
    carried: Option<Carried>,
    shared: Arc<Shared>,
) {
    client.gate = shared.member.as_ref().map(|member| Gate::new(member, Epoch(shared.epoch)));
    let database = start.database().to_owned();
    if database == ADMIN_DATABASE {
        return crate::admin::serve(client, who, shared).await;
    }
    if database != shared.settings.database {
        let message = format!("database \"{database}\" does not exist");
        let failure = Failure::new(SqlState::INVALID_CATALOG_NAME, message).hint(format!(
            "This server serves \"{}\", and its console as \"{ADMIN_DATABASE}\".",
            shared.settings.database
        ));
        return refuse(client, &failure).await;
    }
    let environment = match startup_environment(&start, &shared.classifier.catalogue(), &who.user) {
        Ok(environment) => environment,
        Err(failure) => return refuse(client, &failure).await,
    };
    for name in environment.customs() {
        who.customs.add(name);
    }
    let reported = match reported_settings(&shared, &who, &environment).await {
        Ok(reported) => reported,
        Err(failure) => return refuse(client, &failure).await,
    };
    for (name, value) in &reported {
        build::parameter_status(&mut client.output, name, value);
    }
    let id = SessionId(shared.sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let pid = (id.0 & 0x7fff_ffff) as u32;
    let key_len = if start.negotiate().cancel_key_len_max() > startup::CANCEL_KEY_LEN_MIN {
        32
    } else {
        startup::CANCEL_KEY_LEN_MIN
    };
    let key: Vec<u8> = (0..key_len).map(|_| rand::rng().random()).collect();
    if build::backend_key_data(&mut client.output, pid, &key).is_err() {
        return;
    }
    if let Some(carried) = &carried {
        let csn = shared.scheduler.told();
        Idle { commits: carried.commits.made(), csn, movable: true }.encode(&mut client.output);
    }
    build::ready_for_query(&mut client.output, Status::Idle);
    if client.flush().await.is_err() {
        return;
    }
    let cancellable = shared.cancels.register(id, pid, &key);
    Session::new(shared.clone(), id, client, who, cancellable, environment, reported)
        .carried(carried)
        .run()
        .await;
    shared.cancels.forget(pid, &key);
}

/// Settings that the session begins with.
pub fn startup_environment(start: &Start, catalogue: &Catalogue, user: &str) -> Result<Environment, Failure> {
    let mut settings = Vec::new();
    for (name, value) in &start.params {
        match name.as_str() {
            "user" | "database" | "options" => {}
            "replication" if !matches!(value.as_str(), "false" | "off" | "no" | "0") => {
                return Err(Failure::unsupported(
                    "replication connections are not supported",
                    "Connect to one of the replicas directly.",
                ));
            }
            "replication" => {}
            _ => settings.push((name.clone(), value.clone())),
        }
    }
    match start.options() {
        Ok(options) => settings.extend(options),
        Err(error) => return Err(Failure::new(SqlState::INVALID_PARAMETER_VALUE, error.to_string())),
    }
    for (name, value) in &settings {
        // As libpq writes it for PGCLIENTENCODING, the name may stand in quotes.
        if let Some((what, hint)) = forbidden_setting(name, Some(value.trim_matches('\''))) {
            return Err(Failure::unsupported(what, hint));
        }
    }
    // Others of those that SET refuses are not in force on connections to replicas, whatever is said here.
    let begins = ["role", "session_replication_role", "standard_conforming_strings"];
    let of_user = |setting: &&DefaultSetting| setting.role.as_deref().is_none_or(|role| role == user);
    for setting in catalogue.settings.iter().filter(of_user) {
        if begins.contains(&setting.name.to_ascii_lowercase().as_str())
            && let Some((what, _)) = forbidden_setting(&setting.name, Some(&setting.value))
        {
            let hint =
                format!("Undo it: ALTER ROLE, ALTER DATABASE or ALTER SYSTEM ... RESET {}.", setting.name);
            return Err(Failure::unsupported(format!("{what} as a default of sessions"), hint));
        }
    }
    for (name, value) in settings.iter_mut().filter(|(name, _)| is_kept_here(name)) {
        *value = shown_limit(name, value)?;
    }
    settings.retain(|(name, _)| !name.eq_ignore_ascii_case("client_encoding"));
    Ok(Environment::of_startup(catalogue, user, &settings))
}

/// What a server reports to a session of this user with these settings. Asks a replica, so that a role that may not
/// connect hears so now.
async fn reported_settings(
    shared: &Shared,
    who: &Credentials,
    environment: &Environment,
) -> Result<HashMap<String, String>, Failure> {
    let deadline = Deadline::within_ms(shared.limits.wait_timeout_ms);
    // The role may have been made, or given settings, by the last commit.
    let told = shared.scheduler.status().told;
    let mut pause = Duration::from_millis(1);
    loop {
        let replicas = shared.scheduler.status().replicas;
        let is_fresh = |pool: &&Arc<Pool>| {
            replicas.get(usize::from(pool.replica.0)).is_some_and(|replica| replica.applied >= told)
        };
        for pool in shared.pools.in_service().filter(is_fresh) {
            match pool.lend(who).await {
                Ok(mut lent) => match dress(&mut lent, environment).await {
                    Ok(()) => {
                        let reported = lent.lane.params.clone();
                        pool.give_back(who, lent);
                        return Ok(reported);
                    }
                    Err(error) if error.is_database() => return Err(Failure::of_lane(&error)),
                    Err(error) => pool.suspect_now(&error),
                },
                Err(error) if error.is_refusal() => return Err(Failure::of_lane(&error)),
                Err(error) => pool.suspect_now(&error),
            }
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Err(Failure::new(SqlState::CANNOT_CONNECT_NOW, "no replica is in service")
                .hint("Try again when one is back; `onecopy status` shows them."));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

async fn dress(lent: &mut Lent, environment: &Environment) -> Result<(), LaneError> {
    if lent.lane.settings == environment.hash() {
        return Ok(());
    }
    lent.lane.settings = u64::MAX;
    lent.lane.command(&environment.command()).await?;
    lent.lane.settings = environment.hash();
    lent.lane.read_under = environment.meaningful_hash();
    Ok(())
}
