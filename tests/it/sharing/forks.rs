//! Forked processes: a child cannot use what it inherits. The process that forks is this test binary, started again,
//! so that no other test runs in it.

use std::any::Any;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use stridemap::{
    DType, Error, ErrorKind, ExclusiveGuard, SharedGuard, Snapshot, StorageKind, Store, StoreOptions, Tensor,
    Transaction,
};

use crate::harness::hooked::Hooked;
use crate::harness::processes::{OtherProcess, run_to_end, send_line, wait_for_line};
use crate::harness::{assert_refused, filled, new_path, new_store, open_mapped};

/// A running forked child.
#[derive(Debug)]
pub(crate) struct Forked(libc::pid_t);

/// Forks. The child runs this, and ends.
pub(crate) fn fork(child: impl FnOnce()) -> Forked {
    // SAFETY: the child has only this thread. If other threads are running, it uses nothing that they may have locked,
    // except what this library allows, and the allocator, which is usable after a fork.
    let id = unsafe { libc::fork() };
    assert!(id >= 0);
    if id == 0 {
        let result = panic::catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends only this process. Nothing of others is affected.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    Forked(id)
}

impl Forked {
    pub(crate) fn id(&self) -> libc::pid_t {
        self.0
    }

    /// Waits for its end. Returns whether it succeeded.
    pub(crate) fn succeeds(self) -> bool {
        let mut status = 1;
        // SAFETY: the pointer is to a live integer.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        status == 0
    }
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "fork under a guard" => {
            let is_free = || {
                let file = File::open(path.join("storages/0000000000000001.bin")).unwrap();
                file.try_lock().is_ok()
            };
            let store = open_mapped(path);
            let x = store.load("changing").unwrap();
            let guard = x.lock_shared().unwrap();
            assert!(!is_free());
            let child = fork(|| {
                assert_refused(x.lock_shared(), ErrorKind::Stale, &["forked", "open the store again"]);
                assert_refused(x.lock_exclusive(), ErrorKind::Stale, &["forked", "open the store again"]);
                assert_refused(
                    guard.as_slice::<i64>(),
                    ErrorKind::Stale,
                    &["forked", "open the store again"],
                );
                let own = Store::open(path).unwrap().load("changing").unwrap();
                assert_eq!(own.lock_shared().unwrap().read::<i64>().unwrap(), [0; 4]);
            });
            assert!(child.succeeds());
            assert!(!is_free(), "the child gave the parent's lock back");
            assert_eq!(guard.as_slice::<i64>().unwrap(), [0; 4]);
            drop(guard);
            assert!(is_free());
            // A child that drops a guard leaves the mark of the change to its parent.
            let mut guard = Some(x.lock_exclusive().unwrap());
            guard.as_mut().unwrap().as_slice_mut::<i64>().unwrap()[0] = 7;
            let mark = || std::fs::read(path.join("storages/0000000000000001.bin")).unwrap()[32];
            assert!(fork(|| drop(guard.take())).succeeds());
            assert_eq!(mark(), 1);
            drop(guard);
            assert_eq!(mark(), 0);
        }
        "fork while committing" => {
            let options = StoreOptions::new().lock_timeout(Duration::from_secs(1));
            // The children are forked while the writers' lock is held: when the manifest is renamed.
            let children = Arc::<Mutex<Vec<Forked>>>::default();
            let forked = Arc::clone(&children);
            let disk = Hooked::after(move |operation, path| {
                if operation == "rename_new" && path.extension().is_some_and(|extension| extension == "man") {
                    let child = fork(|| thread::sleep(Duration::from_secs(60)));
                    forked.lock().unwrap().push(child);
                }
            });
            let store = options.clone().disk(Arc::new(disk)).open(path).unwrap();
            for value in 0..3 {
                store.save("x", &Tensor::from_vec(vec![value], &[1]).unwrap()).unwrap();
            }
            options.open(path).unwrap().remove("x").unwrap();
            // The children still have the files open that pinned this handle, but the handle has moved on.
            store.gc().unwrap();
            let metadata = fs::read_dir(path.join("meta")).unwrap();
            assert_eq!(metadata.count(), 1, "a child keeps a pin of its parent's");
            for child in children.lock().unwrap().drain(..) {
                // SAFETY: the child was forked here, and has not been waited for.
                assert_eq!(unsafe { libc::kill(child.0, libc::SIGKILL) }, 0);
                assert!(!child.succeeds());
            }
        }
        "fork between commits" => {
            let child = Arc::<Mutex<Option<Forked>>>::default();
            let forked = Arc::clone(&child);
            let disk = Hooked::after(move |operation, path| {
                if operation == "rename_new"
                    && path.extension().is_some_and(|extension| extension == "man")
                    && let Some(child) = &*forked.lock().unwrap()
                {
                    send_line(child.0);
                    wait_for_line();
                }
            });
            let store = StoreOptions::new().disk(Arc::new(disk)).open(path).unwrap();
            store.save("x", &filled(1, 1i64)).unwrap();
            *child.lock().unwrap() = Some(fork(|| thread::sleep(Duration::from_secs(60))));
            store.save("x", &filled(1, 2i64)).unwrap();
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
        "fork with everything open" => {
            let store = open_mapped(path);
            let (x, changing) = (store.load("x").unwrap(), store.load("changing").unwrap());
            store.save("gone", &Tensor::from_vec(vec![5i64], &[1]).unwrap()).unwrap();
            let snapshot = store.snapshot();
            // From here on only the snapshot keeps its generation and the removed tensor.
            store.remove("gone").unwrap();
            let mut txn = Some(store.begin().unwrap());
            txn.as_mut().unwrap().save("staged", &x).unwrap();
            let (mut x, mut changing, mut snapshot) = (Some(x), Some(changing), Some(snapshot));
            let child = fork(|| {
                let txn = txn.as_mut().unwrap();
                for refused in results_of_every_call(&store, snapshot.as_ref().unwrap(), txn) {
                    assert_refused(refused, ErrorKind::Stale, &["x.smap", "forked", "open the store again"]);
                }
                assert_eq!((store.generation(), store.attributes("").len()), (5, 0));
                assert_eq!(snapshot.as_ref().unwrap().attributes("").len(), 1);
                assert_eq!(x.as_ref().unwrap().as_slice::<i64>().unwrap(), [1, 2, 3]);
                let read = changing.as_ref().unwrap().read::<i64>();
                assert_refused(read, ErrorKind::Stale, &["read: ", "open the store again"]);
            });
            assert!(child.succeeds());
            let child = fork(|| {
                assert_refused(txn.take().unwrap().commit(), ErrorKind::Stale, &["open the store again"]);
                drop((x.take(), changing.take(), snapshot.take()));
                let own = Store::open(path).unwrap();
                own.save("of the child", &Tensor::from_vec(vec![4i64], &[1]).unwrap()).unwrap();
            });
            assert!(child.succeeds());
            assert!(store.refresh().unwrap(), "the child committed nothing by its own handle");
            // The parent's snapshot is still pinned, and its transaction is intact.
            store.gc().unwrap();
            let gone = snapshot.take().unwrap().load("gone").unwrap();
            assert_eq!(gone.read::<i64>().unwrap(), [5], "the child gave the parent's pin back");
            txn.take().unwrap().commit().unwrap();
            assert_eq!(store.load("staged").unwrap().read::<i64>().unwrap(), [1, 2, 3]);
            assert_eq!(store.names().unwrap(), ["changing", "of the child", "staged", "x"]);
        }
        "fork while a thread locks" => {
            let (locking, is_locking) = channel();
            let (go_on, may_go_on) = channel::<()>();
            let may_go_on = Mutex::new(may_go_on);
            let another = Store::open(path).unwrap();
            let another = another.create_tensor("another", DType::I64, &[1], StorageKind::Mutable).unwrap();
            let mut guard = Some(another.lock_exclusive().unwrap());
            // Within a process the lock is taken under a mutex. The thread stays inside it.
            let disk = Hooked::before(move |operation, path| {
                if operation == "try_lock" && path.extension().is_some_and(|extension| extension == "bin") {
                    locking.send(()).unwrap();
                    let _ = may_go_on.lock().unwrap().recv();
                }
                Ok(())
            });
            let options = StoreOptions::new().disk(Arc::new(disk));
            // SAFETY: only this library writes the store.
            let store = unsafe { options.open_mapped(path).unwrap() };
            let (x, changing) = (store.load("x").unwrap(), store.load("changing").unwrap());
            let mut inherited = Some((x, store.clone()));
            thread::scope(|scope| {
                let locking = scope.spawn(|| changing.lock_shared().map(drop).unwrap());
                is_locking.recv().unwrap();
                let child = fork(|| {
                    // SAFETY: changes only this process, and ends it if it still waits then.
                    unsafe { libc::alarm(20) };
                    assert_refused(changing.lock_shared(), ErrorKind::Stale, &["open the store again"]);
                    assert_refused(changing.lock_exclusive(), ErrorKind::Stale, &["open the store again"]);
                    assert_refused(store.load("x"), ErrorKind::Stale, &["open the store again"]);
                    drop((inherited.take(), guard.take()));
                });
                assert!(child.succeeds());
                drop(go_on);
                locking.join().unwrap();
            });
        }
        "fork while a thread maps" => {
            let [store, another] = [(), ()].map(|()| open_mapped(path));
            let sealed = store.load("sealed").unwrap();
            assert_eq!(sealed.as_slice::<i64>().unwrap(), [0; 4]);
            let mapped: Box<dyn Any> = Box::new(sealed);
            while_a_thread_works(mapped, || {
                assert_eq!(another.load("other sealed").unwrap().as_slice::<i64>().unwrap(), [0; 4]);
            });
            let live = store.load("live").unwrap().as_live::<i64>().unwrap();
            let mapped: Box<dyn Any> = Box::new(live);
            while_a_thread_works(mapped, || {
                assert_eq!(
                    another.load("other live").unwrap().as_live::<i64>().unwrap().read().unwrap(),
                    [0; 4]
                );
            });
        }
        "fork with a file that is mapped" => {
            let open = || open_mapped(path);
            let mut sealed = Some(open().load("sealed").unwrap());
            let storages = path.join("storages");
            // Room for the mark of the mutable storage.
            File::options()
                .write(true)
                .open(storages.join("0000000000000001.bin"))
                .unwrap()
                .set_len(33)
                .unwrap();
            fs::rename(storages.join("0000000000000001.bin"), storages.join("0000000000000002.bin")).unwrap();
            let child = fork(|| {
                let changing = open().load("changing").unwrap();
                let message = "mapped in this process as a sealed storage";
                assert_refused(changing.lock_exclusive(), ErrorKind::Corrupt, &[message]);
                assert_eq!(sealed.take().unwrap().as_slice::<i64>().unwrap(), [1; 4]);
                changing.lock_exclusive().unwrap().fill_(2).unwrap();
            });
            assert!(child.succeeds());
        }
        "fork with a live tensor" => {
            let store = open_mapped(path);
            let x = store.load("x").unwrap();
            let live = x.as_live::<i64>().unwrap();
            let child = fork(|| {
                let own = live.clone();
                assert_eq!(own.fetch_add([0], 5).unwrap(), 0);
                own.view(|own| own.flip([0])).unwrap().set([0], 7).unwrap();
                assert_refused(x.as_live::<i64>(), ErrorKind::Stale, &["as_live", "forked"]);
                assert_refused(own.flush(), ErrorKind::Stale, &["flush", "forked"]);
            });
            assert!(child.succeeds());
            assert_eq!(live.read().unwrap(), [5, 0, 0, 7]);
            live.flush().unwrap();
            x.as_live::<i64>().unwrap().fill(1);
            assert_eq!(live.read().unwrap(), [1; 4]);
        }
        "create as nobody" => {
            // SAFETY: system calls that change only this process, which ends here.
            assert_eq!(unsafe { libc::setgid(NOBODY) }, 0);
            // SAFETY: the same.
            assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
            Store::create(path).unwrap();
        }
        _ => return false,
    }
    true
}

/// Forks repeatedly while another thread works, so that some child is forked while the thread holds the mapping mutex.
/// In that child, which drops `inherited`, the mutex is never released.
fn while_a_thread_works(inherited: Box<dyn Any>, work: impl Fn() + Sync) {
    let (mut inherited, over) = (Some(inherited), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        });
        let hung = (0..FORKS).find(|_| {
            let child = fork(|| {
                // SAFETY: changes only this process, and ends it if it still waits then.
                unsafe { libc::alarm(20) };
                drop(inherited.take());
            });
            !child.succeeds()
        });
        over.store(true, Ordering::Relaxed);
        assert_eq!(hung, None, "a child waits for a mutex of its parent's");
    });
}

