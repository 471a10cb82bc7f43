//! Reads the bytes of a member in pieces.

use std::io::{self, BufReader, Read};

use flate2::bufread::DeflateDecoder;
use stridemap::{Error, Result};

use super::members::{Member, Method};
use crate::file::{FileRange, RawFile};

/// The maximum number of packed bytes read at once.
const PACKED_PIECE_BYTES: usize = 64 << 10;

impl Member {
    /// Starts unpacking. Memory use is bounded, whatever length the directory states.
    pub(crate) fn unpack<'a>(&'a self, file: &'a RawFile) -> MemberReader<'a> {
        let packed = file.range(self.offset_bytes, self.packed_bytes);
        let bytes = match self.method {
            Method::Stored => Packed::Stored(packed),
            Method::Deflated => {
                let packed = BufReader::with_capacity(PACKED_PIECE_BYTES, packed);
                Packed::Deflated(Box::new(DeflateDecoder::new(packed)))
            }
        };
        MemberReader {
            file,
            member: self,
            bytes,
            done_bytes: 0,
            crc: crc32fast::Hasher::new(),
            is_checked: false,
        }
    }

    /// Returns all bytes of a member, which must have at most `limit_bytes`.
    pub(crate) fn read(&self, file: &RawFile, limit_bytes: u64) -> Result<Vec<u8>> {
        if self.unpacked_bytes > limit_bytes {
            return Err(file.bad(format!(
                "member {:?} of the zip file has {} bytes; at most {limit_bytes} are allowed",
                self.name, self.unpacked_bytes
            )));
        }
        let mut unpacked = self.unpack(file);
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            // The length in the directory may be wrong, so it is not allocated at once.
            let count = unpacked.read(&mut piece)?;
            if count == 0 {
                return Ok(bytes);
            }
            bytes.extend(piece.iter().take(count));
        }
    }
}

/// The bytes of a member from its start. They must have the length that the directory states, and the checksum if
/// it states one.
pub(crate) struct MemberReader<'a> {
    file: &'a RawFile,
    member: &'a Member,
    bytes: Packed<'a>,
    done_bytes: u64,
    crc: crc32fast::Hasher,
    is_checked: bool,
}

enum Packed<'a> {
    Stored(FileRange<'a>),
    Deflated(Box<DeflateDecoder<BufReader<FileRange<'a>>>>),
}

impl MemberReader<'_> {
    /// Reads some of the remaining bytes into `buf`. Returns their number, which is 0 at the end. The last bytes are
    /// returned only after the length and the checksum have been verified.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let rest_bytes = self.member.unpacked_bytes - self.done_bytes;
        let capacity = rest_bytes.min(buf.len() as u64) as usize;
        let (buf, _) = buf.split_at_mut(capacity);
        let mut count = 0;
        if !buf.is_empty() {
            count = self.bytes.read(buf).map_err(|e| self.broken(e))?;
            if count == 0 {
                return Err(self.bad(format!(
                    "unpacks to {} bytes, but {} are stated",
                    self.done_bytes, self.member.unpacked_bytes
                )));
            }
            self.crc.update(buf.get(..count).unwrap_or_default());
            self.done_bytes += count as u64;
        }
        if self.done_bytes == self.member.unpacked_bytes && !self.is_checked {
            self.check_end()?;
        }
        Ok(count)
    }

    /// Fills `buf`. It is an error if fewer bytes are left.
    pub(crate) fn read_exact(&mut self, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let count = self.read(buf)?;
            if count == 0 {
                return Err(self.bad(format!("ends after {} bytes, but more are needed", self.done_bytes)));
            }
            buf = buf.split_at_mut(count).1;
        }
        Ok(())
    }

    /// Skips bytes, which still count for the checksum.
    pub(crate) fn skip(&mut self, mut count: u64) -> Result<()> {
        let mut piece = [0; 4096];
        while count > 0 {
            let (piece, _) = piece.split_at_mut(count.min(4096) as usize);
            self.read_exact(piece)?;
            count -= piece.len() as u64;
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<()> {
        let mut one_more = [0];
        if self.bytes.read(&mut one_more).map_err(|e| self.broken(e))? > 0 {
            return Err(self.bad(format!("unpacks to more than the stated {} bytes", self.done_bytes)));
        }
        if let Packed::Deflated(decoder) = &self.bytes
            && decoder.total_in() != self.member.packed_bytes
        {
            return Err(self.bad(format!(
                "is complete after {} of its {} compressed bytes",
                decoder.total_in(),
                self.member.packed_bytes
            )));
        }
        let found = self.crc.clone().finalize();
        if let Some(stated) = self.member.crc32.filter(|&stated| stated != found) {
            return Err(
                self.bad(format!("is damaged: its checksum is {found:08x}, but {stated:08x} is stated"))
            );
        }
        self.is_checked = true;
        Ok(())
    }

    fn bad(&self, what: String) -> Error {
        self.file.bad(format!("member {:?} of the zip file {what}", self.member.name))
    }

    fn broken(&self, e: io::Error) -> Error {
        let name = &self.member.name;
        read_error(self.file, e).context(format_args!("unpack member {name:?}"))
    }
}

impl Packed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Packed::Stored(range) => range.read(buf),
            Packed::Deflated(decoder) => decoder.read(buf),
        }
    }
}

/// Converts the error of a reader: either the file's own error, or that of decoding its bytes.
pub(super) fn read_error(file: &RawFile, e: io::Error) -> Error {
    e.downcast::<Error>().unwrap_or_else(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => file.bad("a record or member of the zip file is truncated"),
        _ => file.bad(format!("the zip file: {e}")),
    })
}
