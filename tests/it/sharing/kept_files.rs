//! Files that a handle which does not map keeps open after the last tensor on them was dropped. Their limit is per process,
//! so these tests start this binary again.

use std::fs::{self, File};
use std::path::Path;

use stridemap::{DType, ErrorKind, Header, StorageKind, Store, Tensor};

use crate::filesystems::limits::limited;
use crate::harness::processes::run_to_end;
use crate::harness::strace::{mark, trace};
use crate::harness::{assert_refused, fast, filled, new_path};
use crate::sharing::forks::fork;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "keep files" => keep(path),
        "open few files" => open_few(path),
        "load unmapped" => load_unmapped(path),
        _ => return false,
    }
    true
}

/// Returns the files of storages that this process has open, by name. A deleted file has a name with a suffix.
fn open_files(path: &Path) -> Vec<String> {
    let dir = fs::canonicalize(path).unwrap().join("storages");
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let names = links.filter(|link| link.parent() == Some(&dir));
    let mut names: Vec<String> = names
        .map(|link| link.file_name().unwrap().to_str().unwrap().trim_start_matches('0').to_owned())
        .collect();
    names.sort();
    names
}

fn read(store: &Store, name: &str) -> Vec<f32> {
    store.load(name).unwrap().read().unwrap()
}

fn keep(path: &Path) {
    let writer = fast().create(path).unwrap();
    writer.save("x", &filled(1000, 1f32)).unwrap();
    writer.save("y", &filled(2000, 2f32)).unwrap();
    writer.create_growable("grows", DType::F32, &[0], 1 << 20).unwrap();
    writer.append("grows", &filled(10, 3f32)).unwrap();
    writer.write(|txn| txn.save_as("mutable", &filled(10, 4f32), StorageKind::Mutable)).unwrap();
    // Its own handle keeps what it loads too.
    drop(writer);
    let writer = || fast().open(path).unwrap();

    let reader = Store::open(path).unwrap();
    for name in ["x", "y", "grows", "mutable", "x"] {
        assert!(read(&reader, name)[0] > 0.);
    }
    assert_eq!(open_files(path), ["1.bin", "2.bin", "3.bin"], "not the mutable one");

    // Other handles append, compact, remove and collect. The reader reads its generation.
    let old = reader.snapshot();
    writer().append("grows", &filled(10, 3f32)).unwrap();
    writer().write(|txn| txn.save_view("y", &txn.load("y")?.narrow(0, 0, 1)?)).unwrap();
    assert_eq!(writer().compact(false, |_| ()).unwrap().after_bytes, 4);
    writer().remove("x").unwrap();
    writer().gc().unwrap();
    assert_eq!((read(&reader, "x"), read(&reader, "y")), (vec![1.; 1000], vec![2.; 2000]));
    assert_eq!(read(&reader, "grows").len(), 10);
    assert_eq!(open_files(path), ["1.bin", "2.bin", "3.bin"]);
    // A child reads by what it inherits, and a handle of its own keeps its own files.
    let x = reader.load("x").unwrap();
    let child = fork(|| {
        assert_eq!(x.read::<f32>().unwrap(), [1.; 1000]);
        assert_refused(reader.load("x"), ErrorKind::Stale, &["forked"]);
        let own = Store::open(path).unwrap();
        (0..2).for_each(|_| assert_eq!(read(&own, "y"), [2.]));
    });
    assert!(child.succeeds());
    drop(x);

    // The handle keeps nothing that its new generation does not have.
    reader.refresh().unwrap();
    assert_eq!(open_files(path), ["3.bin"]);
    assert_eq!((read(&reader, "grows").len(), read(&reader, "y")), (20, vec![2.]));
    assert_eq!(old.load("x").unwrap().read::<f32>().unwrap(), [1.; 1000]);
    drop(old);
    assert!(!open_files(path).contains(&"1.bin".to_owned()), "of an older generation nothing is kept");
    assert!(writer().gc().unwrap().size_bytes >= 8000);
    assert_eq!(open_files(path).len(), 2);
    drop(reader);
    assert_eq!(open_files(path), [""; 0]);
}

