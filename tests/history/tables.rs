//! The tables that tags and readers need are kept.

use std::fs;
use std::path::{Path, PathBuf};

use stridemap::{Durability, OnExisting, Result, Store, StoreOptions};

fn fast() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

/// Returns the tables of the history in a store.
fn histories(store: &Store) -> Vec<PathBuf> {
    let files = fs::read_dir(store.path().join("meta")).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "his")).collect()
}

/// Makes commits with tags, so that the table of the history is written again.
fn commit_with_tags(store: &Store, prefix: &str) {
    for step in 0..120i32 {
        let saved = store.write(|txn| -> Result<()> {
            txn.on_existing(OnExisting::Replace);
            txn.save("x", &step)?;
            txn.tag(&format!("{prefix}{step}"))
        });
        saved.unwrap();
    }
}

fn new_store(dir: &Path) -> Store {
    let store = fast().create(dir.join("s.smap")).unwrap();
    commit_with_tags(&store, "a");
    store.save("untagged", &1i32).unwrap();
    assert_eq!(histories(&store).len(), 1);
    store
}

/// The released manifest is older than that of the reader, and names no history.
#[test]
fn reader_keeps_its_history_while_a_released_manifest_before_it_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    store.tag("held").unwrap();
    store.save("y", &1i32).unwrap();
    let held = fast().open(store.path()).unwrap().at("held").unwrap();
    store.untag("held").unwrap();
    let reader = fast().open(store.path()).unwrap();
    let own = histories(&store);
    commit_with_tags(&store, "b");
    assert!(
        own.iter().all(|path| path.exists()),
        "{own:?} is gone, and generation {} needs it",
        reader.generation()
    );
    drop((held, reader));
    store.save("y2", &1i32).unwrap();
    store.gc().unwrap();
    assert!(!own.iter().any(|path| path.exists()), "{own:?} is there, and nothing needs it");
}

/// The manifest of one generation is in both directories, and a second handle has listed both.
#[test]
fn reader_keeps_its_history_while_the_released_manifest_of_its_generation_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let writer = fast().open(store.path()).unwrap();
    let reader = fast().open(store.path()).unwrap();
    writer.write(|txn| txn.tag_snapshot("held", &reader.snapshot())).unwrap();
    let held = fast().open(store.path()).unwrap().at("held").unwrap();
    assert_eq!(held.generation(), reader.generation());
    writer.untag("held").unwrap();
    let own = histories(&store);
    // Each commit of the one makes the other list the manifests again.
    for step in 0..3 {
        store.save(&format!("z{step}"), &1i32).unwrap();
        writer.save(&format!("y{step}"), &1i32).unwrap();
    }
    commit_with_tags(&writer, "b");
    assert!(
        own.iter().all(|path| path.exists()),
        "{own:?} is gone, and generation {} needs it",
        reader.generation()
    );
    drop((held, reader, store));
    writer.save("end", &1i32).unwrap();
    writer.gc().unwrap();
    assert!(!own.iter().any(|path| path.exists()), "{own:?} is there, and nothing needs it");
}

/// The manifest is too long only after the table of the history was written, so the table of tensors is due then.
#[test]
fn tagged_generation_keeps_a_table_that_its_history_was_written_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = fast().create(dir.path().join("s.smap")).unwrap();
    store.save("x", &1i32).unwrap();
    let copies = |prefix: char, count: usize, name_bytes: usize, tags: usize| {
        let committed = store.write(|txn| -> Result<()> {
            for i in 0..count {
                txn.copy("x", &format!("{prefix}{i:0>width$}", width = name_bytes - 1))?;
            }
            (0..tags).try_for_each(|i| txn.tag(&format!("{prefix}{i}")))
        });
        committed.unwrap();
    };
    // With so many entries, a table is due only when the changes are too long for a manifest.
    copies('a', 2200, 8, 0);
    copies('b', 4090, 4096, 100);
    copies('c', 3000, 8, 0);
    copies('d', 3000, 8, 0);
    let findings = store.verify(|_| ()).unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(store.at("b0").unwrap().names().unwrap().len(), 1 + 2200 + 4090);
}
