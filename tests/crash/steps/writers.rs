//! Writers that act between the steps of another writer.

use std::path::Path;

use stridemap::{ErrorKind, Tensor};

use super::play::{
    Fate, Later, Play, STORE, bytes, check_intact, create, expect_ok, has, holds, open, refused, replace,
    vector,
};
use super::seat::When;

/// Another writer commits just before the manifest is renamed.
pub(crate) fn commit_before_the_rename(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    let second = open(&other)?;
    let (came, late) = (Later::new(), second.clone());
    let result = came.clone();
    one.trap(When::Before, "rename_new", ".man", move || {
        result.set(late.save("second", &vector(2)));
        Ok(())
    });
    expect_ok("the first commit", store.save("first", &vector(1)))?;
    match came.get()? {
        Err(e) if e.kind() == ErrorKind::Busy => {
            expect_ok("the second commit", second.save("second", &vector(2)))?
        }
        done => expect_ok("the second commit", done)?,
    }
    check_intact(play, &["first", "second"])
}

/// Another writer commits after a transaction began.
pub(crate) fn commit_after_begin(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    let second = open(&other)?;
    let mut txn = expect_ok("begin", second.begin())?;
    expect_ok("save", txn.save("second", &vector(2)))?;
    expect_ok("the first commit", store.save("first", &vector(1)))?;
    expect_ok("the second commit", txn.commit())?;
    check_intact(play, &["first", "second"])?;
    has(&open(&play.seat())?, "first", 1)
}

/// A name is renamed after another writer replaced its tensor. A second name keeps the old tensor.
pub(crate) fn rename_of_a_replaced_tensor(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    expect_ok("save", store.save("x", &vector(1)))?;
    expect_ok("copy", store.write(|txn| txn.copy("x", "tie")))?;
    let second = open(&other)?;
    let mut txn = expect_ok("begin", second.begin())?;
    expect_ok("rename", txn.rename("x", "y"))?;
    expect_ok("replace", store.save("x", &vector(2)))?;
    expect_ok("commit", txn.commit())?;
    check_intact(play, &["tie", "y"])?;
    has(&open(&play.seat())?, "y", 2)
}

/// A transaction reads a tensor that another writer then replaces.
pub(crate) fn change_of_what_was_read(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    expect_ok("the first save", store.save("count", &vector(0)))?;
    let second = open(&other)?;
    let mut txn = expect_ok("begin", second.begin())?;
    let _ = expect_ok("load", txn.load("count"))?;
    expect_ok("save", txn.save("count", &vector(1)))?;
    expect_ok("the first commit", store.save("count", &vector(5)))?;
    refused("the commit of an earlier read", txn.commit(), ErrorKind::Conflict)?;
    has(&open(&play.seat())?, "count", 5)
}

/// A view is saved of a tensor that another writer removes.
pub(crate) fn view_of_a_removed_tensor(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    expect_ok("save", store.save("x", &vector(1)))?;
    let second = open(&other)?;
    let x = expect_ok("load", second.load("x"))?;
    let mut txn = expect_ok("begin", second.begin())?;
    expect_ok("save_view", txn.save_view("view", &x))?;
    expect_ok("remove", store.remove("x"))?;
    refused("the commit of the view", txn.commit(), ErrorKind::Conflict)?;
    check_intact(play, &[])
}

/// A compaction copies a storage while another writer replaces the tensor of one of its names.
pub(crate) fn tensor_replaced_during_compaction(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    expect_ok("save", store.save("all", &Tensor::from_vec(vec![1i64; 4000], &[4000]).unwrap()))?;
    let all = expect_ok("load", store.load("all"))?;
    expect_ok("save_view", store.save_view("half", &all.slice(0, None, None, 2).unwrap()))?;
    expect_ok("remove", store.remove("all"))?;
    drop(all);
    let second = open(&other)?;
    one.trap(When::After, "create_staged", "storages", move || {
        second.save("half", &vector(2)).map_err(std::io::Error::other)
    });
    expect_ok("compact", store.compact(false, |_| ()))?;
    holds("nothing came between", one.is_done())?;
    check_intact(play, &["half"])?;
    has(&open(&play.seat())?, "half", 2)
}

