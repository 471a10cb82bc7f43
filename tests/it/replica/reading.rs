//! A store elsewhere gives the same answers as the same store in a directory.

use stridemap::{ErrorKind, Snapshot, Store, Tensor, ix};

use super::{LOCATION, bytes, elsewhere, fill, fill_tables, open, open_at};
use crate::files::{DirFiles, MemoryFiles};
use crate::harness::{assert_refused, fast, filled, new_fast_store};
use crate::support::temporary;

#[track_caller]
fn assert_same(found: &Snapshot, expected: &Snapshot) {
    assert_eq!(found.generation(), expected.generation());
    assert_eq!((found.time(), found.message()), (expected.time(), expected.message()));
    let infos = |snapshot: &Snapshot| {
        let tensors = snapshot.iter_tensors("").unwrap().map(Result::unwrap);
        tensors.map(|info| (info.name, info.storage_id, info.header)).collect::<Vec<_>>()
    };
    assert_eq!(infos(found), infos(expected));
    assert_eq!(found.names().unwrap(), expected.names().unwrap());
    for name in expected.names().unwrap() {
        let [here, there] = [expected, found].map(|snapshot| snapshot.load(&name).unwrap());
        assert_eq!((there.size(), there.stride()), (here.size(), here.stride()), "{name}");
        assert!(bytes(&there) == bytes(&here), "{name}");
        assert_eq!(found.attributes(&name), expected.attributes(&name));
    }
    assert_eq!(found.attributes(""), expected.attributes(""));
    let storages = |snapshot: &Snapshot| {
        let storages = snapshot.storages().map(Result::unwrap);
        storages.map(|info| (info.id, info.kind, info.size_bytes, info.tensor_count)).collect::<Vec<_>>()
    };
    assert_eq!(storages(found), storages(expected));
}

#[track_caller]
fn assert_same_store(found: &Store, expected: &Store) {
    assert_eq!(found.uuid(), expected.uuid());
    assert_same(&found.snapshot(), &expected.snapshot());
    assert_eq!(found.tags().unwrap(), expected.tags().unwrap());
    assert_eq!(found.log().unwrap(), expected.log().unwrap());
    for tag in expected.tags().unwrap() {
        assert_same(&found.at(&*tag.name).unwrap(), &expected.at(&*tag.name).unwrap());
        let tags = [&*tag.name];
        assert_eq!(found.freed_without(&tags).unwrap(), expected.freed_without(&tags).unwrap());
    }
}

#[test]
fn every_answer_of_a_reader_is_that_of_the_local_store() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let earlier = store.at("v1").unwrap();
    for there in elsewhere(&path) {
        assert_eq!(there.path().to_str(), Some(LOCATION));
        assert_same_store(&there, &store);
        assert!(!there.refresh().unwrap());
        let changes = there.snapshot().changes_since(&there.at("v1").unwrap()).unwrap();
        assert_eq!(changes, store.snapshot().changes_since(&earlier).unwrap());
        assert_eq!(
            there.snapshot().overlapping("transposed").unwrap(),
            store.snapshot().overlapping("transposed").unwrap()
        );
        let verified = there.verify(|_| ()).unwrap();
        assert!(verified.is_whole() && verified.orphans.is_empty(), "{verified:#?}");
        assert_eq!(verified.read_bytes, store.verify(|_| ()).unwrap().read_bytes);
        let verified = there.verify_tensors(&["matrix"], |_| ()).unwrap();
        assert!(verified.is_whole() && verified.read_bytes >= 600 * 700 * 8, "{verified:#?}");
        assert_refused(there.load("matirx"), ErrorKind::NameNotFound, &["did you mean \"matrix\"?"]);
        let at_v1 = open_at(DirFiles(path.clone()), "v1");
        assert_same(&at_v1.snapshot(), &earlier);
        assert_eq!(at_v1.tags().unwrap(), store.tags().unwrap());
        assert!(at_v1.verify(|_| ()).unwrap().is_whole());
    }
}

#[test]
fn elements_are_the_same_however_they_are_read() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    for there in elsewhere(&path) {
        let [here, far] = [&store, &there].map(|store| store.load("matrix").unwrap());
        let views = [
            ix![1..599;7, 3..],
            ix![..;-1, 4],
            ix![300, ..;5],
            ix![.., 699..],
            ix![17, 18],
            ix![5..5, ..],
            ix![.., ..],
        ];
        for view in views {
            let [here, far] = [&here, &far].map(|matrix| matrix.index(view).unwrap());
            far.prefetch();
            assert_eq!(far.read::<i64>().unwrap(), here.read::<i64>().unwrap());
        }
        let rows = Tensor::from_vec(vec![599i64, 0, 3, 3, 250], &[5]).unwrap();
        let [here_rows, far_rows] =
            [&here, &far].map(|matrix| matrix.index_select(0, &rows).unwrap().read::<i64>().unwrap());
        assert_eq!(far_rows, here_rows);
        let [here_stats, far_stats] =
            [&here, &far].map(|matrix| format!("{:?}", matrix.statistics(|_| ()).unwrap()));
        assert_eq!(far_stats, here_stats);
        assert_eq!(far.to_string(), here.to_string());
        assert_refused(far.as_slice::<i64>(), ErrorKind::NeedsCopy, &["not mapped"]);
        let guard = there.load("mutable").unwrap();
        let guard = guard.lock_shared().unwrap();
        assert_eq!(guard.read::<i64>().unwrap(), store.load("mutable").unwrap().read::<i64>().unwrap());
        // To a new storage of a store in a file system, element by element.
        let (_dir, _, other) = new_fast_store();
        other.save("matrix", &far.t().unwrap()).unwrap();
        assert!(bytes(&other.load("matrix").unwrap()) == bytes(&here.t().unwrap()));
    }
}

