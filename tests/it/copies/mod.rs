//! Copies of a store.

pub(crate) mod concurrent;
mod refused;
mod small;

use std::collections::BTreeMap;
use std::fs::{self};
use std::iter;
use std::path::Path;

use stridemap::maintenance::Copied;
use stridemap::{DType, ErrorKind, Snapshot, StorageInfo, StorageKind, Store, Tensor, TensorInfo};
use stridemap_format::{Manifest, Marker, StorageRecord};

use crate::external::{Adopted, external_anywhere, external_beside, weight};
use crate::harness::{assert_refused, fast, filled, new_store};
use crate::support::temporary;

fn copy(store: &Store, path: &Path) -> Copied {
    store.snapshot().copy_to(path, None, |_| ()).unwrap()
}

pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Asserts that one store is a copy of the other: the same headers with the same elements, over storages of the same
/// kinds. Only small storages share one, and their tensors begin elsewhere in it.
#[track_caller]
fn assert_copy(copy: &Store, original: &Snapshot) {
    let snapshot = copy.snapshot();
    assert_eq!(copy.verify(|_| ()).unwrap().findings, []);
    assert_eq!(snapshot.attributes(""), original.attributes(""));
    let infos = |snapshot: &Snapshot| -> Vec<TensorInfo> {
        snapshot.iter_tensors("").unwrap().map(Result::unwrap).collect()
    };
    let (copies, originals) = (infos(&snapshot), infos(original));
    // The id of each storage in the copy, and by how many bytes its tensors were moved.
    let mut places = BTreeMap::new();
    assert_eq!(copies.len(), originals.len());
    for (copied, original_info) in iter::zip(&copies, &originals) {
        assert_eq!(copied.name, original_info.name);
        let (header, original_header) = (&copied.header, &original_info.header);
        let unmoved = header.clone().with_storage_offset(original_header.storage_offset());
        assert_eq!(unmoved, *original_header, "{}", copied.name);
        let moved_elems = header.storage_offset() - original_header.storage_offset();
        let place = (copied.storage_id, moved_elems * header.dtype().itemsize());
        let kept = *places.entry(original_info.storage_id).or_insert(place);
        assert_eq!(kept, place, "{}", copied.name);
        let bytes = |snapshot: &Snapshot| snapshot.load(&copied.name).unwrap().to_bytes().unwrap();
        assert!(bytes(&snapshot) == bytes(original), "{}", copied.name);
    }
    let storages = |snapshot: &Snapshot| -> BTreeMap<u64, StorageInfo> {
        snapshot.storages().map(Result::unwrap).map(|info| (info.id, info)).collect()
    };
    let copies = storages(&snapshot);
    let mut ends = BTreeMap::new();
    for (id, info) in storages(original) {
        let (copied, begin) = (&copies[&places[&id].0], places[&id].1 as u64);
        assert_eq!((copied.kind, copied.offset_bytes), (info.kind, info.offset_bytes));
        let (length, tensor_count) = ends.entry(copied.id).or_insert((0, 0));
        *length = info.size_bytes.checked_add(begin).unwrap().max(*length);
        *tensor_count += info.tensor_count;
    }
    let ends_of_copies = copies.values().map(|info| (info.id, (info.size_bytes, info.tensor_count)));
    assert_eq!(ends, ends_of_copies.collect());
}

/// Returns the storages of the newest manifest, which must have no table.
fn records(path: &Path) -> Vec<StorageRecord> {
    let marker = Marker::decode(&fs::read(path.join("FORMAT")).unwrap()).unwrap();
    let name = names_in(&path.join("meta")).pop().unwrap();
    let number = u64::from_str_radix(name.strip_suffix(".man").unwrap(), 16).unwrap();
    let bytes = fs::read(path.join("meta").join(name)).unwrap();
    let manifest = Manifest::decode(&bytes, marker.uuid, number).unwrap();
    manifest.storages.into_values().flatten().collect()
}

