//! Malformed stores whose records name forbidden files.

use std::os::unix::fs::{MetadataExt as _, symlink};

use stridemap::{DType, Element, StorageKind};
use stridemap_format::{External, FileStamp, Manifest, RecordKind, Uuid};

use super::*;
use crate::harness::{assert_refused, filled};

/// A directory with a store and a file that the store has adopted.
struct MalformedStore {
    adopted: Adopted,
}

impl MalformedStore {
    fn new() -> Self {
        MalformedStore { adopted: Adopted::new() }
    }

    fn dir(&self) -> &Path {
        self.adopted.dir.path()
    }

    /// Makes the record refer to the file at this path, from its first byte, with its current state.
    fn write_record_of(&self, path: &str, length_bytes: u64) {
        let meta = self.adopted.path.join("meta");
        let newest = fs::read_dir(&meta).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
        let number = u64::from_str_radix(newest.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
        let uuid: Uuid = fs::read(self.adopted.path.join("FORMAT")).unwrap()[16..32].try_into().unwrap();
        let mut manifest = Manifest::decode(&fs::read(&newest).unwrap(), uuid, number).unwrap();
        let found = fs::metadata(self.dir().join(path)).unwrap();
        let mtime_ns = found.mtime() * 1_000_000_000 + found.mtime_nsec();
        let stamp = FileStamp { inode: found.ino(), size_bytes: found.len(), mtime_ns };
        let record = manifest.storages.values_mut().next().unwrap().as_mut().unwrap();
        record.length_bytes = length_bytes;
        record.kind = RecordKind::External(External { path: path.to_owned(), offset_bytes: 0, stamp });
        manifest.tensors.remove("bias");
        record.tensor_count = 1;
        fs::write(&newest, manifest.encode().unwrap()).unwrap();
    }

    fn load(&self, options: &StoreOptions) -> stridemap::Result<Tensor> {
        options.open(&self.adopted.path).unwrap().load("weight")
    }

    #[track_caller]
    fn assert_refused_beside(&self, parts: &[&str]) {
        for store in [
            external_beside().open(&self.adopted.path).unwrap(),
            mapped(&external_beside(), &self.adopted.path),
        ] {
            assert_refused(store.load("weight"), ErrorKind::NotAllowed, parts);
        }
    }
}

fn zeros(path: &Path) {
    fs::write(path, [0; 80]).unwrap();
}

#[test]
fn only_the_option_anywhere_allows_paths_outside_the_directory() {
    let malformed = MalformedStore::new();
    let outside = crate::support::temporary();
    zeros(&outside.path().join("file"));
    symlink(outside.path().join("file"), malformed.dir().join("link")).unwrap();
    symlink(outside.path(), malformed.dir().join("dir")).unwrap();
    let absolute = outside.path().join("file");
    let up = format!("../{}/file", outside.path().file_name().unwrap().to_str().unwrap());
    for (path, why) in [
        (absolute.to_str().unwrap(), "absolute"),
        (&up, "leads out"),
        ("link", "leads out"),
        ("dir/file", "leads out"),
    ] {
        malformed.write_record_of(path, 80);
        malformed.assert_refused_beside(&[why, "ExternalFiles::Anywhere", "--external anywhere"]);
        assert_eq!(malformed.load(&external_anywhere()).unwrap().read::<f32>().unwrap(), [0.; 12], "{path}");
    }
    // Inside the directory, a link or `..` is as good as any path.
    zeros(&malformed.dir().join("near"));
    symlink("near", malformed.dir().join("near_link")).unwrap();
    for path in ["near_link", "model.smap/../near"] {
        malformed.write_record_of(path, 80);
        assert_eq!(malformed.load(&external_beside()).unwrap().read::<f32>().unwrap(), [0.; 12], "{path}");
    }
}

#[test]
fn absolute_path_inside_the_directory_is_refused_too() {
    let malformed = MalformedStore::new();
    zeros(&malformed.dir().join("near"));
    malformed.write_record_of(malformed.dir().join("near").to_str().unwrap(), 80);
    malformed.assert_refused_beside(&["absolute"]);
}

#[test]
fn files_of_stores_are_refused_by_their_own_paths() {
    let malformed = MalformedStore::new();
    let other = Store::create(malformed.dir().join("other.smap")).unwrap();
    for store in [&other, &malformed.adopted.open()] {
        let path =
            format!("{}/storages/00000000000000ff.bin", store.path().file_name().unwrap().to_str().unwrap());
        zeros(&malformed.dir().join(&path));
        malformed.write_record_of(&path, 80);
        malformed.assert_refused_beside(&["one of a store"]);
        assert_refused(malformed.load(&external_anywhere()), ErrorKind::NotAllowed, &["one of a store"]);
    }
}

/// Creates a store with an unsealed tensor whose file has a second name beside the malformed store.
fn linked(malformed: &MalformedStore, kind: StorageKind) -> (Store, Tensor, PathBuf) {
    let path = malformed.dir().join("other.smap");
    Store::create(&path).unwrap();
    let store = mapped(&StoreOptions::new(), &path);
    let tensor = store.create_tensor("x", DType::F32, &[20], kind).unwrap();
    let link = malformed.dir().join("link");
    fs::hard_link(path.join("storages/0000000000000001.bin"), &link).unwrap();
    malformed.write_record_of("link", if kind == StorageKind::Mutable { 81 } else { 80 });
    (store, tensor, link)
}

fn assert_lent<T: Element + PartialEq>(tensor: &Tensor, expected: T) {
    assert!(tensor.as_slice::<T>().unwrap().iter().all(|element| *element == expected));
}

#[test]
fn hard_link_to_a_mutable_storage_is_borrowed_or_changed_but_not_both() {
    let malformed = MalformedStore::new();
    let (_store, mutable, link) = linked(&malformed, StorageKind::Mutable);
    let lending = mapped(&external_beside(), &malformed.adopted.path);
    let lent = lending.load("weight").unwrap();
    assert_lent(&lent, 0f32);
    // The second name, which reveals the sharing, is removed while the bytes are borrowed.
    fs::remove_file(&link).unwrap();
    assert_refused(
        mutable.lock_exclusive(),
        ErrorKind::Corrupt,
        &["mapped in this process as a sealed storage or an external file"],
    );
    assert_lent(&lent, 0f32);
    drop(lent);

    let guard = mutable.lock_exclusive().unwrap();
    fs::hard_link(malformed.dir().join("other.smap/storages/0000000000000001.bin"), &link).unwrap();
    let load = || lending.load("weight");
    assert_refused(load(), ErrorKind::NotAllowed, &["link", "locked in this process"]);
    drop(guard);
    assert_lent(&load().unwrap(), 0f32);
}

#[test]
fn hard_link_to_a_live_storage_is_borrowed_or_live_but_not_both() {
    let malformed = MalformedStore::new();
    let (_store, tensor, link) = linked(&malformed, StorageKind::Live);
    let lending = mapped(&external_beside(), &malformed.adopted.path);
    let lent = lending.load("weight").unwrap();
    fs::remove_file(&link).unwrap();
    assert_refused(tensor.as_live::<f32>(), ErrorKind::Corrupt, &["or an external file"]);
    drop(lent);
    let live = tensor.as_live::<f32>().unwrap();
    fs::hard_link(malformed.dir().join("other.smap/storages/0000000000000001.bin"), &link).unwrap();
    // Allocating its disk space has changed the file.
    malformed.write_record_of("link", 80);
    let lending = mapped(&external_beside(), &malformed.adopted.path);
    assert_refused(
        lending.load("weight"),
        ErrorKind::NotAllowed,
        &["mapped in this process as a live storage"],
    );
    drop(live);
    assert_lent(&lending.load("weight").unwrap(), 0f32);
}

#[test]
fn hard_link_to_a_growing_storage_is_borrowed_only_up_to_its_sealed_rows() {
    let malformed = MalformedStore::new();
    let path = malformed.dir().join("other.smap");
    let store = Store::create(&path).unwrap();
    store.create_growable("log", DType::F32, &[20], 1000).unwrap();
    let link = malformed.dir().join("link");
    let bin = path.join("storages/0000000000000001.bin");
    let row = filled(4, 5f32);
    let mut txn = store.begin().unwrap();
    txn.append("log", &row).unwrap();
    // The bytes past the recorded length belong to the writer, whether or not it has written them.
    File::options().append(true).open(&bin).unwrap().set_len(96).unwrap();
    fs::hard_link(&bin, &link).unwrap();
    malformed.write_record_of("link", 80);
    let lending = mapped(&external_beside(), &malformed.adopted.path);
    assert_refused(lending.load("weight"), ErrorKind::NotAllowed, &["locked in this process"]);
    drop(txn);
    malformed.write_record_of("link", 80);
    let lending = mapped(&external_beside(), &malformed.adopted.path);
    assert_lent(&lending.load("weight").unwrap(), 0f32);
}

#[test]
fn record_past_the_end_of_its_file_does_not_open() {
    let malformed = MalformedStore::new();
    zeros(&malformed.dir().join("near"));
    malformed.write_record_of("near", 80);
    let file = File::options().write(true).open(malformed.dir().join("near")).unwrap();
    file.set_len(40).unwrap();
    assert_refused(
        malformed.load(&external_beside()),
        ErrorKind::ExternalChanged,
        &["size in bytes 80, now 40"],
    );
}
