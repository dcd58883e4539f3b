//! Which nodes share a log.

use bytes::Bytes;
use std::fmt;

#[cfg(doc)]
use crate::record::Kind;

/// Nodes that can share a log, learners included.
pub const NODES_MAX: usize = 9;

/// One node of those that share a log: not 0, and never given to another one, also not to one that lost its log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// What a node is for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It counts for majorities, and may lead.
    Voter,
    /// It gets the log and counts for nothing: new, until it has caught up, or for good.
    Learner,
}

/// The nodes that share a log, by id; at most [`NODES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Membership {
    nodes: [Option<(NodeId, Role)>; NODES_MAX],
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.nodes()).finish()
    }
}

/// One step from a membership to another. Only one at a time is under way, so any majority before shares a node with any
/// majority after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new node gets the log.
    AddLearner(NodeId),
    /// A learner becomes a voter.
    Promote(NodeId),
    /// A node leaves for good; its id is used up.
    Remove(NodeId),
}

/// Why a membership cannot be changed so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// It is there already, as what it would become.
    #[error("node {0} is there already")]
    Present(NodeId),
    /// No such node.
    #[error("there is no node {0}")]
    Absent(NodeId),
    /// Nobody would be left to decide.
    #[error("node {0} is the last voter, which cannot be removed")]
    LastVoter(NodeId),
    /// The leader cannot remove itself.
    #[error("node {0} leads: stop it, and remove it by the one that takes over")]
    Leader(NodeId),
    /// There are too many.
    #[error("no more than {NODES_MAX} nodes can share a log")]
    Full,
    /// Node ids begin with 1.
    #[error("0 is no node's id")]
    Zero,
}

impl Membership {
    /// One node that is alone.
    #[must_use]
    pub fn alone(node: NodeId) -> Membership {
        Membership::of_voters(&[node])
    }

    /// These voters, of whom the first [`NODES_MAX`] count, and no learners.
    #[must_use]
    pub fn of_voters(voters: &[NodeId]) -> Membership {
        Membership::beginning(voters.iter().map(|node| (*node, Role::Voter)))
    }

    /// Those by whom a log begins, of whom the first [`NODES_MAX`] by id count; of a node that is named twice the first role by order.
    #[must_use]
    pub fn beginning(nodes: impl IntoIterator<Item = (NodeId, Role)>) -> Membership {
        let mut nodes: Vec<(NodeId, Role)> = nodes.into_iter().collect();
        nodes.sort_unstable_by_key(|(node, role)| (*node, *role == Role::Learner));
        nodes.dedup_by_key(|(node, _)| *node);
        Membership::of(&nodes)
    }

    fn of(sorted: &[(NodeId, Role)]) -> Membership {
        let mut membership = Membership::default();
        for (place, node) in membership.nodes.iter_mut().zip(sorted) {
            *place = Some(*node);
        }
        membership
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Role)> {
        self.nodes.iter().copied().flatten()
    }

