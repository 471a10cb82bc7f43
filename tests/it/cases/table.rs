//! Checks the table of numbered cases, `tests/CASES.md`: it has every case, and every test that it names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const CASES: std::ops::RangeInclusive<u32> = 1..=47;

/// Returns the Rust sources of the repository.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![PathBuf::from(ROOT)]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_built = name == "target" || name.starts_with('.');
            if path.is_dir() && !is_built {
                dirs.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the names of the tests in a source file.
fn tests_in(source: &str) -> BTreeSet<&str> {
    let (mut tests, mut is_test) = (BTreeSet::new(), false);
    for line in source.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = function(line) {
            if is_test {
                tests.insert(name);
            }
            is_test = false;
        }
    }
    tests
}

/// Returns the name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub(crate) ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// Returns the rows of the table: each number, with tests and their files.
fn rows() -> BTreeMap<u32, Vec<(String, String)>> {
    let text = fs::read_to_string(Path::new(ROOT).join("tests/CASES.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
        let Some(number) = cells.next().and_then(|cell| cell.parse::<u32>().ok()) else { continue };
        let (words, shown) = (cells.next().unwrap(), cells.next().unwrap());
        assert!(!words.is_empty() && cells.next().is_none(), "case {number}: a row has three cells");
        let (mut tests, mut file) = (Vec::new(), None);
        for code in shown.split('`').skip(1).step_by(2) {
            if code.ends_with(".rs") {
                file = Some(code.to_owned());
            } else {
                let file =
                    file.clone().unwrap_or_else(|| panic!("case {number}: {code} has no file before it"));
                tests.push((file, code.to_owned()));
            }
        }
        assert!(!tests.is_empty() || shown.starts_with("cannot be run here: "), "case {number} has no test");
        assert!(rows.insert(number, tests).is_none(), "case {number} appears twice");
    }
    rows
}

/// Returns the cases in the name of a test, such as `case_04_case_05_name`.
fn numbers_of(test: &str) -> Vec<u32> {
    let (mut numbers, mut rest) = (Vec::new(), test);
    while let Some((number, what)) = rest.strip_prefix("case_").and_then(|rest| rest.split_once('_')) {
        let Ok(number) = number.parse() else { break };
        numbers.push(number);
        rest = what;
    }
    numbers
}

#[test]
fn every_case_has_a_row_and_its_tests_exist() {
    let rows = rows();
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), CASES.collect::<Vec<_>>());
    for (number, tests) in &rows {
        for (file, test) in tests {
            let source = fs::read_to_string(Path::new(ROOT).join(file))
                .unwrap_or_else(|e| panic!("case {number}: {file}: {e}"));
            assert!(tests_in(&source).contains(test.as_str()), "case {number}: {file} has no test {test}");
            let named = numbers_of(test);
            assert!(
                named.is_empty() || named.contains(number),
                "case {number}: {test} covers a different case"
            );
        }
    }
}

#[test]
fn every_test_named_after_a_case_is_in_the_table() {
    let rows = rows();
    let mut count = 0;
    for path in sources() {
        let source = fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(ROOT).unwrap().to_str().unwrap();
        let named =
            source.lines().filter_map(|line| function(line.trim())).filter(|name| name.starts_with("case_"));
        let tests = tests_in(&source);
        for name in named {
            let numbers = numbers_of(name);
            for number in &numbers {
                assert!(tests.contains(name), "{file}: {name} is no test");
                let row = rows.get(number).unwrap_or_else(|| panic!("{file}: {name} is of no case"));
                let is_listed = row.contains(&(file.to_owned(), name.to_owned()));
                assert!(is_listed, "{file}: {name} is not in the row of case {number}");
            }
            count += usize::from(!numbers.is_empty());
        }
    }
    println!("{count} tests are named after the case that they show");
    assert!(count >= 47);
}
