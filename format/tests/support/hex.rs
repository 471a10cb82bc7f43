//! Bytes in hexadecimal.

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns bytes as pieces in hexadecimal, each with the number of times that it occurs.
pub(crate) fn runs(bytes: &[u8]) -> Vec<(String, usize)> {
    const LEAST_BYTES: usize = 64;
    let mut runs = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        // The number of bytes from `at` on that repeat those `period` before them.
        let repeated = |period: usize| {
            let pairs = bytes[at..].iter().zip(bytes.get(at + period..).unwrap_or_default());
            pairs.take_while(|(byte, later)| byte == later).count()
        };
        match [1, 2, 4, 3, 5, 52].into_iter().find(|&period| repeated(period) >= LEAST_BYTES) {
            None => at += 1,
            Some(period) => {
                let count = repeated(period) / period + 1;
                runs.push((hex(&bytes[start..at]), 1));
                runs.push((hex(&bytes[at..at + period]), count));
                at += period * count;
                start = at;
            }
        }
    }
    runs.push((hex(&bytes[start..]), 1));
    runs
}
