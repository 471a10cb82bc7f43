//! Output of the commands: JSON records, messages, progress.

use std::io::{self, StdoutLock, Write};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use stridemap::{Scalar, TensorInfo};

use crate::error::Result;

/// The version of the JSON objects. It is incremented by any change that a consumer could notice.
const JSON_VERSION: u32 = 1;

/// Standard output.
pub(crate) struct Stdout {
    out: StdoutLock<'static>,
    on_closed_pipe: OnClosedPipe,
}

/// What happens to output after the pipe has been closed.
enum OnClosedPipe {
    Fail,
    Discard { is_closed: bool },
}

impl Stdout {
    /// Locks standard output. Once the pipe has been closed, output is discarded without an error, so that the command
    /// finishes its work and exits with its usual code.
    pub(crate) fn lock() -> Self {
        Stdout { out: io::stdout().lock(), on_closed_pipe: OnClosedPipe::Discard { is_closed: false } }
    }

    /// Locks standard output for commands with endless output. Once the pipe has been closed, a write fails with
    /// `BrokenPipe`, which ends the command with exit code 0.
    pub(crate) fn lock_endless() -> Self {
        Stdout { out: io::stdout().lock(), on_closed_pipe: OnClosedPipe::Fail }
    }

    /// Runs `operation`, or returns `done` if the pipe has been closed.
    fn unless_closed<T>(
        &mut self,
        done: T,
        operation: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<T>,
    ) -> io::Result<T> {
        let OnClosedPipe::Discard { is_closed } = &mut self.on_closed_pipe else {
            return operation(&mut self.out);
        };
        if !*is_closed {
            match operation(&mut self.out) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => *is_closed = true,
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

/// Serializes a record as a JSON object on one line.
pub(crate) fn write_json(out: &mut impl Write, record: impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct Versioned<T> {
        v: u32,
        #[serde(flatten)]
        record: T,
    }
    serde_json::to_writer(&mut *out, &Versioned { v: JSON_VERSION, record })?;
    Ok(writeln!(out)?)
}

/// The header of a tensor of a store.
#[derive(Serialize)]
pub(crate) struct TensorRecord {
    name: String,
    dtype: &'static str,
    size: Vec<usize>,
    stride: Vec<isize>,
    storage_offset: usize,
    storage: String,
    is_contiguous: bool,
    numel: usize,
    logical_size_bytes: usize,
    dim_names: Option<Vec<Option<String>>>,
}

impl From<TensorInfo> for TensorRecord {
    fn from(info: TensorInfo) -> Self {
        TensorRecord {
            dtype: info.dtype.name(),
            size: info.size().to_vec(),
            stride: info.stride().to_vec(),
            storage_offset: info.storage_offset(),
            storage: storage_id(info.storage_id),
            is_contiguous: info.is_contiguous(),
            numel: info.numel(),
            logical_size_bytes: info.nbytes(),
            name: info.name,
            dim_names: info.dim_names,
        }
    }
}

/// Formats a storage id as sixteen hexadecimal digits, as in the name of the storage's file.
pub(crate) fn storage_id(id: u64) -> String {
    format!("{id:016x}")
}

/// A JSON list whose items are produced while it is written. An error in an item stops the output.
pub(crate) struct List<F>(pub(crate) F);

impl<F, I, T> Serialize for List<F>
where
    F: Fn() -> stridemap::Result<I>,
    I: Iterator<Item = stridemap::Result<T>>,
    T: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for item in self.0().map_err(S::Error::custom)? {
            list.serialize_element(&item.map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

/// An element in JSON. NaN and infinity are strings, and a complex number is a list of two numbers.
pub(crate) struct Element(pub(crate) Scalar);

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Scalar::Bool(value) => value.serialize(serializer),
            Scalar::Int(value) => value.serialize(serializer),
            Scalar::Float(value) => Float(value).serialize(serializer),
            Scalar::Complex(first, second) | Scalar::Pair(first, second) => {
                [Float(first), Float(second)].serialize(serializer)
            }
            other => Err(S::Error::custom(format!("{other:?} cannot be written as JSON yet"))),
        }
    }
}

struct Float(f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_nan() => "NaN".serialize(serializer),
            f64::INFINITY => "Infinity".serialize(serializer),
            f64::NEG_INFINITY => "-Infinity".serialize(serializer),
            x => x.serialize(serializer),
        }
    }
}

/// Returns the text on one line, with control characters escaped. Names and attributes may contain any character.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Formats a count with its noun: "1 tensor", "2 tensors".
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints a message to standard error. Lines after the first are indented, so that no text can look like a separate
/// message. A failed write is ignored.
pub(crate) fn message(text: &str) {
    let lines: Vec<String> = text.split('\n').map(one_line).collect();
    let _ = writeln!(io::stderr(), "stridemap: {}", lines.join("\n  | "));
}

/// Shows a progress bar on standard error if that is a terminal. The bar counts bytes, and is cleared when it is
/// dropped.
pub(crate) fn progress(verb: &'static str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(total_bytes)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(verb)
        .with_finish(ProgressFinish::AndClear)
}
