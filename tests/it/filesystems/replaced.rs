//! A handle stays in the store that it opened, whatever happens to its path, and refuses files that others put into
//! it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::simulated::SimulatedDisk;
use stridemap::{
    DType, Durability, ErrorKind, ExternalFiles, Result, StorageKind, Store, StoreOptions, Tensor,
};
use stridemap_interop::safetensors;

use crate::harness::hooked::Hooked;
use crate::harness::processes::run_to_end;
use crate::harness::{assert_refused, filled, new_path, new_store};
use crate::support::temporary;

/// Creates a store with tensors of every kind. Each element of a sealed one is `value`.
fn store_of(path: &Path, value: f32) -> Store {
    let store = Store::create(path).unwrap();
    for name in ["t1", "t2", "t3"] {
        store.save(name, &filled(4, value)).unwrap();
    }
    let _ = store.create_tensor("mutable", DType::F32, &[4], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("live", DType::I64, &[4], StorageKind::Live).unwrap();
    store
}

/// Opens the store with all options.
fn open(path: &Path) -> Store {
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    // SAFETY: only this library writes the store, or the handle is not used to borrow elements.
    unsafe { options.open_mapped(path).unwrap() }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn values(tensor: Result<Tensor>) -> Vec<f32> {
    tensor.unwrap().read().unwrap()
}

/// Reads and writes in every way with a handle, whose store holds `value`.
fn commit_each_kind_of_change(store: &Store, value: f32) {
    let snapshot = store.snapshot();
    assert_eq!(values(store.load("t1")), [value; 4]);
    assert_eq!(values(snapshot.load("t2")), [value; 4]);
    store.save("new", &filled(4, value + 1.)).unwrap();
    assert_eq!(values(store.load("new")), [value + 1.; 4]);
    store.append("t1", &filled(4, value)).unwrap();
    assert_eq!(values(store.load("t1")), [value; 8]);
    let mutable = store.load("mutable").unwrap();
    mutable.lock_exclusive().unwrap().fill_(value).unwrap();
    assert_eq!(mutable.lock_shared().unwrap().read::<f32>().unwrap(), [value; 4]);
    mutable.lock_exclusive().unwrap().flush().unwrap();
    store.load("live").unwrap().as_live::<i64>().unwrap().fetch_add([0], 1).unwrap();
    store.remove("new").unwrap();
    store.gc().unwrap();
    store.compact(false, |_| ()).unwrap();
    store.refresh().unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(values(store.load("t3")), [value; 4]);
}

/// Asserts that nothing of the other store was read or written.
fn assert_untouched(path: &Path, generation: u64, value: f32) {
    let store = Store::open(path).unwrap();
    assert_eq!((store.generation(), store.names().unwrap()), (generation, names()));
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(values(store.load("t1")), [value; 4]);
}

fn names() -> Vec<String> {
    ["live", "mutable", "t1", "t2", "t3"].map(str::to_owned).to_vec()
}

#[test]
fn handle_stays_in_its_store_when_another_or_a_copy_takes_its_path() {
    for how in ["another by a link", "another", "an older copy"] {
        let dir = temporary();
        let at = |name: &str| dir.path().join(name);
        let own_generation = store_of(&at("own"), 1.).generation();
        let (generation, value) = match how {
            "an older copy" => {
                copy(&at("own"), &at("other"));
                (own_generation, 1.)
            }
            _ => (store_of(&at("other"), 2.).generation(), 2.),
        };
        if how == "another by a link" {
            symlink("own", at("current")).unwrap();
            symlink("other", at("next")).unwrap();
        } else {
            fs::rename(at("own"), at("current")).unwrap();
            fs::rename(at("other"), at("next")).unwrap();
        }
        let store = open(&at("current"));
        store.save("later", &filled(4, 3f32)).unwrap();
        store.remove("later").unwrap();
        let snapshot = store.snapshot();
        fs::rename(at("current"), at("old")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
        assert_eq!(values(snapshot.load("t1")), [1.; 4], "{how}");
        commit_each_kind_of_change(&store, 1.);
        assert_untouched(&at("current"), generation, value);
        assert_eq!(Store::open(at("old")).unwrap().generation(), store.generation(), "{how}");
    }
}

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role == "delete the directory" {
        std::env::set_current_dir(path).unwrap();
        let store = open(Path::new("x.smap"));
        fs::create_dir("gone").unwrap();
        std::env::set_current_dir("gone").unwrap();
        fs::remove_dir(path.join("gone")).unwrap();
        commit_each_kind_of_change(&store, 1.);
        return true;
    }
    if role != "change the directory" {
        return false;
    }
    std::env::set_current_dir(path.join("here")).unwrap();
    let store = open(Path::new("x.smap"));
    std::env::set_current_dir(path.join("there")).unwrap();
    commit_each_kind_of_change(&store, 1.);
    true
}

#[test]
fn handle_stays_in_its_store_when_the_process_changes_directory() {
    let dir = temporary();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("here")).unwrap();
    fs::create_dir(at("there")).unwrap();
    store_of(&at("here/x.smap"), 1.);
    let generation = store_of(&at("there/x.smap"), 2.).generation();
    run_to_end("change the directory", dir.path());
    assert_untouched(&at("there/x.smap"), generation, 2.);
}

#[test]
fn store_is_written_from_a_directory_that_was_deleted() {
    let dir = temporary();
    store_of(&dir.path().join("x.smap"), 1.);
    run_to_end("delete the directory", dir.path());
}

#[test]
fn store_dropped_after_a_wait_leaves_no_descriptor_open() {
    let (_dir, path, store) = new_store();
    assert!(!store.wait_for_change(Duration::from_millis(20)).unwrap());
    drop(store);
    let open: Vec<_> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter(|target| target.starts_with(&path))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

/// Creates a store in an empty directory, with an action before an operation of the disk. The creation may fail.
fn create_in_place(
    path: &Path,
    before: impl Fn(&str, &Path) -> std::io::Result<()> + Send + Sync + 'static,
) -> Result<Store> {
    StoreOptions::new().disk(Arc::new(Hooked::before(before))).create(path)
}

#[test]
fn creation_that_fails_at_the_end_keeps_a_store_already_in_use() {
    let (_dir, path) = new_path();
    fs::create_dir(&path).unwrap();
    let root = path.clone();
    let created = create_in_place(&path, move |operation, at| {
        if operation == "sync_dir" && at == root && root.join("FORMAT").exists() {
            Store::open(&root).unwrap().save("x", &filled(4, 1f32)).unwrap();
            return Err(std::io::Error::other("injected fault"));
        }
        Ok(())
    });
    assert_refused(created, ErrorKind::Io, &["sync", "injected fault"]);
    let store = Store::open(&path).unwrap();
    store.save("y", &filled(4, 2f32)).unwrap();
    assert_eq!(Store::open(&path).unwrap().names().unwrap(), ["x", "y"]);
}

#[test]
fn creation_stays_in_its_directory_when_its_path_becomes_a_store() {
    let dir = temporary();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    let generation = store_of(&at("other"), 2.).generation();
    symlink("empty", at("current")).unwrap();
    let (link, next) = (at("current"), at("next"));
    let created = create_in_place(&at("current"), move |operation, at| {
        if operation == "create_dir" && at.ends_with("meta") {
            symlink("other", &next)?;
            fs::rename(&next, &link)?;
        }
        Ok(())
    });
    // Its path now has another store.
    assert_refused(created, ErrorKind::Stale, &["current"]);
    assert_untouched(&at("other"), generation, 2.);
    assert_eq!(Store::open(at("empty")).unwrap().names().unwrap(), Vec::<String>::new());
}

#[test]
fn nothing_is_created_in_a_directory_that_cannot_be_listed() {
    let (_dir, path) = new_path();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("mine"), "mine").unwrap();
    let created = create_in_place(&path, |operation, _| match operation {
        "list" => Err(std::io::ErrorKind::PermissionDenied.into()),
        _ => Ok(()),
    });
    assert_refused(created, ErrorKind::ReadOnly, &["x.smap"]);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
}

#[test]
fn metadata_may_be_on_a_separate_file_system() {
    let disk = SimulatedDisk::new();
    let options = || StoreOptions::new().disk(Arc::new(disk.clone()));
    options().create("x.smap").unwrap();
    disk.mount(Path::new("x.smap/meta")).unwrap();
    options().durability(Durability::Process).open("x.smap").unwrap().save("x", &filled(4, 1f32)).unwrap();
    options().open("x.smap").unwrap().save("y", &filled(4, 2f32)).unwrap();
    options().open("x.smap").unwrap().save("z", &filled(4, 3f32)).unwrap();
    assert_eq!(options().open("x.smap").unwrap().names().unwrap(), ["x", "y", "z"]);
}

#[test]
fn store_that_is_renamed_while_it_is_open_is_read_and_written() {
    let dir = temporary();
    let at = |name: &str| dir.path().join(name);
    store_of(&at("x.smap"), 1.);
    fs::create_dir(at("below")).unwrap();
    let store = open(&at("x.smap"));
    fs::rename(at("x.smap"), at("below/y.smap")).unwrap();
    commit_each_kind_of_change(&store, 1.);
    fs::rename(at("below/y.smap"), at("z.smap")).unwrap();
    store.save("after", &filled(4, 5f32)).unwrap();
    assert_eq!(values(Store::open(at("z.smap")).unwrap().load("after")), [5.; 4]);
}

#[test]
fn relative_external_files_follow_a_renamed_store() {
    let dir = temporary();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("old/sub")).unwrap();
    fs::create_dir_all(at("new/sub")).unwrap();
    let write = |path: &Path, value: f32| {
        let tensors = [("x".to_owned(), filled(4, value))];
        safetensors::Export::new().write(path, &tensors, |_| ()).unwrap();
    };
    write(&at("old/sub/x.safetensors"), 1.);
    let store = StoreOptions::new().external(ExternalFiles::Beside).create(at("old/x.smap")).unwrap();
    stridemap_interop::adopt(&store, at("old/sub/x.safetensors"), "").unwrap();
    // Another file replaces the first, as seen from the new location of the store.
    write(&at("new/sub/x.safetensors"), 2.);
    let store = open(store.path());
    fs::rename(at("old/x.smap"), at("new/x.smap")).unwrap();
    assert_refused(store.load("x"), ErrorKind::ExternalChanged, &["x.safetensors"]);
    fs::rename(at("old/sub/x.safetensors"), at("new/sub/x.safetensors")).unwrap();
    assert_eq!(values(store.load("x")), [1.; 4]);
}

