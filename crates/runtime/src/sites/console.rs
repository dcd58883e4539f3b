//! What a site tells its operator.

use onecopy_wire::backend::{Status, build, build::Severity};
use onecopy_wire::frontend::{self, Frontend};

use super::Shared;
use crate::errors::Failure;
use crate::session::client::{Client, ClientError};

/// The only question.
const SHOW_SITE: &str = "show site";

/// Answers until the client leaves.
pub async fn serve(mut client: Client, shared: &Shared) {
    build::ready_for_query(&mut client.output, Status::Idle);
    // Whoever leaves says so, or is gone.
    let _left = answer(&mut client, shared).await;
    client.close().await;
}

async fn answer(client: &mut Client, shared: &Shared) -> Result<(), ClientError> {
    loop {
        let (tag, body) = client.next().await?;
        match frontend::decode(tag, &body)? {
            Frontend::Query(sql) if sql.trim().trim_end_matches(';').eq_ignore_ascii_case(SHOW_SITE) => {
                show(client, shared)?;
            }
            Frontend::Terminate => return Ok(()),
            Frontend::Query(_) => {
                Failure::unsupported("a site's console knows no such question", "Ask SHOW SITE.")
                    .put(&mut client.output, Severity::Error)
            }
            _ => continue,
        }
        build::ready_for_query(&mut client.output, Status::Idle);
    }
}

fn show(client: &mut Client, shared: &Shared) -> Result<(), ClientError> {
    let shown = (shared.shown)();
    let (names, values): (Vec<&str>, Vec<String>) = shown.into_iter().unzip();
    build::text_row_description(&mut client.output, &names)?;
    build::text_row(&mut client.output, &values)?;
    build::command_complete(&mut client.output, "SHOW");
    Ok(())
}
