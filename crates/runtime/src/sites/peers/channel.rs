//! Messages between two peers, in order and without loss over connections that are lost and made again: what was not heard is said again. What a
//! process has said ends with it.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::sites::likeness::Likeness;

const KIND_SAID: u8 = 1;
const KIND_HEARD: u8 = 2;
/// After how many ticks in which nothing more was heard it is said again.
const AGAIN_AFTER: u32 = 3;
/// The most ticks between two times at which it is said again: each time it is twice as many.
const AGAIN_AFTER_MAX: u32 = 64;
/// As much is said again at once.
const AGAIN_MAX: usize = 64;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    /// Which start of this process: drawn at random, so that no two are alike.
    incarnation: u64,
    likeness: Likeness,
    /// Which start of the other one; 0 while nothing was heard of it.
    other: u64,
    /// The other one has heard of this start.
    is_known: bool,
    /// The number of the last message that was said, and those that are not known to be heard.
    said: u64,
    unheard: VecDeque<(u64, Bytes)>,
    /// Ticks since the other one has heard something, and after how many it is said again.
    ticks: u32,
    again_after: u32,
    /// The last that was heard.
    heard: u64,
}

/// What has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Came {
    /// The next message.
    Message(Bytes),
    /// Nothing that is new.
    Nothing,
    /// One of both was started again: what it knew is lost.
    StartedAgain,
    /// The other one is not alike: what it has that this one has not.
    Unlike(&'static str),
}

impl Channel {
    pub fn new(incarnation: u64, likeness: Likeness) -> Channel {
        Channel {
            incarnation,
            likeness,
            other: 0,
            is_known: false,
            said: 0,
            unheard: VecDeque::new(),
            ticks: 0,
            again_after: AGAIN_AFTER,
            heard: 0,
        }
    }

    /// Whether all that was said was heard.
    pub fn is_heard(&self) -> bool {
        self.unheard.is_empty()
    }

    /// Whether both have heard of each other.
    pub fn is_open(&self) -> bool {
        self.is_known
    }

    /// What is to be sent to say something.
    pub fn say(&mut self, message: &[u8]) -> Bytes {
        self.said += 1;
        let mut out = BytesMut::with_capacity(17 + message.len());
        out.put_u8(KIND_SAID);
        out.put_u64(self.incarnation);
        out.put_u64(self.said);
        out.put_slice(message);
        let out = out.freeze();
        if self.unheard.is_empty() {
            self.ticks = 0;
        }
        self.unheard.push_back((self.said, out.clone()));
        out
    }

    /// What is to be sent now and then: what was heard, and what was not for too long.
    pub fn tick(&mut self) -> Vec<Bytes> {
        let mut out = BytesMut::with_capacity(41);
        out.put_u8(KIND_HEARD);
        out.put_u64(self.incarnation);
        self.likeness.put(&mut out);
        out.put_u64(self.other);
        out.put_u64(self.heard);
        let mut all = vec![out.freeze()];
        self.ticks += 1;
        if !self.unheard.is_empty() && self.ticks > self.again_after {
            self.ticks = 0;
            self.again_after = (2 * self.again_after).min(AGAIN_AFTER_MAX);
            all.extend(self.unheard.iter().take(AGAIN_MAX).map(|(_, message)| message.clone()));
        }
        all
    }

    /// Takes what the other one has sent.
    pub fn take(&mut self, mut input: Bytes) -> Came {
        let (Ok(kind), Ok(incarnation)) = (input.try_get_u8(), input.try_get_u64()) else {
            return Came::Nothing;
        };
        if self.other == 0 {
            self.other = incarnation;
        }
        if self.other != incarnation {
            return Came::StartedAgain;
        }
        match kind {
            KIND_SAID => match input.try_get_u64() {
                Ok(number) if number == self.heard + 1 => {
                    self.heard = number;
                    Came::Message(input)
                }
                _ => Came::Nothing,
            },
            KIND_HEARD => {
                let Some(likeness) = Likeness::take(&mut input) else { return Came::Nothing };
                let (Ok(of), Ok(heard)) = (input.try_get_u64(), input.try_get_u64()) else {
                    return Came::Nothing;
                };
                if let Some(what) = likeness.differs_from(self.likeness) {
                    return Came::Unlike(what);
                }
                if of == 0 {
                    // It has not heard of anybody yet.
                    return Came::Nothing;
                }
                if of != self.incarnation {
                    // It knows an earlier start of this process, and has agreed with that.
                    return Came::StartedAgain;
                }
                self.is_known = true;
                let before = self.unheard.len();
                self.unheard.retain(|(number, _)| *number > heard);
                if self.unheard.len() < before {
                    (self.ticks, self.again_after) = (0, AGAIN_AFTER);
                }
                Came::Nothing
            }
            _ => Came::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIKE: Likeness = Likeness { settings: 1, definitions: 1 };

    #[test]
    fn what_is_lost_is_said_again_and_nothing_comes_twice_or_out_of_turn() {
        let (mut one, mut other) = (Channel::new(7, ALIKE), Channel::new(8, ALIKE));
        let _lost = one.say(b"a");
        let second = one.say(b"b");
        assert_eq!(other.take(second.clone()), Came::Nothing, "the first is missing");
        for _ in 0..AGAIN_AFTER {
            assert_eq!(one.tick().len(), 1, "it is not long ago");
        }
        let came: Vec<Came> = one.tick().into_iter().map(|message| other.take(message)).collect();
        let message = |text: &'static [u8]| Came::Message(Bytes::from_static(text));
        assert_eq!(came, [Came::Nothing, message(b"a"), message(b"b")]);
        assert_eq!(other.take(second), Came::Nothing, "it was heard");
        for heard in other.tick() {
            one.take(heard);
        }
        for heard in one.tick() {
            other.take(heard);
        }
        for _ in 0..2 * AGAIN_AFTER {
            assert_eq!(one.tick().len(), 1, "all was heard");
        }
        assert!(one.is_open() && other.is_open());
    }

    #[test]
    fn a_process_that_was_started_again_is_found_out() {
        let mut one = Channel::new(9, ALIKE);
        let (mut first, mut second) = (Channel::new(8, ALIKE), Channel::new(7, ALIKE));
        assert_eq!(one.take(first.say(b"a")), Came::Message(Bytes::from_static(b"a")));
        assert_eq!(one.take(second.say(b"b")), Came::StartedAgain);
        // And so does the new start, by whoever knows the earlier one.
        for heard in one.tick() {
            assert_eq!(first.take(heard.clone()), Came::Nothing);
            assert_eq!(second.take(heard), Came::StartedAgain);
        }
        assert!(first.is_open() && !second.is_open() && !one.is_open());
        let mut unlike = Channel::new(6, Likeness { settings: 2, ..ALIKE });
        assert!(matches!(unlike.take(one.tick().remove(0)), Came::Unlike(what) if what.contains("protocol")));
        let mut unlike = Channel::new(6, Likeness { definitions: 2, ..ALIKE });
        assert!(matches!(unlike.take(one.tick().remove(0)), Came::Unlike(what) if what.contains("pg_dump")));
        assert_eq!(one.take(Bytes::from_static(b"x")), Came::Nothing);
    }
}
