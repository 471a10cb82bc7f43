//! Readers, and writers that collect files that the readers need.

use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};
use stridemap_format::{GarbageKey, Manifest, Marker, RecordKind, StorageRecord};

use super::play::{Fate, Play, STORE, check_intact, create, expect_ok, has, holds, open, refused, vector};
use super::seat::When;
use stridemap::disk::Access;

/// Creates a store with a tensor `x`, a reader of it, and a writer that replaces it.
fn reader_of_x(play: &Play) -> Result<(Store, Store), String> {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("x", &vector(1)))?;
    Ok((open(&play.seat())?, store))
}

/// A reader keeps its generation while others commit.
pub(crate) fn pinned_across_commits(play: &Play) -> Fate {
    let (reader, store) = reader_of_x(play)?;
    for value in 2..5 {
        expect_ok("replace", store.save("x", &vector(value)))?;
    }
    has(&reader, "x", 1)?;
    drop(reader);
    check_intact(play, &["x"])
}

/// The same across a collection by a new handle.
pub(crate) fn pinned_across_a_collection(play: &Play) -> Fate {
    let (reader, store) = reader_of_x(play)?;
    expect_ok("replace", store.save("x", &vector(2)))?;
    expect_ok("collect", open(&play.seat())?.gc())?;
    has(&reader, "x", 1)
}

/// A collector deletes a manifest after a reader has opened it and before the reader locks it.
pub(crate) fn manifest_collected_before_it_is_pinned(play: &Play) -> Fate {
    let writer = play.seat();
    let store = create(&writer)?;
    expect_ok("save", store.save("x", &vector(1)))?;
    let seat = play.seat();
    seat.trap(When::After, "open", ".man", move || {
        store.save("x", &vector(2)).map_err(std::io::Error::other)?;
        store.gc().map(drop).map_err(std::io::Error::other)
    });
    let reader = open(&seat)?;
    holds("nothing came between", seat.is_done())?;
    has(&reader, "x", 2)
}

/// A commit during a listing, which then shows neither the old manifest nor the new one.
pub(crate) fn commit_during_a_listing(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    let seat = play.seat().with(|quirks| quirks.lists_slowly = true);
    seat.trap(When::Before, "list", "meta", move || {
        store.save("x", &vector(1)).map_err(std::io::Error::other)
    });
    has(&open(&seat)?, "x", 1)
}

/// A commit during a listing, in which an older generation, held by another reader, then appears newest.
pub(crate) fn older_generation_listed_as_newest(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("x", &vector(1)))?;
    let _reader = open(&play.seat())?;
    expect_ok("replace", store.save("x", &vector(2)))?;
    let seat = play.seat().with(|quirks| quirks.lists_slowly = true);
    seat.trap(When::Before, "list", "meta", move || {
        store.write(|txn| txn.copy("x", "y")).map_err(std::io::Error::other)
    });
    has(&open(&seat)?, "x", 2)
}

/// The same in every listing, for a guard that checks whether its storage is in use. A third process holds an older
/// generation without that storage.
pub(crate) fn tensor_in_use_by_an_unlisted_generation(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("y", &vector(1)))?;
    let _reader = open(&play.seat())?;
    let _ = expect_ok("create", store.create_tensor("x", DType::I64, &[5], StorageKind::Mutable))?;
    let seat = play.seat().with(|quirks| quirks.lists_slowly = true);
    let x = expect_ok("load", open(&seat)?.load("x"))?;
    for name in ["a", "b", "c", "d"] {
        let store = store.clone();
        seat.trap(When::Before, "list", "meta", move || {
            store.write(|txn| txn.copy("y", name)).map_err(std::io::Error::other)
        });
    }
    let _ = expect_ok("the guard of a tensor in use", x.lock_exclusive())?;
    holds("nothing came between", seat.is_done())
}

