//! The record encoding (SPEC.md, section 3), for values that may be invalid.

/// Encodes an unsigned integer.
pub fn uint(out: &mut Vec<u8>, n: u64) {
    match n {
        0..=250 => out.push(n as u8),
        251..=0xffff => {
            out.push(251);
            out.extend((n as u16).to_le_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(252);
            out.extend((n as u32).to_le_bytes());
        }
        _ => {
            out.push(253);
            out.extend(n.to_le_bytes());
        }
    }
}

/// Encodes a signed integer.
pub fn int(out: &mut Vec<u8>, n: i64) {
    uint(out, ((n as u64) << 1) ^ ((n >> 63) as u64));
}

/// Encodes text, whatever its bytes are.
pub fn text(out: &mut Vec<u8>, text: &[u8]) {
    uint(out, text.len() as u64);
    out.extend(text);
}

/// Encodes a list. `item` encodes each item.
pub fn list<T>(out: &mut Vec<u8>, items: &[T], mut item: impl FnMut(&mut Vec<u8>, &T)) {
    uint(out, items.len() as u64);
    items.iter().for_each(|one| item(out, one));
}
