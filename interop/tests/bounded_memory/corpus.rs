//! The memory for opening each hostile file of the repository, and each bomb.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use serde_json::Value;
use stridemap::{Durability, ExternalFiles, Store, StoreOptions};
use stridemap_format::{PAGE_BYTES, TableRef, TreeRef};
use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::bombs::wire::GENERATION;
use crate::{ALONE, MEMORY, bombs};

/// The most memory for opening and verifying any of them.
const ALLOWED_BYTES: u64 = 64 << 20;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the paths in a folder of the repository.
fn in_folder(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(ROOT).join(folder)).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Runs `act`, and returns the peak of its memory.
fn peak_of(act: impl FnOnce()) -> u64 {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage() as u64;
    act();
    (MEMORY.peak_usage() as u64).saturating_sub(before)
}

/// Opens a store and reads all of its metadata, as far as it can be read. Elements of malformed stores are not read
/// whole: a tensor may have any claimed size, and a caller that reads all of it has asked for that memory.
fn read_whole_store(path: &Path) {
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    for is_mapped in [false, true] {
        // SAFETY: no process writes the store while it is mapped.
        let store = if is_mapped { unsafe { options.open_mapped(path) } } else { options.open(path) };
        let Ok(store) = store else { continue };
        let names = store.names();
        for name in names.iter().flatten().take(100) {
            let _ = store.load(name).map(|tensor| tensor.to_text(&stridemap::PrintOptions::default()));
        }
        store.snapshot().storages().take(100).for_each(drop);
        let _ = store.log();
        for tag in store.tags().iter().flatten().take(10) {
            let _ = store.at(&tag.name[..]).and_then(|snapshot| snapshot.names());
        }
        let _ = store.verify(|_| ());
        let _ = store.disk_usage();
    }
}

fn read_whole_file(path: &Path, store: &Store) {
    for is_skipping in [false, true] {
        let Ok(file) = ForeignOptions::new().skip_unreadable(is_skipping).open(path) else { continue };
        if let Ok(mut txn) = store.begin() {
            let _ = file.import_into(&mut txn, "", |_| ());
        }
    }
}

/// The header of a model of very many tensors is kept once, in a form that is a few times as long as its text.
#[test]
fn header_of_many_tensors_takes_little_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let count = 100_000;
    let tensor = |i: usize| {
        format!(r#""model.layers.{i}.weight":{{"dtype":"U8","shape":[1,1],"data_offsets":[{i},{}]}}"#, i + 1)
    };
    let header = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&path, [&length, header.as_bytes(), &vec![0; count]].concat()).unwrap();
    let allowed = 5 * header.len() as u64;
    drop(header);
    let mut opened = None;
    let peak = peak_of(|| opened = Some(ForeignFile::open(&path).unwrap()));
    assert!(peak <= allowed, "{peak} bytes, but {allowed} are allowed");
    let file = opened.unwrap();
    // Nothing is copied to list or to find the tensors.
    let peak = peak_of(|| {
        assert_eq!(file.tensors().count(), count);
        assert_eq!(file.tensors_with("model.layers.99999").count(), 1);
        assert_eq!(file.load("model.layers.777.weight").unwrap().size(), [1, 1]);
    });
    assert!(peak <= 32 * count as u64, "{peak} bytes");
}

/// Returns the reference to a bad table, as the vectors state it: for each tree of its kind, a leaf of one entry, if they
/// state none.
fn table_ref(stated: Option<&Value>, is_history: bool) -> TableRef {
    let Some(stated) = stated else {
        let trees = if is_history { 2..5 } else { 0..2 };
        let pages = vec![0; PAGE_BYTES * trees.len()];
        let leaves: Vec<_> = (0..).zip(trees.clone()).map(|(page, _)| (page, 1)).collect();
        return bombs::wire::reference(&pages, trees.start, &leaves);
    };
    // A tree that is not listed has no entries.
    let number = |pointer: &str| stated.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let trees = ["storages", "tensors", "tags", "kept", "garbage"].map(|tree| TreeRef {
        root_page: number(&format!("/{tree}/root_page")),
        entry_count: number(&format!("/{tree}/entry_count")),
    });
    TableRef { generation: number("/generation"), page_count: number("/page_count"), trees }
}

