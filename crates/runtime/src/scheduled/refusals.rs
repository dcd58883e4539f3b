//! What cannot be served where every replica executes the text of a statement: whatever might have another effect on another
//! replica, or needs more than the text. Never a silent difference.

use onecopy_classify::{Determinism, Kind};

use crate::classifier::Statement;
use crate::errors::Failure;

/// Why a statement cannot be executed on every replica; `in_block` if other statements of its transaction may follow.
pub fn refusal(statement: &Statement, determinism: &Determinism, in_block: bool) -> Option<Failure> {
    let no = |what: &str, hint: &str| Some(Failure::unsupported(what, hint));
    match &statement.class.kind {
        Kind::CopyIn { .. } => {
            return no(
                "COPY FROM STDIN is not supported where every replica executes a transaction's statements",
                "Use INSERT, or load the data under protocol = \"onecopy\".",
            );
        }
        _ if in_block && statement.class.changes_definitions() => {
            return no(
                "definitions and sequences cannot be changed inside a transaction where every replica executes its statements",
                "Send the statement by itself, outside BEGIN and COMMIT.",
            );
        }
        Kind::DeclareCursor { .. } | Kind::Fetch(_) | Kind::Move(_) | Kind::CloseCursor(_) => {
            return no(
                "cursors are not supported where reads of a transaction run on different replicas",
                "Read all rows at once, or by parts with LIMIT and a condition.",
            );
        }
        Kind::SetConstraints { deferred: true } => {
            return no(
                "constraints cannot be deferred where every replica executes a transaction's statements",
                "They are checked after each statement: order the statements so that each leaves them satisfied.",
            );
        }
        Kind::SetConfig { .. } if statement.class.effects.reads => {
            return no(
                "set_config() of what a query reads is not supported where reads run on different replicas",
                "Read the value first, by a statement of its own.",
            );
        }
        Kind::Explain { analyze: true, inner } if is_write(inner) => {
            return no(
                "EXPLAIN ANALYZE of a statement that writes is not supported where every replica executes it",
                "Use EXPLAIN, or explain it on a replica of its own inside BEGIN and ROLLBACK.",
            );
        }
        _ => {}
    }
    let why = match determinism {
        Determinism::Capture(plan) => &plan.reason,
        Determinism::Number(plan) => &plan.capture.reason,
        Determinism::Read | Determinism::Replay | Determinism::Refuse(_) => return None,
    };
    let what = format!("a statement cannot be executed on every replica with the same effect: {why}");
    Some(Failure::unsupported(
        what,
        "Compute such values in the application or by a statement of their own, or use protocol = \"onecopy\", which ships rows.",
    ))
}

fn is_write(kind: &Kind) -> bool {
    !matches!(kind, Kind::Select | Kind::SelectLocking { .. } | Kind::CopyOut)
}
