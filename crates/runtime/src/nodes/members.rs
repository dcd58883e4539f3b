//! Nodes come and leave while the others go on. One change at a time, each a record of the log (docs/protocols/commit-log.md, 11).

use std::sync::Arc;
use std::time::Duration;

use onecopy_log::Member;
use onecopy_log::consensus::{Change, ChangeError, MemberError, NodeId, Role};
use onecopy_wire::sqlstate::SqlState;

use crate::clock::Deadline;
use crate::errors::Failure;
use crate::nodes::links::Places;

/// How long another change may take, before this one is given up.
const TURN_WAIT: Duration = Duration::from_secs(10);
/// A node that was started a moment ago has not reached this one yet. Whoever names one that never was has to wait as long.
const PLACE_WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Records that a node may lack to count for majorities: it gets them while the others are no longer needed.
const BEHIND_MAX: u64 = 1_000;

/// Has a node get the log, and, if it is to, count for majorities when it has caught up, which goes on by itself after this returns.
///
/// # Errors
/// Why it cannot come now.
pub async fn add(member: &Arc<Member>, places: &Places, node: NodeId) -> Result<(), Failure> {
    let deadline = Deadline::after(PLACE_WAIT);
    while places.of(node.0).is_none() && !deadline.has_passed() {
        tokio::time::sleep(PAUSE).await;
    }
    if places.of(node.0).is_none() {
        let message = format!("node {node} has not said where it is");
        return Err(not_now(message).hint("Begin it by `onecopy node init --join`, start it, and try again."));
    }
    match change(member, Change::AddLearner(node)).await {
        Ok(()) => {}
        // It was added before, and its leader was lost before it counted.
        Err(MemberError::Change(ChangeError::Present(_))) if role(member, node) == Some(Role::Learner) => {}
        Err(error) => return Err(not_now(error.to_string())),
    }
    spawn_promotion(member, places, node);
    Ok(())
}

fn spawn_promotion(member: &Arc<Member>, places: &Places, node: NodeId) {
    let (member, places) = (member.clone(), places.clone());
    tokio::spawn(async move { promote(&member, &places, node).await });
}

/// Has every learner count for majorities when it has caught up, if it is to: its leader may have been lost before.
pub fn promote_all(member: &Arc<Member>, places: &Places) {
    let members = member.status().members;
    let learners = members.nodes().filter(|(_, role)| *role == Role::Learner);
    learners.for_each(|(node, _)| spawn_promotion(member, places, node));
}

/// Has a node leave for good.
///
/// # Errors
/// Why it cannot leave now.
pub async fn remove(member: &Arc<Member>, node: NodeId) -> Result<(), Failure> {
    change(member, Change::Remove(node)).await.map_err(|error| not_now(error.to_string()))
}

/// Waits until a learner has caught up, and has it count; ends as well when this node does not lead any more, or that one is known
/// never to count. It says so itself, before it acknowledges anything.
async fn promote(member: &Member, places: &Places, node: NodeId) {
    let mut is_listed = false;
    loop {
        let status = member.status();
        if !status.leads || status.members.role(node) != Some(Role::Learner) && is_listed {
            return;
        }
        if places.of(node.0).is_some_and(|place| !place.voting) {
            return;
        }
        // It is listed when the change by which it came is durable on a majority.
        is_listed |= status.members.role(node).is_some();
        let matched = status.matched.iter().find(|(id, _)| *id == node).and_then(|(_, place)| *place);
        let is_near = matched.is_some_and(|place| place.0 > 0 && place.0 + BEHIND_MAX >= status.ordered.0);
        if is_near {
            match change(member, Change::Promote(node)).await {
                Ok(()) => tracing::info!(node = node.0, "a node has caught up, and counts for majorities"),
                // It may be gone again, or another node leads.
                Err(error) => {
                    return tracing::warn!(node = node.0, %error, "have a node count for majorities");
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn change(member: &Member, change: Change) -> Result<(), MemberError> {
    let deadline = Deadline::after(TURN_WAIT);
    loop {
        match member.change(change) {
            Ok(_) => return Ok(()),
            Err(MemberError::Busy) if !deadline.has_passed() => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}

fn role(member: &Member, node: NodeId) -> Option<Role> {
    member.status().members.role(node)
}

fn not_now(message: String) -> Failure {
    Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}
