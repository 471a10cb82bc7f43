//! A tmpfs of a few MiB that a test can fill. Skipped, with the reason printed, if it cannot be mounted.

use std::path::PathBuf;
use std::process::Command;

use super::processes::run_to_end;
use crate::support::{skip, temporary};

pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    pub(crate) fn mount(size: &str) -> Option<SmallDisk> {
        let dir = temporary();
        let path = dir.path().join("small");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&path).output();
        if !output.as_ref().is_ok_and(|output| output.status.success()) {
            skip("STRIDEMAP_REQUIRE_ROOT", &format!("a tmpfs cannot be mounted here: {output:?}"));
            return None;
        }
        Some(SmallDisk { path, _dir: dir })
    }

    /// Runs a role on the disk, in a process that starts no others. A child of another test inherits the open files of
    /// this process until it calls `exec`, and until then a deleted file still takes space.
    pub(crate) fn run_role(&self, role: &str) {
        run_to_end(role, &self.path);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
