//! Faults put in on purpose, to prove that the tests would see them. Outside this crate's own tests there are none.

/// What can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(any(test, feature = "simulated")),
    expect(dead_code, reason = "some are the simulated disk's")
)]
pub(crate) enum Bug {
    /// A group counts as durable as soon as it was written.
    AcknowledgeBeforeSync,
    /// Checksums are computed and ignored.
    SkipChecksums,
    /// Damage is always taken for the torn end of the log.
    CutAtAnyDamage,
    /// Recovery trusts what the page cache shows without writing it again.
    NoRefresh,
    /// A failed sync is tried again and believed.
    RetrySync,
    /// The segment is used before its name is known to be on disk.
    NoFolderSync,
    /// A payload's first segment is dropped although its commit is kept.
    ForgetPayload,
    /// A node answers before its vote and its term are on stable storage.
    ForgetVote,
    /// The segment behind a cut does not say that it cuts.
    ForgetCut,
    /// A follower keeps what it has where the leader has something else.
    KeepConflict,
    /// A read is answered by a leader's own word.
    ReadWithoutMajority,
    /// A record is proposed twice.
    ProposeTwice,
    /// A node that starts again counts members that have long left.
    ForgetMembers,
    /// A node that lost what it acknowledged goes on.
    IgnoreOldLog,
    /// A node is held to what it has acknowledged, also where that was never committed.
    TrustUncommitted,
    /// What was read from the disk is sent although it was cut off since.
    SendVoid,
}

/// Whether `bug` is planted in this thread.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use in_tests::{plant, planted};

#[cfg(test)]
mod in_tests {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Runs `body` with `bug` planted in this thread.
    pub(crate) fn plant<T>(bug: Bug, body: impl FnOnce() -> T) -> T {
        struct Dig;
        impl Drop for Dig {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(bug));
        let _dig = Dig;
        body()
    }
}
