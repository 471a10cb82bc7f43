//! The scripts that power cuts interrupt. Their tensors have only a few bytes, so that every state can be tried.

use std::path::Path;

use stridemap::{DType, StorageKind, Store, Tensor};
use stridemap_interop::{ForeignFile, safetensors};

use crate::script::{Recorder, Script, vector};

/// Creates a store, and makes its first commit.
pub(crate) fn creation() -> Script {
    Script::new("creation", |recorder| {
        recorder.create();
        recorder.commit(|store| store.save("first", &vector(3, 1)).unwrap());
    })
}

/// Adds storages, views and renames, and deletes storages with their last names.
pub(crate) fn commits() -> Script {
    Script::new("commits", |recorder| {
        recorder.create();
        recorder.commit(|store| store.save("a", &vector(12, 1).view([3, 4]).unwrap()).unwrap());
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            txn.save("b", &vector(200, 2)).unwrap();
            txn.save("c", &vector(1, 3)).unwrap();
            txn.save_view("t", &store.load("a").unwrap().t().unwrap()).unwrap();
            txn.set_attribute("", "step", "1").unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| store.save("a", &vector(2, 4)).unwrap());
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            txn.remove("b").unwrap();
            txn.rename("c", "d").unwrap();
            txn.copy("d", "e").unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| store.remove("t").unwrap());
        recorder.commit(|store| store.gc().unwrap());
        recorder.commit(|store| store.save("f", &vector(9, 5)).unwrap());
    })
}

/// Tags generations, goes back to one, appends to what was restored, and removes tags.
pub(crate) fn history() -> Script {
    Script::new("history", |recorder| {
        recorder.create();
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            txn.save("a", &vector(12, 1)).unwrap();
            txn.create_growable("log", DType::U32, &[0], 0).unwrap();
            txn.message("the first");
            txn.tag("one").unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| store.append("log", &vector(3, 2)).unwrap());
        recorder.commit(|store| store.tag("two").unwrap());
        recorder.commit(|store| store.append("log", &vector(2, 3)).unwrap());
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            txn.save("a", &vector(2, 4)).unwrap();
            txn.remove("log").unwrap();
            txn.tag("three").unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| store.restore(&store.at("two").unwrap()).unwrap());
        recorder.commit(|store| store.append("log", &vector(2, 5)).unwrap());
        recorder.commit(|store| store.untag("two").unwrap());
        recorder.commit(|store| store.gc().unwrap());
        recorder.commit(|store| store.untag("one").unwrap());
        recorder.commit(|store| store.save("b", &vector(1, 6)).unwrap());
    })
}

/// Adds enough tags and names for both tables, and removes the tags.
pub(crate) fn history_tables() -> Script {
    Script::new("tables of a history", |recorder| {
        recorder.create();
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            (0..66).for_each(|row| txn.save(&format!("row.{row}"), &vector(1, row)).unwrap());
            txn.tag("rows").unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            (0..66).for_each(|tag| txn.tag(&format!("t{tag}")).unwrap());
            txn.commit().unwrap();
        });
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            (0..66).for_each(|row| txn.remove(&format!("row.{row}")).unwrap());
            (1..66).for_each(|tag| txn.untag(&format!("t{tag}")).unwrap());
            txn.commit().unwrap();
        });
        recorder.commit(|store| store.untag("rows").unwrap());
        recorder.commit(|store| store.restore(&store.at("t0").unwrap()).unwrap());
    })
}

/// Adds enough names for a table, then changes to it, and then the next table.
pub(crate) fn tables() -> Script {
    let save_rows = |store: &Store, rows: std::ops::Range<u32>| {
        let mut txn = store.begin().unwrap();
        rows.for_each(|row| txn.save(&format!("row.{row}"), &vector(1, row)).unwrap());
        txn.commit().unwrap();
    };
    Script::new("tables", move |recorder| {
        recorder.create();
        recorder.commit(|store| save_rows(store, 0..66));
        recorder.commit(|store| store.remove("row.7").unwrap());
        recorder.commit(|store| save_rows(store, 60..130));
        recorder.commit(|store| store.rename("row.8", "row.7").unwrap());
    })
}

