//! The records of storages and tensors.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{MAX_DIM_NAME_BYTES, MAX_RANK, MAX_RESERVED_BYTES, MAX_STORAGE_BYTES, MAX_TEXT_BYTES};
use crate::{DType, Dims, Error, Extent, Result, Rule, Sealed, check_numel, codec};

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

/// Checks the name of a dimension: 1 to 255 ASCII letters, digits and `_`, and no digit at the beginning (F-9).
///
/// # Errors
/// [`Rule::DimNames`].
pub fn check_dim_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') && name.len() <= MAX_DIM_NAME_BYTES {
        return Ok(());
    }
    Err(Error::new(Rule::DimNames, format!("dimension name {name:?}")))
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
        // A choice is encoded as its number, then its content.
        deserializer.deserialize_tuple(2, KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = RecordKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a storage kind")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> std::result::Result<RecordKind, A::Error> {
        fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
            parts: &mut A,
        ) -> std::result::Result<T, A::Error> {
            parts.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &KindVisitor))
        }
        Ok(match next::<u64, A>(&mut parts)? {
            0 => RecordKind::Sealed(next(&mut parts)?),
            1 => RecordKind::Mutable,
            2 => RecordKind::Live { access_bytes: next(&mut parts)? },
            3 => RecordKind::External(next(&mut parts)?),
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
}

impl StorageRecord {
    /// Returns how many bytes the storage needs in its file. A mutable storage has its mark after its bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.length_bytes.saturating_add(u64::from(self.kind == RecordKind::Mutable))
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
                return Err(Error::new(
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

/// The fields of a [`TensorRecord`], unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorParts {
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes, in elements.
    pub size: Dims<u64>,
    /// The strides, in elements. A negative stride runs backwards; a stride of zero repeats an element.
    pub stride: Dims<i64>,
    /// The offset of the element at index 0, 0, ... in the storage, in elements.
    pub offset_elems: u64,
    /// The id of the storage.
    pub storage_id: u64,
    /// An optional name for each dimension, if the dimensions are named.
    pub dim_names: Option<Vec<Option<String>>>,
}

impl TensorParts {
    /// Returns the range of bytes that this tensor covers in a storage of `length_bytes`.
    ///
    /// # Errors
    /// [`Rule::Extent`] if the range is not inside the storage.
    pub fn extent(&self, length_bytes: u64) -> Result<Extent> {
        let dims = self
            .size
            .iter()
            .zip(self.stride.iter())
            .map(|(&size, &stride)| (i128::from(size), i128::from(stride)));
        Extent::of(dims, i128::from(self.offset_elems), self.dtype, length_bytes)
    }
}

/// The metadata of one tensor: a header over a storage. Its name is the key of the record.
///
/// The clones of a record share its parts. The parts are on the heap, so that `None` takes little memory in a map of
/// `Option<TensorRecord>`. In a manifest, a removed tensor is a `None`, which takes little more than its name, so a
/// small manifest can have thousands of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRecord(Arc<TensorParts>);

impl TensorRecord {
    /// Creates a record, after checking that its parts are consistent. Use [`extent`](TensorParts::extent) to check
    /// that the view is inside its storage.
    ///
    /// # Errors
    /// [`Rule::Rank`], [`Rule::Numel`], [`Rule::StorageId`], [`Rule::DimNames`].
    pub fn new(parts: TensorParts) -> Result<Self> {
        let (rank, strides) = (parts.size.len(), parts.stride.len());
        if rank > MAX_RANK || rank != strides {
            return Err(Error::new(Rule::Rank, format!("{rank} sizes and {strides} strides")));
        }
        check_numel(parts.size.iter().copied())?;
        check_storage_id(parts.storage_id, u64::MAX)?;
        if let Some(names) = &parts.dim_names {
            if names.len() != rank {
                return Err(Error::new(
                    Rule::DimNames,
                    format!("{} names for {rank} dimensions", names.len()),
                ));
            }
            if names.iter().all(Option::is_none) {
                return Err(Error::new(Rule::DimNames, "a list of dimension names without a name"));
            }
            let mut seen = std::collections::BTreeSet::new();
            for name in names.iter().flatten() {
                check_dim_name(name)?;
                if !seen.insert(name) {
                    return Err(Error::new(Rule::DimNames, format!("dimension name {name:?} appears twice")));
                }
            }
        }
        Ok(TensorRecord(Arc::new(parts)))
    }

    /// Returns the record of the same tensor on another storage.
    ///
    /// # Errors
    /// [`Rule::StorageId`].
    pub fn with_storage_id(mut self, storage_id: u64) -> Result<Self> {
        check_storage_id(storage_id, u64::MAX)?;
        Arc::make_mut(&mut self.0).storage_id = storage_id;
        Ok(self)
    }

    /// Returns the parts of the record.
    #[must_use]
    pub fn into_parts(self) -> TensorParts {
        Arc::unwrap_or_clone(self.0)
    }
}

impl std::ops::Deref for TensorRecord {
    type Target = TensorParts;

    fn deref(&self) -> &TensorParts {
        &self.0
    }
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

/// The encoded form of a tensor record, unchecked.
#[derive(Serialize, Deserialize)]
pub(crate) struct TensorWire {
    dtype: u8,
    #[serde(deserialize_with = "codec::dimensions")]
    size: Dims<u64>,
    #[serde(deserialize_with = "codec::dimensions")]
    stride: Dims<i64>,
    offset_elems: u64,
    storage_id: u64,
    dim_names: Option<DimNames>,
}

/// An optional name for each dimension.
#[derive(Serialize, Deserialize)]
struct DimNames(#[serde(deserialize_with = "codec::dimensions")] Vec<Option<String>>);

/// A borrowed tensor record, for encoding as a [`TensorWire`].
#[derive(Serialize)]
pub(crate) struct TensorWireRef<'a> {
    dtype: u8,
    size: &'a [u64],
    stride: &'a [i64],
    offset_elems: u64,
    storage_id: u64,
    dim_names: Option<&'a [Option<String>]>,
}

impl<'a> From<&'a TensorRecord> for TensorWireRef<'a> {
    fn from(record: &'a TensorRecord) -> Self {
        let TensorParts { dtype, size, stride, offset_elems, storage_id, dim_names } = &**record;
        TensorWireRef {
            dtype: dtype.code(),
            size,
            stride,
            offset_elems: *offset_elems,
            storage_id: *storage_id,
            dim_names: dim_names.as_deref(),
        }
    }
}

impl TryFrom<TensorWire> for TensorRecord {
    type Error = Error;

    fn try_from(wire: TensorWire) -> Result<Self> {
        let TensorWire { dtype, size, stride, offset_elems, storage_id, dim_names } = wire;
        let dtype = DType::from_code(dtype)?;
        let dim_names = dim_names.map(|DimNames(names)| names);
        TensorRecord::new(TensorParts { dtype, size, stride, offset_elems, storage_id, dim_names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> TensorParts {
        TensorParts {
            dtype: DType::F32,
            size: vec![3, 2].into(),
            stride: vec![2, 1].into(),
            offset_elems: 0,
            storage_id: 1,
            dim_names: None,
        }
    }

    #[test]
    fn tensor_record_refuses_parts_that_disagree() {
        let refused = |change: fn(&mut TensorParts)| {
            let mut changed = parts();
            change(&mut changed);
            TensorRecord::new(changed).unwrap_err().rule()
        };
        assert_eq!(refused(|p| p.size = vec![3, 2, 1].into()), Rule::Rank);
        assert_eq!(refused(|p| (p.size, p.stride) = (vec![1; 65].into(), vec![1; 65].into())), Rule::Rank);
        assert_eq!(refused(|p| p.size = vec![1 << 32, 1 << 32].into()), Rule::Numel);
        assert_eq!(refused(|p| p.storage_id = 0), Rule::StorageId);
        assert_eq!(refused(|p| p.dim_names = Some(vec![None])), Rule::DimNames);
        assert_eq!(refused(|p| p.dim_names = Some(vec![Some("a".into()), Some("a".into())])), Rule::DimNames);
        assert_eq!(refused(|p| p.dim_names = Some(vec![Some("a b".into()), None])), Rule::DimNames);
        assert!(TensorRecord::new(parts()).is_ok());
    }

    #[test]
    fn the_largest_record_fits_in_a_node() {
        let name = |i: usize| Some(format!("{i:a>255}"));
        let record = TensorRecord::new(TensorParts {
            size: vec![0; MAX_RANK].into_iter().map(|_: u64| u64::MAX).chain([0]).skip(1).collect(),
            stride: vec![i64::MIN; MAX_RANK].into(),
            offset_elems: u64::MAX,
            storage_id: u64::MAX - 1,
            dim_names: Some((0..MAX_RANK).map(name).collect()),
            ..parts()
        })
        .unwrap();
        let entry = ("n".repeat(MAX_TEXT_BYTES), TensorWireRef::from(&record));
        let bytes = crate::codec::encode(&entry, u64::MAX, Rule::Canonical).unwrap();
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
