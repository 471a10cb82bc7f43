//! Reads of mutable tensors: everything that turns elements into bytes holds the shared lock for all of it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ndarray::Array2;
use stridemap::{
    DType, ErrorKind, ExclusiveGuard, PrintOptions, Result, Source as _, StorageKind, Store, StoreOptions,
    Tensor,
};
use stridemap_interop::{npy, npz, safetensors};

use super::handles;
use crate::harness::{assert_refused, new_path};

const SIZE: [usize; 2] = [600, 500];
const NUMEL: usize = SIZE[0] * SIZE[1];

/// Creates a store of a mutable tensor `x`, one more, `y`, of the same size, and growable ones.
fn create(path: &std::path::Path) {
    let store = Store::create(path).unwrap();
    let sevens = Tensor::from_vec(vec![7i64; NUMEL], &SIZE).unwrap();
    store.write(|txn| txn.save_as("x", &sevens, StorageKind::Mutable)).unwrap();
    store.write(|txn| txn.save_as("y", &sevens, StorageKind::Mutable)).unwrap();
    store.create_growable("log", DType::I64, &[0, SIZE[1]], 1 << 12).unwrap();
}

type Path = (&'static str, fn(&Tensor, &Store) -> Result<()>);

/// Every path that turns the elements of a tensor into bytes, on a store that it may write to.
const PATHS: [Path; 29] = [
    ("read", |x, _| x.read::<i64>().map(all_equal)),
    ("read_into", |x, _| x.read_into(&mut vec![0i64; NUMEL])),
    ("item", |x, _| x.select(0, 0)?.select(0, 0)?.item::<i64>().map(drop)),
    ("get", |x, _| x.get::<i64>([3, -1]).map(drop)),
    ("to_bytes", |x, _| x.to_bytes().map(drop)),
    ("to_scalars", |x, _| x.narrow(0, 0, 2)?.to_scalars().map(drop)),
    ("write_to", |x, _| x.write_to(&mut |_| Ok(()))),
    ("write_to, transposed", |x, _| x.t()?.write_to(&mut |_| Ok(()))),
    ("clone_data", |x, _| x.clone_data()?.read().map(all_equal)),
    ("contiguous", |x, _| x.t()?.contiguous().map(drop)),
    ("reshape", |x, _| x.t()?.reshape([-1]).map(drop)),
    ("to_dtype", |x, _| x.to_dtype(DType::F32).map(drop)),
    ("statistics", |x, _| x.statistics(|_| ()).map(drop)),
    ("statistics of bytes", |x, _| x.view_dtype(DType::U8)?.statistics(|_| ()).map(drop)),
    ("to_text", |x, _| x.to_text(&PrintOptions { threshold: 9, ..PrintOptions::default() }).map(drop)),
    ("index_select", |x, _| x.index_select(0, &indices()).map(drop)),
    ("index_select by it", |x, _| heap().index_select(0, &x.select(0, 0)?.narrow(0, 0, 2)?).map(drop)),
    ("to an array", |x, _| Array2::<i64>::try_from(x).map(drop)),
    ("save", |x, store| store.save("copy", x)),
    ("save a view", |x, store| store.save("column", &x.select(1, 1)?)),
    ("save as mutable", |x, store| store.write(|txn| txn.save_as("copy", x, StorageKind::Mutable))),
    ("append few rows", |x, store| store.append("log", &x.narrow(0, 0, 3)?).map(drop)),
    ("append many rows", |x, store| store.append("log", x).map(drop)),
    ("append by an appender", |x, store| {
        let mut appender = store.appender("log")?;
        appender.append(x)?;
        appender.commit().map(drop)
    }),
    ("copy_ from it", |x, store| y(store)?.copy_(x).map(drop)),
    ("add_ of it", |x, store| y(store)?.add_(x).map(drop)),
    ("add_ of one element of it", |x, store| y(store)?.add_(&x.narrow(0, 0, 1)?.narrow(1, 0, 1)?).map(drop)),
    ("export to safetensors", |x, store| {
        let file = store.path().with_extension("safetensors");
        let export = safetensors::Export::new().on_existing(stridemap::OnExisting::Replace);
        export.write(&file, &[("x".to_owned(), x.clone())], |_| ()).map(drop)
    }),
    ("export to npy and npz", |x, store| {
        npy::Export::new().write_to(&mut Vec::new(), x, |_| ())?;
        let file = store.path().with_extension("npz");
        let export = npz::Export::new().on_existing(stridemap::OnExisting::Replace);
        export.write(&file, &[("x".to_owned(), x.clone())], |_| ()).map(drop)
    }),
];

fn all_equal(elements: Vec<i64>) {
    assert!(elements.iter().all(|&element| element == elements[0]));
}

fn indices() -> Tensor {
    Tensor::from_vec(vec![1i64, 0], &[2]).unwrap()
}

fn heap() -> Tensor {
    Tensor::from_vec((0..20i64).collect(), &[20]).unwrap()
}

fn y(store: &Store) -> Result<ExclusiveGuard<'static>> {
    store.load("y")?.lock_exclusive()
}

