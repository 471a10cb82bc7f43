//! Imports and copies that share the blocks of a file instead of copying it: on images of real btrfs and XFS file systems. Skipped,
//! with the reason printed, where they cannot be made or mounted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use stridemap::interop::safetensors::WriteOptions;
use stridemap::interop::{ForeignFile, Imported, npy};
use stridemap::{
    DType, Durability, ErrorKind, OnExisting, StorageInfo, StorageKind, Store, StoreOptions, Tensor,
};

use crate::full_disk::SmallDisk;
use crate::interop::{logical, quiet};
use crate::support::{skip, temporary};

/// The file systems that can share, each with what makes one.
const SHARING: [(&str, &[&str]); 2] = [("btrfs", &["mkfs.btrfs", "-q"]), ("xfs", &["mkfs.xfs", "-q"])];

const IMAGE_BYTES: u64 = 400 << 20;

/// An image of a file system, mounted for as long as this lives.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Image {
    pub(crate) fn mount(kind: &str, make: &[&str], size_bytes: u64) -> Option<Image> {
        let dir = temporary();
        let (image, path) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(size_bytes).unwrap();
        fs::create_dir(&path).unwrap();
        let made = Command::new(make[0]).args(&make[1..]).arg(&image).output();
        let mounted = Command::new("mount").args(["-o", "loop", "-t", kind]).args([&image, &path]).output();
        if [&made, &mounted].iter().all(|output| output.as_ref().is_ok_and(|output| output.status.success()))
        {
            return Some(Image { path, _dir: dir });
        }
        let why = format!("no {kind} can be made and mounted here: {made:?}, {mounted:?}");
        skip("STRIDEMAP_REQUIRE_ROOT", &why);
        None
    }

    /// The bytes that files do not take, once all that was written has its place.
    fn free_bytes(&self) -> u64 {
        rustix::fs::syncfs(File::open(&self.path).unwrap()).unwrap();
        let stat = rustix::fs::statvfs(&self.path).unwrap();
        stat.f_bfree * stat.f_frsize
    }

    fn store(&self) -> Store {
        Store::create(self.path.join("store.smap")).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Does the same on each file system that is there.
fn on_each(test: impl Fn(&str, &Image)) {
    for (kind, make) in SHARING {
        if let Some(image) = Image::mount(kind, make, IMAGE_BYTES) {
            test(kind, &image);
        }
    }
}

fn noise(n: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        })
        .collect()
}

/// 64 MiB, with tensors that would have a storage of their own, and others that would not.
fn model() -> Vec<(String, Tensor)> {
    let mut tensors = vec![
        ("large".to_owned(), Tensor::from_vec(noise(12 << 20, 1), &[3 << 10, 4 << 10]).unwrap()),
        ("bytes".to_owned(), Tensor::from_vec(vec![7u8; 1001], &[1001]).unwrap()),
    ];
    tensors.extend(
        (0..16).map(|n| (format!("small.{n}"), Tensor::from_vec(noise(1 << 18, n), &[1 << 18]).unwrap())),
    );
    tensors
}

fn size_of(tensors: &[(String, Tensor)]) -> u64 {
    tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).sum()
}

fn write(path: &Path, tensors: &[(String, Tensor)], options: &WriteOptions<'_>) -> PathBuf {
    options.write(path, tensors, &mut quiet()).unwrap().pop().unwrap()
}

fn import(store: &Store, path: &Path) -> (Imported, u64) {
    let mut told_bytes = 0;
    let mut txn = store.begin().unwrap();
    let imported =
        txn.import(&ForeignFile::open(path).unwrap(), "", &mut |bytes| told_bytes += bytes).unwrap();
    txn.commit().unwrap();
    (imported, told_bytes)
}

