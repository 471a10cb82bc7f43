//! Errors of this crate.

use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use stridemap_format as format;

pub(crate) use context::{Context, FormatContext, IoContext};
pub use kind::ErrorKind;

mod context;
mod kind;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. The message states the request, the current state, and what to do.
///
/// It is displayed as one line, which includes the cause, so [`source`](std::error::Error::source) returns nothing: a log
/// that prints a chain of errors shows each cause once. The error of the operating system is the
/// [`io_error`](Self::io_error), and the broken rule of the format the [`rule`](Self::rule).
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    is_failed_sync: bool,
    /// The file whose bytes break a rule.
    broken_path: Option<PathBuf>,
    cause: Option<Cause>,
}

#[derive(Clone)]
enum Cause {
    Io(Arc<io::Error>),
    Format(format::Error),
}

/// The number of names that [`Error::name_not_found`] compares. A mistyped name must not cause a scan of a million
/// names.
const MAX_COMPARED_NAMES: usize = 2_000;

/// The longest name that is compared, in bytes. The time to compare two names grows with the product of their lengths.
const MAX_COMPARED_BYTES: usize = 120;

/// Constructors for importers, exporters and other implementations of [`Source`](crate::Source).
impl Error {
    /// Creates an error. The message states the request, the current state, and what to do.
    ///
    /// ```
    /// # use stridemap::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::BadFile, "read x.bin: 3 bytes, and the header takes 8");
    /// assert_eq!(error.kind(), ErrorKind::BadFile);
    /// assert_eq!(error.to_string(), "read x.bin: 3 bytes, and the header takes 8");
    /// ```
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Error(Box::new(Inner { kind, message, is_failed_sync: false, broken_path: None, cause: None }))
    }

    /// Creates the error of a failed file operation. `action` is a verb and its object: "publish manifest". If `source`
    /// contains an error of this crate, as made by [`io::Error::other`] or by `From`, its kind, rule and cause are kept.
    ///
    /// ```
    /// # use std::{io, path::Path};
    /// # use stridemap::{Error, ErrorKind};
    /// let error = Error::io("write", Path::new("x.bin"), io::ErrorKind::StorageFull.into());
    /// assert_eq!((error.kind(), error.to_string()), (ErrorKind::Io, "write: x.bin: no storage space".to_owned()));
    /// ```
    pub fn io(action: &str, path: &Path, source: io::Error) -> Self {
        if let Some(inner) = Error::inside(&source) {
            return inner.clone().context(format!("{action}: {}", path.display()));
        }
        let kind = match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            // Of the system, it may also be a limit on mappings.
            io::ErrorKind::OutOfMemory if source.raw_os_error().is_none() => ErrorKind::OutOfMemory,
            _ => ErrorKind::Io,
        };
        let advice = match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => {
                "; raise the limit of open files (ulimit -n), or drop tensors: each storage is an open file"
            }
            Some(Errno::NFILE) => "; all processes together have too many files open (sysctl fs.file-max)",
            Some(Errno::FBIG) => {
                "; raise the limit on file size (ulimit -f), or use a file system that allows longer files"
            }
            Some(Errno::NOMEM) if action.starts_with("map ") => {
                "; raise the limit of mappings (sysctl vm.max_map_count) or of address space (ulimit -v), or use \
                 a store opened with open, which reads without mapping"
            }
            _ => "",
        };
        let mut error = Error::new(kind, format!("{action}: {}: {source}{advice}", path.display()));
        error.0.cause = Some(Cause::Io(Arc::new(source)));
        error
    }

    /// Returns the error of this crate that an error of a file operation contains.
    pub(crate) fn inside(source: &io::Error) -> Option<&Error> {
        source.get_ref()?.downcast_ref()
    }

    /// Creates the error for a name that is not among `names`. It suggests the most similar of the first 2,000 names.
    ///
    /// ```
    /// # use stridemap::{Error, ErrorKind};
    /// let error = Error::name_not_found("load", "wieght", ["bias", "weight"].map(str::to_owned));
    /// assert_eq!(error.kind(), ErrorKind::NameNotFound);
    /// assert!(error.to_string().ends_with("did you mean \"weight\"?"));
    /// ```
    pub fn name_not_found(
        action: impl fmt::Display,
        name: &str,
        names: impl IntoIterator<Item = String>,
    ) -> Self {
        Self::not_found(action, "tensor", name, names)
    }

    /// Like [`name_not_found`](Self::name_not_found), for the name of a tag.
    pub(crate) fn tag_not_found(action: &str, name: &str, names: impl IntoIterator<Item = String>) -> Self {
        Self::not_found(action, "tag", name, names)
    }

    fn not_found(
        action: impl fmt::Display,
        what: &str,
        name: &str,
        names: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut nearest: Vec<(f64, String)> = names
            .into_iter()
            .take(MAX_COMPARED_NAMES)
            .filter(|other| name.len().max(other.len()) <= MAX_COMPARED_BYTES)
            .map(|other| (strsim::normalized_damerau_levenshtein(name, &other), other))
            .filter(|(similarity, _)| *similarity > 0.5)
            .collect();
        nearest.sort_by_key(|(similarity, _)| Reverse((similarity * 1e6) as u64));
        nearest.truncate(3);
        let mut message = format!("{action} {name:?}: no {what} with this name");
        if !nearest.is_empty() {
            let listed: Vec<String> = nearest.iter().map(|(_, other)| format!("{other:?}")).collect();
            message += &format!("; did you mean {}?", listed.join(" or "));
        }
        Error::new(ErrorKind::NameNotFound, message)
    }

    /// Like [`io`](Self::io), for the first step of a write: "permission denied" becomes `ReadOnly`, because the whole
    /// store is read-only.
    pub(crate) fn at_first_write(action: &str, path: &Path, source: io::Error) -> Self {
        let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
        let mut error = Error::io(action, path, source);
        if is_denied {
            error.0.kind = ErrorKind::ReadOnly;
        }
        error
    }

    /// Creates the error for a file whose bytes break a rule: [`Corrupt`](ErrorKind::Corrupt), or
    /// [`UnsupportedVersion`](ErrorKind::UnsupportedVersion) for that rule. If [`Files`](crate::replica::Files) return it,
    /// inside an [`io::Error`], a [verification](crate::Store::verify) lists it as damage and goes on.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use stridemap::{Error, ErrorKind, Rule};
    /// let broken = stridemap_format::Error::new(Rule::RemoteObject, "the object does not exist");
    /// let error = Error::corrupt(Path::new("s3://bucket/x/objects/1234"), broken);
    /// assert_eq!((error.kind(), error.rule()), (ErrorKind::Corrupt, Some(Rule::RemoteObject)));
    /// ```
    pub fn corrupt(path: &Path, source: format::Error) -> Self {
        let kind = match source.rule() {
            format::Rule::Version => ErrorKind::UnsupportedVersion,
            _ => ErrorKind::Corrupt,
        };
        let place = source.offset_bytes().map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let mut error = Error::new(kind, format!("{}{place}: {source}", path.display())).breaking(source);
        error.0.broken_path = Some(path.to_path_buf());
        error
    }

    /// Creates the error for a value that would break a rule if it were written, such as a
    /// [`Header`](crate::Header): [`InvalidArgument`](ErrorKind::InvalidArgument) for invalid values and for values that
    /// do not match each other, [`OutOfRange`](ErrorKind::OutOfRange) for elements outside the storage, and otherwise
    /// [`LimitExceeded`](ErrorKind::LimitExceeded).
    ///
    /// ```
    /// # use stridemap::{DType, Error, ErrorKind, Header};
    /// let refused = |size: &[usize], stride: &[isize]| {
    ///     let header = Header::new(DType::U8, size, stride, 0);
    ///     Error::refused("read x.bin", header.unwrap_err()).kind()
    /// };
    /// assert_eq!(refused(&[2, 2], &[1]), ErrorKind::InvalidArgument);
    /// assert_eq!(refused(&[1; 65], &[1; 65]), ErrorKind::LimitExceeded);
    /// ```
    pub fn refused(action: impl fmt::Display, source: format::Error) -> Self {
        use format::Rule;
        let kind = match source.rule() {
            Rule::Text | Rule::DimNames | Rule::DType | Rule::StorageKind => ErrorKind::InvalidArgument,
            _ if source.is_mismatch() => ErrorKind::InvalidArgument,
            Rule::Extent => ErrorKind::OutOfRange,
            _ => ErrorKind::LimitExceeded,
        };
        Error::new(kind, format!("{action}: {source}")).breaking(source)
    }

    /// Sets the cause to an error of the format, which the message contains.
    pub(crate) fn breaking(mut self, source: format::Error) -> Self {
        self.0.cause = Some(Cause::Format(source));
        self
    }

    /// Sets the cause to that of an error that the message contains.
    pub(crate) fn caused_by(mut self, first: &Error) -> Self {
        self.0.cause.clone_from(&first.0.cause);
        self
    }

    /// Prepends the action that failed to the message.
    ///
    /// ```
    /// # use stridemap::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::BadFile, "x.bin is empty").context("import");
    /// assert_eq!(error.to_string(), "import: x.bin is empty");
    /// ```
    #[must_use]
    pub fn context(mut self, action: impl fmt::Display) -> Self {
        self.0.message = format!("{action}: {}", self.0.message);
        self
    }

    /// Appends advice to the message.
    pub(crate) fn advised(mut self, advice: impl fmt::Display) -> Self {
        self.0.message += &format!("; {advice}");
        self
    }

    /// Marks a failed sync: what was written may be lost, and another sync would not report it.
    pub(crate) fn after_failed_sync(mut self) -> Self {
        self.0.is_failed_sync = true;
        self
    }

    pub(crate) fn is_failed_sync(&self) -> bool {
        self.0.is_failed_sync
    }

    /// Returns the kind, to match on.
    ///
    /// ```
    /// # use stridemap::{ErrorKind, Store};
    /// match Store::open("no such store") {
    ///     Err(e) if e.kind() == ErrorKind::NotFound => {} // create it
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the rule of the format that was broken, if the error is about one.
    ///
    /// ```
    /// # use stridemap::{Rule, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// # Store::create(&path)?;
    /// std::fs::write(path.join("meta/0000000000000001.man"), "no manifest")?;
    /// assert_eq!(Store::open(&path).unwrap_err().rule(), Some(Rule::ManifestFrame));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rule(&self) -> Option<format::Rule> {
        self.format_error().map(format::Error::rule)
    }

    /// Returns the error of the operating system that caused this one, if one did.
    ///
    /// ```
    /// # use std::{io, path::Path};
    /// # use stridemap::Error;
    /// let error = Error::io("write", Path::new("x.bin"), io::ErrorKind::StorageFull.into());
    /// assert!(error.io_error().is_some_and(|cause| cause.kind() == io::ErrorKind::StorageFull));
    /// ```
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match self.0.cause.as_ref()? {
            Cause::Io(cause) => Some(cause),
            Cause::Format(_) => None,
        }
    }

    /// Returns the error of the format that this error is about, if it is about one.
    pub(crate) fn format_error(&self) -> Option<&format::Error> {
        match self.0.cause.as_ref()? {
            Cause::Format(cause) => Some(cause),
            Cause::Io(_) => None,
        }
    }

    /// Returns the file whose bytes break a rule, if it is known.
    pub(crate) fn broken_path(&self) -> Option<&Path> {
        self.0.broken_path.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.0.message))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

// No `From<format::Error>`: `?` on the result of `Store::write` finds the type of the closure's error by the only `From`
// that this type has. With another, `store.write(|txn| { ..; Ok(()) })?` would need annotations.

/// Keeps the kind of the operating system's error, if there is one.
///
/// ```
/// fn names(path: &str) -> std::io::Result<Vec<String>> {
///     Ok(stridemap::Store::open(path)?.names()?)
/// }
/// assert_eq!(names("no such store").unwrap_err().kind(), std::io::ErrorKind::NotFound);
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound | ErrorKind::NameNotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists | ErrorKind::NameExists => io::ErrorKind::AlreadyExists,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::NotAllowed => io::ErrorKind::PermissionDenied,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Busy => io::ErrorKind::TimedOut,
            _ if error.is_damage() => io::ErrorKind::InvalidData,
            _ if error.is_invalid_request() => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(error.io_error().map_or(kind, io::Error::kind), error)
    }
}

/// Escapes control characters, which file names may contain.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
