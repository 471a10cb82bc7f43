use std::fs::File;
use std::io;

use crate::disk::start_writeback;

/// How many bytes are written before the kernel is asked to write them to disk.
const WRITEBACK_BYTES: u64 = 8 << 20;

/// Starts to write the bytes of a file to disk while more are appended. The sync at the end then has little left to do.
/// No crash has a new outcome because of this: the kernel may write pages to disk at any time anyway.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn failure_is_reported_until_the_bytes_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let file = File::create(&path).unwrap();
        // The kernel refuses this descriptor for anything but its path.
        let broken = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let mut writeback = Writeback::default();
        writeback.advance(&broken, WRITEBACK_BYTES - 1).unwrap();
        for _ in 0..2 {
            let failed = writeback.advance(&broken, WRITEBACK_BYTES).unwrap_err();
            assert_eq!(failed.raw_os_error(), Some(libc::EBADF));
        }
        writeback.advance(&file, WRITEBACK_BYTES).unwrap();
        writeback.advance(&broken, WRITEBACK_BYTES + 1).unwrap();
        // A pipe has no pages to write back, which is not an error.
        let (pipe, _end) = io::pipe().unwrap();
        Writeback::default().advance(&File::from(std::os::fd::OwnedFd::from(pipe)), WRITEBACK_BYTES).unwrap();
    }
}
