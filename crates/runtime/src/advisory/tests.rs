//! The rules of advisory locks, by what each request leads to.

use super::*;
use Answer::{Busy, Deadlock, Full, Granted, Waits};
use Mode::{Exclusive, Shared as InShare};

const K: Key = Key::One(1);
const L: Key = Key::One(2);
const M: Key = Key::One(3);
const NOBODY: [u64; 0] = [];

struct Rig(Table);

impl Rig {
    fn new() -> Rig {
        Rig(Table::new(1_000))
    }

    /// A request that waits if it must; with whom it serves besides.
    fn lock(&mut self, session: u64, key: Key, mode: Mode) -> (Answer, Vec<u64>) {
        let mut served = Vec::new();
        let answer = self.0.request(SessionId(session), key, mode, true, &mut served);
        (answer, numbers(served))
    }

    fn try_lock(&mut self, session: u64, key: Key, mode: Mode) -> Answer {
        let mut served = Vec::new();
        let answer = self.0.request(SessionId(session), key, mode, false, &mut served);
        assert!(served.is_empty(), "who does not wait serves nobody");
        answer
    }

    fn release(&mut self, session: u64, key: Key, mode: Mode) -> Vec<u64> {
        let mut served = Vec::new();
        self.0.release(SessionId(session), key, mode, &mut served);
        numbers(served)
    }

    fn withdraw(&mut self, session: u64) -> (bool, Vec<u64>) {
        let mut served = Vec::new();
        let withdrawn = self.0.withdraw(SessionId(session), &mut served);
        (withdrawn, numbers(served))
    }

    fn expect_empty(&self) {
        assert!(self.0.locks.is_empty() && self.0.waiting.is_empty() && self.0.held == 0);
    }
}

fn numbers(sessions: Vec<SessionId>) -> Vec<u64> {
    sessions.into_iter().map(|session| session.0).collect()
}

fn alone(answer: Answer) -> (Answer, Vec<u64>) {
    (answer, Vec::new())
}

#[test]
fn a_key_taken_twice_is_free_after_it_was_given_back_twice() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted));
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted));
    assert_eq!(rig.release(1, K, Exclusive), NOBODY);
    assert_eq!(rig.try_lock(2, K, Exclusive), Busy);
    assert_eq!(rig.release(1, K, Exclusive), NOBODY);
    assert_eq!(rig.try_lock(2, K, Exclusive), Granted);
    rig.release(2, K, Exclusive);
    rig.expect_empty();
}

#[test]
fn one_number_and_two_numbers_are_different_keys() {
    let mut rig = Rig::new();
    for key in [Key::One(1), Key::Two(0, 1), Key::Two(1, 0)] {
        assert_eq!(rig.try_lock(key_owner(key), key, Exclusive), Granted);
    }
}

fn key_owner(key: Key) -> u64 {
    match key {
        Key::One(_) => 1,
        Key::Two(0, _) => 2,
        Key::Two(..) => 3,
    }
}

#[test]
fn waiting_requests_are_served_in_their_order_and_readers_together() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted));
    assert_eq!(rig.lock(2, K, InShare), alone(Waits));
    assert_eq!(rig.lock(3, K, InShare), alone(Waits));
    assert_eq!(rig.lock(4, K, Exclusive), alone(Waits));
    assert_eq!(rig.lock(5, K, InShare), alone(Waits));
    assert_eq!(rig.release(1, K, Exclusive), [2, 3]);
    assert_eq!(rig.release(2, K, InShare), NOBODY);
    assert_eq!(rig.release(3, K, InShare), [4]);
    assert_eq!(rig.release(4, K, Exclusive), [5]);
    rig.release(5, K, InShare);
    rig.expect_empty();
}

#[test]
fn reader_does_not_pass_a_waiting_writer() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(2, K, Exclusive), alone(Waits));
    assert_eq!(rig.try_lock(3, K, InShare), Busy);
    assert_eq!(rig.lock(3, K, InShare), alone(Waits));
    assert_eq!(rig.withdraw(2), (true, vec![3]));
}

#[test]
fn holder_passes_those_who_wait_for_it() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(2, K, Exclusive), alone(Waits));
    assert_eq!(rig.lock(1, K, InShare), alone(Granted), "it holds what 2 waits for");
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted), "nobody else holds it");
    assert_eq!(rig.release(1, K, Exclusive), NOBODY);
    assert_eq!(rig.release(1, K, InShare), NOBODY);
    assert_eq!(rig.release(1, K, InShare), [2]);
}

#[test]
fn upgrade_waits_for_other_readers_before_later_writers() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(2, K, InShare), alone(Granted));
    assert_eq!(rig.lock(3, K, Exclusive), alone(Waits));
    assert_eq!(rig.lock(1, K, Exclusive), alone(Waits));
    assert_eq!(rig.release(2, K, InShare), [1]);
    assert_eq!(rig.release(1, K, InShare), NOBODY);
    assert_eq!(rig.release(1, K, Exclusive), [3]);
}

#[test]
fn two_upgrades_of_one_key_are_a_deadlock() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(2, K, InShare), alone(Granted));
    assert_eq!(rig.lock(1, K, Exclusive), alone(Waits));
    assert_eq!(rig.lock(2, K, Exclusive), alone(Deadlock));
    assert_eq!(rig.release(2, K, InShare), [1], "the refused one waits no more, but holds what it held");
}