/// Opens a store with a short lock timeout in both ways.
fn impatient(path: &std::path::Path) -> [Store; 2] {
    let options = StoreOptions::new().lock_timeout(Duration::from_millis(20));
    // SAFETY: only this library writes the store.
    #[expect(unsafe_code, reason = "the test keeps the contract of open_mapped")]
    [options.open(path).unwrap(), unsafe { options.open_mapped(path) }.unwrap()]
}

#[test]
fn every_read_is_refused_under_an_exclusive_guard_of_the_same_thread() {
    let (_dir, path) = new_path();
    create(&path);
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        let guard = Store::open(&path).unwrap().load("x").unwrap().lock_exclusive().unwrap();
        for (what, read) in PATHS {
            let refused = read(&x, &store).expect_err(&format!("{how}: {what}"));
            assert_eq!(refused.kind(), ErrorKind::Busy, "{how}: {what}: {refused}");
            let message = refused.to_string();
            assert!(
                message.contains("this thread") && message.contains("use that guard"),
                "{what}: {message}"
            );
        }
        drop(guard);
        for (what, read) in PATHS {
            read(&x, &store).unwrap_or_else(|e| panic!("{how}: {what}: {e}"));
        }
    }
}

#[test]
fn every_read_waits_for_the_exclusive_guard_of_another_thread() {
    let (_dir, path) = new_path();
    create(&path);
    let (held, is_held) = channel();
    let (done, is_done) = channel::<()>();
    thread::scope(|scope| {
        let path = &path;
        scope.spawn(move || {
            let guard = Store::open(path).unwrap().load("x").unwrap().lock_exclusive().unwrap();
            held.send(()).unwrap();
            let _ = is_done.recv();
            drop(guard);
        });
        is_held.recv().unwrap();
        for store in impatient(path) {
            let x = store.load("x").unwrap();
            for (what, read) in PATHS {
                let refused = read(&x, &store).expect_err(what);
                assert_eq!(refused.kind(), ErrorKind::Busy, "{what}: {refused}");
                assert!(refused.to_string().contains("another thread"), "{what}: {refused}");
            }
        }
        drop(done);
    });
}

#[test]
fn every_read_works_through_a_guard_and_views_made_from_it() {
    let (_dir, path) = new_path();
    create(&path);
    for (how, store) in handles(&path) {
        let x = store.load("x").unwrap();
        let mut exclusive = x.lock_exclusive().unwrap();
        exclusive.fill_(8).unwrap();
        for (what, read) in PATHS {
            read(&exclusive, &store).unwrap_or_else(|e| panic!("{how}: exclusive: {what}: {e}"));
            read(&exclusive.clone().flip([0]).unwrap(), &store)
                .unwrap_or_else(|e| panic!("{how}: a view: {what}: {e}"));
        }
        let part = exclusive.at(&x.flip([1]).unwrap()).unwrap();
        thread::scope(|scope| {
            scope
                .spawn({
                    let part: &Tensor = &part;
                    move || assert_eq!(part.read::<i64>().unwrap(), [8; NUMEL])
                })
                .join()
                .unwrap()
        });
        // An operand on the same storage, and one on another that this thread has locked.
        exclusive.add_(&x.t().unwrap().narrow(1, 0, 1).unwrap().select(0, 0).unwrap()).unwrap();
        let y = store.load("y").unwrap();
        let y = y.lock_exclusive().unwrap();
        exclusive.copy_(&y).unwrap().fill_(9).unwrap();
        drop((y, exclusive));
        let shared = x.lock_shared().unwrap();
        for (what, read) in PATHS {
            read(&shared, &store).unwrap_or_else(|e| panic!("{how}: shared: {what}: {e}"));
            read(&x, &store).unwrap_or_else(|e| panic!("{how}: beside a shared guard: {what}: {e}"));
        }
    }
}

#[test]
fn tensor_made_from_a_guard_locks_for_itself_once_the_guard_is_dropped() {
    let (_dir, path) = new_path();
    create(&path);
    let [store, _] = impatient(&path);
    let x = store.load("x").unwrap();
    let views: [Tensor; 3] = {
        let exclusive = x.lock_exclusive().unwrap();
        let view = exclusive.t().unwrap();
        drop(exclusive);
        let shared = x.lock_shared().unwrap();
        let part = shared.at(&x.select(0, 0).unwrap()).unwrap();
        [view, shared.clone(), part.clone()]
    };
    for view in &views {
        view.to_bytes().unwrap();
    }
    let guard = x.lock_exclusive().unwrap();
    for view in &views {
        assert_refused(view.to_bytes(), ErrorKind::Busy, &["this thread", "an exclusive guard"]);
        assert_refused(view.lock_shared(), ErrorKind::Busy, &["this thread"]);
    }
    drop(guard);
    let again = views[1].lock_exclusive().unwrap();
    assert_eq!(again.read::<i64>().unwrap(), [7; NUMEL]);
}

