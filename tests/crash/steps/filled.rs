//! Storages that other processes fill before the commit.

use std::path::Path;

use stridemap::disk::Access;
use stridemap::import::StagedFile;
use stridemap::{DType, Error, ErrorKind, Header, Store};

use super::play::{Fate, Play, check_intact, create, expect_ok, holds, open, vector};
use super::power::Story;

/// Two full chunks and a part of one.
const LENGTH_BYTES: usize = (2 << 20) + 7;

fn commit(store: &Store, name: &str, file: StagedFile) -> stridemap::Result<()> {
    store.write(|txn| {
        let key = txn.stage_file(file)?;
        txn.save_header(name, &Header::contiguous(DType::U8, &[LENGTH_BYTES]).unwrap(), key)
    })
}

/// Writes half of a file, in a process of its own.
fn fill(play: &Play, path: &Path, half: usize) -> Fate {
    let middle = LENGTH_BYTES / 2;
    let range = if half == 0 { 0..middle } else { middle..LENGTH_BYTES };
    let opened = play.seat().disk().open(path, Access::Write);
    let written =
        opened.and_then(|file| file.write_all_at(&vec![half as u8 + 1; range.len()], range.start as u64));
    written.map_err(|e| format!("the writer of half {half} failed: {e}"))
}

fn has_both_halves(store: &Store, name: &str) -> Fate {
    let found = expect_ok("load", store.load(name).and_then(|tensor| tensor.read::<u8>()))?;
    let (first, second) = found.split_at(found.len() / 2);
    let is_so = first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2);
    holds("a part of the storage is not what its writer wrote", is_so && found.len() == LENGTH_BYTES)
}

/// Another writer commits between the two that fill a storage.
pub(crate) fn storage_that_others_fill(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    let file = expect_ok("stage", store.stage_file(LENGTH_BYTES as u64))?;
    fill(play, file.path(), 0)?;
    expect_ok("a commit between", open(&play.seat())?.save("between", &vector(2)))?;
    fill(play, file.path(), 1)?;
    expect_ok("the commit", commit(&store, "filled", file))?;
    has_both_halves(&open(&play.seat())?, "filled")?;
    check_intact(play, &["between", "filled"])
}

/// One storage is filled and committed, and another is dropped when it is half filled.
pub(super) fn power_cuts(play: &Play) -> Fate {
    let failed = |why: String| Error::new(ErrorKind::Io, why);
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("fill and commit", || {
        let file = store.stage_file(LENGTH_BYTES as u64)?;
        (0..2).try_for_each(|half| fill(play, file.path(), half)).map_err(failed)?;
        commit(&store, "filled", file)
    })?;
    story.step("fill and drop", || {
        let file = store.stage_file(LENGTH_BYTES as u64)?;
        fill(play, file.path(), 0).map_err(failed)
    })?;
    story.explore(from)
}
