//! Invalid requests: a typed error of one line, and an unchanged store.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ndarray::ArrayViewD;
use stridemap::{DType, ErrorKind, Index, StorageKind, Store, StoreOptions, Tensor};

use crate::harness::processes::run_to_end;
use crate::harness::{assert_refused, new_path, new_store};
use crate::support::temporary;

fn matrix() -> Tensor {
    Tensor::from_vec((0..12i64).collect(), &[3, 4]).unwrap()
}

#[test]
fn opening_a_missing_path_or_anything_but_a_store_is_refused() {
    let dir = temporary();
    assert_refused(
        Store::open(dir.path().join("none.smap")),
        ErrorKind::NotFound,
        &["none.smap", "no store at this path"],
    );
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    assert_refused(Store::open(&file), ErrorKind::NotAStore, &["file"]);
    assert_refused(Store::open(dir.path()), ErrorKind::NotAStore, &["FORMAT"]);
    fs::write(dir.path().join("FORMAT"), "another format").unwrap();
    assert_refused(Store::open(dir.path()), ErrorKind::NotAStore, &["magic"]);
}

#[test]
fn create_refuses_an_existing_path_but_accepts_an_empty_directory() {
    let (dir, path) = new_path();
    Store::create(&path).unwrap();
    assert_refused(Store::create(&path), ErrorKind::AlreadyExists, &["the path is already a store"]);
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    assert_refused(Store::create(&file), ErrorKind::AlreadyExists, &["the path is already a file"]);
    assert_refused(Store::create(dir.path()), ErrorKind::AlreadyExists, &["not empty"]);
    for (i, suffix) in ["", "/", "//", "/."].into_iter().enumerate() {
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let store = Store::create(format!("{}{suffix}", empty.display())).unwrap();
        store.save("x", &matrix()).unwrap();
        fs::rename(&empty, dir.path().join(format!("store{i}"))).unwrap();
        assert!(store.load("x").is_ok());
    }
    let missing_parent = dir.path().join("no/such/x.smap");
    let message = format!("create store: {}: No such file", missing_parent.display());
    assert_refused(Store::create(&missing_parent), ErrorKind::Io, &[&message]);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 6, "{left:?}");
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role != "create here" {
        return false;
    }
    std::env::set_current_dir(path).unwrap();
    Store::create(".").unwrap().save("x", &matrix()).unwrap();
    true
}

#[test]
fn store_is_created_in_the_current_directory() {
    let (_dir, path) = new_path();
    fs::create_dir(&path).unwrap();
    run_to_end("create here", &path);
    assert_eq!(Store::open(&path).unwrap().names().unwrap(), ["x"]);
}

#[test]
fn store_is_created_in_an_empty_mount_point() {
    let dir = temporary();
    let path = dir.path().join("mounted");
    fs::create_dir(&path).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&path).status();
    if !mount.is_ok_and(|mounted| mounted.success()) {
        assert!(std::env::var_os("STRIDEMAP_REQUIRE_ROOT").is_none(), "nothing can be mounted");
        println!("skipped: only root can mount a file system");
        return;
    }
    // As in a new ext4 file system.
    fs::create_dir(path.join("lost+found")).unwrap();
    let made = Store::create(&path).and_then(|store| store.save("x", &matrix()));
    let opened = Store::open(&path).and_then(|store| store.names());
    assert!(Command::new("umount").arg("-l").arg(&path).status().unwrap().success());
    made.unwrap();
    assert_eq!(opened.unwrap(), ["x"]);
}

#[test]
fn open_names_the_directory_left_by_an_interrupted_creation() {
    let (_dir, path) = new_path();
    fs::create_dir_all(path.join("storages")).unwrap();
    assert_refused(Store::create(&path), ErrorKind::AlreadyExists, &["without FORMAT", "delete"]);
}

#[test]
fn store_has_the_owner_and_the_permissions_of_the_directory_that_it_is_created_in() {
    let (_dir, path) = new_path();
    fs::create_dir(&path).unwrap();
    // Only root can do this. If it succeeds, the directory has a different owner.
    let _ = chown(&path, Some(12), Some(34));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2750)).unwrap();
    let access = || fs::metadata(&path).map(|m| (m.uid(), m.gid(), m.mode())).unwrap();
    let before = access();
    Store::create(&path).unwrap();
    assert_eq!(access(), before);
}

