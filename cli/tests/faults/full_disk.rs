//! A real full disk: a tmpfs with a given number of free blocks, from none up to the number that the command needs.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::run::{is_root, output, refused, skip, stridemap, succeed, try_output};
use crate::template::{self, assert_usable, content, matching_content};

const BLOCK_BYTES: u64 = 4096;

struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Returns `None`, and prints the reason, if it cannot be mounted.
    fn mount(size: &str) -> Option<SmallDisk> {
        if !is_root() {
            return None;
        }
        let disk = SmallDisk { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(disk.path()).unwrap();
        let mut command = Command::new("mount");
        let mounted =
            output(command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(disk.path()));
        if !mounted.status.success() {
            skip("STRIDEMAP_REQUIRE_ROOT", &format!("a tmpfs cannot be mounted here: {mounted:?}"));
            return None;
        }
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("small")
    }

    /// Fills the disk except for `blocks` blocks.
    fn leave(&self, blocks: u64) {
        let mut filler = File::create(self.path().join("filler")).unwrap();
        let mut length_bytes = 0u64;
        while let Ok(n) = filler.write(&[0; BLOCK_BYTES as usize]) {
            length_bytes += n as u64;
        }
        filler.set_len(length_bytes.saturating_sub(blocks * BLOCK_BYTES)).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = try_output(Command::new("umount").arg("-l").arg(self.path()));
    }
}

/// Replaces a directory with a copy of another.
fn put(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = output(Command::new("cp").arg("-r").arg(from).arg(to));
    assert!(copied.status.success(), "{copied:?}");
}

/// Runs a command with more and more free blocks until it succeeds. `actions` are the beginnings of its messages on a
/// full disk.
fn with_increasing_space(args: &[&str], actions: &[&str]) {
    let Some(disk) = SmallDisk::mount("12m") else { return };
    let template = tempfile::tempdir().unwrap();
    template::make(template.path());
    // Leaves no garbage: deleting it would free space.
    stridemap::Store::open(template.path().join("s.smap")).unwrap().gc().unwrap();
    for file in ["many.safetensors", "rows.npy"] {
        fs::copy(template.path().join(file), disk.path().join(file)).unwrap();
    }
    let path = disk.path().join("s.smap");
    let before = content(&template.path().join("s.smap")).unwrap();
    let (mut blocks, mut refusals) = (0, 0);
    loop {
        put(&template.path().join("s.smap"), &path);
        disk.leave(blocks);
        let ended = output(&mut stridemap(&disk.path(), args));
        let what = format!("{args:?} with {blocks} blocks left");
        let is_done = ended.status.success();
        if !is_done {
            let line = refused(&ended);
            assert!(line.contains("No space left on device") && line.contains("s.smap"), "{what}: {line}");
            assert!(actions.iter().any(|action| line.contains(action)), "{what}: {line}");
            matching_content(&path, &[&before], &what);
            refusals += 1;
        }
        disk.make_room();
        if is_done {
            break;
        }
        // The refused command succeeds once there is space.
        assert_usable(&disk.path(), "s.smap", &what);
        succeed(&disk.path(), args);
        assert!(blocks < 10_000, "{what}: never enough");
        blocks += 1 + blocks / 8;
    }
    matching_content(&path, &[&content(&path).unwrap()], "done");
    println!("{args:?}: refused {refusals} times, done with {blocks} blocks left");
    assert!(refusals > 0, "{args:?}: succeeds on a full disk");
}

#[test]
fn import_on_a_full_disk_leaves_the_old_content() {
    let actions = ["import", "write a manifest in", "write a table in"];
    with_increasing_space(&["import", "many.safetensors", "rows.npy", "s.smap"], &actions);
}

#[test]
fn append_on_a_full_disk_leaves_the_old_content() {
    let actions = ["append", "stage chunk digests in", "write a manifest in"];
    with_increasing_space(&["append", "s.smap", "log", "rows.npy", "rows.npy"], &actions);
}

#[test]
fn compact_on_a_full_disk_leaves_the_old_content() {
    with_increasing_space(&["compact", "s.smap"], &["allocate storage", "write a manifest in"]);
}

#[test]
fn manifest_on_a_full_disk_leaves_the_old_content() {
    for args in [
        &["view", "s.smap", "kept[::2]", "new"][..],
        &["mv", "s.smap", "kept", "moved"],
        &["rm", "s.smap", "kept"],
    ] {
        with_increasing_space(args, &["write a manifest in"]);
    }
}
