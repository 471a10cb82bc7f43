//! Copies of stores that share the blocks of files instead of copying them, on images of real btrfs and XFS file
//! systems. Skipped, with the reason printed, if these cannot be created or mounted.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use stridemap::{DType, ErrorKind, StorageInfo, StorageKind, Store};

use crate::harness::filled;
use crate::images::{assert_same, is_shared, model, on_each, size_of};

#[test]
fn copy_of_a_store_shares_the_blocks_of_sealed_storages() {
    on_each(|kind, image| {
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let tensors = model();
        let mut txn = store.begin().unwrap();
        for (name, tensor) in &tensors {
            txn.save(name, tensor).unwrap();
        }
        txn.commit().unwrap();
        store.create_growable("log", DType::U8, &[0], 0).unwrap();
        store.append("log", &filled(1_500_000, 3u8)).unwrap();
        let snapshot = store.snapshot();
        store.append("log", &filled(10, 4u8)).unwrap();
        store.write(|txn| txn.save_as("counts", &tensors[1].1, StorageKind::Mutable)).unwrap();

        let path = image.path.join("copy.smap");
        let (before, mut told_bytes) = (image.free_bytes(), 0);
        let copied = store.snapshot().copy_to(&path, None, |bytes| told_bytes += bytes).unwrap();
        let taken = before.saturating_sub(image.free_bytes());
        println!("{kind}: {told_bytes} bytes copied, {taken} bytes of the disk taken");
        assert_eq!((copied.copied_bytes, copied.shared_bytes + 1001), (1001, told_bytes), "{kind}");
        assert!(copied.shared_bytes > size_of(&tensors) && taken < told_bytes / 16, "{kind}: {taken}");
        let there = Store::open(&path).unwrap();
        assert_same(&there, &tensors);
        assert_eq!(there.load("log").unwrap().size(), [1_500_010]);
        let is_large = |info: &StorageInfo| info.size_bytes > 1 << 20;
        let copies = there.snapshot();
        assert!(
            copies.storages().map(Result::unwrap).filter(is_large).all(|info| is_shared(&info.file)),
            "{kind}"
        );

        // An older generation is shorter than the file, and each of the two stores can grow.
        let path = image.path.join("older.smap");
        snapshot.copy_to(&path, None, |_| ()).unwrap();
        let older = Store::open(&path).unwrap();
        assert_eq!(older.load("log").unwrap().size(), [1_500_000]);
        for (grown, value) in [(&store, 5u8), (&there, 6), (&older, 7)] {
            grown.append("log", &filled(10, value)).unwrap();
        }
        for (grown, value) in [(&store, 5), (&there, 6), (&older, 7)] {
            let log: Vec<u8> = grown.load("log").unwrap().read().unwrap();
            assert!(log[log.len() - 10..].iter().all(|&byte| byte == value), "{kind}");
            assert_same(grown, &tensors);
        }

        // Shared blocks do not pass on damage.
        let file = store.snapshot().storages().next().unwrap().unwrap().file;
        File::options().write(true).open(file).unwrap().write_all_at(b"damaged", 1 << 20).unwrap();
        let error = store.snapshot().copy_to(image.path.join("bad.smap"), None, |_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind}: {error}");
        assert!(!image.path.join("bad.smap").exists(), "{kind}");
        assert_eq!(there.verify(|_| ()).unwrap().findings, [], "{kind}");
    });
}
