//! Opens files outside the store, in the locations that the user of the store allowed.
//!
//! The path of a file comes from a record, which may be malicious. So for [`ExternalFiles::Beside`] the kernel is asked
//! to keep the path inside the directory that holds the store, even if files are renamed during the call. After that,
//! the file is checked through its descriptor, not by its name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The files outside the store that a handle may open for external storages.
///
/// The store names the files, so an untrusted store could name any file that this process can read. Whichever files
/// are allowed, a file is opened only if it is regular, does not belong to a store, and still has the inode,
/// length and mtime that were recorded when it was adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExternalFiles {
    /// No files.
    #[default]
    Refuse,
    /// Files under the directory that holds the store. No symbolic link leads out of it: the kernel enforces this
    /// with `openat2`, from Linux 5.6 on.
    Beside,
    /// Any file.
    Anywhere,
}

/// Why a file was not opened.
#[derive(Debug)]
pub enum ExternalError {
    /// The location or the path of the file is not allowed, for this reason.
    NotAllowed(&'static str),
    /// An error of the file system; `InvalidInput` if it is not a regular file.
    Io(io::Error),
}

impl From<Errno> for ExternalError {
    fn from(errno: Errno) -> Self {
        ExternalError::Io(errno.into())
    }
}

impl From<io::Error> for ExternalError {
    fn from(e: io::Error) -> Self {
        ExternalError::Io(e)
    }
}

/// The limit on attempts if renames by other processes interfere.
const MAX_TRIES: u32 = 100;

/// Opens a regular file for reading. A relative path starts in the directory that holds `store`.
pub(super) fn open(store: &OwnedFd, path: &Path, allowed: ExternalFiles) -> Result<File, ExternalError> {
    let parent = parent_of(store)?;
    // Only locate the file, because opening a device can have side effects.
    let found = match allowed {
        ExternalFiles::Beside if path.is_absolute() => {
            return Err(ExternalError::NotAllowed("the path is absolute"));
        }
        ExternalFiles::Beside => find_beneath(&parent, path)?,
        ExternalFiles::Refuse => return Err(ExternalError::NotAllowed("no external file is")),
        ExternalFiles::Anywhere => {
            rustix::fs::openat(&parent, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?
        }
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
    }
    // Refuse the files of a store. They may be changed in place, grow or be deleted, so only that store may read them.
    let place = place_of(&found)?;
    let is_own = place.starts_with(place_of(store)?);
    if is_own || place.ancestors().skip(1).take(2).any(is_store) {
        return Err(ExternalError::NotAllowed("the file is one of a store's own files"));
    }
    Ok(File::open(descriptor_path(&found))?)
}

fn find_beneath(parent: &OwnedFd, path: &Path) -> Result<OwnedFd, ExternalError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(parent, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < MAX_TRIES => {}
            Err(Errno::XDEV) => {
                return Err(ExternalError::NotAllowed(
                    "the path leads out of the directory that holds the store",
                ));
            }
            Err(Errno::LOOP) => {
                return Err(ExternalError::NotAllowed(
                    "the path leads through a link of /proc, or through a loop of links",
                ));
            }
            Err(Errno::NOSYS) => {
                return Err(ExternalError::NotAllowed(
                    "this kernel cannot keep a path inside a directory (openat2 needs Linux 5.6)",
                ));
            }
            found => return Ok(found?),
        }
    }
}

/// See [`Disk::recorded_path`](super::Disk::recorded_path).
pub(super) fn recorded_path(store: &OwnedFd, file: &File) -> io::Result<PathBuf> {
    if rustix::fs::fstat(file)?.st_nlink == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the file was deleted since it was opened"));
    }
    let place = place_of(file)?;
    let parent = place_of(parent_of(store)?)?;
    Ok(place.strip_prefix(&parent).map(Path::to_path_buf).unwrap_or(place))
}

/// Whether a directory looks like a store.
fn is_store(dir: &Path) -> bool {
    dir.join("FORMAT").is_file() && dir.join("meta").is_dir() && dir.join("storages").is_dir()
}

/// Returns the parent of a directory, even if the directory was opened through a link.
fn parent_of(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, "..", flags, Mode::empty())
}

/// Returns the current path of an open file, without links.
fn place_of(open: impl AsFd) -> io::Result<PathBuf> {
    let place = rustix::fs::readlinkat(CWD, descriptor_path(&open), Vec::new()).map_err(|e| match e {
        // The file exists, because it is open.
        Errno::NOENT => {
            io::Error::other("/proc is not mounted; it is needed to find the path of an open file")
        }
        e => e.into(),
    })?;
    Ok(std::ffi::OsString::from_vec(place.into_bytes()).into())
}