/// Far more than needed to find the mutex held.
const FORKS: usize = 400;

fn results_of_every_call(
    store: &Store,
    snapshot: &Snapshot,
    txn: &mut Transaction<'_>,
) -> Vec<stridemap::Result<()>> {
    let one = Tensor::from_vec(vec![1i64], &[1]).unwrap();
    let x = &one;
    vec![
        store.refresh().map(drop),
        store.wait_for_change(Duration::from_secs(60)).map(drop),
        store.names().map(drop),
        store.contains("x").map(drop),
        store.load("x").map(drop),
        store.begin().map(drop),
        store.save("y", x),
        store.save_view("y", x),
        store.append("x", x).map(drop),
        store.create_growable("y", DType::F32, &[0], 0).map(drop),
        store.create_tensor("y", DType::F32, &[1], StorageKind::Mutable).map(drop),
        store.remove("x"),
        store.write(|_| Ok(())),
        store.write(|txn| txn.set_attribute("", "key", "another")),
        store.write(|txn| txn.remove_attribute("", "key")),
        store.rename("x", "y"),
        store.rename("x", "x"),
        store.write(|txn| txn.copy("x", "y")),
        store.snapshot().copy_to("nowhere.smap", None, |_| ()).map(drop),
        store.gc().map(drop),
        store.compact(false, |_| ()).map(drop),
        store.disk_usage().map(drop),
        store.verify(|_| ()).map(drop),
        store.snapshot().load("x").map(drop),
        snapshot.load("x").map(drop),
        snapshot.iter_loaded("").map(drop),
        snapshot.contains("x").map(drop),
        snapshot.names().map(drop),
        snapshot.iter_tensors("").map(drop),
        snapshot.storages().next().unwrap().map(drop),
        snapshot.overlapping("x").map(drop),
        snapshot.copy_to("nowhere.smap", None, |_| ()).map(drop),
        snapshot.copy_to("nowhere.smap", Some(&["x"]), |_| ()).map(drop),
        snapshot.changes_since(snapshot).map(drop),
        txn.names().map(drop),
        txn.contains("x").map(drop),
        txn.iter_tensors("").map(drop),
        txn.load("x").map(drop),
        txn.save("y", x),
        txn.save_as("y", x, StorageKind::Mutable),
        txn.save_view("y", x),
        txn.append("x", x).map(drop),
        txn.create_growable("y", DType::F32, &[0], 0).map(drop),
        txn.create_tensor("y", DType::F32, &[1], StorageKind::Mutable).map(drop),
        txn.remove("x"),
        txn.rename("x", "y"),
        txn.rename("x", "x"),
        txn.copy("x", "y"),
        txn.set_attribute("", "key", "another"),
    ]
}