/// The newest generation is pinned by its own writer like any other.
pub(crate) fn newest_generation_is_pinned(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("x", &vector(1)))?;
    has(&open(&play.seat())?, "x", 1)
}

/// A collector cannot open the manifest that a reader uses.
pub(crate) fn unreadable_manifest(play: &Play) -> Fate {
    let (reader, store) = reader_of_x(play)?;
    expect_ok("another", store.save("y", &vector(3)))?;
    drop(store);
    let writer = play.seat();
    let store = open(&writer)?;
    // A collector that fails to open a file tries again.
    writer.fail("open", "0000000000000002.man");
    writer.fail("open", "0000000000000002.man");
    expect_ok("replace", store.save("x", &vector(2)))?;
    holds("the manifest was read", writer.is_done())?;
    has(&reader, "x", 1)
}

/// A malformed store: a tensor refers to a storage in the list of garbage.
pub(crate) fn garbage_that_is_in_use(play: &Play) -> Fate {
    let (_, store) = reader_of_x(play)?;
    expect_ok("another", store.save("y", &vector(3)))?;
    drop(store);
    let root = Path::new(STORE);
    let read = |path: &Path| {
        let file = play.disk.open(path, Access::Read)?;
        let mut bytes = vec![0; file.stat()?.size_bytes as usize];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    let path = root.join("meta/0000000000000003.man");
    let lie = || {
        let marker = Marker::decode(&read(&root.join("FORMAT"))?).map_err(std::io::Error::other)?;
        let mut manifest = Manifest::decode(&read(&path)?, marker.uuid, 3).map_err(std::io::Error::other)?;
        let key = GarbageKey { is_tagged: false, dropped: 2, id: 1 };
        let garbage = StorageRecord::new(0, RecordKind::Mutable);
        manifest.garbage.insert(key, Some(garbage));
        let bytes = manifest.encode().map_err(std::io::Error::other)?;
        let file = play.disk.open(&path, Access::Write)?;
        file.set_len(bytes.len() as u64)?;
        file.write_all_at(&bytes, 0)
    };
    lie().map_err(|e| e.to_string())?;
    let store = open(&play.seat())?;
    expect_ok("a commit", store.save("z", &vector(4)))?;
    expect_ok("another commit", store.save("z", &vector(5)))?;
    has(&open(&play.seat())?, "x", 1)
}

/// A reader has pinned a generation, and opens its table only after others have written newer tables and collected.
pub(crate) fn table_of_a_pinned_generation(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    let rows = |from: i64| (from..from + 70).map(|row| (format!("row.{row:03}"), vector(row)));
    let save_rows = move |store: &Store, from: i64| {
        let mut txn = store.begin()?;
        rows(from).try_for_each(|(name, row)| txn.save(&name, &row))?;
        txn.commit()
    };
    expect_ok("the first table", save_rows(&store, 0))?;
    let seat = play.seat();
    seat.trap(When::Before, "open", ".tab", move || {
        save_rows(&store, 100).map_err(std::io::Error::other)?;
        save_rows(&store, 200).map_err(std::io::Error::other)?;
        store.gc().map(drop).map_err(std::io::Error::other)
    });
    let reader = open(&seat)?;
    holds("nothing came between", seat.is_done())?;
    has(&reader, "row.007", 7)
}

/// A tensor whose last name was removed, while a reader keeps its file.
pub(crate) fn change_of_an_unnamed_tensor(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    let _ = expect_ok("create", store.create_tensor("x", DType::I64, &[5], StorageKind::Mutable))?;
    let reader = open(&play.seat())?;
    let x = expect_ok("load", reader.load("x"))?;
    expect_ok(
        "replace",
        store.write(|txn| {
            txn.save_as("x", &Tensor::from_vec(vec![1i64; 5], &[5]).unwrap(), StorageKind::Mutable)
        }),
    )?;
    refused("a guard of an unnamed storage", x.lock_exclusive(), ErrorKind::Conflict)?;
    check_intact(play, &["x"])
}