fn descriptor_path(open: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", open.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A directory with a store in it, and another directory next to that.
    fn surroundings() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir_all(inside.join("store/storages")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("file"), "outside").unwrap();
        fs::create_dir_all(inside.join("other/storages")).unwrap();
        fs::create_dir_all(inside.join("other/meta")).unwrap();
        fs::write(inside.join("other/FORMAT"), "").unwrap();
        fs::write(inside.join("other/LOCK"), "").unwrap();
        fs::write(inside.join("other/storages/file"), "of another").unwrap();
        fs::write(inside.join("file"), "inside").unwrap();
        fs::write(inside.join("store/storages/file"), "own").unwrap();
        (dir, inside, outside)
    }

    fn directory(path: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap()
    }

    fn read(store: &Path, path: impl AsRef<Path>, scope: ExternalFiles) -> Result<String, ExternalError> {
        let mut text = String::new();
        open(&directory(store), path.as_ref(), scope)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn beside_stays_under_the_directory_that_holds_the_store() {
        let (_dir, inside, outside) = surroundings();
        let store = inside.join("store");
        symlink("file", inside.join("near")).unwrap();
        symlink(outside.join("file"), inside.join("far")).unwrap();
        symlink(&outside, inside.join("far_dir")).unwrap();
        symlink("/proc/self/cwd", inside.join("magic")).unwrap();
        for path in ["file", "near", "./file", "store/../file"] {
            assert_eq!(read(&store, path, ExternalFiles::Beside).unwrap(), "inside", "{path}");
        }
        let absolute = inside.join("file");
        for path in [
            "../outside/file",
            "../inside/file",
            "far",
            "far_dir/file",
            "magic/file",
            absolute.to_str().unwrap(),
            "store/storages/file",
            "store/../store/storages/file",
            "other/storages/file",
            "other/LOCK",
        ] {
            let refused = read(&store, path, ExternalFiles::Beside);
            assert!(matches!(refused, Err(ExternalError::NotAllowed(_))), "{path}: {refused:?}");
        }
        for path in ["../outside/file", "far", "far_dir/file"] {
            assert_eq!(read(&store, path, ExternalFiles::Anywhere).unwrap(), "outside", "{path}");
        }
        assert_eq!(read(&store, &absolute, ExternalFiles::Anywhere).unwrap(), "inside");
        let own = read(&store, store.join("storages/file"), ExternalFiles::Anywhere);
        assert!(matches!(own, Err(ExternalError::NotAllowed(_))), "{own:?}");
    }

    #[test]
    fn a_store_opened_through_a_link_uses_the_directory_that_holds_it() {
        let (dir, inside, outside) = surroundings();
        let link = outside.join("link.smap");
        symlink(inside.join("store"), &link).unwrap();
        assert_eq!(read(&link, "file", ExternalFiles::Beside).unwrap(), "inside");
        let file = File::open(inside.join("file")).unwrap();
        assert_eq!(recorded_path(&directory(&link), &file).unwrap(), Path::new("file"));
        let far = File::open(outside.join("file")).unwrap();
        let place = fs::canonicalize(dir.path()).unwrap().join("outside/file");
        assert_eq!(recorded_path(&directory(&link), &far).unwrap(), place);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (_dir, inside, _) = surroundings();
        let fifo = inside.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::create_dir(inside.join("dir")).unwrap();
        for path in ["fifo", "dir", "/dev/null"] {
            let scope = if path.starts_with('/') { ExternalFiles::Anywhere } else { ExternalFiles::Beside };
            let refused = read(&inside.join("store"), path, scope);
            let is_invalid_input = |e: &io::Error| e.kind() == io::ErrorKind::InvalidInput;
            assert!(
                matches!(&refused, Err(ExternalError::Io(e)) if is_invalid_input(e)),
                "{path}: {refused:?}"
            );
        }
    }

    /// A swap between check and open.
    #[test]
    fn directory_swapped_for_a_link_never_leads_out() {
        let (_dir, inside, outside) = surroundings();
        let (store, sub) = (inside.join("store"), inside.join("sub"));
        fs::create_dir(inside.join("real")).unwrap();
        fs::write(inside.join("real/file"), "inside").unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for name in ["real", "link"] {
                        fs::rename(inside.join(name), &sub).unwrap();
                        fs::rename(&sub, inside.join(name)).unwrap();
                    }
                }
            });
            let (mut texts, mut refused_count) = (BTreeMap::<String, usize>::new(), 0);
            for _ in 0..20_000 {
                match read(&store, "sub/file", ExternalFiles::Beside) {
                    Ok(text) => *texts.entry(text).or_default() += 1,
                    Err(ExternalError::NotAllowed(_)) => refused_count += 1,
                    Err(ExternalError::Io(_)) => {}
                }
            }
            // Stop the other thread first: it would never stop if an assertion failed.
            is_done.store(true, Ordering::Relaxed);
            assert!(!texts.contains_key("outside"), "{texts:?}");
            assert!(refused_count > 0, "the link was never followed: {texts:?}");
        });
    }
}
