//! Results on standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output and ends its last line. That its reader has gone (`onecopy ... | head`) is no
/// error.
///
/// # Errors
/// When it cannot be written for another reason, such as a full disk.
pub fn print(result: impl Display) -> io::Result<()> {
    // Formatted first, so that whoever reads along sees whole lines.
    let mut text = result.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
