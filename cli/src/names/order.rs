//! The order in which names are listed: numbers in them count as numbers.

use std::cmp::Ordering;

/// Compares two names in natural order: `layer.2` comes before `layer.10`. Different names are never equal, so this is
/// a total order.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut a_rest, mut b_rest) = (a, b);
    loop {
        let (a_number, b_number) = (leading_digits(a_rest), leading_digits(b_rest));
        let order = if a_number.is_empty() || b_number.is_empty() {
            let (mut a_chars, mut b_chars) = (a_rest.chars(), b_rest.chars());
            let (first, second) = (a_chars.next(), b_chars.next());
            if first.is_none() && second.is_none() {
                // The names are equal, or differ only in leading zeros.
                return a.cmp(b);
            }
            (a_rest, b_rest) = (a_chars.as_str(), b_chars.as_str());
            first.cmp(&second)
        } else {
            (a_rest, b_rest) = (&a_rest[a_number.len()..], &b_rest[b_number.len()..]);
            // Without leading zeros, a longer number is larger. This holds for numbers of any length.
            let (x, y) = (a_number.trim_start_matches('0'), b_number.trim_start_matches('0'));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        };
        if order.is_ne() {
            return order;
        }
    }
}

fn leading_digits(text: &str) -> &str {
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

    proptest! {
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
