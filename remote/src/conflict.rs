//! What is said of a store and a remote that have gone different ways.

use stridemap::replica::GenerationId;

/// What can be done. Nothing is merged, and nothing is lost: the store stays as it is.
pub const WAYS_OUT: &str = "to keep the state of this store, push it to another URL; to keep that of the remote, \
                                   pull to a new path, or move this store away and pull again";

/// Another store pushed elements that change in place, and no commit.
pub(crate) const OTHER_ELEMENTS: &str =
    "someone else pushed elements of mutable or live tensors since, without a commit";

/// Says that a store and a remote have gone different ways. `last` is the last generation that both had, if it is known.
pub(crate) fn forked(local: GenerationId, remote: GenerationId, last: Option<GenerationId>) -> String {
    let (local_number, remote_number) = (local.number, remote.number);
    let what = match last {
        Some(last) if last == remote => OTHER_ELEMENTS.to_owned(),
        Some(last) if remote_number <= last.number || last == local => not_following(remote, last),
        Some(last) if last.number < local_number => format!(
            "this store has commits of its own since generation {}, {}, and the remote, at generation {remote_number}, has \
             others",
            last.number,
            own(last, local)
        ),
        _ => format!(
            "the remote has generation {remote_number}, which this store, at generation {local_number}, neither pushed nor \
             pulled"
        ),
    };
    format!("{what}; {WAYS_OUT}")
}

/// Says that a remote is not at a generation that was made from the last one that both had.
fn not_following(remote: GenerationId, last: GenerationId) -> String {
    let (remote, last) = (remote.number, last.number);
    format!(
        "the remote has generation {remote}, which does not follow generation {last}, the last one that both had"
    )
}

/// Names the generations that a store has made since the last one that both had.
pub(crate) fn own(last: GenerationId, local: GenerationId) -> String {
    match (last.number + 1, local.number) {
        (first, newest) if first == newest => format!("its generation {newest}"),
        (first, newest) => format!("its generations {first} to {newest}"),
    }
}
