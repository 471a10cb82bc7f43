//! The processes that hold file locks.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;

use super::FileStat;

/// The processes that hold file locks at one moment, as far as the system reports them.
#[derive(Debug, Default)]
pub struct LockHolders {
    /// The processes that lock a file, by its place: `08:01:131082`.
    processes: HashMap<String, Vec<u32>>,
    /// The device of each mount, `08:01`, by the number of the mount.
    devices: HashMap<String, String>,
}

impl LockHolders {
    /// Reads `/proc/locks`, which has lines such as `3: FLOCK ADVISORY WRITE 4711 08:01:131082 0 EOF`. The line of a
    /// waiting process has an arrow before `FLOCK`, and a process in a different namespace has the number 0.
    pub(super) fn read() -> Self {
        let mut holders = LockHolders { processes: HashMap::new(), devices: devices_of_mounts() };
        // The kernel lists them a page at a time. A lock that is released in between shifts the rest, so that a line is
        // left out.
        let text = [(); 2].map(|()| fs::read_to_string("/proc/locks").unwrap_or_default()).concat();
        for line in text.lines() {
            let mut fields = line.split_whitespace().skip(1);
            if fields.next() != Some("FLOCK") {
                continue;
            }
            let (process, place) = (fields.nth(2).and_then(|it| it.parse().ok()), fields.next());
            if let (Some(process @ 1..), Some(place)) = (process, place) {
                holders.processes.entry(place.to_owned()).or_default().push(process);
            }
        }
        holders
    }

    /// Returns the processes that hold the lock of a file, each once.
    pub(super) fn of(&self, file: &File, stat: FileStat) -> Vec<u32> {
        let of_stat = || spelled(rustix::fs::major(stat.device), rustix::fs::minor(stat.device));
        let of_mount = mount_of(file).and_then(|mount| self.devices.get(&mount).cloned());
        let place = format!("{}:{}", of_mount.unwrap_or_else(of_stat), stat.inode);
        let mut processes = self.processes.get(&place).cloned().unwrap_or_default();
        processes.sort_unstable();
        processes.dedup();
        processes
    }
}

/// Spells a device as `/proc/locks` does.
fn spelled(major: u32, minor: u32) -> String {
    format!("{major:02x}:{minor:02x}")
}

/// Reads `/proc/self/mountinfo`, which has lines such as `36 35 8:1 / / rw - ext4 /dev/sda1 rw`. Its devices are those
/// of `/proc/locks`. Those of `stat` are not: on btrfs each subvolume has one of its own.
fn devices_of_mounts() -> HashMap<String, String> {
    let device = |line: &str| {
        let mut fields = line.split(' ');
        let (mount, (major, minor)) = (fields.next()?, fields.nth(1)?.split_once(':')?);
        Some((mount.to_owned(), spelled(major.parse().ok()?, minor.parse().ok()?)))
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(device).collect()
}

/// Returns the number of the mount that a file was opened on.
fn mount_of(file: &File) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| Some(line.strip_prefix("mnt_id:")?.trim().to_owned()))
}
