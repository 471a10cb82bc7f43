//! The files under `vectors/`, which are compared or, with `STRIDEMAP_BLESS=1`, written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

use super::hex::{runs, unhex};

/// The file with the bad vectors that are too large to be files of their own.
pub(crate) const LARGE: &str = "large.json";

pub(crate) fn vectors(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(folder)
}

pub(crate) fn files_in(folder: &str) -> BTreeSet<PathBuf> {
    fs::read_dir(vectors(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns the bytes of a committed file. When blessing, writes `expected` to it first.
pub(crate) fn committed(path: &Path, expected: &[u8]) -> Vec<u8> {
    if env::var_os("STRIDEMAP_BLESS").is_some_and(|value| value == "1") {
        fs::write(path, expected).unwrap();
    }
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Checks a good vector, which is in a folder: that its bytes and its JSON are as expected, and that it is decoded to the
/// JSON.
pub(crate) fn check_good(path: &Path, encoded: &[u8], content: &Value, decode: impl Fn(&[u8]) -> Value) {
    let (file, bytes) = (path.display(), committed(path, encoded));
    assert!(bytes == encoded, "{file}: the encoding changed");
    let pretty = serde_json::to_string_pretty(content).unwrap() + "\n";
    let stated = committed(&path.with_extension("json"), pretty.as_bytes());
    let stated: Value = serde_json::from_slice(&stated).unwrap();
    assert_eq!(decode(&bytes), stated, "{file}: the decoded content differs from the JSON");
}

/// Checks that the large vectors of a folder are committed in [`LARGE`].
pub(crate) fn check_large(folder: &str, expected: Vec<(&str, Vec<u8>)>) {
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    let pieces: BTreeMap<_, _> = expected.iter().map(|(name, bytes)| (name, runs(bytes))).collect();
    let pretty = serde_json::to_string_pretty(&pieces).unwrap() + "\n";
    committed(&vectors(folder).join(LARGE), pretty.as_bytes());
    let found = large(folder);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in found {
        assert!(expected.get(&name) == Some(&bytes), "{name}: the encoder of bad files changed");
    }
}

/// Returns the vectors in the [`LARGE`] of a folder.
pub(crate) fn large(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let pieces: BTreeMap<String, Vec<(String, usize)>> =
        serde_json::from_slice(&fs::read(vectors(folder).join(LARGE)).unwrap()).unwrap();
    let bytes =
        |pieces: Vec<(String, usize)>| pieces.iter().flat_map(|(hex, n)| unhex(hex).repeat(*n)).collect();
    pieces.into_iter().map(|(name, runs)| (name, bytes(runs))).collect()
}

/// Returns the rule in a name such as `F-16-one-bit-flipped.man`.
pub(crate) fn rule_in(name: &str) -> String {
    name.splitn(3, '-').take(2).collect::<Vec<_>>().join("-")
}
