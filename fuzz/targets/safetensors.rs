//! Reads the input as a `.safetensors` file or the index of a model: unchanged, and with the header length corrected
//! and the elements that the header describes added.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stridemap_fuzz::foreign::Workplace;
use stridemap_fuzz::u64_at;

/// The maximum number of bytes of added elements.
const ELEMENTS_BYTES: u64 = 64 << 10;

/// Creates a workplace with two files that an index may name.
fn workplace() -> Workplace {
    let place = Workplace::new("safetensors");
    place.put("a.safetensors", &file(br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8));
    place.put("b.safetensors", &file(br#"{"b":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}"#, 3));
    place
}

fn file(header: &[u8], elements_bytes: usize) -> Vec<u8> {
    let elements: Vec<u8> = (0..elements_bytes).map(|i| i as u8 & 1).collect();
    [&(header.len() as u64).to_le_bytes(), header, &elements].concat()
}

/// Returns the file that a header describes, or `None` if the bytes are not a header.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let rest = bytes.get(8..)?;
    let header = rest.get(..usize::try_from(u64_at(bytes, 0)).ok()?).unwrap_or(rest);
    let Ok(Value::Object(entries)) = serde_json::from_slice(header) else { return None };
    let ends = entries.values().filter_map(|entry| entry.get("data_offsets")?.get(1)?.as_u64());
    let end = ends.max().unwrap_or(0).min(ELEMENTS_BYTES);
    Some(file(header, end as usize))
}

fuzz_target!(|bytes: &[u8]| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(workplace);
    place.read(bytes);
    if let Some(mended) = mended(bytes) {
        place.read(&mended);
    }
});
