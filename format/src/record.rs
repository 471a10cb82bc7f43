//! The records of storages and tensors.

use std::sync::Arc;

use serde::de::SeqAccess;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{MAX_RESERVED_BYTES, MAX_STORAGE_BYTES, MAX_TEXT_BYTES};
use crate::{DType, Dims, Error, Header, Result, Rule, Sealed, codec};

/// Checks the name of a tensor, the scope or key of an attribute, or the path of an external file: 1 to 4096 bytes of
/// UTF-8 without NUL (F-4). `what` is the word for the text in the error.
///
/// # Errors
/// [`Rule::Text`].
pub fn check_text(what: &str, text: &str) -> Result<()> {
    // Every byte is examined, which is faster for short texts than to search for the first NUL.
    let has_nul = text.bytes().fold(false, |has_nul, byte| has_nul | (byte == 0));
    if text.is_empty() || text.len() > MAX_TEXT_BYTES || has_nul {
        let mut chars = text.chars();
        let shown: String = chars.by_ref().take(40).collect();
        let more = if chars.as_str().is_empty() { "" } else { "..." };
        return Err(Error::new(Rule::Text, format!("{what} {shown:?}{more} of {} bytes", text.len())));
    }
    Ok(())
}

/// The kind of a storage: how its bytes may change, and what protects them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum RecordKind {
    /// Bytes below the length never change. The storage may only grow.
    Sealed(Sealed),
    /// Changed in place, under an exclusive lock.
    Mutable,
    /// Read and written by many processes at once, with atomics.
    Live {
        /// The size of every access in bytes: 1, 2, 4 or 8. Accesses of different sizes to the same bytes are not
        /// atomic with respect to each other.
        access_bytes: u8,
    },
    /// A range of a file outside the store.
    External(External),
}

impl<'de> Deserialize<'de> for RecordKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        codec::choice(deserializer)
    }
}

impl<'de> codec::Choice<'de> for RecordKind {
    fn decode_fields<A: SeqAccess<'de>>(number: u64, fields: &mut A) -> std::result::Result<Self, A::Error> {
        Ok(match number {
            0 => RecordKind::Sealed(codec::field(fields)?),
            1 => RecordKind::Mutable,
            2 => RecordKind::Live { access_bytes: codec::field(fields)? },
            3 => RecordKind::External(codec::field(fields)?),
            _ => return Err(codec::refuse(Rule::StorageKind, "it has an unknown storage kind")),
        })
    }
}

/// The location of an external storage, and the state of its file when it was adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// The file, relative to the store's parent directory unless it is absolute.
    pub path: String,
    /// The offset of the storage in the file, in bytes.
    pub offset_bytes: u64,
    /// The state of the file, which must not change.
    pub stamp: FileStamp,
}

/// The metadata by which a replaced or rewritten file is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The number of the inode.
    pub inode: u64,
    /// The length of the file in bytes.
    pub size_bytes: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// The metadata of one storage. Its id is the key of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageRecord {
    /// The number of bytes that tensors may cover. The file may be longer, but never shorter.
    pub length_bytes: u64,
    /// The number of tensors that refer to this storage. A storage to which no tensor refers has no record.
    pub tensor_count: u64,
    /// How the bytes may change.
    pub kind: RecordKind,
    /// Whether the storage was garbage before, and was restored. Then some generations between those that have it
    /// may lack it.
    pub is_restored: bool,
}

impl StorageRecord {
    /// Creates the record of a storage to which no tensor refers yet.
    #[must_use]
    pub fn new(length_bytes: u64, kind: RecordKind) -> Self {
        StorageRecord { length_bytes, tensor_count: 0, kind, is_restored: false }
    }

