//! The contents of a file to write.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use stridemap::{DType, Error, Result, Tensor};

use super::entry::Entry;
use super::limits::{MAX_ALIGNMENT, MAX_HEADER_BYTES, is_alignment};
use super::types::{Shape, ValueType};
use super::value::{Encoded, JSON, count_values, push_text};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, VALUE_TYPE_PREFIX, VERSION};
use crate::contents::TEXT;
use crate::file::{self, unwritable};

/// The keys of a file that is one of several which hold a model.
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";
const SPLIT_KEYS: [&str; 3] = ["split.no", SPLIT_COUNT, SPLIT_TENSORS];

/// What a file holds.
struct Parts<'a> {
    metadata: BTreeMap<String, String>,
    /// The types of metadata, by key after its prefix.
    types: BTreeMap<String, String>,
    lists: Vec<List<'a>>,
    entries: Vec<Entry<'a>>,
}

/// An array of the metadata that is a tensor of bytes in a store.
struct List<'a> {
    key: &'a str,
    of: ValueType,
    count: u64,
    bytes: Vec<u8>,
}

impl<'a> Parts<'a> {
    /// Tells tensors from long values of the metadata, and checks that the format can hold them.
    fn of(
        path: &Path,
        mut metadata: BTreeMap<String, String>,
        types: &BTreeMap<String, String>,
        tensors: &'a [(String, Tensor)],
    ) -> Result<Self> {
        let (mut entries, mut lists, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (name, tensor) in tensors {
            let bad = |what: String| unwritable(path, format!("tensor {name:?}: {what}"));
            if !names.insert(name) {
                return Err(bad("another tensor has this name".to_owned()));
            }
            let stated = types.get(name).filter(|_| tensor.dtype() == DType::U8);
            match stated.map(|stated| (stated.as_str(), Shape::of_name(stated))) {
                Some((TEXT, _)) => {
                    let text = String::from_utf8(metadata_bytes(path, name, tensor)?);
                    metadata.insert(name.clone(), text.map_err(|_| bad("its text is not UTF-8".to_owned()))?);
                }
                Some((stated, Some(Shape::List(of)))) => {
                    let bytes = metadata_bytes(path, name, tensor)?;
                    let count = count_values(of, &bytes).ok_or_else(|| {
                        bad(format!(
                            "its bytes are not values of {stated}, which its attribute gguf.type says"
                        ))
                    })?;
                    metadata.remove(name);
                    lists.push(List { key: name, of, count, bytes });
                }
                stated => {
                    entries.push(Entry::new(name, tensor, stated.map(|(name, _)| name)).map_err(bad)?);
                }
            }
        }
        if is_whole_model(&metadata, entries.len()) {
            SPLIT_KEYS.iter().for_each(|key| drop(metadata.remove(*key)));
        }
        let (types, metadata) = metadata.into_iter().partition(|(key, _)| key.starts_with(VALUE_TYPE_PREFIX));
        Ok(Parts { metadata, types, lists, entries })
    }

    /// Returns the header, with the unused bytes after it, and the alignment of the tensors.
    fn header(&self, path: &Path) -> Result<(Vec<u8>, u64)> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((self.entries.len() as u64).to_le_bytes());
        header.extend(((self.metadata.len() + self.lists.len()) as u64).to_le_bytes());
        let mut alignment = DEFAULT_ALIGNMENT;
        for (key, attribute) in &self.metadata {
            let stated = self.types.get(&format!("{VALUE_TYPE_PREFIX}{key}"));
            let value = Encoded::of(attribute, stated.and_then(|name| Shape::of_name(name)));
            if key == ALIGNMENT_KEY {
                alignment = alignment_of(&value).ok_or_else(|| {
                    let what = format!(
                        "the attribute {ALIGNMENT_KEY:?} is {attribute:?}, and must be a power of two, at most \
                         {MAX_ALIGNMENT}, such as json:32"
                    );
                    unwritable(path, what)
                })?;
            }
            push_text(&mut header, key);
            match value.shape {
                Shape::One(of) => header.extend(of.code().to_le_bytes()),
                Shape::List(of) => push_list(&mut header, of, value.count as u64),
            }
            header.extend(value.bytes);
        }
        for List { key, of, count, bytes } in &self.lists {
            push_text(&mut header, key);
            push_list(&mut header, *of, *count);
            header.extend(bytes);
        }
        let mut offset_bytes = 0u64;
        for entry in &self.entries {
            entry.push_to(&mut header, offset_bytes);
            let end_bytes = offset_bytes.saturating_add(entry.tensor.nbytes() as u64);
            offset_bytes = end_bytes.saturating_add(padding(end_bytes, alignment));
        }
        let bytes = header.len() as u64;
        if bytes > MAX_HEADER_BYTES {
            let what = format!("a header of {bytes} bytes, but at most {MAX_HEADER_BYTES} are allowed");
            return Err(unwritable(path, what));
        }
        header.resize(header.len() + padding(header.len() as u64, alignment) as usize, 0);
        Ok((header, alignment))
    }
}

