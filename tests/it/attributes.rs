//! Attributes of the store, of tensors, and of prefixes of their names.

use std::collections::BTreeMap;
use std::fs;

use stridemap::{ErrorKind, OnExisting, Result, Snapshot, Store, StoreOptions, Transaction};
use stridemap_interop::{ForeignFile, adopt, import, safetensors};

use crate::harness::assert_refused;
use crate::support::temporary;

/// Creates a store with a scalar for each name, and with attributes: scope, key and value.
fn store_of(dir: &tempfile::TempDir, names: &[&str], attributes: &[(&str, &str, &str)]) -> Store {
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let fill = |txn: &mut Transaction<'_>| -> Result<()> {
        names.iter().try_for_each(|name| txn.save(name, &1i32))?;
        attributes.iter().try_for_each(|(scope, key, value)| txn.set_attribute(scope, key, value))
    };
    store.write(fill).unwrap();
    store
}

/// Returns all attributes as `scope:key=value`.
fn all(snapshot: &Snapshot) -> Vec<String> {
    let line = |((scope, key), value): (&(String, String), &String)| format!("{scope}:{key}={value}");
    snapshot.all_attributes().iter().map(line).collect()
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn scopes_of_attributes_are_separate_in_stores_transactions_and_snapshots() {
    let dir = temporary();
    let store = store_of(&dir, &["a", "a.b"], &[("a", "k", "1"), ("a.", "k", "2"), ("a.b", "k", "3")]);
    store.write(|txn| txn.set_attribute("", "k", "0")).unwrap();
    store.write(|txn| txn.set_attribute("no tensor", "k", "4")).unwrap();
    store.write(|txn| txn.set_attribute("", "l", "0")).unwrap();
    let (snapshot, mut txn) = (store.snapshot(), store.begin().unwrap());
    let expected = [("a", "1"), ("a.", "2"), ("a.b", "3"), ("no tensor", "4")];
    for (scope, value) in expected {
        let of = texts(&[("k", value)]);
        assert_eq!(store.attributes(scope), of);
        assert_eq!((snapshot.attributes(scope), txn.attributes(scope)), (of.clone(), of));
    }
    let own = texts(&[("k", "0"), ("l", "0")]);
    assert_eq!(
        (store.attributes(""), snapshot.attributes(""), txn.attributes("")),
        (own.clone(), own.clone(), own)
    );
    assert_eq!(all(&snapshot), [":k=0", ":l=0", "a:k=1", "a.:k=2", "a.b:k=3", "no tensor:k=4"]);
    assert!(store.attributes("other").is_empty());

    txn.set_attribute("a", "k", "5").unwrap();
    txn.remove_attribute("a.b", "k").unwrap();
    txn.remove_attribute("a.b", "never set").unwrap();
    txn.remove_attribute("", "l").unwrap();
    assert_eq!(txn.attributes("a"), texts(&[("k", "5")]));
    assert_eq!(all(&store.snapshot()).len(), 6, "a transaction was visible before its commit");
    txn.commit().unwrap();
    store.write(|txn| txn.remove_attribute("no tensor", "k")).unwrap();
    let expected = [":k=0", "a:k=5", "a.:k=2"];
    assert_eq!(all(&store.snapshot()), expected);
    assert_eq!(all(&Store::open(store.path()).unwrap().snapshot()), expected);
    assert_eq!(all(&snapshot).len(), 6, "a snapshot changed");
}

#[test]
fn attributes_are_kept_removed_moved_and_copied_with_their_tensor() {
    let dir = temporary();
    let store = store_of(&dir, &["x"], &[("", "k", "0"), ("x", "unit", "m"), ("x.", "unit", "ft")]);
    store.save("x", &2i32).unwrap();
    assert_eq!(store.attributes("x"), texts(&[("unit", "m")]));
    store.write(|txn| txn.copy("x", "y")).unwrap();
    assert_eq!(all(&store.snapshot()), [":k=0", "x:unit=m", "x.:unit=ft", "y:unit=m"]);
    store.rename("x", "z").unwrap();
    assert_eq!(all(&store.snapshot()), [":k=0", "x.:unit=ft", "y:unit=m", "z:unit=m"]);
    store.remove("y").unwrap();
    assert_eq!(all(&store.snapshot()), [":k=0", "x.:unit=ft", "z:unit=m"]);
    store.write(|txn| txn.rename("z", "z")).unwrap();
    store.compact(false, |_| ()).unwrap();
    assert_eq!(all(&store.snapshot()), [":k=0", "x.:unit=ft", "z:unit=m"]);
}

#[test]
fn changes_of_one_transaction_apply_in_order() {
    let dir = temporary();
    let store = store_of(&dir, &["a"], &[("a", "k", "old")]);
    store
        .write(|txn| {
            txn.rename("a", "b")?;
            txn.set_attribute("a", "k", "new")?;
            txn.copy("b", "c")?;
            txn.remove("b")?;
            txn.set_attribute("b", "l", "after")
        })
        .unwrap();
    assert_eq!(all(&store.snapshot()), ["a:k=new", "b:l=after", "c:k=old"]);
}

#[test]
fn replaced_name_keeps_only_the_attributes_with_other_keys() {
    let dir = temporary();
    let attributes = [("a", "k", "a"), ("b", "k", "b"), ("b", "l", "b"), ("c", "k", "c")];
    let store = store_of(&dir, &["a", "b"], &attributes);
    store
        .write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.rename("a", "b")?;
            txn.copy("b", "c")
        })
        .unwrap();
    assert_eq!(all(&store.snapshot()), ["b:k=a", "b:l=b", "c:k=a", "c:l=b"]);
}

