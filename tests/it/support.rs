use std::env;

/// A directory that goes when the test ends.
pub(crate) fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The value of an environment variable that scales a test, or what it is by default.
pub(crate) fn scaled(variable: &str, default: usize) -> usize {
    match env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")),
        Err(_) => default,
    }
}

/// What the generators of `tests/data` write of bytes.
pub(crate) fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut bit_count) = (Vec::new(), 0u32, 0);
    for digit in text.bytes().filter(|&byte| byte != b'=') {
        bits = bits << 6 | DIGITS.iter().position(|&known| known == digit).unwrap() as u32;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    bytes
}