/// Tries to change the tensor from another thread.
fn change_elsewhere(x: &Tensor) -> Result<()> {
    thread::scope(|scope| scope.spawn(|| x.lock_exclusive()?.fill_(0).map(drop)).join().unwrap())
}

#[test]
fn lock_is_held_until_the_last_element_is_read() {
    let (_dir, path) = new_path();
    create(&path);
    for (copy, store) in ["copy", "another copy"].iter().zip(impatient(&path)) {
        let x = store.load("x").unwrap();
        let assert_locked = || {
            let refused = change_elsewhere(&x).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        };
        for tensor in [x.clone(), x.t().unwrap(), x.flip([0]).unwrap()] {
            let mut seen_bytes = 0;
            tensor
                .write_to(&mut |bytes| {
                    seen_bytes += bytes.len();
                    assert_locked();
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen_bytes, NUMEL * 8);
            let _ = tensor.statistics(|_| assert_locked()).unwrap();
        }
        safetensors::Export::new()
            .write_to(&mut Vec::new(), &[("x".to_owned(), x.clone())], |_| assert_locked())
            .unwrap();
        let snapshot = store.snapshot();
        snapshot.copy_to(path.with_extension(copy), Some(&["x"]), |_| assert_locked()).unwrap();
        change_elsewhere(&x).unwrap();
        x.lock_exclusive().unwrap().fill_(7).unwrap();
    }
}

#[test]
fn read_that_outlives_its_guard_keeps_the_lock() {
    let (_dir, path) = new_path();
    create(&path);
    let [store, _] = impatient(&path);
    let x = store.load("x").unwrap();
    for exclusive in [true, false] {
        let (began, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let (view, guards) = match exclusive {
            true => {
                let guard = x.lock_exclusive().unwrap();
                (guard.t().unwrap(), (Some(guard), None))
            }
            false => {
                let guard = x.lock_shared().unwrap();
                (guard.t().unwrap(), (None, Some(guard)))
            }
        };
        thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let next = view.clone();
                view.write_to(&mut |_| {
                    let _ = began.send(());
                    let _ = may_go_on.recv();
                    // A read that begins now needs a lock of its own, and so cannot prolong that of the guard.
                    let read_now = next.to_bytes();
                    assert_eq!(read_now.is_ok(), !exclusive, "{read_now:?}");
                    Ok(())
                })
            });
            has_begun.recv().unwrap();
            drop(guards);
            // This thread no longer holds a guard, but waits for the read like any other.
            assert_refused(x.lock_exclusive(), ErrorKind::Busy, &["another thread"]);
            drop(go_on);
            reading.join().unwrap().unwrap();
        });
        x.lock_exclusive().unwrap().add_(1).unwrap();
    }
    assert_eq!(x.read::<i64>().unwrap(), [9; NUMEL]);
}

#[test]
fn only_text_with_elements_needs_the_lock() {
    let (_dir, path) = new_path();
    create(&path);
    let x = Store::open(&path).unwrap().load("x").unwrap();
    let guard = x.lock_exclusive().unwrap();
    assert!(x.to_string().starts_with("tensor(<read: "), "{x}");
    assert!(x.to_string().contains("this thread holds an exclusive guard"), "{x}");
    assert!(format!("{x:?}").starts_with("Tensor(int64, size [600, 500]"), "{x:?}");
    assert!(guard.to_string().starts_with("tensor([[7, 7, 7,"), "{guard:?}");
}

static IS_WAITING: AtomicBool = AtomicBool::new(false);

/// An append holds its storage only once it has the lock of its source. Otherwise the two would wait for each other.
#[test]
fn append_of_a_locked_tensor_does_not_hold_up_an_append_of_the_one_that_locks_it() {
    let (_dir, path) = new_path();
    create(&path);
    let store = Store::open(&path).unwrap();
    let x = store.load("x").unwrap();
    let guard = x.lock_exclusive().unwrap();
    thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let report = |_: &[u32]| IS_WAITING.store(true, Relaxed);
            let store = StoreOptions::new().on_wait(Duration::ZERO, report).open(&path).unwrap();
            store.append("log", &store.load("x").unwrap())
        });
        while !IS_WAITING.load(Relaxed) {
            assert!(!appending.is_finished(), "the append did not wait");
            thread::yield_now();
        }
        let [impatient, _] = impatient(&path);
        assert_eq!(impatient.append("log", &*guard).unwrap(), 0..SIZE[0]);
        drop(guard);
        assert_eq!(appending.join().unwrap().unwrap(), SIZE[0]..2 * SIZE[0]);
    });
}