#[test]
fn commits_of_two_handles_merge_by_scope_and_key() {
    let dir = temporary();
    let attributes = [("x", "both", "old"), ("x", "gone", "old"), ("y", "k", "old")];
    let store = store_of(&dir, &["x", "y"], &attributes);
    let other = Store::open(store.path()).unwrap();
    let mut late = store.begin().unwrap();
    late.set_attribute("x", "both", "late").unwrap();
    late.set_attribute("y", "late", "late").unwrap();
    late.remove_attribute("x", "gone").unwrap();
    late.rename("y", "z").unwrap();
    other
        .write(|txn| {
            txn.set_attribute("x", "both", "early")?;
            txn.set_attribute("x", "early", "early")?;
            txn.set_attribute("x.", "both", "early")?;
            // The late transaction renames this scope, with all its attributes at that time.
            txn.set_attribute("y", "k", "early")
        })
        .unwrap();
    late.commit().unwrap();
    let expected = ["x:both=late", "x:early=early", "x.:both=early", "z:k=early", "z:late=late"];
    assert_eq!(all(&store.snapshot()), expected);
    other.refresh().unwrap();
    assert_eq!(all(&other.snapshot()), expected);
}

#[test]
fn scopes_keys_and_values_together_are_at_most_a_mebibyte() {
    let dir = temporary();
    let store = store_of(&dir, &["x"], &[]);
    let mut txn = store.begin().unwrap();
    for (scope, key) in [("s\0", "k"), ("s", ""), (&*"s".repeat(4097), "k")] {
        let refused = txn.set_attribute(scope, key, "v");
        assert_refused(refused, ErrorKind::InvalidArgument, &["set_attribute", "F-4"]);
    }
    drop(txn);
    let (scope, limit) = ("s".repeat(4096), 1 << 20);
    store.write(|txn| txn.set_attribute(&scope, "k", &"v".repeat(limit - 4113))).unwrap();
    let past = store.write(|txn| txn.set_attribute("x", "", "v"));
    assert_refused(past, ErrorKind::InvalidArgument, &["F-4"]);
    let past = store.write(|txn| txn.set_attribute("x", "k", ""));
    assert_refused(past, ErrorKind::LimitExceeded, &["F-13", "1 MiB"]);
    assert_eq!(store.snapshot().all_attributes().len(), 1);
    // A copied name also counts towards the limit.
    store.write(|txn| txn.set_attribute(&scope, "k", &"v".repeat(limit - 4131))).unwrap();
    store.write(|txn| txn.set_attribute("x", "k", "")).unwrap();
    assert_refused(store.write(|txn| txn.copy("x", "y")), ErrorKind::LimitExceeded, &["F-13"]);
    store.rename("x", "y").unwrap();
    assert_eq!(store.attributes("y"), texts(&[("k", "")]));
}

#[test]
fn transaction_never_holds_more_attributes_than_a_manifest() {
    let dir = temporary();
    let half = "v".repeat((1 << 19) - 20);
    let store = store_of(&dir, &["a.x", "b"], &[("a.x", "k", &half), ("c.", "k", &half)]);
    let mut txn = store.begin().unwrap();
    assert_refused(txn.copy("a.x", "d"), ErrorKind::LimitExceeded, &["F-13"]);
    assert_refused(txn.rename("a.x", "longer"), ErrorKind::LimitExceeded, &["F-13"]);
    assert_refused(txn.set_attribute("b", "k", ""), ErrorKind::LimitExceeded, &["F-13"]);
    assert_eq!(txn.names().unwrap(), ["a.x", "b"]);
    assert_eq!((txn.attributes("a.x"), txn.attributes("longer").len()), (texts(&[("k", &half)]), 0));
    txn.rename("a.x", "new").unwrap();
    txn.commit().unwrap();
    assert_eq!(store.attributes("new"), texts(&[("k", &half)]));
}

