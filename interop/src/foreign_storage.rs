//! The bytes of a storage in a file, and how they are read.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

use stridemap::import::ExternalFile;
use stridemap::{DType, Error, Header, Result, Source as _, Tensor};

use super::fields::Fields;
use super::file::{PIECE_BYTES, RawFile, zeroed};
use super::zip::{Member, Method};

/// The bytes of a storage in a file.
#[derive(Clone, Debug)]
pub(super) struct ForeignStorage {
    pub(super) file: Arc<RawFile>,
    /// The offset of the bytes in the file; for a deflated member, the offset of its compressed bytes.
    pub(super) offset_bytes: u64,
    /// The length of the bytes after conversion.
    pub(super) length_bytes: u64,
    pub(super) conversion: Conversion,
    /// Whether this is imported as one storage, which its tensors share. Otherwise its tensors have no bytes in common,
    /// and the elements of each are contiguous, in row-major or column-major order.
    pub(super) is_imported_whole: bool,
}

/// How the bytes of a file are converted to those of a storage. The default is no conversion.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversion {
    /// The zip member that holds the bytes, after a header that is skipped. Reading to the end verifies the member's
    /// checksum.
    pub(super) member: Option<Arc<Member>>,
    /// The bytes themselves, if the file holds them in a different form.
    pub(super) bytes: Option<Arc<[u8]>>,
    /// The field of records that is collected.
    pub(super) field: Option<Field>,
    /// The fields that are collected together with it, in one pass.
    pub(super) fields: Option<Arc<Fields>>,
    /// The size of the units whose bytes are reversed, if greater than one.
    pub(super) swap_unit_bytes: usize,
}

/// A field of the records of a structured array. The same field of all records is read as an array of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) record_bytes: usize,
    /// Where the field is in each record.
    pub(super) offset_bytes: usize,
    pub(super) length_bytes: usize,
    /// The number of bytes of the fields in each record that are collected before this one.
    pub(super) earlier_bytes: usize,
}

impl ForeignStorage {
    /// Creates a storage from a range of a file.
    pub(super) fn of_range(file: &Arc<RawFile>, offset_bytes: u64, length_bytes: u64) -> Self {
        let (file, conversion) = (Arc::clone(file), Conversion::default());
        ForeignStorage { file, offset_bytes, length_bytes, conversion, is_imported_whole: false }
    }

    /// Creates a storage from a member of a zip file, without the first `skipped_bytes`. The member must have at
    /// least that many.
    pub(super) fn of_member(file: &Arc<RawFile>, member: Member, skipped_bytes: u64) -> Self {
        let offset_bytes = match member.method {
            Method::Stored => member.offset_bytes + skipped_bytes,
            Method::Deflated => member.offset_bytes,
        };
        let length_bytes = member.unpacked_bytes.saturating_sub(skipped_bytes);
        let conversion = Conversion { member: Some(Arc::new(member)), ..Conversion::default() };
        ForeignStorage {
            file: Arc::clone(file),
            offset_bytes,
            length_bytes,
            conversion,
            is_imported_whole: false,
        }
    }

    /// Creates a storage of these bytes, which come from a file.
    pub(super) fn of_bytes(file: &Arc<RawFile>, bytes: Vec<u8>) -> Self {
        let length_bytes = bytes.len() as u64;
        let conversion = Conversion { bytes: Some(bytes.into()), ..Conversion::default() };
        ForeignStorage { conversion, ..ForeignStorage::of_range(file, 0, length_bytes) }
    }

    /// Returns the storage of one field of the records in this storage.
    pub(super) fn of_field(mut self, field: Field) -> Self {
        let record_count = self.length_bytes.checked_div(field.record_bytes as u64).unwrap_or(0);
        self.length_bytes = record_count.saturating_mul(field.length_bytes as u64);
        self.conversion.field = Some(field);
        self
    }

    /// Returns whether reading all bytes verifies a checksum.
    pub(super) fn has_checksum(&self) -> bool {
        self.conversion.member.as_ref().is_some_and(|member| member.crc32.is_some())
    }

    /// Returns whether the bytes are a range of the file, unconverted.
    pub(super) fn is_range(&self) -> bool {
        let Conversion { member, bytes, field, swap_unit_bytes, .. } = &self.conversion;
        let is_deflated = member.as_ref().is_some_and(|member| member.method == Method::Deflated);
        !is_deflated && bytes.is_none() && field.is_none() && *swap_unit_bytes < 2
    }