fn assert_same(store: &Store, tensors: &[(String, Tensor)]) {
    for (name, tensor) in tensors {
        assert!(logical(&store.load(name).unwrap()) == logical(tensor), "{name}");
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

/// Whether each extent of a file is shared, by what the kernel says.
fn is_shared(path: &Path) -> bool {
    let output = Command::new("filefrag").arg("-v").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let extents: Vec<&str> = text.lines().filter(|line| line.contains("..")).collect();
    assert!(!extents.is_empty(), "{text}");
    extents.iter().all(|line| line.contains("shared"))
}

#[test]
fn imported_file_takes_no_space_and_keeps_its_elements_when_the_file_is_overwritten() {
    on_each(|kind, image| {
        let tensors = model();
        let size_bytes = size_of(&tensors);
        let path = write(&image.path.join("m.safetensors"), &tensors, &WriteOptions::new());
        let store = image.store();
        let before = image.free_bytes();
        let (imported, told_bytes) = import(&store, &path);
        let taken = before.saturating_sub(image.free_bytes());
        println!("{kind}: {size_bytes} bytes imported, {taken} bytes of the disk taken");
        assert_eq!((imported.shared_bytes, imported.copied_bytes, told_bytes), (size_bytes, 0, size_bytes));
        assert!(taken < size_bytes / 16, "{kind}: {taken} bytes taken");
        let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
        assert_eq!(storages.len(), 1);
        assert_eq!(storages[0].size_bytes, fs::metadata(&path).unwrap().len());
        assert!(is_shared(&storages[0].file), "{kind}");
        assert_same(&store, &tensors);

        let file = File::options().write(true).open(&path).unwrap();
        for offset in (0..size_bytes).step_by(1 << 20) {
            file.write_all_at(&[0xff; 1 << 20], offset).unwrap();
        }
        file.sync_all().unwrap();
        assert_same(&store, &tensors);
        drop(store);
        fs::remove_file(&path).unwrap();
        let store = Store::open(image.path.join("store.smap")).unwrap();
        assert_same(&store, &tensors);
        // SAFETY: nothing else writes this store.
        let mapped = unsafe { Store::open_mapped(image.path.join("store.smap")).unwrap() };
        assert_same(&mapped, &tensors);
        // It is a storage as any other.
        store.remove("large").unwrap();
        store.compact(|_| ()).unwrap();
        assert_same(&store, &tensors[1..]);
    });
}

#[test]
fn each_part_of_a_model_is_shared() {
    on_each(|kind, image| {
        let tensors = model();
        let index =
            write(&image.path.join("m.safetensors"), &tensors, &WriteOptions::new().max_shard_bytes(6 << 20));
        let store = image.store();
        let (imported, _) = import(&store, &index);
        // The last part is too small to be worth a storage.
        let parts: Vec<_> = store.snapshot().storages().map(|storage| storage.unwrap().size_bytes).collect();
        assert!(
            parts.len() > 2 && imported.shared_bytes > size_of(&tensors) * 3 / 4,
            "{kind}: {imported:?} {parts:?}"
        );
        assert_eq!(imported.shared_bytes + imported.copied_bytes, size_of(&tensors));
        assert_same(&store, &tensors);
    });
}

#[test]
fn array_of_numpy_is_shared_in_both_orders() {
    on_each(|kind, image| {
        let tensor = Tensor::from_vec(noise(2 << 20, 3), &[1 << 10, 2 << 10]).unwrap();
        for order in [stridemap::interop::Order::C, stridemap::interop::Order::F] {
            let path = image.path.join("x.npy");
            npy::write_in(&path, &tensor, order, OnExisting::Replace, &mut quiet()).unwrap();
            let store = StoreOptions::new().durability(Durability::Process);
            let store = store.create(image.path.join(format!("{order:?}.smap"))).unwrap();
            let (imported, _) = import(&store, &path);
            assert_eq!((imported.shared_bytes, imported.copied_bytes), (8 << 20, 0), "{kind} {order:?}");
            assert!(store.load("x").unwrap().storage_offset() > 0);
            assert_same(&store, &[("x".to_owned(), tensor.clone())]);
        }
    });
}

#[test]
fn what_no_header_can_reach_in_the_file_is_copied() {
    on_each(|kind, image| {
        // Three bytes, then floats: these begin where no float may.
        let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1048576],"data_offsets":[3,4194307]},"c":{"dtype":"U8","shape":[9000001],"data_offsets":[4194307,13194308]}}"#;
        let header = format!("{header:<240}");
        let elements: Vec<u8> = noise(13_194_308, 5).into_iter().map(|n| (n >> 24) as u8).collect();
        let path = image.path.join("m.safetensors");
        fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &elements].concat())
            .unwrap();
        let store = image.store();
        let (imported, _) = import(&store, &path);
        assert_eq!((imported.shared_bytes, imported.copied_bytes), (9_000_004, 4 << 20), "{kind}");
        for (name, range) in [("a", 0..3), ("b", 3..4_194_307), ("c", 4_194_307..13_194_308)] {
            assert!(store.load(name).unwrap().to_bytes().unwrap() == elements[range], "{kind} {name}");
        }
    });
}

