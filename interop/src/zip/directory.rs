//! The central directory of a zip file: its location and its entries.
//!
//! The crate that writes zip files is not used to read them. It would look for the directory in several places, read
//! past its end, allocate memory for any field of an entry, and allow members to overlap.

use std::io::{BufReader, Read as _};

use stridemap::Result;

use super::unpack::read_error;
use crate::file::RawFile;

const END_SIGNATURE: &[u8] = b"PK\x05\x06";
const LOCATOR_SIGNATURE: &[u8] = b"PK\x06\x07";
const END64_SIGNATURE: &[u8] = b"PK\x06\x06";

/// The length of the record at the end of every zip file, without its comment.
const END_BYTES: usize = 22;
const MAX_COMMENT_BYTES: u64 = 0xffff;

/// The lengths of the zip64 locator, which precedes the end record, and of the zip64 record that it locates.
const LOCATOR_BYTES: u64 = 20;
const END64_BYTES: u64 = 56;

/// The length of an entry of the directory without its name and other variable-length fields.
const ENTRY_BYTES: usize = 46;
const ENTRY_SIGNATURE: &[u8] = b"PK\x01\x02";

/// The maximum number of bytes of the directory read at once.
const BUFFER_BYTES: usize = 16 << 10;

/// The kind of the extra field for lengths and an offset that do not fit in 32 bits.
const ZIP64_FIELD: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) start_bytes: u64,
    pub(super) end_bytes: u64,
    pub(super) member_count: u64,
}

impl Directory {
    /// Finds the directory by the records at the end of the file. Accepts only files that all readers understand in the
    /// same way: values that are stored twice must agree, and there must be no gap between the directory and the
    /// records.
    pub(super) fn find(file: &RawFile) -> Result<Self> {
        let tail_bytes = file.length_bytes().min(END_BYTES as u64 + MAX_COMMENT_BYTES);
        let tail_start_bytes = file.length_bytes() - tail_bytes;
        let mut tail = vec![0; tail_bytes as usize];
        file.read_at(&mut tail, tail_start_bytes)?;
        let place = tail.windows(END_SIGNATURE.len()).rposition(|bytes| bytes == END_SIGNATURE);
        let place = place
            .ok_or_else(|| file.bad("the zip file does not end with an end record; it may be truncated"))?;
        let Some((end, comment)) = tail.get(place..).and_then(|rest| rest.split_first_chunk::<END_BYTES>())
        else {
            return Err(file.bad("the end record of the zip file is truncated"));
        };
        let end_record_offset = tail_start_bytes + place as u64;
        let end = Fields(end);
        if end.u16(20) != comment.len() as u64 {
            return Err(file.bad(format!(
                "the end record of the zip file states a comment of {} bytes, but {} bytes follow it; the file is truncated, \
                 or something was appended to it",
                end.u16(20),
                comment.len()
            )));
        }
        let record = Record {
            disks: [end.u16(4), end.u16(6)],
            counts: [end.u16(8), end.u16(10)],
            size_bytes: end.u32(12),
            start_bytes: end.u32(16),
        };
        let (record, record_offset) = match Self::find_zip64(file, end_record_offset)? {
            Some((record64, offset)) => {
                record.agrees(&record64).then_some((record64, offset)).ok_or_else(|| {
                    file.bad("the two records at the end of the zip file disagree about its directory")
                })?
            }
            None => (record, end_record_offset),
        };
        record.directory(record_offset).map_err(|what| file.bad(what))
    }

    /// Passes each entry to `found`. There must be exactly the stated number of entries, and they must fill the
    /// directory.
    pub(super) fn for_each_entry(
        &self,
        file: &RawFile,
        found: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        let range = file.range(self.start_bytes, self.end_bytes - self.start_bytes);
        let mut rest = BufReader::with_capacity(BUFFER_BYTES, range);
        let mut fixed = [0; ENTRY_BYTES];
        let mut variable = Vec::new();
        for index in 0..self.member_count {
            rest.read_exact(&mut fixed).map_err(|e| read_error(file, e))?;
            let [name_bytes, extra_bytes, comment_bytes] =
                [28, 30, 32].map(|at| Fields(&fixed).u16(at) as usize);
            variable.resize(name_bytes + extra_bytes + comment_bytes, 0);
            rest.read_exact(&mut variable).map_err(|e| read_error(file, e))?;
            let (name, extra) = variable.split_at(name_bytes);
            let entry = Entry::parse(&fixed, name, extra.split_at(extra_bytes).0);
            let refused = |what| file.bad(format!("entry {index} of the directory of the zip file {what}"));
            found(&entry.map_err(refused)?)?;
        }
        match rest.read(&mut [0]).map_err(|e| read_error(file, e))? {
            0 => Ok(()),
            _ => Err(file.bad("the directory of the zip file has bytes after its last entry")),
        }
    }