#[test]
fn tables_and_their_history_are_read_elsewhere() {
    let (_dir, path, store) = new_fast_store();
    fill_tables(&store);
    for there in elsewhere(&path) {
        assert_eq!(there.names().unwrap(), store.names().unwrap());
        assert_eq!(there.log().unwrap(), store.log().unwrap());
        for tag in ["part0", "tag0", "tag150"] {
            let [here, far] = [&store, &there].map(|store| store.at(tag).unwrap());
            assert_eq!(far.names().unwrap(), here.names().unwrap(), "{tag}");
        }
        assert_eq!(there.load("many.01234.1").unwrap().read::<i64>().unwrap(), [1234, 1]);
        assert!(there.verify(|_| ()).unwrap().is_whole());
    }
}

#[test]
fn copies_of_a_store_elsewhere_are_in_the_file_system() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let dir = temporary();
    for (number, there) in elsewhere(&path).into_iter().enumerate() {
        let target = |name: &str| dir.path().join(format!("{name}{number}.smap"));
        let copied = there.snapshot().copy_to(target("whole"), None, |_| ()).unwrap();
        let expected = store.snapshot().copy_to(target("expected"), None, |_| ()).unwrap();
        assert_eq!(copied.tensor_count, expected.tensor_count);
        let copy = Store::open(target("whole")).unwrap();
        assert!(copy.verify(|_| ()).unwrap().is_whole());
        for name in store.names().unwrap() {
            let [here, copied] = [&store, &copy].map(|store| store.load(&name).unwrap());
            assert!(bytes(&copied) == bytes(&here), "{name}");
        }
        assert_eq!(copy.attributes("matrix"), store.attributes("matrix"));
        let copied = there.at("v1").unwrap();
        copied.copy_to(target("part"), Some(&["column", "small"]), |_| ()).unwrap();
        let part = Store::open(target("part")).unwrap();
        assert_eq!(part.names().unwrap(), ["column", "small"]);
        assert_eq!(part.load("small").unwrap().read::<f32>().unwrap(), [1.5; 3]);
        there.copy_with_tags(target("tags"), |_| ()).unwrap();
        assert_eq!(Store::open(target("tags")).unwrap().log().unwrap(), store.log().unwrap());
    }
}

#[test]
fn two_generations_of_a_store_elsewhere_are_read_in_one_process() {
    let (_dir, path, store) = new_fast_store();
    fill_tables(&store);
    store.save("x", &filled(10, 1i64)).unwrap();
    let first = open(MemoryFiles::of(&path));
    assert_eq!(first.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
    // A store that was restored from a backup writes other bytes under the same names.
    let mut changed = MemoryFiles::of(&path);
    let id = store.load("x").unwrap().storage_id().unwrap();
    let storage = changed.0.get_mut(&format!("storages/{id:016x}.bin")).unwrap();
    *storage = vec![2; 80].into();
    let second = open(changed);
    assert_eq!(second.load("x").unwrap().to_bytes().unwrap(), [2; 80]);
    assert_eq!(first.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
    assert!(!first.load("x").unwrap().overlaps(&second.load("x").unwrap()));
    store.save("x", &filled(10, 3i64)).unwrap();
    let third = open(MemoryFiles::of(&path));
    assert_eq!(third.load("x").unwrap().read::<i64>().unwrap(), [3; 10]);
    assert_eq!((first.generation() + 1, third.generation()), (third.generation(), store.generation()));
    assert!(first.verify(|_| ()).unwrap().is_whole() && !second.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn a_local_store_restores_what_is_elsewhere_only_if_it_has_the_generation() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let there = open(MemoryFiles::of(&path));
    let far = there.load("small").unwrap();
    // This store has the same sealed storage, so a view needs no copy. Elements that change in place may be others.
    store.save_view("view", &far).unwrap();
    assert_eq!(store.load("view").unwrap().storage_id(), store.load("small").unwrap().storage_id());
    let refused = store.save_view("mutable view", &there.load("mutable").unwrap());
    assert_refused(refused, ErrorKind::NeedsCopy, &["a copy of this store"]);
    store.save("small", &there.load("mutable").unwrap()).unwrap();
    store.save("small", &filled(1, 0f32)).unwrap();
    store.restore(&there.at("v1").unwrap()).unwrap();
    assert_eq!(store.load("small").unwrap().read::<f32>().unwrap(), [1.5; 3]);
    let copy = fast().create(path.with_file_name("other.smap")).unwrap();
    assert!(copy.restore(&there.at("v1").unwrap()).is_err());
}
