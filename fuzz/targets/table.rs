//! `generations/<generation>.tab` or `meta/<generation>.his`: unchanged, and with the places and digests of its nodes corrected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::{table, within};

/// The memory for the entries of a table, as a multiple of the file: an entry of seven bytes becomes a record.
const FACTOR: usize = 256;

/// The memory for decoding in addition: a list allocates at most 1 MiB before its elements are decoded.
const FIXED_BYTES: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let limit_bytes = FACTOR * bytes.len() + FIXED_BYTES;
    within(limit_bytes, || table::read(bytes));
    let mut mended = bytes.to_vec();
    table::mend(&mut mended);
    within(limit_bytes, || table::read(&mended));
});
