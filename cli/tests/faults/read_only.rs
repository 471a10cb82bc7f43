//! Directories and mounts that cannot be written: readers work, writers are refused, and nothing changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use tempfile::TempDir;

use crate::run::{EXECUTABLE, is_root, output, refused, skip, succeed, try_output};
use crate::template;

/// The usual user id of `nobody`.
pub(crate) const NOBODY: u32 = 65534;

const READERS: [&[&str]; 8] = [
    &["verify", "s.smap"],
    &["salvage", "s.smap", "-n", "--json"],
    &["info", "--all", "s.smap", "--json"],
    &["info", "s.smap"],
    &["tree", "s.smap"],
    &["ls", "s.smap"],
    &["show", "s.smap", "log[-5:]"],
    &["du", "s.smap"],
];

const WRITERS: [&[&str]; 16] = [
    &["import", "rows.npy", "s.smap"],
    &["import", "rows.npy", "new.smap"],
    &["append", "s.smap", "log", "rows.npy"],
    &["view", "s.smap", "kept[::2]", "new"],
    &["mv", "s.smap", "kept", "moved"],
    &["rm", "s.smap", "kept"],
    &["view", "s.smap", "kept", "copied"],
    &["compact", "s.smap"],
    &["import", "rows.npy", "s.smap", "-n"],
    &["import", "rows.npy", "new.smap", "-n"],
    &["append", "s.smap", "log", "rows.npy", "-n"],
    &["view", "s.smap", "kept[::2]", "new", "-n"],
    &["rm", "s.smap", "kept", "-n"],
    &["attr", "set", "s.smap", "unit", "m", "-n"],
    &["export", "s.smap", "new.smap", "-n"],
    &["report", "s.smap", "-o", "s.smap.html", "-n"],
];

/// Creates a directory with the store and the executable that every user can read.
fn readable() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    template::make(dir.path());
    fs::copy(EXECUTABLE, dir.path().join("stridemap")).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Returns the modification time and the length of each file.
fn files(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, u64)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        files.insert(path.clone(), (found.modified().unwrap(), found.len()));
        if found.is_dir() {
            files.extend(self::files(&path));
        }
    }
    files
}

/// Runs every command there, as the user that `become_who` sets.
fn check_that_readers_work_and_writers_are_refused(dir: &Path, why: &str, become_who: impl Fn(&mut Command)) {
    let run = |args: &[&str]| {
        let mut command = Command::new(dir.join("stridemap"));
        command.args(args).current_dir(dir);
        become_who(&mut command);
        output(&mut command)
    };
    let before = files(dir);
    for args in READERS {
        let ended = run(args);
        // `verify` notes the leftovers of crashed writers, and no command deletes them here.
        let is_note = |line: &str| args[0] == "verify" && line.starts_with("stridemap: note: ");
        let are_notes = String::from_utf8_lossy(&ended.stderr).lines().all(is_note);
        assert!(ended.status.success() && are_notes, "{args:?}: {ended:?}");
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), succeed(dir, args), "{args:?}");
    }
    for args in WRITERS {
        let line = refused(&run(args));
        assert!(line.contains(why) && line.contains(".smap"), "{args:?}: {line}");
    }
    assert_eq!(files(dir), before);
}

#[test]
fn unwritable_directory_serves_readers_and_refuses_writers() {
    let dir = readable();
    if rustix::process::geteuid().is_root() {
        return check_that_readers_work_and_writers_are_refused(dir.path(), "Permission denied", |command| {
            command.uid(NOBODY).gid(NOBODY);
        });
    }
    let mode = |mode: u32, files: &BTreeMap<PathBuf, (SystemTime, u64)>| {
        let all = files.keys().map(PathBuf::as_path).chain([dir.path()]);
        for path in all.filter(|path| path.is_dir() || !path.ends_with("stridemap")) {
            let bits = if path.is_dir() { mode | 0o111 } else { mode };
            fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
        }
    };
    let all = files(dir.path());
    mode(0o444, &all);
    check_that_readers_work_and_writers_are_refused(dir.path(), "Permission denied", |_| ());
    mode(0o644, &all);
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = try_output(Command::new("umount").arg("-l").arg(&self.0));
    }
}

#[test]
fn read_only_mount_serves_readers_and_refuses_writers() {
    if !is_root() {
        return;
    }
    let dir = readable();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = place.path().join("mounted");
    fs::create_dir(&path).unwrap();
    let bound = output(Command::new("mount").arg("--bind").arg(dir.path()).arg(&path));
    if !bound.status.success() {
        return skip("STRIDEMAP_REQUIRE_ROOT", &format!("no directory can be mounted here: {bound:?}"));
    }
    let mounted = Mounted(path);
    let remounted = output(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&mounted.0));
    assert!(remounted.status.success(), "{remounted:?}");
    check_that_readers_work_and_writers_are_refused(&mounted.0, "Read-only file system", |_| ());
    // A read-only file system refuses writes before it checks the user.
    check_that_readers_work_and_writers_are_refused(&mounted.0, "", |command| {
        command.uid(NOBODY).gid(NOBODY);
    });
}
