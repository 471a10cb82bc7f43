//! A pattern of sizes, for `ls --size`.

use crate::error::Result;

/// The sizes of the dimensions, where `None` stands for any: `*,384` are all matrices with 384 columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SizePattern(Vec<Option<usize>>);

impl SizePattern {
    pub(crate) fn matches(&self, size: &[usize]) -> bool {
        let mut pairs = self.0.iter().zip(size);
        self.0.len() == size.len() && pairs.all(|(wanted, n)| wanted.is_none_or(|wanted| wanted == *n))
    }
}

/// Parses a pattern of sizes, with or without brackets.
pub(crate) fn parse_size_pattern(text: &str) -> Result<SizePattern, String> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if inner.is_some_and(|inner| inner.trim().is_empty()) {
        return Ok(SizePattern(Vec::new()));
    }
    let dimension = |part: &str| match part.trim() {
        "*" => Ok(None),
        number => number.parse().map(Some),
    };
    let dimensions: Result<Vec<_>, _> = inner.unwrap_or(text).split(',').map(dimension).collect();
    dimensions.map(SizePattern).map_err(|_| {
        "expected the size of each dimension, with * for any: '*,384', '768', '[]' for no dimension"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_size_of_one_dimension() {
        for (text, size, other) in [
            ("*,384", &[2, 384][..], &[384, 2][..]),
            ("[3, *, 1]", &[3, 0, 1], &[3, 1]),
            ("768", &[768], &[1, 768]),
            ("*", &[5], &[]),
            ("[]", &[], &[1]),
        ] {
            let pattern = parse_size_pattern(text).unwrap();
            assert!(pattern.matches(size) && !pattern.matches(other), "{text}");
        }
        for text in ["", "a", "1,", "-1", "[1", "**"] {
            assert!(parse_size_pattern(text).is_err(), "{text}");
        }
    }
}