    /// Returns the zip64 record before the end record, if there is one, and its offset.
    fn find_zip64(file: &RawFile, end_record_offset: u64) -> Result<Option<(Record, u64)>> {
        let Some(offset) = end_record_offset.checked_sub(END64_BYTES + LOCATOR_BYTES) else {
            return Ok(None);
        };
        let mut bytes = [0; (END64_BYTES + LOCATOR_BYTES) as usize];
        file.read_at(&mut bytes, offset)?;
        let (record, locator) = bytes.split_at(END64_BYTES as usize);
        if !locator.starts_with(LOCATOR_SIGNATURE) {
            return Ok(None);
        }
        let (record, locator) = (Fields(record), Fields(locator));
        // The format allows a longer record, but nothing is known to use its extra data.
        let is_whole = record.0.starts_with(END64_SIGNATURE) && record.u64(4) == END64_BYTES - 12;
        let is_located = [locator.u32(4), locator.u64(8)] == [0, offset] && locator.u32(16) <= 1;
        if !is_whole || !is_located {
            return Err(file.bad("the zip64 record does not match the end record of the zip file"));
        }
        let record = Record {
            disks: [record.u32(16), record.u32(20)],
            counts: [record.u64(24), record.u64(32)],
            size_bytes: record.u64(40),
            start_bytes: record.u64(48),
        };
        Ok(Some((record, offset)))
    }
}

/// The fields of an end record that describe the directory.
struct Record {
    disks: [u64; 2],
    /// The numbers of members on this disk, and on all disks.
    counts: [u64; 2],
    size_bytes: u64,
    start_bytes: u64,
}

impl Record {
    /// Returns whether this record, with short fields, agrees with the zip64 record. A field of all ones defers to
    /// the other record. Some writers use ones only if the number is too large, others always.
    fn agrees(&self, long: &Record) -> bool {
        let short_fields = self.disks.iter().chain(&self.counts).map(|&n| (n, u64::from(u16::MAX)));
        let short_fields =
            short_fields.chain([self.size_bytes, self.start_bytes].map(|n| (n, u64::from(u32::MAX))));
        let long_fields =
            long.disks.iter().chain(&long.counts).copied().chain([long.size_bytes, long.start_bytes]);
        short_fields.zip(long_fields).all(|((short, ones), long)| short == ones || short == long)
    }

    /// Returns the directory. `end_bytes` is the offset of the record, where the directory must end.
    fn directory(&self, end_bytes: u64) -> Result<Directory, String> {
        let [count_here, count] = self.counts;
        if self.disks != [0, 0] || count != count_here {
            return Err("the zip file is one part of a multi-part archive".to_owned());
        }
        let Record { size_bytes, start_bytes, .. } = *self;
        if start_bytes.checked_add(size_bytes) != Some(end_bytes) {
            return Err(format!(
                "the directory of the zip file should be {size_bytes} bytes at offset {start_bytes}, but it ends at \
                 byte {end_bytes}: bytes are missing, or there are bytes before or after the zip file"
            ));
        }
        if count.checked_mul(ENTRY_BYTES as u64).is_none_or(|least_bytes| least_bytes > size_bytes) {
            return Err(format!("the directory of the zip file has {size_bytes} bytes for {count} entries"));
        }
        Ok(Directory { start_bytes, end_bytes, member_count: count })
    }
}

/// A member, as the directory describes it.
pub(super) struct Entry<'a> {
    pub(super) raw_name: &'a [u8],
    pub(super) flags: u64,
    /// The number of the compression method.
    pub(super) method: u64,
    pub(super) crc32: u32,
    pub(super) packed_bytes: u64,
    pub(super) unpacked_bytes: u64,
    /// The offset of the member's own header.
    pub(super) start_bytes: u64,
}

impl<'a> Entry<'a> {
    fn parse(fixed: &[u8], raw_name: &'a [u8], extra: &[u8]) -> Result<Self, &'static str> {
        let fields = Fields(fixed);
        if !fixed.starts_with(ENTRY_SIGNATURE) {
            return Err("has a wrong signature");
        }
        if fields.u16(34) != 0 {
            return Err("belongs to another part of a multi-part archive");
        }
        // The value of an all-ones field is in the zip64 field, if there is one. The values there follow each other.
        let mut wide = extra_field(extra, ZIP64_FIELD);
        let mut field = |offset_bytes| -> Result<u64, &'static str> {
            let short = fields.u32(offset_bytes);
            let Some(bytes) = wide.as_mut().filter(|_| short == u64::from(u32::MAX)) else {
                return Ok(short);
            };
            let (long, rest) = bytes.split_first_chunk().ok_or("has a zip64 field that is too short")?;
            *bytes = rest;
            Ok(u64::from_le_bytes(*long))
        };
        Ok(Entry {
            raw_name,
            flags: fields.u16(8),
            method: fields.u16(10),
            crc32: fields.u32(16) as u32,
            unpacked_bytes: field(24)?,
            packed_bytes: field(20)?,
            start_bytes: field(42)?,
        })
    }
}

/// Returns the bytes of the first extra field of this kind.
fn extra_field(mut extra: &[u8], kind: u64) -> Option<&[u8]> {
    loop {
        let (header, rest) = extra.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(Fields(header).u16(2) as usize)?;
        if Fields(header).u16(0) == kind {
            return Some(bytes);
        }
        extra = rest;
    }
}

/// Little-endian numbers at fixed offsets of a record, widened to `u64`. Past the end of the record they are 0.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn at<const N: usize>(&self, offset_bytes: usize) -> [u8; N] {
        self.0.get(offset_bytes..).and_then(|rest| rest.first_chunk().copied()).unwrap_or([0; N])
    }

    pub(super) fn u16(&self, offset_bytes: usize) -> u64 {
        u16::from_le_bytes(self.at(offset_bytes)).into()
    }

    fn u32(&self, offset_bytes: usize) -> u64 {
        u32::from_le_bytes(self.at(offset_bytes)).into()
    }

    fn u64(&self, offset_bytes: usize) -> u64 {
        u64::from_le_bytes(self.at(offset_bytes))
    }
}
