//! A small store with work for every command, and the checks of a store after a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use stridemap::{DType, Result, Store, Tensor};

use crate::run::{STARTING, output, stridemap, succeed};

/// The size and the elements of each tensor, by name.
pub(crate) type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// Full chunks have their digests in a separate file.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn bytes(n: usize, first: usize) -> Tensor {
    Tensor::from_vec((first..first + n).map(|i| (i % 251) as u8).collect(), &[n]).unwrap()
}

/// Fills a directory with the store `s.smap`, and with files to import and to append.
///
/// The store has a tensor whose next append crosses the end of its first chunk, a storage that a compaction shrinks,
/// and the leftovers of killed writers: an older generation with files that only it needs, unfinished files, and
/// storages without a commit. Importing the file of many names makes a table due.
pub(crate) fn make(dir: &Path) {
    let many = Store::create(dir.join("many.smap")).unwrap();
    let mut txn = many.begin().unwrap();
    (0..70).for_each(|i| txn.save(&format!("many.{i:02}"), &bytes(3, i)).unwrap());
    txn.save("large", &bytes(CHUNK_BYTES + 1000, 3)).unwrap();
    txn.commit().unwrap();
    succeed(dir, &["export", "many.smap", "many.safetensors"]);
    many.save("rows", &bytes(100, 7)).unwrap();
    succeed(dir, &["export", "many.smap", "rows.npy", "rows"]);
    fs::remove_dir_all(dir.join("many.smap")).unwrap();

    let path = dir.join("made.smap");
    let store = Store::create(&path).unwrap();
    store.save("kept", &bytes(300, 0)).unwrap();
    store.create_growable("log", DType::U8, &[0], 0).unwrap();
    store.append("log", &bytes(CHUNK_BYTES - 10, 1)).unwrap();
    store.save("whole", &bytes(40_000, 5)).unwrap();
    store.save_view("part", &store.load("whole").unwrap().narrow(0, 500, 1000).unwrap()).unwrap();
    store.remove("whole").unwrap();
    store.save("gone", &bytes(200, 9)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.remove("gone").unwrap();
    let copied =
        output(std::process::Command::new("cp").args(["-r", "made.smap", "s.smap"]).current_dir(dir));
    assert!(copied.status.success(), "{copied:?}");
    drop(reader);
    fs::remove_dir_all(&path).unwrap();
    // An import waits until the time of a new file's change is past.
    for imported in ["many.safetensors", "rows.npy"] {
        let file = fs::File::options().write(true).open(dir.join(imported)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
    }
    for orphan in ["storages/0000000000000005.bin", "storages/.stage-dead", "meta/.stage-dead"] {
        let orphan = dir.join("s.smap").join(orphan);
        assert!(!orphan.exists(), "{orphan:?} is no orphan");
        fs::write(orphan, [1; 50]).unwrap();
    }
}

/// Returns the content of a store, read by position.
pub(crate) fn content(path: &Path) -> Result<Content> {
    let store = Store::open(path)?;
    let snapshot = store.snapshot();
    let mut content = Content::new();
    for info in snapshot.iter_tensors("")? {
        let name = info?.name;
        let tensor = snapshot.load(&name)?;
        content.insert(name, (tensor.size().to_vec(), tensor.read::<u8>()?));
    }
    Ok(content)
}

/// Asserts that a store opens, verifies, and has one of the `allowed` contents. Returns the index of the first that
/// matches.
#[track_caller]
pub(crate) fn matching_content(path: &Path, allowed: &[&Content], what: &str) -> usize {
    let _shared = STARTING.read().unwrap();
    let found = content(path).unwrap_or_else(|e| panic!("{what}: {e}"));
    let findings =
        Store::open(path).unwrap().verify(|_| ()).unwrap_or_else(|e| panic!("{what}: {e}")).findings;
    assert_eq!(findings, [], "{what}");
    let which = allowed.iter().position(|&content| *content == found);
    which.unwrap_or_else(|| {
        let sizes = |content: &Content| {
            content.iter().map(|(name, (size, _))| format!("{name}{size:?}")).collect::<Vec<_>>()
        };
        let allowed: Vec<_> = allowed.iter().map(|content| sizes(content)).collect();
        panic!("{what}: found {:?}, and none of {allowed:?}", sizes(&found))
    })
}

/// Asserts that the next commit succeeds, and that a collection then leaves no unneeded file.
#[track_caller]
pub(crate) fn assert_usable(dir: &Path, store: &str, what: &str) {
    for args in [
        &["import", "rows.npy", store, "--prefix", "next."][..],
        &["compact", store],
        &["rm", store, "next.rows"],
        &["compact", store],
    ] {
        let output = output(&mut stridemap(dir, args));
        assert!(output.status.success(), "{what}: then {args:?}: {output:?}");
    }
    let _shared = STARTING.read().unwrap();
    assert_no_leftovers(&dir.join(store), what);
}

/// Asserts that there is no unneeded file, and no file that is too long.
#[track_caller]
pub(crate) fn assert_no_leftovers(path: &Path, what: &str) {
    let opened = Store::open(path).unwrap();
    let mut needed = BTreeSet::from(["FORMAT".to_owned(), "LOCK".to_owned()]);
    for storage in opened.snapshot().storages() {
        let storage = storage.unwrap();
        needed.insert(format!("storages/{:016x}.bin", storage.id));
        let length = fs::metadata(path.join(format!("storages/{:016x}.bin", storage.id))).unwrap().len();
        assert_eq!(length, storage.size_bytes, "{what}: storage {:016x}", storage.id);
        if storage.size_bytes >= CHUNK_BYTES as u64 {
            needed.insert(format!("storages/{:016x}.sum", storage.id));
        }
    }
    needed.insert(format!("meta/{:016x}.man", opened.generation()));
    let listed = |dir: &str| {
        let names = fs::read_dir(path.join(dir)).unwrap().map(|entry| entry.unwrap());
        let files = names.filter(|entry| !entry.path().is_dir());
        files
            .map(|entry| entry.path().strip_prefix(path).unwrap().to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let found: BTreeSet<String> = ["", "storages", "meta"].into_iter().flat_map(listed).collect();
    // A manifest refers to at most one table.
    let is_table = |name: &&String| name.ends_with(".tab");
    assert!(found.iter().filter(is_table).count() <= 1, "{what}: {found:?}");
    let found: BTreeSet<String> = found.iter().filter(|name| !is_table(name)).cloned().collect();
    assert_eq!(found, needed, "{what}: unneeded files");
}
