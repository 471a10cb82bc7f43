//! The order in which names are listed: numbers in them count as numbers.

use std::cmp::Ordering;

/// Compares two names in natural order: `layer.2` comes before `layer.10`. Different names are never equal, so this is
/// a total order.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    // UTF-8 has the order of its characters. Most names have a long beginning in common, which is skipped as bytes.
    let (mut a_rest, mut b_rest) = (a.as_bytes(), b.as_bytes());
    loop {
        let same = a_rest.iter().zip(b_rest).take_while(|(a, b)| a == b).count();
        let (before, _) = a_rest.split_at(same);
        let number_start = same - before.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (a_number, a_after) = split_number(a_rest.split_at(number_start).1);
        let (b_number, b_after) = split_number(b_rest.split_at(number_start).1);
        if a_number.is_empty() || b_number.is_empty() {
            let order = a_rest.get(same).cmp(&b_rest.get(same));
            // The names are equal, or differ only in leading zeros.
            return order.then_with(|| a.cmp(b));
        }
        // Without leading zeros, a longer number is larger. This holds for numbers of any length.
        let [x, y] = [a_number, b_number].map(without_zeros);
        let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
        if order.is_ne() {
            return order;
        }
        (a_rest, b_rest) = (a_after, b_after);
    }
}

/// Splits the digits off the beginning of a text.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

fn without_zeros(number: &[u8]) -> &[u8] {
    number.split_at(number.iter().take_while(|digit| **digit == b'0').count()).1
}

/// Returns the digits at the beginning of a text.
pub(crate) fn leading_digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["layer.10.w", "layer.2.w", "layer", "layer.02.w", "layer.2.b", "a", "layer.x", ""];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            ["", "a", "layer", "layer.2.b", "layer.02.w", "layer.2.w", "layer.10.w", "layer.x"]
        );
        let long = "9".repeat(400);
        assert!(natural(&long, &format!("1{}", "0".repeat(400))).is_lt());
    }

    /// Returns what decides the order: characters, and numbers as their lengths and digits.
    fn parts(mut text: &str) -> Vec<(char, usize, &str)> {
        let mut parts = Vec::new();
        while let Some(c) = text.chars().next() {
            let number = leading_digits(text);
            let digits = number.trim_start_matches('0');
            parts.push(if number.is_empty() { (c, 0, "") } else { ('0', digits.len(), digits) });
            text = &text[if number.is_empty() { c.len_utf8() } else { number.len() }..];
        }
        parts
    }

    proptest! {
        #[test]
        fn natural_order_is_that_of_characters_and_numbers(
            start in "[01a.é]{0,4}", a in "[0129aé./]{0,5}", b in "[0129aé./]{0,5}"
        ) {
            let [a, b] = [a, b].map(|end| format!("{start}{end}"));
            prop_assert_eq!(natural(&a, &b), parts(&a).cmp(&parts(&b)).then_with(|| a.cmp(&b)), "{} {}", a, b);
        }

        #[test]
        fn natural_order_is_total(
            a in "[01279aé.]{0,6}", b in "[01279aé.]{0,6}", c in "[01279aé.]{0,6}"
        ) {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b).is_eq(), a == b);
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                prop_assert!(natural(&a, &c).is_le());
            }
        }
    }
}
