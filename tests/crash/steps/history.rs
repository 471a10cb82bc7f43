//! Tags, readers of what they keep, and restores.

use stridemap::{DType, ErrorKind, Store};

use super::play::{
    Fate, Play, STORE, check_intact, create, expect_ok, has, holds, open, options, refused, vector,
};
use super::seat::When;

/// Creates a store in which the tag `t` keeps a tensor `x` of ones, and the newest generation has one of twos.
fn tagged_x(play: &Play) -> Result<Store, String> {
    let store = create(&play.seat())?;
    let first = store.write(|txn| {
        txn.save("x", &vector(1))?;
        txn.tag("t")
    });
    expect_ok("tag", first)?;
    expect_ok("replace", store.save("x", &vector(2)))?;
    Ok(store)
}

/// Checks that a new process finds ones at the tag `t`.
fn has_ones(play: &Play) -> Fate {
    let options = options(&play.seat()).at("t");
    has(&expect_ok("open at the tag", options.open(STORE))?, "x", 1)
}

/// What a tag keeps stays across commits and a collection.
pub(crate) fn storage_that_a_tag_keeps(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    for value in 3..6 {
        expect_ok("another", store.save("y", &vector(value)))?;
    }
    expect_ok("collect", open(&play.seat())?.gc())?;
    has_ones(play)
}

/// So does what an earlier generation needs that is tagged late, after the reader that held it has gone.
pub(crate) fn storage_that_a_late_tag_keeps(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("x", &vector(1)))?;
    let reader = open(&play.seat())?;
    expect_ok("replace", store.save("x", &vector(2)))?;
    expect_ok("tag", reader.tag("t"))?;
    drop(reader);
    for value in 3..6 {
        expect_ok("another", store.save("y", &vector(value)))?;
    }
    has_ones(play)
}

/// The table of a tagged generation.
pub(crate) fn table_that_a_tag_keeps(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    let save =
        |value| store.write(|txn| (0..80).try_for_each(|row| txn.save(&format!("row{row}"), &vector(value))));
    expect_ok("save", save(1))?;
    expect_ok("save x", store.save("x", &vector(1)))?;
    expect_ok("tag", store.tag("t"))?;
    for value in 2..5 {
        expect_ok("replace", save(value))?;
    }
    has_ones(play)
}

/// A tag is removed while a reader uses its generation.
pub(crate) fn tag_removed_under_a_reader(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    let reader = expect_ok("open at the tag", options(&play.seat()).at("t").open(STORE))?;
    expect_ok("remove the tag", store.untag("t"))?;
    for value in 3..6 {
        expect_ok("another", store.save("y", &vector(value)))?;
    }
    has(&reader, "x", 1)?;
    expect_ok("collect", open(&play.seat())?.gc())?;
    has(&reader, "x", 1)
}

/// The same, and the tag is made again before the reader goes, and then removed.
pub(crate) fn tag_made_again_under_a_reader(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    let reader = expect_ok("open at the tag", options(&play.seat()).at("t").open(STORE))?;
    expect_ok("remove the tag", store.untag("t"))?;
    let again = store.write(|txn| txn.tag_snapshot("u", &reader.snapshot()));
    expect_ok("tag again", again)?;
    expect_ok("remove the tag again", store.untag("u"))?;
    for value in 3..6 {
        expect_ok("another", store.save("y", &vector(value)))?;
    }
    has(&reader, "x", 1)
}

/// The same, and the tag stays when the reader goes.
pub(crate) fn tag_made_again_and_kept(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    let reader = expect_ok("open at the tag", options(&play.seat()).at("t").open(STORE))?;
    expect_ok("remove the tag", store.untag("t"))?;
    expect_ok("tag again", store.write(|txn| txn.tag_snapshot("t", &reader.snapshot())))?;
    drop(reader);
    for value in 3..6 {
        expect_ok("another", store.save("y", &vector(value)))?;
    }
    has_ones(play)
}

/// The power is cut, or the process killed, after the files of an untagged generation were deleted and before the
/// removal of the tag was published.
pub(crate) fn tag_removed_by_a_writer_that_fails(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    drop(store);
    let writer = play.seat();
    let store = open(&writer)?;
    writer.fail("rename_new", ".man");
    holds("the removal failed", store.untag("t").is_err())?;
    has_ones(play)
}

/// A collection by another process before a restore is published.
pub(crate) fn collection_during_a_restore(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    drop(store);
    let seat = play.seat();
    let store = open(&seat)?;
    let collector = open(&play.seat())?;
    let tagged = expect_ok("at", store.at("t"))?;
    seat.trap(When::Before, "open to write", "LOCK", move || {
        collector.untag("t").map_err(std::io::Error::other)?;
        collector.gc().map(drop).map_err(std::io::Error::other)
    });
    expect_ok("restore", store.restore(&tagged))?;
    holds("nothing came between", seat.is_done())?;
    has(&open(&play.seat())?, "x", 1)
}

/// Another process removes a tensor, and its file is deleted, before a transaction is published that restores a different
/// tensor and saves a view of this one.
pub(crate) fn view_of_a_removed_tensor_beside_a_restore(play: &Play) -> Fate {
    let store = tagged_x(play)?;
    expect_ok("another", store.save("y", &vector(3)))?;
    let second = open(&play.seat())?;
    let y = expect_ok("load", second.load("y"))?;
    let mut txn = expect_ok("begin", second.begin())?;
    let tagged = expect_ok("at", second.at("t"))?;
    expect_ok("restore", txn.restore(&tagged, "x"))?;
    expect_ok("save_view", txn.save_view("view", &y))?;
    expect_ok("remove", store.remove("y"))?;
    refused("the commit of the view", txn.commit(), ErrorKind::Conflict)?;
    check_intact(play, &["x"])
}

/// An append after a restore to fewer rows does not change the rows that a different tag keeps.
pub(crate) fn append_after_a_restore(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    let rows = |store: &Store| store.load("x").and_then(|x| x.read::<i64>());
    expect_ok("create", store.create_growable("x", DType::I64, &[0], 0))?;
    expect_ok("append", store.append("x", &vector(1)))?;
    expect_ok("tag", store.tag("short"))?;
    expect_ok("append", store.append("x", &vector(2)))?;
    expect_ok("tag", store.tag("long"))?;
    for removes_first in [false, true] {
        if removes_first {
            expect_ok("remove", store.remove("x"))?;
        }
        expect_ok("restore", store.restore(&expect_ok("at", store.at("short"))?))?;
        expect_ok("append", store.append("x", &vector(3)))?;
        let long = expect_ok("open", options(&play.seat()).at("long").open(STORE))?;
        let (found, expected) = (expect_ok("read", rows(&long))?, [[1; 5], [2; 5]].concat());
        holds(format!("the longer tag has {found:?}"), found == expected)?;
        let (found, expected) = (expect_ok("read", rows(&store))?, [[1; 5], [3; 5]].concat());
        holds(format!("the newest has {found:?}"), found == expected)?;
    }
    Ok(())
}