fn open_few(path: &Path) {
    const COUNT: usize = 4000;
    const LIMIT: u64 = 64;
    let store = fast().create(path).unwrap();
    for from in [0, COUNT / 2] {
        let mut txn = store.begin().unwrap();
        for i in from..from + COUNT / 2 {
            // Of unstated length, so that each has a file.
            let key = txn.stage(None, |sink| sink(&(i as f32).to_le_bytes())).unwrap();
            txn.save_header(&i.to_string(), &Header::contiguous(DType::F32, &[1]).unwrap(), key).unwrap();
        }
        txn.commit().unwrap();
    }
    store.write(|txn| txn.save_as("mutable", &filled(10, 4f32), StorageKind::Mutable)).unwrap();
    drop(store);
    let readers = [Store::open(path).unwrap(), Store::open(path).unwrap()];
    let load_all = || {
        let mut most = 0;
        for i in 0..COUNT {
            assert_eq!(read(&readers[i % 2], &i.to_string()), [i as f32]);
            most = most.max(if i % 64 < 20 { open_files(path).len() } else { 0 });
        }
        most
    };
    limited(libc::RLIMIT_NOFILE, LIMIT, || {
        assert_eq!(load_all(), LIMIT as usize / 4, "a quarter of the limit");
        // The rest of the process takes all others, and lets go of a few.
        let mut rest: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // One is for looking.
        let _ = rest.pop();
        assert!(open_files(path).len() > 4);
        // What is kept gives way to a lock, a commit, another handle, and tensors that stay loaded.
        readers[0].load("mutable").unwrap().lock_exclusive().unwrap().add_(1).unwrap();
        assert_eq!(readers[1].load("mutable").unwrap().read::<f32>().unwrap(), [5.; 10]);
        rest.truncate(rest.len() - 8);
        Store::open(path).unwrap().save("new", &filled(1, 1f32)).unwrap();
        let loaded: Vec<Tensor> = (0..8).map(|i| readers[0].load(&i.to_string()).unwrap()).collect();
        assert!((0..8).all(|i| loaded[i].read::<f32>().unwrap() == [i as f32]));
    });
    assert!(load_all() >= 64, "the limit is that of now");
}

fn load_unmapped(path: &Path) {
    let store = Store::open(path).unwrap();
    let load = || {
        let mut elements = [0f32; 640];
        store.load("x").unwrap().read_into(&mut elements).unwrap();
        assert_eq!(elements, [1.; 640]);
    };
    mark("cold");
    load();
    mark("warm");
    load();
    mark("done");
}

#[test]
fn handle_that_does_not_map_keeps_the_files_of_its_generation() {
    let (_dir, path) = new_path();
    run_to_end("keep files", &path);
}

#[test]
fn thousands_of_storages_are_read_with_few_descriptors() {
    let (_dir, path) = new_path();
    run_to_end("open few files", &path);
}

#[test]
fn warm_load_and_read_without_a_mapping_is_one_read() {
    let (_dir, path) = new_path();
    fast().create(&path).unwrap().save("x", &filled(640, 1f32)).unwrap();
    let Some(trace) = trace("load unmapped", &path, "cold") else { return };
    assert!(trace.between("cold", "warm").len() > 1);
    let warm = trace.between("warm", "done");
    assert!(warm.len() == 1 && warm[0].starts_with("pread64("), "{warm:#?}");
}

#[test]
fn damage_of_a_kept_file_is_noticed_and_a_file_that_was_put_right_is_read() {
    let (_dir, path) = new_path();
    fast().create(&path).unwrap().save("x", &filled(6, 1f32)).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(read(&store, "x"), [1.; 6]);
    let storage = path.join("storages/0000000000000001.bin");
    let whole = fs::read(&storage).unwrap();
    File::options().write(true).open(&storage).unwrap().set_len(23).unwrap();
    let text = ["0000000000000001.bin", "23 bytes, but the record requires 24", "F-26"];
    assert_refused(store.load("x").unwrap().read::<f32>(), ErrorKind::Corrupt, &text);
    assert_refused(store.load("x"), ErrorKind::Corrupt, &text);
    let backup = path.join("storages/backup");
    fs::write(&backup, &whole).unwrap();
    fs::rename(&backup, &storage).unwrap();
    assert_eq!(read(&store, "x"), [1.; 6]);
    // Bytes that changed are found as before.
    fs::write(&storage, [7; 24]).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
}
