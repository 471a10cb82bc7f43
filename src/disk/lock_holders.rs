//! The processes that hold file locks.

use std::collections::HashMap;
use std::fs;

use super::FileStat;

/// The processes that hold file locks at one moment, as far as the system reports them.
#[derive(Debug, Default)]
pub struct LockHolders(HashMap<String, Vec<u32>>);

impl LockHolders {
    /// Reads `/proc/locks`, which has lines such as `3: FLOCK ADVISORY WRITE 4711 08:01:131082 0 EOF`. The line of a
    /// waiting process has an arrow before `FLOCK`, and a process in a different namespace has the number 0.
    pub(super) fn read() -> Self {
        let mut holders = LockHolders::default();
        for line in fs::read_to_string("/proc/locks").unwrap_or_default().lines() {
            let mut fields = line.split_whitespace().skip(1);
            if fields.next() != Some("FLOCK") {
                continue;
            }
            let (process, place) = (fields.nth(2).and_then(|it| it.parse().ok()), fields.next());
            if let (Some(process @ 1..), Some(place)) = (process, place) {
                holders.0.entry(place.to_owned()).or_default().push(process);
            }
        }
        holders
    }

    /// Returns the processes that hold the lock of a file, each once.
    pub(crate) fn of(&self, stat: FileStat) -> Vec<u32> {
        let FileStat { device, inode, .. } = stat;
        let place = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
        let mut processes = self.0.get(&place).cloned().unwrap_or_default();
        processes.sort_unstable();
        processes.dedup();
        processes
    }
}