/// Appends a few elements to a storage: twice in one transaction, and beside other changes.
pub(crate) fn growth() -> Script {
    Script::new("growth", |recorder| {
        recorder.create();
        recorder.commit(|store| store.create_growable("log", DType::U32, &[0], 0).unwrap());
        recorder.commit(|store| store.append("log", &vector(100, 1)).unwrap());
        recorder.commit(|store| {
            let log = store.load("log").unwrap();
            let mut txn = store.begin().unwrap();
            txn.append("log", &vector(50, 2)).unwrap();
            txn.append("log", &vector(60, 3)).unwrap();
            txn.save_view("head", &log.slice(0, None, Some(10), 1).unwrap()).unwrap();
            txn.commit().unwrap();
        });
        // An append whose transaction is dropped.
        recorder.commit(|store| store.begin().unwrap().append("log", &vector(20, 4)).unwrap());
        recorder.commit(|store| store.append("log", &vector(1, 5)).unwrap());
        // An appender of two commits, and rows that it does not commit.
        let mut appender = recorder.store().appender("log").unwrap();
        for batch in [&[7, 8][..], &[9]] {
            recorder.commit(|_| {
                for &count in batch {
                    appender.append(&vector(count, count as u32)).unwrap();
                }
                appender.commit().unwrap()
            });
        }
        recorder.commit(|_| appender.append(&vector(20, 6)).unwrap());
        recorder.commit(|_| drop(appender));
    })
}

/// Appends past the first chunk of a storage and past its second. Its digests grow with it.
pub(crate) fn chunks() -> Script {
    Script::new("chunks", |recorder| {
        recorder.create();
        recorder.commit(|store| store.create_growable("log", DType::U32, &[262_000], 0).unwrap());
        recorder.commit(|store| store.append("log", &vector(300, 1)).unwrap());
        recorder.commit(|store| {
            let mut appender = store.appender("log").unwrap();
            appender.append(&vector(262_144, 2)).unwrap();
            appender.commit().unwrap();
        });
    })
}

/// Changes elements in place, with and without a flush, while others commit.
pub(crate) fn in_place() -> Script {
    let fill = |store: &Store, name: &str, value: u32, flushes: bool| {
        let mut guard = store.load(name).unwrap().lock_exclusive().unwrap();
        guard.fill_(i64::from(value)).unwrap();
        if flushes {
            guard.flush().unwrap();
        }
    };
    Script::new("in place", move |recorder| {
        recorder.create();
        recorder.commit(|store| {
            store.write(|txn| txn.save_as("weights", &vector(300, 1), StorageKind::Mutable)).unwrap()
        });
        recorder.commit(|store| {
            let _ = store.create_tensor("count", DType::I64, &[3], StorageKind::Live).unwrap();
        });
        recorder.commit(|store| {
            let weights = store.load("weights").unwrap();
            store.save_view("half", &weights.slice(0, None, None, 2).unwrap()).unwrap();
        });
        recorder.write(|store| fill(store, "weights", 7, false));
        recorder.commit(|store| store.save("other", &vector(3, 2)).unwrap());
        recorder.flush(|store| fill(store, "weights", 7, true));
        recorder.write(|store| fill(store, "weights", 8, false));
        recorder.write(|store| fill(store, "weights", 9, false));
        recorder.commit(|store| store.remove("other").unwrap());
    })
}

/// Compacts storages with many unreferenced bytes.
pub(crate) fn compaction() -> Script {
    Script::new("compaction", |recorder| {
        recorder.create();
        recorder.commit(|store| store.save("all", &vector(9_000, 1)).unwrap());
        recorder.commit(|store| {
            let all = store.load("all").unwrap();
            store.save_view("some", &all.slice(0, None, None, 100).unwrap()).unwrap();
        });
        recorder.commit(|store| store.remove("all").unwrap());
        recorder.commit(|store| assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 1));
    })
}

