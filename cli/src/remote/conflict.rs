//! Stores and remotes that have gone different ways, or are about to.

use std::path::Path;

use stridemap::ErrorKind;
use stridemap_remote::WAYS_OUT;

use crate::error::Error;
use crate::names::{command_line, shell_word};
use crate::ui::message;

/// Adds commands to what an error of a push or a pull says at its end that can be done.
pub(super) fn with_commands(e: stridemap::Error, store: &Path, url: &str) -> Error {
    if e.kind() != ErrorKind::Conflict {
        return e.into();
    }
    let store = store.to_string_lossy();
    let again = command_line("pull", &[url, &store]);
    // In the order in which they are said.
    let ways_out = [
        ("nothing newer; pull", again.clone()),
        ("nothing newer; push it", command_line("push", &[&store, url])),
        ("to another URL", command_line("push", &[&store, "NEW-URL"])),
        ("pull to a new path", command_line("pull", &[url, "NEW.smap"])),
        ("pull again", format!("mv {} OLD.smap && {again}", shell_word(&store))),
    ];
    let text = e.to_string();
    let advice = [WAYS_OUT].into_iter().chain(ways_out.iter().map(|(way_out, _)| *way_out));
    let advice = advice.into_iter().find(|advice| text.ends_with(advice)).unwrap_or_default();
    // Only the advice is changed: what comes before it has names and paths.
    let mut said = text[..text.len() - advice.len()].to_owned();
    let mut rest = advice;
    for (way_out, command) in ways_out {
        if let Some((before, after)) = rest.split_once(way_out) {
            said.push_str(&format!("{before}{way_out} ({command})"));
            rest = after;
        }
    }
    Error::Refused(said + rest)
}

/// Says that a commit, which was or would be made, keeps a store from being pulled again, if it was pushed or pulled. A
/// pull undoes no commit.
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
