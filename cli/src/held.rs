//! Files that are no longer needed, but that readers still use.

use std::collections::BTreeSet;

use indicatif::HumanBytes;
use stridemap::maintenance::{DiskUsage, SpaceReason};

use crate::ui::message;

/// Returns the bytes that cannot be deleted yet, and the readers that hold them.
pub(crate) fn held(usage: &DiskUsage) -> (u64, BTreeSet<u32>) {
    let (mut bytes, mut readers) = (0u64, BTreeSet::new());
    for file in &usage.spare {
        if let SpaceReason::Pinned { processes, .. } = &file.reason {
            bytes = bytes.saturating_add(file.spare_bytes);
            readers.extend(processes);
        }
    }
    (bytes, readers)
}

/// Reports the bytes that cannot be deleted yet because readers hold them.
pub(crate) fn report_held_bytes(usage: &DiskUsage) {
    let (bytes, processes) = held(usage);
    if bytes > 0 {
        let processes: Vec<String> = processes.into_iter().map(|id| format!(" {id}")).collect();
        let bytes = HumanBytes(bytes);
        message(&format!(
            "{bytes} are held by readers on older generations (process{}); the next commit or compaction after they \
             end frees them",
            processes.concat()
        ));
    }
}
