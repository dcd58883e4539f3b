//! What happened in a run, line by line: always hashed, kept as text when asked for.

use std::fmt::{self, Write as _};

use onecopy_core::Instant;

/// A run's trace. Two runs with the same hash did the same things at the same times.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: u64,
    text: Option<String>,
}

impl Trace {
    /// An empty trace; `keep` says whether its text is wanted.
    #[must_use]
    pub fn new(keep: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: 0, text: keep.then(String::new) }
    }

    /// Adds a line: when, what kind of thing, and the thing.
    pub fn line(&mut self, now: Instant, kind: &str, what: fmt::Arguments<'_>) {
        self.lines += 1;
        let micros = now.0 / 1_000;
        // Neither a hash nor a String can fail to be written to.
        let _ = writeln!(self, "{micros:>9}.{:03} {kind:<9} {what}", now.0 % 1_000);
    }

    /// Notes that something happened to things with these numbers: a line where the text is kept, and otherwise
    /// much cheaper than one.
    pub fn mark(&mut self, now: Instant, kind: &'static str, numbers: [u64; 3]) {
        self.lines += 1;
        let [first, ..] = kind.as_bytes() else { return };
        for word in [now.0 ^ u64::from(*first) << 56, numbers[0], numbers[1], numbers[2]] {
            self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        if let Some(kept) = &mut self.text {
            let micros = now.0 / 1_000;
            // A String cannot fail to be written to.
            let _ = writeln!(kept, "{micros:>9}.{:03} {kind:<9} {numbers:?}", now.0 % 1_000);
        }
    }

    /// A line of text where that is kept, without a part in the hash.
    pub fn remark(&mut self, now: Instant, kind: &str, what: fmt::Arguments<'_>) {
        if let Some(kept) = &mut self.text {
            let micros = now.0 / 1_000;
            // A String cannot fail to be written to.
            let _ = writeln!(kept, "{micros:>9}.{:03} {kind:<9} {what}", now.0 % 1_000);
        }
    }

    /// A hash of everything so far but remarks.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many lines there are.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The text, if it was kept.
    #[must_use]
    pub fn into_text(self) -> Option<String> {
        self.text
    }
}

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(kept) = &mut self.text {
            kept.push_str(text);
        }
        Ok(())
    }
}
