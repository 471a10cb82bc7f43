//! Malformed stores in which one file is storages of two kinds. Bytes borrowed as one kind are not changed as the
//! other.

use std::any::Any;
use std::fs;
use std::path::PathBuf;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};
use tempfile::TempDir;

use crate::harness::{assert_refused, open_mapped};
use crate::support::temporary;

const SEALED: u64 = 1;
const MUTABLE: u64 = 2;
const LIVE: u64 = 3;
const NARROW: u64 = 4;

/// A store of four storages in one file, which has the file name of one of them at a time.
struct MalformedStore {
    dir: TempDir,
    named: u64,
}

impl MalformedStore {
    fn new() -> Self {
        let malformed = MalformedStore { dir: temporary(), named: SEALED };
        let store = Store::create(malformed.path()).unwrap();
        store.save("sealed", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[4]).unwrap()).unwrap();
        let _ = store.create_tensor("mutable", DType::I64, &[4], StorageKind::Mutable).unwrap();
        let _ = store.create_tensor("live", DType::I64, &[4], StorageKind::Live).unwrap();
        let _ = store.create_tensor("narrow", DType::I32, &[8], StorageKind::Live).unwrap();
        for id in [MUTABLE, LIVE, NARROW] {
            fs::remove_file(malformed.storage_path(id)).unwrap();
        }
        // Room for the mark of the mutable storage.
        fs::File::options().write(true).open(malformed.storage_path(SEALED)).unwrap().set_len(33).unwrap();
        malformed
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("x.smap")
    }

    fn storage_path(&self, id: u64) -> PathBuf {
        self.path().join(format!("storages/{id:016x}.bin"))
    }

    fn give_file_to(&mut self, id: u64) {
        if id != self.named {
            fs::rename(self.storage_path(self.named), self.storage_path(id)).unwrap();
            self.named = id;
        }
    }

    fn load(&mut self, store: &Store, id: u64) -> Tensor {
        self.give_file_to(id);
        let name = ["sealed", "mutable", "live", "narrow"][id as usize - 1];
        store.load(name).unwrap()
    }
}

#[test]
fn file_borrowed_as_a_sealed_storage_cannot_be_live() {
    let mut malformed = MalformedStore::new();
    let store = open_mapped(malformed.path());
    let sealed = malformed.load(&store, SEALED);
    let lent = sealed.as_slice::<i64>().unwrap();
    let x = malformed.load(&store, LIVE);
    assert_refused(x.as_live::<i64>(), ErrorKind::Corrupt, &["as_live", "as a sealed storage"]);
    assert_eq!(lent, [1, 2, 3, 4]);
    drop(sealed);

    let live = x.as_live::<i64>().unwrap();
    malformed.give_file_to(SEALED);
    assert_refused(store.load("sealed"), ErrorKind::Corrupt, &["load \"sealed\"", "as a live storage"]);
    live.fill(9);
    drop(live);
    assert_eq!(store.load("sealed").unwrap().as_slice::<i64>().unwrap(), [9; 4]);
}

#[test]
fn file_locked_as_a_mutable_storage_cannot_be_live() {
    let mut malformed = MalformedStore::new();
    let (store, unmapped) = (open_mapped(malformed.path()), Store::open(malformed.path()).unwrap());
    let mutables = [malformed.load(&store, MUTABLE), malformed.load(&unmapped, MUTABLE)];
    let x = malformed.load(&store, LIVE);
    for mutable in &mutables {
        type Lock = fn(&Tensor) -> stridemap::Result<Box<dyn Any>>;
        let locks: [(&str, Lock); 2] = [
            ("lock_shared", |x| Ok(Box::new(x.lock_shared()?))),
            ("lock_exclusive", |x| Ok(Box::new(x.lock_exclusive()?))),
        ];
        for (_, lock) in locks {
            malformed.give_file_to(MUTABLE);
            let guard = lock(mutable).unwrap();
            malformed.give_file_to(LIVE);
            let reason = "locked in this process as a mutable storage";
            assert_refused(x.as_live::<i64>(), ErrorKind::Corrupt, &[reason]);
            drop(guard);
        }

        let live = x.as_live::<i64>().unwrap();
        malformed.give_file_to(MUTABLE);
        for (name, lock) in locks {
            let reason = "mapped in this process as a live storage";
            assert_refused(lock(mutable), ErrorKind::Corrupt, &[name, reason]);
        }
        live.fill(7);
        drop(live);
        assert_eq!(mutable.lock_shared().unwrap().read::<i64>().unwrap(), [7; 4]);
    }
}

#[test]
fn file_is_live_with_one_element_size_at_a_time() {
    let mut malformed = MalformedStore::new();
    let store = open_mapped(malformed.path());
    let (x, narrow) = (malformed.load(&store, LIVE), malformed.load(&store, NARROW));
    malformed.give_file_to(LIVE);
    let live = x.as_live::<i64>().unwrap();
    malformed.give_file_to(NARROW);
    assert_refused(narrow.as_live::<i32>(), ErrorKind::Corrupt, &["as_live", "as a live storage of "]);
    drop(live);
    let live = narrow.as_live::<i32>().unwrap();
    malformed.give_file_to(LIVE);
    assert_refused(x.as_live::<i64>(), ErrorKind::Corrupt, &["as a live storage of "]);
    assert_eq!(live.read().unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
}
