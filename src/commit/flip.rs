//! One bit that was flipped, flipped back.

/// How many bytes are tried: each is hashed as often as they have bits, so the time grows with the square.
const MOST_BYTES: usize = 64 << 10;

/// What `read` makes of the bytes with one bit flipped back, if of any. `read` checks a checksum: what it takes is what was
/// written.
pub(super) fn mended<T>(bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    if bytes.len() > MOST_BYTES {
        return None;
    }
    let mut tried = bytes.to_vec();
    for at in 0..tried.len() {
        for bit in 0..8 {
            tried[at] ^= 1 << bit;
            if let Some(value) = read(&tried) {
                return Some(value);
            }
            tried[at] ^= 1 << bit;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use stridemap_format::{Digest, digest};

    fn read(bytes: &[u8]) -> Option<Vec<u8>> {
        let (body, stated): (&[u8], &Digest) = bytes.split_last_chunk()?;
        (digest(body) == *stated).then(|| body.to_vec())
    }

    #[test]
    fn any_one_bit_is_mended_and_two_are_not() {
        let body = b"a record".to_vec();
        let whole = [&body[..], &digest(&body)].concat();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(mended(&flipped, read).as_ref(), Some(&body), "bit {bit}");
            flipped[3] ^= 0x81;
            assert!(bit / 8 == 3 || mended(&flipped, read).is_none(), "bit {bit}");
        }
    }
}
