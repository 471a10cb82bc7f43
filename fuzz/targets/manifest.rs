//! `meta/<generation>.man`: unchanged, and with the frame, digest, uuid and generation corrected so that the body is
//! decoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stridemap_format::{Manifest, Uuid};
use stridemap_fuzz::{fix_digest, u64_at, uint_at, uuid_at, within};

const PREAMBLE: [u8; 16] = *b"SMAPMAN\n\x01\0\0\0\0\0\0\0";

/// The memory for a manifest, as a multiple of its length. A removed name takes three bytes, but a whole map entry in
/// memory.
const FACTOR: usize = 256;

/// The memory for decoding in addition: a list allocates at most 1 MiB before its elements are decoded.
const FIXED_BYTES: usize = 4 << 20;

fn read(bytes: &[u8], uuid: Uuid, generation: u64) {
    let decode = || Manifest::decode(bytes, uuid, generation);
    let Ok(mut manifest) = within(FACTOR * bytes.len() + FIXED_BYTES, decode) else { return };
    assert_eq!(
        manifest.encode().as_deref(),
        Ok(bytes),
        "a non-canonical encoding of the manifest was accepted"
    );
    let storages = &manifest.storages;
    for tensor in manifest.tensors.values().flatten() {
        if let Some(Some(storage)) = storages.get(&tensor.storage_id)
            && let Ok(extent) = tensor.header.extent(storage.length_bytes)
        {
            assert!(extent.start_bytes() <= extent.end_bytes() && extent.end_bytes() <= storage.length_bytes);
        }
    }
    // The next manifest is written from this one.
    if let Some(next) = generation.checked_add(1) {
        manifest.generation = next;
        if let Ok(written) = manifest.encode() {
            assert_eq!(Manifest::decode(&written, uuid, next).as_ref(), Ok(&manifest));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes, uuid_at(bytes, 24), uint_at(bytes, 40).unwrap_or(1));
    let body = match bytes.strip_prefix(&PREAMBLE) {
        Some(rest) if rest.len() >= 24 && u64_at(rest, 0) < 1 << 40 => &rest[8..rest.len() - 16],
        _ => bytes,
    };
    let mut mended = [&PREAMBLE[..], &(body.len() as u64).to_le_bytes(), body, &[0; 16]].concat();
    fix_digest(&mut mended);
    read(&mended, uuid_at(body, 0), uint_at(body, 16).unwrap_or(1));
});