/// Creates a store for each vector of the format, and returns their names and directories.
fn vectors(dir: &Path) -> Vec<(String, PathBuf)> {
    const FOLDER: &str = "../format/vectors/bad";
    let references = fs::read(Path::new(ROOT).join(FOLDER).join("tables.json")).unwrap();
    let references: Value = serde_json::from_slice(&references).unwrap();
    let marker = |path: &Path, bytes: Vec<u8>| {
        bombs::store_of(path, &bombs::wire::manifest(&[]), None);
        fs::write(path.join("FORMAT"), bytes).unwrap();
    };
    let in_store = |file: PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let (path, bytes) = (dir.join(&name), fs::read(&file).unwrap());
        match name.rsplit('.').next().unwrap() {
            "format" => marker(&path, bytes),
            "man" => {
                bombs::store_of(&path, &bytes, None);
                if name == "F-18-generation-0.man" {
                    let [from, to] = [GENERATION, 0].map(|it| path.join(format!("meta/{it:016x}.man")));
                    fs::rename(from, to).unwrap();
                }
            }
            "tab" => {
                let table = table_ref(references.get(&name), false);
                let manifest = bombs::wire::manifest_on(Some(&table), None);
                bombs::store_of(&path, &manifest, Some((bombs::TABLE, &bytes)));
            }
            "his" => {
                let history = table_ref(references.get(&name), true);
                let manifest = bombs::wire::manifest_on(None, Some(&history));
                bombs::store_of(&path, &manifest, Some((bombs::HISTORY, &bytes)));
            }
            other => panic!("a vector ending in {other}"),
        }
        (name, path)
    };
    let is_vector = |file: &PathBuf| file.extension().is_some_and(|extension| extension != "json");
    in_folder(FOLDER).into_iter().filter(is_vector).map(in_store).collect()
}

#[test]
fn damage_all_over_a_table_takes_little_memory_to_report() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    for (name, path) in bombs::tables(dir.path()) {
        let taken = peak_of(|| {
            read_whole_store(&path);
            assert!(!StoreOptions::new().salvage(&path, None, |_| ()).unwrap().losses.is_empty());
        });
        println!("{name}: {:.2} MiB", taken as f64 / f64::from(1 << 20));
        assert!(taken <= ALLOWED_BYTES / 16, "{name}: {taken} bytes");
        let findings = StoreOptions::new().verify(&path, |_| ()).unwrap().findings;
        assert!((1..=200).contains(&findings.len()), "{name}: {} findings", findings.len());
    }
}

/// Returns the number of the broken rule that ends a listing of a store's storages and tensors.
fn rule_named_by_a_listing(path: &Path) -> Option<u8> {
    let list = || {
        let store = Store::open(path)?;
        store.snapshot().storages().try_for_each(|storage| storage.map(drop))?;
        store.names().map(drop)
    };
    list().err().map(|error: stridemap::Error| error.rule().unwrap().number())
}

/// Returns the numbers of the broken rules that lookups of some names find.
fn rules_named_by_lookups(path: &Path) -> Vec<u8> {
    let lookup = |name| Store::open(path).and_then(|store| store.load(name)).err()?.rule();
    ["a", "e", "t", "u"].into_iter().filter_map(lookup).map(|rule| rule.number()).collect()
}

