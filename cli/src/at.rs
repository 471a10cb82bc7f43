//! Generations in arguments: `STORE@TAG`, and the tag or number of one.

use std::path::Path;

use stridemap::{ErrorKind, Result as LibraryResult, Snapshot, Store};

use crate::error::{Error, Result};
use crate::names::{command_line, shell_word};
use crate::remote::{check_local, is_url, split_url};
use crate::ui::counted;

/// The maximum number of tags that an error lists.
const MAX_TAGS: usize = 10;

/// Splits `STORE@TAG` or `URL@TAG`. Returns `None` for a path where something exists, and if no part before an @ is a store.
pub(crate) fn split(path: &Path) -> Option<(&Path, &str)> {
    if is_url(path) {
        return split_url(path);
    }
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let text = path.to_str()?;
    let mut parts =
        text.rmatch_indices('@').filter_map(|(at, _)| Some((text.get(..at)?, text.get(at + 1..)?)));
    parts
        .find_map(|(store, tag)| Path::new(store).join("FORMAT").is_file().then_some((Path::new(store), tag)))
}

/// Refuses a URL and `STORE@TAG`, for a command that changes a store, or is about its newest generation.
pub(crate) fn check_untagged(path: &Path) -> Result<()> {
    check_local(path)?;
    match split(path) {
        Some((store, _)) => Err(refused(path, &format!("name the store, {}", store.display()))),
        None => Ok(()),
    }
}

/// Returns the error that a command does not take `STORE@TAG`.
pub(crate) fn refused(path: &Path, advice: &str) -> Error {
    let path = path.display();
    let why = "a tagged generation can be looked at, but this command is about the newest one";
    Error::Refused(format!("{path}: {why}; {advice}"))
}

/// Opens the generation that a tag names, or the one with a number. A tag whose name is a number wins.
pub(crate) fn snapshot_at(store: &Store, text: &str) -> Result<Snapshot> {
    match store.at(text) {
        Err(e) if e.kind() == ErrorKind::NameNotFound => match text.parse::<u64>() {
            Ok(generation) => Ok(store.at(generation)?),
            Err(_) => Err(unknown(store, text)?),
        },
        snapshot => Ok(snapshot?),
    }
}

/// Returns the error that a store has no tag with this name. It says which there are, the newest first.
pub(crate) fn unknown(store: &Store, name: &str) -> Result<Error> {
    let tags = store.tags()?;
    let shown: Vec<_> = tags.iter().rev().take(MAX_TAGS).map(|tag| shell_word(&tag.name)).collect();
    let (path, shown) = (store.path().display(), shown.join(", "));
    let there = match tags.len().saturating_sub(MAX_TAGS) {
        _ if tags.is_empty() => format!("{path} has no tags"),
        0 => format!("the tags of {path} are {shown}"),
        more => format!(
            "{path} has {shown} and {}; {} lists them",
            counted(more as u64, "more tag"),
            command_line("tag", &[&store.path().to_string_lossy()])
        ),
    };
    Ok(Error::Refused(format!("no tag is named {name:?}; {there}")))
}

/// Opens a tagged generation. Returns `None` if another process has removed its tags.
pub(crate) fn still_kept(store: &Store, generation: u64) -> LibraryResult<Option<Snapshot>> {
    match store.at(generation) {
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(None),
        snapshot => snapshot.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn path_that_exists_wins_and_a_tag_may_have_an_at() {
        let dir = tempfile::tempdir().unwrap();
        let store = |name: &str| {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("FORMAT"), "").unwrap();
        };
        let parts = |name: &str| {
            let path = dir.path().join(name);
            split(&path).map(|(store, tag)| {
                let store = store.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned();
                (store, tag.to_owned())
            })
        };
        store("a.smap");
        store("b@x.smap");
        store("in@dir/c.smap");
        for (name, expected) in [
            ("a.smap@v1", Some(("a.smap", "v1"))),
            ("a.smap@user@v1/2", Some(("a.smap", "user@v1/2"))),
            ("a.smap/@v1", Some(("a.smap", "v1"))),
            ("a.smap@", Some(("a.smap", ""))),
            ("b@x.smap@v1", Some(("b@x.smap", "v1"))),
            ("in@dir/c.smap@v1", Some(("in@dir/c.smap", "v1"))),
            ("b@x.smap", None),
            ("none.smap@v1", None),
            ("a.smap", None),
        ] {
            let expected = expected.map(|(store, tag)| (store.to_owned(), tag.to_owned()));
            assert_eq!(parts(name), expected, "{name}");
        }
        fs::write(dir.path().join("a.smap@v1"), "").unwrap();
        assert_eq!(parts("a.smap@v1"), None);
    }
}
