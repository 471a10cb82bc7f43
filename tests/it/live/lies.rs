//! Malformed stores, in which one file is storages of two kinds: bytes that are lent as one are not changed as the other.

use std::fs;
use std::path::PathBuf;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};
use tempfile::TempDir;

use super::mapped;
use crate::refusals::assert_refused;
use crate::support::temporary;

const SEALED: u64 = 1;
const MUTABLE: u64 = 2;
const LIVE: u64 = 3;
const NARROW: u64 = 4;

/// A store of four storages on one file, which has the name of one of them at a time.
struct Liar {
    dir: TempDir,
    named: u64,
}

impl Liar {
    fn new() -> Self {
        let liar = Liar { dir: temporary(), named: SEALED };
        let store = Store::create(liar.path()).unwrap();
        store.save("sealed", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[4]).unwrap()).unwrap();
        store.create_tensor("mutable", DType::I64, &[4], StorageKind::Mutable).unwrap();
        store.create_tensor("live", DType::I64, &[4], StorageKind::Live).unwrap();
        store.create_tensor("narrow", DType::I32, &[8], StorageKind::Live).unwrap();
        for id in [MUTABLE, LIVE, NARROW] {
            fs::remove_file(liar.bin(id)).unwrap();
        }
        liar
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("x.smap")
    }

    fn bin(&self, id: u64) -> PathBuf {
        self.path().join(format!("storages/{id:016x}.bin"))
    }

    fn call(&mut self, id: u64) {
        if id != self.named {
            fs::rename(self.bin(self.named), self.bin(id)).unwrap();
            self.named = id;
        }
    }

    fn load(&mut self, store: &Store, id: u64) -> Tensor {
        self.call(id);
        let name = ["sealed", "mutable", "live", "narrow"][id as usize - 1];
        store.load(name).unwrap()
    }
}

#[test]
fn file_that_is_lent_as_a_sealed_storage_is_not_live() {
    let mut liar = Liar::new();
    let store = mapped(&liar.path());
    let sealed = liar.load(&store, SEALED);
    let lent = sealed.as_slice::<i64>().unwrap();
    let x = liar.load(&store, LIVE);
    assert_refused(x.as_live::<i64>(), ErrorKind::Corrupt, &["as_live", "as a sealed storage"]);
    assert_eq!(lent, [1, 2, 3, 4]);
    drop(sealed);

    let live = x.as_live::<i64>().unwrap();
    liar.call(SEALED);
    assert_refused(store.load("sealed"), ErrorKind::Corrupt, &["load \"sealed\"", "as a live storage"]);
    live.fill(9);
    drop(live);
    assert_eq!(store.load("sealed").unwrap().as_slice::<i64>().unwrap(), [9; 4]);
}

#[test]
fn file_that_is_locked_as_a_mutable_storage_is_not_live() {
    let mut liar = Liar::new();
    let (store, unmapped) = (mapped(&liar.path()), Store::open(liar.path()).unwrap());
    let mutables = [liar.load(&store, MUTABLE), liar.load(&unmapped, MUTABLE)];
    let x = liar.load(&store, LIVE);
    for mutable in &mutables {
        liar.call(MUTABLE);
        let guard = mutable.lock_shared().unwrap();
        liar.call(LIVE);
        assert_refused(
            x.as_live::<i64>(),
            ErrorKind::Corrupt,
            &["locked in this process as a mutable storage"],
        );
        drop(guard);
        liar.call(MUTABLE);
        let guard = mutable.lock_exclusive().unwrap();
        liar.call(LIVE);
        assert_refused(
            x.as_live::<i64>(),
            ErrorKind::Corrupt,
            &["locked in this process as a mutable storage"],
        );
        drop(guard);

        let live = x.as_live::<i64>().unwrap();
        liar.call(MUTABLE);
        assert_refused(
            mutable.lock_shared(),
            ErrorKind::Corrupt,
            &["lock_shared", "mapped in this process as a live storage"],
        );
        assert_refused(
            mutable.lock_exclusive(),
            ErrorKind::Corrupt,
            &["lock_exclusive", "mapped in this process as a live storage"],
        );
        live.fill(7);
        drop(live);
        assert_eq!(mutable.lock_shared().unwrap().read::<i64>().unwrap(), [7; 4]);
    }
}

#[test]
fn file_is_live_by_one_access_size_at_a_time() {
    let mut liar = Liar::new();
    let store = mapped(&liar.path());
    let (x, narrow) = (liar.load(&store, LIVE), liar.load(&store, NARROW));
    liar.call(LIVE);
    let live = x.as_live::<i64>().unwrap();
    liar.call(NARROW);
    assert_refused(narrow.as_live::<i32>(), ErrorKind::Corrupt, &["as_live", "as a live storage of "]);
    drop(live);
    let live = narrow.as_live::<i32>().unwrap();
    liar.call(LIVE);
    assert_refused(x.as_live::<i64>(), ErrorKind::Corrupt, &["as a live storage of "]);
    assert_eq!(live.read().unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
}
