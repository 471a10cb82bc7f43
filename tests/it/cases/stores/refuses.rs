//! The damaged stores are refused in both ways of opening, by the recorded rule and for the recorded file, and are not
//! changed.

use std::path::Path;

use serde_json::Value;
use stridemap::{Error, Store};

use super::digests::digests_of;
use super::{copied, expected, opened, stores};

/// Asserts that an error is the expected one, and has one line.
fn assert_refused(name: &str, error: &Error, said: &Value) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{name}: {text}");
    assert_eq!(format!("{:?}", error.kind()), said["kind"].as_str().unwrap(), "{name}: {text}");
    assert_eq!(error.rule().map(|rule| u64::from(rule.number())), said["rule"].as_u64(), "{name}: {text}");
    if let Some(file) = said["file"].as_str() {
        assert!(text.contains(&format!("/store/{file}")), "{name}: {text} names not {file}");
    }
}

/// Returns the findings, each as a rule and a file of the store.
fn findings(store: &Store, root: &Path) -> Vec<(u64, String)> {
    let found = store.verify(|_| ()).unwrap().findings.into_iter();
    found
        .map(|finding| {
            assert!(!finding.to_string().contains('\n'), "{finding}");
            let file = finding.path.strip_prefix(root).unwrap().to_str().unwrap();
            (u64::from(finding.rule.number()), file.to_owned())
        })
        .collect()
}

fn check(name: &str, dir: &Path) {
    let (expected, copy) = (expected(dir), copied(dir));
    let before = digests_of(copy.path());
    for store in opened(copy.path()) {
        let store = match (store, expected.get("open")) {
            (Err(e), Some(said)) => {
                assert_refused(name, &e, said);
                continue;
            }
            (Err(e), None) => panic!("{name}: {e}"),
            (Ok(_), Some(_)) => panic!("{name}: it opened"),
            (Ok(store), None) => store,
        };
        let loaded = store.load("t").and_then(|tensor| tensor.read::<f32>());
        match (loaded, expected.get("load")) {
            (Err(e), Some(said)) => assert_refused(name, &e, said),
            (Err(e), None) => panic!("{name}: {e}"),
            (Ok(_), Some(_)) => panic!("{name}: it was loaded"),
            (Ok(elements), None) => assert_eq!(elements.len(), 6, "{name}"),
        }
        let found = findings(&store, &copy.path().join("store"));
        let said = expected["verify"].as_array().unwrap();
        assert_eq!(found.is_empty(), said.is_empty(), "{name}: {found:?}");
        for finding in said {
            // The same damage can cause several findings.
            let said = (finding["rule"].as_u64().unwrap(), finding["file"].as_str().unwrap().to_owned());
            assert!(found.contains(&said), "{name}: {found:?}, and not {said:?}");
        }
    }
    assert_eq!(digests_of(copy.path()), before, "{name}: refusing it changed something");
}

/// Checks every damaged store of a case. There must be at least `least`.
fn check_case(case: u64, least: usize) {
    let of_case: Vec<_> =
        stores("damaged").into_iter().filter(|(_, dir)| expected(dir)["case"] == case).collect();
    assert!(of_case.len() >= least, "{} stores of case {case}", of_case.len());
    for (name, dir) in of_case {
        check(&name, &dir);
    }
}

#[test]
fn every_damaged_store_belongs_to_a_checked_case() {
    for (name, dir) in stores("damaged") {
        let case = expected(&dir)["case"].as_u64().unwrap();
        let is_checked = matches!(case, 25 | 27 | 30..=37 | 39..=41 | 43 | 44);
        assert!(is_checked, "{name} is of case {case}");
    }
}

#[test]
fn case_25_truncated_storage_is_refused_before_it_is_mapped() {
    check_case(25, 6);
}

#[test]
fn case_27_verify_finds_a_rewritten_storage() {
    check_case(27, 2);
}

#[test]
fn case_30_changed_or_truncated_metadata_is_refused() {
    check_case(30, 14);
}

#[test]
fn case_31_trailing_bytes_are_refused() {
    check_case(31, 5);
}

#[test]
fn case_32_lengths_past_the_end_are_refused() {
    check_case(32, 4);
}

#[test]
fn case_33_counts_past_the_end_are_refused() {
    check_case(33, 4);
}

#[test]
fn case_34_other_versions_stores_and_generations_are_refused() {
    check_case(34, 7);
}

#[test]
fn case_35_sizes_whose_product_overflows_are_refused() {
    check_case(35, 2);
}

#[test]
fn case_36_views_past_their_storage_are_refused() {
    check_case(36, 7);
}

#[test]
fn case_37_strides_that_overflow_are_refused() {
    check_case(37, 4);
}

#[test]
fn case_39_unknown_dtypes_and_kinds_are_refused() {
    check_case(39, 3);
}

#[test]
fn case_40_storage_of_no_bytes_needs_its_file() {
    check_case(40, 1);
}

#[test]
fn case_41_duplicate_names_and_names_with_nul_are_refused() {
    check_case(41, 7);
}

#[test]
fn case_43_paths_outside_the_directory_are_refused() {
    check_case(43, 9);
}

#[test]
fn case_44_anything_but_a_regular_file_is_refused() {
    check_case(44, 2);
}
