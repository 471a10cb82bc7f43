use std::fs::File;
use std::io;

use super::mapping::start_writeback;

/// How many bytes are written before the system is told to bring them to disk.
const WRITEBACK_BYTES: u64 = 8 << 20;

/// Brings the bytes of a file to disk while more are written. The sync in the end then has little left to do.
///
/// No state after a crash is new, because the system may write pages to disk at any time.
#[derive(Debug, Default)]
pub struct Writeback {
    started_bytes: u64,
}

impl Writeback {
    /// Call this after each write, with the length of the bytes written so far.
    ///
    /// # Errors
    /// An error of the file system. The bytes may then be lost, and a sync might not report it.
    pub fn advance(&mut self, file: &File, written_bytes: u64) -> io::Result<()> {
        if written_bytes.saturating_sub(self.started_bytes) >= WRITEBACK_BYTES {
            start_writeback(file, self.started_bytes..written_bytes)?;
            self.started_bytes = written_bytes;
        }
        Ok(())
    }
}
