//! Files that another process puts into the directories of an open store.

use std::io;
use std::path::{Path, PathBuf};

use stridemap::ErrorKind;
use stridemap::disk::{Access, Disk};

use super::play::{Fate, Play, STORE, check_intact, create, expect_ok, open, refused, vector};

const DIRS: [&str; 2] = ["meta", "storages"];

fn path(of: &str, dir: &str) -> PathBuf {
    Path::new(of).join(dir)
}

/// Copies the files of a directory into another, which is created if it does not exist.
fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    if disk.is_dir(to).is_err() {
        disk.create_dir(to)?;
    }
    for name in disk.list(from)? {
        let file = disk.open(&from.join(&name), Access::Read)?;
        let mut bytes = vec![0; file.stat()?.size_bytes as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let (staged, copy) = disk.create_staged(to)?;
        copy.write_all_at(&bytes, 0)?;
        disk.rename_new(&staged, &to.join(&name))?;
    }
    Ok(())
}

/// An older copy is restored into the directories of a store, and another process commits there.
pub(crate) fn copy_restored_under_a_handle(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("old", &vector(1)))?;
    let disk = &*play.disk;
    disk.create_dir(Path::new("backup")).unwrap();
    DIRS.iter().for_each(|dir| copy(disk, &path(STORE, dir), &path("backup", dir)).unwrap());
    expect_ok("save", store.save("lost", &vector(2)))?;
    for dir in DIRS {
        let names = disk.list(&path(STORE, dir)).unwrap();
        names.iter().for_each(|name| disk.remove(&path(STORE, dir).join(name)).unwrap());
        copy(disk, &path("backup", dir), &path(STORE, dir)).unwrap();
    }
    expect_ok("the other's commit", open(&play.seat())?.save("new", &vector(3)))?;
    refused("the commit", store.save("late", &vector(4)), ErrorKind::Stale)?;
    refused("the collection", store.gc(), ErrorKind::Stale)?;
    check_intact(play, &["new", "old"])
}

/// A directory is replaced with a copy of it, and another process commits there.
pub(crate) fn directory_replaced_under_a_handle(play: &Play) -> Fate {
    let store = create(&play.seat())?;
    expect_ok("save", store.save("old", &vector(1)))?;
    let disk = &*play.disk;
    disk.rename_new(&path(STORE, "meta"), Path::new("moved")).unwrap();
    copy(disk, Path::new("moved"), &path(STORE, "meta")).unwrap();
    expect_ok("the other's commit", open(&play.seat())?.save("new", &vector(3)))?;
    refused("the commit", store.save("late", &vector(4)), ErrorKind::Stale)?;
    check_intact(play, &["new", "old"])
}
