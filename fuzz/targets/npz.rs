//! `.npz`: unchanged, and with the checksums and headers of its members corrected.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::foreign::Workplace;
use stridemap_fuzz::zip;

fuzz_target!(|bytes: &[u8]| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(|| Workplace::new("npz"));
    place.read(bytes);
    let mut mended = bytes.to_vec();
    zip::mend(&mut mended);
    if mended != bytes {
        place.read(&mended);
    }
});
