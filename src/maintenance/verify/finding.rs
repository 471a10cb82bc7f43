//! The findings of a verification, and the tensors that they affect.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{Error as FormatError, Rule};

use crate::error::{Error, ErrorKind, Result, one_line};

/// How many names a message lists.
const SHOWN_NAMES: usize = 3;

/// How many names are kept for all findings together. A storage of a million tensors may have a million damaged
/// chunks.
pub(super) const MAX_NAMES: usize = 1 << 20;

/// One defect of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The file that is damaged or missing.
    pub path: PathBuf,
    /// The offset in the file, if known.
    pub offset_bytes: Option<u64>,
    /// The rule of the format that is broken.
    pub rule: Rule,
    /// A description of the defect.
    pub detail: String,
    /// Whether it affects every tensor of the store: none can be looked up.
    pub affects_all: bool,
    /// The names that are known of the tensors that cannot be loaded because of it, or whose elements may be wrong, in
    /// ascending order. About a million are kept for all findings together.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialize_names"))]
    pub names: Vec<Arc<str>>,
    /// How many more tensors it affects.
    pub more_names: u64,
    /// The tags whose generations lose something by it, in ascending order.
    pub tags: Vec<String>,
}

#[cfg(feature = "serde")]
fn serialize_names<S: serde::Serializer>(
    names: &[Arc<str>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(|name| &**name))
}

impl Finding {
    /// Returns whether the tensor with this name is affected, as far as the names were kept.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.save("x", &vec![1u8; 2 << 20])?; // in chunks of 1 MiB
    ///     txn.save("y", &[1u8])
    /// })?;
    /// let path = store.path().join("storages/0000000000000001.bin");
    /// let mut bytes = std::fs::read(&path)?;
    /// bytes[0] = 0;
    /// std::fs::write(&path, bytes)?;
    /// let finding = &store.verify(|_| ())?.findings[0];
    /// assert!(finding.affects("x") && !finding.affects("y"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn affects(&self, name: &str) -> bool {
        self.affects_all || self.names.iter().any(|affected| &**affected == name)
    }

    fn affected_text(&self) -> String {
        let more = self.more_names.saturating_add(self.names.len().saturating_sub(SHOWN_NAMES) as u64);
        let mut listed: Vec<String> =
            self.names.iter().take(SHOWN_NAMES).map(|name| format!("{name:?}")).collect();
        match (listed.is_empty(), more) {
            _ if self.affects_all => return "every tensor".to_owned(),
            (true, 0) => return "no tensor".to_owned(),
            (true, _) => listed.push(format!("{more} tensors")),
            (false, 0) => {}
            (false, _) => listed.push(format!("and {more} more")),
        }
        listed.join(", ")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.offset_bytes.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let Finding { path, rule, detail, .. } = self;
        let affected = self.affected_text();
        let line =
            format!("{}{place}: {detail} ({rule}: {}); affects {affected}", path.display(), rule.text());
        let line = match self.tags.as_slice() {
            [] => line,
            tags => format!("{line}; tags that lose something: {}", tags.join(", ")),
        };
        f.write_str(&one_line(&line))
    }
}

/// The index of a finding in the list.
pub(super) type FindingIndex = usize;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
    kept_names: usize,
    /// The finding of each error that several files may have: one object of a remote has parts of many.
    shared: HashMap<(PathBuf, String), FindingIndex>,
}

impl Findings {
    /// Adds a finding that affects no tensor yet.
    pub(super) fn push(&mut self, path: impl Into<PathBuf>, broken: &FormatError) -> FindingIndex {
        self.list.push(Finding {
            path: path.into(),
            offset_bytes: broken.offset_bytes(),
            rule: broken.rule(),
            detail: broken.detail().to_owned(),
            affects_all: false,
            names: Vec::new(),
            more_names: 0,
            tags: Vec::new(),
        });
        self.list.len() - 1
    }

    /// Adds a finding for a broken rule. Any other error is returned, and ends the verification.
    pub(super) fn add_broken_rule(&mut self, error: Error) -> Result<FindingIndex> {
        match (error.broken_path(), error.format_error()) {
            // A newer version is not damage.
            _ if error.kind() == ErrorKind::UnsupportedVersion => Err(error),
            (Some(path), Some(broken)) if broken.rule().document() == Rule::RemoteObject.document() => {
                let key = (path.to_path_buf(), broken.detail().to_owned());
                if let Some(&known) = self.shared.get(&key) {
                    return Ok(known);
                }
                let finding = self.push(path, broken);
                self.shared.insert(key, finding);
                Ok(finding)
            }
            (Some(path), Some(broken)) => Ok(self.push(path, broken)),
            _ => Err(error),
        }
    }

    /// Adds a finding for a broken rule that affects every tensor.
    pub(super) fn add_for_all(&mut self, error: Error) -> Result<()> {
        let finding = self.add_broken_rule(error)?;
        self.list[finding].affects_all = true;
        Ok(())
    }

    pub(super) fn affect(&mut self, finding: FindingIndex, name: &Arc<str>) {
        let Some(Finding { affects_all: false, names, more_names, .. }) = self.list.get_mut(finding) else {
            return;
        };
        if names.last() == Some(name) {
            return;
        }
        if self.kept_names < MAX_NAMES {
            self.kept_names += 1;
            names.push(Arc::clone(name));
        } else {
            *more_names += 1;
        }
    }

    /// Adds tags whose generations lose something.
    pub(super) fn affect_tags(&mut self, finding: FindingIndex, tags: &[String]) {
        if let Some(finding) = self.list.get_mut(finding) {
            finding.tags.extend_from_slice(tags);
        }
    }

    /// Forgets tags that are gone, and the findings from `start` on that were only about these, or whose files are gone.
    pub(super) fn drop_tags(
        &mut self,
        start: FindingIndex,
        gone: &BTreeSet<String>,
        is_file_gone: impl Fn(&Path) -> bool,
    ) {
        let mut index = 0;
        self.list.retain_mut(|finding| {
            let had_tags = !finding.tags.is_empty();
            finding.tags.retain(|tag| !gone.contains(tag));
            index += 1;
            index <= start || !finding.tags.is_empty() || !had_tags && !is_file_gone(&finding.path)
        });
    }

    /// Sorts the names and tags, and removes duplicates.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        for finding in &mut self.list {
            finding.tags.sort_unstable();
            finding.tags.dedup();
            finding.names.sort_unstable();
            finding.names.dedup();
        }
        self.list
    }
}