#[test]
fn tensors_are_copied_out_of_a_store_with_a_damaged_leaf_and_attributes() {
    let dir = temporary();
    let names: Vec<String> = (100..400).map(|i| format!("t{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let store = store_of(&dir, &names, &[("", "license", "MIT"), ("t", "k", "v")]);
    let table = fs::read_dir(store.path().join("generations")).unwrap().map(|entry| entry.unwrap().path());
    let table = table.into_iter().find(|path| path.extension().is_some_and(|it| it == "tab")).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let at = bytes.windows(4).position(|window| window == b"t100").unwrap();
    bytes[at + 5] ^= 1;
    fs::write(&table, bytes).unwrap();
    let store = Store::open(store.path()).unwrap();
    assert_refused(store.load("t100"), ErrorKind::Corrupt, &["F-21"]);
    let copy = dir.path().join("copy.smap");
    store.snapshot().copy_to(&copy, Some(&["t399"]), |_| ()).unwrap();
    let copy = Store::open(&copy).unwrap();
    assert_eq!(
        (copy.names().unwrap(), copy.attributes("")),
        (vec!["t399".to_owned()], texts(&[("license", "MIT")]))
    );
    assert_eq!(copy.attributes("t"), texts(&[("k", "v")]));
}

#[test]
fn copies_keep_the_attributes_of_the_tensors_they_keep() {
    let dir = temporary();
    let attributes = [
        ("", "k", "store"),
        ("m.", "k", "prefix"),
        ("m.a", "k", "kept"),
        ("m.a2", "k", "left out"),
        ("m.b", "k", "left out"),
        ("n.", "k", "left out"),
        ("no tensor", "k", "left out"),
    ];
    let store = store_of(&dir, &["m.a", "m.a2", "m.a22", "m.b", "n.c"], &attributes);
    let snapshot = store.snapshot();
    let copied = |name: &str, names: Option<&[&str]>| {
        let path = dir.path().join(name);
        match names {
            Some(names) => snapshot.copy_to(&path, Some(names), |_| ()).unwrap(),
            None => snapshot.copy_to(&path, None, |_| ()).unwrap(),
        };
        all(&Store::open(&path).unwrap().snapshot())
    };
    assert_eq!(copied("whole.smap", None), all(&snapshot));
    assert_eq!(copied("some.smap", Some(&["m.a", "m.a22"])), [":k=store", "m.:k=prefix", "m.a:k=kept"]);
    assert_eq!(copied("none.smap", Some(&[])), [":k=store"]);
}

#[test]
fn salvage_keeps_attributes() {
    let dir = temporary();
    let attributes = [("", "k", "v"), ("x", "unit", "m"), ("y", "unit", "ft"), ("y.", "k", "v")];
    let store = store_of(&dir, &["x", "y"], &attributes);
    let (path, before) = (store.path().to_path_buf(), all(&store.snapshot()));
    let (storage, y) = (store.snapshot().storages().next().unwrap().unwrap(), store.load("y").unwrap());
    let mut bytes = fs::read(&storage.file).unwrap();
    bytes[y.storage_offset() * 4] ^= 1;
    drop((store, y));
    fs::write(&storage.file, bytes).unwrap();
    let new = path.with_extension("new");
    let done = StoreOptions::new().salvage(&path, Some(&new), |_| ()).unwrap();
    assert!(!done.losses.is_empty(), "nothing was lost");
    assert_eq!(all(&Store::open(&new).unwrap().snapshot()), before);
}

#[test]
fn safetensors_metadata_round_trips_through_the_scope_of_the_prefix() {
    let dir = temporary();
    let (file, back) = (dir.path().join("m.safetensors"), dir.path().join("back.safetensors"));
    let metadata = texts(&[("format", "pt"), ("license", "MIT")]);
    let weight = stridemap::Tensor::from_vec(vec![1f32, 2.], &[2]).unwrap();
    let tensors = [("weight".to_owned(), weight)];
    safetensors::Export::new().metadata(&metadata).write(&file, &tensors, |_| ()).unwrap();
    let options = StoreOptions::new().external(stridemap::ExternalFiles::Beside);
    let store = options.create(dir.path().join("x.smap")).unwrap();
    import(&store, &file, "encoder.").unwrap();
    adopt(&store, &file, "in_place.").unwrap();
    assert!(store.attributes("").is_empty());
    for prefix in ["encoder.", "in_place."] {
        assert_eq!(store.attributes(prefix), metadata, "{prefix}");
    }
    let snapshot = store.snapshot();
    let loaded = snapshot.iter_loaded("encoder.").unwrap().map(Result::unwrap);
    let tensors: Vec<_> =
        loaded.map(|(name, tensor)| (name["encoder.".len()..].to_owned(), tensor)).collect();
    let attributes = store.attributes("encoder.");
    safetensors::Export::new().metadata(&attributes).write(&back, &tensors, |_| ()).unwrap();
    assert_eq!(ForeignFile::open(&back).unwrap().attributes(), &metadata);
    assert_eq!(fs::read(&back).unwrap(), fs::read(&file).unwrap());
    import(&store, &file, "").unwrap();
    assert_eq!(store.attributes(""), metadata);
}