/// Restores an older copy's files into the directories of a store.
fn restore(backup: &Path, store: &Path) {
    for sub in ["generations", "meta", "storages"] {
        for entry in fs::read_dir(store.join(sub)).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    copy(backup, store);
}

#[test]
fn commit_is_refused_after_an_older_copy_was_restored_in_place() {
    let dir = temporary();
    let at = |name: &str| dir.path().join(name);
    let generation = store_of(&at("x.smap"), 1.).generation();
    copy(&at("x.smap"), &at("backup"));
    for extra_commits in [0, 1, 2] {
        let store = open(&at("x.smap"));
        for value in 0..extra_commits {
            store.save("later", &filled(4, value as f32)).unwrap();
        }
        let mutable = store.load("mutable").unwrap();
        restore(&at("backup"), &at("x.smap"));
        // Commits of another process, so the newest generation has the same number as the known one, or a greater one.
        for commit in 0..extra_commits {
            Store::open(at("x.smap")).unwrap().save(&format!("other {commit}"), &filled(4, 7f32)).unwrap();
        }
        let replaced = &["replaced", "open the store again"];
        assert_refused(store.save("new", &filled(4, 9f32)), ErrorKind::Stale, replaced);
        assert_refused(store.append("t1", &filled(4, 9f32)), ErrorKind::Stale, replaced);
        assert_refused(store.remove("t1"), ErrorKind::Stale, replaced);
        assert_refused(store.gc(), ErrorKind::Stale, replaced);
        assert_refused(store.compact(false, |_| ()), ErrorKind::Stale, replaced);
        assert_refused(store.refresh(), ErrorKind::Stale, replaced);
        assert_refused(store.load("t1"), ErrorKind::Stale, replaced);
        assert_refused(store.snapshot().load("t2"), ErrorKind::Stale, replaced);
        assert_refused(mutable.lock_exclusive(), ErrorKind::Stale, &["replaced", "load it again"]);
        let whole = Store::open(at("x.smap")).unwrap();
        assert_eq!(whole.verify(|_| ()).unwrap().findings, []);
        assert_eq!(whole.generation(), generation + extra_commits);
        assert_eq!(values(whole.load("t1")), [1.; 4]);
        restore(&at("backup"), &at("x.smap"));
    }
}

#[test]
fn commit_into_a_store_that_was_deleted_is_refused() {
    let (_dir, path) = new_path();
    store_of(&path, 1.);
    let store = open(&path);
    let loaded = store.load("t1").unwrap();
    fs::remove_dir_all(&path).unwrap();
    assert_refused(store.save("new", &filled(4, 9f32)), ErrorKind::Stale, &["x.smap"]);
    assert_refused(store.load("t2"), ErrorKind::Stale, &["x.smap"]);
    assert_eq!(loaded.read::<f32>().unwrap(), [1.; 4]);
    assert!(!path.exists());
    store_of(&path, 2.);
    assert_refused(store.save("new", &filled(4, 9f32)), ErrorKind::Stale, &["x.smap"]);
    assert_untouched(&path, 6, 2.);
}
