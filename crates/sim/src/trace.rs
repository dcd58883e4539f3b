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

    /// A hash of every byte so far.
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
