use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::file::RawFile;

/// How much is read at once.
const WINDOW_BYTES: usize = 16 << 10;

/// A range of a file, for who reads it in many small steps back and forth. Positions are those of the file.
pub(super) struct Window<'a> {
    pub(super) file: &'a RawFile,
    range: Range<u64>,
    position_bytes: u64,
    /// Where the bytes at hand begin.
    start_bytes: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a RawFile, range: Range<u64>) -> Self {
        Window { file, position_bytes: range.start, range, start_bytes: 0, bytes: Vec::new() }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.position_bytes >= self.range.end
    }
}

impl Read for Window<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let rest_bytes = self.range.end.saturating_sub(self.position_bytes);
        if rest_bytes == 0 || buf.is_empty() {
            return Ok(0);
        }
        let at = self.position_bytes.checked_sub(self.start_bytes).filter(|&at| at < self.bytes.len() as u64);
        if at.is_none() {
            self.bytes.resize(rest_bytes.min(WINDOW_BYTES as u64) as usize, 0);
            self.start_bytes = self.position_bytes;
            let read = self.file.read_at(&mut self.bytes, self.start_bytes);
            read.inspect_err(|_| self.bytes.clear()).map_err(io::Error::other)?;
        }
        let mut there = self.bytes.get(at.unwrap_or(0) as usize..).unwrap_or_default();
        let count = there.read(buf)?;
        self.position_bytes += count as u64;
        Ok(count)
    }
}

impl Seek for Window<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position_bytes = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.range.end.checked_add_signed(by),
            SeekFrom::Current(by) => self.position_bytes.checked_add_signed(by),
        };
        self.position_bytes = position_bytes.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position_bytes)
    }
}
