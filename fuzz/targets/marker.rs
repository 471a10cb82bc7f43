//! `FORMAT`: unchanged, and with its digest corrected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stridemap_format::{Marker, Rule};
use stridemap_fuzz::fix_digest;

fn read(bytes: &[u8]) {
    match Marker::decode(bytes) {
        Ok(marker) => {
            assert_eq!(marker.encode(), bytes, "a non-canonical encoding of the marker was accepted")
        }
        Err(e) => assert!(
            matches!(e.rule(), Rule::MarkerMagic | Rule::MarkerDigest | Rule::Version),
            "a marker breaks {e}"
        ),
    }
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut mended = bytes.to_vec();
    fix_digest(&mut mended);
    read(&mended);
});
