//! The contents of a file in another format: storages, headers over them, and text.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use stridemap::{Error, ErrorKind, Header, Result};
pub(super) use stridemap_format::limits::MAX_ATTRIBUTES_BYTES;
use stridemap_format::{attribute_size, check_text};

use super::file::RawFile;
use super::foreign_storage::{ForeignStorage, header_of_bytes};
use super::{FileFormat, ForeignOptions};

/// The key of the attribute that names the type of a tensor: that of its blocks, such as `Q4_K`, or, for a tensor that
/// is a long value of the metadata, `[string]`, `[float32]` and so on, or `text`.
pub const TYPE_KEY: &str = "gguf.type";

/// The [`TYPE_KEY`] of a tensor of bytes that is an attribute too long for a store.
pub(super) const TEXT: &str = "text";

/// The result of reading the headers of a file, checked against the file. No element has been read.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) format: FileFormat,
    pub(super) storages: Vec<ForeignStorage>,
    /// The tensors, in the order of the file.
    pub(super) tensors: Vec<ForeignTensor>,
    pub(super) attributes: BTreeMap<String, String>,
    /// The names of the tensors of bytes that stand for values too large for attributes.
    pub(super) too_long: Vec<String>,
    pub(super) skipped: Vec<Skipped>,
}

/// The approximate memory that an attribute takes, besides its key and value. If not all attributes fit in a store, this
/// is also what each counts as, so that those that are kept have room for a prefix.
pub(super) const ATTRIBUTE_BYTES: usize = 96;

/// A tensor or a value that was left out because it cannot be read: see [`ForeignOptions::skip_unreadable`].
///
/// [`ForeignOptions::skip_unreadable`]: crate::ForeignOptions::skip_unreadable
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Skipped {
    /// The name that it has in the file.
    pub name: String,
    /// The error with which opening the file would otherwise fail.
    pub reason: Error,
}

/// A named header over one of the storages.
#[derive(Clone, Debug)]
pub(super) struct ForeignTensor {
    pub(super) name: String,
    pub(super) header: Header,
    /// The index of the storage.
    pub(super) storage: usize,
    /// The type that the format has for the elements and no dtype has: the [attribute](crate::gguf::TYPE_KEY) of the
    /// tensor.
    pub(super) gguf_type: Option<&'static str>,
}

