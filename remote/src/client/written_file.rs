//! A file that appears whole or not at all, and is on disk when the call returns.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

/// What is at the path before.
pub(super) enum Before<'a> {
    Anything,
    Nothing,
    /// A file with these contents, as [`content_version`] names them.
    Version(&'a str),
}

/// Files being written have this in their names, and locks end in [`LOCK_SUFFIX`]. No name of a remote does.
pub(super) const TEMPORARY_MARK: char = '#';
pub(super) const LOCK_SUFFIX: &str = ".lock";

/// How long another process is waited for that replaces the same file, which takes it a few milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Names the contents of a file, so that two different contents never have the same version. Times and inode numbers do
/// not tell apart what was written within the same tick of the clock.
pub(super) fn content_version(bytes: &[u8]) -> String {
    let digest: String = stridemap_format::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digest}\"")
}

/// Writes a file. A killed process leaves a temporary file at most.
///
/// # Errors
///
/// `AlreadyExists` if what is at the path is not `before`.
pub(super) fn write(path: &Path, pieces: &[Bytes], before: &Before<'_>) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    create_dirs(dir)?;
    // Held until the file is replaced.
    let _lock = match before {
        Before::Version(version) => {
            let lock = lock(path)?;
            match fs::read(path) {
                Ok(bytes) if content_version(&bytes) == *version => (),
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Err(error) => return Err(error),
            }
            Some(lock)
        }
        Before::Nothing if path.try_exists()? => return Err(io::ErrorKind::AlreadyExists.into()),
        Before::Nothing | Before::Anything => None,
    };
    let temporary = Temporary(temporary_path(path));
    let mut file = File::create_new(&temporary.0)?;
    for piece in pieces {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    drop(file);
    match before {
        Before::Nothing => rename_new(&temporary.0, path)?,
        Before::Anything | Before::Version(_) => fs::rename(&temporary.0, path)?,
    }
    sync_dir(dir)
}

/// Deleted when dropped. Once it is renamed, there is nothing to delete.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may be renamed already, and otherwise it is ignored by every reader.
        let _ = fs::remove_file(&self.0);
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(format!("{TEMPORARY_MARK}{:016x}", fastrand::u64(..)));
    path.with_file_name(name)
}

/// Renames a file unless the target exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support the flag. The temporary name is deleted by the caller.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::hard_link(from, to),
        result => Ok(result?),
    }
}

/// Locks a file for a compare and swap, by a file beside it that is never deleted.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(LOCK_SUFFIX);
    let lock = File::options().create(true).truncate(false).write(true).open(path.with_file_name(name))?;
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds its lock"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Creates a directory and its parents, on disk.
fn create_dirs(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Ok(()) => (),
        // Another process may have created it a moment ago, and not synced it yet. One that was there before may be in a
        // directory that cannot be opened.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return match dir.parent().map_or(Ok(()), sync_dir) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                synced => synced,
            };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_dirs(dir.parent().ok_or(error)?)?;
            match fs::create_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => (),
            }
        }
        Err(error) => return Err(error),
    }
    dir.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
