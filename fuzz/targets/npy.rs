//! Reads the input as a `.npy` file: unchanged, and with the header length corrected and the elements that the header
//! describes added.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stridemap::DType;
use stridemap_fuzz::foreign::Workplace;
use stridemap_interop::ForeignOptions;

/// The maximum number of bytes of added elements.
const ELEMENTS_BYTES: usize = 64 << 10;

fn digits(text: &[u8]) -> impl Iterator<Item = usize> {
    let numbers = text.split(|byte| !byte.is_ascii_digit());
    numbers.filter_map(|number| str::from_utf8(number).ok()?.parse().ok())
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

/// Returns the file that a header describes, or `None` if the bytes do not resemble a header.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let (&[_, _, _, _, _, _, major, _], rest) = bytes.split_first_chunk::<8>()?;
    let rest = rest.get(if major == 1 { 2 } else { 4 }..)?;
    let header = rest.get(..=find(rest, b"\n")?)?;
    let length = header.len() as u32;
    let length =
        if major == 1 { (length as u16).to_le_bytes().to_vec() } else { length.to_le_bytes().to_vec() };
    let shape = header.get(find(header, b"shape")?..)?;
    let shape = shape.get(..find(shape, b")")?)?;
    let count = digits(shape).try_fold(1, usize::checked_mul)?;
    let descr = header.get(find(header, b"descr")? + 7..)?;
    let itemsize = digits(descr).next().unwrap_or(1);
    let elements = vec![1; count.checked_mul(itemsize)?.min(ELEMENTS_BYTES)];
    Some([&bytes[..8], &length, header, &elements].concat())
}

fuzz_target!(|bytes: &[u8]| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(|| Workplace::new("npy"));
    place.read(bytes);
    let Some(mended) = mended(bytes) else { return };
    place.read(&mended);
    // The other ways to open a file.
    let path = place.put("input.npy", &mended);
    let options = ForeignOptions::new().untyped(DType::BF16);
    if let Ok(file) = options.open(&path) {
        for info in file.tensors() {
            let _ = file.load(&info.name).map(|tensor| tensor.to_text(&stridemap::PrintOptions::default()));
        }
    }
});