/// LOCK is replaced after it is opened and before it is locked.
pub(crate) fn lock_replaced_before_it_is_taken(play: &Play) -> Fate {
    let one = play.seat();
    let store = create(&one)?;
    let disk = play.disk.clone();
    one.trap(When::After, "open to write", "LOCK", move || replace(&*disk, &Path::new(STORE).join("LOCK")));
    refused("the commit under a replaced lock", store.save("x", &vector(1)), ErrorKind::Stale)?;
    check_intact(play, &[])
}

/// LOCK is replaced while a writer holds it, and another writer commits under the new file.
pub(crate) fn lock_replaced_while_it_is_held(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    expect_ok("save", store.save("x", &vector(1)))?;
    let second = open(&other)?;
    let disk = play.disk.clone();
    one.trap(When::Before, "create_staged", "meta", move || {
        replace(&*disk, &Path::new(STORE).join("LOCK"))?;
        second.write(|txn| txn.copy("x", "second")).map_err(std::io::Error::other)
    });
    refused(
        "the commit that was overtaken",
        store.write(|txn| txn.copy("x", "first")),
        ErrorKind::CommitUnknown,
    )?;
    check_intact(play, &["second", "x"])
}

/// A sync fails, and the same handle commits again.
pub(crate) fn commit_after_a_failed_sync(play: &Play) -> Fate {
    let one = play.seat();
    let store = create(&one)?;
    one.fail("sync_dir", "meta");
    refused("the commit", store.save("x", &vector(1)), ErrorKind::CommitUnknown)?;
    refused("a commit after a failed sync", store.save("y", &vector(2)), ErrorKind::Poisoned)?;
    refused("a collection after a failed sync", store.gc(), ErrorKind::Poisoned)
}

/// A sync fails while another thread waits for the lock with the same handle.
pub(crate) fn commit_waiting_for_a_failed_one(play: &Play) -> Fate {
    let one = play.seat();
    let store = create(&one)?;
    expect_ok("save", store.save("x", &vector(1)))?;
    one.fail("sync_dir", "meta");
    let (came, other) = (Later::new(), store.clone());
    let result = came.clone();
    one.trap(When::After, "unlock", "LOCK", move || {
        result.set(other.write(|txn| txn.copy("x", "y")));
        Ok(())
    });
    refused("the commit", store.write(|txn| txn.copy("x", "z")), ErrorKind::CommitUnknown)?;
    refused("the commit that came next", came.get()?, ErrorKind::Poisoned)
}

/// A commit fails after its storages have their names, and the next commit assigns the same ids.
pub(crate) fn orphans_of_a_failed_commit(play: &Play) -> Fate {
    let one = play.seat();
    let store = create(&one)?;
    one.fail("rename_new", ".man");
    refused("the commit", store.save("large", &bytes(1_100_000, 1)), ErrorKind::CommitUnknown)?;
    drop(store);
    let storages = || {
        let mut names = play.disk.list(&Path::new(STORE).join("storages")).unwrap();
        names.sort();
        names
    };
    let (bin, sum) = ("0000000000000001.bin".to_owned(), "0000000000000001.sum".to_owned());
    holds("nothing to clean up", storages() == [bin.clone(), sum])?;
    expect_ok("the next commit", open(&play.seat())?.save("x", &vector(1)))?;
    let left = storages();
    holds(format!("{left:?} are left"), left == [bin])?;
    check_intact(play, &["x"])
}

/// An unfinished storage of one writer exists while another writer collects.
pub(crate) fn unfinished_storage_of_a_running_writer(play: &Play) -> Fate {
    let (one, other) = (play.seat(), play.seat());
    let store = create(&one)?;
    let mut txn = expect_ok("begin", store.begin())?;
    expect_ok("save", txn.save("first", &vector(1)))?;
    expect_ok("the other's commit", open(&other)?.save("second", &vector(2)))?;
    expect_ok("the commit", txn.commit())?;
    check_intact(play, &["first", "second"])
}
