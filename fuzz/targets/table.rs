//! `meta/<generation>.tab`: unchanged, and with its length and its entries' checks fixed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::{table, within};

/// A scan holds the record of one entry at a time, and the index.
const FACTOR: usize = 32;

/// The decoder of a list allocates at most a MiB before it has decoded the elements.
const FIXED_BYTES: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let limit_bytes = FACTOR * bytes.len() + FIXED_BYTES;
    within(limit_bytes, || table::read(bytes));
    let mut mended = bytes.to_vec();
    table::mend(&mut mended);
    within(limit_bytes, || table::read(&mended));
});
