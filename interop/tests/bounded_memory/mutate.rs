//! Changes to bytes, such as damage and attacks make.

use crate::random::Random;

/// Values that are likely to be invalid as lengths, counts and offsets.
const EXTREMES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// Applies one to three changes.
pub(crate) fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        change(&mut bytes, random);
    }
    bytes
}

/// Returns a position, mostly near the beginning or the end, where formats have their headers.
fn place(length: usize, random: &mut Random) -> usize {
    match random.below(3) {
        0 => random.below(length),
        1 => random.below(length.min(400)),
        _ => length.saturating_sub(1 + random.below(length.min(400))),
    }
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = place(bytes.len(), random);
    let until = (at + 1 + random.below(40)).min(bytes.len());
    match random.below(9) {
        _ if bytes.is_empty() => bytes.push(random.next() as u8),
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.next() as u8,
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..until)),
        5 => {
            let copy = bytes[at..until].to_vec();
            let target = place(bytes.len(), random);
            bytes.splice(target..target, copy);
        }
        6 => {
            let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            let near = (bytes.len() as u64).wrapping_add(random.below(5) as u64).wrapping_sub(2);
            let value = *EXTREMES.get(random.below(EXTREMES.len() + 2)).unwrap_or(&near);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        7 => {
            // Changes a number in text.
            let digits = |byte: &u8| byte.is_ascii_digit();
            let start = at + bytes[at..].iter().position(digits).unwrap_or_default();
            let end = start + bytes[start..].iter().position(|byte| !digits(byte)).unwrap_or_default();
            let value = EXTREMES[random.below(EXTREMES.len())].to_string();
            bytes.splice(start..end, value.into_bytes());
        }
        _ => {
            let target = place(bytes.len(), random).min(bytes.len() - (until - at));
            bytes.copy_within(at..until, target);
        }
    }
}
