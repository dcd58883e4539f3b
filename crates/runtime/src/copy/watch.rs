//! Nobody waits for a copy: it holds a weak lock on every table of its source, and gives it up as soon as somebody wants a
//! table for itself. And a copy for which the log does not reach back far enough any more is not made to its end.

use std::time::Duration;

use onecopy_core::Csn;

use crate::agent::quote;
use crate::copy::{CopyError, target};
use crate::health;
use crate::lane::{Lane, LaneError};
use crate::pool::Pool;
use crate::retention::{self, Gap};
use crate::server::Shared;

/// How often it is looked who waits.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Characters of a statement that are shown.
const STATEMENT_LEN_MAX: usize = 120;

/// What the copy's sessions on the source are called there.
pub fn label(target: &Pool) -> String {
    format!("onecopy copy to replica {}", target.replica.0)
}

/// The processes of the copy, as a subquery.
fn processes(target: &Pool) -> String {
    format!(
        "(SELECT a.pid FROM pg_catalog.pg_stat_activity a WHERE a.application_name = {} \
         AND a.datname = pg_catalog.current_database())",
        quote(&label(target))
    )
}

/// Ends when the target is silent: it would keep the copy, and with that the snapshot on the source, for ever.
pub async fn until_ill(
    shared: &Shared,
    target: &Pool,
) -> Result<impl Future<Output = CopyError> + use<>, CopyError> {
    let probe = target::beside(shared, &target.connector).await.map_err(CopyError::on(target))?;
    let (silence, name) = (target.connector.silence, target.name().to_owned());
    Ok(async move { CopyError::Ill { name, ill: health::watch(probe, silence).await } })
}

/// Ends when somebody waits for the copy's locks. A source that is silent leaves service, which ends the copy, too.
pub async fn until_in_the_way(shared: &Shared, source: &Pool, target: &Pool) -> CopyError {
    let on_source = CopyError::on(source);
    let incarnation = source.incarnation();
    let mut lane = match source.connector.connect_unmarked(&shared.agent).await {
        Ok(lane) => lane,
        Err(error) => return on_source(error),
    };
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        if source.incarnation() != incarnation {
            return CopyError::NoSource;
        }
        match who_waits(&mut lane, target).await {
            Ok(None) => {}
            Ok(Some((pid, statement))) => {
                let statement = statement.chars().take(STATEMENT_LEN_MAX).collect();
                return CopyError::InTheWay { source_name: source.name().to_owned(), pid, statement };
            }
            Err(error) => return on_source(error),
        }
    }
}

async fn who_waits(lane: &mut Lane, target: &Pool) -> Result<Option<(String, String)>, LaneError> {
    let sql = format!(
        "SELECT w.pid, w.query FROM pg_catalog.pg_stat_activity w WHERE w.wait_event_type = 'Lock' \
         AND pg_catalog.pg_blocking_pids(w.pid) && ARRAY{} AND w.pid <> ALL (ARRAY{}) LIMIT 1",
        processes(target),
        processes(target)
    );
    let mut values = lane.query(&sql).await?.into_iter().flatten().map(Option::unwrap_or_default);
    Ok(values.next().map(|pid| (pid, values.next().unwrap_or_default())))
}

/// Ends when the log has let go of what follows the snapshot.
pub async fn until_overtaken(shared: &Shared, position: Csn) -> Gap {
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        if let Err(gap) = retention::check(position, shared.retention.first()) {
            return gap;
        }
    }
}

/// Ends the copy's sessions on the source. If it cannot be asked, it ends them by itself when it notices that their
/// connections are closed.
pub async fn end_sessions(shared: &Shared, source: &Pool, target: &Pool) {
    let ended = async {
        let mut lane = source.connector.connect_unmarked(&shared.agent).await?;
        lane.command(&format!(
            "SELECT pg_catalog.pg_terminate_backend(copying.pid) FROM {} copying",
            processes(target)
        ))
        .await
    };
    if let Err(error) = source.connector.in_time(ended).await {
        tracing::warn!(replica = source.name(), %error, "end the sessions of a copy");
    }
}
