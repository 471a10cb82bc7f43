//! Reads files in other formats by position, and writes them whole or not at all.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use stridemap::import::ExternalFile;
use stridemap::{Error, ErrorKind, OnExisting, Result, Source as _, Tensor, Writeback};
use tempfile::NamedTempFile;

use crate::persist_new;

/// The maximum number of bytes read or written between two calls of `progress`.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// The number of bytes at the start of a file that are read to detect its format. A pointer of Git LFS needs the most.
pub(super) const MAGIC_BYTES: u64 = 24;

/// The prefix of the names of unfinished files.
const UNFINISHED_PREFIX: &str = ".export-";

/// The maximum number of characters of an error about a bad file, which the error may quote.
const MAX_MESSAGE_CHARS: usize = 500;

/// An open file in another format, with its length when it was opened.
#[derive(Debug)]
pub(super) struct RawFile(Arc<ExternalFile>);

impl RawFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(RawFile(Arc::new(ExternalFile::open(path)?)))
    }

    pub(super) fn from_file(file: File, path: &Path) -> Result<Self> {
        Ok(RawFile(Arc::new(ExternalFile::from_file(file, path)?)))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn length_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    /// Returns the file, for storages that are ranges of it.
    pub(super) fn external(&self) -> &Arc<ExternalFile> {
        &self.0
    }

    /// Returns the file name without its extension. In a format without names it becomes the name of the tensor.
    pub(super) fn stem(&self) -> Result<&str, &'static str> {
        let stem = self.path().file_stem().and_then(OsStr::to_str);
        stem.ok_or("the file name becomes the tensor's name, but is not UTF-8; rename the file")
    }

    /// Returns the error for a malformed file.
    pub(super) fn bad(&self, what: impl Display) -> Error {
        // The message may quote the file, which can contain long text and control characters.
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let what: String = what.to_string().chars().take(MAX_MESSAGE_CHARS).map(printable).collect();
        Error::new(ErrorKind::BadFile, format!("read {}: {what}", self.path().display()))
    }

    /// Returns the first bytes, from which the format is detected. A shorter file is returned whole.
    pub(super) fn magic(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length_bytes().min(MAGIC_BYTES) as usize];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns the first bytes, which locate the header.
    pub(super) fn preamble<const N: usize>(&self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        if self.length_bytes() < N as u64 {
            return Err(self.bad(format!(
                "the file has only {} bytes; its header has at least {N}",
                self.length_bytes()
            )));
        }
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns the bytes of the header. Its length comes from the file, so it is checked before memory is allocated.
    pub(super) fn header(&self, start_bytes: u64, length_bytes: u64, limit_bytes: u64) -> Result<Vec<u8>> {
        self.check_header(start_bytes, length_bytes, limit_bytes)?;
        let mut header = zeroed(length_bytes as usize)?;
        self.read_at(&mut header, start_bytes)?;
        Ok(header)
    }

    /// Returns the range of a header that may be long, to be read in pieces.
    pub(super) fn header_range(
        &self,
        start_bytes: u64,
        length_bytes: u64,
        limit_bytes: u64,
    ) -> Result<FileRange<'_>> {
        self.check_header(start_bytes, length_bytes, limit_bytes)?;
        Ok(self.range(start_bytes, length_bytes))
    }

    /// Returns a part of the file, to be read in order.
    pub(super) fn range(&self, start_bytes: u64, length_bytes: u64) -> FileRange<'_> {
        FileRange { file: self, offset_bytes: start_bytes, rest_bytes: length_bytes, failure: None }
    }

    fn check_header(&self, start_bytes: u64, length_bytes: u64, limit_bytes: u64) -> Result<()> {
        let rest_bytes = self.length_bytes().saturating_sub(start_bytes);
        if length_bytes > rest_bytes.min(limit_bytes) {
            return Err(self.bad(format!(
                "the header should have {length_bytes} bytes, but {rest_bytes} are left in the file, and at most \
                 {limit_bytes} are allowed; the file is truncated, or has a different format"
            )));
        }
        Ok(())
    }

    /// Checks that the file holds exactly the elements from `start_bytes` to its end.
    pub(super) fn check_rest(&self, start_bytes: u64, elements_bytes: u64) -> Result<()> {
        let rest_bytes = self.length_bytes().saturating_sub(start_bytes);
        check_elements(rest_bytes, elements_bytes).map_err(|e| self.bad(e))
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.0.read_exact_at(buf, offset_bytes)
    }
}

/// Checks that the bytes after a header are exactly the elements that it describes.
pub(super) fn check_elements(rest_bytes: u64, elements_bytes: u64) -> Result<(), String> {
    if rest_bytes == elements_bytes {
        return Ok(());
    }
    Err(format!("the header describes {elements_bytes} bytes of elements, but {rest_bytes} bytes follow it"))
}

/// A part of a file, read by position and in order.
pub(super) struct FileRange<'a> {
    file: &'a RawFile,
    offset_bytes: u64,
    rest_bytes: u64,
    /// Why a read failed. A parser that reads through this reports only that a read failed.
    failure: Option<Error>,
}

impl FileRange<'_> {
    pub(super) fn rest_bytes(&self) -> u64 {
        self.rest_bytes
    }

    /// Returns the error of the read that failed, if one did.
    pub(super) fn into_failure(self) -> Option<Error> {
        self.failure
    }
}

