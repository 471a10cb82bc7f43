//! Reads the input as a `.gguf` file: unchanged, and with elements added, so that headers of large tensors are valid.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::foreign::Workplace;

/// The number of bytes of added elements.
const ELEMENTS_BYTES: usize = 16 << 10;

fuzz_target!(|bytes: &[u8]| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(|| Workplace::new("gguf"));
    if !place.read(bytes) && bytes.starts_with(b"GGUF") {
        place.read(&[bytes, &[1; ELEMENTS_BYTES]].concat());
    }
});
