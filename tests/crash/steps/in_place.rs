//! Storages that are changed in place.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::simulated::{Outcome, SimulatedDisk};
use stridemap::disk::{Access, omit_step};
use stridemap::{DType, ErrorKind, LiveTensor, StorageKind, Store, StoreOptions};

use super::play::{Fate, Later, Play, STORE, create, expect_ok, holds, open, options, refused, replace};
use super::seat::{Seat, When};

const BIN: &str = "storages/0000000000000001.bin";

fn create_x(store: &Store) -> Fate {
    expect_ok("create", store.create_tensor("x", DType::I64, &[5], StorageKind::Mutable)).map(drop)
}

/// Two processes change the same tensor.
pub(crate) fn two_changes(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let same = expect_ok("load", open(&play.seat())?.load("x"))?;
    let _guard = expect_ok("the guard", x.lock_exclusive())?;
    refused("a second guard", same.lock_exclusive(), ErrorKind::Busy)
}

/// The file was replaced after the tensor was loaded.
pub(crate) fn replaced_file(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    replace(&*play.disk, &Path::new(STORE).join(BIN)).map_err(|e| e.to_string())?;
    refused("a guard of a replaced file", x.lock_exclusive(), ErrorKind::Stale)
}

/// The end of the file is missing.
pub(crate) fn truncated_file(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let file = play.disk.open(&Path::new(STORE).join(BIN), Access::Write).map_err(|e| e.to_string())?;
    file.set_len(8).map_err(|e| e.to_string())?;
    refused("the guard of a short file", x.lock_exclusive(), ErrorKind::Corrupt)
}

/// The file has a second name.
pub(crate) fn file_with_two_names(play: &Play) -> Fate {
    let path = play.dir.path().join(STORE);
    let store = expect_ok("create", options(&play.seat()).create(&path))?;
    create_x(&store)?;
    fs::hard_link(path.join(BIN), play.dir.path().join("backup")).unwrap();
    refused(
        "the guard of a file of two names",
        expect_ok("load", store.load("x"))?.lock_exclusive(),
        ErrorKind::Conflict,
    )
}

/// Checks that a power cut keeps the elements, and the mark that was set when they were flushed.
fn is_flushed(play: &Play) -> Fate {
    let left = SimulatedDisk::after_power_cut(&play.simulated.log(), Outcome::EverythingLost);
    let store = expect_ok("open", StoreOptions::new().disk(Arc::new(left)).open(STORE))?;
    let x = expect_ok("load", store.load("x"))?.allow_interrupted();
    let found: Vec<i64> = expect_ok("read", x.read())?;
    holds(format!("x is {found:?}, and not 7"), found == [7; 5])
}

/// A flush and then a power cut, on a file system where a read-only descriptor syncs nothing.
pub(crate) fn flushed_before_a_power_cut(play: &Play) -> Fate {
    let store = create(&play.seat().with(|quirks| quirks.syncs_by_writers = true))?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let mut guard = expect_ok("the guard", x.lock_exclusive())?;
    expect_ok("the flush", guard.fill_(7).and_then(|guard| guard.flush()))?;
    is_flushed(play)
}

/// The descriptor from loading has an unreported write error; the one that was opened later does not.
pub(crate) fn write_error_on_the_loaded_descriptor(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let mut guard = expect_ok("the guard", x.lock_exclusive())?;
    expect_ok("fill_", guard.fill_(7).map(drop))?;
    let inner = seat.clone();
    seat.trap(When::After, "sync", BIN, move || {
        inner.fail("sync", BIN);
        Ok(())
    });
    refused("the flush after lost writes", guard.flush(), ErrorKind::Io)?;
    holds("nothing was lost", seat.is_done())
}

/// A flush fails and is repeated.
pub(crate) fn flush_after_a_failed_one(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let mut guard = expect_ok("the guard", x.lock_exclusive())?;
    expect_ok("fill_", guard.fill_(7).map(drop))?;
    seat.fail("sync", BIN);
    refused("the flush", guard.flush(), ErrorKind::Io)?;
    drop(guard);
    // The handle is poisoned. Another handle of the process is too.
    let same = expect_ok("load", open(&seat)?.load("x"))?;
    refused("a guard after lost changes", same.lock_exclusive(), ErrorKind::Interrupted)?;
    let mut guard = expect_ok("the guard", same.allow_interrupted().lock_exclusive())?;
    refused("a flush after one that failed", guard.flush(), ErrorKind::Poisoned)
}