#[test]
fn small_file_is_copied() {
    on_each(|kind, image| {
        let tensors = model();
        let path = write(&image.path.join("m.safetensors"), &tensors[2..4], &WriteOptions::new());
        let store = image.store();
        let (imported, _) = import(&store, &path);
        assert_eq!((imported.shared_bytes, imported.copied_bytes), (0, 2 << 20), "{kind}");
        assert_same(&store, &tensors[2..4]);
    });
}

#[test]
fn file_changed_since_it_was_opened_is_refused_and_leaves_nothing() {
    on_each(|kind, image| {
        let path = write(&image.path.join("m.safetensors"), &model(), &WriteOptions::new());
        let store = image.store();
        let opened = ForeignFile::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(b"x", 1 << 20).unwrap();
        let mut txn = store.begin().unwrap();
        let error = txn.import(&opened, "", &mut quiet()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ExternalChanged, "{kind}: {error}");
        drop(txn);
        assert_eq!(fs::read_dir(image.path.join("store.smap/storages")).unwrap().count(), 0, "{kind}");
    });
}

#[test]
fn taken_name_is_refused_before_anything_is_read() {
    on_each(|kind, image| {
        let path = write(&image.path.join("m.safetensors"), &model(), &WriteOptions::new());
        let store = image.store();
        store.save("small.7", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
        let mut txn = store.begin().unwrap();
        txn.on_existing(OnExisting::Refuse);
        let file = ForeignFile::open(&path).unwrap();
        let error = txn.import(&file, "", &mut |_| panic!("an element was read")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameExists, "{kind}: {error}");
    });
}

#[test]
fn where_nothing_can_be_shared_everything_is_copied() {
    let Some(disk) = SmallDisk::mount("160m") else { return };
    let tensors = model();
    let path = write(&disk.path.join("m.safetensors"), &tensors, &WriteOptions::new());
    let store = Store::create(disk.path.join("store.smap")).unwrap();
    let (imported, told_bytes) = import(&store, &path);
    assert_eq!(
        (imported.shared_bytes, imported.copied_bytes, told_bytes),
        (0, size_of(&tensors), size_of(&tensors))
    );
    assert_eq!(store.load("large").unwrap().dtype(), DType::U32);
    assert_same(&store, &tensors);
}

#[test]
fn copy_of_a_store_shares_the_blocks_of_what_never_changes() {
    on_each(|kind, image| {
        let store = image.store();
        let tensors = model();
        let mut txn = store.begin().unwrap();
        for (name, tensor) in &tensors {
            txn.save(name, tensor).unwrap();
        }
        txn.commit().unwrap();
        store.create_growable("log", DType::U8, &[0], 0).unwrap();
        store.append("log", &Tensor::from_vec(vec![3u8; 1_500_000], &[1_500_000]).unwrap()).unwrap();
        let snapshot = store.snapshot();
        store.append("log", &Tensor::from_vec(vec![4u8; 10], &[10]).unwrap()).unwrap();
        store.save_as("counts", &tensors[1].1, StorageKind::Mutable).unwrap();

        let path = image.path.join("copy.smap");
        let (before, mut told_bytes) = (image.free_bytes(), 0);
        let copied = store.copy_to(&path, |bytes| told_bytes += bytes).unwrap();
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

        // An older generation is shorter than the file, and each of the stores grows by itself.
        let path = image.path.join("older.smap");
        snapshot.copy_to(&path, |_| ()).unwrap();
        let older = Store::open(&path).unwrap();
        assert_eq!(older.load("log").unwrap().size(), [1_500_000]);
        for (grown, value) in [(&store, 5u8), (&there, 6), (&older, 7)] {
            grown.append("log", &Tensor::from_vec(vec![value; 10], &[10]).unwrap()).unwrap();
        }
        for (grown, value) in [(&store, 5), (&there, 6), (&older, 7)] {
            let log: Vec<u8> = grown.load("log").unwrap().read().unwrap();
            assert!(log[log.len() - 10..].iter().all(|&byte| byte == value), "{kind}");
            assert_same(grown, &tensors);
        }

        // Damage is not passed on with the blocks.
        let file = store.snapshot().storages().next().unwrap().unwrap().file;
        File::options().write(true).open(file).unwrap().write_all_at(b"damaged", 1 << 20).unwrap();
        let error = store.copy_to(image.path.join("bad.smap"), |_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind}: {error}");
        assert!(!image.path.join("bad.smap").exists(), "{kind}");
        assert_eq!(there.verify(|_| ()).unwrap().findings, [], "{kind}");
    });
}
