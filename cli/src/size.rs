//! Sizes in arguments, such as that of `--max-shard-size`.

use std::num::ParseIntError;

/// The units of the transformers library: decimal, or binary with an `i`. In that library, `b` means bits, so it is
/// not accepted here. A letter alone is binary, as in GNU `ls` and `du`.
const UNITS: [(&str, u64); 12] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

/// Parses a number of bytes: 5GB, 500MB, 1GiB.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let unit = UNITS.iter().find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let size_bytes = number.trim_end().parse().map_err(|_: ParseIntError| {
        "expected a whole number, in bytes or followed by one of KB, MB, GB, TB, KiB, MiB, GiB, TiB, or by K, M, G, T \
         for the binary units"
            .to_owned()
    });
    match u64::checked_mul(size_bytes?, unit) {
        Some(0) => Err("it must be at least 1 byte".to_owned()),
        Some(size_bytes) => Ok(size_bytes),
        None => Err("the number of bytes does not fit in 64 bits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        for (text, size_bytes) in [
            ("1", 1),
            ("5GB", 5_000_000_000),
            ("500 MB", 500_000_000),
            ("1GiB", 1 << 30),
            ("3KiB", 3072),
            ("2K", 2048),
            ("1G", 1 << 30),
            ("18TB", 18_000_000_000_000),
        ] {
            assert_eq!(super::parse_size(text), Ok(size_bytes), "{text}");
        }
        for text in
            ["", "0", "0GB", "GB", "5gb", "5Gb", "5g", "1.5GB", "-1", "18446744073709551616", "99999999999TB"]
        {
            assert!(super::parse_size(text).is_err(), "{text}");
        }
    }
}
