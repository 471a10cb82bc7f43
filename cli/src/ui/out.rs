//! Standard output and messages.

use std::io::{self, StdoutLock, Write};

use super::term::is_quiet;
use crate::names::one_line;

/// Standard output.
pub(crate) struct Stdout {
    out: StdoutLock<'static>,
    /// Whether output is discarded, rather than an error, once the pipe has been closed.
    may_discard: bool,
    is_closed: bool,
}

impl Stdout {
    /// Locks standard output. Once the pipe has been closed, output of a command with an effect or an answer is discarded
    /// without an error, so that the command finishes its work and exits with its usual code. In a command that only
    /// prints, a write fails with `BrokenPipe`, which ends the command with exit code 0.
    pub(crate) fn lock(has_effect_or_answer: bool) -> Self {
        Stdout { out: io::stdout().lock(), may_discard: has_effect_or_answer, is_closed: false }
    }

    /// Runs `operation`. If output is discarded because the pipe has been closed, returns `done`.
    fn unless_closed<T>(
        &mut self,
        done: T,
        operation: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<T>,
    ) -> io::Result<T> {
        if !self.is_closed {
            match operation(&mut self.out) {
                Err(e) if self.may_discard && e.kind() == io::ErrorKind::BrokenPipe => self.is_closed = true,
                ended => return ended,
            }
        }
        Ok(done)
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), Write::flush)
    }
}

/// Formats a count with its noun: "1 tensor", "2 tensors".
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints a note, such as the result of a change, unless `--quiet` is given.
pub(crate) fn message(text: &str) {
    if !is_quiet() {
        warn(text);
    }
}

/// Prints an error or a warning to standard error. Lines after the first are indented, so that no text can look like a
/// separate message. A failed write is ignored.
pub(crate) fn warn(text: &str) {
    let lines: Vec<String> = text.split('\n').map(one_line).collect();
    // In one write, so that messages of two commands in a pipe are not mixed.
    let _ = io::stderr().write_all(format!("stridemap: {}\n", lines.join("\n  | ")).as_bytes());
}