/// Joins small storages to one, some of which have views, ties or bytes that no tensor reaches.
pub(crate) fn joining() -> Script {
    Script::new("joining", |recorder| {
        recorder.create();
        for i in 0..5u32 {
            recorder.commit(|store| store.save(&format!("t{i}"), &vector(30 + i as usize, i)).unwrap());
        }
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            txn.copy("t1", "tied").unwrap();
            txn.save_view("flipped", &store.load("t2").unwrap().flip([0]).unwrap()).unwrap();
            txn.save_view("t3", &store.load("t3").unwrap().narrow(0, 0, 2).unwrap()).unwrap();
            txn.commit().unwrap();
        });
        recorder.commit(|store| {
            let compacted = store.compact(true, |_| ()).unwrap();
            assert_eq!((compacted.storage_count, compacted.new_storage_count), (5, 1));
        });
        recorder.commit(|store| assert_eq!(store.append("t0", &vector(3, 9)).unwrap(), 30..33));
    })
}

/// Adopts a file in place, saves a view of it, and adopts it again beside a storage of the store. Then removes its
/// names, or copies its elements into the store.
pub(crate) fn adoption(file: &Path, materializes: bool) -> Script {
    let name = if materializes { "materialization" } else { "adoption" };
    let file = file.to_path_buf();
    Script::new(name, move |recorder| {
        let adopt = |store: &Store, prefix: &str| {
            let mut txn = store.begin().unwrap();
            ForeignFile::open(&file).unwrap().adopt_into(&mut txn, prefix).unwrap();
            if !prefix.is_empty() {
                txn.save("own", &vector(12, 2)).unwrap();
            }
            txn.commit().unwrap();
        };
        recorder.create();
        recorder.commit(|store| adopt(store, ""));
        recorder.commit(|store| store.save_view("t", &store.load("weight").unwrap().t().unwrap()).unwrap());
        recorder.commit(|store| adopt(store, "again."));
        if materializes {
            recorder.commit(|store| assert!(store.materialize(|_| ()).unwrap().storage_count > 0));
        }
        recorder.commit(|store| {
            let mut txn = store.begin().unwrap();
            ["weight", "bias", "t"].iter().for_each(|name| txn.remove(name).unwrap());
            txn.commit().unwrap();
        });
    })
}

/// Writes a file of two tensors.
pub(crate) fn write_model(path: &Path) {
    let tensors = [
        ("weight".to_owned(), vector(12, 8).view([3, 4]).unwrap()),
        ("bias".to_owned(), Tensor::from_vec(vec![1f64, 2., 3.], &[3]).unwrap()),
    ];
    safetensors::Export::new().write(path, &tensors, |_| ()).unwrap();
}

/// Creates and writes a store without a sync. Then a handle that syncs settles it.
pub(crate) fn unsynced(settle: fn(&Store)) -> Script {
    Script::new("unsynced", move |recorder| {
        recorder.unsynced(|store| {
            store.save("replaced", &vector(5, 1)).unwrap();
            store.save("kept", &vector(300, 2)).unwrap();
        });
        recorder.commit(|store| store.save("settled", &vector(5, 3)).unwrap());
        recorder.unsynced(|store| {
            store.save("replaced", &vector(5, 4)).unwrap();
            store.remove("settled").unwrap();
        });
        recorder.commit(settle);
        recorder.commit(|store| store.save("after", &vector(2, 5)).unwrap());
    })
}

/// Uses two handles. One commits while the other has begun a transaction and holds back files of an old generation.
pub(crate) fn two_handles() -> Script {
    Script::new("two handles", |recorder: &mut Recorder| {
        recorder.create();
        recorder.commit(|store| store.save("a", &vector(5, 1)).unwrap());
        recorder.commit(|store| store.create_growable("log", DType::U32, &[4], 0).unwrap());
        let other = recorder.open();
        recorder.commit(|store| store.save("a", &vector(6, 2)).unwrap());
        let mut txn = other.begin().unwrap();
        txn.save("b", &vector(7, 3)).unwrap();
        txn.append("log", &vector(3, 4)).unwrap();
        recorder.commit(|store| store.rename("a", "c").unwrap());
        recorder.commit(|_| txn.commit().unwrap());
        let snapshot = other.snapshot();
        recorder.commit(|store| store.remove("b").unwrap());
        recorder.commit(|_| other.save("d", &vector(2, 5)).unwrap());
        drop(snapshot);
        recorder.commit(|store| store.gc().unwrap());
        recorder.commit(|_| other.save("e", &vector(2, 6)).unwrap());
    })
}
