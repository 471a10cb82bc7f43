//! The files of a store that is not in a file system.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::disk::stream_by_reads;

/// The files of a store that is not in a file system, all of one generation and of what its tags keep.
///
/// Files have the names that the format defines, relative to the store: `FORMAT`, `meta/<generation>.man`,
/// `generations/<generation>.tab`, `storages/<id>.bin` and so on. The files, their names and their bytes must not change
/// while a store is open on them.
///
/// # Errors
/// An error of any kind but [`NotFound`](io::ErrorKind::NotFound) says that a file could not be read, and nothing about
/// the file. To say more, return a [`stridemap::Error`](crate::Error) inside: `io::Error::other(error)`. Its kind, its
/// cause and its message are then those of the error that the reader of the store gets, and the call is not repeated. So a
/// wrong digest of what was fetched can be [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
pub trait Files: Debug + Send + Sync {
    /// Returns the names of the files in `meta` or in `generations`, without the directory, in no particular order.
    ///
    /// # Errors
    /// If they could not be listed.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Opens a file, by its name relative to the store.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if the store has no such file; otherwise, if it could not be opened.
    fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>>;
}

/// An open file of a store, for reading.
pub trait FileReader: Debug + Send + Sync {
    /// Returns the length in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from the bytes at `offset_bytes`. Reads of elements of a large tensor are at most 4 MiB each.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends before; otherwise, if the bytes could not be read.
    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()>;

    /// Passes a range of bytes to `sink`, in order, in pieces of any length. An implementation may read ahead. By default,
    /// blocks of 4 MiB are read one after another.
    ///
    /// # Errors
    /// Those of [`read_exact_at`](Self::read_exact_at), and those of `sink`.
    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        stream_by_reads(range, sink, |buf, offset_bytes| self.read_exact_at(buf, offset_bytes))
    }

    /// Announces that a range will be read soon, in parts and usually in ascending order. An implementation may begin to
    /// fetch it, beside other ranges, and should return at once. A range may be announced twice.
    ///
    /// Ranges that are announced have at most 4 MiB, and at most 64 MiB of one read are announced and not yet read. Short
    /// gaps between the bytes that will be read are part of a range. This never changes what a read returns. By default it
    /// does nothing.
    fn prefetch(&self, _range: Range<u64>) {}
}