#[test]
fn control_characters_in_a_path_are_escaped() {
    let dir = temporary();
    let path = dir.path().join("line\nred\u{1b}[31m.smap");
    assert_refused(Store::open(&path), ErrorKind::NotFound, &["line\\nred\\u{1b}[31m.smap"]);
    Store::create(&path).unwrap().save("a", &matrix()).unwrap();
    let store = Store::open(&path).unwrap();
    fs::remove_file(path.join("storages/0000000000000001.bin")).unwrap();
    assert!(!store.verify(|_| ()).unwrap().findings[0].to_string().contains('\n'));
}

#[test]
fn newer_format_version_is_reported_as_newer() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let newer =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/format/vectors/bad/F-3-version-2.format")).unwrap();
    fs::write(path.join("FORMAT"), newer).unwrap();
    assert_refused(Store::open(&path), ErrorKind::UnsupportedVersion, &["version 2", "newer stridemap"]);
}

#[test]
fn error_for_an_unknown_name_suggests_the_nearest() {
    let (_dir, _, store) = new_store();
    for name in ["layer.0.weight", "layer.1.weight", "embedding"] {
        store.save(name, &matrix()).unwrap();
    }
    assert_refused(
        store.load("layer.0.wieght"),
        ErrorKind::NameNotFound,
        &["\"layer.0.wieght\"", "did you mean \"layer.0.weight\""],
    );
    assert_refused(store.load("zzz"), ErrorKind::NameNotFound, &["no tensor with this name"]);
    assert_refused(store.remove("zzz"), ErrorKind::NameNotFound, &["remove"]);
    assert_refused(store.rename("zzz", "y"), ErrorKind::NameNotFound, &["rename"]);
}

#[test]
fn name_that_only_a_newer_generation_has_is_reported_with_that_generation() {
    let (_dir, path, store) = new_store();
    Store::open(&path).unwrap().save("new", &matrix()).unwrap();
    let says = ["generation 2 has it, and this handle is on generation 1: refresh the handle"];
    assert_refused(store.load("new"), ErrorKind::NameNotFound, &says);
    let unadvised = store.load("none").unwrap_err().to_string();
    assert!(!unadvised.contains("generation"), "{unadvised}");
    store.refresh().unwrap();
    assert!(store.load("new").is_ok());
}

#[test]
fn names_may_be_anything_but_empty_long_or_with_nul() {
    let (dir, _, store) = new_store();
    let odd = ["../x", "/etc/passwd", ".", "a b\n", "λ", &"x".repeat(4096)];
    for name in odd {
        store.save(name, &matrix()).unwrap();
        assert_eq!(store.load(name).unwrap().read::<i64>().unwrap().len(), 12);
    }
    for name in ["", "a\0b", &"x".repeat(4097)] {
        assert_refused(store.save(name, &matrix()), ErrorKind::InvalidArgument, &["name"]);
    }
    assert_eq!(store.names().unwrap().len(), odd.len());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a name became a path");
}

#[test]
fn reading_as_a_different_dtype_or_size_is_refused() {
    let tensor = matrix();
    assert_refused(tensor.read::<f32>(), ErrorKind::DTypeMismatch, &["int64", "float32"]);
    assert_refused(tensor.as_slice::<u64>(), ErrorKind::DTypeMismatch, &["int64", "uint64"]);
    assert_refused(tensor.item::<i64>(), ErrorKind::SizeMismatch, &["12 elements"]);
    assert_refused(tensor.read_into(&mut [0i64; 11]), ErrorKind::SizeMismatch, &["12", "11"]);
    assert_refused(tensor.get::<i64>(&[1]), ErrorKind::SizeMismatch, &["get([1])", "rank 2"]);
    assert_refused(Tensor::from_vec(vec![1f32; 5], &[2, 3]), ErrorKind::SizeMismatch, &["6", "5"]);
    assert_refused(Tensor::from_bytes(DType::F32, &[2], &[0; 7]), ErrorKind::SizeMismatch, &["7 bytes"]);
    assert_refused(Tensor::from_vec(Vec::<u8>::new(), &[1 << 40, 1 << 40]), ErrorKind::LimitExceeded, &[]);
    assert_refused(Tensor::from_vec(vec![1u8], &[1; 65]), ErrorKind::LimitExceeded, &["64"]);
}

