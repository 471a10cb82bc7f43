use std::collections::HashMap;
use std::fs;

use super::FileStat;

/// The processes that hold locks of files, as far as the system says so, at one moment.
#[derive(Debug, Default)]
pub struct LockHolders(HashMap<String, Vec<u32>>);

impl LockHolders {
    /// Reads `/proc/locks`: `3: FLOCK  ADVISORY  WRITE 4711 08:01:131082 0 EOF`. A process that waits has an arrow before its
    /// `FLOCK`, and one of another namespace the number 0.
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

    /// Those that hold the lock of a file, each once.
    pub(crate) fn of(&self, stat: FileStat) -> Vec<u32> {
        let FileStat { device, inode, .. } = stat;
        let place = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
        let mut processes = self.0.get(&place).cloned().unwrap_or_default();
        processes.sort_unstable();
        processes.dedup();
        processes
    }
}