/// Adds storages of every kind to a store that has an external one.
fn save_every_kind(store: &Store) {
    let x = Tensor::from_vec((0..24u16).collect(), &[4, 6]).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &x.refine_names(&["row", "column"]).unwrap()).unwrap();
    txn.save("scalar", &Tensor::from_vec(vec![2.5f64], &[]).unwrap()).unwrap();
    txn.save("none", &Tensor::from_vec(Vec::<u8>::new(), &[0, 3]).unwrap()).unwrap();
    let saved = txn.load("x").unwrap();
    txn.save_view("x.t", &saved.t().unwrap()).unwrap();
    txn.save_view("x.flipped", &saved.flip([0, 1]).unwrap()).unwrap();
    txn.copy("x", "tied").unwrap();
    txn.save("large", &filled(700_001, 7i64)).unwrap();
    txn.set_attribute("", "epoch", "12").unwrap();
    txn.commit().unwrap();
    store.create_growable("log", DType::I64, &[0, 2], 1_000_000).unwrap();
    store.append("log", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[2, 2]).unwrap()).unwrap();
    store.write(|txn| txn.save_as("mutable", &filled(300_000, 5i64), StorageKind::Mutable)).unwrap();
    store
        .save_view("mutable.half", &store.load("mutable").unwrap().slice(0, None, None, 2).unwrap())
        .unwrap();
    store.write(|txn| txn.save_as("live", &filled(1000, 6i64), StorageKind::Live)).unwrap();
    store.remove("tied").unwrap();
}

#[test]
fn copy_keeps_every_kind_of_storage_with_headers_and_sharing() {
    let adopted = Adopted::new();
    let store = adopted.open();
    save_every_kind(&store);
    let path = adopted.dir.path().join("copy.smap");
    let mut told_bytes = 0;
    let copied = store.snapshot().copy_to(&path, None, |bytes| told_bytes += bytes).unwrap();
    let snapshot = store.snapshot();
    let storages = snapshot.storages().map(Result::unwrap);
    let own_bytes: u64 =
        storages.filter(|info| info.kind != StorageKind::External).map(|info| info.size_bytes).sum();
    assert_eq!((copied.tensor_count, copied.copied_bytes + copied.shared_bytes), (12, own_bytes));
    assert_eq!(told_bytes, own_bytes);
    let there = external_beside().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    assert_ne!(there.uuid(), store.uuid());
    // The records include digests and reservations.
    let sorted = |path| {
        let mut records: Vec<String> = records(path).iter().map(|record| format!("{record:?}")).collect();
        records.sort();
        records
    };
    assert_eq!(sorted(&path), sorted(&adopted.path));
    assert_eq!(names_in(adopted.dir.path()), ["copy.smap", "model.safetensors", "model.smap"]);

    // Each store can grow independently.
    there.append("log", &Tensor::from_vec(vec![5i64, 6], &[1, 2]).unwrap()).unwrap();
    there.load("mutable").unwrap().lock_exclusive().unwrap().fill_(9).unwrap();
    assert_eq!(store.load("log").unwrap().size(), [2, 2]);
    assert_eq!(store.load("mutable").unwrap().get::<i64>(&[0]).unwrap(), 5);
    assert_eq!(there.load("weight").unwrap().read::<f32>().unwrap(), weight());
    assert_eq!(there.gc().unwrap().file_count, 0);
}

