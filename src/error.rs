use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use stridemap_format as format;

/// A result whose error is this crate's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong, for code that decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused; the source is its error.
    Io,
    /// There is no store at the path.
    NotFound,
    /// What is at the path is not a store.
    NotAStore,
    /// The place for a new store, or for an exported file, is taken.
    AlreadyExists,
    /// The store was written by a newer version of the format.
    UnsupportedVersion,
    /// The store's bytes break a rule of the format; the source names it.
    Corrupt,
    /// The store has no tensor of this name.
    NameNotFound,
    /// There is a tensor of this name, which was not to be replaced.
    NameExists,
    /// The elements are of another type.
    DTypeMismatch,
    /// Sizes do not fit each other or the data.
    SizeMismatch,
    /// An axis, an index or a range lies outside.
    OutOfRange,
    /// The names of dimensions do not fit each other.
    NameMismatch,
    /// An argument that no tensor could satisfy.
    InvalidArgument,
    /// The view cannot be described by strides: the elements would have to be copied.
    NeedsCopy,
    /// A borrow needs contiguous elements.
    NotContiguous,
    /// A borrow, and a live tensor, needs a store opened with `open_mapped`.
    NotMapped,
    /// Elements are locked and changed in mutable storages only.
    NotMutable,
    /// Elements are read and written by atomics in live storages only.
    NotLive,
    /// Rows are appended to a contiguous tensor at the end of its sealed storage only.
    NotGrowable,
    /// Two indices of a view that is to be written are one element.
    Overlapping,
    /// A borrow needs elements at an address that is a multiple of their alignment.
    Misaligned,
    /// A number is past a limit of the format.
    LimitExceeded,
    /// The tensor stands on a storage that this store does not hold.
    ForeignStorage,
    /// The store is on a network file system, and the opener did not allow that its files be mapped there.
    NetworkFileSystem,
    /// The storage lies outside the store, and the opener did not allow that.
    ExternalRefused,
    /// A file that is not the store's is not the one that was opened or adopted any more.
    ExternalChanged,
    /// Another process, or another guard, holds the lock.
    Busy,
    /// The value belongs to the process that this one was forked from.
    Forked,
    /// A file or directory of the store is gone, or another took its place, since the handle was opened.
    Replaced,
    /// Another commit changed what this one stands on.
    Conflict,
    /// The store cannot be written: it, or the handle, is read-only.
    ReadOnly,
    /// The commit may or may not be there, which opening the store again shows; the next commit or collection by a new
    /// handle makes durable what is there.
    CommitUnknown,
    /// An earlier sync failed, so this handle writes no more; the source is that failure.
    Poisoned,
    /// A file to import or export is not what it claims, or cannot hold what it was given.
    BadFile,
    /// None of the others: for errors that a caller [makes](Error::new).
    Other,
}

/// What was asked, what stands, and what to do.
///
/// It prints as one line that includes its cause; the cause is also its `source`.
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

/// How many names [`Error::name_not_found`] looks at: a mistyped name should not cost a scan of a million.
const MAX_LOOKED_AT: usize = 2_000;

/// Longer names are not compared: it takes time that grows with the product of their lengths.
const MAX_COMPARED_BYTES: usize = 120;

/// Errors of an importer, an exporter, or another [`Source`](crate::Source).
///
/// ```
/// use std::io;
/// use std::path::Path;
/// use stridemap::{Error, ErrorKind};
///
/// let cut = Error::new(ErrorKind::BadFile, "read x.bin: 3 bytes, and the header takes 8");
/// assert_eq!(cut.context("import").to_string(), "import: read x.bin: 3 bytes, and the header takes 8");
///
/// let full = Error::io("write", Path::new("x.bin"), io::ErrorKind::StorageFull.into());
/// assert_eq!((full.kind(), full.to_string()), (ErrorKind::Io, "write: x.bin: no storage space".to_owned()));
///
/// let missing = Error::name_not_found("load", "wieght", ["bias", "weight"].map(str::to_owned));
/// assert_eq!(missing.kind(), ErrorKind::NameNotFound);
/// assert!(missing.to_string().ends_with("did you mean \"weight\"?"));
/// ```
impl Error {
    /// An error of this kind. The message states the request, the current state, and what to do.
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

