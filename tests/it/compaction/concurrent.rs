//! Compaction while other processes read, commit and append.

use super::full_disk::compact_bit_by_bit;
use super::{assert_intact, create_sparse_store, reasons, storage_bytes, sum, vector};
use crate::harness::processes::{OtherProcess, command, read_line, send_line, wait_for_line};
use crate::harness::{fast, new_fast_store, new_path};
use std::io::BufReader;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};
use stridemap::maintenance::{Compacted, SkipReason, SpaceReason};
use stridemap::{DType, ErrorKind, Store, StoreOptions, Tensor};

const CHANGE: &str = "STRIDEMAP_TEST_CHANGE";

/// Not a test: runs the role of a started process.
pub(crate) fn run_role(role: &str, path: &Path) {
    match role {
        "compact.pin" => {
            let store = Store::open(path).unwrap();
            let snapshot = store.snapshot();
            send_line("pinned");
            while wait_for_line() {
                let tensor = snapshot.load("thin").unwrap();
                send_line(format!("{:?} {:?}", tensor.stride(), sum(&tensor)));
            }
        }
        "compact.change" => {
            let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).open(path).unwrap();
            send_line(change(&store, &env::var(CHANGE).unwrap()));
        }
        "compact.stage" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.save("staged", &vector(2 << 20, 1)).unwrap();
            send_line(std::process::id());
            wait_for_line();
        }
        "compact.window" => {
            let store = fast().open(path).unwrap();
            send_line("begun");
            for row in 100.. {
                append_to_window(&store, row);
            }
        }
        "compact.nearly full" => compact_bit_by_bit(path),
        role => panic!("{role}"),
    }
}

/// Makes one commit, and returns its result as text. Runs in another process.
fn change(store: &Store, what: &str) -> String {
    let result = match what {
        "view" => {
            let thin = store.load("thin").unwrap();
            store.save_view("another", &thin.slice(0, Some(1), None, 1).unwrap())
        }
        "replace" => store.save("thin", &vector(3, 77)),
        "replace alike" => store.save("thin", &store.load("thin").unwrap()),
        "remove" => store.remove("thin"),
        "rename" => store.rename("thin", "renamed"),
        "elsewhere" => store.save("elsewhere", &vector(5, 5)),
        "append" => {
            // The compaction holds the growth lock, so appenders wait for its end.
            let busy = store.append("rows", &vector(1000, 9).view([1, 1000]).unwrap()).unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
            Ok(())
        }
        "compact" => store.compact(false, |_| ()).map(|compacted| {
            assert!(matches!(compacted.skipped[0].reason, SkipReason::Busy(_)), "{compacted:?}");
            assert_eq!(compacted.storage_count, 0);
        }),
        what => panic!("{what}"),
    };
    format!("{:?}", result.map_err(|e| e.kind()))
}

#[test]
fn reader_of_an_earlier_generation_holds_its_space_until_it_ends() {
    let (_dir, path) = new_path();
    let (store, elements) = create_sparse_store(&path, &fast());
    store.gc().unwrap();
    let snapshot = store.snapshot();
    let mut reader = OtherProcess::start("compact.pin", &path);
    assert_eq!(reader.read_line(), "pinned");
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
    // The storage is opened only at this point.
    let own = snapshot.load("thin").unwrap();
    assert_eq!((own.stride(), own.read::<u32>().unwrap()), (&[10 * 1024, 1][..], elements.clone()));
    reader.resume();
    assert_eq!(reader.read_line(), format!("[10240, 1] {}", sum(&own)));
    drop((own, snapshot));
    let after_bytes = 103 * 4096;
    store.gc().unwrap();
    assert!(storage_bytes(&path) > (4 << 20) + after_bytes, "the reader's storage was deleted");
    match &reasons(&store)[..] {
        [(SpaceReason::Pinned { generation, processes }, 4_194_304), (SpaceReason::Pinned { .. }, 64)] => {
            assert_eq!(*generation, 4);
            // The kernel names the holder if the file system and the process namespace allow it.
            assert!(
                processes.is_empty() || *processes == [reader.child.id()],
                "{processes:?}, not {}",
                reader.child.id()
            );
        }
        other => panic!("{other:?}"),
    }
    reader.kill();
    assert_eq!(reasons(&store), [(SpaceReason::Garbage, 4 << 20), (SpaceReason::Garbage, 64)]);
    store.save("next", &vector(1, 1)).unwrap();
    assert_eq!(storage_bytes(&path), after_bytes + 4);
}