#[test]
fn circle_over_three_keys_is_refused_where_it_closes() {
    let mut rig = Rig::new();
    for (session, key) in [(1, K), (2, L), (3, M)] {
        assert_eq!(rig.lock(session, key, Exclusive), alone(Granted));
    }
    assert_eq!(rig.lock(1, L, Exclusive), alone(Waits));
    assert_eq!(rig.lock(2, M, Exclusive), alone(Waits));
    assert_eq!(rig.lock(3, K, Exclusive), alone(Deadlock));
    assert_eq!(rig.release(3, M, Exclusive), [2]);
    assert_eq!(rig.release(2, L, Exclusive), [1]);
}

#[test]
fn circle_through_a_mere_turn_is_broken_by_serving_out_of_turn() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(3, L, Exclusive), alone(Granted));
    assert_eq!(rig.lock(2, K, Exclusive), alone(Waits), "for 1");
    assert_eq!(rig.lock(3, K, InShare), alone(Waits), "only for its turn after 2");
    assert_eq!(rig.lock(1, L, Exclusive), (Waits, vec![3]), "1 waits for 3, and so 3 does not wait for 2");
    assert_eq!(rig.release(3, L, Exclusive), [1]);
    assert_eq!(rig.release(1, K, InShare), NOBODY);
    assert_eq!(rig.release(3, K, InShare), [2]);
}

#[test]
fn request_that_was_granted_cannot_be_withdrawn() {
    let mut rig = Rig::new();
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted));
    assert_eq!(rig.lock(2, K, Exclusive), alone(Waits));
    assert_eq!(rig.release(1, K, Exclusive), [2]);
    assert_eq!(rig.withdraw(2), (false, vec![]));
    assert_eq!(rig.release(2, K, Exclusive), NOBODY);
    rig.expect_empty();
}

#[test]
fn full_table_refuses_new_locks_and_grants_held_ones_again() {
    let mut rig = Rig(Table::new(1));
    assert_eq!(rig.lock(1, K, Exclusive), alone(Granted));
    assert_eq!(rig.lock(1, K, InShare), alone(Granted));
    assert_eq!(rig.lock(1, L, Exclusive), alone(Full));
    assert_eq!(rig.release(1, K, InShare), NOBODY);
    assert_eq!(rig.release(1, K, Exclusive), NOBODY);
    rig.expect_empty();
}

fn locks() -> Arc<AdvisoryLocks> {
    Arc::new(AdvisoryLocks::new(1_000))
}

fn takes(session: &mut SessionLocks, key: Key, until: Until) -> bool {
    matches!(session.take(key, Exclusive, until, false), Taken::Yes)
}

#[test]
fn savepoint_gives_back_what_was_taken_after_it() {
    let all = locks();
    let mut one = SessionLocks::new(&all, SessionId(1));
    let mut two = SessionLocks::new(&all, SessionId(2));
    assert!(takes(&mut one, K, Until::TransactionEnds));
    let mark = one.mark();
    assert!(takes(&mut one, K, Until::TransactionEnds) && takes(&mut one, L, Until::TransactionEnds));
    assert!(takes(&mut one, M, Until::Unlocked));
    one.return_to(mark);
    assert!(!takes(&mut two, K, Until::TransactionEnds), "it was taken before the savepoint, too");
    assert!(takes(&mut two, L, Until::TransactionEnds));
    assert!(!takes(&mut two, M, Until::TransactionEnds), "it is the session's");
    one.return_to(0);
    assert!(takes(&mut two, K, Until::TransactionEnds));
}

#[test]
fn unlocking_gives_back_only_what_was_taken_until_then_and_in_that_mode() {
    let all = locks();
    let mut one = SessionLocks::new(&all, SessionId(1));
    assert!(takes(&mut one, K, Until::TransactionEnds));
    assert!(!one.unlock(K, Exclusive));
    assert!(takes(&mut one, K, Until::Unlocked));
    assert!(!one.unlock(K, InShare));
    assert!(one.unlock(K, Exclusive) && !one.unlock(K, Exclusive));
    let mut two = SessionLocks::new(&all, SessionId(2));
    assert!(!takes(&mut two, K, Until::Unlocked), "the transaction still holds it");
}

#[test]
fn session_that_vanishes_leaves_nothing_held_or_awaited() {
    let all = locks();
    let mut one = SessionLocks::new(&all, SessionId(1));
    let mut two = SessionLocks::new(&all, SessionId(2));
    let mut three = SessionLocks::new(&all, SessionId(3));
    assert!(takes(&mut one, K, Until::Unlocked) && takes(&mut one, K, Until::TransactionEnds));
    let Taken::Awaits(_) = two.take(K, Exclusive, Until::Unlocked, true) else { panic!("1 holds it") };
    let Taken::Awaits(mut told) = three.take(K, Exclusive, Until::Unlocked, true) else {
        panic!("so it does")
    };
    drop(two);
    assert!(told.try_recv().is_err(), "1 still holds it");
    drop(one);
    assert_eq!(told.try_recv(), Ok(()));
    assert!(three.waited());
    drop(three);
    assert!(all.0.lock().table.locks.is_empty() && all.0.lock().told.is_empty());
}