/// Returns the bytes of a long value of the metadata.
fn metadata_bytes(path: &Path, name: &str, tensor: &Tensor) -> Result<Vec<u8>> {
    let bytes = tensor.nbytes() as u64;
    if bytes > MAX_HEADER_BYTES {
        let what =
            format!("the metadata {name:?} have {bytes} bytes, but at most {MAX_HEADER_BYTES} are allowed");
        return Err(unwritable(path, what));
    }
    tensor.to_bytes()
}

/// Returns whether the metadata are those of one of several files, and the tensors are those of all of them.
fn is_whole_model(metadata: &BTreeMap<String, String>, tensor_count: usize) -> bool {
    let number = |key| metadata.get(key)?.strip_prefix(JSON)?.parse::<usize>().ok();
    number(SPLIT_COUNT).is_some_and(|count| count > 1) && number(SPLIT_TENSORS) == Some(tensor_count)
}

fn alignment_of(value: &Encoded) -> Option<u64> {
    let stated = u64::from(u32::from_le_bytes(*value.bytes.first_chunk()?));
    (value.shape == Shape::One(ValueType::U32) && is_alignment(stated)).then_some(stated)
}

fn push_list(header: &mut Vec<u8>, of: ValueType, count: u64) {
    header.extend(ValueType::Array.code().to_le_bytes());
    header.extend(of.code().to_le_bytes());
    header.extend(count.to_le_bytes());
}

/// Returns the number of unused bytes between `end_bytes` and what comes next.
fn padding(end_bytes: u64, alignment: u64) -> u64 {
    end_bytes.checked_next_multiple_of(alignment).map_or(0, |next| next - end_bytes)
}

/// A file that is ready to be written.
pub(super) struct Model<'a> {
    header: Vec<u8>,
    entries: Vec<Entry<'a>>,
    alignment: u64,
}

impl<'a> Model<'a> {
    pub(super) fn of(
        path: &Path,
        metadata: BTreeMap<String, String>,
        types: &BTreeMap<String, String>,
        tensors: &'a [(String, Tensor)],
    ) -> Result<Self> {
        let parts = Parts::of(path, metadata, types, tensors)?;
        let (header, alignment) = parts.header(path)?;
        Ok(Model { header, entries: parts.entries, alignment })
    }

    pub(super) fn write(
        &self,
        path: &Path,
        writer: &mut impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let failed = |e| Error::io("export", path, e);
        writer.write_all(&self.header).map_err(failed)?;
        for Entry { tensor, .. } in &self.entries {
            file::write_elements(path, writer, tensor, progress)?;
            let unused = padding(tensor.nbytes() as u64, self.alignment);
            writer.write_all(&vec![0; unused as usize]).map_err(failed)?;
        }
        writer.flush().map_err(failed)
    }
}
