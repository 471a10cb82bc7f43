use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Loss;

/// Lost names, grouped by file and reason.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<(PathBuf, String), Vec<String>>);

impl Losses {
    pub(super) fn add(&mut self, path: &Path, reason: &str, name: &str) {
        self.0.entry((path.to_path_buf(), reason.to_owned())).or_default().push(name.to_owned());
    }

    pub(super) fn finish(self) -> impl Iterator<Item = Loss> {
        self.0.into_iter().map(|((path, reason), mut names)| {
            names.sort_unstable();
            Loss { path, reason, names }
        })
    }
}