#[test]
fn salvage_of_a_store_without_its_digests_format_and_lock_is_a_copy() {
    let adopted = Adopted::new();
    let store = adopted.open();
    save_every_kind(&store);
    for entry in fs::read_dir(adopted.path.join("storages")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "sum") {
            fs::remove_file(file).unwrap();
        }
    }
    fs::write(adopted.path.join("FORMAT"), "damaged").unwrap();
    fs::remove_file(adopted.path.join("LOCK")).unwrap();
    let path = adopted.dir.path().join("new.smap");
    let done = external_beside().salvage(&adopted.path, Some(&path), |_| ()).unwrap();
    assert_eq!((done.losses.len(), done.copied.tensor_count), (0, 12), "{:?}", done.losses);
    let there = external_beside().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    assert_ne!(there.uuid(), store.uuid());
    assert_eq!(there.append("log", &Tensor::from_vec(vec![5i64, 6], &[1, 2]).unwrap()).unwrap(), 2..3);

    // Tensors in a file that may not be opened, or that has changed, are lost.
    let refused = fast().salvage(&adopted.path, None, |_| ()).unwrap();
    crate::external::write_model(&adopted.file);
    let changed = external_beside().salvage(&adopted.path, None, |_| ()).unwrap();
    for (done, why) in [(refused, "external file refused"), (changed, "the file changed")] {
        let names: Vec<_> = done.losses.iter().map(|loss| loss.name.as_deref()).collect();
        assert_eq!(names, [Some("bias"), Some("weight")], "{:?}", done.losses);
        assert!(done.losses.iter().all(|loss| loss.reason.contains(why)), "{:?}", done.losses);
        assert_eq!(done.copied.tensor_count, 10);
    }
}

