//! A process that forks: what its child inherits is not the child's. The process that forks is this test binary,
//! started again, so that no other test runs in it.

use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store};

use crate::processes::start;
use crate::refusals::assert_refused;
use crate::support::temporary;

/// A forked child that has begun.
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