impl Read for FileRange<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.rest_bytes).map_or(buf.len(), |rest| rest.min(buf.len()));
        let Some(piece) = buf.get_mut(..count).filter(|piece| !piece.is_empty()) else { return Ok(0) };
        if let Err(e) = self.file.read_at(piece, self.offset_bytes) {
            self.failure = Some(e.clone());
            return Err(io::Error::other(e));
        }
        self.offset_bytes = self.offset_bytes.saturating_add(count as u64);
        self.rest_bytes = self.rest_bytes.saturating_sub(count as u64);
        Ok(count)
    }
}

/// Allocates a buffer of zeros, whose length comes from a file.
///
/// # Errors
/// `OutOfMemory` if there is not enough memory.
pub(super) fn zeroed(length_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(length_bytes).is_err() {
        let message = format!("no memory for {length_bytes} bytes; raise the limit (ulimit -v)");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    bytes.resize(length_bytes, 0);
    Ok(bytes)
}

/// Writes a file: a header and then the elements of tensors. See [`create`].
pub(super) fn write<'a>(
    path: &Path,
    header: &[u8],
    tensors: impl IntoIterator<Item = &'a Tensor>,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    create(path, on_existing, |writer| write_to(path, writer, header, tensors, progress))
}

/// The path in error messages if the output is a writer, which has no path.
pub(super) const OUTPUT: &str = "output";

/// Writes a header and then the elements of tensors to `writer`, in one pass. Errors name the output as `path`.
pub(super) fn write_to<'a>(
    path: &Path,
    writer: &mut impl Write,
    header: &[u8],
    tensors: impl IntoIterator<Item = &'a Tensor>,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let failed = |e| Error::io("export", path, e);
    writer.write_all(header).map_err(failed)?;
    tensors.into_iter().try_for_each(|tensor| write_elements(path, writer, tensor, progress))?;
    writer.flush().map_err(failed)
}

/// Writes the elements of a tensor, in row-major order.
pub(super) fn write_elements(
    path: &Path,
    writer: &mut impl io::Write,
    tensor: &Tensor,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    tensor.write_to(&mut |bytes| {
        for piece in bytes.chunks(PIECE_BYTES) {
            writer.write_all(piece).map_err(|e| Error::io("export", path, e))?;
            progress(piece.len() as u64);
        }
        Ok(())
    })
}

/// Writes a file under a temporary name, syncs it and renames it to `path`. If anything fails before the rename, an
/// existing file at `path` is unchanged. If the sync of the directory fails, the new file is there but may not be
/// durable. Because the file is replaced last, an export may replace a file that it reads from.
pub(super) fn create(
    path: &Path,
    on_existing: OnExisting,
    fill: impl FnOnce(&mut BufWriter<WritebackFile<'_>>) -> Result<()>,
) -> Result<()> {
    check_replaceable(path, on_existing)?;
    let staged = stage(path, fill)?;
    let staged = staged.into_temp_path();
    let named = match on_existing {
        OnExisting::Replace => staged.persist(path).map_err(|e| e.error),
        _ => persist_new(staged, path),
    };
    named.map_err(|e| not_named(path, e))?;
    sync_dir(dir_of(path))
}

/// Returns the error for a complete file that did not get its name.
pub(super) fn not_named(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::AlreadyExists => exists_error(path),
        _ => Error::io("export", path, e),
    }
}

/// Writes a file under a temporary name and syncs it. The file is deleted when the returned value is dropped.
pub(super) fn stage(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<WritebackFile<'_>>) -> Result<()>,
) -> Result<NamedTempFile> {
    let failed = |e| Error::io("export", path, e);
    let staged = create_unfinished(dir_of(path)).map_err(failed)?;
    let file = WritebackFile { file: staged.as_file(), written_bytes: 0, writeback: Writeback::default() };
    let mut writer = BufWriter::new(file);
    fill(&mut writer)?;
    writer.flush().map_err(failed)?;
    drop(writer);
    staged.as_file().sync_all().map_err(failed)?;
    Ok(staged)
}

/// A file that is written and then synced. The kernel is told to write its pages to disk while writing continues.
pub(super) struct WritebackFile<'a> {
    file: &'a File,
    written_bytes: u64,
    writeback: Writeback,
}

impl Write for WritebackFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written_bytes += count as u64;
        self.writeback.advance(self.file, self.written_bytes)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The writer of zip files goes back to fill in a few fields of headers.
impl Seek for WritebackFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Creates a file with a fresh name and the default permissions of a new file.
pub(super) fn create_unfinished(dir: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(UNFINISHED_PREFIX).make_in(dir, |path| File::create_new(path))
}

/// Returns the directory of a file, which need not exist.
pub(super) fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("sync", dir, e))
}

/// Checks that what exists at `path`, if anything, may be replaced, so that an error comes before gigabytes are
/// written. A rename would replace even a device or a pipe, so only regular files and symbolic links are accepted.
pub(super) fn check_replaceable(path: &Path, on_existing: OnExisting) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) if on_existing == OnExisting::Refuse => Err(exists_error(path)),
        Ok(there) if !there.is_file() && !there.is_symlink() => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("export {}: the path exists and is not a regular file", path.display()),
        )),
        _ => Ok(()),
    }
}

/// Returns the error for what a format cannot hold.
pub(super) fn unwritable(path: &Path, what: impl Display) -> Error {
    Error::new(ErrorKind::BadFile, format!("export {}: {what}", path.display()))
}

fn exists_error(path: &Path) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("export {}: the file already exists, and may not be replaced", path.display()),
    )
}