    /// The error of a file operation. `action` is a verb and its object: "publish manifest".
    pub fn io(action: &str, path: &Path, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        let advice = match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => {
                "; raise the limit of open files (ulimit -n), or drop tensors, each storage is one"
            }
            Some(Errno::NFILE) => "; all processes together have too many files open (sysctl fs.file-max)",
            Some(Errno::FBIG) => {
                "; raise the limit of the length of files (ulimit -f), or use a file system that allows longer ones"
            }
            Some(Errno::NOMEM) if action.starts_with("map ") => {
                "; raise the limit of mappings (sysctl vm.max_map_count) or of address space (ulimit -v), or use a store \
                 opened with open, which reads without mapping"
            }
            _ => "",
        };
        Error::new(kind, format!("{action}: {}: {source}{advice}", path.display())).with_source(source)
    }

    /// The error for a name that is not among `names`. It suggests the most similar of the first 2,000.
    pub fn name_not_found(
        action: impl fmt::Display,
        name: &str,
        names: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut nearest: Vec<(f64, String)> = names
            .into_iter()
            .take(MAX_LOOKED_AT)
            .filter(|other| name.len().max(other.len()) <= MAX_COMPARED_BYTES)
            .map(|other| (strsim::normalized_damerau_levenshtein(name, &other), other))
            .filter(|(similarity, _)| *similarity > 0.5)
            .collect();
        nearest.sort_by_key(|(similarity, _)| Reverse((similarity * 1e6) as u64));
        nearest.truncate(3);
        let mut message = format!("{action} {name:?}: no tensor of this name");
        if !nearest.is_empty() {
            let listed: Vec<String> = nearest.iter().map(|(_, other)| format!("{other:?}")).collect();
            message += &format!("; did you mean {}?", listed.join(" or "));
        }
        Error::new(ErrorKind::NameNotFound, message)
    }

    /// As [`io`](Self::io), for the first step of a write, where being denied means that all of the store is read-only.
    pub(crate) fn denied(action: &str, path: &Path, source: io::Error) -> Self {
        let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
        let mut error = Error::io(action, path, source);
        if is_denied {
            error.0.kind = ErrorKind::ReadOnly;
        }
        error
    }

    /// The bytes of the file at `path` break a rule.
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

    /// A value that was to be written breaks a rule.
    pub(crate) fn refused(action: impl fmt::Display, source: format::Error) -> Self {
        use format::Rule;
        let kind = match source.rule() {
            Rule::Name | Rule::DimNames | Rule::ExternalPath => ErrorKind::InvalidArgument,
            Rule::Extent => ErrorKind::OutOfRange,
            _ => ErrorKind::LimitExceeded,
        };
        Error::new(kind, format!("{action}: {source}")).with_source(source)
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn context(mut self, action: impl fmt::Display) -> Self {
        self.0.message = format!("{action}: {}", self.0.message);
        self
    }

    /// Puts what to do about it after the message.
    pub(crate) fn advised(mut self, advice: impl fmt::Display) -> Self {
        self.0.message += &format!("; {advice}");
        self
    }

    /// Marks the failure of a sync: what was written may be lost, and trying again would not tell.
    pub(crate) fn after_failed_sync(mut self) -> Self {
        self.0.is_failed_sync = true;
        self
    }

    pub(crate) fn is_failed_sync(&self) -> bool {
        self.0.is_failed_sync
    }

    /// Whether what was asked needs a descriptor or memory that this process, or the machine, does not have just now.
    pub(crate) fn is_for_want_of_resources(&self) -> bool {
        let cause = self.0.source.as_ref().and_then(|source| source.downcast_ref::<io::Error>());
        let number = cause.and_then(io::Error::raw_os_error).map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }

    /// The kind, to decide by.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The rule of the format that was broken, when it was one.
    #[must_use]
    pub fn rule(&self) -> Option<format::Rule> {
        self.broken().map(format::Error::rule)
    }

    pub(crate) fn broken(&self) -> Option<&format::Error> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// The file whose bytes break a rule, when it is known.
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

/// The names of files may hold anything: control characters, as Rust writes them in text.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
