//! Stores and remotes that have gone different ways, or are about to.

use std::path::Path;

use stridemap::ErrorKind;

use crate::error::Error;
use crate::names::{command_line, shell_word};
use crate::ui::message;

/// Adds commands to what an error of a push or a pull says can be done.
pub(super) fn with_commands(e: stridemap::Error, store: &Path, url: &str) -> Error {
    if e.kind() != ErrorKind::Conflict {
        return e.into();
    }
    let store = store.to_string_lossy();
    let push = |url: &str| command_line("push", &[&store, url]);
    let pull = |path: &str| command_line("pull", &[url, path]);
    let (word, again) = (shell_word(&store), pull(&store));
    let ways_out = [
        ("to another URL", push("NEW-URL")),
        ("pull to a new path", pull("NEW.smap")),
        ("pull again", format!("mv {word} OLD.smap && {again}")),
        ("nothing newer; pull", again),
        ("nothing newer; push it", push(url)),
    ];
    let add = |text: String, (way_out, command): (&str, String)| {
        text.replace(way_out, &format!("{way_out} ({command})"))
    };
    Error::Refused(ways_out.into_iter().fold(e.to_string(), add))
}

/// Says that a commit, which was or would be made, keeps a store from being pulled again, if it was pushed or pulled. A pull undoes no commit.
pub(crate) fn note_unpullable(store: &Path) {
    for url in stridemap_remote::recorded_remotes(store) {
        let push = command_line("push", &[&store.to_string_lossy(), &url]);
        message(&match url.starts_with("http") {
            true => {
                format!("note: with this commit of its own, the store can no longer be pulled from {url}")
            }
            false => format!(
                "note: with this commit of its own, the store can be pulled from {url} only after {push}"
            ),
        });
    }
}