    /// Those that count for majorities, by id.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, role)| *role == Role::Voter).map(|(node, _)| node)
    }

    /// What a node is; `None` if it is none of them.
    #[must_use]
    pub fn role(&self, node: NodeId) -> Option<Role> {
        self.nodes().find(|(id, _)| *id == node).map(|(_, role)| role)
    }

    /// The membership after a change.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn with(&self, change: Change) -> Result<Membership, ChangeError> {
        let (Change::AddLearner(node) | Change::Promote(node) | Change::Remove(node)) = change;
        let mut nodes: Vec<(NodeId, Role)> = self.nodes().filter(|(id, _)| *id != node).collect();
        let last_voter = self.voters().all(|voter| voter == node);
        match (change, self.role(node)) {
            _ if node.0 == 0 => return Err(ChangeError::Zero),
            (Change::AddLearner(_), Some(_)) | (Change::Promote(_), Some(Role::Voter)) => {
                return Err(ChangeError::Present(node));
            }
            (Change::Promote(_) | Change::Remove(_), None) => return Err(ChangeError::Absent(node)),
            (Change::Remove(_), Some(Role::Voter)) if last_voter => return Err(ChangeError::LastVoter(node)),
            (Change::Remove(_), Some(_)) => return Ok(Membership::of(&nodes)),
            (Change::AddLearner(_), None) if nodes.len() == NODES_MAX => return Err(ChangeError::Full),
            (Change::AddLearner(_), None) => nodes.push((node, Role::Learner)),
            (Change::Promote(_), Some(Role::Learner)) => nodes.push((node, Role::Voter)),
        }
        nodes.sort_unstable_by_key(|(node, _)| *node);
        Ok(Membership::of(&nodes))
    }

    /// The one change that leads from this membership to another; `None` if none or several do.
    #[must_use]
    pub fn change_to(&self, other: &Membership) -> Option<Change> {
        let mut changes = self.nodes().chain(other.nodes()).filter_map(|(node, _)| {
            match (self.role(node), other.role(node)) {
                (None, Some(Role::Learner)) => Some(Change::AddLearner(node)),
                (Some(Role::Learner), Some(Role::Voter)) => Some(Change::Promote(node)),
                (Some(_), None) => Some(Change::Remove(node)),
                _ => None,
            }
        });
        let change = changes.next()?;
        (self.with(change).as_ref() == Ok(other)).then_some(change)
    }

    /// 16 bytes for each of [`NODES_MAX`] places: id, then 1 for a voter or 2 for a learner, in 8 bytes each; zeros
    /// where there is no node.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(16 * NODES_MAX);
        for place in &self.nodes {
            let (node, role) = match place {
                None => (0, 0_u64),
                Some((node, Role::Voter)) => (node.0, 1),
                Some((node, Role::Learner)) => (node.0, 2),
            };
            bytes.extend(node.to_le_bytes());
            bytes.extend(role.to_le_bytes());
        }
        bytes.into()
    }

    /// Reads what [`Membership::encode`] wrote, the body of a record of kind [`Kind::MEMBERSHIP`]; `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Membership> {
        if bytes.len() != 16 * NODES_MAX {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let mut nodes = Vec::new();
        for place in 0..NODES_MAX {
            let role = match (word(16 * place)?, word(16 * place + 8)?) {
                (0, 0) => continue,
                (1.., 1) => Role::Voter,
                (1.., 2) => Role::Learner,
                _ => return None,
            };
            nodes.push((NodeId(word(16 * place)?), role));
        }
        let membership = Membership::of(&nodes);
        let is_sorted = nodes.is_sorted_by(|(a, _), (b, _)| a < b);
        (is_sorted && membership.encode() == bytes).then_some(membership)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

    #[test]
    fn log_may_begin_with_nodes_that_do_not_count() {
        let begun = Membership::beginning([(N[2], Role::Learner), (N[0], Role::Voter), (N[1], Role::Voter)]);
        assert_eq!(begun.voters().collect::<Vec<_>>(), N[..2]);
        assert_eq!(begun.role(N[2]), Some(Role::Learner));
        assert_eq!(begun.with(Change::Promote(N[2])), Ok(Membership::of_voters(&N[..3])));
    }

    #[test]
    fn nodes_come_as_learners_become_voters_and_leave() {
        let before = Membership::of_voters(&N[..3]);
        let learning = before.with(Change::AddLearner(N[3])).unwrap();
        assert_eq!((learning.role(N[3]), learning.voters().count()), (Some(Role::Learner), 3));
        let four = learning.with(Change::Promote(N[3])).unwrap();
        assert_eq!(four, Membership::of_voters(&N));
        assert_eq!(four.with(Change::Remove(N[3])).unwrap(), before);
        for (change, error) in [
            (Change::AddLearner(N[0]), ChangeError::Present(N[0])),
            (Change::Promote(N[0]), ChangeError::Present(N[0])),
            (Change::Promote(N[3]), ChangeError::Absent(N[3])),
            (Change::Remove(N[3]), ChangeError::Absent(N[3])),
            (Change::AddLearner(NodeId(0)), ChangeError::Zero),
        ] {
            assert_eq!(before.with(change), Err(error), "{change:?}");
        }
        let alone = Membership::alone(N[0]);
        assert_eq!(alone.with(Change::Remove(N[0])), Err(ChangeError::LastVoter(N[0])));
        let full = Membership::of_voters(&std::array::from_fn::<_, NODES_MAX, _>(|n| NodeId(n as u64 + 1)));
        assert_eq!(full.with(Change::AddLearner(NodeId(99))), Err(ChangeError::Full));
    }

    #[test]
    fn a_change_is_told_from_its_two_sides_and_two_changes_are_none() {
        let three = Membership::of_voters(&N[..3]);
        for change in [Change::AddLearner(N[3]), Change::Remove(N[1])] {
            assert_eq!(three.change_to(&three.with(change).unwrap()), Some(change));
        }
        let learning = three.with(Change::AddLearner(N[3])).unwrap();
        assert_eq!(learning.change_to(&Membership::of_voters(&N)), Some(Change::Promote(N[3])));
        assert_eq!(three.change_to(&three), None);
        assert_eq!(three.change_to(&Membership::alone(N[0])), None);
    }

    #[test]
    fn what_was_encoded_is_decoded_and_anything_else_refused() {
        let membership = Membership::of_voters(&N[..3]).with(Change::AddLearner(N[3])).unwrap();
        let bytes = membership.encode();
        assert_eq!(Membership::decode(&bytes), Some(membership));
        assert_eq!(Membership::decode(&bytes[1..]), None);
        for at in [8, 16 * NODES_MAX - 1] {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 4;
            assert_eq!(Membership::decode(&wrong), None, "byte {at}");
        }
    }
}