#[test]
fn empty_store_and_one_of_many_storages_are_copied() {
    let dir = temporary();
    let options = fast();
    let store = options.create(dir.path().join("x.smap")).unwrap();
    assert_eq!(copy(&store, &dir.path().join("empty.smap")), Copied::default());
    assert_eq!(Store::open(dir.path().join("empty.smap")).unwrap().generation(), 1);

    let mut txn = store.begin().unwrap();
    for i in 0..150i64 {
        txn.save_as(&format!("own.{i}"), &filled(10, i), StorageKind::Mutable).unwrap();
    }
    txn.commit().unwrap();
    let mut txn = store.begin().unwrap();
    // Views of every storage come last, when the storages have ids.
    for i in 0..150i64 {
        let own = store.load(&format!("own.{i}")).unwrap();
        txn.save_view(&format!("view.{i}"), &own.slice(0, None, None, -1).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    let path = dir.path().join("copy.smap");
    assert_eq!(copy(&store, &path).tensor_count, 300);
    assert_copy(&Store::open(&path).unwrap(), &store.snapshot());
}

#[test]
fn headers_are_copied_in_batches() {
    let dir = temporary();
    let options = fast();
    let store = options.create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &filled(2, 1i64)).unwrap();
    let count = (1 << 17) + 100;
    for i in 0..count {
        txn.copy("x", &format!("tied.{i}")).unwrap();
    }
    txn.commit().unwrap();
    let path = dir.path().join("copy.smap");
    assert_eq!(copy(&store, &path).tensor_count, count + 1);
    let there = Store::open(&path).unwrap();
    let storages: Vec<_> = there.snapshot().storages().map(Result::unwrap).collect();
    assert_eq!((storages.len(), storages[0].tensor_count), (1, count + 1));
    assert_eq!(there.names().unwrap(), store.names().unwrap());
    assert_eq!(there.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn copy_of_a_snapshot_has_its_generation() {
    let (dir, path, store) = new_store();
    store.save("x", &filled(1_000_000, 1i64)).unwrap();
    store.create_growable("log", DType::I64, &[0], 0).unwrap();
    store.append("log", &filled(3, 1i64)).unwrap();
    let (snapshot, other) = (store.snapshot(), Store::open(&path).unwrap());
    other.append("log", &filled(200_000, 2i64)).unwrap();
    other.save("x", &filled(10, 2i64)).unwrap();
    other.compact(false, |_| ()).unwrap();
    other.gc().unwrap();

    let (then, now) = (dir.path().join("then.smap"), dir.path().join("now.smap"));
    snapshot.copy_to(&then, None, |_| ()).unwrap();
    other.snapshot().copy_to(&now, None, |_| ()).unwrap();
    assert_copy(&Store::open(&then).unwrap(), &snapshot);
    assert_copy(&Store::open(&now).unwrap(), &other.snapshot());
    assert_eq!(Store::open(&then).unwrap().load("log").unwrap().size(), [3]);
}

#[test]
fn copy_of_some_tensors_contains_no_byte_of_the_others() {
    let (dir, _, store) = new_store();
    let mut txn = store.begin().unwrap();
    let matrix = Tensor::from_vec((0..4000i32).collect(), &[40, 100]).unwrap();
    txn.save("matrix", &matrix).unwrap();
    txn.save("secret", &Tensor::from_vec(b"nobody is to know".to_vec(), &[17]).unwrap()).unwrap();
    let saved = txn.load("matrix").unwrap();
    let column = saved.select(1, 7).unwrap();
    txn.save_view("column", &column).unwrap();
    txn.save_view("column.flipped", &column.flip([0]).unwrap()).unwrap();
    txn.commit().unwrap();
    store.write(|txn| txn.save_as("counts", &filled(9, 3i64), StorageKind::Live)).unwrap();
    store.save_view("counts.half", &store.load("counts").unwrap().narrow(0, 0, 4).unwrap()).unwrap();

    let path = dir.path().join("copy.smap");
    let names = ["column.flipped", "counts.half", "column", "column"];
    let copied = store.snapshot().copy_to(&path, Some(&names), |_| ()).unwrap();
    // The column keeps its position within a cache line.
    let own_bytes = 7 * 4 + 40 * 4 + 9 * 8;
    assert_eq!((copied.tensor_count, copied.copied_bytes, copied.shared_bytes), (3, own_bytes, 0));
    let there = Store::open(&path).unwrap();
    assert_eq!(there.names().unwrap(), ["column", "column.flipped", "counts.half"]);
    for name in &names {
        let bytes = |store: &Store| store.load(name).unwrap().to_bytes().unwrap();
        assert_eq!(bytes(&there), bytes(&store), "{name}");
    }
    assert_eq!(there.snapshot().overlapping("column").unwrap(), ["column.flipped"]);
    assert_eq!(there.verify(|_| ()).unwrap().findings, []);
    for name in names_in(&path.join("storages")) {
        let bytes = fs::read(path.join("storages").join(name)).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"nobody"));
    }
    // Strides are kept if every byte is referenced.
    let path = dir.path().join("whole.smap");
    let names = ["column", "column.flipped", "matrix", "secret"];
    store.snapshot().copy_to(&path, Some(&names), |_| ()).unwrap();
    assert_eq!(Store::open(&path).unwrap().load("column").unwrap().stride(), [100]);

    let refused = store.snapshot().copy_to(dir.path().join("no.smap"), Some(&["colum"]), |_| ());
    assert_refused(refused, ErrorKind::NameNotFound, &["\"colum\"", "\"column\""]);
}

#[test]
fn copy_finds_an_external_file_from_its_own_place() {
    let adopted = Adopted::new();
    let elsewhere = temporary();
    let path = elsewhere.path().join("copy.smap");
    let refused = Store::open(&adopted.path).unwrap().snapshot().copy_to(&path, None, |_| ());
    assert_refused(refused, ErrorKind::NotAllowed, &["StoreOptions::external"]);
    let refused = adopted.open().snapshot().copy_to(&path, None, |_| ());
    assert_refused(refused, ErrorKind::NotAllowed, &["ExternalFiles::Anywhere"]);
    assert_eq!(names_in(elsewhere.path()), [""; 0]);
    let store = external_anywhere().open(&adopted.path).unwrap();
    let copied = copy(&store, &path);
    assert_eq!((copied.tensor_count, copied.copied_bytes, copied.shared_bytes), (2, 0, 0));
    let there = external_anywhere().open(&path).unwrap();
    assert_copy(&there, &store.snapshot());
    let file = there.snapshot().storages().next().unwrap().unwrap().file;
    assert_eq!(fs::canonicalize(file).unwrap(), fs::canonicalize(&adopted.file).unwrap());
    crate::external::write_model(&adopted.file);
    let refused = store.snapshot().copy_to(elsewhere.path().join("late.smap"), None, |_| ());
    assert_refused(refused, ErrorKind::ExternalChanged, &["\"bias\"", "adopted"]);
}