#[test]
fn views_out_of_range_or_not_expressible_as_strides_are_refused() {
    let tensor = matrix();
    assert_refused(tensor.select(2, 0), ErrorKind::OutOfRange, &["axis 2", "[3, 4]"]);
    assert_refused(tensor.select(0, 3), ErrorKind::OutOfRange, &["index 3", "size 3"]);
    assert_refused(tensor.select(0, isize::MIN), ErrorKind::OutOfRange, &["index"]);
    assert_refused(tensor.narrow(1, 2, 3), ErrorKind::OutOfRange, &["axis 1", "size 4"]);
    assert_refused(tensor.narrow(1, 2, usize::MAX), ErrorKind::OutOfRange, &["axis 1"]);
    assert_refused(tensor.narrow(1, 2, -1), ErrorKind::InvalidArgument, &["length", "but is -1"]);
    assert_refused(tensor.unfold(1, -2, 1), ErrorKind::InvalidArgument, &["size", "but is -2"]);
    assert_refused(tensor.chunk(-1, 0), ErrorKind::InvalidArgument, &["number of chunks", "but is -1"]);
    assert_refused(tensor.as_strided([-3], [1], 0), ErrorKind::InvalidArgument, &["size", "but is -3"]);
    assert_refused(tensor.slice(0, None, None, 0), ErrorKind::InvalidArgument, &["step must not be 0"]);
    assert_refused(tensor.transpose(0, -3), ErrorKind::OutOfRange, &["axis -3"]);
    assert_refused(tensor.permute([0, 0]), ErrorKind::InvalidArgument, &["axis 0", "twice"]);
    assert_refused(tensor.permute([0]), ErrorKind::InvalidArgument, &["1 axes"]);
    assert_refused(tensor.flip([1, -1]), ErrorKind::InvalidArgument, &["twice"]);
    assert_refused(tensor.view([5, -1]), ErrorKind::SizeMismatch, &["12 elements"]);
    assert_refused(tensor.view([-1, -1]), ErrorKind::InvalidArgument, &["more than once"]);
    assert_refused(
        tensor.t().unwrap().view([12]),
        ErrorKind::NeedsCopy,
        &["[4, 3]", "[1, 4]", "use reshape"],
    );
    assert_refused(tensor.index([Index::At(0); 3]), ErrorKind::OutOfRange, &["3 indices"]);
    assert_refused(tensor.index([Index::Ellipsis; 2]), ErrorKind::InvalidArgument, &["..."]);
    let cube = tensor.view([3, 2, 2]).unwrap();
    assert_refused(cube.t(), ErrorKind::InvalidArgument, &["3 axes", "permute"]);
    assert_refused(tensor.t().unwrap().as_slice::<i64>(), ErrorKind::NeedsCopy, &["[1, 4]"]);
}

#[test]
fn borrowing_from_an_unmapped_store_is_refused() {
    let (_dir, _, store) = new_store();
    store.save("a", &matrix()).unwrap();
    let tensor = store.load("a").unwrap();
    assert_refused(tensor.as_slice::<i64>(), ErrorKind::NeedsCopy, &["open_mapped"]);
    assert_refused(ArrayViewD::<i64>::try_from(&tensor), ErrorKind::NeedsCopy, &["open_mapped"]);
}

