//! Checks that the recorded stores never change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use stridemap_format::digest;

use super::{EXPECTED, ROOT, damaged, good, hex, is_making};

const LIST: &str = "DIGESTS";

/// Returns the XXH3-128 of every file below `root`, and of the target of every symbolic link, by path.
pub(super) fn digests_of(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, format!("link {}", hex(&digest(target.as_os_str().as_bytes()))));
            } else if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                found.insert(name, hex(&digest(&fs::read(&path).unwrap())));
            } else {
                found.insert(name, "neither a file, nor a directory, nor a link".to_owned());
            }
        }
    }
    found
}

/// Returns the digests of the stores, without the files that describe them.
fn of_stores() -> BTreeMap<String, String> {
    let mut found = digests_of(Path::new(ROOT));
    found.retain(|path, _| path.starts_with("good/") || path.starts_with("damaged/"));
    found
}

fn listed() -> BTreeMap<String, String> {
    let list = fs::read_to_string(Path::new(ROOT).join(LIST)).unwrap_or_default();
    let pair = |line: &str| line.split_once("  ").map(|(digest, path)| (path.to_owned(), digest.to_owned()));
    list.lines().map(|line| pair(line).unwrap()).collect()
}

/// A store that a later version would write differently is added under a new name.
#[test]
fn recorded_stores_never_change() {
    make_missing();
    let (listed, found) = (listed(), of_stores());
    for (path, digest) in &listed {
        let now = found.get(path).map(String::as_str);
        assert_eq!(
            now,
            Some(digest.as_str()),
            "{path} was changed or deleted: it stands for stores that there are"
        );
    }
    for path in found.keys() {
        assert!(listed.contains_key(path), "{path} is not in {LIST}: see the README there");
    }
    let bytes: u64 =
        found.keys().map(|path| fs::symlink_metadata(Path::new(ROOT).join(path)).unwrap().len()).sum();
    assert!(bytes < 1 << 20, "{bytes} bytes");
    println!(
        "{} files of {} stores, {bytes} bytes",
        found.len(),
        super::stores("good").len() + super::stores("damaged").len()
    );
}

/// Writes the stores that are described but missing, if requested, and appends their digests to the list.
fn make_missing() {
    if !is_making() {
        return;
    }
    let root = Path::new(ROOT);
    for (name, about, recipe) in good::RECIPES {
        let dir = root.join("good").join(name);
        if dir.exists() {
            continue;
        }
        fs::create_dir_all(&dir).unwrap();
        let store = dir.join("store");
        recipe(&store);
        let described = serde_json::to_string_pretty(&good::describe(name, about, &store)).unwrap() + "\n";
        fs::write(dir.join(EXPECTED), described).unwrap();
        if name == "chunked" {
            fs::remove_file(store.join("storages/0000000000000001.bin")).unwrap();
        }
        keep_empty(&store);
    }
    for damaged in damaged::all() {
        let dir = root.join("damaged").join(damaged.name());
        if !dir.exists() {
            damaged.write(&dir);
            keep_empty(&dir.join("store"));
        }
    }
    let mut lines = fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let standing = listed();
    for (path, digest) in of_stores() {
        if !standing.contains_key(&path) {
            lines += &format!("{digest}  {path}\n");
        }
    }
    fs::write(root.join(LIST), lines).unwrap();
}

/// Git does not keep a directory without files.
fn keep_empty(store: &Path) {
    for dir in ["generations", "meta", "storages"].map(|name| store.join(name)) {
        if dir.is_dir() && fs::read_dir(&dir).unwrap().next().is_none() {
            fs::write(dir.join(".keep"), "").unwrap();
        }
    }
}