/// Compacts while another process makes a change during the copying of the storage.
fn compact_during(path: &Path, store: &Store, what: &str) -> Compacted {
    let mut heard = Vec::new();
    let compacted = store
        .compact(false, |_| {
            if heard.is_empty() {
                let mut other = command("compact.change", path);
                let mut other = other.env(CHANGE, what).stdout(Stdio::piped()).spawn().unwrap();
                let mut said = BufReader::new(other.stdout.take().unwrap());
                heard.push(read_line(&mut said));
                assert!(other.wait().unwrap().success());
            }
        })
        .unwrap();
    assert_eq!(heard, ["Ok(())"], "{what}");
    store.refresh().unwrap();
    assert_intact(store);
    compacted
}

#[test]
fn storage_changed_by_another_process_meanwhile_is_skipped() {
    for what in ["view", "replace", "replace alike", "remove", "rename"] {
        let (_dir, path) = new_path();
        let (store, elements) = create_sparse_store(&path, &fast());
        let compacted = compact_during(&path, &store, what);
        assert_eq!(compacted.storage_count, 0, "{what}: {compacted:?}");
        let skipped: Vec<_> =
            compacted.skipped.iter().map(|skipped| (skipped.storage_id, &skipped.reason)).collect();
        assert_eq!(skipped, [(1, &SkipReason::Changed)], "{what}");
        let read = |name: &str| store.load(name).unwrap().read::<u32>().unwrap();
        match what {
            "view" => {
                assert_eq!(read("thin"), elements);
                assert_eq!(read("another"), elements[1024..]);
            }
            "replace" => assert_eq!(read("thin"), vector(3, 77).read::<u32>().unwrap()),
            "replace alike" => assert_eq!(read("thin"), elements),
            "remove" => assert!(!store.contains("thin").unwrap()),
            _ => assert_eq!(read("renamed"), elements),
        }
        // The next compaction succeeds, and nothing of the first is left.
        let again = store.compact(false, |_| ()).unwrap();
        assert_eq!(again.storage_count, u64::from(["view", "rename"].contains(&what)), "{what}: {again:?}");
        assert_eq!(store.disk_usage().unwrap().reclaimable_bytes, 0, "{what}");
    }
}

#[test]
fn commit_to_other_storages_does_not_disturb_a_compaction() {
    let (_dir, path) = new_path();
    let (store, elements) = create_sparse_store(&path, &fast());
    for (what, count) in [("elsewhere", 1), ("compact", 0)] {
        if count == 0 {
            store
                .save_view("thinner", &store.load("thin").unwrap().slice(0, None, None, 3).unwrap())
                .unwrap();
            store.remove("thin").unwrap();
        }
        let compacted = compact_during(&path, &store, what);
        assert_eq!((compacted.storage_count, compacted.skipped.len()), (1, 0), "{compacted:?}");
    }
    assert_eq!(store.load("thinner").unwrap().read::<u32>().unwrap()[..1024], elements[..1024]);
    assert_eq!(store.names().unwrap(), ["elsewhere", "thinner"]);
}

