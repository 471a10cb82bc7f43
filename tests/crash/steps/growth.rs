//! Appends, and the files and processes that interfere with them.

use std::fs;
use std::io;
use std::path::Path;

use stridemap::disk::Access;
use stridemap::{DType, ErrorKind, Store};

use super::play::{
    Fate, Play, STORE, bytes, check_intact, create, expect_ok, holds, open, options, refused, replace, vector,
};
use super::seat::When;

const BIN: &str = "storages/0000000000000001.bin";
const MIB: usize = 1 << 20;

fn length(store: &Store, name: &str) -> Result<usize, String> {
    Ok(expect_ok("load", store.load(name))?.numel())
}

/// A second writer appends while a first one appends to the same storage.
pub(crate) fn two_appends(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("create", store.create_growable("log", DType::U8, &[100], 0))?;
    let other = open(&play.seat())?;
    let mut txn = expect_ok("begin", store.begin())?;
    // An append of more than a chunk is written immediately.
    expect_ok("append", txn.append("log", &bytes(MIB, 1)))?;
    let busy = match other.append("log", &bytes(10, 2)) {
        Err(e) if e.kind() == ErrorKind::Busy => true,
        done => expect_ok("the other's append", done).map(|_| false)?,
    };
    expect_ok("the commit of the first", txn.commit())?;
    if busy {
        expect_ok("the other's append", other.append("log", &bytes(10, 2)))?;
    }
    check_intact(play, &["log"])?;
    let found = length(&open(&play.seat())?, "log")?;
    holds(format!("{found} elements"), found == 100 + MIB + 10)
}

/// The same on a file system that does not show one machine the locks of another, with two names that end the storage.
pub(crate) fn two_appends_without_visible_locks(play: &Play) -> Fate {
    let store = create(&play.seat().with(|quirks| quirks.has_blind_locks = true))?;
    expect_ok("create", store.create_growable("log", DType::U8, &[100], 0))?;
    let log = expect_ok("load", store.load("log"))?;
    expect_ok("save_view", store.save_view("end", &log.slice(0, Some(50), None, 1).unwrap()))?;
    let other = open(&play.seat().with(|quirks| quirks.has_blind_locks = true))?;
    let mut txn = expect_ok("begin", store.begin())?;
    expect_ok("append", txn.append("log", &bytes(MIB, 1)))?;
    expect_ok("the other's append", other.append("end", &bytes(10, 2)))?;
    refused("the commit of the writer that missed the other", txn.commit(), ErrorKind::Conflict)?;
    check_intact(play, &["end", "log"])
}

/// Another process appends, while each listing for the newest generation misses the current commits. The previous
/// generation is held, and so is every generation in the listing.
pub(crate) fn append_after_an_unlisted_commit(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("create", store.create_growable("log", DType::U8, &[0], 0))?;
    expect_ok("another", store.save("y", &vector(1)))?;
    let seat = play.seat().with(|quirks| quirks.lists_slowly = true);
    let other = open(&seat)?;
    let (first, second, inner) = (store.clone(), store, seat.clone());
    seat.trap(When::Before, "open to write", BIN, move || {
        for name in ["a", "b"] {
            let second = second.clone();
            inner.trap(When::Before, "list", "meta", move || match second.write(|txn| txn.copy("y", name)) {
                Err(e) if e.kind() == ErrorKind::Busy => Ok(()),
                done => done.map_err(io::Error::other),
            });
        }
        first.append("log", &bytes(MIB, 1)).map(drop).map_err(io::Error::other)
    });
    expect_ok("the append", other.append("log", &bytes(MIB, 2)))?;
    holds("nothing came between", seat.is_done())?;
    let found = length(&open(&play.seat())?, "log")?;
    holds(format!("{found} elements"), found == 2 * MIB)
}

/// The file is replaced after it is opened and before it is locked.
pub(crate) fn file_replaced_before_it_is_locked(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    expect_ok("create", store.create_growable("log", DType::U8, &[100], 0))?;
    let disk = play.disk.clone();
    seat.trap(When::After, "open to write", BIN, move || replace(&*disk, &Path::new(STORE).join(BIN)));
    refused("the append to a file that is gone", store.append("log", &bytes(10, 1)), ErrorKind::Corrupt)?;
    check_intact(play, &["log"])
}

/// The file has lost its last chunk.
pub(crate) fn truncated_file(play: &Play) -> Fate {
    let path = play.dir.path().join(STORE);
    let store = expect_ok("create", options(&play.seat()).create(&path))?;
    expect_ok("create", store.create_growable("log", DType::U8, &[2 * MIB], 0))?;
    fs::File::options().write(true).open(path.join(BIN)).unwrap().set_len(MIB as u64).unwrap();
    refused("the append to a short file", store.append("log", &bytes(10, 1)), ErrorKind::Corrupt)
}

/// The last bytes have changed.
pub(crate) fn damaged_tail(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("create", store.create_growable("log", DType::U8, &[100], 0))?;
    let file = play.disk.open(&Path::new(STORE).join(BIN), Access::Write).map_err(|e| e.to_string())?;
    file.write_all_at(&[1], 7).map_err(|e| e.to_string())?;
    let appended = store.append("log", &bytes(10, 1));
    let findings = expect_ok("verify", open(&play.seat())?.verify(|_| ()))?.findings;
    holds("the damage was given a digest of its own", !findings.is_empty())?;
    refused("the append to damaged bytes", appended, ErrorKind::Corrupt)
}

/// The file has a second name.
pub(crate) fn file_with_two_names(play: &Play) -> Fate {
    let path = play.dir.path().join(STORE);
    let store = expect_ok("create", options(&play.seat()).create(&path))?;
    expect_ok("create", store.create_growable("log", DType::U8, &[100], 0))?;
    let backup = play.dir.path().join("backup");
    fs::hard_link(path.join(BIN), &backup).unwrap();
    let appended = store.append("log", &bytes(10, 1));
    let found = fs::metadata(backup).unwrap().len();
    holds(format!("the backup has grown to {found} bytes"), found == 100)?;
    refused("the append to a file of two names", appended, ErrorKind::Conflict)
}

/// A malformed store: the growing file is also another storage, which is longer and borrowed.
pub(crate) fn borrowed_file(play: &Play) -> Fate {
    let path = play.dir.path().join(STORE);
    let seat = play.seat();
    let store = expect_ok("create", options(&seat).create(&path))?;
    expect_ok("create", store.create_growable("short", DType::U8, &[16], 0))?;
    expect_ok("create", store.create_growable("long", DType::U8, &[48], 0))?;
    // SAFETY: only this test writes the store, and no element is borrowed while it does.
    let mapped = expect_ok("map", unsafe { options(&seat).open_mapped(&path) })?;
    let long = expect_ok("load", mapped.load("long"))?;
    expect_ok("borrow", long.as_slice::<u8>().map(drop))?;
    fs::rename(path.join("storages/0000000000000002.bin"), path.join(BIN)).unwrap();
    refused("the append to borrowed bytes", store.append("short", &bytes(16, 1)), ErrorKind::Corrupt)
}
