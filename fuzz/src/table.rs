//! Reads a table completely, and corrects its checksums.

use stridemap_format::{
    TABLE_HEADER_BYTES, TableEncoder, TableHeader, TableRef, Uuid, digest, limits::MAX_ENTRY_BYTES,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{u64_at, uuid_at};

/// Returns the manifest's reference to these bytes, unchanged.
pub fn reference(bytes: &[u8]) -> (Uuid, TableRef) {
    let header = bytes.get(..TABLE_HEADER_BYTES).unwrap_or(bytes);
    let (generation, length_bytes) = (u64_at(bytes, 32), bytes.len() as u64);
    (uuid_at(bytes, 16), TableRef { generation, length_bytes, header_digest: digest(header) })
}

/// Corrects the length in the header, and the check of every entry that the index refers to.
pub fn mend(bytes: &mut [u8]) {
    let length = bytes.len();
    if let Some(stated) = bytes.get_mut(56..64) {
        stated.copy_from_slice(&(length as u64).to_le_bytes());
    }
    let generation = u64_at(bytes, 32);
    let count = u64_at(bytes, 40).saturating_add(u64_at(bytes, 48));
    let Some(index) = (length as u64 / 8).checked_sub(count.saturating_add(1)).filter(|_| count < 1 << 20)
    else {
        return;
    };
    let index = length - (length / 8 - index as usize) * 8;
    for ordinal in 0..count as usize {
        let (start, end) = (u64_at(bytes, index + ordinal * 8), u64_at(bytes, index + ordinal * 8 + 8));
        let is_entry = start < end && end <= length as u64 && end - start <= MAX_ENTRY_BYTES;
        if is_entry
            && let Some((body, check)) = bytes[start as usize..end as usize].split_last_chunk_mut::<8>()
        {
            let seed = generation.rotate_left(32) ^ ordinal as u64;
            *check = xxh3_64_with_seed(body, seed).to_be_bytes();
        }
    }
}

/// Reads the whole table, like a verification. A table that is accepted must be the canonical encoding of its
/// contents.
pub fn read(bytes: &[u8]) {
    let (uuid, reference) = reference(bytes);
    let header = bytes.get(..TABLE_HEADER_BYTES).unwrap_or(bytes);
    let Ok(header) = TableHeader::decode(header, uuid, &reference) else { return };
    let part = |(offset, length): (u64, u64)| {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        bytes.get(offset..offset.checked_add(length)?)
    };
    // The header accepts only a length for which the index is inside the file, and this is the length of the file.
    let slots = part(header.slots(0, header.entry_count())).expect("the index is inside the file");
    let whole = header.decode_slots(0, slots);
    let mut again = Some((TableEncoder::new(uuid, reference.generation, u64::MAX), Vec::new()));
    for ordinal in 0..header.entry_count() {
        let pair = part(header.slots(ordinal, 1)).expect("two slots are inside the file");
        let Ok(one) = header.decode_slots(ordinal, pair) else {
            assert!(whole.is_err(), "slot {ordinal} is refused by itself, but not among all slots");
            again = None;
            continue;
        };
        assert_eq!(one.len(), 1);
        if let Ok(whole) = &whole {
            assert_eq!(one[0], whole[ordinal as usize]);
        }
        let entry = part(one[0]).expect("an entry is inside the file");
        let is_written = if ordinal < header.storage_count() {
            header.decode_storage(ordinal, u64::MAX, entry).ok().map(|(id, record)| {
                again.as_mut().is_some_and(|(encoder, out)| encoder.push_storage(id, &record, out).is_ok())
            })
        } else {
            header.decode_tensor(ordinal, u64::MAX, entry).ok().map(|(name, record)| {
                let _ = record.extent(u64::from(u32::MAX));
                again.as_mut().is_some_and(|(encoder, out)| encoder.push_tensor(&name, &record, out).is_ok())
            })
        };
        // An entry that is refused or out of order.
        if is_written != Some(true) {
            again = None;
        }
    }
    if let Some((encoder, mut rest)) = again
        && whole.is_ok()
    {
        let (header, written) = encoder.finish(&mut rest);
        assert_eq!(written, reference);
        assert!([header, rest].concat() == bytes, "a non-canonical encoding of the table was accepted");
    }
}