#[test]
fn views_of_other_storages_are_refused() {
    let (dir, _, store) = new_store();
    let other = Store::create(dir.path().join("y.smap")).unwrap();
    other.save("a", &matrix()).unwrap();
    assert_refused(store.save_view("a", &matrix()), ErrorKind::NeedsCopy, &["memory", "use save"]);
    let foreign = other.load("a").unwrap();
    assert_refused(store.save_view("a", &foreign), ErrorKind::NeedsCopy, &["a different store", "use save"]);
    let mut txn = store.begin().unwrap();
    txn.save("a", &matrix()).unwrap();
    let staged = txn.load("a").unwrap();
    assert_refused(store.save_view("b", &staged), ErrorKind::NeedsCopy, &["a different transaction"]);
    drop(txn);
    assert_eq!(store.generation(), 1);
}

#[test]
fn locked_store_is_busy_after_the_timeout_and_a_replaced_lock_is_noticed() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(20)).open(&path).unwrap();
    let lock = fs::File::open(path.join("LOCK")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    assert_refused(store.save("a", &matrix()), ErrorKind::Busy, &["LOCK", "20ms"]);
    fs2::FileExt::unlock(&lock).unwrap();
    store.save("a", &matrix()).unwrap();
    fs::remove_file(path.join("LOCK")).unwrap();
    assert_refused(store.save("b", &matrix()), ErrorKind::Stale, &["LOCK"]);
    assert_eq!(store.names().unwrap(), ["a"]);
}

#[test]
fn lock_file_that_was_replaced_between_two_commits_of_a_handle_is_the_one_that_it_locks() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(20)).open(&path).unwrap();
    store.save("a", &matrix()).unwrap();
    fs::remove_file(path.join("LOCK")).unwrap();
    let lock = fs::File::create(path.join("LOCK")).unwrap();
    store.save("b", &matrix()).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    assert_refused(store.save("c", &matrix()), ErrorKind::Busy, &["LOCK", "20ms"]);
    assert_eq!(store.names().unwrap(), ["a", "b"]);
}

#[test]
fn endless_lock_timeout_is_accepted() {
    let dir = temporary();
    let store = StoreOptions::new().lock_timeout(Duration::MAX).create(dir.path().join("x.smap")).unwrap();
    store.save("a", &matrix()).unwrap();
}

#[test]
fn requests_for_unbounded_memory_are_refused() {
    let one = Tensor::zeros(DType::F32, &[1]).unwrap();
    let wide = one.expand([1i64 << 60]).unwrap();
    let limit = ErrorKind::LimitExceeded;
    assert_refused(wide.unbind(0), limit, &["unbind(0)", "select"]);
    assert_refused(wide.chunk(1i64 << 50, 0), limit, &["chunk", "narrow"]);
    assert_refused(wide.split(1, 0), limit, &["split(1, 0)"]);
    assert_refused(wide.tensor_split(vec![0; 5 << 20], 0), limit, &["tensor_split"]);
    let deep = one.expand([[1; 63].as_slice(), &[1 << 20]].concat()).unwrap();
    assert_refused(deep.unbind(-1), limit, &["unbind(-1)", "65536"]);
    let memory = ErrorKind::OutOfMemory;
    assert_refused(wide.read::<f32>(), memory, &["no memory"]);
    assert_refused(wide.contiguous(), memory, &["no memory"]);
    assert_refused(wide.to_dtype(DType::F64), memory, &["no memory"]);
    let bushy = one.expand([[2; 20].as_slice(), &[1; 44]].concat()).unwrap();
    assert_refused(bushy.to_text(&stridemap::PrintOptions::default()), limit, &["print", "print a part"]);
    assert_eq!(wide.to_string(), "tensor([0., 0., 0.,  ..., 0., 0., 0.])");
}

