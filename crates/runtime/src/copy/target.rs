//! The server that becomes a replica: made ready for the rows, completed behind them, and last of all given onecopy's schema.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::{quote, quote_identifier};
use crate::clock::Deadline;
use crate::copy::CopyError;
use crate::copy::roles;
use crate::copy::source::{Exported, Rest};
use crate::lane::{Lane, LaneError};
use crate::membership;
use crate::pool::Pool;
use crate::postgres::checks;
use crate::postgres::connect::Connector;
use crate::postgres::progress;
use crate::server::Shared;

/// How often it is looked whether sessions that were told to end have ended.
const FENCE_PAUSE: Duration = Duration::from_millis(20);
/// How long they may take.
const FENCE_WAIT: Duration = Duration::from_secs(10);
/// Rows of progress, or sequences, in one statement.
const ROWS_AT_ONCE: usize = 500;

/// A connection to the server beside the database that is copied, to make and drop that, which begins as the server has it.
///
/// # Errors
/// If there is none.
pub async fn beside(shared: &Shared, connector: &Connector) -> Result<Lane, LaneError> {
    let mut result = Err(LaneError::Closed);
    for database in ["postgres", "template1"] {
        if *connector.database != *database {
            let connector = Connector { database: database.into(), ..connector.clone() };
            result = connector.connect_plain(&shared.agent).await;
            if !matches!(&result, Err(error) if error.is_database()) {
                break;
            }
        }
    }
    result
}

/// Makes roles, database and definitions. What an earlier attempt has left is dropped, with its sessions.
pub async fn make(shared: &Shared, target: &Arc<Pool>, exported: &Exported) -> Result<(), CopyError> {
    let on_target = CopyError::on(target);
    let mut lane = beside(shared, &target.connector).await.map_err(&on_target)?;
    fence(shared, target, &mut lane).await?;
    let known = roles::names(&mut lane).await.map_err(&on_target)?;
    let beyond = exported.roles.beyond(&known);
    if !beyond.is_empty() {
        return Err(CopyError::RolesBeyond(beyond));
    }
    let script = Script::of(&exported.definitions.before);
    let made = async {
        let database = quote_identifier(&shared.settings.database);
        lane.command(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await?;
        let mut statements = roles::revocations(&mut lane).await?;
        statements.extend(exported.roles.statements(&known, &shared.agent_user));
        lane.command(&format!("BEGIN; {}; COMMIT", statements.join("; "))).await?;
        for part in &script.outside {
            lane.command(part).await?;
        }
        let mut lane = target.connector.connect_unmarked(&shared.agent).await?;
        for part in &script.inside {
            lane.command(part).await?;
        }
        let mut plain = target.connector.connect_plain(&shared.agent).await?;
        checks::facts(&mut plain).await
    };
    let facts = made.await.map_err(&on_target)?;
    let (found, noted) = (facts.version(), target.version());
    if let Some(noted) = noted.filter(|noted| *noted != found) {
        // By that it was decided how the rows of others go there.
        membership::note_version(shared, target, found.clone()).await;
        return Err(CopyError::OtherVersion { found, noted });
    }
    checks::compare(&[(exported.name.as_str(), &exported.facts), (target.name(), &facts)], true)
        .map_err(CopyError::Unequal)
}

/// Ends what earlier attempts have left running beside the database: a session that waits for a lock does not notice that
/// nobody listens any more, and would change roles when it gets it. Sessions in the database are ended with it.
async fn fence(shared: &Shared, target: &Pool, lane: &mut Lane) -> Result<(), CopyError> {
    let on_target = CopyError::on(target);
    let name = quote(&name_beside(shared));
    lane.command(&format!("SET application_name = {name}")).await.map_err(&on_target)?;
    let terminate = format!(
        "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a \
         WHERE a.application_name = {name} AND a.pid <> pg_catalog.pg_backend_pid()"
    );
    let deadline = Deadline::after(FENCE_WAIT);
    while !lane.query(&terminate).await.map_err(&on_target)?.is_empty() {
        if deadline.has_passed() {
            return Err(CopyError::SessionsRemain);
        }
        tokio::time::sleep(FENCE_PAUSE).await;
    }
    Ok(())
}

/// What the sessions of a copy are called beside its database; a server may hold copies of several. PostgreSQL keeps 63 bytes
/// of ASCII.
fn name_beside(shared: &Shared) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let database: String = shared.settings.database.chars().take(30).map(plain).collect();
    format!("onecopy copy of {database}")
}

