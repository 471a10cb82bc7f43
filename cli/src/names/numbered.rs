//! Patterns with numbers: `experts.{}.up_proj` stands for all names with a number in the place of the `{}`.

use std::collections::BTreeMap;

use super::order::leading_digits;
use super::quoted;
use crate::error::{Error, Result};

/// What stands for a number.
pub(crate) const PLACE: &str = "{}";

/// A name with at least one `{}` in the place of a number.
pub(crate) struct Numbered {
    pub(crate) text: String,
    /// The texts before, between and after the numbers.
    literals: Vec<String>,
}

/// Names that differ only in their last number, which counts up by one.
pub(crate) struct Run {
    /// The other numbers, as they are written.
    pub(crate) others: Vec<String>,
    /// The last number of the first name.
    pub(crate) first: u64,
    pub(crate) names: Vec<String>,
}

impl Numbered {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let literals: Vec<String> = text.split(PLACE).map(str::to_owned).collect();
        let refused = |why: &str| Err(Error::Refused(format!("{text:?} {why}")));
        if literals.len() < 2 {
            return refused("has no {}, which stands for a number, as in 'experts.{}.weight'");
        }
        let is_digit = |c: char| c.is_ascii_digit();
        let is_beside = |pair: &[String]| match pair {
            [before, after] => before.ends_with(is_digit) || after.starts_with(is_digit),
            _ => false,
        };
        let is_empty = |literal: &String| literal.is_empty();
        let between = literals.get(1..literals.len() - 1).unwrap_or_default();
        if literals.windows(2).any(is_beside) || between.iter().any(is_empty) {
            return refused(
                "has a {} beside a digit or another {}, so it is not certain where a number ends",
            );
        }
        Ok(Numbered { text: text.to_owned(), literals })
    }

    /// Returns the text with which all names begin.
    pub(crate) fn prefix(&self) -> &str {
        self.literals.first().map_or("", String::as_str)
    }

    /// Returns how many numbers a name has.
    pub(crate) fn count(&self) -> usize {
        self.literals.len() - 1
    }

    /// Returns the numbers in a name, as they are written, if it matches.
    pub(crate) fn numbers<'a>(&self, name: &'a str) -> Option<Vec<&'a str>> {
        let mut literals = self.literals.iter();
        let mut rest = name.strip_prefix(literals.next()?.as_str())?;
        let mut numbers = Vec::new();
        for literal in literals {
            let number = leading_digits(rest);
            rest = rest.get(number.len()..)?.strip_prefix(literal.as_str())?;
            numbers.push(number);
        }
        rest.is_empty().then_some(numbers)
    }

    /// Returns the names that match, in ascending order of their numbers. It is an error if a last number is missing
    /// between others, or in two names.
    pub(crate) fn runs(&self, names: impl IntoIterator<Item = String>) -> Result<Vec<Run>> {
        let mut runs = BTreeMap::<Vec<(u64, String)>, BTreeMap<u64, String>>::new();
        for name in names {
            let Some(numbers) = self.numbers(&name) else { continue };
            let parsed = numbers.iter().map(|text| Some((text.parse().ok()?, (*text).to_owned())));
            let Some(mut others) = parsed.collect::<Option<Vec<(u64, String)>>>() else { continue };
            let Some((last, _)) = others.pop() else { continue };
            let run = runs.entry(others).or_default();
            if let Some(other) = run.insert(last, name) {
                let name = run.get(&last).map_or("", String::as_str);
                let why = format!("{} and {} have the same number", quoted(&other), quoted(name));
                return Err(Error::Refused(format!("{:?}: {why}", self.text)));
            }
        }
        runs.into_iter().map(|(others, run)| self.run(others, run)).collect()
    }

    fn run(&self, others: Vec<(u64, String)>, run: BTreeMap<u64, String>) -> Result<Run> {
        let others: Vec<String> = others.into_iter().map(|(_, text)| text).collect();
        let first = run.keys().next().copied().unwrap_or_default();
        let mut expected = first;
        for (&number, name) in &run {
            if number != expected {
                let missing = fill(&self.text, others.iter().cloned().chain([expected.to_string()]));
                let why = format!("{} is missing: the next name is {}", quoted(&missing), quoted(name));
                return Err(Error::Refused(format!("{:?}: {why}", self.text)));
            }
            expected = expected.saturating_add(1);
        }
        Ok(Run { others, first, names: run.into_values().collect() })
    }
}

/// Returns a text with these texts in the places of the `{}`.
pub(crate) fn fill(text: &str, numbers: impl IntoIterator<Item = String>) -> String {
    let (mut filled, mut numbers) = (String::new(), numbers.into_iter());
    for (index, literal) in text.split(PLACE).enumerate() {
        if index > 0 {
            filled += &numbers.next().unwrap_or_else(|| PLACE.to_owned());
        }
        filled += literal;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pattern: &str, names: &[&str]) -> Result<Vec<(String, u64, Vec<String>)>, String> {
        let pattern = Numbered::parse(pattern).map_err(|e| e.to_string())?;
        let runs = pattern.runs(names.iter().map(|&name| name.to_owned())).map_err(|e| e.to_string())?;
        Ok(runs.into_iter().map(|run| (run.others.join(","), run.first, run.names)).collect())
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let names = ["e.10.w", "e.9.w", "e.11.w", "e.9.b", "e.x.w", "e..w", "f.9.w", "e.9.w.x"];
        let expected = ["e.9.w", "e.10.w", "e.11.w"].map(str::to_owned).to_vec();
        assert_eq!(runs("e.{}.w", &names), Ok(vec![(String::new(), 9, expected)]));
        assert_eq!(runs("e.{}.v", &names), Ok(Vec::new()));
        // A number that no 64 bits hold is none.
        assert_eq!(runs("{}", &["99999999999999999999"]), Ok(Vec::new()));
    }

    #[test]
    fn names_with_other_numbers_are_other_runs() {
        let names = ["l.10.e.0", "l.10.e.1", "l.2.e.1", "l.2.e.0", "l.2.e.02"];
        let found = runs("l.{}.e.{}", &names).unwrap();
        let found: Vec<String> =
            found.iter().map(|(others, _, names)| format!("{others}: {}", names.join(" "))).collect();
        assert_eq!(found, ["2: l.2.e.0 l.2.e.1 l.2.e.02", "10: l.10.e.0 l.10.e.1"]);
    }

    #[test]
    fn gaps_and_repeated_numbers_are_refused() {
        for (pattern, names, why) in [
            (
                "l.{}.e.{}",
                &["l.1.e.0", "l.2.e.7", "l.2.e.9"][..],
                "l.2.e.8 is missing: the next name is l.2.e.9",
            ),
            ("e.{}", &["e.1", "e.01"], "e.1 and e.01 have the same number"),
        ] {
            assert_eq!(runs(pattern, names), Err(format!("{pattern:?}: {why}")));
        }
    }

    #[test]
    fn pattern_says_where_each_number_ends() {
        for (pattern, why) in [
            ("experts", "has no {}"),
            ("", "has no {}"),
            ("{}{}", "beside a digit or another {}"),
            ("a1{}", "beside a digit"),
            ("{}0.w", "beside a digit"),
        ] {
            let refused = Numbered::parse(pattern).err().unwrap().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        assert_eq!(fill("a.{}.b.{}", ["1", "02"].map(str::to_owned)), "a.1.b.02");
    }
}
