//! A process that forks: what its child inherits is not the child's. The process that forks is this test binary,
//! started again, so that no other test runs in it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use stridemap::disk::{Access, Disk, DiskFile, FileStat, RealDisk};
use stridemap::{DType, ErrorKind, StorageKind, Store, StoreOptions, Tensor};

use crate::processes::start;
use crate::refusals::assert_refused;
use crate::support::temporary;

/// A forked child that has begun.
#[derive(Debug)]
struct Forked(libc::pid_t);

/// Forks; the child does this, and ends.
fn fork(child: impl FnOnce()) -> Forked {
    // SAFETY: of this process only this thread is at work, so that the child finds no lock held.
    let id = unsafe { libc::fork() };
    assert!(id >= 0);
    if id == 0 {
        let result = panic::catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the process, and with it nothing that others own.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    Forked(id)
}

impl Forked {
    /// Waits for its end.
    fn succeeds(self) -> bool {
        let mut status = 1;
        // SAFETY: the pointer is to a live integer.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status == 0
    }
}

/// What the started process does.
pub(crate) fn play(role: &str, path: &Path) {
    match role {
        "fork under a guard" => {
            let is_free = || {
                let file = File::open(path.join("storages/0000000000000001.bin")).unwrap();
                file.try_lock().is_ok()
            };
            // SAFETY: only this library writes the store.
            let store = unsafe { Store::open_mapped(path).unwrap() };
            let x = store.load("x").unwrap();
            let guard = x.lock_shared().unwrap();
            assert!(!is_free());
            let child = fork(|| {
                assert_refused(x.lock_shared(), ErrorKind::Busy, &["forked", "open the store again"]);
                assert_refused(x.lock_exclusive(), ErrorKind::Busy, &["forked", "open the store again"]);
                assert_refused(guard.as_slice::<i64>(), ErrorKind::Busy, &["forked", "open the store again"]);
                let own = Store::open(path).unwrap().load("x").unwrap();
                assert_eq!(own.lock_shared().unwrap().read::<i64>().unwrap(), [0; 4]);
            });
            assert!(child.succeeds());
            assert!(!is_free(), "the child gave the parent's lock back");
            assert_eq!(guard.as_slice::<i64>().unwrap(), [0; 4]);
            drop(guard);
            assert!(is_free());
        }
        "fork while committing" => {
            let options = StoreOptions::new().lock_timeout(Duration::from_secs(1));
            // The children are forked where the writers' lock is held: when the manifest is given its name.
            let disk = ForkingDisk { children: Mutex::default() };
            let disk = Arc::new(disk);
            let store = options.clone().disk(Arc::clone(&disk) as Arc<dyn Disk>).open(path).unwrap();
            for value in 0..3 {
                store.save("x", &Tensor::from_vec(vec![value], &[1]).unwrap()).unwrap();
            }
            options.open(path).unwrap().remove("x").unwrap();
            for child in disk.children.lock().unwrap().drain(..) {
                // SAFETY: the child was forked here, and not waited for.
                assert_eq!(unsafe { libc::kill(child.0, libc::SIGKILL) }, 0);
                assert!(!child.succeeds());
            }
        }
        "fork in a transaction" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.save("x", &Tensor::from_vec(vec![1i64], &[1]).unwrap()).unwrap();
            let mut txn = Some(txn);
            assert!(fork(|| drop(txn.take())).succeeds());
            txn.unwrap().commit().unwrap();
            assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [1]);
        }
        "create as nobody" => {
            // SAFETY: calls of the system that change this process only, which ends here.
            assert_eq!(unsafe { libc::setgid(NOBODY) }, 0);
            // SAFETY: the same.
            assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
            Store::create(path).unwrap();
        }
        role => panic!("no role {role}"),
    }
}

#[test]
fn forked_child_neither_takes_nor_gives_back_the_locks_of_its_parent() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I64, &[4], StorageKind::Mutable).unwrap();
    assert!(start("fork under a guard", &path).wait().unwrap().success());
}

const NOBODY: u32 = 65534;

#[test]
fn store_is_created_over_an_empty_directory_of_another_owner() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    fs::create_dir(&path).unwrap();
    if fs::metadata(&path).unwrap().uid() != 0 {
        println!("skipped: only root can make the directory of another");
        return;
    }
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4750)).unwrap();
    assert!(start("create as nobody", &path).wait().unwrap().success());
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o750));
}

/// The real disk, which forks a child that does nothing whenever a manifest gets its name.
#[derive(Debug)]
struct ForkingDisk {
    children: Mutex<Vec<Forked>>,
}

impl Disk for ForkingDisk {
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename_new(from, to)?;
        if to.extension().is_some_and(|extension| extension == "man") {
            let child = fork(|| thread::sleep(Duration::from_secs(60)));
            self.children.lock().unwrap().push(child);
        }
        Ok(())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(path, access)
    }

    fn create_staged(&self, dir: &Path) -> io::Result<(PathBuf, Arc<dyn DiskFile>)> {
        RealDisk.create_staged(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_file_system(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        RealDisk.stat(path)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        RealDisk.is_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn copy_access(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.copy_access(from, to)
    }

    fn rename_dir(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename_dir(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(path)
    }
}

#[test]
fn child_forked_during_a_commit_does_not_keep_the_writers_lock() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    assert!(start("fork while committing", &path).wait().unwrap().success());
}

#[test]
fn transaction_dropped_by_a_forked_child_is_still_that_of_the_parent() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    assert!(start("fork in a transaction", &path).wait().unwrap().success());
}