/// What has to come after the rows.
pub async fn complete(shared: &Shared, target: &Arc<Pool>, rest: &Rest) -> Result<(), CopyError> {
    let on_target = CopyError::on(target);
    let completed = async {
        let mut lane = target.connector.connect_unmarked(&shared.agent).await?;
        for some in rest.places.chunks(ROWS_AT_ONCE) {
            let place = |place: &crate::copy::source::Place| {
                format!(
                    "SELECT pg_catalog.setval({}, {}, {})",
                    quote(&place.sequence),
                    place.last,
                    place.is_called
                )
            };
            lane.command(&some.iter().map(place).collect::<Vec<_>>().join("; ")).await?;
        }
        for part in &Script::of(&rest.after).inside {
            lane.command(part).await?;
        }
        lane.command("ANALYZE").await?;
        lane.command("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
        let views = checks::sums(&mut lane, "'m'").await?;
        lane.command("COMMIT").await?;
        Ok(views)
    };
    let views = completed.await.map_err(&on_target)?;
    match checks::differences(&rest.views, &views) {
        stale if stale.is_empty() => Ok(()),
        stale => Err(CopyError::StaleViews(stale)),
    }
}

/// Has the database follow the log from the snapshot's commit on. Everything before it is on disk when this is.
pub async fn follow(shared: &Shared, target: &Arc<Pool>, rest: &Rest) -> Result<(), CopyError> {
    let position = &rest.position;
    let mut sql = format!(
        "SET synchronous_commit = on; BEGIN; {}",
        progress::schema_sql(&position.log_id, &position.secret)
    );
    for some in rest.progress.chunks(ROWS_AT_ONCE) {
        let rows: Vec<String> =
            some.iter().map(|[csn, prev, epoch]| format!("({csn}, {prev}, {epoch})")).collect();
        sql.push_str(&format!(
            "; INSERT INTO onecopy.progress (csn, prev, epoch) VALUES {}",
            rows.join(", ")
        ));
    }
    sql.push_str("; COMMIT");
    let followed = async {
        let mut lane = target.connector.connect_unmarked(&shared.agent).await?;
        lane.command(&sql).await
    };
    followed.await.map_err(CopyError::on(target))
}

/// What pg_dump says from version 17 on, and the same for any server.
const NO_TRANSACTION_TIMEOUT: &str = "SET transaction_timeout = 0;";
const NO_TRANSACTION_TIMEOUT_IF_KNOWN: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout';\n";

/// What pg_dump writes for psql, as commands for a server.
#[derive(Debug, PartialEq, Eq, Default)]
struct Script {
    /// Up to where the database exists, and its owner is set: statements that stand by themselves.
    outside: Vec<String>,
    /// What is to be sent over a connection to it.
    inside: Vec<String>,
}

impl Script {
    /// pg_dump marks the parts in which a backslash is no command of psql's by `\restrict` and a word, since 15.14 and kin;
    /// elsewhere only `\connect` is one.
    fn of(dump: &str) -> Script {
        let mut parts = vec![String::new()];
        let mut word: Option<&str> = None;
        let marked = dump.lines().any(|line| line.starts_with("\\restrict "));
        for line in dump.lines() {
            match (word, line.split_once(' ')) {
                (None, Some(("\\restrict", given))) => word = Some(given),
                (Some(given), Some(("\\unrestrict", ends))) if given == ends => word = None,
                (None, Some(("\\connect", _))) if marked || !is_body(&parts) => parts.push(String::new()),
                // Newer programs than the server say it, which need not know that setting.
                _ if line == NO_TRANSACTION_TIMEOUT && !is_body(&parts) => {
                    if let Some(part) = parts.last_mut() {
                        part.push_str(NO_TRANSACTION_TIMEOUT_IF_KNOWN);
                    }
                }
                _ => {
                    if let Some(part) = parts.last_mut() {
                        part.push_str(line);
                        part.push('\n');
                    }
                }
            }
        }
        let mut parts = parts.into_iter();
        // Without --create it is one part, for a connection to the database.
        if parts.len() < 2 {
            return Script { outside: Vec::new(), inside: parts.collect() };
        }
        let (makes, others): (Vec<String>, Vec<String>) = parts
            .next()
            .unwrap_or_default()
            .split_inclusive('\n')
            .map(str::to_owned)
            .partition(|line| line.starts_with("CREATE DATABASE "));
        Script { outside: makes.into_iter().chain([others.concat()]).collect(), inside: parts.collect() }
    }
}

/// Whether objects are made already: no other database is connected to after that.
fn is_body(parts: &[String]) -> bool {
    let makes = |line: &str| line.starts_with("CREATE ") && !line.starts_with("CREATE DATABASE ");
    parts.last().is_some_and(|part| part.lines().any(makes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "--\n-- a dump\n--\n\n\\restrict Word\n\nSET a = 1;\nCREATE DATABASE shop WITH TEMPLATE = template0;\n\n\
        ALTER DATABASE shop OWNER TO ada;\n\\unrestrict Word\n\\connect shop\n\\restrict Word\nCOMMENT ON DATABASE shop IS 'x';\n\
        \\unrestrict Word\n\\connect shop\n\\restrict Word\nCREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT '\n\
        \\connect shop\n\\unrestrict Other\n'$$;\n\\unrestrict Word\n";

    #[test]
    fn what_psql_would_do_is_taken_out_of_a_dump_and_nothing_else() {
        let script = Script::of(DUMP);
        assert_eq!(script.outside[0], "CREATE DATABASE shop WITH TEMPLATE = template0;\n");
        assert_eq!(
            script.outside[1],
            "--\n-- a dump\n--\n\n\nSET a = 1;\n\nALTER DATABASE shop OWNER TO ada;\n"
        );
        assert_eq!(script.inside[0], "COMMENT ON DATABASE shop IS 'x';\n");
        assert!(script.inside[1].contains("SELECT '\n\\connect shop\n\\unrestrict Other\n'$$;\n"));
        assert_eq!((script.outside.len(), script.inside.len()), (2, 2));
    }

    #[test]
    fn dump_of_an_older_program_is_divided_where_it_connects() {
        let without: String =
            DUMP.lines().filter(|line| !line.contains("restrict")).flat_map(|line| [line, "\n"]).collect();
        let script = Script::of(&without);
        assert_eq!((script.outside.len(), script.inside.len()), (2, 2));
        assert!(script.inside[1].contains("SELECT '\n\\connect shop\n'$$;\n"));
    }

    #[test]
    fn setting_that_older_servers_do_not_know_is_set_where_it_is_known() {
        let body = "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT '\nSET transaction_timeout = 0;\n'$$;\n";
        let script = Script::of(&format!("SET transaction_timeout = 0;\n{body}"));
        assert_eq!(script.inside, [format!("{NO_TRANSACTION_TIMEOUT_IF_KNOWN}{body}")]);
    }

    #[test]
    fn dump_without_the_database_is_one_part() {
        let script = Script::of("SET a = 1;\nALTER TABLE t ADD PRIMARY KEY (id);\n");
        assert_eq!(script.outside, [""; 0]);
        assert_eq!(script.inside, ["SET a = 1;\nALTER TABLE t ADD PRIMARY KEY (id);\n"]);
    }
}
