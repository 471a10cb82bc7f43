//! Builds zip files, and corrects their checksums and headers.

use crc32fast::hash;

use crate::{u16_at, u32_at};

const LOCAL_BYTES: usize = 30;
const ENTRY_BYTES: usize = 46;
const END_BYTES: usize = 22;

/// An uncompressed member.
pub struct Stored<'a> {
    /// The name of the member.
    pub name: &'a str,
    /// The bytes of the member.
    pub bytes: &'a [u8],
}

/// Builds a zip file of these members.
#[must_use]
pub fn archive(members: &[Stored<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for Stored { name, bytes } in members {
        let start = file.len() as u32;
        let length = (bytes.len() as u32).to_le_bytes();
        // The fields from the version to the length of the name, which are the same in both headers.
        let mut shared = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        shared.extend(hash(bytes).to_le_bytes());
        shared.extend([length, length].concat());
        shared.extend((name.len() as u16).to_le_bytes());
        shared.extend([0, 0]);
        file.extend(b"PK\x03\x04");
        file.extend(&shared);
        file.extend(name.as_bytes());
        file.extend(*bytes);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&shared);
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = file.len() as u32;
    let count = (members.len() as u16).to_le_bytes();
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([count, count].concat());
    file.extend((directory.len() as u32).to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    file
}

/// Returns the offsets of the headers of a zip file whose end record locates its directory.
#[must_use]
pub fn headers(bytes: &[u8]) -> Vec<(usize, usize)> {
    let Some(end) = bytes.len().checked_sub(END_BYTES) else { return Vec::new() };
    let Some(end) = bytes.windows(4).take(end + 1).rposition(|four| four == b"PK\x05\x06") else {
        return Vec::new();
    };
    let mut at = u32_at(bytes, end + 16) as usize;
    let mut found = Vec::new();
    while at + ENTRY_BYTES <= end && found.len() < 1000 {
        found.push((at, u32_at(bytes, at + 42) as usize));
        at +=
            ENTRY_BYTES + [28, 30, 32].map(|field| u16_at(bytes, at + field) as usize).iter().sum::<usize>();
    }
    found
}

/// Sets the checksums of stored members to those of their bytes, and copies the shared fields of each member from the
/// directory to its own header.
pub fn mend(bytes: &mut [u8]) {
    for (entry, local) in headers(bytes) {
        if local >= bytes.len() || bytes.len() - local < LOCAL_BYTES {
            continue;
        }
        let start = local + LOCAL_BYTES + (u16_at(bytes, local + 26) + u16_at(bytes, local + 28)) as usize;
        let length = u32_at(bytes, entry + 24) as usize;
        let is_stored = u16_at(bytes, entry + 10) == 0;
        if is_stored && let Some(content) = start.checked_add(length).and_then(|end| bytes.get(start..end)) {
            let checksum = hash(content).to_le_bytes();
            bytes[entry + 16..entry + 20].copy_from_slice(&checksum);
        }
        let shared = entry + 8..entry + 28;
        if local + 26 <= entry {
            bytes.copy_within(shared, local + 6);
        }
    }
}