#[test]
fn growing_tensor_is_compacted_between_two_appends() {
    let (_dir, path, store) = new_fast_store();
    let rows = vector(600_000, 4).view([600, 1000]).unwrap();
    store.save("all", &rows).unwrap();
    store.append("all", &vector(100_000, 5).view([100, 1000]).unwrap()).unwrap();
    // The last rows, with room to grow after them.
    store.save_view("rows", &store.load("all").unwrap().narrow(0, 300, 400).unwrap()).unwrap();
    store.remove("all").unwrap();
    let before = store.load("rows").unwrap();
    let compacted = compact_during(&path, &store, "append");
    assert_eq!((compacted.storage_count, compacted.after_bytes), (1, 400 * 4000), "{compacted:?}");
    store.append("rows", &vector(1000, 6).view([1, 1000]).unwrap()).unwrap();
    let after = store.load("rows").unwrap();
    assert_eq!(after.size(), [401, 1000]);
    assert_eq!(after.narrow(0, 0, 400).unwrap().to_bytes().unwrap(), before.to_bytes().unwrap());
    assert_intact(&store);

    // The bytes of a killed append are not part of the storage, and gc truncates them.
    let file = path.join("storages/0000000000000002.bin");
    let length = fs::metadata(&file).unwrap().len();
    let end = fs::File::options().write(true).open(&file).unwrap();
    end.set_len(length + 5000).unwrap();
    drop(end);
    assert_eq!(reasons(&store), [(SpaceReason::Garbage, 5000)]);
    assert_eq!(store.gc().unwrap().size_bytes, 5000);
    assert_eq!(reasons(&store), []);
}

#[test]
fn storage_with_an_active_appender_is_skipped_and_others_are_compacted() {
    let (_dir, path) = new_path();
    let (store, _) = create_sparse_store(&path, &fast());
    store.save("all", &vector(1 << 20, 8)).unwrap();
    store.save_view("column", &store.load("all").unwrap().slice(0, None, None, 100).unwrap()).unwrap();
    store.remove("all").unwrap();
    let file = fs::File::open(path.join("storages/0000000000000001.bin")).unwrap();
    fs2::FileExt::lock_exclusive(&file).unwrap();
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.before_bytes), (1, 4 << 20));
    let [skipped] = &compacted.skipped[..] else { panic!("{compacted:?}") };
    assert_eq!((skipped.storage_id, skipped.reclaimable_bytes), (1, (4 << 20) - 103 * 4096));
    assert!(matches!(&skipped.reason, SkipReason::Busy(_)), "{skipped:?}");
    drop(file);
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1);
}

/// Appends a row to a log, and keeps the last hundred rows. Each row is its number, repeated a thousand times.
fn append_to_window(store: &Store, row: usize) {
    let elements = Tensor::from_vec(vec![row as u32; 1000], &[1, 1000]).unwrap();
    store.append("log", &elements).unwrap();
    let log = store.load("log").unwrap();
    let size = log.size()[0];
    match store.save_view("log", &log.narrow(0, size as isize - 100, 100).unwrap()) {
        // The log was compacted after it was loaded, so this time it keeps one row more.
        Err(e) if e.kind() == ErrorKind::Conflict => {}
        saved => saved.unwrap(),
    }
}

#[test]
fn tensor_that_is_appended_to_without_a_pause_can_be_compacted() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("log", DType::U32, &[0, 1000], 0).unwrap();
    for row in 0..100u32 {
        store.append("log", &Tensor::from_vec(vec![row; 1000], &[1, 1000]).unwrap()).unwrap();
    }
    let mut writer = OtherProcess::start("compact.window", &path);
    assert_eq!(writer.read_line(), "begun");
    let (mut skipped_count, mut compacted_count) = (0, 0);
    while compacted_count < 5 {
        let compacted = store.compact(false, |_| ()).unwrap();
        compacted_count += compacted.storage_count;
        skipped_count += compacted.skipped.len();
        assert!(skipped_count < 30, "compacted {compacted_count} times, and skipped {skipped_count}");
        store.refresh().unwrap();
        let rows: Vec<u32> = store.load("log").unwrap().select(1, 0).unwrap().read().unwrap();
        let is_run = rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert!(is_run && rows.len() >= 100, "{rows:?}");
    }
    println!("compacted {compacted_count} times, skipped {skipped_count}");
    writer.kill();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}
