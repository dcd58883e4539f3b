//! How far a benchmark is, on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress in steps, with a line that says what is under way.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Whether progress is to be seen at all.
    is_shown: bool,
}

impl Bar {
    pub(crate) fn new(steps: usize, is_shown: bool) -> Bar {
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let style = ProgressStyle::with_template("{bar:20} {percent:>3} % {eta:>4} left  {msg}");
        Bar { bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())), is_shown }
    }

    /// On something that is no terminal, one line each.
    pub(crate) fn say(&self, line: String) {
        if self.is_shown && self.bar.is_hidden() {
            eprintln!("{line}");
        }
        self.bar.set_message(line);
    }

    /// A step is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
