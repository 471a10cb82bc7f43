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

#[test]
fn damaged_stores_are_refused_by_the_recorded_rule_and_file() {
    for (name, dir) in stores("damaged") {
        check(&name, &dir);
    }
}

/// Such a generation is tagged, and its manifest would be deleted as one that no tag keeps.
#[test]
fn store_with_a_generation_that_is_tagged_and_not_is_read_and_not_written() {
    let (_, dir) = stores("damaged")
        .into_iter()
        .find(|(name, _)| name == "generation-with-tags-and-without-in-two-files")
        .unwrap();
    let copy = copied(&dir);
    let root = copy.path().join("store");
    let before = digests_of(copy.path());
    let store = Store::open(&root).unwrap();
    assert_eq!(store.at("v1").unwrap().load("t").unwrap().read::<f32>().unwrap().len(), 6);
    let refused = [
        store.save("x", &1i32).unwrap_err(),
        store.untag("v1").unwrap_err(),
        store.gc().map(drop).unwrap_err(),
    ];
    for error in refused {
        let text = error.to_string();
        assert_eq!(error.rule().map(|rule| rule.number()), Some(28), "{text}");
        assert!(text.contains("generation 5 is listed both with tags and without"), "{text}");
    }
    assert_eq!(digests_of(copy.path()), before);
}