impl Contents {
    /// Returns contents without tensors.
    pub(super) fn new(format: FileFormat) -> Self {
        Contents {
            format,
            storages: Vec::new(),
            tensors: Vec::new(),
            attributes: BTreeMap::new(),
            too_long: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Adds a tensor of bytes that do not lie in the file as they are.
    pub(super) fn add_bytes(&mut self, file: &Arc<RawFile>, name: String, bytes: Vec<u8>) -> Result<()> {
        let header = header_of_bytes(bytes.len())?;
        self.tensors.push(ForeignTensor::new(name, header, self.storages.len()));
        self.storages.push(ForeignStorage::of_bytes(file, bytes));
        Ok(())
    }

    /// Makes tensors of bytes of the largest attributes, if all together are more than a store may have. One whose key
    /// no attribute can have is left out or refused.
    pub(super) fn fit_attributes(&mut self, file: &Arc<RawFile>, options: ForeignOptions) -> Result<()> {
        let size_of = |(key, value): (&String, &String)| {
            (key.len().saturating_add(value.len()).saturating_add(ATTRIBUTE_BYTES), key.clone())
        };
        let mut sizes: Vec<(usize, String)> = self.attributes.iter().map(size_of).collect();
        sizes.sort_unstable();
        let in_store = self.attributes.iter().map(|(key, value)| attribute_size("", key, value));
        let types = self.tensors.iter().filter_map(|tensor| {
            tensor.gguf_type.map(|gguf_type| attribute_size(&tensor.name, TYPE_KEY, gguf_type))
        });
        let room_bytes = MAX_ATTRIBUTES_BYTES.saturating_sub(types.fold(0, usize::saturating_add));
        let is_all_kept = in_store.fold(0, usize::saturating_add) <= room_bytes;
        let mut rest_bytes = if is_all_kept { usize::MAX } else { room_bytes };
        let is_fitting = |&(bytes, _): &(usize, String)| {
            let rest = rest_bytes.checked_sub(bytes);
            rest_bytes = rest.unwrap_or(0);
            rest.is_some()
        };
        let large: HashSet<String> = sizes.into_iter().skip_while(is_fitting).map(|(_, key)| key).collect();
        let mut moved = Vec::new();
        self.attributes.retain(|key, value| {
            let is_kept = !large.contains(key) && check_text("attribute key", key).is_ok();
            if !is_kept {
                moved.push((key.clone(), std::mem::take(value)));
            }
            is_kept
        });
        if moved.is_empty() {
            return Ok(());
        }
        let names: HashSet<String> = self.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        for (key, value) in moved {
            if let Err(e) = check_text("attribute key", &key) {
                let what = format!("{e}, so no attribute can have this key");
                self.skip(options, key, file.bad(what))?;
            } else if names.contains(&key) {
                let what = format!(
                    "the value of {key:?} has {} bytes, which is too much for an attribute, and a tensor has its name",
                    value.len()
                );
                self.skip(options, key, file.bad(what))?;
            } else {
                self.too_long.push(key.clone());
                self.add_bytes(file, key, value.into_bytes())?;
                if let Some(added) = self.tensors.last_mut().filter(|_| self.format == FileFormat::Gguf) {
                    added.gguf_type = Some(TEXT);
                }
            }
        }
        Ok(())
    }

    /// Leaves out a tensor if the options allow that and the reason is a `BadFile`. Otherwise returns the reason as an
    /// error.
    pub(super) fn skip(&mut self, options: ForeignOptions, name: String, reason: Error) -> Result<()> {
        if !options.is_skipping_unreadable || reason.kind() != ErrorKind::BadFile {
            return Err(reason);
        }
        self.skipped.push(Skipped { name, reason });
        Ok(())
    }

    /// Refuses duplicate names, and tensors that reach past their storage. Names that a store does not allow are
    /// accepted, because a prefix may make them valid.
    pub(super) fn checked(self, file: &RawFile) -> Result<Self> {
        let mut names = HashSet::new();
        for ForeignTensor { name, header, storage, .. } in &self.tensors {
            if !names.insert(name) {
                return Err(file.bad(format!("two tensors are named {name:?}")));
            }
            let length_bytes = self.storages.get(*storage).map_or(0, |storage| storage.length_bytes);
            header.extent(length_bytes).map_err(|e| file.bad(format!("tensor {name:?}: {e}")))?;
        }
        Ok(self)
    }

    /// Returns the number of bytes that are read to import everything.
    pub(super) fn size_bytes(&self) -> u64 {
        let whole = self
            .storages
            .iter()
            .filter(|storage| storage.is_imported_whole)
            .map(|storage| storage.length_bytes);
        let is_imported_whole =
            |index: usize| self.storages.get(index).is_some_and(|storage| storage.is_imported_whole);
        let others = self.tensors.iter().filter(|tensor| !is_imported_whole(tensor.storage));
        whole.chain(others.map(ForeignTensor::size_bytes)).fold(0, u64::saturating_add)
    }
}

impl ForeignTensor {
    pub(super) fn new(name: String, header: Header, storage: usize) -> Self {
        ForeignTensor { name, header, storage, gguf_type: None }
    }

    /// Returns the tensor with a type that no dtype has.
    pub(super) fn of_type(self, gguf_type: &'static str) -> Self {
        ForeignTensor { gguf_type: Some(gguf_type), ..self }
    }

    /// Returns the size of the elements in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.header.nbytes() as u64
    }
}
