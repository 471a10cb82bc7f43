//! Errors of this crate.

use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use stridemap_format as format;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system returned an error, which is the source.
    Io,
    /// There is no store at the path.
    NotFound,
    /// The path exists but is not a store.
    NotAStore,
    /// The path of a new store or an exported file already exists.
    AlreadyExists,
    /// The store was written by a newer version of the format.
    UnsupportedVersion,
    /// The store's bytes break a rule of the format. The source names the rule.
    Corrupt,
    /// The store has no tensor with this name.
    NameNotFound,
    /// A tensor with this name exists, and the change does not replace it.
    NameExists,
    /// The elements have a different dtype.
    DTypeMismatch,
    /// Sizes do not match each other or the data.
    SizeMismatch,
    /// An axis, an index or a range is out of bounds.
    OutOfRange,
    /// The names of dimensions do not match.
    DimensionNameMismatch,
    /// An argument, or a value in the elements, is not valid.
    InvalidArgument,
    /// The view cannot be described by strides, so its elements would have to be copied.
    NeedsCopy,
    /// Borrowing needs contiguous elements.
    NotContiguous,
    /// Borrowing elements, or using a live tensor, needs a store opened with `open_mapped`.
    NotMapped,
    /// Locking elements and changing them in place needs a mutable storage.
    NotMutable,
    /// Reading and writing elements by atomics needs a live storage.
    NotLive,
    /// Appending rows needs a contiguous tensor at the end of its sealed storage.
    NotGrowable,
    /// Several indices of the view to be written refer to the same element.
    Overlapping,
    /// Borrowing needs elements at an address that is a multiple of their alignment.
    Misaligned,
    /// A number exceeds a limit of the format, of an operation or of this machine's address space.
    LimitExceeded,
    /// There is not enough memory for the result.
    OutOfMemory,
    /// The storage of the tensor does not belong to this store.
    ForeignStorage,
    /// The store is on a network file system, and mapping its files there was not allowed.
    NetworkFileSystem,
    /// The storage is a file outside the store that this handle may not open.
    ExternalRefused,
    /// An external file changed since it was opened or adopted.
    ExternalChanged,
    /// Another process, or another guard, holds the lock.
    Busy,
    /// The value was created by the parent of this forked process.
    Forked,
    /// A file or directory of the store was deleted or replaced since the handle was opened.
    Replaced,
    /// Another commit changed what this one depends on.
    Conflict,
    /// The store cannot be changed, because its file system is read-only, or because the process has no permission
    /// to write its files. Reading works.
    ReadOnly,
    /// The commit may or may not have taken effect; opening the store again shows which. The next commit or
    /// collection by a new handle makes the visible state durable.
    CommitUnknown,
    /// An earlier sync failed, so this handle can no longer write. The source is that failure.
    Poisoned,
    /// An imported file is malformed, or the format of an exported file cannot represent a tensor.
    BadFile,
    /// Any other error that a caller [creates](Error::new).
    Other,
}

/// An error. The message states the request, the current state, and what to do.
///
/// It is displayed as one line that includes the cause. The cause is also its `source`.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    is_failed_sync: bool,
    /// The file whose bytes break a rule.
    broken_path: Option<PathBuf>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
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
        Error(Box::new(Inner { kind, message, is_failed_sync: false, broken_path: None, source: None }))
    }

    /// Sets the error that caused this one.
    ///
    /// ```
    /// use std::error::Error as _;
    /// use stridemap::{Error, ErrorKind};
    ///
    /// let cause = "12x".parse::<u64>().unwrap_err();
    /// let error = Error::new(ErrorKind::BadFile, format!("read x.txt: {cause}")).with_source(cause);
    /// assert!(error.source().is_some_and(|source| source.is::<std::num::ParseIntError>()));
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// Creates the error of a failed file operation. `action` is a verb and its object: "publish manifest".
    ///
    /// ```
    /// # use std::{io, path::Path};
    /// # use stridemap::{Error, ErrorKind};
    /// let error = Error::io("write", Path::new("x.bin"), io::ErrorKind::StorageFull.into());
    /// assert_eq!((error.kind(), error.to_string()), (ErrorKind::Io, "write: x.bin: no storage space".to_owned()));
    /// ```
    pub fn io(action: &str, path: &Path, source: io::Error) -> Self {
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
        Error::new(kind, format!("{action}: {}: {source}{advice}", path.display())).with_source(source)
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
        let mut nearest: Vec<(f64, String)> = names
            .into_iter()
            .take(MAX_COMPARED_NAMES)
            .filter(|other| name.len().max(other.len()) <= MAX_COMPARED_BYTES)
            .map(|other| (strsim::normalized_damerau_levenshtein(name, &other), other))
            .filter(|(similarity, _)| *similarity > 0.5)
            .collect();
        nearest.sort_by_key(|(similarity, _)| Reverse((similarity * 1e6) as u64));
        nearest.truncate(3);
        let mut message = format!("{action} {name:?}: no tensor with this name");
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

    /// Creates the error for a file whose bytes break a rule.
    pub(crate) fn corrupt(path: &Path, source: format::Error) -> Self {
        let kind = match source.rule() {
            format::Rule::Version => ErrorKind::UnsupportedVersion,
            _ => ErrorKind::Corrupt,
        };
        let place = source.offset_bytes().map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let mut error = Error::new(kind, format!("{}{place}: {source}", path.display())).with_source(source);
        error.0.broken_path = Some(path.to_path_buf());
        error
    }

    /// Creates the error for a value that would break a rule if it were written.
    pub(crate) fn refused(action: impl fmt::Display, source: format::Error) -> Self {
        use format::Rule;
        let kind = match source.rule() {
            Rule::Text | Rule::DimNames => ErrorKind::InvalidArgument,
            Rule::Extent => ErrorKind::OutOfRange,
            _ => ErrorKind::LimitExceeded,
        };
        Error::new(kind, format!("{action}: {source}")).with_source(source)
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

    /// Returns the error of the format that this error is about, if it is about one.
    pub(crate) fn format_error(&self) -> Option<&format::Error> {
        self.0.source.as_ref()?.downcast_ref()
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
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
