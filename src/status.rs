//! What the program says: status to stderr, results to stdout.
//!
//! A status line that cannot be written (a closed or full stderr) must not end a run, so none of these can panic.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use crate::error::{Error, Result};

/// Writes `convoy: TEXT` to stderr; a failure is ignored, since there is nowhere left to report it.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "convoy: {text}");
}

/// Writes a warning to stderr.
pub fn warn(text: impl Display) {
    say(format_args!("warning: {text}"));
}

/// Writes `text` to stdout, ending it with a newline. A reader that has seen enough (`| head`) is no failure.
///
/// # Errors
/// Stdout cannot be written (a full disk).
pub fn print(text: &str) -> Result<()> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    print_bytes(format!("{text}{end}").as_bytes())
}

/// Writes `bytes` to stdout as they are.
///
/// # Errors
/// As for [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::failed("cannot write to standard output", e)),
        _ => Ok(()),
    }
}