/// A writer changes a tensor in two writes, and is killed after each of its operations.
pub(crate) fn killed_during_a_change(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    create_x(&store)?;
    let x = expect_ok("load", store.load("x"))?;
    let (mut killed, before) = (play.simulated.power_cut(), play.simulated.log().len());
    let mut guard = expect_ok("the guard", x.lock_exclusive())?;
    for part in [x.narrow(0, 0, 2), x.narrow(0, 2, 3)] {
        let part = expect_ok("narrow", part)?;
        expect_ok("fill_", guard.at(&part).and_then(|mut guard| guard.fill_(7).map(drop)))?;
    }
    drop(guard);
    let mut found = Vec::new();
    for op in &play.simulated.log()[before..] {
        killed.apply(op);
        let options = StoreOptions::new().disk(Arc::new(killed.disk_after_kill()));
        let x = expect_ok("load", options.open(STORE).and_then(|store| store.load("x")))?;
        found.push(match x.read::<i64>() {
            Err(e) if e.kind() == ErrorKind::Interrupted => None,
            read => Some(expect_ok("read", read)?),
        });
    }
    let is_whole =
        |read: &Option<Vec<i64>>| read.as_ref().is_none_or(|x| x.iter().all(|element| *element == x[0]));
    holds(format!("half a change is read: {found:?}"), found.iter().all(is_whole))?;
    holds(format!("the mark stays: {found:?}"), found.last() == Some(&Some(vec![7; 5])))
}

/// Returns a mapped store with a live tensor that was changed and not flushed.
fn filled_live_tensor(play: &Play, seat: &Seat) -> Result<(Store, LiveTensor<i64>), String> {
    let path = play.dir.path().join(STORE);
    let store = expect_ok("create", options(seat).create(&path))?;
    let _ = expect_ok("create", store.create_tensor("x", DType::I64, &[5], StorageKind::Live))?;
    // SAFETY: only this test writes the store, through the library.
    let mapped = expect_ok("map", unsafe { options(seat).open_mapped(&path) })?;
    let x = expect_ok("as_live", mapped.load("x").and_then(|x| x.as_live::<i64>()))?;
    x.fill(7);
    Ok((mapped, x))
}

/// The descriptor of a live storage has an unreported write error.
pub(crate) fn write_error_on_live_elements(play: &Play) -> Fate {
    let seat = play.seat();
    let (mapped, x) = filled_live_tensor(play, &seat)?;
    seat.fail("sync", BIN);
    refused("the flush after lost writes", x.flush(), ErrorKind::Io)?;
    refused("the commit after it", mapped.write(|txn| txn.copy("x", "y")), ErrorKind::Poisoned)
}

/// Two threads flush lost changes at once, and the kernel reports the error to only one of them.
pub(crate) fn two_flushes_after_a_write_error(play: &Play) -> Fate {
    let seat = play.seat();
    let (_mapped, x) = filled_live_tensor(play, &seat)?;
    let (second, same, omitted) = (Arc::new(Later::new()), x.clone(), play.omitted);
    let result = Arc::clone(&second);
    seat.trap(When::Before, "sync", BIN, move || {
        let (done, is_done) = mpsc::channel();
        result.set(thread::spawn(move || {
            let _omitted = omit_step(omitted);
            let flushed = same.flush();
            let _ = done.send(());
            flushed
        }));
        // A flush that waits for this one cannot end before it. One that does not wait may take long.
        let patience = Duration::from_secs(if omitted.is_some() { 60 } else { 1 });
        let _ = is_done.recv_timeout(patience);
        Err(std::io::Error::other("injected fault"))
    });
    refused("the flush after lost writes", x.flush(), ErrorKind::Io)?;
    refused("the other flush of it", second.get()?.join().unwrap(), ErrorKind::Poisoned)
}

/// A flush and then a power cut. The process that created the tensor died before its name was durable.
pub(crate) fn flushed_after_a_writer_died(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    seat.fail("sync_dir", "meta");
    let created = store.create_tensor("x", DType::I64, &[5], StorageKind::Mutable);
    refused("the commit", created, ErrorKind::CommitUnknown)?;
    drop(store);
    let x = expect_ok("load", open(&play.seat())?.load("x"))?;
    let mut guard = expect_ok("the guard", x.lock_exclusive())?;
    expect_ok("the flush", guard.fill_(7).and_then(|guard| guard.flush()))?;
    is_flushed(play)
}