    /// Returns how many bytes the storage needs in its file. A mutable storage has its mark after its bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.length_bytes.saturating_add(u64::from(self.kind == RecordKind::Mutable))
    }

    /// Checks the record of garbage.
    pub(crate) fn check_garbage(&self) -> Result<()> {
        if self.tensor_count > 0 {
            let detail = format!("garbage to which {} tensors refer", self.tensor_count);
            return Err(Error::new(Rule::RecordCount, detail));
        }
        self.check()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.length_bytes > MAX_STORAGE_BYTES {
            return Err(Error::new(Rule::StorageLength, format!("storage of {} bytes", self.length_bytes)));
        }
        if let RecordKind::Live { access_bytes } = self.kind
            && !matches!(access_bytes, 1 | 2 | 4 | 8)
        {
            let detail = format!("a live storage with accesses of {access_bytes} bytes");
            return Err(Error::new(Rule::StorageKind, detail));
        }
        if let RecordKind::Sealed(Sealed { reserved_bytes, .. }) = self.kind
            && reserved_bytes > MAX_RESERVED_BYTES
        {
            let detail = format!("a storage that reserves {reserved_bytes} bytes");
            return Err(Error::new(Rule::StorageLength, detail));
        }
        if let RecordKind::External(external) = &self.kind {
            check_text("external path", &external.path)?;
            if external
                .offset_bytes
                .checked_add(self.length_bytes)
                .is_none_or(|end| end > external.stamp.size_bytes)
            {
                return Err(Error::mismatch(
                    Rule::StorageLength,
                    format!(
                        "{} bytes at offset {} of an external file of {} bytes",
                        self.length_bytes, external.offset_bytes, external.stamp.size_bytes
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// The metadata of one tensor: a header over a storage. Its name is the key of the record.
///
/// The clones of a record share its header. The header is on the heap, so that `None` takes little memory in a map of
/// `Option<TensorRecord>`. In a manifest, a removed tensor is a `None`, which takes little more than its name, so a
/// small manifest can have thousands of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRecord {
    /// The dtype, size, stride, storage offset and names of dimensions.
    pub header: Arc<Header>,
    /// The id of the storage.
    pub storage_id: u64,
}

/// Checks that a storage id is at least 1 and below the next id (F-12).
pub(crate) fn check_storage_id(id: u64, next_id: u64) -> Result<()> {
    if id == 0 || id >= next_id {
        return Err(Error::new(
            Rule::StorageId,
            format!("storage id {id}; it must be at least 1 and below {next_id}"),
        ));
    }
    Ok(())
}

/// A tensor record as it is decoded: its fields in their order on disk, not yet checked.
pub(crate) type Unchecked = (u8, Dims<usize>, Dims<isize>, usize, u64, Option<DimNames>);

/// An optional name for each dimension.
#[derive(Serialize, Deserialize)]
pub(crate) struct DimNames(#[serde(deserialize_with = "codec::dimensions")] Vec<Option<Arc<str>>>);

impl Serialize for TensorRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let TensorRecord { header, storage_id } = self;
        let (dtype, names) = (header.dtype().code(), header.dim_names());
        (dtype, header.size(), header.stride(), header.storage_offset(), storage_id, names)
            .serialize(serializer)
    }
}

impl TryFrom<Unchecked> for TensorRecord {
    type Error = Error;

    fn try_from((dtype, size, stride, offset, storage_id, names): Unchecked) -> Result<Self> {
        let mut header = Header::new(DType::from_code(dtype)?, size, stride, offset)?;
        if let Some(DimNames(names)) = names {
            if names.iter().all(Option::is_none) {
                return Err(Error::new(Rule::DimNames, "a list of dimension names without a name"));
            }
            header = header.with_dim_names(names)?;
        }
        Ok(TensorRecord { header: Arc::new(header), storage_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_RANK;

    #[test]
    fn the_largest_record_fits_in_a_node() {
        let name = |i: usize| Some(format!("{i:a>255}").into());
        let size: Vec<usize> = (0..MAX_RANK).map(|i| if i == 0 { 0 } else { usize::MAX }).collect();
        let header = Header::new(DType::F32, size, vec![isize::MIN; MAX_RANK], usize::MAX).unwrap();
        let header = header.with_dim_names((0..MAX_RANK).map(name)).unwrap().into();
        let entry = ("n".repeat(MAX_TEXT_BYTES), TensorRecord { header, storage_id: u64::MAX - 1 });
        let bytes = codec::encode(&entry, u64::MAX, Rule::Canonical).unwrap();
        let node_bytes = usize::from(crate::limits::MAX_NODE_PAGES) * crate::PAGE_BYTES;
        assert!(bytes.len() + 60 <= node_bytes, "{}", bytes.len());
    }

    #[test]
    fn names_are_any_text_but_empty_long_or_with_nul() {
        for name in ["a", "../x", "layer.0/weight", "λ", "a b\n"] {
            assert!(check_text("name", name).is_ok(), "{name:?}");
        }
        for name in ["", "a\0b", &"x".repeat(4097)] {
            assert_eq!(check_text("name", name).unwrap_err().rule(), Rule::Text);
        }
    }
}