#[test]
fn views_without_matching_strides_are_refused() {
    let (x, invalid) = (matrix(), ErrorKind::InvalidArgument);
    assert_refused(x.as_strided([4, 4], [4, 1], 0), ErrorKind::OutOfRange, &["as_strided", "storage"]);
    assert_refused(x.as_strided([2], [-1], 0), ErrorKind::OutOfRange, &["as_strided"]);
    assert_refused(x.as_strided([2], [1, 1], 0), invalid, &["1 sizes and 2 strides"]);
    assert_refused(x.as_strided([2, 2], [isize::MAX, 1], 0), ErrorKind::OutOfRange, &["as_strided"]);
    assert_refused(x.as_strided([1i64 << 40; 2], [0; 2], 0), ErrorKind::LimitExceeded, &["as_strided"]);
    assert_refused(x.expand([isize::MAX, 3, 4]), ErrorKind::LimitExceeded, &["expand"]);
    assert_refused(x.expand([2, 4]), ErrorKind::SizeMismatch, &["axis 0", "[3, 4]", "[4, 1]"]);
    let deep = Tensor::zeros(DType::F32, &[1; 64]).unwrap();
    assert_refused(deep.unsqueeze(0), ErrorKind::LimitExceeded, &["unsqueeze", "64"]);
    assert_refused(deep.unfold(0, 1, 1), ErrorKind::LimitExceeded, &["unfold", "64"]);
    let odd = Tensor::zeros(DType::F32, &[2, 3]).unwrap();
    assert_refused(odd.view_dtype(DType::F64), invalid, &["float64", "[2, 3]", "[3, 1]", "multiples of 2"]);
    assert_refused(odd.t().unwrap().view_dtype(DType::U8), invalid, &["last stride is 3", "contiguous"]);
    assert_refused(odd.view_as_complex(), invalid, &["view_as_complex", "size 2", "[2, 3]"]);
    let parts = odd.view_as_real();
    assert_refused(parts, ErrorKind::DTypeMismatch, &["view_as_real", "float32", "complex64"]);
    let named = odd.refine_names(&["row", "column"]).unwrap();
    assert_refused(named.select("depth", 0), ErrorKind::OutOfRange, &["select", "depth", "row", "column"]);
    assert_refused(named.permute(["row", "row"]), invalid, &["permute", "row", "twice"]);
    assert_refused(named.rename(&["a", "a"]), invalid, &["rename", "a", "twice"]);
    assert_refused(odd.refine_names(&["no name", "b"]), invalid, &["refine_names", "no name"]);
    assert_refused(named.refine_names(&["column", "row"]), ErrorKind::InvalidArgument, &["rename"]);
    assert_refused(named.align_to(&["row"]), invalid, &["align_to", "column"]);
}

#[test]
fn bytes_other_than_0_and_1_are_refused_as_bools() {
    let x = Tensor::from_vec(vec![0u8, 1, 2], &[3]).unwrap().view_dtype(DType::Bool).unwrap();
    for refused in [
        x.read::<bool>().map(drop),
        x.as_slice::<bool>().map(drop),
        ArrayViewD::<bool>::try_from(&x).map(drop),
    ] {
        assert_refused(refused, ErrorKind::InvalidArgument, &["neither 0 nor 1", "uint8"]);
    }
    assert_eq!(x.to_string(), "tensor([False,  True,  True])");
}

#[test]
fn impossible_tensors_are_refused() {
    let (_dir, _, store) = new_store();
    let create =
        |name: &str, size: &[usize], kind| store.create_tensor(name, DType::F32, size, kind).map(drop);
    let mutable = StorageKind::Mutable;
    assert_refused(create("", &[2], mutable), ErrorKind::InvalidArgument, &["create_tensor"]);
    assert_refused(
        create("x", &[1 << 62], mutable),
        ErrorKind::LimitExceeded,
        &["create_tensor \"x\"", "too large"],
    );
    assert_refused(
        create("x", &[2], StorageKind::Sealed),
        ErrorKind::InvalidArgument,
        &["create_tensor", "Mutable"],
    );
    let external = StorageKind::External;
    assert_refused(create("x", &[2], external), ErrorKind::InvalidArgument, &["external"]);
    let saved = store.write(|txn| txn.save_as("x", &[1u8], external));
    assert_refused(saved, ErrorKind::InvalidArgument, &["save \"x\"", "external", "Mutable or Live"]);
    assert_refused(
        store.create_tensor("x", DType::Bool, &[2], StorageKind::Live),
        ErrorKind::InvalidArgument,
        &["create_tensor", "bool", "live", "integers"],
    );
    assert_eq!(store.names().unwrap(), [""; 0]);
}