    /// Returns the range of the bytes in their file. Call it only if [`is_range`](Self::is_range).
    pub(super) fn bytes_range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes.saturating_add(self.length_bytes)
    }

    /// Converts the bytes into an unnamed file, because they may not fit in memory.
    pub(super) fn convert(&self) -> Result<ExternalFile> {
        let failed = |e| Error::io("write to a temporary file (see TMPDIR) for", self.file.path(), e);
        let mut file = tempfile::tempfile().map_err(failed)?;
        self.read(0..self.length_bytes, &mut |bytes| file.write_all(bytes).map_err(failed))?;
        ExternalFile::from_file(file, self.file.path())
    }

    /// Passes a range of the converted bytes to `sink`, in pieces. If the bytes need neither a conversion nor a
    /// checksum, other threads may read ahead of `sink`.
    ///
    /// `sink` gets a copy of the bytes, so what it writes and what it digests are the same, even if the file changes
    /// meanwhile.
    pub(super) fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.is_range() && self.conversion.member.is_none() {
            let header = header_of_bytes((range.end - range.start) as usize)?;
            let in_file = self.offset_bytes + range.start..self.offset_bytes + range.end;
            let bytes = Tensor::from_file(self.file.external(), in_file, header)?;
            return bytes.write_to(&mut |bytes| bytes.chunks(PIECE_BYTES).try_for_each(&mut *sink));
        }
        if let Some(bytes) = &self.conversion.bytes {
            let part = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
            return part.chunks(PIECE_BYTES).try_for_each(sink);
        }
        if let Some(field) = self.conversion.field {
            return self.read_field(field, range, sink);
        }
        let mut piece = zeroed((range.end - range.start).min(PIECE_BYTES as u64) as usize)?;
        let mut unpacked = match self.conversion.member.as_deref() {
            Some(member) => {
                let mut unpacked = member.unpack(&self.file);
                let skipped_bytes = member.unpacked_bytes.saturating_sub(self.length_bytes);
                unpacked.skip(skipped_bytes + range.start)?;
                Some(unpacked)
            }
            None => None,
        };
        let mut at = range.start;
        while at < range.end {
            piece.truncate((range.end - at).min(PIECE_BYTES as u64) as usize);
            match &mut unpacked {
                Some(unpacked) => unpacked.read_exact(&mut piece)?,
                None => self.file.read_at(&mut piece, self.offset_bytes + at)?,
            }
            if self.conversion.swap_unit_bytes > 1 {
                piece.chunks_exact_mut(self.conversion.swap_unit_bytes).for_each(<[u8]>::reverse);
            }
            sink(&piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Passes a range of the bytes of a field to `sink`. The records are read in pieces, and only once.
    fn read_field(
        &self,
        field: Field,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Field { record_bytes, offset_bytes, length_bytes, .. } = field;
        let mut records = self.clone();
        records.conversion =
            Conversion { field: None, fields: None, swap_unit_bytes: 0, ..records.conversion };
        let Some(record_count) = self.length_bytes.checked_div(length_bytes as u64) else { return Ok(()) };
        records.length_bytes = record_count * record_bytes as u64;
        if let Some(fields) = &self.conversion.fields {
            return fields.read(field, &records, range, self.conversion.swap_unit_bytes, sink);
        }
        let unit_bytes = self.conversion.swap_unit_bytes.max(1);
        let (mut piece, mut at) = (Vec::new(), 0);
        let mut flush = |piece: &mut Vec<u8>| {
            let whole_bytes = piece.len() - piece.len() % unit_bytes;
            let (units, _) = piece.split_at_mut(whole_bytes);
            if unit_bytes > 1 {
                units.chunks_exact_mut(unit_bytes).for_each(<[u8]>::reverse);
            }
            let count = units.len();
            let [start, end] =
                [range.start, range.end].map(|end| end.saturating_sub(at).min(count as u64) as usize);
            at += count as u64;
            if start < end {
                sink(units.get(start..end).unwrap_or_default())?;
            }
            piece.drain(..count);
            Ok(())
        };
        // The position in the record.
        let mut position = 0;
        records.read(0..records.length_bytes, &mut |mut bytes| {
            while !bytes.is_empty() {
                let field_end = offset_bytes + length_bytes;
                // What comes next in the record: the bytes before the field, the field, or the bytes after it.
                let (end, is_field) = match position {
                    before if before < offset_bytes => (offset_bytes, false),
                    within if within < field_end => (field_end, true),
                    _ => (record_bytes, false),
                };
                let (part, rest) = bytes.split_at(bytes.len().min(end - position));
                if is_field {
                    piece.extend_from_slice(part);
                }
                (bytes, position) = (rest, (position + part.len()) % record_bytes);
                if piece.len() >= PIECE_BYTES {
                    flush(&mut piece)?;
                }
            }
            Ok(())
        })?;
        flush(&mut piece)
    }
}

/// Returns the header of a tensor of bytes.
pub(super) fn header_of_bytes(length_bytes: usize) -> Result<Header> {
    Header::contiguous(DType::U8, &[length_bytes]).map_err(|e| Error::refused("bytes", e))
}
