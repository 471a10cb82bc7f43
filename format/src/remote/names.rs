//! The names of objects.

use std::fmt::Write;

/// The name of an object: the BLAKE3 digest of its bytes.
pub type ObjectName = [u8; 32];

/// Returns the name of an object as 64 lowercase hexadecimal digits.
///
/// ```
/// # use stridemap_format::remote::{object_from_hex, object_hex};
/// let hex = object_hex(&[0xAB; 32]);
/// assert_eq!(hex, "ab".repeat(32));
/// assert_eq!(object_from_hex(&hex), Some([0xAB; 32]));
/// assert_eq!(object_from_hex(&hex.to_uppercase()), None);
/// ```
#[must_use]
pub fn object_hex(object: &ObjectName) -> String {
    object.iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the name that exactly 64 lowercase hexadecimal digits state, or `None` for any other text.
#[must_use]
pub fn object_from_hex(hex: &str) -> Option<ObjectName> {
    let mut object = [0; 32];
    let pairs = hex.as_bytes().as_chunks::<2>();
    if pairs.0.len() != object.len() || !pairs.1.is_empty() {
        return None;
    }
    for (byte, [high, low]) in object.iter_mut().zip(pairs.0) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(object)
}

/// Returns the value of a lowercase hexadecimal digit.
fn digit(ascii: u8) -> Option<u8> {
    let value = char::from(ascii).to_digit(16).and_then(|value| u8::try_from(value).ok());
    value.filter(|_| !ascii.is_ascii_uppercase())
}

/// Returns the number that exactly sixteen lowercase hexadecimal digits state, or `None` for any other text.
pub(super) fn number_from_hex(hex: &str) -> Option<u64> {
    let is_digits = hex.len() == 16 && hex.bytes().all(|ascii| digit(ascii).is_some());
    u64::from_str_radix(hex, 16).ok().filter(|_| is_digits)
}

/// Returns where an object is, relative to the URL of the remote: `objects/<name>`.
#[must_use]
pub fn object_path(object: &ObjectName) -> String {
    format!("objects/{}", object_hex(object))
}

/// Returns the name of the object at a path such as [`object_path`] returns, or `None` for any other path.
#[must_use]
pub fn object_from_path(path: &str) -> Option<ObjectName> {
    object_from_hex(path.strip_prefix("objects/")?)
}

/// Returns where a remote manifest is, relative to the URL of the remote: `generations/<generation>-<name>`.
///
/// ```
/// # use stridemap_format::remote::{manifest_from_path, manifest_path};
/// let path = manifest_path(7, &[0xAB; 32]);
/// assert!(path.starts_with("generations/0000000000000007-abab"));
/// assert_eq!(manifest_from_path(&path), Some((7, [0xAB; 32])));
/// ```
#[must_use]
pub fn manifest_path(generation: u64, manifest: &ObjectName) -> String {
    format!("generations/{generation:016x}-{}", object_hex(manifest))
}

/// Returns the generation and the name at a path such as [`manifest_path`] returns, or `None` for any other path.
#[must_use]
pub fn manifest_from_path(path: &str) -> Option<(u64, ObjectName)> {
    let (generation, manifest) = path.strip_prefix("generations/")?.split_once('-')?;
    Some((number_from_hex(generation)?, object_from_hex(manifest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exactly_64_lowercase_digits_name_an_object() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(object_from_hex(&hex).map(|object| object_hex(&object)), Some(hex.clone()));
        let bad =
            [&hex[1..], &hex[2..], "", &hex.replace('a', "A"), &hex.replace('f', "g"), &(hex.clone() + "00")];
        for bad in bad.into_iter().chain([&*hex.replace("01", "+1"), &hex.replace("01", "é")]) {
            assert_eq!(object_from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn paths_of_other_objects_have_no_name() {
        let (object, manifest) = (object_path(&[7; 32]), manifest_path(u64::MAX, &[7; 32]));
        assert_eq!(object_from_path(&object), Some([7; 32]));
        assert_eq!(manifest_from_path(&manifest), Some((u64::MAX, [7; 32])));
        for path in ["HEAD", "FORMAT", &manifest, &object[1..], &(object.clone() + "/"), "objects/"] {
            assert_eq!(object_from_path(path), None, "{path}");
        }
        let signed = manifest.replacen("ffff", "+fff", 1);
        for path in ["HEAD", &object, &signed, &manifest.replace('-', ""), &manifest.replacen('f', "", 1)] {
            assert_eq!(manifest_from_path(path), None, "{path}");
        }
    }
}
