//! Reads numbers and texts of a header in order.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use stridemap::Result;

use super::limits::MAX_HEADER_BYTES;
use super::types::ValueType;
use crate::file::RawFile;

/// The number of bytes that are read at a time.
const BUFFER_BYTES: u64 = 32 << 10;

/// The maximum nesting of arrays.
const MAX_DEPTH: usize = 8;

/// A place in a header. Every read is checked against the length of the file, and against the limit of a header, before memory
/// is allocated.
pub(super) struct Reader<'a> {
    file: &'a RawFile,
    at: u64,
    buffer: Vec<u8>,
    /// Where the bytes in the buffer begin.
    buffer_at: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a RawFile, at: u64) -> Self {
        Reader { file, at, buffer: Vec::new(), buffer_at: at }
    }

    /// Returns the position in the file.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the number of bytes that the rest of the header can have.
    fn rest_bytes(&self) -> u64 {
        self.file.length_bytes().min(MAX_HEADER_BYTES).saturating_sub(self.at)
    }

    /// Refuses a length or count that the rest of the header cannot have.
    pub(super) fn check(&self, what: &str, bytes: Option<u64>) -> Result<u64> {
        bytes.filter(|&bytes| bytes <= self.rest_bytes()).ok_or_else(|| {
            let left_bytes = self.file.length_bytes().saturating_sub(self.at);
            self.file.bad(match bytes.filter(|&bytes| bytes <= left_bytes) {
                Some(_) => format!(
                    "{what} at byte {} makes a header of more than {MAX_HEADER_BYTES} bytes, which is the limit",
                    self.at
                ),
                None => format!(
                    "{what} at byte {} does not fit in the {left_bytes} bytes that are left; the file is truncated or \
                     damaged",
                    self.at
                ),
            })
        })
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = N as u64;
        self.check("a number", Some(bytes))?;
        let end = self.at.saturating_add(bytes);
        let buffer_end = self.buffer_at.saturating_add(self.buffer.len() as u64);
        if self.at < self.buffer_at || end > buffer_end {
            self.buffer.resize(self.rest_bytes().min(BUFFER_BYTES) as usize, 0);
            self.file.read_at(&mut self.buffer, self.at)?;
            self.buffer_at = self.at;
        }
        let start = self.at.saturating_sub(self.buffer_at) as usize;
        let found = self.buffer.get(start..).and_then(|rest| rest.first_chunk().copied());
        self.at = end;
        found.ok_or_else(|| self.file.bad("the header is truncated"))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Returns the next bytes. The caller has checked the count, and that there is memory for them.
    pub(super) fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        let bytes = self.file.header(self.at, count, count)?;
        self.at = self.at.saturating_add(count);
        Ok(bytes)
    }

    /// Reads the length of a text that fits in the file.
    pub(super) fn text_length(&mut self) -> Result<u64> {
        let length = self.u64()?;
        self.check("a text", Some(length))
    }

    pub(super) fn skip(&mut self, bytes: u64) {
        self.at = self.at.saturating_add(bytes);
    }

    /// Reads the type of a value.
    pub(super) fn value_type(&mut self) -> Result<ValueType> {
        let code = self.u32()?;
        ValueType::of_code(code).ok_or_else(|| {
            self.file.bad(format!("a value of the metadata has the type {code}, which GGUF does not have"))
        })
    }

    /// Passes over the values of an array. Returns where they are.
    pub(super) fn skip_values(&mut self, of: ValueType, count: u64, depth: usize) -> Result<Range<u64>> {
        let start = self.at;
        let least_bytes = match of {
            ValueType::Array => 12,
            _ => of.size_bytes().unwrap_or(8) as u64,
        };
        let bytes = self.check("an array", count.checked_mul(least_bytes))?;
        match of {
            ValueType::Text => {
                for _ in 0..count {
                    let length = self.text_length()?;
                    self.skip(length);
                }
            }
            ValueType::Array if depth >= MAX_DEPTH => {
                return Err(self.file.bad(format!("an array of the metadata nests deeper than {MAX_DEPTH}")));
            }
            ValueType::Array => {
                for _ in 0..count {
                    let (of, count) = (self.value_type()?, self.u64()?);
                    self.skip_values(of, count, depth.saturating_add(1))?;
                }
            }
            _ => self.skip(bytes),
        }
        Ok(start..self.at)
    }
}
