//! A session that a front carries: what the front must know to make it again on another node.

use onecopy_wire::carried::Idle;

use super::Session;

/// What a session is to its front, which goes on with it elsewhere.
pub struct Carried {
    /// Which session it is, on whatever node.
    #[cfg_attr(not(test), expect(dead_code, reason = "commits do not carry it yet"))]
    pub session: [u8; 16],
    /// How many commits it has made, on this node and on those before.
    pub commits: u64,
}

impl Carried {
    #[cfg_attr(not(test), expect(dead_code, reason = "there is no front yet"))]
    /// One that has made so many commits on other nodes.
    pub fn new(session: [u8; 16], commits: u64) -> Carried {
        Carried { session, commits }
    }
}

impl Session {
    /// Before a ReadyForQuery outside transactions.
    pub(super) fn tell_front(&mut self) {
        let Some(carried) = &self.carried else { return };
        let csn = self.shared.scheduler.status().told;
        let idle = Idle { commits: carried.commits, csn, movable: true };
        idle.encode(&mut self.client.output);
    }
}