/// Creates a store with a sealed tensor, a mutable one, and an attribute, at generation 3.
pub(crate) fn create_store_of_two(path: &Path) {
    let store = Store::create(path).unwrap();
    let _ = store.create_tensor("changing", DType::I64, &[4], StorageKind::Mutable).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &Tensor::from_vec(vec![1i64, 2, 3], &[3]).unwrap()).unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    txn.commit().unwrap();
}

/// Fails to compile if a type implements a trait that it must not: then two impls apply.
macro_rules! assert_not_impl {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            trait FitsOnce<A> {
                fn fit() {}
            }
            impl<T: ?Sized> FitsOnce<()> for T {}
            struct Another;
            impl<T: ?Sized + $trait> FitsOnce<Another> for T {}
            <$type as FitsOnce<_>>::fit();
        };
    };
}

const _: fn() = || {
    fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Store>();
    shared_between_threads::<StoreOptions>();
    shared_between_threads::<Transaction<'_>>();
    shared_between_threads::<Snapshot>();
    shared_between_threads::<Tensor>();
    shared_between_threads::<Error>();
};
assert_not_impl!(SharedGuard: Send);
assert_not_impl!(SharedGuard: Sync);
assert_not_impl!(ExclusiveGuard<'static>: Send);
assert_not_impl!(ExclusiveGuard<'static>: Sync);

#[test]
fn forked_child_can_use_an_inherited_live_tensor() {
    let (_dir, path) = new_path();
    let _ = Store::create(&path).unwrap().create_tensor("x", DType::I64, &[4], StorageKind::Live).unwrap();
    run_to_end("fork with a live tensor", &path);
}

/// In a malformed store, one file is both a sealed storage, which the child has inherited mapped, and a mutable one.
#[test]
fn forked_child_does_not_change_a_file_whose_mapping_it_inherited() {
    let (_dir, path, store) = new_store();
    store.save("sealed", &filled(4, 1i64)).unwrap();
    let _ = store.create_tensor("changing", DType::I64, &[4], StorageKind::Mutable).unwrap();
    run_to_end("fork with a file that is mapped", &path);
}

const NOBODY: u32 = 65534;

#[test]
fn store_is_created_in_an_empty_directory_of_another_owner() {
    let (dir, path) = new_path();
    fs::create_dir(&path).unwrap();
    if fs::metadata(&path).unwrap().uid() != 0 {
        println!("skipped: only root can make the directory of another");
        return;
    }
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
    run_to_end("create as nobody", &path);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o1777));
    assert_eq!(fs::metadata(path.join("FORMAT")).unwrap().uid(), NOBODY);
}

#[test]
fn child_forked_during_a_commit_does_not_keep_the_writers_lock() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    run_to_end("fork while committing", &path);
}

#[test]
fn child_forked_between_commits_does_not_keep_the_lock_of_a_killed_writer() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let mut writer = OtherProcess::start("fork between commits", &path);
    let child: libc::pid_t = writer.read_line().parse().unwrap();
    writer.kill();
    let store = StoreOptions::new().lock_timeout(Duration::from_secs(1)).open(&path).unwrap();
    let saved = store.save("y", &filled(1, 3i64));
    // SAFETY: sends a signal to the child of the killed writer. It cannot have ended before.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    saved.unwrap();
}

#[test]
fn transaction_dropped_by_a_forked_child_still_belongs_to_the_parent() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    run_to_end("fork in a transaction", &path);
}

#[test]
fn forked_child_drops_inherited_handles_if_another_thread_was_mapping() {
    let (_dir, path, store) = new_store();
    for name in ["sealed", "other sealed"] {
        store.save(name, &filled(4, 0i64)).unwrap();
    }
    for name in ["live", "other live"] {
        let _ = store.create_tensor(name, DType::I64, &[4], StorageKind::Live).unwrap();
    }
    run_to_end("fork while a thread maps", &path);
}
