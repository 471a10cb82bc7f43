//! The findings of a verification, and the tensors that they affect.

use std::fmt;
use std::path::PathBuf;
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
    /// The tensors that cannot be loaded because of it, or whose elements may be wrong.
    pub affected: Affected,
}

/// Which tensors a finding affects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Affected {
    /// Every tensor of the store: none can be looked up.
    Everything,
    /// These tensors.
    Tensors {
        /// The names that are known, in ascending order. About a million are kept for all findings together.
        #[cfg_attr(feature = "serde", serde(serialize_with = "serialize_names"))]
        names: Vec<Arc<str>>,
        /// How many more tensors are affected.
        more: u64,
    },
}

#[cfg(feature = "serde")]
fn serialize_names<S: serde::Serializer>(
    names: &[Arc<str>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(|name| &**name))
}

impl Affected {
    pub(crate) const NOTHING: Affected = Affected::Tensors { names: Vec::new(), more: 0 };

    /// Whether the tensor with this name is affected, as far as the names were kept.
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
    /// let affected = &store.verify(|_| ())?.findings[0].affected;
    /// assert!(affected.contains("x") && !affected.contains("y"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Affected::Everything => true,
            Affected::Tensors { names, .. } => names.iter().any(|affected| &**affected == name),
        }
    }
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, more) = match self {
            Affected::Everything => return f.write_str("every tensor"),
            Affected::Tensors { names, more } => (names, *more),
        };
        let more = more.saturating_add(names.len().saturating_sub(SHOWN_NAMES) as u64);
        let mut listed: Vec<String> =
            names.iter().take(SHOWN_NAMES).map(|name| format!("{name:?}")).collect();
        match (listed.is_empty(), more) {
            (true, 0) => return f.write_str("no tensor"),
            (true, _) => listed.push(format!("{more} tensors")),
            (false, 0) => {}
            (false, _) => listed.push(format!("and {more} more")),
        }
        f.write_str(&listed.join(", "))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.offset_bytes.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let Finding { path, rule, detail, affected, .. } = self;
        let line =
            format!("{}{place}: {detail} ({rule}: {}); affects {affected}", path.display(), rule.text());
        f.write_str(&one_line(&line))
    }
}

/// The index of a finding in the list.
pub(super) type FindingIndex = usize;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
    kept_names: usize,
}

impl Findings {
    pub(super) fn push(
        &mut self,
        path: impl Into<PathBuf>,
        broken: &FormatError,
        affected: Affected,
    ) -> FindingIndex {
        self.list.push(Finding {
            path: path.into(),
            offset_bytes: broken.offset_bytes(),
            rule: broken.rule(),
            detail: broken.detail().to_owned(),
            affected,
        });
        self.list.len() - 1
    }

    /// Adds a finding for a broken rule. Any other error is returned, and ends the verification.
    pub(super) fn add_broken_rule(&mut self, error: Error, affected: Affected) -> Result<FindingIndex> {
        match (error.broken_path(), error.format_error()) {
            // A newer version is not damage.
            _ if error.kind() == ErrorKind::UnsupportedVersion => Err(error),
            (Some(path), Some(broken)) => Ok(self.push(path, broken, affected)),
            _ => Err(error),
        }
    }

    pub(super) fn affect(&mut self, finding: FindingIndex, name: &Arc<str>) {
        let Some(Affected::Tensors { names, more }) = self.list.get_mut(finding).map(|f| &mut f.affected)
        else {
            return;
        };
        if names.last() == Some(name) {
            return;
        }
        if self.kept_names < MAX_NAMES {
            self.kept_names += 1;
            names.push(Arc::clone(name));
        } else {
            *more += 1;
        }
    }

    /// Sorts the names, and removes duplicates.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        for finding in &mut self.list {
            if let Affected::Tensors { names, .. } = &mut finding.affected {
                names.sort_unstable();
                names.dedup();
            }
        }
        self.list
    }
}
