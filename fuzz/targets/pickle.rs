//! PyTorch checkpoints. A file of either layout is read unchanged; any other input is treated as a pickle and put into
//! a file of each layout.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::foreign::Workplace;
use stridemap_fuzz::zip::{self, Stored};

const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
const ELEMENTS: [u8; 64] = [1; 64];

fn in_zip(pickle: &[u8]) -> Vec<u8> {
    zip::archive(&[
        Stored { name: "x/data.pkl", bytes: pickle },
        Stored { name: "x/byteorder", bytes: b"little" },
        Stored { name: "x/data/0", bytes: &ELEMENTS },
        Stored { name: "x/data/1", bytes: &ELEMENTS[..24] },
        Stored { name: "x/data/2", bytes: &[] },
        Stored { name: "x/version", bytes: b"3\n" },
    ])
}

/// Adds the keys and elements of two storages.
fn in_legacy(pickle: &[u8]) -> Vec<u8> {
    let keys = b"\x80\x02](X\x01\0\0\x000X\x01\0\0\x001e.";
    let storage = |count: u64| [&count.to_le_bytes()[..], &ELEMENTS].concat();
    let system = b"\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    [LEGACY_MAGIC, b"\x80\x02M\xe9\x03.", system, pickle, keys, &storage(16), &storage(16)].concat()
}

fuzz_target!(|bytes: &[u8]| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(|| Workplace::new("pickle"));
    if bytes.starts_with(b"PK") {
        place.read(bytes);
        let mut mended = bytes.to_vec();
        zip::mend(&mut mended);
        place.read(&mended);
    } else if bytes.starts_with(LEGACY_MAGIC) {
        place.read(bytes);
    } else {
        place.read(&in_zip(bytes));
        place.read(&in_legacy(bytes));
    }
});