/// A reader finds violations in the order of chapter 7 of `SPEC.md`. A lookup reads only some of the entries.
#[test]
fn verify_and_a_listing_name_the_rule_of_each_bad_table_first() {
    /// What a listing does not check: the extents of tensors, the order of leaves in the file, whether each node is
    /// reached, and the counts.
    const ONLY_VERIFIED: [&str; 4] = ["F-8-", "F-23-", "F-24-leaves-not-in-the-order", "F-28-"];
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let tables = vectors(dir.path()).into_iter().filter(|(name, _)| name.ends_with(".tab"));
    let (mut count, mut failures) = (0, Vec::new());
    for (name, path) in tables {
        let rule: u8 = name.split('-').nth(1).unwrap().parse().unwrap();
        let findings = StoreOptions::new().verify(&path, |_| ()).unwrap().findings;
        if findings[0].rule.number() != rule {
            failures.push(format!("{name}: {findings:#?}"));
        }
        let may_be_listed = ONLY_VERIFIED.iter().any(|start| name.starts_with(start));
        let named = rule_named_by_a_listing(&path);
        if named != Some(rule) && !(named.is_none() && may_be_listed) {
            failures.push(format!("{name}: a listing names {named:?}"));
        }
        // A storage whose id is wrong is not found, which breaks F-27.
        let is_right = |named: &u8| *named == rule || (*named, rule) == (27, 12);
        let named = rules_named_by_lookups(&path);
        if !named.iter().all(is_right) {
            failures.push(format!("{name}: lookups name {named:?}"));
        }
        let lines = findings.iter().map(ToString::to_string);
        assert!(lines.into_iter().all(|line| !line.contains("bincode")), "{name}: {findings:#?}");
        let new = dir.path().join("new");
        let _ = StoreOptions::new().salvage(&path, Some(&new), |_| ()).unwrap();
        assert_eq!(StoreOptions::new().verify(&new, |_| ()).unwrap().findings, [], "{name}");
        fs::remove_dir_all(&new).unwrap();
        count += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 100, "{count} tables");
}

#[test]
fn verify_names_the_rule_of_each_bad_history_first() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let histories = vectors(dir.path()).into_iter().filter(|(name, _)| name.ends_with(".his"));
    let (mut count, mut failures) = (0, Vec::new());
    for (name, path) in histories {
        let rule: u8 = name.split('-').nth(1).unwrap().parse().unwrap();
        match StoreOptions::new().verify(&path, |_| ()) {
            Ok(verified) if verified.findings.first().map(|first| first.rule.number()) == Some(rule) => {}
            other => failures.push(format!("{name}: {other:#?}")),
        }
        count += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 50, "{count} histories");
}

#[test]
fn no_hostile_file_takes_much_memory_to_open() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let target =
        StoreOptions::new().durability(Durability::Process).create(dir.path().join("target")).unwrap();
    let stores = in_folder("../tests/data/stores/damaged")
        .into_iter()
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path.join("store")));
    let bombs = bombs::stores(dir.path()).into_iter().map(|(name, path)| (name.to_owned(), path));
    let named = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), path);
    let is_hostile = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("hostile") || name.starts_with("refused")
    };
    let pickles =
        ["tests/data/pt", "tests/data/pt_more"].into_iter().flat_map(in_folder).filter(is_hostile).map(named);
    let foreign = bombs::files(dir.path()).into_iter().map(|(name, path)| (name.to_owned(), path));
    let kinds: [(&str, Vec<(String, PathBuf)>); 5] = [
        ("damaged stores", stores.collect()),
        ("bad vectors", vectors(dir.path())),
        ("stores that claim much", bombs.collect()),
        ("hostile checkpoints", pickles.collect()),
        ("files that claim much", foreign.collect()),
    ];
    for (kind, paths) in kinds {
        let mut most = (0, String::new());
        let count = paths.len();
        for (name, path) in paths {
            let taken = peak_of(|| {
                if path.is_dir() { read_whole_store(&path) } else { read_whole_file(&path, &target) }
            });
            assert!(taken <= ALLOWED_BYTES, "{name}: {taken} bytes");
            most = most.max((taken, name));
        }
        let (taken, name) = most;
        println!("{kind}: {count}, at most {:.2} MiB, for {name}", taken as f64 / f64::from(1 << 20));
        assert!(count >= 5, "{kind}: {count}");
    }
}
