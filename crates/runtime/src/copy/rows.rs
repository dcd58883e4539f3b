//! Rows, from one server's COPY into the other's, several tables side by side, all in the exported snapshot. They are not
//! decoded on their way.

use std::sync::Arc;

use onecopy_wire::backend::{self, Backend, tag};
use onecopy_wire::frontend::build;
use parking_lot::Mutex;

use crate::agent::quote;
use crate::copy::source::{Exported, Table};
use crate::copy::{CopyError, Progress, source};
use crate::lane::{Lane, LaneError};
use crate::pool::Pool;
use crate::server::Shared;

/// Bytes that are collected before they are sent on.
const SEND_LEN: usize = 256 * 1024;

/// Copies all rows of all tables.
pub async fn copy(
    shared: &Shared,
    source: &Arc<Pool>,
    target: &Arc<Pool>,
    exported: &Exported,
    progress: &Progress<'_>,
) -> Result<(), CopyError> {
    // The largest is taken first: begun last, it would be alone at the end.
    let tables: Mutex<Vec<&Table>> = Mutex::new(exported.tables.iter().rev().collect());
    let next = || tables.lock().pop();
    let work = || async {
        let (on_source, on_target) = (CopyError::on(source), CopyError::on(target));
        let mut from = source::open(shared, source, target).await.map_err(&on_source)?;
        let taken = format!("SET TRANSACTION SNAPSHOT {}", quote(&exported.snapshot));
        from.command(&taken).await.map_err(&on_source)?;
        let mut to = target.connector.connect_unmarked(&shared.agent).await.map_err(&on_target)?;
        to.command("SET search_path = ''; SET row_security = off").await.map_err(&on_target)?;
        while let Some(table) = next() {
            if table.is_extensions {
                to.command(&format!("DELETE FROM {}", table.name)).await.map_err(&on_target)?;
            }
            match relay(&mut from, &mut to, &table.sql, |bytes| progress.passed(bytes)).await {
                Ok(()) => progress.table_done(),
                Err(Side::Source(error)) => return Err(on_source(error)),
                Err(Side::Target(error)) => return Err(on_target(error)),
            }
        }
        Ok(())
    };
    // So many that the largest tables overlap, and few enough for the connections that servers keep free.
    tokio::try_join!(work(), work(), work()).map(drop)
}

/// Whose fault it was.
enum Side {
    Source(LaneError),
    Target(LaneError),
}

/// Passes one table on. After an error neither lane can be used any more.
async fn relay(from: &mut Lane, to: &mut Lane, table: &str, passed: impl Fn(usize)) -> Result<(), Side> {
    begin(to, &format!("COPY {table} FROM STDIN"), tag::COPY_IN_RESPONSE).await.map_err(Side::Target)?;
    begin(from, &format!("COPY {table} TO STDOUT"), tag::COPY_OUT_RESPONSE).await.map_err(Side::Source)?;
    loop {
        let head = from.next_frame().await.map_err(Side::Source)?;
        match head.tag {
            tag::COPY_DATA => to.output.extend_from_slice(&from.input[..head.len]),
            tag::COPY_DONE => {
                from.consume(head);
                break;
            }
            tag::ERROR_RESPONSE => return Err(Side::Source(error_of(from, head))),
            // Notices, and settings that change.
            _ => {}
        }
        from.consume(head);
        if to.output.len() >= SEND_LEN {
            passed(to.output.len());
            to.flush().await.map_err(Side::Target)?;
        }
    }
    passed(to.output.len());
    build::copy_done(&mut to.output);
    to.flush().await.map_err(Side::Target)?;
    to.collect(1).await.map_err(Side::Target)?;
    from.collect(1).await.map_err(Side::Source)?;
    Ok(())
}

/// Sends a COPY and waits until the server is in it.
async fn begin(lane: &mut Lane, sql: &str, expected: u8) -> Result<(), LaneError> {
    build::query(&mut lane.output, sql)?;
    lane.flush().await?;
    loop {
        let head = lane.next_frame().await?;
        if head.tag == tag::ERROR_RESPONSE {
            return Err(error_of(lane, head));
        }
        lane.consume(head);
        if head.tag == expected {
            return Ok(());
        }
    }
}

fn error_of(lane: &Lane, head: onecopy_wire::Head) -> LaneError {
    match backend::decode(head.tag, lane.body(head)) {
        Ok(Backend::Error(fields)) => LaneError::Database(Box::new(fields.to_owned())),
        Ok(_) => LaneError::Closed,
        Err(error) => error.into(),
    }
}
